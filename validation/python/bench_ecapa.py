#!/usr/bin/env python3
"""The PyTorch side of `cargo xtask bench --component ecapa`: computes voice vectors on demand and says how long
it took.

Loads the folder of a speaker encoder (config.json, model.safetensors) in float32 and runs it with
torch.nn.functional, as the module of the package qwen-tts does. Then it reads one command a line from standard
input:

    embed FRAMES      one vector of FRAMES mel frames; answers `SECONDS`
    quit
"""
import argparse
import json
import os
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


class Encoder:
    def __init__(self, folder):
        self.w = {k: v.float() for k, v in load_file(os.path.join(folder, "model.safetensors")).items()}
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            self.c = json.load(f)

    def conv(self, name, x, dilation=1):
        w = self.w[name + ".weight"]
        added = dilation * (w.shape[2] - 1)
        if added:
            x = F.pad(x, (added // 2, added - added // 2), mode="reflect")
        return F.conv1d(x, w, self.w[name + ".bias"], dilation=dilation)

    def tdnn(self, name, x, dilation=1):
        return torch.relu(self.conv(name + ".conv", x, dilation))

    def block(self, name, x, dilation):
        h = self.tdnn(f"{name}.tdnn1", x)
        groups, last = list(h.chunk(self.c["enc_res2net_scale"], 1)), None
        for j in range(1, len(groups)):
            group = groups[j] if last is None else groups[j] + last
            last = groups[j] = self.tdnn(f"{name}.res2net_block.blocks.{j - 1}", group, dilation)
        h = self.tdnn(f"{name}.tdnn2", torch.cat(groups, 1))
        gate = torch.relu(self.conv(f"{name}.se_block.conv1", h.mean(2, keepdim=True)))
        return x + h * torch.sigmoid(self.conv(f"{name}.se_block.conv2", gate))

    @staticmethod
    def statistics(x, weights):
        mean = (weights * x).sum(2)
        return mean, (weights * (x - mean[..., None]).pow(2)).sum(2).clamp(1e-12).sqrt()

    def __call__(self, mel):
        dilations = self.c["enc_dilations"]
        x = self.tdnn("blocks.0", mel.transpose(1, 2), dilations[0])
        joined = []
        for b in range(1, len(dilations) - 1):
            x = self.block(f"blocks.{b}", x, dilations[b])
            joined.append(x)
        x = self.tdnn("mfa", torch.cat(joined, 1), dilations[-1])
        frames = x.shape[2]
        even = torch.full((1, 1, frames), 1.0 / frames)
        context = [s[..., None].repeat(1, 1, frames) for s in self.statistics(x, even)]
        scores = self.conv("asp.conv", torch.tanh(self.tdnn("asp.tdnn", torch.cat([x, *context], 1))))
        pooled = torch.cat(self.statistics(x, torch.softmax(scores, 2)), 1)
        return self.conv("fc", pooled[..., None])[..., 0]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--weights", required=True, help="folder of the speaker encoder")
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    encoder = Encoder(a.weights)
    mels = {}
    print(f"ready torch {torch.__version__} threads {torch.get_num_threads()}", flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            word, *rest = line.split()
            if word == "quit":
                break
            frames = int(rest[0])
            if frames not in mels:
                mels[frames] = torch.randn(1, frames, encoder.c["mel_dim"]) - 7
            start = time.perf_counter()
            encoder(mels[frames])
            print(f"{time.perf_counter() - start:.6f}", flush=True)


if __name__ == "__main__":
    main()
