"""Triton's compiler, stopped at the PTX: it needs no GPU and no ptxas."""

import hashlib
import json
import linecache
import re
from pathlib import Path

from ..compile import keep, kept_path, read_kept
from ..errors import CompileError, CompilerMissingError, Diagnostic, InputError

# LLVM counts lines inside inline assembly on from the statement that it belongs to.
_ASSEMBLY = re.compile(r"// begin inline asm.*?// end inline asm", re.DOTALL)
_LINE = re.compile(r"^\s*\.loc\s[^\n]*\n", re.MULTILINE)
STAGES = ("ttir", "ttgir", "llir", "ptx")
TARGETS = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_120")
# Without a version of PTX Triton asks ptxas for one. Products and sums become fused multiply-adds,
# Triton's own default, of which it warns where nothing is said.
DEFAULTS = {"ptx_version": 87, "enable_fp_fusion": True}


def import_triton():
    """Return the package triton. Raises CompilerMissingError where it is not installed."""
    try:
        import triton
        import triton.compiler
        import triton.language
    except ImportError as error:
        raise CompilerMissingError(
            f"Triton kernels need Triton, which cannot be imported ({error}): "
            "pip install kernelscope[triton]"
        ) from error
    return triton


def backend_of(target: str):
    """Return Triton's backend for a target such as "sm_80"."""
    import_triton()
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    if target not in TARGETS:
        raise InputError(f"target is {target!r}; it must be one of {', '.join(TARGETS)}")
    return make_backend(GPUTarget("cuda", int(target[3:]), 32))


def compile_ptx(fn, signature: dict, constants: dict, attributes: dict, backend, options):
    """Return (PTX text, metadata) of a specialised kernel.

    fn: the JITFunction; the rest as Triton's launcher makes it. metadata: "name", "shared" (bytes
    of a block), "num_warps", "global_scratch_size" and more of Triton's. Kept in the folder of
    KERNELSCOPE_COMPILED. Raises CompileError that names the line.
    """
    triton = import_triton()
    from triton._C import libtriton

    source = triton.compiler.ASTSource(fn, signature, constants, attributes)
    settings = sorted(libtriton.get_cache_invalidating_env_vars().items())
    key = triton.__version__, file_of(fn), source.hash(), repr(options), backend.target, settings
    path = kept_path(hashlib.sha256(repr(key).encode()).hexdigest())
    kept = read_kept(path)
    if kept is None:
        metadata, text = _compile(fn, source, backend, options)
        kept = json.loads(json.dumps(metadata, default=str)), text.encode()
        keep(path, *kept)
    return kept[1].decode(), kept[0]


def _compile(fn, source, backend, options) -> tuple[dict, str]:
    from triton._C.libtriton import ir
    from triton.backends.compiler import Language

    context, stages, metadata = ir.context(), {}, dict(vars(options))
    ir.load_dialects(context)
    backend.load_dialects(context)
    backend.add_stages(stages, options, Language.TRITON)
    parts = backend.get_codegen_implementation(options), backend.get_module_map()
    try:
        module = source.make_ir(backend.target, options, *parts, context)
        for stage in STAGES:
            module = stages[stage](module, metadata)
            if stage == "ttgir":
                metadata["ttgir"] = str(module)
    except Exception as error:  # Triton's compiler raises exceptions of any type
        raise compile_error(fn, error) from error
    return metadata, _ASSEMBLY.sub(lambda found: _LINE.sub("", found[0]), module)


def file_of(fn) -> str:
    """The file that a JITFunction stands in."""
    return fn.fn.__code__.co_filename


def text_of(file: str) -> str:
    """The text of a Python file, or of a notebook's cell."""
    return "".join(linecache.getlines(file))


def definition_line(fn) -> int:
    """The line of the file with the word `def`, behind the decorators."""
    lines = enumerate(fn.raw_src, fn.starting_line_number)
    return next((at for at, line in lines if re.match(r"\s*def\s", line)), 0)


def other_files(ptx: str, own: str) -> tuple[tuple[str, str], ...]:
    """(name, text) of the files that code was inlined from, the kernel's and Triton's aside."""
    package = str(Path(import_triton().__file__).parent)
    files = re.findall(r'^\s*\.file\s+\d+\s+"([^"]+)"', ptx, re.MULTILINE)
    others = [file for file in files if file != own and not file.startswith(package)]
    return tuple((Path(file).name, text_of(file)) for file in others)


def compile_error(fn, error: Exception) -> CompileError:
    """Return the error for what Triton's compiler raised: function, line, text and reason."""
    name, file = fn.__name__, file_of(fn)
    chain = [error]  # the kernel's error, then those of the functions that it calls
    while hasattr(chain[-1].__cause__, "node"):
        chain.append(chain[-1].__cause__)
    inner = chain[-1]
    reason = getattr(inner, "error_message", None) or inner.__cause__ or inner
    reason = " ".join(str(reason).split()) or type(inner).__name__
    reason = re.sub(r"""^\w+\((['"])(.*)\1\)$""", r"\2", reason)  # of an exception's repr
    places = [place for one in chain if (place := _place(fn, one))[0]]
    line, text = places[-1] if places else (0, "")
    where = f"{Path(file).name}:{line} `{text}`" if line else Path(file).name
    diagnostic = Diagnostic(file, line, "error", reason, (text,) if text else ())
    message = f"Triton cannot compile {name}: {where}: {reason}"
    return CompileError(message, (diagnostic,), str(error))


def _place(fn, error: Exception) -> tuple[int, str]:
    """Line of the kernel's file and its text; (0, "") of an error in another file."""
    source, node = getattr(error, "src", None), getattr(error, "node", None)
    if not isinstance(source, str) or not hasattr(node, "lineno"):
        return 0, ""
    text = source.split("\n")[node.lineno - 1].strip()
    if source == fn.src:
        return definition_line(fn) + node.lineno - 1, text
    before, found, _ = text_of(file_of(fn)).partition(source.strip())
    return (before.count("\n") + node.lineno, text) if found else (0, "")
