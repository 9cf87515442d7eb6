#!/usr/bin/env python3
"""Writes the seeds of fuzz_pairing into tests/fuzz/corpus/pairing: for each kind of codes a config.json on one line, and the
header of a checkpoint of one tiny weight on the next; of packed integers also the first data, which say their shape."""

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
    config, header = seed(SEEDS["mxfp4-ct"]).split(b"\n")
    nested = json.loads(config)
    nested["text_config"] = {"quantization_config": nested.pop("quantization_config")}
    (folder / "mxfp4-ct-text_config").write_bytes(json.dumps(nested).encode() + b"\n" + header)


if __name__ == "__main__":
    main()
