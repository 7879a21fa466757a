"""Launches of small kernels under an observer, and PTX whose shared accesses are joined."""

from functools import cache

import numpy as np
from kernelscope.events import observe
from kernelscope.machine import Program
from kernelscope.module import RawModule
from kernelscope.watch import Counters
from kernelscope.watch.counters.merging import find_merges


@cache
def kernels(bodies, head="", attributes="", options=()):
    """Return {body: kernel}: one compilation holds `void k0(int* a, int* b) { body }`, k1 ...."""
    code = head + "".join(
        f'\nextern "C" __global__ void {attributes} k{at}(int* a, int* b) {{\n{body}\n}}'
        for at, body in enumerate(bodies)
    )
    module = RawModule(code=code, options=options, backend="simulator")
    module.for_debug = True  # which nearly all observers ask for: headers of seconds are read once
    return {body: module.get_function(f"k{at}") for at, body in enumerate(bodies)}


def launch(kernel, observer, *, arrays=None, grid=1, block=64, shared=0):
    """Observe a launch; return the observer. Arrays default to 256 ints counted up, 256 zeros."""
    if arrays is None:
        arrays = (np.arange(256, dtype=np.int32), np.zeros(256, np.int32))
    with observe(observer):
        kernel((grid,), (block,), tuple(arrays), shared_mem=shared)
    return observer


def run(
    body,
    observer,
    *,
    head="",
    attributes="",
    parameters="int* a, int* b",
    options=(),
    warp_order=None,
    **launched,
):
    """Observe a launch of `void k(parameters) { body }`; return the observer.

    Without a head, line 3 of the source is the body's first. The other options are launch's.
    """
    code = f'{head}\nextern "C" __global__ void {attributes} k({parameters}) {{\n{body}\n}}'
    module = RawModule(code=code, options=options, backend="simulator")
    module.for_debug = observer.build == "debug"
    kernel = module.get_function("k")
    kernel.warp_order = warp_order
    return launch(kernel, observer, **launched)


def kinds(findings):
    return [(finding.kind, finding.severity) for finding in findings]


def count(code, *arguments, threads=32, blocks=1, shared_mem=0, name="k"):
    """Counters of one launch of kernel `name`."""
    kernel = RawModule(code=code, backend="simulator").get_function(name)
    with observe(Counters()) as seen:
        kernel((blocks,), (threads,), arguments, shared_mem=shared_mem)
    return seen


def merges(body, base="mad.lo.s32 %r2, %r1, 16, %r0;"):
    """How the loads and stores of a PTX body over `s` join: one entry each, in program order."""
    text = f""".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out) {{
    .reg .b32 %r<20>; .reg .f32 %f<20>; .reg .b64 %rd<8>; .reg .pred %p<4>;
    .shared .align 4 .b8 pad[4];
    .shared .align 16 .b8 s[4096];
    mov.u32 %r0, s;
    mov.u32 %r1, %tid.x;
    setp.eq.s32 %p1, %r1, 0;
    {base}
    {body}
    ret;
}}"""
    function = Program(text).module.functions["k"]
    found = find_merges(function, {"pad": 0, "s": 16})
    accesses = [i for i in function.body if i.opcode.startswith(("ld", "st"))]
    return [found.get(id(i), "alone") for i in accesses]
