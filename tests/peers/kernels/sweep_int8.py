"""The int8 product with a scale for each token and each channel in the sweep, beside CUTLASS and cuBLASLt."""
import ctypes

import sweep_dense
from sweep_common import COPY_RATE, FP8_RATE, Config, Pool, launches_for, pointer, some, stream, torch


class Gemm(ctypes.Structure):
    """Is tsr_int8_gemm."""
    _fields_ = ([(name, ctypes.c_void_p) for name in ("a", "w", "scale_a", "scale_w")] +
                [(name, ctypes.c_bool) for name in ("one_scale_a", "one_scale_w")] +
                [(name, ctypes.c_void_p) for name in ("azp_with_adj", "azp", "azp_adj", "bias", "d")] +
                [(name, ctypes.c_int64) for name in ("m", "n", "k", "lda", "ldw", "ldd")] + [("out", ctypes.c_int), ("config", Config)])


def random_codes(size):
    """Returns normally distributed int8 codes."""
    codes = torch.empty(size, device="cuda", dtype=torch.int8)
    for part in codes.split(1 << 26):
        part.copy_((torch.randn(part.numel(), device="cuda") * 30).round().clamp(-127, 127))
    return Pool(codes)


class Product(sweep_dense.Product):
    """Is one product with a BF16 result."""
    family, tolerance, uncompared = "int8", 3e-3, ("cublaslt int32",)

    def __init__(self, libraries, codes, tokens, d, sums, shape):
        self.libraries, self.shape, self.sums = libraries, shape, sums
        self.m, self.n, self.k = m, n, k = shape
        self.label = f"{m} x {n} x {k}"
        self.operations = 2 * m * n * k
        self.launches = launches_for(max((n * k + m * k + 2 * m * n) / COPY_RATE, self.operations / FP8_RATE), n * k + m * k)
        self.scale_a, self.scale_w = (torch.rand(count, device="cuda") * 1.9e-3 + 1e-4 for count in (m, n))
        self.result = d[:m * n].view(m, n)
        self.gemms = [Gemm(a, w, pointer(self.scale_a), pointer(self.scale_w), False, False, None, None, None, None, pointer(self.result),
                           m, n, k, k, k, n, 0, Config())
                      for a, w in zip(tokens.parts(m * k, self.launches), codes.parts(n * k, self.launches))]
        self.rows, self.columns = some(m, 16), some(n, 1024)
        a, w = tokens.first(m, k)[self.rows].double(), codes.first(n, k)[self.columns].double()
        self.exact = a @ w.t() * self.scale_a[self.rows].double()[:, None] * self.scale_w[self.columns].double()

    def chosen(self):
        choose = self.libraries.tessera.tsr_cuda_int8_gemm_choose
        choose.restype = Config
        return choose(ctypes.byref(self.gemms[0]), ctypes.byref(self.libraries.device))

    def launcher(self, library):
        return library.tsr_cuda_int8_gemm

    def cutlass(self):
        """Returns a launch of the tile that vLLM chooses."""
        m, n, k = self.shape
        name = "32_narrow" if m <= 32 and n < 8192 else "32_wide" if m <= 32 else "64" if m <= 64 else "128" if m <= 128 else "more"
        return self.cutlass_tile(f"cutlass_int8_{name}")

    def cutlass_tile(self, name):
        entry, (m, n, k) = getattr(self.libraries.int8, name), self.shape

        def launch(i):
            g = self.gemms[i]
            code = entry(*map(ctypes.c_void_p, (g.a, g.w, g.scale_a, g.scale_w, g.d)), m, n, k, self.libraries.device.processors, stream())
            if code != 0:
                raise RuntimeError(f"CUTLASS: status {code}")
        return launch

    def cublas_lt(self, scaled):
        """Returns a launch with results in int32, or with a second kernel that scales them."""
        library, sums, (m, n, k) = self.libraries.int8, pointer(self.sums), self.shape
        if library.cublas_int8_prepare(m, n, k) != 0:
            return None

        def launch(i):
            g = self.gemms[i]
            code = library.cublas_int8_run(ctypes.c_void_p(g.a), ctypes.c_void_p(g.w), sums, stream())
            if code == 0 and scaled:
                code = library.cublas_int8_scale(sums, *map(ctypes.c_void_p, (g.scale_a, g.scale_w, g.d)), m, n, stream())
            if code != 0:
                raise RuntimeError(f"cuBLASLt: status {code}")
        return launch

    def candidates(self):
        found = self.with_former(self.ours)
        if self.libraries.int8:
            found["cutlass"] = self.cutlass()
            if self.m > 128:
                found["cutlass 128x256"] = self.cutlass_tile("cutlass_int8_128x256")
            found |= {"cublaslt": self.cublas_lt(True), "cublaslt int32": self.cublas_lt(False)}
        return {name: launch for name, launch in found.items() if launch}
