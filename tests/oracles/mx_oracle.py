"""Quantizes to MXFP4, MXFP8 and NVFP4 in NumPy and ml_dtypes by the formulas of OCP MX 1.0, compressed-tensors and ModelOpt.

Also has the names of each dialect, and a small model."""

import ml_dtypes
import numpy as np
from checkpoints import BF16, E4M3, llama_config, make, random_weight

E2M1 = ml_dtypes.float4_e2m1fn
F32 = np.float32
RULES = ("floor", "even", "rceil", "ceil")
DEFAULT_RULE = {"compressed-tensors": "even", "modelopt": "rceil", "deepseek": "rceil"}
# Formats that some loader reads.
PAIRS = [("nvfp4", "compressed-tensors"), ("nvfp4", "modelopt"), ("nvfp4-weight-only", "compressed-tensors"),
         ("nvfp4-weight-only", "modelopt"), ("mxfp4", "compressed-tensors"), ("mxfp4-weight-only", "compressed-tensors"),
         ("mxfp8", "compressed-tensors"), ("mxfp8", "modelopt"), ("mxfp8", "deepseek"),
         ("mxfp8-weight-only", "compressed-tensors")]
# Modules that loaders run as one.
FUSED = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"), ("q_a_proj", "kv_a_proj_with_mqa"),
         ("in_proj_qkv", "in_proj_z"), ("attn.wq_a", "attn.wkv"), ("compressor.wkv", "compressor.wgate")]


def f32(x):
    return np.asarray(x).astype(F32)


def groups(w, size):
    return f32(w).reshape(w.shape[0], -1, size)


def e8m0(amax, rule, elements):
    """Returns the byte for a group with this amax, from its bits, for elements of `elements` bits."""
    bits = np.ascontiguousarray(amax, F32).view(np.uint32)
    exponent, mantissa = (bits >> 23).astype(np.int64), bits & 0x7FFFFF
    fits = 0x400000 if elements == 4 else 0x600000  # 6 is 1.5 * 4, 448 is 1.75 * 256
    more = {"floor": mantissa < 0, "even": mantissa >= 0x600000, "rceil": mantissa > fits, "ceil": mantissa > 0}[rule]
    return np.where(amax == 0, 0, np.clip(exponent - (2 if elements == 4 else 8) + more, 0, 254)).astype(np.uint8)


def power(byte):
    return np.ldexp(F32(1), byte.astype(np.int32) - 127)


def e2m1(quotient, x):
    """Returns codes of quotients, one per byte: ties to even; zeros of any sign have code 0."""
    codes = np.clip(quotient, -6, 6).astype(E2M1).view(np.uint8)
    return np.where(x == 0, 0, codes).astype(np.uint8)


def packed(codes):
    """Packs two codes per byte, the even column in the low nibble."""
    flat = codes.reshape(codes.shape[0], -1)
    return flat[:, 0::2] | flat[:, 1::2] << 4


def mx(w, elements, rule):
    """Returns (codes [rows, ...], scale bytes)."""
    x = groups(w, 32)
    scale = e8m0(np.abs(x).max(axis=2), rule, elements)
    quotient = (x / power(scale)[..., None]).astype(F32)
    if w.dtype == BF16:
        quotient = quotient.astype(BF16).astype(F32)
    if elements == 4:
        return packed(e2m1(quotient, x)), scale
    return np.clip(quotient, -448, 448).astype(E4M3).reshape(w.shape), scale


def divisor(amax, dtype, largest):
    """Returns compressed-tensors' global scale: largest * 6 / amax, in the weights' dtype."""
    if dtype == BF16:
        inverse = (F32(1) / F32(amax)).astype(BF16)
        return F32((f32(inverse) * F32(largest * 6)).astype(BF16))
    return F32(1) / F32(amax) * F32(largest * 6)


def global_scale(amax, dtype, dialect, largest=448):
    """Returns the global scale of several tensors, from the largest amax; `largest`: largest scale of a group."""
    if amax == 0:
        return F32(1)
    return divisor(amax, dtype, largest) if dialect == "compressed-tensors" else F32(amax) / F32(largest * 6)


def nvfp4(w, dialect, global_):
    """Returns (codes, scales). The global scale divides or multiplies scales."""
    x = groups(w, 16)
    amax = np.abs(x).max(axis=2)
    if dialect == "compressed-tensors":
        sixth = amax / F32(6)
        sixth = sixth.astype(BF16).astype(F32) if w.dtype == BF16 else sixth
        scale = np.minimum(sixth * global_, F32(448)).astype(E4M3)
        scale = np.where(f32(scale) == 0, F32(0.125), f32(scale)).astype(E4M3)
        unit = f32(scale) / global_
    else:
        ratio = np.clip(amax / (F32(6) * global_), F32(2.0**-9), F32(448))
        scale = np.where(amax == 0, F32(1), ratio).astype(E4M3)
        unit = f32(scale) * global_
    return packed(e2m1((x / unit[..., None]).astype(F32), x)), scale


def four_six(w, dialect, global_, amax):
    """Returns (codes, scales, losses): the better of two scales per group, for a largest element of 6 and of 4; losses of
    both."""
    x = groups(w, 16)
    own = np.abs(x).max(axis=2)
    if dialect == "compressed-tensors":
        six = f32(nvfp4(w, dialect, global_)[1])
        scales = six, f32(np.minimum(six * F32(1.5), F32(448)).astype(E4M3))
    else:
        scales = [f32(np.where(own == 0, F32(1), np.clip(a / F32(6) * F32(256) / (F32(amax) / F32(6)), F32(2.0**-9), F32(448)))
                      .astype(E4M3)) for a in (own, own * F32(1.5))]
    made = []
    for scale in scales:
        unit = (scale / global_ if dialect == "compressed-tensors" else scale * global_)[..., None]
        codes = e2m1((x / unit).astype(F32), x)
        error = (f32(codes.view(E2M1)) * unit - x).astype(np.float64)
        made.append((codes, (error * error).sum(axis=2)))
    (six, six_loss), (four, four_loss) = made
    takes_four = four_loss < six_loss
    return (packed(np.where(takes_four[..., None], four, six)), np.where(takes_four, scales[1], scales[0]).astype(E4M3),
            (six_loss, four_loss))


def names(scheme, dialect):
    """Returns (codes, scales, global, input) as endings of the module's name."""
    if dialect == "deepseek":
        return ".weight", ".weight_scale_inv", None, None
    if dialect == "modelopt":
        return ".weight", ".weight_scale", ".weight_scale_2", ".input_scale"
    return (".weight" if scheme.startswith("mxfp8") else ".weight_packed", ".weight_scale", ".weight_global_scale",
            ".input_global_scale")


def joined(module, modules):
    """Returns the modules of this module's fused layer."""
    for members in FUSED:
        for member in members:
            if module.endswith(f".{member}"):
                stem = module.removesuffix(member)
                return [stem + other for other in members if stem + other in modules]
    return [module]


def expected(weights, scheme, dialect, rule=None, ranges=None, search="amax"):
    """Returns {name: array} of all tensors that encode these weights ({module: array}) in a checkpoint; `search`: amax or
    four-six."""
    out, (codes, scales, total, inputs) = {}, names(scheme, dialect)
    shape = (1,) if dialect == "compressed-tensors" else ()
    for module, w in weights.items():
        if not scheme.startswith("nvfp4"):
            out[module + codes], out[module + scales] = mx(w, int(scheme[4]), rule or DEFAULT_RULE[dialect])
            continue
        together = joined(module, weights)
        amax = max(np.abs(f32(weights[member])).max() for member in together)
        scale = global_scale(amax, w.dtype, dialect, 256 if search == "four-six" else 448)
        made = four_six(w, dialect, scale, amax) if search == "four-six" else nvfp4(w, dialect, scale)
        out[module + codes], out[module + scales] = made[:2]
        out[module + total] = np.full(shape, scale, F32)
        if scheme == "nvfp4":
            amax = max(max(-ranges[member][0], ranges[member][1]) for member in together)
            out[module + inputs] = np.full(shape, global_scale(F32(amax), w.dtype, dialect), F32)
    return out


def decoded(tensors, module, scheme, dialect, dtype=np.float64):
    """Decodes as a reader does: the product of scale and global scale in FP32, and its product with a code in `dtype`."""
    codes, scales, total, _ = names(scheme, dialect)
    raw, scale = tensors[module + codes], tensors[module + scales]
    if scheme.startswith("mxfp8"):
        values = raw.astype(dtype)
    else:
        nibbles = np.stack([raw & 15, raw >> 4], axis=-1).reshape(raw.shape[0], -1)
        values = nibbles.astype(np.uint8).view(E2M1).astype(dtype)
    unit = f32(scale) if scale.dtype == E4M3 else power(scale)
    if scheme.startswith("nvfp4"):
        g = F32(tensors[module + total].reshape(()))
        unit = unit / g if dialect == "compressed-tensors" else unit * g
    return values * np.repeat(unit.astype(dtype), values.shape[1] // unit.shape[1], axis=1)


def awkward(shape, seed, dtype):
    """Makes a weight with groups of zeros, of -0 and of tiny numbers, with ties, and with amax next to every threshold."""
    w = random_weight(shape, seed)
    w[0] = 0
    w[1, :32] = 0
    w[1, 1:32:2] = -0.0
    w[2, :32] = np.float32(2.0**-130) if dtype != np.float16 else np.float32(2.0**-24)
    w[2, 32:64] *= np.float32(1e-4)
    for i, edge in enumerate((1, 1.25, 1.5, 1.5078125, 1.75, 1.7421875, 1.9921875)):
        w[3 + i % 4, 64 + 32 * (i // 4):96 + 32 * (i // 4)] *= np.float32(0.01)
        w[3 + i % 4, 64 + 32 * (i // 4)] = np.float32(edge * 2.0 ** -(i % 3))
    w[8, :32] = np.float32(0.25) * (np.arange(32) % 26 - 13)  # multiples of a quarter up to 3.25: ties
    return w.astype(dtype)


LLAMA = {"model.layers.0.self_attn.q_proj": (32, 128), "model.layers.0.self_attn.k_proj": (16, 128),
         "model.layers.0.self_attn.v_proj": (16, 128), "model.layers.0.self_attn.o_proj": (128, 32),
         "model.layers.0.mlp.gate_proj": (96, 128), "model.layers.0.mlp.up_proj": (96, 128),
         "model.layers.0.mlp.down_proj": (128, 96)}
MIXTRAL = {"model.layers.0.self_attn.q_proj": (32, 128), "model.layers.0.self_attn.k_proj": (16, 128),
           "model.layers.0.self_attn.v_proj": (16, 128), "model.layers.0.self_attn.o_proj": (128, 32),
           **{f"model.layers.0.block_sparse_moe.experts.{e}.{w}": (128, 64) if w == "w2" else (64, 128)
              for e in range(2) for w in ("w1", "w2", "w3")}}
KEPT = {"model.embed_tokens": (64, 128), "lm_head": (64, 128), "model.layers.0.input_layernorm": (128,)}


def model(path, dtype=BF16, modules=LLAMA, kind="llama", files=1):
    """Returns (directory, {module: weight}) of a checkpoint whose fused members differ in amax."""
    weights = {module: (awkward(shape, i, dtype) if shape[1] >= 128 else random_weight(shape, i).astype(dtype)) for i, (module, shape) in enumerate(modules.items())}
    for i, module in enumerate(weights):
        weights[module] = (f32(weights[module]) * F32(1 + i % 7)).astype(dtype)
    kept = {module: random_weight(shape, 99).astype(dtype) for module, shape in KEPT.items()}
    tensors = [(f"{module}.weight", w) for module, w in {**weights, **kept}.items()]
    parts = {f"model-{i:05}.safetensors" if files > 1 else "model.safetensors": dict(tensors[i::files]) for i in range(files)}
    return make(path, parts, quantization=None, model_type=kind, **llama_config(128, heads=2)), weights
