"""Quantizes the inputs of linear layers as loaders do, in NumPy and ml_dtypes, by the formulas of vLLM and OCP MX 1.0.

Each function takes x [.., columns] and returns the decoded values in FP64. Shares no code with the tool or with
writers of checkpoints."""

import ml_dtypes
import numpy as np

F32, F64, E4M3, E2M1 = np.float32, np.float64, ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn


def f32(x):
    return np.asarray(x).astype(F32)


def nearest(quotient, element):
    """Returns the nearest value of the element, ties to even, at most its largest one."""
    most = F32(448 if element is E4M3 else 6)
    return np.clip(f32(quotient), -most, most).astype(element).astype(F64)


def amax_of(x):
    return np.abs(x).max(-1, keepdims=True)


def fp8_rows(x):
    """Quantizes with a scale per row of the last axis: amax / 448."""
    scale = f32(np.maximum(amax_of(x), 1e-10) / 448).astype(F64)
    return nearest(x / scale, E4M3) * scale


def in_groups(x, size, of_group):
    return of_group(x.reshape(*x.shape[:-1], -1, size)).reshape(x.shape)


def fp8_blocks(x):
    return np.concatenate([fp8_rows(x[..., i: i + 128]) for i in range(0, x.shape[-1], 128)], -1)


def int8_rows(x):
    scale = f32(amax_of(x) / 127).astype(F64)
    return np.rint(f32(x / scale)).clip(-128, 127).astype(F64) * scale


def azp_rows(x):
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    scale = f32((high - low) / 255).astype(F64)
    azp = np.rint(-128 - low / scale)
    return ((np.rint(f32(x / scale)) + azp).clip(-128, 127) - azp) * scale


def fp8_static(scale):
    """Quantizes with one scale of the tensor, and clips values beyond its range."""
    return lambda x: nearest(x / F64(scale), E4M3) * F64(scale)


def int8_static(scale, zero=0):
    """Quantizes: q = round(x / scale) + zero point, x = scale * (q - zero point)."""
    return lambda x: ((np.rint(f32(x / F64(scale))) + int(zero)).clip(-128, 127) - int(zero)) * F64(scale)


def mx(element):
    """Quantizes with a power of two per 32 columns: the smallest one for which amax does not exceed the element's largest
    value."""
    def of_group(x):
        most = 448 if element is E4M3 else 6
        scale = 2.0 ** np.ceil(np.log2(np.maximum(amax_of(x), 2.0**-100) / most))
        return nearest(x / scale, element) * scale
    return lambda x: in_groups(x, 32, of_group)


def nvfp4(divisor):
    """Quantizes with an e4m3 scale per 16 columns: amax / 6 times `divisor`, which later divides it."""
    def of_group(x):
        scale = nearest(f32(amax_of(x)) / F32(6) * F32(divisor), E4M3)
        unit = (f32(scale) / F32(divisor)).astype(F64)
        return np.where(unit == 0, 0, nearest(x / np.where(unit == 0, 1, unit), E2M1) * unit)
    return lambda x: in_groups(x, 16, of_group)
