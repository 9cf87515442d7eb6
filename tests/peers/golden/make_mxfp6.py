"""Makes the test vectors of MXFP6 with the packages that write it, and adds them to the manifest.

Usage: python3 make_mxfp6.py DIR, in an environment with torch, compressed-tensors 0.20.1 and amd-quark 0.13. The codes
cover all 64 of each element under the scales 0 (2^-127), 1, 127, 254 and others. Under the largest scale only codes
are stored whose values BF16 holds."""

import hashlib
import importlib.util
import json
import sys
import types
from pathlib import Path

import torch
from safetensors.torch import save_file

ROWS, COLS = 16, 128
SCALES = (0, 1, 2, 100, 127, 128, 200, 250, 252, 253, 254)


def quark_packer(element):
    """Returns Pack_fp6 of Quark, without the imports of its package, which need onnx."""
    root = Path(importlib.util.find_spec("quark").submodule_search_locations[0])
    package = types.ModuleType("quark.torch")
    package.__path__ = [str(root / "torch")]
    sys.modules.setdefault("quark.torch", package)
    from quark.torch.utils.pack import Pack_fp6
    return Pack_fp6("per_group", f"fp6_{element}", int(element[1]), int(element[3]))


def ct_packer():
    from compressed_tensors.compressors.mxfp6 import helpers

    class Packer:
        def pack(self, values, reorder):
            return helpers.pack_fp6_to_uint8(values)

        def unpack(self, packed, reorder):
            return helpers.unpack_fp6_from_uint8(packed, packed.shape[0], packed.shape[1] * 4 // 3, torch.float32)

    return Packer()


def largest_code(element, scale):
    """Returns the largest magnitude of a code whose product with 2^(scale - 127) is finite in BF16."""
    bias, mantissa = (1, 3) if element == "e2m3" else (3, 2)
    over = max(0, scale + (3 if element == "e2m3" else 7) - bias - 254)  # binades beyond 2^127
    return 31 - (over << mantissa)


def make(element, packer, names, generator):
    scales = torch.tensor(SCALES)[torch.randint(len(SCALES), (ROWS, COLS // 32), generator=generator)]
    scales[0], scales[1], scales[2], scales[3] = 0, 127, 254, 1
    codes = torch.randint(64, (ROWS, COLS), generator=generator)
    codes[:4] = torch.arange(COLS) % 64
    most = torch.tensor([[largest_code(element, int(s)) for s in row] for row in scales]).repeat_interleave(32, 1)
    codes = torch.where(codes % 32 > most, codes // 32 * 32 + codes % (most + 1), codes)
    word = codes.reshape(ROWS, -1, 4)
    word = word[..., 0] | word[..., 1] << 6 | word[..., 2] << 12 | word[..., 3] << 18
    packed = torch.stack([word, word >> 8, word >> 16], -1).bitwise_and(255).to(torch.uint8).reshape(ROWS, -1)
    values = packer.unpack(packed, False).to(torch.float32)
    assert torch.equal(packer.pack(values, False), packed), "the package packs its values in other bytes"
    exact = values.double() * torch.exp2(scales.double() - 127).repeat_interleave(32, 1)
    given = {names[0]: packed.contiguous(), names[1]: scales.to(torch.uint8)}
    return given, {"model.layers.0.mlp.down_proj.weight": exact.float().bfloat16()}


def record(folder, name, tensors):
    save_file(tensors, folder / name)
    data = (folder / name).read_bytes()
    return {"file": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def main():
    folder = Path(sys.argv[1])
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["cases"] = [case for case in manifest["cases"] if not case["kind"].startswith("mxfp6")]
    module = "model.layers.0.mlp.down_proj.weight"
    for kind, element, packer, producer, suffix in (
            ("mxfp6-ct", "e2m3", ct_packer(), "compressed-tensors 0.20.1", "_packed"),
            ("mxfp6-e2m3-quark", "e2m3", quark_packer("e2m3"), "amd-quark 0.13", ""),
            ("mxfp6-e3m2-quark", "e3m2", quark_packer("e3m2"), "amd-quark 0.13", "")):
        generator = torch.Generator().manual_seed(len(kind) + int(element[1]))
        given, made = make(element, packer, (module + suffix, module + "_scale"), generator)
        name = f"{kind.replace('-', '_')}_decode_{ROWS}x{COLS}"
        manifest["cases"].append({"name": name, "op": "decode", "kind": kind, "producer": producer,
                                  "input": record(folder, name + ".in.safetensors", given),
                                  "expected": record(folder, name + ".out.safetensors", made)})
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


main()
