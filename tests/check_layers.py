#!/usr/bin/env python3
"""Checks that each source includes only files of the modules that docs/design.md allows.

Only cli/ may exit, and only cli/io/output.c may print. Test modules must not import each other. Prints a line for each
violation; ends with 'N passed, N failed'."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Modules (folders) that each module may include. "*" after a name includes the folders in it. Nothing is inherited.
COMMON = ["common*"]
FORMATS = COMMON + ["formats/json", "formats/remote/settings", "formats/remote", "formats/checkpoint", "formats/names", "formats/weights", "formats/loaders"]
BLOCKS = ["formats/blocks"]
EVIDENCE = FORMATS + ["kernels*", "verify/values", "verify/compare", "verify/evidence"]
ADAPTERS = ["formats/adapters", "formats/importance"]
MAKING = FORMATS + BLOCKS + ADAPTERS + ["kernels/cpu", "quantize*"]
# Modules of convert/ in the order of their arrows: each may include those before it.
CONVERT = ["convert/schemes", "convert/plan", "convert/records", "convert/uploads", "convert/io", "convert/run", "convert/ops*", "convert/configs", "convert/plans*",
           "convert/search", "convert/jobs"]
ORDER = {name.rstrip("*"): MAKING + CONVERT[:number + 1] for number, name in enumerate(CONVERT)}
MAY_INCLUDE = {
    "common": [],
    "common/parallel": ["common"],
    "common/cluster": COMMON,
    "formats/json": COMMON,
    "formats/blocks": COMMON,
    "formats/remote/settings": COMMON,
    "formats/remote": FORMATS[:3],
    "formats/checkpoint": FORMATS[:4],
    "formats/names": FORMATS[:5],
    "formats/weights": FORMATS[:6],
    "formats/loaders": FORMATS[:7],
    "formats/adapters": FORMATS[:7],
    "formats/importance": FORMATS[:6],
    "kernels/cpu": COMMON,
    "kernels/cpu/x86": COMMON + ["kernels/cpu"],
    "kernels/cpu/arm": COMMON + ["kernels/cpu"],
    "kernels/cuda": COMMON + ["kernels/cpu"],
    "quantize/policy": FORMATS,
    "quantize/scales": FORMATS + ["kernels/cpu"],
    "quantize": FORMATS + BLOCKS + ["kernels/cpu", "quantize/policy", "quantize/scales"],
    "quantize/gptq": FORMATS + ["kernels/cpu", "quantize"],
    "quantize/moves": FORMATS + BLOCKS + ["kernels/cpu", "quantize", "quantize/scales"],
    **ORDER,
    "convert/ops/rows": MAKING + CONVERT[:6],
    "convert/ops/merge": MAKING + CONVERT[:6] + ["convert/ops/rows"],
    "convert/ops/mla": MAKING + CONVERT[:6] + ["convert/ops/rows"],
    "convert/ops/move": MAKING + CONVERT[:7],
    "convert/plans/experts": MAKING + CONVERT[:8],
    "convert/plans/views": MAKING + CONVERT[:8] + ["convert/plans/experts"],
    "convert/plans/fold": MAKING + CONVERT[:2],
    "convert/plans/merge": MAKING + CONVERT[:9],
    "convert/plans/layouts": MAKING + CONVERT[:9],
    "convert/plans/ranks": MAKING + CONVERT[:9],
    # verify/ must not include quantize/ or convert/: an oracle that shares code with what it tests cannot find its faults.
    "verify/values": FORMATS,
    "verify/compare": FORMATS + ["verify/values"],
    "verify/survey": FORMATS + ["verify/values"],
    "verify/manifest": FORMATS[:5],
    "verify/evidence": EVIDENCE[:-1],
    "verify/kernels": EVIDENCE,
    "verify/mla": EVIDENCE + ["verify/mla/sparse", "verify/forward/tokens"],
    "verify/mla/sparse": EVIDENCE + ["verify/mla", "verify/forward/tokens"],
    "verify/forward/tokens": EVIDENCE,
    "verify/forward/collect": EVIDENCE + ["verify/mla", "verify/forward", "verify/forward/tokens"],
    "verify/forward/model": EVIDENCE + ["verify/mla", "verify/forward", "verify/forward/tokens", "verify/forward/collect"],
    "verify/forward/blocks": EVIDENCE + ["verify/mla", "verify/forward", "verify/forward/tokens", "verify/forward/collect"],
    "verify/forward/cuda": EVIDENCE + ["verify/mla", "verify/forward", "verify/forward/tokens"],
    "verify/forward": EVIDENCE + ["verify/mla", "verify/forward/tokens", "verify/forward/collect", "verify/forward/cuda"],
    "verify/calibrate": EVIDENCE + ["verify/mla", "verify/forward", "verify/forward/tokens", "verify/forward/collect"],
    "verify/sensitivity": EVIDENCE + ["formats/importance", "verify/mla", "verify/forward", "verify/forward/tokens", "verify/forward/collect"],
    # report/ reads the files that commands write, as untrusted input, and uses no code that made them.
    "report/model": COMMON + ["formats/json"] + BLOCKS,
    "report/read": COMMON + ["formats/json", "report/model"] + BLOCKS,
    "report": COMMON + ["formats/json", "report/model", "report/read"] + BLOCKS,
    "report/write": COMMON + ["formats/json", "report/model", "report/read", "report"] + BLOCKS,
    "report/write/terminal": COMMON + ["formats/json", "report/model", "report/read", "report", "report/write"] + BLOCKS,
    # The library may include all modules that make and verify checkpoints, as cli/ may. It prints nothing.
    "lib": FORMATS + BLOCKS + ["kernels/cpu", "quantize*", "convert*", "verify/values", "verify/compare", "verify/survey"],
    "cli": FORMATS + BLOCKS + ["kernels*", "quantize*", "convert*", "verify*", "report*", "cli*"],
}
MAY_INCLUDE |= {f"cli/{folder}": MAY_INCLUDE["cli"] for folder in ("batch", "commands", "help", "io", "show", "show/inspect")}
CODE = {".c", ".h", ".cu", ".cuh", ".inc"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)
# cli/io/output.c escapes names from files and checks each write.
PRINTS = re.compile(r"(?<![A-Za-z0-9_])(v?f?printf|f?puts|putchar|fputc|putc|fwrite|perror|exit|_exit|abort)\(")


def sources():
    """Returns the sources of all modules, as paths relative to the root."""
    tops = sorted({name.split("/")[0] for name in MAY_INCLUDE})
    return sorted(path.relative_to(ROOT) for top in tops for path in (ROOT / top).rglob("*") if path.suffix in CODE)


def without_comments(text):
    """Returns the code without comments, which may mention printf."""
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def allowed(module, other):
    """Returns True if files of `module` may include files of `other`."""
    return module == other or any(
        other == name or name.endswith("*") and (other + "/").startswith(name[:-1] + "/") for name in MAY_INCLUDE[module])


def test_imports():
    """Returns the modules of tests/cli that import another one. Shared code belongs in tests/common."""
    for path in sorted((ROOT / "tests/cli").rglob("*.py")):
        for found in re.finditer(r"^[ \t]*(?:from|import)[ \t]+(test_\w+)", path.read_text(), re.M):
            yield f"{path.relative_to(ROOT)}: imports {found.group(1)}; move shared code to tests/common"


def main():
    faults = list(test_imports())
    includes = {}
    for path in sources():
        module = str(path.parent)
        text = (ROOT / path).read_text()
        if module not in MAY_INCLUDE:
            faults.append(f"{path}: its folder is not a module of docs/design.md: {', '.join(MAY_INCLUDE)}")
            continue
        includes[path] = [pathlib.Path(name) for name in INCLUDE.findall(text)]
        for target in includes[path]:
            if not (ROOT / target).is_file() and not (ROOT / f"{target}.in").is_file():  # Meson generates headers from .h.in
                faults.append(f"{path}: includes \"{target}\", which does not exist: paths are relative to the root of the repository")
            elif not allowed(module, str(target.parent)):
                faults.append(f"{path}: {module} must not include {target}")
        if str(path) != "cli/io/output.c":
            for found in PRINTS.finditer(without_comments(text)):
                if not module.startswith("cli") or found.group(1) not in ("exit", "_exit", "abort"):
                    faults.append(f"{path}: {found.group(1)} is only allowed in cli/io/output.c")
    for fault in faults:
        print(fault)
    print(f"{len(includes)} passed, {len(faults)} failed")
    sys.exit(1 if faults or not includes else 0)


if __name__ == "__main__":
    main()
