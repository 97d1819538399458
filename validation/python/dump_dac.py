#!/usr/bin/env python3
"""Run the original DAC (PyPI package descript-audio-codec) on a checkpoint and write a golden folder
for `cargo xtask golden-diff --component dac --dir DIR`.

    dump_dac.py --weights weights_44khz_8kbps_0.0.1.pth --out DIR
    dump_dac.py --weights weights.pth --out DIR --audio speech.wav
    dump_dac.py --weights weights.pth --out DIR --like OTHER_GOLDEN_FOLDER

Codes are drawn at random, taken from a recording (--audio, encoded first), or reused from another
golden (--like), which is then compared with what was computed here.
"""
import argparse
import functools
import importlib
import importlib.machinery
import importlib.util
import math
import os
import sys
import types
import warnings
import wave

import numpy as np
import torch

from golden_folder import (AUDIO_PAD, compare, place_checkpoint, read_golden, shear, unshear,
                           write_golden)

warnings.filterwarnings("ignore", category=FutureWarning)    # the package uses older torch calls

FADE_MS = 50.0
FADE_KEPT = 2400      # samples of a faded signal that the golden keeps
WINDOW = (24, 32)     # frames whose decode from a window is compared with the whole
CONTEXTS = 17         # context frames tried on each side of it: 0..16


# ---------------------------------------------------------------------------- the original model
@functools.cache
def original_class():
    """The package's DAC class. When audiotools, which only its file handling and training need, is
    not installed, empty modules stand in for it."""
    if importlib.util.find_spec("audiotools") is not None:
        return importlib.import_module("dac").DAC
    spec = importlib.util.find_spec("dac")
    if spec is None:
        sys.exit("the package is missing: pip install --no-deps descript-audio-codec==1.0.0")
    base = os.path.dirname(spec.origin)

    def module(name, path=None, **attributes):
        m = types.ModuleType(name)
        m.__dict__.update(attributes)
        m.__spec__ = importlib.machinery.ModuleSpec(name, None)
        if path is not None:
            m.__path__ = path
        sys.modules[name] = m

    module("audiotools", [], AudioSignal=object)
    module("audiotools.ml", BaseModel=type("BaseModel", (torch.nn.Module,), {}))
    # The package's own __init__ files import the parts that need audiotools for real.
    for name in ("dac", "dac.nn", "dac.model"):
        module(name, [os.path.join(base, *name.split(".")[1:])])
    return importlib.import_module("dac.model.dac").DAC


def load_original(path):
    saved = torch.load(path, map_location="cpu", weights_only=True)
    state, config = saved["state_dict"], saved.get("metadata", {}).get("kwargs")
    if config is None:
        sys.exit(f"{path}: no metadata.kwargs, so the sizes of the model are not known")
    # Newer weight norm spells its factors differently.
    new = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    renamed = {}
    for name, tensor in state.items():
        for old, plain in new.items():
            name = name.replace(old, plain)
        renamed[name] = tensor.float()
    cls = original_class()
    known = cls.__init__.__code__.co_varnames
    model = cls(**{k: v for k, v in config.items() if k in known}).eval()
    model.load_state_dict(renamed)
    return model, config


# ---------------------------------------------------------------------------- running it
class Taps:
    """Outputs of chosen modules during one run, without the batch axis."""

    def __init__(self):
        self.seen, self.hooks = {}, []

    def add(self, name, module):
        keep = lambda _m, _i, out: self.seen.__setitem__(name, out[0].numpy().copy())
        self.hooks.append(module.register_forward_hook(keep))

    def close(self):
        for h in self.hooks:
            h.remove()
        return self.seen


@torch.no_grad()
def decode(model, codes, taps=None):
    """codes [codebooks, frames] -> samples."""
    z = model.quantizer.from_codes(torch.from_numpy(np.ascontiguousarray(codes))[None])[0]
    z = z.to(next(model.parameters()).dtype)
    if taps is not None:
        taps["z_q"] = z[0].numpy().copy()
    return model.decode(z)[0, 0].numpy().copy()


def decode_tapped(model, codes, detail):
    stages, taps = model.decoder.model, Taps()
    blocks = len(stages) - 4
    taps.add("dec.0", stages[0])
    for i in range(1, blocks + 1):
        taps.add(f"dec.{i}.up", stages[i].block[1])
        taps.add(f"dec.{i}", stages[i])
    if detail:
        first = stages[1].block
        taps.add("dec.1.snake", first[0])
        taps.add("dec.1.res1.conv1", first[2].block[1])
        for r in range(3):
            taps.add(f"dec.1.res{r + 1}", first[r + 2])
    taps.add("dec.snake_out", stages[blocks + 1])
    taps.add("dec.pre_tanh", stages[blocks + 2])
    wav = decode(model, codes, taps.seen)
    return wav, taps.close()


@torch.no_grad()
def encode_tapped(model, wav, codebooks=None):
    stages, taps = model.encoder.block, Taps()
    for i in range(len(stages) - 2):
        taps.add(f"enc.{i}", stages[i])
    taps.add("enc.z", stages[-1])
    padded = model.preprocess(torch.from_numpy(wav)[None, None], model.sample_rate)
    z_q, codes, latents, _, _ = model.encode(padded, codebooks)
    recon = model.decode(z_q)[0, 0].numpy()[: len(wav)].copy()
    seen = taps.close()
    seen.update({"enc.wav": wav, "enc.padded": padded[0, 0].numpy().copy(), "enc.codes": codes[0].numpy().copy(),
                 "enc.latents": latents[0].numpy().copy(), "enc.z_q": z_q[0].numpy().copy(), "enc.recon": recon})
    return seen


@torch.no_grad()
def margins(model, latents):
    """Cosine of the best codebook row minus that of the second best, [codebooks, frames]."""
    out, at = [], 0
    for q in model.quantizer.quantizers:
        table = torch.nn.functional.normalize(q.codebook.weight.double())
        width = table.shape[1]
        x = torch.nn.functional.normalize(torch.from_numpy(latents[at: at + width]).double().T)
        best = (x @ table.T).topk(2, dim=1).values
        out.append((best[:, 0] - best[:, 1]).numpy())
        at += width
    return np.array(out, np.float32)


# ---------------------------------------------------------------------------- streams
def buffered(rows, eos, run, top):
    codes = unshear(rows)[: eos if eos is not None else len(rows)]
    return run(np.clip(codes, 0, top).T)


def window_stream(rows, eos, run, hop, top, block=40, context=24):
    """The C++ server: blocks with real context on both sides; -> ([lo, hi, left, right], samples)."""
    lag, plan, parts, done = rows.shape[1] - 1, [], [], 0

    def piece(have, lo, hi, right):
        first = max(0, lo - context)
        padded = np.full((hi + right + rows.shape[1], rows.shape[1]), AUDIO_PAD, rows.dtype)
        n = min(have, len(padded))
        padded[:n] = rows[:n]
        y = run(np.clip(unshear(padded)[first: hi + right], 0, top).T)
        plan.append([lo, hi, context, right])
        parts.append(y[(lo - first) * hop: (hi - first) * hop])

    for have in range(1, len(rows) + 1):
        while have - done >= block + context + lag:
            hi = have - context - lag
            piece(have, done, hi, context)
            done = hi
    end = eos if 0 <= eos < len(rows) else len(rows)
    if end > done:
        piece(len(rows), done, end, 0)
    return np.array(plan, np.int64), np.concatenate(parts)


def crossfade_stream(rows, told, run, hop, top, chunk=16, overlap=4):
    """The Python server: short chunks blended over four frames. `told(i)` is the end frame if row i
    carries it. -> (samples emitted at each row, samples)."""
    lag, done, eos, tail, parts = rows.shape[1] - 1, 0, None, None, []
    for i in range(len(rows)):
        last = i == len(rows) - 1
        eos = told(i) if told(i) is not None else eos
        cut = lambda n: n if eos is None else min(n, eos)
        ready, stop = cut(i + 1 - lag), cut(i + 1 if last else i + 1 - lag)
        due = ready > done or tail is not None if last else ready - done >= chunk
        y = np.zeros(0, np.float32)
        if due and stop <= done:
            y, tail = (tail, None) if last and tail is not None else (y, tail)
        elif due:
            back = min(overlap, done)
            first = done - back
            raw = rows[first: min(stop + lag, i + 1)]
            y = run(np.minimum(unshear(raw)[: stop - first], top).T).astype(np.float32)
            if back and tail is not None:
                n = min(back * hop, len(tail), len(y))
                up = (0.5 * (1.0 - np.cos(np.linspace(0, np.pi, n)))).astype(np.float32)
                y[:n] = (np.float32(1) - up) * tail[-n:] + up * y[:n]
            tail = None
            if not last:
                n = min(overlap * hop, len(y))
                y, tail = y[:-n], y[-n:].copy()
            done = stop
        parts.append(y)
    return np.array([len(p) for p in parts], np.int64), np.concatenate(parts)


def faded(samples, rate, include_end):
    y = samples.astype(np.float32).copy()
    n = min(len(y), int(rate * FADE_MS / 1000.0))
    if include_end:
        angle = np.linspace(0.0, np.pi, n, dtype=np.float32)
    else:
        angle = np.float32(np.pi) * np.arange(n, dtype=np.float32) / np.float32(n)
    y[len(y) - n:] *= np.float32(0.5) * (np.float32(1) + np.cos(angle))
    return y[-FADE_KEPT:]


# ---------------------------------------------------------------------------- inputs
def read_wav(path, rate):
    with wave.open(path, "rb") as w:
        if w.getsampwidth() != 2 or w.getframerate() != rate:
            sys.exit(f"{path}: expected 16-bit PCM at {rate} Hz, found {8 * w.getsampwidth()} bits at {w.getframerate()} Hz")
        x = np.frombuffer(w.readframes(w.getnframes()), "<i2").reshape(-1, w.getnchannels())
    return (x.mean(1) / 32768.0).astype(np.float32)


def sums(x):
    x = x.astype(np.float64).ravel()
    turn = np.cos(0.1 * np.arange(x.size) % (2 * math.pi))
    return np.array([x.sum(), (x * x).sum(), (x * turn).sum()])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--weights", required=True, help="checkpoint of the package: {state_dict, metadata.kwargs}, .pth")
    ap.add_argument("--out", required=True, help="folder to write")
    ap.add_argument("--audio", help="16-bit PCM WAV at the model's rate; its codes become the inputs")
    ap.add_argument("--like", help="golden folder or file whose inputs are reused; the result is compared with it")
    ap.add_argument("--frames", type=int, default=24, help="frames of the main decode (default 24)")
    ap.add_argument("--seed", type=int, default=0, help="seed of drawn codes")
    ap.add_argument("--no-encoder", action="store_true", help="leave out the enc.* keys")
    ap.add_argument("--no-streams", action="store_true", help="leave out long.*, seam.*, stream.*, fade50.*, pcm16")
    ap.add_argument("--sums", action="store_true", help="store three sums of each intermediate tensor, not its values")
    ap.add_argument("--checkpoint", choices=["link", "copy", "none"], default="link",
                    help="how the checkpoint gets into the folder (default: a symbolic link)")
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)

    model, config = load_original(a.weights)
    like = read_golden(a.like)
    rng = np.random.default_rng(a.seed)
    books, top = config["n_codebooks"], config["codebook_size"] - 1
    hop, rate = int(np.prod(config["decoder_rates"])), config["sample_rate"]
    draw = lambda frames: rng.integers(0, top + 1, (books, frames), dtype=np.int64)
    run = lambda codes: decode(model, codes)

    audio = like.get("enc.wav")
    if a.audio:
        audio = read_wav(a.audio, rate)
    elif audio is None:
        t = np.arange(18 * hop - 217 if hop > 100 else 100 * hop - 5) / rate
        audio = (0.3 * np.sin(2 * np.pi * 220 * t) + 0.02 * rng.standard_normal(len(t))).astype(np.float32)
    spoken = None
    if a.audio:
        with torch.no_grad():
            x = model.preprocess(torch.from_numpy(audio)[None, None], rate)
            spoken = model.encode(x)[1][0].numpy()
    take = lambda frames: spoken[:, :frames] if spoken is not None and spoken.shape[1] >= frames else draw(frames)

    g, facts = {}, {"weights": os.path.basename(a.weights), "config": config, "torch": torch.__version__}
    g["codes"] = like["codes"] if "codes" in like else take(a.frames)
    g["wav"], stages = decode_tapped(model, g["codes"], detail=not a.sums)
    if not a.no_encoder:
        encoded = encode_tapped(model, audio)
        encoded["enc.margin"] = margins(model, encoded["enc.latents"])
        stages.update({k: encoded.pop(k) for k in list(encoded) if k[4].isdigit() or k in ("enc.z", "enc.z_q")})
        if a.sums:
            encoded = {k: v for k, v in encoded.items() if k not in ("enc.padded", "enc.recon")}
        elif books > 4 and (not like or "enc.n4.codes" in like):
            four = encode_tapped(model, audio, 4)
            g["enc.n4.codes"], g["enc.n4.z_q"] = four["enc.codes"], four["enc.z_q"]
        g.update(encoded)
    if a.sums:
        g.update({"sum." + k: sums(v) for k, v in stages.items()})
    else:
        g.update(stages)

    even = all(r % 2 == 0 for r in config["decoder_rates"])
    if not a.no_streams and even and (not like or "long.codes" in like):
        g["long.codes"] = like["long.codes"] if like else take(64)
        g["long.wav"] = run(g["long.codes"])
        wide = load_original(a.weights)[0].double()
        (lo, hi), exact = WINDOW, decode(wide, g["long.codes"])
        for key, whole, each in (("f64", exact, lambda c: decode(wide, c)), ("f32", g["long.wav"], run)):
            gap = lambda c: np.abs(each(g["long.codes"][:, lo - c: hi + c])[c * hop: (c + hi - lo) * hop]
                                   - whole[lo * hop: hi * hop]).max()
            g[f"seam.max_delta_by_context_{key}"] = np.array([gap(c) for c in range(CONTEXTS)], np.float64)
        if like:
            rows, eos = like["stream.raw"], int(like["stream.eos"][0])
        else:
            rows, eos = shear(np.ascontiguousarray(draw(131).T)), 118
            rows[eos + 3:, 0] = AUDIO_PAD
        g["stream.raw"], g["stream.eos"] = rows, np.array([eos], np.int64)
        g["stream.buffered"] = buffered(rows, eos, run, top)
        g["stream.buffered_no_eos"] = buffered(rows, None, run, top)
        g["stream.windows"], g["stream.windows_wav"] = window_stream(rows, eos, run, hop, top)
        told = lambda i: eos if i >= eos + 5 else None
        g["stream.crossfade_sizes"], g["stream.crossfade_wav"] = crossfade_stream(rows, told, run, hop, top)
        g["fade50.python"] = faded(g["stream.buffered"], rate, True)
        g["fade50.cpp"] = faded(g["stream.buffered"], rate, False)
        clipped = np.clip(g["stream.buffered"], -1, 1).astype(np.float32)
        g["pcm16"] = np.rint(clipped * np.float32(32767)).astype(np.int16)

    write_golden(a.out, g, facts, "float32")
    place_checkpoint(a.weights, a.out, "weights.pth", a.checkpoint)
    if like and not compare(g, like):
        sys.exit(1)


if __name__ == "__main__":
    main()
