"""compressed-tensors reads what tessera writes in its dialect, as transformers has it do: the modules, their names, shapes and
dtypes, and every value. What it writes itself of the same weights is the same bytes, and tessera reads it."""

import json
import struct

import format_samples as f
import mx_oracle as mx
import pytest
import safetensors.torch
import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from models import config_of, differing, load, of_linear_layers, same_bits, same_values
from transformers.utils.quantization_config import CompressedTensorsConfig

import harness

INT4 = ("int4-weight-only", "--group-size", "32")
# The arguments of --scheme, and whether the package would make the same bytes of BF16 weights.
WRITTEN = {
    "nvfp4": (("nvfp4",), True),
    "nvfp4-weight-only": (("nvfp4-weight-only",), True),
    "nvfp4-weight-only, mse": (("nvfp4-weight-only", "--scales", "mse"), False),
    "mxfp4": (("mxfp4",), True),
    "mxfp4-weight-only": (("mxfp4-weight-only",), True),
    "mxfp8": (("mxfp8",), True),
    "mxfp8-weight-only": (("mxfp8-weight-only",), True),
    "mxfp8-weight-only, ceil": (("mxfp8-weight-only", "--mx-scale", "ceil"), False),
    "int4 of Kimi": (INT4, False),
    "int4, zero points": ((*INT4, "--zero-points"), False),
    "int4, rows": (("int4-weight-only", "--group-size", "0"), False),
    "int8, rows": (("int8-weight-only",), False),
    "int8-channel": (("int8-channel", "--scale-dtype", "bf16"), False),
    "fp8-channel": (("fp8-channel", "--scale-dtype", "bf16"), False),
}


@pytest.fixture
def written(quantize, tmp_path):
    """Returns written(job) -> (directory, {module: weight}) of Tessera's output for a small Llama in BF16."""
    def run(job):
        src, weights = mx.model(tmp_path / "src")
        scheme, *options = WRITTEN[job][0]
        if scheme == "nvfp4":
            ranges = harness.write_json(tmp_path / "ranges.json", {module: {"min": -3, "max": 4.5} for module in weights})
            options += ["--activations", ranges]
        dst = quantize(src, "--scheme", scheme, "--dialect", "compressed-tensors", *options)
        return dst, {module: torch.from_numpy(w.view("i2")).view(torch.bfloat16) for module, w in weights.items()}
    return run


def all_layers(weights):
    """Returns all layers, also the unquantized one."""
    return {**weights, "lm_head": torch.zeros(mx.KEPT["lm_head"], dtype=torch.bfloat16)}


def prepared(config, weights):
    """Returns (compressor, a model of these layers prepared as transformers does before loading)."""
    compressor = ModelCompressor.from_compression_config(CompressedTensorsConfig.from_dict(dict(config)))
    model = of_linear_layers(all_layers(weights))
    apply_quantization_config(model, compressor.quantization_config)
    return compressor, model


def loaded(directory, weights):
    """Loads the directory into the model. Every name must be known, and every shape must fit."""
    compressor, model = prepared(config_of(directory)["quantization_config"], weights)
    compressor.compress_model(model)
    tensors = {name: t for name, t in load(directory).items() if "norm" not in name and "embed" not in name}
    wanted = model.state_dict()
    assert {n: (t.dtype, tuple(t.shape)) for n, t in tensors.items()} == {n: (t.dtype, tuple(t.shape)) for n, t in wanted.items()}
    model.load_state_dict(tensors, strict=True)
    compressor.decompress_model(model)
    return {module: model.get_submodule(module).weight for module in weights}


@pytest.mark.parametrize("job", WRITTEN)
def test_values(job, written, convert):
    dst, weights = written(job)
    ours = load(convert(dst, "--to", "bf16"))
    for module, weight in loaded(dst, weights).items():
        assert same_bits(weight.bfloat16(), ours[module + ".weight"]), (module, differing(weight, ours[module + ".weight"]))


# ---- codes that were moved ----

X = "model.layers.0.mlp.down_proj"
MOVED = {
    "awq": (f.awq(X), ["--zero-points"]),
    "awq, one group": (f.awq(X, size=160, config={**f.AWQ, "group_size": -1}), ["--zero-points"]),
    "gptq": (f.gptq(X, zeros="fitting"), ["--zero-points"]),
    "gptq-v2": (f.gptq(X, version=2), ["--zero-points"]),
    "gptq, symmetric": (f.gptq(X, zeros="middle"), []),
    "packed": (f.int_packed(X), []),
    "packed, zero points": (f.int_packed(X, zeros=True), ["--zero-points"]),
}


def moved(m, src, convert, options):
    """Returns the directory of a converted module and an unquantized head."""
    src.mkdir()
    head = ("BF16", list(mx.KEPT["lm_head"]), bytes(2 * mx.KEPT["lm_head"][0] * mx.KEPT["lm_head"][1]))
    harness.write_safetensors(src / "model.safetensors", {**m.tensors, "lm_head.weight": head}, {"format": "pt"})
    (src / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": m.config}))
    return convert(src, "--to", "int4-weight-only", *options)


@pytest.mark.parametrize("name", MOVED)
def test_moved_integers(name, tmp_path, convert):
    """Tests the values of the source in the dtype of its scales, in which the package multiplies."""
    m, options = MOVED[name]
    dst = moved(m, tmp_path / "src", convert, options)
    values = torch.from_numpy(m.values.copy()).to(torch.bfloat16 if name.startswith("packed") else torch.float16)
    got = loaded(dst, {X: values})[X]
    assert same_values(got.to(values.dtype), values), differing(got, values)


def test_the_order_of_activations_is_refused(tmp_path, convert):
    """The warning is true: this release has no parameter for it."""
    dst = moved(f.gptq(X, order=True, zeros="middle"), tmp_path / "src", convert, [])
    with pytest.raises(ValueError, match="actorder='group' has been removed"):
        loaded(dst, {X: torch.zeros(72, 160)})


def test_the_scheme_of_a_cache(tmp_path, convert):
    """The package reads ModelOpt's description of the KV cache as a static FP8 cache with one scale per tensor."""
    a = "model.layers.0.self_attn."
    m = f.nvfp4(a + "k_proj", "modelopt", inputs=False)
    src = tmp_path / "src"
    src.mkdir()
    harness.write_safetensors(src / "model.safetensors", {**m.tensors, a + "k_proj.k_scale": ("F32", [], struct.pack("<f", 0.5))}, {"format": "pt"})
    stated = {**m.config, "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}
    (src / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": stated}))
    config = config_of(convert(src, "--to", "nvfp4-weight-only"))["quantization_config"]
    scheme = ModelCompressor.from_compression_config(CompressedTensorsConfig.from_dict(config)).quantization_config.kv_cache_scheme
    assert (scheme.num_bits, scheme.type, scheme.strategy, scheme.dynamic, scheme.symmetric) == (8, "float", "tensor", False, True)


# ---- what it makes itself ----

def observe(weight, args, amax):
    """Returns the observer's parameters of a weight in llm-compressor: (scale, zero point, global scale)."""
    groups = weight.unflatten(-1, (-1, args.group_size)) if args.group_size else weight.unsqueeze(1)
    low, high = groups.amin(-1), groups.amax(-1)
    total = generate_gparam(-amax, amax) if args.strategy == "tensor_group" else None
    return *calculate_qparams(low, high, args, global_scale=total), total


def their_own(weights, config):
    """Returns (compressor, model) that the package has compressed from these weights."""
    compressor, model = prepared(config, weights)
    for module, weight in weights.items():
        layer = model.get_submodule(module)
        args = layer.quantization_scheme.weights
        amax = max(weights[member].abs().max() for member in mx.joined(module, weights))
        scale, zero, total = observe(weight, args, amax)
        layer.weight_scale.data = scale.to(layer.weight_scale.dtype)
        if hasattr(layer, "weight_zero_point"):
            layer.weight_zero_point.data = zero.to(layer.weight_zero_point.dtype)
        if total is not None:
            layer.weight_global_scale.data = total
        if hasattr(layer, "input_global_scale"):
            layer.input_global_scale.data = generate_gparam(torch.tensor(-3.0).bfloat16(), torch.tensor(4.5).bfloat16())
    compressor.compress_model(model)
    return compressor, model


@pytest.mark.parametrize("job", [job for job, (_, same) in WRITTEN.items() if same])
def test_bytes(job, written):
    """Compares codes, scales and global scales."""
    dst, weights = written(job)
    ours, (_, model) = load(dst), their_own(weights, config_of(dst)["quantization_config"])
    for name, tensor in model.state_dict().items():
        if name.rpartition(".")[0] in weights:
            assert same_bits(tensor, ours[name]), (name, differing(tensor, ours[name]))


PRESETS = ["NVFP4", "NVFP4A16", "MXFP4", "MXFP4A16", "MXFP8", "MXFP8A16", "W4A16", "W4A16_ASYM", "W8A16", "W8A8", "FP8_DYNAMIC"]


@pytest.fixture
def theirs(tmp_path):
    """Returns theirs(preset) -> (directory, {weight: the value that the package reads back}, source) of a checkpoint that it
    wrote."""
    def run(preset):
        src, arrays = mx.model(tmp_path / "src", modules={name: (shape[0], 128) for name, shape in mx.LLAMA.items()})
        plain = load(src)
        weights = {module: plain[module + ".weight"] for module in arrays}
        scheme = preset_name_to_scheme(preset, ["Linear"])
        config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"]).model_dump()
        compressor, model = their_own(weights, config)
        dst = tmp_path / preset
        dst.mkdir()
        tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        kept = {name: tensor for name, tensor in plain.items() if name.removesuffix(".weight") in mx.KEPT}
        safetensors.torch.save_file({**tensors, **kept}, dst / "model.safetensors", {"format": "pt"})
        (dst / "config.json").write_text((src / "config.json").read_text())
        compressor.update_config(dst)
        compressor.decompress_model(model)
        return dst, {f"{module}.weight": model.get_submodule(module).weight for module in weights}, src
    return run


@pytest.mark.parametrize("preset", PRESETS)
def test_reading(preset, theirs, convert, tessera):
    dst, values, src = theirs(preset)
    ours = load(convert(dst, "--to", "bf16"))
    for name, value in values.items():
        assert same_bits(value.bfloat16(), ours[name]), (name, differing(value.bfloat16(), ours[name]))
    for command in (["inspect", dst], ["verify", dst, "--against", src]):
        harness.succeed(tessera, command)


def test_w4afp8_is_the_preset(quantize, tmp_path):
    src, _ = mx.model(tmp_path / "src", modules={name: (shape[0], 128) for name, shape in mx.LLAMA.items()})
    stated = json.loads((quantize(src, "--scheme", "w4afp8") / "config.json").read_text())["quantization_config"]
    ours, theirs = QuantizationConfig.model_validate(stated).config_groups["group_0"], preset_name_to_scheme("W4AFP8", ["Linear"])
    for name in ("weights", "input_activations"):
        for key in ("num_bits", "type", "symmetric", "strategy", "group_size", "dynamic"):
            assert getattr(getattr(ours, name), key) == getattr(getattr(theirs, name), key), (name, key)
