"""Files in folders of DeepSDF (Park et al. 2019): a description, the weights of a decoder, the codes of its shapes.

Two layouts are read. That of facebookresearch/DeepSDF has specs.json, the weights in ModelParameters/latest.pth (or in
a numbered file, or in ModelParameters_latest.pth) and the codes likewise in LatentCodes. That of maurock/DeepSDF has
settings.yaml, weights.pt and codes as rows of .npy files. lamina.surfaces.decoders makes networks of what they hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lamina.io.archives import read_npy
from lamina.io.formats import FormatError
from lamina.io.torch_files import read_checkpoint, tensors_in

SPECS_FILE, SETTINGS_FILE = "specs.json", "settings.yaml"
WEIGHTS_PART, CODES_PART = PARTS = ("ModelParameters", "LatentCodes")
# Bytes of the longest description that is read, so that a wrong or hostile file cannot fill the memory: those of
# DeepSDF have a few thousand. Half or double this limit makes no difference to them.
MAX_DESCRIPTION_BYTES = 2**20


def decoder_folder(path: Path) -> Path | None:
    """The folder of a decoder, where the path is that folder, a folder in it or a file of it; otherwise None."""
    if path.is_dir():
        folders = [path, path.parent] if path.name in PARTS else [path]
    elif path.parent.name in PARTS:
        folders = [path.parent.parent]
    else:
        described = path.name in (SPECS_FILE, SETTINGS_FILE)
        part = described or path.name.startswith(PARTS) or path.suffix in (".pt", ".npy")
        folders = [path.parent] if part else []
    return next((f for f in folders if (f / SPECS_FILE).is_file() or (f / SETTINGS_FILE).is_file()), None)


def part_file(folder: Path, part: str, stem: str) -> Path | None:
    """The checkpoint of weights or codes with that stem, or else the latest, or else that of the highest number."""
    options: list[Path] = [folder / part / f"{stem}.pth", folder / f"{part}_{stem}.pth"]
    options += [folder / part / "latest.pth", folder / f"{part}_latest.pth"]
    numbered = [*folder.glob(f"{part}/*.pth"), *folder.glob(f"{part}*.pth")]
    options += sorted(numbered, key=lambda p: int("0" + "".join(re.findall(r"\d", p.stem))[:18]), reverse=True)
    return next((p for p in options if p.is_file()), None)


def read_state(path: Path, key: str | None = None) -> dict[str, Tensor]:
    """Tensors of a checkpoint, or of its entry `key`, by name, without the prefix `module.` of parallel training."""
    loaded = read_checkpoint(path)
    inner = loaded.get(key, loaded) if isinstance(loaded, dict) and key else loaded
    return {name.removeprefix("module."): value for name, value in tensors_in(inner)}


def read_codes(path: Path) -> Tensor:
    """Codes (k, L), float64, in a .npy file or in a .pth file as DeepSDF writes when it reconstructs a shape."""
    if path.suffix == ".npy":
        array = read_npy(path)
        if array.ndim not in (1, 2) or array.dtype.kind != "f" or array.size == 0:
            raise FormatError(f"{path.name} holds {array.dtype} of shape {array.shape}; expected latent codes (k, L)")
        return torch.from_numpy(np.atleast_2d(array).astype(np.float64))
    return read_code_checkpoint(path).double()


def read_code_checkpoint(path: Path) -> Tensor:
    """Codes (k, L) in the precision of a .pth file: one tensor (k, L) or (k, 1, L), or the weight of an embedding."""
    loaded = read_checkpoint(path)
    inner = loaded.get("latent_codes", loaded) if isinstance(loaded, dict) else loaded
    tensors = [value for _, value in tensors_in(inner)]
    if len(tensors) != 1 or tensors[0].ndim not in (1, 2, 3) or not tensors[0].is_floating_point():
        raise FormatError("its latent codes are none; expected one tensor of a row for each shape")
    return tensors[0].detach().reshape(-1, tensors[0].shape[-1])


def read_code_files(files: Iterable[Path]) -> Tensor | None:
    """The codes of all files, one below the other (k, L); None if there are no files."""
    arrays = [read_codes(file) for file in files]
    if len({a.shape[1] for a in arrays}) > 1:
        raise FormatError("its .npy files have codes of different lengths")
    return torch.cat(arrays) if arrays else None


def read_specs(path: Path) -> dict[str, Any]:
    """The description in a JSON file."""
    try:
        value = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"its {path.name} is no JSON") from error
    if not isinstance(value, dict):
        raise FormatError(f"its {path.name} is no description of a network")
    return value


def read_settings(path: Path) -> dict[str, str]:
    """Lines `key: value` of a flat YAML file."""
    lines = (line.partition("#")[0].partition(":") for line in _text(path).splitlines())
    return {key.strip(): value.strip() for key, colon, value in lines if colon}


def _text(path: Path) -> str:
    if path.stat().st_size > MAX_DESCRIPTION_BYTES:
        raise FormatError(f"its {path.name} is too long for a description")
    return path.read_text("utf-8", "replace")
