/* Reads the MLA dimensions, all of which are required. */
#include "formats/names/mla_shape.h"

#include "formats/checkpoint/config.h"

tsr_status tsr_mla_dimension_read(const tsr_checkpoint *c, const char *key, uint64_t *value, tsr_err *err)
{
    if (c->config == NULL)
        return tsr_fail(err, TSR_E_USAGE, "%s: needs a directory with its " TSR_CONFIG_NAME, c->path);
    if (!tsr_config_find_u64(c, key, value) || *value == 0 || *value > 1u << 20)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s/" TSR_CONFIG_NAME ": no %s: not a model with multi-head latent attention", c->path, key);
    return TSR_OK;
}

tsr_status tsr_mla_shape_read(tsr_mla_shape *shape, const tsr_checkpoint *c, tsr_err *err)
{
    TSR_TRY(tsr_mla_dimension_read(c, "num_attention_heads", &shape->heads, err));
    TSR_TRY(tsr_mla_dimension_read(c, "qk_nope_head_dim", &shape->nope, err));
    TSR_TRY(tsr_mla_dimension_read(c, "v_head_dim", &shape->v, err));
    TSR_TRY(tsr_mla_dimension_read(c, "qk_rope_head_dim", &shape->rope, err));
    return tsr_mla_dimension_read(c, "kv_lora_rank", &shape->rank, err);
}
