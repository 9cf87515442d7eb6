"""Tests weight-only products of `tessera verify dequant` and static input scales of `verify epilogue` against NumPy, with planted faults."""


from checkpoints import BF16, INDEX, make, random_weight, read
import harness
from int_oracle import AZP
import numpy as np
import pytest

pytestmark = pytest.mark.in_turn

UP, DOWN = (f"model.layers.0.mlp.{n}_proj" for n in ("up", "down"))
SHAPES = {UP: (192, 256), DOWN: (128, 384)}
FORMS = {
    "W8A8": ["int8-channel"],
    "W8A16": ["int8-weight-only"],
    "W8A16, groups": ["int8-weight-only", "--group-size", "128"],
    "W4A16": ["int4-weight-only", "--group-size", "0"],
    "W4A16, groups of 32": ["int4-weight-only", "--group-size", "32"],
    "W4A16, groups of 64, zero points": ["int4-weight-only", "--group-size", "64", "--zero-points"],
    "W4A16, groups of 128, zero points": ["int4-weight-only", "--zero-points"],
    "W4A16, zero points": ["int4-weight-only", "--group-size", "0", "--zero-points"],
}


@pytest.fixture
def source(tmp_path):
    weights = {m + ".weight": random_weight(shape, i).astype(BF16) for i, (m, shape) in enumerate(SHAPES.items())}
    return make(tmp_path / "src", {"model.safetensors": weights}, quantization=None), weights


def inputs(tmp_path, tokens=16, scale=1.0):
    """Makes a file of activations for every module, and the arrays."""
    rng = np.random.default_rng(9)
    arrays = {m: (rng.standard_normal((tokens, shape[1])) * scale).astype(BF16) for m, shape in SHAPES.items()}
    path = tmp_path / "inputs.safetensors"
    harness.write_safetensors(path, {f"{m}.input": ("BF16", x.shape, x.tobytes()) for m, x in arrays.items()})
    return path, arrays


def edit(path, name, change):
    """Replaces a tensor of a file by `change` of its array; None removes it."""
    metadata, tensors = harness.read_safetensors(path)
    dtype, shape, _ = tensors[name]
    changed = change(read(path)[name].copy())
    if changed is None:
        del tensors[name]
        (path.parent / INDEX).unlink()
    else:
        tensors[name] = (dtype, shape, changed.tobytes())
    harness.write_safetensors(path, tensors, metadata)


def faults(result):
    return {j["what"]: j["fault"] for j in result["judgements"] if not j["passed"]}


# ---- weight-only products ----


def unpacked(words, axis, count):
    """Returns the int4 codes of words along an axis, the first in the lowest bits."""
    nibbles = np.moveaxis(words, axis, -1).view(np.uint32)[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15
    return np.moveaxis(nibbles.reshape(*nibbles.shape[:-2], -1)[..., :count].astype(np.int64) - 8, -1, axis)


def operands(dst, module):
    """Returns (codes, scales, zero points or None) in double. Scales and zero points are expanded to all columns."""
    tensors = {n.removeprefix(module + "."): x for n, x in read(dst / "model.safetensors").items() if n.startswith(module + ".")}
    rows, cols = SHAPES[module]
    scales = tensors["weight_scale"].astype(np.float64)
    zeros = None
    if "weight_packed" in tensors and tensors["weight_packed"].shape[1] * 8 == cols:
        codes = unpacked(tensors["weight_packed"], 1, cols)
        if "weight_zero_point" in tensors:
            zeros = unpacked(tensors["weight_zero_point"], 0, rows)
    elif "weight_packed" in tensors:
        codes = tensors["weight_packed"].view(np.uint8).astype(np.int64) - 128
    else:
        codes = tensors["weight"].astype(np.int64)
    return codes, *(x if x is None else x.repeat(cols // x.shape[1], axis=1) for x in (scales, zeros))


def figures(exact, found):
    return np.linalg.norm(found - exact) / np.linalg.norm(exact), np.abs(found - exact).max()


@pytest.mark.parametrize("form", FORMS)
def test_figures_are_what_numpy_finds(form, tmp_path, source, quantize, verify):
    src, originals = source
    dst = quantize(src, "--scheme", *FORMS[form])
    path, x = inputs(tmp_path, tokens=20)
    code, result = verify("dequant", dst, "--against", src, "--activations", path, "--columns", "0")
    assert code == 0, faults(result)
    for module in SHAPES:
        codes, scales, zeros = operands(dst, module)
        a, w = x[module].astype(np.float64), originals[module + ".weight"].astype(np.float64)
        of = {j["what"]: j for j in result["judgements"] if j["subject"] == module + ".weight"}
        relative, largest = figures(w, (codes - (0 if zeros is None else zeros)) * scales)
        assert of["codes, against the originals"]["relative_error"] == pytest.approx(relative, rel=1e-9)
        for out, dtype in (("bf16", BF16), ("f16", np.float16)):
            stated = codes * scales.astype(dtype).astype(np.float64)
            if zeros is not None:
                stated = stated + (-zeros * scales).astype(dtype).astype(np.float64)
            relative, largest = figures(a @ w.T, a.astype(dtype).astype(np.float64) @ stated.T)
            found = of[f"weights, product in {out}"]
            assert found["relative_error"] == pytest.approx(relative, rel=1e-9)
            assert found["max_abs_error"] == pytest.approx(largest, rel=1e-9)
            assert found["of_expected_rms"] == pytest.approx(1, abs=0.15)
            kernel = [j for what, j in of.items() if what.startswith("reference: product") and what.endswith(f" {out}")]
            assert len(kernel) == 1 and 0.1 < kernel[0]["of_bound"] <= 1 and 0.4 < kernel[0]["of_expected_rms"] < 1.3
            assert ("zero points" in kernel[0]["what"]) == (zeros is not None) and "20 tokens" in kernel[0]["what"]


def swap_rows(x):
    x[[5, 9]] = x[[9, 5]]
    return x


def scale_group(x):
    x[7, -1] *= 2
    return x


def spoil(value):
    def change(x):
        x[7, -1] = value
        return x
    return change


@pytest.mark.parametrize("form", ["W8A8", "W8A16, groups", "W4A16", "W4A16, groups of 64, zero points"])
@pytest.mark.parametrize("change, row", [(swap_rows, 5), (scale_group, 7)])
def test_a_wrong_scale_is_found(form, change, row, source, quantize, verify):
    src, _ = source
    dst = quantize(src, "--scheme", *FORMS[form])
    edit(dst / "model.safetensors", UP + ".weight_scale", change)
    code, result = verify("dequant", dst, "--against", src, "--columns", "0")
    assert code == 1 and {j["subject"] for j in result["judgements"] if not j["passed"]} == {UP + ".weight"}
    failed = faults(result)
    assert f"codes are not the nearest, the first at row {row}" in failed.pop("codes, against the originals")
    assert set(failed) <= {"weights, product in bf16", "weights, product in f16"}


def test_a_wrong_zero_point_is_found(source, quantize, verify):
    src, _ = source
    dst = quantize(src, "--scheme", "int4-weight-only", "--zero-points")
    edit(dst / "model.safetensors", DOWN + ".weight_zero_point", lambda x: x ^ 0x300)  # of rows 2, 10, 18, ...
    code, result = verify("dequant", dst, "--against", src, "--columns", "0")
    failed = faults(result)
    assert code == 1 and "the first at row 2, column 0" in failed["codes, against the originals"]
    assert "that of rounding to these scales" in failed["weights, product in bf16"]


@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf])
def test_no_scale_at_all_is_named(value, source, quantize, verify):
    dst = quantize(source[0], "--scheme", *FORMS["W8A16, groups"])
    edit(dst / "model.safetensors", UP + ".weight_scale", spoil(value))
    code, result = verify("dequant", dst, "--columns", "0")
    assert code == 1 and f"of row 7, group 1 it is {value:g}" in faults(result)["scale of the checkpoint"].replace("-nan", "nan")


def test_limits_of_products(source, quantize, verify):
    src, _ = source
    dst = quantize(src, "--scheme", *FORMS["W4A16"])
    assert verify("dequant", dst, "--against", src, "--min-sqnr", "15")[0] == 0
    code, result = verify("dequant", dst, "--against", src, "--min-sqnr", "30")
    assert code == 1 and all("SQNR" in fault for fault in faults(result).values()) and len(faults(result)) == 3
    for limit in ("--max-kernel-error", "--max-kernel-rms"):
        code, result = verify("dequant", dst, limit, "1e-9")
        assert code == 1 and all(what.startswith("reference: product") for what in faults(result))


def test_without_originals_16_bits_are_what_costs(source, quantize, verify):
    _, result = verify("dequant", quantize(source[0], "--scheme", *FORMS["W8A8"]))
    found = {j["what"]: j for j in harness.of_kind(result, "quantization")}
    assert found.keys() == {f"scales and activations, product in {out}" for out in ("bf16", "f16")}
    assert 50 < found["scales and activations, product in bf16"]["sqnr_db"] < 70


def test_what_is_skipped_says_why(tmp_path, source, quantize, verify):
    dst = quantize(source[0], "--scheme", *FORMS["W8A16"])
    path, x = inputs(tmp_path, scale=1e6)
    harness.write_safetensors(path, {UP: ("BF16", x[UP].shape, x[UP].tobytes())})
    code, result = verify("dequant", dst, "--activations", path)
    why = {(s["subject"], s["why"]) for s in result["skipped"] if s["why"].startswith("weight-only")}
    assert code == 0 and why == {(UP + ".weight", "weight-only products: values beyond f16"),
                                 (DOWN + ".weight", "weight-only products: the file of activations has none for it")}
    assert any(j["subject"] == DOWN + ".weight" and j["what"] == "layout T" for j in result["judgements"])


def test_products_do_not_depend_on_threads(source, quantize, verify):
    dst = quantize(source[0], "--scheme", *FORMS["W4A16, groups of 32"])
    runs = [verify("dequant", dst, "--threads", threads)[1]["judgements"] for threads in ("1", "3")]
    assert runs[0] == runs[1]


# ---- static input scales ----


def calibrated(tmp_path, quantize, src, zero_points, x, reach=1.0):
    """Makes W8A8 with static inputs whose ranges are those of x, times `reach`."""
    ranges = {m: {"min": reach * float(a.min()), "max": reach * float(a.max())} for m, a in x.items()}
    path = harness.write_json(tmp_path / "ranges.json", ranges)
    return quantize(src, "--scheme", "int8-channel", "--activations", path,
                    *(["--activation-zero-points"] if zero_points else []))


@pytest.mark.parametrize("zero_points", [False, True])
def test_static_figures_are_what_numpy_finds(zero_points, tmp_path, source, quantize, verify):
    src, originals = source
    path, x = inputs(tmp_path)
    x = {m: np.maximum(a, BF16(-0.5)) for m, a in x.items()}
    harness.write_safetensors(path, {m: ("BF16", a.shape, a.tobytes()) for m, a in x.items()})
    dst = calibrated(tmp_path, quantize, src, zero_points, x)
    code, result = verify("epilogue", dst, "--against", src, "--activations", path, "--columns", "0")
    assert code == 0, faults(result)
    tensors = read(dst / "model.safetensors")
    for module in SHAPES:
        scale = tensors[module + ".input_scale"][0]
        zero = int(tensors[module + ".input_zero_point"][0]) if zero_points else 0
        a, w = x[module].astype(np.float64), originals[module + ".weight"].astype(np.float64)
        codes = np.clip(np.rint(x[module].astype(np.float32) / scale) + zero, -128, 127).astype(np.float64)
        found = {j["what"]: j for j in result["judgements"] if j["subject"] == module + ".weight"}
        stated = (codes - zero) * np.float64(scale)
        relative, _ = figures(a, stated)
        assert found["activations, by input_scale"]["relative_error"] == pytest.approx(relative, rel=1e-9)
        what = "weights and activations per tensor" + (" with azp" if zero_points else "") + ", static"
        weights = tensors[module + ".weight"] * tensors[module + ".weight_scale"].astype(np.float64)
        relative, largest = figures(a @ w.T, stated @ weights.T)
        assert found[what]["relative_error"] == pytest.approx(relative, rel=1e-9)
        assert found[what]["max_abs_error"] == pytest.approx(largest, rel=1e-9)
        epilogue = "azp per tensor" if zero_points else "scaled"
        assert f"reference: {epilogue}, scales per static tensor and channel, bf16" in found
        assert ("azp_with_adj of the checkpoint" in found) == zero_points


@pytest.mark.parametrize("zero_points", [False, True])
def test_drawn_activations_reach_what_the_scale_does(zero_points, tmp_path, source, quantize, verify):
    dst = calibrated(tmp_path, quantize, source[0], zero_points, {m: np.array([-0.01, 300.0]) for m in SHAPES})
    code, result = verify("epilogue", dst, "--against", source[0])
    assert code == 0, faults(result)
    judged = [j for j in result["judgements"] if j["what"] == "activations, by input_scale"]
    assert len(judged) == 2 and all(0.5 < j["of_expected_rms"] < 1.25 for j in judged)


def add(number, at):
    def change(x):
        x[at] += number
        return x
    return change


def test_a_wrong_azp_with_adj_is_named(tmp_path, source, quantize, verify):
    _, x = inputs(tmp_path)
    dst = calibrated(tmp_path, quantize, source[0], True, x)
    right_ones = read(dst / AZP)[UP + ".azp_with_adj"]
    edit(dst / AZP, UP + ".azp_with_adj", add(1, 77))
    right, zero = read(dst / AZP)[UP + ".azp_with_adj"][77] - 1, read(dst / "model.safetensors")[UP + ".input_zero_point"][0]
    code, result = verify("epilogue", dst, "--columns", "0")
    assert code == 1 and faults(result)["azp_with_adj of the checkpoint"] == (
        f"of output 77 it is {right + 1}; input_zero_point {zero} times the sum of its codes is {right}")
    # However wrong, and wherever: also in a channel that no kernel computes. It is one fault, and none of the kernels'.
    for change in (add(2**30, 77), lambda v: np.roll(v, 1), lambda v: np.full_like(v, -2**31), add(-1, 0), add(1, -1)):
        edit(dst / AZP, UP + ".azp_with_adj", change)
        result = verify("epilogue", dst, "--columns", "1", "--tokens", "16")[1]
        assert list(faults(result)) == ["azp_with_adj of the checkpoint"] and sum(not j["passed"] for j in result["judgements"]) == 1
    assert f"; {len(right_ones)} of {len(right_ones)} are wrong" in faults(result)["azp_with_adj of the checkpoint"]


@pytest.mark.parametrize("factor, words", [(1 / 16, "activations are outside"), (0.5, "activations are outside"),
                                           (127, "is too large: the activations use")])
@pytest.mark.parametrize("zero_points", [False, True])
def test_a_wrong_input_scale_is_named(zero_points, factor, words, tmp_path, source, quantize, verify):
    path, x = inputs(tmp_path)
    dst = calibrated(tmp_path, quantize, source[0], zero_points, x)
    assert verify("epilogue", dst, "--activations", path)[0] == 0
    edit(dst / "model.safetensors", DOWN + ".input_scale", lambda s: s * np.float32(factor))
    code, result = verify("epilogue", dst, "--activations", path)
    fault = faults(result)["activations, by input_scale"]
    assert code == 1 and words in fault and f"input_scale {read(dst / 'model.safetensors')[DOWN + '.input_scale'][0]:g}" in fault
    assert {j["subject"] for j in result["judgements"] if not j["passed"]} == {DOWN + ".weight"}
    kernels = harness.of_kind(result, "kernel")
    assert kernels and not [(j["what"], j["fault"]) for j in kernels if j["fault"]]


@pytest.mark.parametrize("value", [0, -0.5, np.inf, 1e-30])
@pytest.mark.parametrize("zero_points", [False, True])
def test_no_input_scale_at_all_is_named(zero_points, value, tmp_path, source, quantize, verify):
    _, x = inputs(tmp_path)
    dst = calibrated(tmp_path, quantize, source[0], zero_points, x)
    edit(dst / "model.safetensors", UP + ".input_scale", lambda s: np.full_like(s, value))
    code, result = verify("epilogue", dst, "--tokens", "16")
    assert code == 1 and faults(result) == {"input_scale of the checkpoint": f"it is {np.float32(value):g}"}
    judged = [j["what"] for j in result["judgements"] if j["subject"] == UP + ".weight"]
    assert len(judged) > 1 and not any("static" in what for what in judged)


@pytest.mark.parametrize("part, change, words", [("zero_point", lambda z: z + np.int8(7), "times the sum of its codes is"),
                                                 ("zero_point", lambda z: None, "without input_zero_point it is 0"),
                                                 ("scale", lambda s: None, "without input_scale it is 0")])
def test_what_azp_with_adj_does_not_go_with_is_named(part, change, words, tmp_path, source, quantize, verify):
    _, x = inputs(tmp_path)
    dst = calibrated(tmp_path, quantize, source[0], True, x)
    edit(dst / "model.safetensors", f"{UP}.input_{part}", change)
    code, result = verify("epilogue", dst, "--tokens", "16")
    assert code == 1 and words in faults(result)["azp_with_adj of the checkpoint"]


def test_input_scales_of_another_shape(tmp_path, tessera, source, quantize):
    _, x = inputs(tmp_path)
    dst = calibrated(tmp_path, quantize, source[0], False, x)
    metadata, tensors = harness.read_safetensors(dst / "model.safetensors")
    tensors[UP + ".input_scale"] = ("F32", [2], np.ones(2, np.float32).tobytes())
    harness.write_safetensors(dst / "model.safetensors", tensors, metadata)
    harness.expect(tessera, ["verify", "epilogue", dst], 3, UP + ".input_scale")
