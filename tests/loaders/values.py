"""What a loaded model holds, in numbers: codes times scales, from the parameters as a loader's `load_weights` left them.
The reference is the same class, at the same rank, that has loaded the dequantized checkpoint."""

import torch

SCALES = ("_scale_inv", "_scale")
PACKED = "_packed"


def nibbles(packed, count, offset):
    """Integers of 4 bits, low ones first, along the last dimension of int32 words."""
    shifts = torch.arange(8, dtype=torch.int32) * 4
    spread = (packed.unsqueeze(-1) >> shifts) & 15
    return spread.flatten(-2)[..., :count] - offset


def spread(scale, rows, cols, block, halves):
    """Scales of blocks as a factor for each value. `halves`: gate and up are one over the other, each in whole blocks."""
    down = scale.repeat_interleave(block[0], -2)
    if halves:
        half = scale.shape[-2] // 2 * block[0]
        down = torch.cat([down[..., :rows // 2, :], down[..., half:half + rows // 2, :]], -2)
    return down[..., :rows, :].repeat_interleave(block[1], -1)[..., :cols]


def bytes_of(codes, scale):
    """8-bit packed words (int8 of compressed-tensors' pack-quantized)."""
    shifts = torch.arange(4, dtype=torch.int32) * 8
    return ((codes.unsqueeze(-1) >> shifts) & 255).flatten(-2) - 128


def unpack(codes, scale, zero, bits, transposed):
    if transposed:  # experts of vLLM and SGLang: [experts, words, rows]
        codes, scale = codes.transpose(-1, -2), scale.transpose(-1, -2)
        zero = None if zero is None else zero.transpose(-1, -2)
    whole = nibbles(codes, codes.shape[-1] * 8, 8) if bits == 4 else bytes_of(codes, scale)
    group = whole.shape[-1] // scale.shape[-1]
    if zero is not None:  # packed along rows
        points = zero.transpose(-1, -2)
        points = nibbles(points, points.shape[-1] * 8, 8) if bits == 4 else bytes_of(points, None)
        whole = whole - points.transpose(-1, -2)[..., :whole.shape[-2], :].repeat_interleave(group, -1)
    return whole.double() * scale.double().repeat_interleave(group, -1)


def dequantize(params, block, bits=8):
    """{name: values in F64} of {name: parameter}; scales are gone. `block(name)`: the block of a weight's scales."""
    values = {}
    for name, codes in params.items():
        base = name.removesuffix(PACKED)
        if any(name.endswith(end) for end in (*SCALES, "_shape", "_zero_point", "input_scale", "g_idx")):
            continue
        scale = next((params[base + end] for end in SCALES if base + end in params), None)
        if name.endswith(PACKED):
            across = codes.dim() == 3 and codes.shape[-1] == scale.shape[-1]  # which way experts lie is the loader's choice
            values[base] = unpack(codes, scale, params.get(base + "_zero_point"), bits, across)
        elif scale is None or codes.dtype not in (torch.float8_e4m3fn, torch.int8):
            values[base] = codes.double() if codes.is_floating_point() else codes
        else:
            rows, cols = codes.shape[-2:]
            scale = scale.double()
            if scale.dim() < codes.dim():  # one a matrix
                scale = scale.reshape(*scale.shape, *[1] * (codes.dim() - scale.dim()))
            if scale.shape[-2:] == (rows, 1) or scale.shape[-2:] == (1, 1):
                factor = scale
            else:
                factor = spread(scale, rows, cols, block(base), ".w13_" in base or base.endswith("w13_weight"))
            values[base] = codes.double() * factor
    return values


def compare(values, reference):
    """What differs, in one line, or None. The reference may be rounded to BF16."""
    missing = sorted(set(reference) - set(values))
    if missing:
        return f"{missing[0]} is not there, nor {len(missing) - 1} others"
    for name, right in reference.items():
        mine = values[name]
        if mine.shape != right.shape:
            return f"{name} is {list(mine.shape)}, not {list(right.shape)}"
        right = right.double()
        if not mine.is_floating_point():
            mine = mine.double()
        wrong = ~((mine - right).abs() <= right.abs() * 2**-7 + 1e-12)
        if wrong.any():
            at = tuple(int(i) for i in wrong.nonzero()[0])
            return (f"{name}: {int(wrong.sum())} of {wrong.numel()} values are wrong, the first at {list(at)}: "
                    f"{float(mine[at]):.4g}, not {float(right[at]):.4g}")
    return None
