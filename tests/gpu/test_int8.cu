/* Owns the check of the int8 product on a GPU: every kernel and tile with every epilogue, the plain one against
 * integers on the host and the others against it, bit for bit. `test_int8 small` leaves out the large shapes and most
 * epilogues (for compute-sanitizer), `test_int8 few` all but one shape and the kernels for Hopper (for racecheck). */
#include <string.h>

#include "kernels/cuda/int8_gemm.h"
#include "tests/gpu/random16.cuh"
#include "tests/gpu/verdicts.cuh"

static int arch;
static bool few; /* without the kernels for Hopper */

/* Returns every fast kernel and tile that the device has, and the choice between them. */
static std::vector<tsr_gemm_config> int8_configs(int64_t k)
{
    std::vector<tsr_gemm_config> found;
    if (k % 16 == 0) {
        found.push_back({TSR_GEMM_MMA, 128, 128, 1});
    }
    if (arch == 90 && !few) {
        for (const int splits : {1, 2, 3, 8}) {
            found.push_back({TSR_GEMM_NARROW, 64, 64, splits});
            found.push_back({TSR_GEMM_NARROW, 64, 128, splits});
            found.push_back({TSR_GEMM_NARROW, 128, 64, splits});
            found.push_back({TSR_GEMM_NARROW, 128, 128, splits});
        }
        for (const int ctas : {1, 2}) {
            found.push_back({TSR_GEMM_WIDE, 64, 128, ctas});
            found.push_back({TSR_GEMM_WIDE, 128, 128, ctas});
            found.push_back({TSR_GEMM_WIDE, 128, 256, ctas});
        }
    }
    if (!few) {
        found.push_back({TSR_GEMM_AUTO, 0, 0, 0});
    }
    return found;
}

/* The operands of an int8 product on the host and on the device. */
struct int8_operands {
    std::vector<int8_t> a, w;
    std::vector<float> scale_a, scale_w, bias;
    std::vector<int32_t> azp, azp_adj, azp_with_adj;
    tsr_int8_gemm on_device; /* all of them; the epilogue omits some */
};

/* `extreme`: all products and zero points have the largest magnitude and add up. */
static int8_operands draw_int8(int64_t m, int64_t n, int64_t k, int64_t pad, bool extreme)
{
    const int64_t ld = (k + 15) / 16 * 16 + pad;
    int8_operands o = {};
    for (int64_t i = 0; i < m * ld; ++i) {
        o.a.push_back(extreme ? (k > 65793 ? -128 : 127) : (int8_t)mix(seed++));
    }
    for (int64_t i = 0; i < n * ld; ++i) {
        o.w.push_back(extreme ? -128 : (int8_t)mix(seed++));
    }
    for (int64_t i = 0; i < m; ++i) {
        o.scale_a.push_back((float)(0.001 + random_unit()));
        o.azp.push_back(extreme ? -128 : (int)(mix(seed++) % 256) - 128);
    }
    for (int64_t j = 0; j < n; ++j) {
        o.scale_w.push_back((float)(0.001 + random_unit())), o.bias.push_back((float)(random_unit() * 1000 - 500));
        int32_t sum = 0;
        for (int64_t x = 0; x < k; ++x) {
            sum += o.w[j * ld + x];
        }
        o.azp_adj.push_back(sum), o.azp_with_adj.push_back(sum * -77);
    }
    tsr_int8_gemm &g = o.on_device;
    g.a = upload(o.a), g.w = upload(o.w), g.scale_a = upload(o.scale_a), g.scale_w = upload(o.scale_w);
    g.bias = upload(o.bias), g.azp = upload(o.azp), g.azp_adj = upload(o.azp_adj);
    g.azp_with_adj = upload(o.azp_with_adj);
    g.m = m, g.n = n, g.k = k, g.lda = g.ldw = ld, g.ldd = n + pad;
    return o;
}

enum { kInt8Variants = 6 * 2 * 3, kBeyond = 3 /* rows after the results, which must stay as they are */ };

/* Returns the product with an epilogue: scaled; bias; azp per tensor, per token, each without and with bias; with a
 * scale for each row or one for all; of each type. */
static tsr_int8_gemm int8_variant(const int8_operands &o, int variant)
{
    tsr_int8_gemm g = o.on_device;
    const int azp = variant % 6 / 2;
    g.one_scale_a = g.one_scale_w = variant / 6 % 2 != 0;
    g.out = (tsr_gemm_out)(variant / 12);
    g.bias = variant % 2 == 0 ? nullptr : g.bias;
    g.azp_with_adj = azp == 1 ? g.azp_with_adj : nullptr;
    g.azp = azp == 2 ? g.azp : nullptr, g.azp_adj = azp == 2 ? g.azp_adj : nullptr;
    return g;
}

/* Returns how many of some results differ from those computed here. */
static size_t wrong_int8(const int8_operands &o, const tsr_int8_gemm &g, const std::vector<uint8_t> &results)
{
    const size_t size = g.out == TSR_GEMM_F32 ? 4 : 2;
    const int64_t step_m = g.m > 40 ? 37 : 1, step_n = g.n > 40 ? 31 : 1;
    size_t wrong = 0;
    for (int64_t i = 0; i < g.m; i += step_m) {
        for (int64_t j = 0; j < g.n; j += step_n) {
            int32_t p = 0;
            for (int64_t x = 0; x < g.k; ++x) {
                p += (int32_t)o.a[i * g.lda + x] * o.w[j * g.ldw + x];
            }
            p -= g.azp_with_adj != nullptr ? o.azp_with_adj[j] : g.azp != nullptr ? o.azp[i] * o.azp_adj[j] : 0;
            volatile float value = o.scale_w[g.one_scale_w ? 0 : j] * (float)p;
            value = o.scale_a[g.one_scale_a ? 0 : i] * value;
            value = g.bias == nullptr ? value : value + o.bias[j];
            const float wide = value;
            const uint16_t narrow = g.out == TSR_GEMM_F32 ? 0 : to16(wide, g.out == TSR_GEMM_BF16);
            wrong +=
                memcmp(&results[(size_t)(i * g.ldd + j) * size], size == 4 ? (const void *)&wide : &narrow, size) != 0;
        }
    }
    return wrong;
}

/* Holds the plain kernel to results computed here, and the others to it, bit for bit. Every `step`-th epilogue. */
static void check_int8(int64_t m, int64_t n, int64_t k, int64_t pad, int step = 1, bool extreme = false)
{
    const int8_operands o = draw_int8(m, n, k, pad, extreme);
    const size_t most = (size_t)((m + kBeyond) * o.on_device.ldd * 4);
    uint8_t *const d = device_array<uint8_t>(most);
    for (int variant = 0; variant < kInt8Variants; variant += step) {
        tsr_int8_gemm g = int8_variant(o, variant);
        if (extreme && (k > 65793 ? g.azp != nullptr || g.azp_with_adj != nullptr : g.azp == nullptr)) {
            continue; /* k is too large for azp, or the largest sums need it */
        }
        const size_t bytes = (size_t)((m + kBeyond) * g.ldd) * (g.out == TSR_GEMM_F32 ? 4 : 2);
        const auto run = [&](const tsr_gemm_config &config) {
            tsr_err err;
            g.config = config, g.d = d;
            CHECK(cudaMemset(d, 0xFF, bytes));
            CHECK_TSR(tsr_cuda_int8_gemm(&g, 0, &err), err);
            return download(d, bytes);
        };
        const std::vector<uint8_t> plain = run({TSR_GEMM_PLAIN, 0, 0, 0});
        char detail[160];
        snprintf(detail, sizeof detail, "%lld x %lld x %lld pad %lld variant %d, plain", (long long)m, (long long)n,
                 (long long)k, (long long)pad, variant);
        verdict(wrong_int8(o, g, plain) == 0, "int8 product", detail);
        for (const tsr_gemm_config &config : int8_configs(k)) {
            snprintf(detail, sizeof detail, "%lld x %lld x %lld pad %lld variant %d, kernel %d %d x %d / %d",
                     (long long)m, (long long)n, (long long)k, (long long)pad, variant, (int)config.kind, config.tokens,
                     config.rows, config.cluster);
            verdict(run(config) == plain, "int8 product", detail);
        }
    }
    const void *const all[] = {o.on_device.a,         o.on_device.w,   o.on_device.scale_a, o.on_device.scale_w,
                               o.on_device.bias,      o.on_device.azp, o.on_device.azp_adj, o.on_device.azp_with_adj,
                               static_cast<void *>(d)};
    for (const void *p : all) {
        CHECK(cudaFree(const_cast<void *>(p)));
    }
}

static void check_refusals(void)
{
    tsr_err err;
    tsr_int8_gemm h = {};
    h.m = h.n = 1, h.k = h.lda = h.ldw = 1 << 17, h.ldd = 1;
    verdict(tsr_cuda_int8_gemm(&h, 0, &err) == TSR_E_SHAPE, "refusal", "k = 2^17");
    h.k = h.lda = h.ldw = 8;
    for (const tsr_gemm_kind kind : {TSR_GEMM_MMA, TSR_GEMM_NARROW, TSR_GEMM_WIDE}) {
        h.config = {kind, 128, 128, 1};
        verdict(tsr_cuda_int8_gemm(&h, 0, &err) == TSR_E_UNSUPPORTED, "refusal", "rows of 8 bytes");
    }
    h.k = h.lda = h.ldw = 16, h.config = {arch == 90 ? TSR_GEMM_WIDE : TSR_GEMM_FEW, 64, 64, 1};
    verdict(tsr_cuda_int8_gemm(&h, 0, &err) == TSR_E_UNSUPPORTED, "refusal", "an int8 tile that does not exist");
}

int main(int argc, char **argv)
{
    arch = need_gpu().arch;
    const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
    few = argc > 1 && strcmp(argv[1], "few") == 0;
    if (few) {
        check_int8(17, 24, 112, 0);
        return conclude();
    }
    const int64_t ragged[][3] = {{1, 1, 1},       {3, 5, 16},      {17, 130, 100},  {129, 257, 144}, {128, 128, 64},
                                 {65, 300, 1000}, {200, 64, 4112}, {300, 520, 384}, {257, 1032, 272}};
    for (const int64_t *s : ragged) {
        check_int8(s[0], s[1], s[2], 0, small ? 7 : 1);
        check_int8(s[0], s[1], s[2], 16, small ? 7 : 1);
    }
    check_int8(70, 136, (1 << 17) - 1, 0, 1, true);
    check_int8(70, 136, 65793, 0, 1, true);
    check_int8(1000, 4808, 272, 0, kInt8Variants); /* CTAs compute several wide tiles */
    check_refusals();
    if (!small) {
        /* with fewer k tiles than a ring has stages, and more */
        for (const int64_t k : {128, 272, 512, 896, 2048}) {
            check_int8(2050, 4104, k, 0, 11);
        }
        check_int8(1024, 2112, 7168, 0, 7);
    }
    return conclude();
}
