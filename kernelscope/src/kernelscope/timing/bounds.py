"""The bounds of a launch: their names, which are of units and which are waits, what to try."""

FABRIC_NAME = "L2 to DRAM"
TAIL, FEW = "tail", "few blocks"
WAITS = ("latency", "atomics", "launch and starts")  # bounds in which every unit may be idle
IDLE = (TAIL, FEW)  # SMs without a block: they have none left, or never had one
NAMES = {  # of an SM's units
    "issue": "issue",
    "fma": "FMA",
    "alu": "integer and logic",
    "fp64": "FP64",
    "mufu": "MUFU",
    "tensor": "tensor cores",
    "memory": "shared memory and L1",
    "fill": "L2 to an SM",
    "send": "an SM to L2",
    "constant": "constant cache",
    "together": "matches and sums of a warp",
}
FEWER_LAUNCHES, FEWER_BLOCKS = "fewer launches", "fewer blocks that do more"
FEWER_BYTES = "move fewer bytes: smaller types, or fewer passes over the data"
KEEP = "fewer bytes from L2: keep in registers or shared memory what is used again"
TRY = {  # none of latency, launch and starts, L2, and L2 to an SM: it depends
    "issue": "fewer instructions: simpler sums and addresses, wider loads, unrolled loops, "
    "-use_fast_math where its digits are enough",
    "FMA": "fewer products and sums; tensor cores, if they are products of matrices",
    "integer and logic": "simpler addresses and conditions, fewer selections and moves",
    "FP64": "floats, where their precision is enough",
    "MUFU": "fewer exponentials, roots, divisions and conversions",
    "tensor cores": "a smaller type, or fewer products",
    "shared memory and L1": "fewer requests: values kept in registers, fewer passes over them",
    "an SM to L2": "fewer requests: whole lines, and sums before they are stored",
    "constant cache": "let the lanes of a warp read one constant at a time",
    "matches and sums of a warp": "fewer of them: one for several values",
    "DRAM": FEWER_BYTES,
    FABRIC_NAME: FEWER_BYTES,
    "atomics": "fewer atomics: add up in a thread, a warp or a block first",
    TAIL: "blocks of equal work, as many as fill all SMs each round",
    FEW: "more blocks: cut the work finer",
}
