#!/usr/bin/env python3
"""The PyTorch side of `cargo xtask bench --component teacher`: runs the layers of Wav2Vec2-BERT on demand and says
how long it took.

Loads a folder (config.json, model.safetensors) in float32 and runs it with torch.nn.functional. Scores of distances
are made from a product with the table of distances and spread over the keys, which is faster and smaller than the
per-pair embeddings of Hugging Face transformers. Then it reads one command a line from standard input:

    hidden TOKENS     the last layer's output of TOKENS tokens; answers `SECONDS`
    quit
"""
import argparse
import json
import math
import os
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


class Teacher:
    def __init__(self, folder):
        self.w = {k: v.float() for k, v in load_file(os.path.join(folder, "model.safetensors")).items()}
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            self.c = json.load(f)

    def linear(self, name, x):
        return F.linear(x, self.w[name + ".weight"], self.w[name + ".bias"])

    def norm(self, name, x):
        w = self.w[name + ".weight"]
        return F.layer_norm(x, w.shape, w, self.w[name + ".bias"], self.c["layer_norm_eps"])

    def half(self, name, x):
        h = F.silu(self.linear(name + ".intermediate_dense", self.norm(name + "_layer_norm", x)))
        return x + 0.5 * self.linear(name + ".output_dense", h)

    def attention(self, name, h, distances):
        tokens, width = h.shape
        heads = self.c["num_attention_heads"]
        q, k, v = (self.linear(f"{name}.linear_{n}", h).view(tokens, heads, width // heads).transpose(0, 1)
                   for n in "qkv")
        near = q @ self.w[name + ".distance_embedding.weight"].T
        bias = near.gather(2, distances.expand(heads, tokens, tokens)) / math.sqrt(width // heads)
        out = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=bias[None])[0]
        return self.linear(name + ".linear_out", out.transpose(0, 1).reshape(tokens, width))

    def conv(self, name, x):
        h = self.norm(name + ".layer_norm", x)
        h = F.glu(F.linear(h, self.w[name + ".pointwise_conv1.weight"][..., 0]), 1)
        taps = self.w[name + ".depthwise_conv.weight"]
        h = F.conv1d(F.pad(h.T[None], (taps.shape[2] - 1, 0)), taps, groups=len(taps))[0].T
        h = F.silu(self.norm(name + ".depthwise_layer_norm", h))
        return x + F.linear(h, self.w[name + ".pointwise_conv2.weight"][..., 0])

    def __call__(self, features):
        x = self.linear("feature_projection.projection", self.norm("feature_projection.layer_norm", features))
        left, right = self.c["left_max_position_embeddings"], self.c["right_max_position_embeddings"]
        places = torch.arange(len(x))
        distances = (places[None] - places[:, None]).clamp(-left, right)[None] + left
        for i in range(self.c["num_hidden_layers"]):
            name = f"encoder.layers.{i}."
            x = self.half(name + "ffn1", x)
            x = x + self.attention(name + "self_attn", self.norm(name + "self_attn_layer_norm", x), distances)
            x = self.conv(name + "conv_module", x)
            x = self.norm(name + "final_layer_norm", self.half(name + "ffn2", x))
        return x


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--weights", required=True, help="folder of the model")
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    teacher = Teacher(a.weights)
    print(f"ready torch {torch.__version__} threads {torch.get_num_threads()}", flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            word, *rest = line.split()
            if word == "quit":
                break
            features = torch.randn(int(rest[0]), teacher.c["feature_projection_input_dim"])
            start = time.perf_counter()
            teacher(features)
            print(f"{time.perf_counter() - start:.6f}", flush=True)


if __name__ == "__main__":
    main()
