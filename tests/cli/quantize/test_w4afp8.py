"""SGLang's w4afp8: experts in int4 beside block FP8, against the two schemes alone and NumPy."""

import json

import harness
import loader_models
import numpy as np
import pytest
from checkpoints import BF16, read
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
    """A range for each expert's input; gate has a smaller one than up."""
    found = {X.format(layer, e, leaf): {"min": -(1 + e + layer / 2 + (leaf == "up")), "max": 0.5}
             for layer in range(2) for e in range(4) for leaf in LEAVES}
    if change:
        change(found)
    path = folder / "ranges.json"
    path.write_text(json.dumps(found))
    return path


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
    code, out, err = harness.run(tessera, ["verify", dst, "--against", source])
    assert code == 0, out + err
    code, out, err = harness.run(tessera, ["inspect", dst, "--can-load", "sglang", "--tp", "1,2"])
    assert code == 0, out + err
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
