#!/usr/bin/env python3
"""--memory holds for one tensor of 3 GB (600 MB of AWQ, GPTQ, gpt-oss) and for 50,000 tensors; a plan of 200,000 costs eight times one of 25,000."""

import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "common"))
import harness
import jobs
import remade

MIB = 1 << 20
MEMORY_MIB = 256
SLACK_MIB = 64  # program, libraries, stacks, and the kernel's rounding
GIANT, REMADE_GIANT = "3G", "600M"  # of a tensor; the latter where Python makes the source, in its own memory
# The CPU's time, which other work on the machine does not lengthen much: each tensor costs the same, however many there are.
# What one costs is bounded generously: 200,000 take between one and three seconds on the machines where this has run.
PLANNED = (25000, 200000)
GROWTH = 2.5
CPU_SECONDS = 10


def run_measured(tool, args, stderr_path):
    """(exit code, peak resident bytes, seconds of CPU, stderr)"""
    with open(stderr_path, "w+b") as stderr:
        process = subprocess.Popen([tool, *args], stdout=subprocess.DEVNULL, stderr=stderr)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = usage.ru_utime + usage.ru_stime
        process.returncode = os.waitstatus_to_exitcode(status)
        stderr.seek(0)
        return process.returncode, usage.ru_maxrss * 1024, seconds, stderr.read().decode(errors="replace")


def check_memory(checks, options, job, kind, source, work):
    name = f"{job.name}, {kind}"
    target = os.path.join(work, "out")
    args = jobs.words(job.command, source, target) + ["--memory", f"{MEMORY_MIB}MiB", "--quiet"]
    code, peak, seconds, stderr = run_measured(options.tessera, args, os.path.join(work, "stderr"))
    print(f"{name}: peak {peak / MIB:.0f} MiB, {seconds:.1f} s of CPU")
    checks.check(f"{name}: exit code", code == 0, f"{code}: {stderr.strip()}")
    bound = (MEMORY_MIB + SLACK_MIB) * MIB
    checks.check(f"{name}: peak memory", peak < bound, f"{peak / MIB:.0f} MiB, --memory {MEMORY_MIB}MiB")
    shutil.rmtree(target, ignore_errors=True)


def check_jobs(checks, options, kind, **make_options):
    """Each job over a checkpoint of this kind; jobs with the same source share it."""
    fitting = [job for job in jobs.chosen(options) if kind not in job.unfit]
    for made in dict.fromkeys(job.made for job in fitting):
        with harness.temporary_directory(options.directory) as work:
            first = next(job for job in fitting if job.made == made)
            if kind == "giant":
                make_options = {"bytes": REMADE_GIANT if made in remade.KINDS else GIANT}
            source = jobs.make_source(options.tessera, options.make, first, kind, os.path.join(work, "source"),
                                      **make_options)
            for job in fitting:
                if job.made == made:
                    check_memory(checks, options, job, kind, source, work)


def plan(checks, options, tensors):
    """Seconds of CPU that a dry run takes over a checkpoint of so many tensors."""
    with harness.temporary_directory(options.directory) as work:
        source = harness.make_checkpoint(options.make, "many", os.path.join(work, "source"), tensors=tensors)
        args = ["quantize", source, "-o", os.path.join(work, "out"), "--dry-run"]
        code, peak, seconds, stderr = run_measured(options.tessera, args, os.path.join(work, "stderr"))
        print(f"dry run of {tensors} tensors: {seconds:.2f} s of CPU, peak {peak / MIB:.0f} MiB")
        checks.check(f"dry run of {tensors}: exit code", code == 0, f"{code}: {stderr.strip()}")
        return seconds


def check_dry_run(checks, options):
    few, many = PLANNED
    # The smaller run is short, so its cost is the least of three measurements.
    least = min(plan(checks, options, few) for _ in range(3))
    most = plan(checks, options, many)
    growth = most / least / (many / few)
    checks.check("dry run: a tensor costs the same among many", growth < GROWTH, f"{growth:.2f} times as much")
    checks.check("dry run: CPU", most < CPU_SECONDS, f"{most:.2f} s")


def main():
    options = jobs.choice(harness.argument_parser(__doc__.splitlines()[0])).parse_args()
    checks = harness.Checks()
    if options.only is None:
        check_dry_run(checks, options)
    check_jobs(checks, options, "many", tensors=50000)
    check_jobs(checks, options, "giant")
    checks.finish()


if __name__ == "__main__":
    main()
