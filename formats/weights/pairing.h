/* Shared declarations of the files that pair weights with their scales: weights.c, companions.c (finds the tensors),
 * grids.c, integer_weights.c and gptq_weights.c (check shapes), and quantization_config.c. */
#ifndef TSR_FORMATS_WEIGHTS_PAIRING_H
#define TSR_FORMATS_WEIGHTS_PAIRING_H

#include "common/block.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/weights/weights.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One coding of weights that config.json states. */
typedef struct tsr_stated_coding {
    bool integer; /* or floating point: e4m3, e2m1 */
    uint64_t bits;
    tsr_block block; /* to a scale; 1 x N: groups; 0 x 0: one scale a row, or one for the whole matrix */
    const char *strategy, *format, *symmetric; /* compressed-tensors' words for it, as JSON has them; NULL: none */
} tsr_stated_coding;

enum { TSR_MAX_STATED = 32 };

/* The storage of GPTQ's zero points, which the tensors do not show. */
typedef enum tsr_zeros { TSR_ZEROS_UNSTATED, TSR_ZEROS_LESS_ONE, TSR_ZEROS_AS_THEY_ARE } tsr_zeros;

/* A pairing under way. */
typedef struct tsr_pairing {
    tsr_weights *w;
    const tsr_checkpoint *c;
    bool *claimed; /* [tensors]: belongs to a weight, as its scale, zero point, shape or as the scale of its input */
    bool *unread;  /* [tensors]: in a format that Tessera does not read */
    tsr_stated_coding stated[TSR_MAX_STATED];
    size_t n_stated;
    const char *format;   /* quantization_config.format of compressed-tensors, as JSON has it; NULL: none */
    bool holds;           /* weights must be in one of these codings, for config.json says so */
    unsigned expert_bits; /* 4 or 8, as expert_dtype says of routed experts; 0: it does not */
    tsr_zeros zeros;
    tsr_weights_problem_fn *problem; /* NULL: the first problem ends the pairing */
    void *data;
    tsr_err *err;
} tsr_pairing;

/* Returns the path of the file that holds a tensor. */
const char *tsr_pairing_path(const tsr_pairing *p, const tsr_tensor *t);

/* Reads what config.json states into the weights, and codings into `stated`. TSR_E_UNSUPPORTED: a
 * quant_method that Tessera does not read; TSR_E_FORMAT: a block size that is none. */
tsr_status tsr_read_quantization(tsr_pairing *p) TSR_WARN_UNUSED;

/* Blocks of e4m3 are of this size, and of no other, whatever config.json says. */
void tsr_state_block(tsr_pairing *p, tsr_block block);

/* The tensor is part of a weight, and no weight itself. */
void tsr_pairing_claim(const tsr_pairing *p, const tsr_tensor *t);

/* Gives a weight of codes the name of its values, its kind by names and dtypes, and all tensors that stand with it.
 * TSR_E_FORMAT: there is no scale, or more than one. */
tsr_status tsr_find_companions(const tsr_pairing *p, tsr_weight *x) TSR_WARN_UNUSED;

/* Each holds the shapes of one coding's tensors to the table of kinds and to what is stated, and fills in the weight's
 * sizes and, where several kinds have the same tensors, its kind. */
tsr_status tsr_check_e2m1(const tsr_pairing *p, tsr_weight *x) TSR_WARN_UNUSED;
tsr_status tsr_check_e4m3(const tsr_pairing *p, tsr_weight *x) TSR_WARN_UNUSED;
tsr_status tsr_check_integers(const tsr_pairing *p, tsr_weight *x) TSR_WARN_UNUSED;
tsr_status tsr_check_gptq(const tsr_pairing *p, tsr_weight *x) TSR_WARN_UNUSED;

/* Returns true if a tensor has one value per row of each matrix: [M, R], [R, 1], [R], or [] for one value; of at most
 * `most_rank` dimensions. */
bool tsr_is_column(const tsr_tensor *tensor, unsigned most_rank, uint64_t matrices, uint64_t rows);

/* Reads the weight's group_index, if it has one: every group must be there, and whether it says anything but c / block.cols
 * is noted. */
tsr_status tsr_read_order(const tsr_pairing *p, tsr_weight *x) TSR_WARN_UNUSED;

/* Compares the weight with the codings of config.json. TSR_E_FORMAT: the weight has none of them, or has zero points
 * that are stated to be absent. Other contradictions go to x->odd. */
tsr_status tsr_check_stated(const tsr_pairing *p, tsr_weight *x) TSR_WARN_UNUSED;

/* Returns the error for a weight in none of the stated codings. */
tsr_status tsr_refuse_unstated(const tsr_pairing *p, const tsr_weight *x) TSR_WARN_UNUSED;

#endif
