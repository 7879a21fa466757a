"""Compares the simulator's counters with Nsight Compute's, on a machine with a GPU and ncu.

`attn-course record counters` runs it.

Every kernel of the ladder runs at three shapes, one of them ragged, under ncu and on the simulator;
probes of single shared-memory access patterns and of single atomics follow. Both sides go to
OUT/<gpu>/counters.json, with a table on the screen. Exit status 1 where a bar is missed.
`--simulator-only` needs no GPU, `--only atomic` takes the probes of atomics alone.
"""

import argparse
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernelscope import Counters, RawModule, array_module, observe
from kernelscope.cli.tables import table as aligned
from kernelscope.differential.record import run_of
from kernelscope.watch import is_loop

from attn_course.ladder.problem import ceil_div
from attn_course.ladder.steps import LADDER, step
from attn_course.measure.hardware.nsight import COUNTER_METRICS, Target
from attn_course.measure.records import (
    RESULTS_FOLDER,
    caption,
    is_current,
    new_record,
    read_record,
)

from ..profile.ncu import Profile, required_ncu, run_ncu
from .counter_probes import AtomicProbe, Probe, probes
from .schema import write

SHAPES = ((24, 196, 196, 64), (3, 61, 77, 37), (4, 128, 160, 48))  # (BH, n, m, d); ragged second
VARIANTS = (("-DK_TILE=0",), ("-DK_TILE=1", "-DPAD=0"), ("-DTILE=16",))  # of kernel 02
# Wavefronts as the instructions themselves made them; COUNTER_METRICS's plain metrics also count
# passes that an access lost to another in arbitration, some per cent that differ from run to run.
_SASS = "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op"
SASS_WAVEFRONTS = {
    "shared_load_wavefronts": f"{_SASS}_ld.sum",
    "shared_store_wavefronts": f"{_SASS}_st.sum",
}
# ldmatrix and stmatrix have counts of their own: their requests, and their wavefronts as the
# instructions made them.
MATRICES = {
    "shared_load_requests": "smsp__inst_executed_op_ldsm.sum",
    "shared_load_wavefronts": f"{_SASS}_ldsm.sum",
    "shared_store_requests": "smsp__inst_executed_op_shared_stsm.sum",
    "shared_store_wavefronts": f"{_SASS}_stsm.sum",
}
# Of what the matrix unit executes, what is no product of matrices: HFMA2.MMA, pairs of halves.
PAIRS_OF_HALVES = "smsp__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum"
# Atomics: a reduction, whose result nobody uses, has counts of its own (RED).
ATOMIC_METRICS = {
    "global_atomic_requests": [
        f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum" for op in ("atom", "red")
    ],
    "global_atomic_sectors": [
        f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum" for op in ("atom", "red")
    ],
    "shared_atomic_requests": ["smsp__inst_executed_op_shared_atom.sum"],
    "shared_atomic_wavefronts": [f"{_SASS}_atom.sum"],
    "shared_atomic_conflicts": ["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_atom.sum"],
}
# Bulk copies: boxes of tensor maps. What comes for places past an array's edges is counted too.
BULK_METRICS = {
    "bulk_copy_requests": [f"smsp__inst_executed_op_tma_{op}.sum" for op in ("ld", "st")],
    "bulk_load_sectors": ["l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum"],
    "bulk_store_sectors": ["l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st.sum"],
}
# Local memory: ptxas spills registers there, and keeps in registers what it can.
LOCAL_METRICS = {
    "local_load_requests": "smsp__inst_executed_op_local_ld.sum",
    "local_store_requests": "smsp__inst_executed_op_local_st.sum",
}
KEPT = re.compile(r"(l1tex|smsp|sm|lts|dram|gpu)__\w+\.(sum|pct|ratio)$|launch__(reg|shared|occup)")
EXACT = (
    "tensor_instructions",
    "global_load_requests",
    "global_load_sectors",
    "global_store_requests",
    "global_store_sectors",
    "global_atomic_requests",
    "global_atomic_sectors",
    "shared_atomic_requests",
    "shared_atomic_wavefronts",
    "shared_atomic_conflicts",
    *BULK_METRICS,
)
CLOSE = (
    "shared_load_wavefronts",
    "shared_store_wavefronts",
    "shared_load_conflicts",
    "shared_store_conflicts",
)
TOLERANCE = 0.02
EXPANDING = ("div.", "ex2.", "rcp.", "sqrt.", "rsqrt.", "lg2.", "sin.", "cos.", "tanh.")
# Why a count may differ, by the first words of its verdict.
REASONS = {
    "machine instructions": "the simulator counts PTX, hardware the machine code that ptxas makes",
    "expands": "one PTX operation becomes several machine instructions, with FFMA among them",
    "retries": "machine code adds floats in shared memory, and works on 64 bits there, by a loop "
    "of loads and compare-and-swaps",
    "idle instructions": "loads and stores whose predicate is off in all lanes count as executed: "
    "those of unrolled tails, and the ones ptxas puts before cp.async",
    "spilled or kept": "ptxas spills registers to local memory, and keeps arrays in registers "
    "where it can; the simulator counts PTX",
    "within 2 %": "ptxas may move a tail's loads over a branch, or make one wider than is asked",
}


def targets() -> list[Target]:
    """Every kernel at every shape, and kernel 02's layouts at the first."""
    plain = [
        Target(row.number, (*shape[:3], ceil_div(shape[3], 8) * 8) if row.maps else shape)
        for shape in SHAPES
        for row in LADDER
    ]  # the copy engine takes rows of whole 16 bytes
    return plain + [Target(2, SHAPES[0], options) for options in VARIANTS]


def cases(
    every: int, only: str = "", earlier: dict | None = None
) -> list[Target | Probe | AtomicProbe]:
    """Return every n-th of all targets and probes, of those whose labels hold `only`.

    earlier: of those only targets that the record has not, or has of other code.
    """
    found = [case for case in (*targets(), *probes()) if only in case.label]
    if earlier:
        known = {place_of(row) for row in earlier["cases"] if is_current(earlier, row["file"])}
        targets_only = [one for one in found if isinstance(one, Target)]
        found = [one for one in targets_only if (one.label, *one.problem) not in known]
    return found[::every]


def launch_all(chosen) -> None:
    """Launch the cases that ncu profiles."""
    for case in chosen:
        case.run("gpu")
    array_module("gpu").cuda.Device().synchronize()


def simulate(case) -> dict[str, int]:
    if isinstance(case, Target):
        return case.counts()
    with observe(Counters()) as seen:
        case.run("simulator")
    return seen.totals


def profile(chosen, parsed: argparse.Namespace) -> list[Profile]:
    """One ncu run over this very module. `parsed.also`: further metrics, a regular expression."""
    program = [sys.executable, "-m", __spec__.name, "--launch"]
    program += ["--every", str(parsed.every), "--only", parsed.only]
    program += ["--earlier", str(parsed.earlier)] if parsed.earlier else []
    summed = [metric for parts in (ATOMIC_METRICS | BULK_METRICS).values() for metric in parts]
    wanted = (
        *COUNTER_METRICS.values(),
        *SASS_WAVEFRONTS.values(),
        *MATRICES.values(),
        PAIRS_OF_HALVES,
        *summed,
    )
    wanted += tuple(LOCAL_METRICS.values())
    if parsed.also:
        wanted = dict.fromkeys((*wanted, *known_metrics(parsed.also)))
    return run_ncu(program, [case.launch for case in chosen], [*wanted])


def known_metrics(pattern: str) -> list[str]:
    """Return the sums of this ncu's metrics whose names match a regular expression, in order.

    Raises ProfilerError where there is no ncu.
    """
    query = [str(required_ncu()), "--query-metrics"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=120)
    names = re.findall(r"^(\w+__\w+) ", done.stdout, re.MULTILINE)
    return [f"{name}.sum" for name in sorted(set(names)) if re.search(pattern, name)]


# -- judging ---------------------------------------------------------------------------------------
def opcodes(case) -> set[str]:
    """The operations that the kernel's PTX uses."""
    if isinstance(case, Target):
        module = RawModule(
            path=str(step(case.step).path), options=case.options, backend="simulator"
        )
    else:
        module = RawModule(code=case.source, backend="simulator")
    return {i.opcode for i in module.program().module.functions[case.launch.entry].body}


def expands(case) -> list[str]:
    """Operations of the kernel's PTX that become several machine instructions, FFMA among them."""
    return sorted({begin for op in opcodes(case) for begin in EXPANDING if op.startswith(begin)})


def retries(case) -> list[str]:
    """Atomics in shared memory that the machine has no single instruction for."""
    return sorted(filter(is_loop, opcodes(case)))


def measured(profile: Profile, totals: dict[str, int]) -> dict[str, float]:
    """Hardware's counts by our names: wavefronts without arbitration where ncu can tell them, and
    conflicts as the wavefronts beyond the fewest possible.
    """
    found = {
        name: profile.metrics[metric]
        for name, metric in (COUNTER_METRICS | LOCAL_METRICS).items()
        if metric in profile.metrics
    }
    for waves, metric in SASS_WAVEFRONTS.items():
        found[waves] = profile.metrics.get(metric, found.get(waves, 0))
    for name, metric in MATRICES.items():
        if SASS_WAVEFRONTS.get(name, COUNTER_METRICS[name]) in profile.metrics:
            found[name] += profile.metrics.get(metric, 0)  # the plain wavefronts have them already
    for name, parts in (ATOMIC_METRICS | BULK_METRICS).items():
        known = [profile.metrics[part] for part in parts if part in profile.metrics]
        if known:
            found[name] = sum(known)
    if "bulk_load_sectors" in found:
        found["bulk_load_sectors"] -= totals["bulk_fill_sectors"]
    if "tensor_instructions" in found:
        found["tensor_instructions"] -= profile.metrics.get(PAIRS_OF_HALVES, 0)
    for waves in SASS_WAVEFRONTS:
        conflicts = waves.replace("wavefronts", "conflicts")
        found[conflicts] = found[waves] - (totals[waves] - totals[conflicts])
    return found


def judge(
    name: str,
    hardware: float,
    simulated: int,
    waves: float,
    expanding: list[str],
    retrying: list[str],
) -> str:
    """'equal', 'within 2 %', 'MISSED', or why no bar applies: see REASONS."""
    if hardware == simulated:
        return "equal"
    if name.startswith(("shared_load", "shared_atomic")) and retrying:
        return f"retries: {', '.join(retrying)}"
    if name in EXACT:
        return "MISSED"
    if name in CLOSE:
        scale = max(waves, 1) if name.endswith("conflicts") else max(simulated, 1)
        return "within 2 %" if abs(hardware - simulated) <= TOLERANCE * scale else "MISSED"
    if name == "ffma_thread_instructions":
        return f"expands: {', '.join(expanding)}" if expanding else "MISSED"
    if name in LOCAL_METRICS:
        return "spilled or kept"
    if name == "instructions":
        return "machine instructions, not PTX"
    return "idle instructions" if hardware > simulated else "MISSED"


def compare(case, profile: Profile, totals: dict[str, int]) -> dict:
    """One case's row of the record: both sides of every counter, and the verdicts."""
    hardware = measured(profile, totals)
    expanding, retrying = expands(case), retries(case)
    rows = {}
    for name, value in hardware.items():
        waves = hardware.get(name.replace("conflicts", "wavefronts"), 0)
        verdict = judge(name, value, totals[name], waves, expanding, retrying)
        rows[name] = {"hardware": value, "simulator": totals[name], "verdict": verdict}
    kept = {name: value for name, value in profile.metrics.items() if KEPT.match(name)}
    return {"label": case.label, **describe(case), "counters": rows, "metrics": kept}


def with_earlier_cases(record: dict, earlier: dict) -> dict:
    """The record with what an earlier one of the same GPU has and this run left out.

    Each case that is kept says when, and at which commit, it was run; kernels keep their hashes of
    then. Raises InputError for another GPU.
    """
    run = run_of(earlier, record["gpu"])
    found = {**record, "kernels": earlier["kernels"] | record["kernels"]}
    for part in ("cases", "probes"):
        known = {place_of(case) for case in record[part]}
        kept = [{"run": run, **case} for case in earlier[part] if place_of(case) not in known]
        found[part] = [*kept, *record[part]]
    return {**found, "missed": missed([*found["cases"], *found["probes"]])}


def place_of(case: dict) -> tuple:
    return case["label"], *case.get("problem", ())


def describe(case) -> dict:
    launch = case.launch
    found = {"kernel": launch.entry, "grid": launch.grid, "block": launch.block}
    if isinstance(case, Target):
        found |= {"file": f"{case.file}.cu", "problem": case.problem, "options": case.options}
    return found


def table(rows: list[dict]) -> str:
    cells = []
    for row in rows:
        where = f"{row['label']} {tuple(row['problem'])}" if "problem" in row else row["label"]
        for name, one in row["counters"].items():
            if one["hardware"] or one["simulator"]:
                cells.append(
                    (where, name, f"{one['hardware']:,}", f"{one['simulator']:,}", one["verdict"])
                )
                where = ""
    return aligned(("case", "counter", "hardware", "simulator", "verdict"), cells, (2, 3))


def missed(rows: list[dict]) -> list[str]:
    return [
        f"{row['label']} {row.get('problem', '')}: {name}"
        for row in rows
        for name, one in row["counters"].items()
        if one["verdict"] == "MISSED"
    ]


# -- the run ---------------------------------------------------------------------------------------
def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS_FOLDER, help="folder of records")
    parser.add_argument("--simulator-only", action="store_true", help="no GPU: one side only")
    parser.add_argument("--every", type=int, default=1, help="take every n-th case only")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their label")
    parser.add_argument(
        "--earlier",
        type=Path,
        metavar="RECORD",
        help="run the kernels that changed since; keep its other cases",
    )
    parser.add_argument("--also", metavar="REGEX", help="record these metrics of ncu too")
    parser.add_argument("--launch", action="store_true", help="what ncu profiles; not for people")
    parsed = parser.parse_args(arguments)
    earlier = read_record(parsed.earlier) if parsed.earlier else None
    chosen = cases(parsed.every, parsed.only, earlier)
    if parsed.launch:
        launch_all(chosen)
        return 0
    if not chosen:
        print("counters: no case to run: none has this label, or no kernel changed since")
        return 1 if parsed.only else 0
    if parsed.simulator_only:
        return show_simulator(chosen)
    with ThreadPoolExecutor(1) as pool:  # ncu and the simulator work side by side
        waiting = pool.submit(profile, chosen, parsed)
        totals = [simulate(case) for case in chosen]
        profiles = waiting.result()
    rows = [compare(*one) for one in zip(chosen, profiles, totals, strict=True)]
    return finish(rows, parsed.out, earlier)


def show_simulator(chosen) -> int:
    for case in chosen:
        where = f"{case.label} {case.problem}" if isinstance(case, Target) else case.label
        counts = {
            name: value
            for name, value in simulate(case).items()
            if value and name in COUNTER_METRICS | LOCAL_METRICS
        }
        print(where, json.dumps(counts), sep="\n  ")
    return 0


def finish(rows: list[dict], out: Path, earlier: dict | None = None) -> int:
    ladder = [row for row in rows if "file" in row]
    failed = missed(rows)
    record = new_record(
        "counters",
        [row["file"] for row in ladder],
        cases=ladder,
        probes=[row for row in rows if "file" not in row],
        missed=failed,
        reasons=REASONS,
    )
    if earlier:
        record = with_earlier_cases(record, earlier)
    path = write(record, "counters", out)
    print(table(rows))
    print(f"\n{caption(record)}\nwritten to {path}")
    equal = sum(one["verdict"] == "equal" for row in rows for one in row["counters"].values())
    total = sum(len(row["counters"]) for row in rows)
    for name, reason in REASONS.items():
        print(f"  {name}: {reason}")
    print(f"counters: {total} compared, {equal} equal, {len(failed)} bars missed")
    for line in failed:
        print(f"  missed: {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
