#!/usr/bin/env python3
"""MLA decoding beside FlashMLA's dense BF16 kernel for Hopper, in one process.

    python3 tests/peers/kernels/peers_mla.py DIR [--json FILE]

DIR is what peers_build.py has made of a folder that holds FlashMLA too (docs/peers.md). Both work on the same tensors: queries and
cache uniform in +-1, pages of 64 in shuffled order, lengths as the nine shapes of bench_mla.cu. "graph": CUDA graphs of 20 calls,
replayed in turn, the median; "call": events around one call after a rest of 5 ms, in turn, the median. Planning is timed apart. Each
lets its combination of parts be launched beside the end of its decoding. The results of both are held to FP64 in one sequence.

Exit codes: 0; 1 slower than the floors below, or wrong; 2 DIR is not complete, or was built from other sources; 77 no PyTorch or no GPU.
"""
import ctypes
import json
import math
import pathlib
import statistics
import sys
import time

from peers import Device, Error, arguments, call, current_stream, in_turn, mean_of, pointer, torch, unfit
from peers_libraries import MLA

# Required speed relative to FlashMLA, on every card of the kind: geometric mean of the shapes, and each.
FLOOR_MEAN, FLOOR_EACH = 1.0, 0.95
# Sequences, queries, heads, tokens, and whether lengths are uniform in 1 to twice that.
SHAPES = [(128, 1, 128, 4096, False), (128, 1, 128, 8192, False), (64, 1, 128, 16384, False), (1, 1, 128, 65536, False),
          (132, 1, 16, 8192, False), (128, 1, 64, 8192, False), (128, 2, 128, 4096, False), (128, 1, 128, 4096, True),
          (128, 1, 16, 4096, True)]
LATENT, ROPE, PAGE, PAGES = 512, 64, 64, 132 * 128
TURNS, CALLS, REST = 11, 21, 0.005
FAST = 2  # TSR_MLA_FAST


class Ours(ctypes.Structure):
    _fields_ = ([(name, ctypes.c_void_p) for name in ("q", "cache", "block_table", "seqlens", "out", "lse", "workspace")] +
                [(name, ctypes.c_int64) for name in ("batch", "s_q", "heads", "pages", "max_pages")] +
                [(name, ctypes.c_int32) for name in ("latent", "rope", "page")] +
                [("scale", ctypes.c_float), ("kind", ctypes.c_int)])


class Theirs(ctypes.Structure):
    """`decode` of peers_flashmla.cu."""
    _fields_ = ([(name, ctypes.c_void_p) for name in ("q", "cache", "out", "block_table", "seqlens", "lse", "plan", "splits", "lse_parts",
                                                      "out_parts")] +
                [(name, ctypes.c_int) for name in ("batch", "s_q", "heads", "pages", "max_pages", "processors")] +
                [("scale", ctypes.c_float)])


class Problem:
    """The operands of one shape."""

    def __init__(self, shape, cache):
        self.batch, self.s_q, self.heads, tokens, ragged = shape
        self.cache = cache
        self.q = (torch.rand(self.batch, self.s_q, self.heads, LATENT + ROPE, device="cuda") * 2 - 1).bfloat16()
        lengths = torch.randint(1, 2 * tokens, (self.batch,)) if ragged else torch.full((self.batch,), tokens)
        self.tokens = int(lengths.sum())
        self.seqlens = lengths.to(device="cuda", dtype=torch.int32)
        self.max_pages = tokens * (2 if ragged else 1) // PAGE
        order = torch.randperm(PAGES, device="cuda").to(torch.int32)
        self.table = order[:self.batch * self.max_pages].view(self.batch, self.max_pages).contiguous()
        self.scale = 1 / math.sqrt(LATENT + ROPE)
        self.kept = []

    def empty(self, *sizes, dtype):
        """Memory on the GPU that lives as long as this, poisoned."""
        made = torch.full(sizes, 0xFF, device="cuda", dtype=torch.uint8) if dtype == torch.uint8 else torch.full(
            sizes, -1 if dtype == torch.int32 else float("nan"), device="cuda", dtype=dtype)
        self.kept.append(made)
        return made

    def result(self):
        return self.empty(self.batch, self.s_q, self.heads, LATENT, dtype=torch.bfloat16)

    def error_of(self, out):
        """The relative error of the last query of the first sequence against FP64."""
        length = int(self.seqlens[0])
        rows = self.cache[self.table[0].long()].view(-1, LATENT + ROPE)[:length].double()
        weights = torch.softmax(self.q[0, -1].double() @ rows.t() * self.scale, -1)
        exact = weights @ rows[:, :LATENT]
        return float((out[0, -1].double() - exact).norm() / exact.norm())


def tessera(library, device, problem):
    """How Tessera plans and decodes, and where its result is."""
    out, lse = problem.result(), problem.empty(problem.batch, problem.s_q, problem.heads, dtype=torch.float32)
    args = Ours(pointer(problem.q), pointer(problem.cache), pointer(problem.table), pointer(problem.seqlens), pointer(out), pointer(lse),
                None, problem.batch, problem.s_q, problem.heads, PAGES, problem.max_pages, LATENT, ROPE, PAGE, problem.scale, FAST)
    library.tsr_cuda_mla_workspace.restype = ctypes.c_size_t
    bytes_needed = library.tsr_cuda_mla_workspace(ctypes.byref(args), ctypes.byref(device))
    workspace = problem.empty(bytes_needed + 256, dtype=torch.uint8)
    args.workspace = (workspace.data_ptr() + 255) // 256 * 256
    error, held = Error(), ctypes.byref(args)

    def decode():
        if library.tsr_cuda_mla_decode(held, current_stream(), ctypes.byref(error)) != 0:
            raise RuntimeError(error.message.decode())
    return lambda: call(library.tsr_cuda_mla_plan, held, current_stream()), decode, out


def flashmla(library, device, problem):
    """The same for FlashMLA."""
    out, rows = problem.result(), problem.s_q * problem.heads
    args = Theirs(pointer(problem.q), pointer(problem.cache), pointer(out), pointer(problem.table), pointer(problem.seqlens))
    args.batch, args.s_q, args.heads, args.scale = problem.batch, problem.s_q, problem.heads, problem.scale
    args.pages, args.max_pages, args.processors = PAGES, problem.max_pages, device.processors
    parts = library.flashmla_parts(ctypes.byref(args))
    args.lse = pointer(problem.empty(problem.batch, rows, dtype=torch.float32))
    args.plan = pointer(problem.empty(parts, 8, dtype=torch.int32))
    args.splits = pointer(problem.empty(problem.batch + 1, dtype=torch.int32))
    args.lse_parts = pointer(problem.empty(problem.batch + parts, rows, dtype=torch.float32))
    args.out_parts = pointer(problem.empty(problem.batch + parts, rows, LATENT, dtype=torch.float32))
    held = ctypes.byref(args)
    return lambda: library.flashmla_plan(held, current_stream()), lambda: library.flashmla_decode(held, current_stream()), out


def call_us(launch, rest=REST):
    time.sleep(rest)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    launch()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def calls_in_turn(launches, turns):
    """The median time in us of a call after a rest, by name."""
    times = {name: [] for name in launches}
    names = list(launches)
    for turn in range(turns):
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            times[name].append(call_us(launches[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def compare(shape, libraries, device, cache):
    """Times both on one shape. Returns what was measured, and whether both are right."""
    problem = Problem(shape, cache)
    made = {name: make(library, device, problem) for name, (make, library) in libraries.items()}
    fine, plans = True, {}
    for name, (plan, decode, out) in made.items():
        plan()
        plans[name] = call_us(plan)
        decode()
        torch.cuda.synchronize()
        error = problem.error_of(out)
        if not error <= 6e-3:
            print(f"   WRONG {shape} {name}: relative error {error:.2e}")
            fine = False
    launches = {name: decode for name, (_, decode, _) in made.items()}
    graph, single = in_turn(launches, TURNS), calls_in_turn(launches, CALLS)
    rows = problem.heads * problem.s_q
    flops = 2 * rows * problem.tokens * (2 * LATENT + ROPE)
    moved = 2 * (problem.tokens * (LATENT + ROPE) + problem.batch * rows * (2 * LATENT + ROPE))
    found = {"shape": shape, "graph": graph, "call": single, "plan": plans,
             "ratio": graph["flashmla"] / graph["tessera"], "call_ratio": single["flashmla"] / single["tessera"]}
    print("{:4} {} {:4} {:6}{} ".format(*shape[:4], "~" if shape[4] else " "),
          "  ".join(f"{name} graph {graph[name]:.1f} call {single[name]:.1f} plan {plans[name]:.0f}" for name in graph),
          f"  TFLOPS {flops / graph['tessera'] * 1e-6:.0f}  GB/s {moved / graph['tessera'] * 1e-3:.0f}"
          f"  ratio by graph {found['ratio']:.3f}, by call {found['call_ratio']:.3f}", flush=True)
    return found, fine


def main():
    args = arguments(__doc__).parse_args()
    code = unfit(MLA, args.dir)
    if code:
        return code
    torch.manual_seed(1)
    device = Device()
    libraries = {name: (make, ctypes.CDLL(str(args.dir / file)))
                 for name, make, file in zip(("tessera", "flashmla"), (tessera, flashmla), MLA.names)}
    call(libraries["tessera"][1].tsr_cuda_current_device, ctypes.byref(device))
    cache = (torch.rand(PAGES, PAGE, LATENT + ROPE, device="cuda") * 2 - 1).bfloat16()
    print("MLA decoding: sequences, queries, heads, tokens (~: uniform in 1 to twice as many); times in us")
    results = [compare(shape, libraries, device, cache) for shape in SHAPES]
    fine = all(sound for _, sound in results)
    for ratio, name in (("ratio", "graph"), ("call_ratio", "call")):
        ratios = [found[ratio] for found, _ in results]
        print(f"   by {name}, flashmla over tessera: mean {mean_of(ratios):.3f}  least {min(ratios):.3f}")
        if mean_of(ratios) < FLOOR_MEAN or min(ratios) < FLOOR_EACH:
            print(f"   below the floor: {FLOOR_MEAN} in the mean, {FLOOR_EACH} for each shape")
            fine = False
    if args.json:
        args.json.write_text(json.dumps([found for found, _ in results]))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
