/* Finds from which tensors a tensor can be derived, and derives it. */
#include "verify/values/derived_values.h"

#include "common/checked.h"
#include "common/text.h"
#include "formats/names/absorbed.h"
#include "formats/names/model.h"
#include "verify/values/derived_expert.h"

#include <stdlib.h>
#include <string.h>

static const char kKvB[] = "kv_b_proj.weight";

/* ---- finding ---- */

static const tsr_weight *find_sibling(const tsr_side *side, const char *name, const char *own, const char *sibling)
{
    char text[1200];
    return tsr_absorbed_sibling(name, own, sibling, text, sizeof text)
               ? tsr_weights_find(side->weights, side->checkpoint, text)
               : NULL;
}

static bool is_shaped(const tsr_weight *w, uint64_t rows, uint64_t cols)
{
    const tsr_tensor *const t = w->values;
    return t->rank == 2 && (rows == 0 || t->shape[0] == rows) && (cols == 0 || t->shape[1] == cols);
}

static bool has_values(const tsr_weight *w)
{
    return w->scale != NULL || tsr_dtype_is_weight_float((tsr_dtype)w->data->dtype);
}

/* Finds the dimensions of MLA, and the kv_b_proj of the layer of `name`, whose ending is `own`. */
static bool find_kv_b(const tsr_side *from, const char *name, const char *own, tsr_derived_tensor *made)
{
    const tsr_model m = tsr_model_read(from->checkpoint);
    made->heads = m.heads;
    made->nope = m.nope;
    made->v = m.v_head_dim;
    made->rope = m.rope;
    made->rank = m.kv_lora_rank;
    made->kv_b = find_sibling(from, name, own, kKvB);
    return made->kv_b != NULL && m.heads * (m.nope + m.v_head_dim) * m.kv_lora_rank > 0 && has_values(made->kv_b) &&
           is_shaped(made->kv_b, m.heads * (m.nope + m.v_head_dim), m.kv_lora_rank);
}

static bool is_part(const tsr_side *from, const tsr_weight *wanted, tsr_derived_tensor *made)
{
    const tsr_absorbed_part *const part = tsr_absorbed_find(wanted->values->name);
    const tsr_tensor *const t = wanted->values;
    if (part == NULL || t->rank != 3 || !has_values(wanted) || !find_kv_b(from, t->name, part->name, made))
        return false;
    const uint64_t rows = part->values ? made->v : made->nope;
    made->kind = TSR_DERIVED_PART;
    made->values = part->values;
    made->latent_first = part->latent_first;
    return t->shape[0] == made->heads && t->shape[1] == (part->latent_first ? made->rank : rows) &&
           t->shape[2] == (part->latent_first ? rows : made->rank);
}

static bool is_folded(const tsr_side *from, const tsr_side *with, const tsr_weight *wanted, tsr_derived_tensor *made)
{
    static const char *const kNames[] = {"q_b_proj.weight", "q_proj.weight", "o_proj.weight"};
    const char *const name = wanted->values->name;
    size_t i = 0;
    while (i < 3 && !tsr_ends_in_parts(name, kNames[i]))
        i++;
    if (i == 3 || !tsr_absorbed_is_folded(with->checkpoint) || tsr_absorbed_is_folded(from->checkpoint) ||
        !has_values(wanted) || !find_kv_b(from, name, kNames[i], made))
        return false;
    made->folded = tsr_weights_find(from->weights, from->checkpoint, name);
    if (made->folded == NULL || !has_values(made->folded))
        return false;
    if (i == 2) {
        made->kind = TSR_DERIVED_OUTPUT;
        return is_shaped(made->folded, 0, made->heads * made->v) &&
               is_shaped(wanted, made->folded->values->shape[0], made->heads * made->rank);
    }
    made->kind = TSR_DERIVED_QUERY;
    return is_shaped(made->folded, made->heads * (made->nope + made->rope), 0) &&
           is_shaped(wanted, made->heads * (made->rank + made->rope), made->folded->values->shape[1]);
}

static tsr_status made_values(const tsr_view *view, const tsr_piece *piece, double *out, tsr_err *err);
static uint64_t made_memory(const tsr_view *view, const tsr_piece *piece);

tsr_status tsr_derived_find(const tsr_side *from, const tsr_side *with, const tsr_weight *wanted, tsr_arena *arena,
                            const tsr_derived_tensor **made, const tsr_weight **weight, tsr_err *err)
{
    tsr_derived_tensor found = {.folded = NULL};
    *made = NULL;
    *weight = NULL;
    if (!is_part(from, wanted, &found) && !is_folded(from, with, wanted, &found) &&
        !tsr_derived_expert_find(from, wanted, &found))
        return TSR_OK;
    tsr_derived_tensor *const kept = tsr_arena_alloc(arena, sizeof *kept);
    tsr_tensor *const tensor = tsr_arena_alloc(arena, sizeof *tensor);
    tsr_weight *const stand_in = tsr_arena_alloc(arena, sizeof *stand_in);
    if (kept == NULL || tensor == NULL || stand_in == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", wanted->values->name);
    found.derived = (tsr_derived){made_values, made_memory};
    *kept = found;
    *tensor = *wanted->values;
    /* A part or an expert has the values of its source in any dtype. A folded weight has sums that no stored dtype can
     * represent. */
    const tsr_weight *const whole = found.kind == TSR_DERIVED_PART     ? found.kv_b
                                    : found.kind == TSR_DERIVED_EXPERT ? found.stack
                                                                       : found.folded;
    const uint64_t parts =
        found.kind == TSR_DERIVED_PART ? 2
        : found.kind == TSR_DERIVED_EXPERT
            ? tsr_max_u64(1, tsr_tensor_elements(whole->values) / tsr_max_u64(1, tsr_tensor_elements(tensor)))
            : 1;
    tensor->dtype = found.kind == TSR_DERIVED_PART || found.kind == TSR_DERIVED_EXPERT ? whole->data->dtype : TSR_F64;
    tensor->bytes = whole->data->bytes / parts;
    *stand_in = tsr_plain_weight(tensor);
    *made = kept;
    *weight = stand_in;
    return TSR_OK;
}

bool tsr_derived_replaces(const tsr_side *from, const tsr_side *with, const tsr_weight *kv_b)
{
    const char *const name = kv_b->values->name;
    tsr_derived_tensor made = {.folded = NULL};
    if (!tsr_ends_in_parts(name, kKvB))
        return tsr_derived_expert_replaces(from, with, kv_b);
    for (size_t i = 0; i < TSR_ABSORBED_CONSUMERS; i++) {
        const tsr_absorbed_consumer *const c = &tsr_absorbed_consumers[i];
        const tsr_weight *const keys = find_sibling(with, name, kKvB, c->keys.name), *const values =
                                                                                         find_sibling(with, name, kKvB,
                                                                                                      c->values.name);
        if (keys != NULL && values != NULL && find_sibling(from, name, kKvB, c->keys.name) == NULL &&
            find_sibling(from, name, kKvB, c->values.name) == NULL && is_part(from, keys, &made) &&
            is_part(from, values, &made))
            return true;
    }
    const tsr_weight *query = find_sibling(with, name, kKvB, "q_b_proj.weight");
    query = query != NULL ? query : find_sibling(with, name, kKvB, "q_proj.weight");
    const tsr_weight *const output = find_sibling(with, name, kKvB, "o_proj.weight");
    return query != NULL && output != NULL && is_folded(from, with, query, &made) &&
           is_folded(from, with, output, &made);
}

/* ---- making ---- */

/* Returns the derivation of a view. */
static const tsr_derived_tensor *made_of(const tsr_view *view)
{
    return (const tsr_derived_tensor *)view->derived;
}

static tsr_status read_rect(const tsr_view *view, const tsr_weight *w, const tsr_piece *piece, double *out,
                            tsr_err *err)
{
    return tsr_read_values(view->checkpoint, w, piece, out, err);
}

static tsr_status make_part(const tsr_view *view, const tsr_piece *piece, double *out, double *scratch, tsr_err *err)
{
    const tsr_derived_tensor *const m = made_of(view);
    const uint64_t first = piece->matrix * (m->nope + m->v) + (m->values ? m->nope : 0);
    tsr_piece stored = {.row = first + piece->row, .col = piece->col, .rows = piece->rows, .cols = piece->cols};
    if (!m->latent_first)
        return read_rect(view, m->kv_b, &stored, out, err);
    stored = (tsr_piece){.row = first + piece->col, .col = piece->row, .rows = piece->cols, .cols = piece->rows};
    TSR_TRY(read_rect(view, m->kv_b, &stored, scratch, err));
    for (uint64_t r = 0; r < piece->rows; r++) {
        for (uint64_t c = 0; c < piece->cols; c++)
            out[r * piece->cols + c] = scratch[c * piece->rows + r];
    }
    return TSR_OK;
}

/* Adds: out[0 .. n) += a * x[0 .. n). */
static void add_scaled(double *restrict out, double a, const double *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] += a * x[i];
}

/* Derives `rank` rows per head, sum over p of W_k[p, i] * q[p, :], then copies the rope rows. */
static tsr_status make_query(const tsr_view *view, const tsr_piece *piece, double *out, double *scratch, tsr_err *err)
{
    const tsr_derived_tensor *const m = made_of(view);
    const uint64_t height = m->rank + m->rope, stored = m->nope + m->rope;
    double *const keys = scratch, *const query = keys + m->nope * m->rank;
    uint64_t loaded = UINT64_MAX;
    for (uint64_t r = 0; r < piece->rows; r++) {
        const uint64_t head = (piece->row + r) / height, i = (piece->row + r) % height;
        double *const line = out + r * piece->cols;
        if (head != loaded) {
            const tsr_piece of_keys = {.row = head * (m->nope + m->v), .rows = m->nope, .cols = m->rank};
            const tsr_piece of_query = {.row = head * stored, .rows = stored, .col = piece->col, .cols = piece->cols};
            TSR_TRY(read_rect(view, m->kv_b, &of_keys, keys, err));
            TSR_TRY(read_rect(view, m->folded, &of_query, query, err));
            loaded = head;
        }
        if (i >= m->rank) {
            memcpy(line, query + (m->nope + i - m->rank) * piece->cols, piece->cols * sizeof *line);
            continue;
        }
        memset(line, 0, piece->cols * sizeof *line);
        for (uint64_t p = 0; p < m->nope; p++)
            add_scaled(line, keys[p * m->rank + i], query + p * piece->cols, (size_t)piece->cols);
    }
    return TSR_OK;
}

/* Derives `rank` columns per head, sum over j of o[:, j] * W_v[j, i]. */
static tsr_status make_output(const tsr_view *view, const tsr_piece *piece, double *out, double *scratch, tsr_err *err)
{
    const tsr_derived_tensor *const m = made_of(view);
    double *const values = scratch, *const output = values + m->v * m->rank;
    memset(out, 0, piece->rows * piece->cols * sizeof *out);
    for (uint64_t at = piece->col; at < piece->col + piece->cols;) {
        const uint64_t head = at / m->rank, first = at % m->rank;
        const uint64_t n = tsr_min_u64(m->rank - first, piece->col + piece->cols - at);
        const tsr_piece of_values = {.row = head * (m->nope + m->v) + m->nope, .rows = m->v, .col = first, .cols = n};
        const tsr_piece of_output = {.row = piece->row, .rows = piece->rows, .col = head * m->v, .cols = m->v};
        TSR_TRY(read_rect(view, m->kv_b, &of_values, values, err));
        TSR_TRY(read_rect(view, m->folded, &of_output, output, err));
        for (uint64_t r = 0; r < piece->rows; r++) {
            for (uint64_t j = 0; j < m->v; j++)
                add_scaled(out + r * piece->cols + at - piece->col, output[r * m->v + j], values + j * n, (size_t)n);
        }
        at += n;
    }
    return TSR_OK;
}

static uint64_t scratch_values(const tsr_derived_tensor *m, const tsr_piece *piece)
{
    switch (m->kind) {
    case TSR_DERIVED_PART:
        return piece->rows * piece->cols;
    case TSR_DERIVED_EXPERT:
        return tsr_derived_expert_scratch(m, piece);
    case TSR_DERIVED_QUERY:
        return m->nope * m->rank + (m->nope + m->rope) * piece->cols;
    default:
        return m->v * m->rank + piece->rows * m->v;
    }
}

static tsr_status made_values(const tsr_view *view, const tsr_piece *piece, double *out, tsr_err *err)
{
    double *const scratch = malloc((scratch_values(made_of(view), piece) + 1) * sizeof *scratch);
    if (scratch == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", view->weight.values->name);
    const tsr_status status = made_of(view)->kind == TSR_DERIVED_PART ? make_part(view, piece, out, scratch, err)
                              : made_of(view)->kind == TSR_DERIVED_EXPERT
                                  ? tsr_derived_expert_values(view, made_of(view), piece, out, scratch, err)
                              : made_of(view)->kind == TSR_DERIVED_QUERY ? make_query(view, piece, out, scratch, err)
                                                                         : make_output(view, piece, out, scratch, err);
    free(scratch);
    return status;
}

static uint64_t made_memory(const tsr_view *view, const tsr_piece *piece)
{
    /* the result, its operands in double, and the same as stored, with scales */
    const uint64_t scratch = scratch_values(made_of(view), piece);
    return piece->rows * piece->cols * sizeof(double) + scratch * (sizeof(double) + sizeof(float) + sizeof(double));
}
