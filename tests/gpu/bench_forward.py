#!/usr/bin/env python3
"""Times `tessera verify forward` over a Llama of 8B shapes (hidden 4096, 32 heads, MLP of 14336) on one GPU and on two, in turn, and
demands that two are 1.8 times as fast. Prints seconds for each layer and the bytes copied. Exit code 77: there is one GPU.

    python3 tests/gpu/bench_forward.py --tessera build/cli/tessera --make build/tests/make/make_checkpoint [--rounds N]
"""

import json
import os
import pathlib
import shutil
import statistics
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

FASTER = 1.8
TOKENS, BYTES = 4096, "2200M"


def run(options, model, source, devices):
    code, out, err = harness.run(options.tessera, ["verify", "forward", model, "--against", source, "--device", "cuda", "--devices", devices,
                                                   "--count", options.tokens, "--json", "-"])
    if "--devices:" in err:
        print(f"left out: two GPUs: {err.strip()}")
        sys.exit(77)
    harness.skip_without_gpu(code, err)
    if code not in (0, 1):
        print(f"FAILED: exit code {code}: {err.strip()}")
        sys.exit(1)
    return json.loads(out)


def main():
    parser = harness.argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, in turn, after one that is not counted (3)")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"tokens of the sequence ({TOKENS})")
    parser.add_argument("--bytes", default=BYTES, help=f"size of the model in BF16 ({BYTES}: four layers)")
    options = parser.parse_args()
    checks = harness.Checks()
    with harness.temporary_directory(options.directory) as work:
        source, model = os.path.join(work, "src"), os.path.join(work, "fp8")
        harness.make_checkpoint(options.make, "bench", source, bytes=options.bytes)
        layers = json.loads(pathlib.Path(source, "config.json").read_text())["num_hidden_layers"]
        code, _, err = harness.run(options.tessera, ["quantize", source, "-o", model, "--quiet"])
        checks.check("quantize", code == 0, err)
        run(options, model, source, 2)  # brings the files into the page cache
        times, results = {1: [], 2: []}, {}
        for _ in range(options.rounds):
            for devices, of in times.items():
                result = results[devices] = run(options, model, source, devices)
                of.append((result["phase_seconds"]["oracle"], result["seconds"]))
                phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in result["phase_seconds"].items() if seconds > 0)
                print(f"{devices} x {result['device']}: {result['seconds']:.2f} s ({phases})", flush=True)
        shutil.rmtree(source)
        passes, whole = ({n: statistics.median(t[i] for t in of) for n, of in times.items()} for i in (0, 1))
        print(f"{layers} layers, {options.tokens} tokens, {os.cpu_count()} CPU cores, medians of {options.rounds}")
        for n, result in results.items():
            print(f"{n} GPU: {passes[n]:.2f} s in layers, {passes[n] / layers:.3f} s for each; {whole[n]:.2f} s in all; "
                  f"{result['bytes_between_devices'] / 1e9:.2f} GB between GPUs, {result['bytes_between_host_and_devices'] / 1e9:.2f} GB "
                  "between host and GPUs")
        ratio = passes[1] / passes[2]
        print(f"two GPUs against one: {ratio:.2f} in layers, {whole[1] / whole[2]:.2f} in all")
        checks.check(f"two GPUs are {FASTER} times as fast in layers", ratio >= FASTER, f"{ratio:.2f}")
        checks.check("two GPUs give the judgements of one", results[1]["judgements"] == results[2]["judgements"])
    checks.finish()


if __name__ == "__main__":
    main()
