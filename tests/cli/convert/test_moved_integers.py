"""Tests moving AWQ, GPTQ and packed integers to pack-quantized: each code is equal, or the job is rejected. Compared with NumPy."""

import json

import format_samples as f
import harness
import numpy as np
import pytest
from coded_files import module, quantization, tensors, write

X = "model.layers.0.mlp.down_proj"
CODED = [".weight_packed", ".weight_scale", ".weight_shape"]
# Where the codes come from, the options that keep them, and the tensors beside them afterwards.
KEPT = {
    "awq": (f.awq(X), ["--zero-points"], [".weight_zero_point"]),
    "awq, several units": (f.awq(X, rows=1048, cols=2976), ["--zero-points", "--group-size", "32"], [".weight_zero_point"]),
    "awq, one group": (f.awq(X, size=160, config={**f.AWQ, "group_size": -1}), ["--zero-points"], [".weight_zero_point"]),
    "gptq": (f.gptq(X, zeros="fitting"), ["--zero-points"], [".weight_zero_point"]),
    "gptq-v2": (f.gptq(X, version=2), ["--zero-points"], [".weight_zero_point"]),
    "gptq, symmetric": (f.gptq(X, zeros="middle"), [], []),
    "gptq, symmetric, several units": (f.gptq(X, rows=1064, cols=2976, zeros="middle"), [], []),
    "gptq, symmetric, with zero points": (f.gptq(X, zeros="middle"), ["--zero-points"], [".weight_zero_point"]),
    "gptq, act-order": (f.gptq(X, order=True, zeros="middle"), [], [".weight_g_idx"]),
    "gptq, act-order, several units": (f.gptq(X, rows=1064, cols=2976, order=True, version=2), ["--zero-points"],
                                       [".weight_g_idx", ".weight_zero_point"]),
    "gptq, 8 bits": (f.gptq(X, bits=8, zeros="middle"), [], []),
    "gptq, 8 bits, several units": (f.gptq(X, bits=8, rows=1064, cols=2976, zeros="middle"), [], []),
    "gptq-v2, 8 bits": (f.gptq(X, bits=8, version=2, zeros="middle"), [], []),
    "gptq, 8 bits, act-order": (f.gptq(X, bits=8, order=True, zeros="middle"), [], [".weight_g_idx"]),
    "packed": (f.int_packed(X), [], []),
    "packed, group 128": (f.int_packed(X, cols=512, size=128), ["--group-size", "128"], []),
    "packed, zero points": (f.int_packed(X, rows=1051, cols=2976, zeros=True), ["--zero-points"], [".weight_zero_point"]),
    "packed, to zero points": (f.int_packed(X), ["--zero-points"], [".weight_zero_point"]),
    "packed, act-order": (f.int_packed(X, order=True, zeros=True), ["--zero-points"], [".weight_g_idx", ".weight_zero_point"]),
}


def packed_values(got, x, size, bits=4):
    """Decodes a module as compressed-tensors does: (code - zero point) * scale, in FP32."""
    places = bits * np.arange(32 // bits, dtype=np.uint32)
    rows, cols = got[x + ".weight_shape"]
    q = (got[x + ".weight_packed"].view(np.uint32)[:, :, None] >> places & 2**bits - 1).reshape(rows, -1)[:, :cols].astype(np.int32)
    z = np.full((rows, cols // size), 2 ** (bits - 1))
    if x + ".weight_zero_point" in got:
        words = got[x + ".weight_zero_point"].view(np.uint32)
        z = (words[:, None, :] >> places[:, None] & 15).reshape(-1, words.shape[1])[:rows].astype(np.int32)
    of = got.get(x + ".weight_g_idx", np.arange(cols) // size)
    return (q - z[:, of]).astype(np.float32) * got[x + ".weight_scale"].astype(np.float32)[:, of]


@pytest.mark.parametrize("name", KEPT)
def test_integers_keep_their_codes(name, tmp_path, tessera, convert):
    """Checks values, the dtype of scales, the configuration, and the results of diff and verify."""
    m, options, more = KEPT[name]
    bits = 8 if "8 bits" in name else 4
    src = write(tmp_path / "src", m)
    dst = convert(src, "--to", f"int{bits}-weight-only", *options)
    got, size = tensors(dst), max(32, m.values.shape[1] // tensors(dst)[X + ".weight_scale"].shape[1])
    assert sorted(module(dst, X)) == sorted(X + s for s in CODED + more)
    assert (packed_values(got, X, size, bits) == m.values).all()
    stored_scales = next(t[0] for n, t in m.tensors.items() if n.endswith((".scales", ".weight_scale")))
    header = harness.read_safetensors(dst / "model.safetensors")[1]
    assert header[X + ".weight_scale"][0] == stored_scales and header[X + ".weight_shape"][0] == "I64"
    weights = quantization(dst)["config_groups"]["group_0"]["weights"]
    group = {"strategy": "channel"} if name.endswith("one group") else {"strategy": "group", "group_size": size}
    order = {"actorder": "group"} if ".weight_g_idx" in more else {}
    assert weights == {"num_bits": bits, "type": "int", "symmetric": "--zero-points" not in options, "dynamic": False, **group, **order}
    assert not (dst / "quantization_report.json").exists()
    code, out, err = harness.run(tessera, ["diff", src, dst, "--json", tmp_path / "diff.json"])
    states = {t["state"] for t in json.loads((tmp_path / "diff.json").read_text())["tensors"]}
    assert code == 0 and states <= {"equal", "identical"}, (states, out + err)
    harness.succeed(tessera, ["verify", dst, "--against", src])


def test_integers_with_weights_that_stay(tmp_path, convert):
    """One configuration has modules with a column order and without one, and one module that is not quantized."""
    a, b, c = (f"model.layers.{i}.mlp.down_proj" for i in range(3))
    modules = [f.gptq(a, order=True, zeros="middle"), f.gptq(b, zeros="middle"), f.gptq(c, zeros="middle")]
    dst = convert(write(tmp_path / "src", *modules), "--to", "int4-weight-only", "--exclude", c + ".*")
    got = tensors(dst)
    assert (packed_values(got, a, 32) == modules[0].values).all() and (packed_values(got, b, 32) == modules[1].values).all()
    assert a + ".weight_g_idx" in got and b + ".weight_g_idx" in got
    assert got[c + ".weight"].tobytes() == modules[2].values.astype(f.BF16).tobytes() and quantization(dst)["ignore"] == ["lm_head", c]


def one_scale():
    """Makes a packed weight with one scale for all rows."""
    m = f.int_packed(X)
    weights = {"num_bits": 4, "type": "int", "strategy": "tensor", "symmetric": True, "dynamic": False}
    config = f.compressed("pack-quantized", {"targets": ["Linear"], "weights": weights, "input_activations": None})
    return m._replace(tensors={**m.tensors, X + ".weight_scale": f.entry("BF16", np.ones(1, f.BF16))}, config=config)


def with_zero_word(module, at):
    """Changes one zero point of GPTQ."""
    dtype, shape, data = module.tensors[X + ".qzeros"]
    words = np.frombuffer(data, np.uint32).copy()
    words[at] ^= 1
    return module._replace(tensors={**module.tensors, X + ".qzeros": (dtype, shape, words.tobytes())})


NOT_KEPT = {
    "one scale": (one_scale(), ["--group-size", "0"], 2, ["one scale for all rows", "--lossy"]),
    "zero points": (f.awq(X), [], 2, ["AWQ in groups of 32", "zero points", "--zero-points", "--lossy"]),
    "other groups": (f.awq(X, cols=256), ["--group-size", "128", "--zero-points"], 2, ["groups of 32", "--group-size", "--lossy"]),
    "other groups, packed": (f.int_packed(X, cols=256), ["--group-size", "64"], 2, [".weight_packed", "--group-size", "--lossy"]),
    "a short last group": (f.awq(X, cols=152), ["--zero-points"], 3, ["groups of 32 do not divide"]),
    "a zero point of 16": (f.gptq(X), ["--zero-points"], 3, [".qzeros", "group 0, output 0 is 16", "--scales mse"]),
    "no symmetry in the last group": (with_zero_word(f.gptq(X, zeros="middle"), -1), [], 3, [".qzeros", "is not 8", "--zero-points"]),
}


@pytest.mark.parametrize("name", NOT_KEPT)
def test_integers_that_cannot_stay(name, tmp_path, refuse):
    m, options, code, words = NOT_KEPT[name]
    refuse(write(tmp_path / "src", m), code, X, *words, options=("--to", "int4-weight-only", *options))


def test_integers_with_a_scale_below_zero(tmp_path, refuse):
    m = f.awq(X)
    dtype, shape, data = m.tensors[X + ".scales"]
    m.tensors[X + ".scales"] = (dtype, shape, data[:1] + bytes([data[1] | 0x80]) + data[2:])
    refuse(write(tmp_path / "src", m), 3, X, "scale", options=("--to", "int4-weight-only", "--zero-points"))


def test_zero_points_of_8_bits_have_no_place(tmp_path, tessera):
    """Zero points of 8 bits cannot be stored, nor those that config.json denies. Requantization removes them."""
    m = f.gptq(X, bits=8, zeros="fitting")
    for number, (module_, code, words) in enumerate([
            (m, 2, ["zero points", "int8-weight-only", "--lossy"]),
            (with_zero_word(f.gptq(X, bits=8, zeros="middle"), -1), 3, [".qzeros", "not 128", "--scales mse"])]):
        src = write(tmp_path / f"src{number}", module_)
        harness.expect(tessera, ["convert", src, "-o", tmp_path / "dst", "--to", "int8-weight-only"], code, *words)
    harness.succeed(tessera, ["convert", tmp_path / "src0", "-o", tmp_path / "anew", "--to", "int8-weight-only", "--lossy"])
