"""Contradictions between compressed-tensors' config.json and the tensors: refused if values have two meanings, else a warning."""

import json

from checkpoints import DEEPSEEK, E4M3, load, make, same_bits
import harness
import numpy as np
import pytest
from int_oracle import UP

from coded_weights import NVFP4


def integers(weights, zeros, form="int-quantized", scale=(40, 2)):
    """Makes an int8 weight whose configuration has these values."""
    q = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "dynamic": False, **weights}}}}
    tensors = {UP: np.arange(40 * 256).reshape(40, 256).astype(np.int8), UP + "_scale": np.full(scale, 0.5, np.float32)}
    if zeros:
        tensors[UP + "_zero_point"] = np.full(scale, 3, np.int8)
    return tensors, q


GROUPS, CHANNEL = {"strategy": "group", "group_size": 128, "symmetric": True}, {"strategy": "channel", "symmetric": True}
WARNED = {
    "strategy channel over groups": (integers({**GROUPS, "strategy": "channel"}, False), 'strategy "channel"'),
    "strategy tensor over channels": (integers({**CHANNEL, "strategy": "tensor"}, False, scale=(40, 1)), 'strategy "tensor"'),
    "another format": (integers(GROUPS, False, form="pack-quantized"), 'format "pack-quantized"'),
}


@pytest.mark.parametrize("name", WARNED)
def test_every_command_warns(tmp_path, tessera, convert, name):
    (tensors, q), words = WARNED[name]
    src = make(tmp_path / "src", {"model.safetensors": tensors}, q)
    harness.expect(tessera, ["convert", src, "-o", tmp_path / "dst", "--to", "bf16", "--quiet"], 0, UP, words)
    code, out, err = harness.run(tessera, ["verify", tmp_path / "dst", "--against", src, "--min-sqnr", "0"])
    assert words in err, out + err
    code, out, err = harness.run(tessera, ["diff", tmp_path / "dst", src, "--json", tmp_path / "d.json"])
    assert words in err, out + err
    harness.shows(tessera, ["inspect", src], 0, UP, words)
    if "format" not in words:
        harness.shows(tessera, ["inspect", src, "--can-load", "vllm", "--tp", "1"], 1, words)
    assert load(tmp_path / "dst")[UP].shape == (40, 256)


@pytest.mark.parametrize("where, changed", [
    ("quantization_config", {"rotation": "hadamard"}), ("quantization_config.config_groups.group_0", {"permutation": True}),
    ("quantization_config.config_groups.group_0.weights", {"codebook": [1, 2]})])
def test_an_unknown_member_is_named(tmp_path, tessera, convert, refuse, where, changed):
    """It may change how weights are decoded. One that is null states nothing. compressed-tensors rejects others in groups."""
    tensors, q = integers(GROUPS, False)
    place = q
    for name in where.split(".")[1:]:
        place = place[name]
    place.update(dict.fromkeys(changed))
    src = make(tmp_path / "src", {"model.safetensors": tensors}, q)
    assert harness.run(tessera, ["convert", src, "-o", tmp_path / "null", "--to", "bf16", "--quiet"])[2] == ""
    place.update(changed, another=1)
    src = make(tmp_path / "other", {"model.safetensors": tensors}, q)
    words = f"{where}: unknown member '{next(iter(changed))}'"
    code, _, err = harness.run(tessera, ["convert", src, "-o", tmp_path / "dst", "--to", "bf16", "--quiet"])
    told, out, _ = harness.run(tessera, ["inspect", src])
    assert words in err and words in out, err + out
    if "group_0" in where:
        assert (code, told) == (3, 1) and "remove it if it does not" in err, err
        refuse(src, 3, words, options=("--to", "int8-weight-only"))
    else:
        assert (code, told) == (0, 0) and "(and 1 other)" in err, err


@pytest.mark.parametrize("changed", [{"fmt": "e5m2"}, {"fmt": 3}, {"scale_fmt": "ue4m3"}])
def test_an_unknown_word_is_named(tmp_path, tessera, changed):
    """The dtypes of the tensors decide. MiniMax writes another word for e4m3."""
    tensors = {UP: np.ones((128, 128), np.float32).astype(E4M3), UP + "_scale_inv": np.ones((1, 1), np.float32)}
    name, word = next(iter(changed.items()))
    for number, known in enumerate([{"fmt": "float8_e4m3fn", "scale_fmt": "ue8m0"}, {"fmt": None}, changed]):
        src = make(tmp_path / f"src{number}", {"model.safetensors": tensors}, {**DEEPSEEK, **known})
        code, _, err = harness.run(tessera, ["convert", src, "-o", tmp_path / f"dst{number}", "--to", "bf16", "--quiet"])
        assert code == 0 and (f"quantization_config: unknown {name} {json.dumps(word)}" in err) == (known is changed), err


# Members that GPTQModel, AutoAWQ, ModelOpt and DeepSeek write.
FULL = [
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "damp_percent": 0.05, "desc_act": False, "static_groups": False, "sym": True,
     "lm_head": False, "true_sequential": True, "pack_dtype": "int32", "checkpoint_format": "gptq", "meta": {"quantizer": ["gptqmodel:5.0"]}},
    {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm", "modules_to_not_convert": None},
    {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
    {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": ["lm_head"],
     "producer": {"name": "modelopt", "version": "0.45"}},
    {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "format": "gemm", "checkpoint_format": "gemm",
     "pack_dtype": "int32", "desc_act": False, "sym": False, "meta": {"quantizer": ["gptqmodel:5.6"]}},
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "provider": "auto-round", "autoround_version": "0.12.2", "iters": 200,
     "data_type": "int"},
]


@pytest.mark.parametrize("q", FULL, ids=lambda q: f"{q['quant_method']}, {len(q)} members")
def test_known_members_are_read_without_a_word(tmp_path, tessera, q):
    src = make(tmp_path / "src", {"model.safetensors": {"x.weight": np.ones((4, 4), np.float32)}}, q)
    code, _, err = harness.run(tessera, ["convert", src, "-o", tmp_path / "dst", "--to", "archive", "--quiet"])
    assert code == 0 and "unknown member" not in err, err


@pytest.mark.parametrize("weights,scale", [(GROUPS, (40, 2)), (CHANNEL, (40, 1)), ({**CHANNEL, "strategy": "tensor"}, (1,)),
                                           ({"group_size": 128}, (40, 2))])
@pytest.mark.parametrize("zeros", [False, True])
def test_what_agrees_is_read_without_a_word(tmp_path, tessera, weights, scale, zeros):
    tensors, q = integers({**weights, "symmetric": not zeros}, zeros, scale=scale)
    src = make(tmp_path / "src", {"model.safetensors": tensors}, q)
    code, _, err = harness.run(tessera, ["convert", src, "-o", tmp_path / "dst", "--to", "bf16", "--dtype", "f32", "--quiet"])
    assert code == 0 and err == "", err
    want = (tensors[UP].astype(np.float32) - 3 * zeros) * np.float32(0.5)
    assert same_bits(load(tmp_path / "dst")[UP], want.astype(np.float32))


def test_zero_points_of_symmetric_weights_are_refused(tmp_path, tessera, refuse):
    tensors, q = integers(GROUPS, True)
    src = make(tmp_path / "src", {"model.safetensors": tensors}, q)
    refuse(src, 3, UP, UP + "_zero_point", "symmetric true")
    harness.shows(tessera, ["inspect", src, "--can-load", "vllm"], 1, "symmetric true")


@pytest.mark.parametrize("word", ["pack-quantised", "", "marlin-24"])
def test_an_unknown_format_is_refused(tmp_path, tessera, refuse, word):
    tensors, q = integers(GROUPS, False, form=word)
    src = make(tmp_path / "src", {"model.safetensors": tensors}, q)
    refuse(src, 3, "quantization_config.format", f'"{word}"')
    harness.shows(tessera, ["inspect", src, "--can-load", "vllm"], 1, f'"{word}"')


def test_the_default_format_says_nothing_of_the_tensors(tmp_path, tessera):
    tensors, q = integers(GROUPS, False, form="fakequant")
    src = make(tmp_path / "src", {"model.safetensors": tensors}, q)
    code, _, err = harness.run(tessera, ["convert", src, "-o", tmp_path / "dst", "--to", "bf16", "--dtype", "f32", "--quiet"])
    assert code == 0 and err == "", err
    assert same_bits(load(tmp_path / "dst")[UP], tensors[UP].astype(np.float32) / 2)
    harness.shows(tessera, ["inspect", src, "--can-load", "vllm"], 1, "quantization_config.format is not")


@pytest.mark.parametrize("place", ["compression_config", "text_config"])
def test_two_objects_that_disagree_are_refused(tmp_path, refuse, place):
    """White space and lists of modules may differ, and a member may be in one of them only."""
    tensors, q = integers(GROUPS, False)
    for number, changed in enumerate([{}, {"ignore": ["x"], "version": "0.12"}, {"format": "pack-quantized"},
                                      {"config_groups": {"group_0": {**q["config_groups"]["group_0"], "weights": {"num_bits": 4}}}}]):
        other = {**q, **changed}
        src = make(tmp_path / f"src{number}", {"model.safetensors": tensors}, {**q, "ignore": []},
                   **{place: {"quantization_config": other} if place == "text_config" else other})
        config = json.loads((src / "config.json").read_text())
        (src / "config.json").write_text(json.dumps(config, indent=2))
        if number < 2:
            refuse(src, 0, "", options=("--to", "bf16", "--dry-run"))
        else:
            refuse(src, 3, "quantization_config." + next(iter(changed)), "remove the object that is wrong")


@pytest.mark.parametrize("place", ["llm_config.quantization_config", "thinker_config.text_config.quantization_config", "text_config.compression_config"])
def test_an_object_in_another_place_is_refused(tmp_path, tessera, refuse, place):
    """The weights can be read without it, but the output would still state it."""
    tensors, q = integers(CHANNEL, False, scale=(40, 1))
    outer, *inner = reversed(place.split("."))
    nested = {outer: q}
    for name in inner:
        nested = {name: nested}
    src = make(tmp_path / "src", {"model.safetensors": tensors}, None, **nested)
    refuse(src, 3, place, "top level")
    code, _, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "dst"])
    assert code == 3 and place in err, err


def test_mxfp4_stated_over_nvfp4(tmp_path, tessera):
    w = "model.layers.0.mlp.up_proj.weight"
    tensors = {w + "_packed": np.zeros((32, 32), np.uint8), w + "_scale": np.full((32, 4), 0x38, np.uint8), w + "_global_scale": np.ones(1, np.float32)}
    q = {**NVFP4, "format": "mxfp4-pack-quantized"}
    entries = {n: ("F8_E4M3" if n.endswith("_weight_scale") or n == w + "_scale" else {"uint8": "U8", "float32": "F32"}[t.dtype.name], t.shape, t.tobytes())
               for n, t in tensors.items()}
    src = tmp_path / "src"
    src.mkdir()
    harness.write_safetensors(src / "model.safetensors", entries)
    (src / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": q}))
    harness.expect(tessera, ["convert", src, "-o", tmp_path / "dst", "--to", "bf16", "--quiet"], 0, 'format "mxfp4-pack-quantized"', "NVFP4")


@pytest.mark.parametrize("quantized", [False, True])
def test_sparse_weights_are_refused_wherever_they_are_stated(tmp_path, refuse, quantized):
    tensors, q = integers(GROUPS, False)
    if not quantized:
        tensors, q = {UP: np.ones((40, 256), np.float32)}, None
    src = make(tmp_path / "src", {"model.safetensors": tensors}, q, sparsity_config={"format": "sparse-bitmask"})
    refuse(src, 3, "sparsity_config", "sparse-bitmask", options=("--to", "bf16") if quantized else ("--to", "tp", "--tp", "1"))
    dense = make(tmp_path / "dense", {"model.safetensors": tensors}, q, sparsity_config={"format": "dense"})
    if quantized:
        refuse(dense, 0, "", options=("--to", "bf16", "--dry-run"))
