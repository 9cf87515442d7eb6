/* Searches for the best scales with NEON, 4 groups at a time. */
#include <arm_neon.h>

enum { LANES = 4 };
typedef float32x4_t vf;
#define TSR_BEST(name)    tsr_##name##_neon
#define f_set1(x)         vdupq_n_f32(x)
#define f_gather(p, i)    ((vf){(p)[(i)[0]], (p)[(i)[1]], (p)[(i)[2]], (p)[(i)[3]]})
#define f_min(a, b)       vminq_f32(a, b)
#define f_max(a, b)       vmaxq_f32(a, b)
#define f_fmadd(a, b, c)  vfmaq_f32(c, a, b)
#define f_fnmadd(a, b, c) vfmsq_f32(c, a, b)
#define f_at_most(a, b)   ((vi)vcleq_f32(a, b))
#define v_any(x)          (vmaxvq_u32((uint32x4_t)(x)) != 0)
#include "kernels/cpu/best_groups_body.h"

#define f_load(p)     vld1q_f32(p)
#define f_store(p, x) vst1q_f32(p, x)
#define f_mul(a, b)   vmulq_f32(a, b)
#define f_add(a, b)   vaddq_f32(a, b)
#define f_sub(a, b)   vsubq_f32(a, b)
#define f_div(a, b)   vdivq_f32(a, b)
#define f_round(x)    vrndnq_f32(x)
#define f_size(x)     vabsq_f32(x)
#define f_sum(x)      vaddvq_f32(x)
#define f_largest(x)  vmaxvq_f32(x)

static inline unsigned f_less(vf a, vf b)
{
    return vaddvq_u32(vandq_u32(vcltq_f32(a, b), (uint32x4_t){1, 2, 4, 8}));
}

/* Stores the lanes of x that a mask has, and others behind them. */
static inline void f_keep(float *to, vf x, unsigned mask)
{
    /* The lanes of each mask, from the lowest, in 2 bits each. */
    static const uint8_t kLanes[16] = {0x00, 0x00, 0x01, 0x04, 0x02, 0x08, 0x09, 0x24,
                                       0x03, 0x0C, 0x0D, 0x34, 0x0E, 0x38, 0x39, 0xE4};
    const uint32x4_t lanes = vshlq_u32(vdupq_n_u32(kLanes[mask]), (int32x4_t){0, -2, -4, -6}) & vdupq_n_u32(3);
    const uint8x16_t bytes = vreinterpretq_u8_u32(lanes * 0x04040404 + 0x03020100);
    vst1q_f32(to, vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(x), bytes)));
}

enum { HALVES = 2 };
typedef float64x2_t vd;
#define d_set1(x)        vdupq_n_f64(x)
#define d_sum(x)         vaddvq_f64(x)
#define f_widen(x, half) ((half) == 0 ? vcvt_f64_f32(vget_low_f32(x)) : vcvt_high_f64_f32(x))
#include "kernels/cpu/best_int4_body.h"

#define f_e4m3(q) rounded_to_code(q, true)
#include "kernels/cpu/best_fp8_body.h"
