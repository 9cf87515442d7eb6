#!/usr/bin/env python3
"""Integers under `tessera verify --device cuda` and `--device cpu`: whatever the CPU judged is judged the same beside a
GPU, the GPU's kernels are as near to double as the CPU's, and a fault in a checkpoint is named. Stdlib only.

    python3 tests/gpu/verify_int.py --tessera build/cli/tessera --make build/tests/make/make_checkpoint
"""

import json
import os
import pathlib
import struct
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

# name, check, quantize's options
FORMS = [
    ("W8A8, static, zero points", "epilogue", ["int8-channel", "--activations", "RANGES", "--activation-zero-points"]),
    ("W8A8, static", "epilogue", ["int8-channel", "--activations", "RANGES"]),
    ("W8A8", "epilogue", ["int8-channel"]),
    ("W8A16 of W8A8", "dequant", ["int8-channel"]),
    ("W8A16", "dequant", ["int8-weight-only"]),
    ("W8A16, groups", "dequant", ["int8-weight-only", "--group-size", "128"]),
    ("W4A16", "dequant", ["int4-weight-only", "--group-size", "0"]),
    ("W4A16, groups of 32", "dequant", ["int4-weight-only", "--group-size", "32"]),
    ("W4A16, groups of 64", "dequant", ["int4-weight-only", "--group-size", "64"]),
    ("W4A16, groups of 128", "dequant", ["int4-weight-only"]),
    ("W4A16, zero points", "dequant", ["int4-weight-only", "--zero-points"]),
    ("W4A16, zero points, groups of 32", "dequant", ["int4-weight-only", "--zero-points", "--group-size", "32"]),
    ("W4A16, zero points, a scale a channel", "dequant", ["int4-weight-only", "--zero-points", "--group-size", "0"]),
]
# Two kernels that round nearly the same sums to the same type.
TOLERANCE = 0.2


def write_ranges(source, path):
    """Writes random ranges of the inputs of every projection."""
    names = [name for file in pathlib.Path(source).glob("*.safetensors") for name in harness.read_safetensors(file)[1]]
    modules = [name.removesuffix(".weight") for name in names if name.endswith("_proj.weight")]
    path.write_text(json.dumps({module: {"min": -1.5, "max": 4.25} for module in modules}))


def verify(tessera, check, device, directory):
    """Returns (exit code, the result as JSON)."""
    code, out, err = harness.run(tessera, ["verify", check, directory, "--device", device, "--sample", "3", "--json", "-"])
    harness.skip_without_gpu(code, err)
    if code not in (0, 1):
        raise RuntimeError(f"verify {check} --device {device}: exit {code}: {err}")
    return code, json.loads(out)


def by_place(result):
    return {(j["subject"], j["what"]): j for j in result["judgements"]}


def check_both(checks, tessera, name, check, directory):
    """Compares what the results of both devices have in common. Returns the judgements by position."""
    results = {device: verify(tessera, check, device, directory) for device in ("cpu", "cuda")}
    for device, (code, result) in results.items():
        wrong = [f"{j['what']}: {j['fault']}" for j in result["judgements"] if not j["passed"]]
        checks.check(f"{name}: {check} is sound on {device}", code == 0, wrong[:4])
    on_cpu, on_gpu = (by_place(results[device][1]) for device in ("cpu", "cuda"))
    checks.check(f"{name}: {check}: the CPU's judgements are the same beside a GPU",
                 on_cpu and all(on_gpu.get(place) == j for place, j in on_cpu.items()))
    return on_cpu, on_gpu


def check_form(checks, tessera, name, check, directory):
    on_cpu, on_gpu = check_both(checks, tessera, name, check, directory)
    kernels = {"CUDA plain": 0, "CUDA fast": 0}
    for (subject, what), j in on_gpu.items():
        kernel, _, rest = what.partition(": ")
        peer = on_cpu.get((subject, "reference: " + rest))
        if kernel not in kernels or peer is None:
            continue
        kernels[kernel] += 1
        checks.check(f"{name}: {subject}, {what}: as near as the CPU's",
                     j["relative_error"] <= peer["relative_error"] * (1 + TOLERANCE),
                     f"{j['relative_error']:.3g}, the CPU's {peer['relative_error']:.3g}")
    print(f"{name:28} {len(on_cpu):5} judgements on the CPU, {len(on_gpu):5} with a GPU; "
          + ", ".join(f"{count} of {kernel}" for kernel, count in kernels.items()), flush=True)
    checks.check(f"{name}: both kernels of the GPU were judged", all(kernels.values()), kernels)
    if check == "dequant":
        fast = " ".join(what for _, what in on_gpu if what.startswith("CUDA fast: product"))
        checks.check(f"{name}: the fast one with few tokens and with more",
                     all(m in fast for m in (" 1 token,", " 16 tokens", " 24 tokens")), fast)


def check_fault(checks, tessera, directory):
    """Adds 1000 to one azp_with_adj of each tensor."""
    path = os.path.join(directory, "tessera-azp.safetensors")
    metadata, tensors = harness.read_safetensors(path)
    for name, (dtype, shape, data) in tensors.items():
        if name.endswith(".azp_with_adj"):
            number = struct.unpack_from("<i", data)[0] + 1000
            tensors[name] = (dtype, shape, struct.pack("<i", number) + data[4:])
    harness.write_safetensors(path, tensors, metadata)
    code, result = verify(tessera, "epilogue", "cuda", directory)
    failed = {j["what"] for j in result["judgements"] if not j["passed"]}
    checks.check("a wrong azp_with_adj: named", code == 1 and "azp_with_adj of the checkpoint" in failed, failed)
    checks.check("a wrong azp_with_adj: nothing else fails", failed == {"azp_with_adj of the checkpoint"}, failed)


def quantized_models(checks, options, work, schemes):
    """Quantizes one model by each scheme; RANGES is a file of ranges. Returns the directories by name, in `work`/0, 1, ..."""
    source, ranges = os.path.join(work, "src"), pathlib.Path(work, "ranges.json")
    harness.make_checkpoint(options.make, "llama", source)
    write_ranges(source, ranges)
    models = {}
    for number, (name, scheme) in enumerate(schemes.items()):
        directory = os.path.join(work, str(number))
        scheme = [str(ranges) if word == "RANGES" else word for word in scheme]
        if checks.ends(f"{name}: quantize", options.tessera, ["quantize", source, "-o", directory, "--quiet", "--scheme", *scheme]):
            models[name] = directory
    return models


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    with harness.checks_in(options.directory) as (checks, work):
        models = quantized_models(checks, options, work, {name: scheme for name, _, scheme in FORMS})
        for name, check, _ in FORMS:
            if name in models:
                check_form(checks, options.tessera, name, check, models[name])
        check_fault(checks, options.tessera, os.path.join(work, "0"))


if __name__ == "__main__":
    main()
