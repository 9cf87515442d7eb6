/* The output of `tessera inspect --json`; docs/inspect.md describes the keys. */
#include "cli/inspect_print.h"
#include "formats/json/json_write.h"

#include <stdio.h>

static void u64(tsr_text *t, const char *key, uint64_t value)
{
    tsr_json_key(t, key);
    tsr_json_u64(t, value);
}

static void number(tsr_text *t, const char *key, double value)
{
    tsr_json_key(t, key);
    tsr_json_number(t, value);
}

static void boolean(tsr_text *t, const char *key, bool value)
{
    tsr_json_key(t, key);
    tsr_json_bool(t, value);
}

static void string(tsr_text *t, const char *key, const char *value)
{
    tsr_json_key(t, key);
    if (value == NULL)
        tsr_json_null(t);
    else
        tsr_json_string(t, value);
}

static void object(tsr_text *t, const char *key, bool flat)
{
    tsr_json_key(t, key);
    tsr_json_begin_object(t, flat);
}

/* ---- a checkpoint ---- */

static void tallies(tsr_text *t, const char *key, const tsr_tally *by_dtype)
{
    object(t, key, false);
    for (unsigned i = 0; i < TSR_DTYPE_COUNT; i++) {
        if (by_dtype[i].tensors == 0)
            continue;
        object(t, tsr_dtype_name((tsr_dtype)i), true);
        u64(t, "tensors", by_dtype[i].tensors);
        u64(t, "elements", by_dtype[i].elements);
        u64(t, "bytes", by_dtype[i].bytes);
        tsr_json_end_object(t);
    }
    tsr_json_end_object(t);
}

static void part(tsr_text *t, const char *name, const tsr_part_tally *p)
{
    if (p->tensors == 0)
        return;
    object(t, name, true);
    u64(t, "tensors", p->tensors);
    u64(t, "parameters", p->parameters);
    u64(t, "bytes", p->bytes);
    u64(t, "quantized", p->quantized);
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
    string(t, "path", c->index_path);
    boolean(t, "metadata", s->has_metadata);
    tsr_json_key(t, "total_size");
    if (s->has_total)
        tsr_json_u64(t, s->total_size);
    else
        tsr_json_null(t);
    boolean(t, "total_size_right", s->has_total && s->total_size == s->whole.bytes);
    tsr_json_end_object(t);
}

static void scale_stats(tsr_text *t, const tsr_scale_stats *k)
{
    object(t, "scale_stats", false);
    u64(t, "count", k->count);
    number(t, "min", k->min);
    number(t, "median", k->median);
    number(t, "max", k->max);
    u64(t, "zero", k->zero);
    u64(t, "subnormal", k->subnormal);
    u64(t, "negative", k->negative);
    u64(t, "nonfinite", k->nonfinite);
    u64(t, "powers_of_two", k->powers_of_two);
    tsr_json_end_object(t);
}

static void kinds(tsr_text *t, const tsr_contents *s)
{
    tsr_json_key(t, "kinds");
    tsr_json_begin_array(t, false);
    for (size_t i = 0; i < s->n_kinds; i++) {
        const tsr_kind_tally *const k = &s->kinds[i];
        tsr_json_begin_object(t, true);
        string(t, "kind", k->kind->name);
        u64(t, "bits", k->bits);
        tsr_json_key(t, "block");
        tsr_json_begin_array(t, true);
        tsr_json_u64(t, k->block_rows);
        tsr_json_u64(t, k->block_cols);
        tsr_json_end_array(t);
        boolean(t, "global_scale", k->kind->global != NULL);
        u64(t, "weights", k->weights);
        u64(t, "values", k->values);
        u64(t, "bytes", k->bytes);
        number(t, "bits_a_value", k->values == 0 ? 0 : 8 * (double)k->bytes / (double)k->values);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void quantization(tsr_text *t, const tsr_contents *s)
{
    const tsr_weights *const w = &s->weights;
    object(t, "quantization", false);
    string(t, "method", w->method);
    tsr_json_key(t, "block");
    tsr_json_begin_array(t, true);
    tsr_json_u64(t, w->block_rows);
    tsr_json_u64(t, w->block_cols);
    tsr_json_end_array(t);
    string(t, "scale_fmt", w->ue8m0 ? "ue8m0" : NULL);
    u64(t, "weights", w->n_scaled);
    object(t, "codes", true);
    for (tsr_kind kind = 0; kind < TSR_KIND_COUNT; kind++)
        u64(t, tsr_kind_name(kind), s->coded[kind]);
    tsr_json_end_object(t);
    kinds(t, s);
    u64(t, "code_bytes", s->code_bytes);
    u64(t, "weight_bytes", s->weight_bytes);
    tallies(t, "scales", s->scales);
    scale_stats(t, &s->scale_stats);
    tsr_json_end_object(t);
}

static void attention(tsr_text *t, const tsr_contents *s)
{
    const tsr_model *const m = &s->model;
    const uint64_t block = s->weights.block_rows == 0 ? 128 : s->weights.block_rows;
    const bool mla = m->kv_lora_rank > 0;
    object(t, "attention", false);
    u64(t, "layers", m->layers);
    u64(t, "heads", m->heads);
    u64(t, "kv_heads", m->kv_heads);
    u64(t, "head_dim", tsr_model_head_dim(m));
    if (mla) {
        u64(t, "nope", m->nope);
        u64(t, "rope", m->rope);
        u64(t, "v_head_dim", m->v_head_dim);
        u64(t, "kv_lora_rank", m->kv_lora_rank);
        u64(t, "q_lora_rank", m->q_lora_rank);
        number(t, "scale_rows_a_head", (double)(m->nope + m->v_head_dim) / (double)block);
        boolean(t, "blocks_on_head_boundaries", m->nope % block == 0 && m->v_head_dim % block == 0);
    }
    object(t, "kv_values_a_layer", true);
    u64(t, "mha", tsr_model_kv_values(m, m->heads));
    u64(t, mla ? "gqa8" : "gqa", tsr_model_kv_values(m, mla ? 8 : m->kv_heads));
    if (mla)
        u64(t, "mla", tsr_model_latent_values(m));
    tsr_json_end_object(t);
    tsr_json_end_object(t);
}

static void manifest(tsr_text *t, const tsr_manifest *m)
{
    if (m->ranks == 0) {
        string(t, "rank", NULL);
    } else {
        object(t, "rank", true);
        u64(t, "rank", m->rank);
        u64(t, "ranks", m->ranks);
        tsr_json_end_object(t);
    }
    if (m->target == NULL) {
        string(t, "layout", NULL);
        return;
    }
    object(t, "layout", true);
    string(t, "target", m->target);
    string(t, "producer", m->producer);
    string(t, "scale_dtype", m->scale_dtype);
    u64(t, "arch", m->arch);
    u64(t, "bits", m->bits);
    u64(t, "group_size", m->group);
    u64(t, "weights", m->weights);
    tsr_json_end_object(t);
}

void tsr_json_contents(tsr_text *t, const tsr_checkpoint *c, const tsr_contents *s)
{
    string(t, "path", c->path);
    u64(t, "files", c->n_files);
    u64(t, "file_bytes", s->file_bytes);
    u64(t, "files_without_format", s->files_without_format);
    u64(t, "tensors", s->whole.tensors);
    u64(t, "tensor_bytes", s->whole.bytes);
    index_facts(t, c, s);
    tallies(t, "dtypes", s->by_dtype);
    object(t, "parts", false);
    for (unsigned i = 0; i < TSR_PART_COUNT; i++)
        part(t, tsr_part_name((tsr_part)i), &s->parts[i]);
    part(t, "MTP", &s->mtp);
    tsr_json_end_object(t);
    object(t, "unread", true);
    u64(t, "tensors", s->unread.tensors);
    u64(t, "bytes", s->unread.bytes);
    tsr_json_end_object(t);
    manifest(t, &s->manifest);
    quantization(t, s);
    if (s->model.heads > 0)
        attention(t, s);
}

/* ---- issues ---- */

void tsr_json_issues(tsr_text *t, const char *key, const tsr_issues *issues)
{
    tsr_json_key(t, key);
    tsr_json_begin_array(t, false);
    for (size_t i = 0; i < issues->count; i++) {
        const tsr_issue *const f = &issues->items[i];
        tsr_json_begin_object(t, false);
        string(t, "severity", f->fatal ? "error" : "warning");
        string(t, "loader", f->loader);
        string(t, "checked", f->checked);
        tsr_json_key(t, "tp");
        if (f->tp == 0)
            tsr_json_null(t);
        else
            tsr_json_u64(t, f->tp);
        string(t, "tensor", f->tensor);
        u64(t, "more", f->more);
        string(t, "rule", f->rule);
        string(t, "detail", f->detail);
        string(t, "advice", f->advice);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

void tsr_json_loaders(tsr_text *t, const tsr_load_table *table)
{
    object(t, "checked", false);
    for (size_t i = 0; i < table->n_loaders; i++)
        string(t, tsr_loader_name(table->loaders[i]), tsr_loader_checked(table->loaders[i]));
    tsr_json_end_object(t);
    object(t, "can_load", false);
    for (size_t i = 0; i < table->n_loaders; i++) {
        object(t, tsr_loader_name(table->loaders[i]), true);
        for (size_t k = 0; k < table->n_tp; k++) {
            char tp[16];
            snprintf(tp, sizeof tp, "%u", table->tp[k]);
            boolean(t, tp, table->ok[i][k]);
        }
        tsr_json_end_object(t);
    }
    tsr_json_end_object(t);
}

/* ---- a tensor ---- */

static void place(tsr_text *t, const tsr_checkpoint *c, const tsr_tensor *tensor)
{
    string(t, "name", tensor->name);
    string(t, "dtype", tsr_dtype_name((tsr_dtype)tensor->dtype));
    tsr_json_key(t, "shape");
    tsr_json_begin_array(t, true);
    for (unsigned i = 0; i < tensor->rank; i++)
        tsr_json_u64(t, tensor->shape[i]);
    tsr_json_end_array(t);
    string(t, "file", c->files[tensor->file].name);
    u64(t, "offset", tensor->offset);
    u64(t, "bytes", tensor->bytes);
}

static void value_facts(tsr_text *t, const tsr_histogram *h)
{
    tsr_json_key(t, "first");
    tsr_json_begin_array(t, true);
    for (unsigned i = 0; i < h->n_first; i++)
        tsr_json_number(t, h->first[i]);
    tsr_json_end_array(t);
    number(t, "min", h->min);
    number(t, "max", h->max);
    number(t, "mean", h->mean);
    number(t, "rms", h->rms);
    u64(t, "elements", h->elements);
    u64(t, "zeros", h->zeros);
    u64(t, "negative", h->negative);
    u64(t, "subnormal", h->subnormal);
    u64(t, "nan", h->nan);
    u64(t, "inf", h->inf);
}

static void binades(tsr_text *t, const tsr_histogram *h)
{
    tsr_json_key(t, "binades");
    tsr_json_begin_array(t, false);
    for (int i = 0; i < TSR_BINADES; i++) {
        if (h->binades[0][i] + h->binades[1][i] == 0)
            continue;
        tsr_json_begin_object(t, true);
        number(t, "exponent", i - 1023);
        u64(t, "negative", h->binades[1][i]);
        u64(t, "positive", h->binades[0][i]);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void map(tsr_text *t, const tsr_histogram *h)
{
    object(t, "block_amax", false);
    u64(t, "block_rows", h->block_rows);
    u64(t, "block_cols", h->block_cols);
    u64(t, "blocks_down", h->blocks_down);
    u64(t, "blocks_wide", h->blocks_wide);
    tsr_json_key(t, "cells");
    tsr_json_begin_array(t, false);
    for (unsigned r = 0; r < h->map_rows; r++) {
        tsr_json_begin_array(t, true);
        for (unsigned c = 0; c < h->map_cols; c++)
            tsr_json_number(t, h->map[r * h->map_cols + c]);
        tsr_json_end_array(t);
    }
    tsr_json_end_array(t);
    tsr_json_end_object(t);
}

void tsr_json_histogram(tsr_text *t, const tsr_checkpoint *c, const tsr_weight *w, const tsr_histogram *h)
{
    place(t, c, w->data);
    tsr_json_key(t, "scale");
    if (w->scale == NULL) {
        tsr_json_null(t);
    } else {
        tsr_json_begin_object(t, true);
        place(t, c, w->scale);
        tsr_json_end_object(t);
    }
    string(t, "kind", w->kind == NULL ? NULL : w->kind->name);
    if (w->values != w->data) {
        tsr_json_key(t, "stands_for");
        tsr_json_string(t, w->values->name);
        u64(t, "bits", w->bits);
    }
    value_facts(t, h);
    binades(t, h);
    if (w->data->dtype == TSR_F8_E4M3) {
        tsr_json_key(t, "codes");
        tsr_json_begin_array(t, true);
        for (unsigned i = 0; i < 256; i++)
            tsr_json_u64(t, h->codes[i]);
        tsr_json_end_array(t);
    }
    map(t, h);
}
