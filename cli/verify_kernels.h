/* Running kernels on a checkpoint's own tensors (verify gemm, epilogue, dequant, mla): a job for cli/verify_kinds.h. */
#ifndef TSR_CLI_VERIFY_KERNELS_H
#define TSR_CLI_VERIFY_KERNELS_H

#include "cli/verify_kinds.h"
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
    const char *dst, *against, *activations, *stages; /* NULL but for `dst`: none */
    tsr_block block;                                  /* of FP8, where config.json states none; 0x0: that is an error */
    tsr_device_kind kind;
    unsigned outs; /* bit 1 << tsr_out for each result type */
    bool details;
    tsr_kernel_options options;

    /* After it was opened. */
    tsr_checkpoint *opened[5];
    tsr_weights weights[2];
    tsr_side source;
    tsr_device device;
    tsr_err note;  /* why TSR_DEVICE_AUTO took the CPU */
    tsr_err alone; /* after `applies`: why originals are not compared with, though `against` was given; or empty */
    tsr_evidence evidence;
} tsr_verify_kernels;

/* Whose jobs are tsr_verify_kernels. */
extern const tsr_verify_kind tsr_kind_kernels;

/* "gemm", ... Static storage. */
const char *tsr_kernel_check_name(tsr_kernel_check check);

/* Where kernels may run: what --device and --require-device say. */
typedef struct tsr_device_options {
    int device, required;
} tsr_device_options;

/* The entries of a table that fill it. */
#define TSR_DEVICE_OPTIONS(to)                                                                                       \
    {"--device", TSR_OPT_CHOICE, &(to)->device, "auto|cpu|cuda", "where kernels run (auto: a GPU if there is one)"}, \
    {                                                                                                                \
        "--require-device", TSR_OPT_CHOICE, &(to)->required, "any|cuda",                                             \
            "cuda: end in 5 where auto would take the CPU (any)"                                                     \
    }

/* What both together ask for. TSR_E_USAGE: they contradict one another. */
tsr_status tsr_device_asked(const tsr_device_options *options, tsr_device_kind *kind, tsr_err *err) TSR_WARN_UNUSED;

/* With the defaults of this machine. */
tsr_verify_kernels tsr_verify_kernels_defaults(tsr_kernel_check check);

#endif
