/* The table of the kinds of quantized weights that Tessera reads, one row per kind.
 *
 * A row has the tensors by which a kind is recognized: names, dtypes, and how many codes share a scale. Pairing uses
 * these first and then compares them with config.json. A checkpoint may mix kinds. */
#pragma once

#include "formats/checkpoint/checkpoint.h"
#include "formats/checkpoint/dtype.h"
#include "formats/names/coding.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The arrangement of scales over the codes. */
typedef enum tsr_grid {
    TSR_GRID_BLOCKS, /* rectangles, of the size stated in config.json */
    TSR_GRID_ROWS,   /* one a row */
    TSR_GRID_WHOLE,  /* one a matrix */
    TSR_GRID_GROUPS, /* one per `group` columns of a row; group 0: as stated in config.json */
} tsr_grid;

/* Families of kinds, as bits of a set: a command supports whole families. */
typedef enum tsr_family {
    TSR_FAMILY_FP8 = 1,      /* e4m3 with floating-point scales per block, row or matrix */
    TSR_FAMILY_INTEGERS = 2, /* compressed-tensors' int4 and int8 */
    TSR_FAMILY_MX = 4,       /* e2m1 or e4m3 with one scale per 32 or 16 columns: MXFP4, MXFP8, NVFP4 */
    TSR_FAMILY_GPTQ = 8,     /* AWQ and GPTQ */
    TSR_FAMILY_MXFP6 = 16,   /* e2m3 or e3m2 with one scale per 32 columns; read only */
} tsr_family;

enum { TSR_KIND_SCALES = 5 };

/* Suffixes: "_x" is appended to the name of the values ("X.weight" gives "X.weight_x"), ".x" to the module ("X.x"). */
typedef struct tsr_weight_kind {
    const char *name;                    /* "nvfp4-ct", for inspect and reports */
    const char *title;                   /* "NVFP4 of compressed-tensors": for sentences */
    const char *codes;                   /* suffix of the codes; "" if they have the name of the values */
    uint32_t code_dtypes;                /* sets of TSR_DTYPE_BIT */
    const char *scales[TSR_KIND_SCALES]; /* suffixes of the scale, the usual one first */
    uint32_t scale_dtypes;
    const char *global; /* suffix of the global scale, which is required; NULL: the kind has none */
    bool global_divides;
    uint8_t family, coding, bits; /* bits 0: from config.json and shapes */
    uint8_t grid, group;
    bool transposed; /* the values are the transpose of the codes' matrix */
} tsr_weight_kind;

#define TSR_DTYPE_BIT(dtype) (UINT32_C(1) << (dtype))

/* The table, in the order in which kinds are tried. The last row has no name. */
extern const tsr_weight_kind tsr_weight_kinds[];

/* Returns true if each scale belongs to 16 or 32 columns of a row: the families MX and MXFP6. */
bool tsr_kind_has_small_groups(const tsr_weight_kind *kind);

/* The name of the values for codes of this kind ("X.weight" for "X.weight_packed" and "X.qweight"). False if the name
 * is not one for codes of this kind. */
typedef struct tsr_values_name {
    const char *stem; /* its first `length` characters, followed by the ending */
    size_t length;
    const char *ending;
} tsr_values_name;

bool tsr_kind_values_name(const tsr_weight_kind *kind, const char *codes, tsr_values_name *name);

/* Returns the tensor with the name of the values and this suffix (see tsr_weight_kind), or NULL. */
const tsr_tensor *tsr_kind_find(const tsr_checkpoint *checkpoint, const char *values, const char *suffix);
const tsr_tensor *tsr_kind_find_of(const tsr_checkpoint *checkpoint, const tsr_values_name *values, const char *suffix);

/* Returns true if dtypes and names of the codes and their scale are those of this kind. */
bool tsr_kind_has(const tsr_weight_kind *kind, const tsr_tensor *codes, const tsr_tensor *scale);

/* Returns the coding of a tensor from its name, its dtype and its scale's name; TSR_PLAIN: none that Tessera reads. */
tsr_coding tsr_coding_of(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor);
