/* Finds the objects of config.json that state a quantization, and rejects contradictions between them. */
#include "formats/checkpoint/config.h"
#include "formats/weights/pairing.h"

#include "common/checked.h"
#include "common/options.h"

#include <stdio.h>
#include <string.h>

size_t tsr_quantization_paths(const tsr_checkpoint *c, const char *paths[TSR_QUANTIZATION_PATHS])
{
    static const char *const kPaths[TSR_QUANTIZATION_PATHS] = {"quantization_config", "compression_config",
                                                               "text_config.quantization_config"};
    size_t n = 0;
    for (size_t i = 0; i < TSR_QUANTIZATION_PATHS; i++) {
        tsr_json_text value;
        if (tsr_config_find(c, kPaths[i], &value) && !tsr_json_is(value, "null"))
            paths[n++] = kPaths[i];
    }
    return n;
}

const char *tsr_quantization_path(const tsr_checkpoint *c)
{
    const char *paths[TSR_QUANTIZATION_PATHS];
    return tsr_quantization_paths(c, paths) == 0 ? NULL : paths[0];
}

/* ---- objects in other places ---- */

enum { MOST_LEVELS = 4 };

/* Returns true if this is one of the objects that are read. */
static bool is_read(const tsr_checkpoint *c, tsr_json_text object)
{
    const char *paths[TSR_QUANTIZATION_PATHS];
    const size_t n = tsr_quantization_paths(c, paths);
    for (size_t i = 0; i < n; i++) {
        tsr_json_text found;
        if (tsr_config_find(c, paths[i], &found) && found.data == object.data)
            return true;
    }
    return false;
}

/* Appends ".key" to a path of `used` characters, or "key" to an empty one. Returns the new length; 0: it does not
 * fit. */
static size_t extend_path(char *path, size_t size, size_t used, tsr_json_text key)
{
    const int n =
        snprintf(path + used, size - used, "%s%.*s", used == 0 ? "" : ".", (int)tsr_min_u64(key.size, size), key.data);
    return n > 0 && (size_t)n < size - used ? used + (size_t)n : 0;
}

/* Finds an object that states a quantization and is not read. `path` is that of `object`, then of the one found. */
static bool find_unread(const tsr_checkpoint *c, tsr_json_text object, char *path, size_t size, size_t used,
                        unsigned level)
{
    tsr_json_text key, value;
    tsr_json_reader r = tsr_json_members(object);
    while (tsr_json_member(&r, &key, &value)) {
        const size_t length = extend_path(path, size, used, key);
        if (length == 0 || value.data[0] != '{')
            continue;
        const bool states = tsr_json_is(key, "quantization_config") || tsr_json_is(key, "compression_config");
        tsr_json_reader members = tsr_json_members(value);
        if (states && !is_read(c, value) && tsr_json_member(&members, &key, &value))
            return true;
        if (!states && level < MOST_LEVELS && find_unread(c, value, path, size, length, level + 1))
            return true;
    }
    return false;
}

/* ---- contradictions ---- */

static size_t skip_space(tsr_json_text t, size_t at)
{
    while (at < t.size && strchr(" \t\r\n", t.data[at]) != NULL)
        at++;
    return at;
}

/* Returns true if two values have the same text, apart from white space between its parts. */
static bool is_same(tsr_json_text a, tsr_json_text b)
{
    size_t i = 0, k = 0;
    for (bool quoted = false;; i++, k++) {
        if (!quoted) {
            i = skip_space(a, i);
            k = skip_space(b, k);
        }
        if (i >= a.size || k >= b.size)
            return i >= a.size && k >= b.size;
        if (a.data[i] != b.data[k])
            return false;
        quoted = quoted != (a.data[i] == '"');
        if (a.data[i] == '\\' && i + 1 < a.size && k + 1 < b.size && a.data[++i] != b.data[++k])
            return false;
    }
}

/* Rejects a member that two objects state differently. Lists of modules may differ, because names do. */
static tsr_status compare(const tsr_checkpoint *c, const char *first, const char *second, tsr_err *err)
{
    static const char kModules[] =
        "ignore ignored_layers modules_to_not_convert modules_to_convert exclude_modules packed_modules_mapping";
    tsr_json_text a, b, key, value, other;
    if (!tsr_config_find(c, first, &a) || !tsr_config_find(c, second, &b))
        return TSR_OK;
    tsr_json_reader r = tsr_json_members(a);
    while (tsr_json_member(&r, &key, &value)) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)tsr_min_u64(key.size, sizeof name - 1), key.data);
        if (tsr_is_listed(kModules, name) || !tsr_config_find_in(c, b, name, &other) || is_same(value, other))
            continue;
        return tsr_fail(err, TSR_E_FORMAT,
                        "%s/" TSR_CONFIG_NAME ": %s.%s is %.*s, but %s.%s is %.*s; remove the object that is wrong",
                        c->path, first, name, (int)tsr_min_u64(value.size, 64), value.data, second, name,
                        (int)tsr_min_u64(other.size, 64), other.data);
    }
    return TSR_OK;
}

tsr_status tsr_check_quantization_paths(const tsr_checkpoint *c, tsr_err *err)
{
    const char *paths[TSR_QUANTIZATION_PATHS];
    char path[256] = "";
    const size_t n = tsr_quantization_paths(c, paths);
    if (c->config != NULL &&
        find_unread(c, (tsr_json_text){.data = c->config, .size = c->config_size}, path, sizeof path, 0, 1))
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s/" TSR_CONFIG_NAME ": %s: quantization_config is read at the top level and in text_config "
                        "only; move it to the top level if it is that of this checkpoint, or remove it",
                        c->path, path);
    for (size_t i = 1; i < n; i++)
        TSR_TRY(compare(c, paths[0], paths[i], err));
    return TSR_OK;
}
