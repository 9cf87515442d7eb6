/* Converts nibbles from one word order to another. */
#include "quantize/moves/int4_moves.h"

#include "common/checked.h"
#include "common/float_bits.h"

#include <math.h>

enum { PER_WORD = 8, MIDDLE = 8 };

static unsigned nibble(uint32_t word, unsigned at)
{
    return word >> 4 * at & 15;
}

/* Returns the nibble of an AWQ word that holds output p of its eight. */
static unsigned awq_place(unsigned p)
{
    return p / 2 + p % 2 * 4;
}

void tsr_awq_codes(const tsr_int4_shape *shape, const uint32_t *qweight, uint32_t *words)
{
    const uint64_t per_row = shape->outputs / PER_WORD, pitch = shape->inputs / PER_WORD;
    for (uint64_t j = 0; j < per_row; j++) {
        for (uint64_t i = 0; i < pitch; i++) {
            for (unsigned p = 0; p < PER_WORD; p++) {
                uint32_t word = 0;
                for (unsigned k = 0; k < PER_WORD; k++)
                    word |= nibble(qweight[(PER_WORD * i + k) * per_row + j], awq_place(p)) << 4 * k;
                words[(PER_WORD * j + p) * pitch + i] = word;
            }
        }
    }
}

/* Transposes [rows, cols] words to [cols, rows]. */
static void transpose(const uint32_t *from, uint64_t rows, uint64_t cols, uint32_t *to)
{
    for (uint64_t r = 0; r < rows; r++) {
        for (uint64_t c = 0; c < cols; c++)
            to[c * rows + r] = from[r * cols + c];
    }
}

void tsr_gptq_codes(const tsr_int4_shape *shape, const uint32_t *qweight, uint32_t *words)
{
    transpose(qweight, shape->inputs * shape->bits / 32, shape->outputs, words);
}

static bool all_in_the_middle(const uint32_t *words, uint64_t n, unsigned bits)
{
    const uint32_t middle = bits == 4 ? 0x88888888u : 0x80808080u;
    bool all = true;
    for (uint64_t i = 0; i < n; i++)
        all = all && words[i] == middle;
    return all;
}

void tsr_awq_zero_points(const tsr_int4_shape *shape, const uint32_t *qzeros, uint32_t *words, bool *symmetric)
{
    const uint64_t groups = shape->inputs / shape->group, per_row = shape->outputs / PER_WORD;
    for (uint64_t g = 0; g < groups; g++) {
        for (uint64_t j = 0; j < per_row; j++) {
            uint32_t word = 0;
            for (unsigned p = 0; p < PER_WORD; p++)
                word |= nibble(qzeros[g * per_row + j], awq_place(p)) << 4 * p;
            words[j * groups + g] = word;
        }
    }
    *symmetric = all_in_the_middle(words, groups * per_row, 4);
}

tsr_status tsr_gptq_zero_points(const tsr_int4_shape *shape, const tsr_tensor *tensor, uint64_t first,
                                const uint32_t *qzeros, unsigned less, uint32_t *words, bool *symmetric, tsr_err *err)
{
    const unsigned bits = shape->bits, per_word = 32 / bits, most = (1u << bits) - 1;
    const uint64_t groups = shape->inputs / shape->group, per_row = shape->outputs / per_word;
    for (uint64_t g = 0; g < groups; g++) {
        for (uint64_t j = 0; j < per_row; j++) {
            uint32_t word = 0;
            for (unsigned k = 0; k < per_word; k++) {
                const uint32_t zero = (qzeros[g * per_row + j] >> bits * k & most) + less;
                if (zero > most)
                    return tsr_fail_tensor(
                        err, TSR_ERROR_NONE, TSR_E_VALUE, tensor->name,
                        "the zero point of group %llu, output %llu is %u, which does not fit into %u "
                        "bits (--scales mse recomputes all codes)",
                        U64(g), U64(first + per_word * j + k), zero, bits);
                word |= zero << bits * k;
            }
            words[j * groups + g] = word;
        }
    }
    *symmetric = all_in_the_middle(words, groups * per_row, bits);
    return TSR_OK;
}

void tsr_int4_scales(const tsr_int4_shape *shape, const uint16_t *scales, uint16_t *out)
{
    const uint64_t groups = shape->inputs / shape->group;
    for (uint64_t g = 0; g < groups; g++) {
        for (uint64_t r = 0; r < shape->outputs; r++)
            out[r * groups + g] = scales[g * shape->outputs + r];
    }
}

/* Returns the stored code of one value; 16 if no code decodes to it. */
static uint32_t code_of(uint16_t value, float scale, int zero_point)
{
    const float x = tsr_f32_from_bf16(value), q = rintf(x / scale);
    if (!(q >= (float)-zero_point && q <= (float)(15 - zero_point)))
        return 16;
    const uint16_t again = tsr_bf16_from_f32(q * scale);
    return again == value || ((again | value) & 0x7FFF) == 0 ? (uint32_t)((int)q + zero_point) : 16;
}

tsr_status tsr_int4_restore_codes(const tsr_int4_restoring *rows, tsr_err *err)
{
    const uint64_t groups = tsr_ceil_div(rows->cols, rows->group), pitch = tsr_ceil_div(rows->cols, PER_WORD);
    for (uint64_t row = 0; row < rows->rows; row++) {
        const uint16_t *const values = rows->values + row * rows->cols;
        for (uint64_t i = 0; i < pitch; i++)
            rows->words[row * pitch + i] = 0;
        for (uint64_t col = 0; col < rows->cols; col++) {
            const uint64_t group = rows->order == NULL ? col / rows->group : rows->order[col];
            const float scale = rows->scales[row * groups + group];
            const int zero_point = rows->zero_points == NULL ? MIDDLE : rows->zero_points[row * groups + group];
            const uint32_t code = code_of(values[col], scale, zero_point);
            if (code > 15)
                return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_VALUE, rows->tensor->name,
                                       "the value at [%llu, %llu], %g, is not a code times its scale %g; it was not "
                                       "made with these scales",
                                       U64(rows->row + row), U64(col), (double)tsr_f32_from_bf16(values[col]),
                                       (double)scale);
            rows->words[row * pitch + col / PER_WORD] |= code << 4 * (col % PER_WORD);
        }
    }
    return TSR_OK;
}
