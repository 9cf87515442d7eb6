/* Prints the evidence of kernels on a checkpoint's own tensors, and writes it as JSON. */
#include "cli/show/verify_kernels.h"

#include "cli/io/output.h"
#include "cli/show/evidence_result.h"
#include "formats/json/json_write.h"
#include "report/write/terminal/terminal_parts.h"

#include <math.h>
#include <stdint.h>

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

tsr_status tsr_verify_kernels_print(tsr_command_context *context, tsr_err *err)
{
    const tsr_verify_kernels *const v = context->job;
    const tsr_evidence *const e = &v->evidence;
    const bool mla = v->check == TSR_KERNEL_MLA;
    const tsr_style style = tsr_command_style();
    tsr_text text = {0};
    if (v->note.msg[0] != '\0')
        tsr_print("checked on the CPU: %s\n", v->note.msg);
    if (v->details || mla)
        tsr_draw_details(&text, &style, &v->result);
    else
        tsr_draw_subjects(&text, &style, &v->result, SIZE_MAX, SIZE_MAX);
    TSR_TRY(tsr_print_drawn(&text, err));
    if (mla) {
        tsr_print("%s; seed %llu, %.2f s; seconds:", v->opened_device.name, (unsigned long long)v->options.seed,
                  e->seconds);
        print_phases(e);
    } else {
        print_work(v);
    }
    tsr_draw_judged(&text, &style, &v->result, SIZE_MAX);
    return tsr_print_drawn(&text, err);
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
    if (v->options.mla.sparse)
        tsr_json_member_number(t, "top_k", v->options.mla.top_k > 0 ? (double)v->options.mla.top_k : NAN);
    tsr_json_member_bool(t, "passed", e->failed == 0);
    tsr_json_member_object(t, "limits", true);
    tsr_json_member_number(t, "max_kernel_error", v->options.limits.max_kernel_error);
    tsr_json_member_number(t, "max_kernel_rms", v->options.limits.max_kernel_rms);
    tsr_json_member_number(t, "max_kernel_bias", v->options.limits.max_kernel_bias);
    tsr_json_member_number(t, "min_sqnr_db", v->options.limits.min_sqnr);
    tsr_json_end_object(t);
    tsr_evidence_json(t, e, &v->result);
}
