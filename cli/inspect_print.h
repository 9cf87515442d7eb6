/* The output of `tessera inspect`: text and JSON. */
#ifndef TSR_CLI_INSPECT_PRINT_H
#define TSR_CLI_INSPECT_PRINT_H

#include "common/text.h"
#include "formats/loaders/issues.h"
#include "formats/loaders/loaders.h"
#include "verify/weights/contents.h"
#include "verify/weights/histogram.h"

/* To stdout. */
void tsr_print_contents(const tsr_checkpoint *checkpoint, const tsr_contents *survey);
void tsr_print_histogram(const tsr_checkpoint *checkpoint, const tsr_weight *weight, const tsr_histogram *histogram);
void tsr_print_loaders(const tsr_load_table *table, const char *subject);
void tsr_print_issues(const tsr_issues *issues);

/* Members of the object that is open in `text`. */
void tsr_json_contents(tsr_text *text, const tsr_checkpoint *checkpoint, const tsr_contents *survey);
void tsr_json_histogram(tsr_text *text, const tsr_checkpoint *checkpoint, const tsr_weight *weight,
                        const tsr_histogram *histogram);
void tsr_json_loaders(tsr_text *text, const tsr_load_table *table);
void tsr_json_issues(tsr_text *text, const char *key, const tsr_issues *issues);

#endif
