/* Writes the output of `tessera inspect`: text and JSON. */
#pragma once

#include "common/text.h"
#include "formats/loaders/issues.h"
#include "formats/loaders/loaders.h"
#include "verify/survey/contents.h"
#include "verify/survey/histogram.h"

/* One tensor to inspect: a weight or a companion. */
typedef struct tsr_inspected {
    const tsr_tensor *stored; /* as stored in the file */
    tsr_weight weight;        /* for companions such as scales: plain, with the dtype in which its bytes are read */
    const tsr_weight *owner;  /* the weight that it belongs to; NULL: it is a weight */
    const char *role;         /* tsr_weights_owner */
} tsr_inspected;

/* Print to stdout. tsr_print_coding prints a part of a line: "MXFP4 of compressed-tensors (mxfp4-ct): 4 bits, a scale
 * for 32 columns". */
void tsr_print_contents(const tsr_checkpoint *checkpoint, const tsr_contents *survey);
void tsr_print_coding(const tsr_weight_kind *kind, unsigned bits, tsr_block block);
void tsr_print_tensor(const tsr_checkpoint *checkpoint, const tsr_inspected *tensor, const tsr_histogram *histogram);
void tsr_print_loaders(const tsr_load_table *table, const char *subject);
void tsr_print_issues(const tsr_issues *issues);

/* Write members of the open object. */
void tsr_json_contents(tsr_text *text, const tsr_checkpoint *checkpoint, const tsr_contents *survey);
void tsr_json_tensor(tsr_text *text, const tsr_checkpoint *checkpoint, const tsr_inspected *tensor,
                     const tsr_histogram *histogram);
void tsr_json_place(tsr_text *text, const tsr_checkpoint *checkpoint, const tsr_tensor *tensor);
void tsr_json_loaders(tsr_text *text, const tsr_load_table *table);
void tsr_json_issues(tsr_text *text, const char *key, const tsr_issues *issues);
