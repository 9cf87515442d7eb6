/* A reader for each kind of result: takes the whole document, which is an object, into `to`, a tsr_result whose `kind` is
 * set. report/read.c has the table of them. */
#ifndef TSR_REPORT_KINDS_H
#define TSR_REPORT_KINDS_H

#include "report/fields.h"

tsr_value_fn tsr_read_quantization_report;
tsr_value_fn tsr_read_run; /* quantize --json, convert --json */
tsr_value_fn tsr_read_verify;
tsr_value_fn tsr_read_verify_manifest;
tsr_value_fn tsr_read_diff;
tsr_value_fn tsr_read_judgements; /* verify gemm, epilogue, dequant, mla */
tsr_value_fn tsr_read_forward;
tsr_value_fn tsr_read_compare_schemes;
tsr_value_fn tsr_read_plan_schemes;
tsr_value_fn tsr_read_inspect;
tsr_value_fn tsr_read_inspect_tensor;
tsr_value_fn tsr_read_batch;
tsr_value_fn tsr_read_failed; /* of any command that an error ended: {"error": {"code": 3, "message": "..."}} */

/* ---- what they share ---- */

/* The members that every result begins with, for the beginning of a table. */
#define TSR_HEAD_FIELDS                                                     \
    {"schema", tsr_value_text, offsetof(tsr_result, schema), true},         \
        {"version", tsr_value_text, offsetof(tsr_result, version), true},   \
        {"passed", tsr_value_passed, offsetof(tsr_result, outcome), false}, \
    {                                                                       \
        "limits", tsr_read_limits, 0, false                                 \
    }

/* The limits of a result, all of which are numbers. `to`: tsr_result. */
tsr_value_fn tsr_read_limits;

/* Seconds by phase. `to`: tsr_result. */
tsr_value_fn tsr_read_phases;

/* {"names": 34, ...}, how many tensors each check looked at; and a list of findings with check, where and what. `to`:
 * anything. */
tsr_value_fn tsr_read_judged;
tsr_value_fn tsr_read_findings;

/* A row, by a table of what else than figures is in it; its figures and place are finished. */
tsr_status tsr_read_row(tsr_reading *r, const char *what, const tsr_field *fields, uint32_t series, tsr_row **row,
                        tsr_err *err) TSR_WARN_UNUSED;

/* Reads an object of figures, as those of a whole model, into a series. Other members become facts. */
tsr_status tsr_read_whole(tsr_reading *r, const char *series, const char *prefix, tsr_err *err) TSR_WARN_UNUSED;

/* SQNR is null both where nothing and where all was lost: the relative error tells which. */
void tsr_finish_figures(double figures[TSR_N_FIGURES]);

/* A finding for a row that failed: what it fell short of, and its figures and places. */
tsr_status tsr_find_fault(tsr_reading *r, const char *check, uint32_t row, tsr_err *err) TSR_WARN_UNUSED;

/* "SQNR 12.1 dB, relative error 0.25, worst block 0.9 at [0, 128]": what is known, for people. */
void tsr_row_text(tsr_text *text, const tsr_row *row);

#endif
