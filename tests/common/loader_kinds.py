"""Small checkpoints of the kinds of 2026 for the rules of loaders: models of tests/common/loader_models.py whose linear layers
are remade in one kind, and DeepSeek-V4 under its own names. Bytes are constant: rules look at names, dtypes and shapes."""

import numpy as np

from format_samples import AWQ, GPTQ, QUARK, compressed, group
from loader_models import Model, llama

BYTES = {"U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1, "BF16": 2, "F16": 2, "I32": 4, "F32": 4, "I64": 8}


def raw(dtype, *shape, fill=0x33):
    return dtype, list(shape), bytes([fill]) * (int(np.prod(shape)) * BYTES[dtype])


def number(x, dims=0):
    return "F32", [1] * dims, np.float32(x).tobytes()


def powers(*shape, dtype="U8"):
    return raw(dtype, *shape, fill=120)


def mxfp4_ct(x, o, i):
    return {f"{x}.weight_packed": raw("U8", o, i // 2), f"{x}.weight_scale": powers(o, i // 32)}


def mxfp4_plain(x, o, i):
    return {f"{x}.weight": raw("U8", o, i // 2), f"{x}.weight_scale": powers(o, i // 32)}


def mxfp4_v4(x, o, i):
    return {f"{x}.weight": raw("I8", o, i // 2), f"{x}.scale": powers(o, i // 32, dtype="F8_E8M0")}


def nvfp4_ct(x, o, i):
    return {f"{x}.weight_packed": raw("U8", o, i // 2), f"{x}.weight_scale": raw("F8_E4M3", o, i // 16, fill=0x38),
            f"{x}.weight_global_scale": number(512, 1)}


def nvfp4_ct_inputs(x, o, i):
    return {**nvfp4_ct(x, o, i), f"{x}.input_global_scale": number(64, 1)}


def nvfp4_modelopt_weights(x, o, i):
    return {f"{x}.weight": raw("U8", o, i // 2), f"{x}.weight_scale": raw("F8_E4M3", o, i // 16, fill=0x38),
            f"{x}.weight_scale_2": number(1 / 512)}


def nvfp4_modelopt(x, o, i):
    return {**nvfp4_modelopt_weights(x, o, i), f"{x}.input_scale": number(1 / 64)}


def mxfp8(x, o, i):
    return {f"{x}.weight": raw("F8_E4M3", o, i, fill=0x38), f"{x}.weight_scale": powers(o, i // 32)}


def mxfp8_method(x, o, i):
    return {f"{x}.weight": raw("F8_E4M3", o, i, fill=0x38), f"{x}.weight_scale_inv": powers(o, i // 32)}


def fp8_block_modelopt(x, o, i):
    return {f"{x}.weight": raw("F8_E4M3", o, i, fill=0x38), f"{x}.weight_scale": raw("F32", -(-o // 128), 1, -(-i // 128), 1)}


def int4(x, o, i, zeros=False):
    return {f"{x}.weight_packed": raw("I32", o, i // 8), f"{x}.weight_scale": raw("BF16", o, i // 32),
            f"{x}.weight_shape": ("I64", [2], np.array([o, i], np.int64).tobytes()),
            **({f"{x}.weight_zero_point": raw("I32", -(-o // 8), i // 32)} if zeros else {})}


def int4_zeros(x, o, i):
    return int4(x, o, i, True)


def awq(x, o, i):
    return {f"{x}.qweight": raw("I32", i, o // 8), f"{x}.qzeros": raw("I32", i // 32, o // 8),
            f"{x}.scales": raw("F16", i // 32, o)}


def gptq(x, o, i):
    return {f"{x}.qweight": raw("I32", i // 8, o), f"{x}.qzeros": raw("I32", i // 32, o // 8, fill=0x77),
            f"{x}.scales": raw("F16", i // 32, o),
            f"{x}.g_idx": ("I32", [i], (np.arange(i, dtype=np.int32) // 32).tobytes())}


INPUTS = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True, "dynamic": "local"}


def modelopt(algorithm, bits=4, size=16):
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"],
            "config_groups": {"group_0": group(bits, size)}}


NVFP4_GROUP = group(4, 16, "torch.float8_e4m3fn", strategy="tensor_group")
MXFP4_CT = compressed("mxfp4-pack-quantized", group(4, 32, "torch.uint8"))
NVFP4A16_CT = compressed("nvfp4-pack-quantized", NVFP4_GROUP)
NVFP4_CT = compressed("nvfp4-pack-quantized", {**NVFP4_GROUP, "input_activations": INPUTS})
MXFP8_CT = compressed("mxfp8-quantized", group(8, 32, "torch.uint8"))
INT4_CT = compressed("pack-quantized", group(4, 32, kind="int"))
INT4_ZEROS = compressed("pack-quantized", {**group(4, 32, kind="int"), "weights": {
    **group(4, 32, kind="int")["weights"], "symmetric": False}})
MXFP8_METHOD = {"quant_method": "mxfp8", "activation_scheme": "dynamic", "scale_fmt": "ue8m0", "weight_block_size": [1, 32],
                "ignored_layers": ["lm_head"], "modules_to_not_convert": ["lm_head"]}
GPTQ_SYMMETRIC = {**GPTQ, "sym": True}


def second_version(m):
    """Makes GPTQ of the second version, which stores zero points unchanged."""
    m.quantization["checkpoint_format"] = "gptq_v2"
    m.tensors.update({name: raw("I32", *shape, fill=0x88) for name, (_, shape, _) in list(m.tensors.items()) if name.endswith("qzeros")})


def copied(x):
    """Returns a copy of a configuration, for editing."""
    if isinstance(x, dict):
        return {key: copied(value) for key, value in x.items()}
    return [copied(value) for value in x] if isinstance(x, list) else x


# kind: (tensors of a module, what config.json says)
KINDS = {
    "mxfp4-ct": (mxfp4_ct, MXFP4_CT),
    "mxfp4-quark": (mxfp4_plain, QUARK),
    "mxfp4-modelopt": (mxfp4_plain, modelopt("W4A8_MXFP4_FP8", 4, 32)),
    "nvfp4-ct": (nvfp4_ct_inputs, NVFP4_CT),
    "nvfp4a16-ct": (nvfp4_ct, NVFP4A16_CT),
    "nvfp4-modelopt": (nvfp4_modelopt, modelopt("NVFP4")),
    "w4a16-nvfp4-modelopt": (nvfp4_modelopt_weights, modelopt("W4A16_NVFP4")),
    "mxfp8-ct": (mxfp8, MXFP8_CT),
    "mxfp8-modelopt": (mxfp8, modelopt("MXFP8", 8, 32)),
    "mxfp8-method": (mxfp8_method, MXFP8_METHOD),
    "fp8-block-modelopt": (fp8_block_modelopt, modelopt("FP8_PB_WO", 8, None)),
    "int4-ct": (int4, INT4_CT),
    "int4-ct-zeros": (int4_zeros, INT4_ZEROS),
    "awq": (awq, AWQ),
    "gptq": (gptq, GPTQ_SYMMETRIC),
    "gptq-auto-round": (gptq, {**GPTQ_SYMMETRIC, "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}),
}


def remade(kind, experts=0, **options):
    """Returns llama() with each linear layer in this kind. With experts, only these have it."""
    make, config = KINDS[kind]
    m = llama(experts=experts, **options)
    plain = []
    for name in [name for name in m.tensors if name.endswith("_scale_inv")]:
        module = name.removesuffix(".weight_scale_inv")
        _, (o, i), _ = m.tensors.pop(f"{module}.weight")
        del m.tensors[name]
        if experts and ".experts." not in module:
            plain.append(module)
            m.plain(module, (o, i))
        else:
            m.tensors |= make(module, o, i)
    m.config["quantization_config"] = config = copied(config)
    joined = [name.replace("q_proj", "qkv_proj") for name in plain if name.endswith("q_proj")]
    for key in ("ignore", "ignored_layers", "modules_to_not_convert"):
        if key in config:
            config[key] = ["lm_head", *plain, *(joined if config["quant_method"] == "compressed-tensors" else [])]
    return m


def w4afp8(group=128):
    """Makes a mixture of experts in SGLang's w4afp8."""
    m = llama(intermediate=256, experts=4)
    m.config["quantization_config"] = {"quant_method": "w4afp8", "group_size": group}
    for name in [name for name in m.tensors if ".experts." in name and name.endswith(".weight")]:
        o, i = m.tensors[name][1]
        m.tensors |= {name: raw("I8", o, i // 2, fill=0x31), f"{name}_scale_inv": raw("BF16", o, i // group, fill=0x3c),
                      name.replace(".weight", ".input_scale"): raw("BF16", 1, fill=0x3c)}
    return m


def gpt_oss(family="gpt_oss"):
    m = Model({"model_type": family, "hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 128,
               "num_local_experts": 4}, quantized=False)
    for layer in range(2):
        for leaf in "qkvo":
            m.plain(f"model.layers.{layer}.self_attn.{leaf}_proj", (256, 256))
        y = f"model.layers.{layer}.mlp.experts"
        m.tensors |= {f"{y}.gate_up_proj_blocks": raw("U8", 4, 512, 8, 16), f"{y}.gate_up_proj_scales": powers(4, 512, 8),
                      f"{y}.down_proj_blocks": raw("U8", 4, 256, 8, 16), f"{y}.down_proj_scales": powers(4, 256, 8)}
    m.config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    return m


def deepseek_v4(experts="fp4", scales="F8_E8M0", family="deepseek_v4", block=128, rows=256):
    """Makes DeepSeek-V4's layout: its own names, MXFP4 or FP8 experts, FP8 elsewhere, and `scales` of the FP8 experts."""
    m = Model({"model_type": family, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 128,
               "n_routed_experts": 2, "expert_dtype": experts}, quantized=False)
    m.tensors = {"embed.weight": raw("BF16", 256, 256), "head.weight": raw("BF16", 256, 256), "norm.weight": raw("BF16", 256)}

    def fp8(x, o, i, dtype):
        grid = -(-o // block), -(-i // block)
        scale = powers(*grid, dtype=dtype) if dtype == "F8_E8M0" else (
            dtype, list(grid), np.full(grid, 2.0**-7, np.float32).tobytes())
        m.tensors.update({f"{x}.weight": raw("F8_E4M3", o, i, fill=0x38), f"{x}.scale": scale})

    for layer in range(2):
        p = f"layers.{layer}."
        for leaf, o, i in (("wq_a", 128, 256), ("wq_b", 512, 128), ("wkv", 128, 256), ("wo_a", 512, 256), ("wo_b", 256, 512)):
            fp8(f"{p}attn.{leaf}", o, i, "F8_E8M0" if experts == "fp4" else scales)
        m.tensors[f"{p}attn.compressor.wkv.weight"] = raw("BF16", 128, 256)
        m.tensors[f"{p}ffn.gate.weight"] = raw("BF16", 2, 256)
        for e in range(2):
            for leaf, o, i in (("w1", rows, 256), ("w3", rows, 256), ("w2", 256, rows)):
                if experts == "fp4":
                    m.tensors |= mxfp4_v4(f"{p}ffn.experts.{e}.{leaf}", o, i)
                else:
                    fp8(f"{p}ffn.experts.{e}.{leaf}", o, i, scales)
    m.config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                       "weight_block_size": [block, block]}
    if experts == "fp4" or scales == "F8_E8M0":
        m.config["quantization_config"]["scale_fmt"] = "ue8m0"
    return m
