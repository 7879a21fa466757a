"""Trials that read records of a GPU: times, bandwidths and profiles."""

from attn_course.ladder.problem import Problem
from attn_course.lessons import fused
from attn_course.lessons.claims import COMPUTED, PRINTED, Evidence
from attn_course.measure.hardware.devices import peak_of
from attn_course.measure.records import RecordError, caption, recorded, row_of
from attn_course.measure.roofline import attention_work

from .claim import NotMeasured

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


def suite_row(suite: str, shape: tuple[int, ...]) -> tuple[dict[str, float], str]:
    """Return candidate -> median microseconds, as :func:`bench_row`."""
    timings, source = bench_row(suite, shape)
    return {name: one["median_us"] for name, one in timings.items()}, source


def best_of(times: dict[str, float]) -> float:
    return min(us for name, us in times.items() if name.startswith("torch_"))


# -- the guide: levels of memory -------------------------------------------------------------------
def shared_over_global() -> list[Evidence]:
    found = record_of("memory_lesson")
    source = caption(found)
    chains = [one for one in found["latencies"] if one["space"] == "global"]
    (shared,) = (one["clocks"] for one in found["latencies"] if one["space"] == "shared")
    device = max(chains, key=lambda one: one["bytes"])["clocks"]
    rates = {one["level"]: one["gb_per_s"] for one in found["bandwidths"]}
    return [
        Evidence("latency, shared", shared, "clocks", source),
        Evidence("latency, device", device, "clocks", source),
        Evidence("latency ratio", device / shared, "times", source),
        Evidence("bandwidth ratio", rates["shared"] / rates["device"], "times", source),
    ]


def shared_latency() -> list[Evidence]:
    return [one for one in shared_over_global() if one.what == "latency, shared"]


# -- the essay -------------------------------------------------------------------------------------
def six_percent() -> list[Evidence]:
    found = record_of("pipeline")
    source = caption(found)
    (row,) = (row for row in found["rows"] if row["shape"] == [1, 1, 2048, 64])
    us = {name: one["median_us"] for name, one in row["pipelines"].items()}
    alone = {name: one["median_us"] for name, one in row["kernels"].items()}
    scores = alone["01 scores"] / alone["02 scores, K tile [tx][ty]"]
    single = us["01 + 04"] / us["flash_fp32"]
    return [
        Evidence("scores faster", scores, "times", source),
        Evidence("the whole faster", us["01 + 04"] / us["02 [tx][ty] + 04"], "times", source),
        Evidence("the whole in one kernel", single, "times faster", source),
    ]


# -- the README and the log ------------------------------------------------------------------------
def gains(before: str, after: str, printed: tuple[float, ...]) -> list[Evidence]:
    found = record_of(fused.KIND)
    evidence = []
    for shape, theirs in zip(LARGE_HEADS, printed, strict=True):
        us = fused.times(found, shape)
        d = shape[3]
        evidence.append(Evidence(f"d={d}", us[before] / us[after], "times faster", caption(found)))
        evidence.append(Evidence(f"d={d}, printed", theirs, "times faster", PRINTED))
    return evidence


def online_gains() -> list[Evidence]:
    """The gain from kernel 08 to 09, and how often the loop of online softmax runs there."""
    blocks = max(fused.online_blocks(shape[2]) for shape in LARGE_HEADS)
    return [
        Evidence("blocks of keys, at most", blocks, "", COMPUTED),
        *gains("rows_warp", "rows_online", README_GAINS),
    ]


def wider_gain_8192() -> list[Evidence]:
    """What more SMs give where the README gained 1.03 and named memory as the limit."""
    found = record_of(fused.KIND)
    us = fused.times(found, LARGE_HEADS[3])
    work = attention_work(Problem(1, 16, 16, 8192))
    floor = work.floors_us(peak_of(found["gpu"]))["memory"]
    blocks = row_of(found, LARGE_HEADS[3])["candidates"]["rows_online"]["blocks"]
    source, filled = caption(found), us["rows_online"] / us["rows_split"]
    return [
        Evidence("blocks", blocks, f"on {found['device']['sm_count']} SMs", source),
        Evidence("rows_online", us["rows_online"], "us", source),
        Evidence("floor of memory", floor, "us", COMPUTED),
        Evidence("over the floor", us["rows_online"] / floor, "times", source),
        Evidence("with the SMs filled", filled, "times faster", source),
    ]


def no_half_gain() -> list[Evidence]:
    found = record_of(fused.KIND)
    us = fused.times(found, LARGE_HEADS[1])
    loss = us["half2_tiles"] / us["rows_online"]
    return [Evidence("half2_tiles over kernel 09", loss, "times as long", caption(found))]


def double_buffers() -> list[Evidence]:
    found = record_of(fused.KIND)
    row, source = row_of(found, LARGE_HEADS[1]), caption(found)
    us = fused.times(found, LARGE_HEADS[1])
    loss = us["double_buffer_slices"] / us["rows_online"]
    return [
        Evidence("whole rows refused", "double_buffer_rows 64 keys" in row["refused"], "", source),
        Evidence("slices run", "double_buffer_slices" in us, "", source),
        Evidence("slices against rows_online", loss, "times slower", source),
    ]


def reduction_gain(what: str) -> list[Evidence]:
    found = record_of("claims_lesson")
    source, evidence = caption(found), []
    for one in found["reductions"]:
        us = {name: timing["median_us"] for name, timing in one["timings"].items()}
        name = f"{what}, {one['blocks']} block{'s' if one['blocks'] > 1 else ''}"
        gain = us[f"{what}_atomic"] / us[f"{what}_shuffle"]
        evidence.append(Evidence(name, gain, "times faster", source))
    return evidence


def both_reductions() -> list[Evidence]:
    return reduction_gain("sum") + reduction_gain("max")


# -- the report ------------------------------------------------------------------------------------
def speedup_776() -> list[Evidence]:
    times, source = suite_row("seeds_fp32", (8, 1, 128, 64))
    gain = best_of(times) / times["tiled"]
    return [
        Evidence("tiled against the best of PyTorch", gain, "times faster", source),
        Evidence("tiled", times["tiled"], "us", source),
        Evidence("PyTorch, printed", 11340.0, "us", PRINTED),
        Evidence("PyTorch, best", best_of(times), "us", source),
    ]


def small_batches() -> list[Evidence]:
    """The report's ratios by batch, and ours where no launch is waited for."""
    evidence = []
    for batch, theirs in ((1, 1.93), (4, 0.11), (8, 7.76)):
        times, source = suite_row("seeds_fp32", (batch, 1, 128, 64))
        ratio = best_of(times) / times["tiled"]
        evidence.append(Evidence(f"batch {batch}", ratio, "times faster", source))
        evidence.append(Evidence(f"batch {batch}, printed", theirs, "times faster", PRINTED))
    return evidence


def bandwidth_share() -> list[Evidence]:
    times, source = suite_row("seeds_fp32", (1, 1, 128, 64))
    work = attention_work(Problem(1, 128, 128, 64))
    peak = peak_of("NVIDIA H200")
    share = 100 * work.bytes / (times["tiled"] * 1e-6) / (peak.memory_gbps * 1e9)
    return [
        Evidence("tiled, share of the bandwidth", share, "%", source),
        Evidence("tiled over the floor of memory", 100 / share, "times", source),
        Evidence("auto, the same work", times["tiled"] / times["auto"], "times faster", source),
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
    return [Evidence(what, metrics[name], "%", source) for what, name in names.items()]


def layer_norm() -> list[Evidence]:
    evidence = []
    for shape, theirs in (((8, 256, 512), 7.60), ((4, 512, 768), 2.44), ((8, 128, 1024), 2.31)):
        timings, source = bench_row("layernorm", shape)
        ratio = timings["torch"]["median_us"] / timings["layer_norm"]["median_us"]
        label = ",".join(map(str, shape))
        evidence.append(Evidence(label, ratio, "times faster", source))
        evidence.append(Evidence(f"{label}, printed", theirs, "times faster", PRINTED))
    return evidence


def handle_cost() -> list[Evidence]:
    found = record_of("claims_lesson")
    source, evidence = caption(found), []
    for one in found["handles"]:
        us = {name: timing["median_us"] for name, timing in one["timings"].items()}
        label = f"{one['shape'][0]} tokens"
        evidence.append(Evidence(f"{label}, handle kept", us["handle kept"], "us", source))
        evidence.append(Evidence(f"{label}, handle made", us["handle made"], "us", source))
        if "torch" in us:
            evidence.append(Evidence(f"{label}, PyTorch", us["torch"], "us", source))
    return evidence


def tensor_gain() -> list[Evidence]:
    from .counted import tensor_instructions

    timings, source = bench_row("long_bf16", (4, 16, 2048, 128))
    rate = timings["flash_mma"]["tflops"]
    plain, _ = bench_row("long_fp32", (4, 16, 2048, 128))
    float32 = plain["flash_async"]["tflops"]
    share = rate / timings["torch_flash"]["tflops"]
    return [
        *tensor_instructions(),
        *no_half_gain(),
        Evidence("kernel 14, bfloat16", rate, "TFLOP/s", source),
        Evidence("kernel 14 against PyTorch's FLASH", share, "times faster", source),
        Evidence("kernel 14 against 12, float32", rate / float32, "times faster", source),
    ]
