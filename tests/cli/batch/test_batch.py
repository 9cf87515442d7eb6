"""Tests `tessera batch`: validation of the whole file before the first job, the order of jobs, and resuming."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import xml.etree.ElementTree

import harness
import pytest
import results

SCHEMES = {"fp8": "", "nvfp4": "--scheme nvfp4-weight-only", "int8": "--scheme int8-channel", "int4": "--scheme int4-weight-only",
           "mxfp8": "--scheme mxfp8"}


@pytest.fixture
def jobs(tmp_path):
    """Returns jobs({name: command}), which writes a file with one job per line."""

    def write(commands, name="jobs.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps({"name": job, "args": [str(word) for word in (command if isinstance(command, list) else command.split())]}) + "\n"
                                for job, command in commands.items()))
        return path

    return write


@pytest.fixture
def batch(tessera, tmp_path):
    """batch(file, *options) -> (exit code, its summary or None, stdout, stderr)."""

    def run(path, *options):
        summary = tmp_path / "summary.json"
        summary.unlink(missing_ok=True)
        code, out, err = harness.run(tessera, ["batch", path, "--json", summary, *options])
        return code, json.loads(summary.read_text()) if summary.exists() else None, out, err

    return run


def states(summary):
    return {job["name"]: job["state"] for job in summary["jobs"]}


def quantize(source, target, options=""):
    return ["quantize", source, "-o", target, *options.split(), "--max-shard-size", "1MB"]


def test_outputs_are_those_of_the_commands(jobs, batch, checkpoint, tessera, tmp_path):
    source = checkpoint("llama")
    path = jobs({name: quantize(source, tmp_path / name, options) for name, options in SCHEMES.items()} |
                {"bf16": f"convert {tmp_path / 'fp8'} -o {tmp_path / 'bf16'} --to bf16",
                 "check": f"verify {tmp_path / 'fp8'} --against {source}"})
    code, summary, out, err = batch(path)
    assert code == 0 and summary["passed"] and set(states(summary).values()) == {"done"}, err
    for name, options in SCHEMES.items():
        alone = tmp_path / f"{name}-alone"
        harness.succeed(tessera, [*quantize(source, alone, options), "--quiet"])
        assert harness.tree_difference(alone, tmp_path / name) is None
    told = {job["name"]: job for job in summary["jobs"]}
    assert told["bf16"]["after"] == told["check"]["after"] == ["fp8"] and told["fp8"]["after"] == []
    assert told["check"]["result"]["schema"] == "tessera-verify/1" and told["check"]["result"]["passed"]
    assert told["fp8"]["sqnr_db"] > 30 and told["fp8"]["bytes_written"] > 0 and told["bf16"]["sqnr_db"] is None
    for name in SCHEMES:
        assert f"== {name}: quantize (" in out
    # Again: everything is there, and is verified.
    code, summary, out, err = batch(path)
    assert code == 0 and "complete already" in out, err
    assert all(job["complete_already"] for job in summary["jobs"] if job["name"] != "check")


@pytest.fixture(scope="module")
def large(maker, tmp_path_factory):
    """Makes a checkpoint whose tensors have several units and are larger than one read."""
    return pathlib.Path(harness.make_checkpoint(maker, "bench", tmp_path_factory.mktemp("src") / "large", bytes="24M"))


def bytes_of(source, archived=False):
    """Returns the bytes that a job must read to copy a checkpoint: its tensors and side files; of an archive also the
    headers."""
    headers = sum(harness.read_header(path)[0] for path in source.glob("*.safetensors"))
    told = [path.stat().st_size for path in source.iterdir() if path.name not in ("config.json", "model.safetensors.index.json")]
    return sum(told) - (0 if archived else headers)


def read_by(tessera, arguments):
    """Runs the tool. Returns the number of bytes that it read, as the kernel counts them."""
    process = subprocess.Popen([tessera, *map(str, arguments)], stdout=subprocess.DEVNULL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    counted = dict(line.split(": ") for line in pathlib.Path(f"/proc/{process.pid}/io").read_text().splitlines())
    assert process.wait() == 0
    return int(counted["rchar"])


OUTPUTS = {name: f"quantize SRC -o OUT {options}" for name, options in SCHEMES.items()} | {
    "tp": "convert SRC -o OUT --to tp --tp 2", "archive": "convert SRC -o OUT --to archive --level 1"}


@pytest.mark.parametrize("options", [["--threads", "1"], ["--threads", "4"], ["--threads", "3", "--memory", "64MiB"]], ids=" ".join)
def test_outputs_of_one_source_are_made_from_one_reading(options, jobs, batch, large, tmp_path):
    words = {name: [{"SRC": str(large), "OUT": str(tmp_path / name)}.get(word, word) for word in command.split()] for name, command in OUTPUTS.items()}
    path = jobs(words)
    code, planned, out, err = batch(path, *options, "--dry-run")
    assert code == 0 and "read together: fp8 nvfp4 int8 int4 mxfp8 tp archive;" in out, err
    code, summary, out, err = batch(path, *options)
    assert code == 0, err
    (together,) = summary["together"]
    assert together["jobs"] == list(OUTPUTS) and {job.get("with") for job in summary["jobs"]} == {"fp8"}
    assert together["bytes_wanted"] == sum(job["bytes_read"] for job in summary["jobs"]) > 7 * bytes_of(large)
    if "--memory" not in options:
        assert together["bytes_read"] == planned["together"][0]["bytes_read"] == bytes_of(large, archived=True)
    else:  # what does not fit is read again
        assert together["bytes_read"] < 0.7 * together["bytes_wanted"]
    for name in OUTPUTS:
        (tmp_path / name).rename(tmp_path / f"{name}-together")
    memory = options[-1] if "--memory" in options else "2GiB"
    code, summary, _, err = batch(jobs({name: [*line, "--memory", memory] for name, line in words.items()}), *options)
    assert code == 0 and summary["together"] == [] and not any("with" in job for job in summary["jobs"]), err
    for name in OUTPUTS:
        assert harness.tree_difference(tmp_path / name, tmp_path / f"{name}-together") is None


def test_the_system_counts_the_same_bytes(jobs, tessera, large, tmp_path):
    path = jobs({name: quantize(large, tmp_path / name, SCHEMES[name]) for name in ("fp8", "nvfp4", "int8")})
    # Loaders' rules are asked about the outputs, whose headers are read for it; and the program's libraries are.
    assert read_by(tessera, ["batch", path, "--quiet"]) < 1.1 * bytes_of(large)
    for name in ("fp8", "nvfp4", "int8"):
        shutil.rmtree(tmp_path / name)
    alone = jobs({name: quantize(large, tmp_path / name, f"{SCHEMES[name]} --memory 2GiB") for name in ("fp8", "nvfp4", "int8")})
    # azp_adj and the scales of whole tensors are sums over all of a tensor, which a job alone does not read again for them, either.
    assert 3 * bytes_of(large) < read_by(tessera, ["batch", alone, "--quiet"]) < 3.3 * bytes_of(large)


def test_who_is_not_read_together_with_others(jobs, batch, checkpoint, large, tmp_path):
    path = jobs({"a": quantize(large, tmp_path / "a"), "own": quantize(large, tmp_path / "own", "--threads 1"),
                 "other": quantize(checkpoint("llama"), tmp_path / "other"), "b": quantize(large, tmp_path / "b", "--scheme mxfp8"),
                 "again": f"convert {tmp_path / 'a'} -o {tmp_path / 'again'} --to bf16"})
    code, summary, out, err = batch(path, "--dry-run")
    assert code == 0 and "by itself: own: it has its own --threads" in out, err
    told = {job["name"]: job for job in summary["jobs"]}
    assert summary["together"][0]["jobs"] == ["a", "b"] and told["own"]["alone"] == "it has its own --threads" and "alone" not in told["other"]
    code, summary, out, err = batch(path, "--dry-run", "--memory", "16MiB")
    assert code == 0 and summary["together"] == [] and "by itself: b: --memory is too small for one more" in out, err
    code, summary, out, err = batch(path, "--memory", "16MiB")
    assert code == 0 and set(states(summary).values()) == {"done"}, err


def test_a_failure_leaves_those_that_are_read_with_it_alone(jobs, batch, checkpoint, tessera, tmp_path):
    source = checkpoint("deepseek-v3")  # some of its values are too large for NVFP4
    path = jobs({"nvfp4": quantize(source, tmp_path / "nvfp4", "--scheme nvfp4-weight-only"), "fp8": quantize(source, tmp_path / "fp8"),
                 "after": quantize(checkpoint("llama"), tmp_path / "after")})
    code, summary, _, err = batch(path, "--quiet")
    assert code == 3 and states(summary) == {"nvfp4": "failed", "fp8": "done", "after": "not begun"}, err
    assert "tessera: nvfp4: " in err and "so large" in err and summary["jobs"][0]["result"]["error"]["code"] == 3
    harness.succeed(tessera, [*quantize(source, tmp_path / "alone"), "--quiet"])
    assert harness.tree_difference(tmp_path / "fp8", tmp_path / "alone") is None and not (tmp_path / "nvfp4/config.json").exists()
    # A finished output beside it is verified; an unfinished one is read for by itself.
    code, summary, _, _ = batch(path, "--quiet", "--keep-going")
    assert code == 3 and states(summary) == {"nvfp4": "failed", "fp8": "done", "after": "done"} and summary["jobs"][1]["complete_already"]


def test_outputs_that_are_taken_or_locked_fail_alone(jobs, batch, large, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/mine.txt").write_text("not Tessera's")
    path = jobs({"a": quantize(large, tmp_path / "a"), "taken": quantize(large, tmp_path / "taken"), "c": quantize(large, tmp_path / "c", "--scheme mxfp8")})
    code, summary, _, err = batch(path, "--quiet")
    assert code == 2 and states(summary) == {"a": "done", "taken": "failed", "c": "done"} and "mine.txt" in err
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["mine.txt"]


def test_a_failure_stops_what_has_not_begun(jobs, batch, checkpoint, tmp_path):
    source = checkpoint("llama")
    path = jobs({"first": quantize(source, tmp_path / "a"), "low": quantize(source, tmp_path / "b", "--scheme int4-weight-only --min-sqnr 90"),
                 "after": quantize(source, tmp_path / "c", "--threads 1")})
    code, summary, _, _ = batch(path)
    assert code == 1 and summary["code"] == 1 and not summary["passed"]
    assert states(summary) == {"first": "done", "low": "short", "after": "not begun"} and not (tmp_path / "c").exists()
    assert summary["jobs"][1]["result"]["passed"] is False
    code, summary, _, _ = batch(path, "--keep-going")
    assert code == 1 and states(summary) == {"first": "done", "low": "short", "after": "done"}
    assert (tmp_path / "c/config.json").exists()


def test_with_keep_going_all_goes_on_that_needs_nothing_of_what_failed(jobs, batch, checkpoint, tessera, tmp_path):
    source, taken = checkpoint("llama"), tmp_path / "taken"
    taken.mkdir()
    (taken / "mine.txt").write_text("not Tessera's")
    path = jobs({"gone": quantize(tmp_path / "nowhere", tmp_path / "a"), "needs": f"convert {tmp_path / 'a'} -o {tmp_path / 'b'} --to bf16",
                 "last": f"verify {tmp_path / 'b'} --against {source}",
                 "taken": quantize(source, taken), "short": f"diff {source} {source} --tolerance 0",
                 "low": quantize(source, tmp_path / "d", "--min-sqnr 90"), "fine": quantize(source, tmp_path / "c")})
    junit = tmp_path / "jobs.xml"
    code, summary, _, err = batch(path, "--keep-going", "--junit", junit)
    # 3 (no checkpoint) is graver than 2 (taken) and 1 (fell short).
    assert code == summary["code"] == 3, err
    assert states(summary) == {"gone": "failed", "needs": "not begun", "last": "not begun", "taken": "failed", "short": "done", "low": "short", "fine": "done"}
    told = {job["name"]: job for job in summary["jobs"]}
    assert told["needs"]["needs"] == "gone" and told["last"]["needs"] == "needs" and "tessera: last: " not in err
    assert told["gone"]["code"] == 3 and told["taken"]["code"] == 2
    assert "nowhere" in told["gone"]["message"] and told["gone"]["result"]["error"]["code"] == 3
    assert "tessera: gone: " in err and "tessera: taken: " in err
    cases = {case.get("name"): [child.tag for child in case] for case in xml.etree.ElementTree.parse(junit).getroot().iter("testcase")}
    assert cases == {"gone: quantize": ["failure"], "needs: convert": ["skipped"], "last: verify": ["skipped"], "taken: quantize": ["failure"], "short: diff": [],
                     "low: quantize": ["failure"], "fine: quantize": []}
    harness.shows(tessera, ["report", tmp_path / "summary.json"], 1, "FAIL", "nowhere")
    # Without it nothing at all begins: what cannot be planned is known before.
    code_of_all, planned, out, _ = batch(path, "--keep-going", "--dry-run")
    assert code_of_all == 3 and "cannot be planned" in out and "nowhere" in planned["jobs"][0]["message"]
    code, summary, _, err = batch(jobs({"fine": quantize(source, tmp_path / "e"), "gone": quantize(tmp_path / "nowhere", tmp_path / "f")}))
    assert code == 3 and "line 2: job 'gone'" in err and not (tmp_path / "e").exists() and summary["error"]["code"] == 3


# what is wrong -> (exit code, words of the message). Nothing of it may begin. OUT is a fresh folder, SRC a checkpoint.
WRONG = {
    '{"name": "a", "args": ["quantize", "SRC", "-o", "OUT/a", "--sheme", "mxfp8"]}': (2, ["line 1: job 'a'", "--sheme", "did you mean '--scheme'?"]),
    '{"name": "a", "args": ["quantize", "SRC", "-o", "OUT/a"]}\n{"name": "b", "args": ["verify", "OUT/a"]}': (2, ["line 2: job 'b'", "--against"]),
    '{"name": "a", "args": ["verify", "SRC", "--against", "SRC", "--min-sqnr", "lots"]}': (2, ["job 'a'", "--min-sqnr", "lots"]),
    '{"name": "a", "args": ["quantise", "SRC", "-o", "OUT/a"]}': (2, ["job 'a'", "quantise"]),
    '{"name": "a", "args": ["batch", "SRC/config.json"]}': (2, ["job 'a'", "batch"]),
    '{"name": "a", "args": ["quantize", "SRC", "-o", "OUT/a", "--shard=0/2"]}': (2, ["--shard", "tessera finish"]),
    '{"name": "a", "args": ["finish", "OUT/a"]}': (2, ["cannot be used in a batch"]),
    '{"name": "a", "args": ["quantize", "SRC", "-o", "OUT/a", "--dry-run"]}': (2, ["--dry-run", "option of the batch"]),
    '{"name": "a", "args": ["quantize", "SRC", "-o", "OUT/a", "--progress=jsonl"]}': (2, ["--progress", "option of the batch"]),
    '{"name": "a", "args": ["quantize", "--help"]}': (2, ["--help"]),
    '{"name": "a", "args": ["inspect", "SRC", "--json", "-"]}': (2, ["--json", "stdout"]),
    '{"name": "a", "args": ["quantize", "SRC", "-o", "OUT/a"]}\n\n{"name": "b", "args": ["quantize", "SRC", "-o", "OUT/x/../a"]}':
        (2, ["line 3: job 'b'", "'a' in line 1", "give each output its own path"]),
    '{"name": "a", "args": ["quantize", "SRC", "-o", "OUT/a"]}\n{"name": "b", "args": ["quantize", "SRC", "-o", "OUT/a/b"]}': (2, ["job 'b'", "lies in"]),
    '{"name": "a", "args": ["quantize", "SRC", "-o", "OUT/a"]}\n{"name": "b", "args": ["inspect", "SRC", "--json", "OUT/a/b.json"]}': (4, ["job 'b'"]),
    '{"name": "a", "args": ["diff", "SRC", "OUT/a"]}\n{"name": "b", "args": ["quantize", "SRC", "-o", "OUT/a"]}':
        (2, ["job 'a'", "job 'b' in line 2 writes", "put that job first"]),
    '{"name": "a", "args": ["inspect", "SRC"]}\n{"name": "b", "args": ["quantize", "OTHER", "-o", "SRC/out"]}': (2, ["job 'b'", "lies in", "SRC"]),
    '{"name": "a", "args": ["inspect", "SRC"]}\n{"name": "b", "args": ["quantize", "OTHER", "-o", "LINK"]}': (2, ["job 'b'", "SRC"]),
    '{"name": "a", "args": ["quantize", "SRC", "-o", "OUT/a", "--min-sqnr", 30]}': (3, ["line 1", "string"]),
    '{"name": "a", "args": "quantize SRC -o OUT/a"}': (3, ["line 1", "array"]),
    '{"name": "a", "args": []}': (3, ["line 1", "empty"]),
    '{"name": "a", "arg": ["inspect", "SRC"]}': (3, ["line 1", "'arg'", "did you mean 'args'?"]),
    '{"args": ["inspect", "SRC"]}': (3, ["line 1", "has no 'name'"]),
    '{"name": "a"}': (3, ["line 1", "has no 'args'"]),
    '{"name": "a", "name": "b", "args": ["inspect", "SRC"]}': (3, ["line 1", "duplicate key"]),
    '{"name": "a", "args": ["inspect", "SRC"]}\n{"name": "a", "args": ["inspect", "SRC"]}': (3, ["line 2", "duplicate job name 'a', also in line 1"]),
    '{"name": "../a", "args": ["inspect", "SRC"]}': (3, ["line 1", "../a"]),
    '[\n  {"name": "a", "args": ["inspect", "SRC"]},\n\n  {"name": "b", "args": ["inspect", "SRC", "--what"]}\n]': (2, ["line 4: job 'b'", "--what"]),
    '[{"name": "a", "args": ["inspect", "SRC"]}] 7': (3, ["JSON"]),
    '[{"name": "a", "args": ["inspect", "SRC"]}': (3, ["JSON"]),
    '{\n"name": "a", "args": ["inspect", "SRC"]}': (3, ["line 1", "JSON"]),
    '{"name": "a", "args": ["inspect", "SRC"]} {"name": "b", "args": ["inspect", "SRC"]}': (3, ["line 1", "JSON"]),
    '[' * 100000: (3, ["line 1"]),
    '{"name": "a", "args": ' + '[' * 100000: (3, ["line 1"]),
    '"name"': (3, ["expected an array of jobs"]),
    '[]': (3, ["no job"]),
    '': (3, ["no job"]),
    '{"name": "a", "args": ["inspect", "SRC\\u0000"]}': (3, ["line 1"]),
    '{"name": "a", "args": ["inspect", "SRC\\u0007"]}': (2, ["control character"]),
    '{"name": "a", "args": ["inspect", "\xff"]}': (3, ["line 1", "UTF-8"]),
    '[' + ','.join('{"name": "a%d", "args": ["inspect", "SRC"]}' % i for i in range(1001)) + ']': (3, ["more than 1000 jobs"]),
}


@pytest.mark.parametrize("text, code, words", [(text, *told) for text, told in WRONG.items()], ids=range(len(WRONG)))
def test_what_is_wrong_is_told_before_anything_begins(text, code, words, checkpoint, tessera, tmp_path):
    source, out, path = checkpoint("llama"), tmp_path / "out", tmp_path / "jobs.json"
    out.mkdir()
    (tmp_path / "link").symlink_to(source)
    for word, stands in (("SRC", source), ("OTHER", checkpoint("giant") if "OTHER" in text else ""), ("OUT", out), ("LINK", tmp_path / "link")):
        text = text.replace(word, str(stands))
    path.write_bytes(text.encode("latin-1"))
    before = {entry.name for entry in source.iterdir()}
    for more in ([], ["--keep-going"], ["--dry-run"]):
        ended, _, err = harness.run(tessera, ["batch", path, "--quiet", *more])
        assert ended == code and err.startswith("tessera: ") and err.count("\n") == 1, err
        assert str(path) in err and all(word.replace("SRC", str(source)) in err for word in words), err
    assert {entry.name for entry in source.iterdir()} == before and not list(out.iterdir())


def test_what_the_batch_writes_is_apart_from_its_jobs(jobs, checkpoint, tessera, tmp_path):
    source = checkpoint("llama")
    path = jobs({"a": quantize(source, tmp_path / "a"), "b": f"inspect {source} --json {tmp_path / 'b.json'}"})
    for option, words in ((["--json", source / "x.json"], ["job 'a'", "x.json"]), (["--junit", tmp_path / "b.json"], ["b.json"]),
                          (["--json", path], ["jobs.jsonl"]), (["--results", tmp_path / "a"], ["job 'a'"])):
        code, _, err = harness.run(tessera, ["batch", path, *option])
        assert code == 2 and not (tmp_path / "a/config.json").exists(), err
    outer = jobs({"a": quantize(source, tmp_path)})
    code, _, err = harness.run(tessera, ["batch", outer])
    assert code == 2 and "jobs.jsonl" in err and outer.exists(), err


def test_results_lie_where_they_are_wanted(jobs, batch, checkpoint, tessera, tmp_path):
    source, mine = checkpoint("llama"), tmp_path / "mine.json"
    path = jobs({"a": quantize(source, tmp_path / "a"), "b": [*quantize(source, tmp_path / "b", "--scheme mxfp8"), "--json", mine],
                 "c": f"inspect {tmp_path / 'a'}"})
    broken = jobs({"a": quantize(source, tmp_path / "a"), "b": f"inspect {source} --json {tmp_path / 'new/b.json'} --junit {tmp_path / 'new/./b.json'}"}, "broken.jsonl")
    code, _, err = harness.run(tessera, ["batch", broken, "--results", tmp_path / "new/results"])[:3]
    assert code == 2 and "--junit" in err and not (tmp_path / "new").exists(), err
    code, _, err = harness.run(tessera, ["batch", jobs({"a": f"inspect {source} --json {tmp_path / 'newer/a.json'}"}, "other.jsonl"), "--results", tmp_path / "new"])
    assert code != 0 and "newer" in err and not (tmp_path / "new").exists(), err
    fine = jobs({"a": f"inspect {source} --json {tmp_path / 'new/./results//own.json'}", "b": f"inspect {source} --json {tmp_path / 'new/b.json'}", "c": f"inspect {source}"}, "fine.jsonl")
    harness.succeed(tessera, ["batch", fine, "--results", f"{tmp_path}//new/results/"])
    assert {str(p.relative_to(tmp_path / "new")) for p in (tmp_path / "new").rglob("*.json")} == {"results/own.json", "b.json", "results/c.json"}
    code, summary, _, err = batch(path, "--results", tmp_path / "results")
    assert code == 0, err
    files = {job["name"]: job["result_file"] for job in summary["jobs"]}
    assert files == {"a": f"{tmp_path}/results/a.json", "b": str(mine), "c": f"{tmp_path}/results/c.json"}
    assert all(job["result"] is None and json.loads(pathlib.Path(job["result_file"]).read_text())["version"] for job in summary["jobs"])
    harness.succeed(tessera, ["report", *files.values()])
    # A job that could not start has no result, even if it had one the last time.
    path = jobs({"a": quantize(source, tmp_path / "d", "--min-sqnr 90"), "c": f"inspect {tmp_path / 'a'}"}, "again.jsonl")
    code, summary, _, err = batch(path, "--results", tmp_path / "results")
    assert code == 1 and summary["jobs"][1]["result_file"] is None and [p.name for p in (tmp_path / "results").iterdir()] == ["a.json"], err
    path = tmp_path / "jobs.jsonl"
    # Without the option, results without a file of their own are in the summary.
    code, summary, _, _ = batch(path)
    assert code == 0 and [job["result"] and job["result"]["schema"] for job in summary["jobs"]] == ["tessera-quantize/1", None, "tessera-inspect/1"]


def test_stdout_has_the_summary_alone(jobs, checkpoint, tessera, tmp_path):
    path = jobs({"a": quantize(checkpoint("llama"), tmp_path / "a"), "b": f"inspect {tmp_path / 'a'}"})
    code, out, err = harness.run(tessera, ["batch", path, "--json", "-"])
    assert code == 0 and json.loads(out)["passed"], err
    code, out, err = harness.run(tessera, ["batch", path, "--quiet"])
    assert code == 0 and out == err == ""


def test_progress_names_the_job(jobs, checkpoint, tessera, tmp_path):
    path, told = jobs({"a": quantize(checkpoint("llama"), tmp_path / "a"), "b": f"diff {tmp_path / 'a'} {tmp_path / 'a'}"}), tmp_path / "p.jsonl"
    code, _, err = harness.run(tessera, ["batch", path, "--quiet", "--progress", "jsonl", "--progress-file", told])
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    assert code == 0 and told.read_text() == err
    assert {(line.get("job"), line["phase"]) for line in lines} == {("a", "quantizing"), ("a", "ended"), ("b", "comparing"), ("b", "ended"), (None, "ended")}
    assert "job" not in lines[-1]
    source = checkpoint("llama")
    path = jobs({"c": quantize(source, tmp_path / "c"), "d": f"convert {source} -o {tmp_path / 'd'} --to tp --tp 2"})
    code, out, err = harness.run(tessera, ["batch", path, "--progress", "jsonl"])
    assert code == 0 and {json.loads(line).get("job") for line in err.splitlines()} == {"c, d", None}


def test_what_the_batch_passes_on(jobs, batch, checkpoint, tmp_path):
    source = checkpoint("llama")
    path = jobs({"a": quantize(source, tmp_path / "a"), "b": quantize(source, tmp_path / "b", "--threads 1"), "c": f"inspect {source}",
                 "d": f"verify {tmp_path / 'a'} --against {source}", "e": f"verify {tmp_path / 'a'} --against {source} --threads 1"})
    code, summary, out, err = batch(path, "--threads", "3", "--memory", "64MiB", "--cpumask", "0")
    assert code == 0 and [job["result"]["threads"] for job in summary["jobs"][:2]] == [3, 1], err
    assert re.findall(r"tensors, .* read in .*, (\d) threads?", out) == ["3", "1"], out
    assert batch(path, "--threads", "none")[0] == 2


def test_a_dry_run_writes_nothing(jobs, batch, checkpoint, tmp_path):
    source = checkpoint("llama")
    path = jobs({"a": quantize(source, tmp_path / "a"), "b": f"convert {tmp_path / 'a'} -o {tmp_path / 'b'} --to bf16",
                 "c": f"inspect {source}"})
    code, summary, out, err = batch(path, "--dry-run", "--results", tmp_path / "results")
    assert code == 0 and not (tmp_path / "a").exists() and not (tmp_path / "results").exists(), err
    first, second, third = summary["jobs"]
    assert first["bytes_in"] > 0 and first["bytes_out"] > 0 and second["after"] == ["a"] and set(states(summary).values()) == {"planned"}
    assert "after a" in out and "reads only" in out and not any("message" in job for job in (first, second, third))


def test_a_dry_run_warns_as_the_run_does(jobs, batch, checkpoint, tmp_path):
    source = shutil.copytree(checkpoint("llama"), tmp_path / "nobody")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"model_type": "nobody"}))
    path = jobs({"a": quantize(source, tmp_path / "a", "--include *norm*"), "b": quantize(checkpoint("llama"), tmp_path / "b")})
    want = ["unknown model_type 'nobody': general rules; check with --dry-run",
            "--include '*norm*' matches 5 tensors, none of which can be quantized: --dry-run says why"]
    code, summary, _, err = batch(path, "--dry-run")
    assert code == 0 and err.splitlines() == ["tessera: a: " + line for line in want]
    assert summary["jobs"][0]["warnings"] == want and "warnings" not in summary["jobs"][1]
    code, summary, _, err = batch(path)
    assert code == 0 and err.splitlines() == ["tessera: a: " + line for line in want]
    assert summary["jobs"][0]["result"]["warnings"] == want and "warnings" not in summary["jobs"][0]


def test_no_command_does_anything_when_it_is_rehearsed(jobs, batch, checkpoint, tmp_path):
    """A rehearsal of a command stops when its paths are checked, before any work. The commands themselves do not know about
    it."""
    source, out = checkpoint("deepseek-v3"), tmp_path / "out"
    out.mkdir()
    words = {"SRC": source, "FP8": source, "INT8": source, "INT4": source, "TOKENS": tmp_path / "tokens.txt", "STATS": out / "stats.safetensors"}
    words["TOKENS"].write_text("1 2 3")
    commands = {name: [words.get(word, str(out / name) if word in ("OUT", "JSON") else word.replace("FP8:", f"{source}:"))
                       for word in command.replace("--json JSON", f"--json {out / name}.json").split() if word != "--dry-run"]
                for name, command in results.COMMANDS.items() if not name.startswith(("batch", "shard", "finish", "quantize-proof"))}
    commands["report"] = ["report", out / "verify.json", "--json", out / "report.json", "--markdown", out / "report.md"]
    code, summary, printed, err = batch(jobs(commands), "--dry-run", "--keep-going")
    assert code in (0, 1, 3) and set(states(summary)) == set(commands) and err == "", err
    assert list(out.iterdir()) == []


def test_killed_and_carried_on(jobs, batch, checkpoint, tessera, tmp_path):
    """After kill -9 and Ctrl-C at several moments, the same command writes the same files as an undisturbed run."""
    source = checkpoint("qwen3-moe")
    commands = {name: (options, tmp_path / name) for name, options in SCHEMES.items()}
    path = jobs({name: quantize(source, target, options) for name, (options, target) in commands.items()} |
                {"bf16": f"convert {tmp_path / 'fp8'} -o {tmp_path / 'bf16'} --to bf16 --max-shard-size 1MB"})
    began = time.monotonic()
    assert batch(path)[0] == 0
    whole = time.monotonic() - began
    names = [*SCHEMES, "bf16"]
    for name in names:
        (tmp_path / name).rename(tmp_path / f"{name}-undisturbed")
    shutil.rmtree(tmp_path / "bf16-undisturbed/.tessera")  # it names times of its source, which is made again
    for moment, number in enumerate([signal.SIGKILL, signal.SIGINT, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL]):
        with subprocess.Popen([tessera, "batch", path, "--quiet", "--json", tmp_path / "killed.json"], stderr=subprocess.PIPE) as process:
            time.sleep(whole * (moment + 0.5) / 8)
            process.send_signal(number)
            err = process.communicate()[1].decode()
        if process.returncode not in (0, -number):  # a signal before it listens ends it as it ends any program
            assert process.returncode == 130 and "repeat the command to resume" in err
            summary = json.loads((tmp_path / "killed.json").read_text())
            assert summary["code"] == 130 and not summary["passed"]
    code, summary, _, err = batch(path)
    assert code == 0 and set(states(summary).values()) == {"done"}, err
    shutil.rmtree(tmp_path / "bf16/.tessera")
    for name in names:
        assert harness.tree_difference(tmp_path / f"{name}-undisturbed", tmp_path / name) is None
