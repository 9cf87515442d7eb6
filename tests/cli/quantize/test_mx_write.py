"""Tests quantization to NVFP4, MXFP4 and MXFP8: bytes against mx_oracle.py, configuration against llm-compressor and ModelOpt."""

import json
import re

from checkpoints import BF16, REPORT, load, random_weight, save
import harness
import mx_oracle as mx
import numpy as np
import pytest

SCHEMES = sorted({scheme for scheme, _ in mx.PAIRS})
DIALECTS = ("compressed-tensors", "modelopt", "deepseek")
SOURCES = {"bf16": BF16, "f16": np.float16, "f32": np.float32}


def ranges_of(weights):
    """Returns ranges of each layer's input, which differ for members of a fused layer."""
    return {module: (-1.5 - i, 2.25 + i % 3) for i, module in enumerate(weights)}


@pytest.fixture
def made(quantize, tmp_path):
    """Returns made(scheme, dialect, *options, weights=...) -> the output of a successful run."""
    def run(src, weights, scheme, dialect, *options):
        if scheme == "nvfp4":
            path = harness.write_json(tmp_path / "ranges.json", {m: {"min": low, "max": high} for m, (low, high) in ranges_of(weights).items()})
            options += ("--activations", path)
        return quantize(src, "--scheme", scheme, "--dialect", dialect, *options)
    return run


def assert_bytes(dst, weights, wanted):
    got = load(dst)
    kept = {name for name in got if not any(name.startswith(module + ".") for module in weights)}
    assert set(got) == kept | set(wanted) and kept == {f"{module}.weight" for module in mx.KEPT}
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype and got[name].shape == array.shape, name
        a, b = (np.ascontiguousarray(x).view(np.uint8).reshape(-1) for x in (got[name], array))
        assert np.array_equal(a, b), f"{name}: {np.flatnonzero(a != b)[:5]} of {a.size}"


# ---- every byte ----

@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("scheme, dialect", mx.PAIRS)
def test_bytes(scheme, dialect, source, made, tmp_path):
    src, weights = mx.model(tmp_path / "src", SOURCES[source])
    assert_bytes(made(src, weights, scheme, dialect), weights,
                 mx.expected(weights, scheme, dialect, ranges=ranges_of(weights)))


@pytest.mark.parametrize("rule", mx.RULES)
@pytest.mark.parametrize("scheme, dialect", [pair for pair in mx.PAIRS if pair[0].startswith("mxfp")])
def test_rules(scheme, dialect, rule, made, tmp_path):
    src, weights = mx.model(tmp_path / "src")
    dst = made(src, weights, scheme, dialect, "--mx-scale", rule)
    assert_bytes(dst, weights, mx.expected(weights, scheme, dialect, rule))
    assert json.loads((dst / REPORT).read_text())["scale_rule"] == rule


@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt"])
@pytest.mark.parametrize("scheme", ["nvfp4", "nvfp4-weight-only"])
def test_experts_share_a_global_scale(scheme, dialect, made, tmp_path):
    """w1 and w3 of an expert share a scale, but not its w2 or another expert. Members are in different files."""
    src, weights = mx.model(tmp_path / "src", modules=mx.MIXTRAL, kind="mixtral", files=3)
    dst = made(src, weights, scheme, dialect, "--max-shard-size", "20kB")
    assert len(list(dst.glob("*.safetensors"))) > 2
    wanted = mx.expected(weights, scheme, dialect, ranges=ranges_of(weights))
    assert_bytes(dst, weights, wanted)
    total = mx.names(scheme, dialect)[2]
    values = [float(wanted[f"model.layers.0.block_sparse_moe.experts.{e}.{w}{total}"].reshape(()))
              for e in range(2) for w in ("w1", "w3", "w2")]
    assert values[0] == values[1] and values[3] == values[4] and len(set(values)) == 4


def test_members_of_different_dtypes(made, tmp_path):
    """The members share one global scale."""
    gate, up = "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"
    weights = {gate: random_weight((32, 64), 4).astype(BF16), up: random_weight((32, 64), 5)}
    src = save(tmp_path / "src", {f"{module}.weight": w for module, w in weights.items()})
    for scheme, dialect in mx.PAIRS[:2]:
        out = load(made(src, weights, scheme, dialect))
        for ending in mx.names(scheme, dialect)[2:]:
            assert out[gate + ending].tobytes() == out[up + ending].tobytes(), ending


def test_units_and_threads(made, tmp_path):
    """Tensors have several units and rows longer than a unit. The bytes do not depend on the number of threads."""
    wide, tall = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.gate_proj"
    weights = {wide: random_weight((3, 2_200_000), 1).astype(BF16), tall: random_weight((12_000, 512), 2).astype(BF16)}
    weights[tall][9_999, 500] = 3.5
    src = save(tmp_path / "src", {f"{module}.weight": w for module, w in weights.items()})
    outs = [load(made(src, weights, "nvfp4-weight-only", "compressed-tensors", "--threads", str(n))) for n in (1, 2, 7)]
    wanted = mx.expected(weights, "nvfp4-weight-only", "compressed-tensors")
    for out in outs:
        assert all(out[name].tobytes() == array.tobytes() for name, array in wanted.items())


@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt"])
def test_all_zeros(dialect, made, tmp_path):
    """A tensor of zeros, alone or fused with a nonzero one, gets a scale that is not zero."""
    names = [f"model.layers.0.{n}" for n in ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj")]
    weights = {name: np.zeros((32, 64), BF16) for name in names}
    weights[names[2]] = random_weight((32, 64), 3).astype(BF16)
    src = save(tmp_path / "src", {f"{module}.weight": w for module, w in weights.items()})
    out = load(made(src, weights, "nvfp4-weight-only", dialect))
    for name, array in mx.expected(weights, "nvfp4-weight-only", dialect).items():
        assert out[name].tobytes() == array.tobytes(), name
    for name in names[:2]:
        assert not mx.decoded(out, name, "nvfp4", dialect).any()


@pytest.mark.parametrize("scheme, dialect", mx.PAIRS)
def test_least_squared_error(scheme, dialect, made, tmp_path):
    """--scales mse has a smaller error in every tensor. The report has the error of the decoded values."""
    src, weights = mx.model(tmp_path / "src")
    error = {}
    for scales in ("amax", "mse"):
        dst = made(src, weights, scheme, dialect, "--scales", scales)
        out, report = load(dst), json.loads((dst / REPORT).read_text())
        error[scales] = {m: ((mx.decoded(out, m, scheme, dialect) - w.astype(np.float64)) ** 2).sum()
                         for m, w in weights.items()}
        for row in report["tensors"]:
            module = row["name"].removesuffix(".weight")
            lost = np.sqrt(error[scales][module] / (weights[module].astype(np.float64) ** 2).sum())
            assert row["relative_error"] == pytest.approx(lost, rel=1e-4), module
    assert all(error["mse"][m] <= error["amax"][m] * (1 + 1e-9) for m in weights)
    if mx.DEFAULT_RULE[dialect] == "even" or scheme.startswith("nvfp4"):  # 8 bits without clipping leave nothing to gain
        assert sum(error["mse"].values()) < sum(error["amax"].values())


@pytest.mark.parametrize("scheme, dialect", mx.PAIRS)
def test_read_back(scheme, dialect, made, convert, tessera, tmp_path):
    """All commands recognize the format and read the values of the definition in BF16."""
    src, weights = mx.model(tmp_path / "src")
    dst = made(src, weights, scheme, dialect)
    values, coded = load(convert(dst, "--to", "bf16")), load(dst)
    for module in weights:
        wanted = mx.decoded(coded, module, scheme, dialect).astype(np.float32).astype(BF16)
        assert np.array_equal(values[f"{module}.weight"].astype(np.float32), wanted.astype(np.float32)), module
    for command, exit_code in ((["inspect", dst], 0), (["diff", src, dst], 1), (["verify", dst, "--against", src], 0)):
        harness.expect(tessera, command, exit_code)


# ---- configuration ----

def ct_arguments(scheme, inputs=False):
    fp4, nv = scheme.startswith(("nvfp4", "mxfp4")), scheme.startswith("nvfp4")
    return {"actorder": None, "block_structure": None, "dynamic": ("local" if nv else True) if inputs else False,
            "group_size": 16 if nv else 32, "num_bits": 4 if fp4 else 8,
            "observer": "static_minmax" if inputs and nv else None, "observer_kwargs": {},
            "scale_dtype": "torch.float8_e4m3fn" if nv else "torch.uint8",
            "strategy": "tensor_group" if nv else "group", "symmetric": True, "type": "float", "zp_dtype": None}


def ct_config(scheme, ignore):
    form = {"nvfp4": "nvfp4-pack-quantized", "mxfp4": "mxfp4-pack-quantized", "mxfp8": "mxfp8-quantized"}[scheme[:5]]
    weight_only = scheme.endswith("weight-only")
    group = {"format": form, "targets": ["Linear"], "weights": ct_arguments(scheme),
             "input_activations": None if weight_only else ct_arguments(scheme, True), "output_activations": None}
    return {"config_groups": {"group_0": group}, "format": form, "global_compression_ratio": None, "ignore": ignore,
            "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "compressed",
            "sparsity_config": {}, "transform_config": {}, "version": "0.19.0"}


def modelopt_config(scheme, ignore, version):
    bits, size = (4, 16) if scheme.startswith("nvfp4") else (8, 32)
    one = {"dynamic": False, "num_bits": bits, "type": "float", "group_size": size}
    group = {"weights": one, "targets": ["Linear"]}
    if not scheme.endswith("weight-only"):
        group["input_activations"] = one
    algo = {"nvfp4": "NVFP4", "nvfp4-weight-only": "W4A16_NVFP4", "mxfp8": "MXFP8"}[scheme]
    producer = {"name": "modelopt", "version": version}
    return ({"config_groups": {"group_0": group}, "ignore": ignore, "quant_algo": algo, "producer": producer,
             "quant_method": "modelopt"},
            {"producer": producer, "quantization": {"quant_algo": algo, "kv_cache_quant_algo": None, "group_size": size,
                                                    "exclude_modules": ignore}})


@pytest.mark.parametrize("scheme, dialect", mx.PAIRS)
def test_config(scheme, dialect, made, tmp_path):
    src, weights = mx.model(tmp_path / "src")
    dst = made(src, weights, scheme, dialect)
    config, beside = json.loads((dst / "config.json").read_text()), dst / "hf_quant_config.json"
    got = config.pop("quantization_config")
    assert config == json.loads((src / "config.json").read_text())
    if dialect == "compressed-tensors":
        assert got == ct_config(scheme, ["lm_head"])
    elif dialect == "deepseek":
        assert got == {"quant_method": "mxfp8", "fmt": "e4m3", "activation_scheme": "dynamic", "scale_fmt": "ue8m0",
                       "weight_block_size": [1, 32], "ignored_layers": ["lm_head"]}
    else:
        assert re.match(r"\d+\.\d+\.\d+\+tessera\.", got["producer"]["version"])
        assert (got, json.loads(beside.read_text())) == modelopt_config(scheme, ["lm_head"], got["producer"]["version"])
    assert beside.exists() == (dialect == "modelopt")


@pytest.mark.parametrize("head", ["model.embed_tokens", "lm_head", "language_model.lm_head"])
def test_modelopt_lists_the_head(head, made, tmp_path):
    """A tied head has no tensor. vLLM builds a quantized head unless the list names it."""
    module = "model.layers.0.mlp.down_proj"
    weights = {module: random_weight((64, 64)).astype(BF16)}
    src = save(tmp_path / "src", {f"{module}.weight": weights[module], f"{head}.weight": random_weight((8, 64)).astype(BF16)},
               {"model_type": "llama"})
    dst = made(src, weights, "nvfp4-weight-only", "modelopt")
    config = json.loads((dst / "config.json").read_text())["quantization_config"]
    side = json.loads((dst / "hf_quant_config.json").read_text())["quantization"]
    assert config["ignore"].count("lm_head") == side["exclude_modules"].count("lm_head") == 1


def test_modelopt_does_not_list_a_quantized_head(made, tmp_path, quantize):
    weights = {f"model.layers.0.mlp.{leaf}_proj": random_weight((64, 64)).astype(BF16) for leaf in ("gate", "up", "down")}
    head = {"lm_head": random_weight((64, 64)).astype(BF16)}
    src = save(tmp_path / "src", {f"{m}.weight": w for m, w in {**weights, **head}.items()}, {"model_type": "llama"})
    dst = quantize(src, "--scheme", "nvfp4-weight-only", "--dialect", "modelopt", "--include", "lm_head.weight")
    assert json.loads((dst / "config.json").read_text())["quantization_config"]["ignore"] == []


def test_an_entry_that_is_a_part_of_other_names(made, tmp_path):
    """vLLM also excludes modules whose name contains an entry. So no entry may be part of the name of a quantized module."""
    shapes = {"model.layers.1.mlp.gate_proj": (32, 64), "model.layers.1.mlp.up_proj": (32, 64),
              "model.layers.1.mlp.down_proj": (64, 32), "model.layers.11.mlp.down_proj": (64, 32)}
    weights = {name: random_weight(shape, i).astype(BF16) for i, (name, shape) in enumerate(shapes.items())}
    kept = {"model.layers.1.mlp.gate": random_weight((4, 64)).astype(BF16), "lm_head": random_weight((8, 64)).astype(BF16)}
    src = save(tmp_path / "src", {f"{m}.weight": w for m, w in {**weights, **kept}.items()}, {"model_type": "qwen3_moe"})
    dst = made(src, weights, "nvfp4-weight-only", "modelopt")
    listed = json.loads((dst / "hf_quant_config.json").read_text())["quantization"]["exclude_modules"]
    assert listed == ["lm_head", "model.layers.1.mlp.gat[e]"]
    quantized = [*weights, "model.layers.1.mlp.gate_up_proj"]
    assert not any(entry in name for entry in listed for name in quantized)
    config = made(src, weights, "nvfp4-weight-only", "compressed-tensors") / "config.json"
    assert json.loads(config.read_text())["quantization_config"]["ignore"] == ["lm_head", "model.layers.1.mlp.gate"]


# ---- what is refused, and what is kept ----

@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_dialects_that_nobody_reads(scheme, dialect, tessera, tmp_path):
    src, _ = mx.model(tmp_path / "src")
    if (scheme, dialect) in mx.PAIRS:
        return
    more = ("--activations", src / "config.json") if scheme == "nvfp4" else ()
    code, _, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "d", "--scheme", scheme, "--dialect", dialect,
                                         *more])
    if (scheme, dialect) == ("mxfp4", "deepseek"):  # of DeepSeek-V4 only: test_deepseek_v4.py
        assert code == 3 and "model_type deepseek_v4" in err
        return
    assert code == 2 and f"no loader reads {scheme} in this dialect" in err
    assert all(f"--dialect {other}" in err for pair, other in mx.PAIRS if pair == scheme)
    assert "vLLM" in err and not (tmp_path / "d").exists()


@pytest.mark.parametrize("options, words", [
    (("--scheme", "nvfp4"), "--activations FILE"),
    (("--scheme", "nvfp4-weight-only", "--mx-scale", "even"), "--mx-scale cannot be combined with --scheme nvfp4-weight-only"),
    (("--scheme", "mxfp4", "--group-size", "32"), "--group-size cannot be combined"),
    (("--scheme", "mxfp4", "--mx-scale", "round"), "floor|even|rceil|ceil"),
    (("--scheme", "int4-weight-only", "--dialect", "modelopt"), "no loader reads int4-weight-only in this dialect"),
    (("--scheme", "int8-channel", "--dialect", "deepseek"), "supported: --dialect compressed-tensors"),
    (("--dialect", "modelopt"), "no loader reads fp8-block in this dialect"),
])
def test_usage(options, words, tessera, tmp_path):
    src, _ = mx.model(tmp_path / "src")
    harness.expect(tessera, ["quantize", src, "-o", tmp_path / "d", *options], 2, words)


def test_ranges(tessera, tmp_path):
    """Each quantized layer needs its range. An int8 scale is not a range."""
    src, weights = mx.model(tmp_path / "src")
    table = {m: {"min": low, "max": high} for m, (low, high) in ranges_of(weights).items()}
    for edit, word in [((), None), (("model.layers.0.mlp.up_proj", None), "no ranges for"),
                       (("model.layers.0.mlp.up_proj", {"input_scale": 0.5}), "needs the range itself")]:
        rows = dict(table)
        if edit:
            rows[edit[0]] = edit[1]
            rows = {m: row for m, row in rows.items() if row is not None}
        (tmp_path / "r.json").write_text(json.dumps(rows))
        code, _, err = harness.run(tessera, ["quantize", src, "--dry-run", "--scheme", "nvfp4", "--activations",
                                             tmp_path / "r.json"])
        assert (code, word is None or word in err) == (0 if word is None else 3, True), err


@pytest.mark.parametrize("value, word", [(np.inf, "Inf"), (np.nan, "NaN")])
@pytest.mark.parametrize("scheme", ["nvfp4-weight-only", "mxfp4", "mxfp8"])
def test_no_number(scheme, value, word, tessera, tmp_path):
    w = random_weight((64, 64)).astype(BF16)
    w[17, 33] = value
    name = "model.layers.0.mlp.up_proj.weight"
    src = save(tmp_path / "src", {name: w, "model.layers.0.mlp.gate_proj.weight": random_weight((64, 64)).astype(BF16)})
    harness.expect(tessera, ["quantize", src, "-o", tmp_path / "d", "--scheme", scheme], 3, f"'{name}': {word} at [17, 33]", "model.safetensors")
    assert not (tmp_path / "d" / "config.json").exists()


@pytest.mark.parametrize("scheme, group", [("nvfp4-weight-only", 16), ("mxfp4", 32), ("mxfp8", 32)])
def test_columns_that_are_no_whole_groups(scheme, group, quantize, tmp_path):
    """Such weights and their fused members are kept, with the reason."""
    up, gate, down = (f"model.layers.0.mlp.{n}_proj" for n in ("up", "gate", "down"))
    expert = "model.layers.1.mlp.experts.0."
    odd = 3 * group + 8
    shapes = {up: (odd, 64), gate: (odd, 64), down: (64, odd), expert + "gate_proj": (odd, 64),
              expert + "up_proj": (odd, 64), expert + "down_proj": (64, odd)}
    tensors = {f"{m}.weight": random_weight(shape).astype(BF16) for m, shape in shapes.items()}
    src = save(tmp_path / "src", tensors, {"model_type": "qwen3_moe"})
    dst = quantize(src, "--scheme", scheme)
    kept = {row["name"].removesuffix(".weight"): row["reason"] for row in json.loads((dst / REPORT).read_text())["kept"]}
    assert set(kept) == {down, expert + "gate_proj", expert + "up_proj", expert + "down_proj"}
    assert kept[down] == f"its {odd} columns are not a multiple of {group}"
    assert "are all quantized or all kept" in kept[expert + "up_proj"]
    ignore = json.loads((dst / "config.json").read_text())["quantization_config"]["ignore"]
    assert sorted(ignore) == sorted(["lm_head", *kept])


# ---- what is said ----

@pytest.mark.parametrize("scheme, dialect, bits", [
    ("nvfp4-weight-only", "modelopt", 4.5), ("mxfp4", "compressed-tensors", 4.25), ("mxfp8", "deepseek", 8.25)])
def test_report(scheme, dialect, bits, made, tmp_path):
    src, weights = mx.model(tmp_path / "src")
    report = json.loads((made(src, weights, scheme, dialect) / REPORT).read_text())
    assert (report["scheme"], report["dialect"]) == (scheme, dialect)
    assert report.get("scale_rule") == (None if scheme.startswith("nvfp4") else mx.DEFAULT_RULE[dialect])
    assert "vLLM" in report["readers"]
    assert report["whole"]["bits_per_weight"] == pytest.approx(bits, abs=0.02)
    assert f"--scheme {scheme} --dialect {dialect}" in report["command"]


def test_what_is_read_twice(tessera, tmp_path):
    src, weights = mx.model(tmp_path / "src")
    size = sum(w.nbytes for w in weights.values())
    for scheme, twice in (("nvfp4-weight-only", size), ("mxfp4", 0)):
        code, out, _ = harness.run(tessera, ["quantize", src, "--dry-run", "--scheme", scheme, "--json", "-"])
        plan = json.loads(out)
        assert code == 0 and plan["bytes_in_twice"] == twice
        code, out, _ = harness.run(tessera, ["quantize", src, "--dry-run", "--scheme", scheme])
        assert ("of it is read twice" in out) == (twice > 0) and "loaded by vLLM" in out


@pytest.mark.parametrize("json_too", [False, True])
def test_list_families(json_too, tessera):
    code, out, err = harness.run(tessera, ["quantize", "--list-families", *(("--json", "-") if json_too else ())])
    assert code == 0 and err == ""
    if not json_too:
        assert "rules for every model" in out and "kimi_k2, kimi_k25" in out and "in 4 bits" in out
        return
    tables = json.loads(out)
    families = {row["model_type"]: row for row in tables["families"]}
    attention = [rule for rule in families["deepseek_v3"]["rules_in_4_bits"] if rule["treatment"] == "keep"]
    assert [rule["pattern"] for rule in attention] == ["*.self_attn.*"]
    assert families["llama"]["rules"] == families["llama"]["rules_in_4_bits"]
    assert any(rule["pattern"] == "*.gate.*" for rule in tables["every_model"])
