#!/usr/bin/env python3
"""Sums up gcovr's JSON by folder, as a table in Markdown, and lists the files with the most lines that no check ran."""

import collections
import json
import sys

LISTED = 25


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        files = json.load(file)["files"]
    folders, missed = collections.defaultdict(lambda: [0, 0, 0, 0]), []
    for one in files:
        lines = [line for line in one["lines"] if not line.get("gcovr/noncode")]
        branches = [branch for line in lines for branch in line["branches"]]
        counts = (len(lines), sum(line["count"] > 0 for line in lines), len(branches), sum(branch["count"] > 0 for branch in branches))
        folder = one["file"].rpartition("/")[0]
        for name in (folder, "all"):
            folders[name] = [a + b for a, b in zip(folders[name], counts)]
        missed.append((counts[0] - counts[1], one["file"], counts))
    print("| folder | lines | run | branches | taken |\n|---|---:|---:|---:|---:|")
    for name in sorted(folders, key=lambda one: (one == "all", one)):
        lines, run, branches, taken = folders[name]
        print(f"| {name} | {lines:,} | {100 * run / lines:.1f} % | {branches:,} | {100 * taken / max(branches, 1):.1f} % |")
    print("\nFiles with the most lines that no check ran:\n")
    for lost, name, (lines, *_) in sorted(missed, reverse=True)[:LISTED]:
        print(f"{lost:6,} of {lines:5,}  {name}")


if __name__ == "__main__":
    main()
