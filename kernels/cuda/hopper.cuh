/* Wraps Hopper instructions that CUDA C++ has no functions for: mbarriers, the bulk tensor copy, wgmma on e4m3, int8
 * and BF16. */
#ifndef TSR_KERNELS_CUDA_HOPPER_CUH
#define TSR_KERNELS_CUDA_HOPPER_CUH

#include <cuda.h>
#include <stdint.h>

namespace hopper
{

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* Delays a warp after one wait in 16, by up to 8 us, in test builds with TSR_SHAKEN: this reveals races. */
__device__ __forceinline__ void shake()
{
#ifdef TSR_SHAKEN
    const uint32_t dice = (uint32_t)clock() * 2654435761u >> 15;
    if (dice % 16 == 0) {
        __nanosleep(dice / 16);
    }
#endif
}

__device__ __forceinline__ void barrier_init(uint64_t *bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count) : "memory");
}

/* Returns true if `turns` groups of warps may alternate between the stages of a ring. A wait by parity cannot
 * distinguish a phase from the one after the next, so a group must wait for every phase of its barriers. Each stage
 * therefore belongs to one turn. */
constexpr bool ring_is_safe(int stages, int turns)
{
    return turns > 0 && stages >= turns && stages % turns == 0;
}

__device__ __forceinline__ void fence_barrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_expect(uint64_t *bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t *bar)
{
    barrier_arrive(shared_address(bar));
}

/* Arrives on the same barrier of CTA `rank` of the cluster. */
__device__ __forceinline__ void barrier_arrive(uint32_t bar, uint32_t rank)
{
    asm volatile("{\n.reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t *bar, uint32_t rank)
{
    barrier_arrive(shared_address(bar), rank);
}

__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t phase)
{
    asm volatile("{\n.reg .pred done;\n"
                 "again_%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again_%=;\n}" ::"r"(bar),
                 "r"(phase)
                 : "memory");
    shake();
}

__device__ __forceinline__ void barrier_wait(uint64_t *bar, uint32_t phase)
{
    barrier_wait(shared_address(bar), phase);
}

/* Returns true in exactly one lane of a warp whose lanes all call it, in a form that the compiler recognizes. */
__device__ __forceinline__ bool elect()
{
    uint32_t chosen;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
    return chosen != 0;
}

__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/* The same without ordering memory accesses, except that mbarriers published by fence_barrier_init are visible. */
__device__ __forceinline__ void cluster_meet()
{
    asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;" ::: "memory");
}

/* The two halves of cluster_meet. */
__device__ __forceinline__ void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait;" ::: "memory");
}

/* Programmatic dependent launch: the next kernel of the stream may initialize while this one runs, and accesses global
 * memory only after this one has ended. */
__device__ __forceinline__ void let_next_launch_begin()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void wait_for_launch_before()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ uint32_t cluster_id()
{
    uint32_t id;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(id));
    return id;
}

__device__ __forceinline__ float load_shared(uint32_t at)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}

__device__ __forceinline__ float2 load_shared2(uint32_t at)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}

__device__ __forceinline__ float4 load_remote(const float *p, uint32_t rank)
{
    float4 v;
    asm volatile("{\n.reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n}"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(shared_address(p)), "r"(rank)
                 : "memory");
    return v;
}

/* Stores v at the same address in CTA `rank` of the cluster, and counts its 16 bytes on that CTA's barrier. */
__device__ __forceinline__ void send(float *to, uint64_t *bar, uint32_t rank, float4 v)
{
    asm volatile("{\n.reg .b32 there, arrived;\n"
                 "mapa.shared::cluster.u32 there, %0, %2;\n"
                 "mapa.shared::cluster.u32 arrived, %1, %2;\n"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, "
                 "[arrived];\n}" ::"r"(shared_address(to)),
                 "r"(shared_address(bar)), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

__device__ __forceinline__ void load_tile(void *dst, const CUtensorMap *map, uint64_t *bar, int x, int y)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(shared_address(dst)),
        "l"(map), "r"(shared_address(bar)), "r"(x), "r"(y)
        : "memory");
}

/* How L2 keeps loaded data: data that is read only once does not displace other data. */
__device__ __forceinline__ uint64_t cache_policy(bool once)
{
    uint64_t policy;
    if (once) {
        asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    } else {
        asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    }
    return policy;
}

__device__ __forceinline__ void load_tile_kept(void *dst, const CUtensorMap *map, uint64_t *bar, int x, int y,
                                               uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(dst)),
                 "l"(map), "r"(shared_address(bar)), "r"(x), "r"(y), "l"(policy)
                 : "memory");
}

/* Prefetches the map itself, for which the first copy would otherwise wait. */
__device__ __forceinline__ void prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Prefetches a box into L2. */
__device__ __forceinline__ void prefetch_tile(const CUtensorMap *map, int x, int y)
{
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(x), "r"(y)
                 : "memory");
}

__device__ __forceinline__ void load_tile(void *dst, const CUtensorMap *map, uint64_t *bar, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(dst)),
                 "l"(map), "r"(shared_address(bar)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

/* Loads a box that is read only once, without displacing other data in L2. */
__device__ __forceinline__ void load_tile_once(void *dst, const CUtensorMap *map, uint64_t *bar, int x, int y, int z)
{
    asm volatile(
        "{\n.reg .b64 policy;\n"
        "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1, {%3, %4, %5}], [%2], policy;\n}" ::"r"(shared_address(dst)),
        "l"(map), "r"(shared_address(bar)), "r"(x), "r"(y), "r"(z)
        : "memory");
}

__device__ __forceinline__ void load_tile_multicast(void *dst, const CUtensorMap *map, uint64_t *bar, int x, int y,
                                                    uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(dst)),
                 "l"(map), "r"(shared_address(bar)), "r"(x), "r"(y), "h"(mask)
                 : "memory");
}

/* Orders ordinary stores to shared memory before later reads by the copy engine (and by wgmma). */
__device__ __forceinline__ void fence_shared_for_copies()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void store_tile(const CUtensorMap *map, const void *src, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(shared_address(src)), "r"(x), "r"(y)
                 : "memory");
}

__device__ __forceinline__ void bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until this thread's copies have read their source. */
__device__ __forceinline__ void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

__device__ __forceinline__ void bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Stores four 8 x 8 matrices of 16-bit elements in the layout of mma results. Lane l gives the address of row l % 8 of
 * matrix l / 8. */
__device__ __forceinline__ void store_matrices(void *row, uint32_t v0, uint32_t v1, uint32_t v2, uint32_t v3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
                 "r"(v0), "r"(v1), "r"(v2), "r"(v3)
                 : "memory");
}

/* Returns the descriptor of an operand in shared memory: rows of 128 bytes along K, 128-byte swizzle, groups of eight
 * rows 1024 bytes apart. Only its low word differs between such operands; adding 1 advances by 16 bytes. */
__device__ __forceinline__ uint32_t operand_low(uint32_t address)
{
    return (address & 0x3FFFF) >> 4 | 1u << 16;
}

__device__ __forceinline__ uint64_t operand_of_low(uint32_t low)
{
    return (uint64_t)(1024 >> 4 | 1u << 30) << 32 | low;
}

__device__ __forceinline__ uint64_t operand(const void *p)
{
    return operand_of_low(operand_low(shared_address(p)));
}

/* Returns a descriptor of the same bytes read down their rows, as B[k][n] with n contiguous. A tile of ROWS rows has 64
 * of n, the next tile the next 64. */
template <int ROWS = 64> __device__ __forceinline__ uint64_t operand_down(const void *p)
{
    return operand(p) ^ ((uint64_t)1 << 16 ^ (uint64_t)(ROWS * 128 >> 4) << 16);
}

/* Waits at barrier `id` (1 to 15) of the CTA for `threads` threads. meet_arrive counts but does not wait. */
__device__ __forceinline__ void meet(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
    shake();
}

__device__ __forceinline__ void meet_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void mma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void mma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Prevents the compiler from moving reads or writes of `d` across this point. */
template <int COUNT> __device__ __forceinline__ void hold(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

template <int COUNT> __device__ __forceinline__ void hold(int32_t (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        asm volatile("" : "+r"(d[i])::"memory");
    }
}

/* Waits until at most PENDING groups of products are in progress. `d` is the result of the finished group, and must not
 * be read before. */
template <int PENDING, typename NUMBER, int COUNT> __device__ __forceinline__ void mma_wait(NUMBER (&d)[COUNT])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    hold(d);
}

/* Waits for all but the newest N committed groups. */
template <int N> __device__ __forceinline__ void mma_wait_but()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

#define TSR_D(i)   "+f"(d[i])
#define TSR_D4(i)  TSR_D(i), TSR_D(i + 1), TSR_D(i + 2), TSR_D(i + 3)
#define TSR_D8(i)  TSR_D4(i), TSR_D4(i + 4)
#define TSR_D16(i) TSR_D8(i), TSR_D8(i + 8)
#define TSR_D32(i) TSR_D16(i), TSR_D16(i + 16)
#define TSR_D28    TSR_D16(0), TSR_D8(16), TSR_D4(24)
#define TSR_D36    TSR_D32(0), TSR_D4(32)
#define TSR_D48    TSR_D32(0), TSR_D16(32)
#define TSR_D56    TSR_D48, TSR_D8(48)
#define TSR_D64    TSR_D32(0), TSR_D32(32)
#define TSR_D96    TSR_D64, TSR_D32(64)
#define TSR_N8     "%0, %1, %2, %3, %4, %5, %6, %7"
#define TSR_N16    TSR_N8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TSR_N32    TSR_N16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TSR_N64                                                                                  \
    TSR_N32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TSR_N28 TSR_N16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27"
#define TSR_N36 TSR_N32 ", %32, %33, %34, %35"
#define TSR_N56 TSR_N48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TSR_N48 TSR_N32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TSR_N96                                                                                  \
    TSR_N64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
            "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TSR_D128 TSR_D64, TSR_D32(64), TSR_D32(96)
#define TSR_N128                                                                                             \
    TSR_N96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
            "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TSR_TYPES "f32.e4m3.e4m3"
#define TSR_SIGNS ", 1, 1"
#define TSR_MMA(width, registers, outs, x, y, add)                                                            \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\n"                                             \
                 "wgmma.mma_async.sync.aligned.m64n" width "k32." TSR_TYPES " {" registers "}, " x ", " y ", p" \
                 TSR_SIGNS ";\n}"                                                                             \
                 : outs                                                                                       \
                 : "l"(a), "l"(b), "r"(accumulate))

/* d[64 x N] (+)= A[64 x 32] * B[N x 32]^T for one warpgroup. d[4g + 2h + j] is row 16w + lane/4 + 8h, column 8g +
 * 2(lane%4) + j, where w is the warp in the group. */
template <int N> __device__ __forceinline__ void mma(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate)
{
    if constexpr (N == 16) {
        TSR_MMA("16", TSR_N8, TSR_D8(0), "%8", "%9", "%10");
    } else if constexpr (N == 32) {
        TSR_MMA("32", TSR_N16, TSR_D16(0), "%16", "%17", "%18");
    } else if constexpr (N == 56) {
        TSR_MMA("56", TSR_N28, TSR_D28, "%28", "%29", "%30");
    } else if constexpr (N == 72) {
        TSR_MMA("72", TSR_N36, TSR_D36, "%36", "%37", "%38");
    } else if constexpr (N == 112) {
        TSR_MMA("112", TSR_N56, TSR_D56, "%56", "%57", "%58");
    } else if constexpr (N == 64) {
        TSR_MMA("64", TSR_N32, TSR_D32(0), "%32", "%33", "%34");
    } else if constexpr (N == 96) {
        TSR_MMA("96", TSR_N48, TSR_D48, "%48", "%49", "%50");
    } else if constexpr (N == 192) {
        TSR_MMA("192", TSR_N96, TSR_D96, "%96", "%97", "%98");
    } else {
        static_assert(N == 128, "no such width");
        TSR_MMA("128", TSR_N64, TSR_D64, "%64", "%65", "%66");
    }
}

/* d[64 x 64] (+)= A[64 x 16] * B[64 x 16]^T in BF16. */
__device__ __forceinline__ void mma_scores(float (&d)[32], uint64_t a, uint64_t b, int accumulate)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TSR_N32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : TSR_D32(0)
                 : "l"(a), "l"(b), "r"(accumulate));
}

/* The same with A in registers. A thread's part of A is its part of two adjacent groups of eight columns of an
 * accumulator, in pairs. */
__device__ __forceinline__ void mma_scores(float (&d)[32], const uint32_t *a, uint64_t b, int accumulate)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TSR_N32 "}, {%32, %33, %34, %35}, %36, "
                 "p, 1, 1, 0;\n}"
                 : TSR_D32(0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

/* d[64 x 256] += A[64 x 16] * B[16 x 256] in BF16, A in registers, B by operand_down. */
__device__ __forceinline__ void mma_values(float (&d)[128], const uint32_t *a, uint64_t b)
{
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" TSR_N128
                 "}, {%128, %129, %130, %131}, %132, "
                 "p, 1, 1, 1;\n}"
                 : TSR_D128
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* d[64 x 128] (+)= A[64 x 16] * B[128 x 16]^T in BF16. */
__device__ __forceinline__ void mma_scores(float (&d)[64], uint64_t a, uint64_t b, int accumulate)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TSR_N64 "}, %64, %65, p, 1, 1, 0, 0;\n}"
                 : TSR_D64
                 : "l"(a), "l"(b), "r"(accumulate));
}

/* d[64 x 128] += A[64 x 16] * B[16 x 128] in BF16, A in registers, B by operand_down. */
__device__ __forceinline__ void mma_values(float (&d)[64], const uint32_t *a, uint64_t b)
{
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TSR_N64
                 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
                 : TSR_D64
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* The same of int8, whose sums are exact in int32. */
#undef TSR_D
#undef TSR_TYPES
#undef TSR_SIGNS
#define TSR_D(i)  "+r"(d[i])
#define TSR_TYPES "s32.s8.s8"
#define TSR_SIGNS ""
template <int N> __device__ __forceinline__ void mma(int32_t (&d)[N / 2], uint64_t a, uint64_t b, int accumulate)
{
    if constexpr (N == 64) {
        TSR_MMA("64", TSR_N32, TSR_D32(0), "%32", "%33", "%34");
    } else if constexpr (N == 128) {
        TSR_MMA("128", TSR_N64, TSR_D64, "%64", "%65", "%66");
    } else {
        static_assert(N == 256, "no such width");
        TSR_MMA("256", TSR_N128, TSR_D128, "%128", "%129", "%130");
    }
}

/* Multiplies one tile of 128 bytes along K: four steps of 32, in which the operands, given by operand_low, advance by
 * 32 bytes each. mma_wait returns the result. With `add`, d is added to. */
template <int N, typename NUMBER>
__device__ __forceinline__ void mma_128(NUMBER (&d)[N / 2], uint32_t a, uint32_t b, bool add = false)
{
    hold(d);
    mma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        mma<N>(d, operand_of_low(a + 2 * step), operand_of_low(b + 2 * step), add || step != 0);
    }
    mma_commit();
}

} // namespace hopper
#endif
