/* Reads calibration data from JSON or safetensors into one table, sorted by module. */
#include "formats/weights/calibration.h"

#include "common/file.h"
#include "common/grow.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json.h"
#include "formats/weights/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MAX_JSON_BYTES = 256 << 20 };

enum { SCALE = 1, ZERO_POINT = 2, LEAST = 4, LARGEST = 8 };

/* An entry while the file is read. */
typedef struct entry {
    tsr_calibrated input;
    unsigned given;
} entry;

typedef struct table {
    tsr_calibration *calibration;
    entry *items;
    size_t count, capacity;
    tsr_err *err;
} table;

static tsr_status out_of_memory(const table *t)
{
    return tsr_fail(t->err, TSR_E_NOMEM, "%s: out of memory", t->calibration->path);
}

static unsigned key_of(const char *key, size_t size)
{
    static const struct {
        const char *key;
        unsigned bit;
    } kKeys[] = {{"input_scale", SCALE}, {"input_zero_point", ZERO_POINT},
                 {"input_min", LEAST},   {"input_max", LARGEST},
                 {"min", LEAST},         {"max", LARGEST}};
    for (size_t i = 0; i < sizeof kKeys / sizeof *kKeys; i++) {
        if (strlen(kKeys[i].key) == size && memcmp(kKeys[i].key, key, size) == 0)
            return kKeys[i].bit;
    }
    return 0;
}

static tsr_status add_entry(table *t, const char *module)
{
    if (!tsr_grow(&t->items, t->count, &t->capacity, sizeof *t->items))
        return out_of_memory(t);
    t->items[t->count++] = (entry){.input = {.module = module}};
    return TSR_OK;
}

static tsr_status set(const table *t, entry *e, unsigned bit, double value)
{
    const char *const module = e->input.module;
    if (!isfinite(value) || fabs(value) > 0x1.FFFFFEp127)
        return tsr_fail(t->err, TSR_E_FORMAT, "%s: '%s': invalid scale %g: must be finite and positive",
                        t->calibration->path, module, value);
    if (bit == SCALE && !((float)value > 0))
        return tsr_fail(t->err, TSR_E_FORMAT, "%s: '%s': input_scale %g is not positive", t->calibration->path, module,
                        value);
    if (bit == ZERO_POINT && (value != rint(value) || value < -128 || value > 127))
        return tsr_fail(t->err, TSR_E_FORMAT, "%s: '%s': input_zero_point %g is not an integer from -128 to 127",
                        t->calibration->path, module, value);
    if ((e->given & bit) != 0)
        return tsr_fail(t->err, TSR_E_FORMAT, "%s: '%s': the same value is given twice", t->calibration->path, module);
    e->given |= bit;
    switch (bit) {
    case SCALE:
        e->input.scale = (float)value;
        break;
    case ZERO_POINT:
        e->input.zero_point = (int32_t)value;
        break;
    case LEAST:
        e->input.least = (float)value;
        break;
    default:
        e->input.largest = (float)value;
    }
    return TSR_OK;
}

/* ---- JSON ---- */

static tsr_status read_number(const table *t, tsr_json_reader *r, double *value)
{
    tsr_json_kind kind;
    tsr_json_text span;
    char text[64], *end;
    TSR_TRY(tsr_json_peek(r, &kind, t->err));
    TSR_TRY(tsr_json_skip(r, &span, t->err));
    *value = NAN;
    if (kind != TSR_JSON_NUMBER || span.size >= sizeof text)
        return TSR_OK;
    memcpy(text, span.data, span.size);
    text[span.size] = '\0';
    *value = strtod(text, &end);
    return TSR_OK;
}

static tsr_status read_module(table *t, tsr_json_reader *r)
{
    entry *const e = &t->items[t->count - 1];
    tsr_json_text key;
    bool more;
    double value;
    TSR_TRY(tsr_json_enter_object(r, t->err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(r, &key, &more, t->err));
        if (!more)
            return TSR_OK;
        const unsigned bit = key_of(key.data, key.size);
        TSR_TRY(read_number(t, r, &value));
        if (bit != 0)
            TSR_TRY(set(t, e, bit, value));
    }
}

static tsr_status read_json(table *t)
{
    const char *text, *module, *const path = t->calibration->path;
    size_t size;
    tsr_json_text key;
    bool more;
    TSR_TRY(tsr_read_file(path, MAX_JSON_BYTES, &t->calibration->arena, &text, &size, t->err));
    tsr_json_reader r = tsr_json_open(path, text, size);
    TSR_TRY(tsr_json_enter_object(&r, t->err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r, &key, &more, t->err));
        if (!more)
            return tsr_json_finish(&r, t->err);
        TSR_TRY(tsr_json_decode(&r, key, &t->calibration->arena, &module, t->err));
        TSR_TRY(add_entry(t, module));
        TSR_TRY(read_module(t, &r));
    }
}

/* ---- safetensors ---- */

static tsr_status read_element(const table *t, const tsr_checkpoint *c, const tsr_tensor *tensor, double *value)
{
    union {
        float f32;
        double f64;
        uint32_t bits;
        int8_t i8;
        int32_t i32;
        int64_t i64;
        unsigned char bytes[8];
    } x = {.bytes = {0}};
    if (tsr_tensor_elements(tensor) != 1 || tensor->bytes > sizeof x)
        return tsr_fail(t->err, TSR_E_FORMAT,
                        "%s: '%s' must have exactly one element, since activations are quantized per tensor",
                        t->calibration->path, tensor->name);
    TSR_TRY(tsr_checkpoint_read(c, tensor, 0, x.bytes, tensor->bytes, t->err));
    switch (tensor->dtype) {
    case TSR_BF16:
        x.bits <<= 16;
        *value = (double)x.f32;
        return TSR_OK;
    case TSR_F32:
        *value = (double)x.f32;
        return TSR_OK;
    case TSR_F64:
        *value = x.f64;
        return TSR_OK;
    case TSR_I8:
        *value = x.i8;
        return TSR_OK;
    case TSR_I32:
        *value = x.i32;
        return TSR_OK;
    case TSR_I64:
        *value = (double)x.i64;
        return TSR_OK;
    default:
        return tsr_fail(t->err, TSR_E_UNSUPPORTED, "%s: '%s' is %s; supported dtypes: F32, BF16, F64, I8, I32 and I64",
                        t->calibration->path, tensor->name, tsr_dtype_name((tsr_dtype)tensor->dtype));
    }
}

static int by_module(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->input.module, ((const entry *)b)->input.module);
}

/* Merges the entries of one module: in safetensors, each number is a separate tensor. */
static tsr_status join(table *t)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->count; i++) {
        entry *const last = kept == 0 ? NULL : &t->items[kept - 1];
        const entry *const e = &t->items[i];
        const double values[] = {e->input.scale, e->input.zero_point, e->input.least, e->input.largest};
        if (last == NULL || strcmp(last->input.module, e->input.module) != 0) {
            t->items[kept++] = *e;
            continue;
        }
        for (unsigned k = 0; k < 4; k++) {
            if ((e->given >> k & 1) != 0)
                TSR_TRY(set(t, last, 1u << k, values[k]));
        }
    }
    t->count = kept;
    return TSR_OK;
}

static tsr_status read_tensors(table *t, const tsr_checkpoint *c)
{
    double value = 0;
    for (size_t i = 0; i < c->tensors.count; i++) {
        const tsr_tensor *const tensor = &c->tensors.items[i];
        const char *const dot = strrchr(tensor->name, '.');
        const unsigned bit = dot == NULL ? 0 : key_of(dot + 1, strlen(dot + 1));
        if (bit == 0)
            continue;
        const char *const module = tsr_arena_dup(&t->calibration->arena, tensor->name, (size_t)(dot - tensor->name));
        if (module == NULL)
            return out_of_memory(t);
        TSR_TRY(add_entry(t, module));
        TSR_TRY(read_element(t, c, tensor, &value));
        TSR_TRY(set(t, &t->items[t->count - 1], bit, value));
    }
    return TSR_OK;
}

static tsr_status read_safetensors(table *t)
{
    tsr_checkpoint *c;
    TSR_TRY(tsr_checkpoint_open(&c, t->calibration->path, NULL, 0, t->err));
    const tsr_status status = read_tensors(t, c);
    tsr_checkpoint_close(c);
    return status;
}

/* ---- both ---- */

static tsr_status check(const table *t, const entry *e)
{
    const tsr_calibrated *const x = &e->input;
    const unsigned range = LEAST | LARGEST;
    if ((e->given & SCALE) != 0 && (e->given & range) != 0)
        return tsr_fail(t->err, TSR_E_FORMAT, "%s: '%s' has both a scale and a range; remove one", t->calibration->path,
                        x->module);
    if ((e->given & SCALE) == 0 && (e->given & range) != range)
        return tsr_fail(t->err, TSR_E_FORMAT, "%s: '%s' has neither input_scale nor both of input_min and input_max",
                        t->calibration->path, x->module);
    if ((e->given & ZERO_POINT) != 0 && (e->given & SCALE) == 0)
        return tsr_fail(t->err, TSR_E_FORMAT, "%s: '%s' has an input_zero_point without input_scale",
                        t->calibration->path, x->module);
    if (x->least > x->largest)
        return tsr_fail(t->err, TSR_E_FORMAT, "%s: '%s': invalid range from %g to %g: the minimum is above the maximum",
                        t->calibration->path, x->module, (double)x->least, (double)x->largest);
    return TSR_OK;
}

static tsr_status finish(table *t)
{
    tsr_calibration *const in = t->calibration;
    if (t->count > 0)
        qsort(t->items, t->count, sizeof *t->items, by_module);
    TSR_TRY(join(t));
    in->items = tsr_arena_alloc(&in->arena, (t->count + 1) * sizeof *in->items);
    if (in->items == NULL)
        return out_of_memory(t);
    for (size_t i = 0; i < t->count; i++) {
        TSR_TRY(check(t, &t->items[i]));
        in->items[i] = t->items[i].input;
        in->items[i].scaled = (t->items[i].given & SCALE) != 0;
        in->items[i].has_zero_point = (t->items[i].given & ZERO_POINT) != 0;
    }
    in->count = t->count;
    XXH3_state_t *const hash = XXH3_createState();
    if (hash == NULL)
        return out_of_memory(t);
    (void)XXH3_64bits_reset(hash);
    for (size_t i = 0; i < in->count; i++) {
        const tsr_calibrated *const x = &in->items[i];
        const float numbers[] = {x->scale, (float)x->zero_point, x->least, x->largest};
        (void)XXH3_64bits_update(hash, x->module, strlen(x->module) + 1);
        (void)XXH3_64bits_update(hash, numbers, sizeof numbers);
    }
    in->hash = XXH3_64bits_digest(hash);
    (void)XXH3_freeState(hash);
    return TSR_OK;
}

tsr_status tsr_calibration_read(tsr_calibration *calibration, const char *path, tsr_err *err)
{
    const size_t n = strlen(path);
    *calibration = (tsr_calibration){.path = path};
    table t = {.calibration = calibration, .err = err};
    tsr_status status = n > 5 && strcmp(path + n - 5, ".json") == 0 ? read_json(&t) : read_safetensors(&t);
    if (status == TSR_OK)
        status = finish(&t);
    free(t.items);
    if (status != TSR_OK)
        tsr_calibration_free(calibration);
    return status;
}

void tsr_calibration_free(tsr_calibration *calibration)
{
    tsr_arena_free(&calibration->arena);
    *calibration = (tsr_calibration){0};
}

const tsr_calibrated *tsr_calibration_find(const tsr_calibration *calibration, const char *weight)
{
    return tsr_find_module(calibration->items, calibration->count, sizeof *calibration->items, weight,
                           tsr_module_length(weight));
}
