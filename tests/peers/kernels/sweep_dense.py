"""The dense block-FP8 product in the sweep, beside cuBLASLt and DeepGEMM."""
import ctypes

import peers_choice
from sweep_common import (COPY_RATE, FP8_RATE, MOST_LAUNCHES, Config, Device, Gemm, Problem, Refused, blocks_in_double, call, in_turn,
                          launches_for, pointer, relative, some, stream, torch)
from sweep_shapes import MATRICES, TOKENS

WIDE, NARROW = 3, 4  # enum tsr_gemm_kind


def up(x, to):
    return -(-x // to) * to


class Libraries:
    """Has Tessera, another build of it or None, DeepGEMM or None, and a handle of cuBLASLt per launch of a graph."""

    def __init__(self, tessera, former, deepgemm):
        self.tessera, self.former, self.deepgemm = tessera, former, deepgemm
        self.choose = tessera.tsr_cuda_block_fp8_gemm_choose
        self.choose.restype = Config
        self.device = Device()
        call(tessera.tsr_cuda_current_device, ctypes.byref(self.device))
        self.handles = [ctypes.c_void_p() for _ in range(MOST_LAUNCHES)]
        for handle in self.handles:
            call(tessera.tsr_cublas_lt_open, ctypes.byref(handle))

    def set_overlap(self, overlap):
        """Enables or disables launches that begin before the previous one ends."""
        self.overlap = overlap
        for build in filter(None, (self.tessera, self.former)):
            ctypes.c_int.in_dll(build, "tsr_launches_overlap").value = overlap


class Product(Problem):
    """Is one product: alternating operands, the launch of each candidate, and FP64 results of some rows and columns."""
    family, tolerance = "dense", 3e-3

    def __init__(self, libraries, codes, tokens, d, shape):
        self.libraries, self.shape = libraries, shape
        self.m, self.n, self.k = m, n, k = shape
        self.label = f"{m} x {n} x {k}"
        self.operations, size = 2 * m * n * k, n * k + m * k + 2 * m * n
        self.launches = launches_for(max(size / COPY_RATE, self.operations / FP8_RATE), n * k + m * k)
        tiles, ld = -(-k // 128), up(m, 4)
        self.scale_a = torch.rand(tiles, ld, device="cuda") * 1.9e-3 + 1e-4
        self.scale_w = torch.rand(-(-n // 128), tiles, device="cuda") * 1.9e-3 + 1e-4
        self.result = d[:m * n].view(m, n)
        self.gemms = [Gemm(a, w, pointer(self.scale_a), pointer(self.scale_w), pointer(self.result), m, n, k, k, k, n, ld, 0, 0, Config())
                      for a, w in zip(tokens.parts(m * k, self.launches), codes.parts(n * k, self.launches))]
        self.rows, self.columns = some(m, 16), some(n, 1024)
        a = blocks_in_double(tokens.first(m, k)[self.rows], self.scale_a.t()[self.rows])
        w = blocks_in_double(codes.first(n, k)[self.columns], self.scale_w[self.columns // 128])
        self.exact = a @ w.t()

    def chosen(self):
        """Returns the tile that Tessera chooses."""
        return self.libraries.choose(ctypes.byref(self.gemms[0]), ctypes.byref(self.libraries.device))

    def launcher(self, library):
        return library.tsr_cuda_block_fp8_gemm

    def tile(self):
        return str(self.chosen())

    def ours(self, library, config=None):
        gemms = self.gemms
        if config is not None:
            gemms = [type(gemm).from_buffer_copy(gemm) for gemm in gemms]
            for gemm in gemms:
                gemm.config = config
        return lambda i: call(self.launcher(library), ctypes.byref(gemms[i]), stream())

    def deepgemm(self):
        tile = peers_choice.choose("Normal", self.m, self.n, self.k)
        entry = getattr(self.libraries.deepgemm, tile.name())

        def launch(i):
            g = self.gemms[i]
            code = entry(*map(ctypes.c_void_p, (g.a, g.scale_a, g.w, g.scale_w, g.d)), None, self.m, self.n, self.k, int(g.ld_scale_a), 1,
                         self.libraries.overlap, stream())
            if code != 0:
                raise RuntimeError(f"DeepGEMM: CUDA error {code}")
        return launch

    def cublas_lt(self):
        library, offers = self.libraries.tessera, ctypes.c_int()
        for handle, gemm in zip(self.libraries.handles, self.gemms):
            call(library.tsr_cublas_lt_prepare, handle, ctypes.byref(gemm), ctypes.byref(offers))
        return lambda i: call(library.tsr_cublas_lt_run, self.libraries.handles[i], 0, stream())

    def candidates(self):
        found = self.with_former(self.ours)
        if self.libraries.deepgemm and self.k % 128 == 0:
            found["deepgemm"] = self.deepgemm()
        try:
            found["cublaslt"] = self.cublas_lt()
        except Refused:
            pass  # it multiplies no odd sizes
        return found

    def judge(self):
        return relative(self.result[self.rows][:, self.columns], self.exact), bool(self.result.isfinite().all())

    def times_of_tiles(self, tiles, turns=5):
        """Returns the times of all tiles of a suitable size, by name."""
        found = {}
        for tile in tiles:
            ctas = -(-self.m // tile.tokens) * -(-self.n // tile.rows) * tile.cluster
            if tile.kind == WIDE:
                fits = self.m > 64 or self.n >= 16384
            else:
                fits = (self.m <= 4 * tile.tokens and
                        (tile.cluster == 1 and ctas <= 6 * 132 or 66 <= ctas <= 132) and tile.cluster <= self.k // 128)
            if fits:
                found[str(tile)] = in_turn({"": self.ours(self.libraries.tessera, tile)}, self.launches, turns)[""]
        return found


def tiles_of(make):
    """Returns every tile that the library has for the products of `make`, by trying all."""
    product, found = make((64, 256, 1024)), []
    for kind in (WIDE, NARROW):
        for size in (64, 128, 256):
            for rows in range(32, 257, 8):
                for cluster in range(1, 9 if kind != WIDE else 3):
                    config = Config(kind, size, rows, cluster)
                    try:
                        product.ours(product.libraries.tessera, config)(0)
                        found.append(config)
                    except Refused:
                        pass
    torch.cuda.synchronize()
    return found


def shapes():
    """Returns numbers of tokens with N and K of the weights."""
    return [(m, n, k) for n, k, _ in MATRICES for m in TOKENS]
