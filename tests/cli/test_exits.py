"""Tests --json and --junit for every exit: a command that ends early writes a valid result with the reason, which `tessera report` reads.

Only an invalid command line writes nothing."""

import json
import pathlib
import shutil
import subprocess
import xml.etree.ElementTree

import harness
import jsonschema
import ml_dtypes
import numpy as np
import pytest
import referencing
from checkpoints import save

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMAS = {path.name: json.loads(path.read_text()) for path in (ROOT / "docs/schemas").glob("*.schema.json")}
REGISTRY = referencing.Registry().with_resources((name, referencing.Resource.from_contents(schema)) for name, schema in SCHEMAS.items())
SHORT, FORMAT, IO, DEVICE = 1, 3, 4, 5
# Command, exit code, words of the message. BROKEN is a checkpoint whose file is cut.
CASES = [
    ("verify BROKEN --against SRC", FORMAT, "model.safetensors"),
    ("verify SRC --against BROKEN", FORMAT, "model.safetensors"),
    ("verify gemm BROKEN --device cpu", FORMAT, "model.safetensors"),
    ("verify epilogue BROKEN --device cpu", FORMAT, "model.safetensors"),
    ("verify dequant BROKEN --device cpu", FORMAT, "model.safetensors"),
    ("verify mla BROKEN --device cpu", FORMAT, "model.safetensors"),
    ("verify gemm SRC --device cpu", FORMAT, ""),  # BF16: there is nothing that it could check
    ("verify forward BROKEN --against SRC", FORMAT, "model.safetensors"),
    ("verify gemm SRC --device cuda", DEVICE, "GPU"),
    ("verify epilogue SRC --device cuda", DEVICE, "GPU"),
    ("verify dequant SRC --device cuda", DEVICE, "GPU"),
    ("verify mla SRC --device cuda", DEVICE, "GPU"),
    ("verify gemm SRC --device cuda", DEVICE, "GPU"),
    ("verify epilogue SRC --device cuda", DEVICE, "GPU"),
    ("verify dequant SRC --device cuda", DEVICE, "GPU"),
    ("verify mla SRC --device auto --device cuda", DEVICE, "GPU"),
    ("report BROKEN/config.json", FORMAT, "config.json"),
    ("quantize BROKEN -o OUT", FORMAT, "model.safetensors"),
    ("quantize SRC -o FILE/below", IO, "plain"),
    ("convert BROKEN -o OUT --to bf16", FORMAT, "model.safetensors"),
    ("compare-schemes BROKEN", FORMAT, "model.safetensors"),
    ("plan-schemes BROKEN --bits 8", FORMAT, "model.safetensors"),
    ("plan-schemes SRC --max-bytes 10", SHORT, "a budget of 10 bytes"),
    ("plan-schemes BROKEN --bits 8 -o RULES", FORMAT, "model.safetensors"),
    ("diff SRC BROKEN", FORMAT, "model.safetensors"),
    ("inspect BROKEN", FORMAT, "model.safetensors"),
    ("inspect BROKEN:some.tensor", FORMAT, "model.safetensors"),
    ("inspect SRC:no.such.tensor", FORMAT, "no.such.tensor"),
]
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def places(checkpoint, tmp_path):
    """Returns the paths of the words in capitals."""
    source, broken = checkpoint("llama"), tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text((source / "config.json").read_text())
    (broken / "model.safetensors").write_bytes(next(source.glob("*.safetensors")).read_bytes()[:1000])
    (tmp_path / "plain").write_text("a file, no folder\n")
    return {"SRC": source, "BROKEN": broken, "OUT": tmp_path / "out", "FILE": tmp_path / "plain", "RULES": tmp_path / "rules.json"}


def spell(places, command):
    """Returns the words of a command line, with its paths."""
    words = []
    for word in command.split():
        for name, path in places.items():
            if word == name or word.startswith((name + ":", name + "/")):
                word = str(path) + word[len(name):]
        words.append(word)
    return words


def check_json(text, code, message, **more):
    """Checks an error against the schema that it names."""
    document = json.loads(text)
    schema = SCHEMAS[document["schema"].removeprefix("tessera-").removesuffix("/1") + ".schema.json"]
    jsonschema.Draft202012Validator(schema, registry=REGISTRY).validate(document)
    assert document["error"] == {"code": code, "message": message, **more}
    return document


def check_junit(text, message, name="the run"):
    """Checks a file with one error against the schema of JUnit."""
    if shutil.which("xmllint"):
        done = subprocess.run(["xmllint", "--noout", "--nonet", "--schema", ROOT / "tests/common/junit.xsd", "-"], input=text.encode(),
                              capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
    root = xml.etree.ElementTree.fromstring(text.encode())
    (suite,) = root
    (case,) = suite.iter("testcase")
    assert root.get("errors") == suite.get("errors") == "1" and root.get("failures") == suite.get("failures") == "0"
    assert case.get("name") == name
    assert case.find("error").get("message") == message and message in case.find("error").text


def said(err):
    """Returns the message in the last line on stderr."""
    line = err.splitlines()[-1]
    assert line.startswith("tessera: ")
    return line.removeprefix("tessera: ")


@pytest.mark.parametrize("command, code, names", CASES)
def test_an_error_is_a_result(command, code, names, places, tessera, tmp_path, monkeypatch):
    files = {"--json": tmp_path / "result.json", "--junit": tmp_path / "result.xml"}
    for path in files.values():  # of an earlier run, which passed
        path.write_text("passed\n")
    for name, value in NO_GPU.items():
        monkeypatch.setenv(name, value)
    got, out, err = harness.run(tessera, spell(places, command) + [word for pair in files.items() for word in pair])
    assert (got, out) == (code, "") and names in err, err
    document = check_json(files["--json"].read_text(), code, said(err))
    check_junit(files["--junit"].read_text(), said(err))
    got, out, err = harness.run(tessera, ["report", files["--json"], "--json", tmp_path / "report.json", "--junit", tmp_path / "report.xml"])
    assert got == 1 and err == "" and f"an error ended it, with exit code {code}" in " ".join(out.split())
    (result,) = json.loads((tmp_path / "report.json").read_text())["results"]
    assert result["error"] == document["error"] and result["verdict"] == "failed"
    check_junit((tmp_path / "report.xml").read_text(), document["error"]["message"])


@pytest.mark.parametrize("command", ["verify BROKEN --against SRC", "verify gemm BROKEN --device cpu", "diff SRC BROKEN",
                                     "convert BROKEN -o OUT --to bf16"])
def test_an_error_names_its_tensor(command, places, tessera, tmp_path):
    """JUnit has a case of the tensor's name for a checkpoint that is refused for one tensor."""
    weight = "model.layers.0.mlp.up_proj.weight"
    files = {"--json": tmp_path / "result.json", "--junit": tmp_path / "result.xml"}
    shutil.rmtree(places["BROKEN"])
    save(places["BROKEN"], {weight: np.zeros((256, 384), ml_dtypes.float8_e4m3fn), weight + "_scale_inv": np.ones((3, 2), np.float32)},
         {"model_type": "llama", "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}})
    err = harness.expect(tessera, spell(places, command) + [word for pair in files.items() for word in pair], FORMAT, "transposed")
    check_json(files["--json"].read_text(), FORMAT, said(err), tensor=weight)
    check_junit(files["--junit"].read_text(), said(err), weight)
    got, out, err = harness.run(tessera, ["report", files["--json"], "--json", tmp_path / "report.json", "--junit", tmp_path / "report.xml"])
    (result,) = json.loads((tmp_path / "report.json").read_text())["results"]
    assert got == 1 and result["error"]["tensor"] == weight and weight in out, err
    check_junit((tmp_path / "report.xml").read_text(), result["error"]["message"], weight)


def test_errors_on_stdout(places, tessera):
    code, out, err = harness.run(tessera, spell(places, "verify BROKEN --against SRC --json -"))
    check_json(out, code, said(err))
    code, out, err = harness.run(tessera, spell(places, "verify BROKEN --against SRC --junit -"))
    assert code == FORMAT
    check_junit(out, said(err))


@pytest.mark.parametrize("command", [
    "inspect NONE", "quantize NONE -o OUT", "verify NONE --against SRC", "verify manifest NONE", "report NONE", "batch NONE",
    "quantize SRC -o OUT --scheme int8-channel --activations NONE", "quantize SRC -o OUT --rules NONE",
    "verify forward SRC --against SRC --tokens NONE"])
def test_a_file_that_is_not_there_is_bad_input(command, tessera, checkpoint, tmp_path):
    """A missing file has exit code 3 for every kind of file."""
    names = {"SRC": checkpoint("llama"), "OUT": tmp_path / "out", "NONE": tmp_path / "none"}
    code, _, err = harness.run(tessera, [names.get(word, word) for word in command.split()])
    assert code == 3 and f"{names['NONE']}: " in err and "No such file" in err and err.count("\n") == 1, err


def test_the_nearest_name_is_suggested(tessera, tmp_path):
    """An empty folder is not suggested: it may be the output."""
    for name in ("Llama-3.1-8B", "Qwen3-8B", ".hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "Lama-3.1-8D").mkdir()
    (tmp_path / "Lama-3.1-8C").write_text("no folder, and no weights")
    for name, meant in (("Lama-3.1-8B", " (did you mean 'Llama-3.1-8B'?)"), ("something-else", "")):
        code, _, err = harness.run(tessera, ["quantize", tmp_path / name, "-o", tmp_path / "Lama-3.1-8E"])
        assert code == 3 and err == f"tessera: {tmp_path / name}: No such file or directory{meant}\n"


@pytest.mark.parametrize("command", ["verify SRC --against BROKEN --min-sqnr many", "verify BROKEN", "quantize BROKEN -o OUT --block 3",
                                     "diff BROKEN", "verify gemm BROKEN --tokens 0", "verify gemm BROKEN --device cuda --scaling 2x2",
                                     "verify mla BROKEN --device gpu", "report"])
def test_a_wrong_command_line_writes_nothing(command, places, tessera, tmp_path):
    path = tmp_path / "result.json"
    path.write_text("as it was\n")
    code, _, err = harness.run(tessera, spell(places, command) + ["--json", path])
    assert code == 2 and path.read_text() == "as it was\n", err


def test_a_runner_with_a_broken_driver_does_not_pass_on_the_cpu(places, quantize, tessera, tmp_path, monkeypatch):
    """With --device auto the check passes on the CPU. A command that requires a GPU fails with a driver that is not a
    library, and without a device."""
    output, (result, junit) = quantize(places["SRC"]), (tmp_path / "result.json", tmp_path / "result.xml")
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver/libcuda.so.1").write_text("no library\n")
    check = ["verify", "gemm", output, "--sample", 1, "--json", result, "--junit", junit, "--quiet"]
    for name, value in {**NO_GPU, "LD_LIBRARY_PATH": tmp_path / "driver"}.items():
        with monkeypatch.context() as context:
            context.setenv(name, str(value))
            code, _, err = harness.run(tessera, check)
            passed = json.loads(result.read_text())
            assert (code, passed["passed"]) == (0, True) and passed["device"].startswith("CPU") and passed["device_note"], err
            code, out, err = harness.run(tessera, [*check, "--device", "cuda"])
            assert (code, out) == (DEVICE, ""), err
            check_json(result.read_text(), DEVICE, said(err))
            check_junit(junit.read_text(), said(err))


def test_an_error_never_lands_in_a_source(places, tessera):
    """A report inside a source is not written, even if another error occurs first."""
    path = places["BROKEN"] / "config.json"
    before = path.read_bytes()
    code, _, _ = harness.run(tessera, spell(places, "quantize BROKEN -o FILE/below --json BROKEN/config.json"))
    assert code in (2, IO) and path.read_bytes() == before


def test_one_file_tells_that_the_other_cannot_be_written(places, tessera, tmp_path):
    """The folder is missing, or the device is full. The other file is written once and is complete."""
    junit = tmp_path / "result.xml"
    err = harness.expect(tessera, spell(places, "verify SRC --against SRC") + ["--json", tmp_path / "no/result.json", "--junit", junit], IO)
    check_junit(junit.read_text(), said(err))
    err = harness.expect(tessera, spell(places, "verify SRC --against SRC --json /dev/full") + ["--junit", junit], IO)
    check_junit(junit.read_text(), said(err))
    code, _, err = harness.run(tessera, spell(places, "verify SRC --against SRC --junit /dev/full") + ["--json", tmp_path / "result.json"])
    assert code == IO and json.loads((tmp_path / "result.json").read_text())["passed"]


@pytest.mark.parametrize("broken", ['{"code": 3}', '{"message": "x"}', '{"code": 0, "message": "x"}', '{"code": 3, "message": null}', "3", "[]"])
def test_an_error_that_is_none_is_refused(broken, tessera, tmp_path):
    path = tmp_path / "result.json"
    path.write_text('{"schema": "tessera-verify/1", "version": "0.1.0", "error": %s}' % broken)
    harness.expect(tessera, ["report", path], FORMAT, str(path))


def test_swapped_sides_are_told(tessera, checkpoint, quantize):
    """SRC is quantized and DST is not, so the names are probably swapped. In the right order there is no message."""
    source = checkpoint("llama")
    output = quantize(source)
    code, out, _ = harness.run(tessera, ["verify", source, "--against", output])
    assert code == 1 and f"{output} is quantized and {source} is not: if the second is the original, the two arguments are swapped" in out
    assert "is quantized, and" not in harness.run(tessera, ["verify", output, "--against", source])[1]
