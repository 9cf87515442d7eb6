"""Packs and decodes coded weights in NumPy by their definitions.

Covers MXFP4 in four dialects, NVFP4 in two, MXFP6, MXFP8, block FP8 with E8M0 scales, integers of compressed-tensors, AWQ and GPTQ."""

import harness
import numpy as np
from checkpoints import BF16, DTYPES, E4M3

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of nibble k


def read_any(path):
    """Returns {name: array} of a file, with dtypes that the safetensors package lacks."""
    return {name: np.frombuffer(data, DTYPES[dtype]).reshape(shape)
            for name, (dtype, shape, data) in harness.read_safetensors(path)[1].items()}


def six_bits(codes, element):
    """Converts [..., n] bytes to [..., n / 3 * 4] values: sign, exponent and mantissa of each 6 bits, by the formulas of the
    OCP's specification."""
    bits = np.unpackbits(codes, axis=-1, bitorder="little").reshape(*codes.shape[:-1], -1, 6)
    code = (bits << np.arange(6, dtype=np.uint8)).sum(axis=-1).astype(np.int64)
    mantissa, bias = (3, 1) if element == "e2m3" else (2, 3)
    exponent, fraction = code >> mantissa & (31 >> mantissa), code % 2**mantissa / 2**mantissa
    magnitude = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, exponent - bias))
    return np.where(code & 32, -magnitude, magnitude)


def mxfp6(w, element):
    """Returns packed codes and E8M0 scales by the rule floor: the nearest values, ties to even codes."""
    values = six_bits(np.packbits((np.arange(32)[:, None] >> np.arange(6) & 1).astype(np.uint8).reshape(-1), bitorder="little"), element)
    x = w.astype(np.float64).reshape(w.shape[0], -1, 32)
    amax = np.abs(x).max(-1)
    exponent = np.where(amax > 0, np.frexp(amax)[1] - 1, 0) - (2 if element == "e2m3" else 4)
    q = np.abs(np.ldexp(x, -exponent[..., None])).reshape(w.shape)
    above = np.clip(np.searchsorted(values, q), 1, 31)
    low, high = q - values[above - 1], values[above] - q
    code = np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above).astype(np.uint32) | np.signbit(w).astype(np.uint32) << 5
    word = sum(code[:, i::4] << 6 * i for i in range(4))
    packed = np.stack([word, word >> 8, word >> 16], -1).astype(np.uint8).reshape(w.shape[0], -1)
    return packed, (exponent + 127).astype(np.uint8)


def nibbles(words):
    """Converts [..., n] words of any width to [..., n * 2 * width] codes, the lowest bits first."""
    raw = np.ascontiguousarray(words).view(np.uint8)
    return np.stack([raw & 15, raw >> 4], axis=-1).reshape(*raw.shape[:-1], -1)


def words(codes):
    """Packs eight codes into I32 words, the inverse of nibbles()."""
    fields = codes.astype(np.uint32).reshape(*codes.shape[:-1], -1, 8) << (4 * np.arange(8, dtype=np.uint32))
    return fields.sum(axis=-1, dtype=np.uint32).view(np.int32)


def powers(scale):
    return np.ldexp(1.0, scale.view(np.uint8).astype(np.int64) - 127)


def spread(scale, shape):
    """Expands a grid of scales to one per value."""
    for axis in (-2, -1):
        size = -(-shape[axis] // scale.shape[axis])
        scale = np.repeat(scale, size, axis=axis)
    return scale[..., :shape[-2], :shape[-1]]


def awq_order(codes, inverse=False):
    """Orders columns of eight as in AWQ's words."""
    order = np.argsort(AWQ_ORDER) if inverse else np.array(AWQ_ORDER)
    return codes.reshape(*codes.shape[:-1], -1, 8)[..., order].reshape(codes.shape)


def awq(codes, zeros, scales, order=awq_order):
    """Returns {suffix: array} of codes [out, in], zeros and scales [out, groups]."""
    return {".qweight": words(order(codes.T)), ".qzeros": words(order(zeros.T)), ".scales": scales.T.astype(np.float16)}


def gptq(codes, zeros, scales, groups, stored_less=1):
    return {".qweight": np.ascontiguousarray(words(np.ascontiguousarray(codes)).T),
            ".qzeros": words(zeros.T - stored_less), ".scales": np.ascontiguousarray(scales.T.astype(np.float16)),
            ".g_idx": groups.astype(np.int32)}


def values(kind, tensors):
    """Decodes the tensors ({suffix: array}) of one module exactly, in FP64: [out, in], for gpt-oss [E, in, out]."""
    t = {name.rpartition(".")[2] if not name.endswith(("_blocks", "_scales")) else name[-7:]: array for name, array in tensors.items()}
    if kind in ("awq", "gptq"):
        scales, groups = t["scales"].astype(np.float64), np.arange(t["qweight"].shape[0] * (8 if kind == "gptq" else 1))
        if kind == "awq":
            codes, zeros = (awq_order(nibbles(t[n]), inverse=True) for n in ("qweight", "qzeros"))
            groups = groups // (codes.shape[0] // scales.shape[0])
        else:
            codes = nibbles(np.ascontiguousarray(t["qweight"].T)).T
            zeros, groups = nibbles(t["qzeros"]) + 1.0, t["g_idx"]
        return ((codes - zeros.astype(np.float64)[groups]) * scales[groups]).T
    if kind == "int4-ct":
        rows, cols = t["weight_shape"]
        scales = t["weight_scale"].astype(np.float64)
        zeros = (nibbles(np.ascontiguousarray(t["weight_zero_point"].T)).T[:rows].astype(np.float64)
                 if "weight_zero_point" in t else np.full(scales.shape, 8.0))
        codes = nibbles(t["weight_packed"])[:, :cols].astype(np.float64)
        return (codes - spread(zeros, codes.shape)) * spread(scales, codes.shape)
    if kind == "mxfp4-gptoss":
        codes = nibbles(t["_blocks"]).reshape(*t["_scales"].shape[:2], -1)
        return (E2M1[codes] * spread(powers(t["_scales"]), codes.shape)).swapaxes(1, 2)
    scale = t["scale"] if "scale" in t else t["weight_scale"]
    codes = t["weight_packed"] if "weight_packed" in t else t["weight"]
    if kind.startswith("mxfp6"):
        codes = six_bits(codes, "e3m2" if "e3m2" in kind else "e2m3")
    else:
        codes = codes.astype(np.float64) if codes.dtype == E4M3 else E2M1[nibbles(codes)]
    if kind == "nvfp4-ct":
        unit = scale.astype(np.float32) / t["weight_global_scale"].reshape(())
    elif kind == "nvfp4-modelopt":
        unit = scale.astype(np.float32) * t["weight_scale_2"].reshape(())
    else:
        unit = powers(scale)
    return codes * spread(unit.astype(np.float64), codes.shape)


def in_bf16(exact):
    """Rounds to FP32 and then to BF16, as the packages do."""
    return exact.astype(np.float32).astype(BF16)
