"""The rules of `inspect --can-load` that were learnt from running the loaders' own code (tests/peers/loaders), each held without
it: what those loaders take must pass, and what they refuse or get wrong must not."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import harness
from loader_models import HF, UP, as_compressed, both, deepseek, edit, hold_to_rule, in_full, llama, load_table, unquantize
import numpy as np
import pytest

ENGINES = {"vllm", "sglang", "trtllm"}


def family(name, **config):
    def act(m):
        m.config.update(model_type=name, **config)

    return act


def moe(experts=4, width=256, **options):
    return llama(experts=experts, intermediate=width, **options)


def plain(*modules):
    def act(m):
        for name in list(m.tensors):
            if any(part in name for part in modules) and name.endswith(".weight"):
                m.plain(name.removesuffix(".weight"), m.tensors[name][1])

    return act


def listed(*entries, key="modules_to_not_convert"):
    def act(m):
        m.quantization[key] = list(entries)

    return act


def experts(scheme, **arguments):
    """Makes every expert in a form of compressed-tensors' integers."""

    def act(m):
        weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False, **arguments}
        inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
        m.config["quantization_config"] = {
            "quant_method": "compressed-tensors", "quantization_status": "compressed", "format": "int-quantized" if scheme == "int8" else "pack-quantized",
            "ignore": ["lm_head"], "config_groups": {"group_0": {
                "targets": ["Linear"], "weights": weights, "input_activations": inputs if scheme == "int8" else None}}}
        for name in [name for name in m.tensors if name.endswith("_scale_inv")]:
            module = name.removesuffix(".weight_scale_inv")
            rows, cols = m.tensors.pop(f"{module}.weight")[1]
            del m.tensors[name]
            if scheme == "int8":
                m.tensors[f"{module}.weight"] = ("I8", (rows, cols), bytes(rows * cols))
                m.scale(f"{module}.weight_scale", np.ones((rows, 1)))
                continue
            m.tensors[f"{module}.weight_packed"] = ("I32", (rows, cols // 8), bytes(rows * cols // 2))
            m.tensors[f"{module}.weight_shape"] = ("I64", (2,), np.array([rows, cols], np.int64).tobytes())
            m.scale(f"{module}.weight_scale", np.ones((rows, cols // 128)))
            if not weights["symmetric"]:
                m.tensors[f"{module}.weight_zero_point"] = ("I32", (rows // 8, cols // 128), bytes(rows // 2 * (cols // 128)))

    return act


def fp8_tensor(static):
    """Makes every layer in compressed-tensors' FP8 with one scale, with or without an input scale."""

    def act(m):
        arguments = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
        m.config["quantization_config"] = {
            "quant_method": "compressed-tensors", "quantization_status": "compressed", "format": "float-quantized", "ignore": ["lm_head"], "config_groups": {"group_0": {
                "targets": ["Linear"], "weights": arguments,
                "input_activations": arguments if static else {**arguments, "strategy": "token", "dynamic": True}}}}
        for name in [name for name in m.tensors if name.endswith("_scale_inv")]:
            module = name.removesuffix(".weight_scale_inv")
            del m.tensors[name]
            for leaf in ("weight_scale", "input_scale")[:1 + static]:
                m.tensors[f"{module}.{leaf}"] = ("F32", (1,), b"\0\0\x80\x3f")

    return act


def linear_attention(m):
    """Makes Qwen3-Next's linear attention with 4 heads of keys of 128, and 8 of values."""
    m.config.update(model_type="qwen3_next", linear_num_key_heads=4, linear_key_head_dim=128, linear_num_value_heads=8,
                    linear_value_head_dim=128)
    m.linear("model.layers.0.linear_attn.in_proj_qkvz", 3072, 256)
    m.linear("model.layers.0.linear_attn.out_proj", 256, 1024)
    m.plain("model.layers.0.linear_attn.in_proj_ba", (16, 256))
    m.plain("model.layers.0.linear_attn.conv1d", (2048, 1, 4))
    m.quantization["modules_to_not_convert"] += [f"model.layers.0.linear_attn.{leaf}" for leaf in ("in_proj_ba", "conv1d")]


def add_linear(leaf, rows, cols):
    """Adds a quantized layer under this name."""
    return lambda m: m.linear(f"model.layers.0.{leaf}", rows, cols)


INT4 = {"num_bits": 4, "strategy": "group", "group_size": 128}


def phi3(m):
    for layer in range(2):
        prefix = f"model.layers.{layer}.self_attn."
        m.drop(f"{prefix}q_proj", f"{prefix}k_proj", f"{prefix}v_proj")
        m.linear(f"{prefix}qkv_proj", 3 * 512, 256)
    m.config.update(model_type="phi3", num_attention_heads=8, num_key_value_heads=8, head_dim=64)


def plain_joined(m):
    phi3(m)
    m.config.update(model_type="mimo_v2")
    for layer in range(2):
        m.plain(f"model.layers.{layer}.self_attn.qkv_proj", (2 * 512 + 256, 256))
    m.quantization["modules_to_not_convert"] += [f"model.layers.{layer}.self_attn.qkv_proj" for layer in range(2)]


def router(m):
    for layer in range(2):
        m.plain(f"model.layers.{layer}.mlp.gate", (4, 256))


def shared(m):
    for layer in range(2):
        for leaf in ("gate_proj", "up_proj", "down_proj"):
            m.linear(f"model.layers.{layer}.mlp.shared_experts.{leaf}", 256, 256)


def padded(m):
    m.scale(f"{UP}.weight_scale_inv", np.ones((8, 2)))


def wide_keys(m):
    """Makes values of 192 rows, the last member of a fused layer."""
    for layer in range(2):
        m.linear(f"model.layers.{layer}.self_attn.v_proj", 192, 256)


def convolution(m):
    m.tensors["model.layers.0.linear_attn.conv1d.weight"] = ("F8_E4M3", (1024, 1, 4), b"\x38" * 4096)
    m.tensors["model.layers.0.linear_attn.conv1d.weight_scale_inv"] = ("F32", (1024, 1, 1), b"\0\0\x80\x3f" * 1024)


def two_parts(m):
    m.linear("model.layers.0.linear_attn.in_proj_ba", 64, 256)


def latent(m):
    m.config.update(q_lora_rank=128, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    for layer in range(2):
        prefix = f"model.layers.{layer}.self_attn."
        m.linear(f"{prefix}q_a_proj", 128, 256)
        m.linear(f"{prefix}kv_a_proj_with_mqa", 576, 256)


def stacked(m):
    m.tensors.update({f"model.layers.{layer}.mlp.experts.down_proj" + end: t for layer in range(2) for end, t in (
        ("", ("F8_E4M3", (2, 256, 256), bytes(2 * 65536))), ("_scale_inv", ("F32", (2, 2, 2), b"\0\0\x80\x3f" * 8)))})


def input_scale(m):
    m.tensors[f"{UP}.input_scale"] = ("F32", (1,), b"\0\0\x80\x3f")


def by_name(*targets):
    return edit("config_groups.group_0.targets", list(targets))


E0 = "model.layers.0.mlp.experts"

# name -> model, what is done to it, TP, loaders that must say no, the rule, words of the finding. Others say nothing by it.
NO = {
    "a state-space layer of Mamba's first kind": (llama, both(add_linear("mamba.out_proj", 256, 512), family("jamba")), 1, {"vllm"},
                                                  "class", ["mamba.out_proj", "unquantized"]),
    "a strategy of other scales": (llama, both(fp8_tensor(static=False), edit("config_groups.group_0.weights.strategy", "channel")), 1,
                                   {"vllm", "sglang", "transformers", "trtllm"}, "configuration", ['strategy "channel"']),
    "a scale of the indexer's input": (llama, both(add_linear("self_attn.indexer.wk", 128, 256), fp8_tensor(static=True)), 1, {"vllm"},
                                       "indexer", ["indexer.wk", "input scale"]),
    "experts under the name that vLLM's class does not use": (
        moe, both(as_compressed(by_name("re:.*block_sparse_moe.*", "re:.*self_attn.*")), family("minimax_m2"),
                  lambda m: m.rename(".mlp.", ".block_sparse_moe.")), 1, {"vllm"}, "targets", ["block_sparse_moe", "no group"]),
    "expressions with a beginning that vLLM's class renames": (
        moe, both(as_compressed(by_name("re:backbone.*")), family("nemotron_h"), lambda m: m.rename("model.layers", "backbone.layers")),
        1, {"vllm"}, "targets", ["backbone", "no group"]),
    "groups of a class of SGLang with other names": (
        moe, both(as_compressed(by_name("re:.*layers.*")), family("nemotron_h")), 1, {"sglang"}, "targets", ["other names"]),
    "groups of another such class": (
        moe, both(as_compressed(by_name("re:.*layers.*")), family("hunyuan_v1_moe")), 1, {"sglang"}, "targets", ["other names"]),
    "a model of SGLang's generic class": (moe, family("dots1"), 1, {"sglang"}, "class", ["no class"]),
    "a packed expert of AFMoE": (moe, both(experts("int4", num_bits=4, strategy="group", group_size=128), family("afmoe")), 1,
                                 {"sglang"}, "experts", ["packed expert"]),
    "experts whose leaf SGLang does not look up": (
        moe, both(as_compressed(by_name("re:.*experts.*w[123]$", "re:.*self_attn.*")), family("olmoe"),
                  lambda m: [m.rename(f".{old}_proj.", f".{new}.") for old, new in (("gate", "w1"), ("up", "w3"), ("down", "w2"))]),
        1, {"sglang"}, "targets", ["experts", "no group"]),
    "a model without a class": (moe, family("flex_olmo"), 1, {"sglang"}, "class", ["no class"]),
    "a rank's share of a state-space layer ends in a block": (
        llama, both(add_linear("mamba.out_proj", 256, 384), family("bamba")), 2, ENGINES | {"deepseek"}, "blocks", ["mamba.out_proj"]),
    # experts of a layer are one layer
    "one expert plain": (moe, both(plain("experts.2."), listed(*(f"model.layers.{i}.mlp.experts.2.{leaf}_proj" for i in
                                   range(2) for leaf in ("gate", "up", "down")))), 1, ENGINES | {"transformers"},
                         "experts together", ["experts.2.", "one form"]),
    "width 192: only down_proj": (lambda: moe(width=256), plain(".gate_proj", ".up_proj"), 1, ENGINES | {"transformers"},
                                  "experts together", ["up_proj"]),
    "shared expert in part": (moe, both(shared, plain("shared_experts.down_proj"), listed(
        "model.layers.0.mlp.shared_experts.down_proj", "model.layers.1.mlp.shared_experts.down_proj")), 1, {"sglang"},
        "experts together", ["shared_experts"]),
    # linear attention
    "conv1d quantized": (llama, convolution, 1, HF | {"deepseek"}, "convolution", ["conv1d", "three dimensions"]),
    "in_proj_ba quantized": (llama, two_parts, 1, {"vllm", "sglang"}, "blocks", ["in_proj_ba", "two parts of 32"]),
    # classes
    "SGLang's Llama": (llama, family("llama"), 1, {"sglang"}, "scale name", ["'llama'", "no scale at all"]),
    "SGLang's Mistral": (llama, family("mistral"), 1, {"sglang"}, "scale name", ["'mistral'"]),
    "SGLang's Phi3, before quantizing": (lambda: llama(False), family("phi3"), 1, {"sglang"}, "scale name", ["'phi3'"]),
    "llama4's experts": (llama, both(stacked, family("llama4")), 1, {"transformers"}, "stacked experts", ["in, out", "transposed"]),
    "gpt-oss's experts": (llama, both(stacked, family("gpt_oss")), 1, HF | {"deepseek"}, "stacked experts", ["in, out"]),
    "experts in blocks": (moe, as_compressed(), 1, {"transformers"}, "experts", ["in blocks", "cannot join"]),
    "experts of int8": (moe, experts("int8"), 1, {"transformers", "sglang"}, "experts", ["int8 by rows"]),
    "experts with zero points": (moe, experts("int4", symmetric=False, **INT4), 1, {"sglang"}, "zero points",
                                 ["does not support zero points of experts"]),
    "experts with zero points, in transformers": (moe, experts("int4", symmetric=False, **INT4), 1, {"transformers"},
                                                  "experts", ["with zero points", "cannot join"]),
    "packed latent projections": (lambda: llama(), both(latent, experts("int4", **INT4)), 1, {"sglang"}, "weight_shape",
                                  ["q_a_proj"]),
    "experts of fp8-tensor without input scales": (moe, fp8_tensor(False), 1, {"vllm", "sglang"}, "experts",
                                                   ["without a stored input scale"]),
    "latent projections of fp8-tensor": (lambda: llama(), both(latent, fp8_tensor(True)), 1, {"sglang"}, "input scale", ["q_a_proj"]),
    "fp8-tensor beside other formats": (llama, both(fp8_tensor(True), edit("format", "mixed-precision")), 1, {"transformers"},
                                        "formats", ["run_compressed=False"]),
    "router not listed": (moe, both(router, family("qwen3_moe")), 1, {"vllm"}, "ignore list", ["mlp.gate", "router"]),
    "DeepSeek's router bias": (deepseek, None, 1, {"deepseek"}, "router bias", ["7168", "256"]),
    # shapes
    "q, k and v stored as one": (llama, both(phi3, edit("activation_scheme", "dynamic")), 8,
                                 {"vllm", "sglang", "trtllm", "deepseek"}, "blocks", ["8 heads of queries", "inside a block of 128"]),
    "linear attention's heads": (llama, linear_attention, 8, {"vllm", "sglang", "trtllm", "deepseek"}, "blocks",
                                 ["in_proj_qkvz", "keys of 512", "8 ranks"]),
    "an unknown name": (llama, lambda m: m.linear("model.layers.0.self_attn.new_proj", 256, 256), 2,
                                 ENGINES | {"deepseek"}, "unknown cut", ["new_proj"]),
    "SGLang's last member": (llama, wide_keys, 1, {"sglang", "trtllm"}, "blocks", ["192", "qkv_proj"]),
    "288 rows": (lambda: llama(intermediate=288), None, 1, {"transformers"}, "ragged blocks", ["288 / 3 = 96", "without an error"]),
    "320 rows": (lambda: llama(intermediate=320), None, 1, {"transformers"}, "ragged blocks", ["320 / 3", "refuses"]),
    "experts cut inside a block, compressed-tensors": (
        lambda: moe(width=384), as_compressed(), 2, ENGINES, "blocks",
        ["192"]),
    # lists and configuration
    "joined name listed, quantized": (llama, listed("model.layers.0.self_attn.qkv_proj"), 1, {"vllm"}, "ignore list",
                                      ["qkv_proj", "is quantized"]),
    "experts listed, quantized": (moe, listed(E0), 1, {"vllm", "sglang", "transformers"}, "ignore list",
                                  [E0, "is quantized"]),
    "one expert listed, quantized": (moe, listed(f"{E0}.3.gate_proj"), 1, {"vllm", "sglang"}, "ignore list",
                                     ["experts.0", "is quantized"]),
    "both keys": (llama, both(unquantize("o_proj", listed=in_full("o_proj")), listed("lm_head", key="ignored_layers")), 1,
                  {"vllm", "sglang"}, "ignore list", ["o_proj", "does not list it"]),
    "the first key is empty": (llama, both(unquantize("o_proj", listed=in_full("o_proj")), listed(key="ignored_layers")), 1,
                               {"sglang"}, "ignore list", ["o_proj"]),
    "targets that miss": (llama, as_compressed(by_name("re:.*mlp.*")), 1, HF, "targets",
                          ["self_attn.q_proj", "as plain"]),
    "no group for Linear": (llama, as_compressed(by_name("re:.*_proj$")), 1, {"sglang"}, "targets", ["block size"]),
    "neither ignored nor a target": (
        llama, both(as_compressed(by_name(r"re:.*\.(self_attn\.[qkv]|mlp\.).*")),
                    lambda m: (m.drop("o_proj.weight_scale"), plain("o_proj")(m))), 1, {"sglang"}, "targets", ["o_proj"]),
    "padded scales": (llama, padded, 1, HF, "padded scales", ["[8, 2]", "4 x 2"]),
    "have a static scale": (llama, input_scale, 1, {"vllm"}, "input scale", ["up_proj.input_scale"]),
}


@pytest.mark.parametrize("make, act, tp, loaders, rule, words", NO.values(), ids=NO)
def test_no(make, act, tp, loaders, rule, words, inspect, tmp_path):
    hold_to_rule(make, act, tp, loaders, rule, words, inspect, tmp_path)


# name -> model, what is done to it, TP, loaders that must say yes: they really load these
YES = {
    "experts cut inside a block": (lambda: moe(width=384), None, 2, {"vllm"}),
    "experts cut to a quarter of a block": (lambda: moe(width=384), lambda m: m.config.update(num_attention_heads=2), 1,
                                            {"vllm", "sglang", "transformers"}),
    "F8_E8M0 scales": (llama, lambda m: [m.tensors.update({name: ("F8_E8M0", t[1], bytes([120]) * int(np.prod(t[1])))})
                                         for name, t in list(m.tensors.items()) if name.endswith("_scale_inv")], 1,
                       {"vllm", "sglang"}),
    "joined name listed, plain": (llama, unquantize("q_proj", "k_proj", "v_proj", listed=in_full("qkv_proj")), 1, {"vllm"}),
    "experts listed, plain": (moe, both(plain(".experts."), listed(E0, E0.replace(".0.", ".1."))), 1,
                              {"vllm", "sglang"}),
    "a path listed": (llama, both(plain("layers.0.self_attn"), listed("lm_head", "model.layers.0.self_attn")), 1,
                      {"sglang", "transformers"}),
    "a part of a path listed": (llama, both(plain(".mlp."), listed("mlp")), 1, {"sglang"}),
    "members by their ends": (llama, unquantize("q_proj", "k_proj", "v_proj", listed=["lm_head", "q_proj", "k_proj", "v_proj"]), 1,
                              {"sglang", "transformers"}),
    "the second key when the first is empty": (
        llama, both(unquantize("o_proj", listed=in_full("o_proj")), listed(key="ignored_layers")), 1, {"vllm"}),
    "targets by expression": (
        llama, both(as_compressed(by_name("re:.*mlp.*")), lambda m: (m.drop("self_attn.q_proj.weight_scale",
                    "self_attn.k_proj.weight_scale", "self_attn.v_proj.weight_scale", "self_attn.o_proj.weight_scale"),
                    plain("self_attn")(m))), 1, {"vllm", "transformers"}),
    "ends in compressed-tensors": (
        llama, both(as_compressed(edit("ignore", ["lm_head", "self_attn.o_proj"])),
                    lambda m: (m.drop("o_proj.weight_scale"), plain("o_proj")(m))), 1, {"sglang"}),
    "FP8 in capitals": (llama, edit("quant_method", "FP8"), 1, {"vllm"}),
    "q, k and v stored as one": (llama, phi3, 2, {"vllm"}),
    "linear attention": (llama, linear_attention, 2, {"vllm", "sglang"}),
    "vLLM's last member": (llama, wide_keys, 1, {"vllm"}),
    "fewer rows than a block": (lambda: llama(intermediate=16), None, 1, {"transformers"}),
    "llama4's experts": (llama, both(stacked, family("llama4")), 1, {"vllm"}),
    "Llama, compressed-tensors": (llama, both(as_compressed(), family("llama")), 1, HF),
    "attention whose output is called out_proj": (llama, add_linear("self_attn.out_proj", 256, 256), 2, {"vllm", "sglang"}),
    "plain q, k and v stored as one, values of another width": (llama, plain_joined, 2, {"vllm"}),
    "experts under the name that vLLM's class uses": (
        moe, both(as_compressed(by_name("re:.*mlp.*", "re:.*self_attn.*")), family("minimax_m2"),
                  lambda m: m.rename(".mlp.", ".block_sparse_moe.")), 1, {"vllm"}),
    "two attentions in a layer": (llama, family("longcat_flash", num_layers=2, num_hidden_layers=4), 1, {"vllm", "transformers"}),
    "a gate of attention": (llama, add_linear("self_attn.g_proj", 256, 256), 2, {"vllm", "sglang"}),
    "a state-space layer": (llama, both(add_linear("mamba.out_proj", 256, 512), family("bamba")), 2, {"vllm", "sglang"}),
    "router listed": (moe, both(router, family("qwen3_moe"), listed("lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate")),
                      1, {"vllm", "sglang", "transformers"}),
    "a router of another family": (moe, both(router, family("mixtral")), 1, {"vllm"}),
}


@pytest.mark.parametrize("make, act, tp, loaders", YES.values(), ids=YES)
def test_yes(make, act, tp, loaders, inspect, tmp_path):
    m = make()
    if act:
        act(m)
    got = load_table(inspect, m, tmp_path, str(tp), ",".join(sorted(loaders)))
    assert all(ok for row in got["can_load"].values() for ok in row.values()), json.dumps(got["load_findings"], indent=1)


def test_versions(inspect, tmp_path):
    """Each loader and each finding has the version that its rules were checked against."""
    got = load_table(inspect, llama(), tmp_path, "4")
    assert set(got["checked"]) == set(got["can_load"])
    assert got["checked"]["vllm"].startswith("vLLM 0.33.0") and got["checked"]["sglang"].startswith("SGLang 0.5.23")
    assert got["load_findings"]
    for f in got["load_findings"]:
        assert f["checked"] == got["checked"][f["loader"]]


@pytest.mark.parametrize("newest, code, words", [
    ({}, 0, ["vllm: the rules are of", "transformers: the rules are of"]), ({"sglang": "99.1"}, 1, ["newest is 99.1: run ./dev loaders"]),
    ({"vllm": None}, 77, ["skipped", "vllm"])])
def test_a_loader_that_moved_on_is_named(newest, code, words, tmp_path, monkeypatch):
    """A local server replaces the package index. It has the versions of the rules except those given."""
    folder = Path(__file__).parents[2] / "peers/loaders"
    monkeypatch.syspath_prepend(folder)
    versions = importlib.import_module("newest").checked() | newest
    assert set(versions) == {"vllm", "sglang", "transformers"}
    stub = tmp_path / "pip.py"
    stub.write_text(f"import sys\nversion = {versions!r}[sys.argv[3]]\nprint(f'{{sys.argv[3]}} ({{version}})') if version else sys.exit(1)\n")
    done = subprocess.run([sys.executable, folder / "newest.py", "--pip", f"{sys.executable} {stub}"], capture_output=True, text=True, check=False)
    assert done.returncode == code and all(word in done.stdout for word in words), done.stdout + done.stderr


def list_rules(tessera, model_type):
    out = harness.succeed(tessera, ["inspect", "--loaders", model_type, "--json", "-"])
    return {row["loader"]: row for row in json.loads(out)["loaders"]}


def test_rules_of_a_class_are_listed(tessera):
    """--loaders prints the rules about a model_type and no others, and the version of each loader."""
    listed = list_rules(tessera, "qwen3_next")
    assert set(listed) == {"vllm", "sglang", "transformers", "deepseek", "trtllm"}
    of_class = {rule["what"] for rule in listed["sglang"]["rules"] if rule["of_class"]}
    assert "packed linear attention" in of_class
    assert not [rule for rule in list_rules(tessera, "qwen3")["sglang"]["rules"] if rule["of_class"]]
    harness.shows(tessera, ["inspect", "--loaders", "qwen3_next"], 0, "packed linear attention", listed["vllm"]["version"])


def test_the_first_row_of_a_condition_is_listed(tessera):
    """vLLM reads FP8 stacks of Qwen3.5-MoE, so the general rule against stacks is not listed for this class."""
    def stacks(model_type):
        return [rule for rule in list_rules(tessera, model_type)["vllm"]["rules"] if (rule["why"] or "").startswith("the loader reads each expert")]
    assert stacks("qwen3_moe") and not stacks("qwen3_5_moe")


@pytest.mark.parametrize("words", [["M", "--loaders", "llama"], ["--loaders", "llama", "--can-load", "all"]])
def test_loaders_takes_no_checkpoint(words, tessera, tmp_path):
    harness.expect(tessera, ["inspect", *[str(tmp_path) if word == "M" else word for word in words]], 2, "--loaders takes a model_type")
