"""Makes models and results with the names that the pages use. Standard library only."""

import json
import pathlib
import random
import re
import struct
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import adapters
import harness
import importance_files

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
# How make_checkpoint makes each.
MODELS = {"model": ("llama", {"weights": "ordinary"}), "Llama-3.1-8B": ("llama", {"weights": "ordinary"}),
          "DeepSeek-V3-BF16": ("deepseek-v3", {"scale": "tiny", "weights": "ordinary"})}
# Results, in the order in which they are made of one another.
RESULTS = ["quantize DeepSeek-V3-BF16 -o DeepSeek-V3-FP8 --json quantize.json",
           "verify DeepSeek-V3-FP8 --against DeepSeek-V3-BF16 --json weights.json",
           "verify gemm DeepSeek-V3-FP8 --sample 1 --json gemm.json",
           "verify mla DeepSeek-V3-FP8 --layer 0 --json mla.json",
           "verify forward DeepSeek-V3-FP8 --against DeepSeek-V3-BF16 --count 4 --json forward.json",
           "batch jobs.jsonl --json night.json --results results"]
# Token ids. Those of a model with random weights have nothing to hold out: both are the same.
TEXTS = ["prompt.txt", "held-out.txt"]
AWQ_GROUP = 128


def json_blocks(page):
    """Returns the indented JSON blocks of a page as text."""
    found = re.findall(r"^\n((?: {4}.*\n)+)", (DOCS / page).read_text(), re.M)
    return [block for block in found if block.lstrip().startswith("{")]


def write_model(where, tensors, config):
    where.mkdir()
    harness.write_safetensors(where / "model.safetensors", tensors, {"format": "pt"})
    (where / "config.json").write_text(json.dumps(config))


def bf16(generator, *shape):
    count = 1
    for size in shape:
        count *= size
    data = b"".join(struct.pack("<f", generator.gauss(0, 0.02))[2:] for _ in range(count))
    return "BF16", list(shape), data


def make_gpt_oss(where):
    """Makes one layer with three experts, in BF16, in gpt-oss' order [experts, inputs, outputs]."""
    generator, hidden, inner, experts = random.Random(1), 64, 32, 3
    shapes = {"mlp.experts.gate_up_proj": (experts, hidden, 2 * inner), "mlp.experts.gate_up_proj_bias": (experts, 2 * inner),
              "mlp.experts.down_proj": (experts, inner, hidden), "mlp.experts.down_proj_bias": (experts, hidden),
              "mlp.router.weight": (experts, hidden), "mlp.router.bias": (experts,), "self_attn.q_proj.weight": (128, hidden),
              "self_attn.k_proj.weight": (64, hidden), "self_attn.v_proj.weight": (64, hidden), "self_attn.o_proj.weight": (hidden, 128),
              "self_attn.sinks": (2,), "input_layernorm.weight": (hidden,)}
    tensors = {f"model.layers.0.{name}": bf16(generator, *shape) for name, shape in shapes.items()}
    tensors |= {"model.embed_tokens.weight": bf16(generator, 64, hidden), "lm_head.weight": bf16(generator, 64, hidden)}
    write_model(where, tensors, {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "num_local_experts": experts,
        "vocab_size": 64})


def make_awq(source, where):
    """Makes the model in AutoAWQ's form: random int4 with a scale and a zero point per 128 inputs of an output."""
    generator, tensors = random.Random(2), {}
    for name, (dtype, shape, data) in harness.read_safetensors(source / "model.safetensors")[1].items():
        if not name.endswith("_proj.weight"):
            tensors[name] = dtype, shape, data
            continue
        (outputs, inputs), module = shape, name.removesuffix(".weight")
        groups = inputs // AWQ_GROUP
        tensors[module + ".qweight"] = "I32", [inputs, outputs // 8], generator.randbytes(inputs * outputs // 2)
        tensors[module + ".qzeros"] = "I32", [groups, outputs // 8], generator.randbytes(groups * outputs // 2)
        tensors[module + ".scales"] = "F16", [groups, outputs], struct.pack("<e", 0.0039) * (groups * outputs)
    quantization = {"quant_method": "awq", "bits": 4, "group_size": AWQ_GROUP, "zero_point": True, "version": "gemm"}
    write_model(where, tensors, {**json.loads((source / "config.json").read_text()), "quantization_config": quantization})


def make_ranges(source, path):
    """Makes ranges in the format of tools/capture_activations.py for each layer's input."""
    names = [name.removesuffix(".weight") for name, (_, shape, _) in harness.read_safetensors(source / "model.safetensors")[1].items()
             if name.endswith(".weight") and len(shape) == 2]
    path.write_text(json.dumps({name: {"min": -4, "max": 4} for name in names}))


def make_importance(where):
    """Makes mean squares of the layers' inputs: for Llama-3.1-8B in llama.cpp's format, and for DeepSeek-V3 as JSON."""
    matrix, means = {}, {}
    for model in ("Llama-3.1-8B", "DeepSeek-V3-BF16"):
        for path in sorted((where / model).glob("*.safetensors")):
            for name, (_, shape, _) in harness.read_safetensors(path)[1].items():
                module = name.removesuffix(".weight")
                layer = re.fullmatch(r"model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)_proj", module)
                values = [1 + i % 7 for i in range(shape[-1])]
                if len(shape) == 2 and model == "DeepSeek-V3-BF16":
                    means[module] = values
                elif len(shape) == 2 and layer is not None:
                    part = {"o": "attn_output"}.get(layer[2], ("ffn_" if layer[2] in ("gate", "up", "down") else "attn_") + layer[2])
                    matrix[f"blk.{layer[1]}.{part}"] = values
    importance_files.gguf(where / "imatrix.gguf", matrix)
    importance_files.as_json(where / "means.json", means)


def prepare(checks, options, where):
    """Makes all of them in a new folder. `options` are those of the tests."""
    where.mkdir()
    for name, (kind, how) in MODELS.items():
        harness.make_checkpoint(options.make, kind, where / name, **how)
    (where / "Llama").symlink_to("Llama-3.1-8B")  # of docs/batch.md
    for name in ("my-adapter", "style", "facts"):
        adapters.for_base(where / name, where / "Llama-3.1-8B")
    make_gpt_oss(where / "gpt-oss-BF16")
    make_awq(where / "model", where / "Llama-AWQ")
    make_ranges(where / "model", where / "ranges.json")
    make_importance(where)
    for name in TEXTS:
        (where / name).write_text(" ".join(map(str, range(64))))
    (where / "jobs.jsonl").write_text(json_blocks("batch.md")[0])
    (where / "rules-of-the-page.json").write_text(json_blocks("plan-schemes.md")[0])
    (where / "ranges-of-the-page.json").write_text(json_blocks("numerics.md")[0])
    for line in RESULTS:
        done = subprocess.run([pathlib.Path(options.tessera).resolve(), *line.split(), "--quiet"], cwd=where, capture_output=True, text=True,
                              check=False)
        checks.check(f"made for the pages: {line}", done.returncode == 0, done.stdout + done.stderr)
