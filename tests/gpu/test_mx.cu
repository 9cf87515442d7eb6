/* Owns the check of small groups on a GPU: values of every code under every scale against the CPU's definition, bit by
 * bit, and products bit by bit against the CPU's, which FP64 holds to their bound. `test_mx small` leaves out the large
 * shapes (for compute-sanitizer). */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <string.h>

#include <vector>

extern "C" {
#include "kernels/cpu/variants.h"
}
#include "kernels/cuda/mx_dequant.h"
#include "kernels/cuda/mx_gemm.h"
#include "tests/gpu/gpu_common.cuh"
#include "tests/gpu/verdicts.cuh"

static uint64_t seed = 20261122;

static const tsr_mx_form kForms[] = {TSR_MX_FORM_MXFP4, TSR_MX_FORM_MXFP8, TSR_MX_FORM_NVFP4_TIMES,
                                     TSR_MX_FORM_NVFP4_DIVIDED};

static bool is_nvfp4(tsr_mx_form form)
{
    return tsr_mx_form_group(form) == 16;
}

/* A matrix on the host, and the same on the GPU. */
struct matrix {
    std::vector<uint8_t> codes, scales;
    tsr_mx_matrix host, device;

    matrix(tsr_mx_form form, size_t rows, size_t k, float global)
    {
        codes.resize(tsr_mx_form_bytes(form, rows * k));
        scales.resize(form == TSR_MX_FORM_BF16 ? 0 : rows * k / tsr_mx_form_group(form));
        host = {form, codes.data(), scales.data(), global};
        device = host;
    }

    void to_device()
    {
        device.codes = upload(codes);
        device.scales = upload(scales);
    }

    ~matrix()
    {
        CHECK(cudaFree(const_cast<void *>(device.codes)));
        CHECK(cudaFree(const_cast<uint8_t *>(device.scales)));
    }
};

/* ---- values ---- */

static std::vector<uint16_t> by_definition(const tsr_mx_matrix &x, size_t n)
{
    const size_t group = tsr_mx_form_group(x.form);
    std::vector<uint16_t> y(n);
    std::vector<float> t(n / group);
    if (x.form == TSR_MX_FORM_MXFP8) {
        (void)tsr_decode_mxfp8_bf16_ref(static_cast<const uint8_t *>(x.codes), n, x.scales, y.data());
    } else {
        tsr_mx_scales(&x, 0, n / group, t.data());
        tsr_decode_e2m1_bf16_ref(static_cast<const uint8_t *>(x.codes), n, group, t.data(), y.data());
    }
    return y;
}

static void compare_values(matrix &x, size_t rows, size_t k, const char *what)
{
    const size_t n = rows * k;
    const std::vector<uint16_t> want = by_definition(x.host, n);
    x.to_device();
    uint16_t *const out = device_array<uint16_t>(n + 64);
    for (int plain = 0; plain < 2; ++plain) {
        CHECK(cudaMemset(out, 0xA5, (n + 64) * sizeof *out));
        const tsr_mx_dequant args = {x.device, out, (int64_t)rows, (int64_t)k, plain != 0};
        tsr_err err;
        CHECK_TSR(tsr_cuda_mx_dequant(&args, 0, &err), err);
        const std::vector<uint16_t> got = download(out, n + 64);
        size_t wrong = 0, first = 0;
        for (size_t i = n + 64; i-- > 0;) {
            const bool differs = got[i] != (i < n ? want[i] : 0xA5A5);
            wrong += differs;
            first = differs ? i : first;
        }
        char detail[160];
        snprintf(detail, sizeof detail, "%s %s, %zu x %zu, global %g, %s: %zu wrong, the first at %zu: %04x, not %04x",
                 tsr_mx_form_name(x.host.form), what, rows, k, (double)x.host.global, plain ? "plain" : "fast", wrong,
                 first, got[first], first < n ? want[first] : 0xA5A5);
        verdict(wrong == 0, "values", detail);
    }
    CHECK(cudaFree(out));
}

/* Every byte of codes under every scale: a row for each scale, in which the bytes come one after another. */
static void check_all_codes(tsr_mx_form form, float global)
{
    const size_t k = form == TSR_MX_FORM_MXFP8 ? 256 : 512, scales = is_nvfp4(form) ? 0x7F : 255;
    matrix x(form, scales, k, global);
    for (size_t i = 0; i < x.codes.size(); ++i) {
        x.codes[i] = (uint8_t)i;
    }
    for (size_t i = 0; i < x.scales.size(); ++i) {
        x.scales[i] = (uint8_t)(i / (k / tsr_mx_form_group(form)));
    }
    compare_values(x, scales, k, "all codes, all scales");
}

static void fill(matrix &x, bool moderate)
{
    const tsr_mx_form form = x.host.form;
    for (uint8_t &c : x.codes) {
        c = (uint8_t)mix(seed++);
        if (moderate && form == TSR_MX_FORM_MXFP8 && (c & 0x7F) == 0x7F) {
            c ^= 1;
        }
    }
    for (size_t i = 0; form == TSR_MX_FORM_BF16 && i < x.codes.size(); i += 2) {
        x.codes[i + 1] = (uint8_t)((i % 3 == 0 ? 0x80 : 0) | (0x3B + mix(seed++) % 5)); /* 2^-9 to 2 */
    }
    for (uint8_t &s : x.scales) {
        const uint64_t r = mix(seed++);
        s = (uint8_t)(is_nvfp4(form) ? r % 0x7F : moderate ? 120 + r % 16 : r % 255);
    }
}

static void check_random_codes(tsr_mx_form form, size_t rows, size_t k)
{
    matrix x(form, rows, k, 0.37f);
    fill(x, false);
    compare_values(x, rows, k, "random codes");
}

/* ---- products ---- */

static uint16_t to16(float x, bool bf16)
{
    return bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x)) : __half_as_ushort(__float2half_rn(x));
}

static double code_value(const matrix &x, size_t at)
{
    if (x.host.form == TSR_MX_FORM_BF16) {
        return (double)__bfloat162float(__ushort_as_bfloat16((uint16_t)(x.codes[2 * at] | x.codes[2 * at + 1] << 8)));
    }
    const bool bytes = x.host.form == TSR_MX_FORM_MXFP8;
    const uint8_t code = bytes ? x.codes[at] : x.codes[at / 2] >> at % 2 * 4 & 15;
    const int mantissa = bytes ? 3 : 1, bias = bytes ? 7 : 1, top = bytes ? 0x80 : 8;
    const int exponent = (code & (top - 1)) >> mantissa, fraction = code & ((1 << mantissa) - 1);
    const double size =
        ldexp(fraction + (exponent > 0 ? 1 << mantissa : 0), (exponent > 0 ? exponent : 1) - bias - mantissa);
    return code & top ? -size : size;
}

static void check_product(tsr_mx_form a_form, tsr_mx_form w_form, size_t m, size_t n, size_t k)
{
    const size_t ldd = n + 5, group = tsr_mx_form_group(w_form), groups = k / group;
    matrix a(a_form, m, k, 0.0123f), w(w_form, n, k, 1.7e-3f);
    fill(a, true);
    fill(w, true);
    a.to_device();
    w.to_device();
    std::vector<float> want(m * ldd);
    const tsr_mx_gemm_args reference = {a.host, w.host, want.data(), m, n, k, ldd};
    tsr_mx_gemm_reference(&reference);
    uint8_t *const d = device_array<uint8_t>(m * ldd * 4);
    size_t wrong = 0, beyond = 0;
    for (int out = TSR_GEMM_BF16; out <= TSR_GEMM_F32; ++out) {
        const size_t width = out == TSR_GEMM_F32 ? 4 : 2;
        CHECK(cudaMemset(d, 0xFF, m * ldd * 4));
        const tsr_mx_gemm g = {a.device,     w.device,         d, (int64_t)m, (int64_t)n, (int64_t)k,
                               (int64_t)ldd, (tsr_gemm_out)out};
        tsr_err err;
        CHECK_TSR(tsr_cuda_mx_gemm(&g, 0, &err), err);
        const std::vector<uint8_t> got = download(d, m * ldd * width);
        for (size_t i = 0; i < m * ldd; ++i) {
            const uint16_t narrow = to16(want[i], out == TSR_GEMM_BF16);
            const void *const expected = out == TSR_GEMM_F32 ? (const void *)&want[i] : &narrow;
            static const uint8_t kUntouched[4] = {0xFF, 0xFF, 0xFF, 0xFF};
            wrong += memcmp(&got[i * width], i % ldd < n ? expected : kUntouched, width) != 0;
        }
    }
    std::vector<float> ta(m * groups, 1.0f), tw(n * groups);
    if (a_form != TSR_MX_FORM_BF16) {
        tsr_mx_scales(&a.host, 0, m * groups, ta.data());
    }
    tsr_mx_scales(&w.host, 0, n * groups, tw.data());
    const double bound = 1.01 * (double)tsr_mx_gemm_roundings(k, group) * 0x1p-24;
    double worst = 0;
    const size_t step = n > 64 ? 13 : 1;
    for (size_t i = 0; i < m; i += step) {
        for (size_t j = 0; j < n; j += step) {
            double sum = 0, mass = 0;
            for (size_t x = 0; x < k; ++x) {
                const double term = code_value(a, i * k + x) * ta[i * groups + x / group] *
                                    (code_value(w, j * k + x) * tw[j * groups + x / group]);
                sum += term, mass += fabs(term);
            }
            const double error = fabs((double)want[i * ldd + j] - sum);
            beyond += !(error <= bound * mass);
            worst = fmax(worst, error / (bound * mass));
        }
    }
    char detail[192];
    snprintf(detail, sizeof detail, "%s x %s, %zu x %zu x %zu: %zu unlike the CPU's, %zu beyond the bound, worst %.3f",
             tsr_mx_form_name(a_form), tsr_mx_form_name(w_form), m, n, k, wrong, beyond, worst);
    verdict(wrong == 0 && beyond == 0 && worst < 0.9, "product", detail);
    CHECK(cudaFree(d));
}

static void check_refusals(void)
{
    tsr_err err;
    tsr_mx_dequant v = {};
    v.matrix.form = TSR_MX_FORM_BF16;
    verdict(tsr_cuda_mx_dequant(&v, 0, &err) == TSR_E_SHAPE, "refusal", "values of BF16");
    v.matrix.form = TSR_MX_FORM_MXFP4, v.rows = 1, v.k = 16;
    verdict(tsr_cuda_mx_dequant(&v, 0, &err) == TSR_E_SHAPE, "refusal", "half a group");
    tsr_mx_gemm g = {};
    g.a.form = TSR_MX_FORM_NVFP4_TIMES, g.w.form = TSR_MX_FORM_MXFP4, g.m = g.n = g.ldd = 1, g.k = 32;
    verdict(tsr_cuda_mx_gemm(&g, 0, &err) == TSR_E_SHAPE, "refusal", "groups of 16 and of 32");
    g.a.form = g.w.form = TSR_MX_FORM_BF16;
    verdict(tsr_cuda_mx_gemm(&g, 0, &err) == TSR_E_SHAPE, "refusal", "weights of BF16");
}

int main(int argc, char **argv)
{
    /* Ordinary ones; values that are subnormal in BF16, and in FP32; values beyond BF16, of which Inf comes. */
    static const float kGlobals[] = {1.0f, 0x1.3579BEp-9f, 0x1.5p-126f, 0x1.9p-139f, 0x1.FEDCBAp117f};
    (void)need_gpu();
    const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
    check_all_codes(TSR_MX_FORM_MXFP4, 0);
    check_all_codes(TSR_MX_FORM_MXFP8, 0);
    for (float global : kGlobals) {
        check_all_codes(TSR_MX_FORM_NVFP4_TIMES, global);
        check_all_codes(TSR_MX_FORM_NVFP4_DIVIDED, 1 / global > 0 && isfinite(1 / global) ? 1 / global : 0x1p126f);
    }
    for (tsr_mx_form form : kForms) {
        check_random_codes(form, 1, 32);
        check_random_codes(form, 3, 160);
        check_random_codes(form, 127, 32 * 67);
        const tsr_mx_form sides[] = {TSR_MX_FORM_BF16, form};
        for (tsr_mx_form side : sides) {
            check_product(side, form, 1, 1, 32);
            check_product(side, form, 3, 17, 32 * 33);
            check_product(side, form, 16, 40, 2048);
            if (!small) {
                check_product(side, form, 64, 512, 7168);
            }
        }
        if (!small) {
            check_random_codes(form, 4096, 7168);
        }
    }
    check_refusals();
    return conclude();
}
