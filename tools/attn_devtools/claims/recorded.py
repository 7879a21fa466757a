"""Trials that read records of a GPU: times, bandwidths and profiles."""

from attn_course.ladder.problem import Problem
from attn_course.lessons import fused
from attn_course.lessons.claims import COMPUTED, PRINTED, Evidence
from attn_course.measure.candidates import BASELINES
from attn_course.measure.hardware.devices import peak_of
from attn_course.measure.records import RecordError, caption, recorded, row_of
from attn_course.measure.roofline import attention_work

from .claim import NotMeasured, evidence_of

LARGE_HEADS = fused.REPORT_SHAPES  # of the README and the log
# Times faster that they print for head dims 512, 2048, 4096, 8192.
README_GAINS, LOG_GAINS = (1.91, 2.02, 1.48, 1.03), (1.12, 1.05, 1.00, 1.00)


def record_of(kind: str) -> dict:
    """Return the newest record of a kind. NotMeasured: there is none; names the command."""
    try:
        return recorded(kind)
    except RecordError as error:
        raise NotMeasured(str(error)) from None


def bench_row(suite: str, shape: tuple[int, ...]) -> tuple[dict[str, dict], str]:
    """Return candidate -> timing at a shape of a suite without a mask, and the caption."""
    found = record_of(f"bench_{suite}")
    for row in found["rows"]:
        if tuple(row["shape"]) == shape and not row.get("causal"):
            return row["timings"], caption(found)
    raise NotMeasured(f"the record of the suite {suite!r} has no row of shape {shape}")


def fastest_peer(timings: dict[str, dict]) -> dict:
    """Return the timing of the fastest of eager PyTorch and its attention backends.

    The reports' claims are about these; compiled PyTorch is left out.
    """
    peers = [one for name, one in timings.items() if name in BASELINES]
    return min(peers, key=lambda one: one["median_us"])


def time_of(what: str, timing: dict, source: str) -> Evidence:
    """Return a median in microseconds, its interval from the 20th to the 80th percentile."""
    return evidence_of(what, timing["median_us"], "us", source, timing["p20_us"], timing["p80_us"])


def ratio_of(
    what: str, over: dict, under: dict, source: str, unit: str = "times faster"
) -> Evidence:
    """Return a ratio of two medians; its interval is that of their percentiles, the widest way."""
    return evidence_of(
        what,
        over["median_us"] / under["median_us"],
        unit,
        source,
        over["p20_us"] / under["p80_us"],
        over["p80_us"] / under["p20_us"],
    )


def paired(what: str, ratio: dict, source: str) -> Evidence:
    """Return a ratio that the record has, with its 95 % interval by bootstrap."""
    return evidence_of(what, ratio["value"], "times faster", source, ratio["low"], ratio["high"])


def candidates(found: dict, shape: tuple[int, ...]) -> dict[str, dict]:
    """Return candidate -> timing at a shape of the record of large head dimensions."""
    return row_of(found, shape)["candidates"]


# -- the guide: levels of memory -------------------------------------------------------------------
def shared_over_global() -> list[Evidence]:
    found = record_of("memory_lesson")
    source = caption(found)
    chains = [one for one in found["latencies"] if one["space"] == "global"]
    (shared,) = (one["clocks"] for one in found["latencies"] if one["space"] == "shared")
    device = max(chains, key=lambda one: one["bytes"])["clocks"]
    rates = {one["level"]: one["gb_per_s"] for one in found["bandwidths"]}
    return [
        evidence_of("latency, shared", shared, "clocks", source),
        evidence_of("latency, device", device, "clocks", source),
        evidence_of("latency ratio", device / shared, "times", source),
        evidence_of("bandwidth ratio", rates["shared"] / rates["device"], "times", source),
    ]


def shared_latency() -> list[Evidence]:
    return [one for one in shared_over_global() if one.what == "latency, shared"]


# -- the essay -------------------------------------------------------------------------------------
def six_percent() -> list[Evidence]:
    found = record_of("pipeline")
    source = caption(found)
    row = row_of(found, (1, 1, 2048, 64))
    kernels, whole = row["kernels"], row["pipelines"]
    tiled = kernels["02 scores, K tile [tx][ty]"]
    return [
        ratio_of("scores faster", kernels["01 scores"], tiled, source),
        paired("the whole faster", row["tiled_over_naive"], source),
        ratio_of("the whole in one kernel", whole["01 + 04"], whole["flash_fp32"], source),
    ]


# -- the README and the log ------------------------------------------------------------------------
def gains(before: str, after: str, printed: tuple[float, ...]) -> list[Evidence]:
    found = record_of(fused.KIND)
    evidence = []
    for shape, theirs in zip(LARGE_HEADS, printed, strict=True):
        timings, name = candidates(found, shape), f"d={shape[3]}"
        evidence.append(ratio_of(name, timings[before], timings[after], caption(found)))
        evidence.append(evidence_of(f"{name}, printed", theirs, "times faster", PRINTED))
    return evidence


def online_gains() -> list[Evidence]:
    """The gain from kernel 08 to 09, and how often the loop of online softmax runs there."""
    blocks = max(fused.online_blocks(shape[2]) for shape in LARGE_HEADS)
    return [
        evidence_of("blocks of keys, at most", blocks, "", COMPUTED),
        *gains("rows_warp", "rows_online", README_GAINS),
    ]


def wider_gain_8192() -> list[Evidence]:
    """What kernel 20 gives where the README gained 1.03 and named memory as the limit."""
    found = record_of(fused.KIND)
    timings, source = candidates(found, LARGE_HEADS[3]), caption(found)
    work = attention_work(Problem(1, 16, 16, 8192))
    floor = {"median_us": work.floors_us(peak_of(found["gpu"]))["memory"]}
    floor |= dict.fromkeys(("p20_us", "p80_us"), floor["median_us"])
    nine, twenty = timings["rows_online"], timings["rows_split"]
    sms = f"on {found['device']['sm_count']} SMs"
    return [
        evidence_of("blocks of kernel 09", nine["blocks"], sms, COMPUTED),
        evidence_of("blocks of kernel 20", twenty["blocks"], sms, COMPUTED),
        time_of("kernel 09", nine, source),
        evidence_of("floor of memory", floor["median_us"], "us", COMPUTED),
        ratio_of("over the floor", nine, floor, source, "times"),
        ratio_of("kernel 20 against 09", nine, twenty, source),
    ]


def no_half_gain() -> list[Evidence]:
    found = record_of(fused.KIND)
    timings = candidates(found, LARGE_HEADS[1])
    half, nine = timings["half2_tiles"], timings["rows_online"]
    return [ratio_of("half2_tiles over kernel 09", half, nine, caption(found), "times as long")]


def double_buffers() -> list[Evidence]:
    found = record_of(fused.KIND)
    row, source = row_of(found, LARGE_HEADS[1]), caption(found)
    slices, nine = (row["candidates"].get(x) for x in ("double_buffer_slices", "rows_online"))
    return [
        evidence_of(
            "whole rows refused", "double_buffer_rows 64 keys" in row["refused"], "", source
        ),
        evidence_of("slices run", bool(slices), "", source),
        ratio_of("slices over kernel 09", slices, nine, source, "times as long"),
    ]


def reduction_gain(what: str) -> list[Evidence]:
    found = record_of("claims_lesson")
    source, evidence = caption(found), []
    for one in found["reductions"]:
        atomic, shuffle = (one["timings"][f"{what}_{how}"] for how in ("atomic", "shuffle"))
        name = f"{what}, {one['blocks']} block{'s' if one['blocks'] > 1 else ''}"
        evidence.append(ratio_of(name, atomic, shuffle, source))
    return evidence


def both_reductions() -> list[Evidence]:
    return reduction_gain("sum") + reduction_gain("max")


# -- the report ------------------------------------------------------------------------------------
def speedup_776() -> list[Evidence]:
    timings, source = bench_row("seeds_fp32", (8, 1, 128, 64))
    peer = fastest_peer(timings)
    return [
        ratio_of("eager PyTorch over tiled", peer, timings["tiled"], source),
        time_of("tiled", timings["tiled"], source),
        evidence_of("PyTorch, printed", 11340.0, "us", PRINTED),
        time_of(f"eager PyTorch, {peer['name']}", peer, source),
    ]


def small_batches() -> list[Evidence]:
    """The report's ratios by batch, and ours where no launch is waited for."""
    evidence = []
    for batch, theirs in ((1, 1.93), (4, 0.11), (8, 7.76)):
        timings, source = bench_row("seeds_fp32", (batch, 1, 128, 64))
        name = f"batch {batch}"
        evidence.append(ratio_of(name, fastest_peer(timings), timings["tiled"], source))
        evidence.append(evidence_of(f"{name}, printed", theirs, "times faster", PRINTED))
    return evidence


def bandwidth_share() -> list[Evidence]:
    timings, source = bench_row("seeds_fp32", (1, 1, 128, 64))
    peak, tiled = peak_of("NVIDIA H200"), timings["tiled"]
    floor = attention_work(Problem(1, 128, 128, 64)).floors_us(peak)["memory"]
    shares = [100 * floor / tiled[one] for one in ("median_us", "p80_us", "p20_us")]
    return [
        evidence_of("tiled, share of the bandwidth", shares[0], "%", source, *shares[1:]),
        ratio_of("auto, the same work", tiled, timings["auto"], source),
    ]


def profile_numbers() -> list[Evidence]:
    """What a profile of the report's first kernel says of the metrics that it quotes."""
    found = record_of("profile_lesson")
    (case,) = (one for one in found["cases"] if one["label"] == "02_scores_tiled")
    metrics, source = case["metrics"], caption(found)
    names = {
        "DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "L1 and memory pipes": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "SM": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "L2 hits": "lts__t_sector_hit_rate.pct",
    }
    return [evidence_of(what, metrics[name], "%", source) for what, name in names.items()]


def layer_norm() -> list[Evidence]:
    """Our LayerNorm against that of eager PyTorch; where a compiled one is faster, against both."""
    evidence, found = [], record_of("bench_layernorm")
    for shape, theirs in (((8, 256, 512), 7.60), ((4, 512, 768), 2.44), ((8, 128, 1024), 2.31)):
        row, label = row_of(found, shape), ",".join(map(str, shape))
        ratio, timings, source = row["ratios"]["layer_norm"], row["timings"], caption(found)
        if ratio["peer"] == "torch":
            evidence.append(paired(label, ratio, source))
        else:
            evidence.append(ratio_of(label, timings["torch"], timings["layer_norm"], source))
            evidence.append(paired(f"{label}, to {ratio['peer']}", ratio, source))
        evidence.append(evidence_of(f"{label}, printed", theirs, "times faster", PRINTED))
    return evidence


def handle_cost() -> list[Evidence]:
    """Two products with a handle that is kept or made, beside the MLP of eager PyTorch."""
    found = record_of("claims_lesson")
    source, evidence = caption(found), []
    for one in found["handles"]:
        times, tokens = one["timings"], f"{one['shape'][0]} tokens"
        kept, made, torch = (times[name] for name in ("handle kept", "handle made", "torch"))
        ends = ((made[a], kept[b]) for a, b in (("p20_us", "p80_us"), ("p80_us", "p20_us")))
        cost = made["median_us"] - kept["median_us"], "us", source, *(x - y for x, y in ends)
        evidence += [
            time_of(f"{tokens}, handle kept", kept, source),
            time_of(f"{tokens}, handle made", made, source),
            ratio_of(f"{tokens}, kept over eager PyTorch", kept, torch, source, "times as long"),
            ratio_of(f"{tokens}, made over eager PyTorch", made, torch, source, "times as long"),
            evidence_of(f"{tokens}, cost of a handle", *cost),
        ]
    return [*evidence, evidence_of("the loss, printed", 2150.0, "us", PRINTED)]


def tensor_gain() -> list[Evidence]:
    from .counted import tensor_instructions

    timings, source = bench_row("long_bf16", (4, 16, 2048, 128))
    plain, _ = bench_row("long_fp32", (4, 16, 2048, 128))
    fourteen = timings["flash_mma"]
    return [
        *tensor_instructions(),
        *no_half_gain(),
        evidence_of("kernel 14, bfloat16", fourteen["tflops"], "TFLOP/s", source),
        ratio_of("kernel 14 against PyTorch's FLASH", timings["torch_flash"], fourteen, source),
        ratio_of("kernel 14 against 12, float32", plain["flash_async"], fourteen, source),
    ]
