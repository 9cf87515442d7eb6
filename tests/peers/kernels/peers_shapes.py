"""Shapes and names of entry points shared by peers_build.py, peers.py and peers_grouped.py."""

SHAPES = [(m, n, k) for m in (64, 128, 4096)
          for n, k in ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))]
SHAPES.append((8192, 8192, 8192))
# Products of experts: layout, groups, rows of a group (0.7 to 1.3 times as many; those of 8: 1 to 15), n, k.
NK = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048))
GROUPED = [(layout, groups, rows, n, k)
           for layout, groups, rows in (("contiguous", 4, 8192), ("contiguous", 8, 4096), ("masked", 32, 192), ("masked", 6, 1024),
                                        ("masked", 32, 20), ("masked", 6, 20)) for n, k in NK]
GROUPED += [("masked", 32, rows, n, k) for rows in (8, 50) for n, k in ((4096, 7168), (7168, 2048))]


def name_of(version, shape):
    return "_".join(["deepgemm", version, *map(str, shape)])
