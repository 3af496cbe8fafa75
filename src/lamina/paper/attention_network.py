"""The paper's attention network: a local extension operator, conditioned on the geometry around a patch.

Welschinger, Liu, Wang and Mitra (CVPR 2026), "Learning to Solve PDEs on Neural Shape Representations". In the
frame (n, t1, t2) of a patch's centre, with band nodes b_1 ... b_k (nearest to the centre first), a query q and
surface features s_1 ... s_N,

    U_j = Phi1(b_j),   V = Phi2(q),   W = mean_i sigmoid(Phi3(s_i)) in R^k,
    a_j(q) = softmax_j(<U_j, V> - lambda W_j),   u~(q) = sum_j a_j(q) u(b_j).

So W distinguishes nodes by their rank alone, and the output is a convex combination of the values in the patch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from lamina.checks import positive
from lamina.errors import InputError

ACTIVATIONS = {"relu": nn.ReLU, "silu": nn.SiLU, "gelu": nn.GELU, "tanh": nn.Tanh}
FEATURE_WIDTHS = {"points": 3, "normals": 3, "curvatures": 2}  # surface features, with their number of components

# Names in the checkpoint of the authors, and ours for the same parts.
AUTHORS_KEYS = {
    "key_net": "band_net",
    "query_net": "query_net",
    "surface_feat_net": "surface_net",
    "lambda_scale": "strength",
}


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of an AttentionNetwork, and the spacing that it was trained for.

    k: band nodes of a patch. width: of hidden layers and of U and V. depth: linear layers of each perceptron.
    surface_width, surface_depth: the same of Phi3, the surface network; None: those of the other networks.
    features: inputs of Phi3 for a surface sample, any of "points", "normals", "curvatures" (mean and Gaussian, in the
    lengths of the training data); without features there is no W.
    learn_strength: whether lambda is trained; otherwise it stays `strength`.
    spacing: grid spacing of the training data. Local coordinates are scaled by spacing / dx, so that the distances
    between nodes are those of the training data on every grid.
    """

    k: int = 400
    width: int = 64
    depth: int = 2
    activation: str = "relu"
    features: tuple[str, ...] = ("points", "normals")
    strength: float = 1.0
    learn_strength: bool = True
    spacing: float = 0.05
    surface_width: int | None = None
    surface_depth: int | None = None

    def __post_init__(self) -> None:
        if self.k < 2 or self.width < 1 or self.depth < 1:
            raise InputError(
                f"k must be at least 2, width and depth at least 1; got {self.k}, {self.width}, {self.depth}."
            )
        for name in ("surface_width", "surface_depth"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, or None for that of the other networks; got {value}.")
        if self.activation not in ACTIVATIONS:
            raise InputError(f"Unknown activation {self.activation!r}; known: {', '.join(ACTIVATIONS)}.")
        unknown = [f for f in self.features if f not in FEATURE_WIDTHS]
        if unknown:
            raise InputError(f"Unknown surface feature {unknown[0]!r}; known: {', '.join(FEATURE_WIDTHS)}.")
        # In the order of FEATURE_WIDTHS, so that vectors come first.
        object.__setattr__(self, "features", tuple(f for f in FEATURE_WIDTHS if f in self.features))
        positive("spacing", self.spacing)

    @property
    def feature_width(self) -> int:
        return sum(FEATURE_WIDTHS[f] for f in self.features)

    @property
    def surface_hidden(self) -> list[int]:
        """Widths of the hidden layers of Phi3."""
        width = self.width if self.surface_width is None else self.surface_width
        depth = self.depth if self.surface_depth is None else self.surface_depth
        return [width] * (depth - 1)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class AttentionNetwork(nn.Module):
    """Phi1, Phi2, Phi3 and lambda. The default configuration has 35,281 parameters, as that of the authors."""

    strength: Tensor

    def __init__(self, config: NetworkConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or NetworkConfig()
        self.band_net = perceptron([3, *[config.width] * config.depth], config.activation)
        self.query_net = perceptron([3, *[config.width] * config.depth], config.activation)
        if config.features:
            self.surface_net = perceptron([config.feature_width, *config.surface_hidden, config.k], config.activation)
        strength = torch.tensor(float(config.strength))
        if config.learn_strength and config.features:
            self.strength = nn.Parameter(strength)
        else:
            self.register_buffer("strength", strength)

    def rank_scores(self, features: Tensor, patch: Tensor, patches: int) -> Tensor:
        """lambda W (patches, k), W the mean over the samples of each patch.

        features (s, f): of the samples of all patches, without padding. patch (s,) int64: the patch of each sample. A
        patch without samples gets W = 1/2.
        """
        k = self.config.k
        if not self.config.features:
            return self.strength.new_zeros(patches, k)
        values = torch.sigmoid(self.surface_net(features))
        total = values.new_zeros(patches, k).index_add_(0, patch, values)
        count = torch.bincount(patch, minlength=patches).to(total)[:, None]
        return self.strength * torch.where(count > 0, total / count.clamp_min(1), torch.full_like(total, 0.5))

    def pooled_scores(self, features: Tensor) -> Tensor:
        """lambda W (p, k) for features (p, s, f), with s samples in every patch; sums have a fixed order."""
        if not self.config.features:
            return self.strength.new_zeros(len(features), self.config.k)
        return self.strength * torch.sigmoid(self.surface_net(features)).mean(1)

    def logits(self, nodes: Tensor, queries: Tensor, scores: Tensor) -> Tensor:
        """<U_j, V_q> - lambda W_j (p, q, k) for nodes (p, k, 3), queries (p, q, 3) and scores (p, k)."""
        return torch.baddbmm(scores[:, None], self.query_net(queries), self.band_net(nodes).transpose(1, 2), beta=-1)

    def forward(self, nodes: Tensor, queries: Tensor, features: Tensor, patch: Tensor) -> Tensor:
        """Weights a_j(q) (p, q, k): the extended field at the queries is weights @ values (p, k, ...)."""
        return torch.softmax(self.logits(nodes, queries, self.rank_scores(features, patch, len(nodes))), -1)


def perceptron(widths: Sequence[int], activation: str) -> nn.Sequential:
    """Linear layers of these widths with activations between them."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(widths)):
        layers += [ACTIVATIONS[activation]()] if i else []
        layers.append(nn.Linear(a, b))
    return nn.Sequential(*layers)


def from_authors(state: Mapping[str, Tensor], spacing: float = 0.05) -> AttentionNetwork:
    """The network of a checkpoint that the authors published: their state dict under our names."""
    renamed = {}
    for key, value in state.items():
        head, _, rest = key.partition(".")
        if head not in AUTHORS_KEYS:
            raise InputError(f"{key!r} is not a parameter of the authors' network; expected {', '.join(AUTHORS_KEYS)}.")
        renamed[AUTHORS_KEYS[head] + ("." + rest if rest else "")] = torch.as_tensor(value).float()
    try:
        width, k = len(renamed["band_net.0.bias"]), len(renamed["surface_net.2.bias"])
        network = AttentionNetwork(NetworkConfig(k=k, width=width, spacing=spacing))
        network.load_state_dict(renamed)
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(
            f"This is not the authors' network; parameters are missing or have another shape: {error}"
        ) from error
    return network
