"""Several PTX texts as one module."""

from kernelscope.numba.linking import linked
from kernelscope.ptx.parser import parse

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
KERNEL = (
    HEAD
    + """
.extern .func (.param .b32 r) twice (.param .b32 v);
.visible .entry k () {
    .reg .b32 %r<3>;
    .loc 1 4 1
    $L__tmp0:
    mov.u32 %r1, 1;
    ret;
}
.file 1 "/a/kernel.py"
.section .debug_info { .b8 7 }
"""
)
FUNCTION = (
    HEAD
    + """
.visible .func (.param .b32 r) twice (.param .b32 v) {
    .reg .b32 %r<3>;
    .loc 1 9 1
    mov.u32 %r1, 1;
    $L__tmp0:
    .loc 2 5 1
    ret;
}
.file 1 "/a/other.py"
.file 2 "/a/kernel.py"
.section .debug_info { .b8 8 }
"""
)


def test_functions_keep_their_files_labels_and_bodies():
    module = parse(linked([KERNEL, FUNCTION]))
    assert module.files == {1: "/a/kernel.py", 2: "/a/other.py"}
    assert module.sections[".debug_info"].split() == [".b8", "7"]
    places = [(one.position.file, one.position.line) for one in module.functions["twice"].body]
    assert places == [(2, 9), (1, 5)]
    assert module.functions["twice"].defined and len(module.functions["k"].body) == 2
    labels = [name for function in module.functions.values() for name in function.labels]
    assert len(set(labels)) == 2


def test_one_part_stays_as_it_is():
    assert linked([KERNEL]).strip() == KERNEL.strip()
