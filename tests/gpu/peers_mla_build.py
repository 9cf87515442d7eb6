"""Builds FlashMLA's dense BF16 decoding for Hopper, and Tessera's beside it, into the folder of docs/peers.md. For peers_build.py; what
peers_mla.py shares with it stands here too."""
import hashlib
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = ["libtessera_mla.so", "libflashmla.so", "tessera_mla.sha256"]
FLASHMLA = ["-std=c++20", "-O3", "-DNDEBUG", "-DFLASH_MLA_DISABLE_FP16", "--use_fast_math", "--expt-relaxed-constexpr",
            "--expt-extended-lambda", "-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__", "-U__CUDA_NO_HALF2_OPERATORS__",
            "-U__CUDA_NO_BFLOAT16_CONVERSIONS__", "-w"]
THEIR_SOURCES = ["smxx/decode/get_decoding_sched_meta/get_decoding_sched_meta.cu", "smxx/decode/combine/combine.cu",
                 "sm90/decode/dense/instantiations/bf16.cu"]


def sources():
    """Tessera's decoding, and what it is launched with."""
    kernels = ROOT / "kernels" / "cuda"
    return sorted([*kernels.glob("mla_decode*"), *(kernels / name for name in ("attention.cuh", "cuda_launch.cu", "hopper.cuh", "launch.cuh",
                                                                               "tensor_map.cuh")), ROOT / "common" / "status.c"])


def digest_of_sources():
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources())).hexdigest()


def build(folder, pool, nvcc, link):
    """`nvcc` and `link` are peers_build.py's. FlashMLA's objects are compiled once; ours each time."""
    (folder / "objects").mkdir(parents=True, exist_ok=True)
    digest = digest_of_sources()
    theirs = folder / "flashmla" / "csrc"
    includes = [f"-I{path}" for path in (theirs, theirs / "sm90", theirs / "kerutils" / "include", folder / "cutlass" / "include")]
    entry = pathlib.Path(__file__).with_name("peers_flashmla.cu")

    def flashmla(source):
        out = folder / "objects" / f"flashmla_{source.stem}.o"
        if source == entry or not out.exists():
            nvcc(*FLASHMLA, *includes, "-c", source, "-o", out)
        return out

    def tessera(source):
        out = folder / "objects" / f"tessera_mla_{source.stem}.o"
        nvcc("-std=c++17", "-O2", f"-I{ROOT}", "-x", "cu", "-c", source, "-o", out)
        return out

    link(folder / PARTS[1], pool.map(flashmla, [entry, *(theirs / name for name in THEIR_SOURCES)]))
    link(folder / PARTS[0], pool.map(tessera, [path for path in sources() if path.suffix in (".cu", ".c")]))
    (folder / PARTS[2]).write_text(digest)
