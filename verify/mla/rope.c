/* Reads RoPE settings in both spellings, and computes the frequencies of each type. */
#include "verify/mla/rope.h"

#include "formats/checkpoint/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double kPi = 3.14159265358979323846;

typedef struct settings {
    const tsr_checkpoint *checkpoint;
    const char *section;          /* section of rope_parameters; NULL: no sections */
    double base, factor, trained; /* trained: the context length before the extension */
    size_t dim;
    bool whole; /* yarn: round the bounds of the ramp to whole dimensions */
} settings;

/* Reads a number from rope_parameters (transformers 5) or rope_scaling (earlier versions). */
static double number(const settings *s, const char *key, double otherwise)
{
    char path[128];
    if (s->section != NULL) {
        snprintf(path, sizeof path, "rope_parameters.%s.%s", s->section, key);
        return tsr_config_model_number(s->checkpoint, path, otherwise);
    }
    snprintf(path, sizeof path, "rope_parameters.%s", key);
    otherwise = tsr_config_model_number(s->checkpoint, path, otherwise);
    snprintf(path, sizeof path, "rope_scaling.%s", key);
    return tsr_config_model_number(s->checkpoint, path, otherwise);
}

static const char *type_of(const tsr_checkpoint *c, const char *section, tsr_arena *arena)
{
    char path[128];
    if (section != NULL) {
        snprintf(path, sizeof path, "rope_parameters.%s.rope_type", section);
        const char *type = tsr_config_model_string(c, path, arena);
        snprintf(path, sizeof path, "rope_parameters.%s.type", section);
        type = type == NULL ? tsr_config_model_string(c, path, arena) : type;
        return type == NULL ? "default" : type;
    }
    static const char *const kPaths[] = {"rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.rope_type",
                                         "rope_parameters.type"};
    for (size_t i = 0; i < sizeof kPaths / sizeof *kPaths; i++) {
        const char *const type = tsr_config_model_string(c, kPaths[i], arena);
        if (type != NULL)
            return type;
    }
    return "default";
}

static void leave(const settings *s, tsr_rope *rope)
{
    (void)s;
    (void)rope;
}

/* Keeps the first pairs, a share of all, and does not turn the others. */
static void proportional(const settings *s, tsr_rope *rope)
{
    const double turned = floor(number(s, "partial_rotary_factor", 1) * (double)s->dim / 2);
    for (size_t i = 0; i < rope->pairs; i++)
        rope->frequency[i] = (double)i < turned ? rope->frequency[i] / s->factor : 0;
}

static void linear(const settings *s, tsr_rope *rope)
{
    for (size_t i = 0; i < rope->pairs; i++)
        rope->frequency[i] /= s->factor;
}

/* Scales waves longer than the trained context, keeps much shorter ones, and interpolates between. */
static void llama3(const settings *s, tsr_rope *rope)
{
    const double low = number(s, "low_freq_factor", 1), high = number(s, "high_freq_factor", 4);
    for (size_t i = 0; i < rope->pairs; i++) {
        const double plain = rope->frequency[i], turns = s->trained * plain / (2 * kPi);
        const double keep = fmin(fmax((turns - low) / (high - low), 0), 1);
        rope->frequency[i] = (1 - keep) * plain / s->factor + keep * plain;
    }
}

static double mscale(double factor, double weight)
{
    return factor <= 1 ? 1 : 0.1 * weight * log(factor) + 1;
}

/* Returns the dimension with `turns` rotations within the trained context. */
static double turning_dimension(const settings *s, double turns)
{
    return (double)s->dim * log(s->trained / (turns * 2 * kPi)) / (2 * log(s->base));
}

static void yarn(const settings *s, tsr_rope *rope)
{
    const double own = number(s, "mscale", 0), all = number(s, "mscale_all_dim", 0), last = (double)s->dim - 1;
    const double fast = turning_dimension(s, number(s, "beta_fast", 32)),
                 slow = turning_dimension(s, number(s, "beta_slow", 1));
    const double low = fmax(s->whole ? floor(fast) : fast, 0);
    double high = fmin(s->whole ? ceil(slow) : slow, last);
    if (high == low)
        high += 0.001;
    for (size_t i = 0; i < rope->pairs; i++) {
        const double plain = rope->frequency[i], ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        rope->frequency[i] = plain / s->factor * ramp + plain * (1 - ramp);
    }
    rope->mscale_all = all != 0 ? mscale(s->factor, all) : 1;
    rope->gain = own != 0 && all != 0 ? mscale(s->factor, own) / mscale(s->factor, all) : mscale(s->factor, 1);
    rope->gain = number(s, "attention_factor", rope->gain);
}

static bool is_false(const tsr_checkpoint *c, const char *path)
{
    tsr_json_text value;
    return tsr_config_find_model(c, path, &value) && tsr_json_is(value, "false");
}

static tsr_status read_rope(settings s, const char *type, tsr_rope *rope, tsr_arena *arena, tsr_err *err)
{
    static const struct {
        const char *name;
        void (*apply)(const settings *, tsr_rope *);
    } kTypes[] = {{"default", leave}, {"linear", linear},      {"llama3", llama3},
                  {"yarn", yarn},     {"deepseek_yarn", yarn}, {"proportional", proportional}};
    TSR_TRY(tsr_config_check_rope(s.checkpoint, err));
    s.factor = number(&s, "factor", 1);
    s.trained = number(&s, "original_max_position_embeddings", 4096);
    s.whole = !is_false(s.checkpoint, "rope_scaling.truncate") && !is_false(s.checkpoint, "rope_parameters.truncate");
    *rope = (tsr_rope){.pairs = s.dim / 2, .gain = 1, .mscale_all = 1};
    rope->frequency = tsr_arena_alloc(arena, rope->pairs * sizeof *rope->frequency);
    if (rope->frequency == NULL)
        return tsr_out_of_memory(err, NULL);
    for (size_t i = 0; i < rope->pairs; i++)
        rope->frequency[i] = pow(s.base, -2.0 * (double)i / (double)s.dim);
    for (size_t i = 0; i < sizeof kTypes / sizeof *kTypes; i++) {
        if (strcmp(type, kTypes[i].name) != 0)
            continue;
        kTypes[i].apply(&s, rope);
        return TSR_OK;
    }
    return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: unsupported RoPE type '%s'", s.checkpoint->path, type);
}

double tsr_rope_base(const tsr_checkpoint *c, double otherwise)
{
    const settings s = {.checkpoint = c};
    return tsr_config_model_number(c, "rope_theta", number(&s, "rope_theta", otherwise));
}

tsr_status tsr_rope_read(tsr_rope *rope, const tsr_checkpoint *c, size_t dim, double base, tsr_arena *arena,
                         tsr_err *err)
{
    return tsr_rope_read_of_base(rope, c, dim, tsr_rope_base(c, base), arena, err);
}

tsr_status tsr_rope_read_of_base(tsr_rope *rope, const tsr_checkpoint *c, size_t dim, double base, tsr_arena *arena,
                                 tsr_err *err)
{
    const settings s = {.checkpoint = c, .dim = dim, .base = base};
    return read_rope(s, type_of(c, NULL, arena), rope, arena, err);
}

tsr_status tsr_rope_of_base(tsr_rope *rope, const tsr_checkpoint *c, size_t dim, double base, tsr_arena *arena,
                            tsr_err *err)
{
    return read_rope((settings){.checkpoint = c, .dim = dim, .base = base}, "default", rope, arena, err);
}

bool tsr_rope_has_section(const tsr_checkpoint *c, const char *section)
{
    char path[128];
    tsr_json_text value;
    snprintf(path, sizeof path, "rope_parameters.%s", section);
    return tsr_config_find_model(c, path, &value) && !tsr_json_is(value, "null");
}

tsr_status tsr_rope_read_section(tsr_rope *rope, const tsr_checkpoint *c, size_t dim, const char *section, double base,
                                 tsr_arena *arena, tsr_err *err)
{
    settings s = {.checkpoint = c, .dim = dim, .section = section};
    s.base = number(&s, "rope_theta", base);
    return read_rope(s, type_of(c, section, arena), rope, arena, err);
}
