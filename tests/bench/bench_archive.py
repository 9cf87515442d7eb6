#!/usr/bin/env python3
"""Compares archives with the zstd command at the same level: size, time to pack and restore, and time of a job that reads one.

All files are in the page cache.

The commands take turns; what they write is deleted, and the disk synced, before the next turn. Medians are compared."""

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

TURNS = 3
LEVEL = 3
SIZE_LIMIT = 1.005  # of zstd's, without planes: cutting into frames must cost next to nothing
TIME_LIMIT = 1.2  # of zstd's: the engine also hashes, syncs and renames


def run(*command):
    subprocess.run([str(word) for word in command], check=True)


def shards(directory):
    return sorted(f for f in directory.iterdir() if f.name.endswith((".safetensors", ".safetensors.zst")))


def size_of(directory):
    return sum(f.stat().st_size for f in shards(directory))


def warm(directory):
    for file in directory.rglob("*"):
        if file.is_file():
            file.read_bytes()


def timed(action, out):
    shutil.rmtree(out, ignore_errors=True)
    run("sync")
    began = time.perf_counter()
    action(out)
    return time.perf_counter() - began


def race(actions, out):
    """Returns the medians of {name: action(out)}, run in turns. At the end `out` has the output of the last action."""
    seconds = {name: [] for name in actions}
    for _ in range(TURNS):
        for name, action in actions.items():
            seconds[name].append(timed(action, out))
    shutil.rmtree(out)
    return {name: statistics.median(times) for name, times in seconds.items()}


def zstd(source, *options):
    """Compresses every file of `source` with zstd into a directory, and syncs it as Tessera syncs its output."""
    def action(out):
        out.mkdir()
        run("zstd", "-q", "-T0", *options, "--output-dir-flat", out, *shards(source))
        run("sync", "-f", out)
    return action


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--make", required=True)
    parser.add_argument("--dir", required=True, type=Path)
    parser.add_argument("--bytes", default="2G")
    args = parser.parse_args()
    source, out = args.dir / "source", args.dir / "out"
    run(args.make, "bench", "--bytes", args.bytes, "-o", source)
    warm(source)

    def tessera(*words):
        return lambda out: run(args.tessera, *words, "-o", out, "--quiet")

    packers = {
        f"zstd -T0 -{LEVEL}": zstd(source, f"-{LEVEL}"),
        "tessera": tessera("convert", source, "--to", "archive", "--level", LEVEL),
        "tessera --shuffle": tessera("convert", source, "--to", "archive", "--level", LEVEL, "--shuffle"),
    }
    archives = {name: args.dir / f"archive{i}" for i, name in enumerate(packers)}
    for name, pack in packers.items():
        pack(archives[name])
        warm(archives[name])
    packing = race(packers, out)
    restorers = {name: zstd(archives[name], "-d") if "zstd" in name else
                 tessera("convert", archives[name], "--to", "safetensors") for name in packers}
    restoring = race(restorers, out)
    plain, (peer, ours, _) = size_of(source), packers
    for name in packers:
        size = size_of(archives[name])
        print(f"{name:18}  {size / plain:.4f} of {plain / 1e9:.2f} GB   packed in {packing[name]:.2f} s "
              f"({plain / packing[name] / 1e9:.2f} GB/s)   restored in {restoring[name]:.2f} s "
              f"({plain / restoring[name] / 1e9:.2f} GB/s)")
    jobs = {name: tessera("quantize", place) for name, place in [("plain", source), *list(archives.items())[1:]]}
    for name, seconds in race(jobs, out).items():
        print(f"tessera quantize from {name + ':':20} {seconds:.2f} s")
    size = size_of(archives[ours]) / size_of(archives[peer])
    slower = packing[ours] / packing[peer]
    print(f"size {size:.4f} of zstd's (limit {SIZE_LIMIT}); time {slower:.2f} of zstd's (limit {TIME_LIMIT})")
    return 0 if size <= SIZE_LIMIT and slower <= TIME_LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
