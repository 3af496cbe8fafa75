"""Training data of robust fits: clouds drawn from one star-shaped surface and damaged in many ways.

The shape of a cloud is the surface itself, the surface cut by planes (sharp edges), the surface joined with a rotated
copy of itself (creases inwards), or a thin shell. It is sampled more or less densely and evenly. Then noise, outliers,
and wrong or missing normals are added. Fits are compared with the clean points of the samples and their normals.
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

CLEAN_POOL = 200_000  # clean samples of the surface that clouds are drawn from
MIN_CLOUD_SAMPLES, MAX_CLOUD_SAMPLES = 3_000, 100_000  # samples of a cloud; their logarithms are drawn uniformly
CLEAN_POINTS_PER_FIT = 8  # clean points that each fit is compared with
# A random point counts as an outlier if it is farther from its clean point than OUTLIER_SIGMAS standard deviations of
# the noise plus OUTLIER_SPACINGS spacings. Nearer ones look like noisy samples.
OUTLIER_SIGMAS, OUTLIER_SPACINGS = 3.0, 0.5
# Two clean points lie on the same side of an edge if the cosine between their normals exceeds this (60 degrees).
MIN_SAME_SIDE_COSINE = 0.5
SHAPE_KINDS = ("smooth", "cut", "joined", "shell")


@dataclass(frozen=True)
class FitData:
    """Neighbourhoods of k samples, n from each of c clouds; units and origin as in `Neighbourhoods`."""

    points: Tensor  # (c, n, k, 3)
    normals: Tensor  # (c, n, k, 3)
    clean_points: Tensor  # (c, n, t, 3) points of the surface near the sample
    clean_normals: Tensor  # (c, n, t, 3) normals of the surface there
    outlier: Tensor  # (c, n) 1 for a sample that lies off the surface, else 0

    def __len__(self) -> int:
        return len(self.points)

    def to(self, device: torch.device | str) -> FitData:
        return FitData(*(getattr(self, f.name).to(device) for f in fields(self)))

    def rows(self, cloud: Tensor, sample: Tensor) -> tuple[Neighbourhoods, Tensor, Tensor, Tensor]:
        """Neighbourhoods, clean points, clean normals and outliers of samples (b,) of clouds (b,)."""
        points, normals, *truth = (getattr(self, f.name)[cloud, sample] for f in fields(self))
        return Neighbourhoods(points, normals, torch.ones_like(points[:, 0, 0])), *truth


@dataclass(frozen=True)
class CleanSamples:
    """Exact points of a surface with their normals."""

    points: Tensor  # (n, 3)
    normals: Tensor  # (n, 3)

    def take(self, rows: Tensor) -> CleanSamples:
        return CleanSamples(self.points[rows], self.normals[rows])


@dataclass(frozen=True)
class DamagedCloud:
    """A cloud, and the clean sample that each of its points came from; for an outlier, the nearest clean sample."""

    points: Tensor
    normals: Tensor
    clean: CleanSamples
    outlier: Tensor  # (n,) bool, whether a point is farther from the surface than noise would put it


class CloudSource:
    """A star-shaped surface to draw clouds from."""

    def __init__(self, surface: SphericalMap, seed: int = 0):
        feet = surface.sample(CLEAN_POOL, seed)
        self.pool = CleanSamples(feet.points, feet.normals)
        self.fn, self.area = surface.fn, float(surface.areas.sum())

    def inside(self, x: Tensor) -> Tensor:
        """Whether points (n, 3) lie inside."""
        on = self.fn(unit(x))
        return dot(x, x) < dot(on, on)


@torch.no_grad()
def fit_data(source: CloudSource, k: int, clouds: int, samples: int, seed: int) -> FitData:
    """Neighbourhoods of k samples, `samples` of them from each of `clouds` clouds."""
    parts = [_neighbourhoods(source, k, samples, np.random.default_rng((seed, k, i))) for i in range(clouds)]
    return FitData(*(torch.stack(column) for column in zip(*parts, strict=True)))


def _neighbourhoods(source: CloudSource, k: int, samples: int, random: np.random.Generator) -> tuple[Tensor, ...]:
    cloud = damaged_cloud(source, random, k)
    tree = KDTree(cloud.points.numpy())
    rows = random.choice(len(cloud.points), samples)
    index = torch.from_numpy(tree.query(cloud.points[rows].numpy(), k, workers=-1)[1])
    near = Neighbourhoods.of(cloud.points, cloud.normals, index)
    clean = cloud.clean
    own = clean.take(torch.from_numpy(rows))
    tree = KDTree(clean.points.numpy())
    close = torch.from_numpy(tree.query(own.points.numpy(), 4 * CLEAN_POINTS_PER_FIT, workers=-1)[1])
    # Points across an edge belong to the fits of other samples.
    same = dot(clean.normals[close], own.normals[:, None]) > MIN_SAME_SIDE_COSINE
    same[:, 0] = True
    order = torch.argsort((~same).int(), dim=1, stable=True)[:, :CLEAN_POINTS_PER_FIT]
    order = torch.where(same.gather(1, order), order, torch.zeros_like(order))
    chosen = close.gather(1, order)
    offset = (clean.points[chosen] - cloud.points[rows][:, None]) / near.spacing[:, None, None]
    outlier = cloud.outlier[torch.from_numpy(rows)]
    return near.points.float(), near.normals.float(), offset.float(), clean.normals[chosen].float(), outlier.float()


def damaged_cloud(source: CloudSource, random: np.random.Generator, k: int) -> DamagedCloud:
    """A cloud of a random shape with random damage, for neighbourhoods of k samples.

    Larger neighbourhoods see more noise.
    """
    generator = torch.Generator().manual_seed(int(random.integers(2**31)))
    clean = CleanSamples(torch.empty(0, 3), torch.empty(0, 3))
    while len(clean.points) < 8 * k:
        count = int(np.exp(random.uniform(np.log(max(MIN_CLOUD_SAMPLES, 16 * k)), np.log(MAX_CLOUD_SAMPLES))))
        clean = _thinned(_shape(source, str(random.choice(SHAPE_KINDS)), count, random, generator), random, generator)
    count = len(clean.points)
    spacing = math.sqrt(source.area / count)
    loudest = 1.5 * (k / 64) ** 0.5
    noise = 0.0 if random.random() < 0.35 else spacing * math.exp(random.uniform(math.log(0.02), math.log(loudest)))
    points = clean.points + noise * torch.randn(count, 3, generator=generator, dtype=torch.float64)
    outliers = 0 if random.random() < 0.6 else int(count * random.uniform(0.01, 0.1))
    if outliers:
        low, high = points.amin(0), points.amax(0)
        stray = low + (high - low) * torch.rand(outliers, 3, generator=generator, dtype=torch.float64)
        nearest = torch.from_numpy(KDTree(clean.points.numpy()).query(stray.numpy())[1])
        points, clean = torch.cat([points, stray]), clean.take(torch.cat([torch.arange(count), nearest]))
    normals = _normals(points, clean, outliers, random, generator)
    away = points - clean.points
    outlier = dot(away, away).sqrt() > OUTLIER_SIGMAS * noise + OUTLIER_SPACINGS * spacing
    outlier[:count] = False
    return DamagedCloud(points, normals, clean, outlier)


def _normals(
    points: Tensor, clean: CleanSamples, outliers: int, random: np.random.Generator, generator: torch.Generator
) -> Tensor:
    """Normals: estimated from the points, or true ones with an error and random ones at outliers; some are flipped."""
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


def _thinned(clean: CleanSamples, random: np.random.Generator, generator: torch.Generator) -> CleanSamples:
    """The samples, half the time thinned out by a factor of up to 6 that varies over the surface."""
    if random.random() < 0.5:
        return clean
    wave = torch.from_numpy(random.normal(size=3)) * 4
    share = 1 / (1 + random.uniform(1, 5) * (0.5 + 0.5 * torch.sin(clean.points @ wave)))
    return clean.take((torch.rand(len(clean.points), generator=generator) < share).nonzero()[:, 0])


def _shape(
    source: CloudSource, kind: str, count: int, random: np.random.Generator, generator: torch.Generator
) -> CleanSamples:
    """About `count` clean samples of a shape made from the surface; half the time its normals point inwards."""
    some = torch.randperm(CLEAN_POOL, generator=generator)[:count]
    clean = source.pool.take(some)
    density = count / source.area
    if kind == "cut":
        clean = _cut(source, clean, density, random, generator)
    elif kind == "joined":
        turn = random_rotations(1, generator)[0].to(clean.points)
        shift = torch.from_numpy(random.uniform(-0.6, 0.6, 3))
        other = source.pool.take(torch.randperm(CLEAN_POOL, generator=generator)[:count])
        other = CleanSamples(other.points @ turn.T + shift, other.normals @ turn.T)
        one = clean.take((~source.inside((clean.points - shift) @ turn)).nonzero()[:, 0])
        two = other.take((~source.inside(other.points)).nonzero()[:, 0])
        clean = CleanSamples(torch.cat([one.points, two.points]), torch.cat([one.normals, two.normals]))
    elif kind == "shell":
        thickness = random.uniform(1, 4) * density**-0.5
        back = source.pool.take(torch.randperm(CLEAN_POOL, generator=generator)[:count])
        clean = CleanSamples(
            torch.cat([clean.points, back.points - min(thickness, 0.08) * back.normals]),
            torch.cat([clean.normals, -back.normals]),
        )
    return CleanSamples(clean.points, -clean.normals) if random.random() < 0.5 else clean


def _cut(
    source: CloudSource, clean: CleanSamples, density: float, random: np.random.Generator, generator: torch.Generator
) -> CleanSamples:
    """The part behind one to four random planes, closed by the sections of the planes with the inside."""
    planes = [
        (unit(torch.from_numpy(random.normal(size=3))[None])[0], float(random.uniform(-0.1, 0.8)))
        for _ in range(random.integers(1, 5))
    ]
    kept = torch.stack([clean.points @ n < d for n, d in planes]).all(0)
    points, normals = [clean.points[kept]], [clean.normals[kept]]
    for i, (n, d) in enumerate(planes):
        # A square that contains the section, because the surface lies within twice its RMS radius.
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
    return CleanSamples(torch.cat(points), torch.cat(normals))


def random_rotations(count: int, generator: torch.Generator) -> Tensor:
    """Uniform random rotations (count, 3, 3), from unit quaternions (Shoemake 1992)."""
    q = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    w, x, y, z = (q / q.norm(dim=1, keepdim=True)).unbind(1)
    rows = [
        torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], 1),
        torch.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], 1),
        torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], 1),
    ]
    return torch.stack(rows, 1)
