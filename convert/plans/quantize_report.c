/* Writes quantization_report.json. */
#include "convert/plans/quantize_report.h"

#include "formats/blocks/block_file.h"
#include "formats/json/json_write.h"

#include <stdio.h>
#include <string.h>

/* Appends the member `key`: the index of flat element `at` of a tensor. */
static void place(tsr_text *t, const char *key, const tsr_tensor *x, uint64_t at)
{
    tsr_json_member_array(t, key, true);
    uint64_t size = tsr_tensor_elements(x);
    for (unsigned i = 0; i < x->rank; i++) {
        size /= x->shape[i];
        tsr_json_u64(t, at / size);
        at %= size;
    }
    tsr_json_end_array(t);
}

static void tensor_row(tsr_text *t, const tsr_plan *plan, const tsr_step *step, const tsr_quant_stats *row)
{
    const tsr_tensor *const x = tsr_step_reported(step);
    tsr_json_begin_object(t, true);
    tsr_json_member_string(t, "name", x->name);
    tsr_json_member_string(t, "file", plan->files[step->file].name);
    tsr_json_member_u64s(t, "shape", x->shape, x->rank);
    tsr_quant_stats_json(t, row);
    place(t, "max_abs_error_at", x, row->max_error_at);
    if (row->worst_mse > 0)
        place(t, "worst_block_at", x, row->worst_at);
    tsr_json_end_object(t);
}

/* Appends the rows of one kind of comparison as the member `key`; sets *whole to their sum. Returns their number. */
static uint64_t tensor_rows(tsr_text *t, const char *key, const tsr_plan *plan, const tsr_quant_stats *rows,
                            tsr_stats_of of, tsr_quant_stats *whole)
{
    uint64_t n = 0;
    *whole = (tsr_quant_stats){0};
    tsr_json_member_array(t, key, false);
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

/* Returns the bits of codes and scales of all quantized weights per element. */
static double bits_per_weight(const tsr_plan *plan, uint64_t elements)
{
    double bytes = 0;
    for (size_t s = 0; s < plan->n_steps; s++) {
        for (unsigned i = 0; i < plan->steps[s].n_out && plan->steps[s].op->stats_of == TSR_STATS_SOURCE; i++)
            bytes += (double)plan->steps[s].out[i]->bytes;
    }
    return elements == 0 ? 0 : 8 * bytes / (double)elements;
}

static void member_known(tsr_text *t, const char *key, const char *value)
{
    if (value != NULL)
        tsr_json_member_string(t, key, value);
}

static bool is_kept(const tsr_plan_note *n)
{
    return strcmp(n->action, "copy") == 0;
}

static uint64_t count_kept(const tsr_plan *plan)
{
    uint64_t n = 0;
    for (size_t i = 0; i < plan->n_notes; i++)
        n += is_kept(&plan->notes[i]);
    return n;
}

static void write_kept(tsr_text *t, const tsr_plan *plan)
{
    tsr_json_member_array(t, "kept", false);
    for (size_t i = 0; i < plan->n_notes; i++) {
        if (!is_kept(&plan->notes[i]))
            continue;
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "name", plan->notes[i].source->name);
        tsr_json_member_string(t, "reason", plan->notes[i].reason);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static double badness(const tsr_quant_stats *row, tsr_worst by)
{
    return by == TSR_WORST_BLOCK ? tsr_quant_stats_worst_block(row) : tsr_quant_stats_relative_error(row);
}

size_t tsr_worst_steps(const tsr_plan *plan, const tsr_quant_stats *rows, tsr_stats_of of, tsr_worst by, size_t *worst,
                       size_t most)
{
    size_t n = 0;
    for (size_t s = 0; s < plan->n_steps; s++) {
        const double bad = badness(&rows[s], by);
        if (plan->steps[s].op->stats_of != of || !(bad > 0))
            continue;
        size_t at = n;
        while (at > 0 && badness(&rows[worst[at - 1]], by) < bad)
            at--;
        if (at == most)
            continue;
        n += n < most;
        memmove(&worst[at + 1], &worst[at], (n - at - 1) * sizeof *worst);
        worst[at] = s;
    }
    return n;
}

static void write_worst(tsr_text *t, const char *key, const tsr_plan *plan, const tsr_quant_stats *rows, tsr_worst by)
{
    enum { MOST = 10 };
    size_t worst[MOST];
    const size_t n = tsr_worst_steps(plan, rows, TSR_STATS_SOURCE, by, worst, MOST);
    tsr_json_member_array(t, key, false);
    for (size_t i = 0; i < n; i++)
        tsr_json_string(t, tsr_step_reported(&plan->steps[worst[i]])->name);
    tsr_json_end_array(t);
}

/* Writes the name and digest of the file with block statistics. */
static void write_blocks(tsr_text *t, const tsr_plan_blocks *blocks)
{
    char digest[17];
    if (blocks->tensors == 0)
        return;
    snprintf(digest, sizeof digest, "%016llx", U64(blocks->digest));
    tsr_json_member_object(t, "blocks", false);
    tsr_json_member_string(t, "file", TSR_BLOCKS_NAME);
    tsr_json_member_u64(t, "bytes", blocks->bytes);
    tsr_json_member_string(t, "xxh3", digest);
    tsr_json_member_u64(t, "tensors", blocks->tensors);
    tsr_json_member_u64(t, "cells", blocks->cells);
    tsr_json_member_u64(t, "tensors_folded", blocks->folded);
    tsr_json_end_object(t);
}

void tsr_quantize_report(const tsr_plan *plan, const tsr_quant_stats *rows, const tsr_plan_blocks *blocks, tsr_text *t)
{
    tsr_quant_stats whole;
    tsr_json_begin_document(t, "tessera-quantization-report/1");
    tsr_json_member_string(t, "command", plan->command);
    member_known(t, "scheme", plan->made.scheme);
    member_known(t, "dialect", plan->made.dialect);
    member_known(t, "scale_rule", plan->made.rule);
    member_known(t, "scales", plan->made.scales);
    member_known(t, "readers", plan->made.readers);
    const uint64_t n = tensor_rows(t, "tensors", plan, rows, TSR_STATS_SOURCE, &whole);
    tsr_json_member_object(t, "whole", false);
    tsr_json_member_u64(t, "tensors_quantized", n);
    tsr_json_member_u64(t, "tensors_kept", count_kept(plan));
    tsr_json_member_number(t, "bits_per_weight", bits_per_weight(plan, whole.elements));
    tsr_quant_stats_json(t, &whole);
    tsr_json_end_object(t);
    write_worst(t, "lowest_sqnr", plan, rows, TSR_WORST_SQNR);
    write_worst(t, "worst_blocks", plan, rows, TSR_WORST_BLOCK);
    write_kept(t, plan);
    write_blocks(t, blocks);
    if (plan->n_sources > 1) {
        tensor_rows(t, "against", plan, rows, TSR_STATS_ORIGINAL, &whole);
        tsr_json_member_object(t, "whole_against", false);
        tsr_quant_stats_json(t, &whole);
        tsr_json_end_object(t);
    }
    tsr_json_end_document(t);
}
