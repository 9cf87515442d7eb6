/* Our entry to FlashMLA's dense BF16 decoding on Hopper, for peers_mla.py: plan once, then decode (docs/peers.md). Compiled against
 * FlashMLA's own headers, of which nothing is in this repository. */
#include <algorithm>
#include <cmath>

#include "params.h"
#include "sm90/decode/dense/splitkv_mla.h"
#include "smxx/decode/combine/combine.h"
#include "smxx/decode/get_decoding_sched_meta/get_decoding_sched_meta.h"

/* One problem, all contiguous; the last four are FlashMLA's plan and its partial results, which the caller provides:
 * plan int32 [parts][8], splits int32 [batch + 1], lse_parts float [batch + parts][rows], out_parts the same by 512. */
struct decode {
    void *q, *cache, *out;
    int *block_table, *seqlens;
    float *lse;
    void *plan;
    int *splits;
    float *lse_parts, *out_parts;
    int batch, s_q, heads, pages, max_pages, processors;
    float scale;
};

static constexpr int kWidth = 576, kLatent = 512, kPage = 64, kTileRows = 64, kFixedCost = 5;

extern "C" int flashmla_parts(const decode *d)
{
    return std::max(d->processors / ((d->s_q * d->heads + kTileRows - 1) / kTileRows), 1);
}

extern "C" void flashmla_plan(const decode *d, cudaStream_t stream)
{
    GetDecodeSchedMetaParams p = {};
    p.b = d->batch, p.s_q = d->s_q, p.block_size_n = kPage, p.fixed_overhead_num_blocks = kFixedCost;
    p.topk = -1, p.extra_topk = -1, p.seqlens_k_ptr = d->seqlens;
    p.tile_scheduler_metadata_ptr = static_cast<DecodingSchedMeta *>(d->plan), p.num_splits_ptr = d->splits;
    p.num_sm_parts = flashmla_parts(d), p.stream = stream;
    smxx::decode::run_get_decoding_sched_meta_kernel(p);
}

extern "C" void flashmla_decode(const decode *d, cudaStream_t stream)
{
    const int rows = d->s_q * d->heads, parts = flashmla_parts(d);
    DenseAttnDecodeParams p = {};
    p.b = d->batch, p.s_q = d->s_q, p.h_q = d->heads, p.h_k = 1, p.q_head_per_hk = d->heads, p.q_seq_per_hk = rows;
    p.d = kWidth, p.d_v = kLatent, p.num_blocks = d->pages, p.page_block_size = kPage, p.is_causal = d->s_q > 1;
    p.scale_softmax = d->scale, p.scale_softmax_log2 = (float)(d->scale * M_LOG2E);
    p.q_ptr = d->q, p.k_ptr = d->cache, p.o_ptr = d->out, p.softmax_lse_ptr = d->lse;
    p.q_batch_stride = (int64_t)rows * kWidth, p.q_row_stride = p.q_head_stride = kWidth;
    p.k_batch_stride = kPage * kWidth, p.k_row_stride = p.k_head_stride = kWidth;
    p.o_batch_stride = p.o_head_stride = (int64_t)rows * kLatent, p.o_row_stride = kLatent;
    p.block_table = d->block_table, p.block_table_batch_stride = d->max_pages, p.seqlens_k_ptr = d->seqlens;
    p.tile_scheduler_metadata_ptr = static_cast<DecodingSchedMeta *>(d->plan), p.num_splits_ptr = d->splits;
    p.num_sm_parts = parts, p.total_num_splits = d->batch + parts;
    p.softmax_lseaccum_ptr = d->lse_parts, p.oaccum_ptr = d->out_parts, p.stream = stream;
    sm90::run_flash_splitkv_mla_kernel<cutlass::bfloat16_t>(p);

    CombineParams c = {};
    c.b = d->batch, c.s_q = d->s_q, c.h_q = d->heads, c.d_v = kLatent;
    c.lse = d->lse, c.stride_lse_b = rows, c.stride_lse_s_q = d->heads;
    c.out = d->out, c.stride_o_b = rows * kLatent, c.stride_o_s_q = d->heads * kLatent, c.stride_o_h_q = kLatent;
    c.lse_accum = d->lse_parts, c.stride_lse_accum_split = rows, c.stride_lse_accum_s_q = d->heads;
    c.o_accum = d->out_parts, c.stride_o_accum_split = rows * kLatent, c.stride_o_accum_s_q = d->heads * kLatent;
    c.stride_o_accum_h_q = kLatent;
    c.tile_scheduler_metadata_ptr = p.tile_scheduler_metadata_ptr, c.num_splits_ptr = d->splits, c.num_sm_parts = parts;
    c.stream = stream;
    smxx::decode::run_flash_mla_combine_kernel<cutlass::bfloat16_t>(c);
}
