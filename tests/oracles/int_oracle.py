"""Quantizes to int8 and int4 in NumPy by the formulas of compressed-tensors; also a small model."""

import numpy as np
from checkpoints import BF16, llama_config, make, random_weight

AZP = "tessera-azp.safetensors"
UP, DOWN, NORM = (f"model.layers.0.{n}.weight" for n in ("mlp.up_proj", "mlp.down_proj", "input_layernorm"))
SCHEMES = [("int8-weight-only", 8, 0, False), ("int8-weight-only", 8, 32, False), ("int4-weight-only", 4, 0, False),
           ("int4-weight-only", 4, 32, False), ("int4-weight-only", 4, 64, True), ("int4-weight-only", 4, 128, True)]


def adj(weight):
    """Returns the name of a weight's row sums of codes, which no loader of all *.safetensors reads as a weight."""
    return weight.removesuffix("weight") + "azp_adj"


def model(path, dtype=BF16, shape=(40, 256), **extra):
    w = random_weight(shape, 1)
    w[3] = 0
    w[5] *= 1e-38
    w[7, 0] = 3
    tensors = {UP: w.astype(dtype), DOWN: random_weight((24, 128), 2).astype(dtype), NORM: np.ones(8, dtype), **extra}
    return make(path, {"model.safetensors": tensors}, quantization=None, **llama_config(shape[1])), tensors


def away(x):
    return np.where(np.abs(x - np.trunc(x)) >= 0.5, np.trunc(x) + np.copysign(np.float32(1), x), np.trunc(x))


def quantized(w, bits, group=0, asymmetric=False, divisor=None, rounding=np.rint, dtype=np.float32):
    """Returns (codes, scales [rows, groups], zero points) in FP32, by the formulas of compressed-tensors."""
    rows, cols = w.shape
    x = w.astype(np.float32).reshape(rows, -1, group or cols)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    amax = np.abs(x).max(axis=2)
    least, largest = np.minimum(x.min(axis=2), 0), np.maximum(x.max(axis=2), 0)
    divisor = np.float32(divisor or (2**bits - 1) / 2)
    scale = (largest - least) / np.float32(2**bits - 1) if asymmetric else amax / divisor
    scale = np.maximum(scale, np.float32(2.0**-149)).astype(dtype).astype(np.float32)
    tiny = {BF16: 2.0**-133, np.float16: 2.0**-24}.get(dtype, 0)
    scale = np.where(scale == 0, np.float32(tiny), scale)
    scale[amax == 0] = 1
    zero = np.zeros_like(scale)
    if asymmetric:
        zero = np.rint(np.clip(np.float32(low) - least / scale, low, high))
        zero[amax == 0] = 0
    t = np.clip(x / scale[..., None] + zero[..., None], low, high)
    return rounding(t).astype(np.int8).reshape(rows, cols), scale, zero.astype(np.int8)


def packed(codes, bits):
    """Packs codes along the row into words, the first code in the lowest bits."""
    fields = (codes.astype(np.int64) + 2 ** (bits - 1)).reshape(codes.shape[0], -1, 32 // bits)
    return (fields << (bits * np.arange(32 // bits))).sum(axis=2).astype(np.uint32).view(np.int32)
