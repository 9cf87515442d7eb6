/* Writes the output of `tessera inspect --json`; docs/inspect.md describes the keys. */
#include "cli/show/inspect/inspect_print.h"
#include "formats/json/json_write.h"

#include <stdio.h>

/* ---- a checkpoint ---- */

static void tallies(tsr_text *t, const char *key, const tsr_tally *by_dtype)
{
    tsr_json_member_object(t, key, false);
    for (unsigned i = 0; i < TSR_DTYPE_COUNT; i++) {
        if (by_dtype[i].tensors == 0)
            continue;
        tsr_json_member_object(t, tsr_dtype_name((tsr_dtype)i), true);
        tsr_json_member_u64(t, "tensors", by_dtype[i].tensors);
        tsr_json_member_u64(t, "elements", by_dtype[i].elements);
        tsr_json_member_u64(t, "bytes", by_dtype[i].bytes);
        tsr_json_end_object(t);
    }
    tsr_json_end_object(t);
}

static void part(tsr_text *t, const char *name, const tsr_part_tally *p)
{
    if (p->tensors == 0)
        return;
    tsr_json_member_object(t, name, true);
    tsr_json_member_u64(t, "tensors", p->tensors);
    tsr_json_member_u64(t, "parameters", p->parameters);
    tsr_json_member_u64(t, "bytes", p->bytes);
    tsr_json_member_u64(t, "quantized", p->quantized);
    tsr_json_end_object(t);
}

static void index_facts(tsr_text *t, const tsr_checkpoint *c, const tsr_contents *s)
{
    tsr_json_key(t, "index");
    if (c->index_path == NULL) {
        tsr_json_null(t);
        return;
    }
    tsr_json_begin_object(t, true);
    tsr_json_member_string(t, "path", c->index_path);
    tsr_json_member_bool(t, "metadata", s->has_metadata);
    tsr_json_key(t, "total_size");
    if (s->has_total)
        tsr_json_u64(t, s->total_size);
    else
        tsr_json_null(t);
    tsr_json_member_bool(t, "total_size_right", s->has_total && s->total_size == s->whole.bytes);
    tsr_json_end_object(t);
}

static void scale_stats(tsr_text *t, const tsr_scale_stats *k)
{
    tsr_json_member_object(t, "scale_stats", false);
    tsr_json_member_u64(t, "count", k->count);
    tsr_json_member_number(t, "min", k->min);
    tsr_json_member_number(t, "median", k->median);
    tsr_json_member_number(t, "max", k->max);
    tsr_json_member_u64(t, "zero", k->zero);
    tsr_json_member_u64(t, "subnormal", k->subnormal);
    tsr_json_member_u64(t, "negative", k->negative);
    tsr_json_member_u64(t, "nonfinite", k->nonfinite);
    tsr_json_member_u64(t, "powers_of_two", k->powers_of_two);
    tsr_json_end_object(t);
}

static void kinds(tsr_text *t, const tsr_contents *s)
{
    tsr_json_member_array(t, "kinds", false);
    for (size_t i = 0; i < s->n_kinds; i++) {
        const tsr_kind_tally *const k = &s->kinds[i];
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "kind", k->kind->name);
        tsr_json_member_u64(t, "bits", k->bits);
        tsr_json_member_u64s(t, "block", (const uint64_t[]){k->block.rows, k->block.cols}, 2);
        tsr_json_member_bool(t, "global_scale", k->kind->global != NULL);
        tsr_json_member_u64(t, "weights", k->weights);
        tsr_json_member_u64(t, "values", k->values);
        tsr_json_member_u64(t, "bytes", k->bytes);
        tsr_json_member_number(t, "bits_a_value", k->values == 0 ? 0 : 8 * (double)k->bytes / (double)k->values);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void quantization(tsr_text *t, const tsr_contents *s)
{
    const tsr_weights *const w = &s->weights;
    tsr_json_member_object(t, "quantization", false);
    tsr_json_member_string(t, "method", w->method);
    tsr_json_member_u64s(t, "block", (const uint64_t[]){w->block.rows, w->block.cols}, 2);
    tsr_json_member_string(t, "scale_fmt", w->ue8m0 ? "ue8m0" : NULL);
    tsr_json_member_u64(t, "weights", w->n_scaled);
    tsr_json_member_object(t, "codes", true);
    for (tsr_kind kind = 0; kind < TSR_KIND_COUNT; kind++)
        tsr_json_member_u64(t, tsr_kind_name(kind), s->coded[kind]);
    tsr_json_end_object(t);
    kinds(t, s);
    tsr_json_member_u64(t, "code_bytes", s->code_bytes);
    tsr_json_member_u64(t, "weight_bytes", s->weight_bytes);
    tallies(t, "scales", s->scales);
    scale_stats(t, &s->scale_stats);
    tsr_json_end_object(t);
}

static void attention(tsr_text *t, const tsr_contents *s)
{
    const tsr_model *const m = &s->model;
    const uint64_t block = s->weights.block.rows == 0 ? 128 : s->weights.block.rows;
    const bool mla = m->kv_lora_rank > 0;
    tsr_json_member_object(t, "attention", false);
    tsr_json_member_u64(t, "layers", m->layers);
    tsr_json_member_u64(t, "heads", m->heads);
    tsr_json_member_u64(t, "kv_heads", m->kv_heads);
    tsr_json_member_u64(t, "head_dim", tsr_model_head_dim(m));
    if (mla) {
        tsr_json_member_u64(t, "nope", m->nope);
        tsr_json_member_u64(t, "rope", m->rope);
        tsr_json_member_u64(t, "v_head_dim", m->v_head_dim);
        tsr_json_member_u64(t, "kv_lora_rank", m->kv_lora_rank);
        tsr_json_member_u64(t, "q_lora_rank", m->q_lora_rank);
        tsr_json_member_number(t, "scale_rows_a_head", (double)(m->nope + m->v_head_dim) / (double)block);
        tsr_json_member_bool(t, "blocks_on_head_boundaries", m->nope % block == 0 && m->v_head_dim % block == 0);
    }
    tsr_json_member_object(t, "kv_values_a_layer", true);
    tsr_json_member_u64(t, "mha", tsr_model_kv_values(m, m->heads));
    if (!mla)
        tsr_json_member_u64(t, "gqa", tsr_model_kv_values(m, m->kv_heads));
    for (uint64_t groups = tsr_fewer_groups(m, m->heads); mla && groups > 0; groups = tsr_fewer_groups(m, groups)) {
        char key[32];
        snprintf(key, sizeof key, "gqa%llu", U64(groups));
        tsr_json_member_u64(t, key, tsr_model_kv_values(m, groups));
    }
    if (mla)
        tsr_json_member_u64(t, "mla", tsr_model_latent_values(m));
    tsr_json_end_object(t);
    tsr_json_end_object(t);
}

static void manifest(tsr_text *t, const tsr_rank_file *m)
{
    tsr_rank_file_write(t, "rank", m);
    if (m->target == NULL) {
        tsr_json_member_string(t, "layout", NULL);
        return;
    }
    tsr_json_member_object(t, "layout", true);
    tsr_json_member_string(t, "target", m->target);
    tsr_json_member_string(t, "producer", m->producer);
    tsr_json_member_string(t, "scale_dtype", m->scale_dtype);
    tsr_json_member_u64(t, "arch", m->arch);
    tsr_json_member_u64(t, "bits", m->bits);
    tsr_json_member_u64(t, "group_size", m->group);
    tsr_json_member_u64(t, "weights", m->weights);
    tsr_json_end_object(t);
}

void tsr_json_contents(tsr_text *t, const tsr_checkpoint *c, const tsr_contents *s)
{
    tsr_json_member_string(t, "path", c->path);
    tsr_json_member_u64(t, "files", c->n_files);
    tsr_json_member_u64(t, "file_bytes", s->file_bytes);
    tsr_json_member_u64(t, "files_without_format", s->files_without_format);
    tsr_json_member_u64(t, "tensors", s->whole.tensors);
    tsr_json_member_u64(t, "tensor_bytes", s->whole.bytes);
    index_facts(t, c, s);
    tallies(t, "dtypes", s->by_dtype);
    tsr_json_member_object(t, "parts", false);
    for (unsigned i = 0; i < TSR_PART_COUNT; i++)
        part(t, tsr_part_name((tsr_part)i), &s->parts[i]);
    part(t, "MTP", &s->mtp);
    tsr_json_end_object(t);
    tsr_json_member_object(t, "unread", true);
    tsr_json_member_u64(t, "tensors", s->unread.tensors);
    tsr_json_member_u64(t, "bytes", s->unread.bytes);
    tsr_json_end_object(t);
    manifest(t, &s->manifest);
    quantization(t, s);
    if (s->model.heads > 0)
        attention(t, s);
}

/* ---- issues ---- */

void tsr_json_issues(tsr_text *t, const char *key, const tsr_issues *issues)
{
    tsr_json_member_array(t, key, false);
    for (size_t i = 0; i < issues->count; i++) {
        const tsr_issue *const f = &issues->items[i];
        tsr_json_begin_object(t, false);
        tsr_json_member_string(t, "severity", f->fatal ? "error" : "warning");
        tsr_json_member_string(t, "loader", f->loader);
        tsr_json_member_string(t, "checked", f->checked);
        tsr_json_key(t, "tp");
        if (f->tp == 0)
            tsr_json_null(t);
        else
            tsr_json_u64(t, f->tp);
        tsr_json_member_string(t, "tensor", f->tensor);
        tsr_json_member_u64(t, "more", f->more);
        tsr_json_member_string(t, "rule", f->rule);
        tsr_json_member_string(t, "detail", f->detail);
        tsr_json_member_string(t, "advice", f->advice);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

void tsr_json_loaders(tsr_text *t, const tsr_load_table *table)
{
    tsr_json_member_object(t, "checked", false);
    for (size_t i = 0; i < table->n_loaders; i++)
        tsr_json_member_string(t, tsr_loader_name(table->loaders[i]), tsr_loader_checked(table->loaders[i]));
    tsr_json_end_object(t);
    tsr_json_member_object(t, "can_load", false);
    for (size_t i = 0; i < table->n_loaders; i++) {
        tsr_json_member_object(t, tsr_loader_name(table->loaders[i]), true);
        for (size_t k = 0; k < table->n_tp; k++) {
            char tp[16];
            snprintf(tp, sizeof tp, "%u", table->tp[k]);
            tsr_json_member_bool(t, tp, table->ok[i][k]);
        }
        tsr_json_end_object(t);
    }
    tsr_json_end_object(t);
}

/* ---- a tensor ---- */

void tsr_json_place(tsr_text *t, const tsr_checkpoint *c, const tsr_tensor *tensor)
{
    tsr_json_member_string(t, "name", tensor->name);
    tsr_json_member_string(t, "dtype", tsr_dtype_name((tsr_dtype)tensor->dtype));
    tsr_json_member_u64s(t, "shape", tensor->shape, tensor->rank);
    tsr_json_member_string(t, "file", c->files[tensor->file].name);
    tsr_json_member_u64(t, "offset", tensor->offset);
    tsr_json_member_u64(t, "bytes", tensor->bytes);
}

static void value_facts(tsr_text *t, const tsr_histogram *h)
{
    tsr_json_member_array(t, "first", true);
    for (unsigned i = 0; i < h->n_first; i++)
        tsr_json_number(t, h->first[i]);
    tsr_json_end_array(t);
    tsr_json_member_number(t, "min", h->min);
    tsr_json_member_number(t, "max", h->max);
    tsr_json_member_number(t, "mean", h->mean);
    tsr_json_member_number(t, "rms", h->rms);
    tsr_json_member_u64(t, "elements", h->elements);
    tsr_json_member_u64(t, "zeros", h->zeros);
    tsr_json_member_u64(t, "negative", h->negative);
    tsr_json_member_u64(t, "subnormal", h->subnormal);
    tsr_json_member_u64(t, "nan", h->nan);
    tsr_json_member_u64(t, "inf", h->inf);
}

static void binades(tsr_text *t, const tsr_histogram *h)
{
    tsr_json_member_array(t, "binades", false);
    for (int i = 0; i < TSR_BINADES; i++) {
        if (h->binades[0][i] + h->binades[1][i] == 0)
            continue;
        tsr_json_begin_object(t, true);
        tsr_json_member_number(t, "exponent", i - 1023);
        tsr_json_member_u64(t, "negative", h->binades[1][i]);
        tsr_json_member_u64(t, "positive", h->binades[0][i]);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void map(tsr_text *t, const tsr_histogram *h)
{
    tsr_json_member_object(t, "block_amax", false);
    tsr_json_member_u64(t, "block_rows", h->block.rows);
    tsr_json_member_u64(t, "block_cols", h->block.cols);
    tsr_json_member_u64(t, "blocks_down", h->blocks_down);
    tsr_json_member_u64(t, "blocks_wide", h->blocks_wide);
    tsr_json_member_array(t, "cells", false);
    for (unsigned r = 0; r < h->map_rows; r++) {
        tsr_json_begin_array(t, true);
        for (unsigned c = 0; c < h->map_cols; c++)
            tsr_json_number(t, h->map[r * h->map_cols + c]);
        tsr_json_end_array(t);
    }
    tsr_json_end_array(t);
    tsr_json_end_object(t);
}

static void belongs_to(tsr_text *t, const tsr_checkpoint *c, const tsr_inspected *x)
{
    tsr_json_key(t, "belongs_to");
    if (x->owner == NULL) {
        tsr_json_null(t);
        return;
    }
    tsr_json_begin_object(t, true);
    tsr_json_member_string(t, "role", x->role);
    tsr_json_member_string(t, "kind", x->owner->kind->name);
    tsr_json_place(t, c, x->owner->data);
    tsr_json_end_object(t);
}

void tsr_json_tensor(tsr_text *t, const tsr_checkpoint *c, const tsr_inspected *x, const tsr_histogram *h)
{
    const tsr_weight *const w = &x->weight;
    tsr_json_place(t, c, x->stored);
    tsr_json_member_string(t, "read_as", tsr_dtype_name((tsr_dtype)w->data->dtype));
    belongs_to(t, c, x);
    tsr_json_key(t, "scale");
    if (w->scale == NULL) {
        tsr_json_null(t);
    } else {
        tsr_json_begin_object(t, true);
        tsr_json_place(t, c, w->scale);
        tsr_json_end_object(t);
    }
    tsr_json_member_string(t, "kind", w->kind == NULL ? NULL : w->kind->name);
    if (w->values != w->data) {
        tsr_json_member_string(t, "stands_for", w->values->name);
        tsr_json_member_u64(t, "bits", w->bits);
    }
    value_facts(t, h);
    binades(t, h);
    if (w->data->dtype == TSR_F8_E4M3) {
        tsr_json_member_u64s(t, "codes", h->codes, 256);
    }
    map(t, h);
}
