/* Entry of the int8 product: the plain kernel, which is its definition; the kernel before Hopper, with 128 x 128 tiles
 * that uses mma.m16n8k32 behind three stages of cp.async; and the choice of a kernel. */
#include "kernels/cuda/int8_hopper.cuh"
#include "kernels/cuda/store_result.cuh"

namespace
{

using int8::kWhat;
constexpr int kTile = 128, kStep = 64, kStages = 3, kThreads = 256;
constexpr int kPitch = kStep + 16; /* bytes; the eight rows of a fragment are in different banks */
constexpr int kStageBytes = 2 * kTile * kPitch;

/* Nothing here is fused, with or without -fmad=false. */
__device__ __forceinline__ float epilogue(const tsr_int8_gemm &g, int32_t product, int64_t i, int64_t j)
{
    if (g.azp_with_adj != nullptr) {
        product -= g.azp_with_adj[j];
    } else if (g.azp != nullptr) {
        product -= g.azp[i] * g.azp_adj[j];
    }
    const float value = __fmul_rn(g.scale_a[g.one_scale_a ? 0 : i],
                                  __fmul_rn(g.scale_w[g.one_scale_w ? 0 : j], __int2float_rn(product)));
    return g.bias == nullptr ? value : __fadd_rn(value, g.bias[j]);
}

__device__ __forceinline__ void store(const tsr_int8_gemm &g, int64_t i, int64_t j, float value)
{
    const int64_t at = i * g.ldd + j;
    tsr::store_result(g, at, value);
}

__global__ void plain_kernel(const tsr_int8_gemm g)
{
    const int64_t j = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y;
    if (j >= g.n) {
        return;
    }
    int32_t sum = 0;
    for (int64_t x = 0; x < g.k; ++x) {
        sum += (int32_t)g.a[i * g.lda + x] * g.w[j * g.ldw + x];
    }
    store(g, i, j, epilogue(g, sum, i, j));
}

__device__ __forceinline__ void copy16(uint32_t to, const int8_t *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}

/* Loads 128 rows of 64 bytes of both operands. Elements outside become zeros. */
__device__ __forceinline__ void load_stage(const tsr_int8_gemm &g, uint32_t shared, int64_t row_a, int64_t row_w,
                                           int64_t x)
{
#pragma unroll
    for (int i = 0; i < kTile * kStep / 16 / kThreads; ++i) {
        const int chunk = (int)threadIdx.x + i * kThreads, row = chunk / (kStep / 16);
        const int64_t column = x + chunk % (kStep / 16) * 16;
        const uint32_t to = shared + row * kPitch + chunk % (kStep / 16) * 16;
        const bool a = row_a + row < g.m && column < g.k, w = row_w + row < g.n && column < g.k;
        copy16(to, a ? g.a + (row_a + row) * g.lda + column : g.a, a);
        copy16(to + kTile * kPitch, w ? g.w + (row_w + row) * g.ldw + column : g.w, w);
    }
    asm volatile("cp.async.commit_group;");
}

__device__ __forceinline__ void multiply(int32_t c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* The eight warps form two rows of four, and each computes 64 x 32 results. */
__global__ void __launch_bounds__(kThreads, 2) tile_kernel(const tsr_int8_gemm g)
{
    extern __shared__ __align__(16) uint8_t shared[];
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, member = lane % 4;
    const int64_t row_a = (int64_t)blockIdx.y * kTile, row_w = (int64_t)blockIdx.x * kTile;
    const int warp_a = warp / 4 * 64, warp_w = warp % 4 * 32;
    const int steps = (int)((g.k + kStep - 1) / kStep);
    int32_t c[4][4][4] = {};
    for (int s = 0; s < kStages - 1; ++s) {
        load_stage(g, base + s * kStageBytes, row_a, row_w, (int64_t)s * kStep);
    }
    for (int s = 0; s < steps; ++s) {
        asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2));
        __syncthreads();
        load_stage(g, base + (s + kStages - 1) % kStages * kStageBytes, row_a, row_w,
                   (int64_t)(s + kStages - 1) * kStep);
        const uint8_t *const a = shared + s % kStages * kStageBytes, *const w = a + kTile * kPitch;
#pragma unroll
        for (int x = 0; x < kStep; x += 32) {
            uint32_t fa[4][4], fw[4][2];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint8_t *const at = a + (warp_a + i * 16 + group) * kPitch + x + member * 4;
                fa[i][0] = *reinterpret_cast<const uint32_t *>(at);
                fa[i][1] = *reinterpret_cast<const uint32_t *>(at + 8 * kPitch);
                fa[i][2] = *reinterpret_cast<const uint32_t *>(at + 16);
                fa[i][3] = *reinterpret_cast<const uint32_t *>(at + 8 * kPitch + 16);
                const uint8_t *const from = w + (warp_w + i * 8 + group) * kPitch + x + member * 4;
                fw[i][0] = *reinterpret_cast<const uint32_t *>(from);
                fw[i][1] = *reinterpret_cast<const uint32_t *>(from + 16);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    multiply(c[i][j], fa[i], fw[j]);
                }
            }
        }
    }
    asm volatile("cp.async.wait_all;");
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int64_t row = row_a + warp_a + i * 16 + group + e / 2 * 8,
                              column = row_w + warp_w + j * 8 + member * 2 + e % 2;
                if (row < g.m && column < g.n) {
                    store(g, row, column, epilogue(g, c[i][j][e], row, column));
                }
            }
        }
    }
}

tsr_status launch_plain(const tsr_int8_gemm &g, tsr_stream stream, tsr_err *err)
{
    if (g.m > product::kMostBlocks) {
        return tsr_fail(err, TSR_E_SHAPE, "int8 product: the plain kernel supports at most %d rows",
                        product::kMostBlocks);
    }
    plain_kernel<<<dim3((unsigned)host::ceil_div(g.n, 128), (unsigned)g.m), 128, 0, stream>>>(g);
    return host::launched(kWhat, cudaSuccess, err);
}

tsr_status launch_mma(const tsr_int8_gemm &g, tsr_stream stream, tsr_err *err)
{
    const dim3 grid((unsigned)host::ceil_div(g.n, kTile), (unsigned)host::ceil_div(g.m, kTile));
    if (grid.y > product::kMostBlocks) {
        return tsr_fail(err, TSR_E_SHAPE, "int8 product: %lld rows exceed the grid of tiles", (long long)g.m);
    }
    TSR_TRY(host::launched(kWhat, host::allow_shared(tile_kernel, kStages * kStageBytes), err));
    tile_kernel<<<grid, kThreads, kStages * kStageBytes, stream>>>(g);
    return host::launched(kWhat, cudaSuccess, err);
}

bool mma_fits(const tsr_int8_gemm &g)
{
    return g.k % 16 == 0 && product::operands_fit(g.a, g.w, g.lda, g.ldw);
}

} // namespace

tsr_gemm_config tsr_cuda_int8_gemm_choose(const tsr_int8_gemm *args, const tsr_cuda_device *device)
{
    return int8::hopper_fits(args, device) ? int8::fastest(args->m, args->n, args->k, device->processors)
           : mma_fits(*args)               ? tsr_gemm_config{TSR_GEMM_MMA, kTile, kTile, 1}
                                           : tsr_gemm_config{TSR_GEMM_PLAIN, 0, 0, 0};
}

tsr_status tsr_cuda_int8_gemm(const tsr_int8_gemm *args, tsr_stream stream, tsr_err *err)
{
    const tsr_int8_gemm &g = *args;
    const int64_t longest = g.azp_with_adj == nullptr && g.azp == nullptr ? (1 << 17) - 1 : INT32_MAX / (255 * 128);
    if (g.k > longest || (g.azp == nullptr) != (g.azp_adj == nullptr)) {
        return tsr_fail(err, TSR_E_SHAPE,
                        "int8 product: k must be at most 2^17 - 1 (65793 with azp), and azp needs azp_adj");
    }
    int8::problem p;
    TSR_TRY(int8::problem_of(args, &p, err));
    if (g.m == 0 || g.n == 0) {
        return TSR_OK;
    }
    tsr_cuda_device device;
    TSR_TRY(tsr_cuda_current_device(&device, err));
    const tsr_gemm_config config = g.config.kind == TSR_GEMM_AUTO ? tsr_cuda_int8_gemm_choose(args, &device) : g.config;
    const bool hopper = config.kind == TSR_GEMM_NARROW || config.kind == TSR_GEMM_WIDE;
    if ((hopper && !int8::hopper_fits(args, &device)) || (config.kind == TSR_GEMM_MMA && !mma_fits(g))) {
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "int8 product: fast kernels need rows aligned to 16 bytes, and the tile asked for %s; the "
                        "device is %s, sm_%d",
                        hopper ? "needs sm_90" : "needs k to be a multiple of 16", device.name, device.arch);
    }
    return hopper                          ? int8::run_hopper(p, g.out, config, device.processors, stream, err)
           : config.kind == TSR_GEMM_MMA   ? launch_mma(g, stream, err)
           : config.kind == TSR_GEMM_PLAIN ? launch_plain(g, stream, err)
                                           : product::no_such_tile(kWhat, config, err);
}
