/* Tests the weight layouts: supported architectures, valid shapes, and that each address formula is a bijection. */
#include "tests/unit/ft_formats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tsr_ft_layout layout_of(tsr_ft_target target)
{
    return ft_format(&target).layout;
}

static const char *refusal_of(tsr_ft_target target)
{
    static tsr_err err;
    tsr_ft_format f;
    cr_assert_eq(tsr_ft_format_of(&target, &f, &err), TSR_E_UNSUPPORTED);
    return err.msg;
}

Test(ft_layout, depends_on_producer_and_arch)
{
    static const struct {
        tsr_ft_producer producer;
        int arch;
        tsr_ft_layout layout;
    } kCases[] = {
        {TSR_FT_FASTERTRANSFORMER, 70, TSR_FT_R}, {TSR_FT_FASTERTRANSFORMER, 75, TSR_FT_T},
        {TSR_FT_FASTERTRANSFORMER, 80, TSR_FT_T}, {TSR_FT_FASTERTRANSFORMER, 86, TSR_FT_T},
        {TSR_FT_FASTERTRANSFORMER, 89, TSR_FT_T}, {TSR_FT_TRTLLM_0_5, 70, TSR_FT_R},
        {TSR_FT_TRTLLM_0_5, 90, TSR_FT_T},        {TSR_FT_TRTLLM_0_7, 70, TSR_FT_CM},
        {TSR_FT_TRTLLM_0_7, 90, TSR_FT_T},        {TSR_FT_TRTLLM_0_9, 72, TSR_FT_CM},
        {TSR_FT_TRTLLM_0_9, 90, TSR_FT_P},        {TSR_FT_TRTLLM_0_10, 90, TSR_FT_P},
        {TSR_FT_TRTLLM_MAIN, 89, TSR_FT_T},       {TSR_FT_TRTLLM_MAIN, 90, TSR_FT_H},
        {TSR_FT_TRTLLM_MAIN, 100, TSR_FT_T},      {TSR_FT_TRTLLM_MAIN, 120, TSR_FT_T},
        {TSR_FT_TRTLLM_PY, 90, TSR_FT_H},         {TSR_FT_TRTLLM_PY, 103, TSR_FT_P},
        {TSR_FT_TRTLLM_PY, 121, TSR_FT_T},
    };
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        for (int bits = 4; bits <= 8; bits += 4) {
            const tsr_ft_target t = {.producer = kCases[i].producer, .arch = kCases[i].arch, .bits = bits};
            cr_assert_eq(layout_of(t), kCases[i].layout, "%s sm%d int%d", tsr_ft_producer_name(t.producer), t.arch,
                         bits);
        }
    }
}

Test(ft_layout, depends_on_options)
{
    tsr_ft_target t = {.producer = TSR_FT_TRTLLM_MAIN, .arch = 90, .bits = 4, .fp8_activations = true};
    cr_assert_eq(layout_of(t), TSR_FT_H_AFP8);
    t.force_interleave = true;
    cr_assert_eq(layout_of(t), TSR_FT_T_AFP8);
    t.fp8_activations = false;
    cr_assert_eq(layout_of(t), TSR_FT_T);
    t.producer = TSR_FT_TRTLLM_0_9;
    cr_assert_eq(layout_of(t), TSR_FT_T);
    t = (tsr_ft_target){.producer = TSR_FT_TRTLLM_PY, .arch = 90, .bits = 8, .mixture_of_experts = true};
    cr_assert_eq(layout_of(t), TSR_FT_T);
    t = (tsr_ft_target){.producer = TSR_FT_TRTLLM_0_10, .arch = 90, .bits = 4, .fp8_activations = true};
    cr_assert_eq(layout_of(t), TSR_FT_P);
    t.arch = 70;
    cr_assert_eq(layout_of(t), TSR_FT_CM);
    t.arch = 80;
    cr_assert_eq(layout_of(t), TSR_FT_T_AFP8);
}

Test(ft_layout, refuses_what_no_reader_takes)
{
    tsr_ft_target t = {.producer = TSR_FT_FASTERTRANSFORMER, .arch = 90, .bits = 8};
    cr_assert_str_eq(refusal_of(t), "ft has no layout for sm90; supported: sm70-74 sm75-89");
    t.arch = 60;
    refusal_of(t);
    t = (tsr_ft_target){.producer = TSR_FT_TRTLLM_MAIN, .arch = 70, .bits = 8};
    cr_assert(strstr(refusal_of(t), "sm100+") != NULL);
    t = (tsr_ft_target){.producer = TSR_FT_TRTLLM_MAIN, .arch = 90, .bits = 8, .fp8_activations = true};
    refusal_of(t);
    t = (tsr_ft_target){.producer = TSR_FT_TRTLLM_0_9, .arch = 90, .bits = 4, .fp8_activations = true};
    cr_assert_str_eq(refusal_of(t), "trtllm-0.9 has no layout with FP8 activations");
    t = (tsr_ft_target){.producer = TSR_FT_FASTERTRANSFORMER, .arch = 80, .bits = 8, .force_interleave = true};
    refusal_of(t);
    t = (tsr_ft_target){.producer = TSR_FT_FASTERTRANSFORMER, .arch = 80, .bits = 2};
    refusal_of(t);
}

Test(ft_layout, knows_producers_by_name)
{
    static const struct {
        const char *name;
        tsr_ft_producer producer;
    } kCases[] = {
        {"ft", TSR_FT_FASTERTRANSFORMER},    {"trtllm-0.5.0", TSR_FT_TRTLLM_0_5},
        {"trtllm-0.6.1", TSR_FT_TRTLLM_0_5}, {"trtllm-0.7", TSR_FT_TRTLLM_0_7},
        {"trtllm-0.8.0", TSR_FT_TRTLLM_0_7}, {"trtllm-0.9", TSR_FT_TRTLLM_0_9},
        {"trtllm-main", TSR_FT_TRTLLM_MAIN}, {"trtllm-0.10-dev", TSR_FT_TRTLLM_0_10},
        {"trtllm-py", TSR_FT_TRTLLM_PY},
    };
    tsr_ft_producer producer;
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        cr_assert_eq(tsr_ft_producer_parse(kCases[i].name, &producer, NULL), TSR_OK, "%s", kCases[i].name);
        cr_assert_eq(producer, kCases[i].producer, "%s", kCases[i].name);
    }
    static const char *const kUnknown[] = {"", "ftx", "ft-", "trtllm", "trtllm-0.1", "trtllm-0.11", "trtllm-0.90"};
    for (size_t i = 0; i < sizeof kUnknown / sizeof *kUnknown; i++)
        cr_assert_eq(tsr_ft_producer_parse(kUnknown[i], &producer, NULL), TSR_E_UNSUPPORTED, "%s", kUnknown[i]);
    for (int i = 0; i < TSR_FT_PRODUCERS; i++) {
        cr_assert_eq(tsr_ft_producer_parse(tsr_ft_producer_name((tsr_ft_producer)i), &producer, NULL), TSR_OK);
        cr_assert_eq(producer, (tsr_ft_producer)i);
    }
}

Test(ft_layout, refuses_shapes_and_names_the_nearest)
{
#define FT(producer_, arch_, bits_, ...)                                          \
    {                                                                             \
        .producer = TSR_FT_##producer_, .arch = arch_, .bits = bits_, __VA_ARGS__ \
    }
    static const struct {
        tsr_ft_target target;
        int64_t k, n;
        char which;          /* dimension that the layout refuses; 0 with !fits: both, as out of range */
        const char *layout;  /* its name */
        int multiple;        /* that the layout takes */
        const char *nearest; /* sizes */
        bool fits;
    } kCases[] = {
        {FT(FASTERTRANSFORMER, 80, 8), 64, 64, 0, NULL, 0, NULL, true},
        {FT(FASTERTRANSFORMER, 80, 8), 96, 64, 'K', "T", 64, "64 and 128", false},
        {FT(FASTERTRANSFORMER, 80, 8), 32, 64, 'K', "T", 64, "64", false},
        {FT(FASTERTRANSFORMER, 80, 8), 64, 96, 'N', "T", 64, "64 and 128", false},
        {FT(TRTLLM_0_5, 80, 8), 64, 32, 'N', "T", 64, "64", false},
        {FT(TRTLLM_0_7, 80, 8), 64, 96, 0, NULL, 0, NULL, true},
        {FT(TRTLLM_0_7, 80, 4), 64, 96, 'N', "T", 64, "64 and 128", false},
        {FT(TRTLLM_MAIN, 89, 4, .fp8_activations = true), 192, 64, 'K', "T_AFP8", 128, "128 and 256", false},
        {FT(TRTLLM_MAIN, 90, 8), 32, 32, 0, NULL, 0, NULL, true},
        {FT(TRTLLM_MAIN, 90, 4), 96, 64, 'K', "H", 64, "64 and 128", false},
        {FT(TRTLLM_0_9, 90, 8), 48, 64, 'K', "P", 32, "32 and 64", false},
        {FT(FASTERTRANSFORMER, 70, 4), 16, 24, 0, NULL, 0, NULL, true},
        {FT(FASTERTRANSFORMER, 70, 4), 4, 2, 0, NULL, 0, NULL, true},
        {FT(FASTERTRANSFORMER, 70, 4), 8, 3, 'N', "R", 2, "2 and 4", false},
        {FT(FASTERTRANSFORMER, 70, 8), 1, 3, 'N', "R", 4, "4", false},
        {FT(FASTERTRANSFORMER, 70, 8), 2, 3, 'N', "R", 2, "2 and 4", false},
        {FT(FASTERTRANSFORMER, 70, 8), 0, 64, 0, NULL, 0, NULL, false},
        {FT(FASTERTRANSFORMER, 70, 8), 64, -64, 0, NULL, 0, NULL, false},
    };
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        const tsr_ft_format f = ft_format(&kCases[i].target);
        const int64_t k = kCases[i].k, n = kCases[i].n;
        char refusal[128] = "";
        if (kCases[i].which != 0)
            snprintf(refusal, sizeof refusal, "%c = %d: layout %s of int%d needs a multiple of %d; nearest: %s",
                     kCases[i].which, (int)(kCases[i].which == 'K' ? k : n), kCases[i].layout, kCases[i].target.bits,
                     kCases[i].multiple, kCases[i].nearest);
        else if (!kCases[i].fits)
            snprintf(refusal, sizeof refusal, "K = %d, N = %d: both must be in 1..2147483647", (int)k, (int)n);
        tsr_err err = {0};
        const tsr_status status = tsr_ft_format_check(&f, k, n, &err);
        cr_assert_eq(status, kCases[i].fits ? TSR_OK : TSR_E_SHAPE, "case %zu: %s", i, err.msg);
        cr_assert_str_eq(err.msg, refusal);
    }
}

/* The formula has every address once and none outside, agrees with the second formula, and the inverse inverts it. */
static void check_bijection(const tsr_ft_format *f, size_t rows, size_t cols)
{
    const size_t weights = rows * cols;
    uint8_t *const seen = calloc(weights, 1);
    for (size_t k = 0; k < rows; k++) {
        for (size_t n = 0; n < cols; n++) {
            const tsr_ft_place at = tsr_ft_place_of(f, rows, cols, k, n);
            const closed_form expected = closed_form_of(f->layout, f->bits, rows, cols, k, n);
            cr_assert(at.byte == expected.byte && at.nibble == expected.nibble, "layout %s int%d (%zu, %zu)",
                      tsr_ft_layout_name(f->layout), f->bits, k, n);
            const size_t position = f->bits == 8 ? at.byte : 2 * at.byte + at.nibble;
            cr_assert(position < weights && !seen[position]);
            seen[position] = 1;
            const tsr_ft_element back = tsr_ft_element_at(f, rows, cols, at);
            cr_assert(back.k == k && back.n == n, "layout %s int%d (%zu, %zu) comes back as (%zu, %zu)",
                      tsr_ft_layout_name(f->layout), f->bits, k, n, back.k, back.n);
        }
    }
    free(seen);
}

Test(ft_layout, addresses_are_a_bijection)
{
    for (size_t i = 0; i < N_FT_FORMATS; i++) {
        const tsr_ft_format f = ft_format(&kFtFormats[i]);
        check_bijection(&f, (size_t)f.k_multiple * 3, (size_t)f.n_multiple * 2 * (f.row_major ? 10 : 1));
        if (!f.row_major)
            check_bijection(&f, (size_t)f.k_multiple, (size_t)f.n_multiple * 3);
        else
            check_bijection(&f, 8, 37 * (size_t)f.n_multiple);
    }
}

/* Compares positions read from the original code's output. */
Test(ft_layout, puts_weights_where_the_original_does)
{
    static const struct {
        size_t k, n, byte8, byte4;
        unsigned nibble4;
    } kT[] = {{0, 0, 0, 0, 0},   {8, 0, 1, 0, 1},   {1, 0, 2, 2, 0},      {9, 0, 3, 2, 1},         {2, 0, 4, 4, 0},
              {16, 0, 16, 1, 0}, {0, 1, 64, 32, 0}, {64, 0, 128, 128, 0}, {127, 63, 8191, 4095, 1}};
    const tsr_ft_format int8 = ft_format(&(tsr_ft_target){.producer = TSR_FT_FASTERTRANSFORMER, .arch = 80, .bits = 8});
    const tsr_ft_format int4 = ft_format(&(tsr_ft_target){.producer = TSR_FT_FASTERTRANSFORMER, .arch = 80, .bits = 4});
    for (size_t i = 0; i < sizeof kT / sizeof *kT; i++) {
        const tsr_ft_place a = tsr_ft_place_of(&int8, 128, 64, kT[i].k, kT[i].n);
        const tsr_ft_place b = tsr_ft_place_of(&int4, 128, 64, kT[i].k, kT[i].n);
        cr_assert(a.byte == kT[i].byte8 && a.nibble == 0, "int8 (%zu, %zu)", kT[i].k, kT[i].n);
        cr_assert(b.byte == kT[i].byte4 && b.nibble == kT[i].nibble4, "int4 (%zu, %zu)", kT[i].k, kT[i].n);
    }
}
