#!/usr/bin/env python3
"""The dense block-FP8 product beside its peers, in one process: DeepGEMM's kernels of 2025-05 and of 2026-06, and cuBLASLt.

    python3 tests/peers/kernels/peers.py DIR [--former LIBRARY...] [--tuned DIR] [--energy] [--json FILE]

DIR is what peers_build.py has made (docs/peers.md). All work on the same tensors; the results of all are compared with FP64; CUDA
graphs of 20 launches are replayed in turn, in an order that is drawn anew each time, and the median counts. First no launch overlaps
another, then all may that can (cuBLASLt cannot). --former: libraries of other builds of Tessera's kernel, whose bits have to be the same. --tuned: a
folder of SGLang's or vLLM's configurations for Triton (bench_triton.py), which then takes part.

Exit codes: 0; 1 slower than the floors below, or wrong; 2 DIR is not complete, or was built from other sources; 77 no PyTorch or no GPU.
"""
import argparse
import ctypes
import json
import math
import pathlib
import random
import statistics
import sys
import threading

from peers_libraries import BLOCK_FP8
from peers_shapes import SHAPES, name_of

try:
    import torch
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

# Required speed relative to the newest DeepGEMM: geometric mean, and each shape. On every card of the kind.
FLOOR_MEAN, FLOOR_EACH = 1.0, 0.8
LAUNCHES = 20
SUSTAINED = [(4096, 4096, 7168), (4096, 24576, 1536), (8192, 8192, 8192)]


class Error(ctypes.Structure):
    _fields_ = [("message", ctypes.c_char * 4096)]


class Config(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("kind", "tokens", "rows", "cluster")]

    def __str__(self):
        return f"{('auto', 'plain', 'tokens', 'wide', 'narrow')[self.kind]} {self.tokens}x{self.rows}/{self.cluster}"


class Gemm(ctypes.Structure):
    _fields_ = ([(name, ctypes.c_void_p) for name in ("a", "w", "scale_a", "scale_w", "d")] +
                [(name, ctypes.c_int64) for name in ("m", "n", "k", "lda", "ldw", "ldd", "ld_scale_a", "group_m")] +
                [("out", ctypes.c_int), ("config", Config)])


class Device(ctypes.Structure):
    _fields_ = [("ordinal", ctypes.c_int), ("arch", ctypes.c_int), ("processors", ctypes.c_int), ("name", ctypes.c_char * 256)]


def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


def current_stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def call(function, *args):
    """A function of Tessera's that returns a status and describes an error."""
    error = Error()
    if function(*args, ctypes.byref(error)) != 0:
        raise RuntimeError(error.message.decode())


def quantized_weights(n, k):
    """Normally distributed weights [n, k] with a scale for each block."""
    tiles, blocks = k // 128, -(-n // 128)
    w = torch.zeros(blocks * 128, k, device="cuda")
    w[:n] = torch.randn(n, k, device="cuda")
    w = w.view(blocks, 128, tiles, 128)
    scales = w.abs().amax((1, 3)) / 448
    return (w / scales[:, None, :, None]).to(torch.float8_e4m3fn).view(-1, k)[:n].contiguous(), scales


class Problem:
    """Normally distributed operands, quantized as DeepSeek-V3 does it, and what the exact product of their values is in some rows."""

    def __init__(self, shape):
        self.m, self.n, self.k = m, n, k = shape
        tiles = k // 128
        a = torch.randn(m, tiles, 128, device="cuda")
        self.scale_a = (a.abs().amax(2) / 448).t().contiguous()
        self.a = (a / self.scale_a.t()[..., None]).to(torch.float8_e4m3fn).view(m, k)
        self.w, self.scale_w = quantized_weights(n, k)
        self.d = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        self.rows = torch.randperm(m, device="cuda")[:16]
        exact_a = self.a[self.rows].double().view(-1, tiles, 128) * self.scale_a.t()[self.rows].double()[..., None]
        self.exact = torch.empty(len(self.rows), n, device="cuda", dtype=torch.float64)
        for begin in range(0, n, 4096):
            part = slice(begin, min(n, begin + 4096))
            by = self.scale_w.double().repeat_interleave(128, 0)[part]
            values = (self.w[part].double().view(-1, tiles, 128) * by[..., None]).view(-1, k)
            self.exact[:, part] = exact_a.view(-1, k) @ values.t()

    def gemm(self):
        return Gemm(pointer(self.a), pointer(self.w), pointer(self.scale_a), pointer(self.scale_w), pointer(self.d), self.m, self.n,
                    self.k, self.k, self.k, self.n, self.m, 0, 0, Config())

    def error_of(self, launch):
        """The relative error of what `launch` computes, and all its results. What it leaves out is NaN."""
        self.d.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        return float((self.d[self.rows].double() - self.exact).norm() / self.exact.norm()), self.d.clone()


def graph_of(launch, launches=LAUNCHES):
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        launch()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(launches):
                launch()
    return graph


def replay_us(graph, launches=LAUNCHES):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / launches


def in_turn(candidates, turns, launches=LAUNCHES):
    """The median time in us of a launch of each, by name."""
    graphs = {name: graph_of(launch, launches) for name, launch in candidates.items()}
    times = {name: [] for name in graphs}
    names, order = list(graphs), random.Random(1)
    for _ in range(turns):
        order.shuffle(names)  # behind one that draws little power any other runs faster
        for name in names:
            graphs[name].replay()  # brings caches and the clock to where this one leaves them
            times[name].append(replay_us(graphs[name], launches))
    return {name: statistics.median(values) for name, values in times.items()}


class Peers:
    """The libraries, and how a product is launched with each."""

    def __init__(self, folder, former, tuned=None):
        self.tuned = tuned
        self.ours = {"apart": ctypes.CDLL(str(folder / "libtessera_apart.so")),
                     "overlapped": ctypes.CDLL(str(folder / "libtessera_overlapped.so"))}
        self.former = {pathlib.Path(path).stem: ctypes.CDLL(path) for path in former}
        self.deepgemm = {version: ctypes.CDLL(str(folder / f"libdeepgemm_{version}.so")) for version in ("old", "new")}
        self.choose = self.ours["apart"].tsr_cuda_block_fp8_gemm_choose
        self.choose.restype = Config
        self.device = Device()
        call(self.ours["apart"].tsr_cuda_current_device, ctypes.byref(self.device))
        self.cublas_lt = ctypes.c_void_p()
        call(self.ours["apart"].tsr_cublas_lt_open, ctypes.byref(self.cublas_lt))

    def tile(self, problem):
        return str(self.choose(ctypes.byref(problem.gemm()), ctypes.byref(self.device)))

    def candidates(self, problem, mode):
        gemm = problem.gemm()

        def tessera(library):
            return lambda: call(library.tsr_cuda_block_fp8_gemm, ctypes.byref(gemm), current_stream())

        def deepgemm(version):
            entry = getattr(self.deepgemm[version], name_of(version, (problem.m, problem.n, problem.k)))

            def launch():
                code = entry(pointer(problem.a), pointer(problem.scale_a), pointer(problem.w), pointer(problem.scale_w),
                             pointer(problem.d), None, ctypes.c_int(problem.m), ctypes.c_int(mode == "overlapped"), current_stream())
                if code != 0:
                    raise RuntimeError(f"CUDA error {code}")
            return launch

        found = {"tessera": tessera(self.ours[mode])}
        if mode == "apart":
            found.update({name: tessera(library) for name, library in self.former.items()})
        found.update({f"deepgemm {version}": deepgemm(version) for version in self.deepgemm})
        offers = ctypes.c_int()
        library = self.ours["apart"]
        call(library.tsr_cublas_lt_prepare, self.cublas_lt, ctypes.byref(gemm), ctypes.byref(offers))
        found["cublaslt"] = lambda: call(library.tsr_cublas_lt_run, self.cublas_lt, 0, current_stream())
        if self.tuned and mode == "apart":
            import bench_triton
            config = bench_triton.tuned(self.tuned, problem.m, problem.n, problem.k)
            found["triton"] = lambda: bench_triton.launch(problem.a, problem.w, problem.scale_a, problem.scale_w, problem.d, config)
        return found


def check(problem, candidates, former):
    """Returns the fault of the candidates' results, as lines, or None."""
    wrong, results = [], {}
    for name, launch in candidates.items():
        error, results[name] = problem.error_of(launch)
        if not error <= 3e-3:
            wrong.append(f"{name}: relative error {error:.2e}")
    wrong += [f"{name}: other bits than tessera's" for name in former if not torch.equal(results[name], results["tessera"])]
    return wrong


def mean_of(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def summary(mode, rows):
    """Prints the means over the shapes; false below the floors, of which only newest DeepGEMM has one."""
    fine = True
    for name in rows[0][1]:
        if name == "tessera":
            continue
        ratios = {shape: times[name] / times["tessera"] for shape, times in rows}
        least = min(ratios, key=ratios.get)
        by_m = "  ".join(f"m {m} {mean_of([r for s, r in ratios.items() if s[0] == m]):.3f}" for m in sorted({s[0] for s in ratios}))
        mean = mean_of(ratios.values())
        print(f"   {mode}, {name} over tessera: mean {mean:.3f}  least {ratios[least]:.3f} at {'x'.join(map(str, least))}  {by_m}")
        if name == "deepgemm new" and (mean < FLOOR_MEAN or ratios[least] < FLOOR_EACH):
            print(f"   below the floor: {FLOOR_MEAN} in the mean, {FLOOR_EACH} for each shape")
            fine = False
    return fine


def energy(peers):
    """Half a second and more of each at its own pace: clock, power, operations a cycle and multiprocessor, energy of an operation."""
    import pynvml
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    for shape in SUSTAINED:
        problem = Problem(shape)
        operations = 2 * math.prod(shape)
        for name, launch in peers.candidates(problem, "apart").items():
            graph, seen, done = graph_of(launch), [], threading.Event()

            def watch():
                while not done.wait(0.02):
                    seen.append((pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM), pynvml.nvmlDeviceGetPowerUsage(device) / 1e3))

            replays = max(8, int(0.8 / (replay_us(graph) * LAUNCHES * 1e-6)))
            watcher = threading.Thread(target=watch)
            watcher.start()
            times = [replay_us(graph) for _ in range(replays)]
            done.set()
            watcher.join()
            us = statistics.median(times[replays // 2:])
            clock, power = (statistics.fmean(values) for values in zip(*seen[len(seen) // 2:]))
            print(f"   {'x'.join(map(str, shape)):16} {name:14} {us:7.1f} us  {operations / us * 1e-6:5.0f} TFLOPS  {clock:5.0f} MHz  "
                  f"{power:4.0f} W  {operations / us / peers.device.processors / clock:5.0f} operations a cycle  "
                  f"{power * us * 1e6 / operations:.3f} pJ each", flush=True)


def arguments(description, former=False):
    """A parser of the options that these programs share; `former`: also libraries of former versions."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    if former:
        parser.add_argument("--former", nargs="*", default=[])
    return parser


def unfit(libraries, folder):
    """0, or why nothing can be compared: the exit code."""
    code = libraries.unfit(folder)
    if code == 0 and not torch.cuda.is_available():
        print("skipped: no GPU")
        return 77
    return code


def main():
    parser = arguments(__doc__, former=True)
    parser.add_argument("--energy", action="store_true")
    parser.add_argument("--tuned", type=pathlib.Path)
    args = parser.parse_args()
    code = unfit(BLOCK_FP8, args.dir)
    if code:
        return code
    torch.manual_seed(1)
    peers = Peers(args.dir, args.former, args.tuned)
    rows, fine = {"apart": [], "overlapped": []}, True
    for shape in SHAPES:
        problem = Problem(shape)
        for mode in rows:
            candidates = peers.candidates(problem, mode)
            for line in check(problem, candidates, peers.former if mode == "apart" else ()):
                print(f"   WRONG {shape} {mode} {line}")
                fine = False
            times = in_turn(candidates, 9 if shape[0] > 128 else 15)
            rows[mode].append((shape, times))
            print(f"{'x'.join(map(str, shape)):16} {peers.tile(problem):20} {mode:10} ",
                  "  ".join(f"{name} {us:.2f}" for name, us in times.items()),
                  f"  TFLOPS {2 * math.prod(shape) / times['tessera'] * 1e-6:.0f}  ratio {times['deepgemm new'] / times['tessera']:.3f}",
                  flush=True)
    for mode in rows:
        fine &= summary(mode, rows[mode])
    if args.energy:
        energy(peers)
    if args.json:
        args.json.write_text(json.dumps({mode: [(shape, times) for shape, times in found] for mode, found in rows.items()}))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
