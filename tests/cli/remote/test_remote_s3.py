"""Tests s3:// sources on moto's S3, and the signatures of requests."""

import shutil
import urllib.parse

import harness
import pytest
import remote_servers
import s3_store

KEYS = s3_store.KEYS


@pytest.fixture(scope="module")
def model(tessera, checkpoint, tmp_path_factory):
    place = tmp_path_factory.mktemp("s3") / "model"
    shutil.copytree(checkpoint("llama"), place)
    (place / "odd & name+%20é'\".txt").write_text("text")
    (place / "folder").mkdir()
    (place / "folder" / "more.json").write_text("{}")
    return place


@pytest.fixture(scope="module")
def store(model, tmp_path_factory):
    if not remote_servers.has_moto():
        pytest.skip("moto is not installed (tests/requirements.txt)")
    with remote_servers.s3(tmp_path_factory.mktemp("moto") / "log") as url:
        remote_servers.upload(url, "models", "some models/llama/", model)
        yield url


@pytest.fixture
def tool(at_home):
    """tool(endpoint, *words, **environment) -> (exit code, stdout, stderr)"""
    return lambda endpoint, *words, **environment: at_home("AWS_", {"AWS_ENDPOINT_URL": endpoint, **environment}, words)


def test_outputs_are_those_of_a_local_model(tool, tessera, store, model, tmp_path):
    for number, address in enumerate(("s3://models/some models/llama", "s3://models/some models/llama/")):
        code, _, err = tool(store, "quantize", address, "-o", tmp_path / f"out-{number}", "--quiet", **KEYS)
        assert code == 0, err
        harness.succeed(tessera, ["quantize", model, "-o", tmp_path / f"right-{number}", "--quiet"])
        assert remote_servers.outputs_differ(tmp_path / f"right-{number}", tmp_path / f"out-{number}", "s3://models/some models/llama") is None
    code, out, err = tool(store, "inspect", "s3://models/some models/llama/model.safetensors", **KEYS)
    assert code == 0 and "21 tensors" in out, err


def test_lists_of_several_pages(tool, store, model, tmp_path):
    """This server lists ten objects at a time."""
    many = tmp_path / "many"
    shutil.copytree(model, many)
    for number in range(25):
        (many / "folder" / f"{number}.txt").write_text(str(number))
    remote_servers.upload(store, "many", "", many)
    code, _, err = tool(store, "quantize", "s3://many", "-o", tmp_path / "out", "--quiet", **KEYS)
    assert code == 0, err
    assert len(list((tmp_path / "out" / "folder").iterdir())) == 26


def test_an_object_that_changes(tool, store, model, tmp_path):
    """A rerun after the object was replaced is refused; a finished output stays."""
    remote_servers.upload(store, "changing", "m/", model)
    words = ["quantize", "s3://changing/m", "-o", tmp_path / "out", "--quiet"]
    assert tool(store, *words, **KEYS)[0] == 0
    assert tool(store, *words, **KEYS)[0] == 0
    other = tmp_path / "other"
    shutil.copytree(model, other)
    data = bytearray((other / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (other / "model.safetensors").write_bytes(data)
    remote_servers.upload(store, "changing", "m/", other)
    code, _, err = tool(store, *words, **KEYS)
    assert code == 3 and "the source has changed since this output was begun" in err, (code, err)


def test_refusals(tool, store):
    for address, code, words in (("s3://models/nothing", 3, "no object with this prefix"), ("s3://none/x", 3, "NoSuchBucket"),
                                 ("s3:///x", 2, "write s3://BUCKET/PREFIX"), ("s3://a b/x", 2, "write s3://BUCKET/PREFIX")):
        got, _, err = tool(store, "inspect", address, **KEYS)
        assert got == code and words in err, (address, got, err)


# ---- signatures ----


class Store(remote_servers.Handler):
    """S3 without a check of signatures, which the tests make."""

    def route(self, path):
        bucket, _, key = path.lstrip("/").partition("/")
        if key:
            return self.send_file(self.server.root / key)
        prefix = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["prefix"][0]
        objects = "".join(f"<Contents><Key>{path.relative_to(self.server.root)}</Key><ETag>{self.etag(path)}</ETag><Size>{path.stat().st_size}</Size></Contents>"
                          for path in sorted((self.server.root / prefix).glob("*")) if path.suffix in (".safetensors", ".json"))
        return self.answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{objects}</ListBucketResult>".encode())


@pytest.mark.parametrize("how", ["environment", "profile", "session"])
def test_requests_are_signed(how, tool, model, tmp_path):
    """All requests have the right signature, with keys of the environment or of a profile. No text contains the keys."""
    environment, region = dict(KEYS), "us-east-1"
    if how == "session":
        environment |= {"AWS_SESSION_TOKEN": "TokenOfTheTests", "AWS_DEFAULT_REGION": "eu-west-3"}
        region = "eu-west-3"
    if how == "profile":
        (tmp_path / "credentials").write_text(f"[default]\naws_access_key_id = other\naws_secret_access_key = other\n[tests]\n"
                                              f"aws_access_key_id={KEYS['AWS_ACCESS_KEY_ID']}\naws_secret_access_key = {KEYS['AWS_SECRET_ACCESS_KEY']}\n")
        (tmp_path / "config").write_text("[default]\nregion = other\n[profile tests]\nregion = us-west-2\n")
        environment = {"AWS_PROFILE": "tests", "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"), "AWS_CONFIG_FILE": str(tmp_path / "config")}
        region = "us-west-2"
    with remote_servers.Server(model.parent, Store) as server:
        told = tool(server.url, "quantize", "s3://bucket/model", "-o", tmp_path / "out", **environment)
        assert told[0] == 0, told
        assert len(server.requests) > 10
        for method, path, headers in server.requests:
            right, sent = s3_store.signature(method, path, headers, region)
            assert sent == right, (path, headers)
            assert headers.get("x-amz-security-token") == environment.get("AWS_SESSION_TOKEN")
    texts = [told[1], told[2], *(path.read_bytes().decode(errors="replace") for path in (tmp_path / "out").rglob("*") if path.is_file())]
    assert not any(secret in text for text in texts for secret in ("SecretOfTheTests", "KeyOfTheTests", "TokenOfTheTests"))


def test_without_keys_nothing_is_signed(tool, model):
    with remote_servers.Server(model.parent, Store) as server:
        code, _, err = tool(server.url, "inspect", "s3://bucket/model")
        assert code == 0, err
        assert not any("Authorization" in headers for _, _, headers in server.requests)


def test_wrong_settings(tool, model, tmp_path):
    with remote_servers.Server(model.parent, Store) as server:
        for environment, words in (({"AWS_ACCESS_KEY_ID": "x"}, "without its secret"), ({"AWS_PROFILE": "none"}, "no profile 'none'"),
                                   ({"AWS_ENDPOINT_URL_S3": "http://s3.example.org"}, "AWS_ENDPOINT_URL")):
            code, _, err = tool(server.url, "inspect", "s3://bucket/model", **environment)
            assert code in (2, 3) and words in err, err
