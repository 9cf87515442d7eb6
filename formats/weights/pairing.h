/* Shared declarations of the files that pair weights with their scales: weights.c, companions.c (finds the tensors),
 * grids.c, integer_weights.c and gptq_weights.c (check shapes), and quantization_config.c. */
#pragma once

#include "common/block.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json.h"
#include "formats/weights/weights.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One coding of weights that config.json states. */
typedef struct tsr_stated_coding {
    bool integer; /* or floating point: e4m3, e2m3, e3m2, e2m1 */
    uint64_t bits;
    tsr_coding element; /* for floating point of 6 bits, which has two elements; otherwise, or if unstated, TSR_PLAIN */
    tsr_block block;    /* elements per scale; 1 x N: groups; 0 x 0: one scale per row or per matrix */
    bool ordered;       /* desc_act of GPTQ: groups are not consecutive columns */
    const char *strategy, *format, *symmetric; /* the JSON values of compressed-tensors' members; NULL: none */
} tsr_stated_coding;

enum { TSR_MAX_STATED = 32 };

/* The quant_method of SGLang that stores int4 as TSR_CODED_NIBBLES. */
#define TSR_W4AFP8 "w4afp8"

/* How GPTQ stores zero points, which the tensors do not show. */
typedef enum tsr_zeros { TSR_ZEROS_UNSTATED, TSR_ZEROS_LESS_ONE, TSR_ZEROS_AS_THEY_ARE } tsr_zeros;

/* State of a pairing. */
typedef struct tsr_pairing {
    tsr_weights *w;
    const tsr_checkpoint *c;
    bool *claimed; /* [tensors]: belongs to a weight, as its scale, zero point, shape or input scale */
    bool *unread;  /* [tensors]: in a format that Tessera does not read */
    tsr_stated_coding stated[TSR_MAX_STATED];
    size_t n_stated;
    const char *members;  /* the known members of quantization_config, separated by spaces; NULL: too many to list */
    const char *format;   /* quantization_config.format of compressed-tensors as JSON; NULL: none */
    tsr_json_text quark;  /* the configuration of Quark; .data NULL: another method */
    bool holds;           /* config.json requires weights to be in one of these codings */
    unsigned expert_bits; /* 4 or 8, from expert_dtype, for routed experts; 0: not stated */
    tsr_zeros zeros;
    bool all_middle;                 /* config.json says that every GPTQ weight is symmetric */
    tsr_weights_problem_fn *problem; /* NULL: the first problem ends the pairing */
    void *data;
    tsr_err *err;
} tsr_pairing;

/* Returns the path of the file that holds a tensor. */
const char *tsr_pairing_path(const tsr_pairing *p, const tsr_tensor *t);

/* Reads the quantization of config.json into the weights, and codings into `stated`. TSR_E_UNSUPPORTED: a quant_method
 * that Tessera does not read. TSR_E_FORMAT: an invalid block size. */
tsr_status tsr_read_quantization(tsr_pairing *p);

/* Rejects objects of config.json that state different quantizations (TSR_E_FORMAT), and one in a place where it is not
 * read (TSR_E_UNSUPPORTED). */
tsr_status tsr_check_quantization_paths(const tsr_checkpoint *c, tsr_err *err);

/* Sets the block size of e4m3, which overrides config.json. */
void tsr_state_block(tsr_pairing *p, tsr_block block);

/* Marks the tensor as part of a weight, so that it is not a weight itself. */
void tsr_pairing_claim(const tsr_pairing *p, const tsr_tensor *t);

/* Sets the name of the values of a weight of codes, its kind by names and dtypes, and its companions. TSR_E_FORMAT:
 * there is no scale, or more than one. */
tsr_status tsr_find_companions(const tsr_pairing *p, tsr_weight *x);

/* Each compares the shapes of one coding's tensors with the table of kinds and with the stated codings. Sets the
 * weight's sizes and, if several kinds have the same tensors, its kind. MXFP6 has the names and dtypes of MXFP4, so
 * tsr_check_e2m1 reads both; TSR_E_UNSUPPORTED: the configuration does not state which element its 6 bits are. */
tsr_status tsr_check_e2m1(const tsr_pairing *p, tsr_weight *x);
tsr_status tsr_check_e4m3(const tsr_pairing *p, tsr_weight *x);
tsr_status tsr_check_integers(const tsr_pairing *p, tsr_weight *x);
tsr_status tsr_check_gptq(const tsr_pairing *p, tsr_weight *x);

/* Reads the coding of the weights from a layer's configuration of Quark; .bits 0: they are not quantized. `where` names
 * the configuration. TSR_E_UNSUPPORTED: a dtype that Tessera does not read, or several of them. */
tsr_status tsr_quark_coding(const tsr_pairing *p, tsr_json_text config, const char *where, tsr_stated_coding *coding);

/* Returns the element of 6 bits that Quark's configuration states for a module; TSR_PLAIN: none, or it is not certain
 * which. Patterns are copied to `arena`. */
tsr_coding tsr_quark_element(tsr_json_text quark, const char *module, tsr_arena *arena);

/* Returns true if a tensor has one value per row of each matrix: [M, R], [R, 1], [R], or [] for one value; of at most
 * `most_rank` dimensions. */
bool tsr_is_column(const tsr_tensor *tensor, unsigned most_rank, uint64_t matrices, uint64_t rows);

/* Reads the weight's group_index, if it has one. Checks that every group occurs, and records whether any entry differs
 * from c / block.cols. */
tsr_status tsr_read_order(const tsr_pairing *p, tsr_weight *x);

/* Compares the weight with the codings of config.json. TSR_E_FORMAT: it has none of them, it has zero points that are
 * declared absent, or it lacks declared zero points or the declared order of groups. Other contradictions are recorded
 * in x->odd. */
tsr_status tsr_check_stated(const tsr_pairing *p, tsr_weight *x);

/* Rejects a format of compressed-tensors that Tessera does not know, TSR_E_UNSUPPORTED: its codes may be packed in any
 * way. NULL is accepted. `where` names the object. */
tsr_status tsr_refuse_format(const tsr_pairing *p, const char *format, const char *where);

/* Returns the error for a weight with none of the stated codings. */
tsr_status tsr_refuse_unstated(const tsr_pairing *p, const tsr_weight *x);
