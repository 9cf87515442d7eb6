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

#define f_load(p)                 vld1q_f32(p)
#define f_store(p, x)             vst1q_f32(p, x)
#define f_mul(a, b)               vmulq_f32(a, b)
#define f_add(a, b)               vaddq_f32(a, b)
#define f_sub(a, b)               vsubq_f32(a, b)
#define f_round(x)                vrndnq_f32(x)
#define f_size(x)                 vabsq_f32(x)
#define f_sum(x)                  vaddvq_f32(x)
#define f_largest(x)              vmaxvq_f32(x)
#define f_where_negative(x, a, b) vbslq_f32(vcltzq_f32(x), a, b)
#include "kernels/cpu/best_int4_body.h"

#define f_div(a, b) vdivq_f32(a, b)
#define f_e4m3(q)   rounded_to_code(q, true)
#include "kernels/cpu/best_fp8_body.h"
