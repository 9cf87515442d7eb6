/* Implements the block FP8 product as TSR_FORM(name), for each form to include.
 *
 * Its loops have constant lengths, so that the compiler vectorizes them for the instruction set of the including
 * file. */
#include "common/float_bits.h"
#include "kernels/cpu/variants.h"

#include <math.h>
#include <string.h>

enum { LANES = 16, TOKENS = 16 /* TOKENS: number decoded at a time */ };

/* Decodes codes. At the position of FP32's exponent a code is 2^120 too small, also if subnormal. */
static void decode(const uint8_t *codes, size_t n, float *values)
{
    uint32_t bits[TSR_GEMM_TILE] = {0};
    for (size_t i = 0; i < n; i++)
        bits[i] = (codes[i] & 0x80u) << 24 | (codes[i] & 0x7Fu) << 20;
    memcpy(values, bits, sizeof bits);
    for (size_t i = 0; i < TSR_GEMM_TILE; i++)
        values[i] *= 0x1p120f;
}

static float tile_sum(const float *a, const float *w)
{
    float lanes[LANES] = {0};
    for (size_t x = 0; x < TSR_GEMM_TILE; x += LANES) {
        for (size_t lane = 0; lane < LANES; lane++)
            lanes[lane] += a[x + lane] * w[x + lane];
    }
    for (size_t half = LANES / 2; half > 0; half /= 2) {
        for (size_t lane = 0; lane < half; lane++)
            lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
}

static float power_of_two(uint32_t biased_exponent)
{
    return tsr_f32_from_bits(biased_exponent << 23);
}

/* Models one instruction of the tensor core: the accumulator and 32 products. */
static float step(const float *a, const float *w, float scale, float accumulator)
{
    float p[TSR_GEMM_STEP];
    uint32_t bits[TSR_GEMM_STEP], top = tsr_f32_bits(accumulator) & TSR_FP32_ABS_MASK;
    for (size_t i = 0; i < TSR_GEMM_STEP; i++)
        p[i] = a[i] * w[i] * scale;
    memcpy(bits, p, sizeof bits);
    for (size_t i = 0; i < TSR_GEMM_STEP; i++) {
        const uint32_t size = bits[i] & 0x7FFFFFFF;
        top = size > top ? size : top;
    }
    const uint32_t exponent = top >> 23;
    if (exponent <= TSR_GEMM_KEPT_BITS) /* no bits are kept */
        return 0;
    if (exponent == 0xFF)
        return NAN;
    const float up = power_of_two(2 * 127 + TSR_GEMM_KEPT_BITS - exponent);
    int32_t sum = (int32_t)(accumulator * up);
    for (size_t i = 0; i < TSR_GEMM_STEP; i++)
        sum += (int32_t)(p[i] * up);
    return (float)sum * power_of_two(exponent - TSR_GEMM_KEPT_BITS);
}

static float steps(const float *a, const float *w, float scale, float accumulator)
{
    for (size_t x = 0; x < TSR_GEMM_TILE; x += TSR_GEMM_STEP)
        accumulator = step(a + x, w + x, scale, accumulator);
    return accumulator;
}

typedef float add_tile_fn(const float *a, const float *w, float scale, float sum);

static inline __attribute__((always_inline)) float add_plain(const float *a, const float *w, float scale, float sum)
{
    return sum + tile_sum(a, w) * scale;
}

static inline __attribute__((always_inline)) float add_promoted(const float *a, const float *w, float scale, float sum)
{
    return sum + steps(a, w, 1, 0) * scale;
}

static inline __attribute__((always_inline)) void gemm(const tsr_fp8_gemm_args *g, add_tile_fn *add_tile)
{
    const size_t grid_k = (g->k + g->block_k - 1) / g->block_k;
    for (size_t i = 0; i < g->m; i++)
        memset(g->d + i * g->ldd, 0, g->n * sizeof *g->d);
    for (size_t first = 0; first < g->m; first += TOKENS) {
        const size_t tokens = g->m - first < TOKENS ? g->m - first : TOKENS;
        for (size_t x = 0; x < g->k; x += TSR_GEMM_TILE) {
            const size_t length = g->k - x < TSR_GEMM_TILE ? g->k - x : TSR_GEMM_TILE;
            const float *const scale_a = g->scale_a + x / g->block_k * g->ld_scale_a + first;
            float a[TOKENS][TSR_GEMM_TILE], w[TSR_GEMM_TILE];
            for (size_t i = 0; i < tokens; i++)
                decode(g->a + (first + i) * g->k + x, length, a[i]);
            for (size_t j = 0; j < g->n; j++) {
                const float scale_w = g->scale_w[j / g->block_n * grid_k + x / g->block_k];
                decode(g->w + j * g->k + x, length, w);
                for (size_t i = 0; i < tokens; i++) {
                    float *const d = g->d + (first + i) * g->ldd + j;
                    *d = add_tile(a[i], w, scale_a[i] * scale_w, *d);
                }
            }
        }
    }
}

void TSR_FORM(fp8_gemm)(const tsr_fp8_gemm_args *args)
{
    gemm(args, add_plain);
}

void TSR_FORM(fp8_gemm_tensor_core)(const tsr_fp8_gemm_args *args)
{
    gemm(args, add_promoted);
}

void TSR_FORM(fp8_gemm_unpromoted)(const tsr_fp8_gemm_args *args)
{
    gemm(args, steps);
}
