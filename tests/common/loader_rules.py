"""Who reads which kind of weights, and every rule of kinds broken once: what tests of can-load and of its advice go through."""

from loader_kinds import (
    MXFP8_CT, copied, deepseek_v4, gpt_oss, mxfp4_ct, mxfp8, number, nvfp4_ct, nvfp4_modelopt, powers, raw, remade, second_version, w4afp8,
)
from loader_models import both, edit, llama
import numpy as np

ALL = {"vllm", "sglang", "transformers", "trtllm"}
ENGINES = ALL - {"transformers"}
UP, GATE, DOWN = (f"model.layers.0.mlp.{leaf}_proj" for leaf in ("up", "gate", "down"))
E0 = "model.layers.0.mlp.experts.0"

FP8_INPUTS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}

# ---- who reads what: a model, and the loaders that read it ----

READS = {
    "MXFP4 experts, compressed-tensors": (lambda: remade("mxfp4-ct", experts=2), ALL - {"sglang"}),
    "MXFP4 experts, compressed-tensors, Kimi K3": (lambda: of_family(remade("mxfp4-ct", experts=2), "kimi_k3"), ALL),
    "MXFP4 linears, compressed-tensors": (lambda: remade("mxfp4-ct"), {"vllm", "transformers"}),
    "MXFP4 of Quark": (lambda: remade("mxfp4-quark"), {"vllm", "sglang"}),
    "MXFP4 of ModelOpt": (lambda: remade("mxfp4-modelopt"), set()),
    "gpt-oss": (gpt_oss, ALL),
    "gpt-oss's layout, another family": (lambda: gpt_oss("qwen3_moe"), set()),
    "DeepSeek-V4": (deepseek_v4, ALL - {"trtllm"}),
    "DeepSeek-V4's layout, another family": (lambda: deepseek_v4(family="qwen3_moe"), set()),
    "DeepSeek-V4, FP8 experts, F32 scales": (lambda: deepseek_v4("fp8", "F32"), ALL - {"trtllm"}),
    "DeepSeek-V4.1": (lambda: v41(), ALL - {"trtllm", "transformers"}),
    "NVFP4, compressed-tensors": (lambda: remade("nvfp4-ct"), ALL),
    "NVFP4A16, compressed-tensors": (lambda: remade("nvfp4a16-ct"), ALL - {"trtllm"}),
    "NVFP4 of ModelOpt": (lambda: remade("nvfp4-modelopt"), ENGINES),
    "W4A16_NVFP4 of ModelOpt": (lambda: remade("w4a16-nvfp4-modelopt"), ENGINES),
    "MXFP8, compressed-tensors": (lambda: remade("mxfp8-ct"), {"vllm", "transformers"}),
    "MXFP8 of ModelOpt": (lambda: remade("mxfp8-modelopt"), {"vllm", "trtllm"}),
    "MXFP8 of ModelOpt, mixed": (lambda: changed(remade("mxfp8-modelopt"), edit("quant_algo", "MIXED_PRECISION"),
                                              by_layer("MXFP8")), {"vllm", "trtllm"}),
    "quant_method mxfp8": (lambda: remade("mxfp8-method"), {"sglang", "transformers"}),
    "quant_method mxfp8, MiniMax-M3": (lambda: of_family(remade("mxfp8-method"), "minimax_m3"), ALL - {"trtllm"}),
    "FP8 in blocks of ModelOpt": (lambda: remade("fp8-block-modelopt"), {"vllm", "trtllm"}),
    "int4, compressed-tensors": (lambda: remade("int4-ct"), ALL - {"trtllm"}),
    "w4afp8": (lambda: changed(remade("int4-ct"), edit("config_groups.group_0.input_activations", FP8_INPUTS)), {"vllm"}),
    "w4afp8 of SGLang": (w4afp8, {"sglang"}),
    "GPTQ of auto-round": (lambda: remade("gptq-auto-round"), ALL - {"trtllm"}),
    "int4 with zero points": (lambda: remade("int4-ct-zeros"), ALL - {"trtllm"}),
    "AWQ": (lambda: remade("awq"), ALL - {"trtllm"}),
    "GPTQ": (lambda: remade("gptq"), ALL - {"trtllm"}),
}


def changed(m, *acts):
    both(*acts)(m)
    return m


def of_family(m, family):
    m.config["model_type"] = family
    return m


def v41(inside=True):
    m = deepseek_v4(family="deepseek_v41", block=32)
    if inside:
        m.quantization["expert_dtype"] = "fp4"
    return m



# ---- every rule, broken once ----


def put(name, entry):
    def act(m):
        assert name in m.tensors, name
        m.tensors[name] = entry

    return act


def drop_key(key):
    def act(m):
        del m.config[key]

    return act


def mixed(*targets):
    """Makes two groups of NVFP4 with these targets."""

    def act(m):
        group = m.quantization["config_groups"]["group_0"]
        m.quantization["format"] = "mixed-precision"
        m.quantization["config_groups"] = {
            f"group_{i}": {**group, "format": "nvfp4-pack-quantized", "targets": list(t)} for i, t in enumerate(targets)}

    return act


def without_nvfp4(m, part):
    """Removes the NVFP4 of each module whose name contains `part`. Yields (module, outputs, inputs)."""
    for name in [n for n in m.tensors if part in n and n.endswith(".weight_scale_2")]:
        module = name.removesuffix(".weight_scale_2")
        o, i = m.tensors[f"{module}.weight"][1]
        m.tensors = {n: t for n, t in m.tensors.items() if not n.startswith(module + ".")}
        yield module, o, 2 * i


def many_layers(m):
    """Makes a model of many layers with tensors only in layers 6 (unquantized) and 60."""
    m.tensors = {name.replace("layers.0.", "layers.6.").replace("layers.1.", "layers.60."): t for name, t in m.tensors.items()}
    for module, o, i in without_nvfp4(m, "layers.6."):
        m.plain(module, (o, i))
    del m.config["num_hidden_layers"]
    m.quantization["ignore"] = ["lm_head", "model.layers.6"]


def renamed_kind(m, module, make):
    """Changes one module to another kind."""
    o, i = m.tensors[f"{module}.weight_packed"][1]
    m.tensors = {n: t for n, t in m.tensors.items() if not n.startswith(module + ".")}
    m.tensors |= make(module, o, 2 * i)


def stacked(kind):
    def act(m):
        for layer in range(2):
            y = f"model.layers.{layer}.mlp.experts.down_proj"
            if kind == "nvfp4":
                m.tensors |= {f"{y}_packed": raw("U8", 2, 256, 128), f"{y}_scale": raw("F8_E4M3", 2, 256, 16, fill=0x38),
                              f"{y}_global_scale": ("F32", [2], np.float32([1, 1]).tobytes())}
            else:
                m.tensors |= {f"{y}_packed": raw("U8", 2, 256, 128), f"{y}_scale": powers(2, 256, 8)}

    return act


def with_indexer(m):
    m.tensors |= nvfp4_ct("model.layers.0.self_attn.indexer.wk", 128, 256)


def fp8_beside_nvfp4(fours, eights, eights_first=False):
    """Makes NVFP4 in the feed-forward layers and FP8 per row in attention: two groups with these targets, in this order."""
    m = remade("nvfp4-ct")
    for name in [n for n in m.tensors if "self_attn" in n and n.endswith("_packed")]:
        renamed_kind(m, name.removesuffix(".weight_packed"), lambda x, o, i: {
            f"{x}.weight": raw("F8_E4M3", o, i, fill=0x38), f"{x}.weight_scale": raw("BF16", o, 1, fill=0x3c)})
    four = {**m.quantization["config_groups"]["group_0"], "format": "nvfp4-pack-quantized", "targets": [fours]}
    eight = {"targets": [eights], "format": "float-quantized", "weights": {
        "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}, "input_activations": {
        "num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}}
    m.quantization["format"] = "mixed-precision"
    m.quantization["config_groups"] = dict(zip(("group_0", "group_1"), (eight, four) if eights_first else (four, eight)))
    return m


def targets_of_members(m):
    """Makes targets of each layer by its own name, without fused names."""
    m.quantization["config_groups"]["group_0"]["targets"] = [
        name.removesuffix(".weight_packed") for name in m.tensors if name.endswith("_packed")]


def with_shared(m):
    for layer in range(2):
        for leaf, o, i in (("gate_proj", 256, 256), ("up_proj", 256, 256), ("down_proj", 256, 256)):
            m.tensors |= nvfp4_ct(f"model.layers.{layer}.mlp.shared_experts.{leaf}", o, i)
    return m


def by_layer(algorithm, joined=False, **others):
    """Makes ModelOpt's MIXED_PRECISION with each layer by its name; `joined` adds the names of fused layers. `others` are
    algorithms of leaves; None omits a leaf."""

    def act(m):
        modules = {name.rpartition(".")[0] for name in m.tensors if name.endswith(".weight_scale")}
        if joined:
            modules |= {module.replace(old, new) for module in modules for old, new in (
                ("q_proj", "qkv_proj"), ("gate_proj", "gate_up_proj")) if ".experts." not in module and old in module}
        algorithms = {module: others.get(module.rpartition(".")[2], algorithm) for module in modules}
        m.quantization["quant_algo"] = "MIXED_PRECISION"
        m.quantization["quantized_layers"] = {module: {"quant_algo": a} for module, a in algorithms.items() if a}

    return act


def in_rows_of_fp8(part):
    """Changes NVFP4 to MXFP8 in the modules whose names contain `part`."""

    def act(m):
        for module, o, i in without_nvfp4(m, part):
            m.tensors |= mxfp8(module, o, i)

    return act


def plain_experts(m):
    """Makes unquantized routed experts with a shared expert in NVFP4."""
    for layer in range(2):
        for leaf in ("gate_proj", "up_proj", "down_proj"):
            module = f"model.layers.{layer}.mlp.experts.0.{leaf}"
            m.tensors |= nvfp4_modelopt(module.replace("experts.0", "shared_experts"), 256, 256)
    for module, o, i in without_nvfp4(m, ".experts."):
        m.plain(module, (o, i))
    m.quantization["ignore"] = []


def v4_as(codes, configuration, plain):
    """Makes DeepSeek-V4 in another kind, except modules whose names contain a word of `plain`."""
    m, listed = deepseek_v4(), ["head"]
    for name in [n for n in m.tensors if n.endswith(".scale")]:
        module = name.removesuffix(".scale")
        dtype, (o, i), _ = m.tensors[f"{module}.weight"]
        i *= 2 if dtype == "I8" else 1
        del m.tensors[name], m.tensors[f"{module}.weight"]
        kept = any(word in module for word in plain)
        listed += [module] if kept else []
        m.tensors |= {f"{module}.weight": raw("BF16", o, i)} if kept else codes(module, o, i)
    m.config["quantization_config"] = copied(configuration)
    del m.config["expert_dtype"]
    m.quantization["ignore"] = [*listed, *(f"layers.{layer}.{x}" for layer in range(2) for x in ("ffn.gate", "attn.compressor.wkv"))]
    return m


def v4_in_mxfp8(wo_a=True):
    """Makes DeepSeek-V4 in MXFP8 of compressed-tensors, with wo_a in MXFP8 or unquantized."""
    return v4_as(mxfp8, MXFP8_CT, [] if wo_a else ["wo_a"])


def v4_in_nvfp4(plain="wo_a"):
    return v4_as(nvfp4_ct, remade("nvfp4a16-ct").quantization, [plain])


def plain_wo_a(m):
    for name in [n for n in m.tensors if n.endswith("wo_a.weight")]:
        del m.tensors[name.replace("weight", "scale")]
        m.tensors[name] = raw("BF16", *m.tensors[name][1])


def in_linear_attention(m):
    """Makes Qwen3-Next's first projection in packed form."""
    m.config["model_type"] = "qwen3_next"
    m.tensors |= nvfp4_ct("model.layers.0.linear_attn.in_proj_qkvz", 3072, 256)


def plain_output(m):
    """Makes o_proj unquantized without listing it."""
    for name in [n for n in m.tensors if n.endswith("o_proj.weight")]:
        del m.tensors[f"{name}_scale"]
        m.plain(name.removesuffix(".weight"), (256, 256))


def plain_module(module, rows, cols):
    def act(m):
        m.plain(module, (rows, cols))

    return act


def with_one_more_expert(m):
    """Adds a shared expert in int4."""
    x = "model.layers.0.mlp.shared_experts.down_proj.weight"
    m.tensors |= {x: raw("I8", 256, 128), f"{x}_scale_inv": raw("BF16", 256, 2, fill=0x3c)}


def in_fp8(m):
    for leaf in ("gate_proj", "up_proj", "down_proj"):
        for e in range(4):
            m.linear(f"model.layers.0.mlp.experts.{e}.{leaf}", 256, 256)


KV_FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}

# name -> model, what is done to it, TP, loaders that say no for this rule (and no others do), rule, words of the finding
RULES = {
    # DeepSeek-V4
    "F8_E8M0 scales of FP8 experts": (lambda: deepseek_v4("fp8", "F8_E8M0"), None, 1, {"vllm"}, "scale dtype",
                                      ["experts.0.w1.scale", "120 for 2^-7", "supports F32"]),
    "expert_dtype absent, FP4": (deepseek_v4, drop_key("expert_dtype"), 1, {"transformers"}, "expert_dtype",
                                 ["experts.0.w1.weight", "FP4", "reads experts as FP8"]),
    "expert_dtype absent, FP8": (lambda: deepseek_v4("fp8", "F32"), drop_key("expert_dtype"), 1, {"vllm"}, "expert_dtype",
                                 ["FP8", "reads experts as FP4"]),
    "V4.1's expert_dtype at the top only": (lambda: v41(False), None, 1, {"transformers"}, "expert_dtype",
                                            ["inside quantization_config"]),
    "V4's expert_dtype inside only": (
        lambda: deepseek_v4("fp8", "F32"), both(drop_key("expert_dtype"), edit("expert_dtype", "fp8")), 1, {"vllm"},
        "expert_dtype", ["at the top of config.json"]),
    # ModelOpt's lists and files
    "layers.6 hits layers.60": (lambda: remade("nvfp4-modelopt"), many_layers, 1, {"vllm"}, "ignore list",
                                ["'model.layers.6'", "layers.60.", "also matches"]),
    "mlp.gate hits gate_up_proj": (lambda: remade("nvfp4-modelopt"), edit("ignore", ["lm_head", "mlp.gate"]), 1, {"vllm"},
                                   "ignore list", ["'mlp.gate'", "gate_up_proj", "also matches"]),
    "an excluded module that is quantized": (lambda: remade("nvfp4-modelopt"), edit("ignore", ["lm_head", "*.mlp.down_proj"]),
                                             1, ENGINES, "ignore list", ["down_proj", "is quantized"]),
    "a plain module that is not excluded": (lambda: remade("nvfp4-modelopt", experts=2), edit("ignore", ["lm_head"]), 1,
                                            ENGINES, "ignore list", ["self_attn", "does not exclude"]),
    "a tied head that is not excluded": (lambda: remade("nvfp4-modelopt"), both(edit("ignore", ["other"]), lambda m: (
        m.drop("lm_head"), m.config.update(tie_word_embeddings=True))), 1, {"vllm"}, "ignore list", ["'lm_head'", "its scale"]),
    "two files that disagree": (lambda: remade("nvfp4-modelopt"), None, 1, ENGINES, "two configurations", ["'other'"]),
    "two files with two group sizes": (lambda: remade("nvfp4-modelopt"), None, 1, ENGINES, "two configurations",
                                       ["group_size is 16 in config.json and 32"]),
    "two files with two schemes for the KV cache": (
        lambda: remade("nvfp4-modelopt"), edit("kv_cache_scheme", KV_FP8), 1, ENGINES, "two configurations",
        ["KV cache", '"FP8" in config.json and "NVFP4"']),
    "two files with two algorithms": (lambda: remade("nvfp4-modelopt"), None, 1, ENGINES, "two configurations",
                                      ['quant_algo is "NVFP4" in config.json and "W4A16_NVFP4"']),
    "two files with two methods": (llama, None, 1, {"trtllm"}, "two configurations", ["quant_method 'fp8'"]),
    "no group_size in the side file": (lambda: remade("nvfp4-modelopt"), None, 1, {"vllm", "sglang"}, "configuration",
                                       ["hf_quant_config.json", "'group_size'"]),
    "no kv_cache_quant_algo": (lambda: remade("nvfp4-modelopt"), None, 1, {"vllm"}, "configuration",
                               ["hf_quant_config.json", "'kv_cache_quant_algo'"]),
    "no exclude_modules": (lambda: remade("nvfp4-modelopt"), None, 1, {"vllm", "sglang"}, "configuration",
                           ["hf_quant_config.json", "'exclude_modules'"]),
    "no ignore for SGLang": (lambda: remade("nvfp4-modelopt"), edit("ignore", None), 1, {"sglang"}, "configuration",
                             ["'ignore'"]),
    "two group sizes": (lambda: remade("nvfp4-modelopt"), edit("config_groups.group_1", {
        "targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 32}}), 1, {"sglang"}, "groups",
        ["group_size 16 and 32"]),
    # ModelOpt's MIXED_PRECISION
    "layers by their members": (lambda: remade("nvfp4-modelopt"), by_layer("NVFP4"), 1, {"sglang"}, "quantized_layers",
                                ["q_proj", "qkv_proj", "'qwen3'", "as plain"]),
    "a quantized layer in no list": (lambda: remade("nvfp4-modelopt"), by_layer("NVFP4", True, down_proj=None), 1,
                                     {"vllm", "sglang"}, "quantized_layers", ["down_proj", "as plain"]),
    "experts under another name than MiniMax-M2's class of vLLM has": (
        lambda: of_family(remade("nvfp4-modelopt", experts=2), "minimax_m2"), both(
            lambda m: m.rename(".mlp.", ".block_sparse_moe."), by_layer("NVFP4")), 1, {"vllm"}, "quantized_layers",
        ["mlp.experts", "as plain"]),
    "an output head without a name": (lambda: of_family(remade("nvfp4-modelopt"), "afmoe"), None, 1, {"vllm"}, "class", ["head"]),
    "a layer of another algorithm": (lambda: remade("nvfp4-modelopt"), by_layer("NVFP4", True, o_proj="MXFP8"), 1,
                                     {"vllm", "sglang"}, "quantized_layers", ["o_proj", "NVFP4", '"MXFP8"']),
    "no layer of NVFP4": (lambda: remade("mxfp8-modelopt"), by_layer("MXFP8", True), 1, {"sglang"}, "quantized_layers",
                          ["W4AFP8"]),
    "a plain layer among those that are listed": (
        lambda: remade("nvfp4-modelopt", experts=2), both(by_layer("NVFP4"), lambda m: (
            m.quantization["quantized_layers"].update({"model.layers.0.self_attn.o_proj": {"quant_algo": "NVFP4"}}),
            edit("ignore", [])(m))), 1, {"vllm", "sglang"}, "quantized_layers", ["o_proj", "BF16", "to be quantized"]),
    "plain experts beside a shared one": (
        lambda: remade("nvfp4-modelopt", experts=2), both(plain_experts, by_layer("NVFP4", True)), 1, {"vllm"},
        "quantized_layers", ["experts.0.", "shared_experts", "to be quantized"]),
    "MXFP8 beside NVFP4": (lambda: remade("nvfp4-modelopt"), both(in_rows_of_fp8("down_proj"), by_layer(
        "NVFP4", True, down_proj="MXFP8")), 1, {"sglang"}, "kind", ["down_proj", "weight_scale_inv"]),
    # classes
    "V4's own operand": (v4_in_mxfp8, None, 1, {"vllm", "sglang"}, "operand", ["attn.wo_a.weight", "MXFP8", "BF16 and block e4m3"]),
    "V4's wo_a plain, the rest in FP8": (deepseek_v4, plain_wo_a, 1, {"sglang"}, "operand", ["attn.wo_a.weight", "BF16", "e4m3 only"]),
    "V4's wo_a in groups that cut blocks": (deepseek_v4, lambda m: m.config.update(o_lora_rank=64), 1, {"sglang"}, "operand",
                                            ["attn.wo_a.weight", "o_lora_rank is 64", "256 columns"]),
    "V4's wq_a and wkv, joined by name": (v4_in_nvfp4, None, 1, {"sglang"}, "scale name",
                                          ["attn.wq_a.weight", "compressed-tensors", "without an error"]),
    "V4's plain layers under transformers' names": (lambda: v4_as(mxfp4_ct, remade("mxfp4-ct").quantization, ["wo_a"]), None, 1, {"transformers"},
                                                    "kind", ["MXFP4 of compressed-tensors", "lm_head"]),
    "V4's plain layers under SGLang's names": (lambda: v4_in_nvfp4("attn."), None, 1, {"sglang"}, "ignore list",
                                               ["attn.wq_a", "'model.layers.0.self_attn.wqkv_a'"]),
    "V4's plain shared expert under SGLang's name": (
        lambda: v4_in_nvfp4("attn."), lambda m: (m.quantization["ignore"].append("re:.*self_attn.*"), m.tensors.update(
            {f"layers.0.ffn.shared_experts.w{n}.weight": raw("BF16", 256, 256) for n in (1, 2, 3)})), 1, {"sglang"}, "ignore list",
        ["'model.layers.0.mlp.shared_experts."]),
    "V4's layers that SGLang's names make plain": (v4_in_nvfp4, lambda m: m.quantization["ignore"].append("re:.*mlp.shared.*|.*wq_b"),
                                                   1, {"sglang"}, "ignore list", ["attn.wq_b", "'model.layers.0.self_attn.wq_b'", "as plain"]),
    "Qwen3-Next's linear attention in ModelOpt's NVFP4": (
        lambda: of_family(remade("nvfp4-modelopt"), "qwen3_next"), lambda m: m.tensors.update(
            nvfp4_modelopt("model.layers.0.linear_attn.in_proj_qkvz", 3072, 256)), 1, {"sglang"}, "kind", ["in_proj_qkvz", "four layers"]),
    "the same in a mixture": (
        lambda: of_family(remade("nvfp4-modelopt"), "qwen3_next"), both(lambda m: m.tensors.update(
            nvfp4_modelopt("model.layers.0.linear_attn.in_proj_qkvz", 3072, 256)), by_layer("NVFP4")), 1, {"sglang"}, "kind",
        ["in_proj_qkvz", "four layers"]),
    "Qwen3-Next's q, k and v in ModelOpt's NVFP4": (
        lambda: of_family(remade("nvfp4-modelopt"), "qwen3_next"), None, 1, {"sglang"}, "kind", ["self_attn.", "q, k and v unquantized"]),
    "packed linear attention": (lambda: changed(remade("nvfp4a16-ct"), in_linear_attention), None, 1, {"sglang"}, "weight_shape",
                                ["in_proj_qkvz", "'weight'"]),
    "Llama 4's text model alone": (lambda: of_family(remade("nvfp4a16-ct", experts=2), "llama4_text"), None, 1, {"sglang"},
                                   "experts", ["experts.0.", "does not load experts"]),
    "names of SGLang's Mixtral": (lambda: of_family(remade("nvfp4a16-ct", experts=2), "mixtral"), None, 1, {"sglang"},
                                  "ignore list", ["self_attn.q_proj"]),
    "Mixtral with heads of another size": (
        lambda: of_family(remade("nvfp4-ct"), "mixtral"), lambda m: m.config.update(head_dim=64), 1, {"sglang"}, "heads",
        ["head_dim is 64", "hidden_size 256 / 2 heads"]),
    # global scales
    "globals of q, k and v": (lambda: remade("nvfp4a16-ct"), put("model.layers.0.self_attn.k_proj.weight_global_scale",
                              number(256, 1)), 1, {"vllm", "sglang"} | {"trtllm"}, "global scales",
                              ["k_proj.weight_global_scale", "256", "512", "q_proj", "qkv_proj"]),
    "globals of gate and up": (lambda: remade("nvfp4-modelopt"), put(f"{UP}.weight_scale_2", number(1 / 256)), 1, ENGINES,
                               "global scales", ["up_proj.weight_scale_2", "gate_up_proj"]),
    "globals of an expert": (lambda: remade("nvfp4-ct", experts=2), put(f"{E0}.up_proj.weight_global_scale", number(256, 1)),
                             1, ENGINES, "global scales", ["experts.0.up_proj", "512"]),
    "scales of inputs": (lambda: remade("nvfp4-modelopt"), put(f"{UP}.input_scale", number(1 / 32)), 1, {"trtllm"},
                         "global scales", ["up_proj.input_scale", "asserts"]),
    # compressed-tensors
    "an unknown key": (lambda: remade("nvfp4-ct"), edit("config_groups.group_0.weights.four_over_six", True), 1,
                       ALL - {"trtllm"}, "configuration", ["four_over_six", "refuses unknown keys"]),
    "MXFP8 without scale_dtype": (lambda: remade("mxfp8-ct"), edit("config_groups.group_0.weights.scale_dtype", None), 1, ALL,
                                  "arguments", ["MXFP8", "torch.uint8"]),
    "NVFP4 of strategy group": (lambda: remade("nvfp4-ct"), edit("config_groups.group_0.weights.strategy", "group"), 1, ALL,
                                "arguments", ["NVFP4", "tensor_group"]),
    "a format of another kind": (lambda: remade("nvfp4-ct"), edit("format", "float-quantized"), 1, {"transformers"},
                                 "configuration", ["nvfp4-pack-quantized"]),
    "MXFP4 in a format, other experts": (
        lambda: remade("nvfp4-ct", experts=2), both(edit("format", "mixed-precision"), edit(
            "config_groups.group_0.format", "mxfp4-pack-quantized")), 1, {"sglang"}, "configuration",
        ["experts.0.", "reads all experts as MXFP4"]),
    "classes as targets": (lambda: remade("nvfp4-ct"), mixed(["Linear"], ["re:.*mlp.*"]), 1, {"trtllm"}, "targets",
                           ["'Linear'", "2 groups"]),
    "the order of targets": (lambda: fp8_beside_nvfp4("re:.*proj", "re:.*self_attn.*"), None, 1, ENGINES,
                             "targets", ["self_attn.", "FP8 with a scale a channel", "'re:.*proj'", "says otherwise"]),
    "the order of TensorRT-LLM": (lambda: fp8_beside_nvfp4("re:.*proj", "re:.*self_attn.*", True), None, 1, {"trtllm"},
                                  "targets", ["'re:.*proj'"]),
    "a plain layer that no target fits": (lambda: changed(fp8_beside_nvfp4("re:.*mlp.*", "re:.*[qkv]_proj"), plain_output), None,
                                          1, {"sglang", "trtllm"}, "targets", ["o_proj", "neither ignore"]),
    "targets that name members only": (lambda: changed(remade("nvfp4a16-ct"), targets_of_members), None, 1, {"sglang"}, "targets",
                                       ["q_proj", "qkv_proj", "'qwen3'"]),
    "a list that names members only": (
        lambda: changed(remade("nvfp4a16-ct", experts=2), lambda m: m.quantization["ignore"].remove(
            "model.layers.0.self_attn.qkv_proj")), None, 1, {"sglang"}, "ignore list", ["layers.0.self_attn.q_proj"]),
    "packed experts in a mixed format": (lambda: remade("int4-ct", experts=2), both(
        edit("format", "mixed-precision"), edit("config_groups.group_0.format", "pack-quantized")), 1, {"sglang"}, "experts",
        ["experts.0.", "format is not pack-quantized"]),
    "packed shared experts of GLM-4": (lambda: of_family(with_shared(remade("nvfp4a16-ct", experts=2)), "glm4_moe"), None, 1,
                                       {"sglang"}, "experts", ["shared_experts.", "'weight'"]),
    "quant_method mxfp8 of Llama": (lambda: of_family(remade("mxfp8-method"), "llama"), None, 1, {"sglang"}, "scale name",
                                    ["renames weight_scale_inv"]),
    "NVFP4 experts in transformers": (lambda: remade("nvfp4-ct", experts=2), None, 1, {"transformers"}, "experts",
                                      ["experts.0.", "without their global scales"]),
    "MXFP8 experts in transformers": (lambda: remade("mxfp8-ct", experts=2), None, 1, {"transformers"}, "experts",
                                      ["experts.0.", "MXFP8", "cannot join"]),
    "an expression that starts later": (lambda: remade("nvfp4-ct"), edit("config_groups.group_0.targets", ["re:mlp"]), 1, ALL,
                                        "targets", ["as plain"]),
    "act-order of compressed-tensors": (lambda: remade("int4-ct"), edit("config_groups.group_0.weights.actorder", "group"), 1,
                                        {"vllm", "transformers"}, "act-order", ["actorder"]),
    "E8M0 in F8_E8M0": (lambda: remade("mxfp8-ct"), put(f"{UP}.weight_scale", powers(512, 8, dtype="F8_E8M0")), 1, ALL,
                        "scale dtype", ["up_proj.weight_scale", "U8"]),
    "members of two kinds": (lambda: remade("nvfp4a16-ct"), both(
        lambda m: renamed_kind(m, UP, mxfp4_ct), edit("config_groups.group_1", {
            "targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
                                               "scale_dtype": "torch.uint8", "symmetric": True, "dynamic": False}})),
        1, ENGINES, "fused group", ["up_proj", "MXFP4", "gate_proj", "NVFP4"]),
    # w4afp8 of SGLang
    "w4afp8 with a plain layer": (w4afp8, plain_module("model.layers.0.self_attn.o_proj", 256, 256), 1, {"sglang"}, "ignore list",
                                  ["o_proj", "reads no list"]),
    "w4afp8 in groups of 64": (lambda: w4afp8(64), None, 1, {"sglang"}, "group size", ["groups are of 64"]),
    "w4afp8 with a shared expert in int4": (w4afp8, with_one_more_expert, 1, {"sglang"}, "kind", ["shared_experts", "routed experts only"]),
    "w4afp8 with experts in FP8": (w4afp8, in_fp8, 1, {"sglang"}, "kind", ["experts.0.", "routed experts in int4"]),
    "w4afp8 with two scales of one input": (w4afp8, put("model.layers.0.mlp.experts.1.up_proj.input_scale", raw("BF16", 1, fill=0x3d)),
                                            1, {"sglang"}, "input scale", ["experts.1.up_proj", "refuses a difference"]),
    "w4afp8 of Mixtral": (lambda: of_family(w4afp8(), "mixtral"), None, 1, {"sglang"}, "experts", ["'mixtral'", "linear layers, in FP8"]),
    "w4afp8 in blocks of 64": (w4afp8, lambda m: (m.quantization.update(weight_block_size=[64, 64]), [
        m.tensors.update({name: raw("F32", 2 * t[1][0], 2 * t[1][1], fill=0x3c)}) for name, t in list(m.tensors.items())
        if name.endswith("_scale_inv") and ".experts." not in name]), 1, {"sglang", "trtllm", "deepseek"}, "block size", ["64x64", "128x128 only"]),
    # GPTQ
    "asymmetric GPTQ": (lambda: remade("gptq"), edit("sym", False), 1, {"vllm"}, "zero points", ["sym", "symmetric"]),
    "act-order of GPTQ": (lambda: remade("gptq"), edit("desc_act", True), 1, {"vllm"}, "act-order", ["desc_act"]),
    "GPTQ v2": (lambda: remade("gptq"), second_version, 1, {"sglang", "transformers", "trtllm"},
                "zero points", ["gptq_v2", "adds 1"]),
    # experts and layers
    "stacked NVFP4 experts": (lambda: remade("nvfp4a16-ct"), stacked("nvfp4"), 1, ALL | {"deepseek"}, "stacked experts",
                              ["down_proj", "a stack of experts"]),
    "stacked MXFP4 experts": (lambda: remade("mxfp4-ct"), stacked("mxfp4"), 1, ALL | {"deepseek"}, "stacked experts",
                              ["a stack of experts", "gpt-oss"]),
    "gpt-oss's experts one by one": (lambda: of_family(remade("nvfp4a16-ct", experts=2), "gpt_oss"), None, 1, ALL | {"deepseek"},
                                     "stacked experts", ["experts.0.", "'gpt_oss'", "one tensor for each layer"]),
    "Llama 4's experts one by one": (lambda: of_family(remade("mxfp4-ct", experts=2), "llama4_text"), None, 1, {"transformers"},
                                     "stacked experts", ["experts.0.", "llama4_text", "one tensor for each layer"]),
    "Qwen2 with heads of another size": (lambda: of_family(remade("nvfp4-ct"), "qwen2"), lambda m: m.config.update(head_dim=64), 1,
                                         {"vllm"}, "heads", ["head_dim is 64", "hidden_size 256 / 2 heads"]),
    "gpt-oss on more ranks than heads": (gpt_oss, lambda m: m.config.update(num_attention_heads=4, head_dim=64), 4, {"vllm"},
                                         "heads", ["2 heads of keys and values for 4 ranks"]),
    "indexer.wk in 4 bits": (lambda: remade("nvfp4a16-ct"), with_indexer, 1, ENGINES, "indexer", ["indexer.wk", "4 bits"]),
    # tensor parallelism
    "groups of 32 cut": (lambda: remade("mxfp4-ct", intermediate=320), None, 4, ENGINES | {"deepseek"}, "blocks",
                         ["down_proj", "320 columns / 4 ranks = 80", "2.5 blocks of 32"]),
    "groups of 16 cut": (lambda: remade("nvfp4-ct", intermediate=320), None, 8, ENGINES | {"deepseek"}, "blocks",
                         ["down_proj", "320 columns / 8 ranks = 40", "2.5 blocks of 16"]),
    "zero points cut": (lambda: remade("int4-ct-zeros", intermediate=352), None, 11 * 8, ENGINES | {"deepseek"}, "words",
                        ["up_proj", "352 rows / 88 ranks = 4", "8 of them share a word"]),
    "w4afp8's experts in parts of 128": (lambda: remade("int4-ct", experts=2, intermediate=256), edit(
        "config_groups.group_0.input_activations", FP8_INPUTS), 2, {"vllm"}, "blocks",
        ["experts.0.", "multiples of 256", "[256, 256]", "parts of the"]),
    "words of AWQ cut": (lambda: remade("awq", intermediate=544), None, 17 * 8, ENGINES | {"deepseek"}, "words",
                         ["up_proj", "544 rows / 136 ranks = 4"]),
    "words of GPTQ cut": (lambda: remade("gptq", intermediate=544), None, 17 * 8, ENGINES | {"deepseek"}, "words",
                          ["up_proj", "544 rows / 136 ranks = 4"]),
    "blocks of 32x32 cut": (lambda: deepseek_v4("fp8", "F32", "deepseek_v41", block=32, rows=320),
                            edit("expert_dtype", "fp8"), 4, ENGINES, "blocks",
                            ["experts.0.w1", "320 rows / 4 ranks = 80", "2.5 blocks of 32"]),
}
