/* C entry to FlashAttention-3's forward kernel for heads of 192 and 128 columns: one sequence, causal, BF16. Needs the
 * headers of flash-attention's folder hopper and of CUTLASS (docs/peers.md). */
#include <cmath>

#include "flash_fwd_launch_template.h"

/* q and k are [tokens][heads][192], v and out [tokens][heads][128], lse [heads][tokens]; `semaphore` is one int that
 * the call sets to zero. */
extern "C" void fa3_run(int heads, int tokens, float scale, void *q, void *k, void *v, void *out, float *lse,
                        int *semaphore, int processors, void *stream)
{
    constexpr int kWidth = 192, kValue = 128;
    Flash_fwd_params p = {};
    p.is_bf16 = true, p.is_causal = true;
    p.q_ptr = q, p.k_ptr = k, p.v_ptr = v, p.o_ptr = out, p.softmax_lse_ptr = lse;
    p.q_row_stride = p.k_row_stride = (int64_t)heads * kWidth,
    p.v_row_stride = p.o_row_stride = (int64_t)heads * kValue;
    p.q_head_stride = p.k_head_stride = kWidth, p.v_head_stride = p.o_head_stride = kValue, p.v_dim_stride = 1;
    p.q_batch_stride = p.k_batch_stride = (int64_t)tokens * heads * kWidth;
    p.v_batch_stride = p.o_batch_stride = (int64_t)tokens * heads * kValue;
    p.b = p.b_k = 1, p.h = p.h_k = heads, p.d = p.d_rounded = kWidth, p.dv = p.dv_rounded = kValue;
    p.seqlen_q = p.seqlen_k = p.seqlen_q_rounded = p.seqlen_k_rounded = p.total_q = p.total_k = tokens;
    p.scale_softmax = scale, p.p_dropout = p.rp_dropout = 1.0f, p.p_dropout_in_uint8_t = 255;
    p.window_size_left = tokens - 1, p.window_size_right = 0;
    p.arch = 90, p.num_sm = processors, p.num_splits = 1, p.tile_count_semaphore = semaphore;
    cudaMemsetAsync(semaphore, 0, sizeof *semaphore, static_cast<cudaStream_t>(stream));
    run_flash_fwd<90, kWidth, kValue, 1, cutlass::bfloat16_t, cutlass::bfloat16_t, true, false, false, false, false,
                  false, false, false, false, false>(p, static_cast<cudaStream_t>(stream));
}
