#!/usr/bin/env python3
"""Times `tessera calibrate` on a GPU beside transformers, over a Llama of 8B shapes (hidden 4096, 32 heads, MLP of 14336) in BF16. The
rate is that of the tokens by which two runs differ, so that loading is not counted; it is also given as a share of the rate at which
PyTorch multiplies matrices of 8192 x 8192 in the same precision. transformers runs without and with hooks that sum x^2 on the GPU.
Exit codes: 1 a rate is below the limit, or a statistic is wrong; 77 no GPU.

    python3 tests/gpu/bench_calibrate.py --tessera build/cli/tessera --make build/tests/make/make_checkpoint [--precisions bf16 fp64]
"""

import array
import json
import os
import pathlib
import random
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

LENGTH, FEW, MANY = 2048, 8, 40  # tokens of a sequence; sequences of the two runs
LEAST = {"bf16": 0.33, "fp64": 0.7}  # of PyTorch's rate


def write_tokens(path, sequences, vocabulary):
    rng = random.Random(4)
    ids = array.array("i", (rng.randrange(vocabulary) for _ in range(sequences * LENGTH)))
    head = ("{'descr': '<i4', 'fortran_order': False, 'shape': (%d, %d), }" % (sequences, LENGTH)).encode()
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + ids.tobytes())
    return path


def operations(config):
    """Returns those of the linear layers and of causal attention for a token."""
    hidden, inner, kv = config["hidden_size"], config["intermediate_size"], config["num_key_value_heads"] * config["head_dim"]
    weights = hidden * (2 * hidden + 2 * kv + 3 * inner)
    return config["num_hidden_layers"] * (2 * weights + 2 * LENGTH * hidden)


def calibrate(options, src, tokens, precision, work):
    out = pathlib.Path(work, f"{precision}.safetensors")
    out.unlink(missing_ok=True)
    began = time.monotonic()
    code, _, err = harness.run(options.tessera, ["calibrate", src, "--tokens", tokens, "--count", LENGTH, "-o", out, "--device", "cuda",
                                                 "--precision", precision, "--quiet", "--save-every", 1000])
    seconds = time.monotonic() - began
    harness.skip_without_gpu(code, err)
    if code != 0:
        print(f"FAILED: {precision}: exit code {code}: {err.strip()}")
        sys.exit(1)
    return seconds, out


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
    """Times passes without the head, 8 sequences at a time: {"": rate, "with hooks": rate}, the sums of x^2 of a module, and seconds to load."""
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
        means, whole = {}, {}
        for precision in options.precisions:
            calibrate(options, src, tokens[FEW], precision, work)  # brings the files into the page cache
            few, _ = calibrate(options, src, tokens[FEW], precision, work)
            many, out = calibrate(options, src, tokens[MANY], precision, work)
            rate, whole[precision] = rate_of(few, many, per_token), many
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
    checks.finish()


if __name__ == "__main__":
    main()
