#!/usr/bin/env python3
"""Checks that each source has a test of the same name or a row in tests/README.md, and that all listed tests exist and run.

tests/meson.build must run every module of tests/cli. --list prints the sources that only a row covers. Ends with 'N
passed, N failed'."""

import argparse
import fnmatch
import pathlib
import re
import sys

from check_layers import sources

ROOT = pathlib.Path(__file__).resolve().parents[1]
HEADING = "## Tests of each source"


def rows(text):
    """Returns (patterns of sources, patterns of tests) of each row of the table below HEADING."""
    for line in text[text.index(HEADING):].splitlines():
        cells = line.strip("|").split("|") if line.startswith("| `") else []
        if len(cells) == 2:
            yield re.findall(r"`([^`]+)`", cells[0]), re.findall(r"`([^`]+\.\w+)`", cells[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the sources that only a row covers")
    options = parser.parse_args()
    table = list(rows((ROOT / "tests/README.md").read_text()))
    code = [path for path in sources() if path.suffix in (".c", ".cu")]
    named = {path.stem.removeprefix("test_") for path in (ROOT / "tests").rglob("test_*") if path.suffix in (".c", ".py", ".cu")}
    own = [path for path in code if path.stem in named]
    faults = []
    for path in code:
        # A "*" of the table does not cross a folder.
        covered = any(path.parent == pathlib.Path(p).parent and fnmatch.fnmatch(path.name, pathlib.Path(p).name)
                      for patterns, _ in table for p in patterns)
        if path.stem not in named and not covered:
            faults.append(f"{path}: no test of its name, and no row in tests/README.md")
        elif path.stem not in named and options.list:
            print(path)
    for patterns, tests in table:
        faults += [f"{p}: no source" for p in patterns if not any(ROOT.glob(p))]
        faults += [f"{p}: no test" for p in tests if not any((ROOT / "tests").glob(p))]
        faults += [f"{patterns[0]}: names no test"] if not tests else []
    scheduled = set(re.findall(r"^        '(\w+)',$", (ROOT / "tests/meson.build").read_text(), re.M))
    modules = sorted((ROOT / "tests/cli").rglob("test_*.py"))
    faults += [f"{path.relative_to(ROOT)}: tests/meson.build does not run it" for path in modules
               if path.stem.removeprefix("test_") not in scheduled]
    for fault in faults:
        print(fault)
    print(f"{len(own)} of {len(code)} sources have a test of the same name, {len(code) - len(own)} a row")
    print(f"{len(code) + len(table) + len(modules) - len(faults)} passed, {len(faults)} failed")
    return 1 if faults or not table else 0


if __name__ == "__main__":
    sys.exit(main())
