"""Tests `tessera verify gemm` and `verify dequant` with MXFP4, NVFP4 and MXFP8 weights.

Covers valid checkpoints of each dialect, figures compared with NumPy, faults in checkpoints, experts and stacks. Faults of
kernels are in tests/unit/verify/kernels/test_check_small_groups.c."""

import json

from checkpoints import BF16, FP8_CONFIG, load, write
from coded_weights import checkpoint, Coded, WEIGHT
import fp8_oracle
import harness
import mx_oracle as mx
import numpy as np
import pytest
import stored_oracle as stored

MODULE = WEIGHT.removesuffix(".weight")
RANGE = (-1.5, 4.25)
NAMES = {"mxfp4": "MXFP4", "mxfp8": "MXFP8", "nvfp4": "NVFP4"}
OUTS = ("bf16", "f16", "f32")


def name_of(scheme):
    return NAMES[scheme.split("-")[0]]


@pytest.fixture
def coded(tmp_path, quantize):
    """Returns coded(scheme, dialect) -> (output, source, weight) for a model of one layer."""

    def make(scheme, dialect, shape=(96, 512)):
        rng = np.random.default_rng(3)
        w = (rng.standard_normal(shape) * np.exp2(rng.uniform(-3, 3, (shape[0], 1)))).astype(BF16)
        src = write(tmp_path / "src", {WEIGHT: w}, {"model_type": "llama"})
        ranges = harness.write_json(tmp_path / "ranges.json", {MODULE: {"min": RANGE[0], "max": RANGE[1]}})
        options = ["--activations", ranges] if scheme == "nvfp4" else []
        return quantize(src, "--scheme", scheme, "--dialect", dialect, *options), src, w

    return make


def names_of(result, kind):
    """Returns the names of the judgements of a kind."""
    return [j["what"] for j in harness.of_kind(result, kind)]


def dynamic(scheme):
    """Returns True if activations are checked in the weight's own format, too."""
    return scheme != "nvfp4-weight-only"


@pytest.mark.parametrize("scheme, dialect", mx.PAIRS)
@pytest.mark.parametrize("against", [False, True], ids=["alone", "against"])
def test_sound_ones_pass(scheme, dialect, against, coded, verify):
    dst, src, _ = coded(scheme, dialect)
    name, options = name_of(scheme), ["--against", src] if against else []
    code, result = verify("gemm", dst, *options)
    assert code == 0, [j for j in result["judgements"] if not j["passed"]]
    forms = ["BF16", name] if dynamic(scheme) else ["BF16"]
    assert sorted(names_of(result, "kernel")) == sorted(f"reference, {form} x {name}, {out}" for form in forms for out in OUTS)
    quantized = (["weights"] if against else []) + ["weights and activations" if against else "activations"] * dynamic(scheme)
    assert sorted(names_of(result, "quantization")) == sorted(f"{what} in {name}" for what in quantized)
    code, result = verify("dequant", dst, "--columns", "0")
    assert code == 0 and names_of(result, "kernel") == [f"CPU's decoder, {name}, bf16"]
    assert result["judgements"][0]["elements"] == 96 * 512 and result["judgements"][0]["differ"] == 0


@pytest.mark.parametrize("scheme, dialect", [pair for pair in mx.PAIRS if dynamic(pair[0])])
def test_figures_equal_numpy(scheme, dialect, coded, verify, tmp_path):
    """The errors equal those of NumPy, which quantizes the activations and multiplies them with the stored weights."""
    dst, src, w = coded(scheme, dialect)
    x = np.random.default_rng(7).standard_normal((8, 512)).astype(BF16)
    inputs = write(tmp_path / "inputs", {MODULE + ".input": x}) / "model.safetensors"
    _, result = verify("gemm", dst, "--against", src, "--activations", inputs, "--tokens", "8", "--columns", "0")
    stored = load(dst)
    weights = mx.decoded(stored, MODULE, scheme, dialect)
    codes, scales, total, given = mx.names(scheme, dialect)
    if scheme == "nvfp4":
        global_ = np.float32(stored[MODULE + given].reshape(()))
        parts = mx.nvfp4(x.astype(np.float32), dialect, global_)
        tensors = {MODULE + codes: parts[0], MODULE + scales: parts[1], MODULE + total: global_}
    else:
        parts = mx.mx(x.astype(np.float32), int(scheme[4]), "rceil")
        tensors = {MODULE + codes: parts[0], MODULE + scales: parts[1]}
    tokens = {"weights": x.astype(np.float64), "weights and activations": mx.decoded(tensors, MODULE, scheme, dialect)}
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    found = {j["what"]: j for j in harness.of_kind(result, "quantization")}
    assert len(found) == 2
    for what, a in tokens.items():
        j, y = found[f"{what} in {name_of(scheme)}"], a @ weights.T
        assert j["relative_error"] == pytest.approx(np.linalg.norm(exact - y) / np.linalg.norm(exact), rel=1e-9)
        assert j["max_abs_error"] == pytest.approx(np.abs(exact - y).max(), rel=1e-9)
        token, output = np.unravel_index(np.abs(exact - y).argmax(), exact.shape)
        assert j["max_abs_error_at"] == f"token {token}, output {output}"


def test_of_many_tokens_64_are_judged(coded, verify, tmp_path):
    """The 64 tokens are spread over all. The worst one, whose values clip, is named by its index."""
    dst, src, w = coded("nvfp4", "modelopt")
    x = np.random.default_rng(7).standard_normal((64, 512)).astype(BF16)
    x = np.concatenate([x / 8] * 3 + [np.repeat(x[:1] * 64, 64, 0)])
    inputs = write(tmp_path / "inputs", {MODULE + ".input": x}) / "model.safetensors"
    code, result = verify("gemm", dst, "--against", src, "--activations", inputs, "--tokens", "256")
    worst, = [j for j in harness.of_kind(result, "quantization") if j["what"] == "weights and activations in NVFP4"]
    assert code == 1 and worst["elements"] == 64 * 96 and int(worst["max_abs_error_at"].split()[1].rstrip(",")) >= 192


def test_drawn_activations_fill_the_stated_range(coded, verify):
    """Random activations are scaled to the input scale of the checkpoint, also if it is a thousand times as large."""
    dst, _, _ = coded("nvfp4", "modelopt")
    tensors = load(dst)
    tensors[MODULE + ".input_scale"] = tensors[MODULE + ".input_scale"] * np.float32(1000)
    again = write(dst.parent / "again", tensors, json.loads((dst / "config.json").read_text()))
    figures = [[j["sqnr_db"] for j in harness.of_kind(verify("gemm", d)[1], "quantization")] for d in (dst, again)]
    assert len(figures[0]) == 1 and figures[0] == pytest.approx(figures[1], abs=0.5) and figures[0][0] > 14


# ---- faults of a checkpoint ----


def swap_nibbles(c):
    codes = c.change("_packed")
    codes[:] = codes << 4 | codes >> 4


def move_scales(c):
    scales = c.change("_scale")
    scales[:] = np.roll(scales, 1, axis=0)


def double_scales(c):
    c.change("_scale")[:] += 1


def halve_global(c):
    c.change("_global_scale")[:] *= 2


@pytest.mark.parametrize("kind, fault", [("mxfp4", swap_nibbles), ("mxfp4", move_scales), ("mxfp4", double_scales),
                                         ("mxfp8", move_scales), ("mxfp8", double_scales), ("nvfp4", swap_nibbles),
                                         ("nvfp4", halve_global)])
def test_faults_show_as_quantization_error(kind, fault, verify, tmp_path):
    c = Coded(kind, (128, 512))
    fault(c)
    dst, src = checkpoint(tmp_path / "dst", c.tensors, c.config), checkpoint(tmp_path / "src", {WEIGHT: c.w})
    code, result = verify("gemm", dst, "--against", src, "--columns", "0")
    failed = [j for j in result["judgements"] if not j["passed"]]
    assert code == 1 and failed and {j["kind"] for j in failed} == {"quantization"} and "SQNR" in failed[0]["fault"]


def nan_code(c):
    c.change("").view(np.uint8)[5, 7] = 0xFF
    return "the code at [5, 7] is NaN"


def nan_power(c):
    c.change("_scale").view(np.uint8)[5, 3] = 255
    return "the scale of row 5, group 3 is nan (0xFF)"


def negative_scale(c):
    c.change("_scale").view(np.uint8)[5, 3] = 0x91
    return "the scale of row 5, group 3 is -"


def no_global(c):
    c.change("_global_scale")[:] = 0
    return "the global scale is 0"


@pytest.mark.parametrize("check", ["gemm", "dequant"])
@pytest.mark.parametrize("kind, fault", [("mxfp8", nan_code), ("mxfp4", nan_power), ("nvfp4", negative_scale), ("nvfp4", no_global)])
def test_invalid_codes_and_scales_are_named(check, kind, fault, verify, tmp_path):
    c = Coded(kind, (128, 512))
    words = fault(c)
    code, result = verify(check, checkpoint(tmp_path / "dst", c.tensors, c.config), "--columns", "0")
    assert code == 1 and len(result["judgements"]) == 1
    assert result["judgements"][0]["kind"] == "checkpoint" and words in result["judgements"][0]["fault"]


# ---- several matrices ----


def test_experts_are_sampled_and_other_kinds_checked(verify, tmp_path):
    """The seed selects two of eight MXFP4 experts, which are reported by name. A block FP8 layer is checked, too."""
    c, tensors = Coded("mxfp4", (64, 256)), {}
    for i in range(8):
        name = f"model.layers.0.mlp.experts.{i}.up_proj.weight"
        tensors |= {name + suffix: c.tensors[WEIGHT + suffix].copy() for suffix in ("_packed", "_scale")}
    other = "model.layers.0.self_attn.o_proj.weight"
    tensors[other], tensors[other + "_scale_inv"] = map(np.array, fp8_oracle.quantize(np.ones((128, 128), BF16)))
    dst = write(tmp_path / "dst", tensors, FP8_CONFIG)
    runs = [verify("gemm", dst, "--experts", "2", "--threads", threads) for threads in ("1", "3")]
    assert runs[0][0] == 0 and runs[0][1]["judgements"] == runs[1][1]["judgements"]
    subjects = {j["subject"] for j in runs[0][1]["judgements"]}
    assert other in subjects and len(subjects) == 3
    assert all(".experts." in name and "*" not in name for name in subjects - {other})


def test_a_transposed_stack(tessera, verify, tmp_path):
    """gpt-oss stores stacks of experts transposed. They are checked without the original; --against is rejected."""
    rng, name = np.random.default_rng(1), "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {name + "_blocks": rng.integers(0, 256, (4, 96, 5, 16)).astype(np.uint8),
               name + "_scales": rng.integers(118, 126, (4, 96, 5)).astype(np.uint8)}
    x = rng.standard_normal((8, 160)).astype(BF16)
    dst = write(tmp_path / "dst", tensors, {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}})
    inputs = write(tmp_path / "inputs", {name: x}) / "model.safetensors"
    code, result = verify("gemm", dst, "--activations", inputs, "--tokens", "8", "--experts", "2", "--columns", "0")
    assert code == 0
    q = mx.decoded(dict(zip(("q.weight_packed", "q.weight_scale"), mx.mx(x.astype(np.float32), 4, "rceil"))), "q", "mxfp4",
                   "compressed-tensors")
    found = {j["subject"]: j["relative_error"] for j in harness.of_kind(result, "quantization")}
    assert len(found) == 2
    for subject, relative in found.items():
        w = stored.values("mxfp4-gptoss", tensors)[int(subject.removeprefix(name)[1:-1])]
        exact, y = x.astype(np.float64) @ w, q @ w
        assert relative == pytest.approx(np.linalg.norm(exact - y) / np.linalg.norm(exact), rel=1e-9)
    code, result = verify("dequant", dst)
    assert code == 0 and [j["elements"] for j in result["judgements"]] == [96 * 160]
    src = write(tmp_path / "src", {name: np.zeros((4, 160, 96), BF16)}, {"model_type": "gpt_oss"})
    harness.expect(tessera, ["verify", "gemm", dst, "--against", src, "--device", "cpu"], 3, "transposed")


# ---- devices and refusals ----


@pytest.mark.parametrize("check", ["gemm", "dequant"])
def test_no_device(check, coded, tessera):
    dst = coded("mxfp8", "modelopt")[0]
    code, _, err = harness.run(tessera, ["verify", check, dst, "--device", "cuda"])
    if code != 0:  # a machine with a GPU returns 0
        assert code == 5 and "GPU" in err
        assert "checked on the CPU" in harness.succeed(tessera, ["verify", check, dst, "--device", "auto"])


def test_dequant_to_f16_alone_is_rejected(coded, tessera):
    harness.expect(tessera, ["verify", "dequant", coded("mxfp8", "modelopt")[0], "--out", "f16", "--device", "cpu"], 3, "to BF16 only")


def test_activations_of_zeros_are_skipped(coded, tessera, tmp_path):
    dst = coded("mxfp4", "compressed-tensors")[0]
    inputs = write(tmp_path / "inputs", {WEIGHT: np.zeros((4, 512), np.float32)}) / "model.safetensors"
    harness.expect(tessera, ["verify", "gemm", dst, "--activations", inputs, "--device", "cpu"], 3, "nothing could be judged")
