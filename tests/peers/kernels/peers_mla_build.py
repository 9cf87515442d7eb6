"""Builds FlashMLA's dense BF16 decoding for Hopper, and Tessera's beside it, into the folder of docs/peers.md. For peers_build.py."""
import pathlib

from peers_libraries import MLA, ROOT

FLASHMLA = ["-std=c++20", "-O3", "-DNDEBUG", "-DFLASH_MLA_DISABLE_FP16", "--use_fast_math", "--expt-relaxed-constexpr",
            "--expt-extended-lambda", "-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__", "-U__CUDA_NO_HALF2_OPERATORS__",
            "-U__CUDA_NO_BFLOAT16_CONVERSIONS__", "-w"]
THEIR_SOURCES = ["smxx/decode/get_decoding_sched_meta/get_decoding_sched_meta.cu", "smxx/decode/combine/combine.cu",
                 "sm90/decode/dense/instantiations/bf16.cu"]


def build(folder, pool, nvcc, link):
    """`nvcc` and `link` are peers_build.py's. FlashMLA's objects are compiled once; ours each time."""
    (folder / "objects").mkdir(parents=True, exist_ok=True)
    digest, (ours, flash) = MLA.digest(), MLA.names
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

    link(folder / flash, pool.map(flashmla, [entry, *(theirs / name for name in THEIR_SOURCES)]))
    link(folder / ours, pool.map(tessera, MLA.compiled()))
    MLA.put_stamp(folder, digest)
