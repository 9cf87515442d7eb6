/* The int kernels, the definition. */
#define TSR_INT(name) tsr_##name##_ref
#include "kernels/cpu/int_quant_body.h"

enum { CHUNK = 4096 };

/* Ties away from zero, exactly: adding one half would round. */
static inline float round_away(float x)
{
    const float whole = truncf(x);
    return fabsf(x - whole) >= 0.5f ? whole + copysignf(1.0f, x) : whole;
}

static inline float code_of(float t, const tsr_int_code *code)
{
    const float clamped = t < code->low ? code->low : t > code->high ? code->high : t;
    return code->away ? round_away(clamped) : rintf(clamped);
}

typedef struct lanes {
    float q2[LANES], e2[LANES], qv[LANES], max_e[LANES];
    uint32_t max_at[LANES], nonzero[LANES], flushed[LANES], saturated[LANES];
} lanes;

static inline void one(const float *x, size_t i, unsigned lane, const tsr_int_code *code, float boost, float inverse,
                       int8_t *codes, lanes *l)
{
    const float q = x[i] * boost * inverse, t = x[i] / code->scale + code->zero;
    const float r = code_of(t, code), v = r - code->zero, e = q - v, size = fabsf(e);
    codes[i] = (int8_t)r;
    l->q2[lane] += q * q;
    l->e2[lane] += e * e;
    l->qv[lane] += q * v;
    l->max_at[lane] = size > l->max_e[lane] ? (uint32_t)i : l->max_at[lane];
    l->max_e[lane] = size > l->max_e[lane] ? size : l->max_e[lane];
    l->nonzero[lane] += x[i] != 0;
    l->flushed[lane] += (x[i] != 0) & (v == 0);
    l->saturated[lane] += (t > code->high + 0.5f) | (t < code->low - 0.5f);
}

static void chunk(const float *x, size_t n, const tsr_int_code *code, int8_t *codes, lanes *l)
{
    const float boost = TSR_INT_BOOST(code->scale), inverse = 1 / (code->scale * boost);
    memset(l, 0, sizeof *l);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (unsigned lane = 0; lane < LANES; lane++)
            one(x, i + lane, lane, code, boost, inverse, codes, l);
    }
    for (unsigned lane = 0; i < n; i++, lane++)
        one(x, i, lane, code, boost, inverse, codes, l);
}

static double tree_sum(const float x[LANES])
{
    double sums[LANES / 2];
    for (unsigned l = 0; l < LANES / 2; l++)
        sums[l] = (double)x[l] + (double)x[l + LANES / 2];
    for (unsigned width = LANES / 4; width > 0; width /= 2) {
        for (unsigned l = 0; l < width; l++)
            sums[l] += sums[l + width];
    }
    return sums[0];
}

void tsr_quantize_int_ref(const float *x, size_t n, const tsr_int_code *code, int8_t *codes, tsr_int_error *error)
{
    *error = (tsr_int_error){0};
    for (size_t first = 0; first < n; first += CHUNK) {
        lanes l;
        chunk(x + first, n - first < CHUNK ? n - first : CHUNK, code, codes + first, &l);
        error->sum_q2 += tree_sum(l.q2);
        error->sum_e2 += tree_sum(l.e2);
        error->sum_qv += tree_sum(l.qv);
        for (unsigned lane = 0; lane < LANES; lane++) {
            error->nonzero += l.nonzero[lane];
            error->flushed += l.flushed[lane];
            error->saturated += l.saturated[lane];
            const size_t at = first + l.max_at[lane];
            if (l.max_e[lane] > error->max_e || (l.max_e[lane] == error->max_e && at < error->max_at)) {
                error->max_e = l.max_e[lane];
                error->max_at = at;
            }
        }
    }
}
