"""The claims on trial, each with its experiment and the rule that turns numbers into a verdict."""

from functools import partial

from attn_course.lessons.claims import FAILS, HOLDS, HOLDS_WHEN, SOURCES

from . import counted, recorded
from .claim import Claim

Values = dict[str, float]


def _above(what: str, least: float):
    """A rule: holds where a value reaches `least`."""
    return lambda found: HOLDS if found[what] >= least else FAILS


def _near(what: str, printed: float, share: float):
    """A rule: holds where a value is within a share of what was printed."""
    return lambda found: HOLDS if abs(found[what] / printed - 1) <= share else FAILS


def _when(holds_here: str, fails_there: str):
    """A rule on two yes-or-no values: true in one case, false in the other."""
    return lambda found: HOLDS_WHEN if found[holds_here] and not found[fails_there] else FAILS


def _gains_match(found: Values) -> str:
    """A rule for gains beside printed ones: within a quarter of each other at every size."""
    pairs = [(found[name], found[f"{name}, printed"]) for name in found if "printed" not in name]
    close = [abs(ours / theirs - 1) <= 0.25 for ours, theirs in pairs]
    return HOLDS if all(close) else HOLDS_WHEN if any(close) else FAILS


def _batches(found: Values) -> str:
    """Launch overhead would make the ratio grow with the batch, in their row as in ours."""
    printed = [found[f"batch {n}, printed"] for n in (1, 4, 8)]
    return HOLDS if printed == sorted(printed) else FAILS


def _reductions(found: Values) -> str:
    """32 times or more, for a sum and for a maximum, for one block and for many."""
    reached = [gain >= 32 for gain in found.values()]
    return HOLDS if all(reached) else HOLDS_WHEN if any(reached) else FAILS


def _layer_norm(found: Values) -> str:
    gains = [gain for name, gain in found.items() if "printed" not in name]
    return HOLDS if min(gains) >= 2 else HOLDS_WHEN if max(gains) >= 2 else FAILS


def _handles(found: Values) -> str:
    """The handle is the cause if the MLP loses to PyTorch with it, and not without it."""
    tokens = [name.removesuffix(", PyTorch") for name in found if name.endswith(", PyTorch")]
    loses = [found[f"{n}, handle made"] / found[f"{n}, PyTorch"] > 1.1 for n in tokens]
    keeps_up = [found[f"{n}, handle kept"] / found[f"{n}, PyTorch"] <= 1.1 for n in tokens]
    both = [one and other for one, other in zip(loses, keeps_up, strict=True)]
    return HOLDS if all(both) else HOLDS_WHEN if any(both) else FAILS


guide, essay, readme, report, log = (partial(Claim, source) for source in SOURCES)
CLAIMS = (
    guide(
        "shared_100_times",
        "Shared memory is about 100 times faster than global memory.",
        "03_memory_traffic",
        recorded.shared_over_global,
        _above("latency ratio", 50),
        "Latency and bandwidth are two ratios, and neither comes near 100. A program that keeps "
        "many loads under way sees the smaller one, of bandwidth.",
    ),
    guide(
        "five_clocks",
        "A load from shared memory takes about 5 clocks.",
        "03_memory_traffic",
        recorded.shared_latency,
        _near("latency, shared", 5, 0.5),
        "A chain of dependent loads pays the whole latency at each link. Only throughput, many "
        "loads at once, is better than one result in 23 clocks.",
    ),
    guide(
        "strided_is_efficient",
        "Strided access is reasonably efficient on modern GPUs.",
        "03_memory_traffic",
        counted.strided_loads,
        lambda found: HOLDS if found["strided"] <= 2 * found["along the row"] else FAILS,
        "Each lane of the strided load touches a sector of its own and uses 4 of its 32 bytes. L1 "
        "hides a part of it in time, as lesson 03 measures; the requests to L1 remain.",
    ),
    guide(
        "no_bank_conflicts",
        "The tiled kernel avoids bank conflicts by its nature.",
        "03_memory_traffic",
        counted.conflicts,
        lambda found: (
            (HOLDS_WHEN if found["the essay's layout"] else HOLDS)
            if not found["the guide's layout"]
            else FAILS
        ),
        "It depends on one index. The guide stores [ty][tx] and has none; the essay stores the "
        "same tile as [tx][ty], and a column of it lies in a single bank.",
    ),
    guide(
        "try_tile_64",
        "Try other tile sizes: 16, 32, 64.",
        "03_memory_traffic",
        counted.tile_64,
        lambda found: FAILS if found["refused"] else HOLDS,
        "One thread a score makes 4,096 threads a block; a block has at most 1,024. A tile of 64 "
        "needs several scores a thread, as kernel 03 has them.",
    ),
    guide(
        "operations_58_million",
        "The scores of (2, 12, 196, 64) take about 58 million operations.",
        "07_where_the_time_goes",
        counted.operations,
        lambda found: HOLDS_WHEN if found["multiply-adds"] / 58e6 < 1.05 else FAILS,
        "It holds when a multiply-add is one operation. Data sheets count it as two, and so must "
        "a number that is compared with their TFLOP/s.",
    ),
    guide(
        "attention_bound_by_memory",
        "Attention is bound by memory: it does few operations a byte.",
        "07_where_the_time_goes",
        counted.bound_by_memory,
        lambda found: (
            HOLDS
            if found["in one kernel"] < found["where the roofs meet"]
            else HOLDS_WHEN
            if found["in three kernels"] < found["where the roofs meet"]
            else FAILS
        ),
        "It holds at 196 tokens when scores go through memory between three kernels, the first of "
        "which the guide has. In one kernel the operations grow with the square of the tokens and "
        "the bytes with the tokens: there the units of float32 are the lower roof from 56 "
        "tokens on. The roofs of tensor cores meet at 206 operations a byte: there 98 are too few.",
    ),
    guide(
        "restrict_reorders",
        "__restrict__ lets the compiler optimise aggressively: vectorise and reorder.",
        "14_claims_on_trial",
        counted.restrict,
        lambda found: (
            FAILS
            if found["instructions, plain pointers"] == found["instructions, __restrict__"]
            else HOLDS
        ),
        "In a tiled kernel no store stands between two loads, so there is nothing to reorder. The "
        "loads become loads through the read-only path; all else stays as it is.",
    ),
    guide(
        "unroll_removes_the_loop",
        "#pragma unroll removes the overhead of the loop over a tile.",
        "14_claims_on_trial",
        counted.unrolling,
        lambda found: HOLDS if not found["the same code with it"] else FAILS,
        "The length of the loop is a constant, and the compiler unrolls it unasked: the machine "
        "code is the same with the pragma. `#pragma unroll 1` shows what a loop would look like.",
    ),
    essay(
        "six_percent",
        "A score kernel that is three times faster made the whole only 6 % faster.",
        "07_where_the_time_goes",
        recorded.six_percent,
        _near("the whole faster", 1.06, 0.02),
        "Amdahl's law: the scores were 8.5 % of the time. The last number shows what the essay did "
        "not try, to remove the other part.",
    ),
    log(
        "quarter_operation_a_byte",
        "Attention does 0.25 operations a byte, so it is bound by memory.",
        "15_clusters",
        counted.intensity,
        _near("the whole", 0.25, 0.5),
        "0.25 is one dot product that reads both its vectors anew. Every row is used 64 times; "
        "what must cross the memory bus is each array once.",
    ),
    readme(
        "half_operation_a_byte",
        "Attention does 0.48 operations a byte, 20 times too few for arithmetic to be the limit.",
        "15_clusters",
        counted.intensity_of_queries,
        lambda found: (
            HOLDS
            if found["64 queries, 64 keys"] < 0.75
            else HOLDS_WHEN
            if abs(found["1 query, 64 keys"] / 0.48 - 1) < 0.25
            else FAILS
        ),
        "0.48 is right for one query, as in writing a text: then each key is used once. L queries "
        "use each key L times. 64 are above where an A100's roofs meet, 16 below, but by a factor "
        "of 2.4, not 20. Why the README's kernel was slow is another matter: `infinite_compute`.",
    ),
    readme(
        "infinite_compute",
        "At d = 8192 memory bandwidth is the limit; even infinite compute would not help.",
        "15_clusters",
        recorded.wider_gain_8192,
        lambda found: HOLDS if found["over the floor"] < 2 else FAILS,
        "The kernel runs 16 blocks on 132 multiprocessors. It is far above the floor of memory, "
        "and filling the idle multiprocessors made it faster.",
    ),
    readme(
        "online_softmax_gain",
        "Online softmax gave gains of 1.91, 2.02, 1.48 and 1.03.",
        "08_online_softmax",
        recorded.online_gains,
        lambda found: FAILS if found["blocks of keys, at most"] == 1 else HOLDS,
        "With at most 64 keys there is one block of keys, and nothing online about it. The edit "
        "also gave each score to a warp; at d = 8192 that change alone decides how many warps "
        "work.",
    ),
    log(
        "warp_reduction_gain",
        "Warp reductions in place of atomics gave 1.12, 1.05, 1.00 and 1.00: the other set of "
        "gains of the same project.",
        "08_online_softmax",
        partial(recorded.gains, "rows_atomic", "rows_warp", recorded.LOG_GAINS),
        _gains_match,
        "The two sets answer two questions: the log compares atomics with shuffles, the README the "
        "kernel before with the kernel after a rewrite. Our step from 07 to 08 also loads four "
        "floats at a time, which the log had in both versions; lesson 08 takes the edits apart.",
    ),
    readme(
        "atomics_32_times",
        "Warp reductions are 32 times faster than atomics for reductions.",
        "06_softmax_and_reductions",
        recorded.both_reductions,
        _reductions,
        "It holds when the reduction is a float sum. The GPU has no such operation on shared "
        "memory, so the compiler writes a loop of compare-and-swap, in which 256 threads take "
        "turns. An integer maximum has one; the compiler reduces a warp first, and beats shuffles.",
    ),
    log(
        "tensor_cores_slower",
        "Tensor cores are 3 to 4 times slower here.",
        "11_tensor_cores",
        recorded.tensor_gain,
        lambda found: FAILS if not found["tensor-core instructions"] else HOLDS,
        "The kernel that was timed issues no tensor-core instruction at all: it converts to half "
        "precision and multiplies lane by lane. Kernel 14 issues them.",
    ),
    readme(
        "shared_48_kb",
        "Shared memory is 48 KB, and that is not negotiable.",
        "10_asynchronous_copies",
        counted.shared_limit,
        lambda found: HOLDS if found["sm_80"] <= 48 else FAILS,
        "48 KB is what a launch gets unasked. `max_dynamic_shared_size_bytes` asks for more.",
    ),
    readme(
        "double_buffer_overflows",
        "cp.async with double buffering fails: shared memory overflows.",
        "10_asynchronous_copies",
        recorded.double_buffers,
        lambda found: HOLDS_WHEN if found["whole rows refused"] and found["slices run"] else FAILS,
        "It overflows when whole rows of 2048 floats stand in shared memory twice. Slices of rows "
        "fit; they run, and are not faster than kernel 09.",
    ),
    log(
        "atomic_max_on_bits",
        "atomicMax on the bits of a float gives the maximum of the scores.",
        "06_softmax_and_reductions",
        counted.atomic_max,
        _when("2.0 above 1.0 as bits", "right with negative scores"),
        "Bits of positive floats are ordered as integers are. Negative ones are ordered the other "
        "way round.",
    ),
    report(
        "speedup_7_76",
        "The tiled kernels are 7.76 times faster than PyTorch at batch 8.",
        "05_timing_honestly",
        recorded.speedup_776,
        _near("tiled against the best of PyTorch", 7.76, 0.25),
        "PyTorch's printed 11.34 ms is about 900 times what it takes warm. Lesson 05 times "
        "first calls; they are too short to explain it. From the report alone nobody can know.",
    ),
    report(
        "launch_overhead_below_4",
        "PyTorch wins at batch 4 and below because of launch overhead.",
        "05_timing_honestly",
        recorded.small_batches,
        _batches,
        "An overhead of launches would weigh most at batch 1, where the report wins. As replays "
        "of a graph, where nobody waits for a launch, the ratio hardly depends on the batch.",
    ),
    report(
        "bound_by_memory_at_0_4_percent",
        "At 0.4 % of the peak bandwidth the kernels are bound by memory bandwidth.",
        "07_where_the_time_goes",
        recorded.bandwidth_share,
        lambda found: HOLDS if found["tiled, share of the bandwidth"] > 60 else FAILS,
        "What uses a resource to 0.4 % does not wait for its bandwidth. Latency and launches set "
        "the time at this size; the same work in one kernel is several times faster.",
    ),
    report(
        "profile_percentages",
        "The profile shows a memory bottleneck: DRAM at 0.4 %, L2 hits 45 %, SM 65 %.",
        "13_reading_the_profiler",
        recorded.profile_numbers,
        lambda found: HOLDS if found["DRAM"] > 60 else FAILS,
        "The profile of such a kernel shows DRAM idle and the pipes of L1 and shared memory busy. "
        "That is a bottleneck of memory *instructions* on chip, and tiles in registers cure it.",
    ),
    report(
        "operations_a_head",
        "512 tokens and hidden size 768 take 402 million operations for Q K^T, a head.",
        "14_claims_on_trial",
        counted.operations_a_head,
        _near("Q K^T, one head of 64", 402e6, 0.05),
        "768 is the hidden size of all twelve heads. One head of 64 takes a twelfth.",
    ),
    report(
        "linear_traffic",
        "Flash attention reduces reads and writes from O(N^2) to O(N).",
        "14_claims_on_trial",
        counted.traffic,
        lambda found: (
            HOLDS
            if found["sectors read, 2 L over L"] < 2.5
            else HOLDS_WHEN
            if found["different bytes read, 2 L over L"] < 2.5
            else FAILS
        ),
        "The memory that attention *needs* grows as N: no score is stored. The traffic still "
        "grows as N^2, divided by the rows of a tile: every tile of queries reads all keys. The "
        "paper says O(N^2 d^2 / M) for a fast memory of M numbers.",
    ),
    report(
        "tile_16_occupancy",
        "A tile of 16 was chosen because it maximises occupancy on an A100.",
        "14_claims_on_trial",
        counted.tile_occupancy,
        lambda found: (
            FAILS
            if found["TILE 16"] < max(found.values())
            else HOLDS
            if sum(value == max(found.values()) for value in found.values()) == 1
            else HOLDS_WHEN
        ),
        "It reaches the maximum, and so does 32, which reads each element half as often. "
        "Occupancy alone does not choose between them.",
    ),
    report(
        "gelu_error",
        "An MLP error of 2.32e-2 is well within tolerance: GELU is approximated by tanh.",
        "14_claims_on_trial",
        counted.gelu_error,
        lambda found: (
            HOLDS_WHEN
            if abs(found["weights of variance 1: error"] / 2.32e-2 - 1) < 0.25
            and found["weights as torch.nn.Linear draws them: error"] < 1e-3
            else FAILS
        ),
        "tanh explains the number when the weights have variance 1, where outputs are in the "
        "thousands and the relative error is tiny. With weights of a usual size the same "
        "approximation changes the output by 2e-4, and 2e-2 would be a defect.",
    ),
    report(
        "first_warp_found",
        "Tests find a LayerNorm that uses the sum of its first warp only.",
        "12_layernorm_mlp_block",
        counted.first_warp,
        lambda found: (
            HOLDS
            if not found["right against float64"] and not found["findings of the sanitizer"]
            else FAILS
        ),
        "A comparison with float64 finds it at once. The sanitizer cannot: every access is in "
        "order, only the number is wrong.",
    ),
    report(
        "mlp_handle",
        "The MLP is slower than PyTorch because it makes a cuBLAS handle in each call.",
        "14_claims_on_trial",
        recorded.handle_cost,
        _handles,
        "The same two products, without the GELU, keep up with PyTorch's MLP when the handle is "
        "kept, and lose when it is made anew. A handle costs some hundred microseconds here; the "
        "report lost two milliseconds, so on its machine it cost more, or was not alone.",
    ),
    report(
        "layer_norm_2_to_7",
        "LayerNorm is 2 to 7 times faster than PyTorch's.",
        "12_layernorm_mlp_block",
        recorded.layer_norm,
        _layer_norm,
        "Graph against graph, so that neither pays for a launch from Python. PyTorch's kernel has "
        "become faster since, or a part of the report's 0.09 ms was not the kernel. At one of the "
        "three shapes the factor 2 is just reached.",
    ),
)
