/* Writes and opens a layer of latent attention in BF16 for unit tests of verify mla. */
#pragma once

#include "verify/evidence/activations.h"
#include "verify/evidence/device.h"
#include "verify/mla/check_mla.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct layer_tensor {
    const char *name;  /* below model.layers.0.self_attn */
    size_t rows, cols; /* cols 0: a vector */
} layer_tensor;

static char folder[] = "/tmp/tessera-mla-XXXXXX";
static tsr_checkpoint *checkpoint;
static tsr_weights weights;
static tsr_device device;
static tsr_err err;

static FILE *open_file(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *const file = fopen(path, "w");
    cr_assert_not_null(file);
    return file;
}

/* Writes the layer, and opens it and the CPU. */
static void open_layer_of(const char *config, const layer_tensor *tensors, size_t n)
{
    char header[2048] = "{";
    size_t at = 0;
    cr_assert_not_null(mkdtemp(folder));
    FILE *file = open_file("config.json");
    fputs(config, file);
    fclose(file);
    for (size_t i = 0; i < n; i++) {
        const size_t rows = tensors[i].rows, cols = tensors[i].cols, bytes = 2 * rows * (cols > 0 ? cols : 1);
        char shape[32];
        snprintf(shape, sizeof shape, cols > 0 ? "%zu, %zu" : "%zu", rows, cols);
        sprintf(header + strlen(header),
                "%s\"model.layers.0.self_attn.%s\": {\"dtype\": \"BF16\", \"shape\": [%s], "
                "\"data_offsets\": [%zu, %zu]}",
                i > 0 ? ", " : "", tensors[i].name, shape, at, at + bytes);
        at += bytes;
    }
    strcat(header, "}");
    file = open_file("model.safetensors");
    const uint64_t length = strlen(header);
    fwrite(&length, sizeof length, 1, file);
    fputs(header, file);
    for (size_t i = 0; i < at / 2; i++) {
        const uint16_t bits =
            (uint16_t)(0x3D80 + tsr_mix_bits(i) % 0x100 + (tsr_mix_bits(~i) % 2 << 15)); /* +-1/16 .. 1/4 */
        fwrite(&bits, sizeof bits, 1, file);
    }
    fclose(file);
    cr_assert_eq(tsr_checkpoint_open(&checkpoint, folder, NULL, 0, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(tsr_weights_pair(&weights, checkpoint, (tsr_block){0, 0}, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(tsr_device_open(&device, TSR_DEVICE_CPU, NULL, &err), TSR_OK, "%s", err.msg);
}

static void close_layer(void)
{
    char path[128];
    tsr_device_close(&device);
    tsr_weights_free(&weights);
    tsr_checkpoint_close(checkpoint);
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, i == 0 ? "config.json" : "model.safetensors");
        remove(path);
    }
    rmdir(folder);
}
