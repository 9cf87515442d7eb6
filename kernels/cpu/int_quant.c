/* The int kernels, the definition. */
#define TSR_INT(name) tsr_##name##_ref
#include "common/float_bits.h"
#include "kernels/cpu/int_quant_body.h"
#include "kernels/cpu/tree_sum.h"

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

typedef struct lanes {
    float q2[LANES], e2[LANES], qv[LANES], max_e[LANES];
    uint32_t max_at[LANES], nonzero[LANES], flushed[LANES], saturated[LANES];
} lanes;

static inline void one(float x, size_t i, const tsr_int_code *code, float boost, float inverse, int8_t r, lanes *l)
{
    const unsigned lane = i % LANES;
    const float q = x * boost * inverse, t = q + code->zero, v = (float)r - code->zero, e = q - v, size = fabsf(e);
    l->q2[lane] += q * q;
    l->e2[lane] += e * e;
    l->qv[lane] += q * v;
    l->max_at[lane] = size > l->max_e[lane] ? (uint32_t)i : l->max_at[lane];
    l->max_e[lane] = size > l->max_e[lane] ? size : l->max_e[lane];
    l->nonzero[lane] += x != 0;
    l->flushed[lane] += (x != 0) & (v == 0);
    l->saturated[lane] += (t > code->high + 0.5f) | (t < code->low - 0.5f);
}

/* Adds one block's lanes; it begins at element `first`. */
static void add_lanes(const lanes *l, size_t first, tsr_int_error *error)
{
    error->sum_q2 += tsr_tree_sum(l->q2);
    error->sum_e2 += tsr_tree_sum(l->e2);
    error->sum_qv += tsr_tree_sum(l->qv);
    for (unsigned lane = 0; lane < LANES; lane++) {
        error->nonzero += l->nonzero[lane];
        error->flushed += l->flushed[lane];
        error->saturated += l->saturated[lane];
        const size_t at = first + l->max_at[lane];
        if (l->max_e[lane] > error->max_e || (l->max_e[lane] == error->max_e && at < error->max_at)) {
            error->max_e = l->max_e[lane];
            error->max_at = at;
        }
    }
}

/* Exactly one of bf16 and f32 is there. */
static void measure(const uint16_t *bf16, const float *f32, size_t n, const tsr_int_code *code, const int8_t *codes,
                    tsr_int_error *error)
{
    const float boost = TSR_INT_BOOST(code->scale), inverse = 1 / (code->scale * boost);
    *error = (tsr_int_error){0};
    for (size_t first = 0; first < n; first += CHUNK) {
        const size_t count = n - first < CHUNK ? n - first : CHUNK;
        lanes l;
        memset(&l, 0, sizeof l);
        for (size_t i = 0; i < count; i++)
            one(f32 != NULL ? f32[first + i] : tsr_f32_from_bf16(bf16[first + i]), i, code, boost, inverse,
                codes[first + i], &l);
        add_lanes(&l, first, error);
    }
}

void tsr_error_int_bf16_ref(const uint16_t *x, size_t n, const tsr_int_code *code, const int8_t *codes,
                            tsr_int_error *error)
{
    measure(x, NULL, n, code, codes, error);
}

void tsr_error_int_f32_ref(const float *x, size_t n, const tsr_int_code *code, const int8_t *codes,
                           tsr_int_error *error)
{
    measure(NULL, x, n, code, codes, error);
}
