"""`tessera inspect --can-load` of MXFP4, NVFP4, MXFP8, int4, AWQ and GPTQ: who reads which kind in which dialect, and every rule
of theirs broken once."""

import json

from loader_kinds import deepseek_v4, gpt_oss, number, raw, remade, second_version
from loader_models import both, edit, hold_to_rule, load_table
from loader_rules import (
    ALL, DOWN, E0, ENGINES, KV_FP8, READS, RULES, UP,
    by_layer, drop_key, fp8_beside_nvfp4, mixed, of_family, plain_experts, put, targets_of_members, v4_in_mxfp8, v4_in_nvfp4,
)
import pytest

# ---- who reads what ----


@pytest.mark.parametrize("make, loaders", READS.values(), ids=READS)
def test_who_reads_it(make, loaders, inspect, tmp_path):
    got = load_table(inspect, make(), tmp_path)
    assert {name for name, row in got["can_load"].items() if row["1"]} == loaders, json.dumps(got["load_findings"], indent=1)
    refused = {f["loader"] for f in got["load_findings"] if f["rule"] == "kind"}
    assert refused == (ALL | {"deepseek"}) - loaders
    for f in got["load_findings"]:
        assert f["rule"] != "kind" or (f["tensor"] and f["advice"] and "quant_method '" in f["detail"]), f


# ---- every rule, broken once ----


def side_file(path, **without):
    """Makes ModelOpt's second file. A key that is None is omitted."""
    keys = {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": ["lm_head"], **without}
    (path / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": {
        key: value for key, value in keys.items() if value != "away"}}))


SIDE_FILES = {"two files that disagree": ({"exclude_modules": ["lm_head", "other"]}, True),
              "two files with two group sizes": ({"group_size": 32}, True),
              "two files with two schemes for the KV cache": ({"kv_cache_quant_algo": "NVFP4"}, True),
              "two files with two algorithms": ({"quant_algo": "W4A16_NVFP4"}, True),
              "two files with two methods": ({}, True),
              "no group_size in the side file": ({"group_size": "away"}, False),
              "no kv_cache_quant_algo": ({"kv_cache_quant_algo": "away"}, False),
              "no exclude_modules": ({"exclude_modules": "away"}, False)}


@pytest.mark.parametrize("name", RULES)
def test_rules(name, inspect, tmp_path, monkeypatch):
    make, act, tp, loaders, rule, words = RULES[name]
    if name in SIDE_FILES:
        keys, both_files = SIDE_FILES[name]
        m = make()
        write = m.write

        def with_side_file(path):
            write(path)
            side_file(path, **keys)
            return path

        if not both_files:
            del m.config["quantization_config"]
        monkeypatch.setattr(m, "write", with_side_file)
        make = lambda: m
    hold_to_rule(make, act, tp, loaders, rule, words, inspect, tmp_path)


# name -> model, what is done to it, TP, loaders that must say yes
YES = {
    "a pattern that is no part of a name": (lambda: remade("nvfp4-modelopt"), edit("ignore", ["lm_head", "*.mlp.gat[e]"]), 1,
                                            ENGINES),
    "an excluded fused layer, by its members": (lambda: remade("nvfp4-modelopt", experts=2), None, 1, ENGINES),
    "ModelOpt's side file alone": (lambda: remade("nvfp4-modelopt"), drop_key("quantization_config"), 1, ENGINES),
    "ModelOpt's object without quant_method, as version 0.31 wrote it": (
        lambda: remade("nvfp4-modelopt"), both(edit("producer", {"name": "modelopt"}), edit("kv_cache_scheme", "FP8"), edit("quant_method", None)),
        1, {"vllm"}),
    "MIXED_PRECISION by joined names, too": (lambda: remade("nvfp4-modelopt"), by_layer("NVFP4", True), 1, ENGINES),
    "MIXED_PRECISION by members, where the class knows them": (
        lambda: of_family(remade("nvfp4-modelopt"), "qwen3_moe"), by_layer("NVFP4"), 1, ENGINES),
    "MIXED_PRECISION of SGLang's Mixtral": (
        lambda: of_family(remade("nvfp4-modelopt"), "mixtral"), by_layer("NVFP4", True), 1, ENGINES),
    "plain experts that are excluded": (
        lambda: remade("nvfp4-modelopt", experts=2), both(both(plain_experts, by_layer("NVFP4", True)), edit(
            "ignore", [f"model.layers.{n}.mlp.experts" for n in range(2)])), 1, {"vllm", "sglang"}),
    "DeepSeek-V4 in MXFP8 but wo_a, on two ranks": (lambda: v4_in_mxfp8(False), None, 2, {"vllm"}),
    "DeepSeek-V4 in NVFP4 but attention, by SGLang's names, too": (
        lambda: v4_in_nvfp4("attn."), lambda m: m.quantization["ignore"].append("re:.*self_attn.*"), 1, {"vllm", "sglang"}),
    "groups of V4's wo_a in whole blocks": (deepseek_v4, lambda m: m.config.update(o_lora_rank=256), 2, {"vllm", "sglang"}),
    "Qwen3-Next's attention in a mixture of ModelOpt's": (
        lambda: of_family(remade("nvfp4-modelopt"), "qwen3_next"), by_layer("NVFP4"), 1, {"vllm", "sglang"}),
    "ends in a list of SGLang's Mixtral": (
        lambda: of_family(remade("nvfp4a16-ct", experts=2), "mixtral"), lambda m: m.quantization["ignore"].extend(
            ["self_attn.qkv_proj", "self_attn.o_proj"]), 1, {"sglang"}),
    "both files, equal": (lambda: remade("nvfp4-modelopt"), None, 1, ENGINES),
    "both files, one with a scheme for the cache": (lambda: remade("nvfp4-modelopt"), edit("kv_cache_scheme", KV_FP8), 1, ENGINES),
    "both files, equal in the KV cache": (lambda: remade("nvfp4-modelopt"), edit("kv_cache_scheme", KV_FP8), 1, ENGINES),
    "scales of inputs that differ": (lambda: remade("nvfp4-modelopt"), put(f"{UP}.input_scale", number(1 / 32)), 1,
                                     {"vllm", "sglang"}),
    "globals of gate and down": (lambda: remade("nvfp4-modelopt"), put(f"{DOWN}.weight_scale_2", number(1 / 256)), 1, ENGINES),
    "globals that differ, in transformers": (lambda: remade("nvfp4a16-ct"), put(f"{UP}.weight_global_scale", number(256, 1)),
                                             1, {"transformers"}),
    "mixed precision by expressions": (lambda: remade("nvfp4-ct"), mixed(["re:.*mlp.*"], ["re:.*self_attn.*"]), 1, ALL),
    "FP8 beside NVFP4": (lambda: fp8_beside_nvfp4("re:.*mlp.*", "re:.*self_attn.*"), None, 1, ALL),
    "act-order in one group": (lambda: remade("gptq"), lambda m: (edit("desc_act", True)(m), one_group(m)), 1, {"vllm"}),
    "GPTQ v2, symmetric": (lambda: remade("gptq"), second_version, 1, {"vllm"}),
    "gpt-oss's experts at a size that cuts blocks": (gpt_oss, lambda m: m.config.update(
        num_attention_heads=16, num_key_value_heads=16, head_dim=16), 16, {"vllm", "sglang"}),
    "groups that end with ranks": (lambda: remade("mxfp4-ct", intermediate=320), None, 2, {"vllm"}),
    "zero points that end with ranks": (lambda: remade("int4-ct-zeros", intermediate=256), None, 2, {"vllm", "sglang"}),
    "DeepSeek-V4 on two ranks": (deepseek_v4, None, 2, {"vllm", "sglang"}),
    "FP8 experts in SGLang, whatever the scales": (lambda: deepseek_v4("fp8", "F8_E8M0"), None, 1, {"sglang"}),
    "targets that name members, where the class knows them": (
        lambda: of_family(remade("nvfp4a16-ct"), "qwen3_next"), targets_of_members, 1, {"vllm", "sglang"}),
    "a list that names members, where the class knows them": (
        lambda: of_family(remade("nvfp4a16-ct", experts=2), "qwen3_next"),
        lambda m: m.quantization["ignore"].remove("model.layers.0.self_attn.qkv_proj"), 1, {"vllm", "sglang"}),
    "targets that name members and the fused layers": (
        lambda: remade("nvfp4a16-ct"), both(targets_of_members, lambda m: m.quantization["config_groups"]["group_0"][
            "targets"].extend(f"model.layers.{n}.{leaf}" for n in range(2) for leaf in ("self_attn.qkv_proj", "mlp.gate_up_proj"))),
        1, {"vllm", "sglang"}),
    "NVFP4 experts, compressed-tensors": (lambda: remade("nvfp4-ct", experts=2), None, 1, ENGINES),
    "stacked FP8 experts of Qwen3.5": (lambda: fp8_stack("qwen3_5_moe"), None, 1, {"vllm"}),
}


def one_group(m):
    """Makes one scale per row."""
    edit("group_size", -1)(m)
    for name in [n for n in m.tensors if n.endswith((".scales", ".qzeros", ".g_idx"))]:
        dtype, shape, data = m.tensors[name]
        m.tensors[name] = (dtype, shape, bytes(len(data))) if name.endswith("g_idx") else raw(dtype, 1, shape[1], fill=0x77 if name.endswith("qzeros") else 0x33)


def fp8_stack(family):
    m = remade("fp8-block-modelopt")
    m.config["model_type"] = family
    for layer in range(2):
        y = f"model.layers.{layer}.mlp.experts"
        for leaf, o, i in (("gate_up_proj", 512, 256), ("down_proj", 256, 256)):
            m.tensors |= {f"{y}.{leaf}": raw("F8_E4M3", 2, o, i, fill=0x38),
                          f"{y}.{leaf}_scale": raw("F32", 2, o // 128, i // 128)}
    return m


@pytest.mark.parametrize("name", YES)
def test_yes(name, inspect, tmp_path):
    make, act, tp, loaders = YES[name]
    m = make()
    if act:
        act(m)
    path = m.write(tmp_path / "m")
    if "file" in name:
        side_file(path, **({"kv_cache_quant_algo": "FP8"} if "KV" in name else {}))
    code, got = inspect(path, "--can-load", ",".join(sorted(loaders)), "--tp", str(tp))
    assert code == 0 and all(ok for row in got["can_load"].values() for ok in row.values()), json.dumps(
        got["load_findings"], indent=1)


def test_byte_0_of_e8m0(inspect, tmp_path):
    """SGLang shifts the byte to 0, which is a warning if the codes are not all zero. All writers store it for zeros."""
    for fill, warned in ((0x33, True), (0x80, False)):
        m = of_family(remade("mxfp4-ct", experts=2), "kimi_k3")
        name = f"{E0}.up_proj.weight_packed"
        dtype, shape, data = m.tensors[name]
        m.tensors[name] = (dtype, shape, data[:48] + bytes([fill]) * 16 + data[64:])  # -0.0 is a zero, 0x80 a pair of them
        if not warned:
            m.tensors[name] = (dtype, shape, data[:48] + b"\x08\x80" * 8 + data[64:])
        scale = f"{E0}.up_proj.weight_scale"
        dtype, shape, data = m.tensors[scale]
        m.tensors[scale] = (dtype, shape, data[:3] + b"\0" + data[4:])
        code, got = inspect(m.write(tmp_path / f"m{fill}"), "--can-load", "sglang,vllm", "--tp", "1")
        mine = [f for f in got["load_findings"] if f["rule"] == "scale values"]
        assert code == 0 and [f["loader"] for f in mine] == ["sglang"] * warned, got["load_findings"]
        assert all(f["severity"] == "warning" and f["tensor"] == scale and "value 3 " in f["detail"] for f in mine)


def test_byte_255_of_e8m0(inspect, tmp_path):
    m = remade("mxfp4-ct", experts=2)
    scale = f"{E0}.up_proj.weight_scale"
    dtype, shape, data = m.tensors[scale]
    m.tensors[scale] = (dtype, shape, data[:3] + b"\xff" + data[4:])
    code, got = inspect(m.write(tmp_path / "m"), "--can-load", "all", "--tp", "1")
    assert code == 1 and any("1 NaN or Inf" in f["detail"] for f in got["findings"]), got["findings"]
    assert not any(row["1"] for row in got["can_load"].values())


def test_expert_dtype_absent_is_said_to_all(inspect, tmp_path):
    """A loader whose default is correct gets a note that others differ."""
    m = deepseek_v4()
    drop_key("expert_dtype")(m)
    got = load_table(inspect, m, tmp_path, loaders="vllm,sglang,transformers")
    mine = {f["loader"]: f["severity"] for f in got["load_findings"] if f["rule"] == "expert_dtype"}
    assert mine == {"vllm": "warning", "transformers": "error"}
