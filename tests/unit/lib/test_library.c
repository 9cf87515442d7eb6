/* Tests libtessera: rejected arguments, unchanged outputs after an error, and round trips of arrays. */
#include "lib/tessera.h"

#include <criterion/criterion.h>
#include <fenv.h>
#include <math.h>
#include <string.h>

enum { ROWS = 130, COLS = 192 };

static float values[ROWS * COLS], again[ROWS * COLS];

static tessera_array matrix(void)
{
    for (size_t i = 0; i < ROWS * COLS; i++)
        values[i] = (float)((i * 7919) % 1000) / 1000 - 0.5f;
    return (tessera_array){.dtype = "F32", .shape = {ROWS, COLS}, .rank = 2, .data = values, .bytes = sizeof values};
}

static void refuse(tessera_status wanted, tessera_status status, const tessera_error *error, const char *word)
{
    cr_assert_eq(status, wanted, "%d, not %d: %s", status, wanted, error->message);
    cr_assert_eq(error->status, wanted);
    cr_assert_not_null(strstr(error->message, word), "%s: %s", word, error->message);
}

Test(library, every_scheme_there_and_back)
{
    static const struct {
        const char *scheme;
        double least;
    } kSchemes[] = {{"fp8-block", 30},        {"fp8-channel", 30},       {"int8-channel", 40},
                    {"int8-weight-only", 40}, {"nvfp4-weight-only", 18}, {"mxfp4-weight-only", 16},
                    {"mxfp8-weight-only", 28}};
    const tessera_array array = matrix();
    for (size_t i = 0; i < sizeof kSchemes / sizeof *kSchemes; i++) {
        const char *const options[] = {"--scheme", kSchemes[i].scheme, NULL};
        tessera_error error;
        tessera_checkpoint *made;
        double lost = 0, all = 0;
        cr_assert_eq(tessera_quantize(&made, &array, options, &error), TESSERA_OK, "%s", error.message);
        cr_assert_eq(tessera_count(made), 1);
        cr_assert_eq(tessera_read(made, 0, "F32", 0, ROWS, again, sizeof again, &error), TESSERA_OK, "%s",
                     error.message);
        for (size_t k = 0; k < ROWS * COLS; k++) {
            lost += pow((double)values[k] - (double)again[k], 2);
            all += pow((double)values[k], 2);
        }
        cr_assert_gt(10 * log10(all / lost), kSchemes[i].least, "%s", kSchemes[i].scheme);
        /* Some rows are what they are among all. */
        cr_assert_eq(tessera_read(made, 0, "F32", 67, 5, values, 5 * COLS * sizeof(float), &error), TESSERA_OK);
        cr_assert_eq(memcmp(values, again + 67 * COLS, 5 * COLS * sizeof(float)), 0);
        (void)matrix();
        tessera_close(made);
    }
}

Test(library, arrays_are_what_their_parts_say)
{
    const tessera_array array = matrix();
    const char *const blocks[] = {"--source-block", "128x128", NULL};
    tessera_error error;
    tessera_checkpoint *made, *taken;
    tessera_weight weight;
    tessera_array parts[2];
    float first[COLS], second[COLS];
    cr_assert_eq(tessera_quantize(&made, &array, NULL, &error), TESSERA_OK, "%s", error.message);
    cr_assert_eq(tessera_weight_at(made, 0, &weight, &error), TESSERA_OK);
    cr_assert_eq(weight.n_stored, 2);
    for (size_t i = 0; i < 2; i++) {
        const tessera_stored *const s = &weight.stored[i];
        cr_assert_null(s->file);
        parts[i] =
            (tessera_array){.name = s->name, .dtype = s->dtype, .rank = s->rank, .data = s->data, .bytes = s->bytes};
        memcpy(parts[i].shape, s->shape, sizeof s->shape);
    }
    refuse(TESSERA_E_USAGE, tessera_open_arrays(&taken, parts, 2, NULL, NULL, &error), &error, "block size");
    refuse(TESSERA_E_FORMAT, tessera_open_arrays(&taken, parts, 1, NULL, blocks, &error), &error, "scale");
    cr_assert_null(taken);
    cr_assert_eq(tessera_open_arrays(&taken, parts, 2, NULL, blocks, &error), TESSERA_OK, "%s", error.message);
    cr_assert_eq(tessera_read(made, 0, "F32", 129, 1, first, sizeof first, &error), TESSERA_OK);
    cr_assert_eq(tessera_read(taken, 0, "F32", 129, 1, second, sizeof second, &error), TESSERA_OK);
    cr_assert_eq(memcmp(first, second, sizeof first), 0);
    tessera_close(made);
    tessera_close(taken);
}

/* Values of 16 bits and what they are as FP32: more of them than are widened at a time. */
Test(library, plain_values_are_widened)
{
    enum { N = 3 * 4096 + 5 };
    static uint16_t stored[N];
    static uint32_t wide[N];
    tessera_error error;
    tessera_checkpoint *c;
    for (size_t i = 0; i < N; i++)
        stored[i] = (uint16_t)(i * 5 % 0x7F80 | (i % 2) << 15);
    const tessera_array array = {
        .name = "x", .dtype = "BF16", .shape = {1, N}, .rank = 2, .data = stored, .bytes = sizeof stored};
    cr_assert_eq(tessera_open_arrays(&c, &array, 1, NULL, NULL, &error), TESSERA_OK, "%s", error.message);
    memset(wide, 0xFF, sizeof wide);
    cr_assert_eq(tessera_read(c, 0, "F32", 0, 1, wide, sizeof wide, &error), TESSERA_OK, "%s", error.message);
    for (size_t i = 0; i < N; i++)
        cr_assert_eq(wide[i], (uint32_t)stored[i] << 16, "value %zu", i);
    tessera_close(c);
}

Test(library, refusals)
{
    tessera_array array = matrix();
    tessera_error error;
    tessera_checkpoint *c;
    tessera_plan *plan;
    tessera_verdict *verdict;
    tessera_weight weight;
    size_t index;
    char byte;
    const char *const unknown[] = {"--schema", "fp8-block", NULL}, *const word[] = {"fp8-block", NULL};
    const char *const group[] = {"--group-size", "64", NULL}, *const exclude[] = {"--exclude", "*", NULL};
    refuse(TESSERA_E_USAGE, tessera_quantize(&c, &array, unknown, &error), &error, "did you mean '--scheme'");
    refuse(TESSERA_E_USAGE, tessera_quantize(&c, &array, word, &error), &error, "unexpected argument");
    refuse(TESSERA_E_USAGE, tessera_quantize(&c, &array, group, &error), &error, "--group-size");
    refuse(TESSERA_E_USAGE, tessera_quantize(&c, &array, exclude, &error), &error, "to an array");
    array.bytes--;
    refuse(TESSERA_E_USAGE, tessera_quantize(&c, &array, NULL, &error), &error, "bytes");
    array = matrix();
    values[COLS + 3] = NAN;
    refuse(TESSERA_E_VALUE, tessera_quantize(&c, &array, NULL, &error), &error, "[1, 3]");
    array.rank = 1;
    refuse(TESSERA_E_SHAPE, tessera_quantize(&c, &array, NULL, &error), &error, "[outputs, inputs]");
    array.dtype = "F31";
    refuse(TESSERA_E_USAGE, tessera_open_arrays(&c, &array, 1, NULL, NULL, &error), &error, "F31");
    refuse(TESSERA_E_FORMAT, tessera_open(&c, "/nowhere", NULL, &error), &error, "/nowhere");
    cr_assert_null(c);
    refuse(TESSERA_E_USAGE, tessera_plan_make(&plan, "inspect", "/nowhere", NULL, &error), &error, "inspect");
    refuse(TESSERA_E_FORMAT, tessera_plan_make(&plan, "quantize", "/nowhere", NULL, &error), &error, "/nowhere");
    refuse(TESSERA_E_USAGE, tessera_plan_make(&plan, "convert", "/nowhere", NULL, &error), &error, "--to");
    refuse(TESSERA_E_FORMAT, tessera_verify(&verdict, "/nowhere", "/nowhere", NULL, NULL, NULL, &error), &error,
           "/nowhere");
    array = matrix();
    cr_assert_eq(tessera_open_arrays(&c, &array, 1, NULL, NULL, &error), TESSERA_OK, "%s", error.message);
    refuse(TESSERA_E_USAGE, tessera_weight_at(c, 1, &weight, &error), &error, "it has 1");
    refuse(TESSERA_E_USAGE, tessera_find(c, "x", &index, &error), &error, "'x'");
    refuse(TESSERA_E_USAGE, tessera_read(c, 0, "F32", 100, 31, again, sizeof again, &error), &error, "130 rows");
    refuse(TESSERA_E_USAGE, tessera_read(c, 0, "F32", 0, 1, again, 1, &error), &error, "768 bytes");
    refuse(TESSERA_E_UNSUPPORTED, tessera_read(c, 0, "BF16", 0, 1, again, 1, &error), &error, "F32");
    refuse(TESSERA_E_USAGE, tessera_read_stored(c, "array.weight", sizeof values, &byte, 1, &error), &error,
           "outside it");
    tessera_close(c);
    tessera_close(NULL);
    tessera_plan_free(NULL);
    tessera_verdict_free(NULL);
}

/* Names are untrusted: none of them may end the line, control a terminal, or hide the reason at the end. */
Test(library, a_message_is_one_line)
{
    tessera_error error;
    tessera_checkpoint *c;
    char path[701] = "";
    refuse(TESSERA_E_FORMAT, tessera_open(&c, "no\nPASS\x1b[2J\xff\xc3\xa4", NULL, &error), &error,
           "no\\nPASS\\x1b[2J\\xff\xc3\xa4: ");
    memset(path, 1, sizeof path - 1);
    refuse(TESSERA_E_IO, tessera_open(&c, path, NULL, &error), &error, "File name too long");
    cr_assert_gt(strlen(error.message), 900);
    cr_assert_null(strpbrk(error.message, "\x01\n"));
}

/* A caller that rounds upwards gets the same codes, and keeps its mode. */
Test(library, the_callers_mode_is_its_own)
{
    const tessera_array array = matrix();
    tessera_checkpoint *c[2];
    tessera_weight w[2];
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(fesetround(i == 0 ? FE_TONEAREST : FE_UPWARD), 0);
        cr_assert_eq(tessera_quantize(&c[i], &array, NULL, NULL), TESSERA_OK);
        cr_assert_eq(fegetround(), i == 0 ? FE_TONEAREST : FE_UPWARD);
        cr_assert_eq(tessera_weight_at(c[i], 0, &w[i], NULL), TESSERA_OK);
    }
    (void)fesetround(FE_TONEAREST);
    for (size_t i = 0; i < 2; i++)
        cr_assert_eq(memcmp(w[0].stored[i].data, w[1].stored[i].data, w[0].stored[i].bytes), 0);
    tessera_close(c[0]);
    tessera_close(c[1]);
}
