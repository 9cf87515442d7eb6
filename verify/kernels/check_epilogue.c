/* Runs and judges every epilogue over the operands of each int8 weight. */
#include "verify/kernels/check_epilogue.h"

#include "common/parallel/threads.h"
#include "verify/evidence/activations.h"
#include "verify/evidence/kernel_tally.h"
#include "verify/kernels/epilogue_operands.h"
#include "verify/kernels/gemm_oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_K = 65793 /* the longest sum of int8 products that cannot overflow int32 */ };

/* With fewer used codes, four of the eight bits are wasted. No calibration is that inaccurate. */
static const int kMinCodes = 16;

/* Relative bias of correct results. FP32 rounds to nearest and has none; this allows for rounding in double. */
static const double kSlope = 0x1p-20;

/* An epilogue and the granularity of its scales. */
typedef struct variant {
    const char *name;
    unsigned quantization;
    bool bias, with_adj, per_token_azp;
} variant;

static const variant kVariants[] = {
    {"scaled", TSR_SYMMETRIC, false, false, false},
    {"scaled", TSR_SYMMETRIC | TSR_PER_TENSOR, false, false, false},
    {"scaled + bias", TSR_SYMMETRIC, true, false, false},
    {"scaled + bias", TSR_SYMMETRIC | TSR_PER_TENSOR, true, false, false},
    {"azp per tensor", TSR_PER_TENSOR, true, true, false},
    {"azp per token", 0, true, false, true},
    {"azp per token", TSR_PER_TENSOR, true, false, true},
};

static const char *unfit_because(const tsr_weight *w)
{
    if (w->coding == TSR_PLAIN)
        return "";
    if (tsr_without_kernels(w) != NULL)
        return tsr_without_kernels(w);
    if (w->coding != TSR_CODED_INT8)
        return "not int8 of W8A8";
    if (w->zero_point != NULL)
        return "its weights have zero points, which no epilogue supports";
    if (w->block.cols < w->cols || w->matrices != 1)
        return "it has more than one scale a row";
    if (w->cols > MAX_K)
        return "its rows are so long that int32 may overflow";
    return w->rows == 0 || w->cols == 0 ? "it is empty" : NULL;
}

/* Returns the exact result of the epilogue, without bias. */
static double scaled_sum(const tsr_epilogue_operands *o, const tsr_quantized *q, size_t i, size_t j, bool one_scale_w)
{
    const double sum = q->sums[i * o->n + j] - (double)q->azp[i] * o->row_sums[j];
    return (double)q->scales[i] * (double)o->scale_w[one_scale_w ? 0 : j] * sum;
}

/* Judges a static scale by two measures: the error of the activations compared with rounding error, and whether the
 * scale is far too large. */
static tsr_status judge_input(tsr_epilogue_operands *o, tsr_err *err)
{
    const tsr_kernel_options *const options = o->c->options;
    const tsr_epilogue_input *const input = &o->input;
    const double limit = options->limits.min_sqnr, step = (double)input->scale;
    const size_t n = o->m * o->k;
    tsr_judgement j = {
        .subject = o->name, .kind = TSR_ERROR_QUANTIZATION, .of_bound = -1, .what = "activations, by input_scale"};
    char text[160];
    uint64_t beyond = 0;
    int least = 127, largest = -128;
    if (input->quantization == TSR_QUANTIZATIONS)
        return TSR_OK;
    double *const x = malloc(2 * n * sizeof *x + 64);
    if (x == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the activations of '%s'", o->name);
    double *const y = x + n;
    tsr_decode(TSR_BF16, (const unsigned char *)o->x, n, x);
    for (size_t i = 0; i < n; i++) {
        const int code = o->q[input->quantization].codes[i];
        y[i] = step * (code - input->zero_point);
        least = code < least ? code : least;
        largest = code > largest ? code : largest;
        beyond += x[i] < input->low - step / 2 || x[i] > input->high + step / 2;
    }
    tsr_judge(&j, x, y, o->m, o->k, NULL, NULL);
    free(x);
    j.of_expected = sqrt(j.metrics.sum_d2 / ((double)n * step * step / 12));
    if (j.metrics.differ > 0)
        snprintf(j.worst_at, sizeof j.worst_at, "token %llu, input %llu",
                 (unsigned long long)(j.metrics.max_abs_at / o->k), (unsigned long long)(j.metrics.max_abs_at % o->k));
    if (!isnan(limit) && !(tsr_metrics_sqnr(&j.metrics) >= limit)) {
        snprintf(text, sizeof text, "SQNR %.2f dB is below %g", tsr_metrics_sqnr(&j.metrics), limit);
        j.fault = text;
    } else if (isnan(limit) && !(j.of_expected <= TSR_MAX_OF_ROUNDING)) {
        snprintf(text, sizeof text, "input_scale %g covers %g to %g: %llu of %llu activations are outside", step,
                 input->low, input->high, (unsigned long long)beyond, (unsigned long long)n);
        j.fault = text;
    } else if (isnan(limit) && largest - least + 1 < kMinCodes) {
        snprintf(text, sizeof text, "input_scale %g is too large: the activations use %d of 256 codes", step,
                 largest - least + 1);
        j.fault = text;
    }
    return tsr_evidence_add(o->evidence, &j, err);
}

static tsr_status judge_quantization(tsr_epilogue_operands *o, unsigned quantization, tsr_err *err)
{
    static const char *const kNames[TSR_QUANTIZATIONS] = {"activations per token with azp",
                                                          "activations per tensor with azp", "activations per token",
                                                          "activations per tensor"};
    const tsr_kernel_options *const options = o->c->options;
    const double limit = options->limits.min_sqnr;
    char what[96], text[TSR_MAX_FAULT];
    tsr_judgement j = {.subject = o->name, .kind = TSR_ERROR_QUANTIZATION, .of_bound = -1, .what = what};
    double *const y = malloc(o->m * o->n * sizeof *y + 64);
    double expected = 0;
    if (y == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the results of '%s'", o->name);
    snprintf(what, sizeof what, "%s%s%s", options->against != NULL ? "weights and " : "", kNames[quantization],
             quantization == o->input.quantization ? ", static" : "");
    for (size_t at = 0; at < o->m * o->n; at++) {
        const size_t row = at / o->n, col = at % o->n;
        const double step_a = (double)o->q[quantization].scales[row], step_w = (double)o->scale_w[col];
        y[at] = scaled_sum(o, &o->q[quantization], row, col, false);
        expected += step_a * step_a / 12 * o->w2[col];
        if (options->against != NULL)
            expected += step_w * step_w / 12 * o->x2[row];
    }
    tsr_judge(&j, o->original, y, o->m, o->n, NULL, &o->columns);
    free(y);
    j.of_expected = j.metrics.sum_d2 > 0 ? sqrt(j.metrics.sum_d2 / expected) : 0;
    tsr_limit_rounding(&j, limit, text);
    return tsr_evidence_add(o->evidence, &j, err);
}

/* Integer sums are exact. FP32 rounds the sum, two products and the bias; five steps of 2^-24 bound the total. */
static tsr_status judge_epilogue(tsr_epilogue_operands *o, const tsr_int8_gemm_args *args, const tsr_quantized *q,
                                 tsr_out out, const char *name, tsr_err *err)
{
    const tsr_tally_of of = {
        .subject = o->name, .what = name, .rows = o->m, .cols = o->n, .out = out, .systematic = kSlope};
    tsr_kernel_tally t;
    double *const exact = malloc(2 * o->m * o->n * sizeof *exact + 64);
    if (exact == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the results of '%s'", o->name);
    double *const y = exact + o->m * o->n;
    const tsr_status status = tsr_kernel_tally_begin(&t, &of, err);
    if (status != TSR_OK) {
        free(exact);
        return status;
    }
    for (size_t at = 0; at < o->m * o->n; at++) {
        const double part = scaled_sum(o, q, at / o->n, at % o->n, args->one_scale_w);
        const double bias = args->bias == NULL ? 0 : (double)args->bias[at % o->n];
        const double fp32 = 0x1p-24 * (fabs(part) + fabs(bias)),
                     half = tsr_half_step(out, fabs(part + bias) + 5 * fp32);
        exact[at] = part + bias;
        y[at] = (double)args->d[at];
        if (!isfinite(y[at]) &&
            tsr_may_overflow(out, fabs(part) + fabs(bias) + 5 * fp32, fabs(part) / (double)q->scales[at / o->n]))
            y[at] = exact[at] = part;
        tsr_kernel_tally_count(&t, at / o->n, at % o->n, exact[at], y[at], 5 * fp32 + half,
                               half * half / 3 + 5 * fp32 * fp32);
    }
    tsr_judge(&t.judgement, exact, y, o->m, o->n, NULL, &o->columns);
    free(exact);
    return tsr_kernel_tally_end_by(&t, &o->c->options->limits, "FP32", o->evidence, err);
}

static tsr_status run_variant(tsr_epilogue_operands *o, const tsr_device_epilogue *kernel, const variant *v,
                              bool one_scale_w, float *d, float *bias, tsr_err *err)
{
    const tsr_quantized *const q = &o->q[v->quantization];
    const bool one_scale_a = v->quantization & TSR_PER_TENSOR, is_static = v->quantization == o->input.quantization;
    char name[128];
    for (size_t j = 0; j < o->n; j++)
        o->with_adj[j] = q->azp[0] * o->azp_adj[j];
    for (tsr_out out = 0; out < TSR_N_OUTS; out++) {
        if ((o->c->outs >> out & 1) == 0)
            continue;
        memcpy(bias, o->bias, o->n * sizeof *bias); /* the bias has the type of the result */
        tsr_out_round(out, bias, o->n);
        const tsr_int8_gemm_args args = {
            .a = q->codes,
            .w = o->w,
            .scale_a = q->scales,
            .scale_w = o->scale_w,
            .one_scale_a = one_scale_a,
            .one_scale_w = one_scale_w,
            .azp_with_adj = !v->with_adj ? NULL
                            : is_static  ? o->stated_with_adj
                                         : o->with_adj,
            .azp = v->per_token_azp ? q->azp : NULL,
            .azp_adj = v->per_token_azp ? o->azp_adj : NULL,
            .bias = v->bias ? bias : NULL,
            .d = d,
            .m = o->m,
            .n = o->n,
            .k = o->k,
            .ldd = o->n,
        };
        memset(d, 0xFF, o->m * o->n * sizeof *d); /* NaN */
        double began = tsr_now();
        TSR_TRY(kernel->run(kernel, &args, out, err));
        o->evidence->phases[TSR_PHASE_KERNELS] += tsr_now() - began;
        began = tsr_now();
        snprintf(name, sizeof name, "%s: %s, scales per %s and %s, %s", kernel->name, v->name,
                 is_static     ? "static tensor"
                 : one_scale_a ? "tensor"
                               : "token",
                 one_scale_w ? "tensor" : "channel", tsr_out_name(out));
        TSR_TRY(judge_epilogue(o, &args, q, out, name, err));
        o->evidence->phases[TSR_PHASE_JUDGE] += tsr_now() - began;
    }
    return TSR_OK;
}

static tsr_status fill_and_judge(tsr_epilogue_operands *o, tsr_err *err)
{
    const tsr_device *const device = o->c->options->device;
    TSR_TRY(tsr_epilogue_operands_begin(o, err));
    if (o->c->options->activations != NULL && tsr_activations_are_zero(o->x, o->m * o->k))
        return tsr_evidence_skip(o->evidence, o->name, TSR_ZERO_ACTIVATIONS, err);
    TSR_TRY(judge_input(o, err));
    TSR_TRY(tsr_epilogue_operands_fill(o, err));
    if (o->unfit)
        return TSR_OK;
    for (unsigned i = 0; i < TSR_QUANTIZATIONS; i++)
        TSR_TRY(judge_quantization(o, i, err));
    TSR_TRY(tsr_epilogue_operands_get_azp(o, err));
    float *const d = tsr_arena_alloc(&o->arena, (o->m * o->n + 1) * sizeof *d);
    float *const bias = tsr_arena_alloc(&o->arena, o->n * sizeof *bias);
    if (d == NULL || bias == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the results of '%s'", o->name);
    for (size_t i = 0; i < device->n_epilogues; i++) {
        for (size_t v = 0; v < 2 * (sizeof kVariants / sizeof *kVariants); v++)
            TSR_TRY(run_variant(o, &device->epilogues[i], &kVariants[v / 2], v % 2 == 1, d, bias, err));
    }
    return TSR_OK;
}

static tsr_status do_job(void *context, size_t at, tsr_evidence *evidence, tsr_err *err)
{
    const tsr_epilogue_check *const c = context;
    const tsr_weight *const w = &c->options->side.weights->items[c->jobs[at]];
    tsr_epilogue_operands o = {.c = c, .evidence = evidence, .weight = w, .name = w->values->name};
    const tsr_status status = fill_and_judge(&o, err);
    tsr_arena_free(&o.arena);
    return status;
}

static const tsr_subjects kSubjects = {
    .unfit = unfit_because, .need_inputs = true, .kind = "tensor of int8 with a scale a row"};

tsr_status tsr_epilogue_applies(const tsr_kernel_options *options, tsr_err *err)
{
    return tsr_subjects_exist(options, &kSubjects, err);
}

tsr_status tsr_check_epilogue(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence, tsr_err *err)
{
    tsr_epilogue_check c = {.options = options, .outs = outs};
    return tsr_run_check(options, &kSubjects, &c.jobs, do_job, &c, evidence, err);
}
