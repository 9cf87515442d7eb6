"""Tests the rules of `tessera inspect --can-load`, and other findings of inspect.

Each test breaks one rule of a loader with a checkpoint made for it. The finding must name the tensor and the numbers."""

import json
import shutil

from checkpoints import KINDS
import harness
from loader_kinds import remade
from loader_models import (
    ENGINES, HF, Model, O, UP, as_compressed, both, compressed, deepseek, edit, hold_to_rule, in_full, llama, load_table,
    unquantize,
)
import numpy as np
import pytest

KEYS = "model.layers.0.self_attn.k_scale"

# ---- sound models ----


def test_sound_models_load(inspect, tmp_path):
    got = load_table(inspect, llama(), tmp_path, "1,2,4")
    for loader in ENGINES:
        assert got["can_load"][loader] == {"1": True, "2": True, "4": False}
    assert got["can_load"]["transformers"] == {"1": True, "2": True, "4": True}
    assert all(f["rule"] in ("heads", "blocks") for f in got["load_findings"] if f["loader"] in ENGINES)


def test_a_sound_deepseek_loads(inspect, tmp_path):
    m = deepseek()
    m.drop("e_score_correction_bias")  # which DeepSeek's own model has at its own width only
    got = load_table(inspect, m, tmp_path, "1,2,4")
    for loader in (*ENGINES, "deepseek"):
        assert got["can_load"][loader]["1"] and not got["can_load"][loader]["4"], got["load_findings"]
    assert got["can_load"]["deepseek"]["2"]


def test_a_plain_model_of_an_unknown_family_is_announced(checkpoint, inspect, tmp_path):
    """Findings include the warnings of quantize, because --can-load judges its output."""
    model = tmp_path / "model"
    shutil.copytree(checkpoint("llama"), model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "xyz"}))
    _, got = inspect(model, "--can-load", "vllm", "--tp", "1")
    assert got["can_load"]["vllm"]["1"]
    assert [(f["severity"], f["loader"], f["rule"]) for f in got["load_findings"]] == [("warning", None, "plan")], got["load_findings"]
    assert "unknown model_type 'xyz': general rules" in got["load_findings"][0]["detail"]


# ---- every rule, broken once ----


def all_scales(change):
    def act(m):
        for name in [name for name in m.tensors if name.endswith("_scale_inv")]:
            change(m, name)

    return act


def exponents(m, name):
    _, shape, _ = m.tensors[name]
    m.tensors[name] = ("F8_E8M0", shape, bytes([120]) * int(np.prod(shape)))


def thirds(m, name):
    m.scale(name, np.full(m.tensors[name][1], 1 / 3))


def stack(m):
    shape = (4, 256, 256)
    for layer in range(2):
        for leaf in ("gate_up_proj", "down_proj"):
            m.tensors[f"model.layers.{layer}.mlp.experts.{leaf}"] = ("BF16", shape, bytes(2 * 4 * 256 * 256))


def of_family(m, family):
    m.config["model_type"] = family
    return m


def narrow(hidden):
    """Makes Qwen3-MoE with another width and experts of one and a half blocks for each of two ranks."""
    m = of_family(llama(experts=2), "qwen3_moe")
    m.config["hidden_size"] = hidden
    for layer in range(2):
        for leaf in "qkvo":
            m.linear(f"model.layers.{layer}.self_attn.{leaf}_proj", *((hidden, 256) if leaf == "o" else (256, hidden)))
        for e in range(2):
            for leaf in ("gate", "up", "down"):
                m.linear(f"model.layers.{layer}.mlp.experts.{e}.{leaf}_proj", *((hidden, 384) if leaf == "down" else (384, hidden)))
    return m


def mixtral_modelopt(experts):
    m = of_family(remade("nvfp4-modelopt", experts=experts), "mixtral")
    m.config.update(num_local_experts=experts, num_attention_heads=4, num_key_value_heads=4, head_dim=64)
    return m


# name -> model, what is broken, TP, loaders that say no for this rule (and no others do), rule, words of the finding
RULES = {
    # names, dialects and configuration (a checkpoint that loads nowhere without editing JSON)
    "scales renamed": (llama, lambda m: m.rename("_scale_inv", "_scale"), 1, HF | {"deepseek"}, "scale name",
                       ["weight_scale_inv"]),
    "DeepSeek's own scale name": (llama, lambda m: m.rename(".weight_scale_inv", ".scale"), 1, HF | {"deepseek"},
                                  "scale name", ["weight_scale_inv"]),
    "compressed-tensors with _inv": (llama, compressed, 1, HF, "scale name",
                                     ["weight_scale'"]),
    "compressed-tensors, a new key": (
        llama, as_compressed(edit("config_groups.group_0.weights.zp_kind", 1)), 1, HF - {"trtllm"}, "configuration",
        ["zp_kind"]),
    "compressed-tensors, static inputs": (
        llama, as_compressed(edit("config_groups.group_0.input_activations.dynamic", False)), 1, HF,
        "configuration", ["dynamic"]),
    "compressed-tensors, no block strategy": (
        llama, as_compressed(edit("config_groups.group_0.weights.strategy", "channel")), 1, HF,
        "configuration", ["block"]),
    "compressed-tensors, dynamic weights": (
        llama, as_compressed(edit("config_groups.group_0.weights.dynamic", True)), 1, HF, "configuration", ["dynamic"]),
    "compressed-tensors, not symmetric": (
        llama, as_compressed(edit("config_groups.group_0.weights.symmetric", False)), 1, HF, "zero points", ["symmetric"]),
    "compressed-tensors, frozen": (llama, as_compressed(edit("quantization_status", "frozen")), 1, {"transformers"},
                                   "configuration", ["quantization_status", "codes for values"]),
    "compressed-tensors, no status": (llama, as_compressed(edit("quantization_status", None)), 1, {"transformers"},
                                      "configuration", ["quantization_status", "codes for values"]),
    "compressed-tensors, packed format": (llama, as_compressed(edit("format", "pack-quantized")), 1, HF,
                                          "configuration", ["float-quantized"]),
    "no activation_scheme": (llama, edit("activation_scheme", None), 1, HF, "configuration", ["activation_scheme"]),
    "static activations": (llama, edit("activation_scheme", "static"), 1, HF, "configuration", ["static"]),
    # a model that cannot be built
    **{f"no {key}": (llama, lambda m, key=key: m.config.pop(key), 1,
                     HF - ({"transformers"} if key == "architectures" else set()), "configuration", [f"no '{key}'"])
       for key in ("model_type", "architectures", "hidden_size", "num_hidden_layers", "num_attention_heads")},
    "heads that only a class knows": (
        lambda: llama(quantized=False), lambda m: m.config.update(text_config={"model_type": m.config["model_type"],
                                                                               "hidden_size": m.config.pop("num_attention_heads")}),
        2, {"vllm", "sglang", "trtllm", "deepseek"}, "heads", ["no num_attention_heads"]),
    # lists
    "not listed": (llama, unquantize("o_proj"), 1, HF, "ignore list", ["self_attn.o_proj", "without a scale"]),
    "listed by a part": (llama, unquantize("o_proj", listed=["o_proj"]), 1, {"vllm", "trtllm"}, "ignore list",
                         ["only", "as a part of the name"]),
    "joined layer listed": (
        llama, unquantize("q_proj", "k_proj", "v_proj", listed=in_full("qkv_proj")), 1, HF - {"vllm"}, "ignore list",
        ["q_proj"]),
    "members listed by a part": (
        llama, unquantize("q_proj", "k_proj", "v_proj", listed=["q_proj", "k_proj", "v_proj"]), 1,
        {"vllm", "trtllm"}, "ignore list", ["whole names"]),
    "listed, but quantized": (llama, edit("modules_to_not_convert", [O]), 1, HF, "ignore list", [O, "is quantized"]),
    "regular expression that misses": (
        llama, both(as_compressed(edit("ignore", ["lm_head", "re:.*o_proj_x$"])),
                    lambda m: (m.drop("o_proj.weight_scale"), m.plain(O, (256, 256)),
                               m.plain(O.replace(".0.", ".1."), (256, 256)))), 1, HF, "ignore list",
        ["o_proj"]),
    "an expression beyond what is known": (
        llama, as_compressed(edit("ignore", ["lm_head", r"re:^(?!.*mlp)"])), 1, HF, "ignore list",
        ["(?!.*mlp)", "cannot tell", "an unsupported kind of group", "character 2"]),
    "a long expression": (
        llama, as_compressed(edit("ignore", ["re:" + "x" * 1014 + r"\w", f"re:.*{O.split('.')[-1]}$"])), 1, HF,
        "ignore list", ["o_proj", "is quantized"]),
    "a head that is not listed": (llama, both(as_compressed(edit("ignore", ["model.layers"])), lambda m: (
        m.drop("lm_head"), m.config.update(tie_word_embeddings=True))), 1, {"transformers"}, "ignore list", ["'lm_head'", "codes and a scale"]),
    "repeats of repeats": (
        llama, as_compressed(edit("ignore", ["lm_head", "re:" + "(" * 6 + "a" + "{200})" * 6])), 1, HF,
        "ignore list", ["cannot tell", "limit"]),
    "an entry that is no name": (llama, edit("modules_to_not_convert", ["lm_head", 7]), 1, HF, "ignore list",
                                 ["entry 2 is no text"]),
    "part of a joined layer": (llama, unquantize("k_proj", listed=in_full("k_proj")), 1, {"vllm", "sglang", "trtllm"},
                               "fused group", ["2 of the 3", "qkv_proj"]),
    # shapes
    "cut inside a block": (lambda: llama(intermediate=384), None, 2, {"vllm", "sglang", "trtllm", "deepseek"}, "blocks",
                           ["384", "192", "1.5 blocks"]),
    "joined inside a block": (lambda: llama(intermediate=320), None, 1, {"vllm", "sglang", "trtllm"}, "blocks",
                              ["320", "2.5 blocks", "gate_up_proj"]),
    "not divisible": (llama, None, 3, {"vllm", "sglang", "trtllm", "deepseek"}, "division", ["512", "3"]),
    "too few heads": (llama, None, 4, {"vllm", "sglang", "trtllm", "deepseek"}, "heads", ["2 heads", "4 ranks"]),
    "576 rows": (lambda: deepseek(latent=512), None, 1, {"transformers"}, "ragged blocks", ["576 / 128 = 4.5"]),
    "3.5 scale rows a head": (lambda: deepseek(192, 256), None, 1, {"trtllm"}, "head boundaries",
                              ["192 + 256 = 448", "448 / 128 = 3.5"]),
    "experts over ranks": (deepseek, None, 8, {"deepseek", "sglang"}, "experts", ["4 experts", "8 ranks"]),
    "more ranks than experts": (lambda: of_family(llama(experts=2, quantized=False), "qwen3_moe"), None, 4, {"vllm", "sglang"},
                                "experts", ["2 experts for 4 ranks"]),
    # vLLM repeats the scales for smaller blocks, those of the hidden size, too: 448 columns would have 8 of 64, and need 7.
    "small blocks beside a block in part": (lambda: narrow(448), None, 2, {"vllm", "sglang", "trtllm"}, "blocks",
                                             ["384", "1.5 blocks", "experts.0."]),
    "Mixtral's class of ModelOpt's dialect": (lambda: mixtral_modelopt(2), None, 4, {"sglang"}, "experts", ["2 experts for 4 ranks"]),
    "Ernie's own key": (lambda: of_family(llama(experts=2, quantized=False), "ernie4_5_moe"), lambda m: m.config.update(
        moe_num_experts=m.config.pop("num_experts")), 4, {"vllm"}, "experts", ["2 experts for 4 ranks"]),
    "blocks of 64": (deepseek, lambda m: (edit("weight_block_size", [64, 64])(m), all_scales(
        lambda m, name: m.scale(name, np.ones([-(-n // 64) for n in m.tensors[name.removesuffix("_scale_inv")][1]])))(m)),
                     1, {"deepseek", "trtllm"}, "block size", ["64x64"]),
    "a conversion that knows no scales": (lambda: of_family(llama(), "hrm_text"), None, 1, {"transformers"}, "conversion",
                                          ["FP8", "without scales"]),
    # scales
    "ue8m0 in name only": (llama, both(edit("scale_fmt", "ue8m0"), all_scales(thirds)), 1, HF, "scale_fmt",
                           ["powers of two"]),
    "E8M0 on disk": (llama, all_scales(exponents), 1, {"transformers", "trtllm", "deepseek"}, "scale dtype", ["F8_E8M0"]),
    "E8M0 on disk, and said so": (llama, both(edit("scale_fmt", "ue8m0"), all_scales(exponents)), 1,
                                  {"trtllm", "deepseek"}, "scale dtype", ["F8_E8M0"]),
    # what is not there
    "no up_proj": (llama, lambda m: m.drop(UP), 1, HF | {"deepseek"}, "missing", ["up_proj"]),
    "no gate_proj": (llama, lambda m: m.drop("layers.0.mlp.gate_proj"), 1, HF | {"deepseek"}, "missing", ["gate_proj"]),
    "no layer": (llama, lambda m: m.drop("layers.1."), 1, HF | {"deepseek"}, "missing", ["layer 1"]),
    "no expert": (lambda: llama(experts=3), lambda m: m.drop("layers.1.mlp.experts.2."), 1, HF | {"deepseek"},
                  "missing", ["3 experts", "experts.2."]),
    "no lm_head": (llama, lambda m: m.drop("lm_head"), 1, HF | {"deepseek"}, "missing", ["lm_head"]),
    "index without metadata": (llama, lambda m: setattr(m, "metadata", False), 1, {"transformers"}, "index",
                               ["metadata", "KeyError"]),
    # single loaders
    "names that convert.py lacks": (llama, None, 1, {"deepseek"}, "names", ["k_proj"]),
    "partly quantized for DeepSeek": (deepseek, unquantize("o_proj", listed=in_full("o_proj")), 1, {"deepseek"},
                                      "partly quantized", ["o_proj"]),
    "MTP layer that is not 61": (lambda: deepseek(mtp=True), None, 1, {"deepseek"}, "MTP", ["layer 61"]),
    "one column of blocks": (lambda: llama(intermediate=128), as_compressed(), 1, {"transformers"}, "experts",
                             ["down_proj", "one column of blocks"]),
    "plain stacks beside FP8": (lambda: of_family(llama(), "llama4_text"), stack, 1, {"transformers"}, "stacked experts",
                                ["experts.", "initializes this model's experts randomly"]),
    "experts stacked": (llama, lambda m: [m.tensors.update({
        f"{p}experts.down_proj": ("F8_E4M3", (2, 256, 256), bytes(2 * 65536)),
        f"{p}experts.down_proj_scale_inv": ("F32", (2, 2, 2), b"\0\0\x80\x3f" * 8)})
        for p in ("model.layers.0.mlp.", "model.layers.1.mlp.")], 1, HF | {"deepseek"}, "stacked experts", ["a stack of experts"]),
}


@pytest.mark.parametrize("make, act, tp, loaders, rule, words", RULES.values(), ids=RULES)
def test_rules(make, act, tp, loaders, rule, words, inspect, tmp_path):
    hold_to_rule(make, act, tp, loaders, rule, words, inspect, tmp_path)


def test_small_blocks_beside_whole_ones(inspect, tmp_path):
    """With 512 columns vLLM divides blocks between two ranks, and loads them correctly."""
    assert load_table(inspect, narrow(512), tmp_path, "2", "vllm")["can_load"]["vllm"]["2"]


LISTS = {
    "in full": (None, ["lm_head", *in_full("o_proj")], HF),
    "by the end": (None, ["lm_head", "self_attn.o_proj"], {"sglang", "transformers"}),
    "by a pattern": (None, ["*o_proj"], {"trtllm"}),
    "under vLLM's key": ("ignored_layers", ["lm_head", *in_full("o_proj")], HF),
    "without the head": (None, in_full("o_proj"), HF - {"transformers"}),
    "by an expression": ("ignore", ["lm_head", "re:.*self_attn.o_proj$"], HF),
    "by a Python expression": ("ignore", ["lm_head", r"re:model\.layers\.\d+\.(?:self_attn|mlp)\.o_.*?"], HF),
    "by an expression that starts later": ("ignore", ["re:self_attn.o_proj"], set()),
    "compressed-tensors, in full": ("ignore", ["lm_head", *in_full("o_proj")], HF),
}


@pytest.mark.parametrize("key, entries, loaders", LISTS.values(), ids=LISTS)
def test_lists(key, entries, loaders, inspect, tmp_path):
    """Tests which loaders read a list that names the two unquantized layers."""
    m = llama()
    unquantize("o_proj", listed=entries)(m)
    if key == "ignore":
        as_compressed(edit("ignore", entries))(m)
    elif key:
        m.quantization[key] = m.quantization.pop("modules_to_not_convert")
    got = load_table(inspect, m, tmp_path)
    assert {loader for loader, row in got["can_load"].items() if row["1"]} == loaders, got["load_findings"]


def test_no_quantization_config(inspect, tmp_path):
    """Without a block size Tessera cannot pair scales. With --source-block only the loaders fail."""
    m = llama()
    del m.config["quantization_config"]
    path = m.write(tmp_path / "m")
    code, got = inspect(path)
    assert code == 1 and got["findings"][0]["rule"] == "pairing" and "block size" in got["findings"][0]["detail"]
    code, got = inspect(path, "--source-block", "128x128", "--can-load", "all", "--tp", "1")
    assert code == 1 and got["findings"] == []
    lost = {f["loader"] for f in got["load_findings"] if f["rule"] == "configuration"}
    assert lost == HF


# findings about the checkpoint itself, for any loader: name -> what is broken, severity, rule, tensor, words
FACTS = {
    "no scale": (lambda m: m.drop(UP + ".weight_scale"), "error", "pairing", UP + ".weight", ["without a scale"]),
    "two scales": (lambda m: m.scale(UP + ".weight_scale", np.ones((4, 2))), "error", "pairing", UP + ".weight",
                   ["two scales"]),
    "no weight": (lambda m: m.tensors.pop(UP + ".weight"), "error", "pairing", UP + ".weight_scale_inv",
                  ["in none of the 2 files"]),
    "weight cast, scale left": (lambda m: m.tensors.update({UP + ".weight": ("BF16", (512, 256), bytes(512 * 512))}),
                                "error", "pairing", UP + ".weight_scale_inv", ["BF16"]),
    "wrong grid": (lambda m: m.scale(UP + ".weight_scale_inv", np.ones((3, 2))), "error", "pairing", UP + ".weight",
                   ["[3, 2]", "4 x 2"]),
    "BF16 with an FP8 configuration": (
        lambda m: [m.plain(name.removesuffix(".weight"), t[1]) for name, t in list(m.tensors.items())
                   if t[0] == "F8_E4M3"], "error", "pairing", None, ["no tensor is quantized"]),
    "no block size": (edit("weight_block_size", [128, True]), "error", "pairing", None, ["weight_block_size"]),
    "unknown method": (edit("quant_method", "gguf"), "error", "pairing", None, ["gguf"]),
    "NaN exponent": (lambda m: m.tensors.update({UP + ".weight_scale_inv": ("F8_E8M0", (4, 2), bytes([127] * 7 + [255]))}),
                     "error", "scale values", None, ["1 NaN or Inf"]),
    "infinite scale below 0": (
        lambda m: m.scale(UP + ".weight_scale_inv", np.where(np.arange(8).reshape(4, 2) < 1, -np.inf, 1.0)), "error",
        "scale values", None, ["0 negative", "1 NaN or Inf"]),
    "negative scale": (lambda m: m.scale(UP + ".weight_scale_inv", -np.ones((4, 2))), "error", "scale values", None,
                       ["8 negative"]),
    "ue8m0 in name only": (both(edit("scale_fmt", "ue8m0"), lambda m: thirds(m, UP + ".weight_scale_inv")), "error",
                           "scale_fmt", UP + ".weight_scale_inv", ["8 of", "in 1 tensors", "0.333333343"]),
    "zero scale": (lambda m: m.scale(UP + ".weight_scale_inv", np.zeros((4, 2))), "warning", "scale values", None,
                   ["8 are zero"]),
    **{f"scale of keys {value}": (
        lambda m, value=value: m.tensors.update({KEYS: ("F32", (2,), np.array([1, value], np.float32).tobytes())}), "error", "scale values",
        KEYS, [f"value 1 of this scale of the KV cache or of attention is {value:g}"]) for value in (np.nan, np.inf, 0.0, -1.0)},
    "wrong total_size": (lambda m: setattr(m, "total", 12), "warning", "index", None, ["total_size 12"]),
    "index without metadata": (lambda m: setattr(m, "metadata", False), "warning", "index", None, ["'metadata'"]),
    "experts left out": (stack, "warning", "stacked experts", "model.layers.0.mlp.experts.", ["not quantized"]),
}


def usual_scales(m, change=lambda name, values: values):
    """Returns typical scales of weights of about 0.1."""
    rng = np.random.default_rng(0)
    for name, (dtype, shape, _) in list(m.tensors.items()):
        if name.endswith("_scale_inv"):
            m.scale(name, change(name, rng.uniform(1e-4, 4e-4, shape).astype(np.float32)))


def of_up(change):
    def run(name, values):
        if name.startswith(UP):
            change(values)
        return values
    return run


def invert(values):
    values[:] = 1 / values


def set_one(value):
    def run(values):
        values[1, 0] = value
    return run


OUTLIERS = {  # name: (scales, severity or None, words)
    "usual": (lambda name, values: values, None, []),
    "a block of zeros": (of_up(set_one(1)), None, []),
    "ten times larger": (of_up(set_one(4e-3)), None, []),
    "one inverse": (of_up(set_one(4000)), "warning", ["value 2", "is 4000", "1.79e+06"]),
    "inverses of one tensor": (of_up(invert), "error", ["1/scale would be plausible"]),
    "all inverses": (lambda name, values: 1 / values, "error", ["median of all scales"]),
}


@pytest.mark.parametrize("act, severity, words", OUTLIERS.values(), ids=OUTLIERS)
def test_scales_far_from_all_others(act, severity, words, inspect, tmp_path):
    m = llama()
    usual_scales(m, act)
    code, got = inspect(m.write(tmp_path / "m"))
    assert code == (severity == "error")
    assert [f["severity"] for f in got["findings"]] == [severity] * (severity is not None), got["findings"]
    assert all(f["rule"] == "scale outliers" and all(word in f["detail"] for word in words) for f in got["findings"])
    if severity is not None and "median" not in words[0]:
        assert got["findings"][0]["tensor"] == UP + ".weight_scale_inv"


@pytest.mark.parametrize("act, severity, rule, tensor, words", FACTS.values(), ids=FACTS)
def test_findings(act, severity, rule, tensor, words, inspect, text, tmp_path):
    m = llama()
    act(m)
    path = m.write(tmp_path / "m")
    code, got = inspect(path)
    assert code == (severity == "error")
    mine = [f for f in got["findings"] if f["rule"] == rule]
    assert mine and all(f["severity"] == severity for f in mine), got["findings"]
    assert any((f["tensor"] or "").startswith(tensor or "") and all(w in f["detail"] for w in words) for f in mine), mine
    assert f"{severity} [{rule}]" in text(path)
    if severity == "error" and rule != "scale_fmt":
        _, got = inspect(path, "--can-load", "all", "--tp", "1")
        assert not any(ok for row in got["can_load"].values() for ok in row.values())


WARNINGS = {
    "MTP said, not there": (deepseek, lambda m: m.config.update(num_nextn_predict_layers=1), "MTP", ["layer 2"]),
    "MTP there, not said": (lambda: deepseek(mtp=True), lambda m: m.config.update(num_nextn_predict_layers=0), "MTP",
                            ["dropped without an error"]),
    "router bias rounded": (deepseek, lambda m: m.tensors.update({
        "model.layers.0.mlp.gate.e_score_correction_bias": ("BF16", (4,), bytes(8))}), "router bias", ["BF16"]),
    "an entry for nothing": (llama, edit("modules_to_not_convert", ["model.layers.0.mlp.all_proj"]), "ignore list",
                             ["all_proj", "match no module"]),
}


@pytest.mark.parametrize("make, act, rule, words", WARNINGS.values(), ids=WARNINGS)
def test_warnings(make, act, rule, words, inspect, tmp_path):
    m = make()
    act(m)
    got = load_table(inspect, m, tmp_path, loaders="vllm,sglang")
    assert all(row == {"1": True} for row in got["can_load"].values()), got["load_findings"]
    mine = [f for f in got["load_findings"] if f["rule"] == rule]
    assert {f["loader"] for f in mine} == {"vllm", "sglang"} and {f["severity"] for f in mine} == {"warning"}
    assert all(word in f["detail"] for f in mine for word in words), mine


# ---- before quantizing ----


@pytest.mark.parametrize("intermediate, tp, ok", [(512, "1,2", True), (384, "1", True), (384, "2", False)])
def test_before_quantizing(intermediate, tp, ok, inspect, text, quantize, tmp_path):
    """The verdict for a BF16 source is that for its quantized output."""
    m = llama(False, intermediate)
    got = load_table(inspect, m, tmp_path, tp, ",".join(ENGINES))
    assert all(all(row.values()) == ok for row in got["can_load"].values()), got["load_findings"]
    _, after = inspect(quantize(tmp_path / "m"), "--can-load", ",".join(ENGINES), "--tp", tp)
    assert after["can_load"] == got["can_load"]
    told = text(tmp_path / "m", "--can-load", "vllm,transformers")
    assert "can load (once quantized):" in told
    rows = {line.split()[0]: line.split() for line in told.splitlines() if line.startswith(("  vllm ", "  transformers "))}
    for loader, checked in got["checked"].items():  # the version, then a word for each size
        assert loader not in rows or rows[loader][1] == checked.split()[1].rstrip(",")
    assert rows["vllm"][2] in ("ok", "no")


@pytest.mark.parametrize("kind", KINDS)
def test_output_loads_as_foretold(kind, checkpoint, quantize, inspect):
    options = ("--can-load", ",".join((*ENGINES, "transformers")), "--tp", "1,2,4")
    _, before = inspect(checkpoint(kind), *options)
    _, after = inspect(quantize(checkpoint(kind)), *options)
    assert before["can_load"] == after["can_load"]


def test_weights_of_one_block(inspect, tmp_path):
    """A matrix of exactly one block has a scale per block."""
    m = llama(intermediate=128)
    m.linear("model.layers.0.self_attn.indexer.wk", 128, 128)
    got = load_table(inspect, m, tmp_path, "1", ",".join(ENGINES))
    assert all(row["1"] for row in got["can_load"].values()), got["load_findings"]


def test_a_flood_of_findings(tessera, inspect, tmp_path):
    """Names of thousands of missing layers share no pattern: they are counted, not listed."""
    m = Model({"num_hidden_layers": 60000, "model_type": "llama"})
    for i in range(6000):
        word = "".join(chr(97 + int(digit)) for digit in str(i))
        m.tensors[f"model.layers.0.mlp.{word}_proj.weight"] = ("F8_E4M3", (1, 1), b"\0")
    code, got = inspect(m.write(tmp_path / "m"), "--can-load", "all")
    assert code == 1 and len(got["findings"]) == 4096
    assert not any(ok for row in got["can_load"].values() for ok in row.values())
    code, out, err = harness.run(tessera, ["inspect", tmp_path / "m"])
    assert code == 1 and err == "" and "and 1904 more" in out


def test_exit_code_is_about_what_was_asked(tessera, tmp_path):
    path = llama().write(tmp_path / "m")
    for loaders, tp, expected in (("vllm", "1,2", 0), ("vllm", "1,2,4", 1), ("transformers", "4", 0), ("all", "1", 1)):
        code, _, err = harness.run(tessera, ["inspect", path, "--can-load", loaders, "--tp", tp, "--quiet"])
        assert code == expected, (loaders, tp, err)
