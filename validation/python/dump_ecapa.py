#!/usr/bin/env python3
"""Run the original speaker encoder (the module of the PyPI package qwen-tts, behind torchaudio's resampling and mel
spectrogram) on recordings and write a golden folder for `cargo xtask golden-diff --component ecapa --dir DIR`.

    dump_ecapa.py --weights FOLDER --audio a.wav b.wav --out DIR
    dump_ecapa.py --weights FOLDER --like OTHER_GOLDEN_FOLDER --out DIR

FOLDER holds config.json and model.safetensors, of the encoder alone or of a text-to-speech model that has one.
Recordings are 16-bit PCM WAV files of any rate; they are copied into DIR, and their names name the keys. --like
takes those of another golden folder and compares the result with it.
"""
import argparse
import importlib
import importlib.machinery
import importlib.util
import json
import os
import shutil
import sys
import types
import wave

import numpy as np
import torch
import torchaudio
from safetensors.torch import load_file

from golden_folder import compare, place_checkpoint, read_golden, write_golden

PREFIX = "speaker_encoder."
N_FFT, HOP = 1024, 256


# ---------------------------------------------------------------------------- the original model
def original_module():
    """The package's modelling and configuration files. Its own __init__ files import the whole
    text-to-speech pipeline, so empty modules stand in for them, and for librosa if that is missing."""
    spec = importlib.util.find_spec("qwen_tts")
    if spec is None:
        sys.exit("the package is missing: pip install --no-deps qwen-tts")
    base = list(spec.submodule_search_locations)[0]

    def module(name, path=None, **attributes):
        m = types.ModuleType(name)
        m.__dict__.update(attributes)
        m.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=path is not None)
        if path is not None:
            m.__path__ = path
        sys.modules[name] = m

    for name in ("qwen_tts", "qwen_tts.core", "qwen_tts.core.models", "qwen_tts.inference"):
        module(name, [os.path.join(base, *name.split(".")[1:])])
    module("qwen_tts.inference.qwen3_tts_tokenizer", Qwen3TTSTokenizer=object)
    if importlib.util.find_spec("librosa") is None:
        module("librosa", [])
        module("librosa.filters", mel=None)      # only for a mel spectrogram that is not used here
    return (importlib.import_module("qwen_tts.core.models.modeling_qwen3_tts"),
            importlib.import_module("qwen_tts.core.models.configuration_qwen3_tts"))


def load_original(folder):
    modeling, configuration = original_module()
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        fields = json.load(f)
    fields = fields.get("speaker_encoder_config", fields)
    cls = configuration.Qwen3TTSSpeakerEncoderConfig
    known = cls.__init__.__code__.co_varnames
    config = cls(**{k: v for k, v in fields.items() if k in known})
    state = load_file(os.path.join(folder, "model.safetensors"))
    inside = {k.removeprefix(PREFIX): v.float() for k, v in state.items() if k.startswith(PREFIX)}
    model = modeling.Qwen3TTSSpeakerEncoder(config).eval()
    model.load_state_dict(inside or {k: v.float() for k, v in state.items()})
    return model, config


# ---------------------------------------------------------------------------- audio
def read_wav(path):
    """-> [channels, samples] float32, rate"""
    with wave.open(path, "rb") as w:
        if w.getsampwidth() != 2:
            sys.exit(f"{path}: expected 16-bit PCM, found {8 * w.getsampwidth()} bits")
        x = np.frombuffer(w.readframes(w.getnframes()), "<i2").reshape(-1, w.getnchannels())
        return np.ascontiguousarray(x.T).astype(np.float32) / np.float32(32768), w.getframerate()


def front_end(path, config):
    """-> [1, samples] at the model's rate, log-mel [1, frames, bands]"""
    channels, rate = read_wav(path)
    x = torch.from_numpy(channels).mean(0, keepdim=True)
    if rate != config.sample_rate:
        x = torchaudio.transforms.Resample(rate, config.sample_rate)(x)
    spectrogram = torchaudio.transforms.MelSpectrogram(
        sample_rate=config.sample_rate, n_fft=N_FFT, win_length=N_FFT, hop_length=HOP, f_min=0.0, f_max=12000.0,
        n_mels=config.mel_dim, power=1.0, center=False, norm="slaney", mel_scale="slaney")
    side = (N_FFT - HOP) // 2
    padded = torch.nn.functional.pad(x[:, None], (side, side), mode="reflect")[:, 0]
    return x, spectrogram(padded).clamp(min=1e-5).log().transpose(1, 2)


@torch.no_grad()
def run(model, mel):
    """Outputs of the stages, without the batch axis."""
    seen, hooks = {}, []

    def tap(name, module):
        keep = lambda _m, _i, out: seen.__setitem__(name, out[0].numpy().copy())
        hooks.append(module.register_forward_hook(keep))
    for i, block in enumerate(model.blocks):
        tap(f"block{i}", block)
    tap("mfa", model.mfa)
    tap("asp", model.asp)
    seen["emb"] = model(mel)[0].numpy().copy()
    for hook in hooks:
        hook.remove()
    seen["asp"] = seen["asp"][:, 0]
    return seen


def sums(x):
    x = x.astype(np.float64)
    return np.array([x.sum(), (x * x).sum(), np.abs(x).max()])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--weights", required=True, help="folder with config.json and model.safetensors")
    ap.add_argument("--out", required=True, help="folder to write")
    ap.add_argument("--audio", nargs="+", default=[], help="16-bit PCM WAV files")
    ap.add_argument("--like", help="golden folder whose recordings are used; the result is compared with it")
    ap.add_argument("--sums", action="store_true", help="store three sums of each stage, not its values")
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

    model, config = load_original(a.weights)
    os.makedirs(a.out, exist_ok=True)
    g, facts = {}, {"weights": os.path.basename(os.path.normpath(a.weights)), "torch": torch.__version__,
                    "torchaudio": torchaudio.__version__, "recordings": {}}
    for path in recordings:
        name = os.path.splitext(os.path.basename(path))[0]
        target = os.path.join(a.out, name + ".wav")
        if not (os.path.exists(target) and os.path.samefile(path, target)):
            shutil.copyfile(path, target)
        x, mel = front_end(path, config)
        stages = run(model, mel)
        g[f"{name}.wav24k"], g[f"{name}.mel"] = x[0].numpy(), mel[0].numpy()
        for stage, value in stages.items():
            if stage not in ("asp", "emb"):
                g[f"{name}.sum.{stage}"] = sums(value)
                if a.sums:
                    continue
            g[f"{name}.{stage}"] = value
        norm = float(np.linalg.norm(stages["emb"]))
        facts["recordings"][name] = {"frames": int(mel.shape[1]), "vector_norm": norm}
        print(f"{name}: {mel.shape[1]} frames, norm of the vector {norm:.4f}")
    write_golden(a.out, g, facts, "float32")
    # A folder of its own: the golden's WAV files and the checkpoint's do not mix.
    if a.checkpoint != "none":
        inside = os.path.join(a.out, "checkpoint")
        for file in ("config.json", "model.safetensors"):
            place_checkpoint(os.path.join(a.weights, file), inside, file, a.checkpoint)
    if like and not compare(g, like):
        sys.exit(1)


if __name__ == "__main__":
    main()
