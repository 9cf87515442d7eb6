/* Jobs from names, operands from bands of weights, and judging. */
#include "verify/kernels/check_gemm.h"

#include "common/checked.h"
#include "common/threads.h"
#include "kernels/cpu/quantize_tokens.h"
#include "verify/evidence/activations.h"
#include "verify/kernels/gemm_oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGN_ROWS = 128, /* experts begin at such rows in the contiguous layout */
    JUDGED_ROWS = 64, /* tokens that go through the oracle; kernels get all */
};

/* One matrix of the checkpoint, under the name of the job that it belongs to. */
typedef struct entry {
    const char *key; /* the tensor's name; of experts with '*' for their number */
    const tsr_weight *weight;
    uint64_t matrix;
} entry;

typedef struct check {
    const tsr_kernel_options *options;
    unsigned outs;
    entry *entries;
    size_t n_entries;
    size_t *jobs; /* index of the first entry of each */
    size_t n_jobs;
    tsr_arena arena;
} check;

/* How rows of activations lie before a kernel. */
typedef enum layout { PLAIN, CONTIGUOUS, MASKED } layout;

/* The operands of one job. Rows are the tokens of all experts, one expert after another. */
typedef struct operands {
    const check *c;
    tsr_evidence *evidence;
    tsr_arena arena;
    tsr_weight_reader readers[2]; /* of the checkpoint and of the originals */
    const char *name;
    const entry *experts;
    size_t n_experts;
    size_t *first;             /* [n_experts + 1]: an expert's first row */
    size_t *first_judged;      /* [n_experts + 1]: likewise among the rows that are judged */
    tsr_columns columns, rows; /* that are judged */
    size_t m, judged, n, k, padded, grid_n, grid_k, block_n, block_k;
    uint16_t *x;
    uint8_t *a, *w;           /* [m][k], [n_experts][n][k] */
    float *scale_a, *scale_w; /* [grid_k][m], [n_experts][grid_n][grid_k] */
    double *original;         /* [judged][n]: the product of what was quantized */
    tsr_exact *exact;         /* [judged][n] */
    bool unfit;               /* codes or scales that no product can be made of: that is a finding already */
} operands;

/* ---- which ---- */

static int by_key(const void *x, const void *y)
{
    const entry *const a = x, *const b = y;
    const int order = strcmp(a->key, b->key);
    if (order != 0)
        return order;
    if (a->weight != b->weight)
        return a->weight < b->weight ? -1 : 1;
    return a->matrix < b->matrix ? -1 : a->matrix > b->matrix;
}

/* "model.layers.3.mlp.experts.17.up_proj.weight" -> "model.layers.3.mlp.experts.*.up_proj.weight". */
static const char *key_of(tsr_arena *arena, const char *name)
{
    const char *const experts = strstr(name, ".experts.");
    if (experts == NULL)
        return name;
    const char *const number = experts + strlen(".experts.");
    const size_t digits = strspn(number, "0123456789");
    if (digits == 0 || number[digits] != '.')
        return name;
    return tsr_arena_printf(arena, "%.*s*%s", (int)(number - name), name, number + digits);
}

static const char *unfit_because(const tsr_weight *w)
{
    if (w->coding != TSR_CODED_E4M3)
        return "not e4m3";
    if (w->coarse)
        return "its scales are not of blocks";
    if (w->block_cols % TSR_GEMM_TILE != 0)
        return "its blocks are not whole tiles of 128 columns";
    return w->rows == 0 || w->cols == 0 ? "it is empty" : NULL;
}

static tsr_status add_entries(check *c, const tsr_weight *w, const char *key, tsr_err *err)
{
    entry *const larger = realloc(c->entries, (c->n_entries + w->matrices) * sizeof *larger);
    if (larger == NULL || key == NULL)
        return tsr_out_of_memory(err, "for the tensors to check");
    c->entries = larger;
    for (uint64_t matrix = 0; matrix < w->matrices; matrix++)
        c->entries[c->n_entries++] = (entry){key, w, matrix};
    return TSR_OK;
}

static tsr_status find_entries(check *c, tsr_evidence *evidence, tsr_err *err)
{
    const tsr_weights *const weights = c->options->side.weights;
    for (size_t i = 0; i < weights->count; i++) {
        const tsr_weight *const w = &weights->items[i];
        const char *const name = w->values->name;
        if (w->coding == TSR_PLAIN || !tsr_is_selected(c->options, name))
            continue;
        const char *why = unfit_because(w);
        if (why == NULL && c->options->activations != NULL &&
            tsr_activations_find(c->options->activations, name) == NULL)
            why = "the file of activations has none for it";
        TSR_TRY(why == NULL ? add_entries(c, w, key_of(&c->arena, name), err)
                            : tsr_evidence_skip(evidence, name, why, err));
    }
    if (c->n_entries == 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: no tensor of e4m3 with block scales %s",
                        c->options->side.checkpoint->path,
                        evidence->n_skipped > 0 ? "that could be checked" : "there, or none by that name");
    return TSR_OK;
}

static bool alike(const entry *a, const entry *b)
{
    const tsr_weight *const x = a->weight, *const y = b->weight;
    return strcmp(a->key, b->key) == 0 && x->rows == y->rows && x->cols == y->cols && x->block_rows == y->block_rows &&
           x->block_cols == y->block_cols;
}

static tsr_status make_jobs(check *c, tsr_evidence *evidence, tsr_err *err)
{
    qsort(c->entries, c->n_entries, sizeof *c->entries, by_key);
    c->jobs = malloc(c->n_entries * sizeof *c->jobs);
    if (c->jobs == NULL)
        return tsr_out_of_memory(err, "for the tensors to check");
    for (size_t i = 0; i < c->n_entries; i++) {
        if (i == 0 || !alike(&c->entries[i - 1], &c->entries[i]))
            c->jobs[c->n_jobs++] = i;
    }
    evidence->candidates = c->n_jobs;
    c->n_jobs = tsr_sample(c->options, c->jobs, c->n_jobs);
    evidence->subjects = c->n_jobs;
    return TSR_OK;
}

/* ---- operands ---- */

static void *take(operands *o, size_t n, size_t size)
{
    return tsr_arena_alloc(&o->arena, n * size + 64);
}

/* The experts of a job: all, or some of the seed's choice. */
static tsr_status choose_experts(operands *o, size_t job, tsr_err *err)
{
    const check *const c = o->c;
    size_t end = c->jobs[job] + 1, n = 0;
    while (end < c->n_entries && alike(&c->entries[c->jobs[job]], &c->entries[end]))
        end++;
    const size_t all = end - c->jobs[job];
    entry *const experts = take(o, all, sizeof *experts);
    if (experts == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu experts", all);
    const uint64_t wanted = tsr_min_u64(c->options->experts, all);
    for (size_t i = 0; i < all; i++) {
        if (tsr_mix(c->options->seed ^ tsr_mix(i)) % (all - i) < wanted - n)
            experts[n++] = c->entries[c->jobs[job] + i];
    }
    o->experts = experts;
    o->n_experts = n;
    return TSR_OK;
}

/* Tokens go to experts at random: some get several, some none, and the first never none. */
static void route(operands *o, uint64_t seed)
{
    const size_t tokens = (size_t)o->c->options->tokens, most = tokens / 4 + 1;
    o->first[0] = 0;
    for (size_t e = 0; e < o->n_experts; e++) {
        const size_t share = o->n_experts == 1 ? tokens : e == 0 ? most : (size_t)(tsr_mix(seed + e) % (most + 1));
        o->first[e + 1] = o->first[e] + share;
    }
    o->m = o->first[o->n_experts];
}

/* Rows that are judged, evenly strewn over all experts' tokens. */
static void choose_rows(operands *o, uint64_t seed)
{
    o->rows = (tsr_columns){.rows = o->m, .block = 1, .blocks = o->m, .seed = tsr_mix(seed)};
    o->rows.chosen = tsr_min_u64(o->m, JUDGED_ROWS);
    o->judged = (size_t)o->rows.chosen;
    for (size_t e = 0, i = 0; e <= o->n_experts; e++) {
        while (i < o->judged && tsr_column_of(&o->rows, i) < o->first[e])
            i++;
        o->first_judged[e] = i;
    }
}

static tsr_status get_activations(operands *o, uint64_t seed, tsr_err *err)
{
    const tsr_checkpoint *const file = o->c->options->activations;
    o->x = take(o, o->m * o->k, sizeof *o->x);
    if (o->x == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for activations of '%s'", o->name);
    if (file == NULL) {
        tsr_activations_draw(seed, o->m, o->k, o->x);
        return TSR_OK;
    }
    for (size_t e = 0; e < o->n_experts; e++) {
        const tsr_tensor *const t = tsr_activations_find(file, o->experts[e].weight->values->name);
        const size_t share = o->first[e + 1] - o->first[e];
        size_t m = share;
        TSR_TRY(tsr_activations_read(file, t, &m, o->k, o->x + o->first[e] * o->k, err));
        /* Where the file has fewer, they come again. */
        for (size_t i = m; m > 0 && i < share; i++)
            memcpy(o->x + (o->first[e] + i) * o->k, o->x + (o->first[e] + i % m) * o->k, o->k * sizeof *o->x);
    }
    return TSR_OK;
}

static tsr_status shape_operands(operands *o, size_t job, tsr_err *err)
{
    const tsr_kernel_options *const options = o->c->options;
    TSR_TRY(choose_experts(o, job, err));
    const tsr_weight *const w = o->experts[0].weight;
    const uint64_t seed = tsr_seed_of(options->seed, o->name);
    o->first = take(o, o->n_experts + 1, sizeof *o->first);
    o->first_judged = take(o, o->n_experts + 1, sizeof *o->first_judged);
    if (o->first == NULL || o->first_judged == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", o->name);
    route(o, seed);
    choose_rows(o, seed);
    o->columns = tsr_choose_columns(options, w->rows, w->block_rows, seed);
    o->block_n = (size_t)w->block_rows;
    o->block_k = (size_t)w->block_cols;
    o->n = (size_t)tsr_columns_count(&o->columns);
    o->k = (size_t)w->cols;
    o->padded = tsr_padded(o->k);
    o->grid_n = (size_t)o->columns.chosen;
    o->grid_k = tsr_ceil_div(o->k, o->block_k);
    TSR_TRY(get_activations(o, seed, err));
    o->a = take(o, o->m * o->k, 1);
    o->scale_a = take(o, o->grid_k * o->m, sizeof *o->scale_a);
    o->w = take(o, o->n_experts * o->n * o->k, 1);
    o->scale_w = take(o, o->n_experts * o->grid_n * o->grid_k, sizeof *o->scale_w);
    o->original = take(o, o->judged * o->n, sizeof *o->original);
    o->exact = take(o, o->judged * o->n, sizeof *o->exact);
    if (o->a == NULL || o->scale_a == NULL || o->w == NULL || o->scale_w == NULL || o->original == NULL ||
        o->exact == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the operands of '%s'", o->name);
    return TSR_OK;
}

static tsr_fp8_gemm_args expert_args(const operands *o, size_t e)
{
    return (tsr_fp8_gemm_args){
        .a = o->a + o->first[e] * o->k,
        .w = o->w + e * o->n * o->k,
        .scale_a = o->scale_a + o->first[e],
        .scale_w = o->scale_w + e * o->grid_n * o->grid_k,
        .m = o->first[e + 1] - o->first[e],
        .n = o->n,
        .k = o->k,
        .ld_scale_a = o->m,
        .ldd = o->n,
        .block_n = o->block_n,
        .block_k = o->block_k,
    };
}

static tsr_status add_fault(operands *o, const char *what, const char *fault, tsr_err *err)
{
    const tsr_judgement j = {.subject = o->name,
                             .what = what,
                             .kind = TSR_ERROR_CHECKPOINT,
                             .of_bound = -1,
                             .of_expected = -1,
                             .fault = fault};
    o->unfit = true;
    return tsr_evidence_add(o->evidence, &j, err);
}

/* A product of NaN says nothing: the first one is named instead. */
static tsr_status check_band(operands *o, const tsr_weight *w, uint64_t row, size_t rows, const uint8_t *codes,
                             const float *scales, tsr_err *err)
{
    char text[128];
    for (size_t i = 0; i < o->grid_k; i++) {
        if (isfinite(scales[i]))
            continue;
        snprintf(text, sizeof text, "the scale of rows %llu.., columns %zu.. is %g", (unsigned long long)row,
                 i * o->block_k, (double)scales[i]);
        return add_fault(o, w->values->name, text, err);
    }
    for (size_t i = 0; i < rows * o->k; i++) {
        if ((codes[i] & 0x7F) != 0x7F)
            continue;
        snprintf(text, sizeof text, "the code at [%llu, %zu] is NaN", (unsigned long long)row + i / o->k, i % o->k);
        return add_fault(o, w->values->name, text, err);
    }
    return TSR_OK;
}

/* Rows of the loaded piece as doubles, padded: what a reader of the checkpoint gets. */
static void values_of(const operands *o, const tsr_weight_reader *reader, size_t rows, double *values)
{
    for (size_t i = 0; i < rows; i++) {
        memset(values + i * o->padded + o->k, 0, (o->padded - o->k) * sizeof *values);
        tsr_weight_reader_row(reader, i, 0, o->k, values + i * o->padded);
    }
}

/* The original of a weight into a reader of its own; of the weight itself where originals are unknown. */
static tsr_status load_original(operands *o, const tsr_weight *w, const tsr_piece *piece, tsr_view *view,
                                const tsr_weight_reader **from, tsr_err *err)
{
    const tsr_side *const against = o->c->options->against;
    const tsr_weight *original;
    *from = &o->readers[0];
    if (against == NULL)
        return TSR_OK;
    *from = &o->readers[1];
    TSR_TRY(tsr_find_original(against, w, &original, err));
    return tsr_load_piece(&o->readers[1], against, original, piece, view, o->evidence, err);
}

/* The tokens of one expert that are judged. */
typedef struct judged_rows {
    size_t m;
    double *x, *a;  /* [m][padded]: as they were, and their codes */
    float *scale_a; /* [grid_k][m] */
} judged_rows;

/* Block `band` of those chosen: into the operands, and through the oracle. */
static tsr_status do_band(operands *o, size_t e, size_t band, const judged_rows *judged, double *values, tsr_err *err)
{
    const tsr_weight *const w = o->experts[e].weight;
    const uint64_t row = tsr_column_block(&o->columns, band) * o->block_n;
    const size_t rows = (size_t)tsr_min_u64(o->block_n, w->rows - row), at = band * o->block_n;
    const tsr_piece piece = {.matrix = o->experts[e].matrix, .row = row, .rows = rows, .cols = o->k};
    const size_t to = o->first_judged[e] * o->n + at;
    tsr_fp8_gemm_args args = expert_args(o, e);
    uint8_t *const codes = o->w + (e * o->n + at) * o->k;
    float *const scales = o->scale_w + (e * o->grid_n + band) * o->grid_k;
    tsr_view view[2];
    const tsr_weight_reader *from;
    TSR_TRY(tsr_load_piece(&o->readers[0], &o->c->options->side, w, &piece, &view[0], o->evidence, err));
    memcpy(codes, o->readers[0].bytes, rows * o->k);
    for (size_t i = 0; i < o->grid_k; i++)
        scales[i] = (float)o->readers[0].scales[i];
    TSR_TRY(check_band(o, w, row, rows, codes, scales, err));
    if (o->unfit)
        return TSR_OK;
    TSR_TRY(load_original(o, w, &piece, &view[1], &from, err));
    const double began = tsr_now();
    values_of(o, from, rows, values);
    tsr_product(judged->x, values, judged->m, rows, o->padded, o->original + to, o->n);
    tsr_gemm_decode(codes, rows, o->k, values);
    args.w = codes;
    args.scale_w = scales;
    args.n = rows;
    args.m = args.ld_scale_a = judged->m;
    args.scale_a = judged->scale_a;
    tsr_gemm_exact(&args, judged->a, values, o->exact + to, o->n);
    o->evidence->phases[TSR_PHASE_ORACLE] += tsr_now() - began;
    return TSR_OK;
}

static void gather_judged(const operands *o, size_t e, judged_rows *judged)
{
    for (size_t i = 0; i < judged->m; i++) {
        const size_t row = (size_t)tsr_column_of(&o->rows, o->first_judged[e] + i);
        double *const x = judged->x + i * o->padded;
        memset(x + o->k, 0, (o->padded - o->k) * sizeof *x);
        tsr_decode(TSR_BF16, (const unsigned char *)(o->x + row * o->k), o->k, x);
        tsr_gemm_decode(o->a + row * o->k, 1, o->k, judged->a + i * o->padded);
        for (size_t t = 0; t < o->grid_k; t++)
            judged->scale_a[t * judged->m + i] = o->scale_a[t * o->m + row];
    }
}

static tsr_status do_expert(operands *o, size_t e, tsr_err *err)
{
    const size_t from = o->first[e], m = o->first_judged[e + 1] - o->first_judged[e];
    judged_rows judged = {.m = m};
    double *const values = malloc(o->block_n * o->padded * sizeof *values);
    tsr_status status = TSR_OK;
    judged.x = malloc(m * o->padded * sizeof *judged.x + 64);
    judged.a = malloc(m * o->padded * sizeof *judged.a + 64);
    judged.scale_a = malloc(m * o->grid_k * sizeof *judged.scale_a + 64);
    if (judged.x == NULL || judged.a == NULL || judged.scale_a == NULL || values == NULL)
        status = tsr_fail(err, TSR_E_NOMEM, "out of memory for the operands of '%s'", o->name);
    const double began = tsr_now();
    if (status == TSR_OK) {
        tsr_quantize_tokens_e4m3(o->x + from * o->k, o->first[e + 1] - from, o->k, (size_t)o->c->options->group_rows,
                                 o->block_k, o->a + from * o->k, o->scale_a + from, o->m);
        gather_judged(o, e, &judged);
        o->evidence->phases[TSR_PHASE_QUANTIZE] += tsr_now() - began;
    }
    for (size_t band = 0; status == TSR_OK && band < o->grid_n && !o->unfit; band++)
        status = do_band(o, e, band, &judged, values, err);
    free(judged.x);
    free(judged.a);
    free(judged.scale_a);
    free(values);
    return status;
}

/* ---- judging ---- */

static tsr_status judge_quantization(operands *o, tsr_err *err)
{
    const tsr_kernel_options *const options = o->c->options;
    const bool both = options->against != NULL;
    const double limit = !isnan(options->limits.min_sqnr) ? options->limits.min_sqnr : both ? 27 : 30;
    tsr_judgement j = {.subject = o->name,
                       .kind = TSR_ERROR_QUANTIZATION,
                       .of_bound = -1,
                       .of_expected = -1,
                       .what = both ? "weights and activations" : "activations"};
    char text[128];
    const double began = tsr_now();
    double *const y = malloc(o->judged * o->n * sizeof *y + 64);
    if (y == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the results of '%s'", o->name);
    for (size_t i = 0; i < o->judged * o->n; i++)
        y[i] = o->exact[i].value;
    tsr_judge(&j, o->original, y, o->judged, o->n, &o->rows, &o->columns);
    free(y);
    if (!(tsr_metrics_sqnr(&j.metrics) >= limit)) {
        snprintf(text, sizeof text, "SQNR %.2f dB is below %g", tsr_metrics_sqnr(&j.metrics), limit);
        j.fault = text;
    }
    o->evidence->phases[TSR_PHASE_JUDGE] += tsr_now() - began;
    return tsr_evidence_add(o->evidence, &j, err);
}

static tsr_status judge_kernel(operands *o, const char *name, tsr_accumulation accumulation, tsr_out out,
                               const float *d, const char *fault, tsr_err *err)
{
    const tsr_kernel_limits *const limits = &o->c->options->limits;
    tsr_judgement j = {.subject = o->name, .kind = TSR_ERROR_KERNEL, .what = name, .fault = fault};
    char text[160];
    const double began = tsr_now();
    double *const exact = malloc(2 * o->judged * o->n * sizeof *exact + 64);
    double sum = 0;
    if (exact == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the results of '%s'", o->name);
    double *const y = exact + o->judged * o->n;
    for (size_t i = 0; i < o->judged * o->n; i++) {
        const tsr_exact *const e = &o->exact[i];
        const double bound = tsr_gemm_bound(e, accumulation, out, o->k);
        exact[i] = e->value;
        y[i] = !isfinite(d[i]) && tsr_may_overflow(out, fabs(e->value) + bound, e->mass) ? e->value : (double)d[i];
        const double error = fabs(y[i] - e->value);
        j.of_bound = fmax(j.of_bound, isnan(error) ? INFINITY : error / bound);
        sum += error * error / tsr_gemm_variance(e, accumulation, out, o->k);
    }
    j.of_expected = sqrt(sum / (double)(o->judged * o->n));
    tsr_judge(&j, exact, y, o->judged, o->n, &o->rows, &o->columns);
    free(exact);
    if (j.fault == NULL && !(j.of_bound <= limits->max_kernel_error)) {
        snprintf(text, sizeof text, "the largest error is %.3g times what the accumulation can do at most", j.of_bound);
        j.fault = text;
    } else if (j.fault == NULL && !(j.of_expected <= limits->max_kernel_rms)) {
        snprintf(text, sizeof text, "the RMS error is %.3g times what the accumulation does in the mean",
                 j.of_expected);
        j.fault = text;
    }
    o->evidence->phases[TSR_PHASE_JUDGE] += tsr_now() - began;
    return tsr_evidence_add(o->evidence, &j, err);
}

/* ---- layouts and kernels ---- */

/* Operands as they lie before a kernel, and where each of the rows is in them. */
typedef struct laid_out {
    tsr_grouped_gemm grouped;
    size_t *place; /* [m]: the row in grouped.gemm of a row of the operands */
    uint8_t *a;
    float *scale_a, *d, *results; /* d [grouped.gemm.m][n]; results [judged][n] */
    int32_t *per_row, *per_expert;
} laid_out;

static void free_laid_out(laid_out *l)
{
    free(l->place);
    free(l->a);
    free(l->scale_a);
    free(l->d);
    free(l->results);
    free(l->per_row);
    free(l->per_expert);
}

static size_t rows_of(const operands *o, layout kind, const size_t *first)
{
    size_t rows = 0, most = 0;
    for (size_t e = 0; e < o->n_experts; e++) {
        const size_t m = first[e + 1] - first[e];
        rows += kind == CONTIGUOUS ? tsr_round_up(m, ALIGN_ROWS) : m;
        most = m > most ? m : most;
    }
    return kind == MASKED ? most * o->n_experts : rows;
}

/* All rows, or those that are judged. */
static tsr_status lay_out(const operands *o, layout kind, bool all, laid_out *l, tsr_err *err)
{
    const size_t *const first = all ? o->first : o->first_judged;
    const size_t m = rows_of(o, kind, first);
    l->place = calloc(o->m + 1, sizeof *l->place);
    l->a = malloc(m * o->k + 64);
    l->scale_a = malloc(m * o->grid_k * sizeof *l->scale_a + 64);
    l->d = malloc(m * o->n * sizeof *l->d + 64);
    l->results = malloc(o->judged * o->n * sizeof *l->results + 64);
    l->per_row = malloc(m * sizeof *l->per_row + 64);
    l->per_expert = calloc(o->n_experts, sizeof *l->per_expert);
    if (l->place == NULL || l->a == NULL || l->scale_a == NULL || l->d == NULL || l->results == NULL ||
        l->per_row == NULL || l->per_expert == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the operands of '%s'", o->name);
    memset(l->a, 0x7F, m * o->k); /* padding is NaN: whoever reads it shows it */
    for (size_t i = 0; i < m * o->grid_k; i++)
        l->scale_a[i] = NAN;
    memset(l->per_row, 0xFF, m * sizeof *l->per_row);
    for (size_t e = 0, row = 0; e < o->n_experts; e++) {
        const size_t share = first[e + 1] - first[e];
        if (kind == MASKED)
            row = m / o->n_experts * e;
        l->per_expert[e] = (int32_t)share;
        for (size_t i = 0; i < share; i++) {
            const size_t from = all ? first[e] + i : (size_t)tsr_column_of(&o->rows, first[e] + i), to = row + i;
            l->place[from] = to;
            l->per_row[to] = (int32_t)e;
            memcpy(l->a + to * o->k, o->a + from * o->k, o->k);
            for (size_t t = 0; t < o->grid_k; t++)
                l->scale_a[t * m + to] = o->scale_a[t * o->m + from];
        }
        row += kind == CONTIGUOUS ? tsr_round_up(share, ALIGN_ROWS) : share;
    }
    l->grouped.gemm = expert_args(o, 0);
    l->grouped.gemm.a = l->a;
    l->grouped.gemm.scale_a = l->scale_a;
    l->grouped.gemm.d = l->d;
    l->grouped.gemm.m = l->grouped.gemm.ld_scale_a = m;
    l->grouped.groups = o->n_experts;
    l->grouped.expert_of_row = l->per_row;
    l->grouped.rows_of_expert = kind == MASKED ? l->per_expert : NULL;
    return TSR_OK;
}

/* The results of the rows that are judged; what is wrong with the others, or NULL. */
static const char *gather(const operands *o, const laid_out *l)
{
    const char *fault = NULL;
    for (size_t i = 0; i < o->judged; i++)
        memcpy(l->results + i * o->n, l->d + l->place[tsr_column_of(&o->rows, i)] * o->n, o->n * sizeof *l->d);
    for (size_t row = 0; row < l->grouped.gemm.m; row++) {
        for (size_t j = 0; l->per_row[row] < 0 && j < o->n; j++) {
            if (!isnan(l->d[row * o->n + j]))
                fault = "it wrote to rows of padding";
        }
    }
    return fault;
}

static tsr_status run_kernel(operands *o, const tsr_device_gemm *kernel, const char *layout_name, laid_out *l,
                             tsr_err *err)
{
    char name[128];
    bool ran = false;
    for (tsr_out out = TSR_OUT_F32 + 1; out-- > 0;) { /* F32 first: the others may be made of it */
        const double began = tsr_now();
        const tsr_out run_as = kernel->rounds_last ? TSR_OUT_F32 : out;
        if ((o->c->outs >> out & 1) == 0)
            continue;
        const size_t cells = l->grouped.gemm.m * o->n;
        if (!ran || !kernel->rounds_last) {
            memset(l->d, 0xFF, cells * sizeof *l->d); /* NaN */
            tsr_err why = {{0}};
            const tsr_status status = tsr_device_run_grouped(kernel, &l->grouped, run_as, &why);
            if (status == TSR_E_UNSUPPORTED)
                return tsr_evidence_skip(o->evidence, o->name, why.msg, err);
            if (status != TSR_OK)
                return tsr_fail(err, status, "%s", why.msg);
            ran = true;
        }
        const char *const fault = gather(o, l);
        if (kernel->rounds_last)
            tsr_out_round(out, l->results, o->judged * o->n);
        o->evidence->phases[TSR_PHASE_KERNELS] += tsr_now() - began;
        snprintf(name, sizeof name, "%s%s, %s", kernel->name, layout_name, tsr_out_name(out));
        TSR_TRY(judge_kernel(o, name, kernel->accumulation, out, l->results, fault, err));
    }
    return TSR_OK;
}

static tsr_status run_layout(operands *o, layout kind, tsr_err *err)
{
    static const char *const kNames[] = {"", ", contiguous", ", masked"};
    const tsr_device *const device = o->c->options->device;
    laid_out whole = {0}, judged = {0};
    tsr_status status = lay_out(o, kind, true, &whole, err);
    if (status == TSR_OK)
        status = lay_out(o, kind, false, &judged, err);
    for (size_t i = 0; status == TSR_OK && i < device->n_gemms; i++)
        status = run_kernel(o, &device->gemms[i], kNames[kind], device->gemms[i].row_by_row ? &judged : &whole, err);
    free_laid_out(&whole);
    free_laid_out(&judged);
    return status;
}

static tsr_status fill_and_judge(operands *o, size_t job, tsr_err *err)
{
    TSR_TRY(shape_operands(o, job, err));
    if (o->c->options->activations != NULL && tsr_activations_are_zero(o->x, o->m * o->k))
        return tsr_evidence_skip(o->evidence, o->name, TSR_ZERO_ACTIVATIONS, err);
    for (size_t e = 0; e < o->n_experts && !o->unfit; e++)
        TSR_TRY(do_expert(o, e, err));
    if (o->unfit)
        return TSR_OK;
    TSR_TRY(judge_quantization(o, err));
    if (o->n_experts == 1)
        return run_layout(o, PLAIN, err);
    TSR_TRY(run_layout(o, CONTIGUOUS, err));
    return run_layout(o, MASKED, err);
}

static tsr_status do_job(void *context, size_t at, tsr_evidence *evidence, tsr_err *err)
{
    const check *const c = context;
    operands o = {.c = c, .evidence = evidence, .name = c->entries[c->jobs[at]].key};
    const tsr_status status = fill_and_judge(&o, at, err);
    for (size_t i = 0; i < 2; i++)
        tsr_weight_reader_free(&o.readers[i]);
    tsr_arena_free(&o.arena);
    return status;
}

tsr_status tsr_check_gemm(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence, tsr_err *err)
{
    check c = {.options = options, .outs = outs};
    tsr_status status;
    TSR_GOTO(find_entries(&c, evidence, err));
    TSR_GOTO(make_jobs(&c, evidence, err));
    TSR_GOTO(tsr_run_jobs(options, c.n_jobs, do_job, &c, evidence, err));
    status = tsr_evidence_require(evidence, true, options->side.checkpoint->path, err);
out:
    free(c.entries);
    free(c.jobs);
    tsr_arena_free(&c.arena);
    return status;
}
