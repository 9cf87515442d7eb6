"""Tests tessera.manifest.json: digests of all bytes of an output, its sources, and the findings of `verify --manifest`."""

import json
import shutil
import subprocess

from checkpoints import BF16, random_weight, save
import harness
import jobs
import manifests
import numpy as np
import pytest

# Rows of 40,000 values: a block of 128 rows is cut into columns, so that no unit has a stretch of the codes to itself.
WIDE = "model.layers.0.mlp.down_proj.weight"


def source_of(folder):
    return save(folder, {WIDE: random_weight((300, 40000)).astype(BF16), "model.layers.0.mlp.up_proj.weight": random_weight((1500, 1400)).astype(BF16),
                         "model.embed_tokens.weight": random_weight((2500, 1000)).astype(BF16), "model.norm.weight": random_weight((0,)).astype(BF16)})


def test_every_byte_has_a_digest(quantize, convert, tmp_path):
    """Tensors have several pieces: of units with a stretch each, of units that share one, and copied ones. Tested for all
    operations and kinds of I/O."""
    src = source_of(tmp_path / "src")
    first = quantize(src, "--threads", "1")
    manifest, pieces = manifests.check(first)
    (model,) = [f for f in manifest["files"] if f["name"] == "model.safetensors"]
    of = {t["name"]: len(t.get("pieces", [0])) for t in model["tensors"]}
    assert of[WIDE] == 3 and of["model.layers.0.mlp.up_proj.weight"] > 1 and of["model.embed_tokens.weight"] == 2 and of["model.norm.weight"] == 1
    assert manifest["counts"] == {"source_tensors": 4, "tensors": 6, "files": 4}
    for options in (["--threads", "4"], ["--io", "direct"], ["--io", "buffered", "--cpumask", "0"]):
        assert harness.tree_difference(first, quantize(src, *options)) is None, options
    assert manifests.check(convert(first, "--to", "archive"))[1] > 3


def test_a_manifest_is_not_copied(quantize, convert, checkpoint):
    """A manifest describes one output. Its signatures are not copied either."""
    made = quantize(checkpoint("llama"))
    (made / "tessera.manifest.json.sig").write_text("a signature")
    again = convert(made, "--to", "bf16")
    assert not (again / "tessera.manifest.json.sig").exists()
    assert manifests.check(again)[0]["command"].startswith("convert --to bf16")


# ---- verify --manifest ----


@pytest.fixture(scope="module")
def made(tessera, tmp_path_factory):
    """Makes an output with tensors in several pieces, and its manifest."""
    place = tmp_path_factory.mktemp("made")
    dst = place / "dst"
    src = source_of(place / "src")
    (src / "tokenizer.json").write_text("{}")
    harness.succeed(tessera, ["quantize", src, "-o", dst, "--quiet"])
    return dst, manifests.read(dst)


@pytest.fixture
def verify(tessera, tmp_path):
    """Returns verify(folder, *options) -> (exit code, findings or the error)."""

    def run(*words):
        told = tmp_path / "told.json"
        told.unlink(missing_ok=True)
        code, out, err = harness.run(tessera, ["verify", "--manifest", *words, "--json", told, "--quiet"])
        assert out == ""
        result = json.loads(told.read_text())
        assert code not in (0, 1) or result["passed"] == (code == 0) == (result["findings"] == [])
        return code, result["findings"] if code in (0, 1) else err

    return run


def flip(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def test_a_flipped_bit_is_found_in_its_piece(made, verify, tmp_path):
    dst, manifest = made
    assert verify(dst) == (0, [])
    assert verify(dst, "--threads", "1") == (0, [])
    copy = tmp_path / "copy"
    shutil.copytree(dst, copy)
    places = []  # (file, tensor, piece's offset, its bytes, where the bit is)
    for file in manifest["files"]:
        stretches = [{"name": None, "offset": 0, **file.get("header", file)}] + file.get("tensors", [])
        for s in stretches:
            at = s.get("offset", 0)
            for size, _ in s.get("pieces", [[s["bytes"], ""]]):
                places += [(file["name"], s["name"] if "tensors" in file else None, at, size, bit) for bit in {at, at + size // 2, at + size - 1} if size]
                at += size
    assert len(places) > 60
    for file, tensor, offset, size, bit in places[:: max(1, len(places) // 24)] + places[-3:]:
        tensor = None if file == "model.safetensors" and offset == 0 else tensor
        flip(copy / file, bit)
        code, findings = verify(copy)
        assert code == 1 and [(f["check"], f["file"], f["where"], f["offset"], f["bytes"]) for f in findings] == [
            ("bytes", file, tensor or file, offset, size)], (file, tensor, bit)
        flip(copy / file, bit)
    for file, *_, bit in places[::9]:
        flip(copy / file, bit)
    assert len(verify(copy, "--threads", "3")[1]) >= len(places) // 27  # several bits of one piece are one finding


def test_missing_foreign_and_cut_files(made, verify, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(made[0], copy)
    (copy / "tessera.manifest.json.minisig").write_text("signed")
    (copy / ".gitattributes").write_text("")
    assert verify(copy) == (0, [])
    (copy / "model.safetensors").write_bytes((copy / "model.safetensors").read_bytes()[:-1])
    (copy / "tokenizer.json").unlink()
    (copy / "model-00002.safetensors").write_bytes(b"")
    code, findings = verify(copy)
    assert code == 1 and [(f["check"], f["file"]) for f in findings] == [
        ("size", "model.safetensors"), ("missing", "tokenizer.json"), ("foreign", "model-00002.safetensors")]
    (copy / "tokenizer.json").mkdir()  # a folder is no file, whatever size it has
    assert [(f["check"], f["file"]) for f in verify(copy)[1]][1] == ("missing", "tokenizer.json")


def test_weights_hide_behind_no_name(made, verify, tmp_path):
    """Loaders read every file that ends in .safetensors, so such a file is reported. Only the endings of signatures are
    ignored."""
    copy = tmp_path / "copy"
    shutil.copytree(made[0], copy)
    for ending in (".sig", ".minisig", ".asc", ".gpg", ".p7s", ".sigstore", ".sigstore.json"):
        (copy / (manifests.NAME + ending)).write_text("signed")
    assert verify(copy) == (0, [])
    foreign = [manifests.NAME + ending for ending in (".safetensors", ".bin", ".sig.safetensors", ".safetensors.index.json", ".bak")]
    foreign += [".x.safetensors", ".x.safetensors.index.json", manifests.NAME + ".d/model.safetensors"]
    for name in foreign:
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_bytes(b"")
        code, findings = verify(copy)
        assert code == 1 and [(f["check"], f["file"]) for f in findings] == [("foreign", name)]
        (copy / name).unlink()


def test_an_empty_tensor_at_a_files_end(quantize, verify, tmp_path):
    """An empty tensor at a file's end is read alone if the data before it fills a read. It has no bytes."""
    src = save(tmp_path / "src", {"model.layers.0.mlp.up_proj.weight": random_weight((4096, 4096)).astype(BF16), "model.nothing": np.zeros(0, np.uint8)})
    dst = quantize(src)
    (model,) = [f for f in manifests.read(dst)["files"] if f["name"] == "model.safetensors"]
    last, before = model["tensors"][-1], model["tensors"][-2]
    assert last["bytes"] == 0 and before["bytes"] == 16 << 20 and len(before["pieces"]) > 1
    assert verify(dst) == (0, [])
    flip(dst / "model.safetensors", model["bytes"] - 1)
    assert verify(dst)[0] == 1


def test_another_machines_copy(made, verify, tmp_path):
    """A person who can change the weights can change the manifest next to them. A copy from another machine detects this."""
    kept, copy = tmp_path / "kept.json", tmp_path / "copy"
    shutil.copy(made[0] / manifests.NAME, kept)
    shutil.copytree(made[0], copy)
    assert verify(copy, "--manifest", kept) == (0, []) and verify(copy, "--manifest", made[0]) == (0, [])
    text = (copy / manifests.NAME).read_bytes()
    flip(copy / "tokenizer.json", 0)
    text = text.replace(manifests.xxh128(b"{}").encode(), manifests.xxh128((copy / "tokenizer.json").read_bytes()).encode())
    (copy / manifests.NAME).write_bytes(reseal(text))
    assert verify(copy) == (0, [])
    code, findings = verify(copy, "--manifest", kept)
    assert code == 1 and [(f["check"], f["file"]) for f in findings] == [("other manifest", manifests.NAME), ("bytes", "tokenizer.json")]
    (copy / manifests.NAME).unlink()
    assert verify(copy, "--manifest", kept)[0] == 1 and verify(copy)[0] == 3


def reseal(text):
    before = text[: text.rindex(b'  "manifest_xxh128"')]
    return before + b'  "manifest_xxh128": "%s"\n}\n' % manifests.xxh128(before).encode()


# Changes of a manifest, and words of the refusal; its own digest is corrected except in the first rows.
HOSTILE = {
    "one bit": (lambda m: None, "damaged"),
    "cut off": (lambda m: None, "truncated"),
    "a newer schema": (lambda m: m.update(schema="tessera-manifest/2"), "reads tessera-manifest/1"),
    "no files": (lambda m: m.pop("files"), "no schema, version, command or files"),
    "a file twice": (lambda m: m["files"].append(m["files"][-1]), "two entries"),
    "out of the folder": (lambda m: m["files"][-1].update(name="../../etc/passwd"), "no output has"),
    "an absolute name": (lambda m: m["files"][-1].update(name="/etc/passwd"), "no output has"),
    "tessera's own": (lambda m: m["files"][-1].update(name=".tessera/journal"), "no output has"),
    "sizes that overflow": (lambda m: tensors(m)[-1].update(bytes=2**64 - 1), "smaller than the bytes"),
    "sizes that overflow together": (lambda m: [f.update(bytes=2**64 - 1) for f in m["files"] if "tensors" not in f], "more bytes than files can have"),
    "offsets with a gap": (lambda m: tensors(m)[1].update(offset=tensors(m)[1]["offset"] + 8), "not after"),
    "pieces that lack bytes": (lambda m: cut_tensor(m)["pieces"].pop(), "pieces smaller"),
    "pieces without bytes": (lambda m: cut_tensor(m)["pieces"].insert(0, [0, "0" * 32]), "without bytes"),
    "one piece that is another": (lambda m: tensors(m)[0].update(pieces=[[tensors(m)[0]["bytes"], "0" * 32]]), "do not match the digest"),
    "another tensor's digest": (lambda m: tensors(m)[0].update(xxh128=tensors(m)[1]["xxh128"]), "do not add up to the file"),
    "a digest in capitals": (lambda m: m["files"][-1].update(xxh128="A" * 32), "32 hex digits"),
    "a short digest": (lambda m: m["files"][-1].update(xxh128="a" * 31), "32 hex digits"),
    "a list": (lambda m: m.update(files=7), "at byte"),
    "two lists": (lambda m: m.update({"another files": []}), "files twice"),
    "two schemas": (lambda m: m.update({"another schema": "tessera-manifest/1"}), "duplicate member of schema"),
    "two commands": (lambda m: m.update({"another command": "quantize"}), "duplicate member of command"),
    "two names": (lambda m: m["files"][0].update({"another name": "x"}), "two names"),
    "two sizes": (lambda m: tensors(m)[0].update({"another bytes": 1}), "duplicate offset, bytes or xxh128"),
    "two digests": (lambda m: m["files"][-1].update({"another xxh128": "0" * 32}), "duplicate offset, bytes or xxh128"),
    "two lists of tensors": (lambda m: next(f for f in m["files"] if "tensors" in f).update({"another tensors": []}), "tensors twice"),
}


def tensors(manifest):
    return next(f for f in manifest["files"] if "tensors" in f)["tensors"]


def cut_tensor(manifest):
    return next(t for t in tensors(manifest) if "pieces" in t)


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_manifest_is_refused(made, verify, tmp_path, name):
    change, words = HOSTILE[name]
    manifest = json.loads((made[0] / manifests.NAME).read_text())
    change(manifest)
    manifest.pop("manifest_xxh128")
    text = json.dumps(manifest, indent=2).removesuffix("\n}").encode() + b',\n  "manifest_xxh128": "'
    text = text.replace(b'"another ', b'"')
    path = tmp_path / "manifest.json"
    path.write_bytes(reseal(text))
    if name == "one bit":
        flip(path, 40)
    if name == "cut off":
        path.write_bytes(path.read_bytes()[:-40])
    code, err = verify(made[0], "--manifest", path)
    assert code == 3 and words in err, err


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
def test_signed_as_the_page_says(quantize, checkpoint, verify, tessera, tmp_path):
    dst = quantize(checkpoint("llama"))
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key], check=True)
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "tessera", dst / manifests.NAME], check=True, stderr=subprocess.DEVNULL)
    (tmp_path / "allowed_signers").write_text("me@example.org " + (tmp_path / "key.pub").read_text())

    def signed():
        words = ["ssh-keygen", "-Y", "verify", "-f", tmp_path / "allowed_signers", "-I", "me@example.org", "-n", "tessera", "-s", dst / (manifests.NAME + ".sig")]
        return subprocess.run(words, stdin=(dst / manifests.NAME).open("rb"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0

    assert signed() and verify(dst) == (0, [])
    # A rerun finds all complete, and leaves manifest and signature as they are.
    assert harness.run(tessera, ["quantize", checkpoint("llama"), "-o", dst, "--quiet"])[0] == 0 and signed()
    flip(dst / manifests.NAME, 30)
    assert not signed() and verify(dst)[0] == 3


# ---- what was read of the source ----


def read_again(folder):
    return json.loads((folder / manifests.NAME).read_text())["reads"]


def test_every_byte_that_was_read_has_a_digest(quantize, convert, checkpoint, tmp_path):
    """Tests windows with gaps (wide rows), many windows, and none (an empty tensor), for any number of threads, kind of I/O
    and instruction set."""
    src = source_of(tmp_path / "src")
    first = quantize(src, "--threads", "1")
    steps, windows = manifests.check_reads(first, src)
    assert steps == 3 and windows > 12
    bytes_of = {i["name"]: sum(w if isinstance(w, int) else w[1] * w[2] for w in i["windows"]) for step in read_again(first) for i in step["inputs"]}
    assert bytes_of == {WIDE: 24000000, "model.layers.0.mlp.up_proj.weight": 4200000, "model.embed_tokens.weight": 5000000}
    assert any(isinstance(w, list) for step in read_again(first) for i in step["inputs"] for w in i["windows"])
    for options in (["--threads", "4"], ["--io", "direct"], ["--io", "buffered", "--cpumask", "0"], ["--memory", "64MB"]):
        assert read_again(quantize(src, *options)) == read_again(first), options
    # The same tensors, packed: the content of the file counts, not its form on the disk.
    assert read_again(quantize(convert(src, "--to", "archive"))) == read_again(first)


def test_kills_and_shards_change_nothing_of_it(tessera, quantize, checkpoint, tmp_path):
    """The journal has the source digests of an earlier run, for resumed runs and for shards."""
    src = checkpoint("deepseek-v3")
    words = ["quantize", src, "--scheme", "int8-channel", "--max-shard-size", "1MB", "--quiet", "-o"]
    harness.succeed(tessera, [*words, tmp_path / "whole"])
    assert manifests.check_reads(tmp_path / "whole", src)[0] > 70
    for shard in "1/3", "0/3", "2/3":
        harness.succeed(tessera, [*words, tmp_path / "shards", "--shard", shard])
    harness.succeed(tessera, ["finish", tmp_path / "shards", "--quiet"])
    assert harness.tree_difference(tmp_path / "whole", tmp_path / "shards") is None
    files = sorted((tmp_path / "whole").glob("*.safetensors"))
    assert len(files) > 3
    for number, lost in enumerate([files[:1], files[-1:], files[1:3]]):
        out = tmp_path / f"again{number}"
        shutil.copytree(tmp_path / "whole", out)
        for path in lost:
            (out / path.name).unlink()
        (out / manifests.NAME).unlink()
        harness.succeed(tessera, [*words, out])
        assert harness.tree_difference(tmp_path / "whole", out) is None


@pytest.mark.parametrize("name", ["quantize SRC -o DST", "quantize SRC -o DST --scheme nvfp4-weight-only", "convert SRC -o DST --to tp --tp 2",
                                  "convert SRC -o DST --to archive"])
def test_another_source_is_told(name, tessera, verify, checkpoint, tmp_path):
    """The message names file and tensor for a flipped bit in any tensor that was read. Other tensors are not checked."""
    src, dst, other = checkpoint("deepseek-v3"), tmp_path / "dst", tmp_path / "other"
    if " tp " in name or "nvfp4" in name:
        src = checkpoint("llama")
    harness.succeed(tessera, [*({"SRC": src, "DST": dst}.get(word, word) for word in name.split()), "--quiet"])
    assert verify(dst, "--source", src) == (0, [])
    assert harness.run(tessera, ["verify", "--manifest", dst, "--source", src])[1].endswith("tensors, headers and config.json\n")
    shutil.copytree(src, other)
    for path in sorted(other.glob("*.safetensors")):
        start, entries, _ = harness.read_header(path)
        for tensor in sorted(entries)[:: max(1, len(entries) // 4)]:
            begin, end = entries[tensor]["data_offsets"]
            bit = start + (begin + end) // 2
            flip(path, bit)
            code, findings = verify(dst, "--source", other, "--threads", "2")
            told = {(f["check"], f["file"]) for f in findings}
            assert code == 1 and told == {("read", path.name)}, findings
            assert all(tensor in f["what"] or "with it" in f["what"] or "archive" in name for f in findings), findings
            flip(path, bit)
    assert verify(dst, "--source", other) == (0, [])
    flip(other / "tokenizer.json", 3)
    (other / "tokenizer_config.json").write_text("{}")
    (other / "generation_config.json").unlink()
    code, findings = verify(dst, "--source", other)
    assert code == 1
    assert harness.run(tessera, ["verify", "--manifest", dst, "--source", other])[1].endswith("it differs\n")
    assert {(f["check"], f["file"]) for f in findings} == {("missing", "generation_config.json"), ("read", "tokenizer.json"), ("size", "tokenizer_config.json")}


@pytest.mark.parametrize("name", ["quantize SRC -o DST", "convert FP8 -o DST --to mxfp8", "convert FP8 -o DST --to bf16"])
def test_another_config_or_header_is_told(name, tessera, verify, checkpoint, quantize, tmp_path):
    """The manifest records options that affect names and actions, also for plans with a view."""
    src, dst, other = checkpoint("llama"), tmp_path / "dst", tmp_path / "other"
    src = quantize(src) if "FP8" in name else src
    harness.succeed(tessera, [*({"SRC": src, "FP8": src, "DST": dst}.get(word, word) for word in name.split()), "--quiet"])
    assert verify(dst, "--source", src) == (0, [])
    (said, *_) = json.loads((dst / manifests.NAME).read_text())["sources"]
    assert said["config_xxh128"] == manifests.xxh128((src / "config.json").read_bytes())
    shutil.copytree(src, other)
    text = (src / "config.json").read_text()
    assert '"hidden_size"' in text
    (other / "config.json").write_text(text.replace('"hidden_size"', '"hidden_sizf"'))
    code, findings = verify(dst, "--source", other)
    assert code == 1 and [(f["check"], f["file"], f["where"]) for f in findings] == [("read", "config.json", "config.json")]
    code, findings = verify(dst, "--source", src / "model.safetensors")
    assert code == 1 and ("missing", "config.json") in {(f["check"], f["file"]) for f in findings}
    (other / "config.json").write_text(text)
    model = (src / "model.safetensors").read_bytes()
    assert model.count(b"layers.0.mlp.gate_proj.weight\"") == model.count(b"layers.0.mlp.up_proj.weight\"") == 1
    swapped = model.replace(b"0.mlp.gate_proj.weight\"", b"0.mlp.A\"").replace(b"0.mlp.up_proj.weight\"", b"0.mlp.gate_proj.weight\"")
    (other / "model.safetensors").write_bytes(swapped.replace(b"0.mlp.A\"", b"0.mlp.up_proj.weight\""))
    code, findings = verify(dst, "--source", other)
    assert code == 1 and [(f["check"], f["file"]) for f in findings] == [("header", "model.safetensors")]


def test_a_manifest_without_what_was_read(made, verify, tmp_path):
    manifest = json.loads((made[0] / manifests.NAME).read_text())

    def told(change):
        other = json.loads(json.dumps(manifest))
        change(other)
        other.pop("manifest_xxh128")
        path = tmp_path / "manifest.json"
        path.write_bytes(reseal(json.dumps(other, indent=2).removesuffix("\n}").encode() + b',\n  "manifest_xxh128": "'))
        return verify(made[0], "--manifest", path, "--source", made[0].parent / "src")

    def first(m):
        return m["reads"][0]["inputs"][0]

    assert told(lambda m: None) == (0, [])
    for change, code, words in (
        (lambda m: m.pop("reads"), 3, "no digests of the source"),
        (lambda m: m["reads"][0].update(xxh128_sum="0" * 31), 3, "without 32 hex digits"),
        (lambda m: m["sources"][0].update(config_xxh128="0" * 31), 3, "without 32 hex digits"),
        (lambda m: m["sources"][0]["files"][0].update(header_xxh3_64="0" * 32), 3, "without 16 hex digits"),
        (lambda m: m["sources"][0]["files"][0].update(header_xxh3_64="x" * 16), 3, "without 16 hex digits"),
        (lambda m: m["reads"][0].pop("inputs"), 3, "without a sum or inputs"),
        (lambda m: first(m).update(windows=[]), 3, "without file, name or windows"),
        (lambda m: first(m).update(windows=[0]), 3, "an empty window"),
        (lambda m: first(m).update(windows=[[0, 2, 2**63, 2**63]]), 3, "beyond any file"),
        (lambda m: first(m).update(windows=[[0, 2, 8, 4]]), 3, "an empty window"),
        (lambda m: first(m).update(windows=[[0, 1, 8]]), 3, "fewer than four"),
        (lambda m: first(m).update(windows=[[0, 1, 8, 8, 8]]), 3, "more than four"),
        (lambda m: first(m).update(windows=[[0, 1, 10**6, 10**6]] * 60000), 3, "more than 1024 times"),
    ):
        got, err = told(change)
        assert got == code and words in err, err
    code, findings = told(lambda m: m["reads"][0].update(xxh128_sum="0" * 32))
    assert code == 1 and len(findings) == 1


# ---- the same bytes again ----

REPRODUCED = {
    "fp8": "quantize SRC -o DST --scale-fmt ue8m0 --scales mse --exclude *.o_proj.* --exclude *.k_proj.* --max-shard-size 600kB",
    "defaults that are spelled": "quantize SRC -o DST --scheme fp8-block --scale-fmt f32 --max-shard-size 5GB --threads 2 --io buffered",
    "int4": "quantize SRC -o DST --scheme int4-weight-only --zero-points",
    "rules": "quantize SRC -o DST --rules RULES --scales amax",
    "tp": "convert SRC -o DST --to tp --tp 2 --ignore-file tokenizer*",
    "archive": "convert SRC -o DST --to archive --shuffle --level 1",
}


@pytest.mark.parametrize("name", REPRODUCED)
def test_the_manifest_makes_the_same_bytes_again(name, checkpoint, tessera, tmp_path):
    first, again = tmp_path / "first", tmp_path / "again"
    (tmp_path / "kept").mkdir()
    rules = tmp_path / "rules of mine.json"
    shutil.copy(jobs.RULES, rules)
    words = {"SRC": checkpoint("llama"), "DST": first, "RULES": rules}
    harness.succeed(tessera, [*(words.get(word, word) for word in REPRODUCED[name].split()), "--quiet"])
    manifest = manifests.check(first)[0]
    how = manifest["reproduce"]
    assert len(how["inputs"]) == (name == "rules") and not any(str(tmp_path) in word for word in how["options"])
    if name.startswith("defaults"):
        assert how["options"] == ["--max-shard-size=5000000000"]
    for kept in how["inputs"]:  # elsewhere, of what the manifest holds
        (tmp_path / "kept" / kept["name"]).write_text(kept["text"])
        assert manifests.xxh128(kept["text"].encode()) == kept["xxh128"]
    rules.unlink()
    options = [w.replace("=rules of mine", f"={tmp_path}/kept/rules of mine") for w in how["options"]]
    harness.succeed(tessera, [how["command"], checkpoint("llama"), "-o", again, *options, "--quiet"])
    assert harness.tree_difference(first, again) is None
