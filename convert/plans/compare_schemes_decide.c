/* Which tensors the policy of quantize would take, for each kind of scheme. */
#include "convert/plans/compare_schemes.h"

#include "quantize/policy.h"

#include <stdlib.h>
#include <string.h>

tsr_status tsr_schemes_decide(const tsr_checkpoint *c, const char *model_type, uint8_t *taken, tsr_arena *arena,
                              tsr_err *err)
{
    static const struct {
        tsr_policy_options policy;
        uint8_t taken;
    } kForms[] = {
        {{.block_rows = 128}, TSR_TAKEN_IN_BLOCKS},
        {{.block_rows = 1}, TSR_TAKEN_IN_FP8_ROWS},
        {{.block_rows = 1, .not_fp8 = true}, TSR_TAKEN_AS_INT8},
        {{.block_rows = 1, .not_fp8 = true, .four_bits = true}, TSR_TAKEN_AS_INT4},
        {{.block_rows = 1, .group = 16, .not_fp8 = true, .four_bits = true}, TSR_TAKEN_AS_NVFP4},
        {{.block_rows = 1, .group = 32, .not_fp8 = true, .four_bits = true}, TSR_TAKEN_AS_MXFP4},
        {{.block_rows = 1, .group = 32}, TSR_TAKEN_AS_MXFP8},
    };
    tsr_decision *const decisions = calloc(c->tensors.count + 1, sizeof *decisions);
    tsr_status status = decisions == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
    memset(taken, 0, c->tensors.count);
    for (size_t f = 0; f < sizeof kForms / sizeof *kForms && status == TSR_OK; f++) {
        status = tsr_policy_decide(c, model_type, &kForms[f].policy, arena, decisions, err);
        for (size_t i = 0; i < c->tensors.count; i++)
            taken[i] |= decisions[i].treatment == TSR_QUANTIZE ? kForms[f].taken : 0;
    }
    free(decisions);
    return status;
}
