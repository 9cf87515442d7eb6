/* Quantizes activations in small groups: amax, scales and codes of several groups at a time. */
#include "kernels/cpu/mx_tokens.h"

enum { GROUPS = 64 };

/* Properties of an element type for scale_e8m0: its largest power of two, and the mantissa of its largest value. */
static const struct element {
    int emax;
    uint32_t largest;
} kE2m1 = {2, 0x400000}, kE4m3 = {8, 0x600000};

static void make_scales(const tsr_cpu_kernels *kernels, const tsr_mx_matrix *to, const uint32_t *amax, size_t n,
                        uint8_t *scales, float *t)
{
    const bool times = to->form == TSR_MX_FORM_NVFP4_TIMES;
    if (times || to->form == TSR_MX_FORM_NVFP4_DIVIDED) {
        const tsr_nvfp4_recipe recipe = {.global = to->global, .multiplies = times};
        kernels->scale_nvfp4(amax, n, &recipe, scales, t);
        return;
    }
    const struct element *const e = to->form == TSR_MX_FORM_MXFP8 ? &kE4m3 : &kE2m1;
    kernels->scale_e8m0(amax, n, e->largest, e->emax, scales, t);
}

void tsr_quantize_tokens_mx(const tsr_cpu_kernels *kernels, const uint16_t *x, size_t m, size_t k,
                            const tsr_mx_matrix *to, uint8_t *codes, uint8_t *scales)
{
    const size_t group = tsr_mx_form_group(to->form), groups = m * k / group;
    for (size_t g = 0; g < groups; g += GROUPS) {
        const size_t n = groups - g < GROUPS ? groups - g : GROUPS, at = g * group;
        uint8_t *const to_codes = codes + tsr_mx_form_bytes(to->form, at);
        uint32_t amax[GROUPS];
        float t[GROUPS];
        kernels->amax_groups_bf16(x + at, n * group, group, amax);
        make_scales(kernels, to, amax, n, scales + g, t);
        if (to->form == TSR_MX_FORM_MXFP8)
            kernels->encode_mxfp8_bf16(x + at, n * group, scales + g, to_codes);
        else
            kernels->encode_e2m1_bf16(x + at, n * group, group, t, TSR_E2M1_EVEN, to_codes);
    }
}
