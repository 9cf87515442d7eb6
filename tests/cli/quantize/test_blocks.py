"""Tests quantization_blocks.zst, read by its documentation, against NumPy: error, scale, amax, codes and large errors of each block."""

import json

import block_file
import checkpoints
from checkpoints import BF16, REPORT, load, random_weight
import fp8_oracle
import harness
import mx_oracle
import numpy as np
import pytest

NAMES = {n: f"model.layers.{i}.mlp.{n}_proj.weight" for i, n in enumerate(("down", "up"))}
PLAIN, PLANTED = NAMES["down"], NAMES["up"]
AT = (150, 300)
# scheme, options, block of a matrix [rows, cols]
SCHEMES = [("fp8-block", (), (128, 128)), ("fp8-block", ("--scale-fmt", "ue8m0"), (128, 128)),
           ("fp8-channel", (), (1, 640)), ("int8-channel", (), (1, 640)), ("int4-weight-only", ("--group-size", "128"), (1, 128)),
           ("int4-weight-only", ("--group-size", "32", "--zero-points"), (1, 32)), ("nvfp4-weight-only", (), (1, 16)),
           ("nvfp4-weight-only", ("--dialect", "modelopt"), (1, 16)), ("mxfp4", (), (1, 32)), ("mxfp8", (), (1, 32))]


def weights(outlier):
    """Makes a weight with blocks of very different sizes, some of zeros, and a weight with an outlier at AT."""
    plain, planted = (random_weight((300, 640), seed) for seed in (1, 2))
    plain[:128] *= np.exp2(np.arange(300)[:128, None] % 7 - 3, dtype=np.float32)
    plain[128:256, 128:256] = 0
    planted[AT] = outlier
    return {PLAIN: plain.astype(BF16), PLANTED: planted.astype(BF16), "model.norm.weight": np.ones(8, BF16)}


def integers(out, module, bits):
    """Returns (codes, scales [rows, groups], zero points) in the pack-quantized or int-quantized form of compressed-tensors."""
    scale = out[module + ".weight_scale"].astype(np.float64)
    if bits == 8:
        return out[module + ".weight"], scale, 0
    words = out[module + ".weight_packed"].view(np.uint32)
    codes = (words[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15).astype(np.int64).reshape(len(words), -1) - 8
    zeros = 0
    if module + ".weight_zero_point" in out:
        packed = out[module + ".weight_zero_point"].view(np.uint32)
        zeros = (packed[:, None, :] >> (4 * np.arange(8, dtype=np.uint32))[None, :, None] & 15).astype(np.int64) - 8
        zeros = zeros.reshape(-1, packed.shape[1])[:len(words)]
    return codes, scale, zeros


def coded(out, name, scheme, options, block):
    """Returns (codes as they are counted, scales of the blocks, decoded values)."""
    module = name.removesuffix(".weight")
    if scheme == "fp8-block":
        codes, scale = out[name], out[name + "_scale_inv"].astype(np.float64)
        return codes.view(np.uint8), scale, fp8_oracle.dequantize(codes, scale)
    if scheme == "fp8-channel":
        codes, scale = out[name], out[name + "_scale"].astype(np.float64)
        return codes.view(np.uint8), scale, codes.astype(np.float64) * scale
    if scheme.startswith("int"):
        bits = int(scheme[3])
        codes, scale, zeros = integers(out, module, bits)
        each = np.repeat(scale, block[1], axis=1)
        offset = np.repeat(zeros, block[1], axis=1) if np.ndim(zeros) else 0
        return codes.astype(np.int64) & (2**bits - 1), scale, (codes.astype(np.float64) - offset) * each
    dialect = "modelopt" if "modelopt" in options else "compressed-tensors"
    y = mx_oracle.decoded(out, module, scheme, dialect)
    ending = mx_oracle.names(scheme, dialect)
    raw, scale = out[module + ending[0]], out[module + ending[1]]
    codes = raw.view(np.uint8) if scheme == "mxfp8" else np.stack([raw & 15, raw >> 4], axis=-1).reshape(len(raw), -1)
    unit = mx_oracle.f32(scale) if scale.dtype == checkpoints.E4M3 else mx_oracle.power(scale)
    if scheme.startswith("nvfp4"):
        g = np.float32(out[module + ending[2]].reshape(()))
        unit = unit * g if dialect == "modelopt" else unit / g
    return codes, unit.astype(np.float64), y


def folded(x, fold):
    """Returns the largest value of each 2^fold[1] x 2^fold[2] cells of a matrix."""
    return fp8_oracle.over_blocks(np.maximum, x, 2**fold[1], 2**fold[2])


def assert_close(found, truth):
    """Compares with the documented resolution. A value 15.8 binades below the largest is an upper limit."""
    low = truth < found.max() * 2.0**-15.7
    assert np.all(np.abs(found - truth)[~low] <= truth[~low] / 32 * (1 + 1e-4))
    assert np.all((found[low] > 0) == (truth[low] > 0)) and np.all(found[low] >= truth[low] * (31 / 32))


def check(t, x, codes, scale, y, block):
    x, y = x.astype(np.float64), y.astype(np.float64)
    sizes = fp8_oracle.over_blocks(np.add, np.ones(x.shape), *block)
    amax = fp8_oracle.over_blocks(np.maximum, np.abs(x), *block)
    mse = fp8_oracle.over_blocks(np.add, (x - y) ** 2, *block) / sizes
    rms = np.sqrt(fp8_oracle.over_blocks(np.add, x**2, *block) / sizes)
    mean = rms[amax > 0].mean()
    assert t.block == (1, *block) and t.shape == (1, *x.shape)
    assert t.mean_rms == pytest.approx(mean, rel=1e-5)
    for plane, truth in (("error", np.sqrt(mse) / mean), ("scale", np.where(amax > 0, scale, 0)), ("amax", amax)):
        assert_close(getattr(t, plane)[0], folded(truth, t.fold))
    counted = codes.reshape(x.shape)[::t.counted_rows]
    assert np.array_equal(t.counts, np.bincount(counted.ravel().astype(np.int64), minlength=len(t.counts)))
    for at, before, after in t.peaks:
        place = np.unravel_index(at, x.shape)
        assert before == x[place] and after == pytest.approx(y[place], rel=1e-6)
    errors = [abs(before - after) for _, before, after in t.peaks]
    near = np.abs(x).max() * 1e-6  # values are reported in FP32
    assert np.all(np.diff(errors) <= near) and errors[0] == pytest.approx(np.abs(x - y).max(), rel=1e-5, abs=near)
    return fp8_oracle.over_blocks(np.maximum, np.abs(x - y), *block)


@pytest.mark.parametrize("scheme, options, block", SCHEMES, ids=lambda x: "-".join(x) if isinstance(x, tuple) and x and isinstance(x[0], str) else None)
def test_every_block(scheme, options, block, quantize, tmp_path):
    outlier = 20000 if "fp8" in scheme else 20  # e4m3 reaches further down from the largest
    source = weights(outlier)
    dst = quantize(checkpoints.make(tmp_path / "src", {"model.safetensors": source}, quantization=None), "--scheme", scheme, *options)
    found, out = block_file.read(dst), load(dst)
    rows = {row["name"]: row for row in json.loads((dst / REPORT).read_text())["tensors"]}
    assert list(found) == list(rows) == [PLAIN, PLANTED]
    for name, t in found.items():
        assert t.fold == (0, 0, 0) and t.counted_rows == 1
        codes, scale, y = coded(out, name, scheme, options, block)
        largest = check(t, source[name], codes, scale, y, block)
        if block[1] not in (16, 32) or scheme.startswith("int"):  # elsewhere one of each row counts
            expected = np.sort(largest[largest > 0])[::-1][:8]
            assert [abs(x - y) for _, x, y in t.peaks] == pytest.approx(list(expected), rel=1e-4, abs=outlier * 1e-6)
        assert t.error.max() == pytest.approx(rows[name]["worst_block_error"], rel=1 / 32)
        worst = np.array(np.unravel_index(t.error.argmax(), t.error.shape)[1:]) * block
        assert t.error[0][tuple(np.array(rows[name]["worst_block_at"]) // block)] == t.error.max()
        if name == PLANTED:
            assert tuple(worst) == tuple(np.array(AT) // block * block)
            assert t.amax[0][tuple(np.array(AT) // block)] == pytest.approx(outlier, rel=1 / 32)
    said = block_file.said(dst)
    assert said["bytes"] == (dst / block_file.NAME).stat().st_size and said["tensors"] == 2 and said["tensors_folded"] == 0
    assert said["cells"] == sum(t.error.size for t in found.values())


def test_folded_cells_hold_the_largest(quantize, tmp_path):
    """524,288 groups of 16 exceed the number of cells for a model of this size. Every 32nd row is counted."""
    w = random_weight((1024, 8192), 5)
    w[700, 5000] = 3
    source = {PLAIN: w.astype(BF16), "model.norm.weight": np.ones(8, BF16)}
    dst = quantize(checkpoints.make(tmp_path / "src", {"model.safetensors": source}, quantization=None), "--scheme", "nvfp4-weight-only")
    t, said = block_file.read(dst)[PLAIN], block_file.said(dst)
    assert t.fold == (0, 2, 0) and t.error.shape == (1, 256, 512) and t.counted_rows == 32
    assert said["tensors_folded"] == 1 and 3 * said["cells"] <= 1 << 19
    x, out = source[PLAIN].astype(np.float64), load(dst)
    codes, scale, y = coded(out, PLAIN, "nvfp4-weight-only", (), (1, 16))
    groups = lambda z: z.reshape(256, 4, 512, 16)  # noqa: E731: of a cell four rows of one group each
    rms = np.sqrt((x.reshape(1024, 512, 16) ** 2).mean(axis=2))
    assert_close(t.error[0], np.sqrt((groups(x - y) ** 2).mean(axis=3)).max(axis=1) / rms.mean())
    assert_close(t.amax[0], np.abs(groups(x)).max(axis=(1, 3)))
    assert_close(t.scale[0], scale.reshape(256, 4, 512).max(axis=1))
    assert t.amax[0].argmax() == 175 * 512 + 5000 // 16
    assert np.array_equal(t.counts, np.bincount(codes[::32].ravel(), minlength=16))


def test_parts_laid_out_as_one(convert, tmp_path):
    """TensorRT-LLM's q, k and v are one weight with consecutive rows."""
    names = [f"model.layers.0.self_attn.{n}_proj.weight" for n in ("q", "k", "v", "o")]
    names += [f"model.layers.0.mlp.{n}_proj.weight" for n in ("gate", "up", "down")]
    source = {n: random_weight((256, 256), i).astype(np.float16) for i, n in enumerate(names)}
    source[names[2]][100, 200] = 5
    ones = {n: np.ones(256, np.float16) for n in ("model.norm.weight", "model.layers.0.input_layernorm.weight",
                                            "model.layers.0.post_attention_layernorm.weight")}
    plain = {f"{n}.weight": random_weight((64, 256), i).astype(np.float16) for i, n in ((9, "model.embed_tokens"), (8, "lm_head"))}
    src = checkpoints.make(tmp_path / "src", {"model.safetensors": source | ones | plain}, quantization=None, hidden_size=256,
                           num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=1, vocab_size=64, intermediate_size=256,
                           max_position_embeddings=64, rms_norm_eps=1e-5, hidden_act="silu", torch_dtype="float16", architectures=["LlamaForCausalLM"])
    dst = convert(src, "--to", "trtllm", "--arch", "sm80", "--bits", "4", "--group-size", "64", "--scale-dtype", "f16")
    found = block_file.read(dst)
    rows = {row["name"]: row for row in json.loads((dst / REPORT).read_text())["tensors"]}
    assert list(found) == list(rows)
    qkv, = (t for t in found.values() if t.shape == (1, 768, 256))
    assert rows[qkv.name]["worst_block_at"] == [612, 192] and np.unravel_index(qkv.error.argmax(), qkv.error.shape) == (0, 612, 3)
    assert list(np.unravel_index(qkv.peaks[0][0], (768, 256))) == rows[qkv.name]["max_abs_error_at"]
    assert qkv.counts.sum() == 768 * 256 and qkv.codes == "int4"


def test_stacked_experts(quantize, tmp_path):
    experts = random_weight((3, 256, 256), 4)
    experts[2, 130, 7] = 9000
    name = "model.layers.0.mlp.experts.down_proj"
    src = checkpoints.make(tmp_path / "src", {"model.safetensors": {name: experts.astype(BF16), PLAIN: random_weight((256, 256)).astype(BF16)}},
                           quantization=None, model_type="qwen3_5_moe")
    t = block_file.read(quantize(src, "--experts", "stack"))[name]
    assert t.shape == (3, 256, 256) and t.error.shape == (3, 2, 2)
    assert np.unravel_index(t.error.argmax(), t.error.shape) == (2, 1, 0)
    assert t.peaks and t.amax[2, 1, 0] == pytest.approx(9000, rel=1 / 32)


def test_the_same_bytes_whatever_runs_them(maker, quantize, tmp_path):
    """The bytes do not depend on threads, instruction sets or memory. Output made from FP4 codes has figures too."""
    src = harness.make_checkpoint(maker, "llama", tmp_path / "src")
    for scheme in ("fp8-block", "int4-weight-only"):
        made = [(quantize(src, "--scheme", scheme, "--threads", threads, "--cpumask", mask) / block_file.NAME).read_bytes()
                for threads, mask in ((1, 0), (4, 1), (3, 255))]
        assert made[0] == made[1] == made[2]


def test_it_is_made_again_and_archived_and_not_copied_elsewhere(maker, quantize, convert, tessera, tmp_path):
    src = harness.make_checkpoint(maker, "llama", tmp_path / "src")
    dst = quantize(src)
    whole = (dst / block_file.NAME).read_bytes()
    for damage in (None, whole[:-5], whole[:40] + b"x" + whole[41:]):
        (dst / block_file.NAME).unlink()
        if damage is not None:
            (dst / block_file.NAME).write_bytes(damage)
        assert "complete" in harness.succeed(tessera, ["quantize", src, "-o", dst])
        assert (dst / block_file.NAME).read_bytes() == whole
    archive = convert(dst, "--to", "archive")
    assert (archive / block_file.NAME).read_bytes() == whole and block_file.said(archive) == block_file.said(dst)
    assert not (convert(dst, "--to", "bf16") / block_file.NAME).exists()
    kept = dst / ".tessera/0.blocks"
    kept.write_bytes(kept.read_bytes()[:-1])  # what the file is made from is gone: the weights are made again
    code, out, err = harness.run(tessera, ["quantize", src, "-o", dst])
    assert code == 0 and (dst / block_file.NAME).read_bytes() == whole, out + err


def test_report_reads_it_where_it_belongs(quantize, tessera, tmp_path):
    """The terminal has a map and the largest errors. A file that is missing or belongs to another report is named. A damaged
    file is rejected with its byte."""
    source = {name: w for name, w in weights(20000).items() if name != PLAIN}
    src = checkpoints.make(tmp_path / "src", {"model.safetensors": source}, quantization=None)
    dst, other = quantize(src), quantize(src, "--scale-fmt", "ue8m0")
    run = lambda *options: harness.run(tessera, ["report", dst, *options])  # noqa: E731
    code, out, err = run()
    out = out.translate({0xB7: ".", 0x2588: "#"})  # where the locale is one of UTF-8
    assert code == 0 and f"errors of the blocks of {PLANTED}" in out, out + err
    assert "a cell is 128 x 128 elements; the worst begins at [128, 256]" in " ".join(out.split())
    assert "\n        .....\n        ..#..\n        .....\n" in out and "largest errors: " in out
    path = dst / block_file.NAME
    whole = path.read_bytes()
    path.write_bytes((other / block_file.NAME).read_bytes())
    code, out, err = run()
    assert code == 0 and "no maps of blocks" in out and "does not belong to this report" in " ".join(out.split()), out + err
    path.unlink()
    code, out, err = run()
    assert code == 0 and "is missing" in " ".join(out.split()), out + err
    for damaged in (whole[:-3], whole[:60], b"", whole + b"x", whole[:100] + bytes([whole[100] ^ 4]) + whole[101:], b"no zstd at all"):
        path.write_bytes(damaged)
        code, out, err = run()
        assert code == 3 and f"{block_file.NAME}: damaged at byte " in err, out + err
        code, _, err = run("--json", "-")  # what needs no maps does not read them
        assert code == 0, err
