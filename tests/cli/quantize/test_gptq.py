"""Tests quantize --method gptq: errors of outputs against NumPy, unchanged scales, the same bytes everywhere, refusals."""

import json

from checkpoints import REPORT, load, read
from forward_oracle import Whole
import harness
import numpy as np
import pytest
from safetensors.numpy import save_file

SCHEMES = ["int4-weight-only --group-size 32", "int4-weight-only --group-size 32 --zero-points", "int8-weight-only", "int8-channel",
           "nvfp4-weight-only", "nvfp4-weight-only --dialect modelopt --scales four-six", "nvfp4 --input-scale 1.0", "mxfp4-weight-only",
           "mxfp4-weight-only --scales amax"]
FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}


@pytest.fixture
def calibrated(tessera, tmp_path):
    """Returns calibrated(family) -> (model directory, file of calibrate --hessians)."""
    def make(family):
        m = Whole(family)
        tokens, stats = tmp_path / "t.txt", tmp_path / "h.safetensors"
        tokens.write_text("\n".join(" ".join(map(str, row)) for row in m.tokens))
        harness.succeed(tessera, ["calibrate", m.write(tmp_path / "m"), "--tokens", tokens, "--hessians", "--device", "cpu", "-o", stats])
        return tmp_path / "m", stats
    return make


def report_rows(dst):
    return {row["name"].removesuffix(".weight"): row for row in json.loads((dst / REPORT).read_text())["tensors"]}


def products_of(stats, module):
    parent, _, leaf = module.rpartition(".")
    return stats[f"{parent}.{FUSED.get(leaf, leaf)}.input_products"].astype(np.float64)


def output_errors(weight, value, h):
    """Returns the squared error of the output of each row, with the damping of the first attempt."""
    e = weight.astype(np.float64) - value.astype(np.float64)
    h = h + 0.01 * h.diagonal().mean() * np.eye(len(h))
    return np.einsum("ri,ij,rj->r", e, h, e)


@pytest.mark.parametrize("words", SCHEMES)
def test_errors_of_outputs(words, calibrated, quantize, convert):
    src, path = calibrated("llama")
    stats, weights = read(path), load(src)
    outputs, values = {}, {}
    for method in ("rtn", "gptq"):
        outputs[method] = quantize(src, "--scheme", *words.split(), "--importance", path, "--method", method)
        values[method] = load(convert(outputs[method], "--to", "bf16", "--dtype", "f32"))
    rows, first, second = report_rows(outputs["gptq"]), load(outputs["rtn"]), load(outputs["gptq"])
    assert len(rows) > 5 and not any("gptq_gain_db" in row for row in report_rows(outputs["rtn"]).values())
    assert {n for n in first if "scale" in n or "zero_point" in n} and first.keys() == second.keys()
    for name in first:
        if "scale" in name or "zero_point" in name:
            assert first[name].tobytes() == second[name].tobytes(), name
    for module, row in rows.items():
        before, after = (output_errors(weights[f"{module}.weight"].astype(np.float32), values[m][f"{module}.weight"], products_of(stats, module))
                         for m in ("rtn", "gptq"))
        assert (after <= before * (1 + 1e-6)).all(), module
        assert row["gptq_gain_db"] == pytest.approx(10 * np.log10(before.sum() / after.sum()), abs=1e-3), module
        assert row["gptq_gain_db"] > 0.3, module
    assert all(row["sqnr_db"] <= other["sqnr_db"] for row, other in zip(rows.values(), report_rows(outputs["rtn"]).values()))


def test_the_same_bytes_everywhere(calibrated, quantize):
    src, path = calibrated("llama")
    words = ["--scheme", "nvfp4-weight-only", "--importance", path, "--method", "gptq"]
    want, *others = (load(quantize(src, *words, *more)) for more in (["--threads", "1"], ["--threads", "5"], ["--cpumask", "0"], ["--cpumask", "1"]))
    for got in others:
        assert all(np.array_equal(want[n], got[n]) for n in want)


@pytest.mark.parametrize("family, scheme", [("qwen2_moe", "int4-weight-only --group-size 32"), ("gpt_oss", "mxfp4-weight-only")])
def test_experts(family, scheme, calibrated, tessera, tmp_path):
    """Experts with few tokens have no matrix of their own inputs, and are rounded to nearest."""
    src, path = calibrated(family)
    dst = tmp_path / "dst"
    code, out, err = harness.run(tessera, ["quantize", src, "-o", dst, "--scheme", *scheme.split(), "--importance", path, "--method", "gptq"])
    assert code == 0, err
    rows = report_rows(dst)
    gained = {name for name, row in rows.items() if "gptq_gain_db" in row}
    downs = {name for name in rows if "experts" in name and "down" in name}
    assert any("experts" in name and ("gate" in name or "up" in name) for name in gained)
    assert downs and not downs <= gained
    missing = {n for n in downs if f"{n}.input_products" not in read(path)}
    assert bool(missing) == ("has no input_products for" in out + err), err


def test_resuming(calibrated, quantize, tessera, tmp_path):
    src, path = calibrated("llama")
    words = ["--scheme", "nvfp4-weight-only", "--importance", path]
    dst = quantize(src, *words, "--method", "gptq")
    harness.succeed(tessera, ["quantize", src, "-o", dst, *words, "--method", "gptq"])
    code, _, err = harness.run(tessera, ["quantize", src, "-o", dst, *words])
    assert code != 0 and "then --method gptq" in err, err


def test_a_file_of_more_than_a_gigabyte(calibrated, quantize, tmp_path):
    """The manifest has the file's digest. Most of the file is a hole: a matrix of a layer that the model does not have."""
    src, path = calibrated("llama")
    large, side = tmp_path / "large.safetensors", 17000
    _, tensors = harness.read_safetensors(path)
    tensors["model.layers.99.mlp.down_proj.input_products"] = ("F32", [side, side], 4 * side**2)
    harness.write_safetensors(large, tensors)
    words = ["--scheme", "nvfp4-weight-only", "--method", "gptq"]
    got, want = (quantize(src, *words, "--importance", p) for p in (large, path))
    assert {n: t.tobytes() for n, t in load(got).items()} == {n: t.tobytes() for n, t in load(want).items()}
    assert f'"bytes": {large.stat().st_size}' in (got / "tessera.manifest.json").read_text()


def test_refusals(calibrated, tessera, tmp_path):
    src, path = calibrated("llama")
    stats = read(path)
    plain, other, damaged, odd = (tmp_path / f"{n}.safetensors" for n in ("plain", "other", "damaged", "odd"))
    save_file({n: t for n, t in stats.items() if "products" not in n}, plain)
    save_file({n: np.ascontiguousarray(t[:-8, :-8]) if "products" in n else t for n, t in stats.items()}, other)
    save_file({n: np.ascontiguousarray(t[:-8]) if "products" in n else t for n, t in stats.items()}, odd)
    name = "model.layers.0.self_attn.qkv_proj.input_products"
    save_file({**stats, name: stats[name] * np.float32(np.nan)}, damaged)
    for words, code, message in [
            (["--scheme", "nvfp4-weight-only", "--method", "gptq"], 2, "--method gptq needs --importance FILE"),
            (["--method", "gptq", "--importance", path], 2, "--method cannot be combined with --scheme fp8-block"),
            (["--scheme", "nvfp4-weight-only", "--method", "gptq", "--importance", plain], 3, "which the file does not have"),
            (["--scheme", "nvfp4-weight-only", "--method", "gptq", "--importance", other], 3, "the file belongs to another model"),
            (["--scheme", "nvfp4-weight-only", "--method", "gptq", "--importance", odd], 3, "is not F32 of shape [channels, channels]"),
            (["--scheme", "nvfp4-weight-only", "--method", "gptq", "--importance", damaged], 3, f"'{name}' is not a mean of x x^T")]:
        dst = tmp_path / "refused"
        harness.expect(tessera, ["quantize", src, "-o", dst, *words], code, message)
        assert not (dst / "config.json").exists()


@pytest.mark.parametrize("scheme, method, words", [
    (("int4-weight-only", "--group-size", "32"), "gptq", ("codes are not the nearest", "give it to verify")),
    (("nvfp4-weight-only",), "gptq", ("codes are not the nearest",)),
    (("nvfp4-weight-only",), "importance", ("groups have a better scale", "--method importance"))])
def test_verify_knows_the_method(calibrated, tessera, tmp_path, scheme, method, words):
    """The next command that quantize prints passes. Without --method, codes that are not the nearest fail, with a hint.
    So do scales whose unweighted errors are not the smallest."""
    src, stats = calibrated("llama")
    dst = tmp_path / "out"
    out = harness.succeed(tessera, ["quantize", src, "-o", dst, "--scheme", *scheme, "--importance", stats,
                                    *(["--method", "gptq"] if method == "gptq" else [])])
    (following,) = [line.removeprefix("next: tessera ") for line in out.splitlines() if line.startswith("next: ")]
    assert following == f"verify {dst} --against {src} --method {method}"
    harness.succeed(tessera, following.split())
    harness.shows(tessera, following.split()[:-2], 1, *words)
    if method != "gptq":
        return
    harness.expect(tessera, [*following.split(), "--max-misrounded", "5"], 2, "--max-misrounded")
