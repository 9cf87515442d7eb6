"""Tests --scales four-six: bytes against mx_oracle.py, verify, instruction sets, rules files, convert, refusals."""

import json

from checkpoints import BF16, load
import harness
import mx_oracle as mx
import numpy as np
import pytest

SOURCES = {"bf16": BF16, "f16": np.float16, "f32": np.float32}
PAIRS = [pair for pair in mx.PAIRS if pair[0].startswith("nvfp4")]


def assert_same(got, wanted):
    for name, array in wanted.items():
        a, b = (np.ascontiguousarray(x).view(np.uint8).reshape(-1) for x in (got[name], array))
        assert np.array_equal(a, b), f"{name}: {np.flatnonzero(a != b)[:5]} of {a.size}"


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("scheme, dialect", PAIRS)
def test_bytes(scheme, dialect, source, quantize, tessera, tmp_path):
    src, weights = mx.model(tmp_path / "src", SOURCES[source])
    ranges = {module: (-1.5 - i, 2.25 + i % 3) for i, module in enumerate(weights)}
    path = harness.write_json(tmp_path / "ranges.json", {m: {"min": low, "max": high} for m, (low, high) in ranges.items()})
    dst = quantize(src, "--scheme", scheme, "--dialect", dialect, "--scales", "four-six",
                   *(("--activations", path) if scheme == "nvfp4" else ()))
    wanted = mx.expected(weights, scheme, dialect, ranges=ranges, search="four-six")
    assert_same(load(dst), wanted)
    amax = mx.expected(weights, scheme, dialect, ranges=ranges)
    scales = mx.names(scheme, dialect)[1]
    assert all(wanted[m + scales].tobytes() != amax[m + scales].tobytes() for m in weights)
    harness.succeed(tessera, ["verify", dst, "--against", src])


@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt"])
def test_instruction_sets_and_threads(dialect, quantize, tmp_path):
    src, _ = mx.model(tmp_path / "src", modules={"model.layers.0.mlp.up_proj": (256, 2048)})
    options = ("--scheme", "nvfp4-weight-only", "--dialect", dialect, "--scales", "four-six")
    first = quantize(src, *options, "--threads", "2")
    for other in (("--cpumask", "0"), ("--cpumask", "1"), ("--threads", "1")):
        assert harness.tree_difference(first, quantize(src, *options, *other)) is None


def test_a_rules_file_with_other_schemes(quantize, tmp_path):
    """NVFP4 chooses between 4 and 6. FP8 has scales from amax."""
    src, weights = mx.model(tmp_path / "src")
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"schema": "tessera-rules/1", "rules": [
        {"match": "*.mlp.*", "scheme": "nvfp4-weight-only"}, {"match": "*.self_attn.*", "scheme": "fp8-channel"},
        {"match": "*", "scheme": "keep"}]}))
    got = load(quantize(src, "--rules", rules, "--scales", "four-six"))
    wanted = mx.expected(weights, "nvfp4-weight-only", "compressed-tensors", search="four-six")
    assert_same(got, {name: array for name, array in wanted.items() if ".mlp." in name})
    plain = load(quantize(src, "--rules", rules))
    attention = [name for name in plain if "self_attn" in name]
    assert attention and all(got[name].tobytes() == plain[name].tobytes() for name in attention)


def test_convert_makes_the_same_bytes(quantize, convert, tmp_path):
    src, weights = mx.model(tmp_path / "src", np.float32)
    fp8 = quantize(src, "--scheme", "fp8-channel")
    options = ("nvfp4-weight-only", "--scales", "four-six")
    one = load(convert(fp8, "--to", *options))
    two = load(quantize(convert(fp8, "--to", "bf16", "--dtype", "f32"), "--scheme", *options))
    assert set(one) == set(two) and all(one[name].tobytes() == two[name].tobytes() for name in one)


@pytest.mark.parametrize("options, word", [
    (("--scheme", "mxfp4"), "mxfp4"), (("--scheme", "fp8-block"), "fp8-block"), (("--scheme", "int4-weight-only"), "int4-weight-only"),
    (("--scheme", "fp8-tensor"), "fp8-tensor")], ids=str)
def test_refusals(options, word, tessera, tmp_path):
    src, _ = mx.model(tmp_path / "src")
    code, _, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "dst", *options, "--scales", "four-six"])
    assert code == 2 and f"--scales four-six cannot be used with {word}; use nvfp4" in err, err


def test_rules_without_nvfp4_and_layouts_are_refused(tessera, tmp_path):
    src, _ = mx.model(tmp_path / "src")
    rules = harness.write_json(tmp_path / "rules.json", {"schema": "tessera-rules/1", "rules": [{"match": "*", "scheme": "fp8-block"}]})
    harness.expect(tessera, ["quantize", src, "-o", tmp_path / "dst", "--rules", rules, "--scales", "four-six"], 2, "the rules give to no weight")
    code, _, err = harness.run(tessera, ["convert", src, "-o", tmp_path / "dst", "--to", "trtllm", "--arch", "sm90", "--bits", "8",
                                         "--scales", "four-six"])
    assert code == 2 and "--scales four-six cannot be used with --to fastertransformer" in err, err
