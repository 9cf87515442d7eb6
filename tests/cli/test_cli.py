"""Tests the command line: help, suggestions for typos, common members of JSON results, and the suggested next command."""

import fnmatch
import json
import os
import pathlib
import re
import subprocess
import xml.etree.ElementTree as ElementTree

from checkpoints import BF16, save
import harness
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMANDS = ["quantize", "convert", "compare-schemes", "plan-schemes", "diff", "verify", "inspect"]
CHECKS = ["gemm", "epilogue", "dequant", "mla", "forward", "all"]


@pytest.fixture
def run(tessera):
    """Returns run(*words) -> (exit code, stdout, stderr)."""
    return lambda *words: harness.run(tessera, words)


@pytest.mark.parametrize("words", [[c] for c in COMMANDS] + [["verify", c] for c in CHECKS])
def test_help_is_the_same_however_it_is_asked_for(run, words):
    texts = [run("help", *words), run(*words, "--help"), run(*words, "SRC", "--help")]
    assert all(code == 0 and err == "" for code, _, err in texts)
    assert len({out for _, out, _ in texts}) == 1 and texts[0][1].startswith(f"tessera {' '.join(words)} ")
    assert "Examples:" in texts[0][1] and "\n  --help" in texts[0][1]


@pytest.mark.parametrize("words", [[c] for c in COMMANDS] + [["verify", c] for c in CHECKS])
def test_the_short_help_is_a_part_of_the_whole(run, words):
    code, out, err = run(*words, "-h")
    whole = run(*words, "--help")[1]
    names = set(re.findall(r"^  (-[-a-z0-9]+)", whole[whole.index("\nOptions:"):], re.M))
    shown = re.search(r"\nOptions: ([^']*)\n\n", out).group(1).replace("\n", " ").split(", ")
    assert code == 0 and err == "" and set(shown) == names and len(out) < len(whole)
    assert set(out[:out.index("\nOptions:")].splitlines()) <= set(whole.splitlines())
    assert out.count("\n  tessera ") <= 3 and f"'tessera help {' '.join(words)}'" in out


def test_options_are_grouped_by_topic(run):
    out = run("quantize", "--help")[1]
    topics = re.findall(r"^ ([A-Z][a-z ]+):$", out, re.M)
    assert topics == ["Scheme", "Weights", "Scales and codes", "Activations", "Model card", "Loaders", "Proof", "Limits", "Output", "General"]
    assert out.index("\n  --scheme") < out.index("\n Weights:") < out.index("\n  --include") < out.index("\n Scales and codes:")


def test_nothing_typed_prints_how_to_start(run):
    code, out, err = run()
    assert code == 2 and out == "" and len(err.splitlines()) == 5
    assert all(word in err for word in ("tessera quantize MODEL -o OUT", "tessera verify OUT --against MODEL", "tessera help"))


def test_one_is_no_plural(run, tmp_path):
    """A count of one has the singular: a tensor, a file, a thread, a digest, a result."""
    src = save(tmp_path / "src", {"model.layers.0.mlp.down_proj.weight": np.ones((128, 128), BF16)}, {"model_type": "llama"})
    dst, shard, told = tmp_path / "dst", tmp_path / "shard", tmp_path / "told.json"
    make = ["quantize", src, "-o", dst, "--threads", "1", "--link", "hard"]
    for words in ([*make, "--dry-run"], make, [*make, "--min-sqnr", "3"], ["quantize", src, "-o", shard, "--shard", "0/1"], ["inspect", dst],
                  ["finish", shard], ["verify", dst, "--against", src, "--threads", "1", "--json", told], ["verify", "manifest", dst, "--threads", "1"],
                  ["diff", src, src, "--threads", "1"], ["report", told, dst]):
        code, out, err = run(*words)
        assert code == 0, err
        plain = re.search(r"\b1 (tensors|files|threads|digests|shards|findings|results|jobs|judgements)\b(?! or)", re.sub(r"\d of 1 ", "", out))
        assert plain is None, out


def test_help_and_version(run):
    helps = [run("help"), run("--help"), run("-h")]
    assert all(code == 0 and "130  interrupted" in out for code, out, _ in helps)
    versions = [run("--version"), run("-V"), run("version")]
    assert all(code == 0 and out.startswith("tessera ") for code, out, _ in versions)
    code, _, err = run("help", "quantise")
    assert code == 2 and "did you mean 'quantize'?" in err


def test_the_version_as_json(run, tessera):
    """The commit is one of this repository, and the libraries are those of the binary."""
    code, out, err = run("--version", "--json")
    said = json.loads(out)
    assert code == 0 and err == "" and said["version"] == run("--version")[1].split()[1]
    assert said["machine"] == os.uname().machine or "qemu" in pathlib.Path(tessera).read_bytes()[:200].decode(errors="replace")
    assert re.match(r"(gcc|clang) \d+\.\d+", said["compiler"])
    flags = set(re.search(r"^(?:flags|Features)\s*:(.*)", pathlib.Path("/proc/cpuinfo").read_text(), re.M).group(1).split())
    if said["machine"] == "x86_64":
        assert said["isa"] == ("avx512+vbmi" if "avx512vbmi" in flags else "avx512" if "avx512dq" in flags else "avx2" if "avx2" in flags else "scalar")
    if (ROOT / ".git").exists() and said["commit"] is not None:
        commit = said["commit"].removesuffix("-dirty")
        assert subprocess.run(["git", "-C", ROOT, "cat-file", "-e", f"{commit}^{{commit}}"]).returncode == 0, commit
    libraries = {library["name"]: library for library in said["libraries"]}
    assert {"libxxhash", "libzstd"} <= set(libraries) and all(re.match(r"\d+\.\d+", library["built_with"]) for library in said["libraries"])
    for name, feature in (("liburing", "liburing"), ("MPI", "mpi"), ("CUDA runtime", "cuda")):
        assert (name in libraries) == said["features"][feature], name


def test_tensors_for_completion(run, checkpoint, tmp_path):
    """Numbers after the typed text become *, so a model with many layers has few lines. Errors are reported as usual."""
    src = checkpoint("deepseek-v3")
    names = {tensor for path in src.glob("*.safetensors") for tensor in harness.read_safetensors(path)[1] if tensor != "__metadata__"}
    code, out, _ = run("help", "--tensors", src)
    globs = out.splitlines()
    assert code == 0 and len(globs) < len(names) and globs == sorted(set(globs))
    assert set(globs) == {re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in names}
    assert all(any(fnmatch.fnmatchcase(name, glob) for glob in globs) for name in names)
    of_one = run("help", "--tensors", src, "model.layers.1.m")[1].splitlines()
    assert of_one and all(glob.startswith("model.layers.1.m") for glob in of_one) and "*" in "".join(of_one)
    assert run("help", "--tensors", src, "model.layers.*.mlp.gate.")[1].splitlines() == [glob for glob in globs if ".mlp.gate." in glob]
    assert run("help", "--tensors", src, "no.such") == (0, "", "")
    code, out, err = run("help", "--tensors", tmp_path / "nothing")
    assert code == 3 and out == "" and "nothing" in err


@pytest.mark.parametrize("words, meant", [
    (["quantise"], "quantize"), (["inspct"], "inspect"), (["compare-scheme"], "compare-schemes"),
    (["quantize", "SRC", "--sheme", "fp8-block"], "--scheme"), (["quantize", "SRC", "--dryrun"], "--dry-run"),
    (["quantize", "SRC", "--thread=4"], "--threads"), (["inspect", "SRC", "--canload", "all"], "--can-load"),
    (["quantize", "SRC", "--scheme", "fp8-blok"], "fp8-block"), (["quantize", "SRC", "--scheme", "int8_channel"], "int8-channel"),
    (["convert", "SRC", "--to", "bf61"], "bf16"), (["convert", "SRC", "--to", "fastertransfomer"], "fastertransformer"),
    (["convert", "SRC", "--to", "archiv"], "archive"), (["verify", "gem", "DST"], "gemm"), (["verify", "gem"], "gemm"),
    (["verify", "foward", "DST", "--against", "SRC"], "forward"), (["verify", "SRC", "--againts", "x"], "--against"),
])
def test_the_nearest_word_is_suggested(run, words, meant):
    code, _, err = run(*words)
    assert code == 2 and f"did you mean '{meant}'?" in err and err.count("\n") == 1, err


@pytest.mark.parametrize("words", [["xyz"], ["quantize", "SRC", "--zzz"], ["convert", "SRC", "--to", "gguf"], ["verify", "model"]])
def test_nothing_is_suggested_that_is_not_near(run, words):
    code, _, err = run(*words)
    assert code == 2 and "did you mean" not in err, err


@pytest.mark.parametrize("check", ["epilogue", "dequant"])
@pytest.mark.parametrize("option", [("--scaling", "64x128"), ("--experts", "2")])
def test_options_of_gemm_are_refused_elsewhere(run, checkpoint, check, option):
    code, _, err = run("verify", check, checkpoint("llama"), *option)
    assert code == 2 and f"{option[0]} cannot be combined with verify {check}" in err


def test_every_json_names_its_schema_and_version(run, checkpoint, quantize, tmp_path):
    src = checkpoint("llama")
    dst = quantize(src)
    commands = {
        "quantize": ["quantize", src, "-o", tmp_path / "a"], "convert": ["convert", dst, "-o", tmp_path / "b", "--to", "bf16"],
        "inspect": ["inspect", dst], "inspect-tensor": ["inspect", f"{dst}:lm_head.weight"], "diff": ["diff", src, dst],
        "verify": ["verify", dst, "--against", src], "compare-schemes": ["compare-schemes", src, "--sample", "1"],
        "plan-schemes": ["plan-schemes", src, "--bits", "8"],
        "verify-kernels": ["verify", "gemm", dst, "--device", "cpu", "--sample", "1"],
        "verify-forward": ["verify", "forward", dst, "--against", src, "--count", "4"],
    }
    version = run("--version")[1].split()[1]
    for name, words in commands.items():
        for dry in ([], ["--dry-run"]) if name in ("quantize", "convert") else ([],):
            code, out, err = run(*words, "--json", "-", *dry)
            said = json.loads(out)
            assert code in (0, 1) and (said["schema"], said["version"]) == (f"tessera-{name}/1", version), err
            assert list(said)[:2] == ["schema", "version"]


def test_next_names_a_tensor_or_none(run, checkpoint, quantize):
    """A key of the configuration is not a tensor, so the next command is not diff of a tensor."""
    src = checkpoint("llama")
    dst = quantize(src)
    config = (dst / "config.json").read_text()
    (dst / "config.json").write_text(config.replace('"attention_bias": false', '"attention_bias": true'))
    code, out, _ = run("verify", dst, "--against", src)
    (line,) = [x for x in out.splitlines() if x.startswith("next: ")]
    assert code == 1 and "attention_bias" in line and "--tensors" not in line


def test_a_file_glob_that_fits_nothing_is_told(run, checkpoint, quantize, tmp_path):
    """Each command with this option prints one warning for a glob without a match, and none otherwise."""
    model = checkpoint("llama")
    fp8 = quantize(model)
    files, told = ("--ignore-file", "zzz*", "--ignore-file", "tok*"), "tessera: --ignore-file 'zzz*' matches no file\n"
    result = tmp_path / "result.json"
    for words in (("compare-schemes", model, "--sample", "1", *files), ("plan-schemes", model, "--schemes", "fp8-block", "--bits", "8.1", *files),
                  ("inspect", model, *files), ("inspect", model / "model.safetensors", *files[:2]), ("verify", "--manifest", fp8, "--source", model, *files[:2]),
                  ("quantize", model, "-o", tmp_path / "a", *files, "--json", result),
                  ("convert", fp8, "-o", tmp_path / "b", "--to", "archive", *files[:2], "--json", result)):
        result.unlink(missing_ok=True)
        code, _, err = run(*words)
        assert "".join(line + "\n" for line in err.splitlines() if " matches no " in line) == told and code in (0, 1), (words, code, err)
        assert not result.exists() or json.loads(result.read_text())["warnings"] == ["--ignore-file 'zzz*' matches no file"]


def test_a_tensor_glob_that_fits_nothing_is_refused(run, checkpoint, quantize, tmp_path):
    """Each command refuses a glob that matches nothing before any work, even if another glob matches."""
    model = checkpoint("llama")
    fp8 = quantize(model)
    commands = [("verify", fp8, "--against", model, "--tensors"), ("diff", model, fp8, "--tensors"), ("verify", "gemm", fp8, "--tensors"),
                ("verify", "all", fp8, "--against", model, "--tensors"), ("compare-schemes", model, "--tensors"),
                *[("quantize", model, "-o", tmp_path / "out", *dry, option) for option in ("--exclude", "--include") for dry in ([], ["--dry-run"])],
                ("convert", fp8, "-o", tmp_path / "out", "--to", "fp8-block", "--exclude"), ("convert", fp8, "-o", tmp_path / "out", "--to", "mxfp8", "--exclude")]
    for words in commands:
        for glob in ("typo", "model.layers.[7-9].*", "re:.*q_proj.*", "*.{q,k}_proj.*"):
            code, out, err = run(*words, "*q_proj*", words[-1], glob)
            assert code == 2 and out == "" and err.count("\n") == 1, (words, glob, code, out, err)
            assert f"{words[-1]} '{glob}' matches no tensor" in err and "sets such as [0-3]" in err and "tessera help --tensors" in err, err
    assert not (tmp_path / "out").exists()


def test_a_set_of_characters_chooses_tensors(run, checkpoint, quantize, tmp_path):
    """Every command matches as Python's fnmatch does."""
    model, result = checkpoint("llama"), tmp_path / "result.json"
    fp8 = quantize(model)
    names = [name for name in json.loads(run("diff", model, fp8, "--json", "-")[1])["tensors"]]
    for glob in ("*.layers.[0-0].*.[qk]_proj.weight", "*.layers.[!0].mlp.*"):
        for words in (("diff", model, fp8, "--tensors"), ("verify", fp8, "--against", model, "--tensors")):
            code, _, err = run(*words, glob, "--json", result, "--quiet")
            found = {tensor["name"] for tensor in json.loads(result.read_text())["tensors"]}
            assert found == {one["name"] for one in names if fnmatch.fnmatchcase(one["name"], glob)} and len(found) > 1 and code in (0, 1), (glob, err)
        code, _, err = run("quantize", model, "--dry-run", "--exclude", glob, "--json", result)
        kept = {step["name"] for step in json.loads(result.read_text())["plan"] if "exclude" in (step["reason"] or "")}
        assert code == 0 and kept == found, err


def test_help_fits_a_line(run):
    """The help has 80 columns if stdout is not a terminal, no escaped line feed, and all words."""
    for words in [()] + [(c,) for c in COMMANDS] + [("verify", c) for c in CHECKS]:
        code, out, _ = run("help", *words)
        lines = out.splitlines()
        assert code == 0 and max(map(len, lines)) <= 80 and "\\n" not in out and all(line == line.rstrip() for line in lines), words
    for command in json.loads(run("help", "--json")[1])["commands"]:
        shown = run("help", *command["name"].split())[1].split()
        said = command["text"].split()
        for option in command["options"]:
            said += f"{option['topic']}:".split() if option["topic"] else []
            said += [option["name"], *(option["argument"] or "").split(), *option["help"].split()]
        assert "".join(shown) == "".join(said), command["name"]


def test_a_configuration_may_be_laid_out_anew(run, checkpoint, quantize):
    """Space between tokens is no difference. Space inside strings is."""
    src = checkpoint("llama")
    dst = quantize(src)
    config = json.loads((dst / "config.json").read_text())
    for indent in (None, 7):
        (dst / "config.json").write_text(json.dumps(config, indent=indent))
        assert run("verify", dst, "--against", src, "--quiet")[0] == 0
    (dst / "config.json").write_text(json.dumps(config | {"architectures": ["Llama ForCausalLM"]}))
    assert run("verify", dst, "--against", src, "--quiet")[0] == 1


def test_junit_escapes_what_xml_reserves(run, checkpoint, quantize, tmp_path):
    """Names with < > & and quotes, and an option with these characters, are read back unchanged."""
    name = "model.layers.0.mlp.<a & \"b\"> 'c'.weight"
    for folder, value in (("a", b"\x80\x3f"), ("b", b"\x00\x41")):
        (tmp_path / folder).mkdir()
        harness.write_safetensors(tmp_path / folder / "model.safetensors", {name: ("BF16", (8, 8), value * 64)})
        (tmp_path / folder / "config.json").write_text('{"model_type": "llama"}')
    code, _, err = run("verify", tmp_path / "b", "--against", tmp_path / "a", "--junit", tmp_path / "x.xml")
    failures = [f.text for f in ElementTree.parse(tmp_path / "x.xml").iter("failure")]
    assert code == 1 and any(name in text for text in failures), (failures, err)
