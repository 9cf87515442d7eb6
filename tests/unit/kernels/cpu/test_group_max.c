/* Tests the maxima of groups: every form against the scalar one, and the scalar one against double. */
#include "common/float_bits.h"
#include "kernels/cpu/cpu.h"

#include <criterion/criterion.h>
#include <math.h>

#include "tests/unit/random_bits.h"

enum { MOST = 70, ROWS = 5 };

typedef struct rows {
    float e2[ROWS][MOST], t[ROWS][MOST];
    uint32_t amax[ROWS][MOST];
} rows;

typedef struct tops {
    uint32_t error[MOST], scale[MOST], amax[MOST];
} tops;

static void fill(rows *r)
{
    static const float kOdd[] = {0, 0x1p-149f, 0x1p-127f, 0x1p127f};
    for (int i = 0; i < ROWS; i++) {
        for (int g = 0; g < MOST; g++) {
            const uint64_t bits = random_bits();
            const bool zeros = bits % 7 == 0;
            r->t[i][g] = bits % 11 == 0 ? kOdd[bits / 11 % 4]
                                        : ldexpf(1 + (float)(bits >> 40) * 0x1p-24f, (int)(bits % 40) - 30);
            r->e2[i][g] = zeros || bits % 13 == 0 ? 0 : (float)(bits >> 44) * 0x1p-16f;
            r->amax[i][g] = zeros ? 0 : (uint32_t)(bits >> 33);
        }
    }
}

static void raise_all(const tsr_cpu_kernels *k, const rows *r, size_t n, tops *to)
{
    *to = (tops){.error = {0}};
    for (int i = 0; i < ROWS; i++)
        k->raise_groups(r->e2[i], r->t[i], r->amax[i], n, &(tsr_group_max){to->error, to->scale, to->amax});
}

Test(group_max, every_form_finds_the_largest)
{
    static const unsigned kSets[] = {0, TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512, TSR_CPU_ALL};
    rows r;
    for (int turn = 0; turn < 50; turn++) {
        fill(&r);
        for (size_t n = 0; n <= MOST; n++) {
            tsr_cpu_kernels plain;
            tops want, got;
            tsr_cpu_kernels_init(&plain, 0);
            raise_all(&plain, &r, n, &want);
            for (size_t g = 0; g < n; g++) {
                double error = 0, scale = 0;
                for (int i = 0; i < ROWS; i++) {
                    const double t = (double)r.t[i][g], unit = t == 0 ? 0x1p-149 : t;
                    error = fmax(error, sqrt((double)r.e2[i][g]) * unit);
                    scale = fmax(scale, r.amax[i][g] == 0 ? 0 : t);
                }
                const double found = (double)tsr_f32_from_bits(want.error[g]);
                cr_assert(found > 0x1p128 || fabs(found - error) <= error * 1e-6 + 0x1p-149, "%a, %a", found, error);
                cr_assert_eq((double)tsr_f32_from_bits(want.scale[g]), scale);
            }
            for (size_t s = 1; s < sizeof kSets / sizeof *kSets; s++) {
                tsr_cpu_kernels k;
                if ((kSets[s] & tsr_cpu_flags()) != kSets[s])
                    continue;
                tsr_cpu_kernels_init(&k, kSets[s]);
                raise_all(&k, &r, n, &got);
                cr_assert(memcmp(&got, &want, sizeof got) == 0, "set %zu, %zu groups", s, n);
            }
        }
    }
}
