#!/usr/bin/env python3
"""Compares Tessera's readers (tests/robustness/input/read_files.c) with other readers on generated files.

The others are Python's for JSON, Hugging Face's for safetensors, and zstd's for frames. Both must accept a file with
equal values, or both reject it. STRICTER lists the rules that only Tessera has (docs/conversions.md). Each is
recognized by code that shares nothing with Tessera, and counted."""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys

import safetensors
import zstandard

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import hostile_edits as edits
import turns

DEEPEST = 64    # TSR_JSON_MAX_DEPTH
DIMENSIONS = 8  # TSR_MAX_RANK
# Dtypes that safetensors 0.4 does not know, and later versions do.
LATER = ("F8_E8M0", "F4", "F6_E2M3", "F6_E3M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64")

# Files that Tessera refuses and others accept: the reason, by name, and the words of the message.
STRICTER = {
    "a key twice": r"duplicate (key|member|tensor|__metadata__)",
    "nested deeper than 64": "nested too deeply",
    "half of a surrogate pair": "a broken escape",
    "a NUL in a name or string": "NUL character",
    "a tensor without a name": "without a name",
    "more than 8 dimensions": "more than 8 dimensions",
    "a tensor that is a list": "expected an object",
}
OF_JSON = list(STRICTER)[:4]


class Reader:
    """Is tests/robustness/input/read_files.c while it runs."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, kind, data):
        """Returns (true if it was accepted, the contents or the message)."""
        self.process.stdin.write(kind.encode() + struct.pack("<Q", len(data)) + data)
        self.process.stdin.flush()
        line = self.process.stdout.readline().decode(errors="replace")
        if not line.endswith("\n"):
            raise RuntimeError(f"the reader ended: exit {self.process.wait()}")
        return line.startswith("ok "), line[3:-1]


# ---- JSON ----


def parse_json(text):
    return json.loads(text, object_pairs_hook=edits.Members, parse_int=edits.Raw, parse_float=edits.Raw, parse_constant=edits.Raw)


def look(value, found, depth=0, listed=False):
    """Adds to `found` the rules of our own that a parsed document breaks. Keys of objects in a list are not checked."""
    if isinstance(value, str):
        if "\0" in value:
            found.add("a NUL in a name or string")
        if re.search("[\ud800-\udfff]", value):
            found.add("half of a surrogate pair")
        return
    if not isinstance(value, list):
        return
    if depth == DEEPEST:
        found.add("nested deeper than 64")
        return
    if isinstance(value, edits.Members):
        keys = [key for key, _ in value]
        if len(set(keys)) != len(keys) and not listed:
            found.add("a key twice")
    for item in value:
        for part in item if isinstance(value, edits.Members) else [item]:
            look(part, found, depth + 1, listed or not isinstance(value, edits.Members))


def spell(value):
    """Escapes as the reader does."""
    if isinstance(value, edits.Raw):
        return f"{value} "
    if isinstance(value, str):
        return f"'{value.encode().hex()} "
    if isinstance(value, edits.Members):
        return "{" + "".join(f"'{key.encode().hex()}:{spell(item)}" for key, item in value) + "} "
    if isinstance(value, list):
        return "[" + "".join(map(spell, value)) + "] "
    return {True: "true ", False: "false ", None: "null "}[value]


def judge_json(reader, data, counts):
    """Returns the fault, or None."""
    taken, told = reader.read("j", data)
    broken = set()
    try:
        document = parse_json(data.decode())
        look(document, broken)
    except RecursionError:  # Python does not say what is before or after, and any rule may be the first that is broken
        broken = set(OF_JSON)
    except ValueError:
        counts["refused by both" if not taken else "laxer"] += 1
        return "taken, and Python refuses it" if taken else None
    if broken and not isinstance(document if "nested deeper than 64" not in broken else edits.Members(), edits.Members):
        broken -= {"a key twice"}  # what is no object has no index
    return stricter_or_same(taken, told, broken, counts, lambda: told.strip() == spell(document).strip())


def stricter_or_same(taken, told, broken, counts, same):
    if not taken:
        for rule in broken:
            if re.search(STRICTER[rule], told) or len(told) > 900:  # a message that a name of thousands of letters fills
                counts[rule] += 1
                return None
        return f"refused, and the other takes it: {told}"
    if broken:
        return f"taken, against a rule of our own: {broken}"
    counts["the same values"] += 1
    return None if same() else "other values"


DOCUMENTS = [
    {"model_type": "llama", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "ignore": ["lm_head", "re:.*"]}, "eps": 1e-5},
    {"weight_map": {"a": "b", "ü": "\t\"\\/"}, "metadata": {"total_size": 2**53 + 1}}, [1, -0.0, 1.5e300, True, False, None, "", {}, [[]]], "text", 17,
]
TOKENS = [b"{", b"}", b"[", b"]", b",", b":", b'"', b'"a"', b'"\\u00e9"', b'"\\ud83d\\ude00"', b'"\\ud83d"', b'"\\udc00\\ud83d"', b'"\\u0000"', b'"\\x"', b"\\", b"1", b"-",
          b"0", b"01", b"1.", b".5", b"1e5", b"1E+", b"-0", b"1e-400", b"true", b"false", b"null", b"nul",
          b"NaN", b"Infinity", b"-Infinity", b"-NaN", b" ", b"\n", b"\t", b"\r", b"\v", b"\x0c", b"\xc2\xa0",
          b"\xef\xbb\xbf", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b'"\x1f"', b'"\x7f"', b"//", b"'a'", b"\0", "\u2028".encode()]


def make_json(rng):
    if rng.random() < 0.25:
        return b"".join(rng.choice(TOKENS) for _ in range(rng.randrange(1, 12)))
    data = json.dumps(rng.choice(DOCUMENTS), ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1])).encode()
    try:
        return edits.edit_json(rng, data)
    except (TypeError, AttributeError, IndexError):  # a document of one value has no places
        return edits.edit_bytes(rng, data)


# ---- safetensors ----


def judge_shard(reader, data, counts):
    taken, told = reader.read("s", data)
    broken, later = set(), False
    header = data[8:8 + struct.unpack("<Q", data[:8])[0]] if len(data) >= 8 else b""
    try:
        document = parse_json(header.decode())
        look(document, broken)
        for name, item in document if isinstance(document, edits.Members) else []:
            entry = dict(map(tuple, item)) if isinstance(item, edits.Members) else {}
            if name == "":
                broken.add("a tensor without a name")
            if isinstance(item, list) and not isinstance(item, edits.Members) and name != "__metadata__":
                broken.add("a tensor that is a list")
            if isinstance(entry.get("shape"), list) and len(entry["shape"]) > DIMENSIONS:
                broken.add("more than 8 dimensions")
            later = later or entry.get("dtype") in LATER
    except RecursionError:
        broken.add("nested deeper than 64")
    except ValueError:
        pass
    try:
        theirs = safetensors.deserialize(data)
    except safetensors.SafetensorError:
        counts["refused by both" if not taken else "a later dtype" if later else "laxer"] += 1
        return f"taken, and safetensors refuses it: {told[:300]}" if taken and not later else None
    return stricter_or_same(taken, told, broken if not taken else set(), counts, lambda: same_tensors(told, theirs, data[8 + len(header):]))


def same_tensors(told, theirs, body):
    ours = {}
    for row in filter(None, told.split(";")):
        name, dtype, shape, begin, end = re.fullmatch(r"'([0-9a-f]*) (\S+) (\[.*\]) (\d+) (\d+)", row).groups()
        ours[bytes.fromhex(name).decode()] = dtype, json.loads(shape), body[int(begin):int(end)]
    return ours == {name: (entry["dtype"], entry["shape"], bytes(entry["data"])) for name, entry in theirs}


def shard_of(rng):
    """Makes a small valid file: tensors of any dtype and rank, empty ones, in another order than their data, spaces after
    the text."""
    header, body = {}, b""
    for i in range(rng.randrange(6)):
        dtype = rng.choice(list(edits.BITS))
        shape = [rng.choice([0, 1, 2, 3, 4]) for _ in range(rng.choice([0, 1, 2, 2, 3, 5, 8, 9]))]
        count = 1
        for n in shape:
            count *= n
        size = count * edits.BITS[dtype] // 8
        header[f"t{i}.weight"] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + size]}
        body += bytes(rng.randrange(256) for _ in range(size))
    names = list(header)
    rng.shuffle(names)
    text = json.dumps({name: header[name] for name in names}) + " " * rng.randrange(9)
    return edits.write_shard(rng.choice(["", "", "", " ", "\n"]) + text, body)


def make_shard(rng):
    data = shard_of(rng)
    if rng.random() < 0.02:  # tensors as lists
        header, body = edits.read_shard(data)
        return edits.write_shard({name: list(tensor.values()) for name, tensor in header.items()}, body)
    return data if rng.random() < 0.2 else edits.edit_shard(rng, data)


# ---- archives ----


def bound(n):
    """Computes ZSTD_compressBound."""
    return n + (n >> 8) + ((131072 - n) >> 11 if n < 131072 else 0)


def unpack_all(packed):
    """Returns the bytes of consecutive frames, as zstd -d does."""
    out = b""
    while packed:
        unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        out += unpacker.decompress(packed)
        if not unpacker.eof:
            raise ValueError("cut off")
        packed = unpacker.unused_data
    return out


def read_archive(data):
    """Returns the uncompressed bytes by docs/archive.md. Raises ValueError if the archive breaks a rule."""
    count, flags, magic = struct.unpack("<IBI", data[-9:]) if len(data) >= 9 else (0, 0, 0)
    n = (count - 1) % 2**32
    tail = 24 + 9 * n + 8 + 8 * (n + 1) + 9
    if magic != 0x8F92EAB1 or flags or not 0 < n < 2**27 or tail > len(data):
        raise ValueError("footer")
    body, info = data[:-tail], data[-tail:]
    seek = 24 + 9 * n
    if (struct.unpack("<II", info[:8]) != (0x184D2A5D, seek - 8) or info[8:16] != b"TSRARCH1" or struct.unpack("<Q", info[16:24])[0] != edits.xxh64(info[24:]) or
            struct.unpack("<II", info[seek:seek + 8]) != (0x184D2A5E, tail - seek - 8) or struct.unpack("<II", info[-17:-9]) != (seek, 0)):
        raise ValueError("tail")
    out, at = b"", 0
    for i in range(n):
        packed, plain = struct.unpack("<II", info[seek + 8 + 8 * i:seek + 16 + 8 * i])
        width = info[24 + 8 * n + i]
        if not 0 < plain <= 16 << 20 or not 0 < packed <= bound(plain) or packed > len(body) - at or width not in (1, 2, 4):
            raise ValueError("entry")
        made = edits.join_planes(unpack_all(body[at:at + packed]), width)
        if len(made) != plain or edits.xxh64(made) != struct.unpack("<Q", info[24 + 8 * i:32 + 8 * i])[0]:
            raise ValueError("frame")
        out, at = out + made, at + packed
    if at != len(body):
        raise ValueError("end")
    return out


def judge_archive(reader, data, counts):
    taken, told = reader.read("a", data)
    try:
        plain = read_archive(data)
    except (ValueError, zstandard.ZstdError):
        counts["refused by both" if not taken else "laxer"] += 1
        return "taken, and zstd or the table refuses it" if taken else None
    return stricter_or_same(taken, told, set(), counts, lambda: told == plain.hex())


def frames_of(rng, packed, plain, digest, width):
    """Makes rare frames that zstd reads: several in one, without a size, with a checksum, after a skippable one."""
    kind = rng.randrange(6)
    planes = unpack_all(packed)
    if kind == 0:
        half = len(planes) // 2
        packed = zstandard.compress(planes[:half]) + zstandard.compress(planes[half:])
    elif kind == 1:
        packed = zstandard.ZstdCompressor(write_content_size=False).compress(planes)
    elif kind == 2:
        packed = zstandard.ZstdCompressor(write_checksum=True, level=rng.choice([-5, 1, 19])).compress(planes)
        packed = packed[:-1] + bytes([packed[-1] ^ rng.randrange(2)])
    elif kind == 3:
        packed = struct.pack("<II", 0x184D2A50 + rng.randrange(16), 3) + b"abc" + packed
    elif kind == 4:
        packed += struct.pack("<II", 0x184D2A50, rng.choice([0, 1]))
    else:
        packed = packed[:rng.randrange(len(packed) + 1)]
    return [packed, plain, digest, width]


def make_archive(rng):
    plain = shard_of(rng) * rng.choice([1, 1, 30])
    step = rng.choice([len(plain), 100, 1000])
    frames = [(plain[at:at + step], rng.choice([1, 2, 4])) for at in range(0, len(plain), step)]
    if rng.random() < 0.4:
        chosen = rng.randrange(len(frames))
        return edits.pack_archive(frames, lambda i, *row: frames_of(rng, *row) if i == chosen else list(row))
    return edits.edit_archive(rng, edits.pack_archive(frames))


KINDS = {"JSON": (make_json, judge_json), "safetensors": (make_shard, judge_shard), "archives": (make_archive, judge_archive)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tessera", required=True, metavar="PATH", help="the tool; the reader lies in the folder of its build")
    parser.add_argument("--make", metavar="PATH", help="not needed here")
    parser.add_argument("--first", type=int, metavar="N", help="the number of the first file of each kind (0 with --all, else other files in each turn)")
    parser.add_argument("--files", type=int, metavar="N", help="how many of each kind (1,000; with --all 300,000)")
    parser.add_argument("--all", action="store_true", help="many")
    options = parser.parse_args()
    reader = Reader(os.path.join(os.path.dirname(options.tessera), "../tests/robustness/input/read_files"))
    files, failed = options.files or (300_000 if options.all else 1_000), 0
    options.first = turns.first(files, options)
    for kind, (make, judge) in KINDS.items():
        counts = collections.Counter()
        for number in range(options.first, options.first + files):
            data = make(random.Random(f"{kind} {number}"))
            fault = judge(reader, data, counts)
            if fault:
                failed += 1
                print(f"FAILED {kind} {number}: {fault}\n    {data[:300]!r}", flush=True)
        print(f"{kind}, {options.first} to {options.first + files - 1}: " + ", ".join(f"{counts[key]:,} {key}" for key in sorted(counts)), flush=True)
    print(f"{files * len(KINDS) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
