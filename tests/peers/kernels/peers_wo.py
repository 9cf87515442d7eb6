#!/usr/bin/env python3
"""The weight-only product beside its peers, in one process: Marlin's kernel (int4, groups of 128), and cuBLAS in fp16.

    python3 tests/peers/kernels/peers_wo.py DIR --build       compiles both, on a machine with nvcc; DIR holds Marlin's sources (docs/peers.md)
    python3 tests/peers/kernels/peers_wo.py DIR [--json FILE] [--tokens M...]

All multiply the same codes, scales and tokens, packed as each wants them, and are compared with FP64. Weights rotate through a pool of
1 GiB, so that no cache serves them. CUDA graphs of 20 launches are replayed in turn, in an order that is drawn anew each time, and the
median counts: first no launch overlaps another, then Tessera's may, which the peers' cannot.

Exit codes: 0; 1 slower than the floors below, or wrong; 2 DIR is not complete, or was built from other sources; 77 no PyTorch or no GPU.
"""
import argparse
import ctypes
import itertools
import json
import pathlib
import subprocess
import sys

from peers_libraries import ROOT, WEIGHT_ONLY

# Required speed relative to Marlin, without overlap: geometric mean over shapes and 1 to 128 tokens. On every card of the kind.
FLOOR_MEAN = 1.2
GROUP = 128
SHAPES = [(8192, 8192), (18432, 7168), (28672, 8192), (7168, 18432), (4096, 4096)]  # N, K
TOKENS = [1, 2, 4, 8, 16, 32, 64, 128, 256]
POOL = 1 << 30
# Marlin adds the parts of K in fp16, one CTA after the other; up to 0.01 was seen. It has to be the same product, no more.
MARLIN_ERROR = 0.05
FLAGS = ["-gencode=arch=compute_90a,code=sm_90a", "-Xcompiler", "-fPIC", "-std=c++17"]
# Marlin asks cp.async for a cache hint that is not allowed on Hopper; without it the copy is the same.
HINT = ('"   createpolicy.fractional.L2::evict_first.b64 p, 1.0;"', ".L2::cache_hint", ", p;\\n")
ENTRY = """
extern "C" int marlin_run(const void *a, const void *w, void *d, void *scales, int m, int n, int k, void *locks, int group, void *stream)
{
    return marlin_cuda(a, w, d, scales, m, n, k, locks, group, 0, (cudaStream_t)stream);
}
"""


def build(folder):
    objects = folder / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    text = (folder / "marlin" / "marlin" / "marlin_cuda_kernel.cu").read_text()
    begin = text.index("cp_async4_stream(void*")
    end = text.index("// Async copy fence")
    text = text[:begin] + text[begin:end].replace(HINT[0], "").replace(HINT[1], "").replace(HINT[2], ";\\n") + text[end:]
    (objects / "marlin.cu").write_text(text + ENTRY)

    def link(library, *args):
        subprocess.run(["nvcc", *FLAGS, "-shared", "-cudart", "shared", "-o", str(folder / library), *map(str, args)], check=True)
        subprocess.run(["strip", str(folder / library)], check=True)
        print(folder / library)

    digest, (marlin, apart, overlapped) = WEIGHT_ONLY.digest(), WEIGHT_ONLY.names
    link(marlin, "-O3", "--expt-relaxed-constexpr", objects / "marlin.cu")
    for library, flags in ((apart, ["-DTSR_LAUNCHES_APART"]), (overlapped, [])):
        link(library, "-O2", *flags, f"-I{ROOT}", "-x", "cu", *WEIGHT_ONLY.compiled(), "-ldl")
    WEIGHT_ONLY.put_stamp(folder, digest)


class WeightOnly(ctypes.Structure):
    _fields_ = ([(name, ctypes.c_void_p) for name in ("a", "w", "scales", "zeros", "d")] +
                [(name, ctypes.c_int64) for name in ("m", "n", "k", "lda", "ldd", "group")] +
                [("bits", ctypes.c_int), ("bf16", ctypes.c_bool), ("kind", ctypes.c_int)])


def as_words(torch, nibbles):
    """[..., 8] to [...] of int32, the first in the lowest bits."""
    words = torch.zeros(nibbles.shape[:-1], dtype=torch.int64, device=nibbles.device)
    for i in range(8):
        words |= nibbles[..., i].to(torch.int64) << 4 * i
    return words.to(torch.int32)  # keeps the low half


def for_tessera(torch, codes):
    """Layout T: lines of 64 rows of K of four columns; a word has eight rows, the even ones first."""
    k, n = codes.shape
    rows = torch.tensor([[32 * (w // 4) + 2 * (w % 4) + 8 * (s % 4) + s // 4 for s in range(8)] for w in range(8)], device=codes.device)
    lines = codes.view(k // 64, 64, n // 4, 4)[:, rows]  # [k / 64, 8 words, 8, n / 4, 4]
    return as_words(torch, lines.permute(3, 0, 4, 1, 2)).reshape(-1).contiguous()


def for_marlin(torch, codes, scales):
    """Tiles of 16 x 64 in the order of Marlin's fragments, and the scales of 64 columns in the same order."""
    k, n = codes.shape
    order = []
    for lane in range(32):
        rows = [2 * (lane % 4), 2 * (lane % 4) + 1, 2 * (lane % 4) + 8, 2 * (lane % 4) + 9]
        eight = [(row, lane // 4 + 8 * block) for block in range(2) for row in rows]
        for tile in range(4):
            order += [256 * tile + 16 * eight[i][0] + eight[i][1] for i in (0, 2, 4, 6, 1, 3, 5, 7)]
    tiles = codes.view(k // 16, 16, n // 16, 16).permute(0, 2, 1, 3).reshape(-1, 1024)[:, torch.tensor(order, device=codes.device)]
    columns = torch.tensor([i + 8 * j for i in range(8) for j in range(8)], device=codes.device)
    return as_words(torch, tiles.reshape(-1, 128, 8)).reshape(-1).contiguous(), scales.view(-1, 64)[:, columns].view_as(scales).contiguous()


class Problem:
    """One matrix of int4 in groups, in each one's order, at the beginning of a pool whose other weights are drawn."""

    def __init__(self, torch, shape, pool):
        self.torch, self.pool = torch, pool
        self.n, self.k = n, k = shape
        codes = torch.randint(0, 16, (k, n), device="cuda", dtype=torch.int32)
        self.scales = (torch.rand(k // GROUP, n, device="cuda") * 0.01 + 0.001).half()
        self.weights = (codes - 8).double().view(-1, GROUP, n) * self.scales.double()[:, None]
        self.weights = self.weights.view(k, n)
        self.words = for_tessera(torch, codes)
        self.marlin_words, self.marlin_scales = for_marlin(torch, codes, self.scales)
        self.small = (torch.rand(k // 32, n, device="cuda") * 0.01 + 0.001).half()
        self.zeros = (torch.rand(k // GROUP, n, device="cuda") * 0.01).half()
        self.locks = torch.zeros(n // 128 * 16, device="cuda", dtype=torch.int32)

    def tokens(self, m):
        self.a = self.torch.randn(m, self.k, device="cuda").half()
        self.d = self.torch.empty(m, self.n, device="cuda").half()
        self.exact = self.a.double() @ self.weights
        self.torch.cuda.synchronize()  # launches are on other streams

    def places(self, size):
        return itertools.cycle([self.pool.data_ptr() + i * size for i in range(max(1, POOL // size))])

    def error_of(self, launch):
        self.d.fill_(float("nan"))
        launch()
        self.torch.cuda.synchronize()
        return float((self.d.double() - self.exact).norm() / self.exact.norm())


def candidates(torch, peers, libraries, problem, m):
    """name: (launch over the rotating pool, launch over the problem's own weights or None)"""
    n, k = problem.n, problem.k
    size = n * k // 2
    found = {}

    def tessera(mode, group, scales, zeros):
        def launch_at(place):
            g = WeightOnly(peers.pointer(problem.a), place, peers.pointer(scales), None if zeros is None else peers.pointer(zeros),
                           peers.pointer(problem.d), m, n, k, k, n, group, 4, False, 0)
            peers.call(libraries[mode].tsr_cuda_weight_only_gemm, ctypes.byref(g), peers.current_stream())
        places = problem.places(size)
        return lambda: launch_at(next(places)), lambda: launch_at(problem.words.data_ptr())

    def marlin(words, scales):
        places = problem.places(size) if words is None else itertools.cycle([words.data_ptr()])

        def launch():
            code = libraries["marlin"].marlin_run(peers.pointer(problem.a), ctypes.c_void_p(next(places)), peers.pointer(problem.d),
                                                  peers.pointer(scales), m, n, k, peers.pointer(problem.locks), GROUP,
                                                  peers.current_stream())
            if code != 0:
                raise RuntimeError(f"marlin: {code}")
        return launch

    found["tessera"] = tessera("apart", GROUP, problem.scales, None)
    found["overlapped"] = tessera("overlapped", GROUP, problem.scales, None)
    found["marlin"] = (marlin(None, problem.marlin_scales), marlin(problem.marlin_words, problem.marlin_scales))
    wide = problem.pool.view(torch.float16)
    wides = itertools.cycle([wide[i * n * k:(i + 1) * n * k].view(n, k) for i in range(max(1, POOL // (2 * n * k)))])
    found["cublas fp16"] = (lambda: torch.mm(problem.a, next(wides).t(), out=problem.d), None)
    found["groups of 32"] = (tessera("apart", 32, problem.small, None)[0], None)
    found["zeros"] = (tessera("apart", GROUP, problem.scales, problem.zeros)[0], None)
    return found


def run(args, libraries, torch, peers):
    torch.manual_seed(1)
    pool = torch.randint(-2 ** 31, 2 ** 31 - 1, (POOL // 4,), device="cuda", dtype=torch.int32)
    rows, fine = [], True
    for shape in SHAPES:
        problem = Problem(torch, shape, pool)
        for m in args.tokens:
            problem.tokens(m)
            found = candidates(torch, peers, libraries, problem, m)
            for name, (_, own) in found.items():
                error = problem.error_of(own) if own else 0
                if not error <= (2e-3 if name != "marlin" else MARLIN_ERROR):
                    print(f"   WRONG {shape} m {m} {name}: relative error {error:.2e}")
                    fine = False
            times = peers.in_turn({name: launch for name, (launch, _) in found.items()}, 11)
            rows.append((m, shape, times))
            print(f"N {shape[0]:5} K {shape[1]:5} M {m:3}  ", "  ".join(f"{name} {us:.1f}" for name, us in times.items()),
                  f"  marlin over tessera {times['marlin'] / times['tessera']:.2f}", flush=True)
    for name in ("marlin", "cublas fp16"):
        for mode in ("tessera", "overlapped"):
            means = {m: peers.mean_of(t[name] / t[mode] for tokens, _, t in rows if tokens == m) for m in args.tokens}
            few = [t[name] / t[mode] for m, _, t in rows if m <= 128]
            mean = peers.mean_of(few) if few else float("nan")
            print(f"   {name} over {mode}: 1 to 128 tokens {mean:.3f}, least {min(few, default=float('nan')):.3f};",
                  "  ".join(f"m {m} {x:.2f}" for m, x in means.items()))
            if name == "marlin" and mode == "tessera" and mean < FLOOR_MEAN:
                print(f"   below the floor: {FLOOR_MEAN} in the mean")
                fine = False
    if args.json:
        args.json.write_text(json.dumps(rows))
    return 0 if fine else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    args = parser.parse_args()
    if args.build:
        build(args.dir)
        return 0
    import peers  # exits with 77 where there is no PyTorch
    code = peers.unfit(WEIGHT_ONLY, args.dir)
    if code:
        return code
    import torch
    libraries = {name: ctypes.CDLL(str(args.dir / file)) for name, file in zip(("marlin", "apart", "overlapped"), WEIGHT_ONLY.names)}
    return run(args, libraries, torch, peers)


if __name__ == "__main__":
    sys.exit(main())
