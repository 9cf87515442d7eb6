"""Reads tessera.manifest.json by docs/formats.md, and checks each digest with libxxhash."""

import ctypes
import ctypes.util
import json
from pathlib import Path
import struct

from harness import KEPT, MANIFEST as NAME


class Digest(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


library = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
library.XXH3_128bits.restype = Digest
library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def xxh128(data):
    digest = library.XXH3_128bits(bytes(data), len(data))
    return f"{digest.high:016x}{digest.low:016x}"


def of_digests(digests):
    """Returns the digest of several digests; of one digest, itself."""
    return digests[0] if len(digests) == 1 else xxh128(b"".join(bytes.fromhex(d) for d in digests))


def read(path):
    """Reads the manifest of an output, or this file. Checks its own digest in the last line."""
    path = Path(path)
    text = (path / NAME if path.is_dir() else path).read_bytes()
    before, last = text[: text.rindex(b'  "manifest_xxh128"')], text[text.rindex(b'  "manifest_xxh128"') :]
    assert last == b'  "manifest_xxh128": "%s"\n}\n' % xxh128(before).encode()
    return json.loads(text)


def check_stretch(data, said):
    """Checks a tensor, or a file without tensors: its pieces are consecutive."""
    assert len(data) == said["bytes"]
    pieces, at = said.get("pieces", [[len(data), said["xxh128"]]]), 0
    for size, digest in pieces:
        assert size > 0 or len(data) == 0
        assert xxh128(data[at : at + size]) == digest, f"{said['name']} at {at}"
        at += size
    assert at == len(data) and of_digests([digest for _, digest in pieces]) == said["xxh128"]
    return len(pieces)


def check_file(data, said):
    """Checks a file's digests. Returns the number of pieces of its tensors."""
    pieces = 0
    if "tensors" not in said:
        return check_stretch(data, said)
    assert len(data) == said["bytes"]
    end, digests = 0, []
    if "header" in said:
        end = said["header"]["bytes"]
        digests = [said["header"]["xxh128"]]
        check_stretch(data[:end], {"name": "header", **said["header"]})
    for tensor in said["tensors"]:
        assert tensor["offset"] == end, "tensors follow one another"
        end += tensor["bytes"]
        pieces += check_stretch(data[tensor["offset"] : end], tensor)
        digests.append(tensor["xxh128"])
    assert end == len(data) and of_digests(digests) == said["xxh128"]
    return pieces


def check_files(folder, manifest):
    """Checks every digest of an output, and that no file is missing. Returns the number of pieces."""
    folder = Path(folder)
    pieces = sum(check_file((folder / said["name"]).read_bytes(), said) for said in manifest["files"])
    there = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.relative_to(folder).parts[0] != KEPT}
    assert there - {NAME} == {said["name"] for said in manifest["files"]}
    assert len(manifest["files"]) == len(there - {NAME})
    return pieces


def check(folder):
    """Checks an output by its own manifest. Returns the manifest."""
    manifest = read(folder)
    pieces = check_files(folder, manifest)
    assert len(manifest["files"]) == manifest["counts"]["files"]
    assert all(len(t.get("pieces", [0, 0])) > 1 for f in manifest["files"] for t in [f, *f.get("tensors", [])])
    return manifest, pieces


def check_reads(folder, source):
    """Checks the digests of all bytes that steps read from the uncompressed files of `source`. Returns their number, and
    that of their windows."""
    checked = windows = 0
    for step in read(folder)["reads"]:
        if any(i["source"] != 0 or not (Path(source) / i["file"]).is_file() for i in step["inputs"]):
            continue
        high = low = 0
        for given in step["inputs"]:
            data, end = (Path(source) / given["file"]).read_bytes(), given["offset"]
            for window in given["windows"]:
                at, rows, row_bytes, pitch = window if isinstance(window, list) else (end, 1, window, window)
                packed = b"".join(data[at + row * pitch : at + row * pitch + row_bytes] for row in range(rows))
                assert len(packed) == rows * row_bytes > 0
                placed = xxh128(bytes.fromhex(xxh128(packed)) + struct.pack("<QQ", at, given["input"]))
                high, low = (high + int(placed[:16], 16)) % 2**64, (low + int(placed[16:], 16)) % 2**64
                end = at + rows * row_bytes
                windows += 1
        assert step["xxh128_sum"] == f"{high:016x}{low:016x}", step["inputs"][0]["name"]
        checked += 1
    return checked, windows
