#!/usr/bin/env python3
"""A floating-point mode set by others (subnormals flushed, rounding up) changes no byte and no figure of the output."""

import json
import os
import pathlib
import random
import shutil
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "common"))
import harness

# Flush to zero, subnormals are zero, round up; exceptions masked.
MODE = "DFC0"
WRITING = [
    ["quantize", "SRC"],
    ["quantize", "SRC", "--scale-fmt", "ue8m0", "--scales", "mse"],
    ["quantize", "SRC", "--scheme", "fp8-channel"],
    ["quantize", "SRC", "--scheme", "int8-channel"],
    ["quantize", "SRC", "--scheme", "int4-weight-only", "--zero-points"],
    ["convert", "FP8", "--to", "bf16"],
    ["convert", "FP8", "--to", "fp8-block", "--scale-fmt", "ue8m0"],
]
TELLING = [
    ["diff", "SRC", "FP8"],
    ["verify", "FP8", "--against", "SRC"],
    ["verify", "forward", "FP8", "--against", "SRC"],
    ["compare-schemes", "SRC"],
    ["plan-schemes", "SRC", "--bits", "8"],
]


def add_subnormals(directory):
    """Every third value of every weight becomes one of BF16's smallest, subnormals among them."""
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


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    checks = harness.Checks()
    shim = harness.shim_path(options)
    with harness.temporary_directory(options.directory) as work:
        places = {word: os.path.join(work, word.lower()) for word in ("SRC", "FP8")}
        harness.make_checkpoint(options.make, "llama", places["SRC"], scale="tiny")
        add_subnormals(places["SRC"])
        harness.run(options.tessera, ["quantize", places["SRC"], "-o", places["FP8"]])
        for command in WRITING:
            name = " ".join(command)
            trees = [os.path.join(work, which) for which in ("usual", "preloaded")]
            for tree, settings in zip(trees, ({}, {"MXCSR": MODE})):
                args = [places.get(word, word) for word in command] + ["-o", tree, "--threads", "3"]
                code, _, stderr = harness.run_shimmed(options.tessera, args, shim, **settings)
                checks.check(f"{name} {settings}", code == 0, f"exit {code}: {stderr.strip()}")
            difference = harness.tree_difference(*trees)
            checks.check(f"{name}: same bytes", difference is None, difference)
            for tree in trees:
                shutil.rmtree(tree, ignore_errors=True)
        for command in TELLING:
            name = " ".join(command)
            told = []
            for settings in ({}, {"MXCSR": MODE}):
                args = [places.get(word, word) for word in command] + ["--json", "-", "--threads", "3"]
                code, stdout, stderr = harness.run_shimmed(options.tessera, args, shim, **settings)
                if checks.check(f"{name} {settings}", code in (0, 1), f"exit {code}: {stderr.strip()}"):
                    told.append((code, harness.figures(json.loads(stdout))))
            checks.check(f"{name}: same figures", len(told) == 2 and told[0] == told[1])
    checks.finish()


if __name__ == "__main__":
    main()
