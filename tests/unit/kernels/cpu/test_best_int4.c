/* Tests the search for the best scales and zero points of int4: every form against all candidates, one by one. */
#include "common/float_bits.h"
#include "tests/unit/kernels/cpu/best_groups.h"
#include "tests/unit/kernels/cpu/instruction_sets.h"

#include <criterion/criterion.h>
#include <math.h>

enum {
    MOST_COLUMNS = 300,
    MOST_TRIED = 1000000, /* codes of a group under all candidates: groups that need more are left out */
};

typedef struct pair {
    float scale, zero;
} pair;

static float scale_of(const tsr_best_int4 *c, int bits)
{
    return c->f16 ? tsr_f32_from_f16((uint16_t)bits) : tsr_f32_from_bf16((uint16_t)bits);
}

static double loss_of(const float *x, const float *weight, size_t n, const tsr_best_int4 *c, pair p)
{
    double loss = 0;
    for (size_t i = 0; i < n; i++) {
        const float q = x[i] / p.scale + p.zero, clamped = fminf(fmaxf(q, -8), 7);
        const float code = c->away ? roundf(clamped) : nearbyintf(clamped);
        const double e = (double)x[i] - (double)(code - p.zero) * (double)p.scale;
        loss += (weight == NULL ? 1 : (double)weight[i]) * (e * e);
    }
    return loss;
}

static float largest_of(const float *x, size_t n)
{
    float amax = 0;
    for (size_t i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    return amax;
}

/* The stored scale nearest to `scale`, but not 0 or infinity. */
static int stored(const tsr_best_int4 *c, float scale)
{
    const int bits = c->f16 ? tsr_f16_from_f32(scale) : tsr_bf16_from_f32(scale), most = c->f16 ? 0x7BFF : 0x7F7F;
    return bits < 1 ? 1 : bits > most ? most : bits;
}

/* Returns the scale and zero point that follow from the range, as in quantize/int_weight.c. */
static pair given_of(const float *x, size_t n, const tsr_best_int4 *c)
{
    float low = 0, high = 0;
    for (size_t i = 0; i < n; i++) {
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
    }
    const float width = c->zero_points ? high / 15 - low / 15 : fmaxf(-low, high) / 7.5f;
    const float scale = scale_of(c, stored(c, width));
    const float zero = c->zero_points ? nearbyintf(fminf(fmaxf(-8 - low / scale, -8), 7)) : 0;
    return (pair){scale, zero};
}

/* The scales to try. Above 2 amax all codes are zeros. Far below amax the largest |x| is clipped to a fourth and less;
 * with weights, the smallest |x| that counts. */
typedef struct span {
    int first, last;
} span;

static span span_of(const float *x, const float *weight, size_t n, const tsr_best_int4 *c)
{
    float amax = 0, smallest = INFINITY;
    for (size_t i = 0; i < n; i++) {
        amax = fmaxf(amax, fabsf(x[i]));
        smallest = x[i] != 0 && (weight == NULL || weight[i] > 0) ? fminf(smallest, fabsf(x[i])) : smallest;
    }
    if (isinf(smallest))
        return (span){1, 0};
    return (span){stored(c, (weight == NULL ? amax : smallest) / 64), stored(c, fminf(2.02f * amax, 0x1.FFp127f))};
}

enum { LANES = 8 };
typedef float floats __attribute__((vector_size(LANES * 4)));
typedef int32_t masks __attribute__((vector_size(LANES * 4)));
typedef double doubles __attribute__((vector_size(LANES * 8)));

/* Chooses by a mask. A function that returns a vector would need AVX. */
#define WHERE(mask, yes, no) ((floats)(((masks)(yes) & (mask)) | ((masks)(no) & ~(mask))))

/* Sets loss[z][l] to loss_of the scale of the bits first + l and the zero point z - 8, or 0 if there is one only. */
#ifdef __x86_64__
__attribute__((target_clones("avx2", "default")))
#endif
static void
losses_of(const float *x, const float *weight, size_t n, const tsr_best_int4 *c, int first, double loss[16][LANES])
{
    floats scale, quotient[MOST_COLUMNS], low = {0}, high = {0}, large = {0};
    for (int l = 0; l < LANES; l++)
        scale[l] = scale_of(c, first + l);
    low -= 8;
    high += 7;
    large += 0x1.8p23f; /* adding it rounds to an integer */
    const doubles factor = __builtin_convertvector(scale, doubles);
    for (size_t i = 0; i < n; i++)
        quotient[i] = x[i] / scale;
    for (int z = 0; z < (c->zero_points ? 16 : 1); z++) {
        const float zero = (float)(c->zero_points ? z - 8 : 0);
        doubles sum = {0};
        for (size_t i = 0; i < n; i++) {
            const floats q = quotient[i] + zero, above = WHERE(q < low, low, q),
                         clamped = WHERE(above > high, high, above);
            floats code = clamped + large - large;
            if (c->away) { /* a tie goes to the other neighbour if it is nearer to 0 */
                const floats rest = clamped - code;
                code += (floats)((masks)(large * 0 + 1) & ((rest == 0.5f) & (clamped > 0)));
                code -= (floats)((masks)(large * 0 + 1) & ((rest == -0.5f) & (clamped < 0)));
            }
            const doubles e = (double)x[i] - __builtin_convertvector(code - zero, doubles) * factor;
            sum += (weight == NULL ? 1 : (double)weight[i]) * (e * e);
        }
        for (int l = 0; l < LANES; l++)
            loss[z][l] = sum[l];
    }
}

/* Returns the given pair if no other is better; otherwise the best pair with the smallest scale, then the smallest zero
 * point. */
static pair best_of(const float *x, const float *weight, size_t n, const tsr_best_int4 *c, pair given)
{
    const span tried = span_of(x, weight, n, c);
    double least = loss_of(x, weight, n, c, given);
    pair best = given;
    const int zeros = c->zero_points ? 16 : 1;
    for (int bits = tried.first; bits <= tried.last && least > 0; bits += LANES) {
        double loss[16][LANES];
        losses_of(x, weight, n, c, bits, loss);
        for (int l = 0; l < LANES && bits + l <= tried.last; l++) {
            for (int z = 0; z < zeros; z++) {
                if (!(loss[z][l] < least))
                    continue;
                least = loss[z][l];
                best = (pair){scale_of(c, bits + l), (float)(c->zero_points ? z - 8 : 0)};
            }
        }
    }
    return best;
}

/* Makes one number an outlier, or all so small or large that the scales are subnormal or near the largest ones. */
static void make_hostile(float *x, size_t n, const tsr_best_int4 *c)
{
    const float amax = largest_of(x, n);
    if (amax == 0)
        return;
    const int to[] = {c->f16 ? -12 - (int)(random_bits() % 14) : -120 - (int)(random_bits() % 14), c->f16 ? 15 : 126};
    const uint64_t kind = random_bits() % 3;
    if (kind == 2) {
        x[random_bits() % n] = ldexpf(amax, ilogbf(amax) < 100 ? (int)(random_bits() % 12) : 0);
        return;
    }
    for (size_t i = 0; i < n; i++)
        x[i] = ldexpf(x[i], to[kind] - ilogbf(amax));
}

static void check(const float *x, const float *weight, size_t n, const tsr_best_int4 *c, pair given)
{
    static float scratch[TSR_BEST_INT4_SCRATCH(MOST_COLUMNS)];
    const pair want = best_of(x, weight, n, c, given);
    tsr_cpu_kernels k;
    for (int s = -1; s < SETS && take_set_or_reference(s, &k); s++) {
        pair got = given;
        k.best_int4(x, weight, n, c, scratch, &got.scale, &got.zero);
        cr_assert(got.scale == want.scale && got.zero == want.zero,
                  "set %d, n %zu, f16 %d, zero points %d, away %d: %a %g, loss %a; not %a %g, loss %a", s, n, c->f16,
                  c->zero_points, c->away, (double)got.scale, (double)got.zero, loss_of(x, weight, n, c, got),
                  (double)want.scale, (double)want.zero, loss_of(x, weight, n, c, want));
    }
}

static void check_many(bool zero_points, uint64_t groups)
{
    static float x[MOST_COLUMNS], weight[MOST_COLUMNS];
    static const size_t kColumns[] = {32, 64, 128, 32, 1, 33, 32, 32};
    const size_t given = number_in("TESSERA_BEST_COLUMNS", 0) % MOST_COLUMNS;
    for (uint64_t round = 0; round < groups; round++) {
        const tsr_best_int4 c = {round % 8 == 5, zero_points, round % 4 == 3};
        const size_t n = given > 0        ? given
                         : round % 8 == 6 ? 1 + random_bits() % MOST_COLUMNS
                                          : kColumns[random_bits() % 8];
        fill(x, n, round, round % 16 == 8 ? 16 : MOST_COLUMNS + 4); /* 304 is a multiple of 16 */
        if (round % 3 == 0)                                         /* one sign */
            for (size_t i = 0; i < n; i++)
                x[i] = fabsf(x[i]);
        if (round % 4 == 1)
            make_hostile(x, n, &c);
        fill_weights(weight, n, round / 2);
        const float *const w = round % 2 == 0 ? NULL : weight;
        const span tried = span_of(x, w, n, &c);
        if (given_of(x, n, &c).scale < largest_of(x, n) / 256) /* beyond F16 */
            continue;
        if ((uint64_t)(tried.last - tried.first + 1) * n * (zero_points ? 16 : 1) > MOST_TRIED)
            continue;
        check(x, w, n, &c, given_of(x, n, &c));
    }
}

Test(best_int4, symmetric_groups_get_the_best_of_all_scales, .timeout = 0)
{
    check_many(false, groups_to_test(200));
}

Test(best_int4, groups_get_the_best_of_all_scales_and_zero_points, .timeout = 0)
{
    check_many(true, groups_to_test(40));
}

/* Small integers: many pairs have no loss. The given pair is any. */
Test(best_int4, groups_of_integers_get_the_first_of_equal_pairs)
{
    float x[8], weight[8];
    for (uint64_t round = 0; round < 200; round++) {
        const tsr_best_int4 c = {.zero_points = true, .away = round % 4 == 3};
        const size_t n = 1 + random_bits() % 8;
        for (size_t i = 0; i < n; i++)
            x[i] = (float)(random_bits() % 33) - (float)(round % 3 * 16);
        fill_weights(weight, n, round / 2);
        const float scale = scale_of(&c, stored(&c, largest_of(x, n) * (0.02f + 0.3f * uniform())));
        check(x, round % 2 == 0 ? NULL : weight, n, &c, (pair){scale, (float)(random_bits() % 16) - 8});
    }
}

Test(best_int4, groups_of_zeros_keep_the_given_pair)
{
    const float x[32] = {0, -0.0f}, ones[32] = {1, 1, 1}, none[32] = {0};
    float scratch[TSR_BEST_INT4_SCRATCH(32)];
    tsr_cpu_kernels k;
    for (int s = -1; s < SETS && take_set_or_reference(s, &k); s++) {
        for (int zero_points = 0; zero_points < 2; zero_points++) {
            pair got = {0.5f, zero_points == 0 ? 0 : 3};
            const tsr_best_int4 c = {.zero_points = zero_points != 0};
            k.best_int4(x, NULL, 32, &c, scratch, &got.scale, &got.zero);
            k.best_int4(ones, none, 32, &c, scratch, &got.scale, &got.zero);
            cr_assert(got.scale == 0.5f && got.zero == (zero_points == 0 ? 0 : 3));
        }
    }
}
