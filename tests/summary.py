#!/usr/bin/env python3
"""Prints the skipped tests of `meson test` with the reasons, and for each failed test the command that repeats it.

    summary.py testlog.json COMMAND    COMMAND: the words before a test's name, for example "./dev test" """

import json
import pathlib
import shlex
import sys


def reason(test):
    """Returns the last line of a test's output that mentions a skip."""
    lines = [line for line in (test.get("stdout", "") + test.get("stderr", "")).splitlines() if "skipped" in line.lower()]
    return lines[-1].strip() if lines else ""


def main():
    log, command = sys.argv[1:]
    tests = [json.loads(line) for line in pathlib.Path(log).read_text().splitlines()]
    names = {result: [(test["name"].rpartition(" / ")[2], test) for test in tests if test["result"] == result]
             for result in {test["result"] for test in tests}}
    for name, test in names.get("SKIP", []):
        print(f"skipped {name}: {reason(test)}")
    failed = [row for result, rows in names.items() if result not in ("OK", "SKIP") for row in rows]
    if failed:
        print("\nfailed; to repeat one:")
    for name, _ in failed:
        print(f"    {command} {shlex.quote(name)}")
    print(f"\n{len(names.get('OK', []))} passed, {len(failed)} failed, {len(names.get('SKIP', []))} skipped")
    return 1 if failed or not names.get("OK") else 0


if __name__ == "__main__":
    sys.exit(main())
