"""Small checkpoints for the rules of loaders, what can be broken in them, and the table of `inspect --can-load`."""

import json

import harness
import numpy as np
from checkpoints import INDEX, WIDTHS

ENGINES = ("vllm", "sglang", "trtllm")
HF = {"vllm", "sglang", "transformers", "trtllm"}
UP, O = "model.layers.0.mlp.up_proj", "model.layers.0.self_attn.o_proj"


class Model:
    """Is a checkpoint in memory: {name: (dtype, shape, bytes)} and its configuration, with methods that break rules."""

    def __init__(self, config, quantized=True):
        self.config = {"architectures": ["ForCausalLM"], "num_hidden_layers": 2, "vocab_size": 256, "tie_word_embeddings": False, **config}
        self.quantized = quantized
        self.tensors = {}
        self.metadata = True
        self.total = None
        if quantized:
            self.config["quantization_config"] = {
                "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128],
                "modules_to_not_convert": ["lm_head"]}
        for name in ("model.embed_tokens", "lm_head"):
            self.plain(name, (256, 256))
        self.plain("model.norm", (256,))

    @property
    def quantization(self):
        return self.config["quantization_config"]

    def plain(self, module, shape, dtype="BF16"):
        """Adds an unquantized module instead of a quantized one of the same name."""
        self.tensors.pop(f"{module}.weight_scale_inv", None)
        self.tensors[f"{module}.weight"] = (dtype, shape, bytes(int(np.prod(shape)) * WIDTHS[dtype]))

    def linear(self, module, rows, cols):
        if not self.quantized:
            self.plain(module, (rows, cols))
            return
        self.tensors[f"{module}.weight"] = ("F8_E4M3", (rows, cols), b"\x38" * (rows * cols))
        self.scale(f"{module}.weight_scale_inv", np.ones((-(-rows // 128), -(-cols // 128)), np.float32))

    def scale(self, name, values):
        self.tensors[name] = ("F32", values.shape, values.astype(np.float32).tobytes())

    def rename(self, old, new):
        self.tensors = {name.replace(old, new): t for name, t in self.tensors.items()}

    def drop(self, *parts):
        self.tensors = {name: t for name, t in self.tensors.items() if not any(part in name for part in parts)}

    def write(self, path):
        path.mkdir()
        names = sorted(self.tensors)
        files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
        for file, mine in files.items():
            harness.write_safetensors(path / file, {name: self.tensors[name] for name in mine}, {"format": "pt"})
        index = {"weight_map": {name: file for file, mine in files.items() for name in mine}}
        if self.metadata:
            size = sum(len(t[2]) for t in self.tensors.values())
            index = {"metadata": {"total_size": size if self.total is None else self.total}, **index}
        (path / INDEX).write_text(json.dumps(index))
        (path / "config.json").write_text(json.dumps(self.config))
        return path


def llama(quantized=True, intermediate=512, experts=0):
    """Makes Llama's tensors, with the model_type of a family that every loader reads. (SGLang's Llama loads no
    weight_scale_inv.)"""
    m = Model({"model_type": "qwen3", "hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2,
               "head_dim": 128, **({"num_experts": experts} if experts else {})}, quantized)
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for leaf in "qkvo":
            m.linear(f"{prefix}self_attn.{leaf}_proj", 256, 256)
        for mlp in [f"mlp.experts.{e}" for e in range(experts)] or ["mlp"]:
            m.linear(f"{prefix}{mlp}.gate_proj", intermediate, 256)
            m.linear(f"{prefix}{mlp}.up_proj", intermediate, 256)
            m.linear(f"{prefix}{mlp}.down_proj", 256, intermediate)
        m.plain(f"{prefix}input_layernorm", (256,))
    return m


def deepseek(nope=128, value=128, mtp=False, latent=448):
    m = Model({"model_type": "deepseek_v3", "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4,
               "q_lora_rank": 128, "kv_lora_rank": latent, "qk_nope_head_dim": nope, "qk_rope_head_dim": 64,
               "v_head_dim": value, "n_routed_experts": 4, "num_nextn_predict_layers": int(mtp)})
    for layer in range(2 + mtp):
        prefix = f"model.layers.{layer}."
        m.linear(f"{prefix}self_attn.q_a_proj", 128, 256)
        m.linear(f"{prefix}self_attn.q_b_proj", 4 * (nope + 64), 128)
        m.linear(f"{prefix}self_attn.kv_a_proj_with_mqa", latent + 64, 256)
        m.linear(f"{prefix}self_attn.kv_b_proj", 4 * (nope + value), latent)
        m.linear(f"{prefix}self_attn.o_proj", 256, 4 * value)
        m.plain(f"{prefix}mlp.gate", (4, 256))
        m.tensors[f"{prefix}mlp.gate.e_score_correction_bias"] = ("F32", (4,), bytes(16))
        for e in range(4):
            m.linear(f"{prefix}mlp.experts.{e}.gate_proj", 256, 256)
            m.linear(f"{prefix}mlp.experts.{e}.up_proj", 256, 256)
            m.linear(f"{prefix}mlp.experts.{e}.down_proj", 256, 256)
    return m


def load_table(inspect, model, tmp_path, tp="1", loaders="all"):
    code, got = inspect(model.write(tmp_path / "m"), "--can-load", loaders, "--tp", tp)
    assert code == int(any(f["severity"] == "error" for f in got["findings"]) or
                       not all(ok for row in got["can_load"].values() for ok in row.values()))
    assert got["can_load"] and all(set(row) == set(tp.split(",")) for row in got["can_load"].values()), got["can_load"]
    for f in got["load_findings"]:
        if f["severity"] == "error":
            row = got["can_load"][f["loader"]]
            assert not any(row.values()) if f["tp"] is None else not row[str(f["tp"])], f
    return got


def hold_to_rule(make, act, tp, loaders, rule, words, inspect, tmp_path):
    """Checks that the model of make(), changed by act(model), is rejected under `rule` by these loaders and no other, with
    all the words. Each finding must have the version that the rule was checked against."""
    m = make()
    if act:
        act(m)
    got = load_table(inspect, m, tmp_path, str(tp))
    mine = [f for f in got["load_findings"] if f["rule"] == rule and f["severity"] == "error" and
            all(word in f"{f['tensor']} {f['detail']}" for word in words)]
    assert {f["loader"] for f in mine} == loaders, got["load_findings"]
    assert all(f["checked"] for f in got["load_findings"]) and all(got["checked"].values())
    assert not any(ok for loader in loaders for ok in got["can_load"][loader].values())


def edit(path, value):
    """Sets the member of quantization_config at a dotted path; None removes it."""

    def act(m):
        *outer, last = path.split(".")
        at = m.quantization
        for key in outer:
            at = at[key]
        if value is None:
            del at[last]
        else:
            at[last] = value

    return act


def unquantize(*leaves, listed=()):
    def act(m):
        for name in list(m.tensors):
            if name.endswith(tuple(f"{leaf}.weight" for leaf in leaves)):
                m.plain(name.removesuffix(".weight"), m.tensors[name][1])
        m.quantization["modules_to_not_convert"] = list(listed)

    return act


def in_full(*leaves):
    return [f"model.layers.{layer}.self_attn.{leaf}" for layer in range(2) for leaf in leaves]


def compressed(m):
    arguments = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block", "block_structure": [128, 128],
                 "dynamic": False}
    inputs = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "group", "group_size": 128, "dynamic": True}
    m.config["quantization_config"] = {
        "quant_method": "compressed-tensors", "quantization_status": "compressed", "format": "float-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": arguments, "input_activations": inputs}}}


def both(*acts):
    def act(m):
        for each in acts:
            each(m)

    return act


def as_compressed(*more):
    return both(compressed, lambda m: m.rename("_scale_inv", "_scale"), *more)
