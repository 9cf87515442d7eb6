/* Defines integer quantization. */
#define TSR_INT(name) tsr_##name##_ref
#include "common/float_bits.h"
#include "kernels/cpu/error_unit.h"
#include "kernels/cpu/int_quant_body.h"

enum { CHUNK = 4096 };

/* ---- codes ---- */

void tsr_encode_int_bf16_ref(const uint16_t *x, size_t cols, size_t group, const tsr_int_row *row, int8_t *codes)
{
    for (size_t i = 0; i < cols; i++) {
        const float exact = tsr_f32_from_bf16(x[i]) / row->scale[i / group];
        const float q = row->bf16 ? tsr_f32_from_bf16(tsr_bf16_from_f32(exact)) : exact;
        codes[i] = code_of(q + zero_of(row, i / group), row);
    }
}

void tsr_encode_int_f32_ref(const float *x, size_t cols, size_t group, const tsr_int_row *row, int8_t *codes)
{
    for (size_t i = 0; i < cols; i++)
        codes[i] = code_of(x[i] / row->scale[i / group] + zero_of(row, i / group), row);
}

/* ---- the error ---- */

enum { SUM_LANES = 16 };

typedef struct sums {
    float u2[SUM_LANES], e2[SUM_LANES], uv[SUM_LANES];
} sums;

typedef struct unit {
    float k, f, inverse;
} unit;

static unit unit_of(const tsr_int_code *code)
{
    const float k = tsr_error_boost(code->scale), f = code->scale * k;
    return (unit){k, f, 1 / f};
}

static float error_of(float x, int8_t r, const tsr_int_code *code, const unit *u)
{
    return fmaf(code->zero - (float)r, u->f, x * u->k);
}

static void one(float x, size_t i, const tsr_int_code *code, const unit *in, int8_t r, sums *s, tsr_int_error *error)
{
    const size_t lane = i / 8 % 4 * 4 + i % 4;
    const float u = x * in->k, t = u * in->inverse + code->zero, v = (float)r - code->zero;
    const float e = error_of(x, r, code, in);
    s->u2[lane] = fmaf(u, u, s->u2[lane]);
    s->e2[lane] = fmaf(e, e, s->e2[lane]);
    s->uv[lane] = fmaf(u, v, s->uv[lane]);
    error->max_e = fabsf(e) > error->max_e ? fabsf(e) : error->max_e;
    error->nonzero += x != 0;
    error->flushed += (x != 0) & (v == 0);
    error->saturated += (t > code->high + 0.5f) | (t < code->low - 0.5f);
}

static double tree_sum(const float lanes[SUM_LANES])
{
    double total[SUM_LANES / 2];
    for (unsigned l = 0; l < SUM_LANES / 2; l++)
        total[l] = (double)lanes[l] + (double)lanes[l + SUM_LANES / 2];
    for (unsigned width = SUM_LANES / 4; width > 0; width /= 2) {
        for (unsigned l = 0; l < width; l++)
            total[l] += total[l + width];
    }
    return total[0];
}

/* Measures a group. Exactly one of bf16 and f32 is not NULL. */
static void measure(const uint16_t *bf16, const float *f32, size_t n, const tsr_int_code *code, const int8_t *codes,
                    tsr_int_error *error)
{
    const unit in = unit_of(code);
    const double f = (double)in.f;
    *error = (tsr_int_error){0};
    for (size_t first = 0; first < n; first += CHUNK) {
        const size_t count = n - first < CHUNK ? n - first : CHUNK;
        sums s;
        memset(&s, 0, sizeof s);
        for (size_t i = 0; i < count; i++)
            one(f32 != NULL ? f32[first + i] : tsr_f32_from_bf16(bf16[first + i]), i, code, &in, codes[first + i], &s,
                error);
        error->sum_q2 += tree_sum(s.u2);
        error->sum_e2 += tree_sum(s.e2);
        error->sum_qv += tree_sum(s.uv);
    }
    error->sum_q2 /= f * f;
    error->sum_e2 /= f * f;
    error->sum_qv /= f;
    error->max_e /= in.f;
}

static tsr_int_code code_at(const tsr_int_row *row, size_t group)
{
    return (tsr_int_code){row->scale[group], zero_of(row, group), row->low, row->high};
}

void tsr_error_int_bf16_ref(const uint16_t *x, size_t cols, size_t group, const tsr_int_row *row, const int8_t *codes,
                            tsr_int_error *errors)
{
    for (size_t first = 0; first < cols; first += group, errors++) {
        const tsr_int_code code = code_at(row, first / group);
        measure(x + first, NULL, cols - first < group ? cols - first : group, &code, codes + first, errors);
    }
}

void tsr_error_int_f32_ref(const float *x, size_t cols, size_t group, const tsr_int_row *row, const int8_t *codes,
                           tsr_int_error *errors)
{
    for (size_t first = 0; first < cols; first += group, errors++) {
        const tsr_int_code code = code_at(row, first / group);
        measure(NULL, x + first, cols - first < group ? cols - first : group, &code, codes + first, errors);
    }
}

size_t tsr_int_error_at(const uint16_t *bf16, const float *f32, size_t n, const tsr_int_code *code, const int8_t *codes,
                        const tsr_int_error *error)
{
    const unit in = unit_of(code);
    for (size_t i = 0; i < n; i++) {
        const float x = bf16 != NULL ? tsr_f32_from_bf16(bf16[i]) : f32[i];
        if (fabsf(error_of(x, codes[i], code, &in)) / in.f == error->max_e)
            return i;
    }
    return 0;
}
