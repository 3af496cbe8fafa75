"""Spherical neural surfaces: a closed surface without handles as a smooth network on the unit sphere.

With fixed random frequencies w_i (f, 3), normal deviates times `frequency`, the surface is the image of

    y(s) = c + r (s + N(sin(w_i . s), cos(w_i . s))),    |s| = 1,

N a perceptron with smooth activations, c the centre and r the size of the shape. Tangents, normals and curvatures
follow by autograd: `lamina.SphericalMap(model)` is the surface. After Williamson and Mitra (2025), "Spherical neural
surfaces"; the frequencies are the random Fourier features of Tancik et al. (2020), "Fourier features let networks
learn high frequency functions in low dimensional domains", without which small features take many times longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from lamina.checks import positive
from lamina.errors import InputError
from lamina.io.safetensor_files import load_tensors, save_tensors

SNS_FORMAT = "lamina spherical neural surface 1"
SNS_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": nn.functional.silu,
    "softplus": lambda x: nn.functional.softplus(x, beta=10),
    "sin": torch.sin,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class SNSConfig:
    """Shape of a SphericalNeuralSurface: `depth` hidden layers of `width`, on `features` frequencies.

    frequency: standard deviation of the frequencies, about half the waves that details take around the sphere.
    """

    width: int = 128
    depth: int = 2
    features: int = 64
    frequency: float = 4.0
    activation: str = "silu"

    def __post_init__(self) -> None:
        if min(self.width, self.depth, self.features) < 1:
            raise InputError(
                f"width, depth and features must be at least 1; got {self.width}, {self.depth}, {self.features}."
            )
        positive("frequency", self.frequency)
        if self.activation not in SNS_ACTIVATIONS:
            raise InputError(f"Unknown activation {self.activation!r}; known: {', '.join(SNS_ACTIVATIONS)}.")


class SphericalNeuralSurface(nn.Module):
    """The map y(s) of the module's docstring, (n, 3) -> (n, 3). Before training its image is nearly the unit sphere."""

    frequencies: Tensor  # (3, f)
    centre: Tensor  # (3,) c
    scale: Tensor  # () r

    def __init__(self, config: SNSConfig | None = None, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config = config or SNSConfig()
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("frequencies", config.frequency * torch.randn(3, config.features, generator=generator))
        self.register_buffer("centre", torch.zeros(3))
        self.register_buffer("scale", torch.ones(()))
        widths = [2 * config.features, *[config.width] * config.depth]
        layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
        self.hidden = nn.ModuleList(layers)
        self.last = nn.Linear(config.width, 3)
        with torch.no_grad():
            for layer in (*layers, self.last):
                bound = 0.01 if layer is self.last else math.sqrt(6 / layer.in_features)  # He et al. (2015)
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.uniform_(-0.1 * bound, 0.1 * bound, generator=generator)

    def forward(self, s: Tensor) -> Tensor:
        activation = SNS_ACTIVATIONS[self.config.activation]
        phase = s @ self.frequencies
        h = math.sqrt(2) * torch.cat([phase.sin(), phase.cos()], 1)
        for layer in self.hidden:
            h = activation(layer(h))
        return self.centre + self.scale * (s + self.last(h))


def save_sns(path: str | Path, model: SphericalNeuralSurface) -> Path:
    """Write the model as a safetensors file, its configuration in the metadata."""
    return save_tensors(path, model.state_dict(), {"format": SNS_FORMAT, "config": asdict(model.config)})


def load_sns(path: str | Path) -> SphericalNeuralSurface:
    """The model that save_sns wrote, in its precision, on the CPU. Raises InputError for any other file."""
    state, metadata = load_tensors(path)
    if metadata.get("format") != SNS_FORMAT:
        raise InputError(f"{path} holds no spherical neural surface but {metadata.get('format', 'other tensors')!r}.")
    try:
        model = SphericalNeuralSurface(SNSConfig(**metadata["config"])).to(state["centre"].dtype)
        model.load_state_dict(state)
    except (KeyError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} does not fit its own configuration: {reason}.") from error
    return model.requires_grad_(False)
