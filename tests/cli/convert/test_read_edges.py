"""Tests reading of weights at the edges of their format: without elements, of one row, of one scale."""

import coded_files
import format_samples as f
import harness
import numpy as np
import pytest

X = "model.layers.0.mlp.down_proj"


def expect(tmp_path, tessera, src, module):
    """Checks that convert --to bf16 writes the module's values."""
    harness.succeed(tessera, ["convert", src, "-o", tmp_path / "dst", "--to", "bf16", "--quiet"])
    dtype, shape, data = harness.read_safetensors(tmp_path / "dst/model.safetensors")[1][module.name]
    assert (dtype, list(shape)) == ("BF16", list(module.values.shape)) and data == module.values.astype(f.BF16).tobytes()


@pytest.mark.parametrize("shape,scales", [((0, 96), (1,)), ((0, 0), (1,)), ((24, 0), (24, 1))])
def test_fp8_without_elements(shape, scales, tmp_path, tessera):
    """Codes without rows or columns with one scale are an empty weight, not a division by zero."""
    module = f.Module(X + ".weight", {X + ".weight": f.entry("F8_E4M3", np.zeros(shape, f.E4M3)),
                                      X + ".weight_scale": f.entry("F32", np.ones(scales, np.float32))}, np.zeros(shape, np.float32), None)
    src = coded_files.write(tmp_path / "src", module)
    assert "1 weight is FP8 with a scale a" in harness.succeed(tessera, ["inspect", src])
    expect(tmp_path, tessera, src, module)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_int8_of_one_row(shape, tmp_path, tessera):
    """One scale of a weight with one row is both per row and per tensor, and may be a scalar."""
    codes, scale = np.arange(-48, 48, dtype=np.int8).reshape(1, 96), np.full(shape, 0.25, np.float16)
    module = f.Module(X + ".weight", {X + ".weight": f.entry("I8", codes), X + ".weight_scale": f.entry("F16", scale)},
                      codes.astype(np.float32) * np.float32(0.25), None)
    expect(tmp_path, tessera, coded_files.write(tmp_path / "src", module), module)


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_integers_of_one_scale(bits, tmp_path, tessera):
    """One scale and one zero point apply to all rows. The zero point is in the lowest bits of a word."""
    codes, zero, per_word = np.random.default_rng(5).integers(0, 2**bits, (40, 96)), 2 ** (bits - 1) - 3, 32 // bits
    words = (codes.astype(np.uint32).reshape(40, -1, per_word) << (bits * np.arange(per_word, dtype=np.uint32))).sum(2, dtype=np.uint32)
    stated = f.group(bits, None, kind="int", strategy="tensor")
    stated["weights"] |= {"symmetric": False}
    tensors = {"_packed": f.entry("I32", words), "_scale": f.entry("F32", np.float32([0.25])), "_shape": f.entry("I64", np.array([40, 96])),
               "_zero_point": f.entry("I32", np.array([[zero]], np.uint32))}
    module = f.Module(X + ".weight", {X + ".weight" + name: entry for name, entry in tensors.items()},
                      (codes - zero).astype(np.float32) * np.float32(0.25), f.compressed("pack-quantized", stated))
    expect(tmp_path, tessera, coded_files.write(tmp_path / "src", module), module)
