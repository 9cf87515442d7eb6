"""Compares `inspect --can-load transformers` with from_pretrained, for a tiny model of each family that transformers has.

python check_families.py --tessera BINARY [--work DIR] [--only PATTERN] [--scheme fp8-block]

Classes and default configurations come from transformers' own mapping; sizes are made small. Each model is saved, quantized,
judged, and loaded again with its weights dequantized on the CPU. Each parameter is then compared with the original's.
Exit code 0: no wrong verdict. 1: a model loads wrong where the verdict is yes, or right where it is no. 77: no transformers."""

import argparse
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1")
warnings.simplefilter("ignore")

# Sizes of configurations, by the names of their members. Whole blocks of 128; heads of 128 columns.
SMALL = dict(
    hidden_size=256, d_model=256, n_embd=256, dim=256, embed_dim=256, width=256, embedding_size=256,
    intermediate_size=512, ffn_dim=512, d_ff=512, n_inner=512, encoder_ffn_dim=512, decoder_ffn_dim=512, mlp_dim=512,
    moe_intermediate_size=256, shared_expert_intermediate_size=256, intermediate_size_mlp=512, shared_intermediate_size=256,
    num_hidden_layers=2, num_layers=2, n_layer=2, n_layers=2, encoder_layers=2, decoder_layers=2, depth=2, num_decoder_layers=2,
    num_attention_heads=2, n_head=2, n_heads=2, num_heads=2, encoder_attention_heads=2, decoder_attention_heads=2,
    num_key_value_heads=2, head_dim=128, global_head_dim=128, d_kv=128, attention_head_dim=128,
    vocab_size=512, max_position_embeddings=128, n_positions=128, n_ctx=128, vocab_size_per_layer_input=512,
    num_experts=4, num_local_experts=4, n_routed_experts=4, moe_num_experts=4, num_experts_per_tok=2, moe_topk=2, moe_k=2,
    n_shared_experts=1, moe_num_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1,
    q_lora_rank=128, kv_lora_rank=128, qk_nope_head_dim=128, qk_rope_head_dim=128, v_head_dim=128,
    linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=128, linear_value_head_dim=128,
    image_size=56, patch_size=14, projection_dim=256, out_hidden_size=256, num_mel_bins=16, max_source_positions=32,
    hidden_size_per_layer_input=32, num_nextn_predict_layers=0, num_mtp_layers=0, index_n_heads=2, index_head_dim=128,
    mamba_n_heads=4, mamba_d_head=128, mamba_d_state=16, mamba_n_groups=1, ssm_state_size=16)
AT_MOST = ("num_nextn_predict_layers", "num_mtp_layers", "n_shared_experts", "moe_num_shared_experts", "num_experts_per_tok")
LISTS = ("layer_types", "mlp_layer_types", "layers_block_type", "block_types", "hybrid_layer_ids")
LIMITS = {"fp8-block": 0.04, "fp8-channel": 0.04, "int8-weight-only": 0.02, "nvfp4-weight-only": 0.13, "mxfp8": 0.04}
LARGEST = 200_000_000  # parameters; a default that did not shrink


def shorten(values):
    """Two entries of a list that has one for each layer, of two kinds where there are two."""
    kinds = list(dict.fromkeys(values))
    return [kinds[0], kinds[-1]] if isinstance(values[0], str) else values[:2]


def shrink(values):
    """The members of a configuration with small sizes, at each depth."""
    small = {}
    for key, value in values.items():
        if key in ("id2label", "label2id"):
            continue
        if isinstance(value, dict) and "rope" not in key:
            small[key] = shrink(value)
        elif key in SMALL and isinstance(value, int) and not isinstance(value, bool):
            small[key] = min(value, SMALL[key]) if key in AT_MOST else SMALL[key]
        elif isinstance(value, list) and len(value) > 2 and key in LISTS:
            small[key] = shorten(value)
        elif key.endswith("token_id") and isinstance(value, int):
            small[key] = min(value, 7)
        else:
            small[key] = value
    return small


def make(model_type, folder):
    """Saves a tiny model; returns its class and the parameters that the class loads from it."""
    import torch
    import transformers

    config_class = transformers.CONFIG_MAPPING[model_type]
    values = shrink(config_class().to_dict())
    for key in ("model_type", "transformers_version", "architectures", "dtype"):
        values.pop(key, None)
    config = config_class.from_dict(values)
    auto = next(auto for auto in (transformers.AutoModelForCausalLM, transformers.AutoModelForImageTextToText,
                                  transformers.AutoModelForSeq2SeqLM, transformers.AutoModelForMaskedLM, transformers.AutoModel)
                if type(config) in auto._model_mapping)
    with torch.device("meta"):
        size = sum(p.numel() for p in auto.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size} parameters")
    model = auto.from_config(config, dtype=torch.bfloat16).eval()
    torch.manual_seed(1)
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.05)
    model.save_pretrained(folder)
    saved = dict(model.named_parameters())
    wrong = differs(dict(type(model).from_pretrained(folder, dtype=torch.bfloat16).named_parameters()), saved, 0)
    if wrong:
        raise ValueError(f"the class does not read what it saved: {wrong}")
    return type(model), saved


def load(model_class, folder):
    import torch
    import transformers

    stated = json.loads((folder / "config.json").read_text())
    method = (stated.get("quantization_config") or stated.get("text_config", {}).get("quantization_config", {})).get("quant_method")
    how = {"fp8": lambda: transformers.FineGrainedFP8Config(dequantize=True),
           "compressed-tensors": lambda: transformers.CompressedTensorsConfig(run_compressed=False)}[method]()
    model = model_class.from_pretrained(folder, dtype=torch.bfloat16, quantization_config=how)
    return dict(model.named_parameters())


def differs(mine, right, limit):
    """The first parameter that is not what was saved, with its error; None where all are."""
    for name, x in right.items():
        if name not in mine or mine[name].shape != x.shape:
            return f"{name} is {'not there' if name not in mine else list(mine[name].shape)}"
        error = (mine[name].float() - x.float()).norm() / x.float().norm().clamp(min=1e-30)
        if not error <= limit:
            return f"{name}: relative error {float(error):.3g}"
    return None


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def judge(tessera, model_type, scheme, work):
    """(kind, what is to be said) of one family."""
    source, made = work / "source", work / "made"
    try:
        model_class, saved = make(model_type, source)
    except Exception as e:
        return "not made", f"{type(e).__name__}: {e}"
    done = run(tessera, "quantize", source, "-o", made, "--scheme", scheme, "--quiet")
    if done.returncode != 0:
        return "refused", done.stderr.strip().splitlines()[-1].removeprefix("tessera: ").replace(str(work), "")
    report = json.loads((made / "quantization_report.json").read_text())
    share = f"{len(report['tensors'])} tensors quantized"
    done = run(tessera, "inspect", made, "--can-load", "transformers", "--tp", "1", "--json", "-", "--quiet")
    got = json.loads(done.stdout)
    said = got["can_load"]["transformers"]["1"]
    reasons = [f"{f['tensor'] or 'config.json'}: {f['detail']}" for f in got["load_findings"] if f["severity"] == "error"]
    try:
        wrong = differs(load(model_class, made), saved, LIMITS[scheme])
    except Exception as e:
        wrong = f"{type(e).__name__}: {e}".splitlines()[0]
    kind = "agree" if said == (wrong is None) else "FALSE OK" if said else "FALSE NO"
    return kind, "; ".join([share, f"loads: {wrong or True}"[:300], f"said: {said if said else reasons[0]}"[:300]])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--work")
    parser.add_argument("--only", action="append")
    parser.add_argument("--scheme", choices=LIMITS, default="fp8-block")
    args = parser.parse_args()
    try:
        import transformers
    except ImportError:
        print("skipped: transformers is not installed here")
        return 77
    counts = Counter()
    print(f"== transformers {transformers.__version__}, {args.scheme}", flush=True)
    for model_type in sorted(transformers.CONFIG_MAPPING.keys()):
        if args.only and not any(fnmatch.fnmatch(model_type, pattern) for pattern in args.only):
            continue
        work = Path(tempfile.mkdtemp(prefix="family.", dir=args.work))
        try:
            kind, text = judge(args.tessera, model_type, args.scheme, work)
        finally:
            shutil.rmtree(work)
        counts[kind] += 1
        print(f"{kind:9} {model_type}: {text}", flush=True)
    print("-- " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))
    return 1 if counts["FALSE OK"] or counts["FALSE NO"] or not counts["agree"] else 0


sys.exit(main())
