#!/usr/bin/env python3
"""Run Wav2Vec2-BERT as Hugging Face transformers has it on recordings and write a golden folder for
`cargo xtask golden-diff --component w2v-bert --dir DIR`.

    dump_w2v_bert.py --weights FOLDER --audio a.wav b.wav --out DIR
    dump_w2v_bert.py --weights FOLDER --like OTHER_GOLDEN_FOLDER --out DIR

FOLDER holds model.safetensors, config.json and, if it is not the usual front end, preprocessor_config.json, as
https://huggingface.co/facebook/w2v-bert-2.0 does. Recordings are mono WAV files at 16 kHz, 16-bit PCM or 32-bit
float; they are copied into DIR, and their names name the keys. --like takes those of another golden folder and
compares the result with it. --layers N leaves layers after N out, as ZAC-1 does after 16.
"""
import argparse
import json
import os
import shutil
import struct
import sys

import numpy as np
import torch
import transformers
from transformers import SeamlessM4TFeatureExtractor, Wav2Vec2BertConfig, Wav2Vec2BertModel

from golden_folder import compare, place_checkpoint, read_golden, write_golden

RATE = 16000
FILES = ("config.json", "model.safetensors", "preprocessor_config.json")


def read_wav(path):
    """-> [samples] float32. 16-bit PCM and 32-bit float, one channel, 16 kHz."""
    with open(path, "rb") as f:
        data = f.read()
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        sys.exit(f"{path}: not a WAV file")
    at, form, body = 12, None, None
    while at + 8 <= len(data):
        name, size = data[at:at + 4], struct.unpack_from("<I", data, at + 4)[0]
        if name == b"fmt ":
            form = struct.unpack_from("<HHIIHH", data, at + 8)
        elif name == b"data":
            body = data[at + 8:at + 8 + size]
        at += 8 + size + size % 2
    if form is None or body is None:
        sys.exit(f"{path}: no format or no samples in it")
    tag, channels, rate, _, _, bits = form
    if (channels, rate) != (1, RATE):
        sys.exit(f"{path}: expected one channel at {RATE} Hz, found {channels} at {rate} Hz")
    if tag == 1 and bits == 16:
        return np.frombuffer(body, "<i2").astype(np.float32) / np.float32(32768)
    if tag == 3 and bits == 32:
        return np.frombuffer(body, "<f4").copy()
    sys.exit(f"{path}: expected 16-bit PCM or 32-bit float, found format {tag} of {bits} bits")


def load_original(folder, layers):
    config = Wav2Vec2BertConfig.from_pretrained(folder)
    if layers is not None:
        config.num_hidden_layers = layers
    model = Wav2Vec2BertModel.from_pretrained(folder, config=config, dtype=torch.float32)
    has_front_end = os.path.exists(os.path.join(folder, "preprocessor_config.json"))
    front_end = (SeamlessM4TFeatureExtractor.from_pretrained(folder) if has_front_end else
                 SeamlessM4TFeatureExtractor(feature_size=80, num_mel_bins=80, padding_value=1.0, sampling_rate=RATE,
                                             stride=2))
    return model.eval(), front_end


@torch.no_grad()
def run(model, front_end, samples):
    """-> {stage: array} of one clip, and its mask."""
    out = {"wav": samples}
    out["fbank"] = np.ascontiguousarray(front_end._extract_fbank_features(samples))
    mean, var = out["fbank"].mean(0), out["fbank"].var(0, ddof=1)
    out["fbank_normalised"] = ((out["fbank"] - mean) / np.sqrt(var + 1e-7)).astype(np.float32)
    encoded = front_end(samples, sampling_rate=RATE, return_tensors="pt")
    out["input_features"] = encoded["input_features"][0].numpy()
    out["attention_mask"] = encoded["attention_mask"][0].int().numpy()
    states = model(**encoded, output_hidden_states=True).hidden_states
    for i, state in enumerate(states):
        out[f"hidden{i}"] = state[0].numpy()
    return out, encoded


@torch.no_grad()
def run_half(model, encoded, layer):
    states = model(input_features=encoded["input_features"].bfloat16(), attention_mask=encoded["attention_mask"],
                   output_hidden_states=True).hidden_states
    return states[layer][0].float().numpy()


def statistics(path, seed, width):
    """Mean and variance of the channels: from a file with both, or drawn."""
    if path is not None:
        import safetensors.numpy
        found = (np.load(path) if path.endswith(".npz") else safetensors.numpy.load_file(path))
        return np.asarray(found["mean"], np.float32), np.asarray(found["var"], np.float32)
    if seed is None:
        return None
    rng = np.random.default_rng(seed)
    return (0.3 * rng.standard_normal(width)).astype(np.float32), (0.4 + rng.random(width)).astype(np.float32)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--weights", required=True, help="folder with config.json and model.safetensors")
    ap.add_argument("--out", required=True, help="folder to write")
    ap.add_argument("--audio", nargs="+", default=[], help="mono WAV files at 16 kHz")
    ap.add_argument("--like", help="golden folder whose recordings are used; the result is compared with it")
    ap.add_argument("--layers", type=int, help="run this many layers (default: all)")
    ap.add_argument("--layer", type=int, help="layer whose output is also stored normalised and from a run in "
                                              "bfloat16 (default: 16, or the last)")
    ap.add_argument("--stats", help=".npz or .safetensors with `mean` and `var` of that layer's channels")
    ap.add_argument("--stats-seed", type=int, help="draw such statistics with this seed")
    ap.add_argument("--no-tables", action="store_true", help="leave out the front end's window and bands")
    ap.add_argument("--checkpoint", choices=["link", "copy", "none"], default="link",
                    help="how the checkpoint gets into the folder (default: a symbolic link)")
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    like = read_golden(a.like)
    recordings = list(a.audio)
    if a.like:
        recordings += sorted(os.path.join(a.like, n) for n in os.listdir(a.like) if n.endswith(".wav"))
    if not recordings:
        sys.exit("no recordings: give --audio or --like")

    model, front_end = load_original(a.weights, a.layers)
    count = model.config.num_hidden_layers
    layer = min(16, count) if a.layer is None else a.layer
    if not 0 <= layer <= count:
        sys.exit(f"--layer {layer}: the model has {count} layers")
    half, _ = load_original(a.weights, a.layers)
    half = half.bfloat16()
    stats = statistics(a.stats, a.stats_seed, model.config.hidden_size)
    if "stats.mean" in like and stats is None:
        stats = like["stats.mean"], like["stats.var"]

    os.makedirs(a.out, exist_ok=True)
    g, facts = {}, {"feature_layer": layer, "torch": torch.__version__, "transformers": transformers.__version__,
                    "clips": {}}
    if stats is not None:
        g["stats.mean"], g["stats.var"] = stats
    if not a.no_tables:
        g["frontend.window"] = np.asarray(front_end.window, np.float64)
        g["frontend.mel_filters"] = np.asarray(front_end.mel_filters, np.float64)
    for path in recordings:
        name = os.path.splitext(os.path.basename(path))[0]
        target = os.path.join(a.out, name + ".wav")
        if not (os.path.exists(target) and os.path.samefile(path, target)):
            shutil.copyfile(path, target)
        stages, encoded = run(model, front_end, read_wav(path))
        stages[f"layer{layer}_bf16_run"] = run_half(half, encoded, layer)
        if stats is not None:
            stages[f"layer{layer}_normalised"] = (stages[f"hidden{layer}"] - stats[0]) / np.sqrt(stats[1])
        g.update({f"{name}.{stage}": value for stage, value in stages.items()})
        x, y = stages[f"hidden{layer}"].ravel(), stages[f"layer{layer}_bf16_run"].ravel()
        mask = stages["attention_mask"]
        facts["clips"][name] = {
            "samples": len(stages["wav"]), "fbank_frames": len(stages["fbank"]), "tokens": len(mask),
            "masked_tokens": int((mask == 0).sum()),
            "bf16_run_cosine_at_layer": float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))}
        print(f"{name}: {len(mask)} tokens, {facts['clips'][name]['masked_tokens']} masked")
    write_golden(a.out, g, facts, "float32")
    if a.checkpoint != "none":
        for file in FILES:
            if os.path.exists(os.path.join(a.weights, file)):
                place_checkpoint(os.path.join(a.weights, file), a.out, file, a.checkpoint)
    if like and not compare(g, like):
        sys.exit(1)


if __name__ == "__main__":
    main()
