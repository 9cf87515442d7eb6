#!/usr/bin/env python3
"""Prints how many lines of source each room has, its largest file, and its longest function: `tools/lines_per_room.py`."""

import collections
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = {".c", ".h", ".cu", ".cuh", ".inc", ".py", ".sh"}


def functions(text):
    """(lines, name) of each function of a C file in this repository's layout: braces of functions stand in column 0."""
    head = ""
    start = None
    for number, line in enumerate(text.split("\n")):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            name = re.findall(r"([A-Za-z_]\w*)\(", head)
            yield number - start + 1, name[0] if name else head.strip()
            start = None
        elif start is None and line and not line.startswith((" ", "#", "/", "}")):
            head = line


def main():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    rooms = collections.defaultdict(list)
    for name in listed:
        path = pathlib.Path(name)
        if path.suffix in CODE and (ROOT / path).is_file():
            text = (ROOT / path).read_text()
            longest = max(functions(text), default=(0, "")) if path.suffix in {".c", ".cu"} else (0, "")
            rooms[str(path.parent)].append((text.count("\n"), path.name, longest))
    total = 0
    print(f"{'room':28} {'files':>5} {'lines':>6}  largest file                    longest function")
    for room, files in sorted(rooms.items()):
        lines, largest, longest = sum(f[0] for f in files), max(files), max(f[2] for f in files)
        total += lines
        print(f"{room:28} {len(files):5} {lines:6}  {largest[0]:4} {largest[1]:26} "
              + (f"{longest[0]:4} {longest[1]}" if longest[0] else ""))
    print(f"{'all':28} {sum(map(len, rooms.values())):5} {total:6}")


if __name__ == "__main__":
    main()
