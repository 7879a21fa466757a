"""The sections of the comparison: what is run on both machines, and an item's verdict.

A section takes the run (`first`, the machine that the simulator is checked against; `submit`, which
runs the simulator elsewhere; `thin`) and returns {"items": one record each}. What `submit` takes is
at the top of this module, where other processes find it.
"""

import traceback
from dataclasses import dataclass

import numpy as np
from kernelscope.compile import compile_cubin
from kernelscope.differential import compare as differential_compare
from kernelscope.differential import copies as differential_copies
from kernelscope.differential import functions as differential_functions
from kernelscope.differential import opcodes as differential_opcodes
from kernelscope.differential import textures as differential_textures
from kernelscope.differential.machines import Machine, NotRun, target
from kernelscope.differential.matrix import groups as differential_groups
from kernelscope.differential.matrix import matrices as differential_matrices
from kernelscope.differential.programs import PROGRAMS
from kernelscope.differential.random_code.kernels import OPTIONS as RANDOM_OPTIONS
from kernelscope.differential.random_code.kernels import random_kernel
from kernelscope.differential.random_code.printer import print_kernels

BATCH = 150  # opcodes a module
FUNCTIONS = 30  # functions a module
RANDOM_BATCH = 16  # random kernels a module
SIMULATOR = Machine("simulator")


def raise_failure(*results) -> None:
    """Raise the first of the results that is an exception."""
    for result in results:
        if isinstance(result, Exception):
            raise result


def guarded(record: dict, action) -> dict:
    """The record with action()'s entries; an exception becomes its `error`, never an abort.

    NotRun makes it an item that says nothing: `not_run`.
    """
    try:
        record.update(action())
    except NotRun:
        record["not_run"] = True
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
    if isinstance(results, NotRun):
        return [results] * len(codes)
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


@dataclass(frozen=True)
class Batch:
    """Random kernels as another process prepares them.

    cubin: their machine code; simulated: the simulator's arrays of each, or a RuntimeError;
    from_oracle: elements that these have apart from the oracle's.
    """

    cubin: bytes
    simulated: list
    from_oracle: list[int]


def prepare_random(seeds, arch: str | None) -> Batch:
    """Compile random kernels for a GPU (None: for none), run them, and ask the oracle."""
    kernels = [random_kernel(seed) for seed in seeds]
    source = print_kernels(kernels)
    cubin = compile_cubin(source, "kernel.cu", RANDOM_OPTIONS, arch).cubin if arch else b""
    module = SIMULATOR.load_kernels(source, RANDOM_OPTIONS)
    simulated, from_oracle = [], []
    for kernel in kernels:
        try:
            simulated.append(run_random(SIMULATOR, module, kernel))
            from_oracle.append(differing(simulated[-1], kernel.expected()))
        except Exception as error:
            simulated[len(from_oracle) :] = [RuntimeError(f"{type(error).__name__}: {error}")]
            from_oracle.append(0)
    return Batch(cubin, simulated, from_oracle)


def run_random(machine, module, kernel) -> list[np.ndarray]:
    """Results of one random kernel on a machine."""
    return machine.run(
        module, kernel.name, kernel.grid, kernel.block, kernel.arguments(), kernel.shared_bytes
    )


def differing(first, second) -> int:
    """Elements whose bits differ, over all arrays."""
    return sum(
        int((a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")).sum())
        for a, b in zip(first, second, strict=True)
    )


def random_section(run) -> dict:
    """Random kernels on both machines and by the oracle, RANDOM_BATCH of them a module."""
    seeds = run.thin(range(run.arguments.kernels))
    batches = [seeds[i : i + RANDOM_BATCH] for i in range(0, len(seeds), RANDOM_BATCH)]
    arch = None if run.self_test else target()
    futures = [run.submit(prepare_random, batch, arch) for batch in batches]
    items = []
    for batch in batches:  # a result is dropped once it is compared
        items += random_records(run.first, batch, futures.pop(0))
    return {"items": items}


def random_records(first, seeds, future) -> list[dict]:
    """The verdicts over one batch of random kernels."""
    kernels = [random_kernel(seed) for seed in seeds]
    try:
        batch, failure = future.result(), None
        if first.backend == "gpu":
            module = first.load_cubin(batch.cubin)
        else:
            module = first.load_kernels(print_kernels(kernels), RANDOM_OPTIONS)
    except Exception as error:
        batch, module, failure = None, None, error

    def compared(number, kernel):
        raise_failure(failure)
        gpu, simulator = run_random(first, module, kernel), batch.simulated[number]
        raise_failure(simulator)
        apart = {
            "gpu_simulator": differing(gpu, simulator),
            "gpu_oracle": batch.from_oracle[number],
            "simulator_oracle": batch.from_oracle[number],
        }
        if apart["gpu_simulator"]:
            apart["gpu_oracle"] = differing(gpu, kernel.expected())
        shape = {"grid": kernel.grid, "block": kernel.block} if any(apart.values()) else {}
        if shape:  # words of a thread's output that differ, and how many threads' do
            counts = (gpu[-1] != simulator[-1]).sum(axis=0)
            shape["slots"] = {str(slot): int(counts[slot]) for slot in np.flatnonzero(counts)}
        return {"mismatches": sum(apart.values()), **shape, **apart}

    return [
        guarded({"seed": kernel.seed}, lambda n=n, k=kernel: compared(n, k))
        for n, kernel in enumerate(kernels)
    ]


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


# --- functions and matrices ---------------------------------------------------------------------


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


def matrix_section(run) -> dict:
    """Matrix instructions, all in one module; --raw keeps what the first machine gave."""
    chosen, arch = run.thin(differential_matrices.cases()), target()
    future = run.submit(differential_matrices.run_cases, SIMULATOR, chosen, arch)
    first = differential_matrices.run_cases(run.first, chosen, arch)
    if run.arguments.raw:
        both = zip(chosen, first, strict=True)
        products = {c.opcode: x[-1] for c, x in both if c.multiplies and isinstance(x, list)}
        np.savez_compressed(run.arguments.raw, **products)

    def compared(case, one, other):
        raise_failure(one, other)
        return differential_matrices.compare(case, one, other)

    return {
        "items": [
            guarded({"matrix": case.opcode}, lambda c=case, a=a, b=b: compared(c, a, b))
            for case, a, b in zip(chosen, first, future.result(), strict=True)
        ]
    }


def group_section(run) -> dict:
    """Products of warp groups, all in one module; sm_90a alone has them. --raw as for matrices."""
    chosen = run.thin(differential_groups.cases())
    future = run.submit(differential_groups.run_cases, SIMULATOR, chosen)
    first = differential_groups.run_cases(run.first, chosen)
    if run.arguments.raw:
        both = zip(chosen, first, strict=True)
        sums = {c.name: x for c, x in both if isinstance(x, np.ndarray)}
        raw = run.arguments.raw
        np.savez_compressed(raw.with_stem(f"{raw.stem}_groups"), **sums)

    def compared(case, one, other):
        raise_failure(one, other)
        return differential_groups.compare(case, one, other)

    return {
        "items": [
            guarded({"group_product": case.name}, lambda c=case, a=a, b=b: compared(c, a, b))
            for case, a, b in zip(chosen, first, future.result(), strict=True)
        ]
    }


# --- textures -------------------------------------------------------------------------------------


def run_texture(machine, number) -> np.ndarray:
    """Results of one texture on a machine."""
    return differential_textures.run_case(machine, differential_textures.cases()[number])


def texture_section(run) -> dict:
    """Every texture of differential.textures."""
    known = differential_textures.cases()
    numbers = run.thin(range(len(known)))
    futures = {number: run.submit(run_texture, SIMULATOR, number) for number in numbers}

    def compared(number):
        first, second = run_texture(run.first, number), futures[number].result()
        return differential_textures.compare(known[number], first, second)

    return {
        "items": [guarded({"texture": known[n].name}, lambda n=n: compared(n)) for n in numbers]
    }


# --- bulk copies ----------------------------------------------------------------------------------


def run_copy(machine, number) -> list[np.ndarray]:
    """Results of one bulk copy on a machine."""
    return differential_copies.run_case(machine, differential_copies.cases()[number])


def copy_section(run) -> dict:
    """Every case of differential.copies."""
    known = differential_copies.cases()
    numbers = run.thin(range(len(known)))
    futures = {number: run.submit(run_copy, SIMULATOR, number) for number in numbers}

    def compared(number):
        first, second = run_copy(run.first, number), futures[number].result()
        return differential_copies.compare(known[number], first, second)

    return {"items": [guarded({"tma": known[n].name}, lambda n=n: compared(n)) for n in numbers]}


SECTIONS = {
    "opcodes": opcode_section,
    "matrices": matrix_section,
    "group_products": group_section,
    "random_kernels": random_section,
    "programs": program_section,
    "functions": function_section,
    "textures": texture_section,
    "tma": copy_section,
}
