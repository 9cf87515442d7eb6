"""Makes NVFP4 with ModelOpt's four_over_six and with compressed-tensors, and counts groups that --scales four-six decides otherwise:
tests/peers/packages/run.sh TESSERA MAKE_CHECKPOINT --script tests/peers/packages/four_six.py [MATRICES of 512 x 1024 = 4]"""

import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]

import modelopt.torch.quantization as mtq
import mx_oracle as mx
import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.quant_args import FP8_E4M3_DATA
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from modelopt.torch.quantization.nn.modules import tensor_quantizer
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
from modelopt.torch.quantization.tensor_quant import scaled_e4m3_impl

ROWS, COLS = 512, 1024


class Range256(FP8_E4M3_DATA):
    max, min = 256.0, -256.0


def without_triton(x, amax, global_amax=None, quantize_block_scales=True, largest=448.0, out_dtype=None, pass_through=False):
    """Computes what ModelOpt's Triton kernel for static NVFP4 computes (fp4_kernel.py)."""
    scale = scaled_e4m3_impl(amax.float() / 6, global_amax.float() * (448.0 / largest) / 6).reshape(-1, 1)
    flat = x.contiguous().view(len(scale), -1)
    unit = torch.where(scale == 0, torch.ones_like(scale), scale)
    values = torch.from_numpy(np.clip((flat.abs() / unit).numpy(), 0, 6).astype(mx.E2M1).astype(np.float32)) * unit
    values = torch.where(scale == 0, torch.zeros_like(values), torch.where(flat >= 0, values, -values))
    return values.view(x.shape).to(out_dtype or x.dtype)


def modelopt(weight):
    """Returns (codes, scale bytes, global scale) of its preset NVFP4_FOUR_OVER_SIX_CFG."""
    tensor_quantizer.static_blockwise_fp4_fake_quant = without_triton
    model = torch.nn.Sequential(torch.nn.Linear(COLS, ROWS, bias=False)).to(weight.dtype)
    model[0].weight.data = weight.clone()
    mtq.quantize(model, mtq.NVFP4_FOUR_OVER_SIX_CFG, lambda m: m(torch.ones(1, COLS, dtype=weight.dtype)))
    scale, total = NVFP4QTensor.get_weights_scaling_factor_from_quantizer(model[0].weight_quantizer, weight)
    codes = NVFP4QTensor.quantize(weight.clone(), 16, scale, total)[0]._quantized_data
    return codes.numpy(), scale.view(torch.uint8).numpy(), total.item()


def compressed_tensors(weight):
    """Returns the scales by compressed-tensors' functions for 6 and 4, and the choice between them by FP32 sums."""
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True,
                            scale_dtype=torch.float8_e4m3fn, zp_dtype=torch.float8_e4m3fn)
    token = args.model_copy(update={"strategy": "token"})
    groups = weight.view(ROWS, -1, 16)
    total = generate_gparam(-weight.abs().max().reshape(1), weight.abs().max().reshape(1), scale_data=Range256)
    six, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args, global_scale=total)
    four = (six.float() * 1.5).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    errors = [(fake_quantize(groups, s.unsqueeze(-1), zero.unsqueeze(-1), token, global_scale=total).float() - groups.float())
              .pow(2).sum(-1) for s in (six, four)]
    chosen = torch.where(errors[1] < errors[0], four, six.float()).to(torch.float8_e4m3fn)
    return None, chosen.view(torch.uint8).numpy(), total.item()


def weight_of(seed):
    """Makes BF16 weights, and every fourth in FP32. amax of rows differs by orders of magnitude."""
    torch.manual_seed(seed)
    weight = torch.randn(ROWS, COLS) * torch.exp(torch.randn(ROWS, 1))
    return weight if seed % 4 == 3 else weight.bfloat16()


def count(made, dialect, seed):
    """Returns (groups, groups with another scale). Checks that their error is not smaller, and that all other bytes are
    equal."""
    weight = weight_of(seed)
    array = weight.view(torch.int16).numpy().view(mx.BF16) if weight.dtype == torch.bfloat16 else weight.numpy()
    amax = np.abs(mx.f32(array)).max()
    total = mx.global_scale(amax, array.dtype, dialect, 256)
    codes, scales, losses = mx.four_six(array, dialect, total, amax)
    their_codes, their_scales, their_total = made(weight)
    assert total == np.float32(their_total)
    other = scales.view(np.uint8) != their_scales
    if their_codes is not None:
        assert np.array_equal(codes.reshape(ROWS, -1, 8)[~other], their_codes.reshape(ROWS, -1, 8)[~other])
    step = mx.f32(scales[other]) / mx.f32(their_scales.view(mx.E4M3)[other])
    assert np.all((step > 1.3) | (step < 0.8)), "another scale than those for 4 and 6"
    return other.size, int(other.sum())


def main():
    for name, made, dialect in (("ModelOpt", modelopt, "modelopt"), ("compressed-tensors", compressed_tensors, "compressed-tensors")):
        counts = [count(made, dialect, seed) for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 4)]
        print(f"{name}: {sum(c[1] for c in counts)} of {sum(c[0] for c in counts)} groups have another scale")


if __name__ == "__main__":
    main()
