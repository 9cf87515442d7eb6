#!/usr/bin/env python3
"""Runs the commands of README.md: those of the first example one after the other in a clean folder, all others one by one."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import adapters
import browser
import harness
import pages
import remote_servers
import s3_store

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "README.md").read_text()
# The checkpoints that the lines name, in the order in which they are made of one another. The releases stand for their formats.
NAMES = {"Llama-3.1-8B": None, "model": None, "DeepSeek-V3-BF16": None,
         "DeepSeek-V3": "quantize DeepSeek-V3-BF16", "DeepSeek-V3-FP8": "quantize DeepSeek-V3-BF16 --scale-fmt ue8m0",
         "DeepSeek-V4": "quantize model --scheme mxfp4-weight-only", "Llama-W4A16": "quantize model --scheme int4-weight-only",
         "Llama-3.1-8B-FP8": "quantize Llama-3.1-8B", "out": "quantize model"}
# Exit code 1 of these commands is no failure: codes differ from floats, and some loader accepts no checkpoint.
MAY_END_IN_1 = ("diff", "inspect")


def block(heading):
    """Returns the lines of the first code block below a heading."""
    text = re.search(rf"^## {heading}$(.*?)^## ", PAGE, re.M | re.S).group(1)
    return [line[4:] for line in re.search(r"(?:^(?:    .*)?\n)+(?=^[^ \n]|\Z)", text[text.index("\n    "):], re.M).group(0).splitlines()
            if line.strip()]


def command(line):
    """Returns a line without its explanation, which follows six spaces or begins at the end of the column."""
    return re.split(r" {2,}", line)[0]


def shell(line, where, **more):
    done = subprocess.run(["bash", "-c", line], cwd=where, capture_output=True, text=True, stdin=subprocess.DEVNULL, **more)
    return done.returncode, done.stdout, done.stderr


def look(checks, path):
    """Opens the page in a browser if there is one. Checks its contents in any case."""
    page = pages.Page(path.read_text())
    checks.check("report: the page passes", page.verdict == "PASS" and page.outside == [], f"{page.verdict}: {page.outside}")
    rows = sum(result["rows"]["count"] for result in page.data["results"])
    checks.check("report: the page has the tensors", rows > 20, f"{rows} rows")
    found = browser.find()
    if found is None:
        print("skipped: the page was read, not opened: no Chromium here (Debian's package: chromium)")
        return
    chromium = browser.Browser(found)
    try:
        chromium.open(path)
        shown = chromium.js("document.getElementById('verdict').innerText")
        drawn = chromium.js("document.querySelectorAll('canvas').length")
        checks.check("report: the page opens and draws", "PASS" in shown and drawn > 0 and chromium.errors == [],
                     f"{shown}, {drawn} charts: {chromium.errors}")
    finally:
        chromium.close()


def quick_start(checks, options, work):
    """Runs the lines of the README, except opening the page on a desktop."""
    lines = [command(line) for line in block("From a model to a verified FP8 checkpoint")]
    checks.check("quick start: from quantize to an open page",
                 [re.sub(r"^\./dev run ", "", line).split()[0] for line in lines] == ["quantize", "verify", "report", "xdg-open"], lines)
    folder = work / "quick"
    folder.mkdir()
    harness.make_checkpoint(options.make, "llama", folder / "Llama-3.1-8B")
    (folder / "dev").write_text(f'#!/bin/sh\nexec "{ROOT}/dev" "$@"\n')
    (folder / "dev").chmod(0o755)
    told = ""
    for line in lines[:-1]:
        code, out, err = shell(line, folder)
        if code == 2 and "libjs-chart.js" in err:
            print("skipped: this tessera was built without libjs-chart.js, and so without the page")
            return
        if not checks.check(line, code == 0, f"{code}: {out}{err}"):
            return
        told += out
    checks.check("quick start: how to serve it", "vllm serve" in told, told)
    output = folder / "Llama-3.1-8B-FP8"
    if not checks.check("quick start: its files", all((folder / name).exists() for name in ("weights.json", lines[-1].split()[1])), lines):
        return
    weights = json.loads((folder / "weights.json").read_text())
    header = harness.read_safetensors(output / "model.safetensors")[1]
    codes = [name for name, (dtype, _, _) in header.items() if dtype == "F8_E4M3"]
    checks.check("quick start: an FP8 checkpoint, verified",
                 weights["passed"] and weights["judged"]["codes"] > 0 and len(codes) > 0 and
                 all(f"{name}_scale_inv" in header for name in codes) and (output / "config.json").exists(), f"{codes}, {weights['judged']}")
    look(checks, folder / lines[-1].split()[1])


def prepare(checks, options, work):
    """Makes all checkpoints that README.md names, results to report, and jobs for a batch."""
    made = work / "made"
    made.mkdir()
    for name, how in NAMES.items():
        if how is None:
            kind = "deepseek-v3" if name.startswith("DeepSeek") else "llama"
            small = {"scale": "tiny", "weights": "ordinary"} if kind == "deepseek-v3" else {}
            harness.make_checkpoint(options.make, kind, made / name, **small)
        else:
            checks.ends(f"{name} is made", options.tessera, [str(made / w) if w in NAMES else w for w in how.split()] + ["-o", made / name, "--quiet"])
    adapters.for_base(made / "adapter", made / "model")
    (made / "prompt.txt").write_text(" ".join(map(str, range(64))))
    for name, words in (("weights", ["verify", made / "out", "--against", made / "model"]), ("gemm", ["verify", "gemm", made / "out", "--sample", 1])):
        checks.ends(f"{name}.json is made", options.tessera, [*words, "--quiet", "--json", made / f"{name}.json"])
    code, _, err = harness.run(options.tessera, ["calibrate", made / "model", "--tokens", made / "prompt.txt", "-o", made / "stats.safetensors", "--quiet"])
    checks.check("stats.safetensors is made", code == 0, err)
    jobs = [("fp8", ["quantize", "model", "-o", "job"]), ("check", ["verify", "job", "--against", "model"])]
    (made / "jobs.jsonl").write_text("".join(json.dumps({"name": name, "args": words}) + "\n" for name, words in jobs))
    return made


def all_lines(checks, options, work):
    """Runs each line in a folder with its inputs and without its outputs. The tests' servers replace the Hub and the store."""
    made = prepare(checks, options, work)
    shutil.copytree(made / "model", work / "hub" / "ORG" / "NAME")
    with remote_servers.Hub(work / "hub") as hub, s3_store.Store() as store:
        environment = dict(os.environ, HF_ENDPOINT=hub.url, AWS_ENDPOINT_URL=store.url, no_proxy="*", **s3_store.KEYS)
        run_lines(checks, options, work, made, store, environment)


def run_lines(checks, options, work, made, store, environment):
    remote = json.loads(harness.run(options.tessera, ["--version", "--json"])[1])["features"]["remote"]
    lines = [command(line) for line in block("Use")]
    commands = set(re.findall(r"^  tessera ([a-z-]+) ", harness.run(options.tessera, ["--help"])[1], re.M)) - {"help"}
    checks.check("use: every command is there", len(commands) > 7 and {line.split()[2] for line in lines} == commands,
                 f"{sorted(commands)}: {lines}")
    for number, line in enumerate(lines):
        words, folder = line.split(), work / f"line-{number}"
        if "://" in line and not remote:
            print(f"skipped: {line} (built without libcurl)")
            continue
        written = words[words.index("-o") + 1] if "-o" in words else None
        folder.mkdir()
        for path in made.iterdir():
            if path.name != written:
                (folder / path.name).symlink_to(path)
        (folder / "dev").write_text(f'#!/bin/sh\nshift\nexec "{options.tessera}" "$@"\n')
        (folder / "dev").chmod(0o755)
        code, out, err = shell(line, folder, env=environment)
        if code == 2 and "libjs-chart.js" in err:
            continue
        checks.check(line, code == 0 or (code == 1 and words[2] in MAY_END_IN_1), f"{code}: {out[-300:]}{err}")
        there = written is None or (folder / written).exists() or (written.startswith("s3://") and len(store.objects) > 2)
        checks.check(f"{line}: what it writes", there or "--dry-run" in words, out)
        if "--junit" in words:
            xml.etree.ElementTree.parse(folder / words[words.index("--junit") + 1])
        shutil.rmtree(folder)


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    options.tessera = str(pathlib.Path(options.tessera).resolve())
    with harness.checks_in(options.directory) as (checks, place):
        quick_start(checks, options, pathlib.Path(place))
        all_lines(checks, options, pathlib.Path(place))


if __name__ == "__main__":
    main()
