/* Builds the tensors of a decoded view, with stacked experts split. */
#include "convert/plans/views/decoded_view.h"

#include "common/grow.h"
#include "common/text.h"
#include "convert/configs/fp8_config.h"
#include "formats/names/expert_stacks.h"
#include "formats/names/model.h"
#include "quantize/policy/policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kNone[] = {NULL};

typedef struct seeing {
    tsr_decoded_view *v;
    tsr_tensors tensors;
    tsr_model model;
    tsr_stack_layout layout; /* layout of plain stacks */
    bool known;              /* the policy has a table for the model_type */
    tsr_split split;
    tsr_stays *stays;
    bool interleaved; /* stacks of codes have interleaved gate and up */
    tsr_dialect cache;
    tsr_err *err;
} seeing;

/* ---- parts ---- */

static tsr_status add_part(const seeing *s, const tsr_decoded_part *part, uint64_t *place)
{
    tsr_decoded_view *const v = s->v;
    if (!tsr_grow(&v->parts, v->n_parts, &v->parts_capacity, sizeof *v->parts))
        return tsr_out_of_memory(s->err, "while planning");
    *place = v->n_parts;
    v->parts[v->n_parts++] = *part;
    return TSR_OK;
}

static tsr_status add_made(seeing *s, const tsr_decoded_part *part, const char *name, tsr_dtype dtype, unsigned rank,
                           const uint64_t *shape)
{
    const bool codes = part->view.weight != NULL;
    const tsr_tensor *const from = codes ? part->view.weight->data : part->gather.from;
    tsr_tensor t = {.name = name,
                    .rank = (uint8_t)rank,
                    .dtype = (uint8_t)dtype,
                    .file = from->file,
                    .source = codes ? TSR_SOURCE_DECODED : TSR_SOURCE_GATHERED};
    if (name == NULL)
        return tsr_out_of_memory(s->err, "while planning");
    memcpy(t.shape, shape, rank * sizeof *shape);
    t.bytes = tsr_tensor_elements(&t) * tsr_dtype_bytes(dtype);
    TSR_TRY(add_part(s, part, &t.offset));
    return tsr_tensors_add(&s->tensors, &t, s->err);
}

static tsr_status add_whole(seeing *s, const tsr_weight *w)
{
    const tsr_decoded_part part = {.view = tsr_view_whole(w)};
    const uint64_t stack[] = {w->matrices, w->rows, w->cols};
    const bool stacked = w->values->rank == 3;
    return add_made(s, &part, w->values->name, TSR_F32, stacked ? 3 : 2, stacked ? stack : stack + 1);
}

/* ---- stacks of experts ---- */

static const char *path_of(const seeing *s, const tsr_tensor *t)
{
    return s->v->source->files[t->file].path;
}

/* Returns the first row of projection `i` in a matrix with `rows` rows of each; the caller knows their distance. */
static uint64_t first_of(bool interleaved, unsigned i, uint64_t rows)
{
    return i * (interleaved ? 1 : rows);
}

static uint64_t step_of(bool interleaved)
{
    return interleaved ? 2 : 1;
}

static tsr_status check_halves(const seeing *s, const char *name, uint64_t rows, const tsr_stack *k)
{
    if (rows % tsr_stack_projections(k) == 0)
        return TSR_OK;
    return tsr_fail(s->err, TSR_E_SHAPE, "'%s' has %llu rows, which cannot be split into gate and up", name, U64(rows));
}

/* Checks the orientation of a stack: quantization goes along the inputs and rows must be outputs, but some families
 * store the transpose. */
static tsr_status check_turn(const seeing *s, const tsr_weight *w, const tsr_stack *k)
{
    if (s->layout.turned && !w->transposed)
        return tsr_fail(s->err, TSR_E_UNSUPPORTED,
                        "%s: '%s' is a stack of a model_type (%s) that stores its experts [in, out]: its codes cannot "
                        "be split; run 'tessera convert --to bf16' and then 'tessera quantize --experts split'",
                        path_of(s, w->data), w->data->name, s->layout.model_type);
    const uint64_t hidden = s->model.hidden, found = tsr_stack_takes_hidden(k) ? w->cols : w->rows;
    if (hidden == 0 || found == hidden)
        return TSR_OK;
    return tsr_fail(s->err, TSR_E_UNSUPPORTED,
                    "%s: '%s' is a stack of [%llu, %llu], which is not [out, in] for hidden_size %llu and cannot be "
                    "split; 'tessera convert --to bf16' keeps it stacked",
                    path_of(s, w->data), w->data->name, U64(w->rows), U64(w->cols), U64(hidden));
}

static tsr_status add_experts(seeing *s, const tsr_weight *w, const tsr_stack *k)
{
    const unsigned n = tsr_stack_projections(k);
    const uint64_t rows = w->rows / n;
    const bool interleaved = s->interleaved && n == 2;
    s->v->has_stacks = true;
    TSR_TRY(check_turn(s, w, k));
    TSR_TRY(check_halves(s, w->data->name, w->rows, k));
    for (uint64_t expert = 0; expert < w->matrices; expert++) {
        for (unsigned i = 0; i < n; i++) {
            const tsr_decoded_part part = {.view = {.weight = w,
                                                    .first = expert * w->rows + first_of(interleaved, i, rows),
                                                    .step = step_of(interleaved),
                                                    .rows = rows}};
            TSR_TRY(add_made(s, &part, tsr_stack_expert_name(&s->v->arena, k, w->values->name, expert, i, ".weight"),
                             TSR_F32, 2, (const uint64_t[]){rows, w->cols}));
        }
    }
    return TSR_OK;
}

static tsr_status add_biases(seeing *s, const tsr_tensor *t, const tsr_stack *k, bool interleaved)
{
    const unsigned n = tsr_stack_projections(k);
    const uint64_t rows = t->shape[1] / n;
    const bool turns = interleaved && n == 2;
    TSR_TRY(check_halves(s, t->name, t->shape[1], k));
    for (uint64_t expert = 0; expert < t->shape[0]; expert++) {
        for (unsigned i = 0; i < n; i++) {
            const tsr_decoded_part part = {.gather = {.from = t,
                                                      .first = expert * t->shape[1] + first_of(turns, i, rows),
                                                      .step = step_of(turns),
                                                      .rows = rows}};
            TSR_TRY(add_made(s, &part, tsr_stack_expert_name(&s->v->arena, k, t->name, expert, i, ".bias"),
                             (tsr_dtype)t->dtype, 1, &rows));
        }
    }
    return TSR_OK;
}

/* ---- stacks of plain weights ---- */

/* Decides whether the stack is split. Rejects a stack that must be split but whose layout is unknown. */
static tsr_status decide_plain(const seeing *s, const tsr_tensor *t, const tsr_stack *k, bool *split)
{
    *split = s->split == TSR_SPLIT_ALL ||
             (s->known && (s->split == TSR_SPLIT_KNOWN || (s->split == TSR_SPLIT_TURN && s->layout.turned)));
    if (!*split)
        return TSR_OK;
    if (!s->known)
        return tsr_fail(s->err, TSR_E_UNSUPPORTED,
                        "%s: '%s' is a stack of experts of an unknown model_type, so its order ([out, in] or [in, "
                        "out]) and the positions of gate and up are unknown; --experts stack keeps it stacked",
                        path_of(s, t), t->name);
    if (tsr_stack_contradicts(k, &s->layout, t->shape[1], t->shape[2], s->model.hidden))
        return tsr_fail(s->err, TSR_E_UNSUPPORTED,
                        "%s: '%s' is a stack of [%llu, %llu], and model_type %s stores its experts [%s], of which one "
                        "is hidden_size (%llu): it cannot be split; --experts stack keeps it stacked",
                        path_of(s, t), t->name, U64(t->shape[1]), U64(t->shape[2]), s->layout.model_type,
                        s->layout.turned ? "in, out" : "out, in", U64(s->model.hidden));
    return TSR_OK;
}

/* Adds the whole stack as [experts, out, in], with its rows in stored order. */
static tsr_status add_turned(seeing *s, const tsr_tensor *t)
{
    const uint64_t shape[] = {t->shape[0], t->shape[2], t->shape[1]};
    const tsr_decoded_part part = {
        .gather = {.from = t, .step = 1, .rows = shape[0] * shape[1], .cols = shape[2], .turned = true}};
    s->v->has_stacks = true;
    return add_made(s, &part, t->name, (tsr_dtype)t->dtype, 3, shape);
}

static tsr_status add_plain(seeing *s, const tsr_tensor *t, const tsr_stack *k)
{
    const unsigned n = tsr_stack_projections(k);
    const bool turned = s->layout.turned, interleaved = s->layout.interleaved && n == 2;
    const uint64_t all = t->shape[turned ? 2 : 1], cols = t->shape[turned ? 1 : 2], rows = all / n;
    s->v->has_stacks = true;
    TSR_TRY(check_halves(s, t->name, all, k));
    for (uint64_t expert = 0; expert < t->shape[0]; expert++) {
        for (unsigned i = 0; i < n; i++) {
            const tsr_decoded_part part = {.gather = {.from = t,
                                                      .matrix = expert,
                                                      .first = first_of(interleaved, i, rows),
                                                      .step = step_of(interleaved),
                                                      .rows = rows,
                                                      .cols = cols,
                                                      .turned = turned}};
            TSR_TRY(add_made(s, &part, tsr_stack_expert_name(&s->v->arena, k, t->name, expert, i, ".weight"),
                             (tsr_dtype)t->dtype, 2, (const uint64_t[]){rows, cols}));
        }
    }
    return TSR_OK;
}

/* Returns the stack, of codes or plain, that this bias belongs to. NULL: it is not such a bias. */
static const tsr_weight *stack_of_bias(const seeing *s, const tsr_tensor *t)
{
    static const char *const kEndings[] = {"_bias", ".bias"};
    char name[1200];
    for (size_t e = 0; e < 2; e++) {
        const size_t length = strlen(t->name);
        if (!tsr_ends_with(t->name, kEndings[e]) || t->rank != 2 || length >= sizeof name)
            continue;
        const size_t stem = length - strlen(kEndings[e]);
        snprintf(name, sizeof name, "%.*s", (int)stem, t->name);
        for (size_t i = 0; i < s->v->weights.count; i++) {
            const tsr_weight *const w = &s->v->weights.items[i];
            if (w->values->rank == 3 && strncmp(w->values->name, name, stem) == 0 &&
                (w->values->name[stem] == '\0' || strcmp(w->values->name + stem, ".weight") == 0))
                return w;
        }
    }
    return NULL;
}

/* ---- the view ---- */

static bool splits_codes(const seeing *s)
{
    return s->split == TSR_SPLIT_CODES || s->split == TSR_SPLIT_ALL;
}

/* Adds a KV-cache scale under its names in the target's dialect. */
static tsr_status add_cache_scale(seeing *s, const tsr_tensor *t, size_t *n)
{
    const tsr_decoded_part part = {.gather = {.from = t, .step = 1, .rows = 1}, .cache = true};
    const char *names[2];
    TSR_TRY(tsr_kv_names(&s->v->weights, s->v->source, t, s->cache, &s->v->arena, names, n, s->err));
    for (size_t i = 0; i < *n; i++)
        TSR_TRY(add_made(s, &part, names[i], (tsr_dtype)t->dtype, t->rank, t->shape));
    return TSR_OK;
}

/* Adds plain data: a KV-cache scale, a stack, the bias of a stack, or another tensor. */
static tsr_status add_data(seeing *s, const tsr_tensor *t)
{
    size_t n;
    TSR_TRY(add_cache_scale(s, t, &n));
    if (n > 0)
        return TSR_OK;
    const tsr_stack *const k = tsr_stack_find(t->name);
    const tsr_weight *const owner = k == NULL ? NULL : stack_of_bias(s, t);
    bool split = false;
    if (owner != NULL && owner->scale != NULL)
        split = splits_codes(s);
    else if (owner != NULL && s->split != TSR_SPLIT_TURN)
        TSR_TRY(decide_plain(s, owner->data, k, &split));
    else if (k != NULL && owner == NULL && t->rank == 3 && tsr_dtype_is_weight_float((tsr_dtype)t->dtype))
        TSR_TRY(decide_plain(s, t, k, &split));
    if (!split)
        return tsr_tensors_add(&s->tensors, t, s->err);
    if (s->split == TSR_SPLIT_TURN)
        return add_turned(s, t);
    return owner == NULL ? add_plain(s, t, k)
                         : add_biases(s, t, k, owner->scale != NULL ? s->interleaved : s->layout.interleaved);
}

static tsr_status add_as_stored(seeing *s, const tsr_weight *w)
{
    const tsr_tensor *companions[TSR_MAX_COMPANIONS];
    const size_t n = tsr_weight_companions(w, companions, NULL);
    TSR_TRY(tsr_tensors_add(&s->tensors, w->data, s->err));
    for (size_t i = 0; i < n; i++)
        TSR_TRY(tsr_tensors_add(&s->tensors, companions[i], s->err));
    return TSR_OK;
}

static tsr_status add_weight(seeing *s, const tsr_weight *w)
{
    if (w->scale == NULL)
        return add_data(s, w->data);
    if (s->stays != NULL && s->stays(w))
        return add_as_stored(s, w);
    const tsr_stack *const k = w->values->rank == 3 ? tsr_stack_find(w->values->name) : NULL;
    if (k != NULL && splits_codes(s))
        return add_experts(s, w, k);
    if (w->transposed)
        return tsr_fail(s->err, TSR_E_UNSUPPORTED,
                        "%s: '%s' is a stack of codes whose values are [in, out]; it needs --experts split",
                        path_of(s, w->data), w->data->name);
    return add_whole(s, w);
}

static tsr_status see(seeing *s, bool codes)
{
    tsr_decoded_view *const v = s->v;
    TSR_TRY(tsr_weights_refuse_parts(&v->weights, v->source, "converting", s->err));
    if (codes && v->weights.n_scaled == 0)
        return tsr_fail(
            s->err, TSR_E_UNSUPPORTED,
            "%s: no tensor is quantized; quantize BF16, F16 or F32 with 'tessera quantize %s -o DST --scheme SCHEME'",
            v->source->path, v->source->path);
    for (size_t i = 0; i < v->weights.count; i++)
        TSR_TRY(add_weight(s, &v->weights.items[i]));
    if (codes && v->source->config != NULL)
        TSR_TRY(tsr_fp8_config_remove(&v->config, v->source, s->err));
    return tsr_checkpoint_see(&v->seen, v->source, &s->tensors, codes ? v->config.data : v->source->config,
                              codes ? v->config.size : v->source->config_size, codes ? tsr_quantization_files : kNone,
                              s->err);
}

static tsr_status see_as(tsr_decoded_view *view, const tsr_checkpoint *source, const tsr_decoding_options *how,
                         bool codes, tsr_err *err)
{
    view->source = source;
    view->sources[0] = &view->seen;
    bool gpt_oss = false; /* detected by its codes: no other format stores the transpose of its values */
    for (size_t i = 0; i < view->weights.count; i++)
        gpt_oss = gpt_oss || view->weights.items[i].transposed;
    const char *const type = tsr_policy_model_type(source, &view->arena);
    seeing s = {.v = view,
                .model = tsr_model_read(source),
                .layout = tsr_stack_layout_of(type),
                .known = tsr_policy_knows(type),
                .split = how->split,
                .stays = how->stays,
                .interleaved = gpt_oss,
                .cache = how->cache,
                .err = err};
    const tsr_status status = see(&s, codes);
    tsr_tensors_free(&s.tensors);
    if (status != TSR_OK)
        tsr_decoded_view_free(view);
    return status;
}

tsr_status tsr_decoded_view_open(tsr_decoded_view *view, const tsr_checkpoint *source, tsr_weights *paired,
                                 const tsr_decoding_options *how, tsr_err *err)
{
    *view = (tsr_decoded_view){.source = NULL};
    if (paired == NULL) {
        TSR_TRY(tsr_weights_pair(&view->weights, source, how->block, err));
    } else {
        view->weights = *paired;
        *paired = (tsr_weights){.items = NULL};
    }
    return see_as(view, source, how, true, err);
}

tsr_status tsr_decoded_view_open_plain(tsr_decoded_view *view, const tsr_checkpoint *source, tsr_split split,
                                       tsr_err *err)
{
    *view = (tsr_decoded_view){.source = NULL};
    TSR_TRY(tsr_weights_pair(&view->weights, source, (tsr_block){0, 0}, err));
    return see_as(view, source, &(tsr_decoding_options){.split = split, .cache = TSR_DIALECT_DEEPSEEK}, false, err);
}

const tsr_decoded_part *tsr_decoded_part_of(const tsr_decoded_view *view, const tsr_tensor *tensor)
{
    return tsr_tensor_is_made(tensor) ? &view->parts[tensor->offset] : NULL;
}

void tsr_decoded_view_keep(tsr_decoded_view *view, const tsr_tensor *tensor)
{
    tsr_tensor *const t = &view->seen.tensors.items[tensor - view->seen.tensors.items];
    t->dtype = TSR_BF16;
    t->bytes = tsr_tensor_elements(t) * sizeof(uint16_t);
}

void tsr_decoded_view_free(tsr_decoded_view *view)
{
    tsr_checkpoint_unsee(&view->seen);
    tsr_weights_free(&view->weights);
    free(view->parts);
    tsr_text_free(&view->config);
    tsr_arena_free(&view->arena);
    *view = (tsr_decoded_view){0};
}

uint64_t tsr_decoded_view_memory(const tsr_decoded_view *view)
{
    return tsr_checkpoint_memory(view->source) + view->weights.arena.bytes + view->arena.bytes +
           view->parts_capacity * sizeof *view->parts;
}
