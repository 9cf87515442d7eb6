"""Tests `tessera report` with results of each command: summaries, faults and outliers in every format."""

import json
import os
import re
import resource
import subprocess

import harness
import pytest
import results

pytestmark = pytest.mark.in_turn(together=True)

BAD = "model.layers.37.mlp.experts.100.down_proj.weight"
BLOCKS = re.compile("[▁▂▃▄▅▆▇█▏▎▍▌▋▊▉│└─…]")


@pytest.fixture
def report(tessera):
    """Returns report(*words, **environment) -> (exit code, stdout, stderr), in an ASCII locale by default."""

    def run(*words, **environment):
        variables = {**{k: v for k, v in os.environ.items() if not k.startswith("LC_")}, "LANG": "C", **environment}
        done = subprocess.run([tessera, "report", *map(str, words)], capture_output=True, timeout=600, env=variables)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    return run


@pytest.mark.parametrize("name", ["report", *results.COMMANDS])
def test_every_result_is_read(name, made, report):
    path, code = made[name]
    got, out, err = report(path)
    # diff without a tolerance and inspect --can-load have a verdict, and so has their report; plans and figures have none.
    assert (got, err) == (code, ""), out
    result = json.loads(path.read_text())
    assert out.startswith({0: "PASS", 1: "FAIL"}[code] if code == 1 or "passed" in result else out[:4])
    assert result["version"] in out and str(path) in out.replace("\n      ", "")
    for line in out.splitlines():
        assert line == line.rstrip() and len(line) <= 80 or len(line.split()) <= 2, line
        assert line.isascii()
    assert report("--quiet", path) == (code, "", "")


# Lines of a command's text that `tessera report` prints too.
SHARED_LINES = {"gemm": r"(ok|FAIL) |all \d+ judgements", "epilogue": r"(ok|FAIL) |all \d+ judgements",
                "verify": r"(PASS|FAIL)  ", "diff": r" +worst block: |\d+ tensors: |tensors that differ",
                "dequant": r"(ok|FAIL) |skipped |all \d+ judgements", "forward": r" +(ok|FAIL) |all \d+ judgements"}


@pytest.mark.parametrize("name", SHARED_LINES)
def test_the_text_of_a_command_is_in_its_report(name, made, report):
    path = made[name][0]
    lines = [line for line in path.with_suffix(".txt").read_text().splitlines() if re.match(SHARED_LINES[name], line)]
    text = " ".join(report(path)[1].split())
    assert lines and all(" ".join(line.split()) in text for line in lines)


def test_the_budgets_of_a_plan_are_in_its_report(made, report):
    path = made["plan-schemes"][0]
    command, out = path.with_suffix(".txt").read_text(), report(path)[1]
    curve = json.loads(path.read_text())["curve"]
    for text in (command, out):
        lines = text.splitlines()[text.splitlines().index("      bits      bytes        error") + 1:]
        rows = [line.split() for line in lines if re.match(r" +\d+\.\d{3} ", line)]  # long names of schemes are wrapped
        assert [(row[0], row[3]) for row in rows[:len(curve)]] == [(f"{c['bits_per_weight']:.3f}", f"{c['error']:.6g}") for c in curve]


def test_several_have_one_verdict(made, report):
    code, out, _ = report(made["report"][0], made["verify"][0])
    assert code == 0 and out.startswith("PASS  1 of 2 results has a verdict, and passed")
    code, out, _ = report(made["report"][0], made["verify"][0], made["diff"][0])
    assert code == 1 and out.startswith("FAIL  1 of 3 results failed")
    for name in ("report", "verify", "diff"):
        assert str(made[name][0]) in out.replace("\n      ", "")


def test_figures_are_the_results(made, report):
    result = json.loads(made["report"][0].read_text())
    out = report(made["report"][0])[1]
    sqnr = sorted(t["sqnr_db"] for t in result["tensors"])
    line = next(line for line in out.splitlines() if line.startswith("  tensors  "))
    count, least, *_, most = line.split()[1:]
    assert (int(count), float(least), float(most)) == (len(sqnr), pytest.approx(sqnr[0], abs=0.006), pytest.approx(sqnr[-1], abs=0.006))
    lowest = out[out.index("lowest SQNR"):].splitlines()[1:6]
    assert [line.split()[-1] for line in lowest] == result["lowest_sqnr"][:5]


def test_where_the_time_went(made, report, tmp_path):
    """The report has seconds by phase and the bytes read, if the result has them."""
    for name in ("gemm", "mla", "forward"):
        result = json.loads(made[name][0].read_text())
        code, out, err = report(made[name][0], "--json", tmp_path / "report.json")
        told = json.loads((tmp_path / "report.json").read_text())["results"][0]
        assert {phase: float(seconds) for phase, seconds in told["phase_seconds"].items()} == result["phase_seconds"]
        line = " ".join(out.split()).split("seconds by phase, of all threads: ")[1]
        assert all(f"{phase} " in line for phase in result["phase_seconds"])
        assert name != "gemm" or f"bytes_read {result['bytes_read']}" in " ".join(out.split())


# ---- looking at it ----


def with_bad(rows, name=BAD):
    """Returns the same tensors, one with a much larger error."""
    return [results.row(row["name"], 24.1, 0.4) if row["name"] == name else row for row in rows]


@pytest.fixture(scope="session")
def large(tmp_path_factory):
    """Makes 61 layers with 256 experts, one with a much larger error."""
    return results.write(tmp_path_factory.mktemp("large") / "large.json", results.quantization_report(with_bad(results.deepseek(61, 256))))


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """Makes the same layers and numbers of experts, with the same outlier, but experts in only three layers."""
    rows = [row for row in results.deepseek(61, 256) if "experts" not in row["name"] or row["name"].split(".")[2] in ("36", "37", "38")]
    return results.write(tmp_path_factory.mktemp("drawn") / "drawn.json", results.quantization_report(with_bad(rows)))


def test_an_outlier_jumps_out(large, report):
    ascii_text, drawn = report(large)[1], report(large, LANG="C.UTF-8")[1]
    assert ascii_text.isascii() and not BLOCKS.search(ascii_text) and BLOCKS.search(drawn)
    for out, bar, tall in ((ascii_text, "|", "#"), (drawn, "│", "█")):
        assert "! layer 37 is far below the others: 24.10 dB" in out and "! expert 100 is far below the others" in out and BAD in out
        charts = [line.split(bar)[1] for line in out.splitlines() if bar in line]
        assert len(charts) == 4 * 5  # layers and experts, errors and worst blocks
        assert charts[0].rstrip() == " " * 37 + tall  # only that layer reaches the top
        assert all(len(line) <= 80 for line in out.splitlines())
    caret = next(line for line in ascii_text.splitlines() if line.strip() == "^")
    assert caret.index("^") == 11 + 37


@pytest.mark.parametrize("layers", [3, 61])
def test_sound_layers_do_not(layers, tmp_path, report):
    out = report(results.write(tmp_path / "sound.json", results.quantization_report(results.deepseek(layers, 2))))[1]
    assert "!" not in out and "^" not in out
    assert ("largest relative error by layer" in out) == (layers == 61)


def test_a_layer_whose_blocks_are_drowned_is_seen_though_sqnr_is_high(tmp_path, report):
    rows = results.deepseek(30, 0)
    rows[50] = results.row(rows[50]["name"], 31.9, 0.5)
    out = report(results.write(tmp_path / "r.json", results.quantization_report(rows)))[1]
    assert "! layer 10 has a block far worse than the others: 0.5" in out and "far below" not in out


def test_colour_only_on_a_terminal_and_never_alone(drawn, tessera, report):
    _, shown = harness.on_terminal(tessera, ["report", drawn], 80)
    assert "\x1b[31m" in shown and "\x1b[" not in report(drawn, LANG="C.UTF-8")[1]
    _, plain = harness.on_terminal(tessera, ["report", drawn], 80, NO_COLOR="1")
    assert "\x1b[" not in plain
    assert re.sub(r" +\n", "\n", re.sub("\x1b\\[[0-9]*m", "", shown)) == plain
    assert plain == report(drawn, LC_ALL="C.UTF-8")[1]


@pytest.mark.parametrize("columns", [60, 80, 100, 300])
def test_lines_fit_the_terminal(columns, drawn, tessera):
    _, plain = harness.on_terminal(tessera, ["report", drawn], columns, NO_COLOR="1")
    widest = max(len(line) for line in plain.splitlines() if str(drawn) not in line)  # a path is not broken
    assert widest <= columns and (columns == 60 or widest > 60)


# ---- faults ----


def test_names_from_files_are_made_visible(tmp_path, report):
    evil = "x\nPASS  names\x1b[2J\u202e<b>"
    rows = [results.row(evil, 20.0), results.row("model.layers.0.q.weight", 31)]
    code, out, err = report(results.write(tmp_path / "r.json", results.quantization_report(rows)), LANG="C.UTF-8")
    assert code == 0 and err == "" and "\x1b" not in out and "\u202e" not in out and "\\n" in out


def test_ninety_thousand_tensors(tmp_path, tessera):
    path = results.write(tmp_path / "r.json", results.quantization_report(results.deepseek(117, 256)))
    limited = not any(kind in tessera for kind in ("-asan", "-tsan"))
    size = path.stat().st_size

    def limit():
        if limited:  # under a second alone; the machine may be busy
            resource.setrlimit(resource.RLIMIT_CPU, (2, 3))
            resource.setrlimit(resource.RLIMIT_AS, (13 * size // 4, 13 * size // 4))

    done = subprocess.run([tessera, "report", path], capture_output=True, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    assert b" 90441 " in done.stdout


def test_rules_among_results_are_passed_over(tessera, checkpoint, tmp_path):
    """The README has `plan-schemes ... -o r.json` and `report *.json` in one folder. A rules file alone is rejected."""
    rules, result = tmp_path / "r.json", tmp_path / "weights.json"
    harness.succeed(tessera, ["plan-schemes", checkpoint("llama"), "--bits", "5", "--schemes", "nvfp4-weight-only,fp8-block", "-o", rules, "--json", result])
    alone = harness.run(tessera, ["report", result])
    for files in ([rules, result], [result, rules]):
        code, out, err = harness.run(tessera, ["report", *files])
        assert (code, out) == alone[:2] and err == f"tessera: {rules}: skipped: rules for 'tessera quantize --rules', not a result of a command\n", err
    code, out, err = harness.run(tessera, ["report", rules])
    assert code == 3 and out == "" and f"{rules}: rules for 'tessera quantize --rules', not a result" in err
