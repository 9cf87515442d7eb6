#!/usr/bin/env python3
"""Times `tessera verify forward` over a Llama of 8B shapes (hidden 4096, 32 heads, MLP of 14336) on one GPU and on two, in turn, and
demands that two are 1.8 times as fast. Prints seconds for each layer and the bytes copied, also of one model whose weights both GPUs
share. Exit code 77: there is one GPU.

    python3 tests/gpu/bench_forward.py --tessera build/cli/tessera --make build/tests/make/make_checkpoint [--rounds N]
"""

import array
import json
import os
import pathlib
import statistics
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

FASTER = 1.8
TOKENS, BYTES = 4096, "4000M"


def run(options, words, devices):
    code, out, err = harness.run(options.tessera, ["verify", "forward", *words, "--device", "cuda", "--devices", devices, "--json", "-"])
    if "--devices:" in err:
        print(f"left out: two GPUs: {err.strip()}")
        sys.exit(77)
    harness.skip_without_gpu(code, err)
    if code not in (0, 1):
        print(f"FAILED: exit code {code}: {err.strip()}")
        sys.exit(1)
    return json.loads(out)


def compare(options, words, layers):
    """Runs both in turns, and prints their medians. Returns {devices: (seconds in layers, in all)} and {devices: the last
    result}."""
    run(options, words, 2)  # brings the files into the page cache
    times, results = {1: [], 2: []}, {}
    for _ in range(options.rounds):
        for devices, of in times.items():
            result = results[devices] = run(options, words, devices)
            of.append((result["phase_seconds"]["oracle"], result["seconds"]))
            phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in result["phase_seconds"].items() if seconds > 0)
            print(f"{devices} x {result['device']}: {result['seconds']:.2f} s ({phases})", flush=True)
    medians = {n: tuple(statistics.median(t[i] for t in of) for i in (0, 1)) for n, of in times.items()}
    for n, (passes, whole) in medians.items():
        print(f"{n} GPU: {passes:.2f} s in layers, {passes / layers:.3f} s for each; {whole:.2f} s in all; "
              f"{results[n]['bytes_between_devices'] / 1e9:.2f} GB between GPUs, "
              f"{results[n]['bytes_between_host_and_devices'] / 1e9:.2f} GB between host and GPUs")
    print(f"two GPUs against one: {medians[1][0] / medians[2][0]:.2f} in layers, {medians[1][1] / medians[2][1]:.2f} in all", flush=True)
    return medians, results


def make_reference(path, source, tokens):
    """Writes random token ids and states, so that one model runs alone."""
    config = json.loads(pathlib.Path(source, "config.json").read_text())
    hidden, last = config["hidden_size"], config["num_hidden_layers"]
    ids = array.array("i", (i % config["vocab_size"] for i in range(tokens))).tobytes()
    harness.write_safetensors(path, {"input_ids": ("I32", (1, tokens), ids),
                                     f"hidden_states.{last}": ("BF16", (1, tokens, hidden), b"\x80\x3f" * (tokens * hidden))})
    return path


def main():
    parser = harness.argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, in turn, after one that is not counted (3)")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"tokens of the sequence ({TOKENS})")
    parser.add_argument("--bytes", default=BYTES, help=f"size of the model in BF16 ({BYTES}: nine layers)")
    options = parser.parse_args()
    with harness.checks_in(options.directory) as (checks, work):
        source, model = os.path.join(work, "src"), os.path.join(work, "fp8")
        harness.make_checkpoint(options.make, "bench", source, bytes=options.bytes)
        layers = json.loads(pathlib.Path(source, "config.json").read_text())["num_hidden_layers"]
        checks.ends("quantize", options.tessera, ["quantize", source, "-o", model, "--quiet"])
        print(f"{layers} layers, {options.tokens} tokens, {os.cpu_count()} CPU cores, medians of {options.rounds}; BF16 against block FP8:")
        medians, results = compare(options, (model, "--against", source, "--count", options.tokens), layers)
        ratio = medians[1][0] / medians[2][0]
        checks.check(f"two GPUs are {FASTER} times as fast in layers", ratio >= FASTER, f"{ratio:.2f}")
        checks.check("two GPUs give the judgements of one", results[1]["judgements"] == results[2]["judgements"])
        print("the BF16 model alone, its weights divided between the GPUs:")
        reference = make_reference(os.path.join(work, "reference.safetensors"), source, options.tokens)
        _, results = compare(options, (source, "--reference", reference), layers)
        checks.check("two GPUs give the judgements of one, model alone", results[1]["judgements"] == results[2]["judgements"])


if __name__ == "__main__":
    main()
