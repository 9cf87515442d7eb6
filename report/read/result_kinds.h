/* Declares a reader for each kind of result.
 *
 * A reader reads the whole document, which is an object, into `to`, a tsr_result whose `kind` is set. The table of
 * readers is in report/read/read.c. */
#pragma once

#include "report/read/fields.h"

tsr_value_fn tsr_read_quantization_report;
tsr_value_fn tsr_read_run; /* quantize --json, convert --json */
tsr_value_fn tsr_read_calibrate;
tsr_value_fn tsr_read_merge;
tsr_value_fn tsr_read_merge_report;
tsr_value_fn tsr_read_verify;
tsr_value_fn tsr_read_verify_manifest;
tsr_value_fn tsr_read_diff;
tsr_value_fn tsr_read_judgements; /* verify gemm, epilogue, dequant, mla, forward */
tsr_value_fn tsr_read_compare_schemes;
tsr_value_fn tsr_read_plan_schemes;
tsr_value_fn tsr_read_sensitivities;
tsr_value_fn tsr_read_inspect;
tsr_value_fn tsr_read_inspect_tensor;
tsr_value_fn tsr_read_batch;
tsr_value_fn tsr_read_failed; /* any command that an error ended: {"error": {"code": 3, "message": "..."}} */

/* ---- shared readers ---- */

/* Fields of the members that every result begins with, for a table. */
#define TSR_HEAD_FIELDS                                                         \
    {"schema", tsr_value_text, offsetof(tsr_result, schema), TSR_NEEDED},       \
        {"version", tsr_value_text, offsetof(tsr_result, version), TSR_NEEDED}, \
        {"passed", tsr_value_passed, offsetof(tsr_result, outcome), 0},         \
    {                                                                           \
        "limits", tsr_read_limits, 0, 0                                         \
    }

/* Reads an object into `to`, like tsr_read_object. `what` is its name in messages. Other members become facts, whose
 * names begin with `prefix` (may be NULL). */
tsr_status tsr_read_facts(tsr_reading *r, const char *what, const tsr_field *fields, void *to, const char *prefix,
                          tsr_err *err);

/* Reads the baseline of a forward pass into facts whose names begin with `prefix`; null: there is none. */
tsr_status tsr_read_forward_baseline(tsr_reading *r, const char *prefix, tsr_err *err);

/* Reads the limits of a result, which are numbers. `to`: tsr_result. */
tsr_value_fn tsr_read_limits;

/* Reads seconds by phase. `to`: tsr_result. */
tsr_value_fn tsr_read_phases;

/* Read {"names": 34, ...}, the number of tensors per check, and a list of findings with check, where and what. `to`
 * may be anything. */
tsr_value_fn tsr_read_judged;
tsr_value_fn tsr_read_finding;

/* Reads a row by a table of its members other than figures. Completes its figures and place. */
tsr_status tsr_read_row(tsr_reading *r, const char *what, const tsr_field *fields, uint32_t series, tsr_row **row,
                        tsr_err *err);

/* Reads an object of figures, such as those of a whole model, into a series. Other members become facts. */
tsr_status tsr_read_whole(tsr_reading *r, const char *series, const char *prefix, tsr_err *err);

/* Completes figures. A null SQNR means lossless or all lost; the relative error decides. */
void tsr_finish_figures(double figures[TSR_N_FIGURES]);

/* Adds a finding for a failed row, with its figures and positions. */
tsr_status tsr_find_fault(tsr_reading *r, const char *check, uint32_t row, tsr_err *err);

/* Writes the known figures for people: "SQNR 12.1 dB, relative error 0.25, worst block 0.9 at [0, 128]". */
void tsr_row_text(tsr_text *text, const tsr_row *row);
