"""Computes the forward pass of a small model of each family in float64, to compare with `tessera verify forward`."""

import json
import math

from checkpoints import write
import harness
import ml_dtypes
from mla_oracle import BATCH, Model, TOKENS
import numpy as np
import pytest

BF16 = ml_dtypes.bfloat16
HIDDEN, HEADS, KV_HEADS, DIM, INNER, LAYERS, VOCABULARY, EXPERTS, CHOSEN, EPS = 64, 4, 2, 16, 96, 3, 97, 8, 3, 1e-6
BASE = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIM,
        "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "rms_norm_eps": EPS, "rope_theta": 500.0,
        "hidden_act": "silu", "num_experts_per_tok": CHOSEN}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
WINDOW = 4
TYPES = ["full_attention", "sliding_attention", "full_attention"]
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "sliding_window": WINDOW, "query_pre_attn_scalar": 40, "tie_word_embeddings": True}
# "traits" are the tensors that a family has.
FAMILIES = {
    "llama": {"model_type": "llama", "rope_scaling": LLAMA3, "traits": set()},
    "mistral": {"model_type": "mistral", "rope_scaling": {"type": "linear", "factor": 4.0}, "traits": set()},
    "mistral, window": {"model_type": "mistral", "sliding_window": WINDOW, "traits": set()},
    "gemma2": {"model_type": "gemma2", **GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "traits": {"gemma", "tied"}},
    "gemma3_text": {"model_type": "gemma3_text", **GEMMA, "layer_types": TYPES, "rope_local_base_freq": 50.0,
                    "traits": {"gemma", "tied", "head norms"}},
    "gemma3_text, pattern": {"model_type": "gemma3_text", **GEMMA, "sliding_window_pattern": 2, "rope_local_base_freq": 50.0,
                             "traits": {"gemma", "tied", "head norms"}},
    "gpt_oss": {"model_type": "gpt_oss", "sliding_window": WINDOW, "layer_types": TYPES, "attention_bias": True, "intermediate_size": INNER,
                "swiglu_limit": 2.0, "num_local_experts": EXPERTS, "traits": {"bias", "stacks"}},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, "traits": {"bias", "tied"}},
    "qwen2, later window": {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW, "traits": {"bias"}},
    "qwen2_moe": {"model_type": "qwen2_moe", "norm_topk_prob": False, "traits": {"bias", "experts", "gated shared"}},
    "mixtral": {"model_type": "mixtral", "norm_topk_prob": True, "traits": {"experts"}},
    "glm4_moe": {"model_type": "glm4_moe", "partial_rotary_factor": 0.5, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5,
                 "norm_topk_prob": True, "traits": {"bias", "head norms", "experts", "shared", "sigmoid"}},
    "qwen3": {"model_type": "qwen3", "traits": {"head norms"}},
    "qwen3_moe": {"model_type": "qwen3_moe", "norm_topk_prob": True, "traits": {"head norms", "experts"}},
    "deepseek_v2": {"model_type": "deepseek_v2", "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
                    "routed_scaling_factor": 2.0, "norm_topk_prob": False, "traits": {"latent", "experts", "shared"}},
    "deepseek_v3": {"model_type": "deepseek_v3", "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
                    "norm_topk_prob": True, "traits": {"latent", "experts", "shared", "sigmoid"}},
}


def rms_norm(x, gain):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * gain


def softmax(x):
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


class Whole:
    """A model of three layers, the first without experts, and its forward pass."""

    def __init__(self, family):
        self.config = BASE | FAMILIES[family]
        self.traits = self.config.pop("traits")
        self.rng = np.random.default_rng(5)
        self.tokens = self.rng.integers(0, VOCABULARY, (BATCH, TOKENS))
        self.attention = [Model(q_rank=48, nope=16, rope=8, v=12, rank=32, hidden=HIDDEN, seed=s) for s in range(LAYERS)]
        if "latent" in self.traits:
            self.config |= self.attention[0].config
        self.tensors = {"model.embed_tokens.weight": self.draw(VOCABULARY, HIDDEN, scale=1),
                        "model.norm.weight": self.gain(HIDDEN)}
        if "tied" not in self.traits:
            self.tensors["lm_head.weight"] = self.draw(VOCABULARY, HIDDEN)
        for layer in range(LAYERS):
            self.tensors |= {f"model.layers.{layer}.{n}": x for n, x in self.layer_tensors(layer).items()}

    def draw(self, *shape, scale=None):
        return (self.rng.standard_normal(shape) * (scale or shape[-1] ** -0.5)).astype(BF16)

    def gain(self, n):
        """Gemma adds 1 to it."""
        return (self.rng.uniform(0.5, 2, n) - ("gemma" in self.traits)).astype(BF16)

    def norm(self, x, gain):
        return rms_norm(x, gain + ("gemma" in self.traits))

    def moe(self):
        """Returns the beginning of the names of a layer's router and experts."""
        return "block_sparse_moe" if self.config["model_type"] == "mixtral" else "mlp"

    def weight(self, prefix, n):
        """The name of a gate, up or down projection."""
        leaf = {"gate": "w1", "up": "w3", "down": "w2"}[n] if prefix.startswith("block_sparse_moe.") else f"{n}_proj"
        return f"{prefix}.{leaf}.weight"

    def mlp(self, prefix):
        return {self.weight(prefix, n): self.draw(*s)
                for n, s in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER)))}

    def layer_tensors(self, layer):
        t = {"input_layernorm.weight": self.gain(HIDDEN), "post_attention_layernorm.weight": self.gain(HIDDEN)}
        if "gemma" in self.traits:
            t |= {f"{n}_feedforward_layernorm.weight": self.gain(HIDDEN) for n in ("pre", "post")}
        if "latent" in self.traits:
            t |= {n.removeprefix("model.layers.0."): x for n, x in self.attention[layer].tensors.items()}
        else:
            for n, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                t[f"self_attn.{n}_proj.weight"] = self.draw(heads * DIM, HIDDEN)
                if "bias" in self.traits:
                    t[f"self_attn.{n}_proj.bias"] = self.draw(heads * DIM, scale=0.5)
                if "head norms" in self.traits and n != "v":
                    t[f"self_attn.{n}_norm.weight"] = self.gain(DIM)
            t["self_attn.o_proj.weight"] = self.draw(HIDDEN, HEADS * DIM)
            if "stacks" in self.traits:
                t |= {"self_attn.o_proj.bias": self.draw(HIDDEN, scale=0.5), "self_attn.sinks": self.draw(HEADS, scale=1)}
        if "stacks" in self.traits:
            return t | self.stacks()
        if "experts" not in self.traits or layer == 0:
            return t | self.mlp("mlp")
        t[f"{self.moe()}.gate.weight"] = self.draw(EXPERTS, HIDDEN)
        if "sigmoid" in self.traits:
            t["mlp.gate.e_score_correction_bias"] = self.rng.uniform(0, 0.5, EXPERTS).astype(np.float32)
        for e in range(EXPERTS):
            t |= self.mlp(f"{self.moe()}.experts.{e}")
        if "gated shared" in self.traits:
            t |= {"mlp.shared_expert_gate.weight": self.draw(1, HIDDEN), **self.mlp("mlp.shared_expert")}
        return t | (self.mlp("mlp.shared_experts") if "shared" in self.traits else {})

    def stacks(self):
        """gpt-oss: matrices of all experts as inputs by outputs, gate and up in turn."""
        return {"mlp.router.weight": self.draw(EXPERTS, HIDDEN), "mlp.router.bias": self.draw(EXPERTS, scale=0.5),
                "mlp.experts.gate_up_proj": self.draw(EXPERTS, HIDDEN, 2 * INNER, scale=HIDDEN**-0.5),
                "mlp.experts.gate_up_proj_bias": self.draw(EXPERTS, 2 * INNER, scale=0.5),
                "mlp.experts.down_proj": self.draw(EXPERTS, INNER, HIDDEN, scale=INNER**-0.5),
                "mlp.experts.down_proj_bias": self.draw(EXPERTS, HIDDEN, scale=0.5)}

    def write(self, path, **config):
        return write(path, self.tensors, self.config | config)

    # ---- the pass ----

    def slides(self, layer):
        """True if the layer sees no more than WINDOW tokens."""
        if "layer_types" in self.config:
            return self.config["layer_types"][layer] == "sliding_attention"
        if "sliding_window_pattern" in self.config:
            return (layer + 1) % self.config["sliding_window_pattern"] != 0
        if "max_window_layers" in self.config:
            return layer >= self.config["max_window_layers"]
        return "sliding_window" in self.config and (self.config["model_type"] != "gemma2" or layer % 2 == 0)

    def frequency(self, layer):
        base = self.config["rope_local_base_freq"] if "rope_local_base_freq" in self.config and self.slides(layer) else 500.0
        turned = int(DIM * self.config.get("partial_rotary_factor", 1))
        f = base ** -(np.arange(0, turned, 2) / turned)
        scaling = self.config.get("rope_scaling") or {}
        if scaling.get("type") == "linear":
            return f / scaling["factor"]
        if scaling.get("rope_type") != "llama3":
            return f
        wave, trained = 2 * math.pi / f, scaling["original_max_position_embeddings"]
        smooth = (trained / wave - 1) / (4 - 1)
        return np.where(wave > trained / 1, f / 8, np.where(wave < trained / 4, f, (1 - smooth) * f / 8 + smooth * f))

    def grouped(self, layer, w, x, fault):
        angle = np.arange(TOKENS)[:, None] * self.frequency(layer)
        cos, sin = (np.concatenate([u, u], -1)[None, :, None] for u in (np.cos(angle), np.sin(angle)))

        def heads(name):
            y = x @ w[f"self_attn.{name}_proj.weight"].T + w.get(f"self_attn.{name}_proj.bias", 0)
            y = y.reshape(BATCH, TOKENS, -1, DIM)
            if f"self_attn.{name}_norm.weight" in w and fault != "head norm":
                y = self.norm(y, w[f"self_attn.{name}_norm.weight"])
            if name == "v" or fault == "rope":
                return y
            turned, kept = np.split(y, [cos.shape[-1]], -1)
            first, second = np.split(turned, 2, -1)
            return np.concatenate([turned * cos + np.concatenate([-second, first], -1) * sin, kept], -1)

        q, k, v = heads("q"), heads("k"), heads("v")
        k, v = (np.repeat(u, HEADS // KV_HEADS, axis=2) for u in (k, v))
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(self.config.get("query_pre_attn_scalar", DIM))
        cap = self.config.get("attn_logit_softcapping")
        scores = cap * np.tanh(scores / cap) if cap else scores
        seen = np.tril(np.ones((TOKENS, TOKENS), bool)) & (self.slides(layer) <= np.triu(np.ones((TOKENS, TOKENS), bool), 1 - WINDOW))
        scores = np.where(seen, scores, -np.inf)
        if "self_attn.sinks" in w:
            sinks = np.broadcast_to(w["self_attn.sinks"][None, :, None, None], (*scores.shape[:3], 1))
            scores = np.concatenate([scores, sinks], -1)
        out = np.einsum("bhqk,bkhd->bqhd", softmax(scores)[..., :TOKENS], v)
        return out.reshape(BATCH, TOKENS, -1) @ w["self_attn.o_proj.weight"].T + w.get("self_attn.o_proj.bias", 0)

    def run_mlp(self, w, prefix, x):
        gate, up, down = (w[self.weight(prefix, n)].T for n in ("gate", "up", "down"))
        gate = x @ gate
        gelu = 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        return (gate * (gelu if "gemma" in self.traits else 1 / (1 + np.exp(-gate))) * (x @ up)) @ down

    def run_stacks(self, w, x):
        """gpt-oss: (what the experts add, chosen experts)."""
        logits = x @ w["mlp.router.weight"].T + w["mlp.router.bias"]
        chosen = np.argsort(-logits, -1)[..., :CHOSEN]
        weights, limit = softmax(np.take_along_axis(logits, chosen, -1)), self.config["swiglu_limit"]
        added = np.zeros_like(x)
        for e in range(EXPERTS):
            both = x @ w["mlp.experts.gate_up_proj"][e] + w["mlp.experts.gate_up_proj_bias"][e]
            gate, up = np.minimum(both[..., ::2], limit), np.clip(both[..., 1::2], -limit, limit)
            out = ((up + 1) * gate / (1 + np.exp(-1.702 * gate))) @ w["mlp.experts.down_proj"][e] + w["mlp.experts.down_proj_bias"][e]
            added += np.where(chosen == e, weights, 0).sum(-1, keepdims=True) * out
        return added, chosen

    def route(self, w, x, fault):
        """(chosen experts, their weights) of each token."""
        logits = x @ w[f"{self.moe()}.gate.weight"].T
        scores = 1 / (1 + np.exp(-logits)) if "sigmoid" in self.traits else softmax(logits)
        keys = scores + (w.get("mlp.gate.e_score_correction_bias", 0) if fault != "bias" else 0)
        groups = self.config.get("n_group", 1)
        if groups > 1 and fault != "groups":
            grouped = np.sort(keys.reshape(*keys.shape[:-1], groups, -1), -1)
            rank = grouped[..., -2:].sum(-1) if "sigmoid" in self.traits else grouped[..., -1]
            kept = np.argsort(-rank, -1)[..., : self.config["topk_group"]]
            mask = np.zeros(rank.shape, bool)
            np.put_along_axis(mask, kept, True, -1)
            keys = np.where(np.repeat(mask, EXPERTS // groups, -1), keys, -np.inf)
        chosen = np.argsort(-keys, -1)[..., :CHOSEN]
        weights = np.take_along_axis(scores, chosen, -1)
        if self.config.get("norm_topk_prob"):
            weights = weights / weights.sum(-1, keepdims=True)
        return chosen, weights * (self.config.get("routed_scaling_factor", 1) if fault != "scaling" else 1)

    def run_layer(self, layer, x, tensors, fault=None):
        """(hidden states behind it, chosen experts or None)"""
        prefix = f"model.layers.{layer}."
        w = {n.removeprefix(prefix): t.astype(np.float64) for n, t in tensors.items() if n.startswith(prefix)}
        normed = self.norm(x, w["input_layernorm.weight"])
        if "latent" in self.traits:
            m = self.attention[layer]
            m.tensors = {f"model.layers.0.{n}": t for n, t in w.items() if n.startswith("self_attn.")}
            x = x + m.stages(hidden=normed)["output"]
        else:
            added = self.grouped(layer, w, normed, fault)
            x = x + (self.norm(added, w["post_attention_layernorm.weight"]) if "gemma" in self.traits else added)
        if "gemma" in self.traits:
            added = self.run_mlp(w, "mlp", self.norm(x, w["pre_feedforward_layernorm.weight"]))
            return x + self.norm(added, w["post_feedforward_layernorm.weight"]), None
        normed = rms_norm(x, w["post_attention_layernorm.weight"])
        if "stacks" in self.traits:
            added, chosen = self.run_stacks(w, normed)
            return x + added, chosen
        if f"{self.moe()}.gate.weight" not in w:
            return x + self.run_mlp(w, "mlp", normed), None
        chosen, weights = self.route(w, normed, fault)
        added = np.zeros_like(x)
        for e in range(EXPERTS):
            share = np.where(chosen == e, weights, 0).sum(-1, keepdims=True)
            added += share * self.run_mlp(w, f"{self.moe()}.experts.{e}", normed)
        if "gated shared" in self.traits:
            share = 1 / (1 + np.exp(-normed @ w["mlp.shared_expert_gate.weight"].T))
            added += share * self.run_mlp(w, "mlp.shared_expert", normed)
        if "shared" in self.traits and fault != "shared":
            added += self.run_mlp(w, "mlp.shared_experts", normed)
        return x + added, chosen

    def logits(self, x, tensors):
        head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]).astype(np.float64)
        logits = self.norm(x, tensors["model.norm.weight"].astype(np.float64)) @ head.T
        cap = self.config.get("final_logit_softcapping")
        return cap * np.tanh(logits / cap) if cap else logits

    def run(self, faults=None, tensors=None):
        """Returns the arrays of a reference file; `faults`: {layer: mistake}."""
        tensors = tensors or self.tensors
        x = tensors["model.embed_tokens.weight"].astype(np.float64)[self.tokens] * (math.sqrt(HIDDEN) if "gemma" in self.traits else 1)
        out = {"hidden_states.0": x}
        for layer in range(LAYERS):
            x, _ = self.run_layer(layer, x, tensors, (faults or {}).get(layer))
            out[f"hidden_states.{layer + 1}"] = x
        return out | {"logits": self.logits(x, tensors)}

    def reference(self, path, faults=None, drop=()):
        arrays = {n: x for n, x in self.run(faults).items() if n not in drop}
        harness.write_safetensors(path, {n: ("F32", x.shape, x.astype(np.float32).tobytes()) for n, x in arrays.items()}
                                  | {"input_ids": ("I64", self.tokens.shape, self.tokens.astype(np.int64).tobytes())})
        return path


def command(*arguments):
    """verify forward; SRC and DST in front of the options become DST --against SRC, with --exact unless --served says no."""
    if len(arguments) > 1 and not str(arguments[1]).startswith("--"):
        arguments = [arguments[1], "--against", arguments[0], *arguments[2:]]
        if "--served" in arguments:
            arguments.remove("--served")
        else:
            arguments.append("--exact")
    return ["verify", "forward", *arguments]


@pytest.fixture
def verify(tessera):
    """verify(*arguments) -> {(subject, what): judgement}"""

    def run(*arguments):
        code, out, err = harness.run(tessera, [*command(*arguments), "--json", "-"])
        assert code in (0, 1), err
        result = json.loads(out)
        assert result["passed"] == (code == 0) == all(j["passed"] for j in result["judgements"])
        return {(j["subject"], j["what"]): j for j in result["judgements"]}

    return run


def failed(judgements):
    """Subjects whose judgements did not pass, in their order."""
    return [subject for (subject, _), j in judgements.items() if not j["passed"]]


def noisy(m, amount):
    rng = np.random.default_rng(9)
    return {n: x if "norm" in n or x.dtype != BF16 else (x.astype(np.float64) * (1 + amount * rng.standard_normal(x.shape))).astype(BF16)
            for n, x in m.tensors.items()}


def sqnr(x, y):
    return 10 * math.log10((x**2).sum() / ((x - y) ** 2).sum())
