"""The schema of each kind of record; msgspec checks records against it.

A record stays a plain dict. Each type below names the fields that its readers use, with their
types; a record may hold more. Times are microseconds.
"""

from functools import cache
from typing import Annotated, NotRequired, TypedDict

import msgspec
from msgspec import Meta

Natural = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Date = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d")]
Shape = Annotated[list[Count], Meta(min_length=4, max_length=4)]  # (B, H, L, D) or (BH, n, m, d)
Extents = Annotated[list[Count], Meta(min_length=1, max_length=3)]  # of a grid or a block
Spread = Annotated[list[float], Meta(min_length=3, max_length=3)]  # lowest, median, highest
Reasons = dict[str, str]  # contestant -> why it was not timed
Options = list[str]


def _fields(*bases: type, **types) -> type:
    """Return the type of a dict with the fields of the bases and these: field -> its type."""
    inherited = {name: one for base in bases for name, one in base.__annotations__.items()}
    return TypedDict("Fields", inherited | types)


# Where and when a record was taken, and of which kernels (file -> SHA-256); cuda: of the runtime.
RecordStamp = _fields(
    kind=str, gpu=str, driver=str, cuda=str, date=Date, commit=str, kernels=dict[str, str]
)

# -- times -----------------------------------------------------------------------------------------
TimingFields = _fields(
    median_us=Positive,
    p20_us=Positive,
    p80_us=Positive,
    name=str,
    how=str,
    samples=Count,
    calls_a_sample=Count,
)
Timings = dict[str, TimingFields]  # by contestant
# A timing whose output was checked against float64.
CheckedTiming = _fields(TimingFields, relative_error=NotNegative)
RatedTiming = _fields(CheckedTiming, tflops=NotNegative)
RatioFields = _fields(name=str, peer=str, value=Positive, low=Positive, high=Positive)
# A timing of one kernel, with what its launch occupies of the GPU.
LaunchTiming = _fields(
    CheckedTiming,
    options=Options,
    blocks=Count,
    threads=Count,
    registers=Natural,
    local_bytes=Natural,
    shared_bytes=Natural,
    resident_blocks=Natural,
    waves=NotNegative,
)
VariantTiming = _fields(LaunchTiming, over_whole=NotRequired[RatioFields])
Capability = Annotated[list[Natural], Meta(min_length=2, max_length=2)]
DeviceFields = _fields(name=str, capability=Capability, sm_count=Count, shared_bytes=Count)

# -- rows of contests ------------------------------------------------------------------------------
SuiteRowFields = _fields(
    label=str,
    shape=Shape,
    causal=bool,
    dtype=NotRequired[str],  # of records before there were others: float32
    timings=dict[str, RatedTiming],
    refused=Reasons,
    skipped=Reasons,
    wrong=Reasons,
    best_peer=str | None,
    best_backend=str | None,
    best_method=str | None,
    auto_picks=NotRequired[str],
    ratio_peer=NotRequired[RatioFields],
    ratio_backend=NotRequired[RatioFields],
    auto_over_best=NotRequired[Positive],
    auto_within_margin=NotRequired[bool],
    kernels=NotRequired[dict[str, list[TimingFields]]],
)
LayerRowFields = _fields(
    label=str,
    shape=Annotated[list[Count], Meta(min_length=2)],
    work=dict[str, Natural],  # "operations" of matrix products, "bytes" of inputs and output
    timings=dict[str, CheckedTiming],
    refused=Reasons,
    wrong=Reasons,
    best_peer=str | None,
    ratios=dict[str, RatioFields],  # ours -> against the best peer
    launches=dict[str, list[str]],  # ours -> what runs, in order
)
_OfContest = _fields(shape=Shape, refused=Reasons, wrong=Reasons)
ContestRow = _fields(_OfContest, contestants=dict[str, LaunchTiming])
TileRow = _fields(ContestRow, keys=Count | None)
AblationRow = _fields(_OfContest, causal=bool, variants=dict[str, VariantTiming])
PipelineRow = _fields(
    _OfContest, pipelines=Timings, kernels=Timings, tiled_over_naive=NotRequired[RatioFields]
)

# -- the kinds -------------------------------------------------------------------------------------
_OfSuite = _fields(RecordStamp, suite=str, about=str, torch=str, clocks=dict[str, Spread])
SuiteRecord = _fields(_OfSuite, rows=list[SuiteRowFields])
LayersRecord = _fields(_OfSuite, rows=list[LayerRowFields])
_OnDevice = _fields(RecordStamp, device=DeviceFields)
ExperimentsRecord = _fields(_OnDevice, rows=list[ContestRow], tiles=ContestRow)
TilesRecord = _fields(_OnDevice, rows=list[TileRow])
AblationsRecord = _fields(_OnDevice, rows=list[AblationRow], sources=dict[str, str])
EmptyLaunch = _fields(calls=Count, timings=Timings)
PipelineRecord = _fields(RecordStamp, torch=str, empty_launch=EmptyLaunch, rows=list[PipelineRow])
ScoreTimes = _fields(shape=Shape, clocks=dict[str, dict[str, float]], timings=list[TimingFields])
LatencyFields = _fields(space=str, bytes=Count, clocks=Positive, nanoseconds=Positive)
BandwidthFields = _fields(level=str, median_us=Positive, gb_per_s=Positive)
MemoryRecord = _fields(
    RecordStamp,
    multiprocessors=Count,
    l2_bytes=Count,
    scores=ScoreTimes,
    latencies=Annotated[list[LatencyFields], Meta(min_length=1)],
    bandwidths=list[BandwidthFields],
)

# -- the lesson on timing --------------------------------------------------------------------------
FirstCalls = _fields(shapes=list[Shape], calls=dict[str, list[list[Positive]]])
Ways = _fields(shape=Shape, auto_picks=str, timings=dict[str, Timings])
Noise = _fields(shape=Shape, samples_us=dict[str, list[Positive]])
ClocksUnderLoad = _fields(
    shape=Shape,
    block=Count,
    at_s=list[float],
    medians_us=list[Positive],
    sm_mhz=list[float],
    power_w=list[float],
)
SameAgainstItself = _fields(shape=Shape, iterations=Count, ratios=dict[str, RatioFields])
TimingExperiments = _fields(
    empty_launch=EmptyLaunch,  # of the quick form too, which has no other
    first_calls=NotRequired[FirstCalls],
    ways=NotRequired[Ways],
    noise=NotRequired[Noise],
    clocks=NotRequired[ClocksUnderLoad],
    same=NotRequired[SameAgainstItself],
)
TimingRecord = _fields(RecordStamp, torch=str, experiments=TimingExperiments)

# -- the lesson on claims --------------------------------------------------------------------------
Triple = Annotated[list[Count], Meta(min_length=3, max_length=3)]
Reductions = _fields(blocks=Count, rounds=Count, timings=Timings)
Handles = _fields(shape=Triple, timings=Timings)  # of tokens, hidden, feed-forward
ClaimTimesRecord = _fields(
    RecordStamp,
    torch=str,
    reductions=Annotated[list[Reductions], Meta(min_length=1)],
    handles=list[Handles],
)

# -- profiles and comparisons ----------------------------------------------------------------------
ProfileCase = _fields(
    file=Annotated[str, Meta(pattern=r"^(probes/\w+|\d\d_\w+)\.cu$")],
    kernel=str,
    problem=Annotated[list[Count], Meta(min_length=1, max_length=4)],  # Shape, or (count,)
    options=Options,
    grid=Extents,
    block=Extents,
    metrics=dict[str, float],
    simulator=NotRequired[dict[str, int]],
)
ProfileRecord = _fields(RecordStamp, cases=list[ProfileCase])
BothCounts = _fields(hardware=float, simulator=float, verdict=str)
CounterCase = _fields(ProfileCase, label=str, counters=dict[str, BothCounts])
ProbeCase = _fields(label=str, kernel=str, counters=dict[str, BothCounts])
CountersRecord = _fields(
    RecordStamp, cases=list[CounterCase], probes=list[ProbeCase], missed=list[str], reasons=Reasons
)
OurFindings = _fields(kinds=dict[str, list[int]], right=bool | None, messages=list[str])
ToolFindings = _fields(
    tool=str, build=str, errors=Natural, kinds=dict[str, list[int]], outcome=str, lines=list[str]
)
CleanKernel = _fields(file=str, ours=OurFindings, tools=list[ToolFindings])
BrokenKernel = _fields(CleanKernel, defect=str, line=int, verdict=str, why=str | None)
SanitizerRecord = _fields(
    RecordStamp,
    broken=list[BrokenKernel],
    clean=list[CleanKernel],
    machine_code=list[BrokenKernel],
    alarms=list[str],
    missed=list[str],
    unexplained=list[str],
)
DifferentialSection = _fields(
    count=Natural, agree=Natural, disagree=Natural, errors=Natural, all_agree=bool, items=list[dict]
)
DifferentialRecord = _fields(
    RecordStamp,
    nvrtc=NotRequired[str],  # the compiler's version
    machines=list[str],
    sources=dict[str, str],
    all_agree=bool,
    differences=list[dict],
    sections=dict[str, DifferentialSection],
)

SCHEMAS: dict[str, type] = {
    **dict.fromkeys(("bench_seeds_fp32", "bench_long_fp32", "bench_long_bf16"), SuiteRecord),
    "bench_ladder": SuiteRecord,
    **dict.fromkeys(("bench_layernorm", "bench_mlp", "bench_block"), LayersRecord),
    "experiments": ExperimentsRecord,
    "tiles": TilesRecord,
    "ablations": AblationsRecord,
    "pipeline": PipelineRecord,
    "memory_lesson": MemoryRecord,
    "timing_lesson": TimingRecord,
    "claims_lesson": ClaimTimesRecord,
    **dict.fromkeys(("profile", "profile_lesson"), ProfileRecord),
    "counters": CountersRecord,
    "sanitizer": SanitizerRecord,
    **dict.fromkeys(("differential", "differential_matrices"), DifferentialRecord),
}

# -- the simulator's speed, on a CPU ---------------------------------------------------------------
SpeedCaseFields = _fields(
    name=str,
    shape=Triple,
    seconds=Positive,
    fastest=Positive,
    slowest=Positive,
    instructions=Count,
    lane_instructions_per_second=Positive,
)
SpeedRecord = _fields(machine=str, date=Date, repeats=Count, cases=list[SpeedCaseFields])
NumbaRecord = _fields(kernel=str, seconds=Positive, machine=str, python=str, numba=str, date=Date)


# -- checking --------------------------------------------------------------------------------------
_Kind = _fields(kind=str)


def kind_of(text: bytes) -> str:
    """Return the kind of a record. msgspec.DecodeError: not JSON, or without a kind."""
    return _decoder(_Kind).decode(text)["kind"]


def decoded(text: bytes, schema: type | None = None) -> dict:
    """Return the record that JSON text holds, checked against its kind's schema or the one given.

    Raises:
        msgspec.DecodeError: not JSON (NaN is none), or it does not fit; the message says where.
    """
    schema = schema or SCHEMAS.get(kind_of(text), RecordStamp)
    _decoder(schema).decode(text)
    record = msgspec.json.decode(text)
    if schema is SuiteRecord:
        for number, row in enumerate(record["rows"]):
            _check_standing(row, f"$.rows[{number}]")
    return record


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
