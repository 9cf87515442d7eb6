"""Tests `quantize --rules` in the dialect of ModelOpt: MIXED_PRECISION with the algorithm of each layer."""

import json

import harness
import mx_oracle as mx
import pytest
import stored_oracle as stored

SCHEMES = {"*.self_attn.*": "mxfp8", "*": "nvfp4-weight-only"}
ALGORITHMS = {"mxfp8": {"quant_algo": "MXFP8", "group_size": 32}, "nvfp4-weight-only": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
              "nvfp4": {"quant_algo": "NVFP4", "group_size": 16}}


def rules(tmp_path, schemes=SCHEMES, **more):
    return harness.write_json(tmp_path / "rules.json", {"rules": [{"match": m, "scheme": s} for m, s in schemes.items()], **more})


def scheme_of(module):
    return "mxfp8" if ".self_attn." in module else "nvfp4-weight-only"


@pytest.mark.parametrize("how", ["in the file", "by the option"])
def test_each_layer_by_name(tmp_path, tessera, quantize, inspect, convert, how):
    src, arrays = mx.model(tmp_path / "src")
    if how == "in the file":
        dst = quantize(src, "--rules", rules(tmp_path, dialect="modelopt"))
    else:
        dst = quantize(src, "--rules", rules(tmp_path), "--dialect", "modelopt")
    got = stored.read_any(dst / "model.safetensors")
    alone = {s: stored.read_any(quantize(src, "--scheme", s, "--dialect", "modelopt", "--include", "*") / "model.safetensors")
             for s in ("mxfp8", "nvfp4-weight-only")}
    config = json.loads((dst / "config.json").read_text())["quantization_config"]
    side = json.loads((dst / "hf_quant_config.json").read_text())["quantization"]
    coded = {n.removesuffix(".weight_scale") for n in got if n.endswith(".weight_scale")}
    assert {scheme_of(m) for m in coded} == {"mxfp8", "nvfp4-weight-only"}
    for module in coded:  # the same bytes as in one scheme throughout
        mine = {n: a for n, a in got.items() if n.startswith(module + ".")}
        want = {n: a for n, a in alone[scheme_of(module)].items() if n.startswith(module + ".")}
        assert mine.keys() == want.keys() and all(mine[n].tobytes() == want[n].tobytes() for n in mine), module
    joined = {m.replace(*ends) for m in coded for ends in (("q_proj", "qkv_proj"), ("gate_proj", "gate_up_proj"))
              if m.endswith(ends[0]) and ".experts." not in m}
    assert joined and config["quantized_layers"] == side["quantized_layers"] == {
        m: ALGORITHMS[scheme_of(m)] for m in coded | joined}
    assert config["quant_algo"] == side["quant_algo"] == "MIXED_PRECISION" and config["quant_method"] == "modelopt"
    assert config["ignore"] == side["exclude_modules"] == ["lm_head"] and side["kv_cache_quant_algo"] is None
    targets = [t for g in config["config_groups"].values() for t in g["targets"]]
    assert sorted(targets) == sorted(coded)
    code, told = inspect(dst, "--can-load", "vllm,sglang,trtllm", "--tp", "1")
    assert not [f for f in told["load_findings"] if f["severity"] == "error" and f["rule"] in
                ("configuration", "ignore list", "targets", "pairing", "quantized_layers")], told["load_findings"]
    harness.succeed(tessera, ["verify", dst, "--against", src])
    assert stored.read_any(convert(dst, "--to", "bf16") / "model.safetensors").keys() == stored.read_any(src / "model.safetensors").keys()


def test_experts_that_stay_are_excluded(tmp_path, quantize):
    """Without these entries vLLM would read the experts with the scheme of the shared expert."""
    src, _ = mx.model(tmp_path / "src", modules=mx.MIXTRAL, kind="mixtral")
    dst = quantize(src, "--rules", rules(tmp_path, {"*.experts.*": "keep", "*": "nvfp4-weight-only"}, dialect="modelopt"))
    config = json.loads((dst / "config.json").read_text())["quantization_config"]
    side = json.loads((dst / "hf_quant_config.json").read_text())["quantization"]
    assert config["ignore"] == side["exclude_modules"] == ["model.layers.0.block_sparse_moe.experts", "lm_head"]
    assert "model.layers.0.self_attn.qkv_proj" in config["quantized_layers"]
    assert not any(".experts" in module for module in config["quantized_layers"])


@pytest.mark.parametrize("scheme", ["fp8-block", "mxfp4", "int4-weight-only", "mxfp8-weight-only"])
def test_what_modelopt_has_no_algorithm_for(tmp_path, tessera, scheme):
    src, _ = mx.model(tmp_path / "src")
    code, _, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "dst", "--rules",
                                         rules(tmp_path, {"*": scheme}, dialect="modelopt")])
    assert code == 3 and scheme in err and "compressed-tensors" in err and not (tmp_path / "dst").exists()


def test_no_mixture_in_deepseeks(tmp_path, tessera):
    src, _ = mx.model(tmp_path / "src")
    harness.expect(tessera, ["quantize", src, "-o", tmp_path / "dst", "--rules", rules(tmp_path), "--dialect", "deepseek"], 2, "modelopt for several schemes")
