#!/usr/bin/env python3
"""Checks that files have at most 500 lines and functions at most 80, as docs/design.md says. Kernels may be longer, since one
long loop is not clearer when divided, and so may tables of data. Prints a line for each violation; ends with 'N passed, N
failed'."""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
MOST_LINES, MOST_IN_A_FUNCTION = 500, 80
CODE = {".c", ".h", ".cu", ".cuh", ".inc", ".py", ".sh"}
C = {".c", ".h", ".cu", ".cuh"}

# Tables that another program made, or that a test holds the code to: path, and what they are.
DATA = {"tests/cli/policy_table.txt": "what the policy decides, tensor by tensor",
        "tests/peers/loaders/requirements.txt": "what pip froze"}
# Folders of kernels: a function in them may be as long as its loop.
KERNELS = ("kernels/",)


def sources():
    """Returns tracked and untracked code, and the files of DATA. Without git, or outside of a repository, it returns the
    files that exist."""
    listed = shutil.which("git") and subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                                                    capture_output=True, text=True)
    names = listed.stdout.splitlines() if listed and listed.returncode == 0 else [
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if not path.relative_to(ROOT).parts[0].startswith((".", "build"))]
    return sorted(path for path in map(pathlib.Path, names)
                  if (ROOT / path).is_file() and (path.suffix in CODE or path.name == "dev") and str(path) not in DATA)


def functions(lines):
    """Yields (name, first line, number of lines) of each function of a C source, from the line with its type to the closing
    brace. Both braces are alone in column 0."""
    opened = None
    for at, line in enumerate(lines):
        if line == "{":
            opened = at
        elif line == "}" and opened is not None:
            first = opened
            while first > 0 and lines[first - 1] and lines[first - 1][0] not in "}/*#":
                first -= 1
            name = re.search(r"([A-Za-z_]\w*)\(", " ".join(lines[first:opened]))
            yield name.group(1) if name else "?", first + 1, at + 1 - first
            opened = None


def too_long(path, text):
    """Returns the fault of one file, or None."""
    lines = text.splitlines()
    if len(lines) > MOST_LINES:
        yield f"{path}: {len(lines)} lines; the most is {MOST_LINES}: split it by meaning"
    if path.suffix not in C or str(path).startswith(KERNELS):
        return
    for name, first, count in functions(lines):
        if count > MOST_IN_A_FUNCTION:
            yield f"{path}:{first}: {name} has {count} lines; the most is {MOST_IN_A_FUNCTION}, but for kernels"


def blind_spots():
    """Yields the planted faults that this check does not find: none."""
    planted = {"a.py": "x = 1\n" * (MOST_LINES + 1),
               "a.c": "int a;\n\nstatic int\nlong_one(int x)\n{\n" + "    x++;\n" * (MOST_IN_A_FUNCTION - 3) + "}\n",
               "a.h": "static inline int f(void)\n{\n" + "#if 1\n    ;\n#endif\n" * (MOST_IN_A_FUNCTION // 3) + "}\n"}
    sound = {"a.c": "int f(int x)\n{\n" + "    x++;\n" * (MOST_IN_A_FUNCTION - 3) + "}\n",
             "kernels/cpu/a.c": planted["a.c"], "a.py": "x = 1\n" * MOST_LINES}
    for name, text in planted.items():
        if len(list(too_long(pathlib.Path(name), text))) != 1:
            yield f"tests/check_sizes.py: does not see what is planted in {name}"
    for name, text in sound.items():
        if list(too_long(pathlib.Path(name), text)):
            yield f"tests/check_sizes.py: takes {name}, which is at the limit, for too long"


def main():
    judged = {path: list(too_long(path, (ROOT / path).read_text())) for path in sources()}
    judged[pathlib.Path(__file__)] = list(blind_spots()) + judged.get(pathlib.Path("tests/check_sizes.py"), [])
    for faults in judged.values():
        for fault in faults:
            print(fault)
    failed = sum(map(len, judged.values()))
    print(f"{sum(not faults for faults in judged.values())} passed, {failed} failed")
    return 1 if failed or len(judged) < 300 else 0


if __name__ == "__main__":
    sys.exit(main())
