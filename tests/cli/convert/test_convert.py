"""Tests `tessera convert --to bf16` and `--to fp8-block` against NumPy.

Covers values, round trips byte for byte, all names of scales, all shapes of scale grids, and rejected pairings."""

import json

from checkpoints import BLOCKS, DEEPSEEK, NAMES, REPORT, load, make, random_weight, same_bits, shards, split
import fp8_oracle
import harness
import ml_dtypes
import numpy as np
import pytest

BF16, E4M3, E8M0 = ml_dtypes.bfloat16, fp8_oracle.E4M3, ml_dtypes.float8_e8m0fnu


def fp8(shape, seed=0):
    return fp8_oracle.quantize(random_weight(shape, seed))


def product(codes, scales, rows=128, cols=128):
    """Returns the FP32 product."""
    return codes.astype(np.float32) * fp8_oracle.spread(scales.astype(np.float32), codes.shape, rows, cols)


# ---- values ----


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("kind", ["llama", "qwen3-moe", "fused-experts"])
def test_cast_is_one_product_and_one_rounding(checkpoint, quantize, convert, kind, dtype):
    fp8_dir = quantize(checkpoint(kind))
    dst = convert(fp8_dir, "--to", "bf16", "--dtype", dtype)
    scales, others = split(load(fp8_dir))
    result = load(dst)
    assert result.keys() == others.keys() and scales
    target = {"bf16": BF16, "f16": np.float16, "f32": np.float32}[dtype]
    for name, value in others.items():
        want = product(value, scales[name]).astype(target) if name in scales else value
        assert same_bits(result[name], want), name
    config = json.loads((dst / "config.json").read_text())
    assert "quantization_config" not in config
    source = json.loads((fp8_dir / "config.json").read_text())
    assert set(source) - set(config) == {"quantization_config"}
    if "torch_dtype" in config:
        assert config["torch_dtype"] == {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[dtype]
    for path in shards(dst):
        assert harness.read_header(path)[2] == {"format": "pt"}
    for path in fp8_dir.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and path.name not in (REPORT, BLOCKS, harness.MANIFEST, "config.json"):
            assert (dst / path.name).exists() and (path.name.endswith("index.json") or harness.same_file(path, dst / path.name))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape,padding", [((576, 7168), (0, 0)), ((576, 130), (3, 6)), ((1, 1), (7, 7)), ((40000, 3), (0, 0)),
                                           ((3, 200, 260), (0, 0)), ((2, 200, 260), (2, 5))])
def test_ragged_and_padded_grids(tmp_path, convert, shape, padding, threads):
    codes, scales = fp8(shape)
    stored = np.pad(scales, [(0, 0)] * (scales.ndim - 2) + [(0, n) for n in padding], constant_values=np.nan)
    name = "m.weight" if len(shape) == 2 else "experts.gate_up_proj"
    src = make(tmp_path / "src", {"model.safetensors": {name: codes, name + "_scale_inv": stored}})
    got = load(convert(src, "--to", "bf16", "--threads", str(threads)))
    assert got.keys() == {name} and same_bits(got[name], product(codes, scales).astype(BF16))


@pytest.mark.parametrize("fill,words", [(0, []), (1, []), (np.nan, ["m.weight_scale_inv", "padding holds NaN"])])
@pytest.mark.parametrize("to", ["bf16", "fp8-block"])
def test_what_padding_may_hold(tmp_path, tessera, to, fill, words):
    codes, scales = fp8((576, 130))
    stored = np.pad(scales, ((0, 3), (0, 6)), constant_values=fill)
    src = make(tmp_path / "src", {"model.safetensors": {"m.weight": codes, "m.weight_scale_inv": stored}})
    err = harness.expect(tessera, ["convert", src, "-o", tmp_path / "dst", "--to", to, "--quiet"], 0, *words)
    assert words or "padding" not in err
    harness.shows(tessera, ["inspect", src], 0, *words)
    harness.expect(tessera, ["verify", tmp_path / "dst", "--against", src], 0, *words)


# The stated block, the weight, the grid, and words of the refusal beside both names.
CONTRADICTED = {
    "blocks of 128 for stated ones of 256": ((256, 256), (256, 256), (2, 2), ["1 x 1", "256x256", "fits blocks of 128x128"]),
    "in one dimension": ((128, 256), (256, 512), (2, 4), ["2 x 2", "128x256", "fits blocks of 128x128"]),
    "blocks of 128 for stated ones of 160": ((160, 160), (4096, 256), (32, 2), ["26 x 2", "160x160", "fits blocks of 128x128"]),
    "blocks of 64": ((128, 128), (512, 512), (8, 8), ["4 x 4", "128x128", "fits blocks of 64x64"]),
    "far more": ((256, 256), (8192, 256), (64, 2), ["32 x 1", "256x256", "fits blocks of 128x128"]),
}


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
@pytest.mark.parametrize("name", CONTRADICTED)
def test_a_block_size_that_the_grid_contradicts(tmp_path, tessera, refuse, name, dtype):
    block, shape, grid, words = CONTRADICTED[name]
    scales = np.random.default_rng(1).uniform(0.5, 2, grid).astype(dtype)
    codes = np.ones(shape, np.float32).astype(E4M3)
    tensors = {"model.safetensors": {"m.weight": codes, "m.weight_scale_inv": scales}}
    src = make(tmp_path / "src", tensors, {**DEEPSEEK, "weight_block_size": list(block)})
    for to in ("bf16", "fp8-block", "mxfp4"):
        refuse(src, 3, "'m.weight_scale_inv'", "'m.weight'", *words, options=("--to", to))
    harness.shows(tessera, ["inspect", src, "--can-load", "vllm"], 1, words[-1])
    harness.succeed(tessera, ["convert", src, "-o", tmp_path / "dst", "--to", "bf16", "--source-block", words[-1].split()[-1]])


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_config_states_the_new_dtype(tmp_path, convert, key):
    """transformers 5 calls the key "dtype", older ones "torch_dtype"."""
    codes, scales = fp8((128, 128))
    src = make(tmp_path / "src", {"model.safetensors": {"m.weight": codes, "m.weight_scale_inv": scales}}, **{key: "bfloat16"})
    config = json.loads((convert(src, "--to", "bf16", "--dtype", "f16") / "config.json").read_text())
    assert config[key] == "float16" and "quantization_config" not in config


@pytest.mark.parametrize("cpumask", ["0", "1", "3", "7"])
def test_instruction_sets_agree(tmp_path, convert, cpumask):
    codes, scales = fp8((300, 1000))
    src = make(tmp_path / "src", {"model.safetensors": {"m.weight": codes, "m.weight_scale_inv": scales}})
    got = load(convert(src, "--to", "bf16", "--cpumask", cpumask))
    assert same_bits(got["m.weight"], product(codes, scales).astype(BF16))


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16, E8M0])
def test_scale_dtypes(tmp_path, convert, dtype):
    codes, scales = fp8_oracle.quantize(random_weight((200, 300)), ue8m0=dtype is E8M0)
    stored = scales.astype(dtype)
    src = make(tmp_path / "src", {"model.safetensors": {"m.weight": codes, "m.weight_scale_inv": stored}})
    got = load(convert(src, "--to", "bf16"))
    assert same_bits(got["m.weight"], product(codes, stored.astype(np.float32)).astype(BF16))


@pytest.mark.parametrize("weight,scale", [
    ("m.weight", "m.weight_scale_inv"), ("m.weight", "m.weight_scale"), ("m.weight", "m.scale"),
    ("m.weight", "m.scale_weight"), ("experts.down_proj", "experts.down_proj_scale_inv"),
    ("experts.down_proj", "experts.down_proj_scale"), ("experts.down_proj", "experts.down_proj_scales_inv")])
def test_spellings_of_the_scale_in_another_shard(tmp_path, convert, weight, scale):
    codes, scales = fp8((2, 200, 300) if "experts" in weight else (200, 300))
    other = np.zeros((4, 4), BF16)
    src = make(tmp_path / "src", {"a.safetensors": {weight: codes}, "b.safetensors": {scale: scales, "n.weight": other}})
    got = load(convert(src, "--to", "bf16"))
    assert got.keys() == {weight, "n.weight"} and same_bits(got[weight], product(codes, scales).astype(BF16))


def test_other_blocks_come_from_the_configuration(tmp_path, convert):
    w = random_weight((100, 200))
    scales = np.abs(fp8_oracle.blocks_of(w, 64, 32)).max(axis=(-3, -1)) / np.float32(448)
    codes = (w / fp8_oracle.spread(scales, w.shape, 64, 32)).astype(E4M3)
    tensors = {"model.safetensors": {"m.weight": codes, "m.weight_scale_inv": scales}}
    want = product(codes, scales, 64, 32).astype(BF16)
    src = make(tmp_path / "a", tensors, quantization={**DEEPSEEK, "weight_block_size": [64, 32]})
    assert same_bits(load(convert(src, "--to", "bf16"))["m.weight"], want)
    group = {"weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": "64x32"}}
    src = make(tmp_path / "b", tensors, quantization={"quant_method": "compressed-tensors", "format": "float-quantized",
                                                      "config_groups": {"group_0": group}})
    assert same_bits(load(convert(src, "--to", "bf16"))["m.weight"], want)
    src = make(tmp_path / "c", tensors, quantization=None)
    assert same_bits(load(convert(src, "--to", "bf16", "--source-block", "64x32"))["m.weight"], want)


@pytest.mark.parametrize("shape,grid", [((200, 300), ()), ((200, 300), (1,)), ((200, 300), (200, 1)), ((3, 20, 30), (3,)),
                                        ((3, 20, 30), (3, 20, 1))])
def test_tensor_and_channel_scales(tmp_path, convert, shape, grid):
    codes, _ = fp8(shape)
    scales = np.abs(random_weight(grid or (1,), 5)).reshape(grid)
    src = make(tmp_path / "src", {"model.safetensors": {"m.weight": codes, "m.weight_scale": scales,
                                                        "m.input_scale": np.ones(1, np.float32)}},
               quantization={"quant_method": "fp8", "activation_scheme": "static"})
    got = load(convert(src, "--to", "bf16"))
    spread = scales.reshape(grid + (1,) * (len(shape) - len(grid)) if len(grid) < len(shape) and grid != (1,) else grid)
    assert got.keys() == {"m.weight"}
    assert same_bits(got["m.weight"], (codes.astype(np.float32) * spread).astype(BF16))


@pytest.mark.parametrize("options", [["--block", "64x64"], ["--scale-fmt", "ue8m0"], []])
def test_fp8_in_other_blocks_has_no_scale_of_inputs(tmp_path, convert, options):
    """The configuration has "dynamic". vLLM rejects a static input scale with it."""
    codes, scales = fp8((256, 256))
    src = make(tmp_path / "src", {"model.safetensors": {"m.weight": codes, "m.weight_scale_inv": scales,
                                                        "m.input_scale": np.ones(1, np.float32)}},
               quantization={**DEEPSEEK, "activation_scheme": "static"})
    dst = convert(src, "--to", "fp8-block", *options)
    assert json.loads((dst / "config.json").read_text())["quantization_config"]["activation_scheme"] == "dynamic"
    assert load(dst).keys() == {"m.weight", "m.weight_scale_inv"}


def test_a_single_file_and_a_nested_configuration(tmp_path, convert):
    codes, scales = fp8((200, 300))
    src = make(tmp_path / "src", {"model.safetensors": {"m.weight": codes, "m.weight_scale_inv": scales}},
               quantization=None, text_config={"a": 1.50, "quantization_config": DEEPSEEK, "b": [1]})
    dst = convert(src, "--to", "bf16")
    assert json.loads((dst / "config.json").read_text())["text_config"] == {"a": 1.5, "b": [1]}
    assert "1.5" in (dst / "config.json").read_text()
    single = convert(src / "model.safetensors", "--to", "bf16", "--source-block", "128x128")
    assert same_bits(load(single)["m.weight"], load(dst)["m.weight"])


# ---- round trips ----


def without(directory, *names):
    harness.without_records(directory)
    for name in names:
        (directory / name).unlink(missing_ok=True)
    return directory


@pytest.mark.parametrize("kind", ["deepseek-v3", "qwen3-moe"])
def test_fp8_bf16_fp8_gives_the_same_codes_and_scales(checkpoint, quantize, convert, kind):
    first = quantize(checkpoint(kind))
    again = quantize(convert(first, "--to", "bf16"))
    a, b = load(first), load(again)
    assert a.keys() == b.keys()
    for name in a:
        assert same_bits(a[name], b[name]), name


def test_fp8_bf16_fp8_keeps_every_value_with_powers_of_two(checkpoint, quantize, convert):
    first = quantize(checkpoint("qwen3-moe"), "--scale-fmt", "ue8m0")
    again = quantize(convert(first, "--to", "bf16"), "--scale-fmt", "ue8m0")
    (a_scales, a), (b_scales, b) = split(load(first)), split(load(again))
    assert a_scales and a_scales.keys() == b_scales.keys()
    for name in a_scales:
        x, y = (fp8_oracle.dequantize(*pair) for pair in ((a[name], a_scales[name]), (b[name], b_scales[name])))
        assert np.array_equal(x, y), name


def test_dialect_there_and_back_is_the_same_tree(checkpoint, quantize, convert):
    first = quantize(checkpoint("deepseek-v3"))
    there = convert(first, "--to", "fp8-block", "--dialect", "compressed-tensors")
    back = convert(there, "--to", "fp8-block", "--dialect", "deepseek")
    scales, codes = split(load(first))
    renamed, same = split(load(there), "_scale")
    assert scales and scales.keys() == renamed.keys() and all(same_bits(scales[n], renamed[n]) for n in scales)
    assert codes and all(same_bits(codes[n], same[n]) for n in codes)
    assert harness.tree_difference(without(first, REPORT, BLOCKS), without(back)) is None
    group = json.loads((there / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]
    assert group["weights"]["block_structure"] == [128, 128]


def test_dialect_is_what_quantizing_writes(checkpoint, quantize, convert):
    src = checkpoint("qwen3-moe")
    direct = quantize(src, "--dialect", "compressed-tensors")
    renamed = convert(quantize(src), "--to", "fp8-block", "--dialect", "compressed-tensors")
    assert harness.tree_difference(without(direct, REPORT, BLOCKS), without(renamed)) is None


@pytest.mark.parametrize("options,ue8m0,block", [(("--scale-fmt", "ue8m0"), True, (128, 128)),
                                                 (("--block", "64x32"), False, (64, 32))])
def test_requantizing_is_quantizing_the_decoded_values(checkpoint, quantize, convert, options, ue8m0, block):
    src = checkpoint("deepseek-v3")
    first = quantize(src)
    dst = convert(first, "--to", "fp8-block", *options, "--against", src)
    (scales, codes), (old_scales, old_codes), original = split(load(dst)), split(load(first)), load(src)
    report = json.loads((dst / REPORT).read_text())
    assert [row["name"] for row in report["tensors"]] == [row["name"] for row in report["against"]]
    against = {row["name"]: row for row in report["against"]}
    for name in old_scales:
        w = product(old_codes[name], old_scales[name])
        amax = np.abs(fp8_oracle.blocks_of(w, *block)).max(axis=(-3, -1))
        want = amax / np.float32(448)
        want[(amax > 0) & (want == 0)] = fp8_oracle.TINIEST
        if ue8m0:
            want = fp8_oracle.scales_of(w, True)
        want[amax == 0] = 1
        with np.errstate(over="ignore"):
            quotient = np.clip(w / fp8_oracle.spread(want, w.shape, *block), -448, 448)
        assert same_bits(scales[name], want), name
        assert same_bits(codes[name], quotient.astype(E4M3)), name
        x = original[name].astype(np.float64)
        y = codes[name].astype(np.float64) * fp8_oracle.spread(want, w.shape, *block)
        error = np.sqrt(((x - y) ** 2).sum() / (x**2).sum())
        assert against[name]["relative_error"] == pytest.approx(error, rel=1e-4), name
    config = json.loads((dst / "config.json").read_text())["quantization_config"]
    assert config["weight_block_size"] == list(block) and ("scale_fmt" in config) == ue8m0


@pytest.mark.parametrize("options", [("--block", "64x64"), ("--dialect", "compressed-tensors", "--scale-fmt", "ue8m0")])
def test_some_of_fp8_becomes_bf16(checkpoint, quantize, convert, options):
    """An excluded weight and its fused layer become BF16 and are listed. All others are the same as without --exclude."""
    first = quantize(checkpoint("llama"))
    every, some = (convert(first, "--to", "fp8-block", *options, *more)
                   for more in ((), ("--exclude", "*.0.mlp.down_proj.*", "--exclude", "*.1.self_attn.k_proj.*")))
    a, b, plain = load(every), load(some), load(convert(first, "--to", "bf16"))
    became = {name for name in b if b[name].dtype == BF16} - {name for name in a if a[name].dtype == BF16}
    assert became == {"model.layers.0.mlp.down_proj.weight"} | {f"model.layers.1.self_attn.{x}_proj.weight" for x in "qkv"}
    assert all(same_bits(b[name], (plain if name in became else a)[name]) for name in b)
    assert {name.rpartition(".weight")[0] for name in a.keys() - b.keys()} == {name.removesuffix(".weight") for name in became}
    was, config = (json.loads((dst / "config.json").read_text())["quantization_config"] for dst in (every, some))
    key = "ignore" if "ignore" in was else "modules_to_not_convert"
    joined = ["model.layers.1.self_attn.qkv_proj"] if key == "ignore" else []  # the layer by the name that loaders give it
    assert sorted(config.pop(key)) == sorted(was.pop(key) + [name.removesuffix(".weight") for name in became] + joined)
    assert config == was
    assert " --exclude *.0.mlp.down_proj.*" in json.loads((some / "tessera.manifest.json").read_text())["command"]


def test_excluding_fp8_against_an_original_is_refused(tessera, tmp_path, checkpoint, quantize):
    first = quantize(checkpoint("llama"))
    code, _, err = harness.run(tessera, ["convert", first, "-o", tmp_path / "other", "--to", "fp8-block", "--exclude", "*down*",
                                         "--against", first])
    assert code == 2 and "without --exclude" in err
    _, told, _ = harness.run(tessera, ["convert", "--help"])
    assert any("--exclude GLOB" in line and "BF16" in line for line in told.splitlines())


def test_what_is_ue8m0_already_is_not_made_anew(checkpoint, quantize, convert):
    first = quantize(checkpoint("deepseek-v3"), "--scale-fmt", "ue8m0")
    plain = convert(first, "--to", "fp8-block", "--scale-fmt", "f32")
    a, b = load(first), load(plain)
    assert a.keys() == b.keys() and all(same_bits(a[n], b[n]) for n in a)
    assert "scale_fmt" not in json.loads((plain / "config.json").read_text())["quantization_config"]


def test_e8m0_scales_become_f32(tmp_path, convert):
    codes, scales = fp8_oracle.quantize(random_weight((200, 300)), ue8m0=True)
    src = make(tmp_path / "src", {"model.safetensors": {"m.weight": codes, "m.scale": scales.astype(E8M0)}},
               quantization={**DEEPSEEK, "scale_fmt": "ue8m0"})
    got = load(convert(src, "--to", "fp8-block"))
    assert same_bits(got["m.weight"], codes) and same_bits(got["m.weight_scale_inv"], scales)


# ---- what is refused ----


CODES, SCALES = fp8((200, 300))
NAN_SCALE = SCALES.copy()
NAN_SCALE[1, 2] = np.nan
NAN_CODE = CODES.copy()
NAN_CODE.view(np.uint8)[150, 7] = 0xFF
E8M0_NAN = np.ones((2, 3), E8M0)
E8M0_NAN.view(np.uint8)[0, 1] = 0xFF
REFUSED = {
    "no scale": ({"m.weight": CODES}, ["'m.weight' is F8_E4M3 without a scale", "in all 1 file)"]),
    "two scales": ({"m.weight": CODES, "m.weight_scale_inv": SCALES, "m.scale": SCALES}, ["two scales", "m.scale"]),
    "a scale without weight": ({"m.weight": CODES, "m.weight_scale_inv": SCALES, "n.weight_scale_inv": SCALES},
                               ["'n.weight_scale_inv'", "in none of the 1 file\n"]),
    "a scale left over": ({"m.weight": CODES, "m.weight_scale_inv": SCALES, "n.weight": np.ones((4, 4), BF16),
                           "n.weight_scale_inv": SCALES}, ["'n.weight_scale_inv' is a left-over scale", "BF16"]),
    "a transposed grid": ({"m.weight": CODES, "m.weight_scale_inv": np.ones((3, 2), np.float32)},
                          ["the grid is stored transposed", "m.weight_scale_inv", "[3, 2]", "2 x 3"]),
    "a grid far too large": ({"m.weight": CODES, "m.weight_scale_inv": np.ones((9, 3), np.float32)}, ["2 x 3"]),
    "a grid of another rank": ({"m.weight": CODES, "m.weight_scale_inv": np.ones(6, np.float32)}, ["2 x 3"]),
    "integer scales": ({"m.weight": CODES, "m.weight_scale_inv": np.ones((2, 3), np.uint8)}, ["is U8"]),
    "NaN scale": ({"m.weight": CODES, "m.weight_scale_inv": NAN_SCALE}, ["m.weight_scale_inv", "[1, 2]", "offset"]),
    "E8M0 0xFF": ({"m.weight": CODES, "m.weight_scale_inv": E8M0_NAN}, ["m.weight_scale_inv", "[0, 1]", "nan"]),
    "negative scale": ({"m.weight": CODES, "m.weight_scale_inv": -SCALES}, ["m.weight_scale_inv", "[0, 0]"]),
    "NaN code": ({"m.weight": NAN_CODE, "m.weight_scale_inv": SCALES}, ["'m.weight'", "NaN", "[150, 7]", "offset"]),
    "e5m2": ({"m.weight": CODES, "m.weight_scale_inv": SCALES,
              "n.weight": np.zeros((4, 4), ml_dtypes.float8_e5m2)}, ["n.weight", "F8_E5M2"]),
}
NAMES[np.dtype(ml_dtypes.float8_e5m2)] = "F8_E5M2"


@pytest.mark.parametrize("target", ["bf16", "fp8-block"])
@pytest.mark.parametrize("name", REFUSED)
def test_broken_pairs_are_refused_by_name(tmp_path, refuse, name, target):
    tensors, words = REFUSED[name]
    src = make(tmp_path / "src", {"model.safetensors": tensors})
    result = tmp_path / "error.json"
    refuse(src, 3, *words, options=("--to", target, "--json", result))
    if words[0] in ("'m.weight'", "m.weight_scale_inv"):
        assert json.loads(result.read_text())["error"]["tensor"] == words[0].strip("'")
    if words[0] == "m.weight_scale_inv":  # the file that holds the scale is named
        src = make(tmp_path / "two", {"model-1.safetensors": {"m.weight": CODES}, "model-2.safetensors": {words[0]: tensors[words[0]]}})
        refuse(src, 3, f"model-2.safetensors: '{words[0]}'", *words, options=("--to", target, "--force"))


def test_values_beyond_f16(tmp_path, refuse, convert):
    codes = np.full((4, 4), 1, np.float32).astype(E4M3)
    codes[2, 3] = 448
    src = make(tmp_path / "src", {"model.safetensors": {"m.weight": codes,
                                                        "m.weight_scale_inv": np.full((1, 1), 147, np.float32)}})
    refuse(src, 3, "'m.weight'", "[2, 3]", "F16", options=("--to", "bf16", "--dtype", "f16"))
    assert load(convert(src, "--to", "bf16"))["m.weight"][2, 3] == BF16(448 * 147)


def test_the_block_size_is_never_guessed(tessera, tmp_path, refuse):
    """inspect of a tensor says that its values are codes."""
    src = make(tmp_path / "src", {"model.safetensors": {"m.weight": CODES, "m.weight_scale_inv": SCALES}},
               quantization={"quant_method": "fp8"})
    refuse(src, 2, "--source-block")
    for options, warned in ([], True), (["--source-block", "128x128"], False):
        code, _, err = harness.run(tessera, ["inspect", f"{src}:m.weight", *options])
        assert code == 0 and ("codes without a scale that fits" in err) == warned


@pytest.mark.parametrize("scheme", ["int8-channel", "mxfp4-weight-only"])
@pytest.mark.parametrize("to", ["bf16", "fp8-block", "int4-weight-only"])
def test_a_block_size_needs_fp8_in_blocks(tessera, checkpoint, quantize, refuse, scheme, to):
    src = quantize(checkpoint("llama"), "--scheme", scheme)
    refuse(src, 2, "--source-block has no effect", "FP8 in blocks", options=("--to", to, "--source-block", "128x128"))
    for more in ([], ["--tensors", "*"]):
        harness.expect(tessera, ["inspect", src, "--source-block", "128x128", *more], 2, "--source-block has no effect: no weight is FP8 in blocks")


def test_what_is_not_fp8(tmp_path, refuse):
    tensors = {"model.safetensors": {"m.weight": np.ones((4, 4), BF16)}}
    refuse(make(tmp_path / "a", tensors), 3, "quant_method is 'fp8'", "no tensor is quantized")
    refuse(make(tmp_path / "b", tensors, quantization=None), 3, "nothing to dequantize")
    refuse(tmp_path / "b", 3, "nothing to convert", options=("--to", "bf16", "--experts", "stack"))
    refuse(tmp_path / "b", 2, "--source-block has no effect", options=("--to", "bf16", "--source-block", "128x128"))
    refuse(make(tmp_path / "c", tensors, quantization={"quant_method": "gptq"}), 3, "gptq")


def test_stacks_need_experts(checkpoint, quantize, convert, refuse):
    """A model without experts is refused. Experts that are stacks already stay so."""
    options = ("--to", "bf16", "--experts", "stack")
    refuse(quantize(checkpoint("llama")), 3, "--experts stack has no effect", "no expert is a separate tensor", options=options)
    fused = quantize(checkpoint("fused-experts"), "--experts", "stack")
    assert load(convert(fused, *options)).keys() == load(checkpoint("fused-experts")).keys()


def test_against_another_model(tmp_path, refuse):
    src = make(tmp_path / "a", {"model.safetensors": {"m.weight": CODES, "m.weight_scale_inv": SCALES}})
    other = make(tmp_path / "b", {"model.safetensors": {"m.weight": np.ones((4, 4), BF16)}}, quantization=None)
    options = ("--to", "fp8-block", "--scale-fmt", "ue8m0", "--against", str(other))
    refuse(src, 3, "m.weight", "needs the shape of", options=options)


def test_options_of_another_target(tmp_path, refuse):
    src = make(tmp_path / "a", {"model.safetensors": {"m.weight": CODES, "m.weight_scale_inv": SCALES}})
    refuse(src, 2, "--dialect cannot be combined with --to bf16", options=("--to", "bf16", "--dialect", "deepseek"))
    refuse(src, 2, "--to", options=())
    for target in ("--to archive", "--to safetensors", "--to deepseek-mp --mp 1", "--to trtllm --arch sm80", "--merge"):
        words = target.split()
        refuse(src, 2, f"--max-shard-size cannot be combined with {' '.join(words[:2])}", options=(*words, "--max-shard-size", "1MB"))


def test_options_that_have_nothing_to_act_on(tessera, tmp_path, checkpoint, quantize, convert):
    model = checkpoint("llama")
    code, _, err = harness.run(tessera, ["quantize", model, "-o", tmp_path / "dst", "--scheme", "int4-weight-only", "--zero-points",
                                         "--divisor", "7"])
    assert code == 2 and "--divisor cannot be combined with --zero-points" in err
    codes = quantize(model, "--scheme", "mxfp4")
    code, _, err = harness.run(tessera, ["convert", codes, "-o", tmp_path / "dst", "--to", "mxfp4", "--mx-scale", "floor"])
    assert code == 2 and "--mx-scale has no effect" in err and not (tmp_path / "dst").exists()
    convert(codes, "--to", "mxfp4", "--mx-scale", "floor", "--scales", "mse")
    words = json.loads((convert(codes, "--to", "archive") / "tessera.manifest.json").read_text())["reproduce"]["options"]
    assert words == ["--to=archive"]


@pytest.mark.parametrize("family, columns", [("gpt_oss", 64), ("llama4_text", 64), ("qwen3_moe", 32)])
def test_stacks_of_inputs_before_outputs_are_not_cut(tmp_path, refuse, family, columns):
    stack = "model.layers.0.mlp.experts.gate_up_proj"
    src = make(tmp_path / "src", {"model.safetensors": {stack: np.ones((2, 64, columns), BF16)}}, None, model_type=family, hidden_size=64)
    refuse(src, 3, stack, "[experts, in, out]", options=("--to", "tp", "--tp", "2"))


def test_a_bias_is_cut_with_its_weight(tmp_path, convert):
    """Each half of gate and up is cut. A bias of summed outputs is complete on every rank."""
    x = "model.layers.0.mlp."
    sizes = {x + "gate_up_proj.bias": 8, x + "w1.bias": 6, x + "w2.bias": 4, x + "gate.e_score_correction_bias": 3, x + "k_scale": 1}
    src = make(tmp_path / "src", {"model.safetensors": {name: np.arange(n, dtype=np.float32) for name, n in sizes.items()}}, None)
    second = {name: value.tolist() for name, value in load(convert(src, "--to", "tp", "--tp", "2") / "rank-1").items()}
    assert second == {x + "gate_up_proj.bias": [2, 3, 6, 7], x + "w1.bias": [3, 4, 5], x + "w2.bias": [0, 1, 2, 3],
                      x + "gate.e_score_correction_bias": [0, 1, 2], x + "k_scale": [0]}
