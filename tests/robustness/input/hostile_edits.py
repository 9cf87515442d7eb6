"""Edits of known formats: JSON, safetensors, archives, journals, tokens, manifests. Each edit takes the bytes of a file and a random.Random,
and returns other bytes. Most of the time it also corrects lengths, offsets and checksums, so that the edit reaches the code after
these checks. Uses the standard library, zstandard and libxxhash."""

import ctypes
import ctypes.util
import json
import pathlib
import struct
import sys

import zstandard

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import manifests

# ---- JSON ----


class Members(list):
    """Is an object as a list of [key, value], so a key can occur twice."""


class Raw(str):
    """Is text that is edited without parsing."""


NUMBERS = ["0", "1", "-1", "2", "3", "127", "128", "255", "256", "65536", "2147483647", "2147483648", "4294967296", "9007199254740993",
           "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "1e3", "1.5", "-0", "1e308", "1e309",
           "1e-320", "0.1", "16.0", "007", "NaN", "-Infinity", "9" * 400]
STRINGS = ["", "x", "..", "../x", "/", "a/b", "a\\b", "\x1b[31mred\x1b[0m", "line\nfeed", "tab\t\r", "NUL\0", "ü€𝄞", "\u202eevil", "*", "?", "re:",
           "re:.*", "re:(a*)*b", "re:[", "re:(?=x)", "n" * 5000, "%s%n", "model.safetensors", "lm_head", "BF16", "F8_E4M3", "I64", "BOOL",
           "F8_E8M0", "null", "true", "Linear", "model.layers.0.self_attn.q_proj", "model.layers.99999999999999999999.x", ".weight", "~", "-o"]


def _random_value(rng):
    kind = rng.randrange(8)
    if kind < 3:
        return Raw(rng.choice(NUMBERS))
    if kind < 5:
        return rng.choice(STRINGS)
    return rng.choice([True, False, None, [], Members(), [Members()], Members([["", ""]]), [[]], [Raw("0")] * 3])


def parse(text):
    return json.loads(text, object_pairs_hook=lambda pairs: Members([key, value] for key, value in pairs), parse_int=Raw, parse_float=Raw)


def dump(value):
    """Returns the text. Deeply nested values are a Raw."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Members):
        return "{" + ",".join(f"{dump(key)}:{dump(item)}" for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dump, value)) + "]"
    return json.dumps(value, ensure_ascii=isinstance(value, str) and len(value) % 2 == 0)


def _places(value, found=None):
    """Yields (container, index, index of the value in that element) of every value below this one."""
    found = [] if found is None else found
    for i, item in enumerate(value):
        at = item if isinstance(value, Members) else value
        k = 1 if isinstance(value, Members) else i
        found.append((value, i, at, k))
        if isinstance(at[k], list):
            _places(at[k], found)
    return found


def _deep(rng):
    n = rng.choice([8, 60, 70, 1000, 100000])
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    return Raw(opening * n + "1" + closing * n)


def _change_string(rng, text):
    return rng.choice([text.upper(), text[:-1], text + text, text + ".", "." + text, text.replace(".", "/"), text.replace("weight", "scale"),
                       text.replace("_", ""), text + "\u0301", text[::-1], text + "_scale", text.replace("0", "1"), text * 300])


def edit_tree(rng, tree):
    """Edits a tree once, in place."""
    places = _places(tree)
    if not places:
        tree.append(["a", _random_value(rng)] if isinstance(tree, Members) else _random_value(rng))
        return
    container, i, at, k = rng.choice(places)
    other = rng.choice(places)
    kind = rng.randrange(14)
    if kind < 3:
        at[k] = _random_value(rng)
    elif kind < 5:
        del container[i]
    elif kind == 5:
        container.insert(rng.randrange(len(container) + 1), container[i])
    elif kind == 6:
        at[k], other[2][other[3]] = Raw(dump(other[2][other[3]])), Raw(dump(at[k]))  # as text: one may stand in the other
    elif kind == 7:
        at[k] = Raw(dump(other[2][other[3]]))
    elif kind == 8 and isinstance(container, Members):
        at[0] = rng.choice([_change_string(rng, at[0]), rng.choice(STRINGS), other[2][0] if isinstance(other[0], Members) else "x"])
    elif kind == 9 and isinstance(at[k], str) and not isinstance(at[k], Raw):
        at[k] = _change_string(rng, at[k])
    elif kind == 10 and isinstance(at[k], Raw) and at[k].isdigit():
        at[k] = Raw(rng.choice([int(at[k]) + 1, -int(at[k]), int(at[k]) * 2, int(at[k]) - 1, int(at[k]) // 2, int(at[k]) << 32, f"{at[k]}.0"]))
    elif kind == 11:
        at[k] = _deep(rng)
    elif kind == 12:
        at[k] = [at[k]] if rng.random() < 0.5 else Members([["a", at[k]]])
    else:
        at[k] = Raw("[" + "0," * rng.choice([10, 1000, 30000]) + "0]")


def edit_bytes(rng, data):
    """Edits bytes without a structure."""
    kind, at = rng.randrange(8), rng.randrange(len(data) + 1)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data + data
    if kind == 2:
        return data + bytes(rng.randrange(256) for _ in range(rng.choice([1, 7, 100])))
    if kind == 3:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1:]
    if kind == 4:
        end = min(len(data), at + rng.choice([1, 8, 100]))
        return data[:at] + data[end:]
    if kind == 5:
        return data[:at] + rng.choice([b"\0", b"\xff\xfe", b"\xed\xa0\x80", b'"', b"\\u0000", b"\\ud800", b"\x1b[2J", b"\n"]) + data[at:]
    if kind == 6:
        return rng.choice([b"", b"\0", b"{", b"[]", b"null", b"\xef\xbb\xbf" + data, data.replace(b",", b",,", 1), b" " * 100000 + data])
    return bytes(reversed(data))


def edit_json(rng, data):
    if rng.random() < 0.12:
        return edit_bytes(rng, data)
    tree = parse(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 6])):
        edit_tree(rng, tree)
    return dump(tree).encode("utf-8", "surrogatepass")


# ---- safetensors ----

BITS = {"BF16": 16, "F16": 16, "F32": 32, "F64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "I16": 16, "U16": 16,
        "I32": 32, "U32": 32, "I64": 64, "U64": 64, "F4": 4}


def read_shard(data):
    (n,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + n]), data[8 + n:]


def write_shard(header, body, length=None):
    text = (header if isinstance(header, str) else json.dumps(header)).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text) if length is None else length % 2**64) + text + body


def _other_shape(rng, shape):
    flat = 1
    for n in shape:
        flat *= n
    choices = [[flat], [1, flat], [flat, 1], shape[::-1], [1] * 6 + shape, [1, *shape], [*shape, 1], shape[1:]]
    choices += [[d, flat // d] for d in (2, 3, 16, 64) if flat % d == 0]
    return rng.choice(choices)


def _lie(rng, tensor):
    """Returns another dtype or shape, mostly of the same number of bytes."""
    if rng.random() < 0.5:
        tensor["shape"] = _other_shape(rng, tensor["shape"])
        return
    dtype = rng.choice(list(BITS))
    if tensor["shape"] and rng.random() < 0.8:
        tensor["shape"][-1] = tensor["shape"][-1] * BITS[tensor["dtype"]] // BITS[dtype]
    tensor["dtype"] = dtype


def _move_back(header, end, by):
    """Moves the parts that begin at or after `end` to a lower offset."""
    for name, tensor in header.items():
        if name != "__metadata__" and tensor["data_offsets"][0] >= end:
            tensor["data_offsets"] = [x - by for x in tensor["data_offsets"]]


def _edit_tensors(rng, header, body):
    """Edits the tensors once, mostly with correct offsets."""
    names = [name for name in header if name != "__metadata__"]
    if not names:
        return header, body
    name, other = rng.choice(names), rng.choice(names)
    kind = rng.randrange(12)
    begin, end = header[name]["data_offsets"]
    if kind < 3:
        _lie(rng, header[name])
    elif kind == 3:  # names change places
        header[name], header[other] = header[other], header[name]
    elif kind == 4:
        header[rng.choice([_change_string(rng, name), rng.choice(STRINGS)])] = header.pop(name)
    elif kind == 5:  # taken out, data and all
        del header[name]
        _move_back(header, end, end - begin)
        body = body[:begin] + body[end:]
    elif kind == 6:  # once more under another name
        header[_change_string(rng, name)] = {**header[name], "data_offsets": [len(body), len(body) + end - begin]}
        body += body[begin:end]
    elif kind == 7:  # offsets that are wrong
        header[name]["data_offsets"] = rng.choice([[begin + 1, end + 1], [end, begin], [begin, end - 1], header[other]["data_offsets"], [0, len(body)],
                                                   [begin - 1, end], [2**63, 2**63 + 1], [begin, 2**64 - 1], [0, 0]])
    elif kind == 8:
        del header[name]
    elif kind == 9:  # values
        fill = rng.choice([b"\0", b"\xff", b"\x7f", b"\x80", bytes(rng.randrange(256) for _ in range(64))])
        size = len(body[begin:end])
        body = body[:begin] + (fill * size)[:size] + body[begin + size:]
    elif kind == 10:  # rows less, and data with them
        shape = header[name]["shape"]
        if shape and shape[0] > 1 and (end - begin) % shape[0] == 0:
            cut = (end - begin) // shape[0]
            shape[0] -= 1
            header[name]["data_offsets"] = [begin, end - cut]
            _move_back(header, end, cut)
            body = body[:end - cut] + body[end:]
    else:
        header["__metadata__"] = rng.choice([None, {}, {"a": "b" * 100000}, {"a": 1}, [], {"format": "\x1b[31m"}])
    return header, body


def edit_shard(rng, data):
    kind = rng.random()
    if kind < 0.08:
        return edit_bytes(rng, data)
    header, body = read_shard(data)
    if kind < 0.16:
        return write_shard(header, body, rng.choice([0, 1, 2, -1, len(json.dumps(header)) + rng.choice([-1, 1, 8]), 2**31, 2**63, 100_000_001]))
    if kind < 0.4:  # its text
        length = len(json.dumps(header))
        return write_shard(edit_json(rng, json.dumps(header).encode()).decode("utf-8", "replace"), body, length if rng.random() < 0.1 else None)
    for _ in range(rng.choice([1, 1, 2, 3])):
        header, body = _edit_tensors(rng, header, body)
    return write_shard(header, body)


# ---- archives ----

_library = None


def _xxhash():
    global _library
    if _library is None:
        _library = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
        for name in ("XXH64", "XXH3_64bits"):
            getattr(_library, name).restype = ctypes.c_uint64
        _library.XXH64.argtypes = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64
        _library.XXH3_64bits.argtypes = ctypes.c_char_p, ctypes.c_size_t
    return _library


def xxh64(data):
    return _xxhash().XXH64(data, len(data), 0)


def xxh3(data):
    return _xxhash().XXH3_64bits(data, len(data))


def split_planes(data, width):
    n = len(data) // width
    return b"".join(data[p:n * width:width] for p in range(width)) + data[n * width:] if width > 1 else data


def join_planes(data, width):
    n = len(data) // width
    out = bytearray(data)
    for p in range(width if width > 1 else 0):
        out[p:n * width:width] = data[p * n:(p + 1) * n]
    return bytes(out)


def unpack_archive(data):
    """Returns [(uncompressed bytes, width)] of its frames."""
    (count,) = struct.unpack("<I", data[-9:-5])
    frames, at, entries = [], 0, len(data) - 9 - 8 * count
    tail = len(data) - (24 + 9 * (count - 1) + 8 + 8 * count + 9)
    for i in range(count - 1):
        packed, plain = struct.unpack("<II", data[entries + 8 * i:entries + 8 * i + 8])
        width = data[tail + 24 + 8 * (count - 1) + i]
        frames.append((join_planes(zstandard.ZstdDecompressor().decompress(data[at:at + packed], plain), width), width))
        at += packed
    return frames


def pack_archive(frames, lie=None):
    """Makes an archive of [(uncompressed bytes, width)]. lie(frame number, packed, size, hash, width) may change the table."""
    body, hashes, widths, entries = b"", b"", b"", b""
    for i, (plain, width) in enumerate(frames):
        packed = zstandard.ZstdCompressor(level=1).compress(split_planes(plain, width))
        row = [packed, len(plain), xxh64(plain), width]
        row = row if lie is None else lie(i, *row)
        body += row[0]
        entries += struct.pack("<II", len(row[0]), row[1] % 2**32)
        hashes += struct.pack("<Q", row[2])
        widths += bytes([row[3]])
    n = len(frames)
    info = hashes + widths
    seek = struct.pack("<II", 0x184D2A5E, 8 * (n + 1) + 9) + entries + struct.pack("<II", 24 + len(info), 0) + struct.pack("<IBI", n + 1, 0, 0x8F92EAB1)
    return body + struct.pack("<II", 0x184D2A5D, 16 + len(info)) + b"TSRARCH1" + struct.pack("<Q", xxh64(info + seek)) + info + seek


def _lies(rng, count):
    chosen, kind = rng.randrange(count), rng.randrange(7)

    def lie(i, packed, plain, digest, width):
        if i != chosen:
            return [packed, plain, digest, width]
        return [[packed, rng.choice([0, 1, plain + 1, plain - 1, 16 << 20, (16 << 20) + 1, 2**32 - 1]), digest, width], [packed, plain, digest ^ 1, width],
                [packed, plain, digest, rng.randrange(256)], [edit_bytes(rng, packed), plain, digest, width], [b"", plain, digest, width],
                [packed + b"\0" * 9, plain, digest, width], [packed + packed, plain, digest, width]][kind]

    return lie


def edit_archive(rng, data):
    kind = rng.random()
    if kind < 0.1:
        return edit_bytes(rng, data)
    frames = unpack_archive(data)
    if kind < 0.35:
        return pack_archive(frames, _lies(rng, len(frames)))
    if kind < 0.5:
        i, k = rng.randrange(len(frames)), rng.randrange(len(frames))
        frames[i], frames[k] = frames[k], frames[i] if rng.random() < 0.5 else (frames[i][0], rng.choice([1, 2, 4]))
        return pack_archive(frames)
    plain = edit_shard(rng, b"".join(frame for frame, _ in frames)) or b"\0"
    step = rng.choice([len(plain), 1000, 4096, max(1, len(plain) // 7)])
    return pack_archive([(plain[at:at + step], rng.choice([1, 2, 4])) for at in range(0, len(plain), step)])


# ---- files of frames, of lines, of tokens ----


def edit_blocks(rng, data):
    """Changes the content of one frame of quantization_blocks.zst, and corrects sizes and checksums."""
    if rng.random() < 0.15:
        return edit_bytes(rng, data)
    frames, left = [], data
    while left:
        unpacker = zstandard.ZstdDecompressor().decompressobj()
        frames.append(unpacker.decompress(left))
        left = unpacker.unused_data
    for _ in range(rng.choice([1, 1, 2])):
        i = rng.randrange(len(frames))
        kind = rng.randrange(6)
        if kind == 0 and len(frames) > 1:
            del frames[i]
        elif kind == 1:
            frames.insert(i, frames[rng.randrange(len(frames))])
        elif kind == 2:
            at = rng.randrange(max(1, len(frames[i]) - 8))
            frames[i] = frames[i][:at] + rng.choice([b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f", struct.pack("<d", float("nan"))]) + frames[i][at + 8:]
        else:
            frames[i] = edit_bytes(rng, frames[i])
    return b"".join(zstandard.ZstdCompressor(level=1, write_checksum=True).compress(frame) for frame in frames)


def edit_journal(rng, data):
    """Changes lines of a journal, mostly with correct checksums."""
    if rng.random() < 0.15:
        return edit_bytes(rng, data)
    lines = data.split(b"\n")[:-1]
    i, k = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(6)
    if kind == 0:
        del lines[i]
    elif kind == 1:
        lines.insert(i, lines[k])
    elif kind == 2:
        lines[i], lines[k] = lines[k], lines[i]
    else:
        words = lines[i][:-17].split(b" ")
        at = rng.randrange(len(words))
        words[at] = rng.choice([b"", b"..", b"/etc/x", b"../../x", b"0", b"99999999999999999999", b"ffffffffffffffff", b"-1", b"model.safetensors", b"config.json",
                                words[at][:-1], words[at] + words[at], b"\x1b[31m", b"output", b"file", b"word"])
        line = b" ".join(words)
        lines[i] = line + b" %016x" % (xxh3(line) if rng.random() < 0.85 else 0)
    return b"\n".join(lines) + (b"\n" if rng.random() < 0.9 else b"")


def edit_lines(rng, data):
    """Edits JSON Lines."""
    lines = data.splitlines()
    i = rng.randrange(len(lines))
    kind = rng.randrange(6)
    if kind == 0:
        lines.append(lines[i])
    elif kind == 1:
        del lines[i]
    elif kind == 2:
        return edit_bytes(rng, data)
    else:
        lines[i] = edit_json(rng, lines[i])
    return b"\n".join(lines) + b"\n"


def edit_npy(rng, data):
    if rng.random() < 0.3:
        return edit_bytes(rng, data)
    (n,) = struct.unpack("<H", data[8:10])
    header, body = data[10:10 + n], data[10 + n:]
    old, new = rng.choice([(b"<i8", rng.choice([b"<i4", b">i8", b"<f8", b"<u4", b"|O", b"<i2", b"<u8"])), (b"False", b"True"),
                           (b"(2, 8)", rng.choice([b"(8, 2)", b"(16,)", b"(0, 8)", b"(8, 0)", b"()", b"(1, 2, 8)", b"(18446744073709551615, 2)", b"(-2, 8)",
                                                   b"(9223372036854775808, 2)", b"(2, 9)", b"2", b"(2 8)"])), (b"shape", b"shap"), (b"{", b"{" * 3000)])
    header = header.replace(old, new)
    if rng.random() < 0.3:
        body = struct.pack("<q", rng.choice([-1, 127, 128, 2**31, 2**63 - 1])) + body[8:]
    version = rng.choice([b"\1\0", b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\xff\0"])
    return data[:6] + version + struct.pack("<H" if version[0] == 1 else "<I", len(header)) + header + body


def edit_tokens(rng, data):
    return rng.choice([edit_bytes(rng, data), data.replace(b" ", b"-", 1), b"9" * 10000, b"1 " * 100000, data + b"127 128", b"\n" * 1000, b"[[],[]]",
                       b"[1, 2], [-1]", b"1\n" * 5000])


# ---- manifests ----


def _piece_digests(stretch):
    pieces = _member(stretch, "pieces")
    return [piece[1] for piece in pieces if isinstance(piece, list) and len(piece) > 1 and isinstance(piece[1], str)] if isinstance(pieces, list) else []


def _member(tree, name):
    return next((value for key, value in tree if key == name), None) if isinstance(tree, Members) else None


def _digest_again(stretch, digests):
    """Sets `xxh128` to the combination of these, if they are digests."""
    try:
        whole = manifests.of_digests(digests) if digests else None
    except ValueError:
        return
    for pair in stretch if whole else []:
        if pair[0] == "xxh128":
            pair[1] = whole


def _agree(tree):
    """Corrects every digest of digests, from the leaves up."""
    for file in _member(tree, "files") or []:
        parts = [_member(file, "header"), *(_member(file, "tensors") or [])]
        parts = [part for part in parts if isinstance(part, Members)]
        for part in parts:
            _digest_again(part, _piece_digests(part))
        if isinstance(file, Members):
            _digest_again(file, [_member(part, "xxh128") for part in parts] or _piece_digests(file))


def edit_manifest(rng, data):
    """Edits a manifest, mostly with a correct last line, and sometimes with correct digests of digests."""
    if rng.random() < 0.1:
        return edit_bytes(rng, data)
    tree = Members(pair for pair in parse(data) if pair[0] != "manifest_xxh128")
    files, how = _member(tree, "files"), rng.randrange(8)
    if how < 3:
        edit_tree(rng, tree)
    elif how < 6:
        edit_tree(rng, rng.choice(files))
    elif how == 6:
        cut = [stretch for file in files for stretch in (_member(file, "tensors") or [])]
        edit_tree(rng, rng.choice(cut or files))
    else:
        file = rng.choice(files)
        for pair in file:
            if pair[0] in ("xxh128", "bytes", "name"):
                pair[1] = next(other[1] for other in rng.choice(files) if other[0] == pair[0])
    if rng.random() < 0.6:
        try:
            _agree(tree)
        except TypeError:  # a list has become something else
            pass
    text = dump(tree).encode("utf-8", "surrogatepass").removesuffix(b"}") + b",\n"
    return text + b'  "manifest_xxh128": "%s"\n}\n' % (manifests.xxh128(text) if rng.random() < 0.95 else "0" * 32).encode()


EDITS = {"json": edit_json, "shard": edit_shard, "archive": edit_archive, "blocks": edit_blocks, "journal": edit_journal, "lines": edit_lines,
         "npy": edit_npy, "tokens": edit_tokens, "manifest": edit_manifest}
