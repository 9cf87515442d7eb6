/* The schemes that Tessera writes, one row each (convert/schemes/schemes.inc), and what follows from a row. */
#pragma once

#include "convert/schemes/dialects.h"
#include "quantize/fp8_block.h"
#include "quantize/int_weight.h"
#include "quantize/mx_weight.h"
#include "quantize/policy/policy.h"

/* TSR_SCHEME_KEEP is 0: a weight that stays as it is. */
typedef enum tsr_scheme {
#define SCHEME(id, name, ...) id,
#define VARIANT(id, ...)      id,
#include "convert/schemes/schemes.inc"
#undef SCHEME
#undef VARIANT
    TSR_SCHEMES
} tsr_scheme;

/* How codes and scales are stored. */
typedef enum tsr_scheme_form {
    TSR_FORM_PLAIN,      /* no codes */
    TSR_FORM_BLOCKS,     /* e4m3, one scale per block */
    TSR_FORM_FP8_ROWS,   /* e4m3, one scale per row; e4m3 activations, one scale per token */
    TSR_FORM_FP8_TENSOR, /* e4m3, one scale per tensor; e4m3 activations with a stored scale, or one per token */
    TSR_FORM_W8A8,       /* int8, one scale per row; int8 activations; azp_adj in a separate file */
    TSR_FORM_PACKED,     /* int8 or int4, packed into words; activations plain, or e4m3 with one scale per token */
    TSR_FORM_GROUPS,     /* MXFP4, MXFP8 or NVFP4: one scale per group of 16 or 32 columns */
    TSR_FORM_EXPERTS, /* routed experts in int4, two codes per byte, with a stored scale of the input; the rest BLOCKS */
} tsr_scheme_form;

/* The SQNR of a scheme in dB. */
typedef struct tsr_scheme_sqnr {
    double low;      /* a tensor with a lower SQNR is reported */
    double from, to; /* usual range for the weights of a model */
} tsr_scheme_sqnr;

/* A scheme in a dialect. */
typedef struct tsr_scheme_dialect {
    const char *name; /* format or algorithm in the configuration; NULL: no loader reads the scheme in this dialect */
    const char *readers;  /* the loaders that read it; NULL: not stated */
    tsr_scheme_form form; /* TSR_FORM_PLAIN: that of the row */
} tsr_scheme_dialect;

typedef struct tsr_scheme_row {
    const char *name;      /* for --scheme, --to and rules files; NULL: a variant of another scheme */
    const char *title;     /* title in compare-schemes; NULL: not shown there */
    const char *arguments; /* options of `tessera quantize` that select it */
    tsr_scheme_form form;
    tsr_fp8_block fp8;   /* BLOCKS, FP8_ROWS, FP8_TENSOR, EXPERTS; block_cols 0: whole row; block_rows 0: all rows */
    tsr_int_scheme ints; /* W8A8, PACKED; for FP8_ROWS the dtype of scales */
    tsr_mx_kind kind;    /* GROUPS */
    tsr_scale_search search; /* GROUPS; other forms have it in fp8 and ints */
    bool inputs;             /* GROUPS, PACKED: activations are quantized too */
    bool mixed;              /* a checkpoint can hold it together with other schemes */
    tsr_scheme codes_of;     /* the scheme with the same codes that compare-schemes measures; TSR_SCHEME_KEEP: this one
                          * itself */
    const char *quantize_options, *convert_options; /* options that only some schemes accept */
    tsr_scheme_sqnr sqnr;
    const char *other_names; /* lower-case names in llm-compressor and ModelOpt, each with the options that it implies,
                              * separated by ", "; NULL: none */
    tsr_scheme_dialect dialects[TSR_DIALECTS];
} tsr_scheme_row;

/* Returns the row of a scheme. Static storage. */
const tsr_scheme_row *tsr_scheme_row_of(tsr_scheme scheme);

/* Returns how codes and scales are stored in a dialect; -1: the scheme's default dialect. */
tsr_scheme_form tsr_scheme_form_in(tsr_scheme scheme, int dialect);

/* Returns the name of a scheme, or NULL for a variant. Static storage. */
const char *tsr_scheme_name(tsr_scheme scheme);

/* Returns the scheme as a rules file spells it: its name, or that of a variant with its options, "int4-weight-only
 * --group-size 32". Static storage. */
const char *tsr_scheme_spelling(tsr_scheme scheme);

/* Returns the scheme that has a name and whose options the variant has; the scheme itself if it has a name. */
tsr_scheme tsr_scheme_base(tsr_scheme scheme);

/* Returns how the scales of a row are chosen. */
tsr_scale_search tsr_scheme_row_search(const tsr_scheme_row *row);

/* Returns the names of --scheme, separated by "|". Static storage. */
const char *tsr_scheme_words(void);

/* Returns the scheme of the i-th of these names. */
tsr_scheme tsr_scheme_named(size_t i);

/* Returns the i-th scheme that a checkpoint can hold together with others, or TSR_SCHEMES past the end. The order is:
 * keep, schemes with small groups, the rest. Groups of a mixed configuration are numbered in this order. */
tsr_scheme tsr_scheme_mixed(size_t i);

/* Returns the row that compare-schemes measures for a scheme: that with the same codes. */
tsr_scheme tsr_scheme_measured(tsr_scheme scheme);

/* Returns the bytes that a weight of the scheme has besides codes, scales and zero points: weight_shape, or the global
 * scale of its input. */
uint64_t tsr_scheme_companion_bytes(tsr_scheme scheme);

/* Returns true if codes and configuration are planned by tsr_mx_plan: GROUPS and FP8_TENSOR. */
bool tsr_scheme_is_of_mx_plan(tsr_scheme scheme);

/* Sets the policy options that depend on the scheme: block_rows, group, not_fp8 and four_bits. */
void tsr_scheme_policy(tsr_scheme scheme, tsr_policy_options *policy);

/* Rejects a value of `option` on the command line that another tool (llm-compressor, ModelOpt, llama.cpp) uses as the
 * name of a scheme, and suggests the name used here. TSR_E_USAGE. */
tsr_status tsr_scheme_refuse_foreign(const char *option, int argc, char **argv, tsr_err *err);

/* Rejects a dialect in which no loader reads the scheme; the message lists the dialects that are read, with their
 * loaders. TSR_E_USAGE. `err` may be NULL. */
tsr_status tsr_scheme_check_dialect(tsr_scheme scheme, tsr_dialect dialect, tsr_err *err);

/* Rejects a way to choose scales that the scheme does not support with scales of the dtype `stored` (powers of two:
 * F8_E8M0). TSR_E_USAGE. `err` may be NULL. */
tsr_status tsr_scheme_check_scales(tsr_scheme scheme, tsr_scale_search search, tsr_dtype stored, tsr_err *err);

/* Returns the way to choose scales of this scheme in a mix of schemes: --scales four-six leaves amax to all but
 * NVFP4. */
tsr_scale_search tsr_scheme_search(tsr_scheme scheme, tsr_scale_search search);
