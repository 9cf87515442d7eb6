/* Prints the text output of `tessera inspect`. */
#include "cli/io/output.h"
#include "cli/show/inspect/inspect_print.h"

#include <stdio.h>
#include <string.h>

static double share(uint64_t part, uint64_t whole)
{
    return whole == 0 ? 0 : (double)part / (double)whole;
}

/* Writes a number of parameters in thousands, millions or billions: "671.0 B". */
static const char *count_text(uint64_t n, char text[32])
{
    static const char kUnits[] = " KMBT";
    double x = (double)n;
    size_t unit = 0;
    while (x >= 999.95 && unit < 4) {
        x /= 1000;
        unit++;
    }
    if (unit == 0)
        snprintf(text, 32, "%llu", U64(n));
    else
        snprintf(text, 32, x >= 100 ? "%.1f%c" : "%.2f%c", x, kUnits[unit]);
    return text;
}

/* ---- a checkpoint ---- */

static void print_files(const tsr_checkpoint *c, const tsr_contents *s)
{
    char a[32], b[32];
    tsr_print("%s\n  %zu tensor%s in %zu file%s, %s (%s with headers)\n", c->path, c->tensors.count,
              tsr_plural(c->tensors.count), c->n_files, tsr_plural(c->n_files),
              tsr_bytes_text((double)s->whole.bytes, a), tsr_bytes_text((double)s->file_bytes, b));
    if (s->manifest.ranks > 0)
        tsr_print("  rank %llu of %llu of a tensor-parallel cut: 'tessera convert --merge' joins them\n",
                  U64(s->manifest.rank), U64(s->manifest.ranks));
    if (c->index_path == NULL)
        tsr_print("  no index\n");
    else if (!s->has_total)
        tsr_print("  index: names every tensor; no total_size\n");
    else
        tsr_print("  index: names every tensor; total_size %llu, %s\n", U64(s->total_size),
                  s->total_size == s->whole.bytes ? "right" : "wrong");
    if (s->files_without_format > 0)
        tsr_print("  %llu of %zu files do not state a format in their metadata; older transformers refuse them\n",
                  U64(s->files_without_format), c->n_files);
    for (unsigned i = 0; i < TSR_DTYPE_COUNT; i++) {
        if (s->by_dtype[i].tensors > 0)
            tsr_print("  %-12s %8llu tensor%-2s %10s\n", tsr_dtype_name((tsr_dtype)i), U64(s->by_dtype[i].tensors),
                      tsr_plural(s->by_dtype[i].tensors), tsr_bytes_text((double)s->by_dtype[i].bytes, a));
    }
}

static void print_part(const char *name, const tsr_part_tally *p, uint64_t total)
{
    char a[32], b[32];
    if (p->tensors > 0)
        tsr_print("  %-16s %8llu  %9s  %5.1f %%  %10s  %5.1f %% quantized\n", name, U64(p->tensors),
                  count_text(p->parameters, a), 100 * share(p->parameters, total), tsr_bytes_text((double)p->bytes, b),
                  100 * share(p->quantized, p->parameters));
}

static void print_parts(const tsr_contents *s)
{
    uint64_t total = s->mtp.parameters;
    char text[32];
    for (unsigned i = 0; i < TSR_PART_COUNT; i++)
        total += s->parts[i].parameters;
    tsr_print("\nparameters: %s\n", count_text(total, text));
    for (unsigned i = 0; i < TSR_PART_COUNT; i++)
        print_part(tsr_part_name((tsr_part)i), &s->parts[i], total);
    print_part("MTP", &s->mtp, total);
    if (s->unread.tensors > 0)
        tsr_print("  not read         %8llu  tensors of %s: see below\n", U64(s->unread.tensors),
                  tsr_bytes_text((double)s->unread.bytes, text));
}

static void print_scales(const tsr_contents *s)
{
    const tsr_scale_stats *const k = &s->scale_stats;
    tsr_print("  scales:");
    for (unsigned i = 0; i < TSR_DTYPE_COUNT; i++) {
        if (s->scales[i].tensors > 0)
            tsr_print(" %s %llu tensor%s,", tsr_dtype_name((tsr_dtype)i), U64(s->scales[i].tensors),
                      tsr_plural(s->scales[i].tensors));
    }
    tsr_print(" %llu value%s: min %.6g, median %.4g, max %.6g; powers of two %.2f %%\n", U64(k->count),
              tsr_plural(k->count), k->min, k->median, k->max, 100 * share(k->powers_of_two, k->count));
    tsr_print("          %llu zero, %llu subnormal, %llu negative, %llu not finite\n", U64(k->zero), U64(k->subnormal),
              U64(k->negative), U64(k->nonfinite));
}

void tsr_print_coding(const tsr_weight_kind *kind, unsigned bits, tsr_block block)
{
    tsr_print("%s (%s): %u bits, ", kind->title, kind->name, bits);
    if (block.rows == 0)
        tsr_print("a scale a row or a matrix");
    else if (block.rows == 1)
        tsr_print("a scale for %llu columns", U64(block.cols));
    else
        tsr_print("a scale for %llux%llu", U64(block.rows), U64(block.cols));
    if (kind->global != NULL)
        tsr_print(" and a global one that %s", kind->global_divides ? "divides" : "multiplies");
}

static void print_kind(const tsr_kind_tally *k)
{
    tsr_print("  %llu weight%s ", U64(k->weights), k->weights == 1 ? " is" : "s are");
    tsr_print_coding(k->kind, k->bits, k->block);
    if (k->values > 0)
        tsr_print("; %.3g bits a value including scales and zero points", 8 * (double)k->bytes / (double)k->values);
    tsr_print("\n");
}

static void print_quantization(const tsr_contents *s)
{
    const tsr_weights *const w = &s->weights;
    const tsr_rank_file *const m = &s->manifest;
    tsr_print("\nquantization: ");
    if (m->target != NULL) {
        tsr_print("%llu weights of int%llu in the layout of %s's kernels for sm%llu, as %s reads it; %s scales, ",
                  U64(m->weights), U64(m->bits),
                  strcmp(m->target, "trtllm") == 0 ? "TensorRT-LLM" : "FasterTransformer", U64(m->arch), m->producer,
                  m->scale_dtype);
        if (m->group == 0)
            tsr_print("one a channel\n");
        else
            tsr_print("one for %llu input features\n", U64(m->group));
        return;
    }
    if (w->method == NULL && w->n_scaled == 0) {
        tsr_print("none\n");
        return;
    }
    tsr_print("%s", w->method == NULL ? "config.json names no quant_method" : w->method);
    if (w->block.rows != 0)
        tsr_print(", blocks of %llux%llu", U64(w->block.rows), U64(w->block.cols));
    tsr_print("%s\n", w->ue8m0 ? ", scale_fmt ue8m0" : "");
    for (size_t i = 0; i < s->n_kinds; i++)
        print_kind(&s->kinds[i]);
    tsr_print("  codes are %.1f %% of the weights' bytes\n", 100 * share(s->code_bytes, s->weight_bytes));
    if (w->n_scaled > 0)
        print_scales(s);
}

/* Prints whether the rows of each head's keys and values are whole blocks of `block` rows. */
static void print_heads(const tsr_model *m, uint64_t block)
{
    const uint64_t rows = m->nope + m->v_head_dim;
    tsr_print("  kv_b_proj: %llu heads of %llu + %llu = %llu rows; %llu / %llu = %g scale rows a head: ", U64(m->heads),
              U64(m->nope), U64(m->v_head_dim), U64(rows), U64(rows), U64(block), (double)rows / (double)block);
    if (m->nope % block == 0 && m->v_head_dim % block == 0)
        tsr_print("blocks fall on head boundaries\n");
    else if (rows % block == 0)
        tsr_print("heads do, but keys (%llu rows) and values meet inside a block\n", U64(m->nope));
    else
        tsr_print("blocks do not fall on head boundaries: its scales cannot be cut per head\n");
}

static void print_cache_row(const char *name, uint64_t values, uint64_t layers, uint64_t least)
{
    char text[32];
    tsr_print("  %-8s %7llu values a layer  %10llu bytes a token in BF16 (%s for 32768 tokens)  %5.1f x\n", name,
              U64(values), U64(2 * values * layers), tsr_bytes_text((double)(2 * values * layers) * 32768, text),
              (double)values / (double)least);
}

static void print_attention(const tsr_contents *s)
{
    const tsr_model *const m = &s->model;
    const uint64_t block = s->weights.block.rows == 0 ? 128 : s->weights.block.rows;
    if (m->heads == 0 || m->layers == 0 || tsr_model_head_dim(m) == 0)
        return;
    if (m->kv_lora_rank == 0) {
        tsr_print("\nattention: %llu heads, %llu of keys and values, head_dim %llu\n", U64(m->heads), U64(m->kv_heads),
                  U64(m->head_dim));
        tsr_print("KV cache, %llu layers:\n", U64(m->layers));
        if (m->kv_heads != m->heads)
            print_cache_row("MHA", tsr_model_kv_values(m, m->heads), m->layers, tsr_model_kv_values(m, m->kv_heads));
        print_cache_row(m->kv_heads == m->heads ? "MHA" : "GQA", tsr_model_kv_values(m, m->kv_heads), m->layers,
                        tsr_model_kv_values(m, m->kv_heads));
        return;
    }
    tsr_print("\nMLA: %llu heads, nope %llu, rope %llu, v %llu, kv_lora_rank %llu, q_lora_rank %llu\n", U64(m->heads),
              U64(m->nope), U64(m->rope), U64(m->v_head_dim), U64(m->kv_lora_rank), U64(m->q_lora_rank));
    print_heads(m, block);
    tsr_print("KV cache, %llu layers (heads of %llu):\n", U64(m->layers), U64(m->v_head_dim));
    print_cache_row("MHA", tsr_model_kv_values(m, m->heads), m->layers, tsr_model_latent_values(m));
    for (uint64_t groups = tsr_fewer_groups(m, m->heads); groups > 0; groups = tsr_fewer_groups(m, groups)) {
        char name[32];
        snprintf(name, sizeof name, groups == 1 ? "MQA" : "GQA-%llu", U64(groups));
        print_cache_row(name, tsr_model_kv_values(m, groups), m->layers, tsr_model_latent_values(m));
    }
    print_cache_row("MLA", tsr_model_latent_values(m), m->layers, tsr_model_latent_values(m));
}

void tsr_print_contents(const tsr_checkpoint *checkpoint, const tsr_contents *survey)
{
    print_files(checkpoint, survey);
    print_parts(survey);
    print_quantization(survey);
    print_attention(survey);
}

/* ---- issues ---- */

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool same_rule(const tsr_issue *a, const tsr_issue *b)
{
    return strcmp(a->rule, b->rule) == 0 && same_text(a->tensor, b->tensor);
}

/* Returns true if b is the same issue as a at another TP size. */
static bool other_size(const tsr_issue *a, const tsr_issue *b)
{
    return a->loader == b->loader && a->tp != b->tp && same_rule(a, b);
}

/* Returns true if b is the same issue as a for another loader. Such issues are printed once. */
static bool other_loader(const tsr_issue *a, const tsr_issue *b)
{
    return a->loader != b->loader && same_rule(a, b) && same_text(a->detail, b->detail);
}

static void print_issue(const tsr_issues *all, size_t at)
{
    const tsr_issue *const f = &all->items[at];
    for (size_t i = 0; i < at; i++) {
        if (other_size(f, &all->items[i]) || other_loader(f, &all->items[i]))
            return;
    }
    tsr_print_word(f->fatal ? TSR_INK_BAD : TSR_INK_NOTABLE, f->fatal ? "error" : "warning", 0);
    tsr_print(" [%s]", f->rule);
    if (f->loader != NULL)
        tsr_print(" %s", f->loader);
    for (size_t i = at + 1; i < all->count; i++) {
        if (other_loader(f, &all->items[i]))
            tsr_print(", %s", all->items[i].loader);
    }
    if (f->tp != 0)
        tsr_print(" at TP %u", f->tp);
    for (size_t i = at + 1; i < all->count; i++) {
        if (other_size(f, &all->items[i]))
            tsr_print(", %u", all->items[i].tp);
    }
    if (f->tensor != NULL)
        tsr_print(": %s", f->tensor);
    if (f->more > 0)
        tsr_print(" and %llu like it", U64(f->more));
    tsr_print("\n    %s\n", f->detail);
    if (f->advice != NULL)
        tsr_print("    -> %s\n", f->advice);
}

void tsr_print_issues(const tsr_issues *issues)
{
    if (issues->count > 0)
        tsr_print("\n");
    for (size_t i = 0; i < issues->count; i++)
        print_issue(issues, i);
    if (issues->omitted > 0)
        tsr_print("and %zu more\n", issues->omitted);
}

/* Prints one row for each loader: its name, the version of its rules, and a word for each TP size. */
void tsr_print_loaders(const tsr_load_table *table, const char *subject)
{
    char head[64];
    snprintf(head, sizeof head, "can load%s:", subject);
    tsr_print("\n%-27s", head);
    for (size_t k = 0; k < table->n_tp; k++)
        tsr_print("  TP %-3u", table->tp[k]);
    tsr_print("\n");
    for (size_t i = 0; i < table->n_loaders; i++) {
        tsr_print("  %-13s%-12s", tsr_loader_name(table->loaders[i]), tsr_loader_version(table->loaders[i]));
        for (size_t k = 0; k < table->n_tp; k++) {
            tsr_print("  ");
            tsr_print_word(table->ok[i][k] ? TSR_INK_GOOD : TSR_INK_BAD, table->ok[i][k] ? "ok" : "no", 6);
        }
        tsr_print("\n");
    }
}
