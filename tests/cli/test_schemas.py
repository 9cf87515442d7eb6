"""Tests that every JSON that Tessera writes matches its schema in docs/schemas, without other members."""

import copy
import json
import pathlib
import re

import harness
import jsonschema
import pytest
from mla_oracle import Model
import referencing
import results

pytestmark = pytest.mark.in_turn(together=True)

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMAS = {path.name: json.loads(path.read_text()) for path in sorted((ROOT / "docs/schemas").glob("*.schema.json"))}
# Schemas that others are composed of: alone they would refuse the members of the whole.
PARTS = {"quant_stats", "kind", "metrics", "pair", "evidence", "place", "cost", "update_figures", "forward_figures"}
# Rules files are written by hand, too, manifests belong to outputs, and the tool speaks of itself: none is a result.
FILES = {"rules": "plan-schemes SRC --bits 9 -o JSON", "families": "quantize --list-families --json JSON",
         "loader-rules": "inspect --loaders qwen3_next --json JSON",
         "inspect-tensors": "inspect SRC --tensors * --json JSON", "help": "help --json JSON", "version": "--version --json JSON"}
MANIFESTS = {"tp": "convert SRC -o OUT --to tp --tp 2", "deepseek-mp": "convert SRC -o OUT --to deepseek-mp --mp 2",
             "layout": "convert INT8 -o OUT --to fastertransformer --arch sm80"}


def strict(schema, part=False):
    """Returns the schema without additional members, which users' tools accept and this test does not."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: {name: strict(value, key == "$defs" and name in PARTS) for name, value in inner.items()} if key in ("properties", "$defs")
            else inner if key == "if" else strict(inner) for key, inner in schema.items()}
    return made | ({"unevaluatedProperties": False} if "properties" in schema and not part else {})


@pytest.fixture(scope="session")
def validator():
    """Returns validator(name) -> a strict validator of docs/schemas/NAME.schema.json."""
    registry = referencing.Registry().with_resources(
        (name, referencing.Resource.from_contents(strict(schema))) for name, schema in SCHEMAS.items())
    return lambda name: jsonschema.Draft202012Validator(strict(SCHEMAS[f"{name}.schema.json"]), registry=registry)


def check(validator, path):
    """Checks a file against the schema that it names. Returns the document."""
    document = json.loads(path.read_text())
    name, version = re.fullmatch(r"tessera-([a-z-]+)/(\d+)", document["schema"]).groups()
    errors = [f"{error.json_path}: {error.message[:300]}" for error in validator(name).iter_errors(document)]
    assert not errors, errors[:5]
    return document


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_a_schema_is_one(name):
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
    assert SCHEMAS[name]["$id"] == name and SCHEMAS[name]["title"]


def test_every_schema_that_the_source_names_is_there():
    named = set()
    for folder in ("cli", "convert", "report"):
        for path in (ROOT / folder).rglob("*.[ch]"):
            named |= set(re.findall(r'"tessera-([a-z-]+)/(\d+)"', path.read_text()))
    named |= {("quantize", "1"), ("convert", "1")}  # of one format string
    assert len(named) >= 17
    for name, version in named:
        said = SCHEMAS[f"{name}.schema.json"]["properties"]["schema"]
        assert said == {"const": f"tessera-{name}/{version}"}
    assert set(SCHEMAS) == {f"{name}.schema.json" for name, _ in named} | {"common.schema.json"}


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.json")), ids=lambda path: path.stem)
def test_recipes(path, validator):
    check(validator, path)


@pytest.mark.parametrize("name", ["report", *results.COMMANDS])
def test_results(name, made, validator):
    check(validator, made[name][0])


@pytest.mark.parametrize("name", ["report", *results.COMMANDS])
def test_reports_of_results(name, made, validator, tessera, tmp_path):
    out = tmp_path / "out.json"
    code, _, err = harness.run(tessera, ["report", made[name][0], "--json", out, "--quiet"])
    assert code in (0, 1), err
    assert check(validator, out)["results"][0]["of"] == json.loads(made[name][0].read_text())["schema"]


def test_all_kinds_of_verify(made, validator, tessera, checkpoint, tmp_path):
    """The result contains those of the kinds, each valid by its own schema. Its report names kinds that do not apply."""
    dst, paths = made["gemm"][0].parent / "int8", (tmp_path / "all.json", tmp_path / "report.json")
    code, _, err = harness.run(tessera, ["verify", "all", dst, "--against", checkpoint("deepseek-v3"), "--device", "cpu", "--sample", "1",
                                         "--count", "4", "--exact", "--layer", "99", "--json", paths[0], "--quiet"])
    assert code == 3, err
    statuses = {part["status"] for part in check(validator, paths[0])["kinds"].values()}
    assert statuses == {"passed", "error", "not applicable"}
    assert harness.run(tessera, ["report", paths[0], "--json", paths[1], "--quiet"])[0] == 1
    assert {result["verdict"] for result in check(validator, paths[1])["results"]} == {"passed", "failed", "skipped"}
    document = json.loads(paths[0].read_text())
    for change in (lambda d: d["kinds"]["gemm"].pop("reason"), lambda d: d["kinds"]["weights"].pop("seconds"), lambda d: d["kinds"].pop("mla"),
                   lambda d: d["kinds"]["mla"]["result"].pop("error"), lambda d: d["kinds"]["epilogue"].update(result=d["kinds"]["weights"]["result"])):
        broken = copy.deepcopy(document)
        change(broken)
        assert not validator("verify-all").is_valid(broken)


@pytest.mark.parametrize("options", [[], ["--top-k", "8"]])
def test_sparse_attention(validator, tessera, tmp_path, options):
    dst = Model(q_rank=48, nope=32, rope=16, v=32, rank=128, hidden=64, indexer={"heads": 4, "kept": 12}).write(tmp_path / "m")
    path, report = tmp_path / "sparse.json", tmp_path / "report.json"
    harness.succeed(tessera, ["verify", "mla", dst, "--sparse", "--context", "30", "--device", "cpu", "--json", path, "--quiet", *options])
    judged = check(validator, path)["judgements"]
    assert any(j.get("token_agreement", 0) > 0.5 for j in judged)
    assert harness.run(tessera, ["report", path, "--json", report, "--quiet"])[0] == 0
    assert check(validator, report)["results"][0]["verdict"] == "passed"


def test_a_report_against_another(made, validator, tessera, tmp_path):
    document = json.loads(made["report"][0].read_text())
    old, out = copy.deepcopy(document), tmp_path / "out.json"
    old["version"] = "0.0.1"
    old["tensors"][0]["sqnr_db"] += 1
    old["tensors"][1]["sqnr_db"] = None
    old["tensors"][1]["relative_error"] = 0
    old["tensors"][2]["name"] = "gone"
    harness.expect(tessera, ["report", made["report"][0], "--baseline", results.write(tmp_path / "old.json", old), "--json", out], 1)
    told = check(validator, out)["baseline"]
    assert told["worse"] == 2 and told["regressions"][0]["loss_db"] is None and told["disappeared"][0]["name"] == "gone"


@pytest.mark.parametrize("name", FILES)
def test_other_files(name, validator, checkpoint, tessera, tmp_path):
    path = tmp_path / f"{name}.json"
    words = {"SRC": checkpoint("deepseek-v3"), "JSON": path}
    harness.succeed(tessera, [words.get(word, word) for word in FILES[name].split()])
    check(validator, path)


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests(name, validator, checkpoint, quantize, tessera, tmp_path):
    source = checkpoint("deepseek-v3" if name == "deepseek-mp" else "llama")
    words = {"SRC": source, "OUT": tmp_path / "out", "INT8": source}
    if name == "layout":
        words["INT8"] = quantize(source, "--scheme", "int8-weight-only")
    harness.succeed(tessera, [words.get(word, word) for word in MANIFESTS[name].split()] + ["--quiet"])
    paths = [path for path in (tmp_path / "out").rglob("tessera-*.json")]
    assert paths and check(validator, tmp_path / "out" / harness.MANIFEST)["schema"] == "tessera-manifest/1"
    for path in paths:
        assert check(validator, path)["schema"] == f"tessera-{name}/1"


@pytest.mark.parametrize("name", ["report", "verify", "gemm", "inspect", "quantize"])
def test_the_schemas_refuse(name, made, validator):
    """A document with a missing, additional or wrong member is rejected, at the top and in the last list."""
    document = json.loads(made[name][0].read_text())
    of = document["schema"].split("-", 1)[1].split("/")[0]
    inner = next((key for key, value in document.items() if isinstance(value, list) and value and isinstance(value[0], dict)), None)
    places = [lambda d: d] + ([lambda d: d[inner][0]] if inner else [])
    for place in places:
        keys = list(place(document))
        changes = [lambda d: d.update(unheard_of=1), lambda d: d.pop(keys[0]), lambda d: d.update({keys[0]: [[]]})]
        for change in changes:
            broken = copy.deepcopy(document)
            change(place(broken))
            assert not validator(of).is_valid(broken)
    assert validator(of).is_valid(document)
