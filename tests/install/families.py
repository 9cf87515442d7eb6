#!/usr/bin/env python3
"""Checks that docs/families.md matches the tool: the quantized tensors of each model family, and loader verdicts. --write writes the page.

Quantized tensors come from `quantize --list-families`. Verdicts come from `inspect --can-load` for a small model of
each family (tests/cli/policy_table.txt) with each scheme. Verdicts about missing layers of such a model are ignored.
`inspect` must give the same verdicts before quantization."""

import collections
import json
import pathlib
import re
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness
import policy_table

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/families.md"
TESTED = "## Every class of transformers"  # the last part of the page, which ./dev families --write makes
LOADERS = {"vllm": "vLLM", "sglang": "SGLang", "transformers": "transformers", "trtllm": "TensorRT-LLM"}
SCHEMES = ("fp8-block", "fp8-channel", "nvfp4-weight-only", "mxfp4-weight-only", "int4-weight-only")
HEAD = """# What is supported for each model family

`tests/install/families.py --write` makes this page from the tool's own tables, and a test compares
them: change the tables, not this page.

**Quantized** lists what `tessera quantize` quantizes with its default scheme, by the last part of a
module's name. Tensors that every model keeps (embeddings, norms, biases, routers, the output head)
are not repeated. A family without an official release in 4 or 8 bits is marked with \\*. `tessera
quantize --list-families` prints the rules with their reasons; models of any other `model_type` use
general rules.

**Forward**: `tessera verify forward` runs the family layer by layer.

**Who loads it**, at TP 1, by the rules of `tessera inspect --can-load` about quantized weights, checked against:

{checked}

A real model may meet other rules too (sizes that a rank cuts, missing layers), which `inspect`
checks. {all} means all four of vLLM, SGLang, transformers and TensorRT-LLM. An empty cell means that
the scheme quantizes nothing. Each scheme is in the default dialect of `quantize`: another dialect
often loads where this one does not (fp8-block of Llama in SGLang: `--dialect compressed-tensors`).

"""


def with_own_tensors(title, options, config, rows):
    """Returns the rows of a family. DeepSeek-V4 and V4.1 share a list, and only V4.1 has n-gram tables."""
    return options, config, [row for row in rows if title.startswith("deepseek_v41") or ".engram." not in row[2]]


def whole(config):
    """Adds the keys that config.json of every real model has, so that only rules about quantized weights apply."""
    sizes = {} if "text_config" in config else {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2}
    return {"architectures": ["ForCausalLM"], **sizes, **config}


def quantized(rows):
    """Returns the last parts of the names of quantized modules, each once, in their order."""
    parts = [re.sub(r"\.weight$", "", name).split(".") for action, _, name, _ in rows if action == "quantize"]
    return list(dict.fromkeys(part[-1] if not part[-1].isdigit() else ".".join(part[-2:]) for part in parts))


def quantize(tool, place, table):
    """Quantizes each family with each scheme, as PLACE/FAMILY-SCHEME, in one process. Returns the folders with quantized
    weights."""
    jobs = []
    for title, (_, config, rows) in table.items():
        src = policy_table.write_holes(place / title, whole(config), {name: shape for _, shape, name, _ in rows})
        jobs += [{"name": f"{title}-{scheme}", "args": ["quantize", str(src), "-o", str(place / f"{title}-{scheme}"), "--scheme", scheme]}
                 for scheme in SCHEMES]
    (place / "jobs.json").write_text(json.dumps(jobs))
    code, _, err = harness.run(tool, ["batch", place / "jobs.json", "--keep-going", "--quiet", "--threads", "2", "--json", place / "told.json"])
    told = {job["name"]: job["code"] for job in json.loads((place / "told.json").read_text())["jobs"]}
    assert set(told.values()) <= {0, 1} and len(told) == len(jobs), err
    return {name for name, code in told.items() if code == 0}


def judged(tool, path):
    code, out, err = harness.run(tool, ["inspect", path, "--can-load", "all", "--tp", "1,8", "--json", "-"])
    assert code in (0, 1), err
    return json.loads(out)


def foretold_otherwise(tool, place, there):
    """Returns the families whose verdict of `inspect` differs before and after quantization, and the number of checked ones."""
    def said(path):
        found = judged(tool, path)
        of_loaders = [f for f in found["load_findings"] if f["rule"] != "plan"]  # which is what quantize itself warns of
        return found["can_load"], {(f["loader"], f["tp"], f["rule"], f["tensor"], f["detail"]) for f in of_loaders}

    titles = sorted(name.removesuffix("-fp8-block") for name in there if name.endswith("-fp8-block"))
    return [title for title in titles if said(place / title) != said(place / f"{title}-fp8-block")], len(titles)


def loads(tool, path):
    """Returns the loaders that accept a checkpoint, and the judged versions."""
    said = judged(tool, path)
    no = {finding["loader"] for finding in said["load_findings"] if finding["severity"] == "error" and finding["rule"] != "missing" and finding["tp"] in (None, 1)}
    names = [name for loader, name in LOADERS.items() if loader not in no]
    return "all" if len(names) == len(LOADERS) else ", ".join(names) or "none", said["checked"]


def forward_families(tool, place):
    """Returns the families of `verify forward`, which the error for an unknown one lists."""
    tiny = place / "unknown"
    tiny.mkdir()
    (tiny / "config.json").write_text('{"model_type": "unknown"}')
    harness.write_safetensors(tiny / "model.safetensors", {"model.norm.weight": ("BF16", [8], bytes(16))})
    err = harness.expect(tool, ["verify", "forward", tiny, "--against", tiny], 3)
    return set(err.strip().split("verify forward supports ")[1].split(", "))


def page(tool, place):
    """Returns the page, the families that it lacks, and the folders made for it."""
    out = harness.succeed(tool, ["quantize", "--list-families", "--json", "-"])
    listed = {entry["model_type"]: entry for entry in json.loads(out)["families"]}
    forward = forward_families(tool, place)
    table = {title: with_own_tensors(title, *row) for title, row in policy_table.read_table().items() if title in listed and not row[0]}
    checked, there = None, quantize(tool, place, table)
    rows = collections.defaultdict(list)  # families that differ in nothing stand in one row
    for title in table:
        told = [loads(tool, place / f"{title}-{scheme}") if f"{title}-{scheme}" in there else ("", None) for scheme in SCHEMES]
        parts = ", ".join(f"`{part}`" for part in quantized(table[title][2])) or "nothing"
        rows[(parts, *(cell for cell, _ in told))].append(title)
        checked = told[0][1] or checked
    lines = ["| family | quantized | forward | " + " | ".join(SCHEMES) + " |", "|---|---|---|" + "---|" * len(SCHEMES)]
    for (parts, *cells), titles in rows.items():
        names = ", ".join(f"{title}{'' if listed[title]['release_seen'] else chr(92) + '*'}" for title in titles)
        known = [title for title in titles if title in forward]
        runs = "yes" if len(known) == len(titles) else ", ".join(known)
        lines.append(f"| {names} | {parts} | {runs} | {' | '.join(cells)} |")
    versions = "\n".join(f"- {checked[loader]}" for loader in LOADERS)
    return HEAD.format(checked=versions, all='"all"') + "\n".join(lines) + "\n", set(listed) - set(table), there


def main():
    parser = harness.argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    checks = harness.Checks()
    with harness.temporary_directory(options.directory) as place:
        text, missing, there = page(options.tessera, place)
        otherwise, asked = foretold_otherwise(options.tessera, place, there)
    committed, heading, tested = PAGE.read_text().partition(TESTED)
    if options.write:
        PAGE.write_text(text + "\n" + heading + tested)
        committed = text + "\n"
    checks.check("docs/families.md is what the tables say: tests/install/families.py --write", committed == text + "\n", "it differs")
    checks.check("docs/families.md has the results of ./dev families --write", tested.count("\n") > 50, len(tested))
    checks.check("every family of the policy is there", not missing, sorted(missing))
    checks.check("what is judged before quantize is what it then makes", not otherwise and asked > 70, (asked, otherwise))
    checks.finish()


if __name__ == "__main__":
    main()
