"""Compares the simulator with a GPU, bit for bit, and records the result.

    python -m kernelscope.differential --out results     on a machine with a GPU and CuPy
    python -m kernelscope.differential --self-test       without one: simulator against simulator
    python -m kernelscope.differential --sections random_kernels --kernels 2048

Eight sections: every opcode of the operation table; matrix instructions of warps; those of groups
of warps; random kernels, against an independent oracle too; warp operations, atomics, memory and
conversions; the mathematical functions; textures; bulk copies. The last line above runs only the
random kernels, with or without --self-test; with --earlier RECORD the record keeps that one's other
sections, each with its date and commit. A caller may add sections of its own. A record of kind
"differential" goes to OUT/<gpu>/differential.json; the exit status is 1 where the two disagree.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

from kernelscope.differential.identity import gpu_identity
from kernelscope.differential.machines import Machine
from kernelscope.differential.record import (
    make_record,
    report,
    run_of,
    summarise,
    with_earlier_sections,
    write,
)
from kernelscope.differential.sections import SECTIONS, guarded


class MachineRun:
    """One comparison: `first` the GPU (or its stand-in), workers that run the simulator."""

    def __init__(self, arguments: argparse.Namespace, kernels: dict[str, str]):
        self.arguments, self.kernels = arguments, kernels
        self.self_test = arguments.self_test
        stand_in = Machine("simulator", debug=True, warp_order=1)
        self.first = stand_in if self.self_test else Machine("gpu")
        self.pool = None
        self.started = time.time()

    def submit(self, function, *values):
        """A simulator's or the oracle's result, computed in another process."""
        return self.pool.submit(function, *values)

    def thin(self, items):
        """Every n-th item where --every says so."""
        return items[:: self.arguments.every]


def parse(arguments=None, sections=SECTIONS):
    """The command line; `arguments`: its words, by default those of this process."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for the record, such as results")
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="simulator against simulator (debug build, random warp order)",
    )
    parser.add_argument("--sections", nargs="+", choices=sections, default=list(sections))
    parser.add_argument(
        "--earlier", type=Path, help="record whose sections are kept where they are not run again"
    )
    parser.add_argument("--kernels", type=int, default=2048, help="random kernels (default 2048)")
    parser.add_argument(
        "--raw", type=Path, help="file .npz for the results of matrix instructions on the GPU"
    )
    parser.add_argument("--every", type=int, default=1, help="take every n-th item only")
    parser.add_argument(
        "--workers",
        type=int,
        help="processes for the simulator (default: two fewer than there are "
        "cores); 0: none but this one",
    )
    return parser.parse_args(arguments)


class InThisProcess:
    """An executor without processes: submit() does the work."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    @staticmethod
    def submit(function, *values) -> concurrent.futures.Future:
        """Call the function now; the future is done."""
        future = concurrent.futures.Future()
        try:
            future.set_result(function(*values))
        except Exception as error:
            future.set_exception(error)
        return future


def pool(workers: int | None):
    """Return the executor that runs the simulator beside the GPU."""
    if workers == 0:
        return InThisProcess()
    workers = workers or max(1, len(os.sched_getaffinity(0)) - 2)
    context = multiprocessing.get_context("spawn")  # a forked child could not use the GPU's driver
    return concurrent.futures.ProcessPoolExecutor(workers, mp_context=context)


def compare_machines(arguments, known=SECTIONS, kernels=None) -> dict:
    """Run the chosen ones of the known sections and return the record; see main."""
    run = MachineRun(arguments, kernels or {})
    sections = {}
    with pool(arguments.workers) as run.pool:
        for name in arguments.sections:
            started = time.time()
            section = guarded({"items": []}, lambda name=name: known[name](run))
            left = [item for item in section["items"] if item.get("not_run")]
            section["items"] = [item for item in section["items"] if not item.get("not_run")]
            sections[name] = summarise(name, section, time.time() - started)
            if left:
                sections[name].update(all_agree=False, not_run=len(left))
                print(f"{name}: {len(left)} items not run: the GPU's context is lost", flush=True)
            print(
                f"{name}: {sections[name]['count']} items, {sections[name]['agree']} agree, "
                f"{sections[name]['seconds']} s {section.get('trace', '')}",
                flush=True,
            )
    return make_record(run, sections)


def main(argv=None, more=None, kernels=None) -> int:
    """Compare, write, report; 0 where everything agrees, else 1.

    more: sections of the caller's own, name -> function as those of SECTIONS; kernels: file name ->
    SHA-256 of the kernels that they run, for the record.
    """
    sections = {**SECTIONS, **(more or {})}
    arguments = parse(argv, sections)
    earlier = json.loads(arguments.earlier.read_bytes()) if arguments.earlier else None
    if earlier:  # before minutes of comparing
        run_of(earlier, "none" if arguments.self_test else gpu_identity()["gpu"])
    record = compare_machines(arguments, sections, kernels)
    if earlier:
        record = with_earlier_sections(record, earlier)
    if arguments.out:
        print(f"written: {write(record, arguments.out)}")
    print(report(record))
    return 0 if record["all_agree"] else 1


if __name__ == "__main__":
    sys.exit(main())
