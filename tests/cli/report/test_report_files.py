"""Tests the files of `tessera report` (--markdown, --csv, --junit, --json): equal findings, valid syntax, untrusted names."""

import csv
import json
import pathlib
import re
import shutil
import subprocess
import xml.etree.ElementTree

import harness
import pytest
import results

SCHEMA = pathlib.Path(__file__).parents[2] / "common/junit.xsd"
FORMS = ("markdown", "csv", "junit", "json")


@pytest.fixture
def report(tessera, tmp_path):
    """Returns report(*results) -> (exit code, {form: text}, terminal text)."""

    def run(*paths, options=()):
        files = {form: tmp_path / f"out.{form}" for form in FORMS}
        args = [word for form in FORMS for word in (f"--{form}", files[form])]
        code, out, err = harness.run(tessera, ["report", *paths, *args, *options])
        assert code in (0, 1) and err == "", err
        return code, {form: path.read_bytes().decode() for form, path in files.items()}, out

    return run


def table(text):
    """Returns the rows of a CSV as dicts. Checks the number of columns and the line ends of RFC 4180."""
    assert text.endswith("\r\n") and "\n" not in text.replace("\r\n", "")
    rows = list(csv.reader(text.splitlines(keepends=True), strict=True))
    assert len({len(row) for row in rows}) == 1
    return [dict(zip(rows[0], row)) for row in rows[1:]]


def suites(text):
    """Returns the suites of a JUnit file. Checks its sums, and the file against the schema."""
    root = xml.etree.ElementTree.fromstring(text.encode())
    if shutil.which("xmllint"):
        done = subprocess.run(["xmllint", "--noout", "--nonet", "--schema", SCHEMA, "-"], input=text.encode(), capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
    assert root.tag == "testsuites" and {child.tag for child in root} == {"testsuite"}
    for suite in root:
        cases = suite.findall("testcase")
        assert int(suite.get("tests")) == len(cases) > 0
        for key, tag in (("failures", "failure"), ("skipped", "skipped"), ("errors", "error")):
            assert int(suite.get(key)) == len([c for c in cases if c.find(tag) is not None])
        assert len({(c.get("classname"), c.get("name")) for c in cases}) == len(cases)
    assert int(root.get("tests")) == sum(int(s.get("tests")) for s in root)
    assert int(root.get("failures")) == sum(int(s.get("failures")) for s in root)
    return list(root)


def test_schema_rejects_invalid_junit(made, report):
    if not shutil.which("xmllint"):
        pytest.skip("no xmllint (libxml2-utils)")
    text = report(made["verify"][0])[1]["junit"]
    for old, new in (('tests="', 'test="'), ("<testcase ", "<case "), (' time="0', ' time="-1'), ("</testsuite>", "<x/></testsuite>")):
        assert old in text
        done = subprocess.run(["xmllint", "--noout", "--schema", SCHEMA, "-"], input=text.replace(old, new).encode(), capture_output=True)
        assert done.returncode != 0, new


@pytest.mark.parametrize("name", ["report", *results.COMMANDS])
def test_every_result_in_every_form(name, made, report):
    path, code = made[name]
    result = json.loads(path.read_text())
    got, files, _ = report(path)
    assert got == code
    verdict = json.loads(files["json"])["verdict"]
    assert verdict == ("failed" if code else "passed" if "passed" in result or name.startswith(("inspect", "diff")) and
                       name != "inspect-tensor" else None)
    assert files["markdown"].splitlines()[0].startswith({"failed": "### ❌ FAIL", "passed": "### ✅ PASS", None: "### ℹ️ INFO"}[verdict])
    assert len(files["markdown"]) < 65536 and files["markdown"].count("<details>") == files["markdown"].count("</details>") == 1
    (suite,) = suites(files["junit"])
    assert (int(suite.get("failures")) > 0) == (code == 1)
    if verdict is None:  # nothing was judged: not a case that passed
        assert suite.get("skipped") == suite.get("tests")
    rows = table(files["csv"])
    named = {t["name"] for t in result.get("tensors", []) if isinstance(t, dict)} if isinstance(result.get("tensors"), list) else set()
    assert named <= {row["name"] for row in rows}


def test_figures_of_csv_are_the_results(made, report):
    result = json.loads(made["report"][0].read_text())
    rows = {row["name"]: row for row in table(report(made["report"][0])[1]["csv"]) if row["series"] == ""}
    assert rows.keys() == {t["name"] for t in result["tensors"]}
    for t in result["tensors"]:
        row = rows[t["name"]]
        for key in ("sqnr_db", "relative_error", "worst_block_error", "amax", "saturated", "elements", "scale_median"):
            assert float(row[key] or "nan") == pytest.approx(t[key], rel=1e-8), key
        assert json.loads(row["worst_block_at"]) == t["worst_block_at"] and json.loads(row["shape"]) == t["shape"]
    row = rows["model.layers.1.mlp.experts.3.down_proj.weight"]
    assert (row["layer"], row["module"], row["expert"]) == ("1", "experts.down_proj", "3")


def test_judgements_are_cases(made, report):
    result = json.loads(made["gemm"][0].read_text())
    (suite,) = suites(report(made["gemm"][0])[1]["junit"])
    assert {c.get("name") for c in suite.iter("testcase")} == {f"{j['subject']}: {j['what']}" for j in result["judgements"]}
    timed = [float(c.get("time")) for c in suite.iter("testcase")]
    assert sum(timed) == pytest.approx(sum(j.get("kernel_seconds", 0) for j in result["judgements"]), abs=1e-4)
    assert float(suite.get("time")) == pytest.approx(result["seconds"], abs=1e-5)


def test_layers_have_their_time(made, report):
    """The time of reading a layer is the time of its case `values`, and of no other case."""
    result = json.loads(made["verify"][0].read_text())
    (suite,) = suites(report(made["verify"][0])[1]["junit"])
    stated = {"outside of layers": 0.0}
    for tensor in result["tensors"]:
        layer = re.match(r"model\.layers\.\d+", tensor["name"])
        where = layer.group() if layer else "outside of layers"
        stated[where] = stated.get(where, 0) + tensor["seconds"]
    found = {c.get("name"): float(c.get("time")) for c in suite.iter("testcase") if c.get("classname") == "verify weights.values"}
    assert found == {where: pytest.approx(seconds, abs=1e-5) for where, seconds in stated.items()} and min(found.values()) > 0
    assert all(float(c.get("time")) == 0 for c in suite.iter("testcase") if c.get("classname") != "verify weights.values")
    # The sum is over all threads, so it may exceed the seconds of the run.
    assert sum(found.values()) < 64 * result["seconds"]


# ---- faults ----


@pytest.fixture(scope="session")
def faulty(tessera, tmp_path_factory):
    """Returns {fault: (path of the result, tensor, words of its finding)} for a transposed grid, a wrong code, a missing scale."""
    folder = tmp_path_factory.mktemp("faulty")
    made, where = results.write_faulty(folder)
    found = {"made": made}
    for fault, words in (("transposed", "grid is stored transposed"), ("code", "not the nearest"), ("missing", "without a scale")):
        path = folder / f"{fault}.json"
        # verify refuses a weight without its scale, because its values are unknown; inspect describes it.
        args = ["inspect", made[fault]] if fault == "missing" else ["verify", made[fault], "--against", made["source"]]
        harness.expect(tessera, [*args, "--json", path], 1)
        found[fault] = path, where[fault], words
    return found


@pytest.mark.parametrize("fault", ["transposed", "code", "missing"])
def test_a_planted_fault_is_named_in_every_form(fault, faulty, made, report):
    path, tensor, words = faulty[fault]
    code, files, out = report(made["verify"][0], path)
    assert code == 1
    flat = " ".join(out.split())
    assert out.startswith("FAIL  1 of 2 results failed") and tensor in flat and words in flat
    first, _, details = files["markdown"].partition("<details>")
    assert "FAIL" in first.splitlines()[0] and f"`{tensor}`" in first and words in first
    failed = [row for row in table(files["csv"]) if row["outcome"] == "failed"]
    assert {row["name"] for row in failed} == {tensor} and all(words in " ".join(r["findings"] for r in failed) for _ in failed)
    sound, broken = suites(files["junit"])
    assert sound.get("failures") == "0" and int(broken.get("failures")) > 0
    texts = [case.find("failure").text for case in broken.iter("testcase") if case.find("failure") is not None]
    assert all(tensor in text for text in texts) and any(words in text for text in texts)
    findings = json.loads(files["json"])["results"][1]["findings"]
    assert any(f["where"] == tensor and words in f["what"] for f in findings)
    if fault != "missing":  # tensor, block, figure and limit
        values = next(t for t in texts if "SQNR" in t)
        assert re.search(r"SQNR [0-9.]+ dB", values) and "worst block" in values and "limits: min_sqnr_db 30" in values
        layer = tensor.split(".mlp")[0]
        failing = {c.get("name") for c in broken.iter("testcase") if c.find("failure") is not None}
        passing = {c.get("name") for c in broken.iter("testcase") if c.get("classname").endswith(".values")} - failing
        assert failing == {layer} and len(passing) == 3


def test_a_block_of_nan_is_the_worst(tmp_path, tessera, faulty, report):
    """Its error exceeds every number, so it is first in the list of worst blocks."""
    damaged, name = tmp_path / "damaged", faulty["code"][1]
    shutil.copytree(faulty["made"]["code"], damaged)
    (shard,) = [p for p in damaged.glob("*.safetensors") if name in harness.read_header(p)[1]]
    start, entries, _ = harness.read_header(shard)
    with open(shard, "r+b") as f:
        f.seek(start + entries[name]["data_offsets"][0])
        f.write(b"\x7f")  # NaN in e4m3
    harness.expect(tessera, ["verify", damaged, "--against", faulty["made"]["source"], "--json", tmp_path / "v.json"], 1)
    _, files, out = report(tmp_path / "v.json")
    assert re.search(rf"worst blocks\n +lost +lost +{re.escape(name)}\n", out), out
    assert re.search(rf"worst block[^\n]*\n[^\n]*\n\| `{re.escape(name)}` \| all lost \| all lost \|", files["markdown"])


# Options for a faulty checkpoint, and a valid one; the fault; the text of the failed or passed case.
ASKED = [("diff SOURCE TRANSPOSED --tolerance 0.05", "transposed", "tolerance"), ("diff SOURCE CODE --tolerance 2", None, "tolerance"),
         ("inspect MISSING --can-load vllm --tp 1", "missing", "without a scale"), ("inspect CODE --can-load vllm,sglang --tp 1,2", "", "cannot load it"),
         ("compare-schemes SOURCE --sample 2", None, "nothing was judged"), ("plan-schemes SOURCE --bits 8.5", None, "budget"),
         ("inspect SOURCE:NAME", None, "nothing was judged")]


@pytest.mark.parametrize("asked, fault, words", ASKED)
def test_junit_equals_that_of_report(asked, fault, words, faulty, tessera, report, tmp_path):
    """--junit of diff, inspect, compare-schemes and plan-schemes equals that of `tessera report`; a planted fault names its tensor."""
    paths = {name.upper(): str(path) for name, path in faulty["made"].items()}
    paths["SOURCE:NAME"] = f"{paths['SOURCE']}:{faulty['code'][1]}"
    json_file, junit = tmp_path / "result.json", tmp_path / "result.xml"
    words_of = [paths.get(word, word) for word in asked.split()]
    code, out, err = harness.run(tessera, [*words_of, "--json", json_file, "--junit", junit, "--quiet"])
    assert (code, out) == (0 if fault is None else 1, ""), err
    assert junit.read_text() == report(json_file)[1]["junit"]
    (suite,) = suites(junit.read_text())
    failures = [case.find("failure") for case in suite.iter("testcase") if case.find("failure") is not None]
    assert bool(failures) == (fault is not None) and words in junit.read_text()
    if fault:
        assert any(faulty[fault][1] in failure.text and words in failure.text + failure.get("type") for failure in failures)
    alone, out, _ = harness.run(tessera, [*words_of, "--junit", "-"])
    assert alone == code and suites(out)[0].get("tests") == suite.get("tests")


EVIL = "x\nPASS\x1b[2J\u202e<b>&\"'|`@team #1 [a](b)\r,;"


def test_untrusted_names(report, tmp_path):
    rows = [results.row(name, 20 + i) for i, name in enumerate([EVIL, "=1+1", "+a", "-b", "@c", "model.layers.0.q.weight"])]
    code, files, out = report(results.write(tmp_path / "r.json", results.quantization_report(rows)))
    assert code == 0
    for text in (*files.values(), out):
        assert not re.search("[\x00-\x09\x0b\x0c\x0e-\x1f\u202e]", text)
    names = [row["name"] for row in table(files["csv"])]
    assert names[1:5] == ["'=1+1", "'+a", "'-b", "'@c"] and "\\n" in names[0]
    suites(files["junit"])
    lines = [line for line in files["markdown"].splitlines() if "PASS\\x1b" in line]
    assert lines
    for line in lines:  # in a code span with a longer fence, in one line, and no cell more
        assert "`` x\\nPASS" in line and len(re.findall(r"(?<!\\)\|", line)) in (4, 7), line


def test_untrusted_names_in_reasons(report, tessera, tmp_path):
    """Reasons, error messages and names of baselines are escaped and stay in one line."""
    parts = {"schema": "tessera-verify-all/1", "version": EVIL, "kinds": {"gemm": {"status": "not applicable", "reason": EVIL + " www.evil.example"}}}
    ended = {"schema": "tessera-verify/1", "version": "1", "error": {"code": 3, "message": EVIL}}
    rows = results.write(tmp_path / "x<b>@team|[a](b).json", results.quantization_report([results.row("a.weight", 30)]))
    for paths, options in (([parts], ()), ([ended], ()), ([parts, ended], ()), ([rows], ("--baseline", rows))):
        paths = [p if p is rows else results.write(tmp_path / f"{i}.json", p) for i, p in enumerate(paths)]
        _, files, out = report(*paths, options=options)
        for text in (*files.values(), out):
            assert not re.search("[\x00-\x09\x0b\x0c\x0e-\x1f\u202e]", text) and not re.search("^PASS.*2J", text, re.M)
        markdown = re.sub(r"(`+)[^`].*?\1|<summary>.*?</summary>", "", files["markdown"])  # without code and HTML
        assert "<b>" not in markdown and "@team" not in markdown and "[a](b)" not in markdown and "www.evil" not in markdown
        lines = [line for line in markdown.splitlines() if line.startswith("|") and "PASS" in line]
        assert all(len(re.findall(r"(?<!\\)\|", line)) in (4, 8) for line in lines), lines
        suites(files["junit"])


def test_a_checkpoint_forges_no_line(tessera, report, tmp_path):
    """A name with a line break and HTML is escaped from the checkpoint to the comment of a pull request."""
    name = "model.layers.0.mlp.x\nPASS  names\x1b[2J|<img src=//e>.up_proj.weight"
    src, dst, result = tmp_path / "src", tmp_path / "dst", tmp_path / "all.json"
    src.mkdir()
    harness.write_safetensors(src / "model.safetensors", {name: ("BF16", (128, 128), b"\x80\x3f\x90\x3f" * 8192)})
    (src / "config.json").write_text('{"model_type": "llama", "hidden_size": 128, "num_hidden_layers": 1}')
    harness.succeed(tessera, ["quantize", src, "-o", dst, "--quiet"])
    words = ["verify", "all", dst, "--against", src, "--device", "cpu", "--skip", "forward", "--quiet", "--json", result]
    assert harness.run(tessera, words)[0] in (0, 1)
    diff = tmp_path / "diff.json"
    assert harness.run(tessera, ["diff", src, dst, "--tolerance", "1e-9", "--quiet", "--json", diff, "--junit", tmp_path / "d.xml"])[0] == 1
    _, files, _ = report(result, diff)
    assert "\\x1b" in files["markdown"] and "<img" not in re.sub(r"`.*?`", "", files["markdown"])
    for text in (*files.values(), (tmp_path / "d.xml").read_text()):
        assert "\x1b" not in text and not re.search("^PASS", text, re.M)


def test_markdown_fits_in_a_comment(made, tessera, tmp_path):
    """Markdown has fewer than 65536 characters for any number of results and any length of names."""
    long = results.write(tmp_path / "long.json", results.quantization_report([results.row(f"{i}." + "x" * 20000, 30) for i in range(40)]))
    for paths in ([long], ([path for path, _ in made.values()] * 3)[:64], [long] * 64):
        code, out, err = harness.run(tessera, ["report", *paths, "--markdown", "-"])
        assert code in (0, 1) and err == "" and len(out) < 65536
        assert out.count("<details>") == out.count("</details>") > 0
        assert ("are omitted" in out) == (out.count("<details>") < len(paths))


def test_a_checkpoint_is_accepted_for_its_report(made, tessera, tmp_path):
    path = made["report"][0]
    one, other = (harness.run(tessera, ["report", p, "--csv", "-"]) for p in (path, path.parent))
    assert one == other and one[0] == 0
    code, _, err = harness.run(tessera, ["report", path, "--baseline", path.parent, "--quiet"])
    assert (code, err) == (0, "")
    harness.expect(tessera, ["report", tmp_path], 2, "quantization_report.json")


def test_stdout_has_one_report_and_no_summary(made, tessera):
    path = made["verify"][0]
    for form in FORMS:
        code, out, err = harness.run(tessera, ["report", path, f"--{form}", "-"])
        assert code == 0 and err == "" and out and "limits: " not in out.splitlines()[0]
        assert out.startswith({"markdown": "###", "csv": "result,", "junit": "<?xml", "json": "{"}[form])
    harness.expect(tessera, ["report", path, "--csv", "-", "--json", "-"], 2, "--csv", "--json")
    harness.expect(tessera, ["report", path, "--csv", path], 2, str(path))
