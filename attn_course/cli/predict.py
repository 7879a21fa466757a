"""`attn-course predict METHOD`: how long it would take on a GPU that is not here, and why."""

from collections.abc import Iterator

from kernelscope import observe
from kernelscope.cli.arguments import printer, write_json
from kernelscope.cli.timing import predict as of_file
from kernelscope.timing import GpuConstants, Time

from attn_course.ladder.choose import simulating
from attn_course.ladder.problem import Device
from attn_course.ladder.steps import step
from attn_course.lessons import lesson07_pipelines
from attn_course.measure.records import is_current, newest_of_each_gpu, times_of

from .arguments import add_workload
from .calls import NamedCall, simulated_call

SHAPE = (2, 12, 196, 64)  # which the records have


def add(parsers) -> None:
    parser = parsers.add_parser(
        "predict",
        help="how long it would take on a GPU, and what limits it",
        description="Runs some blocks of each kernel of a method, or of one kernel file, on the "
        "simulator and predicts the time on a GPU: each bound, and the time without each source "
        "line. Where results/ has a recorded time of the same method and shape, it is shown "
        "beside. Or predicts a launch of a kernel of your own.",
        epilog="Examples: attn-course predict tiled; attn-course predict flash_mma --shape "
        "4,16,1024,64 --gpu h100; attn-course predict 02_scores_tiled --blocks 16",
    )
    add_workload(parser, shape=SHAPE)
    of_file.add_prediction(parser)


def execute(arguments) -> int:
    """Predict each launch; only the sampled blocks write, so no result is compared."""
    seen, say = Time(arguments.gpu, blocks=arguments.blocks), printer(arguments.json)
    refusal = "predict observes the simulator; on a GPU there is `attn-course bench`"
    with simulating(device_of(seen.gpu)):
        call = simulated_call(arguments, refusal)
        if call is None:
            return of_file.execute(arguments)
        say(call.title, flush=True)
        with observe(seen):
            call.run()
    if call.picked:
        say(f"auto picks {call.picked}")
    say(f"\n{seen}")
    known = list(recorded(arguments, call))
    for one in known:
        error = seen.total_us / one["us"] - 1
        off = f"; the prediction is {abs(error):.0%} {'longer' if error > 0 else 'shorter'}"
        off = off if one["gpu"] == seen.gpu.name else ""
        stale = "; STALE, the kernel has changed since" if one["stale"] else ""
        say(f"\n{one['us']:.4g} us recorded on {one['gpu']}, {one['date']}{stale}{off}")
    launches = [one.record() for one in seen.launches]
    predicted = {"total_us": seen.total_us, "launches": launches, "recorded": known}
    write_json(arguments.json, call.record() | predicted)
    return 0


def device_of(known: GpuConstants) -> Device:
    """What the choice of tiles asks of a GPU that the time model knows."""
    digits = known.arch.removeprefix("sm_").rstrip("af")
    capability = int(digits[:-1]), int(digits[-1])
    return Device(known.name, capability, known.sms, known.shared_bytes)


def recorded(arguments, call: NamedCall) -> Iterator[dict]:
    """Yield the recorded time of a method, or of a kernel, at one shape, of each GPU."""
    files = {part.launch.step.path.name for part in call.parts}
    for record, us in _recorded(arguments, call):
        stale = not all(is_current(record, file) for file in files)
        yield {"gpu": record["gpu"], "date": record["date"], "us": us, "stale": stale}


def _recorded(arguments, call: NamedCall) -> Iterator[tuple[dict, float]]:
    shape = arguments.shape or arguments.usual_shape
    if "dtype" in call.facts:
        label = ",".join(map(str, shape)) + " causal" * arguments.causal
        label += f" keys {arguments.kv_length}" if arguments.kv_length else ""
        method = call.picked.partition(":")[0] or arguments.method  # auto may pick another there
        yield from times_of(method, label, call.facts["dtype"])
    elif not (arguments.causal or arguments.kv_length):
        kernels = lesson07_pipelines.KERNELS.items()
        files = {name: step(number).path.name for name, (number, more) in kernels if not more}
        names = [name for name, file in files.items() if file == call.name]
        for record in newest_of_each_gpu(lesson07_pipelines.KIND).values():
            rows = [row["kernels"] for row in record["rows"] if tuple(row["shape"]) == shape]
            yield from ((record, row[name]["median_us"]) for row in rows for name in names)
