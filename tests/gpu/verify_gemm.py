#!/usr/bin/env python3
"""`tessera verify gemm --device cuda` over block FP8: every kernel of the GPU on a small checkpoint, ragged shapes and sets of
experts among its weights; --full on a whole layer of DeepSeek-V3, 256 experts and all (11 GB, written first), with where the
seconds went.
"""

import json
import os
import pathlib
import random
import struct
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

HIDDEN, INNER, EXPERTS, DISTINCT = 7168, 2048, 256, 8
ATTENTION = {"q_a_proj": (1536, HIDDEN), "q_b_proj": (24576, 1536), "kv_a_proj_with_mqa": (576, HIDDEN),
             "kv_b_proj": (32768, 512), "o_proj": (HIDDEN, 16384)}
MLP = {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
CONFIG = {"model_type": "deepseek_v3", "hidden_size": HIDDEN, "num_hidden_layers": 1, "n_routed_experts": EXPERTS,
          "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                  "weight_block_size": [128, 128]}}
KERNELS = ("CUDA plain", "CUDA mma", "CUDA fast")


def block_fp8(rows, cols):
    """Returns (codes, scales) of any sign and size, without NaN."""
    codes = bytes(c & 0xFE if c & 0x7F == 0x7F else c for c in range(256))
    grid = -(-rows // 128) * -(-cols // 128)
    return random.randbytes(rows * cols).translate(codes), struct.pack(f"<{grid}f", *(random.uniform(1e-4, 2e-4) for _ in range(grid)))


def make_layer(directory):
    """Makes one layer. Every expert has one of a few sets of weights."""
    random.seed(2)
    directory.mkdir()
    tensors = {}

    def add(name, shape, weight):
        tensors[f"model.layers.0.{name}.weight"] = ("F8_E4M3", shape, weight[0])
        tensors[f"model.layers.0.{name}.weight_scale_inv"] = ("F32", [-(-n // 128) for n in shape], weight[1])

    for name, shape in ATTENTION.items():
        add(f"self_attn.{name}", shape, block_fp8(*shape))
    few = {name: [block_fp8(*shape) for _ in range(DISTINCT)] for name, shape in MLP.items()}
    for module in ["shared_experts", *(f"experts.{e}" for e in range(EXPERTS))]:
        for name, shape in MLP.items():
            add(f"mlp.{module}.{name}", shape, few[name][len(tensors) % DISTINCT])
    harness.write_safetensors(directory / "model.safetensors", tensors)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return directory


def verify(checks, tessera, name, directory, *options):
    """Returns the judgements of kernels, {(subject, what): judgement}."""
    code, out, err = harness.run(tessera, ["verify", "gemm", directory, "--device", "cuda", "--json", "-", *options])
    harness.skip_without_gpu(code, err)
    if not checks.check(f"{name}: exit code", code == 0, err):
        return {}
    result = json.loads(out)
    found = {(j["subject"], j["what"]): j for j in result["judgements"] if j["kind"] == "kernel"}
    for (subject, what), j in found.items():
        checks.check(f"{name}: {subject}, {what}", j["passed"], j["fault"])
    phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in result["phase_seconds"].items())
    subjects = {subject for subject, _ in found}
    print(f"{name}: {result['device']}, {len(subjects)} tensors or sets, {len(found)} judgements of kernels, "
          f"{result['seconds']:.2f} s; summed over threads: {phases}", flush=True)
    for kernel in KERNELS:
        of = [j["of_bound"] for (_, what), j in found.items() if what.startswith(kernel) and j["of_bound"] is not None]
        checks.check(f"{name}: {kernel} was judged", of)
        print(f"  {kernel}: {len(of)} judgements, at most {max(of, default=0):.3g} of the bound")
    return found


def main():
    options = harness.parse_options(__doc__, full="also a layer of DeepSeek-V3's sizes")
    with harness.checks_in(options.directory) as (checks, work):
        source, small = os.path.join(work, "src"), os.path.join(work, "fp8")
        harness.make_checkpoint(options.make, "deepseek-v3", source, scale="tiny")
        checks.ends("quantize", options.tessera, ["quantize", source, "-o", small, "--quiet"])
        found = verify(checks, options.tessera, "a tiny DeepSeek-V3", small)
        checks.check("sets of experts, in both layouts", all(any(layout in what for _, what in found) for layout in ("contiguous", "masked")),
                     sorted({what for _, what in found}))
        # AUTO takes the kernel for many tokens: tests/mutation/mutants_table.py has a fault in it that only this count finds.
        verify(checks, options.tessera, "the same, 4,096 tokens", small, "--tokens", "4096")
        for scaling in ("64x128", "128x128"):
            verify(checks, options.tessera, f"the same, scales of activations by {scaling}", small, "--scaling", scaling, "--tokens", "200")
        if options.full:
            began = time.monotonic()
            layer = make_layer(work / "layer")
            print(f"written in {time.monotonic() - began:.0f} s")
            verify(checks, options.tessera, "a layer of DeepSeek-V3", layer)


if __name__ == "__main__":
    main()
