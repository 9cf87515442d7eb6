"""nvidia-modelopt reads what tessera writes in its dialect, and computes the values that tessera says; what it makes itself of
the same weights is the same bytes; tessera reads what it makes."""

import json

import mx_oracle as mx
import pytest
import safetensors.torch
import torch
from checkpoints import shards
from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
from modelopt.torch.export.quant_utils import to_quantized_weight
from models import differing, load, same_bits, same_values

import harness

RANGE = (-3, 4.5)


@pytest.fixture
def written(quantize, tmp_path):
    """Returns written(scheme) -> (directory, {module: BF16 weight}, source)."""
    def run(scheme):
        src, arrays = mx.model(tmp_path / "src")
        options = []
        if scheme in ("fp8-tensor", "nvfp4"):
            ranges = harness.write_json(tmp_path / "ranges.json", {module: dict(zip(("min", "max"), RANGE)) for module in arrays})
            options = ["--activations", ranges]
        plain = load(src)
        return (quantize(src, "--scheme", scheme, "--dialect", "modelopt", *options),
                {module: plain[module + ".weight"] for module in arrays}, src)
    return run


def made(weights, module, scheme):
    """Returns {suffix: tensor} as ModelOpt exports this weight."""
    weight = weights[module].clone()
    if scheme == "fp8-tensor":
        amax = max(weights[member].abs().max().float() for member in mx.joined(module, weights))
        scale = (amax / 448).reshape(1)  # get_scaling_factor
        return {"weight": to_quantized_weight(weight, scale, "fp8"), "weight_scale": scale.squeeze(),
                "input_scale": torch.tensor(max(map(abs, RANGE))) / 448}
    if scheme == "mxfp8":
        quantized, scale = MXFP8QTensor.quantize(weight)
        return {"weight": quantized._quantized_data, "weight_scale": scale}
    # Fused layers have the scale of the largest member, as in its preprocess_linear_fusion.
    total = max(NVFP4QTensor.get_weights_scaling_factor_2(weights[member]) for member in mx.joined(module, weights))
    quantized, scale, total = NVFP4QTensor.quantize(weight, 16, weights_scaling_factor_2=total)
    out = {"weight": quantized._quantized_data, "weight_scale": scale, "weight_scale_2": total}
    if scheme == "nvfp4":
        out["input_scale"] = torch.tensor(max(map(abs, RANGE))) / 2688
    return out


def dequantized(parts, shape):
    """Returns the values that ModelOpt computes, in BF16."""
    if "input_scale" in parts and parts["weight"].dtype == torch.float8_e4m3fn:
        return FP8QTensor(shape, torch.bfloat16, parts["weight"]).dequantize(torch.float32, scale=parts["weight_scale"]).bfloat16()
    if parts["weight"].dtype == torch.float8_e4m3fn:
        return MXFP8QTensor(shape, torch.bfloat16, parts["weight"]).dequantize(scale=parts["weight_scale"])
    return NVFP4QTensor(shape, torch.bfloat16, parts["weight"]).dequantize(
        torch.bfloat16, scale=parts["weight_scale"], double_scale=parts["weight_scale_2"], block_sizes={-1: 16})


def parts_of(tensors, module):
    return {name.removeprefix(module + "."): tensor for name, tensor in tensors.items() if name.startswith(module + ".")}


SCHEMES = ["fp8-tensor", "nvfp4", "nvfp4-weight-only", "mxfp8"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_bytes(scheme, written):
    """Compares each tensor of each weight."""
    dst, weights, _ = written(scheme)
    ours = load(dst)
    for module in weights:
        theirs, got = made(weights, module, scheme), parts_of(ours, module)
        assert set(theirs) == set(got)
        for suffix, tensor in theirs.items():
            assert same_bits(tensor, got[suffix]), (module, suffix, differing(tensor, got[suffix]))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_values(scheme, written, convert):
    """ModelOpt reads code 8, which is -0, as 0."""
    dst, weights, _ = written(scheme)
    ours, values = load(dst), load(convert(dst, "--to", "bf16"))
    for module, weight in weights.items():
        got = dequantized(parts_of(ours, module), weight.shape)
        assert same_values(got, values[module + ".weight"]), (module, differing(got, values[module + ".weight"]))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_reading(scheme, written, convert, tessera, tmp_path):
    """Reads a checkpoint with ModelOpt's tensors and the configuration that our tests use for it."""
    dst, weights, src = written(scheme)
    theirs = {f"{module}.{suffix}": tensor.contiguous() for module in weights
              for suffix, tensor in made(weights, module, scheme).items()}
    path, = (path for path in shards(dst) if not path.name.startswith("tessera-"))
    kept = {name: tensor for name, tensor in load(dst).items() if name.rpartition(".")[0] not in weights}
    place = tmp_path / "modelopt"
    place.mkdir()
    safetensors.torch.save_file({**theirs, **kept}, place / "model.safetensors", {"format": "pt"})
    for name in ("config.json", "hf_quant_config.json"):
        (place / name).write_bytes((dst / name).read_bytes())
    values = load(convert(place, "--to", "bf16"))
    for module, weight in weights.items():
        got = dequantized(parts_of(theirs, module), weight.shape)
        assert same_values(got, values[module + ".weight"]), (module, differing(got, values[module + ".weight"]))
    for command in (["inspect", place], ["verify", place, "--against", src]):
        harness.succeed(tessera, command)


def test_reading_mxfp4(convert, tmp_path):
    """Reads ModelOpt's MXFP4 in Quark's form. Its ties go toward zero, and its zeros have code 8."""
    src, arrays = mx.model(tmp_path / "src")
    plain = load(src)
    tensors, wanted = {}, {}
    for module in arrays:
        weight = plain[module + ".weight"]
        quantized, scale = MXFP4QTensor.quantize(weight.clone(), 32)
        tensors[module + ".weight"] = quantized._quantized_data.contiguous()
        tensors[module + ".weight_scale"] = scale.reshape(weight.shape[0], -1).contiguous()
        wanted[module + ".weight"] = quantized.dequantize(torch.bfloat16, scale=scale, block_sizes={-1: 32})
    place = tmp_path / "mxfp4"
    place.mkdir()
    safetensors.torch.save_file(tensors, place / "model.safetensors", {"format": "pt"})
    quark = {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32, "scale_format": "e8m0"}}}
    (place / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": quark}))
    values = load(convert(place, "--to", "bf16"))
    for name, value in wanted.items():
        assert same_values(value, values[name]), (name, differing(value, values[name]))


def test_mixed_precision_config(quantize, tmp_path):
    """ModelOpt converts the hf_quant_config.json of a mixture to the object of config.json, group by group, without the
    names of fused layers. quantized_layers has these for SGLang's classes; they are no modules of the checkpoint."""
    from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format

    src, _ = mx.model(tmp_path / "src")
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"dialect": "modelopt", "rules": [{"match": "*.self_attn.*", "scheme": "mxfp8"},
                                                                  {"match": "*", "scheme": "nvfp4-weight-only"}]}))
    dst = quantize(src, "--rules", rules)
    theirs = convert_hf_quant_config_format(json.loads((dst / "hf_quant_config.json").read_text()))
    ours = json.loads((dst / "config.json").read_text())["quantization_config"]
    joined = {name for name in theirs["quantized_layers"] if name.endswith(("qkv_proj", "gate_up_proj"))}
    assert {name.rsplit(".", 1)[1] for name in joined} == {"qkv_proj", "gate_up_proj"}
    for group in theirs["config_groups"].values():
        group["targets"] = [name for name in group["targets"] if name not in joined]
    groups = [sorted(c.pop("config_groups").values(), key=str) for c in (theirs, ours)]
    assert groups[0] == groups[1] and len(groups[0]) == 2
    assert theirs == ours
