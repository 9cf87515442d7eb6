"""Reads quantization_blocks.zst by docs/blocks.md alone."""

import json
import struct
from types import SimpleNamespace

from checkpoints import BLOCKS as NAME
import numpy as np
import zstandard

CODES = {1: ("e4m3", 256), 2: ("e2m1", 16), 3: ("int8", 256), 4: ("int4", 16)}
PLANES = ("error", "scale", "amax")


class Bytes:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values

    def raw(self, size):
        self.at += size
        return self.data[self.at - size:self.at]

    def count(self):
        value = shift = 0
        while True:
            (byte,) = self.take("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value


def values(base, codes):
    """Decodes the bytes of a plane."""
    steps = (np.uint32(base) + codes.astype(np.uint32)) << np.uint32(19)
    out = steps.view(np.float32).astype(np.float64)
    out[codes == 0], out[codes == 254], out[codes == 255] = 0, np.inf, np.nan
    return out


def tensor(stream):
    (length,) = stream.take("H")
    t = SimpleNamespace(name=stream.raw(length).decode())
    t.codes, bins = CODES[stream.take("B")[0]]
    t.shape, t.block, t.fold = stream.take("3Q"), stream.take("3Q"), stream.take("3B")
    (t.mean_rms,) = stream.take("d")
    base = stream.take("3H")
    cells = [-(-(-(-s // b)) // 2**f) for s, b, f in zip(t.shape, t.block, t.fold)]
    t.bytes = {}
    for plane, first in zip(PLANES, base):
        t.bytes[plane] = np.frombuffer(stream.raw(int(np.prod(cells))), np.uint8).reshape(cells)
        setattr(t, plane, values(first, t.bytes[plane]))
    (t.counted_rows,) = stream.take("Q")
    t.counts = np.array([stream.count() for _ in range(bins)])
    t.peaks = [stream.take("Qff") for _ in range(stream.take("B")[0])]
    return t


def read(directory):
    """Returns {name: tensor} of a checkpoint's folder."""
    with open(directory / NAME, "rb") as file:
        data = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    stream = Bytes(data)
    magic, version, _, count = stream.take("8sIIQ")
    assert (magic, version) == (b"TSRBLOCK", 1)
    found = [tensor(stream) for _ in range(count)]
    assert stream.at == len(data)
    return {t.name: t for t in found}


def said(directory):
    """Returns the object `blocks` of the report in the same folder."""
    return json.loads((directory / "quantization_report.json").read_text())["blocks"]
