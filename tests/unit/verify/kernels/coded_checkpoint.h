/* Helpers of the tests of kernel checks: a checkpoint of random codes in a folder of its own, and options to check it. */
#ifndef TESTS_UNIT_VERIFY_KERNELS_CODED_CHECKPOINT_H
#define TESTS_UNIT_VERIFY_KERNELS_CODED_CHECKPOINT_H

#include "verify/evidence/activations.h"
#include "verify/evidence/jobs.h"

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
                                .run = {.threads = 2},
                                .limits = tsr_kernel_limits_defaults()};
}

#endif
