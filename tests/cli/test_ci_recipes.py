"""Tests the recipes of docs/ci.md: runs their scripts as CI does, with a correct model and with planted faults.

The step that finds a fault fails. JUnit, page and comment are written in any case."""

import json
import pathlib
import re
import shutil
import subprocess
import xml.etree.ElementTree

import checkpoints
import harness
import numpy as np
import pages
import pytest
import recipes

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/ci.md").read_text()
BAD = "model.layers.1.self_attn.q_proj.weight"
# Variables that the products define. Their values replace those that a recipe asks for.
PRODUCT = {"github.run_id": "41", "github.token": "secret", "github.event.number": "7", "env.BUILD_NUMBER": "41", "CI_PIPELINE_ID": "41",
           "CI_PROJECT_ID": "3", "CI_MERGE_REQUEST_IID": "7", "CI_API_V4_URL": "https://gitlab.example.com/api/v4", "REPORT_TOKEN": "secret"}
# Replaces the programs that post a comment: keeps the file that it is given.
POST = """#!/bin/sh
for word; do
    case $word in body@*) cp "${word#body@}" posted.md ;; esac
    [ "$last" != --body-file ] || cp "$word" posted.md
    last=$word
done
"""
# The tool; what has been quantized is damaged where PLANT names a file and the place of a byte in it.
TOOL = """#!/bin/sh
"%s" "$@" || exit
[ "$1" != quantize ] || [ -z "$PLANT" ] || printf '\\376' | dd of="$OUT/${PLANT%%:*}" bs=1 seek="${PLANT#*:}" conv=notrunc 2>/dev/null
"""


@pytest.fixture(scope="session")
def sound(tessera, checkpoint, tmp_path_factory):
    """Makes the source and the accepted baseline."""
    accepted = tmp_path_factory.mktemp("accepted") / "out"
    harness.succeed(tessera, ["quantize", checkpoint("llama"), "-o", accepted, "--quiet"])
    code, _, err = harness.run(tessera, ["report", accepted, "--html", "-", "--quiet"])
    if code == 2 and "libjs-chart.js" in err:
        pytest.skip("this tessera was built without libjs-chart.js, and so without the page that the recipes make")
    return checkpoint("llama"), accepted


@pytest.fixture
def workspace(sound, tessera, tmp_path, monkeypatch):
    """Returns workspace(product) -> (recipe, folder, environment): a clean checkout, and storage with the recipe's model."""
    source, accepted = sound

    def make(product):
        recipe = recipes.read(PAGE, product)
        folder, programs = tmp_path / "checkout", tmp_path / "bin"
        folder.mkdir()
        programs.mkdir()
        for name, text in (("tessera", TOOL % tessera), ("gh", POST), ("curl", POST)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)

        def fill(value):
            value = re.sub(r"\$\{\{ *([\w.]+) *\}\}|\$\{([\w.]+)\}|\$(\w+)", lambda found: PRODUCT[found.group(1) or found.group(2) or found.group(3)], value)
            return re.sub("^/srv/", f"{tmp_path}/srv/", value)

        assert all(value.startswith("/srv/") for name, value in recipe["env"].items() if name in ("MODEL", "OUT"))
        env = {name: fill(value) for name, value in recipe["env"].items()}
        for job in recipe["jobs"].values():
            for step in job:
                step.env = {name: fill(value) for name, value in step.env.items()}
        shutil.copytree(source, env["MODEL"])
        pathlib.Path(env["OUT"]).parent.mkdir()
        (folder / env["BASELINE"]).parent.mkdir()
        shutil.copy(accepted / checkpoints.REPORT, folder / env["BASELINE"])
        system = {"PATH": f"{programs}:/usr/bin:/bin", "TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "",
                  "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
        return recipe, folder, {**system, **{k: v for k, v in PRODUCT.items() if "." not in k}, **env}

    return make


def plant_halfway(env):
    """Moves a hundredth of the values of one tensor halfway between two codes: correct arithmetic with a lower accuracy than
    the baseline."""
    path = pathlib.Path(env["MODEL"]) / "model.safetensors"
    tensors = {name: np.array(array) for name, array in checkpoints.read(path).items()}
    for row in range(0, tensors[BAD].shape[0], 128):
        for column in range(0, tensors[BAD].shape[1], 128):
            block = tensors[BAD][row:row + 128, column:column + 128]
            block[::10, ::10] = 272 * np.abs(block.astype(np.float32)).max() / 448
    path.unlink()
    checkpoints.save_file(tensors, path, {"format": "pt"})


def plant_damage(env, accepted):
    """Changes a code of one tensor after it was written."""
    start, entries, _ = harness.read_header(accepted / "model.safetensors")
    env["PLANT"] = f"model.safetensors:{start + entries[BAD]['data_offsets'][0] + 11}"


def plant_cut(env):
    """Truncates a source."""
    path = pathlib.Path(env["MODEL"]) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:2000])


def judge(folder, verdict, names, posts):
    """Checks all files that CI shows: valid JUnit, the page, a comment below the size limit. Each has the verdict, and one
    of them the tensor."""
    told = ""
    for path in sorted((folder / "results").glob("*.xml")):
        if shutil.which("xmllint"):
            done = subprocess.run(["xmllint", "--noout", "--nonet", "--schema", ROOT / "tests/common/junit.xsd", path], capture_output=True)
            assert done.returncode == 0, done.stderr.decode()
        told += path.read_text()
    root = xml.etree.ElementTree.parse(folder / "results/report.xml").getroot()
    assert int(root.get("tests")) > 0
    assert ("<failure" in told or "<error" in told) == (verdict == "FAIL")
    page = folder / ("results/gate.html" if (folder / "results/gate.html").exists() else "results/report.html")
    assert pages.Page(page.read_text()).verdict == verdict and (folder / "results/report.html").stat().st_size > 10000
    comment = (folder / "results/comment.md").read_text()
    assert 0 < len(comment) < 65536 and f"{verdict}: " in comment.splitlines()[0]
    assert names in told and names in comment.replace("\\_", "_")
    if posts:
        assert (folder / "posted.md").read_text() == comment


@pytest.mark.parametrize("product", recipes.READERS)
def test_a_recipe(product, workspace, sound, tmp_path):
    """Runs the pipeline four times. The failing step has the expected exit code, and CI's files show the failure."""
    plants = {"sound": (None, None, "PASS", ""), "worse": (plant_halfway, "gate", "FAIL", BAD),
              "damage": (lambda env: plant_damage(env, sound[1]), "verify", "FAIL", BAD),
              "cut": (plant_cut, "quantize", "FAIL", "model.safetensors")}
    recipe, folder, env = workspace(product)
    for name, (plant, fails, verdict, names) in plants.items():
        here, own = tmp_path / name, dict(env)
        shutil.copytree(folder, here)
        for key in ("MODEL", "OUT"):
            own[key] = env[key].replace("/srv/", f"/srv-{name}/")
        own["GITHUB_STEP_SUMMARY"] = str(here / "summary.md")
        shutil.copytree(tmp_path / "srv", tmp_path / f"srv-{name}")
        if plant:
            plant(own)
        ran, told = recipes.run(recipe["jobs"]["quantize"], here, own)
        failed = [(step, code) for step, code, always in ran if code != 0 and not always]
        assert failed == ([(fails, 3 if name == "cut" else 1)] if fails else []), (name, ran, told)
        judge(here, verdict, names, posts=product != "jenkins")
        if product == "github":
            assert (here / "summary.md").read_text() == (here / "results/comment.md").read_text()


@pytest.mark.parametrize("product", recipes.READERS)
def test_the_job_of_a_gpu_fails_without_one(product, workspace, sound):
    """The job exits with 5, and its files have the reason."""
    recipe, folder, env = workspace(product)
    shutil.copytree(sound[1], env["OUT"])
    ran, told = recipes.run(recipe["jobs"]["kernels"], folder, env)
    assert [code for _, code, _ in ran if code != 0] == [5], (ran, told)
    root = xml.etree.ElementTree.parse(folder / "results/gemm.xml").getroot()
    error = json.loads((folder / "results/gemm.json").read_text())["error"]
    assert root.get("errors") == "1" and error["code"] == 5 and error["message"] in told and "GPU" in error["message"]


@pytest.mark.parametrize("product", recipes.READERS)
def test_results_are_kept_whatever_failed(product):
    """Each job stores its results after a failure, and the last one reports all of them."""
    recipe = recipes.read(PAGE, product)
    assert set(recipe["kept"]) == set(recipe["jobs"]) == {"quantize", "kernels"}
    for job, kept in recipe["kept"].items():
        assert kept and all(path.startswith("results/") for path in kept), (job, kept)
    always = [step for step in recipe["jobs"]["quantize"] if step.always]
    assert any("tessera report results/*.json" in step.lines for step in always)
    assert "--max-regression 0.1dB" in "".join(step.lines for step in recipe["jobs"]["quantize"] if not step.always)
    assert all("--device cuda" in "".join(step.lines for step in recipe["jobs"]["kernels"]) for _ in always)


def test_every_exit_code_has_its_answer():
    """The page has all codes of docs/exit-codes.md except that of a closed stdout, which its text describes."""
    codes = [set(re.findall(r"^\| (\d+) \|", text, re.M)) for text in (PAGE, (ROOT / "docs/exit-codes.md").read_text())]
    assert codes[0] == codes[1] - {"141"} and "141" in PAGE
