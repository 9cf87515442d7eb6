"""Tests e4m3 with one scale per row: codes, scales, configuration, and conversion back."""

import json

from checkpoints import BF16, llama_ends, make, random_weight, read, same_bits
import fp8_oracle
import harness
from int_oracle import NORM, UP, model
import ml_dtypes
import numpy as np
import pytest

FP8 = ml_dtypes.float8_e4m3fn


@pytest.mark.parametrize("options,scale_dtype", [((), np.float32), (("--scale-dtype", "bf16"), BF16)])
@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
@pytest.mark.parametrize("shape", [(40, 256), (7, 5000), (300, 33)])
def test_codes_and_scales(tmp_path, tessera, quantize, dtype, shape, options, scale_dtype):
    w = random_weight(shape, 4).astype(dtype)
    w[1] = 0
    if dtype != np.float16:
        w[2] *= 1e-36  # its scale is subnormal
        w[3] *= 1e-38  # and its scale nearly zero
    src = make(tmp_path / "src", {"model.safetensors": {UP: w, NORM: np.ones(8, dtype)}}, quantization=None)
    dst = quantize(src, "--scheme", "fp8-channel", *options)
    got = read(dst / "model.safetensors")
    codes, scale = fp8_oracle.quantize_rows(w, scale_dtype)
    assert got.keys() == {UP, UP + "_scale", NORM}
    assert same_bits(got[UP], codes) and same_bits(got[UP + "_scale"], scale.astype(scale_dtype))
    harness.succeed(tessera, ["verify", dst, "--against", src])
    harness.succeed(tessera, ["convert", dst, "-o", tmp_path / "back", "--to", "bf16", "--dtype", "f32"])
    assert same_bits(read(tmp_path / "back" / "model.safetensors")[UP], codes.astype(np.float32) * scale)


@pytest.mark.parametrize("options,scale_dtype", [((), np.float32), (("--scale-dtype", "bf16"), BF16)])
def test_configuration_and_report(tmp_path, tessera, quantize, options, scale_dtype):
    src, source = model(tmp_path / "src", **llama_ends(256))
    dst = quantize(src, "--scheme", "fp8-channel", *options)
    q = json.loads((dst / "config.json").read_text())["quantization_config"]
    group = q["config_groups"]["group_0"]
    assert (q["quant_method"], q["format"]) == ("compressed-tensors", "float-quantized")
    assert group["weights"] == {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False}
    assert group["input_activations"] == {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
    rows = json.loads((dst / "quantization_report.json").read_text())["tensors"]
    assert rows
    for row in rows:
        codes, scale = fp8_oracle.quantize_rows(source[row["name"]], scale_dtype)
        x = source[row["name"]].astype(np.float64)
        error = x - codes.astype(np.float64) * scale.astype(np.float64)
        assert row["relative_error"] == pytest.approx(np.sqrt((error**2).sum() / (x**2).sum()), rel=1e-4)
        assert row["scale_max"] == pytest.approx(scale[scale != 1].max(), rel=1e-6)
    harness.succeed(tessera, ["inspect", dst, "--can-load", "vllm", "--tp", "1"])


@pytest.mark.parametrize("scale_dtype", ["f32", "bf16"])
def test_least_squares_and_threads(tmp_path, quantize, scale_dtype):
    src, _ = model(tmp_path / "src", shape=(600, 3000))
    how = ("--scheme", "fp8-channel", "--scale-dtype", scale_dtype)
    plain, searched = (json.loads((quantize(src, *how, "--scales", s) / "quantization_report.json").read_text())
                       for s in ("amax", "mse"))
    assert all(b["relative_error"] <= a["relative_error"] for a, b in zip(plain["tensors"], searched["tensors"], strict=True))
    assert any(b["relative_error"] < a["relative_error"] for a, b in zip(plain["tensors"], searched["tensors"]))
    first = quantize(src, *how)
    for options in (("--threads", "1", "--cpumask", "0"), ("--threads", "3", "--cpumask", "1")):
        assert harness.tree_difference(first, quantize(src, *how, *options)) is None


def test_f16_scales_are_refused(tmp_path, tessera):
    src, _ = model(tmp_path / "src")
    harness.expect(tessera, ["quantize", src, "-o", tmp_path / "out", "--scheme", "fp8-channel", "--scale-dtype", "f16"], 2, "f32 or bf16")


def test_nan_is_refused_with_its_place(tmp_path, tessera):
    w = np.ones((4, 64), BF16)
    w[2, 17] = np.nan
    src = make(tmp_path / "src", {"model.safetensors": {UP: w}}, quantization=None)
    harness.expect(tessera, ["quantize", src, "-o", tmp_path / "out", "--scheme", "fp8-channel"], 3, "NaN at [2, 17]")


def test_blocks_of_128_are_made_of_it(tmp_path, tessera, quantize, convert):
    src, source = model(tmp_path / "src", shape=(300, 500))
    dst = convert(quantize(src, "--scheme", "fp8-channel"), "--to", "fp8-block")
    assert json.loads((dst / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]["weights"]["block_structure"] == [128, 128]
    assert read(dst / "model.safetensors")[UP + "_scale"].shape == (3, 4)
