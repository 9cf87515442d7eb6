/* Tests the interleaved layouts with random shapes, orders and strides, against an independent address formula.
 *
 * Also tests round trips, and every instruction set against the scalar form. */
#include "kernels/cpu/cpu.h"
#include "tests/unit/ft_formats.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const unsigned kMasks[] = {0, TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512, TSR_CPU_ALL};
enum { MASKS = sizeof kMasks / sizeof *kMasks };

typedef struct source {
    tsr_interleave_args args;
    size_t rows, row_bytes;
    uint8_t *codes;
} source;

static source make_source(const tsr_ft_format *f, size_t k, size_t n, tsr_code_order order, bool packed, size_t gap)
{
    source s = {.args = {.format = f, .k = k, .n = n, .order = order, .packed = packed}};
    const size_t cols = order == TSR_CODES_NK ? k : n;
    s.rows = order == TSR_CODES_NK ? n : k;
    s.row_bytes = packed ? cols / 2 : cols;
    s.args.ld = s.row_bytes + gap;
    s.codes = malloc(s.rows * s.args.ld);
    for (size_t i = 0; i < s.rows * s.args.ld; i++) {
        const int value = (int)(random_bits() >> 40 & 0xFF);
        s.codes[i] = (uint8_t)(packed || f->bits == 8 ? value : (value & 15) - 8);
    }
    return s;
}

static int code_at(const source *s, size_t k, size_t n)
{
    const size_t row = s->args.order == TSR_CODES_NK ? n : k, col = s->args.order == TSR_CODES_NK ? k : n;
    if (!s->args.packed)
        return (int8_t)s->codes[row * s->args.ld + col];
    const int nibble = s->codes[row * s->args.ld + col / 2] >> 4 * (int)(col % 2) & 15;
    return nibble >= 8 ? nibble - 16 : nibble;
}

/* Implements the closed forms of the layouts one by one: word, slot, stored value. */
static void check_addresses(const source *s, const uint8_t *out)
{
    const tsr_ft_format *const f = s->args.format;
    for (size_t n = 0; n < s->args.n; n++) {
        for (size_t k = 0; k < s->args.k; k++) {
            const closed_form at = closed_form_of(f->layout, f->bits, s->args.k, s->args.n, k, n);
            const int bias = f->layout == TSR_FT_P ? 0 : 1 << (f->bits - 1);
            const int mask = (1 << f->bits) - 1, stored = out[at.byte] >> 4 * at.nibble & mask;
            const int wanted = (code_at(s, k, n) + bias) & mask;
            if (stored != wanted) /* an assertion that passes is counted, which takes longer than to compare */
                cr_assert_eq(stored, wanted, "layout %s int%d K=%zu N=%zu at (%zu, %zu)", tsr_ft_layout_name(f->layout),
                             f->bits, s->args.k, s->args.n, k, n);
        }
    }
}

static void check(const tsr_ft_format *f, size_t k, size_t n, tsr_code_order order, bool packed, size_t gap)
{
    enum { GUARD = 64 };
    source s = make_source(f, k, n, order, packed, gap);
    const size_t bytes = k * n * (size_t)f->bits / 8, all = s.rows * s.args.ld;
    uint8_t *const expected = malloc(bytes + GUARD), *const got = malloc(bytes + GUARD), *const back = malloc(all);
    for (int m = 0; m < MASKS; m++) {
        tsr_cpu_kernels kernels;
        tsr_cpu_kernels_init(&kernels, kMasks[m] & tsr_cpu_flags());
        uint8_t *const out = m == 0 ? expected : got;
        memset(out, 0xA5, bytes + GUARD);
        kernels.interleave(&s.args, s.codes, out);
        if (m == 0)
            check_addresses(&s, out);
        for (size_t i = 0; i < GUARD; i++)
            cr_assert_eq(out[bytes + i], 0xA5);
        cr_assert(memcmp(out, expected, bytes) == 0, "mask %u layout %s int%d K=%zu N=%zu order %d packed %d gap %zu",
                  kMasks[m], tsr_ft_layout_name(f->layout), f->bits, k, n, order, packed, gap);
        memset(back, 0x5A, all);
        kernels.deinterleave(&s.args, out, back);
        for (size_t row = 0; row < s.rows; row++) {
            cr_assert(memcmp(back + row * s.args.ld, s.codes + row * s.args.ld, s.row_bytes) == 0,
                      "back: mask %u layout %s int%d K=%zu N=%zu order %d packed %d row %zu", kMasks[m],
                      tsr_ft_layout_name(f->layout), f->bits, k, n, order, packed, row);
            for (size_t i = s.row_bytes; i < s.args.ld; i++) {
                if (back[row * s.args.ld + i] != 0x5A)
                    cr_assert(false, "wrote between rows");
            }
        }
    }
    free(s.codes);
    free(expected);
    free(got);
    free(back);
}

static void check_every_source(const tsr_ft_format *f, size_t k, size_t n)
{
    for (int order = TSR_CODES_NK; order <= TSR_CODES_KN; order++) {
        const size_t inner = order == TSR_CODES_NK ? k : n;
        for (int packed = 0; packed <= (f->bits == 4 && inner % 2 == 0); packed++) {
            for (size_t gap = 0; gap < 14; gap += 13)
                check(f, k, n, (tsr_code_order)order, packed, gap);
        }
    }
}

Test(interleave, every_layout_at_random_shapes)
{
    for (size_t i = 0; i < N_FT_FORMATS; i++) {
        const tsr_ft_format f = ft_format(&kFtFormats[i]);
        for (int round = 0; round < 6; round++) {
            size_t k = (size_t)f.k_multiple * (1 + random_bits() % 4),
                   n = (size_t)f.n_multiple * (1 + random_bits() % 5);
            if (f.row_major) {
                k = 1 + random_bits() % 70;
                n = 2 * (1 + random_bits() % 40);
                while (tsr_ft_format_check(&f, (int64_t)k, (int64_t)n, NULL) != TSR_OK)
                    n += 2;
            }
            check_every_source(&f, k, n);
        }
    }
}

/* Tests sizes around the widths of the vectors: at most 16 rows and 128 columns at once. */
Test(interleave, at_shapes_around_a_vector)
{
    static const size_t kSizes[] = {32, 64, 96, 128, 160, 192, 256};
    for (size_t i = 0; i < N_FT_FORMATS; i++) {
        const tsr_ft_format f = ft_format(&kFtFormats[i]);
        for (size_t a = 0; a < sizeof kSizes / sizeof *kSizes; a++) {
            for (size_t b = 0; b < sizeof kSizes / sizeof *kSizes; b++) {
                if (tsr_ft_format_check(&f, (int64_t)kSizes[a], (int64_t)kSizes[b], NULL) == TSR_OK)
                    check_every_source(&f, kSizes[a], kSizes[b]);
            }
        }
    }
}

/* A band is a matrix of its own, and consecutive bands are the whole. */
Test(interleave, bands_make_the_whole)
{
    enum { K = 256, N = 320 };
    static uint8_t whole[K * N], parts[K * N];
    tsr_cpu_kernels kernels;
    tsr_cpu_kernels_init(&kernels, tsr_cpu_flags());
    for (size_t i = 0; i < N_FT_FORMATS; i++) {
        const tsr_ft_format f = ft_format(&kFtFormats[i]);
        for (int order = TSR_CODES_NK; order <= TSR_CODES_KN; order++) {
            source s = make_source(&f, K, N, (tsr_code_order)order, false, 3);
            const size_t band = f.row_major ? 8 : (size_t)f.n_multiple, last = f.row_major ? K : N;
            kernels.interleave(&s.args, s.codes, whole);
            for (size_t first = 0; first < last; first += band) {
                tsr_interleave_args part = s.args;
                *(f.row_major ? &part.k : &part.n) = band;
                const bool by_row = f.row_major == (order == TSR_CODES_KN);
                const size_t bytes = (f.row_major ? N : K) * (size_t)f.bits / 8;
                kernels.interleave(&part, s.codes + first * (by_row ? s.args.ld : 1), parts + first * bytes);
            }
            cr_assert(memcmp(whole, parts, K * N * (size_t)f.bits / 8) == 0, "layout %s int%d order %d",
                      tsr_ft_layout_name(f.layout), f.bits, order);
            free(s.codes);
        }
    }
}
