/* Declares decoding attention of DeepSeek's absorbed MLA on the CPU: one pass over the pages, online softmax, FP32.
 *
 *   out[b,i,h,:] = sum over tokens t of softmax_t(scale * <q[b,i,h,:], row t of b>) * first `latent` of that row
 *
 * over t < seqlens[b] - s_q + i + 1: the s_q queries are the sequence's last tokens. A query that sees no token gets
 * zeros. A row of the cache is `latent` + `rope` BF16, or, with `fp8`, `latent` e4m3 codes, latent / 128 FP32 scales
 * and `rope` BF16 (656 bytes for 512 + 64: FlashMLA's FP8 cache). Row t is row t % page of page block_table[b][t /
 * page]. Layouts: q [batch][s_q][heads][latent + rope] BF16, block_table [batch][max_pages], out
 * [batch][s_q][heads][latent].
 *
 * Sparse attention: with `indices`, the sum is over the rows of the cache that the query's list names, in the order of
 * the list. An index is page * tokens per page + row in the page, as in FlashMLA's sparse kernels; block_table and
 * seqlens are not used. A negative entry names no row and may be anywhere. A query whose entries are all negative gets
 * zeros. A row that is listed twice counts twice, as in FlashMLA. n is the number of entries that are not negative.
 *
 * Kernel error of an element, with n tokens seen, d = latent + rope and u = 2^-24: a score is off by at most D =
 * scale * (d + 2) u * max over t of sum |q k_t|. That moves a probability by a factor within exp(+-2 D).
 * Exponentials, rescalings and sums cost (2 n + 16) u more, so |out - exact| <= (2.1 D + (2 n + 16) u) * sum over t
 * of p_t |v_t|. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TSR_MLA_CACHE_GROUP = 128 };

typedef struct tsr_mla_attention {
    const uint16_t *q;
    const uint8_t *cache;
    const int32_t *block_table, *seqlens;
    /* [batch][s_q][top_k]: rows of the cache that a query attends to, -1: none. NULL: all tokens up to the query's
     * own */
    const int32_t *indices;
    size_t top_k;
    float *out;
    float *row; /* latent + rope floats of scratch */
    size_t batch, s_q, heads, latent, rope, page, max_pages;
    size_t pages; /* pages of the cache; only needed to copy it */
    float scale;
    bool fp8; /* latent is a multiple of 128 */
} tsr_mla_attention;

size_t tsr_mla_cache_row_bytes(size_t latent, size_t rope, bool fp8);

/* Writes one token's values into a row of the cache. With `fp8`, each 128 values get the scale max(amax / 448, 1e-4),
 * rounded up to a power of two. */
void tsr_mla_cache_write(const float *values, size_t latent, size_t rope, bool fp8, uint8_t *row);

/* Reads a row back: the values that attention sees. */
void tsr_mla_cache_read(const uint8_t *row, size_t latent, size_t rope, bool fp8, float *values);

/* Computes attention. Allocates nothing and cannot fail. Thread-safe if `out` and `row` differ. */
void tsr_mla_attention_run(const tsr_mla_attention *args);
