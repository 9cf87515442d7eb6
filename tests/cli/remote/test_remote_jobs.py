"""Tests jobs on remote sources: kills, what a rerun reads, headers and samples only, logins, batches, a large model."""

import base64
import json
import os
import random
import shutil
import subprocess
import sys
import time

import deepseek_v3
from forward_oracle import Whole
import harness
import pytest
import remote_servers

KILLS = int(os.environ.get("TESSERA_REMOTE_KILLS", 5))
# A small process: one of pytest's size would be measured in place of the tool.
MEASURE = """import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, file=sys.stderr)"""
SMALL_SHARDS = ["--max-shard-size", "300KB"]


@pytest.fixture(scope="module")
def models(checkpoint, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    shutil.copytree(checkpoint("llama"), root / "llama")
    return root


def weights_read(server):
    """Returns the bytes of weights that were requested."""
    total = 0
    for _, path, headers in server.requests:
        if path.endswith(".safetensors") and "Range" in headers:
            low, high = headers["Range"].removeprefix("bytes=").split("-")
            total += int(high) - int(low) + 1
    return total


def test_killed_jobs_resume(tessera, models, tmp_path):
    """A job is killed at a random request. No unfinished output has a config.json, and a rerun writes the same bytes."""
    words = ["quantize", models / "llama", "-o", tmp_path / "right", "--quiet", *SMALL_SHARDS]
    harness.succeed(tessera, words)
    chance, killed = random.Random(3), 0
    while killed < KILLS:
        out, last, job = tmp_path / f"out-{killed}", chance.randrange(8, 40), []

        def kill(handler):
            if len(handler.server.requests) == last:
                job[0].kill()

        with remote_servers.Server(models, fault=kill) as server:
            command = [tessera, "quantize", f"{server.url}/llama", "-o", str(out), "--quiet", *SMALL_SHARDS]
            job.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            code = job[0].wait()
            assert code in (0, -9)
            if code == -9:
                assert not (out / "config.json").exists()
                killed += 1
            harness.succeed(tessera, command[1:])
            difference = remote_servers.outputs_differ(tmp_path / "right", out, server.url)
        assert difference is None, difference
        shutil.rmtree(out)


def test_a_rerun_reads_what_is_missing(tessera, models, tmp_path):
    """A job fails at its last shard. The rerun reads only headers and that shard."""
    out = tmp_path / "out"
    words = ["-o", out, "--quiet", "--threads", "1", *SMALL_SHARDS]
    with remote_servers.Server(models) as server:
        harness.succeed(tessera, ["quantize", f"{server.url}/llama", *words])
        whole = weights_read(server)
        server.requests.clear()
        shutil.rmtree(out)
        server.fault = lambda handler: "etag" if weights_read(server) > whole - 200_000 else None
        harness.expect(tessera, ["quantize", f"{server.url}/llama", *words], 4)
        finished = len([*out.glob("*.safetensors")])
        assert finished >= 3 and not (out / "config.json").exists()
        server.requests.clear()
        server.fault = lambda handler: None
        harness.succeed(tessera, ["quantize", f"{server.url}/llama", *words])
        assert weights_read(server) < whole * 0.7, (weights_read(server), whole)


@pytest.mark.parametrize("words, most", [
    (["inspect", "SRC"], 0.05), (["inspect", "SRC", "--can-load", "all"], 0.05), (["quantize", "SRC", "--dry-run"], 0.05),
    (["compare-schemes", "SRC", "--sample", "2"], 0.5),
])
def test_headers_and_samples_only(words, most, tessera, models):
    with remote_servers.Server(models) as server:
        code, _, err = harness.run(tessera, [word.replace("SRC", f"{server.url}/llama") for word in words])
        assert code in (0, 1) and err == "", err
        assert weights_read(server) <= (models / "llama" / "model.safetensors").stat().st_size * most


class Login(remote_servers.Handler):
    """Requires a login, and redirects the file of weights to another port."""

    def route(self, path):
        other = self.server.settings["other"]
        if self.headers.get("Authorization") != "Basic " + base64.b64encode(b"someone:SecretOfTheTests").decode():
            return self.answer(401, WWW_Authenticate="Basic")
        if path.endswith(".safetensors"):
            return self.answer(302, Location=f"{other.url}{path}?Signature=secret-of-the-query")
        return super().route(path)


def test_logins_stay_with_their_host(tessera, models, tmp_path):
    """The login of ~/.netrc is sent to the host of the address, not to the target of a redirect. No text contains it."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login someone password SecretOfTheTests\n")
    environment = dict(os.environ, HOME=str(tmp_path))
    with remote_servers.Server(models) as other, remote_servers.Server(models, Login, other=other) as server:
        told = harness.run_in(environment, tessera, ["quantize", f"{server.url}/llama", "-o", tmp_path / "out"])
        assert told[0] == 0, told
        assert len(other.requests) > 5 and not any("Authorization" in headers for _, _, headers in other.requests)
        texts = [told[1], told[2], *(path.read_bytes().decode(errors="replace") for path in (tmp_path / "out").rglob("*") if path.is_file())]
        assert not any(secret in text for text in texts for secret in ("SecretOfTheTests", "secret-of-the-query"))
        code, _, err = harness.run_in(dict(environment, HOME="/nonexistent"), tessera, ["inspect", f"{server.url}/llama"])
        assert code == 4 and "~/.netrc" in err, err


def test_a_proof(tessera, tmp_path):
    """The figures for a remote source equal those for a local one. Text needs the tokenizer of a local one."""
    results, tokens, text = [tmp_path / f"{n}.json" for n in range(2)], tmp_path / "tokens.txt", tmp_path / "text.txt"
    tokens.write_text("1 2 3 4")
    text.write_text("Some words.")
    words = ["--scheme", "mxfp4-weight-only", "--scales", "mse", "--device", "cpu", "--quiet", "--prove"]
    models = tmp_path / "models"
    models.mkdir()
    Whole("llama").write(models / "llama")
    with remote_servers.Server(models) as server:
        for n, source in enumerate((f"{server.url}/llama", models / "llama")):
            code, _, err = harness.run(tessera, ["quantize", source, "-o", tmp_path / f"out-{n}", *words, tokens, "--json", results[n]])
            assert code in (0, 1), err
        code, _, err = harness.run(tessera, ["quantize", f"{server.url}/llama", "-o", tmp_path / "none", *words, text])
    assert code == 3 and "tokenizer.json" in err and not (tmp_path / "none").exists(), err
    remote, local = (json.loads(path.read_text())["proof"] for path in results)
    assert remote["baseline"] is not None and {**remote, "seconds": 0} == {**local, "seconds": 0}


def test_batch(tessera, models, tmp_path):
    """Jobs of one source share its reads; the outputs are those of single jobs."""
    schemes = ("fp8-channel", "int8-channel")
    with remote_servers.Server(models) as server:
        lines = [json.dumps({"name": scheme, "args": ["quantize", f"{server.url}/llama", "-o", str(tmp_path / scheme), "--scheme", scheme]}) for scheme in schemes]
        (tmp_path / "jobs.jsonl").write_text("\n".join(lines) + "\n")
        harness.succeed(tessera, ["batch", tmp_path / "jobs.jsonl", "--quiet"])
        for scheme in schemes:
            right = tmp_path / f"right-{scheme}"
            harness.succeed(tessera, ["quantize", models / "llama", "-o", right, "--scheme", scheme, "--quiet"])
            assert remote_servers.outputs_differ(right, tmp_path / scheme, server.url) is None


def test_headers_of_a_large_model(tessera, tmp_path):
    """163 files of 1.37 TB are sparse on the server. Reading the headers takes less than 3 s and 100 MB."""
    if not remote_servers.find_nginx():
        pytest.skip("nginx is not installed (Debian: nginx-light)")
    root = tmp_path / "models"
    root.mkdir()
    deepseek_v3.make(root / "v3")
    with remote_servers.nginx(root, tmp_path / "work") as url:
        begin = time.monotonic()
        done = subprocess.run([sys.executable, "-c", MEASURE, tessera, "inspect", f"{url}/v3"], capture_output=True, text=True, check=True)
        took = time.monotonic() - begin
    cpu, peak = map(float, done.stderr.split())
    assert "46183 tensors" in done.stdout
    if "asan" not in tessera and "tsan" not in tessera:
        assert cpu < 3 and took < 30 and peak < 100e6, (cpu, took, peak)
