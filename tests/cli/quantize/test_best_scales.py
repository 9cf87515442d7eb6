"""Tests --scales best: scales and codes against best_oracle.py, which tries all scales; what the result states."""

import json

import best_oracle
from checkpoints import BF16, E4M3, REPORT, load, random_weight, save
import fp8_oracle
import harness
import int_oracle as ints
import mx_oracle as mx
import numpy as np
import pytest

pytestmark = pytest.mark.in_turn

SMALL = [pair for pair in mx.PAIRS if pair[0] != "nvfp4"]
SOURCES = {"bf16": BF16, "f16": np.float16, "f32": np.float32}


def assert_same(dst, wanted):
    got = load(dst)
    for name, array in wanted.items():
        a, b = (np.ascontiguousarray(x).view(np.uint8).reshape(-1) for x in (got[name], array))
        assert np.array_equal(a, b), f"{name}: {np.flatnonzero(a != b)[:5]} of {a.size}"


# ---- small groups ----

@pytest.mark.parametrize("scheme, dialect, source", [
    *((*pair, "bf16") for pair in SMALL), *((*SMALL[0], source) for source in ("f16", "f32")),
    *(("mxfp4-weight-only", "compressed-tensors", source) for source in ("f16", "f32"))])
def test_small_groups(scheme, dialect, source, quantize, tmp_path):
    src, weights = mx.model(tmp_path / "src", SOURCES[source])
    dst = quantize(src, "--scheme", scheme, "--dialect", dialect, "--scales", "best")
    assert_same(dst, best_oracle.expected(weights, scheme, dialect))


@pytest.mark.parametrize("rule", mx.RULES)
def test_the_rule_decides_ties_only(rule, quantize, tmp_path):
    src, weights = mx.model(tmp_path / "src")
    dst = quantize(src, "--scheme", "mxfp4-weight-only", "--mx-scale", rule, "--scales", "best")
    assert_same(dst, best_oracle.expected(weights, "mxfp4-weight-only", "compressed-tensors", rule))


@pytest.mark.parametrize("scheme, dialect", SMALL)
def test_no_larger_error_than_mse(scheme, dialect, quantize, tmp_path):
    src, weights = mx.model(tmp_path / "src")
    error = {}
    for scales in ("amax", "mse", "best"):
        out = load(quantize(src, "--scheme", scheme, "--dialect", dialect, "--scales", scales))
        error[scales] = {m: ((mx.decoded(out, m, scheme, dialect) - w.astype(np.float64)) ** 2).sum()
                         for m, w in weights.items()}
    for module in weights:
        assert error["best"][module] <= min(error["amax"][module], error["mse"][module]) * (1 + 1e-9), module


def test_threads(quantize, tmp_path):
    weights = {"model.layers.0.mlp.up_proj": random_weight((600, 4096), 1).astype(BF16)}
    src = save(tmp_path / "src", {f"{module}.weight": w for module, w in weights.items()})
    outs = [load(quantize(src, "--scheme", "nvfp4-weight-only", "--scales", "best", "--threads", str(n))) for n in (1, 3)]
    assert all(outs[0][name].tobytes() == outs[1][name].tobytes() for name in outs[0])


# ---- int4 ----

@pytest.mark.parametrize("group, asymmetric, source, dtype, rounding", [
    (128, False, "bf16", "bf16", "even"), (32, False, "f32", "bf16", "even"), (0, False, "bf16", "bf16", "even"),
    (128, True, "bf16", "bf16", "even"), (32, True, "f16", "bf16", "away"), (64, False, "bf16", "f16", "away")])
def test_int4(group, asymmetric, source, dtype, rounding, quantize, tmp_path):
    src, tensors = ints.model(tmp_path / "src", SOURCES[source], shape=(12, 256))
    stored, rounds = SOURCES[dtype], ints.away if rounding == "away" else np.rint
    dst = quantize(src, "--scheme", "int4-weight-only", "--group-size", str(group), "--scales", "best", "--scale-dtype", dtype,
                   "--rounding", rounding, *(["--zero-points"] if asymmetric else []))
    wanted = {}
    for weight in (ints.UP, ints.DOWN):
        w = tensors[weight]
        _, scale, zero = ints.quantized(w, 4, group, asymmetric, rounding=rounds, dtype=stored)
        x = w.astype(np.float32).reshape(scale.size, -1)
        best, zeros = best_oracle.best_int4(x, scale.reshape(-1), zero.reshape(-1).astype(np.float32), stored, asymmetric,
                                            rounds)
        codes = rounds(np.clip((x / best[:, None]).astype(np.float32) + zeros[:, None], -8, 7)).astype(np.int8)
        wanted[weight + "_packed"] = ints.packed(codes.reshape(w.shape), 4)
        wanted[weight + "_scale"] = best.reshape(scale.shape).astype(stored)
        if asymmetric:
            padded = np.pad(zeros.reshape(zero.shape), ((0, -len(zero) % 8), (0, 0)), constant_values=-8)
            wanted[weight + "_zero_point"] = np.ascontiguousarray(ints.packed(padded.T, 4).T)
    assert_same(dst, wanted)


def test_instruction_sets(quantize, tmp_path):
    src, _ = ints.model(tmp_path / "src", shape=(64, 1024))
    for options in ((), ("--zero-points",)):
        first = quantize(src, "--scheme", "int4-weight-only", "--scales", "best", *options)
        for mask in ("0", "1"):
            other = quantize(src, "--scheme", "int4-weight-only", "--scales", "best", *options, "--cpumask", mask)
            assert harness.tree_difference(first, other) is None


# ---- FP8 blocks and rows ----

@pytest.mark.parametrize("options, block, dtype", [
    (("--scheme", "fp8-block", "--scale-fmt", "ue8m0"), (128, 128), None),
    (("--scheme", "fp8-block", "--scale-fmt", "ue8m0", "--block", "16x32"), (16, 32), None),
    (("--scheme", "fp8-channel", "--scale-dtype", "bf16"), (1, 256), BF16)], ids=str)
def test_fp8(options, block, dtype, quantize, tmp_path):
    src, tensors = ints.model(tmp_path / "src", BF16, shape=(8 if dtype else 40, 256))
    got = load(quantize(src, *options, "--scales", "best"))
    w, codes = tensors[ints.UP], got[ints.UP]
    scales = got[ints.UP + ("_scale" if dtype else "_scale_inv")].astype(np.float32)
    best = best_oracle.best_blocks(w, *block, dtype)
    assert np.array_equal(scales, best)
    quotient = w.astype(np.float32) / fp8_oracle.spread(best, w.shape, *block)
    assert np.array_equal(codes.view(np.uint8), np.clip(quotient, -448, 448).astype(E4M3).view(np.uint8))


# ---- the result ----

def test_what_the_result_states(quantize, tessera, tmp_path):
    src, _ = mx.model(tmp_path / "src")
    sentence = "scales are optimal: no other scale that can be stored has a smaller squared error"
    for scales in ("best", "mse"):
        dst = tmp_path / scales
        options = ["quantize", src, "-o", dst, "--scheme", "mxfp4-weight-only", "--scales", scales]
        code, out, err = harness.run(tessera, options)
        assert code == 0 and (sentence in out) == (scales == "best"), out + err
        result = tmp_path / "result.json"
        harness.succeed(tessera, [*options, "--force", "--json", result])
        states = {} if scales == "mse" else {"scales": "optimal"}
        for document in (json.loads(result.read_text()), json.loads((dst / REPORT).read_text())):
            assert {key: document[key] for key in ("scales",) if key in document} == states
        code, out, _ = harness.run(tessera, ["report", dst / REPORT])
        assert code == 0 and ("optimal" in out) == (scales == "best"), out
        harness.succeed(tessera, ["verify", dst, "--against", src])
        assert f'"--scales={scales}"' in (dst / "tessera.manifest.json").read_text()


# ---- refusals ----

@pytest.mark.parametrize("options, words", [
    (("--scheme", "fp8-tensor"), "--scales best cannot be used with fp8-tensor, which has one scale per tensor"),
    (("--scheme", "fp8-block"), "cannot be used with FP32 scales, which fp8-block has here: there are 8,388,608"),
    (("--scheme", "fp8-channel"), "use --scale-dtype bf16 or mxfp8, or --scales mse"),
    (("--scheme", "int4-weight-only", "--scale-dtype", "f32"), "use --scale-dtype bf16 or f16, or --scales mse"),
    (("--scheme", "int8-channel"), "--scales best cannot be used with int8-channel"),
    (("--scheme", "int8-weight-only"), "--scales best cannot be used with int8-weight-only")], ids=str)
def test_refusals(options, words, tessera, tmp_path):
    src, _ = mx.model(tmp_path / "src")
    harness.expect(tessera, ["quantize", src, "-o", tmp_path / "dst", *options, "--scales", "best"], 2, words)
