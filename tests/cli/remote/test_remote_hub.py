"""Tests hf:// sources on a server that follows the API of the Hub, with large files on another port."""

import json
import shutil

import harness
import pytest
import remote_servers

TOKEN = "hf_SecretOfTheTests"


@pytest.fixture(scope="module")
def models(tessera, checkpoint, tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    shutil.copytree(checkpoint("llama"), root / "org" / "model")
    (root / "org" / "model" / ".gitattributes").write_text("*.safetensors filter=lfs")
    (root / "org" / "model" / "name with blanks.txt").write_text("text")
    shutil.copytree(checkpoint("llama"), root / "org" / "folders" / "part")
    return root


@pytest.fixture
def tool(at_home):
    """tool(hub, *words, **environment) -> (exit code, stdout, stderr)"""
    return lambda hub, *words, **environment: at_home(("HF_", "HUGGING", "XDG_"), {"HF_ENDPOINT": hub.url, **environment}, words)


def test_outputs_are_those_of_a_local_model(tool, tessera, models, tmp_path):
    with remote_servers.Hub(models) as hub:
        for number, (words, local) in enumerate(((["quantize", "hf://org/model"], "org/model"), (["quantize", "hf://org/model@refs/pr/1"], "org/model"),
                                                 (["convert", "hf://org/folders/part/", "--to", "archive"], "org/folders/part"))):
            out, right = tmp_path / f"out-{number}", tmp_path / f"right-{number}"
            code, _, err = tool(hub, *words, "-o", out, "--quiet")
            assert code == 0, err
            manifest = json.loads((out / "tessera.manifest.json").read_text())
            assert manifest["sources"][0]["commit"] == hub.commit and manifest["sources"][0]["address"] == words[1].rstrip("/")
            etags = {file["name"]: file["etag"] for file in manifest["sources"][0]["files"]}
            assert etags["model.safetensors"] == hub.digest(models / local / "model.safetensors", "sha256")
            harness.succeed(tessera, [words[0], models / local, *words[2:], "-o", right, "--quiet"])
            assert remote_servers.outputs_differ(right, out, "hf://org/") is None
        assert all("/resolve/main/" not in path for _, path, _ in hub.requests)


def test_single_files_and_tensors(tool, models):
    with remote_servers.Hub(models) as hub:
        code, out, err = tool(hub, "inspect", "hf://org/model/model.safetensors")
        assert code == 0 and "21 tensors" in out, err
        code, out, err = tool(hub, "inspect", f"hf://org/model@{hub.commit}:model.norm.weight")
        assert code == 0 and "model.norm.weight" in out, err


def test_the_token_goes_to_the_hub_only(tool, models, tmp_path):
    """The token of HF_TOKEN or of the file is sent only to the Hub, to no other port. No text contains it."""
    with remote_servers.Hub(models, token=TOKEN) as hub:
        code, _, err = tool(hub, "quantize", "hf://org/model", "-o", tmp_path / "none")
        assert code == 4 and "HF_TOKEN" in err, err
        stored = tmp_path / "stored"
        stored.mkdir()
        (stored / "token").write_text(TOKEN + "\n")
        for number, environment in enumerate(({"HF_TOKEN": TOKEN}, {"HF_HOME": str(stored)}, {"HF_TOKEN_PATH": str(stored / "token")})):
            out = tmp_path / f"out-{number}"
            told = tool(hub, "quantize", "hf://org/model", "-o", out, "--json", tmp_path / "result.json", **environment)
            assert told[0] == 0, told
            texts = [told[1], told[2], *(path.read_bytes().decode(errors="replace") for path in [*out.rglob("*"), tmp_path / "result.json"] if path.is_file())]
            assert not any(TOKEN in text or "secret-of-the-query" in text for text in texts)
        assert hub.cdn.requests and not any("Authorization" in headers for _, _, headers in hub.cdn.requests)
        code, _, err = tool(hub, "inspect", "hf://org/model", HF_TOKEN="wrong token")
        assert code == 3 and "not a token" in err and "wrong token" not in err, err


def test_expired_addresses_are_asked_for_again(tool, models, tmp_path):
    with remote_servers.Hub(models) as hub:
        count = [0]

        def expire(handler):
            count[0] += 1
            hub.signature += count[0] % 7 == 0
            return None

        hub.cdn.fault = expire
        code, _, err = tool(hub, "quantize", "hf://org/model", "-o", tmp_path / "out", "--quiet")
        assert code == 0, err
        assert hub.signature > 2


def test_a_model_that_changes(tool, models, tmp_path):
    """The job ends if a digest, size or commit differs from the list."""
    for change in ("digest", "commit", "size"):
        root = tmp_path / change
        shutil.copytree(models, root)
        with remote_servers.Hub(root) as hub:
            path = root / "org" / "model" / "model.safetensors"
            listed = remote_servers.HubHandler.model

            def model(self, name, revision):
                listed(self, name, revision)
                if change == "commit":
                    hub.answered_commit = "f" * 40
                else:
                    path.write_bytes(path.read_bytes()[:-1] + b"x" * (1 if change == "digest" else 2))

            hub.RequestHandlerClass = type("Changing", (remote_servers.HubHandler,), {"model": model})
            code, _, err = tool(hub, "quantize", "hf://org/model", "-o", tmp_path / f"{change}-out", "--quiet")
            assert code == 4 and "changed while it was read" in err, (change, err)
            assert not (tmp_path / f"{change}-out" / "config.json").exists()


@pytest.mark.parametrize("address, words", [
    ("hf://model", "write hf://ORG/NAME"), ("hf://org/", "write hf://ORG/NAME"), ("hf://org/model@", "write hf://ORG/NAME"),
    ("hf://org/nothing", "not found"), ("hf://org/model@v9", "not found"), ("hf://org/model/nothing", "no such file or folder"),
    ("hf://../model", "write hf://ORG/NAME"),
])
def test_refusals(address, words, tool, models):
    with remote_servers.Hub(models) as hub:
        code, out, err = tool(hub, "inspect", address)
    assert code in (2, 3) and words in err and out == "", err


def test_a_hub_that_is_none(tool, models):
    with remote_servers.Server(models) as server:
        code, _, err = tool(server, "inspect", "hf://org/model")
        assert code == 3 and "status 404" in err, err
    with remote_servers.Hub(models) as hub:
        code, _, err = tool(hub, "inspect", "hf://org/model", HF_ENDPOINT="http://hub.example.org")
        assert code == 2 and "HF_ENDPOINT" in err, err


def test_a_model_in_the_local_cache(tool, tessera, models, tmp_path):
    """ORG/NAME without a scheme is the snapshot of refs/main in the Hub's cache if there is no such path."""
    commit = "c" * 40
    folder = tmp_path / "cache" / "models--org--model"
    snapshot = folder / "snapshots" / commit
    (folder / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    for number, path in enumerate(sorted((models / "org" / "model").iterdir())):
        shutil.copy(path, folder / "blobs" / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    with remote_servers.Hub(models) as hub:
        for environment in ({"HF_HUB_CACHE": str(tmp_path / "cache")}, {"HF_HOME": str(tmp_path)}):
            code, out, err = tool(hub, "inspect", "org/model", **environment)
            if "HF_HOME" in environment:
                assert code == 3 and "hf://org/model" in err, err
                (tmp_path / "cache").rename(tmp_path / "hub")
                code, out, err = tool(hub, "inspect", "org/model", **environment)
            assert code == 0 and "21 tensors" in out, err
        cached = {"HF_HOME": str(tmp_path)}
        assert tool(hub, "inspect", "org/model:model.norm.weight", **cached)[0] == 0
        assert tool(hub, "quantize", "org/model", "-o", tmp_path / "out", "--quiet", **cached)[0] == 0
        assert tool(hub, "quantize", "org/model", "-o", tmp_path / "hub" / "models--org--model" / "snapshots" / commit / "x", "--quiet", **cached)[0] == 2
        assert not hub.requests
    harness.succeed(tessera, ["quantize", models / "org" / "model", "-o", tmp_path / "right", "--quiet"])
    for path in (tmp_path / "right").glob("*.*"):
        assert path.suffix in (".zst", "") or (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), path


def test_headers_are_kept_by_etag(tool, models, tmp_path):
    """A second inspection requests only the list, the configuration and the index. A damaged cache is not used."""
    with remote_servers.Hub(models) as hub:
        def look():
            hub.requests.clear()
            hub.cdn.requests.clear()
            code, out, err = tool(hub, "inspect", "hf://org/model")
            assert code == 0, err
            return out, len(hub.cdn.requests)

        first, requests = look()
        assert requests > 0
        second, requests = look()
        assert second == first and requests == 0
        kept = [*(tmp_path / "home" / ".cache" / "tessera" / "headers").iterdir()]
        assert len(kept) == 1
        data = bytearray(kept[0].read_bytes())
        data[len(data) // 2] ^= 1
        kept[0].write_bytes(data)
        third, requests = look()
        assert third == first and requests > 0
        (models / "org" / "model" / "model.safetensors").touch()
        assert tool(hub, "inspect", "hf://org/model", XDG_CACHE_HOME=str(tmp_path / "other"))[0] == 0
        assert len([*(tmp_path / "other" / "tessera" / "headers").iterdir()]) == 1
