/* Determines which tensors the policy of `quantize` would quantize, for each scheme. */
#include "convert/search/compare_schemes.h"

#include <stdlib.h>
#include <string.h>

/* Returns the first scheme with the same policy as this one. */
static tsr_scheme alike(tsr_scheme scheme)
{
    tsr_policy_options own = {0}, other = {0};
    tsr_scheme_policy(scheme, &own);
    for (tsr_scheme i = TSR_SCHEME_KEEP + 1;; i++) {
        tsr_scheme_policy(i, &other);
        if (i == scheme || (other.block_rows == own.block_rows && other.group == own.group &&
                            other.not_fp8 == own.not_fp8 && other.four_bits == own.four_bits))
            return i;
    }
}

tsr_status tsr_schemes_decide(const tsr_checkpoint *c, const char *model_type, uint64_t *taken, tsr_arena *arena,
                              tsr_err *err)
{
    tsr_decision *const decisions = calloc(c->tensors.count + 1, sizeof *decisions);
    tsr_status status = decisions == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
    memset(taken, 0, c->tensors.count * sizeof *taken);
    for (tsr_scheme s = TSR_SCHEME_KEEP + 1; s < TSR_SCHEMES && status == TSR_OK; s++) {
        const tsr_scheme first = alike(s);
        tsr_policy_options policy = {0};
        tsr_scheme_policy(s, &policy);
        if (first == s)
            status = tsr_policy_decide(c, model_type, &policy, arena, decisions, err);
        for (size_t i = 0; i < c->tensors.count; i++)
            taken[i] |= (first == s ? (uint64_t)(decisions[i].treatment == TSR_QUANTIZE) : taken[i] >> first & 1) << s;
    }
    free(decisions);
    return status;
}
