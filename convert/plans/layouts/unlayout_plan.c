/* Plans the inverse of a layout from tessera-layout.json, and checks every entry against the files. */
#include "convert/plans/layouts/layout_plan.h"

#include "common/checked.h"
#include "common/grow.h"
#include "convert/configs/ct_config.h"
#include "convert/ops/layout_op.h"
#include "convert/ops/slice_op.h"
#include "formats/json/json.h"
#include "formats/json/json_edit.h"
#include "formats/weights/foreign.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_MANIFEST_BYTES = 256 << 20 };

typedef struct taking {
    tsr_plan *plan;
    const tsr_checkpoint *source;
    tsr_layout_kind kind;
    uint64_t max_shard_bytes;
    const char *path; /* path of the manifest */
    tsr_arena arena;  /* its text */
    tsr_ft_format format;
    uint64_t group;
    tsr_dtype scale_dtype;
    bool *used, *used_files;        /* used: [tensors of the source]; used_files: [its side files] */
    const tsr_tensor **unquantized; /* unquantized tensors of rank 2 or more */
    size_t n_unquantized, capacity;
    tsr_err *err;
} taking;

static tsr_status broken(const taking *k, const char *what)
{
    return tsr_fail(k->err, TSR_E_FORMAT, "%s: %s", k->path, what);
}

/* ---- fields ---- */

static bool find_u64(tsr_json_text object, const char *key, uint64_t *value)
{
    return tsr_json_find_u64(object.data, object.size, key, value);
}

/* Returns a string member, in the plan's arena, or NULL. */
static const char *find_string(const taking *k, tsr_json_text object, const char *key)
{
    return tsr_json_find_string(object.data, object.size, key, &k->plan->arena);
}

/* ---- locating data ---- */

/* Finds the side file of this name as a tensor of bytes. */
static bool find_file(const taking *k, const char *name, tsr_tensor *tensor)
{
    if (!tsr_checkpoint_find_side_file(k->source, name, tensor))
        return false;
    k->used_files[tensor->file - k->source->n_files] = true;
    return true;
}

static const tsr_tensor *find_tensor(const taking *k, const char *name)
{
    const tsr_tensor *const t = name == NULL ? NULL : tsr_checkpoint_find(k->source, name);
    if (t != NULL)
        k->used[t - k->source->tensors.items] = true;
    return t;
}

static tsr_status misfit(const taking *k, const char *name, const char *where, uint64_t bytes, uint64_t wanted)
{
    return tsr_fail(k->err, TSR_E_FORMAT, "%s: '%s' needs %llu bytes of '%s', which has %llu; is it from another run?",
                    k->path, name, U64(wanted), where, U64(bytes));
}

/* Splits a raw file into codes and the scales that follow them. */
static tsr_status split_file(const taking *k, const char *file, uint64_t codes, uint64_t scales, tsr_unlayout *x)
{
    if (!find_file(k, file, &x->codes))
        return tsr_fail(k->err, TSR_E_FORMAT, "%s: no '%s'", k->path, file);
    uint64_t whole;
    if (!tsr_add_u64(codes, scales, &whole))
        return broken(k, "a weight beyond 2^64 bytes");
    if (x->codes.bytes != whole)
        return misfit(k, x->name, file, x->codes.bytes, whole);
    x->scales = x->codes;
    x->codes.bytes = codes;
    x->scales.offset += codes;
    x->scales.bytes = scales;
    return TSR_OK;
}

static tsr_status find_tensors(const taking *k, const char *codes, const char *scales, uint64_t codes_bytes,
                               uint64_t scales_bytes, tsr_unlayout *x)
{
    const tsr_tensor *const c = find_tensor(k, codes), *const s = find_tensor(k, scales);
    if (c == NULL || s == NULL)
        return tsr_fail(k->err, TSR_E_FORMAT, "%s: no '%s'", k->path,
                        c == NULL ? (codes == NULL ? "" : codes) : (scales == NULL ? "" : scales));
    if (c->bytes != codes_bytes)
        return misfit(k, x->name, codes, c->bytes, codes_bytes);
    if (s->bytes != scales_bytes)
        return misfit(k, x->name, scales, s->bytes, scales_bytes);
    x->codes = *c;
    x->scales = *s;
    return TSR_OK;
}

/* ---- weights ---- */

static tsr_status take_weight(taking *k, tsr_json_text entry)
{
    tsr_unlayout x = {.format = k->format, .group = k->group, .name = find_string(k, entry, "name")};
    const char *const file = find_string(k, entry, "file");
    uint64_t elements, scales;
    tsr_err why = {0};
    if (x.name == NULL || file == NULL || !find_u64(entry, "k", &x.k) || !find_u64(entry, "n", &x.n) ||
        !find_u64(entry, "first", &x.first) || !find_u64(entry, "columns", &x.columns))
        return broken(k, "a weight without name, file, k, n, first or columns");
    if (x.k > INT64_MAX || x.n > INT64_MAX ||
        tsr_ft_format_check(&k->format, (int64_t)x.k, (int64_t)x.n, &why) != TSR_OK)
        return tsr_fail(k->err, TSR_E_FORMAT, "%s: '%s': %s", k->path, x.name, why.msg);
    const uint64_t word = 32u / (unsigned)k->format.bits,
                   turn = k->format.row_major ? word : (uint64_t)k->format.columns;
    if (x.columns == 0 || x.columns > x.n || x.first > x.n - x.columns || x.first % turn != 0 ||
        x.columns % turn != 0 || x.k % word != 0 || (k->group != 0 && x.k % k->group != 0))
        return tsr_fail(k->err, TSR_E_FORMAT, "%s: '%s': columns %llu to %llu of %llu are outside this layout", k->path,
                        x.name, U64(x.first), U64(x.first + x.columns), U64(x.n));
    if (!tsr_mul_u64(x.k, x.n, &elements) || !tsr_mul_u64(k->group == 0 ? 1 : x.k / k->group, x.n, &scales) ||
        !tsr_mul_u64(scales, tsr_dtype_bytes(k->scale_dtype), &scales))
        return broken(k, "a weight beyond 2^64 bytes");
    const uint64_t codes = elements / 8 * (unsigned)k->format.bits;
    TSR_TRY(k->kind == TSR_LAYOUT_FASTERTRANSFORMER
                ? split_file(k, file, codes, scales, &x)
                : find_tensors(k, find_string(k, entry, "tensor"), find_string(k, entry, "scale"), codes, scales, &x));
    x.scales.dtype = (uint8_t)k->scale_dtype;
    return tsr_plan_unlayout(k->plan, &x, k->err);
}

/* ---- everything else ---- */

static tsr_status keep_unquantized(taking *k, const tsr_tensor *t)
{
    if (t->rank < 2 || !tsr_dtype_is_weight_float((tsr_dtype)t->dtype) || tsr_policy_is_embedding(t->name))
        return TSR_OK;
    if (!tsr_grow(&k->unquantized, k->n_unquantized, &k->capacity, sizeof *k->unquantized))
        return tsr_out_of_memory(k->err, "while planning");
    k->unquantized[k->n_unquantized++] = t;
    return TSR_OK;
}

/* Rejects a tensor that is not a weight, unless it is plain data of whole bytes. */
static tsr_status check_plain(const taking *k, const tsr_tensor *t)
{
    if (tsr_plain_rule(t) != NULL && tsr_foreign_format(k->source, t) == NULL && !tsr_is_left_over(t->name))
        return TSR_OK;
    return tsr_fail(k->err, TSR_E_UNSUPPORTED,
                    "%s: '%s' is %s, which is neither a weight by " TSR_LAYOUT_NAME " nor known plain data",
                    k->source->files[t->file].path, t->name, tsr_dtype_name((tsr_dtype)t->dtype));
}

/* Restores a tensor that was renamed or joined: bytes [first, first + bytes) of the stored tensor. */
static tsr_status take_tensor(taking *k, tsr_json_text entry)
{
    const char *const name = find_string(k, entry, "name"), *const there = find_string(k, entry, "tensor");
    const tsr_tensor *const t = find_tensor(k, there);
    tsr_json_text shape;
    uint64_t first;
    if (name == NULL || t == NULL || !find_u64(entry, "first", &first) ||
        !tsr_json_find(entry.data, entry.size, "shape", &shape))
        return tsr_fail(k->err, TSR_E_FORMAT, "%s: '%s' must be read from '%s', which is missing", k->path,
                        name == NULL ? "?" : name, there == NULL ? "?" : there);
    TSR_TRY(check_plain(k, t));
    tsr_tensor out = {.name = name, .dtype = t->dtype, .bytes = tsr_dtype_bytes((tsr_dtype)t->dtype)};
    tsr_json_reader r = tsr_json_open(k->path, shape.data, shape.size);
    bool more;
    TSR_TRY(tsr_json_enter_array(&r, k->err));
    for (;;) {
        TSR_TRY(tsr_json_next_element(&r, &more, k->err));
        if (!more)
            break;
        if (out.rank == TSR_MAX_RANK)
            return broken(k, "a shape of too many dimensions");
        TSR_TRY(tsr_json_read_u64(&r, &out.shape[out.rank], k->err));
        if (!tsr_mul_u64(out.bytes, out.shape[out.rank++], &out.bytes))
            return broken(k, "a shape beyond 2^64 bytes");
    }
    if (first > t->bytes || out.bytes > t->bytes - first)
        return misfit(k, name, there, t->bytes, out.bytes);
    tsr_tensor *const copy = tsr_plan_tensor(k->plan, &out);
    if (copy == NULL)
        return tsr_out_of_memory(k->err, "while planning");
    TSR_TRY(keep_unquantized(k, copy));
    return tsr_plan_range(k->plan, t, first, copy, k->err);
}

static tsr_status each(taking *k, tsr_json_text array, tsr_status (*take)(taking *k, tsr_json_text entry))
{
    tsr_json_reader r = tsr_json_open(k->path, array.data, array.size);
    tsr_json_text entry;
    bool more;
    TSR_TRY(tsr_json_enter_array(&r, k->err));
    for (;;) {
        TSR_TRY(tsr_json_next_element(&r, &more, k->err));
        if (!more)
            return TSR_OK;
        TSR_TRY(tsr_json_skip(&r, &entry, k->err));
        TSR_TRY(take(k, entry));
    }
}

/* FasterTransformer's directory has the other tensors unchanged; TensorRT-LLM's has them renamed. */
static tsr_status copy_others(taking *k)
{
    for (size_t i = 0; i < k->source->tensors.count; i++) {
        const tsr_tensor *const t = &k->source->tensors.items[i];
        const bool copied = k->kind == TSR_LAYOUT_FASTERTRANSFORMER;
        if (copied) {
            TSR_TRY(check_plain(k, t));
            TSR_TRY(tsr_plan_copy(k->plan, t, t->name, k->err));
            TSR_TRY(keep_unquantized(k, t));
        }
        TSR_TRY(tsr_plan_add_note(k->plan, t,
                                  copied       ? "copy"
                                  : k->used[i] ? "rename"
                                               : "drop",
                                  k->used[i] || copied ? "as " TSR_LAYOUT_NAME " says" : "it was made for TensorRT-LLM",
                                  k->err));
    }
    return TSR_OK;
}

/* Copies files that the manifest does not name, such as tokenizers. */
static tsr_status copy_side_files(const taking *k)
{
    const tsr_checkpoint *const c = k->source;
    for (size_t i = 0; i < c->n_side_files; i++) {
        if (k->used_files[i])
            continue;
        const tsr_tensor file = tsr_checkpoint_side_file(c, i);
        const tsr_tensor *const in = tsr_plan_tensor(k->plan, &file);
        if (in == NULL)
            return tsr_out_of_memory(k->err, "while planning");
        TSR_TRY(tsr_plan_copy(k->plan, in, file.name, k->err));
        TSR_TRY(tsr_plan_raw_file(k->plan, file.name, false, k->err));
    }
    return TSR_OK;
}

/* ---- configuration and manifest ---- */

static tsr_status plan_config(taking *k)
{
    const tsr_ct_config config = {
        .format = "pack-quantized", .type = "int", .bits = (uint32_t)k->format.bits, .group = k->group};
    tsr_text value = {0}, edited = {0};
    const char *base = k->source->config;
    size_t size = k->source->config_size;
    tsr_tensor original;
    if (k->kind == TSR_LAYOUT_TRTLLM) {
        if (!find_file(k, "hf_config.json", &original))
            return broken(k, "no hf_config.json beside it, the configuration of the model");
        TSR_TRY(tsr_checkpoint_text(k->source, original.name, MAX_MANIFEST_BYTES, &k->arena, &base, &size, k->err));
    }
    if (base == NULL)
        return TSR_OK;
    tsr_ct_config_write(&value, &config, k->unquantized, k->n_unquantized);
    tsr_status status = tsr_text_status(&value, k->err);
    if (status == TSR_OK)
        status = tsr_json_edit_set(&edited, base, size, "quantization_config", value.data, k->err);
    status = tsr_plan_take_text(k->plan, "", TSR_CONFIG_NAME, &edited, status, k->err);
    tsr_text_free(&value);
    return status;
}

static tsr_status read_kind(taking *k, tsr_json_text all)
{
    static const char *const kTargets[] = {"fastertransformer", "trtllm"};
    static const tsr_dtype kDtypes[] = {TSR_BF16, TSR_F16, TSR_F32};
    const char *const schema = find_string(k, all, "schema"), *const target = find_string(k, all, "target");
    const char *const producer = find_string(k, all, "producer"), *const dtype = find_string(k, all, "scale_dtype");
    tsr_ft_target format = {0};
    uint64_t arch, bits;
    if (schema == NULL || strcmp(schema, "tessera-layout/1") != 0)
        return broken(k, "its schema is not tessera-layout/1");
    if (target == NULL || strcmp(target, kTargets[k->kind]) != 0)
        return tsr_fail(k->err, TSR_E_FORMAT, "%s: made for %s; convert it back with --from %s", k->path,
                        target == NULL ? "an unknown target" : target, target == NULL ? "TARGET" : target);
    if (producer == NULL || dtype == NULL || !find_u64(all, "arch", &arch) || !find_u64(all, "bits", &bits) ||
        !find_u64(all, "group_size", &k->group) || arch > 999 || (bits != 4 && bits != 8))
        return broken(k, "producer, arch, bits, group_size or scale_dtype is missing or invalid");
    TSR_TRY(tsr_ft_producer_parse(producer, &format.producer, k->err));
    format.arch = (int)arch;
    format.bits = (int)bits;
    TSR_TRY(tsr_ft_format_of(&format, &k->format, k->err));
    for (size_t i = 0; i < sizeof kDtypes / sizeof *kDtypes; i++) {
        if (strcmp(dtype, tsr_dtype_name(kDtypes[i])) == 0) {
            k->scale_dtype = kDtypes[i];
            return TSR_OK;
        }
    }
    return broken(k, "scale_dtype is not BF16, F16 or F32");
}

static tsr_status make_plan(taking *k)
{
    tsr_tensor manifest;
    tsr_json_text all = {0}, weights, tensors;
    if (!find_file(k, TSR_LAYOUT_NAME, &manifest))
        return tsr_fail(k->err, TSR_E_FORMAT,
                        "%s: " TSR_LAYOUT_NAME " is missing; it describes the layout and is required", k->source->path);
    k->path = k->source->files[manifest.file].path;
    TSR_TRY(tsr_checkpoint_text(k->source, manifest.name, MAX_MANIFEST_BYTES, &k->arena, &all.data, &all.size, k->err));
    tsr_json_reader whole = tsr_json_open(k->path, all.data, all.size);
    TSR_TRY(tsr_json_skip(&whole, NULL, k->err));
    TSR_TRY(tsr_json_finish(&whole, k->err));
    TSR_TRY(read_kind(k, all));
    if (!tsr_json_find(all.data, all.size, "weights", &weights) ||
        !tsr_json_find(all.data, all.size, "tensors", &tensors))
        return broken(k, "it has no weights, or no tensors");
    k->plan->command =
        tsr_arena_printf(&k->plan->arena, "convert --from %s --max-shard-size %llu",
                         k->kind == TSR_LAYOUT_TRTLLM ? "trtllm" : "fastertransformer", U64(k->max_shard_bytes));
    if (k->plan->command == NULL)
        return tsr_out_of_memory(k->err, "while planning");
    k->plan->next = "tessera inspect DST"; /* `verify` cannot compare with the blobs */
    TSR_TRY(each(k, weights, take_weight));
    TSR_TRY(each(k, tensors, take_tensor));
    TSR_TRY(copy_others(k));
    TSR_TRY(tsr_plan_pack(k->plan, "", k->max_shard_bytes, k->err));
    TSR_TRY(tsr_plan_index(k->plan, "", false, k->err));
    TSR_TRY(plan_config(k));
    TSR_TRY(copy_side_files(k));
    return tsr_plan_finish(k->plan, k->err);
}

tsr_status tsr_unlayout_plan(tsr_plan *plan, const tsr_checkpoint *const *source, tsr_layout_kind kind,
                             uint64_t max_shard_bytes, tsr_err *err)
{
    taking k = {.plan = plan, .source = *source, .kind = kind, .max_shard_bytes = max_shard_bytes, .err = err};
    *plan = tsr_plan_begin(source, 1);
    k.used = calloc((*source)->tensors.count + 1, sizeof *k.used);
    k.used_files = calloc((*source)->n_side_files + 1, sizeof *k.used_files);
    const tsr_status status =
        k.used == NULL || k.used_files == NULL ? tsr_out_of_memory(err, "while planning") : make_plan(&k);
    free(k.used);
    free(k.used_files);
    free(k.unquantized);
    tsr_arena_free(&k.arena);
    return tsr_plan_ended(plan, status);
}
