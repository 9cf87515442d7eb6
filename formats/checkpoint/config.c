/* Looks up values in the index of config.json and decodes them. */
#include "formats/checkpoint/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool tsr_config_find(const tsr_checkpoint *c, const char *path, tsr_json_text *value)
{
    return tsr_json_index_find(&c->config_index, path, value);
}

bool tsr_config_find_in(const tsr_checkpoint *c, tsr_json_text object, const char *path, tsr_json_text *value)
{
    return tsr_json_index_find_in(&c->config_index, object, path, value);
}

bool tsr_config_find_model(const tsr_checkpoint *c, const char *path, tsr_json_text *value)
{
    char nested[128];
    snprintf(nested, sizeof nested, "text_config.%s", path);
    return tsr_config_find(c, path, value) || tsr_config_find(c, nested, value);
}

/* Records a scalar that is not null. Lists and objects have meanings of their own in some families. */
static void record(const tsr_checkpoint *c, tsr_json_text value)
{
    if (c->mistyped != NULL && c->mistyped->data == NULL && !tsr_json_is(value, "null") && value.data[0] != '[' &&
        value.data[0] != '{')
        *c->mistyped = value;
}

const char *tsr_config_model_string(const tsr_checkpoint *c, const char *path, tsr_arena *arena)
{
    tsr_json_text value;
    if (!tsr_config_find_model(c, path, &value))
        return NULL;
    if (value.data[0] != '"')
        record(c, value);
    return tsr_json_string_of(value, arena);
}

const char *tsr_config_find_string(const tsr_checkpoint *c, const char *path, tsr_arena *arena)
{
    tsr_json_text value;
    return tsr_config_find(c, path, &value) ? tsr_json_string_of(value, arena) : NULL;
}

bool tsr_config_find_u64(const tsr_checkpoint *c, const char *key, uint64_t *value)
{
    tsr_json_text text;
    if (!tsr_config_find_model(c, key, &text))
        return false;
    const bool found = tsr_json_u64_of(text, value);
    if (!found && text.data[0] != '-')
        record(c, text);
    return found;
}

double tsr_config_model_number(const tsr_checkpoint *c, const char *path, double otherwise)
{
    tsr_json_text value;
    char text[64], *end;
    if (!tsr_config_find_model(c, path, &value) || value.size >= sizeof text)
        return otherwise;
    memcpy(text, value.data, value.size);
    text[value.size] = '\0';
    const double x = strtod(text, &end);
    if (end == text || !isfinite(x))
        record(c, value);
    return end == text ? otherwise : x;
}

bool tsr_config_model_is(const tsr_checkpoint *c, const char *path, const char *literal)
{
    tsr_json_text value;
    if (!tsr_config_find_model(c, path, &value))
        return false;
    if (literal[0] != 'n' && !tsr_json_is(value, "true") && !tsr_json_is(value, "false"))
        record(c, value);
    return tsr_json_is(value, literal);
}

tsr_status tsr_config_check_types(const tsr_checkpoint *c, tsr_err *err)
{
    if (c->mistyped == NULL || c->mistyped->data == NULL)
        return TSR_OK;
    /* The key and the colon are before the value. */
    const char *key = c->mistyped->data;
    for (int quotes = 0; quotes < 2 && key > c->config; quotes += *key == '"')
        key--;
    return tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": %.*s is a value of the wrong type; correct it", c->path,
                    (int)(c->mistyped->data + c->mistyped->size - key), key);
}

tsr_status tsr_config_check_rope(const tsr_checkpoint *c, tsr_err *err)
{
    static const char *const kPaths[] = {"rope_theta", "rope_parameters.rope_theta", "rope_scaling.rope_theta"};
    const char *first = NULL;
    double theta = 0;
    for (size_t i = 0; i < sizeof kPaths / sizeof *kPaths; i++) {
        const double other = tsr_config_model_number(c, kPaths[i], NAN);
        if (isnan(other))
            continue;
        if (first != NULL && other != theta)
            return tsr_fail(err, TSR_E_FORMAT,
                            "%s/" TSR_CONFIG_NAME ": %s is %.17g, but %s is %.17g: remove the one that is wrong",
                            c->path, first, theta, kPaths[i], other);
        first = first == NULL ? kPaths[i] : first;
        theta = other;
    }
    return TSR_OK;
}
