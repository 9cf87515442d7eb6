/* Defines the weight-only product, word by word in the order of the layout. */
#include "kernels/cpu/weight_only_gemm.h"

#include "common/float_bits.h"
#include "kernels/cpu/fast_dequant.h"

#include <string.h>

typedef void convert_fn(uint32_t word, uint32_t *pairs);

static convert_fn *converter(const tsr_weight_only_args *g)
{
    if (g->format->bits == 8)
        return g->bf16 ? tsr_fast_int8_bf16 : tsr_fast_int8_f16;
    return g->bf16 ? tsr_fast_int4_bf16 : tsr_fast_int4_f16;
}

static bool scaled_early(const tsr_weight_only_args *g)
{
    return g->group != 0 || g->zeros != NULL;
}

static uint16_t narrow(float x, bool bf16)
{
    return bf16 ? tsr_bf16_from_f32(x) : tsr_f16_from_f32(x);
}

/* Returns both elements of a pair with the scales and zeros of their groups. */
static uint32_t scale_pair(const tsr_weight_only_args *g, uint32_t pair, const tsr_ft_element *at)
{
    uint32_t scales = 0, zeros = 0;
    for (unsigned i = 0; i < 2; i++) {
        const size_t from = (g->group == 0 ? 0 : at[i].k / g->group) * g->n + at[i].n;
        scales |= (uint32_t)narrow(g->scales[from], g->bf16) << 16 * i;
        /* + -0: the product alone. */
        zeros |= (uint32_t)(g->zeros == NULL ? 0x8000 : narrow(g->zeros[from], g->bf16)) << 16 * i;
    }
    return g->bf16 ? tsr_fma_bf16x2(pair, scales, zeros) : tsr_fma_f16x2(pair, scales, zeros);
}

/* Returns element e of word i. Even elements are in the lower half, odd ones in the upper half. */
static tsr_ft_element element_of(const tsr_weight_only_args *g, size_t i, unsigned e)
{
    const unsigned per_word = 32u / (unsigned)g->format->bits;
    const size_t position = i * per_word + e / 2 + e % 2 * (per_word / 2);
    const tsr_ft_place place =
        g->format->bits == 8 ? (tsr_ft_place){position, 0} : (tsr_ft_place){position / 2, (unsigned)(position % 2)};
    return tsr_ft_element_at(g->format, g->k, g->n, place);
}

static void add_product(const tsr_weight_only_args *g, tsr_ft_element at, uint16_t bits)
{
    const float w = g->bf16 ? tsr_f32_from_bf16(bits) : tsr_f32_from_f16(bits);
    for (size_t i = 0; i < g->m; i++)
        g->d[i * g->ldd + at.n] += g->a[i * g->k + at.k] * w;
}

void tsr_weight_only_reference(const tsr_weight_only_args *g)
{
    const unsigned pairs = 16u / (unsigned)g->format->bits;
    convert_fn *const convert = converter(g);
    for (size_t i = 0; i < g->m; i++)
        memset(g->d + i * g->ldd, 0, g->n * sizeof *g->d);
    for (size_t i = 0; i < g->n * g->k / (2 * pairs); i++) {
        uint32_t converted[4];
        convert(g->words[i], converted);
        for (unsigned p = 0; p < pairs; p++) {
            const tsr_ft_element at[2] = {element_of(g, i, 2 * p), element_of(g, i, 2 * p + 1)};
            const uint32_t pair = scaled_early(g) ? scale_pair(g, converted[p], at) : converted[p];
            add_product(g, at[0], (uint16_t)pair);
            add_product(g, at[1], (uint16_t)(pair >> 16));
        }
    }
    for (size_t i = 0; !scaled_early(g) && i < g->m; i++) {
        for (size_t n = 0; n < g->n; n++)
            g->d[i * g->ldd + n] *= g->scales[n];
    }
}
