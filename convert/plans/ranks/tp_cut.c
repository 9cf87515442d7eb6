/* Checks that a weight can be cut over tensor-parallel ranks, and adds the steps that cut it. */
#include "convert/plans/ranks/tp_cut.h"

#include "common/text.h"
#include "convert/io/copied_codes.h"
#include "convert/ops/slice_op.h"
#include "formats/checkpoint/config.h"
#include "formats/names/expert_stacks.h"

#include <stdio.h>
#include <string.h>

/* The divisibility that a cut requires. */
typedef struct demand {
    uint64_t size;  /* size of the dimension, or of each half of a stacked gate and up */
    uint64_t heads; /* 0: none */
    uint64_t block; /* parts must be whole blocks; 1: no constraint */
} demand;

static bool meets(const demand *d, uint64_t n)
{
    return n == 1 || (d->size % n == 0 && d->heads % n == 0 && d->size / n % d->block == 0);
}

static tsr_status refuse(const tsr_checkpoint *c, const tsr_tensor *t, const demand *d, const char *dimension,
                         uint32_t n, tsr_err *err)
{
    char work[256] = "", shape[192], why[160];
    size_t used = 0;
    for (uint64_t m = 1; m <= 64 && used + 8 < sizeof work; m++) {
        if (meets(d, m))
            used += (size_t)snprintf(work + used, sizeof work - used, "%s%llu", used == 0 ? "" : ", ", U64(m));
    }
    if (d->heads % n != 0)
        snprintf(why, sizeof why, "%llu heads", U64(d->heads));
    else if (d->size % n != 0)
        snprintf(why, sizeof why, "%llu %s", U64(d->size), dimension);
    else
        snprintf(why, sizeof why, "%llu %s / %u = %llu cuts through a block of %llu and", U64(d->size), dimension, n,
                 U64(d->size / n), U64(d->block));
    return tsr_fail(err, TSR_E_SHAPE, "%s: '%s' %s: %s cannot be cut over %u ranks; %s would work",
                    c->files[t->file].path, t->name, tsr_shape_text(t, shape, sizeof shape), why, n, work);
}

tsr_status tsr_refuse_turned_stack(const tsr_checkpoint *c, const tsr_tensor *t, tsr_err *err)
{
    const tsr_stack *const stack = t->rank == 3 ? tsr_stack_find(t->name) : NULL;
    if (stack == NULL)
        return TSR_OK;
    tsr_arena scratch = {0};
    uint64_t hidden = 0;
    char shape[192];
    const tsr_stack_layout layout = tsr_stack_layout_of(tsr_config_model_string(c, "model_type", &scratch));
    tsr_arena_free(&scratch);
    (void)tsr_config_find_u64(c, "hidden_size", &hidden);
    if (!layout.turned && !tsr_stack_contradicts(stack, &layout, t->shape[1], t->shape[2], hidden))
        return TSR_OK;
    return tsr_fail(err, TSR_E_UNSUPPORTED,
                    "%s: '%s' %s is a stack of experts stored as [experts, in, out], which cannot be cut; 'tessera "
                    "quantize' writes experts one by one, and those in FP8 can be cut",
                    c->files[t->file].path, t->name, tsr_shape_text(t, shape, sizeof shape));
}

tsr_tp_rule tsr_tp_rule_of(const tsr_tensor *t, tsr_arena *arena)
{
    static const char kBias[] = ".bias";
    tsr_tp_rule rule = *tsr_tp_find_rule(t->name);
    if (t->rank <= 1 && tsr_tensor_elements(t) <= 1)
        rule.how = TSR_TP_REPLICATE;
    else if (t->rank <= 1 && rule.how == TSR_TP_UNKNOWN && tsr_ends_with(t->name, kBias)) {
        const int module = (int)(strlen(t->name) - (sizeof kBias - 1));
        const char *const weight = tsr_arena_printf(arena, "%.*s.weight", module, t->name);
        if (weight != NULL)
            rule = *tsr_tp_find_rule(weight);
        rule.how = rule.how == TSR_TP_COLUMNS ? TSR_TP_REPLICATE : rule.how;
    }
    return rule;
}

tsr_status tsr_shard_weight(const tsr_checkpoint *c, const tsr_weight *w, tsr_tp_split how, uint64_t heads, bool share,
                            uint32_t n, tsr_tp_cut *shard, tsr_err *err)
{
    const tsr_tensor *const t = w->data;
    *shard = (tsr_tp_cut){.parts = n};
    if (share && heads > 0 && n > heads && n % heads == 0)
        n = shard->parts = (uint32_t)heads;
    if (how == TSR_TP_REPLICATE || n == 1)
        return TSR_OK;
    const bool columns = how == TSR_TP_COLUMNS;
    if (t->rank == 0 || (columns && t->rank < 2))
        return tsr_fail(err, TSR_E_SHAPE, "%s: '%s' has no dimension to cut", c->files[t->file].path, t->name);
    const unsigned dim = t->rank - (columns || t->rank == 1 ? 1u : 2u);
    const uint64_t halves = how == TSR_TP_GATE_UP ? 2 : 1;
    const uint64_t matrices = t->rank == 3 ? t->shape[0] : 1;
    demand d = {.size = t->shape[dim] / halves, .heads = heads, .block = 1};
    if (t->shape[dim] % halves != 0)
        return tsr_fail(err, TSR_E_SHAPE, "%s: '%s': %llu rows cannot be split into gate and up of the same size",
                        c->files[t->file].path, t->name, U64(t->shape[dim]));
    shard->data_dim = dim;
    shard->data_rows = columns ? matrices * t->shape[t->rank - 2] : matrices * halves;
    if (w->scale != NULL) {
        const uint64_t block = columns ? w->block.cols : w->block.rows, size = columns ? w->cols : w->rows;
        const uint64_t grid = columns ? w->grid_cols : w->grid_rows;
        if (!w->coarse || block < size) { /* otherwise one scale covers the whole dimension, and every rank needs it */
            d.block = block;
            shard->scale_dim = columns ? w->scale->rank - 1u : w->scale->rank - 2u;
            shard->scale_rows = columns ? w->matrices * w->grid_rows : w->matrices * halves;
            if (w->scale->rank != t->rank || (meets(&d, n) && grid != size / block))
                return tsr_fail(err, TSR_E_SHAPE,
                                "%s: the scales '%s' are padded and cannot be cut with their weight; run 'tessera "
                                "convert --to fp8-block' first",
                                c->files[w->scale->file].path, w->scale->name);
        }
    }
    return meets(&d, n) ? TSR_OK : refuse(c, t, &d, columns ? "columns" : "rows", n, err);
}

tsr_status tsr_shard_part(const tsr_checkpoint *c, const tsr_weight *w, uint32_t n, tsr_tp_cut *shard, tsr_err *err)
{
    const tsr_tensor *const t = w->data;
    *shard = (tsr_tp_cut){.parts = n};
    if (n == 1)
        return TSR_OK;
    const demand d = {.size = t->rank == 3 ? t->shape[0] : 1, .block = 1};
    shard->data_rows = 1;
    if (w->scale != NULL && !w->one_scale)
        shard->scale_rows = 1;
    return meets(&d, n) ? TSR_OK : refuse(c, t, &d, "heads", n, err);
}

/* Plans part k of `n`. */
static tsr_status plan_part(tsr_plan *plan, const tsr_tensor *t, const char *name, uint64_t rows, uint64_t dim,
                            uint32_t n, uint32_t k, tsr_err *err)
{
    if (rows == 0)
        return tsr_plan_copy(plan, t, name, err);
    tsr_tensor *const out = tsr_plan_tensor(plan, t);
    if (out == NULL)
        return tsr_out_of_memory(err, "while planning");
    out->name = name;
    out->shape[dim] /= n;
    out->bytes /= n;
    return tsr_plan_slice(plan, t, out, (tsr_slicing){.rows = rows, .parts = n}, k, err);
}

tsr_status tsr_plan_shard(tsr_plan *plan, const tsr_weight *weight, const tsr_tp_cut *shard, const char *name,
                          const char *scale_name, uint32_t n, uint32_t k, tsr_err *err)
{
    const uint32_t parts = shard->parts, part = k / (n / parts);
    TSR_TRY(plan_part(plan, weight->data, name, shard->data_rows, shard->data_dim, parts, part, err));
    if (weight->scale == NULL)
        return TSR_OK;
    TSR_TRY(plan_part(plan, weight->scale, scale_name, shard->scale_rows, shard->scale_dim, parts, part, err));
    tsr_plan_copies_scales(plan, (tsr_dtype)weight->scale_dtype);
    return TSR_OK;
}
