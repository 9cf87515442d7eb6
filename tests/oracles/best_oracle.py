"""Finds the best scale of each group in NumPy by trying all scales, one after another."""

from checkpoints import BF16, E4M3
import mx_oracle as mx
import numpy as np

F32 = np.float32
LARGEST_BF16 = 2.0**128 * (1 - 2.0**-9)  # what rounds to infinity


def summed(square, weight):
    """Adds the last axis, column by column."""
    return np.add.accumulate(square if weight is None else square * weight.astype(np.float64), axis=-1)[..., -1]


def losses(x, value_of, t, weight=None):
    """Returns the squared error of each group [n, columns] with the scale t, added column by column in FP64."""
    error = x.astype(np.float64) - value_of((x / F32(t)).astype(F32)) * np.float64(t)
    return summed(error * error, weight)


def best(x, value_of, scales, given, weight=None):
    """Returns the best key of `scales`, {byte: t}, for each group: the given one if none is better, otherwise the smallest."""
    found, least = given.copy(), np.full(x.shape[0], np.inf)
    with np.errstate(all="ignore"):
        for byte, t in scales.items():
            least = np.where(given == byte, losses(x, value_of, t, weight), least)
        for byte, t in sorted(scales.items()):
            loss = losses(x, value_of, t, weight)
            better = (loss < least) & np.any(x != 0, axis=1)
            found, least = np.where(better, byte, found), np.where(better, loss, least)
    return found.astype(np.uint8)


def e2m1_values(quotient):
    return np.clip(quotient, -6, 6).astype(mx.E2M1).astype(np.float64)


def e4m3_values(quotient):
    return np.clip(quotient, -448, 448).astype(E4M3).astype(np.float64)


def group_scales(scheme, dialect, total):
    """Returns {byte: value} of the candidates of a scheme with small groups."""
    largest = 448 if scheme.startswith("mxfp8") else 6
    if scheme.startswith("nvfp4"):
        values = np.arange(1, 127, dtype=np.uint8).view(E4M3).astype(F32)
        with np.errstate(all="ignore"):
            values = values / total if dialect == "compressed-tensors" else values * total
        every = dict(zip(range(1, 127), values))
    else:
        every = {byte: mx.power(np.asarray(byte)) for byte in range(255)}
    return {byte: t for byte, t in every.items() if t > 0 and largest * float(t) < LARGEST_BF16}


def expected(weights, scheme, dialect, rule=None, importance=None):
    """Returns {name: array} as mx_oracle.expected, with the best scales and their codes. importance: {module: [columns]}."""
    out, (codes, scales, total, _) = mx.expected(weights, scheme, dialect, rule), mx.names(scheme, dialect)
    value_of = e4m3_values if scheme.startswith("mxfp8") else e2m1_values
    for module, w in weights.items():
        of = out[module + scales]
        candidates = group_scales(scheme, dialect, out[module + total].reshape(()) if scheme.startswith("nvfp4") else None)
        x = mx.f32(w).reshape(of.size, -1)
        weight = None if importance is None else np.tile(importance[module], w.shape[0]).reshape(x.shape)
        found = best(x, value_of, candidates, of.view(np.uint8).reshape(-1), weight)
        unit = np.array([candidates.get(byte, F32(1)) for byte in found], F32).reshape(of.shape + (1,))
        out[module + scales] = found.reshape(of.shape).view(of.dtype)
        quotient = (x.reshape(of.shape + (-1,)) / unit).astype(F32)
        if w.dtype == BF16 and scheme.startswith("mxfp"):
            quotient = quotient.astype(BF16).astype(F32)
        if scheme.startswith("mxfp8"):
            out[module + codes] = np.clip(quotient, -448, 448).astype(E4M3).reshape(w.shape)
        else:
            out[module + codes] = mx.packed(mx.e2m1(quotient, x.reshape(quotient.shape)))
    return out


def int4_losses(x, scale, zero, rounding, weight=None):
    """Returns the squared error of each group [..., n, columns] with its scale and zero point, added column by column in
    FP64."""
    with np.errstate(all="ignore"):
        shifted = (x / scale[..., None]).astype(F32) + zero[..., None]
    codes = rounding(np.clip(shifted, F32(-8), F32(7)))
    error = x.astype(np.float64) - (codes - zero[..., None]).astype(np.float64) * scale[..., None].astype(np.float64)
    return summed(error * error, weight)


def best_int4(x, scale, zero, dtype, asymmetric, rounding=np.rint, weight=None):
    """Returns the best (scales, zero points) of groups [n, columns], starting from those of the range.

    Scales from amax / 32 to 2 amax are tried. Beyond, all codes are 0, or all relevant ones are clipped."""
    amax = np.abs(x).max(axis=1)
    first, last = ((amax * F32(f)).astype(F32).astype(dtype).view(np.uint16).astype(np.int64) for f in (1 / 32, 2.01))
    found, found_zero, least = scale.copy(), zero.copy(), int4_losses(x, scale, zero, rounding, weight)
    zeros = np.arange(-8, 8, dtype=F32) if asymmetric else np.zeros(1, F32)
    steps = np.arange(int((last - first).max()) + 1)
    groups = np.arange(len(x))
    for some in np.array_split(steps, max(1, steps.size * zeros.size * x.size >> 21)):
        bits = np.minimum(np.maximum(first + some[:, None], 1), last)
        tried = np.repeat(bits.astype(np.uint16).view(dtype).astype(F32), zeros.size, axis=0)
        other = np.broadcast_to(np.tile(zeros, some.size)[:, None], tried.shape)
        loss = int4_losses(x, tried, other, rounding, weight)
        loss = np.where(np.isnan(loss), np.inf, loss)
        at = loss.argmin(axis=0)  # the first of equal ones: the smallest scale, then the smallest zero point
        better = (loss[at, groups] < least) & (amax > 0)
        found, found_zero = np.where(better, tried[at, groups], found), np.where(better, other[at, groups], found_zero)
        least = np.where(better, loss[at, groups], least)
    return found, found_zero


def best_blocks(w, rows, cols, dtype):
    """Returns the best scales [grid rows, grid columns] of FP8 blocks: powers of two, or BF16 if this is `dtype`."""
    grid = np.zeros((-(-w.shape[0] // rows), -(-w.shape[1] // cols)), F32)
    for i in range(grid.shape[0]):
        for j in range(grid.shape[1]):
            grid[i, j] = best_block(mx.f32(w[i * rows:(i + 1) * rows, j * cols:(j + 1) * cols]).reshape(1, -1), dtype)
    return grid


def best_block(x, dtype):
    """Returns the best scale of x [1, n]. Scales of 2^-10 to 8 times that of amax are tried; larger ones only lose codes."""
    amax = np.abs(x).max()
    if amax == 0:
        return F32(1)
    exact = F32(amax / F32(448))
    if dtype is None:
        exponent = int(np.ceil(np.log2(np.float64(exact))))
        given = F32(np.ldexp(1.0, max(exponent, -126)))
        tried = [F32(np.ldexp(1.0, e)) for e in range(max(exponent - 10, -126), exponent + 4)]
    else:
        given = max(exact.astype(dtype).astype(F32), F32(2.0**-133))
        bits = int(given.astype(dtype).view(np.uint16))
        tried = np.arange(max(bits - 256, 1), bits + 3 * 128, dtype=np.uint16).view(dtype).astype(F32)
    best, least = given, losses(x, e4m3_values, given)[0]
    for t in tried:
        loss = losses(x, e4m3_values, t)[0]
        best, least = (t, loss) if loss < least else (best, least)
    return best
