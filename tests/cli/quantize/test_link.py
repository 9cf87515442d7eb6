"""Tests --link: files that equal a source file become links, and all other bytes of output and source stay the same."""

import errno
import json
import os
from pathlib import Path
import shutil
import subprocess
import time

from checkpoints import BF16, random_weight, save
import harness
import manifests
import pytest

SIDE = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")


@pytest.fixture
def model(checkpoint, tmp_path):
    """Copies a source that the test may change."""
    shutil.copytree(checkpoint("llama"), tmp_path / "src")
    shutil.copytree(tmp_path / "src", tmp_path / "kept")
    return tmp_path / "src"


@pytest.fixture
def told(tessera, tmp_path):
    """Returns told(words...) -> the links of --json of a successful run."""

    def run(*words):
        place = tmp_path / "told.json"
        harness.succeed(tessera, [*words, "--quiet", "--json", place])
        return json.loads(place.read_text()).get("links")

    return run


def is_linked(a, b, names=SIDE):
    same = {os.path.samefile(a / name, b / name) for name in names}
    assert len(same) == 1
    return same.pop()


def untouched(src):
    return harness.tree_difference(src.parent / "kept", src) is None


def same_output(a, b):
    """Compares two outputs of one source, with their journals."""
    return harness.tree_difference(a, b) is None


def test_the_bytes_are_the_same(quantize, told, model, tmp_path):
    plain = quantize(model)
    assert told("quantize", model, "-o", tmp_path / "none") is None
    for mode in "hard", "reflink":
        links = told("quantize", model, "-o", tmp_path / mode, "--link", mode)
        assert links["linked"] + links["copied"] == len(SIDE) and (links["why"] == "") == (links["copied"] == 0)
        assert same_output(plain, tmp_path / mode), mode
        assert is_linked(tmp_path / mode, model) == (mode == "hard")
        manifests.check(tmp_path / mode)
    assert told("quantize", model, "-o", tmp_path / "hard", "--link", "hard") == {"linked": 0, "copied": 0, "why": ""}
    assert untouched(model)


def test_whole_shards(convert, told, checkpoint, tmp_path):
    """One shard of the folder is compressed, and the others are linked. quantize links a shard without quantized tensors."""
    src = checkpoint("deepseek-v3")
    packed = convert(src, "--to", "archive")
    mixed = tmp_path / "mixed"
    shutil.copytree(src, mixed)
    shards = sorted(path.name for path in src.glob("*.safetensors"))
    (mixed / shards[1]).unlink()
    shutil.copy(packed / f"{shards[1]}.zst", mixed)
    assert told("convert", mixed, "-o", tmp_path / "plain", "--to", "safetensors", "--link", "hard")["linked"] == 5
    assert is_linked(tmp_path / "plain", mixed, (shards[0], shards[2], *SIDE))
    shutil.rmtree(tmp_path / "plain" / ".tessera")
    (tmp_path / "plain" / manifests.NAME).unlink()
    assert harness.tree_difference(tmp_path / "plain", src) is None


@pytest.mark.parametrize("change", ["", "metadata", "order"])
def test_a_shard_that_is_only_copied(told, tmp_path, change):
    """The shard is linked only if its header does not change."""
    norm, embed, up = ("model.norm.weight", random_weight((64,)).astype(BF16)), ("model.embed_tokens.weight", random_weight((256, 64)).astype(BF16)), \
        ("model.layers.0.mlp.up_proj.weight", random_weight((128, 128)).astype(BF16))
    first = dict([norm, embed] if change == "order" else [embed, norm])
    src = save(tmp_path / "src", {**first, **dict([up])})
    (src / "model.safetensors").unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name, tensors in zip(names, (first, dict([up]))):
        harness.write_safetensors(src / name, {key: ("BF16", list(value.shape), value.tobytes()) for key, value in tensors.items()},
                                  {"format": "np" if change == "metadata" else "pt"})
    of = {key: names[key == up[0]] for key in (embed[0], norm[0], up[0])}
    (src / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": of}))
    room = sum(value.nbytes for value in first.values())
    links = told("quantize", src, "-o", tmp_path / "out", "--link", "hard", "--max-shard-size", str(room))
    assert links["linked"] == (0 if change else 1)
    assert os.path.samefile(src / names[0], tmp_path / "out" / names[0]) == (not change)


def test_whatever_is_done_to_the_output(tessera, quantize, told, model, tmp_path):
    """No run writes into a linked file. Repair, --force, other options, and a run without links remove its name first."""
    out = tmp_path / "out"

    def rerun(*options):
        code, _, err = harness.run(tessera, ["quantize", model, "-o", out, "--quiet", *options])
        assert code == 0 and untouched(model), (options, err)

    rerun("--link", "hard")
    (out / "tokenizer.json").unlink()
    (out / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes()[:-1] + b"?")
    (out / "tokenizer_config.json").unlink()
    rerun("--link", "hard")
    assert is_linked(out, model) and same_output(quantize(model), out)
    (out / "tokenizer.json").unlink()
    rerun()
    assert not os.path.samefile(out / "tokenizer.json", model / "tokenizer.json") and os.path.samefile(out / SIDE[2], model / SIDE[2])
    rerun("--link", "hard", "--force")
    assert is_linked(out, model)
    rerun("--scheme", "int8-channel", "--force")
    assert not is_linked(out, model) and all((model / name).stat().st_nlink == 1 for name in SIDE)
    rerun("--link", "hard", "--force")
    rerun("--force", "--link", "reflink")
    assert not is_linked(out, model) and same_output(quantize(model), out)


def test_killed_between_link_and_journal(tessera, quantize, model, tmp_path):
    """The file exists but is not in the journal. It is removed and written again, and the source does not change."""
    out, plain = tmp_path / "out", quantize(model)
    words = ["quantize", model, "-o", out, "--quiet", "--link"]
    harness.succeed(tessera, [*words, "hard"])
    for again in "hard", "none", "reflink":
        journal = out / ".tessera" / "journal"
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(lines[:-2]))
        (out / "config.json").unlink()
        code, _, err = harness.run(tessera, [*words, again])
        assert code == 0 and untouched(model), err
        assert same_output(plain, out)
        assert os.path.samefile(out / SIDE[2], model / SIDE[2]) == (again == "hard")


def test_killed_at_any_time(tessera, quantize, model, tmp_path):
    plain, words = quantize(model), ["quantize", model, "-o", tmp_path / "out", "--quiet", "--link", "hard", "--threads", "1"]
    for milliseconds in range(1, 16):
        process = subprocess.Popen([tessera, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(milliseconds / 500)
        process.kill()
        process.wait()
        if milliseconds % 3 == 0:
            harness.succeed(tessera, words)
            assert same_output(plain, tmp_path / "out") and is_linked(tmp_path / "out", model)
            shutil.rmtree(tmp_path / "out")
    assert untouched(model)


def test_a_change_of_one_is_a_change_of_both(tessera, model, tmp_path):
    """A hard link shares the bytes of both files. The rerun and the manifest report the change."""
    out = tmp_path / "out"
    words = ["quantize", model, "-o", out, "--quiet", "--link"]
    harness.succeed(tessera, [*words, "hard"])
    with open(model / "tokenizer.json", "r+b") as file:
        file.write(b"?")
    assert (out / "tokenizer.json").read_bytes()[:1] == b"?"
    code, _, err = harness.run(tessera, ["verify", "--manifest", out])
    assert code == 1 and "tokenizer.json" in _, err
    harness.expect(tessera, [*words, "hard"], 3, "changed")
    harness.succeed(tessera, [*words, "reflink", "--force"])
    with open(model / "tokenizer.json", "r+b") as file:
        file.write(b"!")
    harness.succeed(tessera, ["verify", "--manifest", out])


def test_another_file_system(told, model, tmp_path):
    """All files are copied, and a message gives the reason."""
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == tmp_path.stat().st_dev or not os.access(elsewhere, os.W_OK):
        pytest.skip("no second file system")
    with harness.temporary_directory(elsewhere) as place:
        for mode in "hard", "reflink":
            links = told("quantize", model, "-o", Path(place) / mode, "--link", mode)
            assert links["linked"] == 0 and links["copied"] == len(SIDE)
            assert links["why"].startswith("generation_config.json: ") and links["why"].endswith(os.strerror(errno.EXDEV))
            assert not is_linked(Path(place) / mode, model)


def test_ranks_shards_and_batches(tessera, told, quantize, convert, model, checkpoint, tmp_path):
    """Each rank's folder, merged parts, and jobs with a common source have links."""
    assert told("convert", model, "-o", tmp_path / "tp", "--to", "tp", "--tp", "2", "--link", "hard")["linked"] == 2 * len(SIDE)
    plain = convert(model, "--to", "tp", "--tp", "2")
    assert same_output(plain, tmp_path / "tp") and (model / SIDE[0]).stat().st_nlink == 3
    out = tmp_path / "shards"
    for shard in "0/2", "1/2":
        harness.succeed(tessera, ["quantize", model, "-o", out, "--quiet", "--shard", shard, "--link", "hard"])
    harness.succeed(tessera, ["finish", out, "--quiet"])
    assert is_linked(out, model) and same_output(quantize(model), out)
    jobs = [{"name": name, "args": ["quantize", str(model), "-o", str(tmp_path / name), "--link", "hard", *options]}
            for name, options in (("a", []), ("b", ["--scheme", "int8-channel"]))]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    for _ in range(2):
        harness.succeed(tessera, ["batch", tmp_path / "jobs.json"])
        assert is_linked(tmp_path / "a", model) and is_linked(tmp_path / "b", model)
        (tmp_path / "b" / "tokenizer.json").unlink()
    assert untouched(model)


def test_a_hubs_cache(told, checkpoint, tmp_path):
    """The cache's files are links to blobs. The hard link is made to the blob."""
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "r"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in checkpoint("llama").iterdir():
        shutil.copy(path, blobs / f"of-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/of-{path.name}")
    assert told("quantize", snapshot, "-o", tmp_path / "out", "--link", "hard")["linked"] == len(SIDE)
    assert not (tmp_path / "out" / "tokenizer.json").is_symlink() and (blobs / "of-tokenizer.json").stat().st_nlink == 2


def test_refused(tessera, model, tmp_path):
    for words, why in ((["--link", "soft"], "none|reflink|hard"), (["--link", "hard", "--mpi"], "--link cannot be combined with --mpi")):
        harness.expect(tessera, ["quantize", model, "-o", tmp_path / "out", *words], 2, why)
