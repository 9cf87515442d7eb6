/* Targets for every weight layout at every width, and an independent implementation of their address formulas: word,
 * and slot in the word. */
#pragma once

#include "kernels/cpu/ft_layout.h"

#include <criterion/criterion.h>

static const tsr_ft_target kFtFormats[] = {
    {.producer = TSR_FT_FASTERTRANSFORMER, .arch = 70, .bits = 8},
    {.producer = TSR_FT_FASTERTRANSFORMER, .arch = 70, .bits = 4},
    {.producer = TSR_FT_FASTERTRANSFORMER, .arch = 80, .bits = 8},
    {.producer = TSR_FT_FASTERTRANSFORMER, .arch = 80, .bits = 4},
    {.producer = TSR_FT_TRTLLM_0_7, .arch = 70, .bits = 8},
    {.producer = TSR_FT_TRTLLM_0_7, .arch = 70, .bits = 4},
    {.producer = TSR_FT_TRTLLM_0_7, .arch = 80, .bits = 8},
    {.producer = TSR_FT_TRTLLM_0_9, .arch = 90, .bits = 8},
    {.producer = TSR_FT_TRTLLM_0_9, .arch = 90, .bits = 4},
    {.producer = TSR_FT_TRTLLM_MAIN, .arch = 90, .bits = 8},
    {.producer = TSR_FT_TRTLLM_MAIN, .arch = 90, .bits = 4},
    {.producer = TSR_FT_TRTLLM_MAIN, .arch = 90, .bits = 4, .fp8_activations = true},
    {.producer = TSR_FT_TRTLLM_MAIN, .arch = 89, .bits = 4, .fp8_activations = true},
};
enum { N_FT_FORMATS = sizeof kFtFormats / sizeof *kFtFormats };

static inline tsr_ft_format ft_format(const tsr_ft_target *target)
{
    tsr_ft_format f;
    tsr_err err;
    cr_assert_eq(tsr_ft_format_of(target, &f, &err), TSR_OK, "%s", err.msg);
    return f;
}

typedef struct closed_form {
    size_t byte;
    unsigned nibble;
} closed_form;

static inline closed_form closed_form_of(tsr_ft_layout layout, int bits, size_t K, size_t N, size_t k, size_t n)
{
    const size_t L = 32 / (size_t)bits, G = 128 / (size_t)bits, C = 16 / (size_t)bits;
    const size_t e = layout == TSR_FT_R ? k * N + n : n * K + k, i = e % L;
    size_t word = e / L, slot = i / 2 + i % 2 * (L / 2);
    const size_t slot_mma = k % G / 8 + k % 2 * (L / 2);
    const size_t j = 4 * (k % 32 / 16) + k % 4, slot_afp8 = j / 2 + 4 * (j % 2);
    switch (layout) {
    case TSR_FT_P:
        slot = i;
        break;
    case TSR_FT_H:
        word = n * (K / L) + 4 * (k / G) + k % 8 / 2;
        slot = slot_mma;
        break;
    case TSR_FT_T:
        word = 32 * (n / C * (K / 64) + k / 64) + n % C * (64 / L) + 4 * (k % 64 / G) + k % 8 / 2;
        slot = slot_mma;
        break;
    case TSR_FT_H_AFP8:
        word = n * (K / 8) + 4 * (k / 32) + k % 16 / 4;
        slot = slot_afp8;
        break;
    case TSR_FT_T_AFP8:
        word = 32 * (n / 2 * (K / 128) + k / 128) + 16 * (n % 2) + 4 * (k % 128 / 32) + k % 16 / 4;
        slot = slot_afp8;
        break;
    default:
        break;
    }
    return bits == 8 ? (closed_form){4 * word + slot, 0} : (closed_form){4 * word + slot / 2, (unsigned)(slot % 2)};
}
