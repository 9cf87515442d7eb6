/* Prints evidence (verify/evidence/evidence.h), and writes it as JSON. */
#ifndef TSR_CLI_SHOW_EVIDENCE_TEXT_H
#define TSR_CLI_SHOW_EVIDENCE_TEXT_H

#include "common/text.h"
#include "verify/evidence/evidence.h"

/* Writes the members seconds, bytes_read, phase_seconds, judgements and skipped. */
void tsr_evidence_json(tsr_text *t, const tsr_evidence *evidence);

/* Prints one judgement, and its fault on a separate line. */
void tsr_judgement_print(const tsr_judgement *judgement);

/* Prints one line for the `n` judgements of one tensor or set: the worst quantization error, and the largest ratio of
 * kernel errors to bounds. Judgements beyond their limits follow. */
void tsr_subject_print(const tsr_judgement *judgements, size_t n);

/* Prints to stdout what was skipped, and the number of judgements beyond their limits. */
void tsr_evidence_print_end(const tsr_evidence *evidence);

#endif
