"""Tests plan-schemes: tensors that stay unquantized, the budget, the least error; and quantize --rules with its output and with written rules."""

import itertools
import json
import re

from checkpoints import BF16, load, make, random_weight
import harness
import importance_files
import mx_oracle
import numpy as np
import pytest

pytestmark = pytest.mark.in_turn

LAYERS = 3
ATTENTION = {"q_proj": (256, 256), "k_proj": (128, 256), "v_proj": (128, 256), "o_proj": (256, 256)}
MLP = {"gate_proj": (384, 256), "up_proj": (384, 256), "down_proj": (256, 384)}
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
# Names and dtypes of codes and scales.
STORED = {
    "nvfp4-weight-only": {"weight_packed": "U8", "weight_scale": "F8_E4M3", "weight_global_scale": "F32"},
    "nvfp4": {"weight_packed": "U8", "weight_scale": "F8_E4M3", "weight_global_scale": "F32", "input_global_scale": "F32"},
    "mxfp4-weight-only": {"weight_packed": "U8", "weight_scale": "U8"},
    "mxfp8": {"weight": "F8_E4M3", "weight_scale": "U8"},
    "fp8-block": {"weight": "F8_E4M3", "weight_scale": "F32"},
    "int4-weight-only": {"weight_packed": "I32", "weight_scale": "BF16", "weight_shape": "I64"},
    "keep": {"weight": "BF16"},
}
FORMATS = {"nvfp4-weight-only": "nvfp4-pack-quantized", "nvfp4": "nvfp4-pack-quantized", "mxfp8": "mxfp8-quantized",
           "mxfp4-weight-only": "mxfp4-pack-quantized", "fp8-block": "float-quantized", "int4-weight-only": "pack-quantized"}
# Modules whose values lie where E2M1 has none: with 6 as the largest of each group, 5 becomes 4 or 6.
PLANTED = ["model.layers.1.self_attn.o_proj", "model.layers.2.mlp.down_proj"]


def planted(w):
    made = np.copysign(np.float32(5), w)
    made[:, ::16] = 6
    return made / 256


def make_llama(path, layers, rows=1):
    """Writes a Llama with so many layers and some of the rows of each weight."""
    tensors = {"model.embed_tokens.weight": random_weight((64, 256), 90), "lm_head.weight": random_weight((64, 256), 91),
               "model.norm.weight": np.ones(256, np.float32)}
    for layer, (part, shapes) in itertools.product(range(layers), (("self_attn", ATTENTION), ("mlp", MLP))):
        for i, (leaf, shape) in enumerate(shapes.items()):
            shape = shape[0] // rows, shape[1]
            name = f"model.layers.{layer}.{part}.{leaf}"
            w = random_weight(shape, 10 * layer + i)
            tensors[name + ".weight"] = planted(w) if name in PLANTED else w
    return make(path, {"model.safetensors": {n: w.astype(BF16) for n, w in tensors.items()}}, quantization=None, hidden_size=256)


@pytest.fixture
def llama(tmp_path):
    return make_llama(tmp_path / "src", LAYERS)


@pytest.fixture
def plan(tessera, tmp_path):
    """Returns plan(src, *options) -> (rules file, the plan as JSON)."""

    def run(src, *options):
        rules, report = tmp_path / "rules.json", tmp_path / "plan.json"
        out = harness.succeed(tessera, ["plan-schemes", src, "-o", rules, "--json", report, *options])
        return rules, {**json.loads(report.read_text()), "stdout": out}

    return run


def headers(directory):
    """Returns {tensor: (dtype, shape, bytes)}."""
    return {name: (entry["dtype"], entry["shape"], harness.entry_size(entry)) for name, entry in harness.headers(directory).items()}


def is_targeted(target, module):
    """Matches as compressed-tensors does: re.match from the start, or the whole name."""
    return re.match(target[3:], module) is not None if target.startswith("re:") else target == module


def fused_layers(schemes):
    """Returns the scheme of the fused layers, which SGLang's classes look up by their own names."""
    found = {}
    for module, scheme in schemes.items():
        outer, _, leaf = module.rpartition(".")
        for name, members in FUSED.items():
            if leaf == members[0] and ".experts." not in module:
                assert {schemes[f"{outer}.{member}"] for member in members} == {scheme}, module
                found[f"{outer}.{name}"] = scheme
    return found


def check_schemes(src, dst, schemes):
    """Checks that each module is stored in its scheme, and that the groups of config.json name exactly these modules."""
    stored = headers(dst)
    config = json.loads((dst / "config.json").read_text())["quantization_config"]
    fused = fused_layers(schemes)
    for module, scheme in fused.items():
        groups = [g for g in config["config_groups"].values() if module in g["targets"]]
        assert [g["format"] for g in groups] == ([] if scheme == "keep" else [FORMATS[scheme]]), module
        assert (module in config["ignore"]) == (scheme == "keep"), module
    for module, scheme in schemes.items():
        mine = {n.removeprefix(module + "."): dtype for n, (dtype, _, _) in stored.items() if n.startswith(module + ".")}
        assert mine == STORED[scheme], (module, scheme)
        groups = [g for g in config["config_groups"].values() if any(is_targeted(t, module) for t in g["targets"])]
        assert [g["format"] for g in groups] == ([] if scheme == "keep" else [FORMATS[scheme]]), module
        assert (module in config["ignore"]) == (scheme == "keep"), module
    for group in config["config_groups"].values():
        for target in group["targets"]:
            assert target in fused or any(is_targeted(target, module) for module in schemes), target
            assert not any(is_targeted(target, module + more) for module in schemes for more in ("x", ".x", "0"))
    formats = {FORMATS[s] for s in schemes.values() if s != "keep"}
    assert config["format"] == (formats.pop() if len(formats) == 1 else "mixed-precision")
    return sum(size for _, _, size in stored.values())


def check_is_read(tessera, src, dst):
    for words, expected in ((["inspect", dst], 0), (["diff", src, dst], 1), (["verify", dst, "--against", src], 0)):
        code, out, err = harness.run(tessera, words)
        assert code in (expected, 0), f"{words[0]}: {code}\n{out}{err}"


def schemes_of(got):
    return {t.removesuffix(".weight"): g["scheme"] for g in got["groups"] for t in g["tensors"]}


def best_error(groups, budget):
    """Returns the smallest sum of errors within the budget, by trying all choices that no other choice dominates."""
    sizes, errors = np.zeros(1, np.int64), np.zeros(1)
    for group in groups:
        size = np.add.outer(sizes, [o["bytes"] for o in group["options"]]).reshape(-1)
        error = np.add.outer(errors, [o["error"] for o in group["options"]]).reshape(-1)
        order = np.lexsort((error, size))
        order = order[size[order] <= budget]
        size, error = size[order], error[order]
        kept = np.append(True, error[1:] < np.minimum.accumulate(error)[:-1])
        sizes, errors = size[kept], error[kept]
    return errors[-1]


@pytest.mark.parametrize("bits", ["4.6", "5.5", "6.25", "8", "9.5", "15"])
def test_a_plan_is_the_best_and_is_carried_out(tmp_path, tessera, quantize, llama, plan, bits):
    rules, got = plan(llama, "--bits", bits, "--schemes", "nvfp4-weight-only,mxfp8,fp8-block,bf16")
    kept = got["kept_bytes"]
    assert got["bits_per_weight"] <= float(bits) and got["bytes"] <= got["budget_bytes"]
    assert got["budget_bytes"] == kept + int(float(bits) * got["weights"] / 8)
    best = best_error(got["groups"], got["budget_bytes"] - kept)
    assert got["error"] == pytest.approx(best, rel=1e-6) and got["bound"] == pytest.approx(best, rel=1e-6)
    schemes = schemes_of(got)
    for layer, members in itertools.product(range(LAYERS), FUSED.values()):
        assert len({s for m, s in schemes.items() if f"layers.{layer}." in m and m.endswith(members)}) == 1
    dst = quantize(llama, "--rules", rules)
    assert check_schemes(llama, dst, schemes) == got["bytes"]
    check_is_read(tessera, llama, dst)


VARIANTS = {"int4-weight-only --group-size 32": 32, "int4-weight-only --group-size 64 --zero-points": 64,
            "int4-weight-only --zero-points --scales best": 128, "int8-weight-only --group-size 128": 128}


def test_all_schemes(tmp_path, tessera, quantize, llama, plan):
    """No uniform scheme of this size has a smaller error. quantize and readers support schemes with options."""
    used = set()
    for bits in ("4.3", "4.6", "5", "8.2"):
        rules, got = plan(llama, "--bits", bits)
        assert "tessera sensitivities" in got["stdout"]
        best = best_error(got["groups"], got["budget_bytes"] - got["kept_bytes"])
        assert got["error"] == pytest.approx(best, rel=1e-6)
        names = {o["scheme"] for g in got["groups"] for o in g["options"]}
        assert {"nvfp4-weight-only --scales best", "int4-weight-only --group-size 64 --zero-points --scales best", "fp8-block --scales mse",
                "keep"} <= names and not {"nvfp4", "fp8-channel", "fp8-tensor"} & names
        for name in names:
            alone = [next((o for o in g["options"] if o["scheme"] == name), None) for g in got["groups"]]
            if None not in alone and sum(o["bytes"] for o in alone) + got["kept_bytes"] <= got["bytes"]:
                assert sum(o["error"] for o in alone) >= got["error"] * (1 - 1e-9), name
        used |= set(schemes_of(got).values())
        dst = quantize(llama, "--rules", rules)
        harness.succeed(tessera, ["verify", dst, "--against", llama])
        stored = sum(size for _, _, size in headers(dst).values())
        assert stored == got["bytes"]
    assert any("best" in name for name in used) and any("zero-points" in name for name in used)


def test_rules_with_options(tmp_path, tessera, quantize, llama):
    """A scheme with options in a rules file gives the codes of these options."""
    modules = [f"model.layers.{i}.self_attn.o_proj" for i in range(LAYERS)] + ["model.layers.0.mlp.down_proj"]
    rules = harness.write_json(tmp_path / "rules.json", {"rules": [{"match": m, "scheme": s} for m, s in zip(modules, VARIANTS)]})
    mixed = load(quantize(llama, "--rules", rules))
    groups = json.loads((quantize(llama, "--rules", rules) / "config.json").read_text())["quantization_config"]["config_groups"]
    for module, (scheme, group) in zip(modules, VARIANTS.items()):
        alone = load(quantize(llama, *f"--scheme {scheme}".split()))
        mine = {n for n in alone if n.startswith(module + ".")}
        assert mine == {n for n in mixed if n.startswith(module + ".")}
        assert all(np.array_equal(alone[n].view(np.uint8), mixed[n].view(np.uint8)) for n in mine), scheme
        (config,) = [g["weights"] for g in groups.values() if module in g["targets"]]
        assert config["group_size"] == group and config["symmetric"] == ("zero-points" not in scheme)
    rules.write_text(json.dumps({"rules": [{"match": "*", "scheme": "int4-weight-only --group-size 16"}]}))
    harness.expect(tessera, ["quantize", llama, "-o", tmp_path / "dst", "--rules", rules], 3, "some also with options")


def test_importance_weights_the_errors(tmp_path, tessera, quantize, llama, plan):
    rng = np.random.default_rng(2)
    cols = {leaf: shape[1] for leaf, shape in (ATTENTION | MLP).items()}
    path = importance_files.as_json(tmp_path / "i.json", {
        f"model.layers.{layer}.{part}.{leaf}": rng.exponential(1, cols[leaf]) ** 3
        for layer in range(LAYERS) for part, shapes in (("self_attn", ATTENTION), ("mlp", MLP)) for leaf in shapes})
    rules, got = plan(llama, "--bits", "6", "--importance", path)
    assert f"--importance {path}" in got["stdout"]
    report = json.loads((quantize(llama, "--rules", rules, "--importance", path) / "quantization_report.json").read_text())
    cost = {t["name"]: 0 if t["weighted_sqnr_db"] is None else 10 ** (-t["weighted_sqnr_db"] / 10) for t in report["tensors"]}
    for g in got["groups"]:
        if "best" in g["scheme"] and "nvfp4" not in g["scheme"]:
            (mine,) = [o for o in g["options"] if o["scheme"] == g["scheme"]]
            assert mine["error"] == pytest.approx(sum(cost[t] for t in g["tensors"]), rel=1e-6)
    assert "best" in str(schemes_of(got))


def test_what_is_sensitive_is_kept(tmp_path, llama, plan):
    """A weight with larger errors is kept, and so is a weight with a larger factor in the file."""
    _, got = plan(llama, "--bits", "6.5", "--schemes", "nvfp4-weight-only,bf16")
    schemes = schemes_of(got)
    assert [schemes[module] for module in PLANTED] == ["keep", "keep"]
    assert sum(s == "keep" for s in schemes.values()) < len(schemes) / 3
    module = "model.layers.0.self_attn.o_proj"
    assert schemes[module] == "nvfp4-weight-only"
    sensitivity = harness.write_json(tmp_path / "weights.json", {module: 1e4, "*.layers.1.*": 0.001, PLANTED[0]: 1e9})
    _, weighted = plan(llama, "--bits", "6.5", "--schemes", "nvfp4-weight-only,bf16", "--sensitivity", sensitivity)
    schemes = schemes_of(weighted)
    assert schemes[module] == "keep" and schemes[PLANTED[0]] == "nvfp4-weight-only"  # the first that fits counts
    plain = {tuple(g["tensors"]): g["options"] for g in got["groups"]}
    for g in weighted["groups"]:
        factor = 1e4 if module in g["tensors"][0] else 0.001 if ".layers.1." in g["tensors"][0] else 1
        for o, before in zip(g["options"], plain[tuple(g["tensors"])]):
            assert o["error"] == pytest.approx(factor * before["error"]) and o["bytes"] == before["bytes"]


def test_errors_and_bytes_are_those_of_the_output(tessera, quantize, llama, plan, tmp_path):
    """A plan's figures of each weight are those of quantize's report, except for NVFP4's global scales by strips."""
    rules, got = plan(llama, "--bits", "7", "--schemes", "nvfp4-weight-only,mxfp8,fp8-block,int4-weight-only,bf16")
    dst = quantize(llama, "--rules", rules)
    report = json.loads((dst / "quantization_report.json").read_text())
    cost = {t["name"]: t["relative_error"] ** 2 for t in report["tensors"]}
    for g in got["groups"]:
        (mine,) = [o for o in g["options"] if o["scheme"] == g["scheme"]]
        expected = sum(cost.get(t, 0) for t in g["tensors"])
        assert mine["error"] == pytest.approx(expected, rel=0.03 if "nvfp4" in g["scheme"] else 1e-6, abs=0)


def test_budgets_in_bytes_and_the_least_one(tessera, llama, plan, tmp_path):
    options = ("--schemes", "nvfp4-weight-only,mxfp8")
    _, got = plan(llama, "--bits", "32", *options)
    assert schemes_of(got).keys() and "keep" not in schemes_of(got).values()
    least = got["least_bytes"]
    _, exact = plan(llama, "--max-bytes", str(least), *options)
    assert exact["bytes"] == least and set(schemes_of(exact).values()) == {"nvfp4-weight-only"}
    rules = tmp_path / "none.json"
    code, out, err = harness.run(tessera, ["plan-schemes", llama, "--max-bytes", str(least - 1), "-o", rules, *options])
    assert code == 1 and f"{least} bytes" in err and not rules.exists() and out == ""
    assert harness.run(tessera, ["plan-schemes", llama, "--max-bytes", "10", *options])[0] == 1


def test_table_and_curve(tessera, llama, plan):
    _, got = plan(llama, "--bits", "6")
    assert f"{got['bits_per_weight']:.3f}" in got["stdout"] and f"next: tessera quantize {llama} -o DST --rules" in got["stdout"]
    curve = [(point["bytes"], point["error"]) for point in got["curve"]]
    assert len(curve) == 9 and curve == sorted(curve) and all(a[1] >= b[1] for a, b in zip(curve, curve[1:]))


def test_threads_agree(tmp_path, plan):
    """Tests also the scalar code, which is slow, so the weights are small."""
    src = make_llama(tmp_path / "small", 1, rows=8)
    plans = [plan(src, "--bits", "6", "--threads", n, "--cpumask", mask)[1] for n, mask in (("1", "7"), ("4", "0"))]
    assert plans[0] == plans[1]


def test_experts_have_one_scheme_and_one_target(tessera, checkpoint, quantize, plan):
    src = checkpoint("qwen3-moe")
    rules, got = plan(src, "--bits", "5.7", "--schemes", "mxfp4-weight-only,fp8-block,bf16")
    schemes = schemes_of(got)
    sets = {m[:m.index(".experts.")]: set() for m in schemes if ".experts." in m}
    for module, scheme in schemes.items():
        if ".experts." in module:
            sets[module[:module.index(".experts.")]].add(scheme)
    assert sets and all(len(s) == 1 for s in sets.values())
    assert len(set(schemes.values())) > 1
    dst = quantize(src, "--rules", rules)
    assert check_schemes(src, dst, schemes) == got["bytes"]
    config = json.loads((dst / "config.json").read_text())["quantization_config"]
    targets = [t for g in config["config_groups"].values() for t in g["targets"]]
    experts = [t for t in targets if "experts" in t]
    assert len(experts) < len([m for m in schemes if ".experts." in m]) and all(t.startswith("re:") for t in experts)
    check_is_read(tessera, src, dst)


HAND = {"rules": [
    {"match": "model.layers.0.self_attn.?_proj", "scheme": "bf16", "note": "the first attention"},
    {"match": ["*.self_attn.*"], "scheme": "fp8-block"},
    {"match": "*.layers.2.*", "scheme": "int4-weight-only"},
    {"match": "*.down_proj.weight", "scheme": "mxfp8"},
    {"match": "model.layers.*", "scheme": "nvfp4-weight-only"}]}


def test_rules_written_by_hand(tmp_path, tessera, quantize, llama):
    """The first matching rule applies. Values equal those of each scheme alone."""
    rules = harness.write_json(tmp_path / "hand.json", HAND)
    dst = quantize(llama, "--rules", rules)
    schemes = {n.removesuffix(".weight"): "nvfp4-weight-only" for n in headers(llama) if "layers" in n}
    for module in schemes:
        schemes[module] = ("keep" if "layers.0.self_attn" in module else "fp8-block" if "self_attn" in module else
                           "int4-weight-only" if "layers.2" in module else
                           "mxfp8" if module.endswith("down_proj") else schemes[module])
    check_schemes(llama, dst, schemes)
    check_is_read(tessera, llama, dst)
    mixed = (dst / "model.safetensors").read_bytes()
    for scheme in sorted(set(schemes.values()) - {"keep"}):
        alone = quantize(llama, "--scheme", scheme, "--dialect", "compressed-tensors")
        assert_same_tensors(mixed, (alone / "model.safetensors").read_bytes(), [m for m, s in schemes.items() if s == scheme])


def assert_same_tensors(a, b, modules):
    import safetensors
    mine, theirs = dict(safetensors.deserialize(a)), dict(safetensors.deserialize(b))
    for module in modules:
        names = [n for n in mine if n.rpartition(".")[0] == module]
        assert names and all(bytes(mine[n]["data"]) == bytes(theirs[n]["data"]) for n in names), module


def test_activations(tmp_path, tessera, quantize, llama, plan):
    """nvfp4 has the global scale of its input, which counts. The other schemes need no range."""
    rules, got = plan(llama, "--bits", "6", "--schemes", "nvfp4,mxfp8")
    ranges = {t.removesuffix(".weight"): {"min": -2.0, "max": 3.0} for g in got["groups"] for t in g["tensors"]
              if g["scheme"] == "nvfp4"}
    (tmp_path / "ranges.json").write_text(json.dumps(ranges))
    dst = quantize(llama, "--rules", rules, "--activations", tmp_path / "ranges.json")
    assert check_schemes(llama, dst, schemes_of(got)) == got["bytes"]
    harness.expect(tessera, ["quantize", llama, "-o", tmp_path / "no", "--rules", rules], 3, "--activations")


REFUSED = {
    "parts fused members": ({"rules": [{"match": "*.q_proj", "scheme": "mxfp8"}, {"match": "*", "scheme": "fp8-block"}]},
                            ["q_proj", "one layer", "mxfp8", "fp8-block"]),
    "leaves a fused member out": ({"rules": [{"match": "*.gate_proj", "scheme": "mxfp8"}]}, ["gate_proj", "up_proj", "no rule"]),
    "unknown scheme": ({"rules": [{"match": "*", "scheme": "nvfp5"}]}, ["nvfp5", "nvfp4-weight-only"]),
    "cannot be mixed": ({"rules": [{"match": "*", "scheme": "int8-channel"}]}, ["int8-channel", "cannot be mixed"]),
    "cannot stand in one checkpoint": (
        {"rules": [{"match": "*.mlp.*", "scheme": "fp8-channel"}, {"match": "*", "scheme": "fp8-block"}]}, ["cannot be mixed"]),
    "dialect deepseek": ({"dialect": "deepseek", "rules": []}, ["deepseek", "one scheme", "compressed-tensors"]),
    "dialect modelopt": ({"dialect": "modelopt", "rules": [{"match": "*", "scheme": "fp8-block"}]},
                         ["modelopt", "fp8-block", "compressed-tensors"]),
    "another schema": ({"schema": "tessera-rules/2", "rules": []}, ["tessera-rules/2"]),
    "unknown key": ({"rules": [{"match": "*", "scheme": "mxfp8", "group": 4}]}, ["'group'"]),
    "unknown key at the top": ({"rulez": []}, ["'rulez'"]),
    "no rules": ({}, ["list of rules is missing"]),
    "no scheme": ({"rules": [{"match": "*"}]}, ["a scheme"]),
    "nothing to match": ({"rules": [{"match": [], "scheme": "mxfp8"}]}, ["to match"]),
    "a number to match": ({"rules": [{"match": 4, "scheme": "mxfp8"}]}, ["not a string"]),
    "a name that is not there": ({"rules": [{"match": "model.layers.9.mlp.up_proj", "scheme": "mxfp8"}]}, ["layers.9"]),
    "an embedding by name": ({"rules": [{"match": "model.embed_tokens", "scheme": "mxfp8"}]},
                             ["model.embed_tokens", "cannot become mxfp8"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rules_that_are_refused(tmp_path, tessera, llama, case):
    text, words = REFUSED[case]
    rules = harness.write_json(tmp_path / "r.json", text)
    harness.expect(tessera, ["quantize", llama, "-o", tmp_path / "out", "--rules", rules], 3, *words, str(rules))
    assert not (tmp_path / "out").exists()


def test_experts_that_rules_part(tmp_path, tessera, checkpoint):
    rules = harness.write_json(tmp_path / "r.json", {"rules": [{"match": "*.experts.0.*", "scheme": "bf16"}, {"match": "*", "scheme": "mxfp8"}]})
    code, _, err = harness.run(tessera, ["quantize", checkpoint("qwen3-moe"), "-o", tmp_path / "out", "--rules", rules])
    assert code == 3 and ".experts.0." in err and ".experts.1" in err and "experts of one scheme" in err, err


def test_a_glob_that_fits_nothing_is_told_and_what_the_policy_keeps_is_kept(tmp_path, tessera, llama):
    rules, dst = tmp_path / "r.json", tmp_path / "out"
    rules.write_text(json.dumps({"rules": [{"match": "*.experts.*", "scheme": "mxfp8"}, {"match": "*", "scheme": "mxfp8"}]}))
    harness.expect(tessera, ["quantize", llama, "-o", dst, "--rules", rules], 0, "'*.experts.*' matches no tensor")
    stored = headers(dst)
    assert all(stored[n][0] == "BF16" for n in ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"))


@pytest.mark.parametrize("text", ['{"*": 0}', '{"*": -1}', '{"*": "high"}', '{"*": 1e400}', '["*"]', '{"*": 1', '{"*.blocks.*": 1}'])
def test_sensitivities_that_are_refused(tmp_path, tessera, llama, text):
    path = tmp_path / "weights.json"
    path.write_text(text)
    harness.expect(tessera, ["plan-schemes", llama, "--bits", "6", "--sensitivity", path], 3, str(path))


def test_sources_that_are_refused(tmp_path, tessera, llama, quantize):
    harness.expect(tessera, ["plan-schemes", quantize(llama), "--bits", "6"], 3, "already quantized")
    small = make(tmp_path / "small", {"model.safetensors": {"model.norm.weight": np.ones(4, BF16)}}, quantization=None)
    harness.expect(tessera, ["plan-schemes", small, "--bits", "6"], 1, "none of the schemes applies to any")


def test_nvfp4_of_a_fused_layer_has_one_global_scale(tmp_path, quantize, llama):
    rules = harness.write_json(tmp_path / "r.json", {"rules": [{"match": "*.self_attn.*", "scheme": "nvfp4-weight-only"}]})
    import safetensors
    stored = {n: e["data"] for n, e in safetensors.deserialize((quantize(llama, "--rules", rules) / "model.safetensors").read_bytes())}
    source = {n: np.frombuffer(e["data"], BF16).reshape(e["shape"])
              for n, e in safetensors.deserialize((llama / "model.safetensors").read_bytes())}
    modules = {f"model.layers.0.self_attn.{leaf}": source[f"model.layers.0.self_attn.{leaf}.weight"] for leaf in ATTENTION}
    for name, value in mx_oracle.expected(modules, "nvfp4-weight-only", "compressed-tensors").items():
        assert bytes(stored[name]) == value.tobytes(), name
