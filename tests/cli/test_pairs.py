"""Tests that inspect, diff and verify accept each output of each command, or suggest a remedy.

Also runs the command that each run suggests ("next: ...")."""

import json
import os
import pathlib
import re
import shlex
import shutil

import harness
import jobs
import manifests
import pytest
import turns
import zstandard

ROWS = jobs.JOBS + jobs.MORE
TAKEN = jobs.JOBS + turns.part(jobs.MORE, 2)
# Words of the message of a command that cannot read the output, or the source, of a row.
REMEDIES = ("--merge", "--from deepseek-mp", "--from fastertransformer", "--from trtllm")


def kind_of(job):
    """Returns the kind of checkpoint and options of make_checkpoint. Divisions need dimensions of whole blocks per rank."""
    if not job.kind.startswith("deepseek-v3"):
        return job.kind, {}
    return "deepseek-v3", {"scale": "small" if job.kind.endswith("-small") else "tiny"}


def bytes_of(source):
    """Returns the bytes of all files of a folder; for an archive those of its uncompressed files."""
    archives = list(pathlib.Path(source).rglob("*.zst"))
    held = [zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True).read() for path in archives]
    return harness.bytes_of(source) + sum(map(len, held)) - sum(path.stat().st_size for path in archives)


def run_as_printed(tessera, line, directory):
    """Runs a "next:" line in a shell whose `tessera` is the tool. Returns (exit code, stdout, stderr)."""
    tools = directory / "bin"
    tools.mkdir(exist_ok=True)
    if not (tools / "tessera").exists():
        (tools / "tessera").symlink_to(tessera)
    return harness.run("env", [f"PATH={tools}:{os.environ['PATH']}", "sh", "-c", line])


def test_rows_have_names_of_their_own():
    assert len({job.name for job in ROWS}) == len(ROWS)


@pytest.mark.parametrize("job", TAKEN, ids=[job.name for job in TAKEN])
def test_outputs_are_read(tmp_path, tessera, maker, job):
    kind, options = kind_of(job)
    src, dst = jobs.make_source(tessera, maker, job, kind, tmp_path / "source", **options), tmp_path / "output"
    words = [w for w in jobs.words(job.command, src, dst) if w != "--quiet"]
    out = harness.succeed(tessera, [*words, "--json", tmp_path / "told.json"])
    told = json.loads((tmp_path / "told.json").read_text())
    manifests.check(dst)  # every byte of every file is in it
    # And every byte that was read of the source, where the test can read it as well: not in archives and folders of ranks.
    assert manifests.check_reads(dst, src)[0] > 0 or not list(pathlib.Path(src).glob("*.safetensors"))
    # No byte of the source is read twice; those that separate what is read from what is not may be read in vain.
    assert 0 < told["bytes_read"] <= 1.01 * (bytes_of(src) + sum(map(bytes_of, tmp_path.glob("*-lora"))))
    (line,) = re.findall("^next: (.*)$", out, re.M)
    assert line.startswith("tessera ")
    following = run_as_printed(tessera, line, tmp_path)
    assert following[0] == 0, f"{line}\n{following}"
    commands = {"inspect": ["inspect", dst], "diff": ["diff", src, dst], "verify": ["verify", dst, "--against", src]}
    for name, words in commands.items():
        ran_already = shlex.split(line)[1:] == list(map(str, words))
        code, out, err = following if ran_already else harness.run(tessera, words)
        assert code == getattr(job.codes, name), f"{name}: exit {code}\n{out}{err}"
        assert code != 3 or any(remedy in err for remedy in REMEDIES), err
        if (name, code) == ("verify", 1):  # of a merge: the updates, and nothing else
            assert set(re.findall("^FAIL *([a-z]+)", out, re.M)) <= {"values", "blocks"}, out
            continue
        assert code != 1 or (name == "diff" and not re.search("[1-9][0-9]* (misshaped|missing|extra)", out)), out
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.parametrize("name", ["with space", "it's", "-dash", "$HOME", "a;b"])
def test_paths_are_printed_as_a_shell_takes_them(tmp_path, tessera, checkpoint, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (["quantize"], ["convert", "--to", "tp", "--tp", "1"]):
        dst = f"{name} {command[0]}"
        out = harness.succeed(tessera, [command[0], checkpoint("llama"), "-o", dst, *command[1:]])
        (line,) = re.findall("^next: (.*)$", out, re.M)
        assert shlex.split(line)[0] == "tessera"
        code, *said = run_as_printed(tessera, line, tmp_path)
        assert code == 0, f"{line}\n{said}"


@pytest.mark.parametrize("target", [("bf16",), ("fp8-block", "--scale-fmt", "ue8m0")])
def test_a_single_file_with_its_blocks_stated(tmp_path, tessera, quantize, checkpoint, target):
    src, dst = quantize(checkpoint("llama")) / "model.safetensors", tmp_path / "output"
    out = harness.succeed(tessera, ["convert", src, "-o", dst, "--source-block", "128x128", "--to", *target])
    (line,) = re.findall("^next: (.*)$", out, re.M)
    code, *said = run_as_printed(tessera, line, tmp_path)
    assert code == 0, f"{line}\n{said}"
