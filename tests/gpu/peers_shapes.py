"""What peers_build.py and peers.py agree on: the shapes, what the peers' libraries and entries are called, and which sources of Tessera's
kernel a library was built from."""
import hashlib
import pathlib

SHAPES = [(m, n, k) for m in (64, 128, 4096)
          for n, k in ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))]
SHAPES.append((8192, 8192, 8192))
PARTS = ["libdeepgemm_old.so", "libdeepgemm_new.so", "libtessera_apart.so", "libtessera_overlapped.so", "tessera.sha256"]
ROOT = pathlib.Path(__file__).resolve().parents[2]


def name_of(version, shape):
    return "deepgemm_{}_{}_{}_{}".format(version, *shape)


def sources():
    """Tessera's kernel, and what it is launched and described with."""
    kernels = ROOT / "kernels" / "cuda"
    return sorted([*kernels.glob("block_fp8_*"), *(kernels / name for name in ("cublas_lt.cu", "cuda_launch.cu", "hopper.cuh",
                                                                              "launch.cuh", "tensor_map.cuh")),
                   ROOT / "common" / "status.c"])


def digest_of_sources():
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources())).hexdigest()
