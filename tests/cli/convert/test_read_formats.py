"""Tests reading of each kind in tests/common/format_samples.py: values, inspect, rejected inputs, and contradictions in config.json."""

import json

from checkpoints import DEEPSEEK, load, make, random_weight
import format_samples as f
import harness
import ml_dtypes
import numpy as np
import pytest

NUMPY = {"bf16": ("BF16", ml_dtypes.bfloat16), "f16": ("F16", np.float16), "f32": ("F32", np.float32)}
L = "model.layers.0."
X, Y, W1 = L + "mlp.down_proj", L + "mlp.experts.gate_up_proj", "layers.0.ffn.experts.0.w1"
EXPERT = L + "mlp.experts.0.up_proj"
NORM = L + "input_layernorm.weight"
V4 = {"names": (".weight", ".scale"), "dtypes": ("I8", "F8_E8M0"), "config": f.V4}
PLAIN = (".weight", ".weight_scale")
CT_MXFP4 = f.compressed("mxfp4-pack-quantized", f.group(4, 32, "torch.uint8"))
MODEL_MXFP8 = {"quant_method": "modelopt", "quant_algo": "MXFP8"}
PB_WO = {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}


def with_config(module, **changed):
    return module._replace(config={**module.config, **changed})


def auto_round(module, packing=None, quant_method="auto-round", **others):
    """Makes the module as auto-round stores it, with the tensors of the format that packing_format names."""
    old = module.config
    config = {"quant_method": quant_method, "bits": old.get("bits", 4), "group_size": old["group_size"], "sym": False, "data_type": "int",
              "autoround_version": "0.15.1", "extra_config": {"lm_head": {"bits": 16}}, **({"packing_format": packing} if packing else {}), **others}
    return module._replace(config=config)


def by_layer(dtype, *layers):
    """Makes Quark's configuration with one dtype, and others for some layers."""
    return {**f.quark(dtype), "layer_quant_config": {name: f.quark(other)["global_quant_config"] for name, other in layers}}


# name: (the kind that inspect says, module)
KINDS = {
    "mxfp4-ct": ("mxfp4-ct", f.mxfp4(X, config=CT_MXFP4)),
    "mxfp4-ct, F8_E8M0 scales": ("mxfp4-ct", f.mxfp4(X, dtypes=("U8", "F8_E8M0"), config=CT_MXFP4)),
    "mxfp4-v4": ("mxfp4-v4", f.mxfp4(W1, **V4)),
    "mxfp4-v4, U8": ("mxfp4-v4", f.mxfp4(W1, **{**V4, "dtypes": ("U8", "U8")})),
    "mxfp4-v4, F4": ("mxfp4-v4", f.mxfp4(W1, **{**V4, "dtypes": ("F4", "F8_E8M0")})),
    "mxfp4-v4, large": ("mxfp4-v4", f.mxfp4(W1, rows=1100, cols=2080, **V4)),
    "mxfp4-modelopt": ("mxfp4-modelopt", f.mxfp4(X, names=(".weight", ".weight_scale"), config=f.QUARK)),
    "mxfp4-gptoss": ("mxfp4-gptoss", f.mxfp4_gptoss(Y)),
    "mxfp4-gptoss, several units": ("mxfp4-gptoss", f.mxfp4_gptoss(Y, rows=1000, cols=2912)),
    "mxfp6-ct": ("mxfp6-ct", f.mxfp6(X)),
    "mxfp6-ct, F8_E8M0 scales": ("mxfp6-ct", f.mxfp6(X, dtype="F8_E8M0")),
    "mxfp6-ct, several units": ("mxfp6-ct", f.mxfp6(X, rows=1100, cols=2080)),
    "mxfp6-e2m3-quark": ("mxfp6-e2m3-quark", f.mxfp6(X, names=PLAIN, config=f.quark("fp6_e2m3"))),
    "mxfp6-e3m2-quark": ("mxfp6-e3m2-quark", f.mxfp6(X, "e3m2", names=PLAIN, config=f.quark("fp6_e3m2"))),
    "mxfp6-e3m2-quark of a layer": ("mxfp6-e3m2-quark", f.mxfp6(X, "e3m2", names=PLAIN, config={
        **f.quark("fp4"), "layer_quant_config": {"*.mlp.*": f.quark("fp6_e3m2")["global_quant_config"]}})),
    "mxfp6-e3m2-quark, stack": ("mxfp6-e3m2-quark", f.mxfp6(X, "e3m2", names=PLAIN, experts=3, config=f.quark("fp6_e3m2"))),
    "nvfp4-ct": ("nvfp4-ct", f.nvfp4(X, "ct")),
    "nvfp4-ct, F4": ("nvfp4-ct", f.nvfp4(X, "ct", dtype="F4")),
    "nvfp4-ct, stack": ("nvfp4-ct", f.nvfp4(X, "ct", experts=3)),
    "nvfp4-modelopt": ("nvfp4-modelopt", f.nvfp4(X, "modelopt")),
    "nvfp4-modelopt, stack": ("nvfp4-modelopt", f.nvfp4(X, "modelopt", experts=3, inputs=False)),
    "mxfp8-ct": ("mxfp8", f.mxfp8(X)),
    "mxfp8-modelopt": ("mxfp8", f.mxfp8(X, config=MODEL_MXFP8)),
    "mxfp8, weight_scale_inv": (
        "mxfp8", f.mxfp8(X, suffix=".weight_scale_inv", config={"quant_method": "mxfp8", "weight_block_size": [1, 32]})),
    "mxfp8 of an n-gram table": ("mxfp8", f.mxfp8("layers.0.engram.embed", rows=999, cols=256, suffix=".scale", dtype="F8_E8M0",
                                                config={**f.V4, "weight_block_size": [32, 32]})),
    "fp8-block of V4": ("fp8-block", f.fp8_block("layers.0.attn.wq_a")),
    "fp8-block of V4.1": ("fp8-block", f.fp8_block("layers.0.attn.wq_a", block=(32, 32))),
    "fp8-block, U8 scales": ("fp8-block", f.fp8_block(X, suffix=".weight_scale_inv", dtype="U8")),
    "fp8-block of V4-Base": ("fp8-block", f.fp8_block(W1, dtype="F32", config={**f.V4, "scale_fmt": None, "expert_dtype": "fp8"})),
    "fp8-block of ModelOpt": ("fp8-block", f.fp8_block(X, suffix=".weight_scale", dtype="F32", spread_out=True, config=PB_WO)),
    **{f"int4, weight_shape of {t.__name__}": ("int4-ct", f.int_packed(X, shape_dtype=t))
       for t in (np.uint8, np.int16, np.int32, np.int64)},
    "int4, zero points": ("int4-ct", f.int_packed(X, zeros=True)),
    "int4, act-order": ("int4-ct", f.int_packed(X, order=True)),
    "int4, act-order, zero points, several units": ("int4-ct", f.int_packed(X, rows=1051, cols=2976, zeros=True, order=True)),
    "int4-sglang": ("int4-sglang", f.int4_sglang(EXPERT)),
    "int4-sglang, BF16 scales": ("int4-sglang", f.int4_sglang(EXPERT, dtype="BF16")),
    "int4-sglang, several units": ("int4-sglang", f.int4_sglang(EXPERT, rows=1051, cols=2944)),
    "int4-sglang, groups of 64": ("int4-sglang", f.int4_sglang(EXPERT, group_size=64, config={**f.W4AFP8, "group_size": 64})),
    "awq": ("awq", f.awq(X)),
    "awq, a short last group": ("awq", f.awq(X, cols=152)),
    "awq, one group": ("awq", f.awq(X, size=160, config={**f.AWQ, "group_size": -1})),
    "awq, several units": ("awq", f.awq(X, rows=1048, cols=2976)),
    "gptq": ("gptq", f.gptq(X)),
    "gptq without g_idx": ("gptq", f.gptq(X, index=False)),
    "gptq-v2": ("gptq", f.gptq(X, version=2)),
    "gptq, act-order": ("gptq", f.gptq(X, order=True)),
    "gptq, act-order, several units": ("gptq", f.gptq(X, rows=1064, cols=2976, order=True)),
    "gptq, 8 bits": ("gptq", f.gptq(X, bits=8)),
    "gptq, 8 bits, v2": ("gptq", f.gptq(X, bits=8, version=2)),
    "gptq of auto-round": ("gptq", auto_round(f.gptq(X), "auto_round:auto_gptq")),
    "gptq of auto-round, by default": ("gptq", auto_round(f.gptq(X))),
    "gptq of intel/auto-round": ("gptq", auto_round(f.gptq(X), quant_method="intel/auto-round")),
    "awq of auto-round": ("awq", auto_round(f.awq(X), "auto_round:auto_awq")),
    "gptq of auto-round, 8 bits of a layer": ("gptq", auto_round(f.gptq(X, bits=8), bits=4, extra_config={X: {"bits": 8}})),
    "gptq, 8 bits by dynamic": ("gptq", with_config(f.gptq(X, bits=8), bits=4, dynamic={"-:lm_head": {}, r"+:.*down_proj": {"bits": 8}})),
    "gptq, one group by dynamic": ("gptq", with_config(f.gptq(X, size=160), group_size=32, dynamic={r"+:.*down_proj": {"group_size": -1}})),
    "gptq, ragged": ("gptq", f.gptq(X, rows=43, cols=157)),
}
BITS = {**{kind: 6 for kind in ("mxfp6-ct", "mxfp6-e2m3-quark", "mxfp6-e3m2-quark")}, "fp8-block": 8, "mxfp8": 8, "gptq of auto-round, 8 bits of a layer": 8, "gptq, 8 bits by dynamic": 8, "gptq, 8 bits": 8, "gptq, 8 bits, v2": 8}


def write(directory, *modules, config="of the module", plain=(), files=(), **more):
    """Writes these modules and a norm. `files` has the names of tensors in a second file."""
    make(directory, {"model.safetensors": {}}, None, **more)
    norm = ("BF16", [64], random_weight((64,)).astype(f.BF16).tobytes())
    entries = {NORM: norm, **dict(plain)}
    for module in modules:
        entries |= module.tensors
    second = {name: entries.pop(name) for name in files}
    names = {"model.safetensors": entries, "more.safetensors": second}
    if second:
        index = {name: file for file, there in names.items() for name in there}
        (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    harness.write_safetensors(directory / "model.safetensors", entries, {"format": "pt"})
    if second:
        harness.write_safetensors(directory / "more.safetensors", second, {"format": "pt"})
    text = json.loads((directory / "config.json").read_text())
    stated = modules[0].config if config == "of the module" else config
    if stated is not None:
        text["quantization_config"] = stated
    (directory / "config.json").write_text(json.dumps(text))
    return directory


def decoded(tmp_path, tessera, src, dtype="bf16"):
    dst = tmp_path / f"dst-{dtype}"
    harness.succeed(tessera, ["convert", src, "-o", dst, "--to", "bf16", "--dtype", dtype, "--quiet"])
    return dst, harness.read_safetensors(dst / "model.safetensors")[1]


def expect(got, module, dtype="bf16"):
    name, numpy = NUMPY[dtype]
    kind, shape, data = got[module.name]
    assert (kind, list(shape)) == (name, list(module.values.shape))
    want = np.ascontiguousarray(module.values.astype(numpy))
    wrong = np.flatnonzero(np.frombuffer(data, numpy).view(np.uint8) != want.reshape(-1).view(np.uint8))
    assert wrong.size == 0, f"{wrong.size} bytes differ, the first is {wrong[0]}"


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("name", KINDS)
def test_values(tmp_path, tessera, name, dtype):
    kind, module = KINDS[name]
    src = write(tmp_path / "src", module)
    dst, got = decoded(tmp_path, tessera, src, dtype)
    assert got.keys() == {module.name, NORM}
    expect(got, module, dtype)
    assert "quant" not in (dst / "config.json").read_text()


@pytest.mark.parametrize("name", KINDS)
def test_scales_in_another_file_and_in_front(tmp_path, tessera, name):
    """The order of tensors has no meaning."""
    _, module = KINDS[name]
    names = list(module.tensors)
    src = write(tmp_path / "src", module, files=names[:1])
    expect(decoded(tmp_path, tessera, src)[1], module)
    (tmp_path / "again").mkdir()
    other = write(tmp_path / "again" / "src", module, files=names[1:])
    expect(decoded(tmp_path / "again", tessera, other)[1], module)


@pytest.mark.parametrize("name", KINDS)
def test_inspect_counts_values_and_names_the_kind(tmp_path, tessera, name):
    kind, module = KINDS[name]
    src = write(tmp_path / "src", module)
    out = harness.succeed(tessera, ["inspect", src, "--json", tmp_path / "json"])
    got = json.loads((tmp_path / "json").read_text())
    assert sum(part["parameters"] for part in got["parts"].values()) == module.values.size + 64
    assert sum(part["quantized"] for part in got["parts"].values()) == module.values.size
    (row,) = got["quantization"]["kinds"]
    assert row["kind"] == kind and row["weights"] == 1 and row["values"] == module.values.size
    assert row["bits"] == BITS.get(name, BITS.get(kind, 4)) and kind in out
    stored = sum(len(data) for _, _, data in module.tensors.values())
    assert row["bits_a_value"] == pytest.approx(8 * stored / module.values.size, rel=1e-5)
    one = next(iter(module.tensors))
    assert kind in harness.succeed(tessera, ["inspect", f"{src}:{one}"])


# ---- several kinds ----


def test_two_dialects_side_by_side(tmp_path, tessera):
    """DeepSeek-V4 has NVFP4 experts, MXFP4 experts and block FP8. Each is recognized by its tensors. NVIDIA's release has members of
    ModelOpt under quant_method fp8."""
    modules = [f.fp8_block("layers.0.attn.wq_a"), f.nvfp4("layers.0.ffn.experts.0.w1", "modelopt"),
               f.mxfp4("mtp.0.ffn.experts.0.w1", **V4), f.mxfp8("layers.0.engram.embed", suffix=".scale", dtype="F8_E8M0")]
    config = {**f.V4, "quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4", "group_size": 16, "ignore": ["*.attn.*", "mtp.*"],
              "quantized_layers": {"layers.0.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16}}, "producer": {"name": "modelopt"}}
    src = write(tmp_path / "src", *modules, config=config, expert_dtype="fp4")
    dst, got = decoded(tmp_path, tessera, src)
    for module in modules:
        expect(got, module)
    assert json.loads((dst / "config.json").read_text()) == {"model_type": "llama", "torch_dtype": "bfloat16"}
    assert "unknown member" not in harness.shows(tessera, ["inspect", src], 0, "fp8-block", "nvfp4-modelopt", "mxfp4-v4", "mxfp8")


@pytest.mark.parametrize("layers, up, down", [
    ([("*.down_proj", "fp6_e3m2")], "e2m3", "e3m2"), ([("*.mlp.*", "fp6_e3m2"), (L + "mlp.*", "fp6_e3m2")], "e3m2", "e3m2"),
    ([(L + "mlp.up_proj", "fp6_e3m2"), ("lm_head", "fp6_e3m2")], "e3m2", "e2m3"), ([("*up_pro[a-j]", "fp6_e3m2")], "e3m2", "e2m3")])
def test_both_elements_of_six_bits(layers, up, down, tmp_path, tessera):
    """Quark's layer_quant_config has the element of some layers. The others have that of global_quant_config."""
    modules = [f.mxfp6(L + "mlp.up_proj", up, names=PLAIN), f.mxfp6(L + "mlp.down_proj", down, names=PLAIN)]
    src = write(tmp_path / "src", *modules, config=by_layer("fp6_e2m3", *layers, ("*.other", "fp6_e3m2")))
    dst, got = decoded(tmp_path, tessera, src)
    for module in modules:
        expect(got, module)
    harness.succeed(tessera, ["verify", dst, "--against", src])


def test_int8_of_quark(tmp_path, tessera):
    codes, scale = np.arange(-64, 64, dtype=np.int8).reshape(4, 32), np.float32([1, 2, 0.5, 4])
    src = make(tmp_path / "src", {"model.safetensors": {X + ".weight": codes, X + ".weight_scale": scale}}, quantization=f.quark("int8") | {
        "global_quant_config": {"weight": {"dtype": "int8", "qscheme": "per_channel", "group_size": None}}})
    harness.succeed(tessera, ["convert", src, "-o", tmp_path / "dst", "--to", "bf16", "--dtype", "f32"])
    assert np.array_equal(load(tmp_path / "dst")[X + ".weight"], codes * scale[:, None])


def test_w4afp8_of_sglang(tmp_path, tessera):
    """int4 experts occur with block FP8 with F32 scales, which the method implies."""
    modules = [f.int4_sglang(EXPERT), f.fp8_block(L + "self_attn.o_proj", cols=384, suffix=".weight_scale_inv", dtype="F32")]
    src = write(tmp_path / "src", *modules)
    dst, got = decoded(tmp_path, tessera, src)
    for module in modules:
        expect(got, module)
    assert not any(name.endswith("input_scale") for name in got)
    harness.succeed(tessera, ["verify", dst, "--against", src])
    harness.succeed(tessera, ["convert", src, "-o", tmp_path / "int4", "--to", "w4afp8", "--quiet"])
    harness.succeed(tessera, ["verify", tmp_path / "int4", "--against", src])


def test_mixed_config_groups(tmp_path, tessera):
    modules = [f.nvfp4(L + "mlp.up_proj", "ct"), f.mxfp8(L + "mlp.down_proj"), f.int_packed(L + "mlp.gate_proj")]
    groups = [m.config["config_groups"]["group_0"] for m in modules]
    src = write(tmp_path / "src", *modules, config=f.compressed("mixed-precision", *groups))
    got = decoded(tmp_path, tessera, src)[1]
    for module in modules:
        expect(got, module)


def test_config_in_text_config(tmp_path, tessera):
    """Kimi K3 has its quantization_config in text_config, Kimi K2.5 there and at the top. Both are removed."""
    module = f.mxfp4(X, config=CT_MXFP4)
    for name, top in (("k3", None), ("k25", CT_MXFP4)):
        (tmp_path / name).mkdir()
        src = write(tmp_path / name / "src", module, config=top, text_config={"hidden_size": 64, "quantization_config": CT_MXFP4})
        dst, got = decoded(tmp_path / name, tessera, src)
        expect(got, module)
        assert json.loads((dst / "config.json").read_text())["text_config"] == {"hidden_size": 64}


def test_without_config_the_tensors_say_enough(tmp_path, tessera):
    """Tensors suffice without a configuration, except for GPTQ, whose zero points have two meanings, and blocks, whose size
    is never guessed."""
    for number, name in enumerate(("mxfp4-v4", "nvfp4-ct", "nvfp4-modelopt", "mxfp8-ct", "mxfp4-gptoss", "awq")):
        (tmp_path / str(number)).mkdir()
        src = write(tmp_path / str(number) / "src", KINDS[name][1], config=None)
        expect(decoded(tmp_path / str(number), tessera, src)[1], KINDS[name][1])


def side_file(src, algorithm, **more):
    quantization = {"quant_algo": algorithm, "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": [], **more}
    (src / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": quantization}))


def test_hf_quant_config_alone_or_beside(tmp_path, tessera, refuse):
    module = KINDS["nvfp4-modelopt"][1]
    src = write(tmp_path / "src", module, config=None)
    side_file(src, "NVFP4")
    (src / "tokenizer.json").write_text("{}")
    dst, got = decoded(tmp_path, tessera, src)
    expect(got, module)
    assert not (dst / "hf_quant_config.json").exists() and (dst / "tokenizer.json").exists()
    both = write(tmp_path / "both", module)
    side_file(both, "W4A16_NVFP4")
    refuse(both, 3, "config.json says", "NVFP4", "hf_quant_config.json says", "correct the wrong one")
    mixed = write(tmp_path / "mixed", module, f.mxfp8(L + "mlp.up_proj"), config=None)
    side_file(mixed, "MIXED_PRECISION", quantized_layers={L + "mlp.down_proj": {"quant_algo": "NVFP4"},
                                                         L + "mlp.up_proj": {"quant_algo": "MXFP8"}})
    (tmp_path / "m").mkdir()
    expect(decoded(tmp_path / "m", tessera, mixed)[1], module)
    side_file(mixed, "MIXED_PRECISION", quantized_layers={L + "mlp.down_proj": {"quant_algo": "NVFP4"}, L + "mlp.up_proj": {"quant_algo": "NVFP3"}})
    refuse(mixed, 3, "hf_quant_config.json: quantization.quantized_layers", '"NVFP3"', L + "mlp.up_proj")


def test_scales_of_the_cache(tmp_path, tessera):
    """Scales of keys and values are dropped, because vLLM rejects them in an unquantized model."""
    names = [L + "self_attn." + n for n in ("k_scale", "v_scale", "q_scale", "prob_scale", "k_proj.k_scale", "v_proj.v_scale")]
    plain = {n: ("BF16", [1], b"\x80\x3f") for n in names}
    src = write(tmp_path / "src", KINDS["nvfp4-modelopt"][1], plain=plain.items())
    got = decoded(tmp_path, tessera, src)[1]
    kept = {n: t for n, t in plain.items() if n.endswith(("q_scale", "prob_scale"))}
    assert {n: (t[0], list(t[1]), t[2]) for n, t in got.items() if n in plain} == kept and len(kept) == 2
    code, out, _ = harness.run(tessera, ["convert", src, "-o", tmp_path / "dry", "--to", "bf16", "--dry-run"])
    assert code == 0 and "a scale of the KV cache, which loaders refuse in an unquantized model" in out, out


# ---- refusals ----


def changed(module, **tensors):
    """Returns the module with some of its tensors replaced or, with None, removed. They are named by the end of their names."""
    entries = dict(module.tensors)
    for suffix, value in tensors.items():
        (name,) = [n for n in entries if n.endswith(suffix)]
        if value is None:
            del entries[name]
        else:
            entries[name] = value
    return module._replace(tensors=entries)


def poked(module, suffix, byte, at=0):
    """Changes one byte of a tensor."""
    (name,) = [n for n in module.tensors if n.endswith(suffix)]
    dtype, shape, data = module.tensors[name]
    return module._replace(tensors={**module.tensors, name: (dtype, shape, data[:at] + bytes([byte]) + data[at + 1:])})


def raw(dtype, *shape, fill=0x38, width=1):
    return dtype, list(shape), bytes([fill]) * int(np.prod(shape) * width)


MX, NV, NV2, M8 = (KINDS[n][1] for n in ("mxfp4-ct", "nvfp4-ct", "nvfp4-modelopt", "mxfp8-ct"))
SIX, SIX_QUARK, QUARK_FOUR = (KINDS[n][1] for n in ("mxfp6-ct", "mxfp6-e3m2-quark", "mxfp4-modelopt"))
INT4_SGLANG = KINDS["int4-sglang"][1]
OSS, AWQ, GPTQ = (KINDS[n][1] for n in ("mxfp4-gptoss", "awq", "gptq"))

# name: (module, words)
BROKEN = {
    "groups of 16 under MXFP4": (changed(MX, weight_scale=raw("U8", 24, 6)), ["weight_scale", "[24, 6]", "32", "[.., 24, 3]"]),
    "groups of 32 under NVFP4": (changed(NV, weight_scale=raw("F8_E4M3", 24, 3)), ["weight_scale", "[24, 3]", "16"]),
    "one scale a row": (changed(MX, weight_scale=raw("U8", 24, 1)), ["weight_scale", "[24, 1]"]),
    "another number of rows": (changed(NV2, weight_scale=raw("F8_E4M3", 25, 6)), ["weight_scale", "[25, 6]"]),
    "columns that are no whole groups": (
        changed(MX, weight_packed=raw("U8", 24, 40), weight_scale=raw("U8", 24, 3)), ["weight_packed", "[24, 40]"]),
    "MXFP8 of another ratio": (changed(M8, weight_scale=raw("U8", 24, 4)), ["weight_scale", "[24, 4]"]),
    "blocks of gpt-oss of another width": (changed(OSS, _blocks=raw("U8", 2, 64, 6, 8)), ["_blocks", "[2, 64, 6, 8]"]),
    "NVFP4 without its global": (changed(NV, weight_global_scale=None), ["weight_packed", "weight_global_scale"]),
    "NVFP4 of ModelOpt without its global": (changed(NV2, weight_scale_2=None), [X + ".weight", "weight_scale_2"]),
    "a global for each of two": (changed(NV, weight_global_scale=raw("F32", 2, width=4)), ["weight_global_scale", "[2]"]),
    "a global of BF16": (changed(NV, weight_global_scale=raw("BF16", 1, width=2)), ["weight_global_scale", "BF16"]),
    "a global that is NaN": (poked(poked(NV, "weight_global_scale", 0x7F, 3), "weight_global_scale", 0xC0, 2), ["its global scale is", "nan"]),
    "a global that is negative": (poked(NV, "weight_global_scale", 0xC0, 3), ["its global scale is", "-"]),
    "E8M0 255": (poked(MX, "weight_scale", 255, 7), ["weight_scale", "[2, 1]", "NaN"]),
    "E8M0 255 in MXFP8": (poked(M8, "weight_scale", 255), ["weight_scale", "[0, 0]", "NaN"]),
    "E8M0 255 in gpt-oss": (poked(OSS, "_scales", 255, 64 * 3 + 4), ["_scales", "[65, 1]", "NaN"]),
    "E8M0 255 in MXFP6": (poked(SIX, "weight_scale", 255, 7), ["weight_scale", "[2, 1]", "NaN"]),
    "MXFP6 beyond BF16": (poked(poked(SIX_QUARK, "weight_scale", 254), X + ".weight", 0x1F), [X + ".weight", "[0, 0]", "range"]),
    "scales of MXFP6 for 16 columns": (changed(SIX, weight_scale=raw("U8", 24, 6)), ["weight_scale", "[24, 6]", "MXFP6", "[.., 24, 3]"]),
    "MXFP6 with another number of rows": (changed(SIX, weight_scale=raw("U8", 25, 3)), ["weight_scale", "[25, 3]", "MXFP6"]),
    "MXFP6 of rows that are no whole groups": (
        changed(SIX, weight_packed=raw("U8", 24, 75)), ["weight_packed", "[24, 75]", "MXFP6"]),
    "int4 of SGLang with zero points": (INT4_SGLANG._replace(tensors={
        **INT4_SGLANG.tensors, EXPERT + ".weight_zero_point": raw("I8", 24, 2)}), [EXPERT + ".weight", "no '" + EXPERT + ".weight_zero_point'"]),
    "int4 of SGLang with rows that are no words": (changed(INT4_SGLANG, weight=raw("I8", 24, 130)), [EXPERT + ".weight", "130 bytes"]),
    "int4 of SGLang with a scale that is NaN": (
        poked(poked(INT4_SGLANG, "weight_scale_inv", 0xC0, 14), "weight_scale_inv", 0x7F, 15), ["weight_scale_inv", "[1, 1]", "nan"]),
    "a scale that is NaN": (poked(NV, "weight_scale", 0x7F), ["weight_scale", "[0, 0]", "NaN"]),
    "a code that is NaN": (poked(M8, "weight", 0x7F, 97), [X + ".weight", "[1, 1]", "NaN"]),
    "a value beyond BF16": (poked(poked(MX, "weight_scale", 254), "weight_packed", 0x77), ["weight_packed", "[0, 0]", "range"]),
    "two scales": (f.mxfp4(X, names=(".weight", ".scale"))._replace(config=None), []),
    "AWQ without zero points": (changed(AWQ, qzeros=None), ["qweight", "qzeros"]),
    "AWQ whose scales are of another width": (changed(AWQ, scales=raw("F16", 5, 80, width=2)), ["qweight", "scales [5, 80]"]),
    "GPTQ of 3 bits": (changed(GPTQ, qzeros=raw("I32", 5, 7, width=4)), ["qweight", "3 bits"]),
    "GPTQ with a group that is not there": (poked(GPTQ, "g_idx", 5), ["g_idx", "input 0", "group 5 of 5"]),
    "GPTQ with a negative group": (poked(GPTQ, "g_idx", 0x80, 7), ["g_idx", "input 1"]),
    "GPTQ with a short g_idx": (changed(GPTQ, g_idx=raw("I32", 100, width=4, fill=0)), ["g_idx", "160"]),
    "AWQ with a scale that is NaN": (poked(poked(AWQ, "scales", 0x7E, 3), "scales", 0xFF, 2), ["scales", "[0, 1]", "nan"]),
    "NVFP4_AWQ": (NV2._replace(tensors={**NV2.tensors, X + ".pre_quant_scale": raw("BF16", 96, width=2)}), ["pre_quant_scale", "NVFP4_AWQ"]),
}
twice = BROKEN["two scales"][0]
BROKEN["two scales"] = (twice._replace(tensors={**twice.tensors, X + ".weight_scale": raw("U8", 24, 3)}), ["two scales"])


@pytest.mark.parametrize("name", BROKEN)
def test_broken_tensors_are_refused_by_name(tmp_path, tessera, refuse, name):
    module, words = BROKEN[name]
    refuse(write(tmp_path / "src", module), 3, *words)


CONTRADICTIONS = {
    "NVFP4 by config": (MX, NV.config, ["weight_packed", "MXFP4", "1x16"]),
    "MXFP4 by config": (NV, MX.config, ["weight_packed", "NVFP4", "1x32"]),
    "NVFP4 by ModelOpt's name": (M8, f.MODELOPT, [X + ".weight", "MXFP8"]),
    "MXFP6 without a configuration": (SIX, None, ["weight_packed", "MXFP6", "element"]),
    "MXFP4 of Quark with a dtype of another packing": (QUARK_FOUR, f.quark("int4"), ['weight.dtype of Quark: "int4"']),
    "MXFP4 of Quark with a layer of such a dtype": (QUARK_FOUR, by_layer("fp4", ("*.attn.*", "uint4")), ['weight.dtype of Quark: "uint4"']),
    "MXFP4 of Quark with two dtypes for a weight": (QUARK_FOUR, {"quant_method": "quark", "global_quant_config": {"weight": [{"dtype": "fp4"}]}},
                                                    ["weight.dtype of Quark: [{"]),
    "MXFP4 of Quark by int8": (QUARK_FOUR, f.quark("int8"), [X + ".weight", "MXFP4"]),
    "MXFP6 of no dtype": (SIX_QUARK, f.QUARK, [X + ".weight", "MXFP6", "fp6_e2m3 or fp6_e3m2"]),
    "MXFP6 of two elements, by patterns that disagree": (SIX_QUARK, by_layer("fp6_e2m3", ("*.mlp.*", "fp6_e3m2"), ("*down_proj", "fp6_e2m3")),
                                                         [X + ".weight", "both fp6_e2m3 and fp6_e3m2", "layer_quant_config"]),
    "MXFP6 of two elements, and of four bits": (SIX_QUARK, by_layer("fp6_e2m3", ("*.attn.*", "fp6_e3m2"), (X, "fp4")),
                                                [X + ".weight", "both fp6_e2m3 and fp6_e3m2"]),
    "MXFP6 of two elements, by a name with an escape": (SIX_QUARK, by_layer("fp6_e2m3", ("*.a\\b", "fp6_e3m2")),
                                                        [X + ".weight", "both fp6_e2m3 and fp6_e3m2"]),
    "MXFP6 of two elements, by type of layer": (SIX_QUARK, {**f.quark("fp6_e2m3"), "layer_type_quant_config": {
        "Linear": f.quark("fp6_e3m2")["global_quant_config"]}}, [X + ".weight", "both fp6_e2m3 and fp6_e3m2"]),
    "MXFP6 e3m2 under compressed-tensors' names": (SIX, f.quark("fp6_e3m2"), ["weight_packed", "e2m3", "fp6_e3m2"]),
    "MXFP6 in groups of 16 by config": (SIX, f.compressed("mxfp6-pack-quantized", f.group(6, 16)), ["weight_packed", "1x16"]),
    "MXFP4 by MXFP6's config": (MX, SIX.config, ["weight_scale", "MXFP6"]),
    "int4 of SGLang without a configuration": (INT4_SGLANG, None, [EXPERT + ".weight", "does not state that quant_method"]),
    "int4 of SGLang by fp8": (INT4_SGLANG, DEEPSEEK, [EXPERT + ".weight", "w4afp8"]),
    "int4 of SGLang in groups of 64 by config": (INT4_SGLANG, {**f.W4AFP8, "group_size": 64}, [EXPERT + ".weight", "no integer coding"]),
    "another group size": (AWQ, {**f.AWQ, "group_size": 64}, ["qweight", "1x64"]),
    "activation order without the order": (f.gptq(X, order=True, index=False), f.gptq(X, order=True).config, ["qweight", "desc_act true", X + ".g_idx"]),
    "zero points that are lost": (f.int_packed(X), f.int_packed(X, zeros=True).config, ["weight_packed", "symmetric false", X + ".weight_zero_point"]),
    "GPTQ's second version by the first": (f.gptq(X, version=2, zeros="middle"), f.gptq(X, zeros="middle").config,
                                           ["qzeros", "zero point 8", "checkpoint_format gptq_v2"]),
    "GPTQ's first version by the second": (f.gptq(X, bits=8, zeros="middle"), f.gptq(X, bits=8, version=2, zeros="middle").config,
                                           ["qzeros", "zero point 127", "checkpoint_format gptq,"]),
    "GPTQ that is not symmetric": (f.gptq(X, zeros="fitting"), f.gptq(X, zeros="middle").config, ["qzeros", "sym true", "sym false"]),
    "8 bits by config": (GPTQ, {**f.GPTQ, "bits": 8}, ["qweight"]),
    "integers by config": (NV, KINDS["awq"][1].config, ["weight_packed", "integers"]),
    "FP8 by AWQ's configuration": (KINDS["fp8-block of V4"][1], f.AWQ, ["wq_a.weight", "FP8", "'awq'"]),
    "GPTQ by fp8": (GPTQ, DEEPSEEK, ["qweight", "GPTQ"]),
    "AWQ of another layout": (AWQ, {**f.AWQ, "version": "gemv"}, ["gemv"]),
    "AWQ of another layout by GPTQModel": (AWQ, {**f.AWQ, "version": None, "checkpoint_format": "gemv_fast"}, ["checkpoint_format", "gemv_fast"]),
    "GPTQ of another format": (GPTQ, {**f.GPTQ, "checkpoint_format": "marlin"}, ["marlin"]),
    "GPTQ of 3 bits by config": (GPTQ, {**f.GPTQ, "bits": 3}, ["bits is 3"]),
    "AWQ of 8 bits by config": (AWQ, {**f.AWQ, "bits": 8}, ["bits"]),
    "an unsupported algorithm": (NV2, {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, ["W4A8_AWQ"]),
    "rotated weights": (NV, {**NV.config, "transform_config": {"config_groups": {"R1": {"type": "hadamard"}}}}, ["transform_config"]),
    "sparse weights": (NV, {**NV.config, "sparsity_config": {"format": "sparse-24-bitmask"}}, ["sparsity_config", "sparse-24-bitmask"]),
    "sparse weights of no format": (NV, {**NV.config, "sparsity_config": {"sparsity_structure": "2:4"}}, ["sparsity_config", "no format"]),
    "sparse weights in one word": (NV, {**NV.config, "sparsity_config": "sparse-bitmask"}, ["sparsity_config"]),
    "fp8 experts by config": (KINDS["mxfp4-v4"][1], {**f.V4, "expert_dtype": "fp8"}, ["w1.weight", "expert_dtype fp8"]),
    "fp4 experts by config": (KINDS["fp8-block of V4-Base"][1], {**f.V4, "expert_dtype": "fp4"}, ["w1.weight", "expert_dtype fp4"]),
    "experts of no dtype": (KINDS["mxfp4-v4"][1], {**f.V4, "expert_dtype": "int3"}, ["expert_dtype", "int3"]),
    "another packing of auto-round": (auto_round(GPTQ, "auto_round:exllamav2"), auto_round(GPTQ, "auto_round:exllamav2").config,
                                      ["auto_round:exllamav2", "packing_format"]),
    "3 bits by auto-round": (GPTQ, {**auto_round(GPTQ).config, "bits": 3}, ["bits is 3"]),
    "AWQ by auto-round": (GPTQ, auto_round(GPTQ, "auto_round:auto_awq").config, ["qweight"]),
    "no configuration of GPTQ": (GPTQ, None, ["qweight", "z - 1"]),
    "a block of three numbers": (KINDS["fp8-block of V4.1"][1], {**f.V4, "weight_block_size": [32, 32, 32]}, ["weight_block_size is not two integers"]),
    "another block by config": (KINDS["fp8-block of V4.1"][1], f.V4, ["wq_a.scale", "2 x 3"]),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_config_that_says_otherwise_is_refused(tmp_path, tessera, refuse, name):
    module, config, words = CONTRADICTIONS[name]
    refuse(write(tmp_path / "src", module, config=config), 3, *words)


# ---- what other commands do ----

UNABLE = {
    "quantize": "quantize SRC -o DST",
    "tp": "convert SRC -o DST --to tp --tp 2",
    "deepseek-mp": "convert SRC -o DST --to deepseek-mp --mp 1",
    "mla-absorbed": "convert SRC -o DST --to mla-absorbed --consumer sglang",
    "fastertransformer": "convert SRC -o DST --to fastertransformer --arch sm80",
    "trtllm": "convert SRC -o DST --to trtllm --arch sm80",
    "compare-schemes": "compare-schemes SRC --quiet",
    "plan-schemes": "plan-schemes SRC --bits 8 --quiet",
}


@pytest.mark.parametrize("name", ["mxfp4-ct", "mxfp6-ct", "mxfp6-e3m2-quark", "int4-sglang", "mxfp4-v4", "mxfp4-gptoss", "nvfp4-modelopt", "mxfp8-ct", "awq", "gptq"])
def test_commands_that_cannot_name_it(tmp_path, tessera, name):
    module = KINDS[name][1]
    src = write(tmp_path / "src", module, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, hidden_size=64,
                qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, kv_lora_rank=16)
    for command in UNABLE.values():
        places = {"SRC": src, "DST": tmp_path / "dst"}
        code, out, err = harness.run(tessera, [places.get(word, word) for word in command.split()])
        assert code == 3 and ("quantiz" in err or next(iter(module.tensors)) in err), f"{command}: exit {code}\n{out}{err}"
        assert not list((tmp_path / "dst").rglob("*.safetensors*")), command


@pytest.mark.parametrize("name", KINDS)
def test_an_archive_keeps_it(tmp_path, tessera, name):
    src = write(tmp_path / "src", KINDS[name][1])
    packed = tmp_path / "packed"
    harness.succeed(tessera, ["convert", src, "-o", packed, "--to", "archive", "--quiet"])
    expect(decoded(tmp_path, tessera, packed)[1], KINDS[name][1])


@pytest.mark.parametrize("shape", [(1,), (24,), (24, 1)])
def test_fp8_of_auto_round(shape, tmp_path, tessera):
    """Tests a scale per tensor or row in the model's dtype (auto_round/export/export_to_autoround/export_to_fp8.py)."""
    rng = np.random.default_rng(3)
    codes = rng.normal(0, 60, (24, 96)).astype(f.E4M3)
    scales = rng.uniform(0.01, 0.1, shape).astype(f.BF16)
    config = {"quant_method": "auto-round", "data_type": "fp8", "bits": 8, "group_size": -1 if shape != (1,) else 0, "sym": True,
              "packing_format": "auto_round:fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    module = f.Module(X + ".weight", {X + ".weight": f.entry("F8_E4M3", codes), X + ".weight_scale": f.entry("BF16", scales)},
                      codes.astype(np.float32) * scales.astype(np.float32).reshape(-1, 1), config)
    expect(decoded(tmp_path, tessera, write(tmp_path / "src", module))[1], module)
