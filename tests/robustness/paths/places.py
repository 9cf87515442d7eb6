#!/usr/bin/env python3
"""Tests that outputs never overwrite inputs, for any form of the paths.

Each case must end with exit code 2, one line on stderr and unchanged sources. Covers symlinks, "..", bind mounts (as
root), hard links, --json and --junit. Devices and pipes are written to and never replaced.
"""

import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness

# command line (words with a capital first letter are paths below the working directory), what the message must name
ROWS = [
    ("quantize SRC -o SRC --force", "SRC"),
    ("quantize SRC -o SRC/sub --force", "SRC"),
    ("quantize SRC -o SRC/sub/deeper/.. --force", "SRC"),
    ("quantize SRC -o New/../SRC/sub", "SRC"),
    ("quantize SRC -o New/more/../../SRC/sub --force", "SRC"),
    ("quantize SRC -o Link", "SRC"),
    ("quantize SRC -o Link/sub", "SRC"),
    ("quantize Link -o SRC/sub", "SRC"),
    ("quantize SRC -o Dangling", "Dangling"),
    ("quantize Hub/snapshots/r -o Hub/blobs/out", "Hub"),
    ("quantize Hub/snapshots/r -o Hub --force", "Hub"),
    ("quantize SRC -o Up --force", "SRC"),
    ("quantize Above/inside -o Above --force", "Above"),
    ("quantize SRC/model.safetensors -o SRC --force", "SRC"),
    ("quantize SRC -o Hard --force", "Hard/model.safetensors"),
    ("quantize SRC -o Soft --force", "Soft/model.safetensors.part"),
    ("quantize SRC -o Folder --force", "Folder/sub"),
    ("quantize SRC -o Ranges --force --scheme int8-channel --activations Ranges/ranges.json", "Ranges"),
    ("convert FP8 -o SRC --force --to fp8-block --against SRC", "SRC"),
    ("convert FP8 -o SRC/sub --to fp8-block --against SRC", "SRC"),
    ("convert FP8 -o FP8/sub --to bf16", "FP8"),
    ("convert Ranks -o Ranks/rank-0 --force --merge", "Ranks"),
    ("quantize SRC -o DST --json SRC/model.safetensors", "model.safetensors"),
    ("quantize SRC -o DST --json SRC/result.json", "SRC"),
    ("quantize SRC -o DST --json SRC/config.json", "config.json"),
    ("quantize SRC -o DST --json Copy.json", "SRC"),
    ("quantize SRC -o DST --json Weights.safetensors", "Weights.safetensors"),
    ("quantize SRC -o DST --json Weights.dat", "Weights.dat"),
    ("quantize SRC -o DST --json Above", "Above"),
    ("quantize SRC -o Done --json Done/config.json", "Done"),
    ("quantize SRC -o DST --dry-run --json Link/result.json", "SRC"),
    ("quantize SRC -o DST --scheme int8-channel --activations Ranges/ranges.json --json Ranges/ranges.json", "ranges.json"),
    ("inspect SRC --json SRC/config.json", "config.json"),
    ("inspect SRC/model.safetensors --json SRC/model.safetensors", "model.safetensors"),
    ("inspect SRC:lm_head.weight --json SRC/result.json", "SRC"),
    ("compare-schemes SRC --json SRC/result.json", "SRC"),
    ("plan-schemes SRC --bits 8 -o SRC/rules.json", "SRC"),
    ("plan-schemes SRC --bits 8 -o SRC/rules.json", "SRC"),
    ("quantize SRC -o DST --junit SRC/result.xml", "SRC"),
    ("diff SRC FP8 --json FP8/result.json", "FP8"),
    ("diff SRC FP8 --json SRC/result.json", "SRC"),
    ("verify FP8 --against SRC --json SRC/result.json", "SRC"),
    ("verify FP8 --against SRC --junit FP8/model.safetensors", "FP8"),
    ("diff SRC FP8 --junit FP8/result.xml", "FP8"),
    ("inspect SRC --junit SRC/result.xml", "SRC"),
    ("compare-schemes SRC --junit SRC/result.xml", "SRC"),
    ("plan-schemes SRC --bits 8 --junit SRC/result.xml", "SRC"),
    ("verify FP8 --against SRC --junit Same --json Same", "--junit"),
    ("verify FP8 --against SRC --junit Stdout --json -", "--junit"),
    ("verify gemm FP8 --device cpu --against SRC --junit SRC/tokenizer.json", "tokenizer.json"),
    ("verify gemm FP8 --device cpu --activations Inputs.safetensors --json Inputs.safetensors", "Inputs.safetensors"),
    ("verify mla FP8 --device cpu --stages Inputs.safetensors --junit Inputs.safetensors", "Inputs.safetensors"),
    ("verify forward FP8 --against SRC --json SRC/x", "SRC"),
    ("verify forward FP8 --against SRC --tokens Tokens.txt --json Tokens.txt", "Tokens.txt"),
    ("verify forward FP8 --reference Inputs.safetensors --junit Inputs.safetensors", "Inputs.safetensors"),
]
# Reports that no command may write into a checkpoint that it does not even name; there, and where nothing is yet.
ROWS += [(f"{command} {place}{name}", name) for command, place, name in [
    ("report Result.json --csv", "FP8/", "config.json"),
    ("report Result.json --markdown", "FP8/", "generation_config.json"),
    ("report Result.json --html", "FP8/", "tokenizer.json"),
    ("report Result.json --json", "FP8/", "tokenizer_config.json"),
    ("report Result.json --junit", "FP8/", "tessera.manifest.json"),
    ("report Result.json --json", "Holder/", "Model.safetensors.index.json"),
    ("inspect SRC --json", "Holder/", "hf_quant_config.json"),
    ("quantize SRC -o DST --progress-file", "FP8/", "config.json"),
    ("batch Jobs.jsonl --results", "SRC/", "res"),
    ("batch Jobs.jsonl --results", "New/../Link/", "res/more"),
    ("verify FP8 --against SRC --junit", "Holder/", "tessera-tp.json"),
    ("plan-schemes SRC --bits 8 -o", "Done/", "config.json"),
]]
# Where the mount is on Bound, and of what.
MOUNTED = [
    ("SRC", "quantize SRC -o Bound --force", "SRC"),
    ("SRC", "quantize SRC -o Bound/sub", "SRC"),
    ("SRC/sub", "quantize SRC -o Bound/below", "SRC"),
    ("SRC", "quantize Bound -o SRC --force", "Bound"),
    ("SRC", "quantize SRC -o Holder --force", "Holder/bound"),
    ("SRC", "quantize SRC -o DST --json Bound/result.json", "SRC"),
]


def prepare(make, tool, work):
    path = lambda name: os.path.join(work, name)
    harness.make_checkpoint(make, "llama", path("SRC"))
    os.mkdir(path("SRC/sub"))
    with open(path("SRC/sub/notes.txt"), "w") as file:
        file.write("not to be touched\n")
    for name in ("Hard", "Soft", "Folder", "Ranges", "Bound", "Holder", "Holder/bound"):
        os.mkdir(path(name))
    os.makedirs(path("Above"))
    shutil.copytree(path("SRC"), path("Above/inside"))
    shutil.copytree(path("SRC"), path("Ranks/rank-0"))
    os.makedirs(path("Hub/blobs"))
    os.makedirs(path("Hub/snapshots/r"))
    for name in os.listdir(path("SRC")):
        if name != "sub":
            shutil.copy(path(f"SRC/{name}"), path(f"Hub/blobs/of-{name}"))
            os.symlink(f"../../blobs/of-{name}", path(f"Hub/snapshots/r/{name}"))
    # A tool that renames over what it writes to would take the machine's own devices away: links of ours stand for them.
    for name, device in (("Stdout", "/proc/self/fd/1"), ("Null", "/dev/null"), ("Full", "/dev/full")):
        os.symlink(device, path(name))
    os.symlink("SRC", path("Link"))
    os.symlink(".", path("Up"))
    os.symlink("Nowhere", path("Dangling"))
    os.link(path("SRC/model.safetensors"), path("Hard/model.safetensors"))
    os.symlink("../SRC/model.safetensors", path("Soft/model.safetensors.part"))
    os.symlink("../SRC/sub", path("Folder/sub"))
    os.link(path("SRC/tokenizer.json"), path("Copy.json"))
    shutil.copy(path("SRC/model.safetensors"), path("Weights.safetensors"))
    shutil.copy(path("SRC/model.safetensors"), path("Weights.dat"))
    shutil.copy(path("SRC/model.safetensors"), path("Inputs.safetensors"))
    harness.succeed(tool, ["inspect", path("SRC"), "--json", path("Result.json"), "--quiet"])
    job = {"name": "a", "args": ["quantize", path("SRC"), "-o", path("Batched")]}
    for name, text in (("Jobs.jsonl", json.dumps(job)), ("Ranges/ranges.json", "{}\n"), ("Tokens.txt", "1 2 3\n")):
        with open(path(name), "w") as file:
            file.write(text)
    for name in ("FP8", "Done"):
        harness.succeed(tool, ["quantize", path("SRC"), "-o", path(name), "--quiet"])


def spell(work, command):
    """Returns the words of a command line. Those that begin with a capital letter become paths below `work`."""
    return [os.path.join(work, w) if w[0].isupper() else w for w in command.split()]


def snapshot(work):
    """Returns every name below `work` with its type and contents; FIFOs are not opened."""
    found = {}
    for folder, folders, files in os.walk(work):
        for name in folders + files:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            held = os.readlink(path) if stat.S_ISLNK(mode) else None
            if stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    held = file.read()
            found[os.path.relpath(path, work)] = (stat.S_IFMT(mode), held)
    return found


def changes(before, after):
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def check_refusal(checks, work, name, word, code, stderr, before):
    checks.check(f"{name}: exit code", code == 2, f"{code} instead of 2: {stderr.strip()}")
    checks.check(f"{name}: one line", stderr.startswith("tessera: ") and stderr.count("\n") == 1, stderr)
    checks.check(f"{name}: names {word}", word in stderr, stderr.strip())
    checks.check(f"{name}: nothing touched", not changes(before, snapshot(work)), changes(before, snapshot(work)))


def check_rows(checks, tool, work):
    pristine = snapshot(work)
    for command, word in ROWS:
        code, _, stderr = harness.run(tool, spell(work, command))
        check_refusal(checks, work, command, word, code, stderr, pristine)
        if changes(pristine, snapshot(work)):
            raise SystemExit(f"FAILED {command}: the sources are damaged, so nothing more can be learned from them")


def check_mounts(checks, tool, work):
    """Runs in its own mount namespace, which needs root."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        print("skipped: bind mounts need root and unshare(1)")
        return
    before = snapshot(work)
    for what, command, word in MOUNTED:
        at = "Holder/bound" if "Holder" in command else "Bound"
        script = 'mount --bind "$1" "$2" || exit 77; shift 2; "$@"'
        done = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", os.path.join(work, what),
                               os.path.join(work, at), tool, *spell(work, command)], capture_output=True, text=True)
        if done.returncode == 77:
            print(f"skipped: no bind mount here: {done.stderr.strip()}")
            return
        check_refusal(checks, work, f"{command} ({what} bound to {at})", word, done.returncode, done.stderr, before)


def check_fine(checks, tool, work):
    """Outputs that do not overlap inputs are accepted: a DST whose name begins with an input's, reports next to checkpoints,
    links to reports."""
    path = lambda name: os.path.join(work, name)
    os.symlink("real.json", path("latest.json"))
    for name in ("real.json", "old.json"):
        with open(path(name), "w") as file:
            file.write('{"old": true}\n')
    for command in ("quantize SRC -o New/../Fresh --json Fresh.json", "quantize SRC -o New2/a/b",
                    "inspect SRC --json latest.json", "inspect SRC --json old.json", "inspect SRC --json Null",
                    "quantize SRC -o SRC2/sub", "verify FP8 --against SRC --junit Stdout"):
        words = spell(work, command)
        words = [path(w) if w.endswith(".json") and w[0].islower() else w for w in words]
        code, stdout, stderr = harness.run(tool, words)
        checks.check(f"{command}: fine", code == 0, f"{code}: {stderr}")
    checks.check("JUnit on stdout", "<testsuite" in stdout, stdout)
    checks.check("a link to a report stays", os.path.islink(path("latest.json")) and json.load(open(path("real.json")))["path"])
    checks.check("an old report is replaced", "path" in json.load(open(path("old.json"))))
    checks.check("a link to a device stays one", stat.S_ISCHR(os.stat(path("Null")).st_mode))
    code, stdout, stderr = harness.run(tool, ["inspect", path("SRC"), "--json", path("Stdout")])
    checks.check("--json /dev/stdout is --json -", code == 0 and json.loads(stdout)["path"] == path("SRC"), stderr)
    with open(path("redirected"), "w") as file:
        code = subprocess.run([tool, "inspect", path("SRC"), "--json", path("Stdout")], stdout=file).returncode
    checks.check("--json /dev/stdout into a file", code == 0 and json.load(open(path("redirected")))["path"], code)


def check_nodes(checks, tool, work):
    """A device and a pipe are written and still exist afterwards. A pipe without a reader does not block."""
    fifo = os.path.join(work, "fifo")
    os.mkfifo(fifo)
    code, _, stderr = harness.run(tool, ["inspect", os.path.join(work, "SRC"), "--json", fifo], cpu=60)
    checks.check("a pipe without a reader", code == 4 and "fifo" in stderr, f"{code}: {stderr}")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    code, _, stderr = harness.run(tool, ["inspect", os.path.join(work, "SRC"), "--json", fifo], cpu=60)
    got = os.read(reader, 1 << 20)
    checks.check("a pipe is written to", code == 0 and json.loads(got)["path"], f"{code}: {stderr}")
    checks.check("a pipe stays", stat.S_ISFIFO(os.stat(fifo).st_mode))
    code, _, stderr = harness.run(tool, ["inspect", os.path.join(work, "SRC"), "--json", os.path.join(work, "Full")])
    checks.check("/dev/full", code == 4 and os.path.islink(os.path.join(work, "Full")), f"{code}: {stderr}")
    if os.geteuid() == 0:
        node = os.path.join(work, "null")
        try:
            os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except OSError as error:
            print(f"skipped: no device node can be made: {error}")
            return
        code, _, stderr = harness.run(tool, ["inspect", os.path.join(work, "SRC"), "--json", node])
        checks.check("a device node stays", stat.S_ISCHR(os.stat(node).st_mode), stderr)


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    harness.fork_runs([options.tessera], os.path.join(os.path.dirname(options.make), "../.."))
    with harness.checks_in(options.directory) as (checks, work):
        prepare(options.make, options.tessera, work)
        check_mounts(checks, options.tessera, work)
        check_rows(checks, options.tessera, work)
        check_fine(checks, options.tessera, work)
        check_nodes(checks, options.tessera, work)


if __name__ == "__main__":
    main()
