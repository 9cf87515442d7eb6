#!/usr/bin/env python3
"""Tests kill -9 at any moment: the same command, repeated, completes the same tree as an undisturbed run.

Each job runs with one thread and buffered I/O, and with two threads and direct I/O. A first run is timed as the
reference. Other runs are killed at moments spread over that time; every third one is killed again while it resumes.
The tree, with the journal, must equal the reference. Files under final names must be final, and a config.json must be
complete with its files.

--sparse GB quantizes part of DeepSeek-V3 instead, in files of holes with a few values in each tensor, to int4: a quarter of
the bytes are written. One run is killed again and again while it writes, --kills times in all. Its manifest must equal
that of an undisturbed run. Both outputs are removed.
"""

import collections
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import deepseek_v3
import harness
import jobs
import turns

# Threads, and how bytes pass: the trees are the same.
THREADS = {1: "buffered", 2: "direct"}
# Only this test has the file that this job reads. Experts without a matrix of products are rounded to nearest.
GPTQ = jobs.Job("quantize int4, GPTQ", None, "quantize SRC -o DST --scheme int4-weight-only --method gptq --importance HESSIANS --max-shard-size 8MB")
SOURCE = ("deepseek-v3", "half")
# --sparse: bytes that stay free on the disk, and the command.
SPARE = 20_000_000_000
INT4 = "quantize SRC -o DST --scheme int4-weight-only --include *.self_attn.*_proj*.weight --max-shard-size 1GB"


def command_line(job, source, destination, threads):
    return jobs.words(job.command, source, destination) + ["--quiet", "--threads", str(threads), "--io", THREADS[threads]]


def stage(directory, reference):
    """Describes the state of a killed run."""
    if not os.path.isdir(directory):
        return "before the directory"
    if os.path.exists(os.path.join(directory, "config.json")):
        return "after config.json"
    shards = [name for name in os.listdir(reference) if name.endswith((".safetensors", ".safetensors.zst"))]
    finished = sum(os.path.exists(os.path.join(directory, name)) for name in shards)
    return {0: "before the first shard", len(shards): "after the last shard"}.get(finished, "between shards")


def looks_finished(directory, reference):
    """Describes a file with a final name that a killed run left although it is incomplete; or None."""
    whole = os.path.exists(os.path.join(directory, "config.json"))
    for name in sorted(os.listdir(reference)):
        path = os.path.join(directory, name)
        if whole and not os.path.exists(path):
            return f"config.json is there, {name} is not"
        if os.path.isfile(path) and not harness.same_file(path, os.path.join(reference, name)):
            return f"{name} is there, but not as it will be"
    return None


def undisturbed(checks, options, job, threads, source, reference):
    """Makes the reference. Returns its duration; None if it failed."""
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
            if checks.ends(f"{what}: rerun", options.tessera, args):
                checks.same_tree(f"{what}: same tree", reference, target)


def check_job(checks, options, job, source, work, moments, rng, stages):
    """Kills `moments` runs with each number of threads."""
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


def write_hessians(options, path, work):
    """Calibrates a model of the same shapes, whose weights are as training leaves them."""
    kind, scale = SOURCE
    model, ids = str(work / "calibrated"), work / "ids.txt"
    harness.make_checkpoint(options.make, kind, model, scale=scale, weights="ordinary")
    ids.write_text(" ".join(str(7 * i % 256) for i in range(512)))
    harness.succeed(options.tessera, ["calibrate", model, "--tokens", ids, "--hessians", "--device", "cpu", "-o", path])
    shutil.rmtree(model)


# ---- a large model of holes ----


def sparse_shapes(size):
    """Returns names and shapes of the first layers of DeepSeek-V3, up to `size` bytes."""
    found, left = {}, size
    for name, shape in deepseek_v3.all_shapes().items():
        left -= 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        if left < 0:
            break
        found[name] = shape
    return found


def fill_in(path, rng, pool):
    """Writes values to three positions of each tensor of a sparse file, so that no two tensors are equal."""
    start, entries, _ = harness.read_header(path)
    with open(path, "r+b") as file:
        for entry in entries.values():
            begin, end = (start + offset for offset in entry["data_offsets"])
            for _ in range(3):
                at, size = begin + rng.randrange(end - begin) // 4 * 4, rng.randrange(4, 8192) // 4 * 4
                file.seek(at)
                file.write(pool[rng.randrange(1000) * 4:][:min(size, end - at)])


def make_sparse(directory, size, rng):
    """Makes a sparse model, and returns the bytes of its tensors. The values are small numbers in BF16 and in F32."""
    total = deepseek_v3.make(directory, sparse_shapes(size))
    pool = b"".join(bytes([rng.randrange(256), rng.choice((0x3B, 0x3C, 0xBB, 0xBC))]) for _ in range(8192))
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        fill_in(path, rng, pool)
    return total


def written(process):
    """Returns the bytes that the process has written, or None if it has ended."""
    try:
        with open(f"/proc/{process.pid}/io") as file:
            return int(dict(line.split(": ") for line in file)["write_bytes"])
    except (ProcessLookupError, FileNotFoundError, KeyError):
        return None


def kill_at(args, directory, most_bytes, delay):
    """Kills a program after it has written so many bytes, and a delay. Returns None if it was still running, otherwise its
    exit code."""
    process = subprocess.Popen([*map(str, args)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while (now := written(process)) is not None and now < most_bytes and process.poll() is None:
        if shutil.disk_usage(directory).free < SPARE / 2:
            process.kill()
            raise SystemExit(f"{directory}: the disk is nearly full")
        time.sleep(0.01)
    time.sleep(delay)
    process.kill()
    code = process.wait()
    return None if code < 0 else code


def manifest_of(directory):
    return (pathlib.Path(directory) / harness.MANIFEST).read_bytes()


def kill_sparse(checks, options, rng, work):
    source, target = os.path.join(work, "source"), os.path.join(work, "out")
    total = make_sparse(source, int(options.sparse * 1e9), rng)
    free = shutil.disk_usage(work).free
    if free < total * 0.27 + SPARE:
        raise SystemExit(f"{work}: {free / 1e9:.0f} GB are free; {options.sparse} GB need {(total * 0.27 + SPARE) / 1e9:.0f}")
    args = jobs.words(INT4, source, target) + ["--quiet", "--threads", "2"]
    began = time.monotonic()
    code, _, stderr = harness.run(options.tessera, args, timeout=36000)
    if not checks.check("undisturbed", code == 0, f"exit {code}: {stderr.strip()}"):
        return
    took, expected = time.monotonic() - began, manifest_of(target)
    size = sum(path.stat().st_size for path in pathlib.Path(target).glob("*.safetensors"))
    print(f"{total / 1e9:.1f} GB, {size / 1e9:.1f} GB written in {took:.0f} s; "
          f"the source takes {sum(path.stat().st_blocks * 512 for path in pathlib.Path(source).iterdir()) / 1e6:.0f} MB", flush=True)
    shutil.rmtree(target)
    killed, began = 0, time.monotonic()
    for number in range(options.kills):
        # Every fourth one early, while finished files are being compared; the others while the next files are written.
        most = 0 if number % 4 == 3 else rng.random() * 1.6 * size / options.kills
        code = kill_at([options.tessera, *args], work, most, rng.random() * 2)
        killed += code is None
        checks.check(f"kill {number + 1}: no config.json", code is not None or not os.path.exists(os.path.join(target, "config.json")))
        print(f"kill {number + 1} after {most / 1e9:.2f} GB: {len(list(pathlib.Path(target).glob('*.safetensors')))} files complete"
              f"{'' if code is None else f', exit {code}'}", flush=True)
    code, _, stderr = harness.run(options.tessera, args, timeout=36000)
    checks.check("the last run", code == 0, f"exit {code}: {stderr.strip()}")
    checks.check("the manifest of the undisturbed run", manifest_of(target) == expected)
    code, _, stderr = harness.run(options.tessera, ["verify", "--manifest", target, "--quiet"], timeout=36000)
    checks.check("verify --manifest", code == 0, f"exit {code}: {stderr.strip()}")
    checks.check("most kills found the tool at work", 2 * killed > options.kills, killed)
    print(f"{killed} of {options.kills} runs killed, {time.monotonic() - began:.0f} s")


def main():
    parser = jobs.choice(harness.argument_parser(__doc__.splitlines()[0]))
    parser.add_argument("--kills", type=int, default=100 if turns.whole() else 36,
                        help="in all, and at least one of each job and number of threads (36; 100 with TESSERA_LONG)")
    parser.add_argument("--seed", type=int, default=turns.turn(), help="of the moments (TESSERA_TURN)")
    parser.add_argument("--sparse", type=float, metavar="GB", help="one large model of holes instead of all jobs (200)")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    checks = harness.Checks()
    if options.sparse:
        with harness.temporary_directory(options.directory) as work:
            kill_sparse(checks, options, rng, work)
        checks.finish()
    chosen = jobs.chosen(options, 3, [GPTQ])
    print(f"{len(chosen)} jobs, seed {options.seed}; {turns.told()}")
    pairs = len(chosen) * len(THREADS)
    moments = (max(1, options.kills * (pair + 1) // pairs - options.kills * pair // pairs) for pair in range(pairs))
    stages = collections.Counter()
    with harness.temporary_directory(options.directory) as work:
        for job, source in jobs.with_sources(options, chosen, work / "source", lambda job: SOURCE):
            if job is GPTQ:
                write_hessians(options, f"{source}-hessians.safetensors", work)
            check_job(checks, options, job, source, work, moments, rng, stages)
    print("killed " + ", ".join(f"{stage}: {count}" for stage, count in sorted(stages.items())))
    landed = sum(stages.values()) - stages["ended before it"]
    checks.check("most kills found the tool at work", 2 * landed > sum(stages.values()), f"{landed} of them")
    checks.finish()


if __name__ == "__main__":
    main()
