"""SGLang's w4afp8: experts in int4 beside block FP8, against the two schemes alone and NumPy."""

import json

import harness
import loader_models
import numpy as np
import pytest
from checkpoints import BF16, E4M3, read
from int_oracle import quantized

SGLANG = ("--scheme", "w4afp8", "--dialect", "sglang")
X = "model.layers.{}.mlp.experts.{}.{}_proj"
LEAVES = ("gate", "up", "down")


@pytest.fixture
def source(tmp_path):
    """A small DeepSeek-V3 with random values."""
    m, rng = loader_models.deepseek(), np.random.default_rng(5)
    del m.config["quantization_config"]
    m.drop("_scale_inv")
    for name, (_, shape, _) in list(m.tensors.items()):
        if not name.endswith("bias"):
            m.tensors[name] = ("BF16", shape, rng.normal(0, 0.05, shape).astype(BF16).tobytes())
    return m.write(tmp_path / "src")


def stored(folder):
    return {name: t for path in folder.glob("model*.safetensors") for name, t in read(path).items()}


def ranges(folder, change=None):
    """Makes a range for each expert's input. gate and up differ, and the larger one alternates."""
    found = {X.format(layer, e, leaf): {"min": -(1 + e + layer / 2 + (leaf == ("gate", "up")[e % 2])), "max": 0.5}
             for layer in range(2) for e in range(4) for leaf in LEAVES}
    if change:
        change(found)
    return harness.write_json(folder / "ranges.json", found)


def unpacked(codes):
    low, high = (codes.astype(np.int8) << 4).astype(np.int8) >> 4, codes.astype(np.int8) >> 4
    return np.stack([low, high], -1).reshape(len(codes), -1)


def test_the_codes_are_those_of_int4_and_of_block_fp8(source, quantize):
    dst, blocks = quantize(source, *SGLANG, "--input-scale", "0.02"), quantize(source)
    got, fp8, plain = stored(dst), stored(blocks), stored(source)
    for name in fp8:
        if ".experts." not in name:
            assert got[name].tobytes() == fp8[name].tobytes(), name
    for layer in range(2):
        for e in range(4):
            for leaf in LEAVES:
                x = X.format(layer, e, leaf)
                codes, scale, _ = quantized(plain[x + ".weight"], 4, 128, False, dtype=BF16)
                assert np.array_equal(unpacked(got[x + ".weight"]), codes), x
                assert got[x + ".weight_scale_inv"].dtype == BF16
                assert got[x + ".weight_scale_inv"].tobytes() == scale.astype(BF16).tobytes(), x
                assert got[x + ".input_scale"].dtype == BF16 and got[x + ".input_scale"].tolist() == [np.float32(BF16(0.02))]
    config = json.loads((dst / "config.json").read_text())["quantization_config"]
    assert {key: config[key] for key in config if key != "modules_to_not_convert"} == {
        "quant_method": "w4afp8", "linear_activation_scheme": "dynamic", "moe_activation_scheme": "static",
        "weight_block_size": [128, 128], "group_size": 128}
    assert "model.layers.0.mlp.gate" in config["modules_to_not_convert"] and "lm_head" in config["modules_to_not_convert"]


def test_gate_and_up_have_one_scale_of_their_input(source, tmp_path, quantize):
    got = stored(quantize(source, *SGLANG, "--activations", ranges(tmp_path)))
    for layer in range(2):
        for e in range(4):
            for leaf in LEAVES:
                amax = 1 + e + layer / 2 + (leaf != "down")
                want = np.float32(BF16(np.float32(amax) / np.float32(448)))
                assert got[X.format(layer, e, leaf) + ".input_scale"].tolist() == [want], (layer, e, leaf)


def test_an_expert_that_no_token_reached_has_the_largest_scale_of_its_layer(source, tmp_path, quantize):
    def unreached(found):
        for leaf in LEAVES:
            found[X.format(1, 0, leaf)] = {"min": 0, "max": 0}

    got = stored(quantize(source, *SGLANG, "--activations", ranges(tmp_path, unreached)))
    for leaf in LEAVES:
        assert got[X.format(1, 0, leaf) + ".input_scale"].tolist() == got[X.format(1, 3, leaf) + ".input_scale"].tolist()


def test_round_trip(source, quantize, convert, tessera):
    dst = quantize(source, *SGLANG, "--input-scale", "0.02")
    harness.succeed(tessera, ["verify", dst, "--against", source])
    harness.succeed(tessera, ["inspect", dst, "--can-load", "sglang", "--tp", "1,2"])
    got, plain = stored(dst), stored(convert(dst, "--to", "bf16"))
    x = X.format(1, 2, "down")
    values = unpacked(got[x + ".weight"]) * np.repeat(got[x + ".weight_scale_inv"].astype(np.float32), 128, 1)
    assert plain[x + ".weight"].tobytes() == values.astype(BF16).tobytes()


@pytest.mark.parametrize("options, scales", [(["--scales", "best"], "best"), (["--scales", "mse"], "mse")])
def test_scales_of_least_error(source, quantize, options, scales):
    got, same = (stored(quantize(source, *words)) for words in (
        (*SGLANG, "--input-scale", "1", *options), ("--scheme", "w4afp8", *options)))
    x = X.format(0, 1, "up")
    assert got[x + ".weight_scale_inv"].tobytes() == same[x + ".weight_scale"].tobytes()


def test_block_fp8_stays_and_experts_become_int4(source, quantize, convert, tessera):
    fp8 = quantize(source)
    dst = convert(fp8, "--to", "w4afp8", "--dialect", "sglang", "--input-scale", "0.02")
    got, before = stored(dst), stored(fp8)
    for name in before:
        if ".experts." not in name:
            assert got[name].tobytes() == before[name].tobytes(), name
    for leaf in LEAVES:
        x = X.format(1, 2, leaf)
        decoded = before[x + ".weight"].astype(np.float32) * np.kron(before[x + ".weight_scale_inv"], np.ones((128, 128), np.float32))
        codes, scale, _ = quantized(decoded, 4, 128, False, dtype=BF16)
        assert np.array_equal(unpacked(got[x + ".weight"]), codes), x
        assert got[x + ".weight_scale_inv"].tobytes() == scale.astype(BF16).tobytes(), x
        assert got[x + ".input_scale"].tolist() == [np.float32(BF16(0.02))]
    config = json.loads((dst / "config.json").read_text())["quantization_config"]
    assert config["quant_method"] == "w4afp8" and not [m for m in config["modules_to_not_convert"] if "attn" in m]
    for command in (["verify", dst, "--against", fp8], ["inspect", dst, "--can-load", "sglang", "--tp", "1,2"]):
        harness.succeed(tessera, command)


def test_packed_int4_is_moved(source, tmp_path, quantize, convert):
    """Other layers in int4 become block FP8. Unquantized layers are kept."""
    packed = quantize(source, "--scheme", "int4-weight-only", "--include", "*.o_proj.weight")
    words = ("--to", "w4afp8", "--dialect", "sglang", "--activations", ranges(tmp_path))
    got, before = stored(convert(packed, *words)), stored(packed)
    for leaf in LEAVES:
        x = X.format(0, 3, leaf)
        assert got[x + ".weight"].tobytes() == (before[x + ".weight_packed"].view(np.uint8) ^ 0x88).tobytes(), x
        assert got[x + ".weight_scale_inv"].tobytes() == before[x + ".weight_scale"].tobytes()
        assert got[x + ".input_scale"].tolist() == [np.float32(BF16(np.float32(4 + (leaf != "down")) / np.float32(448)))]
    assert got["model.layers.0.self_attn.o_proj.weight"].dtype == E4M3
    assert "model.layers.0.self_attn.o_proj.weight_packed" not in got


def test_codes_are_moved_back(source, quantize, convert, tessera):
    """The experts become packed int4 of compressed-tensors. FP8 layers become int4."""
    made = quantize(source, *SGLANG, "--input-scale", "1")
    dst = convert(made, "--to", "w4afp8", "--exclude", "*kv_b_proj*")
    got, before = stored(dst), stored(made)
    for leaf in LEAVES:
        x = X.format(1, 1, leaf)
        assert got[x + ".weight_packed"].tobytes() == (before[x + ".weight"].view(np.uint8) ^ 0x88).tobytes(), x
        assert got[x + ".weight_scale"].tobytes() == before[x + ".weight_scale_inv"].tobytes()
        assert got[x + ".weight_shape"].tolist() == [256, 256] and x + ".input_scale" not in got
    assert "model.layers.0.self_attn.o_proj.weight_packed" in got
    harness.succeed(tessera, ["verify", dst, "--against", made])


def test_fp8_in_other_blocks_is_made_anew(source, quantize, convert):
    got = stored(convert(quantize(source, "--block", "64x64"), "--to", "w4afp8", "--dialect", "sglang", "--input-scale", "1"))
    name = "model.layers.0.self_attn.o_proj.weight"
    assert got[f"{name}_scale_inv"].shape == tuple(-(-size // 128) for size in got[name].shape)


CONVERTED = {
    "other groups": (("--scheme", "int4-weight-only", "--group-size", "32"), [], "its groups differ from those of the target"),
    "zero points": (("--scheme", "int4-weight-only", "--zero-points"), [], "it has zero points, which w4afp8 of SGLang cannot store"),
    "FP16 scales": (("--scheme", "int4-weight-only", "--scale-dtype", "f16"), [], "its scales are not BF16"),
    "the same form": ((*SGLANG, "--input-scale", "1"), [], "no routed expert"),
    "a list": (("--scheme", "fp8-block"), ["--exclude", "*o_proj*"], "reads no list"),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_conversions_that_are_refused(name, source, tmp_path, quantize, tessera):
    how, options, words = CONVERTED[name]
    src = quantize(source, *how)
    command = ["convert", src, "-o", tmp_path / "out", "--to", "w4afp8", "--dialect", "sglang", "--input-scale", "1", *options]
    code, _, err = harness.run(tessera, command)
    assert code != 0 and words in err, err
    if name in ("other groups", "zero points", "FP16 scales"):
        harness.succeed(tessera, [*command, "--lossy"])


def test_a_scale_of_block_fp8_that_stays_is_checked(source, tmp_path, quantize, tessera):
    fp8 = quantize(source)
    path = next(path for path in fp8.glob("model*.safetensors") if "model.layers.0.self_attn.o_proj.weight_scale_inv" in read(path))
    metadata, tensors = harness.read_safetensors(path)
    dtype, shape, data = tensors["model.layers.0.self_attn.o_proj.weight_scale_inv"]
    tensors["model.layers.0.self_attn.o_proj.weight_scale_inv"] = dtype, shape, np.float32("nan").tobytes() + data[4:]
    harness.write_safetensors(path, tensors, metadata)
    code, _, err = harness.run(tessera, ["convert", fp8, "-o", tmp_path / "out", "--to", "w4afp8", "--dialect", "sglang", "--input-scale", "1"])
    assert code != 0 and "o_proj.weight_scale_inv" in err, err


@pytest.mark.parametrize("gpu, expected", [("h100", 0), ("b200", 3), ("mi300", 3)])
def test_it_runs_on_hopper(gpu, expected, source, tmp_path, tessera):
    code, out, err = harness.run(tessera, ["quantize", source, "-o", tmp_path / gpu, *SGLANG, "--input-scale", "1", "--for", "sglang", "--gpu", gpu])
    assert code == expected and ("compute capability 9.0" in out + err) == bool(expected), out + err


REFUSED = {
    "no scale of inputs": ([*SGLANG], "stores a scale of each expert's input"),
    "two scales of inputs": ([*SGLANG, "--input-scale", "1", "--activations", "RANGES"], "--input-scale cannot be combined"),
    "another dtype": ([*SGLANG, "--input-scale", "1", "--scale-dtype", "f32"], "rounds the scales of experts to BF16"),
    "a scale of inputs in another dialect": (["--scheme", "w4afp8", "--input-scale", "1"], "needs --dialect sglang"),
    "ranges in another dialect": (["--scheme", "w4afp8", "--activations", "RANGES"], "needs --dialect sglang"),
    "another scheme": (["--scheme", "int4-weight-only", "--dialect", "sglang"], "no loader reads int4-weight-only"),
    "scales of a cache": ([*SGLANG, "--input-scale", "1", "--kv-scale", "1"], "no scales of the KV cache"),
    "no experts": ([*SGLANG, "--input-scale", "1", "--exclude", "*.experts.*"], "no routed expert is quantized"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name, source, tmp_path, tessera):
    options, words = REFUSED[name]
    options = [ranges(tmp_path) if word == "RANGES" else word for word in options]
    code, _, err = harness.run(tessera, ["quantize", source, "-o", tmp_path / "out", *options])
    assert code != 0 and words in err and not (tmp_path / "out" / "config.json").exists(), err


def test_a_range_is_missing(source, tmp_path, tessera):
    lacking = ranges(tmp_path, lambda found: found.pop(X.format(1, 2, "up")))
    code, _, err = harness.run(tessera, ["quantize", source, "-o", tmp_path / "out", *SGLANG, "--activations", lacking])
    assert code != 0 and X.format(1, 2, "up") in err, err
