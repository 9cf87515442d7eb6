"""Makes one layer of MLA as a checkpoint, and the parts of `--to mla-absorbed` for each consumer."""

import fp8_oracle
import numpy as np
from checkpoints import BF16, DEEPSEEK, load, make, random_weight

PREFIX = "model.layers.0.self_attn."
# names of K and V, and whether the latent dimension comes first
CONSUMERS = {"sglang": ("w_kc", True, "w_vc", False), "vllm": ("W_UK_T", False, "W_UV", True),
             "trtllm": ("k_b_proj_trans", True, "v_b_proj", False),
             "llamacpp": ("attn_k_b.weight", True, "attn_v_b.weight", False)}
SCALES = {"sglang": ("w_scale_k", "w_scale_v"), "vllm": ("W_UK_T_scale", "W_UV_scale"),
          "trtllm": ("k_b_proj_trans_scale", "v_b_proj_scale")}


class Model:
    """Is one layer of MLA in BF16 or block FP8."""

    def __init__(self, path, heads=4, nope=128, v=128, rope=64, rank=256, q_rank=192, hidden=320, fp8=False, dtype=BF16):
        self.heads, self.nope, self.v, self.rope, self.rank = heads, nope, v, rope, rank
        query = "q_b_proj.weight" if q_rank else "q_proj.weight"
        weights = {"kv_b_proj.weight": random_weight((heads * (nope + v), rank), 1),
                   query: random_weight((heads * (nope + rope), q_rank or hidden), 2),
                   "o_proj.weight": random_weight((hidden, heads * v), 3)}
        tensors = {"model.embed_tokens.weight": np.ones((8, 8), BF16)}
        self.value = {}  # the values that a consumer gets, in double
        for name, w in weights.items():
            if fp8:
                codes, scales = fp8_oracle.quantize(w.astype(BF16))
                tensors[PREFIX + name], tensors[PREFIX + name + "_scale_inv"] = codes, scales
                product = codes.astype(np.float32) * fp8_oracle.spread(scales, codes.shape)
                self.value[name] = product.astype(np.float64)
            else:
                tensors[PREFIX + name] = w.astype(dtype)
                self.value[name] = w.astype(dtype).astype(np.float64)
        self.query = query
        self.tensors = tensors
        self.path = make(path, {"model.safetensors": tensors}, quantization=DEEPSEEK if fp8 else None,
                         num_attention_heads=heads, qk_nope_head_dim=nope, v_head_dim=v, qk_rope_head_dim=rope,
                         kv_lora_rank=rank, q_lora_rank=q_rank)

    def heads_of(self, kv_b):
        """Returns [heads, nope, L] and [heads, v, L]."""
        split = kv_b.reshape(self.heads, self.nope + self.v, self.rank)
        return split[:, : self.nope], split[:, self.nope :]

    def parts(self, directory, consumer):
        """Returns the stored parts as [heads, nope, L] and [heads, v, L]."""
        k_name, k_first, v_name, v_first = CONSUMERS[consumer]
        tensors = load(directory)
        k, v = tensors[PREFIX + k_name], tensors[PREFIX + v_name]
        assert k.shape == (self.heads, *((self.rank, self.nope) if k_first else (self.nope, self.rank)))
        assert v.shape == (self.heads, *((self.rank, self.v) if v_first else (self.v, self.rank)))
        return k.swapaxes(1, 2) if k_first else k, v.swapaxes(1, 2) if v_first else v
