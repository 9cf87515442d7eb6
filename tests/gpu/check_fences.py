#!/usr/bin/env python3
"""Checks in the PTX of the Hopper kernels that shared memory is fenced before others read it; needs nvcc, and no GPU.

No number of launches is sure to show a missing fence, so the paths through each kernel are followed instead:

- A store to shared memory is followed by fence.proxy.async before the copy engine stores or sends from shared memory.
- A store to shared memory is released to the cluster before a load from another CTA's shared memory, and acquired after the
  barrier between them.

    check_fences.py [--include DIR] FILE.cu...      DIR is searched before the repository
"""

import argparse
import collections
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FLAGS = ["-std=c++17", "-gencode=arch=compute_90a,code=compute_90a", "-ptx"]

# Fences that a path may have omitted: bits of a state.
UNFENCED, UNRELEASED, UNACQUIRED = 1, 2, 4

ENTRY = re.compile(r"^(?:\.visible |\.weak )?\.entry (\w+)")
LABEL = re.compile(r"^(\$\w+):")
BRANCH = re.compile(r"^(@!?%p\d+ )?bra(?:\.uni)? (\$\w+)")
EFFECTS = [  # pattern, bits that have to be clear, bits that it clears, bits that it sets
    (re.compile(r"st\.shared(?!::cluster)|stmatrix\.|cp\.async\.c[ag]\.shared"), 0, 0, UNFENCED | UNRELEASED),
    (re.compile(r"fence\.proxy\.async"), 0, UNFENCED, 0),
    (re.compile(r"cp\.async\.bulk\.(tensor\.\dd\.global\.shared|shared::cluster\.shared::cta)"), UNFENCED, 0, 0),
    (re.compile(r"barrier\.cluster\.arrive(?!\.relaxed)|fence\.release\S*\.cluster"), 0, UNRELEASED, 0),
    (re.compile(r"barrier\.cluster\.wait(?!\.acquire)"), 0, 0, UNACQUIRED),
    (re.compile(r"barrier\.cluster\.wait\.acquire|fence\.acquire\S*\.cluster"), 0, UNACQUIRED, 0),
    (re.compile(r"ld\.shared::cluster"), UNRELEASED | UNACQUIRED, 0, 0),
]
FAULTS = {UNFENCED: "the copy engine may read shared memory before fence.proxy.async",
          UNRELEASED: "another CTA may read shared memory that was not released to the cluster",
          UNACQUIRED: "another CTA's shared memory may be read without an acquire"}


def kernels(ptx):
    """Returns {name: its lines}."""
    found, name = {}, None
    for line in ptx.splitlines():
        entry = ENTRY.match(line)
        if entry:
            name = entry[1]
            found[name] = []
        elif name:
            found[name].append(line.strip())
    return found


def blocks_of(lines):
    """Returns basic blocks with the labels that may follow: [(label, effects, [labels])]."""
    blocks, label, effects, number = [], "entry", [], 0

    def end(*following):
        nonlocal label, effects, number
        number += 1
        blocks.append((label, effects, list(following)))
        label, effects = f"after {number}", []

    for line in lines:
        begins, branch = LABEL.match(line), BRANCH.match(line)
        if begins:
            end(begins[1])
            label = begins[1]
        elif branch:
            end(branch[2], *([f"after {number + 1}"] if branch[1] else []))
        elif re.match(r"(ret|exit|trap);", line):
            end()
        else:
            effects += [effect[1:] for effect in EFFECTS if effect[0].search(line)]
    end()
    return blocks


def faults_of(lines):
    """Returns the faults of a kernel, and the number of checked reads. A state is a set of unfinished operations on some
    path."""
    blocks = {label: (effects, following) for label, effects, following in blocks_of(lines)}
    before, faults = collections.Counter(), set()
    pending, seen = ["entry"], set()
    while pending:
        label = pending.pop()
        seen.add(label)
        state = before[label]
        effects, following = blocks[label]
        for needs, clears, sets in effects:
            faults |= {bit for bit in FAULTS if needs & state & bit}
            state = state & ~clears | sets
        for after in following:
            if after not in seen or before[after] | state != before[after]:
                before[after] |= state
                pending.append(after)
    reads = sum(bool(needs) for effects, _ in blocks.values() for needs, _, _ in effects)
    return faults, reads


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    if shutil.which("nvcc") is None:
        print("skipped: no nvcc (of the CUDA Toolkit)")
        return 77
    passed = failed = 0
    for path in options.files:
        command = ["nvcc", *FLAGS, *("-I" + folder for folder in options.include), "-I" + ROOT, path, "-o", "-"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            print(done.stderr)
            return 1
        checked = 0
        for name, lines in kernels(done.stdout).items():
            faults, reads = faults_of(lines)
            checked += reads
            passed += not faults
            failed += len(faults)
            for bit in sorted(faults):
                print(f"FAILED {os.path.basename(path)}: {name}: {FAULTS[bit]}")
        print(f"{os.path.basename(path)}: {checked} reads by the copy engine or another CTA")
        if checked == 0:
            print(f"FAILED {os.path.basename(path)}: nothing to check")
            failed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
