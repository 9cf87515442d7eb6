/* Output of evidence (verify/evidence/evidence.h): a line of text, members of JSON, JUnit XML. */
#ifndef TSR_CLI_EVIDENCE_TEXT_H
#define TSR_CLI_EVIDENCE_TEXT_H

#include "common/text.h"
#include "verify/evidence/evidence.h"

/* Members: seconds, phase_seconds, judgements, skipped. */
void tsr_evidence_json(tsr_text *t, const tsr_evidence *evidence);

/* One judgement to stdout, and its fault on a line of its own. */
void tsr_judgement_print(const tsr_judgement *judgement);

/* Prints one line for the `n` judgements of one tensor or set: the worst quantization error, and how near kernels come
 * to their bounds. Below it stand the judgements that are beyond their limits. */
void tsr_subject_print(const tsr_judgement *judgements, size_t n);

/* Prints to stdout what was skipped, and how many judgements are beyond their limits. */
void tsr_evidence_print_end(const tsr_evidence *evidence);

/* Writes the finished `json` to `json_path` ("-": stdout) and evidence to `junit_path`, each where it is not NULL.
 * `json` is freed. */
tsr_status tsr_evidence_write(const tsr_evidence *evidence, const char *check, tsr_text *json, const char *json_path,
                              const char *junit_path, tsr_err *err) TSR_WARN_UNUSED;

#endif
