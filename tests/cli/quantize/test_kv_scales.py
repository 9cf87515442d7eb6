"""Tests scales of an FP8 KV cache: names and configuration in each dialect, and reading them in verify and diff."""

import json

import format_samples as f
import harness
import mx_oracle as mx
import numpy as np
import pytest
from coded_files import quantization, tensors, write

A = "model.layers.0.self_attn."
NAMES = {"ct": (A + "k_scale", A + "v_scale"), "modelopt": (A + "k_proj.k_scale", A + "v_proj.v_scale")}
SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
STATED = {"ct": {"kv_cache_scheme": SCHEME}, "modelopt": {"kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}}


def cached(directory, dialect, scales, states=None, joined=False):
    """Makes NVFP4 in this dialect with these scales and this description of the cache in config.json."""
    modules = [f.nvfp4(A + p, dialect, inputs=False, rows=64, cols=64) for p in (["qkv_proj"] if joined else ["k_proj", "v_proj"])]
    modules[0] = modules[0]._replace(config={**modules[0].config, **(STATED[dialect] if states is None else states)})
    return write(directory, *modules, plain=scales)


def two(names, dtype="F32", shape=(), values=(0.5, 0.25)):
    return {n: f.entry(dtype, np.full(shape, v, {"F32": np.float32, "BF16": f.BF16}[dtype])) for n, v in zip(names, values)}


def raw_of(dst, *names):
    got = harness.read_safetensors(dst / "model.safetensors")[1]
    return [(dtype, list(shape), bytes(data)) for dtype, shape, data in (got[n] for n in names)]


@pytest.mark.parametrize("source", NAMES)
@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("scheme", ["nvfp4-weight-only", "mxfp8"])
def test_cache_scales_have_the_names_of_the_dialect(source, target, scheme, tmp_path, convert):
    scales = two(NAMES[source], *(("BF16", (1,)) if source == "ct" else ()))
    dst = convert(cached(tmp_path / "src", source, scales), "--to", scheme, "--dialect",
                  "compressed-tensors" if target == "ct" else "modelopt")
    assert raw_of(dst, *NAMES[target]) == list(scales.values())
    assert sum(name.endswith(("k_scale", "v_scale")) for name in tensors(dst)) == 2
    assert quantization(dst)["kv_cache_scheme"] == STATED[target]["kv_cache_scheme"]
    if target == "modelopt":
        assert json.loads((dst / "hf_quant_config.json").read_text())["quantization"]["kv_cache_quant_algo"] == "FP8"


@pytest.mark.parametrize("target", NAMES)
def test_one_old_scale_becomes_two(target, tmp_path, tessera, convert):
    scale = two([A + "kv_scale"])
    dst = convert(cached(tmp_path / "src", "ct", scale), "--to", "nvfp4-weight-only", "--dialect",
                  "compressed-tensors" if target == "ct" else "modelopt")
    assert raw_of(dst, *NAMES[target]) == 2 * list(scale.values()) and A + "kv_scale" not in tensors(dst)
    harness.succeed(tessera, ["verify", dst, "--against", tmp_path / "src"])
    metadata, got = harness.read_safetensors(dst / "model.safetensors")
    got[NAMES[target][1]] = f.entry("F32", np.float32(0.75))
    harness.write_safetensors(dst / "model.safetensors", got, metadata)
    harness.shows(tessera, ["diff", tmp_path / "src", dst], 1, "kv_scale")


@pytest.mark.parametrize("source, target", [("ct", "modelopt"), ("modelopt", "ct"), ("modelopt", "modelopt")])
def test_cache_scales_of_a_joined_projection(source, target, tmp_path, convert):
    names = {"ct": NAMES["ct"], "modelopt": (A + "qkv_proj.k_scale", A + "qkv_proj.v_scale")}
    scales = two(names[source])
    dst = convert(cached(tmp_path / "src", source, scales, joined=True), "--to", "nvfp4-weight-only", "--dialect",
                  "compressed-tensors" if target == "ct" else "modelopt")
    assert raw_of(dst, *names[target]) == list(scales.values())


def test_a_cache_that_nobody_states(tmp_path, convert):
    """The scales are renamed, and config.json still does not mention the cache."""
    dst = convert(cached(tmp_path / "src", "modelopt", two(NAMES["modelopt"]), states={}), "--to", "mxfp8")
    assert set(NAMES["ct"]) <= set(tensors(dst)) and quantization(dst)["kv_cache_scheme"] is None


def test_hf_quant_config_states_the_cache(tmp_path, convert):
    src = cached(tmp_path / "src", "modelopt", two(NAMES["modelopt"]), states={})
    (src / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": {
        "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": []}}))
    assert quantization(convert(src, "--to", "mxfp8"))["kv_cache_scheme"] == SCHEME


@pytest.mark.parametrize("states, scales, words", [
    ({"kv_cache_quant_algo": "NVFP4"}, NAMES["modelopt"], "is not FP8"),
    ({"kv_cache_quant_algo": "FP8"}, (), "has no scales")])
def test_a_cache_that_is_not_carried_over_is_told(states, scales, words, tmp_path, tessera):
    src, dst = cached(tmp_path / "src", "modelopt", two(scales), states=states), tmp_path / "dst"
    harness.expect(tessera, ["convert", src, "-o", dst, "--to", "mxfp8"], 0, words)
    assert quantization(dst)["kv_cache_scheme"] is None


def test_a_cache_scale_for_each_head_is_refused(tmp_path, refuse):
    src = cached(tmp_path / "src", "modelopt", two(NAMES["modelopt"], shape=(4,)))
    refuse(src, 3, "k_proj.k_scale", "4 values", options=("--to", "mxfp8"))


def test_fp8_in_another_dialect_takes_its_cache_along(tmp_path, convert):
    """The scales are renamed even if the codes are kept. DeepSeek's own dialect renames nothing."""
    m = f.fp8_block(A + "k_proj", suffix=".weight_scale_inv", dtype="F32", config={**f.V4, "scale_fmt": None, "kv_cache_quant_algo": "FP8"})
    scales = two(NAMES["modelopt"])
    src = write(tmp_path / "src", m, plain={**scales, **{A + "v_proj" + n[len(m.name) - 7:]: t for n, t in m.tensors.items()}})
    dst = convert(src, "--to", "fp8-block", "--dialect", "compressed-tensors")
    assert raw_of(dst, *NAMES["ct"]) == list(scales.values()) and quantization(dst)["kv_cache_scheme"] == SCHEME
    assert raw_of(convert(src, "--to", "fp8-block"), *NAMES["modelopt"]) == list(scales.values())


# ---- scales that quantize makes ----

STORED = {"compressed-tensors": (NAMES["ct"], (1,), STATED["ct"]), "modelopt": (NAMES["modelopt"], (), STATED["modelopt"])}


def assert_cache(dst, dialect, values):
    names, shape, states = STORED[dialect]
    assert raw_of(dst, *names) == list(two(names, shape=shape, values=values).values())
    assert quantization(dst)["kv_cache_scheme"] == states["kv_cache_scheme"]
    if dialect == "modelopt":
        assert json.loads((dst / "hf_quant_config.json").read_text())["quantization"]["kv_cache_quant_algo"] == "FP8"


@pytest.mark.parametrize("options, dialect", [
    (("--scheme", "nvfp4-weight-only"), "compressed-tensors"), (("--scheme", "nvfp4-weight-only", "--dialect", "modelopt"), "modelopt"),
    (("--scheme", "fp8-channel"), "compressed-tensors"), (("--scheme", "int4-weight-only", "--group-size", "32"), "compressed-tensors"),
    (("--scheme", "fp8-block", "--block", "16x16", "--dialect", "compressed-tensors"), "compressed-tensors"),
    (("--rules", "RULES", "--dialect", "modelopt"), "modelopt")], ids=str)
def test_a_constant_scale(options, dialect, tmp_path, tessera):
    src, _ = mx.model(tmp_path / "src")
    rules, dst = tmp_path / "rules.json", tmp_path / "dst"
    rules.write_text('{"rules": [{"match": "*.mlp.*", "scheme": "mxfp8"}]}')
    code, out, err = harness.run(tessera, ["quantize", src, "-o", dst, *(rules if o == "RULES" else o for o in options),
                                           "--kv-scale", "0.5"])
    assert code == 0 and "0.5 of the FP8 KV cache is not calibrated: keys and values beyond 224 are clamped" in err, out + err
    assert_cache(dst, dialect, (0.5, 0.5))
    harness.succeed(tessera, ["verify", dst, "--against", src])


@pytest.mark.parametrize("dialect", STORED)
def test_scales_of_measured_ranges(dialect, tmp_path, tessera):
    """Scales are amax / 448. ModelOpt stores no scale below 1."""
    src, _ = mx.model(tmp_path / "src")
    ranges, dst = tmp_path / "ranges.json", tmp_path / "dst"
    ranges.write_text(json.dumps({A + "k_cache": {"min": -896, "max": 3}, A + "v_cache": {"min": -1, "max": 7.0}}))
    code, out, err = harness.run(tessera, ["quantize", src, "-o", dst, "--scheme", "nvfp4-weight-only", "--dialect", dialect,
                                           "--kv-ranges", ranges])
    assert code == 0 and "calibrated" not in err, out + err
    assert_cache(dst, dialect, (2, 0.015625 if dialect == "compressed-tensors" else 1))


@pytest.mark.parametrize("options, status, words", [
    (("--kv-scale", "0"), 2, "--kv-scale 0: must be a positive number"), (("--kv-scale", "-1"), 2, "must be a positive number"),
    (("--kv-scale", "nan"), 2, "--kv-scale"), (("--kv-scale", "1", "--kv-ranges", "R"), 2, "cannot be combined with --kv-ranges"),
    (("--kv-scale", "1", "--dialect", "deepseek"), 2, "this dialect has no scales of the KV cache"),
    (("--kv-ranges", "R", "--dialect", "compressed-tensors"), 3, "no min and max for 'model.layers.0.self_attn.k_cache'"),
    (("--kv-ranges", "Z", "--dialect", "compressed-tensors"), 3, "the range of 'model.layers.0.self_attn.k_cache' is zero")], ids=str)
def test_refused_scales(options, status, words, tmp_path, tessera):
    src, _ = mx.model(tmp_path / "src")
    files = {"R": "{}", "Z": json.dumps({A + "k_cache": {"min": 0, "max": 0}})}
    for name, text in files.items():
        (tmp_path / f"{name}.json").write_text(text)
    code, out, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "dst",
                                           *(tmp_path / f"{o}.json" if o in files else o for o in options)])
    assert code == status and words in err, out + err


def test_a_model_without_keys_is_refused(tmp_path, tessera):
    src, _ = mx.model(tmp_path / "src", modules={"model.layers.0.mlp.up_proj": (64, 128)})
    code, _, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "dst", "--scheme", "fp8-channel", "--kv-scale", "1"])
    assert code != 0 and "no layer has self_attn.k_proj" in err, err


@pytest.mark.parametrize("value, word", [(0, "zero"), (-1, "negative"), (np.nan, "NaN"), (np.inf, "infinite")])
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_a_scale_that_is_not_positive_stops_convert(value, word, dtype, tmp_path, tessera, refuse):
    src = cached(tmp_path / "src", "modelopt", two(NAMES["modelopt"], dtype=dtype, values=(0.5, value)))
    refuse(src, 3, "v_proj.v_scale", f"is {word}", "must be positive", options=("--to", "mxfp8"))
    harness.shows(tessera, ["verify", src, "--against", src], 1, f"the scale of the KV cache is {word}")
