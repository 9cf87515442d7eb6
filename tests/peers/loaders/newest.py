#!/usr/bin/env python3
"""Compares the versions of loaders that the rules name with the newest ones of the package index: ./dev loaders --newest.

Exit code 0: the rules were checked against the newest versions; 1: a loader moved on; 77: the index cannot be asked."""

import argparse
import pathlib
import re
import shlex
import subprocess
import sys

RULES = pathlib.Path(__file__).resolve().parents[3] / "formats/loaders/loaders.c"


def checked():
    """Returns the version of each loader that the rules were checked against, from loaders.c."""
    return {name.lower(): version for name, version in re.findall(r'^#define (VLLM|SGLANG|TRANSFORMERS)_VERSION +"([\d.]+)"', RULES.read_text(), re.M)}


def newest(pip, name):
    """Returns the newest release, or None if the index does not answer."""
    done = subprocess.run([*pip, "index", "versions", name, "--disable-pip-version-check"], capture_output=True, text=True, check=False)
    found = re.match(rf"{name} \((\S+)\)", done.stdout)
    return found[1] if done.returncode == 0 and found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pip", default=f"{shlex.quote(sys.executable)} -m pip", help="the command that asks the index")
    pip = shlex.split(parser.parse_args().pip)
    moved = 0
    for name, rules in checked().items():
        version = newest(pip, name)
        if version is None:
            print(f"skipped: the package index does not answer for {name}")
            return 77
        moved += version != rules
        print(f"{name}: the rules are of {rules}, and the newest is {version}" + ("" if version == rules else ": run ./dev loaders"))
    return 1 if moved else 0


if __name__ == "__main__":
    sys.exit(main())
