#!/usr/bin/env python3
"""Runs quantize and convert under valgrind: invalid accesses, uninitialized values, leaks, and races of threads.

Each job of tests/common/jobs.py runs under memcheck with scalar kernels and with those for AVX2, which valgrind knows, and
under drd with three threads. With scalar kernels, `--scales best` would take an hour and is left out. The suite takes the
first job and a few others; TESSERA_LONG takes all, with verify and inspect of each output."""

import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness
import jobs
import turns

FOUND = 99
LIMIT = 7200  # seconds: searches of scales take long
MEMCHECK = ["valgrind", "-q", f"--error-exitcode={FOUND}", "--leak-check=full", "--errors-for-leak-kinds=definite,indirect"]
DRD = ["valgrind", "-q", "--tool=drd", f"--error-exitcode={FOUND}"]
# The check, the threads, and the mask of instruction sets: 0 scalar, without it all that valgrind knows.
RUNS = {"memcheck, scalar": (MEMCHECK, 2, ["--cpumask", "0"]), "memcheck, AVX2": (MEMCHECK, 1, []), "drd": (DRD, 3, [])}


def run(options, how, words):
    # Landlock's calls are unknown to valgrind.
    return harness.run(how[0], [*how[1:], options.tessera, "--no-sandbox", *words], timeout=LIMIT)


def check(checks, counts, what, ended, codes):
    """Passes if the command ended with one of `codes` and valgrind found nothing."""
    code, _, err = ended
    counts[what.partition(":")[0]] += 1
    errors = re.findall(r"^==\d+== (?!  )(\S.*)", err, re.M)
    checks.check(what, code in codes and not errors, f"exit {code}: {errors[:8] or err.strip()[-500:]}")


def check_job(checks, counts, options, job, source, work):
    first = None
    for name, (how, threads, mask) in RUNS.items():
        if "--scales best" in job.command and mask:
            continue
        out = os.path.join(work, "out")
        words = jobs.words(job.command, source, out)
        check(checks, counts, f"{name}: {job.name}", run(options, how, [*words, "--threads", str(threads), *mask, "--quiet"]), (0,))
        if first is None and os.path.isdir(out):
            first = os.path.join(work, "first")
            os.rename(out, first)
        elif first is not None:
            checks.check(f"{name}: {job.name}: same tree", harness.tree_difference(first, out) is None)
            shutil.rmtree(out, ignore_errors=True)
    if turns.whole() and first is not None:
        check(checks, counts, f"inspect: {job.name}", run(options, MEMCHECK, ["inspect", first]), (0, 1, 3))
        check(checks, counts, f"verify: {job.name}", run(options, MEMCHECK, ["verify", first, "--against", source, "--threads", "2", "--quiet"]), (0, 1, 3))
    shutil.rmtree(os.path.join(work, "first"), ignore_errors=True)


def chosen(options):
    if options.only is not None:
        return [job for job in [*jobs.JOBS, *jobs.MORE] if any(text in job.name for text in options.only)][options.skip:]
    return [*turns.part(jobs.JOBS, 40, 1), *turns.part(jobs.MORE, 80)][options.skip:]


def main():
    parser = jobs.choice(harness.argument_parser(__doc__.splitlines()[0]))
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first N jobs, as after an interrupted run")
    options = parser.parse_args()
    if shutil.which("valgrind") is None or subprocess.run(["valgrind", "-q", "true"], capture_output=True, check=False).returncode != 0:
        print("skipped: no valgrind")
        sys.exit(77)
    checks, counts, began = harness.Checks(), collections.Counter(), time.monotonic()
    for number, job in enumerate(chosen(options), options.skip):
        print(f"{number}: {job.name}", flush=True)
        with harness.temporary_directory(options.directory) as work:
            kind, small, _ = job.kind.partition("-small")
            source = jobs.make_source(options.tessera, options.make, job, kind, os.path.join(work, "source"), scale="small" if small else "tiny")
            check_job(checks, counts, options, job, source, work)
    print(f"{dict(counts)} in {time.monotonic() - began:.0f} s; {turns.told()}")
    checks.finish()


if __name__ == "__main__":
    main()
