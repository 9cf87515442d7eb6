"""Tests `tessera merge` with bases in floating point: values, what is copied, the report, options and manifest."""

import json
import shutil

from checkpoints import BF16, make, random_weight, read, same_bits, shards
import harness
import merge_oracle as oracle
import numpy as np
import pytest

Q, UP, NORM = ("model.layers.0." + name for name in ("self_attn.q_proj", "mlp.up_proj", "input_layernorm.weight"))


def base(path, dtype=BF16, shapes=((48, 70), (130, 70)), **more):
    tensors = {f"{module}.weight": random_weight(shape, seed).astype(dtype) for seed, (module, shape) in enumerate(zip((Q, UP), shapes))}
    return make(path, {"model.safetensors": {**tensors, NORM: np.ones(70, dtype), **more}}, quantization=None), tensors


@pytest.fixture
def merge(tessera, tmp_path):
    """Returns merge(base, adapter, *options) -> DST and the JSON of a successful run."""
    runs = []

    def run(src, adapter, *options):
        dst = tmp_path / f"merged-{len(runs)}"
        runs.append(dst)
        harness.succeed(tessera, ["merge", src, adapter, "-o", dst, "--json", tmp_path / "result.json", *options])
        return dst, json.loads((tmp_path / "result.json").read_text())

    return run


def check_figures(row, before, x, after):
    for key, value in oracle.figures(before, x, after).items():
        assert row[key] == pytest.approx(value, rel=1e-5), key


@pytest.mark.parametrize("adapter_dtype", [np.float32, BF16, np.float16])
@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
def test_values_and_report(tmp_path, merge, dtype, adapter_dtype):
    src, weights = base(tmp_path / "src", dtype)
    pairs = {Q: oracle.factors(48, 70, dtype=adapter_dtype), UP: oracle.factors(130, 70, seed=2, dtype=adapter_dtype)}
    dst, result = merge(src, oracle.write(tmp_path / "lora", pairs))
    got = read(dst / "model.safetensors")
    assert got.keys() == {f"{Q}.weight", f"{UP}.weight", NORM}
    assert same_bits(got[NORM], np.ones(70, dtype))
    report = json.loads((dst / "quantization_report.json").read_text())
    assert report["schema"] == "tessera-merge-report/1" and report["updates"] == result["updates"]
    assert sorted(row["name"] for row in result["updates"]) == sorted(f"{module}.weight" for module in pairs)
    rows = {row["name"]: row for row in result["updates"]}
    for module, (a, b) in pairs.items():
        name, x = f"{module}.weight", oracle.update(a, b, oracle.scale())
        expected = oracle.merged(weights[name], x).astype(dtype)
        assert same_bits(got[name], expected)
        check_figures(rows[name], weights[name], x, expected)
        assert rows[name]["rank"] == 4 and rows[name]["scale"] == 2
    assert result["whole"]["tensors_merged"] == 2 and result["actions"] == {"copy": 1, "merge": 2, "consume": 4}
    assert (dst / "config.json").read_bytes() == (src / "config.json").read_bytes()


@pytest.mark.parametrize("config, names", [
    ({"target_modules": ["q_proj", "self_attn.q_proj", "proj", "up"]}, ["target_modules 'proj'", "target_modules 'up'"]),
    ({"target_parameters": ["up_proj.weight", "up_proj", "experts.down_proj"]}, ["target_parameters 'up_proj'", "target_parameters 'experts.down_proj'"]),
    ({"rank_pattern": {"q_proj": 4, "up_proj": 8}, "alpha_pattern": {"self_attn.*": 8, "v_proj": 16}}, ["rank_pattern 'up_proj'", "alpha_pattern 'v_proj'"]),
    ({"target_modules": ".*q_proj"}, []), ({"target_modules": "all-linear"}, [])])
def test_names_that_match_nothing_are_named(tmp_path, tessera, config, names):
    src, _ = base(tmp_path / "src")
    lora = oracle.write(tmp_path / "lora", {Q: oracle.factors(48, 70)}, **{"target_modules": ["q_proj"], **config})
    err = harness.expect(tessera, ["merge", src, lora, "-o", tmp_path / "dst", "--quiet"], 0)
    assert ("adapter_config.json: names that match nothing: " + ", ".join(names) + "\n" in err) if names else err == ""


@pytest.mark.parametrize("rank", [1, 3, 16, 33])
@pytest.mark.parametrize("shape", [(1, 1), (7, 31), (33, 64), (300, 5000)])
def test_shapes_and_ranks(tmp_path, merge, shape, rank):
    src, weights = base(tmp_path / "src", shapes=(shape, (2, 2)))
    a, b = oracle.factors(*shape, rank=rank)
    dst, _ = merge(src, oracle.write(tmp_path / "lora", {Q: (a, b)}, r=rank))
    name = f"{Q}.weight"
    expected = oracle.merged(weights[name], oracle.update(a, b, oracle.scale(rank=rank))).astype(BF16)
    got = read(dst / "model.safetensors")
    assert same_bits(got[name], expected) and same_bits(got[f"{UP}.weight"], weights[f"{UP}.weight"])


@pytest.mark.parametrize("config,by,rank", [
    ({"use_rslora": True}, oracle.scale(8, 4, True), 4),
    ({"lora_alpha": 3.5}, oracle.scale(3.5), 4),
    ({"lora_alpha": -1e-3}, oracle.scale(-1e-3), 4),
    ({"alpha_pattern": {"q_proj": 5}}, oracle.scale(5), 4),
    ({"alpha_pattern": {"k_proj": 7, "layers.[0-9].self_attn.q_proj": 5, "q_proj": 6}}, oracle.scale(5), 4),
    ({"alpha_pattern": {"q_pro": 5, "proj": 6, "0.q_proj": 7}}, oracle.scale(), 4),
    ({"rank_pattern": {"self_attn.q_proj": 2}}, oracle.scale(8, 2), 2),
    ({"rank_pattern": {".*q_proj": 2}, "alpha_pattern": {"^model.layers.0.self_attn.q_proj": 3}, "use_rslora": True}, oracle.scale(3, 2, True), 2),
    ({"target_modules": r".*\.q_(proj|x)"}, oracle.scale(), 4),
    ({"target_modules": "all-linear"}, oracle.scale(), 4),
    ({"target_modules": [Q]}, oracle.scale(), 4),
    ({"target_modules": None, "target_parameters": ["q_proj.weight"]}, oracle.scale(), 4),
    ({"target_modules": None, "target_parameters": ["q_proj.weight"], "alpha_pattern": {"q_proj.weight": 5}}, oracle.scale(5), 4),
    ({"layers_to_transform": [1, 0]}, oracle.scale(), 4),
    ({"layers_to_transform": 0, "layers_pattern": "layers"}, oracle.scale(), 4),
    ({"layers_to_transform": [], "init_lora_weights": "gaussian"}, oracle.scale(), 4),
    ({"some_future_option": None, "another": False, "a_third": []}, oracle.scale(), 4),
])
def test_configuration(tmp_path, merge, config, by, rank):
    src, weights = base(tmp_path / "src")
    a, b = oracle.factors(48, 70, rank=rank)
    dst, result = merge(src, oracle.write(tmp_path / "lora", {Q: (a, b)}, **config))
    expected = oracle.merged(weights[f"{Q}.weight"], oracle.update(a, b, by)).astype(BF16)
    assert same_bits(read(dst / "model.safetensors")[f"{Q}.weight"], expected)
    assert result["updates"][0]["scale"] == pytest.approx(float(by))


def test_fan_in_fan_out(tmp_path, merge):
    src, weights = base(tmp_path / "src")
    a, b = oracle.factors(70, 48)  # the weight is stored as [in, out]
    dst, _ = merge(src, oracle.write(tmp_path / "lora", {Q: (a, b)}, fan_in_fan_out=True))
    expected = oracle.merged(weights[f"{Q}.weight"], oracle.update(a, b, oracle.scale()).T).astype(BF16)
    assert same_bits(read(dst / "model.safetensors")[f"{Q}.weight"], expected)


def test_an_update_that_bf16_cannot_hold_is_drowned(tmp_path, merge, tessera):
    src, _ = base(tmp_path / "src")
    adapter = oracle.write(tmp_path / "lora", {Q: oracle.factors(48, 70, size=1e-6), UP: oracle.factors(130, 70, size=1)})
    _, result = merge(src, adapter)
    rows = {row["name"]: row for row in result["updates"]}
    assert rows[f"{Q}.weight"]["relative_error"] > 0.9 and rows[f"{Q}.weight"]["lost"] > 0.9 * 48 * 70
    assert rows[f"{UP}.weight"]["survived"] == pytest.approx(1, abs=0.01)
    harness.shows(tessera, ["merge", src, adapter, "-o", tmp_path / "again"], 0, "updates: ", "largest errors of updates:")


def test_an_update_of_zeros_is_none(tmp_path, merge, tessera):
    src, weights = base(tmp_path / "src")
    a, b = oracle.factors(48, 70)
    adapter = oracle.write(tmp_path / "lora", {Q: (a, np.zeros_like(b))})  # as before training
    dst, result = merge(src, adapter)
    assert same_bits(read(dst / "model.safetensors")[f"{Q}.weight"], weights[f"{Q}.weight"])
    for row in (*result["updates"], result["whole"]):
        assert row["survived"] is None and row["relative_error"] is None and row["update_norm"] == 0
    harness.shows(tessera, ["merge", src, adapter, "-o", tmp_path / "again"], 0, "no update: all updates are zero")
    harness.shows(tessera, ["report", tmp_path / "result.json"], 0, "tensors_merged 1")


def test_threads_sets_and_a_second_run(tmp_path, tessera, merge):
    src, _ = base(tmp_path / "src", shapes=((3000, 1100), (520, 1030)), **{"lm_head.weight": random_weight((8, 70), 9).astype(BF16)})
    adapter = oracle.write(tmp_path / "lora", {Q: oracle.factors(3000, 1100, 16), UP: oracle.factors(520, 1030, 16)}, r=16)
    first, result = merge(src, adapter, "--threads", "1", "--max-shard-size", "1MB")
    for options in (("--threads", "3"), ("--cpumask", "0"), ("--cpumask", "1"), ("--memory", "64MB")):
        dst, again = merge(src, adapter, "--max-shard-size", "1MB", *options)
        assert [path.name for path in shards(dst)] == [path.name for path in shards(first)]
        for path in (*shards(first), first / "quantization_report.json"):
            assert path.read_bytes() == (dst / path.name).read_bytes(), (options, path.name)
        assert again["updates"] == result["updates"]
    assert "was already complete" in harness.succeed(tessera, ["merge", src, adapter, "-o", first, "--max-shard-size", "1MB"])
    harness.succeed(tessera, ["verify", "manifest", first])


def test_dry_run_names_each_update(tmp_path, tessera):
    src, _ = base(tmp_path / "src")
    adapter = oracle.write(tmp_path / "lora", {Q: oracle.factors(48, 70)})
    out = harness.succeed(tessera, ["merge", src, adapter, "-o", tmp_path / "dst", "--dry-run"])
    assert "an update of rank 4, times 2" in out and "lora_A" in out and not (tmp_path / "dst").exists()


def test_manifest_has_the_adapter(tmp_path, merge, tessera):
    src, _ = base(tmp_path / "src")
    adapter = oracle.write(tmp_path / "lora", {Q: oracle.factors(48, 70)})
    dst, _ = merge(src, adapter, "--max-shard-size", "1GB")
    manifest = json.loads((dst / "tessera.manifest.json").read_text())
    how = manifest["reproduce"]
    assert how["command"] == "merge" and how["options"] == ["lora", "--max-shard-size=1000000000"]
    assert how["inputs"][0]["option"] == "LORA" and json.loads(how["inputs"][0]["text"])["r"] == 4
    assert [[file["name"] for file in source["files"]] for source in manifest["sources"]][1] == [
        "adapter_model.safetensors", "adapter_config.json"]


def test_another_adapter_is_another_run(tmp_path, merge, tessera):
    src, _ = base(tmp_path / "src")
    dst, _ = merge(src, oracle.write(tmp_path / "lora", {Q: oracle.factors(48, 70)}))
    other = oracle.write(tmp_path / "other", {Q: oracle.factors(48, 70, seed=5)})
    code, _, err = harness.run(tessera, ["merge", src, other, "-o", dst])
    assert code != 0 and "--force" in err, err


def test_shards_and_a_tokenizer(tmp_path, merge, tessera):
    src, _ = base(tmp_path / "src")
    (src / "tokenizer.json").write_text("{}")
    adapter = oracle.write(tmp_path / "lora", {Q: oracle.factors(48, 70), UP: oracle.factors(130, 70)})
    shutil.copy(src / "config.json", adapter / "tokenizer.json")
    whole, _ = merge(src, adapter, "--max-shard-size", "8kB")
    for shard in ("0/2", "1/2"):
        code, _, err = harness.run(tessera, ["merge", src, adapter, "-o", tmp_path / "shards", "--shard", shard, "--max-shard-size", "8kB"])
        assert code == 0 and "tokenizer.json of the adapter differs" in err, err
    harness.succeed(tessera, ["finish", tmp_path / "shards", "--quiet"])
    for path in whole.glob("*.safetensors"):
        assert path.read_bytes() == (tmp_path / "shards" / path.name).read_bytes()
