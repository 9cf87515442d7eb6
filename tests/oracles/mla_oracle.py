"""Computes multi-head latent attention in NumPy in float64, stage by stage, optionally with faults."""

import math

import numpy as np
from checkpoints import BF16, write

PREFIX = "model.layers.0.self_attn."
YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0}
BATCH, TOKENS = 2, 9


class Model:
    """One layer of MLA and its stages."""

    def __init__(self, q_rank=96, yarn=True, heads=4, nope=128, rope=32, v=128, rank=256, hidden=256, seed=3):
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
        """[B, T, ..., rope], pairs (2i, 2i+1) as complex numbers."""
        z = x[..., 0::2] + 1j * x[..., 1::2]
        shape = (1, TOKENS) + (1,) * (x.ndim - 3) + (self.rope // 2,)
        z = z * np.exp(1j * self.angles()).reshape(shape)
        return np.stack([z.real, z.imag], -1).reshape(x.shape)

    def scale(self):
        return (self.nope + self.rope) ** -0.5 * ((0.1 * math.log(40) + 1) ** 2 if self.yarn else 1)

    def stages(self, fault=None, hidden=None, choose=None, growth=1):
        """{name: float64}. A `fault` is made in the stage that it belongs to, and later stages are computed from the result.
        `choose` returns the mask of the tokens that attention sees, from the latent of the queries. `growth` [tokens] multiplies queries."""
        w = {n.removeprefix(PREFIX).removesuffix(".weight"): t.astype(np.float64) for n, t in self.tensors.items()}
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
        return s
