/* Allocates and frees the buffers of a thread that compares schemes. */
#include "convert/search/strip_buffers.h"

#include <stdlib.h>

/* Kernels may read and write a vector beyond the last element. */
enum { BEYOND = 64 };

uint64_t tsr_strip_bytes(const tsr_strip_sizes *sizes)
{
    return sizes->x + sizes->scratch + sizes->codes + sizes->scales * (sizeof(int8_t) + sizeof(float)) +
           sizes->cols * sizeof(float);
}

tsr_strip_buffers *tsr_strip_buffers_begin(const tsr_strip_sizes *sizes)
{
    tsr_strip_buffers *const b = malloc(sizeof *b);
    if (b == NULL)
        return NULL;
    *b = (tsr_strip_buffers){.x = malloc(sizes->x + BEYOND),
                             .scratch = malloc(sizes->scratch + BEYOND),
                             .codes = malloc(sizes->codes + BEYOND),
                             .zero_points = malloc(sizes->scales + BEYOND),
                             .scales = malloc((sizes->scales + BEYOND) * sizeof *b->scales),
                             .importance = malloc((sizes->cols + BEYOND) * sizeof *b->importance)};
    if (b->x != NULL && b->scratch != NULL && b->codes != NULL && b->zero_points != NULL && b->scales != NULL &&
        b->importance != NULL)
        return b;
    tsr_strip_buffers_end(b);
    return NULL;
}

void tsr_strip_buffers_end(void *buffers)
{
    tsr_strip_buffers *const b = buffers;
    if (b == NULL)
        return;
    free(b->x);
    free(b->scratch);
    free(b->codes);
    free(b->zero_points);
    free(b->scales);
    free(b->importance);
    free(b);
}
