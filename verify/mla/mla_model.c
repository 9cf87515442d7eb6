/* Reads configuration and shapes of latent attention, and decodes its weights to double. */
#include "verify/mla/mla_model.h"

#include "common/checked.h"
#include "formats/checkpoint/config.h"
#include "formats/names/absorbed.h"
#include "formats/names/mla_shape.h"
#include "verify/values/weight_product.h"
#include "verify/values/weight_reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BAND = 64 };

/* ---- configuration ---- */

static tsr_status read_config(tsr_mla_model *m, tsr_err *err)
{
    const tsr_checkpoint *const c = m->checkpoint;
    tsr_mla_shape shape;
    tsr_json_text value;
    uint64_t x;
    TSR_TRY(tsr_mla_dimension_read(c, "hidden_size", &x, err));
    TSR_TRY(tsr_mla_shape_read(&shape, c, err));
    m->hidden = (size_t)x;
    m->heads = (size_t)shape.heads;
    m->nope = (size_t)shape.nope;
    m->rope = (size_t)shape.rope;
    m->v = (size_t)shape.v;
    m->rank = (size_t)shape.rank;
    if (m->rope % 2 != 0)
        return tsr_fail(err, TSR_E_SHAPE, "%s: qk_rope_head_dim is odd", c->path);
    m->q_rank = tsr_config_find_u64(c, "q_lora_rank", &x) ? (size_t)tsr_min_u64(x, 1u << 20) : 0;
    m->eps = tsr_config_model_number(c, "rms_norm_eps", 1e-6);
    if (tsr_config_find_model(c, "attention_bias", &value) && tsr_json_is(value, "true"))
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: attention_bias", c->path);
    if (tsr_config_find_model(c, "rope_interleave", &value) && tsr_json_is(value, "false"))
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: rope_interleave is false", c->path);
    TSR_TRY(tsr_rope_read(&m->turn, c, m->rope, 10000, &m->arena, err));
    m->plain_scale = 1 / sqrt((double)(m->nope + m->rope));
    m->softmax_scale = m->plain_scale * m->turn.mscale_all * m->turn.mscale_all;
    m->head_nope = m->nope;
    m->head_v = m->v;
    m->folded = tsr_absorbed_is_folded(c);
    if (m->folded)
        m->nope = m->v = m->rank;
    return tsr_config_check_types(c, err);
}

/* ---- weights ---- */

typedef struct layer {
    tsr_mla_model *m;
    const tsr_side *side;
    const char *root;
    uint64_t number;
    char missing[512];
} layer;

static const char *name_of(layer *l, const char *name)
{
    return tsr_arena_printf(&l->m->arena, "%slayers.%llu.self_attn.%s", l->root, (unsigned long long)l->number, name);
}

/* Finds a weight of the layer. If it does not exist, adds its name to the list of missing weights and returns NULL. */
static const tsr_weight *find(layer *l, const char *name)
{
    const char *const full = name_of(l, name);
    const tsr_weight *const w = full == NULL ? NULL : tsr_weights_find(l->side->weights, l->m->checkpoint, full);
    const size_t used = strlen(l->missing);
    if (w == NULL)
        snprintf(l->missing + used, sizeof l->missing - used, "%s%s", used > 0 ? ", " : "", name);
    return w;
}

static tsr_status load(const layer *l, const tsr_weight *w, size_t rows, size_t cols, double **out, tsr_err *err)
{
    tsr_weight_reader reader = {0};
    tsr_view view;
    *out = tsr_arena_alloc(&l->m->arena, rows * cols * sizeof **out);
    if (*out == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", w->values->name);
    tsr_status status = tsr_view_init(&view, l->m->checkpoint, w, err);
    for (size_t row = 0; status == TSR_OK && row < rows; row += BAND) {
        const tsr_piece piece = {.row = row, .rows = tsr_min_u64(BAND, rows - row), .cols = cols};
        status = tsr_weight_reader_load(&reader, &view, &piece, err);
        for (size_t i = 0; status == TSR_OK && i < piece.rows; i++)
            tsr_weight_reader_row(&reader, i, 0, cols, *out + (row + i) * cols);
    }
    tsr_weight_reader_free(&reader);
    return status;
}

static tsr_status load_norm(layer *l, const tsr_weight *w, size_t n, double **out, tsr_err *err)
{
    TSR_TRY(tsr_linear_expect(l->m->checkpoint, w, n, 0, err));
    return load(l, w, 1, n, out, err);
}

static tsr_status load_kv_b(layer *l, const tsr_weight *w, tsr_err *err)
{
    tsr_mla_model *const m = l->m;
    const size_t head = (m->nope + m->v) * m->rank, k = m->nope * m->rank, v = m->v * m->rank;
    double *all;
    TSR_TRY(tsr_linear_expect(l->m->checkpoint, w, m->heads * (m->nope + m->v), m->rank, err));
    TSR_TRY(load(l, w, m->heads * (m->nope + m->v), m->rank, &all, err));
    m->keys = tsr_arena_alloc(&m->arena, m->heads * k * sizeof(double));
    m->values = tsr_arena_alloc(&m->arena, m->heads * v * sizeof(double));
    if (m->keys == NULL || m->values == NULL)
        return tsr_out_of_memory(err, "for kv_b_proj");
    for (size_t h = 0; h < m->heads; h++) {
        memcpy(m->keys + h * k, all + h * head, k * sizeof(double));
        memcpy(m->values + h * v, all + h * head + k, v * sizeof(double));
    }
    return TSR_OK;
}

/* Applies the scale of a part: one for all, one per head, or [heads, row blocks, column blocks] in the order of the
 * stored part. */
static tsr_status apply_scale(layer *l, const tsr_absorbed_part *part, const tsr_tensor *t, double *data, tsr_err *err)
{
    const tsr_tensor *s = NULL;
    const char *const scales_of[] = {part->scale, part->one_scale};
    for (size_t i = 0; i < 2 && s == NULL && scales_of[i] != NULL; i++) {
        const char *const name = name_of(l, scales_of[i]);
        s = name == NULL ? NULL : tsr_checkpoint_find(l->m->checkpoint, name);
    }
    if (s == NULL)
        return tsr_fail(err, TSR_E_FORMAT, "%s: '%s' is FP8 without a scale", l->m->checkpoint->path, t->name);
    const size_t heads = (size_t)t->shape[0], rows = (size_t)t->shape[1], cols = (size_t)t->shape[2];
    const size_t grid_rows = s->rank == 3 ? (size_t)s->shape[1] : 1, grid_cols = s->rank == 3 ? (size_t)s->shape[2] : 1;
    const size_t n = (size_t)tsr_tensor_elements(s);
    if (s->dtype != TSR_F32 || (n != 1 && (n != heads * grid_rows * grid_cols || s->shape[0] != heads || n == 0)))
        return tsr_fail(err, TSR_E_SHAPE, "%s: '%s' is not a valid scale of '%s'", l->m->checkpoint->path, s->name,
                        t->name);
    double *const scales = tsr_arena_alloc(&l->m->arena, n * sizeof *scales);
    if (scales == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", s->name);
    TSR_TRY(tsr_decode_tensor(l->m->checkpoint, s, scales, err));
    const size_t block_rows = (size_t)tsr_ceil_div(rows, grid_rows), block_cols = (size_t)tsr_ceil_div(cols, grid_cols);
    for (size_t i = 0; i < heads * rows * cols; i++) {
        const size_t h = i / (rows * cols), row = i / cols % rows, col = i % cols;
        data[i] *= scales[n == 1 ? 0 : (h * grid_rows + row / block_rows) * grid_cols + col / block_cols];
    }
    return TSR_OK;
}

static tsr_status load_part(layer *l, const tsr_absorbed_part *part, const tsr_tensor *t, tsr_err *err)
{
    tsr_mla_model *const m = l->m;
    const size_t rows = part->values ? m->v : m->nope, n = m->heads * rows * m->rank;
    const size_t stored[2] = {part->latent_first ? m->rank : rows, part->latent_first ? rows : m->rank};
    if (t->rank != 3 || t->shape[0] != m->heads || t->shape[1] != stored[0] || t->shape[2] != stored[1])
        return tsr_fail(err, TSR_E_SHAPE, "%s: '%s' is not [%zu, %zu, %zu]", m->checkpoint->path, t->name, m->heads,
                        stored[0], stored[1]);
    double *const data = tsr_arena_alloc(&m->arena, n * sizeof *data);
    double *const out = tsr_arena_alloc(&m->arena, n * sizeof *out);
    if (data == NULL || out == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", t->name);
    TSR_TRY(tsr_decode_tensor(m->checkpoint, t, data, err));
    if (t->dtype == TSR_F8_E4M3)
        TSR_TRY(apply_scale(l, part, t, data, err));
    else if (!tsr_dtype_is_weight_float((tsr_dtype)t->dtype))
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: '%s' is %s", m->checkpoint->path, t->name,
                        tsr_dtype_name((tsr_dtype)t->dtype));
    for (size_t i = 0; i < n; i++) {
        const size_t h = i / (rows * m->rank), row = i / m->rank % rows, at = i % m->rank;
        out[i] = data[part->latent_first ? (h * m->rank + at) * rows + row : i];
    }
    *(part->values ? &m->w_vc : &m->w_kc) = out;
    return TSR_OK;
}

static tsr_status make_identity(tsr_mla_model *m, tsr_err *err)
{
    const size_t n = m->heads * m->rank * m->rank;
    m->keys = m->values = m->w_kc = m->w_vc = tsr_arena_alloc(&m->arena, n * sizeof *m->keys);
    if (m->keys == NULL)
        return tsr_out_of_memory(err, "for kv_b_proj");
    for (size_t i = 0; i < n; i++)
        m->keys[i] = i / m->rank % m->rank == i % m->rank;
    return TSR_OK;
}

static tsr_status load_latent(layer *l, tsr_err *err)
{
    tsr_mla_model *const m = l->m;
    if (m->folded)
        return make_identity(m, err);
    for (size_t i = 0; i < 2 * (size_t)TSR_ABSORBED_CONSUMERS; i++) {
        const tsr_absorbed_consumer *const c = &tsr_absorbed_consumers[i / 2];
        const tsr_absorbed_part *const part = i % 2 == 0 ? &c->keys : &c->values;
        const char *const name = name_of(l, part->name);
        const tsr_tensor *const t = name == NULL ? NULL : tsr_checkpoint_find(m->checkpoint, name);
        if (t != NULL)
            TSR_TRY(load_part(l, part, t, err));
    }
    m->has_parts = m->w_kc != NULL && m->w_vc != NULL;
    const char *const name = name_of(l, "kv_b_proj.weight");
    m->has_kv_b = name != NULL && tsr_checkpoint_find(m->checkpoint, name) != NULL;
    if (m->has_kv_b || !m->has_parts) {
        const tsr_weight *const w = find(l, "kv_b_proj.weight");
        if (w != NULL)
            TSR_TRY(load_kv_b(l, w, err));
    } else {
        m->keys = m->w_kc;
        m->values = m->w_vc;
    }
    if (!m->has_parts) {
        m->w_kc = m->keys;
        m->w_vc = m->values;
    }
    return TSR_OK;
}

/* Refuses a layer that lacks weights, and names all of them. */
static tsr_status check_missing(const layer *l, tsr_err *err)
{
    if (l->missing[0] == '\0')
        return TSR_OK;
    return tsr_fail(err, TSR_E_FORMAT, "%s: %slayers.%llu.self_attn lacks %s", l->m->checkpoint->path, l->root,
                    (unsigned long long)l->number, l->missing);
}

static tsr_status load_layer(layer *l, tsr_err *err)
{
    tsr_mla_model *const m = l->m;
    const tsr_weight *q_norm = NULL;
    TSR_TRY(read_config(m, err));
    const size_t query = m->heads * (m->nope + m->rope);
    if (m->q_rank > 0) {
        m->q_a = find(l, "q_a_proj.weight");
        q_norm = find(l, "q_a_layernorm.weight");
    }
    m->q = find(l, m->q_rank > 0 ? "q_b_proj.weight" : "q_proj.weight");
    m->kv_a = find(l, "kv_a_proj_with_mqa.weight");
    const tsr_weight *const kv_norm = find(l, "kv_a_layernorm.weight");
    m->o = find(l, "o_proj.weight");
    TSR_TRY(load_latent(l, err));
    TSR_TRY(check_missing(l, err));
    if (m->q_rank > 0) {
        TSR_TRY(tsr_linear_expect(m->checkpoint, m->q_a, m->q_rank, m->hidden, err));
        TSR_TRY(load_norm(l, q_norm, m->q_rank, &m->q_norm, err));
    }
    TSR_TRY(tsr_linear_expect(m->checkpoint, m->q, query, m->q_rank > 0 ? m->q_rank : m->hidden, err));
    TSR_TRY(tsr_linear_expect(m->checkpoint, m->kv_a, m->rank + m->rope, m->hidden, err));
    TSR_TRY(tsr_linear_expect(m->checkpoint, m->o, m->hidden, m->heads * m->v, err));
    return load_norm(l, kv_norm, m->rank, &m->kv_norm, err);
}

/* Sets *adjacent by the family: which pairs of an indexer RoPE turns. */
static tsr_status find_family(tsr_mla_model *m, bool *adjacent, tsr_err *err)
{
    static const struct {
        const char *type;
        bool adjacent;
    } kFamilies[] = {{"deepseek_v32", false}, {"glm_moe_dsa", true}};
    const char *const type = tsr_config_model_string(m->checkpoint, "model_type", &m->arena);
    for (size_t i = 0; type != NULL && i < sizeof kFamilies / sizeof *kFamilies; i++) {
        *adjacent = kFamilies[i].adjacent;
        if (strcmp(type, kFamilies[i].type) == 0)
            return TSR_OK;
    }
    return tsr_fail(err, TSR_E_UNSUPPORTED,
                    "%s/" TSR_CONFIG_NAME
                    ": model_type %s: only the indexers of deepseek_v32 and glm_moe_dsa are known",
                    m->checkpoint->path, type == NULL ? "is missing" : type);
}

static tsr_status load_indexer(layer *l, tsr_err *err)
{
    tsr_mla_model *const m = l->m;
    bool adjacent;
    TSR_TRY(find_family(m, &adjacent, err));
    TSR_TRY(tsr_index_sizes_read(&m->index, m->checkpoint, adjacent, &m->arena, err));
    m->index_q = find(l, "indexer.wq_b.weight");
    m->index_k = find(l, "indexer.wk.weight");
    const tsr_weight *const gain = find(l, "indexer.k_norm.weight"), *const bias = find(l, "indexer.k_norm.bias");
    m->index_weights = find(l, "indexer.weights_proj.weight");
    TSR_TRY(check_missing(l, err));
    TSR_TRY(tsr_linear_expect(m->checkpoint, m->index_q, m->index.heads * m->index.dim, m->q_rank, err));
    TSR_TRY(tsr_linear_expect(m->checkpoint, m->index_k, m->index.dim, m->hidden, err));
    TSR_TRY(tsr_linear_expect(m->checkpoint, m->index_weights, m->index.heads, m->hidden, err));
    TSR_TRY(load_norm(l, gain, m->index.dim, &m->index_gain, err));
    return load_norm(l, bias, m->index.dim, &m->index_bias, err);
}

bool tsr_mla_model_has_indexer(tsr_mla_model *model, const tsr_side *side, const char *root, uint64_t number)
{
    layer l = {.m = model, .side = side, .root = root, .number = number};
    bool adjacent;
    return find_family(model, &adjacent, NULL) == TSR_OK && find(&l, "indexer.wk.weight") != NULL;
}

tsr_status tsr_mla_model_open_indexer(tsr_mla_model *model, const tsr_side *side, const char *root, uint64_t number,
                                      tsr_err *err)
{
    layer l = {.m = model, .side = side, .root = root, .number = number};
    return tsr_arena_status(&model->arena, load_indexer(&l, err), err);
}

tsr_status tsr_mla_model_open(tsr_mla_model *model, const tsr_side *side, const char *root, uint64_t number,
                              tsr_err *err)
{
    *model = (tsr_mla_model){.checkpoint = side->checkpoint, .threads = 1};
    layer l = {.m = model, .side = side, .root = root, .number = number};
    return tsr_arena_status(&model->arena, load_layer(&l, err), err);
}

void tsr_mla_model_close(tsr_mla_model *model)
{
    tsr_arena_free(&model->arena);
}

tsr_status tsr_mla_project(const tsr_mla_model *m, const tsr_weight *w, size_t first, size_t cols, const double *x,
                           size_t ld_x, size_t n, double *y, tsr_err *err)
{
    const tsr_linear_product linear = {
        .checkpoint = m->checkpoint, .weight = w, .first = first, .cols = cols, .x = x, .ld_x = ld_x, .n = n, .y = y};
    return tsr_linear_run(&linear, m->threads, err);
}
