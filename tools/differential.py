"""Holds the simulator against a GPU, bit for bit, and records what came out.

    python3 tools/differential.py --out results             on a machine with a GPU and CuPy
    python3 tools/differential.py --self-test               without one: simulator against simulator

Five sections: every opcode of the operation table; random kernels, against an independent oracle
too; warp operations, atomics, memory and conversions; the mathematical functions; the ladder's
kernels. A record of kind "differential" goes to OUT/<gpu>/differential.json; the exit status is 1
where the two disagree.
"""

import argparse
import concurrent.futures
import hashlib
import json
import multiprocessing
import os
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests"), str(ROOT)]

import differential_compare  # noqa: E402
import differential_functions  # noqa: E402
import differential_ladder  # noqa: E402
import differential_opcodes  # noqa: E402
import numpy as np  # noqa: E402
from differential_machines import Machine, describe, target  # noqa: E402
from differential_programs import PROGRAMS  # noqa: E402
from random_kernels import random_kernel  # noqa: E402

BATCH = 150  # opcodes a module
SIMULATOR = Machine("simulator")


class Run:
    """One comparison: `first` the GPU (or its stand-in), workers that run the simulator."""

    def __init__(self, arguments):
        self.arguments = arguments
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


def guarded(record: dict, action) -> dict:
    """The record with action()'s entries; an exception becomes its `error`, never an abort."""
    try:
        record.update(action())
    except Exception as error:
        record["error"] = f"{type(error).__name__}: {error}"[:500]
        record["trace"] = traceback.format_exc()[-700:]
    return record


# --- opcodes --------------------------------------------------------------------------------------


def run_opcodes(machine, codes, arch) -> list[list[np.ndarray]] | Exception:
    """Each opcode's results on one machine, or what kept the module from loading."""
    try:
        module = machine.load_ptx(differential_opcodes.module_text(codes, arch))
    except Exception as error:
        return error
    return [_run_opcode(machine, module, i, code) for i, code in enumerate(codes)]


def _run_opcode(machine, module, number, code):
    try:
        operands = differential_opcodes.inputs(code)
        count = operands[0].size
        results = [np.zeros(count, f"u{differential_opcodes.width(k)}") for k in code.results]
        arguments = (*operands, *results, np.uint32(count))
        out = machine.run(module, f"op_{number}", (-(-count // 128),), (128,), arguments)
        return out[len(operands) :]
    except Exception as error:
        return error


def opcode_section(run: Run) -> dict:
    arch = target()
    every = run.thin(differential_opcodes.opcodes())
    codes, refused = differential_opcodes.split_by_assembler(every, arch)
    batches = [codes[i : i + BATCH] for i in range(0, len(codes), BATCH)]
    simulated = [run.submit(run_opcodes, SIMULATOR, batch, arch) for batch in batches]
    records = []
    for batch, future in zip(batches, simulated, strict=True):
        results = halve_on_error(run.first, batch, arch, refused)
        mine = future.result()
        if isinstance(mine, Exception):
            mine = [mine] * len(batch)
        for code, a, b in zip(batch, results, mine, strict=True):
            if a is not None:
                records.append(opcode_record(code, a, b))
    return {"items": records, "refused": len(refused), "candidates": len(every)}


def halve_on_error(machine, codes, arch, refused) -> list:
    """Results per opcode; where a module does not load, its halves, down to the guilty opcode."""
    results = run_opcodes(machine, codes, arch)
    if not isinstance(results, Exception):
        return results
    if len(codes) == 1:
        refused[codes[0].label] = str(results)[:200]
        return [None]
    middle = len(codes) // 2
    parts = (codes[:middle], codes[middle:])
    return [result for part in parts for result in halve_on_error(machine, part, arch, refused)]


def opcode_record(code, first, second) -> dict:
    def compared():
        for result in (first, second):
            if isinstance(result, Exception):
                raise result
        operands = differential_opcodes.inputs(code)
        return differential_compare.compare(code, operands, first, second)

    return guarded({"opcode": code.label}, compared)


# --- random kernels and programs ------------------------------------------------------------------


def run_random(machine, seed) -> list[np.ndarray]:
    kernel = random_kernel(seed)
    module = machine.load(kernel.source, kernel.options)
    return machine.run(module, kernel.name, kernel.grid, kernel.block, kernel.arguments(),
                       kernel.shared_bytes)  # fmt: skip


def oracle(seed) -> list[np.ndarray]:
    return random_kernel(seed).expected()


def differing(first, second) -> int:
    """Elements whose bits differ, over all arrays."""
    return sum(
        int((a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")).sum())
        for a, b in zip(first, second, strict=True)
    )


def random_section(run: Run) -> dict:
    seeds = run.thin(range(run.arguments.kernels))
    futures = {s: (run.submit(run_random, SIMULATOR, s), run.submit(oracle, s)) for s in seeds}

    def compared(seed):
        gpu = run_random(run.first, seed)
        simulator, expected = (future.result() for future in futures[seed])
        kernel = random_kernel(seed)
        apart = {
            "gpu_simulator": differing(gpu, simulator), "gpu_oracle": differing(gpu, expected),
            "simulator_oracle": differing(simulator, expected),
        }  # fmt: skip
        return {"grid": kernel.grid, "block": kernel.block, "lines": kernel.source.count("\n"),
                "mismatches": sum(apart.values()), **apart}  # fmt: skip

    return {"items": [guarded({"seed": s}, lambda s=s: compared(s)) for s in seeds]}


def run_program(machine, number) -> list[np.ndarray]:
    program = PROGRAMS[number]
    module = machine.load(program.source, program.options)
    grid, block = (program.blocks,), (program.threads,)
    return machine.run(module, "run", grid, block, program.arguments())


def program_section(run: Run) -> dict:
    numbers = run.thin(range(len(PROGRAMS)))
    futures = {n: run.submit(run_program, SIMULATOR, n) for n in numbers}

    def compared(number):
        gpu, simulator = run_program(run.first, number), futures[number].result()
        slots = np.flatnonzero((gpu[1] != simulator[1]).reshape(-1, 8).any(axis=0))
        return {"elements": int(gpu[1].size), "mismatches": differing(gpu, simulator),
                "slots": slots.tolist()}  # fmt: skip

    return {"items": [guarded({"program": PROGRAMS[n].name}, lambda n=n: compared(n))
                      for n in numbers]}  # fmt: skip


# --- functions and the ladder ---------------------------------------------------------------------


def run_functions(machine, chosen) -> list:
    """Each function's results, or the exception; one module for all, one each if that fails."""
    out = []
    try:
        whole = machine.load("\n".join(f.source for f in chosen))
        whole.get_function(chosen[0].entry)
    except Exception:
        whole = None
    for function in chosen:
        try:
            module = whole or machine.load(function.source)
            blocks = differential_functions.COUNT // 128
            arguments = function.arguments()
            out.append(machine.run(module, function.entry, (blocks,), (128,), arguments)[2])
        except Exception as error:
            out.append(error)
    return out


def function_section(run: Run) -> dict:
    chosen = run.thin(differential_functions.functions())
    parts = [chosen[i : i + 30] for i in range(0, len(chosen), 30)]
    futures = [run.submit(run_functions, SIMULATOR, part) for part in parts]
    records = []
    for part, future in zip(parts, futures, strict=True):
        results = run_functions(run.first, part), future.result()
        for function, a, b in zip(part, *results, strict=True):
            def compared(function=function, a=a, b=b):
                for result in (a, b):
                    if isinstance(result, Exception):
                        raise result
                return differential_functions.compare(function, a, b)

            records.append(guarded({"function": function.name}, compared))
    return {"items": records}


def ladder_section(run: Run) -> dict:
    cases = run.thin(differential_ladder.cases(small=run.self_test))
    futures = [run.submit(differential_ladder.run_case, SIMULATOR, case) for case in cases]
    records = []
    for case, future in zip(cases, futures, strict=True):
        def compared(case=case, future=future):
            gpu = differential_ladder.run_case(run.first, case)
            return differential_ladder.compare(case, gpu, future.result())

        records.append(guarded(case.facts(), compared))
    return {"items": records}


SECTIONS = {"opcodes": opcode_section, "random_kernels": random_section,
            "programs": program_section, "functions": function_section,
            "ladder": ladder_section}  # fmt: skip


# --- the record -----------------------------------------------------------------------------------


def summarise(name: str, section: dict, seconds: float) -> dict:
    """The section with its totals: items, agreeing, disagreeing, errors, all_agree."""
    items = section["items"]
    errors = sum("error" in item for item in items)
    disagree = sum(bool(item.get("mismatches")) for item in items)
    agree = len(items) - errors - disagree
    totals = {"count": len(items), "agree": agree, "disagree": disagree, "errors": errors,
              "seconds": round(seconds, 1), "all_agree": bool(items) and agree == len(items)}
    return {**totals, **section}


def source_hashes() -> dict[str, str]:
    """SHA-256 of the comparison's own sources and of the simulator's: what the record speaks of."""
    paths = [*ROOT.glob("tools/differential*.py"), *ROOT.glob("tests/random_*.py"),
             *ROOT.glob("attn_course/simulator/*.py")]  # fmt: skip
    return {str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(paths)}  # fmt: skip


def differences(sections: dict) -> list[dict]:
    """Every item that disagrees or failed, with its section."""
    return [
        {"section": name, **item} for name, section in sections.items() for item in section["items"]
        if item.get("mismatches") or "error" in item
    ]  # fmt: skip


def trimmed(item: dict) -> dict:
    """An item without what only a failure needs, and without counts that are zero."""
    return {
        key: value for key, value in item.items()
        if key not in ("examples", "trace") and (value != 0 or key in ("seed", "max_ulp"))
    }  # fmt: skip


def make_record(run: Run, sections: dict) -> dict:
    found = differences(sections)
    kept = {
        name: {**section, "items": [trimmed(item) for item in section["items"]]}
        for name, section in sections.items()
    }
    return {
        "kind": "differential", **describe(run.first.backend),
        "machines": ["simulator (debug build, random warp order)" if run.self_test else "GPU",
                     "simulator"],
        "kernels": differential_ladder.hashes(), "sources": source_hashes(),
        "all_agree": all(section["all_agree"] for section in sections.values()),
        "seconds": round(time.time() - run.started, 1), "differences": found, "sections": kept,
    }  # fmt: skip


def label_of(item: dict) -> str:
    """What an item is called."""
    names = ("opcode", "seed", "program", "function", "file")
    return next(str(item[key]) for key in names if key in item)


def line_of(item: dict) -> str:
    """A difference in one line or two."""
    name = label_of(item)
    facts = {key: item[key] for key in ("mismatches", "lanes", "nan_payload", "error_over_bound",
             "max_ulp", "gpu_simulator", "gpu_oracle", "simulator_oracle", "slots", "options",
             "shape", "error") if item.get(key) not in (None, 0)}  # fmt: skip
    example = f" e.g. {item['examples'][0]}" if item.get("examples") else ""
    return f"  {item['section']}: {name} {facts}{example}"[:420]


def report(record: dict) -> str:
    """The compact table: differences first, totals last."""
    found = record["differences"]
    lines = [f"{len(found)} differences" + (":" if found else "")]
    lines += [line_of(item) for item in found[:20]]
    lines += [f"  ... and {len(found) - 20} more"] if len(found) > 20 else []
    worst = sorted((i for i in record["sections"].get("functions", {}).get("items", [])
                    if i.get("max_ulp")), key=lambda i: -i["max_ulp"])[:12]  # fmt: skip
    lines.append("functions, largest ulp: " + ", ".join(
        f"{i['function']} {i['max_ulp']:g}" for i in worst))
    items = [i for name in ("opcodes", "functions")
             for i in record["sections"].get(name, {}).get("items", [])]  # fmt: skip
    lines.append("approximations, error over bound (first, simulator): " + ", ".join(
        f"{label_of(i)} {i['error_over_bound']}" for i in items if "error_over_bound" in i))
    lines.append("lanes without a documented bound: " + ", ".join(
        f"{label_of(i)} {i['no_bound']['lanes']}" for i in items if "no_bound" in i))
    lines.append(f"{'section':16}{'items':>7}{'agree':>7}{'differ':>8}{'errors':>8}{'seconds':>9}")
    for name, s in record["sections"].items():
        lines.append(f"{name:16}{s['count']:7}{s['agree']:7}{s['disagree']:8}{s['errors']:8}"
                     f"{s['seconds']:9.1f}")  # fmt: skip
    lines.append(f"{record['gpu']} · CUDA {record['cuda']} · {record['date']} · "
                 f"all_agree: {record['all_agree']} · {record['seconds']} s")  # fmt: skip
    return "\n".join(lines)


def write(record: dict, out: Path) -> Path:
    """OUT/<gpu>/differential.json."""
    from attn_course.results import gpu_folder

    path = gpu_folder(record["gpu"], out) / "differential.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_text(record), encoding="utf-8")
    return path


def as_text(record: dict) -> str:
    """JSON with one item a line."""
    marked, lines = dict(record, sections={}), {}
    for name, section in record["sections"].items():
        marked["sections"][name] = {**section, "items": f"@{name}@"}
        items = [json.dumps(item, separators=(",", ":")) for item in section["items"]]
        lines[f'"@{name}@"'] = "[\n" + ",\n".join(items) + "\n]"
    text = json.dumps(marked, indent=1)
    for mark, items in lines.items():
        text = text.replace(mark, items)
    return text + "\n"


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for the record, such as results")
    parser.add_argument("--self-test", action="store_true",
                        help="simulator against simulator (debug build, random warp order)")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--kernels", type=int, default=96, help="random kernels (default 96)")
    parser.add_argument("--every", type=int, default=1, help="take every n-th item only")
    parser.add_argument("--workers", type=int,
                        help="processes for the simulator (default: two fewer than there are "
                             "cores); 0: none but this one")
    return parser.parse_args(arguments)


class InThisProcess:
    """An executor without processes: submit() does the work."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    @staticmethod
    def submit(function, *values) -> concurrent.futures.Future:
        future = concurrent.futures.Future()
        try:
            future.set_result(function(*values))
        except Exception as error:
            future.set_exception(error)
        return future


def pool(workers: int | None):
    """What runs the simulator beside the GPU."""
    if workers == 0:
        return InThisProcess()
    workers = workers or max(1, len(os.sched_getaffinity(0)) - 2)
    context = multiprocessing.get_context("spawn")  # a forked child could not use the GPU's driver
    return concurrent.futures.ProcessPoolExecutor(workers, mp_context=context)


def compare_machines(arguments) -> dict:
    """Run the chosen sections and return the record."""
    run = Run(arguments)
    sections = {}
    with pool(arguments.workers) as run.pool:
        for name in arguments.sections:
            started = time.time()
            section = guarded({"items": []}, lambda name=name: SECTIONS[name](run))
            sections[name] = summarise(name, section, time.time() - started)
            print(f"{name}: {sections[name]['count']} items, {sections[name]['agree']} agree, "
                  f"{sections[name]['seconds']} s {section.get('trace', '')}", flush=True)
    return make_record(run, sections)


def main(argv=None) -> int:
    arguments = parse(argv)
    record = compare_machines(arguments)
    if arguments.out:
        print(f"written: {write(record, arguments.out)}")
    print(report(record))
    return 0 if record["all_agree"] else 1


if __name__ == "__main__":
    sys.exit(main())
