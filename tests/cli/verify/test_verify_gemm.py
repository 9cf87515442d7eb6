"""Tests `tessera verify gemm`, `epilogue` and `dequant`: correct checkpoints pass, and faults show as quantization error or in azp_adj.

Also tests reports, rejected input and exit codes. Faults of kernels are in
tests/unit/verify/kernels/test_check_kernels.c."""

from checkpoints import BF16, FP8_CONFIG, write
import fp8_oracle
import harness
import numpy as np
import pytest

pytestmark = pytest.mark.in_turn

NAME = "model.layers.0.self_attn.o_proj.weight"
EXPERTS = [f"model.layers.0.mlp.experts.{i}.up_proj.weight" for i in range(4)]
KERNELS = ["reference", "model promoted", "model unpromoted"]


class Model:
    """Is a linear layer and four experts in block FP8, with their originals."""

    def __init__(self, folder):
        rng = np.random.default_rng(5)
        self.folder, self.config = folder, dict(FP8_CONFIG)
        self.source = {name: (rng.standard_normal((384, 640)) * np.repeat(np.exp2(rng.uniform(-3, 3, 5)), 128)).astype(BF16)
                       for name in [NAME, *EXPERTS]}
        self.output = {}
        for name, w in self.source.items():
            self.output[name], self.output[name + "_scale_inv"] = map(np.array, fp8_oracle.quantize(w))

    def write(self):
        return write(self.folder / "dst", self.output, self.config), write(self.folder / "src", self.source)


@pytest.fixture
def model(tmp_path):
    return Model(tmp_path)


@pytest.mark.parametrize("options", [(), ("--scaling", "128x128"), ("--scaling", "64x128"), ("--tokens", "3"),
                                     ("--columns", "0"), ("--out", "bf16", "--tokens", "200")], ids=str)
def test_sound_products_pass(options, verify, model):
    dst, src = model.write()
    code, result = verify("gemm", dst, "--against", src, *options)
    assert code == 0, [j for j in result["judgements"] if not j["passed"]]
    subjects = {j["subject"] for j in result["judgements"]}
    assert subjects == {NAME, "model.layers.0.mlp.experts.*.up_proj.weight"}
    whats = {j["what"] for j in harness.of_kind(result, "kernel")}
    outs = ["bf16"] if "bf16" in options else ["bf16", "f16", "f32"]
    assert whats == {f"{kernel}{layout}, {out}" for kernel in KERNELS for layout in ("", ", contiguous", ", masked") for out in outs}
    for j in harness.of_kind(result, "quantization"):
        assert j["what"] == "weights and activations" and 28 < j["sqnr_db"] < 34


@pytest.mark.parametrize("options", [(), ("--scaling", "128x128"), ("--scaling", "64x128")])
def test_scales_near_the_end_of_the_range_pass(verify, checkpoint, quantize, options):
    """The checkpoint has blocks of subnormal numbers. The bounds include FP32's rounding of them."""
    src = checkpoint("deepseek-v3")
    code, result = verify("gemm", quantize(src), "--against", src, "--tokens", "8", *options)
    assert code == 0, [(j["subject"], j["what"], j["fault"]) for j in result["judgements"] if not j["passed"]]
    assert any("experts" in j["subject"] for j in result["judgements"])


@pytest.mark.parametrize("rows, fits", [(1 << 20, True), ((1 << 20) + 1, False), ((1 << 63) - 1, False)])
def test_blocks_larger_than_the_weight(verify, model, tessera, rows, fits):
    """Memory depends on the weight's rows. A block size that no weight has is rejected."""
    for name, w in model.source.items():
        scales = np.abs(w.astype(np.float32)).reshape(384, 5, 128).max((0, 2))[None] / 448
        model.output[name] = (w.astype(np.float32) / np.repeat(scales, 128, 1)).astype(model.output[name].dtype)
        model.output[name + "_scale_inv"] = scales.astype(np.float32)
    model.config["quantization_config"] = {**model.config["quantization_config"], "weight_block_size": [rows, 128]}
    dst, src = model.write()
    if fits:
        code, result = verify("gemm", dst, "--against", src, "--tokens", "3")
        assert code == 0, [j for j in result["judgements"] if not j["passed"]]
    else:
        harness.expect(tessera, ["verify", "gemm", dst, "--against", src, "--device", "cpu"], 3, "weight_block_size")


def test_what_promotion_buys(verify, checkpoint, quantize):
    src = checkpoint("llama")
    code, result = verify("gemm", quantize(src), "--out", "f32", "--sample", "2")
    assert code == 0
    error = {kernel: [j["relative_error"] for j in harness.of_kind(result, "kernel") if j["what"] == f"{kernel}, f32"] for kernel in KERNELS}
    assert len(error["reference"]) == 2
    for reference, promoted, unpromoted in zip(*(error[kernel] for kernel in KERNELS)):
        assert reference < 1e-6 < promoted < unpromoted


def test_figures_are_what_numpy_finds(verify, tmp_path):
    """One layer has exact numbers. The product of the quantized operands and its distance from the original are computed by
    hand."""
    rng = np.random.default_rng(3)
    w, x = rng.standard_normal((128, 256)).astype(BF16), rng.standard_normal((8, 256)).astype(BF16)
    codes, scales = fp8_oracle.quantize(w)
    dst = write(tmp_path / "dst", {NAME: codes, NAME + "_scale_inv": scales}, FP8_CONFIG)
    src = write(tmp_path / "src", {NAME: w})
    inputs = write(tmp_path / "inputs", {NAME[:-7] + ".input": x}) / "model.safetensors"
    _, result = verify("gemm", dst, "--against", src, "--activations", inputs, "--tokens", "8")
    token_scales = np.abs(x.astype(np.float32)).reshape(8, 2, 128).max(2) / np.float32(448)
    q = (x.astype(np.float32).reshape(8, 2, 128) / token_scales[:, :, None]).astype(fp8_oracle.E4M3).astype(np.float64)
    q = (q * token_scales[:, :, None].astype(np.float64)).reshape(8, 256)
    y = q @ fp8_oracle.dequantize(codes, scales).T
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    found = harness.of_kind(result, "quantization")[0]
    assert found["relative_error"] == pytest.approx(np.linalg.norm(exact - y) / np.linalg.norm(exact), rel=1e-9)
    assert found["max_abs_error"] == pytest.approx(np.abs(exact - y).max(), rel=1e-9)
    token, output = np.unravel_index(np.abs(exact - y).argmax(), exact.shape)
    assert found["max_abs_error_at"] == f"token {token}, output {output}"


# ---- ranks ----


def sums_of(result):
    return [j for j in harness.of_kind(result, "kernel") if " ranks " in j["what"]]


@pytest.mark.parametrize("scaling", ["1x128", "64x128"])
def test_ranks_add_up(verify, model, scaling):
    """640 input features are five blocks of scales, one per rank. Only row-parallel layers are divided."""
    dst, src = model.write()
    code, result = verify("gemm", dst, "--against", src, "--tp", "5", "--scaling", scaling)
    assert code == 0, [j for j in result["judgements"] if not j["passed"]]
    assert result["ranks"] == 5 and not result["skipped"]
    found = sums_of(result)
    assert {j["subject"] for j in found} == {NAME}
    assert {j["what"] for j in found} == {f"{kernel}, 5 ranks in turn: sum, {out}" for kernel in KERNELS for out in ("bf16", "f16", "f32")}
    assert all(j["kernel_seconds"] > 0 and 0.5 < j["of_expected_rms"] < 1.3 for j in found if not j["what"].endswith("f32"))
    assert verify("gemm", dst, "--against", src)[1]["ranks"] == 1


def test_experts_are_divided_as_a_set(verify, model):
    for name in EXPERTS:
        down = name.replace("up_proj", "down_proj")
        for suffix in ("", "_scale_inv"):
            model.output[down + suffix] = model.output.pop(name + suffix)
    dst, _ = model.write()
    code, result = verify("gemm", dst, "--tp", "5", "--out", "bf16", "--tensors", "*.experts.*")
    assert code == 0 and {j["what"] for j in sums_of(result)} == {f"{kernel}, contiguous, 5 ranks in turn: sum, bf16" for kernel in KERNELS}


def test_sums_are_what_numpy_finds(verify, tmp_path):
    """Each rank's product is rounded to BF16, and so is each sum."""
    rng = np.random.default_rng(4)
    w, x = rng.standard_normal((128, 512)).astype(BF16), rng.standard_normal((64, 512)).astype(BF16)
    codes, scales = fp8_oracle.quantize(w)
    dst = write(tmp_path / "dst", {NAME: codes, NAME + "_scale_inv": scales}, FP8_CONFIG)
    inputs = write(tmp_path / "inputs", {NAME[:-7] + ".input": x}) / "model.safetensors"
    _, result = verify("gemm", dst, "--activations", inputs, "--tokens", "64", "--tp", "4", "--out", "bf16")
    token_scales = np.abs(x.astype(np.float32)).reshape(64, 4, 128).max(2) / np.float32(448)
    q = (x.astype(np.float32).reshape(64, 4, 128) / token_scales[:, :, None]).astype(fp8_oracle.E4M3).astype(np.float64)
    q = (q * token_scales[:, :, None].astype(np.float64)).reshape(64, 512)
    decoded = fp8_oracle.dequantize(codes, scales).astype(np.float64)
    total = np.zeros((64, 128), BF16)
    for at in range(0, 512, 128):
        part = (q[:, at:at + 128] @ decoded[:, at:at + 128].T).astype(BF16)
        total = (total.astype(np.float32) + part.astype(np.float32)).astype(BF16)
    exact = q @ decoded.T
    found = next(j for j in sums_of(result) if j["what"].startswith("reference"))
    assert found["relative_error"] == pytest.approx(np.linalg.norm(exact - total.astype(np.float64)) / np.linalg.norm(exact), rel=0.01)


@pytest.mark.parametrize("check, options, code, words", [
    ("gemm", ("--tp", "2"), 2, f"--tp 2: '{NAME}' has 640 input features in blocks of 128, which 2 ranks cannot divide"),
    ("gemm", ("--tp", "0"), 2, "--tp: '0' is not a number of at least 1"),
    ("gemm", ("--tp", "5", "--devices", "2"), 2, "--devices: each rank of --tp needs one GPU, so it is --tp's number, 5"),
    ("gemm", ("--tp", "5", "--devices", "5"), 2, "--devices needs --device cuda"),
    ("gemm", ("--tp", "5", "--tensors", "*up_proj*"), 3, "none of the tensors is a row-parallel weight"),
    ("epilogue", ("--tp", "2"), 2, "--tp cannot be combined with verify epilogue")])
def test_ranks_that_do_not_fit(tessera, model, check, options, code, words):
    dst, _ = model.write()
    found, _, err = harness.run(tessera, ["verify", check, dst, "--device", "cpu", *options])
    assert found == code and words in err and err.count("\n") == 1, err


# ---- faults in a checkpoint ----


def transpose(model):
    scales = model.output[NAME + "_scale_inv"]
    scales[:] = scales.T.copy().reshape(3, 5)


def lose_block(model):
    model.output[NAME][128:256, 256:384] = 0


def double_scales(model):
    model.output[NAME + "_scale_inv"] *= 2


@pytest.mark.parametrize("fault", [transpose, lose_block, double_scales])
def test_faults_show_as_quantization_error(fault, verify, model):
    fault(model)
    dst, src = model.write()
    code, result = verify("gemm", dst, "--against", src, "--columns", "0")
    failed = [j for j in result["judgements"] if not j["passed"]]
    assert code == 1 and {(j["subject"], j["kind"]) for j in failed} == {(NAME, "quantization")}
    assert "SQNR" in failed[0]["fault"]


def test_nan_is_named(verify, model):
    model.output[NAME].view(np.uint8)[5, 7] = 0x7F
    code, result = verify("gemm", model.write()[0], "--columns", "0")
    failed = [j for j in result["judgements"] if not j["passed"]]
    assert code == 1 and len(failed) == 1 and "[5, 7] is NaN" in failed[0]["fault"]


def test_limits(verify, model):
    dst, src = model.write()
    few = ("--tokens", "8")
    assert verify("gemm", dst, *few, "--against", src, "--min-sqnr", "60")[0] == 1
    assert verify("gemm", dst, *few, "--max-kernel-error", "1e-9")[0] == 1
    assert verify("gemm", dst, *few, "--max-kernel-rms", "1e-9")[0] == 1
    assert verify("gemm", dst, *few)[0] == 0


def test_the_seed_decides(verify, model):
    dst, _ = model.write()
    runs = [verify("gemm", dst, "--columns", "128", "--seed", seed, "--threads", threads)[1]["judgements"]
            for seed, threads in (("1", "1"), ("1", "3"), ("2", "1"))]
    assert runs[0] == runs[1] != runs[2]


# ---- integers ----


@pytest.fixture
def int8(checkpoint, quantize):
    src = checkpoint("llama")
    return src, quantize(src, "--scheme", "int8-channel")


def test_sound_epilogues_pass(int8, verify):
    src, dst = int8
    code, result = verify("epilogue", dst, "--against", src, "--sample", "3")
    assert code == 0, [j for j in result["judgements"] if not j["passed"]]
    whats = {j["what"] for j in harness.of_kind(result, "kernel")}
    assert {j["what"] for j in harness.of_kind(result, "checkpoint")} == {"azp_adj of the checkpoint"}
    for epilogue in ("scaled", "scaled + bias", "azp per tensor", "azp per token"):
        assert any(f": {epilogue}, " in what for what in whats)
    for j in harness.of_kind(result, "quantization"):
        assert j["of_expected_rms"] == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("old_name", [False, True])
def test_shifted_azp_adj_is_found(int8, verify, old_name):
    """Tests its own name, and the name of the weight, which earlier versions used."""
    dst = int8[1]
    path = dst / "tessera-azp.safetensors"
    _, tensors = harness.read_safetensors(path)
    name = sorted(tensors)[0]
    assert name.endswith(".azp_adj")
    weight = name[:-len("azp_adj")] + "weight"
    dtype, shape, data = tensors.pop(name)
    tensors[weight if old_name else name] = (dtype, shape, np.roll(np.frombuffer(data, np.int32), 1).tobytes())
    harness.write_safetensors(path, tensors)
    code, result = verify("epilogue", dst, "--tensors", weight, "--tokens", "8")
    failed = {j["what"] for j in result["judgements"] if not j["passed"]}
    assert code == 1 and "azp_adj of the checkpoint" in failed
    assert failed == {"azp_adj of the checkpoint"}


@pytest.mark.parametrize("scheme", ["int8-channel", "int8-weight-only", "int4-weight-only"])
def test_every_layout_keeps_every_code(scheme, checkpoint, quantize, verify):
    code, result = verify("dequant", quantize(checkpoint("llama"), "--scheme", scheme), "--sample", "2")
    assert code == 0
    whats = {j["what"] for j in result["judgements"]}
    assert {"layout T", "layout P", "fast dequantization, layout T, bf16", "fast dequantization, layout T, f16"} <= whats
    exact = [j for j in result["judgements"] if "product" not in j["what"]]
    assert all(j["differ"] == 0 and j["elements"] > 0 for j in exact) and len(exact) > 20


# ---- refusals ----


@pytest.mark.parametrize("check, words", [("gemm", "no tensor of e4m3"), ("epilogue", "no tensor of int8"), ("dequant", "no int8 or int4")])
def test_nothing_to_check(check, words, tessera, checkpoint):
    harness.expect(tessera, ["verify", check, checkpoint("llama")], 3, words)


def test_activations_that_do_not_fit(tessera, model):
    dst, _ = model.write()
    inputs = write(model.folder / "inputs", {NAME: np.zeros((4, 639), np.float32)}) / "model.safetensors"
    harness.expect(tessera, ["verify", "gemm", dst, "--activations", inputs], 3, "rows of 640")
    other = write(model.folder / "other", {"elsewhere": np.zeros((4, 640), np.float32)}) / "model.safetensors"
    harness.expect(tessera, ["verify", "gemm", dst, "--activations", other], 3, "that could be checked")


def test_against_something_else(tessera, model):
    dst, _ = model.write()
    other = write(model.folder / "other", {"elsewhere": np.zeros((4, 640), np.float32)})
    harness.expect(tessera, ["verify", "gemm", dst, "--against", other], 3, "a different shape")


def test_no_device(tessera, model):
    dst, _ = model.write()
    code, out, err = harness.run(tessera, ["verify", "gemm", dst, "--device", "cuda"])
    if code != 0:  # there is one where these tests run
        assert code == 5 and "GPU" in err
        assert "checked on the CPU" in harness.succeed(tessera, ["verify", "gemm", dst, "--device", "auto"])


@pytest.mark.parametrize("options", [("--tokens", "0"), ("--device", "tpu"), ("--out", "f64"), ("--min-sqnr", "x"), ("--experts", "0")])
def test_usage(options, tessera, model):
    harness.expect(tessera, ["verify", "gemm", model.write()[0], *options], 2, options[0])


def test_help_and_quiet(tessera, model):
    dst, _ = model.write()
    for check in ("gemm", "epilogue", "dequant"):
        harness.shows(tessera, ["verify", check, "--help"], 0, "Examples:", "--device")
    assert harness.run(tessera, ["verify", "gemm", dst, "--quiet"])[:2] == (0, "")
    harness.shows(tessera, ["verify", "gemm", dst], 0, "oracle", "judgements are within")


# ---- a line a tensor ----


def test_one_line_a_tensor(tessera, int8):
    src, dst = int8
    command = ["verify", "epilogue", dst, "--against", src, "--sample", "2", "--tokens", "8", "--device", "cpu"]
    code, out, _ = harness.run(tessera, command)
    lines = out.splitlines()
    assert code == 0 and len(lines) == 4  # two tensors, what was read, the sum
    for line in lines[:2]:
        assert line.startswith("ok   model.layers.") and "quantization at worst" in line and "judgements within" in line
        assert "42 runs of kernels at most " in line
    _, detailed, _ = harness.run(tessera, [*command, "--details"])
    assert len(detailed.splitlines()) > 90 and "azp per token" in detailed


def test_a_fault_is_told_below_its_tensor(tessera, int8):
    dst = int8[1]
    code, out, _ = harness.run(tessera, ["verify", "epilogue", dst, "--max-kernel-error", "1e-9", "--sample", "1", "--tokens", "8",
                                         "--device", "cpu"])
    lines = out.splitlines()
    assert code == 1 and lines[0].startswith("FAIL model.layers.") and "42 of " in lines[0]
    told = [line for line in lines[1:] if line.startswith("  FAIL")]
    assert len(told) == 42 and sum("times the bound of FP32" in line for line in lines) == 42


# ---- the checkpoint's faults are not the kernel's ----


def spoil(dst, name, at, value):
    path = next(p for p in dst.glob("*.safetensors") if name in harness.read_safetensors(p)[1])
    _, tensors = harness.read_safetensors(path)
    dtype, shape, data = tensors[name]
    values = np.frombuffer(data, np.float32 if dtype == "F32" else BF16).copy()
    values[at] = value
    tensors[name] = (dtype, shape, values.tobytes())
    harness.write_safetensors(path, tensors)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0, -1])
def test_a_scale_that_is_none_is_the_checkpoints_fault(value, int8, verify):
    dst = int8[1]
    name = next(n for p in sorted(dst.glob("*.safetensors")) for n in harness.read_safetensors(p)[1] if n.endswith("o_proj.weight_scale"))
    spoil(dst, name, 3, value)
    code, result = verify("epilogue", dst, "--columns", "0", "--tensors", name.removesuffix("_scale"))
    assert code == 1 and not harness.of_kind(result, "kernel")
    fault, = [j for j in harness.of_kind(result, "checkpoint") if not j["passed"]]
    assert fault["what"] == "scale of the checkpoint" and fault["fault"].replace("-nan", "nan") == f"of output 3 it is {value:g}"


@pytest.mark.parametrize("value, words", [(np.nan, "is nan"), (np.inf, "is inf")])
def test_a_scale_of_blocks_that_is_none_is_the_checkpoints_fault(value, words, verify, model):
    model.output[NAME + "_scale_inv"][1, 2] = value
    code, result = verify("gemm", model.write()[0], "--columns", "0", "--tensors", NAME)
    judged, = result["judgements"]
    assert code == 1 and judged["kind"] == "checkpoint" and words in judged["fault"].replace("-nan", "nan")


# ---- a check that compared nothing does not pass ----


def test_activations_of_zeros_tell_nothing(tessera, verify, model):
    dst, _ = model.write()
    zeros = np.zeros((4, 640), np.float32)
    inputs = write(model.folder / "inputs", {NAME: zeros}) / "model.safetensors"
    harness.expect(tessera, ["verify", "gemm", dst, "--activations", inputs, "--device", "cpu"], 3, "nothing could be judged")
    both = {NAME: zeros} | {name: np.ones((4, 640), np.float32) for name in EXPERTS}
    inputs = write(model.folder / "both", both) / "model.safetensors"
    code, result = verify("gemm", dst, "--activations", inputs)
    assert code == 0 and {j["subject"] for j in result["judgements"]} == {"model.layers.0.mlp.experts.*.up_proj.weight"}
    assert (NAME, "its activations in the file are all 0: they show nothing") in {(s["subject"], s["why"]) for s in result["skipped"]}


def test_no_type_that_codes_are_converted_to(tessera, int8):
    harness.expect(tessera, ["verify", "dequant", int8[1], "--out", "f32"], 2, "--out f32")


def test_no_layout_takes_the_shape(tessera, tmp_path, quantize):
    src = write(tmp_path / "src", {NAME: np.random.default_rng(1).standard_normal((25, 41)).astype(BF16)}, {"model_type": "llama"})
    harness.expect(tessera, ["verify", "dequant", quantize(src, "--scheme", "int8-channel"), "--device", "cpu"], 3, "nothing could be judged; skipped " + NAME)
