"""Training data of the attention network: patches of bands with their closest points."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lamina.fits.curvature import SurfaceFeatures
from lamina.geometry.lattice import Lattice
from lamina.grid.band import Band
from lamina.grid.sizing import check_spacing
from lamina.learn.fit_data import random_rotations
from lamina.paper.attention import band_near_samples, cover_band
from lamina.paper.attention_network import NetworkConfig
from lamina.paper.patches import Patches, localise
from lamina.surfaces.base import Surface

MONOMIAL_DEGREE = 5  # The paper trains on all monomials up to this degree.


@dataclass(frozen=True)
class PatchData:
    """p patches of k nodes, in space and in their frames. Samples are listed patch after patch, as in `Patches`."""

    nodes: Tensor  # (p, k, 3) in space
    feet: Tensor  # (p, k, 3) the closest points of the nodes, in space
    local_nodes: Tensor  # (p, k, 3) in the frames
    local_normals: Tensor  # (p, k, 3) normals at the closest points, in the frames
    features: Tensor  # (s, f) of the samples, in the frames
    first: Tensor  # (p,) int64, the first sample of each patch
    count: Tensor  # (p,) int64, the number of its samples

    def __len__(self) -> int:
        return len(self.nodes)

    def to(self, device: torch.device | str) -> PatchData:
        return PatchData(*(getattr(self, f.name).to(device) for f in fields(self)))


@dataclass(frozen=True)
class Batch:
    """The patches of one training step."""

    nodes: Tensor  # (b, k, 3), rotated in space: where functions are evaluated
    feet: Tensor  # (b, k, 3), rotated likewise
    local_nodes: Tensor  # (b, k, 3)
    local_normals: Tensor  # (b, k, 3)
    features: Tensor  # (b, s, f)


@torch.no_grad()
def patch_data(
    surface: Surface,
    config: NetworkConfig,
    *,
    radius: float,
    grids: int,
    seed: int,
    patch_spacing: float = 0.27,
    margin: float = 0.5,
) -> PatchData:
    """Patches of the band of given radius on `grids` lattices with random offsets.

    Functions are monomials about the origin: the surface should lie around the origin and have a size of about 1.
    """
    check_spacing(surface, config.spacing)
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for _ in range(grids):
        shift = torch.rand(3, generator=generator, dtype=torch.float64).to(surface.points)
        lattice = Lattice(surface.bounds.mean(0) + config.spacing * shift, config.spacing)
        band, samples = band_near_samples(surface, Band.build(surface, lattice, radius), radius)
        patches = cover_band(band, radius, samples, config.k, patch_spacing, margin)
        parts.append(_patch_arrays(patches, lattice.position(band.ijk), band, samples.features, config))
    return _concatenated(parts)


def _patch_arrays(
    patches: Patches, positions: Tensor, band: Band, surface: SurfaceFeatures, config: NetworkConfig
) -> PatchData:
    local = localise(patches, positions, surface, 1.0)
    frames = surface.frames[patches.centres].transpose(1, 2)
    count = torch.bincount(patches.patch, minlength=len(patches))
    return PatchData(
        positions[patches.nodes].float(),
        band.feet.points[patches.nodes].float(),
        local.nodes.float(),
        (band.feet.normals[patches.nodes] @ frames).float(),
        local.features(config.features).float(),
        torch.cumsum(count, 0) - count,
        count,
    )


def _concatenated(parts: list[PatchData]) -> PatchData:
    shifts = [0]
    for part in parts[:-1]:
        shifts.append(shifts[-1] + len(part.features))
    columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(PatchData)}
    columns["first"] = [first + shift for first, shift in zip(columns["first"], shifts, strict=True)]
    return PatchData(**{name: torch.cat(column) for name, column in columns.items()})


def draw(data: PatchData, which: Tensor, samples: int, generator: torch.Generator) -> Batch:
    """Patches which (b,), each rotated at random in space and, with probability 1/2, about its normal.

    The rotation in space gives every patch other functions. The rotation about the normal teaches the network that the
    directions t1, t2 are arbitrary at umbilics. samples: number of samples in a patch. They are drawn with repetition,
    so that the expectation of their mean is the mean over all samples. Random numbers come from the CPU, so that they
    are the same on every device.
    """
    device = data.nodes.device
    turn = random_rotations(len(which), generator).to(data.nodes)
    angle = torch.rand(len(which), generator=generator) * (2 * torch.pi)
    angle = (angle * (torch.rand(len(which), generator=generator) < 0.5)).to(data.nodes)
    pick = torch.rand(len(which), samples, generator=generator).to(device)
    which = which.to(device)
    inside = (pick * data.count[which, None]).long().clamp(max=(data.count[which, None] - 1).clamp_min(0))
    spin = _rotation_about_first_axis(angle).transpose(1, 2)
    features = data.features[data.first[which, None] + inside]
    return Batch(
        data.nodes[which] @ turn,
        data.feet[which] @ turn,
        data.local_nodes[which] @ spin,
        data.local_normals[which] @ spin,
        _rotated_features(features, spin),
    )


def fixed_batch(data: PatchData, which: Tensor, samples: int) -> Batch:
    """Patches which (b,) without rotation, with `samples` of their samples, evenly picked."""
    step = (torch.arange(samples, device=data.nodes.device) + 0.5) / samples
    inside = (step * data.count[which, None]).long()
    features = data.features[data.first[which, None] + inside]
    return Batch(data.nodes[which], data.feet[which], data.local_nodes[which], data.local_normals[which], features)


def _rotated_features(features: Tensor, spin: Tensor) -> Tensor:
    """Features (b, s, f) with their vectors rotated. Vectors come first, three columns each."""
    vectors = 3 * (features.shape[-1] // 3)
    parts = [features[..., i : i + 3] @ spin for i in range(0, vectors, 3)]
    return torch.cat([*parts, features[..., vectors:]], -1)


def _rotation_about_first_axis(angle: Tensor) -> Tensor:
    c, s, one, zero = angle.cos(), angle.sin(), torch.ones_like(angle), torch.zeros_like(angle)
    rows = [torch.stack(r, 1) for r in ([one, zero, zero], [zero, c, -s], [zero, s, c])]
    return torch.stack(rows, 1)


def monomials(x: Tensor, degree: int = MONOMIAL_DEGREE) -> Tensor:
    """x^i y^j z^k (..., m) for all i + j + k <= degree: 56 of them for degree 5."""
    powers = [torch.ones_like(x)]
    for _ in range(degree):
        powers.append(powers[-1] * x)
    columns = [
        powers[i][..., 0] * powers[j][..., 1] * powers[k][..., 2]
        for i in range(degree + 1)
        for j in range(degree + 1 - i)
        for k in range(degree + 1 - i - j)
    ]
    return torch.stack(columns, -1)
