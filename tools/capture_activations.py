#!/usr/bin/env python3
"""Writes the range of each linear layer's input, for `tessera quantize --activations`, by running text in transformers.

    pip install torch transformers
    tools/capture_activations.py Llama-3.1-8B --text calibration.txt -o ranges.json
    tessera quantize Llama-3.1-8B -o out --scheme int8-channel --activations ranges.json --activation-zero-points

--text has one sample a line: a few hundred of what the model is for. --inputs also keeps the first rows of every layer's
input, for `tessera verify epilogue out --activations inputs.safetensors`. docs/numerics.md has the form of both files.

Layers are torch.nn.Linear modules under the names of the checkpoint. Experts that transformers keeps stacked in one tensor
are no such modules and are not seen; those that no token reached have no range. Both are named at the end, and
`tessera quantize` says which of them it needs.
"""

import argparse
import json
import sys


class Ranges:
    """Ranges of the inputs of linear layers, by the layer's name."""

    def __init__(self, rows=0):
        self.rows, self.low, self.high, self.inputs = rows, {}, {}, {}

    def watch(self, model, linear):
        """Hooks all layers of the class `linear`; returns their names."""
        names = []
        for name, module in model.named_modules():
            if isinstance(module, linear):
                names.append(name)
                module.register_forward_pre_hook(lambda module, args, kwargs, name=name: self.see(name, args, kwargs),
                                                 with_kwargs=True)
        return names

    def see(self, name, args, kwargs):
        x = args[0] if args else kwargs["input"]
        if x.numel() == 0:
            return
        low, high = float(x.min()), float(x.max())
        if not (abs(low) < float("inf") and abs(high) < float("inf")):  # NaN, too
            raise SystemExit(f"{name}: its input holds NaN or Inf; nothing was written")
        self.low[name] = min(low, self.low.get(name, low))
        self.high[name] = max(high, self.high.get(name, high))
        kept = self.inputs.setdefault(name, [])
        left = self.rows - sum(len(part) for part in kept)
        if left > 0:
            kept.append(x.reshape(-1, x.shape[-1])[:left].to("cpu", copy=True))

    def table(self):
        return {name: {"min": self.low[name], "max": self.high[name]} for name in self.low}


def stacked_experts(model):
    """Names of weights of three dimensions, which no linear layer has."""
    return [name for name, x in model.named_parameters() if x.ndim == 3]


def listed(names):
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder that transformers loads")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="ranges, as JSON")
    parser.add_argument("--text", required=True, metavar="FILE", help="samples, one a line")
    parser.add_argument("--samples", type=int, default=256, help="lines that are used (256)")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a sample at most (2048)")
    parser.add_argument("--device", default="cpu", help="as torch names it; 'auto' spreads layers, with accelerate (cpu)")
    parser.add_argument("--inputs", metavar="FILE", help="also the first rows of the inputs, as safetensors")
    parser.add_argument("--rows", type=int, default=64, help="rows of --inputs (64)")
    args = parser.parse_args()

    with open(args.text, encoding="utf-8") as file:
        samples = [line for line in (line.strip() for line in file) if line][:args.samples]
    if not samples:
        raise SystemExit(f"{args.text}: no line with text")

    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    spread = {"device_map": "auto"} if args.device == "auto" else {}
    dtype = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, **{dtype: "auto"}, **spread)
    if not spread:
        model.to(args.device)
    model.eval()
    ranges = Ranges(args.rows if args.inputs else 0)
    names = ranges.watch(model, torch.nn.Linear)
    with torch.no_grad():
        for i, sample in enumerate(samples):
            tokens = tokenizer(sample, return_tensors="pt", truncation=True, max_length=args.length)
            model(**tokens.to(model.device), use_cache=False)
            print(f"\r{i + 1} of {len(samples)} samples", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)

    table = ranges.table()
    if not table:
        raise SystemExit("no linear layer was reached; nothing was written")
    with open(args.output, "w", encoding="utf-8") as file:
        json.dump(table, file, indent=1)
        file.write("\n")
    if args.inputs:
        from safetensors.torch import save_file
        save_file({f"{name}.input": torch.cat(parts) for name, parts in ranges.inputs.items()}, args.inputs)
    print(f"{len(table)} of {len(names)} linear layers in {args.output}")
    missed = [name for name in names if name not in table]
    if missed:
        print(f"no token reached {listed(missed)}: more text, or --exclude them")
    stacked = stacked_experts(model)
    if stacked:
        print(f"stacked and not seen: {listed(stacked)}")


if __name__ == "__main__":
    main()
