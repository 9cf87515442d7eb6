/* A result of Tessera in memory, whatever command made it. Readers fill it; the summary, the comparison with an earlier
 * result and all writers (terminal, Markdown, CSV, JUnit, JSON, HTML) know nothing but this.
 *
 *   facts     what the result says of itself: version, command, checkpoints, seeds, limits
 *   series    what its rows measure: one series for a report of quantization, one a kind of error for kernels, one a
 *             scheme where schemes are compared. A series may have figures of the whole model
 *   rows      a tensor, a judgement, a layer of a forward pass: its name, figures, places and outcome
 *   checks    what was judged by name, such as "scales" of verify
 *   findings  what is wrong or worth a look: check, place, text, and the row where there is one
 *
 * Texts live in the arena and are as they stand in the file: writers make them visible, quote or escape them. */
#ifndef TSR_REPORT_MODEL_H
#define TSR_REPORT_MODEL_H

#include "common/arena.h"
#include "report/figures.h"
#include "report/place.h"

#include <stdint.h>

typedef enum tsr_outcome {
    TSR_OUTCOME_NONE, /* measured, not judged */
    TSR_OUTCOME_PASSED,
    TSR_OUTCOME_FAILED,
    TSR_OUTCOME_SKIPPED, /* there was nothing to judge, or it could not be */
} tsr_outcome;

/* "measured", "passed", "failed", "skipped". Static storage. */
const char *tsr_outcome_name(tsr_outcome outcome);

typedef struct tsr_fact {
    const char *name, *value;
} tsr_fact;

/* Caps of what is read, beyond which a file is no result. */
enum { TSR_MAX_FACTS = 128, TSR_MAX_SERIES = 64, TSR_MAX_CHECKS = 64, TSR_MAX_ROWS = 1 << 21 };

typedef struct tsr_facts {
    tsr_fact *items;
    size_t count, capacity;
} tsr_facts;

typedef struct tsr_row {
    const char *name;              /* tensor, set of experts, layer, scheme, loader */
    const char *what;              /* what was judged of it; NULL: itself */
    const char *note;              /* fault, state or reason; NULL: none */
    const char *file, *shape;      /* NULL: not said */
    const char *dtype;             /* "BF16", or "BF16 to F8_E4M3" where two are compared; NULL: not said */
    const char *error_at;          /* where the largest error is; NULL: not said */
    const char *block_at;          /* where the worst block is; NULL: not said */
    tsr_place place;               /* layer, module and expert, by the name */
    double figures[TSR_N_FIGURES]; /* NaN: unknown. SQNR +infinity: nothing was lost */
    uint32_t series;
    tsr_outcome outcome;
} tsr_row;

typedef struct tsr_series {
    const char *name; /* "" where there is only one */
    bool has_whole;
    bool bounded;  /* errors of it have bounds of their own, and are not compared with those of another run */
    tsr_row whole; /* figures of all rows together, as the result states them */
} tsr_series;

typedef struct tsr_check_facts {
    const char *name;
    uint64_t judged; /* 0: there was nothing to judge */
} tsr_check_facts;

#define TSR_NO_ROW UINT32_MAX

typedef struct tsr_result_finding {
    const char *check, *where, *text;
    uint32_t row; /* the row of `where`, or TSR_NO_ROW */
    bool fatal;   /* otherwise a warning */
} tsr_result_finding;

/* What is the same for all results of one schema. */
typedef struct tsr_result_kind {
    const char *schema, *title;
    const char *charted; /* the series whose errors are summed up and charted; NULL: none */
    bool case_a_row;     /* each row is a case of its own; otherwise cases are a check of a layer's tensors */
} tsr_result_kind;

/* What a report says of the file of blocks beside it. */
typedef struct tsr_said_blocks {
    bool there;
    const char *digest; /* XXH3-64 of its bytes, in hexadecimal digits */
} tsr_said_blocks;

typedef struct tsr_result {
    const char *path;                       /* as given */
    const char *schema, *version, *command; /* "" where the result does not say it */
    char title[64];                         /* "verify weights" */
    const tsr_result_kind *kind;
    tsr_outcome outcome; /* NONE: the result has no verdict */
    const char *error;   /* the command ended with it, and found nothing out: why; NULL: it did not */
    uint64_t error_code; /* the exit code then */
    tsr_facts facts, limits;
    tsr_facts phases; /* where the time went: seconds of all threads, by phase */
    tsr_series *series;
    size_t n_series, series_capacity;
    tsr_row *rows;
    size_t n_rows, rows_capacity;
    tsr_check_facts *checks;
    size_t n_checks, checks_capacity;
    tsr_result_finding *findings;
    size_t n_findings, findings_capacity;
    tsr_said_blocks said_blocks;
    struct tsr_result_blocks *blocks; /* report/blocks.h; NULL: nothing is known of single blocks */
    tsr_arena arena;
} tsr_result;

/* What readers append: the new item, zeroed but for what its type says, in *row. TSR_E_UNSUPPORTED: there are
 * more than any result has. */
tsr_status tsr_result_add_row(tsr_result *result, uint32_t series, tsr_row **row, tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_result_add_finding(tsr_result *result, const tsr_result_finding *finding, tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_result_add_check(tsr_result *result, const char *name, uint64_t judged, tsr_err *err) TSR_WARN_UNUSED;

/* Adds a fact to those or the limits of the result; both texts are copied. */
tsr_status tsr_result_add_fact(tsr_result *result, tsr_facts *facts, const char *name, const char *value,
                               tsr_err *err) TSR_WARN_UNUSED;

/* The series of that name, made if it is new; its number in *at. The name is copied. */
tsr_status tsr_result_series(tsr_result *result, const char *name, uint32_t *at, tsr_err *err) TSR_WARN_UNUSED;

/* The value of a fact; NULL: not said. */
const char *tsr_fact_of(const tsr_facts *facts, const char *name);

/* The value for people: a number with a fraction gets few digits, in `number`. */
const char *tsr_fact_shown(const tsr_fact *fact, char number[32]);

/* A row without a single figure. */
void tsr_row_clear(tsr_row *row);

/* The first row of that name, by binary search in `order`, which tsr_rows_by_name made. NULL: none. */
const tsr_row *tsr_find_row(const tsr_result *result, const uint32_t *order, const char *name);

/* The rows' numbers in the order of name, what and series; from malloc. NULL: memory is exhausted. */
uint32_t *tsr_rows_by_name(const tsr_result *result);

/* By name, what and series name: < 0, 0, > 0. */
int tsr_compare_rows(const tsr_result *a, const tsr_row *x, const tsr_result *b, const tsr_row *y);

void tsr_result_free(tsr_result *result);

#endif
