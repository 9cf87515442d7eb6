"""check_output.py SRC DST: every code and scale of a block-FP8 output from the formula, read by the safetensors package."""

import sys
from pathlib import Path

import fp8_oracle
import ml_dtypes
import numpy as np
import safetensors

DTYPES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F8_E4M3": fp8_oracle.E4M3}


def load(directory):
    tensors = {}
    for path in sorted(Path(directory).glob("*.safetensors")):
        for name, entry in safetensors.deserialize(path.read_bytes()):
            tensors[name] = np.frombuffer(entry["data"], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


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
