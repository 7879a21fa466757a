"""Listings of a lesson: kernel source, diffs, steps of a trace, facts of the machine."""

import difflib
import platform
import textwrap
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from kernelscope import gpu_count, resolve_backend
from kernelscope.errors import InputError

from attn_course.figures import table
from attn_course.ladder.headers import KERNEL_FOLDER, kernel_path


class Listing:
    """Text that a notebook shows as a highlighted code block, and a terminal as it is.

    language: as JupyterLab's Markdown names it; it colours "c++", not "cpp".
    """

    def __init__(self, text: str, language: str):
        self.text = text
        self.language = language

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        # JupyterLab's C++ takes all that follows `:::` of inline PTX for a string.
        text = self.text.replace(":::", ": : :") if self.language == "c++" else self.text
        return f"```{self.language}\n{text}\n```"


def show_source(kernel: str, start: str, end: str | None = None, **defined: int) -> Listing:
    """Show lines of a kernel file below a comment that says which they are.

    Args:
        kernel: as in ``"01_scores_naive"``.
        start: text of the first line to show; the first line that holds it counts.
        end: text of the last line, looked for from there on; default: one line only.
        defined: values of macros, as in ``K_TILE=2``; the lines under `#if` that these values
            leave out are not shown, nor are the directives.

    Raises:
        ValueError: no line holds the text.
    """
    lines = kernel_path(kernel).read_text(encoding="utf-8").splitlines()
    chosen = line_numbers(kernel, start, end or start)
    shown = [lines[n - 1].rstrip() for n in chosen]
    where = f"line {chosen[0]}" if len(chosen) == 1 else f"lines {chosen[0]} to {chosen[-1]}"
    text = textwrap.dedent("\n".join(_compiled(shown, defined) if defined else shown))
    file = kernel_path(kernel).relative_to(KERNEL_FOLDER).as_posix()
    return Listing(f"// kernels/{file}, {where}\n{text}", "c++")


def _compiled(lines: Iterable[str], defined: Mapping[str, int]) -> Iterator[str]:
    """The lines that a compiler sees, where conditions compare a macro of `defined`."""
    kept = []  # of each open #if: whether its present branch is compiled
    for line in lines:
        directive = line.split("//")[0].split()
        if directive[:1] == ["#if"]:
            name, _, value = directive[1:]
            kept.append(defined[name] == int(value))
        elif directive[:1] == ["#else"]:
            kept[-1] = not kept[-1]
        elif directive[:1] == ["#endif"]:
            kept.pop()
        elif all(kept):
            yield line


def line_numbers(kernel: str, start: str, end: str) -> range:
    """Return the numbers of a kernel's lines from the first that holds `start` to the next that
    holds `end`.

    Raises:
        ValueError: no line holds the text.
    """
    lines = kernel_path(kernel).read_text(encoding="utf-8").splitlines()

    def find(text: str, since: int) -> int:
        for number in range(since, len(lines) + 1):
            if text in lines[number - 1]:
                return number
        raise InputError(f"{kernel}: no line from {since} on holds {text!r}")

    first = find(start, 1)
    return range(first, find(end, first) + 1)


def show_diff(before: str, after: str, *, context: int = 1) -> Listing:
    """Show a unified diff of two kernels' code, without their header comments."""
    texts = [
        _without_header(kernel_path(name).read_text(encoding="utf-8")) for name in (before, after)
    ]
    lines = difflib.unified_diff(*texts, f"{before}.cu", f"{after}.cu", n=context, lineterm="")
    # A hunk's line numbers would be those of the files without their headers.
    shown = ("@@" if line.startswith("@@") else line.rstrip() for line in lines)
    return Listing("\n".join(shown), "diff")


def _without_header(text: str) -> list[str]:
    lines = text.splitlines()
    first = next((n for n, line in enumerate(lines) if line.strip() and line[:2] != "//"), 0)
    return lines[first:]


def show_steps(trace, first: int = 0, last: int | None = None, *, width: int = 56) -> Listing:
    """Show the steps of a trace as a table: line, source text, and the first thread's values.

    Args:
        trace: a Tracer after a run, or one of its recordings.
        first, last: steps to show, both included; default: to the end.
        width: characters of source text; longer lines are cut.
    """
    chosen = trace.rows()[first : None if last is None else last + 1]
    rows = [
        (str(step), str(line), _shortened(text.split("  //")[0], width), seen)
        for step, line, text, seen in chosen
    ]
    heads = ("step", "line", "source", "what happened")
    return Listing(table(heads, rows, right=(0, 1), whole=(2,)), "text")


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def machine_facts(backend: str | None = None) -> dict[str, str]:
    """Return the backend, the device and the versions of this machine."""
    import cupy
    from cupy.cuda import nvrtc

    chosen = resolve_backend(backend)
    device = "this CPU, through the simulator"
    if chosen == "gpu":
        name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"]
        device = name.decode() if isinstance(name, bytes) else str(name)
    return {
        "backend": chosen,
        "kernels run on": device,
        "GPUs that CuPy sees": str(gpu_count()),
        "CUDA compiler": "NVRTC " + ".".join(map(str, nvrtc.getVersion())),
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "CuPy": cupy.__version__,
    }


def show_machine(backend: str | None = None) -> None:
    """Print :func:`machine_facts`, one a line."""
    for name, value in machine_facts(backend).items():
        print(f"{name:<20} {value}")
