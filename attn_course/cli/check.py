"""`attn-course check METHOD`: the sanitizer on every kernel of a method, or on a kernel file.

A file whose call the course does not know is called as --grid, --block and --arg say.
"""

from pathlib import Path

import numpy as np
from kernelscope import BackendError, Sanitizer, observe
from kernelscope.cli import check as of_file
from kernelscope.cli.arguments import printer, write_json
from kernelscope.cli.check import Checked, errors_in, findings_record
from kernelscope.cli.options import call_options
from kernelscope.errors import InputError, MissingFileError

from attn_course import reference
from attn_course.clinic import Case, ClinicError, clean_step, examine, read_broken
from attn_course.ladder.headers import KERNEL_FOLDER
from attn_course.ladder.methods import METHODS, Request
from attn_course.ladder.steps import Problem, Step
from attn_course.ladder.verify import worst
from attn_course.layers.launches import Launches
from attn_course.layers.steps import LAYERS
from attn_course.layers.verify import layer_case, layer_name
from attn_course.reference.comparison import Comparison, compare

from .arguments import add_own, add_workload, is_own, workload

DEFAULT_SHAPE = (2, 3, 37, 20)  # ragged: it ends inside every tile


def add(parsers) -> None:
    parser = parsers.add_parser(
        "check",
        help="races, bad accesses, uninitialised reads and divergent barriers",
        description="Runs a method of attention(), or one kernel file of kernels/ or "
        "kernels/broken, in its debug build on the simulator under the sanitizer. Exit status 1 "
        "when it finds an error or the result disagrees with float64; a warning is shown only. "
        "Or examines a launch of a kernel of your own; exit status 1 also when elements of an "
        "`output` stay unwritten.",
        epilog="Examples: attn-course check tiled; attn-course check lost_update; attn-course "
        "check add.cu --grid 4 --block 32 --arg normal:100 --arg output:100 --arg 100",
    )
    add_workload(
        parser,
        metavar="METHOD_OR_FILE",
        also=(
            "; or a file of kernels/ or kernels/broken by its name, such as lost_update; or a "
            "kernel file of your own"
        ),
    )
    add_own(parser)
    # A broken kernel without --shape is run at the case that its file names.
    parser.set_defaults(shape=None, usual_shape=None)


def execute(arguments) -> int:
    if arguments.backend == "gpu":
        raise BackendError("check runs on the simulator; on a GPU use NVIDIA's compute-sanitizer")
    path = kernel_file(arguments.method)
    if (call_options(arguments) or path and not is_known(path)) and is_own(arguments):
        arguments.file = str(path)
        return of_file.execute(arguments)
    if layers := [step for step in LAYERS if step.path == path]:
        checked, comparison = check_layers(layers, arguments)
    else:
        checked, comparison = check_file(path, arguments) if path else check_method(arguments)
    errors = errors_in(checked)
    clean = not errors and (comparison is None or comparison.agrees)
    printer(arguments.json)(report(checked, comparison))
    write_json(
        arguments.json,
        {
            "name": arguments.method,
            "clean": clean,
            "errors": len(errors),
            "agrees": None if comparison is None else comparison.agrees,
            "message": "" if comparison is None else comparison.message,
            "kernels": findings_record(checked),
        },
    )
    return 0 if clean else 1


def kernel_file(name: str) -> Path | None:
    """The kernel file that a name means, or None where it is a method's."""
    is_path = name.endswith(".cu") or "/" in name
    stem = name if name.endswith(".cu") else f"{name}.cu"
    course = (KERNEL_FOLDER / stem, KERNEL_FOLDER / "broken" / stem)
    places = (Path(stem), *course, KERNEL_FOLDER.parent / stem) if is_path else course
    if name not in METHODS:
        for path in places:
            if path.is_file():
                return path.resolve()
    if not is_path:
        return None
    raise MissingFileError(f"no kernel file {name!r}; kernels are in {KERNEL_FOLDER}")


def is_known(path: Path) -> bool:
    """Whether the course knows how a kernel file is called."""
    if any(step.path == path for step in LAYERS):
        return True
    try:
        clean_step(path)
    except ClinicError:
        return False
    return True


def check_file(path: Path, arguments) -> tuple[list[Checked], Comparison | None]:
    """One launch of a kernel file at --shape, or at the case that the file itself names."""
    case = None
    if arguments.shape is not None or path.parent != KERNEL_FOLDER / "broken":
        batch, heads, tokens, d = arguments.shape or DEFAULT_SHAPE
        problem = Problem(batch * heads, tokens, arguments.kv_length or tokens, d)
        case = Case(problem, causal=arguments.causal)
    elif arguments.causal or arguments.kv_length:
        raise InputError(
            "--causal and --kv-length need --shape here: without it a broken kernel "
            f"runs at its own case, {read_broken(path).case.problem}"
        )
    found = examine(path, case, seed=arguments.seed)
    return [Checked(path.name, found.findings)], found.comparison


def check_layers(steps: list[Step], arguments) -> tuple[list[Checked], Comparison]:
    """Each kernel of a file of the layers, on B x L tokens of width H * D."""
    if arguments.causal or arguments.kv_length or arguments.dtype not in (None, "float32"):
        raise InputError(
            f"{steps[0].file} is no attention, and computes in float32: --causal, --kv-length and "
            "--dtype do not go with it"
        )
    batch, heads, length, d = arguments.shape or DEFAULT_SHAPE
    rng = np.random.default_rng(arguments.seed)
    tokens = rng.standard_normal((batch, length, heads * d)).astype(np.float32)
    checked, comparisons = [], []
    for step in steps:
        launches = Launches("simulator")
        oracle = layer_case(step, tokens, heads).append(step, launches)
        with observe(Sanitizer(tuple(oracle.written))) as seen:
            launches.run()
        checked.append(Checked(layer_name(step), seen.findings))
        comparisons.append(oracle.judge())
    return checked, worst(comparisons)


def check_method(arguments) -> tuple[list[Checked], Comparison]:
    """Each step of a method under a sanitizer of its own, then the output against float64."""
    arguments.shape = arguments.shape or DEFAULT_SHAPE
    work = workload(arguments)
    q, k, v = work.inputs()
    call = Request(q, k, v, work.method, work.causal, backend="simulator").call()
    arrays = call.arrays
    written = {id(array) for array in (q, k, v)}
    checked = []
    for launch in call.launches:
        step = launch.step
        mine = [name for name in step.arguments if name in arrays]
        unwritten = tuple(name for name in mine if id(arrays[name]) not in written)
        with observe(Sanitizer(unwritten)) as seen:
            launch.run(arrays)
        written |= {id(arrays[name]) for name in step.writes if name in arrays}
        checked.append(Checked(step.path.name, seen.findings))
    expected = reference.attention(q, k, v, causal=work.causal)
    return checked, compare(arrays["out"], expected, relative=call.tolerance, name=work.method)


def report(checked: list[Checked], comparison: Comparison | None) -> str:
    """The findings for people, kernel by kernel, and the comparison."""
    told = of_file.report(checked)
    return told if comparison is None else f"{told}\n{comparison.message}"
