/* Rules about the experts of one layer, routers, and the small projections of linear attention. */
#include "formats/loaders/load_query.h"

#include "common/glob.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- experts ---- */

static int by_module(const void *a, const void *b)
{
    return strcmp((*(const tsr_linear *const *)a)->module, (*(const tsr_linear *const *)b)->module);
}

/* Returns the layers that the loader reads, sorted by name, so that the layers of one decoder block are adjacent even
 * if they are in different files. Returns NULL when memory is exhausted; then `issues` is marked as failed. */
static const tsr_linear **sorted(const tsr_load_query *q, size_t *count)
{
    const tsr_linear **const all = malloc((q->linears->count + 1) * sizeof *all);
    *count = 0;
    q->issues->failed = q->issues->failed || all == NULL;
    for (size_t i = 0; all != NULL && i < q->linears->count; i++) {
        if (tsr_query_reads(q, &q->linears->items[i]))
            all[(*count)++] = &q->linears->items[i];
    }
    if (all != NULL)
        qsort(all, *count, sizeof *all, by_module);
    return all;
}

static bool is_alike(const tsr_linear *a, const tsr_linear *b)
{
    if (tsr_linear_is_quantized(a) != tsr_linear_is_quantized(b) || a->zero_points != b->zero_points)
        return false;
    return a->scale == NULL || b->scale == NULL ||
           (a->weight->kind == b->weight->kind && a->weight->bits == b->weight->bits);
}

/* Checks that all experts of a layer have the same format, because engines run them as one layer. (vLLM stops at a
 * mixture; SGLang leaves the memory of the others uninitialized.) */
static void check_together(const tsr_load_query *q, const tsr_linear *first, const tsr_linear *l)
{
    if (is_alike(first, l))
        return;
    tsr_query_note(q, true, l->tensor->name, "experts together",
                   "quantize all experts of a layer or none, as tessera quantize does",
                   "it is %s and '%s' %s; loaders read all experts of a layer in one format",
                   tsr_linear_is_quantized(l) ? "quantized" : "plain", first->tensor->name,
                   tsr_linear_is_quantized(first) == tsr_linear_is_quantized(l) ? "in another form"
                   : tsr_linear_is_quantized(first)                             ? "is quantized"
                                                                                : "is plain");
}

/* Checks the three matrices of a shared expert: SGLang applies the format of the first to all of them. */
static void check_shared(const tsr_load_query *q, const tsr_linear *first, const tsr_linear *l)
{
    if (q->loader == TSR_LOADER_SGLANG && tsr_linear_is_quantized(l) != tsr_linear_is_quantized(first))
        tsr_query_note(q, true, l->tensor->name, "experts together",
                       "quantize all of a shared expert or none, as tessera quantize does",
                       "it is %s and '%s' is not; the loader takes the format of a shared expert from its first "
                       "matrix",
                       tsr_linear_is_quantized(l) ? "quantized" : "plain", first->tensor->name);
}

void tsr_rule_experts(const tsr_load_query *q)
{
    size_t count, stem = 0;
    const tsr_linear **const all = sorted(q, &count), *first = NULL;
    for (size_t i = 0; all != NULL && i < count; i++) {
        const tsr_linear *const l = all[i];
        const bool shared = l->part == TSR_PART_SHARED_EXPERTS && strstr(l->module, "shared_experts.") != NULL;
        const size_t own = shared ? (size_t)(l->leaf - l->module) : tsr_query_experts_length(l);
        if (own == 0)
            continue;
        if (first == NULL || own != stem || strncmp(first->module, l->module, stem) != 0) {
            first = l;
            stem = own;
        } else if (shared) {
            check_shared(q, first, l);
        } else {
            check_together(q, first, l);
        }
    }
    free(all);
}

/* ---- other layers ---- */

/* Checks the router, which vLLM builds as a quantized layer for these families unless the ignore list names it. */
void tsr_rule_router(const tsr_load_query *q)
{
    const tsr_weights *const all = q->s->weights;
    if (q->config.data == NULL || all->n_scaled == 0 || !tsr_query_family(q, " qwen3_moe lfm2_moe ") ||
        (!tsr_query_compressed_tensors(q) && !tsr_query_fp8(q)))
        return;
    for (size_t i = 0; i < all->count; i++) {
        const tsr_tensor *const t = all->items[i].values;
        char module[1200];
        if (!tsr_glob_match("*.mlp.gate.weight", t->name) || all->items[i].scale != NULL)
            continue;
        snprintf(module, sizeof module, "%.*s", (int)tsr_module_length(t->name), t->name);
        if (tsr_ignore_list_find(q->ignored, tsr_query_compressed_tensors(q) ? TSR_MATCH_REGEX : TSR_MATCH_EXACT,
                                 module) == NULL)
            tsr_query_note(q, true, t->name, "ignore list",
                           "list it under modules_to_not_convert (compressed-tensors: ignore)",
                           "the router is %s but config.json does not list it: the loader expects it to be quantized",
                           tsr_dtype_name((tsr_dtype)t->dtype));
    }
}

/* Checks the small projections of linear attention, of which each rank gets only a few rows. */
void tsr_rule_linear_attention(const tsr_load_query *q)
{
    static const char kSmall[] = " in_proj_ba in_proj_a in_proj_b ";
    for (size_t i = 0; i < q->linears->count; i++) {
        const tsr_linear *const l = &q->linears->items[i];
        char word[64];
        snprintf(word, sizeof word, " %.60s ", l->leaf);
        if (tsr_linear_is_fp8(l) && l->block.rows != 0 && strstr(kSmall, word) != NULL &&
            l->rows / 2 % l->block.rows != 0)
            tsr_query_note(q, true, l->tensor->name, "blocks", "keep it in BF16, as tessera quantize does",
                           "%llu rows hold two parts of %llu, and a part ends inside a block of %llu", U64(l->rows),
                           U64(l->rows / 2), U64(l->block.rows));
    }
}
