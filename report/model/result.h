/* Declares a result of any Tessera command in memory, in the form that all writers and comparisons use.
 *
 * Readers fill it. The summary, the comparison with an earlier result and the writers (terminal, Markdown, CSV, JUnit,
 * JSON, HTML) depend on nothing else.
 *
 *   facts     properties of the result: version, command, checkpoints, seeds, limits
 *   series    groups of rows with one meaning: one for a quantization report, one per kind of error for kernels, one
 *             per scheme for comparisons of schemes. A series may have figures of the whole model
 *   rows      a tensor, a judgement or a layer of a forward pass: name, figures, positions and outcome
 *   checks    names of the checks, such as "scales" of verify
 *   findings  faults and warnings: check, position, text, and the row if there is one
 *
 * Texts are in the arena, as in the file. Writers escape or quote them. */
#pragma once

#include "common/arena.h"
#include "report/model/figures.h"
#include "report/model/place.h"

#include <stdint.h>

typedef enum tsr_outcome {
    TSR_OUTCOME_NONE, /* measured, not judged */
    TSR_OUTCOME_PASSED,
    TSR_OUTCOME_FAILED,
    TSR_OUTCOME_SKIPPED, /* nothing to judge, or it could not be judged */
} tsr_outcome;

/* Returns "measured", "passed", "failed" or "skipped". Static storage. */
const char *tsr_outcome_name(tsr_outcome outcome);

/* Returns "INFO", "PASS", "FAIL" or "SKIP". Static storage. */
const char *tsr_verdict_word(tsr_outcome outcome);

typedef struct tsr_fact {
    const char *name, *value;
} tsr_fact;

/* Limits of the numbers of items. A file with more is not a result. */
enum { TSR_MAX_FACTS = 128, TSR_MAX_SERIES = 64, TSR_MAX_CHECKS = 64, TSR_MAX_PLAN_ROWS = 64, TSR_MAX_ROWS = 1 << 21 };

typedef struct tsr_facts {
    tsr_fact *items;
    size_t count, capacity;
} tsr_facts;

typedef struct tsr_row {
    const char *name;              /* tensor, set of experts, layer, scheme, loader */
    const char *what;              /* judged aspect; NULL: the row itself */
    const char *note;              /* fault, state or reason; NULL: none */
    const char *file, *shape;      /* NULL: unknown */
    const char *dtype;             /* "BF16", or "BF16 to F8_E4M3" for a comparison; NULL: unknown */
    const char *error_at;          /* position of the largest error; NULL: unknown */
    const char *block_at;          /* position of the worst block; NULL: unknown */
    tsr_place place;               /* layer, module and expert of the name */
    double figures[TSR_N_FIGURES]; /* NaN: unknown. SQNR +infinity: lossless */
    uint32_t series;
    tsr_outcome outcome;

    /* Properties of a comparison of two tensors, whose state is the note. */
    const char *shape_b; /* shape of the second; NULL: that of the first, or unknown */
    const char *cause;   /* usual cause of such a difference; NULL: unknown */
    double block_max;    /* largest error in the worst block; NaN: unknown */

    /* Properties of a judgement. */
    const char *kind; /* kind of error: "kernel"; NULL: the row is no judgement, or was skipped */
    double limit;     /* the smallest SQNR that passes; 0 or NaN: none */
    double bias;      /* direction of the errors, in standard errors; NaN: unknown */
    uint64_t choices; /* number of choices that the figure `agreement` counts; 0: unknown */
} tsr_row;

enum { TSR_SERIES_WORST = 3 };

typedef struct tsr_series {
    const char *name; /* "" if there is only one */
    bool has_whole;
    bool bounded;  /* errors have separate bounds, and are not compared with another run */
    tsr_row whole; /* figures of all rows together, as in the file */

    /* Costs of a scheme of compare-schemes, in addition to the figures of `whole`. */
    double of_bf16;     /* bytes / bytes in BF16; 0: the series is no such scheme */
    uint64_t not_taken; /* tensors that the scheme leaves as they are */
    struct {
        const char *name;
        double relative;
    } worst[TSR_SERIES_WORST]; /* tensors with the largest relative errors, largest first */
    size_t n_worst;
} tsr_series;

/* A row of the table of plan-schemes. */
typedef enum tsr_plan_kind {
    TSR_PLAN_BUDGET, /* the best choice within a budget, in the order of rising budgets */
    TSR_PLAN_ALONE,  /* one scheme for all weights that it can quantize */
    TSR_PLAN_CHOSEN, /* the choice within the budget that was given */
} tsr_plan_kind;

typedef struct tsr_plan_row {
    tsr_plan_kind kind;
    uint64_t bytes;
    double bits; /* average of the weights */
    double error;
    const char *schemes; /* "72 % nvfp4, 28 % fp8-block"; NULL: unknown */
} tsr_plan_row;

typedef struct tsr_check_facts {
    const char *name;
    uint64_t judged; /* 0: nothing to judge */
} tsr_check_facts;

/* Sentences about a check: if nothing is wrong, and if something is. */
typedef struct tsr_check_text {
    const char *name, *passed, *failed;
} tsr_check_text;

#define TSR_NO_ROW UINT32_MAX

typedef struct tsr_result_finding {
    const char *check, *where, *text;
    uint32_t row; /* the row of `where`, or TSR_NO_ROW */
    bool fatal;   /* otherwise a warning */
} tsr_result_finding;

/* Properties that all results of one schema share. */
typedef struct tsr_result_kind {
    const char *schema, *title;
    const char *charted;          /* series that is summed up and charted; NULL: none */
    bool case_a_row;              /* true: each row is a test case; false: cases are checks of a layer's tensors */
    bool by_subject;              /* true: judgements have a series per subject; false: one per kind of error */
    const tsr_check_text *checks; /* sentences about its checks; a NULL name ends them; NULL: none */
} tsr_result_kind;

/* Reference from a report to its blocks file. */
typedef struct tsr_manifest_blocks {
    bool there;
    const char *digest; /* XXH3-64 of its bytes, in hexadecimal digits */
} tsr_manifest_blocks;

typedef struct tsr_result {
    const char *path;                       /* as given */
    const char *schema, *version, *command; /* "" if unknown */
    char title[64];                         /* "verify weights" */
    const tsr_result_kind *kind;
    tsr_outcome outcome;      /* NONE: no verdict */
    const char *error;        /* error that ended the command without a result; NULL: none */
    uint64_t error_code;      /* exit code with `error` */
    const char *error_tensor; /* tensor that caused `error`; NULL: not stated */
    tsr_facts facts, limits;
    tsr_facts phases; /* seconds of all threads by phase */
    tsr_series *series;
    size_t n_series, series_capacity;
    tsr_row *rows;
    size_t n_rows, rows_capacity;
    tsr_plan_row *plan;
    size_t n_plan, plan_capacity;
    tsr_check_facts *checks;
    size_t n_checks, checks_capacity;
    tsr_result_finding *findings;
    size_t n_findings, findings_capacity;
    tsr_manifest_blocks said_blocks;
    struct tsr_result_blocks *blocks; /* report/blocks.h; NULL: no data on blocks */
    tsr_arena arena;
} tsr_result;

/* Append an item for a reader to fill in. *row is zeroed except for its type's defaults. TSR_E_UNSUPPORTED: too many
 * items for a result. */
tsr_status tsr_result_add_row(tsr_result *result, uint32_t series, tsr_row **row, tsr_err *err);
tsr_status tsr_result_add_finding(tsr_result *result, const tsr_result_finding *finding, tsr_err *err);
tsr_status tsr_result_add_check(tsr_result *result, const char *name, uint64_t judged, tsr_err *err);

tsr_status tsr_result_add_plan_row(tsr_result *result, const tsr_plan_row *row, tsr_err *err);

/* Adds a judgement, or the reason why there is none. The series is the subject of the judgement or the kind of its
 * error, as the kind of the result determines, or "skipped". Texts are borrowed. */
tsr_status tsr_result_add_judgement(tsr_result *result, const tsr_row *judgement, tsr_err *err);
tsr_status tsr_result_add_skipped(tsr_result *result, const char *name, const char *why, tsr_err *err);

/* Adds a fact to `facts`, which may be the limits. Both texts are copied. */
tsr_status tsr_result_add_fact(tsr_result *result, tsr_facts *facts, const char *name, const char *value, tsr_err *err);

/* Finds or adds the series with this name. *at is its number. The name is copied. */
tsr_status tsr_result_series(tsr_result *result, const char *name, uint32_t *at, tsr_err *err);

/* Inserts a tensor into the worst of a series. The name is borrowed. Of equal errors, the earlier one precedes. */
void tsr_series_note_worst(tsr_series *series, const char *name, double relative);

/* Returns the sentences about a check; NULL: the kind of the result has none. */
const tsr_check_text *tsr_check_text_of(const tsr_result *result, const char *check);

/* Returns the value of a fact; NULL: unknown. */
const char *tsr_fact_of(const tsr_facts *facts, const char *name);

/* Returns the value for text output. A number with a fraction is shortened in `number`. */
const char *tsr_fact_shown(const tsr_fact *fact, char number[32]);

/* Returns an error of a row that was compared. JSON has null for infinite errors, so an unknown one is infinite. */
double tsr_row_error(const tsr_row *row, tsr_figure figure);

/* Returns the dtypes of a compared pair: "BF16", or "BF16 to F8_E4M3". A dtype is NULL if its side has no tensor. The
 * result is NULL if both are, or memory is exhausted. */
const char *tsr_dtypes_text(tsr_arena *arena, const char *a, const char *b);

/* Returns true if this is the state of a compared pair: "identical", "differs". */
bool tsr_row_in_state(const tsr_row *row, const char *state);
size_t tsr_count_in_state(const tsr_result *result, const char *state);

/* Clears a row: it has no figures. */
void tsr_row_clear(tsr_row *row);

/* Returns the first row with this name, by binary search in `order` of tsr_rows_by_name. NULL: none. */
const tsr_row *tsr_find_row(const tsr_result *result, const uint32_t *order, const char *name);

/* Returns the rows' numbers, sorted by name, what and series; from malloc. NULL: out of memory. */
uint32_t *tsr_rows_by_name(const tsr_result *result);

/* Compares two rows by name, what and series name: < 0, 0, > 0. */
int tsr_compare_rows(const tsr_result *a, const tsr_row *x, const tsr_result *b, const tsr_row *y);

void tsr_result_free(tsr_result *result);
