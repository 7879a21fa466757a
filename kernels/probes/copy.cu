// Idea:          Each number is read once and written once: nothing is reused, so no cache helps.
// Changes from:  nothing
// Shapes:        x (count,), out (count,) float4
// Launch:        copy: grid (ceil(count/THREADS)), block (THREADS)
// Needs:         sm_50; 1 <= THREADS <= 1024; x and out at multiples of 16 bytes
// Expect:        beyond the size of L2, device memory sets the time: 32 bytes a thread
// Limits:        count < 2^31

#ifndef THREADS
#define THREADS 256  // threads a block
#endif

extern "C" __global__ void __launch_bounds__(THREADS) copy(
    const float4* x,  // (count,)
    float4* out,      // (count,)
    int count)
{
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) out[i] = x[i];
}
