"""Tests https:// sources: every command on nginx gives what it gives on disk; TLS, listings, refusals, faults."""

import json
import os
import random
import shutil
import subprocess
import time

import adapters
import harness
import pytest
import remote_servers
import turns

pytestmark = pytest.mark.in_turn

FAULTS = int(os.environ.get("TESSERA_REMOTE_FAULTS", 200 if turns.whole() else 80))
KINDS = ["429", "503", "500", "cut", "reset", "range"]


@pytest.fixture(scope="module")
def models(tessera, checkpoint, tmp_path_factory):
    """A folder of models, with names that must be escaped in URLs, and a folder in a model."""
    root = tmp_path_factory.mktemp("models")
    for kind in ("llama", "deepseek-v3"):
        shutil.copytree(checkpoint(kind), root / kind)
    (root / "llama" / "odd & name+%20é#1.txt").write_text("text")
    (root / "llama" / "empty.txt").write_text("")
    (root / "llama" / "folder").mkdir()
    (root / "llama" / "folder" / "more.json").write_text("{}")
    adapters.for_base(root / "lora", root / "llama")
    for words in (["quantize", root / "llama", "-o", root / "quantized"], ["convert", root / "llama", "-o", root / "ranks", "--to", "tp", "--tp", "2"],
                  ["convert", root / "llama", "-o", root / "packed", "--to", "archive"]):
        harness.succeed(tessera, [*words, "--quiet"])
    for state in [*root.rglob(".tessera")]:
        shutil.rmtree(state)
    return root


@pytest.fixture(scope="module")
def served(models, tmp_path_factory):
    if not remote_servers.find_nginx():
        pytest.skip("nginx is not installed (Debian: nginx-light)")
    with remote_servers.nginx(models, tmp_path_factory.mktemp("nginx") / "work") as url:
        yield url


WRITERS = {
    "fp8": "quantize SRC/llama --scheme fp8-block",
    "int4": "quantize SRC/llama --scheme int4-weight-only",
    "nvfp4": "quantize SRC/packed --scheme nvfp4-weight-only",
    "tensor": "quantize SRC/deepseek-v3 --scheme fp8-tensor",
    "bf16": "convert SRC/quantized --to bf16",
    "archive": "convert SRC/llama --to archive",
    "tp": "convert SRC/llama --to tp --tp 2",
    "ranks": "convert SRC/ranks --merge",
    "merge": "merge SRC/llama SRC/lora",
    "links": "quantize SRC/llama --link hard",
}


@pytest.mark.parametrize("words", WRITERS.values(), ids=WRITERS)
def test_outputs_are_those_of_a_local_source(words, tessera, models, served, tmp_path):
    for name, source in (("local", str(models)), ("remote", served)):
        harness.succeed(tessera, [*(word.replace("SRC", source) for word in words.split()), "-o", tmp_path / name, "--quiet"])
    assert remote_servers.outputs_differ(tmp_path / "local", tmp_path / "remote", served) is None


@pytest.mark.parametrize("options", ["-FancyIndexing", "FancyIndexing", "FancyIndexing HTMLTable FoldersFirst"])
def test_pages_of_apache(options, tessera, models, tmp_path):
    """Apache's listings have other forms than nginx's. They truncate long names, but not the links."""
    if not remote_servers.find_apache():
        pytest.skip("Apache is not installed (Debian: apache2)")
    with remote_servers.apache(models, options) as url:
        for name, source in (("local", str(models)), ("remote", url)):
            harness.succeed(tessera, ["merge", f"{source}/llama", f"{source}/lora", "-o", tmp_path / name, "--quiet"])
    assert remote_servers.outputs_differ(tmp_path / "local", tmp_path / "remote", url) is None


def test_commands_that_read(tessera, models, served, tmp_path):
    """The results equal those of a local source, except for its name and times."""
    for words in (["inspect", "SRC/llama"], ["inspect", "SRC/llama", "--can-load", "vllm"], ["inspect", "SRC/llama/model.safetensors"],
                  ["inspect", "SRC/llama:model.layers.0.mlp.down_proj.weight"], ["diff", "SRC/llama", "SRC/quantized"],
                  ["verify", "SRC/quantized", "--against", "SRC/llama"], ["compare-schemes", "SRC/llama", "--sample", "2"],
                  ["plan-schemes", "SRC/llama", "--bits", "5"], ["verify", "gemm", "SRC/quantized", "--device", "cpu"],
                  ["verify", "forward", "SRC/quantized", "--against", "SRC/llama", "--device", "cpu"],
                  ["quantize", "SRC/llama", "--dry-run"]):
        if "asan" in tessera and words[0] in ("compare-schemes", "plan-schemes", "verify") and "--against" not in words[2:3]:
            continue  # their arithmetic takes long there, and they read as the others do
        results = []
        for source in (str(models), served):
            result = tmp_path / "result.json"
            result.unlink(missing_ok=True)
            code, _, err = harness.run(tessera, [*(word.replace("SRC", source) for word in words), "--json", result, "--quiet"])
            assert code in (0, 1) and err == "", (words, err)
            text = result.read_text().replace(source, "SRC")
            results.append((code, without_times(json.loads(text))))
        assert results[0] == results[1], words


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(member) for key, member in value.items() if "seconds" not in key and "memory" not in key and key != "io"}
    return [without_times(member) for member in value] if isinstance(value, list) else value


def test_tls_is_verified(tessera, models, tmp_path):
    """A certificate that no authority signed is refused; SSL_CERT_FILE names another authority."""
    if not remote_servers.find_nginx() or not shutil.which("openssl"):
        pytest.skip("nginx or openssl is not installed")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    with remote_servers.nginx(models, tmp_path / "nginx", (certificate, key)) as url:
        code, _, err = harness.run(tessera, ["inspect", f"{url}/llama"])
        assert code not in (0, 1) and "certificate" in err, err
        environment = dict(os.environ, SSL_CERT_FILE=str(certificate))
        code, out, err = harness.run_in(environment, tessera, ["inspect", f"{url}/llama"])
        assert code == 0 and "21 tensors" in out, err
        code, _, err = harness.run_in(environment, tessera, ["inspect", f"{url.replace('localhost', '127.0.0.1')}/llama"])
        assert code not in (0, 1), err


@pytest.mark.parametrize("address, words", [
    ("http://example.org/model", "http:// is read from this machine only"),
    ("http://127.0.0.1.example.org/model", "http:// is read from this machine only"),
    ("http://user:secret@127.0.0.1/model", "~/.netrc"),
    ("https:///model", "no host"),
    ("http://127.0.0.1/a b", "no blanks"),
    ("http://127.0.0.1/model?x=secret", "no '?'"),
    ("http://127.0.0.1/model.safetensors?x=secret", "no '?'"),
    ("ftp://host/model", "remote addresses of this kind are not supported"),
])
def test_refused_addresses(address, words, tessera):
    code, out, err = harness.run(tessera, ["inspect", address])
    assert code not in (0, 1) and out == "" and words in err and "secret" not in err, err


def test_what_the_server_has_not(tessera, served, models, tmp_path):
    for address, words in ((f"{served}/nothing", "status 404"), (f"{served}/llama/folder", "no .safetensors file"),
                           (f"{served}/llama/model-2.safetensors", "status 404")):
        code, _, err = harness.run(tessera, ["inspect", address])
        assert code not in (0, 1) and words in err, err
    with remote_servers.Server(models) as plain:
        closed = plain.url
    code, _, err = harness.run(tessera, ["inspect", f"{closed}/llama"])
    assert code not in (0, 1) and "no answer after several attempts" in err, err


def test_servers_without_ranges_are_refused(tessera, models):
    with remote_servers.Server(models, fault=lambda handler: "whole") as server:
        code, _, err = harness.run(tessera, ["inspect", f"{server.url}/llama"])
    assert code not in (0, 1) and "no ranges" in err, err


def test_every_byte_is_read_once(tessera, models, tmp_path):
    """Each byte of a shard is requested once; headers are requested once more, before the plan is made."""
    with remote_servers.Server(models) as server:
        harness.succeed(tessera, ["quantize", f"{server.url}/llama", "-o", tmp_path / "out", "--quiet"])
        read = 0
        for _, path, headers in server.requests:
            if path.endswith("model.safetensors"):
                low, high = headers["Range"].removeprefix("bytes=").split("-")
                read += int(high) - int(low) + 1
    size = (models / "llama" / "model.safetensors").stat().st_size
    assert size <= read <= size + (256 << 10)


def test_a_changed_file_ends_the_job(tessera, models, tmp_path):
    """A file that changes after it was opened ends the job with the exit code of I/O, and without a config.json."""
    source = tmp_path / "models"
    shutil.copytree(models / "llama", source / "llama")
    count = [0]

    def change(handler):
        count[0] += handler.path.endswith("model.safetensors")
        if count[0] == 6:
            os.utime(source / "llama" / "model.safetensors", ns=(1, 1))

    with remote_servers.Server(source, fault=change) as server:
        code, _, err = harness.run(tessera, ["quantize", f"{server.url}/llama", "-o", tmp_path / "out", "--quiet"])
    assert code == 4 and "changed while it was read" in err and "model.safetensors" in err, (code, err)
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize("status, wait, least", [("503", "2", 2), ("429", "2", 2), ("429", "1000", 0)])
def test_the_server_says_when_to_retry(status, wait, least, tessera, models):
    """Retry-After is obeyed. A wait of more than five minutes ends the job."""
    asked = []

    def fault(handler):
        if handler.path.endswith("model.safetensors") and handler.headers.get("Range") != "bytes=0-0":
            asked.append(time.monotonic())
            return status if len(asked) == 1 else None
        return None

    with remote_servers.Server(models, fault=fault, wait=wait) as server:
        code, _, err = harness.run_in(dict(os.environ, XDG_CACHE_HOME="/nonexistent"), tessera, ["inspect", f"{server.url}/llama"])
    if least:
        assert code == 0 and least <= asked[1] - asked[0] < least + 30, (err, asked)
    else:
        assert code == 4 and f"status {status}" in err, err


def test_faults_are_retried_or_reported(tessera, models, tmp_path):
    """Injected faults of all kinds: an output has the right bytes, or the job has failed and named the file."""
    chance = random.Random(turns.turn())
    harness.succeed(tessera, ["quantize", models / "llama", "-o", tmp_path / "right", "--quiet"])
    injected, ended = 0, {"right": 0, "reported": 0}

    def fault(handler):
        nonlocal injected
        if not handler.path.endswith("model.safetensors") or chance.random() > 0.4:
            return None
        injected += 1
        lot = chance.random()
        return "etag" if lot < 0.01 else "stall" if lot < 0.02 else chance.choice(KINDS)

    environment = dict(os.environ, HF_HUB_DOWNLOAD_TIMEOUT="1")
    with remote_servers.Server(models, fault=fault) as server:
        while injected < (FAULTS // 4 if "asan" in tessera else FAULTS) or not ended["right"]:
            assert sum(ended.values()) < 2 * FAULTS, ended  # most jobs must end well
            out = tmp_path / "out"
            code, _, err = harness.run_in(environment, tessera, ["quantize", f"{server.url}/llama", "-o", out, "--quiet"])
            if code == 0:
                assert remote_servers.outputs_differ(tmp_path / "right", out, server.url) is None
                ended["right"] += 1
            else:
                assert code in (4, 5) and "model.safetensors" in err, (code, err)
                assert not (out / "config.json").exists()
                ended["reported"] += 1
            shutil.rmtree(out, ignore_errors=True)


def test_the_cache_of_headers_has_a_limit(tessera, models, tmp_path):
    """The headers that were stored first are removed. Other files stay."""
    cache = tmp_path / "cache" / "tessera" / "headers"
    cache.mkdir(parents=True)
    names = [f"{number:032x}" for number in range(3)] + ["foreign"]
    for age, name in enumerate(names):
        with open(cache / name, "wb") as file:
            file.truncate(200 << 20)  # sparse
        os.utime(cache / name, (age + 1, age + 1))
    environment = dict(os.environ, XDG_CACHE_HOME=str(tmp_path / "cache"))
    with remote_servers.Server(models) as server:
        assert harness.run_in(environment, tessera, ["inspect", f"{server.url}/llama"])[0] == 0
        left = {path.name for path in cache.iterdir()}
        assert not left & set(names[:2]) and set(names[2:]) < left and len(left) == 3
        assert harness.run_in(environment, tessera, ["inspect", f"{server.url}/llama"])[0] == 0
        assert {path.name for path in cache.iterdir()} == left
