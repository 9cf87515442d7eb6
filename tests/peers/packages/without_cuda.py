#!/usr/bin/env python3
"""tests/peers/packages/without_cuda.py FOLDER: lets the PyTorch in FOLDER (…/site-packages/torch) load where no CUDA library is.

The wheel on PyPI is the one for CUDA, and wants some gigabytes of libraries beside it. Here it only computes on a CPU: each
library that it names but that is not there is replaced by an empty one, and all their functions by one that returns
"no device" (100). What is only of use on a GPU, or to compile against, is then given back to the disk.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

CUDA_LIBRARY = re.compile(r"lib(cu|nv|nccl)\w*\.so\.\d+")
CUDA_FUNCTION = re.compile(r"(cu|nv|nccl|__cuda)\w+")


def told(*command):
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


def undefined(library):
    """Returns undefined names without their versions."""
    return {line.split()[-1].partition("@")[0] for line in told("nm", "-D", "--undefined-only", library).splitlines()}


def link(source, target, *options):
    told("gcc", "-w", "-O1", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{target.name}", "-Wl,-rpath,$ORIGIN", source, "-o", target,
         "-Wl,--no-as-needed", f"-L{target.parent}", *options)


def stand_ins(folder):
    """Makes the functions in one library. The other names are libraries that link to it, because glibc's loader looks for
    versions in the library that a symbol names, and stops without them."""
    libraries = sorted(folder.glob("*.so"))
    needed = {match.group() for library in libraries for match in CUDA_LIBRARY.finditer(told("readelf", "-d", library))}
    functions = {name for library in libraries for name in undefined(library) if CUDA_FUNCTION.fullmatch(name)}
    with tempfile.TemporaryDirectory() as work:
        source, empty = pathlib.Path(work) / "functions.c", pathlib.Path(work) / "empty.c"
        source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in sorted(functions)))
        empty.write_text("")
        link(source, folder / "libno_cuda.so")
        for name in sorted(needed):
            link(empty, folder / name, "-lno_cuda")


def give_back(folder):
    """Frees headers and the code for GPUs by making holes in the files, if the file system supports it."""
    shutil.rmtree(folder / "include", ignore_errors=True)
    library = folder / "lib/libtorch_cuda.so"
    for line in told("readelf", "-SW", library).splitlines():
        section = re.search(r"\.nv_fatbin +PROGBITS +\w+ (\w+) (\w+)", line)
        if section:
            offset, size = (int(text, 16) for text in section.groups())
            subprocess.run(["fallocate", "--punch-hole", "--offset", str(offset), "--length", str(size), library], stderr=subprocess.DEVNULL)


def main():
    folder = pathlib.Path(sys.argv[1])
    if (folder / "lib/libtorch_cuda.so").exists():
        stand_ins(folder / "lib")
        give_back(folder)


if __name__ == "__main__":
    main()
