/* Implements tsr_int8_gemm as TSR_INT8_GEMM, for each form to include. */
#include "kernels/cpu/variants.h"

static int32_t product(const int8_t *a, const int8_t *w, size_t k)
{
    int32_t sum = 0;
    for (size_t x = 0; x < k; x++)
        sum += a[x] * w[x];
    return sum;
}

static float epilogue(const tsr_int8_gemm_args *g, size_t i, size_t j, int32_t sum)
{
    if (g->azp_with_adj != NULL)
        sum -= g->azp_with_adj[j];
    if (g->azp != NULL)
        sum -= g->azp[i] * g->azp_adj[j];
    const float scaled = g->scale_a[g->one_scale_a ? 0 : i] * (g->scale_w[g->one_scale_w ? 0 : j] * (float)sum);
    return g->bias == NULL ? scaled : scaled + g->bias[j];
}

void TSR_INT8_GEMM(const tsr_int8_gemm_args *g)
{
    for (size_t i = 0; i < g->m; i++) {
        for (size_t j = 0; j < g->n; j++)
            g->d[i * g->ldd + j] = epilogue(g, i, j, product(g->a + i * g->k, g->w + j * g->k, g->k));
    }
}
