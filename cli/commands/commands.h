/* Declares the commands. */
#pragma once

#include "cli/command.h"

extern const tsr_command tsr_command_quantize;
extern const tsr_command tsr_command_convert;
extern const tsr_command tsr_command_merge;
extern const tsr_command tsr_command_finish;
extern const tsr_command tsr_command_fold;
extern const tsr_command tsr_command_calibrate;
extern const tsr_command tsr_command_compare_schemes;
extern const tsr_command tsr_command_plan_schemes;
extern const tsr_command tsr_command_sensitivities;
extern const tsr_command tsr_command_diff;
extern const tsr_command tsr_command_verify;
extern const tsr_command tsr_command_verify_gemm;
extern const tsr_command tsr_command_verify_epilogue;
extern const tsr_command tsr_command_verify_dequant;
extern const tsr_command tsr_command_verify_mla;
extern const tsr_command tsr_command_verify_forward;
extern const tsr_command tsr_command_verify_manifest;
extern const tsr_command tsr_command_verify_all;
extern const tsr_command tsr_command_inspect;
extern const tsr_command tsr_command_report;
extern const tsr_command tsr_command_batch;

/* The words after `verify` that select a check. */
#define TSR_VERIFY_CHECKS "gemm|epilogue|dequant|mla|forward|manifest|all"
