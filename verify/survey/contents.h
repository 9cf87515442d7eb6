/* Surveys a checkpoint: the contents of its files, the size of each part of the model, and what is quantized and how.
 *
 * Everything comes from headers, index and config.json, except for the statistics of scales, which read the scales but
 * no weight. Problems become issues, not errors. */
#pragma once

#include "common/block.h"
#include "formats/checkpoint/rank_file.h"
#include "formats/loaders/issues.h"
#include "formats/names/model.h"
#include "formats/weights/weights.h"

typedef struct tsr_tally {
    uint64_t tensors, elements, bytes;
} tsr_tally;

/* Scales are counted over the blocks of their weights, without the padding of a grid. Scales of NVFP4 are multiplied by
 * their global scale first. */
typedef struct tsr_scale_stats {
    uint64_t count;
    uint64_t zero, negative, nonfinite;
    uint64_t subnormal;      /* 0 < |s| < 2^-126 */
    uint64_t powers_of_two;  /* s = 2^k, positive */
    double min, median, max; /* over positive, finite scales; median: the lower one, with 12 bits of mantissa */
    const tsr_tensor *odd;   /* the first scale tensor with a value that is not a power of two; NULL: none */
    uint64_t odd_at;         /* index of that value */
    double odd_value;        /* */
    uint64_t n_odd;          /* such tensors */
    /* The first E8M0 scale tensor of small groups with a byte of 0 (2^-127) over codes that are not all zero, and the
     * index of that byte; NULL: none. */
    const tsr_tensor *zero_exponent;
    uint64_t zero_exponent_at;
} tsr_scale_stats;

typedef struct tsr_part_tally {
    uint64_t tensors, parameters, bytes;
    uint64_t quantized; /* parameters that are codes with a scale */
} tsr_part_tally;

typedef enum tsr_kind {
    TSR_KIND_E4M3,
    TSR_KIND_INT8,
    TSR_KIND_PACKED_INT8,
    TSR_KIND_PACKED_INT4,
    TSR_KIND_MXFP4,
    TSR_KIND_NVFP4,
    TSR_KIND_MXFP6,
    TSR_KIND_MXFP8,
    TSR_KIND_AWQ,
    TSR_KIND_GPTQ,
    TSR_KIND_COUNT
} tsr_kind;

/* The weights of one row of the table of kinds, with codes of this many bits. */
typedef struct tsr_kind_tally {
    const tsr_weight_kind *kind;
    unsigned bits;
    uint64_t weights, values;
    uint64_t bytes;  /* bytes of codes, scales and zero points */
    tsr_block block; /* block of the first weight; 0 x 0: one scale per row or matrix */
} tsr_kind_tally;

enum { TSR_MAX_KIND_TALLIES = 32 };

/* Returns the name: "e4m3", "int8", "packed int8", "packed int4", "MXFP4", "NVFP4", "MXFP6", "MXFP8", "AWQ", "GPTQ".
 * Static storage. */
const char *tsr_kind_name(tsr_kind kind);

typedef struct tsr_contents {
    tsr_model model;
    tsr_rank_file manifest; /* Tessera's file about a rank, or about interleaved weights */
    tsr_weights weights;    /* the weights that could be paired */
    tsr_tally whole, by_dtype[TSR_DTYPE_COUNT];
    uint64_t file_bytes;                        /* size of all safetensors files with headers */
    bool has_metadata;                          /* the index has the key "metadata" */
    bool has_total;                             /* with a total_size */
    uint64_t total_size;                        /* as stated in the index; right if it equals whole.bytes */
    uint64_t files_without_format;              /* files whose __metadata__ does not name a framework */
    tsr_part_tally parts[TSR_PART_COUNT], mtp;  /* MTP layers are only in `mtp`; scales are not parameters */
    tsr_tally unread;                           /* tensors that Tessera cannot interpret; not included in the parts */
    uint64_t weight_bytes, code_bytes;          /* bytes of all parameters, and of those that are codes */
    uint64_t coded[TSR_KIND_COUNT];             /* weights that are codes, by kind */
    tsr_kind_tally kinds[TSR_MAX_KIND_TALLIES]; /* in order of appearance */
    size_t n_kinds;
    tsr_tally scales[TSR_DTYPE_COUNT]; /* scale tensors by dtype */
    tsr_scale_stats scale_stats;
    tsr_issues issues;
    tsr_arena arena;
} tsr_contents;

/* Surveys a checkpoint, which is borrowed and must outlive the survey. `block` overrides config.json unless it is 0 x
 * 0. Fails only for read errors and lack of memory. */
tsr_status tsr_contents_find(tsr_contents *survey, const tsr_checkpoint *checkpoint, tsr_block block, tsr_err *err);

/* Notes scales of activations, such as input_scale and k_scale, that are not positive numbers. Fails as
 * tsr_contents_find does. */
tsr_status tsr_check_activation_scales(tsr_contents *survey, const tsr_checkpoint *checkpoint, tsr_err *err);

void tsr_contents_free(tsr_contents *survey);
