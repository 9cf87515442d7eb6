#!/usr/bin/env python3
"""Checks that the ctypes structs of the GPU benchmarks match the C headers: names, offsets and sizes of members.

Needs neither a GPU nor PyTorch.
"""
import ctypes
import importlib
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[1]
# (module, class, header, struct)
STRUCTS = [
    ("sweep_common", "Config", "block_fp8_gemm.h", "tsr_gemm_config"),
    ("sweep_common", "Gemm", "block_fp8_gemm.h", "tsr_block_fp8_gemm"),
    ("sweep_common", "Device", "cuda_launch.h", "tsr_cuda_device"),
    ("sweep_grouped", "Grouped", "block_fp8_grouped.h", "tsr_block_fp8_grouped"),
    ("sweep_attention", "Decode", "mla_decode.h", "tsr_mla_decode"),
    ("sweep_attention", "Prefill", "prefill.h", "tsr_prefill"),
    ("sweep_sparse", "IndexScores", "index_scores.h", "tsr_index_scores"),
    ("sweep_int4", "WeightOnly", "weight_only_gemm.h", "tsr_weight_only_gemm"),
    ("sweep_int8", "Gemm", "int8_gemm.h", "tsr_int8_gemm"),
]


def places_in_c(rows):
    """Returns (place, size) of each member and then the struct's size, row by row, as the compiler computes them."""
    lines = []
    for header, struct, members in rows:
        lines += [f'printf("%zu %zu\\n", offsetof({struct}, {name}), sizeof(({struct} *)0)->{name});' for name in members]
        lines.append(f'printf("%zu %zu\\n", (size_t)0, sizeof({struct}));')
    headers = "".join(f'#include "kernels/cuda/{header}"\n' for header in dict.fromkeys(header for header, _, _ in rows))
    program = f"#include <stddef.h>\n#include <stdio.h>\n{headers}int main(void) {{\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    with tempfile.TemporaryDirectory() as folder:
        binary = pathlib.Path(folder) / "places"
        subprocess.run(["cc", "-std=gnu11", f"-I{ROOT}", "-x", "c", "-", "-o", binary], input=program, text=True, check=True)
        told = subprocess.run([binary], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [tuple(map(int, line.split())) for line in told.splitlines()]


def main():
    sys.path[:0] = [str(ROOT / name) for name in ("tests/gpu", "tests/peers/kernels")]
    for module in "torch", "torch.nn", "torch.nn.attention":  # the benchmarks import it, but nothing of it is called here
        sys.modules[module] = mock.MagicMock()
    classes = [getattr(importlib.import_module(module), name) for module, name, _, _ in STRUCTS]
    members = [[field[0] for field in cls._fields_] for cls in classes]
    told = iter(places_in_c([(header, struct, names) for (_, _, header, struct), names in zip(STRUCTS, members)]))
    failed = 0
    for (module, name, header, struct), cls, names in zip(STRUCTS, classes, members):
        here = [(getattr(cls, member).offset, getattr(cls, member).size) for member in names] + [(0, ctypes.sizeof(cls))]
        there = [next(told) for _ in here]
        wrong = [member for member, a, b in zip([*names, "its size"], here, there) if a != b]
        if wrong:
            failed += 1
            print(f"FAILED tests/peers/kernels/{module}.py: {name} is not {struct} of kernels/cuda/{header}: {', '.join(wrong)}")
    print(f"{len(STRUCTS) - failed} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
