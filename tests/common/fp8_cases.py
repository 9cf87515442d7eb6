"""Weights that are difficult to quantize to FP8, by name."""

import functools

import fp8_oracle
import ml_dtypes
import numpy as np


def finite_bits(rng, shape, dtype):
    """Draws bit patterns of the dtype that are numbers: every exponent, subnormals, both zeros."""
    size = np.dtype(dtype).itemsize
    x = rng.integers(0, 1 << (8 * size), shape, dtype=f"u{size}").view(dtype)
    return np.where(np.isfinite(x.astype(np.float32)), x, np.array(1, dtype)).astype(dtype)


def ties(rng, shape, dtype):
    """Makes values exactly halfway between two codes. With 448 in every block the scale is 1."""
    codes = rng.integers(0, 0x7E, shape, dtype=np.uint8)
    low, high = (c.view(fp8_oracle.E4M3).astype(np.float32) for c in (codes, codes + np.uint8(1)))
    x = (low + high) / 2 * rng.choice(np.float32([-1, 1]), shape)
    x[::128, ::128] = 448
    return x.astype(dtype)


@functools.cache
def corner_cases(dtype):
    """Returns named read-only matrices, each representing a class of weights. 128 rows of the widest exceed the 4 MiB of a
    unit."""
    rng = np.random.default_rng(7)
    low, high = (2.0**-17, 2.0**13) if dtype is np.float16 else (2.0**-130, 2.0**124)

    def gaussian(shape, sigma=0.02):
        return (rng.standard_normal(shape, np.float32) * np.float32(sigma)).astype(dtype)

    shapes = [(128, 128), (256, 384), (576, 256), (1, 1), (127, 129), (300, 200), (1, 1000), (1000, 1), (130, 17000)]
    cases = {f"gaussian{rows}x{cols}": gaussian((rows, cols)) for rows, cols in shapes}
    cases["bits"] = finite_bits(rng, (400, 300), dtype)
    cases["ties"] = ties(rng, (256, 300), dtype)
    cases["zeros"] = np.zeros((200, 200), dtype)
    cases["negative_zeros"] = -np.zeros((200, 200), dtype)
    cases["zero_block"] = gaussian((256, 256))
    cases["zero_block"][128:, :128] = 0
    cases["one_value"] = np.zeros((129, 129), dtype)
    cases["one_value"][128, 128] = -3
    cases["outliers"] = gaussian((256, 256))
    cases["outliers"][7::61, 5::37] = 1000
    cases["tiny"] = gaussian((200, 256), low)
    cases["tiniest"] = np.full((128, 128), np.finfo(dtype).smallest_subnormal if dtype is not ml_dtypes.bfloat16 else
                               ml_dtypes.finfo(dtype).smallest_subnormal, dtype)
    cases["huge"] = gaussian((200, 256), high)
    cases["largest"] = np.full((128, 130), ml_dtypes.finfo(dtype).max, dtype)
    for x in cases.values():
        x.setflags(write=False)
    return {f"model.layers.{i}.{name}.mlp.down_proj.weight": x for i, (name, x) in enumerate(cases.items())}
