#!/usr/bin/env python3
"""Writes the seeds of fuzz_pairing into tests/fuzz/corpus/pairing: for each kind of codes a config.json on one line, and the
header of a checkpoint of one tiny weight on the next; of packed integers also the first data, which say their shape. And those
of fuzz_result into tests/fuzz/corpus/result: a small result of each kind."""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "common"))
import formats_2026 as f

X, ROWS, COLS = "layers.0.ffn.experts.0.w1", 16, 64
SMALL = {"rows": ROWS, "cols": COLS}
SEEDS = {
    "mxfp4-ct": f.mxfp4(X, **SMALL, config=f.compressed("mxfp4-pack-quantized", f.group(4, 32, "torch.uint8"))),
    "mxfp4-v4": f.mxfp4(X, **SMALL, names=(".weight", ".scale"), dtypes=("I8", "F8_E8M0"), config=f.V4),
    "mxfp4-modelopt": f.mxfp4(X, **SMALL, names=(".weight", ".weight_scale"), config=f.QUARK),
    "mxfp4-gptoss": f.mxfp4_gptoss("model.layers.0.mlp.experts.gate_up_proj", **SMALL),
    "nvfp4-ct": f.nvfp4(X, "ct", **SMALL),
    "nvfp4-modelopt": f.nvfp4(X, "modelopt", **SMALL),
    "mxfp8": f.mxfp8(X, **SMALL),
    "fp8-block-v4": f.fp8_block(X, **SMALL, block=(32, 32)),
    "fp8-block-modelopt": f.fp8_block(X, **SMALL, suffix=".weight_scale", dtype="F32", spread_out=True,
                                      config={"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}),
    "int4-ct": f.int_packed(X, **SMALL),
    "awq": f.awq(X, **SMALL),
    "gptq": f.gptq(X, **SMALL, order=True),
    "gptq-v2": f.gptq(X, **SMALL, version=2),
}


STATS = {"elements": 4, "saturated": 0, "relative_error": 0.03, "sqnr_db": 31.5, "worst_block_error": 0.03}
METRICS = {"elements": 4, "differ": 3, "misrounded": 1, "relative_error": 0.9, "sqnr_db": None, "max_abs_error": 0.5}
NAME = "model.layers.1.mlp.experts.2.up_proj.weight"
PAIR = {"name": NAME, "state": "differs", "a": {"dtype": "BF16", "shape": [2, 2]}, "b": {"dtype": "F8_E4M3", "shape": [2, 2]}, **METRICS,
        "max_abs_error_at": [1, 0], "seconds": 0.5, "worst_blocks": [{"matrix": 1, "rows": [0, 2], "columns": [0, 2], "relative_error": 0.9}]}
JUDGED = {"subject": NAME, "kind": "kernel", "what": "reference", "passed": False, "fault": "too far", **METRICS, "kernel_seconds": 1e-3,
          "of_bound": 2, "kl_mean_nats": 0.1}
ISSUE = {"severity": "error", "loader": "vllm", "tp": 2, "tensor": NAME, "more": 2, "rule": "blocks", "detail": "cut", "advice": "TP 1"}
RESULTS = {
    "quantization-report": {"command": "quantize", "tensors": [{"name": NAME, "shape": [2, 2], **STATS, "worst_block_at": [0, 0]}],
                            "whole": {"tensors_kept": 1, **STATS}, "kept": [{"name": "n", "reason": "norm"}],
                            "against": [{"name": NAME, **STATS}], "whole_against": STATS},
    "quantize": {"tensors": 3, "actions": {"copy": 1}, "plan": [{"name": NAME, "action": "copy", "reason": "norm"}], **STATS},
    "verify": {"checkpoint": "b", "passed": False, "limits": {"min_sqnr_db": 30}, "whole": METRICS, "judged": {"values": 1, "config": 0},
               "findings": [{"check": "values", "where": NAME, "what": "transposed"}], "tensors": [PAIR, {"name": "n", "state": "missing"}]},
    "verify-kernels": {"check": "gemm", "passed": False, "limits": {"max_kernel_error": 1}, "judgements": [JUDGED],
                       "skipped": [{"subject": "s", "why": "no kernel"}]},
    "verify-forward": {"passed": True, "judgements": [{**JUDGED, "what": "layer alone", "kind": "quantization", "passed": True, "fault": None}]},
    "diff": {"a": "a", "b": "b", "tolerance": 0.1, "whole": METRICS, "tensors": [{**PAIR, "beyond": True}]},
    "compare-schemes": {"schemes": [{"scheme": "mxfp8", "bytes": 9, **STATS, "options": "--scheme mxfp8"}], "suggested": {"any": "mxfp8"},
                        "tensors": [{"name": NAME, "bytes": 8, "schemes": [{"scheme": "mxfp8", "bytes": 9, **STATS}]}]},
    "plan-schemes": {"bytes": 9, "groups": [{"scheme": "mxfp8", "options": [{"scheme": "mxfp8", "bytes": 9, "error": 0.1}], "tensors": [NAME]}]},
    "inspect": {"path": "m", "dtypes": {"BF16": {"tensors": 1, "bytes": 8}}, "parts": {"norms": {"tensors": 1}}, "index": None,
                "unread": {"tensors": 0}, "quantization": {"method": "fp8", "scale_stats": {"zero": 1}}, "findings": [ISSUE],
                "can_load": {"vllm": {"1": True, "2": False}}, "load_findings": [ISSUE]},
    "batch": {"jobs_file": "j", "passed": False, "together": [{"jobs": ["a", "b"], "bytes_wanted": 8, "bytes_read": 4}],
              "jobs": [{"name": "a", "command": "quantize", "state": "done", "seconds": 1.5, "sqnr_db": 31.5, "result": {"x": [1]}},
                       {"name": "b", "command": "diff", "state": "failed", "message": "no"},
                       {"name": "c", "command": "inspect", "state": "not begun", "needs": "b"}]},
    "inspect-tensor": {"name": NAME, "dtype": "BF16", "shape": [2, 2], "elements": 4, "min": -1},
}
RESULTS["verify-all"] = {"passed": False, "kinds": {
    "weights": {"status": "failed", "exit_code": 1, "result": {"schema": "tessera-verify/1", "version": "1", **RESULTS["verify"]}},
    "gemm": {"status": "error", "result": {"schema": "tessera-verify-kernels/1", "version": "1", "error": {"code": 5, "message": "no GPU"}}},
    "mla": {"status": "not applicable", "reason": "no kv_lora_rank"}}}
# What a comparison with an earlier result looks at.
COMPARED = ('"passed":false', '"sqnr_db":31.5')


def seed(module):
    """The lines as bytes, weight_shape first: what pairing reads of the data."""
    header, offset = {}, 0
    ordered = sorted(module.tensors, key=lambda name: not name.endswith("weight_shape"))
    for name in ordered:
        dtype, shape, data = module.tensors[name]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    config = {"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 2, "quantization_config": module.config}
    lines = [json.dumps(x, separators=(",", ":")).encode() for x in (config, header)]
    return b"\n".join(lines + [module.tensors[name][2] for name in ordered if name.endswith("weight_shape")])


def main():
    folder = HERE / "corpus" / "pairing"
    folder.mkdir(exist_ok=True)
    for name, module in SEEDS.items():
        (folder / name).write_bytes(seed(module))
    results = HERE / "corpus" / "result"
    results.mkdir(exist_ok=True)
    for name, members in RESULTS.items():
        document = {"schema": f"tessera-{name}/1", "version": "1", **members}
        text = json.dumps(document, separators=(",", ":"))
        (results / name).write_text(text)
        if any(word in text for word in COMPARED):  # an earlier result behind it, which was better and had another tensor
            old = text.replace('"passed":false', '"passed":true').replace('"sqnr_db":31.5', '"sqnr_db":33.5').replace('"n"', '"m"')
            (results / f"{name}-compared").write_text(f"{text}\f{old}")
    config, header = seed(SEEDS["mxfp4-ct"]).split(b"\n")
    nested = json.loads(config)
    nested["text_config"] = {"quantization_config": nested.pop("quantization_config")}
    (folder / "mxfp4-ct-text_config").write_bytes(json.dumps(nested).encode() + b"\n" + header)


if __name__ == "__main__":
    main()
