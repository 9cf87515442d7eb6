/* The facts of a checkpoint: what its files hold, which part of the model takes how much, what is quantized and how.
 *
 * Everything comes from headers, index and config.json, but for the statistics of scales, which read the scales and no
 * weight. What is wrong becomes an issue, not an error. */
#ifndef TSR_VERIFY_SURVEY_CONTENTS_H
#define TSR_VERIFY_SURVEY_CONTENTS_H

#include "common/block.h"
#include "formats/checkpoint/rank_file.h"
#include "formats/loaders/issues.h"
#include "formats/names/model.h"
#include "formats/weights/weights.h"

typedef struct tsr_tally {
    uint64_t tensors, elements, bytes;
} tsr_tally;

/* Scales are counted over the blocks that their weights have; the surplus of a padded grid is left out. Those of NVFP4
 * count with their global scale, as what values are multiplied by. */
typedef struct tsr_scale_stats {
    uint64_t count;
    uint64_t zero, negative, nonfinite;
    uint64_t subnormal;      /* 0 < |s| < 2^-126 */
    uint64_t powers_of_two;  /* s = 2^k, positive */
    double min, median, max; /* of the positive, finite ones; the lower median, cut to 12 bits of mantissa */
    const tsr_tensor *odd;   /* the first scale tensor with a value that is no power of two; NULL: none */
    uint64_t odd_at;         /* which of its values */
    double odd_value;        /* */
    uint64_t n_odd;          /* such tensors */
    /* The first E8M0 scale of a small group with a byte of 0, 2^-127, over codes that are not all zero, and which of its
     * values; NULL: none */
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
    TSR_KIND_MXFP8,
    TSR_KIND_AWQ,
    TSR_KIND_GPTQ,
    TSR_KIND_COUNT
} tsr_kind;

/* The weights of one row of the table of kinds, with codes of so many bits. */
typedef struct tsr_kind_tally {
    const tsr_weight_kind *kind;
    unsigned bits;
    uint64_t weights, values;
    uint64_t bytes;  /* of the codes, scales and zero points */
    tsr_block block; /* of the first of them; 0 x 0: a scale a row or a matrix */
} tsr_kind_tally;

enum { TSR_MAX_KIND_TALLIES = 32 };

/* "e4m3", "int8", "packed int8", "packed int4", "MXFP4", "NVFP4", "MXFP8", "AWQ", "GPTQ". Static storage. */
const char *tsr_kind_name(tsr_kind kind);

typedef struct tsr_contents {
    tsr_model model;
    tsr_rank_file manifest; /* what Tessera says of a rank, or of weights in a kernel's layout */
    tsr_weights weights;    /* those that could be paired */
    tsr_tally whole, by_dtype[TSR_DTYPE_COUNT];
    uint64_t file_bytes;                        /* of all safetensors files, headers included */
    bool has_metadata;                          /* the index has the key "metadata" */
    bool has_total;                             /* with a total_size */
    uint64_t total_size;                        /* as the index states it; right when it equals whole.bytes */
    uint64_t files_without_format;              /* whose __metadata__ does not say which framework wrote them */
    tsr_part_tally parts[TSR_PART_COUNT], mtp;  /* MTP layers are in `mtp` only; scales are no parameters */
    tsr_tally unread;                           /* what Tessera does not interpret, in none of the parts */
    uint64_t weight_bytes, code_bytes;          /* all parameters; those that are codes */
    uint64_t coded[TSR_KIND_COUNT];             /* weights that are codes, by kind */
    tsr_kind_tally kinds[TSR_MAX_KIND_TALLIES]; /* in the order in which they appear */
    size_t n_kinds;
    tsr_tally scales[TSR_DTYPE_COUNT]; /* scale tensors by dtype */
    tsr_scale_stats scale_stats;
    tsr_issues issues;
    tsr_arena arena;
} tsr_contents;

/* Surveys. The checkpoint is borrowed and must outlive the survey. `block` overrules config.json when it is not
 * 0 x 0. Errors are those of reading, and of memory. */
tsr_status tsr_contents_find(tsr_contents *survey, const tsr_checkpoint *checkpoint, tsr_block block,
                             tsr_err *err) TSR_WARN_UNUSED;

void tsr_contents_free(tsr_contents *survey);

#endif
