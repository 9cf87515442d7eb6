/* Implements tsr_matmul_tn as TSR_MATMUL_NAME, for each form to include. The compiler vectorizes the inner loop. */
#include "kernels/cpu/variants.h"

#include <string.h>

void TSR_MATMUL_NAME(const float *a, const float *b, size_t k, size_t m, size_t n, double *c)
{
    enum { COLS = 256 }; /* columns of c per step: 2 KiB, which stay in the first cache */
    memset(c, 0, m * n * sizeof *c);
    for (size_t j = 0; j < n; j += COLS) {
        const size_t cols = n - j < COLS ? n - j : COLS;
        for (size_t i = 0; i < m; i++) {
            double *const to = c + i * n + j;
            for (size_t l = 0; l < k; l++) {
                const double factor = (double)a[l * m + i];
                const float *const from = b + l * n + j;
                for (size_t x = 0; x < cols; x++)
                    to[x] += factor * (double)from[x];
            }
        }
    }
}
