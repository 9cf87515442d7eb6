/* Computes the memory of a pass from the sizes of its model. */
#include "verify/forward/forward_parts.h"

#include "common/checked.h"
#include "formats/names/coding.h"
#include "formats/names/shared_input.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

size_t tsr_forward_chunk(const tsr_forward *f, size_t positions)
{
    enum { LOGITS_AT_A_TIME = 1 << 26, LEAST = 64 }; /* the head is decoded once for each chunk */
    return (size_t)tsr_min_u64(positions, tsr_max_u64(LOGITS_AT_A_TIME / f->vocabulary, LEAST));
}

/* Returns the elements of one layer's latent attention. Keys and values are expanded for a few heads at a time. */
static double latent_elements(const tsr_forward *f, double n)
{
    const double heads = (double)f->heads, nope = (double)tsr_forward_size(f, "qk_nope_head_dim", 0),
                 rope = (double)tsr_forward_size(f, "qk_rope_head_dim", 0),
                 v = (double)tsr_forward_size(f, "v_head_dim", 0),
                 rank = (double)tsr_forward_size(f, "kv_lora_rank", 0),
                 q_rank = (double)tsr_forward_size(f, "q_lora_rank", 0);
    const double query = 2 * q_rank + heads * (nope + rope + v), key = 2 * (rank + rope) + 16 * (nope + rope + v);
    return n * (query + key + 2 * (double)f->hidden) + 5 * heads * (nope + v) * rank;
}

static double grouped_elements(const tsr_forward *f, double n)
{
    const double q = (double)(f->heads * tsr_max_u64(f->head_dim, f->full_dim)),
                 kv = (double)tsr_max_u64(f->kv_heads * f->head_dim, f->full_kv_heads * f->full_dim);
    return n * (2 * q + 2 * kv + 2 * (double)f->hidden);
}

/* Returns the elements of one layer of compressed attention, with the projections before its compressors. */
static double compressed_elements(const tsr_forward *f, double n)
{
    const struct tsr_compression *const c = &f->compression;
    const double heads = (double)f->heads, dim = (double)f->head_dim;
    return n * (2 * (double)c->q_rank + 2 * heads * dim + 8 * dim + (double)(c->out_groups * c->rank) +
                2 * (double)f->hidden);
}

/* Returns the elements of one recurrent layer: its projections, their parts, and the parts after the convolution. */
static double recurrent_elements(const tsr_forward *f, double n)
{
    const double kimi =
        (double)tsr_forward_size(f, "linear_attn_config.num_heads", tsr_forward_size(f, "linear_num_heads", 0)) *
        (double)tsr_forward_size(f, "linear_attn_config.head_dim", tsr_forward_size(f, "linear_head_dim", 0));
    const double keys = (double)tsr_forward_size(f, "linear_num_key_heads", 0) *
                        (double)tsr_forward_size(f, "linear_key_head_dim", 0),
                 values = (double)tsr_forward_size(f, "linear_num_value_heads", 0) *
                          (double)tsr_forward_size(f, "linear_value_head_dim", 0);
    const double inner = (double)tsr_forward_size(f, "mamba_expand", 2) * (double)f->hidden,
                 heads = (double)tsr_forward_size(f, "mamba_num_heads", 0) *
                         (double)tsr_forward_size(f, "mamba_head_dim", 0),
                 groups = (double)tsr_forward_size(f, "mamba_n_groups", tsr_forward_size(f, "n_groups", 0)) *
                          (double)tsr_forward_size(f, "mamba_d_state", tsr_forward_size(f, "ssm_state_size", 0));
    return n * (8 * kimi + 6 * keys + 6 * values + (groups > 0 ? 6 * fmax(inner, heads) + 6 * groups : 0) +
                2 * (double)f->hidden);
}

/* Returns the elements that an indexer allocates: its queries, keys and weights, the scores of some queries for each
 * head, and one bit for each token that a query may choose. */
static double indexer_elements(const tsr_forward *f, double n, size_t longest)
{
    const struct tsr_indexer *const i = &f->indexer;
    if (i->kept == 0 || longest <= i->kept * i->block)
        return 0;
    const double heads = (double)i->heads, groups = (double)i->groups, dim = (double)i->dim;
    const double scores = (double)tsr_indexer_step(f, longest) * (double)longest * (heads + 2 * groups);
    return n * (heads * (dim + 1) + 2 * dim) + scores + n * groups * (double)longest / 64;
}

/* Returns the elements of the larger half of a layer, for n tokens. */
static double half_elements(const tsr_forward *f, double n, size_t longest)
{
    enum { THREADS = 8 };
    const double hidden = (double)f->hidden;
    const double inner = (double)tsr_max_u64(
        tsr_max_u64(tsr_forward_size(f, "intermediate_size", 0), tsr_forward_size(f, "dense_intermediate_size", 0)),
        tsr_forward_size(f, "moe_intermediate_size", 0) * tsr_max_u64(1, tsr_forward_size(f, "n_shared_experts", 1)));
    const double stack = f->family->moe->alternating ? 4 * inner * hidden : 0;
    const double attention = fmax((f->traits & TSR_LATENT) != 0    ? latent_elements(f, n)
                                  : (f->traits & TSR_STREAMS) != 0 ? compressed_elements(f, n)
                                                                   : grouped_elements(f, n),
                                  recurrent_elements(f, n)) +
                             indexer_elements(f, n, longest) + (double)THREADS * (double)longest;
    return fmax(attention, n * (3 * inner + 3 * hidden) + stack);
}

uint64_t tsr_forward_states_memory(const tsr_forward *f, size_t tokens)
{
    const double logits = 2.0 * (double)tsr_forward_chunk(f, tokens) * (double)f->vocabulary;
    return (uint64_t)(sizeof(double) * (12 * (double)tokens * (double)f->width + logits));
}

uint64_t tsr_forward_layer_memory(const tsr_forward *f, size_t tokens, size_t longest)
{
    const double n = (double)tokens,
                 streams = 3 * n * (double)f->width; /* before a layer, behind its norm, its output */
    return (uint64_t)((double)f->ops->element * (streams + half_elements(f, n, longest)));
}

/* ---- statistics of inputs ---- */

/* The products of an input of a layer. */
typedef struct layer_input {
    uint64_t layer, name; /* name: a hash */
    double elements;
    bool alone; /* the input of one expert, whose products are finished before those of the next one begin */
} layer_input;

static int compare(const void *x, const void *y)
{
    const layer_input *const a = x, *const b = y;
    return a->layer != b->layer ? (a->layer < b->layer ? -1 : 1)
           : a->name != b->name ? (a->name < b->name ? -1 : 1)
                                : 0;
}

/* Returns the elements of the products that are held at a time: the most of any layer. */
static double products_held(layer_input *inputs, size_t n)
{
    double most = 0, held = 0, alone = 0;
    qsort(inputs, n, sizeof *inputs, compare);
    for (size_t i = 0; i < n; i++) {
        const layer_input *const in = &inputs[i];
        const bool next = i == 0 || in->layer != in[-1].layer;
        held = next ? 0 : held;
        alone = next ? 0 : alone;
        if (in->alone)
            alone = fmax(alone, in->elements);
        else if (next || in->name != in[-1].name)
            held += in->elements;
        most = fmax(most, held + alone);
    }
    return most;
}

/* Returns false if the weight is not that of a linear layer of a layer that is run. */
static bool find_input(const tsr_forward *f, const tsr_weight *w, layer_input *input, double *channels)
{
    const tsr_tensor *const t = w->values;
    const char *const layers = t->name + strlen(f->root);
    static const char kLayers[] = "layers.";
    tsr_shared_input shared;
    if (strncmp(t->name, f->root, strlen(f->root)) != 0 || strncmp(layers, kLayers, strlen(kLayers)) != 0 ||
        t->rank < 2 || (w->coding == TSR_PLAIN && !tsr_dtype_is_weight_float((tsr_dtype)t->dtype)) ||
        !tsr_shared_input_of(t->name, tsr_module_length(t->name), &shared))
        return false;
    const bool across = w->coding == TSR_PLAIN && t->rank > 2 && f->family->moe->alternating;
    const uint64_t cols = w->coding != TSR_PLAIN ? w->cols : t->shape[t->rank - (across ? 2 : 1)],
                   ld = tsr_round_up(cols, TSR_GRAM_TILE);
    *channels = (double)cols * (double)(w->coding != TSR_PLAIN ? w->matrices : t->rank > 2 ? t->shape[0] : 1);
    *input = (layer_input){.layer = strtoul(layers + strlen(kLayers), NULL, 10),
                           .name = XXH3_64bits(shared.name, strlen(shared.name)),
                           .elements = (double)ld * (double)ld,
                           .alone = shared.expert && !shared.common};
    return input->layer < f->layers;
}

tsr_status tsr_forward_statistics_memory(const tsr_forward *f, uint64_t *bytes, tsr_err *err)
{
    const tsr_weights *const weights = f->side->weights;
    double sums = 0, channels;
    size_t n = 0;
    *bytes = 0;
    if (f->collector == NULL)
        return TSR_OK;
    layer_input *const inputs = malloc((weights->count + 1) * sizeof *inputs);
    if (inputs == NULL)
        return tsr_out_of_memory(err, "for statistics");
    for (size_t i = 0; i < weights->count; i++) {
        if (!find_input(f, &weights->items[i], &inputs[n], &channels))
            continue;
        sums += channels * sizeof(double);
        n++;
    }
    const double products = f->collector->products == NULL ? 0 : products_held(inputs, n) * (double)f->ops->element;
    free(inputs);
    *bytes = (uint64_t)(sums + products);
    return TSR_OK;
}
