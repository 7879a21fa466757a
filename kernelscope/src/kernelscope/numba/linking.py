"""Several PTX texts as one module, as a linker joins them."""

import re
from collections.abc import Sequence

_HEAD = re.compile(r"^\s*\.(?:version|target|address_size)\b.*$", re.MULTILINE)
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+("[^"]*").*$', re.MULTILINE)
_SECTION = re.compile(r"^\s*\.section\s+\S+\s*\{[^}]*\}", re.MULTILINE)
_FUNCTION = r"\s+\.func\s+(?:\([^)]*\)\s*)?(\w+)"  # its linkage stands before it
_DEFINED = re.compile(r"^\.(?:visible|weak)" + _FUNCTION, re.MULTILINE)
_DECLARED = re.compile(r"^\.extern(" + _FUNCTION + ")", re.MULTILINE)
_POSITION = re.compile(r"(\.loc\s+|\binlined_at\s+)(\d+)")


def linked(parts: Sequence[str]) -> str:
    """Return one PTX text with the functions and variables of all parts.

    The version, the target and the debug information are those of the first part: of the others
    the source lines are kept, the names of local variables are not.
    """
    first, *others = parts
    files = {path: int(number) for number, path in _FILE.findall(first)}
    texts = [first]
    for number, text in enumerate(others, start=1):
        numbers = {}
        for own, path in _FILE.findall(text):
            numbers[own] = files.setdefault(path, max(files.values(), default=0) + 1)
        text = _SECTION.sub("", _HEAD.sub("", _FILE.sub("", text)))
        text = _POSITION.sub(lambda m, known=numbers: f"{m[1]}{known.get(m[2], m[2])}", text)
        texts.append(text.replace("$L__", f"$L{number}__"))
    known = {path for _, path in _FILE.findall(first)}
    texts += [f".file {number} {path}" for path, number in files.items() if path not in known]
    whole = "\n".join(texts) + "\n"
    defined = set(_DEFINED.findall(whole))
    return _DECLARED.sub(lambda m: (".visible" if m[2] in defined else ".extern") + m[1], whole)
