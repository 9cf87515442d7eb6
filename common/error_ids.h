/* The errors that docs/errors.md explains: an id for each, and the heading of its section. */
#pragma once

#define TSR_ERROR_IDS(X)                          \
    X(TRUNCATED, "truncated")                     \
    X(GIT_LFS, "git-lfs")                         \
    X(STALE_INDEX, "stale-index")                 \
    X(UNFINISHED, "unfinished")                   \
    X(ADAPTER, "adapter")                         \
    X(HUB_CACHE, "hub-cache")                     \
    X(ADDRESSES, "addresses")                     \
    X(OTHER_FORMATS, "other-formats")             \
    X(LINK_OUTSIDE, "link-outside")               \
    X(NO_CONFIGURATION, "no-configuration")       \
    X(QUANTIZED_ALREADY, "quantized-already")     \
    X(NO_SCALE, "no-scale")                       \
    X(SCALE_LEFT_OVER, "scale-left-over")         \
    X(UNREAD, "unread")                           \
    X(DAMAGED, "damaged")                         \
    X(NOTHING_TO_QUANTIZE, "nothing-to-quantize") \
    X(TAKEN, "taken")                             \
    X(OTHER_OPTIONS, "other-options")             \
    X(CHANGED_SOURCE, "changed-source")           \
    X(CHANGED_WHILE_READ, "changed-while-read")   \
    X(TWO_AT_ONCE, "two-at-once")                 \
    X(FOREIGN_FILES, "foreign-files")             \
    X(DISK_FULL, "disk-full")                     \
    X(MEMORY, "memory")                           \
    X(NO_GPU, "no-gpu")                           \
    X(GPU_MEMORY, "gpu-memory")                   \
    X(ACTIVATION_RANGES, "activation-ranges")

typedef enum tsr_error_id {
    TSR_ERROR_NONE, /* no section explains it */
#define X(id, heading) TSR_ERROR_##id,
    TSR_ERROR_IDS(X)
#undef X
} tsr_error_id;
