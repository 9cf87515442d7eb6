"""The whole job beside cp -r: quantizing beside a copy of its input, and beside the formula in NumPy; casting FP8 to
BF16 beside a copy of its output. One run, page cache warm for all.

cp and tessera take turns; every output is deleted, and the disk synced, before the next turn. Medians are compared."""

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np

TURNS = 5
LIMIT = 1.0  # of cp's time


def timed(command):
    subprocess.run(["sync"], check=True)
    began = time.perf_counter()
    subprocess.run([str(word) for word in command], check=True)
    return time.perf_counter() - began


def numpy_rate():
    """Bytes of BF16 a second by the formula in NumPy, one [4096, 4096] weight."""
    rows = cols = 4096
    x = np.random.default_rng(1).standard_normal((rows, cols), dtype=np.float32).astype(ml_dtypes.bfloat16)
    began = time.perf_counter()
    blocks = x.astype(np.float32).reshape(rows // 128, 128, cols // 128, 128)
    scale = np.abs(blocks).max(axis=(1, 3)) / np.float32(448)
    quotient = np.clip(blocks / scale[:, None, :, None], -448, 448)
    quotient.astype(ml_dtypes.float8_e4m3fn)
    return x.nbytes / (time.perf_counter() - began)


def size_of(directory):
    return sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())


def warm(directory):
    for file in directory.rglob("*"):
        if file.is_file():
            file.read_bytes()


def race(copied, job, out, scratch):
    """Medians of (cp -r of `copied`, the job, which writes `out`), in turns."""
    seconds = {"cp": [], "job": []}
    for _ in range(TURNS):
        seconds["cp"].append(timed(["cp", "-r", copied, scratch]))
        shutil.rmtree(scratch)
        seconds["job"].append(timed(job))
        shutil.rmtree(out)
    return statistics.median(seconds["cp"]), statistics.median(seconds["job"])


def bench_quantize(args, source):
    out = args.dir / "out"
    cp, ours = race(source, [args.tessera, "quantize", source, "-o", out, "--quiet"], out, args.dir / "copy")
    size, peer = size_of(source), numpy_rate()
    print(f"{size / 1e9:.2f} GB   cp -r {cp:.2f} s   tessera quantize {ours:.2f} s   ratio {ours / cp:.2f} (limit {LIMIT})")
    print(f"NumPy, one core, arithmetic only: {peer / 1e9:.3f} GB/s; tessera, whole job: {size / ours / 1e9:.2f} GB/s; "
          f"{size / ours / peer:.0f} x")
    return ours <= LIMIT * cp


def bench_convert(args, source):
    fp8, cast, out = args.dir / "fp8", args.dir / "cast", args.dir / "out"
    subprocess.run([args.tessera, "quantize", source, "-o", fp8, "--quiet"], check=True)
    shutil.rmtree(source)
    command = [args.tessera, "convert", fp8, "--to", "bf16", "--quiet", "-o"]
    subprocess.run([str(word) for word in [*command, cast]], check=True)
    warm(cast)
    warm(fp8)
    cp, ours = race(cast, [*command, out], out, args.dir / "copy")
    size = size_of(cast)
    print(f"{size / 1e9:.2f} GB out   cp -r of it {cp:.2f} s   tessera convert --to bf16 {ours:.2f} s   "
          f"ratio {ours / cp:.2f} (limit {LIMIT})")
    return ours <= LIMIT * cp


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=["quantize", "convert"])
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--make", required=True)
    parser.add_argument("--dir", required=True, type=Path)
    parser.add_argument("--bytes", default="4G")
    args = parser.parse_args()
    source = args.dir / "source"
    subprocess.run([args.make, "bench", "--bytes", args.bytes, "-o", source], check=True)
    warm(source)
    return 0 if {"quantize": bench_quantize, "convert": bench_convert}[args.job](args, source) else 1


if __name__ == "__main__":
    sys.exit(main())
