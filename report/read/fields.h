/* Reads untrusted JSON objects by tables. A row has a key, the reader of its value, and its destination.
 *
 * Unknown keys are skipped, because a later version may add some. A known key that is repeated, or whose value is of
 * another kind, is refused with the file and the byte. Texts are decoded into the arena of the result. */
#pragma once

#include "formats/json/json.h"
#include "report/model/result.h"

typedef struct tsr_reading {
    tsr_json_reader json;
    tsr_result *result;
} tsr_reading;

/* Reads exactly one value into *to. */
typedef tsr_status tsr_value_fn(tsr_reading *r, void *to, tsr_err *err);

/* Properties of a member. */
enum {
    TSR_NEEDED = 1, /* an object without it is rejected */
    TSR_EACH = 2,   /* the value is an array; `read` is called with the same destination for each element */
};

typedef struct tsr_field {
    const char *key; /* NULL ends a table */
    tsr_value_fn *read;
    size_t at;   /* offset of the destination in the struct */
    unsigned is; /* TSR_NEEDED, TSR_EACH */
} tsr_field;

/* Handling of members that no field of the table names. */
typedef struct tsr_rest {
    double *figures;    /* destination of figures; NULL: figures are skipped */
    tsr_facts *facts;   /* destination of strings, numbers, true and false; NULL: skipped */
    const char *prefix; /* prefix of the facts' names */
} tsr_rest;

/* Reads an object. `what` is its name in messages: "a tensor". */
tsr_status tsr_read_object(tsr_reading *r, const char *what, const tsr_field *fields, void *to, const tsr_rest *rest,
                           tsr_err *err);

/* Reads an array, and calls `element` with `to` for each value. */
tsr_status tsr_read_array(tsr_reading *r, tsr_value_fn *element, void *to, tsr_err *err);

/* Reads an object whose keys are names, {"BF16": {...}, ...}, and calls `member` with the name and `to` for each. */
typedef tsr_status tsr_member_fn(tsr_reading *r, const char *name, void *to, tsr_err *err);
tsr_status tsr_read_members(tsr_reading *r, tsr_member_fn *member, void *to, tsr_err *err);

/* Readers of values. The comment is the type of *to. null leaves a text NULL and a number NaN. */
tsr_value_fn tsr_value_text;   /* const char *: a string or null */
tsr_value_fn tsr_value_number; /* double */
tsr_value_fn tsr_value_count;  /* uint64_t */
tsr_value_fn tsr_value_flag;   /* bool */
tsr_value_fn tsr_value_place;  /* const char *: an array of numbers as text, "[12, 0]"; or a string */
tsr_value_fn tsr_value_passed; /* tsr_outcome: true or false */

/* Returns TSR_E_FORMAT with a message of file, byte, `what`, and the remedy. */
tsr_status tsr_refuse_value(const tsr_reading *r, tsr_err *err, const char *what);
