"""Tests `tessera verify DST --against SRC`: correct outputs pass, and each planted fault is found by the right check at the right place."""

import copy
import json
import shutil
import xml.etree.ElementTree

from checkpoints import BF16, FP8_CONFIG, write
import fp8_oracle
import harness
import numpy as np
import pytest

pytestmark = pytest.mark.in_turn

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
EXPERTS = [f"model.layers.0.mlp.experts.{i}.down_proj.weight" for i in range(4)]
CHECKS = {"names", "shapes", "scales", "codes", "values", "blocks", "config"}


@pytest.fixture
def verify(tessera, tmp_path):
    """Returns verify(dst, src, *options) -> (exit code, {check: [(where, what)]}, text)."""

    def run(dst, src, *options):
        junit = tmp_path / "junit.xml"
        code, out, err = harness.run(tessera, ["verify", dst, "--against", src, "--json", "-", "--junit", junit, *options])
        assert code in (0, 1), err
        result = json.loads(out)
        found = {}
        for f in result["findings"]:
            found.setdefault(f["check"], []).append((f["where"], f["what"]))
        assert result["passed"] == (code == 0) == (not found)
        failures = {check: "" for check in CHECKS}
        for case in xml.etree.ElementTree.parse(junit).getroot().iter("testcase"):  # a case for each layer
            failures[case.get("classname").removeprefix("verify weights.")] += case.findtext("failure", "")
        assert failures.keys() == CHECKS
        for check, told in failures.items():
            assert (told != "") == (check in found) and all(where in told for where, _ in found.get(check, []))
        again, text, _ = harness.run(tessera, ["verify", dst, "--against", src, *options])
        assert again == code
        for check in CHECKS:
            assert f"{'FAIL' if check in found else 'PASS'}  {check}" in text
        return code, found, text

    return run


@pytest.mark.parametrize("options", [(), ("--scale-fmt", "ue8m0"), ("--scales", "mse"),
                                     ("--dialect", "compressed-tensors"), ("--block", "64x256")], ids=str)
def test_what_quantize_writes_passes(options, checkpoint, quantize, verify):
    for kind in ("deepseek-v3", "fused-experts"):
        src = checkpoint(kind)
        code, found, text = verify(quantize(src, *options), src)
        assert (code, found) == (0, {}) and "is a correct conversion of" in text


def test_a_copy_passes(checkpoint, verify):
    assert verify(checkpoint("llama"), checkpoint("llama"))[0] == 0


# ---- faults ----


class Model:
    """Is four experts, their block FP8, and a norm. Tests change it and then write it."""

    def __init__(self, tmp_path):
        rng = np.random.default_rng(8)
        self.folder, self.config = tmp_path, dict(copy.deepcopy(FP8_CONFIG), hidden_size=640)
        self.source = {name: rng.standard_normal((384, 640)).astype(BF16) for name in EXPERTS}
        for w in self.source.values():
            w[:] = w * np.repeat(np.exp2(rng.uniform(-3, 3, 5)), 128)
        self.source["model.norm.weight"] = rng.standard_normal(640).astype(BF16)
        self.output = {"model.norm.weight": self.source["model.norm.weight"]}
        for name in EXPERTS:
            self.output[name], self.output[name + "_scale_inv"] = map(np.array, fp8_oracle.quantize(self.source[name]))

    def scales(self, i=0):
        return self.output[EXPERTS[i] + "_scale_inv"]

    def write(self):
        return (write(self.folder / "dst", self.output, self.config),
                write(self.folder / "src", self.source, {"hidden_size": 640}))


@pytest.fixture
def model(tmp_path):
    return Model(tmp_path)


def expect(verify, model, check, where, *words, options=()):
    code, found, text = verify(*model.write(), *options)
    assert code == 1
    places = dict(found[check])
    assert where in places, found
    assert all(word in places[where] for word in words), places[where]
    return found


def test_sound(verify, model):
    assert verify(*model.write())[:2] == (0, {})


def test_transposed_grid(verify, model):
    model.scales()[:] = model.scales().T.copy().reshape(3, 5)
    found = expect(verify, model, "values", EXPERTS[0], "grid is stored transposed")
    what = dict(found["values"])[EXPERTS[0]]
    assert what.startswith("the codes fit, but ") and what.count("SQNR") == 1 and "values differ" not in what


@pytest.mark.parametrize("shift, axis", [(1, 0), (-1, 0), (1, 1), (-1, None)])
def test_scales_off_by_one_block(shift, axis, verify, model):
    rng = np.random.default_rng(1)
    w = model.source[EXPERTS[0]]
    w[:] = w * np.repeat(rng.uniform(0.5, 2, (3, 1)), 128, 0)
    codes, scales = fp8_oracle.quantize(w)
    model.output[EXPERTS[0]] = codes
    flat = {None: scales.ravel(), 0: scales, 1: scales.ravel()}[axis]
    model.scales()[:] = np.roll(flat, shift, 0).reshape(3, 5)
    expect(verify, model, "values", EXPERTS[0], "shifted by one block")


def test_inverted_scales(verify, model):
    model.scales()[:] = 1 / model.scales()
    expect(verify, model, "values", EXPERTS[0], "1/scale is stored", "15 of 15")


def test_one_wrong_scale(verify, model):
    model.scales()[1, 2] *= 4
    found = expect(verify, model, "values", EXPERTS[0], "1 of 15 scales do not", "[128, 256]", "4 times the right one")
    assert set(found) == {"values"}


@pytest.mark.parametrize("third", [1, 3])
def test_two_swapped_scales(third, verify, model):
    """Both blocks are named, and the diagnosis comes first. With a third wrong scale they are not a pair."""
    scales = model.scales()
    scales[0, 1], scales[2, 3] = scales[2, 3], scales[0, 1]
    scales[1, 4] *= third
    what = dict(expect(verify, model, "values", EXPERTS[0])["values"])[EXPERTS[0]]
    pair = "the codes fit, but the scales of the blocks at [0, 128] and [256, 384] are swapped"
    assert what.startswith(pair if third == 1 else "the codes fit, but 3 of 15 scales do not"), what
    assert what.count("SQNR") == 1 and "values differ" not in what


def test_a_scale_in_the_place_of_another_is_no_swap(verify, model):
    """Two scales are wrong, but only one of them is the other's."""
    scales = model.scales()
    scales[0, 1], scales[2, 3] = scales[2, 3], scales[2, 3] * 3
    what = dict(expect(verify, model, "values", EXPERTS[0])["values"])[EXPERTS[0]]
    assert what.startswith("the codes fit, but 2 of 15 scales do not"), what


def test_swapped_experts(verify, model):
    for suffix in ("", "_scale_inv"):
        a, b = EXPERTS[1] + suffix, EXPERTS[3] + suffix
        model.output[a], model.output[b] = model.output[b], model.output[a]
    found = expect(verify, model, "values", EXPERTS[1], f"holds the values of '{EXPERTS[3]}'", "swapped")
    assert f"holds the values of '{EXPERTS[1]}'" in dict(found["values"])[EXPERTS[3]]
    assert len(found["values"]) == 2


@pytest.mark.parametrize("bit", range(8))
def test_one_flipped_bit_of_a_code(bit, verify, model):
    """Tests also the lowest bit, which changes a value by one step."""
    codes = model.output[EXPERTS[2]].view(np.uint8)
    at = tuple(np.argwhere((codes & 0x7F) == 0x55)[-1])
    codes[at] ^= 1 << bit
    expect(verify, model, "values", EXPERTS[2], "1 of 245760 codes are not the nearest", f"[{at[0]}, {at[1]}]")


def test_one_flipped_bit_of_a_plain_tensor(verify, model):
    norm = model.output["model.norm.weight"].copy()
    norm.view(np.uint16)[7] ^= 1
    model.output["model.norm.weight"] = norm
    expect(verify, model, "values", "model.norm.weight", "1 of 640 values differ")


def test_stale_shard(verify, quantize, checkpoint, maker, tmp_path):
    src = checkpoint("deepseek-v3")
    dst = quantize(src, "--max-shard-size", "1MB")
    other = quantize(harness.make_checkpoint(maker, "deepseek-v3", tmp_path / "other", scale="tiny", seed=9),
                     "--max-shard-size", "1MB")
    shard = sorted(path.name for path in dst.glob("*.safetensors"))[1]
    shutil.copy(other / shard, dst / shard)
    code, found, _ = verify(dst, src)
    assert code == 1 and "a stale shard" in dict(found["values"])[shard]
    assert any("no tensor of the source has its values" in what for _, what in found["values"])
    stale = set(harness.read_safetensors(dst / shard)[1]) | {shard}
    assert {where for where, _ in found["values"]} <= stale


def test_swapped_absorbed_projections(verify, model):
    rng = np.random.default_rng(2)
    names = [f"model.layers.0.self_attn.{name}" for name in ("w_kc", "w_vc")]
    w_kc, w_vc = (rng.standard_normal((4, 128, 256)).astype(BF16) for _ in names)
    model.source.update(zip(names, (w_kc, w_vc)))
    model.output.update(zip(names, (w_vc, w_kc)))
    found = expect(verify, model, "values", names[0], f"holds the values of '{names[1]}'")
    assert f"holds the values of '{names[0]}'" in dict(found["values"])[names[1]]


def test_missing_extra_misnamed_misshaped(verify, model):
    model.output["model.layers.0.mlp.expert.0.down_proj.weight"] = model.output.pop(EXPERTS[0])
    model.output["model.layers.0.mlp.expert.0.down_proj.weight_scale_inv"] = model.output.pop(EXPERTS[0] + "_scale_inv")
    model.output["new"] = np.ones(3, np.float32)
    model.output["model.norm.weight"] = model.source["model.norm.weight"].reshape(1, 640)
    found = expect(verify, model, "names", EXPERTS[0], "missing")
    names = dict(found["names"])
    assert f"misnamed: it holds the values of '{EXPERTS[0]}'" in names["model.layers.0.mlp.expert.0.down_proj.weight"]
    assert "extra" in names["new"]
    assert dict(found["shapes"]) == {"model.norm.weight": "[1, 640], but [640] in the source"}


@pytest.mark.parametrize("value, what", [(0, "zero"), (-1, "negative"), (np.nan, "NaN"), (np.inf, "infinite"),
                                         (1e-40, "subnormal")])
def test_scales_out_of_range(value, what, verify, model):
    model.scales(3)[2, 1] = value
    expect(verify, model, "scales", EXPERTS[3] + "_scale_inv", "1 of 15", "block [2, 1]", what)


def test_nan_code(verify, model):
    model.output[EXPERTS[0]].view(np.uint8)[200, 300] = 0xFF
    expect(verify, model, "codes", EXPERTS[0], "1 values are NaN", "[200, 300]")


def test_a_better_scale(verify, model):
    """The scales are much too large. The codes are the nearest ones, but among e4m3's subnormals."""
    scales = model.scales() * np.float32(2**14)
    model.output[EXPERTS[0]] = fp8_oracle.codes_of(model.source[EXPERTS[0]].astype(np.float32), scales)
    model.output[EXPERTS[0] + "_scale_inv"] = scales
    expect(verify, model, "blocks", EXPERTS[0], "15 of 15 blocks have a better scale", "with amax/448")


@pytest.mark.parametrize("options", [(), ("--scales", "mse")], ids=str)
def test_a_block_that_one_value_carries(options, verify, quantize, model):
    """amax/448 would be exact for the block, but is not a power of two. Log-uniform weights have such blocks."""
    for i, name in enumerate(EXPERTS):
        model.source[name][:128, :128] = model.source[name][:128, :128].astype(np.float32) * np.float32(2.0**-20)
        model.source[name][5, 7] = 1.0625
    _, src = model.write()
    code, found, _ = verify(quantize(src, "--scale-fmt", "ue8m0", *options), src)
    assert (code, found) == (0, {})


def test_a_better_power_of_two(verify, model):
    scales = fp8_oracle.quantize(model.source[EXPERTS[0]], True)[1] * np.float32(2**14)
    for name in EXPERTS:
        model.output[name], model.output[name + "_scale_inv"] = fp8_oracle.quantize(model.source[name], True)
    model.output[EXPERTS[0]] = fp8_oracle.codes_of(model.source[EXPERTS[0]].astype(np.float32), scales)
    model.output[EXPERTS[0] + "_scale_inv"] = scales
    model.config["quantization_config"] = dict(model.config["quantization_config"], scale_fmt="ue8m0")
    expect(verify, model, "blocks", EXPERTS[0], "15 of 15 blocks have a better scale", "power of two above amax/448")


def test_many_bad_tensors_are_all_named_and_some_explained(verify, model):
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(70)]
    w = np.random.default_rng(3).standard_normal((64, 64)).astype(BF16)
    codes, scales = fp8_oracle.quantize(w)
    for name in names:
        model.source[name] = w
        model.output.update({name: codes, name + "_scale_inv": scales * np.float32(1.5)})
    found = expect(verify, model, "blocks", "*", "6 more tensors have blocks worse than 0.032")
    assert {where for where, _ in found["values"]} == set(names)


@pytest.mark.parametrize("change, key, words", [
    ({"hidden_size": 641}, "hidden_size", "641, but 640"),
    ({"novel": 1}, "novel", "no such key"),
    ({"hidden_size": None}, "hidden_size", "missing"),
    ({"scale_fmt": "ue8m0"}, None, "not a power of two"),
    ({"quant_method": "compressed-tensors"}, "quantization_config.quant_method", "look for '..._scale'"),
])
def test_config(change, key, words, verify, model):
    for name, value in change.items():
        part = model.config if name in ("hidden_size", "novel") else model.config["quantization_config"]
        part[name] = value
    if change.get("quant_method"):
        model.config["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {"block_structure": [128, 128]}}}}
    if "hidden_size" in change and change["hidden_size"] is None:
        del model.config["hidden_size"]
    if key is None:
        expect(verify, model, "scales", EXPERTS[0] + "_scale_inv", words)
    else:
        expect(verify, model, "config", key, words)


def test_spaces_behind_an_escaped_quote_belong_to_the_value(verify, model):
    dst, src = model.write()
    for folder, spaces in ((dst, " "), (src, "  ")):
        path = folder / "config.json"
        path.write_text(json.dumps(dict(json.loads(path.read_text()), system=f'a "{spaces}b" c')))
    code, found, _ = verify(dst, src)
    assert code == 1 and "system" in dict(found["config"]), found


def test_values_of_several_lines_are_shown_on_one(verify, model):
    """transformers writes config.json with one array element per line."""
    dst, src = model.write()
    for folder, names in ((dst, ["A B", "C\\"]), (src, ["A B", "D"])):
        path = folder / "config.json"
        path.write_text(json.dumps(dict(json.loads(path.read_text()), architectures=names), indent=4))
    code, found, text = verify(dst, src)
    line = '["A B", "C\\\\"], but ["A B", "D"] in the source'
    assert code == 1 and dict(found["config"])["architectures"] == line and line in text, found


def test_fp8_without_its_configuration(verify, model):
    del model.config["quantization_config"]
    expect(verify, model, "config", "quantization_config", "missing", options=("--source-block", "128x128"))


def test_codes_swapped_without_their_scales(verify, model):
    """The decoded values match no tensor, but the codes do."""
    a, b = EXPERTS[1], EXPERTS[3]
    model.output[b + "_scale_inv"] *= np.float32(3)
    model.output[a], model.output[b] = model.output[b], model.output[a]
    found = expect(verify, model, "values", a, f"its codes are those of '{b}'", "without their scales")
    assert f"its codes are those of '{a}'" in dict(found["values"])[b]
    assert not any("version" in what for _, what in found["values"])


@pytest.mark.parametrize("spoil", [lambda codes: codes[:, ::-1], lambda codes: np.roll(codes, 7, 0),
                                   lambda codes: codes[::-1]], ids=["columns", "rows", "upside down"])
def test_nothing_is_guessed_of_what_is_not_known(spoil, verify, model):
    model.output[EXPERTS[1]] = np.ascontiguousarray(spoil(model.output[EXPERTS[1]].view(np.uint8))).view(fp8_oracle.E4M3)
    found = expect(verify, model, "values", EXPERTS[1], "codes are not the nearest (0 allowed)", "is below 30",
                   "no tensor of the source has its values")
    what = dict(found["values"])[EXPERTS[1]]
    assert not any(word in what for word in ("swapped", "version", "the codes fit"))


# ---- limits and options ----


def test_limits(verify, model):
    dst, src = model.write()
    for limits, code in [(("--min-sqnr", "31"), 0), (("--min-sqnr", "33"), 1), (("--max-block-error", "0.03"), 0),
                         (("--max-block-error", "0.02"), 1), (("--tensors", "*norm*", "--min-sqnr", "99"), 0)]:
        assert verify(dst, src, *limits)[0] == code, limits


def test_misrounded_codes_can_be_allowed(verify, model):
    model.output[EXPERTS[2]].view(np.uint8)[0, :3] ^= 1
    dst, src = model.write()
    assert verify(dst, src, "--max-misrounded", "3")[0] == 0
    assert verify(dst, src, "--max-misrounded", "2")[0] == 1


@pytest.mark.parametrize("dtype, code", [(np.float32, 0), (np.float16, 0), ("rough", 1)])
def test_casts(dtype, code, verify, model, tmp_path):
    w = model.source[EXPERTS[0]]
    cast = (w.astype(np.float32) * np.float32(1.01)).astype(np.float32) if dtype == "rough" else w.astype(dtype)
    assert verify(write(tmp_path / "a", {"w": cast}), write(tmp_path / "b", {"w": w}))[0] == code


def test_what_convert_writes_passes(tessera, checkpoint, quantize, verify, tmp_path):
    fp8 = quantize(checkpoint("deepseek-v3"))
    for i, options in enumerate((["bf16"], ["fp8-block", "--scale-fmt", "ue8m0"])):
        dst = tmp_path / f"converted{i}"
        harness.succeed(tessera, ["convert", fp8, "-o", dst, "--quiet", "--to", *options])
        assert verify(dst, fp8)[:2] == (0, {})
    code, found, _ = verify(dst, checkpoint("deepseek-v3"), "--min-sqnr", "27", "--max-misrounded", "1000000000")
    assert (code, found) == (0, {})
    code, found, _ = verify(dst, checkpoint("deepseek-v3"))
    assert code == 1 and not any("the codes fit" in what or "swapped" in what for _, what in found["values"])


def integers(tmp_path, quantize, scheme, w):
    src = write(tmp_path / "src", {"model.layers.0.mlp.down_proj.weight": w}, {"model_type": "llama"})
    return src, quantize(src, *scheme)


def figure(tessera, dst, src):
    code, out, err = harness.run(tessera, ["verify", dst, "--against", src, "--json", "-"])
    assert code in (0, 1), err
    return code, json.loads(out)["tensors"][0]


INTEGERS = {"int8": ("--scheme", "int8-channel"), "int8, packed": ("--scheme", "int8-weight-only"),
            "int4": ("--scheme", "int4-weight-only", "--group-size", "0"),
            "int4 in groups": ("--scheme", "int4-weight-only"),
            "int4 with zero points": ("--scheme", "int4-weight-only", "--group-size", "0", "--zero-points")}


@pytest.mark.parametrize("scheme", INTEGERS.values(), ids=INTEGERS)
def test_outliers_of_integers_are_no_fault(scheme, tessera, tmp_path, quantize, verify):
    """One value of each group is so large that the others are coarse. The low SQNR is correct."""
    limit, far = (10, 30) if "int4" in scheme[1] else (30, 300)
    w = np.random.default_rng(5).standard_normal((256, 4096))
    w[:, ::4096 if "int8" in scheme[1] or "0" in scheme else 128] = far
    src, dst = integers(tmp_path, quantize, scheme, w.astype(BF16))
    code, got = figure(tessera, dst, src)
    assert code == 0 and got["misrounded"] == 0 and got["sqnr_db"] < limit
    assert verify(dst, src)[:2] == (0, {})
    code, found, _ = verify(dst, src, "--min-sqnr", str(limit))  # what is asked for is held to
    assert code == 1 and f"is below {limit}" in found["values"][0][1]
    assert not any(word in found["values"][0][1] for word in ("the codes fit", "version", "swapped"))


NAME = "model.layers.0.mlp.down_proj.weight"


def coarser(w, scale, wanted, bits):
    """Returns scales of one factor, and the nearest codes, with the SQNR `wanted` (by bisection)."""
    x, high, low, far = w.astype(np.float64), 2 ** (bits - 1) - 1, 1.0, 64.0
    for _ in range(40):
        middle = (low * far) ** 0.5
        new = (scale.astype(np.float64) * middle).astype(scale.dtype)
        step = np.repeat(new.astype(np.float64), x.shape[1] // new.shape[1], 1)
        codes = np.clip(np.rint(x / step), -high - 1, high)
        sqnr = 10 * np.log10((x**2).sum() / ((x - codes * step)**2).sum())
        low, far = (middle, far) if sqnr > wanted else (low, middle)
    assert abs(sqnr - wanted) < 0.1
    if bits == 8:
        return new, "I8", codes.astype(np.int8)
    nibbles = (codes + 8).astype(np.uint32).reshape(x.shape[0], -1, 8) << (4 * np.arange(8, dtype=np.uint32))
    return new, "I32", nibbles.sum(2, dtype=np.uint32)


@pytest.mark.parametrize("scheme, bits, limit", [("int8-channel", 8, 30), ("int4-weight-only", 4, 10)])
def test_the_usual_limits_are_30_and_10_dB(scheme, bits, limit, tessera, tmp_path, quantize, verify):
    """Scales that are too large make codes coarse, but each is the nearest. Tests an SQNR just above and just below the
    limit."""
    w = np.random.default_rng(6).standard_normal((256, 1024)).astype(BF16)
    src, dst = integers(tmp_path, quantize, ("--scheme", scheme), w)
    _, tensors = harness.read_safetensors(dst / "model.safetensors")
    (name, (dtype, shape, data)), = [x for x in tensors.items() if x[0].endswith("_scale")]
    scale = np.frombuffer(data, BF16 if dtype == "BF16" else np.float32).reshape(shape)
    for above in (0.3, -0.3):
        new, kind, codes = coarser(w, scale, limit + above, bits)
        tensors[name] = (dtype, shape, new.tobytes())
        tensors[NAME if bits == 8 else NAME + "_packed"] = (kind, codes.shape, codes.tobytes())
        harness.write_safetensors(dst / "model.safetensors", tensors)
        code, got = figure(tessera, dst, src)
        assert got["misrounded"] == 0 and abs(got["sqnr_db"] - limit - above) < 0.2
        assert code == (above < 0), got
    _, found, text = verify(dst, src)
    what = found["values"][0][1]
    assert f"is below {limit}" in what and "scales far too small or too large" in what
    assert not any(word in what for word in ("the codes fit", "version", "swapped"))
    assert "FAIL  values  errors of values are beyond the limits: 1 finding\n" in text

def test_a_flipped_bit_of_int4_blames_no_scale(tmp_path, quantize, verify):
    """In a group of 32, one code that is wrong by 8 steps changes the scale that would fit best."""
    w = np.random.default_rng(7).standard_normal((256, 1024)).astype(BF16)
    src, dst = integers(tmp_path, quantize, ("--scheme", "int4-weight-only", "--group-size", "32"), w)
    _, tensors = harness.read_safetensors(dst / "model.safetensors")
    dtype, shape, data = tensors[NAME + "_packed"]
    at = next(i for i, byte in enumerate(data) if byte >> 4 == 8)  # a code that is 0, and then -8
    tensors[NAME + "_packed"] = (dtype, shape, data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1:])
    harness.write_safetensors(dst / "model.safetensors", tensors)
    code, found, _ = verify(dst, src)
    assert code == 1 and len(found["values"]) == 1
    assert "1 of 262144 codes are not the nearest" in found["values"][0][1] and f"[0, {2 * at + 1}]" in found["values"][0][1]
    assert "the codes fit" not in found["values"][0][1]


def test_what_was_not_judged_is_said(tessera, tmp_path):
    """A check without subjects passes and reports that it judged nothing."""
    src, dst = (write(tmp_path / name, {"w": np.ones((2, 2), np.float32)}) for name in ("src", "dst"))
    out = harness.succeed(tessera, ["verify", dst, "--against", src, "--junit", tmp_path / "junit.xml"])
    said = {line.split()[1]: "no judgement applies" in line for line in out.splitlines() if line.startswith("PASS")}
    assert said == {"names": False, "shapes": False, "scales": True, "codes": False, "values": False, "blocks": True,
                    "config": False}
    skipped = [case.get("classname").split(".")[1] for case in
               xml.etree.ElementTree.parse(tmp_path / "junit.xml").getroot().iter("testcase") if case.find("skipped") is not None]
    assert skipped == ["scales", "blocks"]
    code, out, _ = harness.run(tessera, ["verify", dst, "--against", src, "--json", "-"])
    assert json.loads(out)["judged"] == {"names": 1, "shapes": 1, "scales": 0, "codes": 1, "values": 1, "blocks": 0, "config": 1}


def test_usage(tessera, model):
    dst, src = model.write()
    for args, words in [((dst,), "--against"), (("--against", src), "no checkpoint given"),
                        ((dst, "--against", src, "--min-sqnr", "high"), "--min-sqnr")]:
        harness.expect(tessera, ["verify", *args], 2, words)
    harness.expect(tessera, ["verify", dst, "--against", src, "--junit", dst / "no" / "such"], 4, "such")
    assert "Examples:" in harness.succeed(tessera, ["verify", "--help"])


def test_nothing_compared_does_not_pass(tessera, tmp_path):
    empty = [write(tmp_path / name, {}) for name in ("a", "b")]
    hollow = [write(tmp_path / name, {"w": np.zeros((0, 4), np.float32)}) for name in ("c", "d")]
    for command in (["diff", *empty], ["verify", empty[0], "--against", empty[1]]):
        harness.expect(tessera, command, 3, "nothing to compare")
    harness.shows(tessera, ["verify", hollow[0], "--against", hollow[1]], 1, "no value was compared")
    code, out, _ = harness.run(tessera, ["diff", *hollow])
    assert code == 0 and "there was no value to compare" in out and "same values" not in out
