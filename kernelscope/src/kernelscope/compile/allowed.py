"""The check of includes: files of the source's own folder, of `-I` folders, CUDA's headers."""

import os
import re
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate

from ..errors import CompileError
from .closure import Closure, read_text, roots
from .includes import real_folders
from .messages import describe_refusal

_TOKEN = re.compile(
    r"""
      (?P<comment> /\*.*?(?:\*/|\Z) | //[^\n]* )
    | (?P<raw> (?:u8|[uUL])?R"(?P<delimiter>[^()\\\s"]{0,16})\( (?:.*?\)(?P=delimiter)"|.*) )
    | [A-Za-z_]\w* | \.?\d(?:'?[\w.])*
    | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*'
    """,
    re.DOTALL | re.VERBOSE,
)
_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_BLANK = r"[ \t\v\f\0]*"  # a NUL stands for a line end inside a comment
_DIRECTIVE = re.compile(
    rf"^{_BLANK}(?:\#|%:|\?\?=){_BLANK}(?:include_next|include|import|embed)\b{_BLANK}([^\n]*)"
    rf"|\b__has_(?:include|include_next|embed){_BLANK}\({_BLANK}([^\n]*)",
    re.MULTILINE,
)
_LITERAL = re.compile(r'<([^>\n]+)>|"([^"\n]+)"')


def check_includes(
    source: str, name: str, own: tuple[str, ...], system: tuple[str, ...]
) -> Closure:
    """Raise CompileError for an include of a file that the source may not read.

    Return (path, text) of the others from `own` folders, in quotes or in angle brackets.

    own: the folders of the caller (the source's own, those of `-I`); system: of CUDA's headers,
    which are trusted and not looked into. Headers of `own` folders are checked as the source is. A
    file is judged by where it really is, links followed. An include whose file is named by a macro
    is refused: what it names is not known here.
    """
    trusted = roots(real_folders(system))
    allowed = roots(own) + trusted
    queue = [(source, name, os.path.dirname(os.path.abspath(name)))]
    seen: dict[str, str] = {}
    while queue:
        text, file, beside = queue.pop()
        for line, operand in includes_of(text):
            match = _LITERAL.match(operand)
            if match is None:
                message = f"the compiler is to include {operand.strip()[:60] or 'nothing'!r}"
                hint = "write the name of the file itself, in quotes or angle brackets"
                raise _refusal(file, line, message, text, hint)
            wanted = match[1] or match[2]
            found = _first(wanted, (*own, *system) if match[1] else (beside, *own, *system))
            if found is None or found.startswith(trusted):
                continue  # not there: the compiler says so better
            if not found.startswith(allowed) or not os.path.isfile(found):
                message = f'"{wanted}" is not in a folder that this source may read'
                hint = (
                    "headers come from the source's own folder and from CUDA's; name any other "
                    f"folder with the compiler's option -I{os.path.dirname(wanted) or '.'}"
                )
                raise _refusal(file, line, message, text, hint)
            if found not in seen:
                seen[found] = read_text(found)
                queue.append((seen[found], found, os.path.dirname(found)))
    return tuple(seen.items())


@lru_cache(maxsize=128)  # kernels have most headers in common
def includes_of(text: str) -> tuple[tuple[int, str], ...]:
    """(line, what follows) of every include directive and every question for a header.

    Comments and strings are left out; lines that end in a backslash are joined.
    """
    pieces = _SPLICE.split(text)
    joined = "".join(pieces)
    if not any(word in joined for word in ("include", "import", "embed")):
        return ()
    splices = list(accumulate(map(len, pieces[:-1])))
    code = _TOKEN.sub(_blanked, joined)
    found, line, at = [], 1, 0
    for match in _DIRECTIVE.finditer(code):
        line += code.count("\n", at, match.start()) + code.count("\0", at, match.start())
        at = match.start()
        found.append((line + bisect_right(splices, at), match[1] or match[2] or ""))
    return tuple(found)


def without_comments(text: str) -> str:
    """Return a source with blanks in the places of comments and raw strings."""
    return _TOKEN.sub(_blanked, text).replace("\0", "\n")


def _blanked(match: re.Match) -> str:
    """Comments and raw strings as blanks of the same length."""
    if match["comment"] is None and match["raw"] is None:
        return match[0]
    return re.sub(r"[^\n]", " ", match[0]).replace("\n", "\0")


def _first(wanted: str, folders: tuple[str, ...]) -> str | None:
    """The real path of the first file of this name; None where there is none."""
    for folder in folders:
        path = os.path.realpath(os.path.join(folder, wanted))
        if os.path.exists(path) and not os.path.isdir(path):
            return path
    return None


def _refusal(file: str, line: int, message: str, text: str, hint: str) -> CompileError:
    return describe_refusal(file, line, message, text.split("\n")[line - 1], hint)
