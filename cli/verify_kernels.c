/* Running kernels on a checkpoint's own tensors: what was found, as text and JSON. */
#include "cli/verify_kernels.h"

#include "cli/evidence_text.h"
#include "cli/output.h"
#include "common/file.h"
#include "formats/json/json_write.h"
#include "verify/kernels/check_dequant.h"
#include "verify/kernels/check_epilogue.h"
#include "verify/kernels/check_gemm.h"
#include "verify/mla/check_mla.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ALL_OUTS = (1 << TSR_N_OUTS) - 1 };

static const struct {
    const char *name;
    tsr_status (*run)(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence, tsr_err *err);
    tsr_status (*applies)(const tsr_kernel_options *options, tsr_err *err);
} kChecks[TSR_N_KERNEL_CHECKS] = {
    [TSR_KERNEL_GEMM] = {"gemm", tsr_check_gemm, tsr_gemm_applies},
    [TSR_KERNEL_EPILOGUE] = {"epilogue", tsr_check_epilogue, tsr_epilogue_applies},
    [TSR_KERNEL_DEQUANT] = {"dequant", tsr_check_dequant, tsr_dequant_applies},
    [TSR_KERNEL_MLA] = {"mla", tsr_check_mla, tsr_mla_applies},
};

const char *tsr_kernel_check_name(tsr_kernel_check check)
{
    return kChecks[check].name;
}

tsr_verify_kernels tsr_verify_kernels_defaults(tsr_kernel_check check)
{
    return (tsr_verify_kernels){.check = check,
                                .outs = ALL_OUTS,
                                .options = {.tokens = check == TSR_KERNEL_DEQUANT ? 24 : 64,
                                            .columns = 256,
                                            .experts = 8,
                                            .group_rows = 1,
                                            .run.threads = tsr_cpu_count(),
                                            .limits = tsr_kernel_limits_defaults(),
                                            .mla = {.batch = 4, .context = 128, .new_tokens = 1, .ranks = 1}}};
}

/* A runner with a broken driver must not pass on the CPU. */
tsr_status tsr_device_asked(const tsr_device_options *options, tsr_device_kind *kind, tsr_err *err)
{
    if (options->required != 0 && options->device == TSR_DEVICE_CPU)
        return tsr_fail(err, TSR_E_USAGE, "--require-device cuda contradicts --device cpu: leave one of them out");
    *kind = options->required != 0 ? TSR_DEVICE_CUDA : (tsr_device_kind)options->device;
    return TSR_OK;
}

/* ---- telling ---- */

static void print_phases(const tsr_evidence *e)
{
    for (tsr_phase phase = 0; phase < TSR_N_PHASES; phase++)
        tsr_print("%s %s %.2f", phase > 0 ? "," : "", tsr_phase_name(phase), e->phases[phase]);
    tsr_print("\n");
}

/* Prints which tensors were checked, how many of them, and where the seconds went. */
static void print_work(const tsr_verify_kernels *v)
{
    const tsr_evidence *const e = &v->evidence;
    char read[32];
    tsr_print("%s; %zu of %zu tensors or sets, seed %llu, %s read in %.2f s, %llu threads; seconds:", v->device.name,
              e->subjects, e->candidates, (unsigned long long)v->options.seed,
              tsr_bytes_text((double)e->bytes_read, read), e->seconds, U64(v->options.run.threads));
    print_phases(e);
}

static void print_details(const tsr_evidence *e)
{
    for (size_t i = 0; i < e->count; i++) {
        const tsr_judgement *const j = &e->items[i], *const before = i > 0 ? j - 1 : NULL;
        const bool other = before == NULL || strcmp(before->subject, j->subject) != 0;
        if (other)
            tsr_print("%s\n", j->subject);
        if (other || before->kind != j->kind)
            tsr_print(" %s error\n", tsr_error_kind_name(j->kind));
        tsr_judgement_print(j);
    }
}

static void print_subjects(const tsr_evidence *e)
{
    for (size_t i = 0, end; i < e->count; i = end) {
        for (end = i + 1; end < e->count && strcmp(e->items[end].subject, e->items[i].subject) == 0; end++)
            ;
        tsr_subject_print(&e->items[i], end - i);
    }
}

static void print_result(const void *verification)
{
    const tsr_verify_kernels *const v = verification;
    const tsr_evidence *const e = &v->evidence;
    const bool mla = v->check == TSR_KERNEL_MLA;
    if (v->note.msg[0] != '\0')
        tsr_print("checked on the CPU: %s\n", v->note.msg);
    if (v->details || mla)
        print_details(e);
    else
        print_subjects(e);
    if (mla) {
        tsr_print("%s; seed %llu, %.2f s; seconds:", v->device.name, (unsigned long long)v->options.seed, e->seconds);
        print_phases(e);
    } else {
        print_work(v);
    }
    tsr_evidence_print_end(e);
}

static void write_json(tsr_text *t, const void *verification)
{
    const tsr_verify_kernels *const v = verification;
    const tsr_evidence *const e = &v->evidence;
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "schema", "tessera-verify-kernels/1");
    tsr_json_member_string(t, "version", TSR_VERSION);
    tsr_json_member_string(t, "check", kChecks[v->check].name);
    tsr_json_member_string(t, "checkpoint", v->dst);
    tsr_json_member_string(t, "against", v->against);
    tsr_json_member_string(t, "activations", v->activations);
    tsr_json_member_string(t, "device", v->device.name);
    tsr_json_member_string(t, "device_note", v->note.msg[0] != '\0' ? v->note.msg : NULL);
    tsr_json_member_u64(t, "seed", v->options.seed);
    tsr_json_member_u64(t, "tokens", v->options.tokens);
    tsr_json_member_bool(t, "passed", e->failed == 0);
    tsr_json_key(t, "limits");
    tsr_json_begin_object(t, true);
    tsr_json_member_number(t, "max_kernel_error", v->options.limits.max_kernel_error);
    tsr_json_member_number(t, "max_kernel_rms", v->options.limits.max_kernel_rms);
    tsr_json_member_number(t, "max_kernel_bias", v->options.limits.max_kernel_bias);
    tsr_json_member_number(t, "min_sqnr_db", v->options.limits.min_sqnr);
    tsr_json_end_object(t);
    tsr_evidence_json(t, e);
    tsr_json_end_object(t);
    tsr_text_append(t, "\n", 1);
}

/* ---- opening ---- */

enum { DST, AGAINST, ACTIVATIONS, STAGES, AZP };

static tsr_status open_file(tsr_verify_kernels *v, size_t at, const char *path, const tsr_checkpoint **to, tsr_err *err)
{
    if (path == NULL)
        return TSR_OK;
    TSR_TRY(tsr_checkpoint_open(&v->opened[at], path, NULL, 0, err));
    *to = v->opened[at];
    return TSR_OK;
}

/* A checkpoint with its weights. Of those that latent attention does not read it need not know anything. */
static tsr_status open_side(tsr_verify_kernels *v, size_t at, const char *path, tsr_side *side, tsr_err *err)
{
    tsr_weights *const weights = &v->weights[at];
    TSR_TRY(open_file(v, at, path, &side->checkpoint, err));
    side->weights = weights;
    if (v->check == TSR_KERNEL_MLA)
        return tsr_weights_survey(weights, side->checkpoint, (tsr_block){0, 0}, tsr_weights_pass_over, NULL, err);
    return tsr_weights_pair_or(weights, side->checkpoint, v->block, err);
}

/* Opens tessera-azp.safetensors of a directory that has one. */
static tsr_status open_azp(tsr_verify_kernels *v, tsr_err *err)
{
    char path[4096];
    const char *const dir = v->opened[DST]->dir;
    bool there;
    if (dir == NULL || snprintf(path, sizeof path, "%s/%s", dir, TSR_AZP_NAME) >= (int)sizeof path)
        return TSR_OK;
    TSR_TRY(tsr_exists(path, &there, err));
    return there ? open_file(v, AZP, path, &v->options.azp, err) : TSR_OK;
}

static tsr_status open_sides(tsr_verify_kernels *v, tsr_err *err)
{
    TSR_TRY(open_side(v, DST, v->dst, &v->options.side, err));
    if (v->against == NULL)
        return TSR_OK;
    v->options.against = &v->source;
    return open_side(v, AGAINST, v->against, &v->source, err);
}

static tsr_status applies(void *verification, tsr_err *err)
{
    tsr_verify_kernels *const v = verification;
    TSR_TRY(open_sides(v, err));
    const tsr_status status = kChecks[v->check].applies(&v->options, err);
    if (status != TSR_E_MISMATCH || err == NULL)
        return status;
    /* Experts one by one where the originals are stacks, say: kernels are judged without originals then. */
    v->alone = *err;
    v->against = NULL;
    v->options.against = NULL;
    return TSR_OK;
}

static tsr_status open_all(void *verification, tsr_err *err)
{
    tsr_verify_kernels *const v = verification;
    TSR_TRY(tsr_device_open(&v->device, v->kind, &v->note, err));
    v->options.device = &v->device;
    if (v->opened[DST] == NULL)
        TSR_TRY(open_sides(v, err));
    TSR_TRY(open_file(v, ACTIVATIONS, v->activations, &v->options.activations, err));
    TSR_TRY(open_file(v, STAGES, v->stages, &v->options.mla.stages, err));
    return open_azp(v, err);
}

/* ---- running ---- */

static tsr_status run(void *verification, tsr_terminal *terminal, tsr_err *err)
{
    tsr_verify_kernels *const v = verification;
    v->options.run = tsr_terminal_run_options(terminal, v->options.run.threads, 0);
    TSR_TRY(kChecks[v->check].run(&v->options, v->outs, &v->evidence, err));
    for (size_t i = 0; i < v->device.n_left_out; i++) {
        const tsr_left_out *const left = &v->device.left_out[i];
        if (strcmp(left->check, kChecks[v->check].name) == 0)
            TSR_TRY(tsr_evidence_skip(&v->evidence, left->name, left->why, err));
    }
    return TSR_OK;
}

static bool is_fine(const void *verification)
{
    const tsr_verify_kernels *const v = verification;
    return v->evidence.failed == 0;
}

static void tell_judged(tsr_text *text, const void *verification)
{
    const tsr_verify_kernels *const v = verification;
    const tsr_evidence *const e = &v->evidence;
    if (v->check == TSR_KERNEL_MLA)
        tsr_text_printf(text, "layer %llu", U64(v->options.mla.layer));
    else
        tsr_text_printf(text, "%zu of %zu tensors or sets", e->subjects, e->candidates);
    tsr_text_printf(text, ", %zu judgements", e->count);
    if (e->n_skipped > 0)
        tsr_text_printf(text, ", %zu skipped", e->n_skipped);
}

static const char *left_out(const void *verification)
{
    const tsr_verify_kernels *const v = verification;
    return v->alone.msg[0] == '\0' ? NULL : v->alone.msg;
}

static void close_all(void *verification)
{
    tsr_verify_kernels *const v = verification;
    tsr_evidence_free(&v->evidence);
    tsr_device_close(&v->device);
    for (size_t i = 0; i < sizeof v->weights / sizeof *v->weights; i++)
        tsr_weights_free(&v->weights[i]);
    for (size_t i = 0; i < sizeof v->opened / sizeof *v->opened; i++)
        tsr_checkpoint_close(v->opened[i]);
}

const tsr_verify_kind tsr_kind_kernels = {
    .applies = applies,
    .open = open_all,
    .run = run,
    .fine = is_fine,
    .print = print_result,
    .write_json = write_json,
    .tell_judged = tell_judged,
    .left_out = left_out,
    .close = close_all,
};
