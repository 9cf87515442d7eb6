/* Reads the sizes of compressed attention and of hyper-connections (DeepSeek-V4) from config.json. */
#include "verify/forward/forward_parts.h"

#include "formats/checkpoint/config.h"

#include <math.h>

/* Sizes that config.json may leave out have the values of DeepseekV4Config in transformers 5.24. */
static size_t size_of(const tsr_forward *f, const char *key, const char *other, size_t otherwise)
{
    return tsr_forward_size(f, key, other == NULL ? otherwise : tsr_forward_size(f, other, otherwise));
}

static double number(const tsr_forward *f, const char *key, double otherwise)
{
    return tsr_config_model_number(f->side->checkpoint, key, otherwise);
}

/* Reads both kinds of RoPE, nested as transformers writes them or flat as in the release. Layers with a compressor have
 * one of a base of their own, whose cosines have no factor in the release. */
static tsr_status read_ropes(tsr_forward *f, size_t turned, tsr_err *err)
{
    static const char kMain[] = "main", kCompress[] = "compress";
    const tsr_checkpoint *const c = f->side->checkpoint;
    const double base = number(f, "rope_theta", 10000), compressed = number(f, "compress_rope_theta", 160000);
    if (tsr_rope_has_section(c, kMain) && tsr_rope_has_section(c, kCompress)) {
        TSR_TRY(tsr_rope_read_section(&f->local_rope, c, turned, kMain, base, &f->arena, err));
        TSR_TRY(tsr_rope_read_section(&f->rope, c, turned, kCompress, compressed, &f->arena, err));
    } else {
        TSR_TRY(tsr_rope_of_base(&f->local_rope, c, turned, base, &f->arena, err));
        TSR_TRY(tsr_rope_read_of_base(&f->rope, c, turned, compressed, &f->arena, err));
    }
    f->rope.gain = number(f, "rope_parameters.compress.attention_factor",
                          number(f, "rope_parameters.attention_factor", number(f, "rope_scaling.attention_factor", 1)));
    return TSR_OK;
}

static tsr_status check_sizes(const tsr_forward *f, tsr_err *err)
{
    const struct tsr_compression *const c = &f->compression;
    const char *const fault = f->kv_heads != 1                                      ? "num_key_value_heads"
                              : c->turned % 2 != 0 || c->turned > f->head_dim       ? "qk_rope_head_dim"
                              : c->q_rank == 0                                      ? "q_lora_rank"
                              : c->out_groups == 0 || f->heads % c->out_groups != 0 ? "o_groups"
                              : c->rank == 0                                        ? "o_lora_rank"
                              : c->rate[0] == 0 || c->rate[1] == 0                  ? "compress_rates"
                              : f->streams == 0 || f->streams > TSR_MAX_STREAMS     ? "hc_mult"
                              : c->iterations == 0                                  ? "hc_sinkhorn_iters"
                                                                                    : NULL;
    return fault == NULL ? TSR_OK
                         : tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": missing or unsupported %s",
                                    f->side->checkpoint->path, fault);
}

tsr_status tsr_forward_read_compression(tsr_forward *f, tsr_err *err)
{
    struct tsr_compression *const c = &f->compression;
    if ((f->traits & TSR_STREAMS) == 0)
        return TSR_OK;
    f->kv_heads = tsr_forward_size(f, "num_key_value_heads", 1);
    f->head_dim = tsr_forward_size(f, "head_dim", 512);
    c->rate[0] = size_of(f, "compress_rates.compressed_sparse_attention", "compress_rate_csa", 4);
    c->rate[1] = size_of(f, "compress_rates.heavily_compressed_attention", "compress_rate_hca", 128);
    c->q_rank = tsr_forward_size(f, "q_lora_rank", 1024);
    c->out_groups = tsr_forward_size(f, "o_groups", 8);
    c->rank = tsr_forward_size(f, "o_lora_rank", 1024);
    c->turned = tsr_forward_size(f, "qk_rope_head_dim",
                                 (size_t)(number(f, "partial_rotary_factor", 64.0 / 512) * (double)f->head_dim));
    c->iterations = tsr_forward_size(f, "hc_sinkhorn_iters", 20);
    c->eps = number(f, "hc_eps", 1e-6);
    f->attention_scale = 1 / sqrt((double)f->head_dim);
    TSR_TRY(check_sizes(f, err));
    return read_ropes(f, c->turned, err);
}
