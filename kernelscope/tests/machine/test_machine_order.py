"""No result of a race-free kernel depends on the order in which warps and blocks run."""

from kernelscope.machine import launch
from machine_harness import run, zeros

RACES = r"""
extern "C" {
__global__ void last_warp(int* out) {        // the warps of a block write one number
    out[blockIdx.x] = threadIdx.x / 32;
}
__global__ void last_block(int* out) {       // and so do the blocks
    out[0] = blockIdx.x;
}
}
"""


def test_the_result_of_a_race_depends_on_the_order(monkeypatch):
    monkeypatch.setattr(launch, "LANES_PER_CHUNK", 256)
    for name, grid in (("last_warp", 1), ("last_block", 12)):
        seen = set()
        for seed in range(1, 7):
            out, again = zeros(grid), zeros(grid)
            for into in (out, again):
                run(RACES, name, grid, 256, into, warp_order=seed)
            assert out.tolist() == again.tolist()
            seen.add(int(out[0]))
        assert len(seen) > 1, name
