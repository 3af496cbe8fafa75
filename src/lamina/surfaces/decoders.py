"""Decoders of DeepSDF (Park et al. 2019): layers and latent codes from the folders that lamina.io.deepsdf reads.

In the layout of facebookresearch/DeepSDF the layers lin0, lin1, ... take (code, x), which they take again before the
layers `latent_in`. In that of maurock/DeepSDF the layers are net.0 ... net.5 with skip_layer behind the third, whose
output makes (skip_layer, code, x), and final_layer.
"""

from __future__ import annotations

import re
from pathlib import Path

from lamina.io.deepsdf import (
    CODES_PART,
    PARTS,
    SETTINGS_FILE,
    SPECS_FILE,
    WEIGHTS_PART,
    part_file,
    read_code_checkpoint,
    read_code_files,
    read_settings,
    read_specs,
    read_state,
)
from lamina.io.formats import FormatError
from lamina.surfaces.networks import Layers, layers_of_state, without_weight_norm

UNSCALED_SKIPS = {"skip_scale": 1.0}  # DeepSDF does not divide by sqrt(2) where the input comes again


def decoder_layers(folder: Path, chosen: Path | None = None) -> Layers:
    """Layers and codes of a folder; chosen: the file of weights or codes to take where there are several."""
    if (folder / SPECS_FILE).is_file():
        return _layers_by_specs(folder, chosen)
    return _layers_by_settings(folder, chosen)


def _layers_by_specs(folder: Path, chosen: Path | None) -> Layers:
    """The layout of facebookresearch/DeepSDF."""
    specs = read_specs(folder / SPECS_FILE)
    network = specs.get("NetworkSpecs")
    if not isinstance(network, dict):
        raise FormatError("its specs.json has no NetworkSpecs; expected those of DeepSDF")
    stem = chosen.stem.rpartition("_")[2] if chosen is not None and chosen.suffix == ".pth" else "latest"
    files = {part: part_file(folder, part, stem) for part in PARTS}
    weights, code_file = files[WEIGHTS_PART], files[CODES_PART]
    if weights is None:
        raise FormatError("it has no weights; expected ModelParameters/latest.pth or ModelParameters_latest.pth")
    state = read_state(weights, "model_state_dict")
    if network.get("geom_dimension", 3) != 3:
        raise FormatError(f"its field is of {network['geom_dimension']} coordinates; expected 3")
    linear = {
        name: value
        for name, value in without_weight_norm(state).items()
        if re.fullmatch(r"lin\d+\.(weight|bias)", name)
    }
    layers = layers_of_state(dict(sorted(linear.items(), key=lambda item: int(item[0].split(".")[0][3:]))))
    claimed = [network.get("CodeLength", specs.get("CodeLength")), layers.weights[0].shape[1] - 3]
    if isinstance(claimed[0], int) and claimed[0] != claimed[1]:
        raise FormatError(f"its specs.json says CodeLength {claimed[0]}, its first layer takes {claimed[1]}")
    norms = {}
    if not network.get("weight_norm", False):
        numbers = sorted(int(m[1]) for m in (re.fullmatch(r"bn(\d+)\.weight", name) for name in state) if m)
        norms = {i: (state[f"bn{i}.weight"].double(), state[f"bn{i}.bias"].double()) for i in numbers}
    codes = None if code_file is None else read_code_checkpoint(code_file)
    return Layers(
        layers.weights, layers.biases, "DeepSDF folder (specs.json)", "relu", norms=norms, codes=codes,
        output=("tanh", "tanh") if network.get("use_tanh") else ("tanh",), config_entries=UNSCALED_SKIPS,
    )  # fmt: skip


def _layers_by_settings(folder: Path, chosen: Path | None) -> Layers:
    """The layout of maurock/DeepSDF."""
    settings = read_settings(folder / SETTINGS_FILE)
    names = ["weights.pt"] if chosen is None or chosen.suffix not in (".pt", ".pth") else [chosen.name, "weights.pt"]
    weights = next((folder / name for name in names if (folder / name).is_file()), None)
    if weights is None:
        raise FormatError("it has settings.yaml but no weights.pt beside it")
    state = without_weight_norm(read_state(weights))
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
    codes = read_code_files(sorted(folder.glob("*.npy")) if chosen is None or chosen.suffix != ".npy" else [chosen])
    length = layers.weights[0].shape[1] - 3
    if codes is not None and codes.shape[1] != length:
        raise FormatError(f"its latent codes have {codes.shape[1]} numbers; the network takes {length}")
    return Layers(
        layers.weights, layers.biases, "DeepSDF folder (settings.yaml)", "relu", output=("tanh",), codes=codes,
        config_entries=UNSCALED_SKIPS,
    )  # fmt: skip
