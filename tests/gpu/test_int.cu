/* Owns the check of the integer kernels on a GPU, except the int8 product: conversions code by code against the CPU's
 * model, the weight-only product against FP64 within its bound and, launched in a row, against itself. `test_int small`
 * leaves out the large shapes (for compute-sanitizer). */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <string.h>

#include <vector>

extern "C" {
#include "kernels/cpu/fast_dequant.h"
}
#include "kernels/cuda/fast_dequant.h"
#include "kernels/cuda/weight_only_gemm.h"
#include "tests/gpu/gpu_common.cuh"
#include "tests/gpu/random16.cuh"
#include "tests/gpu/verdicts.cuh"

static int arch;

static float from16(uint16_t x, bool bf16)
{
    return bf16 ? __bfloat162float(__ushort_as_bfloat16(x)) : __half2float(__ushort_as_half(x));
}

/* Byte and nibble of W[k][n] in layout T: the closed form. */
static size_t place(int bits, size_t rows, size_t k, size_t n, unsigned *nibble)
{
    const size_t turns = 16 / bits, group = 128 / bits, per_word = 32 / bits;
    const size_t word =
        32 * (n / turns * (rows / 64) + k / 64) + n % turns * (64 / per_word) + 4 * (k % 64 / group) + k % 8 / 2;
    const size_t slot = k % group / 8 + k % 2 * (per_word / 2);
    *nibble = bits == 8 ? 0 : slot % 2;
    return 4 * word + (bits == 8 ? slot : slot / 2);
}

static std::vector<uint8_t> laid_out(const std::vector<int8_t> &codes, int bits, size_t k, size_t n)
{
    std::vector<uint8_t> out(k * n * bits / 8, 0);
    for (size_t j = 0; j < n; ++j) {
        for (size_t x = 0; x < k; ++x) {
            unsigned nibble;
            const size_t byte = place(bits, k, x, j, &nibble);
            out[byte] |= (uint8_t)((codes[j * k + x] + (bits == 8 ? 128 : 8)) << 4 * nibble);
        }
    }
    return out;
}

/* ---- conversions ---- */

static void check_codes(int bits, bool bf16, bool native)
{
    const int64_t k = 1024, n = 1024;
    std::vector<uint32_t> words((size_t)(k * n * bits / 32));
    for (size_t i = 0; i < words.size(); ++i) { /* each code at each place, then anything */
        words[i] = i < 1024 ? (uint32_t)(i % 256) << 8 * (i / 256) | (uint32_t)mix(i) % 256 << (8 * (i / 256) + 8) % 32
                            : (uint32_t)mix(seed + i);
    }
    uint32_t *const in = upload(words);
    uint32_t *const out = device_array<uint32_t>((size_t)(k * n / 2));
    const tsr_fast_dequant args = {in, out, k, n, bits, bf16, native, nullptr, 0};
    tsr_err err;
    CHECK_TSR(tsr_cuda_fast_dequant(&args, 0, &err), err);
    const std::vector<uint32_t> got = download(out, (size_t)(k * n / 2));
    const size_t pairs = bits == 8 ? 2 : 4;
    size_t wrong = 0;
    for (size_t i = 0; i < words.size(); ++i) {
        uint32_t want[4];
        bits == 8 ? (bf16 ? tsr_fast_int8_bf16 : tsr_fast_int8_f16)(words[i], want)
                  : (bf16 ? tsr_fast_int4_bf16 : tsr_fast_int4_f16)(words[i], want);
        for (size_t p = 0; p < pairs; ++p) {
            wrong += got[i * pairs + p] != want[p];
        }
    }
    char detail[96];
    snprintf(detail, sizeof detail, "int%d %s %s: %zu wrong", bits, bf16 ? "bf16" : "fp16", native ? "native" : "fast",
             wrong);
    verdict(wrong == 0, "conversion", detail);
    CHECK(cudaFree(in));
    CHECK(cudaFree(out));
}

static void check_scaled(int bits, bool bf16, int64_t group)
{
    const size_t k = 256, n = 128;
    std::vector<int8_t> codes(k * n);
    for (int8_t &c : codes) {
        c = (int8_t)(bits == 8 ? (int)(mix(seed++) % 256) - 128 : (int)(mix(seed++) % 16) - 8);
    }
    std::vector<uint16_t> scales(group == 0 ? n : k / group * n);
    for (uint16_t &s : scales) {
        s = to16((float)(0.001 + random_unit()), bf16);
    }
    uint8_t *const words = upload(laid_out(codes, bits, k, n));
    uint16_t *const s = upload(scales), *const out = device_array<uint16_t>(k * n);
    const tsr_fast_dequant args = {words, out, (int64_t)k, (int64_t)n, bits, bf16, false, s, group};
    tsr_err err;
    CHECK_TSR(tsr_cuda_fast_dequant(&args, 0, &err), err);
    const std::vector<uint16_t> got = download(out, k * n);
    /* out[p] belongs to the code that comes p-th out of the words: even places of a word before odd ones. */
    size_t wrong = 0;
    for (size_t j = 0; j < n; ++j) {
        for (size_t x = 0; x < k; ++x) {
            unsigned nibble;
            const size_t byte = place(bits, k, x, j, &nibble), per_word = 32 / bits;
            const size_t slot = bits == 8 ? byte % 4 : byte % 4 * 2 + nibble,
                         element = slot % (per_word / 2) * 2 + slot / (per_word / 2);
            const float scale = from16(scales[group == 0 ? j : x / group * n + j], bf16);
            wrong += got[byte / 4 * per_word + element] != to16((float)codes[j * k + x] * scale, bf16) &&
                     codes[j * k + x] != 0;
        }
    }
    char detail[96];
    snprintf(detail, sizeof detail, "int%d %s group %lld: %zu wrong", bits, bf16 ? "bf16" : "fp16", (long long)group,
             wrong);
    verdict(wrong == 0, "scaled conversion", detail);
    CHECK(cudaFree(words));
    CHECK(cudaFree(s));
    CHECK(cudaFree(out));
}

/* ---- the weight-only product ---- */

/* So many that every multiprocessor has narrow CTAs of the Hopper kernel, beside which the next launch begins. */
enum { kManyColumns = 32704 };

struct weight_only_operands {
    std::vector<int8_t> codes;
    std::vector<uint16_t> a, scales, zeros;
};

static weight_only_operands draw_weight_only(size_t tokens, size_t weights, size_t groups, int bits, bool bf16)
{
    weight_only_operands drawn = {std::vector<int8_t>(weights), std::vector<uint16_t>(tokens),
                                  std::vector<uint16_t>(groups), std::vector<uint16_t>(groups)};
    for (int8_t &c : drawn.codes) {
        c = (int8_t)(bits == 8 ? (int)(mix(seed++) % 256) - 128 : (int)(mix(seed++) % 16) - 8);
    }
    for (uint16_t &x : drawn.a) {
        x = to16((float)(random_unit() * 4 - 2), bf16);
    }
    for (size_t i = 0; i < groups; ++i) {
        const double scale = 0.001 + 0.01 * random_unit();
        drawn.scales[i] = to16((float)scale, bf16);
        drawn.zeros[i] = to16((float)(scale * (random_unit() - 0.5) * (bits == 8 ? 200 : 14)), bf16);
    }
    return drawn;
}

/* with_zeros: weights are code * scale + zero. */
static void check_weight_only(int64_t m, int64_t n, int64_t k, int bits, int64_t group, bool bf16,
                              bool with_zeros = false)
{
    const int64_t lda = k + 8, ldd = n + 8;
    const weight_only_operands drawn =
        draw_weight_only((size_t)(m * lda), (size_t)(k * n), (size_t)(group == 0 ? n : k / group * n), bits, bf16);
    const std::vector<int8_t> &codes = drawn.codes;
    const std::vector<uint16_t> &a = drawn.a, &scales = drawn.scales, &zeros = drawn.zeros;
    uint8_t *const words = upload(laid_out(codes, bits, (size_t)k, (size_t)n));
    uint16_t *const da = upload(a), *const ds = upload(scales), *const d = device_array<uint16_t>((size_t)(m * ldd)),
                    *const dz = upload(zeros);
    static const char *const kNames[] = {"automatic", "plain", "mma", "tiles"};
    for (int kind = TSR_WEIGHT_ONLY_AUTO; kind <= TSR_WEIGHT_ONLY_TILES; ++kind) {
        if (kind == TSR_WEIGHT_ONLY_TILES && arch != 90) {
            continue;
        }
        tsr_weight_only_gemm g = {};
        g.a = da, g.w = words, g.scales = ds, g.zeros = with_zeros ? dz : nullptr, g.d = d;
        g.m = m, g.n = n, g.k = k, g.lda = lda, g.ldd = ldd, g.group = group, g.bits = bits, g.bf16 = bf16,
        g.kind = (tsr_weight_only_kind)kind;
        tsr_err err;
        std::vector<uint16_t> got[2];
        for (std::vector<uint16_t> &result : got) {
            CHECK(cudaMemset(d, 0xFF, (size_t)(m * ldd) * 2));
            CHECK_TSR(tsr_cuda_weight_only_gemm(&g, 0, &err), err);
            result = download(d, (size_t)(m * ldd));
        }
        const double unit = bf16 ? 0x1p-8 : 0x1p-11;
        const int64_t step = n > 4096 ? 61 : n > 128 ? 7 : 1;
        const double units =
            kind == TSR_WEIGHT_ONLY_PLAIN
                ? (double)k / 4
                : (double)(k / 16 + 64); /* in units of 2^-22; the plain kernel adds one product at a time */
        const bool streamed = kind == TSR_WEIGHT_ONLY_AUTO && arch == 90 && !with_zeros &&
                              m <= (bits == 4 && group == 128 ? 32 : 16); /* scales are multiplied onto sums */
        const bool exact_weights = kind == TSR_WEIGHT_ONLY_PLAIN || streamed || (!with_zeros && group == 0);
        const bool apart = streamed && m <= 16 && bits == 4 && !bf16;
        const int64_t first = m > 64 ? m - 64 : 0; /* the last tokens, and of those before some */
        double worst = 0, lean = 0, squares = 0;   /* sums of error * exact and of exact^2 */
        size_t beyond = 0, judged = 0;
        for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = i < first && i % 16 != 5 ? n : 0; j < n; j += step) {
                double exact = 0, mass = 0, sizes = 0;
                for (int64_t x = 0; x < k; ++x) {
                    const size_t from = (size_t)(group == 0 ? j : x / group * n + j);
                    const double scale = (double)from16(scales[from], bf16);
                    const double zero = with_zeros ? (double)from16(zeros[from], bf16) : 0;
                    const double product =
                        (double)from16(a[(size_t)(i * lda + x)], bf16) * (codes[(size_t)(j * k + x)] * scale + zero);
                    exact += product, mass += fabs(product);
                    sizes +=
                        apart ? fabs(from16(a[(size_t)(i * lda + x)], bf16)) * (codes[(size_t)(j * k + x)] + 16) * scale
                              : fabs(product);
                }
                double bound = units * 0x1p-22 * sizes + (exact_weights ? 0 : unit * mass);
                bound += unit * (fabs(exact) + bound) + (bf16 ? 0x1p-133 : 0x1p-25);
                const double off = (double)from16(got[0][(size_t)(i * ldd + j)], bf16) - exact, error = fabs(off);
                lean += off * exact, squares += exact * exact, judged += 1;
                beyond += !(error <= bound);
                worst = fmax(worst, error / bound);
            }
            for (int64_t j = n; j < ldd; ++j) {
                beyond += got[0][(size_t)(i * ldd + j)] != 0xFFFF;
            }
        }
        /* If all results are truncated, by half a step in the mean, no single one shows it. */
        const double slope = squares > 0 ? lean / squares : 0;
        const bool leans = judged >= 512 && !(fabs(slope) <= unit / 4);
        char detail[192];
        snprintf(detail, sizeof detail,
                 "%lld x %lld x %lld int%d group %lld%s %s %s: %zu beyond, worst %.3f, bias %.1e, runs %s",
                 (long long)m, (long long)n, (long long)k, bits, (long long)group, with_zeros ? " zeros" : "",
                 bf16 ? "bf16" : "fp16", kNames[kind], beyond, worst, slope, got[0] == got[1] ? "agree" : "differ");
        verdict(beyond == 0 && !leans && got[0] == got[1], "weight-only product", detail);
    }
    void *const all[] = {words, da, ds, d, dz};
    for (void *p : all) {
        CHECK(cudaFree(p));
    }
}

/* Products in a row, each of the results of the one before: the same bits whether or not the next may begin before its
 * tokens are there. */
static void check_row(int64_t m, int64_t n, int bits, int64_t group, bool bf16)
{
    enum { kLaunches = 5 };
    std::vector<uint8_t> w((size_t)(n * n * bits / 8));
    for (uint8_t &x : w) {
        x = (uint8_t)mix(seed++);
    }
    std::vector<uint16_t> a((size_t)(m * n)), scales((size_t)(group == 0 ? n : n / group * n));
    for (uint16_t &x : a) {
        x = to16((float)(random_unit() * 4 - 2), bf16);
    }
    const double size = bits == 8 ? 74 : 4.6; /* mean magnitude of a code */
    for (uint16_t &s : scales) {
        s = to16((float)((0.5 + random_unit()) / (size * sqrt((double)n))), bf16);
    }
    uint8_t *const dw = upload(w);
    uint16_t *const ds = upload(scales);
    uint16_t *d[kLaunches + 1] = {upload(a)};
    for (int i = 1; i <= kLaunches; ++i) {
        d[i] = device_array<uint16_t>((size_t)(m * n));
    }
    std::vector<uint16_t> apart[kLaunches], in_a_row[kLaunches];
    for (int row = 0; row < 2; ++row) {
        for (int i = 1; i <= kLaunches; ++i) {
            CHECK(cudaMemset(d[i], 0xFF, (size_t)(m * n) * 2));
        }
        CHECK(cudaDeviceSynchronize());
        for (int i = 0; i < kLaunches; ++i) {
            tsr_weight_only_gemm g = {d[i], dw, ds, nullptr, d[i + 1], m,    n,
                                      n,    n,  n,  group,   bits,     bf16, TSR_WEIGHT_ONLY_AUTO};
            tsr_err err;
            CHECK_TSR(tsr_cuda_weight_only_gemm(&g, 0, &err), err);
            if (row == 0) {
                CHECK(cudaDeviceSynchronize());
            }
        }
        for (int i = 0; i < kLaunches; ++i) {
            (row == 0 ? apart : in_a_row)[i] = download(d[i + 1], (size_t)(m * n));
        }
    }
    size_t wrong = 0, distinct = 0;
    for (int i = 0; i < kLaunches; ++i) {
        wrong += apart[i] != in_a_row[i];
        distinct += i == 0 || apart[i] != apart[i - 1];
    }
    char detail[128];
    snprintf(detail, sizeof detail, "%lld x %lld int%d group %lld %s: %zu of %d differ", (long long)m, (long long)n,
             bits, (long long)group, bf16 ? "bf16" : "fp16", wrong, kLaunches);
    verdict(wrong == 0 && distinct == kLaunches, "products in a row", detail);
    CHECK(cudaFree(dw));
    CHECK(cudaFree(ds));
    for (uint16_t *p : d) {
        CHECK(cudaFree(p));
    }
}

static void check_refusals(void)
{
    tsr_err err;
    tsr_weight_only_gemm g = {};
    g.m = (int64_t)1 << 32, g.n = 64, g.k = 64, g.lda = 64, g.ldd = 64, g.bits = 8;
    verdict(tsr_cuda_weight_only_gemm(&g, 0, &err) == TSR_E_SHAPE && strstr(err.msg, "4294967296") != nullptr,
            "refusal", "2^32 tokens");
    g.m = 1, g.k = 96;
    verdict(tsr_cuda_weight_only_gemm(&g, 0, &err) == TSR_E_SHAPE, "refusal", "k = 96");
}

static const int64_t groups[] = {0, 32, 64, 128};

/* One tile of tokens of each width, ragged ones, and several; K in one CTA, and shared. */
static void check_many_tokens(void)
{
    const int64_t many[] = {17, 32, 41, 48, 63, 65, 127, 128, 150};
    for (int64_t m : many) {
        for (int i = 0; i < 4; ++i) {
            const int64_t group = groups[(i + m) % 4];
            check_weight_only(m, 192, 1152, i & 1 ? 4 : 8, group, (i & 2) != 0, m % 2 != 0);
        }
    }
    for (int64_t m = 17; m <= 33; m += m == 17 || m == 24 ? 7 : 1) { /* 17, 24, 31, 32, 33: from the stream to tiles */
        for (int i = 0; i < 4; ++i) {
            check_weight_only(m, i & 1 ? 64 : 192, i & 1 ? 128 : 1152, 4, 128, (i & 2) != 0);
        }
    }
    check_row(29, 512, 4, 128, false);
    for (int64_t group : groups) {
        for (int i = 0; i < 4; ++i) {
            check_weight_only(i & 1 ? 5 : 40, 320, 384, i & 1 ? 4 : 8, group, (i & 2) != 0, true);
        }
    }
    check_row(40, 512, 4, 32, true);
}

int main(int argc, char **argv)
{
    arch = need_gpu().arch;
    const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
    if (argc > 1 && strcmp(argv[1], "few") == 0) { /* for racecheck */
        check_scaled(4, false, 128);
        check_weight_only(9, 64, 256, 4, 128, false);
        check_weight_only(1, 64, 128, 8, 0, true);
        check_weight_only(9, kManyColumns, 192, 4, 64, false);
        check_weight_only(33, 320, 576, 4, 32, true, true);
        return conclude();
    }
    for (int i = 0; i < 8; ++i) {
        check_codes(i & 1 ? 4 : 8, (i & 2) != 0, (i & 4) != 0);
    }
    for (int64_t group : groups) {
        for (int i = 0; i < 4; ++i) {
            check_scaled(i & 1 ? 4 : 8, (i & 2) != 0, group);
        }
    }
    const int64_t tokens[] = {1, 2, 7, 8, 9, 15, 16};
    for (int64_t m : tokens) {
        for (int i = 0; i < 4; ++i) {
            for (int64_t group : groups) {
                check_weight_only(m, 64, 128, i & 1 ? 4 : 8, group, (i & 2) != 0);
                if (group == 0 || group == 32 || group == 64) {
                    check_weight_only(m, 192, 64 * 3 * 11, i & 1 ? 4 : 8, group == 64 ? 64 : group, (i & 2) != 0);
                }
            }
        }
    }
    check_weight_only(9, kManyColumns, 192, 4, 64, false);
    check_weight_only(8, kManyColumns, 192, 8, 0, true);
    check_row(3, 512, 4, 128, false);
    check_many_tokens();
    check_refusals();
    if (!small) {
        for (int i = 0; i < 4; ++i) { /* K shared by two and by four narrow CTAs */
            check_weight_only(16, 16384, 2112, i & 1 ? 4 : 8, i & 1 ? 0 : 32, (i & 2) != 0);
            check_weight_only(9, 8192, 4096, i & 1 ? 4 : 8, 128, (i & 2) != 0);
            check_weight_only(4, 8192, 4160, i & 1 ? 4 : 8, 64, (i & 2) != 0);
            check_weight_only(i & 1 ? 18 : 32, 4096, i & 1 ? 7168 : 2048, 4, 128, (i & 2) != 0);
        }
        for (int i = 0; i < 16; ++i) { /* narrow and wide ones */
            check_row(i & 4 ? i & 1 ? 32 : 16 : 1, i & 8 ? 7168 : 8192, i & 1 ? 4 : 8, i & 2 ? 128 : 0, i % 3 == 0);
        }
        for (int i = 0; i < 8; ++i) { /* more tiles than run at a time, several bands of tokens, K shared */
            check_row(i & 4 ? 200 : 100, i & 2 ? 4096 : 2048, i & 1 ? 4 : 8, i & 1 ? 128 : 0, i % 3 == 0);
        }
        check_weight_only(1100, 4160, 448, 4, 64, false, true);
        check_weight_only(256, 1024, 7168, 8, 128, true);
        check_weight_only(96, 2048, 7168, 4, 32, false, true);
        for (int i = 0; i < 4; ++i) {
            check_weight_only(16, 2048, 7168, i & 1 ? 4 : 8, 128, (i & 2) != 0);
            check_weight_only(1, 2048, 18432, i & 1 ? 4 : 8, 0, (i & 2) != 0);
        }
    }
    return conclude();
}
