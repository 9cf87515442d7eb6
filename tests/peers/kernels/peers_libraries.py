"""The libraries of the comparisons with peers, in the folder of docs/peers.md: what they are called, and of which sources of Tessera's
kernels they were built."""
import hashlib
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHARED = ["cuda_launch.cu", "hopper.cuh", "launch.cuh", "tensor_map.cuh"]


class Libraries:
    """`names` are files of the folder; `stamp` is the one that says of which sources they were built; `kernels` are the patterns of those
    sources beside what all share; `command` builds them."""

    def __init__(self, names, stamp, kernels, command):
        self.names, self.stamp, self.kernels, self.command = names, stamp, kernels, command

    def sources(self):
        """Tessera's kernels, and what they are launched and described with."""
        kernels = ROOT / "kernels" / "cuda"
        return sorted([*(path for pattern in [*self.kernels, *SHARED] for path in kernels.glob(pattern)), ROOT / "common" / "status.c"])

    def compiled(self):
        return [path for path in self.sources() if path.suffix in (".cu", ".c")]

    def digest(self):
        return hashlib.sha256(b"".join(path.read_bytes() for path in self.sources())).hexdigest()

    def put_stamp(self, folder, digest):
        """For a build, which takes the digest before it begins: sources may change meanwhile."""
        (folder / self.stamp).write_text(digest)

    def unfit(self, folder):
        """0, or 2 and a line that says why they cannot be compared."""
        missing = [name for name in [*self.names, self.stamp] if not (folder / name).exists()]
        if not missing and (folder / self.stamp).read_text() == self.digest():
            return 0
        why = f"has no {missing[0]}" if missing else f"was built from other sources than the tree's, by {self.stamp}"
        print(f"peers: {folder} {why}: run {self.command.format(folder)} (docs/peers.md)", file=sys.stderr)
        return 2


BUILD = "python3 tests/peers/kernels/peers_build.py {}"
BLOCK_FP8 = Libraries([f"lib{name}.so" for name in ("deepgemm_old", "deepgemm_new", "deepgemm_grouped", "tessera_apart", "tessera_overlapped")],
                      "tessera.sha256", ["block_fp8_*", "cublas_lt.cu"], BUILD)
PREFILL = Libraries(["libtessera_prefill.so"], "prefill.sha256", ["mla_prefill*", "attention.cuh"],
                    "python3 tests/peers/kernels/peers_prefill.py {} --build")
MLA = Libraries(["libtessera_mla.so", "libflashmla.so"], "tessera_mla.sha256", ["mla_decode*", "attention.cuh"], BUILD)
WEIGHT_ONLY = Libraries(["libmarlin.so", "libtessera_weight_only_apart.so", "libtessera_weight_only_overlapped.so"], "weight_only.sha256",
                        ["weight_only*", "fast_dequant.cuh"], "python3 tests/peers/kernels/peers_wo.py {} --build")
