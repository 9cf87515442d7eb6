"""Tests int8 and int4: codes, scales, zero points and packed words by definition, azp_adj against int64 sums, configuration, rejected inputs."""

import json
import shutil

from checkpoints import BF16, INDEX, REPORT, make, random_weight, read, same_bits
import harness
from int_oracle import AZP, DOWN, NORM, SCHEMES, UP, adj, away, model, packed, quantized
import numpy as np
import pytest


@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
@pytest.mark.parametrize("options,settings", [((), {}), (("--divisor", "127"), {"divisor": 127}),
                                              (("--divisor", "128", "--rounding", "away"), {"divisor": 128, "rounding": away}),
                                              (("--scale-dtype", "bf16"), {"dtype": BF16})])
def test_int8_channel(tmp_path, quantize, dtype, options, settings):
    src, source = model(tmp_path / "src", dtype)
    dst = quantize(src, "--scheme", "int8-channel", *options)
    got, azp = read(dst / "model.safetensors"), read(dst / AZP)
    assert got.keys() == {UP, UP + "_scale", DOWN, DOWN + "_scale", NORM} and azp.keys() == {adj(UP), adj(DOWN)}
    for name in (UP, DOWN):
        codes, scale, _ = quantized(source[name], 8, **settings)
        assert same_bits(got[name], codes), name
        assert same_bits(got[name + "_scale"], scale.astype(settings.get("dtype", np.float32))), name
        assert same_bits(azp[adj(name)], codes.astype(np.int64).sum(axis=1).astype(np.int32)), name
    assert same_bits(got[NORM], source[NORM])
    index = json.loads((dst / INDEX).read_text())["weight_map"]
    assert index.keys() == got.keys() and set(index.values()) == {"model.safetensors"}


@pytest.mark.parametrize("per_token", [False, True])
def test_azp_adj_is_what_the_epilogue_needs(tmp_path, quantize, per_token):
    """Checks s_a s_b (A W - z_a azp_adj) + bias = A' W' + bias, with A' and W' the decoded values."""
    src, _ = model(tmp_path / "src")
    dst = quantize(src, "--scheme", "int8-channel", "--activation-zero-points")
    got, azp = read(dst / "model.safetensors"), read(dst / AZP)
    w, s_b = got[UP].astype(np.int64), got[UP + "_scale"].astype(np.float64)[:, 0]
    rng = np.random.default_rng(3)
    a = rng.integers(-128, 128, (9, w.shape[1]))
    z = rng.integers(-128, 128, (9, 1) if per_token else (1, 1))
    s_a = rng.uniform(0.01, 0.1, (9, 1) if per_token else (1, 1))
    bias = rng.standard_normal(w.shape[0])
    raw = a @ w.T
    assert np.array_equal(raw - z * azp[adj(UP)].astype(np.int64), (a - z) @ w.T)
    ours = s_a * s_b * (raw - z * azp[adj(UP)].astype(np.int64)) + bias
    meant = (s_a * (a - z)) @ (w * s_b[:, None]).T + bias
    assert np.allclose(ours, meant, rtol=1e-12, atol=1e-12 * np.abs(meant).max())
    group = json.loads((dst / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]
    assert group["input_activations"] == {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "token", "dynamic": True}


@pytest.mark.parametrize("dtype", [BF16, np.float16])
@pytest.mark.parametrize("scheme,bits,group,asymmetric", SCHEMES)
def test_weight_only(tmp_path, quantize, scheme, bits, group, asymmetric, dtype):
    src, source = model(tmp_path / "src", dtype)
    options = ["--zero-points"] if asymmetric else []
    name = {BF16: "bf16", np.float16: "f16"}[dtype]
    dst = quantize(src, "--scheme", scheme, "--group-size", str(group), "--scale-dtype", name, *options)
    got = read(dst / "model.safetensors")
    assert not (dst / AZP).exists() and not (dst / INDEX).exists()
    endings = ["_packed", "_scale", "_shape"] + (["_zero_point"] if asymmetric else [])
    assert got.keys() == {NORM} | {n + e for n in (UP, DOWN) for e in endings}
    for weight in (UP, DOWN):
        codes, scale, zero = quantized(source[weight], bits, group, asymmetric, dtype=dtype)
        assert same_bits(got[weight + "_packed"], packed(codes, bits)), weight
        assert same_bits(got[weight + "_scale"], scale.astype(dtype)), weight
        assert got[weight + "_shape"].dtype == np.int64 and got[weight + "_shape"].tolist() == list(codes.shape)
        if asymmetric:
            padded = np.pad(zero, ((0, -len(zero) % (32 // bits)), (0, 0)), constant_values=-(2 ** (bits - 1)))
            assert same_bits(got[weight + "_zero_point"], np.ascontiguousarray(packed(padded.T, bits).T)), weight
    config = json.loads((dst / "config.json").read_text())["quantization_config"]
    args = config["config_groups"]["group_0"]["weights"]
    want = {"num_bits": bits, "type": "int", "symmetric": not asymmetric, "strategy": "group" if group else "channel",
            "dynamic": False, **({"group_size": group} if group else {})}
    assert args == want and config["format"] == "pack-quantized"
    assert config["config_groups"]["group_0"]["input_activations"] is None


def test_w4afp8_has_the_codes_of_int4_and_fp8_inputs(tmp_path, quantize, convert):
    src, _ = model(tmp_path / "src")
    plain, dst = quantize(src, "--scheme", "int4-weight-only"), quantize(src, "--scheme", "w4afp8")
    a, b = read(plain / "model.safetensors"), read(dst / "model.safetensors")
    assert a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a)
    config = json.loads((dst / "config.json").read_text())["quantization_config"]
    assert config["format"] == "pack-quantized" and config["config_groups"]["group_0"]["input_activations"] == {
        "num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
    assert config["config_groups"]["group_0"]["weights"] == {
        "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128, "dynamic": False}
    moved = convert(plain, "--to", "w4afp8")
    assert same_bits(read(moved / "model.safetensors")[UP + "_packed"], a[UP + "_packed"])
    assert json.loads((moved / "config.json").read_text())["quantization_config"] == config


def test_w4afp8_needs_groups_of_128(tmp_path, quantize, tessera):
    src, _ = model(tmp_path / "src")
    groups = quantize(src, "--scheme", "int4-weight-only", "--group-size", "32")
    harness.expect(tessera, ["convert", groups, "-o", tmp_path / "out", "--to", "w4afp8"], 2, "its groups differ from those of the target")
    code, _, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "out", "--scheme", "w4afp8", "--group-size", "32"])
    assert code == 2 and "--group-size cannot be combined with --scheme w4afp8" in err, err


@pytest.mark.parametrize("gpu, word", [("h100", None), ("b200", "int4 with FP8 inputs on b200"), ("mi300", "compute capability 9.0")])
def test_w4afp8_runs_on_hopper(gpu, word, tmp_path, checkpoint, tessera):
    code, out, err = harness.run(tessera, ["quantize", checkpoint("llama"), "-o", tmp_path / gpu, "--scheme", "w4afp8",
                                           "--for", "vllm", "--gpu", gpu])
    assert code == (3 if word else 0) and (word is None or word in out + err), (gpu, code, out + err)


@pytest.mark.parametrize("scheme,bits,group,asymmetric", [("int8-channel", 8, 0, False), *SCHEMES])
def test_report(tmp_path, quantize, scheme, bits, group, asymmetric):
    src, source = model(tmp_path / "src")
    options = [] if scheme == "int8-channel" else ["--group-size", str(group)]
    dst = quantize(src, "--scheme", scheme, *options, *(["--zero-points"] if asymmetric else []))
    dtype = np.float32 if scheme == "int8-channel" else BF16
    rows = json.loads((dst / REPORT).read_text())["tensors"]
    assert {row["name"] for row in rows} == {UP, DOWN}
    for row in rows:
        codes, scale, zero = quantized(source[row["name"]], bits, group, asymmetric, dtype=dtype)
        x = source[row["name"]].astype(np.float64)
        split = codes.reshape(*scale.shape, -1).astype(np.float64)
        y = ((split - zero[..., None]) * scale[..., None].astype(np.float64)).reshape(x.shape)
        assert row["relative_error"] == pytest.approx(np.sqrt(((x - y) ** 2).sum() / (x**2).sum()), rel=1e-4)
        assert row["max_abs_error"] == pytest.approx(np.abs(x - y).max(), rel=1e-4)
        assert row["zero_blocks"] == (np.abs(x.reshape(*scale.shape, -1)).max(axis=2) == 0).sum()


@pytest.mark.parametrize("scheme", ["int8-channel", "int8-weight-only", "int4-weight-only"])
def test_least_squares_is_never_worse(tmp_path, quantize, scheme):
    src, _ = model(tmp_path / "src")
    plain, searched = (json.loads((quantize(src, "--scheme", scheme, "--scales", s) / REPORT).read_text())
                       for s in ("amax", "mse"))
    assert plain["tensors"]
    for a, b in zip(plain["tensors"], searched["tensors"], strict=True):
        assert b["relative_error"] <= a["relative_error"]
    if scheme == "int4-weight-only":  # clipping pays where steps are coarse
        assert searched["whole"]["sqnr_db"] > plain["whole"]["sqnr_db"]


@pytest.mark.parametrize("scheme", ["int8-channel", "int4-weight-only"])
def test_threads_and_instruction_sets_agree(tmp_path, quantize, scheme):
    src, _ = model(tmp_path / "src", shape=(2048, 4096))
    first = quantize(src, "--scheme", scheme)
    for options in (("--threads", "1", "--cpumask", "0"), ("--threads", "3", "--cpumask", "1")):
        other = quantize(src, "--scheme", scheme, *options)
        assert harness.tree_difference(first, other) is None


def test_stacked_experts_stay(tmp_path, quantize):
    experts = "model.layers.0.mlp.experts.down_proj"
    src, source = model(tmp_path / "src", **{experts: random_weight((2, 8, 16)).astype(BF16)})
    dst = quantize(src, "--scheme", "int8-channel", "--experts", "stack")
    assert same_bits(read(dst / "model.safetensors")[experts], source[experts])
    assert experts in json.loads((dst / "config.json").read_text())["quantization_config"]["ignore"]


def test_no_stray_index_when_read_again(tmp_path, tessera, quantize):
    """The sums are a side file, so another reader of the directory finds only the model."""
    src, _ = model(tmp_path / "src")
    dst = quantize(src, "--scheme", "int8-channel")
    shutil.rmtree(dst / ".tessera")
    harness.succeed(tessera, ["convert", dst, "-o", tmp_path / "again", "--to", "archive", "--quiet"])
    assert harness.same_file(dst / AZP, tmp_path / "again" / AZP)


REFUSED = [
    (("int4-weight-only", "--group-size", "0"), (8, 12), 3, ["12 columns", "not a multiple of the 8 codes", "8 or 16"]),
    (("int8-weight-only",), (8, 10), 3, ["10 columns", "8 or 12"]),
    (("int4-weight-only",), (8, 320), 3, ["groups of 128", "320", "groups of 64 do"]),
    (("int8-channel",), (1, 131072), 3, ["131072 columns", "int32"]),
    (("int8-channel", "--group-size", "32"), (8, 16), 2, ["--group-size cannot be combined with --scheme int8-channel"]),
    (("int4-weight-only", "--group-size", "48"), (8, 96), 2, ["0, 32, 64 or 128"]),
    (("int4-weight-only", "--divisor", "127"), (8, 128), 2, ["--divisor 127"]),
    (("int8-channel", "--block", "64x64"), (8, 16), 2, ["--block cannot be combined"]),
]


@pytest.mark.parametrize("options,shape,expected,words", REFUSED)
def test_refusals(tmp_path, tessera, options, shape, expected, words):
    src = make(tmp_path / "src", {"model.safetensors": {UP: np.ones(shape, BF16)}}, quantization=None)
    harness.expect(tessera, ["quantize", src, "-o", tmp_path / "out", "--scheme", *options], expected, *words)
    assert not (tmp_path / "out" / "config.json").exists()


def test_scales_at_the_end_of_their_range(tmp_path, tessera, quantize):
    """A range beyond FP32 is quantized. A scale beyond F16 is rejected, not written as Inf."""
    w = np.array([[3e38, -3e38] * 64] + [[1, -1] * 64] * 7, BF16)
    src = make(tmp_path / "src", {"model.safetensors": {UP: w}}, quantization=None)
    dst = quantize(src, "--scheme", "int4-weight-only", "--zero-points")
    scale = read(dst / "model.safetensors")[UP + "_scale"].astype(np.float64)
    assert np.isfinite(scale).all() and scale[0, 0] == pytest.approx(6e38 / 15, rel=0.01)
    for command in (["quantize", "--scheme", "int8-weight-only"], ["convert", "--to", "fastertransformer", "--arch", "sm70"]):
        harness.expect(tessera, [command[0], src, "-o", tmp_path / command[0], *command[1:], "--scale-dtype", "f16"], 3, "F16", "--scale-dtype")


@pytest.mark.parametrize("size", ["1GB", "1KB"])
@pytest.mark.parametrize("ending", ["_packed"])
def test_no_two_tensors_become_one(tmp_path, tessera, ending, size):
    """A file with a duplicate name is rejected, and so is an index with a name in two files."""
    src, _ = model(tmp_path / "src", **{UP + ending: np.ones((4, 4), BF16)})
    code, _, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "out", "--scheme", "int4-weight-only", "--max-shard-size", size])
    assert code == 3 and f"two output tensors would have the name '{UP + ending}'" in err, err
    assert not list((tmp_path / "out").rglob("*.safetensors*"))
