#!/usr/bin/env python3
"""Compares one process with N shards and with N ranks of mpirun, one thread each. The best of several interleaved runs counts.

    python3 tests/bench/bench_ranks.py --tessera build/cli/tessera --make build/tests/make/make_checkpoint
"""

import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

SCHEMES = {"fp8-block": [], "int4, scales of least error": ["--scheme", "int4-weight-only", "--scales", "mse"]}
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


def taken(commands):
    """Returns the wall and CPU seconds of these processes, which run at the same time."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    processes = [subprocess.Popen(list(map(str, command)), env=ENVIRONMENT, stdout=subprocess.DEVNULL) for command in commands]
    codes = [process.wait() for process in processes]
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if any(codes):
        sys.exit(f"{commands[0]}: exit {codes}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ways(tool, command, target, has_mpi):
    alone = [tool, *command, "-o", target, "--quiet", "--threads", "1"]
    yield "one process", [[alone]]
    for n in 2, 4:
        shards = [[*alone, "--shard", f"{i}/{n}"] for i in range(n)]
        yield f"{n} shards, and finish", [shards, [[tool, "finish", target, "--quiet", "--threads", "1"]]]
    for n in (1, 2, 4, 8) if has_mpi else ():
        yield f"{n} ranks", [[["mpirun", "--oversubscribe", "--bind-to", "none", "-n", n, *alone, "--mpi"]]]


def main():
    parser = harness.argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--bytes", default="600M", help="of the source (600M)")
    parser.add_argument("--turns", type=int, default=3, help="of which the best counts (3)")
    options = parser.parse_args()
    tool = os.path.abspath(options.tessera)
    has_mpi = shutil.which("mpirun") is not None and os.path.exists(os.path.join(os.path.dirname(tool), "tessera_mpi.so"))
    if not has_mpi:
        print("no mpirun, or no tessera_mpi.so beside the tool: shards only")
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; {options.bytes} of BF16 in five files")
    with harness.temporary_directory(options.directory) as place:
        source, target = os.path.join(place, "source"), os.path.join(place, "out")
        harness.make_checkpoint(options.make, "bench", source, bytes=options.bytes)
        for scheme, words in SCHEMES.items():
            command = ["quantize", source, "--max-shard-size", "50MB", *words]
            best = {}
            for _ in range(options.turns):
                for way, parts in ways(tool, command, target, has_mpi):
                    shutil.rmtree(target, ignore_errors=True)
                    spent = [taken(part) for part in parts]
                    wall, cpu = sum(wall for wall, _ in spent), sum(cpu for _, cpu in spent)
                    best[way] = min(best.get(way, (wall, cpu)), (wall, cpu))
            for way, (wall, cpu) in best.items():
                print(f"{scheme:28} {way:22} {wall:7.2f} s   speed-up {best['one process'][0] / wall:5.2f}   CPU {cpu:6.2f} s")


if __name__ == "__main__":
    main()
