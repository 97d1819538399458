#!/usr/bin/env python3
"""Run torchaudio and torch on signals and write a golden folder for
`cargo xtask golden-diff --component audio --dir DIR`: resampling with both recipes, mel spectrograms,
short-time Fourier transforms and their inverses.

    dump_audio.py --out DIR
    dump_audio.py --out DIR --audio speech.wav --pairs 22050:24000 44100:16000
    dump_audio.py --out DIR --like OTHER_GOLDEN_FOLDER

Signals are sweeps with noise, cut from a recording (--audio), or those of another golden (--like), whose
settings are used too and which is then compared with what was computed here.
"""
import argparse
import json
import math
import os
import sys
import warnings
import wave

import numpy as np
import torch
import torchaudio
from safetensors.numpy import load_file, save_file

from golden_folder import compare

warnings.filterwarnings("ignore", category=UserWarning)    # bands without frequencies, missing windows

PAIRS = ["44100:24000", "48000:24000", "16000:24000", "22050:24000", "48000:44100", "44100:44160",
         "44160:44100", "44100:16000", "8000:44100"]
SHORT = (1, 2, 7)            # samples of the shortest signals
KERNEL_VALUES = 45000        # larger filters are not stored
LENGTHS = (1, 2, 3, 10, 441, 44100, 100003, 441001, 1323003)
LOST = (100_000, 3_000_000)  # where lengths are looked for whose remainder the float32 quotient loses
SPEAKER = dict(sample_rate=24000, n_fft=1024, win_length=1024, hop_length=256, f_min=0.0, f_max=12000.0, power=1.0,
               center=False, norm="slaney", mel_scale="slaney")
SPEAKER_PAD, FLOOR = 384, 1e-5
MELS = {
    "default16k": dict(sample_rate=16000, n_fft=400, hop_length=160, n_mels=80),
    "slaney22k": dict(sample_rate=22050, n_fft=1024, hop_length=256, n_mels=80, f_min=0.0, f_max=8000.0, power=1.0,
                      norm="slaney", mel_scale="slaney"),
    "htk_norm": dict(sample_rate=44100, n_fft=2048, win_length=1200, hop_length=512, n_mels=64, f_min=40.0,
                     f_max=16000.0, norm="slaney", mel_scale="htk"),
}
STFTS = {
    name: dict(n_fft=n, hop=h, win=w, center=c, pad_mode=p, normalized=z)
    for name, n, h, w, c, p, z in [
        ("a", 16, 4, 16, True, "reflect", False), ("b", 64, 16, 64, True, "reflect", False),
        ("c", 400, 160, 400, True, "reflect", False), ("d", 512, 128, 400, True, "reflect", False),
        ("e", 1024, 256, 1024, False, "reflect", False), ("f", 1024, 256, 1024, True, "constant", False),
        ("g", 2048, 512, 2048, True, "reflect", True), ("h", 30, 10, 30, True, "replicate", False),
        ("i", 25, 5, 21, True, "reflect", False)]
}
STFTS["rect"] = dict(n_fft=64, hop=16, win="64 ones", center=False)
STFTS["free"] = dict(n_fft=64, hop=16, win="hann 64", center=True,
                     comment="imaginary parts of bins 0 and n_fft/2 are ignored")
HANN = (4, 5, 400, 1024)


class Signals:
    """Where inputs come from."""

    def __init__(self, seed, recording, like):
        self.rng, self.recording, self.like = np.random.default_rng(seed), recording, like

    def get(self, key, samples, rate):
        if key in self.like:
            return self.like[key]
        if self.recording is not None:
            if len(self.recording) < samples:
                sys.exit(f"the recording has {len(self.recording)} samples, {key} needs {samples}")
            start = int(self.rng.integers(0, len(self.recording) - samples + 1))
            return self.recording[start: start + samples]
        t = np.arange(samples) / rate
        sweep = np.sin(0.9 * math.pi * rate / 2 / t[-1] * t * t) if samples > 1 else np.ones(1)
        y = 0.3 * sweep + 0.2 * np.sin(2 * math.pi * 440 * t) + 0.05 * self.rng.uniform(-1, 1, samples)
        y[0], y[-1] = 0.95, -0.9
        return y.astype(np.float32)


def resampling(signals, pairs, seconds):
    g, facts = {}, {}
    for pair in pairs:
        orig, new = map(int, pair.split(":"))
        key = f"{orig}-{new}"
        x = torch.from_numpy(signals.get(f"{key}.x", int(orig * seconds), orig))
        transform = torchaudio.transforms.Resample(orig, new)
        g[f"{key}.x"], g[f"{key}.transform"] = x.numpy(), transform(x).numpy()
        g[f"{key}.functional"] = torchaudio.functional.resample(x, orig, new).numpy()
        kernel = transform.kernel[:, 0].numpy()
        if kernel.size <= KERNEL_VALUES:
            g[f"{key}.kernel"] = kernel
        for n in SHORT:
            g[f"{key}.short{n}"] = transform(x[:n].clone()).numpy()
        gcd = math.gcd(orig, new)
        facts[key] = {"gcd": gcd, "orig": orig // gcd, "new": new // gcd, "width": transform.width,
                      "kernel": list(kernel.shape), "in": len(x), "out": len(g[f"{key}.transform"])}
    if "44100:24000" in pairs:
        x = signals.like.get("stereo.x")
        if x is None:
            x = np.stack([signals.get("", 1500, 44100), signals.get("", 1500, 44100)])
        g["stereo.x"] = x
        g["stereo.44100-24000"] = torchaudio.transforms.Resample(44100, 24000)(torch.from_numpy(x)).numpy()
    return g, {"pairs": facts, "length_columns": ["orig_rate", "new_rate", "samples_in", "samples_out", "true_ceiling"],
               "lengths": [row for pair in pairs for row in lengths(*map(int, pair.split(":")))]}


def lengths(orig, new):
    """Samples out for samples in: some of all sizes, and the first three whose remainder is lost."""
    gcd = math.gcd(orig, new)
    o, n = orig // gcd, new // gcd
    out = lambda k: int(torch.ceil(torch.as_tensor(n * k / o)).long())
    true = lambda k: -(-k * n // o)
    k = np.arange(*LOST)
    lost = k[np.ceil((n * k / o).astype(np.float32)).astype(np.int64) != -(-k * n // o)][:3]
    return [[orig, new, int(k), out(int(k)), true(int(k))] for k in [*LENGTHS, *lost]]


def mel(signals, n_mels, settings):
    g, facts = {}, {}
    front_end = torchaudio.transforms.MelSpectrogram(n_mels=n_mels, **SPEAKER)
    g["speaker.bank"], g["speaker.window"] = front_end.mel_scale.fb.numpy(), front_end.spectrogram.window.numpy()
    for name, samples in (("loud", 7300), ("quiet", 4000), ("min385", 385), ("n1280", 1280), ("n1535", 1535), ("zeros", 2048)):
        key = f"speaker.{name}"
        x = signals.get(f"{key}.x", samples, 24000)
        if f"{key}.x" not in signals.like:
            x = x * np.float32({"quiet": 1e-4, "zeros": 0}.get(name, 1))
        padded = torch.nn.functional.pad(torch.from_numpy(x)[None, None], (SPEAKER_PAD, SPEAKER_PAD), mode="reflect")[0]
        linear = front_end(padded)[0].T
        g[f"{key}.x"], g[f"{key}.linear"] = x, linear.numpy()
        g[f"{key}.mel"] = torch.log(torch.clamp(linear, min=FLOOR)).numpy()
        facts[name] = {"samples": len(x), "frames": len(linear)}
    for name, arguments in settings.items():
        module = torchaudio.transforms.MelSpectrogram(**arguments)
        x = signals.get(f"{name}.x", 6000, arguments["sample_rate"])
        g[f"{name}.x"], g[f"{name}.bank"] = x, module.mel_scale.fb.numpy()
        g[f"{name}.mel"] = module(torch.from_numpy(x)).numpy()
        facts[name] = arguments
    return g, facts


def stft(signals, settings, samples):
    g, facts = {}, {}
    for name, setting in settings.items():
        n_fft, hop, win = setting["n_fft"], setting["hop"], setting["win"]
        window = torch.ones(n_fft) if str(win).endswith("ones") else torch.hann_window(n_fft if isinstance(win, str) else win)
        common = dict(n_fft=n_fft, hop_length=hop, win_length=len(window), window=window,
                      center=setting.get("center", True), normalized=setting.get("normalized", False))
        given = isinstance(win, str) and not win.endswith("ones")    # a spectrum that is no signal's
        if given:
            shape = (n_fft // 2 + 1, 20)
            draw = lambda part: signals.like.get(f"{name}.{part}", signals.rng.uniform(-1, 1, shape).astype(np.float32))
            spectrum = torch.complex(torch.from_numpy(draw("re")), torch.from_numpy(draw("im")))
        else:
            x = signals.get(f"{name}.x", 1200 if isinstance(win, str) else samples, 24000)
            g[f"{name}.x"] = x
            spectrum = torch.stft(torch.from_numpy(x), pad_mode=setting.get("pad_mode", "reflect"), onesided=True,
                                  return_complex=True, **common)
        g[f"{name}.re"], g[f"{name}.im"] = spectrum.real.numpy(), spectrum.imag.numpy()
        facts[name] = {k: v for k, v in setting.items() if not k.startswith("istft")}
        wanted = [("istft", None)]
        if not isinstance(win, str):
            wanted += [("istft_len", samples), ("istft_long", samples + n_fft)]
        for tag, length in wanted:
            try:
                y = torch.istft(spectrum, onesided=True, length=length, **common).numpy()
                g[f"{name}.{tag}"] = y
                facts[name][tag] = len(y)
            except RuntimeError as error:
                if "window" not in str(error):
                    raise
                facts[name][tag] = "error: window sum vanishes"
    for n in HANN:
        g[f"hann{n}.periodic"] = torch.hann_window(n).numpy()
        g[f"hann{n}.symmetric"] = torch.hann_window(n, periodic=False).numpy()
    return g, facts


def read_wav(path):
    with wave.open(path, "rb") as w:
        if w.getsampwidth() != 2:
            sys.exit(f"{path}: expected 16-bit PCM, found {8 * w.getsampwidth()} bits")
        x = np.frombuffer(w.readframes(w.getnframes()), "<i2").reshape(-1, w.getnchannels())
    return (x.mean(1) / 32768.0).astype(np.float32)


def write(folder, name, tensors, facts):
    os.makedirs(folder, exist_ok=True)
    target = os.path.join(folder, f"{name}.safetensors")
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, target + ".partial")
    os.chmod(target + ".partial", 0o644)
    os.replace(target + ".partial", target)
    with open(os.path.join(folder, f"{name}.json"), "w", encoding="utf-8") as f:
        json.dump(facts, f, indent=1)
        f.write("\n")
    print(f"{target}: {len(tensors)} tensors, {sum(v.nbytes for v in tensors.values()) / 1e6:.1f} MB")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", required=True, help="folder to write")
    ap.add_argument("--audio", help="16-bit PCM WAV; stretches of it become the signals, at whatever rate a case has")
    ap.add_argument("--like", help="golden folder whose signals and settings are reused; the result is compared with it")
    ap.add_argument("--pairs", nargs="+", metavar="FROM:TO", help="rates to resample between")
    ap.add_argument("--seconds", type=float, default=0.06, help="length of the signals to resample (default 0.06)")
    ap.add_argument("--bands", type=int, help="bands of the speaker front end (default 128)")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)

    like, old = {}, {}
    for name in ("resample", "mel", "stft") if a.like else ():
        like[name] = load_file(os.path.join(a.like, f"{name}.safetensors"))
        with open(os.path.join(a.like, f"{name}.json"), encoding="utf-8") as f:
            old[name] = json.load(f)
    recording = read_wav(a.audio) if a.audio else None
    signals = lambda name: Signals(a.seed, recording, like.get(name, {}))
    pairs, bands, mels, stfts, samples = PAIRS, 128, MELS, STFTS, 3000
    if a.like:
        pairs = [pair.replace("-", ":") for pair in old["resample"]["pairs"]]
        bands = like["mel"]["speaker.bank"].shape[1]
        mels = {k: v for k, v in old["mel"].items() if "sample_rate" in v}
        stfts = old["stft"]
        samples = max(len(v) for k, v in like["stft"].items() if k.endswith(".x"))
    made = {"resample": resampling(signals("resample"), a.pairs or pairs, a.seconds),
            "mel": mel(signals("mel"), a.bands or bands, mels),
            "stft": stft(signals("stft"), stfts, samples)}
    equal = True
    for name, (tensors, facts) in made.items():
        write(a.out, name, tensors, facts)
        if a.like:
            equal &= compare(tensors, like[name])
            if name == "resample" and not a.pairs and facts["lengths"] != old[name]["lengths"]:
                print("  lengths differ")
                equal = False
    if not equal:
        sys.exit(1)


if __name__ == "__main__":
    main()
