"""Stores reference values, so that tests that run with several binaries compute them once."""

import functools
import hashlib

import numpy as np


def _told(x):
    """Returns a key: arrays by their contents, other values unchanged."""
    if isinstance(x, np.ndarray):
        return str(x.dtype), x.shape, hashlib.sha256(np.ascontiguousarray(x).view(np.uint8).data if x.size else b"").digest()
    return x


def remembered(function):
    """Caches a pure function of arrays, numbers and names. Equal arguments return the first result, whose arrays are
    read-only."""
    values = {}

    @functools.wraps(function)
    def get(*args, **settings):
        key = tuple(map(_told, args)), tuple((name, _told(x)) for name, x in sorted(settings.items()))
        if key not in values:
            values[key] = function(*args, **settings)
            for value in values[key] if isinstance(values[key], tuple) else (values[key],):
                if isinstance(value, np.ndarray):
                    value.setflags(write=False)
        return values[key]

    return get
