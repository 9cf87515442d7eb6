/* Translates names between Hugging Face and DeepSeek's inference code, by the table of its convert.py. */
#include "convert/plans/ranks/deepseek_names.h"
#include "common/text.h"

#include <stdlib.h>
#include <string.h>

/* convert.py, `mapping`. */
static const tsr_deepseek_key kKeys[] = {
    {"embed_tokens", "embed", TSR_TP_ROWS, false},
    {"input_layernorm", "attn_norm", TSR_TP_REPLICATE, false},
    {"post_attention_layernorm", "ffn_norm", TSR_TP_REPLICATE, false},
    {"q_proj", "wq", TSR_TP_ROWS, true},
    {"q_a_proj", "wq_a", TSR_TP_REPLICATE, false},
    {"q_a_layernorm", "q_norm", TSR_TP_REPLICATE, false},
    {"q_b_proj", "wq_b", TSR_TP_ROWS, true},
    {"kv_a_proj_with_mqa", "wkv_a", TSR_TP_REPLICATE, false},
    {"kv_a_layernorm", "kv_norm", TSR_TP_REPLICATE, false},
    {"kv_b_proj", "wkv_b", TSR_TP_ROWS, true},
    {"o_proj", "wo", TSR_TP_COLUMNS, true},
    {"gate", "gate", TSR_TP_REPLICATE, false},
    {"gate_proj", "w1", TSR_TP_ROWS, false},
    {"down_proj", "w2", TSR_TP_COLUMNS, false},
    {"up_proj", "w3", TSR_TP_ROWS, false},
    {"norm", "norm", TSR_TP_REPLICATE, false},
    {"lm_head", "head", TSR_TP_ROWS, false},
};

/* Tensors of V3.2's indexer. Every rank has all of them, under their own names, as in convert.py's table. */
static const char *const kIndexerKeys[] = {"wq_b", "wk", "k_norm", "weights_proj"};

/* Tensors of the MTP layer, for --keep-mtp. */
static const char *const kMtpKeys[] = {"eh_proj", "enorm", "hnorm", "head"};

size_t tsr_name_component(const char *name, int from_end, const char **start)
{
    const char *end = name + strlen(name), *p = end;
    for (;; from_end--) {
        while (p > name && p[-1] != '.')
            p--;
        *start = p;
        if (from_end == 0)
            return (size_t)(end - p);
        if (p == name)
            return 0;
        end = --p;
    }
}

/* Longer than any name of DeepSeek. A translated name has at most four times this length, for which translate() has
 * room. */
enum { LONGEST_NAME = 200 };

static bool component_is(const char *name, int from_end, const char *word)
{
    const char *start;
    const size_t n = tsr_name_component(name, from_end, &start);
    return n == strlen(word) && memcmp(start, word, n) == 0;
}

/* Names that stay as they are, on every rank. */
static bool find_own(const char *name, const char *const *own, size_t n, tsr_deepseek_key *key)
{
    for (size_t i = 0; i < n; i++) {
        *key = (tsr_deepseek_key){own[i], own[i], TSR_TP_REPLICATE, false};
        if (component_is(name, 1, own[i]))
            return true;
    }
    return false;
}

static bool find_key(const char *name, bool mtp, bool back, tsr_deepseek_key *key)
{
    if (strlen(name) > LONGEST_NAME)
        return false;
    /* These come first: in the inverse direction, wq_b of the indexer is not q_b_proj, and head of the MTP layer is not
     * lm_head. */
    if (component_is(name, 2, "indexer"))
        return find_own(name, kIndexerKeys, sizeof kIndexerKeys / sizeof *kIndexerKeys, key);
    if (mtp && find_own(name, kMtpKeys, sizeof kMtpKeys / sizeof *kMtpKeys, key))
        return true;
    for (size_t i = 0; i < sizeof kKeys / sizeof *kKeys; i++) {
        *key = kKeys[i];
        if (component_is(name, 1, back ? key->deepseek : key->hf))
            return true;
    }
    return false;
}

bool tsr_deepseek_key_of(const char *name, bool mtp, tsr_deepseek_key *key)
{
    return find_key(name, mtp, false, key);
}

bool tsr_deepseek_key_back(const char *name, bool mtp, tsr_deepseek_key *key)
{
    return find_key(name, mtp, true, key);
}

/* A component of a name and its replacement. The last component is always replaced. */
typedef struct word {
    const char *from, *to;
} word;

static const char *translate(tsr_arena *arena, const char *prefix, const char *name, const word *words, size_t n_words,
                             const char *last)
{
    char text[1024];
    size_t used = strlen(prefix);
    memcpy(text, prefix, used);
    for (const char *p = name;;) {
        const size_t n = strcspn(p, ".");
        const char *to = p;
        size_t size = n;
        for (size_t i = 0; p[n] != '\0' && i < n_words && to == p; i++) {
            if (n == strlen(words[i].from) && memcmp(p, words[i].from, n) == 0) {
                to = words[i].to;
                size = strlen(to);
            }
        }
        if (p[n] == '\0') {
            to = last;
            size = strlen(last);
        }
        if (used + size + 2 > sizeof text)
            return NULL;
        memcpy(text + used, to, size);
        used += size;
        if (p[n] == '\0')
            return tsr_arena_dup(arena, text, used);
        text[used++] = '.';
        p += n + 1;
    }
}

const char *tsr_deepseek_name(tsr_arena *arena, const char *name, const tsr_deepseek_key *key, const char *last)
{
    const word words[] = {{"self_attn", "attn"}, {"mlp", "ffn"}, {key->hf, key->deepseek}};
    return translate(arena, "", strncmp(name, "model.", 6) == 0 ? name + 6 : name, words, 3, last);
}

const char *tsr_deepseek_name_back(tsr_arena *arena, const char *name, const tsr_deepseek_key *key)
{
    const word words[] = {{"attn", "self_attn"}, {"ffn", "mlp"}, {key->deepseek, key->hf}};
    const char *last;
    (void)tsr_name_component(name, 0, &last);
    if (strcmp(last, "scale") == 0)
        last = "weight_scale_inv";
    else if (strcmp(last, "bias") == 0 && strcmp(key->hf, "gate") == 0)
        last = "e_score_correction_bias";
    /* Only the head is outside "model." */
    return translate(arena, strcmp(key->hf, "lm_head") == 0 ? "" : "model.", name, words, 3, last);
}

bool tsr_deepseek_expert(const char *name, uint64_t *expert)
{
    const char *start;
    if (!component_is(name, 3, "experts") || tsr_name_component(name, 2, &start) == 0)
        return false;
    return tsr_take_decimal(&start, expert) && *start == '.';
}

long long tsr_deepseek_layer(const char *name)
{
    static const char kLayers[] = "layers.";
    const char *at = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
    uint64_t layer;
    if (strncmp(at, kLayers, sizeof kLayers - 1) != 0)
        return -1;
    at += sizeof kLayers - 1;
    return tsr_take_decimal(&at, &layer) && *at == '.' && layer <= INT64_MAX ? (long long)layer : -1;
}
