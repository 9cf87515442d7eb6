#!/usr/bin/env python3
"""Tests sources that change during a run, wrong journals, shared and foreign files, and failing system calls.

In most checks the shim makes one system call fail, or makes something happen at one moment. After each refusal the output
must have no config.json, and files that are not Tessera's must be unchanged.
"""

import contextlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness

SHARDS = ["--max-shard-size", "1MB", "--quiet"]
MASK = (1 << 64) - 1
ENOENT, EIO, EACCES, EROFS, ENOLCK, EDQUOT = 2, 5, 13, 30, 37, 122
# Bytes 24 to 55 of XXH3's default secret.
SECRET = struct.unpack("<4Q", bytes.fromhex("7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"))


def xxh3_short(data):
    """Computes XXH3-64 of 9 to 16 bytes."""
    assert 9 <= len(data) <= 16
    low = struct.unpack("<Q", data[:8])[0] ^ SECRET[0] ^ SECRET[1]
    high = struct.unpack("<Q", data[-8:])[0] ^ SECRET[2] ^ SECRET[3]
    product = low * high
    swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
    h = (len(data) + swapped + high + ((product & MASK) ^ (product >> 64))) & MASK
    h ^= h >> 37
    h = h * 0x165667919E3779F9 & MASK
    return h ^ h >> 32


class Place:
    """Is a source, the way to run on it, and the expected error."""

    def __init__(self, checks, options, work, source):
        self.checks, self.options, self.work, self.source = checks, options, pathlib.Path(work), source
        self.out = self.work / "out"

    def run(self, *extra, source=None, **shim):
        args = ["quantize", source or self.source, "-o", self.out, *SHARDS, *extra]
        if not shim:
            return harness.run(self.options.tessera, args, cpu=60)
        return harness.run_shimmed(self.options.tessera, args, harness.shim_path(self.options), cpu=60, **shim)

    def refused(self, name, result, code, *words, no_config=True):
        self.checks.check(f"{name}: exit code", result[0] == code, f"{result[0]} instead of {code}: {result[2].strip()}")
        self.checks.check(f"{name}: words", all(word in result[2] for word in words), result[2].strip())
        if no_config:
            self.checks.check(f"{name}: no config.json", not (self.out / "config.json").exists())

    def completes(self, name, *extra, source=None, repaired=False, **shim):
        """The same command completes, and leaves the files of a fresh run, except for a journal that records repairs."""
        code, _, stderr = self.run(*extra, source=source, **shim)
        if not self.checks.check(f"{name}: completes", code == 0, f"exit {code}: {stderr.strip()}"):
            return
        fresh = self.work / "fresh"
        harness.run(self.options.tessera, ["quantize", source or self.source, "-o", fresh, *SHARDS,
                                           *[word for word in extra if word != "--force"]])
        if repaired:
            shutil.rmtree(fresh / ".tessera")
            shutil.rmtree(self.out / ".tessera")
        self.checks.same_tree(f"{name}: same tree", fresh, self.out)


# ---- sources ----

REWRITES = {
    "in place": "printf X | dd of=FILE bs=1 seek=BYTE conv=notrunc status=none",
    "in place, times restored": "cp -p FILE FILE.old; printf X | dd of=FILE bs=1 seek=BYTE conv=notrunc status=none; "
                                "touch -r FILE.old FILE; rm FILE.old",
    "replaced": "cp FILE FILE.new; mv FILE.new FILE",
    "longer": "printf X >>FILE",
}


def changing_sources(place, model):
    for what, command in REWRITES.items():
        for moment in (8, 16, 20):
            name = f"source {what}, at sync {moment}"
            source = place.work / "source"
            shutil.rmtree(source, ignore_errors=True)
            shutil.rmtree(place.out, ignore_errors=True)
            shutil.copytree(model, source)
            shard = source / "model-00001-of-00003.safetensors"
            command_line = command.replace("FILE", str(shard)).replace("BYTE", str(shard.stat().st_size - 5))
            result = place.run("--threads", "1", source=source, PLAN=f"fsync {moment} run", COMMAND=command_line)
            place.refused(name, result, 4, shard.name, "changed while it was read")
            shutil.rmtree(place.work / "fresh", ignore_errors=True)
            if what == "in place, times restored":
                place.completes(name, source=source, repaired=True)
            elif what != "longer":
                place.completes(name, "--force", source=source)
    shutil.rmtree(place.out)


def changing_original(place, fp8, model):
    original = place.work / "original"
    shutil.copytree(model, original)
    shard = original / "model-00001-of-00003.safetensors"
    args = ["convert", fp8, "-o", place.out, "--to", "fp8-block", "--scale-fmt", "ue8m0", "--against", original]
    result = harness.run_shimmed(place.options.tessera, args, harness.shim_path(place.options), PLAN="fsync 8 run",
                                 COMMAND=f"touch {shard}")
    place.refused("original touched", result, 4, shard.name, "changed while it was read")
    shutil.rmtree(place.out)


# ---- journals ----

def forged_journals(place):
    place.run()
    head = (place.out / ".tessera/journal").read_bytes().split(b"\n")[0] + b"\n"
    outside = place.work / "victim"
    (place.work / "elsewhere").mkdir()
    for line in (b"output ../victim", b"output a/../../v", b"output /tmp/tsr", b"output .tessera", b"output a\x01b\x02c",
                 b"output link/file", b"output ./config"):
        name = f"journal with {line!r}"
        (place.out / "config.json").touch()
        shutil.copytree(place.out, place.work / "kept", symlinks=True)
        outside.write_text("not Tessera's")
        (place.work / "v").write_text("not Tessera's")
        (place.work / "elsewhere/file").write_text("not Tessera's")
        with contextlib.suppress(FileExistsError):
            (place.out / "link").symlink_to(place.work / "elsewhere")
        (place.out / ".tessera/journal").write_bytes(head + line + b" %016x\n" % xxh3_short(line))
        result = place.run("--force")
        place.refused(name, result, 3, "journal", "names the output", no_config=False)
        place.checks.check(f"{name}: nothing is removed",
                           outside.exists() and (place.work / "v").exists() and (place.work / "elsewhere/file").exists()
                           and (place.out / "config.json").exists())
        shutil.rmtree(place.out)
        shutil.move(place.work / "kept", place.out)
    # That these were read at all:
    line = b"output sparefile"
    (place.out / "sparefile").write_text("named by the journal")
    (place.out / ".tessera/journal").write_bytes(head + line + b" %016x\n" % xxh3_short(line))
    code, _, stderr = place.run("--force")
    place.checks.check("a sound journal's outputs are removed", code == 0 and not (place.out / "sparefile").exists(), stderr)
    shutil.rmtree(place.out)


def linked_folder(place, options):
    """Tests a folder of the plan that is a link."""
    (place.work / "other").mkdir(exist_ok=True)
    place.out.mkdir()
    (place.out / "rank-0").symlink_to(place.work / "other")
    result = harness.run(options.tessera, ["convert", place.source, "-o", place.out, "--to", "tp", "--tp", "2", "--force"])
    place.refused("a rank's folder is a link", result, 3, "rank-0", "link")
    place.checks.check("a rank's folder is a link: nothing is written behind it", not list((place.work / "other").iterdir()))
    shutil.rmtree(place.out)


def hard_linked_copy(place):
    for damage in (False, True):
        name = f"cp -al, damaged {damage}"
        place.run()
        copy = place.work / "copy"
        subprocess.run(["cp", "-al", place.out, copy], check=True)
        if damage:
            shard = place.out / "model-00002-of-00004.safetensors"
            data = bytearray(shard.read_bytes())
            data[-1] ^= 1
            shard.unlink()
            shard.write_bytes(data)
        before = {path: (path.stat().st_ino, path.read_bytes()) for path in copy.rglob("*") if path.is_file()}
        code, _, stderr = place.run()
        place.checks.check(f"{name}: rerun", code == 0, stderr)
        after = {path: (path.stat().st_ino, path.read_bytes()) for path in copy.rglob("*") if path.is_file()}
        place.checks.check(f"{name}: the copy stays as it was", before == after)
        mine, theirs = place.out / ".tessera/journal", copy / ".tessera/journal"
        place.checks.check(f"{name}: each has a journal of its own", mine.stat().st_ino != theirs.stat().st_ino)
        shutil.rmtree(copy)
        shutil.rmtree(place.out)


# ---- what lies in the destination ----

def strays(place, options):
    for name in "model.safetensors.index.json", "hf_quant_config.json":
        place.out.mkdir()
        (place.out / name).write_text('{"weight_map": {}}')
        result = harness.run(options.tessera, ["quantize", place.source, "-o", place.out, "--force"])
        place.refused(f"a foreign {name}, --force", result, 2, name, "move it away")
        shutil.rmtree(place.out)
    place.run()
    (place.out / "more.safetensors").write_bytes(b"")
    place.refused("a stray shard in a finished output", place.run(), 2, "more.safetensors", no_config=False)
    shutil.rmtree(place.out)
    (place.out / "rank-1").mkdir(parents=True)
    (place.out / "rank-1/more.safetensors").write_bytes(b"")
    result = harness.run(options.tessera, ["convert", place.source, "-o", place.out, "--to", "tp", "--tp", "2", "--force"])
    place.refused("a stray shard in a rank's folder, --force", result, 2, "rank-1/more.safetensors")
    shutil.rmtree(place.out)


def fewer_ranks(place, options):
    """--force for fewer ranks leaves no folder that looks like a rank without weights. It keeps files of other programs."""
    command = ["convert", place.source, "-o", place.out, "--to", "tp", "--tp"]
    harness.run(options.tessera, [*command, "2", "--quiet"])
    (place.out / "rank-1/more.safetensors").write_bytes(b"")
    place.refused("fewer ranks beside a stray shard, --force", harness.run(options.tessera, [*command, "1", "--force"]), 2,
                  "rank-1/more.safetensors", no_config=False)
    shutil.rmtree(place.out)
    for others in (), ("rank-1/notes.txt",):
        harness.run(options.tessera, [*command, "2", "--quiet"])
        for name in others:
            (place.out / name).write_text("mine")
        code, _, stderr = harness.run(options.tessera, [*command, "1", "--force", "--quiet"])
        left = sorted(str(path.relative_to(place.out)) for path in place.out.glob("rank-1*/**/*"))
        place.checks.check("fewer ranks", code == 0 and (place.out / "rank-1").exists() == bool(others) and left == list(others),
                           f"{code}: {left} {stderr}")
        if not others:
            merged = harness.run(options.tessera, ["convert", place.out, "-o", pathlib.Path(place.work) / "merged", "--merge", "--quiet"])
            place.checks.check("fewer ranks: one is read", merged[0] == 0, merged[2])
            shutil.rmtree(pathlib.Path(place.work) / "merged", ignore_errors=True)
        shutil.rmtree(place.out)


def side_files_called_part(place, model):
    source = place.work / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(model, source)
    for name in ("tokenizer.json.part", "config.json.part", "model-00001-of-00004.safetensors.part"):
        (source / name).write_text(f"a side file called {name}")
    place.completes("side files called .part", source=source)
    for name in ("tokenizer.json.part", "config.json.part", "model-00001-of-00004.safetensors.part"):
        place.checks.check(f"{name} is copied", (place.out / name).is_file()
                           and (place.out / name).read_bytes() == (source / name).read_bytes())
    code, stdout, _ = harness.run(place.options.tessera, ["quantize", source, "-o", place.out, "--max-shard-size", "1MB"])
    place.checks.check("side files called .part: complete", code == 0 and "complete already" in stdout, stdout)
    shutil.rmtree(place.out)
    shutil.rmtree(place.work / "fresh")
    (place.work / "result.json.part").write_text("the user's")
    code, _, _ = place.run("--json", str(place.work / "result.json"))
    place.checks.check("--json leaves FILE.part alone", code == 0 and json.loads((place.work / "result.json").read_text())
                       and (place.work / "result.json.part").read_text() == "the user's")
    shutil.rmtree(place.out)


def control_characters(place, model):
    source = place.work / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(model, source)
    (source / "a\noutput ..").write_text("a side file")
    place.refused("a newline in a side file's name", place.run(source=source), 3, "control character")
    result = place.run("--exclude", "x\noutput y")
    place.checks.check("a newline in an option", result[0] in (2, 3) and "control character" in result[2], result)
    shutil.rmtree(source)
    shutil.rmtree(place.out, ignore_errors=True)


def long_paths(place):
    deep = str(place.work) + "/" + "./" * ((4070 - len(str(place.work))) // 2) + "out"
    before = sorted(place.work.rglob("*"))
    code, _, stderr = harness.run(place.options.tessera, ["quantize", place.source, "-o", deep, *SHARDS])
    place.checks.check("a destination of 4070 characters is refused", code in (2, 3, 4) and "long" in stderr.lower(),
                       f"exit {code}: {stderr[-300:]}")
    place.checks.check("a destination of 4070 characters: nothing is written", before == sorted(place.work.rglob("*")))


# ---- a system that refuses ----

def refusals(place):
    rows = [
        ("no locks", f"flock 1+ {ENOLCK} journal", ["No locks available", "lock"]),
        ("pwrite takes nothing", "pwrite 1+ zero .part", ["wrote none"]),
        ("pwrite fails", f"pwrite 1+ {EIO} /1.part", ["Input/output error"]),
        ("the quota is used up", f"pwrite 1+ {EDQUOT} /1.part", ["quota", "finished files are kept"]),
        ("fsync fails", f"fsync 1+ {EIO} /1.part", ["cannot sync"]),
        ("fdatasync of the journal fails", f"fdatasync 1+ {EIO} /journal", ["cannot sync"]),
        ("fsync of the folder fails", f"fsync 1+ {EIO} /out", ["cannot sync"]),
    ]
    for name, plan, words in rows:
        result = place.run("--threads", "2", PLAN=plan)
        place.refused(name, result, 4, *words)
        place.checks.check(f"{name}: no other process is blamed", "another process" not in result[2], result[2])
        place.checks.check(f"{name}: no '1 more bytes'", " 1 more bytes" not in result[2], result[2])
        place.completes(name)
        shutil.rmtree(place.out)
        shutil.rmtree(place.work / "fresh")


def no_inodes(place):
    disk = place.work / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=9,size=64m", "tmpfs", disk],
                      stderr=subprocess.DEVNULL).returncode != 0:
        print("passed over: mounting a tmpfs is not permitted here")
        return
    try:
        args = ["quantize", place.source, "-o", disk / "out", *SHARDS]
        code, _, stderr = harness.run(place.options.tessera, args)
        place.checks.check("no inodes", code == 4 and "inodes" in stderr and "more bytes" not in stderr, f"{code}: {stderr}")
    finally:
        subprocess.run(["umount", disk], check=True)


def read_only(place):
    place.run()
    before = {path: path.stat().st_mtime_ns for path in place.out.rglob("*")}
    shim = {"PLAN": f"create 1+ {EROFS} {place.out}/"}
    args = ["quantize", place.source, "-o", place.out, "--max-shard-size", "1MB"]
    code, stdout, stderr = harness.run_shimmed(place.options.tessera, args, harness.shim_path(place.options), **shim)
    place.checks.check("a finished output that is read-only is verified", code == 0 and "complete already" in stdout, stderr)
    place.checks.check("read-only: untouched", before == {path: path.stat().st_mtime_ns for path in place.out.rglob("*")})
    shard = place.out / "model-00002-of-00004.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    place.refused("a damaged output that is read-only", place.run(**shim), 4, "read-only", no_config=False)
    place.checks.check("a damaged output that is read-only keeps its files", shard.exists() and (place.out / "config.json").exists())
    place.refused("--force on what is read-only", place.run("--force", **shim), 4, "not writable", no_config=False)
    shutil.rmtree(place.out)


def unreadable_index(place, options):
    index = "model.safetensors.index.json"
    args = ["convert", place.source, "-o", place.out, "--to", "archive", "--quiet"]
    for call in ("access", "stat"):
        code, _, stderr = harness.run_shimmed(options.tessera, args, harness.shim_path(options), PLAN=f"{call} 1+ {EACCES} {index}")
        place.checks.check(f"archive, {call} of the index fails: not left out",
                           (place.out / index).exists() if code == 0 else code in (3, 4), f"{code}: {stderr}")
        shutil.rmtree(place.out, ignore_errors=True)


def vanished_file(place, options):
    """A side file that is removed between listing and reading is reported as missing, not as a broken link."""
    name = "tokenizer_config.json"
    gone = pathlib.Path(place.source) / name
    gone.write_text("{}")
    args = ["quantize", place.source, "-o", place.out, "--quiet"]
    code, _, stderr = harness.run_shimmed(options.tessera, args, harness.shim_path(options), PLAN=f"stat 1+ {ENOENT} {name}")
    place.checks.check("a file that has gone", code == 4 and f"{name}: cannot access it: No such file" in stderr, f"{code}: {stderr}")
    gone.unlink()


def memory_reduces_threads(place, options):
    # Directly, units under way give way to threads first.
    args = ["quantize", place.source, "-o", place.out, "--json", "-", "--io", "buffered"]

    def told(*extra):
        code, stdout, stderr = harness.run(options.tessera, [*args, *extra])
        place.checks.check(f"--memory: {' '.join(extra)}", code == 0, stderr)
        return json.loads(stdout) if code == 0 else {}

    need = told("--threads", "3", "--dry-run").get("memory", 0)
    used = told("--threads", "8", "--memory", str(need)).get("threads")
    place.checks.check("--memory for three threads gives three of eight", used == 3, f"{used}")
    shutil.rmtree(place.out)


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    with harness.checks_in(options.directory) as (checks, work):
        model = harness.make_checkpoint(options.make, "deepseek-v3", os.path.join(work, "model"), scale="tiny")
        fp8 = os.path.join(work, "fp8")
        harness.run(options.tessera, ["quantize", model, "-o", fp8, "--quiet"])
        place = Place(checks, options, work, model)
        forged_journals(place)
        linked_folder(place, options)
        hard_linked_copy(place)
        strays(place, options)
        fewer_ranks(place, options)
        side_files_called_part(place, model)
        control_characters(place, model)
        long_paths(place)
        refusals(place)
        no_inodes(place)
        read_only(place)
        unreadable_index(place, options)
        vanished_file(place, options)
        memory_reduces_threads(place, options)
        changing_original(place, fp8, model)
        changing_sources(place, model)


if __name__ == "__main__":
    main()
