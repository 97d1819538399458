"""Cuts the goldens that `zonos doctor` carries out of the fixtures.

Run from the repository root: python3 crates/zonos/assets/doctor/make.py
"""

import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent
FIXTURES = HERE.parents[3] / "validation" / "fixtures"

# The whole plain forward pass and one generation; every decoder stage and the audio.
CUTS = {
    "zonos2": ("zonos2/tiny", ("plain.", "gen.greedy.codes", "gen.greedy.eos_frame", "gen.greedy.codec_codes")),
    "dac": ("dac/tiny", ("codes", "z_q", "dec.", "wav")),
}


def read(path):
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    return header, raw[8 + size :]


def cut(source, prefixes, target):
    header, data = read(source)
    notes = header.pop("__metadata__", None)
    kept, body = {}, b""
    for name, info in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if not name.startswith(prefixes):
            continue
        start, end = info["data_offsets"]
        kept[name] = dict(info, data_offsets=[len(body), len(body) + end - start])
        body += data[start:end]
    if notes:
        kept["__metadata__"] = notes
    text = json.dumps(kept).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(struct.pack("<Q", len(text)) + text + body)


for name, (folder, prefixes) in CUTS.items():
    cut(FIXTURES / folder / "golden.safetensors", prefixes, HERE / f"{name}.safetensors")
