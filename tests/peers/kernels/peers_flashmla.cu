/* Entries to FlashMLA's kernels on Hopper, for sweep_attention.py and sweep_sparse.py (docs/peers.md): dense BF16
 * decoding and sparse FP8 decoding, each planned once, and sparse BF16 prefill. Compiled against FlashMLA's own
 * headers, of which nothing is in this repository. */
#include <algorithm>
#include <cmath>

#include "params.h"
#include "sm90/decode/dense/splitkv_mla.h"
#include "sm90/decode/sparse_fp8/splitkv_mla.h"
#include "sm90/prefill/sparse/phase1.h"
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

static constexpr int kWidth = 576, kLatent = 512, kPage = 64, kTileRows = 64, kFixedCost = 5, kCodedBytes = 656;

static void combine(int batch, int s_q, int heads, int parts, void *out, float *lse, float *lse_parts, float *out_parts,
                    void *plan, int *splits, cudaStream_t stream)
{
    const int rows = s_q * heads;
    CombineParams c = {};
    c.b = batch, c.s_q = s_q, c.h_q = heads, c.d_v = kLatent;
    c.lse = lse, c.stride_lse_b = rows, c.stride_lse_s_q = heads;
    c.out = out, c.stride_o_b = rows * kLatent, c.stride_o_s_q = heads * kLatent, c.stride_o_h_q = kLatent;
    c.lse_accum = lse_parts, c.stride_lse_accum_split = rows, c.stride_lse_accum_s_q = heads;
    c.o_accum = out_parts, c.stride_o_accum_split = rows * kLatent, c.stride_o_accum_s_q = heads * kLatent;
    c.stride_o_accum_h_q = kLatent, c.tile_scheduler_metadata_ptr = static_cast<DecodingSchedMeta *>(plan);
    c.num_splits_ptr = splits, c.num_sm_parts = parts, c.stream = stream;
    smxx::decode::run_flash_mla_combine_kernel<cutlass::bfloat16_t>(c);
}

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
    const int parts = flashmla_parts(d), rows = d->s_q * d->heads;
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

    combine(d->batch, d->s_q, d->heads, parts, d->out, d->lse, d->lse_parts, d->out_parts, d->plan, d->splits, stream);
}

/* One problem of sparse attention, all contiguous, with indices [batch][s_q][top_k]. For decoding kv is an FP8 cache,
 * and the last four pointers are as above. For prefill, batch is 1 and kv is BF16; `largest` [s_q][heads] is a
 * result. */
struct sparse {
    void *q, *kv, *out;
    int *indices;
    float *lse, *largest;
    void *plan;
    int *splits;
    float *lse_parts, *out_parts;
    int batch, s_q, heads, pages, top_k, processors;
    float scale;
};

extern "C" int flashmla_sparse_parts(const sparse *d)
{
    return std::max(d->processors / d->s_q / (d->heads / kTileRows), 1);
}

extern "C" void flashmla_sparse_plan(const sparse *d, cudaStream_t stream)
{
    GetDecodeSchedMetaParams p = {};
    p.b = d->batch, p.s_q = d->s_q, p.block_size_n = kPage, p.fixed_overhead_num_blocks = kFixedCost;
    p.topk = d->top_k, p.tile_scheduler_metadata_ptr = static_cast<DecodingSchedMeta *>(d->plan);
    p.num_splits_ptr = d->splits, p.num_sm_parts = flashmla_sparse_parts(d), p.stream = stream;
    smxx::decode::run_get_decoding_sched_meta_kernel(p);
}

extern "C" void flashmla_sparse_decode(const sparse *d, cudaStream_t stream)
{
    const int parts = flashmla_sparse_parts(d), rows = d->s_q * d->heads;
    SparseAttnDecodeParams p = {};
    p.b = d->batch, p.s_q = d->s_q, p.h_q = d->heads, p.h_kv = 1, p.d_qk = kWidth, p.d_v = kLatent;
    p.sm_scale = d->scale, p.sm_scale_div_log2 = (float)(d->scale * M_LOG2E);
    p.num_blocks = d->pages, p.page_block_size = kPage, p.topk = d->top_k, p.model_type = ModelType::V32;
    p.q = static_cast<cutlass::bfloat16_t *>(d->q), p.kv = static_cast<cutlass::bfloat16_t *>(d->kv);
    p.indices = d->indices, p.lse = d->lse, p.out = static_cast<cutlass::bfloat16_t *>(d->out);
    p.stride_q_b = rows * kWidth, p.stride_q_s_q = d->heads * kWidth, p.stride_q_h_q = kWidth;
    p.stride_kv_block = kPage * kCodedBytes, p.stride_kv_row = kCodedBytes;
    p.stride_indices_b = d->s_q * d->top_k, p.stride_indices_s_q = d->top_k;
    p.stride_lse_b = rows, p.stride_lse_s_q = d->heads;
    p.stride_o_b = rows * kLatent, p.stride_o_s_q = d->heads * kLatent, p.stride_o_h_q = kLatent;
    p.lse_accum = d->lse_parts, p.o_accum = d->out_parts, p.stride_lse_accum_split = rows;
    p.stride_lse_accum_s_q = d->heads, p.stride_o_accum_split = rows * kLatent;
    p.stride_o_accum_s_q = d->heads * kLatent, p.stride_o_accum_h_q = kLatent;
    p.tile_scheduler_metadata_ptr = static_cast<DecodingSchedMeta *>(d->plan), p.num_splits_ptr = d->splits;
    p.num_sm_parts = parts, p.stream = stream;
    if (d->heads == 128) {
        sm90::decode::sparse_fp8::run_flash_splitkv_mla_fp8_sparse_kernel<ModelType::V32, 128>(p);
    } else {
        sm90::decode::sparse_fp8::run_flash_splitkv_mla_fp8_sparse_kernel<ModelType::V32, 64>(p);
    }
    combine(d->batch, d->s_q, d->heads, parts, d->out, d->lse, d->lse_parts, d->out_parts, d->plan, d->splits, stream);
}

extern "C" void flashmla_sparse_prefill(const sparse *d, cudaStream_t stream)
{
    SparseAttnFwdParams p = {};
    p.s_q = d->s_q, p.s_kv = d->pages * kPage, p.h_q = d->heads, p.h_kv = 1, p.d_qk = kWidth, p.d_v = kLatent;
    p.topk = d->top_k, p.sm_scale = d->scale, p.sm_scale_div_log2 = (float)(d->scale * M_LOG2E);
    p.q = static_cast<cutlass::bfloat16_t *>(d->q), p.kv = static_cast<cutlass::bfloat16_t *>(d->kv);
    p.indices = d->indices, p.stride_q_s_q = d->heads * kWidth, p.stride_q_h_q = kWidth;
    p.stride_kv_s_kv = p.stride_kv_h_kv = kWidth, p.stride_indices_s_q = p.stride_indices_h_kv = d->top_k;
    p.out = static_cast<cutlass::bfloat16_t *>(d->out), p.max_logits = d->largest, p.lse = d->lse;
    p.num_sm = d->processors, p.stream = stream;
    sm90::fwd::run_fwd_phase1_kernel<kWidth, false>(p);
}
