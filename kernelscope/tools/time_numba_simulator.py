"""Numba's CUDA simulator beside this package: seconds of equal launches, and what each finds.

    python kernelscope/tools/time_numba_simulator.py            # both, on equal kernels
    python kernelscope/tools/time_numba_simulator.py --tiled    # Numba's alone, a tiled product

Each launch has a process of its own, since numba reads NUMBA_ENABLE_CUDASIM when it is imported.
Both write a record under results/cpu/; the first also prints the tables of
docs/python_kernels.md. `--tiled` needs numba alone.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

ENGINE = Path(__file__).resolve().parents[1]
RECORDS = ENGINE / "results" / "cpu"
SIMULATORS = ("numba", "kernelscope")
REPEATS, MOST_SECONDS = 3, 120
TILE = 16


# -- one launch, in a process of its own -----------------------------------------------------------
def launch(kernel, grid, block, arguments) -> None:
    """On the simulator of this process."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        kernel[grid, block](*arguments)
    else:
        from kernelscope.numba import run

        run(kernel, grid, block, *arguments)


def timed(name: str) -> dict:
    """CPU seconds of the first launch and, where that compiles, of a second; checks the result."""
    import numpy as np
    from numba_kernels import cases  # imports numba

    kernel, grid, block, arguments, place, expected = cases()[name]
    given, seconds = arguments[place].copy(), []
    for _ in range(1 if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1" else 2):
        arguments[place][...] = given
        start = time.process_time()
        launch(kernel, grid, block, arguments)
        seconds.append(time.process_time() - start)
        np.testing.assert_allclose(arguments[place], expected, atol=1e-4)
    return {"first": seconds[0], "again": seconds[-1]}


def found(name: str) -> dict:
    """What a wrong kernel of the tests leads to."""
    sys.path.insert(0, str(ENGINE / "tests" / "numba_front"))
    import wrong_kernels

    kernel = next(one for one in wrong_kernels.WRONG if one.__name__ == name)
    call = kernel, 1, wrong_kernels.N, wrong_kernels.arguments()
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        try:
            launch(*call)
        except Exception as error:
            text = re.sub(r"tid=\S+ \S+ \S+ ctaid=\S+ \S+ \S+ ", "", str(error))
            return {"found": f"{type(error).__name__}: {text}"}
        return {"found": ""}
    from kernelscope import Sanitizer, observe

    with observe(Sanitizer()) as seen:
        launch(*call)
    first = seen.findings[0]
    return {"found": f"{first.kind}, line {first.line}: {first.line_text.partition('  #')[0]}"}


def child(simulator: str, what: str, name: str) -> dict:
    """The result of `timed` or `found` in a process with this simulator."""
    command = [sys.executable, "-W", "ignore", __file__, "--child", what, name]
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": str(int(simulator == "numba"))}
    limit = MOST_SECONDS if what == "found" else None
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return {"found": f"does not end in {MOST_SECONDS} s"}
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


# -- records ---------------------------------------------------------------------------------------
def compare() -> dict:
    """Both simulators on equal kernels."""
    sys.path.insert(0, str(ENGINE / "tests" / "numba_front"))
    import wrong_kernels

    cases = {}
    for name in ("vector_add", "stencil", "histogram", "scores_tiled"):
        cases[name] = {one: child(one, "timed", name) for one in SIMULATORS}
    wrong = {
        kernel.__name__: {one: child(one, "found", kernel.__name__)["found"] for one in SIMULATORS}
        for kernel in wrong_kernels.WRONG
    }
    return {"cpu_seconds": cases, "wrong_kernels": wrong}


def tables(record: dict) -> str:
    """The two tables of docs/python_kernels.md."""
    lines = [
        "| kernel | Numba's simulator | kernelscope, again | kernelscope, with compiling |",
        "|---|---|---|---|",
    ]
    for name, case in record["cpu_seconds"].items():
        ours = case["kernelscope"]
        each = (case["numba"]["again"], ours["again"], ours["first"])
        lines.append(f"| `{name}` | " + " | ".join(f"{one:.3g} s" for one in each) + " |")
    lines += ["", "| wrong kernel | Numba's simulator | kernelscope |", "|---|---|---|"]
    for name, both in record["wrong_kernels"].items():
        shown = [f"`{both[one]}`" if both[one] else "nothing" for one in SIMULATORS]
        lines.append(f"| `{name}` | {shown[0]} | {shown[1]} |")
    return "\n".join(lines)


def tiled_alone() -> dict:
    """Wall-clock seconds of Numba's simulator on the tiled product, in this process."""
    import numpy as np
    from numba_kernels import cases  # imports numba

    kernel, grid, block, arguments, place, expected = cases()["scores_tiled"]
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        kernel[grid, block](*arguments)
        seconds.append(time.perf_counter() - start)
        np.testing.assert_allclose(arguments[place], expected, atol=1e-4)
    shape = f"scores_tiled, TILE={TILE}, n=128, d=64"
    return {"kernel": shape, "seconds": statistics.median(seconds), "all_seconds": seconds}


def processor() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in open("/proc/cpuinfo")
        if line.startswith("model name")
    ]
    return f"{names[0] if names else platform.machine()}, {len(names)} cores"


def write(name: str, record: dict) -> None:
    import numba

    record |= {
        "machine": processor(),
        "python": platform.python_version(),
        "numba": numba.__version__,
        "date": date.today().isoformat(),
    }
    RECORDS.mkdir(parents=True, exist_ok=True)
    (RECORDS / name).write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiled", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        what, name = arguments.child
        print(json.dumps({"timed": timed, "found": found}[what](name)))
    elif arguments.tiled:
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # read when numba is imported
        write("numba_simulator.json", tiled_alone())
    else:
        record = compare()
        write("numba_front.json", record)
        print(tables(record))


if __name__ == "__main__":
    main()
