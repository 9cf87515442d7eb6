"""Tests `tessera report NEW --baseline OLD`: regressions come first in each format, and give exit code 1 beyond the limit."""

import copy
import csv
import json
import re
import xml.etree.ElementTree

import harness
import pytest
import results

WORSE = "model.layers.2.mlp.experts.1.down_proj.weight"


@pytest.fixture
def compare(tessera, tmp_path):
    """Returns compare(old, new, *options) -> (exit code, {form: text}, stdout, stderr) for two documents."""

    def run(old, new, *options):
        paths = [results.write(tmp_path / f"{name}.json", document) for name, document in (("old", old), ("new", new))]
        files = {form: tmp_path / f"out.{form}" for form in ("markdown", "csv", "junit", "json")}
        args = [word for form, path in files.items() for word in (f"--{form}", path)]
        code, out, err = harness.run(tessera, ["report", paths[1], "--baseline", paths[0], *args, *options])
        return code, {form: path.read_text() for form, path in files.items() if path.exists()}, out, err

    return run


def change(document, name, **figures):
    changed = copy.deepcopy(document)
    next(t for t in changed["tensors"] if t["name"] == name).update(figures)
    return changed


@pytest.fixture
def old():
    return results.quantization_report(results.deepseek(3, 2))


def sqnr_of(document, name):
    return next(t["sqnr_db"] for t in document["tensors"] if t["name"] == name)


def test_the_same_again(compare, old):
    code, files, out, _ = compare(old, old)
    assert code == 0 and out.startswith(f"PASS  none of {len(old['tensors']) + 1} got worse by more than 0.1 dB")
    told = json.loads(files["json"])["baseline"]
    assert (told["worse"], told["better"], told["regressions"], told["appeared"], told["disappeared"], told["differences"]) == (0, 0, [], [], [], [])


@pytest.mark.parametrize("loss, options, code", [(0.3, (), 1), (0.09, (), 0), (0.3, ("--max-regression", "0.5dB"), 0),
                                                 (0.3, ("--max-regression", "0.29 dB"), 1), (0.01, ("--max-regression", "0"), 1),
                                                 (-3, (), 0)])
def test_the_limit(loss, options, code, compare, old):
    new = change(old, WORSE, sqnr_db=sqnr_of(old, WORSE) - loss)
    got, files, out, _ = compare(old, new, *options)
    told = json.loads(files["json"])["baseline"]
    assert got == code and out.startswith("FAIL" if code else "PASS")
    assert [r["name"] for r in told["regressions"]] == ([WORSE] if code else [])
    assert told["better"] == (1 if loss < -0.1 else 0)


def test_what_got_worse_comes_first_in_every_form(compare, old):
    new = change(change(old, WORSE, sqnr_db=24.25), "model.layers.0.self_attn.o_proj.weight", worst_block_error=0.054)
    code, files, out, _ = compare(old, new)
    before = sqnr_of(old, WORSE)
    said = re.compile(rf"SQNR 24\.25 dB, {before:.2f} dB before: {before - 24.25:.2f} dB lost")
    head, body = out[:out.index("INFO")], out[out.index("INFO"):]
    assert code == 1 and head.startswith("FAIL  2 of ") and WORSE in head and said.search(" ".join(head.split())) and "lost" not in body
    assert "worst block 0.054, 0.027 before: 6.02 dB lost" in " ".join(out.split())
    first = files["markdown"].split("\n- ")
    assert "### ❌ FAIL" in first[0] and "**What got worse**" in first[0] and WORSE in first[1] and said.search(first[1])
    rows = {row["name"]: row for row in csv.DictReader(files["csv"].splitlines())}
    assert float(rows[WORSE]["loss_db"]) == pytest.approx(before - 24.25)
    assert float(rows["model.layers.1.self_attn.o_proj.weight"]["loss_db"]) == 0
    suite = xml.etree.ElementTree.fromstring(files["junit"].encode())[0]
    assert suite.get("name") == "baseline" and (suite.get("tests"), suite.get("failures")) == ("4", "2")
    failed = {case.get("name"): case.find("failure").text for case in suite.iter("testcase") if case.find("failure") is not None}
    assert failed.keys() == {"model.layers.0", "model.layers.2"} and WORSE in failed["model.layers.2"]
    assert "limit: 0.1 dB" in failed["model.layers.2"]


def test_a_tensor_that_lost_nothing_before(compare, old):
    exact = change(old, WORSE, sqnr_db=None, relative_error=0)
    code, files, out, _ = compare(exact, old)
    assert code == 1 and "nothing lost before" in " ".join(out.split())
    assert compare(old, exact)[0] == 0


def test_the_whole_is_compared(compare, old):
    new = copy.deepcopy(old)
    new["whole"]["sqnr_db"] -= 0.2
    code, files, out, _ = compare(old, new)
    assert code == 1 and "the whole" in out[:out.index("INFO")]
    assert [r["name"] for r in json.loads(files["json"])["baseline"]["regressions"]] == ["the whole"]


def test_a_result_without_rows_is_compared_by_its_whole(compare):
    """A result without rows, such as that of a forward pass, has one case for its regression."""
    run = {"schema": "tessera-quantize/1", "version": "0.1.0", "actions": {"quantize": 3}, "seconds": 2, "relative_error": 0.03, "sqnr_db": 31.5}
    code, files, out, _ = compare(run, {**run, "seconds": 9, "sqnr_db": 31.2})
    assert code == 1 and out.startswith("FAIL  1 of 1 got worse by more than 0.1 dB")
    (suite, _) = xml.etree.ElementTree.fromstring(files["junit"])
    assert [(case.get("name"), case.find("failure") is not None) for case in suite.iter("testcase")] == [("the whole", True)]
    assert json.loads(files["json"])["baseline"]["differences"] == []


def test_wholes_of_different_series_are_not_compared(compare, old):
    """A comparison with codes and one with the original are different series, so their totals are not compared."""
    source = {**old, "whole_against": {**old["whole"], "sqnr_db": 40.0, "relative_error": 0.01}}
    for before, after in ((old, source), (source, old), (source, source)):
        code, files, out, _ = compare(before, after)
        assert code == 0 and json.loads(files["json"])["baseline"]["regressions"] == [], out
    worse = {**source, "whole_against": {**source["whole_against"], "sqnr_db": 39.0}}
    code, files, _, _ = compare(source, worse)
    (regression,) = json.loads(files["json"])["baseline"]["regressions"]
    assert code == 1 and regression["series"] == "against the original" and (regression["before"], regression["now"]) == (40.0, 39.0)


def test_what_came_what_went_and_what_differs_is_said(compare, old):
    new = copy.deepcopy(old)
    gone = new["tensors"].pop(4)["name"]
    new["tensors"].append(results.row("model.layers.9.q_proj.weight", 31.5))
    new["kept"] = [{"name": gone, "reason": "--exclude"}]
    new |= {"version": "9.9", "command": "quantize --scheme fp8-channel", "scheme": "fp8-channel"}
    code, files, out, _ = compare(old, new)
    told = json.loads(files["json"])["baseline"]
    assert code == 0
    assert [r["name"] for r in told["disappeared"]] == [gone]
    assert {(r["name"], r["series"]) for r in told["appeared"]} == {("model.layers.9.q_proj.weight", ""), (gone, "kept")}
    assert {d["name"]: (d["before"], d["now"]) for d in told["differences"]} == {
        "Tessera": ("0.1.0", "9.9"), "command": ("quantize --scheme fp8-block", "quantize --scheme fp8-channel"), "scheme": (None, "fp8-channel")}
    for text in (" ".join(out.split()), files["markdown"]):
        assert gone in text and "model.layers.9.q_proj.weight" in text and "9.9" in text and "fp8-channel" in text
    rows = list(csv.DictReader(files["csv"].splitlines()))
    assert [row["name"] for row in rows if row["outcome"] == "disappeared"] == [gone]


def test_kernels_pass_and_fail(compare):
    def document(passed, sqnr):
        judged = {"subject": "w", "kind": "kernel", "what": "reference", "passed": passed, "fault": None if passed else "1.2 of the bound",
                  "sqnr_db": sqnr, "relative_error": 1e-5}
        return {"schema": "tessera-verify-kernels/1", "version": "1", "check": "gemm", "passed": passed, "limits": {"max_kernel_error": 1},
                "judgements": [judged, {**judged, "kind": "quantization", "what": "weights", "passed": True, "fault": None, "sqnr_db": 31}],
                "skipped": []}

    # Errors of kernels have bounds of their own: a few dB say nothing while they pass.
    assert compare(document(True, 100), document(True, 90))[0] == 0
    code, _, out, _ = compare(document(True, 100), document(False, 60))
    assert code == 1 and "passed before and fails now" in " ".join(out.split())
    code, _, out, _ = compare(document(False, 60), document(False, 60))
    assert code == 1 and "1 finding; none of 2 got worse" in " ".join(out.split())


def test_what_cannot_be_compared(compare, old, tessera, tmp_path):
    other = {"schema": "tessera-quantize/1", "version": "1", "actions": {}}
    code, files, out, err = compare(other, old)
    assert (code, out) == (3, "") and "only results of the same command" in err
    assert json.loads(files["json"])["error"]["code"] == 3 and 'errors="1"' in files["junit"] and files.keys() == {"json", "junit"}
    code, files, out, err = compare(results.quantization_report([results.row("x", 30)], whole={}), old)
    assert code == 3 and "no figure in common" in err
    new = results.write(tmp_path / "new.json", old)
    for words, said in ((["--baseline", new, new], "--baseline"), (["--max-regression", "1"], "--baseline OLD.json"),
                        (["--baseline", new, "--max-regression", "much"], "'much' is not a number of dB"),
                        (["--baseline", new, "--max-regression", "-1"], "--max-regression"), (["--baseline", new, "--csv", new], "is a file of")):
        harness.expect(tessera, ["report", new, *words], 2, said)
