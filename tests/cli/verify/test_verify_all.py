"""Tests `tessera verify all`: the kinds that apply to a checkpoint, their results in one file, and the verdict.

A kind that fails to run does not hide the others. `tessera report` reads the file as it reads the results of single
kinds."""

import csv
import json
import pathlib
import signal
import subprocess
import time
import xml.etree.ElementTree

import harness
import jsonschema
import pages
import pytest
import referencing
import results

pytestmark = pytest.mark.in_turn

ROOT = pathlib.Path(__file__).resolve().parents[3]
SCHEMAS = {path.name: json.loads(path.read_text()) for path in (ROOT / "docs/schemas").glob("*.schema.json")}
REGISTRY = referencing.Registry().with_resources((name, referencing.Resource.from_contents(schema)) for name, schema in SCHEMAS.items())
KINDS = ["weights", "gemm", "epilogue", "dequant", "mla", "forward"]
NOT = "not applicable"
QUICK = ["--device", "cpu", "--sample", "2", "--count", "4", "--kl-by-layer", "--exact"]
# A checkpoint, how it is quantized (None: it is held to itself), and the checks that apply.
APPLIES = {
    "block FP8": ("llama", [], "weights gemm forward"),
    "int8 with azp": ("llama", ["--scheme", "int8-channel", "--activation-zero-points"], "weights epilogue dequant forward"),
    "int4": ("llama", ["--scheme", "int4-weight-only"], "weights dequant forward"),
    "FP8 by rows": ("llama", ["--scheme", "fp8-channel"], "weights forward"),
    "NVFP4": ("llama", ["--scheme", "nvfp4-weight-only"], "weights gemm dequant forward"),
    "MXFP4": ("llama", ["--scheme", "mxfp4"], "weights gemm dequant forward"),
    "latent attention": ("deepseek-v3", [], "weights gemm mla forward"),
    "BF16": ("llama", None, "weights forward"),
}
# Figures that another run measures again.
TIMES = {"seconds", "phase_seconds", "kernel_seconds"}


def timeless(value):
    """Removes the times."""
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if key not in TIMES}
    return [timeless(item) for item in value] if isinstance(value, list) else value


@pytest.fixture
def run(tessera, tmp_path):
    """Returns run(dst, src, *options) -> (exit code, the JSON, {kind: suite}, stdout, stderr). Checks them against the
    schema and each other."""

    def verify(dst, src, *options, quick=True):
        path, junit = tmp_path / "all.json", tmp_path / "all.xml"
        code, out, err = harness.run(tessera, ["verify", "all", dst, "--against", src, *(QUICK if quick else []), "--json", path,
                                               "--junit", junit, *options])
        err = "".join(line for line in err.splitlines(keepends=True) if line.startswith("tessera: "))  # a slow machine tells progress, too
        said = json.loads(path.read_text())
        jsonschema.Draft202012Validator(SCHEMAS["verify-all.schema.json"], registry=REGISTRY).validate(said)
        assert list(said["kinds"]) == KINDS and said["exit_code"] == code and said["passed"] == (code == 0)
        root = xml.etree.ElementTree.parse(junit).getroot()
        suites = dict(zip(KINDS, root))
        assert [suite.get("name") for suite in root] == [f"verify {kind}" for kind in KINDS]
        words = {"passed": "PASS", "failed": "FAIL", "error": "ERROR", NOT: NOT}
        for kind, part in said["kinds"].items():
            assert f"\n{kind:8}  {words[part['status']]}" in out
            tags = {case.tag for test in suites[kind] for case in test}
            expected = {"passed": set(), "failed": {"failure"}, "error": {"error"}, NOT: {"skipped"}}[part["status"]]
            assert tags - {"skipped", "property"} == expected - {"skipped"} and expected <= tags
            if part["status"] == NOT:
                (skipped,) = suites[kind].iter("skipped")
                assert skipped.get("message") == part["reason"] and part["reason"] in out and "\n" not in part["reason"]
        return code, said, suites, out, err

    return verify


@pytest.fixture
def made(checkpoint, quantize):
    """Returns made(name of APPLIES) -> (output, source, kinds)."""

    def make(name):
        model, options, kinds = APPLIES[name]
        src = checkpoint(model)
        return (src if options is None else quantize(src, *options)), src, kinds.split()

    return make


@pytest.mark.parametrize("name", APPLIES)
def test_what_applies_is_judged_and_all_else_is_named(name, made, run):
    dst, src, kinds = made(name)
    code, said, _, out, err = run(dst, src)
    assert (code, err) == (0, ""), out
    assert [kind for kind, part in said["kinds"].items() if part["status"] == "passed"] == kinds
    for kind, part in said["kinds"].items():
        if kind not in kinds:
            assert part.keys() == {"status", "reason"} and part["status"] == NOT and str(dst) not in part["reason"]
        else:
            assert part["judged"] in out and part["result"]["passed"] and part["seconds"] > 0
    assert f"all {len(kinds)} checks that apply" in out


def test_the_line_of_forward_states_the_gain(checkpoint, quantize, run):
    """FP8 is nearer to SRC than int4. With the roles reversed the check fails."""
    src = checkpoint("llama")
    fine, coarse = quantize(src), quantize(src, "--scheme", "int4-weight-only")
    for dst, baseline, expected in ((fine, coarse, 0), (coarse, fine, 1)):
        code, said, _, out, _ = run(dst, src, "--baseline", baseline, "--skip", "gemm", "--skip", "dequant", "--min-stream", "0")
        part = said["kinds"]["forward"]
        gain = part["result"]["baseline"]
        assert code == expected and part["status"] == ("failed" if expected else "passed")
        assert f"of the baseline {gain['kl_mean_nats']:.3g}; gain of layers {gain['least_gain_db']:.2f} to {gain['most_gain_db']:.2f} dB" in part["judged"]
        assert part["judged"] in out and gain["checkpoint"] == str(baseline)


def test_results_and_reports_are_those_of_the_kinds_by_themselves(made, run, tessera, tmp_path):
    dst, src, kinds = made("latent attention")
    _, said, suites, _, _ = run(dst, src)
    alone, text = [], (tmp_path / "all.json").read_text()
    for kind in kinds:
        words = [] if kind == "weights" else [kind]
        options = {"weights": [], "gemm": ["--device", "cpu", "--sample", "2"], "mla": ["--device", "cpu"], "forward": ["--count", "4", "--kl-by-layer", "--exact"]}[kind]
        harness.succeed(tessera, ["verify", *words, dst, "--against", src, *options, "--json", tmp_path / f"{kind}.json"])
        assert timeless(json.loads((tmp_path / f"{kind}.json").read_text())) == timeless(said["kinds"][kind]["result"]), kind
        # The embedded result, as a file of its own, gives the same report except for what does not apply.
        path = tmp_path / f"embedded-{kind}.json"
        begin = text.index("{", text.index(f'"{kind}": {{\n') + len(kind) + 5)
        path.write_text(text[begin:json.JSONDecoder().raw_decode(text, begin)[1]])
        assert json.loads(path.read_text()) == said["kinds"][kind]["result"]
        alone.append(path)
    for words, told in ((alone, tmp_path / "a"), ([tmp_path / "all.json"], tmp_path / "b")):
        forms = [word for form in ("json", "csv", "junit", "markdown") for word in (f"--{form}", f"{told}.{form}")]
        assert harness.run(tessera, ["report", *words, *forms, "--quiet"]) == (0, "", "")
    by_kind, together = (json.loads((tmp_path / f"{name}.json").read_text()) for name in "ab")
    skipped = [r for r in together["results"] if r["verdict"] == "skipped"]
    assert [{**r, "path": ""} for r in together["results"] if r["verdict"] != "skipped"] == [{**r, "path": ""} for r in by_kind["results"]]
    assert together["verdict"] == by_kind["verdict"] == "passed" and len(skipped) == 2
    jsonschema.Draft202012Validator(SCHEMAS["report.schema.json"], registry=REGISTRY).validate(together)
    tables = [(tmp_path / f"{name}.csv").read_text().splitlines() for name in "ab"]
    cut = [[line.split(",", 1)[1] for line in table if ",skipped," not in line or "verify epilogue" not in line and "verify dequant" not in line]
           for table in tables]
    streams = [row for row in csv.DictReader((tmp_path / "b.csv").open(newline="")) if row["what"] == "stream of hidden states"]
    assert len(streams) > 1 and all(float(row["kl_mean_nats"]) >= 0 for row in streams)
    assert cut[0] == cut[1] and len(tables[1]) == len(tables[0]) + 2
    assert (tmp_path / "b.junit").read_text() == (tmp_path / "all.xml").read_text()
    assert "➖ SKIP" in (tmp_path / "b.markdown").read_text() and suites["mla"].get("failures") == "0"


# ---- faults ----


def forms_of(tessera, tmp_path):
    """Returns {form: the text of `tessera report` for the result}, with the page if this tessera can write it."""
    told = {}
    for form in ("markdown", "csv", "html"):
        code, out, err = harness.run(tessera, ["report", tmp_path / "all.json", f"--{form}", "-"])
        if form == "html" and code == 2:
            assert "libjs-chart.js" in err
            continue
        assert code == 1, err
        told[form] = out
    if "html" in told:
        page = pages.Page(told["html"])
        assert page.verdict == "FAIL" and page.outside == []
        told["html"] = json.dumps([result["findings"] for result in page.data["results"]])
    told["markdown"] = told["markdown"].partition("<details>")[0].replace("\\", "")  # of what would be markup
    return told


@pytest.mark.parametrize("fault, words", [("transposed", "grid is stored transposed"), ("code", "not the nearest"), ("missing", "without a scale")])
def test_a_planted_fault_is_named_in_every_form(fault, words, run, tessera, tmp_path):
    """A weight without its scale has no values. This is bad input for every kind that reads it."""
    made, where = results.write_faulty(tmp_path)
    tensor = where[fault]
    code, said, suites, out, err = run(made[fault], made["source"], quick=False)
    weights = said["kinds"]["weights"]
    assert code == (3 if fault == "missing" else 1)
    (case, *_) = [c for c in suites["weights"].iter("testcase") if c.find("failure") is not None or c.find("error") is not None]
    texts = [element.text for case in suites["weights"].iter("testcase") for element in case]
    told = {"terminal": out, "JSON": json.dumps(weights["result"]), "JUnit": " ".join(texts), **forms_of(tessera, tmp_path)}
    for form, text in told.items():
        assert tensor in text and (fault == "missing" or words in text), form
    assert said["kinds"]["forward"]["status"] == NOT and "model_type" in said["kinds"]["forward"]["reason"]
    if fault == "missing":
        assert weights["status"] == said["kinds"]["gemm"]["status"] == "error" and tensor in err and err.startswith("tessera: weights: ")
        assert weights["result"]["error"]["code"] == 3 and case.find("error") is not None
        return
    assert err == "" and said["kinds"]["weights"]["status"] == "failed"
    failed = [line for line in out.splitlines() if line.startswith("      ") and tensor in line]
    assert any("SQNR" in line and "worst block" in line for line in failed) and "limits: min_sqnr_db 30" in out
    assert any(words in line for line in failed) and "of the 2 checks that apply" in out


@pytest.mark.parametrize("options, kinds, code", [
    (["--layer", "99"], {"mla": 3}, 3), (["--device", "cuda"], {"gemm": 5, "mla": 5, "forward": 5}, 5),
    (["--device", "cuda", "--layer", "99"], {"gemm": 5, "mla": 5, "forward": 5}, 5), (["--memory", "1k"], {"weights": 4}, 4), (["--memory", "1k", "--device", "cuda"], {"weights": 4, "gemm": 5, "mla": 5, "forward": 5}, 4),
    (["--device", "cuda", "--tokens", "TOKENS"], {"gemm": 5, "mla": 5, "forward": 5}, 5), (["--tokens", "TOKENS"], {"forward": 3}, 3),
    (["--activations", "INPUTS"], {"gemm": 3}, 3), (["--min-sqnr", "40", "--layer", "99"], {"mla": 3}, 3),
    (["--min-sqnr", "40", "--device", "cuda"], {"gemm": 5, "mla": 5, "forward": 5}, 5)])
def test_what_cannot_be_carried_out_hides_nothing(options, kinds, code, made, run, tessera, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    inputs = tmp_path / "inputs.safetensors"
    harness.write_safetensors(inputs, {"of.no.layer": ("F32", (1, 1), b"\0\0\0\0")})
    (tmp_path / "tokens.txt").write_text("1 2 99999999\n")
    places = {"INPUTS": inputs, "TOKENS": tmp_path / "tokens.txt"}
    dst, src, apply = made("latent attention")
    got, said, suites, out, err = run(dst, src, *[places.get(word, word) for word in options])
    failed = {kind for kind in ("weights",) if "--min-sqnr" in options}
    assert got == code and err.count("\n") == 1
    assert {kind: part["exit_code"] for kind, part in said["kinds"].items() if part["status"] == "error"} == kinds
    assert {kind for kind, part in said["kinds"].items() if part["status"] == "failed"} == failed
    passed = {kind for kind, part in said["kinds"].items() if part["status"] == "passed"}
    # `verify forward` states the memory that it needs: tokens that do not fit are no error.
    assert passed == set(apply) - kinds.keys() - failed - ({"forward"} if "--memory" in options else set())
    for kind in kinds:
        error = said["kinds"][kind]["result"]["error"]
        assert error["code"] == kinds[kind] and error["message"] in out and suites[kind].get("errors") == "1"
    gravest = next(kind for kind in KINDS if kinds.get(kind) == code)
    assert err == f"tessera: {gravest}: {said['kinds'][gravest]['result']['error']['message']}\n"
    if "--memory" in options and "forward" not in kinds:
        assert "11 MB, more than --memory" in said["kinds"]["forward"]["reason"]
    assert harness.run(tessera, ["report", tmp_path / "all.json", "--quiet"])[0] == 1


def test_weights_that_no_kernel_takes_do_not_apply(quantize, checkpoint, run):
    """Codes with scales per row have no blocks, and a glob may match nothing. The result names what was omitted."""
    src = checkpoint("llama")
    _, said, _, _, _ = run(quantize(src, "--scheme", "fp8-channel"), src, "--skip", "forward", quick=False)
    assert "its scales are not of blocks" in said["kinds"]["gemm"]["reason"]
    assert said["kinds"]["forward"]["reason"] == "left out: --skip forward"
    code, said, _, _, _ = run(quantize(src), src, "--tensors", "*norm*")
    assert code == 0 and "matches --tensors" in said["kinds"]["gemm"]["reason"]


def test_nothing_judged_does_not_pass(checkpoint, tessera, tmp_path):
    src, path = checkpoint("llama"), tmp_path / "all.json"
    code, out, err = harness.run(tessera, ["verify", "all", src, "--against", src, "--skip", "weights", "--skip", "forward", "--json", path])
    assert code == 3 and out == "" and "nothing was judged" in err and err.count("\n") == 1
    jsonschema.Draft202012Validator(SCHEMAS["verify-all.schema.json"], registry=REGISTRY).validate(json.loads(path.read_text()))
    assert json.loads(path.read_text())["error"]["code"] == 3
    code, out, _ = harness.run(tessera, ["report", path])
    assert code == 1 and "an error ended it, with exit code 3" in " ".join(out.split())


def test_kernels_are_judged_where_originals_lie_otherwise(tessera, maker, run, tmp_path):
    """The output has separate experts made from stacks. Products have no original to compare with; kernels are judged."""
    import jobs
    (job,) = [job for job in jobs.JOBS if job.name == "quantize experts one by one"]
    src, dst = jobs.make_source(tessera, maker, job, job.kind, tmp_path / "source"), tmp_path / "output"
    harness.succeed(tessera, jobs.words(job.command, src, dst))
    code, said, _, out, _ = run(dst, src)
    gemm = said["kinds"]["gemm"]
    assert code == 0 and gemm["result"]["against"] is None and "without SRC: " in gemm["judged"] and "is missing" in gemm["judged"], out


def test_layouts_of_kernels_are_an_error_that_says_what_to_do(convert, checkpoint, run):
    src = checkpoint("llama")
    code, said, _, _, err = run(convert(src, "--to", "fastertransformer", "--arch", "sm80"), src)
    assert code == 3 and "--from fastertransformer" in err and said["kinds"]["weights"]["status"] == "error"


# ---- along the way ----


def test_progress_says_which_kind_is_running(made, tessera, tmp_path):
    dst, src, kinds = made("block FP8")
    words = ["verify", "all", dst, "--against", src, *QUICK]
    code, out, err = harness.run(tessera, [*words, "--progress", "jsonl", "--progress-file", tmp_path / "p.jsonl"])
    assert code == 0 and out and (tmp_path / "p.jsonl").read_text() == err
    told = [json.loads(line) for line in err.splitlines()]
    for line in told:
        jsonschema.Draft202012Validator(SCHEMAS["progress.schema.json"] | {"additionalProperties": False}).validate(line)
    assert list(dict.fromkeys(line.get("kind") for line in told)) == [*kinds, None]
    assert told[-1]["phase"] == "ended" and [line["phase"] for line in told].count("ended") == 1
    for kind in kinds:
        mine = [line for line in told if line.get("kind") == kind]
        assert mine[0]["phase"] == "opening" and mine[-1].get("items_done", mine[-1].get("bytes_done", 1)) > 0
    assert harness.run(tessera, [*words, "--quiet"]) == (0, "", "")
    code, out, err = harness.run(tessera, [*words, "--json", "-"])
    assert code == 0 and json.loads(out)["passed"] and err == ""


def test_interrupted_it_tells_what_it_had_found(made, tessera, tmp_path):
    dst, src, _ = made("block FP8")
    path, progress = tmp_path / "all.json", tmp_path / "p.jsonl"
    for _ in range(10):  # until the signal comes while kernels run
        progress.write_text("")
        with subprocess.Popen([tessera, "verify", "all", dst, "--against", src, "--device", "cpu", "--json", path, "--junit", tmp_path / "all.xml",
                               "--progress-file", progress], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            while process.poll() is None and '"gemm"' not in progress.read_text():
                time.sleep(0.002)
            process.send_signal(signal.SIGINT)
            err = process.communicate()[1]
        if process.returncode == 130:
            break
    said = json.loads(path.read_text())
    assert process.returncode == said["exit_code"] == 130 and err.startswith("tessera: gemm: ")
    assert {kind: part.get("exit_code") for kind, part in said["kinds"].items() if part["status"] != NOT} == {"weights": 0, "gemm": 130, "forward": 130}
    assert "stopped before" in said["kinds"]["forward"]["result"]["error"]["message"]
    assert len(xml.etree.ElementTree.parse(tmp_path / "all.xml").getroot()) == len(KINDS)


def test_what_makes_no_sense_is_refused_before_anything_runs(made, tessera, tmp_path):
    dst, src, _ = made("block FP8")
    words = ["verify", "all", dst, "--against", src, "--json", tmp_path / "all.json"]
    code, out, err = harness.run(tessera, [*words, "--layers", "0..99"])
    assert code == 2 and out == "" and "layers 0..1" in err and not (tmp_path / "all.json").exists()


# ---- the file, read ----


@pytest.mark.parametrize("change, words", [
    (lambda d: d.pop("kinds"), "kinds"), (lambda d: d.update(kinds={}), "no kind of checks"), (lambda d: d.update(kinds=[]), "byte"),
    (lambda d: d["kinds"]["mla"].pop("reason"), "reason"), (lambda d: d["kinds"]["gemm"].pop("result"), "neither a result"),
    (lambda d: d["kinds"]["gemm"].update(result=3), "neither a result"), (lambda d: d["kinds"]["gemm"].pop("status"), "status"),
    (lambda d: d["kinds"]["gemm"]["result"].update(schema="tessera-verify-kernels/9"), "kind 'gemm', which begins at byte"),
    (lambda d: d["kinds"]["gemm"]["result"].pop("judgements"), "kind 'gemm', which begins at byte"),
    (lambda d: d.update(version=None), "version"), (lambda d: d["kinds"].update({f"x{i}": d["kinds"]["mla"] for i in range(9)}), "more kinds"),
    (lambda d: d.update(schema="tessera-verify-all/2"), "tessera-verify-all/2")])
def test_a_file_that_is_none_is_refused(change, words, sound, tessera, tmp_path):
    document = json.loads(sound)
    change(document)
    path = harness.write_json(tmp_path / "broken.json", document)
    code, out, err = harness.run(tessera, ["report", path])
    assert code == 3 and out == "" and str(path) in err and words in err, err


@pytest.fixture(scope="module")
def sound(tessera, checkpoint, tmp_path_factory):
    """Returns the text of a result that passed."""
    path = tmp_path_factory.mktemp("sound")
    src = checkpoint("llama")
    harness.succeed(tessera, ["quantize", src, "-o", path / "out", "--quiet"])
    harness.succeed(tessera, ["verify", "all", path / "out", "--against", src, *QUICK, "--json", path / "all.json"])
    return (path / "all.json").read_text()


def test_no_single_result_is_compared_with_it(sound, tessera, tmp_path):
    path = tmp_path / "all.json"
    path.write_text(sound)
    harness.expect(tessera, ["report", path, "--baseline", path], 2, "several kinds")
