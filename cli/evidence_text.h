/* Output of evidence (verify/evidence/evidence.h): a line of text, members of JSON. */
#ifndef TSR_CLI_EVIDENCE_TEXT_H
#define TSR_CLI_EVIDENCE_TEXT_H

#include "common/text.h"
#include "verify/evidence/evidence.h"

/* Members: seconds, bytes_read, phase_seconds, judgements, skipped. */
void tsr_evidence_json(tsr_text *t, const tsr_evidence *evidence);

/* One judgement to stdout, and its fault on a line of its own. */
void tsr_judgement_print(const tsr_judgement *judgement);

/* Prints one line for the `n` judgements of one tensor or set: the worst quantization error, and how near kernels come
 * to their bounds. Below it stand the judgements that are beyond their limits. */
void tsr_subject_print(const tsr_judgement *judgements, size_t n);

/* Prints to stdout what was skipped, and how many judgements are beyond their limits. */
void tsr_evidence_print_end(const tsr_evidence *evidence);

#endif
