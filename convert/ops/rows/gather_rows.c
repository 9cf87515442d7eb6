/* Computes windows over a stack, and transposes stacks that are stored the other way round. */
#include "convert/ops/rows/gather_rows.h"

#include "common/checked.h"
#include "convert/ops/rows/rows.h"

static const tsr_gather *gather_of(const tsr_decoded *d)
{
    return d->params;
}

static uint64_t element_bytes(const tsr_gather *g)
{
    return tsr_dtype_bytes((tsr_dtype)g->from->dtype);
}

static uint64_t all_rows(const tsr_gather *g)
{
    return g->from->rank < 2 ? g->rows : g->from->shape[g->from->rank - (g->turned ? 1 : 2)];
}

/* Computes the windows of rows of one matrix. */
static void gather_windows(const tsr_decoded *d, uint64_t row, uint64_t rows, tsr_window *in)
{
    const tsr_gather *const g = gather_of(d);
    const uint64_t bytes = element_bytes(g), r = all_rows(g), at = g->first + row * g->step;
    const uint64_t matrix = (g->matrix + at / r) * r * g->cols * bytes, first = at % r;
    const uint64_t span = (rows - 1) * g->step + 1;
    if (g->turned)
        in[0] = (tsr_window){
            .offset = matrix + first * bytes, .rows = g->cols, .row_bytes = span * bytes, .pitch = r * bytes};
    else if (g->step == 1)
        in[0] = tsr_run_window(matrix + first * g->cols * bytes, rows * g->cols * bytes);
    else
        in[0] = (tsr_window){.offset = matrix + first * g->cols * bytes,
                             .rows = rows,
                             .row_bytes = g->cols * bytes,
                             .pitch = g->step * g->cols * bytes};
}

static uint64_t gather_memory(const tsr_decoded *d, uint64_t rows)
{
    const tsr_gather *const g = gather_of(d);
    return g->turned ? rows * g->cols * element_bytes(g) : 0;
}

/* Computes y[r][c] = x[c][r * step], in tiles that fit the L1 cache. */
#define TRANSPOSE(name, type)                                                             \
    static void name(const type *x, uint64_t step, uint64_t rows, uint64_t cols, type *y) \
    {                                                                                     \
        enum { TILE = 64 };                                                               \
        const uint64_t span = (rows - 1) * step + 1;                                      \
        for (uint64_t r0 = 0; r0 < rows; r0 += TILE) {                                    \
            for (uint64_t c0 = 0; c0 < cols; c0 += TILE) {                                \
                for (uint64_t r = r0; r < tsr_min_u64(r0 + TILE, rows); r++) {            \
                    for (uint64_t c = c0; c < tsr_min_u64(c0 + TILE, cols); c++)          \
                        y[r * cols + c] = x[c * span + r * step];                         \
                }                                                                         \
            }                                                                             \
        }                                                                                 \
    }

TRANSPOSE(transpose_16, uint16_t)
TRANSPOSE(transpose_32, uint32_t)

static tsr_status gather_decode(const tsr_decoded *d, uint64_t row, uint64_t rows, void *const *in, void *memory,
                                const tsr_cpu_kernels *kernels, const void **x, tsr_err *err)
{
    (void)row, (void)kernels, (void)err;
    const tsr_gather *const g = gather_of(d);
    *x = g->turned ? memory : in[0];
    if (g->turned && element_bytes(g) == sizeof(uint16_t))
        transpose_16(in[0], g->step, rows, g->cols, memory);
    else if (g->turned)
        transpose_32(in[0], g->step, rows, g->cols, memory);
    return TSR_OK;
}

const tsr_decoded *tsr_gather_rows(tsr_plan *plan, const tsr_gather *gather)
{
    tsr_gather *const g = tsr_arena_alloc(&plan->arena, sizeof *g);
    tsr_decoded *const d = tsr_arena_alloc(&plan->arena, sizeof *d);
    if (g == NULL || d == NULL)
        return NULL;
    *g = *gather;
    *d = (tsr_decoded){.in = {g->from},
                       .n_in = 1,
                       .params = g,
                       .windows = gather_windows,
                       .memory = gather_memory,
                       .decode = gather_decode};
    return d;
}
