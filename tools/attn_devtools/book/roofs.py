"""Every kernel that was timed alone, under the roof of the units that it computes with."""

import textwrap
from collections.abc import Mapping
from pathlib import Path

from attn_course.ladder.methods import METHODS, files_of
from attn_course.ladder.problem import Problem
from attn_course.measure import records
from attn_course.measure.hardware.devices import peak_of
from attn_course.measure.roofline import method_work

LAYER_NORM = "16 layer_norm"
# Of an element: a sum; difference, square, sum; difference, scale, times gamma, plus beta.
NORM_OPERATIONS = 8
TF32_PRODUCTS = 3  # for one product of float32 in kernel 15
COLUMNS = 104  # of the caption
Points = dict[str, tuple[float, float]]  # name -> operations a byte, 10^12 operations a second


def under_the_roof(ladder: dict, root: Path = records.RESULTS_FOLDER) -> tuple[Points, dict]:
    """Return every timed kernel's intensity and TFLOP/s, and the roofs of the GPU: keywords of
    figures.roofline.

    Float32 methods are those of the ladder's record, at its last shape. Kernels 13 and 14 (suite
    long_bf16, its last shape without a mask) and 16 (suite layernorm, its largest input) come from
    the newest records of the same GPU under root; the caption names those that have none. The
    bytes of a method are those that its kernels must move, scores between two kernels too.
    """
    gpu, row = peak_of(ladder["gpu"]), ladder["rows"][-1]
    points = _methods(row)
    said, used = [f"the others at {row['label']} in float32"], [ladder]
    halves = _beside("long_bf16", ladder["gpu"], root)
    found = [one for one in halves["rows"] if not one["causal"]] if halves else []
    fast = _methods(found[-1]) if found else {}
    if fast:
        points, used = points | fast, [*used, halves]
        said.insert(0, f"13 and 14 at {found[-1]['label']} in {found[-1]['dtype']}")
    norm = _beside("layernorm", ladder["gpu"], root)
    if norm:
        largest = max(norm["rows"], key=lambda one: one["work"]["bytes"])
        points, used = points | _layer_norm(largest), [*used, norm]
        what = f"16 at {largest['label']}, {NORM_OPERATIONS} operations an element"
        said.insert(-1, what)
    absent = [name for name, record in (("13, 14", fast), ("16", norm)) if not record]
    said += [f"no record of {' and '.join(absent)} on this GPU"] if absent else []
    tensor = {  # unit -> its rate and the points that it computes
        "TF32 tensor cores / 3": (
            gpu.tf32_tflops / TF32_PRODUCTS,
            [name for name in points if name.endswith("tf32x3")],
        ),
        "16-bit tensor cores": (gpu.tensor_tflops, list(fast)),
    }
    for rate, names in tensor.values():
        for name in names if not rate else ():
            del points[name]  # this GPU's roof for it is not known
            said.append(f"{name} left out, the rate of its tensor cores is not in the table")
    lines = [
        "; ".join(said) + ". Not drawn: 17, whose erf has no agreed number of operations (suite "
        "gelu has its bytes a second), and 22, which no suite times outside the block.",
        *dict.fromkeys(records.caption(record) for record in used),
    ]
    return points, {
        "tflops": gpu.fp32_tflops,
        "gbps": {"device memory": gpu.memory_gbps},
        "others": {unit: two for unit, two in tensor.items() if all(two)},
        "source": "\n".join(textwrap.fill(line, COLUMNS) for line in lines),
        "title": f"Kernels under the roofs of the {gpu.name}",
    }


def _methods(row: Mapping) -> Points:
    """The methods of a row of an attention suite, by the numbers of their kernels and name."""
    b, h, n, d = row["shape"]
    dtype = row.get("dtype", "float32")
    problem = Problem(b * h, n, n, d, h, h, dtype=dtype)
    points = {}
    for name, timing in row["timings"].items():
        if name in METHODS:
            work = method_work(name, problem)
            rate = work.operations / timing["median_us"] / 1e6
            points[_numbered(name)] = work.intensity, rate
    return points


def _numbered(method: str) -> str:
    """tiled -> '02, 05, 06 tiled'."""
    return f"{', '.join(file[:2] for file in files_of(method))} {method}"


def _layer_norm(row: Mapping) -> Points:
    """Layer norm at a row of its suite: float32, an element read and written."""
    elements, us = row["work"]["bytes"] / 8, row["timings"]["layer_norm"]["median_us"]
    operations = NORM_OPERATIONS * elements
    return {LAYER_NORM: (operations / row["work"]["bytes"], operations / us / 1e6)}


def _beside(suite: str, gpu: str, root: Path) -> dict | None:
    """The newest record of a suite on a GPU, None where there is none."""
    return records.newest_of_each_gpu(f"bench_{suite}", root).get(gpu)
