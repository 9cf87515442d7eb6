#!/usr/bin/env python3
"""Tests system limits, and inputs that are not regular files: an error with a remedy, and no signal, hang or crash."""

import os
import pathlib
import resource
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness

PATIENCE = 60  # seconds until a hang is called one; none of these takes one


def limited(which, value):
    return lambda: resource.setrlimit(which, (value, value))


def run(tool, words, preexec=None):
    """Returns (exit code, stderr); -1 for a hang."""
    try:
        done = subprocess.run([tool, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, preexec_fn=preexec)
    except subprocess.TimeoutExpired:
        return -1, "it hangs"
    return done.returncode, done.stderr.decode(errors="replace")


def check(checks, name, got, code, *words):
    checks.check(f"{name}: exit code", got[0] == code, f"{got[0]} instead of {code}: {got[1]}")
    checks.check(f"{name}: one line", got[1].startswith("tessera: ") and got[1].count("\n") == 1, got[1])
    checks.check(f"{name}: words", all(word in got[1] for word in words), got[1])


def check_limits(checks, tool, work):
    source, target, plain = (os.path.join(work, n) for n in ("SRC", "small", "plain"))
    quantize = ["quantize", source, "--max-shard-size", "100kB", "-o"]
    got = run(tool, [*quantize, target], limited(resource.RLIMIT_FSIZE, 20000))
    check(checks, "ulimit -f", got, 4, "File too large", "ulimit -f")
    checks.check("ulimit -f: nothing that looks like a model", not os.path.exists(os.path.join(target, "config.json")))
    codes = [run(tool, [*quantize, path])[0] for path in (target, plain)]
    difference = harness.tree_difference(target, plain)
    checks.check("ulimit -f: carried on without it", codes == [0, 0] and difference is None, f"{codes} {difference}")
    got = run(tool, ["inspect", source, "--json", os.path.join(work, "limited.json")], limited(resource.RLIMIT_FSIZE, 100))
    check(checks, "ulimit -f of a report", got, 4, "limited.json", "ulimit -f")
    checks.check("ulimit -f of a report: nothing left", not [n for n in os.listdir(work) if n.startswith("limited.json")])
    got = run(tool, ["convert", plain, "-o", os.path.join(work, "many"), "--to", "bf16"], limited(resource.RLIMIT_NOFILE, 16))
    check(checks, "ulimit -n", got, 4, "Too many open files", "ulimit -n", "16")


def check_pipes(checks, tool, work):
    """Tests a FIFO without a writer in place of a file."""
    source, odd, fifo = (os.path.join(work, n) for n in ("SRC", "odd", "fifo"))
    os.mkfifo(fifo)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        harness.run("cp", ["-rT", source, odd])
        os.unlink(os.path.join(odd, name))
        os.mkfifo(os.path.join(odd, name))
        for command in (["inspect", odd], ["quantize", odd, "-o", os.path.join(work, "never")]):
            code, stderr = run(tool, command)
            # A side file that is a pipe is no file of a model, and passed over.
            checks.check(f"{command[0]}, {name} is a pipe", code == (0 if name == "tokenizer.json" else 3), f"{code}: {stderr}")
        harness.run("rm", ["-rf", os.path.join(work, "never"), odd])
    for command in (["inspect", fifo], ["quantize", fifo, "-o", "never"], ["compare-schemes", fifo], ["diff", fifo, source],
                    ["plan-schemes", fifo, "--bits", "8"], ["plan-schemes", source, "--bits", "8", "--sensitivity", fifo],
                    ["quantize", source, "-o", "never", "--rules", fifo],
                    ["quantize", source, "-o", "never", "--scheme", "int8-channel", "--activations", fifo],
                    ["convert", source, "-o", "never", "--to", "fp8-block", "--against", fifo],
                    ["verify", source, "--against", fifo], ["verify", "forward", source, "--reference", fifo],
                    ["verify", "forward", source, "--against", source, "--tokens", fifo],
                    ["verify", "gemm", os.path.join(work, "plain"), "--device", "cpu", "--activations", fifo],
                    ["verify", "mla", source, "--device", "cpu", "--stages", fifo]):
        command = [os.path.join(work, word) if word == "never" else word for word in command]
        check(checks, " ".join(word.replace(f"{work}/", "") for word in command), run(tool, command), 3, "fifo")


def check_circles(checks, tool, work):
    """Links to parent folders are not followed; those to other folders are."""
    source = harness.make_checkpoint(os.environ["MAKE_CHECKPOINT"], "llama", os.path.join(work, "circles"))
    os.makedirs(os.path.join(source, "one"))
    with open(os.path.join(source, "one", "notes.txt"), "w") as file:
        file.write("text\n")
    for i in range(6):
        os.symlink(".", os.path.join(source, f"here{i}"))
        os.symlink("..", os.path.join(source, "one", f"up{i}"))
    os.symlink("one", os.path.join(source, "two"))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    code, stderr = run(tool, ["quantize", source, "-o", os.path.join(work, "flat"), "--quiet"])
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    checks.check("links in a circle", code == 0 and spent < 5, f"{code}, {spent:.1f} s of CPU: {stderr}")
    folders = sorted(os.path.relpath(f, os.path.join(work, "flat")) for f, _, n in os.walk(os.path.join(work, "flat")) if "notes.txt" in n)
    checks.check("both names of a folder are kept, each once", folders == ["one", "two"], folders)


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    os.environ["MAKE_CHECKPOINT"] = options.make
    with harness.checks_in(options.directory) as (checks, work):
        harness.make_checkpoint(options.make, "llama", os.path.join(work, "SRC"))
        check_limits(checks, options.tessera, work)
        check_pipes(checks, options.tessera, work)
        check_circles(checks, options.tessera, work)


if __name__ == "__main__":
    main()
