"""Tests `tessera diff` against NumPy: all figures and positions in double, and planted faults."""

import json

from checkpoints import DTYPES, E8M0, FP8_CONFIG, write
import fp8_oracle
import harness
import ml_dtypes
import numpy as np
import pytest

BF16 = ml_dtypes.bfloat16
W = "model.layers.0.mlp.down_proj.weight"


def load(directory):
    """Returns {name: values in double, with scales} of a directory."""
    raw = {}
    for path in sorted(directory.glob("*.safetensors")):
        for name, (dtype, shape, data) in harness.read_safetensors(path)[1].items():
            raw[name] = np.frombuffer(data, DTYPES[dtype]).reshape(shape)
    return {name: fp8_oracle.dequantize(x, raw[name + "_scale_inv"]) if name + "_scale_inv" in raw
            else x.astype(np.float64) for name, x in raw.items() if not name.endswith("_scale_inv")}


@pytest.fixture
def diff(tessera):
    """Returns diff(a, b, *options) -> (exit code, the JSON result with its tensors by name, its text)."""

    def run(a, b, *options):
        code, out, err = harness.run(tessera, ["diff", a, b, "--json", "-", *options])
        assert code in (0, 1), err
        result = json.loads(out)
        result["tensors"] = {entry["name"]: entry for entry in result["tensors"]}
        again, text, _ = harness.run(tessera, ["diff", a, b, *options])
        assert again == code and text.endswith("\n")
        return code, result, text

    return run


def assert_figures(entry, x, y):
    """Compares one tensor's entry with figures computed from its values in double."""
    d, d2, x2, y2 = np.abs(x - y), ((x - y) ** 2).sum(), (x**2).sum(), (y**2).sum()
    assert entry["elements"] == x.size
    assert entry["differ"] == np.count_nonzero(x != y)
    if not entry["differ"]:
        return
    close = {"rel": 1e-9}
    assert entry["relative_error"] == pytest.approx(np.sqrt(d2 / x2), **close)
    assert entry["sqnr_db"] == pytest.approx(10 * np.log10(x2 / d2), **close)
    assert entry["cosine"] == pytest.approx((x * y).sum() / np.sqrt(x2 * y2), **close)
    assert entry["calc_diff"] == pytest.approx(1 - 2 * (x * y).sum() / (x2 + y2), abs=1e-12)
    assert entry["max_abs_error"] == d.max()
    assert d[tuple(entry["max_abs_error_at"])] == d.max()
    assert_worst_blocks(entry, x, y)


def assert_worst_blocks(entry, x, y):
    stack = [s.reshape(-1, *s.shape[-2:]) if s.ndim > 1 else s.reshape(1, 1, -1) for s in (x, y)]
    if stack[0].shape[1] < 128 and entry["a"]["dtype"] != "F8_E4M3" and entry["b"]["dtype"] != "F8_E4M3":
        stack = [s.reshape(1, -1, s.shape[-1]) for s in stack]
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.sqrt(fp8_oracle.over_blocks(np.add, (stack[0] - stack[1]) ** 2) / fp8_oracle.over_blocks(np.add, stack[0] ** 2))
    assert len(entry["worst_blocks"]) == min(5, np.count_nonzero(errors > 0))
    for found, expected in zip(entry["worst_blocks"], -np.sort(-errors[errors > 0])):
        (r, r_end), (c, c_end), m = found["rows"], found["columns"], found["matrix"]
        error = errors[m, r // 128, c // 128]
        assert error == expected or error == pytest.approx(expected, rel=1e-9)
        if np.isfinite(error):
            assert found["relative_error"] == pytest.approx(error, rel=1e-9)
        part = [s[m, r:r_end, c:c_end] for s in stack]
        assert part[0].shape == (min(128, stack[0].shape[1] - r), min(128, stack[0].shape[2] - c))
        assert found["differ"] == np.count_nonzero(part[0] != part[1])
        assert found["max_abs_error"] == np.abs(part[0] - part[1]).max()


# ---- figures ----


@pytest.mark.parametrize("kind", ["deepseek-v3", "fused-experts"])
def test_what_quantizing_cost(kind, checkpoint, quantize, diff):
    src = checkpoint(kind)
    dst = quantize(src)
    code, result, text = diff(src, dst)
    assert code == 1 and "SQNR" in text
    x, y = load(src), load(dst)
    assert result["tensors"].keys() == x.keys()
    power = loss = 0.0
    for name, entry in result["tensors"].items():
        if entry["state"] == "identical":
            assert np.array_equal(x[name], y[name])
            continue
        assert entry["state"] == "differs" and entry["b"]["dtype"] == "F8_E4M3"
        assert entry["misrounded"] == 0
        assert_figures(entry, x[name], y[name])
        power += (x[name] ** 2).sum()
        loss += ((x[name] - y[name]) ** 2).sum()
    assert result["differs"] == sum(e["state"] == "differs" for e in result["tensors"].values()) > 0
    assert result["whole"]["relative_error"] == pytest.approx(np.sqrt(loss / power), rel=1e-9)


# Vectors, ragged and stacked matrices, convolutions, and tensors of several pieces in both directions.
SHAPES = [(1,), (127,), (5000,), (1, 1), (129, 127), (130, 1000), (3, 200, 150), (2, 3, 130, 140), (40, 8, 3, 3),
          (1500, 300), (300, 3000), (3, 100000), (600000,), (50000, 7)]


@pytest.mark.parametrize("dtypes", [("F64", "F32"), ("F32", "BF16"), ("F16", "F64"), ("I32", "U8")], ids="-".join)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_and_dtype(shape, dtypes, diff, tmp_path):
    rng = np.random.default_rng(5)
    x = (np.abs(rng.standard_normal(shape)) * 100 if "U8" in dtypes else rng.standard_normal(shape)).astype(
        DTYPES[dtypes[0]])
    y = x.astype(DTYPES[dtypes[1]])
    y.reshape(-1)[-1] += 1
    name = "x_index" if "U8" in dtypes else "x"
    code, result, _ = diff(write(tmp_path / "a", {name: x}), write(tmp_path / "b", {name: y}))
    assert code == 1
    assert_figures(result["tensors"][name], x.astype(np.float64), y.astype(np.float64))


def test_nothing_to_compare_in_an_empty_tensor(diff, tmp_path):
    a = write(tmp_path / "a", {"x": np.zeros((0, 5), np.float32), "s": np.array(3, np.int64)})
    code, result, text = diff(a, a)
    assert code == 0 and result["identical"] == 2 and "same values everywhere" in text


def test_integers_that_double_cannot_tell_apart(diff, tmp_path):
    a = write(tmp_path / "a", {"x": np.array([2**53, 1], np.int64)})
    b = write(tmp_path / "b", {"x": np.array([2**53 + 1, 1], np.int64)})
    assert diff(a, b)[0] == 1


# ---- the same values, written otherwise ----


def powers(rng, shape=(300, 520)):
    """Returns (codes, power-of-two scales). Their product is exact even in BF16."""
    w = rng.standard_normal(shape) * np.exp2(rng.integers(-9, 9, (shape[0], 1)))
    return fp8_oracle.quantize(w.astype(np.float32), ue8m0=True)


def test_dialects_and_scale_dtypes_do_not_matter(diff, tmp_path):
    codes, scales = powers(np.random.default_rng(1))
    base = write(tmp_path / "base", {W: codes, W + "_scale_inv": scales}, FP8_CONFIG)
    module = W.removesuffix(".weight")
    ct = {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"block_structure": [128, 128]}}}}}
    others = {
        "compressed-tensors": ({W: codes, W + "_scale": scales}, ct, "identical"),
        "deepseek's own name": ({W: codes, module + ".scale": scales}, FP8_CONFIG, "identical"),
        "bf16 scales": ({W: codes, W + "_scale_inv": scales.astype(BF16)}, FP8_CONFIG, "identical"),
        "e8m0 scales": ({W: codes, W + "_scale_inv": scales.astype(E8M0)}, FP8_CONFIG, "identical"),
        "a padded grid": ({W: codes, W + "_scale_inv": np.pad(scales, ((0, 2), (0, 3)))}, FP8_CONFIG, "identical"),
        "bf16": ({W: fp8_oracle.dequantize(codes, scales).astype(BF16)}, None, "equal"),
        "f64": ({W: fp8_oracle.dequantize(codes, scales)}, None, "equal"),
    }
    for i, (what, (tensors, config, state)) in enumerate(others.items()):
        code, result, text = diff(base, write(tmp_path / str(i), tensors, config))
        assert (code, result["tensors"][W]["state"]) == (0, state), what
        assert "same values everywhere" in text


def test_f32_scales_multiply_exactly(diff, tmp_path):
    """The product has 28 bits. It equals double, and differs from FP32 by one rounding."""
    codes, scales = fp8_oracle.quantize(np.random.default_rng(2).standard_normal((200, 200)))
    fp8 = write(tmp_path / "fp8", {W: codes, W + "_scale_inv": scales}, FP8_CONFIG)
    exact = fp8_oracle.dequantize(codes, scales)
    assert diff(fp8, write(tmp_path / "f64", {W: exact}))[0] == 0
    f32 = write(tmp_path / "f32", {W: exact.astype(np.float32)})
    assert diff(fp8, f32)[0] == 1
    assert diff(fp8, f32, "--tolerance", 2.0**-24)[0] == 0


@pytest.mark.parametrize("scales_shape", [(300, 1), (1,), ()])
def test_scales_of_rows_and_of_tensors(scales_shape, diff, tmp_path):
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 0x7F, (300, 200), dtype=np.uint8).view(fp8_oracle.E4M3)
    scales = (rng.random(scales_shape) + 0.5).astype(np.float32).reshape(scales_shape)
    config = {"quantization_config": {"quant_method": "compressed-tensors"}}
    fp8 = write(tmp_path / "fp8", {W: codes, W + "_scale": scales}, config)
    exact = codes.astype(np.float64) * scales.astype(np.float64)
    assert diff(fp8, write(tmp_path / "f64", {W: exact}))[0] == 0


def test_negative_zero_is_zero(diff, tmp_path):
    a = write(tmp_path / "a", {"x": np.float32([0, 1])})
    code, result, _ = diff(a, write(tmp_path / "b", {"x": np.float32([-0.0, 1])}))
    assert (code, result["equal"]) == (0, 1)


@pytest.mark.parametrize("stated, code", [(None, 2), ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}, 3)])
def test_a_block_size_that_is_not_stated_or_wrong(tessera, diff, tmp_path, stated, code):
    codes, scales = powers(np.random.default_rng(1))
    fp8 = write(tmp_path / "fp8", {W: codes, W + "_scale_inv": scales}, stated)
    harness.expect(tessera, ["diff", fp8, fp8], code, "--source-block")
    assert diff(fp8, fp8, "--source-block", "128x128")[0] == 0


# ---- faults ----


@pytest.fixture
def sound(tmp_path):
    """Makes (source, codes, scales): BF16 weights of several magnitudes, and their block FP8, written at a and b."""
    rng = np.random.default_rng(4)
    w = rng.standard_normal((640, 384)) * np.repeat(np.exp2(rng.integers(-8, 8, (640 // 128, 1))), 128, 0)
    w = (w * np.repeat(np.exp2(rng.integers(-8, 8, 384 // 128)), 128)).astype(BF16)
    codes, scales = fp8_oracle.quantize(w)
    write(tmp_path / "a", {W: w})
    write(tmp_path / "b", {W: codes, W + "_scale_inv": scales}, FP8_CONFIG)
    return w, codes, scales


def test_one_flipped_bit_is_located(sound, diff, tmp_path):
    _, codes, scales = sound
    flipped = codes.copy()
    flipped.view(np.uint8)[300, 200] ^= 0x40
    broken = write(tmp_path / "c", {W: flipped, W + "_scale_inv": scales}, FP8_CONFIG)
    code, result, text = diff(tmp_path / "b", broken)
    entry = result["tensors"][W]
    assert (code, entry["differ"], entry["max_abs_error_at"]) == (1, 1, [300, 200])
    assert [(b["rows"], b["columns"]) for b in entry["worst_blocks"]] == [([256, 384], [128, 256])]
    assert "[300, 200]" in text and "rows 256..383, columns 128..255" in text and "flipped bit" in text
    # Its block is also the worst one in a comparison with the source.
    _, result, text = diff(tmp_path / "a", broken)
    worst = result["tensors"][W]["worst_blocks"][0]
    assert (worst["rows"], worst["columns"]) == ([256, 384], [128, 256])
    assert result["tensors"][W]["misrounded"] == 1 and "flipped bit" in text


def test_a_transposed_scale_grid_is_located(sound, diff, tmp_path):
    w, codes, scales = sound
    transposed = np.ascontiguousarray(scales.T).reshape(scales.shape)
    broken = write(tmp_path / "c", {W: codes, W + "_scale_inv": transposed}, FP8_CONFIG)
    code, result, text = diff(tmp_path / "a", broken)
    assert code == 1 and "whole blocks are wrong" in text
    assert_figures(result["tensors"][W], w.astype(np.float64), fp8_oracle.dequantize(codes, transposed))
    worst = result["tensors"][W]["worst_blocks"][0]
    assert scales[worst["rows"][0] // 128, worst["columns"][0] // 128] != transposed[
        worst["rows"][0] // 128, worst["columns"][0] // 128]


def test_one_wrong_scale_is_located(sound, diff, tmp_path):
    _, codes, scales = sound
    wrong = scales.copy()
    wrong[3, 1] *= 2
    broken = write(tmp_path / "c", {W: codes, W + "_scale_inv": wrong}, FP8_CONFIG)
    worst = diff(tmp_path / "b", broken)[1]["tensors"][W]["worst_blocks"]
    assert [(b["rows"], b["columns"], b["relative_error"]) for b in worst] == [([384, 512], [128, 256], 1)]


@pytest.mark.parametrize("where", ["code", "scale", "both sides"])
def test_nan_is_located_and_does_not_hide_the_rest(where, sound, diff, tmp_path):
    _, codes, scales = sound
    codes, scales = codes.copy(), scales.copy()
    if where == "scale":
        scales[1, 0] = np.nan
    else:
        codes.view(np.uint8)[130, 5] = 0x7F
    broken = write(tmp_path / "c", {W: codes, W + "_scale_inv": scales}, FP8_CONFIG)
    if where == "both sides":
        assert diff(broken, broken)[0] == 0
        return
    code, result, text = diff(tmp_path / "b", broken, "--tolerance", "1e30")
    entry = result["tensors"][W]
    assert code == 1 and "NaN or Inf" in text
    assert (entry["nonfinite_a"], entry["nonfinite_b"]) == (0, 1 if where == "code" else 128 * 128)
    assert entry["nonfinite_b_at"] == ([130, 5] if where == "code" else [128, 0])
    assert entry["relative_error"] is None and entry["cosine"] == pytest.approx(1)


def test_missing_extra_and_misshaped(diff, tmp_path):
    x = np.ones((3, 4), np.float32)
    a = write(tmp_path / "a", {"same": x, "gone": x, "turned": x})
    b = write(tmp_path / "b", {"same": x, "new": x, "turned": x.T.copy()})
    code, result, text = diff(a, b, "--tolerance", "1e30")
    states = {name: entry["state"] for name, entry in result["tensors"].items()}
    assert code == 1
    assert states == {"same": "identical", "gone": "missing", "turned": "misshaped", "new": "extra"}
    assert "turned  [3, 4] against [4, 3]" in text and "gone" in text and "new" in text
    assert diff(a, b, "--tensors", "sa?e")[0] == 0


# ---- tolerance, options, determinism ----


@pytest.mark.parametrize("metric, fine, beyond", [("relative", 0.03, 0.02), ("max-abs", 100, 0.001),
                                                  ("calc-diff", 0.001, 0.0001), ("sqnr", 31, 33)])
def test_tolerance(metric, fine, beyond, sound, diff, tmp_path):
    def run(tolerance):
        return diff(tmp_path / "a", tmp_path / "b", "--metric", metric, "--tolerance", tolerance)[:2]

    code, result = run(fine)
    assert (code, result["beyond"]) == (0, 0)
    code, result = run(beyond)
    assert (code, result["beyond"]) == (1, 1)


def test_worst_first(diff, tmp_path):
    names = [f"t{i}" for i in range(5)]
    errors = [0.1, 0.4, 0.0, 0.2, 0.3]
    a = write(tmp_path / "a", {name: np.float32([1]) for name in names})
    b = write(tmp_path / "b", {name: np.float32([1 + e]) for name, e in zip(names, errors)})
    for metric in ("relative", "sqnr", "max-abs"):
        text = diff(a, b, "--metric", metric)[2]
        assert [line.split()[4] for line in text.splitlines() if "(F32)" in line] == ["t1", "t4", "t3", "t0"]


def test_threads_and_memory_change_nothing(tessera, checkpoint, quantize, tmp_path):
    src = checkpoint("deepseek-v3")
    dst = quantize(src)
    rng = np.random.default_rng(6)
    wide = write(tmp_path / "a", {"x": rng.standard_normal((3000, 900)).astype(np.float32)})
    narrow = write(tmp_path / "b", {"x": rng.standard_normal((3000, 900)).astype(BF16)})
    for a, b in ((src, dst), (wide, narrow)):
        results = {harness.run(tessera, ["diff", a, b, "--json", "-", *options])[1]
                   for options in ([], ["--threads", 1], ["--threads", 2], ["--threads", 7], ["--memory", "16MiB"])}
        assert len(results) == 1


# ---- what cannot be compared ----


def test_bad_input(tessera, sound, tmp_path):
    _, codes, scales = sound
    a = tmp_path / "a"
    lonely = write(tmp_path / "lonely", {W: codes}, FP8_CONFIG)
    wrong = write(tmp_path / "wrong", {W: codes, W + "_scale_inv": scales.T.copy()}, FP8_CONFIG)
    plain = write(tmp_path / "plain", {W: np.float32([[0, 1]])})
    for args, code, words in [
        ([a, lonely], 3, (W, "without a scale")),
        ([wrong, a], 3, (W, "need a grid of 5 x 3")),
        ([a, tmp_path / "none"], 3, ("none",)),
        ([a], 2, ("two checkpoints are needed",)),
        ([a, a, a], 2, ("unexpected argument",)),
        ([a, a, "--tolerance", "much"], 2, ("--tolerance", "much")),
        ([a, a, "--tolerance", "-1"], 2, ("--tolerance",)),
        ([a, a, "--metric", "taste"], 2, ("--metric",)),
        ([a, a, "--source-block", "128"], 2, ("--source-block",)),
        ([plain, plain, "--source-block", "128x128"], 2, ("--source-block has no effect: no weight is FP8",)),
        ([a, tmp_path / "b", "--source-block", "64x64"], 2, ("--source-block has no effect: config.json states another size",)),
        ([a, a, "--threads", "0"], 2, ("--threads",)),
        ([a, a, "--tensors", "nothing*"], 2, ("--tensors 'nothing*' matches no tensor",)),
        ([a, a, "--memory", "1KiB"], 4, ("--memory", "needs")),
        ([a, a, "--json", tmp_path / "no" / "such" / "folder"], 4, ("folder",)),
    ]:
        got, _, err = harness.run(tessera, ["diff", *args])
        assert got == code and len(err.splitlines()) == 1, (args, got, err)
        assert all(word in err for word in words), (args, err)


def test_help_and_quiet(tessera, sound, tmp_path):
    harness.shows(tessera, ["diff", "--help"], 0, "Examples:", "--tolerance")
    code, out, err = harness.run(tessera, ["diff", tmp_path / "a", tmp_path / "b", "--quiet"])
    assert (code, out, err) == (1, "", "")


@pytest.mark.parametrize("scheme, words", [
    (("int4-weight-only",), "the error of int4 in groups of 128 with these scales: every code is the nearest"),
    (("int4-weight-only", "--group-size", "32"), "the error of int4 in groups of 32"),
    (("int4-weight-only", "--group-size", "0"), "the error of int4 with one scale a row"),
    (("int8-channel",), "the error of int8 with one scale a row"), (("fp8-channel",), "the error of e4m3"),
    (("fp8-block",), "the error of block FP8")], ids=lambda x: "-".join(x) if isinstance(x, tuple) else "")
def test_each_scheme_is_judged_by_its_own_figures(scheme, words, diff, quantize, tmp_path):
    """Outliers make int4 coarse, which is correct. The text does not mention block FP8 or scales to check."""
    w = np.random.default_rng(5).standard_normal((256, 1024))
    w[::7, ::128] *= 20
    src = write(tmp_path / "src", {W: w.astype(BF16)}, {"model_type": "llama"})
    dst = quantize(src, "--scheme", *scheme)
    _, _, text = diff(src, dst)
    assert words in text and "look at" not in text and ("block FP8" in text) == (scheme[0] == "fp8-block")
    _, _, text = diff(dst, src)
    assert ("give the original as A" in text) == scheme[0].startswith("int") and "look at" not in text
    _, tensors = harness.read_safetensors(dst / "model.safetensors")
    name = next(name for name in tensors if "_scale" in name)
    dtype, shape, data = tensors[name]
    scales = np.frombuffer(data, DTYPES[dtype])
    tensors[name] = (dtype, shape, (scales.astype(np.float32) * np.float32(1.3)).astype(scales.dtype).tobytes())
    harness.write_safetensors(dst / "model.safetensors", tensors)
    _, _, text = diff(src, dst)
    assert "codes are not the nearest under their scales" in text and "every code" not in text


@pytest.mark.parametrize("name, said", [("tessera-tp.json", "number of ranks is missing"), ("tessera-layout.json", "is missing")])
@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"tp": "x", "weights": 3}'])
def test_a_description_that_is_malformed_is_refused(name, said, text, tmp_path, tessera):
    """A malformed description on either side is rejected by diff and verify. Without the file both sides are equal."""
    a, b = (write(tmp_path / side, {W: np.ones((128, 128), BF16)}) for side in "ab")
    commands = ["diff", a, b], ["diff", b, a], ["verify", b, "--against", a]
    assert [harness.run(tessera, command)[0] for command in commands] == [0, 0, 0]
    (b / name).write_text(text)
    for command in commands:
        harness.expect(tessera, command, 3, f"b/{name}: ", "not valid JSON" if text == "{" else said)
