#!/usr/bin/env python3
"""A Triton peer of the block-FP8 product: the same algorithm on the same shapes, timed the same way.

Every tile of 128 along k is a dot product in the tensor cores, scaled and added in FP32. CUDA graph of 20 launches, median
of 22 replays, the best of the configurations below. Prints "m n k us" a line, or one line "skipped" where PyTorch, Triton or
a GPU is missing.
"""

import statistics
import sys

try:
    import torch
    import triton
    import triton.language as tl
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

# block of m, block of n, group of m, stages, warps; along k it is always 128, the scales' granularity
CONFIGS = [
    (64, 64, 8, 5, 4),
    (64, 128, 8, 4, 4),
    (128, 64, 8, 4, 4),
    (128, 128, 8, 3, 8),
    (128, 128, 8, 4, 8),
    (128, 128, 16, 4, 4),
]
LAUNCHES, REPLAYS = 20, 22


@triton.jit
def block_fp8_kernel(
    a_ptr, w_ptr, scale_a_ptr, scale_w_ptr, d_ptr, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    BLOCK_K: tl.constexpr = 128
    tiles = tl.cdiv(k, BLOCK_K)
    rows, columns = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    pid = tl.program_id(0)
    begin = pid // (GROUP_M * columns) * GROUP_M
    height = min(rows - begin, GROUP_M)
    row = begin + pid % (GROUP_M * columns) % height
    column = pid % (GROUP_M * columns) // height
    i = row * BLOCK_M + tl.arange(0, BLOCK_M)
    j = column * BLOCK_N + tl.arange(0, BLOCK_N)
    x = tl.arange(0, BLOCK_K)
    a_at = a_ptr + (i % m)[:, None] * k + x[None, :]
    w_at = w_ptr + (j % n)[None, :] * k + x[:, None]
    scale_a_at = scale_a_ptr + i % m
    scale_w_at = scale_w_ptr + column * BLOCK_N // BLOCK_K * tiles
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for t in range(tiles):
        a = tl.load(a_at, mask=x[None, :] < k - t * BLOCK_K, other=0.0)
        w = tl.load(w_at, mask=x[:, None] < k - t * BLOCK_K, other=0.0)
        by = tl.load(scale_a_at + t * m) * tl.load(scale_w_at + t)
        total += tl.dot(a, w) * by[:, None]
        a_at += BLOCK_K
        w_at += BLOCK_K
    d_at = d_ptr + i[:, None] * n + j[None, :]
    tl.store(d_at, total.to(tl.bfloat16), mask=(i[:, None] < m) & (j[None, :] < n))


def launch(a, w, scale_a, scale_w, d, config):
    m, k = a.shape
    n = w.shape[0]
    block_m, block_n, group, stages, warps = config
    grid = (triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)
    block_fp8_kernel[grid](
        a, w, scale_a, scale_w, d, m, n, k,
        BLOCK_M=block_m, BLOCK_N=block_n, GROUP_M=group, num_stages=stages, num_warps=warps,
    )  # fmt: skip


def time_us(call):
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            call()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times) * 1000 / LAUNCHES


def reference(a, w, scale_a, scale_w):
    """In double, by the definition; for shapes that are multiples of 128 in n and k."""
    k = a.shape[1]
    by_a = scale_a.T.double().repeat_interleave(128, 1)[:, :k]
    by_w = scale_w.double().repeat_interleave(128, 0).repeat_interleave(128, 1)[:, :k]
    return (a.double() * by_a) @ (w.double() * by_w[: w.shape[0]]).T


def operands(m, n, k):
    tiles = (k + 127) // 128
    a = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn)
    w = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn)
    scale_a = torch.rand(tiles, m, device="cuda") * 2e-3 + 1e-4
    scale_w = torch.rand((n + 127) // 128, tiles, device="cuda") * 2e-3 + 1e-4
    return a, w, scale_a, scale_w, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)


def main():
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        sys.exit(77)
    torch.manual_seed(20261121)
    a, w, scale_a, scale_w, d = operands(192, 384, 1024)
    exact = reference(a, w, scale_a, scale_w)
    for config in CONFIGS:
        launch(a, w, scale_a, scale_w, d.fill_(float("nan")), config)
        error = ((d.double() - exact).norm() / exact.norm()).item()
        if not error < 5e-3:
            sys.exit(f"the peer itself is wrong: relative error {error} with {config}")
    for shape in (tuple(map(int, line.split())) for line in sys.stdin if line.strip()):
        arguments = operands(*shape)
        best = min((time_us(lambda: launch(*arguments, config)), config) for config in CONFIGS)
        print(*shape, f"{best[0]:.2f}", flush=True)


if __name__ == "__main__":
    main()
