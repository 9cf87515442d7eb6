#!/usr/bin/env python3
"""The compressed-tensors package reads what tessera writes in that dialect.

Its models of the configuration accept config.json, its list of ignored modules covers what is not quantized, and its
decompressor gives, of every weight, the value that the numbers mean. Needs torch, transformers and compressed-tensors.
"""

import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "common"))
import harness

try:
    import safetensors.torch
    import torch
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

# name, kind of checkpoint, the commands that lead from SRC to DST; "MID" is what the first leaves
JOBS = [
    ("quantize", "llama", ["quantize SRC -o DST --dialect compressed-tensors"]),
    ("dialect", "deepseek-v3", ["quantize SRC -o MID", "convert MID -o DST --to fp8-block --dialect compressed-tensors"]),
]


def load(directory):
    tensors = {}
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        tensors.update(safetensors.torch.load_file(path))
    return tensors


def expected(module, args):
    """value(code) * scale in FP32, from the definition."""
    weight, scale = module["weight"].float(), module["weight_scale"].float()
    rows, cols = args.block_structure
    spread = scale.repeat_interleave(rows, 0).repeat_interleave(cols, 1)
    return weight * spread[: weight.shape[0], : weight.shape[1]]


def check_output(checks, name, directory):
    config = json.loads((pathlib.Path(directory) / "config.json").read_text())["quantization_config"]
    model = QuantizationConfig.model_validate(config)
    group = config["config_groups"]["group_0"]
    scheme = QuantizationScheme.model_validate({key: value for key, value in group.items() if key != "format"})
    compressor = BaseCompressor.get_value_from_registry(model.format)
    tensors = load(directory)
    modules = sorted(key.removesuffix(".weight_scale") for key in tensors if key.endswith(".weight_scale"))
    checks.check(f"{name}: something is quantized", modules)
    checks.check(f"{name}: nothing quantized is ignored", not set(modules) & set(model.ignore))
    for module in modules:
        parts = {key.removeprefix(module + "."): value for key, value in tensors.items() if key.startswith(module + ".")}
        if parts["weight"].dim() != 2 or any(n % 128 for n in parts["weight"].shape):
            continue  # the package infers blocks from shapes, and is wrong for ragged ones
        got = compressor.decompress(parts, scheme)["weight"].float()
        checks.check(f"{name}: {module}", torch.equal(got, expected(parts, scheme.weights)))


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    checks = harness.Checks()
    for name, kind, commands in JOBS:
        with harness.temporary_directory(options.directory) as work:
            places = {part: os.path.join(work, part.lower()) for part in ("SRC", "MID", "DST")}
            harness.make_checkpoint(options.make, kind, places["SRC"])
            for command in commands:
                args = [places.get(word, word) for word in command.split()]
                code, _, err = harness.run(options.tessera, [*args, "--quiet"])
                checks.check(f"{name}: {command}", code == 0, err)
            check_output(checks, name, places["DST"])
    checks.finish()


if __name__ == "__main__":
    main()
