#!/usr/bin/env python3
"""Writes the seed corpus from the fixtures. Needs numpy, and the `zonos` command for one burnpack file.

    fuzz/seed.py path/to/zonos
"""
import io, json, os, shutil, subprocess, sys, tempfile, zipfile
import numpy as np

here = os.path.dirname(os.path.abspath(__file__))
fixtures = os.path.join(here, "..", "validation", "fixtures")
corpus = os.path.join(here, "corpus")


def put(target, name, data):
    folder = os.path.join(corpus, target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def get(name):
    with open(os.path.join(fixtures, name), "rb") as file:
        return file.read()


shutil.rmtree(corpus, ignore_errors=True)

# Whole where they are small; else their beginning, which is a file cut short.
for folder in ["containers", "broken", "decode"]:
    for name in sorted(os.listdir(os.path.join(fixtures, "audio", folder))):
        ending = name.rsplit(".", 1)[-1]
        if ending in ("json", "safetensors", "md"):
            continue
        data = get(f"audio/{folder}/{name}")
        is_wav = data[:4] == b"RIFF" and data[8:12] == b"WAVE"
        if folder == "decode" and not is_wav:
            continue
        if folder == "broken" and len(data) > 1024 and not is_wav:
            continue
        if is_wav:
            put("wav", name, data[12:600])
        if not is_wav or folder == "containers":
            put("audio", name, data[:3600])
put("audio", "pcm.wav", get("audio/decode/pcm16_mono_22050.wav")[:400])
put("audio", "pcm.aiff", get("audio/decode/aiff16_mono_44100.aiff")[:400])
put("audio", "mp3.mp3", get("audio/decode/mp3_vbr_stereo_48000.mp3")[:1800])
put("audio", "adts.aac", get("audio/decode/aac_adts_mono_24000.aac")[:1500])
put("audio", "flac.flac", get("audio/decode/flac24_stereo_44100.flac")[:3600])


def npy(array, version=None):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=version)
    return out.getvalue()


grid = np.arange(12).reshape(4, 3)
for dtype in ["<f4", ">f4", "<f8", "<f2", "<i4", ">i8", "<i2", "|u1", "|b1"]:
    put("npy", dtype.strip("<>|") + ("be" if dtype[0] == ">" else ""), npy(grid.astype(dtype)))
put("npy", "number", npy(np.array(3.5, dtype="<f4")))
put("npy", "empty", npy(np.zeros((0, 3), dtype="<f4")))
put("npy", "fortran", npy(np.asfortranarray(grid.astype("<f4"))))
put("npy", "version2", npy(grid.astype("<i4"), (2, 0)))
record = np.zeros(2, dtype=[("embedding", "<f4", (3,)), ("name", "S4")])
put("npy", "record", npy(record))
put("npy", "object", b"\x93NUMPY\x01\x00\x46\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(80) + b"\n")
put("codes", "codes", npy(np.arange(36).reshape(4, 9).astype("<i4")))
put("codes", "missing", npy(np.full((3, 9), -1, dtype="<i8")))
put("codes", "floats", npy(np.arange(8).reshape(4, 2).astype("<f4")))
put("codes", "line", npy(np.arange(8).astype("<i4")))

vector = np.linspace(-1, 1, 16, dtype="<f4")
header = json.dumps({
    "__metadata__": {"format": "zonos-voice", "name": "x", "source": "v.npy", "date": "2026-11-30T01:36:28Z",
                     "library": "zonos-tts 0.1.0", "source_sha256": "17" * 32},
    "speaker": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]},
}).encode()
put("voice_files", "eight", len(header).to_bytes(8, "little") + header + np.arange(8, dtype="<f4").tobytes())

for name, keys in [("one", ["embedding"]), ("two", ["a", "b"]), ("plain", ["arr_0"])]:
    for method in [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as archive:
            for key in keys:
                archive.writestr(key + ".npy", npy(vector))
        put("npz", f"{name}{method}", out.getvalue())

for name in sorted(os.listdir(os.path.join(fixtures, "checkpoint"))):
    path = os.path.join(fixtures, "checkpoint", name)
    if os.path.getsize(path) > 6000:
        continue
    if name.endswith(".safetensors"):
        put("safetensors", name, get(f"checkpoint/{name}"))
    elif name.endswith((".pth", ".pt")):
        put("torch", name, get(f"checkpoint/{name}"))
# The pickle of an archive alone is a legacy file's neighbour.
with zipfile.ZipFile(os.path.join(fixtures, "checkpoint", "kinds.pth")) as archive:
    for entry in archive.namelist():
        if entry.endswith("data.pkl"):
            put("torch", "data.pkl", archive.read(entry))
    out = io.BytesIO()
# Half of the small tar: its headers and two tensors.
put("torch", "kinds.tar", get("checkpoint/kinds.tar.pth")[:6144])
with tempfile.TemporaryDirectory() as folder:
    for source in ["kinds", "module"]:
        out = os.path.join(folder, source + ".bpk")
        path = os.path.join(fixtures, "checkpoint", source + ".safetensors")
        subprocess.run([sys.argv[1], "convert", path, out, "--quiet"], check=True)
        with open(out, "rb") as file:
            put("burnpack", source, file.read())

rules = [
    {"do": "strip_prefix", "prefix": "module."},
    {"do": "rename", "from": "codec.{i}.*", "to": "decoder.{i}.*"},
    {"do": "ignore", "names": "*.num_batches_tracked"},
    {"do": "stack", "from": "layers.{i}.w", "index": "i", "to": "layers.w"},
    {"do": "concat", "from": ["*.q", "*.k"], "to": "*.qk", "axis": 0},
    {"do": "split", "from": "*.qkv", "to": ["*.q", "*.k", "*.v"], "axis": -1},
    {"do": "transpose", "from": "*.w", "to": "*.w", "axes": [0, 1]},
]
put("name_map", "all.json", json.dumps({"rules": rules}).encode())
for rule in rules:
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in rule.items())
    put("name_map", rule["do"] + ".toml", ("[[rules]]\n" + lines).encode())
for name in ["anna", "anna-2.warm", "../x", "CON", "nul.txt", "C:\\x", "%2e%2e", "a\0b", "\u00e9"]:
    put("voice_names", "".join(c if c.isalnum() else "_" for c in name) or "_", name.encode())

# Files that readers refuse, and some that they take; all are small.
for name in sorted(os.listdir(os.path.join(fixtures, "gguf", "hostile"))):
    if name.endswith(".gguf"):
        put("gguf", name, get(f"gguf/hostile/{name}"))

name = b"blk.0.ffn_up_exps.weight"
head = np.array([len(name)], "<u4").tobytes() + name + np.array([2, 3], "<u4").tobytes()
put("quantising", "imatrix", b"Z2IMAT01" + np.array([1], "<u4").tobytes() + head + np.ones(6, "<f4").tobytes())
# One sequence of three rows, two codebooks, four entries, pad 3.
shape = np.array([2, 2, 4, 3, 1], "<u4").tobytes()
sequence = np.array([3], "<u4").tobytes() + np.array([-1], "<i4").tobytes() + np.array([0], "<u4").tobytes()
ids = np.array([0, 1, 0, 1, 2, 0, 3, 1, 0], "<f4").tobytes()
put("quantising", "base", b"Z2KLDIV2" + shape + sequence + ids + np.full(12, np.log(0.25), "<f4").tobytes())
put("quantising", "lines", b"# corpus\na.npy\nb.npy voice.npy 0\n")
put("quantising", "toml", b'[[sequence]]\nids = "a.npy"\n\n[[sequence]]\nids = "b.npy"\nspeaker = "v.npy"\nposition = 0\n')
