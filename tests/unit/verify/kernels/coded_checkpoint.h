/* Helpers for tests of kernel checks: a checkpoint of random codes in a temporary folder, and options. */
#pragma once

#include "tests/unit/fixture.h"
#include "verify/evidence/activations.h"
#include "verify/evidence/jobs.h"
#include "verify/kernels/check_gemm.h"

enum { N = 256, K = 2048 };

static tsr_checkpoint *checkpoint;
static tsr_weights weights;
static tsr_err err;

/* Makes the folder and its config.json. Returns model.safetensors after its header. */
static FILE *begin_checkpoint(const char *config, const fixture_tensor *tensors, size_t n)
{
    uint64_t bytes;
    fixture_make();
    fixture_text("config.json", config);
    return fixture_header("model.safetensors", tensors, n, &bytes);
}

/* Closes the file, and opens the checkpoint. */
static void open_checkpoint(FILE *file)
{
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(tsr_checkpoint_open(&checkpoint, fixture_folder, NULL, 0, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(tsr_weights_pair(&weights, checkpoint, (tsr_block){0, 0}, &err), TSR_OK, "%s", err.msg);
}

static void write_tensor(FILE *file, uint64_t seed, size_t codes, size_t scales)
{
    for (size_t i = 0; i < codes; i++) {
        const uint8_t code = (uint8_t)tsr_mix_bits(seed + i);
        fputc((code & 0x7F) == 0x7F ? 0x38 : code, file);
    }
    for (size_t i = 0; i < scales; i++) {
        const float scale = 1e-3f + (float)(tsr_mix_bits(~seed + i) % 1000) * 4e-6f;
        fwrite(&scale, sizeof scale, 1, file);
    }
}

/* Writes and opens block FP8: a linear layer o_proj, and three experts, whose layer is `module`. */
static inline void make_block_fp8(const char *module)
{
    enum { EXPERTS = 3 };
    const size_t codes = (size_t)N * K, scales = N / 128 * (K / 128);
    char names[2 * (1 + EXPERTS)][64];
    fixture_tensor tensors[2 * (1 + EXPERTS)];
    for (size_t i = 0; i <= EXPERTS; i++) {
        char name[32] = "o_proj";
        if (i > 0)
            snprintf(name, sizeof name, "experts.%zu.%s", i - 1, module);
        snprintf(names[2 * i], sizeof *names, "m.%s.weight", name);
        snprintf(names[2 * i + 1], sizeof *names, "m.%s.weight_scale_inv", name);
        tensors[2 * i] = (fixture_tensor){names[2 * i], {N, K}, "F8_E4M3"};
        tensors[2 * i + 1] = (fixture_tensor){names[2 * i + 1], {N / 128, K / 128}, "F32"};
    }
    FILE *const file =
        begin_checkpoint("{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}}",
                         tensors, sizeof tensors / sizeof *tensors);
    for (uint64_t i = 0; i <= EXPERTS; i++)
        write_tensor(file, i << 40, codes, scales);
    open_checkpoint(file);
}

static void remove_checkpoint(void)
{
    tsr_weights_free(&weights);
    tsr_checkpoint_close(checkpoint);
    fixture_remove();
}

static tsr_kernel_options options_for(tsr_device *device, const char *const *glob)
{
    return (tsr_kernel_options){.side = {checkpoint, &weights},
                                .device = device,
                                .globs = glob,
                                .n_globs = 1,
                                .seed = 7,
                                .tokens = 24,
                                .experts = 8,
                                .group_rows = 1,
                                .ranks = 1,
                                .run = {.threads = 2},
                                .limits = tsr_kernel_limits_defaults()};
}

/* Checks the products of all weights on one thread and on four. The judgements are equal, and there are more than
 * `least`. */
static inline void expect_same_on_any_threads(size_t least)
{
    tsr_device device;
    const char *const glob = "*";
    tsr_evidence evidence[2] = {{0}};
    cr_assert_eq(tsr_device_open(&device, TSR_DEVICE_CPU, NULL, &err), TSR_OK);
    for (unsigned i = 0; i < 2; i++) {
        tsr_kernel_options options = options_for(&device, &glob);
        options.run.threads = 1 + 3 * i;
        cr_assert_eq(tsr_check_gemm(&options, 7, &evidence[i], &err), TSR_OK);
    }
    cr_assert_eq(evidence[0].count, evidence[1].count);
    cr_assert_gt(evidence[0].count, least);
    for (size_t i = 0; i < evidence[0].count; i++) {
        cr_assert_str_eq(evidence[0].items[i].what, evidence[1].items[i].what);
        cr_assert_eq(evidence[0].items[i].metrics.sum_d2, evidence[1].items[i].metrics.sum_d2);
    }
    tsr_evidence_free(&evidence[0]);
    tsr_evidence_free(&evidence[1]);
    tsr_device_close(&device);
}
