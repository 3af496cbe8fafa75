"""The surface through samples of it, clean or noisy: a jet around each.

Leave-one-out errors (how well a jet fitted to its neighbours alone predicts a
sample) choose degree and neighbourhood: they shrink with the neighbourhood on clean samples and grow on
noisy ones, so they balance bias and variance without knowing the noise. Normals are fitted too where that
predicts positions clearly better. Noisy samples are first moved to a smooth surface, a blend of the wide
jets around some of them, and then treated as clean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from lamina.device import by_kernel
from lamina.fits.jets import Jets, Surroundings, fit_and_predict, fit_jets, predict
from lamina.fits.project import project
from lamina.geometry.triangles import dot, unit
from lamina.search.nearest import Nearest
from lamina.search.neighbours import PieceTrees, PointTree

TESTED = 2048  # samples whose leave-one-out errors choose degree and neighbourhood
WITH_NORMALS = ((2, 12), (4, 16), (6, 24))  # (degree, neighbours) tried for fits to positions and normals
FEWEST = {2: 12, 4: 32, 6: 56}  # neighbours tried for fits to positions alone, by degree
MOST = {2: (640, 1 / 16), 4: (384, 1 / 64), 6: (128, 0)}  # that many, or that part of a larger cloud
GROWTH = 1.7  # from one neighbourhood tried to the next
PATIENCE = 2  # neighbourhoods in a row that may be worse than the best before
TYPICAL, SAFE = 0.75, 0.98  # part of the leave-one-out errors that counts, the smallest ones
GAUSSIAN = {TYPICAL: 0.607, SAFE: 0.934}  # RMS of that part of normal deviates
NORMALS_HELP, DEGREE_HELPS, SAFETY_HELPS = 0.7, 0.99, 0.7  # must cut the leave-one-out error to this
THICKNESS = 6.0  # a neighbourhood's radius is at least this many leave-one-out errors
CENTRES, BLENDED = 32, 16  # jets that share a smoothed neighbourhood, and those that a place blends
SHARED = 32  # neighbours that are looked for, at least, where they are for all samples: others will ask again
RECENTRED = 16  # neighbours among which the sample nearest to a foot is looked for


@dataclass(frozen=True)
class Way:
    """A way to fit jets."""

    degree: int
    k: int  # neighbours, the sample itself included
    slopes: bool  # whether normals are fitted besides positions


@dataclass(frozen=True)
class Choice:
    """A way to fit and its leave-one-out error."""

    way: Way
    error: float
    grown: bool  # whether this neighbourhood is wider than the smallest tried, as noise makes it


@dataclass(frozen=True)
class Cloud:
    """Distinct oriented samples, each in a component."""

    points: Tensor  # (m, 3)
    normals: Tensor  # (m, 3)
    component: Tensor  # (m,) int64
    known: PointTree | None = field(default=None, repr=False, compare=False)  # of the points, where there is one

    @cached_property
    def pieces(self) -> PieceTrees:
        return PieceTrees(self.points.detach(), self.component, self.tree)

    @cached_property
    def tree(self) -> PointTree:
        return self.known or PointTree(self.points.detach())

    @cached_property
    def search(self) -> Nearest:
        return Nearest(self.points.detach(), self.component)

    def detach(self) -> Cloud:
        return Cloud(self.points.detach(), self.normals.detach(), self.component, self.tree)

    def neighbours(self, rows: Tensor, k: int) -> Tensor:
        """The k nearest (n, k) of samples `rows` in their component, first the sample itself."""
        every = len(rows) == len(self.points)
        if len(self.pieces.trees) == 1 and k <= len(self.points) and (every or self.tree.knows(k)):
            return self.tree.own(max(k, min(SHARED, len(self.points))))[0][rows][:, :k]
        return self.pieces.query(self.points[rows].detach(), self.component[rows], k)[0]

    def fit(self, near: Tensor, way: Way) -> Jets:
        return fit_jets(self.points, self.normals, near[:, : way.k], way.degree, slopes=way.slopes)

    def predict(self, near: Tensor, way: Way) -> tuple[Tensor, Tensor]:
        """Height (m,) over the samples near[:, 0] of jets fitted to the others, and their scale (m,)."""
        return predict(self.points.detach(), self.normals.detach(), near[:, : way.k], way.degree, way.slopes)

    def predict_all(self, near: Tensor, ways: list[Way]) -> list[tuple[Tensor, Tensor]]:
        """The same for several ways."""
        points, normals = self.points.detach(), self.normals.detach()
        if len(ways) == 1 or by_kernel(points, normals):
            return [self.predict(near, way) for way in ways]
        around = Surroundings.of(points, normals, near[:, : max(way.k for way in ways)])  # once for all of them
        return [around.predict(way.k, way.degree, way.slopes) for way in ways]

    def fit_and_predict(self, near: Tensor, way: Way) -> tuple[Jets, Tensor]:
        """Jets without gradients, and how high (m,) they would be over samples left out."""
        return fit_and_predict(self.points, self.normals, near[:, : way.k], way.degree, slopes=way.slopes)


@dataclass(frozen=True)
class Fit:
    """The surface fitted to a cloud: samples on it and a jet around each."""

    cloud: Cloud
    near: Tensor  # (m, 16) int64, nearest samples of the same component, first the sample itself
    jets: Jets
    choice: Choice
    smoothing: Choice | None  # how noisy samples were smoothed; None: they are those of the cloud

    def detach(self) -> Fit:
        return replace(self, cloud=self.cloud.detach(), jets=self.jets.detach())

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Fit:
        points, normals = (v.to(device=device, dtype=dtype) for v in (self.cloud.points, self.cloud.normals))
        cloud = Cloud(points, normals, self.cloud.component.to(device))
        return replace(self, cloud=cloud, near=self.near.to(device), jets=self.jets.to(device, dtype))


def fit_surface(cloud: Cloud) -> Fit:
    """Fit jets to a cloud, each component for itself, after smoothing it where it is noisy.

    The fit has the gradients of the samples; what it chose by looking at them is held fixed.
    """
    typical, safe = choose_ways(cloud)
    smoothing = None
    if safe.grown:
        # Predictions improved as neighbourhoods grew: what they averaged out is noise.
        smoothing = safe
        cloud = smooth(cloud, safe.way)
        typical, safe = choose_ways(cloud, widest=2.0)
    every = torch.arange(len(cloud.points), device=cloud.points.device)
    near = cloud.neighbours(every, max(typical.way.k, safe.way.k, RECENTRED))
    jets = fit_locally(cloud, near, typical.way, safe.way)
    return Fit(cloud, near[:, :RECENTRED].contiguous(), jets, typical, smoothing)


@torch.no_grad()
def choose_ways(cloud: Cloud, widest: float = torch.inf) -> tuple[Choice, Choice]:
    """The best way to fit most places, and the best with regard to difficult ones too (edges, thin parts).

    Both have the smallest RMS leave-one-out error at random samples, one without the worst quarter of the
    errors, one without the worst 2 %, scaled to be that of all if they were Gaussian. Neighbourhoods are
    tried up to `widest` times the smallest.
    """
    order = torch.randperm(len(cloud.points), generator=torch.Generator().manual_seed(0))
    tested = order[:TESTED].to(cloud.points.device)
    count = len(cloud.points)
    most = {q: max(FEWEST[2], min(count // 2, max(k, int(part * count)))) for q, (k, part) in MOST.items()}
    first = _always_tried(most, widest)
    near = cloud.neighbours(tested, max(way.k for way in first))
    known: dict[Way, tuple[float, ...]] = dict(zip(first, _figures(cloud, near, first), strict=True))

    def error(way: Way, part: float) -> float:
        nonlocal near
        if way not in known:
            if way.k > near.shape[1]:
                near = cloud.neighbours(tested, min(2 * way.k, most[2]))
            known[way] = _figures(cloud, near, [way])[0]
        radius, *found = known[way]
        rms = found[(TYPICAL, SAFE).index(part)]
        # A ball hardly wider than the noise holds samples that err the same way, and errors look small.
        return torch.inf if THICKNESS * rms > radius else max(rms, 1e-15 * radius)

    typical = _smallest_error(lambda way: error(way, TYPICAL), most, widest)
    return typical, _smallest_error(lambda way: error(way, SAFE), most, widest)


def _figures(cloud: Cloud, near: Tensor, ways: list[Way]) -> list[tuple[float, ...]]:
    """Of each way the median of the neighbourhoods' radii around samples near[:, 0], and the RMS of the typical and of
    the safe leave-one-out errors. All of them are looked at together, as each look makes a GPU wait."""
    height, scale = (torch.stack(part) for part in zip(*cloud.predict_all(near, ways), strict=True))
    square = height.square().sort(1).values
    rms = [
        square[:, : max(1, round(part * square.shape[1]))].mean(1).sqrt() / GAUSSIAN[part] for part in (TYPICAL, SAFE)
    ]
    return [tuple(row) for row in torch.stack([scale.median(1).values, *rms], 1).tolist()]


def _neighbourhoods(degree: int, most: dict[int, int], widest: float) -> Iterator[int]:
    """Numbers of neighbours, small to large, that fits to positions alone are tried with."""
    k = FEWEST[degree]
    while k <= min(most[degree], widest * FEWEST[degree]):
        yield k
        k = round(GROWTH * k)


def _always_tried(most: dict[int, int], widest: float) -> list[Way]:
    """The ways that _smallest_error tries whatever their errors are."""
    alone = [Way(q, k, slopes=False) for q in FEWEST for k in islice(_neighbourhoods(q, most, widest), PATIENCE + 1)]
    return alone + [Way(q, k, slopes=True) for q, k in WITH_NORMALS if k <= most[2]]


def _smallest_error(error: Callable[[Way], float], most: dict[int, int], widest: float) -> Choice:
    """Search over degrees, neighbourhoods and the use of normals.

    Without normals, neighbourhoods grow until errors have grown twice. A higher degree must win clearly, as
    its slopes are noisier, and so must normals: often they were computed from the positions themselves, and
    then help to predict the noise.
    """
    best: Choice | None = None
    for degree, fewest in FEWEST.items():
        worse, own = 0, None
        for k in _neighbourhoods(degree, most, widest):
            if worse == PATIENCE:
                break
            way = Way(degree, k, slopes=False)
            tried = Choice(way, error(way), grown=k >= 2 * fewest)
            better = own is None or tried.error < own.error or own.error == torch.inf
            own, worse = (tried, 0) if better else (own, worse + 1)
        if own is not None and (best is None or own.error < DEGREE_HELPS * best.error):
            best = own
    for degree, k in WITH_NORMALS:
        if k <= most[2]:
            way = Way(degree, k, slopes=True)
            tried = Choice(way, error(way), grown=False)
            if best is None or tried.error < (1 if best.way.slopes else NORMALS_HELP) * best.error:
                best = tried
    assert best is not None  # the smallest cloud allows the smallest quadric
    return best


def fit_locally(cloud: Cloud, near: Tensor, typical: Way, safe: Way) -> Jets:
    """Jets around all samples, of which near (m, k) are the neighbours, the typical way but where the safe way predicts
    clearly better.

    Clearly: by the RMS of the leave-one-out errors of the 16 samples around.
    """
    jets = cloud.fit(near, typical)
    if safe == typical:
        return jets
    with torch.no_grad():
        around = cloud.tree.own(min(16, len(near)))[0]
        one, other = (cloud.predict(near, way)[0][around].square().mean(1) for way in (safe, typical))
        rows = (one < SAFETY_HELPS**2 * other).nonzero()[:, 0]
    return jets.replaced(rows, cloud.fit(near[rows], safe)) if len(rows) else jets


def smooth(cloud: Cloud, way: Way) -> Cloud:
    """The cloud moved to a smooth surface, p' = sum_j w_j foot_j(p) / sum_j w_j, with its normals.

    foot_j is the closest point on the jet of centre j, over the 16 nearest centres of the same component, and
    w_j = (1 - d_j^2 / d_17^2)^3: the partition of unity of Ohtake et al. (2003), "Multi-level partition of
    unity implicits". Centres are a random subset of the samples, about 32 to a neighbourhood, so that the
    cost per sample does not grow with its size.
    """
    points, normals, component = cloud.points, cloud.normals, cloud.component
    generator = torch.Generator().manual_seed(0)
    centres = torch.cat([_some(members, way.k, generator) for members in cloud.pieces.members])
    jets = cloud.fit(cloud.neighbours(centres, way.k), way)
    jets = replace(jets, reach=torch.ones_like(jets.reach))  # these are used all over their neighbourhoods
    middle = points[centres]
    which, _ = PieceTrees(middle.detach(), component[centres]).query(points.detach(), component, BLENDED + 1)
    offset = points[:, None] - middle[which]
    square = dot(offset, offset)
    weight = (1 - square / square[:, -1:].clamp_min(1e-300)).clamp_min(0) ** 3
    places, directions = torch.zeros_like(points), torch.zeros_like(points)
    total = torch.zeros_like(points[:, :1])
    for j, w in zip(which.unbind(1), weight.split(1, dim=1), strict=True):
        foot, normal = project(jets, points, j)
        w = w * (dot(jets.frames[j, 2], normals) > 0)[:, None]  # not the sheet behind
        places, directions, total = places + w * foot, directions + w * normal, total + w
    lost = total <= 0
    places = torch.where(lost, points, places / total.masked_fill(lost, 1))
    return Cloud(places, torch.where(lost, normals, unit(directions)), component)


def _some(rows: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Random rows, about 32 to a neighbourhood of k, and at least 64."""
    count = max(64, CENTRES * len(rows) // k)
    return rows[torch.randperm(len(rows), generator=generator)[:count].to(rows.device)]
