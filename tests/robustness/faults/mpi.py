#!/usr/bin/env python3
"""Tests --mpi: any number of ranks gives the tree and the result of one process, also if a rank fails or is killed.

Skipped (exit code 77) without mpirun or a build with MPI."""

import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import disk_model
import harness
import jobs
import turns

COMMAND = "quantize SRC -o DST --max-shard-size 200kB"
SMALL = {"8MB": "300kB", "4MB": "200kB"}
# Rows of the table of jobs: each operation, and each way in which an output reaches its file.
ROWS = ("quantize int8-channel", "quantize int4", "quantize nvfp4", "quantize mixed", "quantize mxfp4, gpt-oss", "convert bf16 from gptq",
        "convert nvfp4 from fp8-block", "convert tp of BF16", "convert mla-absorbed, requantized", "convert fastertransformer",
        "convert archive", "convert safetensors")
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none"]
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "NO_COLOR": "1"}


def starting(n, commands):
    """Returns the line that starts n ranks, each with its command, and further ones with the last command. The ranks choose,
    because mpirun of Open MPI 5.0.7 may fail on the colons of such a line."""
    cases = "".join(f"{rank}) exec {shlex.join(command)};; " for rank, command in enumerate(commands[:-1]))
    return [*MPIRUN, "-n", str(n), "sh", "-c", f"case $OMPI_COMM_WORLD_RANK in {cases}*) exec {shlex.join(commands[-1])};; esac"]


class Ranks:
    def __init__(self, tool):
        self.tool, self.environment = tool, dict(os.environ, **ROOT)

    def run_each(self, before):
        """Starts one rank for each item of `before`, the words before its command."""
        commands = [[*words, self.tool, *map(str, args), "--mpi", "--threads", "1"] for words, args in before]
        done = subprocess.run(starting(len(commands), commands), env=self.environment, capture_output=True, text=True, timeout=600)
        return done.returncode, done.stdout, done.stderr

    def line(self, n, args, *others):
        """Returns the line of n ranks with these arguments, followed by one for each of the others."""
        commands = [[self.tool, *map(str, words), "--mpi", "--threads", "1"] for words in (*[args] * n, *others)]
        return starting(len(commands), commands)

    def run(self, n, args, *others):
        done = subprocess.run(self.line(n, args, *others), env=self.environment, capture_output=True, text=True, timeout=600)
        return done.returncode, done.stdout, done.stderr


def check_same(checks, what, ran, reference, target):
    code, _, stderr = ran
    if checks.check(f"{what}: runs", code == 0, f"exit {code}: {stderr[-600:]}"):
        checks.same_tree(f"{what}: the tree of one process", reference, target)


def check_numbers(checks, ranks, source, reference, work):
    elsewhere = 0
    for n in 1, 3, 8:
        target, told = work / f"by-{n}", work / f"by-{n}.json"
        args = [*jobs.words(COMMAND, source, target), "--quiet", "--json", told]
        check_same(checks, f"{n} ranks", ranks.run(n, args), reference, target)
        said = json.loads(told.read_text())
        checks.check(f"{n} ranks: each has its part", said["ranks"] == n and said["threads"] == n and (n > 1 or said["files_elsewhere"] == 0), said)
        elsewhere += said["files_elsewhere"]
    checks.check("other ranks make files", elsewhere > 0)
    path = next(target.glob("*.safetensors"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    code, out, stderr = ranks.run(3, jobs.words(COMMAND, source, target))
    checks.check("a damaged file is written again", code == 0 and "written again" in out and path.read_bytes() == whole, out + stderr)
    for path in sorted(target.glob("*.safetensors"))[::2]:
        path.unlink()
    check_same(checks, "missing files are written again", ranks.run(4, jobs.words(COMMAND, source, target)), reference, target)
    code, out, stderr = ranks.run(2, jobs.words(COMMAND, source, target))
    checks.check("a finished output is verified", code == 0 and "complete already" in out, out + stderr)


def check_table(checks, ranks, options, work):
    rows = [job for job in jobs.JOBS if job.name in ROWS]
    checks.check("the rows are there", len(rows) == len(ROWS), [job.name for job in rows])
    rows = turns.part(rows, 3)
    for row, source in jobs.with_sources(options, rows, work / "source", lambda row: ("deepseek-v3", "tiny"), SMALL):
        command = jobs.shortened(row.command, SMALL)
        checks.ends(f"{row.name}: one process", options.tessera, [*jobs.words(command, source, work / "alone"), "--quiet"])
        ran = ranks.run(3, [*jobs.words(command, source, work / "three"), "--quiet"])
        check_same(checks, row.name, ran, work / "alone", work / "three")
        shutil.rmtree(work / "alone", ignore_errors=True)
        shutil.rmtree(work / "three", ignore_errors=True)


def check_folders(checks, ranks, options, work):
    """Tests an output of several folders that need the same bytes of the source, also resumed, and with direct I/O."""
    source = harness.make_checkpoint(options.make, "deepseek-v3", work / "source", scale="small")
    command = ["convert", source, "-o", work / "tp", "--to", "tp", "--tp", "4", "--max-shard-size", "8MB", "--quiet"]
    harness.run(ranks.tool, [*map(str, command[:3]), work / "alone", *command[4:]])
    for n in 2, 5:
        told = work / "told.json"
        check_same(checks, f"{n} ranks, tp", ranks.run(n, [*command, "--io", "direct", "--json", told]), work / "alone", work / "tp")
        said = json.loads(told.read_text())
        checks.check(f"{n} ranks, tp: bytes read", 1 <= said["bytes_read"] / said["bytes_in"] <= 4, said)
        for path in sorted((work / "tp").rglob("*.safetensors"))[::3]:
            path.unlink()
        check_same(checks, f"{n} ranks, tp: resumed", ranks.run(n, command), work / "alone", work / "tp")
        shutil.rmtree(work / "tp")
    shutil.rmtree(source)
    shutil.rmtree(work / "alone")


def children(pid):
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in task.read_text().split()]
    return found


def lives(pid):
    """Returns True if a process has not ended. A zombie has ended and waits for its parent."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(process):
    """Returns the exit code of mpirun; None if ranks are still alive. mpirun of Open MPI 4.1 may hang at its end
    (PMIx_server_finalize) when a rank is killed while it starts. Its ranks have then ended and released their resources."""
    end = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    if process.poll() is not None:
        return process.returncode
    gone = not any(map(lives, children(process.pid)))
    process.kill()
    process.wait()
    return 1 if gone else None


def kill_one(ranks, line, number, moment):
    """Starts ranks, kills one of the first three at a moment, and waits. Returns mpirun's exit code, and true if a rank was
    hit."""
    process = subprocess.Popen(line, env=ranks.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + moment
    while process.poll() is None and len(children(process.pid)) < 3:
        time.sleep(0.001)
    time.sleep(max(0, end - time.monotonic()))
    try:
        os.kill(sorted(children(process.pid))[number % 3], signal.SIGKILL)
        hit = True
    except (IndexError, ProcessLookupError, FileNotFoundError):  # it has ended
        hit = False
    return wait_for(process), hit


def check_kills(checks, ranks, source, reference, work, kills, rng):
    """A rank that dies ends the job. The same command resumes with any number of ranks and without --mpi."""
    args = [*jobs.words(COMMAND, source, work / "killed"), "--quiet"]
    begin, landed = time.monotonic(), 0
    ranks.run(3, args)
    duration = time.monotonic() - begin
    for number in range(kills):
        shutil.rmtree(work / "killed", ignore_errors=True)
        code, hit = kill_one(ranks, ranks.line(3, args), number, (0.2 + 0.8 * (number + rng.random()) / kills) * duration)
        landed += hit
        checks.check(f"kill {number}: the ranks end", code is not None)
        checks.check(f"kill {number}: nothing unfinished looks finished", code == 0 or not (work / "killed/config.json").exists() or
                     harness.tree_difference(reference, work / "killed") is None, code)
        carry_on = (lambda: ranks.run(3, args), lambda: ranks.run(2, args), lambda: harness.run(ranks.tool, [*map(str, args)]))[number // 3 % 3]
        check_same(checks, f"kill {number} of rank {number % 3}", carry_on(), reference, work / "killed")
        left = list((work / "killed/.tessera").glob("journal-rank-*"))
        checks.check(f"kill {number}: the journals of ranks are gone", not left, left)
    checks.check("some kills found ranks at work", 3 * landed >= kills, landed)


def result(path):
    """Returns a result without the members that differ between runs."""
    told = json.loads(path.read_text())
    told.pop("seconds", None)
    for tensor in told["tensors"]:
        tensor.pop("seconds", None)
    return told


def check_comparing(checks, ranks, source, made, work, kills, rng):
    """verify and compare-schemes have the exit code, the text and the JSON of one process, and no result if a rank has died."""
    for name, args in ("verify", ["verify", made, "--against", source]), ("verify, in vain", ["verify", source, "--against", made]), \
            ("compare-schemes", ["compare-schemes", source]):
        alone, told = work / "alone.json", work / "together.json"
        expected = harness.run(ranks.tool, [*map(str, args), "--json", alone])
        for n in (1, 3) if name == "verify" else (3,):
            ran = ranks.run(n, [*args, "--json", told])
            if checks.check(f"{name}, {n} ranks: exit code", ran[0] == expected[0], f"{ran[0]}: {ran[2][-600:]}"):
                checks.check(f"{name}, {n} ranks: the result", result(told) == result(alone))
                without_time = [[line for line in out.splitlines() if " read in " not in line] for out in (ran[1], expected[1])]
                checks.check(f"{name}, {n} ranks: said once", without_time[0] == without_time[1], ran[1])
                told.unlink()
    begin, landed = time.monotonic(), 0
    ranks.run(3, args)
    duration = time.monotonic() - begin
    for number in range(10 * kills):  # more if none finds ranks at work
        if number >= kills and landed > 0:
            break
        code, hit = kill_one(ranks, ranks.line(3, [*args, "--json", told]), number, (0.3 + 0.7 * rng.random()) * duration)
        landed += hit and code != 0
        checks.check(f"{name}, kill {number}: no result", code is not None and (code != 0) and not told.exists() or
                     result(told) == result(alone), code)
    checks.check(f"{name}: a kill found ranks at work", landed > 0)


def check_durable(checks, ranks, source, reference, work, shim):
    """Every rank syncs a file before it renames it to its final name."""
    records, target = [work / f"record-{rank}" for rank in range(3)], work / "traced"
    args = [*jobs.words(COMMAND, source, target), "--quiet", "--io", "direct"]
    code, _, stderr = ranks.run_each([(["env", f"LD_PRELOAD={shim}", f"FAULTS_RECORD={record}"], args) for record in records])
    checks.check("traced: runs", code == 0, stderr)
    files = 0
    for record in records:
        calls = disk_model.read_record(record, str(target))
        for end, call in enumerate(calls):
            if call.what == "rename" and os.path.basename(call.path)[:1].isdigit() and call.to.endswith(".safetensors"):
                files += 1
                of_part = [one.what for one in calls[:end] if one.path == call.path]
                checks.check(f"{call.path}: written, then synced", "write" in of_part and of_part[-1] == "fsync", of_part)
    checks.check("traced: files", files > 5, files)
    check_same(checks, "traced", (0, "", ""), reference, work / "traced")


def check_refusals(checks, ranks, source, work):
    args = jobs.words(COMMAND, source, work / "refused")
    code, _, stderr = ranks.run(2, args, [*args, "--scale-fmt", "ue8m0"])
    checks.check("ranks with different plans", code == 3 and "a different plan" in stderr and "rank 2" in stderr, f"exit {code}: {stderr}")
    code, _, stderr = ranks.run(1, args, [word if word != str(source) else str(work / "nowhere") for word in map(str, args)])
    checks.check("a rank without the source", code == 3 and "rank 1" in stderr and "nowhere" in stderr, f"exit {code}: {stderr}")
    checks.check("nothing was begun", not (work / "refused").exists())
    done = subprocess.run([*MPIRUN, "-n", "2", ranks.tool, *map(str, args)], env=ranks.environment, capture_output=True, text=True)
    checks.check("mpirun without --mpi", done.returncode == 2 and "--mpi" in done.stderr, done.stderr)
    checks.check("--mpi cannot be combined with --shard", harness.run(ranks.tool, [*args, "--mpi", "--shard", "0/2"])[0] == 2)
    code, out, _ = ranks.run(2, [*args, "--dry-run"])
    checks.check("a dry run says it once", code == 0 and out.count("memory: ") == 1, out)
    metadata, tensors = harness.read_safetensors(next(source.glob("*.safetensors")))
    name = next(name for name, (dtype, shape, _) in tensors.items() if dtype == "BF16" and "gate_proj" in name)
    dtype, shape, data = tensors[name]
    tensors[name] = dtype, shape, b"\xc0\x7f" * (len(data) // 2)
    bad = work / "bad"
    shutil.copytree(source, bad)
    harness.write_safetensors(bad / next(source.glob("*.safetensors")).name, tensors, metadata)
    for args in jobs.words(COMMAND, bad, work / "refused"), ["compare-schemes", bad]:
        code, _, stderr = ranks.run(3, args)
        checks.check(f"{args[0]}: NaN", code == 3 and name in stderr and "NaN" in stderr, f"exit {code}: {stderr}")
    args = ["verify", source, "--against", source]
    code, _, stderr = ranks.run(2, args, ["verify", bad, "--against", source])
    checks.check("ranks that see different files", code == 3 and "a different plan" in stderr and "rank 2" in stderr, f"exit {code}: {stderr}")
    code, _, stderr = ranks.run(1, args, ["verify", work / "nowhere", "--against", source], ["verify", work / "gone", "--against", source])
    checks.check("two ranks without their files", code == 3 and all(word in stderr for word in ("rank 1", "nowhere", "rank 2", "gone")),
                 f"exit {code}: {stderr}")


def check_failures(checks, ranks, source, reference, work, shim):
    """A rank that fails ends the job with its message and exit code. The same command resumes."""
    args = [*jobs.words(COMMAND, source, work / "failed"), "--quiet"]
    shimmed = ["env", f"LD_PRELOAD={shim}"]
    for what, plan, word, code in ("no thread", "thread 2+ 11", "cannot start", 4), \
            ("no journal", "pwrite 1+ 28 journal-rank-1", "journal-rank-1", 4), \
            ("no space", "pwrite 1+ 28 .part", ".part", 4):
        ran = ranks.run_each([([], args), ([*shimmed, f"FAULTS_PLAN={plan}"], args)])
        checks.check(f"{what} in rank 1", ran[0] == code and "rank 1" in ran[2] and word in ran[2], f"exit {ran[0]}: {ran[2]}")
        checks.check(f"{what} in rank 1: no config.json", not (work / "failed/config.json").exists())
    ran = ranks.run_each([([*shimmed, "FAULTS_PLAN=fsync 1+ 5 .part"], args), ([], args)])
    checks.check("rank 0 fails", ran[0] == 4 and "rank 0" not in ran[2] and "cannot sync" in ran[2], f"exit {ran[0]}: {ran[2]}")
    check_same(checks, "after failures", ranks.run(2, args), reference, work / "failed")
    command = ["verify", work / "failed", "--against", source]
    ran = ranks.run_each([([], command), ([*shimmed, "FAULTS_PLAN=thread 1+ 11"], command)])
    checks.check("verify: no thread in rank 1", ran[0] == 4 and "rank 1" in ran[2], f"exit {ran[0]}: {ran[2]}")


def main():
    parser = harness.argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=9 if turns.whole() else 6, help="in all (6; 9 with TESSERA_LONG)")
    options = parser.parse_args()
    print(turns.told())
    tool = os.path.abspath(options.tessera)
    if shutil.which("mpirun") is None or not os.path.exists(os.path.join(os.path.dirname(tool), "tessera_mpi.so")):
        print("skipped: no mpirun here, or no tessera_mpi.so beside the tool: it is built where MPI is (Debian: libopenmpi-dev, openmpi-bin)")
        sys.exit(77)
    ranks = Ranks(tool)
    with harness.checks_in(options.directory) as (checks, work):
        source = pathlib.Path(harness.make_checkpoint(options.make, "deepseek-v3", work / "tiny", scale="tiny"))
        harness.run(tool, [*jobs.words(COMMAND, source, work / "one"), "--quiet"])
        check_numbers(checks, ranks, source, work / "one", work)
        check_refusals(checks, ranks, source, work)
        check_durable(checks, ranks, source, work / "one", work, os.path.abspath(harness.shim_path(options)))
        check_folders(checks, ranks, options, work)
        check_failures(checks, ranks, source, work / "one", work, os.path.abspath(harness.shim_path(options)))
        check_comparing(checks, ranks, source, work / "one", work, (options.kills + 2) // 3, random.Random(2))
        check_kills(checks, ranks, source, work / "one", work, options.kills, random.Random(1))
        check_table(checks, ranks, options, work)


if __name__ == "__main__":
    main()
