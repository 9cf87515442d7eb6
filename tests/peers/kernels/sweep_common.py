"""Common code of the sweep: Tessera's C structures, memory whose parts take turns, the timing of graphs, and comparison with FP64."""
import ctypes
import math
import random
import statistics

import torch

COLD = 200 << 20  # bytes that a graph reads before it reads the same ones again: several times L2
GRAPH_US, TURNS, MOST_LAUNCHES = 700.0, 7, 32
COPY_RATE, FP8_RATE, BF16_RATE = 4.1e6, 1300e6, 650e6  # bytes or operations a us, to estimate how many launches make a graph


class Error(ctypes.Structure):
    _fields_ = [("message", ctypes.c_char * 4096)]


class Config(ctypes.Structure):
    """Is tsr_gemm_config."""
    _fields_ = [(name, ctypes.c_int) for name in ("kind", "tokens", "rows", "cluster")]

    def __str__(self):
        return f"{('auto', 'plain', 'few', 'wide', 'narrow', 'mma')[self.kind]} {self.tokens}x{self.rows}/{self.cluster}"


class Gemm(ctypes.Structure):
    """Is tsr_block_fp8_gemm."""
    _fields_ = ([(name, ctypes.c_void_p) for name in ("a", "w", "scale_a", "scale_w", "d")] +
                [(name, ctypes.c_int64) for name in ("m", "n", "k", "lda", "ldw", "ldd", "ld_scale_a", "group_m")] +
                [("out", ctypes.c_int), ("config", Config)])


class Device(ctypes.Structure):
    """Is tsr_cuda_device."""
    _fields_ = [("ordinal", ctypes.c_int), ("arch", ctypes.c_int), ("processors", ctypes.c_int), ("name", ctypes.c_char * 256)]


class Refused(Exception):
    pass


def call(function, *args):
    """Calls a function of Tessera that returns a status. Raises Refused with its error."""
    error = Error()
    if function(*args, ctypes.byref(error)) != 0:
        raise Refused(error.message.decode())


def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


def stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


class Pool:
    """Is memory on the GPU with random values. Parts of it alternate as the operand of a launch."""

    def __init__(self, values):
        self.values = values

    @staticmethod
    def of_codes(size):
        """Makes normally distributed e4m3 codes."""
        codes = torch.empty(size, device="cuda", dtype=torch.float8_e4m3fn)
        for part in codes.split(1 << 26):
            part.copy_((torch.randn(part.numel(), device="cuda") * 100).clamp(-448, 448))
        return Pool(codes)

    def parts(self, size, launches):
        """Returns the addresses for the launches; `size` is a number of values."""
        assert size <= self.values.numel(), "the pool is too small"
        count = min(launches, self.values.numel() // size)
        begin, step = self.values.data_ptr(), size * self.values.element_size()
        return [begin + i % count * step for i in range(launches)]

    def first(self, *shape):
        return self.values[:math.prod(shape)].view(shape)


def launches_for(us, size):
    """Returns the number of launches in a graph for this estimated time and number of bytes to read."""
    return max(2, min(MOST_LAUNCHES, max(round(GRAPH_US / us), -(-COLD // size))))


def graph_of(launch, launches):
    """Returns a graph of the launches. Not by torch.cuda.graph, which collects garbage each time."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        launch(0)
        side.synchronize()
        graph.capture_begin()
        for i in range(launches):
            launch(i)
        graph.capture_end()
    return graph


def replay_us(graph, launches):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / launches


def in_turn(candidates, launches, turns=TURNS):
    """Returns the median time in us of a launch of each candidate, by name. The order is random in each turn."""
    graphs = {name: graph_of(launch, launches) for name, launch in candidates.items()}
    times, names, order = {name: [] for name in graphs}, list(graphs), random.Random(1)
    for _ in range(turns):
        order.shuffle(names)
        for name in names:
            graphs[name].replay()  # brings the clock to where this one leaves it
            times[name].append(replay_us(graphs[name], launches))
    return {name: statistics.median(values) for name, values in times.items()}


def some(count, most):
    """Returns up to `most` indices below `count`: the first ones, the last ones, and others at random."""
    if count <= most:
        return torch.arange(count, device="cuda")
    ends = max(1, most // 4)
    inner = ends + torch.randperm(count - 2 * ends, device="cuda")[:most - 2 * ends]
    return torch.cat([torch.arange(ends, device="cuda"), inner.sort().values, torch.arange(count - ends, count, device="cuda")])


def blocks_in_double(codes, scales):
    """Returns [rows, k] of e4m3 codes times their scales [rows, tiles of 128 columns] in FP64."""
    return codes.double() * scales.double().repeat_interleave(128, 1)[:, :codes.shape[1]]


def relative(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


class Problem:
    """Is one shape. Subclasses have: family, label, launches of a graph, tolerance, `result`, judge() and candidates(), by
    name."""
    libraries = None
    uncompared = ()  # names of candidates whose results are elsewhere, or of another type

    def tile(self):
        """Returns the tile that Tessera chooses, in words; "": it has one."""
        return ""

    def judge(self):
        """Returns the relative error of some elements of `result` against FP64, and whether all of it was written."""
        raise NotImplementedError

    def tolerance_of(self, name):
        return self.tolerance

    def faults(self, candidates):
        """Returns the faults of the results as lines. An element that is not written is NaN."""
        found = []
        for name, launch in candidates.items():
            if name in self.uncompared:
                continue
            self.result.fill_(math.nan)
            launch(0)
            torch.cuda.synchronize()
            error, written = self.judge()
            if not error <= self.tolerance_of(name) or not written:
                found.append(f"{name}: relative error {error:.2e}, all written: {written}")
        return found

    def with_former(self, launch_of):
        """Returns the launches of Tessera and, if another build of it was given, of that one, by name."""
        builds = {"tessera": self.libraries.tessera, "former": self.libraries.former}
        return {name: launch_of(library) for name, library in builds.items() if library}


def mean_of(values):
    return math.exp(statistics.fmean(map(math.log, values)))
