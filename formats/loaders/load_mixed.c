/* Rules for ModelOpt's MIXED_PRECISION: quantized_layers states the algorithm of each layer, and each loader looks up
 * layers in its own way. (modelopt.py of vLLM, modelopt_quant.py of SGLang: _resolve_quant_algo.) */
#include "formats/loaders/load_query.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 1200 };

/* One entry of quantized_layers. */
typedef struct layer {
    tsr_json_text name, algorithm; /* name without and algorithm with quotation marks */
} layer;

/* Sorted by name. */
typedef struct layers {
    layer *items;
    size_t count;
} layers;

static int compare(tsr_json_text name, const char *text, size_t size)
{
    const size_t least = name.size < size ? name.size : size;
    const int order = memcmp(name.data, text, least);
    return order != 0 ? order : (name.size > size) - (name.size < size);
}

static int by_name(const void *a, const void *b)
{
    const tsr_json_text other = ((const layer *)b)->name;
    return compare(((const layer *)a)->name, other.data, other.size);
}

/* Reads the entries. Returns false when memory is exhausted. */
static bool read_layers(layers *all, tsr_json_text object)
{
    tsr_json_text name, value;
    size_t n = 0;
    tsr_json_reader r = tsr_json_members(object);
    while (tsr_json_member(&r, &name, &value))
        n++;
    *all = (layers){.items = malloc((n + 1) * sizeof *all->items)};
    if (all->items == NULL)
        return false;
    r = tsr_json_members(object);
    while (tsr_json_member(&r, &name, &value)) {
        layer l = {.name = name};
        if (tsr_json_get(value, "quant_algo", &l.algorithm))
            all->items[all->count++] = l;
    }
    qsort(all->items, all->count, sizeof *all->items, by_name);
    return true;
}

/* Returns the first entry that is not less than `text`. */
static const layer *lower_bound(const layers *all, const char *text, size_t size)
{
    size_t low = 0, high = all->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (compare(all->items[middle].name, text, size) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < all->count ? &all->items[low] : NULL;
}

static const layer *find_exactly(const layers *all, const char *name)
{
    const layer *const l = lower_bound(all, name, strlen(name));
    return l != NULL && compare(l->name, name, strlen(name)) == 0 ? l : NULL;
}

/* Returns an entry of a submodule: its name begins with the module's name and a dot. */
static const layer *find_inside(const layers *all, const char *module)
{
    char stem[MAX_NAME + 1];
    const size_t size = (size_t)snprintf(stem, sizeof stem, "%s.", module);
    const layer *const l = lower_bound(all, stem, size);
    return l != NULL && l->name.size > size && memcmp(l->name.data, stem, size) == 0 ? l : NULL;
}

/* Returns an entry of a member of the fused layer. vLLM knows the members of all classes, SGLang of some. */
static const layer *find_member(const tsr_load_query *q, const layers *all, const tsr_linear *l)
{
    const layer *found = NULL;
    if (l->fused == NULL || l->part == TSR_PART_ROUTED_EXPERTS ||
        (q->loader == TSR_LOADER_SGLANG && !tsr_query_sglang_maps(q, l)))
        return NULL;
    for (size_t i = 0; found == NULL && i < l->n_members; i++)
        found = find_exactly(all, l->members[i]->module);
    return found;
}

/* Returns the entry by which the loader builds a layer; NULL: it builds an unquantized one. For routed experts without
 * an entry, vLLM uses any entry beside them: that of a shared expert. */
static const layer *find_layer(const tsr_load_query *q, const layers *all, const tsr_linear *l, const char *built)
{
    const layer *found = find_exactly(all, built);
    if (found == NULL)
        found = find_member(q, all, l);
    if (found == NULL)
        found = find_inside(all, built);
    const size_t size = tsr_query_experts_length(l);
    if (found != NULL || size == 0 || q->loader != TSR_LOADER_VLLM)
        return found;
    char parent[MAX_NAME];
    snprintf(parent, sizeof parent, "%s", built);
    char *const dot = strrchr(parent, '.');
    if (dot == NULL || strcmp(dot, ".experts") != 0)
        return NULL;
    *dot = '\0';
    return find_inside(all, parent);
}

static bool is_nvfp4(tsr_json_text algorithm)
{
    return tsr_json_is(algorithm, "\"NVFP4\"") || tsr_json_is(algorithm, "\"W4A16_NVFP4\"");
}

/* Returns true if the algorithm is one that Tessera knows and differs from the stored format. */
static bool is_other(const tsr_linear *l, tsr_json_text algorithm)
{
    const char *const kind = l->weight->kind->name;
    return is_nvfp4(algorithm) != (strcmp(kind, "nvfp4-modelopt") == 0) ||
           tsr_json_is(algorithm, "\"MXFP8\"") != (strcmp(kind, "mxfp8") == 0);
}

static void check_layer(const tsr_load_query *q, const layers *all, const tsr_linear *l)
{
    char built[MAX_NAME];
    tsr_modelopt_built_name(q, l, built, sizeof built);
    const layer *const found = find_layer(q, all, l, built);
    const int size = found == NULL ? 0 : (int)found->name.size;
    const char *const name = found == NULL ? "" : found->name.data;
    if (tsr_linear_is_quantized(l) && found == NULL)
        tsr_query_note(q, true, l->tensor->name, "quantized_layers", "add the name, as tessera quantize does",
                       "it is quantized, but quantized_layers has no '%s', the name under which this loader's class "
                       "of '%.40s' looks for it: the loader would read it as plain",
                       built, q->family);
    else if (tsr_linear_is_quantized(l) && is_other(l, found->algorithm))
        tsr_query_note(q, true, l->tensor->name, "quantized_layers", "state the algorithm with which it is stored",
                       "it is %s, but quantized_layers says %.*s for '%.*s', which this loader follows",
                       l->weight->kind->title, (int)found->algorithm.size, found->algorithm.data, size, name);
    else if (!tsr_linear_is_quantized(l) && found != NULL && !tsr_modelopt_excludes(q, l))
        tsr_query_note(q, true, l->tensor->name, "quantized_layers",
                       "list the name that the loader uses under ignore and exclude_modules",
                       "it is %s, but because of '%.*s' in quantized_layers this loader expects '%s' to be quantized",
                       tsr_dtype_name((tsr_dtype)l->tensor->dtype), size, name, built);
    if (tsr_linear_is_quantized(l) && found != NULL)
        tsr_modelopt_check_layer(q, l, found->algorithm);
}

/* Checks for an NVFP4 layer: SGLang looks for one before it recognizes a checkpoint as ModelOpt's. */
static void check_any_nvfp4(const tsr_load_query *q, const layers *all)
{
    for (size_t i = 0; i < all->count; i++) {
        if (is_nvfp4(all->items[i].algorithm))
            return;
    }
    tsr_query_note(q, true, NULL, "quantized_layers",
                   "unless it is a Llama, `tessera convert --to mxfp8 --dialect deepseek` writes a supported format",
                   "no layer is NVFP4 or W4A16_NVFP4: this loader then reads MIXED_PRECISION as W4AFP8");
}

void tsr_rule_mixed(const tsr_load_query *q)
{
    tsr_json_text object;
    layers all;
    if (!q->mixed || !tsr_query_method(q, "modelopt") || !tsr_json_get(q->config, "quantized_layers", &object))
        return;
    if (!read_layers(&all, object)) {
        q->issues->failed = true;
        return;
    }
    if (q->loader == TSR_LOADER_SGLANG)
        check_any_nvfp4(q, &all);
    for (size_t i = 0; i < q->linears->count; i++) {
        if (tsr_query_reads(q, &q->linears->items[i]))
            check_layer(q, &all, &q->linears->items[i]);
    }
    free(all.items);
}
