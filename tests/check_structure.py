#!/usr/bin/env python3
"""Checks limits on the structure: call cycles, names with two meanings, equal base names, files in a folder, variables.

check_layers.py reads includes, and cannot see calls between files that share a private header. This check reads
calls. LIMITS may only be lowered. Prints a row for each limit; --list also prints what is counted."""

import argparse
import collections
import pathlib
import re
import sys

from check_layers import sources, without_comments
from check_sizes import functions

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIMITS = {
    "call cycles between files": 0,
    "files in the largest call cycle": 0,
    "names with two meanings": 0,
    "base names that are there twice": 0,
    "files in the largest folder": 25,
    "enumerations of schemes and dialects": 2,
    "variables that cli/ changes": 3,
}
LINES_OF = (".c", ".h", ".cu", ".cuh", ".inc", ".py", ".sh", ".build", ".js", ".css", ".html", ".txt")
PRODUCT = ("cli", "common", "convert", "formats", "kernels", "lib", "python", "quantize", "report", "tools", "verify")
WORD = re.compile(r"[A-Za-z_]\w*")
PUBLIC = re.compile(r"(?:tsr|tessera)_")
TYPE = re.compile(r"^typedef (?:struct|enum|union)\b[^;{]*\{(?:[^\n]*|.*?^)\}\s*(tsr_\w+);|^struct (tsr_\w+) \{", re.M | re.S)
DECLARED = re.compile(r"^(?!static|typedef|#|\s)[\w\s*]*?\b(tsr_\w+)\([^;{]*\)[\s\w]*;", re.M)


def strongly_connected(graph):
    """Returns the sets of at least two files that call each other, by Tarjan's algorithm."""
    index, low, stack, found = {}, {}, [], []

    def visit(a):
        index[a] = low[a] = len(index)
        stack.append(a)
        for b in graph[a]:
            if b not in index:
                visit(b)
                low[a] = min(low[a], low[b])
            elif b in stack:
                low[a] = min(low[a], index[b])
        if low[a] == index[a]:
            part = []
            while not part or part[-1] != a:
                part.append(stack.pop())
            if len(part) > 1:
                found.append(sorted(map(str, part)))

    for a in sorted(graph):
        if a not in index:
            visit(a)
    return sorted(found, key=len, reverse=True)


def call_cycles(texts):
    """Returns the cycles of calls. A file calls another one if it uses a function that only the other one defines."""
    defined, words = {}, {}
    for path, text in texts.items():
        if path.suffix in (".c", ".cu"):
            lines = text.splitlines()
            names = {name for name, first, _ in functions(lines) if PUBLIC.match(name) and not lines[first - 1].startswith("static")}
            words[path] = set(WORD.findall(text))
            for name in names:
                defined.setdefault(name, set()).add(path)
    owner = {name: next(iter(paths)) for name, paths in defined.items() if len(paths) == 1}
    graph = {path: {owner[w] for w in used if w in owner} - {path} for path, used in words.items()}
    return strongly_connected(graph)


def double_names(texts):
    """Returns types that two headers define, and identifiers that are a type in one file and a function in another."""
    types, calls = collections.defaultdict(set), collections.defaultdict(set)
    for path, text in texts.items():
        if path.suffix == ".h":
            for found in TYPE.finditer(text):
                types[next(filter(None, found.groups()))].add(str(path))
            for found in DECLARED.finditer(text):
                calls[found[1]].add(str(path))
    twice = [f"{name}: {', '.join(sorted(paths))}" for name, paths in types.items() if len(paths) > 1]
    return sorted(twice + [f"{name}: a type in {min(types[name])}, a function in {min(calls[name])}" for name in types if name in calls])


def double_bases(paths):
    """Returns base names that occur twice. kernels/cpu and kernels/cuda may share the name of an operation."""
    places = collections.defaultdict(set)
    for path in paths:
        places[path.stem].add("kernels" if path.parts[0] == "kernels" else str(path.parent))
    return sorted(f"{stem}: {', '.join(sorted(folders))}" for stem, folders in places.items() if len(folders) > 1)


def folder_sizes(paths):
    sizes = collections.Counter(str(path.parent) for path in paths if path.parts[0] != "kernels")
    return [f"{folder}: {count}" for folder, count in sizes.most_common()]


def scheme_enumerations(texts):
    return [f"{path}: {name}" for path, text in texts.items() for name in re.findall(r"typedef enum (tsr_(?:\w+_)?(?:scheme|dialect)) \{", text)]


def variables(texts):
    """Returns the variables at file scope in cli/ that are not constant. A terminal, its output and an interrupt each need
    one."""
    return [f"{path}: {name}" for path, text in texts.items() if path.parts[0] == "cli"
            for name in re.findall(r"^(?:static )?(?!const|typedef|extern|return|#)[a-z_]\w*(?: \**\w+)*? \**(\w+)(?:\[[^\]\n]*\])*(?: = [^;]*)?;", text, re.M)
            if not re.search(rf"\bconst {name}\b|\bconst \w+ {name}\b", text)]


def count_lines(folders):
    """Returns the lines of all files of the folders, without data. The files are those of git, or those that exist."""
    return sum(path.read_text(errors="replace").count("\n") for folder in folders for path in (ROOT / folder).rglob("*")
               if path.suffix in LINES_OF and "corpus" not in path.parts)


def blind_spots():
    """Yields the planted faults that this check does not find."""
    planted = {pathlib.Path("a.c"): "void tsr_a(void)\n{\n    tsr_b();\n}\n", pathlib.Path("b.c"): "void tsr_b(void)\n{\n    tsr_a();\n}\n",
               pathlib.Path("a.h"): "typedef struct tsr_x {\n    int a;\n} tsr_x;\nvoid tsr_y(int a);\n",
               pathlib.Path("x/a.h"): "typedef struct tsr_x {\n    int b;\n} tsr_x;\ntypedef enum tsr_y { A } tsr_y;\n"}
    if call_cycles(planted) != [["a.c", "b.c"]]:
        yield "a cycle of two files"
    if len(double_names(planted)) != 2:
        yield "two types of one name, and a type with a function's name"
    if len(double_bases(planted)) != 1:
        yield "two files of one name"
    if len(variables({pathlib.Path("cli/a.c"): "static int a;\nstatic const int b = 1;\nstatic char *c[2] = {0};\nint d(void);\n"})) != 2:
        yield "two variables of cli/, and neither a constant nor a function"
    if len(scheme_enumerations({pathlib.Path("a.h"): "typedef enum tsr_x_dialect { A } tsr_x_dialect;\n"})) != 1:
        yield "an enumeration of dialects"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print what is counted")
    options = parser.parse_args()
    texts = {path: without_comments((ROOT / path).read_text()) for path in sources()}
    cycles, folders = call_cycles(texts), folder_sizes(texts)
    found = {
        "call cycles between files": [" ".join(cycle) for cycle in cycles],
        "files in the largest call cycle": cycles[0] if cycles else [],
        "names with two meanings": double_names(texts),
        "base names that are there twice": double_bases(texts),
        "files in the largest folder": folders[:6],
        "enumerations of schemes and dialects": scheme_enumerations(texts),
        "variables that cli/ changes": variables(texts),
    }
    failed = 0
    for what, items in found.items():
        count = int(folders[0].rsplit(" ", 1)[1]) if what.endswith("folder") else len(items)
        verdict = "ok" if count == LIMITS[what] else "FAILED" if count > LIMITS[what] else "ok; the limit can be lowered"
        failed += count > LIMITS[what]
        print(f"{what:36} {count:4}, limit {LIMITS[what]:4}  {verdict}")
        for item in items if options.list or count > LIMITS[what] else []:
            print(f"    {item}")
    print(f"lines of the product {count_lines(PRODUCT)}, of the tests {count_lines(['tests'])}")
    passed = len(found) - failed
    for spot in blind_spots():
        print(f"FAILED: this check does not see {spot}")
        failed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or len(texts) < 300 else 0


if __name__ == "__main__":
    sys.exit(main())
