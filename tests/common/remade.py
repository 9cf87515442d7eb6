"""Makes checkpoints with kinds of codes that Tessera reads but does not write, with correct names, dtypes and shapes.

Values are arbitrary. Does not need NumPy. tests/common/format_samples.py makes weights with known values."""

import array
import json
import os
import random
import re
import shutil
import sys

import harness

GROUP = 32
SCALES = bytes(100 + i % 40 for i in range(256))  # E8M0 bytes of weights' usual sizes, by any byte


def integers(values):
    return array.array("i", values).tobytes()


def halves(rng, count):
    """Makes positive F16 between 2^-8 and 2^-6, with high bytes 0x1C to 0x23."""
    data = bytearray(rng.randbytes(2 * count))
    data[1::2] = data[1::2].translate(bytes(0x1C + i % 8 for i in range(256)))
    return bytes(data)


def awq(x, rows, cols, rng):
    groups = cols // GROUP
    return {x + ".qweight": ("I32", [cols, rows // 8], rng.randbytes(cols * rows // 2)),
            x + ".qzeros": ("I32", [groups, rows // 8], rng.randbytes(groups * rows // 2)),
            x + ".scales": ("F16", [groups, rows], halves(rng, groups * rows))}


def gptq(x, rows, cols, rng):
    """Makes GPTQ in act-order. Stored zero points are one less: 15 would be 16, which only GPTQ has."""
    fitting = bytes(b - (b % 16 == 15) - 16 * (b // 16 == 15) for b in range(256))
    groups = cols // GROUP
    order = [c // GROUP for c in range(cols)]
    rng.shuffle(order)
    return {x + ".qweight": ("I32", [cols // 8, rows], rng.randbytes(cols * rows // 2)),
            x + ".qzeros": ("I32", [groups, rows // 8], rng.randbytes(groups * rows // 2).translate(fitting)),
            x + ".scales": ("F16", [groups, rows], halves(rng, groups * rows)), x + ".g_idx": ("I32", [cols], integers(order))}


def gptoss(x, rows, cols, rng):
    """Makes a stack of one matrix."""
    groups = cols // GROUP
    return {x + "_blocks": ("U8", [1, rows, groups, GROUP // 2], rng.randbytes(rows * cols // 2)),
            x + "_scales": ("U8", [1, rows, groups], rng.randbytes(rows * groups).translate(SCALES))}


def stacked(name, shape, data):
    """Makes the feed-forward layers as stacks of experts, [experts, in, out], with the same numbers in another order. A long
    row becomes several experts in its own layer. The other layers have one expert."""
    if ".mlp." not in name or len(shape) != 2:
        return {name: ("BF16", shape, data)}
    rows, cols = shape
    experts = cols // 2048 if cols % 2048 == 0 else 1
    layer, _, leaf = name.removesuffix(".weight").replace(".shared_experts.", ".").rpartition(".")
    one = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)", layer)  # which gets a layer of its own
    layer = layer if one is None else f"model.layers.{256 * int(one[1]) + int(one[2])}.mlp"
    if experts > 1:
        layer = re.sub(r"\d+", lambda number: str(int(number[0]) + 1000), layer, count=1)
    stack = {"up_proj": "experts.gate_up_proj", "down_proj": "experts.down_proj"}.get(leaf)
    return {} if stack is None else {f"{layer}.{stack}": ("BF16", [experts, cols // experts, rows], data)}


V4_NAMES = {"model.": "", ".mlp.experts.": ".ffn.experts.", ".mlp.shared_experts.": ".ffn.shared_experts.", ".mlp.gate.": ".ffn.gate.",
            ".mlp.": ".ffn.experts.0.", ".gate_proj.": ".w1.", ".up_proj.": ".w3.", ".down_proj.": ".w2.", ".self_attn.": ".attn.",
            ".q_a_proj.": ".wq_a.", ".q_b_proj.": ".wq_b.", ".kv_a_proj_with_mqa.": ".wkv.", ".o_proj.": ".wo_b."}


def under_v4_names(name, shape, data):
    """Returns DeepSeek-V4's names; a dense layer becomes an expert."""
    for old, new in V4_NAMES.items():
        name = name.replace(old, new)
    return {name: ("BF16", shape, data)}


# name: (tensors of a module, quantization_config)
KINDS = {
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "sym": False}),
    "gpt-oss": (gptoss, {"quant_method": "mxfp4"}),
}

# Plain weights: (what becomes of a tensor, what config.json says; None: a key is left out).
STACKS, GPT_OSS, V4 = "stacks", "stacks of gpt-oss", "names of DeepSeek-V4"
PLAIN = {
    # hidden_size is not that of the giant's rows.
    STACKS: (stacked, {"model_type": "qwen3_vl_moe_text", "hidden_size": None}),
    GPT_OSS: (stacked, {"model_type": "gpt_oss", "hidden_size": None}),
    V4: (under_v4_names, {"model_type": "deepseek_v4"}),
}


def add_partners(made, places):
    """Adds a small stack to a layer of gpt-oss that has only a long one, because each layer has both."""
    lacking = {}
    for name, file in places.items():
        layer, _, leaf = name.rpartition(".")
        partner = layer + (".down_proj" if leaf == "gate_up_proj" else ".gate_up_proj")
        if leaf in ("gate_up_proj", "down_proj") and partner not in places:
            lacking.setdefault(file, {})[partner] = "BF16", [1, 64, 64], bytes(2 * 64 * 64)
    for file, partners in lacking.items():
        metadata, tensors = harness.read_safetensors(os.path.join(made, file))
        harness.write_safetensors(os.path.join(made, file), tensors | partners, metadata)
        places |= dict.fromkeys(partners, file)


def remake(kind, source, made):
    """Copies the checkpoint `source` to `made`, with its projections replaced by codes of this kind, or its unquantized
    weights in another form."""
    make, config = PLAIN[kind] if kind in PLAIN else KINDS[kind]
    places = {}
    shutil.copytree(source, made)
    for file in sorted(name for name in os.listdir(made) if name.endswith(".safetensors")):
        metadata, tensors = harness.read_safetensors(os.path.join(made, file))
        entries = {}
        for name, (dtype, shape, data) in tensors.items():
            if kind in PLAIN and dtype == "BF16":
                entries |= make(name, shape, data)
            elif kind in KINDS and len(shape) == 2 and name.endswith("_proj.weight") and shape[0] % GROUP == shape[1] % GROUP == 0:
                entries |= make(name.removesuffix(".weight"), *shape, random.Random(name))
            else:
                entries[name] = dtype, shape, data
        harness.write_safetensors(os.path.join(made, file), entries, metadata)
        places |= dict.fromkeys(entries, file)
    if kind == GPT_OSS:
        add_partners(made, places)
    index, path = os.path.join(made, "model.safetensors.index.json"), os.path.join(made, "config.json")
    if os.path.exists(index):
        with open(index, "w") as file:
            json.dump({"metadata": {}, "weight_map": places}, file)
    with open(path) as file:
        text = json.load(file)
    if kind == STACKS:
        text["num_hidden_layers"] = 1 + max(int(name.split(".")[2]) for name in places if name.startswith("model.layers."))
    with open(path, "w") as file:
        changed = text | (config if kind in PLAIN else {"quantization_config": config})
        json.dump({key: value for key, value in changed.items() if value is not None}, file)


if __name__ == "__main__":
    remake(*sys.argv[1:])
