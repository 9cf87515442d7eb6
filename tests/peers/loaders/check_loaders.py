"""Asks real loaders about Tessera's files, and compares: what `inspect --can-load` says with what vLLM's, SGLang's and
transformers' own classes do, by values. Exit 0: no verdict is wrong but those that REFUSED explains; 1: some are; 77: the
packages are not installed (./dev loaders installs them).

python check_loaders.py --tessera BINARY [--work DIR] [--only WORD] [--loaders vllm,sglang,transformers] [--tp 1,2]"""

import argparse
import fnmatch
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
LOADERS = ("transformers", "vllm", "sglang")
RANGES, RULES = "RANGES", "RULES "  # stand for a file that is made
# name -> options of quantize; of sources that are codes, of convert
SCHEMES = {
    "fp8-block": [],
    "ue8m0": ["--scale-fmt", "ue8m0"],
    "fp8-block-ct": ["--dialect", "compressed-tensors"],
    "fp8-channel": ["--scheme", "fp8-channel"],
    "fp8-tensor": ["--scheme", "fp8-tensor"],
    "fp8-tensor-static": ["--scheme", "fp8-tensor", "--activations", RANGES],
    "fp8-tensor-modelopt": ["--scheme", "fp8-tensor", "--activations", RANGES, "--dialect", "modelopt"],
    "int8-channel": ["--scheme", "int8-channel"],
    "int8-weight-only": ["--scheme", "int8-weight-only"],
    "int4-weight-only": ["--scheme", "int4-weight-only"],
    "int4-32": ["--scheme", "int4-weight-only", "--group-size", "32"],
    "int4-zero-points": ["--scheme", "int4-weight-only", "--zero-points"],
    "mxfp4": ["--scheme", "mxfp4"],
    "mxfp4-weight-only": ["--scheme", "mxfp4-weight-only"],
    "nvfp4": ["--scheme", "nvfp4", "--activations", RANGES],
    "nvfp4-modelopt": ["--scheme", "nvfp4", "--activations", RANGES, "--dialect", "modelopt"],
    "nvfp4-weight-only": ["--scheme", "nvfp4-weight-only"],
    "nvfp4-weight-only-modelopt": ["--scheme", "nvfp4-weight-only", "--dialect", "modelopt"],
    "nvfp4-four-six": ["--scheme", "nvfp4", "--scales", "four-six", "--activations", RANGES],
    "nvfp4-four-six-modelopt": ["--scheme", "nvfp4", "--scales", "four-six", "--activations", RANGES, "--dialect", "modelopt"],
    "w4afp8": ["--scheme", "w4afp8"],
    "w4afp8-mlp": ["--scheme", "w4afp8", "--exclude", "*self_attn*"],
    "w4afp8-sglang": ["--scheme", "w4afp8", "--dialect", "sglang", "--activations", RANGES],
    "w4afp8-sglang-mlp": ["--scheme", "w4afp8", "--dialect", "sglang", "--input-scale", "0.02", "--exclude", "*self_attn*"],
    "fp8-tensor-constant": ["--scheme", "fp8-tensor", "--input-scale", "0.02"],
    "fp8-tensor-constant-modelopt": ["--scheme", "fp8-tensor", "--input-scale", "0.02", "--dialect", "modelopt"],
    "nvfp4-constant": ["--scheme", "nvfp4", "--input-scale", "0.001"],
    "fp8-channel-kv": ["--scheme", "fp8-channel", "--kv-scale", "0.05"],
    "fp8-tensor-kv": ["--scheme", "fp8-tensor", "--kv-scale", "0.05"],
    "nvfp4-modelopt-kv": ["--scheme", "nvfp4", "--activations", RANGES, "--dialect", "modelopt", "--kv-scale", "0.05"],
    "mxfp8": ["--scheme", "mxfp8"],
    "mxfp8-modelopt": ["--scheme", "mxfp8", "--dialect", "modelopt"],
    "mxfp8-method": ["--scheme", "mxfp8", "--dialect", "deepseek"],
    "mxfp8-weight-only": ["--scheme", "mxfp8-weight-only"],
    "block-mlp": ["--exclude", "*self_attn*"],
    "block-ct-mlp": ["--dialect", "compressed-tensors", "--exclude", "*self_attn*"],
    "channel-mlp": ["--scheme", "fp8-channel", "--exclude", "*self_attn*"],
    "nvfp4-mlp": ["--scheme", "nvfp4-weight-only", "--exclude", "*self_attn*"],
    "nvfp4-modelopt-mlp": ["--scheme", "nvfp4-weight-only", "--dialect", "modelopt", "--exclude", "*self_attn*"],
    "nvfp4-modelopt-but-attention": ["--scheme", "nvfp4", "--activations", RANGES, "--dialect", "modelopt", "--exclude", "*_attn.*"],
    "mix-fp8-nvfp4": ["--rules", RULES + "fp8-channel nvfp4-weight-only"],
    "mix-block-mxfp4": ["--rules", RULES + "fp8-block mxfp4-weight-only"],
    "mix-mxfp8-int4": ["--rules", RULES + "mxfp8 int4-weight-only"],
    "mix-nvfp4-int8": ["--rules", RULES + "nvfp4-weight-only int8-weight-only"],
    "mix-fp8-tensor-nvfp4": ["--rules", RULES + "fp8-tensor nvfp4", "--input-scale", "1"],
    "modelopt-mix-fp8-tensor-nvfp4": ["--rules", RULES + "fp8-tensor nvfp4", "--activations", RANGES, "--dialect", "modelopt"],
    "modelopt-mix-nvfp4-fp8-tensor": ["--rules", RULES + "nvfp4 fp8-tensor", "--input-scale", "1", "--dialect", "modelopt"],
    "modelopt-mix-fp8-tensor-w4a16": ["--rules", RULES + "fp8-tensor nvfp4-weight-only", "--activations", RANGES, "--dialect", "modelopt"],
    "modelopt-mix-experts-fp8-tensor": ["--rules", RULES + "keep fp8-tensor nvfp4", "--activations", RANGES, "--dialect", "modelopt"],
    "modelopt-mix-mxfp8-nvfp4": ["--rules", RULES + "mxfp8 nvfp4", "--activations", RANGES, "--dialect", "modelopt"],
    "modelopt-mix-mxfp8-w4a16": ["--rules", RULES + "mxfp8 nvfp4-weight-only", "--dialect", "modelopt"],
    "modelopt-mix-w4a16-mxfp8": ["--rules", RULES + "nvfp4-weight-only mxfp8", "--dialect", "modelopt"],
    "modelopt-mix-nvfp4-w4a16": ["--rules", RULES + "nvfp4 nvfp4-weight-only", "--activations", RANGES, "--dialect", "modelopt"],
    "modelopt-mix-keep-nvfp4": ["--rules", RULES + "keep nvfp4", "--activations", RANGES, "--dialect", "modelopt"],
    "modelopt-mix-keep-mxfp8": ["--rules", RULES + "keep mxfp8", "--dialect", "modelopt"],
    "modelopt-mix-mxfp8-keep": ["--rules", RULES + "mxfp8 keep", "--dialect", "modelopt"],
    "modelopt-mix-experts-mxfp8": ["--rules", RULES + "keep mxfp8 nvfp4-weight-only", "--dialect", "modelopt"],
    "modelopt-mix-experts-w4a16": ["--rules", RULES + "keep nvfp4-weight-only mxfp8", "--dialect", "modelopt"],
    "modelopt-mix-experts-keep": ["--rules", RULES + "keep keep nvfp4-weight-only", "--dialect", "modelopt"],
}
CONVERSIONS = {
    "as-it-is": None,
    "to-fp8-block": ["--to", "fp8-block"],
    "to-mxfp4-weight-only": ["--to", "mxfp4-weight-only"],
    "to-nvfp4-weight-only": ["--to", "nvfp4-weight-only"],
    "to-nvfp4-weight-only-modelopt": ["--to", "nvfp4-weight-only", "--dialect", "modelopt"],
    "to-mxfp8": ["--to", "mxfp8"],
    "to-int4-weight-only": ["--to", "int4-weight-only"],
    "to-fp8-channel": ["--to", "fp8-channel"],
    "to-mxfp8-method": ["--to", "mxfp8", "--dialect", "deepseek"],
    "to-mxfp4-deepseek": ["--to", "mxfp4", "--dialect", "deepseek"],
    "to-fp8-block-but-wo_a": ["--to", "fp8-block", "--exclude", "*wo_a*"],
    **{f"{name}-but-attention": [*options, "--exclude", "*attn*"] for name, options in {
        "to-fp8-block": ["--to", "fp8-block"],
        "to-nvfp4-weight-only": ["--to", "nvfp4-weight-only"],
        "to-nvfp4-weight-only-modelopt": ["--to", "nvfp4-weight-only", "--dialect", "modelopt"],
        "to-mxfp4-weight-only": ["--to", "mxfp4-weight-only"],
        "to-int4-weight-only": ["--to", "int4-weight-only"],
        "to-fp8-channel": ["--to", "fp8-channel"]}.items()},
}
# Verdicts that are stricter than the loader, on purpose: loader, pattern of the case -> why.
LISTS = "where it dequantizes, as here, it goes by the scales that are there; with FP8 on a GPU it goes by the list"
BLOCKS = "where it dequantizes, as here, it takes the block size from the shapes; with FP8 on a GPU it takes that of config.json"
INPUTS = "where it dequantizes, as here, no input is quantized; with FP8 on a GPU the kernel needs the scheme"
REFUSED = {
    ("transformers", "*+joined-listed-and-plain *"): LISTS,
    ("transformers", "*+experts-listed *"): LISTS,
    ("transformers", "*+down-only *"): LISTS,
    ("transformers", "*+targets-miss *"): LISTS,
    ("transformers", "*+no-block-size *"): BLOCKS,
    ("transformers", "*+block-size-64 *"): BLOCKS,
    ("transformers", "*+no-scheme *"): INPUTS,
    ("transformers", "*+static-scheme *"): INPUTS,
}


def versions():
    found = {}
    for name in LOADERS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def wanted(case, only):
    return not only or any(fnmatch.fnmatch(case, pattern) for pattern in only)


def families():
    """Returns the names of the models, and of those that are stored as codes, which are converted, not quantized."""
    from families import CODED, FAMILIES  # needs torch

    return list(FAMILIES | CODED), CODED


def edits():
    import edits  # needs torch

    return edits.EDITS


def ranges_of(source):
    """Returns a range for the input of each matrix, all different."""
    from safetensors import safe_open

    path, names = source / "ranges.json", []
    for shard in sorted(source.glob("*.safetensors")):
        with safe_open(shard, "pt") as file:
            names += [name.removesuffix(".weight") for name in file.keys() if name.endswith(".weight")]
    path.write_text(json.dumps({name: {"min": -4 - n / 64, "max": 4 + n / 64} for n, name in enumerate(names)}))
    return path


def rules_of(source, *schemes):
    """Returns rules for attention, routed experts if three schemes are given, and the rest."""
    matches = [["*.self_attn.*", "*.linear_attn.*"], "*.experts.*", "*"]
    path = source / f"rules-{'-'.join(schemes)}.json"
    path.write_text(json.dumps({"schema": "tessera-rules/1", "rules": [
        {"match": match, "scheme": scheme} for match, scheme in zip(matches[:len(schemes) - 1] + matches[-1:], schemes)]}))
    return path


def option(text, source):
    if text == RANGES:
        return ranges_of(source)
    return rules_of(source, *text.removeprefix(RULES).split()) if text.startswith(RULES) else text


def make(tessera, source, made, plain, options, coded):
    """Makes an output. Returns Tessera's message if it rejects the case, otherwise None."""
    for folder in (made, plain):
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    if options is None:
        shutil.copytree(source, made)
        done = run(tessera, "convert", made, "-o", plain, "--to", "bf16", "--quiet")
    else:
        verb, words = "convert" if coded else "quantize", [option(text, source) for text in options]
        done = run(tessera, verb, source, "-o", made, "--quiet", *words)
        decoded = made
        if done.returncode == 0 and words[-2:-1] == ["--kv-scale"]:  # a plain model of vLLM has no place for scales of a cache
            decoded = made.with_name(made.name + "-without-cache")
            shutil.rmtree(decoded, ignore_errors=True)
            done = run(tessera, verb, source, "-o", decoded, "--quiet", *words[:-2])
        if done.returncode == 0:
            done = run(tessera, "convert", decoded, "-o", plain, "--to", "bf16", "--quiet")
    return None if done.returncode == 0 else (done.stderr or done.stdout).strip().splitlines()[-1:]


def prepare(tessera, work, only):
    """Returns [(case, quantized, plain, bits)]. Cases that Tessera rejects are printed and omitted."""
    sources, changes, (names, coded) = work / "sources", edits(), families()
    asked = [(name, scheme, options) for name in names for scheme, options in (CONVERSIONS if name in coded else SCHEMES).items()
             if any(wanted(case, only) for case in (f"{name}/{scheme}", *(f"{name}/{scheme}+{edit}" for edit in changes)))]
    missing = sorted({name for name, _, _ in asked if not (sources / name / "config.json").exists()})
    if missing:
        run(sys.executable, HERE / "families.py", sources, *missing)
    cases = []
    for name, scheme, options in asked:
        case = f"{name}/{scheme}"
        if not (sources / name / "config.json").exists():
            print(f"{case:38} not made: transformers here does not have it")
            continue
        made, plain = work / "made" / name / scheme, work / "plain" / name / scheme
        if not (plain / "config.json").exists():
            refused = make(tessera, sources / name, made, plain, options, name in coded)
            if refused is not None:
                print(f"{case:38} not made: {refused}")
                continue
        bits = 4 if "int4" in scheme or "w4afp8" in scheme else 8
        if wanted(case, only):
            cases.append((case, made, plain, bits))
        for edit, (pattern, act) in changes.items():
            if not fnmatch.fnmatch(case, pattern) or not wanted(f"{case}+{edit}", only):
                continue
            changed = work / "edited" / name / f"{scheme}+{edit}"
            if not (changed / "edited").exists():
                shutil.rmtree(changed, ignore_errors=True)
                shutil.copytree(made, changed)
                act(changed)
                (changed / "edited").write_text("")
            cases.append((f"{case}+{edit}", changed, plain, bits))
    return cases


def foretold(tessera, made, loader, tps):
    done = run(tessera, "inspect", made, "--can-load", loader, "--tp", ",".join(map(str, tps)), "--json", "-", "--quiet")
    if done.returncode > 1:
        raise SystemExit(f"{made}: {done.stderr}")
    got = json.loads(done.stdout)
    return got["can_load"][loader], got["load_findings"]


def ask(loader, jobs, work):
    """Yields the answers as they arrive. The file of jobs has no name, so that two runs may share `work`."""
    errors = None if os.environ.get("LOADERS_TRACE") else subprocess.DEVNULL
    with tempfile.TemporaryFile("w+", dir=work) as source:
        source.writelines(json.dumps(job) + "\n" for job in jobs)
        source.seek(0)
        with subprocess.Popen([sys.executable, HERE / f"load_{loader}.py"], stdin=source, stdout=subprocess.PIPE, stderr=errors,
                              text=True) as process:
            for line in process.stdout:
                yield json.loads(line)
    while True:
        yield {"ok": None, "why": "the loader's process ended"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--work")
    parser.add_argument("--only", action="append")
    parser.add_argument("--loaders", default=",".join(LOADERS))
    parser.add_argument("--tp", default="1,2")
    args = parser.parse_args()
    have = versions()
    asked = [name for name in args.loaders.split(",") if name in have]
    if not asked:
        print(f"skipped: none of {args.loaders} is installed here; ./dev loaders installs them")
        return 77
    work = Path(args.work) if args.work else Path(tempfile.mkdtemp(prefix="loaders."))
    tps = [int(tp) for tp in args.tp.split(",")]
    wrong = ran = 0
    cases = prepare(args.tessera, work, args.only)
    for loader in asked:
        sizes = tps[:1] if loader == "transformers" else tps
        print(f"== {loader} {have[loader]}", flush=True)
        jobs = [{"quantized": str(made), "plain": str(plain), "tp": tp, "bits": bits}
                for _, made, plain, bits in cases for tp in sizes]
        answers, counts = ask(loader, jobs, work), Counter()
        for case, made, _, _ in cases:
            said, findings = foretold(args.tessera, made, loader, sizes)
            for tp in sizes:
                answer = next(answers)
                verdict = said[str(tp)]
                excuse = next((why for (who, pattern), why in REFUSED.items()
                               if who == loader and fnmatch.fnmatch(f"{case} TP {tp}", pattern)), None)
                if answer["ok"] is None:
                    kind = "not run "
                elif verdict == answer["ok"]:
                    kind = "agree   "
                elif verdict:
                    kind = "FALSE OK"
                else:
                    kind = "explained" if excuse else "FALSE NO"
                counts[kind.strip() + (" (ok)" if kind == "agree   " and verdict else "")] += 1
                wrong += kind.startswith("FALSE")
                ran += answer["ok"] is not None
                mine = [f["detail"] for f in findings if f["severity"] == "error" and f["tp"] in (None, tp)]
                print(f"{kind:9} {case} TP {tp}: loads: {answer['ok']}, said: {verdict}"
                      f"{'; ' + answer['why'] if answer.get('why') else ''}"
                      f"{'; inspect: ' + mine[0] if mine and kind == 'FALSE NO' else ''}"
                      f"{'; ' + excuse if kind == 'explained' else ''}", flush=True)
        print(f"-- {loader} {have[loader]}: " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())), flush=True)
    if not args.work:
        shutil.rmtree(work)
    print(f"{ran} were run; {wrong} verdicts of inspect are wrong")
    return 1 if wrong or not ran else 0


sys.exit(main())
