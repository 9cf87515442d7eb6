/* Lists the kinds, and runs one case with every instruction set. */
#include "tests/peers/golden/format_cases.h"

#include <string.h>

static const struct {
    const char *op;
    format_fn *make;
} kOps[] = {{"table", make_table}, {"encode", encode_kind}, {"decode", decode_kind}, {"convert", convert_kind}};

enum { OPS = sizeof kOps / sizeof *kOps };

static format_fn *find_op(const char *op)
{
    size_t i = 0;
    while (i < OPS && strcmp(op, kOps[i].op) != 0)
        i++;
    return i < OPS ? kOps[i].make : NULL;
}

bool is_format_op(const char *op)
{
    return find_op(op) != NULL;
}

#define CT       false
#define MODELOPT true

static const mx_names kNames[] = {
    {"mxfp4-ct", TSR_MXFP4, CT, -1, ".weight_packed", ".weight_scale", NULL, TSR_U8, TSR_U8, 0},
    {"mxfp4-floor", TSR_MXFP4, CT, TSR_MX_FLOOR, ".weight_packed", ".weight_scale", NULL, TSR_U8, TSR_U8, 0},
    {"mxfp4-rceil", TSR_MXFP4, CT, TSR_MX_RCEIL, ".weight_packed", ".weight_scale", NULL, TSR_U8, TSR_U8, 0},
    {"mxfp4-v4", TSR_MXFP4, CT, TSR_MX_RCEIL, ".weight", ".scale", NULL, TSR_I8, TSR_F8_E8M0, 0},
    {"mxfp4-gptoss", TSR_MXFP4, CT, -1, "_blocks", "_scales", NULL, TSR_U8, TSR_U8, 0},
    {"mxfp4-modelopt", TSR_MXFP4, MODELOPT, -1, ".weight", ".weight_scale", NULL, TSR_U8, TSR_U8, 0},
    {"nvfp4-ct", TSR_NVFP4, CT, -1, ".weight_packed", ".weight_scale", ".weight_global_scale", TSR_U8, TSR_F8_E4M3, 1},
    {"nvfp4-modelopt", TSR_NVFP4, MODELOPT, -1, ".weight", ".weight_scale", ".weight_scale_2", TSR_U8, TSR_F8_E4M3, 0},
    {"mxfp8", TSR_MXFP8, CT, -1, ".weight", ".weight_scale", NULL, TSR_F8_E4M3, TSR_U8, 0},
    {"mxfp8-ct", TSR_MXFP8, CT, -1, ".weight", ".weight_scale", NULL, TSR_F8_E4M3, TSR_U8, 0},
    {"mxfp8-modelopt", TSR_MXFP8, MODELOPT, -1, ".weight", ".weight_scale", NULL, TSR_F8_E4M3, TSR_U8, 0},
};

const mx_names *find_mx_names(const char *kind)
{
    for (size_t i = 0; i < sizeof kNames / sizeof *kNames; i++) {
        if (strcmp(kind, kNames[i].kind) == 0)
            return &kNames[i];
    }
    return NULL;
}

tsr_mx_scheme scheme_of_names(const mx_names *names)
{
    tsr_mx_scheme scheme = tsr_mx_scheme_of(names->format, names->modelopt);
    if (names->rule >= 0)
        scheme.rule = (tsr_mx_rule)names->rule;
    return scheme;
}

tsr_status get_scratch(const tensor_set *set, size_t bytes, void **scratch, tsr_err *err)
{
    *scratch = tsr_arena_alloc(set->arena, bytes);
    return *scratch != NULL ? TSR_OK : tsr_fail(err, TSR_E_NOMEM, "no memory");
}

/* Returns true if the input was rejected. Other errors are limits of this check. */
static bool is_refusal(tsr_status status)
{
    return status == TSR_E_VALUE || status == TSR_E_SHAPE;
}

static tsr_status check_with(const format_case *c, const tsr_cpu_kernels *k, const tensor_set *in,
                             const tensor_set *expected, tsr_arena *arena, tsr_err *err)
{
    tensor_set out = {.arena = arena};
    const tsr_status status = find_op(c->op)(k, c->kind, in, expected, &out, err);
    if (c->refused)
        return is_refusal(status) ? TSR_OK
                                  : tsr_fail(err, TSR_E_MISMATCH, "it has to be refused, and was %s",
                                             status == TSR_OK ? "made" : "not understood");
    return status == TSR_OK ? compare_sets(&out, expected, c->rules, err) : status;
}

tsr_status check_format_case(const format_case *c, tsr_arena *arena, tsr_err *err)
{
    static const unsigned kSets[] = {0, TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512, TSR_CPU_ALL};
    tensor_set in = {.arena = arena}, expected = {.arena = arena};
    if (c->kind == NULL)
        return tsr_fail(err, TSR_E_FORMAT, "the manifest states no kind");
    if (read_set(c->dir, c->input, &in, err) != TSR_OK)
        return tsr_prepend(err, TSR_E_FORMAT, "the input");
    if (!c->refused && read_set(c->dir, c->expected, &expected, err) != TSR_OK)
        return tsr_prepend(err, TSR_E_FORMAT, "what is expected");
    for (size_t i = 0; i < sizeof kSets / sizeof *kSets; i++) {
        if ((kSets[i] & tsr_cpu_flags()) != kSets[i])
            continue;
        tsr_cpu_kernels kernels;
        tsr_cpu_kernels_init(&kernels, kSets[i]);
        const tsr_status status = check_with(c, &kernels, &in, &expected, arena, err);
        if (status != TSR_OK)
            return tsr_prepend(err, status, "%s", tsr_cpu_name(kSets[i]));
    }
    return TSR_OK;
}
