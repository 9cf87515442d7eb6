#!/usr/bin/env python3
"""Tests repeating a command, or a similar one, over an existing output.

Each row of ROWS takes a finished conversion, changes the source, the output or the options, and runs again. The tool
completes the tree of an undisturbed run, except for the journal of a repair, or rejects the run and changes nothing.
Then come cases with a running process: Ctrl-C, and two processes with one destination.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness

COMMAND = ["--max-shard-size", "1MB"]
SHARD = "model-00002-of-00004.safetensors"


def nothing(source, target):
    pass


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def damage(name, at):
    return lambda source, target: flip(target / name, at)


def shorten(name, by):
    return lambda source, target: os.truncate(target / name, (target / name).stat().st_size - by)


def lengthen(name):
    def change(source, target):
        with open(target / name, "ab") as file:
            file.write(b"\n")
    return change


def remove(name):
    return lambda source, target: (target / name).unlink()


def leave(name):
    return lambda source, target: (target / name).write_bytes(b"left over")


def edit_source(name):
    """Changes one byte of a file and keeps its size."""
    return lambda source, target: flip(source / name, -4)


def no_journal(source, target):
    shutil.rmtree(target / ".tessera")


# name, what is done to source or output, options of the rerun, exit code, words of its stdout or stderr
ROWS = [
    ("finished", nothing, [], 0, ["complete"]),
    ("finished, on another machine", nothing, ["--threads", "1", "--cpumask", "0", "--memory", "64MiB"], 0, ["complete"]),
    ("damaged codes", damage(SHARD, -1), [], 0, []),
    ("damaged header", damage(SHARD, 20), [], 0, []),
    ("shard cut off", shorten(SHARD, 100), [], 0, []),
    ("shard deleted", remove(SHARD), [], 0, []),
    ("side file damaged", damage("tokenizer.json", 5), [], 0, []),
    ("config.json damaged", damage("config.json", 5), [], 0, []),
    ("config.json cut off", shorten("config.json", 3), [], 0, []),
    ("index cut off", shorten("model.safetensors.index.json", 3), [], 0, []),
    ("manifest with a byte more", lengthen("tessera.manifest.json"), [], 0, []),
    ("manifest cut off", shorten("tessera.manifest.json", 3), [], 0, []),
    ("index deleted", remove("model.safetensors.index.json"), [], 0, []),
    ("report damaged", damage("quantization_report.json", 9), [], 0, []),
    ("figures of blocks damaged", damage("quantization_blocks.zst", 40), [], 0, []),
    ("figures of blocks deleted", remove("quantization_blocks.zst"), [], 0, []),
    ("what they are made of damaged", damage(".tessera/1.blocks", -1), [], 0, ["1 file differs from the journal and was written again"]),
    ("journal torn", shorten(".tessera/journal", 7), [], 0, []),
    ("journal damaged", damage(".tessera/journal", -100), [], 0, []),
    ("other scales", nothing, ["--scale-fmt", "ue8m0"], 2, ["then --scale-fmt f32, now --scale-fmt ue8m0;", "--force"]),
    ("other tensors", nothing, ["--exclude", "*.o_proj.*"], 2, ["then nothing of these, now --exclude *.o_proj.*;"]),
    ("weights changed", edit_source("model-00001-of-00003.safetensors"), [], 3, ["source", "changed"]),
    ("configuration changed", edit_source("config.json"), [], 3, ["source", "changed"]),
    ("side file changed", edit_source("tokenizer.json"), [], 3, ["source", "changed"]),
    ("no journal", no_journal, [], 2, ["not empty", "--force"]),
    ("no journal, --force", no_journal, ["--force"], 0, []),
    ("fewer shards, --force", leave(".tessera/1.part"), ["--max-shard-size", "5GB", "--force"], 0, []),
    ("other scales, --force", nothing, ["--scale-fmt", "ue8m0", "--force"], 0, []),
    ("weights of another model, --force", leave("other.safetensors"), ["--force"], 2, ["other.safetensors"]),
]


def run(tool, source, target, options=()):
    return harness.run(tool, ["quantize", source, "-o", target, *COMMAND, *options])


def check_row(checks, tool, pristine, row, work):
    name, change, options, expected, words = row
    with harness.temporary_directory(work) as place:
        source, target, truth = (pathlib.Path(place, part) for part in ("source", "out", "truth"))
        shutil.copytree(pristine, source)
        code, _, stderr = run(tool, source, target)
        checks.check(f"{name}: first run", code == 0, stderr)
        change(source, target)
        if expected == 0:
            run(tool, source, truth, options)
        else:
            shutil.copytree(target, truth)
        code, stdout, stderr = run(tool, source, target, options)
        checks.check(f"{name}: exit code", code == expected, f"{code} instead of {expected}: {stderr.strip()}")
        said = stdout if expected == 0 else stderr
        checks.check(f"{name}: words", all(word in said for word in words), said.strip())
        if expected == 0:
            _, stdout, _ = run(tool, source, target, [option for option in options if option != "--force"])
            checks.check(f"{name}: complete in the end", "complete" in stdout, stdout)
            shutil.rmtree(target / ".tessera")
            shutil.rmtree(truth / ".tessera")
        checks.same_tree(f"{name}: tree", truth, target)


def start(tool, source, target):
    """Starts a run and stops it after it has begun to write. On a busy machine the first runs may end before they are
    stopped."""
    for _ in range(50):
        shutil.rmtree(target, ignore_errors=True)
        process = subprocess.Popen([tool, "quantize", source, "-o", target, "--threads", "1", "--quiet"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while process.poll() is None and not list(pathlib.Path(target).glob(".tessera/*.part")):
            time.sleep(0.001)
        if harness.stop(process) and not (target / "config.json").exists():
            return process
        process.send_signal(signal.SIGCONT)
        process.communicate()
    raise RuntimeError("no run could be stopped before its end")


def interrupt(checks, tool, source, reference, target):
    process = start(tool, source, target)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGCONT)
    stderr = process.communicate(timeout=600)[1].decode()
    checks.check("^C: exit code 130", process.returncode == 130, f"{process.returncode}: {stderr}")
    checks.check("^C: one line", stderr.startswith("tessera: ") and stderr.count("\n") == 1, stderr)
    checks.check("^C: no config.json", not (target / "config.json").exists())
    checks.ends("^C: rerun", tool, ["quantize", source, "-o", target])
    checks.same_tree("^C: same tree", reference, target)


def two_at_once(checks, tool, source, reference, target):
    process = start(tool, source, target)
    code, _, stderr = harness.run(tool, ["quantize", source, "-o", target])
    process.send_signal(signal.SIGCONT)
    checks.check("a second process is refused", code == 2 and "another process" in stderr and "wait for it" in stderr, f"exit {code}: {stderr}")
    checks.check("the first one completes", process.wait(600) == 0)
    process.stderr.close()
    checks.same_tree("two at once: same tree", reference, target)


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    with harness.checks_in(options.directory) as (checks, work):
        tiny = harness.make_checkpoint(options.make, "deepseek-v3", work / "tiny", scale="tiny")
        for row in ROWS:
            check_row(checks, options.tessera, tiny, row, work)
        source = harness.make_checkpoint(options.make, "deepseek-v3", work / "source")
        harness.run(options.tessera, ["quantize", source, "-o", work / "reference"])
        interrupt(checks, options.tessera, source, work / "reference", work / "interrupted")
        two_at_once(checks, options.tessera, source, work / "reference", work / "shared")


if __name__ == "__main__":
    main()
