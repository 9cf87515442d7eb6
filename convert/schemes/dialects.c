/* The table of dialects. */
#include "convert/schemes/dialects.h"

static const tsr_dialect_row kDialects[TSR_DIALECTS] = {
    [TSR_DIALECT_DEEPSEEK] =
        {.name = "deepseek",
         .modelopt = true, /* scales rounded up to powers of two: rceil */
         .packed = {.codes = ".weight",
                    .scales = ".scale",
                    .global = "",
                    .input = "",
                    .packed = TSR_I8,
                    .power = TSR_F8_E8M0},
         .bytes = {.codes = ".weight", .scales = ".weight_scale_inv", .global = "", .input = "", .power = TSR_U8}},
    [TSR_DIALECT_COMPRESSED_TENSORS] = {.name = "compressed-tensors",
                                        .packed = {.codes = ".weight_packed",
                                                   .scales = ".weight_scale",
                                                   .global = ".weight_global_scale",
                                                   .input = ".input_global_scale",
                                                   .global_rank = 1,
                                                   .packed = TSR_U8,
                                                   .power = TSR_U8},
                                        .bytes = {.codes = ".weight",
                                                  .scales = ".weight_scale",
                                                  .global = "",
                                                  .input = ".input_scale",
                                                  .global_rank = 1,
                                                  .power = TSR_U8}},
    [TSR_DIALECT_MODELOPT] = {.name = "modelopt",
                              .modelopt = true,
                              .packed = {.codes = ".weight",
                                         .scales = ".weight_scale",
                                         .global = ".weight_scale_2",
                                         .input = ".input_scale",
                                         .packed = TSR_U8,
                                         .power = TSR_U8},
                              .bytes = {.codes = ".weight",
                                        .scales = ".weight_scale",
                                        .global = "",
                                        .input = ".input_scale",
                                        .power = TSR_U8}},
    [TSR_DIALECT_GPT_OSS] = {.name = "gpt-oss",
                             .modelopt = true, /* rceil, as OpenAI's triton_kernels rounds */
                             .packed = {.codes = "_blocks",
                                        .scales = "_scales",
                                        .global = "",
                                        .input = "",
                                        .packed = TSR_U8,
                                        .power = TSR_U8,
                                        .blocks = true}},
    [TSR_DIALECT_SGLANG] = {.name = "sglang"},
    [TSR_DIALECT_DEEPSEEK_V4] = {.name = "deepseek-v4"},
};

const tsr_dialect_row *tsr_dialect_row_of(tsr_dialect dialect)
{
    return &kDialects[dialect];
}

const char *tsr_dialect_name(tsr_dialect dialect)
{
    return kDialects[dialect].name;
}
