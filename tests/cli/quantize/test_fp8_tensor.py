"""Tests e4m3 with one scale per tensor: codes, shared scales, scales of inputs, configuration, and conversion back."""

import json

from checkpoints import BF16, make, random_weight, same_bits
import fp8_oracle
import harness
import mx_oracle as mx
import numpy as np
import pytest
import stored_oracle as stored

RANGES = (-3, 4.5)
LARGEST = np.float32(4.5)


def made(weights, shape, input_scale=None):
    """Returns {name: array} of the weights' tensors. `shape` is the shape of a scale."""
    out = {}
    for module, w in weights.items():
        amax = max(np.abs(weights[member].astype(np.float32)).max() for member in mx.joined(module, weights))
        codes, scale = fp8_oracle.quantize_tensor(w, amax)
        out |= {f"{module}.weight": codes, f"{module}.weight_scale": np.full(shape, scale, np.float32)}
        if input_scale is not None:
            out[f"{module}.input_scale"] = np.full(shape, input_scale, np.float32)
    return out


@pytest.fixture
def ranges(tmp_path):
    def write(modules):
        return harness.write_json(tmp_path / "ranges.json", {module: dict(zip(("min", "max"), RANGES)) for module in modules})

    return write


def no_finding(inspect, dst, loaders):
    """Checks that loaders find nothing else than the missing norms of the small model."""
    _, told = inspect(dst, "--can-load", loaders, "--tp", "1")
    assert [f for f in told["load_findings"] if f["severity"] == "error" and "there is no 'model." not in f["detail"]] == []


@pytest.mark.parametrize("scheme, name", [("fp8-tensor", "input_scale"), ("nvfp4", "input_scale"), ("nvfp4", "input_global_scale")])
def test_scales_of_inputs_are_checked(tmp_path, tessera, quantize, inspect, scheme, name):
    """A static scale that is missing, zero, negative or NaN."""
    dialect = "compressed-tensors" if name == "input_global_scale" else "modelopt"
    src, weights = mx.model(tmp_path / "src")
    dst = quantize(src, "--scheme", scheme, "--dialect", dialect, "--input-scale", "0.25")
    no_finding(inspect, dst, "vllm,sglang")
    start, entries, _ = harness.read_header(dst / "model.safetensors")
    whole, scale = (dst / "model.safetensors").read_bytes(), f"{next(iter(weights))}.{name}"
    at = start + entries[scale]["data_offsets"][0]
    for value in (0.0, -1.0, np.nan):
        (dst / "model.safetensors").write_bytes(whole[:at] + np.float32(value).tobytes() + whole[at + 4:])
        code, told = inspect(dst)
        assert code == 1 and [(f["rule"], f["tensor"]) for f in told["findings"] if f["severity"] == "error"] == [("scale values", scale)]
        harness.shows(tessera, ["verify", dst, "--against", src], 1, scale, "the scale of the input is")
    tensors = {n: (e["dtype"], e["shape"], whole[start + e["data_offsets"][0]:start + e["data_offsets"][1]])
               for n, e in entries.items() if n != scale}
    harness.write_safetensors(dst / "model.safetensors", tensors, {"format": "pt"})
    for loader in ("vllm", "sglang"):
        _, told = inspect(dst, "--can-load", loader, "--tp", "1")
        missed = [f for f in told["load_findings"] if f["rule"] == "input scale"]
        assert [f["tensor"].rpartition(".")[0] for f in missed] == [next(iter(weights))] and "uninitialized" in missed[0]["detail"]


@pytest.mark.parametrize("inputs", ["dynamic", "measured", "constant"])
@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt"])
@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
def test_every_tensor(tmp_path, tessera, quantize, convert, ranges, dialect, inputs, dtype):
    if (dialect, inputs) == ("modelopt", "dynamic"):
        pytest.skip("ModelOpt has no such form")
    src, weights = mx.model(tmp_path / "src", dtype=dtype)
    options = {"dynamic": [], "measured": ["--activations", ranges(weights)], "constant": ["--input-scale", "0.25"]}[inputs]
    scale = {"dynamic": None, "measured": LARGEST / np.float32(448), "constant": np.float32(0.25)}[inputs]
    dst = quantize(src, "--scheme", "fp8-tensor", "--dialect", dialect, *options)
    got = stored.read_any(dst / "model.safetensors")
    want = made(weights, (1,) if dialect == "compressed-tensors" else (), scale)
    assert {n for n in got if n.rpartition(".")[0] in weights} == want.keys()
    for name, array in want.items():
        assert got[name].shape == array.shape and same_bits(got[name], array), name
    harness.succeed(tessera, ["verify", dst, "--against", src])
    back = stored.read_any(convert(dst, "--to", "bf16", "--dtype", "f32") / "model.safetensors")
    for module in weights:
        scale = want[f"{module}.weight_scale"].reshape(())
        assert same_bits(back[f"{module}.weight"], want[f"{module}.weight"].astype(np.float32) * scale), module


@pytest.mark.parametrize("options,inputs", [((), {"strategy": "token", "dynamic": True}),
                                            (("--input-scale", "1"), {"strategy": "tensor", "dynamic": False})])
def test_configuration_of_compressed_tensors(tmp_path, quantize, inspect, options, inputs):
    src, _ = mx.model(tmp_path / "src")
    dst = quantize(src, "--scheme", "fp8-tensor", *options)
    q = json.loads((dst / "config.json").read_text())["quantization_config"]
    assert (q["quant_method"], q["format"], q["ignore"]) == ("compressed-tensors", "float-quantized", ["lm_head"])
    common = {"num_bits": 8, "type": "float", "symmetric": True}
    assert q["config_groups"] == {"group_0": {
        "targets": ["Linear"], "weights": {**common, "strategy": "tensor", "dynamic": False},
        "input_activations": {**common, **inputs}, "output_activations": None}}
    no_finding(inspect, dst, "vllm,sglang,transformers")


def test_configuration_of_modelopt(tmp_path, quantize, convert, inspect):
    src, _ = mx.model(tmp_path / "src")
    dst = quantize(src, "--scheme", "fp8-tensor", "--dialect", "modelopt", "--input-scale", "1")
    q = json.loads((dst / "config.json").read_text())["quantization_config"]
    side = json.loads((dst / "hf_quant_config.json").read_text())["quantization"]
    form = {"dynamic": False, "num_bits": 8, "type": "float"}
    assert q["config_groups"] == {"group_0": {"input_activations": form, "weights": form, "targets": ["Linear"]}}
    assert (q["quant_method"], q["quant_algo"], q["ignore"]) == ("modelopt", "FP8", ["lm_head"])
    assert side == {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    no_finding(inspect, dst, "vllm,sglang")
    assert not (convert(dst, "--to", "fp8-block", "--dialect", "deepseek") / "hf_quant_config.json").exists()


@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt"])
def test_beside_nvfp4(tmp_path, quantize, ranges, dialect):
    """Tests the mixture of released models: attention in FP8, the rest in NVFP4. The bytes equal those of each scheme alone."""
    src, weights = mx.model(tmp_path / "src")
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"dialect": dialect, "rules": [{"match": "*.self_attn.*", "scheme": "fp8-tensor"},
                                                               {"match": "*", "scheme": "nvfp4"}]}))
    options = ("--activations", ranges(weights))
    dst = quantize(src, "--rules", rules, *options)
    got = stored.read_any(dst / "model.safetensors")
    for scheme in ("fp8-tensor", "nvfp4"):
        alone = stored.read_any(quantize(src, "--scheme", scheme, "--dialect", dialect, *options) / "model.safetensors")
        names = {n for n in alone if n.rpartition(".")[0] in weights and (".self_attn." in n) == (scheme == "fp8-tensor")}
        assert names and names <= got.keys() and all(got[n].tobytes() == alone[n].tobytes() for n in names), scheme
    q = json.loads((dst / "config.json").read_text())["quantization_config"]
    if dialect == "modelopt":
        layers = q["quantized_layers"]
        assert layers["model.layers.0.self_attn.o_proj"] == {"quant_algo": "FP8"}
        assert layers["model.layers.0.mlp.down_proj"] == {"quant_algo": "NVFP4", "group_size": 16}
    else:
        nvfp4, fp8 = q["config_groups"]["group_0"], q["config_groups"]["group_1"]
        assert (nvfp4["format"], fp8["format"], q["format"]) == ("nvfp4-pack-quantized", "float-quantized", "mixed-precision")
        assert fp8["weights"]["strategy"] == fp8["input_activations"]["strategy"] == "tensor"


@pytest.mark.parametrize("dialect,stored_as", [("compressed-tensors", 8), ("modelopt", 0.125)])
def test_constant_input_scale_of_nvfp4(tmp_path, quantize, dialect, stored_as):
    """compressed-tensors stores a divisor."""
    src, weights = mx.model(tmp_path / "src")
    got = stored.read_any(quantize(src, "--scheme", "nvfp4", "--dialect", dialect, "--input-scale", "0.125") / "model.safetensors")
    ending = "input_global_scale" if dialect == "compressed-tensors" else "input_scale"
    assert all(float(got[f"{module}.{ending}"].reshape(())) == stored_as for module in weights)


@pytest.mark.parametrize("options,words", [
    (("--dialect", "modelopt"), "stores a scale of each input: give --activations FILE"),
    (("--input-scale", "0"), "--input-scale 0: must be a positive number"),
    (("--input-scale", "nan"), "--input-scale"),
    (("--input-scale", "1e-40"), "must be a positive number that FP32 can hold"),
    (("--input-scale", "1", "--activations", __file__), "--input-scale cannot be combined with --activations"),
    (("--scales", "mse"), "--scales mse cannot be used with fp8-tensor")])
def test_refusals(tmp_path, tessera, options, words):
    src, _ = mx.model(tmp_path / "src")
    code, _, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "out", "--scheme", "fp8-tensor", *options])
    assert code == 2 and words in err and err.count("\n") == 1 and not (tmp_path / "out").exists(), err


def test_blocks_beside_it_are_refused(tmp_path, tessera):
    src, _ = mx.model(tmp_path / "src")
    rules = harness.write_json(tmp_path / "rules.json", {"rules": [{"match": "*.self_attn.*", "scheme": "fp8-tensor"}, {"match": "*", "scheme": "fp8-block"}]})
    harness.expect(tessera, ["quantize", src, "-o", tmp_path / "out", "--rules", rules], 3, "fp8-block and fp8-tensor cannot be mixed")


def test_zeros_and_tiny_weights(tmp_path, quantize):
    """A tensor of zeros has the scale 1. A scale below FP32's smallest number becomes that number."""
    up, down = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
    tiny = random_weight((64, 128), 1) * np.float32(1e-43)
    src = make(tmp_path / "src", {"model.safetensors": {up: np.zeros((64, 128), np.float32), down: tiny}}, quantization=None)
    got = stored.read_any(quantize(src, "--scheme", "fp8-tensor") / "model.safetensors")
    assert got[up + "_scale"].tolist() == [1] and not got[up].view(np.uint8).any()
    codes, scale = fp8_oracle.quantize_tensor(tiny)
    assert got[down + "_scale"][0] == scale and same_bits(got[down], codes)


def test_convert_to_it(tmp_path, quantize, convert):
    """Decoded values of block FP8 are quantized again."""
    src, weights = mx.model(tmp_path / "src")
    blocks = quantize(src, "--include", "*.mlp.*")
    plain = stored.read_any(convert(blocks, "--to", "bf16", "--dtype", "f32") / "model.safetensors")
    got = stored.read_any(convert(blocks, "--to", "fp8-tensor") / "model.safetensors")
    coded = [m for m in weights if f"{m}.weight_scale" in got]
    assert coded
    want = made({m: plain[f"{m}.weight"] for m in coded}, (1,))
    assert all(same_bits(got[n], want[n]) for n in want)
