"""Surfaces of neural fields in files: finds the network, what its values mean, its box, and which side is inside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.io.archives import read_npz
from lamina.io.deepsdf import decoder_folder, read_codes
from lamina.io.formats import FormatError
from lamina.io.safetensor_files import load_tensors
from lamina.io.torch_files import read_checkpoint, tensors_in
from lamina.surfaces.base import Surface
from lamina.surfaces.decoders import decoder_layers
from lamina.surfaces.fields import (
    DEFAULT_BOX,
    FIELD_ACTIVATIONS,
    FIELD_FORMAT,
    FIELD_KINDS,
    OUTPUTS,
    Field,
    LatentDecoder,
    LevelFunction,
    field_from,
)
from lamina.surfaces.networks import Layers, field_of_layers, layers_of_arrays, layers_of_state, with_code
from lamina.surfaces.zero_set import value_and_gradient

LAMINA_LAYOUT = "lamina neural field"
# Half the side of the box at which the search for a change of sign ends, if no box is given. Boxes are doubled from 1
# on, so half or double ends the search one box earlier or later.
MAX_BOX_HALF_SIDE = 64.0
# Points along a side of the grids on which signs are looked up, one grid after the other. A change of sign that the
# finest one misses, of a part smaller than 1/32 of the box, is not found; double takes eight times as long.
SIGN_GRID_SIDES = (9, 17, 33)
# Points at which the gradients of activations are compared: the median of more points would hardly differ.
ACTIVATION_PROBES = 1000
# An activation other than ReLU is taken if the median of ||grad| - 1| with it is below the first number, and below the
# second one times that with ReLU. Chosen by trial: at half, distances that were trained loosely are read with ReLU; at
# double, networks that are no distances may get the wrong activation.
MAX_GRADIENT_DEVIATION = 0.1
MAX_DEVIATION_OVER_RELU = 1 / 3
# `lamina info` calls a field a distance if |grad| is between these at 90 % of the samples. Chosen by trial.
MIN_DISTANCE_GRADIENT, MAX_DISTANCE_GRADIENT = 0.5, 2.0
CANDIDATE_ACTIVATIONS: tuple[dict[str, Any], ...] = (
    {"activation": "sin", "omega": 30.0},
    {"activation": "sin", "omega": 1.0},
    {"activation": "elu"},
    {"activation": "tanh"},
    {"activation": "softplus", "beta": 100.0},
    {"activation": "softplus", "beta": 1.0},
    {"activation": "silu"},
    {"activation": "gelu"},
)


@dataclass(frozen=True)
class FieldOptions:
    """What a user says of a neural field; where that is None, the file decides, or else an assumption."""

    activation: str | None = None  # a name of fields.FIELD_ACTIVATIONS, perhaps with its number: "softplus:100"
    omega: float | None = None
    kind: str | None = None
    level: float | None = None
    output: str | None = None  # "none", or activations behind the last layer
    bounds: Any = None  # (2, 3)
    latent: int | str | Path | Tensor | np.ndarray | Sequence[float] | None = None
    samples: int | None = None

    def named(self) -> list[str]:
        return [key for key, value in vars(self).items() if value is not None]

    def entries(self) -> dict[str, Any]:
        """The options as entries of FieldConfig, and `latent`, checked."""
        found: dict[str, Any] = {}
        if self.activation is not None:
            name, _, number = self.activation.lower().partition(":")
            if name not in FIELD_ACTIVATIONS:
                raise InputError(f"Unknown activation {self.activation!r}; known: {', '.join(FIELD_ACTIVATIONS)}.")
            found["activation"] = name
            if number:
                key = {"softplus": "beta", "leaky_relu": "slope", "sin": "omega"}.get(name)
                if key is None or not _is_number(number):
                    raise InputError(f"{self.activation!r} is none: softplus, leaky_relu and sin take one number.")
                found[key] = float(number)
        if self.omega is not None:
            if self.activation is not None and found["activation"] != "sin":
                raise InputError(f"omega goes with the activation sin, not with {self.activation}.")
            found |= {"omega": float(self.omega), "activation": "sin"}
        if self.kind is not None:
            if self.kind not in FIELD_KINDS:
                raise InputError(f"Unknown kind of field {self.kind!r}; known: {', '.join(FIELD_KINDS)}.")
            found["kind"] = self.kind
            if self.kind == "probability" and self.output is None:
                found["output"] = ("sigmoid",)  # the weights of a network end before it
        if self.output is not None:
            found["output"] = tuple(word for word in self.output.lower().split() if word != "none")
            unknown = [word for word in found["output"] if word not in OUTPUTS]
            if unknown:
                raise InputError(f"Unknown output {unknown[0]!r}; known: none, {', '.join(OUTPUTS)}.")
        if self.level is not None:
            found["level"] = float(self.level)
        if self.latent is not None:
            found["latent"] = _latent(self.latent)
        return found


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _latent(given: Any) -> int | Tensor:
    """The number of a code, or codes (k, L)."""
    if isinstance(given, int):
        return given
    if isinstance(given, (str, Path)):
        words = str(given).replace(",", " ").split()
        if len(words) == 1 and words[0].isdigit():
            return int(words[0])
        if words and all(map(_is_number, words)):
            return torch.tensor([float(word) for word in words], dtype=torch.float64)
        if not Path(given).is_file():
            raise InputError(f"latent is {str(given)!r}; expected a number, a code as numbers, or a file of one.")
        return read_codes(Path(given))
    try:
        return torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"latent must be the number of a code or its numbers, got {type(given).__name__}.") from error


def neural_surface(path: Path, kind: str, options: FieldOptions, name: str) -> Surface:
    """The zero set of the field in a file ("npz", "torch", "safetensors") or a folder ("decoder")."""
    from lamina.surfaces.implicit import Implicit

    field, layout, notes = open_field(path, kind, options)
    phi = LevelFunction(field)
    box = options.bounds
    if box is None:
        box = torch.tensor(field.config.bounds, dtype=torch.float64)
        if field.config.bounds == DEFAULT_BOX:
            box = _box_around(phi, box, notes)
    if _all_negative(phi, box):
        phi = LevelFunction(field, -phi.sign)
        notes.append("The field is positive inside; its sign was turned, so that normals point outwards.")
    surface = Implicit(phi, box, **({} if options.samples is None else {"samples": options.samples}), name=name)
    surface.notes.extend(notes)
    stated = options.kind is not None or kind == "decoder" or layout == LAMINA_LAYOUT
    surface.facts |= _facts(field, layout, stated, surface)
    return surface


def open_field(path: Path, kind: str, options: FieldOptions) -> tuple[Field, str, list[str]]:
    """The field in a file or folder, in float64; its layout in words; notes of what was assumed."""
    given = options.entries()
    if kind == "safetensors":
        tensors, metadata = load_tensors(path)
        if metadata.get("format") == FIELD_FORMAT:
            field = field_from(tensors, metadata, path).double()
            return _adapted(field, given), LAMINA_LAYOUT, []
        if "format" in metadata:
            raise FormatError(f"it holds {str(metadata['format'])[:60]!r}, which is no surface")
        layers = layers_of_state(tensors)
    elif kind == "torch":
        layers = layers_of_state(dict(tensors_in(_weights(read_checkpoint(path)))))
    elif kind == "decoder":
        folder = decoder_folder(path)
        assert folder is not None
        layers = decoder_layers(folder, path if path.is_file() else None)
    else:
        layers = layers_of_arrays(read_npz(path)[0])
    found, notes = _with_activation(layers, given)
    field = field_of_layers(layers, found)
    if isinstance(field, LatentDecoder) and given.get("latent") is None and len(field.latents) > 1:
        notes.append(f"Latent code 0 of {len(field.latents)} was taken; give latent to choose another.")
    return field, layers.layout, notes


def _weights(loaded: Any) -> Any:
    """The part of a training checkpoint that is the model."""
    if isinstance(loaded, dict):
        for key in ("model_state_dict", "state_dict", "model", "decoder", "network"):
            if isinstance(loaded.get(key), dict):
                return loaded[key]
    return loaded


def _adapted(field: Field, given: dict[str, Any]) -> Field:
    """A field that lamina saved, with the level, kind or latent code that the user gave."""
    net = field.net if isinstance(field, LatentDecoder) else field
    net.config = replace(net.config, **{key: value for key, value in given.items() if key in ("level", "kind")})
    if "latent" not in given:
        return field
    if not isinstance(field, LatentDecoder):
        raise FormatError("it takes the coordinates alone; leave out the latent code")
    return with_code(net, field.latents.detach(), given["latent"]).requires_grad_(False).eval()


def _with_activation(layers: Layers, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The given entries, completed by what the file does not say, and notes of it.

    The activation is ReLU and skips are not scaled, unless |grad| is nearly 1 with others: a network that was trained
    as a distance has |grad| = 1 almost everywhere with its own activation, and not with another one.
    """
    named = layers.activation is not None or "activation" in given
    choices: list[dict[str, Any]] = [{}] if named else [{"activation": "relu"}, *CANDIDATE_ACTIVATIONS]
    if "skip_scale" not in layers.config_entries and any(b.shape[1] > a.shape[0] for a, b in pairwise(layers.weights)):
        choices = [choice | {"skip_scale": scale} for scale in (1.0, math.sqrt(0.5)) for choice in choices]
    best = choices[0]
    if len(choices) == 1:
        return given | best, []
    limit = min(MAX_GRADIENT_DEVIATION, MAX_DEVIATION_OVER_RELU * _deviation(layers, given | best))
    for choice in choices[1:]:
        deviation = _deviation(layers, given | choice)
        if deviation < limit:
            best, limit = choice, deviation
    notes = []
    why = "the usual one" if best is choices[0] else "with which |grad| is nearest to 1"
    if not named:
        number = "".join(f":{best[key]:g}" for key in ("omega", "beta") if key in best)
        notes.append(
            f"The file does not name its activation: {best['activation']}{number}, {why}, was taken. Give activation "
            "to choose another."
        )
    if best.get("skip_scale", 1.0) != 1.0:
        notes.append("Where the input comes again it is divided by sqrt(2), with which |grad| is nearest to 1.")
    return given | best, notes


def _deviation(layers: Layers, given: dict[str, Any]) -> float:
    """Median of ||grad| - 1| in the box [-1, 1]^3."""
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(ACTIVATION_PROBES, 3, generator=generator, dtype=torch.float64) - 1
    _, gradient = value_and_gradient(field_of_layers(layers, given), x)
    return float(torch.nan_to_num(gradient.norm(dim=1) - 1, nan=torch.inf).abs().median())


def _box_around(phi: LevelFunction, box: Tensor, notes: list[str]) -> Tensor:
    """[-1, 1]^3, in which most fields are trained, or a larger box if the field has only one sign there."""
    scale = 1.0
    while scale < MAX_BOX_HALF_SIDE and not _changes_sign(phi, scale * box):
        scale *= 2
    found = scale < MAX_BOX_HALF_SIDE
    scale = scale if found else 1.0
    why = "" if scale == 1 else ", the first with a change of sign"
    notes.append(f"The file names no box: [-{scale:g}, {scale:g}]^3{why} was taken; give bounds for another.")
    return scale * box


def _grid(box: Tensor, side: int) -> Tensor:
    axes = [torch.linspace(float(a), float(b), side, dtype=torch.float64) for a, b in zip(*box.tolist(), strict=True)]
    return torch.cartesian_prod(*axes)


def _changes_sign(phi: LevelFunction, box: Tensor) -> bool:
    for side in SIGN_GRID_SIDES:
        with torch.no_grad():
            values = phi(_grid(box, side))
        if bool((values < 0).any() and (values > 0).any()):
            return True
    return False


def _all_negative(phi: LevelFunction, bounds: Any) -> bool:
    """Whether phi is negative on all sides of the box, which lie outside the surface if the box holds it."""
    try:
        box = torch.as_tensor(bounds, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return False  # Implicit refuses such bounds in words
    if box.shape != (2, 3):
        return False
    x = _grid(box, SIGN_GRID_SIDES[1])
    with torch.no_grad():
        return bool((phi(x[((x == x.amin(0)) | (x == x.amax(0))).any(1)]) < 0).all())


def _facts(field: Field, layout: str, stated: bool, surface: Any) -> dict[str, Any]:
    """What `lamina info` says of a field."""
    config = field.config
    widths = "-".join(map(str, (config.latent + 3, *config.widths, 1)))
    number = {"sin": config.omega, "softplus": config.beta, "leaky_relu": config.slope}.get(config.activation)
    _, gradient = value_and_gradient(surface.phi, surface.points)
    length = gradient.norm(dim=1)
    low, middle, high = (float(length.quantile(q)) for q in (0.05, 0.5, 0.95))
    distance = low > MIN_DISTANCE_GRADIENT and high < MAX_DISTANCE_GRADIENT
    meaning = config.kind if stated else "distance" if distance else "signed values, no distance"
    latent = f"{field.chosen} of {len(field.latents)}" if isinstance(field, LatentDecoder) else "none"
    return {
        "format": layout,
        "network": f"perceptron {widths}" + (f", input again before {list(config.skips)}" if config.skips else ""),
        "activation": config.activation + ("" if number is None else f":{number:g}"),
        "output": " ".join(config.output) or "none",
        "parameters": sum(p.numel() for p in field.parameters()),
        "latent": latent,
        "field": f"{meaning}, surface at {config.value_on_surface:g}",
        "box": surface.box.tolist(),
        "gradient": {"5%": low, "median": middle, "95%": high},
        "distance": distance,
    }
