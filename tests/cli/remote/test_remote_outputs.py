"""Tests outputs of s3://: bytes, order of objects, faults, kills, shards and ranks, the space of the spool, credentials."""

import json
import os
import random
import shutil
import signal
import subprocess
import time

import harness
import merge_oracle
import numpy
import pytest
import remote_servers
import s3_store
import turns

pytestmark = pytest.mark.in_turn

KILLS = int(os.environ.get("TESSERA_UPLOAD_KILLS", 3 if turns.whole() else 2))
FAULTS = int(os.environ.get("TESSERA_UPLOAD_FAULTS", 30))
SECRETS = ("KeyOfTheTests", "SecretOfTheTests", "TokenOfTheTests")
OUT = "s3://bucket/models/out"
PREFIX = "models/out/"
SMALL_SHARDS = ["--max-shard-size", "300KB"]
# The faults that each kind of request can have; each is repeated.
KINDS = {"put": ("reset", "lost", "429", "503", "500", "damaged"), "part": ("reset", "lost", "429", "503", "damaged", "gone"),
         "begin": ("reset", "lost", "429", "503", "cut", "error200"), "complete": ("reset", "lost", "503", "cut", "error200", "gone"),
         "get": ("reset", "429", "503", "500"), "uploads": ("503", "403"), "abort": ("503", "lost"), "list": ("reset", "429", "503")}


@pytest.fixture(scope="module")
def model(checkpoint, tmp_path_factory):
    """Makes a model with a tokenizer of two files."""
    place = tmp_path_factory.mktemp("uploads") / "model"
    shutil.copytree(checkpoint("llama"), place)
    text = numpy.random.default_rng(1).integers(97, 122, 9 << 20, dtype=numpy.uint8).tobytes().decode()
    (place / "tokenizer.json").write_text(json.dumps({"x": text}))
    return place


@pytest.fixture(scope="module")
def right(tessera, model, tmp_path_factory):
    place = tmp_path_factory.mktemp("right") / "out"
    harness.succeed(tessera, ["quantize", model, "-o", place, "--quiet", *SMALL_SHARDS])
    return place


@pytest.fixture
def tool(tessera, tmp_path):
    """Returns tool(store, *words, **environment) -> (exit code, stdout, stderr). The tool runs in tmp_path."""

    def run(store, *words, **environment):
        done = subprocess.run([os.path.abspath(tessera), *map(str, words)], env=surroundings(store, tmp_path, **environment), cwd=tmp_path,
                              capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    return run


def surroundings(store, home, **more):
    cleared = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return {**cleared, **store.environment(home), **more}


def texts_of(folder):
    return [path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file()]


def is_model(store):
    return PREFIX + "config.json" in store.objects


def check_order(store):
    """Checks the order of objects: weights before indexes, indexes before config.json."""
    last = [2 if key.endswith("/config.json") else 1 if key.endswith(".index.json") else 0 for key in store.order]
    assert last == sorted(last) and 2 in last, store.order


# ---- bytes ----


@pytest.mark.parametrize("words", [
    ["quantize", "SRC", *SMALL_SHARDS], ["quantize", "SRC", "--scheme", "int4-weight-only"], ["quantize", "SRC", "--scheme", "nvfp4-weight-only"],
    ["quantize", "SRC", "--scheme", "int8-channel"], ["convert", "SRC", "--to", "archive"], ["convert", "SRC", "--to", "tp", "--tp", "2"],
], ids=lambda words: words[-1])
def test_objects_are_those_of_a_local_run(words, tool, tessera, checkpoint, tmp_path):
    words = [str(checkpoint("llama")) if word == "SRC" else word for word in words]
    harness.succeed(tessera, [*words, "-o", tmp_path / "local", "--quiet"])
    with s3_store.Store() as store:
        code, out, err = tool(store, *words, "-o", f"{OUT}/", "--spool", "spool", "--json", "result.json")
        assert code == 0, err
        assert store.difference(PREFIX, tmp_path / "local") is None
        check_order(store)
        uploads = json.loads((tmp_path / "result.json").read_text())["uploads"]
        assert uploads == {"address": OUT, "objects": len(store.objects), "bytes": sum(len(data) for data, _ in store.objects.values()), "objects_kept": 0}
        before = store.count()
        code, out, err = tool(store, *words, "-o", OUT, "--spool", "spool")
        assert code == 0 and "already complete" in out, out + err
        assert store.count() - before == {"list": 1}
    assert not [*(tmp_path / "spool").rglob("*.safetensors*")][1:]  # nothing but the index


def test_merge(tool, tessera, checkpoint, tmp_path):
    name = "model.layers.0.self_attn.q_proj"
    rows, columns = harness.read_safetensors(checkpoint("llama") / "model.safetensors")[1][f"{name}.weight"][1]
    adapter = merge_oracle.write(tmp_path / "lora", {name: (numpy.ones((4, columns), numpy.float32), numpy.ones((rows, 4), numpy.float32))})
    harness.succeed(tessera, ["merge", checkpoint("llama"), adapter, "-o", tmp_path / "local", "--quiet"])
    with s3_store.Store() as store:
        code, _, err = tool(store, "merge", checkpoint("llama"), adapter, "-o", OUT)
        assert code == 0, err
        assert store.difference(PREFIX, tmp_path / "local") is None
    assert (tmp_path / "out.spool").is_dir()


def test_large_files_are_sent_in_parts(tool, model, right):
    with s3_store.Store() as store:
        code, _, err = tool(store, "quantize", model, "-o", OUT, *SMALL_SHARDS)
        assert code == 0, err
        assert store.difference(PREFIX, right) is None
        assert store.parts_taken == 2 and len(store.begun) == 1 and not store.uploads


def test_requests_are_signed(tool, model, tmp_path):
    """Each request has the signature of AWS over its bytes."""
    with s3_store.Store() as store:
        store.settings["bodies"] = []
        assert tool(store, "quantize", model, "-o", "s3://bucket/some models/ä+&'out", "--spool", tmp_path / "spool")[0] == 0
        assert {what for what, *_ in store.settings["bodies"]} == {"list", "put", "begin", "part", "complete", "get", "uploads"}
        for _, method, path, headers, body in store.settings["bodies"]:
            made, sent = s3_store.signature(method, path, headers, "us-east-1", body)
            assert sent == made, (method, path)
            assert headers["x-amz-security-token"] == "TokenOfTheTests"


def test_moto(tool, tessera, model, right, tmp_path):
    """Another implementation of S3 returns the same bytes."""
    if not remote_servers.has_moto():
        pytest.skip("moto is not installed (tests/requirements.txt)")
    (tmp_path / "nothing").mkdir()
    with remote_servers.s3(tmp_path / "log") as url, s3_store.Store() as unused:
        remote_servers.upload(url, "bucket", "", tmp_path / "nothing")
        code, _, err = tool(unused, "quantize", model, "-o", OUT, *SMALL_SHARDS, AWS_ENDPOINT_URL=url)
        assert code == 0, err
        code, out, err = tool(unused, "verify", OUT, "--against", model, AWS_ENDPOINT_URL=url)
        assert code == 0, out + err
        code, out, err = tool(unused, "diff", OUT, right, AWS_ENDPOINT_URL=url)
        assert code == 0, out + err


# ---- faults ----


@pytest.mark.parametrize("turn", range(max(map(len, KINDS.values()))))
def test_each_fault_is_repeated(turn, tool, model, right):
    """The first request of each kind fails, each in another way."""
    left = {what: faults[turn % len(faults)] for what, faults in KINDS.items() if what != "abort"}
    with s3_store.Store(lambda handler: left.pop(handler.what, None)) as store:
        code, _, err = tool(store, "quantize", model, "-o", OUT, "--quiet", *SMALL_SHARDS)
        assert code == 0, err
        assert not left and store.difference(PREFIX, right) is None
        check_order(store)


def test_faults_are_repeated_or_reported(tessera, tool, model, right, tmp_path):
    """Faults of all kinds: the objects have the right bytes, or the command names one, and a rerun continues."""
    chance, injected, ended = random.Random(turns.turn()), 0, {"right": 0, "reported": 0}

    def inject(handler):
        nonlocal injected
        if chance.random() > 0.35:
            return None
        injected += 1
        return "403" if injected % 80 == 5 else chance.choice(KINDS[handler.what])

    while injected < (FAULTS // 4 if "asan" in tessera else FAULTS):
        with s3_store.Store(inject) as store:
            for _ in range(20):
                code, _, err = tool(store, "quantize", model, "-o", OUT, "--quiet", *SMALL_SHARDS)
                if code == 0:
                    break
                assert code == 4 and OUT in err, (code, err)
                assert not is_model(store) or store.difference(PREFIX, right) is None
                ended["reported"] += 1
            assert code == 0 and store.difference(PREFIX, right) is None, err
            ended["right"] += 1
        shutil.rmtree(tmp_path / "out.spool")
    assert ended["right"] >= 1 and ended["reported"] >= 1, ended


def test_a_stalled_store(tool, checkpoint):
    left = [1]

    def inject(handler):
        left[0] -= handler.what == "put"
        return "stall" if left[0] == 0 and handler.what == "put" else None

    with s3_store.Store(inject) as store:
        code, _, err = tool(store, "quantize", checkpoint("llama"), "-o", OUT, "--quiet", HF_HUB_DOWNLOAD_TIMEOUT="1")
        assert code == 0 and left[0] < 0, err


@pytest.mark.parametrize("fault, words", [("403", "AWS_PROFILE"), ("404", "no such bucket"), ("redirect", "AWS_REGION"), ("501", "SlowDown")])
def test_what_is_not_repeated_is_reported(fault, words, tool, checkpoint):
    """The message names the object. Nothing is sent to the host of a redirect."""
    with s3_store.Store() as other, s3_store.Store(lambda handler: fault if handler.what == "put" else None, other=other.url) as store:
        code, out, err = tool(store, "quantize", checkpoint("llama"), "-o", OUT, "--quiet")
        assert code in (3, 4) and words in err and f"{OUT}/" in err, (code, err)
        assert not other.requests and not store.objects
        assert store.count()["put"] == 1
        assert not any(secret in text for text in (out, err) for secret in SECRETS)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_foreign_bytes_are_noticed(name, tool, model):
    """Another program replaces an object as soon as it is written."""

    def replace(handler):
        if handler.what == "get" and handler.key == PREFIX + name:
            handler.server.objects[handler.key] = b"other", "0" * 32

    with s3_store.Store(replace) as store:
        code, _, err = tool(store, "quantize", model, "-o", OUT, "--quiet", *SMALL_SHARDS)
        assert code == 4 and f"{OUT}/{name}" in err and "another program" in err, err


def test_certificates_are_verified(tool, checkpoint, tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    with s3_store.Store() as store:
        store.encrypt(certificate, key)
        address = f"https://localhost:{store.server_port}"
        code, _, err = tool(store, "quantize", checkpoint("llama"), "-o", OUT, AWS_ENDPOINT_URL=address)
        assert code == 4 and "certificate" in err and not store.requests, err
        code, _, err = tool(store, "quantize", checkpoint("llama"), "-o", OUT, "--quiet", AWS_ENDPOINT_URL=address, SSL_CERT_FILE=str(certificate))
        assert code == 0 and store.objects, err


# ---- kills and resuming ----


def test_killed_uploads_resume(tessera, tool, model, right, tmp_path):
    """The tool is killed at a random request. No unfinished output has a config.json, and a rerun writes the same objects."""
    chance, killed = random.Random(turns.turn()), 0
    while killed < KILLS:
        last, job = chance.randrange(2, 34), []

        def kill(handler):
            if len(handler.server.requests) == last:
                job[0].kill()

        with s3_store.Store(kill) as store:
            command = [os.path.abspath(tessera), "quantize", str(model), "-o", OUT, "--quiet", *SMALL_SHARDS]
            job.append(subprocess.Popen(command, env=surroundings(store, tmp_path), cwd=tmp_path))
            killed += job[0].wait() == -9
            taken = store.parts_taken
            assert not is_model(store) or store.difference(PREFIX, right) is None
            store.fault = lambda handler: None
            sent = {key for key in store.objects}
            store.requests.clear()
            code, _, err = tool(store, *command[1:])
            assert code == 0, err
            assert store.difference(PREFIX, right) is None and not store.uploads
            # Only what was under way is sent again.
            again = {key for what, key, _ in store.requests if what in ("put", "complete") and key in sent}
            assert len(again) <= 1 and store.parts_taken <= max(taken + 2, 4), (again, taken, store.parts_taken)
        shutil.rmtree(tmp_path / "out.spool")


def test_an_upload_continues_with_its_missing_parts(tool, model, right):
    """The store rejects the second part. The rerun sends only that part, and makes and sends no file again."""
    refused = [True]

    def inject(handler):
        return "403" if refused[0] and handler.what == "part" and handler.query["partNumber"] == "2" else None

    with s3_store.Store(inject) as store:
        code, _, err = tool(store, "quantize", model, "-o", OUT, "--quiet", *SMALL_SHARDS)
        assert code == 4 and f"{OUT}/tokenizer.json" in err and store.parts_taken == 1, err
        refused[0] = False
        code, out, err = tool(store, "quantize", model, "-o", OUT, *SMALL_SHARDS)
        assert code == 0 and "resumed" in out, out + err
        assert store.parts_taken == 2 and len(store.begun) == 1
        assert len(store.order) == len(set(store.order)) and store.difference(PREFIX, right) is None


@pytest.mark.parametrize("name, damage, code, expected", [
    ("0.sent", lambda data: data[:-30], 0, "1 file differs"), ("0.sent", lambda data: data.replace(b"etag", b"Etag"), 0, "1 file differs"),
    ("11.sent", lambda data: b"", 0, "10 files verified"), ("uploads", lambda data: data[:20], 3, "damaged"), ("0.blocks", lambda data: data[:-1], 0, "1 file differs"),
], ids=["cut", "changed", "text", "head", "blocks"])
def test_damaged_records(name, damage, code, expected, tool, model, right, tmp_path):
    """A file whose record is damaged is made and sent again."""
    with s3_store.Store() as store:
        assert tool(store, "quantize", model, "-o", OUT, "--quiet", *SMALL_SHARDS)[0] == 0
        path = tmp_path / "out.spool" / ".tessera" / name
        path.write_bytes(damage(path.read_bytes()))
        got, out, err = tool(store, "quantize", model, "-o", OUT, *SMALL_SHARDS)
        assert got == code and expected in out + err, out + err
        assert store.difference(PREFIX, right) is None


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data.replace(b"part 0", b"part 1"), lambda data: b"x" + data, lambda data: b""],
                         ids=["cut", "changed", "begin", "empty"])
def test_damaged_records_of_parts(damage, tool, model, right, tmp_path):
    """Parts with a damaged record are sent again."""
    refused = [True]
    with s3_store.Store(lambda handler: "403" if refused[0] and handler.what == "complete" else None) as store:
        assert tool(store, "quantize", model, "-o", OUT, "--quiet", *SMALL_SHARDS)[0] == 4
        refused[0] = False
        path, = (tmp_path / "out.spool" / ".tessera").glob("*.parts")
        path.write_bytes(damage(path.read_bytes()))
        code, _, err = tool(store, "quantize", model, "-o", OUT, "--quiet", *SMALL_SHARDS)
        assert code == 0 and store.difference(PREFIX, right) is None and not store.uploads, err


def test_objects_that_changed_are_made_again(tool, model, right):
    """A rerun finds a missing object and one with other bytes. config.json is absent while they are written."""
    seen = []
    with s3_store.Store() as store:
        assert tool(store, "quantize", model, "-o", OUT, *SMALL_SHARDS)[0] == 0
        names = [key for key in store.objects if key.endswith("of-00007.safetensors")]
        store.objects.pop(names[0])
        store.objects[names[3]] = (store.objects[names[3]][0][:-1] + b"x", "0" * 32)
        store.fault = lambda handler: seen.append(is_model(store)) if handler.what == "put" and handler.key in names else None
        store.order.clear()
        code, out, err = tool(store, "quantize", model, "-o", OUT, *SMALL_SHARDS)
        assert code == 0 and "2 files differ" in out, out + err
        assert seen == [False, False] and store.difference(PREFIX, right) is None
        assert store.order[:2] == [f"-{PREFIX}config.json", f"-{PREFIX}model.safetensors.index.json"]


def test_an_interrupt_ends_an_upload(tessera, checkpoint, tmp_path):
    job = []

    def interrupt(handler):
        if handler.what != "put":
            return None
        job[0].send_signal(signal.SIGINT)
        return "stall"

    with s3_store.Store(interrupt, stall=8) as store:
        begin = time.monotonic()
        job.append(subprocess.Popen([os.path.abspath(tessera), "quantize", checkpoint("llama"), "-o", OUT, "--quiet"], env=surroundings(store, tmp_path),
                                    cwd=tmp_path, stderr=subprocess.PIPE, text=True))
        _, err = job[0].communicate()
        assert job[0].returncode == 130 and "repeat the command to resume" in err and time.monotonic() - begin < 7, err


def test_the_spool_stays_small(tool, model, tmp_path):
    """The disk has at most three files of weights: one that is sent, and two that are being made or wait."""
    most = [0]

    def measure(handler):
        with store.lock:
            most[0] = max(most[0], len([path for path in (tmp_path / "out.spool").rglob("*") if path.name.endswith((".part", ".safetensors"))]))
        time.sleep(0.02)

    with s3_store.Store(measure) as store:
        code, _, err = tool(store, "quantize", model, "-o", OUT, "--quiet", "--max-shard-size", "80KB", "--threads", "1", "--io", "buffered")
        assert code == 0, err
        assert len([key for key in store.objects if key.endswith(".safetensors")]) >= 12
    assert 2 <= most[0] <= 3, most


# ---- shards, ranks ----


def test_shards(tool, model, right):
    """Shards share a spool. Without all of them, finish prints what is missing."""
    words = ["quantize", model, "-o", OUT, "--spool", "spool", *SMALL_SHARDS]
    with s3_store.Store() as store:
        code, out, err = tool(store, *words, "--shard", "1/2")
        assert code == 0 and f"tessera finish {OUT} --spool spool" in out, out + err
        assert store.objects and not is_model(store)
        code, out, err = tool(store, "finish", OUT, "--spool", "spool")
        assert code == 1 and f"-o {OUT} --spool spool --shard 0/2" in out, out + err
        assert tool(store, *words, "--shard", "0/2")[0] == 0
        assert not is_model(store)
        code, out, err = tool(store, "finish", OUT, "--spool", "spool")
        assert code == 0, out + err
        assert store.difference(PREFIX, right) is None
        check_order(store)
        before = store.count()
        code, out, err = tool(store, "finish", OUT, "--spool", "spool")
        assert code == 0 and "already complete" in out and store.count() == before, out + err
        order = [*store.order]
        for more in (["--shard", "0/2"], []):
            code, out, err = tool(store, *words, *more)
            assert code == 0 and store.order == order and is_model(store), out + err


def test_shards_of_a_remote_source(tool, model, right, tmp_path):
    """Neither the source nor the output is on this machine."""
    with remote_servers.Server(model.parent) as source, s3_store.Store() as store:
        for shard in ("0/2", "1/2"):
            code, _, err = tool(store, "quantize", f"{source.url}/model", "-o", OUT, "--shard", shard, *SMALL_SHARDS)
            assert code == 0, err
        code, out, err = tool(store, "finish", OUT)
        assert code == 0, out + err
        for key in (key for key in store.objects if key.endswith(".safetensors")):
            assert store.objects[key][0] == (right / key.removeprefix(PREFIX)).read_bytes()
        check_order(store)


def test_ranks(tessera, model, right, tmp_path):
    if not shutil.which("mpirun") or not os.path.exists(os.path.join(os.path.dirname(tessera), "tessera_mpi.so")):
        pytest.skip("no mpirun, or a build without MPI")
    with s3_store.Store() as store:
        command = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-n", "2", os.path.abspath(tessera), "quantize", str(model),
                   "-o", OUT, "--mpi", "--quiet", *SMALL_SHARDS]
        for _ in range(2):
            done = subprocess.run(command, env=surroundings(store, tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            assert store.difference(PREFIX, right) is None and len(store.order) == len(set(store.order))
        check_order(store)


# ---- refusals ----


def test_objects_of_others_are_refused(tool, checkpoint, tmp_path):
    """As for a folder with other files: exit code 2 without --force. Foreign weights are never overwritten."""
    words = ["quantize", checkpoint("llama"), "-o", OUT, "--quiet"]
    with s3_store.Store() as store:
        store.objects[PREFIX + "config.json"] = b"{}", "1" * 32
        code, _, err = tool(store, *words)
        assert code == 2 and "config.json" in err and "--force" in err, err
        assert list(store.objects) == [PREFIX + "config.json"]
        store.objects[PREFIX + "other.safetensors"] = b"weights", "2" * 32
        code, _, err = tool(store, *words, "--force")
        assert code == 2 and "other.safetensors" in err, err
        del store.objects[PREFIX + "other.safetensors"]
        code, _, err = tool(store, *words, "--force")
        assert code == 0 and store.order[0] == f"-{PREFIX}config.json", err


def test_a_spool_has_one_output(tool, checkpoint, tmp_path):
    words = ["quantize", checkpoint("llama"), "--quiet", "--spool", "spool"]
    with s3_store.Store() as store:
        assert tool(store, *words, "-o", OUT)[0] == 0
        for output, code, expected in (("s3://bucket/other", 3, f"the spool of {OUT}"), (OUT, 0, "")):
            got, _, err = tool(store, *words, "-o", output)
            assert got == code and expected in err, err
        code, _, err = tool(store, "quantize", checkpoint("llama"), "-o", "spool")
        assert code == 2 and f"the spool of {OUT}" in err and "--spool" in err, err
        assert tool(store, "quantize", checkpoint("llama"), "-o", "local", "--quiet")[0] == 0
        before = len([*(tmp_path / "local").iterdir()])
        code, _, err = tool(store, "quantize", checkpoint("llama"), "-o", "s3://bucket/third", "--spool", "local")
        assert code == 2 and "a local output" in err and len([*(tmp_path / "local").iterdir()]) == before, err


@pytest.mark.parametrize("words, expected", [
    (["quantize", "SRC", "-o", "hf://org/model"], "s3://BUCKET/PREFIX"), (["quantize", "SRC", "-o", "https://host/x"], "s3://BUCKET/PREFIX"),
    (["quantize", "SRC", "-o", "s3:///x"], "s3://BUCKET/PREFIX"), (["quantize", "SRC", "-o", "s3://bucket/x.safetensors"], "a prefix"),
    (["quantize", "SRC", "-o", OUT, "--link", "hard"], "--link"), (["quantize", "SRC", "-o", "out", "--spool", "x"], "--spool"),
    (["quantize", "SRC", "-o", "out", "--json", "s3://bucket/x.json"], "upload it afterwards"), (["finish", "x", "--spool", "y"], "--spool"),
    (["calibrate", "SRC", "--tokens", "SRC/config.json", "-o", "s3://bucket/x.safetensors"], "upload it afterwards"), (["batch", "jobs.jsonl"], "a batch"),
    (["finish", OUT], "out.spool"),
], ids=lambda value: value[-1] if isinstance(value, list) else None)
def test_refusals(words, expected, tool, checkpoint, tmp_path):
    (tmp_path / "jobs.jsonl").write_text(json.dumps({"name": "one", "args": ["quantize", str(checkpoint("llama")), "-o", OUT]}) + "\n")
    with s3_store.Store() as store:
        code, _, err = tool(store, *[word.replace("SRC", str(checkpoint("llama"))) for word in words])
        assert code == 2 and expected in err, (code, err)
        assert not store.objects


def test_writing_needs_credentials(tool, checkpoint):
    with s3_store.Store() as store:
        code, _, err = tool(store, "quantize", checkpoint("llama"), "-o", OUT, AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="", AWS_SESSION_TOKEN="")
        assert code in (2, 4) and "AWS_ACCESS_KEY_ID" in err, (code, err)
        assert not store.objects


# ---- credentials, progress ----


def test_credentials_appear_nowhere(tool, model, tmp_path):
    """Neither the output of the tool, its files, nor an object contains them, even if a store repeats them in an error."""
    with s3_store.Store() as store:
        told = tool(store, "quantize", model, "-o", OUT, "--json", "result.json", "--progress-file", "progress", *SMALL_SHARDS)
        assert told[0] == 0, told
        texts = [*told[1:], *texts_of(tmp_path), *(data.decode(errors="replace") for data, _ in store.objects.values())]
        assert not any(secret in text for text in texts for secret in SECRETS)
        lines = [json.loads(line) for line in (tmp_path / "progress").read_text().splitlines()]
        assert max(line.get("bytes_sent", 0) for line in lines) > 9 << 20 and any(line.get("bytes_sent_per_second", 0) > 0 for line in lines)
