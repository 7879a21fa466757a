"""Words of CUDA C in messages, and what stands for them about a kernel of Numba, in order."""

WORDS = {
    "declare the array with __align__": "give the array its alignment=",
    "Declare the variable __device__ if kernels are to write it": "Write to an argument instead",
    "__constant__ memory is set by the host, before the launch": "cuda.const arrays are constants",
    "__constant__ memory": "constant memory",
    "its __launch_bounds__, or its registers": "launch_bounds= of @cuda.jit, or its registers",
    "__syncthreads()": "cuda.syncthreads()",
    "__syncwarp()": "cuda.syncwarp()",
    "__threadfence()": "cuda.threadfence()",
    "__threadfence_block()": "cuda.threadfence_block()",
}
