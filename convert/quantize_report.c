/* Writing the report of a quantizing job. */
#include "convert/quantize_report.h"

#include <string.h>

static void member_string(tsr_text *t, const char *key, const char *value)
{
    tsr_json_key(t, key);
    tsr_json_string(t, value);
}

static void tensor_row(tsr_text *t, const tsr_plan *plan, const tsr_step *step, const tsr_quant_stats *row)
{
    const tsr_tensor *const x = step->reported != NULL ? step->reported : step->in[0];
    tsr_json_begin_object(t, true);
    member_string(t, "name", x->name);
    member_string(t, "file", plan->files[step->file].name);
    tsr_json_key(t, "shape");
    tsr_json_begin_array(t, true);
    for (unsigned i = 0; i < x->rank; i++)
        tsr_json_u64(t, x->shape[i]);
    tsr_json_end_array(t);
    tsr_quant_stats_json(t, row);
    tsr_json_key(t, "max_abs_error_at");
    tsr_json_begin_array(t, true);
    uint64_t at = row->max_error_at, size = tsr_tensor_elements(x);
    for (unsigned i = 0; i < x->rank; i++) {
        size /= x->shape[i];
        tsr_json_u64(t, at / size);
        at %= size;
    }
    tsr_json_end_array(t);
    tsr_json_end_object(t);
}

/* The rows of one kind of comparison as the member `key`, and their sum in *whole. Returns how many there are. */
static uint64_t tensor_rows(tsr_text *t, const char *key, const tsr_plan *plan, const tsr_quant_stats *rows,
                            tsr_stats_of of, tsr_quant_stats *whole)
{
    uint64_t n = 0;
    *whole = (tsr_quant_stats){0};
    tsr_json_key(t, key);
    tsr_json_begin_array(t, false);
    for (size_t s = 0; s < plan->n_steps; s++) {
        if (plan->steps[s].op->stats_of != of)
            continue;
        n++;
        tsr_quant_stats_add(whole, &rows[s]);
        tensor_row(t, plan, &plan->steps[s], &rows[s]);
    }
    tsr_json_end_array(t);
    return n;
}

static uint64_t count_copied(const tsr_plan *plan)
{
    uint64_t n = 0;
    for (size_t i = 0; i < plan->n_notes; i++)
        n += strcmp(plan->notes[i].action, "copy") == 0;
    return n;
}

void tsr_quantize_report(const tsr_plan *plan, const tsr_quant_stats *rows, tsr_text *t)
{
    tsr_quant_stats whole;
    tsr_json_begin_object(t, false);
    member_string(t, "schema", "tessera-quantization-report/1");
    member_string(t, "version", TSR_VERSION);
    member_string(t, "command", plan->command);
    const uint64_t n = tensor_rows(t, "tensors", plan, rows, TSR_STATS_SOURCE, &whole);
    tsr_json_key(t, "whole");
    tsr_json_begin_object(t, false);
    tsr_json_key(t, "tensors_quantized");
    tsr_json_u64(t, n);
    tsr_json_key(t, "tensors_kept");
    tsr_json_u64(t, count_copied(plan));
    tsr_quant_stats_json(t, &whole);
    tsr_json_end_object(t);
    if (plan->n_sources > 1) {
        tensor_rows(t, "against", plan, rows, TSR_STATS_ORIGINAL, &whole);
        tsr_json_key(t, "whole_against");
        tsr_json_begin_object(t, false);
        tsr_quant_stats_json(t, &whole);
        tsr_json_end_object(t);
    }
    tsr_json_end_object(t);
    tsr_text_append(t, "\n", 1);
}
