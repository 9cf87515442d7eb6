/* Writes and opens a layer of latent attention in BF16 for unit tests of verify mla. */
#pragma once

#include "tests/unit/fixture.h"
#include "verify/evidence/activations.h"
#include "verify/evidence/device.h"
#include "verify/mla/check_mla.h"

static tsr_checkpoint *checkpoint;
static tsr_weights weights;
static tsr_device device;
static tsr_err err;

/* Writes the layer, and opens it and the CPU. Names are below model.layers.0.self_attn. */
static void open_layer_of(const char *config, const fixture_tensor *tensors, size_t n)
{
    char names[16][64];
    fixture_tensor below[16];
    uint64_t bytes;
    for (size_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "model.layers.0.self_attn.%s", tensors[i].name);
        below[i] = tensors[i];
        below[i].name = names[i];
    }
    fixture_make();
    fixture_text("config.json", config);
    FILE *const file = fixture_header("model.safetensors", below, n, &bytes);
    for (size_t i = 0; i < bytes / 2; i++) {
        const uint16_t bits =
            (uint16_t)(0x3D80 + tsr_mix_bits(i) % 0x100 + (tsr_mix_bits(~i) % 2 << 15)); /* +-1/16 .. 1/4 */
        fwrite(&bits, sizeof bits, 1, file);
    }
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(tsr_checkpoint_open(&checkpoint, fixture_folder, NULL, 0, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(tsr_weights_pair(&weights, checkpoint, (tsr_block){0, 0}, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(tsr_device_open(&device, TSR_DEVICE_CPU, NULL, &err), TSR_OK, "%s", err.msg);
}

static void close_layer(void)
{
    tsr_device_close(&device);
    tsr_weights_free(&weights);
    tsr_checkpoint_close(checkpoint);
    fixture_remove();
}
