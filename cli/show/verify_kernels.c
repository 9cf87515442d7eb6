/* Prints the evidence of kernels on a checkpoint's own tensors, and writes it as JSON. */
#include "cli/show/verify_kernels.h"

#include "cli/io/output.h"
#include "cli/show/evidence_text.h"
#include "formats/json/json_write.h"

#include <string.h>

static void print_phases(const tsr_evidence *e)
{
    for (tsr_phase phase = 0; phase < TSR_N_PHASES; phase++)
        tsr_print("%s %s %.2f", phase > 0 ? "," : "", tsr_phase_name(phase), e->phases[phase]);
    tsr_print("\n");
}

/* Prints which tensors were checked, their number, and the time of each phase. */
static void print_work(const tsr_verify_kernels *v)
{
    const tsr_evidence *const e = &v->evidence;
    char read[32];
    tsr_print(
        "%s; %zu of %zu tensors or sets, seed %llu, %s read in %.2f s, %llu thread%s; seconds:", v->opened_device.name,
        e->subjects, e->candidates, (unsigned long long)v->options.seed, tsr_bytes_text((double)e->bytes_read, read),
        e->seconds, U64(v->options.run.threads), tsr_plural(v->options.run.threads));
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

tsr_status tsr_verify_kernels_print(tsr_command_context *context, tsr_err *err)
{
    const tsr_verify_kernels *const v = context->job;
    (void)err;
    const tsr_evidence *const e = &v->evidence;
    const bool mla = v->check == TSR_KERNEL_MLA;
    if (v->note.msg[0] != '\0')
        tsr_print("checked on the CPU: %s\n", v->note.msg);
    if (v->details || mla)
        print_details(e);
    else
        print_subjects(e);
    if (mla) {
        tsr_print("%s; seed %llu, %.2f s; seconds:", v->opened_device.name, (unsigned long long)v->options.seed,
                  e->seconds);
        print_phases(e);
    } else {
        print_work(v);
    }
    tsr_evidence_print_end(e);
    return TSR_OK;
}

void tsr_verify_kernels_json(const tsr_command_context *context, tsr_text *t)
{
    const tsr_verify_kernels *const v = context->job;
    const tsr_evidence *const e = &v->evidence;
    tsr_json_member_string(t, "checkpoint", v->dst);
    tsr_json_member_string(t, "against", v->against);
    tsr_json_member_string(t, "activations", v->activations);
    tsr_json_member_string(t, "device", v->opened_device.name);
    tsr_json_member_string(t, "device_note", v->note.msg[0] != '\0' ? v->note.msg : NULL);
    tsr_json_member_u64(t, "seed", v->options.seed);
    tsr_json_member_u64(t, "tokens", v->options.tokens);
    tsr_json_member_u64(t, "ranks", v->options.ranks);
    tsr_json_member_bool(t, "passed", e->failed == 0);
    tsr_json_member_object(t, "limits", true);
    tsr_json_member_number(t, "max_kernel_error", v->options.limits.max_kernel_error);
    tsr_json_member_number(t, "max_kernel_rms", v->options.limits.max_kernel_rms);
    tsr_json_member_number(t, "max_kernel_bias", v->options.limits.max_kernel_bias);
    tsr_json_member_number(t, "min_sqnr_db", v->options.limits.min_sqnr);
    tsr_json_end_object(t);
    tsr_evidence_json(t, e);
}
