#!/usr/bin/env python3
"""The PyTorch side of `cargo xtask bench --component dac`: decodes and encodes on demand and says how long it took.

Loads a safetensors file with the names of the package, weight norm folded or not, and runs the codec with
torch.nn.functional: the arithmetic of the original without its weight-norm hooks. Then it reads one command a
line from standard input:

    decode FRAMES     decode FRAMES random latent frames once; answers `SECONDS`
    encode SAMPLES    encode SAMPLES random samples to codes once; answers `SECONDS`
    matmul N          one N x N x N float32 product; answers `SECONDS`
    quit
"""
import argparse
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


class Codec:
    def __init__(self, path, rates, encoder_rates):
        self.w, self.rates, self.encoder_rates = load_file(path), rates, encoder_rates
        for name in [n for n in self.w if n.endswith(".weight_g")]:
            stem = name.removesuffix("_g")
            v, g = self.w[stem + "_v"], self.w[name]
            self.w[stem] = g * v / v.square().sum((1, 2), keepdim=True).sqrt()
        self.width = self.w["decoder.model.0.weight"].shape[1]

    def conv(self, name, x, **kw):
        return F.conv1d(x, self.w[name + ".weight"], self.w[name + ".bias"], **kw)

    def snake(self, name, x):
        a = self.w[name + ".alpha"]
        return x + (a + 1e-9).reciprocal() * torch.sin(a * x).pow(2)

    def unit(self, name, x, dilation):
        y = self.conv(f"{name}.1", self.snake(f"{name}.0", x), dilation=dilation, padding=3 * dilation)
        return x + self.conv(f"{name}.3", self.snake(f"{name}.2", y))

    def encode(self, x):
        x = self.conv("encoder.block.0", x, padding=3)
        for i, stride in enumerate(self.encoder_rates, 1):
            at = f"encoder.block.{i}.block"
            for unit, dilation in enumerate((1, 3, 9)):
                x = self.unit(f"{at}.{unit}.block", x, dilation)
            x = self.conv(f"{at}.4", self.snake(f"{at}.3", x), stride=stride, padding=(stride + 1) // 2)
        last = len(self.encoder_rates) + 1
        left = self.conv(f"encoder.block.{last + 1}", self.snake(f"encoder.block.{last}", x), padding=1)
        codes = []
        while f"quantizer.quantizers.{len(codes)}.codebook.weight" in self.w:
            at = f"quantizer.quantizers.{len(codes)}"
            rows = self.w[f"{at}.codebook.weight"]
            e = F.normalize(self.conv(f"{at}.in_proj", left)[0].T)
            code = (e @ F.normalize(rows).T).argmax(1)
            left = left - self.conv(f"{at}.out_proj", rows[code].T[None])
            codes.append(code)
        return torch.stack(codes)

    def decode(self, z):
        x = self.conv("decoder.model.0", z, padding=3)
        for i, stride in enumerate(self.rates, 1):
            at = f"decoder.model.{i}.block"
            x = F.conv_transpose1d(self.snake(f"{at}.0", x), self.w[f"{at}.1.weight"], self.w[f"{at}.1.bias"],
                                   stride=stride, padding=(stride + 1) // 2)
            for unit, dilation in zip((2, 3, 4), (1, 3, 9)):
                x = self.unit(f"{at}.{unit}.block", x, dilation)
        last = len(self.rates) + 1
        x = self.conv(f"decoder.model.{last + 1}", self.snake(f"decoder.model.{last}", x), padding=3)
        return torch.tanh(x)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--weights", required=True, help="safetensors file")
    rates = lambda s: [int(x) for x in s.split(",")]
    ap.add_argument("--rates", required=True, type=rates, help="decoder rates, as in 8,8,4,2")
    ap.add_argument("--encoder-rates", required=True, type=rates, help="encoder rates, as in 2,4,8,8")
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    codec = Codec(a.weights, a.rates, a.encoder_rates)
    inputs = {}
    print(f"ready torch {torch.__version__} threads {torch.get_num_threads()}", flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            word, *rest = line.split()
            if word == "quit":
                break
            n = int(rest[0])
            if word in ("decode", "encode"):
                if line not in inputs:
                    inputs[line] = torch.randn(1, codec.width, n) if word == "decode" else 0.1 * torch.randn(1, 1, n)
                run = lambda: getattr(codec, word)(inputs[line])
            else:
                a_, b_ = torch.randn(n, n), torch.randn(n, n)
                run = lambda: a_ @ b_
            start = time.perf_counter()
            run()
            print(f"{time.perf_counter() - start:.6f}", flush=True)


if __name__ == "__main__":
    main()
