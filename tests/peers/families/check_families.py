"""Quantizes a tiny model of every class of transformers, loads it there, and compares all with the class and the verdict.

python check_families.py --tessera BINARY [--only PATTERN] [--scheme NAME] [--jobs N] [--json FILE] [--write]

Each model is saved, quantized with each scheme, judged by `inspect --can-load transformers`, and loaded again with its
weights dequantized on the CPU. Each parameter is compared with the original's. The class says which stored tensors are
linear layers: no other tensor may be quantized, and a linear layer with 1 % of the weights needs a rule to be kept.
Exit code 0: all agree. 1: a wrong verdict, a wrong layer, or a layer without a reason. 77: no transformers."""

import argparse
import concurrent.futures
import fnmatch
import functools
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1")

# The schemes, with the largest relative error of a matrix of normal values.
LIMITS = {"fp8-block": 0.04, "fp8-channel": 0.04, "int8-weight-only": 0.02, "int4-weight-only": 0.14, "nvfp4-weight-only": 0.13,
          "mxfp4-weight-only": 0.16}
MATTERS = 0.01  # share of the linear weights from which a layer needs a reason to be kept
SCALES = re.compile(r"weight_scale|_scale_inv|weight_packed|weight_global_scale|weight_shape")
UNSURE = "no rule of this model_type matches its name"  # a family with rules must name each large layer


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


def load(model_class, folder):
    """Returns the decoded parameters of a quantized model. Raises if its class cannot load it, or finds no scale.

    It is also loaded as users load it. Then an unquantized layer that the class builds as quantized lacks its scale, and the
    scale of a layer that the class builds as unquantized is unused."""
    import torch
    import transformers
    from tiny_models import FILES
    from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

    stated = json.loads((folder / "config.json").read_text())
    method = (stated.get("quantization_config") or stated.get("text_config", {}).get("quantization_config", {})).get("quant_method")
    how = {"fp8": lambda: transformers.FineGrainedFP8Config(dequantize=True),
           "mxfp4": lambda: transformers.Mxfp4Config(dequantize=True),
           "compressed-tensors": lambda: transformers.CompressedTensorsConfig(run_compressed=False)}[method]()
    if method != "mxfp4":  # it needs kernels of a GPU
        FineGrainedFP8HfQuantizer.validate_environment = lambda self, *args, **kwargs: None  # the weights are not used, so no GPU is needed
        read = model_class.from_pretrained
        if stated.get("model_type") in FILES:  # its own method reads a file after the weights, and then fails with loading information
            read = functools.partial(transformers.PreTrainedModel.from_pretrained.__func__, model_class)
        _, info = read(str(folder), dtype=torch.bfloat16, output_loading_info=True)
        for what in ("missing", "unexpected"):
            keys = sorted(key for key in info[f"{what}_keys"] if SCALES.search(key))
            if keys:
                raise ValueError(f"{len(keys)} scales are {what}: {keys[0]}")
    return dict(model_class.from_pretrained(str(folder), dtype=torch.bfloat16, quantization_config=how).named_parameters())


def stored(folder, kinds):
    """Returns {name: (kind, elements)} of the tensors in a folder."""
    from safetensors import safe_open

    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():
                tensor = tensors.get_tensor(name)
                found[name] = kinds.find(tensor), tensor.numel()
    return found


def judge_layers(layers, report):
    """Returns the share of linear weights that is quantized, the layers that must not be, and those kept without a reason."""
    quantized = {t["name"] for t in report["tensors"]}
    kept = {t["name"]: t["reason"] for t in report["kept"]}
    for stack in layers.keys() - kept.keys() - quantized:  # split into single experts, which have other names
        parent = stack.removesuffix(".weight").rpartition(".")[0].removesuffix(".experts")
        if layers[stack][0] == "experts" and any(name.startswith(parent + ".experts.") for name in quantized):
            quantized.add(stack)
    linear = {name: n for name, (kind, n) in layers.items() if kind in ("linear", "experts")}
    total = max(sum(linear.values()), 1)
    wrong = [f"{name} ({layers[name][0]})" for name in sorted(quantized) if name in layers and layers[name][0] not in ("linear", "experts")]
    without = [name for name, n in sorted(linear.items()) if name not in quantized and n >= MATTERS * total
               and (name not in kept or kept[name] == UNSURE)]
    reasons = Counter()
    for name, n in linear.items():
        if name not in quantized:
            reasons[kept.get(name, "not listed")] += n
    return sum(n for name, n in linear.items() if name in quantized) / total, wrong, without, [r for r, _ in reasons.most_common(3)]


def judge(tessera, scheme, work, source, model, saved, layers):
    """Returns the record of one model type and one scheme."""
    from tiny_models import difference

    made = work / scheme
    done = run(tessera, "quantize", source, "-o", made, "--scheme", scheme, "--quiet")
    if done.returncode < 0:
        raise RuntimeError(f"quantize --scheme {scheme} was ended by signal {-done.returncode} at {source}")
    if done.returncode != 0:
        return {"verdict": "refused", "why": done.stderr.strip().splitlines()[-1].removeprefix("tessera: ").replace(str(work), "")}
    share, wrong, without, reasons = judge_layers(layers, json.loads((made / "quantization_report.json").read_text()))
    got = json.loads(run(tessera, "inspect", made, "--can-load", "transformers", "--tp", "1", "--json", "-", "--quiet").stdout)
    verdict = got["can_load"]["transformers"]["1"]
    errors = [f"{f['tensor'] or 'config.json'}: {f['detail']}" for f in got["load_findings"] if f["severity"] == "error"]
    record = {"share": round(share, 4), "wrong_layers": wrong, "without_reason": without, "kept_because": reasons}
    if share > 0 or (made / "config.json").read_text().find("quantization_config") >= 0:
        try:
            failed = difference(load(type(model), made), saved, LIMITS[scheme])
        except Exception as e:
            failed = f"{type(e).__name__}: {e}".splitlines()[0]
        record["verdict"] = ("yes" if verdict else "no") if verdict == (failed is None) else "FALSE OK" if verdict else "FALSE NO"
        record["loads"], record["errors"] = failed or "all parameters agree", errors[:2]
    else:
        record["verdict"] = "nothing quantized"
    shutil.rmtree(made)
    return record


def why_not_made(e, folder):
    """Returns the reason in one sentence, without the paths of this run."""
    text = " ".join(str(e).split()).replace(str(folder), "DIR").partition(" neither in <module")[0]
    missing = re.search(r"requires the (\S+) library", text)
    return f"needs the package {missing[1]}, which is not installed" if missing else re.split(r"(?<=[a-z_'\]])\. ", text)[0][:200]


def judge_type(tessera, schemes, place, model_type):
    """Returns {scheme: record} of one model type."""
    import torch
    from tiny_models import LayerKinds, NoClass, make

    torch.set_num_threads(1)
    work = Path(tempfile.mkdtemp(prefix="family.", dir=place))
    try:
        source = work / "source"
        try:
            model = make(model_type, source)
        except Exception as e:
            kind = "no class" if isinstance(e, NoClass) else "not made"
            return {"": {"verdict": kind, "why": why_not_made(e, source)}}
        layers = stored(source, LayerKinds(model))
        saved = dict(model.named_parameters())
        known = "unknown model_type" not in run(tessera, "quantize", source, "-o", work / "x", "--dry-run").stderr
        return {scheme: judge(tessera, scheme, work, source, model, saved, layers) | {"rule": known} for scheme in schemes}
    finally:
        shutil.rmtree(work)


def is_bad(record):
    return record["verdict"].startswith("FALSE") or bool(record.get("wrong_layers")) or bool(record.get("without_reason"))


def describe(record):
    parts = [f"{record['share']:.0%}"] if "share" in record else []
    parts += [record[key] for key in ("why", "loads") if record.get(key)]
    if record["verdict"] in ("no", "FALSE NO"):
        parts += record["errors"][:1]
    for key in ("wrong_layers", "without_reason"):
        if record.get(key):
            parts.append(f"{key.replace('_', ' ')}: {', '.join(record[key][:4])}")
    return "; ".join(part[:300] for part in parts)


HEADING = "## Every class of transformers"
PAGE = Path(__file__).resolve().parents[3] / "docs/families.md"


def cell(record):
    """Returns the text of a cell: the share, and "no" if the loader cannot read the result."""
    if record["verdict"] == "refused":
        return "nothing" if "nothing to quantize" in record["why"] else "stops"
    text = f"{record['share']:.0%}" if record["verdict"] == "yes" else f"no ({record['share']:.0%})"
    return f"**{record['verdict']}** ({record['share']:.0%})" if is_bad(record) else text


def read_page(version):
    """Returns {model type: (rules, *cells)} and {model type: why} of the page. Raises if another version was tested."""
    text = PAGE.read_text().partition(HEADING)[2]
    if f"\n{version}," not in text:
        raise SystemExit(f"docs/families.md is not about transformers {version}: --write needs all model types, without --only")
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| ")]
    rows = {model_type: tuple(rest) for types, *rest in cells if len(rest) > 1 and types != "model types" for model_type in types.split(", ")}
    return rows, {first: rest[0] for first, *rest in cells if len(rest) == 1 and first != "model type"}


def write_page(records, version, schemes, types, rows, not_made):
    """Replaces the last part of docs/families.md by a table of these records, and of the rows and reasons of other model types."""
    for model_type, record in records.items():
        rows.pop(model_type, None)
        not_made.pop(model_type, None)
        if "" not in record:
            rows[model_type] = ("own" if next(iter(record.values())).get("rule") else "general", *(cell(record[scheme]) for scheme in schemes))
        elif record[""]["verdict"] == "not made":
            not_made[model_type] = record[""]["why"]
    same = {}
    for model_type in sorted(rows):
        same.setdefault(rows[model_type], []).append(model_type)
    texts = [text for row in rows.values() for text in row[1:]]
    counts = Counter(text.partition(" ")[0].strip("0123456789") for text in texts)
    false = Counter(word for text in texts for word in ("OK", "NO") if text.startswith(f"**FALSE {word}"))
    text = f"""{HEADING}

`./dev families --write` makes this part. It quantizes a tiny BF16 model of each class of transformers
{version}, loads the result there on the CPU with dequantized weights, and compares each parameter and
`--can-load` with the outcome. The class decides which stored tensors are linear layers: no other tensor
was quantized. {len(rows)} model types, {len(texts)} results: {counts['%']} load right, {counts['no']} are refused by `--can-load` and fail,
{false['OK']} load wrong although `--can-load` says ok, {false['NO']} load although it says no, {counts['nothing'] + counts['stops']} stop in `quantize`.
{len(types) - len(rows) - len(not_made)} model types are parts of others: no auto class of transformers has them. {len(not_made)} were not tested,
for the reasons below the table.

A cell is the share of the weights of linear layers that is quantized, without the output head.
**no**: transformers cannot load it, and `--can-load` says so. **nothing**: `quantize` finds nothing to
quantize. **stops**: the groups do not divide a layer. The rest of a model is kept for the reason that
`--dry-run` gives: towers, projectors, experts of some schemes. Rules: `own` are those of `quantize
--list-families`; for `general` ones `quantize` prints a warning.

| model types | rules | {' | '.join(schemes)} |
|---|---|{'---|' * len(schemes)}
"""
    for key, names in sorted(same.items(), key=lambda row: row[1]):
        text += f"| {', '.join(names)} | {' | '.join(key)} |\n"
    text += "\nNot tested:\n\n| model type | why |\n|---|---|\n"
    text += "".join(f"| {model_type} | {why} |\n" for model_type, why in sorted(not_made.items()))
    page = PAGE.read_text()
    PAGE.write_text(page[:page.index(HEADING)] + text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--work", help="folder for the models")
    parser.add_argument("--only", action="append", help="glob of model types; repeatable")
    parser.add_argument("--scheme", action="append", choices=LIMITS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", help="writes all records")
    parser.add_argument("--write", action="store_true", help="writes the table of docs/families.md; with --only, its rows of these")
    args = parser.parse_args()
    if args.write and args.scheme:
        parser.error("--write needs all schemes")
    try:
        import transformers
    except ImportError:
        print("skipped: transformers is not installed here")
        return 77
    types = [t for t in sorted(transformers.CONFIG_MAPPING.keys())
             if not args.only or any(fnmatch.fnmatch(t, pattern) for pattern in args.only)]
    print(f"== transformers {transformers.__version__}, {len(types)} model types", flush=True)
    counts, bad, records = Counter(), 0, {}
    with concurrent.futures.ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(judge_type, args.tessera, args.scheme or list(LIMITS), args.work, t): t for t in types}
        for done in concurrent.futures.as_completed(waiting):
            records[waiting[done]] = done.result()
            for scheme, record in done.result().items():
                counts[record["verdict"]] += 1
                bad += is_bad(record)
                print(f"{'! ' if is_bad(record) else '  '}{record['verdict']:17} {waiting[done]} {scheme}: {describe(record)}", flush=True)
    print("-- " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) + f"; {bad} wrong")
    if args.json:
        Path(args.json).write_text(json.dumps({"transformers": transformers.__version__, "families": dict(sorted(records.items()))}, indent=1) + "\n")
    if args.write:
        others = read_page(transformers.__version__) if args.only else ({}, {})
        write_page(records, transformers.__version__, list(LIMITS), list(transformers.CONFIG_MAPPING.keys()), *others)
    return 1 if bad or not counts["yes"] else 0


if __name__ == "__main__":
    sys.exit(main())
