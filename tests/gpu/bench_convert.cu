/* Times the conversions of block FP8 on a GPU, tokens to e4m3 and blocks to BF16, against a device copy: bench_convert.
 * CUDA graphs of 20 launches, median of 22 replays. Exit codes: 0; 1 below 0.85 of the copy; 5 no device. */
#include "kernels/cuda/block_fp8_convert.h"
#include "tests/gpu/timing.cuh"

static const int64_t kRows = 18432, kColumns = 7168, kCells = kRows * kColumns;
static const double kFloor = 0.85;

int main(void)
{
    const tsr_cuda_device device = need_hopper();
    uint8_t *const codes = device_array<uint8_t>((size_t)kCells * 2);
    uint16_t *const values = device_array<uint16_t>((size_t)kCells), *const out =
                                                                         device_array<uint16_t>((size_t)kCells);
    float *const token_scales = device_array<float>((size_t)kCells / 128), *const blocks =
                                                                               device_array<float>(144 * 56);
    random_codes<<<1024, 256>>>(codes, kCells, 2ull << 40);
    random_floats<<<256, 256>>>(blocks, 144 * 56, 1e-4f, 2e-3f, 4ull << 40);
    random_bf16<<<1024, 256>>>(values, kCells, 5ull << 40);
    CHECK(cudaDeviceSynchronize());
    tsr_err err;
    const double copy_us = time_each_us([&](cudaStream_t stream, int) {
        CHECK(cudaMemcpyAsync(out, values, (size_t)kCells * 2, cudaMemcpyDeviceToDevice, stream));
    });
    const double dequantize_us = time_each_us([&](cudaStream_t stream, int) {
        CHECK_TSR(tsr_cuda_dequantize_blocks(codes, blocks, kRows, kColumns, kColumns, out, kColumns, stream, &err),
                  err);
    });
    const double quantize_us = time_each_us([&](cudaStream_t stream, int) {
        CHECK_TSR(tsr_cuda_quantize_tokens(values, kRows, kColumns, kColumns, codes, kColumns, token_scales, kRows,
                                           stream, &err),
                  err);
    });
    const double copy = 4.0 * kCells / copy_us * 1e-3, quantize = (3 + 4.0 / 128) * kCells / quantize_us * 1e-3,
                 dequantize = 3.0 * kCells / dequantize_us * 1e-3;
    printf(
        "%s: device copy %.0f GB/s; quantizing tokens %.0f (%.2f of it), dequantizing blocks %.0f (%.2f); limit %.2f\n",
        device.name, copy, quantize, quantize / copy, dequantize, dequantize / copy, kFloor);
    return quantize < kFloor * copy || dequantize < kFloor * copy;
}
