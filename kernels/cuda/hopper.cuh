/* Wraps Hopper instructions that CUDA C++ has no functions for: mbarriers, clusters, the bulk tensor copy. wgmma.cuh
 * has those of the tensor cores. */
#pragma once

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

__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint64_t *bar, uint32_t bytes)
{
    barrier_expect(shared_address(bar), bytes);
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

/* Returns true if the phase has ended, without waiting. */
__device__ __forceinline__ bool barrier_test(uint32_t bar, uint32_t phase)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(bar), "r"(phase)
                 : "memory");
    return done != 0;
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

__device__ __forceinline__ int load_shared_int(uint32_t at)
{
    int v;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}

__device__ __forceinline__ void store_shared(uint32_t at, int x)
{
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

__device__ __forceinline__ float2 load_shared2(uint32_t at)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}

__device__ __forceinline__ void store_shared(uint32_t at, uint32_t x, uint32_t y)
{
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t at, const uint4 &v)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
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

/* Copies `bytes` of shared memory to the same address in CTA `rank` of the cluster, and counts them on that CTA's
 * barrier. */
__device__ __forceinline__ void send_bytes(uint32_t from, uint32_t bar, uint32_t rank, uint32_t bytes)
{
    asm volatile("{\n.reg .b32 there, arrived;\n"
                 "mapa.shared::cluster.u32 there, %0, %2;\n"
                 "mapa.shared::cluster.u32 arrived, %1, %2;\n"
                 "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [there], [%0], %3, "
                 "[arrived];\n}" ::"r"(from),
                 "r"(bar), "r"(rank), "r"(bytes)
                 : "memory");
}

/* Begins to copy 16 bytes to shared memory, or to zero them, in which case `from` is not read. */
__device__ __forceinline__ void copy_or_clear(uint32_t to, const void *from, bool copy)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(copy ? 16 : 0) : "memory");
}

/* Waits until this thread's copies by copy_or_clear are complete. */
__device__ __forceinline__ void wait_for_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Ends a group of this thread's copies by copy_or_clear. */
__device__ __forceinline__ void commit_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for all but the newest N groups of this thread's copies. */
template <int N> __device__ __forceinline__ void wait_for_copies_but()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Prefetches the map itself, for which the first copy would otherwise wait. */
__device__ __forceinline__ void prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Prefetches the 128 bytes around an address into L2. */
__device__ __forceinline__ void prefetch_line(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory");
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

} // namespace hopper
