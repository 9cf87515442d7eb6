#!/usr/bin/env python3
"""Tests kill -9 at any moment: the same command, repeated, completes the same tree as an undisturbed run.

Each job runs with one thread and buffered I/O, and with two threads and direct I/O. A first run is timed as the
reference. Other runs are killed at moments spread over that time; every third one is killed again while it resumes.
The tree, with the journal, must equal the reference. Files under final names must be final, and a config.json must be
complete with its files.
"""

import collections
import os
import pathlib
import random
import shutil
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness
import jobs
import turns

# Threads, and how bytes pass: the trees are the same.
THREADS = {1: "buffered", 2: "direct"}


def command_line(job, source, destination, threads):
    return jobs.words(job.command, source, destination) + ["--quiet", "--threads", str(threads), "--io", THREADS[threads]]


def stage(directory, reference):
    """Describes how far a killed run came."""
    if not os.path.isdir(directory):
        return "before the directory"
    if os.path.exists(os.path.join(directory, "config.json")):
        return "after config.json"
    shards = [name for name in os.listdir(reference) if name.endswith((".safetensors", ".safetensors.zst"))]
    finished = sum(os.path.exists(os.path.join(directory, name)) for name in shards)
    return {0: "before the first shard", len(shards): "after the last shard"}.get(finished, "between shards")


def looks_finished(directory, reference):
    """Describes a file under a final name that a killed run left although it is not final; or None."""
    whole = os.path.exists(os.path.join(directory, "config.json"))
    for name in sorted(os.listdir(reference)):
        path = os.path.join(directory, name)
        if whole and not os.path.exists(path):
            return f"config.json is there, {name} is not"
        if os.path.isfile(path) and not harness.same_file(path, os.path.join(reference, name)):
            return f"{name} is there, but not as it will be"
    return None


def undisturbed(checks, options, job, threads, source, reference):
    """Makes the reference. Returns how long that took; None if it failed."""
    begin = time.monotonic()
    code, _, stderr = harness.run(options.tessera, command_line(job, source, reference, threads))
    duration = time.monotonic() - begin
    ended = checks.check(f"{job.name}, {threads} threads: undisturbed", code == 0, f"exit {code}: {stderr.strip()}")
    return duration if ended else None


def disturb(checks, options, job, threads, source, reference, moments, duration, rng, stages):
    for number in range(moments):
        killed_before = sum(stages.values())  # of all jobs
        delay = (number + rng.random()) / moments * duration
        what = f"{job.name}, {threads} threads, killed after {delay * 1000:.1f} ms"
        with harness.temporary_directory(options.directory) as place:
            target = os.path.join(place, "out")
            args = command_line(job, source, target, threads)
            taken = harness.kill_after([options.tessera, *args], delay)
            stages[stage(target, reference) if taken is None else "ended before it"] += 1
            if taken is not None:  # the machine has less to do than when it was timed
                duration = taken
            left = looks_finished(target, reference)
            checks.check(f"{what}: nothing unfinished looks finished", left is None, left)
            if killed_before % 3 == 2:
                again = rng.random() * duration
                harness.kill_after([options.tessera, *args], again)
                what += f" and again after {again * 1000:.1f} ms"
            code, _, stderr = harness.run(options.tessera, args)
            if checks.check(f"{what}: rerun", code == 0, f"exit {code}: {stderr.strip()}"):
                difference = harness.tree_difference(reference, target)
                checks.check(f"{what}: same tree", difference is None, difference)


def check_job(checks, options, job, source, work, moments, rng, stages):
    """`moments`: how many runs are killed with each number of threads."""
    first = None
    for threads in THREADS:
        reference = os.path.join(work, f"reference.{threads}")
        duration = undisturbed(checks, options, job, threads, source, reference)
        if duration is None:
            continue
        first = first or reference
        difference = harness.tree_difference(first, reference) if first != reference else None
        checks.check(f"{job.name}: {threads} threads and one give the same", difference is None, difference)
        disturb(checks, options, job, threads, source, reference, next(moments), duration, rng, stages)
    for threads in THREADS:
        shutil.rmtree(os.path.join(work, f"reference.{threads}"), ignore_errors=True)


def main():
    parser = jobs.choice(harness.argument_parser(__doc__.splitlines()[0]))
    parser.add_argument("--kills", type=int, default=100 if turns.whole() else 36,
                        help="in all, and at least one of each job and number of threads (36; 100 with TESSERA_LONG)")
    parser.add_argument("--seed", type=int, default=turns.turn(), help="of the moments (TESSERA_TURN)")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    chosen = jobs.chosen(options, 3)
    print(f"{len(chosen)} jobs, seed {options.seed}; {turns.told()}")
    pairs = len(chosen) * len(THREADS)
    moments = (max(1, options.kills * (pair + 1) // pairs - options.kills * pair // pairs) for pair in range(pairs))
    checks = harness.Checks()
    stages = collections.Counter()
    with harness.temporary_directory(options.directory) as work:
        for made in dict.fromkeys(job.made for job in chosen):
            alike = [job for job in chosen if job.made == made]
            source = jobs.make_source(options.tessera, options.make, alike[0], "deepseek-v3", os.path.join(work, "source"),
                                      scale="half")
            for job in alike:
                check_job(checks, options, job, source, work, moments, rng, stages)
            shutil.rmtree(source)
    print("killed " + ", ".join(f"{stage}: {count}" for stage, count in sorted(stages.items())))
    landed = sum(stages.values()) - stages["ended before it"]
    checks.check("most kills found the tool at work", 2 * landed > sum(stages.values()), f"{landed} of them")
    checks.finish()


if __name__ == "__main__":
    main()
