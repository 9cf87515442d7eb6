/* Exact sums of tiles, and the bounds of each way of accumulating. */
#include "verify/kernels/gemm_oracle.h"

#include "common/checked.h"
#include "formats/checkpoint/dtype.h"
#include "verify/evidence/tensor_core_step.h"
#include "verify/values/lanes.h"
#include "verify/values/weight_reader.h"

#include <math.h>

enum { STEPS = TSR_GEMM_TILE / TSR_GEMM_STEP };

/* Sums over one step of 32 products. */
typedef struct step_sums {
    double sum, mass, largest;
} step_sums;

size_t tsr_padded(size_t k)
{
    return tsr_round_up(k, TSR_GEMM_TILE);
}

void tsr_gemm_decode(const uint8_t *codes, size_t rows, size_t k, double *out)
{
    const size_t padded = tsr_padded(k);
    for (size_t i = 0; i < rows; i++) {
        memset(out + i * padded + k, 0, (padded - k) * sizeof *out);
        tsr_decode(TSR_F8_E4M3, codes + i * k, k, out + i * padded);
    }
}

static ALWAYS_INLINE void sum_steps(const double *a, const double *w, step_sums *steps)
{
    for (size_t s = 0; s < STEPS; s++, a += TSR_GEMM_STEP, w += TSR_GEMM_STEP) {
        f64_lanes sum = {0}, mass = {0}, largest = {0};
        for (size_t x = 0; x < TSR_GEMM_STEP; x += LANES) {
            f64_lanes p;
            MULTIPLY(p, a + x, w + x);
            sum += p;
            p = (f64_lanes)((i64_lanes)p & INT64_MAX);
            mass += p;
            const i64_lanes larger = p > largest;
            largest = (f64_lanes)(((i64_lanes)p & larger) | ((i64_lanes)largest & ~larger));
        }
        steps[s] = (step_sums){0};
        for (size_t lane = 0; lane < LANES; lane++) {
            steps[s].sum += sum[lane];
            steps[s].mass += mass[lane];
            steps[s].largest = largest[lane] > steps[s].largest ? largest[lane] : steps[s].largest;
        }
    }
}

static ALWAYS_INLINE void dot(const double *a, const double *w, size_t n, double *total)
{
    f64_lanes sum = {0};
    for (size_t x = 0; x < n; x += LANES) {
        f64_lanes p;
        MULTIPLY(p, a + x, w + x);
        sum += p;
    }
    *total = 0;
    for (size_t lane = 0; lane < LANES; lane++)
        *total += sum[lane];
}

FOR_EVERY_ISA(sum_steps, (const double *a, const double *w, step_sums *steps), (a, w, steps))
FOR_EVERY_ISA(dot, (const double *a, const double *w, size_t n, double *total), (a, w, n, total))

static void add_step(tsr_exact *e, unsigned which, double largest, double scale)
{
    e->slack[which] += tsr_step_slack(largest) * scale;
    e->variance[which] += tsr_step_variance(tsr_step_quantum(largest) * scale);
}

static void add_tile(tsr_exact *e, const step_sums *steps, double scale)
{
    const double size = fabs(scale);
    double tile = 0, mass = 0;
    for (size_t s = 0; s < STEPS; s++) {
        add_step(e, 0, fmax(fabs(tile), steps[s].largest), size);
        add_step(e, 1, fmax(fabs(e->value + scale * tile), steps[s].largest * size), 1);
        tile += steps[s].sum;
        mass += steps[s].mass;
    }
    e->value += scale * tile;
    e->mass += size * mass;
    e->underflow += 0x1p-126 * (mass + 2);
}

void tsr_gemm_exact(const tsr_fp8_gemm_args *g, const double *a, const double *w, tsr_exact *exact, size_t ld)
{
    const size_t padded = tsr_padded(g->k), grid_k = tsr_ceil_div(g->k, g->block_k);
    for (size_t i = 0; i < g->m; i++) {
        for (size_t j = 0; j < g->n; j++) {
            tsr_exact *const e = &exact[i * ld + j];
            *e = (tsr_exact){0};
            for (size_t x = 0; x < padded; x += TSR_GEMM_TILE) {
                step_sums steps[STEPS];
                const size_t block = x / g->block_k;
                sum_steps_best(a + i * padded + x, w + j * padded + x, steps);
                add_tile(e, steps,
                         (double)g->scale_a[block * g->ld_scale_a + i] *
                             (double)g->scale_w[j / g->block_n * grid_k + block]);
            }
        }
    }
}

void tsr_product(const double *a, const double *w, size_t m, size_t n, size_t k, double *y, size_t ld)
{
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++)
            dot_best(a + i * k, w + j * k, k, &y[i * ld + j]);
    }
}

double tsr_half_step(tsr_out out, double x)
{
    static const struct {
        double least, half; /* the smallest normal number; half a step over its power of two */
    } kFormats[TSR_N_OUTS] = {{0x1p-126, 0x1p-8}, {0x1p-14, 0x1p-11}, {0x1p-126, 0x1p-24}};
    return tsr_binade(fmax(x, kFormats[out].least)) * kFormats[out].half;
}

static double tiles_of(size_t k)
{
    return (double)tsr_ceil_div(k, TSR_GEMM_TILE);
}

static double lost_below(const tsr_exact *e, tsr_accumulation accumulation, size_t k)
{
    const double dropped = (TSR_GEMM_STEP + 1) * 0x1p-113 * (double)STEPS * tiles_of(k);
    return e->underflow + (accumulation == TSR_ACCUMULATE_UNPROMOTED ? dropped : 0);
}

double tsr_gemm_bound(const tsr_exact *e, tsr_accumulation accumulation, tsr_out out, size_t k)
{
    double bound = ((double)TSR_GEMM_TILE + tiles_of(k) + 3) * 0x1p-24 * e->mass;
    if (accumulation != TSR_ACCUMULATE_FP32)
        bound = e->slack[accumulation == TSR_ACCUMULATE_UNPROMOTED] + 3 * (tiles_of(k) + 2) * 0x1p-24 * e->mass;
    bound += lost_below(e, accumulation, k);
    return bound + tsr_half_step(out, fabs(e->value) + bound);
}

double tsr_gemm_variance(const tsr_exact *e, tsr_accumulation accumulation, tsr_out out, size_t k)
{
    const double rounding = tsr_half_step(out, fabs(e->value)), step = 0x1p-24 * e->mass;
    const double lost = lost_below(e, accumulation, k);
    const double fp32 = ((double)TSR_GEMM_TILE + tiles_of(k) + 3) * step * step;
    return rounding * rounding / 3 + lost * lost +
           (accumulation == TSR_ACCUMULATE_FP32 ? fp32 : e->variance[accumulation == TSR_ACCUMULATE_UNPROMOTED]);
}

tsr_gemm_margin tsr_gemm_margin_of(const tsr_exact *parts, size_t ranks, size_t step, tsr_accumulation accumulation,
                                   tsr_out out, size_t k)
{
    tsr_gemm_margin m = {0};
    for (size_t r = 0; r < ranks; r++) {
        const tsr_exact *const e = &parts[r * step];
        const double bound = tsr_gemm_bound(e, accumulation, out, k);
        m.value += e->value;
        m.bound += bound;
        m.variance += tsr_gemm_variance(e, accumulation, out, k);
        m.reach += fabs(e->value) + bound;
        m.mass += e->mass;
        if (r > 0) {
            const double rounding = tsr_half_step(out, fabs(m.value));
            m.variance += rounding * rounding / 3;
        }
    }
    for (size_t r = 1; r < ranks; r++) {
        const double rounding = tsr_half_step(out, m.reach);
        m.bound += rounding;
        m.reach += rounding;
    }
    return m;
}

double tsr_gemm_slope(tsr_accumulation accumulation, size_t k)
{
    static const double kFp32 = 0x1p-18;
    const double steps = (double)STEPS * (accumulation == TSR_ACCUMULATE_PROMOTED ? 1.0 : tiles_of(k));
    return accumulation == TSR_ACCUMULATE_FP32 ? kFp32 : steps * 0x1p-14;
}

double tsr_weight_only_slope(bool one_by_one, size_t k)
{
    return one_by_one ? 0x1p-18 : 0x1p-16 + ((double)k / 16 + 64) * 0x1p-23;
}

bool tsr_may_overflow(tsr_out out, double reach, double mass)
{
    static const double kFirstInfinite[TSR_N_OUTS] = {0x1.FFp127, 65520, 0x1p128};
    return reach >= kFirstInfinite[out] || mass >= 0x1p127;
}
