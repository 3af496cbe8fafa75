"""Neural fields: perceptrons of the coordinates whose level set is a surface.

With y = (x - centre) / scale and z = (latent code, y), or z = y without a code, a field starts with h_0 = z. Each layer
computes

    h_{i+1} = s(W_i h_i + b_i),    s(a) = sin(omega a) or relu(a), elu(a), ...,

but the last layer has no s. An output activation may follow it (tanh of DeepSDF, sigmoid of occupancy networks).
Before the layers named in `skips`, h_i becomes (h_i, z); before all others it becomes (h_i, y) if `points_in_all`.
Sitzmann et al. (2020), "Implicit neural representations with periodic activation functions" (SIREN: omega multiplies
the bias, too); Park et al. (2019), "DeepSDF"; Mescheder et al. (2019), "Occupancy networks"; Gropp et al. (2020),
"Implicit geometric regularization" (softplus, and skips divided by sqrt(2)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lamina.errors import InputError
from lamina.io.safetensor_files import load_tensors, save_tensors

FIELD_FORMAT = "lamina neural field 1"
DEFAULT_BOX = ((-1.0, -1.0, -1.0), (1.0, 1.0, 1.0))
FIELD_KINDS = {"sdf": 0.0, "logit": 0.0, "probability": 0.5}  # what values mean, and the value on the surface
FIELD_ACTIVATIONS = ("relu", "elu", "tanh", "softplus", "leaky_relu", "gelu", "silu", "sin")
OUTPUTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[float], float]]] = {  # and their inverses
    "tanh": (torch.tanh, math.atanh),
    "sigmoid": (torch.sigmoid, lambda p: math.log(p / (1 - p))),
}
# Parameters of the largest field that is made, so that a file cannot ask for any amount of memory: 2 GB in float64. A
# field of a shape has a few millions at most; half or double the limit makes no difference to these.
MAX_FIELD_PARAMETERS = 2**28


@dataclass(frozen=True)
class FieldConfig:
    """Architecture of a field, what its values mean and where it is meant.

    widths: outputs of the layers but the last, which has one. latent: length of the code before the coordinates.
    skips: layers whose input is (h, z) times skip_scale. points_in_all: whether the input of all other layers is (h, y)
    times skip_scale. norms: layers followed by a LayerNorm. beta: of softplus. slope: of leaky_relu. omega: of sin;
    first_omega: that of the first layer, if it is another one. output: activations behind the last layer.
    centre, scale: of the coordinates; an sdf is multiplied by scale, so that it is a distance in the coordinates x.
    kind: "sdf" (negative inside), "logit" or "probability" (of being inside). level: value on the surface.
    bounds: corners of the box that holds the surface.
    """

    widths: tuple[int, ...] = (64, 64, 64)
    activation: str = "relu"
    latent: int = 0
    skips: tuple[int, ...] = ()
    points_in_all: bool = False
    skip_scale: float = 1.0
    norms: tuple[int, ...] = ()
    beta: float = 1.0
    slope: float = 0.01
    omega: float = 1.0
    first_omega: float | None = None
    output: tuple[str, ...] = ()
    centre: tuple[float, ...] = (0.0, 0.0, 0.0)
    scale: float = 1.0
    kind: str = "sdf"
    level: float | None = None
    bounds: tuple[tuple[float, ...], ...] = DEFAULT_BOX

    def __post_init__(self) -> None:
        # Lists come from JSON.
        for key in ("widths", "skips", "norms", "output", "centre"):
            object.__setattr__(self, key, tuple(getattr(self, key)))
        object.__setattr__(self, "bounds", tuple(tuple(float(c) for c in corner) for corner in self.bounds))
        if not self.widths or min(self.widths) < 1 or self.latent < 0:
            raise InputError(f"widths must be positive and latent at least 0; got {self.widths} and {self.latent}.")
        if self.activation not in FIELD_ACTIVATIONS:
            raise InputError(f"Unknown activation {self.activation!r}; known: {', '.join(FIELD_ACTIVATIONS)}.")
        for name in self.output:
            if name not in OUTPUTS:
                raise InputError(f"Unknown output activation {name!r}; known: {', '.join(OUTPUTS)}.")
        if self.kind not in FIELD_KINDS:
            raise InputError(f"Unknown kind of field {self.kind!r}; known: {', '.join(FIELD_KINDS)}.")
        for index in (*self.skips, *self.norms):
            if not 0 <= index <= len(self.widths):
                raise InputError(f"layer {index} is none of the {len(self.widths) + 1} layers of the field.")
        if not (len(self.centre) == 3 and all(map(math.isfinite, self.centre)) and 0 < self.scale < math.inf):
            raise InputError(f"centre must be a point and scale positive; got {self.centre} and {self.scale!r}.")
        numbers = (self.omega, self.beta, self.skip_scale, self.slope, self.first_omega or 0.0, self.level or 0.0)
        if not all(map(math.isfinite, numbers)):
            raise InputError("omega, beta, slope, skip_scale and level of a field must be finite numbers.")
        if len(self.bounds) != 2 or any(len(corner) != 3 for corner in self.bounds):
            raise InputError(f"bounds must be two corners of three coordinates, got {self.bounds!r}.")
        if self.parameters > MAX_FIELD_PARAMETERS:
            raise InputError(f"a field of {self.parameters} parameters is beyond the limit of {MAX_FIELD_PARAMETERS}.")

    @property
    def inputs(self) -> tuple[int, ...]:
        """Width of the input of each layer."""
        whole = self.latent + 3
        rest = 3 if self.points_in_all else 0
        return (whole, *(w + (whole if i in self.skips else rest) for i, w in enumerate(self.widths, 1)))

    @property
    def parameters(self) -> int:
        return sum(b * (a + 1) for a, b in zip(self.inputs, (*self.widths, 1), strict=True))

    @property
    def unit(self) -> float:
        """The factor that values are multiplied by."""
        return self.scale if self.kind == "sdf" else 1.0

    @property
    def value_on_surface(self) -> float:
        return FIELD_KINDS[self.kind] if self.level is None else self.level

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Perceptron(nn.Module):
    """The field of a configuration, (n, 3) -> (n,), with the initial weights of a seed.

    Weights are those of Sitzmann et al. for sin, of He et al. (2015) for all others.
    """

    def __init__(self, config: FieldConfig | None = None, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config = config or FieldConfig()
        outputs = (*config.widths, 1)
        layers = [nn.Linear(a, b) for a, b in zip(config.inputs, outputs, strict=True)]
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleDict({str(i): nn.LayerNorm(outputs[i]) for i in config.norms})
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for i, layer in enumerate(layers):
                bound = math.sqrt(6 / layer.in_features)
                if config.activation == "sin":
                    bound = 1 / layer.in_features if i == 0 else bound / abs(self._omega(i) or 1.0)
                layer.weight.uniform_(-bound, bound, generator=generator)
                bound = 1 / math.sqrt(layer.in_features) if config.activation == "sin" else 0.1 * bound
                layer.bias.uniform_(-bound, bound, generator=generator)

    def raw(self, x: Tensor, latent: Tensor | None = None) -> Tensor:
        """Output (n,) of the last layer at x (n, 3), with the code latent (L,) or (n, L)."""
        x = (x - x.new_tensor(self.config.centre)) / self.config.scale
        z = x if latent is None else torch.cat([latent.expand(len(x), -1), x], 1)
        h, last = z, len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            if i in self.config.skips:
                h = torch.cat([h, z], 1) * self.config.skip_scale
            elif i and self.config.points_in_all:
                h = torch.cat([h, x], 1) * self.config.skip_scale
            h = layer(h)
            if i < last:
                if str(i) in self.norms:
                    h = self.norms[str(i)](h)
                h = self._activate(h, i)
        return h[:, 0]

    def forward(self, x: Tensor, latent: Tensor | None = None) -> Tensor:
        """Values (n,) of the kind that the configuration names."""
        value = self.raw(x, latent)
        for name in self.config.output:
            value = OUTPUTS[name][0](value)
        return value * self.config.unit

    def _omega(self, layer: int) -> float:
        first = self.config.first_omega
        return self.config.omega if layer or first is None else first

    def _activate(self, h: Tensor, layer: int) -> Tensor:
        config = self.config
        match config.activation:
            case "sin":
                return torch.sin(self._omega(layer) * h)
            case "tanh":
                return torch.tanh(h)
            case "softplus":
                return functional.softplus(h, beta=config.beta)
            case "leaky_relu":
                return functional.leaky_relu(h, config.slope)
            case name:
                return getattr(functional, name)(h)


class LatentDecoder(nn.Module):
    """A family of fields (DeepSDF): a Perceptron with a latent input and k codes (k, L), one of them chosen.

    As a function of x (n, 3) alone it is the field of the chosen code; `net(x, code)` is that of any other.
    """

    def __init__(self, net: Perceptron, latents: Tensor, chosen: int = 0) -> None:
        super().__init__()
        if latents.ndim != 2 or latents.shape[1] != net.config.latent or len(latents) == 0:
            raise InputError(
                f"the latent codes have the shape {tuple(latents.shape)}; expected (k, {net.config.latent})."
            )
        self.net = net
        self.latents = nn.Parameter(latents)
        self.choose(chosen)

    @property
    def config(self) -> FieldConfig:
        return self.net.config

    def choose(self, index: int) -> None:
        if not 0 <= index < len(self.latents):
            raise InputError(f"there is no latent code {index}; the file has {len(self.latents)}, numbered from 0.")
        self.chosen = index

    def raw(self, x: Tensor) -> Tensor:
        return self.net.raw(x, self.latents[self.chosen])

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x, self.latents[self.chosen])


Field = Perceptron | LatentDecoder


class LevelFunction(nn.Module):
    """phi(x) = sign (value - level): zero on the surface of a field, negative inside.

    Value and level are taken before the output activation. That activation is monotone, so the level set is the same,
    and where it saturates it would leave no gradient. sign: +1 for an sdf and -1 for an occupancy, unless given.
    """

    def __init__(self, field: Field, sign: int | None = None) -> None:
        super().__init__()
        self.field = field
        self.sign = (1 if field.config.kind == "sdf" else -1) if sign is None else sign
        level = field.config.value_on_surface / field.config.unit
        try:
            for name in reversed(field.config.output):
                level = OUTPUTS[name][1](level)
        except (ValueError, ZeroDivisionError) as error:
            raise InputError(
                f"the level {field.config.value_on_surface:g} is no value of {' of '.join(field.config.output)}."
            ) from error
        self.level = level

    def forward(self, x: Tensor) -> Tensor:
        return self.sign * self.field.config.unit * (self.field.raw(x) - self.level)


def save_field(path: str | Path, field: Field, **notes: Any) -> Path:
    """Write a field as a safetensors file, with its configuration and notes (how it was made) in the metadata."""
    family = {"chosen": field.chosen} if isinstance(field, LatentDecoder) else {}
    metadata = {"format": FIELD_FORMAT, "config": field.config.as_dict(), **family, **notes}
    return save_tensors(path, field.state_dict(), metadata)


def load_field(path: str | Path) -> Field:
    """The field that save_field wrote, in its precision, on the CPU. Raises InputError for any other file."""
    tensors, metadata = load_tensors(path)
    return field_from(tensors, metadata, path)


def field_from(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], path: str | Path) -> Field:
    """The field of the tensors and metadata in a file; path: for messages. Raises InputError."""
    if metadata.get("format") != FIELD_FORMAT:
        raise InputError(f"{path} holds no neural field but {metadata.get('format', 'other tensors')!r}.")
    try:
        known = {entry.name for entry in fields(FieldConfig)}
        config = FieldConfig(**{key: value for key, value in metadata["config"].items() if key in known})
        # Sizes are compared before a network is made, so that a file cannot ask for more than it holds.
        held = sum(value.numel() for value in tensors.values())
        if config.parameters > held:
            raise ValueError(f"it describes {config.parameters} parameters and holds {held}")
        net = Perceptron(config)
        field = LatentDecoder(net, tensors["latents"], int(metadata.get("chosen", 0))) if config.latent else net
        field.to(next(iter(tensors.values())).dtype).load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} does not fit its own configuration: {reason}.") from error
    return field.requires_grad_(False).eval()
