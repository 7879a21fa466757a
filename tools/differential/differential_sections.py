"""The five sections of the comparison: what is run on both machines, and an item's verdict.

A section takes the run (`first`, the machine that the simulator is checked against; `submit`, which
runs the simulator elsewhere; `thin`) and returns {"items": one record each}. What `submit` takes is
at the top of this module, where other processes find it.
"""

import traceback

import differential_compare
import differential_functions
import differential_ladder
import differential_opcodes
import numpy as np
from differential_machines import Machine, target
from differential_programs import PROGRAMS
from random_kernels import random_kernel

BATCH = 150  # opcodes a module
FUNCTIONS = 30  # functions a module
SIMULATOR = Machine("simulator")


def raise_failure(*results) -> None:
    """Raise the first of the results that is an exception."""
    for result in results:
        if isinstance(result, Exception):
            raise result


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


def opcode_section(run) -> dict:
    """Every opcode of the table, BATCH of them a module."""
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
    """The verdict over one opcode."""

    def compared():
        raise_failure(first, second)
        operands = differential_opcodes.inputs(code)
        return differential_compare.compare(code, operands, first, second)

    return guarded({"opcode": code.label}, compared)


# --- random kernels and programs ------------------------------------------------------------------


def run_random(machine, seed) -> list[np.ndarray]:
    """Results of one random kernel on a machine."""
    kernel = random_kernel(seed)
    module = machine.load(kernel.source, kernel.options)
    return machine.run(
        module, kernel.name, kernel.grid, kernel.block, kernel.arguments(), kernel.shared_bytes
    )


def oracle(seed) -> list[np.ndarray]:
    """Return a random kernel's expected arrays, from the oracle."""
    return random_kernel(seed).expected()


def differing(first, second) -> int:
    """Elements whose bits differ, over all arrays."""
    return sum(
        int((a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")).sum())
        for a, b in zip(first, second, strict=True)
    )


def random_section(run) -> dict:
    """Random kernels on both machines, and an oracle's results."""
    seeds = run.thin(range(run.arguments.kernels))
    futures = {s: (run.submit(run_random, SIMULATOR, s), run.submit(oracle, s)) for s in seeds}

    def compared(seed):
        gpu = run_random(run.first, seed)
        simulator, expected = (future.result() for future in futures[seed])
        kernel = random_kernel(seed)
        apart = {
            "gpu_simulator": differing(gpu, simulator),
            "gpu_oracle": differing(gpu, expected),
            "simulator_oracle": differing(simulator, expected),
        }
        return {
            "grid": kernel.grid,
            "block": kernel.block,
            "lines": kernel.source.count("\n"),
            "mismatches": sum(apart.values()),
            **apart,
        }

    return {"items": [guarded({"seed": s}, lambda s=s: compared(s)) for s in seeds]}


def run_program(machine, number) -> list[np.ndarray]:
    """Results of one program on a machine."""
    program = PROGRAMS[number]
    module = machine.load(program.source, program.options)
    grid, block = (program.blocks,), (program.threads,)
    return machine.run(module, "run", grid, block, program.arguments())


def program_section(run) -> dict:
    """The programs of differential_programs."""
    numbers = run.thin(range(len(PROGRAMS)))
    futures = {n: run.submit(run_program, SIMULATOR, n) for n in numbers}

    def compared(number):
        gpu, simulator = run_program(run.first, number), futures[number].result()
        slots = np.flatnonzero((gpu[1] != simulator[1]).reshape(-1, 8).any(axis=0))
        return {
            "elements": int(gpu[1].size),
            "mismatches": differing(gpu, simulator),
            "slots": slots.tolist(),
        }

    return {
        "items": [guarded({"program": PROGRAMS[n].name}, lambda n=n: compared(n)) for n in numbers]
    }


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


def function_section(run) -> dict:
    """Mathematical functions, FUNCTIONS of them a module."""
    chosen = run.thin(differential_functions.functions())
    parts = [chosen[i : i + FUNCTIONS] for i in range(0, len(chosen), FUNCTIONS)]
    futures = [run.submit(run_functions, SIMULATOR, part) for part in parts]
    records = []
    for part, future in zip(parts, futures, strict=True):
        results = run_functions(run.first, part), future.result()
        records += [function_record(*item) for item in zip(part, *results, strict=True)]
    return {"items": records}


def function_record(function, first, second) -> dict:
    """The verdict over one function."""

    def compared():
        raise_failure(first, second)
        return differential_functions.compare(function, first, second)

    return guarded({"function": function.name}, compared)


def ladder_section(run) -> dict:
    """The ladder's kernels at full and ragged shapes."""
    cases = run.thin(differential_ladder.cases(small=run.self_test))
    futures = [run.submit(differential_ladder.run_case, SIMULATOR, case) for case in cases]

    def compared(case, future):
        first = differential_ladder.run_case(run.first, case)
        return differential_ladder.compare(case, first, future.result())

    return {
        "items": [
            guarded(case.facts(), lambda c=case, f=future: compared(c, f))
            for case, future in zip(cases, futures, strict=True)
        ]
    }


SECTIONS = {
    "opcodes": opcode_section,
    "random_kernels": random_section,
    "programs": program_section,
    "functions": function_section,
    "ladder": ladder_section,
}
