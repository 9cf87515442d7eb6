"""Tests checkpoints cut for tensor parallelism: `--to tp`, `--merge`, and `--to deepseek-mp` against the rules of DeepSeek's convert.py."""

import functools
import json
import shutil

from checkpoints import BLOCKS, DEEPSEEK, DTYPES, NAMES, REPORT, load, make, random_weight, same_bits
import fp8_oracle
import harness
import numpy as np
import pytest
import safetensors

BF16 = DTYPES["BF16"]
source_tensors = functools.cache(load)  # of the session's sources, which no test changes


@pytest.fixture(scope="session")
def sources(tessera, maker, tmp_path_factory):
    """Returns sources(kind, fp8) -> a checkpoint in BF16 or block FP8 for four ranks, or for eight with scale="small"."""
    made = {}

    def get(kind, fp8, scale="half"):
        if (kind, fp8, scale) not in made:
            place = tmp_path_factory.mktemp("shard")
            src = harness.make_checkpoint(maker, kind, place / "src", **({"scale": scale} if kind == "deepseek-v3" else {}))
            if fp8:
                harness.succeed(tessera, ["quantize", src, "-o", place / "fp8", "--quiet",
                                          "--max-shard-size", "20MB"])
                src = place / "fp8"
                harness.without_records(src)
                (src / REPORT).unlink()
                (src / BLOCKS).unlink()
            made[kind, fp8, scale] = src
        return made[kind, fp8, scale]

    return get


# ---- DeepSeek's names ----

MAPPING = {"embed_tokens": ("embed", 0), "input_layernorm": ("attn_norm", None), "post_attention_layernorm": ("ffn_norm", None),
           "q_proj": ("wq", 0), "q_a_proj": ("wq_a", None), "q_a_layernorm": ("q_norm", None), "q_b_proj": ("wq_b", 0),
           "kv_a_proj_with_mqa": ("wkv_a", None), "kv_a_layernorm": ("kv_norm", None), "kv_b_proj": ("wkv_b", 0),
           "o_proj": ("wo", 1), "gate": ("gate", None), "gate_proj": ("w1", 0), "down_proj": ("w2", 1), "up_proj": ("w3", 0),
           "norm": ("norm", None), "lm_head": ("head", 0),
           # V3.2's indexer
           "wq_b": ("wq_b", None), "wk": ("wk", None), "k_norm": ("k_norm", None), "weights_proj": ("weights_proj", None)}


MANIFEST = "tessera-deepseek-mp.json"


def deepseek_rank(tensors, config, n, rank):
    """Returns the tensors that convert.py writes for one rank, by its published rules."""
    result = {}
    for name, value in tensors.items():
        if name.startswith(f"model.layers.{config['num_hidden_layers']}."):
            continue
        name = name.removeprefix("model.").replace("self_attn", "attn").replace("mlp", "ffn")
        name = name.replace("weight_scale_inv", "scale").replace("e_score_correction_bias", "bias")
        key = name.split(".")[-2]
        new, dim = MAPPING[key]
        name = name.replace(key, new)
        if "experts" in name and "shared_experts" not in name:
            index, each = int(name.split(".")[-3]), config["n_routed_experts"] // n
            if not rank * each <= index < (rank + 1) * each:
                continue
        elif dim is not None:
            assert value.shape[dim] % n == 0
            size = value.shape[dim] // n
            value = value[rank * size : (rank + 1) * size] if dim == 0 else value[:, rank * size : (rank + 1) * size]
        result[name] = value
    return result


def one_file(path):
    return {n: np.frombuffer(e["data"], DTYPES[e["dtype"]]).reshape(e["shape"])
            for n, e in safetensors.deserialize(path.read_bytes())}


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_deepseek_names_and_cuts(sources, convert, n, fp8):
    src = sources("deepseek-v3", fp8)
    config, tensors = json.loads((src / "config.json").read_text()), source_tensors(src)
    dst = convert(src, "--to", "deepseek-mp", "--mp", str(n))
    names = {f"model{i}-mp{n}.safetensors" for i in range(n)}
    assert {p.name for p in dst.iterdir()} == names | {harness.KEPT, harness.MANIFEST, "tokenizer.json", "tokenizer_config.json", MANIFEST}
    for rank in range(n):
        got, want = one_file(dst / f"model{rank}-mp{n}.safetensors"), deepseek_rank(tensors, config, n, rank)
        assert got.keys() == want.keys()
        for name in want:
            assert same_bits(got[name], np.ascontiguousarray(want[name])), name


@pytest.mark.parametrize("n", [1, 2])
def test_the_indexer_of_v32(tmp_path, tessera, sources, convert, n):
    """FP8 wq_b and wk, BF16 weights_proj, and k_norm with weight and bias are complete on every rank, with their own names."""
    src = tmp_path / "v32"
    shutil.copytree(sources("deepseek-v3", True), src)
    indexer = "model.layers.0.self_attn.indexer."
    extra = {indexer + "weights_proj.weight": random_weight((8, 256)).astype(BF16),
             indexer + "k_norm.weight": np.ones(128, np.float32), indexer + "k_norm.bias": np.zeros(128, np.float32)}
    for i, name in enumerate(("wq_b", "wk")):
        codes, scales = fp8_oracle.quantize(random_weight((256, 256), i))
        extra |= {f"{indexer}{name}.weight": codes, f"{indexer}{name}.weight_scale_inv": scales}
    harness.write_safetensors(src / "model-indexer.safetensors",
                              {name: (NAMES[t.dtype], t.shape, t.tobytes()) for name, t in extra.items()}, {"format": "pt"})
    index = json.loads((src / "model.safetensors.index.json").read_text())
    index["weight_map"] |= {name: "model-indexer.safetensors" for name in extra}
    (src / "model.safetensors.index.json").write_text(json.dumps(index))
    config, tensors = json.loads((src / "config.json").read_text()), load(src)
    dst = convert(src, "--to", "deepseek-mp", "--mp", str(n))
    for rank in range(n):
        got, want = one_file(dst / f"model{rank}-mp{n}.safetensors"), deepseek_rank(tensors, config, n, rank)
        assert got.keys() == want.keys() and "layers.0.attn.indexer.wq_b.scale" in got
        for name in want:
            assert same_bits(got[name], np.ascontiguousarray(want[name])), name
    same_tensors(without_mtp(src)[1], load(convert(dst, "--from", "deepseek-mp")))
    code, out, err = harness.run(tessera, ["inspect", src, "--can-load", "deepseek", "--tp", "1"])
    assert ".indexer." not in out, out + err


def test_every_tensor_is_accounted_for(tessera, sources, tmp_path):
    src = sources("deepseek-v3", True)
    code, out, _ = harness.run(tessera, ["convert", src, "--to", "deepseek-mp", "--mp", "2", "--dry-run", "--json", "-"])
    plan = json.loads(out)["plan"]
    assert code == 0 and {row["name"] for row in plan} == source_tensors(src).keys() and len(plan) == len(source_tensors(src))
    dropped = {row["name"] for row in plan if row["action"] == "drop"}
    assert dropped == {n for n in source_tensors(src) if n.startswith("model.layers.2.")}


def test_mtp_is_known_by_number(sources, convert, tmp_path):
    """Layer 2 of 2 is dropped, layers 30 and 31 of 61 are not, and --keep-mtp keeps all."""
    src = sources("deepseek-v3", False)
    kept = one_file(convert(src, "--to", "deepseek-mp", "--mp", "1", "--keep-mtp") / "model0-mp1.safetensors")
    assert "layers.2.eh_proj.weight" in kept and "layers.2.attn.wq_a.weight" in kept
    tensors = {f"model.layers.{i}.input_layernorm.weight": np.ones(8, BF16) for i in (6, 60, 61, 610)}
    many = make(tmp_path / "many", {"model.safetensors": tensors}, quantization=None, num_hidden_layers=611,
                num_attention_heads=8)
    got = one_file(convert(many, "--to", "deepseek-mp", "--mp", "1") / "model0-mp1.safetensors")
    assert got.keys() == {f"layers.{i}.attn_norm.weight" for i in (6, 60, 61, 610)}


def test_deepseek_refusals(sources, refuse, tmp_path):
    fp8 = sources("deepseek-v3", True, "small")
    refuse(fp8, 3, "8 experts", "3 ranks", options=("--to", "deepseek-mp", "--mp", "3"))
    refuse(fp8, 3, "cuts through a block of 128", "1, 2, 4 would work", options=("--to", "deepseek-mp", "--mp", "8"))
    refuse(sources("llama", False), 3, "k_proj", "distilled", options=("--to", "deepseek-mp", "--mp", "1"))
    refuse(fp8, 2, "--mp N", options=("--to", "deepseek-mp"))
    for missing in (0, 2, 3):
        tensors = {f"model.layers.0.mlp.experts.{i}.up_proj.weight": np.ones((4, 4), BF16) for i in range(4) if i != missing}
        src = make(tmp_path / f"missing{missing}", {"model.safetensors": tensors}, quantization=None, num_hidden_layers=1,
                   num_attention_heads=4, n_routed_experts=4)
        refuse(src, 3, f"experts.{missing}.up_proj.weight", "n_routed_experts is 4", options=("--to", "deepseek-mp", "--mp", "2"))


# ---- and back ----


def without_mtp(src):
    config, tensors = json.loads((src / "config.json").read_text()), source_tensors(src)
    prefix = f"model.layers.{config['num_hidden_layers']}."
    return config, {n: t for n, t in tensors.items() if not n.startswith(prefix)}


def same_tensors(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert same_bits(np.ascontiguousarray(a[name]), b[name]), name


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_deepseek_ranks_become_the_checkpoint_again(sources, convert, n, fp8, keep):
    src = sources("deepseek-v3", fp8)
    ranks = convert(src, "--to", "deepseek-mp", "--mp", str(n), *(["--keep-mtp"] if keep else []))
    back = convert(ranks, "--from", "deepseek-mp", "--max-shard-size", "20MB")
    config, tensors = without_mtp(src)
    same_tensors(source_tensors(src) if keep else tensors, load(back))
    if not keep:
        config["num_nextn_predict_layers"] = 0
    assert json.loads((back / "config.json").read_text()) == config
    assert harness.same_file(src / "tokenizer.json", back / "tokenizer.json")
    assert not (back / MANIFEST).exists()


def written_by_convert_py(place, src, n):
    """Writes the ranks as convert.py does, without a manifest and metadata."""
    place.mkdir()
    config, tensors = json.loads((src / "config.json").read_text()), source_tensors(src)
    names = {v: k for k, v in DTYPES.items()}
    for rank in range(n):
        held = deepseek_rank(tensors, config, n, rank)
        harness.write_safetensors(place / f"model{rank}-mp{n}.safetensors",
                                  {k: (names[t.dtype.type], t.shape, np.ascontiguousarray(t).tobytes()) for k, t in held.items()})
    return place


@pytest.mark.parametrize("fp8", [False, True])
def test_ranks_of_convert_py_are_read(sources, convert, refuse, tmp_path, tessera, fp8):
    src = sources("deepseek-v3", fp8)
    ranks = written_by_convert_py(tmp_path / "ranks", src, 2)
    refuse(ranks, 3, "--config FILE", options=("--from", "deepseek-mp"))
    back = convert(ranks, "--from", "deepseek-mp", "--config", str(src / "config.json"))
    same_tensors(without_mtp(src)[1], load(back))
    for command in (["inspect", ranks], ["diff", src, ranks], ["verify", ranks, "--against", src]):
        harness.expect(tessera, command, 3, "--from deepseek-mp")
    other = json.loads((src / "config.json").read_text())
    for change, words in (({"num_hidden_layers": other["num_hidden_layers"] + 1}, "attn_norm.weight"),
                          ({"n_routed_experts": 16}, "n_routed_experts 16"),
                          ({"quantization_config": None if fp8 else DEEPSEEK}, "quantization_config")):
        (tmp_path / "other.json").write_text(json.dumps({**other, **change}))
        refuse(ranks, 3, words, options=("--from", "deepseek-mp", "--config", str(tmp_path / "other.json")))
    metadata, tensors = harness.read_safetensors(ranks / "model0-mp2.safetensors")
    long = next(name for name in tensors if "experts.1.w1" in name)
    tensors[long * 40] = tensors.pop(long)  # its number is that of an expert
    harness.write_safetensors(ranks / "model0-mp2.safetensors", tensors, metadata)
    refuse(ranks, 3, "is not a name of DeepSeek's inference code", options=("--from", "deepseek-mp", "--config", str(src / "config.json")))
    refuse(src, 2, "--config needs --from deepseek-mp", options=("--to", "bf16", "--config", str(src / "config.json")))
    refuse(src, 3, "model0-mp", options=("--from", "deepseek-mp"))


def test_ranks_that_do_not_belong_together(sources, convert, refuse, tmp_path):
    src = sources("deepseek-v3", False)
    ranks = convert(src, "--to", "deepseek-mp", "--mp", "2")

    def broken(name, change):
        place = tmp_path / name
        shutil.copytree(ranks, place)
        _, tensors = harness.read_safetensors(place / "model1-mp2.safetensors")
        change(tensors)
        harness.write_safetensors(place / "model1-mp2.safetensors", tensors)
        return place

    def other_norm(tensors):
        dtype, shape, data = tensors["norm.weight"]
        tensors["norm.weight"] = (dtype, shape, bytes([data[0] ^ 1]) + data[1:])

    expert = "layers.1.ffn.experts.3.w2.weight"
    for name, change, word in (("norm", other_norm, "norm.weight"), ("expert", lambda t: t.pop(expert), expert),
                               ("part", lambda t: t.pop("head.weight"), "head.weight"),
                               ("more", lambda t: t.update({"layers.0.attn.x": t["norm.weight"]}), "layers.0.attn.x")):
        refuse(broken(name, change), 3, word, options=("--from", "deepseek-mp"))
    (ranks / "model1-mp2.safetensors").unlink()
    refuse(ranks, 4, "model1-mp2.safetensors", options=("--from", "deepseek-mp"))


def test_only_deepseeks_blocks(tessera, sources, refuse, tmp_path):
    """model.py has blocks of 128x128 for any config.json."""
    harness.succeed(tessera, ["convert", sources("deepseek-v3", True), "-o", tmp_path / "b", "--to", "fp8-block",
                              "--block", "64x64", "--quiet"])
    refuse(tmp_path / "b", 3, "blocks of 128x128 only", options=("--to", "deepseek-mp", "--mp", "1"))


# ---- ranks under their own names ----


def test_a_rank_is_not_judged_as_if_it_were_to_be_cut_again(tessera, sources, convert):
    ranks = convert(sources("llama", False), "--to", "tp", "--tp", "2")
    assert "rank 1 of 2" in harness.succeed(tessera, ["inspect", ranks / "rank-1"])
    code, out, _ = harness.run(tessera, ["inspect", ranks / "rank-1", "--json", "-", "--quiet"])
    assert json.loads(out)["rank"] == {"rank": 1, "ranks": 2}
    harness.expect(tessera, ["inspect", ranks / "rank-1", "--can-load", "vllm", "--tp", "2"], 3, "rank 1 of 2", "--merge")


def test_diff_names_the_ranks_that_it_compares(tessera, sources, convert):
    src = sources("qwen3-moe", False)
    ranks = convert(src, "--to", "tp", "--tp", "2")
    for a, b, said in ((ranks / "rank-0", ranks / "rank-1", (0, 1)), (src, ranks / "rank-1", (None, 1)),
                       (src, src, (None, None))):
        _, out, _ = harness.run(tessera, ["diff", a, b, "--json", "-"])
        _, text, _ = harness.run(tessera, ["diff", a, b])
        result = json.loads(out)
        for side, rank in zip("ab", said):
            assert result[f"rank_{side}"] == (None if rank is None else {"rank": rank, "ranks": 2})
            assert (f"{side.upper()} is rank" in text) == (rank is not None)
            assert rank is None or f"{side.upper()} is rank {rank} of 2 of a tensor-parallel cut" in text


# Layers whose output features (rows) are divided, and whose input features (columns): the loaders' ColumnParallelLinear,
# with the vocabulary's rows, and RowParallelLinear. All other tensors each rank has whole.
BY_ROWS = {"q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "gate_up_proj", "embed_tokens", "lm_head", "head"}
BY_COLUMNS = {"o_proj", "down_proj"}


def joined(name, parts):
    """Returns the tensor whose parts the ranks have, or None if each rank has all of it."""
    layer = name.split(".")[-2] if name.endswith((".weight", ".bias", "_scale_inv")) else name.split(".")[-1]
    if layer in BY_COLUMNS:
        return np.concatenate(parts, axis=-1)
    if layer not in BY_ROWS:
        return None
    rows = max(parts[0].ndim - 2, 0)
    if layer != "gate_up_proj":
        return np.concatenate(parts, axis=rows)
    # A rank has its share of gate, and behind it its share of up.
    return np.concatenate([np.split(part, 2, axis=rows)[half] for half in (0, 1) for part in parts], axis=rows)


@pytest.mark.parametrize("kind,fp8,n", [("deepseek-v3", False, 4), ("deepseek-v3", True, 2), ("deepseek-v3", True, 4),
                                        ("llama", False, 2), ("qwen3-moe", False, 2), ("fused-experts", False, 2)])
def test_cut_and_merged_is_the_same_tree(sources, convert, kind, fp8, n):
    src = sources(kind, fp8)
    dst = convert(src, "--to", "tp", "--tp", str(n), "--max-shard-size", "10MB")
    ranks = [load(dst / f"rank-{k}") for k in range(n)]
    tensors = source_tensors(src)
    for name, value in tensors.items():
        parts = [rank[name] for rank in ranks]
        whole = joined(name, parts)
        if whole is None or (".k_proj" in name or ".v_proj" in name) and all(same_bits(part, value) for part in parts):
            assert all(same_bits(part, value) for part in parts), name
        else:
            assert same_bits(whole, value), name
    for k in range(n):
        assert ranks[k].keys() == tensors.keys()
        assert harness.same_file(dst / f"rank-{k}/config.json", src / "config.json")
    merged = convert(dst, "--merge")
    harness.without_records(merged)
    assert harness.tree_difference(src, merged) is None


def test_a_kept_index_that_names_other_files_is_refused(sources, convert, refuse):
    """The index is written as the manifest has it, and loaders would follow it."""
    dst = convert(sources("deepseek-v3", False), "--to", "tp", "--tp", "2")
    manifest = dst / "rank-0/tessera-tp.json"
    text = manifest.read_text()
    assert '-00003.safetensors\\"' in text
    manifest.write_text(text.replace('-00003.safetensors\\"', '-00009.safetensors\\"', 1))
    refuse(dst, 3, "its index does not list the shards of all tensors", options=("--merge",))
    kept = json.loads(text)
    for index in {"weight_map": {}}, [0], None:  # the index itself is a string there
        manifest.write_text(json.dumps({**kept, "index": index}))
        refuse(dst, 3, "shards, but no index", options=("--merge",))


@pytest.mark.parametrize("fp8", [False, True])
def test_a_rank_computes_its_part(sources, convert, fp8):
    """Column parallelism concatenates outputs, row parallelism adds them. Tested with the decoded parts of every rank."""
    src = sources("deepseek-v3" if fp8 else "llama", fp8)
    dst = convert(src, "--to", "tp", "--tp", "2")
    ranks = [load(dst / f"rank-{k}") for k in range(2)]
    whole = source_tensors(src)
    prefix = next(n for n in whole if n.endswith("down_proj.weight")).removesuffix("down_proj.weight")

    def weight(tensors, name):
        value = tensors[prefix + name + ".weight"]
        scale = tensors.get(prefix + name + ".weight_scale_inv")
        return value.astype(np.float64) if scale is None else fp8_oracle.dequantize(value, scale)

    x = np.random.default_rng(0).integers(-4, 5, weight(whole, "up_proj").shape[1]).astype(np.float64)
    up = weight(whole, "up_proj") @ x
    parts = [weight(rank, "up_proj") @ x for rank in ranks]
    assert np.array_equal(np.concatenate(parts), up)
    down = sum(weight(rank, "down_proj") @ part for rank, part in zip(ranks, parts))
    assert np.allclose(down, weight(whole, "down_proj") @ up, rtol=1e-12, atol=1e-12)


def test_ranks_in_another_order_are_not_merged(sources, convert, refuse):
    ranks = convert(sources("llama", False), "--to", "tp", "--tp", "2")
    (ranks / "rank-1").rename(ranks / "other")
    (ranks / "rank-0").rename(ranks / "rank-1")
    (ranks / "other").rename(ranks / "rank-0")
    refuse(ranks, 3, "rank", options=("--merge",))
    four = convert(sources("llama", False), "--to", "tp", "--tp", "4")
    (four / "rank-1").rename(four / "other")
    (four / "rank-2").rename(four / "rank-1")
    (four / "other").rename(four / "rank-2")
    refuse(four, 3, "rank 1 of 4 was expected here", "says 2 of 4", options=("--merge",))


def test_a_header_of_another_writer_comes_back(tmp_path, convert):
    """A header with another order, other metadata, padding and index is restored byte for byte."""
    src = make(tmp_path / "src", {
        "b.safetensors": {"model.layers.0.mlp.up_proj.weight": random_weight((8, 4)), "z.norm.weight": np.ones(3, BF16)},
        "a.safetensors": {"model.layers.0.mlp.down_proj.weight": random_weight((4, 8)).astype(BF16)}},
        quantization=None, num_attention_heads=4)
    harness.write_safetensors(src / "a.safetensors",
                              {"model.layers.0.mlp.down_proj.weight": ("BF16", (4, 8), bytes(range(64)))},
                              {"format": "pt", "note": "\u00e9 \"quoted\""})
    merged = convert(convert(src, "--to", "tp", "--tp", "4"), "--merge")
    harness.without_records(merged)
    assert harness.tree_difference(src, merged) is None


def test_cutting_refusals(sources, refuse, tmp_path):
    fp8 = sources("deepseek-v3", True)
    refuse(fp8, 3, "down_proj.weight", "3 ranks", "1, 2, 4, 8", options=("--to", "tp", "--tp", "3"))
    refuse(fp8, 3, "cuts through a block of 128", "1, 2, 4 would work", options=("--to", "tp", "--tp", "8"))
    refuse(fp8, 2, "--tp N", options=("--to", "tp"))
    refuse(fp8, 2, "--tp", options=("--to", "tp", "--tp", "100000"))
    w = make(tmp_path / "heads", {"model.safetensors": {"model.layers.0.self_attn.k_proj.weight": np.ones((8, 4), BF16)}},
             quantization=None, num_attention_heads=8, num_key_value_heads=2)
    refuse(w, 3, "2 heads", "1, 2 would work", options=("--to", "tp", "--tp", "3"))
    layers = {f"model.layers.{i}.self_attn.k_proj.weight": np.ones((rows, 4), BF16) for i, rows in enumerate((32, 16))}
    w = make(tmp_path / "layers", {"model.safetensors": layers}, quantization=None, num_attention_heads=8, num_key_value_heads=8,
             num_global_key_value_heads=2)  # as in Gemma 4
    refuse(w, 3, *layers, "different heads", options=("--to", "tp", "--tp", "4"))
    w = make(tmp_path / "strange", {"model.safetensors": {"model.layers.0.strange.weight": np.ones((8, 4), BF16)}},
             quantization=None)
    refuse(w, 3, "strange", "not known", options=("--to", "tp", "--tp", "2"))
    w = make(tmp_path / "vector", {"model.safetensors": {"model.layers.0.self_attn.strange": np.ones(8, BF16)}}, quantization=None)
    refuse(w, 3, "strange", "not known", options=("--to", "tp", "--tp", "2"))
    refuse(sources("qwen3-moe", True), 3, "experts", "cuts through a block", options=("--to", "tp", "--tp", "2"))
    codes, scales = fp8_oracle.quantize(random_weight((512, 512)))
    padded = np.pad(scales, ((0, 4), (0, 0)))
    name = "model.layers.0.mlp.up_proj.weight"
    w = make(tmp_path / "padded", {"model.safetensors": {name: codes, name + "_scale_inv": padded}})
    refuse(w, 3, "padded", options=("--to", "tp", "--tp", "2"))


def test_more_ranks_than_key_value_heads(tmp_path, convert):
    """Neighbouring ranks share a head, as in loaders."""
    k = np.arange(2 * 4 * 6, dtype=np.float32).reshape(8, 6)
    src = make(tmp_path / "src", {"model.safetensors": {"model.layers.0.self_attn.k_proj.weight": k,
                                                        "model.layers.0.self_attn.k_proj.k_scale": np.ones((), np.float32),
                                                        "model.layers.0.self_attn.k_proj.bias": k[:, 0].copy()}},
               quantization=None, num_attention_heads=8, num_key_value_heads=2)
    dst = convert(src, "--to", "tp", "--tp", "8")
    for rank in range(8):
        got = load(dst / f"rank-{rank}")
        assert same_bits(got["model.layers.0.self_attn.k_proj.weight"], k[:4] if rank < 4 else k[4:])
    merged = convert(dst, "--merge")
    harness.without_records(merged)
    assert harness.tree_difference(src, merged) is None


def test_merging_what_does_not_belong_together(tmp_path, tessera, sources, convert, refuse):
    src = sources("llama", False)
    dst = convert(src, "--to", "tp", "--tp", "2")

    def broken(what):
        copy = tmp_path / what
        shutil.copytree(dst, copy)
        return copy

    swapped = broken("swapped")
    (swapped / "rank-0").rename(swapped / "x")
    (swapped / "rank-1").rename(swapped / "rank-0")
    (swapped / "x").rename(swapped / "rank-1")
    refuse(swapped, 3, "tessera-tp.json", options=("--merge",))
    missing = broken("missing")
    shutil.rmtree(missing / "rank-1")
    refuse(missing, 3, "0 of 2", options=("--merge",))
    (broken("config") / "rank-1/config.json").write_text('{"model_type": "llama"}')
    refuse(tmp_path / "config", 3, "rank-1", "config.json", options=("--merge",))
    for name, change in (("rows", lambda cut: cut.__setitem__(0, 7)), ("parts", lambda cut: cut.__setitem__(1, 3))):
        uneven = broken(f"uneven {name}")
        manifest = json.loads((uneven / "rank-0/tessera-tp.json").read_text())
        tensor = next(n for n in manifest["cuts"] if n.endswith("o_proj.weight"))
        change(manifest["cuts"][tensor])
        (uneven / "rank-0/tessera-tp.json").write_text(json.dumps(manifest))
        refuse(uneven, 3, tensor, "is missing or differs from tessera-tp.json", options=("--merge",))

    def changed(what, suffix, change):
        """Copies the ranks with one changed tensor in rank 1. Returns the copy and the tensor's name."""
        copy = broken(what)
        path = copy / "rank-1/model.safetensors"
        _, tensors = harness.read_safetensors(path)
        tensor = next(n for n in tensors if n.endswith(suffix))
        tensors[tensor] = change(*tensors[tensor])
        harness.write_safetensors(path, tensors, {"format": "pt"})
        return copy, tensor

    halved = lambda dtype, shape, data: (dtype, [shape[0] // 2, shape[1]], data[: len(data) // 2])
    other, tensor = changed("of another cut", "o_proj.weight", halved)
    refuse(other, 3, tensor, "not ranks of one cut", options=("--merge",))
    one_bit = lambda dtype, shape, data: (dtype, shape, bytes([data[0] ^ 1]) + data[1:])
    flipped, name = changed("flipped", "input_layernorm.weight", one_bit)
    harness.expect(tessera, ["convert", flipped, "-o", tmp_path / "m", "--merge"], 3, name, "ranks 0 and 1")


def rename_shard(name):
    return lambda m: m["shards"][0].__setitem__("name", name)


def twice(m):
    m["shards"].append(m["shards"][0])


@pytest.mark.parametrize("change,word", [
    *[(rename_shard(name), "the name of a safetensors file")
      for name in ("config.json", "../model.safetensors", "a/b.safetensors", "a\\b.safetensors", "..", "", ".safetensors",
                   ".hidden.safetensors", "a\nb.safetensors", "model.safetensors.index.json", "tokenizer.json")],
    (twice, "were cut"),
    (lambda m: m.update(index="{}", index_name="config.json"), "not a valid name of an index"),
    (lambda m: m.update(index="{}", index_name="../model.safetensors.index.json"), "not a valid name of an index"),
    (lambda m: m.update(index="{}"), "not a valid name of an index"),
])
def test_names_of_a_manifest_are_those_of_shards(tmp_path, tessera, sources, convert, change, word):
    dst = convert(sources("llama", False), "--to", "tp", "--tp", "2")
    path = dst / "rank-0/tessera-tp.json"
    manifest = json.loads(path.read_text())
    assert [shard["name"] for shard in manifest["shards"]] == ["model.safetensors"]
    change(manifest)
    path.write_text(json.dumps(manifest))
    harness.expect(tessera, ["convert", dst, "-o", tmp_path / "whole", "--merge"], 3, word)
    assert not [p for p in (tmp_path / "whole").rglob("*") if p.is_file() and ".tessera" not in p.parts]
