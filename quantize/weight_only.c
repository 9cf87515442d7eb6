/* Owns symmetric quantization by column. */
#include "quantize/weight_only.h"

#include <math.h>

static int8_t quantize(float w, float scale, float least)
{
    if (scale == 0)
        return 0;
    return (int8_t)fminf(fmaxf(roundf(w / scale), least), -least - 1);
}

void tsr_weight_only_quantize(const tsr_weight_only_matrix *m, int bits, const float *w, int8_t *codes, float *scales)
{
    const float least = bits == 8 ? -128 : -8;
    for (size_t n = 0; n < m->n; n++) {
        const float *const column = w + n * m->step_n;
        float amax = 0;
        for (size_t k = 0; k < m->k; k++)
            amax = fmaxf(amax, fabsf(column[k * m->step_k]));
        scales[n] = amax * (-1 / least);
        for (size_t k = 0; k < m->k; k++)
            codes[n * m->step_n + k * m->step_k] = quantize(column[k * m->step_k], scales[n], least);
    }
}
