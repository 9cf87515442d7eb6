"""Computes in NumPy the experts of gpt-oss, and those of Gemma 4 beside an MLP."""

import math

from forward_families import CHOSEN, EXPERTS, HIDDEN, INNER
import numpy as np
from recurrent_oracle import rms_norm


def softmax(x):
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


class OtherExperts:
    """Implements experts that are not a list of MLPs with a router."""

    def stacks(self):
        """Makes gpt-oss' matrices of all experts as inputs by outputs, gate and up interleaved."""
        return {"mlp.router.weight": self.draw(EXPERTS, HIDDEN), "mlp.router.bias": self.draw(EXPERTS, scale=0.5),
                "mlp.experts.gate_up_proj": self.draw(EXPERTS, HIDDEN, 2 * INNER, scale=HIDDEN**-0.5),
                "mlp.experts.gate_up_proj_bias": self.draw(EXPERTS, 2 * INNER, scale=0.5),
                "mlp.experts.down_proj": self.draw(EXPERTS, INNER, HIDDEN, scale=INNER**-0.5),
                "mlp.experts.down_proj_bias": self.draw(EXPERTS, HIDDEN, scale=0.5)}

    def run_stacks(self, w, x):
        """Returns gpt-oss' (output of the experts, chosen experts)."""
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

    def parallel_tensors(self):
        """Makes Gemma 4's experts next to the MLP, in stacks, with their own norms and factors."""
        t = {f"{n}.weight": self.gain(HIDDEN) for n in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2",
                                                        "pre_feedforward_layernorm_2")}
        return t | {"router.scale": self.gain(HIDDEN), "router.per_expert_scale": self.gain(EXPERTS),
                    "experts.gate_up_proj": self.draw(EXPERTS, 2 * INNER, HIDDEN), "experts.down_proj": self.draw(EXPERTS, HIDDEN, INNER)}

    def run_parallel(self, w, normed, stream, fault):
        """Returns Gemma 4's (output of the MLP and the experts, chosen experts)."""
        chosen, weights = self.route(w, rms_norm(stream, w["router.scale"] / math.sqrt(HIDDEN)), fault)
        weights = weights * np.asarray(w["router.per_expert_scale"])[chosen]
        inputs, added = self.norm(stream, w["pre_feedforward_layernorm_2.weight"]), np.zeros_like(stream)
        for e in range(EXPERTS):
            both, down = w["experts.gate_up_proj"][e], w["experts.down_proj"][e]
            expert = {"e.gate_proj.weight": both[:INNER], "e.up_proj.weight": both[INNER:], "e.down_proj.weight": down}
            added += np.where(chosen == e, weights, 0).sum(-1, keepdims=True) * self.run_mlp(expert, "e", inputs)
        dense = self.norm(self.run_mlp(w, "mlp", normed), w["post_feedforward_layernorm_1.weight"])
        return dense + self.norm(added, w["post_feedforward_layernorm_2.weight"]), chosen
