/* Compares vectors of tensors in the formats of checkpoints: tables, encode, decode and convert. Each is computed with
 * every instruction set and compared tensor by tensor. A vector of a rejected input must be rejected. */
#pragma once

#include "kernels/cpu/cpu.h"
#include "tests/peers/golden/tensor_set.h"

/* As the manifest has it. */
typedef struct format_case {
    const char *dir, *op, *kind, *input, *expected;
    bool refused;
    set_rules rules;
} format_case;

/* Returns true if there are vectors of this op. */
bool is_format_op(const char *op);

tsr_status check_format_case(const format_case *c, tsr_arena *arena, tsr_err *err);

/* Makes tensors from tensors. `expected` has what the input does not determine: the size of groups. */
typedef tsr_status format_fn(const tsr_cpu_kernels *k, const char *kind, const tensor_set *in,
                             const tensor_set *expected, tensor_set *out, tsr_err *err);

format_fn make_table, encode_kind, decode_kind, convert_kind;

/* Decodes kinds that are not microscaled: block FP8, and integers in several packings. */
format_fn decode_other;

/* The microscaled kinds. */
#include "quantize/mx_weight.h"

typedef struct mx_names {
    const char *kind;
    tsr_mx_kind format;
    bool modelopt;
    int rule;                            /* -1: the default */
    const char *codes, *scales, *global; /* endings of names; global NULL: none */
    tsr_dtype codes_dtype, scales_dtype;
    unsigned global_rank;
} mx_names;

/* NULL: it is none of them. */
const mx_names *find_mx_names(const char *kind);

tsr_mx_scheme scheme_of_names(const mx_names *names);

/* Returns scratch memory, or TSR_E_NOMEM. */
tsr_status get_scratch(const tensor_set *set, size_t bytes, void **scratch, tsr_err *err);
