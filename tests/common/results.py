"""Makes a result of each command from small checkpoints, and large invented reports."""

import copy
import json
import random

import adapters
import checkpoints
from checkpoints import BF16, FP8_CONFIG
import fp8_oracle
import harness
import importance_files
import numpy as np

# name of the result -> command; SRC is a checkpoint in BF16, FP8 what quantize makes of it, OUT a fresh folder, JSON the result.
# Exit code 1 on a valid checkpoint is no failure: diff without a tolerance, and loaders that do not accept it, end in 1.
COMMANDS = {
    "quantize": "quantize SRC -o OUT --json JSON",
    "quantize-plan": "quantize SRC -o OUT --dry-run --json JSON",
    "quantize-mxfp8": "quantize SRC -o OUT --scheme mxfp8 --scales best --exclude *experts* --json JSON",
    "quantize-limits": "quantize SRC -o OUT --min-sqnr 31.45 --max-worst-block 0.5 --json JSON",
    "quantize-proof": "quantize SRC -o OUT --scheme mxfp4-weight-only --exclude *experts* --importance MEANS --prove TOKENS --device cpu --json JSON",
    "shard": "quantize SRC -o SHARDED --shard 0/1 --json JSON",
    "finish": "finish SHARDED --json JSON",
    "finish-again": "finish SHARDED --json JSON",
    "convert": "convert FP8 -o OUT --to bf16 --json JSON",
    "merge": "merge SRC LORA -o OUT --json JSON",
    "merge-plan": "merge SRC LORA -o OUT --dry-run --json JSON",
    "verify": "verify FP8 --against SRC --json JSON",
    "manifest": "verify --manifest FP8 --json JSON",
    "gemm": "verify gemm FP8 --against SRC --device cpu --sample 3 --json JSON",
    "mla": "verify mla FP8 --layer 0 --against SRC --device cpu --json JSON",
    "forward": "verify forward FP8 --against SRC --count 4 --exact --json JSON",
    "epilogue": "verify epilogue INT8 --against SRC --device cpu --sample 2 --json JSON",
    "dequant": "verify dequant INT4 --against SRC --device cpu --sample 2 --json JSON",
    "diff": "diff SRC FP8 --json JSON",
    "diff-tolerance": "diff SRC FP8 --tolerance 0.1 --json JSON",
    "compare-schemes": "compare-schemes SRC --sample 4 --json JSON",
    "plan-schemes": "plan-schemes SRC --bits 9 --json JSON",
    "sensitivities": "sensitivities SRC --against FP8 --tokens TOKENS --device cpu -o SENSITIVITIES --json JSON",
    "calibrate": "calibrate SRC --tokens TOKENS --device cpu -o STATS --json JSON",
    "fold": "fold SRC -o OUT --importance MEANS --json JSON",
    "fold-plan": "fold SRC -o OUT --importance MEANS --dry-run --json JSON",
    "inspect": "inspect FP8 --json JSON",
    "inspect-loaders": "inspect FP8 --can-load all --json JSON",
    "inspect-tensor": "inspect FP8:lm_head.weight --json JSON",
    "batch": "batch JOBS --keep-going --json JSON",
    "batch-plan": "batch JOBS --dry-run --json JSON",
}


def make(tessera, source, folder):
    """Returns {name: (path of the JSON, exit code)} for all COMMANDS, and "report": the quantization_report.json.

    The text of each command is beside its JSON, with the suffix .txt."""
    folder.mkdir(exist_ok=True)
    made = {"FP8": folder / "fp8", "INT8": folder / "int8", "INT4": folder / "int4",
            "SHARDED": folder / "sharded", "LORA": folder / "lora", "TOKENS": folder / "tokens.txt", "STATS": folder / "stats.safetensors",
            "SENSITIVITIES": folder / "measured.json", "MEANS": folder / "means.json"}
    made["TOKENS"].write_text("1 2 3 4 5 6 7 8")
    importance_files.as_json(made["MEANS"], {n.removesuffix(".weight"): np.arange(1, w.shape[1] + 1, dtype=np.float32)
                                             for n, w in checkpoints.load(source).items() if n.endswith("gate_proj.weight")})
    adapters.for_base(made["LORA"], source)
    for name, options in (("FP8", []), ("INT8", ["--scheme", "int8-channel"]), ("INT4", ["--scheme", "int4-weight-only"])):
        harness.succeed(tessera, ["quantize", source, "-o", made[name], "--quiet", *options])
    made["JOBS"] = folder / "jobs.jsonl"
    jobs = {"fp8": f"quantize {source} -o {folder / 'batch.out'}", "bf16": f"convert {folder / 'batch.out'} -o {folder / 'again.out'} --to bf16",
            "diff": f"diff {source} {made['FP8']}", "loaders": f"inspect {made['FP8']} --json {folder / 'loaders.json'}"}
    made["JOBS"].write_text("".join(json.dumps({"name": name, "args": job.split()}) + "\n" for name, job in jobs.items()))
    results = {"report": (made["FP8"] / "quantization_report.json", 0)}
    for name, command in COMMANDS.items():
        path = folder / f"{name}.json"
        words = {"SRC": source, "JSON": path, "OUT": folder / f"{name}.out", **made}
        args = [words.get(w, w.replace("FP8:", f"{made['FP8']}:")) for w in command.split()]
        code, out, err = harness.run(tessera, args)
        assert code in (0, 1) and path.exists(), f"{command}: exit {code}: {err}"
        path.with_suffix(".txt").write_text(out)
        results[name] = path, code
    return results


def row(name, sqnr, block=0.027, **more):
    """Returns a tensor of quantization_report.json."""
    relative = 10 ** (-sqnr / 20)
    return {"name": name, "file": "model-00001-of-00163.safetensors", "shape": [7168, 2048], "elements": 14680064,
            "nonzero": 14680000, "saturated": 0, "flushed": 12, "blocks": 896, "zero_blocks": 0, "relative_error": relative,
            "sqnr_db": sqnr, "cosine": 1 - relative * relative / 2, "max_abs_error": 0.0023018959909677505,
            "worst_block_error": block, "amax": 0.06494140625, "scale_min": 0.00014386858674697578,
            "scale_median": 0.00014386858674697578, "scale_max": 0.00014495849609375, "max_abs_error_at": [9, 91],
            "worst_block_at": [0, 128], **more}


def quantization_report(rows, **more):
    """Returns a complete quantization_report.json with these tensors."""
    whole = {key: value for key, value in row("", 31.5).items() if key not in ("name", "file", "shape") and "_at" not in key}
    return {"schema": "tessera-quantization-report/1", "version": "0.1.0", "command": "quantize --scheme fp8-block", "tensors": rows,
            "whole": {"tensors_quantized": len(rows), "tensors_kept": 0, "bits_per_weight": 8.002, **whole},
            "lowest_sqnr": [], "worst_blocks": [], "kept": [], **more}


def deepseek(layers, experts, seed=0):
    """Returns tensors with the names of DeepSeek-V3, all with 31.5 dB."""
    chance = random.Random(seed)
    modules = [f"self_attn.{m}" for m in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")]
    modules += [f"mlp.experts.{e}.{m}" for e in range(experts) for m in ("gate_proj", "up_proj", "down_proj")]
    return [row(f"model.layers.{layer}.{module}.weight", chance.gauss(31.5, 0.05)) for layer in range(layers) for module in modules]


def write(path, document):
    """Writes a document with one line per tensor, as Tessera does. Returns the path."""
    path.write_text(json.dumps(document).replace('}, {"name"', '},\n    {"name"'))
    return path


def write_faulty(folder):
    """Writes a source, and an output for each fault: {"source", "transposed", "code", "missing": directory}; and {fault:
    tensor}."""
    rng = np.random.default_rng(8)
    names = [f"model.layers.{i}.mlp.experts.1.down_proj.weight" for i in range(4)]
    source = {name: rng.standard_normal((384, 640)).astype(BF16) for name in names}
    for w in source.values():
        w[:] = w * np.repeat(np.exp2(rng.uniform(-3, 3, 5)), 128)
    config = dict(copy.deepcopy(FP8_CONFIG), hidden_size=640)
    made = {"source": checkpoints.write(folder / "source", source, {"hidden_size": 640})}
    where = {}
    for fault, name in zip(("transposed", "code", "missing"), names):
        output = {}
        for each in names:
            output[each], output[each + "_scale_inv"] = map(np.array, fp8_oracle.quantize(source[each]))
        scale = output[name + "_scale_inv"]
        if fault == "transposed":
            scale[:] = scale.T.copy().reshape(scale.shape)
        elif fault == "code":
            output[name].view(np.uint8)[5, 7] ^= 0x10
        else:
            del output[name + "_scale_inv"]
        made[fault], where[fault] = checkpoints.write(folder / fault, output, config), name
    return made, where
