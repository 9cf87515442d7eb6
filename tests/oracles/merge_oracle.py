"""Updates of LoRA adapters in NumPy, in the order of additions of docs/merge.md."""

import math

import adapters
from checkpoints import NAMES
import numpy as np


def factors(out, columns, rank=4, seed=1, size=0.02, dtype=np.float32):
    """Returns A and B of one module."""
    random = np.random.default_rng(seed)
    return [(random.standard_normal(shape) * size).astype(dtype) for shape in ((rank, columns), (out, rank))]


def write(path, pairs, tensors=None, **config):
    """Writes an adapter with these pairs of A and B by module, and more tensors by their full names. Returns the path."""
    named = {f"{adapters.PREFIX}{module}.lora_{letter}.weight": x for module, pair in pairs.items() for letter, x in zip("AB", pair)}
    return adapters.write(path, {name: (NAMES[x.dtype], x.shape, x.tobytes()) for name, x in {**named, **(tensors or {})}.items()}, **config)


def scale(alpha=8, rank=4, stabilized=False):
    return np.float32(alpha / (math.sqrt(rank) if stabilized else rank))


def update(a, b, by):
    """Returns the product in FP32: ranks in order, each product and sum rounded, then the factor."""
    a, b = a.astype(np.float32), b.astype(np.float32)
    sums = np.zeros((b.shape[0], a.shape[1]), np.float32)
    for k in range(a.shape[0]):
        sums = sums + b[:, k:k + 1] * a[k:k + 1]
    return sums * np.float32(by)


def stacked(a, b, by, experts, turned=False):
    """Returns the update of a stack: rows e * r + k of A and columns k * E + e of B belong to expert e."""
    made = [update(a.reshape(experts, -1, a.shape[1])[e], b.reshape(b.shape[0], -1, experts)[:, :, e], by) for e in range(experts)]
    return np.stack([x.T if turned else x for x in made])


def merged(w, x):
    """Returns the FP32 sum."""
    return w.astype(np.float32) + x


def figures(before, x, after):
    """Returns the figures of a row in double precision; before and after are the decoded values."""
    x, y = x.astype(np.float64), after.astype(np.float64) - before.astype(np.float64)
    norm = np.sqrt((x**2).sum())
    return {"elements": x.size, "updated": int((x != 0).sum()), "lost": int(((x != 0) & (y == 0)).sum()), "update_norm": norm,
            "stored_norm": np.sqrt((y**2).sum()), "survived": (x * y).sum() / norm**2, "relative_error": np.sqrt(((x - y)**2).sum()) / norm,
            "largest_update": np.abs(x).max()}
