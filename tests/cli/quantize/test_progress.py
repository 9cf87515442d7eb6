"""Tests --progress jsonl and --progress-file: one JSON object per line that matches the schema, from each long job."""

import json
import os
import pathlib
import re
import subprocess

import harness
import jsonschema
import pytest

SCHEMA = json.loads((pathlib.Path(__file__).resolve().parents[3] / "docs/schemas/progress.schema.json").read_text())
# The command, and the phase that it has to name; those that read no bytes count what they look at.
JOBS = {
    "quantize SRC -o OUT": "quantizing", "convert FP8 -o OUT --to bf16": "converting",
    "verify FP8 --against SRC": "comparing", "diff SRC FP8 --tolerance 1": "comparing", "compare-schemes SRC": "comparing",
    "plan-schemes SRC --bits 9": "comparing", "verify forward FP8 --against SRC --count 4": "verifying",
    "verify gemm FP8 --device cpu --sample 3 --columns 128": "verifying",
}


def lines(text):
    """Reads the objects and checks each against the schema without additional members. The last one has the phase `ended`."""
    told = [json.loads(line) for line in text.splitlines()]
    for line in told:
        jsonschema.Draft202012Validator(SCHEMA | {"additionalProperties": False}).validate(line)
        for what in ("bytes", "items"):
            assert line.get(f"{what}_done", 0) <= line.get(f"{what}_total", 0)
    assert [line["phase"] for line in told].count("ended") == 1 and told[-1]["phase"] == "ended"
    return told


@pytest.fixture
def words(checkpoint, quantize, tmp_path):
    places = {"SRC": checkpoint("llama"), "FP8": quantize(checkpoint("llama")), "OUT": tmp_path / "out"}
    return lambda command: [places.get(word, word) for word in command.split()]


@pytest.mark.parametrize("command", JOBS)
def test_every_long_job_tells(command, words, tessera, tmp_path):
    path = tmp_path / "progress.jsonl"
    path.write_text("of an earlier run\n")
    code, out, err = harness.run(tessera, words(command) + ["--progress", "jsonl", "--progress-file", path])
    assert code == 0 and out, err
    assert path.read_text() == err  # nothing but these lines, and the same in both
    told = lines(err)
    whole = [line for line in told if line["phase"] == JOBS[command]][-1]
    for what in ("bytes", "items"):
        assert whole.get(f"{what}_done") == whole.get(f"{what}_total")
    assert whole.get("bytes_total", whole.get("items_total", 0)) > 0 and whole["seconds_left"] == 0


def test_people_see_text_beside_the_file(words, tessera, tmp_path):
    code, out, err = harness.run(tessera, words("verify FP8 --against SRC") + ["--progress-file", tmp_path / "p.jsonl"])
    assert code == 0 and err == "" and "PASS" in out and lines((tmp_path / "p.jsonl").read_text())
    code, out, err = harness.run(tessera, words("verify FP8 --against SRC --quiet --progress jsonl"))
    assert code == 0 and out == "" and lines(err)


def test_a_job_that_fails_ends_its_lines(words, tessera, tmp_path):
    fp8 = pathlib.Path(words("FP8")[0])
    shard = next(fp8.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-8] + b"\xff" * 8)
    code, _, err = harness.run(tessera, words("verify FP8 --against SRC --progress jsonl"))
    assert code == 1 and lines(err)


def test_a_pipe_gets_them_and_holds_nothing_up(words, tessera):
    """Tests a pipe with a reader, a full one, which loses lines, and one whose reader has closed it, which causes one
    message."""
    for action in ("read", "full", "gone"):
        reader, writer = os.pipe()
        if action == "full":
            os.set_blocking(writer, False)
            while True:
                try:
                    os.write(writer, b"x" * 4096)
                except BlockingIOError:
                    break
        if action == "gone":
            os.close(reader)
        done = subprocess.run([tessera, *map(str, words("verify FP8 --against SRC")), "--progress-file", f"/dev/fd/{writer}"],
                              pass_fds=[writer], capture_output=True, text=True, timeout=60)
        os.close(writer)
        assert done.returncode == 0, done.stderr
        if action == "read":
            lines(os.read(reader, 1 << 16).decode())
        assert done.stderr.count("cannot write") == len(done.stderr.splitlines()) == (action == "gone")
        if action != "gone":
            os.close(reader)


def test_a_pipe_without_a_reader_is_refused(words, tessera, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    code, _, err = harness.run(tessera, words("verify FP8 --against SRC") + ["--progress-file", tmp_path / "fifo"], timeout=60)
    assert code == 4 and "a pipe without a reader" in err


def test_a_device_that_is_full(words, tessera):
    code, out, err = harness.run(tessera, words("verify FP8 --against SRC --progress-file /dev/full"))
    assert code == 0 and "PASS" in out and err.count("/dev/full: cannot write") == 1


@pytest.mark.parametrize("where, why", [("SRC/progress.jsonl", "lies in"), ("-", "stdout is for results"), ("FP8/config.json", "is a file of")])
def test_where_it_may_not_lie(where, why, words, tessera):
    folder, _, name = where.partition("/")
    path = words(folder)[0] / name if name else where
    harness.expect(tessera, words("verify FP8 --against SRC") + ["--progress-file", path], 2, why)


@pytest.mark.parametrize("locale, cells", [("C.UTF-8", "█░"), ("C", "#.")])
def test_a_terminal_gets_a_bar(locale, cells, words, tessera):
    """The bar fits on the line and fills up. A pipe gets none."""
    _, shown = harness.on_terminal(tessera, words("quantize SRC -o OUT"), 100, LC_ALL=locale)
    lines = [line for line in re.split("\r\x1b\\[K|\n", shown) if "%)" in line and "left" in line]
    bars = [re.search(rf"  \[([{cells}]+)\]$", line).group(1) for line in lines]
    assert bars and all(len(line) < 100 for line in lines), shown
    full = [bar.count(cells[0]) for bar in bars]
    shares = [n / len(bar) for bar, n in zip(bars, full)]  # the rest of the line, and so the bar, has no fixed width
    assert shares == sorted(shares) and all(bar == cells[0] * n + cells[1] * (len(bar) - n) for bar, n in zip(bars, full))
    assert "[" not in harness.run(tessera, words("quantize SRC -o OUT") + ["--force"])[2]
