/* Wraps the wgmma instructions of Hopper's tensor cores on e4m3, int8 and BF16. */
#pragma once

#include "kernels/cuda/hopper.cuh"

namespace hopper
{

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

/* Returns a descriptor of the same bytes read down their rows, as B[k][n] with n contiguous. Each tile has ROWS values
 * of k and 64 of n. Consecutive tiles continue along n. */
template <int ROWS = 64> __device__ __forceinline__ uint64_t operand_down(const void *p)
{
    return operand(p) ^ ((uint64_t)1 << 16 ^ (uint64_t)(ROWS * 128 >> 4) << 16);
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
#define TSR_D24    TSR_D16(0), TSR_D8(16)
#define TSR_D32(i) TSR_D16(i), TSR_D16(i + 16)
#define TSR_D64    TSR_D32(0), TSR_D32(32)
#define TSR_D80    TSR_D64, TSR_D16(64)
#define TSR_D96    TSR_D64, TSR_D32(64)
#define TSR_N8     "%0, %1, %2, %3, %4, %5, %6, %7"
#define TSR_N16    TSR_N8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TSR_N24    TSR_N16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define TSR_N32    TSR_N16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TSR_N64                                                                                  \
    TSR_N32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TSR_N80  TSR_N64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define TSR_N96  TSR_N80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define TSR_D128 TSR_D64, TSR_D32(64), TSR_D32(96)
#define TSR_N128                                                                                             \
    TSR_N96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
            "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TSR_TYPES "f32.e4m3.e4m3"
#define TSR_SIGNS ", 1, 1"
#define TSR_MMA(width, registers, outs, x, y, add)                                                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" width "k32." TSR_TYPES " {" registers "}, " x ", " y \
                 ", p" TSR_SIGNS ";\n}"                                                                   \
                 : outs                                                                                   \
                 : "l"(a), "l"(b), "r"(accumulate))

/* d[64 x N] (+)= A[64 x 32] * B[N x 32]^T for one warpgroup. d[4g + 2h + j] is row 16w + lane/4 + 8h, column 8g +
 * 2(lane%4) + j, where w is the warp in the group. */
template <int N> __device__ __forceinline__ void mma(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate)
{
    if constexpr (N == 16) {
        TSR_MMA("16", TSR_N8, TSR_D8(0), "%8", "%9", "%10");
    } else if constexpr (N == 32) {
        TSR_MMA("32", TSR_N16, TSR_D16(0), "%16", "%17", "%18");
    } else if constexpr (N == 64) {
        TSR_MMA("64", TSR_N32, TSR_D32(0), "%32", "%33", "%34");
    } else if constexpr (N == 160) {
        TSR_MMA("160", TSR_N80, TSR_D80, "%80", "%81", "%82");
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

#undef TSR_D /* other files use TSR_D4 to TSR_D128 for floats */
#define TSR_D(i) "+f"(d[i])

/* Issues the products of one tile of 128 bytes along K: four steps of 32, in which the operands, given by operand_low,
 * advance by 32 bytes each. With `add`, they are added to d. The caller fences, commits and waits. */
template <int N, typename NUMBER>
__device__ __forceinline__ void mma_steps(NUMBER (&d)[N / 2], uint32_t a, uint32_t b, bool add)
{
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        mma<N>(d, operand_of_low(a + 2 * step), operand_of_low(b + 2 * step), add || step != 0);
    }
}

/* Multiplies one such tile. mma_wait returns the result. */
template <int N> __device__ __forceinline__ void mma_128(float (&d)[N / 2], uint32_t a, uint32_t b)
{
    hold(d);
    mma_fence();
    mma_steps<N>(d, a, b, false);
    mma_commit();
}

} // namespace hopper
