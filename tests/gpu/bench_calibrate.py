#!/usr/bin/env python3
"""Times `tessera calibrate` on a GPU beside transformers, over a Llama of 8B shapes (hidden 4096, 32 heads, MLP of 14336) in BF16. The
rate is that of the tokens by which two runs differ, so that loading is not counted; it is also given as a share of the rate at which
PyTorch multiplies matrices of 8192 x 8192 in the same precision. transformers runs without and with hooks that sum x^2 on the GPU.
A second model is one layer of DeepSeek-V3 in block FP8, with its 256 experts: seconds, memory, and what 61 of them would take.
Exit codes: 1 a rate or memory is beyond its limit, or a statistic is wrong; 77 no GPU.

    python3 tests/gpu/bench_calibrate.py --tessera build/cli/tessera --make build/tests/make/make_checkpoint [--precisions bf16 fp64]
"""

import array
import json
import os
import pathlib
import random
import re
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

LENGTH, FEW, MANY = 2048, 8, 40  # tokens of a sequence; sequences of the two runs
LEAST = {"bf16": 0.5, "fp64": 0.7}  # of PyTorch's rate
MOST_MEMORY = 8e9  # of the host, for a layer of DeepSeek-V3
V3 = {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "moe_intermediate_size": 2048, "intermediate_size": 18432,
      "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
      "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "first_k_dense_replace": 0, "num_hidden_layers": 1,
      "vocab_size": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
      "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}}
V3_LAYERS = 61


def write_tokens(path, sequences, vocabulary):
    rng = random.Random(4)
    ids = array.array("i", (rng.randrange(vocabulary) for _ in range(sequences * LENGTH)))
    head = ("{'descr': '<i4', 'fortran_order': False, 'shape': (%d, %d), }" % (sequences, LENGTH)).encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + ids.tobytes())
    return path


def operations(config):
    """Returns the operations of linear layers and causal attention per token."""
    hidden, inner, kv = config["hidden_size"], config["intermediate_size"], config["num_key_value_heads"] * config["head_dim"]
    weights = hidden * (2 * hidden + 2 * kv + 3 * inner)
    return config["num_hidden_layers"] * (2 * weights + 2 * LENGTH * hidden)


# Runs a program, and prints the most memory that it took in bytes. (The kernel counts a child's memory from its fork on, and this process
# holds PyTorch.)
MEASURED = "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode; " \
           "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024); sys.exit(code)"


def calibrate(options, src, tokens, precision, work):
    out = pathlib.Path(work, f"{precision}.safetensors")
    out.unlink(missing_ok=True)
    began = time.monotonic()
    code, printed, err = harness.run(sys.executable, ["-c", MEASURED, options.tessera, "calibrate", src, "--tokens", tokens, "--count", LENGTH, "-o", out,
                                                      "--device", "cuda", "--precision", precision, "--quiet", "--save-every", 1000])
    seconds = time.monotonic() - began
    harness.skip_without_gpu(code, err)
    if code != 0:
        print(f"FAILED: {precision}: exit code {code}: {err.strip()}")
        sys.exit(1)
    return seconds, out, int(printed.split()[-1])


def write_v3(path, pool):
    """Writes one layer of DeepSeek-V3. Codes are bytes of `pool`, which has no NaN; with the scales the weights have the
    variance 1 / columns."""
    h, inner, heads, tensors = V3["hidden_size"], V3["moe_intermediate_size"], V3["num_attention_heads"], {}

    def plain(name, *shape):
        tensors[name] = ("BF16", shape, None)

    def coded(name, rows, cols):
        tensors[f"{name}.weight"] = ("F8_E4M3", (rows, cols), None)
        tensors[f"{name}.weight_scale_inv"] = ("F32", (-(-rows // 128), -(-cols // 128)), cols ** -0.5)
    plain("model.embed_tokens.weight", V3["vocab_size"], h)
    plain("lm_head.weight", V3["vocab_size"], h)
    at = "model.layers.0."
    for name, size in (("model.norm", h), (f"{at}input_layernorm", h), (f"{at}post_attention_layernorm", h), (f"{at}self_attn.q_a_layernorm", V3["q_lora_rank"]),
                       (f"{at}self_attn.kv_a_layernorm", V3["kv_lora_rank"])):
        plain(f"{name}.weight", size)
    for name, rows, cols in (("q_a_proj", V3["q_lora_rank"], h), ("q_b_proj", heads * 192, V3["q_lora_rank"]), ("kv_a_proj_with_mqa", 576, h),
                             ("kv_b_proj", heads * 256, V3["kv_lora_rank"]), ("o_proj", h, heads * 128)):
        coded(f"{at}self_attn.{name}", rows, cols)
    plain(f"{at}mlp.gate.weight", V3["n_routed_experts"], h)
    tensors[f"{at}mlp.gate.e_score_correction_bias"] = ("F32", (V3["n_routed_experts"],), 0.0)
    for module in (*(f"experts.{e}" for e in range(V3["n_routed_experts"])), "shared_experts"):
        for name, rows, cols in (("gate_proj", inner, h), ("up_proj", inner, h), ("down_proj", h, inner)):
            coded(f"{at}mlp.{module}.{name}", rows, cols)
    path.mkdir()
    (path / "config.json").write_text(json.dumps(V3))
    header, offset = {}, 0
    for name, (dtype, shape, _) in tensors.items():
        size = {"BF16": 2, "F32": 4, "F8_E4M3": 1}[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (dtype, _, value) in tensors.items():
            begin, end = header[name]["data_offsets"]
            if dtype == "F32":
                file.write(array.array("f", [value] * ((end - begin) // 4)).tobytes())
            for place in range(begin, end, len(pool)) if dtype == "F8_E4M3" else ():
                file.write(pool[: end - place])
            if dtype == "BF16":  # small numbers of both signs; gains near 1
                codes = array.array("H", (random.randrange(0x3C00, 0x3D00) | (i & 1) << 15 if "norm" not in name else 0x3F80 for i in range(1 << 15))).tobytes()
                for place in range(begin, end, len(codes)):
                    file.write(codes[: end - place])
    return path


def bench_v3(torch, checks, options, work):
    """Measures one layer of DeepSeek-V3: seconds with loading, and the peak memory of the host."""
    pool = bytes(torch.randint(0, 0x68, (1 << 24,), dtype=torch.uint8) | torch.randint(0, 2, (1 << 24,), dtype=torch.uint8) << 7)
    src = write_v3(pathlib.Path(work, "v3"), pool)
    tokens = write_tokens(pathlib.Path(work, "v3.npy"), FEW, V3["vocab_size"])
    calibrate(options, src, tokens, "bf16", work)  # brings the files into the page cache
    seconds, out, memory = calibrate(options, src, tokens, "bf16", work)
    seen = sum(bool(re.search(r"experts\.\d+\.gate_proj\.input_max$", name)) for name in harness.read_safetensors(out)[1])
    print(f"a layer of DeepSeek-V3 in block FP8, {V3['n_routed_experts']} experts, {FEW * LENGTH} tokens: {seconds:.1f} s with loading, "
          f"{seconds * V3_LAYERS / 60:.0f} minutes for {V3_LAYERS} layers; host memory at most {memory / 1e9:.1f} GB; {seen} experts seen")
    checks.check("DeepSeek-V3: memory of the host", memory <= MOST_MEMORY, f"{memory / 1e9:.1f} GB")


def rate_of(few, many, per_token):
    return (MANY - FEW) * LENGTH * per_token / (many - few) * 1e-12


def peaks(torch, precisions):
    found = {}
    for name in precisions:
        dtype = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}[name]
        a = torch.randn(8192, 8192, device="cuda").to(dtype)
        for n in (3, 20):  # the first ones are not counted
            torch.cuda.synchronize()
            began = time.monotonic()
            for _ in range(n):
                a @ a
            torch.cuda.synchronize()
        found[name] = 20 * 2 * 8192**3 / (time.monotonic() - began) * 1e-12
    return found


def transformers_rates(torch, src, ids, per_token, module_of):
    """Measures passes without the head, 8 sequences at a time. Returns {"": rate, "with hooks": rate}, the sums of x^2 of a
    module, and the seconds of loading."""
    import transformers
    began = time.monotonic()
    model = transformers.AutoModelForCausalLM.from_pretrained(src, dtype=torch.bfloat16, attn_implementation="sdpa").to("cuda").model
    torch.cuda.synchronize()
    loaded, sums, rates = time.monotonic() - began, {}, {}

    def hook(name):
        def add(_, inputs, __):
            x = inputs[0].float()
            sums[name] = sums.get(name, 0) + (x * x).sum((0, 1)).double()
        return add

    def run():
        with torch.no_grad():
            for at in range(0, len(ids), 8):
                model(input_ids=ids[at:at + 8], use_cache=False)
        torch.cuda.synchronize()
    for what in ("", "with hooks"):
        if what:
            for name, module in model.named_modules():
                if isinstance(module, torch.nn.Linear):
                    module.register_forward_hook(hook(f"model.{name}"))
        run()
        sums.clear()
        began = time.monotonic()
        run()
        rates[what] = len(ids) * LENGTH * per_token / (time.monotonic() - began) * 1e-12
    return rates, (sums[module_of] / (len(ids) * LENGTH)).cpu(), loaded


def main():
    parser = harness.argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--bytes", default="4000M", help="size of the model in BF16 (4000M: nine layers)")
    parser.add_argument("--experts", action="store_true", help="also one layer of DeepSeek-V3, which needs 14 GB of disk")
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp64"])
    options = parser.parse_args()
    checks = harness.Checks()
    import torch
    with harness.temporary_directory(options.directory) as work:
        src = os.path.join(work, "src")
        harness.make_checkpoint(options.make, "bench", src, bytes=options.bytes)
        config = json.loads(pathlib.Path(src, "config.json").read_text())
        per_token, module = operations(config), "model.layers.1.mlp.down_proj"
        tokens = {n: write_tokens(pathlib.Path(work, f"{n}.npy"), n, config["vocab_size"]) for n in (FEW, MANY)}
        peak = peaks(torch, options.precisions)
        print(f"{config['num_hidden_layers']} layers, sequences of {LENGTH} tokens, {os.cpu_count()} CPU cores, {torch.cuda.get_device_name()}", flush=True)
        means, whole, rates = {}, {}, {}
        for precision in options.precisions:
            calibrate(options, src, tokens[FEW], precision, work)  # brings the files into the page cache
            few, *_ = calibrate(options, src, tokens[FEW], precision, work)
            many, out, _ = calibrate(options, src, tokens[MANY], precision, work)
            rate, whole[precision] = rate_of(few, many, per_token), many
            rates[precision] = rate
            data = harness.read_safetensors(out)[1][f"{module}.input_mean_square"][2]
            means[precision] = torch.frombuffer(bytearray(data), dtype=torch.float32).double()
            print(f"calibrate --precision {precision}: {few:.2f} s for {FEW * LENGTH} tokens, {many:.2f} s for {MANY * LENGTH}: {rate:.1f} TFLOP/s, "
                  f"{rate / peak[precision]:.2f} of {peak[precision]:.0f}", flush=True)
            if precision in LEAST:
                checks.check(f"{precision}: {LEAST[precision]} of PyTorch's rate", rate >= LEAST[precision] * peak[precision], f"{rate / peak[precision]:.2f}")
        ids = torch.frombuffer(bytearray(tokens[MANY].read_bytes()[-4 * MANY * LENGTH:]), dtype=torch.int32).view(MANY, LENGTH).cuda()
        theirs, mean, loaded = transformers_rates(torch, src, ids, per_token, module)
        for what, rate in theirs.items():
            print(f"transformers {what or 'without hooks'}: {rate:.1f} TFLOP/s, after {loaded:.2f} s to load the model", flush=True)
        for precision, own in means.items():
            difference = float((own - mean).abs().max() / mean.abs().max())
            checks.check(f"{precision}: statistics are those of transformers within 1 %", difference < 0.01, difference)
        hooked = loaded + MANY * LENGTH * per_token / theirs["with hooks"] * 1e-12
        for precision, seconds in whole.items():
            print(f"{MANY * LENGTH} tokens, with loading: {precision} {seconds:.2f} s, transformers with hooks {hooked:.2f} s")
        if "bf16" in whole:
            checks.check("bf16: with loading, faster than transformers with hooks", whole["bf16"] < hooked, f"{whole['bf16']:.2f} s")
        if "bf16" in whole:
            checks.check("bf16: not slower than transformers with hooks", rates["bf16"] >= theirs["with hooks"], f"{rates['bf16']:.0f} TFLOP/s")
        if options.experts:
            bench_v3(torch, checks, options, work)
    checks.finish()


if __name__ == "__main__":
    main()
