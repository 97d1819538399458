#!/usr/bin/env python3
"""The PyTorch side of `cargo xtask bench --component kernels`: runs one operation on demand and says how long it took.

Reads one command a line from standard input and answers seconds:

    dense ROWS IN OUT GELU           linear, GELU behind it if GELU is 1
    stream ROWS IN OUT WEIGHTS       mean of linears over so many weights, which no cache holds
    window QUERIES HEADS CONTEXT     causal attention over a window, heads of 64, the mask made beforehand
    relative TIME HEADS LEFT RIGHT   attention with embedded distances, heads of 64
    norm ROWS WIDTH                  layer normalisation
    depthwise TIME CHANNELS TAPS     depthwise convolution, channels first
    quit
"""
import argparse
import math
import sys
import time

import torch
import torch.nn.functional as F


def operation(word, numbers):
    """A function without arguments that does the work, and how many times it does it."""
    if word == "dense":
        rows, inner, out, gelu = numbers
        x, w = torch.rand(rows, inner) - 0.5, torch.rand(out, inner) - 0.5
        return (lambda: F.gelu(F.linear(x, w))) if gelu else (lambda: F.linear(x, w)), 1
    if word == "stream":
        rows, inner, out, count = numbers
        x, weights = torch.rand(rows, inner), [torch.rand(out, inner) for _ in range(count)]
        return lambda: [F.linear(x, w) for w in weights], count
    if word == "window":
        queries, heads, context = numbers
        q, k, v = (torch.rand(1, heads, queries, 64) for _ in range(3))
        ones = torch.ones(queries, queries, dtype=torch.bool)
        mask = ones.tril() & ~ones.tril(-context)
        return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), 1
    if word == "relative":
        n, heads, left, right = numbers
        q, k, v = (torch.rand(1, heads, n, 64) for _ in range(3))
        table, at = torch.rand(left + right + 1, 64), torch.arange(n)
        entry = ((at[None] - at[:, None]).clamp(-left, right) + left).expand(1, heads, n, n)

        def attend():
            scores = q @ k.transpose(2, 3) + (q @ table.T).gather(3, entry)
            return torch.softmax(scores / math.sqrt(64), -1) @ v
        return attend, 1
    if word == "norm":
        rows, width = numbers
        x, w, b = torch.rand(rows, width), torch.rand(width), torch.rand(width)
        return lambda: F.layer_norm(x, (width,), w, b), 1
    length, channels, taps = numbers
    x, w, b = torch.rand(1, channels, length + taps - 1), torch.rand(channels, 1, taps), torch.rand(channels)
    return lambda: F.conv1d(x, w, b, groups=channels), 1


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    made = (None, None, 1)
    print(f"ready torch {torch.__version__} threads {torch.get_num_threads()}", flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            word, *numbers = line.split()
            if word == "quit":
                break
            if line != made[0]:
                made = (None, None, 1)
                made = (line, *operation(word, [int(n) for n in numbers]))
            start = time.perf_counter()
            made[1]()
            print(f"{(time.perf_counter() - start) / made[2]:.7f}", flush=True)


if __name__ == "__main__":
    main()
