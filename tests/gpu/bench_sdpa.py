#!/usr/bin/env python3
"""Measures PyTorch's scaled_dot_product_attention in MLA prefill: causal, BF16, one sequence, expanded keys and values.

Reads lines "heads tokens" from standard input. For each, it prints "heads tokens us backend" for the fastest backend.
Each backend runs with values of 128 columns, and with values padded to the 192 columns of the keys, which backends with
one width need. Both layouts are measured: [heads][tokens][columns] and [tokens][heads][columns]. A figure is the median
of 22 replays of CUDA graphs of about 20 ms. Without PyTorch or a GPU, it prints one line "skipped".
"""

import statistics
import sys
import warnings

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

warnings.simplefilter("ignore", UserWarning)  # the reason why a backend does not support a shape is printed below
KEY, VALUE, REPLAYS = 192, 128, 22
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def operand(heads, tokens, columns, tokens_first):
    shape = (1, tokens, heads, columns) if tokens_first else (1, heads, tokens, columns)
    x = (torch.rand(shape, device="cuda") * 2 - 1).to(torch.bfloat16)  # every bit random: power depends on it
    return x.transpose(1, 2) if tokens_first else x


def microseconds(call, launches):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(launches):
                call()
        graph.replay()
        times = []
        for _ in range(REPLAYS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    return statistics.median(times) * 1e3 / launches


def candidates(heads, tokens):
    for tokens_first in (False, True):
        q, k = (operand(heads, tokens, KEY, tokens_first) for _ in range(2))
        for columns in (VALUE, KEY):
            v = operand(heads, tokens, columns, tokens_first)
            v[..., VALUE:] = 0
            for name, backend in BACKENDS.items():
                label = f"{name}{'/padded' if columns == KEY else ''}{'/tokens-first' if tokens_first else ''}"
                yield label, backend, (q, k, v)


def main():
    if not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        sys.exit(77)
    for line in sys.stdin:
        heads, tokens = (int(x) for x in line.split())
        operations = heads * tokens * tokens * (KEY + VALUE)  # a causal product counts half of 2 m n k
        launches = max(1, round(20e-3 * 500e12 / operations))
        best = None
        for label, backend, (q, k, v) in candidates(heads, tokens):
            try:
                with sdpa_kernel([backend]):
                    us = microseconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), launches)
            except RuntimeError as refused:
                print(f"{heads} x {tokens} {label}: {str(refused).splitlines()[0]}", file=sys.stderr)
                continue
            print(f"{heads} x {tokens} {label}: {us:.1f} us", file=sys.stderr)
            if best is None or us < best[0]:
                best = us, label
        if best:
            print(heads, tokens, f"{best[0]:.3f}", best[1], flush=True)


main()
