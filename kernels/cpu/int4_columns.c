/* Defines the decoding of int4 codes stored by columns. */
#define TSR_INT4(name) tsr_##name##_ref
#include "common/float_bits.h"
#include "kernels/cpu/int4_columns_body.h"

#include <math.h>

void tsr_decode_int4_columns_bf16_ref(const tsr_int4_columns *x, uint16_t *y, size_t ld)
{
    for (size_t r = 0; r < x->rows; r++) {
        for (size_t c = 0; c < x->cols; c++) {
            const size_t g = x->group[c] * x->ld_groups + r;
            const uint32_t code = x->words[c / 8 * x->ld_words + r] >> 4 * (c % 8) & 15;
            y[r * ld + c] = tsr_bf16_from_f32(fmaf(TSR_INT4_RAISE + (float)code, x->scale[g], x->offset[g]));
        }
    }
}
