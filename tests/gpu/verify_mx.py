#!/usr/bin/env python3
"""MXFP4, NVFP4 and MXFP8 under `tessera verify gemm` and `verify dequant`, with a GPU and without: sound checkpoints pass
on both, whatever the CPU judged is judged the same beside a GPU, and the GPU's plain product has the errors of the CPU's
reference to the last digit, since it has its bits. Stdlib only.

    python3 tests/gpu/verify_mx.py --tessera build/cli/tessera --make build/tests/make/make_checkpoint
"""

import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness
from verify_int import check_both, quantized_models

RANGES = ["--activations", "RANGES"]
# quantize's options, and the products that there are of its output
FORMS = [
    (["mxfp4"], ["BF16 x MXFP4", "MXFP4 x MXFP4"]),
    (["mxfp8"], ["BF16 x MXFP8", "MXFP8 x MXFP8"]),
    (["nvfp4", "--dialect", "modelopt", *RANGES], ["BF16 x NVFP4", "NVFP4 x NVFP4"]),
    (["nvfp4", *RANGES], ["BF16 x NVFP4", "NVFP4 x NVFP4"]),
    (["nvfp4-weight-only"], ["BF16 x NVFP4"]),
]


def check_check(checks, tessera, name, check, directory):
    """Compares what one check of both devices has in common. Returns the judgements by position."""
    on_cpu, on_gpu = check_both(checks, tessera, name, check, directory)
    print(f"{name:28} {check:8} {len(on_cpu):5} judgements on the CPU, {len(on_gpu):5} with a GPU", flush=True)
    return on_cpu, on_gpu


def check_products(checks, tessera, name, forms, directory):
    on_cpu, on_gpu = check_check(checks, tessera, name, "gemm", directory)
    for form in forms:
        for out in ("f32", "f16", "bf16"):
            twins = [(j, on_cpu[subject, f"reference, {form}, {out}"]) for (subject, what), j in on_gpu.items()
                     if what == f"CUDA plain, {form}, {out}"]
            checks.check(f"{name}: {form}, {out}: as the reference",
                         len(twins) == 3 and all({**a, "what": ""} == {**b, "what": ""} for a, b in twins), len(twins))


def check_values(checks, tessera, name, directory):
    _, on_gpu = check_check(checks, tessera, name, "dequant", directory)
    for kernel in ("CUDA plain", "CUDA fast"):
        found = [j for (_, what), j in on_gpu.items() if what.startswith(kernel + ", ")]
        checks.check(f"{name}: values by {kernel}", len(found) == 3 and all(j["differ"] == 0 for j in found), len(found))


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    with harness.checks_in(options.directory) as (checks, work):
        names = [" ".join(scheme[:3]) for scheme, _ in FORMS]
        models = quantized_models(checks, options, work, dict(zip(names, (scheme for scheme, _ in FORMS))))
        for name, (_, forms) in zip(names, FORMS):
            if name in models:
                check_products(checks, options.tessera, name, forms, models[name])
                check_values(checks, options.tessera, name, models[name])


if __name__ == "__main__":
    main()
