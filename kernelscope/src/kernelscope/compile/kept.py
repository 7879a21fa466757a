"""Compiled code that is kept in a folder, for processes that compile the same again.

The environment variable KERNELSCOPE_COMPILED names the folder; without it nothing is kept. Test
runs set it, so that their workers and the next run share what one has compiled.
"""

import hashlib
import json
import os
import struct
import tempfile
import zlib
from functools import lru_cache
from pathlib import Path

from ..settings import setting
from .server import HEADER, message

FOLDER = "KERNELSCOPE_COMPILED"


def kept_path(name: str) -> Path | None:
    """Return the file of this name in the folder of what is kept; None where nothing is kept."""
    folder = setting(FOLDER)
    return Path(folder, name) if folder else None


def kept_file(library: str, request: dict, headers: tuple) -> Path | None:
    """Return the file for the reply to a request; None where nothing is kept.

    Its name is a hash of all that the reply depends on: the request but for its limits, the
    headers that the source includes from its own folders, the compiler, and the code that calls it.
    """
    if not setting(FOLDER):
        return None
    left_out = {"seconds", "memory_bytes"}
    if os.path.isabs(request["name"]):  # then only the debug build mentions the current folder
        left_out.add("working_folder")
    asked = {name: value for name, value in request.items() if name not in left_out}
    text = json.dumps([asked, headers, _compiler(library)], sort_keys=True)
    return kept_path(hashlib.sha256(text.encode()).hexdigest())


@lru_cache(maxsize=4)
def _compiler(library: str) -> list:
    state = os.stat(library)
    server = Path(__file__).with_name("server.py").read_text(encoding="utf-8")
    return [library, state.st_mtime_ns, state.st_size, server]


def read_kept(path: Path | None) -> tuple[dict, bytes] | None:
    """Return the reply that a file holds; None where there is none, or it is damaged."""
    if path is None:
        return None
    try:
        data = zlib.decompress(path.read_bytes())
        start = HEADER.size + HEADER.unpack_from(data)[0]
        return json.loads(data[HEADER.size : start]), data[start:]
    except (OSError, zlib.error, ValueError, struct.error):
        return None


def keep(path: Path | None, reply: dict, image: bytes) -> None:
    """Keep a reply. A folder that cannot be written to keeps nothing."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(zlib.compress(message(reply, image), 1))
        os.replace(file.name, path)
    except OSError:
        pass
