"""Checks each code and scale of a block FP8 output against the formula: check_output.py SRC DST. Reads it with the safetensors package."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]

import fp8_oracle  # noqa: E402
import numpy as np  # noqa: E402
from checkpoints import load  # noqa: E402


def main():
    source, output = load(sys.argv[1]), load(sys.argv[2])
    quantized = differ = 0
    for name, w in source.items():
        scale = output.get(f"{name}_scale_inv")
        if scale is None:
            same = np.array_equal(output[name].view(np.uint8), w.view(np.uint8))
        else:
            quantized += 1
            codes, scales = fp8_oracle.quantize(w)
            same = np.array_equal(codes.view(np.uint8), output[name].view(np.uint8)) and np.array_equal(scales, scale)
        if not same:
            differ += 1
            print(f"differs: {name}")
    extra = len(output) - len(source) - quantized
    print(f"{len(source)} tensors, {quantized} quantized: {differ} differ from the formula, {extra} too many")
    return 1 if differ or extra or not quantized else 0


if __name__ == "__main__":
    sys.exit(main())
