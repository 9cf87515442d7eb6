"""Lists the targets of hostile.py: small valid checkpoints and files of each kind, and the commands that read them."""

import collections
import json
import os
import pathlib
import random
import shutil
import struct
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness
import remade

HIDDEN, VOCABULARY = 128, 128
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": HIDDEN, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
          "max_position_embeddings": 256, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16"}

# base: which folder; file: which file of it changes, and how (hostile_edits.EDITS). Commands: SRC is the changed folder, BASE the sound
# one, PLAIN the sound BF16 model, FILE the changed file, OUT and REPORT what is written. `weight`: how often it is chosen.
Target = collections.namedtuple("Target", "base file edit commands weight", defaults=[2])

LOOK = ("inspect SRC --can-load all --tp 1,2", "inspect SRC --json -", "inspect SRC --can-load vllm --as-is --junit REPORT")
SHARED = (*LOOK, "convert SRC -o OUT --to bf16", "diff SRC BASE", "diff PLAIN SRC --json -", "verify SRC --against PLAIN --json REPORT",
          "verify forward SRC --against PLAIN --count 4", "convert SRC -o OUT --to archive --level 1", "convert SRC -o OUT --to tp --tp 2",
          "convert SRC -o OUT --to mxfp8 --lossy", "convert SRC -o OUT --to mxfp8 --lossy --experts split", "convert SRC -o OUT --to fp8-block --lossy", "verify gemm SRC --sample 1 --device cpu",
          "verify dequant SRC --sample 1 --device cpu", "verify all SRC --against PLAIN --device cpu --json REPORT",
          "quantize SRC -o OUT --scheme fp8-channel", "compare-schemes SRC --sample 2")
PLAIN = (*LOOK, "quantize SRC -o OUT", "quantize SRC -o OUT --scheme int4-weight-only --group-size 32 --zero-points", "quantize SRC -o OUT --dry-run",
         "quantize SRC -o OUT --scheme nvfp4-weight-only --dialect modelopt", "quantize SRC -o OUT --scheme int8-channel", "convert SRC -o OUT --to tp --tp 2",
         "quantize SRC -o OUT --scheme mxfp4 --mx-scale floor", "convert SRC -o OUT --to fastertransformer --arch sm80 --bits 8", "convert SRC -o OUT --to trtllm --arch sm80",
         "convert SRC -o OUT --to bf16 --dtype f16", "compare-schemes SRC --sample 2 --json REPORT", "plan-schemes SRC --bits 6 -o REPORT", "diff SRC PLAIN",
         "verify SRC --against PLAIN", "verify forward PLAIN --against SRC --count 4", "convert SRC -o OUT --to archive --shuffle", "convert SRC -o OUT --to deepseek-mp --mp 1")
PACKED = (*LOOK, "convert SRC -o OUT --to safetensors", "quantize SRC -o OUT", "diff SRC PLAIN", "verify SRC --against PLAIN", "convert SRC -o OUT --to archive",
          "verify forward SRC --against PLAIN --count 4")
RANKED = ("inspect SRC", "inspect SRC/FILE", "convert SRC -o OUT --merge", "convert SRC -o OUT --to bf16", "diff SRC BASE", "inspect SRC --json -")
RANKS = (*RANKED, "convert SRC -o OUT --from deepseek-mp --config CONFIG")
BLOBS = ("inspect SRC", "inspect SRC --json -", "convert SRC -o OUT --from fastertransformer", "diff SRC BASE", "verify SRC --against PLAIN")
AGAIN = ("quantize PLAIN -o SRC --max-shard-size 100KB", "quantize PLAIN -o SRC --max-shard-size 100KB --force", "quantize PLAIN -o SRC --force", "quantize PLAIN -o SRC --scheme mxfp8", "finish SRC", "inspect SRC")
REPORT = ("report SRC/FILE", "report SRC/FILE --html REPORT", "report SRC/FILE --csv REPORT --json -", "report SRC/FILE --markdown REPORT",
          "report SRC/FILE --junit REPORT", "report BASE/FILE --baseline SRC/FILE", "report SRC/FILE BASE/FILE")
BLOCKED = ("report SRC/quantization_report.json", "report SRC/quantization_report.json --html REPORT", "report SRC/quantization_report.json --json -")
RULES = ("quantize PLAIN -o OUT --rules SRC/FILE", "quantize PLAIN -o OUT --rules SRC/FILE --dry-run")
CALIBRATED = ("quantize PLAIN -o OUT --scheme nvfp4 --activations SRC/FILE", "quantize PLAIN -o OUT --scheme int8-channel --activations SRC/FILE",
              "quantize PLAIN -o OUT --scheme int8-channel --activations SRC/FILE --activation-zero-points")
TOKENS = ("verify forward PLAIN --against PLAIN --tokens SRC/FILE",)
# As its own manifest, as another machine's copy of it beside the sound one, and as a copy of the sound one's.
MANIFEST = ("verify --manifest SRC", "verify --manifest SRC --json REPORT", "verify --manifest SRC --manifest BASE/FILE", "verify --manifest BASE --manifest SRC/FILE",
            "verify --manifest BARE --manifest SRC/FILE --json -", "verify --manifest BARE --manifest SRC")
QUANTIZED = {
    "fp8": "quantize SRC -o DST --max-shard-size 100KB", "fp8-ct": "quantize SRC -o DST --dialect compressed-tensors", "int8": "quantize SRC -o DST --scheme int8-channel",
    "int4": "quantize SRC -o DST --scheme int4-weight-only --group-size 32 --zero-points", "nvfp4": "quantize SRC -o DST --scheme nvfp4-weight-only --dialect modelopt",
    "mxfp4": "quantize SRC -o DST --scheme mxfp4-weight-only --mx-scale floor", "mxfp8": "quantize SRC -o DST --scheme mxfp8",
}
RESULTS = {"verify": "verify FP8 --against SRC --json TO", "diff": "diff SRC FP8 --json TO", "inspect": "inspect FP8 --can-load all --json TO",
           "compare": "compare-schemes SRC --sample 2 --json TO", "plan": "plan-schemes SRC --bits 8 -o RULES --json TO",
           "forward": "verify forward FP8 --against SRC --count 4 --json TO", "all": "verify all FP8 --against SRC --device cpu --json TO",
           "gemm": "verify gemm FP8 --sample 1 --device cpu --json TO"}
SHARD, INDEX = "model.safetensors", "model.safetensors.index.json"


def _random_weights(rng, count):
    """Makes BF16 between 2^-10 and 1."""
    return b"".join(struct.pack("<H", rng.randrange(2) << 15 | rng.randrange(117, 127) << 7 | rng.randrange(128)) for _ in range(count))


def make_plain(path):
    """Makes a dense model of one layer in two shards with an index."""
    rng = random.Random(7)
    shapes = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "lm_head.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN]}
    layer = "model.layers.0."
    shapes |= {f"{layer}self_attn.{leaf}_proj.weight": [HIDDEN, HIDDEN] for leaf in "qkvo"}
    shapes |= {f"{layer}mlp.{leaf}_proj.weight": [HIDDEN, HIDDEN] for leaf in ("gate", "up", "down")}
    shapes |= {f"{layer}{leaf}_layernorm.weight": [HIDDEN] for leaf in ("input", "post_attention")}
    tensors = {name: ("BF16", shape, _random_weights(rng, shape[0] * (shape[1] if len(shape) > 1 else 1))) for name, shape in shapes.items()}
    names = sorted(tensors)
    files = {"model-00001-of-00002.safetensors": names[:6], "model-00002-of-00002.safetensors": names[6:]}
    os.mkdir(path)
    for file, mine in files.items():
        harness.write_safetensors(os.path.join(path, file), {name: tensors[name] for name in mine}, {"format": "pt"})
    weights = {name: file for file, mine in files.items() for name in mine}
    _write(path, INDEX, {"metadata": {"total_size": sum(len(t[2]) for t in tensors.values())}, "weight_map": weights})
    _write(path, "config.json", CONFIG)


def _write(folder, name, value):
    os.makedirs(folder, exist_ok=True)
    data = value if isinstance(value, bytes) else (value if isinstance(value, str) else json.dumps(value)).encode()
    pathlib.Path(folder, name).write_bytes(data)


def _made(tool, line, **places):
    words = [places.get(word, word) for word in line.split()]
    code, _, stderr = harness.run(tool, [*words, "--quiet"])
    if code not in (0, 1):
        raise RuntimeError(f"{' '.join(words)}: exit {code}: {stderr}")


def _write_beside(folder):
    """Writes files without dependencies on others."""
    up = "model.layers.0.mlp.up_proj"
    _write(folder, "rules.json", {"schema": "tessera-rules/1", "dialect": "compressed-tensors", "note": "n", "rules": [
        {"match": "*.q_proj", "scheme": "mxfp8"}, {"match": [f"{up}.weight", "*.gate_proj"], "scheme": "int4-weight-only", "note": "n"},
        {"match": "*.k_proj", "scheme": "mxfp8"}, {"match": "*.v_proj", "scheme": "mxfp8"}, {"match": "*.o_proj", "scheme": "keep"}, {"match": "*", "scheme": "fp8-block"}]})
    _write(folder, "sensitivity.json", {"*.down_proj": 4, up: 0.5, "*": 1})
    modules = [f"model.layers.0.{part}_proj" for part in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")]
    _write(folder, "ranges.json", {module: {"min": -1.5, "max": 2.5} for module in modules})
    _write(folder, "scales.json", {module: {"input_scale": 0.02, "input_zero_point": -3} for module in modules})
    harness.write_safetensors(os.path.join(folder, "ranges.safetensors"), {
        f"{module}.input_{what}": ("F32", [1], struct.pack("<f", value)) for module in modules for what, value in (("min", -1.5), ("max", 2.5))})
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (2, 8), }"
    _write(folder, "tokens.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + struct.pack("<16q", *range(16)))
    _write(folder, "tokens.txt", b"1 2 3 4\n5 6 7 8\n")
    _write(folder, "tokens.bin", struct.pack("<8i", *range(8)))
    _write(folder, "jobs.jsonl", b'{"name": "a", "args": ["quantize", "PLAIN", "-o", "out-a", "--scheme", "mxfp8"]}\n'
           b'{"name": "b", "args": ["inspect", "out-a", "--can-load", "vllm"]}\n{"name": "c", "args": ["verify", "out-a", "--against", "PLAIN"]}\n')


def make_bases(tool, maker, work):
    """Returns {name: folder} of every valid base."""
    bases = {name: os.path.join(work, f"base-{name}") for name in ("plain", *QUANTIZED, *remade.KINDS, "archive", "archive-planes", "tp", "blobs", "latent",
                                                                   "mp", "beside", "results")}
    make_plain(bases["plain"])
    for name, line in QUANTIZED.items():
        _made(tool, line, SRC=bases["plain"], DST=bases[name])
    for name in remade.KINDS:
        remade.remake(name, bases["plain"], bases[name])
    for name, line in {"archive": "convert SRC -o DST --to archive --level 1", "archive-planes": "convert SRC -o DST --to archive --shuffle --level 1",
                       "blobs": "convert SRC -o DST --to fastertransformer --arch sm80 --bits 4"}.items():
        _made(tool, line, SRC=bases["plain"], DST=bases[name])
    _made(tool, "convert SRC -o DST --to tp --tp 2", SRC=bases["plain"], DST=bases["tp"])
    harness.make_checkpoint(maker, "deepseek-v3", bases["latent"], scale="tiny", weights="ordinary")
    _made(tool, "convert SRC -o DST --to deepseek-mp --mp 2", SRC=bases["latent"], DST=bases["mp"])
    _write_beside(bases["beside"])
    os.mkdir(bases["results"])
    for name, line in RESULTS.items():
        _made(tool, line, SRC=bases["plain"], FP8=bases["fp8"], TO=os.path.join(bases["results"], f"{name}.json"), RULES=os.path.join(work, "rules.json"))
    return bases


def targets(bases):
    """Returns all targets, named as the files of the bases."""
    found = [Target("plain", name, "json", PLAIN, 4) for name in ("config.json", INDEX)]
    found += [Target("plain", name, "shard", PLAIN, 6) for name in os.listdir(bases["plain"]) if name.endswith(".safetensors")]
    for base in (*QUANTIZED, *remade.KINDS):
        shards = [name for name in sorted(os.listdir(bases[base])) if name.endswith(".safetensors")]
        found += [Target(base, "config.json", "json", SHARED, 3)] + [Target(base, name, "shard", SHARED, max(1, 4 // len(shards))) for name in shards]
        found += [Target(base, name, "json", SHARED, 1) for name in (INDEX, "hf_quant_config.json") if os.path.exists(os.path.join(bases[base], name))]
    for base in ("archive", "archive-planes"):
        found += [Target(base, name, "archive", PACKED, 4) for name in os.listdir(bases[base]) if name.endswith(".zst")]
    for base, manifest, commands in (("tp", "tessera-tp.json", RANKED), ("blobs", "tessera-layout.json", BLOBS), ("mp", "model0-mp2.safetensors", RANKS)):
        for folder, _, names in os.walk(bases[base]):
            inside = os.path.relpath(folder, bases[base])
            for name in sorted(names):
                path = name if inside == "." else f"{inside}/{name}"
                if name == manifest or (name == "config.json" and base != "mp"):
                    found.append(Target(base, path, "shard" if name.endswith(".safetensors") else "json", commands, 2))
                elif base != "mp" and name.endswith(".safetensors"):
                    found.append(Target(base, path, "shard", commands, 1))
    found += [Target("latent", "config.json", "json", ("convert SRC -o OUT --to mla-absorbed --consumer vllm --fold", "convert SRC -o OUT --to mla-absorbed --consumer sglang "
              "--weights bf16", "verify mla SRC --device cpu", *LOOK, "convert SRC -o OUT --to deepseek-mp --mp 2"), 2)]
    for base in ("fp8", "nvfp4"):
        found += [Target(base, ".tessera/journal", "journal", AGAIN, 6), Target(base, "quantization_report.json", "json", REPORT, 3),
                  Target(base, "quantization_blocks.zst", "blocks", BLOCKED, 4)]
    found += [Target(base, "tessera.manifest.json", "manifest", MANIFEST, 6) for base in ("fp8", "archive")]
    found += [Target("results", name, "json", REPORT, 1) for name in sorted(os.listdir(bases["results"]))]
    found += [Target("beside", "rules.json", "json", RULES, 5), Target("beside", "sensitivity.json", "json", ("plan-schemes PLAIN --bits 6 --sensitivity SRC/FILE -o REPORT",), 2)]
    found += [Target("beside", name, edit, CALIBRATED, 2) for name, edit in (("ranges.json", "json"), ("scales.json", "json"), ("ranges.safetensors", "shard"))]
    found += [Target("beside", "tokens.npy", "npy", TOKENS, 4), Target("beside", "tokens.txt", "tokens", TOKENS, 1), Target("beside", "tokens.bin", "tokens", TOKENS, 1)]
    found += [Target("beside", "jobs.jsonl", "lines", ("batch SRC/FILE --dry-run", "batch SRC/FILE --dry-run --json REPORT"), 4)]
    return found


def link_tree(source, to, changed):
    """Copies a tree by hard links. The file to be changed, and files that a rerun writes, are copied."""
    for folder, _, names in os.walk(source):
        inside = os.path.join(to, os.path.relpath(folder, source))
        os.makedirs(inside, exist_ok=True)
        for name in names:
            path = os.path.join(folder, name)
            if os.path.relpath(path, source) == changed:
                continue
            if ".tessera" in folder or changed.startswith(".tessera"):
                shutil.copy2(path, os.path.join(inside, name))
            else:
                os.link(path, os.path.join(inside, name))
