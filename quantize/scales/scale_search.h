/* The ways to choose the scale of a group or block (--scales). */
#ifndef TSR_QUANTIZE_SCALES_SCALE_SEARCH_H
#define TSR_QUANTIZE_SCALES_SCALE_SEARCH_H

typedef enum tsr_scale_search {
    TSR_SCALES_AMAX, /* from the largest magnitude */
    TSR_SCALES_MSE,  /* the least squared error among some scales near that one: slower, never worse */
    TSR_SCALES_BEST, /* the least squared error of all scales that the format can store (kernels/cpu/best_scale.h) */
} tsr_scale_search;

/* Returns "amax", "mse" or "best". */
static inline const char *tsr_scale_search_name(tsr_scale_search search)
{
    return search == TSR_SCALES_AMAX ? "amax" : search == TSR_SCALES_MSE ? "mse" : "best";
}

#endif
