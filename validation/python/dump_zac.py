#!/usr/bin/env python3
"""Run Zyphra's ZAC-1 codec (the package `zac`, or its torch.hub entry points) and write golden folders for
`cargo xtask golden-diff --component zac --dir DIR`.

    dump_zac.py decoder --checkpoint zac-1-decoder-keep2_plain.safetensors --out DIR [--codes CODES.npy] [--frames N]
    dump_zac.py encoder --checkpoint zac-1-encoder.safetensors --audio speech.wav --out DIR

Only what the codec's description promises is called: load_decoder / load_encoder, decode, stream, flush, fork,
encode, prepare_audio. A decoder's folder gets `codes` and `audio`, the same with missing codes, a batch, streams in
several chunkings with what each call returned (streams.json), and a fork. An encoder's gets `wav_in`, `rate_in`,
`prepared` and `codes`. With --hooks, outputs of submodules whose names end like the golden keys (decoder.N,
encoder.N, semantic_head, semantic_encoder) are written as well; without a batch axis, time first.

Arithmetic is float32 on the CPU unless --device says otherwise; an encoder that insists on CUDA runs in bf16 there,
and its codes are then compared by share (--half of golden-diff).
"""
import argparse
import importlib
import json
import os
import re
import sys
import wave

import numpy as np
import torch

from golden_folder import place_checkpoint, write_golden

HOP, LAG, CODEBOOKS, SIZE = 2940, 1470, 10, 4096
HUB = "Zyphra/ZAC-1"
CHUNKS = ([1], [1, 2, 4, 8], [8], [3], [10])


# ---------------------------------------------------------------------------- the codec
def load(kind, checkpoint, variant, device):
    """The package's object: `zac.load_decoder(variant, device=.., checkpoint=..)`, else the hub's entry point."""
    try:
        package = importlib.import_module("zac")
    except ImportError:
        package = None
    options = {"device": device}
    if checkpoint:
        options["checkpoint"] = checkpoint
    first = (variant,) if kind == "decoder" else ()
    if package is not None:
        entry = getattr(package, "load_" + kind, None)
        if entry is None:
            sys.exit(f"the package zac has no load_{kind}; it has {sorted(n for n in dir(package) if n[0] != '_')}")
        return entry(*first, **options)
    try:
        return torch.hub.load(HUB, "zac_" + kind, *first, **options)
    except Exception as error:                                  # no network, no such repository, ..
        sys.exit(f"neither the package zac nor torch.hub {HUB}: {error}")


def prepare_audio(wav, rate, encoder):
    """The package's own preparation, wherever it is exported; None where it is not."""
    places = [encoder, sys.modules.get("zac"), sys.modules.get(type(encoder).__module__)]
    for place in places:
        prepare = getattr(place, "prepare_audio", None)
        if prepare is not None:
            return np.asarray(torch.as_tensor(prepare(wav, rate)).cpu().float())
    return None


class Hooks:
    """Outputs of submodules whose names end like golden keys."""
    PATTERN = re.compile(r"(?:^|\.)((?:decoder|encoder)\.\d+|semantic_head|semantic_encoder|head\.trunk)$")
    NAMES = {"semantic_encoder": "semantic_encoded"}

    def __init__(self, *roots):
        self.seen, self.handles = {}, []
        for root in roots:
            for module in [root, *vars(root).values()] if not isinstance(root, torch.nn.Module) else [root]:
                if isinstance(module, torch.nn.Module):
                    for name, part in module.named_modules():
                        found = self.PATTERN.search(name)
                        if found:
                            key = self.NAMES.get(found[1], found[1])
                            self.handles.append(part.register_forward_hook(self.keep(key)))

    def keep(self, key):
        def hook(module, args, output):
            value = output[0] if isinstance(output, (tuple, list)) else output
            if isinstance(value, torch.Tensor) and value.dim() == 3 and value.shape[0] == 1:
                self.seen[key] = value[0].detach().float().cpu().numpy()
        return hook

    def close(self):
        for handle in self.handles:
            handle.remove()


# ---------------------------------------------------------------------------- folders
def array(x):
    return np.ascontiguousarray(torch.as_tensor(x).detach().float().cpu().numpy())


def missing(codes, rng):
    """The same codes with some residual entries -1, never those of codebook 0."""
    out = codes.copy()
    for start in range(2, len(out), 7):
        out[start: start + int(rng.integers(1, 5)), int(rng.integers(1, CODEBOOKS)):] = -1
    return out


def streams(decoder, codes, whole):
    """What every call of a stream returns, for each chunking."""
    runs = []
    for pattern in ([len(codes)], *CHUNKS):
        chunks, at = [], 0
        while at < len(codes):
            chunks.append(min(pattern[len(chunks) % len(pattern)], len(codes) - at))
            at += chunks[-1]
        stream, at, got = decoder.stream(), 0, []
        for n in chunks:
            got.append(array(stream.decode(codes[at: at + n])))
            at += n
        got.append(array(stream.flush()))
        samples = np.concatenate(got)
        runs.append({"chunks": chunks, "emitted": [len(g) for g in got[:-1]], "flush": len(got[-1]),
                     "total": len(samples),
                     "max_abs_difference_from_whole": float(np.abs(samples - whole).max())})
        expected = [max(0, HOP * int(n) - LAG) for n in np.cumsum(chunks)]
        if list(np.cumsum(runs[-1]["emitted"])) != expected:
            print(f"  chunks {chunks}: {runs[-1]['emitted']} samples, expected {np.diff([0, *expected]).tolist()}")
    return runs


def dump_decoder(decoder, codes, out, seed=0, hooks=False, facts=None):
    """Writes the folder of a decoder; `codes` is an integer array [frames, 10]."""
    rng = np.random.default_rng(seed)
    codes = np.asarray(codes).astype(np.int64)
    tensor = lambda c: torch.from_numpy(np.ascontiguousarray(c))
    watch = Hooks(decoder) if hooks else None
    with torch.no_grad():
        audio = array(decoder.decode(tensor(codes)))
        g = {"codes": codes.astype(np.int32), "audio": audio}
        if watch is not None:
            g.update(watch.seen)
            watch.close()
        g["codes_missing"] = missing(codes, rng).astype(np.int32)
        g["audio_missing"] = array(decoder.decode(tensor(g["codes_missing"].astype(np.int64))))
        batch = rng.integers(0, SIZE, (2, 9, CODEBOOKS))
        g["codes_batch"], g["audio_batch"] = batch.astype(np.int32), array(decoder.decode(tensor(batch)))
        at = max(1, len(codes) // 3)
        other = np.concatenate([codes[:at], codes[::-1][at:]])
        stream = decoder.stream()
        head = array(stream.decode(tensor(codes[:at])))
        fork = stream.fork()
        g["codes_fork"] = other.astype(np.int32)
        g["audio_fork"] = np.concatenate([head, array(fork.decode(tensor(other[at:]))), array(fork.flush())])
        again = np.concatenate([head, array(stream.decode(tensor(codes[at:]))), array(stream.flush())])
        runs = streams(decoder, tensor(codes), audio)
    facts = dict(facts or {}, torch=torch.__version__, output_gain=float(decoder.output_gain()),
                 stream_beside_its_fork=float(np.abs(again - audio).max()))
    write_golden(out, g, facts, "float32")
    with open(os.path.join(out, "streams.json"), "w", encoding="utf-8") as f:
        json.dump({"fork_at": at, "streams": runs}, f, indent=1)
        f.write("\n")


def dump_encoder(encoder, wav, rate, out, hooks=False, facts=None, precision="float32"):
    """Writes the folder of an encoder; `wav` is a float array [samples] or [channels, samples]."""
    wav = torch.from_numpy(np.ascontiguousarray(wav, dtype=np.float32))
    watch = Hooks(encoder) if hooks else None
    with torch.no_grad():
        codes = np.asarray(torch.as_tensor(encoder.encode(wav, rate)).cpu()).astype(np.int32)
    g = {"wav_in": array(wav), "rate_in": np.array([rate], np.int32), "codes": codes}
    if watch is not None:
        # What was seen last is the last lane, which is the only one of a clip of up to 20 seconds.
        g.update({"lane0." + key: value for key, value in watch.seen.items()})
        watch.close()
    prepared = prepare_audio(wav, rate, encoder)
    if prepared is not None:
        g["prepared"] = prepared
    write_golden(out, g, dict(facts or {}, torch=torch.__version__, frames=len(codes)), precision)


# ---------------------------------------------------------------------------- inputs
def read_wav(path):
    with wave.open(path, "rb") as w:
        if w.getsampwidth() != 2:
            sys.exit(f"{path}: expected 16-bit PCM, found {8 * w.getsampwidth()} bits")
        x = np.frombuffer(w.readframes(w.getnframes()), "<i2").reshape(-1, w.getnchannels())
        return (x.T / 32768.0).astype(np.float32), w.getframerate()


def read_codes(path, frames, seed):
    if path is None:
        return np.random.default_rng(seed).integers(0, SIZE, (frames, CODEBOOKS))
    codes = np.load(path)
    if codes.ndim != 2 or codes.shape[1] != CODEBOOKS:
        sys.exit(f"{path}: expected codes [frames, {CODEBOOKS}], found {list(codes.shape)}")
    return np.rint(codes).astype(np.int64)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("kind", choices=["decoder", "encoder"])
    ap.add_argument("--checkpoint", help="the codec's file; without it the package downloads its own")
    ap.add_argument("--variant", default="keep2_plain", choices=["keep2_plain", "full_mr"], help="of the decoder")
    ap.add_argument("--out", required=True, help="folder to write")
    ap.add_argument("--codes", help="codes to decode, .npy [frames, 10] (default: random ones)")
    ap.add_argument("--frames", type=int, default=32, help="random frames to decode (default 32)")
    ap.add_argument("--audio", help="16-bit PCM WAV to encode")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--device", default="cpu")
    ap.add_argument("--hooks", action="store_true", help="also write outputs of submodules")
    ap.add_argument("--link", choices=["link", "copy", "none"], default="link",
                    help="how the checkpoint gets into the folder (default: a symbolic link)")
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    if a.kind == "encoder" and a.audio is None:
        ap.error("encoder needs --audio")
    torch.set_num_threads(a.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    codec = load(a.kind, a.checkpoint, a.variant, a.device)
    facts = {"checkpoint": os.path.basename(a.checkpoint or ""), "device": a.device}
    if a.kind == "decoder":
        codes = read_codes(a.codes, a.frames, a.seed)
        dump_decoder(codec, codes, a.out, a.seed, a.hooks, dict(facts, variant=a.variant))
    else:
        wav, rate = read_wav(a.audio)
        dump_encoder(codec, wav, rate, a.out, a.hooks, facts, "float32" if a.device == "cpu" else "bfloat16")
    if a.checkpoint:
        place_checkpoint(a.checkpoint, a.out, "model.safetensors", a.link)


if __name__ == "__main__":
    main()
