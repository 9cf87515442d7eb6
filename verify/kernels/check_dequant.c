/* Checks the codes of one weight in all layouts and with all converters. */
#include "verify/kernels/check_dequant.h"

#include "common/checked.h"
#include "common/parallel/threads.h"
#include "kernels/cpu/ft_layout.h"
#include "verify/evidence/activations.h"
#include "verify/kernels/check_mx_dequant.h"
#include "verify/kernels/check_weight_only.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 128 /* rows read at a time */ };

typedef struct check {
    const tsr_kernel_options *options;
    unsigned outs;
    size_t *jobs;                             /* indices of weights */
    tsr_ft_format formats[2][TSR_FT_LAYOUTS]; /* for int8 and for int4; those that some consumer reads */
    size_t n_formats[2];
} check;

typedef struct operands {
    const check *c;
    tsr_evidence *evidence;
    tsr_arena arena;
    const tsr_weight *weight;
    const char *name;
    tsr_columns columns; /* columns of the layout: rows */
    size_t n, k;
    int8_t *codes;    /* [n][k] */
    uint32_t *words;  /* codes in the layout */
    uint16_t *values; /* converted, in the order of the words' elements */
    double *x, *y;    /* [n][k] */
} operands;

static bool known(const check *c, const tsr_ft_format *format)
{
    const size_t width = format->bits == 4;
    for (size_t i = 0; i < c->n_formats[width]; i++) {
        if (c->formats[width][i].layout == format->layout)
            return true;
    }
    return false;
}

/* Lists each layout that some version reads on some architecture. */
static void list_formats(check *c)
{
    static const int kArchs[] = {70, 75, 80, 86, 89, 90, 100};
    for (unsigned i = 0; i < TSR_FT_PRODUCERS * 7 * 8; i++) {
        const tsr_ft_target target = {
            .producer = (tsr_ft_producer)(i / 56),
            .arch = kArchs[i / 8 % 7],
            .bits = i & 1 ? 4 : 8,
            .fp8_activations = i & 2,
            .force_interleave = i & 4,
        };
        const size_t width = target.bits == 4;
        tsr_ft_format format;
        if (tsr_ft_format_of(&target, &format, NULL) == TSR_OK && !known(c, &format))
            c->formats[width][c->n_formats[width]++] = format;
    }
}

static const char *unfit_because(const tsr_weight *w)
{
    if (tsr_has_small_groups(w))
        return tsr_mx_unfit(w);
    if (w->coding != TSR_CODED_INT8 && w->coding != TSR_CODED_PACKED)
        return tsr_without_kernels(w) != NULL ? tsr_without_kernels(w) : "";
    return w->rows > 0 && w->cols > 0 && w->matrices == 1 ? NULL : "it is no matrix";
}

static tsr_status shape_operands(operands *o, tsr_err *err)
{
    o->columns = tsr_choose_columns(o->c->options, o->weight->rows, ROWS, tsr_seed_of(o->c->options->seed, o->name));
    o->n = (size_t)tsr_columns_count(&o->columns);
    o->k = (size_t)o->weight->cols;
    const size_t cells = o->n * o->k;
    o->codes = tsr_arena_alloc(&o->arena, cells);
    o->words = tsr_arena_alloc(&o->arena, cells + sizeof *o->words);
    o->values = tsr_arena_alloc(&o->arena, (cells + 8) * sizeof *o->values);
    o->x = tsr_arena_alloc(&o->arena, cells * sizeof *o->x);
    o->y = tsr_arena_alloc(&o->arena, cells * sizeof *o->y);
    return o->codes != NULL && o->words != NULL && o->values != NULL && o->x != NULL && o->y != NULL
               ? TSR_OK
               : tsr_fail(err, TSR_E_NOMEM, "out of memory for the codes of '%s'", o->name);
}

/* Unpacks one row of stored codes to two's complement. */
static void unpack(const tsr_weight *w, const unsigned char *bytes, size_t k, int8_t *codes)
{
    for (size_t i = 0; i < k; i++) {
        if (w->coding == TSR_CODED_INT8)
            codes[i] = (int8_t)bytes[i];
        else if (w->bits == 8)
            codes[i] = (int8_t)(bytes[i] - 128);
        else
            codes[i] = (int8_t)((bytes[i / 2] >> 4 * (i % 2) & 15) - 8);
    }
}

static tsr_status read_codes(operands *o, tsr_err *err)
{
    const tsr_weight *const w = o->weight;
    const size_t row_bytes = w->coding == TSR_CODED_INT8 ? o->k : tsr_ceil_div(o->k * w->bits, 32) * 4;
    tsr_weight_reader reader = {0};
    tsr_status status = TSR_OK;
    for (size_t band = 0; status == TSR_OK && band < o->columns.chosen; band++) {
        const uint64_t row = tsr_column_block(&o->columns, band) * ROWS;
        const tsr_piece piece = {.row = row, .rows = tsr_min_u64(ROWS, w->rows - row), .cols = o->k};
        tsr_view view;
        status = tsr_load_piece(&reader, &o->c->options->side, w, &piece, &view, o->evidence, err);
        for (size_t i = 0; status == TSR_OK && i < piece.rows; i++)
            unpack(w, reader.bytes + i * row_bytes, o->k, o->codes + (band * ROWS + i) * o->k);
    }
    for (size_t i = 0; i < o->n * o->k; i++)
        o->x[i] = o->codes[i];
    tsr_weight_reader_free(&reader);
    return status;
}

/* Compares y with x. They must be equal. */
static tsr_status judge(operands *o, const char *what, tsr_err *err)
{
    tsr_judgement j = {.subject = o->name, .kind = TSR_ERROR_KERNEL, .what = what, .of_bound = -1, .of_expected = -1};
    char text[96];
    const double began = tsr_now();
    tsr_judge(&j, o->x, o->y, o->n, o->k, NULL, &o->columns);
    if (j.metrics.differ > 0) {
        const uint64_t row = tsr_column_of(&o->columns, j.metrics.max_abs_at / o->k);
        snprintf(j.worst_at, sizeof j.worst_at, "row %llu, column %llu", (unsigned long long)row,
                 (unsigned long long)(j.metrics.max_abs_at % o->k));
        snprintf(text, sizeof text, "%llu of %llu codes differ from the original ones",
                 (unsigned long long)j.metrics.differ, (unsigned long long)j.metrics.elements);
        j.fault = text;
    }
    o->evidence->phases[TSR_PHASE_JUDGE] += tsr_now() - began;
    return tsr_evidence_add(o->evidence, &j, err);
}

/* Returns the element of a word at position p. Every layout except P stores the even elements first. */
static unsigned element_of(int bits, unsigned p)
{
    static const unsigned kInt8[] = {0, 2, 1, 3}, kInt4[] = {0, 2, 4, 6, 1, 3, 5, 7};
    return bits == 8 ? kInt8[p] : kInt4[p];
}

static double plain_value(tsr_out out, uint16_t bits)
{
    double value;
    tsr_decode(out == TSR_OUT_BF16 ? TSR_BF16 : TSR_F16, (const unsigned char *)&bits, 1, &value);
    return value;
}

static tsr_status check_layout(operands *o, const tsr_ft_format *format, tsr_err *err)
{
    const unsigned char *const bytes = (const unsigned char *)o->words;
    const unsigned mask = format->bits == 4 ? 15 : 255;
    char what[96];
    for (size_t n = 0; n < o->n; n++) {
        for (size_t k = 0; k < o->k; k++) {
            const tsr_ft_place place = tsr_ft_place_of(format, o->k, o->n, k, n);
            const unsigned stored = bytes[place.byte] >> 4 * place.nibble & mask;
            const int code = (int)(stored ^ format->bias);
            o->y[n * o->k + k] = code > (int)(mask / 2) ? code - (int)mask - 1 : code;
        }
    }
    snprintf(what, sizeof what, "layout %s", tsr_ft_layout_name(format->layout));
    return judge(o, what, err);
}

static tsr_status check_converter(operands *o, const tsr_ft_format *format, const tsr_device_dequant *kernel,
                                  tsr_out out, tsr_err *err)
{
    const unsigned per_word = 32u / (unsigned)format->bits;
    char what[128];
    const double began = tsr_now();
    memset(o->values, 0xFF, o->n * o->k * sizeof *o->values); /* NaN */
    TSR_TRY(kernel->run(kernel, format->bits, out, o->words, o->n * o->k / per_word, o->values, err));
    o->evidence->phases[TSR_PHASE_KERNELS] += tsr_now() - began;
    for (size_t n = 0; n < o->n; n++) {
        for (size_t k = 0; k < o->k; k++) {
            const tsr_ft_place place = tsr_ft_place_of(format, o->k, o->n, k, n);
            const size_t position = format->bits == 4 ? 2 * place.byte + place.nibble : place.byte;
            const size_t element =
                position / per_word * per_word + element_of(format->bits, (unsigned)(position % per_word));
            o->y[n * o->k + k] = plain_value(out, o->values[element]);
        }
    }
    snprintf(what, sizeof what, "%s, layout %s, %s", kernel->name, tsr_ft_layout_name(format->layout),
             tsr_out_name(out));
    return judge(o, what, err);
}

static tsr_status check_format(operands *o, const tsr_ft_format *format, tsr_err *err)
{
    const tsr_device *const device = o->c->options->device;
    const tsr_interleave_args args = {.format = format, .k = o->k, .n = o->n, .order = TSR_CODES_NK, .ld = o->k};
    tsr_err why = {0};
    if (tsr_ft_format_check(format, (int64_t)o->k, (int64_t)o->n, &why) != TSR_OK)
        return tsr_evidence_skip(o->evidence, o->name, why.msg, err);
    const double began = tsr_now();
    device->cpu.interleave(&args, (const uint8_t *)o->codes, (uint8_t *)o->words);
    o->evidence->phases[TSR_PHASE_KERNELS] += tsr_now() - began;
    TSR_TRY(check_layout(o, format, err));
    /* Layout P keeps signed codes in plain order: its readers convert them one by one. */
    for (size_t i = 0; format->bias != 0 && i < device->n_dequants; i++) {
        for (tsr_out out = TSR_OUT_BF16; out <= TSR_OUT_F16; out++) {
            if (o->c->outs >> out & 1)
                TSR_TRY(check_converter(o, format, &device->dequants[i], out, err));
        }
    }
    if (format->layout != TSR_FT_T) /* products are computed in layout T only */
        return TSR_OK;
    const tsr_weight_only product = {
        .options = o->c->options,
        .outs = o->c->outs,
        .weight = o->weight,
        .columns = &o->columns,
        .format = format,
        .codes = o->codes,
        .words = o->words,
        .n = o->n,
        .k = o->k,
    };
    return tsr_judge_weight_only(&product, o->evidence, err);
}

/* Checks a weight in small groups. In a stack the seed selects one matrix. */
static tsr_status do_small_groups(const check *c, const tsr_weight *w, tsr_evidence *evidence, tsr_err *err)
{
    const uint64_t matrix = tsr_seed_of(c->options->seed, w->values->name) % w->matrices;
    const tsr_mx_subject subject = {
        .options = c->options,
        .weight = w,
        .matrix = matrix,
        .name = tsr_mx_subject_name(&evidence->arena, w, matrix),
    };
    if (subject.name == NULL)
        return tsr_out_of_memory(err, "for the name of a matrix");
    if ((c->outs & 1u << TSR_OUT_BF16) == 0)
        return tsr_evidence_skip(evidence, subject.name, "values of small groups can be decoded to BF16 only", err);
    return tsr_judge_mx_dequant(&subject, evidence, err);
}

static tsr_status do_job(void *context, size_t at, tsr_evidence *evidence, tsr_err *err)
{
    const check *const c = context;
    const tsr_weight *const w = &c->options->side.weights->items[c->jobs[at]];
    if (tsr_has_small_groups(w))
        return do_small_groups(c, w, evidence, err);
    const size_t width = w->bits == 4;
    operands o = {.c = c, .evidence = evidence, .weight = w, .name = w->values->name};
    tsr_status status = shape_operands(&o, err);
    if (status == TSR_OK)
        status = read_codes(&o, err);
    for (size_t i = 0; status == TSR_OK && i < c->n_formats[width]; i++)
        status = check_format(&o, &c->formats[width][i], err);
    tsr_arena_free(&o.arena);
    return status;
}

static const tsr_subjects kSubjects = {.unfit = unfit_because, .kind = "int8 or int4 weight, MXFP4, NVFP4 or MXFP8"};

tsr_status tsr_dequant_applies(const tsr_kernel_options *options, tsr_err *err)
{
    return tsr_subjects_exist(options, &kSubjects, err);
}

tsr_status tsr_check_dequant(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence, tsr_err *err)
{
    check c = {.options = options, .outs = outs};
    if ((outs & (1u << TSR_OUT_BF16 | 1u << TSR_OUT_F16)) == 0)
        return tsr_fail(err, TSR_E_USAGE, "--out f32 is not supported here; use bf16 or f16");
    list_formats(&c);
    return tsr_run_check(options, &kSubjects, &c.jobs, do_job, &c, evidence, err);
}
