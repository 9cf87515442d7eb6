"""`tessera inspect --can-load`: parts of a layer whose form, cut or statement in config.json is wrong alone, each broken once."""

from format_samples import compressed, group
from loader_kinds import int4, raw, remade
from loader_models import ENGINES, HF, Model, deepseek, edit, hold_to_rule, llama, load_table
import numpy as np
import pytest

E1 = "model.layers.0.mlp.experts.1"


def integers(bits, size, *targets):
    return group(bits, size, kind="int") | {"targets": list(targets)}


def eight_bits(m):
    """Makes expert 1 of layer 0 in eight bits, with a group of its own."""
    for leaf, rows, cols in (("gate_proj", 512, 256), ("up_proj", 512, 256), ("down_proj", 256, 512)):
        m.tensors |= int4(f"{E1}.{leaf}", rows, cols) | {f"{E1}.{leaf}.weight_packed": raw("I32", rows, cols // 4)}
    m.quantization["config_groups"] = {"group_0": integers(4, 32, "re:.*experts.0.*", "re:.*layers.1.*experts.1.*"),
                                       "group_1": integers(8, 32, "re:.*layers.0.*experts.1.*")}


def shared(m):
    """Makes a shared expert whose last matrix is unquantized and listed."""
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.shared_experts."
        for leaf in ("gate_proj", "up_proj"):
            m.linear(prefix + leaf, 256, 256)
        m.plain(prefix + "down_proj", (256, 256))
        m.quantization["modules_to_not_convert"].append(prefix + "down_proj")


def padded_columns(m):
    """Makes a grid of eight columns of blocks for a weight with two."""
    for name in [name for name in m.tensors if name.endswith("_scale_inv")]:
        m.scale(name, np.ones((m.tensors[name][1][0], 8)))


def joined_qkv():
    """Makes Phi-3's qkv_proj. Each of two ranks has one head of keys, of 64 rows."""
    m = Model({"model_type": "phi3", "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64})
    for layer in range(2):
        m.linear(f"model.layers.{layer}.self_attn.qkv_proj", 512, 256)
        m.linear(f"model.layers.{layer}.self_attn.o_proj", 256, 256)
    return m


def int8_in_groups():
    m = llama()
    for name in [name for name in m.tensors if name.endswith("_scale_inv")]:
        module = name.removesuffix(".weight_scale_inv")
        rows, cols = m.tensors[f"{module}.weight"][1]
        del m.tensors[name]
        m.tensors |= {f"{module}.weight": raw("I8", rows, cols), f"{module}.weight_scale": raw("BF16", rows, cols // 128)}
    m.config["quantization_config"] = compressed("int-quantized", group(8, 128, kind="int"))
    return m


def hy_v4():
    """Makes Hy-V4. Its class in transformers has stacks, but no conversion that fills them, so experts keep their initial
    values."""
    m = llama(experts=2)
    m.config["model_type"] = "hy_v4"
    return m


def of_linear_attention(rows):
    m = llama()
    m.config["model_type"] = "qwen3_next"
    m.linear("model.layers.0.linear_attn.in_proj_ba", rows, 256)
    return m


def overlapping(m):
    """Makes two groups whose targets match the same modules. The first one in any order is for groups of 128 columns."""
    m.quantization["config_groups"] = {"group_0": integers(4, 128, "re:.*layers.*"), "group_1": integers(4, 32, "re:.*proj$")}


# name -> model, what is broken, TP, loaders that say no for this rule (and no others do), rule, words of the finding
PARTS = {
    "experts of four and of eight bits": (lambda: remade("int4-ct", experts=2), eight_bits, 1, HF, "experts together", [E1, "another form"]),
    "a shared expert in part": (deepseek, shared, 1, {"sglang"}, "experts together", ["shared_experts.", "first matrix"]),
    "Hy-V4's experts one by one": (hy_v4, None, 1, {"transformers"}, "stacked experts", ["experts.0", "one tensor for each layer"]),
    "halves of 64 rows": (lambda: of_linear_attention(128), None, 1, {"vllm", "sglang"}, "blocks", ["two parts of 64", "block of 128"]),
    "int8 in groups": (int8_in_groups, None, 1, {*ENGINES, "deepseek"}, "groups", ["int8 in groups of 128"]),
    "padded columns": (llama, padded_columns, 1, HF, "padded scales", ["[2, 8]", "2 x 2 blocks"]),
    "keys of a joined qkv_proj": (joined_qkv, None, 2, {*ENGINES, "deepseek"}, "blocks", ["2 heads each of keys and values"]),
    "a group of another size first": (lambda: remade("int4-ct"), overlapping, 1, HF - {"transformers"}, "targets", ["says otherwise"]),
    "values of 64 rows a head": (lambda: deepseek(128, 64), None, 1, {"trtllm"}, "head boundaries", ["1.5 scale rows"]),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts(name, inspect, tmp_path):
    hold_to_rule(*PARTS[name], inspect, tmp_path)


def test_blocks_without_their_size(inspect, tmp_path):
    """The size is given only on the command line, so loaders read the scales as one per tensor."""
    m = llama()
    del m.quantization["weight_block_size"]
    code, got = inspect(m.write(tmp_path / "m"), "--source-block", "128x128", "--can-load", "all", "--tp", "1")
    lost = {f["loader"] for f in got["load_findings"] if f["rule"] == "configuration" and "weight_block_size" in f["detail"]}
    assert code == 1 and lost == HF


def test_whole_halves_of_linear_attention(inspect, tmp_path):
    got = load_table(inspect, of_linear_attention(256), tmp_path)
    assert not any("two parts" in f["detail"] for f in got["load_findings"])
