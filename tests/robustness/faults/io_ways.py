#!/usr/bin/env python3
"""Tests that the output does not depend on the way of I/O, and that the result reports it with the reason.

Covers direct and buffered I/O, with and without io_uring, onto a disk and onto tmpfs, from files with unaligned
weights. crash.py compares both ways for each job.
"""

import json
import os
import pathlib
import shutil
import struct
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness

MEMORY = pathlib.Path("/dev/shm")
QUANTIZE = ["quantize", "SRC", "-o", "DST"]


def takes_direct(directory):
    """Returns True if files in this folder may be opened with O_DIRECT, and are on a disk."""
    try:
        os.close(os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT))
    except OSError:
        return False
    return not str(directory).startswith(str(MEMORY)) and os.stat(directory).st_dev != os.stat(MEMORY).st_dev


def place_on_disk(wanted):
    """Returns a folder with support of direct I/O. The suite's temporary files may be in memory."""
    candidates = [wanted or tempfile.gettempdir(), "/var/tmp", str(pathlib.Path(__file__).resolve().parents[3])]
    return next((place for place in candidates if takes_direct(place)), wanted)


def forget(directory):
    """Syncs the files of a directory and drops them from the page cache."""
    for path in pathlib.Path(directory).iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def make_odd(source, target):
    """Copies a checkpoint with headers that are a byte longer, so that no data is aligned."""
    shutil.copytree(source, target)
    for path in pathlib.Path(target).glob("*.safetensors"):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        path.write_bytes(struct.pack("<Q", size + 1) + data[8:8 + size] + b" " + data[8 + size:])


class Ways:
    def __init__(self, checks, options, work):
        self.checks, self.options, self.work = checks, options, pathlib.Path(work)
        self.source, self.reference = self.work / "source", self.work / "reference"
        self.number = 0

    def run(self, name, *words, command=QUANTIZE, source=None, place=None, shim=None):
        """Runs the job. Returns the members of the result about I/O, and the output."""
        self.number += 1
        target = (place or self.work) / f"out.{self.number}"
        args = [{"SRC": str(source or self.source), "DST": str(target)}.get(word, word) for word in command]
        args += ["--json", "-", "--quiet", *words]
        run = (lambda: harness.run(self.options.tessera, args)) if shim is None else (
            lambda: harness.run_shimmed(self.options.tessera, args, harness.shim_path(self.options), **shim))
        code, told, stderr = run()
        ok = self.checks.check(f"{name}: runs", code == 0, f"exit {code}: {stderr.strip()}")
        return (json.loads(told)["io"] if ok else {}), target

    def same(self, name, target):
        self.checks.same_tree(f"{name}: the same tree", self.reference, target)
        shutil.rmtree(target)

    def expect(self, name, io, **members):
        self.checks.check(f"{name}: says so", all(io.get(key) == value for key, value in members.items()), f"{io}, not {members}")


def check_disk(ways):
    """On a disk, --io is obeyed, and the default depends on the page cache."""
    name = "direct"
    io, target = ways.run(name, "--io", "direct", "--threads", "1")
    ring = io.get("queue")
    ways.expect(name, io, mode="direct", reads="direct", writes="direct", why="")
    ways.same(name, target)
    name = "direct, io_uring forbidden"
    io, target = ways.run(name, "--io", "direct", shim={"PLAN": "ring 1+ 1"})
    ways.expect(name, io, mode="direct", queue="none", why="")
    ways.same(name, target)
    name = "auto, the source on the disk"
    for _ in range(3):  # the system may keep pages that another processor has just used
        forget(ways.source)
        io, target = ways.run(name)
        if io.get("reads") == "direct":
            break
    ways.expect(name, io, reads="direct", writes="direct", queue=ring)
    ways.same(name, target)
    name = "auto, the source in the page cache"
    for path in ways.source.iterdir():
        path.read_bytes()
    io, target = ways.run(name)
    ways.expect(name, io, reads="buffered", writes="direct", why="source: it is in the page cache")
    ways.same(name, target)
    name = "direct, ranks that share what is read"
    io, target = ways.run(name, "--io", "direct", command=["convert", "SRC", "-o", "DST", "--to", "tp", "--tp", "2"])
    ways.expect(name, io, reads="direct", writes="direct", why="")
    shutil.rmtree(target)
    check_shared_bytes(ways)
    check_damage(ways)
    check_odd(ways)


def check_shared_bytes(ways):
    """Bytes that ranks share are counted correctly, also with direct I/O, with io_uring and without."""
    read = {}
    for way, mode, shim in (("buffered", "buffered", {}), ("direct", "direct", {}), ("direct, io_uring forbidden", "direct", {"PLAN": "ring 1+ 1"})):
        target = ways.work / f"ranks.{len(read)}"
        command = ["convert", ways.source, "-o", target, "--to", "tp", "--tp", "2", "--io", mode, "--json", "-", "--quiet"]
        code, told, stderr = harness.run_shimmed(ways.options.tessera, command, harness.shim_path(ways.options), **shim) if shim else (
            harness.run(ways.options.tessera, command))
        ways.checks.check(f"ranks, {way}: runs", code == 0, stderr)
        read[way] = json.loads(told)["bytes_read"] if code == 0 else 0
        shutil.rmtree(target)
        ways.checks.check(f"ranks, {way}: reads count", read["buffered"] <= read[way] <= 1.2 * read["buffered"], read)


def check_damage(ways):
    """A finished output is read back with direct I/O, and a byte that changed on the disk is found."""
    io, target = ways.run("direct, to be damaged", "--io", "direct")
    shard = max(target.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    with open(shard, "r+b") as file:
        file.seek(shard.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    forget(target)
    args = ["quantize", ways.source, "-o", target, "--io", "direct"]
    ways.checks.ends("direct, damaged: found and made again", ways.options.tessera, args, 0, "1 file differs from the journal and was written again")
    shutil.rmtree(target / ".tessera")  # its journal tells of the repair
    kept = ways.work / "kept"
    shutil.copytree(ways.reference, kept, ignore=shutil.ignore_patterns(".tessera"))
    ways.checks.same_tree("direct, damaged: the same tree", kept, target)


def check_odd(ways):
    odd = ways.work / "odd"
    make_odd(ways.source, odd)
    _, target = ways.run("direct, odd places", "--io", "direct", source=odd)
    for path in sorted(ways.reference.glob("*.safetensors")):
        ways.checks.check(f"direct, odd places: {path.name}", harness.same_file(path, target / path.name))


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    checks = harness.Checks()
    with harness.temporary_directory(place_on_disk(options.directory)) as work, harness.temporary_directory(MEMORY) as memory:
        ways = Ways(checks, options, work)
        harness.make_checkpoint(options.make, "deepseek-v3", ways.source, scale="half")
        io, target = ways.run("buffered", "--io", "buffered")
        ways.expect("buffered", io, mode="buffered", reads="buffered", writes="buffered", queue="none", why="--io buffered")
        target.rename(ways.reference)
        if takes_direct(work):
            check_disk(ways)
        else:
            print(f"{work}: takes no O_DIRECT; what passes the page cache by is not tested")
        io, target = ways.run("into memory", "--io", "direct", place=pathlib.Path(memory))
        ways.expect("into memory", io, writes="buffered")
        checks.check("into memory: says why", io.get("why") == "output: its file system is in memory" or not takes_direct(work), io)
        ways.same("into memory", target)
    checks.finish()


if __name__ == "__main__":
    main()
