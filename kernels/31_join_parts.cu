// Idea:          Attention over some of the keys is a part. Two parts over different keys become
//                one: each is weighted by its share of all exponentials, which the log-sum-exp of
//                the two say.
// Changes from:  nothing
// Shapes:        a and out (heads, rows, d), a_lse and out_lse float32 (heads, rows);
//                b (heads, part, d), b_lse float32 (heads, part): of the rows from `first` on;
//                row-major, types as A_TYPE, B_TYPE and OUT_TYPE say
// Launch:        join_parts: block (LANES, GROUPS), LANES along the columns; grid
//                (ceil(heads*rows/GROUPS)), of part rows a head where out is a
// Needs:         sm_80; first + part <= rows; out may be a where their types are equal, out_lse may
//                be a_lse
// Expect:        as long as a copy of a and b takes: a few operations for each number
// Limits:        two parts a launch: of more parts all but the last joins are in float32

#ifndef A_TYPE
#define A_TYPE 0  // elements of a are 0: float32, 1: bfloat16, 2: half
#endif
#ifndef B_TYPE
#define B_TYPE 0  // the same of b
#endif
#ifndef OUT_TYPE
#define OUT_TYPE 0  // the same of out
#endif
#ifndef LANES
#define LANES 16  // threads along the columns, eight columns each
#endif
#ifndef GROUPS
#define GROUPS 16  // rows a block
#endif

#include "include/octets.cuh"
#include "include/online_softmax.cuh"

template <int type> struct Named { using T = float; };
template <> struct Named<1> { using T = __nv_bfloat16; };
template <> struct Named<2> { using T = __half; };
using A = Named<A_TYPE>::T;
using B = Named<B_TYPE>::T;
using Out = Named<OUT_TYPE>::T;

extern "C" __global__ void __launch_bounds__(LANES* GROUPS) join_parts(
    const A* a,              // (heads, rows, d)
    const float* a_lse,      // (heads, rows)
    const B* __restrict__ b,          // (heads, part, d)
    const float* __restrict__ b_lse,  // (heads, part)
    Out* out,        // (heads, rows, d); may be a: a thread reads its columns before it writes
    float* out_lse,  // (heads, rows); may be a_lse
    int heads, int rows, int first, int part, int d)
{
    const bool in_place = (const void*)out == (const void*)a;
    const int span = in_place ? part : rows;  // rows of a head that this launch writes
    const long long number = (long long)blockIdx.x * GROUPS + threadIdx.y;
    const bool inside = number < (long long)heads * span;
    const long long head = number / span;
    const int row = (int)(number % span) + (in_place ? first : 0);
    const int of_part = row - first;
    const bool joined = inside && of_part >= 0 && of_part < part;
    const long long at = head * rows + row;
    const long long from = head * part + of_part;

    const float a_end = inside ? a_lse[at] : MINUS_INFINITY;
    const float b_end = joined ? b_lse[from] : MINUS_INFINITY;
    const float top = fmaxf(a_end, b_end);
    const bool any = top > MINUS_INFINITY;  // has the row seen a key?
    float a_share = any ? expf(a_end - top) : 0.0f;
    float b_share = any ? expf(b_end - top) : 0.0f;
    const float sum = a_share + b_share;  // 1 to 2, or 0
    if (any) a_share /= sum, b_share /= sum;
    __syncthreads();  // barrier: a lane would read the new a_lse where out_lse is a_lse
    if (!inside) return;
    if (threadIdx.x == 0) out_lse[at] = any ? top + logf(sum) : MINUS_INFINITY;

    a += at * d;
    out += at * d;
    b += from * d;
    const bool vector = d % 8 == 0 && ((size_t)a | (size_t)b | (size_t)out) % 16 == 0;
    for (int column = 8 * threadIdx.x; column < d; column += 8 * LANES) {
        Octet octet = load_octet(a + column, d - column, vector);
        if (joined) {
            const Octet other = load_octet(b + column, d - column, vector);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                octet.x[i] = a_share * octet.x[i] + b_share * other.x[i];
            }
        }
        store_octet(out + column, octet, d - column, vector);
    }
}
