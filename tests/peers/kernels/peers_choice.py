"""The tile that DeepGEMM of 2026-06 chooses for a product on a Hopper GPU, by its rule: the least cycles of L1 and L2."""
import dataclasses

SHARED, PROCESSORS = 232448, 132
L2_A_CYCLE, L1_A_CYCLE = int(min(64.0 * PROCESSORS, 8e6 / 1.3e3)), 128 * PROCESSORS


@dataclasses.dataclass(frozen=True)
class Tile:
    """Rows of A and of W, stages of shared memory, CTAs that share an operand, and whether that is A. n and k are 0 if the kernel gets
    them at run time."""
    kind: str
    tokens: int
    rows: int
    stages: int
    cluster: int
    shares_a: bool
    groups: int = 1
    n: int = 0
    k: int = 0

    def name(self):
        return "_".join(["deepgemm", *(str(int(x)) if isinstance(x, bool) else str(x) for x in dataclasses.astuple(self))])


def up(x, to):
    return -(-x // to) * to


def stages_of(tokens, rows, k):
    kept = up(tokens * rows * 2, 1024) + 256 + up(-(-k // 128) * 4 * (1 if 128 % rows == 0 else 2), 8)
    return min((SHARED - kept) // ((tokens + rows) * 128 + up(tokens * 4, 128)), 16)


def cycles_of(m, n, k, groups, tokens, rows, along_m, along_n):
    """Returns the estimated cycles; None if a cluster has no second wave."""
    count = -(-m // tokens) * -(-n // rows) * groups
    waves = -(-count // PROCESSORS)
    if along_m * along_n > 1 and waves <= 1:
        return None
    stored = tokens * rows * 2
    l2 = (k * (tokens // along_n + rows // along_m) + stored) * count // L2_A_CYCLE
    l1 = (k * (tokens + rows) + k * (max(64, tokens) + rows) + 2 * stored) * count // L1_A_CYCLE
    return int(max(l1, l2) / (count / (waves * PROCESSORS)))


def choose(kind, m, n, k, groups=1):
    """Returns the Tile. `kind`: Normal, MGroupedContiguous or MGroupedMasked. m of masked groups: the rows expected of one. Kernels of
    groups and of large tiles are compiled for n and k, since some spill registers otherwise."""
    masked = kind == "MGroupedMasked"
    sizes = {"Normal": [64, 128, *[t for t in (16, 32) if m <= t], 256], "MGroupedContiguous": [128], "MGroupedMasked": [64, 128]}[kind]
    best = None
    for along_m, along_n in ((1, 1), (1, 2), (2, 1)):
        for tokens in sizes:
            for rows in range(16, 193, 16):
                beyond = rows - 128
                if (beyond > 0 and rows % beyond != 0 and 128 % beyond != 0) or (tokens > 128 and rows > 128):
                    continue
                if masked and -(-n // rows) % (along_m * along_n) != 0:
                    continue
                stages = stages_of(tokens, rows, k)
                if stages < 3 or (tokens * rows < 128 * 192 and stages < 4):
                    continue
                cycles = cycles_of(m, n, k, groups if masked else 1, tokens, rows, along_m, along_n)
                if best is None or (cycles is not None and (best[0] is None or cycles < best[0])):
                    fixed = (n, k) if kind != "Normal" or tokens * rows >= 128 * 144 else (0, 0)
                    best = cycles, Tile(kind, tokens, rows, stages, along_m * along_n, along_n > 1, groups if masked else 1, *fixed)
    return best[1]
