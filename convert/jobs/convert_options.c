/* Declares the options of `tessera convert`, by topic. */
#include "convert/jobs/convert_job.h"

static const char kToWords[] = "bf16|tp|deepseek-mp|mla-absorbed|archive|safetensors|fastertransformer|trtllm"
#define SCHEME(id, word, ...) "|" word
#define VARIANT(id, ...)
#include "convert/schemes/schemes.inc"
#undef SCHEME
#undef VARIANT
    ;

static void append_targets(tsr_convert_job *a, tsr_option *options)
{
    const tsr_option targets[] = {
        {"--to", TSR_OPT_CHOICE, &a->to, kToWords, "the target: see above"},
        {"--from", TSR_OPT_CHOICE, &a->from, "fastertransformer|trtllm|deepseek-mp",
         "instead of --to: restore a checkpoint from the output of --to with this target"},
        {"--merge", TSR_OPT_FLAG, &a->merge, NULL,
         "instead of --to: join the folders SRC/rank-0, rank-1, ... that --to tp wrote"},
        {"--config", TSR_OPT_TEXT, &a->config, "FILE",
         "with --from deepseek-mp: the config.json of the model, if the ranks were made by convert.py"},
        {"--against", TSR_OPT_TEXT, &a->against, "ORIGINAL",
         "the unquantized checkpoint; the report also compares the output with it"},
        {0},
    };
    const tsr_option weights[] = {
        {"--dtype", TSR_OPT_CHOICE, &a->dtype, "bf16|f16|f32",
         "bf16: dtype of weights that were FP8; other tensors keep theirs (bf16)"},
        {"--dialect", TSR_OPT_CHOICE, &a->dialect, TSR_DIALECT_WORDS,
         "names of the scales and form of the configuration (fp8-block: as in SRC; others: compressed-tensors)"},
        {"--experts", TSR_OPT_CHOICE, &a->experts, "split|stack",
         "split: write one tensor for each expert and projection; stack: keep stacks of experts, or with bf16 make "
         "them (codes: split; fp8-block of FP8: stack, which no other scheme takes)"},
        {"--include", TSR_OPT_LIST, &a->include, "GLOB",
         "from BF16: also quantize tensors with these names; may be repeated"},
        {"--exclude", TSR_OPT_LIST, &a->exclude, "GLOB",
         "schemes: decode weights with these names to BF16; layouts: keep them as they are; may be repeated"},
        {"--lossy", TSR_OPT_FLAG, &a->lossy, NULL,
         "schemes: round values that have no code in the target, and report them, instead of stopping"},
        {"--source-block", TSR_OPT_TEXT, &a->source_block, "RxC",
         "rows and columns of an FP8 block in SRC, where its config.json does not state them"},
        {0},
    };
    const tsr_option card[] = {
        {"--no-card", TSR_OPT_FLAG, &a->no_card, NULL,
         "bf16, schemes: write no README.md with the command and the errors; that of the source stays README.md"},
        {0},
    };
    tsr_options_append_topic(options, "Target", targets);
    tsr_options_append_topic(options, "Weights", weights);
    tsr_options_append_topic(options, "Model card", card);
}

static void append_scales(tsr_convert_job *a, tsr_option *options)
{
    const tsr_option scales[] = {
        {"--scales", TSR_OPT_CHOICE, &a->scales, TSR_SCALES_WORDS,
         "amax: scales follow from the largest value; mse: least squared error of some scales; best: of all; four-six: "
         "nvfp4: of two, for largest elements of 4 and 6 (amax)"},
        {"--importance", TSR_OPT_TEXT, &a->importance, "FILE",
         "int4-weight-only, nvfp4, mxfp4, mxfp8: mean squares of the layers' inputs, by which errors are weighted; "
         "implies --scales best (docs/importance.md)"},
        {"--block", TSR_OPT_TEXT, &a->block, "RxC", "fp8-block: rows and columns of the blocks to write (as in SRC)"},
        {"--scale-fmt", TSR_OPT_CHOICE, &a->scale_fmt, TSR_SCALE_FMT_WORDS,
         "fp8-block: f32: any scale; ue8m0: scales rounded up to powers of two (as in SRC)"},
        {"--scale-dtype", TSR_OPT_CHOICE, &a->scale_dtype, "bf16|f16",
         "from BF16: dtype of the stored scales; codes are computed with FP32 scales (bf16)"},
        {"--mx-scale", TSR_OPT_CHOICE, &a->mx_scale, TSR_MX_SCALE_WORDS,
         "mxfp, where codes are computed: how the power of two of a group follows from its largest value "
         "(compressed-tensors: even; others: rceil)"},
        {"--bits", TSR_OPT_CHOICE, &a->bits, "8|4", "fastertransformer, trtllm from BF16: bits of a weight (8)"},
        {"--group-size", TSR_OPT_COUNT, &a->group_size, "N",
         "from BF16: number of input features that share a scale; 0: all (0; int4-weight-only: 128)"},
        {"--zero-points", TSR_OPT_FLAG, &a->zero_points, NULL,
         "int4-weight-only: quantize weights asymmetrically, with zero points"},
        {"--rounding", TSR_OPT_CHOICE, &a->away, "away|even",
         "from BF16: rounding of ties, away from zero or to even (away)"},
        {"--divisor", TSR_OPT_CHOICE, &a->divisor, TSR_DIVISOR_WORDS,
         "from BF16: scales are the largest magnitude divided by this (128; 4 bits: 8)"},
        {"--activations", TSR_OPT_TEXT, &a->activations, "FILE",
         "nvfp4, fp8-tensor, w4afp8 of sglang: a file with the ranges of the layers' inputs"},
        {"--input-scale", TSR_OPT_TEXT, &a->input_scale, "X",
         "w4afp8 of sglang: the static scale of all experts' inputs, instead of measured ranges"},
        {0},
    };
    tsr_options_append_topic(options, "Scales and codes", scales);
}

static void append_layouts(tsr_convert_job *a, tsr_option *options)
{
    const tsr_option ranks[] = {
        {"--tp", TSR_OPT_POSITIVE, &a->tp, "N", "tp: number of tensor-parallel ranks"},
        {"--mp", TSR_OPT_POSITIVE, &a->mp, "N", "deepseek-mp: number of ranks"},
        {"--keep-mtp", TSR_OPT_FLAG, &a->keep_mtp, NULL, "deepseek-mp: keep the multi-token prediction layers"},
        {0},
    };
    const tsr_option mla[] = {
        {"--consumer", TSR_OPT_CHOICE, &a->consumer, "sglang|vllm|trtllm|llamacpp",
         "mla-absorbed: the engine whose names, shapes and memory order the parts get"},
        {"--weights", TSR_OPT_CHOICE, &a->weights, "bf16|fp8-block|fp8-tensor|fp8-head",
         "mla-absorbed: bf16: dequantized parts; fp8-block: the codes of SRC; fp8-tensor, fp8-head: new codes with one "
         "scale a tensor or head (bf16)"},
        {"--fold", TSR_OPT_FLAG, &a->fold, NULL, "mla-absorbed: multiply the parts into q_b_proj and o_proj"},
        {"--drop-kv-b", TSR_OPT_FLAG, &a->drop_kv_b, NULL, "mla-absorbed: leave kv_b_proj out"},
        {0},
    };
    const tsr_option layouts[] = {
        {"--arch", TSR_OPT_CHOICE, &a->arch, "sm70|sm75|sm80|sm86|sm89|sm90",
         "fastertransformer, trtllm: the GPU architecture whose layout is written"},
        {"--producer", TSR_OPT_TEXT, &a->producer, "NAME",
         "fastertransformer, trtllm: the version whose layout is written: ft, trtllm-0.5 to trtllm-0.10, trtllm-main "
         "or trtllm-py"},
        {0},
    };
    const tsr_option archives[] = {
        {"--level", TSR_OPT_COUNT, &a->level, "N",
         "archive: zstd level from 1 to 19; a higher one is smaller and slower (3)"},
        {"--shuffle", TSR_OPT_FLAG, &a->shuffle, NULL,
         "archive: store the bytes of floating-point elements in planes, which is smaller"},
        {0},
    };
    tsr_options_append_topic(options, "Ranks", ranks);
    tsr_options_append_topic(options, "Absorbed MLA", mla);
    tsr_options_append_topic(options, "Kernel layouts", layouts);
    tsr_options_append_topic(options, "Archives", archives);
}

void tsr_convert_job_options(tsr_convert_job *a, tsr_option *options)
{
    append_targets(a, options);
    append_scales(a, options);
    append_layouts(a, options);
}
