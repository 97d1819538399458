#!/usr/bin/env python3
"""The PyTorch side of `cargo xtask bench --component zac`: decodes ZAC-1 codes on demand and says how long it took.

Loads a decoder file in float32 and runs it with torch.nn.functional: attention over blocks of one window of queries and
two of keys, overlap-add by fold. Then it reads one command a line from standard input:

    decode FRAMES          codes of FRAMES frames, whole; answers `SECONDS`
    stream FRAMES STEP     the same in pieces of STEP frames, keys and values kept; answers `SECONDS`
    quit
"""
import argparse
import json
import math
import sys
import time

import torch
import torch.nn.functional as F
from safetensors import safe_open


class Stage:
    def __init__(self, w, prefix, rate, context):
        self.w, self.p = w, prefix
        layers = {int(k[len(prefix):].split(".")[2]) for k in w if k.startswith(prefix + "transformer.layers.")}
        self.layers = [f"{prefix}transformer.layers.{i}." for i in sorted(layers)]
        self.d = w[self.layers[0] + "norm1.weight"].shape[0]
        self.heads = self.d // 64
        self.context = int(rate * context)

    def rotate(self, x, first):
        pairs = torch.arange(32, dtype=torch.float32)
        frequency = torch.exp(pairs * (-math.log(10000.0) * 2 / 64))
        angle = (first + torch.arange(x.shape[1], dtype=torch.float32))[:, None] * frequency[None]
        turned = torch.view_as_complex(x.unflatten(-1, (32, 2)).contiguous()) * torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(turned).flatten(-2)

    def attention(self, q, k, v):
        """q [heads, T, 64]; k, v [heads, past + T, 64]."""
        t, n, c = q.shape[1], k.shape[1], self.context
        out = []
        for a in range(0, t, c):
            b = min(a + c, t)
            first = max(0, n - t + a - c + 1)
            last = n - t + b
            delta = torch.arange(n - t + a, last)[:, None] - torch.arange(first, last)[None]
            mask = (delta >= 0) & (delta < c)
            out.append(F.scaled_dot_product_attention(q[None, :, a:b], k[None, :, first:last], v[None, :, first:last],
                                                      attn_mask=mask)[0])
        return torch.cat(out, 1)

    def __call__(self, x, state):
        w = self.w
        if self.p + "input_proj.weight" in w:
            x = F.linear(x, w[self.p + "input_proj.weight"])
        first = state.setdefault("first", 0)
        for i, p in enumerate(self.layers):
            h = F.layer_norm(x, (self.d,), w[p + "norm1.weight"], w[p + "norm1.bias"], 1e-5)
            qkv = F.linear(h, w[p + "self_attn.in_proj.weight"]).view(-1, 3, self.heads, 64).permute(1, 2, 0, 3)
            q, k, v = self.rotate(qkv[0], first), self.rotate(qkv[1], first), qkv[2]
            if i in state:
                k, v = torch.cat([state[i][0], k], 1), torch.cat([state[i][1], v], 1)
            state[i] = (k[:, -(self.context - 1):], v[:, -(self.context - 1):])
            a = self.attention(q, k, v).transpose(0, 1).reshape(-1, self.d)
            x = x + w[p + "layer_scale_1.scale"] * F.linear(a, w[p + "self_attn.out_proj.weight"])
            h = F.layer_norm(x, (self.d,), w[p + "norm2.weight"], w[p + "norm2.bias"], 1e-5)
            h = F.linear(F.gelu(F.linear(h, w[p + "ffn.0.weight"])), w[p + "ffn.2.weight"])
            x = x + w[p + "layer_scale_2.scale"] * h
        state["first"] = first + x.shape[0]
        return x


class Decoder:
    def __init__(self, path):
        with safe_open(path, "pt") as f:
            self.w = {k: f.get_tensor(k).float() for k in f.keys()}
            kwargs = json.loads(f.metadata()["model_config"])["decoder_kwargs"]
        w = self.w
        self.stages, rate = [], 15
        for i, kw in enumerate(kwargs):
            if kw["module_type"] == "Transformer":
                self.stages.append(Stage(w, f"codec.decoder.{i}.", rate, kw["context_duration"]))
            else:
                self.stages.append(kw["patch_size"])
                rate *= kw["patch_size"]
        self.sizes = []
        while f"codec.head.out.{len(self.sizes)}.weight" in w:
            self.sizes.append(w[f"codec.head.out.{len(self.sizes)}.weight"].shape[0] - 2)
        self.windows = [torch.hann_window(n) for n in self.sizes]
        self.padding = (max(self.sizes) - 184) // 2

    def stack(self, x, p, state):
        w, i = self.w, 0
        while f"{p}blocks.{i}.norm.weight" in w:
            b = f"{p}blocks.{i}."
            past = state.get(p + str(i), x.new_zeros(6, x.shape[1]))
            full = torch.cat([past, x])
            state[p + str(i)] = full[-6:]
            y = F.conv1d(full.T[None], w[b + "dwconv.weight"], w[b + "dwconv.bias"], groups=x.shape[1])[0].T
            y = F.layer_norm(y, y.shape[1:], w[b + "norm.weight"], w[b + "norm.bias"], 1e-6)
            y = F.gelu(F.linear(y, w[b + "pwconv1.weight"], w[b + "pwconv1.bias"]))
            x = x + w[b + "gamma"] * F.linear(y, w[b + "pwconv2.weight"], w[b + "pwconv2.bias"])
            i += 1
        return x

    def vectors(self, name, codes):
        w, p = self.w, name + "."
        return F.linear(w[p + "codebook.weight"][codes], w[p + "out_proj.weight"][..., 0], w[p + "out_proj.bias"])

    def push(self, codes, state, last):
        """codes [F, 10] -> samples that are final."""
        w = self.w
        x = self.stack(self.vectors("codec.semantic_quantizer.quantizers.0", codes[:, 0]), "codec.semantic_head.", state)
        x = F.linear(x, w["codec.semantic_head.proj_out.weight"][..., 0], w["codec.semantic_head.proj_out.bias"])
        for i in range(9):
            x = x + self.vectors(f"codec.quantizer.quantizers.{i}", codes[:, i + 1])
        for i, s in enumerate(self.stages):
            x = s(x, state.setdefault(i, {})) if isinstance(s, Stage) else x.unflatten(1, (-1, s)).transpose(1, 2).flatten(0, 1)
        x = self.stack(x, "codec.head.trunk.", state)
        x = F.layer_norm(x, x.shape[1:], w["codec.head.norm.weight"], w["codec.head.norm.bias"], 1e-6)
        t0 = state.setdefault("t", 0)
        total = (t0 + x.shape[0]) * 184
        done = state.setdefault("done", 0)
        upto = total if last else max(done, total - self.padding)
        audio = 0
        for r, n in enumerate(self.sizes):
            m, p = F.linear(x, w[f"codec.head.out.{r}.weight"], w[f"codec.head.out.{r}.bias"]).chunk(2, 1)
            spec = torch.polar(torch.exp(m).clamp(max=100), p)
            frames = torch.fft.irfft(spec, n, dim=1) * self.windows[r]
            square = self.windows[r].square().expand_as(frames)
            both = torch.stack([frames, square]).transpose(1, 2)
            length = (x.shape[0] - 1) * 184 + n
            y, e = F.fold(both, (1, length), (1, n), stride=(1, 184))[:, 0, 0]
            at = t0 * 184 - (n - 184) // 2 - done                   # of the first sample, from the first not yet given
            if at < 0:
                y, e, at = y[-at:], e[-at:], 0
            held = state.get(("ola", r))
            if held is not None:
                size = max(at + y.shape[0], held[0].shape[0])
                y = F.pad(y, (at, size - at - y.shape[0])) + F.pad(held[0], (0, size - held[0].shape[0]))
                e = F.pad(e, (at, size - at - e.shape[0])) + F.pad(held[1], (0, size - held[1].shape[0]))
            audio = audio + y[: upto - done] / e[: upto - done]
            state[("ola", r)] = (y[upto - done:], e[upto - done:])
        state["t"], state["done"] = t0 + x.shape[0], upto
        buf = torch.cat([state.get("buf", torch.zeros(7)), audio])
        if last:
            buf = F.pad(buf, (0, 7))
        blocks = (buf.shape[0] - 14) // 736
        if blocks <= 0:
            state["buf"] = buf
            return torch.zeros(0)
        state["buf"] = buf[blocks * 736:]
        y = F.conv1d(buf[None, None, : blocks * 736 + 14], w["codec.resampler.kernel"], stride=736)
        return y[0].T.reshape(-1)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--weights", required=True)
    args.add_argument("--threads", type=int, required=True)
    a = args.parse_args()
    torch.set_num_threads(a.threads)
    torch.set_grad_enabled(False)
    decoder = Decoder(a.weights)
    print(f"ready torch {torch.__version__}", flush=True)
    for line in sys.stdin:
        words = line.split()
        if not words or words[0] == "quit":
            break
        frames = int(words[1])
        step = int(words[2]) if words[0] == "stream" else frames
        codes = torch.randint(0, 4096, (frames, 10), generator=torch.Generator().manual_seed(1))
        start = time.perf_counter()
        state = {}
        count = sum(decoder.push(codes[t:t + step], state, t + step >= frames).shape[0] for t in range(0, frames, step))
        seconds = time.perf_counter() - start
        assert count == frames * 2940, count
        print(seconds, flush=True)


if __name__ == "__main__":
    main()
