#!/usr/bin/env python3
"""The compressed-tensors package reads what tessera writes in that dialect.

Its models of the configuration accept config.json, its list of ignored modules covers what is not quantized, and its
decompressor gives, of every weight, the value that the numbers mean: of integers, and of e4m3 with a scale a row, what
tessera convert --to bf16 gives; of NVFP4, MXFP4 and MXFP8, what the definition gives. Its compressor makes of the source and
our scales our codes. Its packing of the same codes and zero points gives the same words. Needs torch,
transformers and compressed-tensors.
"""

import json
import os
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

try:
    import numpy as np
    import safetensors.torch
    import torch
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

# name, kind of checkpoint, the commands that lead from SRC to DST; "MID" is what the first leaves
JOBS = [
    ("quantize", "llama", ["quantize SRC -o DST --dialect compressed-tensors"]),
    ("dialect", "deepseek-v3", ["quantize SRC -o MID", "convert MID -o DST --to fp8-block --dialect compressed-tensors"]),
]

INT4 = "quantize SRC -o DST --scheme int4-weight-only --group-size"
# name, the command, the dtype in which the package computes: that of the scales
BY_ROW = [
    ("fp8-channel", "quantize SRC -o DST --scheme fp8-channel", "f32"),
    ("int8-channel", "quantize SRC -o DST --scheme int8-channel", "f32"),
    ("int8-channel, asymmetric inputs", "quantize SRC -o DST --scheme int8-channel --activation-zero-points", "f32"),
    ("int8, rows", "quantize SRC -o DST --scheme int8-weight-only", "bf16"),
    ("int8, groups", "quantize SRC -o DST --scheme int8-weight-only --group-size 128", "bf16"),
    ("int4, rows", INT4 + " 0", "bf16"),
    ("int4, groups of 32", INT4 + " 32", "bf16"),
    ("int4, groups of 128", INT4 + " 128", "bf16"),
    ("int4, groups of 64, zero points", INT4 + " 64 --zero-points", "bf16"),
    ("int4, rows, zero points", INT4 + " 0 --zero-points", "bf16"),
]

# NVFP4, MXFP4 and MXFP8.
BY_GROUP = [f"quantize SRC -o DST --scheme {scheme}" for scheme in (
    "nvfp4-weight-only", "nvfp4 --activations RANGES", "mxfp4", "mxfp4-weight-only --scales mse", "mxfp8",
    "mxfp8-weight-only --mx-scale ceil")]


def load(directory):
    tensors = {}
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        tensors.update(safetensors.torch.load_file(path))
    return tensors


def load_model(directory):
    """Loads the model without the file of sums, which have the names of weights."""
    return {key: value for path in sorted(pathlib.Path(directory).glob("model*.safetensors"))
            for key, value in safetensors.torch.load_file(path).items()}


def expected(module, args):
    """Returns value(code) * scale in FP32, from the definition."""
    weight, scale = module["weight"].float(), module["weight_scale"].float()
    rows, cols = args.block_structure
    spread = scale.repeat_interleave(rows, 0).repeat_interleave(cols, 1)
    return weight * spread[: weight.shape[0], : weight.shape[1]]


def read_config(directory):
    """Returns (configuration, scheme of its only group, compressor), as compressed-tensors reads them from config.json."""
    config = json.loads((pathlib.Path(directory) / "config.json").read_text())["quantization_config"]
    beside = ("sparsity_config", "transform_config", "version")  # which its reader of checkpoints takes off before
    model = QuantizationConfig.model_validate({key: value for key, value in config.items() if key not in beside})
    scheme = QuantizationScheme.model_validate(config["config_groups"]["group_0"])
    return model, scheme, BaseCompressor.get_value_from_registry(model.format)


def quantized_modules(checks, name, tensors, ignored):
    """Yields (module, its tensors by the last part of their names) of each quantized module."""
    modules = sorted(key.removesuffix(".weight_scale") for key in tensors if key.endswith(".weight_scale"))
    checks.check(f"{name}: something is quantized", modules)
    checks.check(f"{name}: nothing quantized is ignored", not set(modules) & set(ignored))
    for module in modules:
        yield module, {key.removeprefix(module + "."): value for key, value in tensors.items() if key.startswith(module + ".")}


def check_output(checks, name, directory):
    config = json.loads((pathlib.Path(directory) / "config.json").read_text())["quantization_config"]
    model = QuantizationConfig.model_validate(config)
    group = config["config_groups"]["group_0"]
    scheme = QuantizationScheme.model_validate({key: value for key, value in group.items() if key != "format"})
    compressor = BaseCompressor.get_value_from_registry(model.format)
    for module, parts in quantized_modules(checks, name, load(directory), model.ignore):
        if parts["weight"].dim() != 2 or any(n % 128 for n in parts["weight"].shape):
            continue  # the package infers blocks from shapes, and is wrong for ragged ones
        got = compressor.decompress(parts, scheme)["weight"].float()
        checks.check(f"{name}: {module}", torch.equal(got, expected(parts, scheme.weights)))


def codes_of(words, bits, count):
    """Unpacks I32 words along their last dimension in NumPy, the first code in the lowest bits."""
    fields = words.numpy().view(np.uint32)[..., None] >> (bits * np.arange(32 // bits, dtype=np.uint32)) & (2**bits - 1)
    codes = fields.reshape(*words.shape[:-1], -1)[..., :count].astype(np.int64) - 2 ** (bits - 1)
    return torch.from_numpy(codes.astype(np.int8))


def check_packing(checks, name, parts, args):
    """Compares with the package's packing. Zero points are packed along the rows."""
    rows, cols = parts["weight_shape"].tolist()
    codes = codes_of(parts["weight_packed"], args.num_bits, cols)
    checks.check(f"{name}: packing", torch.equal(pack_to_int32(codes, args.num_bits), parts["weight_packed"]))
    if "weight_zero_point" in parts:
        ours = parts["weight_zero_point"]
        zeros = codes_of(ours.T.contiguous(), args.num_bits, rows).T.contiguous()
        checks.check(f"{name}: zero points", torch.equal(pack_to_int32(zeros, args.num_bits, packed_dim=0), ours))


def check_by_row(checks, name, directory, values):
    """Compares with `values`, Tessera's decoded weights."""
    model, scheme, compressor = read_config(directory)
    want = load(values)
    for module, parts in quantized_modules(checks, name, load_model(directory), model.ignore):
        got = compressor.decompress(dict(parts), scheme)["weight"]
        checks.check(f"{name}: {module}", torch.equal(got, want[module + ".weight"]))
        if "weight_packed" in parts:
            check_packing(checks, f"{name}: {module}", parts, scheme.weights)


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def meant(parts):
    """Returns value(code) * scale in FP32, rounded to BF16 once."""
    scale, packed = parts["weight_scale"], parts.get("weight_packed")
    unit = scale.float() if scale.dtype != torch.uint8 else torch.ldexp(torch.ones(scale.shape), scale.int() - 127)
    if "weight_global_scale" in parts:
        unit = unit / parts["weight_global_scale"]
    if packed is None:
        values = parts["weight"].float()
    else:
        values = E2M1[torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()]
    return (values * unit.repeat_interleave(values.shape[1] // unit.shape[1], 1)).bfloat16()


def check_by_group(checks, name, directory, source):
    model, scheme, compressor = read_config(directory)
    plain = load(source)
    for module, parts in quantized_modules(checks, name, load(directory), model.ignore):
        got = compressor.decompress(dict(parts), scheme)
        checks.check(f"{name}: {module}", torch.equal(got["weight"].bfloat16(), meant(parts)))
        again = {"weight": plain[module + ".weight"], "weight_scale": got["weight_scale"]}
        if "weight_global_scale" in parts:
            again["weight_global_scale"] = parts["weight_global_scale"]
        made, codes = compressor.compress(again, scheme), "weight_packed" if "weight_packed" in parts else "weight"
        checks.check(f"{name}: {module}: codes", torch.equal(made[codes].view(torch.uint8), parts[codes].view(torch.uint8)))
        checks.check(f"{name}: {module}: scales", torch.equal(made["weight_scale"].view(torch.uint8),
                                                              parts["weight_scale"].view(torch.uint8)))


def write_ranges(path, source):
    modules = (name.removesuffix(".weight") for name, t in load(source).items() if t.dim() == 2)
    pathlib.Path(path).write_text(json.dumps({module: {"min": -3, "max": 4.5} for module in modules}))


def run(checks, options, name, command, places):
    args = [places.get(word, word) for word in command.split()]
    checks.ends(f"{name}: {command}", options.tessera, [*args, "--quiet"])


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    checks = harness.Checks()
    for name, kind, commands in JOBS:
        with harness.temporary_directory(options.directory) as work:
            places = {part: os.path.join(work, part.lower()) for part in ("SRC", "MID", "DST")}
            harness.make_checkpoint(options.make, kind, places["SRC"])
            for command in commands:
                run(checks, options, name, command, places)
            check_output(checks, name, places["DST"])
    for name, command, dtype in BY_ROW:
        with harness.temporary_directory(options.directory) as work:
            places = {part: os.path.join(work, part.lower()) for part in ("SRC", "DST", "VALUES")}
            harness.make_checkpoint(options.make, "llama", places["SRC"])
            run(checks, options, name, command, places)
            run(checks, options, name, f"convert DST -o VALUES --to bf16 --dtype {dtype}", places)
            check_by_row(checks, name, places["DST"], places["VALUES"])
    for command in BY_GROUP:
        with harness.temporary_directory(options.directory) as work:
            places = {part: os.path.join(work, part.lower()) for part in ("SRC", "DST", "RANGES")}
            places["RANGES"] += ".json"
            harness.make_checkpoint(options.make, "llama", places["SRC"])
            write_ranges(places["RANGES"], places["SRC"])
            name = command.partition("--scheme ")[2]
            run(checks, options, name, command, places)
            check_by_group(checks, name, places["DST"], places["SRC"])
    checks.finish()


if __name__ == "__main__":
    main()
