"""Tests --importance: scales against best_oracle.py with weights, the weighted errors, names of llama.cpp, refusals."""

import json

import best_oracle
from checkpoints import BF16, REPORT, load, random_weight, save
import harness
import importance_files as files
import int_oracle as ints
import mx_oracle as mx
import numpy as np
import pytest

pytestmark = pytest.mark.in_turn

GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
              "mlp.down_proj": "ffn_down"}


def drawn(cols, seed):
    """Makes mean squares whose sums are exact, so NumPy and Tessera divide by the same mean."""
    rng = np.random.default_rng(seed)
    return (np.round(np.exp(rng.normal(0, 2, cols)) * 256) / 256).astype(np.float32)


def weights_of(means):
    """Returns the column weights that Tessera uses: divided by their mean, in FP32."""
    inverse = np.float32(len(means) / means.astype(np.float64).sum())
    return (means * inverse).astype(np.float32)


def report_rows(dst):
    return {row["name"].removesuffix(".weight"): row for row in json.loads((dst / REPORT).read_text())["tensors"]}


def weighted_sqnr(x, y, w):
    x, y, w = x.astype(np.float64), y.astype(np.float64), w.astype(np.float64)
    return 10 * np.log10((w * x**2).sum() / (w * (x - y) ** 2).sum())


def as_gguf(path, means):
    return files.gguf(path, {f"blk.0.{GGUF_NAMES[module.removeprefix('model.layers.0.')]}": m for module, m in means.items()})


FORMS = {"gguf": as_gguf, "safetensors": files.safetensors, "json": files.as_json}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scheme, dialect", [("nvfp4-weight-only", "compressed-tensors"), ("mxfp4-weight-only", "compressed-tensors"),
                                             ("nvfp4-weight-only", "modelopt"), ("mxfp8", "compressed-tensors")])
def test_small_groups(form, scheme, dialect, quantize, tmp_path):
    src, weights = mx.model(tmp_path / "src")
    means = {module: drawn(w.shape[1], i) for i, (module, w) in enumerate(weights.items())}
    path = FORMS[form](tmp_path / f"importance.{form}", means)
    dst = quantize(src, "--scheme", scheme, "--dialect", dialect, "--importance", path)
    got, importance = load(dst), {module: weights_of(m) for module, m in means.items()}
    for name, array in best_oracle.expected(weights, scheme, dialect, importance=importance).items():
        assert np.array_equal(got[name].reshape(-1).view(np.uint8), array.reshape(-1).view(np.uint8)), name
    for module, row in report_rows(dst).items():
        y = mx.decoded(got, module, scheme, dialect)
        assert row["weighted_sqnr_db"] == pytest.approx(weighted_sqnr(mx.f32(weights[module]), y, importance[module]), abs=1e-5)
        assert row["sqnr_db"] == pytest.approx(weighted_sqnr(mx.f32(weights[module]), y, np.ones(y.shape[1])), abs=1e-3)


@pytest.mark.parametrize("group, asymmetric", [(32, False), (128, False), (32, True)])
def test_int4(group, asymmetric, quantize, tmp_path):
    src, tensors = ints.model(tmp_path / "src", BF16, shape=(12, 256))
    means = {name.removesuffix(".weight"): drawn(tensors[name].shape[1], i) for i, name in enumerate((ints.UP, ints.DOWN))}
    dst = quantize(src, "--scheme", "int4-weight-only", "--group-size", str(group), *(["--zero-points"] if asymmetric else []),
                   "--importance", as_gguf(tmp_path / "importance.gguf", means))
    got, rows = load(dst), report_rows(dst)
    for weight in (ints.UP, ints.DOWN):
        w, module = tensors[weight], weight.removesuffix(".weight")
        _, scale, zero = ints.quantized(w, 4, group, asymmetric, dtype=BF16)
        x = w.astype(np.float32).reshape(scale.size, -1)
        by_column = np.tile(weights_of(means[module]), w.shape[0]).reshape(x.shape)
        best, zeros = best_oracle.best_int4(x, scale.reshape(-1), zero.reshape(-1).astype(np.float32), BF16, asymmetric,
                                            weight=by_column)
        assert np.array_equal(got[weight + "_scale"].astype(np.float32).reshape(-1), best)
        codes = np.rint(np.clip((x / best[:, None]).astype(np.float32) + zeros[:, None], -8, 7)).astype(np.int8)
        assert np.array_equal(got[weight + "_packed"], ints.packed(codes.reshape(w.shape), 4))
        y = (codes - zeros[:, None]).astype(np.float32) * best[:, None]
        assert rows[module]["weighted_sqnr_db"] == pytest.approx(weighted_sqnr(x, y, by_column), abs=1e-6)


@pytest.mark.parametrize("options, block", [(("fp8-block",), (128, 128)), (("fp8-block", "--scale-fmt", "ue8m0"), (128, 128)),
                                            (("fp8-channel",), None), (("fp8-channel", "--scale-dtype", "bf16"), None),
                                            (("fp8-tensor",), None), (("int8-channel",), None), (("int8-weight-only",), None)], ids=str)
def test_errors_of_8_bits(options, block, quantize, tmp_path):
    """Every scheme measures the weighted error. Schemes with FP32 scales keep the scales from amax."""
    src, tensors = ints.model(tmp_path / "src", BF16, shape=(40, 256))
    module = ints.UP.removesuffix(".weight")
    means = {module: drawn(256, 5), ints.DOWN.removesuffix(".weight"): drawn(128, 6)}
    dst = quantize(src, "--scheme", *options, "--importance", files.as_json(tmp_path / "importance.json", means))
    got = load(dst)
    ending = "_scale_inv" if options[0] == "fp8-block" else "_scale"
    if options[0] == "int8-weight-only":
        fields = got[ints.UP + "_packed"].view(np.uint8).astype(np.int32) - 128
        y = fields.reshape(40, 256) * got[ints.UP + "_scale"].astype(np.float32)
    else:
        scale = got[ints.UP + ending].astype(np.float32)
        scale = np.repeat(np.repeat(scale, 128, 0), 128, 1)[:40] if block else scale.reshape(-1, 1)
        y = got[ints.UP].astype(np.float32) * scale
    wanted = weighted_sqnr(tensors[ints.UP].astype(np.float32), y, weights_of(means[module]))
    assert report_rows(dst)[module]["weighted_sqnr_db"] == pytest.approx(wanted, abs=1e-6)


def test_experts(quantize, tessera, tmp_path):
    """Each expert has its own matrix of importance. An expert without tokens is quantized without importance, and is
    reported."""
    rng = np.random.default_rng(3)
    module = "model.layers.0.mlp.experts.{}.{}_proj"
    weights = {module.format(e, p): random_weight((64, 128), 10 * e + i).astype(BF16) for e in range(3)
               for i, p in enumerate(("gate", "up", "down"))}
    src = save(tmp_path / "src", {f"{m}.weight": w for m, w in weights.items()})
    sums = {f"blk.0.ffn_{p}_exps": rng.integers(1, 1000, (3, 128)).astype(np.float32) for p in ("gate", "up", "down")}
    for values in sums.values():
        values[1] = 0
    path = files.gguf(tmp_path / "importance.gguf", sums)
    words = ["quantize", src, "-o", tmp_path / "dst", "--scheme", "nvfp4-weight-only", "--importance", path]
    code, out, err = harness.run(tessera, words)
    assert code == 0 and "has no data for 3 of 9 weights, the first is 'model.layers.0.mlp.experts.1.down_proj.weight'" in out + err, out + err
    importance = {m: np.ones(128, np.float32) if ".experts.1." in m else
                  weights_of(sums[f"blk.0.ffn_{m.split('.')[-1].removesuffix('_proj')}_exps"][int(m.split(".")[-2])]) for m in weights}
    got, rows = load(tmp_path / "dst"), report_rows(tmp_path / "dst")
    for name, array in best_oracle.expected(weights, "nvfp4-weight-only", "compressed-tensors", importance=importance).items():
        assert np.array_equal(got[name].reshape(-1).view(np.uint8), array.reshape(-1).view(np.uint8)), name
    assert {m for m, row in rows.items() if "weighted_sqnr_db" not in row} == {m for m in weights if ".experts.1." in m}


def test_the_weighted_error_is_smaller(quantize, tessera, tmp_path):
    """Importance reduces the weighted error and increases the unweighted one. Both are printed."""
    src, weights = mx.model(tmp_path / "src")
    path = files.as_json(tmp_path / "i.json", {m: drawn(w.shape[1], i) for i, (m, w) in enumerate(weights.items())})
    whole = {}
    for scales in ("amax", "best"):
        result = tmp_path / f"{scales}.json"
        code, out, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / scales, "--scheme", "mxfp4-weight-only",
                                               "--importance", path, "--scales", scales, "--json", result])
        assert code == 0 and "weighted by importance" in out, out + err
        assert ("smaller weighted squared error" in out) == (scales == "best")
        whole[scales] = json.loads(result.read_text())
    plain = json.loads((quantize(src, "--scheme", "mxfp4-weight-only", "--scales", "best") / REPORT).read_text())["whole"]
    assert whole["best"]["weighted_sqnr_db"] > whole["amax"]["weighted_sqnr_db"]
    assert plain["sqnr_db"] > whole["best"]["sqnr_db"] and "weighted_sqnr_db" not in plain


def test_rules(quantize, tessera, tmp_path):
    src, weights = mx.model(tmp_path / "src")
    means = {m: drawn(w.shape[1], i) for i, (m, w) in enumerate(weights.items())}
    rules = tmp_path / "rules.yaml"
    rules.write_text(json.dumps({"rules": [{"match": "*.mlp.*", "scheme": "nvfp4-weight-only"}, {"match": "*", "scheme": "fp8-channel"}]}))
    result = quantize(src, "--scheme", "nvfp4-weight-only", "--importance", files.as_json(tmp_path / "i.json", means))
    mixed = load(quantize(src, "--rules", rules, "--importance", tmp_path / "i.json"))
    same = load(result)
    for name in same:
        if ".mlp.down_proj" in name:
            assert np.array_equal(mixed[name].view(np.uint8), same[name].view(np.uint8)), name


def test_convert(quantize, tessera, tmp_path):
    """The source is FP8, whose config.json states no block. No BF16 is written."""
    src, weights = mx.model(tmp_path / "src")
    path = files.as_json(tmp_path / "i.json", {m: drawn(w.shape[1], i) for i, (m, w) in enumerate(weights.items())})
    fp8 = quantize(src)
    (fp8 / "config.json").write_text((fp8 / "config.json").read_text().replace("weight_block_size", "no_block_size"))
    codes = {}
    for name, words in {"weighted": ["--importance", path], "plain": ["--scales", "best"]}.items():
        out = harness.succeed(tessera, ["convert", fp8, "-o", tmp_path / name, "--to", "nvfp4-weight-only", "--source-block", "128x128", *words])
        assert ("--source-block 128x128 --method importance" in out) == ("--importance" in words), out
        codes[name] = load(tmp_path / name)
    key = next(name for name in codes["plain"] if name.endswith(".weight_scale"))
    assert not np.array_equal(codes["weighted"][key].view(np.uint8), codes["plain"][key].view(np.uint8))
    assert all("weighted_sqnr_db" in row for row in report_rows(tmp_path / "weighted").values())


def test_instruction_sets(quantize, tmp_path):
    src, weights = mx.model(tmp_path / "src")
    path = files.as_json(tmp_path / "i.json", {m: drawn(w.shape[1], i) for i, (m, w) in enumerate(weights.items())})
    for words in (["nvfp4-weight-only"], ["int4-weight-only", "--group-size", "32"]):
        options = ["--scheme", *words, "--importance", path]
        first = quantize(src, *options)
        for mask in ("0", "1"):
            assert harness.tree_difference(first, quantize(src, *options, "--cpumask", mask)) is None
        assert harness.tree_difference(first, quantize(src, *options, "--threads", "1")) is None


# ---- refusals ----

def broken(change):
    """Writes a file of importance from {name: sums} after `change`."""
    def make(path):
        sums = {"blk.0.ffn_up": np.ones(256), "blk.0.ffn_down": np.ones(128)}
        return change(path, sums)
    return make


def cut(path, sums):
    files.gguf(path, sums).write_bytes(path.read_bytes()[:-200])
    return path


def of_bytes(data):
    return broken(lambda path, sums: path.write_bytes(data) and path)


@pytest.mark.parametrize("name, make, words", [
    ("i.gguf", broken(lambda p, s: files.gguf(p, s | {"blk.0.ffn_up": np.ones(128)})), "'blk.0.ffn_up' has 128 channels, but"),
    ("i.gguf", broken(lambda p, s: files.gguf(p, s | {"blk.0.ffn_up": np.ones((2, 256))})), "has data of 2 matrices"),
    ("i.gguf", broken(lambda p, s: files.gguf(p, {"blk.7.ffn_up": np.ones(256)})), "has data for none of the 2 weights"),
    ("i.gguf", broken(lambda p, s: files.gguf(p, s, kind="model")), "not an importance matrix"),
    ("i.gguf", broken(lambda p, s: files.gguf(p, s, version=1)), "GGUF version 1"),
    ("i.gguf", broken(lambda p, s: files.gguf(p, s, alignment=4)), "general.alignment"),
    ("i.gguf", broken(lambda p, s: files.gguf(p, s | {"blk.0.ffn_up": -np.ones(256)})), "value 0 is -1"),
    ("i.gguf", broken(lambda p, s: files.gguf(p, s | {"blk.0.ffn_up": np.full(256, np.nan)})), "value 0 is nan"),
    ("i.gguf", broken(cut), "is not within the file"),
    ("i.gguf", of_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 40), "damaged or incomplete"),
    ("i.dat", of_bytes(b"\x01\0\0\0\x10"), "llama-imatrix --in-file converts its older format"),
    ("i.json", of_bytes(b"{}"), "has no importance"),
    ("i.json", of_bytes(b'{"model.layers.0.mlp.up_proj": {"input_mean_square": [1, "a"]}}'), "value 1 of input_mean_square is not a number"),
    ("i.json", of_bytes(b'{"model.layers.0.mlp.up_proj": {"input_mean_square": [1, 1e99]}}'), "value 1 is inf"),
    ("i.safetensors", broken(lambda p, s: files.safetensors(p, {"model.layers.0.mlp.up_proj": np.ones(64)})), "has 64 channels"),
    ("none.gguf", lambda path: path, "none.gguf")], ids=lambda x: x if isinstance(x, str) else "")
def test_files(name, make, words, tessera, tmp_path):
    src, _ = ints.model(tmp_path / "src", BF16, shape=(12, 256))
    path = make(tmp_path / name)
    code, _, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "dst", "--scheme", "int4-weight-only", "--importance", path])
    assert code not in (0, 139) and words in err and str(path) in err, err
    assert not (tmp_path / "dst").exists()


def test_options(tessera, tmp_path):
    src, _ = ints.model(tmp_path / "src", BF16)
    path = files.gguf(tmp_path / "i.gguf", {"blk.0.ffn_up": np.ones(256)})
    for words, message in ((["quantize", src, "--scales", "mse"], "which it ignores; use --scales best"),
                           (["convert", src, "--to", "fp8-block"], "--importance cannot be combined with --to fp8-block")):
        harness.expect(tessera, [*words, "-o", tmp_path / "dst", "--importance", path], 2, message)
