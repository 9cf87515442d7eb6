/* Rows, their last groups and the entry points, common to both variants of mx_error. The including file defines
 * TSR_MX_ERROR(name), which adds the suffix of its variant, TOGETHER, the number of groups per step, `lanes`, its
 * register type, and the functions that are declared here. */
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/variants.h"

#include <stdbool.h>
#include <string.h>

/* Positions and types of x and the codes. */
typedef struct row {
    const void *x;
    const uint8_t *codes;
    bool bf16, e4m3;
} row;

/* Measures TOGETHER groups, the first of which begins at column `at`, and stores the sums of the first n of them from
 * error->q2[g], e2[g] and qv[g] on. Raises the lanes of *largest to |e| * u. */
ALWAYS_INLINE void measure_groups(const row *r, size_t at, size_t group, const float *t, size_t g, size_t n,
                                  lanes *largest, tsr_mx_error *error);

static lanes no_error(void);
static float largest_of(lanes x);

/* Counts the nonzero elements among n, which are whole groups. */
ALWAYS_INLINE uint64_t count_elements(const row *r, size_t n);

/* Counts the codes whose value is not zero. */
static uint64_t count_codes(const uint8_t *codes, size_t bytes, bool e4m3);

/* Measures the last n groups, fewer than TOGETHER: copied and padded with zeros, so that nothing beyond the row is
 * read. */
ALWAYS_INLINE void measure_last(const row *r, size_t at, size_t group, const float *t, size_t g, size_t n,
                                lanes *largest, tsr_mx_error *error)
{
    const size_t width = r->bf16 ? sizeof(uint16_t) : sizeof(float), codes_in_byte = r->e4m3 ? 1 : 2;
    float x[TOGETHER * 32] = {0}, t_of[TOGETHER];
    uint8_t codes[TOGETHER * 32] = {0};
    memcpy(x, (const char *)r->x + at * width, n * group * width);
    memcpy(codes, r->codes + at / codes_in_byte, n * group / codes_in_byte);
    for (size_t i = 0; i < TOGETHER; i++)
        t_of[i] = i < n ? t[i] : 1;
    measure_groups(&(row){x, codes, r->bf16, r->e4m3}, 0, group, t_of, g, n, largest, error);
}

ALWAYS_INLINE void measure(row r, size_t n, size_t group, const float *t, tsr_mx_error *error)
{
    const size_t groups = n / group, whole = groups - groups % TOGETHER;
    lanes largest = no_error();
    for (size_t g = 0; g < whole; g += TOGETHER)
        measure_groups(&r, g * group, group, t + g, g, TOGETHER, &largest, error);
    if (whole < groups)
        measure_last(&r, whole * group, group, t + whole, whole, groups - whole, &largest, error);
    error->largest = largest_of(largest);
    error->nonzero = count_elements(&r, n);
    error->flushed = error->nonzero - count_codes(r.codes, r.e4m3 ? n : n / 2, r.e4m3);
}

void TSR_MX_ERROR(error_e2m1_bf16)(const uint16_t *x, size_t n, size_t group, const float *t, const uint8_t *packed,
                                   tsr_mx_error *error)
{
    if (group == 16)
        measure((row){x, packed, true, false}, n, 16, t, error);
    else
        measure((row){x, packed, true, false}, n, 32, t, error);
}

void TSR_MX_ERROR(error_e2m1_f32)(const float *x, size_t n, size_t group, const float *t, const uint8_t *packed,
                                  tsr_mx_error *error)
{
    if (group == 16)
        measure((row){x, packed, false, false}, n, 16, t, error);
    else
        measure((row){x, packed, false, false}, n, 32, t, error);
}

void TSR_MX_ERROR(error_mxfp8_bf16)(const uint16_t *x, size_t n, const float *t, const uint8_t *codes,
                                    tsr_mx_error *error)
{
    measure((row){x, codes, true, true}, n, 32, t, error);
}

void TSR_MX_ERROR(error_mxfp8_f32)(const float *x, size_t n, const float *t, const uint8_t *codes, tsr_mx_error *error)
{
    measure((row){x, codes, false, true}, n, 32, t, error);
}
