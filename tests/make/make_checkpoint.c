/* Owns the invented checkpoints of the tests: whole Hugging Face directories, a function of kind, size and seed alone.
 * Shares no code with Tessera, so that a misreading of the format there cannot hide here.
 *
 *     make_checkpoint KIND -o DIR [--seed S] [--scale tiny|small] [--bytes N[K|M|G]] [--tensors N]
 *
 * deepseek-v3   MLA with a ragged kv_a_proj, a dense layer, MoE layers, an MTP layer, 3 shards. --scale sets the size.
 *               Expert 0's gate_proj has blocks of zeros, its up_proj outliers, its down_proj blocks of subnormals,
 *               and expert 1's gate_proj blocks next to the largest finite BF16.
 * llama, qwen3-moe   tiny, one file, loadable by transformers
 * fused-experts  experts stacked in tensors of rank 3
 * bench         Llama's shapes, --bytes in 5 shards (default 4G); one random pool, written at shifting offsets
 * giant         one tensor of --bytes (default 6G), sparse but for a few rows
 * many          --tensors tensors of [128, 128] (default 50000), sparse but for every thousandth, 5 shards
 */
#include "common/float_bits.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK            128
#define CHUNK_ELEMENTS   ((uint64_t)1 << 20)
#define POOL_ELEMENTS    (((uint64_t)1 << 25) - 39) /* odd, so that rows of a wrapped tensor do not repeat in step */
#define GIANT_COLUMNS    65536
#define SPARSE_ROWS_STEP 4096
#define MAX_SHARDS       5

enum fill {
    FILL_WEIGHT,     /* Gaussian around 0 */
    FILL_NORM,       /* Gaussian around 1 */
    FILL_ZEROS,      /* blocks of +0 and -0 among Gaussian ones */
    FILL_OUTLIERS,   /* one value in 4096 a thousand times too large */
    FILL_SUBNORMALS, /* blocks of subnormal BF16 */
    FILL_HUGE,       /* blocks within a factor 2 of the largest finite BF16 */
    FILL_BIAS,       /* F32 */
    FILL_POOL,       /* out of the shared random pool */
    FILL_ROWS,       /* a hole, with one row in SPARSE_ROWS_STEP written */
    FILL_HOLE,       /* never written */
};

struct tensor {
    char *name;
    enum fill fill;
    int rank;
    uint64_t dims[3];
    int shard;
    uint64_t offset; /* in the data of its shard */
};

struct plan {
    struct tensor *tensors;
    size_t count, capacity;
    int shards;
    uint16_t *pool; /* POOL_ELEMENTS values, or NULL */
};

struct options {
    const char *directory;
    uint64_t seed;
    bool tiny;
    uint64_t bytes; /* 0: the kind's default */
    uint64_t tensors;
};

static void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

static void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("make_checkpoint: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static void *allocate(size_t size)
{
    void *memory = malloc(size);
    if (!memory) {
        die("out of memory");
    }
    return memory;
}

/* SplitMix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Each tensor has its own stream: its bytes do not depend on what else is in the checkpoint. */
static uint64_t stream_of(uint64_t seed, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *name; name++) {
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    }
    hash ^= seed * 0xd1342543de82ef95u;
    return next_random(&hash);
}

/* About normal with deviation 1: the sum of four uniforms of 16 bits. */
static float gaussian(uint64_t *state)
{
    const uint64_t bits = next_random(state);
    const uint32_t low = (uint32_t)bits, high = (uint32_t)(bits >> 32);
    const int32_t sum = (int32_t)((low & 0xffff) + (low >> 16) + (high & 0xffff) + (high >> 16));
    return (float)(sum - 131070) * (1.0f / 37837.0f);
}

static uint64_t element_size(const struct tensor *tensor)
{
    return tensor->fill == FILL_BIAS ? 4 : 2;
}

static uint64_t elements_of(const struct tensor *tensor)
{
    uint64_t count = 1;
    for (int i = 0; i < tensor->rank; i++) {
        count *= tensor->dims[i];
    }
    return count;
}

static uint64_t bytes_of(const struct tensor *tensor)
{
    return elements_of(tensor) * element_size(tensor);
}

/* --- planning ---------------------------------------------------------------------------------------------------- */

static struct tensor *add_tensor(struct plan *plan, enum fill fill, const char *prefix, const char *name)
{
    if (plan->count == plan->capacity) {
        plan->capacity = plan->capacity ? 2 * plan->capacity : 256;
        plan->tensors = realloc(plan->tensors, plan->capacity * sizeof *plan->tensors);
        if (!plan->tensors) {
            die("out of memory");
        }
    }
    struct tensor *tensor = &plan->tensors[plan->count++];
    *tensor = (struct tensor){.fill = fill};
    if (asprintf(&tensor->name, "%s%s", prefix, name) < 0) {
        die("out of memory");
    }
    return tensor;
}

static void add_vector(struct plan *plan, enum fill fill, const char *prefix, const char *name, uint64_t length)
{
    struct tensor *tensor = add_tensor(plan, fill, prefix, name);
    tensor->rank = 1;
    tensor->dims[0] = length;
}

static void add_norm(struct plan *plan, const char *prefix, const char *name, uint64_t length)
{
    add_vector(plan, FILL_NORM, prefix, name, length);
}

static void add_filled(struct plan *plan, enum fill fill, const char *prefix, const char *name, uint64_t rows,
                       uint64_t columns)
{
    struct tensor *tensor = add_tensor(plan, fill, prefix, name);
    tensor->rank = 2;
    tensor->dims[0] = rows;
    tensor->dims[1] = columns;
}

static void add_matrix(struct plan *plan, const char *prefix, const char *name, uint64_t rows, uint64_t columns)
{
    add_filled(plan, FILL_WEIGHT, prefix, name, rows, columns);
}

static void add_stack(struct plan *plan, const char *prefix, const char *name, uint64_t depth, uint64_t rows,
                      uint64_t columns)
{
    struct tensor *tensor = add_tensor(plan, FILL_WEIGHT, prefix, name);
    tensor->rank = 3;
    tensor->dims[0] = depth;
    tensor->dims[1] = rows;
    tensor->dims[2] = columns;
}

static const char *layer_prefix(char buffer[64], uint64_t layer)
{
    snprintf(buffer, 64, "model.layers.%llu.", (unsigned long long)layer);
    return buffer;
}

static void add_mlp(struct plan *plan, const char *prefix, uint64_t hidden, uint64_t intermediate)
{
    add_matrix(plan, prefix, "gate_proj.weight", intermediate, hidden);
    add_matrix(plan, prefix, "up_proj.weight", intermediate, hidden);
    add_matrix(plan, prefix, "down_proj.weight", hidden, intermediate);
}

static void add_experts(struct plan *plan, const char *prefix, uint64_t experts, uint64_t hidden, uint64_t intermediate)
{
    for (uint64_t expert = 0; expert < experts; expert++) {
        char name[128];
        snprintf(name, sizeof name, "%smlp.experts.%llu.", prefix, (unsigned long long)expert);
        add_mlp(plan, name, hidden, intermediate);
    }
}

/* Attention with grouped queries, and the two norms of a layer. */
static void add_attention(struct plan *plan, const char *prefix, uint64_t hidden, uint64_t key_value_rows)
{
    add_norm(plan, prefix, "input_layernorm.weight", hidden);
    add_matrix(plan, prefix, "self_attn.q_proj.weight", hidden, hidden);
    add_matrix(plan, prefix, "self_attn.k_proj.weight", key_value_rows, hidden);
    add_matrix(plan, prefix, "self_attn.v_proj.weight", key_value_rows, hidden);
    add_matrix(plan, prefix, "self_attn.o_proj.weight", hidden, hidden);
    add_norm(plan, prefix, "post_attention_layernorm.weight", hidden);
}

static void add_ends(struct plan *plan, uint64_t vocabulary, uint64_t hidden)
{
    add_matrix(plan, "", "model.embed_tokens.weight", vocabulary, hidden);
    add_norm(plan, "", "model.norm.weight", hidden);
    add_matrix(plan, "", "lm_head.weight", vocabulary, hidden);
}

/* --- writing ----------------------------------------------------------------------------------------------------- */

static FILE *create(const char *directory, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    if (!file) {
        die("%s: %s", path, strerror(errno));
    }
    return file;
}

static void finish(FILE *file, const char *name)
{
    const bool bad = ferror(file);
    if (fclose(file) || bad) {
        die("%s: %s", name, strerror(errno));
    }
}

static void write_text(const char *directory, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void write_text(const char *directory, const char *name, const char *format, ...)
{
    FILE *file = create(directory, name);
    va_list args;
    va_start(args, format);
    vfprintf(file, format, args);
    va_end(args);
    finish(file, name);
}

/* The value at `index` of a tensor of a marked fill, given its ordinary value. Every third block is special. */
static uint16_t special(const struct tensor *tensor, uint64_t index, uint16_t value, uint64_t *state)
{
    const uint64_t row = index / tensor->dims[1], column = index % tensor->dims[1];
    if (tensor->fill == FILL_OUTLIERS) {
        return next_random(state) % 4096 ? value : (uint16_t)(value + (10 << 7)); /* the exponent field: times 2^10 */
    }
    if ((row / BLOCK + column / BLOCK) % 3) {
        return value;
    }
    switch (tensor->fill) {
    case FILL_ZEROS:
        return value & 0x8000;
    case FILL_SUBNORMALS:
        return value & 0x807f;
    default:
        return (value & 0x807f) | 0x7f00;
    }
}

static void write_values(FILE *file, const struct tensor *tensor, uint64_t count, uint64_t state)
{
    const float middle = tensor->fill == FILL_NORM ? 1.0f : 0.0f;
    uint16_t *chunk = allocate(CHUNK_ELEMENTS * sizeof *chunk);
    for (uint64_t start = 0; start < count; start += CHUNK_ELEMENTS) {
        const uint64_t length = count - start < CHUNK_ELEMENTS ? count - start : CHUNK_ELEMENTS;
        for (uint64_t i = 0; i < length; i++) {
            chunk[i] = tsr_bf16_from_f32(middle + 0.02f * gaussian(&state));
        }
        if (tensor->fill >= FILL_ZEROS && tensor->fill <= FILL_HUGE) {
            for (uint64_t i = 0; i < length; i++) {
                chunk[i] = special(tensor, start + i, chunk[i], &state);
            }
        }
        fwrite(chunk, sizeof *chunk, length, file);
    }
    free(chunk);
}

static void write_bias(FILE *file, uint64_t count, uint64_t state)
{
    for (uint64_t i = 0; i < count; i++) {
        const float value = gaussian(&state);
        fwrite(&value, sizeof value, 1, file);
    }
}

static void write_pool(FILE *file, const uint16_t *pool, uint64_t count, uint64_t state)
{
    uint64_t position = next_random(&state) % POOL_ELEMENTS;
    while (count) {
        const uint64_t rest = POOL_ELEMENTS - position, length = count < rest ? count : rest;
        fwrite(pool + position, sizeof *pool, length, file);
        count -= length;
        position = 0;
    }
}

static void write_rows(FILE *file, const struct tensor *tensor, uint64_t state)
{
    const off_t start = ftello(file);
    const uint64_t columns = tensor->dims[1];
    for (uint64_t row = 0; row < tensor->dims[0]; row += SPARSE_ROWS_STEP) {
        fseeko(file, start + (off_t)(row * columns * 2), SEEK_SET);
        write_values(file, tensor, columns, state + row);
    }
    fseeko(file, start + (off_t)bytes_of(tensor), SEEK_SET);
}

static void write_tensor(FILE *file, const struct plan *plan, const struct tensor *tensor, uint64_t seed)
{
    const uint64_t count = elements_of(tensor), state = stream_of(seed, tensor->name);
    switch (tensor->fill) {
    case FILL_BIAS:
        write_bias(file, count, state);
        break;
    case FILL_POOL:
        write_pool(file, plan->pool, count, state);
        break;
    case FILL_ROWS:
        write_rows(file, tensor, state);
        break;
    case FILL_HOLE:
        fseeko(file, (off_t)bytes_of(tensor), SEEK_CUR);
        break;
    default:
        write_values(file, tensor, count, state);
    }
}

static void shard_name(char buffer[64], const struct plan *plan, int shard)
{
    if (plan->shards == 1) {
        snprintf(buffer, 64, "model.safetensors");
    } else {
        snprintf(buffer, 64, "model-%05d-of-%05d.safetensors", shard + 1, plan->shards);
    }
}

static void print_header(FILE *text, const struct plan *plan, int shard)
{
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", text);
    for (size_t i = 0; i < plan->count; i++) {
        const struct tensor *tensor = &plan->tensors[i];
        if (tensor->shard != shard) {
            continue;
        }
        fprintf(text, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", tensor->name,
                tensor->fill == FILL_BIAS ? "F32" : "BF16");
        for (int axis = 0; axis < tensor->rank; axis++) {
            fprintf(text, "%s%llu", axis ? "," : "", (unsigned long long)tensor->dims[axis]);
        }
        fprintf(text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)tensor->offset,
                (unsigned long long)(tensor->offset + bytes_of(tensor)));
    }
    fputc('}', text);
}

static void write_shard(const struct plan *plan, int shard, const struct options *options)
{
    char name[64];
    shard_name(name, plan, shard);
    char *header = NULL;
    size_t length = 0;
    FILE *text = open_memstream(&header, &length);
    if (!text) {
        die("out of memory");
    }
    print_header(text, plan, shard);
    finish(text, name);

    FILE *file = create(options->directory, name);
    const uint64_t padded = (length + 7) / 8 * 8;
    fwrite(&padded, sizeof padded, 1, file);
    fprintf(file, "%-*s", (int)padded, header);
    free(header);
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->tensors[i].shard == shard) {
            write_tensor(file, plan, &plan->tensors[i], options->seed);
        }
    }
    if (fflush(file) || ftruncate(fileno(file), ftello(file))) { /* a hole at the end is not written by fseeko */
        die("%s: %s", name, strerror(errno));
    }
    finish(file, name);
}

static void write_index(const struct plan *plan, const char *directory, uint64_t total)
{
    FILE *file = create(directory, "model.safetensors.index.json");
    fprintf(file, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {\n",
            (unsigned long long)total);
    for (size_t i = 0; i < plan->count; i++) {
        char shard[64];
        shard_name(shard, plan, plan->tensors[i].shard);
        fprintf(file, "    \"%s\": \"%s\"%s\n", plan->tensors[i].name, shard, i + 1 < plan->count ? "," : "");
    }
    fputs("  }\n}\n", file);
    finish(file, "model.safetensors.index.json");
}

/* Deals the tensors, in order, to shards of about the same size, and writes shards and index. */
static void write_weights(struct plan *plan, int shards, const struct options *options)
{
    uint64_t total = 0, before = 0, used[MAX_SHARDS] = {0};
    for (size_t i = 0; i < plan->count; i++) {
        total += bytes_of(&plan->tensors[i]);
    }
    plan->shards = shards;
    for (size_t i = 0; i < plan->count; i++) {
        struct tensor *tensor = &plan->tensors[i];
        tensor->shard = (int)(before * (uint64_t)shards / total);
        tensor->offset = used[tensor->shard];
        used[tensor->shard] += bytes_of(tensor);
        before += bytes_of(tensor);
    }
    for (int shard = 0; shard < shards; shard++) {
        write_shard(plan, shard, options);
    }
    if (shards > 1) {
        write_index(plan, options->directory, total);
    }
}

/* --- kinds ------------------------------------------------------------------------------------------------------- */

struct deepseek {
    uint64_t hidden, heads, query_rank, vocabulary, intermediate, expert_intermediate, experts, layers;
};

enum { KV_RANK = 512, ROPE_DIM = 64, NOPE_DIM = 128, VALUE_DIM = 128 };

static void add_mla(struct plan *plan, const char *prefix, const struct deepseek *d)
{
    add_norm(plan, prefix, "input_layernorm.weight", d->hidden);
    add_matrix(plan, prefix, "self_attn.q_a_proj.weight", d->query_rank, d->hidden);
    add_norm(plan, prefix, "self_attn.q_a_layernorm.weight", d->query_rank);
    add_matrix(plan, prefix, "self_attn.q_b_proj.weight", d->heads * (NOPE_DIM + ROPE_DIM), d->query_rank);
    add_matrix(plan, prefix, "self_attn.kv_a_proj_with_mqa.weight", KV_RANK + ROPE_DIM, d->hidden);
    add_norm(plan, prefix, "self_attn.kv_a_layernorm.weight", KV_RANK);
    add_matrix(plan, prefix, "self_attn.kv_b_proj.weight", d->heads * (NOPE_DIM + VALUE_DIM), KV_RANK);
    add_matrix(plan, prefix, "self_attn.o_proj.weight", d->hidden, d->heads * VALUE_DIM);
    add_norm(plan, prefix, "post_attention_layernorm.weight", d->hidden);
}

static void add_deepseek_moe(struct plan *plan, const char *prefix, const struct deepseek *d)
{
    add_matrix(plan, prefix, "mlp.gate.weight", d->experts, d->hidden);
    add_vector(plan, FILL_BIAS, prefix, "mlp.gate.e_score_correction_bias", d->experts);
    const size_t first = plan->count;
    add_experts(plan, prefix, d->experts, d->hidden, d->expert_intermediate);
    plan->tensors[first].fill = FILL_ZEROS;
    plan->tensors[first + 1].fill = FILL_OUTLIERS;
    plan->tensors[first + 2].fill = FILL_SUBNORMALS;
    plan->tensors[first + 3].fill = FILL_HUGE;
    char name[128];
    snprintf(name, sizeof name, "%smlp.shared_experts.", prefix);
    add_mlp(plan, name, d->hidden, d->expert_intermediate);
}

static void write_deepseek_config(const struct deepseek *d, const char *directory)
{
    write_text(directory, "config.json",
               "{\n"
               "  \"architectures\": [\n    \"DeepseekV3ForCausalLM\"\n  ],\n"
               "  \"attention_bias\": false,\n"
               "  \"attention_dropout\": 0.0,\n"
               "  \"bos_token_id\": 0,\n"
               "  \"eos_token_id\": 1,\n"
               "  \"ep_size\": 1,\n"
               "  \"first_k_dense_replace\": 1,\n"
               "  \"hidden_act\": \"silu\",\n"
               "  \"hidden_size\": %d,\n"
               "  \"initializer_range\": 0.02,\n"
               "  \"intermediate_size\": %d,\n"
               "  \"kv_lora_rank\": %d,\n"
               "  \"max_position_embeddings\": 163840,\n"
               "  \"model_type\": \"deepseek_v3\",\n"
               "  \"moe_intermediate_size\": %d,\n"
               "  \"moe_layer_freq\": 1,\n"
               "  \"n_group\": 2,\n"
               "  \"n_routed_experts\": %d,\n"
               "  \"n_shared_experts\": 1,\n"
               "  \"norm_topk_prob\": true,\n"
               "  \"num_attention_heads\": %d,\n"
               "  \"num_experts_per_tok\": 2,\n"
               "  \"num_hidden_layers\": %d,\n"
               "  \"num_key_value_heads\": %d,\n"
               "  \"num_nextn_predict_layers\": 1,\n"
               "  \"q_lora_rank\": %d,\n"
               "  \"qk_nope_head_dim\": %d,\n"
               "  \"qk_rope_head_dim\": %d,\n"
               "  \"rms_norm_eps\": 1e-06,\n"
               "  \"rope_scaling\": {\n"
               "    \"beta_fast\": 32,\n"
               "    \"beta_slow\": 1,\n"
               "    \"factor\": 40,\n"
               "    \"mscale\": 1.0,\n"
               "    \"mscale_all_dim\": 1.0,\n"
               "    \"original_max_position_embeddings\": 4096,\n"
               "    \"type\": \"yarn\"\n"
               "  },\n"
               "  \"rope_theta\": 10000.0,\n"
               "  \"routed_scaling_factor\": 2.5,\n"
               "  \"scoring_func\": \"sigmoid\",\n"
               "  \"tie_word_embeddings\": false,\n"
               "  \"topk_group\": 1,\n"
               "  \"topk_method\": \"noaux_tc\",\n"
               "  \"torch_dtype\": \"bfloat16\",\n"
               "  \"transformers_version\": \"4.46.3\",\n"
               "  \"use_cache\": true,\n"
               "  \"v_head_dim\": %d,\n"
               "  \"vocab_size\": %d\n"
               "}\n",
               (int)d->hidden, (int)d->intermediate, KV_RANK, (int)d->expert_intermediate, (int)d->experts,
               (int)d->heads, (int)d->layers, (int)d->heads, (int)d->query_rank, NOPE_DIM, ROPE_DIM, VALUE_DIM,
               (int)d->vocabulary);
}

static void write_tokenizer(const char *directory)
{
    write_text(directory, "tokenizer.json",
               "{\n  \"version\": \"1.0\",\n  \"added_tokens\": [],\n  \"model\": {\n    \"type\": \"BPE\",\n"
               "    \"vocab\": {\"<s>\": 0, \"</s>\": 1},\n    \"merges\": []\n  }\n}\n");
    write_text(directory, "tokenizer_config.json",
               "{\n  \"bos_token\": \"<s>\",\n  \"eos_token\": \"</s>\",\n"
               "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n");
    write_text(directory, "generation_config.json",
               "{\n  \"bos_token_id\": 0,\n  \"eos_token_id\": 1,\n  \"temperature\": 0.6,\n  \"top_p\": 0.95\n}\n");
}

static void make_deepseek(struct plan *plan, const struct options *options)
{
    const struct deepseek tiny = {.hidden = 256,
                                  .heads = 2,
                                  .query_rank = 128,
                                  .vocabulary = 256,
                                  .intermediate = 256,
                                  .expert_intermediate = 128,
                                  .experts = 4,
                                  .layers = 2};
    const struct deepseek small = {.hidden = 1024,
                                   .heads = 8,
                                   .query_rank = 384,
                                   .vocabulary = 2048,
                                   .intermediate = 2048,
                                   .expert_intermediate = 512,
                                   .experts = 8,
                                   .layers = 3};
    const struct deepseek *d = options->tiny ? &tiny : &small;
    char prefix[64];
    for (uint64_t layer = 0; layer <= d->layers; layer++) { /* the last is the MTP layer */
        add_mla(plan, layer_prefix(prefix, layer), d);
        if (layer == 0) {
            add_mlp(plan, "model.layers.0.mlp.", d->hidden, d->intermediate);
        } else {
            add_deepseek_moe(plan, prefix, d);
        }
    }
    add_matrix(plan, prefix, "eh_proj.weight", d->hidden, 2 * d->hidden);
    add_norm(plan, prefix, "enorm.weight", d->hidden);
    add_norm(plan, prefix, "hnorm.weight", d->hidden);
    add_norm(plan, prefix, "shared_head.norm.weight", d->hidden);
    add_matrix(plan, prefix, "shared_head.head.weight", d->vocabulary, d->hidden);
    add_matrix(plan, prefix, "embed_tokens.weight", d->vocabulary, d->hidden);
    add_ends(plan, d->vocabulary, d->hidden);
    write_weights(plan, 3, options);
    write_deepseek_config(d, options->directory);
    write_tokenizer(options->directory);
}

static void write_llama_config(const char *directory, uint64_t hidden, uint64_t intermediate, uint64_t layers,
                               uint64_t heads, uint64_t key_value_heads, uint64_t vocabulary)
{
    write_text(directory, "config.json",
               "{\n"
               "  \"architectures\": [\n    \"LlamaForCausalLM\"\n  ],\n"
               "  \"attention_bias\": false,\n"
               "  \"head_dim\": %d,\n"
               "  \"hidden_act\": \"silu\",\n"
               "  \"hidden_size\": %d,\n"
               "  \"intermediate_size\": %d,\n"
               "  \"max_position_embeddings\": 2048,\n"
               "  \"mlp_bias\": false,\n"
               "  \"model_type\": \"llama\",\n"
               "  \"num_attention_heads\": %d,\n"
               "  \"num_hidden_layers\": %d,\n"
               "  \"num_key_value_heads\": %d,\n"
               "  \"rms_norm_eps\": 1e-05,\n"
               "  \"rope_theta\": 10000.0,\n"
               "  \"tie_word_embeddings\": false,\n"
               "  \"torch_dtype\": \"bfloat16\",\n"
               "  \"vocab_size\": %d\n"
               "}\n",
               (int)(hidden / heads), (int)hidden, (int)intermediate, (int)heads, (int)layers, (int)key_value_heads,
               (int)vocabulary);
}

static void add_llama_layer(struct plan *plan, uint64_t layer, uint64_t hidden, uint64_t intermediate,
                            uint64_t key_value_rows)
{
    char prefix[64], mlp[128];
    add_attention(plan, layer_prefix(prefix, layer), hidden, key_value_rows);
    snprintf(mlp, sizeof mlp, "%smlp.", prefix);
    add_mlp(plan, mlp, hidden, intermediate);
}

static void make_llama(struct plan *plan, const struct options *options)
{
    for (uint64_t layer = 0; layer < 2; layer++) {
        add_llama_layer(plan, layer, 256, 512, 128);
    }
    add_ends(plan, 512, 256);
    write_weights(plan, 1, options);
    write_llama_config(options->directory, 256, 512, 2, 4, 2, 512);
    write_tokenizer(options->directory);
}

static void make_qwen3_moe(struct plan *plan, const struct options *options)
{
    char prefix[64];
    for (uint64_t layer = 0; layer < 2; layer++) {
        add_attention(plan, layer_prefix(prefix, layer), 256, 128);
        add_norm(plan, prefix, "self_attn.q_norm.weight", 128);
        add_norm(plan, prefix, "self_attn.k_norm.weight", 128);
        add_matrix(plan, prefix, "mlp.gate.weight", 4, 256);
        add_experts(plan, prefix, 4, 256, 128);
    }
    add_ends(plan, 512, 256);
    write_weights(plan, 1, options);
    write_text(options->directory, "config.json",
               "{\n"
               "  \"architectures\": [\n    \"Qwen3MoeForCausalLM\"\n  ],\n"
               "  \"attention_bias\": false,\n"
               "  \"decoder_sparse_step\": 1,\n"
               "  \"head_dim\": 128,\n"
               "  \"hidden_act\": \"silu\",\n"
               "  \"hidden_size\": 256,\n"
               "  \"intermediate_size\": 512,\n"
               "  \"max_position_embeddings\": 2048,\n"
               "  \"mlp_only_layers\": [],\n"
               "  \"model_type\": \"qwen3_moe\",\n"
               "  \"moe_intermediate_size\": 128,\n"
               "  \"norm_topk_prob\": true,\n"
               "  \"num_attention_heads\": 2,\n"
               "  \"num_experts\": 4,\n"
               "  \"num_experts_per_tok\": 2,\n"
               "  \"num_hidden_layers\": 2,\n"
               "  \"num_key_value_heads\": 1,\n"
               "  \"rms_norm_eps\": 1e-06,\n"
               "  \"rope_theta\": 1000000.0,\n"
               "  \"tie_word_embeddings\": false,\n"
               "  \"torch_dtype\": \"bfloat16\",\n"
               "  \"vocab_size\": 512\n"
               "}\n");
    write_tokenizer(options->directory);
}

static void make_fused_experts(struct plan *plan, const struct options *options)
{
    char prefix[64];
    for (uint64_t layer = 0; layer < 2; layer++) {
        add_attention(plan, layer_prefix(prefix, layer), 256, 128);
        add_matrix(plan, prefix, "mlp.gate.weight", 4, 256);
        add_stack(plan, prefix, "mlp.experts.gate_up_proj", 4, 2 * 128, 256);
        add_stack(plan, prefix, "mlp.experts.down_proj", 4, 256, 128);
    }
    add_ends(plan, 512, 256);
    write_weights(plan, 1, options);
    write_text(options->directory, "config.json",
               "{\n"
               "  \"architectures\": [\n    \"StackedMoeForCausalLM\"\n  ],\n"
               "  \"hidden_size\": 256,\n"
               "  \"model_type\": \"stacked_moe\",\n"
               "  \"moe_intermediate_size\": 128,\n"
               "  \"num_attention_heads\": 4,\n"
               "  \"num_experts\": 4,\n"
               "  \"num_experts_per_tok\": 2,\n"
               "  \"num_hidden_layers\": 2,\n"
               "  \"num_key_value_heads\": 2,\n"
               "  \"rms_norm_eps\": 1e-06,\n"
               "  \"torch_dtype\": \"bfloat16\",\n"
               "  \"vocab_size\": 512\n"
               "}\n");
}

static uint64_t llama_layer_bytes(uint64_t hidden)
{
    const uint64_t intermediate = hidden / 2 * 7;
    return 2 * (2 * hidden * hidden + 2 * hidden * hidden / 4 + 3 * hidden * intermediate + 2 * hidden);
}

static void make_bench(struct plan *plan, const struct options *options)
{
    const uint64_t bytes = options->bytes ? options->bytes : (uint64_t)4 << 30;
    uint64_t hidden = 4096;
    while (hidden > 512 && 2 * llama_layer_bytes(hidden) > bytes) {
        hidden /= 2;
    }
    const uint64_t layer_bytes = llama_layer_bytes(hidden), intermediate = hidden / 2 * 7;
    const uint64_t layers = bytes / layer_bytes;
    if (!layers) {
        die("bench needs --bytes of at least %llu", (unsigned long long)layer_bytes);
    }
    const uint64_t vocabulary = ((bytes - layers * layer_bytes) / (4 * hidden) / BLOCK + 1) * BLOCK;
    for (uint64_t layer = 0; layer < layers; layer++) {
        add_llama_layer(plan, layer, hidden, intermediate, hidden / 4);
    }
    add_ends(plan, vocabulary, hidden);
    plan->pool = allocate(POOL_ELEMENTS * sizeof *plan->pool);
    uint64_t state = options->seed;
    for (uint64_t i = 0; i < POOL_ELEMENTS; i++) {
        plan->pool[i] = tsr_bf16_from_f32(0.02f * gaussian(&state));
    }
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->tensors[i].fill == FILL_WEIGHT) {
            plan->tensors[i].fill = FILL_POOL;
        }
    }
    write_weights(plan, 5, options);
    write_llama_config(options->directory, hidden, intermediate, layers, hidden / 128, hidden / 512, vocabulary);
    write_tokenizer(options->directory);
}

static void make_giant(struct plan *plan, const struct options *options)
{
    const uint64_t bytes = options->bytes ? options->bytes : (uint64_t)6 << 30;
    const uint64_t rows = bytes / (2 * GIANT_COLUMNS) / BLOCK * BLOCK;
    if (!rows) {
        die("giant needs --bytes of at least %d", 2 * GIANT_COLUMNS * BLOCK);
    }
    add_norm(plan, "model.layers.0.", "input_layernorm.weight", 256);
    add_matrix(plan, "model.layers.0.", "mlp.up_proj.weight", 256, 256);
    add_filled(plan, FILL_ROWS, "model.layers.0.", "mlp.down_proj.weight", rows, GIANT_COLUMNS);
    add_ends(plan, 256, 256);
    write_weights(plan, 1, options);
    write_llama_config(options->directory, rows, GIANT_COLUMNS, 1, 128, 128, 256);
}

static void make_many(struct plan *plan, const struct options *options)
{
    for (uint64_t i = 0; i < options->tensors; i++) {
        char prefix[128];
        snprintf(prefix, sizeof prefix, "model.layers.%llu.mlp.experts.%llu.", (unsigned long long)(i / 256),
                 (unsigned long long)(i % 256));
        add_filled(plan, i % 1000 ? FILL_HOLE : FILL_WEIGHT, prefix, "up_proj.weight", BLOCK, BLOCK);
    }
    write_weights(plan, MAX_SHARDS, options);
    write_llama_config(options->directory, BLOCK, BLOCK, (options->tensors + 255) / 256, 1, 1, 256);
}

static const struct kind {
    const char *name;
    void (*make)(struct plan *plan, const struct options *options);
} kinds[] = {
    {"deepseek-v3", make_deepseek},
    {"llama", make_llama},
    {"qwen3-moe", make_qwen3_moe},
    {"fused-experts", make_fused_experts},
    {"bench", make_bench},
    {"giant", make_giant},
    {"many", make_many},
};

/* --- the command line -------------------------------------------------------------------------------------------- */

static uint64_t parse_number(const char *text)
{
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    const char *unit = *end ? strchr("KMG", *end) : NULL;
    if (unit) {
        value <<= 10 * (*unit == 'K' ? 1 : *unit == 'M' ? 2 : 3);
        end++;
    }
    if (errno || end == text || *end || *text == '-') {
        die("'%s' is not a number", text);
    }
    return value;
}

static struct options parse_options(int argc, char **argv)
{
    static const struct option names[] = {{"seed", required_argument, NULL, 's'},
                                          {"scale", required_argument, NULL, 'c'},
                                          {"bytes", required_argument, NULL, 'b'},
                                          {"tensors", required_argument, NULL, 't'},
                                          {NULL, 0, NULL, 0}};
    struct options options = {.seed = 1, .tensors = 50000};
    for (int option; (option = getopt_long(argc, argv, "o:", names, NULL)) != -1;) {
        switch (option) {
        case 'o':
            options.directory = optarg;
            break;
        case 's':
            options.seed = parse_number(optarg);
            break;
        case 'c':
            options.tiny = strcmp(optarg, "tiny") == 0;
            if (!options.tiny && strcmp(optarg, "small") != 0) {
                die("--scale is tiny or small");
            }
            break;
        case 'b':
            options.bytes = parse_number(optarg);
            break;
        case 't':
            options.tensors = parse_number(optarg);
            break;
        default:
            exit(2);
        }
    }
    if (!options.directory || optind + 1 != argc || options.tensors < MAX_SHARDS) {
        die("usage: make_checkpoint KIND -o DIR [--seed S] [--scale tiny|small] [--bytes N[K|M|G]] [--tensors N]");
    }
    return options;
}

int main(int argc, char **argv)
{
    const struct options options = parse_options(argc, argv);
    if (mkdir(options.directory, 0777) && errno != EEXIST) {
        die("%s: %s", options.directory, strerror(errno));
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].name, argv[optind]) == 0) {
            struct plan plan = {0};
            kinds[i].make(&plan, &options);
            for (size_t t = 0; t < plan.count; t++) {
                free(plan.tensors[t].name);
            }
            free(plan.tensors);
            free(plan.pool);
            return 0;
        }
    }
    die("no kind '%s'", argv[optind]);
}
