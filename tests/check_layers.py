#!/usr/bin/env python3
"""Holds the includes to the picture in docs/design.md: arrows between rooms point down, no two files include each other,
and only the command line prints or exits, by one file. No test module imports another. Says what is wrong, a line each;
ends with 'N passed, N failed'."""

import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# A room and the rooms that it may include. "*" behind a name stands for all rooms inside it. What a room may include, it
# names: there is no inheritance to look up.
FORMATS = ["common", "formats/json", "formats/checkpoint", "formats/model", "formats/loaders"]
BLOCKS = ["formats/blocks"]
EVIDENCE = FORMATS + ["kernels*", "verify/weights", "verify/evidence"]
MAY_INCLUDE = {
    "common": [],
    "formats/json": FORMATS[:1],
    "formats/blocks": FORMATS[:1],
    "formats/checkpoint": FORMATS[:2],
    "formats/model": FORMATS[:3],
    "formats/loaders": FORMATS[:4],
    "kernels/cpu": ["common", "formats/model"],
    "kernels/cpu/x86": ["common", "formats/model", "kernels/cpu"],
    "kernels/cpu/arm": ["common", "formats/model", "kernels/cpu"],
    "kernels/cuda": ["common", "formats/model", "kernels/cpu"],
    "quantize": FORMATS + BLOCKS + ["kernels/cpu"],
    "convert/engine": FORMATS + BLOCKS + ["kernels/cpu", "quantize"],
    "convert/ops": FORMATS + BLOCKS + ["kernels/cpu", "quantize", "convert/engine"],
    "convert/plans": FORMATS + BLOCKS + ["kernels/cpu", "quantize", "convert/engine", "convert/ops"],
    "convert/jobs": FORMATS + BLOCKS + ["kernels/cpu", "quantize", "convert/engine", "convert/ops", "convert/plans"],
    # verify/ includes nothing of quantize/ and convert/: an oracle that shares code with what it judges finds no fault in it.
    "verify/weights": FORMATS,
    "verify/manifest": FORMATS[:3],
    "verify/evidence": EVIDENCE[:-1],
    "verify/kernels": EVIDENCE,
    "verify/mla": EVIDENCE,
    "verify/forward": EVIDENCE + ["verify/mla"],
    # A result is read as a stranger's: report/ knows the files that commands write, and nothing of how they came to be.
    "report": ["common", "formats/json"] + BLOCKS,
    # What strangers link with: as the command line, it stands on all that makes and judges checkpoints, and prints nothing.
    "lib": FORMATS + BLOCKS + ["kernels/cpu", "quantize", "convert*", "verify/weights"],
    "cli": FORMATS + BLOCKS + ["kernels*", "quantize", "convert*", "verify*", "report"],
}
CODE = {".c", ".h", ".cu", ".cuh", ".inc"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)
# Names from files reach a terminal only through cli/output.c, which makes them visible and looks at every write.
PRINTS = re.compile(r"(?<![A-Za-z0-9_])(v?f?printf|f?puts|putchar|fputc|putc|fwrite|perror|exit|_exit|abort)\(")


def sources():
    """Every source file of the rooms, as a path relative to the root."""
    tops = sorted({room.split("/")[0] for room in MAY_INCLUDE})
    return sorted(path.relative_to(ROOT) for top in tops for path in (ROOT / top).rglob("*") if path.suffix in CODE)


def without_comments(text):
    """The code alone: a comment may speak of printf."""
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def allowed(room, other):
    """Whether files of `room` may include files of `other`."""
    return room == other or any(
        other == name or name.endswith("*") and (other + "/").startswith(name[:-1] + "/") for name in MAY_INCLUDE[room])


def circles(includes):
    """Pairs of modules that include each other, in sorted order. A module is a header with its source. A source that is
    spread over files, policy.c and policy_rules.c, is one module; a header without a source only declares."""
    modules = collections.defaultdict(set)
    for path, targets in includes.items():
        modules[path.with_suffix("")] |= {target.with_suffix("") for target in targets} - {path.with_suffix("")}
    sources = {path.with_suffix("") for path in includes if path.suffix in (".c", ".cu")}
    return sorted((str(a), str(b)) for a in sources for b in modules[a] & sources
                  if str(a) < str(b) and a in modules[b] and not str(b).startswith(f"{a}_"))


def test_imports():
    """Interop modules that import another one: what two of them need stands in tests/common."""
    for path in sorted((ROOT / "tests/interop").glob("*.py")):
        for found in re.finditer(r"^[ \t]*(?:from|import)[ \t]+(test_\w+)", path.read_text(), re.M):
            yield f"{path.relative_to(ROOT)}: imports {found.group(1)}; what tests share stands in tests/common"


def main():
    faults = list(test_imports())
    includes = {}
    for path in sources():
        room = str(path.parent)
        text = (ROOT / path).read_text()
        if room not in MAY_INCLUDE:
            faults.append(f"{path}: no room of docs/design.md; files stand in {', '.join(MAY_INCLUDE)}")
            continue
        includes[path] = [pathlib.Path(name) for name in INCLUDE.findall(text)]
        for target in includes[path]:
            if not (ROOT / target).is_file() and not (ROOT / f"{target}.in").is_file():  # Meson makes that one
                faults.append(f"{path}: includes \"{target}\", which is not there: paths start at the repository's root")
            elif not allowed(room, str(target.parent)):
                faults.append(f"{path}: {room} must not include {target}")
        if str(path) != "cli/output.c":
            for found in PRINTS.finditer(without_comments(text)):
                if room != "cli" or found.group(1) not in ("exit", "_exit", "abort"):
                    faults.append(f"{path}: {found.group(1)} belongs into cli/output.c")
    faults += [f"{a} and {b} include each other" for a, b in circles(includes)]
    for fault in faults:
        print(fault)
    print(f"{len(includes)} passed, {len(faults)} failed")
    sys.exit(1 if faults or not includes else 0)


if __name__ == "__main__":
    main()
