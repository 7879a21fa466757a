"""Counters of single wgmma instructions, to be compared with Nsight Compute's.

    python kernelscope/tools/group_counters.py                     the simulator's, a line a kernel
    ncu --metrics $(python kernelscope/tools/group_counters.py --metrics) --csv \\
        python kernelscope/tools/group_counters.py --gpu           the hardware's, of an H200

Both run the kernels k0, k1, ... in the same order, one launch each, of one warp group. They differ
in one thing at a time: columns, type, A from registers, swizzle, order in memory. `--metrics` names
what may count them; `ncu --query-metrics --chips gh100` has what else there is.
"""

import argparse

from kernelscope.differential.machines import Machine
from kernelscope.differential.matrix import group_kernels
from kernelscope.differential.matrix.groups import GroupCase
from kernelscope.machine.launch import launch
from kernelscope.watch import Counters

METRICS = """
smsp__inst_executed_pipe_tensor_op_gmma.sum smsp__inst_executed_pipe_tensor_op_hmma.sum
smsp__inst_executed_pipe_tensor_op_imma.sum smsp__inst_executed_pipe_tensor.sum
sm__inst_executed_pipe_tensor.sum smsp__inst_executed.sum
smsp__inst_executed_op_shared_ld.sum l1tex__data_pipe_lsu_wavefronts_mem_shared.sum
l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum l1tex__data_bank_reads.sum
l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum
""".split()
SHOWN = ("tensor_instructions", "wgmma_shared_bytes", "shared_load_requests", "instructions")


def cases() -> list[GroupCase]:
    """The kernels, in order."""
    sizes = [GroupCase(f"m64n{n}k16.f32.bf16.bf16", 1) for n in (8, 16, 64, 128, 256)]
    forms = "m64n64k16.f16.f16.f16 m64n64k8.f32.tf32.tf32 m64n64k32.f32.e4m3.e4m3".split()
    types = [GroupCase(form, 1) for form in (*forms, "m64n64k32.s32.s8.s8")]
    form = "m64n64k16.f32.bf16.bf16"
    layouts = [GroupCase(form, swizzle) for swizzle in (0, 2, 3)]
    orders = [GroupCase(form, 1, transposed=order) for order in ((False, True), (True, False))]
    return [*sizes, *types, GroupCase(form, 1, held=True), *layouts, *orders]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gpu", action="store_true", help="launch the kernels on the GPU")
    parser.add_argument("--metrics", action="store_true", help="print the metrics for ncu")
    arguments = parser.parse_args()
    if arguments.metrics:
        print(",".join(METRICS))
        return
    chosen, machine = cases(), Machine("gpu" if arguments.gpu else "simulator")
    entries = [case.entry(f"k{i}") for i, case in enumerate(chosen)]
    module = machine.load_ptx(group_kernels.HEAD + "\n".join(entries))
    for i, case in enumerate(chosen):
        first = [one[: one.size // case.groups].copy() for one in case.arguments()]
        if arguments.gpu:
            machine.run(module, f"k{i}", (1,), (group_kernels.THREADS,), first)
            continue
        counters = Counters()
        launch(
            module, f"k{i}", (1, 1, 1), (group_kernels.THREADS, 1, 1), first, observers=(counters,)
        )
        counts = ", ".join(f"{name} {counters.totals[name]}" for name in SHOWN)
        print(f"k{i}: {case.name}: {counts}")


if __name__ == "__main__":
    main()
