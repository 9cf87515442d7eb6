"""Tests `tessera report --html`: a single file without network requests, with the data of the results, and safe from names in them.

test_report_browser.py opens it in a browser."""

import json
import pathlib
import re
import subprocess

import harness
import pages
import pytest
import results

LIBRARY = pathlib.Path("/usr/share/javascript/chart.js/chart.min.js")
EMBED = pathlib.Path(__file__).parents[3] / "report/page/embed.py"
HOSTILE = ["</script><script>alert(1)</script>", "<!-- <script>", "model.layers.1.\"quoted\".'weight'", "a\u2028b\u2029c", "&lt;b&gt;&amp;",
           "]]>\\u003c\\\"", "\u202egnihton", "<img src=x onerror=alert(1)>", "javascript:alert(1)", "__proto__", "constructor", "{{x}}${y}`z`"]


@pytest.fixture(scope="session")
def built(tessera, tmp_path_factory):
    """Skips tests if this tessera was built without the page. Checks the message, which names the package."""
    path = results.write(tmp_path_factory.mktemp("html") / "one.json", results.quantization_report([results.row("a.weight", 31)]))
    code, _, err = harness.run(tessera, ["report", path, "--html", "-"])
    if code == 2:
        assert "libjs-chart.js" in err and "-Dhtml=enabled" in err, err
        pytest.skip("this tessera was built without libjs-chart.js")
    assert code == 0, err


@pytest.fixture
def report(built, tessera, tmp_path):
    """Returns report(*arguments) -> (exit code, Page)."""

    def run(*arguments):
        out = tmp_path / "page.html"
        code, said, err = harness.run(tessera, ["report", *arguments, "--html", out, "--quiet"])
        assert code in (0, 1) and said == err == "", err
        return code, pages.Page(out.read_bytes().decode())

    return run


def visible(name):
    """Returns the text as all forms print it: characters that change the direction or break lines are escaped."""
    return re.sub("[\u2028\u2029\u202e]", lambda found: f"\\u{ord(found.group(0)):04x}", name)


@pytest.mark.parametrize("name", ["report", *results.COMMANDS])
def test_every_result_makes_a_page_that_stays_in_its_file(name, made, report):
    path, expected = made[name]
    code, page = report(path)
    assert code == expected and page.outside == []
    (result,) = page.data["results"]
    word = {"FAIL": 1, "PASS": 0, "INFO": 0}
    assert page.verdict == page.data["verdict"] == result["verdict"] and word[page.verdict] == code
    assert page.verdict in page.title and page.data["reason"] in page.heading and result["path"] == str(path)
    stated = json.loads(path.read_text())
    listed = stated["tensors"] if isinstance(stated.get("tensors"), list) else []
    assert {t["name"] for t in listed} <= {row["name"] for row in pages.rows(result)}
    assert {limit[0] for limit in result["limits"]} == {k for k, v in stated.get("limits", {}).items() if v is not None}


def test_the_checker_sees_what_reaches_out(built, tessera, made, tmp_path):
    """The checker finds external references in a modified page."""
    out = tmp_path / "page.html"
    harness.succeed(tessera, ["report", made["report"][0], "--html", out, "--quiet"])
    text = out.read_text()
    assert pages.Page(text).outside == []
    for old, new in (("<footer>", '<footer><img src="http://x/y.png">'), ("</head>", '<script src="//x/y.js"></script></head>'),
                     ("</style>", "@import 'x.css';</style>"), ("</style>", "a{background:url(x.png)}</style>"),
                     ('"use strict";', '"use strict"; fetch ("x");'), ("<footer>", '<footer onclick="x()">'), ("</head>", '<link rel="stylesheet" href="x.css"></head>')):
        assert old in text
        assert pages.Page(text.replace(old, new, 1)).outside != [], new
    assert "default-src 'none'" in text  # the browser holds it to this, too


def test_the_licence_travels_along(report, made):
    _, page = report(made["report"][0])
    (script,) = [s for s in page.scripts if "Chart.js v3" in s]
    assert script.index("Permission is hereby granted, free of charge") < script.index("Chart.js v3")


def test_the_data_are_the_results(made, report):
    path = made["report"][0]
    stated = json.loads(path.read_text())
    _, page = report(path)
    (result,) = page.data["results"]
    rows = {row["name"]: row for row in pages.rows(result) if row["relative_error"] is not None}
    assert rows.keys() == {t["name"] for t in stated["tensors"]} and len(rows) > 40
    for t in stated["tensors"]:
        row = rows[t["name"]]
        for key in ("sqnr_db", "relative_error", "worst_block_error", "max_abs_error", "amax", "scale_min", "scale_median", "scale_max", "cosine"):
            assert row[key] == pytest.approx(t[key], rel=1e-6), key
        for key in ("saturated", "flushed", "elements", "nonzero", "blocks", "zero_blocks"):
            assert row[key] == t[key]
        assert json.loads(row["block_at"]) == t["worst_block_at"] and json.loads(row["shape"]) == t["shape"] and row["file"] == t["file"]
    whole = result["series"][result["charted"]]["whole"]
    assert whole["sqnr_db"] == pytest.approx(stated["whole"]["sqnr_db"], rel=1e-6)
    names = result["rows"]["name"]
    assert [names[at] for at in result["lowest"]] == stated["lowest_sqnr"]
    assert [names[at] for at in result["blocks"]] == stated["worst_blocks"]


def test_judgements_keep_their_kinds_of_error(made, report):
    stated = json.loads(made["gemm"][0].read_text())
    _, page = report(made["gemm"][0], made["mla"][0], made["forward"][0])
    rows = pages.rows(page.data["results"][0])
    series = [page.data["results"][0]["series"][at]["name"] for at in page.data["results"][0]["rows"]["series"]]
    assert [(s, r["name"], r["what"]) for s, r in zip(series, rows)] == [(j["kind"], j["subject"], j["what"]) for j in stated["judgements"]]
    assert [r["of_bound"] for r in rows] == [pytest.approx(j["of_bound"], rel=1e-6) if j["of_bound"] is not None else None for j in stated["judgements"]]
    assert [r["title"] for r in page.data["results"]] == ["verify gemm", "verify mla", "verify forward"]
    assert {name: float(seconds) for name, seconds, _ in page.data["results"][0]["phases"]} == stated["phase_seconds"]


def test_what_is_lost_without_end_is_told_apart(report, tmp_path):
    rows = [results.row("model.layers.0.a.weight", 31.5), results.row("model.layers.1.a.weight", 31.5, relative_error=0, saturated=2**53 - 1),
            results.row("model.layers.2.a.weight", 31.5)]
    rows[1]["sqnr_db"] = None
    _, page = report(results.write(tmp_path / "r.json", results.quantization_report(rows)))
    got = pages.rows(page.data["results"][0])
    assert [r["sqnr_db"] for r in got] == [31.5, "inf", 31.5] and got[1]["saturated"] == 2**53 - 1


def test_hostile_names_stay_text(report, tmp_path):
    rows = [results.row(f"{name}", 31 + at / 10, file=name, worst_block_at=[1, at]) for at, name in enumerate(HOSTILE)]
    path = results.write(tmp_path / "<b>'&\".json", results.quantization_report(rows, scheme="</script><script>alert(2)</script>", command=HOSTILE[0]))
    _, page = report(path)
    assert page.outside == [] and len(page.scripts) == 2 and "alert(1)" not in "".join(page.scripts) + page.heading
    got = pages.rows(page.data["results"][0])
    assert [row["name"] for row in got] == [visible(name) for name in HOSTILE] == [row["file"] for row in got]
    assert page.data["results"][0]["command"] == HOSTILE[0] and page.data["results"][0]["path"] == str(path)
    assert str(path) in page.title


def test_the_page_names_the_checkpoint_that_all_results_are_about(made, report, tmp_path):
    _, page = report(made["report"][0], made["verify"][0])
    checkpoint = json.loads(made["verify"][0].read_text())["checkpoint"]
    assert page.title == f"{page.verdict}: {checkpoint}" and page.maker.endswith(f": {checkpoint}")
    other = harness.write_json(tmp_path / "other.json", dict(json.loads(made["verify"][0].read_text()), checkpoint="another"))
    _, page = report(made["verify"][0], other)
    assert page.title == f"{page.verdict}: results of Tessera" and ":" not in page.maker


@pytest.mark.parametrize("fault", ["transposed", "code", "missing"])
def test_a_planted_fault_is_named(fault, report, tessera, tmp_path):
    made, where = results.write_faulty(tmp_path)
    path = tmp_path / "found.json"
    # verify refuses a weight without its scale, because its values cannot be decoded; inspect describes it.
    args = ["inspect", made[fault]] if fault == "missing" else ["verify", made[fault], "--against", made["source"]]
    assert harness.run(tessera, [*args, "--json", path])[0] == 1
    code, page = report(path)
    assert code == 1 and page.verdict == "FAIL"
    (result,) = page.data["results"]
    named = [f for f in result["findings"] if where[fault] in f["where"]]
    words = {"transposed": "grid is stored transposed", "code": "not the nearest", "missing": "without a scale"}
    assert any(f["severity"] == "error" and words[fault] in f["what"] for f in named), result["findings"]


def test_an_error_is_told(report, tessera, tmp_path):
    path = tmp_path / "failed.json"
    assert harness.run(tessera, ["verify", tmp_path / "nothing", "--against", tmp_path / "original", "--json", path])[0] == 3
    code, page = report(path)
    assert code == 1 and page.verdict == "FAIL" and "exit code 3" in page.heading
    (finding,) = page.data["results"][0]["findings"]
    assert finding["severity"] == "error" and finding["what"] == json.loads(path.read_text())["error"]["message"]


def test_regressions(report, tmp_path):
    old = results.deepseek(6, 3)
    new = [dict(row) for row in old[:-1]]
    new[5] = results.row(new[5]["name"], 29)
    gone = old[-1]["name"]
    paths = [results.write(tmp_path / f"{name}.json", results.quantization_report(rows)) for name, rows in (("new", new), ("old", old))]
    code, page = report(paths[0], "--baseline", paths[1])
    baseline = page.data["baseline"]
    assert code == 1 and page.verdict == "FAIL" and baseline["path"] == str(paths[1])
    names = page.data["results"][0]["rows"]["name"]
    (worse,) = baseline["regressions"]
    assert names[worse["row"]] == new[5]["name"] and worse["now"] == 29 and worse["loss_db"] == pytest.approx(worse["before"] - 29, rel=1e-5)
    assert baseline["disappeared"] == {"count": 1, "first": [[gone, None]]} and baseline["appeared"]["count"] == 0
    losses = page.data["results"][0]["rows"]["loss_db"]
    assert losses[5] == pytest.approx(worse["loss_db"]) and sum(abs(x) > 0.1 for x in losses) == 1
    assert report(paths[1])[1].data["baseline"] is None


def test_same_bytes_for_the_same_results(made, tessera, built, tmp_path):
    for name in "ab":
        harness.succeed(tessera, ["report", made["report"][0], "--html", tmp_path / name, "--quiet"])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_page_on_stdout_leaves_the_summary_out(made, built, tessera):
    code, out, err = harness.run(tessera, ["report", made["report"][0], "--html", "-"])
    assert code == 0 and err == "" and out.startswith("<!DOCTYPE html>") and out.rstrip().endswith("</html>")


@pytest.fixture(scope="session")
def too_many():
    """Makes more rows than a page can have."""
    return results.deepseek(69, 490)


@pytest.mark.in_turn
def test_a_page_of_too_many_rows_has_the_worst(built, tessera, tmp_path, too_many):
    """Rows that a chart or a list points at are present; the page and stderr name what is left out."""
    rows = list(too_many)
    rows[200] = results.row(rows[200]["name"], 24.1, 0.4)
    rows[7] = results.row(rows[7]["name"], 40, 0.5)  # the worst block, in a tensor that lost little
    path, out = results.write(tmp_path / "big.json", results.quantization_report(rows)), tmp_path / "page.html"
    code, said, err = harness.run(tessera, ["report", path, "--html", out, "--csv", tmp_path / "all.csv", "--quiet"])
    (result,) = pages.Page(out.read_text()).data["results"]
    left = result["rows"]["left_out"]
    assert out.stat().st_size < 34e6
    assert (code, said) == (0, "") and err == f"tessera: {out}: the table omits {left} rows, none of them among the worst; --csv FILE has all rows\n"
    assert left > 0 and left + result["rows"]["count"] == len(rows)
    assert 100000 <= result["rows"]["count"] < 101000 and len((tmp_path / "all.csv").read_text().splitlines()) == len(rows) + 1
    kept, places = pages.rows(result), {row["name"]: at for at, row in enumerate(rows)}
    assert {row["name"] for row in sorted(rows, key=lambda row: row["sqnr_db"])[:90000]} | {rows[7]["name"]} <= {row["name"] for row in kept}
    assert [places[row["name"]] for row in kept] == sorted(places[row["name"]] for row in kept)
    assert all(row["sqnr_db"] == pytest.approx(rows[places[row["name"]]]["sqnr_db"], rel=1e-6) for row in kept)
    assert kept[result["lowest"][0]]["name"] == rows[200]["name"] and kept[result["blocks"][0]]["name"] == rows[7]["name"]
    for groups in result["groups"].values():
        assert all(group[at] < len(kept) for group in groups for at in ("row", "block_row"))


@pytest.mark.in_turn
def test_large_and_small_results_share_the_page(built, tessera, tmp_path, too_many):
    """Rows that the small result does not need go to the large one; rows of findings and regressions are found."""
    large = results.write(tmp_path / "large.json", results.quantization_report(too_many))
    small = results.write(tmp_path / "small.json", results.quantization_report([results.row(f"a.{i}", 31) for i in range(5)]))
    code, said, err = harness.run(tessera, ["report", large, small, "--html", tmp_path / "p.html", "--quiet"])
    counts = [result["rows"]["count"] for result in pages.Page((tmp_path / "p.html").read_text()).data["results"]]
    assert code == 0 and counts[1] == 5 and 99995 <= counts[0] < 101000 and said == "" and "omits" in err
    worse = results.quantization_report([{**row, "sqnr_db": row["sqnr_db"] - 3} if ".2.mlp.experts.1" in row["name"] else row for row in too_many])
    path = results.write(tmp_path / "worse.json", worse)
    harness.run(tessera, ["report", path, "--baseline", large, "--html", tmp_path / "p.html", "--quiet"])
    data = pages.Page((tmp_path / "p.html").read_text()).data
    kept = pages.rows(data["results"][0])
    moved = [one for one in data["baseline"]["regressions"] if "row" in one]
    assert data["baseline"]["worse"] == len(data["baseline"]["regressions"]) == 3 * 111 and {".2.mlp.experts.1" in kept[one["row"]]["name"] for one in moved} == {True}


# ---- putting it together ----


def embed(library, tmp_path):
    return subprocess.run([EMBED, library, tmp_path / "page.c"], capture_output=True, text=True)


@pytest.mark.skipif(not LIBRARY.exists(), reason="no libjs-chart.js")
@pytest.mark.parametrize("change, said", [(lambda t: t.replace("Chart.js v3.", "Chart.js v4.", 1), "not Chart.js 3"),
                                          (lambda t: t + "\n'</script>'", "holds the end of a script"), (lambda t: "alert(1)", "not Chart.js 3")])
def test_another_library_is_refused(change, said, tmp_path):
    assert embed(LIBRARY, tmp_path).returncode == 0
    other = tmp_path / "chart.min.js"
    other.write_text(change(LIBRARY.read_text()))
    done = embed(other, tmp_path)
    assert done.returncode != 0 and said in done.stderr and str(other) in done.stderr
