"""Tests codes and scales that conversions copy: scales of each dtype keep their values, and NaN ends the job."""

import json
import shutil

from checkpoints import DEEPSEEK, load, make, random_weight, same_bits
import fp8_oracle
import harness
import ml_dtypes
import numpy as np
import pytest
from stored_oracle import read_any

pytestmark = pytest.mark.in_turn

BF16, E8M0 = ml_dtypes.bfloat16, ml_dtypes.float8_e8m0fnu
LLAMA = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64}
O, K = "model.layers.0.self_attn.o_proj.weight", "model.layers.0.self_attn.k_proj.weight"
UE8M0 = {**DEEPSEEK, "scale_fmt": "ue8m0"}
DTYPES = [np.float32, BF16, np.float16, E8M0]


def weights(dtype, shape=(256, 256)):
    """Makes two weights with power-of-two scales, and the scales in FP32."""
    tensors, scales = {}, {}
    for seed, name in enumerate((O, K)):
        codes, _ = fp8_oracle.quantize(random_weight(shape, seed))
        grid = [-(-n // 128) for n in shape]
        scales[name] = np.exp2(np.random.default_rng(seed).integers(-6, 6, grid)).astype(np.float32)
        tensors |= {name: codes, name + "_scale_inv": scales[name].astype(dtype)}
    return tensors, scales


def by_groups(scales):
    return np.repeat(np.repeat(scales, 128, 0), 4, 1)


@pytest.mark.parametrize("io", ["buffered", "direct"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_scales_becomes_mxfp8(tmp_path, tessera, convert, dtype, io):
    tensors, scales = weights(dtype)
    src = make(tmp_path / "src", {"model.safetensors": tensors}, UE8M0, **LLAMA)
    dst = convert(src, "--to", "mxfp8", "--io", io)
    got = load(dst)
    for name in (O, K):
        assert same_bits(got[name], tensors[name])
        stored = got[name + "_scale"].view(np.uint8)
        assert np.array_equal(np.exp2(stored.astype(np.float32) - 127), by_groups(scales[name])), name
    harness.succeed(tessera, ["verify", dst, "--against", src])


@pytest.mark.parametrize("to", [("fp8-block",), ("fp8-block", "--dialect", "compressed-tensors")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_scales_becomes_fp32(tmp_path, convert, dtype, to):
    tensors, scales = weights(dtype)
    got = load(convert(make(tmp_path / "src", {"model.safetensors": tensors}, **LLAMA), "--to", *to))
    suffix = "_scale" if "--dialect" in to else "_scale_inv"
    for name in (O, K):
        assert same_bits(got[name], tensors[name]) and same_bits(got[name + suffix], scales[name])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_scales_is_cut_and_merged(tmp_path, tessera, convert, dtype):
    tensors, _ = weights(dtype)
    src = make(tmp_path / "src", {"model.safetensors": tensors}, **LLAMA)
    ranks = convert(src, "--to", "tp", "--tp", "2")
    for rank in range(2):
        got, half = read_any(ranks / f"rank-{rank}" / "model.safetensors"), slice(rank, rank + 1)
        assert same_bits(got[O + "_scale_inv"], tensors[O + "_scale_inv"][:, half])
        assert same_bits(got[K + "_scale_inv"], tensors[K + "_scale_inv"][half])
    harness.succeed(tessera, ["convert", ranks, "-o", tmp_path / "merged", "--merge"])
    merged = read_any(tmp_path / "merged" / "model.safetensors")
    assert all(same_bits(merged[name], x) for name, x in tensors.items())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("to", [("deepseek-mp", "--mp", "2"), ("mla-absorbed", "--consumer", "vllm", "--weights", "fp8-block")])
def test_every_dtype_of_scales_of_a_deepseek_model(tmp_path, fp8_deepseek, convert, to, dtype):
    """The values are the same as with FP32 scales, which other tests check against their definition."""
    src = tmp_path / "src"
    tensors = {n: x.astype(dtype) if n.endswith("_scale_inv") else x for n, x in load(fp8_deepseek).items()}
    config = json.loads((fp8_deepseek / "config.json").read_text())
    make(src, {"model.safetensors": tensors}, config.pop("quantization_config"), **config)
    (got, want) = (dict(every_tensor(convert(x, "--to", *to))) for x in (src, fp8_deepseek))
    assert got.keys() == want.keys() and any("scale" in name for _, name in got)
    for key, x in got.items():
        assert np.array_equal(x.astype(np.float32), want[key].astype(np.float32)), key


def every_tensor(directory):
    for path in sorted(directory.rglob("*.safetensors")):
        yield from (((path.name, name), x) for name, x in read_any(path).items())


# ---- NaN ----


@pytest.fixture(scope="module")
def fp8_deepseek(tessera, maker, tmp_path_factory):
    """Makes DeepSeek-V3 in block FP8 with power-of-two scales, in one file."""
    place = tmp_path_factory.mktemp("deepseek")
    src = harness.make_checkpoint(maker, "deepseek-v3", place / "src", scale="half")
    harness.succeed(tessera, ["quantize", src, "-o", place / "fp8", "--quiet", "--scale-fmt", "ue8m0"])
    config = json.loads((place / "fp8" / "config.json").read_text())
    tensors, rng = load(place / "fp8"), np.random.default_rng(3)
    for name in [n for n in tensors if n.endswith("_scale_inv")]:
        tensors[name] = np.exp2(rng.integers(-6, 6, tensors[name].shape)).astype(np.float32)
    return make(place / "powers", {"model.safetensors": tensors}, config.pop("quantization_config"), **config)


def damage(src, dst, name, at, byte):
    """Copies a checkpoint and changes one byte of a tensor. Returns the file's name and the offset in it."""
    shutil.copytree(src, dst)
    for path in dst.glob("*.safetensors"):
        start, entries, _ = harness.read_header(path)
        if name in entries:
            offset = start + entries[name]["data_offsets"][0] + at
            with open(path, "r+b") as file:
                file.seek(offset)
                file.write(byte)
            return path.name, offset
    raise AssertionError(name)


@pytest.fixture
def stops(tessera, tmp_path):
    """Returns stops(src, *words, options=...), which checks exit code 3 and all these words. Files of other ranks may be
    finished by then."""
    def run(src, *words, options):
        harness.expect(tessera, ["convert", src, "-o", tmp_path / "stopped", *options], 3, *words)
    return run


KV_B = "model.layers.0.self_attn.kv_b_proj.weight"
COPYING = {
    "fp8-block": ("fp8-block",),
    "another dialect": ("fp8-block", "--dialect", "compressed-tensors"),
    "mxfp8": ("mxfp8",),
    "ranks": ("tp", "--tp", "2"),
    "ranks, by columns": ("tp", "--tp", "2"),
    "deepseek-mp": ("deepseek-mp", "--mp", "1"),
    "deepseek-mp, cut": ("deepseek-mp", "--mp", "2"),
    "absorbed": ("mla-absorbed", "--consumer", "vllm", "--weights", "fp8-block", "--drop-kv-b"),
    "beside absorbed": ("mla-absorbed", "--consumer", "vllm"),
}


@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize("name", COPYING)
def test_a_nan_code_that_would_be_copied(tmp_path, fp8_deepseek, stops, name, code):
    tensor = {"absorbed": KV_B, "ranks, by columns": "model.layers.0.self_attn.o_proj.weight"}.get(
        name, "model.layers.0.self_attn.q_b_proj.weight")
    shape = load(fp8_deepseek)[tensor].shape
    row, col = shape[0] - 2, shape[1] - 3
    file, offset = damage(fp8_deepseek, tmp_path / "src", tensor, row * shape[1] + col, bytes([code]))
    stops(tmp_path / "src", file, f"'{tensor}'", "code NaN", f"[{row}, {col}]", f"file offset {offset}",
           options=("--to", *COPYING[name]))


@pytest.mark.parametrize("name", COPYING)
def test_a_nan_scale_that_would_be_copied(tmp_path, fp8_deepseek, stops, name):
    tensor = {"absorbed": KV_B, "ranks, by columns": "model.layers.0.self_attn.o_proj.weight"}.get(
        name, "model.layers.0.self_attn.q_b_proj.weight") + "_scale_inv"
    shape = load(fp8_deepseek)[tensor].shape
    at = (shape[0] - 1) * shape[1] * 4
    file, offset = damage(fp8_deepseek, tmp_path / "src", tensor, at, np.float32(np.nan).tobytes())
    stops(tmp_path / "src", file, f"'{tensor}'", "scale", f"[{shape[0] - 1}, 0]", f"file offset {offset}",
           options=("--to", *COPYING[name]))


@pytest.mark.parametrize("tensor,byte,words", [("layers.0.attn.wq_b.weight", b"\x7f", "code NaN"), ("layers.0.attn.wq_b.scale", b"\xff\xff\xff\xff", "scale")])
def test_nan_in_ranks_of_deepseek_is_not_joined(tmp_path, fp8_deepseek, convert, stops, tensor, byte, words):
    ranks = convert(fp8_deepseek, "--to", "deepseek-mp", "--mp", "2")
    damage(ranks, tmp_path / "src", tensor, 4, byte)
    stops(tmp_path / "src", f"'{tensor}'", words, "file offset", options=("--from", "deepseek-mp"))


@pytest.mark.parametrize("dtype,stored", [(np.float32, np.inf), (BF16, -1), (np.float16, np.nan), (E8M0, np.nan)])
def test_a_scale_that_no_weight_comes_of_is_not_cut(tmp_path, stops, dtype, stored):
    tensors, _ = weights(dtype)
    tensors[O + "_scale_inv"] = tensors[O + "_scale_inv"].copy()
    tensors[O + "_scale_inv"][1, 0] = dtype(stored)
    src = make(tmp_path / "src", {"model.safetensors": tensors}, **LLAMA)
    stops(src, O + "_scale_inv", "[1, 0]", "file offset", options=("--to", "tp", "--tp", "2"))


def test_codes_are_not_linked_unseen(tmp_path, refuse):
    """A file that contains only codes does not change."""
    tensors, _ = weights(np.float32)
    tensors[O].view(np.uint8)[3, 4] = 0x7F
    src = make(tmp_path / "src", {"a.safetensors": {O: tensors.pop(O)}, "b.safetensors": tensors}, **LLAMA)
    refuse(src, 3, "code NaN at [3, 4]", options=("--to", "fp8-block", "--link", "hard"))


@pytest.mark.parametrize("quiet", ["code", "scale"])
def test_verify_finds_nan_that_the_source_has_too(tmp_path, tessera, quiet):
    tensors, _ = weights(np.float32)
    if quiet == "code":
        tensors[O].view(np.uint8)[3, 4] = 0x7F
    else:
        tensors[O + "_scale_inv"][1, 0] = np.nan
    src, dst = (make(tmp_path / name, {"model.safetensors": tensors}, **LLAMA) for name in ("src", "dst"))
    harness.shows(tessera, ["verify", dst, "--against", src], 1, O, "NaN")
    assert f"{1 if quiet == 'code' else 128 * 128} NaN" in harness.succeed(tessera, ["inspect", f"{src}:{O}"])


@pytest.mark.parametrize("to", ["nvfp4-weight-only", "mxfp4", "fp8-block", "bf16", "int8-channel"])
def test_a_nan_scale_of_mxfp4_is_named_with_its_place(tmp_path, stops, to):
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}}
    q = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "config_groups": {"group_0": group}}
    scales = np.full((256, 8), 120, np.uint8)
    scales[3, 5] = 0xFF
    src = make(tmp_path / "src", {"model.safetensors": {O + "_packed": np.full((256, 128), 0x22, np.uint8), O + "_scale": scales}}, q, **LLAMA)
    start, entries, _ = harness.read_header(src / "model.safetensors")
    offset = start + entries[O + "_scale"]["data_offsets"][0] + 3 * 8 + 5
    stops(src, f"'{O}_scale'", "[3, 5]", f"file offset {offset}", "NaN", options=("--to", to))


@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
def test_the_scales_say_whether_codes_can_be_moved_to_mxfp8(tmp_path, tessera, convert, stops, stated, dtype):
    """Power-of-two scales are moved bit for bit for any scale_fmt, also in a padded grid. A scale of 0.75 is rejected if
    scale_fmt is ue8m0."""
    tensors, scales = weights(dtype)
    tensors[K + "_scale_inv"] = np.pad(tensors[K + "_scale_inv"], ((0, 2), (0, 0)))
    q = UE8M0 if stated else DEEPSEEK
    src = make(tmp_path / "src", {"model.safetensors": tensors}, q, **LLAMA)
    got = load(convert(src, "--to", "mxfp8"))
    for name in (O, K):
        assert same_bits(got[name], tensors[name]) and np.array_equal(np.exp2(got[name + "_scale"].view(np.uint8) - 127.0), by_groups(scales[name]))
    tensors[O + "_scale_inv"] = tensors[O + "_scale_inv"].copy()
    tensors[O + "_scale_inv"][1, 0] = 0.75
    src = make(tmp_path / "odd", {"model.safetensors": tensors}, q, **LLAMA)
    if stated:
        stops(src, O + "_scale_inv", "[1, 0]", "0.75", "not a power of two", "--lossy", options=("--to", "mxfp8"))
    dst = convert(src, "--to", "mxfp8", *(["--lossy"] if stated else []))
    got = load(dst)
    assert same_bits(got[K], tensors[K]) and not same_bits(got[O], tensors[O])
    harness.succeed(tessera, ["verify", dst, "--against", src])


def test_absorbing_a_rank_names_the_order_that_works(fp8_deepseek, convert, stops):
    ranks = convert(fp8_deepseek, "--to", "tp", "--tp", "2")
    stops(ranks / "rank-0", "kv_b_proj", "--to mla-absorbed", "on the whole checkpoint first, then --to tp", options=("--to", "mla-absorbed", "--consumer", "vllm"))
