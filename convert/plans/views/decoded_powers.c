/* Reads scales during planning, before any code is moved. */
#include "convert/plans/views/decoded_powers.h"

#include "common/checked.h"
#include "quantize/fp8_decode.h"
#include "quantize/moves/mx_moves.h"

#include <stdlib.h>

static tsr_status refuse_scale(const tsr_checkpoint *c, const tsr_weight *w, uint64_t at, float scale, tsr_err *err)
{
    const uint64_t row = at / w->grid_cols;
    return tsr_fail(err, TSR_E_VALUE,
                    "%s: '%s': the scale at [%llu, %llu] of matrix %llu is %g, file offset %llu, not a power of two, "
                    "although config.json says scale_fmt ue8m0; MXFP8 cannot store it, so this is not lossless "
                    "(--lossy recomputes the codes)",
                    c->files[w->scale->file].path, w->scale->name, U64(row % w->grid_rows), U64(at % w->grid_cols),
                    U64(row / w->grid_rows), (double)scale,
                    U64(w->scale->offset + at * tsr_dtype_bytes((tsr_dtype)w->scale_dtype)));
}

/* Searches the scales that the weight uses for one that is not a power of two. */
static tsr_status find_powers(const tsr_decoded_view *v, const tsr_weight *w, bool refuse, bool *powers, tsr_err *err)
{
    const uint64_t rows = tsr_ceil_div(w->rows, w->block.rows), cols = tsr_ceil_div(w->cols, w->block.cols);
    const size_t width = tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
    char *const bytes = malloc(w->scale->bytes + 1);
    tsr_cpu_kernels kernels;
    tsr_cpu_kernels_init(&kernels, 0);
    tsr_status status = bytes == NULL ? tsr_out_of_memory(err, "while planning")
                                      : tsr_checkpoint_read(v->source, w->scale, 0, bytes, w->scale->bytes, err);
    *powers = status == TSR_OK;
    for (uint64_t i = 0; *powers && i < w->matrices * rows * cols; i++) {
        const uint64_t matrix = i / cols / rows, row = i / cols % rows, col = i % cols;
        const uint64_t at = (matrix * w->grid_rows + row) * w->grid_cols + col;
        float scale;
        tsr_widen_to_f32(&kernels, (tsr_dtype)w->scale_dtype, bytes + at * width, 1, &scale);
        *powers = tsr_is_e8m0(scale);
        if (!*powers && refuse)
            status = refuse_scale(v->source, w, at, scale, err);
    }
    free(bytes);
    return status;
}

tsr_status tsr_decoded_view_find_powers(tsr_decoded_view *v, bool refuse, tsr_err *err)
{
    const tsr_weight *last = NULL;
    bool powers = false;
    for (size_t i = 0; i < v->n_parts; i++) {
        const tsr_weight *const w = v->parts[i].view.weight;
        if (w == NULL || w->kind->family != TSR_FAMILY_FP8 || w->coarse || w->part != NULL)
            continue;
        if (w != last)
            TSR_TRY(find_powers(v, w, refuse && v->weights.ue8m0, &powers, err));
        last = w;
        v->parts[i].powers = powers;
    }
    return TSR_OK;
}
