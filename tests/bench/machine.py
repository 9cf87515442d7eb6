#!/usr/bin/env python3
"""Describes the machine of a benchmark: processor, instruction sets, memory, kernel, disk, and the spread of short memcpy runs.

Ratios of one run can be compared between machines. If the spread is large, repeat the run."""

import os
import platform
import sys
import time

SETS = {"avx2": "AVX2", "avx512bw": "AVX-512", "avx512vbmi": "VBMI", "gfni": "GFNI", "asimd": "NEON", "sve": "SVE"}
TURNS, BYTES = 60, 64 << 20


def field(path, name):
    """Returns the first value of `name : value` in a file of /proc; an empty string without one."""
    with open(path) as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def processor():
    flags = (field("/proc/cpuinfo", "flags") or field("/proc/cpuinfo", "Features")).split()
    sets = [title for flag, title in SETS.items() if flag in flags]
    name = field("/proc/cpuinfo", "model name") or platform.machine()
    return f"{name}, {len(os.sched_getaffinity(0))} processors, {', '.join(sets) or 'no instruction set of ours'}"


def disk(folder):
    """Returns the device and file system of a folder."""
    wanted, found = os.stat(folder).st_dev, ("?", "?")
    with open("/proc/self/mounts") as file:
        for line in file:
            device, place, kind = line.split()[:3]
            try:
                if os.stat(place).st_dev == wanted:
                    found = device, kind
            except OSError:
                continue
    return f"{found[0]}, {found[1]}"


def memcpy_turns():
    """Returns the GB/s read and written in each turn, sorted."""
    source, target = memoryview(bytearray(os.urandom(1 << 20) * (BYTES >> 20))), memoryview(bytearray(BYTES))
    rates = []
    for _ in range(TURNS):
        began = time.perf_counter()
        target[:] = source
        rates.append(2e-9 * BYTES / (time.perf_counter() - began))
    return sorted(rates)


def describe(folder):
    rates = memcpy_turns()
    memory = int(field("/proc/meminfo", "MemTotal").split()[0]) / 1e6
    return (f"machine: {processor()}\n"
            f"         {memory:.0f} GB of memory, Linux {platform.release()}; {folder}: {disk(folder)}\n"
            f"         load {os.getloadavg()[0]:.1f}; memcpy of {BYTES >> 20} MiB, {TURNS} turns: best {rates[-1]:.1f} GB/s, median "
            f"{rates[TURNS // 2]:.1f}, worst {rates[0]:.1f} (spread {rates[-1] / rates[0]:.2f})")


if __name__ == "__main__":
    print(describe(sys.argv[1] if len(sys.argv) > 1 else "."))
