/* Stores buffered scales in their dtype and reads them back. The conversion is exact both ways. */
#include "convert/ops/rows/buffered_scales.h"

#include "common/float_bits.h"
#include "quantize/fp8_decode.h"

#include <stdlib.h>

void tsr_buffered_scales_store(tsr_dtype dtype, const float *scales, uint64_t n, void *buffered, uint64_t first)
{
    for (uint64_t i = 0; i < n; i++) {
        if (dtype == TSR_F32)
            ((float *)buffered)[first + i] = scales[i];
        else
            ((uint16_t *)buffered)[first + i] =
                dtype == TSR_BF16 ? tsr_bf16_from_f32(scales[i]) : tsr_f16_from_f32(scales[i]);
    }
}

void tsr_buffered_zeros_pack(uint32_t bits, const int8_t *zeros, uint64_t row, uint64_t rows, uint64_t groups,
                             uint32_t *words)
{
    const uint32_t per = 32 / bits;
    for (uint64_t r = 0; r < rows; r++) {
        for (uint64_t g = 0; g < groups; g++) {
            const uint32_t code = (uint32_t)(zeros[r * groups + g] + (1 << (bits - 1)));
            words[(row + r) / per * groups + g] |= code << ((row + r) % per * bits);
        }
    }
}

tsr_status tsr_buffered_scales_finish(const tsr_step *step, void *const *buffered, tsr_quant_stats *stats, tsr_err *err)
{
    tsr_cpu_kernels kernels;
    const tsr_dtype dtype = (tsr_dtype)step->out[1]->dtype;
    const uint64_t n = step->out[1]->bytes / tsr_dtype_bytes(dtype);
    float *const scales = malloc((n + 1) * sizeof *scales);
    if (scales == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the scales of '%s'", step->in[0]->name);
    tsr_cpu_kernels_init(&kernels, 0);
    tsr_widen_to_f32(&kernels, dtype, buffered[1], n, scales);
    tsr_quant_stats_scales(stats, scales, n);
    free(scales);
    return TSR_OK;
}
