/* Plans one directory per tensor-parallel rank, and the checkpoint that joins the ranks again. */
#include "convert/plans/ranks/tp_plan.h"

#include "common/checked.h"
#include "convert/ops/slice_op.h"
#include "convert/plan/plan_names.h"
#include "convert/plans/ranks/tp_cut.h"
#include "formats/checkpoint/config.h"
#include "formats/checkpoint/rank_file.h"
#include "formats/json/json.h"
#include "formats/json/json_write.h"
#include "formats/names/absorbed.h"

#include <stdlib.h>
#include <string.h>

#define MANIFEST TSR_RANK_NAME

/* ---- cutting ---- */

/* The first tensor that a rule cuts between heads, and the size of the dimension. */
typedef struct first_cut {
    const char *pattern, *name;
    uint64_t size;
} first_cut;

typedef struct cutting {
    const tsr_checkpoint *source;
    const tsr_tp_options *options;
    tsr_weights weights;
    tsr_tp_cut *shards;  /* [weights.count] */
    first_cut heads[32]; /* more than there are rules for heads */
} cutting;

static tsr_status add_notes(tsr_plan *plan, const tsr_weight *w, const tsr_tp_cut *shard, const char *reason,
                            tsr_err *err)
{
    TSR_TRY(tsr_plan_add_note(plan, w->data, shard->data_rows == 0 ? "replicate" : "cut", reason, err));
    if (w->scale != NULL)
        TSR_TRY(
            tsr_plan_add_note(plan, w->scale, shard->scale_rows == 0 ? "replicate" : "cut", "with its weight", err));
    return w->input_scale == NULL ? TSR_OK : tsr_plan_add_note(plan, w->input_scale, "replicate", "input scale", err);
}

/* Rejects layers of different sizes: their numbers of heads may differ, and a key of config.json states one. */
static tsr_status check_heads(cutting *c, const tsr_tensor *t, const tsr_tp_rule *rule, tsr_err *err)
{
    const uint64_t size = t->shape[t->rank - (rule->how == TSR_TP_COLUMNS || t->rank == 1 ? 1 : 2)];
    first_cut *first = c->heads;
    while (first->pattern != NULL && first->pattern != rule->pattern)
        first++;
    if (first->pattern == NULL)
        *first = (first_cut){rule->pattern, t->name, size};
    return first->size == size
               ? TSR_OK
               : tsr_fail(err, TSR_E_UNSUPPORTED,
                          "%s: '%s' has another size than '%s': layers with different heads cannot be cut",
                          c->source->files[t->file].path, t->name, first->name);
}

static tsr_status decide_one(cutting *c, tsr_plan *plan, const tsr_weight *w, tsr_tp_cut *shard, tsr_err *err)
{
    static const char *const kHeads[] = {
        [TSR_TP_HEADS] = "num_attention_heads", [TSR_TP_KV_HEADS] = "num_key_value_heads"};
    static const char *const kReasons[] = {[TSR_TP_REPLICATE] = "every rank needs all of it",
                                           [TSR_TP_ROWS] = "output features",
                                           [TSR_TP_GATE_UP] = "output features, gate and up each",
                                           [TSR_TP_COLUMNS] = "input features"};
    const tsr_checkpoint *const s = c->source;
    const tsr_tp_rule rule = tsr_tp_rule_of(w->data, &plan->arena);
    const bool by_heads = rule.unit != TSR_TP_FEATURES && rule.how != TSR_TP_REPLICATE;
    uint64_t heads = 0;
    if (w->data->rank == 3 && tsr_absorbed_find(w->data->name) != NULL) {
        TSR_TRY(tsr_shard_part(s, w, c->options->ranks, shard, err));
        return add_notes(plan, w, shard, "heads of an absorbed kv_b_proj", err);
    }
    if (rule.how == TSR_TP_UNKNOWN)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: '%s': cannot cut this tensor, since the way loaders cut it is not known",
                        s->files[w->data->file].path, w->data->name);
    if (by_heads && !tsr_config_find_u64(s, kHeads[rule.unit], &heads)) {
        TSR_TRY(tsr_config_check_types(s, err));
        return tsr_fail(err, TSR_E_FORMAT, "%s: no %s in " TSR_CONFIG_NAME ", which cutting '%s' needs", s->path,
                        kHeads[rule.unit], w->data->name);
    }
    if (by_heads)
        TSR_TRY(check_heads(c, w->data, &rule, err));
    TSR_TRY(tsr_refuse_turned_stack(s, w->data, err));
    TSR_TRY(tsr_shard_weight(s, w, rule.how, heads, rule.unit == TSR_TP_KV_HEADS, c->options->ranks, shard, err));
    return add_notes(plan, w, shard, kReasons[rule.how], err);
}

/* If both parts of an absorbed kv_b_proj share one scale, it is written with the first part. */
static void share_scales(tsr_weights *weights)
{
    for (size_t i = 0; i < weights->count; i++) {
        tsr_weight *const w = &weights->items[i];
        for (size_t k = 0; k < i && w->part != NULL && w->one_scale; k++) {
            if (weights->items[k].part != NULL && weights->items[k].scale == w->scale)
                w->scale = NULL;
        }
    }
}

static tsr_status decide(cutting *c, tsr_plan *plan, tsr_err *err)
{
    share_scales(&c->weights);
    for (size_t i = 0; i < c->weights.count; i++)
        TSR_TRY(decide_one(c, plan, &c->weights.items[i], &c->shards[i], err));
    return TSR_OK;
}

/* Writes the data that joining needs (see tp_plan.h). */
static tsr_status write_restoration(tsr_text *t, const cutting *c, tsr_err *err)
{
    const tsr_checkpoint *const s = c->source;
    tsr_arena scratch = {0};
    const char *text;
    size_t size;
    tsr_status status = TSR_OK;
    tsr_json_member_array(t, "shards", false);
    for (size_t i = 0; i < s->n_files && status == TSR_OK; i++) {
        status = tsr_checkpoint_header(s, i, &scratch, &text, &size, err);
        if (status != TSR_OK)
            break;
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "name", s->files[i].name);
        tsr_json_member_u64(t, "bytes", s->files[i].size);
        tsr_json_key(t, "header");
        tsr_json_string(t, text + 8); /* NUL-terminated, because the arena is zeroed */
        tsr_json_end_object(t);
        tsr_arena_free(&scratch);
    }
    tsr_json_end_array(t);
    if (status == TSR_OK && s->index_path != NULL) {
        status = tsr_checkpoint_index(s, &scratch, &text, &size, err);
        tsr_json_member_string(t, "index_name", strrchr(s->index_path, '/') + 1);
        tsr_json_member_string(t, "index", status == TSR_OK ? text : "");
    }
    tsr_arena_free(&scratch);
    tsr_json_member_object(t, "cuts", false);
    for (size_t i = 0; i < c->weights.count; i++) {
        const tsr_weight *const w = &c->weights.items[i];
        if (c->shards[i].data_rows > 0)
            tsr_json_member_u64s(t, w->data->name, (const uint64_t[]){c->shards[i].data_rows, c->shards[i].parts}, 2);
        if (c->shards[i].scale_rows > 0)
            tsr_json_member_u64s(t, w->scale->name, (const uint64_t[]){c->shards[i].scale_rows, c->shards[i].parts}, 2);
    }
    tsr_json_end_object(t);
    return status;
}

static tsr_status plan_manifest(tsr_plan *plan, const cutting *c, const char *folder, uint32_t rank, tsr_err *err)
{
    tsr_text t = {0};
    tsr_json_begin_object(&t, false);
    tsr_json_member_string(&t, "schema", "tessera-tp/1");
    tsr_json_member_u64(&t, "rank", rank);
    tsr_json_member_u64(&t, "ranks", c->options->ranks);
    const tsr_status status = rank == 0 ? write_restoration(&t, c, err) : TSR_OK;
    tsr_json_end_document(&t);
    return tsr_plan_take_text(plan, folder, MANIFEST, &t, status, err);
}

static tsr_status plan_rank(tsr_plan *plan, const cutting *c, uint32_t rank, tsr_err *err)
{
    const tsr_checkpoint *const s = c->source;
    const char *const folder = tsr_arena_printf(&plan->arena, "rank-%u/", rank);
    if (folder == NULL)
        return tsr_out_of_memory(err, "while planning");
    for (size_t i = 0; i < c->weights.count; i++) {
        const tsr_weight *const w = &c->weights.items[i];
        TSR_TRY(tsr_plan_shard(plan, w, &c->shards[i], w->data->name, w->scale == NULL ? NULL : w->scale->name,
                               c->options->ranks, rank, err));
        if (w->input_scale != NULL)
            TSR_TRY(tsr_plan_copy(plan, w->input_scale, w->input_scale->name, err));
    }
    const size_t first = plan->n_files;
    TSR_TRY(tsr_plan_pack(plan, folder, c->options->max_shard_bytes, err));
    tsr_plan_begin_sequence(plan, first);
    TSR_TRY(tsr_plan_side_files(plan, folder, "*", NULL, err));
    TSR_TRY(tsr_plan_index(plan, folder, false, err));
    TSR_TRY(plan_manifest(plan, c, folder, rank, err));
    return tsr_plan_text_file(plan, folder, TSR_CONFIG_NAME, s->config, s->config_size, err);
}

static tsr_status plan_ranks(tsr_plan *plan, cutting *c, tsr_err *err)
{
    plan->command = tsr_arena_printf(&plan->arena, "convert --to tp --tp %u --max-shard-size %llu", c->options->ranks,
                                     U64(c->options->max_shard_bytes));
    c->shards = calloc(c->weights.count + 1, sizeof *c->shards);
    plan->advice = "for engines that load slices: vLLM, SGLang and transformers cut the whole checkpoint themselves; "
                   "convert --merge joins the ranks again";
    plan->next = "tessera inspect DST/rank-0";
    if (plan->command == NULL || c->shards == NULL)
        return tsr_out_of_memory(err, "while planning");
    TSR_TRY(tsr_plan_warn_of(plan, &c->weights, err));
    TSR_TRY(decide(c, plan, err));
    for (uint32_t k = 0; k < c->options->ranks; k++)
        TSR_TRY(plan_rank(plan, c, k, err));
    return tsr_plan_finish(plan, err);
}

tsr_status tsr_tp_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_tp_options *options, tsr_err *err)
{
    cutting c = {.source = *source, .options = options};
    *plan = tsr_plan_begin(source, 1);
    if (options->ranks == 0 || options->ranks > TSR_MAX_RANKS)
        return tsr_fail(err, TSR_E_USAGE, "--tp: a number of ranks from 1 to %d", TSR_MAX_RANKS);
    if (c.source->config == NULL)
        return tsr_fail(err, TSR_E_USAGE, "%s: cutting needs a directory with its " TSR_CONFIG_NAME, c.source->path);
    TSR_TRY(tsr_weights_pair(&c.weights, *source, (tsr_block){0, 0}, err));
    tsr_status status = tsr_weights_refuse_kinds(&c.weights, *source, TSR_FAMILY_FP8, "cutting", err);
    if (status == TSR_OK)
        status = plan_ranks(plan, &c, err);
    tsr_weights_free(&c.weights);
    free(c.shards);
    return tsr_plan_ended(plan, status);
}

/* ---- joining ---- */

typedef struct joining {
    const tsr_checkpoint *const *ranks;
    size_t n;
    tsr_side_text manifest; /* that of rank 0 */
    tsr_slicing *cuts;      /* [tensors of rank 0]; rows = 0: not cut */
    uint64_t joined;
} joining;

static tsr_status read_manifest(const tsr_checkpoint *c, tsr_arena *arena, tsr_side_text *manifest, tsr_err *err)
{
    TSR_TRY(tsr_checkpoint_side_json(c, MANIFEST, arena, manifest, err));
    return manifest->text != NULL
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT, "%s: no " MANIFEST ": not a rank that 'tessera convert --to tp' made",
                          c->path);
}

/* Checks the rank and the number of ranks that each directory states, and its config.json. */
static tsr_status check_ranks(const joining *j, tsr_err *err)
{
    for (size_t k = 0; k < j->n; k++) {
        tsr_arena scratch = {0};
        tsr_side_text m = j->manifest;
        uint64_t rank = UINT64_MAX, ranks = 0;
        tsr_status status = k == 0 ? TSR_OK : read_manifest(j->ranks[k], &scratch, &m, err);
        if (status == TSR_OK && (!tsr_json_find_u64(m.text, m.size, "rank", &rank) ||
                                 !tsr_json_find_u64(m.text, m.size, "ranks", &ranks) || rank != k || ranks != j->n))
            status = tsr_fail(err, TSR_E_MISMATCH,
                              "%s: rank %zu of %zu was expected here, but its " MANIFEST " says %llu of %llu",
                              j->ranks[k]->path, k, j->n, U64(rank), U64(ranks));
        if (status == TSR_OK && (j->ranks[k]->config_size != j->ranks[0]->config_size ||
                                 memcmp(j->ranks[k]->config, j->ranks[0]->config, j->ranks[0]->config_size) != 0))
            status =
                tsr_fail(err, TSR_E_MISMATCH, "%s: its " TSR_CONFIG_NAME " is not that of rank 0", j->ranks[k]->path);
        tsr_arena_free(&scratch);
        TSR_TRY(status);
    }
    return TSR_OK;
}

/* [rows, parts] */
static tsr_status read_cut(tsr_json_reader *r, tsr_slicing *cut, tsr_err *err)
{
    uint64_t values[2] = {0};
    bool more;
    TSR_TRY(tsr_json_enter_array(r, err));
    for (size_t i = 0;; i++) {
        TSR_TRY(tsr_json_next_element(r, &more, err));
        if (!more || i == 2)
            break;
        TSR_TRY(tsr_json_read_u64(r, &values[i], err));
    }
    *cut = (tsr_slicing){.rows = values[0], .parts = (uint32_t)values[1]};
    return more || values[0] == 0 || values[1] == 0 || values[1] > TSR_MAX_RANKS
               ? tsr_fail(err, TSR_E_FORMAT, MANIFEST ": each entry of \"cuts\" must be [rows, parts]")
               : TSR_OK;
}

static tsr_status read_cuts(joining *j, tsr_err *err)
{
    const tsr_checkpoint *const c = j->ranks[0];
    tsr_json_text cuts, key;
    tsr_arena names = {0};
    bool more;
    if (!tsr_json_find(j->manifest.text, j->manifest.size, "cuts", &cuts))
        return tsr_fail(err, TSR_E_FORMAT, "%s/" MANIFEST ": no 'cuts'", c->path);
    tsr_json_reader r = tsr_json_open(MANIFEST, cuts.data, cuts.size);
    tsr_status status = tsr_json_enter_object(&r, err);
    while (status == TSR_OK && (status = tsr_json_next_member(&r, &key, &more, err)) == TSR_OK && more) {
        const char *name;
        tsr_slicing cut;
        status = tsr_json_decode(&r, key, &names, &name, err);
        if (status == TSR_OK)
            status = read_cut(&r, &cut, err);
        if (status != TSR_OK)
            break;
        const tsr_tensor *const t = tsr_checkpoint_find(c, name);
        if (t == NULL || t->bytes % cut.rows != 0 || j->n % cut.parts != 0)
            status = tsr_fail(err, TSR_E_MISMATCH, "%s: '%s' is missing or differs from " MANIFEST, c->path, name);
        else
            j->cuts[t - c->tensors.items] = cut;
    }
    tsr_arena_free(&names);
    return status;
}

/* Finds the part of rank k, as an input of the plan. */
static tsr_status find_part(tsr_plan *plan, const joining *j, size_t k, const tsr_tensor *first,
                            const tsr_tensor **part, tsr_err *err)
{
    const tsr_tensor *const t = tsr_checkpoint_find(j->ranks[k], first->name);
    if (t == NULL || t->dtype != first->dtype || t->bytes != first->bytes)
        return tsr_fail(err, TSR_E_MISMATCH, "%s: '%s' is missing or differs from %s; these are not ranks of one cut",
                        j->ranks[k]->path, first->name, j->ranks[0]->path);
    tsr_tensor *const copy = tsr_plan_tensor(plan, t);
    if (copy == NULL)
        return tsr_out_of_memory(err, "while planning");
    copy->source = (uint16_t)k;
    *part = copy;
    return TSR_OK;
}

static tsr_status plan_tensor(tsr_plan *plan, joining *j, const tsr_tensor *whole, tsr_err *err)
{
    const tsr_tensor *const first = tsr_checkpoint_find(j->ranks[0], whole->name);
    const tsr_tensor *parts[TSR_MAX_RANKS];
    if (first == NULL)
        return tsr_fail(err, TSR_E_MISMATCH, "%s: '%s' is missing", j->ranks[0]->path, whole->name);
    const tsr_slicing cut = j->cuts[first - j->ranks[0]->tensors.items];
    /* Neighbouring ranks that share a part: all ranks if the tensor is not cut. */
    const size_t parts_n = cut.rows == 0 ? 1 : cut.parts, share = j->n / parts_n;
    j->joined++;
    for (size_t k = 0; k < j->n; k++)
        TSR_TRY(find_part(plan, j, k, first, &parts[k], err));
    if (first->dtype != whole->dtype || whole->bytes % parts_n != 0 || first->bytes != whole->bytes / parts_n)
        return tsr_fail(err, TSR_E_MISMATCH, "%s: '%s' is not part of the layout that " MANIFEST " describes",
                        j->ranks[0]->path, whole->name);
    TSR_TRY(tsr_plan_add_note(plan, first, parts_n == 1 ? "compare" : "join",
                              parts_n == 1 ? "every rank has all of it: taken from rank 0" : "cut", err));
    for (size_t rank = 0; rank < j->n; rank++) {
        if (rank % share != 0)
            TSR_TRY(tsr_plan_same(plan, parts[rank - rank % share], parts[rank], err));
    }
    for (size_t part = 0; part < parts_n; part++)
        parts[part] = parts[part * share];
    tsr_tensor *const out = tsr_plan_tensor(plan, whole);
    if (out == NULL)
        return tsr_out_of_memory(err, "while planning");
    return cut.rows == 0 ? tsr_plan_copy(plan, parts[0], out->name, err) : tsr_plan_join(plan, parts, out, cut, err);
}

/* Plans one file of the source with its own name and header. */
static tsr_status plan_shard(tsr_plan *plan, joining *j, tsr_json_text shard, tsr_err *err)
{
    const char *const name = tsr_json_find_string(shard.data, shard.size, "name", &plan->arena);
    const char *const header = tsr_json_find_string(shard.data, shard.size, "header", &plan->arena);
    uint64_t bytes, length = header == NULL ? 0 : strlen(header);
    TSR_TRY(tsr_arena_status(&plan->arena, TSR_OK, err));
    if (name == NULL || header == NULL || !tsr_json_find_u64(shard.data, shard.size, "bytes", &bytes) ||
        bytes < length + 8)
        return tsr_fail(err, TSR_E_FORMAT, "%s/" MANIFEST ": a shard has no name, size or header", j->ranks[0]->path);
    if (!tsr_is_shard_name(name))
        return tsr_fail(err, TSR_E_FORMAT, "%s/" MANIFEST ": the shard name '%s' is not the name of a safetensors file",
                        j->ranks[0]->path, name);
    char *const whole = tsr_arena_alloc(&plan->arena, length + 9);
    if (whole == NULL)
        return tsr_out_of_memory(err, "while planning");
    for (int i = 0; i < 8; i++)
        whole[i] = (char)(length >> (8 * i));
    memcpy(whole + 8, header, length);
    tsr_tensors tensors = {0};
    tsr_status status = tsr_safetensors_parse(name, header, length, bytes - length - 8, 0, &plan->arena, &tensors, err);
    for (size_t i = 0; status == TSR_OK && i < tensors.count; i++)
        status = plan_tensor(plan, j, &tensors.items[i], err);
    tsr_tensors_free(&tensors);
    return status == TSR_OK ? tsr_plan_file_as(plan, name, whole, length + 8, err) : status;
}

static tsr_status plan_shards(tsr_plan *plan, joining *j, tsr_err *err)
{
    const tsr_checkpoint *const c = j->ranks[0];
    tsr_json_text shards, shard;
    bool more;
    if (!tsr_json_find(j->manifest.text, j->manifest.size, "shards", &shards))
        return tsr_fail(err, TSR_E_FORMAT, "%s/" MANIFEST ": no 'shards'", c->path);
    tsr_json_reader r = tsr_json_open(MANIFEST, shards.data, shards.size);
    TSR_TRY(tsr_json_enter_array(&r, err));
    for (;;) {
        TSR_TRY(tsr_json_next_element(&r, &more, err));
        if (!more)
            break;
        TSR_TRY(tsr_json_skip(&r, &shard, err));
        TSR_TRY(plan_shard(plan, j, shard, err));
    }
    for (size_t k = 0; k < j->n; k++) {
        if (j->ranks[k]->tensors.count != j->joined)
            return tsr_fail(err, TSR_E_MISMATCH, "%s: %zu tensors, but %llu were cut", j->ranks[k]->path,
                            j->ranks[k]->tensors.count, U64(j->joined));
    }
    return TSR_OK;
}

/* A tensor and the file that contains it. */
typedef struct standing {
    const char *tensor, *file;
} standing;

static int by_tensor(const void *a, const void *b)
{
    return strcmp(((const standing *)a)->tensor, ((const standing *)b)->tensor);
}

/* Reads at most `most` entries of the index. Sets *n to most + 1 if there are more. */
static tsr_status read_places(tsr_plan *plan, const char *index, standing *places, size_t most, size_t *n, tsr_err *err)
{
    tsr_json_text map, key, value;
    bool more;
    *n = 0;
    if (!tsr_json_find(index, strlen(index), "weight_map", &map))
        return TSR_OK;
    tsr_json_reader r = tsr_json_open(MANIFEST, map.data, map.size);
    TSR_TRY(tsr_json_enter_object(&r, err));
    for (;; ++*n) {
        TSR_TRY(tsr_json_next_member(&r, &key, &more, err));
        if (!more || *n == most) {
            *n += more;
            return TSR_OK;
        }
        TSR_TRY(tsr_json_read_string(&r, &value, err));
        TSR_TRY(tsr_json_decode(&r, key, &plan->arena, &places[*n].tensor, err));
        TSR_TRY(tsr_json_decode(&r, value, &plan->arena, &places[*n].file, err));
    }
}

/* Checks that the source's index, which the manifest kept, names the file of every tensor that is written. */
static tsr_status check_index(tsr_plan *plan, const char *path, const char *index, tsr_err *err)
{
    size_t count = 0, stated, k = 0;
    for (size_t i = 0; i < plan->n_files; i++)
        count += plan->files[i].raw ? 0 : plan->files[i].n_tensors;
    standing *const planned = tsr_arena_alloc(&plan->arena, 2 * (count + 1) * sizeof *planned);
    if (planned == NULL)
        return tsr_out_of_memory(err, "while planning");
    standing *const listed = planned + count + 1;
    for (size_t i = 0; i < plan->n_files; i++) {
        for (size_t t = 0; !plan->files[i].raw && t < plan->files[i].n_tensors; t++)
            planned[k++] = (standing){plan->files[i].tensors[t]->name, plan->files[i].name};
    }
    TSR_TRY(read_places(plan, index, listed, count, &stated, err));
    qsort(planned, count, sizeof *planned, by_tensor);
    qsort(listed, tsr_min_u64(stated, count), sizeof *listed, by_tensor);
    for (k = 0; k < count && k < stated; k++) {
        if (strcmp(planned[k].tensor, listed[k].tensor) != 0 || strcmp(planned[k].file, listed[k].file) != 0)
            break;
    }
    return k == count && stated == count
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT,
                          "%s/" MANIFEST ": damaged: its index does not list the shards of all tensors", path);
}

static tsr_status plan_whole(tsr_plan *plan, joining *j, tsr_err *err)
{
    const tsr_checkpoint *const c = j->ranks[0];
    j->cuts = calloc(c->tensors.count + 1, sizeof *j->cuts);
    plan->command = tsr_arena_printf(&plan->arena, "convert --merge, %zu ranks", j->n);
    plan->next = "tessera inspect DST"; /* `verify` cannot compare with the ranks */
    if (j->cuts == NULL || plan->command == NULL)
        return tsr_out_of_memory(err, "while planning");
    TSR_TRY(read_manifest(c, &plan->arena, &j->manifest, err));
    TSR_TRY(check_ranks(j, err));
    TSR_TRY(read_cuts(j, err));
    TSR_TRY(plan_shards(plan, j, err));
    const char *const index = tsr_json_find_string(j->manifest.text, j->manifest.size, "index", &plan->arena);
    if (index == NULL && plan->n_files > 1)
        return tsr_fail(err, TSR_E_FORMAT, "%s/" MANIFEST ": damaged: %zu shards, but no index", c->path,
                        plan->n_files);
    const char *const index_name = tsr_json_find_string(j->manifest.text, j->manifest.size, "index_name", &plan->arena);
    if (index != NULL && (index_name == NULL || !tsr_is_index_name(index_name)))
        return tsr_fail(err, TSR_E_FORMAT, "%s/" MANIFEST ": '%s' is not a valid name of an index", c->path,
                        index_name == NULL ? "" : index_name);
    TSR_TRY(tsr_plan_side_files(plan, "", "*", (const char *const[]){MANIFEST, NULL}, err));
    if (index != NULL) {
        TSR_TRY(check_index(plan, c->path, index, err));
        TSR_TRY(tsr_plan_text_file(plan, "", index_name, index, strlen(index), err));
    }
    TSR_TRY(tsr_plan_text_file(plan, "", TSR_CONFIG_NAME, c->config, c->config_size, err));
    return tsr_plan_finish(plan, err);
}

tsr_status tsr_tp_merge_plan(tsr_plan *plan, const tsr_checkpoint *const *ranks, size_t n, tsr_err *err)
{
    joining j = {.ranks = ranks, .n = n};
    *plan = tsr_plan_begin(ranks, n);
    const tsr_status status = plan_whole(plan, &j, err);
    free(j.cuts);
    return tsr_plan_ended(plan, status);
}
