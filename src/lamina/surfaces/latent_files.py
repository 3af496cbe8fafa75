"""Folders of DeepSDF (Park et al. 2019): a decoder, the latent codes of its shapes, and their description.

Two layouts are read. That of facebookresearch/DeepSDF: specs.json, ModelParameters/latest.pth (or a numbered one, or
ModelParameters_latest.pth) and LatentCodes likewise; layers lin0, lin1, ... of (code, x), which come again before the
layers `latent_in`. And that of maurock/DeepSDF: settings.yaml, weights.pt and codes as rows of .npy files; layers
net.0 ... net.5 with skip_layer behind the third, whose output is (skip_layer, code, x), and final_layer.
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
from lamina.surfaces.neural_files import Layers, layers_of_state, resolved

SPECS, SETTINGS = "specs.json", "settings.yaml"
LONGEST_TEXT = 2**20
PLAIN_SKIPS = {"skip_scale": 1.0}
PARTS = ("ModelParameters", "LatentCodes")


def decoder_folder(path: Path) -> Path | None:
    """The folder of a decoder that the path is, or is a part of, or None."""
    if path.is_dir():
        candidates = [path, path.parent] if path.name in PARTS else [path]
    elif path.parent.name in PARTS:
        candidates = [path.parent.parent]
    else:
        part = path.name in (SPECS, SETTINGS) or path.name.startswith(PARTS) or path.suffix in (".pt", ".npy")
        candidates = [path.parent] if part else []
    return next((c for c in candidates if (c / SPECS).is_file() or (c / SETTINGS).is_file()), None)


def read_decoder(folder: Path, chosen: Path | None = None) -> Layers:
    """Layers and codes of a folder; chosen: the file of weights or codes to take where there are several."""
    if (folder / SPECS).is_file():
        return _facebook(folder, chosen)
    return _minimal(folder, chosen)


def _facebook(folder: Path, chosen: Path | None) -> Layers:
    specs = _json(folder / SPECS)
    network = specs.get("NetworkSpecs")
    if not isinstance(network, dict):
        raise FormatError("its specs.json has no NetworkSpecs; expected those of DeepSDF")
    stem = chosen.stem.rpartition("_")[2] if chosen is not None and chosen.suffix == ".pth" else "latest"
    files = {part: _part(folder, part, stem) for part in PARTS}
    weights = files["ModelParameters"]
    if weights is None:
        raise FormatError("it has no weights; expected ModelParameters/latest.pth or ModelParameters_latest.pth")
    state = _state(read_checkpoint(weights), "model_state_dict")
    if network.get("geom_dimension", 3) != 3:
        raise FormatError(f"its field is of {network['geom_dimension']} coordinates; expected 3")
    linear = {name: value for name, value in resolved(state).items() if re.fullmatch(r"lin\d+\.(weight|bias)", name)}
    layers = layers_of_state(dict(sorted(linear.items(), key=lambda item: int(item[0].split(".")[0][3:]))))
    claimed = [network.get("CodeLength", specs.get("CodeLength")), layers.weights[0].shape[1] - 3]
    if isinstance(claimed[0], int) and claimed[0] != claimed[1]:
        raise FormatError(f"its specs.json says CodeLength {claimed[0]}, its first layer takes {claimed[1]}")
    norms = {}
    if not network.get("weight_norm", False):
        found = sorted(int(m[1]) for m in (re.fullmatch(r"bn(\d+)\.weight", name) for name in state) if m)
        norms = {i: (state[f"bn{i}.weight"].double(), state[f"bn{i}.bias"].double()) for i in found}
    codes = None if files["LatentCodes"] is None else _codes(read_checkpoint(files["LatentCodes"]))
    return Layers(
        layers.weights, layers.biases, "DeepSDF folder (specs.json)", "relu", norms=norms, codes=codes,
        output=("tanh", "tanh") if network.get("use_tanh") else ("tanh",), more=PLAIN_SKIPS,
    )  # fmt: skip


def _part(folder: Path, part: str, stem: str) -> Path | None:
    """The checkpoint of that stem, the latest, or the one with the highest number."""
    options: list[Path] = [folder / part / f"{stem}.pth", folder / f"{part}_{stem}.pth"]
    options += [folder / part / "latest.pth", folder / f"{part}_latest.pth"]
    numbered = [*folder.glob(f"{part}/*.pth"), *folder.glob(f"{part}*.pth")]
    options += sorted(numbered, key=lambda p: int("0" + "".join(re.findall(r"\d", p.stem))[:18]), reverse=True)
    return next((p for p in options if p.is_file()), None)


def _codes(loaded: Any) -> Tensor:
    """Codes (k, L): one tensor, (k, L) or (k, 1, L), or the weight of an embedding."""
    inner = loaded.get("latent_codes", loaded) if isinstance(loaded, dict) else loaded
    tensors = [value for _, value in tensors_in(inner)]
    if len(tensors) != 1 or tensors[0].ndim not in (1, 2, 3) or not tensors[0].is_floating_point():
        raise FormatError("its latent codes are none; expected one tensor of a row for each shape")
    return tensors[0].detach().reshape(-1, tensors[0].shape[-1])


def _minimal(folder: Path, chosen: Path | None) -> Layers:
    settings = _settings(folder / SETTINGS)
    names = ["weights.pt"] if chosen is None or chosen.suffix not in (".pt", ".pth") else [chosen.name, "weights.pt"]
    weights = next((folder / name for name in names if (folder / name).is_file()), None)
    if weights is None:
        raise FormatError("it has settings.yaml but no weights.pt beside it")
    state = resolved(_state(read_checkpoint(weights)))
    order = sorted({int(m[1]) for m in (re.match(r"net\.(\d+)\.0\.weight$", name) for name in state) if m})
    keys = [f"net.{i}.0" for i in order]
    if settings.get("skip_connections", "true") == "true" and "skip_layer.0.weight" in state and len(keys) >= 6:
        keys.insert(3, "skip_layer.0")
    keys.append("final_layer.0")
    wanted = [f"{key}.{part}" for key in keys for part in ("weight", "bias")]
    missing = next((name for name in wanted if name not in state), None)
    if missing is not None:
        raise FormatError(f"its {weights.name} has no {missing!r}; expected the decoder that settings.yaml describes")
    layers = layers_of_state({name: state[name] for name in wanted})
    codes = _rows(sorted(folder.glob("*.npy")) if chosen is None or chosen.suffix != ".npy" else [chosen])
    length = layers.weights[0].shape[1] - 3
    if codes is not None and codes.shape[1] != length:
        raise FormatError(f"its latent codes have {codes.shape[1]} numbers; the network takes {length}")
    return Layers(
        layers.weights, layers.biases, "DeepSDF folder (settings.yaml)", "relu", output=("tanh",), codes=codes,
        more=PLAIN_SKIPS,
    )  # fmt: skip


def _rows(files: Iterable[Path]) -> Tensor | None:
    arrays = [code_from(file) for file in files]
    if len({a.shape[1] for a in arrays}) > 1:
        raise FormatError("its .npy files have codes of different lengths")
    return torch.cat(arrays) if arrays else None


def code_from(path: Path) -> Tensor:
    """Codes (k, L) in a .npy file, or in a .pth file as DeepSDF writes them when it reconstructs a shape."""
    if path.suffix == ".npy":
        array = read_npy(path)
        if array.ndim not in (1, 2) or array.dtype.kind != "f" or array.size == 0:
            raise FormatError(f"{path.name} holds {array.dtype} of shape {array.shape}; expected latent codes (k, L)")
        return torch.from_numpy(np.atleast_2d(array).astype(np.float64))
    return _codes(read_checkpoint(path)).double()


def _state(loaded: Any, key: str | None = None) -> dict[str, Tensor]:
    """Tensors by name, without the prefix `module.` of data-parallel training."""
    inner = loaded.get(key, loaded) if isinstance(loaded, dict) and key else loaded
    return {name.removeprefix("module."): value for name, value in tensors_in(inner)}


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"its {path.name} is no JSON") from error
    if not isinstance(value, dict):
        raise FormatError(f"its {path.name} is no description of a network")
    return value


def _settings(path: Path) -> dict[str, str]:
    """Lines `key: value` of a flat YAML file."""
    lines = (line.partition("#")[0].partition(":") for line in _text(path).splitlines())
    return {key.strip(): value.strip() for key, colon, value in lines if colon}


def _text(path: Path) -> str:
    if path.stat().st_size > LONGEST_TEXT:
        raise FormatError(f"its {path.name} is too long for a description")
    return path.read_text("utf-8", "replace")
