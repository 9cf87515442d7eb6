#!/usr/bin/env python3
"""Reads files of the release in tests/outputs/kept: journals, manifest, results, and the interface of the library.

docs/stability.md promises that later versions read them. --write replaces them, for a new release only."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("common", "oracles")]
import harness  # noqa: E402

KEPT = ROOT / "tests/outputs/kept"
SHARDS = ["journal-0-of-2", "journal-1-of-2"]
IN_OUTPUT = ["quantization_report.json", "tessera.manifest.json", "quantization_blocks.zst"]
VERDICT = "verify.json"


class Model:
    """Makes a small checkpoint in two files, quantized by the tested tool in one run and in two shards."""

    def __init__(self, tool, make, place):
        self.tool, self.source, self.out, self.shards = tool, place / "model", place / "out", place / "shards"
        subprocess.run([make, "deepseek-v3", "--scale", "tiny", "-o", self.source], check=True, capture_output=True)
        for path in self.source.iterdir():  # an output belongs to files of this time
            os.utime(path, (0, 1_700_000_000))
        self.words = ["quantize", self.source, "-o"]
        self.run(*self.words, self.out)
        self.run("verify", self.out, "--against", self.source, "--json", place / VERDICT, codes=(0, 1))
        for shard in ("0/2", "1/2"):
            self.run(*self.words, self.shards, "--shard", shard)
        self.verdict = place / VERDICT

    def run(self, *words, codes=(0,)):
        code, out, err = harness.run(self.tool, [str(word) for word in words])
        if code not in codes:
            raise SystemExit(f"{' '.join(map(str, words))}: exit {code}: {err}{out}")
        return out

    def files(self):
        """Returns {name of a kept file: its path in this tool's output}."""
        journals = {"journal": self.out / ".tessera/journal"} | {name: self.shards / ".tessera" / name for name in SHARDS}
        return journals | {name: self.out / name for name in IN_OUTPUT} | {VERDICT: self.verdict}


def interface(place, target):
    """Writes the interface of libtessera by abidw, from its sources with debug information. Returns false without abidw."""
    if shutil.which("abidw") is None:
        return False
    library, public = place / "api.so", place / "public"
    public.mkdir()
    shutil.copy(ROOT / "lib/tessera.h", public)
    subprocess.run(["gcc", "-g", "-O0", "-std=gnu11", "-D_GNU_SOURCE", '-DTSR_VERSION=""', "-shared", "-fPIC", "-I", ".", "-fvisibility=hidden",
                    *sorted(map(str, ROOT.glob("lib/api_*.c"))), "-Wl,--version-script=lib/tessera.map", "-o", library], check=True, cwd=ROOT)
    subprocess.run(["abidw", "--headers-dir", public, "--drop-private-types", "--no-show-locs", "--no-corpus-path", "--no-comp-dir-path",
                    library, "--out-file", target], check=True, cwd=ROOT)
    target.write_text(target.read_text().replace(f"{ROOT}/", ""))
    return True


def check_interface(checks, place):
    now = place / "now.abi"
    if not interface(place, now):
        print("skipped: the library's interface: there is no abidw (abigail-tools)")
        return
    done = subprocess.run(["abidiff", "--no-added-syms", KEPT / "libtessera.abi", now], capture_output=True, text=True)
    checks.check("programs of the release can use this library", done.returncode == 0, done.stdout)


def same(made, wanted, place):
    """Returns True if two outputs are equal except for journals and manifests."""
    copies = [place / "one", place / "two"]
    for tree, copy in zip((made, wanted), copies):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(tree, copy)
    return harness.tree_difference(*harness.without_records(*copies)) is None


def check_journals(checks, model, place):
    moved = place / "resumed"
    shutil.copytree(model.out, moved)
    shutil.copy(KEPT / "journal", moved / ".tessera/journal")
    version = (KEPT / "journal").read_text().split()[1]
    if version != model.run("--version").split()[1]:
        checks.ends("another version refuses to resume", model.tool, [*map(str, model.words), str(moved)], 3, f"begun by version {version}")
        return
    checks.check("its finished output is verified, not made again", "complete already" in model.run(*model.words, moved))
    lines = (KEPT / "journal").read_text().splitlines(keepends=True)
    files = [i for i, line in enumerate(lines) if line.startswith("file ")]
    (moved / ".tessera/journal").write_text("".join(lines[:files[0] + 1]))
    (moved / "config.json").unlink()
    model.run(*model.words, moved)
    checks.check("its unfinished output is completed", same(moved, model.out, place))
    merged = place / "merged"
    shutil.copytree(model.shards, merged)
    for name in SHARDS:
        shutil.copy(KEPT / name, merged / ".tessera" / name)
    model.run("finish", merged, "--source", model.source)
    checks.check("its shards are joined", same(merged, model.out, place))


def check_results(checks, model, place):
    kept = place / "kept"
    shutil.copytree(model.out, kept)
    for name in IN_OUTPUT:
        shutil.copy(KEPT / name, kept / name)
    checks.check("its manifest describes the same output", " is as Tessera " in model.run("verify", "--manifest", kept))
    model.run("report", kept, KEPT / VERDICT, "--json", place / "report.json", codes=(0, 1))
    report = json.loads((place / "report.json").read_text())
    checks.check("its results are read", len(report["results"]) == 2, report)


def main():
    options = harness.parse_options(__doc__, write="replace the kept files")
    with harness.temporary_directory() as place:
        model = Model(options.tessera, options.make, place)
        if options.write:
            KEPT.mkdir(exist_ok=True)
            for name, path in model.files().items():
                shutil.copy(path, KEPT / name)
            return 0 if interface(place, KEPT / "libtessera.abi") else 1
        checks = harness.Checks()
        check_journals(checks, model, place)
        check_results(checks, model, place)
        check_interface(checks, place)
        checks.finish()


if __name__ == "__main__":
    sys.exit(main())
