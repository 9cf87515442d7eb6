"""Makes modules of MXFP4, MXFP6, NVFP4, MXFP8, block FP8 with powers of two, AWQ and GPTQ in NumPy.

Each sample has the tensors as its producer stores them, their values, and the entries of config.json."""

import collections

import ml_dtypes
import numpy as np

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble k of a word is column 8j + this[k]

# `tensors`: {name: (dtype, shape, bytes)}; `values`: FP32, under `name`, in the shape that loaders of plain weights know.
Module = collections.namedtuple("Module", "name tensors values config")


def entry(dtype, array):
    return dtype, list(array.shape), np.ascontiguousarray(array).tobytes()


def numbers(seed):
    return np.random.default_rng(seed)


def powers(bytes_):
    """Returns the value of E8M0: 2^(byte - 127); 0 is a subnormal of FP32."""
    return np.ldexp(np.float32(1), bytes_.astype(np.int32) - 127).astype(np.float32)


def spread(scales, group):
    return np.repeat(scales, group, axis=-1)


def pack_nibbles(codes):
    """Packs two codes per byte, the even column in the low nibble."""
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def group(bits, size, scale_dtype=None, kind="float", strategy="group"):
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": size, "symmetric": True, "dynamic": False}
    return {"targets": ["Linear"], "weights": {**weights, "scale_dtype": scale_dtype}, "input_activations": None}


def compressed(form, *groups):
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {f"group_{i}": g for i, g in enumerate(groups)}}


V4 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
            "config_groups": {"group_0": group(4, 16)}}
QUARK = {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32, "scale_format": "e8m0"}}}
GPT_OSS = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}


# ---- groups of a row ----


def mxfp4(x, rows=24, cols=96, seed=1, names=(".weight_packed", ".weight_scale"), dtypes=("U8", "U8"), config=None, low=0, high=250):
    rng = numbers(seed)
    codes = rng.integers(0, 16, (rows, cols), np.uint8)
    scales = rng.integers(low, high, (rows, cols // 32), np.uint8)
    scales[0, 0], scales[-1, -1] = 0, 252  # the smallest; and the largest with which no value is infinite
    data = entry("F4", codes)[0:2] + (pack_nibbles(codes).tobytes(),) if dtypes[0] == "F4" else entry(dtypes[0], pack_nibbles(codes))
    return Module(x + ".weight", {x + names[0]: data, x + names[1]: entry(dtypes[1], scales)},
                  E2M1[codes] * spread(powers(scales), 32), config)


def quark(dtype):
    return {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": dtype, "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}}}


def mxfp6_values(element):
    """Returns the values of the 64 codes by the formulas of the OCP's specification."""
    mantissa, bias = (3, 1) if element == "e2m3" else (2, 3)
    exponent, fraction = np.arange(32) >> mantissa, np.arange(32) % 2**mantissa / 2**mantissa
    values = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, exponent - bias))
    return np.concatenate([values, -values]).astype(np.float32)


def mxfp6(x, element="e2m3", rows=24, cols=96, seed=8, names=None, dtype="U8", config=None, experts=None, low=0, high=249):
    """Makes MXFP6 with compressed-tensors' names unless `names` are given. Every code occurs with the smallest scale and
    with one of the largest."""
    rng = numbers(seed)
    lead = () if experts is None else (experts,)
    codes = rng.integers(0, 64, (*lead, rows, cols), np.uint32)
    codes[..., 0, :64], codes[..., 1, :64] = np.arange(64), np.arange(64)
    scales = rng.integers(low, high, (*lead, rows, cols // 32), np.uint8)
    scales[..., 0, :], scales[..., 1, :] = 0, 249  # 28 * 2^122 is finite
    word = sum(codes[..., i::4] << 6 * i for i in range(4))
    packed = np.stack([word, word >> 8, word >> 16], -1).astype(np.uint8).reshape(*lead, rows, -1)
    codes_name, scale_name = names or (".weight_packed", ".weight_scale")
    config = config or compressed("mxfp6-pack-quantized", group(6, 32, "torch.uint8"))
    return Module(x + ".weight", {x + codes_name: entry("U8", packed), x + scale_name: entry(dtype, scales)},
                  mxfp6_values(element)[codes] * spread(powers(scales), 32), config)


def mxfp4_gptoss(y, experts=2, rows=64, cols=96, seed=2):
    """Makes MXFP4 of gpt-oss. Values are [experts, in, out]."""
    rng = numbers(seed)
    codes = rng.integers(0, 16, (experts, rows, cols), np.uint8)
    scales = rng.integers(100, 140, (experts, rows, cols // 32), np.uint8)
    values = E2M1[codes] * spread(powers(scales), 32)
    blocks = pack_nibbles(codes).reshape(experts, rows, cols // 32, 16)
    return Module(y, {y + "_blocks": entry("U8", blocks), y + "_scales": entry("U8", scales)}, values.swapaxes(1, 2), GPT_OSS)


def nvfp4(x, dialect, rows=24, cols=96, seed=3, dtype="U8", scale_of=np.float32(0.0021), experts=None, inputs=True):
    """Makes NVFP4: a stack with one global scale per expert if `experts` is given."""
    rng = numbers(seed)
    lead = () if experts is None else (experts,)
    codes = rng.integers(0, 16, (*lead, rows, cols), np.uint8)
    scales = rng.integers(0, 0x7F, (*lead, rows, cols // 16), np.uint8)
    s = scales.view(E4M3).astype(np.float32)
    factor = np.float32(scale_of) * np.arange(1, 1 + (experts or 1), dtype=np.float32)
    wide = factor.reshape(-1, 1, 1) if experts else factor[0]
    data = entry("F4", codes)[0:2] + (pack_nibbles(codes).tobytes(),) if dtype == "F4" else entry(dtype, pack_nibbles(codes))
    if dialect == "ct":
        divisor = (np.float32(1) / factor).astype(np.float32)
        wide = divisor.reshape(-1, 1, 1) if experts else divisor[0]
        t = s / wide
        tensors = {x + ".weight_packed": data, x + ".weight_global_scale": entry("F32", divisor)}
        tensors |= {x + ".input_global_scale": entry("F32", np.float32([7]))} if inputs else {}
        config = compressed("nvfp4-pack-quantized", group(4, 16, "torch.float8_e4m3fn", strategy="tensor_group"))
    else:
        t = s * wide
        tensors = {x + ".weight": data, x + ".weight_scale_2": entry("F32", factor if experts else factor.reshape(()))}
        tensors |= {x + ".input_scale": entry("F32", np.float32(7).reshape(()))} if inputs else {}
        config = MODELOPT
    tensors[x + ".weight_scale"] = entry("F8_E4M3", scales)
    return Module(x + ".weight", tensors, (E2M1[codes] * spread(t.astype(np.float32), 16)).astype(np.float32), config)


def e4m3_codes(rng, shape):
    codes = rng.integers(0, 256, shape).astype(np.uint8)
    codes[codes & 0x7F == 0x7F] = 0x31  # no NaN
    return codes


def mxfp8(x, rows=24, cols=96, seed=4, suffix=".weight_scale", dtype="U8", config=None):
    rng = numbers(seed)
    codes, scales = e4m3_codes(rng, (rows, cols)), rng.integers(0, 245, (rows, cols // 32), np.uint8)
    config = config or compressed("mxfp8-quantized", group(8, 32, "torch.uint8"))
    return Module(x + ".weight", {x + ".weight": entry("F8_E4M3", codes), x + suffix: entry(dtype, scales)},
                  codes.view(E4M3).astype(np.float32) * spread(powers(scales), 32), config)


# ---- blocks ----


def fp8_block(x, rows=200, cols=300, block=(128, 128), seed=5, suffix=".scale", dtype="F8_E8M0", spread_out=False, config=None):
    """Makes block FP8 with partial blocks at both edges. `spread_out`: ModelOpt's scales [rows, 1, cols, 1]."""
    rng = numbers(seed)
    codes = e4m3_codes(rng, (rows, cols))
    grid = -(-rows // block[0]), -(-cols // block[1])
    if dtype in ("F8_E8M0", "U8"):
        stored = rng.integers(110, 140, grid, np.uint8)
        scales = powers(stored)
    else:
        stored = scales = rng.uniform(1e-4, 1e-2, grid).astype(np.float32)
    full = np.repeat(np.repeat(scales, block[0], 0), block[1], 1)[:rows, :cols]
    if spread_out:
        stored = stored.reshape(grid[0], 1, grid[1], 1)
    config = config or {**V4, "weight_block_size": list(block)}
    return Module(x + ".weight", {x + ".weight": entry("F8_E4M3", codes), x + suffix: entry(dtype, stored)},
                  codes.view(E4M3).astype(np.float32) * full, config)


# ---- integers ----


W4AFP8 = {"quant_method": "w4afp8"}


def int4_sglang(x, rows=24, cols=256, seed=9, dtype="F32", config=None, group_size=128):
    """Makes experts of SGLang's w4afp8. Every pair of codes occurs in a byte."""
    rng = numbers(seed)
    codes = rng.integers(-8, 8, (rows, cols), np.int8)
    codes[0, 0::2], codes[0, 1::2] = np.arange(cols // 2) % 16 - 8, np.arange(cols // 2) // 16 % 16 - 8
    codes[1, 0::2], codes[1, 1::2] = np.arange(cols // 2) % 16 - 8, np.arange(cols // 2) // 16 % 16
    codes[1, 1::2][codes[1, 1::2] > 7] -= 16
    packed = (codes[:, 0::2].astype(np.uint8) & 15 | codes[:, 1::2].astype(np.uint8) << 4).view(np.int8)
    scales = rng.uniform(1e-3, 1e-1, (rows, cols // group_size)).astype({"F32": np.float32, "BF16": BF16}[dtype])
    values = codes.astype(np.float32) * spread(scales.astype(np.float32), group_size)
    return Module(x + ".weight", {x + ".weight": entry("I8", packed), x + ".weight_scale_inv": entry(dtype, scales),
                                  x + ".input_scale": entry("BF16", np.ones(1, BF16))}, values, config or W4AFP8)


def int_packed(x, rows=20, cols=96, size=32, seed=6, shape_dtype=np.int32, zeros=False, order=False):
    """Makes packed integers. `zeros`: zero points, 8 if None. `order`: weight_g_idx, the group of each input."""
    rng = numbers(seed)
    groups, places = cols // size, 4 * np.arange(8, dtype=np.uint32)
    q = rng.integers(0, 16, (rows, cols))
    z = rng.integers(0, 16, (rows, groups)) if zeros else np.full((rows, groups), 8)
    scales = rng.uniform(1e-3, 1e-1, (rows, groups)).astype(BF16)
    of = rng.permutation(np.arange(cols) // size) if order else np.arange(cols) // size
    words = (q.astype(np.uint32).reshape(rows, -1, 8) << places).sum(2, dtype=np.uint32)
    names = {np.int8: "I8", np.uint8: "U8", np.int16: "I16", np.int32: "I32", np.int64: "I64"}
    tensors = {x + ".weight_packed": entry("I32", words), x + ".weight_scale": entry("BF16", scales),
               x + ".weight_shape": entry(names[shape_dtype], np.array([rows, cols], shape_dtype))}
    if zeros:
        padded = np.pad(z, ((0, -rows % 8), (0, 0))).astype(np.uint32).reshape(-1, 8, groups)
        tensors[x + ".weight_zero_point"] = entry("I32", (padded << places[:, None]).sum(1, dtype=np.uint32))
    if order:
        tensors[x + ".weight_g_idx"] = entry("I32", of.astype(np.int32))
    stated = group(4, size, kind="int")
    stated["weights"] |= {"symmetric": not zeros, **({"actorder": "group"} if order else {})}
    return Module(x + ".weight", tensors, (q - z[:, of]).astype(np.float32) * scales.astype(np.float32)[:, of],
                  compressed("pack-quantized", stated))


def awq(x, rows=72, cols=160, size=32, seed=7, config=None):
    """Makes AWQ. The last group may be short."""
    rng = numbers(seed)
    groups = -(-cols // size)
    q, z = rng.integers(0, 16, (cols, rows)), rng.integers(0, 16, (groups, rows))
    scales = rng.uniform(1e-3, 1e-1, (groups, rows)).astype(np.float16)

    def words(codes):
        fields = codes.astype(np.uint32).reshape(codes.shape[0], -1, 8)[:, :, AWQ_COLUMNS]
        return (fields << (4 * np.arange(8, dtype=np.uint32))).sum(2, dtype=np.uint32)

    of = np.arange(cols) // size
    values = ((q - z[of]).astype(np.float32) * scales[of].astype(np.float32)).T
    return Module(x + ".weight", {x + ".qweight": entry("I32", words(q)), x + ".qzeros": entry("I32", words(z)),
                                  x + ".scales": entry("F16", scales)}, values, config or {**AWQ, "group_size": size})


def gptq(x, rows=72, cols=160, size=32, bits=4, seed=8, version=1, order=False, index=True, zeros="any"):
    """Makes GPTQ. `order`: act-order, the group of each input. Zero points begin at 1 and end at 2^bits in the first
    version, or at 2^bits - 1 if they must fit a code, or are all in the middle."""
    rng = numbers(seed)
    groups, per_word = -(-cols // size), 32 // bits
    q, z = rng.integers(0, 2**bits, (cols, rows)), rng.integers(1, 2**bits, (groups, rows))
    if version == 1 and zeros == "any":
        z[0, :3] = 2**bits
    if zeros == "middle":
        z[:] = 2 ** (bits - 1)
    scales = rng.uniform(1e-3, 1e-1, (groups, rows)).astype(np.float16)
    of = rng.permutation(np.arange(cols) // size) if order else np.arange(cols) // size

    def words(codes):  # along the first dimension, filled up with zeros
        codes = np.pad(codes, ((0, -codes.shape[0] % per_word), (0, 0))).astype(np.uint32)
        fields = codes.reshape(-1, per_word, codes.shape[1]) << (bits * np.arange(per_word, dtype=np.uint32))[:, None]
        return fields.sum(1, dtype=np.uint32)

    values = ((q - z[of]).astype(np.float32) * scales[of].astype(np.float32)).T
    tensors = {x + ".qweight": entry("I32", words(q)), x + ".qzeros": entry("I32", words((z - (version == 1)).T).T),
               x + ".scales": entry("F16", scales)}
    if index:
        tensors[x + ".g_idx"] = entry("I32", of.astype(np.int32))
    config = {**GPTQ, "bits": bits, "group_size": size, "desc_act": order, "sym": zeros == "middle"}
    return Module(x + ".weight", tensors, values, config if version == 1 else {**config, "checkpoint_format": "gptq_v2"})
