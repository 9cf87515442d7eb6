/* Implements the weight layouts: consumers, permutations, shape rules and the address formula. */
#include "kernels/cpu/ft_layout.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* kRows[t]: the row of a group that is stored t-th in a column. One lane of an mma gets 128/bits/4 consecutive rows. */
static const uint8_t kRowsInt8[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
static const uint8_t kRowsInt4[32] = {0, 1, 8,  9,  16, 17, 24, 25, 2, 3, 10, 11, 18, 19, 26, 27,
                                      4, 5, 12, 13, 20, 21, 28, 29, 6, 7, 14, 15, 22, 23, 30, 31};
static const uint8_t kRowsAfp8[32] = {0, 1, 2,  3,  16, 17, 18, 19, 4,  5,  6,  7,  20, 21, 22, 23,
                                      8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31};

/* kWord[j]: the element of a word in its slot j, the lowest bits first. */
static const uint8_t kWordInt8[4] = {0, 2, 1, 3};
static const uint8_t kWordInt4[8] = {0, 2, 4, 6, 1, 3, 5, 7};

static const char *const kLayoutNames[TSR_FT_LAYOUTS] = {
    [TSR_FT_R] = "R", [TSR_FT_CM] = "CM",         [TSR_FT_P] = "P",           [TSR_FT_H] = "H",
    [TSR_FT_T] = "T", [TSR_FT_H_AFP8] = "H_AFP8", [TSR_FT_T_AFP8] = "T_AFP8",
};

static const struct {
    const char *name;
    tsr_ft_producer producer;
} kNames[] = {
    /* The first name of a producer is the displayed one. */
    {"ft", TSR_FT_FASTERTRANSFORMER},    {"trtllm-0.5", TSR_FT_TRTLLM_0_5},      {"trtllm-0.6", TSR_FT_TRTLLM_0_5},
    {"trtllm-0.7", TSR_FT_TRTLLM_0_7},   {"trtllm-0.8", TSR_FT_TRTLLM_0_7},      {"trtllm-0.9", TSR_FT_TRTLLM_0_9},
    {"trtllm-0.10", TSR_FT_TRTLLM_0_10}, {"trtllm-66ef1df", TSR_FT_TRTLLM_0_10}, {"trtllm-main", TSR_FT_TRTLLM_MAIN},
    {"trtllm-py", TSR_FT_TRTLLM_PY},
};

enum { SM_ANY = INT_MAX };

/* Targets of a rule. */
typedef enum rule_when { ALWAYS, FORCED, DENSE, EXPERTS } rule_when;

/* The first matching rule determines the layout. */
static const struct {
    tsr_ft_producer producer;
    int arch_from, arch_to;
    bool fp8_activations;
    rule_when when;
    tsr_ft_layout layout;
} kRules[] = {
    {TSR_FT_FASTERTRANSFORMER, 70, 74, false, ALWAYS, TSR_FT_R},
    {TSR_FT_FASTERTRANSFORMER, 75, 89, false, ALWAYS, TSR_FT_T},

    {TSR_FT_TRTLLM_0_5, 70, 74, false, ALWAYS, TSR_FT_R},
    {TSR_FT_TRTLLM_0_5, 75, 90, false, ALWAYS, TSR_FT_T},

    {TSR_FT_TRTLLM_0_7, 70, 74, false, ALWAYS, TSR_FT_CM},
    {TSR_FT_TRTLLM_0_7, 75, 90, false, ALWAYS, TSR_FT_T},

    {TSR_FT_TRTLLM_0_9, 70, 74, false, ALWAYS, TSR_FT_CM},
    {TSR_FT_TRTLLM_0_9, 75, 89, false, ALWAYS, TSR_FT_T},
    {TSR_FT_TRTLLM_0_9, 90, 90, false, FORCED, TSR_FT_T},
    {TSR_FT_TRTLLM_0_9, 90, 90, false, ALWAYS, TSR_FT_P},

    {TSR_FT_TRTLLM_0_10, 70, 74, false, ALWAYS, TSR_FT_CM},
    {TSR_FT_TRTLLM_0_10, 75, 89, false, ALWAYS, TSR_FT_T},
    {TSR_FT_TRTLLM_0_10, 90, 90, false, FORCED, TSR_FT_T},
    {TSR_FT_TRTLLM_0_10, 90, 90, false, ALWAYS, TSR_FT_P},
    {TSR_FT_TRTLLM_0_10, 70, 74, true, ALWAYS, TSR_FT_CM},
    {TSR_FT_TRTLLM_0_10, 75, 89, true, ALWAYS, TSR_FT_T_AFP8},
    {TSR_FT_TRTLLM_0_10, 90, 90, true, FORCED, TSR_FT_T_AFP8},
    {TSR_FT_TRTLLM_0_10, 90, 90, true, ALWAYS, TSR_FT_P},

    {TSR_FT_TRTLLM_MAIN, 75, 89, false, ALWAYS, TSR_FT_T},
    {TSR_FT_TRTLLM_MAIN, 90, 90, false, FORCED, TSR_FT_T},
    {TSR_FT_TRTLLM_MAIN, 90, 90, false, ALWAYS, TSR_FT_H},
    {TSR_FT_TRTLLM_MAIN, 100, SM_ANY, false, ALWAYS, TSR_FT_T},
    {TSR_FT_TRTLLM_MAIN, 75, 89, true, ALWAYS, TSR_FT_T_AFP8},
    {TSR_FT_TRTLLM_MAIN, 90, 90, true, FORCED, TSR_FT_T_AFP8},
    {TSR_FT_TRTLLM_MAIN, 90, 90, true, ALWAYS, TSR_FT_H_AFP8},
    {TSR_FT_TRTLLM_MAIN, 100, SM_ANY, true, ALWAYS, TSR_FT_T_AFP8},

    {TSR_FT_TRTLLM_PY, 75, 89, false, ALWAYS, TSR_FT_T},
    {TSR_FT_TRTLLM_PY, 90, 90, false, EXPERTS, TSR_FT_T},
    {TSR_FT_TRTLLM_PY, 90, 90, false, DENSE, TSR_FT_H},
    {TSR_FT_TRTLLM_PY, 100, 100, false, EXPERTS, TSR_FT_T},
    {TSR_FT_TRTLLM_PY, 100, 100, false, DENSE, TSR_FT_P},
    {TSR_FT_TRTLLM_PY, 103, 103, false, EXPERTS, TSR_FT_T},
    {TSR_FT_TRTLLM_PY, 103, 103, false, DENSE, TSR_FT_P},
    {TSR_FT_TRTLLM_PY, 120, SM_ANY, false, ALWAYS, TSR_FT_T},
};

/* A patch level (".1") or a suffix ("-dev") may follow a version. */
static bool names_version(const char *name, const char *version)
{
    const size_t length = strlen(version);
    if (strncmp(name, version, length) != 0) {
        return false;
    }
    const char *const rest = name + length;
    return *rest == '\0' || (isdigit((unsigned char)rest[-1]) && (*rest == '.' || *rest == '-'));
}

tsr_status tsr_ft_producer_parse(const char *name, tsr_ft_producer *producer, tsr_err *err)
{
    for (size_t i = 0; i < sizeof kNames / sizeof *kNames; i++) {
        if (names_version(name, kNames[i].name)) {
            *producer = kNames[i].producer;
            return TSR_OK;
        }
    }
    return tsr_fail(err, TSR_E_UNSUPPORTED,
                    "unknown producer '%s'; known: ft, trtllm-0.5 to trtllm-0.10, trtllm-main, trtllm-py", name);
}

const char *tsr_ft_producer_name(tsr_ft_producer producer)
{
    for (size_t i = 0; i < sizeof kNames / sizeof *kNames; i++) {
        if (kNames[i].producer == producer) {
            return kNames[i].name;
        }
    }
    return "?";
}

const char *tsr_ft_layout_name(tsr_ft_layout layout)
{
    return kLayoutNames[layout];
}

static bool has_force_interleave(tsr_ft_producer producer)
{
    return producer == TSR_FT_TRTLLM_0_9 || producer == TSR_FT_TRTLLM_0_10 || producer == TSR_FT_TRTLLM_MAIN;
}

static bool holds(rule_when when, const tsr_ft_target *target)
{
    return when == ALWAYS || (when == FORCED && target->force_interleave) ||
           (when == DENSE && !target->mixture_of_experts) || (when == EXPERTS && target->mixture_of_experts);
}

static tsr_status layout_of(const tsr_ft_target *target, tsr_ft_layout *layout, tsr_err *err)
{
    const char *const who = tsr_ft_producer_name(target->producer);
    if (target->bits != 8 && target->bits != 4) {
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%d-bit weights: layouts exist for 8 and 4 bits only", target->bits);
    }
    if (target->fp8_activations && target->bits != 4) {
        return tsr_fail(err, TSR_E_UNSUPPORTED, "FP8 activations need 4-bit weights, not %d-bit ones", target->bits);
    }
    if (target->force_interleave && !has_force_interleave(target->producer)) {
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s has no force_interleave, which TensorRT-LLM 0.9 introduced", who);
    }
    tsr_err known = {0};
    for (size_t i = 0; i < sizeof kRules / sizeof *kRules; i++) {
        const size_t used = strlen(known.msg), room = sizeof known.msg - used;
        if (kRules[i].producer != target->producer || kRules[i].fp8_activations != target->fp8_activations ||
            !holds(kRules[i].when, target)) {
            continue;
        }
        if (kRules[i].arch_from <= target->arch && target->arch <= kRules[i].arch_to) {
            *layout = kRules[i].layout;
            return TSR_OK;
        }
        if (kRules[i].arch_to == kRules[i].arch_from) {
            snprintf(known.msg + used, room, " sm%d", kRules[i].arch_from);
        } else if (kRules[i].arch_to == SM_ANY) {
            snprintf(known.msg + used, room, " sm%d+", kRules[i].arch_from);
        } else {
            snprintf(known.msg + used, room, " sm%d-%d", kRules[i].arch_from, kRules[i].arch_to);
        }
    }
    const char *const activations = target->fp8_activations ? " with FP8 activations" : "";
    if (known.msg[0] == '\0') {
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s has no layout%s", who, activations);
    }
    return tsr_fail(err, TSR_E_UNSUPPORTED, "%s has no layout for sm%d%s; supported:%s", who, target->arch, activations,
                    known.msg);
}

/* Shape rules as the consumers enforce them, or should enforce them (see tsr_ft_format_check). */
static void shape_rules(tsr_ft_format *f, tsr_ft_producer producer)
{
    const bool int8 = f->bits == 8;
    switch (f->layout) {
    case TSR_FT_R:
        f->k_multiple = 1;
        f->n_multiple = int8 ? 1 : 2;
        break;
    case TSR_FT_T:
        f->k_multiple = 64;
        /* Before 0.7 the column check used the row count of a tile. */
        f->n_multiple = int8 && producer != TSR_FT_FASTERTRANSFORMER && producer != TSR_FT_TRTLLM_0_5 ? 32 : 64;
        break;
    case TSR_FT_T_AFP8:
        f->k_multiple = 128;
        f->n_multiple = 64;
        break;
    default:
        f->k_multiple = int8 ? 32 : 64;
        f->n_multiple = int8 ? 32 : 64;
    }
}

tsr_status tsr_ft_format_of(const tsr_ft_target *target, tsr_ft_format *format, tsr_err *err)
{
    tsr_ft_format f = {.bits = target->bits, .group = 128 / target->bits, .columns = 1};
    TSR_TRY(layout_of(target, &f.layout, err));
    const bool int8 = f.bits == 8, plain = f.layout == TSR_FT_P;
    const bool afp8 = f.layout == TSR_FT_T_AFP8 || f.layout == TSR_FT_H_AFP8;
    f.row_major = f.layout == TSR_FT_R;
    f.bias = (uint8_t)(plain ? 0 : int8 ? 0x80 : 0x08);
    if (f.layout == TSR_FT_T) {
        f.tile = 64;
        f.columns = 16 / f.bits;
    } else if (f.layout == TSR_FT_T_AFP8) {
        f.tile = 128;
        f.columns = 2;
    }
    shape_rules(&f, target->producer);
    const uint8_t *rows = NULL;
    if (afp8) {
        rows = kRowsAfp8;
    } else if (f.layout == TSR_FT_T || f.layout == TSR_FT_H) {
        rows = int8 ? kRowsInt8 : kRowsInt4;
    }
    const uint8_t *const word = int8 ? kWordInt8 : kWordInt4;
    const int slots = 32 / f.bits;
    for (int p = 0; p < f.group; p++) {
        const int t = plain ? p : p / slots * slots + word[p % slots];
        f.order[p] = (uint8_t)(rows == NULL ? t : rows[t]);
        f.place[f.order[p]] = (uint8_t)p;
    }
    *format = f;
    return TSR_OK;
}

static tsr_status refuse(const tsr_ft_format *f, char dimension, int64_t size, int64_t multiple, tsr_err *err)
{
    const int64_t below = size / multiple * multiple;
    char nearest[64];
    if (below > 0) {
        snprintf(nearest, sizeof nearest, "%lld and %lld", (long long)below, (long long)(below + multiple));
    } else {
        snprintf(nearest, sizeof nearest, "%lld", (long long)multiple);
    }
    return tsr_fail(err, TSR_E_SHAPE, "%c = %lld: layout %s of int%d needs a multiple of %lld; nearest: %s", dimension,
                    (long long)size, kLayoutNames[f->layout], f->bits, (long long)multiple, nearest);
}

tsr_status tsr_ft_format_check(const tsr_ft_format *f, int64_t k, int64_t n, tsr_err *err)
{
    enum { MOST = INT32_MAX }; /* largest K or N, because readers use int */
    if (k <= 0 || n <= 0 || k > MOST || n > MOST) {
        return tsr_fail(err, TSR_E_SHAPE, "K = %lld, N = %lld: both must be in 1..%d", (long long)k, (long long)n,
                        MOST);
    }
    if (k % f->k_multiple != 0) {
        return refuse(f, 'K', k, f->k_multiple, err);
    }
    if (n % f->n_multiple != 0) {
        return refuse(f, 'N', n, f->n_multiple, err);
    }
    /* Layout R: words may span rows, but the last one must be full. */
    const int64_t slots = 32 / f->bits;
    if (k * n % slots != 0) {
        int64_t step = 1;
        while (k * step % slots != 0) {
            step *= 2;
        }
        return refuse(f, 'N', n, step, err);
    }
    return TSR_OK;
}

tsr_ft_place tsr_ft_place_of(const tsr_ft_format *f, size_t rows, size_t cols, size_t k, size_t n)
{
    const size_t group = (size_t)f->group, turns = (size_t)f->columns, tile = f->tile == 0 ? rows : (size_t)f->tile;
    size_t position;
    if (f->row_major) {
        const size_t e = k * cols + n;
        position = e / group * group + f->place[e % group];
    } else {
        position = n / turns * turns * rows + k / tile * turns * tile + n % turns * tile + k % tile / group * group +
                   f->place[k % group];
    }
    return f->bits == 8 ? (tsr_ft_place){position, 0} : (tsr_ft_place){position / 2, position % 2};
}

tsr_ft_element tsr_ft_element_at(const tsr_ft_format *f, size_t rows, size_t cols, tsr_ft_place place)
{
    const size_t group = (size_t)f->group, turns = (size_t)f->columns, tile = f->tile == 0 ? rows : (size_t)f->tile;
    const size_t position = f->bits == 8 ? place.byte : 2 * place.byte + place.nibble;
    const size_t e =
        position / group * group + f->order[position % group]; /* rows of the group in their natural order */
    if (f->row_major) {
        return (tsr_ft_element){e / cols, e % cols};
    }
    const size_t band = e / (turns * rows), in_band = e % (turns * rows);
    const size_t line = in_band / (turns * tile), in_line = in_band % (turns * tile);
    return (tsr_ft_element){line * tile + in_line % tile, band * turns + in_line / tile};
}
