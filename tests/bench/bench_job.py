"""Measures whole jobs compared with fio and cp. The source is not in the page cache, and the time includes writing to the disk.

With direct I/O, fio reads and writes the same bytes directly and at once. In the page cache, cp copies the input
(quantize) or the output (convert), with an fsync of each file. cp writes as much as it reads, which a job does not.
Therefore fio also runs through the page cache, with requests of the job's size.

All alternate in a changing order, and medians are compared. CPU time is printed per gigabyte of input (quantize) or
output (convert). With direct I/O it has a limit. If two processors share a core, the limit for two threads is raised
by the slowdown of memcpy on both. bench_kernels measures the kernels alone. The formula in NumPy on one core gives a
scale."""

import argparse
import collections
import ctypes
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import machine

TURNS = 3
BLOCK = "4M"
# With each way of I/O a job may take so much of its rival's time: of fio's, or of cp's with its fsync.
LIMITS = {"direct": 1 / 0.9, "buffered": 1.0}
# CPU seconds for a GB of input or output, one thread, past the page cache.
CPU_LIMITS = {"quantize": 0.35, "convert": 0.25}

Turn = collections.namedtuple("Turn", "wall cpu cached")  # seconds; share of the source that was in the page cache


# ---- files ----

def files_below(folder):
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


def size_of(folder):
    return sum(path.stat().st_size for path in files_below(folder))


def sync_files(folder):
    """Syncs each file and folder that was written."""
    for path in [*files_below(folder), *(p for p in Path(folder).rglob("*") if p.is_dir()), Path(folder)]:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def cached_bytes(path):
    """Returns the number of bytes of a file in the page cache."""
    size, page = path.stat().st_size, mmap.PAGESIZE
    if size == 0:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    pages = (size + page - 1) // page
    with path.open("rb") as file:
        at = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0))
    held = (ctypes.c_ubyte * pages)()
    libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), held)
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return sum(byte & 1 for byte in held) * page


def make_cold(folder):
    """Drops a folder's files from the page cache. Returns the share of bytes that stays in it."""
    os.sync()
    for path in files_below(folder):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return sum(map(cached_bytes, files_below(folder))) / max(1, size_of(folder))


# ---- the machine ----

def first_touch():
    """Returns the seconds per GB of memory that this process touches for the first time. Above about 0.2 the host must find
    the memory first. Then everything that needs new pages waits, the page cache included."""
    size = 1 << 28
    began = time.perf_counter()
    mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()
    return (time.perf_counter() - began) / size * 1e9


def copy_cpu(threads):
    """Returns the CPU seconds of one of so many threads that copy the same number of bytes at the same time."""
    size, spent, ready = 32 << 20, [], threading.Barrier(threads)
    libc = ctypes.CDLL(None)

    def copy():
        source, target = ctypes.create_string_buffer(b"x" * size, size), ctypes.create_string_buffer(size)
        ready.wait()
        began = time.thread_time()
        for _ in range(8):
            libc.memcpy(target, source, ctypes.c_size_t(size))
        spent.append(time.thread_time() - began)

    workers = [threading.Thread(target=copy) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return statistics.mean(spent)


def sibling_ratio():
    """Returns the ratio of CPU times of a memcpy in two parallel threads and in one: up to 2 for hyperthreads of a core."""
    turns = [(copy_cpu(1), copy_cpu(2)) for _ in range(9)]
    return max(1.0, min(two for _, two in turns) / min(one for one, _ in turns))


# ---- one turn of each ----

def run(command):
    """Returns (wall seconds, CPU seconds) of a command and its children."""
    began = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {process.returncode}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime


class Job:
    """Runs tessera with a number of threads and one method of I/O."""

    def __init__(self, command, source, threads, io):
        self.command = [*command, "--threads", threads, "--io", io]
        self.source, self.io, self.threads = source, io, threads
        self.name = f"tessera, {threads} thread{'s' if threads > 1 else ''}, --io {io}"

    def turn(self, scratch):
        cached = make_cold(self.source)
        wall, cpu = run([*self.command, "-o", scratch])
        return Turn(wall, cpu, cached)


class Copy:
    """Runs cp of a folder, and syncs each file."""

    name = "cp and fsync"

    def __init__(self, folder):
        self.source = folder

    def turn(self, scratch):
        cached = make_cold(self.source)
        began = time.perf_counter()
        _, cpu = run(["cp", "-r", self.source, scratch])
        sync_files(scratch)
        return Turn(time.perf_counter() - began, cpu, cached)


class Fio:
    """Runs fio, which reads the source and writes as many bytes as the job's output has at the same time. It bypasses the
    page cache if possible, and syncs the output."""

    def __init__(self, source, written):
        self.source, self.written = source, written
        self.engine, self.direct, self.block = "psync", 0, "256K"
        self.name = "fio, psync, buffered"

    def find_way(self, scratch):
        """Returns the first of these methods of I/O that works with this file system and kernel."""
        self.block = BLOCK
        for self.engine, self.direct in ("io_uring", 1), ("libaio", 1), ("psync", 1), ("psync", 0):
            if subprocess.run(self.words(scratch, [scratch / "tried"], 1 << 22), capture_output=True).returncode == 0:
                break
        shutil.rmtree(scratch)
        self.name = f"fio, {self.engine}, {'O_DIRECT' if self.direct else 'buffered'}"

    def words(self, scratch, sources, written):
        scratch.mkdir(exist_ok=True)
        common = ["fio", "--output-format=json", f"--ioengine={self.engine}", f"--direct={self.direct}", f"--bs={self.block}", "--iodepth=8",
                  "--thread"]
        reads = ["--name=read", "--rw=read", f"--filename={':'.join(map(str, sources))}", "--file_service_type=sequential"]
        writes = ["--name=write", "--rw=write", f"--filename={scratch / 'written'}", f"--size={written}", "--end_fsync=1"]
        return [*common, *(reads if sources[0].exists() else []), *writes]

    def turn(self, scratch):
        cached = make_cold(self.source)
        large = [path for path in files_below(self.source) if path.stat().st_size > 1 << 20]
        process = subprocess.run(self.words(scratch, large, self.written), capture_output=True, text=True, check=True)
        told = json.loads(process.stdout[process.stdout.index("{"):])
        moved = sum(job["read"]["io_bytes"] + job["write"]["io_bytes"] for job in told["jobs"])
        expected = sum(path.stat().st_size for path in large) + self.written
        if abs(moved / expected - 1) > 0.01:
            raise SystemExit(f"fio moved {moved} bytes in place of {expected}")
        # Without fio's own start: the time of the job that took longer, its sync included.
        wall = max(job["job_runtime"] for job in told["jobs"]) / 1000
        cpu = sum((job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000 for job in told["jobs"])
        return Turn(wall, cpu, cached)


# ---- all turns ----

def take_turns(racers, scratch):
    """Runs the competitors in turns with a changing order. Returns the times of each."""
    turns = {racer.name: [] for racer in racers}
    for number in range(TURNS):
        for racer in racers[number % len(racers):] + racers[:number % len(racers)]:
            turns[racer.name].append(racer.turn(scratch))
            shutil.rmtree(scratch)
    return turns


def median(turns, what):
    return statistics.median(getattr(turn, what) for turn in turns)


def held_cpu(job, turns, gigabytes, limit, siblings):
    """Prints a job's CPU time and its limit. `siblings` is the ratio of sibling_ratio."""
    most = limit * (siblings if job.threads > 1 else 1)
    took = median(turns, "cpu") / gigabytes
    print(f"{job.name}: {took:.2f} s of CPU time a GB (at most {most:.2f}){'' if took <= most else '  MISSED'}")
    return took <= most


def race(jobs, rivals, others, gigabytes, cpu_limit, scratch):
    """Prints all times and ratios. Returns true if all limits are met."""
    racers, good, siblings = [*jobs, *rivals.values(), *others], True, sibling_ratio()
    print(f"memcpy: two threads take {siblings:.2f} times one's CPU time for the same bytes each; memory at first touch: {first_touch():.2f} s a GB")
    turns = take_turns(racers, scratch)
    print(f"{'':<38} {'wall':>8} {'spread':>7} {'CPU a GB':>9}  cached before")
    for racer in racers:
        walls = [turn.wall for turn in turns[racer.name]]
        print(f"{racer.name:<38} {median(turns[racer.name], 'wall'):6.2f} s {max(walls) / min(walls):7.2f} "
              f"{median(turns[racer.name], 'cpu') / gigabytes:7.2f} s  {100 * max(turn.cached for turn in turns[racer.name]):.0f} %")
    for job in jobs:
        rival = rivals[job.io]
        ratio = median(turns[job.name], "wall") / median(turns[rival.name], "wall")
        held = ratio <= LIMITS[job.io]
        good = good and held
        print(f"{job.name}, against {rival.name}: {ratio:.2f} of its time, {1 / ratio:.2f} of its speed (at most {LIMITS[job.io]:.2f} of its time)"
              f"{'' if held else '  MISSED'}")
        if job.io == "direct":
            good = held_cpu(job, turns[job.name], gigabytes, cpu_limit, siblings) and good
    return good


# ---- the jobs ----

def numpy_rate():
    """Returns the bytes of BF16 per second of the formula in NumPy, for one weight [4096, 4096]."""
    import ml_dtypes
    import numpy as np
    rows = cols = 4096
    x = np.random.default_rng(1).standard_normal((rows, cols), dtype=np.float32).astype(ml_dtypes.bfloat16)
    began = time.perf_counter()
    blocks = x.astype(np.float32).reshape(rows // 128, 128, cols // 128, 128)
    scale = np.abs(blocks).max(axis=(1, 3)) / np.float32(448)
    quotient = np.clip(blocks / scale[:, None, :, None], -448, 448)
    quotient.astype(ml_dtypes.float8_e4m3fn)
    return x.nbytes / (time.perf_counter() - began)


def bench(args, command, source, copied):
    """Compares a job whose output is like the folder `made` with its peers. `copied` is the folder that cp copies: source or
    output."""
    scratch, made = args.dir / "scratch", args.dir / "made"
    run([*command, "-o", made])
    written, gigabytes = size_of(made), size_of(source if copied == "source" else made) / 1e9
    print(f"{size_of(source) / 1e9:.2f} GB read, {written / 1e9:.2f} GB written; CPU for a GB of {'input' if copied == 'source' else 'output'}")
    fio = Fio(source, written)
    fio.find_way(args.dir / "tried")
    jobs = [Job(command, source, threads, io) for io in (("direct", "buffered") if fio.direct else ("buffered",)) for threads in (1, 2)]
    rivals = {"direct": fio, "buffered": Copy(source if copied == "source" else made)}
    others = [Fio(source, written)] if fio.direct else []
    return race(jobs, rivals, others, gigabytes, CPU_LIMITS[args.job], scratch)


def bench_quantize(args, source):
    good = bench(args, [args.tessera, "quantize", source, "--quiet"], source, "source")
    print(f"NumPy, one core, arithmetic only: {numpy_rate() / 1e9:.3f} GB/s")
    return good


def bench_convert(args, source):
    fp8 = args.dir / "fp8"
    run([args.tessera, "quantize", source, "-o", fp8, "--quiet"])
    shutil.rmtree(source)
    return bench(args, [args.tessera, "convert", fp8, "--to", "bf16", "--quiet"], fp8, "output")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=["quantize", "convert"])
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--make", required=True)
    parser.add_argument("--dir", required=True, type=Path)
    parser.add_argument("--bytes", default="2G")
    args = parser.parse_args()
    print(machine.describe(args.dir), flush=True)
    source = args.dir / "source"
    subprocess.run([args.make, "bench", "--bytes", args.bytes, "-o", source], check=True)
    return 0 if {"quantize": bench_quantize, "convert": bench_convert}[args.job](args, source) else 1


if __name__ == "__main__":
    sys.exit(main())
