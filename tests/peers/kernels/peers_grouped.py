#!/usr/bin/env python3
"""Block-FP8 products of experts in one launch beside newest DeepGEMM's, in one process.

    python3 tests/peers/kernels/peers_grouped.py DIR [--former LIBRARY...] [--json FILE]

DIR is what peers_build.py has made (docs/peers.md). As peers.py does it: the same tensors, results compared with FP64, CUDA graphs
replayed in turn, medians; first no launch overlaps another, then all may. Copies of the weights take turns, so that they come from
memory and not from L2. --former: libraries of other builds of Tessera's kernels, whose bits have to be the same.

Exit codes: 0; 1 slower than the floors below, or wrong; 2 DIR is not complete, or was built from other sources; 77 no PyTorch or no GPU.
"""
import ctypes
import itertools
import json
import math
import pathlib
import sys

from peers import (Config, Gemm, arguments, call, current_stream, in_turn, mean_of, pointer, quantized_weights, torch, unfit)
from peers_libraries import BLOCK_FP8
from peers_shapes import GROUPED, name_of

# Required speed relative to DeepGEMM: geometric mean, and each shape. On every card of the kind.
FLOOR_MEAN, FLOOR_EACH = 0.95, 0.8
ROOM = 4096              # rows that a masked group has room for
FAR_FROM_L2 = 300 << 20  # bytes of weights that no cache holds until their turn comes again
KINDS = {"contiguous": "contiguous", "few": "masked, up to 50 rows", "many": "masked, 192 and 1024 rows"}


class Grouped(ctypes.Structure):
    _fields_ = [("gemm", Gemm), ("groups", ctypes.c_int64), ("group_of_row", ctypes.c_void_p), ("rows_of_group", ctypes.c_void_p),
                ("expected_rows", ctypes.c_int64)]


def kind_of(shape):
    return KINDS["contiguous" if shape[0] == "contiguous" else "few" if shape[2] <= 50 else "many"]


class Problem:
    """Normally distributed operands, quantized as DeepSeek-V3 does it, and what the exact product of their values is in some rows."""

    def __init__(self, shape):
        layout, self.groups, expected, self.n, self.k = shape
        self.masked, self.expected = layout == "masked", expected
        tiles = self.k // 128
        share = torch.rand(self.groups)
        self.rows = [1 + int(u * (2 * expected - 1)) if expected < 20 else int(expected * (0.7 + 0.6 * u)) for u in share.tolist()]
        rooms = [ROOM if self.masked else -(-rows // 128) * 128 for rows in self.rows]
        self.m = sum(rooms)
        group_of_row = torch.full((self.m,), -1, dtype=torch.int32)
        begins = [sum(rooms[:g]) for g in range(self.groups)]
        for g, (begin, rows) in enumerate(zip(begins, self.rows)):
            group_of_row[begin:begin + rows] = g
        self.index = torch.tensor(self.rows, dtype=torch.int32).cuda() if self.masked else group_of_row.cuda()
        self.a = torch.zeros(self.m, self.k, device="cuda", dtype=torch.float8_e4m3fn)
        self.scale_a = torch.ones(tiles, self.m, device="cuda")
        self.w = torch.empty(self.groups * self.n, self.k, device="cuda", dtype=torch.float8_e4m3fn)
        self.scale_w = torch.empty(self.groups, self.n // 128, tiles, device="cuda")
        picked, exact = [], []
        for g, (begin, rows) in enumerate(zip(begins, self.rows)):
            own = slice(begin, begin + rows)
            a = torch.randn(rows, tiles, 128, device="cuda")
            scale = (a.abs().amax(2) / 448).t()
            self.scale_a[:, own] = scale
            self.a[own] = (a / scale.t()[..., None]).to(torch.float8_e4m3fn).view(rows, self.k)
            self.w[g * self.n:(g + 1) * self.n], self.scale_w[g] = quantized_weights(self.n, self.k)
            if g < 4:  # four rows each, the last one among them
                some = torch.tensor(sorted({*torch.randint(rows, (3,)).tolist(), rows - 1})).cuda() + begin
                values = self.a[some].double().view(-1, tiles, 128) * self.scale_a.t()[some].double()[..., None]
                by = self.scale_w[g].double().repeat_interleave(128, 0)
                w = self.w[g * self.n:(g + 1) * self.n].double().view(-1, tiles, 128) * by[..., None]
                picked.append(some)
                exact.append(values.view(-1, self.k) @ w.view(-1, self.k).t())
        self.picked, self.exact = torch.cat(picked), torch.cat(exact)
        copies = FAR_FROM_L2 // self.w.numel() + 1
        self.copies = [self.w] + [self.w.clone() for _ in range(copies - 1)]
        # DeepGEMM has the scales of a masked group's rows together.
        self.scale_by_group = self.scale_a.view(tiles, self.groups, ROOM).transpose(0, 1).contiguous() if self.masked else self.scale_a
        self.d = torch.empty(self.m, self.n, device="cuda", dtype=torch.bfloat16)

    def grouped(self):
        gemm = Gemm(pointer(self.a), pointer(self.w), pointer(self.scale_a), pointer(self.scale_w), pointer(self.d), self.m, self.n,
                    self.k, self.k, self.k, self.n, self.m, 0, 0, Config())
        index = (None, pointer(self.index)) if self.masked else (pointer(self.index), None)
        return Grouped(gemm, self.groups, *index, self.expected if self.masked else 0)

    def error_of(self, launch):
        """The relative error of what `launch` computes, and what it leaves in all rows. What it leaves out is NaN."""
        self.d.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        return float((self.d[self.picked].double() - self.exact).norm() / self.exact.norm()), self.d.view(torch.int16).clone()


def candidates_of(problem, shape, mode, ours, former, deepgemm):
    grouped = problem.grouped()

    def tessera(library):
        copies = itertools.cycle(problem.copies)

        def launch():
            grouped.gemm.w = pointer(next(copies))
            call(library.tsr_cuda_block_fp8_grouped, ctypes.byref(grouped), current_stream())
        return launch

    entry = getattr(deepgemm, name_of("grouped", shape))
    copies = itertools.cycle(problem.copies)

    def peer():
        code = entry(pointer(problem.a), pointer(problem.scale_by_group), pointer(next(copies)), pointer(problem.scale_w),
                     pointer(problem.d), pointer(problem.index), ctypes.c_int(ROOM if problem.masked else problem.m),
                     ctypes.c_int(mode == "overlapped"), current_stream())
        if code != 0:
            raise RuntimeError(f"CUDA error {code}")

    found = {"tessera": tessera(ours[mode])}
    if mode == "apart":
        found.update({name: tessera(library) for name, library in former.items()})
    found["deepgemm"] = peer
    return found


def check(problem, candidates, former):
    """Returns the fault of the candidates' results, as lines, or None."""
    wrong, results = [], {}
    for name, launch in candidates.items():
        error, found = problem.error_of(launch)
        if not error <= 3e-3:
            wrong.append(f"{name}: relative error {error:.2e}")
        if name == "tessera" or name in former:
            results[name] = found
    wrong += [f"{name}: other bits than tessera's" for name in former if not torch.equal(results[name], results["tessera"])]
    return wrong


def summary(mode, rows):
    """Prints the means over the shapes; false below the floors."""
    ratios = {shape: times["deepgemm"] / times["tessera"] for shape, times in rows}
    for kind in KINDS.values():
        print(f"   {mode}, {kind}: deepgemm over tessera {mean_of([r for s, r in ratios.items() if kind_of(s) == kind]):.3f}")
    mean, least = mean_of(ratios.values()), min(ratios, key=ratios.get)
    print(f"   {mode}, all: deepgemm over tessera {mean:.3f}  least {ratios[least]:.3f} at {least}")
    if mean < FLOOR_MEAN or ratios[least] < FLOOR_EACH:
        print(f"   below the floor: {FLOOR_MEAN} in the mean, {FLOOR_EACH} for each shape")
        return False
    return True


def main():
    args = arguments(__doc__, former=True).parse_args()
    code = unfit(BLOCK_FP8, args.dir)
    if code:
        return code
    torch.manual_seed(2)
    ours = {mode: ctypes.CDLL(str(args.dir / f"libtessera_{mode}.so")) for mode in ("apart", "overlapped")}
    former = {pathlib.Path(path).stem: ctypes.CDLL(path) for path in args.former}
    deepgemm = ctypes.CDLL(str(args.dir / "libdeepgemm_grouped.so"))
    rows, fine = {"apart": [], "overlapped": []}, True
    for shape in GROUPED:
        problem = Problem(shape)
        operations = 2 * sum(problem.rows) * problem.n * problem.k
        for mode in rows:
            candidates = candidates_of(problem, shape, mode, ours, former, deepgemm)
            for line in check(problem, candidates, former if mode == "apart" else ()):
                print(f"   WRONG {shape} {mode} {line}")
                fine = False
            times = in_turn(candidates, 7, max(3, min(20, int(8e12 / operations))))
            rows[mode].append((shape, times))
            print(f"{'{:10} {:2} x {:4} {} {}'.format(*shape)} {mode:10} ", "  ".join(f"{name} {us:.1f}" for name, us in times.items()),
                  f"  TFLOPS {operations / times['tessera'] * 1e-6:.0f}  ratio {times['deepgemm'] / times['tessera']:.3f}", flush=True)
        del problem, candidates
    for mode in rows:
        fine &= summary(mode, rows[mode])
    if args.json:
        args.json.write_text(json.dumps(rows))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
