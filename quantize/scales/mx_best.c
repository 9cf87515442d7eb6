/* Lists the scales that a microscaling format can store, and searches them. */
#include "quantize/scales/mx_best.h"

enum { BYTES = 256 };

void tsr_mx_best_scales(tsr_mx_element element, tsr_mx_scale kind, const tsr_cpu_kernels *kernels, float global,
                        const float *x, const float *importance, uint64_t cols, uint8_t *scales)
{
    uint8_t bytes[BYTES];
    float t[BYTES];
    tsr_best_groups candidates = {.group = kind == TSR_MX_E8M0 ? 32 : 16,
                                  .e4m3 = element == TSR_MX_E4M3,
                                  .e8m0 = kind == TSR_MX_E8M0,
                                  .t = t,
                                  .least = BYTES,
                                  .most = -1};
    for (int i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)i;
    tsr_mx_scale_values(kind, global, bytes, BYTES, t);
    for (int i = 0; i < BYTES; i++) {
        if (!tsr_mx_is_scale(kind, i) || t[i] == 0 || tsr_mx_may_reach_infinity(element, t[i]))
            continue;
        candidates.least = i < candidates.least ? i : candidates.least;
        candidates.most = i;
    }
    kernels->best_groups(x, importance, cols, &candidates, scales);
}
