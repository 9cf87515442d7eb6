/* Defines FP32 projections. */
#include "kernels/cpu/project.h"

size_t tsr_project_roundings(size_t k)
{
    return (k + TSR_PROJECT_LANES - 1) / TSR_PROJECT_LANES +
           6; /* one for the product, those of a partial sum, and 5 for adding the partial sums */
}

static float dot(const float *x, const float *w, size_t k)
{
    float sums[TSR_PROJECT_LANES] = {0};
    size_t c = 0;
    for (; c + TSR_PROJECT_LANES <= k; c += TSR_PROJECT_LANES) {
        for (size_t lane = 0; lane < TSR_PROJECT_LANES; lane++)
            sums[lane] += x[c + lane] * w[c + lane];
    }
    for (size_t lane = 0; c + lane < k; lane++)
        sums[lane] += x[c + lane] * w[c + lane];
    for (size_t half = TSR_PROJECT_LANES / 2; half > 0; half /= 2) {
        for (size_t lane = 0; lane < half; lane++)
            sums[lane] += sums[lane + half];
    }
    return sums[0];
}

void tsr_project_run(const tsr_project_args *a)
{
    for (size_t b = 0; b < a->batch; b++) {
        for (size_t j = 0; j < a->n; j++) {
            const float *const w = a->w + b * a->next_w + j * a->ld_w;
            for (size_t i = 0; i < a->m; i++)
                a->y[b * a->next_y + i * a->ld_y + j] = dot(a->x + b * a->next_x + i * a->ld_x, w, a->k);
        }
    }
}
