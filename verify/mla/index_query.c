/* Reads the sizes of an indexer, and computes its scores. */
#include "verify/mla/index_query.h"

#include "formats/checkpoint/config.h"
#include "verify/values/weight_product.h"

#include <string.h>

enum { MAX_SIZE = 1 << 20 };

static tsr_status fail(const tsr_checkpoint *c, tsr_status status, const char *key, tsr_err *err)
{
    return tsr_fail(err, status, "%s/" TSR_CONFIG_NAME ": %s %s", c->path,
                    status == TSR_E_FORMAT ? "missing or invalid" : "unsupported", key);
}

/* Reads a size that must be from 1 to MAX_SIZE. */
static tsr_status read_size(const tsr_checkpoint *c, const char *key, size_t *value, tsr_err *err)
{
    uint64_t x;
    if (!tsr_config_find_u64(c, key, &x) || x == 0 || x > MAX_SIZE)
        return fail(c, TSR_E_FORMAT, key, err);
    *value = (size_t)x;
    return TSR_OK;
}

tsr_status tsr_index_sizes_read(tsr_index_sizes *s, const tsr_checkpoint *c, bool adjacent, tsr_arena *arena,
                                tsr_err *err)
{
    static const char kInterleave[] = "indexer_rope_interleave";
    size_t turned = 0, rank;
    tsr_json_text value;
    *s = (tsr_index_sizes){.adjacent = adjacent};
    TSR_TRY(read_size(c, "index_topk", &s->kept, err));
    TSR_TRY(read_size(c, "index_n_heads", &s->heads, err));
    TSR_TRY(read_size(c, "index_head_dim", &s->dim, err));
    TSR_TRY(read_size(c, "q_lora_rank", &rank, err));
    TSR_TRY(read_size(c, "qk_rope_head_dim", &turned, err));
    if (turned > s->dim || turned % 2 != 0)
        return fail(c, TSR_E_FORMAT, "index_head_dim", err);
    if (tsr_config_find_model(c, kInterleave, &value) && tsr_json_is(value, adjacent ? "false" : "true"))
        return fail(c, TSR_E_UNSUPPORTED, kInterleave, err);
    return tsr_rope_read(&s->rope, c, turned, 10000, arena, err);
}

void tsr_index_score(const tsr_index_query *x, double *scores)
{
    memset(scores, 0, x->keys * sizeof *scores);
    for (size_t h = 0; h < x->heads; h++) {
        for (size_t j = 0; j < x->keys; j++) {
            const double score = tsr_dot(x->q + h * x->dim, x->k + j * x->dim, x->dim);
            scores[j] += score < 0 && !x->without_relu ? 0 : x->weights[h] * score;
        }
    }
}
