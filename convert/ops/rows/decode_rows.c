/* Decodes any range of rows with the decoder of a format. Adjacent rows are decoded too where the decoder requires
 * it. */
#include "convert/ops/rows/decode_rows.h"

#include "common/checked.h"
#include "convert/io/copied_codes.h"

typedef struct params {
    tsr_row_view view;
    tsr_weight weight;
    const tsr_row_decoder *decoder;
} params;

static const params *params_of(const tsr_decoded *d)
{
    return d->params;
}

/* Widens the range of rows to what the decoder accepts. Returns how many rows were added in front. */
static uint64_t widen(const params *p, uint64_t *row, uint64_t *rows)
{
    const uint64_t skipped = *row % p->decoder->begin;
    const uint64_t end = tsr_min_u64(tsr_round_up(*row + *rows, p->decoder->end), p->view.rows);
    *row -= skipped;
    *rows = end - *row;
    return skipped;
}

static void rows_windows(const tsr_decoded *d, uint64_t row, uint64_t rows, tsr_window *in)
{
    const params *const p = params_of(d);
    (void)widen(p, &row, &rows);
    p->decoder->windows(&p->view, row, rows, in);
}

/* Returns the bytes of the values of this many rows, at any position. */
static uint64_t values_bytes(const params *p, uint64_t rows)
{
    return tsr_round_up((rows + p->decoder->begin + p->decoder->end) * p->weight.cols * sizeof(float), 64);
}

static uint64_t rows_memory(const tsr_decoded *d, uint64_t rows)
{
    const params *const p = params_of(d);
    return values_bytes(p, rows) + p->decoder->scratch(&p->weight);
}

static tsr_status rows_decode(const tsr_decoded *d, uint64_t row, uint64_t rows, void *const *in, void *memory,
                              const tsr_cpu_kernels *kernels, const void **x, tsr_err *err)
{
    const params *const p = params_of(d);
    void *const scratch = (char *)memory + values_bytes(p, rows);
    *x = (const float *)memory + widen(p, &row, &rows) * p->weight.cols;
    const tsr_coded_rows coded = {.view = &p->view, .row = row, .rows = rows, .in = in};
    return p->decoder->decode(&coded, kernels, TSR_F32, memory, scratch, err);
}

/* ---- the values of scales ---- */

static void powers_windows(const tsr_decoded *d, uint64_t row, uint64_t rows, tsr_window *in)
{
    in[0] = tsr_view_window(&params_of(d)->view, params_of(d)->weight.scale, row, rows);
}

static uint64_t powers_memory(const tsr_decoded *d, uint64_t rows)
{
    return rows * params_of(d)->weight.grid_cols * sizeof(float);
}

static tsr_status powers_decode(const tsr_decoded *d, uint64_t row, uint64_t rows, void *const *in, void *memory,
                                const tsr_cpu_kernels *kernels, const void **x, tsr_err *err)
{
    const uint64_t n = rows * params_of(d)->weight.grid_cols;
    tsr_window window;
    powers_windows(d, row, rows, &window);
    const tsr_copied scales = {params_of(d)->weight.scale, &window, in[0], TSR_F8_E8M0, true};
    TSR_TRY(tsr_check_copied_as(&scales, 0, n, kernels, err));
    tsr_widen_to_f32(kernels, TSR_F8_E8M0, in[0], n, memory);
    *x = memory;
    return TSR_OK;
}

/* ---- construction ---- */

static tsr_decoded *make(tsr_plan *plan, const tsr_row_view *view, const tsr_decoded *how)
{
    params *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    tsr_decoded *const d = tsr_arena_alloc(&plan->arena, sizeof *d);
    if (p == NULL || d == NULL)
        return NULL;
    *p = (params){.view = *view, .weight = *view->weight, .decoder = tsr_row_decoder_of(view->weight)};
    p->view.weight = &p->weight;
    *d = *how;
    d->params = p;
    return d;
}

const tsr_decoded *tsr_decode_powers(tsr_plan *plan, const tsr_row_view *view)
{
    static const tsr_decoded kPowers = {
        .windows = powers_windows, .memory = powers_memory, .decode = powers_decode, .n_in = 1};
    tsr_decoded *const d = make(plan, view, &kPowers);
    if (d != NULL)
        d->in[0] = view->weight->scale;
    return d;
}

const tsr_decoded *tsr_decode_rows(tsr_plan *plan, const tsr_row_view *view)
{
    static const tsr_decoded kRows = {.windows = rows_windows, .memory = rows_memory, .decode = rows_decode};
    tsr_decoded *const d = make(plan, view, &kRows);
    if (d != NULL)
        d->n_in = tsr_row_decoder_inputs(view->weight, d->in);
    return d;
}
