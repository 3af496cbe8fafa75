"""GINO, the geometry-informed neural operator, for comparison with lamina's schemes.

Values f at points x_p of a surface are carried to the nodes y_q of a grid. There they pass a Fourier neural operator,
and the result is carried back to the points (Li et al. 2023, "Geometry-informed neural operator for large-scale 3D
PDEs"):

    v(y_q) = mean over |x_p - y_q| <= r of k_1(x_p, y_q) f(x_p),
    w      = FNO(v, d),                       d(y_q) the signed distance of the surface,
    u(x_p) = Q(sum over |x_p - y_q| <= r of k_2(y_q, x_p) w(y_q)),

where k_1, k_2 and Q are small networks of sinusoids of the coordinates. The layers are those of the package
neuraloperator. Its own sums loop over points in Python and search all pairs for neighbours in every pass. Here
neighbours are found once for each shape, on the grid, and a pass takes milliseconds. The tests compare both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from lamina.errors import InputError
from lamina.learn.signed_distance import SignedDistanceTarget, signed_distance_target
from lamina.surfaces.base import Surface

GINO_FORMAT = "lamina gino 1"
PAIRS_PER_CHUNK = 2**18  # pairs of a point and a node at a time


@dataclass(frozen=True)
class GINOConfig:
    """Sizes of the network.

    grid: nodes along each side of the box |x|, |y|, |z| <= half_width, in which shapes lie. radius: r, in spacings of
    the grid. encoded: channels of v. channels, modes (along each axis), layers: of the Fourier operator. encoder,
    decoder: widths of the hidden layers of k_1 and k_2. frequencies: number of sinusoids, pi 2^k along the box.
    """

    grid: int = 32
    half_width: float = 1.1
    radius: float = 1.75
    encoded: int = 16
    channels: int = 32
    modes: int = 16
    layers: int = 4
    encoder: tuple[int, ...] = (64, 64)
    decoder: tuple[int, ...] = (256, 128)
    frequencies: int = 7

    def __post_init__(self) -> None:
        for name in ("encoder", "decoder"):  # lists, when they come from a file
            object.__setattr__(self, name, tuple(getattr(self, name)))
        counts = (self.encoded, self.channels, self.layers, self.frequencies, *self.encoder, *self.decoder)
        if min(counts) < 1 or not (self.encoder and self.decoder):
            raise InputError(f"channels, layers, widths and frequencies must be at least 1, got {self}.")
        if not 2 <= self.modes <= self.grid:
            raise InputError(f"modes must lie between 2 and the grid's {self.grid}, got {self.modes}.")
        if not (self.radius >= 1 and self.half_width > 0):
            raise InputError(
                f"radius is {self.radius} spacings and half_width {self.half_width}; expected radius >= 1, so that "
                "every point has nodes around it, and half_width > 0."
            )

    def nodes(self) -> Tensor:
        """Nodes (grid^3, 3) in space, the last coordinate running first, float64."""
        axis = torch.linspace(-self.half_width, self.half_width, self.grid, dtype=torch.float64)
        return torch.cartesian_prod(axis, axis, axis)


@dataclass(frozen=True)
class Shape:
    """A surface as input of the network. Positions are relative to the corner of the box, in units of its width."""

    points: Tensor  # (n, 3) in [0, 1]
    weights: Tensor  # (n,) share of the area of each
    distance: Tensor  # (grid, grid, grid) signed distances of the nodes, over half the width
    point: Tensor  # (e,) int64, the point of each pair
    node: Tensor  # (e,) int64, the node of each pair, within the radius of the point
    count: Tensor  # (grid^3,) points within the radius of each node, at least 1

    @classmethod
    def build(cls, points: Tensor, areas: Tensor, distance: Tensor, config: GINOConfig) -> Shape:
        """points (n, 3) in space, areas (n,), distance (grid, grid, grid) in space; dtype and device of points."""
        _check_shape(points, areas, distance, config)
        in_box = 0.5 * (points / config.half_width + 1)
        point, node = _pairs(in_box, config)
        count = torch.bincount(node, minlength=config.grid**3).clamp_min(1).to(points)
        distance = (distance / config.half_width).to(points)
        return cls(in_box, (areas / areas.sum()).to(points), distance, point, node, count)


class GINO(nn.Module):
    """The network with normalised input and output.

    The mean of f is taken off, and f is divided by its root mean square s. The output is u = s scale network(f / s)
    less its mean. So u is 0 for constant f, and it doubles if f doubles.
    """

    scale: Tensor
    nodes: Tensor  # (grid^3, 3) in [0, 1]

    def __init__(self, config: GINOConfig | None = None, scale: float = 1.0) -> None:
        super().__init__()
        self.config = config = config or GINOConfig()
        self.network = _neuralop_gino()(
            in_channels=1,
            out_channels=1,
            latent_feature_channels=1,
            in_gno_radius=config.radius / (config.grid - 1),
            out_gno_radius=config.radius / (config.grid - 1),
            in_gno_pos_embed_type="nerf",
            out_gno_pos_embed_type="nerf",
            gno_embed_channels=config.frequencies,
            in_gno_channel_mlp_hidden_layers=list(config.encoder),
            out_gno_channel_mlp_hidden_layers=list(config.decoder),
            fno_in_channels=config.encoded,
            fno_n_modes=(config.modes,) * 3,
            fno_hidden_channels=config.channels,
            fno_n_layers=config.layers,
            gno_use_open3d=False,
            gno_use_torch_scatter=False,
        )
        self.register_buffer("scale", torch.tensor(float(scale)))
        nodes = (0.5 * (config.nodes() / config.half_width + 1)).float()
        self.register_buffer("nodes", nodes, persistent=False)

    @property
    def parameter_count(self) -> int:
        """Number of trained real numbers."""
        return sum(p.numel() * (2 if p.is_complex() else 1) for p in self.parameters())

    def forward(self, shape: Shape, f: Tensor) -> Tensor:
        """u (n,) from f (n,) at the points of a shape."""
        g, size = normalised(f, shape.weights)
        return size * self.scale * self.normalised_solution(shape, g)

    def normalised_solution(self, shape: Shape, g: Tensor) -> Tensor:
        """network(g) (n,), less its mean, for g (n,) of zero mean and size 1."""
        v = self._encode(shape, g)
        size = self.config.grid
        latent = torch.cat([v.view(1, size, size, size, -1), shape.distance[None, ..., None]], -1)
        w = self.network.latent_embedding(latent)  # (1, channels, grid, grid, grid)
        u = self._decode(shape, w.reshape(w.shape[1], -1).T)
        return u - (shape.weights * u).sum()

    def _encode(self, shape: Shape, g: Tensor) -> Tensor:
        """v (grid^3, encoded)."""
        total = g.new_zeros(len(self.nodes), self.config.encoded)
        kernel = _Kernel(self.network.gno_in, shape.points, self.nodes)
        for p, q in zip(shape.point.split(PAIRS_PER_CHUNK), shape.node.split(PAIRS_PER_CHUNK), strict=True):
            total = total.index_add(0, q, kernel(p, q) * g[p, None])
        return total / shape.count[:, None]

    def _decode(self, shape: Shape, w: Tensor) -> Tensor:
        """u (n,) from w (grid^3, channels)."""
        total = w.new_zeros(len(shape.points), self.config.channels)
        kernel = _Kernel(self.network.gno_out, self.nodes, shape.points)
        for p, q in zip(shape.point.split(PAIRS_PER_CHUNK), shape.node.split(PAIRS_PER_CHUNK), strict=True):
            total = total.index_add(0, p, kernel(q, p) * w[q])
        return self.network.projection(total.T[None])[0, 0]

    def shape_of(self, surface: Surface) -> Shape:
        """A surface as input of this network. Its signed distances take a second or two: reuse it for several f."""
        distance = signed_distances(surface, self.config)
        points = surface.points.detach().to(self.nodes)
        return Shape.build(points, surface.areas.detach().to(points), distance.to(points), self.config)

    @torch.no_grad()
    def poisson(self, surface: Surface, f: Callable[[Tensor], Tensor] | Tensor) -> Tensor:
        """An approximation of u (m,) with Lap u = f at the points of a surface; zero mean by area.

        f: a function of points (m, 3), or values (m,). The surface must lie in the box of the configuration and
        have the size of the training shapes. The answer has the surface's precision and device.
        """
        values = f(surface.points) if callable(f) else f
        if not isinstance(values, Tensor) or values.shape != (len(surface.points),):
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise InputError(f"f is {got}; expected a tensor of one number for each of {len(surface.points)} points.")
        u = self(self.shape_of(surface), values.detach().to(self.nodes)).to(surface.points)
        return u - (surface.areas * u).sum() / surface.areas.sum()


class _Kernel:
    """k(y, x) for pairs of points y (n, 3) and x (m, 3), as a layer of neuraloperator computes it.

    It is a network of both embeddings. Its first layer is linear and is applied to points, not to pairs.
    """

    def __init__(self, layer: Any, y: Tensor, x: Tensor) -> None:
        first, *self.rest = layer.integral_transform.channel_mlp.fcs
        own = layer.pos_embedding.out_channels
        self.y = linear(layer.pos_embedding(y), first.weight[:, :own])
        self.x = linear(layer.pos_embedding(x), first.weight[:, own:], first.bias)

    def __call__(self, y: Tensor, x: Tensor) -> Tensor:
        """Values (e, channels) for numbers y (e,), x (e,) of points."""
        h = self.y[y] + self.x[x]
        for layer in self.rest:
            h = layer(gelu(h))
        return h


def normalised(f: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """f (n,) less its mean and divided by its root mean square, and the latter; weights (n,) of sum 1."""
    f = f - (weights * f).sum()
    size = (weights * f * f).sum().sqrt()
    return f / size.clamp_min(torch.finfo(f.dtype).tiny), size


def signed_distances(
    surface: Surface | SignedDistanceTarget, config: GINOConfig, turned: Tensor | None = None
) -> Tensor:
    """Signed distances (grid, grid, grid) of the nodes to a surface that has an inside, negative there, float64.

    turned (3, 3): a rotation R; distances are then those to the rotated surface R x. For many rotations, give the
    surface as lamina.learn.signed_distance.signed_distance_target(surface), which is prepared for the search.
    """
    target = surface if isinstance(surface, SignedDistanceTarget) else signed_distance_target(surface)
    nodes = config.nodes() if turned is None else config.nodes() @ turned.to("cpu", torch.float64)
    distance = target((nodes - target.centre) / target.scale)[0] * target.scale
    return distance.view(config.grid, config.grid, config.grid)


def save_gino(path: str | Path, gino: GINO, **notes: Any) -> Path:
    """Write a network with its configuration, and notes on its origin, as safetensors."""
    from lamina.io.safetensor_files import save_tensors

    return save_tensors(path, _trained_tensors(gino), {"format": GINO_FORMAT, "config": asdict(gino.config), **notes})


def load_gino(path: str | Path) -> GINO:
    """The network in a file that save_gino wrote."""
    from lamina.io.safetensor_files import load_tensors

    tensors, metadata = load_tensors(path)
    if metadata.get("format") != GINO_FORMAT:
        raise InputError(f"{path} is not a file of a GINO; its format is {metadata.get('format', 'unknown')!r}.")
    try:
        gino = GINO(GINOConfig(**metadata["config"])).requires_grad_(False)
        for name, tensor in _trained_tensors(gino).items():
            tensor.copy_(tensors[name])
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} does not fit its own configuration: {error}.") from error
    return gino


def _trained_tensors(gino: GINO) -> dict[str, Tensor]:
    """Trained tensors by name, in place. Complex numbers are pairs of real ones, as safetensors needs them."""
    named = {**dict(gino.named_parameters()), "scale": gino.scale}
    return {k: torch.view_as_real(v.detach()) if v.is_complex() else v.detach() for k, v in named.items()}


def _neuralop_gino() -> Any:
    try:
        from neuralop import models  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise InputError(
            f"GINO needs the package neuraloperator, and there is no {error.name!r}; "
            "install it with: pip install 'lamina[gino]'."
        ) from error
    return models.GINO


def _pairs(points: Tensor, config: GINOConfig) -> tuple[Tensor, Tensor]:
    """All pairs of points (e,) and nodes (e,) within the radius, sorted by point; points (n, 3) in [0, 1]."""
    size, reach = config.grid, int(config.radius) + 1
    in_cells = points * (size - 1)
    middle = in_cells.round().long()
    step = torch.arange(-reach, reach + 1, device=points.device)
    offset = torch.cartesian_prod(step, step, step)
    # A point is within half a diagonal of a cell (0.87) of its middle node, so that farther offsets cannot be near.
    offset = offset[offset.double().norm(dim=1) <= config.radius + 0.87]
    ijk = middle[:, None] + offset  # (n, offsets, 3)
    near = (ijk - in_cells[:, None]).square().sum(-1) <= config.radius**2
    near &= ((ijk >= 0) & (ijk < size)).all(-1)
    point, which = near.nonzero(as_tuple=True)
    i, j, k = ijk[point, which].unbind(1)
    return point, (i * size + j) * size + k


def _check_shape(points: Tensor, areas: Tensor, distance: Tensor, config: GINOConfig) -> None:
    if points.ndim != 2 or points.shape[1] != 3 or areas.shape != points.shape[:1]:
        raise InputError(
            f"points and areas have shapes {tuple(points.shape)}, {tuple(areas.shape)}; expected (n, 3), (n,)."
        )
    if distance.shape != (config.grid,) * 3:
        raise InputError(f"distance has shape {tuple(distance.shape)}; expected {(config.grid,) * 3}, as the grid.")
    farthest = float(points.abs().max())
    if not farthest <= config.half_width:
        raise InputError(
            f"the shape reaches to {farthest:.3g} from the origin along an axis; GINO's box ends at "
            f"{config.half_width:.3g}: centre the shape and scale it to the size of the training shapes."
        )
