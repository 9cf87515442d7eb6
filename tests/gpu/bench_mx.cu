/* Owns the timing of small groups on a GPU: codes to BF16 against a device copy, and against the plain kernel. Buffers
 * rotate, so that no cache serves them. Exit codes: 0; 1 below 0.85 of the copy; 5 no device. */
#include <unistd.h>

#include "kernels/cuda/mx_dequant.h"
#include "tests/gpu/timing.cuh"

enum { kPool = 1 << 30, kScales = kPool / 8, kCopied = 1 << 28 }; /* bytes of codes and of scales that rotate */

static constexpr double kLimit = 0.85;
static constexpr int64_t kRows = 18432, kColumns = 7168;

/* After a rest, so that the power which the timing before took does not lower the clock of this one. */
template <typename F> static double time_rested_us(const F &launch)
{
    enum { kRestUs = 50000 };
    usleep(kRestUs);
    return time_each_us(launch);
}

static double dequant_us(tsr_mx_form form, bool plain, const uint8_t *codes, const uint8_t *scales, uint16_t *out)
{
    const size_t code_bytes = tsr_mx_form_bytes(form, (size_t)(kRows * kColumns)),
                 scale_bytes = (size_t)(kRows * kColumns) / tsr_mx_form_group(form), turns = kPool / code_bytes;
    return time_rested_us([&](cudaStream_t stream, int launch) {
        const size_t turn = (size_t)launch % turns;
        const tsr_mx_matrix matrix = {form, codes + turn * code_bytes, scales + turn * scale_bytes, 0.75f};
        const tsr_mx_dequant args = {matrix, out, kRows, kColumns, plain};
        tsr_err err;
        CHECK_TSR(tsr_cuda_mx_dequant(&args, stream, &err), err);
    });
}

static double copy_speed(const uint8_t *pool, uint16_t *out)
{
    const size_t bytes = kCopied;
    const double us = time_rested_us([&](cudaStream_t stream, int i) {
        CHECK(
            cudaMemcpyAsync(out, pool + (size_t)i % (kPool / bytes) * bytes, bytes, cudaMemcpyDeviceToDevice, stream));
    });
    return 2.0 * (double)bytes / us * 1e-3;
}

int main(void)
{
    static const struct {
        tsr_mx_form form;
        const char *name;
    } kRowsOfTable[] = {{TSR_MX_FORM_MXFP4, "MXFP4"},
                        {TSR_MX_FORM_MXFP8, "MXFP8"},
                        {TSR_MX_FORM_NVFP4_TIMES, "NVFP4, scale * global"},
                        {TSR_MX_FORM_NVFP4_DIVIDED, "NVFP4, scale / global"}};
    const tsr_cuda_device device = need_hopper();
    uint8_t *const codes = device_array<uint8_t>(kPool), *const scales = device_array<uint8_t>(kScales);
    uint16_t *const out =
        device_array<uint16_t>(kCopied / sizeof(uint16_t)); /* room for the copy, and for the values */
    random_codes<<<1024, 256>>>(codes, kPool, 1);
    CHECK(cudaMemset(scales, 0x3A, kScales));
    CHECK(cudaDeviceSynchronize());
    const double copy = copy_speed(codes, out);
    bool fine = true;
    printf("%s: device copy %.0f GB/s\n", device.name, copy);
    printf("\n%lld x %lld to BF16         fast us   GB/s  of copy   plain us  plain/fast\n", (long long)kRows,
           (long long)kColumns);
    for (const auto &row : kRowsOfTable) {
        const double n = (double)(kRows * kColumns), bytes = (double)tsr_mx_form_bytes(row.form, (size_t)n) +
                                                             n / (double)tsr_mx_form_group(row.form) + 2 * n;
        const double fast = dequant_us(row.form, false, codes, scales, out),
                     plain = dequant_us(row.form, true, codes, scales, out), speed = bytes / fast * 1e-3;
        printf("%-24s %12.1f %6.0f %8.2f %10.1f %11.2f\n", row.name, fast, speed, speed / copy, plain, plain / fast);
        fine = fine && speed >= kLimit * copy;
    }
    printf("\nall at %.2f of the copy: %s\n", kLimit, fine ? "yes" : "no");
    return !fine;
}
