"""Tests compare-schemes: cells against float64, the ranking, the sample, and equal results for any number of threads."""

import json
import shutil

from checkpoints import BF16, make, random_weight
import fp8_oracle
import harness
import importance_files
from int_oracle import DOWN, NORM, UP, quantized
import mx_oracle
import numpy as np
import pytest
import safetensors

pytestmark = pytest.mark.in_turn

GATE, TAILS = "model.layers.0.mlp.gate_proj.weight", "model.layers.1.mlp.gate_proj.weight"
EXPERTS = "model.layers.0.mlp.experts.down_proj"
INT4 = [f"int4, groups of {n}{zero}{best}" for zero in ("", ", zero points") for best in ("", ", best") for n in (32, 64, 128)]
SMALL = ["nvfp4-weight-only", "nvfp4-weight-only, four-six", "nvfp4-weight-only, best", "mxfp4-weight-only", "mxfp4-weight-only, best", "mxfp8"]
BY_ROWS = {"fp8-channel", "fp8-tensor", "int8-channel", "int8-weight-only", "int8, groups of 128", *INT4, "int4-channel", *SMALL}
STRIP = 128  # rows that share NVFP4's global scale, or the scale of fp8-tensor, while they are measured


@pytest.fixture
def source(tmp_path):
    tensors = {UP: random_weight((256, 384), 1), GATE: random_weight((256, 384), 2), DOWN: random_weight((200, 320), 3),
               TAILS: random_weight((130, 256), 4) ** 3}
    src = make(tmp_path / "src", {"model.safetensors": {**{n: w.astype(BF16) for n, w in tensors.items()},
                                                        NORM: np.ones(8, BF16)}}, quantization=None)
    return src, {n: w.astype(BF16) for n, w in tensors.items()}


def compare(tessera, src, path, *options):
    out = harness.succeed(tessera, ["compare-schemes", src, "--json", path, *options])
    return json.loads(path.read_text()), out


def values(w, scheme):
    if scheme.startswith("fp8-block"):
        codes, scales = fp8_oracle.quantize(w, "ue8m0" in scheme)
        return fp8_oracle.dequantize(codes, scales)
    if scheme == "fp8-channel":
        codes, scales = fp8_oracle.quantize_rows(w)
        return codes.astype(np.float64) * scales
    if scheme == "fp8-tensor":
        made = [fp8_oracle.quantize_tensor(w[i:i + STRIP]) for i in range(0, len(w), STRIP)]
        return np.concatenate([codes.astype(np.float64) * scale for codes, scale in made])
    if scheme.startswith(("nvfp4", "mxfp")):
        strips = [w[i:i + STRIP] for i in range(0, len(w), STRIP)]
        made = [mx_oracle.expected({"x": strip}, scheme, "compressed-tensors") for strip in strips]
        return np.concatenate([mx_oracle.decoded(m, "x", scheme, "compressed-tensors") for m in made])
    bits = 4 if "int4" in scheme else 8
    group = int(scheme.split("groups of ")[1].split(",")[0]) if "groups" in scheme else 0
    codes, scale, zero = quantized(w, bits, group, "zero points" in scheme, dtype=np.float32 if scheme == "int8-channel" else BF16)
    split = codes.reshape(*scale.shape, -1).astype(np.float64)
    return ((split - zero[..., None]) * scale[..., None]).reshape(w.shape)


def test_every_cell(tmp_path, tessera, source):
    src, tensors = source
    got, out = compare(tessera, src, tmp_path / "c.json")
    assert [s["scheme"] for s in got["schemes"]] == [
        "fp8-block", "fp8-block, ue8m0", "fp8-block, mse", "fp8-channel", "fp8-tensor", "int8-channel", "int8-weight-only",
        "int8, groups of 128", *INT4, "int4-channel", *SMALL]
    sums = {}
    for row in got["tensors"]:
        x = tensors[row["name"]].astype(np.float64)
        for cell in row["schemes"]:
            name = cell["scheme"]
            if name.endswith(("mse", "best", "four-six")):
                plain = next(c for c in row["schemes"] if c["scheme"] == name.rpartition(", ")[0])
                assert cell["relative_error"] <= plain["relative_error"] and cell["bytes"] == plain["bytes"]
                continue
            error = x - values(tensors[row["name"]], name)
            assert cell["relative_error"] == pytest.approx(np.sqrt((error**2).sum() / (x**2).sum()), rel=1e-4), (row["name"], name)
            assert cell["max_abs_error"] == pytest.approx(np.abs(error).max(), rel=1e-4)
            totals = sums.setdefault(name, [0, 0])
            totals[0] += (error**2).sum()
            totals[1] += (x**2).sum()
    for s in got["schemes"]:
        blocks = [c["worst_block_error"] for t in got["tensors"] for c in t["schemes"] if c["scheme"] == s["scheme"]]
        assert s["worst_block_error"] == max(blocks) > 0
        if s["scheme"] in sums:
            e2, x2 = sums[s["scheme"]]
            assert s["sqnr_db"] == pytest.approx(10 * np.log10(x2 / e2), abs=1e-3)
        assert f"{s['sqnr_db']:.2f}" in out
        cells = [(c["relative_error"], t["name"]) for t in got["tensors"] for c in t["schemes"] if c["scheme"] == s["scheme"]]
        assert s["worst"] == [n for _, n in sorted(cells, reverse=True)][:3]
        assert s["ratio_to_bf16"] == pytest.approx(s["bytes"] / got["bytes"], rel=1e-12)


def test_bytes_are_those_of_a_checkpoint(tmp_path, tessera, source, quantize):
    src, tensors = source
    shutil.rmtree(src)
    tensors[EXPERTS] = random_weight((3, 64, 128), 5).astype(BF16)
    make(src, {"model.safetensors": {**tensors, NORM: np.ones(8, BF16)}}, quantization=None)
    got, _ = compare(tessera, src, tmp_path / "c.json")
    plain = sum(w.nbytes for w in tensors.values())
    assert got["bytes"] == plain
    for s in got["schemes"]:
        left = [t["name"] for t in got["tensors"] if s["scheme"] not in {c["scheme"] for c in t["schemes"]}]
        ragged = [DOWN] if "groups of 128" in s["scheme"] else []  # 320 columns
        assert left == ragged and s["not_taken"] == len(left), s["scheme"]  # the stack is taken apart where it must be
        dst = quantize(src, *s["options"].split(), *(o for n in ragged for o in ("--exclude", n)))
        stored = sum(len(e["data"]) for n, e in safetensors.deserialize((dst / "model.safetensors").read_bytes())
                     if n != NORM and not n.endswith("_shape"))
        assert s["bytes"] == stored, s["scheme"]


def test_threads_and_instruction_sets_agree(tmp_path, tessera, source):
    _, table = compare(tessera, source[0], tmp_path / "a.json")
    for i, options in enumerate((("--threads", "1"), ("--threads", "4"), ("--cpumask", "0"))):
        assert compare(tessera, source[0], tmp_path / f"{i}.json", *options)[1] == table
        assert (tmp_path / f"{i}.json").read_bytes() == (tmp_path / "a.json").read_bytes()


def test_a_sample(tmp_path, tessera, source):
    names = lambda *o: [t["name"] for t in compare(tessera, source[0], tmp_path / "s.json", *o)[0]["tensors"]]
    assert len(names("--sample", "2")) == 2 and names("--sample", "2") == names("--sample", "2")
    assert len({tuple(names("--sample", "1", "--seed", str(s))) for s in range(40)}) == 4
    assert names("--tensors", "*.up_proj.*") == [UP]
    assert len(names("--sample", "99")) == 4


def test_a_stack_in_f32(tmp_path, tessera):
    """Block FP8 quantizes the stack. The other schemes separate its experts, so their rows are consecutive."""
    w = random_weight((3, 200, 96), 7)
    src = make(tmp_path / "src", {"model.safetensors": {EXPERTS: w}}, quantization=None)
    got, out = compare(tessera, src, tmp_path / "c.json")
    cells = {c["scheme"]: c for c in got["tensors"][0]["schemes"]}
    left = {s for s in BY_ROWS if "groups of 64" in s or "groups of 128" in s}  # 96 columns
    assert cells.keys() == {s["scheme"] for s in got["schemes"]} - left
    for scheme in cells.keys() - {"fp8-block, mse", "fp8-tensor", "nvfp4-weight-only"}:  # those of one scale have that of a strip
        if scheme.endswith(("best", "four-six")):
            continue
        x = w if scheme.startswith("fp8-block") else w.reshape(-1, 96)
        error = x.astype(np.float64) - values(x, scheme)
        expected = np.sqrt((error**2).sum() / (w.astype(np.float64) ** 2).sum())
        assert cells[scheme]["relative_error"] == pytest.approx(expected, rel=1e-4), scheme
    for s in got["schemes"]:
        if s["scheme"] in left:
            assert (s["not_taken"], s["worst"], s["ratio_to_bf16"], s["bytes"]) == (1, [], 2, w.nbytes)
            assert "sqnr_db" not in s and "inf" not in out
        elif s["scheme"].startswith("fp8-block"):
            assert s["ratio_to_bf16"] == pytest.approx((w.size + 3 * 2 * 4) / (2 * w.size))


def test_what_is_suggested_is_the_best_of_the_table(tmp_path, tessera, source):
    """The suggestion has the highest measured SQNR. Outliers reverse the order of the 8-bit schemes."""
    got, out = compare(tessera, source[0], tmp_path / "c.json", "--tensors", UP)
    sqnr = {s["scheme"]: s["sqnr_db"] for s in got["schemes"]}
    w8a8 = {name: db for name, db in sqnr.items() if name.startswith(("fp8", "mxfp8", "int8-channel"))}
    w4 = {name: db for name, db in sqnr.items() if "int4" in name or "fp4" in name}
    best = {"any": max(sqnr, key=sqnr.get), "w8a8": max(w8a8, key=w8a8.get), "w4a16": max(w4, key=w4.get)}
    assert got["suggested"] == best and best["any"] == "int8, groups of 128"
    options = {s["scheme"]: s["options"] for s in got["schemes"]}
    lines = out[out.index("next:"):].splitlines()
    assert len(lines) == 3
    for line, scheme in zip(lines, best.values()):
        assert f"{source[0]} -o DST {options[scheme]} " in line and f"{sqnr[scheme]:.2f} dB" in line
    tails = {name: (random_weight((256, 256), 5) / 50).astype(BF16) for name in (UP, GATE)}
    for w in tails.values():
        w[:, 0] = 30
    src = make(tmp_path / "tails", {"model.safetensors": tails}, quantization=None)
    assert compare(tessera, src, tmp_path / "t.json")[0]["suggested"]["any"] == "mxfp8"


def test_the_best_rows_are_those_of_quantize(tmp_path, tessera, source, quantize):
    """Tests with and without importance. The suggestion has the highest weighted SQNR."""
    src, tensors = source
    rng = np.random.default_rng(1)
    path = importance_files.as_json(tmp_path / "i.json", {n.removesuffix(".weight"): rng.exponential(1, w.shape[1]) ** 4
                                                           for n, w in tensors.items()})
    for words in ((), ("--importance", path)):
        got, out = compare(tessera, src, tmp_path / "c.json", *words)
        assert ("weighted" in out) == bool(words)
        for s in got["schemes"]:
            if not s["scheme"].startswith(("int4, groups of 32", "mx")) or not s["scheme"].endswith("best"):
                continue
            report = json.loads((quantize(src, *s["options"].split(), *words) / "quantization_report.json").read_text())
            assert s["sqnr_db"] == pytest.approx(report["whole"]["sqnr_db"], abs=1e-6), s["scheme"]
            assert s.get("weighted_sqnr_db") == pytest.approx(report["whole"].get("weighted_sqnr_db"), abs=1e-6)
    weighted = {s["scheme"]: s["weighted_sqnr_db"] for s in got["schemes"] if "int4" in s["scheme"] or "fp4" in s["scheme"]}
    assert got["suggested"]["w4a16"] == max(weighted, key=weighted.get)


def test_experts_that_blocks_do_not_fit(tmp_path, tessera):
    """Experts are 192 wide. Blocks keep all of them, and rows quantize them. A scheme that quantizes fewer tensors is not
    suggested."""
    shapes = {"gate_proj": (192, 256), "up_proj": (192, 256), "down_proj": (256, 192)}
    tensors = {f"model.layers.0.mlp.experts.0.{n}.weight": random_weight(s, 3).astype(BF16) for n, s in shapes.items()}
    tensors["model.layers.0.self_attn.o_proj.weight"] = random_weight((256, 256), 4).astype(BF16)
    src = make(tmp_path / "src", {"model.safetensors": tensors}, quantization=None)
    got, _ = compare(tessera, src, tmp_path / "c.json")
    left = {s["scheme"]: s["not_taken"] for s in got["schemes"]}
    assert left["fp8-block"] == left["fp8-block, mse"] == 3 and left["fp8-channel"] == left["int8-channel"] == 0
    assert left["int4, groups of 128"] == 1 and got["suggested"]["w8a8"] == "int8-channel"


def test_refusals(tmp_path, tessera, source, quantize):
    for src, options, expected, word in [
            (quantize(source[0]), (), 3, "already quantized"),
            (source[0], ("--tensors", "nothing*"), 2, "'nothing*' matches no tensor"),
            (source[0], ("--tensors", "*norm*"), 3, "no tensor to quantize with such a name"),
            (source[0], ("--threads", "0"), 2, "at least 1"),
            (source[0], ("--memory", "10kB"), 4, "one thread needs"),
            (tmp_path / "absent", (), 3, "absent")]:
        harness.expect(tessera, ["compare-schemes", src, *options], expected, word)
    w = np.ones((4, 64), BF16)
    w[2, 17] = np.inf
    bad = make(tmp_path / "bad", {"model.safetensors": {UP: w}}, quantization=None)
    harness.expect(tessera, ["compare-schemes", bad], 3, "Inf at [2, 17]")


def test_what_readers_would_find_infinite_is_not_taken(tmp_path, tessera):
    """The even rule rounds values at the end of BF16's range up to infinity. Other schemes quantize the tensor."""
    w = random_weight((64, 64), 1).astype(BF16)
    w[3, 5] = np.float32(3.38e38)
    src = make(tmp_path / "src", {"model.safetensors": {UP: w}}, quantization=None)
    got, _ = compare(tessera, src, tmp_path / "c.json")
    left = {s["scheme"]: s["not_taken"] for s in got["schemes"]}
    assert left["mxfp4-weight-only"] == left["mxfp8"] == 1 and left["fp8-block"] == left["int8-channel"] == 0
