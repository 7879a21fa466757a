"""Runs Nsight Compute once over a small Python process that launches every target once.

`collect` gives back ncu's metrics target by target.
"""

import csv
import io
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kernelscope.errors import UserError

from attn_course.folders import IMPORT_ROOT, child_environment
from attn_course.ladder.steps import Geometry
from attn_course.measure.hardware.nsight import (
    PROFILING,
    STALL_METRICS,
    CopyTarget,
    Target,
    ncu_command,
)

_NCU_PLACES = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
TOOLS = Path(__file__).resolve().parents[2]  # on the path of the process that ncu starts


class ProfilerError(UserError, RuntimeError):
    """ncu is missing, not allowed to read the counters, or did not profile what was asked."""


@dataclass(frozen=True)
class Profile:
    """Metrics of one launch from ncu; those that it could not measure are left out."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    metrics: dict[str, float]

    def case(self, target: Target | CopyTarget) -> dict:
        """Return the profile as a record's case, with what was launched."""
        return {
            "file": f"{target.file}.cu",
            "kernel": self.kernel,
            "problem": target.problem,
            "options": target.options,
            "grid": self.grid,
            "block": self.block,
            "metrics": self.metrics,
        }


def stalls(metrics: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the reasons for which a warp's next instruction waited, the longest first."""
    waits = {name: metrics.get(metric) for name, metric in STALL_METRICS.items()}
    found = [(n, cycles) for n, cycles in waits.items() if cycles is not None and n != "selected"]
    return sorted(found, key=lambda one: -one[1])


def find_ncu() -> Path | None:
    """The ncu on the PATH or in the places where the toolkit puts it, the newest; else None."""
    if found := shutil.which("ncu"):
        return Path(found)
    places = [p for pattern in _NCU_PLACES for p in Path("/").glob(pattern.lstrip("/"))]
    return max(places, default=None)


def required_ncu() -> Path:
    """Return find_ncu(). ProfilerError: there is none."""
    if ncu := find_ncu():
        return ncu
    raise ProfilerError("ncu (Nsight Compute) is not on the PATH nor in the CUDA toolkit")


def collect(
    targets: Sequence[Target | CopyTarget], metrics: Sequence[str] = PROFILING
) -> list[Profile]:
    """Profile each target once, in one ncu run. ProfilerError where that is not possible."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        plan.write_text(plan_of(targets))
        program = [sys.executable, "-m", "attn_devtools.profile.ncu", str(plan)]
        launches = [target.launch for target in targets]
        return run_ncu(program, launches, metrics)


def run_ncu(
    program: Sequence[str], launches: Sequence[Geometry], metrics, more: Sequence[str] = ()
):
    """Profiles of a program that makes exactly these launches, in this order.

    Metrics that this ncu does not know are left out. more: options of ncu besides.
    """
    ncu, metrics = required_ncu(), list(metrics)
    while metrics:
        command = ncu_command(ncu, [launch.entry for launch in launches], metrics, program, more)
        done = subprocess.run(
            command,
            cwd=IMPORT_ROOT,
            env=child_environment(TOOLS),
            capture_output=True,
            text=True,
            timeout=600,
        )
        output = done.stdout + done.stderr
        unknown = unknown_metrics(output, metrics)
        if not unknown:
            break
        metrics = [metric for metric in metrics if metric not in unknown]
    if not metrics:
        raise ProfilerError("this ncu knows none of the metrics that were asked for")
    if "ERR_NVGPUCTRPERM" in output:
        raise ProfilerError(
            "this GPU's driver lets only its administrator read hardware counters "
            "(ERR_NVGPUCTRPERM); the recorded profiles need none"
        )
    try:
        return match(parse_csv(done.stdout), launches)
    except ProfilerError as error:
        last = "\n".join(output.strip().splitlines()[-15:])
        raise ProfilerError(f"{error}\nncu's last lines:\n{last}") from None


def unknown_metrics(output: str, metrics: Sequence[str]) -> list[str]:
    """Metrics that ncu complains of not knowing."""
    complaint = re.compile(r"(failed to find|unknown|invalid|unsupported).*metric", re.IGNORECASE)
    lines = output.replace("\\", "").splitlines()  # a pattern escapes the dots of a name
    text = "\n".join(line for line in lines if complaint.search(line))
    return [metric for metric in metrics if re.search(rf"(?<![\w.]){re.escape(metric)}", text)]


# -- reading ncu's output --------------------------------------------------------------------------
def parse_csv(text: str) -> list[Profile]:
    """The rows of `ncu --csv --page raw`: a line of names, a line of units, a line a launch."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise ProfilerError("ncu printed no table")
    body = [line for line in lines[start:] if line.startswith('"')]
    table = csv.DictReader(io.StringIO("\n".join(body)))
    return [_profile(row) for row in table if row["ID"].strip()]  # the units' row has no ID


def _profile(row: dict[str, str]) -> Profile:
    metrics = {}
    for name, text in row.items():
        value = _number(text) if name and "__" in name else None
        if value is not None:
            metrics[name] = value
    kernel = row["Kernel Name"].split("(")[0].split("<")[0].split()[-1]
    return Profile(kernel, _extents(row.get("Grid Size")), _extents(row.get("Block Size")), metrics)


def _number(text: str | None) -> float | None:
    """'1,234' -> 1234; None for 'n/a', 'nan' and the like. Whole numbers stay ints."""
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else value


def _extents(text: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text or ""))


def match(profiles: list[Profile], launches: Sequence[Geometry]) -> list[Profile]:
    """The profiles, checked to be of these launches in this order."""
    names, expected = [p.kernel for p in profiles], [launch.entry for launch in launches]
    if names != expected:
        raise ProfilerError(f"ncu profiled {names}, expected were {expected}")
    for profile, launch in zip(profiles, launches, strict=True):
        for got, asked in ((profile.grid, launch.grid), (profile.block, launch.block)):
            if got and got != asked:
                raise ProfilerError(f"{profile.kernel} ran with {got}, asked for was {asked}")
    return profiles


def main(arguments: Sequence[str] | None = None) -> None:
    """Launch every target of a plan file once on the GPU, for ncu to profile."""
    import cupy

    plan = Path((sys.argv[1:] if arguments is None else arguments)[0])
    for target in planned(plan.read_text()):
        target.run("gpu")
    cupy.cuda.Device().synchronize()


def plan_of(targets: Sequence[Target | CopyTarget]) -> str:
    """Return the text of a plan file with these targets."""
    return json.dumps([asdict(target) for target in targets])


def planned(text: str) -> list[Target | CopyTarget]:
    """Return the targets of a plan file's text."""
    return [
        CopyTarget(**item)
        if "count" in item
        else Target(item["step"], tuple(item["problem"]), tuple(item["options"]))
        for item in json.loads(text)
    ]


if __name__ == "__main__":
    main()
