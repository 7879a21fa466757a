"""Kernels compiled ahead of a measurement, by all cores."""

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from kernelscope.contest import require_gpu

from attn_course.ladder.call import kernel_of
from attn_course.measure.candidates import Part


def compile_parts(parts: Iterable[Part]) -> int:
    """Compile kernels into CuPy's cache, in as many processes as there are cores.

    parts: with all their options, as Part.launch gives them. Returns the number of kernels.

    Raises:
        TimingError: no GPU.
    """
    require_gpu()
    wanted = sorted({Part(*part) for part in parts}, key=repr)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        list(pool.map(_compile_part, wanted, chunksize=2))
    return len(wanted)


def _compile_part(part: Part) -> None:
    kernel = kernel_of(part.row, part.row.entry, part.options, "gpu")
    kernel.attributes  # noqa: B018  (compiles now)
