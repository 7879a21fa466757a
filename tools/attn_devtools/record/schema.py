"""The schema of each kind of record; msgspec checks records against it.

A record stays a plain dict. Each class below names the fields that its readers use, with their
types; a record may hold more. Times are microseconds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, NotRequired, Required, TypedDict, TypeVar

import msgspec
from kernelscope import contest
from msgspec import Meta

from attn_course.measure.records import RESULTS_FOLDER, RecordError, RecordStamp, write_record
from attn_course.reference.dtypes import DTYPES

T = TypeVar("T")
Some = Annotated[list[T], Meta(min_length=1)]  # a list that is not empty
Natural = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Date = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d")]
DtypeName = Literal[tuple(DTYPES)]
Shape = Annotated[list[Count], Meta(min_length=4, max_length=4)]  # (B, H, L, D) or (BH, n, m, d)
Extents = Annotated[list[Count], Meta(min_length=1, max_length=3)]  # of a grid or a block
Spread = Annotated[list[float], Meta(min_length=3, max_length=3)]  # lowest, median, highest
Reasons = dict[str, str]  # candidate -> why it was not timed
Options = list[str]


# -- times -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CheckedRatio(contest.Ratio):
    """The same; its numbers are checked."""

    value: Positive
    low: Positive
    high: Positive


class TimingFields(TypedDict):
    median_us: Positive
    p20_us: Positive
    p80_us: Positive
    name: str
    how: str
    samples: Count
    calls_a_sample: Count


class CheckedTiming(TimingFields):
    """A timing whose output was checked against float64."""

    relative_error: NotNegative


class RatedTiming(CheckedTiming):
    tflops: NotNegative


class GradientErrors(TypedDict):
    """Of each gradient, relative to float64."""

    dq: NotNegative
    dk: NotNegative
    dv: NotNegative


class GradientTiming(RatedTiming):
    errors: GradientErrors


class LaunchTiming(CheckedTiming):
    """A timing of one kernel, with what its launch occupies of the GPU."""

    options: Options
    blocks: Count
    threads: Count
    registers: Natural
    local_bytes: Natural
    shared_bytes: Natural
    resident_blocks: Natural
    waves: NotNegative


class VariantTiming(LaunchTiming):
    over_whole: NotRequired[CheckedRatio]


class DeviceFields(TypedDict):
    name: str
    capability: Annotated[list[Natural], Meta(min_length=2, max_length=2)]
    sm_count: Count
    shared_bytes: Count


# -- rows of benchmarks ----------------------------------------------------------------------------
class ContestFields(TypedDict):
    """Of those that were not timed, or whose output was wrong."""

    refused: Reasons
    skipped: NotRequired[Reasons]
    wrong: Reasons


class SuiteRowFields(ContestFields):
    label: str
    shape: Shape
    causal: bool
    dtype: NotRequired[DtypeName]  # of records before there were others: float32
    timings: dict[str, RatedTiming]
    skipped: Reasons
    best_peer: str | None
    best_backend: str | None
    best_method: str | None
    auto_picks: NotRequired[str]
    ratio_peer: NotRequired[CheckedRatio]
    ratio_backend: NotRequired[CheckedRatio]
    auto_over_best: NotRequired[Positive]
    auto_within_margin: NotRequired[bool]
    kernels: NotRequired[dict[str, list[TimingFields]]]


class BackwardRowFields(ContestFields):
    label: str
    shape: Shape
    causal: bool
    dtype: DtypeName
    timings: dict[str, GradientTiming]
    best_peer: str | None
    best_method: str | None
    ratios: dict[str, CheckedRatio]  # ours -> against the best peer


class HiddenExchange(TypedDict):
    """A ring, its computation alone and its exchange alone, its waits; bytes that a rank sends."""

    bytes: Natural
    both_us: Positive
    compute_us: Positive
    exchange_us: Positive
    waited_us: NotNegative
    hidden: float


class ParallelRowFields(ContestFields):
    label: str
    shape: Shape
    causal: bool
    dtype: str
    timings: dict[str, RatedTiming]
    best: str | None
    ratios: dict[str, dict[str, CheckedRatio]]  # to one GPU, to the peer
    exchange: NotRequired[HiddenExchange]


class LinkRate(TypedDict):
    bytes: Count
    gb_s: Positive


class CheckedRow(TypedDict):
    label: str
    name: str
    relative_error: NotNegative
    agrees: bool


class RingByBlocks(TypedDict):
    """A ring and its two sides, by the blocks that NCCL may take and the grid of attention."""

    label: str
    nccl_blocks: Count
    grid: str
    ring_us: Positive
    ring_compute_us: Positive
    ring_exchange_us: Positive
    link_gb_s: Positive


class LostRank(TypedDict):
    seconds: float  # from the end of a rank to that of rank 0
    said: str


class WorkFields(TypedDict):
    """Operations of matrix products, bytes of inputs and output."""

    operations: Natural
    bytes: Natural


class LayerRowFields(ContestFields):
    label: str
    shape: Annotated[list[Count], Meta(min_length=2)]
    work: WorkFields
    timings: dict[str, CheckedTiming]
    best_peer: str | None
    ratios: dict[str, CheckedRatio]  # ours -> against the best baseline
    launches: dict[str, list[str]]  # ours -> what runs, in order


class ContestRow(ContestFields):
    shape: Shape
    candidates: dict[str, LaunchTiming]


class TileRow(ContestRow):
    keys: Count | None


class AblationRow(ContestFields):
    shape: Shape
    causal: bool
    variants: dict[str, VariantTiming]


class PipelineRow(ContestFields):
    shape: Shape
    pipelines: dict[str, TimingFields]
    kernels: dict[str, TimingFields]
    tiled_over_naive: NotRequired[CheckedRatio]


# -- the kinds -------------------------------------------------------------------------------------
class SuiteStamp(RecordStamp):
    suite: str
    about: str
    torch: str
    clocks: dict[str, Spread]


class SuiteRecord(SuiteStamp):
    rows: Some[SuiteRowFields]


class BackwardRecord(SuiteStamp):
    rows: Some[BackwardRowFields]


class LayersRecord(SuiteStamp):
    rows: Some[LayerRowFields]


class ParallelRecord(SuiteStamp):
    ranks: Count
    nccl: Count  # version
    link: Some[LinkRate]  # each way between two neighbours, both at once
    checked: NotRequired[Some[CheckedRow] | str]  # or why there is none, here and below
    by_blocks: NotRequired[Some[RingByBlocks] | str]
    lost_rank: NotRequired[LostRank | str]
    rows: Some[ParallelRowFields]


class ExperimentsRecord(RecordStamp):
    device: DeviceFields
    rows: Some[ContestRow]
    tiles: ContestRow


class TilesRecord(RecordStamp):
    device: DeviceFields
    rows: Some[TileRow]


class AblationsRecord(RecordStamp):
    device: DeviceFields
    rows: Some[AblationRow]
    sources: dict[str, str]


class EmptyLaunch(TypedDict):
    calls: Count
    timings: dict[str, TimingFields]


class PipelineRecord(RecordStamp):
    torch: str
    empty_launch: EmptyLaunch
    rows: Some[PipelineRow]


class ScoreTimes(TypedDict):
    shape: Shape
    clocks: dict[str, dict[str, float]]
    timings: Some[TimingFields]


class LatencyFields(TypedDict):
    space: str
    bytes: Count
    clocks: Positive
    nanoseconds: Positive


class BandwidthFields(TypedDict):
    level: str
    median_us: Positive
    gb_per_s: Positive


class MemoryRecord(RecordStamp):
    multiprocessors: Count
    l2_bytes: Count
    scores: ScoreTimes
    latencies: Some[LatencyFields]
    bandwidths: Some[BandwidthFields]


# -- the lesson on timing --------------------------------------------------------------------------
class FirstCalls(TypedDict):
    shapes: list[Shape]
    calls: dict[str, list[list[Positive]]]


class Ways(TypedDict):
    shape: Shape
    auto_picks: str
    timings: dict[str, dict[str, TimingFields]]


class Noise(TypedDict):
    shape: Shape
    samples_us: dict[str, list[Positive]]


class ClocksUnderLoad(TypedDict):
    shape: Shape
    block: Count
    at_s: list[float]
    medians_us: list[Positive]
    sm_mhz: list[float]
    power_w: list[float]


class SameAgainstItself(TypedDict):
    shape: Shape
    iterations: Count
    ratios: dict[str, CheckedRatio]


class TimingExperiments(TypedDict, total=False):
    first_calls: FirstCalls
    ways: Ways
    empty_launch: Required[EmptyLaunch]  # of the quick form too
    noise: Noise
    clocks: ClocksUnderLoad
    same: SameAgainstItself


class TimingRecord(RecordStamp):
    torch: str
    experiments: TimingExperiments


# -- the lesson on claims --------------------------------------------------------------------------
class Reductions(TypedDict):
    blocks: Count
    rounds: Count
    timings: dict[str, TimingFields]


class Handles(TypedDict):
    shape: Annotated[list[Count], Meta(min_length=3, max_length=3)]  # tokens, hidden, feed-forward
    timings: dict[str, TimingFields]


class ClaimTimesRecord(RecordStamp):
    torch: str
    reductions: Some[Reductions]
    handles: list[Handles]


# -- profiles and comparisons ----------------------------------------------------------------------
class ProfileCase(TypedDict):
    file: Annotated[str, Meta(pattern=r"^(probes/\w+|\d\d_\w+)\.cu$")]
    kernel: str
    problem: Annotated[list[Count], Meta(min_length=1, max_length=4)]  # Shape, or (count,)
    options: Options
    grid: Extents
    block: Extents
    metrics: dict[str, float]
    simulator: NotRequired[dict[str, int]]


class ProfileRecord(RecordStamp):
    cases: Some[ProfileCase]


class BothCounts(TypedDict):
    hardware: float
    simulator: float
    verdict: str


class Taken(TypedDict):
    date: str
    commit: str


class CounterCase(ProfileCase):
    label: str
    run: NotRequired[Taken]  # of a case that an earlier record had
    counters: dict[str, BothCounts]


class ProbeCase(TypedDict):
    label: str
    run: NotRequired[Taken]
    kernel: str
    counters: dict[str, BothCounts]


class CountersRecord(RecordStamp):
    cases: Some[CounterCase]
    probes: list[ProbeCase]
    missed: list[str]
    reasons: Reasons


class OurFindings(TypedDict):
    kinds: dict[str, list[int]]
    right: bool | None
    messages: list[str]


class ToolFindings(TypedDict):
    tool: str
    build: str
    errors: Natural
    kinds: dict[str, list[int]]
    outcome: str
    lines: list[str]


class CleanKernel(TypedDict):
    file: str
    ours: OurFindings
    tools: list[ToolFindings]


class BrokenKernel(CleanKernel):
    defect: str
    line: int
    verdict: str
    why: str | None


class SanitizerRecord(RecordStamp):
    broken: list[BrokenKernel]
    clean: list[CleanKernel]
    machine_code: list[BrokenKernel]
    alarms: list[str]
    unseen: NotRequired[list[str]]  # clean kernels whose writes initcheck does not see
    false_alarms: NotRequired[dict[str, str]]  # clean kernel -> why racecheck is wrong about it
    missed: list[str]
    unexplained: list[str]


class DifferentialSection(TypedDict):
    count: Natural
    agree: Natural
    disagree: Natural
    errors: Natural
    all_agree: bool
    items: list[dict]


class DifferentialRecord(RecordStamp):
    nvrtc: NotRequired[str]  # the compiler's version
    machines: list[str]
    sources: dict[str, str]
    all_agree: bool
    differences: list[dict]
    sections: dict[str, DifferentialSection]


class PredictedTime(TypedDict):
    label: str
    measured_us: Positive
    predicted_us: Positive
    error: float
    limit: NotRequired[str]
    ncu_verdicts: NotRequired[list[str]]  # the likeliest limit by Nsight Compute's counters first
    limit_is_right: NotRequired[bool]


class PredictionErrors(TypedDict):
    count: Natural
    median: float
    p90: float
    worst: float
    within_30_percent: float
    kendall_tau: float
    limits: NotRequired[Natural]
    right_limits: NotRequired[float]


class TimeModelPart(TypedDict):
    """Predicted times beside measured ones, of one set of kernels that nothing was fitted to."""

    how: str
    kernels: dict[str, str]
    summary: PredictionErrors
    by_file: dict[str, PredictionErrors]
    rows: list[PredictedTime]
    left_out: NotRequired[list[str]]  # labels that this judgement did not predict


class TimeModelRecord(RecordStamp):
    """The first set, for which the model was changed; second and later ones: measured before any
    prediction; corrected: with rules that were changed after that.
    """

    blocks: Natural
    how: str
    summary: PredictionErrors
    by_file: dict[str, PredictionErrors]
    rows: list[PredictedTime]
    left_out: NotRequired[list[str]]  # labels that this judgement did not predict
    second: NotRequired[TimeModelPart]
    corrected: NotRequired[TimeModelPart]
    third: NotRequired[TimeModelPart]
    third_corrected: NotRequired[TimeModelPart]
    twelfth: NotRequired[TimeModelPart]
    twelfth_corrected: NotRequired[TimeModelPart]
    thirteenth: NotRequired[TimeModelPart]
    thirteenth_corrected: NotRequired[TimeModelPart]
    fourteenth: NotRequired[TimeModelPart]
    fourteenth_corrected: NotRequired[TimeModelPart]
    fifteenth: NotRequired[TimeModelPart]
    fifteenth_corrected: NotRequired[TimeModelPart]
    sixteenth: NotRequired[TimeModelPart]
    sixteenth_corrected: NotRequired[TimeModelPart]
    seventeenth: NotRequired[TimeModelPart]
    seventeenth_corrected: NotRequired[TimeModelPart]
    eighteenth: NotRequired[TimeModelPart]
    eighteenth_corrected: NotRequired[TimeModelPart]
    nineteenth: NotRequired[TimeModelPart]
    nineteenth_corrected: NotRequired[TimeModelPart]
    fitted_as: NotRequired[str]
    fitted_summary: NotRequired[PredictionErrors]
    fitted: NotRequired[list[PredictedTime]]


class DifferentLaunch(TypedDict):
    test: str
    kernel: str
    arrays: dict[str, str]  # argument -> how far apart


class LaunchesRecord(RecordStamp):
    launches: Natural
    same_bytes: Natural
    different: list[DifferentLaunch]


SCHEMAS: dict[str, type] = {
    "bench_seeds_fp32": SuiteRecord,
    "bench_ragged_fp32": SuiteRecord,
    "bench_long_fp32": SuiteRecord,
    "bench_long_bf16": SuiteRecord,
    "bench_hopper_bf16": SuiteRecord,
    "bench_decode": SuiteRecord,
    "bench_ladder": SuiteRecord,
    "bench_backward": BackwardRecord,
    "bench_parallel": ParallelRecord,
    "bench_layernorm": LayersRecord,
    "bench_gelu": LayersRecord,
    "bench_mlp": LayersRecord,
    "bench_block": LayersRecord,
    "experiments": ExperimentsRecord,
    "tiles": TilesRecord,
    "ablations": AblationsRecord,
    "hopper_ablations": AblationsRecord,
    "pipeline": PipelineRecord,
    "memory_lesson": MemoryRecord,
    "timing_lesson": TimingRecord,
    "claims_lesson": ClaimTimesRecord,
    "profile": ProfileRecord,
    "profile_lesson": ProfileRecord,
    "counters": CountersRecord,
    "sanitizer": SanitizerRecord,
    "differential": DifferentialRecord,
    "launches": LaunchesRecord,
    "time_model": TimeModelRecord,
}


# -- the simulator's speed, on a CPU ---------------------------------------------------------------
class SpeedCaseFields(TypedDict):
    name: str
    shape: Annotated[list[Count], Meta(min_length=3, max_length=3)]
    seconds: Positive
    fastest: Positive
    slowest: Positive
    instructions: Count
    lane_instructions_per_second: Positive


class SpeedRecord(TypedDict):
    machine: str
    date: Date
    repeats: Count
    cases: Some[SpeedCaseFields]


class NumbaRecord(TypedDict):
    kernel: str
    seconds: Positive
    machine: str
    python: str
    numba: str
    date: Date


# -- checking --------------------------------------------------------------------------------------
def write(record: dict, name: str, root: Path = RESULTS_FOLDER) -> Path:
    """Write a record, as `write_record`, that fits the schema of its kind.

    Raises:
        RecordError: it does not fit; it is kept as <name>.rejected.
    """
    path = write_record(record, name, root)
    try:
        check(record)
    except ValueError as error:
        rejected = path.rename(path.with_suffix(".rejected"))
        raise RecordError(f"{name} is not a record: {error}; kept as {rejected}") from None
    return path


def check(record: dict, schema: type | None = None) -> None:
    """Check a record against its kind's schema, or the one given.

    Raises:
        msgspec.ValidationError: it does not fit; the message says where.
    """
    schema = schema or SCHEMAS.get(record["kind"], RecordStamp)
    _decoder(schema).decode(json.dumps(record).encode())
    if schema is SuiteRecord:
        for number, row in enumerate(record["rows"]):
            _check_standing(row, f"$.rows[{number}]")


@cache
def _decoder(schema: type) -> msgspec.json.Decoder:
    return msgspec.json.Decoder(schema)


def _check_standing(row: dict, where: str) -> None:
    """Check that a suite's row holds the timings and ratios of those that it names as best."""
    for key in ("best_peer", "best_backend", "best_method"):
        if row[key] is not None and row[key] not in row["timings"]:
            raise msgspec.ValidationError(f"{row[key]!r} has no timing - at `{where}.{key}`")
    if "auto" in row["timings"] and "auto_picks" not in row:
        raise msgspec.ValidationError(f"Object missing required field `auto_picks` - at `{where}`")
