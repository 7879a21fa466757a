"""Words of CUDA C in messages, and what stands for them about a kernel of Triton, in order."""

WORDS = {
    "guard the access with a bounds check": "guard the access with a mask",
    "Guard the access with a bounds check": "Guard the access with a mask",
    " (__syncwarp() is enough inside one warp)": "",
    "put __threadfence() after the lock is taken or the flag is seen, before the data is used": (
        'take the lock, or see the flag, with an atomic operation of sem="acq_rel", Triton\'s '
        "default"
    ),
    "; or __threadfence_block() after the first, before the atomic or flag that tells of it, and "
    "again after that is seen": "",
    "put __threadfence() after the first access, before the atomic or flag that tells of it, and "
    "again in the other block after that is seen, before the second access": (
        "tell of the first access, and see that it was told of, by atomic operations of "
        'sem="acq_rel", Triton\'s default'
    ),
    "before the thread that runs __threadfence() and tells of it by an atomic or a flag": (
        "before the atomic operation that tells of it"
    ),
    "__threadfence() and a flag between blocks": "an atomic operation between programs",
    "put __threadfence() and then a flag or ticket": "set a flag by an atomic operation",
    "the reader takes it, runs __threadfence(), and": "the reader takes it by one, and",
    "(`_block`, `.cta`)": '(scope="cta")',
    "the atomic without _block, or `.gpu`": 'scope="gpu", Triton\'s default',
    "__syncthreads()": "tl.debug_barrier()",
    "__syncwarp()": "tl.debug_barrier()",
    ". Use a smaller block and more blocks in the grid": ". Use a smaller num_warps",
    "(its __launch_bounds__, or its registers). Use a smaller block": "Use a smaller num_warps",
}
