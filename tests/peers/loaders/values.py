"""Values of a loaded model: codes times scales, from the parameters as a loader's `load_weights` left them.
The reference is the same class, at the same rank, that has loaded the dequantized checkpoint."""

import contextlib
import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

SCALES = ("_scale_inv", "_scale")
GLOBALS = ("_global_scale", "_scale_2")  # the first divides, the second multiplies
NO_WEIGHT = (*SCALES, *GLOBALS, "_shape", "_zero_point", "g_idx")
PACKED = "_packed"
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
NOT_LOADED = 0x7b  # what every byte of a parameter is before it is loaded: it must not look right


def nibbles(packed, count, offset):
    """Unpacks integers of 4 bits, low ones first, along the last dimension of int32 words."""
    shifts = torch.arange(8, dtype=torch.int32) * 4
    spread = (packed.unsqueeze(-1) >> shifts) & 15
    return spread.flatten(-2)[..., :count] - offset


def spread(scale, rows, cols, block, halves):
    """Expands scales of blocks to a factor per value. `halves`: gate and up are stacked, each in whole blocks."""
    down = scale.repeat_interleave(block[0], -2)
    if halves:
        half = scale.shape[-2] // 2 * block[0]
        down = torch.cat([down[..., :rows // 2, :], down[..., half:half + rows // 2, :]], -2)
    return down[..., :rows, :].repeat_interleave(block[1], -1)[..., :cols]


def bytes_of(codes, scale):
    """Unpacks 8-bit words (int8 of compressed-tensors' pack-quantized)."""
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


def config_of(path):
    return json.loads(Path(path, "config.json").read_text())


def stored_in(path):
    return {name: t for shard in Path(path).glob("*.safetensors") for name, t in load_file(shard).items()}


def is_gpt_oss(path):
    """Returns true for gpt-oss' own MXFP4. A rank has whole blocks, and padding that no weight is loaded into."""
    return config_of(path).get("quantization_config", {}).get("quant_method") == "mxfp4"


@contextlib.contextmanager
def no_chance():
    """Fills uninitialized memory of a class with NaN or the largest integer, so that it has no zeros by chance."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def fill(model, path):
    keep = ".experts." if is_gpt_oss(path) else None  # what pads them is what the class made, and must be zeros
    for name, p in model.named_parameters():
        if name.endswith("_input_scale"):  # of experts: vLLM compares those of gate and up, beginning with 1
            continue
        if keep is None or keep not in name:
            p.data.reshape(-1).view(torch.uint8).fill_(NOT_LOADED)


def dealt_out(job, rank, plain):
    """Returns a rank's part of gpt-oss' experts, divided from the stored ones: blocks of 32 for each, fewer for the last
    ones, gate and up interleaved, and the bias of the sum in one rank only."""
    width = config_of(job["quantized"])["intermediate_size"]
    share = -(-width // 32 // job["tp"]) * 32
    first, last = (min(r * share, width) for r in (rank, rank + 1))
    stored, mine = stored_in(job["plain"]), dict(plain)
    for name in [name for name in plain if ".experts." in name]:
        stem, leaf = name.split(".experts.")[0] + ".experts.", name.rpartition(".")[2]
        if leaf.startswith("w13"):
            part = stored[stem + "gate_up_proj" + "_bias" * ("bias" in leaf)][..., 2 * first:2 * last]
        elif "bias" in leaf:
            part = stored[stem + "down_proj_bias"] * (rank == 0)
        else:
            part = stored[stem + "down_proj"][:, first:last]
        mine[name] = (part if "bias" in leaf else part.transpose(1, 2)).double()
    return mine


def powers(scale):
    """Returns E8M0 of any stored dtype as numbers, and other scales unchanged."""
    if scale.dtype != torch.uint8:
        return scale.double()
    return torch.exp2(scale.double() - 127)


def global_factor(params, base, matrices):
    """Returns NVFP4's scale of whole tensors. Engines use the largest of the members of a fused layer, and the first of an
    expert's."""
    end = next((end for end in GLOBALS if base + end in params), None)
    if end is None:
        return 1
    scale = params[base + end].double()
    scale = scale.max() if matrices is None else scale.reshape(matrices, -1)[:, 0].reshape(-1, 1, 1)
    return 1 / scale if end == "_global_scale" else scale


def small_groups(params, base, codes, scale):
    """Returns values of MXFP4, NVFP4 and MXFP8: a scale per 32 or 16 columns of a row."""
    if codes.dtype != torch.float8_e4m3fn:
        packed = codes.view(torch.uint8)
        whole = E2M1[torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()]
    else:
        whole = codes.double()
    group = whole.shape[-1] // scale.shape[-1]
    factor = powers(scale).repeat_interleave(group, -1) * global_factor(
        params, base, whole.shape[0] if whole.dim() == 3 else None)
    return whole * factor


def is_pairs(params, base, codes, scale):
    """Returns true for int4 of SGLang's w4afp8: two codes per byte and a scale for 128 columns."""
    return codes.dtype == torch.int8 and base + "_scale_inv" in params and codes.shape[-1] == 64 * scale.shape[-1]


def pairs(codes, scale):
    """Returns values of two's complement codes, the even column in the low nibble."""
    low, high = (codes << 4) >> 4, codes >> 4
    return torch.stack((low, high), -1).flatten(-2).double() * scale.double().repeat_interleave(128, -1)


def is_small_groups(codes, scale):
    if codes.dtype == torch.int8:  # integers, but SGLang's pairs of FP4
        return codes.shape[-1] == 16 * scale.shape[-1]
    return codes.dtype == torch.uint8 or (scale.dtype in (torch.uint8, torch.float8_e8m0fnu) and
                                          scale.shape[-2] == codes.shape[-2] and codes.shape[-1] <= 32 * scale.shape[-1])


INPUTS = ("input_scale", "input_global_scale")


def inputs_of(path):
    """Returns the scales of layers' inputs in a checkpoint by name."""
    scales = {}
    for shard in Path(path).glob("*.safetensors"):
        with safe_open(shard, "pt") as file:
            scales |= {name: file.get_tensor(name) for name in file.keys() if name.endswith(INPUTS)}
    return scales


def check_inputs(params, scales):
    """Checks input scales. They have no weight to compare with: they must have been loaded, and be above 0. A parameter of a
    layer without one in the checkpoint is padding that the loader drops later."""
    beside = tuple({name.rsplit(".", 2)[0].rstrip("0123456789").removesuffix(".").partition(".")[2] + "." for name in scales})
    mine = [name for name in params if name.endswith(INPUTS) and name.partition(".")[2].startswith(beside)]  # "backbone" may be "model"
    if scales and not mine:
        raise ValueError(f"no parameter for {next(iter(scales))}")
    ones = any((scale == 1).all() for scale in scales.values())
    for name in mine:
        scale = params[name]
        loaded = (scale.view(torch.uint8) != NOT_LOADED).any() if not name.endswith("_input_scale") else ones or (scale != 1).all()
        if not (loaded and scale.isfinite().all() and (scale > 0).all()):
            raise ValueError(f"{name} was not loaded")


def dequantize(params, block, bits=8):
    """Returns {name: values in F64} of {name: parameter} without scales. `block(name)` is the block of a weight's scales."""
    values = {}
    for name, codes in params.items():
        base = name.removesuffix(PACKED)
        if name.endswith(NO_WEIGHT) or name.endswith("input_scale"):
            continue
        scale = next((params[base + end] for end in SCALES if base + end in params), None)
        if scale is not None and is_pairs(params, base, codes, scale):
            values[base] = pairs(codes, scale)
        elif scale is not None and is_small_groups(codes, scale):
            values[base] = small_groups(params, base, codes, scale)
        elif name.endswith(PACKED):
            across = codes.dim() == 3 and codes.shape[-1] == scale.shape[-1]  # which way experts lie is the loader's choice
            values[base] = unpack(codes, scale, params.get(base + "_zero_point"), bits, across)
        elif scale is None or codes.dtype not in (torch.float8_e4m3fn, torch.int8):
            values[base] = codes.double() if codes.is_floating_point() else codes
        else:
            rows, cols = codes.shape[-2:]
            scale = scale.double()
            if scale.dim() > codes.dim():  # of matrices that stand over each other in one (SGLang's wo_a)
                scale = scale.flatten(0, -2)
            if scale.dim() == codes.dim() - 1 and scale.shape[-1] != rows:  # FP8 per tensor: one for each member of the layer
                if not (scale == scale[..., :1]).all():
                    raise ValueError(f"{base}: members of a fused layer have different scales")
                scale = scale[..., 0]
            if scale.dim() < codes.dim():  # one a matrix
                scale = scale.reshape(*scale.shape, *[1] * (codes.dim() - scale.dim()))
            if scale.shape[-2:] == (rows, 1) or scale.shape[-2:] == (1, 1):
                factor = scale
            else:
                factor = spread(scale, rows, cols, block(base), ".w13_" in base or base.endswith("w13_weight"))
            values[base] = codes.double() * factor
    return values


def compare(values, reference):
    """Returns the differences in one line, or None. The reference may be rounded to BF16."""
    missing = sorted(set(reference) - set(values))
    if missing:
        return f"{missing[0]} is not there, nor {len(missing) - 1} others"
    for name, right in reference.items():
        mine = values[name]
        if mine.dim() == right.dim() and mine.dtype.is_floating_point:  # padded with zeros to what a kernel likes
            part = mine[tuple(slice(0, size) for size in right.shape)]
            mine = part if mine.count_nonzero() == part.count_nonzero() else mine
        if mine.shape != right.shape:
            return f"{name} is {list(mine.shape)}, not {list(right.shape)}"
        right = right.double()
        if not mine.is_floating_point():
            mine = mine.double()
        wrong = ~(((mine - right).abs() <= right.abs() * 2**-7 + 1e-12) & right.isfinite() | (mine == right))
        if wrong.any():
            at = tuple(int(i) for i in wrong.nonzero()[0])
            return (f"{name}: {int(wrong.sum())} of {wrong.numel()} values are wrong, the first at {list(at)}: "
                    f"{float(mine[at]):.4g}, not {float(right[at]):.4g}")
    return None
