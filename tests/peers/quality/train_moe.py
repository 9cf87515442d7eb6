#!/usr/bin/env python3
"""Trains a small Qwen3-MoE on the source of installed Python packages, and writes it as a checkpoint in BF16.

The model has 8 layers of 32 experts, of which 4 work for a token: 110 million parameters. Its tokenizer is a BPE of 8,192
tokens, trained on the same text. Sources of SymPy are left out, as text for comparisons. Two minutes on one H200."""

import argparse
import importlib.util
import pathlib
import time

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

PACKAGES = ["torch", "transformers", "numpy", "scipy", "jax", "pip", "networkx", "triton", "onnx", "huggingface_hub"]
LENGTH, BATCH, RATE = 512, 64, 1.5e-3


def sources(package, most):
    """Returns at most so many characters of a package's sources; "" if it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return ""
    parts, size = [], 0
    for path in sorted(pathlib.Path(spec.submodule_search_locations[0]).rglob("*.py")):
        text = path.read_text(errors="ignore")
        parts.append(text)
        size += len(text)
        if size > most:
            break
    return "\n".join(parts)


def tokens_of(tokenizer, text):
    pieces = [text[i:i + 100_000] for i in range(0, len(text), 100_000)]
    return np.concatenate([np.array(e.ids, np.int32) for e in tokenizer.encode_batch(pieces)])


def learn(model, tokens, seconds):
    """Trains with AdamW, warm-up and cosine decay by time. Returns the number of steps and the last loss."""
    rng = np.random.default_rng(1)
    data = torch.from_numpy(tokens).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    began, step, mean = time.monotonic(), 0, None
    while (share := (time.monotonic() - began) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 100) * (0.05 + 0.95 * 0.5 * (1 + np.cos(np.pi * share)))
        at = torch.from_numpy(rng.integers(0, len(tokens) - LENGTH, BATCH)).cuda()
        batch = data[at[:, None] + torch.arange(LENGTH, device="cuda")].long()
        with torch.autocast("cuda", torch.bfloat16):
            out = model(input_ids=batch, labels=batch, output_router_logits=True)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 100 == 0:
            mean = out.loss.item()
            print(f"step {step}, loss {mean:.3f}", flush=True)
    return step, mean


def split_experts(path):
    """Writes stacks of experts as one tensor each, the form of released checkpoints."""
    tensors, split = load_file(path), {}
    for name, w in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            split[name] = w
            continue
        stem, leaf = name.rsplit(".", 1)
        for e in range(len(w)):
            parts = zip(("gate_proj", "up_proj"), w[e].chunk(2)) if leaf == "gate_up_proj" else [(leaf, w[e])]
            split |= {f"{stem}.{e}.{part}.weight": x.contiguous() for part, x in parts}
    save_file(split, path, {"format": "pt"})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=120, help="time for training (120)")
    parser.add_argument("--megabytes", type=float, default=15, help="most text of a package (15)")
    options = parser.parse_args()
    texts = [sources(package, options.megabytes * 1e6) for package in PACKAGES]
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator((t[:1_000_000] for t in texts), vocab_size=8192, show_progress=False)
    tokens = np.concatenate([tokens_of(bpe, t) for t in texts if t])
    print(f"{len(tokens)} tokens of text", flush=True)
    torch.manual_seed(0)
    config = Qwen3MoeConfig(vocab_size=8192, hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
                            intermediate_size=1024, moe_intermediate_size=256, num_experts=32, num_experts_per_tok=4, norm_topk_prob=True,
                            decoder_sparse_step=1, max_position_embeddings=4096, tie_word_embeddings=False, router_aux_loss_coef=0.01)
    model = Qwen3MoeForCausalLM(config).cuda()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} million parameters", flush=True)
    steps, loss = learn(model, tokens, options.seconds)
    model.to(torch.bfloat16).save_pretrained(options.out, max_shard_size="10GB")
    split_experts(options.out / "model.safetensors")
    PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer).save_pretrained(options.out)
    print(f"{steps} steps, loss {loss}")


if __name__ == "__main__":
    main()
