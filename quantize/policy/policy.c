/* Decides single tensors by their shape, the options and the tables. */
#include "quantize/policy/policy.h"

#include "common/glob.h"
#include "formats/checkpoint/config.h"
#include "formats/names/model.h"
#include "quantize/policy/policy_groups.h"
#include "quantize/policy/policy_rules.h"

#include <string.h>

/* The general rules keep a weight with fewer rows or columns: gates, low ranks, weights with one row per head. */
enum { SMALL = 128 };

typedef struct deciding {
    const tsr_checkpoint *c;
    const tsr_policy_options *o;
    const tsr_policy_family *family; /* NULL: the general rules */
    bool wrapped;                    /* the family is that of the language model in a multimodal model */
    uint64_t hidden;                 /* 0: config.json does not state it */
    tsr_arena *arena;
} deciding;

bool tsr_policy_knows(const char *model_type)
{
    return tsr_family_find(model_type) != NULL;
}

bool tsr_policy_is_unseen(const char *model_type)
{
    const tsr_policy_family *const family = tsr_family_find(model_type);
    return family != NULL && family->unseen;
}

const char *tsr_policy_model_type(const tsr_checkpoint *c, tsr_arena *arena)
{
    const char *const type = tsr_config_find_string(c, "model_type", arena);
    if (tsr_policy_knows(type))
        return type;
    const char *const text = tsr_config_find_string(c, "text_config.model_type", arena);
    return text == NULL ? type : text;
}

bool tsr_policy_is_embedding(const char *name)
{
    const tsr_rule *const rule = tsr_rule_for_all(name);
    return rule != NULL && rule->treatment == TSR_KEEP_EMBEDDING;
}

/* Orientation of a stack of experts. Only hidden_size shows it: it is the input of gate and up, and the output of
 * down. */
typedef enum turn { OUT_IN, IN_OUT, UNKNOWN_TURN } turn;

static turn turn_of_one(const deciding *d, const tsr_tensor *t)
{
    static const char *const kTakesHidden[] = {"*gate_up_proj*", "*gate_proj*", "*up_proj*"};
    const bool takes = tsr_glob_find(kTakesHidden, sizeof kTakesHidden / sizeof *kTakesHidden, t->name) != NULL;
    const bool rows = t->shape[1] == d->hidden, cols = t->shape[2] == d->hidden;
    if (d->hidden == 0 || rows == cols || (!takes && !tsr_glob_match("*down_proj*", t->name)))
        return UNKNOWN_TURN;
    return cols == takes ? OUT_IN : IN_OUT;
}

/* Returns the orientation of a stack; a square matrix is assumed to be stored like its partner. */
static turn turn_of(const deciding *d, const tsr_tensor *t)
{
    static const char *const kPartners[][2] = {{"gate_up_proj", "down_proj"}, {"down_proj", "gate_up_proj"}};
    const turn one = turn_of_one(d, t);
    for (size_t i = 0; one == UNKNOWN_TURN && i < 2; i++) {
        const char *const at = strstr(t->name, kPartners[i][0]);
        if (at == NULL)
            continue;
        const char *const name = tsr_arena_printf(d->arena, "%.*s%s%s", (int)(at - t->name), t->name, kPartners[i][1],
                                                  at + strlen(kPartners[i][0]));
        const tsr_tensor *const partner = name == NULL ? NULL : tsr_checkpoint_find(d->c, name);
        return partner != NULL && partner->rank == 3 ? turn_of_one(d, partner) : UNKNOWN_TURN;
    }
    return one;
}

/* Returns the reason why shape or dtype alone exclude quantization, or NULL. */
static const char *not_a_matrix(const deciding *d, const tsr_tensor *t)
{
    if (!tsr_dtype_is_weight_float(t->dtype))
        return "not BF16, F16 or F32";
    if (t->rank < 2 || t->rank > 3)
        return t->rank < 2 ? "a vector" : "more than three dimensions";
    if (t->rank == 3 && !tsr_glob_match("*.experts.*", t->name))
        return "three dimensions, but not a stack of experts";
    if (t->rank == 3 && turn_of(d, t) == IN_OUT)
        return "by hidden_size its experts are stored [experts, in, out]: loaders would read the scales transposed";
    return t->bytes == 0 ? "empty" : NULL;
}

/* Returns the reason why the general rules keep a layer, or NULL. `rule` is the matching rule (NULL: none). */
static const char *not_in_general(const tsr_tensor *t, const tsr_rule *rule)
{
    if (t->rank == 3)
        return "a stack of experts of an unknown model_type: no loader is known to read codes of it (--include "
               "overrides)";
    if (rule == NULL)
        return "no general rule matches its name";
    if (t->shape[t->rank - 1] < SMALL || t->shape[t->rank - 2] < SMALL)
        return "small: fewer than 128 rows or columns (--include overrides)";
    return NULL;
}

static tsr_decision decide_by_tables(const deciding *d, const tsr_tensor *t, const tsr_rule *rule)
{
    const char *const against = d->family == NULL ? not_in_general(t, rule)
                                : rule == NULL && d->wrapped
                                    ? "outside the language model: no rule matches its name (--include overrides)"
                                : rule == NULL ? "no rule of this model_type matches its name"
                                               : NULL;
    return against != NULL ? (tsr_decision){TSR_KEEP, against} : (tsr_decision){rule->treatment, rule->reason};
}

/* Returns the reason why no loader reads codes of this scheme for a layer, or NULL. */
static const char *not_for_this_layer(const deciding *d, const tsr_tensor *t)
{
    if (d->o->not_fp8 && tsr_glob_match("*.indexer.wk.weight", t->name))
        return "indexer: loaders read it in BF16 or FP8 only";
    if (d->o->block_rows == 1 && tsr_glob_match("*.attn.wo_a.weight", t->name))
        return "operand specific to this model: loaders read it in BF16 or block FP8 only";
    return NULL;
}

/* Returns the decision that the source's own configuration implies. */
static tsr_decision decide_as_source(const deciding *d, const tsr_tensor *t)
{
    const char *const glob = tsr_glob_find(d->o->exclude, d->o->n_exclude, t->name);
    const tsr_rule *const for_all = tsr_rule_for_all(t->name);
    const char *const unread = not_for_this_layer(d, t);
    const uint64_t cols = t->rank == 0 ? 0 : t->shape[t->rank - 1];
    if (t->source != TSR_SOURCE_DECODED || t->rank < 2 || t->bytes == 0)
        return (tsr_decision){for_all == NULL || for_all->treatment == TSR_QUANTIZE ? TSR_KEEP : for_all->treatment,
                              t->dtype < TSR_F8_E5M2 || t->rank < 2 ? "not quantized in the source" : "stays as it is"};
    if (glob != NULL)
        return (tsr_decision){TSR_KEEP, tsr_arena_printf(d->arena, "--exclude '%s'", glob)};
    if (unread != NULL)
        return (tsr_decision){TSR_KEEP, unread};
    if (d->o->group > 1 && cols % d->o->group != 0)
        return (tsr_decision){
            TSR_KEEP, tsr_arena_printf(d->arena, "its %llu columns are not a multiple of %u", U64(cols), d->o->group)};
    return (tsr_decision){TSR_QUANTIZE, "quantized in the source"};
}

static tsr_decision decide_alone(const deciding *d, const tsr_tensor *t)
{
    if (d->o->as_source)
        return decide_as_source(d, t);
    const char *const obstacle = not_a_matrix(d, t);
    const char *glob = tsr_glob_find(d->o->exclude, d->o->n_exclude, t->name);
    if (glob != NULL)
        return (tsr_decision){TSR_KEEP, tsr_arena_printf(d->arena, "--exclude '%s'", glob)};
    const tsr_rule *const for_all = tsr_rule_for_all(t->name);
    const char *const unread = not_for_this_layer(d, t);
    static const tsr_rule kTurned = {"", TSR_QUANTIZE, "experts, turned", false};
    const bool turned = t->source == TSR_SOURCE_GATHERED && t->rank == 3; /* in any orientation of the stack */
    const tsr_rule *const own = turned ? &kTurned : tsr_family_rule(d->family, d->o->four_bits, t->name);
    if (own != NULL && own->always && for_all == NULL && t->rank >= 2)
        return (tsr_decision){own->treatment, own->reason};
    if (obstacle != NULL)
        return (tsr_decision){TSR_KEEP, for_all != NULL ? for_all->reason : obstacle};
    if (unread != NULL)
        return (tsr_decision){TSR_KEEP, unread};
    glob = tsr_glob_find(d->o->include, d->o->n_include, t->name);
    tsr_decision decision = glob != NULL
                                ? (tsr_decision){TSR_QUANTIZE, tsr_arena_printf(d->arena, "--include '%s'", glob)}
                            : for_all != NULL ? (tsr_decision){for_all->treatment, for_all->reason}
                                              : decide_by_tables(d, t, own);
    const uint64_t cols = t->shape[t->rank - 1];
    if (decision.treatment == TSR_QUANTIZE && d->o->group > 1 && cols % d->o->group != 0)
        decision = (tsr_decision){
            TSR_KEEP, tsr_arena_printf(d->arena, "its %llu columns are not a multiple of %u", U64(cols), d->o->group)};
    return decision;
}

tsr_status tsr_policy_decide(const tsr_checkpoint *c, const char *model_type, const tsr_policy_options *options,
                             tsr_arena *arena, tsr_decision *decisions, tsr_err *err)
{
    const char *const whole = tsr_config_find_string(c, "model_type", arena);
    const deciding d = {
        .c = c,
        .o = options,
        .family = tsr_family_find(model_type),
        .wrapped = whole != NULL && model_type != NULL && strcmp(whole, model_type) != 0,
        .hidden = tsr_model_read(c).hidden,
        .arena = arena,
    };
    for (size_t i = 0; i < c->tensors.count; i++) {
        decisions[i] = decide_alone(&d, &c->tensors.items[i]);
        if (decisions[i].reason == NULL)
            return tsr_out_of_memory(err, NULL);
    }
    return tsr_arena_status(arena, tsr_policy_join(c, options, arena, decisions, err), err);
}
