#!/usr/bin/env python3
"""Measures jobs over a sparse DeepSeek-V3 or Kimi-K2 with real headers: 46,183 tensors in 163 files of 1.37 TB, 6 MB on disk;
69,975 tensors in 242 files of 2.05 TB.

Prints wall time, CPU time and peak memory of each command. A dry run reads headers only. SRC is in BF16, and FP8 has the
names of the published checkpoint. --archive DIR also archives the model onto a tmpfs of --disk bytes at DIR, which needs the right to mount. That reads 1.37 TB of zeros in eighteen
minutes of CPU time, and writes 60 MB. --layers N archives the first N layers only."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import deepseek_v3

MODELS = {"deepseek-v3": deepseek_v3.DEEPSEEK_V3, "kimi-k2": deepseek_v3.KIMI_K2}
DRY_RUNS = ["quantize SRC", "quantize SRC --shard 0/64", "quantize SRC --scheme int8-channel", "quantize SRC --scheme nvfp4-weight-only",
            "convert SRC --to tp --tp 8", "convert SRC --to tp --tp 8 --shard 0/64", "convert SRC --to tp --tp 16",
            "convert SRC --to deepseek-mp --mp 16", "convert SRC --to archive"]
LOADS = "inspect FP8 --can-load vllm,sglang"


def measure(tool, words):
    """Runs the tool. Returns (wall seconds, CPU seconds, peak bytes, the last lines of its output)."""
    with tempfile.TemporaryFile("w+") as told:
        began = time.perf_counter()
        process = subprocess.Popen([tool, *map(str, words)], stdout=told)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, words))}: exit {process.returncode}")
        told.seek(0)
        return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, told.read().splitlines()


def show(command, wall, cpu, peak):
    print(f"{command:<52} {wall:7.2f} s {cpu:7.2f} s of CPU {peak / 2**20:6.0f} MiB", flush=True)


def archive(args, source, size):
    if args.layers is not None:
        shapes = {}
        for number in range(args.layers):
            shapes |= deepseek_v3.layer(number, MODELS[args.model])
        source = args.dir / "part"
        size = deepseek_v3.make(source, shapes)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={args.disk}", "tmpfs", args.archive], check=True)
    try:
        out = args.archive / "out"
        wall, cpu, peak, _ = measure(args.tessera, ["convert", source, "-o", out, "--to", "archive", "--level", "1"])
        show(f"convert SRC --to archive --level 1, {size / 1e12:.3f} TB", wall, cpu, peak)
        print(f"    {size / wall / 1e9:.1f} GB/s of wall time, {size / cpu / 1e9:.1f} of CPU time; "
              f"{sum(path.stat().st_size for path in out.iterdir()) / 1e6:.1f} MB, on a disk of {args.disk}")
    finally:
        subprocess.run(["umount", args.archive], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--dir", required=True, type=Path, help="for the checkpoint of holes")
    parser.add_argument("--model", choices=MODELS, default="deepseek-v3")
    parser.add_argument("--archive", type=Path, metavar="DIR", help="an empty folder")
    parser.add_argument("--disk", default="1G", help="(1G)")
    parser.add_argument("--layers", type=int, help="(all)")
    parser.add_argument("--dry-run", action="append", metavar="COMMAND", help="these commands instead, with SRC for the checkpoint")
    args = parser.parse_args()
    source = args.dir / "source"
    size = deepseek_v3.make(source, config=MODELS[args.model])
    held = sum(path.stat().st_blocks * 512 for path in source.iterdir())
    print(f"{size / 1e12:.3f} TB in {len(list(source.glob('*.safetensors')))} files, which take {held / 1e6:.1f} MB of disk")
    for command in args.dry_run or DRY_RUNS:
        words = [source if word == "SRC" else word for word in command.split()]
        wall, cpu, peak, told = measure(args.tessera, [*words, "--dry-run"])
        show(f"{command} --dry-run", wall, cpu, peak)
        print("    " + next(line for line in told if " files, " in line))
    if not args.dry_run:
        fp8 = args.dir / "fp8"
        deepseek_v3.make(fp8, config=MODELS[args.model], fp8=True)
        wall, cpu, peak, _ = measure(args.tessera, [fp8 if word == "FP8" else word for word in LOADS.split()])
        show(LOADS, wall, cpu, peak)
    if args.archive:
        archive(args, source, size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
