/* Compares the shapes of e4m3 and e2m1 codes and their scale grids with the table of kinds. */
#include "common/checked.h"
#include "common/text.h"
#include "formats/names/absorbed.h"
#include "formats/weights/pairing.h"

#include <stdio.h>
#include <string.h>

/* Grids are padded for tensor parallelism, to a multiple of at most this many blocks. */
enum { GRID_PADDING = 8, GRID_MOST_BLOCK = 4096 };

/* Sets the last two dimensions, and the number of matrices from the others. */
static void take_shape(tsr_weight *x)
{
    const tsr_tensor *const t = x->values;
    x->matrices = t->rank == 3 ? t->shape[0] : 1;
    x->rows = t->shape[t->rank - 2];
    x->cols = t->shape[t->rank - 1];
}

/* ---- groups: MXFP4, NVFP4, MXFP8 ---- */

/* Returns true if there is exactly one scale per `group` columns of a row. */
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

/* Computes the shape of the values: [.., R, C / 2] of bytes, or [.., R, C] of F4, are [.., R, C] values; gpt-oss' [M,
 * R, C / 32, 16] are [M, R, C]; MXFP6's [.., R, 3 * C / 4] are [.., R, C]. */
static tsr_status unpack_shape(const tsr_pairing *p, tsr_weight *x)
{
    const tsr_tensor *const t = x->data;
    const bool blocks = x->kind->transposed;
    char shape[192];
    if (blocks ? t->rank != 4 || t->shape[3] != x->kind->group / 2u : t->rank != 2 && t->rank != 3)
        return tsr_fail(p->err, TSR_E_FORMAT, "%s: '%s' is %s %s, which is not a valid shape for codes of %s",
                        tsr_pairing_path(p, t), t->name, tsr_dtype_name((tsr_dtype)t->dtype),
                        tsr_shape_text(t, shape, sizeof shape), x->kind->title);
    tsr_tensor *const values = tsr_arena_alloc(&p->w->arena, sizeof *values);
    if (values == NULL)
        return tsr_out_of_memory(p->err, "while pairing");
    *values = *x->values;
    values->rank = blocks ? 3 : t->rank;
    uint64_t *const cols = &values->shape[values->rank - 1];
    const bool thirds = x->kind->family == TSR_FAMILY_MXFP6;
    if (!tsr_mul_u64(blocks   ? t->shape[2]
                     : thirds ? t->shape[t->rank - 1] / 3
                              : t->shape[t->rank - 1],
                     blocks               ? x->kind->group
                     : thirds             ? 4
                     : t->dtype == TSR_F4 ? 1
                                          : 2,
                     cols))
        return tsr_fail(p->err, TSR_E_SHAPE, "%s: '%s' is too large", tsr_pairing_path(p, t), t->name);
    x->values = values;
    take_shape(x);
    return TSR_OK;
}

/* Swaps the last two dimensions: loaders expect the transpose of what is stored. */
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

/* ---- MXFP6, which has the names and dtypes of MXFP4 ---- */

/* Returns true if names and dtypes are also those of a kind of MXFP6. */
static bool may_have_six_bits(const tsr_weight *x)
{
    return x->kind->family == TSR_FAMILY_MX && x->kind->group == 32 && !x->kind->transposed &&
           x->data->dtype == TSR_U8 && tsr_ends_with(x->scale->name, "_scale") && x->data->rank >= 2;
}

/* Returns true if the codes of a row and its scales have the sizes of MXFP6: 24 bytes for each scale. */
static bool has_rows_of_six_bits(const tsr_weight *x)
{
    const uint64_t bytes = x->data->shape[x->data->rank - 1];
    return x->scale->rank == x->data->rank && bytes > 0 && bytes % 24 == 0 &&
           x->scale->shape[x->scale->rank - 1] == bytes / 24;
}

/* Finds the element of a layer where the configuration states both. */
static tsr_status find_element_of_layer(const tsr_pairing *p, const tsr_weight *x, tsr_coding *element)
{
    const char *const name = x->data->name;
    const char *const module = tsr_arena_dup(&p->w->arena, name, tsr_module_length(name));
    if (module == NULL)
        return tsr_out_of_memory(p->err, "while pairing");
    *element = p->quark.data == NULL ? TSR_PLAIN : tsr_quark_element(p->quark, module, &p->w->arena);
    if (*element != TSR_PLAIN)
        return TSR_OK;
    return tsr_fail(p->err, TSR_E_UNSUPPORTED,
                    "%s: '%s' is MXFP6, and " TSR_CONFIG_NAME
                    " states both fp6_e2m3 and fp6_e3m2, without saying which is this layer's: name it in "
                    "layer_quant_config",
                    tsr_pairing_path(p, x->data), name);
}

/* Finds the element of 6 bits that the configuration states. */
static tsr_status find_element(const tsr_pairing *p, const tsr_weight *x, tsr_coding *element)
{
    *element = TSR_PLAIN;
    for (size_t i = 0; i < p->n_stated; i++) {
        const tsr_coding stated = p->stated[i].element;
        if (stated == TSR_PLAIN || stated == *element)
            continue;
        if (*element != TSR_PLAIN)
            return find_element_of_layer(p, x, element);
        *element = stated;
    }
    if (*element != TSR_PLAIN && p->n_stated < TSR_MAX_STATED) /* otherwise some may not have been kept */
        return TSR_OK;
    return tsr_fail(p->err, TSR_E_UNSUPPORTED,
                    "%s: '%s' has the shape of MXFP6, but " TSR_CONFIG_NAME
                    " does not state its element; add quantization_config with format mxfp6-pack-quantized "
                    "(compressed-tensors), or weight.dtype fp6_e2m3 or fp6_e3m2 (Quark)",
                    tsr_pairing_path(p, x->data), x->data->name);
}

/* Selects the kind of MXFP6 with these tensors and the stated element. */
static tsr_status take_six_bits(const tsr_pairing *p, tsr_weight *x)
{
    tsr_coding element;
    TSR_TRY(find_element(p, x, &element));
    const char *const codes = x->kind->codes;
    for (const tsr_weight_kind *k = tsr_weight_kinds; k->name != NULL; k++) {
        if (k->family == TSR_FAMILY_MXFP6 && k->coding == element && strcmp(k->codes, codes) == 0)
            x->kind = k;
    }
    if (x->kind->family != TSR_FAMILY_MXFP6)
        return tsr_fail(
            p->err, TSR_E_UNSUPPORTED,
            "%s: '%s' is named as in compressed-tensors, whose MXFP6 has the element e2m3, but " TSR_CONFIG_NAME
            " states fp6_e3m2",
            tsr_pairing_path(p, x->data), x->data->name);
    x->coding = (uint8_t)element;
    x->bits = x->kind->bits;
    return TSR_OK;
}

static bool states_only_six_bits(const tsr_pairing *p)
{
    bool six = false, four = false;
    for (size_t i = 0; i < p->n_stated; i++) {
        six = six || p->stated[i].element != TSR_PLAIN;
        four = four || (!p->stated[i].integer && p->stated[i].bits == 4);
    }
    return six && !four;
}

tsr_status tsr_check_e2m1(const tsr_pairing *p, tsr_weight *x)
{
    const tsr_tensor *const t = x->data, *const s = x->scale;
    char shape[192], grid[192];
    if (may_have_six_bits(x) && (has_rows_of_six_bits(x) || states_only_six_bits(p)))
        TSR_TRY(take_six_bits(p, x));
    TSR_TRY(unpack_shape(p, x));
    if (!fits_groups(x, x->kind->group) || (x->bits == 6 && !has_rows_of_six_bits(x)))
        return tsr_fail(
            p->err, TSR_E_FORMAT,
            "%s: '%s' is %s %s; '%s' %s %s as %s needs one scale per %u of a row's %llu codes, [.., %llu, %llu]",
            tsr_pairing_path(p, s), s->name, tsr_dtype_name((tsr_dtype)s->dtype), tsr_shape_text(s, grid, sizeof grid),
            t->name, tsr_dtype_name((tsr_dtype)t->dtype), tsr_shape_text(t, shape, sizeof shape), x->kind->title,
            x->kind->group, U64(x->cols), U64(x->rows), U64(tsr_ceil_div(x->cols, x->kind->group)));
    return x->kind->transposed ? transpose_values(p, x) : TSR_OK;
}

/* ---- e4m3 ---- */

/* Returns true if the stored number of rows or columns of scales fits the needed number. Floating-point grids may be
 * padded. */
static bool fits(const tsr_weight *x, uint64_t stored, uint64_t needed)
{
    const bool padded = tsr_dtype_is_weight_float((tsr_dtype)x->scale->dtype);
    return stored >= needed && stored <= (padded ? tsr_round_up(needed, GRID_PADDING) : needed);
}

/* Gets the grid's last two dimensions; ModelOpt has [rows, 1, cols, 1] for a matrix. */
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

bool tsr_is_column(const tsr_tensor *t, unsigned most_rank, uint64_t matrices, uint64_t rows)
{
    uint64_t wanted[2], longer[8]; /* dimensions that are not 1 */
    size_t n_wanted = 0, n = 0;
    for (unsigned i = 0; i < t->rank; i++) {
        if (t->shape[i] != 1)
            longer[n++] = t->shape[i];
    }
    if (matrices != 1)
        wanted[n_wanted++] = matrices;
    if (rows != 1)
        wanted[n_wanted++] = rows;
    return t->rank <= most_rank && n == n_wanted && memcmp(longer, wanted, n * sizeof *wanted) == 0 &&
           (most_rank > 2 || t->rank == 0 || t->shape[0] == rows);
}

/* Returns a block of this size. An extent of 0, of a weight without elements, becomes 1. */
static tsr_block block_of(uint64_t rows, uint64_t cols)
{
    return (tsr_block){tsr_max_u64(1, rows), tsr_max_u64(1, cols)};
}

/* Returns true for one scale per matrix or per row. */
static bool fits_coarse(tsr_weight *x, uint64_t scales)
{
    if (!tsr_is_column(x->scale, x->data->rank, x->matrices, scales))
        return false;
    x->coarse = true;
    x->block = block_of(scales == 1 ? x->rows : 1, x->cols);
    x->grid_rows = scales;
    x->grid_cols = 1;
    return true;
}

/* Returns true if the scale fits a part of an absorbed kv_b_proj: one for both parts, one per head, or a grid per head
 * in the order of its part. */
static bool fits_part(tsr_weight *x)
{
    const uint64_t n = tsr_tensor_elements(x->scale);
    if (x->one_scale ? n != 1 : x->scale->rank != 1 || n != x->matrices)
        return false;
    x->coarse = true;
    x->block = block_of(x->rows, x->cols);
    x->grid_rows = x->grid_cols = 1;
    return true;
}

/* Returns true if the scale has the shape of this row of the table. Block sizes are as stated, never guessed. */
static bool fits_kind(const tsr_pairing *p, tsr_weight *x, const tsr_weight_kind *kind)
{
    const bool turned = x->part != NULL && x->part->latent_first; /* its grid is transposed too */
    switch ((tsr_grid)kind->grid) {
    case TSR_GRID_GROUPS:
        return x->part == NULL && fits_groups(x, kind->group);
    case TSR_GRID_BLOCKS:
        for (size_t i = 0; i < p->n_stated; i++) {
            const tsr_stated_coding *const s = &p->stated[i];
            if (!s->integer && s->bits == 8 && (x->scale->dtype != TSR_U8 || p->w->ue8m0) &&
                fits_blocks(x, turned ? tsr_block_transposed(s->block) : s->block))
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

/* ---- padding ---- */

/* Scales beyond those that a weight needs. */
typedef struct surplus {
    bool nan, number; /* some are NaN; some are numbers other than 0 and 1 */
} surplus;

/* Records a scale from its bits. */
static void note_surplus(surplus *found, tsr_dtype dtype, const unsigned char *bytes)
{
    const bool f16 = dtype == TSR_F16;
    uint32_t bits = 0;
    if (dtype == TSR_F32)
        memcpy(&bits, bytes, sizeof(float));
    else
        bits = (uint32_t)(bytes[1] << 8 | bytes[0]) << (f16 ? 0 : 16);
    const uint32_t one = f16 ? 0x3C00 : 0x3F800000, infinite = f16 ? 0x7C00 : 0x7F800000;
    const uint32_t magnitude = bits & (f16 ? 0x7FFF : 0x7FFFFFFF);
    found->nan = found->nan || magnitude > infinite;
    found->number = found->number || (magnitude <= infinite && magnitude != 0 && bits != one);
}

/* Reads the scales to the right of and below those that the weight needs. */
static tsr_status read_surplus(const tsr_pairing *p, const tsr_weight *x, uint64_t rows, uint64_t cols, surplus *found)
{
    enum { MOST = 256 };
    const tsr_dtype dtype = (tsr_dtype)x->scale->dtype;
    const size_t width = tsr_dtype_bytes(dtype);
    unsigned char bytes[MOST * sizeof(float)];
    for (uint64_t r = 0; r < x->matrices * x->grid_rows; r++) {
        const bool below = r % x->grid_rows >= rows;
        for (uint64_t at = below ? 0 : cols; at < x->grid_cols; at += MOST) {
            const uint64_t n = tsr_min_u64(MOST, x->grid_cols - at);
            TSR_TRY(tsr_checkpoint_read(p->c, x->scale, (r * x->grid_cols + at) * width, bytes, n * width, p->err));
            for (uint64_t i = 0; i < n; i++)
                note_surplus(found, dtype, bytes + i * width);
        }
    }
    return TSR_OK;
}

/* Returns the largest power of two for which `stored` blocks cover `size` elements; 0: none. */
static uint64_t block_that_fits(uint64_t size, uint64_t stored)
{
    uint64_t block = GRID_MOST_BLOCK;
    while (block > 0 && tsr_ceil_div(size, block) != stored)
        block /= 2;
    return block;
}

/* Appends "; the grid fits blocks of 128x128" to a message. */
static void say_what_fits(const tsr_weight *x, uint64_t rows, uint64_t cols, char *text, size_t size)
{
    const tsr_block block = {block_that_fits(x->rows, rows), block_that_fits(x->cols, cols)};
    if (block.rows != 0 && block.cols != 0)
        snprintf(text, size,
                 "; the grid fits blocks of %llux%llu: correct weight_block_size, or state them by --source-block",
                 U64(block.rows), U64(block.cols));
}

/* Rejects a grid larger than the weight needs, unless the surplus is padding. Warns about padding that is NaN. */
static tsr_status check_padding(const tsr_pairing *p, const tsr_weight *x)
{
    const tsr_tensor *const t = x->data, *const s = x->scale;
    const uint64_t rows = tsr_ceil_div(x->rows, x->block.rows), cols = tsr_ceil_div(x->cols, x->block.cols);
    char shape[192], grid[192], fits[160] = "";
    surplus found = {false, false};
    if (x->coarse || (rows == x->grid_rows && cols == x->grid_cols))
        return TSR_OK;
    TSR_TRY(read_surplus(p, x, rows, cols, &found));
    tsr_shape_text(t, shape, sizeof shape);
    tsr_shape_text(s, grid, sizeof grid);
    if (!found.number) {
        if (found.nan && p->w->n_warned++ == 0)
            p->w->warning = tsr_arena_printf(
                &p->w->arena, "%s: '%s' %s is larger than blocks of %llux%llu need, and its padding holds NaN",
                tsr_pairing_path(p, s), s->name, grid, U64(x->block.rows), U64(x->block.cols));
        return TSR_OK;
    }
    say_what_fits(x, x->grid_rows, x->grid_cols, fits, sizeof fits);
    return tsr_fail(p->err, TSR_E_FORMAT,
                    "%s: '%s' is %s; blocks of %llux%llu of '%s' %s need a grid of %llu x %llu, and the rest is not "
                    "padding: it holds values other than 0 and 1%s",
                    tsr_pairing_path(p, s), s->name, grid, U64(x->block.rows), U64(x->block.cols), t->name, shape,
                    U64(rows), U64(cols), fits);
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
    const tsr_block block = turned ? tsr_block_transposed(p->w->block) : p->w->block;
    char shape[192], grid[192], fits[160] = "";
    uint64_t rows, cols;
    tsr_shape_text(t, shape, sizeof shape);
    tsr_shape_text(s, grid, sizeof grid);
    if (s->dtype == TSR_U8)
        return tsr_fail(p->err, TSR_E_FORMAT,
                        "%s: '%s' is U8 %s beside '%s' %s: MXFP8 has one scale per 32 columns of a row; U8 scales of "
                        "blocks need scale_fmt ue8m0 and weight_block_size in config.json",
                        tsr_pairing_path(p, s), s->name, grid, t->name, shape);
    if (p->holds && !states_fp8(p))
        return tsr_refuse_unstated(p, x);
    if (block.rows == 0)
        return tsr_fail(p->err, TSR_E_USAGE,
                        "%s: '%s' %s is scaled by '%s' %s, and quantization_config.weight_block_size is missing; give "
                        "the block size, for example with --source-block 128x128",
                        tsr_pairing_path(p, t), t->name, shape, s->name, grid);
    const uint64_t need_rows = tsr_ceil_div(x->rows, block.rows), need_cols = tsr_ceil_div(x->cols, block.cols);
    const bool transposed =
        s->rank == 2 && s->shape[0] == need_cols && s->shape[1] == need_rows && need_rows != need_cols;
    if (!transposed && take_grid(x, &rows, &cols))
        say_what_fits(x, rows, cols, fits, sizeof fits);
    return tsr_fail(
        p->err, TSR_E_FORMAT, "%s: '%s' is %s; blocks of %llux%llu of '%s' %s need a grid of %llu x %llu: %s%s",
        tsr_pairing_path(p, s), s->name, grid, U64(block.rows), U64(block.cols), t->name, shape, U64(need_rows),
        U64(need_cols),
        transposed ? "the grid is stored transposed" : "the scale belongs to another weight or another block size",
        fits);
}

tsr_status tsr_check_e4m3(const tsr_pairing *p, tsr_weight *x)
{
    const tsr_tensor *const t = x->data, *const s = x->scale;
    char shape[192];
    if (t->rank != 2 && t->rank != 3)
        return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s: '%s' is F8_E4M3 %s: neither a matrix nor a stack of matrices",
                        tsr_pairing_path(p, t), t->name, tsr_shape_text(t, shape, sizeof shape));
    take_shape(x);
    for (const tsr_weight_kind *k = x->kind; k->name != NULL; k++) {
        if (k->coding == TSR_CODED_E4M3 && (k->scale_dtypes & TSR_DTYPE_BIT(s->dtype)) != 0 && fits_kind(p, x, k)) {
            x->kind = k;
            return check_padding(p, x);
        }
    }
    return refuse_grid(p, x);
}
