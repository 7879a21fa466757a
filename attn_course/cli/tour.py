"""`attn-course tour`: every kernel of the course on the MRI windows, checked against float64."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
from kernelscope import resolve_backend
from kernelscope.cli.arguments import add_backend, positive, printer, write_json
from kernelscope.errors import InputError
from tqdm import tqdm

from attn_course import figures as plots
from attn_course import reference
from attn_course.backward import METHODS as BACKWARD_METHODS
from attn_course.backward import verify_backward
from attn_course.figures import table
from attn_course.ladder.choose import current_device
from attn_course.ladder.methods import METHODS, dtypes_of, steps_of
from attn_course.ladder.steps import LADDER
from attn_course.ladder.verify import Verdict, verify_method, verify_step
from attn_course.ladder.warpgroup_tiles import CAPABILITY
from attn_course.layers.steps import LAYERS
from attn_course.layers.verify import layer_name, verify_layer
from attn_course.reference import inputs as data
from attn_course.reference.dtypes import DTYPES

from .arguments import launch_cells, output_folder, verdict_record

HEADS = "step|computes|grid|block|shared bytes|largest error|relative|seconds|float64".split("|")
QUICK = {"heads": 2, "head_dim": 16}
MOST_WINDOWS = (data.SLICE_SHAPE[0] // data.SPAN) * (data.SLICE_SHAPE[1] // data.SPAN)
HEADS_DRAWN = 5


def add(parsers) -> None:
    parser = parsers.add_parser(
        "tour",
        help="every kernel and method on this machine, on real input",
        description="Runs the kernels of attention and of the layers around it, and every method, "
        "over windows of a brain MRI slice, checks each against float64, and writes figures. "
        "Exit status 1 when one disagrees.",
    )
    places = {"type": output_folder, "default": "tour", "metavar": "FOLDER"}
    parser.add_argument("--out", **places, help="where the figures go (default: tour)")
    parser.add_argument(
        "--windows", type=positive, help="windows of the slice, the batch (default 2; --quick: 1)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two heads of 16 dimensions, one window: about 20 seconds without a GPU",
    )
    add_backend(parser)


def execute(arguments) -> int:
    """0 where every step and method agrees with float64, else 1."""
    backend = resolve_backend(arguments.backend)
    count = arguments.windows or (1 if arguments.quick else 2)
    if count > MOST_WINDOWS:
        raise InputError(f"--windows is {count}; the slice has {MOST_WINDOWS}")
    windows = data.mri_windows(windows=count, **(QUICK if arguments.quick else {}))
    announce, count = printer(arguments.json), len(windows.window_origins)
    announce(
        f"attention over {count} window{'s' * (count > 1)} of an MRI slice: "
        f"(B, H, L, D) = {windows.q.shape}, float32, backend {backend}"
    )
    verdicts = judge(windows, backend)
    announce(table(HEADS, [cells for v in verdicts for cells in rows(v)], right=(4, 5, 6, 7)))
    if rounded := [f"{v.name} in {v.dtype}" for v in verdicts if v.dtype != "float32"]:
        announce(f"inputs rounded to 16 bits: {', '.join(rounded)}")
    for verdict in verdicts:
        if not verdict.agrees:
            announce(verdict.comparison.message)
    if backend == "simulator":
        announce("seconds: time to simulate on this machine; it says nothing of a GPU")
    for path in write_figures(arguments.out, windows, verdicts):
        announce(f"figure: {path}")
    steps = [verdict_record(verdict) for verdict in verdicts]
    write_json(arguments.json, {"shape": windows.q.shape, "backend": backend, "steps": steps})
    agreeing = sum(verdict.agrees for verdict in verdicts)
    announce(f"tour: {len(verdicts)} steps, {agreeing} agree with float64, backend {backend}")
    return 0 if agreeing == len(verdicts) else 1


def judge(windows: data.MriWindows, backend: str) -> list[Verdict]:
    """A verdict for each kernel on inputs of its own, then for each method from q, k, v."""
    flat = [array.reshape(-1, *array.shape[2:]) for array in (windows.q, windows.k, windows.v)]
    batch, heads, n, _ = windows.q.shape
    tokens = windows.q.swapaxes(1, 2).reshape(batch, n, -1)  # the heads of a token side by side
    hopper = current_device(backend).capability == CAPABILITY
    jobs = {
        step.file: partial(verify_step, step, *flat) for step in LADDER if hopper or not step.maps
    }
    jobs |= {layer_name(step): partial(verify_layer, step, tokens, heads) for step in LAYERS}
    for method in METHODS:
        if not hopper and any(step.maps for step in steps_of(method)):
            continue  # other GPUs have no wgmma
        given = in_dtype(windows, dtypes_of(method)[0])
        jobs[method] = partial(verify_method, method, *given)
    for name, method in BACKWARD_METHODS.items():
        if hopper or not any(step.maps for step in method.steps):
            given = in_dtype(windows, method.dtypes[0])
            jobs[name] = partial(verify_backward, name, *given)
    verdicts = []
    how = {"unit": "step", "file": sys.stderr, "disable": None, "leave": False}
    with tqdm(jobs.items(), **how) as progress:
        for name, job in progress:
            progress.set_description(name)
            verdicts.append(job(backend=backend))
    return verdicts


def in_dtype(windows: data.MriWindows, dtype: str) -> list[np.ndarray]:
    """q, k and v of the windows, rounded to a dtype."""
    return [array.astype(DTYPES[dtype]) for array in (windows.q, windows.k, windows.v)]


def rows(verdict: Verdict) -> list[tuple[str, ...]]:
    """A verdict's table rows: one for a kernel; for a method one and its launches below it."""
    formulas = {step.file: step.computes for step in LADDER}
    formulas |= {layer_name(step): step.computes for step in LAYERS}
    found = verdict.comparison
    judged = (
        f"{found.max_abs_error:.1e}",
        f"{found.relative_error:.1e}",
        f"{verdict.seconds:.3g}",
        "agrees" if verdict.agrees else "DISAGREES",
    )
    launches = [launch_cells(launch) for launch in verdict.launches]
    if verdict.name in formulas:
        return [(verdict.name, formulas[verdict.name], *launches[-1], *judged)]
    files = " + ".join(dict.fromkeys(launch.file[:2] for launch in verdict.launches))
    what = "gradients" if verdict.name in BACKWARD_METHODS else "attention"
    return [(verdict.name, f"{what}: {files}", "", "", "", *judged)]


def write_figures(folder: Path, windows: data.MriWindows, verdicts: list[Verdict]) -> list[Path]:
    """Attention maps of each window, its scores in tiles, and the spread of the errors.

    The maps show what kernel 05 computed, not the reference.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {verdict.name: verdict for verdict in verdicts}
    weights = found["05_softmax_warp"].outputs["p"]  # (B*H, 196, 196)
    weights = weights.reshape(*windows.q.shape[:2], *weights.shape[1:])
    backend = verdicts[0].backend
    figures = {
        f"attention_window_{number}.png": plots.attention_over_slice(
            windows.slice,
            np.array(windows.window_origins),
            weights[number],
            window=number,
            query=telling_query(weights[number]),
            heads=range(min(HEADS_DRAWN, weights.shape[1])),
            token_pixels=data.PATCH,
            grid=(data.WINDOW, data.WINDOW),
            title=f"where a token of window {number} looks: weights of kernel 05, {backend}",
        )
        for number in range(len(weights))
    }
    scores = found["02_scores_tiled"].outputs["s"][0]
    figures["scores_in_tiles.png"] = plots.tile_grid(
        scores, 32, highlight=(2, 3), title="window 0, head 0, in tiles of 32", unit="score"
    )
    figures["errors.png"] = error_figure(windows, verdicts)
    for name, figure in figures.items():
        figure.savefig(folder / name)
    return [folder / name for name in figures]


def telling_query(weights: np.ndarray) -> int:
    """The query whose attention is spread over half of its window; weights (heads, 196, 196).

    The spread is the perplexity, exp(entropy), averaged over heads: 1 for a single point, 196 for
    no preference at all. Neither extreme shows much on a map.
    """
    p = weights.astype(np.float64)
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1)  # (heads, 196)
    return int(np.abs(np.exp(entropy).mean(axis=0) - weights.shape[-1] / 2).argmin())


def error_figure(windows: data.MriWindows, verdicts: list[Verdict]):
    """Errors of every method's output against float64, as a distribution."""
    methods = [verdict for verdict in verdicts if verdict.name in METHODS]
    expected = {
        dtype: reference.attention(*in_dtype(windows, dtype))
        for dtype in {verdict.dtype for verdict in methods}
    }
    return plots.error_profile(
        [verdict.name for verdict in methods],
        [np.abs(verdict.outputs["out"] - expected[verdict.dtype]) for verdict in methods],
        title="absolute error of the output against float64, element by element",
    )
