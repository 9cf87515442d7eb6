/* Reading the configuration, finding weights, and running the layers one after another. */
#include "verify/forward/forward_parts.h"

#include "common/checked.h"
#include "formats/checkpoint/config.h"
#include "verify/weights/weight_product.h"
#include "verify/weights/weight_reader.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SIZE = 1 << 24 };

/* ---- configuration ---- */

static const struct family {
    const char *type;
    bool latent, sigmoid;
} kFamilies[] = {
    {"llama", false, false},     {"mistral", false, false},    {"qwen2", false, false},     {"qwen3", false, false},
    {"qwen3_moe", false, false}, {"deepseek_v2", true, false}, {"deepseek_v3", true, true}, {"kimi_k2", true, true},
};

static size_t size_of(const tsr_forward *f, const char *key, size_t otherwise)
{
    const tsr_checkpoint *const c = f->side->checkpoint;
    uint64_t x;
    return tsr_config_find_u64(c, key, &x) ? (size_t)tsr_min_u64(x, MAX_SIZE) : otherwise;
}

/* Whether the value at `key` is this JSON literal. */
static bool is(const tsr_forward *f, const char *key, const char *literal)
{
    const tsr_checkpoint *const c = f->side->checkpoint;
    tsr_json_text value;
    return tsr_config_find(c, key, &value) && tsr_json_is(value, literal);
}

static tsr_status read_family(tsr_forward *f, tsr_err *err)
{
    const tsr_checkpoint *const c = f->side->checkpoint;
    const char *const type = tsr_config_find_string(c, "model_type", &f->arena);
    const char *const act = tsr_config_find_string(c, "hidden_act", &f->arena);
    const char *const scoring = tsr_config_find_string(c, "scoring_func", &f->arena);
    const char *const method = tsr_config_find_string(c, "topk_method", &f->arena);
    const struct family *family = NULL;
    for (size_t i = 0; type != NULL && family == NULL && i < sizeof kFamilies / sizeof *kFamilies; i++)
        family = strcmp(type, kFamilies[i].type) == 0 ? &kFamilies[i] : NULL;
    if (family == NULL)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": no forward pass for model_type '%s'", c->path,
                        type == NULL ? "" : type);
    if (act != NULL && strcmp(act, "silu") != 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": hidden_act '%s'", c->path, act);
    if (tsr_config_find_number(c, "partial_rotary_factor", 1) != 1)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": partial_rotary_factor", c->path);
    struct tsr_router *const r = &f->router;
    f->latent = family->latent;
    r->sigmoid = scoring != NULL ? strcmp(scoring, "sigmoid") == 0 : family->sigmoid;
    r->normalized = is(f, "norm_topk_prob", "true");
    r->chosen = size_of(f, "num_experts_per_tok", 0);
    const bool grouped = family->latent && (method == NULL || strcmp(method, "greedy") != 0);
    r->groups = grouped ? tsr_max_u64(size_of(f, "n_group", 1), 1) : 1;
    r->groups_kept = grouped ? tsr_min_u64(size_of(f, "topk_group", r->groups), r->groups) : 1;
    r->scale = tsr_config_find_number(c, "routed_scaling_factor", 1);
    return TSR_OK;
}

static tsr_status read_sizes(tsr_forward *f, tsr_err *err)
{
    const tsr_checkpoint *const c = f->side->checkpoint;
    const struct {
        const char *key;
        size_t *value;
    } kKeys[] = {{"num_hidden_layers", &f->layers},
                 {"hidden_size", &f->hidden},
                 {"vocab_size", &f->vocabulary},
                 {"num_attention_heads", &f->heads}};
    for (size_t i = 0; i < sizeof kKeys / sizeof *kKeys; i++) {
        *kKeys[i].value = size_of(f, kKeys[i].key, 0);
        if (*kKeys[i].value == 0)
            return tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": no %s", c->path, kKeys[i].key);
    }
    f->window = is(f, "use_sliding_window", "false") ? SIZE_MAX : size_of(f, "sliding_window", SIZE_MAX);
    f->eps = tsr_config_find_number(c, "rms_norm_eps", 1e-6);
    f->kv_heads = size_of(f, "num_key_value_heads", f->heads);
    f->head_dim = size_of(f, "head_dim", f->hidden / f->heads);
    if (f->latent)
        return TSR_OK;
    if (f->kv_heads == 0 || f->heads % f->kv_heads != 0 || f->head_dim == 0 || f->head_dim % 2 != 0)
        return tsr_fail(err, TSR_E_SHAPE, "%s/" TSR_CONFIG_NAME ": %zu heads, %zu of keys and values, head_dim %zu",
                        c->path, f->heads, f->kv_heads, f->head_dim);
    return tsr_arena_status(&f->arena, tsr_rope_read(&f->rope, c, f->head_dim, &f->arena, err), err);
}

tsr_status tsr_forward_open(tsr_forward *f, const tsr_side *side, tsr_err *err)
{
    *f = (tsr_forward){.side = side, .threads = 1};
    if (side->checkpoint->config == NULL)
        return tsr_fail(err, TSR_E_USAGE, "%s: needs a directory with its " TSR_CONFIG_NAME, side->checkpoint->path);
    TSR_TRY(tsr_arena_status(&f->arena, read_family(f, err), err));
    return read_sizes(f, err);
}

void tsr_forward_close(tsr_forward *f)
{
    tsr_arena_free(&f->arena);
}

/* ---- memory ---- */

/* Elements of one layer's latent attention: every stage is kept, and kv_b_proj with its heads apart, and its parts. */
static double latent_elements(const tsr_forward *f, double n, double longest)
{
    const double heads = (double)f->heads, nope = (double)size_of(f, "qk_nope_head_dim", 0),
                 rope = (double)size_of(f, "qk_rope_head_dim", 0), v = (double)size_of(f, "v_head_dim", 0),
                 rank = (double)size_of(f, "kv_lora_rank", 0), q_rank = (double)size_of(f, "q_lora_rank", 0);
    const double query = 2 * q_rank + heads * (nope + 2 * rope + v), key = 2 * (rank + rope);
    return n * (query + key + 2 * heads * longest + 2 * (double)f->hidden) + 5 * heads * (nope + v) * rank;
}

static double grouped_elements(const tsr_forward *f, double n, double longest)
{
    const double q = (double)(f->heads * f->head_dim), kv = (double)(f->kv_heads * f->head_dim);
    return n * (2 * q + 2 * kv + (double)f->hidden) + f->threads * longest;
}

uint64_t tsr_forward_memory(const tsr_forward *f, size_t tokens, size_t longest)
{
    enum { AT_A_TIME = 64 /* positions whose logits are held */ };
    const double n = 2 * (double)tokens, hidden = (double)f->hidden;
    const double inner =
        (double)tsr_max_u64(size_of(f, "intermediate_size", 0),
                            size_of(f, "moe_intermediate_size", 0) * tsr_max_u64(1, size_of(f, "n_shared_experts", 1)));
    const double attention =
        f->latent ? latent_elements(f, n, (double)longest) : grouped_elements(f, n, (double)longest);
    const double mlp = n * (2 * inner + 2 * hidden), logits = 2.0 * (double)AT_A_TIME * (double)f->vocabulary;
    const double streams = 5 * n * hidden; /* before, behind and what was added; both models'; normed */
    return (uint64_t)(sizeof(double) * (streams + fmax(fmax(attention, mlp), logits)));
}

/* ---- weights ---- */

tsr_status tsr_forward_find(const tsr_forward *f, const tsr_weight **weight, tsr_err *err, const char *format, ...)
{
    char name[TSR_MAX_NAME];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    *weight = tsr_weights_find(f->side->weights, f->side->checkpoint, name);
    return *weight != NULL || err == NULL
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT, "%s: lacks '%s'", f->side->checkpoint->path, name);
}

tsr_status tsr_forward_vector(const tsr_forward *f, const char *name, size_t n, bool needed, double **values,
                              tsr_err *err)
{
    const tsr_weight *w;
    tsr_weight_reader reader = {0};
    tsr_view view;
    *values = NULL;
    TSR_TRY(tsr_forward_find(f, &w, needed ? err : NULL, "%s", name));
    if (w == NULL)
        return TSR_OK;
    TSR_TRY(tsr_linear_expect(f->side->checkpoint, w, n, 0, err));
    TSR_TRY(tsr_view_init(&view, f->side->checkpoint, w, err));
    *values = malloc(n * sizeof **values);
    tsr_status status = *values == NULL
                            ? tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", name)
                            : tsr_weight_reader_load(&reader, &view, &(tsr_piece){.rows = 1, .cols = n}, err);
    if (status == TSR_OK)
        tsr_weight_reader_row(&reader, 0, 0, n, *values);
    tsr_weight_reader_free(&reader);
    return status;
}

tsr_status tsr_forward_linear(const tsr_forward *f, const char *module, const double *x, size_t n, size_t rows,
                              size_t cols, double **y, tsr_err *err)
{
    char name[TSR_MAX_NAME];
    const tsr_weight *w;
    double *bias = NULL;
    *y = NULL;
    if (tsr_is_cancelled(f->cancel))
        return tsr_fail(err, TSR_E_CANCELLED, "stopped");
    TSR_TRY(tsr_forward_find(f, &w, err, "%s.weight", module));
    TSR_TRY(tsr_linear_expect(f->side->checkpoint, w, rows, cols, err));
    snprintf(name, sizeof name, "%s.bias", module);
    TSR_TRY(tsr_forward_vector(f, name, rows, false, &bias, err));
    *y = calloc(n * rows + 1, sizeof **y);
    for (size_t i = 0; bias != NULL && *y != NULL && i < n; i++)
        memcpy(*y + i * rows, bias, rows * sizeof **y);
    free(bias);
    if (*y == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu outputs of '%s'", n, module);
    const tsr_linear linear = {f->side->checkpoint, w, 0, cols, x, cols, n, *y, f->threads};
    return tsr_linear_run(&linear, err);
}

/* ---- the pass ---- */

void tsr_forward_norm(const tsr_forward *f, const double *x, size_t rows, size_t n, const double *gain, double *y)
{
    for (size_t i = 0; i < rows; i++)
        tsr_rms_norm(x + i * n, n, gain, f->eps, y + i * n);
}

tsr_status tsr_forward_embed(const tsr_forward *f, const tsr_tokens *tokens, double *x, tsr_err *err)
{
    const tsr_weight *w;
    tsr_weight_reader reader = {0};
    tsr_view view;
    TSR_TRY(tsr_forward_find(f, &w, err, "model.embed_tokens.weight"));
    TSR_TRY(tsr_linear_expect(f->side->checkpoint, w, f->vocabulary, f->hidden, err));
    tsr_status status = tsr_view_init(&view, f->side->checkpoint, w, err);
    for (size_t i = 0; status == TSR_OK && i < tokens->count; i++) {
        status = tsr_weight_reader_load(&reader, &view,
                                        &(tsr_piece){.row = tokens->ids[i], .rows = 1, .cols = f->hidden}, err);
        if (status == TSR_OK)
            tsr_weight_reader_row(&reader, 0, 0, f->hidden, x + i * f->hidden);
    }
    tsr_weight_reader_free(&reader);
    return status;
}

/* The norm called `name` of a layer, over x. */
static tsr_status layer_norm(const tsr_forward *f, size_t layer, const char *name, const double *x, size_t n, double *y,
                             tsr_err *err)
{
    char full[TSR_MAX_NAME];
    double *gain;
    snprintf(full, sizeof full, "model.layers.%zu.%s.weight", layer, name);
    const tsr_status status = tsr_forward_vector(f, full, f->hidden, true, &gain, err);
    if (status == TSR_OK)
        tsr_forward_norm(f, x, n, f->hidden, gain, y);
    free(gain);
    return status;
}

tsr_status tsr_forward_layer(const tsr_forward *f, size_t layer, const tsr_tokens *tokens, double *x, uint32_t *choices,
                             bool *routed, tsr_err *err)
{
    double *const normed = malloc((tokens->count * f->hidden + 1) * sizeof *normed);
    tsr_status status = TSR_OK;
    if (normed == NULL)
        return tsr_out_of_memory(err, "for hidden states");
    TSR_GOTO(layer_norm(f, layer, "input_layernorm", x, tokens->count, normed, err));
    TSR_GOTO(tsr_forward_attention(f, layer, tokens, normed, x, err));
    TSR_GOTO(layer_norm(f, layer, "post_attention_layernorm", x, tokens->count, normed, err));
    TSR_GOTO(tsr_forward_mlp(f, layer, normed, tokens->count, x, choices, routed, err));
out:
    free(normed);
    return status;
}

tsr_status tsr_forward_logits(const tsr_forward *f, const double *x, size_t n, double *logits, tsr_err *err)
{
    const tsr_weight *w;
    double *gain = NULL, *const normed = malloc((n * f->hidden + 1) * sizeof *normed);
    tsr_status status = TSR_OK;
    if (normed == NULL)
        return tsr_out_of_memory(err, "for hidden states");
    TSR_GOTO(tsr_forward_vector(f, "model.norm.weight", f->hidden, true, &gain, err));
    tsr_forward_norm(f, x, n, f->hidden, gain, normed);
    /* Even when the head is tied to the embedding, the file may hold it. */
    TSR_GOTO(tsr_forward_find(f, &w, NULL, "lm_head.weight"));
    if (w == NULL || is(f, "tie_word_embeddings", "true"))
        TSR_GOTO(tsr_forward_find(f, &w, err, "model.embed_tokens.weight"));
    TSR_GOTO(tsr_linear_expect(f->side->checkpoint, w, f->vocabulary, f->hidden, err));
    memset(logits, 0, n * f->vocabulary * sizeof *logits);
    const tsr_linear linear = {f->side->checkpoint, w, 0, f->hidden, normed, f->hidden, n, logits, f->threads};
    status = tsr_linear_run(&linear, err);
out:
    free(gain);
    free(normed);
    return status;
}
