#!/usr/bin/env python3
"""The PyTorch side of `cargo xtask bench --component zac-encode`: encodes with ZAC-1 on demand and says how long it
took.

Loads a zac-1/1 encoder file, sizes and teacher from its metadata, and runs it in float32 with torch.nn.functional: one
lane, as clips of up to twenty seconds are. Attention is torch's own fused one where it can express it (the windows of
the acoustic stages by their mask, the teacher's distances as an additive bias). Reads one command a line:

    encode SAMPLES    encode SAMPLES of random audio at 44.1 kHz to codes once; answers `SECONDS`
    teacher SAMPLES   the teacher alone on SAMPLES at 16 kHz, its filterbank included; answers `SECONDS`
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

HOP, RATE, TEACHER_RATE = 2940, 44100, 16000


def sinc_kernel(orig, new, crossings=6, rolloff=0.99):
    g = math.gcd(orig, new)
    orig, new = orig // g, new // g
    base = min(orig, new) * rolloff
    width = math.ceil(crossings * orig / base)
    at = torch.arange(-width, width + orig, dtype=torch.float32)[None] / orig
    t = ((torch.arange(0, -new, -1)[:, None] / new + at) * base).clamp(-crossings, crossings)
    window = torch.cos(t * math.pi / crossings / 2) ** 2
    t = t * math.pi
    return torch.where(t == 0, torch.ones(()), t.sin() / t) * window * (base / orig), orig, width


def resample(x, kernel, orig, width):
    """Frames times the kernel's rows: faster than a convolution with so many taps."""
    frames = F.pad(x, (width, width + orig)).unfold(0, kernel.shape[1], orig)
    return (frames @ kernel.T).reshape(-1)[: -(-kernel.shape[0] * len(x) // orig)]


def fbank(x, bands=80):
    frames = (x * 32768.0).unfold(0, 400, 160)
    frames = frames - frames.mean(1, keepdim=True)
    frames = torch.cat([frames[:, :1] * 0.03, frames[:, 1:] - 0.97 * frames[:, :-1]], 1)
    window = (0.5 - 0.5 * torch.cos(2 * math.pi * torch.arange(400) / 399)) ** 0.85
    power = torch.fft.rfft(frames * window, 512).abs() ** 2
    mel = lambda f: 1127.0 * torch.log(1.0 + f / 700.0)
    edges = torch.linspace(float(mel(torch.tensor(20.0))), float(mel(torch.tensor(8000.0))), bands + 2)
    bins = mel(torch.arange(256) * (16000 / 512))
    lo, mid, hi = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    bank = torch.minimum((bins - lo) / (mid - lo), (hi - bins) / (hi - mid)).clamp_min(0)
    logs = (power[:, :256] @ bank.T).clamp_min(1.1920929e-07).log()
    logs = (logs - logs.mean(0)) / (logs.var(0) + 1e-7).sqrt()
    return logs[: len(logs) // 2 * 2].reshape(-1, 2 * bands)


class Encoder:
    def __init__(self, path):
        with safe_open(path, "pt") as f:
            meta = f.metadata()
            self.w = {k: f.get_tensor(k).float() for k in f.keys()}
        self.c, self.t = json.loads(meta["model_config"]), json.loads(meta["teacher_config"])
        kernel = self.w["codec.resampler.kernel"]
        self.up = (kernel.reshape(kernel.shape[0], -1), 735, (kernel.shape[-1] - 735) // 2)
        self.down = sinc_kernel(RATE, TEACHER_RATE)

    def lin(self, name, x, bias=True):
        w = self.w[name + ".weight"]
        return F.linear(x, w.reshape(w.shape[0], -1), self.w[name + ".bias"] if bias else None)

    def norm(self, name, x, eps=1e-5):
        return F.layer_norm(x, x.shape[-1:], self.w[name + ".weight"], self.w[name + ".bias"], eps)

    # ------------------------------------------------------------------ acoustic half
    def stage(self, at, kw, x, rate):
        d, heads = kw["d_model"], kw["num_heads"]
        hd, n = d // heads, x.shape[0]
        context = int(rate * kw["context_duration"])
        if kw["input_dimension"] != d:
            x = self.lin(at + ".input_proj", x, False)
        freq = torch.exp(torch.arange(hd // 2) * (-math.log(kw["max_period"]) * 2 / hd))
        angle = torch.arange(n)[:, None] * freq
        turn = torch.polar(torch.ones_like(angle), angle)[:, None]
        rotate = lambda v: torch.view_as_real(torch.view_as_complex(v.reshape(n, heads, hd // 2, 2)) * turn).reshape(n, heads, hd)
        # Queries in blocks that see their own window: a mask over all pairs would be slower and larger.
        block = max(context, 64)
        for i in range(kw["num_layers"]):
            p = f"{at}.transformer.layers.{i}"
            q, k, v = self.lin(p + ".self_attn.in_proj", self.norm(p + ".norm1", x), False).view(n, 3, heads, hd).unbind(1)
            q, k, v = rotate(q).transpose(0, 1), rotate(k).transpose(0, 1), v.transpose(0, 1)
            parts = []
            for start in range(0, n, block):
                end, first = min(n, start + block), max(0, start - context + 1)
                apart = torch.arange(start, end)[:, None] - torch.arange(first, end)[None]
                mask = (apart >= 0) & (apart < context)
                parts.append(F.scaled_dot_product_attention(q[None, :, start:end], k[None, :, first:end],
                                                            v[None, :, first:end], attn_mask=mask)[0])
            a = torch.cat(parts, 1).transpose(0, 1).reshape(n, d)
            x = x + self.w[p + ".layer_scale_1.scale"] * self.lin(p + ".self_attn.out_proj", a, False)
            h = F.gelu(self.lin(p + ".ffn.0", self.norm(p + ".norm2", x), False))
            x = x + self.w[p + ".layer_scale_2.scale"] * self.lin(p + ".ffn.2", h, False)
        if kw["output_dimension"] != d:
            x = self.lin(at + ".output_proj", x, False)
        return x

    def acoustic(self, x):
        x, rate = resample(x, *self.up)[:, None], float(self.c["codec_sample_rate"])
        for i, kw in enumerate(self.c["encoder_kwargs"]):
            if kw["module_type"] == "Transformer":
                x = self.stage(f"codec.encoder.{i}", kw, x, rate)
            else:
                h = kw["patch_size"]
                x, rate = x.view(-1, h, x.shape[1]).transpose(1, 2).reshape(x.shape[0] // h, -1), rate / h
        return x

    # ------------------------------------------------------------------ semantic half
    def teacher(self, x):
        heads, left, right = self.t["num_attention_heads"], self.t["left_max_position_embeddings"], self.t["right_max_position_embeddings"]
        x = fbank(x)
        n = x.shape[0]
        f = "teacher.feature_projection"
        x = self.lin(f + ".projection", self.norm(f + ".layer_norm", x))
        d = x.shape[1]
        hd = d // heads
        apart = (torch.arange(n)[None] - torch.arange(n)[:, None]).clamp(-left, right) + left
        for i in range(self.t.get("feature_layer", self.t["num_hidden_layers"])):
            p = f"teacher.encoder.layers.{i}"

            def ffn(x, name):
                h = F.silu(self.lin(f"{p}.{name}.intermediate_dense", self.norm(f"{p}.{name}_layer_norm", x)))
                return self.lin(f"{p}.{name}.output_dense", h)
            x = x + 0.5 * ffn(x, "ffn1")
            h = self.norm(p + ".self_attn_layer_norm", x)
            q, k, v = (self.lin(f"{p}.self_attn.linear_{c}", h).view(n, heads, hd).transpose(0, 1) for c in "qkv")
            bias = (q @ self.w[p + ".self_attn.distance_embedding.weight"].T).gather(2, apart[None].expand(heads, n, n))
            a = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=bias[None] / math.sqrt(hd))[0]
            x = x + self.lin(p + ".self_attn.linear_out", a.transpose(0, 1).reshape(n, d))
            h = self.lin(p + ".conv_module.pointwise_conv1", self.norm(p + ".conv_module.layer_norm", x), False)
            h = F.glu(h)
            kernel = self.w[p + ".conv_module.depthwise_conv.weight"]
            h = F.conv1d(F.pad(h.T[None], (kernel.shape[-1] - 1, 0)), kernel, groups=d)[0].T
            h = F.silu(self.norm(p + ".conv_module.depthwise_layer_norm", h))
            x = x + self.lin(p + ".conv_module.pointwise_conv2", h, False)
            x = x + 0.5 * ffn(x, "ffn2")
            x = self.norm(p + ".final_layer_norm", x)
        return x

    def stack(self, at, kw, x):
        if kw.get("proj_in"):
            x = self.lin(at + ".proj_in", x)
        for i in range(kw["num_layers"]):
            p = f"{at}.blocks.{i}"
            h = F.conv1d(F.pad(x.T[None], (6, 0)), self.w[p + ".dwconv.weight"], self.w[p + ".dwconv.bias"], groups=x.shape[1])[0].T
            h = F.gelu(self.lin(p + ".pwconv1", self.norm(p + ".norm", h, 1e-6)))
            x = x + self.w[p + ".gamma"] * self.lin(p + ".pwconv2", h)
        return self.lin(at + ".proj_out", x) if kw.get("proj_out") else x

    def search(self, at, x):
        rows = self.w[at + ".codebook.weight"]
        e = F.normalize(self.lin(at + ".in_proj", x))
        code = (e @ F.normalize(rows).T).argmax(1)
        return code, self.lin(at + ".out_proj", rows[code])

    def encode(self, x):
        frames = -(-len(x) // HOP)
        x = F.pad(x, (0, frames * HOP - len(x)))
        left = self.acoustic(x)
        h = self.teacher(resample(x, *self.down))
        h = (h - self.w["codec.semantic_mean"]) / self.w["codec.semantic_std"]
        h = self.stack("codec.semantic_encoder", self.c["semantic_encoder_kwargs"], F.adaptive_avg_pool1d(h.T[None], frames)[0].T)
        code, vectors = self.search("codec.semantic_quantizer.quantizers.0", h)
        left, codes = left - self.stack("codec.semantic_head", self.c["semantic_head_kwargs"], vectors), [code]
        for q in range(self.c["quantizer_kwargs"]["n_codebooks"]):
            code, vectors = self.search(f"codec.quantizer.quantizers.{q}", left)
            left = left - vectors
            codes.append(code)
        return torch.stack(codes, 1)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--weights", required=True, help="zac-1/1 encoder file without weight norm")
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--check", metavar="GOLDEN", help="compare the codes of a golden folder's first lane, and end")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    codec = Encoder(a.weights)
    with torch.inference_mode():
        if a.check:
            from safetensors.torch import load_file
            g = load_file(a.check + "/golden.safetensors")
            frames = g["lane0.codes"].shape[0]
            codes = codec.encode(g["prepared"][: frames * HOP])
            print(f"{(codes == g['lane0.codes']).float().mean():.4f} of the codes of lane 0 agree")
            return
        print(f"ready torch {torch.__version__} threads {torch.get_num_threads()}", flush=True)
        inputs = {}
        for line in sys.stdin:
            word, *rest = line.split()
            if word == "quit":
                break
            if line not in inputs:
                inputs[line] = 0.1 * torch.randn(int(rest[0]))
            start = time.perf_counter()
            getattr(codec, word)(inputs[line])
            print(f"{time.perf_counter() - start:.6f}", flush=True)


if __name__ == "__main__":
    main()
