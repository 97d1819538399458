#!/usr/bin/env python3
"""Run the original ZONOS2 modules on a checkpoint, on the CPU, and write a golden folder for
`cargo xtask golden-diff --component zonos2 --dir DIR`.

    dump_zonos2.py --zonos2 CHECKOUT --model CHECKPOINT_DIR --out DIR --text "Hello."
    dump_zonos2.py --zonos2 CHECKOUT --model CHECKPOINT_DIR --out DIR --ids ids.npy --speaker voice.npy
    dump_zonos2.py --zonos2 CHECKOUT --model CHECKPOINT_DIR --out DIR --like OTHER_GOLDEN_FOLDER

CHECKOUT is a clone of the ZONOS2 repository; its CUDA kernels are replaced by plain PyTorch. The
released model needs about 32 GB of memory in float32 and 16 GB in bfloat16 (goldens in bfloat16 are
compared with the looser rules for half precision).
"""
import argparse
import os
import sys

import numpy as np
import torch

from golden_folder import compare, place_checkpoint, read_golden, unshear, write_golden
from zonos2_original import Original, checkpoint_file

PENALTY = 1.2


def prompt(original, text, rate, quality, voice, clean, accurate):
    """Rows [n, width] built by the checkout's own functions."""
    from zonos2.tts import prompt as p
    c = original.config
    counts = tuple(len(c.quality_buckets[f]) for f in c.quality_features) if c.quality_buckets else ()
    background = 2 if c.speaker_background_token_enabled else 0
    exact = 1 if background and c.accurate_mode_token_enabled else 0
    wanted = [quality.get(f) for f in c.quality_features] if counts else None
    builder = p.TTSPromptBuilder(p.TTSPromptConfig(
        n_codebooks=c.n_codebooks, audio_pad_id=c.audio_pad_id, text_vocab=c.text_vocab,
        speaking_rate_num_buckets=c.speaking_rate_num_buckets, quality_bucket_counts=counts,
        speaker_background_num_buckets=background, accurate_mode_num_buckets=exact))
    rows = builder.build(text, speaking_rate_bucket=rate, quality_buckets=wanted)
    if not voice:
        return rows
    slot = builder.speaker_slot()
    head, args = [slot], (c.text_vocab, c.speaking_rate_num_buckets, counts)
    for use, make in ((background, lambda: p.speaker_background_token_id(*args, clean, background, exact)),
                      (exact and accurate, lambda: p.accurate_mode_token_id(*args, background, exact))):
        if use:
            row = torch.full_like(slot, c.audio_pad_id)
            row[0, -1] = make()
            head.append(row)
    return torch.cat(head + [rows])


def quality_argument(text):
    if text == "none":
        return {}
    try:
        return {k: int(v) for k, v in (pair.split("=") for pair in text.split(","))}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected feature=bucket[,feature=bucket] or none")


def array(t):
    t = t.detach()
    return t.float().numpy() if t.is_floating_point() else t.to(torch.int32).numpy()


def keep_case(g, name, original, rows, voice, wanted=None):
    """Teacher-forced tensors of one prompt. `wanted` limits the per-layer keys (None: all)."""
    logits = original.whole(rows, voice).float()
    g[f"{name}.input_ids"] = array(rows)
    for key, t in original.seen.items():
        key = f"{name}.{key}"
        if key.endswith(".logits") or wanted is not None and key not in wanted:
            continue
        g[key] = array(t)
    text_rows = (rows[:, 0] == original.config.audio_pad_id).nonzero()
    last_text = int(text_rows[-1]) if len(text_rows) else 0
    picks = wanted[f"{name}.logits_row_index"].tolist() if wanted else sorted({0, len(rows) // 2, last_text, len(rows) - 1})
    g[f"{name}.logits_row_index"] = np.array(picks, np.int32)
    g[f"{name}.logits_rows"] = array(logits[picks])
    g[f"{name}.logits_argmax"] = array(logits.argmax(-1))
    g[f"{name}.logits_logsumexp"] = array(torch.logsumexp(logits, -1))
    if voice is not None:
        g[f"{name}.vector"] = array(voice)
    top = logits.topk(2, -1).values
    return {"rows": len(rows), "smallest gap between the two largest logits": float((top[..., 0] - top[..., 1]).min())}


def keep_generation(g, name, original, rows, voice, frames, penalty, ignore_eos):
    (codes, end, logits), = original.generate([rows], [voice], frames, penalty, ignore_eos)
    c, steps = original.config, sorted({0, 1 if len(codes) > 1 else 0, len(codes) // 2, len(codes) - 1})
    aligned = unshear(codes.numpy(), c.audio_pad_id)[: end if end >= 0 else None]
    g[f"gen.{name}.codes"] = array(codes)
    g[f"gen.{name}.eos_frame"] = np.array([end], np.int32)
    g[f"gen.{name}.codec_codes"] = np.minimum(aligned, c.codebook_size - 1).astype(np.int32)
    g[f"gen.{name}.logits_steps"] = np.array(steps, np.int32)
    g[f"gen.{name}.logits"] = array(logits[steps])
    return {"frames": len(codes), "end frame": end}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--zonos2", required=True, metavar="CHECKOUT", help="clone of the ZONOS2 repository")
    ap.add_argument("--model", required=True, metavar="DIR", help="folder with model.pth and params.json")
    ap.add_argument("--out", required=True, help="folder to write")
    ap.add_argument("--text", default="Hello, world.", help="text of the prompts")
    ap.add_argument("--ids", help="prompt rows [rows, codebooks + 1] as .npy, in place of --text; no voice rows are added")
    ap.add_argument("--rate", type=int, help="speaking-rate bucket")
    ap.add_argument("--quality", type=quality_argument, default={"trailing_silence_s": 3}, help="feature=bucket,... or none (default trailing_silence_s=3)")
    ap.add_argument("--speaker", help="voice vector as .npy; adds the speaker.* and gen.speaker.* keys")
    ap.add_argument("--clean", action="store_true", help="the voice's recording has a clean background")
    ap.add_argument("--expressive", action="store_true", help="no accurate-mode row")
    ap.add_argument("--frames", type=int, default=40, help="most frames of a generation; 0 writes no gen.* keys (default 40)")
    ap.add_argument("--quantile", action="store_true", help="also run with quantile balancing")
    ap.add_argument("--like", help="golden folder or file whose inputs are reused; the result is compared with it")
    ap.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    ap.add_argument("--checkpoint", choices=["link", "copy", "none"], default="link",
                    help="how the checkpoint and params.json get into the folder (default: symbolic links)")
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)

    like = read_golden(a.like)
    rows_of = lambda key: torch.from_numpy(like[key].astype(np.int64))
    original = Original(a.zonos2, a.model, getattr(torch, a.dtype))
    voice = None
    if like:
        voice = torch.from_numpy(like["speaker.vector"]) if "speaker.vector" in like else None
        plain = rows_of("plain.input_ids")
        spoken = rows_of("speaker.input_ids") if voice is not None else None
    else:
        if a.speaker:
            voice = torch.from_numpy(np.load(a.speaker).astype(np.float32).reshape(-1))
            if len(voice) != original.config.speaker_embedding_dim:
                sys.exit(f"{a.speaker}: {len(voice)} numbers; this model takes {original.config.speaker_embedding_dim}")
        make = lambda with_voice: prompt(original, a.text, a.rate, a.quality, with_voice, a.clean, not a.expressive)
        plain = torch.from_numpy(np.load(a.ids).astype(np.int64)) if a.ids else make(False)
        spoken = make(True) if voice is not None else None
    plain, spoken = plain.long(), None if spoken is None else spoken.long()

    g, facts = {}, {"model": os.path.basename(os.path.abspath(a.model)), "text": None if like or a.ids else a.text, "torch": torch.__version__}
    facts["plain"] = keep_case(g, "plain", original, plain, None, like or None)
    if voice is not None:
        facts["speaker"] = keep_case(g, "speaker", original, spoken, voice, like or None)
        g["speaker.projected"] = g["speaker.projected"].reshape(-1) if "speaker.projected" in g else array(original.seen["projected"]).reshape(-1)

    if "batch.input_ids" in like:
        lengths, has = like["batch.lengths"].tolist(), like["batch.has_speaker"].tolist()
        prompts = [rows_of("batch.input_ids")[i, :n] for i, n in enumerate(lengths)]
        other = torch.from_numpy(like["batch.speaker_vector"])
        voices = [other if h else None for h in has]
        for key in ("input_ids", "lengths", "has_speaker", "speaker_vector"):
            g["batch." + key] = like["batch." + key]
        original.reset()
        logits = original.forward([(i, p, v) for i, (p, v) in enumerate(zip(prompts, voices))]).float()
        ends = np.cumsum(lengths)
        g["batch.logits_last"] = array(logits[torch.from_numpy(ends - 1)])
        for i, (end, n) in enumerate(zip(ends, lengths)):
            g[f"batch.final_hidden.{i}"] = array(original.seen["final_hidden"][end - n: end])
        together = original.generate(prompts, voices, like["batch.codes"].shape[1], PENALTY, True)
        g["batch.codes"] = np.stack([array(codes) for codes, _, _ in together])

    frames = {k: (len(like[f"gen.{k}.codes"]) if like else a.frames) for k in ("greedy", "penalty", "speaker") if not like or f"gen.{k}.codes" in like}
    if a.frames > 0:
        for name, n in frames.items():
            if name == "speaker" and voice is None:
                continue
            rows, vector = (spoken, voice) if name == "speaker" else (plain, None)
            # A generation that ended by itself must do so again.
            limit = n + 8 if like and int(like[f"gen.{name}.eos_frame"][0]) >= 0 else n
            facts["gen." + name] = keep_generation(g, name, original, rows, vector, limit, 1.0 if name == "greedy" else PENALTY, name == "speaker")

    if a.quantile or "quantile.final_hidden" in like:
        quantile = Original(a.zonos2, a.model, original.dtype, balancing="quantile", state=original.state)
        logits = quantile.whole(plain).float()
        for key, t in quantile.seen.items():
            if key.endswith(".expert") or key == "final_hidden":
                g["quantile." + key] = array(t)
        g["quantile.logits_last"] = array(logits[-1])

    write_golden(a.out, g, facts, a.dtype)
    place_checkpoint(checkpoint_file(a.model), a.out, "model.pth", a.checkpoint)
    if os.path.isdir(a.model):
        place_checkpoint(os.path.join(a.model, "params.json"), a.out, "params.json", a.checkpoint)
    if like and not compare(g, like):
        sys.exit(1)


if __name__ == "__main__":
    main()
