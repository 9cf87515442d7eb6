/* The ways to choose the scale of a group or block (--scales). */
#pragma once

typedef enum tsr_scale_search {
    TSR_SCALES_AMAX, /* from the largest magnitude */
    TSR_SCALES_MSE,  /* the least squared error among some scales near that one: slower, never worse */
    TSR_SCALES_BEST, /* the least squared error of all scales that the format can store (kernels/cpu/best_scale.h) */
    TSR_SCALES_FOUR_SIX, /* NVFP4: the better of two, for largest elements of 4 and 6 (quantize/scales/four_six.h) */
} tsr_scale_search;

/* Returns "amax", "mse", "best" or "four-six". */
static inline const char *tsr_scale_search_name(tsr_scale_search search)
{
    static const char *const kNames[] = {"amax", "mse", "best", "four-six"};
    return kNames[search];
}
