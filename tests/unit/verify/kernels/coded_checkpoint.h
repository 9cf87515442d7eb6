/* Helpers for tests of kernel checks: a checkpoint of random codes in a temporary folder, and options. */
#pragma once

#include "verify/evidence/activations.h"
#include "verify/evidence/jobs.h"
#include "verify/kernels/check_gemm.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 256, K = 2048 };

static char folder[] = "/tmp/tessera-kernels-XXXXXX";
static tsr_checkpoint *checkpoint;
static tsr_weights weights;
static tsr_err err;

static FILE *open_file(const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *const file = fopen(path, "w");
    cr_assert_not_null(file);
    if (text != NULL) {
        fputs(text, file);
        fclose(file);
    }
    return file;
}

static void open_checkpoint(void)
{
    cr_assert_eq(tsr_checkpoint_open(&checkpoint, folder, NULL, 0, &err), TSR_OK, "%s", err.msg);
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
    char header[2048] = "{";
    cr_assert_not_null(mkdtemp(folder));
    open_file("config.json",
              "{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}}");
    for (size_t i = 0, at = 0; i <= EXPERTS; i++) {
        char name[32] = "o_proj";
        if (i > 0)
            snprintf(name, sizeof name, "experts.%zu.%s", i - 1, module);
        sprintf(header + strlen(header),
                "%s\"m.%s.weight\": {\"dtype\": \"F8_E4M3\", \"shape\": [%d, %d], \"data_offsets\": [%zu, %zu]}, "
                "\"m.%s.weight_scale_inv\": {\"dtype\": \"F32\", \"shape\": [%d, %d], \"data_offsets\": [%zu, %zu]}",
                i > 0 ? ", " : "", name, N, K, at, at + codes, name, N / 128, K / 128, at + codes,
                at + codes + 4 * scales);
        at += codes + 4 * scales;
    }
    strcat(header, "}");
    FILE *const file = open_file("model.safetensors", NULL);
    const uint64_t length = strlen(header);
    fwrite(&length, sizeof length, 1, file);
    fputs(header, file);
    for (uint64_t i = 0; i <= EXPERTS; i++)
        write_tensor(file, i << 40, codes, scales);
    fclose(file);
    open_checkpoint();
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

static void remove_checkpoint(void)
{
    tsr_weights_free(&weights);
    tsr_checkpoint_close(checkpoint);
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
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
