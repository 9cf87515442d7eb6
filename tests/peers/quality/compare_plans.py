#!/usr/bin/env python3
"""Compares plans by measured sensitivities with plans by the errors of weights, on a trained model.

The model and the text are those of compare_quality.py. A probe, int4 in groups of 64, gives the sensitivities on one text.
For each budget, plan-schemes chooses schemes with and without them, quantize --rules writes the model, and verify forward
measures the divergence from the source on another text. Weights are weighted by importance in all of them. Prints a
Markdown table; --json FILE."""

import json
import pathlib
import shlex
import tempfile

from experiment import Experiment, parser
from trained_model import LENGTH

PROBE = "int4-weight-only --group-size 64 --scales best"


def parse():
    options = parser(__doc__)
    options.add_argument("--bits", default="4.5,5,6", help="budgets (4.5,5,6)")
    options.add_argument("--schemes", default="all", help="of plan-schemes (all)")
    options.add_argument("--probe", default=PROBE, help=f"scheme of the probe, with its options ({PROBE})")
    options.add_argument("--measure", type=int, default=16, help="sequences of 256 tokens for the sensitivities (16)")
    return options.parse_args()


def compare(options, where):
    tool = Experiment(options, where)
    source, held_out, measured = tool.source, tool.held_out, tool.text("scipy", options.measure)
    statistics, found, rules = where / "statistics.safetensors", where / "found.json", where / "rules.json"
    tool.calibrate(source, statistics)
    weighted = ("--importance", statistics)
    tool.run("quantize", source, "-o", where / "probe", "--scheme", *shlex.split(options.probe), *weighted)
    sensitivities, seconds = tool.run("sensitivities", source, "--against", where / "probe", "--tokens", measured, "--count", LENGTH, *weighted,
                                      "--device", options.device, "-o", found)
    print(f"{len(sensitivities['groups'])} groups measured in {seconds:.0f} s", flush=True)
    rows = [{"plan": "the probe", "predicted": sensitivities["kl_sum_nats"], "bits": None, "schemes": options.probe,
             "kl": tool.compare(where / "probe", held_out)[0], "kl_there": tool.compare(where / "probe", measured)[0]}]
    for bits in options.bits.split(","):
        for name, more in (("errors of weights", ()), ("sensitivities", ("--sensitivity", found))):
            plan, _ = tool.run("plan-schemes", source, "--bits", bits, "--schemes", options.schemes, *weighted, *more, "-o", rules)
            out = where / f"{name.split()[0]}-{bits}"
            tool.run("quantize", source, "-o", out, "--rules", rules, *weighted)
            kl, result = tool.compare(out, held_out)
            rows.append({"plan": name, "bits": plan["bits_per_weight"], "predicted": plan["error"] if more else None, "kl": kl,
                         "kl_there": tool.compare(out, measured)[0], "perplexity": [result["perplexity_source"], result["perplexity"]],
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
