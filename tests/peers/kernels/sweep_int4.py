"""The weight-only product in int4 with groups of 128 in the sweep, beside Marlin and cuBLAS in fp16."""
import ctypes

from sweep_common import COPY_RATE, BF16_RATE, Pool, Problem, call, launches_for, pointer, relative, some, stream, torch
from sweep_shapes import INT4_MATRICES, INT4_TOKENS

GROUP = 128


class WeightOnly(ctypes.Structure):
    """Is tsr_weight_only_gemm."""
    _fields_ = ([(name, ctypes.c_void_p) for name in ("a", "w", "scales", "zeros", "d")] +
                [(name, ctypes.c_int64) for name in ("m", "n", "k", "lda", "ldd", "group")] +
                [("bits", ctypes.c_int), ("bf16", ctypes.c_bool), ("kind", ctypes.c_int)])


def as_words(nibbles):
    """Packs [..., 8] to [...] of int32, the first in the lowest bits."""
    words = torch.zeros(nibbles.shape[:-1], dtype=torch.int32, device=nibbles.device)
    for i in range(8):
        words |= nibbles[..., i].to(torch.int32) << 4 * i
    return words


def for_tessera(codes):
    """Packs as layout T: lines of 64 rows of K of four columns. A word has eight rows, the even ones first."""
    k, n = codes.shape
    rows = torch.tensor([[32 * (w // 4) + 2 * (w % 4) + 8 * (s % 4) + s // 4 for s in range(8)] for w in range(8)], device=codes.device)
    lines = codes.view(k // 64, 64, n // 4, 4)[:, rows]  # [k / 64, 8 words, 8, n / 4, 4]
    return as_words(lines.permute(3, 0, 4, 1, 2)).reshape(-1)


def for_marlin(codes):
    """Packs as tiles of 16 x 64 in the order of Marlin's fragments."""
    k, n = codes.shape
    order = []
    for lane in range(32):
        rows = [2 * (lane % 4), 2 * (lane % 4) + 1, 2 * (lane % 4) + 8, 2 * (lane % 4) + 9]
        eight = [(row, lane // 4 + 8 * block) for block in range(2) for row in rows]
        for tile in range(4):
            order += [256 * tile + 16 * eight[i][0] + eight[i][1] for i in (0, 2, 4, 6, 1, 3, 5, 7)]
    tiles = codes.view(k // 16, 16, n // 16, 16).permute(0, 2, 1, 3).reshape(-1, 1024)[:, torch.tensor(order, device=codes.device)]
    return as_words(tiles.reshape(-1, 128, 8)).reshape(-1)


class Matrix:
    """Is one matrix, packed for each kernel, and some of its columns in FP64."""

    def __init__(self, n, k):
        self.columns = some(n, 512)
        codes = torch.randint(0, 16, (k, n), device="cuda", dtype=torch.uint8)
        self.scales = (torch.rand(k // GROUP, n, device="cuda") * 0.01 + 0.001).half()
        by = self.scales[:, self.columns].double().repeat_interleave(GROUP, 0)
        self.exact = (codes[:, self.columns].double() - 8) * by
        self.words, self.marlin_words = for_tessera(codes), for_marlin(codes)
        columns = torch.tensor([i + 8 * j for i in range(8) for j in range(8)], device="cuda")
        self.marlin_scales = self.scales.view(-1, 64)[:, columns].view_as(self.scales).contiguous()
        self.locks = torch.zeros(n // 128 * 16, device="cuda", dtype=torch.int32)


class Product(Problem):
    """Is one product. Launch 0 has the matrix itself, and the others have random words in turn."""
    family, tolerance, uncompared = "int4", 2e-3, ("cublas fp16",)

    def __init__(self, libraries, words, d, matrix_of, shape):
        self.libraries, self.shape = libraries, shape
        self.m, self.n, self.k = m, n, k = shape
        self.label = f"{m} x {n} x {k}"
        self.operations, self.words = 2 * m * n * k, words
        self.launches = launches_for(max(n * k / 2 / COPY_RATE, self.operations / BF16_RATE), n * k // 2)
        self.matrix = matrix_of(n, k)
        self.a = torch.randn(m, k, device="cuda").half()
        self.result = d.view(torch.float16)[:m * n].view(m, n)
        self.rows = some(m, 16)
        self.exact = self.a[self.rows].double() @ self.matrix.exact

    def places(self, own):
        return [own.data_ptr()] + self.words.parts(self.n * self.k // 8, self.launches - 1)

    def ours(self, library):
        problems = [WeightOnly(pointer(self.a), place, pointer(self.matrix.scales), None, pointer(self.result), self.m, self.n, self.k,
                               self.k, self.n, GROUP, 4, False, 0) for place in self.places(self.matrix.words)]
        return lambda i: call(library.tsr_cuda_weight_only_gemm, ctypes.byref(problems[i]), stream())

    def marlin(self):
        places = self.places(self.matrix.marlin_words)

        def launch(i):
            code = self.libraries.marlin.marlin_run(pointer(self.a), ctypes.c_void_p(places[i]), pointer(self.result),
                                                    pointer(self.matrix.marlin_scales), self.m, self.n, self.k, pointer(self.matrix.locks),
                                                    GROUP, stream())
            if code != 0:
                raise RuntimeError(f"Marlin: {code}")
        return launch

    def cublas(self):
        """Returns a launch of cuBLAS with random weights in fp16, whose result is not compared."""
        halves = self.words.values.view(torch.float16)
        count = max(1, halves.numel() // (self.n * self.k))
        wide = [halves[i * self.n * self.k:(i + 1) * self.n * self.k].view(self.n, self.k) for i in range(count)]
        return lambda i: torch.mm(self.a, wide[i % count].t(), out=self.result)

    def candidates(self):
        found = self.with_former(self.ours)
        if self.libraries.marlin:
            found["marlin"] = self.marlin()
        found["cublas fp16"] = self.cublas()
        return found

    def tolerance_of(self, name):
        """Returns a tolerance. Marlin adds the parts of K in fp16; errors up to 0.01 occurred."""
        return 0.05 if name == "marlin" else self.tolerance

    def judge(self):
        return relative(self.result[self.rows][:, self.matrix.columns], self.exact), bool(self.result.isfinite().all())


def shapes():
    """Returns numbers of tokens with N and K of the weights."""
    return [(m, n, k) for n, k in INT4_MATRICES for m in INT4_TOKENS]


def random_words():
    return Pool(torch.randint(-2 ** 31, 2 ** 31 - 1, (1 << 28,), device="cuda", dtype=torch.int32))
