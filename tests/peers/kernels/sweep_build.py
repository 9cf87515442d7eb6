#!/usr/bin/env python3
"""Builds what './dev gpu bench --sweep' runs, on a machine with nvcc: Tessera's kernels, and those of the peers of a folder.

    python3 tests/peers/kernels/sweep_build.py DIR [--jobs N]

DIR/libtessera.so has Tessera's kernels, and is built again if their sources have changed. Where DIR has the sources of CUTLASS,
DeepGEMM, FlashMLA, FlashAttention-3 or Marlin (docs/peers.md), a library of each is built once."""
import argparse
import concurrent.futures
import dataclasses
import hashlib
import os
import pathlib
import re
import subprocess
import sys

import peers_choice
from sweep_shapes import EXPERT_MATRICES, EXPERT_ROWS, MATRICES, TOKENS

ROOT = pathlib.Path(__file__).resolve().parents[3]
HERE = pathlib.Path(__file__).resolve().parent
STAMP = "tessera.sha256"  # the digest of the sources of libtessera.so
HOPPER = ["-gencode=arch=compute_90a,code=sm_90a", "-Xcompiler", "-fPIC"]
TESSERA = ["-std=c++17", "-O2", "-DTSR_LAUNCHES_BY_CHOICE", f"-I{ROOT}", "-x", "cu"]
CUTLASS = ["-O3", "-DNDEBUG", "-w", "--expt-relaxed-constexpr", "--expt-extended-lambda"]
# Marlin asks cp.async for a cache hint that is not allowed on Hopper; without it the copy is the same.
MARLIN_HINT = ('"   createpolicy.fractional.L2::evict_first.b64 p, 1.0;"', ".L2::cache_hint", ", p;\\n")
# The tiles of CUTLASS that vLLM chooses by the numbers of tokens and channels, and one more. The fields are: tokens, rows and depth of
# a tile; CTAs of a cluster along tokens and along rows; the schedule of the warps.
INT8_TILES = {"32_narrow": (64, 64, 256, 1, 8, ""), "32_wide": (64, 128, 256, 1, 4, ""), "64": (64, 64, 256, 1, 1, ""),
              "128": (64, 128, 128, 2, 1, "Pingpong"), "more": (128, 128, 128, 2, 1, "Pingpong"),
              "128x256": (128, 256, 128, 2, 1, "Cooperative")}
MARLIN_ENTRY = """
extern "C" int marlin_run(const void *a, const void *w, void *d, void *scales, int m, int n, int k, void *locks, int group, void *stream)
{
    return marlin_cuda(a, w, d, scales, m, n, k, locks, group, 0, (cudaStream_t)stream);
}
"""


def sources():
    """Returns Tessera's kernels of the sweep with their headers."""
    kernels = ROOT / "kernels" / "cuda"
    names = ("block_fp8_*", "int8_*", "product_*", "mla_*", "index_scores*", "prefill*", "weight_only*", "cublas_lt.cu", "cuda_launch.cu", "*.cuh", "fast_dequant.cuh")
    found = {path for name in names for path in kernels.glob(name)}
    return sorted(found | {ROOT / "common" / "status.c"})


def digest():
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources())).hexdigest()


def is_current(folder):
    """Returns true if the library was built from the sources of the tree."""
    stamp = folder / STAMP
    return (folder / "libtessera.so").exists() and stamp.exists() and stamp.read_text() == digest()


def experts():
    """Returns the shapes of the products of experts: layout, groups, rows, N, K."""
    return [(*rows, n, k) for n, k, _ in EXPERT_MATRICES for rows in EXPERT_ROWS]


def tile_of_experts(layout, groups, rows, n, k):
    return (peers_choice.choose("MGroupedMasked", rows, n, k, groups) if layout == "masked"
            else peers_choice.choose("MGroupedContiguous", groups * rows, n, k))


def deepgemm_tiles():
    dense = {peers_choice.choose("Normal", m, n, k) for n, k, _ in MATRICES if k % 128 == 0 for m in TOKENS}
    return sorted(dense | {tile_of_experts(*shape) for shape in experts()}, key=str)


class Builder:
    def __init__(self, folder, pool):
        self.folder, self.pool, self.objects = folder, pool, folder / "objects"
        self.objects.mkdir(parents=True, exist_ok=True)

    def compile(self, name, source, *flags, always=False):
        """Starts to compile a source to the object `name`."""
        out = self.objects / f"{name}.o"

        def work():
            if always or not out.exists() or out.stat().st_mtime < source.stat().st_mtime:
                command = ["nvcc", *HOPPER, *map(str, flags), "-Xptxas", "-v", "-c", str(source), "-o", str(out)]
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
                if done.returncode != 0:
                    raise RuntimeError(f"{' '.join(command)}\n{done.stdout}")
                if re.search(r"[1-9]\d* bytes spill stores", done.stdout):
                    print(f"{name}: spills registers", flush=True)
            return out
        return self.pool.submit(work)

    def link(self, library, promised, *flags):
        path = self.folder / library
        objects = [str(object.result()) for object in promised]
        subprocess.run(["nvcc", *HOPPER, "-shared", "-cudart", "shared", "-o", str(path), *objects, "-ldl", *flags], check=True)
        subprocess.run(["strip", str(path)], check=True)
        print(path, flush=True)

    def tessera(self):
        return "libtessera.so", [self.compile(f"tessera_{path.stem}", path, *TESSERA, always=True)
                                 for path in sources() if path.suffix in (".cu", ".c")]

    def deepgemm(self):
        flags = ["-std=c++20", *CUTLASS, "-Xptxas", "--register-usage-level=10", f"-I{self.folder}/deepgemm/deep_gemm/include",
                 f"-I{self.folder}/cutlass/include"]
        return "libdeepgemm.so", [self.compile("deepgemm_index", HERE / "peers_deepgemm_index.cu", *flags)] + [
            self.compile(tile.name(), HERE / "peers_deepgemm.cu", *flags, f"-DPEER_NAME={tile.name()}",
                         *(f"-DPEER_{key.upper()}={str(value).lower() if isinstance(value, bool) else value}"
                           for key, value in dataclasses.asdict(tile).items()))
            for tile in deepgemm_tiles()]

    def flashmla(self):
        theirs = self.folder / "flashmla" / "csrc"
        flags = ["-std=c++20", *CUTLASS, "-DFLASH_MLA_DISABLE_FP16", "--use_fast_math", "-U__CUDA_NO_HALF_OPERATORS__",
                 "-U__CUDA_NO_HALF_CONVERSIONS__", "-U__CUDA_NO_HALF2_OPERATORS__", "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
                 *(f"-I{path}" for path in (theirs, theirs / "sm90", theirs / "kerutils" / "include", self.folder / "cutlass" / "include"))]
        kernels = [theirs / "smxx" / "decode" / "get_decoding_sched_meta" / "get_decoding_sched_meta.cu",
                   theirs / "smxx" / "decode" / "combine" / "combine.cu", theirs / "sm90" / "decode" / "dense" / "instantiations" / "bf16.cu",
                   *(theirs / "sm90" / "decode" / "sparse_fp8" / "instantiations" / f"v32_persistent_h{heads}.cu" for heads in (64, 128)),
                   theirs / "sm90" / "prefill" / "sparse" / "instantiations" / "phase1_k576.cu"]
        return "libflashmla.so", [self.compile(f"flashmla_{path.stem}", path, *flags) for path in (HERE / "peers_flashmla.cu", *kernels)]

    def fa3(self):
        flags = ["-std=c++17", *CUTLASS, "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED", "-DCUTLASS_ENABLE_GDC_FOR_SM90",
                 "-DCUTLASS_DEBUG_TRACE_LEVEL=0", "--use_fast_math", f"-I{self.folder}/flash-attention/hopper",
                 f"-I{self.folder}/cutlass/include"]
        return "libfa3.so", [self.compile("fa3", HERE / "peers_fa3.cu", *flags)]

    def int8(self):
        flags = ["-std=c++17", *CUTLASS, f"-I{self.folder}/cutlass/include"]
        keys = ("TOKENS", "ROWS", "DEPTH", "ALONG_M", "ALONG_N")
        return "libint8.so", [self.compile("cublas_int8", HERE / "peers_cublas_int8.cu", "-std=c++17", "-O3"), *(
            self.compile(f"cutlass_int8_{name}", HERE / "peers_cutlass_int8.cu", *flags, f"-DPEER_NAME=cutlass_int8_{name}",
                         *(f"-DPEER_{key}={value}" for key, value in zip(keys, tile)),
                         f"-DPEER_SCHEDULE=KernelTmaWarpSpecialized{tile[5]}",
                         f"-DPEER_EPILOGUE=TmaWarpSpecialized{tile[5].removeprefix('Pingpong')}")
            for name, tile in INT8_TILES.items())]

    def marlin(self):
        text = (self.folder / "marlin" / "marlin" / "marlin_cuda_kernel.cu").read_text()
        begin, end = text.index("cp_async4_stream(void*"), text.index("// Async copy fence")
        copy = text[begin:end].replace(MARLIN_HINT[0], "").replace(MARLIN_HINT[1], "").replace(MARLIN_HINT[2], ";\\n")
        source = self.objects / "marlin.cu"
        source.write_text(text[:begin] + copy + text[end:] + MARLIN_ENTRY)
        return "libmarlin.so", [self.compile("marlin", source, "-std=c++17", "-O3", "--expt-relaxed-constexpr")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        builder, built = Builder(args.dir, pool), digest()  # sources may change while it builds
        wanted = [] if is_current(args.dir) else [builder.tessera()]
        for folder, library in (("deepgemm", "deepgemm"), ("flashmla", "flashmla"), ("flash-attention", "fa3"), ("marlin", "marlin"),
                                ("cutlass", "int8")):
            if (args.dir / folder).exists() and not (args.dir / f"lib{library}.so").exists():
                wanted.append(getattr(builder, library)())
        for library, promised in wanted:
            builder.link(library, promised, *(["-lcublasLt"] if library == "libint8.so" else []))
    (args.dir / STAMP).write_text(built)
    return 0


if __name__ == "__main__":
    sys.exit(main())
