"""Quantizes to block FP8 in NumPy and ml_dtypes by the definition, without code of the tool."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
from remembered import remembered

E4M3 = ml_dtypes.float8_e4m3fn
TINIEST = np.float32(2.0**-149)


def blocks_of(x, rows=128, cols=128):
    """Reshapes [..., m, n] to [..., ceil(m/rows), rows, ceil(n/cols), cols], padded with zeros, which change no maximum and
    no sum."""
    *stack, m, n = x.shape
    padded = np.pad(x, [(0, 0)] * len(stack) + [(0, -m % rows), (0, -n % cols)])
    return padded.reshape(*stack, padded.shape[-2] // rows, rows, padded.shape[-1] // cols, cols)


def over_blocks(reduce, x, rows=128, cols=128):
    """Applies reduce (np.add, np.maximum) to each block: [..., m, n] -> [..., ceil(m/rows), ceil(n/cols)], without a padded
    copy."""
    down, right = (np.arange(0, size, step) for size, step in zip(x.shape[-2:], (rows, cols)))
    return reduce.reduceat(reduce.reduceat(x, down, axis=-2), right, axis=-1)


def spread(scales, shape, rows=128, cols=128):
    """Expands one value per block to one per element of a matrix, or stack of matrices, of this shape."""
    return np.repeat(np.repeat(scales, rows, -2), cols, -1)[..., : shape[-2], : shape[-1]]


def scales_of(w, ue8m0=False):
    amax = over_blocks(np.maximum, np.abs(w))
    scales = amax / np.float32(448)
    scales[(amax > 0) & (scales == 0)] = TINIEST  # below 448 times the smallest number that FP32 has
    if ue8m0:
        bits = scales.view(np.uint32)
        scales = (np.clip((bits >> 23) + ((bits & 0x7FFFFF) != 0), 1, 254) << 23).astype(np.uint32).view(np.float32)
    scales[amax == 0] = 1
    return scales


def codes_of(w, scales):
    with np.errstate(over="ignore"):
        quotient = w / spread(scales, w.shape)
    return np.clip(quotient, -448, 448).astype(np.float32).astype(E4M3)


def quantize(w, ue8m0=False):
    """Returns (codes, scales) of w of any float dtype, [m, n] or [experts, m, n]."""
    w = w.astype(np.float32)
    scales = scales_of(w, ue8m0)
    return codes_of(w, scales), scales


def quantize_rows(w, dtype=np.float32):
    """Returns (codes, scales [rows, 1]) with one scale per row in FP32, rounded to dtype."""
    x = w.astype(np.float32)
    amax = np.abs(x).max(axis=1, keepdims=True)
    scale = np.maximum(amax / np.float32(448), np.float32(2.0**-149)).astype(dtype).astype(np.float32)
    scale = np.where(scale == 0, np.float32(2.0**-133), scale)
    scale[amax == 0] = 1
    return np.clip(x / scale, -448, 448).astype(E4M3), scale


def quantize_tensor(w, amax=None):
    """Returns (codes, scale) with one scale: that of `amax`, or of the largest magnitude."""
    x = w.astype(np.float32)
    amax = np.abs(x).max() if amax is None else np.float32(amax)
    scale = np.maximum(amax / np.float32(448), TINIEST) if amax > 0 else np.float32(1)
    return np.clip(x / scale, -448, 448).astype(E4M3), scale


def dequantize(codes, scales):
    """Decodes in double."""
    return codes.astype(np.float64) * spread(scales, codes.shape).astype(np.float64)


@remembered
def block_errors(w, codes, scales):
    """Returns the sum of squared errors of each block, in double."""
    return over_blocks(np.add, (w.astype(np.float64) - dequantize(codes, scales)) ** 2)


def block_mean_squares(w, codes, scales):
    """Returns the mean of squared errors of each block over its elements without padding, in double."""
    return block_errors(w, codes, scales) / over_blocks(np.add, np.ones(w.shape))


@remembered
def figures(w, codes, scales):
    """Returns the report's row of one tensor."""
    x, y = w.astype(np.float64), dequantize(codes, scales)
    with np.errstate(over="ignore"):
        quotient = np.abs(w.astype(np.float32) / spread(scales, w.shape))
    zero_blocks = over_blocks(np.maximum, np.abs(x)) == 0
    kept = np.sort(scales[~zero_blocks])
    error, signal = ((x - y) ** 2).sum(), (x**2).sum()
    return SimpleNamespace(
        elements=x.size,
        nonzero=np.count_nonzero(x),
        saturated=np.count_nonzero(quotient > 464),
        flushed=np.count_nonzero((x != 0) & (y == 0)),
        blocks=scales.size,
        zero_blocks=np.count_nonzero(zero_blocks),
        relative_error=np.sqrt(error / signal) if signal else 0.0,
        sqnr_db=10 * np.log10(signal / error) if error else np.inf,
        cosine=(x * y).sum() / np.sqrt(signal * (y**2).sum()) if signal else 1.0,
        max_abs_error=np.abs(x - y).max(),
        amax=np.abs(x).max(),
        scale_min=kept[0] if kept.size else 0.0,
        scale_median=kept[(kept.size - 1) // 2] if kept.size else 0.0,
        scale_max=kept[-1] if kept.size else 0.0,
    )
