"""Tests the limits --min-sqnr, --max-worst-block and --max-saturated of `quantize` and `convert --to`.

A tensor beyond a limit is named with its figures, the exit code is 1, and the output is complete. The same command on
the finished output gives the same verdict."""

import json
import xml.etree.ElementTree

import harness
import numpy as np
import pytest
from checkpoints import BF16, save

REPORT = "quantization_report.json"
LOW = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def source(tmp_path):
    """Makes three layers. One has a tensor with a larger error, because of an outlier in a block."""
    rng = np.random.default_rng(17)
    names = [f"model.layers.{i}.mlp.{m}_proj.weight" for i in range(3) for m in ("gate", "up", "down")]
    tensors = {name: (rng.standard_normal((256, 256)) / 50).astype(BF16) for name in names}
    tensors[LOW] = (rng.standard_normal((256, 256)) ** 9 / 5000).astype(BF16)
    tensors |= {"model.embed_tokens.weight": np.ones((8, 256), BF16), "model.norm.weight": np.ones(256, BF16)}
    return save(tmp_path / "src", tensors, {"model_type": "llama"})


@pytest.fixture
def run(tessera, tmp_path):
    """Returns run(command, src, dst, *options) -> (exit code, the JSON, the failures of JUnit by class, stdout)."""

    def run(command, src, dst, *options):
        told, junit = tmp_path / "told.json", tmp_path / "told.xml"
        code, out, err = harness.run(tessera, [command, src, "-o", dst, "--json", told, "--junit", junit, *options])
        assert code in (0, 1) and err == "", err
        failed = [(case.get("classname").split(".")[1], case.findtext("failure")) for case in
                  xml.etree.ElementTree.parse(junit).iter("testcase") if case.find("failure") is not None]
        return code, json.loads(told.read_text()), failed, out

    return run


def figures(dst):
    """Returns {tensor: its row in the report}."""
    return {row["name"]: row for row in json.loads((dst / REPORT).read_text())["tensors"]}


def test_without_limits_there_is_no_verdict(source, run, tmp_path):
    code, told, failed, out = run("quantize", source, tmp_path / "out")
    assert code == 0 and not {"passed", "limits", "judged", "findings"} & told.keys() and not failed and "limits:" not in out


@pytest.mark.parametrize("option, check, key, figure", [
    ("--min-sqnr", "sqnr", "min_sqnr_db", "sqnr_db"), ("--max-worst-block", "worst_block", "max_worst_block_error", "worst_block_error"),
    ("--max-saturated", "saturated", "max_saturated", "saturated")])
@pytest.mark.parametrize("command, options", [("quantize", ("--scheme", "int8-channel", "--scales", "mse")),
                                              ("convert", ("--to", "int8-channel", "--scales", "mse"))], ids=["quantize", "convert"])
def test_a_limit(command, options, option, check, key, figure, source, run, quantize, tmp_path):
    """A limit between the figures of two tensors fails only one of them. A limit equal to a figure passes."""
    dst, fresh = tmp_path / "out", tmp_path / "fresh"
    source = source if command == "quantize" else quantize(source)
    run(command, source, dst, *options)
    rows = figures(dst)
    values = sorted({row[figure] for row in rows.values()})
    assert len(values) > 2
    limit = values[len(values) // 2]
    beyond = {name for name, row in rows.items() if (row[figure] < limit if option == "--min-sqnr" else row[figure] > limit)}
    assert 0 < len(beyond) < len(rows)
    code, told, failed, out = run(command, source, fresh, *options, option, limit)
    assert code == 1 and not told["passed"] and told["limits"] == {key: pytest.approx(limit)} and told["judged"] == {check: len(rows)}
    assert {f["where"] for f in told["findings"]} == beyond and {f["check"] for f in told["findings"]} == {check}
    assert {c for c, _ in failed} == {check}
    for name in beyond:
        assert f"      {name}: " in out and any(name in text and f"limits: {key}" in text for _, text in failed)
    assert out.splitlines()[-1].startswith("FAIL  limits: " + option)
    assert not any(words in out for words in ("serve it", "next:")) and not any("command" in way for way in told.get("serve", ()))
    # The output is whole, and no other than without a limit.
    assert harness.tree_difference(dst, fresh) is None
    # On the finished output, which keeps its bytes, the verdict is the same, and another limit gives another.
    again, same, _, _ = run(command, source, fresh, *options, option, limit)
    assert again == 1 and same["findings"] == told["findings"]
    loose = values[0] if option == "--min-sqnr" else values[-1]
    code, told, failed, out = run(command, source, fresh, *options, option, loose)
    assert code == 0 and told["passed"] and told["findings"] == [] and not failed and f"all {len(rows)} tensors are within them\n" in out
    assert harness.tree_difference(dst, fresh) is None


def test_an_outlier_is_named_by_its_block(source, run, tmp_path):
    code, told, failed, out = run("quantize", source, tmp_path / "out", "--scheme", "int4-weight-only", "--max-worst-block", "0.5")
    (finding,) = told["findings"]
    row = figures(tmp_path / "out")[LOW]
    assert code == 1 and finding["where"] == LOW and f"the block at {row['worst_block_at']}" in finding["what"] and finding["what"] in out


def test_tessera_report_reads_the_verdict(source, run, tessera, tmp_path):
    run("quantize", source, tmp_path / "out", "--min-sqnr", "90", "--max-saturated", "0")
    code, out, _ = harness.run(tessera, ["report", tmp_path / "told.json"])
    assert code == 1 and out.startswith("FAIL") and "FAIL  sqnr " in out and "PASS  saturated" in out and LOW in out


def test_a_limit_where_nothing_is_quantized(source, tessera, tmp_path):
    for options in (("--to", "tp", "--tp", "2"), ("--to", "archive")):
        code, _, err = harness.run(tessera, ["convert", source, "-o", tmp_path / "out", *options, "--min-sqnr", "3"])
        assert code == 2 and "--min-sqnr has no effect" in err and not (tmp_path / "out").exists()
    for words in (["--min-sqnr", "high"], ["--max-worst-block", "-1"], ["--max-saturated", "1.5"]):
        harness.expect(tessera, ["quantize", source, "-o", tmp_path / "out", *words], 2, words[0])


def test_against_the_original(source, run, convert, tmp_path, quantize):
    """convert --against also judges the error from the original."""
    fp8 = quantize(source)
    options = ("--to", "fp8-block", "--block", "64x64", "--against", source, "--min-sqnr", "90")
    code, told, _, _ = run("convert", fp8, tmp_path / "out", *options)
    assert code == 1 and any(f["what"].startswith("against the original: SQNR") for f in told["findings"])
