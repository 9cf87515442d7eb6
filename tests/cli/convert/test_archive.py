"""Tests `tessera convert --to archive` and back.

Archives are read by zstd, by Python's zstandard and by their documented layout (docs/archive.md). Commands give the
same result for an archive as for the plain checkpoint. Damaged archives are rejected."""

import json
import os
import shutil
import struct
import subprocess

import harness
import numpy as np
import pytest
import zstandard

WIDTHS = {"BF16": 2, "F16": 2, "F32": 4}
FRAME = 4 << 20
INFO, SEEK, FOOTER = 0x184D2A5D, 0x184D2A5E, 0x8F92EAB1


@pytest.fixture
def run(tessera, tmp_path):
    """Returns run(*words) -> DST of a successful run. 'DST' among the words is replaced by it."""
    runs = []

    def call(*words):
        dst = tmp_path / f"made{len(runs)}"
        runs.append(dst)
        harness.succeed(tessera, [dst if word == "DST" else word for word in words])
        return dst

    return call


def archive(run, src, *options):
    return run("convert", src, "-o", "DST", "--to", "archive", "--quiet", *options)


def same_trees(a, b):
    return harness.tree_difference(*harness.without_records(a, b))


def archives(directory):
    return sorted(directory.glob("*.safetensors.zst"))


def xxh64(data):
    """Computes XXH64 with seed 0 by its specification."""
    p1, p2, p3, p4, p5 = (11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579,
                          2870177450012600261)
    mask = (1 << 64) - 1

    def rotate(x, n):
        return (x << n | x >> (64 - n)) & mask

    def step(lane, word):
        return rotate((lane + word * p2) & mask, 31) * p1 & mask

    at = 0
    if len(data) >= 32:
        lanes = [(p1 + p2) & mask, p2, 0, -p1 & mask]
        whole = len(data) // 32 * 32
        for block in np.frombuffer(data[:whole], "<u8").reshape(-1, 4).tolist():
            lanes = [step(lane, word) for lane, word in zip(lanes, block)]
        at = whole
        h = sum(rotate(lane, n) for lane, n in zip(lanes, (1, 7, 12, 18))) & mask
        for lane in lanes:
            h = ((h ^ step(0, lane)) * p1 + p4) & mask
    else:
        h = p5
    h = (h + len(data)) & mask
    while at + 8 <= len(data):
        (word,) = struct.unpack_from("<Q", data, at)
        h = (rotate(h ^ step(0, word), 27) * p1 + p4) & mask
        at += 8
    if at + 4 <= len(data):
        (word,) = struct.unpack_from("<I", data, at)
        h = (rotate(h ^ word * p1 & mask, 23) * p2 + p3) & mask
        at += 4
    for byte in data[at:]:
        h = rotate(h ^ byte * p5 & mask, 11) * p1 & mask
    h = (h ^ h >> 33) * p2 & mask
    h = (h ^ h >> 29) * p3 & mask
    return h ^ h >> 32


def read_by_layout(path):
    """Returns [(uncompressed bytes, width)] of every frame, using only docs/archive.md. Checks every number in the tail."""
    data = path.read_bytes()
    count, flags, magic = struct.unpack("<IBI", data[-9:])
    assert (flags, magic) == (0, FOOTER)
    n = count - 1
    seek = len(data) - 9 - 8 * count - 8
    assert struct.unpack_from("<II", data, seek) == (SEEK, 8 * count + 9)
    sizes = [struct.unpack_from("<II", data, seek + 8 + 8 * i) for i in range(count)]
    info = sum(packed for packed, _ in sizes[:n])
    assert sizes[n] == (seek - info, 0)
    magic, size, signature, tail_hash = struct.unpack_from("<II8sQ", data, info)
    assert (magic, size, signature) == (INFO, seek - info - 8, b"TSRARCH1")
    assert tail_hash == xxh64(data[info + 24:])
    hashes = struct.unpack_from(f"<{n}Q", data, info + 24)
    widths = data[info + 24 + 8 * n:seek]
    frames, at = [], 0
    for (packed, plain), want, width in zip(sizes, hashes, widths):
        content = zstandard.ZstdDecompressor().decompress(data[at:at + packed])
        assert len(content) == plain <= FRAME
        whole = plain // width * width
        planes = np.frombuffer(content[:whole], np.uint8).reshape(width, -1)
        content = planes.T.tobytes() + content[whole:]
        assert plain > 1 << 16 or xxh64(content) == want
        frames.append((content, width))
        at += packed
    return frames


def borders(path):
    """Returns {offset: dtype} of the first byte of each tensor, and of the header."""
    start, entries, _ = harness.read_header(path)
    return {0: "header"} | {start + entry["data_offsets"][0]: entry["dtype"] for entry in entries.values() if harness.entry_size(entry) > 0}


@pytest.mark.parametrize("level", ["1", "3", "9"])
def test_zstd_and_zstandard_restore_the_plain_files(checkpoint, run, tmp_path, level):
    src = checkpoint("deepseek-v3")
    dst = archive(run, src, "--level", level)
    assert len(archives(dst)) > 1
    for packed in archives(dst):
        plain = (src / packed.name.removesuffix(".zst")).read_bytes()
        with open(packed, "rb") as file:
            assert zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read() == plain
        out = tmp_path / "plain"
        subprocess.run(["zstd", "-dqf", packed, "-o", out], check=True)
        assert out.read_bytes() == plain
        subprocess.run(["zstd", "-tq", packed], check=True)


@pytest.mark.parametrize("options", [[], ["--shuffle"]])
def test_layout_is_as_documented(checkpoint, run, options):
    src = checkpoint("deepseek-v3")
    packed_files = archives(archive(run, src, *options))
    assert len(packed_files) > 1
    for packed in packed_files:
        plain = src / packed.name.removesuffix(".zst")
        frames = read_by_layout(packed)
        assert b"".join(content for content, _ in frames) == plain.read_bytes()
        starts, at, dtype = borders(plain), 0, None
        for content, width in frames:
            dtype = starts.get(at, dtype)
            assert width == (WIDTHS.get(dtype, 1) if options else 1)
            at += len(content)
            assert not any(at - len(content) < start < at for start in starts), "a frame spans two tensors"


@pytest.mark.parametrize("kind", ["deepseek-v3", "llama", "qwen3-moe"])
@pytest.mark.parametrize("options", [[], ["--shuffle", "--level", "1"]])
def test_restores_every_byte(checkpoint, run, kind, options):
    src = checkpoint(kind)
    packed = archive(run, src, *options)
    assert not list(packed.glob("*.safetensors"))
    back = run("convert", packed, "-o", "DST", "--to", "safetensors", "--quiet")
    assert same_trees(src, back) is None


def test_keeps_a_report_and_scales(checkpoint, run):
    fp8 = run("quantize", checkpoint("deepseek-v3"), "-o", "DST", "--quiet", "--max-shard-size", "1MB")
    back = run("convert", archive(run, fp8, "--shuffle"), "-o", "DST", "--to", "safetensors", "--quiet")
    assert same_trees(fp8, back) is None


@pytest.mark.parametrize("options", [[], ["--shuffle"]])
def test_commands_read_archives_as_the_plain_checkpoint(checkpoint, run, options):
    src = checkpoint("deepseek-v3")
    quantize = ("-o", "DST", "--quiet", "--max-shard-size", "1MB")
    plain = run("quantize", src, *quantize)
    packed = run("quantize", archive(run, src, *options), *quantize, "--threads", "3")
    assert same_trees(plain, packed) is None
    cast = ("-o", "DST", "--to", "bf16", "--quiet")
    assert same_trees(run("convert", plain, *cast), run("convert", archive(run, plain, *options), *cast)) is None


@pytest.mark.parametrize("options", [[], ["--shuffle"]])
def test_inspect_says_the_same_of_an_archive(checkpoint, run, tessera, options):
    fp8 = run("quantize", checkpoint("deepseek-v3"), "-o", "DST", "--quiet", "--max-shard-size", "1MB")
    packed = archive(run, fp8, *options)
    told = []
    for path in (fp8, packed):
        out = harness.succeed(tessera, ["inspect", path, "--json", "-", "--quiet"])
        told.append(out.replace(str(path), "PATH"))
    assert told[0] == told[1]
    harness.succeed(tessera, ["inspect", packed])
    name = "model.layers.0.self_attn.o_proj.weight"
    assert name in harness.succeed(tessera, ["inspect", f"{packed}:{name}"])


def test_diff_finds_nothing(checkpoint, run, tessera):
    src = checkpoint("deepseek-v3")
    assert " 0 differ" in harness.succeed(tessera, ["diff", src, archive(run, src, "--shuffle")])


def test_reads_one_file_alone(checkpoint, run):
    src = checkpoint("deepseek-v3")
    (first, *_) = archives(archive(run, src))
    back = run("convert", first, "-o", "DST", "--to", "safetensors", "--quiet")
    name = first.name.removesuffix(".zst")
    assert (back / name).read_bytes() == (src / name).read_bytes()


def test_mixed_directories_are_read(checkpoint, run, tmp_path):
    src = checkpoint("deepseek-v3")
    mixed = archive(run, src)
    (first, *_) = archives(mixed)
    shutil.copy(src / first.name.removesuffix(".zst"), mixed)
    first.unlink()
    back = run("convert", mixed, "-o", "DST", "--to", "safetensors", "--quiet")
    assert same_trees(src, back) is None


@pytest.mark.parametrize("options", [[], ["--shuffle"], ["--shuffle", "--level", "9"]], ids=" ".join)
def test_a_dry_run_estimates_the_size(maker, tessera, tmp_path, options):
    source = harness.make_checkpoint(maker, "bench", tmp_path / "source", bytes="24M")
    words = ["convert", source, "-o", tmp_path / "out", "--to", "archive", *options, "--json", tmp_path / "told.json"]
    harness.succeed(tessera, [*words, "--dry-run"])
    plan = json.loads((tmp_path / "told.json").read_text())
    harness.succeed(tessera, words)
    made = json.loads((tmp_path / "told.json").read_text())
    assert plan["bytes_out_expected"] == pytest.approx(made["bytes_written"], rel=0.05)
    assert made["bytes_written"] < 0.95 * plan["bytes_out"]


def test_packing_an_archive_again(checkpoint, run):
    src = checkpoint("deepseek-v3")
    assert same_trees(archive(run, archive(run, src), "--shuffle"), archive(run, src, "--shuffle")) is None


def test_large_tensors_are_cut_and_the_same_for_any_threads(run, tmp_path):
    src = tmp_path / "src"
    src.mkdir()
    rng = np.random.default_rng(1)
    big = (rng.standard_normal(5 << 20, np.float32).view("<u4") >> 16).astype("<u2").tobytes()
    harness.write_safetensors(src / "model.safetensors", {
        "big": ("BF16", [5 << 20], big),
        "f32": ("F32", [1 << 20], rng.standard_normal(1 << 20, np.float32).tobytes()),
        "empty": ("F32", [0, 7], b""),
        "odd": ("U8", [7], b"tessera"),
    })
    (src / "config.json").write_text("{}")
    made = [archive(run, src, "--shuffle", "--threads", threads) for threads in ("1", "2", "5")]
    sizes = [len(content) for content, _ in read_by_layout(made[0] / "model.safetensors.zst")]
    assert sizes[1:] == [FRAME, FRAME, (10 << 20) - 2 * FRAME, FRAME, 7]
    assert same_trees(made[0], made[1]) is None and same_trees(made[0], made[2]) is None


def refused(tessera, src, dst, *words, code=3, to="safetensors", options=()):
    harness.expect(tessera, ["convert", src, "-o", dst, "--to", to, *options], code, *words)


def test_refuses_what_is_damaged_or_foreign(checkpoint, run, tessera, tmp_path):
    src = checkpoint("deepseek-v3")
    packed = archive(run, src)
    (first, *_) = archives(packed)
    whole, dst = first.read_bytes(), tmp_path / "refused"
    middle = len(whole) // 2
    first.write_bytes(whole[:middle] + bytes([whole[middle] ^ 0x10]) + whole[middle + 1:])
    refused(tessera, packed, dst, first.name, "offset", "damaged")
    # Workers that wait for their turn to append must learn that it will not come.
    refused(tessera, packed, tmp_path / "again", first.name, "damaged", to="archive", options=["--threads", "6"])
    harness.expect(tessera, ["quantize", packed, "-o", tmp_path / "quantized"], 3, "'model.", first.name)
    shutil.rmtree(dst)
    first.write_bytes(whole[:-1])
    refused(tessera, packed, dst, first.name, "cut off")
    first.write_bytes(whole[:100] + whole[101:])
    refused(tessera, packed, dst, first.name, "the seek table")
    plain = (src / first.name.removesuffix(".zst")).read_bytes()
    first.write_bytes(zstandard.ZstdCompressor().compress(plain))
    refused(tessera, packed, dst, first.name, "no seek table", "zstd -d")
    first.write_bytes(whole)
    first.with_suffix("").write_bytes(plain)
    refused(tessera, packed, dst, first.name, first.name.removesuffix(".zst"), "plain and compressed")
    assert not dst.exists()
    refused(tessera, src, dst, "no .safetensors.zst")


@pytest.mark.parametrize("level", ["0", "20"])
def test_refuses_other_levels(checkpoint, tessera, tmp_path, level):
    refused(tessera, checkpoint("deepseek-v3"), tmp_path / "x", "1 to 19", code=2, to="archive", options=["--level", level])


def test_force_does_not_write_beside_foreign_archives(checkpoint, tessera, tmp_path):
    dst = tmp_path / "taken"
    dst.mkdir()
    (dst / "other.safetensors.zst").write_bytes(b"x")
    refused(tessera, checkpoint("deepseek-v3"), dst, "other.safetensors.zst", code=2, to="archive", options=["--force"])


def test_says_what_restores_it(checkpoint, run, tessera, tmp_path):
    src = checkpoint("deepseek-v3")
    for options, words in (([], ["'zstd -d' restores"]), (["--shuffle"], ["does not restore", "--to safetensors"])):
        dst = tmp_path / f"told{len(options)}"
        harness.shows(tessera, ["convert", src, "-o", dst, "--to", "archive", *options], 0, *words)


def test_index_is_kept_as_it_is(checkpoint, run):
    src = checkpoint("deepseek-v3")
    packed = archive(run, src)
    assert sorted(p.name.removesuffix(".zst") for p in packed.iterdir() if p.is_file() and p.name != harness.MANIFEST) == sorted(os.listdir(src))
    for name in ("model.safetensors.index.json", "config.json"):
        assert (packed / name).read_bytes() == (src / name).read_bytes()
