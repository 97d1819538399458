#!/usr/bin/env python3
"""The torchaudio side of `cargo xtask bench --component dsp`: runs one front end on demand and says how long it took.

Filters, banks and windows are made beforehand. Reads one command a line from standard input and answers seconds:

    resample FROM TO SECONDS     transforms.Resample
    logmel SECONDS               log-mel of the speaker encoder at 24 kHz: padding, MelSpectrogram, clamp, log
    stft N HOP SECONDS           torch.stft at 24 kHz, frames centred
    istft N HOP SECONDS          torch.istft of that
    quit
"""
import argparse
import sys
import time

import torch
import torchaudio

RATE = 24000


def signal(rate, seconds):
    t = torch.arange(rate * seconds, dtype=torch.float64)
    return (0.3 * torch.sin(0.05 * t) * torch.cos(0.0011 * t)).float()


def front_end(word, numbers):
    """A function without arguments that does the work once."""
    if word == "resample":
        orig, new, seconds = numbers
        resample, x = torchaudio.transforms.Resample(orig, new), signal(orig, seconds)
        return lambda: resample(x)
    if word == "logmel":
        x = signal(RATE, numbers[0])
        mel = torchaudio.transforms.MelSpectrogram(
            sample_rate=RATE, n_fft=1024, win_length=1024, hop_length=256, f_min=0.0, f_max=12000.0, n_mels=128,
            power=1.0, center=False, norm="slaney", mel_scale="slaney")
        pad = torch.nn.functional.pad
        return lambda: torch.log(torch.clamp(mel(pad(x[None, None], (384, 384), mode="reflect")[0]), min=1e-5))
    n, hop, seconds = numbers
    x, window = signal(RATE, seconds), torch.hann_window(n)
    if word == "stft":
        return lambda: torch.stft(x, n, hop, window=window, return_complex=True)
    spectrum = torch.stft(x, n, hop, window=window, return_complex=True)
    return lambda: torch.istft(spectrum, n, hop, window=window, length=len(x))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    made = {}
    print(f"ready torch {torch.__version__} torchaudio {torchaudio.__version__} threads {torch.get_num_threads()}",
          flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            word, *numbers = line.split()
            if word == "quit":
                break
            if line not in made:
                made[line] = front_end(word, [int(n) for n in numbers])
            start = time.perf_counter()
            made[line]()
            print(f"{time.perf_counter() - start:.6f}", flush=True)


if __name__ == "__main__":
    main()
