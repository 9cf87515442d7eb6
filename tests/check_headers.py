#!/usr/bin/env python3
"""Compiles each header alone, in C and in C++, to check that it includes what it needs.

Prints a line for each failure; ends with 'N passed, N failed'. Headers that include CUDA's are skipped if CUDA is not
installed. Without a C++ compiler only C is checked, and the exit code is 77."""

import concurrent.futures
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("common", "formats", "kernels", "quantize", "convert", "verify", "report", "lib", "cli")
CUDA = "cuda_runtime_api.h"
FLAGS = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", '-DTSR_VERSION="0"', f"-I{ROOT}"]


def needs_cuda(header):
    """Returns True if the file includes a header of CUDA, directly or through another header."""
    text = (ROOT / header).read_text()
    return f"#include <{CUDA}>" in text or any(needs_cuda(name) for name in re.findall(r'^#include "(.*\.h)"', text, re.M) if (ROOT / name).is_file())


def headers(has_cuda):
    """Returns every header that is an interface. Excluded are bodies, which a source includes once per form, and headers
    that only the sources of one instruction set include."""
    return sorted(path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.h")
                  if not path.name.endswith("_body.h") and path.parent.name not in ("x86", "arm")
                  and (has_cuda or not needs_cuda(path)))


def compilers():
    """Returns {language: command} of the compilers that Meson would use."""
    found = {}
    for language, variable, names in (("c", "CC", ("cc", "gcc", "clang")), ("c++", "CXX", ("c++", "g++", "clang++"))):
        name = os.environ.get(variable) or next((name for name in names if shutil.which(name)), None)
        if name:
            found[language] = shlex.split(name)
    return found


def compile_alone(command, language, header):
    """Returns None, or the compiler's messages."""
    standard = "-std=gnu11" if language == "c" else "-std=c++17"
    done = subprocess.run([*command, standard, *FLAGS, "-x", language, "-"], input=f'#include "{header}"\n', text=True,
                          capture_output=True)
    return None if done.returncode == 0 else f"{header}, alone in {language.upper()}:\n{done.stderr.strip()}"


def main():
    found = compilers()
    has_cuda = "c" in found and compile_alone(found["c"], "c", CUDA) is None
    judged = headers(has_cuda)
    if not has_cuda:
        print(f"left out: {len(headers(True)) - len(judged)} that include {CUDA}, which is not installed")
    jobs = [(command, language, header) for language, command in found.items() for header in judged]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = [fault for fault in pool.map(lambda job: compile_alone(*job), jobs) if fault]
    for fault in faults:
        print(fault)
    print(f"{len(jobs) - len(faults)} passed, {len(faults)} failed")
    if faults or "c" not in found or len(judged) < 100:
        return 1
    if "c++" not in found:
        print("skipped: headers in C++, for want of a C++ compiler (g++)")
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
