#!/usr/bin/env python3
"""Compares quantize from nginx on this machine with `curl --parallel` of the same files. The best of interleaved turns counts.

    python3 tests/bench/bench_remote.py --tessera build/cli/tessera --make build/tests/make/make_checkpoint

A rate is the bytes of the source in a second. The job also quantizes, digests and writes its output; curl writes the
files."""

import os
import pathlib
import shutil
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness
import remote_servers


def taken(command, where):
    """Returns the wall and CPU seconds."""
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=where, env=dict(os.environ, no_proxy="*"))
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command[0]}: exit {process.returncode}")
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime


def main():
    parser = harness.argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--bytes", default="1G", help="of the source (1G)")
    parser.add_argument("--turns", type=int, default=5, help="of which the best counts (5)")
    options = parser.parse_args()
    if not remote_servers.find_nginx() or not shutil.which("curl"):
        sys.exit("nginx or curl is not installed (Debian: nginx-light, curl)")
    tool = os.path.abspath(options.tessera)
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; {options.bytes} of BF16 in five files")
    with harness.temporary_directory(options.directory) as place:
        (place / "models").mkdir()
        harness.make_checkpoint(options.make, "bench", place / "models" / "model", bytes=options.bytes)
        files = sorted((place / "models" / "model").iterdir())
        size = sum(path.stat().st_size for path in files)
        with remote_servers.nginx(place / "models", place / "nginx", more="access_log off; keepalive_requests 100000;") as url:
            ways = {"curl --parallel": ["curl", "--silent", "--no-progress-meter", "--parallel", "--remote-name-all", *(f"{url}/model/{path.name}" for path in files)],
                    "quantize": [tool, "quantize", f"{url}/model", "-o", "out", "--quiet"],
                    "quantize, local": [tool, "quantize", str(place / "models" / "model"), "-o", "out", "--quiet"]}
            best = dict.fromkeys(ways, (float("inf"), float("inf")))
            for _ in range(options.turns):
                for way, command in ways.items():
                    (place / "to").mkdir()
                    best[way] = min(best[way], taken(command, place / "to"))
                    shutil.rmtree(place / "to")
    for way, (wall, cpu) in best.items():
        print(f"{way:<16} {wall:6.2f} s, {size / wall / 1e9:5.2f} GB/s, {cpu:5.2f} s of CPU")
    print(f"quantize has {best['curl --parallel'][0] / best['quantize'][0]:.2f} of the rate of curl --parallel")


if __name__ == "__main__":
    main()
