"""Tests quantize --scales-from: BF16 that was decoded from int4 gets the same codes again, and other input is rejected."""

import json

import format_samples as f
import harness
import numpy as np
import pytest

X, Y = "model.layers.0.mlp.down_proj", "model.layers.0.mlp.up_proj"
NORM, HEAD = "model.norm.weight", "lm_head.weight"
ORIGINALS = {
    "symmetric": [f.int_packed(X), f.int_packed(Y, rows=40, seed=9)],
    "weight_shape in I64": [f.int_packed(X, shape_dtype=np.int64)],
    "zero points": [f.int_packed(X, rows=27, zeros=True)],
    "act-order": [f.int_packed(X, zeros=True, order=True), f.int_packed(Y, zeros=True, seed=9)],
    "several units": [f.int_packed(X, rows=1051, cols=2976, zeros=True, order=True)],
}


def write(directory, *modules, **plain):
    directory.mkdir()
    entries = {NORM: f.entry("BF16", np.ones(64, f.BF16)), HEAD: f.entry("BF16", np.ones((8, 64), f.BF16))}
    for m in modules:
        entries |= m.tensors
    harness.write_safetensors(directory / "model.safetensors", entries | plain, {"format": "pt"})
    config = {"model_type": "llama", "hidden_size": 64, "quantization_config": modules[0].config}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def read(directory):
    return harness.read_safetensors(directory / "model.safetensors")[1]


def change(directory, **changes):
    """Replaces tensors; None removes one."""
    metadata, tensors = harness.read_safetensors(directory / "model.safetensors")
    tensors = {name: t for name, t in {**tensors, **changes}.items() if t is not None}
    harness.write_safetensors(directory / "model.safetensors", tensors, metadata)


@pytest.fixture
def again(tessera, tmp_path):
    """Returns again(plain, original, *options) -> (exit code, stderr, DST)."""
    def run(plain, original, *options):
        dst = tmp_path / "again"
        code, out, err = harness.run(tessera, ["quantize", plain, "-o", dst, "--scheme", "int4-weight-only", "--scales-from", original,
                                               "--quiet", *options])
        return code, out + err, dst
    return run


@pytest.mark.parametrize("name", ORIGINALS)
def test_the_same_codes(name, tmp_path, tessera, convert, again):
    """The BF16 model has a changed norm. All other bytes equal the original's."""
    original = write(tmp_path / "int4", *ORIGINALS[name])
    plain = convert(original, "--to", "bf16")
    norm = f.entry("BF16", np.full(64, 2, f.BF16))
    change(plain, **{NORM: norm})
    code, said, dst = again(plain, original)
    assert code == 0, said
    assert read(dst) == {**read(original), NORM: norm}
    assert json.loads((dst / "config.json").read_text())["quantization_config"] == ORIGINALS[name][0].config
    for command in (["verify", dst, "--against", plain], ["inspect", dst]):
        harness.succeed(tessera, command)


def moved_by_one_ulp(data):
    return data[:2] + bytes([data[2] ^ 1]) + data[3:]


def swap(name, make):
    """Replaces a tensor of the BF16 checkpoint by make(dtype, shape, data)."""
    return lambda plain: change(plain, **{name: make(*read(plain)[name])})


W = X + ".weight"
REFUSED = {
    "a value of other scales": (swap(W, lambda d, s, data: (d, s, moved_by_one_ulp(data))), 3, [W, "[0, 1]", "not a code times its scale"]),
    "F32": (swap(W, lambda d, s, data: ("F32", s, bytes(2 * len(data)))), 3, [W, "F32", "BF16"]),
    "another shape": (swap(W, lambda d, s, data: (d, [s[0] // 2, s[1] * 2], data)), 3, [W, "a different shape"]),
    "a weight that is missing": (lambda plain: change(plain, **{W: None}), 3, ["no tensor '" + W + "'"]),
    "a weight too many": (lambda plain: change(plain, **{Y + ".weight": ("BF16", [64, 64], bytes(8192))}), 3, [Y, "no tensor"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name, tmp_path, convert, again):
    make, want, words = REFUSED[name]
    original = write(tmp_path / "int4", f.int_packed(X))
    plain = convert(original, "--to", "bf16")
    make(plain)
    code, said, dst = again(plain, original)
    assert code == want and all(word in said for word in words), said
    assert not (dst / "config.json").exists()


@pytest.mark.parametrize("module, words", [(f.awq(X), ["AWQ", "--to int4-weight-only"]), (f.mxfp8(X), ["MXFP8"])])
def test_other_originals_are_refused(module, words, tmp_path, convert, again):
    original = write(tmp_path / "original", module)
    code, said, _ = again(convert(original, "--to", "bf16"), original)
    assert code == 3 and all(word in said for word in words), said


@pytest.mark.parametrize("option", [["--group-size", "32"], ["--zero-points"], ["--scales", "mse"], ["--exclude", "*"]])
def test_options_of_scales_mean_nothing(option, tmp_path, convert, again):
    original = write(tmp_path / "int4", f.int_packed(X))
    code, said, _ = again(convert(original, "--to", "bf16"), original, *option)
    assert code == 2 and option[0] in said and "--scales-from" in said, said
