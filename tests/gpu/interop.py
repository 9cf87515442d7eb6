#!/usr/bin/env python3
"""transformers loads what tessera writes, and computes what it should.

Builds small random Llama, Qwen3-MoE and DeepSeek-V3 models, saves them in BF16, quantizes the directory with tessera,
and loads the result back through transformers' own FP8 loader (dequantize=True). Beside it PyTorch quantizes and
dequantizes the same weights, block by block, in this script. Every loaded weight must equal PyTorch's, bit for bit, and
the logits must be as far from those of the BF16 model as PyTorch's are. Needs torch, transformers, accelerate and
safetensors:

    python3 tests/gpu/interop.py --tessera build/cli/tessera
"""

import argparse
import json
import os
import pathlib
import re
import sys
import traceback

import torch
import transformers

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

BLOCK = 128
SEED = 1
TOKENS = (2, 64)
# PyTorch's distance and the loaded model's may differ by this much of themselves.
TOLERANCE = 0.02

COMMON = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,  # so that attention and experts weigh against the residual stream
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def llama():
    config = transformers.LlamaConfig(**COMMON, num_key_value_heads=2, head_dim=64)
    return transformers.LlamaForCausalLM(config)


def qwen3_moe():
    config = transformers.Qwen3MoeConfig(
        **COMMON,
        num_key_value_heads=2,
        head_dim=128,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=256,
        decoder_sparse_step=1,
        norm_topk_prob=True,
    )
    return transformers.Qwen3MoeForCausalLM(config)


def deepseek_v3():
    # transformers' dequantizer divides the weight's shape by the grid of scales and refuses what does not divide: it
    # cannot read the [576, 7168] kv_a_proj_with_mqa of DeepSeek-V3 itself, whose last block has 64 rows. Here
    # kv_lora_rank + qk_rope_head_dim = 256 + 128 rows, and every other dimension, are multiples of 128.
    config = transformers.DeepseekV3Config(
        **COMMON,
        num_key_value_heads=4,
        q_lora_rank=256,
        kv_lora_rank=256,
        qk_rope_head_dim=128,
        qk_nope_head_dim=128,
        v_head_dim=128,
        moe_intermediate_size=128,
        n_routed_experts=8,
        n_shared_experts=1,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        num_mtp_layers=0,
    )
    return transformers.DeepseekV3ForCausalLM(config)


MODELS = {"llama": llama, "qwen3-moe": qwen3_moe, "deepseek-v3": deepseek_v3}


# ---- the second opinion ----


def is_quantized(name, weight):
    """Uses transformers' names, with which the experts of a layer are one tensor [E, out, in]."""
    return weight.ndim >= 2 and re.search(r"_proj(_with_mqa)?(\.weight)?$", name) is not None


def block_quantize_dequantize(weight, scale_fmt):
    """Returns the values after block FP8, in the weight's dtype. Runs on the CPU, because a GPU would multiply by 1/448.

    Stacks of gate and up need not be divided, because their halves are multiples of a block."""
    x = weight.detach().cpu().float()
    *stack, rows, cols = x.shape
    if rows % BLOCK or cols % BLOCK:
        raise ValueError(f"shape {tuple(x.shape)}: choose multiples of {BLOCK}")
    blocks = x.reshape(*stack, rows // BLOCK, BLOCK, cols // BLOCK, BLOCK)
    amax = blocks.abs().amax(dim=(-3, -1), keepdim=True)
    scales = amax / torch.tensor(448.0)
    if scale_fmt == "ue8m0":
        bits = scales.view(torch.int32)
        exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
        scales = (exponent.clamp(1, 254).to(torch.int32) << 23).view(torch.float32)
    scales = torch.where(amax == 0, torch.ones_like(scales), scales)
    codes = (blocks / scales).clamp(-448, 448).to(torch.float8_e4m3fn)
    return (codes.float() * scales).reshape(x.shape).to(weight.dtype)


# ---- one model ----


def load(directory, device, **options):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=torch.bfloat16,
        device_map=device,
        attn_implementation="eager",
        output_loading_info=True,
        **options,
    )
    wrong = {key: sorted(map(str, value)) for key, value in info.items() if value}
    return model.eval(), wrong


@torch.no_grad()
def logits_of(model, tokens):
    return model(input_ids=tokens.to(model.device), use_cache=False).logits.double().cpu()


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


def own_config(directory):
    return json.loads(pathlib.Path(directory, "config.json").read_text())["quantization_config"]


def check_model(checks, table, name, scale_fmt, place, options):
    what = f"{name}, {scale_fmt}"
    source, target = os.path.join(place, "bf16"), os.path.join(place, "fp8")
    torch.manual_seed(SEED)
    MODELS[name]().to(torch.bfloat16).save_pretrained(source)
    if not checks.ends(f"{what}: tessera", os.path.abspath(options.tessera), ["quantize", source, "-o", target, "--scale-fmt", scale_fmt, "--quiet"]):
        return

    quantization = transformers.FineGrainedFP8Config(**own_config(target), dequantize=True)
    original, _ = load(source, options.device)
    loaded, wrong = load(target, options.device, quantization_config=quantization)
    checks.check(f"{what}: loaded whole", not wrong, wrong)

    tokens = torch.randint(0, COMMON["vocab_size"], TOKENS, generator=torch.Generator().manual_seed(SEED))
    exact = logits_of(original, tokens)
    weights = dict(loaded.named_parameters())
    checks.check(
        f"{what}: the same parameters",
        weights.keys() == dict(original.named_parameters()).keys(),
        sorted(weights.keys() ^ dict(original.named_parameters()).keys())[:5],
    )
    quantized = different = 0
    with torch.no_grad():
        for tensor, weight in original.named_parameters():
            if is_quantized(tensor, weight):
                quantized += 1
                weight.copy_(block_quantize_dequantize(weight, scale_fmt))
            other = weights.get(tensor)
            if other is None or other.dtype != weight.dtype or not torch.equal(other, weight):
                different += 1
                print(f"  {what}: {tensor} differs", flush=True)
    checks.check(f"{what}: something is quantized", quantized > 0)
    checks.check(f"{what}: every weight equals PyTorch's", different == 0, f"{different} differ")

    by_pytorch, by_tessera = distance(logits_of(original, tokens), exact), distance(logits_of(loaded, tokens), exact)
    table.append((name, scale_fmt, quantized, different, by_pytorch, by_tessera))
    checks.check(
        f"{what}: logits as far from BF16 as PyTorch's",
        by_pytorch > 0 and abs(by_tessera - by_pytorch) <= TOLERANCE * by_pytorch,
        f"{by_tessera:.6f}, PyTorch's {by_pytorch:.6f}",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tessera", required=True, metavar="PATH", help="the tool under test")
    parser.add_argument("--device", default="cuda", help="where the models run (cuda)")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {options.device}")
    print("deepseek-v3 has kv_a_proj_with_mqa of 384 rows, not 576: transformers refuses to dequantize ragged blocks")
    checks, table = harness.Checks(), []
    for name in MODELS:
        for scale_fmt in ("f32", "ue8m0"):
            with harness.temporary_directory() as place:
                try:
                    check_model(checks, table, name, scale_fmt, place, options)
                except Exception:
                    checks.check(f"{name}, {scale_fmt}: no exception", False, traceback.format_exc())
    print("distance of the logits from those of the BF16 model:")
    print(f"{'model':12} {'scales':6} {'quantized':>9} {'differ':>6} {'PyTorch':>9} {'tessera':>9}")
    for row in table:
        print("{:12} {:6} {:9} {:6} {:9.6f} {:9.6f}".format(*row))
    checks.finish()


if __name__ == "__main__":
    main()
