#!/usr/bin/env python3
"""The stages of transformers' DeepSeek-V3 attention, run in FP32, equal tessera's.

Makes a small random DeepSeek-V3 of one layer, with YaRN, with and without a latent query; records what its attention
computes at each stage; and holds that to `tessera verify mla --stages`, which recomputes each stage in double. Needs
torch, transformers and safetensors; no GPU:

    python3 tests/gpu/interop_mla.py --tessera build/cli/tessera
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import torch
import transformers
from safetensors.torch import save_file
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as modeling

HEADS, NOPE, ROPE, V, RANK, HIDDEN = 4, 48, 32, 40, 64, 128
SHAPE = (2, 33)
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "original_max_position_embeddings": 64,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}


def make(q_rank, yarn):
    torch.manual_seed(1)
    config = transformers.DeepseekV3Config(
        vocab_size=256, hidden_size=HIDDEN, intermediate_size=128, moe_intermediate_size=64, num_hidden_layers=1,
        first_k_dense_replace=1, num_attention_heads=HEADS, num_key_value_heads=HEADS, qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE, v_head_dim=V, kv_lora_rank=RANK, q_lora_rank=q_rank, max_position_embeddings=2560,
        initializer_range=0.1, tie_word_embeddings=False,
        rope_parameters=dict(YARN) if yarn else {"rope_type": "default", "rope_theta": 10000.0})
    config._attn_implementation = "eager"
    model = transformers.DeepseekV3ForCausalLM(config).float().eval()
    for name, p in model.named_parameters():
        if "layernorm" in name:
            torch.nn.init.uniform_(p, 0.5, 2.0)
    return model


def interleaved(x):
    """Converts [B, H, T, rope] in transformers' order (first elements of all pairs, then second ones) to [B, T, H, rope]."""
    return torch.stack(x.chunk(2, -1), -1).flatten(-2).transpose(1, 2)


def record(model):
    """Returns {stage: tensor} of one forward pass."""
    stages, attention = {}, model.model.layers[0].self_attn

    def keep(name):
        return lambda module, args, output: stages.__setitem__(name, output)

    names = {"q_a_proj": "q_a", "q_a_layernorm": "q_a_norm", "q_b_proj": "query", "q_proj": "query",
             "kv_a_proj_with_mqa": "kv_a", "kv_a_layernorm": "latent", "o_proj": "output"}
    modules = {stage: getattr(attention, name, None) for name, stage in names.items()}
    modules |= {"query": attention.q_proj if attention.q_lora_rank is None else attention.q_b_proj}
    hooks = [module.register_forward_hook(keep(stage)) for stage, module in modules.items() if module is not None]
    hooks.append(attention.o_proj.register_forward_pre_hook(lambda m, args: stages.__setitem__("attention", args[0])))
    hooks.append(attention.register_forward_pre_hook(
        lambda m, args, kwargs: stages.__setitem__("hidden_states", kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]),
        with_kwargs=True))
    original = modeling.eager_attention_forward

    def eager(module, query, key, value, mask, scaling, **kwargs):
        output, weights = original(module, query, key, value, mask, scaling=scaling, **kwargs)
        stages["q_rope"] = interleaved(query[..., NOPE:])
        stages["k_rope"] = interleaved(key[:, :1, :, NOPE:])
        stages["scores"] = (query @ key.transpose(2, 3) * scaling).transpose(1, 2)
        stages["probabilities"] = weights.transpose(1, 2)
        return output, weights

    modeling.eager_attention_forward = eager
    try:
        with torch.no_grad():
            model(torch.randint(2, 256, SHAPE))
    finally:
        modeling.eager_attention_forward = original
        for hook in hooks:
            hook.remove()
    return {name: x.detach().float().contiguous().clone() for name, x in stages.items()}


def check(tessera, q_rank, yarn):
    model = make(q_rank, yarn)
    stages = record(model)
    wanted = {"query", "q_rope", "kv_a", "latent", "k_rope", "scores", "probabilities", "attention", "output"}
    wanted |= {"q_a", "q_a_norm"} if q_rank else set()
    assert set(stages) == wanted | {"hidden_states"}, sorted(stages)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        captured = pathlib.Path(folder) / "captured"
        captured.mkdir()
        save_file(stages, str(captured / "stages.safetensors"))
        run = subprocess.run([tessera, "verify", "mla", folder, "--layer", "0", "--stages",
                              str(captured / "stages.safetensors"), "--json", "-"], capture_output=True, text=True)
        assert run.returncode in (0, 1), run.stderr
    result = json.loads(run.stdout)
    print(f"q_lora_rank {q_rank}, {'YaRN' if yarn else 'plain RoPE'}: {'equal' if result['passed'] else 'DIFFERENT'}")
    for j in result["judgements"]:
        print(f"  {j['what']:22} relative error {j['relative_error']:.3g}  {j['fault'] or ''}")
    return result["passed"] and {j["what"].removeprefix("stage ") for j in result["judgements"]} == wanted


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", required=True)
    tessera = parser.parse_args().tessera
    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}")
    results = [check(tessera, q_rank, yarn) for q_rank, yarn in ((96, True), (None, True), (96, False))]
    raise SystemExit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
