"""Computes a small DeepSeek-V4 in float64: hyper-connections, attention over a compressed cache, experts by token."""

import math

from checkpoints import BF16, write
import harness
import numpy as np

BATCH, TOKENS, VOCABULARY, HIDDEN, HEADS, DIM, TURNED, Q_RANK = 2, 21, 97, 48, 4, 24, 8, 40
GROUPS, RANK, INNER, EXPERTS, CHOSEN, STREAMS, WINDOW, LIMIT, EPS, ROUNDS = 2, 12, 32, 6, 2, 3, 4, 0.8, 1e-6, 5
INDEX_HEADS, INDEX_DIM, TOP = 16, 12, 3
RATES = {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4}
TYPES = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention", "compressed_sparse_attention"]
HASHED, FACTOR, TRAINED = 2, 4.0, 16
YARN = {"factor": FACTOR, "original_max_position_embeddings": TRAINED, "beta_fast": 32, "beta_slow": 1}
CONFIG = {"model_type": "deepseek_v4", "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": len(TYPES),
          "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": DIM, "q_lora_rank": Q_RANK, "qk_rope_head_dim": TURNED,
          "o_groups": GROUPS, "o_lora_rank": RANK, "moe_intermediate_size": INNER, "n_routed_experts": EXPERTS,
          "num_experts_per_tok": CHOSEN, "scoring_func": "sqrtsoftplus", "routed_scaling_factor": 1.5, "norm_topk_prob": True,
          "hc_mult": STREAMS, "hc_sinkhorn_iters": ROUNDS, "hc_eps": 1e-3, "sliding_window": WINDOW, "swiglu_limit": LIMIT,
          "index_n_heads": INDEX_HEADS, "index_head_dim": INDEX_DIM, "index_topk": TOP, "rms_norm_eps": EPS, "hidden_act": "silu",
          "compress_rates": RATES, "tie_word_embeddings": False}
# The settings of RoPE as the release has them, and as transformers writes them.
FLAT = {"rope_theta": 500.0, "compress_rope_theta": 900.0, "rope_scaling": {"type": "yarn", **YARN}}
NESTED = {"rope_parameters": {"main": {"rope_type": "default", "rope_theta": 500.0},
                              "compress": {"rope_type": "yarn", "rope_theta": 900.0, "attention_factor": 1.0, **YARN}}}


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rms_norm(x, gain=1):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * gain


def frequencies(kind):
    if kind == "sliding_attention":
        return 500.0 ** -(np.arange(0, TURNED, 2) / TURNED)
    plain = 900.0 ** -(np.arange(0, TURNED, 2) / TURNED)

    def dimension(turns):
        return TURNED * math.log(TRAINED / (turns * 2 * math.pi)) / (2 * math.log(900.0))
    low, high = max(math.floor(dimension(32)), 0), min(math.ceil(dimension(1)), TURNED - 1)
    ramp = np.clip((np.arange(TURNED // 2) - low) / max(high - low, 0.001), 0, 1)
    return plain / FACTOR * ramp + plain * (1 - ramp)


def turn(x, kind, places, sign=1):
    """Applies RoPE to pairs (2i, 2i + 1) of the last elements of x [batch, token, .., elements]."""
    angle = np.reshape(np.outer(places, frequencies(kind)), (1, len(places)) + (1,) * (x.ndim - 3) + (-1,))
    z = (x[..., -TURNED::2] + 1j * x[..., 1 - TURNED::2]) * np.exp(sign * 1j * angle)
    return np.concatenate([x[..., :-TURNED], np.stack([z.real, z.imag], -1).reshape(*x.shape[:-1], TURNED)], -1)


class Compressed:
    def __init__(self, ropes=FLAT):
        self.config, self.rng, self.inputs = CONFIG | ropes, np.random.default_rng(5), {}
        if ropes is FLAT:
            self.config["num_hash_layers"] = HASHED
        self.config["layer_types"] = TYPES
        self.tokens = self.rng.integers(0, VOCABULARY, (BATCH, TOKENS))
        self.tensors = {"embed.weight": self.draw(VOCABULARY, HIDDEN, scale=1), "norm.weight": self.gain(HIDDEN),
                        "head.weight": self.draw(VOCABULARY, HIDDEN), **self.connection("hc_head", STREAMS, 1)}
        for layer, kind in enumerate(TYPES):
            self.tensors |= {f"layers.{layer}.{n}": x for n, x in self.layer_tensors(layer, kind).items()}

    def draw(self, *shape, scale=None):
        return (self.rng.standard_normal(shape) * (scale or shape[-1] ** -0.5)).astype(BF16)

    def gain(self, n):
        return self.rng.uniform(0.5, 2, n).astype(BF16)

    def connection(self, name, rows, scales):
        return {f"{name}_fn": self.draw(rows, STREAMS * HIDDEN, scale=0.3).astype(np.float32), f"{name}_base": self.rng.standard_normal(rows).astype(np.float32),
                f"{name}_scale": self.rng.uniform(0.3, 1, scales).astype(np.float32)}

    def compressor(self, module, rate, width, dim):
        return {f"{module}.wkv.weight": self.draw(width, HIDDEN), f"{module}.wgate.weight": self.draw(width, HIDDEN, scale=0.3),
                f"{module}.ape": self.rng.standard_normal((rate, width)).astype(np.float32), f"{module}.norm.weight": self.gain(dim)}

    def layer_tensors(self, layer, kind):
        t = {"attn_norm.weight": self.gain(HIDDEN), "ffn_norm.weight": self.gain(HIDDEN),
             "attn.wq_a.weight": self.draw(Q_RANK, HIDDEN), "attn.q_norm.weight": self.gain(Q_RANK),
             "attn.wq_b.weight": self.draw(HEADS * DIM, Q_RANK), "attn.wkv.weight": self.draw(DIM, HIDDEN), "attn.kv_norm.weight": self.gain(DIM),
             "attn.wo_a.weight": self.draw(GROUPS * RANK, HEADS * DIM // GROUPS), "attn.wo_b.weight": self.draw(HIDDEN, GROUPS * RANK),
             "attn.attn_sink": self.rng.standard_normal(HEADS).astype(np.float32),
             **self.connection("hc_attn", (2 + STREAMS) * STREAMS, 3), **self.connection("hc_ffn", (2 + STREAMS) * STREAMS, 3)}
        if kind != "sliding_attention":
            indexed = kind == "compressed_sparse_attention"
            t |= self.compressor("attn.compressor", RATES[kind], DIM * (1 + indexed), DIM)
            if indexed:
                t |= {"attn.indexer.wq_b.weight": self.draw(INDEX_HEADS * INDEX_DIM, Q_RANK), "attn.indexer.weights_proj.weight": self.draw(INDEX_HEADS, HIDDEN),
                      **self.compressor("attn.indexer.compressor", RATES[kind], 2 * INDEX_DIM, INDEX_DIM)}
        t["ffn.gate.weight"] = self.draw(EXPERTS, HIDDEN)
        if layer < HASHED:
            t["ffn.gate.tid2eid"] = np.stack([self.rng.permutation(EXPERTS)[:CHOSEN] for _ in range(VOCABULARY)]).astype(np.int64)
        else:
            t["ffn.gate.bias"] = self.rng.uniform(0, 0.5, EXPERTS).astype(np.float32)
        for module in (*(f"ffn.experts.{e}" for e in range(EXPERTS)), "ffn.shared_experts"):
            t |= {f"{module}.w1.weight": self.draw(INNER, HIDDEN), f"{module}.w3.weight": self.draw(INNER, HIDDEN), f"{module}.w2.weight": self.draw(HIDDEN, INNER)}
        return t

    def write(self, path, **config):
        return write(path, self.tensors, self.config | config)

    # ---- the pass ----

    def mlp(self, w, module, x):
        gate, up = np.minimum(x @ w[f"{module}.w1.weight"].T, LIMIT), np.clip(x @ w[f"{module}.w3.weight"].T, -LIMIT, LIMIT)
        return (gate * sigmoid(gate) * up) @ w[f"{module}.w2.weight"].T

    def experts(self, w, x, fault):
        scores = np.sqrt(np.log1p(np.exp(x @ w["ffn.gate.weight"].T)))
        if "ffn.gate.tid2eid" in w and fault != "table":
            chosen = w["ffn.gate.tid2eid"].astype(int)[self.tokens]
        else:
            chosen = np.argsort(-(scores + w.get("ffn.gate.bias", 0)), -1)[..., :CHOSEN]
        weights = np.take_along_axis(scores, chosen, -1)
        weights = weights / weights.sum(-1, keepdims=True) * 1.5
        out = self.mlp(w, "ffn.shared_experts", x)
        for e in range(EXPERTS):
            out += np.where(chosen == e, weights, 0).sum(-1, keepdims=True) * self.mlp(w, f"ffn.experts.{e}", x)
        return out, chosen

    def entries(self, w, module, x, kind, dim, fault):
        rate, n = RATES[kind], x.shape[1] // RATES[kind]
        values, gates = (x[:, :n * rate] @ w[f"{module}.{name}.weight"].T for name in ("wkv", "wgate"))
        values, gates = (y.reshape(BATCH, n, rate, -1) for y in (values, gates))
        gates = gates + w[f"{module}.ape"]
        if values.shape[-1] == 2 * dim:
            before = np.concatenate([np.zeros((BATCH, 1, rate, dim)), values[:, :-1, :, :dim]], 1)
            closed = np.concatenate([np.full((BATCH, 1, rate, dim), -np.inf), gates[:, :-1, :, :dim]], 1)
            closed = np.full_like(closed, -np.inf) if fault == "overlap" else closed
            values, gates = np.concatenate([before, values[..., dim:]], 2), np.concatenate([closed, gates[..., dim:]], 2)
        pooled = rms_norm((values * softmax(gates, 2)).sum(2), w[f"{module}.norm.weight"])
        return turn(pooled, kind, np.arange(n) * rate)

    def attention(self, layer, w, x, fault):
        kind, places = TYPES[layer], np.arange(TOKENS)
        query = rms_norm(x @ w["attn.wq_a.weight"].T, w["attn.q_norm.weight"])
        q = turn(rms_norm((query @ w["attn.wq_b.weight"].T).reshape(BATCH, TOKENS, HEADS, DIM)), kind, places)
        k = turn(rms_norm(x @ w["attn.wkv.weight"].T, w["attn.kv_norm.weight"]), kind, places)
        seen = (places <= places[:, None]) & (places > places[:, None] - WINDOW)
        seen = np.broadcast_to(seen, (BATCH, TOKENS, TOKENS))
        self.chosen_tokens = None
        if kind != "sliding_attention" and fault != "entries":
            entries = self.entries(w, "attn.compressor", x, kind, DIM, fault)
            visible = np.arange(entries.shape[1]) < (places[:, None] + 1) // RATES[kind]
            visible = np.broadcast_to(visible, (BATCH, *visible.shape))
            if kind == "compressed_sparse_attention":
                visible = self.chosen_tokens = self.choose(w, x, query, kind, visible, fault)
            k, seen = np.concatenate([k, entries], 1), np.concatenate([seen, visible], -1)
        scores = np.where(seen[:, None], np.einsum("bqhd,bkd->bhqk", q, k) / math.sqrt(DIM), -np.inf)
        sinks = np.broadcast_to(w["attn.attn_sink"][None, :, None, None], (*scores.shape[:3], 1))
        shares = softmax(np.concatenate([scores, sinks], -1))[..., :-1]
        out = np.einsum("bhqk,bkd->bqhd", shares, k)
        out = (out if fault == "back" else turn(out, kind, places, -1)).reshape(BATCH, TOKENS, GROUPS, -1)
        self.inputs[f"layers.{layer}.attn.wo_a"] = out.reshape(-1, out.shape[-1])
        low = np.einsum("btgc,grc->btgr", out, w["attn.wo_a.weight"].reshape(GROUPS, RANK, -1))
        return low.reshape(BATCH, TOKENS, -1) @ w["attn.wo_b.weight"].T

    def choose(self, w, x, query, kind, visible, fault):
        keys = self.entries(w, "attn.indexer.compressor", x, kind, INDEX_DIM, fault)
        q = turn((query @ w["attn.indexer.wq_b.weight"].T).reshape(BATCH, TOKENS, INDEX_HEADS, INDEX_DIM), kind, np.arange(TOKENS))
        scores = np.einsum("bqhk,bqh->bqk", np.maximum(np.einsum("bqhd,bkd->bqhk", q, keys), 0), x @ w["attn.indexer.weights_proj.weight"].T)
        order = np.argsort(-np.where(visible, scores, -np.inf), -1, kind="stable")[..., :TOP]
        mask = np.zeros(visible.shape, bool)
        np.put_along_axis(mask, order, True, -1)
        return mask & visible

    def weigh(self, w, name, x):
        """Returns (pre, post, mix) of a connection for streams x [batch, token, stream, hidden]."""
        y = rms_norm(x.reshape(BATCH, TOKENS, -1)) @ w[f"{name}_fn"].T
        scale, base, eps = w[f"{name}_scale"], w[f"{name}_base"], self.config["hc_eps"]
        pre = sigmoid(y[..., :STREAMS] * scale[0] + base[:STREAMS]) + eps
        if name == "hc_head":
            return pre, None, None
        post = 2 * sigmoid(y[..., STREAMS:2 * STREAMS] * scale[1] + base[STREAMS:2 * STREAMS])
        mix = softmax((y[..., 2 * STREAMS:] * scale[2] + base[2 * STREAMS:]).reshape(BATCH, TOKENS, STREAMS, STREAMS)) + eps
        mix = mix / (mix.sum(-2, keepdims=True) + eps)
        for _ in range(ROUNDS - 1):
            mix = mix / (mix.sum(-1, keepdims=True) + eps)
            mix = mix / (mix.sum(-2, keepdims=True) + eps)
        return pre, post, mix

    def run_layer(self, layer, x, tensors, fault=None):
        """Returns (output streams, chosen experts) for x [batch, token, stream times hidden]."""
        prefix = f"layers.{layer}."
        w = {n.removeprefix(prefix): t.astype(np.float64) for n, t in tensors.items() if n.startswith(prefix)}
        x = x.reshape(BATCH, TOKENS, STREAMS, HIDDEN)
        chosen = None
        for half in ("attn", "ffn"):
            pre, post, mix = self.weigh(w, f"hc_{half}", x)
            normed = rms_norm((pre[..., None] * x).sum(2), w[f"{half}_norm.weight"])
            if half == "attn":
                out = self.attention(layer, w, normed, fault)
            else:
                out, chosen = self.experts(w, normed, fault)
            mixed = np.einsum("btjk,btjd->btkd" if fault != "mix" else "btkj,btjd->btkd", mix, x)
            x = post[..., None] * out[:, :, None] + mixed
        return x.reshape(BATCH, TOKENS, -1), chosen

    def embed(self, tensors):
        return np.tile(tensors["embed.weight"].astype(np.float64)[self.tokens], STREAMS)

    def logits(self, x, tensors):
        w = {n: tensors[n].astype(np.float64) for n in ("hc_head_fn", "hc_head_base", "hc_head_scale", "norm.weight", "head.weight")}
        streams = x.reshape(BATCH, TOKENS, STREAMS, HIDDEN)
        pre, _, _ = self.weigh(w, "hc_head", streams)
        return rms_norm((pre[..., None] * streams).sum(2), w["norm.weight"]) @ w["head.weight"].T

    def reference(self, path, faults=None):
        x = self.embed(self.tensors)
        arrays = {"hidden_states.0": x}
        for layer in range(len(TYPES)):
            x, _ = self.run_layer(layer, x, self.tensors, (faults or {}).get(layer))
            arrays[f"hidden_states.{layer + 1}"] = x
        arrays["logits"] = self.logits(x, self.tensors)
        harness.write_safetensors(path, {n: ("F32", x.shape, x.astype(np.float32).tobytes()) for n, x in arrays.items()}
                                  | {"input_ids": ("I64", self.tokens.shape, self.tokens.astype(np.int64).tobytes())})
        return path
