/* Block-FP8 product with mma.m16n8k32 for e4m3, for cards from sm_89 on (Ada, and later ones that run its PTX). D = A *
 * W^T in tiles of 128 tokens by 128 rows of W, or of 32 by 64 for few tokens. The eight warps of a CTA cover its tile
 * as two by four. k tiles of 128 are loaded by cp.async into a ring in shared memory, and the sums of each tile are
 * scaled and added in FP32, as in every kernel of this product. */
#include "kernels/cuda/block_fp8_parts.cuh"

namespace
{

using namespace block_fp8;

constexpr int kThreads = 256, kStages = 3, kFewTokens = 64;

/* Returns the address of a 16-byte chunk in rows of 128 bytes. Chunks are permuted by the row, so that the eight rows
 * that ldmatrix reads at once are in different banks. */
__device__ __forceinline__ uint32_t chunk_at(uint32_t operand, int row, int chunk)
{
    return operand + (uint32_t)(row * kBlock + (chunk ^ row % 8) * 16);
}

/* Begins to copy `bytes` of 16 bytes; the others become zeros. */
__device__ __forceinline__ void copy_chunk(uint32_t to, const uint8_t *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/* Begins to copy k tile `tile` of ROWS rows of an operand, from row `first` on. Elements outside become zeros. */
template <int ROWS>
__device__ __forceinline__ void copy_tile(uint32_t to, const uint8_t *from, int64_t pitch, int first, int rows,
                                          int tile, int k)
{
#pragma unroll
    for (int i = 0; i < ROWS * (kBlock / 16) / kThreads; ++i) {
        const int at = (int)threadIdx.x + i * kThreads, row = at / (kBlock / 16), chunk = at % (kBlock / 16);
        const int x = tile * kBlock + chunk * 16;
        const int bytes = first + row < rows ? max(0, min(16, k - x)) : 0;
        copy_chunk(chunk_at(to, row, chunk), bytes > 0 ? from + (first + row) * pitch + x : from, bytes);
    }
}

/* Loads four 8 x 16-byte matrices; eight lanes each give the row addresses of one. */
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t w0, uint32_t w1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(w0), "r"(w1));
}

/* Stores two results of row i, columns j and j + 1. */
template <typename T> __device__ __forceinline__ void store_pair(const problem &p, int64_t i, int j, float x, float y)
{
    T *const out = static_cast<T *>(p.d) + i * p.ldd + j;
    if (p.vector_store && j + 2 <= p.n) {
        if constexpr (sizeof(T) == 4) {
            *reinterpret_cast<float2 *>(out) = make_float2(x, y);
        } else {
            *reinterpret_cast<uint32_t *>(out) = narrow2<T>(x, y);
        }
    } else {
        if (j < p.n) {
            out[0] = narrow<T>(x);
        }
        if (j + 1 < p.n) {
            out[1] = narrow<T>(y);
        }
    }
}

/* A warp has HIGH by WIDE products of 16 by 8. */
template <typename T, int TOKENS, int ROWS> __global__ void __launch_bounds__(kThreads) mma_kernel(const problem p)
{
    constexpr int kHigh = TOKENS / 32, kWide = ROWS / 32, kStageBytes = (TOKENS + ROWS) * kBlock;
    extern __shared__ __align__(128) uint8_t memory[];
    const uint32_t base = hopper::shared_address(memory);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, quad = lane / 8;
    const int row_a = (int)blockIdx.y * TOKENS, row_w = (int)blockIdx.x * ROWS;
    const int warp_a = warp / 4 * (TOKENS / 2), warp_w = warp % 4 * (ROWS / 4);
    const int tiles = (p.k + kBlock - 1) / kBlock;
    const auto begin = [&](int tile) {
        if (tile < tiles) {
            const uint32_t to = base + (uint32_t)(tile % kStages * kStageBytes);
            copy_tile<TOKENS>(to, p.a, p.lda, row_a, p.m, tile, p.k);
            copy_tile<ROWS>(to + TOKENS * kBlock, p.w, p.ldw, row_w, p.n, tile, p.k);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    float sum[kHigh][kWide][4] = {};
    for (int t = 0; t < kStages - 1; ++t) {
        begin(t);
    }
    for (int t = 0; t < tiles; ++t) {
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
        __syncthreads();
        begin(t + kStages - 1);
        const uint32_t a = base + (uint32_t)(t % kStages * kStageBytes), w = a + TOKENS * kBlock;
        const float scale_w = __ldg(p.scale_w + (int64_t)(row_w / kBlock) * tiles + t);
        float scale[kHigh][2], c[kHigh][kWide][4] = {};
#pragma unroll
        /* a row after the last one uses the scale of another row, and is not stored */
        for (int i = 0; i < kHigh * 2; ++i) {
            const int row = min(row_a + warp_a + i * 8 + lane / 4, p.m - 1);
            scale[i / 2][i % 2] = __ldg(p.scale_a + t * p.ld_scale_a + (row >> p.group_shift));
        }
#pragma unroll
        for (int x = 0; x < kBlock / 32; ++x) {
            uint32_t of_a[kHigh][4], of_w[kWide / 2][4];
#pragma unroll
            for (int i = 0; i < kHigh; ++i) {
                load_matrices(of_a[i], chunk_at(a, warp_a + i * 16 + quad % 2 * 8 + lane % 8, x * 2 + quad / 2));
            }
#pragma unroll
            for (int j = 0; j < kWide / 2; ++j) {
                load_matrices(of_w[j], chunk_at(w, warp_w + j * 16 + quad / 2 * 8 + lane % 8, x * 2 + quad % 2));
            }
#pragma unroll
            for (int i = 0; i < kHigh; ++i) {
#pragma unroll
                for (int j = 0; j < kWide; ++j) {
                    multiply(c[i][j], of_a[i], of_w[j / 2][j % 2 * 2], of_w[j / 2][j % 2 * 2 + 1]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < kHigh; ++i) {
#pragma unroll
            for (int j = 0; j < kWide; ++j) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    sum[i][j][e] = fmaf(scale[i][e / 2] * scale_w, c[i][j][e], sum[i][j][e]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < kHigh; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int row = row_a + warp_a + i * 16 + e * 8 + lane / 4;
#pragma unroll
            for (int j = 0; j < kWide; ++j) {
                if (row < p.m) {
                    store_pair<T>(p, row, row_w + warp_w + j * 8 + lane % 4 * 2, sum[i][j][e * 2],
                                  sum[i][j][e * 2 + 1]);
                }
            }
        }
    }
}

template <typename T, int TOKENS, int ROWS> tsr_status launch_mma(const problem &p, tsr_stream stream, tsr_err *err)
{
    constexpr int kShared = kStages * (TOKENS + ROWS) * kBlock;
    const dim3 grid((unsigned)host::ceil_div(p.n, ROWS), (unsigned)host::ceil_div(p.m, TOKENS));
    if (grid.y > kMostBlocks) {
        return tsr_fail(err, TSR_E_SHAPE, "block-FP8 product: %d tokens exceed the grid of tiles of %d", p.m, TOKENS);
    }
    TSR_TRY(host::launched(kWhat, host::allow_shared(mma_kernel<T, TOKENS, ROWS>, kShared), err));
    mma_kernel<T, TOKENS, ROWS><<<grid, kThreads, kShared, stream>>>(p);
    return host::launched(kWhat, cudaSuccess, err);
}

} // namespace

bool block_fp8::mma_fits(const tsr_block_fp8_gemm *args, const tsr_cuda_device *device)
{
    return device->arch >= 89 && args->k > 0 && operands_fit(args->a, args->w, args->lda, args->ldw);
}

tsr_gemm_config block_fp8::mma_for(int64_t m)
{
    return m <= kFewTokens ? tsr_gemm_config{TSR_GEMM_MMA, 32, 64, 1} : tsr_gemm_config{TSR_GEMM_MMA, 128, 128, 1};
}

tsr_status block_fp8::run_mma(const problem &p, tsr_gemm_out out, const tsr_gemm_config &config, tsr_stream stream,
                              tsr_err *err)
{
    return for_results(out, [&](auto of) {
        using T = typename decltype(of)::type;
        return config.tokens == 32 && config.rows == 64     ? launch_mma<T, 32, 64>(p, stream, err)
               : config.tokens == 128 && config.rows == 128 ? launch_mma<T, 128, 128>(p, stream, err)
                                                            : no_such_tile(kWhat, config, err);
    });
}
