"""Runs one PTX instruction on a GPU: a generated kernel loads its operands, executes it, stores.

Operands and results travel as one 64-bit word a lane, whatever their type.
"""

import cupy
import numpy as np
from kernelscope.isa import table as isa

from .isa_oracle import bits_of

# an immediate operand that the instruction demands: opcode -> {operand index: value}
IMMEDIATE = {"lop3.b32": {3: 0xCA}}


def register(kind):
    """The declared type of a register that holds a PTX type."""
    if kind == "pred":
        return ".pred"
    return kind_name(kind, max(16, bits_of(kind)))


def kind_name(kind, width):
    return f".{kind}" if kind in ("f32", "f64") else f".b{width}"


def kernel_text(opcode):
    """A whole PTX module with one entry `run(in0, in1, ..., out0, ..., count)`."""
    operation = isa.lookup(opcode)
    sources = operation.sources + ("pred",) * operation.reads_carry
    results = operation.results + ("pred",) * operation.writes_carry
    names = [f"in{i}" for i in range(len(sources))] + [f"out{i}" for i in range(len(results))]
    body = [*_index(len(names))]
    for i, kind in enumerate(sources):
        body += [f".reg {register(kind)} a{i};", *_load(f"a{i}", kind, f"in{i}")]
    for i, kind in enumerate(results):
        body.append(f".reg {register(kind)} d{i};")
    body += _instruction(operation)
    for i, kind in enumerate(results):
        body += _store(f"d{i}", kind, f"out{i}")
    parameters = ", ".join(f".param .u64 {name}" for name in [*names, "count"])
    lines = "\n  ".join(body)
    return (
        ".version 8.0\n.target sm_90\n.address_size 64\n"
        f".visible .entry run({parameters})\n{{\n  {lines}\nDONE: ret;\n}}\n"
    )


def _index(count):
    return [
        ".reg .u32 %t, %n, %b; .reg .u64 %o, %p, %w, %c; .reg .pred %q; .reg .u16 %h;",
        "mov.u32 %t, %tid.x; mov.u32 %n, %ntid.x; mov.u32 %b, %ctaid.x;",
        "mad.lo.u32 %t, %b, %n, %t; cvt.u64.u32 %o, %t;",
        "ld.param.u64 %c, [count]; setp.ge.u64 %q, %o, %c; @%q bra DONE;",
        "shl.b64 %o, %o, 3;",
    ]


def _load(name, kind, parameter):
    address = f"ld.param.u64 %p, [{parameter}]; add.u64 %p, %p, %o;"
    if kind == "pred":
        return [address, f"ld.global.u32 %t, [%p]; setp.ne.u32 {name}, %t, 0;"]
    width = bits_of(kind)
    if width == 8:
        return [address, f"ld.global.{'s8' if kind == 's8' else 'u8'} {name}, [%p];"]
    return [address, f"ld.global{kind_name(kind, width)} {name}, [%p];"]


def _store(name, kind, parameter):
    address = f"ld.param.u64 %p, [{parameter}]; add.u64 %p, %p, %o;"
    if kind == "pred":
        return [address, f"selp.u64 %w, 1, 0, {name}; st.global.u64 [%p], %w;"]
    width = bits_of(kind)
    suffix = ".u8" if width == 8 else kind_name(kind, width)
    return [address, f"st.global{suffix} [%p], {name};"]


def _instruction(operation):
    fixed = IMMEDIATE.get(operation.name, {})
    operands = [str(fixed.get(i, f"a{i}")) for i in range(len(operation.sources))]
    pair = operation.results == ("pred", "pred")
    # on single halves setp has one result only; the kernel then returns it twice
    single = pair and operation.sources[0] in ("f16", "bf16")
    target = "d0|d1" if pair and not single else "d0"
    lines = [f"{operation.name} {target}, {', '.join(operands)};"]
    lines += ["mov.pred d1, d0;"] * single
    if operation.reads_carry:
        lines[:0] = [f"selp.u32 %t, 1, 0, a{len(operands)};", "add.cc.u32 %t, %t, -1;"]
    if operation.writes_carry:
        lines += ["addc.u32 %t, 0, 0;", "setp.ne.u32 d1, %t, 0;"]
    return lines


def run(opcode, columns):
    """The results of `opcode` for columns of Python ints (operand bits), as columns of ints.

    Raises cupy's CUDADriverError where the driver refuses the instruction.
    """
    module = cupy.cuda.function.Module()
    module.load(kernel_text(opcode).encode())
    operation = isa.lookup(opcode)
    kinds = operation.results + ("pred",) * operation.writes_carry
    count = len(columns[0])
    inputs = [cupy.asarray(np.array(column, np.uint64)) for column in columns]
    outputs = [cupy.zeros(count, np.uint64) for _ in kinds]
    arguments = (*inputs, *outputs, np.uint64(count))
    module.get_function("run")(((count + 127) // 128,), (128,), arguments)
    return [out.get().tolist() for out in outputs]
