"""transformers' own dequantization of MXFP4 and of FP8 with scales of blocks, over checkpoints of gpt-oss and DeepSeek-V4 and
over what tessera writes: the values that tessera convert --to bf16 gives."""

import json

import format_samples as f
import harness
import mx_oracle as mx
import numpy as np
import pytest
import torch
from checkpoints import BF16, make, random_weight
from models import differing, load, same_bits, same_values
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.utils.quantization_config import Mxfp4Config

W1, WQ_A, TABLE = "layers.0.ffn.experts.0.w1", "layers.0.attn.wq_a", "model.layers.0.mlp.experts."
V4_EXPERTS = {"names": (".weight", ".scale"), "dtypes": ("I8", "F8_E8M0"), "config": f.V4, "low": 110, "high": 140}


def stored(path, module):
    """Makes a checkpoint with this module of tests/common/format_samples.py."""
    make(path, {"model.safetensors": {}}, module.config, model_type="deepseek_v4")
    harness.write_safetensors(path / "model.safetensors", module.tensors, {"format": "pt"})
    return path


def by_fp8_dequantize(weight, scale):
    return Fp8Dequantize(None).convert({"weight": [weight], "weight_scale_inv": [scale]})["weight"]


@pytest.mark.parametrize("stack", ["gate_up_proj", "down_proj"])
def test_gpt_oss(stack, convert, tmp_path):
    module = f.mxfp4_gptoss(TABLE + stack, experts=3, rows=128, cols=160)
    src = stored(tmp_path / "src", module)
    got, tensors = load(convert(src, "--to", "bf16"))[module.name], load(src)
    wanted = convert_moe_packed_tensors(tensors[module.name + "_blocks"], tensors[module.name + "_scales"]).contiguous()
    assert same_bits(wanted, got), differing(wanted, got)


@pytest.mark.parametrize("dtype", [BF16, np.float32], ids=["BF16", "F32"])
def test_gpt_oss_written(dtype, quantize, convert, tmp_path):
    """Unquantized stacks become blocks. transformers decodes the same values as Tessera, close to the original ones."""
    shapes = {"gate_up_proj": (3, 160, 256), "down_proj": (3, 128, 160)}  # [experts, in, out]
    stacks = {TABLE + name: random_weight(shape, i).astype(dtype) for i, (name, shape) in enumerate(shapes.items())}
    src = make(tmp_path / "src", {"model.safetensors": stacks}, None, model_type="gpt_oss", hidden_size=160)
    dst = quantize(src, "--scheme", "mxfp4-weight-only")
    tensors, values = load(dst), load(convert(dst, "--to", "bf16"))
    for name, w in stacks.items():
        wanted = convert_moe_packed_tensors(tensors[name + "_blocks"], tensors[name + "_scales"]).contiguous()
        assert same_bits(wanted, values[name]), differing(wanted, values[name])
        off = wanted.float().numpy() - w.astype(np.float32)
        assert np.linalg.norm(off) < 0.15 * np.linalg.norm(w.astype(np.float32))
    config = Mxfp4Config.from_dict(json.loads((dst / "config.json").read_text())["quantization_config"])
    assert config.modules_to_not_convert == ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]


@pytest.mark.parametrize("module", [
    f.mxfp4(W1, rows=64, cols=256, **V4_EXPERTS),
    f.mxfp4(W1, rows=64, cols=256, **{**V4_EXPERTS, "dtypes": ("I8", "U8")}),
    f.fp8_block(WQ_A, rows=256, cols=384),
    f.fp8_block(WQ_A, rows=64, cols=160, block=(32, 32)),
    f.fp8_block(W1, rows=256, cols=384, dtype="F32", config={**f.V4, "expert_dtype": "fp8"}),
], ids=["experts", "experts, U8 scales", "attention", "attention of V4.1", "experts in FP8"])
def test_deepseek_v4(module, convert, tmp_path):
    src = stored(tmp_path / "src", module)
    got, tensors = load(convert(src, "--to", "bf16"))[module.name], load(src)
    wanted = by_fp8_dequantize(tensors[module.name], tensors[module.name.removesuffix("weight") + "scale"]).bfloat16()
    assert same_values(wanted, got), differing(wanted, got)


@pytest.mark.parametrize("options", [("--scheme", "mxfp8", "--dialect", "deepseek"), ("--block", "16x32"),
                                     ("--block", "16x32", "--scale-fmt", "ue8m0"), ("--block", "16x32", "--scales", "mse")], ids=" ".join)
def test_what_is_written(options, quantize, convert, tmp_path):
    """Tests blocks that divide the weights. For others, transformers cannot determine their size."""
    src, weights = mx.model(tmp_path / "src")
    dst = quantize(src, *options)
    tensors, values = load(dst), load(convert(dst, "--to", "bf16"))
    for module in weights:
        wanted = by_fp8_dequantize(tensors[module + ".weight"], tensors[module + ".weight_scale_inv"]).to(torch.bfloat16)
        assert same_values(wanted, values[module + ".weight"]), (module, differing(wanted, values[module + ".weight"]))
