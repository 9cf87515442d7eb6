#!/usr/bin/env python3
"""`tessera verify mla --device cuda`: both decode kernels on shapes that the fast one takes and does not take, ranks in
turn on one GPU, and on two GPUs joined by NCCL where they are there; sparse attention and the scores of its indexer.
--full adds a layer of DeepSeek-V3's sizes.
"""

import json
import os
import pathlib
import random
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

CACHES = ("BF16 cache", "FP8 cache widened to BF16 on load")
RANKS = ("their heads", "sum against uncut")
SMALL = {"hidden_size": 1024, "num_attention_heads": 8, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
         "v_head_dim": 128, "kv_lora_rank": 512, "q_lora_rank": 384}
ODD = {"hidden_size": 96, "num_attention_heads": 6, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 40,
       "kv_lora_rank": 128, "q_lora_rank": None}
SPARSE = SMALL | {"model_type": "deepseek_v32", "index_n_heads": 64, "index_head_dim": 128, "index_topk": 70}
FULL = {"hidden_size": 7168, "num_attention_heads": 128, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "kv_lora_rank": 512, "q_lora_rank": 1536,
        "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
                         "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}}


def numbers(rows, cols):
    """Returns BF16 of any sign and of the size of 1 / sqrt(cols); of one column 0.5 to 2."""
    high = (0x3F,) if cols == 1 else (0x3D, 0xBD) if cols < 2048 else (0x3C, 0xBC)
    data = bytearray(random.randbytes(2 * rows * cols))
    data[1::2] = bytes(data[1::2]).translate(bytes(high[i % len(high)] for i in range(256)))
    return "BF16", [rows, cols] if cols > 1 else [rows], bytes(data)


def make_layer(directory, config):
    """Writes a checkpoint with the attention of one layer."""
    random.seed(1)
    hidden, heads, nope, rope, v, rank, q_rank = (config[key] for key in SMALL)
    shapes = {"kv_a_proj_with_mqa": (rank + rope, hidden), "kv_a_layernorm": (rank, 1), "o_proj": (hidden, heads * v),
              "kv_b_proj": (heads * (nope + v), rank)}
    if q_rank:
        shapes |= {"q_a_proj": (q_rank, hidden), "q_a_layernorm": (q_rank, 1), "q_b_proj": (heads * (nope + rope), q_rank)}
    else:
        shapes |= {"q_proj": (heads * (nope + rope), hidden)}
    shapes = {f"{name}.weight": shape for name, shape in shapes.items()}
    if "index_topk" in config:
        index_heads, dim = config["index_n_heads"], config["index_head_dim"]
        shapes |= {"indexer.wq_b.weight": (index_heads * dim, q_rank), "indexer.wk.weight": (dim, hidden), "indexer.k_norm.weight": (dim, 1),
                   "indexer.k_norm.bias": (dim, 1), "indexer.weights_proj.weight": (index_heads, hidden)}
    directory.mkdir()
    harness.write_safetensors(directory / "model.safetensors", {
        f"model.layers.0.self_attn.{name}": numbers(*shape) for name, shape in shapes.items()})
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def run(tessera, *options, **environment):
    return subprocess.run([tessera, "verify", "mla", *map(str, options)], capture_output=True, text=True,
                          env=os.environ | environment)


def verify(checks, tessera, name, *options, **environment):
    """Returns ({what: judgement} of kernels, the reason of a skip)."""
    done = run(tessera, *options, "--device", "cuda", "--json", "-", **environment)
    if not checks.check(f"{name}: exit code", done.returncode in (0, 1), done.stderr):
        return {}, []
    result = json.loads(done.stdout)
    for j in result["judgements"]:
        checks.check(f"{name}: {j['what']}", j["passed"], j["fault"])
    kernels = {j["what"]: j for j in result["judgements"] if j["kind"] == "kernel"}
    phases = ", ".join(f"{k} {v:.2f}" for k, v in result["phase_seconds"].items())
    print(f"{name}: {result['device']}, {result['seconds']:.1f} s ({phases})")
    for what, j in kernels.items():
        seconds = f"{j['kernel_seconds'] * 1e6:10.1f} us" if "kernel_seconds" in j else ""
        rms = f"{j['of_expected_rms']:.2f} of the expected RMS" if j["of_expected_rms"] is not None else ""
        print(f"  {what:62} relative error {j['relative_error']:.2e}  {j['of_bound']:.3g} of the bound  {rms:24} {seconds}")
    why = [s["why"] for s in result["skipped"]]
    for line in why:
        print(f"  skipped: {line}")
    return kernels, why


def check_kernels(checks, name, found, kernels, joined):
    wanted = {f"{k}, {cache}" for k in kernels for cache in CACHES}
    wanted |= {f"{k}, 2 ranks {joined}: {end}" for k in kernels for end in RANKS}
    wanted |= {f"{k}: W_v and W_o uncut, in FP32" for k in kernels}
    wanted |= {f"{k}, prefill" for k in kernels}
    wanted |= {f"{k}, {what}, steep scores" for k in kernels for what in (CACHES[0], "prefill")}
    found = {what for what in found if what.startswith("CUDA")}
    checks.check(f"{name}: what was judged", found == wanted, sorted(found ^ wanted))


def main():
    options = harness.parse_options(__doc__, full="also a layer of DeepSeek-V3's sizes")
    with harness.checks_in(options.directory) as (checks, place):
        small, odd = make_layer(place / "small", SMALL), make_layer(place / "odd", ODD)
        first = run(options.tessera, small, "--device", "cuda")
        harness.skip_without_gpu(first.returncode, first.stderr)
        none = run(options.tessera, small, "--device", "cuda", CUDA_VISIBLE_DEVICES="")
        checks.check("no device: exit code 5 and a sentence", none.returncode == 5 and none.stderr.count("\n") == 1, none)
        auto = run(options.tessera, small, CUDA_VISIBLE_DEVICES="")
        checks.check("no device: auto says so", auto.returncode == 0 and "checked on the CPU: no usable GPU" in auto.stdout)

        both, ranks = ("CUDA plain", "CUDA fast"), ("--kv", "fp8", "--tp", "2")
        one = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]}
        name = "8 heads, 512 + 64, ranks in turn"
        found, why = verify(checks, options.tessera, name, small, *ranks, "--batch", 5, "--context", 400, "--new-tokens", 2, **one)
        check_kernels(checks, name, found, both, "in turn")
        checks.check(f"{name}: told", any("ranks need as many GPUs" in line for line in why), why)
        name = "6 heads, 128 + 16, ranks in turn"
        found, why = verify(checks, options.tessera, name, odd, *ranks, "--batch", 3, "--context", 130, **one)
        check_kernels(checks, name, found, both[:1], "in turn")
        checks.check(f"{name}: told", any("the fast kernel needs" in line for line in why), why)

        name, sparse = "8 heads, 70 of 300 tokens", make_layer(place / "sparse", SPARSE)
        found, _ = verify(checks, options.tessera, name, sparse, "--sparse", "--kv", "fp8", "--batch", 3, "--context", 300, **one)
        wanted = {f"{kernel}, index scores{batch}" for kernel in both for batch in ("", ", prefill")}
        wanted |= {f"{kernel}, sparse{batch}, {cache}" for kernel in both for batch in ("", " prefill") for cache in CACHES}
        checks.check(f"{name}: what was judged", wanted <= set(found), sorted(wanted - set(found)))

        layers = [("8 heads, 512 + 64, every GPU", small)]
        if options.full:
            layers += [("DeepSeek-V3's sizes, every GPU", make_layer(place / "full", FULL))]
        for name, layer in layers:
            found, why = verify(checks, options.tessera, name, layer, *ranks, "--batch", 4, "--context", 192)
            joined = {what.split("2 ranks ")[1].split(":")[0] for what in found if "CUDA" in what and "2 ranks" in what}
            if joined == {"in turn"}:
                print(f"left out: two GPUs joined by NCCL: {why[-1]}")
            else:
                checks.check(f"{name}: NCCL", len(joined) == 1 and "on 2 GPUs, NCCL 2." in "".join(joined), joined)
            check_kernels(checks, name, found, both, "".join(joined))


if __name__ == "__main__":
    main()
