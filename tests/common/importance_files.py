"""Writes importance files: llama.cpp's importance matrix (GGUF), safetensors, and JSON."""

import json
import struct

import numpy as np
from checkpoints import save_file

ENDING = ".input_mean_square"


def gguf_text(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf(path, sums, kind="imatrix", version=3, alignment=32):
    """Writes {name: sums [channels] or [matrices, channels]}, with counts, as llama-imatrix does."""
    tensors = {}
    for name, values in sums.items():
        tensors[f"{name}.weight.in_sum2"] = np.atleast_2d(values).astype(np.float32)
        tensors[f"{name}.weight.counts"] = np.full((len(np.atleast_2d(values)), 1), 512, np.float32)
    values = [gguf_text("general.type") + struct.pack("<I", 8) + gguf_text(kind),
              gguf_text("imatrix.datasets") + struct.pack("<IIQ", 9, 8, 2) + gguf_text("a.txt") + gguf_text("b.txt"),
              gguf_text("imatrix.chunk_count") + struct.pack("<II", 4, 1),
              gguf_text("general.alignment") + struct.pack("<II", 4, alignment)]
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values)) + b"".join(values)
    data = b""
    for name, array in tensors.items():
        head += gguf_text(name) + struct.pack("<IQQIQ", 2, *array.shape[::-1], 0, len(data))
        data += array.tobytes() + bytes(-array.nbytes % alignment)
    path.write_bytes(head + bytes(-len(head) % alignment) + data)
    return path


def safetensors(path, means):
    save_file({module + ENDING: np.asarray(values, np.float32) for module, values in means.items()}, path)
    return path


def as_json(path, means):
    path.write_text(json.dumps({module: {"input_mean_square": [float(x) for x in values], "note": 1}
                                for module, values in means.items()}))
    return path
