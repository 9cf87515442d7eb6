"""Makes one weight of each coded kind, with its original, to be damaged or put into a model."""

from checkpoints import BF16, make, random_weight
import format_samples as f
import mx_oracle as mx
import numpy as np
import stored_oracle as stored

MODULE = "model.layers.0.mlp.down_proj"
WEIGHT = MODULE + ".weight"
GPTQ = {**f.GPTQ, "desc_act": True, "checkpoint_format": "gptq"}
QUARK_E3M2 = f.quark("fp6_e3m2")
NVFP4 = f.compressed("nvfp4-pack-quantized", f.group(4, 16, "torch.float8_e4m3fn", strategy="tensor_group"))


def checkpoint(path, tensors, quantization=None):
    return make(path, {"model.safetensors": tensors}, quantization=quantization, model_type="llama")


def mx_config(elements):
    return f.compressed(f"mxfp{elements}-{'pack-quantized' if elements < 8 else 'quantized'}", f.group(elements, 32, "torch.uint8"))


def int4_config(group=32, symmetric=True):
    stated = f.group(4, group, kind="int")
    stated["weights"]["symmetric"] = symmetric
    return f.compressed("pack-quantized", stated)


class Coded:
    """Is a weight of one kind, with its original and its stored tensors."""

    def __init__(self, kind, shape=(256, 512)):
        rng = np.random.default_rng(11)
        self.kind, self.module = kind, MODULE
        rows = np.exp2(rng.uniform(-2, 2, (shape[0], 1)))
        groups = np.repeat(np.exp2(rng.uniform(-2, 2, (shape[0], shape[1] // 16))), 16, axis=1)
        self.w = (random_weight(shape, 12) * rows * groups).astype(BF16)
        self.tensors, self.config = getattr(self, "make_" + kind)(rng)

    def make_mxfp4(self, rng):
        codes, scale = mx.mx(self.w, 4, "even")
        return {WEIGHT + "_packed": codes, WEIGHT + "_scale": scale}, mx_config(4)

    def make_mxfp6(self, rng):
        codes, scale = stored.mxfp6(self.w, "e2m3")
        return {WEIGHT + "_packed": codes, WEIGHT + "_scale": scale}, mx_config(6)

    def make_mxfp6_e3m2(self, rng):
        codes, scale = stored.mxfp6(self.w, "e3m2")
        return {WEIGHT: codes, WEIGHT + "_scale": scale}, QUARK_E3M2

    def make_mxfp8(self, rng):
        codes, scale = mx.mx(self.w, 8, "even")
        return {WEIGHT: codes, WEIGHT + "_scale": scale}, mx_config(8)

    def make_nvfp4(self, rng):
        made = mx.expected({MODULE: self.w}, "nvfp4-weight-only", "compressed-tensors")
        return made, NVFP4

    def integers(self, group, order):
        """Returns codes, zeros and scales [out, groups] of columns whose groups are `order`."""
        x, count = self.w.astype(np.float64), self.w.shape[1] // group
        low, high = (np.stack([end(x[:, order == g], 1) for g in range(count)], 1) for end in (lambda a, n: np.minimum(a.min(n), 0),
                                                                                           lambda a, n: np.maximum(a.max(n), 0)))
        scales = ((high - low) / 15).astype(np.float16)
        zeros = np.clip(np.rint(-low / scales), 1, 15)
        s, z = scales.astype(np.float64)[:, order], zeros[:, order]
        return np.clip(np.rint(x / s + z), 0, 15).astype(np.uint8), zeros.astype(np.uint8), scales

    def make_awq(self, rng):
        parts = self.integers(32, np.arange(self.w.shape[1]) // 32)
        self.parts = parts
        return {MODULE + s: np.ascontiguousarray(t) for s, t in stored.awq(*parts).items()}, f.AWQ

    def make_gptq(self, rng):
        order = rng.permutation(self.w.shape[1]) // 32
        self.parts = (*self.integers(32, order), order)
        return {MODULE + s: np.ascontiguousarray(t) for s, t in stored.gptq(*self.parts).items()}, GPTQ

    def change(self, suffix):
        """Returns the tensor with this suffix, for writing."""
        name, = (n for n in self.tensors if n in (WEIGHT + suffix, MODULE + suffix))
        self.tensors[name] = self.tensors[name].copy()
        return self.tensors[name]

    def args(self):
        return self.tensors, {WEIGHT: self.w}, self.config


KINDS = ("mxfp4", "mxfp6", "mxfp6_e3m2", "mxfp8", "nvfp4", "awq", "gptq")
