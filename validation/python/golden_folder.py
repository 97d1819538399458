"""What the dumpers share: writing a golden folder, and the shear of delayed codes."""
import json
import os
import shutil

import numpy as np
from safetensors.numpy import load_file, save_file

AUDIO_PAD = 1025


def read_golden(path):
    """Tensors of a golden folder or of a golden file, or nothing when `path` is None."""
    if path is None:
        return {}
    if os.path.isdir(path):
        path = os.path.join(path, "golden.safetensors")
    return load_file(path)


def write_golden(folder, tensors, facts, precision):
    """golden.safetensors (through a temporary file) and info.json."""
    os.makedirs(folder, exist_ok=True)
    target = os.path.join(folder, "golden.safetensors")
    partial = target + ".partial"
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, partial,
              metadata={"precision": precision})
    os.chmod(partial, 0o644)
    os.replace(partial, target)
    with open(os.path.join(folder, "info.json"), "w", encoding="utf-8") as f:
        json.dump(facts, f, indent=1, default=float)
        f.write("\n")
    total = sum(v.nbytes for v in tensors.values())
    print(f"{target}: {len(tensors)} tensors, {total / 1e6:.1f} MB")


def place_checkpoint(source, folder, name, how):
    """Puts the checkpoint that was run into the folder, as a link or a copy."""
    target = os.path.join(folder, name)
    if how == "none" or os.path.exists(target) and os.path.samefile(source, target):
        return
    os.makedirs(folder, exist_ok=True)
    if os.path.lexists(target):
        os.remove(target)
    if how == "copy":
        shutil.copyfile(source, target)
    else:
        os.symlink(os.path.abspath(source), target)


def compare(new, old):
    """Prints how far tensors of two goldens are apart; -> whether all shared integers are equal."""
    equal, worst = True, (0.0, "-")
    shared = [k for k in old if k in new]
    for k in shared:
        a, b = new[k], old[k]
        if a.shape != b.shape:
            print(f"  {k}: shape {a.shape}, the other has {b.shape}")
            equal = False
        elif b.dtype.kind in "iu":
            if not np.array_equal(a, b):
                same = (a == b).mean()
                print(f"  {k}: {100 * same:.2f} % equal")
                # Experts of one row are a set; a sample that lies between two 16-bit steps may go to either.
                if k.endswith(".expert"):
                    equal &= np.array_equal(np.sort(a, -1), np.sort(b, -1))
                else:
                    equal &= k == "pcm16" and int(np.abs(a.astype(int) - b).max()) <= 1
        elif a.size:
            worst = max(worst, (float(np.abs(a.astype(np.float64) - b).max()), k))
    print(f"  {len(shared)} of {len(old)} keys of the other golden written here; largest difference "
          f"{worst[0]:.2e} ({worst[1]})")
    absent = sorted(k for k in old if k not in new)
    if absent:
        print("  not written here: " + ", ".join(absent))
    return equal


def shear(codes, pad=AUDIO_PAD):
    """[frames, codebooks]: codebook j delayed by j frames, the length kept."""
    out = np.full_like(codes, pad)
    for j in range(codes.shape[1]):
        out[j:, j] = codes[: len(codes) - j, j]
    return out


def unshear(rows, pad=AUDIO_PAD):
    """Undoes `shear`; cells that the delay pushed out become `pad`."""
    out = np.full_like(rows, pad)
    for j in range(rows.shape[1]):
        out[: len(rows) - j, j] = rows[j:, j]
    return out
