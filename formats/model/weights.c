/* Finding each weight's scale, and holding both to the rules. */
#include "formats/model/weights.h"

#include "common/checked.h"
#include "common/text.h"
#include "formats/model/absorbed.h"
#include "formats/model/foreign.h"
#include "formats/model/pairing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kWeight[] = ".weight";

/* Grids are padded for tensor parallelism, to a multiple of at most this many blocks. */
enum { GRID_PADDING = 8 };

size_t tsr_module_length(const char *name)
{
    return strlen(name) - (tsr_ends_with(name, kWeight) ? sizeof kWeight - 1 : 0);
}

/* ---- pairing ---- */

/* Passes a problem on to whoever asked to hear of them all. */
static tsr_status judge(const tsr_pairing *p, const tsr_tensor *tensor, tsr_status status)
{
    if (status == TSR_OK || status == TSR_E_NOMEM || p->problem == NULL)
        return status;
    p->problem(p->data, tensor, status, p->err->msg);
    return TSR_OK;
}

const char *tsr_pairing_path(const tsr_pairing *p, const tsr_tensor *t)
{
    return p->c->files[t->file].path;
}

static size_t index_of(const tsr_pairing *p, const tsr_tensor *t)
{
    return (size_t)(t - p->c->tensors.items);
}

static tsr_status find_scale(const tsr_pairing *p, tsr_weight *x)
{
    static const struct {
        const char *suffix;
        bool of_module; /* behind the name without ".weight" */
    } kSpellings[] = {
        {"_scale_inv", false}, {"_scales_inv", false}, {"_scale", false}, {".scale", true}, {".scale_weight", true}};
    const char *const name = x->values->name;
    const size_t module = tsr_module_length(name);
    for (size_t i = 0; i < sizeof kSpellings / sizeof *kSpellings; i++) {
        if (kSpellings[i].of_module && name[module] == '\0')
            continue;
        const tsr_tensor *const t =
            tsr_find_sibling(p->c, name, kSpellings[i].of_module ? module : strlen(name), kSpellings[i].suffix);
        if (t == NULL)
            continue;
        if (x->scale != NULL)
            return tsr_fail(p->err, TSR_E_FORMAT, "%s: '%s' has two scales, '%s' and '%s': which one holds?",
                            tsr_pairing_path(p, x->data), name, x->scale->name, t->name);
        x->scale = t;
    }
    if (x->scale == NULL)
        return tsr_fail(p->err, TSR_E_FORMAT,
                        "%s: '%s' is %s without a scale (looked for '%s_scale_inv' and its other spellings in all "
                        "%zu files): its values cannot be known",
                        tsr_pairing_path(p, x->data), x->data->name, tsr_dtype_name((tsr_dtype)x->data->dtype), name,
                        p->c->n_files);
    x->input_scale = tsr_find_sibling(p->c, name, module, ".input_scale");
    if (x->input_scale == NULL)
        x->input_scale = tsr_find_sibling(p->c, name, module, ".activation_scale");
    if (x->coding != TSR_CODED_E4M3) {
        x->input_zero_point = tsr_find_sibling(p->c, name, module, ".input_zero_point");
        x->zero_point = tsr_find_sibling(p->c, name, module, ".weight_zero_point");
    }
    if (x->coding == TSR_CODED_PACKED)
        x->shape = tsr_find_sibling(p->c, name, module, ".weight_shape");
    const tsr_tensor *companions[TSR_MAX_COMPANIONS];
    const size_t n = tsr_weight_companions(x, companions);
    for (size_t i = 0; i < n; i++)
        p->claimed[index_of(p, companions[i])] = true;
    return TSR_OK;
}

static void claim(const tsr_pairing *p, const tsr_tensor *t)
{
    p->claimed[index_of(p, t)] = true;
}

/* The scale of a part of an absorbed kv_b_proj: its own, or one for both parts. */
static tsr_status find_part_scale(const tsr_pairing *p, tsr_weight *x)
{
    const char *const names[] = {x->part->scale, x->part->one_scale};
    const tsr_tensor *found[2] = {NULL, NULL};
    for (size_t i = 0; i < 2 && names[i] != NULL; i++) {
        char text[1200];
        if (tsr_absorbed_sibling(x->data->name, x->part->name, names[i], text, sizeof text))
            found[i] = tsr_checkpoint_find(p->c, text);
    }
    if (found[0] != NULL && found[1] != NULL)
        return tsr_fail(p->err, TSR_E_FORMAT, "%s: '%s' has two scales, '%s' and '%s': which one holds?",
                        tsr_pairing_path(p, x->data), x->data->name, found[0]->name, found[1]->name);
    x->scale = found[0] != NULL ? found[0] : found[1];
    x->one_scale = found[0] == NULL;
    if (x->scale == NULL)
        return tsr_fail(p->err, TSR_E_FORMAT,
                        "%s: '%s', a part of an absorbed kv_b_proj, is F8_E4M3 without a scale (looked for '%s' and "
                        "'%s' beside it): its values cannot be known",
                        tsr_pairing_path(p, x->data), x->data->name, names[0] == NULL ? "-" : names[0],
                        names[1] == NULL ? "-" : names[1]);
    claim(p, x->scale);
    return TSR_OK;
}

static bool fits(uint64_t stored, uint64_t needed)
{
    return stored >= needed && stored <= tsr_round_up(needed, GRID_PADDING);
}

/* One scale a matrix or one a row, where no block size is stated. */
static bool take_coarse(tsr_weight *x)
{
    const tsr_tensor *const s = x->scale;
    const uint64_t n = tsr_tensor_elements(s);
    const bool column = s->rank == 0 || s->shape[s->rank - 1] == 1 || s->rank < x->data->rank;
    if (!column || (n != x->matrices && n != x->matrices * x->rows))
        return false;
    x->coarse = true;
    x->block_rows = n == x->matrices ? x->rows : 1;
    x->block_cols = x->cols;
    x->grid_rows = n / x->matrices;
    x->grid_cols = 1;
    return true;
}

tsr_status tsr_check_scale_dtype(const tsr_pairing *p, const tsr_tensor *s)
{
    if (s->dtype != TSR_F32 && s->dtype != TSR_BF16 && s->dtype != TSR_F16 && s->dtype != TSR_F8_E8M0)
        return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s: '%s' is %s; scales are F32, BF16, F16 or F8_E8M0",
                        tsr_pairing_path(p, s), s->name, tsr_dtype_name(s->dtype));
    return TSR_OK;
}

/* One scale for both parts, one a head, or a grid for each head in the order of its part. */
static bool take_coarse_part(tsr_weight *x)
{
    const uint64_t n = tsr_tensor_elements(x->scale);
    if (x->one_scale ? n != 1 : x->scale->rank != 1 || n != x->matrices)
        return false;
    x->coarse = true;
    x->block_rows = x->rows;
    x->block_cols = x->cols;
    x->grid_rows = x->grid_cols = 1;
    return true;
}

static tsr_status check_grid(const tsr_pairing *p, tsr_weight *x)
{
    const tsr_tensor *const t = x->data, *const s = x->scale;
    char shape[192], grid[192];
    tsr_shape_text(t, shape, sizeof shape);
    tsr_shape_text(s, grid, sizeof grid);
    TSR_TRY(tsr_check_scale_dtype(p, s));
    if (t->rank != 2 && t->rank != 3)
        return tsr_fail(p->err, TSR_E_UNSUPPORTED, "%s: '%s' is F8_E4M3 %s: neither a matrix nor a stack of them",
                        tsr_pairing_path(p, t), t->name, shape);
    x->matrices = t->rank == 3 ? t->shape[0] : 1;
    x->rows = t->shape[t->rank - 2];
    x->cols = t->shape[t->rank - 1];
    if (x->part != NULL && take_coarse_part(x))
        return TSR_OK;
    if (p->w->block_rows == 0) {
        if (take_coarse(x))
            return TSR_OK;
        return tsr_fail(p->err, TSR_E_USAGE,
                        "%s: '%s' %s is scaled by '%s' %s, and no block size is stated (quantization_config."
                        "weight_block_size): --source-block 128x128 states it",
                        tsr_pairing_path(p, t), t->name, shape, s->name, grid);
    }
    x->block_rows = p->w->block_rows;
    x->block_cols = p->w->block_cols;
    if (x->part != NULL && x->part->latent_first) { /* its grid is transposed with it */
        x->block_rows = p->w->block_cols;
        x->block_cols = p->w->block_rows;
    }
    const uint64_t rows = tsr_ceil_div(x->rows, x->block_rows), cols = tsr_ceil_div(x->cols, x->block_cols);
    if (s->rank != t->rank || (t->rank == 3 && s->shape[0] != t->shape[0]) || !fits(s->shape[s->rank - 2], rows) ||
        !fits(s->shape[s->rank - 1], cols))
        return tsr_fail(
            p->err, TSR_E_FORMAT,
            "%s: '%s' is %s; blocks of %llux%llu of '%s' %s need a grid of %llu x %llu: the scale belongs to "
            "another weight or another block size",
            tsr_pairing_path(p, s), s->name, grid, U64(x->block_rows), U64(x->block_cols), t->name, shape, U64(rows),
            U64(cols));
    x->grid_rows = s->shape[s->rank - 2];
    x->grid_cols = s->shape[s->rank - 1];
    return TSR_OK;
}

/* ---- all of them ---- */

/* Packed codes of X.weight are called X.weight_packed. */
static tsr_status name_values(const tsr_pairing *p, tsr_weight *x)
{
    x->values = x->data;
    if (x->coding != TSR_CODED_PACKED)
        return TSR_OK;
    tsr_tensor *const values = tsr_arena_alloc(&p->w->arena, sizeof *values);
    const char *const name = tsr_arena_dup(&p->w->arena, x->data->name, strlen(x->data->name) - strlen("_packed"));
    if (values == NULL || name == NULL)
        return tsr_out_of_memory(p->err, "while pairing");
    *values = *x->data;
    values->name = name;
    x->values = values;
    if (tsr_checkpoint_find(p->c, name) != NULL)
        return tsr_fail(p->err, TSR_E_FORMAT, "%s: there are '%s' and '%s': which one holds?",
                        tsr_pairing_path(p, x->data), name, x->data->name);
    return TSR_OK;
}

/* The row of the table for what has been paired. */
static const tsr_weight_kind *kind_of(const tsr_weight *x)
{
    const tsr_grid grid = !x->coarse ? TSR_GRID_BLOCKS : x->block_rows == 1 ? TSR_GRID_ROWS : TSR_GRID_WHOLE;
    const tsr_weight_kind *kind = tsr_weight_kinds;
    while (kind->name != NULL && (kind->coding != x->coding || kind->family == TSR_FAMILY_MX ||
                                  (kind->family == TSR_FAMILY_FP8 && kind->grid != grid)))
        kind++;
    return kind;
}

static tsr_status pair_codes(const tsr_pairing *p, tsr_weight *x)
{
    x->bits = 8;
    x->part = x->coding == TSR_CODED_E4M3 ? tsr_absorbed_find(x->data->name) : NULL;
    TSR_TRY(name_values(p, x));
    TSR_TRY(x->part == NULL ? find_scale(p, x) : find_part_scale(p, x));
    TSR_TRY(x->coding == TSR_CODED_E4M3 ? check_grid(p, x) : tsr_check_integers(p, x));
    x->scale_dtype = x->scale->dtype;
    x->kind = kind_of(x);
    return TSR_OK;
}

/* Every weight of codes with its scale, in the order of the checkpoint, into the first places. */
static tsr_status pair_scaled(tsr_pairing *p, bool *codes)
{
    tsr_weights *const w = p->w;
    const tsr_tensors *const all = &p->c->tensors;
    for (size_t i = 0; i < all->count; i++) {
        const tsr_tensor *const t = &all->items[i];
        const tsr_status foreign = tsr_refuse_foreign(p->c, t, p->err);
        p->unread[i] = foreign != TSR_OK;
        TSR_TRY(judge(p, t, foreign));
        tsr_weight x = {.data = t, .coding = (uint8_t)tsr_coding_of(p->c, t)};
        if (p->unread[i] || x.coding == TSR_PLAIN)
            continue;
        *codes = true;
        const tsr_status status = pair_codes(p, &x);
        p->unread[i] = status == TSR_E_UNSUPPORTED;
        if (status == TSR_OK)
            w->items[w->n_scaled++] = x;
        TSR_TRY(judge(p, x.data, status));
    }
    return TSR_OK;
}

static tsr_status pair_all(tsr_pairing *p)
{
    tsr_weights *const w = p->w;
    const tsr_tensors *const all = &p->c->tensors;
    bool codes = false;
    TSR_TRY(pair_scaled(p, &codes));
    /* Spread the scaled ones over their places in the checkpoint's order, from the back. */
    size_t scaled = w->n_scaled;
    w->count = all->count;
    for (size_t i = all->count; i-- > 0;) {
        const bool is_scaled = scaled > 0 && w->items[scaled - 1].data == &all->items[i];
        w->items[i] = is_scaled ? w->items[--scaled] : (tsr_weight){.data = &all->items[i], .values = &all->items[i]};
    }
    size_t kept = 0;
    for (size_t i = 0; i < all->count; i++) {
        tsr_weight *const x = &w->items[i];
        if (p->claimed[i])
            continue;
        if (x->scale == NULL && !p->unread[i]) {
            const tsr_status status = tsr_coding_of(p->c, x->data) == TSR_PLAIN
                                          ? tsr_find_plain_rule(p->c, x->data, &x->rule, p->err)
                                          : TSR_OK;
            if (status != TSR_OK)
                x->coding = TSR_UNREAD;
            p->unread[i] = status == TSR_E_UNSUPPORTED;
            TSR_TRY(judge(p, x->data, status));
        }
        if (p->unread[i])
            x->coding = TSR_UNREAD;
        w->n_unread += p->unread[i];
        w->items[kept++] = *x;
    }
    w->count = kept;
    if (codes || w->n_unread > 0 || w->method == NULL)
        return TSR_OK;
    const tsr_status status =
        tsr_fail(p->err, TSR_E_UNSUPPORTED,
                 "%s/" TSR_CONFIG_NAME ": quant_method is '%s', but no tensor is codes: the configuration "
                 "belongs to another checkpoint, or the weights are in a format that Tessera does not read here",
                 p->c->path, w->method);
    return judge(p, NULL, status);
}

tsr_status tsr_weights_pair(tsr_weights *weights, const tsr_checkpoint *checkpoint, uint64_t block_rows,
                            uint64_t block_cols, tsr_err *err)
{
    const char *const target = tsr_layout_target(checkpoint);
    *weights = (tsr_weights){0};
    if (target != NULL)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: its weights lie in the layout of a kernel, as " TSR_LAYOUT_NAME " says: 'tessera convert "
                        "%s -o DST --from %s' makes a checkpoint of them again, which every command reads",
                        checkpoint->path, checkpoint->path, target);
    return tsr_weights_survey(weights, checkpoint, block_rows, block_cols, NULL, NULL, err);
}

tsr_status tsr_weights_refuse_parts(const tsr_weights *weights, const tsr_checkpoint *checkpoint, const char *doing,
                                    tsr_err *err)
{
    for (size_t i = 0; i < weights->count; i++) {
        const tsr_weight *const w = &weights->items[i];
        if (w->part != NULL)
            return tsr_fail(err, TSR_E_UNSUPPORTED,
                            "%s: '%s' is an FP8 part of an absorbed kv_b_proj: %s comes before absorbing; take the "
                            "checkpoint that it was made from",
                            checkpoint->files[w->data->file].path, w->data->name, doing);
    }
    return TSR_OK;
}

tsr_status tsr_weights_refuse_integers(const tsr_weights *weights, const tsr_checkpoint *checkpoint, const char *doing,
                                       tsr_err *err)
{
    for (size_t i = 0; i < weights->count; i++) {
        const tsr_weight *const w = &weights->items[i];
        if (w->coding == TSR_CODED_INT8 || w->coding == TSR_CODED_PACKED)
            return tsr_fail(err, TSR_E_UNSUPPORTED,
                            "%s: '%s' is int%u: %s comes before quantizing to integers; take the original, or tessera "
                            "convert --to bf16",
                            checkpoint->files[w->data->file].path, w->data->name, w->bits, doing);
    }
    return TSR_OK;
}

tsr_status tsr_weights_pair_fp8(tsr_weights *weights, const tsr_checkpoint *checkpoint, uint64_t block_rows,
                                uint64_t block_cols, const char *doing, tsr_err *err)
{
    TSR_TRY(tsr_weights_pair(weights, checkpoint, block_rows, block_cols, err));
    tsr_status status = tsr_weights_refuse_integers(weights, checkpoint, doing, err);
    if (status == TSR_OK)
        status = tsr_weights_refuse_parts(weights, checkpoint, doing, err);
    if (status != TSR_OK)
        tsr_weights_free(weights);
    return status;
}

tsr_status tsr_weights_survey(tsr_weights *weights, const tsr_checkpoint *checkpoint, uint64_t block_rows,
                              uint64_t block_cols, tsr_weights_problem_fn *problem, void *data, tsr_err *err)
{
    *weights = (tsr_weights){0};
    tsr_err message = {{0}};
    tsr_pairing p = {
        .w = weights, .c = checkpoint, .problem = problem, .data = data, .err = err == NULL ? &message : err};
    p.claimed = calloc(checkpoint->tensors.count + 1, sizeof *p.claimed);
    p.unread = calloc(checkpoint->tensors.count + 1, sizeof *p.unread);
    weights->items = tsr_arena_alloc(&weights->arena, (checkpoint->tensors.count + 1) * sizeof *weights->items);
    tsr_status status = TSR_OK;
    if (p.claimed == NULL || p.unread == NULL || weights->items == NULL)
        status = tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", checkpoint->path);
    if (status == TSR_OK)
        status = judge(&p, NULL, tsr_read_quantization(&p));
    if (status == TSR_OK && block_rows != 0) {
        weights->block_rows = block_rows;
        weights->block_cols = block_cols;
    }
    if (status == TSR_OK)
        status = pair_all(&p);
    free(p.claimed);
    free(p.unread);
    status = tsr_arena_status(&weights->arena, status, err);
    if (status != TSR_OK)
        tsr_weights_free(weights);
    return status;
}

void tsr_weights_pass_over(void *data, const tsr_tensor *tensor, tsr_status status, const char *message)
{
    (void)data, (void)tensor, (void)status, (void)message;
}

void tsr_weights_free(tsr_weights *weights)
{
    tsr_arena_free(&weights->arena);
    *weights = (tsr_weights){0};
}

size_t tsr_weight_companions(const tsr_weight *w, const tsr_tensor *companions[TSR_MAX_COMPANIONS])
{
    const tsr_tensor *const all[TSR_MAX_COMPANIONS] = {w->scale, w->zero_point,  w->global_scale,    w->group_index,
                                                       w->shape, w->input_scale, w->input_zero_point};
    size_t n = 0;
    for (size_t i = 0; i < TSR_MAX_COMPANIONS; i++) {
        if (all[i] != NULL)
            companions[n++] = all[i];
    }
    return n;
}

const char *tsr_plain_reason(const tsr_weight *w)
{
    return tsr_dtype_is_weight_float((tsr_dtype)w->data->dtype) ? "not quantized" : w->rule;
}

const tsr_weight *tsr_weights_find(const tsr_weights *weights, const tsr_checkpoint *checkpoint, const char *name)
{
    const tsr_tensor *t = tsr_checkpoint_find(checkpoint, name);
    char packed[1200];
    if (t == NULL && (size_t)snprintf(packed, sizeof packed, "%s_packed", name) < sizeof packed)
        t = tsr_checkpoint_find(checkpoint, packed);
    size_t low = 0, high = weights->count;
    while (t != NULL && low < high) { /* items stand in the order of their tensors' addresses */
        const size_t middle = low + (high - low) / 2;
        if (weights->items[middle].data == t)
            return &weights->items[middle];
        if (weights->items[middle].data < t)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}
