"""Computes in NumPy which tokens an indexer chooses."""

import math

from mla_oracle import BATCH, TOKENS
import numpy as np

BLOCKS = {"sparse_num_index_heads": 2, "sparse_index_dim": 12, "sparse_block_size": 2, "sparse_topk_blocks": 3, "sparse_local_block": 1,
          "sparse_attention_freq": [0, 1, 1], "use_sparse_attention": True, "sparse_score_type": "max", "sparse_init_block": 0}
INDEXER = {"index_topk": 4, "index_n_heads": 2, "index_head_dim": 12}  # two heads: many scores are 0, so that there are ties


def best(scores, k):
    """Returns a mask of the k largest scores among positions up to the query's own; of equal scores, the first ones."""
    places = np.arange(TOKENS)
    scores = np.where(places <= places[:, None], scores, -np.inf)
    order = np.argsort(-scores, -1, kind="stable")[..., :k]
    mask = np.zeros(scores.shape, bool)
    np.put_along_axis(mask, order, True, -1)
    return mask & (places <= places[:, None])


def agreement_of_tokens(x, y):
    """Returns the share of x's tokens that y also has, for queries that do not see all positions up to their own."""
    limited = x.sum(-1) <= np.arange(TOKENS)
    return (x & y)[limited].sum() / x[limited].sum()


class Indexed:
    """Implements the indexers of DeepSeek-V3.2, GLM-5 and MiniMax-M3."""

    chosen_tokens = None  # by the last layer that chose: [batch, query, key], or [batch, group of heads, query, key]

    def shares(self, layer):
        """Returns true if GLM-5's layer uses the choice of the previous layer."""
        if "indexer_types" in self.config:
            return self.config["indexer_types"][layer] == "shared"
        first = self.config.get("index_skip_topk_offset", 2)
        return max(layer - first + 1, 0) % self.config.get("index_topk_freq", 1) != 0

    def indexer_tensors(self, layer):
        if self.shares(layer):
            return {}
        heads, dim = self.config["index_n_heads"], self.config["index_head_dim"]
        at = "self_attn.indexer."
        return {f"{at}wq_b.weight": self.draw(heads * dim, self.config["q_lora_rank"]), f"{at}wk.weight": self.draw(dim, self.config["hidden_size"]),
                f"{at}k_norm.weight": self.gain(dim), f"{at}k_norm.bias": self.draw(dim, scale=0.5),
                f"{at}weights_proj.weight": self.draw(heads, self.config["hidden_size"])}

    def choose_tokens(self, layer, w, x, query, fault):
        """Returns a mask [batch, query, key]. `query` is the latent of the queries."""
        if self.shares(layer):
            return self.chosen_tokens
        heads, dim = self.config["index_n_heads"], self.config["index_head_dim"]
        w = {n.removeprefix("self_attn.indexer."): t for n, t in w.items()}
        q = (query @ w["wq_b.weight"].T).reshape(BATCH, TOKENS, heads, dim)
        k = x @ w["wk.weight"].T
        k = k - k.mean(-1, keepdims=True)
        k = k / np.sqrt((k**2).mean(-1, keepdims=True) + 1e-6) * w["k_norm.weight"] + w["k_norm.bias"]
        angle = self.attention[layer].angles()
        gain = 0 if fault == "indexer rope" else 1
        cos, sin = np.cos(gain * angle), np.sin(gain * angle)
        q, k = self.turn(q, cos[None, :, None], sin[None, :, None]), self.turn(k, cos, sin)
        scores = np.maximum(np.einsum("bqhd,bkd->bqhk", q, k) / math.sqrt(dim), 0)
        scores = np.einsum("bqhk,bqh->bqk", scores, x @ w["weights_proj.weight"].T / math.sqrt(heads))
        self.chosen_tokens = best(scores, self.config["index_topk"])
        return self.chosen_tokens

    def has_blocks(self, layer):
        """Returns true if MiniMax-M3's layer attends to blocks of tokens."""
        return "blocks" in self.traits and bool(self.config["sparse_attention_config"]["sparse_attention_freq"][layer])

    def block_tensors(self):
        heads, dim = BLOCKS["sparse_num_index_heads"], BLOCKS["sparse_index_dim"]
        return {"self_attn.index_q_proj.weight": self.draw(heads * dim, self.config["hidden_size"]), "self_attn.index_q_norm.weight": self.gain(dim),
                "self_attn.index_k_proj.weight": self.draw(dim, self.config["hidden_size"]), "self_attn.index_k_norm.weight": self.gain(dim)}

    def choose_blocks(self, w, x, cos, sin):
        """Returns a mask [batch, group of heads, query, key]."""
        size = BLOCKS["sparse_block_size"]
        q, k = (self.norm((x @ w[f"self_attn.index_{n}_proj.weight"].T).reshape(BATCH, TOKENS, -1, BLOCKS["sparse_index_dim"]),
                          w[f"self_attn.index_{n}_norm.weight"]) for n in "qk")
        scores = np.einsum("bqhd,bkd->bhqk", self.turn(q, cos, sin), self.turn(k, cos, sin)[:, :, 0])
        places = np.arange(TOKENS)
        scores = np.where(places <= places[:, None], scores, -np.inf)
        scores = np.pad(scores, [(0, 0)] * 3 + [(0, -TOKENS % size)], constant_values=-np.inf)
        pooled = scores.reshape(*scores.shape[:3], -1, size).max(-1)
        for last in range(BLOCKS["sparse_local_block"]):
            pooled[:, :, places, np.maximum(places // size - last, 0)] = np.inf
        order = np.argsort(-pooled, -1, kind="stable")[..., : BLOCKS["sparse_topk_blocks"]]
        mask = np.zeros(pooled.shape, bool)
        np.put_along_axis(mask, order, True, -1)
        self.chosen_tokens = np.repeat(mask, size, -1)[..., :TOKENS] & (places <= places[:, None])
        return self.chosen_tokens
