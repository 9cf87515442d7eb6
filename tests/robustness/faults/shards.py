#!/usr/bin/env python3
"""Tests --shard I/N and `tessera finish`: several processes give the same tree as one.

Each job is done by three concurrent shards. One job is also done by one and by eight, killed at several moments, with
missing, inconsistent and duplicate shards, and with `finish` killed.
"""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness
import jobs

COMMAND = "quantize SRC -o DST --max-shard-size 200kB"
SMALL = {"8MB": "300kB", "4MB": "200kB"}  # in the commands of the table: several files of a tiny checkpoint


class Sharded:
    """Is a job that is done in parts."""

    def __init__(self, tool, command, source):
        self.tool, self.command, self.source = tool, command, source

    def args(self, target, *more):
        return [*jobs.words(self.command, self.source, target), "--quiet", "--threads", "1", *more]

    def start(self, target, shard, *more):
        return subprocess.Popen([self.tool, *self.args(target, "--shard", shard, *more)], stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE)

    def run(self, target, *more):
        return harness.run(self.tool, self.args(target, *more))

    def finish(self, target, *more):
        return harness.run(self.tool, ["finish", target, *more])

    def all_at_once(self, target, n):
        """Returns the messages of the shards that failed."""
        processes = [self.start(target, f"{i}/{n}") for i in range(n)]
        said = [(process.communicate(timeout=600)[1].decode(), process.returncode) for process in processes]
        return [f"exit {code}: {stderr.strip()}" for stderr, code in said if code != 0]


def check_whole(checks, what, job, target, reference):
    code, _, stderr = job.finish(target, "--quiet")
    if checks.check(f"{what}: finish", code == 0, f"exit {code}: {stderr.strip()}"):
        checks.same_tree(f"{what}: the tree of one process", reference, target)


def check_table(checks, options, work):
    """Runs every job with three shards."""
    def source_of(row):
        """Over two ranks no block of a tiny one can be cut."""
        return "deepseek-v3", "half" if row.made == jobs.FP8 and row.codes == jobs.RANKS else "tiny"

    for row, source in jobs.with_sources(options, jobs.JOBS, work / "source", source_of, SMALL):
        job = Sharded(options.tessera, jobs.shortened(row.command, SMALL), source)
        code, _, stderr = job.run(work / "reference")
        checks.check(f"{row.name}: one process", code == 0, stderr)
        failed = job.all_at_once(work / "out", 3)
        if checks.check(f"{row.name}: three shards at once", not failed, failed):
            checks.check(f"{row.name}: no config.json yet", not list((work / "out").rglob("config.json")))
            check_whole(checks, row.name, job, work / "out", work / "reference")
        shutil.rmtree(work / "reference", ignore_errors=True)
        shutil.rmtree(work / "out", ignore_errors=True)


def check_numbers(checks, job, reference, work):
    for n in 1, 3, 8, 40:  # of 40 shards, some have no file
        target = work / f"by-{n}"
        failed = job.all_at_once(target, n)
        checks.check(f"{n} shards", not failed, failed)
        check_whole(checks, f"{n} shards", job, target, reference)
        shutil.rmtree(target)


def check_dry(checks, job, work):
    """The shards together plan all files, each once, in equal parts."""
    shares, files = [], []
    for i in range(8):
        code, out, stderr = harness.run(job.tool, jobs.words(job.command, job.source, work / "dry") + ["--dry-run", "--shard", f"{i}/8"])
        checks.check(f"dry run of shard {i}", code == 0 and not (work / "dry").exists(), stderr)
        files += [line.split()[1].rstrip(",") for line in out.splitlines() if line.startswith("write")]
        _, out, _ = job.run(work / "dry", "--dry-run", "--shard", f"{i}/8", "--json", "-")
        shard = json.loads(out)["shard"]
        checks.check(f"dry run of shard {i}: which", (shard["index"], shard["of"]) == (i, 8), shard)
        shares.append(shard["bytes_in"] + shard["bytes_out"])
    planned = sum(shares) / 8
    checks.check("every file is one shard's", len(files) == len(set(files)) > 8, files)
    checks.check("shards are of one size", max(shares) < 1.6 * planned, shares)


def check_refusals(checks, job, reference, work):
    target = work / "mixed"

    def refused(what, expected, words, args, tool_args=None):
        before = work / "before"
        shutil.copytree(target, before)
        code, out, stderr = harness.run(job.tool, tool_args) if tool_args else job.run(target, *args)
        said = out + stderr
        checks.check(f"{what}: exit {expected}", code == expected, f"exit {code}: {said}")
        checks.check(f"{what}: words", all(word in said for word in words), said)
        for place in before, target:  # finish leaves an empty journal, whose lock it held
            (place / ".tessera/journal").unlink(missing_ok=True)
        checks.same_tree(f"{what}: nothing changed", before, target)
        shutil.rmtree(before)

    for shard in "0/3", "2/3":
        checks.check(f"shard {shard}", job.run(target, "--shard", shard)[0] == 0)
    refused("another number of shards", 2, ["begun as 3 shards", "--shard is 1/4", "I/3"], ["--shard", "1/4"])
    refused("other options", 2, ["then --scale-fmt f32, now --scale-fmt ue8m0"], ["--shard", "1/3", "--scale-fmt", "ue8m0"])
    refused("one process beside shards", 2, ["begun as 3 shards", "tessera finish"], [])
    refused("one process beside shards, --force", 2, ["begun as 3 shards"], ["--force"])
    refused("--shard with --force", 2, ["--force"], ["--shard", "1/3", "--force"])
    for wrong in "3/3", "0/0", "1", "-1/3", "1/3x":
        refused(f"--shard {wrong}", 2, ["I/N"], [f"--shard={wrong}"])
    refused("a shard is missing", 1, ["shard 1 of 3", " --shard 1/3", str(job.source)], [], ["finish", target])
    # The printed command is the one to run.
    _, out, _ = job.finish(target)
    code = subprocess.run(out.replace("tessera", job.tool, 1), shell=True, stdout=subprocess.DEVNULL).returncode
    checks.check("the command that finish prints", code == 0, out)
    path = next(target.glob("*.safetensors"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused("a file is damaged", 1, ["not complete: shard"], [], ["finish", target])
    path.write_bytes(whole)
    moved = work / "moved"
    target.rename(moved)
    check_whole(checks, "DST moved", job, moved, reference)
    code, out, _ = job.finish(moved)
    checks.check("finish again", code == 0 and "already complete" in out, out)
    checks.ends("one process finds it complete", job.tool, [word for word in job.args(moved) if word != "--quiet"], 0, "complete already")
    checks.check("a shard finds it complete", job.run(moved, "--shard", "1/3")[0] == 0)
    path = moved / path.name
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    codes = {job.run(moved, "--shard", f"{i}/3")[0] for i in range(3)}
    checks.check("a shard does not repair it", codes == {0, 2}, codes)
    checks.check("one process does", job.run(moved)[0] == 0 and path.read_bytes() == whole)
    shutil.rmtree(moved)
    checks.check("a source that is gone", "--source" in lost_source(job, work / "lost", work / "away", reference, checks))
    checks.check("no shards", job.finish(work)[0] == 2)


def lost_source(job, target, away, reference, checks):
    job.all_at_once(target, 2)
    os.rename(job.source, away)
    stderr = job.finish(target)[2]
    code = job.finish(target, "--source", away, "--quiet")[0]
    os.rename(away, job.source)
    checks.check("--source", code == 0 and harness.tree_difference(reference, target) is None, code)
    shutil.rmtree(target)
    return stderr


def check_locks(checks, job, work):
    """A running shard blocks the same shard, and finish."""
    target = work / "held"
    for _ in range(50):
        shutil.rmtree(target, ignore_errors=True)
        process = job.start(target, "0/2")
        while process.poll() is None and not list(target.glob(".tessera/*.part")):
            time.sleep(0.0005)
        if harness.stop(process):
            break
        process.communicate()
    code, _, stderr = job.run(target, "--shard", "0/2")
    checks.check("the same shard twice", code == 2 and "another process" in stderr, f"exit {code}: {stderr}")
    code, _, stderr = job.run(target, "--shard", "1/2")
    checks.check("the other shard at the same time", code == 0, stderr)
    code, out, stderr = job.finish(target)
    checks.check("finish while a shard is at work", code == 1 and "shard 0/2" in stderr, f"exit {code}: {stderr}")
    process.kill()
    process.communicate()
    shutil.rmtree(target)


def check_kills(checks, job, reference, work, kills, rng):
    """Shards and finish are killed at any moment. The repeated commands complete the output."""
    begin = time.monotonic()
    job.run(work / "timed", "--shard", "0/3")
    duration = time.monotonic() - begin
    for i in 1, 2:
        job.run(work / "timed", "--shard", f"{i}/3")
    shutil.copytree(work / "timed", work / "shards")
    begin = time.monotonic()
    job.finish(work / "timed")
    finishing = time.monotonic() - begin
    landed = 0
    lasts = {"shard": duration, "finish": finishing}  # what it took, whenever a kill came too late
    for number in range(kills):
        what, target, kind = f"kill {number}", work / "killed", "finish" if number % 4 == 3 else "shard"
        shard, *others = (f"{i % 3}/3" for i in range(number, number + 3))
        if kind == "finish":
            shutil.copytree(work / "shards", target)
        args = ["finish", target] if kind == "finish" else job.args(target, "--shard", shard)
        taken = harness.kill_after([job.tool, *args], (number + rng.random()) / kills * lasts[kind])
        landed += taken is None
        lasts[kind] = lasts[kind] if taken is None else taken
        if kind == "shard":
            code, _, stderr = job.run(target, "--shard", shard)
            checks.check(f"{what}: rerun", code == 0, f"exit {code}: {stderr}")
            # The others' work is the same each time.
            failed = [said for said in (job.run(target, "--shard", other) for other in others) if said[0] != 0]
            checks.check(f"{what}: others", not failed, failed)
        check_whole(checks, what, job, target, reference)
        shutil.rmtree(target)
    checks.check("half of the kills found somebody at work", 2 * landed > kills, landed)


def main():
    parser = harness.argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="in all (50)")
    options = parser.parse_args()
    with harness.checks_in(options.directory) as (checks, work):
        source = harness.make_checkpoint(options.make, "deepseek-v3", work / "tiny", scale="tiny")
        job = Sharded(options.tessera, COMMAND, source)
        job.run(work / "one")
        check_numbers(checks, job, work / "one", work)
        check_dry(checks, job, work)
        check_refusals(checks, job, work / "one", work)
        check_locks(checks, job, work)
        check_kills(checks, job, work / "one", work, options.kills, random.Random(1))
        check_table(checks, options, work)


if __name__ == "__main__":
    main()
