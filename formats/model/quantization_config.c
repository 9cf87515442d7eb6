/* What config.json states of a checkpoint's quantization. */
#include "common/checked.h"
#include "formats/checkpoint/config.h"
#include "formats/model/pairing.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

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

/* [128, 128], or "128x128" as old compressed-tensors wrote it. Both sizes stay as they are when it is neither. */
static bool read_block(tsr_json_text value, uint64_t *rows, uint64_t *cols)
{
    tsr_json_reader r = tsr_json_open("", value.data, value.size);
    uint64_t sizes[2] = {0, 0};
    bool more;
    if (value.size > 0 && value.data[0] == '"') {
        unsigned a, b;
        char text[32];
        snprintf(text, sizeof text, "%.*s", (int)tsr_min_u64(value.size, 31), value.data);
        if (sscanf(text, "\"%ux%u\"", &a, &b) != 2)
            return false;
        sizes[0] = a;
        sizes[1] = b;
    } else {
        if (tsr_json_enter_array(&r, NULL) != TSR_OK)
            return false;
        for (size_t i = 0; i < 2; i++) {
            if (tsr_json_next_element(&r, &more, NULL) != TSR_OK || !more ||
                tsr_json_read_u64(&r, &sizes[i], NULL) != TSR_OK)
                return false;
        }
    }
    if (sizes[0] == 0 || sizes[1] == 0)
        return false;
    *rows = sizes[0];
    *cols = sizes[1];
    return true;
}

static uint64_t find_u64(const tsr_checkpoint *c, tsr_json_text object, const char *path, uint64_t otherwise)
{
    tsr_json_text value;
    uint64_t x;
    return tsr_config_find_in(c, object, path, &value) && tsr_json_u64_of(value, &x) ? x : otherwise;
}

/* compressed-tensors' groups: the first block size, and every coding of integers. */
static void read_groups(tsr_pairing *p, tsr_json_text groups)
{
    tsr_json_reader r = tsr_json_open("", groups.data, groups.size);
    tsr_json_text name, group, value;
    bool more;
    if (tsr_json_enter_object(&r, NULL) != TSR_OK)
        return;
    while (tsr_json_next_member(&r, &name, &more, NULL) == TSR_OK && more &&
           tsr_json_skip(&r, &group, NULL) == TSR_OK) {
        if (p->w->block_rows == 0 && tsr_config_find_in(p->c, group, "weights.block_structure", &value))
            (void)read_block(value, &p->w->block_rows, &p->w->block_cols);
        if (p->n_stated < TSR_MAX_INTEGERS && tsr_config_find_in(p->c, group, "weights.type", &value) &&
            tsr_json_is(value, "\"int\""))
            p->stated[p->n_stated++] = (tsr_integer_coding){find_u64(p->c, group, "weights.num_bits", 8),
                                                            find_u64(p->c, group, "weights.group_size", 0)};
    }
}

tsr_status tsr_read_quantization(tsr_pairing *p)
{
    tsr_weights *const w = p->w;
    const tsr_checkpoint *const c = p->c;
    tsr_err *const err = p->err;
    static const char *const kKnown[] = {"fp8", "compressed-tensors", "modelopt", "mxfp8"};
    const char *const path = tsr_quantization_path(c);
    tsr_json_text q, value;
    if (path == NULL || !tsr_config_find(c, path, &q))
        return TSR_OK;
    w->method = tsr_config_find_in(c, q, "quant_method", &value) ? tsr_json_string_of(value, &w->arena) : NULL;
    bool known = false;
    for (size_t i = 0; w->method != NULL && i < sizeof kKnown / sizeof *kKnown; i++)
        known = known || strcmp(w->method, kKnown[i]) == 0;
    known = known || (w->method != NULL && strcasecmp(w->method, "fp8") == 0); /* which some loaders take for it */
    if (!known)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s/" TSR_CONFIG_NAME ": %s.quant_method '%s' is none that Tessera reads", c->path, path,
                        w->method == NULL ? "" : w->method);
    if (strcmp(w->method, "compressed-tensors") == 0) {
        w->dialect = TSR_DIALECT_COMPRESSED_TENSORS;
        if (tsr_config_find_in(c, q, "config_groups", &value))
            read_groups(p, value);
    } else if (tsr_config_find_in(c, q, "weight_block_size", &value) && !tsr_json_is(value, "null") &&
               !read_block(value, &w->block_rows, &w->block_cols)) {
        return tsr_fail(err, TSR_E_FORMAT, "%s/" TSR_CONFIG_NAME ": %s.weight_block_size is not two positive integers",
                        c->path, path);
    }
    const char *const format =
        tsr_config_find_in(c, q, "scale_fmt", &value) ? tsr_json_string_of(value, &w->arena) : NULL;
    w->ue8m0 = format != NULL && strcmp(format, "ue8m0") == 0;
    return TSR_OK;
}
