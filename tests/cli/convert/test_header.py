"""Tests unusual safetensors headers and files: valid ones are read as the safetensors package does, except as docs/conversions.md lists.

Files of other formats are named in the message."""

import struct
import zipfile

from checkpoints import make
import harness
import numpy as np
import pytest
import safetensors

A = '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'


def inside(text):
    return '{"a":{%s"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' % text


READ = {
    "__metadata__ null": '{"__metadata__":null,%s}' % A,
    "an escaped key of a tensor": '{"a":{"\\u0064type":"F32","shape":[1],"data_offset\\u0073":[0,4]}}',
    "an escaped dtype": '{"a":{"dtype":"\\u004632","shape":[1],"data_offsets":[0,4]}}',
    "an escaped name": '{"\\u0061":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    "an escaped __metadata__": '{"__met\\u0061data__":{"format":"pt"},%s}' % A,
    "a key twice in __metadata__": '{"__metadata__":{"x":"1","x":"2"},%s}' % A,
    "an unknown key of a tensor": inside('"x":[1,{}],'),
    # Its length, 0x17B, makes '{' the first byte of the file, as of one that is JSON.
    "a line feed first, and 379 bytes": "\n{%s}" % (A + " " * (379 - 3 - len(A))),
    "white space": ' {\n%s\t}\r\n  ' % A,
    "nested 60 deep": inside('"x":' + "[" * 60 + "]" * 60 + ","),
    "8 dimensions": '{"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}',
}
# Headers that the package accepts, and Tessera does not: the list of docs/conversions.md.
STRICTER = {
    "a name twice": ('{%s,%s}' % (A, A), "duplicate tensor"),
    "an empty name": ('{"":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', "without a name"),
    "a NUL in a name": ('{"a\\u0000b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', "NUL"),
    "9 dimensions": ('{"a":{"dtype":"F32","shape":%s,"data_offsets":[0,4]}}' % ([1] * 9), "8 dimensions"),
    "nested 70 deep": (inside('"x":' + "[" * 70 + "]" * 70 + ","), "deep"),
    "a tensor as an array": ('{"a":["F32",[1],[0,4]]}', "object"),
}
REFUSED = {
    "__metadata__ twice": '{"__metadata__":{},"__metadata__":{},%s}' % A,
    "__metadata__ twice, escaped": '{"__metadata__":{},"__met\\u0061data__":{},%s}' % A,
    "a dtype twice": inside('"dtype":"F32",'),
    "a dtype twice, escaped": inside('"\\u0064type":"F32",'),
    "a number in __metadata__": '{"__metadata__":{"x":1},%s}' % A,
    "an unknown dtype, escaped": '{"a":{"dtype":"\\u004733","shape":[1],"data_offsets":[0,4]}}',
    "a lone surrogate": '{"a\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    "a fraction": '{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}',
}


def write(path, text):
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + struct.pack("<f", 2.5))
    return path


@pytest.mark.parametrize("name", READ)
def test_what_the_package_reads(tmp_path, tessera, name):
    path = write(tmp_path / "x.safetensors", READ[name])
    assert [n for n, _ in safetensors.deserialize(path.read_bytes())] == ["a"]
    assert "2.5" in harness.succeed(tessera, ["inspect", f"{path}:a"])
    harness.succeed(tessera, ["inspect", path])


@pytest.mark.parametrize("name", STRICTER)
def test_what_only_the_package_reads(tmp_path, tessera, name):
    text, word = STRICTER[name]
    path = write(tmp_path / "x.safetensors", text)
    assert len(safetensors.deserialize(path.read_bytes())) == 1
    harness.expect(tessera, ["inspect", path], 3, word)


@pytest.mark.parametrize("name", REFUSED)
def test_what_nobody_reads(tmp_path, tessera, name):
    path = write(tmp_path / "x.safetensors", REFUSED[name])
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(path.read_bytes())
    assert harness.run(tessera, ["inspect", path])[0] == 3


def test_an_escaped_key_of_the_configuration(tmp_path, tessera):
    """An escaped key is read. Otherwise a quantized checkpoint would be taken for an unquantized one."""
    src = make(tmp_path / "src", {"model.safetensors": {"model.norm.weight": np.ones(3, np.float32)}}, None)
    (src / "config.json").write_text('{"quantiz\\u0061tion_config":{"quant_method":"awq"}}')
    harness.expect(tessera, ["convert", src, "-o", tmp_path / "dst", "--to", "tp", "--tp", "1"], 3, "'awq'")
    (src / "config.json").write_text('{"weird": "\\u0061", "quantization_config": {"quant_method": "fp\\u0038"}}')
    harness.expect(tessera, ["convert", src, "-o", tmp_path / "dst", "--to", "tp", "--tp", "1"], 3, "quant_method is 'fp8'")


def zipped(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02}")


OTHERS = {
    "LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
    "HTML": (b"<!DOCTYPE html>\n<html><body>404</body></html>" + bytes(100), "an HTML page"),
    "html": (b"\n  <html lang=en>" + bytes(100), "an HTML page"),
    "XML": (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "an XML text"),
    "GGUF": (b"GGUF\x03\0\0\0" + bytes(100), "a GGUF file"),
    "zip": (zipped, "a zip archive"),
    "pickle": (b"\x80\x02}q\0." + bytes(100), "a Python pickle"),
    "gzip": (b"\x1f\x8b\x08\0" + bytes(100), "gzip"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(100), "zstd"),
    "JSON": (b'{"metadata":{},"weight_map":{}}' + b" " * 100, "JSON"),
    "an error message": (b"Entry not found", "no such file"),
    "another message": (b"Invalid username or password.", "without login"),
    "nothing": (b"", "too short"),
    "noise": (b"\xff" * 100, "damaged"),
    "truncated": (struct.pack("<Q", 1000) + b'{"a"', "truncated"),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("place", ["file", "shard"])
def test_what_lies_in_place_of_a_shard(tmp_path, tessera, name, place):
    contents, word = OTHERS[name]
    src = make(tmp_path / "src", {"model.safetensors": {"model.norm.weight": np.ones(3, np.float32)}}, None)
    path = src / "model.safetensors"
    if callable(contents):
        contents(path)
    else:
        path.write_bytes(contents)
    for command in (["inspect", path if place == "file" else src], ["quantize", src, "-o", tmp_path / "dst"]):
        harness.expect(tessera, command, 3, word, str(path))


@pytest.mark.parametrize("name, word", [("pytorch_model-00001-of-00002.bin", "pickle"), ("model.gguf", "GGUF"), ("a.pth", "pickle"),
                                        ("model_index.json", "diffusers pipeline")])
def test_a_directory_of_other_weights(tmp_path, tessera, name, word):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"x")
    harness.expect(tessera, ["inspect", tmp_path], 3, name, word)


def test_a_hub_id_says_how_to_name_it(tmp_path, tessera, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (["inspect", "deepseek-ai/DeepSeek-V3.1"], ["quantize", "deepseek-ai/DeepSeek-V3.1", "-o", "dst"],
                    ["convert", "deepseek-ai/DeepSeek-V3.1", "-o", "dst", "--to", "bf16"]):
        harness.expect(tessera, command, 3, "name hf://deepseek-ai/DeepSeek-V3.1")
    (tmp_path / "deepseek-ai").mkdir()
    for path in ("deepseek-ai/DeepSeek-V3.1", "./deepseek/DeepSeek", "/no/where", "a/b/c", "nowhere", "a/", "a/.b", "../x"):
        code, _, err = harness.run(tessera, ["inspect", path])
        assert code == 3 and "hf://" not in err and "No such file" in err, err
