/* Tests an indexer's FP8 scores against sums in double: within the stated bound, and exact if nothing is rounded. */
#include "common/float_bits.h"
#include "kernels/cpu/index_scores.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { QUERIES = 5, KEYS = 17, HEADS = 6, WIDTH = 128 };

static uint8_t q[QUERIES * HEADS * WIDTH], k[KEYS * WIDTH];
static float weights[QUERIES * HEADS], scales[KEYS], logits[QUERIES * KEYS];
static const int32_t kSeen[QUERIES] = {0, 1, 9, KEYS - 1, KEYS};

static uint8_t draw_code(uint8_t most)
{
    return (uint8_t)(random_bits() % (most + 1u) | (random_bits() % 2 << 7));
}

/* Draws codes up to `most`, and weights of both signs. */
static void fill(uint8_t most)
{
    for (size_t i = 0; i < sizeof q; i++)
        q[i] = draw_code(most);
    for (size_t i = 0; i < sizeof k; i++)
        k[i] = draw_code(most);
    for (size_t i = 0; i < QUERIES * HEADS; i++)
        weights[i] = (float)(int64_t)(random_bits() % 2001) / 1000 - 1;
    for (size_t i = 0; i < KEYS; i++)
        scales[i] = (float)(random_bits() % 1000 + 1) / 30;
}

static tsr_index_scores arguments(size_t width)
{
    return (tsr_index_scores){.q = q,
                              .k = k,
                              .k_scale = scales,
                              .weights = weights,
                              .seen = kSeen,
                              .logits = logits,
                              .queries = QUERIES,
                              .keys = KEYS,
                              .heads = HEADS,
                              .width = width};
}

/* Returns the score in double, and the sum of its magnitudes. */
static double exact_of(size_t i, size_t j, size_t width, double *mass)
{
    double total = 0;
    *mass = 0;
    for (size_t h = 0; h < HEADS; h++) {
        double sum = 0, size = 0;
        for (size_t d = 0; d < width; d++) {
            const double product =
                (double)tsr_e4m3_to_f32(q[(i * HEADS + h) * width + d]) * (double)tsr_e4m3_to_f32(k[j * width + d]);
            sum += product;
            size += fabs(product);
        }
        total += (double)weights[i * HEADS + h] * fmax(sum, 0);
        *mass += fabs((double)weights[i * HEADS + h]) * size;
    }
    *mass *= (double)scales[j];
    return total * (double)scales[j];
}

static void expect(size_t width, double roundings)
{
    const tsr_index_scores a = arguments(width);
    size_t inexact = 0;
    memset(logits, 0xFF, sizeof logits);
    tsr_index_scores_run(&a);
    for (size_t at = 0; at < QUERIES * KEYS; at++) {
        const size_t i = at / KEYS, j = at % KEYS;
        double mass;
        const double exact = exact_of(i, j, width, &mass), error = fabs((double)logits[at] - exact);
        if (j >= (size_t)kSeen[i]) {
            cr_assert(isinf(logits[at]) && logits[at] < 0, "query %zu, key %zu: %g", i, j, (double)logits[at]);
            continue;
        }
        cr_assert(error <= 1.01 * roundings * 0x1p-24 * mass, "query %zu, key %zu: %g, not %g", i, j,
                  (double)logits[at], exact);
        inexact += error > 0;
    }
    cr_assert(roundings == 0 || inexact > 0);
}

Test(index_scores, all_codes_stay_within_the_bound)
{
    for (size_t width = 1; width <= WIDTH; width += 127) {
        fill(0x7E);
        expect(width, (double)(width + HEADS + 1));
    }
}

/* Subnormal codes are multiples of 2^-9. Their sums, and powers of two, round nothing. */
Test(index_scores, small_codes_are_exact)
{
    fill(7);
    for (size_t i = 0; i < QUERIES * HEADS; i++)
        weights[i] = ldexpf(i % 2 == 0 ? 1 : -1, (int)(i % 5));
    for (size_t j = 0; j < KEYS; j++)
        scales[j] = ldexpf(1, (int)(j % 7) - 3);
    expect(WIDTH, 0);
}

/* Two heads with opposite products: only the positive one counts, with the sign of its weight. */
Test(index_scores, negative_products_of_a_head_do_not_count)
{
    static const int32_t kOne[1] = {1};
    uint8_t queries[2] = {0x38, 0xB8}, key[1] = {0x40}; /* 1, -1; 2 */
    float two[2] = {-3, 5}, scale[1] = {0.5f}, logit[1];
    const tsr_index_scores a = {queries, key, scale, two, kOne, logit, 1, 1, 2, 1};
    tsr_index_scores_run(&a);
    cr_assert_eq(logit[0], -3);
}
