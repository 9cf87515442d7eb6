"""Files as others might have made them: one change each to what Tessera wrote. The values stay those of the original."""

import json

import torch
from safetensors.torch import load_file, save_file


def config(change):
    def act(folder):
        path = folder / "config.json"
        whole = json.loads(path.read_text())
        change(whole["quantization_config"])
        path.write_text(json.dumps(whole))

    return act


def tensors(change):
    def act(folder):
        for path in folder.glob("*.safetensors"):
            whole = load_file(path)
            change(whole)
            save_file(whole, path, {"format": "pt"})

    return act


def add(*entries):
    return config(lambda q: q["ignore" if "ignore" in q else "modules_to_not_convert"].extend(entries))


def drop(word):
    def act(q):
        key = "ignore" if "ignore" in q else "modules_to_not_convert"
        q[key] = [entry for entry in q[key] if word not in entry]

    return config(act)


def exponents(whole):
    for name in [name for name in whole if name.endswith("_scale_inv")]:
        whole[name] = whole[name].to(torch.float8_e8m0fnu)


def pad(whole):
    for name in [name for name in whole if name.endswith("down_proj.weight_scale_inv")]:
        scale = whole[name]
        whole[name] = torch.nn.functional.pad(scale, (0, 0, 0, 8 - scale.shape[0] % 8), value=1.0)


def plain(word, listed=True):
    """Casts the layers whose names contain `word`, and lists them."""

    def act(folder):
        cast = []

        def change(whole):
            for name in [name for name in whole if word in name and name.endswith(".weight") and name + "_scale_inv" in whole]:
                scale = whole.pop(name + "_scale_inv")
                rows, cols = whole[name].shape
                wide = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
                whole[name] = (whole[name].float() * wide).bfloat16()
                cast.append(name.removesuffix(".weight"))

        tensors(change)(folder)
        if listed:
            add(*cast)(folder)

    return act


def keys(q):
    q["ignored_layers"] = ["lm_head"]


def empty_key(q):
    q["ignored_layers"] = []


def by_expression(q):
    q["config_groups"]["group_0"]["targets"] = [r"re:.*\.(self_attn|mlp)\..*_proj$"]


def asymmetric(q):
    q["config_groups"]["group_0"]["weights"]["symmetric"] = False


# name -> (pattern of the cases that it is for, what it does)
EDITS = {
    "FP8": ("qwen3/fp8-block", config(lambda q: q.update(quant_method="FP8"))),
    "joined-listed": ("qwen3/fp8-block", add("model.layers.0.self_attn.qkv_proj")),
    "joined-listed-and-plain": ("qwen3/fp8-block", lambda folder: (
        plain("layers.0.self_attn.q_proj", False)(folder), plain("layers.0.self_attn.k_proj", False)(folder),
        plain("layers.0.self_attn.v_proj", False)(folder), add("model.layers.0.self_attn.qkv_proj")(folder))),
    "path-listed": ("qwen3/fp8-block", lambda folder: (plain("layers.0.mlp", False)(folder), add("model.layers.0.mlp")(folder))),
    "two-lists": ("qwen3/fp8-block", lambda folder: (plain("layers.0.mlp")(folder), config(keys)(folder))),
    "first-list-empty": ("qwen3/fp8-block", lambda folder: (plain("layers.0.mlp")(folder), config(empty_key)(folder))),
    "padded": ("qwen3/fp8-block", tensors(pad)),
    "static-input": ("qwen3/fp8-block", tensors(lambda whole: whole.update(
        {"model.layers.0.mlp.down_proj.input_scale": torch.ones(1)}))),
    "e8m0": ("qwen3*/ue8m0", tensors(exponents)),
    "no-block-size": ("qwen3/fp8-block", config(lambda q: q.pop("weight_block_size"))),
    "block-size-64": ("qwen3/fp8-block", config(lambda q: q.update(weight_block_size=[64, 64]))),
    "no-scheme": ("qwen3/fp8-block", config(lambda q: q.pop("activation_scheme"))),
    "static-scheme": ("qwen3/fp8-block", config(lambda q: q.update(activation_scheme="static"))),
    "asymmetric": ("qwen3/int4-weight-only", config(asymmetric)),
    "targets": ("qwen3/fp8-block-ct", config(by_expression)),
    "targets-miss": ("qwen3/fp8-block-ct", config(lambda q: q["config_groups"]["group_0"].update(targets=["re:.*mlp.*"]))),
    "router-unlisted": ("*_moe/fp8-block", drop(".gate")),
    "experts-listed": ("qwen3_moe/fp8-block", add("model.layers.0.mlp.experts")),
    "experts-listed-and-plain": ("qwen3_moe/fp8-block", lambda folder: (
        plain("layers.0.mlp.experts", False)(folder), add("model.layers.0.mlp.experts")(folder))),
    "one-expert-plain": ("qwen3_moe/fp8-block", plain("layers.0.mlp.experts.2.")),
    "down-only": ("qwen3_moe/fp8-block", lambda folder: (plain("gate_proj")(folder), plain("up_proj")(folder))),
    "own-names": ("deepseek_v4/to-*-weight-only-but-attention", add("re:.*self_attn.*")),  # SGLang's
    "shared-down-plain": ("deepseek_v3/fp8-block", plain("shared_experts.down_proj")),
}
