/* What Hopper adds (sm_90a): barriers in shared memory that count bytes (mbarrier), clusters, a copy engine that is told what to bring
   by a map (TMA), and tensor cores that read their operands from shared memory (wgmma). */

#pragma once

#include "ws/ampere.cuh"

namespace ws {

/* A barrier (mbarrier) counts arrivals, and bytes to come, and has a phase: 0 and 1 in turn. */
__device__ void make_barrier(uint64_t *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
__device__ void arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/* Arrives, and has the barrier wait for so many bytes more that the copy engine brings. */
__device__ void arrive_and_expect(uint64_t *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
/* Where block `rank` of the cluster has what this block has at `p`. */
__device__ uint32_t address_in(int rank, const void *p) {
    uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
    return address;
}
/* The same as arrive() at the barrier of block `rank`. (With .release.cluster the thread waits for all its accesses to memory, which made a
   product of 4096^3 take half as long again. There is nothing to wait for: wgmma did the reading, and has ended.) */
__device__ void arrive(uint64_t *barrier, int rank) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in(rank, barrier)) : "memory");
}
/* Returns when the barrier's phase `phase` is over; of a new barrier phase 1 is. */
__device__ void wait(uint64_t *barrier, int phase) {
    asm volatile("{\n.reg .pred over;\nagain:\n"
                 "mbarrier.try_wait.parity.shared.b64 over, [%0], %1;\n"
                 "@!over bra again;\n}" ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}
/* The barrier of the cluster, in two steps. Arriving orders nothing: what is written before needs a fence. */
__device__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
/* A barrier for `threads` threads, by number: 0 is that of __syncthreads(). */
__device__ void meet(int number, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory"); }
__device__ void prefetch(const CUtensorMap &map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

/* Has the copy engine bring the box of `map` that begins at (x, y), or (x, y, matrix), to the same place in all blocks of `mask`, each of
   whose barriers counts its bytes. What lies outside the tensor is zero, and counts all the same. */
__device__ void copy_box(void *to, const CUtensorMap &map, int x, int y, uint64_t *barrier, bool all, uint16_t mask) {
    if (all)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)), "l"(&map), "r"(x), "r"(y),
                     "r"(shared_address(barrier)), "h"(mask) : "memory");
    else
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)), "l"(&map), "r"(x), "r"(y),
                     "r"(shared_address(barrier)) : "memory");
}
__device__ void copy_box(void *to, const CUtensorMap &map, int x, int y, int matrix, uint64_t *barrier, bool all, uint16_t mask) {
    if (all)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(matrix),
                     "r"(shared_address(barrier)), "h"(mask) : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)), "l"(&map), "r"(x), "r"(y), "r"(matrix),
                     "r"(shared_address(barrier)) : "memory");
}

/* The same of a map in which 8 rows, and pieces of 64 terms of them, are dimensions: the box begins at piece k and row `row`. */
__device__ void copy_pieces(void *to, const CUtensorMap &map, int k, int row, uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %2, %3, %4}], [%5];" ::"r"(shared_address(to)), "l"(&map), "r"(0), "r"(k), "r"(row / 8),
                 "r"(shared_address(barrier)) : "memory");
}
__device__ void copy_pieces(void *to, const CUtensorMap &map, int k, int row, int matrix, uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %2, %3, %4, %5}], [%6];" ::"r"(shared_address(to)), "l"(&map), "r"(0), "r"(k), "r"(row / 8),
                 "r"(matrix), "r"(shared_address(barrier)) : "memory");
}
/* And back. What lies outside the tensor is left out. */
__device__ void store_box(const void *from, const CUtensorMap &map, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;" ::"l"(&map), "r"(x), "r"(y), "r"(shared_address(from)) : "memory");
}
__device__ void store_box(const void *from, const CUtensorMap &map, int x, int y, int matrix) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];\n"
                 "cp.async.bulk.commit_group;" ::"l"(&map), "r"(x), "r"(y), "r"(matrix), "r"(shared_address(from)) : "memory");
}
/* Has the copy engine bring contiguous bytes to block `rank`, and count them there. */
__device__ void send(int rank, const void *to, const void *from, int bytes, const uint64_t *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(address_in(rank, to)), "r"(shared_address(from)), "r"(bytes), "r"(address_in(rank, barrier)) : "memory");
}
/* Contiguous bytes, there and back. */
__device__ void copy_bytes(void *to, const void *from, int bytes, uint64_t *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
__device__ void store_bytes(const void *from, void *to, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                 "cp.async.bulk.commit_group;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}
/* A copy of nothing, for wait_for_stores. */
__device__ void store_nothing() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/* Waits until all but the last PENDING copies of this thread have read what they store. */
template <int PENDING> __device__ void wait_for_stores() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

#if !WS_F32
/* Lays a warp's 16 rows and 64 columns, in pairs, out in shared memory as boxes with a 128-byte swizzle are: pieces of 16 bytes of a
   row are exchanged by the row's number. */
__device__ void stage_pairs(char *box, const uint32_t *pairs) {
    const int lane = threadIdx.x % 32, row = lane % 16;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        const uint32_t *p = pairs + j * 2;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                     ::"r"(shared_address(box + row * 128 + ((j + lane / 16) ^ row % 8) * 16)), "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3])
                     : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* the copy engine will read it */
    __syncwarp();
}
__device__ void stage_sums(char *box, const float *sums) {
    uint32_t pairs[16];
#pragma unroll
    for (int i = 0; i < 16; i++) pairs[i] = pack(sums[i * 2], sums[i * 2 + 1]);
    stage_pairs(box, pairs);
}

/* What wgmma must know of a tile in shared memory: its address in units of 16 bytes (bits 0 to 13); two distances (bits 16 to
   29 and 32 to 45); that pieces are exchanged within 128 bytes (1 in bits 62 and 63). `stride` is that from 8 rows to the next 8.
   Where columns are contiguous, `leading` is that between blocks of 64 of them. */
__device__ uint64_t description(const void *tile, int leading, int stride) {
    return (uint64_t)(shared_address(tile) & 0x3ffff) >> 4 | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 | 1ull << 62;
}

#define FOUR(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define SUMS16(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
#define SUMS32(i) SUMS16(i), SUMS16(i + 16)
#define SUMS64(i) SUMS32(i), SUMS32(i + 32)
#define LIST16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define LIST32 LIST16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LIST64 LIST32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LIST128 LIST64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#if WS_F16
#define TYPES ".f32.f16.f16 "
#else
#define TYPES ".f32.bf16.bf16 "
#endif
#define WGMMA(n, list, a_at, b_at, add_at, a_transposed_at, b_transposed_at, ...)                                    \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_at ", 0;\n"                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16" TYPES "{" list "}, "                                   \
                 "%" #a_at ", %" #b_at ", add, 1, 1, %" #a_transposed_at ", %" #b_transposed_at ";\n}"              \
                 : __VA_ARGS__ : "l"(a), "l"(b), "r"(add), "n"(A_TRANSPOSED ? 1 : 0), "n"(TRANSPOSED ? 1 : 0))

/* Starts sums (64 x N over the warpgroup) += a (64 x 16) b (16 x N), or = where not `add`; a and b are descriptions. N is a multiple
   of 32. Rows of b in shared memory are of terms, or (TRANSPOSED) of its columns; those of a are of terms, or (A_TRANSPOSED) of its 64 rows.
   ATOMS of 64 terms lie together for each 8 rows of b. */
template <int N, int ATOMS = 1, bool TRANSPOSED = false, bool A_TRANSPOSED = false>
__device__ void multiply(float *sums, uint64_t a, uint64_t b, int add) {
    constexpr int n = N >= 256 ? 256 : N >= 128 ? 128 : N >= 64 ? 64 : 32;
    if constexpr (n == 256) WGMMA(256, LIST128, 128, 129, 130, 131, 132, SUMS64(0), SUMS64(64));
    if constexpr (n == 128) WGMMA(128, LIST64, 64, 65, 66, 67, 68, SUMS64(0));
    if constexpr (n == 64) WGMMA(64, LIST32, 32, 33, 34, 35, 36, SUMS32(0));
    if constexpr (n == 32) WGMMA(32, LIST16, 16, 17, 18, 19, 20, SUMS16(0));
    if constexpr (N > n) multiply<N - n, ATOMS, TRANSPOSED, A_TRANSPOSED>(sums + n / 2, a, b + n * 8 * ATOMS, add); /* past n rows of 128 bytes a piece */
}
#undef FOUR
#undef SUMS16
#undef SUMS32
#undef SUMS64
#undef LIST16
#undef LIST32
#undef LIST64
#undef LIST128
#undef TYPES
#undef WGMMA
#endif

/* Before the first product of a group: what is in registers is there, and shared memory as other threads left it. */
__device__ void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void end_of_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Waits until all but the last PENDING groups of products are done. */
template <int PENDING> __device__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

} // namespace ws
