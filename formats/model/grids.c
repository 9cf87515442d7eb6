/* How e4m3 and e2m1 codes lie, and the grid of their scales: which row of the table of kinds the shapes fit. */
#include "common/checked.h"
#include "formats/model/absorbed.h"
#include "formats/model/pairing.h"

/* Grids are padded for tensor parallelism, to a multiple of at most this many blocks. */
enum { GRID_PADDING = 8 };

/* The last two dimensions, and how many matrices stand before them. */
static void take_shape(tsr_weight *x)
{
    const tsr_tensor *const t = x->values;
    x->matrices = t->rank == 3 ? t->shape[0] : 1;
    x->rows = t->shape[t->rank - 2];
    x->cols = t->shape[t->rank - 1];
}

/* ---- groups: MXFP4, NVFP4, MXFP8 ---- */

/* One scale for `group` columns of a row, no more and no less. */
static bool fits_groups(tsr_weight *x, uint64_t group)
{
    const tsr_tensor *const t = x->values, *const s = x->scale;
    if (x->cols % group != 0 || s->rank != t->rank || (t->rank == 3 && s->shape[0] != t->shape[0]) ||
        s->shape[s->rank - 2] != x->rows || s->shape[s->rank - 1] != x->cols / group)
        return false;
    x->block = (tsr_block){1, group};
    x->grid_rows = x->rows;
    x->grid_cols = x->cols / group;
    return true;
}

/* [.., R, C / 2] of bytes, or [.., R, C] of F4, are [.., R, C] values; gpt-oss' [M, R, C / 32, 16] are [M, R, C]. */
static tsr_status unpack_shape(const tsr_pairing *p, tsr_weight *x)
{
    const tsr_tensor *const t = x->data;
    const bool blocks = x->kind->transposed;
    char shape[192];
    if (blocks ? t->rank != 4 || t->shape[3] != x->kind->group / 2u : t->rank != 2 && t->rank != 3)
        return tsr_fail(p->err, TSR_E_FORMAT, "%s: '%s' is %s %s: no codes of %s have this shape",
                        tsr_pairing_path(p, t), t->name, tsr_dtype_name((tsr_dtype)t->dtype),
                        tsr_shape_text(t, shape, sizeof shape), x->kind->title);
    tsr_tensor *const values = tsr_arena_alloc(&p->w->arena, sizeof *values);
    if (values == NULL)
        return tsr_out_of_memory(p->err, "while pairing");
    *values = *x->values;
    values->rank = blocks ? 3 : t->rank;
    uint64_t *const cols = &values->shape[values->rank - 1];
    if (!tsr_mul_u64(blocks ? t->shape[2] : t->shape[t->rank - 1],
                     blocks               ? x->kind->group
                     : t->dtype == TSR_F4 ? 1
                                          : 2,
                     cols))
        return tsr_fail(p->err, TSR_E_SHAPE, "%s: '%s' is too large", tsr_pairing_path(p, t), t->name);
    x->values = values;
    take_shape(x);
    return TSR_OK;
}

/* Loaders know the values as the transpose of what is stored. */
static tsr_status transpose_values(const tsr_pairing *p, tsr_weight *x)
{
    tsr_tensor *const values = tsr_arena_alloc(&p->w->arena, sizeof *values);
    if (values == NULL)
        return tsr_out_of_memory(p->err, "while pairing");
    *values = *x->values;
    values->shape[1] = x->cols;
    values->shape[2] = x->rows;
    x->values = values;
    x->transposed = true;
    return TSR_OK;
}

tsr_status tsr_check_e2m1(const tsr_pairing *p, tsr_weight *x)
{
    const tsr_tensor *const t = x->data, *const s = x->scale;
    char shape[192], grid[192];
    TSR_TRY(unpack_shape(p, x));
    if (!fits_groups(x, x->kind->group))
        return tsr_fail(
            p->err, TSR_E_FORMAT,
            "%s: '%s' is %s %s; '%s' %s %s as %s has a scale for %u of a row's %llu codes, [.., %llu, %llu]",
            tsr_pairing_path(p, s), s->name, tsr_dtype_name((tsr_dtype)s->dtype), tsr_shape_text(s, grid, sizeof grid),
            t->name, tsr_dtype_name((tsr_dtype)t->dtype), tsr_shape_text(t, shape, sizeof shape), x->kind->title,
            x->kind->group, U64(x->cols), U64(x->rows), U64(tsr_ceil_div(x->cols, x->kind->group)));
    return x->kind->transposed ? transpose_values(p, x) : TSR_OK;
}

/* ---- e4m3 ---- */

/* Whether so many rows or columns of scales are what the weight needs. Floating-point grids may be padded. */
static bool fits(const tsr_weight *x, uint64_t stored, uint64_t needed)
{
    const bool padded = tsr_dtype_is_weight_float((tsr_dtype)x->scale->dtype);
    return stored >= needed && stored <= (padded ? tsr_round_up(needed, GRID_PADDING) : needed);
}

/* The grid's last two dimensions; ModelOpt has [rows, 1, cols, 1] for a matrix. */
static bool take_grid(const tsr_weight *x, uint64_t *rows, uint64_t *cols)
{
    const tsr_tensor *const t = x->data, *const s = x->scale;
    const bool spread = t->rank == 2 && s->rank == 4 && s->shape[1] == 1 && s->shape[3] == 1;
    if (!spread && (s->rank != t->rank || (t->rank == 3 && s->shape[0] != t->shape[0])))
        return false;
    *rows = spread ? s->shape[0] : s->shape[s->rank - 2];
    *cols = spread ? s->shape[2] : s->shape[s->rank - 1];
    return true;
}

static bool fits_blocks(tsr_weight *x, tsr_block block)
{
    uint64_t rows, cols;
    if (block.rows == 0 || !take_grid(x, &rows, &cols))
        return false;
    if (!fits(x, rows, tsr_ceil_div(x->rows, block.rows)) || !fits(x, cols, tsr_ceil_div(x->cols, block.cols)))
        return false;
    x->block = block;
    x->grid_rows = rows;
    x->grid_cols = cols;
    return true;
}

/* One scale a matrix, or one a row. */
static bool fits_coarse(tsr_weight *x, uint64_t scales)
{
    const tsr_tensor *const s = x->scale;
    const bool column = s->rank == 0 || s->shape[s->rank - 1] == 1 || s->rank < x->data->rank;
    if (!column || tsr_tensor_elements(s) != x->matrices * scales)
        return false;
    x->coarse = true;
    x->block = (tsr_block){scales == 1 ? x->rows : 1, x->cols};
    x->grid_rows = scales;
    x->grid_cols = 1;
    return true;
}

/* Of an absorbed kv_b_proj: one scale for both parts, one a head, or a grid for each head in the order of its part. */
static bool fits_part(tsr_weight *x)
{
    const uint64_t n = tsr_tensor_elements(x->scale);
    if (x->one_scale ? n != 1 : x->scale->rank != 1 || n != x->matrices)
        return false;
    x->coarse = true;
    x->block = (tsr_block){x->rows, x->cols};
    x->grid_rows = x->grid_cols = 1;
    return true;
}

/* Whether the scale lies as this row of the table says. The size of blocks is what is stated, never a guess. */
static bool fits_kind(const tsr_pairing *p, tsr_weight *x, const tsr_weight_kind *kind)
{
    const bool turned = x->part != NULL && x->part->latent_first; /* its grid is transposed with it */
    switch ((tsr_grid)kind->grid) {
    case TSR_GRID_GROUPS:
        return x->part == NULL && fits_groups(x, kind->group);
    case TSR_GRID_BLOCKS:
        for (size_t i = 0; i < p->n_stated; i++) {
            const tsr_stated_coding *const s = &p->stated[i];
            if (!s->integer && s->bits == 8 && (x->scale->dtype != TSR_U8 || p->w->ue8m0) &&
                fits_blocks(x, turned ? tsr_block_turned(s->block) : s->block))
                return true;
        }
        return false;
    case TSR_GRID_ROWS:
        return p->w->block.rows == 0 && fits_coarse(x, x->rows);
    case TSR_GRID_WHOLE:
        return (x->part != NULL && fits_part(x)) || (p->w->block.rows == 0 && fits_coarse(x, 1));
    }
    return false;
}

static bool states_fp8(const tsr_pairing *p)
{
    size_t i = 0;
    while (i < p->n_stated && (p->stated[i].integer || p->stated[i].bits != 8))
        i++;
    return i < p->n_stated;
}

static tsr_status refuse_grid(const tsr_pairing *p, const tsr_weight *x)
{
    const tsr_tensor *const t = x->data, *const s = x->scale;
    const bool turned = x->part != NULL && x->part->latent_first;
    const tsr_block block = turned ? tsr_block_turned(p->w->block) : p->w->block;
    char shape[192], grid[192];
    tsr_shape_text(t, shape, sizeof shape);
    tsr_shape_text(s, grid, sizeof grid);
    if (s->dtype == TSR_U8)
        return tsr_fail(
            p->err, TSR_E_FORMAT,
            "%s: '%s' is U8 %s beside '%s' %s: MXFP8 has a scale for 32 of a row's columns, and in blocks U8 "
            "is read where config.json says scale_fmt ue8m0 and weight_block_size",
            tsr_pairing_path(p, s), s->name, grid, t->name, shape);
    if (p->holds && !states_fp8(p))
        return tsr_refuse_unstated(p, x);
    if (block.rows == 0)
        return tsr_fail(p->err, TSR_E_USAGE,
                        "%s: '%s' %s is scaled by '%s' %s, and no block size is stated (quantization_config."
                        "weight_block_size): --source-block 128x128 states it",
                        tsr_pairing_path(p, t), t->name, shape, s->name, grid);
    return tsr_fail(p->err, TSR_E_FORMAT,
                    "%s: '%s' is %s; blocks of %llux%llu of '%s' %s need a grid of %llu x %llu: the scale belongs to "
                    "another weight or another block size",
                    tsr_pairing_path(p, s), s->name, grid, U64(block.rows), U64(block.cols), t->name, shape,
                    U64(tsr_ceil_div(x->rows, block.rows)), U64(tsr_ceil_div(x->cols, block.cols)));
}

tsr_status tsr_check_e4m3(const tsr_pairing *p, tsr_weight *x)
{
    const tsr_tensor *const t = x->data, *const s = x->scale;
    char shape[192];
    if (t->rank != 2 && t->rank != 3)
        return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s: '%s' is F8_E4M3 %s: neither a matrix nor a stack of them",
                        tsr_pairing_path(p, t), t->name, tsr_shape_text(t, shape, sizeof shape));
    take_shape(x);
    for (const tsr_weight_kind *k = x->kind; k->name != NULL; k++) {
        if (k->coding == TSR_CODED_E4M3 && (k->scale_dtypes & TSR_DTYPE_BIT(s->dtype)) != 0 && fits_kind(p, x, k)) {
            x->kind = k;
            return TSR_OK;
        }
    }
    return refuse_grid(p, x);
}
