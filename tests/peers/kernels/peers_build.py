"""Builds what './dev gpu bench --peers DIR' runs into DIR. docs/peers.md says which sources DIR holds, and where they come from.

    python3 tests/peers/kernels/peers_build.py DIR [--jobs 2]

DeepGEMM compiles a kernel for each shape and tile at run time. Here its kernels are compiled beforehand, with the tiles that its own
choice of that version gives on 132 multiprocessors. Tessera's kernel is compiled twice: as it is, and so that its launches do not
overlap."""
import argparse
import concurrent.futures
import pathlib
import subprocess
import sys

import peers_mla_build
from peers_libraries import BLOCK_FP8, ROOT
from peers_shapes import GROUPED, SHAPES, name_of

# For each of SHAPES, and for "grouped" of GROUPED: tokens and rows of W in a tile, stages, CTAs that share an operand, whether that is A,
# and CTAs.
TILES = {
    "old": [
        (64, 16, 8, 1, True, 132), (64, 96, 4, 1, True, 128), (64, 128, 4, 1, True, 128), (64, 56, 8, 1, True, 128),
        (64, 32, 8, 1, True, 128), (64, 56, 8, 1, True, 128), (64, 32, 8, 1, True, 132), (128, 96, 4, 1, True, 128),
        (128, 128, 4, 1, True, 128), (64, 112, 8, 1, True, 128), (64, 64, 8, 1, True, 128), (64, 112, 8, 1, True, 128),
        (256, 88, 4, 2, True, 128), *[(256, 128, 3, 2, True, 128)] * 6,
    ],
    "new": [
        (64, 16, 16, 1, False, 132), (64, 96, 10, 2, False, 132), (64, 128, 8, 2, False, 132), (64, 64, 13, 1, False, 132),
        (64, 32, 16, 1, False, 132), (64, 64, 13, 1, False, 132), (64, 32, 16, 1, False, 132), (128, 192, 4, 1, False, 132),
        (128, 128, 5, 2, True, 132), (64, 112, 9, 1, False, 132), (64, 64, 13, 1, False, 132), (64, 112, 9, 1, False, 132),
        (128, 192, 4, 2, False, 132), *[(256, 128, 3, 2, True, 132)] * 6,
    ],
    "grouped": [
        *[(128, 192, 4, 2, False, 132)] * 16, *[(64, 192, 6, 2, False, 132)] * 2, *[(64, 128, 8, 2, False, 132)] * 2,
        (64, 96, 10, 2, False, 132), (64, 192, 6, 2, False, 132), *[(64, 192, 6, 1, False, 132)] * 2, (64, 128, 8, 2, False, 132),
        (64, 192, 6, 2, False, 132), (64, 128, 8, 2, False, 132), (64, 192, 6, 2, False, 132),
    ],
}
KINDS = {"contiguous": "MGroupedContiguous", "masked": "MGroupedMasked"}
COMMON = ["-gencode=arch=compute_90a,code=sm_90a", "-Xcompiler", "-fPIC"]
DEEPGEMM = ["-std=c++20", "-O3", "-Xptxas", "--register-usage-level=10", "--expt-relaxed-constexpr", "--expt-extended-lambda",
            "--diag-suppress=39,161,174,177,186,940"]
TESSERA = ["-std=c++17", "-O2", f"-I{ROOT}"]


def nvcc(*args):
    subprocess.run(["nvcc", *COMMON, *map(str, args)], check=True)


def link(library, objects):
    nvcc("-shared", "-cudart", "shared", "-o", library, *objects, "-ldl")
    subprocess.run(["strip", str(library)], check=True)
    print(library)


def deepgemm(folder, pool, version):
    """The objects of DeepGEMM's kernels of one version, or of the newest one's of groups. One that is newer than our entry to it stays."""
    source = pathlib.Path(__file__).with_name("peers_deepgemm.cu")

    sources_of = "old" if version == "old" else "new"

    def compiled(shape, tile):
        tokens, rows, stages, cluster, shares_a, grid = tile
        name = name_of(version, shape)
        out = folder / "objects" / f"{name}.o"
        if not out.exists() or out.stat().st_mtime < source.stat().st_mtime:
            macros = dict(NAME=name, N=shape[-2], K=shape[-1], TOKENS=tokens, ROWS=rows, STAGES=stages, CLUSTER=cluster,
                          SHARES_A=str(shares_a).lower(), GRID=grid, GROUPS=shape[1] if version == "grouped" else 1,
                          KIND=KINDS.get(shape[0], "Normal"))
            nvcc(*DEEPGEMM, *(["-DPEER_OLD"] if version == "old" else []), *(f"-DPEER_{key}={value}" for key, value in macros.items()),
                 f"-I{folder}/deepgemm-{sources_of}/deep_gemm/include", f"-I{folder}/cutlass/include", "-c", source, "-o", out)
        return out

    return pool.map(compiled, GROUPED if version == "grouped" else SHAPES, TILES[version])


def tessera(folder, pool, mode, *flags):
    """The objects of Tessera's kernels."""
    def compiled(source):
        out = folder / "objects" / f"tessera_{mode}_{source.stem}.o"
        nvcc(*TESSERA, *flags, "-x", "cu", "-c", source, "-o", out)
        return out

    return pool.map(compiled, BLOCK_FP8.compiled())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    (args.dir / "objects").mkdir(parents=True, exist_ok=True)
    digest = BLOCK_FP8.digest()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        if (args.dir / "flashmla").exists():
            peers_mla_build.build(args.dir, pool, nvcc, link)
        libraries = {"tessera_overlapped": tessera(args.dir, pool, "overlapped"),
                     "tessera_apart": tessera(args.dir, pool, "apart", "-DTSR_LAUNCHES_APART"),
                     **{f"deepgemm_{version}": deepgemm(args.dir, pool, version) for version in TILES}}
        for name, objects in libraries.items():
            link(args.dir / f"lib{name}.so", objects)
    BLOCK_FP8.put_stamp(args.dir, digest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
