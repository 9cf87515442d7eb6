#!/usr/bin/env python3
"""A Triton peer of the block-FP8 product: the same algorithm on the same shapes, timed the same way.

Every tile of 128 along k is a dot product in the tensor cores, scaled and added in FP32. CUDA graph of 20 launches, median
of 22 replays, the best of the configurations below and, with --tuned DIR, the one that SGLang or vLLM tuned for the matrix, on this
card, and for so many tokens (DIR holds their files "N=..,K=..,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json";
where it has none for a matrix, what they take then). Prints "m n k us" a line, or one line "skipped" where PyTorch, Triton or a GPU is
missing, and on standard error what each took.

    bench_gemm --shapes | python3 tests/gpu/bench_triton.py [--tuned DIR]
"""

import argparse
import json
import pathlib
import statistics
import sys

try:
    import torch
    import triton
    import triton.language as tl
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

# block of m, n and k, group of m, stages, warps
CONFIGS = [
    (64, 64, 128, 8, 5, 4),
    (64, 128, 128, 8, 4, 4),
    (128, 64, 128, 8, 4, 4),
    (128, 128, 128, 8, 3, 8),
    (128, 128, 128, 8, 4, 8),
    (128, 128, 128, 16, 4, 4),
]
KEYS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_stages", "num_warps")
UNTUNED = (64, 128, 128, 32, 3, 4)  # what both take for a matrix without a file
LAUNCHES, REPLAYS = 20, 22


@triton.jit
def block_fp8_kernel(
    a_ptr, w_ptr, scale_a_ptr, scale_w_ptr, d_ptr, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    GRANULE: tl.constexpr = 128  # of the scales
    PARTS: tl.constexpr = GRANULE // BLOCK_K
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
    if BLOCK_N <= GRANULE:  # one scale for the whole tile
        scale_w_at = scale_w_ptr + column * BLOCK_N // GRANULE * tl.cdiv(k, GRANULE)
    else:
        scale_w_at = scale_w_ptr + (j // GRANULE) % tl.cdiv(n, GRANULE) * tl.cdiv(k, GRANULE)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for t in range(tl.cdiv(k, BLOCK_K)):
        a = tl.load(a_at, mask=x[None, :] < k - t * BLOCK_K, other=0.0)
        w = tl.load(w_at, mask=x[:, None] < k - t * BLOCK_K, other=0.0)
        of_a, of_w = tl.load(scale_a_at + t // PARTS * m), tl.load(scale_w_at + t // PARTS)
        if BLOCK_N <= GRANULE:
            total += tl.dot(a, w) * (of_a * of_w)[:, None]
        else:
            total += tl.dot(a, w) * of_a[:, None] * of_w[None, :]
        a_at += BLOCK_K
        w_at += BLOCK_K
    d_at = d_ptr + i[:, None] * n + j[None, :]
    tl.store(d_at, total.to(tl.bfloat16), mask=(i[:, None] < m) & (j[None, :] < n))


def launch(a, w, scale_a, scale_w, d, config):
    m, k = a.shape
    n = w.shape[0]
    block_m, block_n, block_k, group, stages, warps = config
    grid = (triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)
    block_fp8_kernel[grid](
        a, w, scale_a, scale_w, d, m, n, k,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=group, num_stages=stages, num_warps=warps,
    )  # fmt: skip


def tuned(folder, m, n, k):
    """SGLang's and vLLM's choice: the entry for the nearest number of tokens in the file of the matrix."""
    names = [f"N={n},K={k},device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,{space}128].json" for space in (" ", "")]
    found = [folder / name for name in names if (folder / name).exists()]
    if not found:
        return UNTUNED
    by_tokens = json.loads(found[0].read_text())
    return tuple(by_tokens[min(by_tokens, key=lambda tokens: abs(int(tokens) - m))][key] for key in KEYS)


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
    """In double, by the definition; for shapes that are multiples of 128 in k."""
    k = a.shape[1]
    by_a = scale_a.T.double().repeat_interleave(128, 1)[:, :k]
    by_w = scale_w.double().repeat_interleave(128, 0).repeat_interleave(128, 1)[: w.shape[0], :k]
    return (a.double() * by_a) @ (w.double() * by_w).T


def operands(m, n, k):
    tiles = (k + 127) // 128
    a = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn)
    w = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn)
    scale_a = torch.rand(tiles, m, device="cuda") * 2e-3 + 1e-4
    scale_w = torch.rand((n + 127) // 128, tiles, device="cuda") * 2e-3 + 1e-4
    return a, w, scale_a, scale_w, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)


def check(config):
    """Ends the run where a configuration computes something else."""
    a, w, scale_a, scale_w, d = operands(192, 448, 1024)
    exact = reference(a, w, scale_a, scale_w)
    launch(a, w, scale_a, scale_w, d.fill_(float("nan")), config)
    error = ((d.double() - exact).norm() / exact.norm()).item()
    if not error < 5e-3:
        sys.exit(f"the peer itself is wrong: relative error {error} with {config}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tuned", type=pathlib.Path, metavar="DIR")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        sys.exit(77)
    torch.manual_seed(20261121)
    shapes = [tuple(map(int, line.split())) for line in sys.stdin if line.strip()]
    theirs = {shape: tuned(options.tuned, *shape) for shape in shapes} if options.tuned else {}
    for config in {*CONFIGS, *theirs.values()}:
        check(config)
    for shape in shapes:
        arguments = operands(*shape)
        us = {config: time_us(lambda: launch(*arguments, config)) for config in {*CONFIGS, *([theirs[shape]] if theirs else [])}}
        best = min(us, key=us.get)
        print(*shape, f"{us[best]:.2f}", flush=True)
        print(*shape, f"best {us[best]:.2f} us with {best}", *([f"tuned {us[theirs[shape]]:.2f} us with {theirs[shape]}"] if theirs else []),
              file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
