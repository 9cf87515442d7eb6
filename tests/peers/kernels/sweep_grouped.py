"""The products of experts in the sweep, beside DeepGEMM."""
import ctypes

from sweep_build import tile_of_experts
from sweep_common import (COPY_RATE, FP8_RATE, Config, Gemm, Problem, blocks_in_double, call, launches_for, pointer, relative, some, stream,
                          torch)

ROOM = 1024  # rows that a masked group has room for


class Grouped(ctypes.Structure):
    """Is tsr_block_fp8_grouped."""
    _fields_ = [("gemm", Gemm), ("groups", ctypes.c_int64), ("group_of_row", ctypes.c_void_p), ("rows_of_group", ctypes.c_void_p),
                ("expected_rows", ctypes.c_int64)]


class Product(Problem):
    """Is one product of several groups."""
    family, tolerance = "grouped", 3e-3

    def __init__(self, libraries, codes, tokens, d, shape):
        self.libraries, self.shape = libraries, shape
        self.layout, self.groups, self.expected, self.n, self.k = shape
        self.label = "{} {} x {}, {} x {}".format(*shape)
        self.masked, tiles = self.layout == "masked", -(-self.k // 128)
        share = torch.rand(self.groups).tolist()
        self.rows = [1 + int(u * (2 * self.expected - 1)) if self.expected < 20 else int(self.expected * (0.7 + 0.6 * u)) for u in share]
        rooms = [ROOM if self.masked else -(-rows // 128) * 128 for rows in self.rows]
        self.begins = [sum(rooms[:g]) for g in range(self.groups)]
        self.m = m = sum(rooms)
        group_of_row = torch.full((m,), -1, dtype=torch.int32)
        for g, (begin, rows) in enumerate(zip(self.begins, self.rows)):
            group_of_row[begin:begin + rows] = g
        self.valid = (group_of_row >= 0).cuda()
        self.index = torch.tensor(self.rows, dtype=torch.int32).cuda() if self.masked else group_of_row.cuda()
        self.scale_a = torch.rand(tiles, m, device="cuda") * 1.9e-3 + 1e-4
        self.scale_w = torch.rand(self.groups, -(-self.n // 128), tiles, device="cuda") * 1.9e-3 + 1e-4
        # DeepGEMM has the scales of a masked group's rows together.
        self.by_group = self.scale_a.view(tiles, self.groups, ROOM).transpose(0, 1).contiguous() if self.masked else self.scale_a
        self.operations = 2 * sum(self.rows) * self.n * self.k
        weights = self.groups * self.n * self.k
        us = max((weights + 2 * sum(self.rows) * self.n) / COPY_RATE, self.operations / FP8_RATE)
        self.launches = launches_for(us, weights)
        self.result = d[:m * self.n].view(m, self.n)
        index = (None, pointer(self.index)) if self.masked else (pointer(self.index), None)
        self.problems = [
            Grouped(Gemm(a, w, pointer(self.scale_a), pointer(self.scale_w), pointer(self.result), m, self.n, self.k, self.k, self.k, self.n, m,
                         0, 0, Config()), self.groups, *index, self.expected if self.masked else 0)
            for a, w in zip(tokens.parts(m * self.k, self.launches), codes.parts(weights, self.launches))]
        self.compute(tokens.first(m, self.k), codes.first(self.groups, self.n, self.k))

    def compute(self, a, w):
        """Computes some columns of up to three rows of every group in FP64."""
        self.columns = some(self.n, 256)
        rows = [begin + some(count, 3) for begin, count in zip(self.begins, self.rows)]
        self.judged = torch.cat(rows)
        self.exact = torch.cat([
            blocks_in_double(a[own], self.scale_a.t()[own]) @ blocks_in_double(w[g][self.columns], self.scale_w[g][self.columns // 128]).t()
            for g, own in enumerate(rows)])

    def tile(self):
        choose = self.libraries.tessera.tsr_cuda_block_fp8_grouped_choose
        choose.restype = Config
        return str(choose(ctypes.byref(self.problems[0]), ctypes.byref(self.libraries.device)))

    def ours(self, library):
        return lambda i: call(library.tsr_cuda_block_fp8_grouped, ctypes.byref(self.problems[i]), stream())

    def deepgemm(self):
        entry = getattr(self.libraries.deepgemm, tile_of_experts(*self.shape).name())
        rows = ROOM if self.masked else self.m

        def launch(i):
            g = self.problems[i].gemm
            code = entry(ctypes.c_void_p(g.a), pointer(self.by_group), ctypes.c_void_p(g.w), ctypes.c_void_p(g.scale_w),
                         ctypes.c_void_p(g.d), pointer(self.index), rows, self.n, self.k, rows, self.groups, self.libraries.overlap, stream())
            if code != 0:
                raise RuntimeError(f"DeepGEMM: CUDA error {code}")
        return launch

    def candidates(self):
        found = self.with_former(self.ours)
        if self.libraries.deepgemm:
            found["deepgemm"] = self.deepgemm()
        return found

    def judge(self):
        return relative(self.result[self.judged][:, self.columns], self.exact), bool(self.result[self.valid].isfinite().all())
