#!/usr/bin/env python3
"""Tessera's GPU kernels over some hundred shapes of real models, beside their peers, in one process (docs/peers.md).

    python3 tests/peers/kernels/sweep.py DIR [--only FAMILY...] [--overlapped] [--former LIBRARY] [--tiles] [--json FILE]

DIR is what sweep_build.py has made. Peers are those whose library DIR has, and cuBLASLt, cuBLAS and cuDNN. All work on the same tensors,
and weights and caches take turns, so that they come from memory. CUDA graphs are replayed in an order that is drawn anew each time, and
the median counts. No launch overlaps another, or with --overlapped Tessera's and DeepGEMM's do; those of MLA decoding always may, since
FlashMLA's do. Some rows are compared with FP64. --former: another build of libtessera.so, also timed. --tiles: times every tile of the
dense and the int8 product, too.

Exit codes: 0; 1 a limit is missed, or a result is wrong; 2 DIR was built from other sources; 77 no PyTorch or no GPU.
"""
import argparse
import ctypes
import functools
import json
import pathlib
import random
import statistics
import sys

import sweep_build

try:
    import torch
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

import sweep_attention
import sweep_dense
import sweep_grouped
import sweep_int4
import sweep_int8
import sweep_sparse
from sweep_common import Pool, in_turn, mean_of
from sweep_shapes import DECODING, INDEX, PREFILL, SPARSE_DECODING, SPARSE_PREFILL

FAMILIES = ("dense", "grouped", "decode", "prefill", "int4", "int8", "sparse", "sparse_prefill", "index")
# Least allowed ratio of a peer's time to Tessera's: geometric mean, the worst tenth's bound, the worst shape.
LIMITS = {
    ("dense", "deepgemm"): (1.04, 0.94, 0.8),
    ("dense", "cublaslt"): (1.15, 0.98, 0.8),
    ("grouped", "deepgemm"): (0.95, 0.9, 0.8),
    ("decode", "flashmla"): (1.03, 0.97, 0.9),
    ("sparse", "flashmla"): (1.03, 0.97, 0.93),
    ("sparse_prefill", "flashmla"): (0.95, 0.92, 0.9),
    ("index", "deepgemm"): (1.5, 0.92, 0.85),
    ("prefill", "fa3"): (1.0, 0.9, 0.85),
    ("int4", "marlin"): (1.2, 1.0, 0.92),
    ("int8", "cutlass"): (1.05, 0.95, 0.85),
    ("int8", "cublaslt"): (1.25, 1.05, 0.8),
}
# No number of tokens may take longer than a larger one by more than this.
SLOWER = 1.03


def loaded(folder, former, overlap):
    def library(name):
        path = folder.resolve() / f"lib{name}.so"
        return ctypes.CDLL(str(path)) if path.exists() else None

    libraries = sweep_dense.Libraries(library("tessera"), ctypes.CDLL(str(former.resolve())) if former else None, library("deepgemm"))
    libraries.flashmla, libraries.fa3, libraries.marlin, libraries.int8 = map(library, ("flashmla", "fa3", "marlin", "int8"))
    libraries.set_overlap(overlap)
    return libraries


class Sweep:
    """The measurements: a row for each shape, and lines that describe faults."""

    def __init__(self, libraries, args):
        self.libraries, self.args = libraries, args
        self.rows, self.faults = [], []
        self.order = random.Random(3)

    def run(self, make, shapes):
        """Times the problems that `make` makes of the shapes, in a random order."""
        for shape in self.order.sample(shapes, len(shapes)):
            problem = make(shape)
            candidates = problem.candidates()
            self.faults += [f"{problem.family} {problem.label}: {line}" for line in problem.faults(candidates)]
            times = in_turn(candidates, problem.launches)
            row = {"family": problem.family, "shape": problem.shape, "tile": problem.tile(), "us": times,
                   "tflops": problem.operations / times["tessera"] * 1e-6}
            if self.args.tiles and problem.family in ("dense", "int8"):
                row["tiles"] = problem.times_of_tiles(self.tiles)
            self.rows.append(row)
            print(f"{problem.family:8} {problem.label:52} {row['tile']:16}", "  ".join(f"{name} {us:.1f}" for name, us in times.items()),
                  flush=True)

    def of(self, family):
        return [row for row in self.rows if row["family"] == family]

    def summary(self):
        """Prints a line for each kernel and peer. Returns the limits that were missed, as lines."""
        missed = []
        print("kernel    peer          shapes    mean  worst tenth  worst shape")
        for family in FAMILIES:
            for peer in sorted({name for row in self.of(family) for name in row["us"]} - {"tessera"}):
                ratios = {str(row["shape"]): row["us"][peer] / row["us"]["tessera"] for row in self.of(family) if peer in row["us"]}
                worst = min(ratios, key=ratios.get)
                tenth = statistics.quantiles(ratios.values(), n=10)[0] if len(ratios) > 1 else ratios[worst]
                found = mean_of(ratios.values()), tenth, ratios[worst]
                print(f"{family:9} {peer:13} {len(ratios):6} {found[0]:7.3f} {tenth:12.3f}  {ratios[worst]:.3f} at {worst}")
                limits = LIMITS.get((family, peer), (0, 0, 0))
                missed += [f"{family} beside {peer}: {what} {value:.3f} is below {limit}"
                           for what, value, limit in zip(("mean", "worst tenth", "worst shape"), found, limits) if value < limit]
        return missed

    def slower(self, family, make):
        """Returns the numbers of tokens that take longer than a larger one, measured again side by side, as lines."""
        found, by_matrix = [], {}
        for row in self.of(family):
            by_matrix.setdefault(tuple(row["shape"][1:]), {})[row["shape"][0]] = row["us"]["tessera"]
        for matrix, times in by_matrix.items():
            for m in times:
                larger = [other for other in times if other > m]
                best = min(larger, key=times.get, default=m)
                if times[m] <= SLOWER * times[best]:
                    continue
                few, many = make((m, *matrix)), make((best, *matrix))
                launches = min(few.launches, many.launches)
                again = in_turn({"few": few.candidates()["tessera"], "many": many.candidates()["tessera"]}, launches, 15)
                if again["few"] > SLOWER * again["many"]:
                    found.append(f"{family}: {m} tokens by {matrix} take {again['few']:.1f} us, {best} tokens {again['many']:.1f}")
        return found


def measure(sweep, wanted):
    """Runs the wanted families. Returns the lines about numbers of tokens that take longer than a larger one."""
    libraries, slower = sweep.libraries, []
    d = torch.empty(1 << 29, device="cuda", dtype=torch.bfloat16)
    if "int4" in wanted:
        make = functools.partial(sweep_int4.Product, libraries, sweep_int4.random_words(), d, functools.cache(sweep_int4.Matrix))
        sweep.run(make, sweep_int4.shapes())
        slower += sweep.slower("int4", make)
    if {"dense", "grouped"} & wanted:
        operands = libraries, Pool.of_codes(5 << 28), Pool.of_codes(5 << 26), d
        if "dense" in wanted:
            make = functools.partial(sweep_dense.Product, *operands)
            sweep.tiles = sweep_dense.tiles_of(make) if sweep.args.tiles else []
            sweep.run(make, sweep_dense.shapes())
            slower += sweep.slower("dense", make)
        if "grouped" in wanted:
            sweep.run(functools.partial(sweep_grouped.Product, *operands), sweep_build.experts())
    if "int8" in wanted:
        sums = torch.empty(1 << 29, device="cuda", dtype=torch.int32)
        make = functools.partial(sweep_int8.Product, libraries, sweep_int8.random_codes(5 << 28), sweep_int8.random_codes(5 << 26), d, sums)
        sweep.tiles = sweep_dense.tiles_of(make) if sweep.args.tiles else []
        sweep.run(make, sweep_dense.shapes())
        slower += sweep.slower("int8", make)
    if "prefill" in wanted:
        sweep.run(functools.partial(sweep_attention.Prefilling, libraries), PREFILL)
    if "index" in wanted:
        sweep.run(functools.partial(sweep_sparse.Index, libraries), INDEX)
    if "sparse_prefill" in wanted:
        sweep.run(functools.partial(sweep_sparse.Prefilling, libraries, sweep_sparse.Cache(sweep_sparse.PREFILL_ROWS)), SPARSE_PREFILL)
    libraries.set_overlap(1)  # the launches of FlashMLA's decoding always overlap
    if "decode" in wanted:
        sweep.run(functools.partial(sweep_attention.Decoding, libraries, sweep_attention.random_cache()), DECODING)
    if "sparse" in wanted:
        sweep.run(functools.partial(sweep_sparse.Decoding, libraries, sweep_sparse.CodedCache()), SPARSE_DECODING)
    return slower


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--overlapped", action="store_true")
    parser.add_argument("--former", type=pathlib.Path)
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    if not sweep_build.is_current(args.dir):
        print(f"sweep: {args.dir} was built from other sources: run python3 tests/peers/kernels/sweep_build.py {args.dir}", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return 77
    torch.manual_seed(1)
    sweep = Sweep(loaded(args.dir, args.former, int(args.overlapped)), args)
    slower = measure(sweep, set(args.only))
    missed = sweep.summary()
    for kind, lines in (("WRONG", sweep.faults), ("MISSED", missed), ("SLOWER", slower)):
        for line in lines:
            print(kind, line)
    if args.json:
        args.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "overlapped": args.overlapped, "rows": sweep.rows}))
    return 1 if sweep.faults or missed or slower else 0


if __name__ == "__main__":
    sys.exit(main())
