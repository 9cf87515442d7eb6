/* check_golden DIR: everything that DIR/manifest.json lists, recomputed and compared byte for byte.
 *
 * Vectors of layouts come from the original code of FasterTransformer and TensorRT-LLM. "preprocess" goes from signed
 * codes, a byte each, [experts][K][N], to the layout; it is checked with every instruction set, from both orders of
 * codes, and back. "symmetric_quantize" goes from weights to codes, scales and the layout. Vectors of tensors in the
 * formats of checkpoints are in format_cases.c.
 *
 * Exit 0: all agree. 1: some differ, or could not be checked. 2: no manifest, or one that is broken or lists nothing.
 * 64: wrong usage. */
#include "common/file.h"
#include "common/float_bits.h"
#include "formats/json/json.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ft_layout.h"
#include "quantize/int_weight.h"
#include "tests/peers/golden/format_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t kMostBytes = (uint64_t)1 << 32; /* size limit of a file */

typedef struct vector {
    const char *name, *op, *kind, *producer, *dtype, *weight_dtype, *scale_dtype;
    uint64_t arch, k, n, experts, rank;
    bool force_interleave, refused;
    set_rules rules;
    /* names of files: all for symmetric_quantize, otherwise the first two */
    const char *input, *expected, *weights, *unprocessed, *processed, *scales;
} vector;

/* ---- The manifest. ---- */

static tsr_status read_text(tsr_json_reader *r, tsr_arena *arena, const char **out, tsr_err *err)
{
    tsr_json_text text;
    TSR_TRY(tsr_json_read_string(r, &text, err));
    return tsr_json_decode(r, text, arena, out, err);
}

static tsr_status read_bool(tsr_json_reader *r, bool *out, tsr_err *err)
{
    tsr_json_kind kind;
    TSR_TRY(tsr_json_peek(r, &kind, err));
    *out = kind == TSR_JSON_TRUE;
    if (kind != TSR_JSON_TRUE && kind != TSR_JSON_FALSE)
        return tsr_fail(err, TSR_E_FORMAT, "%s: byte %zu: true or false is needed", r->name, r->pos);
    return tsr_json_skip(r, NULL, err);
}

/* A member of an object, and the variable that receives its value. */
typedef struct field {
    const char *key;
    const char **text, **file; /* a string; the name of a file */
    uint64_t *number;
    bool *flag;
} field;

/* Reads an object. Skips members that are not among the fields. */
static tsr_status read_fields(tsr_json_reader *r, tsr_arena *arena, const field *fields, size_t n, tsr_err *err)
{
    TSR_TRY(tsr_json_enter_object(r, err));
    for (;;) {
        tsr_json_text key;
        bool more;
        TSR_TRY(tsr_json_next_member(r, &key, &more, err));
        if (!more)
            return TSR_OK;
        size_t i = 0;
        while (i < n && !tsr_json_is(key, fields[i].key))
            i++;
        if (i == n)
            TSR_TRY(tsr_json_skip(r, NULL, err));
        else if (fields[i].text != NULL)
            TSR_TRY(read_text(r, arena, fields[i].text, err));
        else if (fields[i].file != NULL) /* {"file": ..., ...}; the comparison finds a wrong byte without the digest */
            TSR_TRY(read_fields(r, arena, &(field){"file", .text = fields[i].file}, 1, err));
        else if (fields[i].number != NULL)
            TSR_TRY(tsr_json_read_u64(r, fields[i].number, err));
        else
            TSR_TRY(read_bool(r, fields[i].flag, err));
    }
}

static tsr_status read_vector(tsr_json_reader *r, tsr_arena *arena, vector *v, tsr_err *err)
{
    const field fields[] = {
        {"name", .text = &v->name},
        {"op", .text = &v->op},
        {"kind", .text = &v->kind},
        {"producer", .text = &v->producer},
        {"dtype", .text = &v->dtype},
        {"weight_dtype", .text = &v->weight_dtype},
        {"scale_dtype", .text = &v->scale_dtype},
        {"arch", .number = &v->arch},
        {"K", .number = &v->k},
        {"N", .number = &v->n},
        {"experts", .number = &v->experts},
        {"shape_rank", .number = &v->rank},
        {"force_interleave", .flag = &v->force_interleave},
        {"refused", .flag = &v->refused},
        {"zero_sign_free", .flag = &v->rules.zero_sign_free},
        {"scalar_shape_free", .flag = &v->rules.scalar_shape_free},
        {"input", .file = &v->input},
        {"expected", .file = &v->expected},
        {"weights", .file = &v->weights},
        {"expected_unprocessed", .file = &v->unprocessed},
        {"expected_processed", .file = &v->processed},
        {"expected_scales", .file = &v->scales},
    };
    *v = (vector){.experts = 1, .name = "(without a name)", .op = "", .producer = "", .dtype = ""};
    return read_fields(r, arena, fields, sizeof fields / sizeof *fields, err);
}

/* ---- Files and comparison. ---- */

typedef struct context {
    const char *dir;
    tsr_arena arena; /* memory of one vector */
    const vector *vector;
    tsr_ft_producer producer;
    tsr_ft_format format;
} context;

static tsr_status load(context *c, const char *what, const char *name, size_t bytes, const uint8_t **out, tsr_err *err)
{
    if (name == NULL)
        return tsr_fail(err, TSR_E_FORMAT, "the manifest names no file for \"%s\"", what);
    const char *const path = tsr_arena_printf(&c->arena, "%s/%s", c->dir, name);
    const char *data;
    size_t size;
    if (path == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "no memory");
    TSR_TRY(tsr_read_file(path, kMostBytes, &c->arena, &data, &size, err));
    if (size != bytes)
        return tsr_fail(err, TSR_E_FORMAT, "%s has %zu bytes; the shape wants %zu", name, size, bytes);
    *out = (const uint8_t *)data;
    return TSR_OK;
}

static tsr_status compare(const char *what, const uint8_t *got, const uint8_t *expected, size_t bytes, tsr_err *err)
{
    for (size_t i = 0; i < bytes; i++) {
        if (got[i] != expected[i])
            return tsr_fail(err, TSR_E_MISMATCH, "%s: byte %zu is 0x%02X, expected 0x%02X", what, i, got[i],
                            expected[i]);
    }
    return TSR_OK;
}

/* ---- preprocess ---- */

static tsr_status find_format(context *c, tsr_err *err)
{
    const vector *const v = c->vector;
    tsr_ft_target target = {.force_interleave = v->force_interleave, .mixture_of_experts = v->rank == 3};
    if (strcmp(v->dtype, "int8") == 0) {
        target.bits = 8;
    } else if (strcmp(v->dtype, "int4") == 0 || strcmp(v->dtype, "int4_afp8") == 0) {
        target.bits = 4;
        target.fp8_activations = strcmp(v->dtype, "int4_afp8") == 0;
    } else {
        return tsr_fail(err, TSR_E_UNSUPPORTED, "dtype '%s' is not known", v->dtype);
    }
    TSR_TRY(tsr_ft_producer_parse(v->producer, &target.producer, err));
    if (v->arch > INT32_MAX || v->k > INT32_MAX || v->n > INT32_MAX || v->experts == 0 || v->experts > 65536)
        return tsr_fail(err, TSR_E_FORMAT, "a size is missing or out of range");
    target.arch = (int)v->arch;
    c->producer = target.producer;
    TSR_TRY(tsr_ft_format_of(&target, &c->format, err));
    TSR_TRY(tsr_ft_format_check(&c->format, (int64_t)v->k, (int64_t)v->n, err));
    if (v->k * v->n > kMostBytes / 4 / v->experts)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "too large for this check");
    return TSR_OK;
}

/* Tests one expert with one set of kernels: codes [K, N] and transposed [N, K], in both directions. */
static tsr_status check_layout(const context *c, const tsr_cpu_kernels *kernels, const uint8_t *const codes[2],
                               const uint8_t *expected, uint8_t *scratch, tsr_err *err)
{
    static const tsr_code_order kOrders[2] = {TSR_CODES_KN, TSR_CODES_NK};
    const size_t k = c->vector->k, n = c->vector->n, bytes = k * n * (size_t)c->format.bits / 8;
    for (int i = 0; i < 2; i++) {
        const char *const order = kOrders[i] == TSR_CODES_KN ? "[K, N]" : "[N, K]";
        const tsr_interleave_args args = {&c->format, k, n, kOrders[i], false, kOrders[i] == TSR_CODES_KN ? n : k};
        kernels->interleave(&args, codes[i], scratch);
        if (compare("the layout", scratch, expected, bytes, err) != TSR_OK)
            return tsr_prepend(err, TSR_E_MISMATCH, "from %s", order);
        kernels->deinterleave(&args, expected, scratch);
        if (compare("the codes", scratch, codes[i], k * n, err) != TSR_OK)
            return tsr_prepend(err, TSR_E_MISMATCH, "back to %s", order);
    }
    return TSR_OK;
}

static tsr_status check_experts(context *c, const uint8_t *codes, const uint8_t *expected, tsr_err *err)
{
    static const unsigned kSets[] = {0, TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512, TSR_CPU_ALL};
    const size_t k = c->vector->k, n = c->vector->n, bytes = k * n * (size_t)c->format.bits / 8;
    uint8_t *const transposed = tsr_arena_alloc(&c->arena, k * n), *const scratch = tsr_arena_alloc(&c->arena, k * n);
    if (transposed == NULL || scratch == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "no memory");
    for (uint64_t e = 0; e < c->vector->experts; e++, codes += k * n, expected += bytes) {
        for (size_t i = 0; i < k; i++) {
            for (size_t j = 0; j < n; j++)
                transposed[j * k + i] = codes[i * n + j];
        }
        for (size_t s = 0; s < sizeof kSets / sizeof *kSets; s++) {
            if ((kSets[s] & tsr_cpu_flags()) != kSets[s])
                continue;
            tsr_cpu_kernels kernels;
            tsr_cpu_kernels_init(&kernels, kSets[s]);
            const tsr_status status =
                check_layout(c, &kernels, (const uint8_t *const[2]){codes, transposed}, expected, scratch, err);
            if (status != TSR_OK)
                return tsr_prepend(err, status, "expert %llu, %s", (unsigned long long)e, tsr_cpu_name(kSets[s]));
        }
    }
    return TSR_OK;
}

static tsr_status check_preprocess(context *c, tsr_err *err)
{
    const vector *const v = c->vector;
    const size_t weights = v->experts * v->k * v->n;
    const uint8_t *codes, *expected;
    TSR_TRY(load(c, "input", v->input, weights, &codes, err));
    TSR_TRY(load(c, "expected", v->expected, weights * (size_t)c->format.bits / 8, &expected, err));
    return check_experts(c, codes, expected, err);
}

/* ---- symmetric_quantize ---- */

typedef enum float_kind { FLOAT32, FLOAT16, BFLOAT16 } float_kind;

static tsr_status read_kind(const char *name, float_kind *kind, size_t *bytes, tsr_err *err)
{
    static const char *const kNames[] = {"float32", "float16", "bfloat16"};
    for (int i = 0; name != NULL && i < 3; i++) {
        if (strcmp(name, kNames[i]) == 0) {
            *kind = (float_kind)i;
            *bytes = i == FLOAT32 ? 4 : 2;
            return TSR_OK;
        }
    }
    return tsr_fail(err, TSR_E_UNSUPPORTED, "dtype '%s' of weights or scales is not known", name == NULL ? "" : name);
}

static void widen(float_kind kind, const uint8_t *from, size_t count, float *to)
{
    tsr_cpu_kernels kernels;
    tsr_cpu_kernels_init(&kernels, 0);
    if (kind == FLOAT32) {
        memcpy(to, from, 4 * count);
    } else if (kind == FLOAT16) {
        kernels.widen_f16((const uint16_t *)(const void *)from, count, to);
    } else {
        for (size_t i = 0; i < count; i++) {
            memset(&to[i], 0, sizeof *to);
            memcpy((uint8_t *)&to[i] + 2, from + 2 * i, 2);
        }
    }
}

static void narrow(float_kind kind, const float *from, size_t count, uint8_t *to)
{
    if (kind == FLOAT32) {
        memcpy(to, from, 4 * count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const uint16_t half = kind == FLOAT16 ? tsr_f16_from_f32(from[i]) : tsr_bf16_from_f32(from[i]);
        memcpy(to + 2 * i, &half, 2);
    }
}

/* Packs two nibbles per byte, the even column in the low one. Columns without a scale are copied from `expected` if the
 * producer divides 0 by 0, because the result is undefined. */
static void pack(const context *c, const int8_t *codes, const float *scales, const uint8_t *expected, uint8_t *out)
{
    const size_t k = c->vector->k, n = c->vector->n;
    const bool has_rule = c->producer >= TSR_FT_TRTLLM_0_10;
    for (size_t at = 0; at < c->vector->experts * k * n; at++) {
        const bool taken = !has_rule && scales[at / (k * n) * n + at % n] == 0;
        if (c->format.bits == 8) {
            out[at] = taken ? expected[at] : (uint8_t)codes[at];
        } else {
            const unsigned shift = at % 2 * 4, code = (unsigned)(taken ? expected[at / 2] >> shift : codes[at]) & 0xF;
            out[at / 2] = (uint8_t)((at % 2 == 0 ? 0 : out[at / 2]) | code << shift);
        }
    }
}

/* Quantizes one matrix [K, N] by column, as the library does; Tessera does it by row. */
static tsr_status quantize(context *c, const float *w, int8_t *codes, float *scales, tsr_err *err)
{
    const size_t k = c->vector->k, n = c->vector->n;
    const tsr_int_scheme scheme = {.bits = (uint32_t)c->format.bits,
                                   .divisor = c->format.bits == 8 ? 128 : 8,
                                   .away = true,
                                   .zero_scale = true,
                                   .scale_dtype = TSR_F32};
    const tsr_tensor shape = {.name = "w", .dtype = TSR_F32, .rank = 2, .shape = {n, k}};
    float *const rows = tsr_arena_alloc(&c->arena, n * k * sizeof *rows);
    int8_t *const by_row = tsr_arena_alloc(&c->arena, n * k);
    tsr_int_rows all = {.tensor = &shape, .rows = n, .x = rows, .codes = by_row, .scales = scales};
    all.scratch = tsr_arena_alloc(&c->arena, tsr_int_scratch(&scheme, k));
    tsr_cpu_kernels kernels;
    tsr_quant_stats cost = {0};
    if (rows == NULL || by_row == NULL || all.scratch == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "no memory");
    for (size_t at = 0; at < n * k; at++)
        rows[at % n * k + at / n] = w[at];
    tsr_cpu_kernels_init(&kernels, tsr_cpu_flags());
    TSR_TRY(tsr_int_quantize(&scheme, &kernels, &all, &cost, err));
    for (size_t at = 0; at < n * k; at++)
        codes[at] = by_row[at % n * k + at / n];
    return TSR_OK;
}

static tsr_status check_quantize(context *c, tsr_err *err)
{
    const vector *const v = c->vector;
    float_kind weight_kind = FLOAT32, scale_kind = FLOAT32;
    size_t weight_bytes = 0, scale_bytes = 0;
    TSR_TRY(read_kind(v->weight_dtype, &weight_kind, &weight_bytes, err));
    TSR_TRY(read_kind(v->scale_dtype, &scale_kind, &scale_bytes, err));
    const size_t matrix = v->k * v->n, weights = v->experts * matrix, columns = v->experts * v->n;
    const size_t packed_bytes = weights * (size_t)c->format.bits / 8;
    const uint8_t *raw, *unprocessed, *processed, *expected_scales;
    TSR_TRY(load(c, "weights", v->weights, weights * weight_bytes, &raw, err));
    TSR_TRY(load(c, "expected_unprocessed", v->unprocessed, packed_bytes, &unprocessed, err));
    TSR_TRY(load(c, "expected_processed", v->processed, packed_bytes, &processed, err));
    TSR_TRY(load(c, "expected_scales", v->scales, columns * scale_bytes, &expected_scales, err));
    float *const w = tsr_arena_alloc(&c->arena, weights * sizeof *w);
    float *const scales = tsr_arena_alloc(&c->arena, columns * sizeof *scales);
    uint8_t *const codes = tsr_arena_alloc(&c->arena, weights), *const packed =
                                                                    tsr_arena_alloc(&c->arena, packed_bytes);
    uint8_t *const stored_scales = tsr_arena_alloc(&c->arena, columns * scale_bytes);
    if (w == NULL || scales == NULL || codes == NULL || packed == NULL || stored_scales == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "no memory");
    widen(weight_kind, raw, weights, w);
    for (size_t e = 0; e < v->experts; e++)
        TSR_TRY(quantize(c, w + e * matrix, (int8_t *)codes + e * matrix, scales + e * v->n, err));
    narrow(scale_kind, scales, columns, stored_scales);
    TSR_TRY(compare("the scales", stored_scales, expected_scales, columns * scale_bytes, err));
    pack(c, (const int8_t *)codes, scales, unprocessed, packed);
    TSR_TRY(compare("the codes", packed, unprocessed, packed_bytes, err));
    for (size_t at = 0; at < weights; at++) {
        const unsigned shift = c->format.bits == 8 ? 0 : at % 2 * 4, byte = packed[at * (size_t)c->format.bits / 8];
        codes[at] = (uint8_t)(c->format.bits == 8 ? byte : ((byte >> shift & 0xF) ^ 8u) - 8u);
    }
    return check_experts(c, codes, processed, err);
}

/* ---- All of it. ---- */

static tsr_status check_vector(context *c, tsr_err *err)
{
    const vector *const v = c->vector;
    if (is_format_op(v->op)) {
        const format_case one = {c->dir, v->op, v->kind, v->input, v->expected, v->refused, v->rules};
        return check_format_case(&one, &c->arena, err);
    }
    const bool quantize = strcmp(c->vector->op, "symmetric_quantize") == 0;
    if (!quantize && strcmp(c->vector->op, "preprocess") != 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "op '%s' is not known", c->vector->op);
    TSR_TRY(find_format(c, err));
    return quantize ? check_quantize(c, err) : check_preprocess(c, err);
}

typedef struct tally {
    unsigned good, bad;
} tally;

static tsr_status check_cases(tsr_json_reader *r, const char *dir, tsr_arena *arena, tally *t, tsr_err *err)
{
    TSR_TRY(tsr_json_enter_array(r, err));
    for (;;) {
        bool more;
        vector v;
        TSR_TRY(tsr_json_next_element(r, &more, err));
        if (!more)
            return TSR_OK;
        TSR_TRY(read_vector(r, arena, &v, err));
        context c = {.dir = dir, .vector = &v};
        tsr_err why;
        if (check_vector(&c, &why) == TSR_OK) {
            printf("ok      %s\n", v.name);
            t->good++;
        } else {
            printf("FAILED  %s: %s\n", v.name, why.msg);
            t->bad++;
        }
        tsr_arena_free(&c.arena);
    }
}

static tsr_status check_manifest(const char *dir, tsr_arena *arena, tally *t, tsr_err *err)
{
    const char *const path = tsr_arena_printf(arena, "%s/manifest.json", dir);
    const char *text;
    size_t size;
    if (path == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "no memory");
    TSR_TRY(tsr_read_file(path, kMostBytes, arena, &text, &size, err));
    tsr_json_text version;
    if (!tsr_json_find(text, size, "format", &version) || version.size != 1 || *version.data != '1')
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: \"format\" is not 1", path);
    tsr_json_reader r = tsr_json_open(path, text, size);
    TSR_TRY(tsr_json_enter_object(&r, err));
    for (;;) {
        tsr_json_text key;
        bool more;
        TSR_TRY(tsr_json_next_member(&r, &key, &more, err));
        if (!more)
            break;
        if (tsr_json_is(key, "cases"))
            TSR_TRY(check_cases(&r, dir, arena, t, err));
        else
            TSR_TRY(tsr_json_skip(&r, NULL, err));
    }
    TSR_TRY(tsr_json_finish(&r, err));
    return t->good + t->bad > 0 ? TSR_OK : tsr_fail(err, TSR_E_FORMAT, "%s lists no vector", path);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: check_golden DIR\n");
        return 64;
    }
    tsr_arena arena = {0};
    tally t = {0, 0};
    tsr_err err;
    const tsr_status status = check_manifest(argv[1], &arena, &t, &err);
    tsr_arena_free(&arena);
    if (status != TSR_OK) {
        fprintf(stderr, "check_golden: %s\n", err.msg);
        return 2;
    }
    printf("%u passed, %u failed\n", t.good, t.bad);
    return t.bad == 0 ? 0 : 1;
}
