"""The safetensors package, with torch and with NumPy and ml_dtypes, loads what tessera writes; tessera reads what it writes, in
dtypes of 2026 too: F4 and F8_E8M0."""


import format_samples as f
import harness
import ml_dtypes
import mx_oracle as mx
import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from checkpoints import shards
from models import bytes_of, load, same_bits
from test_transformers import V4_EXPERTS, W1, WQ_A, stored

SCHEMES = ["fp8-block", "fp8-channel", "int8-channel", "int8-weight-only", "int4-weight-only", *sorted({scheme for scheme, _ in mx.PAIRS})]


def check_loads(path):
    """Reads each tensor by safe_open in its dtype, and compares the bytes with those of the file."""
    wanted = harness.read_safetensors(path)[1]
    with safetensors.safe_open(path, "pt") as file:
        assert sorted(file.keys()) == sorted(wanted)
        for name, (dtype, shape, data) in wanted.items():
            part, tensor = file.get_slice(name), file.get_tensor(name)
            assert part.get_dtype() == dtype and part.get_shape() == list(shape), name
            assert bytes_of(tensor).numpy().tobytes() == data, name
    return wanted


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_quantized(scheme, quantize, tmp_path):
    src, weights = mx.model(tmp_path / "src")
    options = ["--group-size", "32"] if scheme == "int4-weight-only" else []
    if scheme == "nvfp4":
        ranges = harness.write_json(tmp_path / "ranges.json", {module: {"min": -3, "max": 4.5} for module in weights})
        options = ["--activations", ranges]
    for path in shards(quantize(src, "--scheme", scheme, *options)):
        check_loads(path)


def test_dtypes_that_are_kept(convert, tmp_path):
    """F8_E8M0 and F4 are restored from an archive. torch and ml_dtypes decode the same numbers."""
    module = f.fp8_block(WQ_A, rows=256, cols=384)
    expert = f.mxfp4(W1, rows=64, cols=256, **{**V4_EXPERTS, "dtypes": ("F4", "F8_E8M0")})
    src = stored(tmp_path / "src", module._replace(tensors={**module.tensors, **expert.tensors}))
    back = convert(convert(src, "--to", "archive"), "--to", "safetensors")
    path, = shards(back)
    stored_as = check_loads(path)
    assert {dtype for dtype, _, _ in stored_as.values()} == {"F4", "F8_E8M0", "F8_E4M3"}
    for name, tensor in load(back).items():
        dtype, shape, data = stored_as[name]
        if dtype == "F8_E8M0":
            numbers = np.frombuffer(data, ml_dtypes.float8_e8m0fnu).reshape(shape).astype(np.float32)
            ours = f.powers(np.frombuffer(data, np.uint8).reshape(shape))
            assert np.array_equal(tensor.float().numpy(), numbers) and np.array_equal(numbers, ours), name
        elif dtype == "F4":
            raw = np.frombuffer(data, np.uint8)
            codes = np.stack([raw & 15, raw >> 4], -1).reshape(shape)
            assert np.array_equal(codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32), f.E2M1[codes]), name
            assert tensor.dtype == torch.float4_e2m1fn_x2, name


@pytest.mark.parametrize("dtypes", [("F4", "F8_E8M0"), ("I8", "F8_E8M0"), ("U8", "U8")], ids="-".join)
def test_reading_what_it_writes(dtypes, convert, tessera, tmp_path):
    """The package saves codes as float4_e2m1fn_x2 and scales as float8_e8m0fnu. The values equal those of bytes."""
    expert = f.mxfp4(W1, rows=64, cols=256, **{**V4_EXPERTS, "dtypes": dtypes})
    plain = stored(tmp_path / "plain", expert)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    safetensors.torch.save_file(load(plain), theirs / "model.safetensors", {"format": "pt"})
    (theirs / "config.json").write_bytes((plain / "config.json").read_bytes())
    assert {name: entry[0] for name, entry in harness.read_safetensors(theirs / "model.safetensors")[1].items()} == \
        {W1 + ".weight": dtypes[0], W1 + ".scale": dtypes[1]}
    got = load(convert(theirs, "--to", "bf16"))[expert.name]
    assert np.array_equal(got.float().numpy(), expert.values)
    assert same_bits(got, load(convert(plain, "--to", "bf16"))[expert.name])
    harness.succeed(tessera, ["inspect", theirs])
