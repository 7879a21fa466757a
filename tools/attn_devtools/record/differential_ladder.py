"""The ladder's kernels on both machines: equal bits for the scores, ulp for what uses exp."""

from dataclasses import dataclass

import numpy as np
from kernelscope.compile import with_headers
from kernelscope.differential import __main__ as differential
from kernelscope.differential.bounds import max_ulp, ulps
from kernelscope.differential.sections import SIMULATOR, guarded

from attn_course import reference
from attn_course.ladder.call import StepLaunch, numbers_of
from attn_course.ladder.headers import kernel_path
from attn_course.ladder.steps import Problem, step
from attn_course.measure.records import kernel_hash
from attn_course.reference.inputs import seeded_qkv

FULL, RAGGED = (2, 12, 196, 64), ((1, 2, 37, 63), (1, 3, 65, 20), (2, 1, 5, 1))
EXACT, TOLERANT = (1, 2, 3), (4, 5, 6)
RELATIVE = 2e-6  # of the norm, against float64


@dataclass(frozen=True)
class LadderCase:
    """One step at one shape (B, H, L, D) with compiler options."""

    number: int
    shape: tuple[int, int, int, int]
    options: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Must all bits agree?"""
        return self.number in EXACT

    def facts(self) -> dict:
        """Return the record's fields for the case."""
        return {
            "file": step(self.number).path.name,
            "shape": list(self.shape),
            "options": list(self.options),
        }


def cases(small: bool = False) -> list[LadderCase]:
    """Every layout and tile of 02, 03's tiles, all others with their defaults."""
    shapes = RAGGED if small else (FULL, *RAGGED)
    out = [LadderCase(1, shape) for shape in shapes]
    for k_tile in (0, 1, 2):
        for tile in (4, 16, 32):
            for pad in (0, 1):
                options = (f"-DK_TILE={k_tile}", f"-DTILE={tile}", f"-DPAD={pad}")
                out += [LadderCase(2, shape, options) for shape in shapes]
    out += [LadderCase(3, shape, (f"-DTILE={tile}",)) for shape in shapes for tile in (8, 16)]
    out += [LadderCase(number, shape) for number in TOLERANT for shape in shapes]
    return out


def buffers(case: LadderCase) -> dict[str, np.ndarray]:
    """Return the step's arrays: inputs from float64 references, outputs filled with NaN."""
    batch, heads, n, d = case.shape
    arrays = seeded_qkv(case.shape, seed=sum(case.shape))
    q, k, v = (array.reshape(batch * heads, -1, d) for array in arrays)
    scores = (q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2)).astype(np.float32)
    weights = reference.softmax(scores.astype(np.float64) / np.sqrt(d)).astype(np.float32)
    out = {"q": q, "k": k, "v": v, "s": scores, "p": weights, "out": np.empty_like(q)}
    for name in step(case.number).writes:
        if not (name == "s" and case.number == 4):
            out[name] = np.full_like(out[name], np.nan)
    return out


def expected(case: LadderCase) -> np.ndarray:
    """The step's last output in float64."""
    with np.errstate(invalid="ignore"):  # outputs start as NaN
        b = {name: x.astype(np.float64) for name, x in buffers(case).items()}
    if case.exact:
        return b["q"] @ b["k"].swapaxes(1, 2)
    weights = b["p"] if case.number == 6 else reference.softmax(b["s"] / np.sqrt(case.shape[3]))
    return weights if case.number == 5 else weights @ b["v"]


def run_case(machine, case: LadderCase) -> np.ndarray:
    """The step's last output on a machine, (BH, rows, columns) float32."""
    row, data = step(case.number), buffers(case)
    batch, heads, n, d = case.shape
    problem = Problem(batch * heads, n, n, d)
    launch = row.launch(problem, case.options)
    arguments = StepLaunch(row, launch, None, numbers_of(problem, d**-0.5)).arguments(data)
    module = machine.load(with_headers(row.path.read_text(), row.path.parent), case.options)
    out = machine.run(
        module, launch.entry, launch.grid, launch.block, arguments, launch.shared_bytes
    )
    arrays = [name for name in row.arguments if name in data]
    return out[arrays.index(row.writes[-1])]


def compare(case: LadderCase, first: np.ndarray, second: np.ndarray) -> dict:
    """mismatches: elements of other bits for 01 to 03; else 1 if either is too far from float64."""
    truth = expected(case)
    relative = [float(np.linalg.norm(x - truth) / np.linalg.norm(truth)) for x in (first, second)]
    bits = int((first.view(np.uint32) != second.view(np.uint32)).sum())
    far = not all(error <= RELATIVE for error in relative)
    worst = np.unravel_index(np.argmax(ulps(first, second, "f32")), first.shape)
    return {
        "elements": int(first.size),
        "differing_elements": bits,
        "max_ulp": max_ulp(first.astype(np.float64), second.astype(np.float64), "f32"),
        "relative_error": relative,
        "mismatches": (bits if case.exact else 0) + far,
        "examples": [
            {
                "index": [int(i) for i in worst],
                "first": float(first[worst]),
                "second": float(second[worst]),
            }
        ],
    }


def hashes() -> dict[str, str]:
    """File name -> SHA-256 of the kernels that the cases run."""
    names = {step(number).path.name for number in (*EXACT, *TOLERANT)}
    return {name: kernel_hash(name) for name in sorted(names) if kernel_path(name).is_file()}


def ladder_section(run) -> dict:
    """The ladder's kernels at full and ragged shapes."""
    chosen = run.thin(cases(small=run.self_test))
    futures = [run.submit(run_case, SIMULATOR, case) for case in chosen]

    def compared(case, future):
        first = run_case(run.first, case)
        return compare(case, first, future.result())

    return {
        "items": [
            guarded(case.facts(), lambda c=case, f=future: compared(c, f))
            for case, future in zip(chosen, futures, strict=True)
        ]
    }


def main(arguments=None) -> int:
    """Compare simulator and GPU with all sections, the ladder's among them; see the engine's."""
    return differential.main(arguments, {"ladder": ladder_section}, hashes())
