"""Computes multi-head latent attention in NumPy in float64, stage by stage, optionally with faults."""

import math

import numpy as np
from checkpoints import BF16, write

PREFIX = "model.layers.0.self_attn."
YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0}
BATCH, TOKENS = 2, 9


class Model:
    """Implements one layer of MLA and its stages."""

    def __init__(self, q_rank=96, yarn=True, heads=4, nope=128, rope=32, v=128, rank=256, hidden=256, seed=3, indexer=None):
        self.heads, self.nope, self.rope, self.v, self.rank, self.q_rank = heads, nope, rope, v, rank, q_rank
        self.yarn, self.hidden = yarn, hidden
        rng = np.random.default_rng(seed)
        shapes = {"kv_a_proj_with_mqa.weight": (rank + rope, hidden), "kv_b_proj.weight": (heads * (nope + v), rank),
                  "o_proj.weight": (hidden, heads * v)}
        if q_rank:
            shapes |= {"q_a_proj.weight": (q_rank, hidden), "q_b_proj.weight": (heads * (nope + rope), q_rank)}
        else:
            shapes |= {"q_proj.weight": (heads * (nope + rope), hidden)}
        self.tensors = {PREFIX + n: (rng.standard_normal(s) / math.sqrt(s[1])).astype(BF16) for n, s in shapes.items()}
        norms = {"kv_a_layernorm.weight": rank} | ({"q_a_layernorm.weight": q_rank} if q_rank else {})
        self.tensors |= {PREFIX + n: rng.uniform(0.5, 2, s).astype(BF16) for n, s in norms.items()}
        self.config = {"num_attention_heads": heads, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": v,
                       "kv_lora_rank": rank, "q_lora_rank": q_rank, "hidden_size": hidden, "rms_norm_eps": 1e-6,
                       "rope_theta": 10000, "rope_scaling": YARN if yarn else None}
        self.indexer = indexer
        if indexer is not None:
            self.add_indexer(rng, **indexer)

    def add_indexer(self, rng, model_type="deepseek_v32", heads=8, dim=128, kept=16):
        """The indexer of DeepSeek-V3.2, whose RoPE turns halves, or of GLM-5, whose RoPE turns pairs of neighbours."""
        shapes = {"wq_b.weight": (heads * dim, self.q_rank), "wk.weight": (dim, self.hidden), "weights_proj.weight": (heads, self.hidden)}
        self.tensors |= {f"{PREFIX}indexer.{n}": (rng.standard_normal(s) / math.sqrt(s[1])).astype(BF16) for n, s in shapes.items()}
        self.tensors |= {PREFIX + "indexer.k_norm.weight": rng.uniform(0.5, 2, dim).astype(np.float32),
                         PREFIX + "indexer.k_norm.bias": rng.standard_normal(dim).astype(np.float32)}
        self.config |= {"model_type": model_type, "index_n_heads": heads, "index_head_dim": dim, "index_topk": kept}

    def write(self, path, **changed):
        return write(path, self.tensors | {PREFIX + n: t for n, t in changed.items()}, self.config)

    def angles(self):
        d, base = self.rope, 10000.0
        frequency = base ** -(np.arange(0, d, 2) / d)
        if self.yarn:
            def dim(turns):
                return d * math.log(64 / (turns * 2 * math.pi)) / (2 * math.log(base))
            low, high = max(math.floor(dim(32)), 0), min(math.ceil(dim(1)), d - 1)
            ramp = np.clip((np.arange(d // 2) - low) / (high - low), 0, 1)
            frequency = frequency / 40 * ramp + frequency * (1 - ramp)
        return np.arange(TOKENS)[:, None] * frequency

    def turn(self, x):
        """Applies RoPE to [B, T, ..., rope] with pairs (2i, 2i+1) as complex numbers."""
        z = x[..., 0::2] + 1j * x[..., 1::2]
        shape = (1, TOKENS) + (1,) * (x.ndim - 3) + (self.rope // 2,)
        z = z * np.exp(1j * self.angles()).reshape(shape)
        return np.stack([z.real, z.imag], -1).reshape(x.shape)

    def turn_index(self, x, neighbours):
        """RoPE on the first elements of each head, [B, T, ..., dim]."""
        part, rest = x[..., : self.rope], x[..., self.rope:]
        order = np.arange(self.rope) if neighbours else np.arange(self.rope).reshape(2, -1).T.ravel()
        turned = np.empty_like(part)
        turned[..., order] = self.turn(part[..., order])
        return np.concatenate([turned, rest], -1)

    def index_stages(self, x, query, fault=None):
        """Stages of the indexer from the hidden states and the normalized latent of the queries."""
        w = {n.removeprefix(PREFIX + "indexer."): t.astype(np.float64) for n, t in self.tensors.items() if ".indexer." in n}
        heads, dim = self.config["index_n_heads"], self.config["index_head_dim"]
        neighbours = (self.config["model_type"] == "glm_moe_dsa") != (fault == "index rope")
        k = x @ w["wk.weight"].T
        centred = k if fault == "index mean" else k - k.mean(-1, keepdims=True)
        if fault != "index norm":
            k = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * w["k_norm.weight"]
            k = k if fault == "index bias" else k + w["k_norm.bias"]
        q = (query @ w["wq_b.weight"].T).reshape(*x.shape[:2], heads, dim)
        s = {"index_q": self.turn_index(q, neighbours), "index_k": self.turn_index(k, neighbours),
             "index_weights": x @ w["weights_proj.weight"].T / (1 if fault == "index weights" else math.sqrt(heads))}
        products = np.einsum("bqhd,bkd->bqhk", s["index_q"], s["index_k"]) / math.sqrt(dim)
        products = products if fault == "index relu" else np.maximum(products, 0)
        scores = np.einsum("bqhk,bqh->bqk", products, s["index_weights"])
        s["index_scores"] = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
        return s

    def scale(self):
        return (self.nope + self.rope) ** -0.5 * ((0.1 * math.log(40) + 1) ** 2 if self.yarn else 1)

    def stages(self, fault=None, hidden=None, choose=None, growth=1):
        """Returns {name: float64}. A `fault` is made in its stage, and later stages are computed from the result. `choose`
        returns the mask of the tokens that attention sees, from the latent of the queries. `growth` [tokens] multiplies
        queries."""
        w = {n.removeprefix(PREFIX).removesuffix(".weight"): t.astype(np.float64) for n, t in self.tensors.items() if ".indexer." not in n}
        def norm(x, gain):
            return x if fault == "norm" else x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gain
        drawn = np.random.default_rng(8).standard_normal((BATCH, TOKENS, self.hidden)).astype(np.float32)
        s = {"hidden_states": drawn if hidden is None else hidden}
        x = s["hidden_states"].astype(np.float64)
        if self.q_rank:
            s["q_a"] = x @ w["q_a_proj"].T
            y = s["q_a"] / np.sqrt((s["q_a"] ** 2).mean(-1, keepdims=True) + 1e-6) * w["q_a_layernorm"]
            s["q_a_norm"] = y
            s["query"] = y @ w["q_b_proj"].T
        else:
            s["query"] = x @ w["q_proj"].T
        q = s["query"].reshape(BATCH, TOKENS, self.heads, -1)
        part = {"first": q[..., : self.rope], "halves": q[..., self.nope:]}.get(fault, q[..., self.nope:])
        if fault == "halves":
            order = np.arange(self.rope).reshape(2, -1).T.ravel()
            s["q_rope"] = np.empty_like(part)
            s["q_rope"][..., order] = self.turn(part[..., order])
        else:
            s["q_rope"] = self.turn(part)
        s["kv_a"] = x @ w["kv_a_proj_with_mqa"].T
        s["latent"] = norm(s["kv_a"][..., : self.rank], w["kv_a_layernorm"])
        s["k_rope"] = self.turn(s["kv_a"][..., self.rank:])
        kv = (s["latent"] @ w["kv_b_proj"].T).reshape(BATCH, TOKENS, self.heads, -1)
        scale = (self.nope + self.rope) ** -0.5 if fault == "mscale" else self.scale()
        scores = scale * (np.einsum("bqhd,bkhd->bqhk", q[..., : self.nope], kv[..., : self.nope])
                          + np.einsum("bqhd,bkd->bqhk", s["q_rope"], s["k_rope"]))
        scores = scores * np.reshape(growth, (1, -1, 1, 1))
        seen = np.tril(np.ones((TOKENS, TOKENS), bool))[None, :, None, :]
        if choose is not None:
            seen = seen & choose(s["q_a_norm"])[:, :, None, :]
        s["scores"] = np.where(seen, scores, -np.inf)
        p = np.exp(s["scores"] - s["scores"].max(-1, keepdims=True))
        s["probabilities"] = p / p.sum(-1, keepdims=True)
        a = np.einsum("bqhk,bkhd->bqhd", s["probabilities"], kv[..., self.nope:])
        s["attention"] = a[:, :, {"heads": [0, 2, 1, 3], "ranks": [2, 3, 0, 1]}.get(fault, [0, 1, 2, 3])]
        s["output"] = s["attention"].reshape(BATCH, TOKENS, -1) @ w["o_proj"].T
        return s | (self.index_stages(x, s["q_a_norm"], fault) if self.indexer is not None else {})
