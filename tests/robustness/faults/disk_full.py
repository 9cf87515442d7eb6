#!/usr/bin/env python3
"""Tests a full disk: a conversion ends with exit code 4 and the missing bytes, and completes when there is space.

The size of an archive is not known in advance, so it begins even if its upper bound does not fit. The output is on a
small tmpfs, which needs the right to mount; otherwise the test is skipped.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness
import jobs
import turns

MIB = 1 << 20
EXIT_IO = 4
# Bytes that the tool's message does not count: journal, report, and the last page of each file.
UNCOUNTED = MIB // 2


class SmallDisk:
    """Mounts a tmpfs at `path` while the context exists."""

    def __init__(self, path, size):
        self.path = path
        self.size = size

    def __enter__(self):
        os.mkdir(self.path)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.size}", "tmpfs", self.path], check=True)
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", self.path], check=True)

    def grow(self, size):
        subprocess.run(["mount", "-o", f"remount,size={size}", self.path], check=True)

    def free(self):
        state = os.statvfs(self.path)
        return state.f_bavail * state.f_bsize


class LoopDisk(SmallDisk):
    """Is a file with a disk's file system, which supports direct writes."""

    def __enter__(self):
        os.mkdir(self.path)
        with open(self.path + ".image", "wb") as image:
            image.truncate(self.size)
        for command in ["mkfs.ext4", "-q", "-m", "0", image.name], ["mount", "-o", "loop", image.name, self.path]:
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        return self


def may_mount(work):
    probe = os.path.join(work, "probe")
    os.mkdir(probe)
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", probe], stderr=subprocess.DEVNULL).returncode != 0:
        return False
    return subprocess.run(["umount", probe]).returncode == 0


def check_refusal(checks, name, code, stderr, target):
    """Returns the number of missing bytes in the tool's message, or 0."""
    checks.check(f"{name}: exit code", code == EXIT_IO, f"{code} instead of {EXIT_IO}: {stderr.strip()}")
    amount = re.search(r"(\d+) (more )?bytes", stderr)
    checks.check(f"{name}: the sentence names the missing bytes", amount and int(amount[1]) > 0, stderr.strip())
    checks.check(f"{name}: no config.json", not os.path.exists(os.path.join(target, "config.json")))
    return int(amount[1]) if amount else 0


def check_rerun(checks, name, tool, args, reference, target):
    if checks.ends(f"{name}: rerun", tool, args):
        checks.same_tree(f"{name}: same tree", reference, target)


def too_small_from_the_start(checks, tool, job, source, reference, work):
    """The plan fails before the first byte. With the number of missing bytes added, the run completes."""
    name = f"{job.name}: too small from the start"
    size = 8 * MIB
    with SmallDisk(os.path.join(work, "small"), size) as disk:
        target = os.path.join(disk.path, "out")
        args = jobs.words(job.command, source, target) + ["--quiet"]
        code, _, stderr = harness.run(tool, args)
        missing = check_refusal(checks, name, code, stderr, target)
        if not is_archive(job):
            checks.check(f"{name}: nothing written", size - disk.free() < UNCOUNTED, f"{size - disk.free()} bytes are used")
        disk.grow(size + missing + UNCOUNTED)
        check_rerun(checks, name, tool, args, reference, target)


def is_archive(job):
    return "--to archive" in job.command


def smaller_than_the_bound(checks, tool, job, source, reference, work):
    """The disk is too small for the uncompressed files, but large enough for their archive."""
    name = f"{job.name}: a disk for the archive alone"
    packed, plain = harness.bytes_of(reference), harness.bytes_of(source)
    with SmallDisk(os.path.join(work, "exact"), packed + UNCOUNTED) as disk:
        checks.check(f"{name}: it is smaller than the plain files", disk.free() < 0.9 * plain, f"{disk.free()} of {plain}")
        target = os.path.join(disk.path, "out")
        code, _, stderr = harness.run(tool, jobs.words(job.command, source, target) + ["--quiet"])
        checks.check(f"{name}: exit code", code == 0, f"{code}: {stderr.strip()}")
        checks.check(f"{name}: is told of", "estimated from samples" in stderr and "at most" in stderr, stderr.strip())
        checks.same_tree(f"{name}: same tree", reference, target)


def stopped_midway(disk, tool, args, reference, target):
    """A run has written some of its output and lacks space for half of it. On a busy machine several attempts may be needed."""
    whole = harness.bytes_of(reference)
    for _ in range(50):
        shutil.rmtree(target, ignore_errors=True)
        began = disk.free()
        process = subprocess.Popen([tool, *args], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while process.poll() is None and began - disk.free() < min(10 * MIB, whole / 4):
            time.sleep(0.001)
        if harness.stop(process) and began - disk.free() < whole / 2:
            return process
        process.send_signal(signal.SIGCONT)
        process.communicate()
    raise RuntimeError("no run could be stopped midway")


def filled_by_others(checks, tool, job, source, reference, work, kind=SmallDisk, io="auto"):
    """The space was sufficient at the start of the job, and another program used it during the run."""
    name = f"{job.name}: filled by others midway, --io {io}"
    with kind(os.path.join(work, f"shared.{io}"), 96 * MIB) as disk:
        target = os.path.join(disk.path, "out")
        ballast = os.path.join(disk.path, "ballast")
        args = jobs.words(job.command, source, target) + ["--quiet", "--io", io]
        process = stopped_midway(disk, tool, args, reference, target)
        # Unbuffered, because a buffer would try to write its last bytes again when it is closed.
        with open(ballast, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(MIB))
            except OSError:
                pass
        process.send_signal(signal.SIGCONT)
        stderr = process.communicate(timeout=600)[1].decode(errors="replace")
        missing = check_refusal(checks, name, process.returncode, stderr, target)
        os.truncate(ballast, max(0, os.path.getsize(ballast) - missing - UNCOUNTED))
        check_rerun(checks, name, tool, args, reference, target)


def past_the_cache(checks, tool, job, source, reference, work):
    """Tests a file system with direct writes, whose files are allocated at the beginning."""
    try:
        filled_by_others(checks, tool, job, source, reference, work, kind=LoopDisk, io="direct")
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        print(f"no disk to be filled by direct writes: {error}")


def check_job(checks, tool, job, source, place, first):
    """Tests all cases for this job in an empty folder. The first job is also tested with direct I/O."""
    reference = os.path.join(place, "reference")
    if not checks.ends(f"{job.name}: undisturbed run", tool, jobs.words(job.command, source, reference) + ["--quiet"]):
        return
    too_small_from_the_start(checks, tool, job, source, reference, place)
    filled_by_others(checks, tool, job, source, reference, place)
    if first:
        past_the_cache(checks, tool, job, source, reference, place)
    if is_archive(job):
        smaller_than_the_bound(checks, tool, job, source, reference, place)


def too_few_inodes(checks, tool, source, work):
    """No weights are written if the index, the report and config.json would have no inode."""
    place, reference = os.path.join(work, "inodes"), os.path.join(work, "counted")
    words = ["--max-shard-size", "4MB", "--quiet"]
    checks.ends("inodes: undisturbed run", tool, ["quantize", source, "-o", reference, *words])
    entries = 1 + sum(1 + len(files) for _, _, files in os.walk(reference))
    shutil.rmtree(reference)
    os.mkdir(place)
    refused = 0
    for inodes in range(entries - 4, entries + 2):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"nr_inodes={inodes}", "tmpfs", place], check=True)
        code, _, stderr = harness.run(tool, ["quantize", source, "-o", os.path.join(place, "out"), *words])
        weights = [name for _, _, files in os.walk(place) for name in files if name.endswith(".safetensors")]
        checks.check(f"inodes: {inodes} of {entries}", code == 0 or (code == EXIT_IO and not weights), f"exit {code}, {weights}: {stderr}")
        refused += code == EXIT_IO
        subprocess.run(["umount", place], check=True)
    checks.check("inodes: some runs had too few, some enough", 0 < refused < 6, refused)
    os.rmdir(place)


def batch_on_two_disks(checks, tool, source, work):
    """A job needs no space on a disk to which another job writes."""
    code, told, stderr = harness.run(tool, ["quantize", source, "-o", "never", "--dry-run", "--json", "-"])
    checks.check("batch: planned", code == 0, stderr)
    size = int(1.4 * json.loads(told)["bytes_out"]) if code == 0 else 0
    with SmallDisk(os.path.join(work, "first"), 2 * size) as first, SmallDisk(os.path.join(work, "second"), size) as second:
        for disks, expected in (((first, second), 0), ((second, second), EXIT_IO)):
            lines = [json.dumps({"name": f"job{i}", "args": ["quantize", source, "-o", os.path.join(disk.path, f"out{i}")]})
                     for i, disk in enumerate(disks)]
            file = os.path.join(work, "jobs.jsonl")
            pathlib.Path(file).write_text("\n".join(lines) + "\n")
            checks.ends(f"batch on {len(set(disks))} disks: exit code", tool, ["batch", file, "--quiet"], expected)
            for disk in disks:
                for folder in pathlib.Path(disk.path).iterdir():
                    shutil.rmtree(folder)
    os.rmdir(first.path)
    os.rmdir(second.path)


def too_small_for_a_proof(checks, tool, source, work):
    """The disk has space for an output but not for its counterpart. The job fails before the first byte, and passes with the
    missing bytes added."""
    name, tokens = "proof: room for the output alone", os.path.join(work, "tokens.txt")
    pathlib.Path(tokens).write_text("1 2")
    words = ["--scheme", "mxfp4-weight-only", "--scales", "best", "--exclude", "*experts*", "--prove", tokens, "--device", "cpu"]
    code, told, stderr = harness.run(tool, ["quantize", source, "-o", "never", *words, "--dry-run", "--json", "-"])
    checks.check(f"{name}: planned", code == 0, stderr)
    size = json.loads(told)["bytes_out"] + 2 * UNCOUNTED if code == 0 else 0
    with SmallDisk(os.path.join(work, "proof"), size) as disk:
        target = os.path.join(disk.path, "out")
        args = ["quantize", source, "-o", target, *words, "--quiet"]
        code, _, stderr = harness.run(tool, args)
        missing = check_refusal(checks, name, code, stderr, target)
        checks.check(f"{name}: nothing written", "out.rounded" in stderr and not os.listdir(disk.path), stderr)
        disk.grow(size + missing + 2 * UNCOUNTED)
        code, _, stderr = harness.run(tool, args)
        checks.check(f"{name}: proven", code in (0, 1) and os.listdir(disk.path) == ["out"], f"exit {code}: {stderr}")
    os.rmdir(disk.path)


def main():
    options = jobs.choice(harness.argument_parser(__doc__.splitlines()[0])).parse_args()
    with harness.checks_in(options.directory) as (checks, work):
        if not may_mount(work):
            print("skipped: mounting a tmpfs is not permitted here")
            sys.exit(77)
        chosen = jobs.chosen(options, 3)
        print(f"{len(chosen)} jobs; {turns.told()}")
        for job, source in jobs.with_sources(options, chosen, work / "source"):
            place = os.path.join(work, "place")
            os.mkdir(place)
            check_job(checks, options.tessera, job, source, place, job is chosen[0])
            shutil.rmtree(place)
        source = harness.make_checkpoint(options.make, "deepseek-v3", os.path.join(work, "plain"), scale="half")
        for check in too_few_inodes, batch_on_two_disks, too_small_for_a_proof:
            check(checks, options.tessera, source, work)


if __name__ == "__main__":
    main()
