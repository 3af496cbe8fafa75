"""Training data of the learned operator: clouds drawn from one star-shaped surface and damaged in many ways.

Each cloud is the surface itself, cut by planes (sharp edges), joined with a turned copy of itself (creases inwards) or
made a thin shell; sampled more or less densely and evenly; then noise, outliers, wrong and missing normals are added.
The clean places of the samples, with their normals, are what fits are compared with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from lamina.fits.normals import pca_normals
from lamina.geometry.triangles import dot, unit
from lamina.reconstruction.fit_network import Neighbourhoods
from lamina.surfaces.spherical_map import SphericalMap

POOL = 200_000  # samples of the surface that clouds are drawn from
FEWEST, MOST = 3_000, 100_000  # samples of a cloud
TESTED = 8  # clean places that each fit is compared with
SIGMAS, NEARLY = 3.0, 0.5  # standard deviations of the noise, plus spacings, that an outlier is off the surface
SAME_FACE = 0.5  # cosine between their normals
PARTS = ("smooth", "cut", "joined", "shell")


@dataclass(frozen=True)
class FitData:
    """c clouds with n neighbourhoods each, all of k samples; units and origin as in `Neighbourhoods`."""

    points: Tensor  # (c, n, k, 3)
    normals: Tensor  # (c, n, k, 3)
    places: Tensor  # (c, n, t, 3) clean points of the surface near the sample
    looks: Tensor  # (c, n, t, 3) its normals there
    off: Tensor  # (c, n) 1 for a sample that lies off the surface, else 0

    def __len__(self) -> int:
        return len(self.points)

    def to(self, device: torch.device | str) -> FitData:
        return FitData(*(getattr(self, f.name).to(device) for f in fields(self)))

    def rows(self, cloud: Tensor, sample: Tensor) -> tuple[Neighbourhoods, Tensor, Tensor, Tensor]:
        """Neighbourhoods, places, looks and off of some samples (b,) of some clouds (b,)."""
        points, normals, *truth = (getattr(self, f.name)[cloud, sample] for f in fields(self))
        return Neighbourhoods(points, normals, torch.ones_like(points[:, 0, 0])), *truth


@dataclass(frozen=True)
class Clean:
    """Exact points of a surface with its normals."""

    points: Tensor  # (n, 3)
    normals: Tensor  # (n, 3)

    def take(self, rows: Tensor) -> Clean:
        return Clean(self.points[rows], self.normals[rows])


@dataclass(frozen=True)
class Damaged:
    """A cloud, and the clean place of each of its points, or for an outlier the nearest one's."""

    points: Tensor
    normals: Tensor
    clean: Clean
    off: Tensor  # (n,) bool, farther from the surface than noise would put them


class Source:
    """A star-shaped surface to draw clouds from."""

    def __init__(self, surface: SphericalMap, seed: int = 0):
        feet = surface.sample(POOL, seed)
        self.pool = Clean(feet.points, feet.normals)
        self.fn, self.area = surface.fn, float(surface.areas.sum())

    def inside(self, x: Tensor) -> Tensor:
        """Whether points (n, 3) lie inside."""
        on = self.fn(unit(x))
        return dot(x, x) < dot(on, on)


@torch.no_grad()
def fit_data(source: Source, k: int, clouds: int, samples: int, seed: int) -> FitData:
    """Neighbourhoods of k samples, `samples` of them from each of `clouds` clouds."""
    parts = [_neighbourhoods(source, k, samples, np.random.default_rng((seed, k, i))) for i in range(clouds)]
    return FitData(*(torch.stack(column) for column in zip(*parts, strict=True)))


def _neighbourhoods(source: Source, k: int, samples: int, random: np.random.Generator) -> tuple[Tensor, ...]:
    cloud = damaged(source, random, k)
    tree = KDTree(cloud.points.numpy())
    rows = random.choice(len(cloud.points), samples)
    index = torch.from_numpy(tree.query(cloud.points[rows].numpy(), k, workers=-1)[1])
    near = Neighbourhoods.of(cloud.points, cloud.normals, index)
    clean = cloud.clean
    own = clean.take(torch.from_numpy(rows))
    close = torch.from_numpy(KDTree(clean.points.numpy()).query(own.points.numpy(), 4 * TESTED, workers=-1)[1])
    # Those across an edge belong to the fits of other samples.
    same = dot(clean.normals[close], own.normals[:, None]) > SAME_FACE
    same[:, 0] = True
    order = torch.argsort((~same).int(), dim=1, stable=True)[:, :TESTED]
    order = torch.where(same.gather(1, order), order, torch.zeros_like(order))
    chosen = close.gather(1, order)
    offset = (clean.points[chosen] - cloud.points[rows][:, None]) / near.spacing[:, None, None]
    off = cloud.off[torch.from_numpy(rows)]
    return near.points.float(), near.normals.float(), offset.float(), clean.normals[chosen].float(), off.float()


def damaged(source: Source, random: np.random.Generator, k: int) -> Damaged:
    """A cloud of a random kind with random damage, for neighbourhoods of k: larger ones see more noise."""
    generator = torch.Generator().manual_seed(int(random.integers(2**31)))
    clean = Clean(torch.empty(0, 3), torch.empty(0, 3))
    while len(clean.points) < 8 * k:
        count = int(np.exp(random.uniform(np.log(max(FEWEST, 16 * k)), np.log(MOST))))
        clean = _unevenly(_shape(source, str(random.choice(PARTS)), count, random, generator), random, generator)
    count = len(clean.points)
    spacing = math.sqrt(source.area / count)
    loudest = 1.5 * (k / 64) ** 0.5
    noise = 0.0 if random.random() < 0.35 else spacing * math.exp(random.uniform(math.log(0.02), math.log(loudest)))
    points = clean.points + noise * torch.randn(count, 3, generator=generator, dtype=torch.float64)
    outliers = 0 if random.random() < 0.6 else int(count * random.uniform(0.01, 0.1))
    if outliers:
        low, high = points.amin(0), points.amax(0)
        off = low + (high - low) * torch.rand(outliers, 3, generator=generator, dtype=torch.float64)
        nearest = torch.from_numpy(KDTree(clean.points.numpy()).query(off.numpy())[1])
        points, clean = torch.cat([points, off]), clean.take(torch.cat([torch.arange(count), nearest]))
    normals = _normals(points, clean, outliers, random, generator)
    away = points - clean.points
    off = dot(away, away).sqrt() > SIGMAS * noise + NEARLY * spacing
    off[:count] = False
    return Damaged(points, normals, clean, off)


def _normals(
    points: Tensor, clean: Clean, outliers: int, random: np.random.Generator, generator: torch.Generator
) -> Tensor:
    """Estimated from the points, or true ones with an error; those of outliers at random; some flipped."""
    if random.random() < 0.5:
        normals = pca_normals(points)
        normals = torch.where(dot(normals, clean.normals)[:, None] < 0, -normals, normals)
    else:
        tilt = 0.0 if random.random() < 0.5 else random.uniform(0, 0.2)
        normals = unit(clean.normals + tilt * torch.randn(points.shape, generator=generator, dtype=torch.float64))
        if outliers:
            normals[-outliers:] = unit(torch.randn(outliers, 3, generator=generator, dtype=torch.float64))
    wrong = 0.0 if random.random() < 0.5 else random.uniform(0, 0.2)
    flipped = torch.rand(len(points), generator=generator) < wrong
    return torch.where(flipped[:, None], -normals, normals)


def _unevenly(clean: Clean, random: np.random.Generator, generator: torch.Generator) -> Clean:
    """One in two times thinned out by up to a factor 6 that varies from place to place."""
    if random.random() < 0.5:
        return clean
    wave = torch.from_numpy(random.normal(size=3)) * 4
    share = 1 / (1 + random.uniform(1, 5) * (0.5 + 0.5 * torch.sin(clean.points @ wave)))
    return clean.take((torch.rand(len(clean.points), generator=generator) < share).nonzero()[:, 0])


def _shape(source: Source, kind: str, count: int, random: np.random.Generator, generator: torch.Generator) -> Clean:
    """About `count` clean samples of a shape made of the surface; half the time inside out."""
    some = torch.randperm(POOL, generator=generator)[:count]
    clean = source.pool.take(some)
    density = count / source.area
    if kind == "cut":
        clean = _cut(source, clean, density, random, generator)
    elif kind == "joined":
        turn = random_rotations(1, generator)[0].to(clean.points)
        shift = torch.from_numpy(random.uniform(-0.6, 0.6, 3))
        other = source.pool.take(torch.randperm(POOL, generator=generator)[:count])
        other = Clean(other.points @ turn.T + shift, other.normals @ turn.T)
        one = clean.take((~source.inside((clean.points - shift) @ turn)).nonzero()[:, 0])
        two = other.take((~source.inside(other.points)).nonzero()[:, 0])
        clean = Clean(torch.cat([one.points, two.points]), torch.cat([one.normals, two.normals]))
    elif kind == "shell":
        thickness = random.uniform(1, 4) * density**-0.5
        back = source.pool.take(torch.randperm(POOL, generator=generator)[:count])
        clean = Clean(
            torch.cat([clean.points, back.points - min(thickness, 0.08) * back.normals]),
            torch.cat([clean.normals, -back.normals]),
        )
    return Clean(clean.points, -clean.normals) if random.random() < 0.5 else clean


def _cut(
    source: Source, clean: Clean, density: float, random: np.random.Generator, generator: torch.Generator
) -> Clean:
    """The part on one side of each of one to four planes, closed by what of the planes lies inside."""
    planes = [
        (unit(torch.from_numpy(random.normal(size=3))[None])[0], float(random.uniform(-0.1, 0.8)))
        for _ in range(random.integers(1, 5))
    ]
    kept = torch.stack([clean.points @ n < d for n, d in planes]).all(0)
    points, normals = [clean.points[kept]], [clean.normals[kept]]
    for i, (n, d) in enumerate(planes):
        # A square that holds the section; the surface lies within twice its mean radius.
        size = 2 * float(dot(clean.points, clean.points).mean().sqrt())
        axis = torch.linalg.svd(n[None]).Vh[1:]
        flat = (2 * torch.rand(int(density * (2 * size) ** 2), 2, generator=generator, dtype=torch.float64) - 1) * size
        cap = d * n + flat @ axis
        good = source.inside(cap)
        for j, (other, limit) in enumerate(planes):
            if j != i:
                good &= cap @ other < limit
        points.append(cap[good])
        normals.append(n.expand(int(good.sum()), 3))
    return Clean(torch.cat(points), torch.cat(normals))


def random_rotations(count: int, generator: torch.Generator) -> Tensor:
    """Rotations (count, 3, 3), uniform: from unit quaternions (Shoemake 1992)."""
    q = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    w, x, y, z = (q / q.norm(dim=1, keepdim=True)).unbind(1)
    rows = [
        torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], 1),
        torch.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], 1),
        torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], 1),
    ]
    return torch.stack(rows, 1)
