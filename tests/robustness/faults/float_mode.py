#!/usr/bin/env python3
"""Tests that the floating-point mode of the caller (flushed subnormals, other rounding) does not change any output.

Each command runs under one of MODES, one after the other, and with --all under each."""

import json
import os
import pathlib
import random
import shutil
import struct
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness

# Rounding as fenv.h has it, and MXCSR: flush to zero and subnormals are zero, with exceptions masked, or subnormals kept and
# inexact results trapped.
MODES = {"up, flushed": "800 DFC0", "down": "400 3F80", "toward zero, flushed": "C00 FFC0", "nearest, flushed": "0 9FC0", "traps": "0 0F80"}
WRITING = [
    "quantize SRC", "quantize SRC --scale-fmt ue8m0 --scales mse", "quantize SRC --scheme fp8-channel",
    "quantize SRC --scheme int8-channel", "quantize SRC --scheme int8-weight-only --scales mse", "quantize SRC --scheme int4-weight-only --zero-points",
    "quantize SRC --scheme mxfp8", "quantize SRC --scheme mxfp4-weight-only --mx-scale rceil", "quantize SRC --scheme nvfp4-weight-only",
    "convert FP8 --to bf16", "convert FP8 --to bf16 --dtype f16", "convert FP8 --to fp8-block --scale-fmt ue8m0", "convert FP8 --to fp8-channel",
    "convert INT4 --to bf16", "convert INT4 --to int8-channel --lossy", "convert SRC --to archive",
]
TELLING = [
    "diff SRC FP8", "diff SRC INT4", "verify FP8 --against SRC", "verify INT4 --against SRC", "verify forward FP8 --against SRC",
    "verify gemm FP8 --against SRC --device cpu", "verify dequant INT4 --device cpu", "verify all FP8 --against SRC --device cpu --sample 2 --count 2",
    "compare-schemes SRC", "plan-schemes SRC --bits 8", "inspect SRC:model.layers.0.mlp.up_proj.weight", "inspect FP8", "report RESULT",
]


def add_subnormals(directory):
    """Changes every third value of every weight to one of BF16's smallest numbers, including subnormals."""
    rng = random.Random(1)
    tiny = [struct.pack("<H", rng.randrange(0x0200) | rng.choice((0, 0x8000))) for _ in range(997)]
    for path in pathlib.Path(directory).glob("*.safetensors"):
        metadata, tensors = harness.read_safetensors(path)
        for name, (dtype, shape, data) in tensors.items():
            if dtype == "BF16" and len(shape) == 2 and ("proj" in name):
                data = bytearray(data)
                for i, at in enumerate(range(0, len(data), 6)):
                    data[at:at + 2] = tiny[i % len(tiny)]
                # Whole blocks as well, so that their scales are tiny, too.
                columns = shape[1] * 2
                for row in range(min(128, shape[0])):
                    for column in range(0, min(256, columns), 2):
                        data[row * columns + column:row * columns + column + 2] = tiny[(row + column) % len(tiny)]
                tensors[name] = (dtype, shape, bytes(data))
        harness.write_safetensors(path, tensors, metadata)


class Modes:
    """Runs a tool whose threads begin in another floating-point mode, set by tests/robustness/faults/shim."""

    def __init__(self, options, work):
        self.options = options
        self.shim = harness.shim_path(options)
        self.places = {word: os.path.join(work, word.lower()) for word in ("SRC", "FP8", "INT4", "RESULT")}

    def run(self, command, mode, *more):
        words = [self.places.get(word.partition(":")[0], word) + (word[word.index(":"):] if word.startswith("SRC:") else "") for word in command.split()]
        threads = [] if words[0] in ("inspect", "report") else ["--threads", "3"]
        environment = dict(os.environ, LD_PRELOAD=self.shim, **({"FAULTS_FLOAT": mode} if mode else {}))
        return harness.run_in(environment, self.options.tessera, [*words, *more, *threads])


def compare(checks, modes, number, command, ended_as, told):
    """Checks that `told` returns the same in the default mode and in others."""
    usual = modes.run(command, None, *ended_as)
    if not checks.check(f"{command}: runs", usual[0] in (0, 1), f"exit {usual[0]}: {usual[2].strip()}"):
        return
    expected = told(usual)
    for at, (name, mode) in enumerate(MODES.items()):
        if modes.options.all or at == number % len(MODES):
            run = modes.run(command, mode, *ended_as)
            checks.check(f"{command}, {name}: as ever", run[0] == usual[0] and told(run) == expected, f"exit {run[0]}: {run[2].strip()}")


def tree_of(folder):
    """Returns the bytes of all files below a folder, and removes it."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in pathlib.Path(folder).rglob("*") if path.is_file()}
    shutil.rmtree(folder, ignore_errors=True)
    return {name: data for name, data in found.items() if not name.startswith(".tessera/")}


def main():
    options = harness.parse_options(__doc__, all="every command in every mode")
    with harness.checks_in(options.directory) as (checks, work):
        modes = Modes(options, work)
        harness.make_checkpoint(options.make, "llama", modes.places["SRC"], scale="tiny")
        add_subnormals(modes.places["SRC"])
        modes.run("quantize SRC -o FP8 --json RESULT", None)
        modes.run("quantize SRC -o INT4 --scheme int4-weight-only", None)
        target = os.path.join(work, "out")
        for number, command in enumerate(WRITING):
            compare(checks, modes, number, command, ["-o", target], lambda run: tree_of(target))
        for number, command in enumerate(TELLING):
            compare(checks, modes, number, command, ["--json", "-"], lambda run: harness.figures(json.loads(run[1])))


if __name__ == "__main__":
    main()
