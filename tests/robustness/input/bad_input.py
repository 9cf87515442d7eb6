#!/usr/bin/env python3
"""Tests that each violation of a rule of safetensors files and checkpoint directories is rejected.

The tool must exit with code 3 and one line that names the file and the tensor, and must not leave an output. Some
unusual but valid inputs must pass. The files are made here, byte by byte.
"""

import argparse
import collections
import json
import os
import pathlib
import struct
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import adapters
import batched
import harness
import jobs

SHARD = "model.safetensors"
INDEX = "model.safetensors.index.json"
FIRST = "model-00001-of-00002.safetensors"
SECOND = "model-00002-of-00002.safetensors"
UP = "model.layers.0.mlp.up_proj.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"
EXPERTS = "model.layers.0.mlp.experts.down_proj"
CONFIG = b'{"model_type": "llama", "hidden_size": 4}\n'
ONES = struct.pack("<8H", *[0x3F80] * 8)  # a BF16 [2, 4]
HEADER_LIMIT = 100_000_000
# Cases whose bytes are whole: what is wrong is a value, or that it was quantized before. Reading them is no mistake.
# A file alone has no config.json, which commands that decide what to quantize say first.
NO_MODEL_TYPE = "tessera: no model_type (config.json): general rules; check with --dry-run\n"
READABLE = ("NaN", "negative NaN", "Inf", "-Inf", "quantized")

# files: path below the source directory -> bytes, or a function that makes the file; expect: words of the message
Case = collections.namedtuple("Case", "name files expect source", defaults=("model",))


# ---- making files ----


def shard(header, data=b"", length=None):
    """Makes a safetensors file with this unchanged header text before the data."""
    text = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(name=DOWN, dtype='"BF16"', shape="[2,4]", offsets="[0,16]", more=""):
    return f'"{name}":{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}{more}}}'


def one(**changes):
    """Makes a file with one BF16 [2, 4], with changes to its entry."""
    return shard("{" + entry(**changes) + "}", ONES)


def two(offsets_up, offsets_down, data=ONES + ONES):
    """Makes a file with two BF16 [2, 4] at these offsets."""
    return shard("{" + entry(UP, offsets=offsets_up) + "," + entry(offsets=offsets_down) + "}", data)


def sparse(start, size):
    def make(path):
        with open(path, "wb") as file:
            file.write(start)
            file.truncate(size)

    return make


def link(target):
    return lambda path: os.symlink(target, path)


def index(**weight_map):
    return json.dumps({"metadata": {"total_size": 32}, "weight_map": weight_map}).encode()


def directory(**changes):
    """Makes a valid directory of two shards. Changes replace, add or (None) remove files."""
    files = {
        FIRST: one(name=UP),
        SECOND: one(),
        INDEX: index(**{UP: FIRST, DOWN: SECOND}),
        "config.json": CONFIG,
    }
    files.update(changes)
    return {path: content for path, content in files.items() if content is not None}


def values(codes, dtype="BF16", shape="[2,4]", name=DOWN):
    width = 4 if dtype == "F32" else 2
    data = struct.pack(f"<{len(codes)}{'I' if width == 4 else 'H'}", *codes)
    return shard("{" + entry(name, f'"{dtype}"', shape, f"[0,{len(data)}]") + "}", data)


def with_one(count, at, code, rest=0x3F80):
    return [code if i == at else rest for i in range(count)]


# ---- the table: one safetensors file, broken (each is tried as a directory and as a single file) ----

BROKEN_FILES = [
    ("empty file", b"", ()),
    ("shorter than the length field", b"\x01\0\0", ()),
    ("header of zero bytes", bytes(8), ()),
    ("header above the limit", sparse(struct.pack("<Q", HEADER_LIMIT + 1) + b"{}", HEADER_LIMIT + 9), ()),
    ("header length near 2^64", shard("{}", length=2**64 - 256), ()),
    ("header past the end of the file", shard("{}", ONES, length=1000), ()),
    ("header one byte past the end", shard("{}", length=3), ()),
    ("header not UTF-8", shard(b"{" + entry("a\xff").encode("latin-1") + b"}", ONES), ()),
    ("header not JSON", shard("not a header at all"), ()),
    ("header '{' only", shard("{"), ()),
    ("header an array", shard("[]"), ()),
    ("header null", shard("null"), ()),
    ("header cut off", shard("{" + entry()[:-5], ONES), ()),
    ("text behind the object", shard("{" + entry() + "} {}", ONES), ()),
    ("a comma too many", shard("{" + entry() + ",}", ONES), ()),
    ("entry not an object", shard(f'{{"{DOWN}":[0,16]}}', ONES), ()),
    ("no dtype", shard(f'{{"{DOWN}":{{"shape":[2,4],"data_offsets":[0,16]}}}}', ONES), (DOWN,)),
    ("no shape", shard(f'{{"{DOWN}":{{"dtype":"BF16","data_offsets":[0,16]}}}}', ONES), (DOWN,)),
    ("no data_offsets", shard(f'{{"{DOWN}":{{"dtype":"BF16","shape":[2,4]}}}}', ONES), (DOWN,)),
    ("dtype unknown", one(dtype='"BF17"'), (DOWN, "BF17")),
    ("dtype not a string", one(dtype="16"), ()),
    ("shape not an array", one(shape="8"), ()),
    ("negative dimension", one(shape="[-2,-4]"), ()),
    ("shape smaller than the offsets", one(shape="[2,3]"), (DOWN,)),
    ("shape larger than the offsets", one(shape="[2,5]"), (DOWN,)),
    ("shape product above 2^64", one(shape=f"[2,{2**64 - 2}]"), (DOWN,)),
    ("shape product wraps to the right size", one(shape=f"[{2**32},{2**32},8]"), (DOWN,)),
    ("shape in bits above 2^64", one(shape=f"[2,{2**63 - 1}]"), (DOWN,)),
    ("odd number of F4", shard("{" + entry(dtype='"F4"', shape="[3]", offsets="[0,2]") + "}", b"\0\0"), (DOWN,)),
    ("end before begin", one(offsets="[16,0]"), (DOWN,)),
    ("one offset", one(offsets="[0]"), ()),
    ("three offsets", one(offsets="[0,16,16]"), (DOWN,)),
    ("offset with a fraction", one(offsets="[0,16.0]"), ()),
    ("offset with an exponent", one(offsets="[0,1.6e1]"), ()),
    ("offset with a leading zero", one(offsets="[0,016]"), ()),
    ("negative offset", one(offsets="[-16,0]"), ()),
    ("offset of 2^63", one(offsets=f"[0,{2**63}]"), ()),
    ("offset of 2^64 + 16", one(offsets=f"[0,{2**64 + 16}]"), ()),
    ("offset of 400 digits", one(offsets="[0," + "9" * 400 + "]"), ()),
    ("dimension of 2^64 + 2", one(shape=f"[{2**64 + 2},4]"), ()),
    ("overlap", two("[0,16]", "[8,24]", ONES + ONES[:8]), (DOWN,)),
    ("the same bytes twice", two("[0,16]", "[0,16]", ONES), ()),
    ("hole at the start", one(offsets="[8,24]") + ONES[:8], (DOWN,)),
    ("hole between tensors", two("[0,16]", "[24,40]", ONES + ONES + ONES[:8]), (DOWN,)),
    ("extra bytes after the last tensor", one() + b"\0", ()),
    ("data one byte short", one()[:-1], (DOWN,)),
    ("data missing", one()[:-16], (DOWN,)),
    ("the same tensor twice", shard("{" + entry() + "," + entry(offsets="[16,32]") + "}", ONES + ONES), (DOWN,)),
    ("the same tensor twice, once escaped",
     shard("{" + entry() + "," + entry("\\u006d" + DOWN[1:], offsets="[16,32]") + "}", ONES + ONES), (DOWN,)),
    ("a field twice", one(more=',"dtype":"F16"'), (DOWN,)),
    ("metadata with a number", shard('{"__metadata__":{"step":1},' + entry() + "}", ONES), ("__metadata__",)),
    ("metadata with an object", shard('{"__metadata__":{"a":{"b":"c"}},' + entry() + "}", ONES), ("__metadata__",)),
    ("metadata not an object", shard('{"__metadata__":"pt",' + entry() + "}", ONES), ()),
    ("NUL in a name, escaped", one(name="a\\u0000b"), ()),
    ("NUL in a name, raw", one(name="a\0b"), ()),
    ("half a surrogate in a name", one(name="a\\ud800b"), ()),
    ("nested a hundred thousand deep", one(more=',"x":' + "[" * 100000 + "]" * 100000), ()),
    ("objects nested a hundred thousand deep", one(more=',"x":' + '{"a":' * 100000 + "1" + "}" * 100000), ()),
    ("Git-LFS pointer",
     b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 4976698672\n", ("LFS",)),
    ("a web page", b"<!DOCTYPE html><html><body>Access denied</body></html>", ()),
    ("NaN in BF16", values(with_one(128 * 128, 128 + 2, 0x7FC0), shape="[128,128]"), (DOWN, "[1, 2]")),
    ("negative NaN in BF16", values(with_one(128 * 128, 0, 0xFF81), shape="[128,128]"), (DOWN, "[0, 0]")),
    ("Inf in BF16", values(with_one(128 * 128, 128 * 128 - 1, 0x7F80), shape="[128,128]"), (DOWN, "[127, 127]")),
    ("-Inf in F16", values(with_one(128 * 128, 1, 0xFC00, 0x3C00), "F16", "[128,128]"), (DOWN, "[0, 1]")),
    ("NaN in F32", values(with_one(128 * 128, 128, 0x7F800001, 0x3F800000), "F32", "[128,128]"), (DOWN, "[1, 0]")),
    ("NaN in the last row of blocks", values(with_one(130 * 131, 129 * 131 + 1, 0x7FC0), shape="[130,131]"),
     (DOWN, "[129, 1]")),
    ("NaN in the last column of blocks", values(with_one(131 * 300, 2 * 300 + 299, 0x7FC0), shape="[131,300]"),
     (DOWN, "[2, 299]")),
    ("quantized tensor", shard("{" + entry(dtype='"F8_E4M3"', offsets="[0,8]") + "}", ONES[:8]),
     (DOWN, "already quantized")),
]

# ---- the table: a directory, broken ----

BROKEN_DIRECTORIES = [
    # hidden_size says that these are [experts, out, in]: of a file alone nothing does, and its experts stay as they are.
    # Where the format has no place for a stack, the weight beside it is what is quantized.
    Case("NaN in an expert",
         {SHARD: shard("{" + entry(EXPERTS, shape="[3,4,2]", offsets="[0,48]") + "," +
                       entry(shape="[128,4]", offsets="[48,1072]") + "}",
                       struct.pack("<24H", *with_one(24, 16 + 3, 0x7FC0)) + ONES * 64),
          "config.json": CONFIG}, (SHARD, EXPERTS.replace("experts.", "experts.2."), "NaN at [1, 1]: ")),
    Case("no such directory", {"../other/config.json": CONFIG}, ("model",)),
    Case("no weights", {"config.json": CONFIG}, ("model", "safetensors")),
    Case("LFS pointer as second shard", directory(**{SECOND: b"version https://git-lfs.github.com/spec/v1\n"}),
         (SECOND, "LFS")),
    Case("second shard cut off", directory(**{SECOND: one()[:-3]}), (SECOND, DOWN)),
    Case("index names a missing file", directory(**{SECOND: None}), (INDEX, DOWN, SECOND)),
    Case("index names a missing tensor",
         directory(**{INDEX: index(**{UP: FIRST, DOWN: SECOND, "model.norm.weight": SECOND})}),
         (INDEX, "model.norm.weight", SECOND)),
    Case("index leaves a tensor out", directory(**{INDEX: index(**{UP: FIRST})}), (INDEX, DOWN, SECOND)),
    Case("index names the other file", directory(**{INDEX: index(**{UP: FIRST, DOWN: FIRST})}), (INDEX, DOWN, FIRST)),
    Case("file that the index does not know", directory(**{"extra.safetensors": one(name="x.weight")}),
         (INDEX, "x.weight", "extra.safetensors")),
    Case("the same tensor in two files", directory(**{FIRST: one(), INDEX: index(**{DOWN: SECOND})}), (SECOND, DOWN)),
    Case("index to a parent directory",
         directory(**{SECOND: None, "../x.safetensors": one(), INDEX: index(**{UP: FIRST, DOWN: "../x.safetensors"})}),
         (INDEX, DOWN, "../x.safetensors")),
    Case("index to an absolute path", directory(**{SECOND: None, INDEX: index(**{UP: FIRST, DOWN: "/x.safetensors"})}),
         (INDEX, DOWN, "/x.safetensors")),
    Case("shard linked to the outside", directory(**{SECOND: link("../x.safetensors"), "../x.safetensors": one()}),
         (SECOND,)),
    Case("shard linked to nothing", directory(**{SECOND: link("nothing")}), (SECOND,)),
    Case("tokenizer linked to the outside",
         directory(**{"tokenizer.json": link("../secret"), "../secret": b"secret"}), ("tokenizer.json",)),
    Case("config linked to the outside", directory(**{"config.json": link("../c.json"), "../c.json": CONFIG}),
         ("config.json",)),
    Case("index linked to the outside",
         directory(**{INDEX: link("../i.json"), "../i.json": index(**{UP: FIRST, DOWN: SECOND})}), (INDEX,)),
    Case("hub cache linked beside its blobs",
         {"config.json": CONFIG, SHARD: link("../../refs/main"), "../../refs/main": one()}, (SHARD,),
         "hub/snapshots/0123abcd"),
    Case("two shards and no index", directory(**{INDEX: None}), ("model", "index.json")),
    Case("two indexes", directory(**{"old.safetensors.index.json": index(**{UP: FIRST, DOWN: SECOND})}),
         (INDEX, "old.safetensors.index.json")),
    Case("index not JSON", directory(**{INDEX: b"weight_map"}), (INDEX,)),
    Case("index cut off", directory(**{INDEX: index(**{UP: FIRST, DOWN: SECOND})[:-2]}), (INDEX,)),
    Case("index an array", directory(**{INDEX: b"[]"}), (INDEX,)),
    Case("index without weight_map", directory(**{INDEX: b'{"metadata": {}}'}), (INDEX, "weight_map")),
    Case("index with a number for a file", directory(**{INDEX: index(**{UP: FIRST, DOWN: 2})}), (INDEX,)),
    Case("index an LFS pointer", directory(**{INDEX: b"version https://git-lfs.github.com/spec/v1\n"}), (INDEX,)),
    Case("index nested deep", directory(**{INDEX: b'{"metadata":' + b"[" * 100000}), (INDEX,)),
    Case("config missing", directory(**{"config.json": None}), ("config.json",)),
    Case("config empty", directory(**{"config.json": b""}), ("config.json",)),
    Case("config broken", directory(**{"config.json": b'{"model_type": "llama"'}), ("config.json",)),
    Case("config with text behind", directory(**{"config.json": CONFIG + b"}"}), ("config.json",)),
    Case("config an array", directory(**{"config.json": b"[]"}), ("config.json",)),
    Case("config a string", directory(**{"config.json": b'"llama"'}), ("config.json",)),
    Case("config not UTF-8", directory(**{"config.json": b'{"model_type": "\xff"}'}), ("config.json",)),
    Case("config with a key twice", directory(**{"config.json": b'{"model_type": "llama", "a": 1, "model_type": "qwen3"}'}),
         ("config.json", "model_type", "duplicate key")),
    Case("config nested deep", directory(**{"config.json": b'{"a":' * 100000}), ("config.json",)),
    Case("quantized already, by its config",
         directory(**{"config.json": b'{"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}'}),
         ("config.json", "already quantized", "gptq")),
    Case("quantized already, inside text_config",
         directory(**{"config.json": b'{"text_config": {"quantization_config": {"quant_method": "fp8"}}}'}),
         ("config.json", "already quantized")),
]

# ---- the table: odd, and valid ----

MIXED = shard("{" + entry() + "," + entry("a.scalar", '"F32"', "[]", "[16,20]") + ',' +
              entry("a.void", '"BF16"', "[0,128]", "[20,20]") + ',' + entry("b.ids", '"I64"', "[1]", "[20,28]") + "}",
              ONES + struct.pack("<f", 2.5) + struct.pack("<q", -7))

VALID = [
    Case("two shards", directory(), (UP, DOWN)),
    Case("one file, no index", {SHARD: one(), "config.json": CONFIG}, (DOWN,)),
    Case("scalar, zero-size tensor, integers", {SHARD: MIXED, "config.json": CONFIG},
         ("a.scalar", "a.void", "b.ids", DOWN)),
    Case("zero-size weight",
         {SHARD: shard("{" + entry(UP, shape="[0,128]", offsets="[0,0]") + "," + entry() + "}", ONES), "config.json": CONFIG},
         (UP, DOWN)),
    Case("header with trailing spaces", {SHARD: shard("{" + entry() + "}" + " " * 100, ONES), "config.json": CONFIG},
         (DOWN,)),
    Case("header spread over lines",
         {SHARD: shard("{" + entry().replace(",", ",\n\t").replace(":", " :\r\n ") + "}", ONES), "config.json": CONFIG},
         (DOWN,)),
    Case("unknown field in an entry",
         {SHARD: one(more=',"note":{"a":[1.5e3,null,true]}'), "config.json": CONFIG}, (DOWN,)),
    Case("header not in the order of the data", {SHARD: two("[16,32]", "[0,16]"), "config.json": CONFIG}, (UP, DOWN)),
    Case("metadata of strings",
         {SHARD: shard('{"__metadata__":{"format":"pt","by":"\\u00e9"},' + entry() + "}", ONES), "config.json": CONFIG},
         (DOWN,)),
    Case("index without total_size",
         directory(**{INDEX: json.dumps({"metadata": {}, "weight_map": {UP: FIRST, DOWN: SECOND}}).encode()}),
         (UP, DOWN)),
    Case("quantization_config null",
         {SHARD: one(), "config.json": b'{"model_type": "llama", "quantization_config": null}'}, (DOWN,)),
    Case("link inside the directory",
         directory(**{SECOND: link("data/second"), "data/second": one()}), (UP, DOWN)),
    Case("hub cache",
         {"config.json": link("../../blobs/c0ffee"), "../../blobs/c0ffee": CONFIG, SHARD: link("../../blobs/deadbeef"),
          "../../blobs/deadbeef": one()}, (DOWN,), "hub/snapshots/0123abcd"),
    Case("extreme values",
         {SHARD: values([0x0000, 0x8000, 0x0001, 0x8001, 0x7F7F, 0xFF7F, 0x0080, 0x3F80]), "config.json": CONFIG},
         (DOWN,)),
    Case("NaN in a tensor that is copied",
         {SHARD: shard("{" + entry() + "," + entry("model.norm.weight", shape="[8]", offsets="[16,32]") + "}",
                       ONES + struct.pack("<8H", *[0x7FC0] * 8)), "config.json": CONFIG}, (DOWN, "model.norm.weight")),
]


# ---- running ----


def build(place, case):
    source = os.path.join(place, case.source)
    for path, content in case.files.items():
        path = os.path.normpath(os.path.join(source, path))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if callable(content):
            content(path)
        else:
            with open(path, "wb") as file:
                file.write(content)
    return source


def without_notices(stderr):
    """Returns all lines except warnings that patterns of a rules file match nothing: it was written for whole models."""
    return "".join(line for line in stderr.splitlines(True) if not line.endswith("matches no tensor\n"))


def one_line(stderr, single):
    """Returns True if the output is one error line of the tool. For a single file, lines that all runs print are ignored."""
    told = without_notices(stderr)
    told = told.removeprefix(NO_MODEL_TYPE) if single else told
    return told.startswith("tessera: ") and told.count("\n") == 1 and told.endswith("\n")


def check_refused(checks, options, case, single=None):
    tool = options.tessera
    name = case.name if single is None else f"{case.name}, as a single file"
    with harness.temporary_directory() as place:
        source = build(place, case)
        target = os.path.join(place, "out")
        subject = os.path.join(source, single) if single else source
        args = ["quantize", subject, "-o", target, "--quiet", "--threads", "2"]
        code, _, stderr = harness.run(tool, args, cpu=60)
        checks.check(f"{name}: exit code 3", code == 3, f"exit code {code}: {stderr}")
        checks.check(f"{name}: one line", one_line(stderr, single), repr(stderr))
        for word in case.expect:
            checks.check(f"{name}: names {word}", word in stderr, repr(stderr))
        checks.check(f"{name}: no config.json", not os.path.exists(os.path.join(target, "config.json")))
        check_inspected(checks, tool, name, subject, case.expect)
        check_jobs(checks, options, name, subject, place, single)


def run_each(tool, subject, place):
    """Runs every conversion in its own process. Returns exit code and stderr of each."""
    for number, job in enumerate(jobs.JOBS):
        code, _, stderr = harness.run(tool, [*jobs.words(job.command, subject, output(place, number)), "--quiet"], cpu=60)
        yield code, stderr


def run_together(tool, subject, place):
    """Runs every conversion in one process. Returns exit code and stderr of each."""
    return batched.run_batch(tool, [jobs.words(job.command, subject, output(place, number)) for number, job in enumerate(jobs.JOBS)], place)


def output(place, number):
    return os.path.join(place, f"job{number}")


def check_jobs(checks, options, name, subject, place, single):
    """No conversion accepts the source: it is broken, or not what the target needs. Only conversions that move bytes copy a
    wrong value."""
    adapter = {f"{adapters.PREFIX}model.layers.0.mlp.down_proj.lora_{letter}.weight": ("F32", shape, bytes(4 * 128))
               for letter, shape in (("A", (1, 128)), ("B", (128, 1)))}
    adapters.write(f"{subject}-lora", adapter, r=1, target_modules=["down_proj"])
    ended = list((run_together if options.batch else run_each)(options.tessera, subject, place))
    checks.check(f"{name}: every job ends", len(ended) == len(jobs.JOBS), len(ended))
    for number, (job, (code, stderr)) in enumerate(zip(jobs.JOBS, ended)):
        what = f"{name}, {job.name}"
        if code == 0 and name.startswith(READABLE):
            checks.check(f"{what}: silent", without_notices(stderr) == "", repr(stderr))
            continue
        # Where rows are no whole groups of columns, a scheme keeps all there is: also the weight that is broken.
        kept = code == 1 and name.startswith(READABLE) and "nothing to quantize" in stderr
        checks.check(f"{what}: exit code", code in (2, 3) or kept, f"exit code {code}: {stderr}")
        checks.check(f"{what}: one line", one_line(stderr, single), repr(stderr))
        left = [path for path in pathlib.Path(output(place, number)).rglob("*") if path.suffix in (".safetensors", ".zst", ".json")]
        checks.check(f"{what}: nothing looks like a model", not left, str(left))


def check_inspected(checks, tool, name, subject, expect):
    """`inspect` rejects files that no reader can open, and lists files that are only wrong in values or meaning."""
    code, _, stderr = harness.run(tool, ["inspect", subject, "--can-load", "all", "--quiet"], cpu=60)
    if name.startswith(READABLE):
        checks.check(f"{name}: inspected", code in (0, 1) and stderr == "", f"exit code {code}: {stderr}")
        return
    checks.check(f"{name}: inspect's exit code 3", code == 3, f"exit code {code}: {stderr}")
    checks.check(f"{name}: inspect's one line", stderr.startswith("tessera: ") and stderr.count("\n") == 1, repr(stderr))
    checks.check(f"{name}: inspect names it", all(word in stderr for word in expect), repr(stderr))


def kept_as_it_was(source, target, name):
    """Returns True if the output has the tensor: byte for byte, or quantized with its scales."""
    for path in sorted(pathlib.Path(target).glob("*.safetensors")):
        _, tensors = harness.read_safetensors(path)
        if name in tensors:
            for other in sorted(pathlib.Path(source).glob("*.safetensors")):
                _, originals = harness.read_safetensors(other)
                if name in originals:
                    quantized = tensors[name][0] == "F8_E4M3" and name + "_scale_inv" in tensors
                    return tensors[name][1] == originals[name][1] and (quantized or tensors[name] == originals[name])
    return False


def check_accepted(checks, tool, case):
    with harness.temporary_directory() as place:
        source = build(place, case)
        target = os.path.join(place, "out")
        code, _, stderr = harness.run(tool, ["quantize", source, "-o", target, "--quiet"], cpu=60)
        checks.check(f"{case.name}: exit code 0", code == 0 and stderr == "", f"exit code {code}: {stderr}")
        checks.check(f"{case.name}: config.json", os.path.exists(os.path.join(target, "config.json")))
        for name in case.expect:
            checks.check(f"{case.name}: {name} is there", code == 0 and kept_as_it_was(source, target, name))
        for subject in (source, *(f"{source}:{name}" for name in case.expect)):
            code, stdout, stderr = harness.run(tool, ["inspect", subject], cpu=60)
            checks.check(f"{case.name}: inspect", code == 0 and stdout and stderr == "", f"exit code {code}: {stderr}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tessera", required=True, metavar="PATH", help="the tool under test")
    parser.add_argument("--batch", action="store_true", help="all conversions of an input in one process: for a tool that starts slowly")
    options = parser.parse_args()
    options.tessera = os.path.abspath(options.tessera)
    harness.fork_runs([options.tessera], os.path.join(os.path.dirname(options.tessera), ".."))
    checks = harness.Checks()
    for name, content, expect in BROKEN_FILES:
        case = Case(name, {SHARD: content, "config.json": CONFIG}, (SHARD, *expect))
        check_refused(checks, options, case)
        check_refused(checks, options, case, single=SHARD)
    for case in BROKEN_DIRECTORIES:
        check_refused(checks, options, case)
    for case in VALID:
        check_accepted(checks, options.tessera, case)
    checks.finish()


if __name__ == "__main__":
    main()
