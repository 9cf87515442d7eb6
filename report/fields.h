/* Reading JSON objects of strangers by tables: a key, how its value is read, and where it goes.
 *
 * Unknown keys are passed over, because a later version may say more; a known one that stands twice, or whose value is of
 * another kind, is refused with the file and the byte. Texts are decoded into the arena of the result. */
#ifndef TSR_REPORT_FIELDS_H
#define TSR_REPORT_FIELDS_H

#include "formats/json/json.h"
#include "report/model.h"

typedef struct tsr_reading {
    tsr_json_reader json;
    tsr_result *result;
} tsr_reading;

/* Reads exactly one value into *to. */
typedef tsr_status tsr_value_fn(tsr_reading *r, void *to, tsr_err *err);

typedef struct tsr_field {
    const char *key; /* NULL ends a table */
    tsr_value_fn *read;
    size_t at;   /* where it goes: an offset in the struct that is filled */
    bool needed; /* an object without it is no result */
} tsr_field;

/* What becomes of the members that no field of the table names. */
typedef struct tsr_rest {
    double *figures;    /* those that are figures go here; NULL: no place for them */
    tsr_facts *facts;   /* strings, numbers, true and false go here; NULL: passed over */
    const char *prefix; /* of the facts' names */
} tsr_rest;

/* Reads an object. `what` names it in messages: "a tensor". */
tsr_status tsr_read_object(tsr_reading *r, const char *what, const tsr_field *fields, void *to, const tsr_rest *rest,
                           tsr_err *err) TSR_WARN_UNUSED;

/* Reads an array: `element` with `to` for each of its values. */
tsr_status tsr_read_array(tsr_reading *r, tsr_value_fn *element, void *to, tsr_err *err) TSR_WARN_UNUSED;

/* Values. `to` is what the name says; null leaves a text NULL and a number NaN. */
tsr_value_fn tsr_value_text;   /* const char *: a string or null */
tsr_value_fn tsr_value_number; /* double */
tsr_value_fn tsr_value_count;  /* uint64_t */
tsr_value_fn tsr_value_flag;   /* bool */
tsr_value_fn tsr_value_place;  /* const char *: an array of numbers as text, "[12, 0]"; or a string */
tsr_value_fn tsr_value_passed; /* tsr_outcome: true or false */
tsr_value_fn tsr_value_skip;   /* nothing: checked, and passed over */

/* TSR_E_FORMAT: file, byte, `what`, and what to do. */
tsr_status tsr_refuse_value(const tsr_reading *r, tsr_err *err, const char *what) TSR_WARN_UNUSED;

#endif
