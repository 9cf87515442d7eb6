#!/usr/bin/env python3
"""MLA prefill beside FlashAttention-3 and cuDNN, in one process: causal, BF16, one sequence of 128 heads, keys of 192 and values of 128.

    python3 tests/peers/kernels/peers_prefill.py DIR --build      compiles Tessera's kernel into DIR, on a machine with nvcc
    python3 tests/peers/kernels/peers_prefill.py DIR [--json FILE]

FlashAttention-3 is DIR/libfa3.so, which docs/peers.md describes; without it cuDNN, by PyTorch, is the only peer. All work on the same
values; the peers get keys that were put together beforehand, and Tessera its plan. CUDA graphs of about 20 ms are replayed in turn, in an
order that is drawn anew each time, and the median counts. The result of each is held to FP64 in some rows of some heads, poisoned before.

Exit codes: 0; 1 slower than the floors below, or wrong; 2 DIR is not complete, or was built from other sources; 77 no PyTorch or no GPU.
"""
import argparse
import ctypes
import json
import math
import pathlib
import subprocess
import sys

from peers_libraries import PREFILL, ROOT

if "--build" not in sys.argv:  # which needs no PyTorch
    from peers import Device, call, current_stream, in_turn, mean_of, pointer, torch, unfit
    from torch.nn.attention import SDPBackend, sdpa_kernel

# Required speed relative to FlashAttention-3, on every card of the kind: geometric mean of the lengths, and each.
FLOOR_MEAN, FLOOR_EACH = 1.0, 0.95
HEADS, NOPE, ROPE, VALUE = 128, 128, 64, 128
TOKENS = (1024, 2048, 4096, 8192, 16384)
TURNS, FAST = 11, 2  # TSR_MLA_FAST


def build(folder):
    """Tessera's prefill, and what it is launched with, as a library."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = PREFILL.digest()
    subprocess.run(["nvcc", "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-O2", "-Xcompiler", "-fPIC", f"-I{ROOT}", "-x", "cu",
                    *map(str, PREFILL.compiled()), "-shared", "-cudart", "shared", "-o",
                    str(folder / PREFILL.names[0]), "-ldl"], check=True)
    PREFILL.put_stamp(folder, digest)


class Prefill(ctypes.Structure):
    _fields_ = ([(name, ctypes.c_void_p) for name in ("q", "kv", "k_rope", "cu_seqlens_q", "cu_seqlens_k", "out", "out_f32", "lse", "workspace")] +
                [(name, ctypes.c_int64) for name in ("batch", "heads", "tokens_q", "tokens_k")] +
                [(name, ctypes.c_int32) for name in ("nope", "rope", "value")] + [("scale", ctypes.c_float), ("kind", ctypes.c_int)])


class Problem:
    """The operands of one length: uniform in +-1."""

    def __init__(self, tokens):
        def random(*shape):
            return (torch.rand(*shape, device="cuda") * 2 - 1).bfloat16()

        self.tokens, self.scale = tokens, 1 / math.sqrt(NOPE + ROPE)
        self.q, self.kv, self.k_rope = random(tokens, HEADS, NOPE + ROPE), random(tokens, HEADS, NOPE + VALUE), random(tokens, ROPE)
        self.k = torch.cat([self.kv[..., :NOPE], self.k_rope[:, None].expand(tokens, HEADS, ROPE)], -1).contiguous()
        self.v = self.kv[..., NOPE:].contiguous()
        self.kept = []

    def empty(self, *sizes, dtype=None):
        """Memory on the GPU that lives as long as this, poisoned where it is a float."""
        made = torch.empty(*sizes, device="cuda", dtype=dtype or torch.bfloat16)
        self.kept.append(made.fill_(float("nan")) if made.is_floating_point() else made.zero_())
        return made

    def error_of(self, out):
        """The largest relative error of some rows against FP64."""
        worst = 0.0
        for row in (0, 1, self.tokens // 3, self.tokens - 1):
            for head in (0, 5, HEADS - 1):
                scores = self.k[:row + 1, head].double() @ self.q[row, head].double() * self.scale
                exact = torch.softmax(scores, 0) @ self.v[:row + 1, head].double()
                error = float((out[row, head].double() - exact).norm() / exact.norm())
                worst = error if not error <= worst else worst  # NaN is the worst
        return worst


def tessera(library, device, problem):
    out, lse = problem.empty(problem.tokens, HEADS, VALUE), problem.empty(problem.tokens * HEADS, dtype=torch.float32)
    ends = torch.tensor([0, problem.tokens], device="cuda", dtype=torch.int32)
    args = Prefill(pointer(problem.q), pointer(problem.kv), pointer(problem.k_rope), pointer(ends), pointer(ends), pointer(out), None,
                   pointer(lse), None, 1, HEADS, problem.tokens, problem.tokens, NOPE, ROPE, VALUE, problem.scale, FAST)
    library.tsr_cuda_mla_prefill_workspace.restype = ctypes.c_size_t
    size = library.tsr_cuda_mla_prefill_workspace(ctypes.byref(args), ctypes.byref(device))
    workspace = problem.empty(size + 256, dtype=torch.uint8)
    args.workspace = (workspace.data_ptr() + 255) // 256 * 256
    problem.kept += [ends, args]
    call(library.tsr_cuda_mla_prefill_plan, ctypes.byref(args), current_stream())
    return lambda: call(library.tsr_cuda_mla_prefill, ctypes.byref(args), current_stream()), out


def flash_attention(library, device, problem):
    out, lse = problem.empty(problem.tokens, HEADS, VALUE), problem.empty(HEADS * problem.tokens, dtype=torch.float32)
    semaphore = problem.empty(16, dtype=torch.int32)
    return lambda: library.fa3_run(HEADS, problem.tokens, ctypes.c_float(problem.scale), pointer(problem.q), pointer(problem.k),
                                   pointer(problem.v), pointer(out), pointer(lse), pointer(semaphore), device.processors,
                                   current_stream()), out


def cudnn(problem):
    q, k, v = (x.transpose(0, 1)[None] for x in (problem.q, problem.k, problem.v))
    held = [None]

    def launch():
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            held[0] = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    launch()
    return launch, held


def compare(tokens, ours, theirs, device):
    """Times all on one length. Returns the times, and whether all are right."""
    problem = Problem(tokens)
    made = {"tessera": tessera(ours, device, problem)}
    if theirs is not None:
        made["fa3"] = flash_attention(theirs, device, problem)
    made["cudnn"] = cudnn(problem)
    fine = True
    for name, (launch, out) in made.items():
        launch()
        torch.cuda.synchronize()
        error = problem.error_of(out[0][0].transpose(0, 1) if isinstance(out, list) else out)
        if not error <= 8e-3:
            print(f"   WRONG {tokens} tokens, {name}: relative error {error:.2e}")
            fine = False
    operations = HEADS * tokens * tokens * (NOPE + ROPE + VALUE)  # a causal product counts half
    times = in_turn({name: launch for name, (launch, _) in made.items()}, TURNS, max(1, round(20e-3 * 500e12 / operations)))
    print(f"{tokens:6} ", "  ".join(f"{name} {us:.1f} us {operations / us * 1e-6:.0f} TFLOPS" for name, us in times.items()), "  over tessera: ",
          "  ".join(f"{name} {us / times['tessera']:.3f}" for name, us in times.items() if name != "tessera"), flush=True)
    return times, fine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    if args.build:
        build(args.dir)
        return 0
    code = unfit(PREFILL, args.dir)
    if code:
        return code
    device = Device()
    ours = ctypes.CDLL(str(args.dir / PREFILL.names[0]))
    theirs = ctypes.CDLL(str(args.dir / "libfa3.so")) if (args.dir / "libfa3.so").exists() else None
    call(ours.tsr_cuda_current_device, ctypes.byref(device))
    torch.manual_seed(1)
    print(f"MLA prefill, causal, {HEADS} heads, {NOPE + ROPE} and {VALUE} columns" + ("" if theirs else "; no libfa3.so"))
    results = {tokens: compare(tokens, ours, theirs, device) for tokens in TOKENS}
    fine = all(sound for _, sound in results.values())
    for name in ("fa3", "cudnn") if theirs else ("cudnn",):
        ratios = [times[name] / times["tessera"] for times, _ in results.values()]
        print(f"   {name} over tessera: mean {mean_of(ratios):.3f}  least {min(ratios):.3f}")
        if name == "fa3" and (mean_of(ratios) < FLOOR_MEAN or min(ratios) < FLOOR_EACH):
            print(f"   below the floor: {FLOOR_MEAN} in the mean, {FLOOR_EACH} for each length")
            fine = False
    if args.json:
        args.json.write_text(json.dumps({tokens: times for tokens, (times, _) in results.items()}))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
