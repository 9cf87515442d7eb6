"""Faults in sparse latent attention and its indexer. planted_table.py describes the rows."""

from planted_files import I, U

INDEX = [U + "test_index_scores"]
ATTENTION = [U + "test_mla_attention"]
KERNELS = [U + "test_check_sparse"]
SPARSE = [I + "test_verify_mla_sparse.py"]

SPARSE_FAULTS = [
    ("kernels/cpu/index_scores.c", "(score > 0 ? score : 0)", "score", INDEX, "an indexer without ReLU"),
    ("kernels/cpu/index_scores.c", "? a->k_scale[j] * sum :", "? sum :", INDEX, "the scales of an indexer's keys are left out"),
    ("kernels/cpu/index_scores.c", "sum += a->weights[i * a->heads + h]", "sum += a->weights[h]", INDEX, "each query has the weights of the first"),
    ("kernels/cpu/index_scores.c", "(int64_t)j < a->seen[i] ? a->k_scale", "(int64_t)j <= a->seen[i] ? a->k_scale", INDEX, "an indexer's query sees one key too many"),
    ("kernels/cpu/mla_attention.c", "return a->indices[query * a->top_k + t];", "return a->indices[t];", ATTENTION, "all queries have the first list"),
    ("kernels/cpu/mla_attention.c", "        if (row < 0)\n            continue;", "        if (row < 0)\n            break;", ATTENTION, "a list ends at its first -1"),
    ("kernels/cpu/mla_attention.c", "if (a->indices != NULL)\n        return a->top_k;", "", [*ATTENTION, *KERNELS], "a list is cut at the query's own token"),
    ("verify/mla/mla_model.c", '{"deepseek_v32", false}', '{"deepseek_v32", true}', SPARSE, "DeepSeek-V3.2: the indexer's RoPE turns neighbours"),
    ("verify/mla/mla_reference.c", "x[k] += w->m->index_bias[k];", "x[k] += 0;", SPARSE, "the indexer's k_norm has no bias"),
    ("verify/mla/mla_reference.c", "w->out[q * w->b->longest + j] /= sqrt((double)s->dim);", "", SPARSE, "the indexer's scores lack dim^-0.5"),
    ("verify/mla/mla_kernels.c", "return w->list > 0 ? check_cache(w, true, true, err) : TSR_OK;", "return TSR_OK;", [*KERNELS, *SPARSE],
     "steep scores over an FP8 cache are left out"),
    ("verify/mla/attention_oracle.c", "return a->keys + (a->rows != NULL ? a->rows[t] : t) * a->ld_keys;", "return a->keys + t * a->ld_keys;", KERNELS,
     "the oracle takes the scores of other tokens than those of the list"),
    ("verify/mla/sparse/sparse_lists.c", "if (!empty_slots_are_zeros(w))", "if (false)", KERNELS, "queries without tokens are not judged"),
    ("verify/mla/sparse/sparse_lists.c", "return (top_k / STEP + 1) * STEP;", "return (top_k + STEP - 1) / STEP * STEP;", KERNELS, "lists of a multiple of 64 tokens have no -1"),
    ("verify/mla/sparse/index_codes.c", "x[i] /= sqrt((double)n);", "x[i] /= (double)n;", SPARSE, "the Hadamard matrix is not normalized"),
    ("verify/mla/sparse/index_codes.c", "[i] * (double)scale / sqrt((double)dim));", "[i] / sqrt((double)dim));", SPARSE, "the scales of an indexer's queries are left out"),
    ("verify/mla/sparse/index_codes.c", "mantissa == 0.5 ? exponent - 1 : exponent", "exponent - 1", SPARSE, "scales of an indexer's codes are rounded down"),
    ("verify/mla/sparse/check_sparse.c", ".kept = p->top_k};", ".kept = p->top_k + 1};", SPARSE, "a query attends to one token too many"),
    ("verify/mla/sparse/check_sparse.c", "*hidden = *hidden && (seen || logit == -INFINITY);", "", KERNELS, "scores of tokens that are not seen are not judged"),
    ("verify/mla/sparse/check_sparse.c", "queries > s->new_tokens ? run_prefill(&p, queries, err) : TSR_OK", "TSR_OK", [*KERNELS, *SPARSE], "prefill is left out"),
]
