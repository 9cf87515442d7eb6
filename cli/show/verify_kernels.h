/* The job of `tessera verify gemm`, epilogue, dequant and mla, and its result as text and JSON. */
#pragma once

#include "cli/command.h"
#include "report/model/result.h"
#include "verify/evidence/jobs.h"

typedef enum tsr_kernel_check {
    TSR_KERNEL_GEMM,
    TSR_KERNEL_EPILOGUE,
    TSR_KERNEL_DEQUANT,
    TSR_KERNEL_MLA,
    TSR_N_KERNEL_CHECKS,
} tsr_kernel_check;

typedef struct tsr_verify_kernels {
    tsr_kernel_check check;
    const char *dst, *against, *activations, *stages; /* NULL except `dst`: not given */
    int device;                                       /* a tsr_device_kind */
    uint64_t devices;                                 /* GPUs for the ranks; 0: as many as there are */
    int out, scaling, kv;                             /* indices of the words of --out, --scaling and --kv */
    tsr_list tensors;
    struct {
        const char *max_kernel_error, *max_kernel_rms, *max_kernel_bias, *min_sqnr;
    } texts;       /* limits as given */
    unsigned outs; /* bit 1 << tsr_out for each result type */
    bool details;
    tsr_kernel_options options;

    /* After opening. */
    tsr_checkpoint *opened[5];
    tsr_weights weights[2];
    tsr_side source;
    tsr_device opened_device;
    tsr_err note;  /* why TSR_DEVICE_AUTO selected the CPU */
    tsr_err alone; /* set by `applies`: why originals are not compared although `against` was given; or empty */
    tsr_evidence evidence;
    tsr_result result; /* a row for each judgement */
} tsr_verify_kernels;

/* Option table entry that fills an int with a tsr_device_kind. */
#define TSR_DEVICE_OPTION(to)                                                                                \
    {                                                                                                        \
        "--device", TSR_OPT_CHOICE, (to), "auto|cpu|cuda", "where kernels run (auto: a GPU if there is one)" \
    }

/* Option table entry that fills an int with a tsr_precision. */
#define TSR_PRECISION_OPTION(to)                                                                                      \
    {                                                                                                                 \
        "--precision", TSR_OPT_CHOICE, (to), "fp64|fp32|bf16",                                                        \
            "the numbers that products and attention multiply; bf16 needs a GPU, and fp32 on the CPU OpenBLAS (fp64)" \
    }

/* Functions of a tsr_command whose job is a tsr_verify_kernels. */
tsr_status tsr_verify_kernels_print(tsr_command_context *context, tsr_err *err);
void tsr_verify_kernels_json(const tsr_command_context *context, tsr_text *text);
