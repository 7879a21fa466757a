"""Trials that need no GPU: counts of the simulator, limits of a device, and arithmetic."""

import math

import numpy as np
from kernelscope import Counters, LaunchError, observe
from kernelscope.compile import compile_cubin
from kernelscope.module import DEFAULT_SHARED_BYTES, OPT_IN_SHARED_KIB

from attn_course import reference
from attn_course.clinic import BROKEN_FOLDER, examine, read_case
from attn_course.clinic.edits import edited
from attn_course.ladder.call import run_steps
from attn_course.ladder.headers import kernel_path
from attn_course.ladder.problem import Problem
from attn_course.ladder.steps import step
from attn_course.lessons.claims import COMPUTED, COUNTED, PRINTED, Evidence
from attn_course.lessons.show import line_numbers
from attn_course.measure.hardware.devices import MULTIPROCESSORS, peak_of
from attn_course.measure.hardware.disassembly import count_operations, disassembled
from attn_course.measure.hardware.occupancy import compiled_registers, occupancy
from attn_course.measure.roofline import attention_work, method_work

from .claim import evidence_of

SCORES = "02_scores_tiled"
SIZE = (1, 1, 64, 64)  # (B, H, L, D) of a count: what is counted a request needs no more


def count_scores(*defined: str) -> Counters:
    """Count kernel 02, built with macros such as "K_TILE=0", at SIZE."""
    q, k, _ = (array[0] for array in reference.seeded_qkv(SIZE))
    with observe(Counters()) as seen:
        options = [f"-D{one}" for one in defined]
        run_steps([step(2)], {"q": q, "k": k}, 1.0, backend="simulator", options=options)
    return seen


# -- the guide -------------------------------------------------------------------------------------
def strided_loads() -> list[Evidence]:
    (line,) = line_numbers(SCORES, "const float element =", "const float element =")
    strided, along = (
        count_scores(f"K_TILE={layout}").by_line[line].per_request("global_load_sectors")
        for layout in (0, 2)
    )
    return [
        evidence_of("strided", strided, "sectors a request", COUNTED),
        evidence_of("along the row", along, "sectors a request", COUNTED),
    ]


def conflicts() -> list[Evidence]:
    found = []
    for what, layout in (("the guide's layout", 0), ("the essay's layout", 1)):
        totals = count_scores(f"K_TILE={layout}", "PAD=0").totals
        number = totals["shared_load_conflicts"] + totals["shared_store_conflicts"]
        found.append(evidence_of(what, number, "conflicts", COUNTED))
    return found


def tile_64() -> list[Evidence]:
    refused = 0
    try:
        count_scores("TILE=64")
    except LaunchError:
        refused = 1
    return [
        evidence_of("threads a block", 64 * 64, "", COMPUTED),
        evidence_of("refused", refused, "launches of 1", COUNTED),
    ]


def operations() -> list[Evidence]:
    problem = Problem(24, 196, 196, 64)
    scores = problem.bh * problem.n * problem.m * problem.d  # multiply-adds of Q K^T
    return [
        evidence_of("multiply-adds", scores, "", COMPUTED),
        evidence_of("operations", 2 * scores, "", COMPUTED),
        evidence_of("printed", 58e6, "operations", PRINTED),
    ]


def bound_by_memory() -> list[Evidence]:
    """Intensities of attention, and those at which the roofs of an H200 meet."""
    problem, gpu = Problem(24, 196, 196, 64), peak_of("NVIDIA H200")
    halves = Problem(24, 196, 196, 64, dtype="bfloat16")
    values = {
        "in one kernel": attention_work(problem).intensity,
        "in three kernels": method_work("tiled", problem).intensity,
        "where the roofs meet": gpu.fp32_tflops * 1e3 / gpu.memory_gbps,
        "in one kernel, 16 bits": attention_work(halves).intensity,
        "where those of tensor cores meet": gpu.tensor_tflops * 1e3 / gpu.memory_gbps,
    }
    return [evidence_of(what, one, "operations a byte", COMPUTED) for what, one in values.items()]


def _machine_code(edits: tuple[tuple[str, str], ...] = ()) -> tuple[str, ...]:
    """Return kernel 02's machine instructions for sm_90, with pieces of its text replaced."""
    path = kernel_path(SCORES)
    text = edited(path.read_text(encoding="utf-8"), edits, path.name)
    cubin = compile_cubin(text, path.name, (), "sm_90", folder=str(path.parent)).cubin
    return disassembled(cubin)["scores_tiled"]


def restrict() -> list[Evidence]:
    alone = tuple((f"float* {name},", f"float* __restrict__ {name},") for name in "qks")
    before, after = _machine_code(), _machine_code(alone)
    kind = count_operations(after, "LDG.E.CONSTANT")["LDG.E.CONSTANT"]
    return [
        evidence_of("instructions, plain pointers", len(before), "", COMPUTED),
        evidence_of("instructions, __restrict__", len(after), "", COMPUTED),
        evidence_of("loads of another kind", kind, "", COMPUTED),
    ]


def unrolling() -> list[Evidence]:
    loop = "for (int i = 0; i < TILE; ++i) {"
    plain, asked, never = (
        _machine_code(((loop, f"{pragma}{loop}"),))
        for pragma in ("", "#pragma unroll\n", "#pragma unroll 1\n")
    )
    builds = {"no pragma": plain, "pragma": asked, "unroll 1": never}
    return [
        *(
            evidence_of(
                f"multiply-adds, {name}", count_operations(code, "FFMA")["FFMA"], "", COMPUTED
            )
            for name, code in builds.items()
        ),
        evidence_of("the same code with it", plain == asked, "", COMPUTED),
    ]


# -- the README and the log ------------------------------------------------------------------------
def intensity() -> list[Evidence]:
    problem = Problem(4, 64, 64, 2048)
    return [
        evidence_of("one dot product", 0.25, "operations a byte", PRINTED),
        evidence_of("the whole", attention_work(problem).intensity, "operations a byte", COMPUTED),
    ]


def intensity_of_queries() -> list[Evidence]:
    """Operations a byte of the README's shapes, and of one of their queries alone."""
    found = [evidence_of("printed", 0.48, "operations a byte", PRINTED)]
    for keys, d in ((64, 2048), (16, 8192)):
        for queries, what in ((1, "1 query"), (keys, f"{keys} queries")):
            value = attention_work(Problem(1, queries, keys, d)).intensity
            label = f"{what}, {keys} keys"
            found.append(evidence_of(label, value, "operations a byte", COMPUTED))
    gpu = peak_of("NVIDIA A100-SXM4-80GB")
    ridge = gpu.fp32_tflops * 1e3 / gpu.memory_gbps
    return [*found, evidence_of("where the roofs meet, A100", ridge, "operations a byte", COMPUTED)]


def shared_limit() -> list[Evidence]:
    return [
        evidence_of("without opting in", DEFAULT_SHARED_BYTES / 1024, "KB a block", COMPUTED),
        evidence_of("sm_80", OPT_IN_SHARED_KIB[80], "KB a block", COMPUTED),
        evidence_of("sm_90", OPT_IN_SHARED_KIB[90], "KB a block", COMPUTED),
    ]


def atomic_max() -> list[Evidence]:
    path = BROKEN_FOLDER / "atomic_max_negative.cu"
    found = examine(path).comparison
    positive, negative = np.float32([1.0, 2.0]), np.float32([-1.0, -2.0])
    ordered = [bool(np.diff(one.view(np.int32))[0] > 0) for one in (positive, negative)]
    return [
        evidence_of("2.0 above 1.0 as bits", ordered[0], "", COMPUTED),
        evidence_of("-2.0 above -1.0 as bits", ordered[1], "", COMPUTED),
        evidence_of("right with negative scores", found.agrees, "", COUNTED),
    ]


def tensor_instructions() -> list[Evidence]:
    from attn_course.ladder.steps import EXPERIMENTS

    (tried,) = (one for one in EXPERIMENTS if one.entry == "half2_tiles")
    d = 64
    q, k, v = (array[0] for array in reference.seeded_qkv((1, 1, 16, d)))
    with observe(Counters()) as seen:
        run_steps([tried], {"q": q, "k": k, "v": v}, d**-0.5, backend="simulator")
    return [
        evidence_of("tensor-core instructions", seen.totals["tensor_instructions"], "", COUNTED),
        evidence_of("instructions of half2_tiles", seen.totals["instructions"], "", COUNTED),
    ]


# -- the report ------------------------------------------------------------------------------------
def operations_a_head() -> list[Evidence]:
    tokens, hidden, head = 512, 768, 64
    return [
        evidence_of("Q K^T, all heads", 2 * tokens**2 * hidden, "operations", COMPUTED),
        evidence_of("Q K^T, one head of 64", 2 * tokens**2 * head, "operations", COMPUTED),
    ]


def traffic() -> list[Evidence]:
    """Read sectors and unique bytes of kernel 10 at L and at 2 L: traffic against storage."""
    sectors, unique = [], []
    for length in (128, 256):
        q, k, v = (array[0] for array in reference.seeded_qkv((1, 1, length, 64)))
        with observe(Counters()) as seen:
            run_steps([step(10)], {"q": q, "k": k, "v": v}, 0.125, backend="simulator")
        sectors.append(seen.totals["global_load_sectors"])
        unique.append(seen.totals["unique_global_bytes_read"])
    return [
        evidence_of("sectors read, 2 L over L", sectors[1] / sectors[0], "times", COUNTED),
        evidence_of("different bytes read, 2 L over L", unique[1] / unique[0], "times", COUNTED),
    ]


def tile_occupancy() -> list[Evidence]:
    """Share of an A100's warps that kernel 02 can keep, by TILE; it has two tiles of floats."""
    found = []
    for tile in (8, 16, 32):
        registers = compiled_registers(SCORES, "scores_tiled", (f"-DTILE={tile}",), "sm_80")
        shared = 4 * tile * (2 * tile + 1)  # bytes of two tiles of floats, one of them padded
        fits = occupancy(tile * tile, registers, shared, MULTIPROCESSORS["sm_80"])
        found.append(evidence_of(f"TILE {tile}", 100 * fits.share, "% of the warps", COMPUTED))
    return found


def gelu_error() -> list[Evidence]:
    """The largest change of the MLP's output when tanh replaces erf, in float64."""
    found = []
    for what in ("weights of variance 1", "weights as torch.nn.Linear draws them"):
        apart, size = _gelu_change(scaled="Linear" in what)
        found.append(evidence_of(f"{what}: error", apart, "", COMPUTED))
        found.append(evidence_of(f"{what}: of the largest output", apart / size, "", COMPUTED))
    return [*found, evidence_of("printed", 2.32e-2, "", PRINTED)]


def _gelu_change(scaled: bool) -> tuple[float, float]:
    """Return the largest difference of the two outputs, and the largest output."""
    rng, tokens, hidden, ff = np.random.default_rng(42), 512, 512, 2048

    def weights(rows: int, cols: int):
        if not scaled:
            return rng.standard_normal((rows, cols))
        return rng.uniform(-1, 1, (rows, cols)) / math.sqrt(rows)

    x = rng.standard_normal((tokens, hidden))
    inner, second = x @ weights(hidden, ff), weights(ff, hidden)
    by_tanh, by_erf = (reference.gelu(inner, approximation=name) for name in ("tanh", "erf"))
    return np.abs((by_tanh - by_erf) @ second).max(), np.abs(by_erf @ second).max()


def first_warp() -> list[Evidence]:
    evidence, path = [], BROKEN_FOLDER / "first_warp_layernorm.cu"
    for d in (32, 77):
        found = examine(path, read_case(f"BH=2, n=3, m=1, d={d}"))
        evidence.append(evidence_of(f"right, rows of {d}", found.comparison.agrees, "", COUNTED))
        evidence.append(
            evidence_of(f"sanitizer, rows of {d}", len(found.errors), "findings", COUNTED)
        )
    return evidence
