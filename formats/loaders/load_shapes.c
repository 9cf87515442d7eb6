/* Rules of shapes: every rank of a tensor-parallel group must get whole blocks. */
#include "formats/loaders/load_query.h"

#include "common/options.h"

#include <stdio.h>
#include <string.h>

/* The dimension of a weight that is divided among ranks. */
typedef struct extent {
    uint64_t size, block, grid; /* those of one half if gate and up are stacked */
    const char *what;
} extent;

static extent extent_of(const tsr_linear *l)
{
    if (l->cut->how == TSR_TP_COLUMNS)
        return (extent){l->cols, l->block.cols, l->grid_cols, "columns"};
    if (l->cut->how == TSR_TP_GATE_UP)
        return (extent){l->rows / 2, l->block.rows, l->grid_rows / 2, "rows of gate, and of up"};
    return (extent){l->rows, l->block.rows, l->grid_rows, "rows"};
}

/* Returns true if vLLM (quant_method fp8) can refine the blocks. If a rank's part of an expert ends inside a block,
 * vLLM divides the blocks into smaller ones that fit and repeats their scales (fused_moe/oracle/fp8.py,
 * refine_fp8_moe_block_shape). It repeats them in the other dimension too, where a partial last block would give more
 * small blocks than the parameter has. */
static bool is_refined(const tsr_load_query *q, const tsr_linear *l, uint64_t share)
{
    enum { SMALLEST = 32 };
    if (q->loader != TSR_LOADER_VLLM || tsr_query_compressed_tensors(q) || l->part != TSR_PART_ROUTED_EXPERTS ||
        !tsr_linear_is_fp8(l) || extent_of(l).size % l->block.rows != 0)
        return false;
    const bool columns = l->cut->how == TSR_TP_COLUMNS;
    if (columns ? l->rows % l->block.rows != 0 : l->cols % l->block.cols != 0)
        return false;
    uint64_t step = l->block.rows;
    while (step >= SMALLEST && (share % step != 0 || l->block.cols % step != 0))
        step /= 2;
    return step >= SMALLEST;
}

/* Returns how many rows or columns of the divided dimension share a word, which cannot be divided between ranks. AWQ
 * packs eight rows of codes and zero points; GPTQ packs columns of codes and rows of zero points; compressed-tensors
 * packs rows of zero points. */
static uint64_t in_a_word(const tsr_linear *l)
{
    const bool columns = l->cut->how == TSR_TP_COLUMNS;
    if (l->scale == NULL || l->weight->bits == 0)
        return 1;
    const uint64_t codes = 32 / l->weight->bits;
    switch (l->coding) {
    case TSR_CODED_AWQ:
        return columns ? 1 : codes;
    case TSR_CODED_GPTQ:
        return codes;
    case TSR_CODED_PACKED:
        return columns || l->zero_points ? codes : 1;
    default:
        return 1;
    }
}

static bool fits_words(const tsr_linear *l, uint64_t ranks, bool last)
{
    const extent e = extent_of(l);
    const bool cut = ranks > 1 || (l->fused != NULL && !last);
    return !cut || e.size % ranks != 0 || e.size / ranks % in_a_word(l) == 0;
}

/* Returns true for experts of gpt-oss: they are distributed in blocks and padded, and the last ranks get fewer.
 * (gpt_oss.py of vLLM, of SGLang) */
static bool is_dealt_out(const tsr_load_query *q, const tsr_linear *l)
{
    return l->scale != NULL && l->weight->transposed &&
           (q->loader == TSR_LOADER_VLLM || q->loader == TSR_LOADER_SGLANG);
}

/* Returns true if each of `ranks` gets whole blocks. Members of a fused layer, except the last, must end on a block
 * boundary even at TP 1. */
static bool cut_fits(const tsr_load_query *q, const tsr_linear *l, uint64_t ranks, bool last)
{
    const extent e = extent_of(l);
    if (ranks == 0 || e.size % ranks != 0 || !fits_words(l, ranks, last))
        return false;
    if (l->block.rows == 0)
        return true;
    const bool whole = e.size / ranks % e.block == 0 || is_refined(q, l, e.size / ranks);
    if (q->loader == TSR_LOADER_DEEPSEEK)
        return ranks == 1 || (e.grid % ranks == 0 && whole);
    const bool seam = l->cut->how == TSR_TP_GATE_UP || (l->fused != NULL && !last);
    /* SGLang requires whole blocks of the last member too, if TP can divide layers of this kind; vLLM requires them
     * only if TP actually divides it. */
    const bool strict = l->fused != NULL && l->cut->how == TSR_TP_ROWS && q->loader != TSR_LOADER_VLLM;
    return (ranks == 1 && !seam && !strict) || whole;
}

/* Returns true for q, k and v in one tensor (Phi-3): each part is divided separately, and each is a member of the fused
 * layer. */
static bool is_stored_qkv(const tsr_linear *l)
{
    return strcmp(l->leaf, "qkv_proj") == 0 && l->matrices == 1;
}

static bool stored_qkv_fits(const tsr_load_query *q, const tsr_linear *l, unsigned tp)
{
    const tsr_model *const m = q->s->model;
    const uint64_t keys = m->kv_heads * m->head_dim, queries = m->heads * m->head_dim;
    if (!tsr_linear_is_quantized(l))
        return true;
    if (m->heads == 0 || l->rows != queries + 2 * keys || m->heads % tp != 0 ||
        (m->kv_heads % tp != 0 && tp % m->kv_heads != 0))
        return false;
    if (l->block.rows == 0)
        return true;
    const uint64_t share = m->kv_heads % tp == 0 ? keys / tp : m->head_dim;
    return queries / tp % l->block.rows == 0 && share % l->block.rows == 0;
}

/* Returns true if `l` is a projection of linear attention and config.json has the widths of keys and values. */
static bool is_linear_attention(const tsr_load_query *q, const tsr_linear *l)
{
    static const char kLeaves[] = " in_proj_qkvz in_proj_qkv in_proj_z in_proj_ba in_proj_b in_proj_a conv1d out_proj ";
    return q->s->model->linear_heads > 0 && strstr(l->module, ".linear_attn.") != NULL &&
           tsr_is_listed(kLeaves, l->leaf);
}

/* Returns true if ranks get whole key heads with their value heads. Keys and values are divided separately, and each
 * part must be whole blocks. (vLLM's qwen_gdn_linear_attn.py, SGLang's qwen3_next.py.) */
static bool linear_attention_fits(const tsr_load_query *q, const tsr_linear *l, unsigned tp)
{
    const tsr_model *const m = q->s->model;
    if (m->linear_heads % tp != 0 || m->linear_values % tp != 0)
        return false;
    if (l->block.rows == 0 || (tp == 1 && l->fused == NULL))
        return true;
    if (strcmp(l->leaf, "out_proj") == 0)
        return m->linear_values / tp % l->block.cols == 0;
    return m->linear_values / tp % l->block.rows == 0 && m->linear_keys / tp % l->block.rows == 0;
}

/* Returns true unless vLLM's kernel for experts in int4 with FP8 inputs cannot reorder a rank's part, which must be a
 * multiple of 256 in both dimensions (compressed_tensors_moe_w4a8_fp8.py). */
static bool reorders(const tsr_load_query *q, const tsr_linear *l, uint64_t ranks)
{
    enum { TILE = 256 };
    if (q->loader != TSR_LOADER_VLLM || l->part != TSR_PART_ROUTED_EXPERTS || !tsr_linear_is_kind(l, "int4-ct") ||
        !tsr_query_w4afp8(q, l->weight) || ranks == 0)
        return true;
    const bool columns = l->cut->how == TSR_TP_COLUMNS;
    return l->rows / (columns ? 1 : ranks) % TILE == 0 && l->cols / (columns ? ranks : 1) % TILE == 0;
}

static bool is_last_member(const tsr_linear *l)
{
    return l->fused == NULL || l->members[l->n_members - 1] == l;
}

static bool fits(const tsr_load_query *q, const tsr_linear *l, unsigned tp)
{
    if (q->loader == TSR_LOADER_DEEPSEEK && l->part == TSR_PART_ROUTED_EXPERTS)
        return q->s->model->experts % tp == 0; /* each rank gets whole experts */
    if (is_dealt_out(q, l))
        return true;
    if (is_stored_qkv(l))
        return stored_qkv_fits(q, l, tp);
    if (is_linear_attention(q, l))
        return linear_attention_fits(q, l, tp);
    const uint64_t ranks = tsr_linear_ranks(l, q->s->model, tp);
    return cut_fits(q, l, ranks, is_last_member(l)) && reorders(q, l, ranks);
}

/* Returns "TP 1, 2 and 4 would do", for powers of two up to 64, or that none would. */
static const char *what_works(const tsr_load_query *q, const tsr_linear *l, char text[160])
{
    size_t n = 0;
    text[0] = '\0';
    for (unsigned tp = 1; tp <= 64; tp *= 2) {
        if (fits(q, l, tp))
            n += (size_t)snprintf(text + n, 160 - n, "%s%u", n == 0 ? "TP " : ", ", tp);
    }
    snprintf(text + n, 160 - n, "%s",
             n == 0 ? "no TP size is supported; keep it in BF16 with `tessera quantize --exclude GLOB`" : " would do");
    return text;
}

static void check_cut(const tsr_load_query *q, const tsr_linear *l)
{
    const uint64_t ranks = tsr_linear_ranks(l, q->s->model, q->tp);
    const bool joined = l->fused != NULL && q->who->fuses;
    const extent e = extent_of(l);
    char advice[160];
    const bool known = l->cut->how != TSR_TP_UNKNOWN || is_stored_qkv(l) || is_linear_attention(q, l);
    if (tsr_query_reads(q, l) && q->tp > 1 && !known)
        tsr_query_note(q, true, l->tensor->name, "unknown cut", "check TP 1, which divides nothing",
                       "it is not known how loaders divide a tensor of this name, nor whether they would cut a block");
    if (!tsr_query_reads(q, l) || ranks == 0 || fits(q, l, q->tp))
        return;
    what_works(q, l, advice);
    if (q->loader == TSR_LOADER_DEEPSEEK && l->part == TSR_PART_ROUTED_EXPERTS)
        tsr_query_note(q, true, l->tensor->name, "experts", advice, "%llu experts cannot be divided among %u ranks",
                       U64(q->s->model->experts), q->tp);
    else if (is_linear_attention(q, l))
        tsr_query_note(
            q, true, l->tensor->name, "blocks", advice,
            "keys of %llu and values of %llu rows in %llu heads: with %u ranks, a share ends inside a head or inside "
            "a block of %llu",
            U64(q->s->model->linear_keys), U64(q->s->model->linear_values), U64(q->s->model->linear_heads), q->tp,
            U64(l->block.rows));
    else if (is_stored_qkv(l))
        tsr_query_note(
            q, true, l->tensor->name, "blocks", advice,
            "%llu rows hold %llu heads of queries and %llu heads each of keys and values, %llu rows a head: with %u "
            "ranks, a share ends inside a block of %llu",
            U64(l->rows), U64(q->s->model->heads), U64(q->s->model->kv_heads), U64(q->s->model->head_dim), q->tp,
            U64(l->block.rows));
    else if (e.size % ranks != 0)
        tsr_query_note(q, true, l->tensor->name, "division", advice, "%llu %s cannot be divided by %llu", U64(e.size),
                       e.what, U64(ranks));
    else if (!fits_words(l, ranks, is_last_member(l)))
        tsr_query_note(q, true, l->tensor->name, "words", advice,
                       "%llu %s / %llu ranks = %llu, but %llu of them share a word: a rank's share ends inside one",
                       U64(e.size), e.what, U64(ranks), U64(e.size / ranks), U64(in_a_word(l)));
    else if (cut_fits(q, l, ranks, is_last_member(l)))
        tsr_query_note(
            q, true, l->tensor->name, "blocks", advice,
            "[%llu, %llu], of which %llu ranks get parts of the %s: the loader's kernel for experts in int4 with "
            "FP8 inputs needs multiples of 256",
            U64(l->rows), U64(l->cols), U64(ranks), e.what);
    else
        tsr_query_note(q, true, l->tensor->name, "blocks", advice,
                       "%llu %s / %llu ranks = %llu%s%s, which is %g blocks of %llu", U64(e.size), e.what, U64(ranks),
                       U64(e.size / ranks), joined ? ", joined in " : "", joined ? l->fused->name : "",
                       (double)(e.size / ranks) / (double)e.block, U64(e.block));
}

static void check_vocabulary(const tsr_load_query *q)
{
    static const char *const kNames[] = {"model.embed_tokens.weight", "lm_head.weight"};
    for (size_t i = 0; q->loader == TSR_LOADER_DEEPSEEK && i < COUNT(kNames); i++) {
        const tsr_tensor *const t = tsr_checkpoint_find(q->s->checkpoint, kNames[i]);
        if (t != NULL && t->rank == 2 && t->shape[0] % q->tp != 0)
            tsr_query_note(q, true, t->name, "division", NULL, "%llu rows cannot be divided by %u", U64(t->shape[0]),
                           q->tp);
    }
}

/* Reports classes that use hidden_size / heads as the head size, ignore head_dim, and silently load the wrong rows. */
static bool check_quotient(const tsr_load_query *q)
{
    static const char *const kQuotient[TSR_LOADER_COUNT] = {
        [TSR_LOADER_VLLM] = " qwen2 qwen2_moe ", [TSR_LOADER_SGLANG] = " mixtral qwen2_moe olmo2 "};
    const tsr_model *const m = q->s->model;
    if (kQuotient[q->loader] == NULL || !tsr_query_family(q, kQuotient[q->loader]) || m->head_dim == 0 ||
        m->heads == 0 || m->head_dim * m->heads == m->hidden)
        return true;
    tsr_query_note(q, true, NULL, "heads",
                   "use another loader: this class computes the size of a head as "
                   "hidden_size / heads",
                   "head_dim is %llu, but hidden_size %llu / %llu heads is different: the class of this model uses "
                   "the quotient",
                   U64(m->head_dim), U64(m->hidden), U64(m->heads));
    return false;
}

static bool has_attention(const tsr_load_query *q)
{
    for (size_t i = 0; i < q->linears->count; i++) {
        if (q->linears->items[i].part == TSR_PART_ATTENTION)
            return true;
    }
    return false;
}

static void check_heads(const tsr_load_query *q)
{
    const tsr_model *const m = q->s->model;
    if (q->loader == TSR_LOADER_VLLM && m->kv_heads != 0 && q->tp > m->kv_heads && tsr_query_family(q, " gpt_oss ")) {
        tsr_query_note(q, true, NULL, "heads", "use no more ranks than heads of keys and values",
                       "%llu heads of keys and values for %u ranks: the class of this model does not copy heads to "
                       "more ranks",
                       U64(m->kv_heads), q->tp);
        return;
    }
    if (!check_quotient(q))
        return;
    if (q->tp > 1 && m->heads == 0 && has_attention(q)) {
        tsr_query_note(
            q, true, NULL, "heads", "write num_attention_heads into config.json, or check TP 1",
            "config.json has no num_attention_heads, so Tessera cannot check that each of %u ranks gets whole heads",
            q->tp);
        return;
    }
    for (size_t i = 0; i < q->linears->count; i++) {
        if (tsr_linear_ranks(&q->linears->items[i], m, q->tp) != 0)
            continue;
        tsr_query_note(q, true, NULL, "heads", "every rank needs whole heads",
                       "%llu heads (%llu of keys and values) cannot be divided among %u ranks", U64(m->heads),
                       U64(m->kv_heads), q->tp);
        return;
    }
}

/* Reports classes that stop if there are more ranks than experts, although each rank holds a part of every expert. */
static void check_experts(const tsr_load_query *q)
{
    static const char *const kStop[TSR_LOADER_COUNT] = {
        [TSR_LOADER_VLLM] = " qwen2_moe qwen3_moe qwen3_vl_moe_text qwen3_next qwen3_5_moe qwen3_5_moe_text minimax_m2 "
                            "minimax_m3 minimax_m3_text ernie4_5_moe hy_v3 lfm2_moe exaone_moe mimo_v2 ",
        [TSR_LOADER_SGLANG] = " qwen2_moe qwen3_moe qwen3_next qwen3_5_moe qwen3_5_moe_text glm4_moe glm_moe_dsa "
                              "deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 minimax_m2 minimax_m3 minimax_m3_text "
                              "lfm2_moe exaone_moe mimo_v2 "};
    const uint64_t experts = q->s->model->experts;
    /* mixtral_quant.py is SGLang's class of Mixtral for this dialect */
    const bool mixtral =
        q->loader == TSR_LOADER_SGLANG && tsr_query_method(q, "modelopt") && tsr_query_family(q, " mixtral ");
    if (experts != 0 && q->tp > experts &&
        (mixtral || (kStop[q->loader] != NULL && tsr_query_family(q, kStop[q->loader]))))
        tsr_query_note(q, true, NULL, "experts", "use no more ranks than experts",
                       "%llu experts for %u ranks: the loader's class of this model refuses more ranks than experts",
                       U64(experts), q->tp);
}

void tsr_rule_shapes(const tsr_load_query *q)
{
    if (q->loader == TSR_LOADER_TRANSFORMERS)
        return;
    check_vocabulary(q);
    check_heads(q);
    check_experts(q);
    for (size_t i = 0; i < q->linears->count; i++)
        check_cut(q, &q->linears->items[i]);
}
