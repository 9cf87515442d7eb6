/* Makes common decisions for fused layers and the experts of a layer, and checks block boundaries between joined
 * members. */
#include "quantize/policy/policy_groups.h"

#include "common/glob.h"
#include "formats/checkpoint/config.h"
#include "formats/names/fused.h"
#include "formats/names/model.h"
#include "quantize/policy/policy_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct joining {
    const tsr_checkpoint *c;
    const tsr_policy_options *o;
    tsr_model model;
    uint64_t key_rows; /* linear attention: rows of q and of k; 0: not stated in config.json */
    tsr_arena *arena;
    tsr_decision *decisions;
    tsr_err *err;
} joining;

static bool is_included(const joining *j, const tsr_tensor *t)
{
    return tsr_glob_find(j->o->include, j->o->n_include, t->name) != NULL;
}

static tsr_decision *decision_of(const joining *j, const tsr_tensor *t)
{
    return &j->decisions[t - j->c->tensors.items];
}

static tsr_status keep(const joining *j, const tsr_tensor *t, const char *reason)
{
    *decision_of(j, t) = (tsr_decision){TSR_KEEP, reason};
    return reason == NULL ? tsr_out_of_memory(j->err, NULL) : TSR_OK;
}

/* ---- members that are stored in one joined tensor ---- */

static bool is_within_a_block(const joining *j, uint64_t row)
{
    return row % j->o->block_rows != 0;
}

/* Finds the rows where members of a fused layer meet in one tensor, at most two; 0: none, or unknown. Loaders split
 * such a tensor and give each member its own rows of scales. So members, except the last, must end on a block
 * boundary. */
static void find_seams(const joining *j, const tsr_tensor *t, uint64_t seams[2], const char **what)
{
    const uint64_t rows = t->shape[t->rank - 2];
    seams[0] = seams[1] = 0;
    *what = "gate and up meet";
    if (tsr_glob_match("*gate_up_proj*", t->name) || tsr_glob_match("*.shared_mlp.input_linear.weight", t->name) ||
        tsr_glob_match("*.mlp.Wi.weight", t->name)) {
        seams[0] = rows / 2;
    } else if (tsr_glob_match("*.Wqkv.weight", t->name)) {
        *what = "q, k and v meet";
        seams[0] = rows / 3; /* k ends at twice that row */
    } else if (tsr_glob_match("*.qkv_proj.weight", t->name)) {
        const uint64_t q = j->model.heads * j->model.head_dim, kv = j->model.kv_heads * j->model.head_dim;
        *what = "q, k and v meet";
        if (q != 0 && rows == q + 2 * kv) {
            seams[0] = q;
            seams[1] = q + kv;
        }
    } else if (tsr_glob_match("*.in_proj_qkv.weight", t->name) && j->key_rows != 0 && rows > 2 * j->key_rows) {
        *what = "q, k and v meet";
        seams[0] = j->key_rows; /* k ends at twice that row, which is on a boundary if q's is */
    }
}

static tsr_status decide_seams(const joining *j, const tsr_tensor *t)
{
    uint64_t seams[2];
    const char *what;
    if (decision_of(j, t)->treatment != TSR_QUANTIZE || is_included(j, t))
        return TSR_OK;
    find_seams(j, t, seams, &what);
    for (int i = 0; i < 2; i++) {
        if (is_within_a_block(j, seams[i]))
            return keep(j, t,
                        tsr_arena_printf(j->arena, "%s at row %llu, inside a block of %u (--include overrides)", what,
                                         U64(seams[i]), j->o->block_rows));
    }
    return TSR_OK;
}

/* ---- fused layers ---- */

/* Keeps all members of a fused layer because of `cause`, and records the reason. */
static tsr_status keep_group(const joining *j, const tsr_tensor *const *members, size_t n, const tsr_tensor *cause,
                             const char *why)
{
    for (size_t i = 0; i < n; i++) {
        if (decision_of(j, members[i])->treatment != TSR_QUANTIZE)
            continue;
        TSR_TRY(keep(j, members[i],
                     members[i] == cause ? tsr_arena_printf(j->arena, "it is fused with others, and %s", why)
                                         : tsr_arena_printf(j->arena, "fused with %s, and %s", cause->name, why)));
    }
    return TSR_OK;
}

/* Decides one fused layer, identified by its first member. */
static tsr_status decide_group(const joining *j, const tsr_tensor *first)
{
    const tsr_tensor *members[TSR_FUSED_MEMBERS];
    const size_t n = tsr_fused_members(j->c, first, members);
    if (n == 1 || members[0] != first)
        return TSR_OK;
    for (size_t i = 0; i < n; i++) {
        if (decision_of(j, members[i])->treatment != TSR_QUANTIZE)
            return keep_group(j, members, n, members[i], "that one is kept");
    }
    for (size_t i = 0; i + 1 < n; i++) {
        if (!is_within_a_block(j, members[i]->shape[0]) || is_included(j, members[i]))
            continue;
        char why[160];
        snprintf(why, sizeof why,
                 "its %llu rows end inside a block of %u: loaders could not join the scales "
                 "(--include overrides)",
                 U64(members[i]->shape[0]), j->o->block_rows);
        return keep_group(j, members, n, members[i], why);
    }
    return TSR_OK;
}

/* ---- the experts of a layer ---- */

/* A matrix of a layer's experts. The names of one set of experts begin with the same `length` characters. */
typedef struct expert {
    const tsr_tensor *tensor;
    size_t length;
} expert;

/* Returns the length of a prefix like "model.layers.3.mlp.experts." of a name, also of a shared expert; 0: not an
 * expert. */
static size_t set_of_experts(const char *name)
{
    static const char *const kSets[] = {".experts.", ".shared_experts.", ".shared_expert.", ".shared_mlp."};
    for (size_t i = 0; i < sizeof kSets / sizeof *kSets; i++) {
        const char *const at = strstr(name, kSets[i]);
        if (at != NULL)
            return (size_t)(at - name) + strlen(kSets[i]);
    }
    return 0;
}

static int compare_sets(const expert *x, const expert *y)
{
    if (x->length != y->length)
        return x->length < y->length ? -1 : 1;
    return memcmp(x->tensor->name, y->tensor->name, x->length);
}

static int by_set(const void *a, const void *b)
{
    const expert *const x = a, *const y = b;
    const int sets = compare_sets(x, y);
    return sets != 0 ? sets : (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

static tsr_status decide_set(const joining *j, const expert *set, size_t n)
{
    const tsr_tensor *cause = NULL;
    for (size_t i = 0; i < n && cause == NULL; i++) {
        if (decision_of(j, set[i].tensor)->treatment != TSR_QUANTIZE)
            cause = set[i].tensor;
    }
    const char *const why =
        cause == NULL
            ? NULL
            : tsr_arena_printf(j->arena, "the experts of a layer are all quantized or all kept, and %s is kept: %s",
                               cause->name, decision_of(j, cause)->reason);
    for (size_t i = 0; cause != NULL && i < n; i++) {
        if (decision_of(j, set[i].tensor)->treatment == TSR_QUANTIZE)
            TSR_TRY(keep(j, set[i].tensor, why));
    }
    return TSR_OK;
}

/* Lists all matrices of experts, set by set. */
static tsr_status find_experts(const tsr_checkpoint *c, expert **experts, size_t *n, tsr_err *err)
{
    *n = 0;
    *experts = calloc(c->tensors.count + 1, sizeof **experts);
    if (*experts == NULL)
        return tsr_out_of_memory(err, NULL);
    for (size_t i = 0; i < c->tensors.count; i++) {
        const tsr_tensor *const t = &c->tensors.items[i];
        const size_t length = set_of_experts(t->name);
        if (length > 0 && t->rank >= 2 && tsr_dtype_is_weight_float((tsr_dtype)t->dtype) &&
            tsr_rule_for_all(t->name) == NULL)
            (*experts)[(*n)++] = (expert){t, length};
    }
    qsort(*experts, *n, sizeof **experts, by_set);
    return TSR_OK;
}

static tsr_status decide_experts(const joining *j)
{
    expert *experts;
    size_t n;
    TSR_TRY(find_experts(j->c, &experts, &n, j->err));
    tsr_status status = TSR_OK;
    for (size_t first = 0, end; status == TSR_OK && first < n; first = end) {
        for (end = first + 1; end < n && compare_sets(&experts[first], &experts[end]) == 0;)
            end++;
        status = decide_set(j, &experts[first], end - first);
    }
    free(experts);
    return status;
}

/* ---- groups with one decision ---- */

static uint32_t root_of(uint32_t *first, uint32_t i)
{
    while (first[i] != i)
        i = first[i] = first[first[i]];
    return i;
}

static void unite(uint32_t *first, uint32_t a, uint32_t b)
{
    a = root_of(first, a);
    b = root_of(first, b);
    first[a < b ? b : a] = a < b ? a : b;
}

tsr_status tsr_policy_together(const tsr_checkpoint *c, uint32_t *first, tsr_err *err)
{
    const tsr_tensor *const items = c->tensors.items, *members[TSR_FUSED_MEMBERS];
    expert *experts;
    size_t n;
    TSR_TRY(find_experts(c, &experts, &n, err));
    for (uint32_t i = 0; i < c->tensors.count; i++)
        first[i] = i;
    for (uint32_t i = 0; i < c->tensors.count; i++)
        unite(first, i, (uint32_t)((tsr_fused_members(c, &items[i], members), members[0]) - items));
    for (size_t i = 1; i < n; i++) {
        if (compare_sets(&experts[i - 1], &experts[i]) == 0)
            unite(first, (uint32_t)(experts[i - 1].tensor - items), (uint32_t)(experts[i].tensor - items));
    }
    for (uint32_t i = 0; i < c->tensors.count; i++)
        first[i] = root_of(first, i);
    free(experts);
    return TSR_OK;
}

/* ---- all groups ---- */

static uint64_t number(const tsr_checkpoint *c, const char *key)
{
    uint64_t value;
    return tsr_config_find_u64(c, key, &value) && value < UINT32_MAX ? value : 0;
}

tsr_status tsr_policy_join(const tsr_checkpoint *c, const tsr_policy_options *options, tsr_arena *arena,
                           tsr_decision *decisions, tsr_err *err)
{
    const joining j = {
        .c = c,
        .o = options,
        .model = tsr_model_read(c),
        .key_rows = number(c, "linear_num_key_heads") * number(c, "linear_key_head_dim"),
        .arena = arena,
        .decisions = decisions,
        .err = err,
    };
    for (size_t i = 0; i < c->tensors.count; i++)
        TSR_TRY(decide_seams(&j, &c->tensors.items[i]));
    for (size_t i = 0; i < c->tensors.count; i++)
        TSR_TRY(decide_group(&j, &c->tensors.items[i]));
    return decide_experts(&j);
}
