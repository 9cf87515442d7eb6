"""The whole job beside cp -r of the same input, and beside the formula in NumPy; one run, page cache warm for both.

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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--make", required=True)
    parser.add_argument("--dir", required=True, type=Path)
    parser.add_argument("--bytes", default="4G")
    args = parser.parse_args()
    source, copy, out = args.dir / "source", args.dir / "copy", args.dir / "out"
    subprocess.run([args.make, "bench", "--bytes", args.bytes, "-o", source], check=True)
    size = sum(f.stat().st_size for f in source.iterdir())
    for file in source.iterdir():
        file.read_bytes()
    seconds = {"cp": [], "tessera": []}
    for _ in range(TURNS):
        seconds["cp"].append(timed(["cp", "-r", source, copy]))
        shutil.rmtree(copy)
        seconds["tessera"].append(timed([args.tessera, "quantize", source, "-o", out, "--quiet"]))
        shutil.rmtree(out)
    cp, ours = (statistics.median(seconds[name]) for name in ("cp", "tessera"))
    peer = numpy_rate()
    print(f"{size / 1e9:.2f} GB   cp -r {cp:.2f} s   tessera quantize {ours:.2f} s   ratio {ours / cp:.2f} (limit {LIMIT})")
    print(f"NumPy, one core, arithmetic only: {peer / 1e9:.3f} GB/s; tessera, whole job: {size / ours / 1e9:.2f} GB/s; "
          f"{size / ours / peer:.0f} x")
    return 0 if ours <= LIMIT * cp else 1


if __name__ == "__main__":
    sys.exit(main())
