"""The recurrent layers of the oracle of the forward pass, in float64: gated delta nets and Mamba-2."""

import math

from forward_families import EPS, GROUPS, HIDDEN, KIMI_DIM, KIMI_HEADS, K_DIM, K_HEADS, M_DIM, M_HEADS, STATE, TAPS, V_DIM, V_HEADS
import ml_dtypes
from mla_oracle import BATCH, TOKENS
import numpy as np

BF16 = ml_dtypes.bfloat16


def rms_norm(x, gain):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * gain


class Recurrent:
    """Implements a part of a model (forward_oracle.py): its configuration, traits and random tensors."""

    # ---- Mamba-2 ----

    def kind(self, layer):
        """Returns "mamba", "attention" or, for a layer with only an MLP, "mlp"."""
        if "mamba" not in self.traits:
            return "attention"
        if "hybrid_override_pattern" in self.config:
            return {"M": "mamba", "*": "attention", "-": "mlp"}[self.config["hybrid_override_pattern"][layer]]
        word = (self.config.get("layer_types") or self.config["layers_block_type"])[layer]
        return {"linear_attention": "mamba", "mamba": "mamba", "moe": "mlp", "mlp": "mlp"}.get(word, "attention")

    def mamba_tensors(self):
        inner, keys = M_HEADS * M_DIM, GROUPS * STATE
        t = {"in_proj.weight": self.draw(2 * inner + 2 * keys + M_HEADS, HIDDEN), "out_proj.weight": self.draw(HIDDEN, inner),
             "conv1d.weight": self.draw(inner + 2 * keys, 1, TAPS, scale=0.5), "conv1d.bias": self.draw(inner + 2 * keys, scale=0.5),
             "A_log": np.log(self.rng.uniform(0.05, 4, M_HEADS)).astype(BF16), "dt_bias": self.draw(M_HEADS, scale=1),
             "D": self.draw(M_HEADS, scale=1), "norm.weight": self.rng.uniform(0.5, 2, inner).astype(BF16)}
        return {f"mamba.{n}": x for n, x in t.items()}

    def convolve(self, x, filters, bias=0):
        """Returns silu of a causal convolution of x [BATCH, TOKENS, channels]."""
        padded = np.concatenate([np.zeros((BATCH, TAPS - 1, x.shape[-1])), x], 1)
        x = sum(padded[:, j : j + TOKENS] * np.asarray(filters)[:, 0, j] for j in range(TAPS)) + np.asarray(bias)
        return x / (1 + np.exp(-x))

    def mamba(self, w, x):
        inner, keys = M_HEADS * M_DIM, GROUPS * STATE
        z, mixed, step = np.split(x @ w["mamba.in_proj.weight"].T, [inner, 2 * inner + 2 * keys], -1)
        mixed = self.convolve(mixed, w["mamba.conv1d.weight"], w["mamba.conv1d.bias"])
        v, k, q = np.split(mixed, [inner, inner + keys], -1)
        v = v.reshape(BATCH, TOKENS, M_HEADS, M_DIM)
        k, q = (np.repeat(u.reshape(BATCH, TOKENS, GROUPS, STATE), M_HEADS // GROUPS, 2) for u in (k, q))
        step = np.maximum(np.log1p(np.exp(step + w["mamba.dt_bias"])), self.config.get("time_step_min", 0))
        decay = np.exp(-np.exp(w["mamba.A_log"]) * step)
        state, out = np.zeros((BATCH, M_HEADS, STATE, M_DIM)), np.zeros_like(v)
        for t in range(TOKENS):
            state = state * decay[:, t, :, None, None] + (step[:, t, :, None] * k[:, t])[..., None] * v[:, t, :, None]
            out[:, t] = np.einsum("bhsd,bhs->bhd", state, q[:, t])
        out = (out + w["mamba.D"][:, None] * v).reshape(BATCH, TOKENS, -1) * z / (1 + np.exp(-z))
        out = rms_norm(out.reshape(BATCH, TOKENS, GROUPS, -1), 1).reshape(out.shape) * w["mamba.norm.weight"]
        return out @ w["mamba.out_proj.weight"].T

    # ---- delta nets ----

    def is_delta(self, layer):
        if "delta" not in self.traits:
            return False
        if "layer_types" in self.config:
            return self.config["layer_types"][layer] == "linear_attention"
        return (layer + 1) % self.config["full_attention_interval"] != 0

    def delta_tensors(self):
        keys, values = K_HEADS * K_DIM, V_HEADS * V_DIM
        shapes = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * V_HEADS}
        if "parts" in self.traits:
            shapes = {"in_proj_qkv": 2 * keys + values, "in_proj_z": values, "in_proj_b": V_HEADS, "in_proj_a": V_HEADS}
        t = {f"{n}.weight": self.draw(rows, HIDDEN) for n, rows in shapes.items()}
        t |= {"conv1d.weight": self.draw(2 * keys + values, 1, TAPS, scale=0.5), "out_proj.weight": self.draw(HIDDEN, values),
              "A_log": np.log(self.rng.uniform(0.05, 4, V_HEADS)).astype(BF16), "dt_bias": self.draw(V_HEADS, scale=1),
              "norm.weight": self.rng.uniform(0.5, 2, V_DIM).astype(BF16)}
        return {f"linear_attn.{n}": x for n, x in t.items()}

    def delta_inputs(self, w, x):
        """Returns q, k, v, z [BATCH, TOKENS, heads, dim], and b and a [BATCH, TOKENS, V_HEADS], before the convolution."""
        keys, share = K_HEADS * K_DIM, V_HEADS // K_HEADS
        if "parts" in self.traits:
            q, k, v = np.split(x @ w["linear_attn.in_proj_qkv.weight"].T, [keys, 2 * keys], -1)
            z, b, a = (x @ w[f"linear_attn.in_proj_{n}.weight"].T for n in "zba")
        else:
            of_heads = (x @ w["linear_attn.in_proj_qkvz.weight"].T).reshape(BATCH, TOKENS, K_HEADS, -1)
            q, k, v, z = np.split(of_heads, np.cumsum([K_DIM, K_DIM, share * V_DIM]), -1)
            b, a = np.split((x @ w["linear_attn.in_proj_ba.weight"].T).reshape(BATCH, TOKENS, K_HEADS, -1), 2, -1)
        return [u.reshape(BATCH, TOKENS, -1) for u in (q, k, v, z, b, a)]

    def delta(self, w, x, fault):
        q, k, v, z, b, a = self.delta_inputs(w, x)
        mixed = self.convolve(np.concatenate([q, k, v], -1), w["linear_attn.conv1d.weight"])
        q, k, v = np.split(mixed, [K_HEADS * K_DIM, 2 * K_HEADS * K_DIM], -1)
        q, k = (np.repeat(u.reshape(BATCH, TOKENS, K_HEADS, K_DIM), V_HEADS // K_HEADS, 2) for u in (q, k))
        v = v.reshape(BATCH, TOKENS, V_HEADS, V_DIM)
        decay = np.exp(-np.exp(w["linear_attn.A_log"]) * np.log1p(np.exp(a + w["linear_attn.dt_bias"])))
        out = self.rule(q, k, v, np.ones_like(decay)[..., None] if fault == "decay" else decay[..., None], b)
        z = z.reshape(out.shape)
        out = rms_norm(out, w["linear_attn.norm.weight"]) * z / (1 + np.exp(-z))
        return out.reshape(BATCH, TOKENS, -1) @ w["linear_attn.out_proj.weight"].T

    def rule(self, q, k, v, decay, b):
        """Applies the gated delta rule to q, k, decay [BATCH, TOKENS, heads, dim], v [.., v_dim] and b [BATCH, TOKENS,
        heads]."""
        q, k = (u / np.sqrt((u**2).sum(-1, keepdims=True) + 1e-6) for u in (q, k))
        state, out = np.zeros((BATCH, *q.shape[2:], v.shape[-1])), np.zeros_like(v)
        for t in range(TOKENS):
            state = state * decay[:, t, ..., None]
            error = (v[:, t] - np.einsum("bhkv,bhk->bhv", state, k[:, t])) / (1 + np.exp(-b[:, t]))[..., None]
            state = state + k[:, t, :, :, None] * error[:, :, None]
            out[:, t] = np.einsum("bhkv,bhk->bhv", state, q[:, t]) / math.sqrt(q.shape[-1])
        return out

    # ---- Kimi's delta nets ----

    def is_kimi(self, layer):
        if "kimi" not in self.traits:
            return False
        listed = self.config.get("linear_attn_config")
        return layer + 1 in listed["kda_layers"] if listed else self.config["layer_types"][layer] == "linear_attention"

    def kimi_tensors(self):
        width = KIMI_HEADS * KIMI_DIM
        shapes = {"q": (width, HIDDEN), "k": (width, HIDDEN), "v": (width, HIDDEN), "b": (KIMI_HEADS, HIDDEN), "o": (HIDDEN, width),
                  "f_a": (KIMI_DIM, HIDDEN), "f_b": (width, KIMI_DIM), "g_a": (KIMI_DIM, HIDDEN), "g_b": (width, KIMI_DIM)}
        t = {f"{n}_proj.weight": self.draw(*shape) for n, shape in shapes.items()}
        t |= {f"{n}_conv1d.weight": self.draw(width, 1, TAPS, scale=0.5) for n in "qkv"}
        t |= {"A_log": np.log(self.rng.uniform(0.05, 4, (1, 1, KIMI_HEADS, 1))).astype(np.float32),
              "dt_bias": self.draw(width, scale=1), "o_norm.weight": self.rng.uniform(0.5, 2, KIMI_DIM).astype(BF16)}
        return {f"self_attn.{n}": x for n, x in t.items()}

    def kimi(self, w, x):
        w = {n.removeprefix("self_attn."): t for n, t in w.items()}
        shape = (BATCH, TOKENS, KIMI_HEADS, KIMI_DIM)
        q, k, v = (self.convolve(x @ w[f"{n}_proj.weight"].T, w[f"{n}_conv1d.weight"]).reshape(shape) for n in "qkv")
        low, gate = ((x @ w[f"{n}_a_proj.weight"].T) @ w[f"{n}_b_proj.weight"].T for n in "fg")
        rate = np.exp(np.asarray(w["A_log"]).reshape(KIMI_HEADS, 1))
        decay = np.exp(-rate * np.log1p(np.exp(low + w["dt_bias"])).reshape(shape))
        out = self.rule(q, k, v, decay, x @ w["b_proj.weight"].T)
        out = rms_norm(out, w["o_norm.weight"]) / (1 + np.exp(-gate.reshape(shape)))
        return out.reshape(BATCH, TOKENS, -1) @ w["o_proj.weight"].T
