/* Fills the model of a result with evidence (verify/evidence/evidence.h), and writes it as JSON. */
#pragma once

#include "report/model/result.h"
#include "verify/evidence/evidence.h"

/* Adds a row for each judgement, and then for each tensor or set that was skipped. Texts are those of the evidence,
 * which must outlive the result. */
tsr_status tsr_evidence_fill(tsr_result *result, const char *schema, const tsr_evidence *evidence, tsr_err *err);

/* Writes the members seconds, bytes_read, phase_seconds, judgements and skipped. The last two are the rows. */
void tsr_evidence_json(tsr_text *text, const tsr_evidence *evidence, const tsr_result *result);
