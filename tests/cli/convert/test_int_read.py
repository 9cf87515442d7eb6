"""Tests reading of int8 and int4 weights: values, pairing, verify, diff, inspect, and faults that verify must find."""

import json
import shutil

from checkpoints import BF16, llama_ends, make, read, same_bits
import harness
from int_oracle import DOWN, SCHEMES, UP, model, quantized
import numpy as np
import pytest
from safetensors.numpy import save_file

ALL = [("int8-channel", 8, 0, False), *SCHEMES]
NUMPY = {"bf16": BF16, "f16": np.float16, "f32": np.float32}


def options(scheme, group, asymmetric):
    group = () if scheme == "int8-channel" else ("--group-size", str(group))
    return ("--scheme", scheme, *group, *(("--zero-points",) if asymmetric else ()))


def values(weight, bits, group, asymmetric, scale_dtype):
    """Returns (code - zero point) * scale in FP32."""
    codes, scale, zero = quantized(weight, bits, group, asymmetric, dtype=scale_dtype)
    split = codes.reshape(*scale.shape, -1).astype(np.float32)
    return ((split - zero[..., None].astype(np.float32)) * scale[..., None]).reshape(codes.shape)


def verify(tessera, dst, src, *arguments):
    return harness.run(tessera, ["verify", dst, "--against", src, *arguments])


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("scheme,bits,group,asymmetric", ALL)
def test_dequantized(tmp_path, quantize, convert, scheme, bits, group, asymmetric, dtype):
    src, source = model(tmp_path / "src")
    dst = quantize(src, *options(scheme, group, asymmetric))
    back = convert(dst, "--to", "bf16", "--dtype", dtype)
    got = read(back / "model.safetensors")
    assert got.keys() == source.keys()
    for name in (UP, DOWN):
        want = values(source[name], bits, group, asymmetric, np.float32 if scheme == "int8-channel" else BF16)
        assert same_bits(got[name], want.astype(NUMPY[dtype])), name
    assert "quantization_config" not in json.loads((back / "config.json").read_text())
    assert not (back / "tessera-azp.safetensors").exists()


@pytest.mark.parametrize("scheme,bits,group,asymmetric", ALL)
def test_verify_diff_and_inspect(tmp_path, tessera, quantize, convert, scheme, bits, group, asymmetric):
    src, source = model(tmp_path / "src", shape=(264, 384), **llama_ends(384))
    dst = quantize(src, *options(scheme, group, asymmetric))
    code, out, err = verify(tessera, dst, src, "--json", tmp_path / "v.json")
    assert code == 0, out + err
    rows = {r["name"]: r for r in json.loads((tmp_path / "v.json").read_text())["tensors"]}
    assert rows.keys() == source.keys()
    want = values(source[UP], bits, group, asymmetric, np.float32 if scheme == "int8-channel" else BF16)
    x = source[UP].astype(np.float64)
    error = np.sqrt(((x - want) ** 2).sum() / (x**2).sum())
    assert rows[UP]["relative_error"] == pytest.approx(error, rel=1e-6)
    harness.succeed(tessera, ["diff", dst, convert(dst, "--to", "bf16", "--dtype", "f32"), "--tolerance", "1e-7"])
    harness.succeed(tessera, ["inspect", dst, "--can-load", "vllm", "--tp", "1", "--json", tmp_path / "i.json"])
    kind = "int8" if scheme == "int8-channel" else f"packed int{bits}"
    assert json.loads((tmp_path / "i.json").read_text())["quantization"]["codes"][kind] == 2
    assert f"{want.max():.6g}" in harness.succeed(tessera, ["inspect", f"{dst}:{UP}"])


def damaged(dst, tmp_path, change):
    """Returns the checkpoint after `change` has modified its tensors."""
    other = tmp_path / "damaged"
    shutil.copytree(dst, other)
    shutil.rmtree(other / ".tessera")
    tensors = read(dst / "model.safetensors")
    change(tensors)
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, other / "model.safetensors", {"format": "pt"})
    return other


def flip(tensors):
    tensors[UP + "_packed"] = tensors[UP + "_packed"].copy()
    tensors[UP + "_packed"][7, 3] ^= 1 << 14


def transpose(tensors):
    s = tensors[UP + "_scale"]
    tensors[UP + "_scale"] = np.ascontiguousarray(s.T).reshape(s.shape)


def shift(tensors):
    s = tensors[UP + "_scale"]
    tensors[UP + "_scale"] = np.roll(s.reshape(-1), 1).reshape(s.shape)


def invert(tensors):
    tensors[UP + "_scale"] = (1 / tensors[UP + "_scale"].astype(np.float32)).astype(BF16)


def zero_points(tensors):
    tensors[UP + "_zero_point"] = tensors[UP + "_zero_point"] ^ 0x00100000


def negative(tensors):
    tensors[DOWN + "_scale"] = -tensors[DOWN + "_scale"]


FAULTS = [(flip, "flipped bit"), (transpose, "transposed"), (shift, "shifted by one block"), (invert, "1/scale"),
          (zero_points, "codes are not the nearest"), (negative, "negative")]


@pytest.mark.parametrize("fault,words", FAULTS)
def test_faults_are_named(tmp_path, tessera, quantize, fault, words):
    rng = np.random.default_rng(5)
    w = rng.standard_normal((264, 384)).astype(np.float32) * np.exp2(rng.integers(-6, 6, (264, 384 // 32))).repeat(32, 1)
    src = make(tmp_path / "src", {"model.safetensors": {UP: w.astype(BF16), DOWN: w.astype(BF16)[:8, :64]}}, quantization=None)
    dst = quantize(src, "--scheme", "int4-weight-only", "--group-size", "32", "--zero-points")
    assert verify(tessera, dst, src)[0] == 0
    code, out, err = verify(tessera, damaged(dst, tmp_path, fault), src)
    assert code == 1 and words in out, out + err


def drop(name):
    return lambda tensors: tensors.pop(name)


def replace(name, value):
    return lambda tensors: tensors.__setitem__(name, value)


REFUSED = [
    (drop(UP + "_scale"), [UP + "_packed", "without a scale"]),
    (drop(UP + "_shape"), [UP + "_shape"]),
    (drop(UP + "_packed"), [UP + "_s", "in none of the"]),
    (replace(UP + "_shape", np.array([40, 255])), ["integer coding in config.json"]),
    (replace(UP + "_shape", np.array([39, 256])), [UP + "_shape", "number of rows"]),
    (replace(UP + "_scale", np.ones((40, 3), BF16)), ["integer coding in config.json", "[40, 3]"]),
    (replace(UP + "_scale", np.ones((1, 40, 8), BF16)), ["integer coding in config.json", "[1, 40, 8]"]),
    (replace(UP + "_scale", np.ones(320, BF16)), ["integer coding in config.json", "[320]"]),
    (replace(UP + "_zero_point", np.zeros((40, 8), np.int32)), [UP + "_zero_point", "[5, 8]"]),
    (replace(UP + "_zero_point", np.zeros((1, 5, 8), np.int32)), [UP + "_zero_point", "[5, 8]", "[1, 5, 8]"]),
    (replace(UP + "_zero_point", np.zeros((8, 5), np.int32)), [UP + "_zero_point", "[5, 8]", "[8, 5]"]),
    (replace(UP + "_g_idx", np.zeros((1, 256, 1), np.int32)), [UP + "_g_idx", "256 inputs"]),
    (replace(UP + "_g_idx", np.full(256, 9, np.int32)), [UP + "_g_idx", "input 0", "group 9 of"]),
    (replace(UP + "_g_idx", np.full(256, -1, np.int32)), [UP + "_g_idx", "group -1 of"]),
    (replace(UP + "_g_idx", np.zeros(255, np.int32)), [UP + "_g_idx", "256 inputs"]),
    (replace(UP, np.zeros((40, 256), BF16)), [UP + "_packed", "remove the wrong one"]),
]


@pytest.mark.parametrize("change,words", REFUSED)
def test_what_does_not_fit_is_refused(tmp_path, tessera, quantize, change, words):
    src, _ = model(tmp_path / "src")
    dst = quantize(src, "--scheme", "int4-weight-only", "--group-size", "32", "--zero-points")
    harness.expect(tessera, ["convert", damaged(dst, tmp_path, change), "-o", tmp_path / "out", "--to", "bf16"], 3, *words)


@pytest.mark.parametrize("shape", [(1, 40, 1), (1, 40), (40, 1, 1), (2, 20), (1, 1, 40)])
@pytest.mark.parametrize("name", ["_scale", "_zero_point"])
def test_a_value_a_row_has_the_dimensions_of_a_column(tmp_path, tessera, name, shape):
    q = {"quant_method": "compressed-tensors", "format": "int-quantized",
         "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "channel"}}}}
    tensors = {UP: np.ones((40, 256), np.int8), UP + "_scale": np.ones((40, 1), np.float32), UP + "_zero_point": np.zeros((40, 1), np.int8)}
    for fine in ((40, 1), (40,)):
        tensors[UP + name] = tensors[UP + name].reshape(fine)
        src = make(tmp_path / f"fine{len(fine)}", {"model.safetensors": tensors}, quantization=q)
        harness.succeed(tessera, ["convert", src, "-o", tmp_path / f"out{len(fine)}", "--to", "bf16", "--quiet"])
    tensors[UP + name] = tensors[UP + name].reshape(shape)
    src = make(tmp_path / "src", {"model.safetensors": tensors}, quantization=q)
    for words in (["convert", src, "-o", tmp_path / "out", "--to", "bf16"], ["inspect", src]):
        code, out, err = harness.run(tessera, words)
        assert code == (1 if words[0] == "inspect" else 3) and UP + name in out + err and str(list(shape)) in out + err, out + err


@pytest.mark.parametrize("target", [("tp", "--tp", "2"), ("deepseek-mp", "--mp", "2")])
def test_conversions_that_read_no_integers_say_so(tmp_path, tessera, quantize, target):
    src, _ = model(tmp_path / "src")
    dst = quantize(src, "--scheme", "int8-channel")
    harness.expect(tessera, ["convert", dst, "-o", tmp_path / "out", "--to", *target], 3, "int8", "--to bf16")


def test_a_scale_a_tensor(tmp_path, convert):
    """Tests naive forms of other tools: one scale for all values, and zero points as int8."""
    rng = np.random.default_rng(6)
    codes = rng.integers(-128, 128, (24, 40)).astype(np.int8)
    q = {"quant_method": "compressed-tensors", "format": "int-quantized",
         "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "symmetric": False,
                                                                          "strategy": "tensor"}}}}
    src = make(tmp_path / "src", {"model.safetensors": {
        UP: codes, UP + "_scale": np.array([0.25], np.float32), UP + "_zero_point": np.array([-7], np.int8)}}, quantization=q)
    got = read(convert(src, "--to", "bf16", "--dtype", "f32") / "model.safetensors")
    assert same_bits(got[UP], (codes.astype(np.float32) + 7) * np.float32(0.25))


@pytest.mark.parametrize("dtype", ["int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_any_integers_are_a_shape(tmp_path, tessera, quantize, convert, dtype):
    """Kimi-K2 stores weight_shape in I32, llm-compressor in I64."""
    src, _ = model(tmp_path / "src")
    dst = quantize(src, "--scheme", "int4-weight-only", "--group-size", "32")
    other = damaged(dst, tmp_path, lambda tensors: tensors.update(
        {name: value.astype(dtype) for name, value in tensors.items() if name.endswith("_shape")}))
    want = read(convert(dst, "--to", "bf16") / "model.safetensors")
    got = read(convert(other, "--to", "bf16") / "model.safetensors")
    assert got.keys() == want.keys() and all(same_bits(got[name], want[name]) for name in want)
    assert verify(tessera, other, src)[0] == 0
    harness.succeed(tessera, ["inspect", other])


@pytest.mark.parametrize("bad", [np.array([40.0, 256.0], np.float32), np.array([-40, 256], np.int32), np.array([40], np.int32)])
def test_other_shapes_are_refused(tmp_path, tessera, quantize, bad):
    src, _ = model(tmp_path / "src")
    dst = quantize(src, "--scheme", "int4-weight-only", "--group-size", "32")
    code, _, err = harness.run(tessera, ["convert", damaged(dst, tmp_path, replace(UP + "_shape", bad)), "-o",
                                         tmp_path / "out", "--to", "bf16"])
    assert code == 3 and UP + "_shape" in err, err


def test_a_configuration_that_stands_twice_goes_twice(tmp_path, tessera, quantize, convert):
    """Kimi-K2.5 has quantization_config at the top and in text_config. Both are removed, because loaders read either."""
    src, _ = model(tmp_path / "src")
    dst = quantize(src, "--scheme", "int4-weight-only", "--group-size", "32")
    config = json.loads((dst / "config.json").read_text())
    config["text_config"] = {"hidden_size": 1, "quantization_config": config["quantization_config"]}
    (dst / "config.json").write_text(json.dumps(config))
    back = convert(dst, "--to", "bf16")
    config = json.loads((back / "config.json").read_text())
    assert "quantization_config" not in config and config["text_config"] == {"hidden_size": 1}
    harness.succeed(tessera, ["inspect", back])


def coarse(shape=(264, 384)):
    """Makes groups of 128 with one large value and many of half a step. Sums of such codes say little about their scale."""
    rng = np.random.default_rng(7)
    w = rng.uniform(0.51, 0.6, shape).astype(np.float32)
    w[:, ::128] = 7.4
    return (w * np.exp2(rng.integers(-6, 6, (shape[0], shape[1] // 128))).repeat(128, 1)).astype(BF16)


@pytest.mark.parametrize("flips,words", [(1, "flipped bit"), (2000, "codes are not the nearest")])
def test_right_scales_of_coarse_codes_are_not_accused(tmp_path, tessera, quantize, flips, words):
    """The scales are those from amax, although the codes are wrong, as GPTQ's may be. verify does not report the scales."""
    src = make(tmp_path / "src", {"model.safetensors": {UP: coarse()}}, quantization=None)
    dst = quantize(src, "--scheme", "int4-weight-only", "--group-size", "128")

    def flip_some(tensors):
        rng = np.random.default_rng(8)
        fields = tensors[UP + "_packed"].copy().view(np.uint8).reshape(-1)
        for at in rng.choice(fields.size // 16, flips, replace=False):  # not the byte of the large value
            fields[16 * at + rng.integers(1, 16)] ^= 0x10
        tensors[UP + "_packed"] = fields.view(np.int32).reshape(tensors[UP + "_packed"].shape)

    code, out, err = verify(tessera, damaged(dst, tmp_path, flip_some), src)
    assert code == 1 and words in out and "scales do not" not in out, out + err
