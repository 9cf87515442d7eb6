/* The tensors of a view, with stacks of experts taken apart. */
#include "convert/plans/any_view.h"

#include "common/text.h"
#include "convert/plans/fp8_config.h"
#include "formats/model/model.h"
#include "quantize/policy.h"

#include <stdlib.h>
#include <string.h>

typedef struct seeing {
    tsr_any_view *v;
    tsr_tensors tensors;
    tsr_model model;
    bool split, interleaved;
    tsr_err *err;
} seeing;

/* ---- parts ---- */

static tsr_status add_part(const seeing *s, const tsr_any_part *part, uint64_t *place)
{
    tsr_any_view *const v = s->v;
    if (v->n_parts == v->parts_capacity) {
        const size_t wanted = v->parts_capacity == 0 ? 64 : 2 * v->parts_capacity;
        tsr_any_part *const more = realloc(v->parts, wanted * sizeof *more);
        if (more == NULL)
            return tsr_out_of_memory(s->err, "while planning");
        v->parts = more;
        v->parts_capacity = wanted;
    }
    *place = v->n_parts;
    v->parts[v->n_parts++] = *part;
    return TSR_OK;
}

static tsr_status add_made(seeing *s, const tsr_any_part *part, const char *name, tsr_dtype dtype, unsigned rank,
                           const uint64_t *shape)
{
    const tsr_tensor *const from = part->view.weight == NULL ? part->plain : part->view.weight->data;
    tsr_tensor t = {
        .name = name, .rank = (uint8_t)rank, .dtype = (uint8_t)dtype, .file = from->file, .source = TSR_SOURCE_DECODED};
    if (name == NULL)
        return tsr_out_of_memory(s->err, "while planning");
    memcpy(t.shape, shape, rank * sizeof *shape);
    t.bytes = tsr_tensor_elements(&t) * tsr_dtype_bytes(dtype);
    TSR_TRY(add_part(s, part, &t.offset));
    return tsr_tensors_add(&s->tensors, &t, s->err);
}

static tsr_status add_whole(seeing *s, const tsr_weight *w)
{
    const tsr_any_part part = {.view = tsr_view_whole(w)};
    const uint64_t stack[] = {w->matrices, w->rows, w->cols};
    const bool stacked = w->values->rank == 3;
    return add_made(s, &part, w->values->name, TSR_F32, stacked ? 3 : 2, stacked ? stack : stack + 1);
}

/* ---- stacks of experts ---- */

static const char kExperts[] = ".experts.";

/* Which projections a stack's rows are, and what a name has in its place: "gate_up_proj" of both, "down_proj". */
typedef struct stack {
    const char *leaf; /* in the name */
    const char *projections[2];
} stack;

static const stack kStacks[] = {{"gate_up_proj", {"gate_proj", "up_proj"}}, {"down_proj", {"down_proj", NULL}}};

static const stack *stack_of(const char *name)
{
    const char *const experts = strstr(name, kExperts);
    const char *const leaf = experts == NULL ? NULL : experts + sizeof kExperts - 1;
    for (size_t i = 0; leaf != NULL && i < sizeof kStacks / sizeof *kStacks; i++) {
        const size_t length = strlen(kStacks[i].leaf);
        if (strncmp(leaf, kStacks[i].leaf, length) == 0 &&
            (leaf[length] == '\0' || strcmp(leaf + length, ".weight") == 0 || strcmp(leaf + length, "_bias") == 0))
            return &kStacks[i];
    }
    return NULL;
}

static const char *name_of(const seeing *s, const char *stacked, uint64_t expert, const char *projection,
                           const char *ending)
{
    const int before = (int)(strstr(stacked, kExperts) - stacked + (ptrdiff_t)sizeof kExperts - 1);
    return tsr_arena_printf(&s->v->arena, "%.*s%llu.%s%s", before, stacked, U64(expert), projection, ending);
}

/* Quantization goes along the inputs, and rows are outputs; some families store a stack the other way round. */
static tsr_status check_turn(const seeing *s, const tsr_weight *w, const stack *k)
{
    static const char *const kTurned[] = {"llama4", "qwen3_vl_moe"}; /* [in, out], where shapes may not tell */
    const char *const type = tsr_policy_model_type(s->v->source, &s->v->arena);
    for (size_t i = 0; type != NULL && !w->transposed && i < sizeof kTurned / sizeof *kTurned; i++) {
        if (strncmp(type, kTurned[i], strlen(kTurned[i])) == 0)
            return tsr_fail(
                s->err, TSR_E_UNSUPPORTED,
                "%s: '%s' is a stack of a model_type (%s) that stores its experts [in, out]: it is not split; "
                "'tessera convert --to bf16' takes it as it is",
                s->v->source->files[w->data->file].path, w->data->name, type);
    }
    const bool takes = k->projections[1] != NULL;
    const uint64_t hidden = s->model.hidden, found = takes ? w->cols : w->rows;
    if (hidden == 0 || found == hidden)
        return TSR_OK;
    return tsr_fail(s->err, TSR_E_UNSUPPORTED,
                    "%s: '%s' is a stack of [%llu, %llu], which by hidden_size (%llu) is not [out, in]: it is not "
                    "split; 'tessera convert --to bf16' takes it as it is",
                    s->v->source->files[w->data->file].path, w->data->name, U64(w->rows), U64(w->cols), U64(hidden));
}

static tsr_status add_experts(seeing *s, const tsr_weight *w, const stack *k)
{
    const uint64_t n = k->projections[1] == NULL ? 1 : 2, rows = w->rows / n;
    s->v->has_stacks = true;
    TSR_TRY(check_turn(s, w, k));
    if (w->rows % n != 0)
        return tsr_fail(s->err, TSR_E_SHAPE, "'%s' has %llu rows, which are not gate and up alike", w->data->name,
                        U64(w->rows));
    for (uint64_t expert = 0; expert < w->matrices; expert++) {
        for (uint64_t i = 0; i < n; i++) {
            const bool interleaved = s->interleaved && n == 2;
            const tsr_any_part part = {.view = {.weight = w,
                                                .first = expert * w->rows + i * (interleaved ? 1 : rows),
                                                .step = interleaved ? 2 : 1,
                                                .rows = rows}};
            TSR_TRY(add_made(s, &part, name_of(s, w->values->name, expert, k->projections[i], ".weight"), TSR_F32, 2,
                             (const uint64_t[]){rows, w->cols}));
        }
    }
    return TSR_OK;
}

static tsr_status add_biases(seeing *s, const tsr_tensor *t, const stack *k)
{
    const uint64_t n = k->projections[1] == NULL ? 1 : 2, rows = t->shape[1] / n;
    for (uint64_t expert = 0; expert < t->shape[0]; expert++) {
        for (uint64_t i = 0; i < n; i++) {
            const bool interleaved = s->interleaved && n == 2;
            const tsr_any_part part = {.plain = t,
                                       .view = {.first = expert * t->shape[1] + i * (interleaved ? 1 : rows),
                                                .step = interleaved ? 2 : 1,
                                                .rows = rows}};
            TSR_TRY(add_made(s, &part, name_of(s, t->name, expert, k->projections[i], ".bias"), (tsr_dtype)t->dtype, 1,
                             &rows));
        }
    }
    return TSR_OK;
}

/* Whether the stack that this bias belongs to is one of codes. */
static bool is_bias_of_codes(const seeing *s, const tsr_tensor *t)
{
    static const char kBias[] = "_bias";
    char name[1200];
    const size_t length = strlen(t->name);
    if (!tsr_ends_with(t->name, kBias) || t->rank != 2 || length >= sizeof name)
        return false;
    memcpy(name, t->name, length + 1);
    name[length - (sizeof kBias - 1)] = '\0';
    for (size_t i = 0; i < s->v->weights.count; i++) {
        const tsr_weight *const w = &s->v->weights.items[i];
        if (w->scale != NULL && strcmp(w->values->name, name) == 0)
            return true;
    }
    return false;
}

/* ---- the view ---- */

static tsr_status add_weight(seeing *s, const tsr_weight *w)
{
    if (w->scale == NULL) {
        const stack *const k = s->split ? stack_of(w->data->name) : NULL;
        return k != NULL && is_bias_of_codes(s, w->data) ? add_biases(s, w->data, k)
                                                         : tsr_tensors_add(&s->tensors, w->data, s->err);
    }
    const stack *const k = w->values->rank == 3 ? stack_of(w->values->name) : NULL;
    if (k != NULL && s->split)
        return add_experts(s, w, k);
    if (w->transposed)
        return tsr_fail(s->err, TSR_E_UNSUPPORTED,
                        "%s: '%s' is a stack of codes whose values are [in, out]: only --experts split takes it",
                        s->v->source->files[w->data->file].path, w->data->name);
    return add_whole(s, w);
}

static tsr_status see(seeing *s)
{
    tsr_any_view *const v = s->v;
    if (v->weights.n_scaled == 0)
        return tsr_fail(s->err, TSR_E_UNSUPPORTED, "%s: no tensor is codes; 'tessera quantize' makes them of BF16",
                        v->source->path);
    for (size_t i = 0; i < v->weights.count; i++)
        TSR_TRY(add_weight(s, &v->weights.items[i]));
    if (v->source->config != NULL)
        TSR_TRY(tsr_fp8_config_remove(&v->config, v->source, s->err));
    return tsr_checkpoint_see(&v->seen, v->source, &s->tensors, v->config.data, v->config.size, tsr_quantization_files,
                              s->err);
}

tsr_status tsr_any_see(tsr_any_view *view, const tsr_checkpoint *source, const tsr_block *block, bool split,
                       tsr_err *err)
{
    *view = (tsr_any_view){.source = source};
    view->sources[0] = &view->seen;
    TSR_TRY(tsr_weights_pair(&view->weights, source, *block, err));
    bool gpt_oss = false; /* its codes alone tell: no other kind is the transpose of its values */
    for (size_t i = 0; i < view->weights.count; i++)
        gpt_oss = gpt_oss || view->weights.items[i].transposed;
    seeing s = {.v = view, .model = tsr_model_read(source), .split = split, .interleaved = gpt_oss, .err = err};
    tsr_status status = tsr_weights_refuse_parts(&view->weights, source, "converting", err);
    if (status == TSR_OK)
        status = see(&s);
    tsr_tensors_free(&s.tensors);
    if (status != TSR_OK)
        tsr_any_free(view);
    return status;
}

const tsr_any_part *tsr_any_part_of(const tsr_any_view *view, const tsr_tensor *tensor)
{
    return tensor->source == TSR_SOURCE_DECODED ? &view->parts[tensor->offset] : NULL;
}

void tsr_any_keep(tsr_any_view *view, const tsr_tensor *tensor)
{
    tsr_tensor *const t = &view->seen.tensors.items[tensor - view->seen.tensors.items];
    t->dtype = TSR_BF16;
    t->bytes = tsr_tensor_elements(t) * sizeof(uint16_t);
}

void tsr_any_free(tsr_any_view *view)
{
    tsr_checkpoint_unsee(&view->seen);
    tsr_weights_free(&view->weights);
    free(view->parts);
    tsr_text_free(&view->config);
    tsr_arena_free(&view->arena);
    *view = (tsr_any_view){0};
}
