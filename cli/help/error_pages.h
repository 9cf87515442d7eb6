/* Finds the section of docs/errors.md that explains an error. */
#pragma once

#include "common/error_ids.h"

/* Returns the heading of the section that explains an error; NULL: there is none. Static storage. */
const char *tsr_error_heading(tsr_error_id id);

/* docs/errors.md, made into C when Tessera is built; the last one has no heading. */
typedef struct tsr_error_section {
    const char *heading, *text;
} tsr_error_section;

extern const tsr_error_section tsr_error_sections[];
