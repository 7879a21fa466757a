"""The compiler's own process: NVRTC, called once in a child process for each request.

    python -I -S server.py LIBNVRTC

It reads requests from standard input and writes replies to standard output until its input ends;
see `compiler.py`, which starts it. A child that compiles reads only the folders that the request
names, writes no file, and has limits on memory and processor time. So hostile source can neither
read other files nor outlive its time, and a crash of the compiler is a reply like any other.

This file runs as a script without site-packages: it imports the standard library and
`landlock.py` only.
"""

import ctypes
import json
import os
import resource
import select
import signal
import struct
import sys
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location

HEADER = struct.Struct("<QQ")  # bytes of the JSON text, bytes of the image that follows it
MOST_BYTES = 64 << 20  # of a compiled image
MOST_LOG_BYTES = 1 << 20

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_LANDLOCK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "landlock.py")


def read_exactly(file: int, count: int) -> bytes | None:
    """Read `count` bytes; None where the input ends."""
    parts = []
    while count:
        part = os.read(file, min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def message(fields: dict, image: bytes = b"") -> bytes:
    """A request or a reply: lengths, JSON text, image."""
    text = json.dumps(fields).encode()
    return HEADER.pack(len(text), len(image)) + text + image


# -- the child ------------------------------------------------------------------------------------
def confine(request: dict) -> None:
    """Give up every right that compiling does not need."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for what, most in (
        (resource.RLIMIT_AS, request["memory_bytes"]),
        (resource.RLIMIT_CPU, int(request["seconds"]) + 1),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    _landlock().allow_reading(request["readable"])


@lru_cache(maxsize=1)
def _landlock():
    """The module kernelscope.landlock; loaded by path, as this script sees no packages."""
    spec = spec_from_file_location("landlock", _LANDLOCK)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_source(nvrtc: ctypes.CDLL, request: dict) -> tuple[dict, bytes]:
    """Compile; return the fields of the reply and PTX or cubin."""
    program = ctypes.c_void_p()
    source, name = request["source"].encode(), request["name"].encode()
    code = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None)
    if code:
        return {"error": error_text(nvrtc, code), "log": ""}, b""
    expressions = [text.encode() for text in request["name_expressions"]]
    for text in expressions:
        code = code or nvrtc.nvrtcAddNameExpression(program, text)
    options = [option.encode() for option in request["options"]]
    values = (ctypes.c_char_p * len(options))(*options)
    code = code or nvrtc.nvrtcCompileProgram(program, len(options), values)
    log = fetch(nvrtc, program, "ProgramLog")[:MOST_LOG_BYTES]
    fields = {"error": "", "log": log.decode(errors="replace"), "lowered": []}
    for text in expressions if not code else ():
        mangled = ctypes.c_char_p()
        code = code or nvrtc.nvrtcGetLoweredName(program, text, ctypes.byref(mangled))
        fields["lowered"].append((mangled.value or b"").decode(errors="replace"))
    if code:
        return fields | {"error": error_text(nvrtc, code)}, b""
    image = fetch(nvrtc, program, "CUBIN" if request["binary"] else "PTX")
    if len(image) > MOST_BYTES:
        return fields | {"error": f"{len(image)} bytes of compiled code, which is too much"}, b""
    return fields, image


def error_text(nvrtc: ctypes.CDLL, code: int) -> str:
    return nvrtc.nvrtcGetErrorString(code).decode()


def fetch(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    """Return the output of nvrtcGetPTX and the like, with the NUL at the end of a text."""
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(max(size.value, 1))
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw[: size.value]


def run_child(nvrtc: ctypes.CDLL, request: dict, out: int) -> None:
    """Compile, write the reply to `out`, end the process."""
    status = 1
    try:
        os.chdir(request["working_folder"])
        confine(request)
        write_all(out, message(*compile_source(nvrtc, request)))
        status = 0
    finally:
        os._exit(status)


# -- the server -----------------------------------------------------------------------------------
def serve(nvrtc: ctypes.CDLL) -> None:
    """Answer requests until the input ends."""
    _landlock()  # before the first child, which may not write what Python keeps of it
    while True:
        header = read_exactly(0, HEADER.size)
        if header is None:
            return
        request = json.loads(read_exactly(0, HEADER.unpack(header)[0]))
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            run_child(nvrtc, request, writing)
        os.close(writing)
        reply = gather(reading, child)
        os.close(reading)
        status = os.waitpid(child, 0)[1]
        if status:
            reply = message({"ended": os.waitstatus_to_exitcode(status)})
        write_all(1, reply)


def gather(reading: int, child: int) -> bytes:
    """Return what the child writes; end with it where the reader of the reply is gone."""
    poll, parts = select.poll(), []
    poll.register(reading, select.POLLIN)
    poll.register(0, 0)  # reports a hang-up
    while True:
        events = dict(poll.poll())
        if 0 in events:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            sys.exit(0)
        part = os.read(reading, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)


def load(path: str) -> ctypes.CDLL:
    """Load NVRTC and the library of built-in functions that it would load while it compiles."""
    folder = os.path.dirname(path)
    for name in sorted(os.listdir(folder)) if folder else ():
        if name.startswith("libnvrtc-builtins.so"):
            ctypes.CDLL(os.path.join(folder, name), ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(path)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc


if __name__ == "__main__":
    serve(load(sys.argv[1]))
