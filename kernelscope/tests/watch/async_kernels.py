"""Correct kernels with bulk copies and products, each after another idiom of the PTX manual.

KERNELS: name -> (body, block, grid). Each kernel gets `int* x, float* out`, of 4,096 elements.
"""

TILE = "    __shared__ __align__(1024) int4 tile[4][128]; __shared__ u64 full[4], empty[4];\n"
BEGIN = (
    TILE
    + """    const int t = threadIdx.x, warp = t / 32;
    if (t == 0) {
        for (int i = 0; i < 4; ++i) { start(full + i, 1); start(empty + i, ARRIVALS); }
        started();
    }
    __syncthreads();
"""
)
FILL = """    if (warp == 4) {
        for (int k = 0; t == 128 && k < 7; ++k) {
            wait(empty + k % 3, k / 3 & 1 ^ 1);
            expect(full + k % 3, 2048);
            load(tile[k % 3], x + 512 * k, 2048, full + k % 3);
        }
        return;
    }
"""
KERNELS = {
    "a ring, every thread releases": (
        BEGIN.replace("ARRIVALS", "128") + FILL + """    int sum = 0;
    for (int k = 0; k < 7; ++k) {
        wait(full + k % 3, k / 3 & 1);
        sum += tile[k % 3][t].x;
        arrive(empty + k % 3);
    }
    out[t] = sum;""", 160, 1,
    ),
    "a ring, a lane of each warp releases": (
        BEGIN.replace("ARRIVALS", "4") + FILL + """    int sum = 0;
    for (int k = 0; k < 7; ++k) {
        wait(full + k % 3, k / 3 & 1);
        sum += tile[k % 3][127 - t].x;
        __syncwarp();
        if (t % 32 == 0) arrive(empty + k % 3);
    }
    out[t] = sum;""", 160, 1,
    ),
    "products of a ring, a lane of each warp releases": (
        BEGIN.replace("ARRIVALS", "4") + FILL + """    float c[4] = {};
    for (int k = 0; k < 7; ++k) {
        wait(full + k % 3, k / 3 & 1);
        READY; multiply(c, tile_of(tile[k % 3]), tile_of(tile[k % 3]), 1); COMMIT; DONE(0);
        if (t % 32 == 0) arrive(empty + k % 3);
    }
    out[t] = c[0] + c[3];""", 160, 1,
    ),
    "products of a ring, a thread releases for its warp group": (
        BEGIN.replace("ARRIVALS", "1") + FILL + """    float c[4];
    for (int k = 0; k < 7; ++k) {
        wait(full + k % 3, k / 3 & 1);
        READY; multiply(c, tile_of(tile[k % 3]), tile_of(tile[k % 3]), k > 0); COMMIT; DONE(0);
        if (t == 0) arrive(empty + k % 3);
    }
    out[t] = c[0] + c[3];""", 160, 1,
    ),
    "one group of products left open": (
        BEGIN.replace("ARRIVALS", "128") + FILL + """    float c[4] = {};
    for (int k = 0; k < 7; ++k) {
        wait(full + k % 3, k / 3 & 1);
        READY; multiply(c, tile_of(tile[k % 3]), tile_of(tile[k % 3]), 1); COMMIT; DONE(1);
        if (k > 0) arrive(empty + (k - 1) % 3);
    }
    DONE(0);
    out[t] = c[0];""", 160, 1,
    ),
    "a fence once, then products of one shape": (
        BEGIN.replace("ARRIVALS", "1") + """    float c[4];
    if (t == 0) { expect(full, 8192); load(tile, x, 8192, full); }
    wait(full, 0);
    READY;
    for (int k = 0; k < 4; ++k) {
        multiply(c, tile_of(tile[k]), tile_of(tile[k]), k);
        COMMIT;
    }
    DONE(2); DONE(0);
    out[t] = c[1];""", 128, 1,
    ),
    "refilled behind a block barrier": (
        BEGIN.replace("ARRIVALS", "1") + """    int sum = 0;
    if (t == 0) { expect(full, 2048); load(tile[0], x, 2048, full); }
    for (int k = 0; k < 5; ++k) {
        if (t == 0 && k < 4) {
            expect(full + (k + 1) % 2, 2048);
            load(tile[(k + 1) % 2], x + 512 * k, 2048, full + (k + 1) % 2);
        }
        wait(full + k % 2, k / 2 & 1);
        sum += tile[k % 2][t].y;
        __syncthreads();
    }
    out[t] = sum;""", 128, 1,
    ),
    "two places for what leaves": (
        BEGIN.replace("ARRIVALS", "1") + """    for (int k = 0; k < 5; ++k) {
        if (t == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        __syncthreads();
        tile[k % 2][t] = make_int4(k, t, 0, 0);
        FENCE;
        __syncthreads();
        if (t == 0) store(x + 512 * k, tile[k % 2], 2048);
    }
    if (t == 0) SOURCE_READ;""", 128, 1,
    ),
    "changed in place": (
        BEGIN.replace("ARRIVALS", "1") + """
    if (t == 0) { expect(full, 2048); load(tile[0], x, 2048, full); }
    wait(full, 0);
    tile[0][t].x += 1;
    FENCE;
    __syncthreads();
    if (t == 0) { store(x, tile[0], 2048); STORED; }""", 128, 1,
    ),
    "sums of blocks": (
        BEGIN.replace("ARRIVALS", "1") + """    tile[0][t] = make_int4(1, 2, 3, 4);
    FENCE;
    __syncthreads();
    if (t == 0) {
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], 2048;"
            " cp.async.bulk.commit_group;" :: "l"(x), "r"(at(tile)) : "memory");
        SOURCE_READ;
    }""", 128, 3,
    ),
    "a product's sums as A of the next": (
        BEGIN.replace("ARRIVALS", "1") + """    float s[8] = {}, o[4] = {}; unsigned a[4];
    if (t == 0) { expect(full, 8192); load(tile, x, 8192, full); }
    wait(full, 0);
    for (int k = 0; k < 3; ++k) {
        READY; multiply16(s, tile_of(tile[k]), tile_of(tile[3]), 0); COMMIT; DONE(0);
        for (int i = 0; i < 8; ++i) s[i] *= 0.5f;
        for (int i = 0; i < 4; ++i) a[i] = (int)s[2 * i] << 16 | (int)s[2 * i + 1];
        READY; multiply(o, a, tile_of(tile[k]), 1); COMMIT; DONE(0);
    }
    out[t] = o[0] + o[3];""", 128, 1,
    ),
    "a product computes while the next one runs": (
        BEGIN.replace("ARRIVALS", "1") + """    float s[8] = {}, o[4] = {}; unsigned a[4] = {};
    if (t == 0) { expect(full, 8192); load(tile, x, 8192, full); }
    wait(full, 0);
    for (int k = 0; k < 3; ++k) {
        READY; multiply16(s, tile_of(tile[k]), tile_of(tile[3]), 0); COMMIT;
        READY; multiply(o, a, tile_of(tile[k]), 1); COMMIT; DONE(1);
        for (int i = 0; i < 8; ++i) s[i] += 1;
        DONE(0);
        for (int i = 0; i < 4; ++i) { a[i] = (int)s[i]; o[i] *= 0.5f; }
    }
    out[t] = o[0] + o[3];""", 128, 1,
    ),
    "each warp writes its own rows of A": (
        BEGIN.replace("ARRIVALS", "1") + """    float c[4];
    if (t == 0) { expect(full, 2048); load(tile[1], x, 2048, full); }
    for (int k = 0; k < 3; ++k) {
        tile[0][t] = make_int4(k, t, 0, 0);
        FENCE;
        __syncwarp();
        if (k == 0) wait(full, 0);
        READY; multiply(c, tile_of(tile[0]), tile_of(tile[1]), k); COMMIT; DONE(0);
        __syncthreads();
    }
    out[t] = c[2];""", 128, 1,
    ),
    "an mbarrier ends, and begins again": (
        TILE + """    const int t = threadIdx.x;
    for (int k = 0; k < 3; ++k) {
        if (t == 0) { start(full, 1); started(); }
        __syncthreads();
        if (t == 0) { expect(full, 2048); load(tile, x, 2048, full); }
        wait(full, 0);
        out[t] = tile[0][t].z;
        __syncthreads();
        if (t == 0)
            asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(at(full)) : "memory");
        __syncthreads();
    }
    if (t < 2) ((int*)full)[t] = 3;
    __syncthreads();
    out[t] += ((int*)full)[t % 2];""", 64, 1,
    ),
    "memory of two uses": (
        BEGIN.replace("ARRIVALS", "1") + """    int* scratch = (int*)tile;
    for (int k = 0; k < 2; ++k) {
        scratch[t] = t + k;
        __syncthreads();
        out[t] = scratch[127 - t];
        FENCE;
        __syncthreads();
        if (t == 0) { expect(full, 2048); load(tile, x, 2048, full); }
        wait(full, k);
        out[t] += tile[0][t].x;
        __syncthreads();
    }""", 128, 1,
    ),
    "a copy for two blocks": (
        BEGIN.replace("ARRIVALS", "1") + """    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (t == 0) expect(full, 4096);
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    if (t == 0)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
            ".multicast::cluster [%0], [%1], 2048, [%2], %3;" :: "r"(at(tile[rank])),
            "l"(x + 512 * rank), "r"(at(full)), "h"((short)3) : "memory");
    wait(full, 0);
    out[blockIdx.x * 128 + t] = tile[0][t].x + tile[1][t].y;
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");""",
        128, 2,
    ),
    "a tile for the neighbour": (
        BEGIN.replace("ARRIVALS", "1") + """    unsigned rank, there, bar;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %2, %4; mapa.shared::cluster.u32 %1, %3, %4;"
        : "=&r"(there), "=r"(bar) : "r"(at(tile[1])), "r"(at(full)), "r"(rank ^ 1));
    if (t == 0) expect(full, 2048);
    tile[0][t] = make_int4(rank, t, 0, 0);
    FENCE_ALL;
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    if (t == 0)
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
            " [%0], [%1], 2048, [%2];" :: "r"(there), "r"(at(tile[0])), "r"(bar) : "memory");
    wait(full, 0);
    out[blockIdx.x * 128 + t] = tile[1][t].x;
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");""",
        128, 2,
    ),
    "two threads add to a tile of the neighbour": (
        BEGIN.replace("ARRIVALS", "1") + """    unsigned rank, there, bar;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %2, %4; mapa.shared::cluster.u32 %1, %3, %4;"
        : "=&r"(there), "=r"(bar) : "r"(at(tile[1])), "r"(at(full)), "r"(rank ^ 1));
    if (t == 0) expect(full, 4096);
    tile[0][t] = make_int4(rank, t, 0, 0);
    tile[1][t] = make_int4(0, 0, 0, 0);
    FENCE_ALL;
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    if (t % 64 == 0)
        asm volatile("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
            ".add.u32 [%0], [%1], 2048, [%2];" :: "r"(there), "r"(at(tile[0])), "r"(bar)
            : "memory");
    wait(full, 0);
    out[blockIdx.x * 128 + t] = tile[1][t].y;
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");""",
        128, 2,
    ),
    "two warp groups take turns": (
        BEGIN.replace("ARRIVALS", "8") + """    if (warp == 8) {
        for (int k = 0; t == 256 && k < 6; ++k) {
            wait(empty + k % 2, k / 2 & 1 ^ 1);
            expect(full + k % 2, 2048);
            load(tile[k % 2], x + 512 * k, 2048, full + k % 2);
        }
        return;
    }
    const int group = t / 128; float c[4] = {};
    if (group == 1) asm volatile("bar.arrive 1, 256;" ::: "memory");
    for (int k = 0; k < 6; ++k) {
        wait(full + k % 2, k / 2 & 1);
        asm volatile("bar.sync %0, 256;" :: "r"(1 + group) : "memory");
        READY; multiply(c, tile_of(tile[k % 2]), tile_of(tile[k % 2]), 1); COMMIT;
        asm volatile("bar.arrive %0, 256;" :: "r"(2 - group) : "memory");
        DONE(0);
        if (t % 32 == 0) arrive(empty + k % 2);
        c[0] *= 0.5f;
    }
    if (group == 0) asm volatile("bar.sync 1, 256;" ::: "memory");
    out[t] = c[0];""", 288, 1,
    ),
    "tiles by cp.async": (
        BEGIN.replace("ARRIVALS", "1") + """    float c[4];
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16; cp.async.wait_all;"
        :: "r"(at(&tile[0][t])), "l"(x + 4 * t) : "memory");
    FENCE;
    __syncthreads();
    READY; multiply(c, tile_of(tile), tile_of(tile), 0); COMMIT; DONE(0);
    out[t] = c[3];""", 128, 1,
    ),
    "a state in place of a parity": (
        BEGIN.replace("ARRIVALS", "64") + """    u64 state;
    for (int k = 0; k < 3; ++k) {
        if (t == 0) {
            asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 2048;"
                :: "r"(at(empty)) : "memory");
            load(tile, x + 512 * k, 2048, empty);
        }
        asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(at(empty))
            : "memory");
        int over = 0;
        while (!over)
            asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2;"
                " selp.b32 %0, 1, 0, p; }" : "=r"(over) : "r"(at(empty)), "l"(state) : "memory");
        out[t] = tile[0][t].w;
        __syncthreads();
    }""", 64, 1,
    ),
    "two threads copy for one phase": (
        TILE + """    const int t = threadIdx.x;
    if (t == 0) { start(full, 2); FENCE_ALL; }
    __syncthreads();
    for (int k = 0; k < 3; ++k) {
        if (t % 32 == 0) {
            expect(full, 1024);
            load(tile[0] + 2 * t, x + 8 * t, 1024, full);
        }
        wait(full, k & 1);
        out[t] = tile[0][127 - t].x;
        __syncthreads();
    }""", 64, 1,
    ),
    "a tile that some warps skip": (
        BEGIN.replace("ARRIVALS", "4") + FILL + """    int sum = 0;
    for (int k = 0; k < 7; ++k) {
        wait(full + k % 3, k / 3 & 1);
        if (warp > 1 || k % 3) sum += tile[k % 3][t].x;
        __syncwarp();
        if (t % 32 == 0) arrive(empty + k % 3);
    }
    out[t] = sum;""", 160, 1,
    ),
    "told by a barrier with a count, then by an mbarrier": (
        BEGIN.replace("ARRIVALS", "32") + """    int* data = (int*)tile;
    for (int k = 0; k < 3; ++k) {
        if (warp == 0) {
            wait(empty, k & 1 ^ 1);
            data[t] = t + k;
            asm volatile("bar.arrive 1, 64;" ::: "memory");
        }
        if (warp == 1) {
            asm volatile("bar.sync 1, 64;" ::: "memory");
            if (t == 32) arrive(full);
        }
        if (warp == 2) { wait(full, k & 1); out[t] += data[95 - t]; arrive(empty); }
    }""", 96, 1,
    ),
    "told by a barrier before the first arrival at an mbarrier": (
        BEGIN.replace("ARRIVALS", "1") + """    int* data = (int*)tile;
    if (warp == 0) {
        data[t] = t;
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    }
    __nanosleep(10);
    if (t == 64) arrive(empty);
    if (warp == 1) {
        wait(empty, 0);
        asm volatile("bar.sync 1, 64;" ::: "memory");
        if (t == 32) arrive(full);
    }
    if (warp == 2) { wait(full, 0); out[t] = data[95 - t]; }""", 96, 1,
    ),
    "tiles for two blocks, which both release": (
        BEGIN.replace("ARRIVALS", "4") + """    unsigned rank; int sum = 0;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    for (int k = 0; k < 5; ++k) {
        if (t == 64) {
            wait(empty, k & 1 ^ 1);
            expect(full, 2048);
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                ".multicast::cluster [%0], [%1], 1024, [%2], %3;" :: "r"(at(tile[rank])),
                "l"(x + 512 * k + 256 * rank), "r"(at(full)), "h"((short)3) : "memory");
        }
        if (warp > 1) continue;
        wait(full, k & 1);
        sum += tile[0][t].x + tile[1][t].y;
        __syncwarp();
        for (unsigned i = 1; t % 32 == 0 && i < 3; ++i)  // the other one first
            asm volatile("{ .reg .b32 far; mapa.shared::cluster.u32 far, %0, %1;"
                " mbarrier.arrive.release.cluster.shared::cluster.b64 _, [far]; }"
                :: "r"(at(empty)), "r"(rank + i & 1) : "memory");
    }
    if (t < 64) out[blockIdx.x * 64 + t] = sum;
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");""",
        96, 2,
    ),
    "from a block to the next, plain writes": (
        BEGIN.replace("ARRIVALS", "1") + """    int* flag = x + 4000;
    if (blockIdx.x == 0) {
        ((int4*)x)[t] = make_int4(t, t, t, t);
        FENCE_ALL;
        __threadfence();
        __syncthreads();
        if (t == 0) { __threadfence(); atomicExch(flag, 1); }
    } else {
        if (t == 0) {
            while (atomicAdd(flag, 0) == 0) { }
            __threadfence();
            FENCE_ALL;
            expect(full, 2048);
            load(tile, x, 2048, full);
        }
        wait(full, 0);
        out[t] = tile[0][t].x;
    }""", 128, 2,
    ),
    "from a block to the next, a bulk copy": (
        BEGIN.replace("ARRIVALS", "1") + """    int* flag = x + 4000;
    if (blockIdx.x == 0) {
        tile[0][t] = make_int4(t, t, t, t);
        FENCE;
        __syncthreads();
        if (t == 0) { store(x, tile, 2048); STORED; __threadfence(); atomicExch(flag, 1); }
    } else {
        if (t == 0) { while (atomicAdd(flag, 0) == 0) { } __threadfence(); }
        __syncthreads();
        out[t] = ((int4*)x)[t].x;
    }""", 128, 2,
    ),
    "registers move, one lane copies": (
        BEGIN.replace("ARRIVALS", "4") + """    if (warp >= 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        int mine;
        asm volatile("{ .reg .pred p; elect.sync _|p, -1; selp.b32 %0, 1, 0, p; }" : "=r"(mine));
        if (warp == 4 && mine)
            for (int k = 0; k < 5; ++k) {
                wait(empty + k % 2, k / 2 & 1 ^ 1);
                expect(full + k % 2, 2048);
                load(tile[k % 2], x + 512 * k, 2048, full + k % 2);
            }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    float c[4];
    for (int k = 0; k < 5; ++k) {
        wait(full + k % 2, k / 2 & 1);
        READY; multiply(c, tile_of(tile[k % 2]), tile_of(tile[k % 2]), k); COMMIT; DONE(0);
        if (t % 32 == 0) arrive(empty + k % 2);
    }
    out[t] = c[0];""", 256, 1,
    ),
    "a product of matrices that leaves by a bulk copy": (
        BEGIN.replace("ARRIVALS", "1") + """    float c[4]; int* leaves = (int*)tile[3];
    for (int k = 0; k < 3; ++k) {
        if (t == 0) { expect(full, 4096); load(tile, x, 4096, full); }
        wait(full, k & 1);
        READY;
        multiply(c, tile_of(tile[0]), tile_of(tile[1]), 0);
        multiply(c, tile_of(tile[1]), tile_of(tile[0]), 1);
        COMMIT; DONE(0);
        if (t == 0) SOURCE_READ;
        __syncthreads();
        for (int i = 0; i < 4; ++i) leaves[4 * t + i] = c[i];
        FENCE;
        __syncthreads();
        if (t == 0) store(out + 512 * k, leaves, 2048);
    }
    if (t == 0) STORED;""", 128, 1,
    ),
}  # fmt: skip
# These need two blocks to a cluster.
CLUSTERED = (
    "a copy for two blocks",
    "tiles for two blocks, which both release",
    "a tile for the neighbour",
    "two threads add to a tile of the neighbour",
)
