/* What the commands that write JUnit XML share. */
#ifndef TSR_CLI_JUNIT_H
#define TSR_CLI_JUNIT_H

#include "common/text.h"

/* Appends `text` as character data or attribute value: names in a checkpoint may hold anything. */
void tsr_junit_text(tsr_text *t, const char *text);

#endif
