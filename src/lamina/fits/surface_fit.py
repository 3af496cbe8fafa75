"""The surface through samples of it, clean or noisy: a jet around each sample.

The degree of the jets and the size of their neighbourhoods are chosen by leave-one-out errors: a jet is fitted to the
neighbours of a sample without the sample itself, and its height over the sample is the error. On clean samples this
error shrinks with the neighbourhood, on noisy samples it grows as the neighbourhood shrinks. The smallest error
therefore balances bias against variance, and the noise need not be known. Normals are fitted too where that predicts
positions clearly better. Noisy samples are first moved to a smooth surface, a blend of wide jets around some of them,
and are then treated as clean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from lamina.device import by_kernel
from lamina.fits.jets import Jets, Neighbourhoods, fit_and_predict, fit_jets, predict
from lamina.fits.project import project
from lamina.geometry.triangles import dot, unit
from lamina.search.nearest import Nearest
from lamina.search.neighbours import PieceTrees, PointTree
from lamina.shapes import Float, Int, shaped

# Leave-one-out errors are measured at this many random samples. With half as many the choice is noisier; with twice as
# many it takes twice as long.
TEST_SAMPLES = 2048
# Pairs (degree, neighbours) with which fits to positions and normals are tried: each has two or three equations for
# every coefficient.
NORMAL_FIT_CANDIDATES = ((2, 12), (4, 16), (6, 24))
# Smallest neighbourhood tried for fits to positions alone, by degree: about twice the number of coefficients.
MIN_NEIGHBOURS_BY_DEGREE = {2: 12, 4: 32, 6: 56}
# Largest neighbourhood tried for fits to positions alone, by degree: this many samples, or this share of a large cloud.
# Larger ones average out more noise and take longer.
MAX_NEIGHBOURS_BY_DEGREE = {2: (640, 1 / 16), 4: (384, 1 / 64), 6: (128, 0)}
# Each neighbourhood tried has this many times as many samples as the one before, so its radius grows by a third.
NEIGHBOURHOOD_GROWTH = 1.7
# The search over neighbourhoods stops after this many in a row with errors above the best one before them: one alone
# may be worse by chance.
MAX_WORSE_NEIGHBOURHOODS = 2
# Share of the leave-one-out errors that enter their RMS, the smallest ones. The typical share leaves out the quarter
# with the largest errors, such as samples at edges; the safe share leaves out 2 %, which outliers may cause.
TYPICAL_SHARE, SAFE_SHARE = 0.75, 0.98
# RMS of that share of standard normal deviates, the smallest in absolute value: dividing by it gives the RMS of all.
GAUSSIAN_RMS = {TYPICAL_SHARE: 0.607, SAFE_SHARE: 0.934}
# A fit to normals is chosen over a fit to positions if its leave-one-out error is less than this share of the other's.
# Normals are often computed from the positions, and then help to predict their noise: near 1 they would be taken for
# good; much lower they would hardly be used.
MAX_ERROR_SHARE_WITH_NORMALS = 0.7
# A higher degree is chosen if its leave-one-out error is less than this share of that of the lower degree, whose slopes
# are less noisy: at a tie the lower degree is kept.
MAX_ERROR_SHARE_OF_HIGHER_DEGREE = 0.99
# The safe settings replace the typical ones around a sample if their RMS error there is less than this share of the
# other: only where they are clearly better.
MAX_ERROR_SHARE_OF_SAFE_JETS = 0.7
# The safe and the typical jets are compared by their errors at a sample and its nearest, this many in all.
SAFE_COMPARISON_NEIGHBOURS = 16
# A neighbourhood whose median radius is less than this many leave-one-out errors is not chosen: a ball hardly wider
# than the noise holds samples that err the same settings, and their errors look small.
MIN_RADIUS_IN_ERRORS = 6.0
# Jets that smooth a neighbourhood stand at about this many of its samples, and a sample blends this many of them.
CENTRES_PER_NEIGHBOURHOOD = 32
BLENDED_CENTRES = 16
# A component has at least this many jets that smooth it, or as many as it has samples.
MIN_SMOOTHING_CENTRES = 64
# Neighbours that are found at least for every sample when neighbours of all are wanted: later steps want as many again.
MIN_SHARED_NEIGHBOURS = 32
# Neighbours kept with a fitted surface, among which the sample nearest to a foot is looked for.
KEPT_NEIGHBOURS = 16
# The neighbourhoods of samples that were smoothed already are at most this many times the smallest ones tried.
MAX_GROWTH_AFTER_SMOOTHING = 2.0
# A neighbourhood at least this many times the smallest one was grown to average out noise.
NOISY_GROWTH = 2


@dataclass(frozen=True)
class JetSettings:
    """How jets are fitted."""

    degree: int
    k: int  # neighbours, the sample itself included
    slopes: bool  # whether normals are fitted besides positions


@dataclass(frozen=True)
class ChosenSettings:
    """Settings and their leave-one-out error."""

    settings: JetSettings
    error: float
    grown: bool  # whether this neighbourhood is wider than the smallest tried, as noise makes it


@shaped
@dataclass(frozen=True)
class Cloud:
    """Distinct oriented samples, each in a component."""

    points: Float[Tensor, "m 3"]
    normals: Float[Tensor, "m 3"]
    component: Int[Tensor, " m"]
    known: PointTree | None = field(default=None, repr=False, compare=False)  # of the points, if it was built already

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
        """The k nearest samples (n, k) of the samples `rows` in their component, first the sample itself."""
        every = len(rows) == len(self.points)
        if len(self.pieces.trees) == 1 and k <= len(self.points) and (every or self.tree.knows(k)):
            return self.tree.own(max(k, min(MIN_SHARED_NEIGHBOURS, len(self.points))))[0][rows][:, :k]
        return self.pieces.query(self.points[rows].detach(), self.component[rows], k)[0]

    def fit(self, near: Tensor, settings: JetSettings) -> Jets:
        return fit_jets(self.points, self.normals, near[:, : settings.k], settings.degree, slopes=settings.slopes)

    def predict(self, near: Tensor, settings: JetSettings) -> tuple[Tensor, Tensor]:
        """Height (m,) over the samples near[:, 0] of jets fitted to the others of each row, and their scale (m,)."""
        points, normals = self.points.detach(), self.normals.detach()
        return predict(points, normals, near[:, : settings.k], settings.degree, settings.slopes)

    def predict_all(self, near: Tensor, tried: list[JetSettings]) -> list[tuple[Tensor, Tensor]]:
        """The same for each of several settings."""
        points, normals = self.points.detach(), self.normals.detach()
        if len(tried) == 1 or by_kernel(points, normals):
            return [self.predict(near, settings) for settings in tried]
        widest = max(settings.k for settings in tried)
        around = Neighbourhoods.of(points, normals, near[:, :widest])  # shared by all settings
        return [around.predict(settings.k, settings.degree, settings.slopes) for settings in tried]

    def fit_and_predict(self, near: Tensor, settings: JetSettings) -> tuple[Jets, Tensor]:
        """Jets without gradients, and the height (m,) over each sample of the jet fitted without it."""
        near = near[:, : settings.k]
        return fit_and_predict(self.points, self.normals, near, settings.degree, slopes=settings.slopes)


@dataclass(frozen=True)
class FittedSurface:
    """The surface fitted to a cloud: samples on it and a jet around each."""

    cloud: Cloud
    near: Tensor  # (m, KEPT_NEIGHBOURS) int64, nearest samples of the same component, first the sample itself
    jets: Jets
    choice: ChosenSettings  # with which most jets are fitted
    smoothing: ChosenSettings | None  # with which noisy samples were smoothed; None: they were left where they are

    def detach(self) -> FittedSurface:
        return replace(self, cloud=self.cloud.detach(), jets=self.jets.detach())

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> FittedSurface:
        points, normals = (v.to(device=device, dtype=dtype) for v in (self.cloud.points, self.cloud.normals))
        cloud = Cloud(points, normals, self.cloud.component.to(device))
        return replace(self, cloud=cloud, near=self.near.to(device), jets=self.jets.to(device, dtype))


def fit_surface(cloud: Cloud) -> FittedSurface:
    """Fit jets to a cloud, each component by itself, after smoothing the cloud if it is noisy.

    The fit has the gradients of the samples; the settings chosen from them are held fixed.
    """
    typical, safe = choose_settings(cloud)
    smoothing = None
    if safe.grown:
        # Predictions improved as neighbourhoods grew: what they averaged out is noise.
        smoothing = safe
        cloud = smooth(cloud, safe.settings)
        typical, safe = choose_settings(cloud, widest=MAX_GROWTH_AFTER_SMOOTHING)
    every = torch.arange(len(cloud.points), device=cloud.points.device)
    near = cloud.neighbours(every, max(typical.settings.k, safe.settings.k, KEPT_NEIGHBOURS))
    jets = fit_locally(cloud, near, typical.settings, safe.settings)
    return FittedSurface(cloud, near[:, :KEPT_NEIGHBOURS].contiguous(), jets, typical, smoothing)


@torch.no_grad()
def choose_settings(cloud: Cloud, widest: float = torch.inf) -> tuple[ChosenSettings, ChosenSettings]:
    """The typical settings, best for most places, and the safe ones, best if edges and thin parts count too.

    Both have the smallest RMS leave-one-out error at random samples: the typical settings without the quarter with the
    largest errors, the safe ones without the worst 2 %. Each RMS is scaled to that of all errors if these were
    Gaussian. The largest neighbourhood tried is `widest` times the smallest.
    """
    order = torch.randperm(len(cloud.points), generator=torch.Generator().manual_seed(0))
    tested = order[:TEST_SAMPLES].to(cloud.points.device)
    count = len(cloud.points)
    smallest = MIN_NEIGHBOURS_BY_DEGREE[2]
    largest = {
        degree: max(smallest, min(count // 2, max(k, int(share * count))))
        for degree, (k, share) in MAX_NEIGHBOURS_BY_DEGREE.items()
    }
    first = _always_tried(largest, widest)
    near = cloud.neighbours(tested, max(settings.k for settings in first))
    known: dict[JetSettings, tuple[float, ...]] = dict(zip(first, _radius_and_errors(cloud, near, first), strict=True))

    def error(settings: JetSettings, share: float) -> float:
        nonlocal near
        if settings not in known:
            if settings.k > near.shape[1]:
                near = cloud.neighbours(tested, min(2 * settings.k, largest[2]))
            known[settings] = _radius_and_errors(cloud, near, [settings])[0]
        radius, *found = known[settings]
        rms = found[(TYPICAL_SHARE, SAFE_SHARE).index(share)]
        return torch.inf if MIN_RADIUS_IN_ERRORS * rms > radius else max(rms, 1e-15 * radius)

    typical = _smallest_error(lambda settings: error(settings, TYPICAL_SHARE), largest, widest)
    return typical, _smallest_error(lambda settings: error(settings, SAFE_SHARE), largest, widest)


def _radius_and_errors(cloud: Cloud, near: Tensor, tried: list[JetSettings]) -> list[tuple[float, ...]]:
    """For each of the settings the median radius of the neighbourhoods around samples near[:, 0], and the RMS of the
    typical and of the safe leave-one-out errors. One transfer serves all settings, as each makes a GPU wait."""
    height, scale = (torch.stack(part) for part in zip(*cloud.predict_all(near, tried), strict=True))
    square = height.square().sort(1).values
    rms = [
        square[:, : max(1, round(share * square.shape[1]))].mean(1).sqrt() / GAUSSIAN_RMS[share]
        for share in (TYPICAL_SHARE, SAFE_SHARE)
    ]
    return [tuple(row) for row in torch.stack([scale.median(1).values, *rms], 1).tolist()]


def _neighbourhoods(degree: int, largest: dict[int, int], widest: float) -> Iterator[int]:
    """Numbers of neighbours, small to large, with which fits to positions alone are tried."""
    k = MIN_NEIGHBOURS_BY_DEGREE[degree]
    while k <= min(largest[degree], widest * MIN_NEIGHBOURS_BY_DEGREE[degree]):
        yield k
        k = round(NEIGHBOURHOOD_GROWTH * k)


def _always_tried(largest: dict[int, int], widest: float) -> list[JetSettings]:
    """The settings that _smallest_error tries whatever their errors are."""
    positions = [
        JetSettings(degree, k, slopes=False)
        for degree in MIN_NEIGHBOURS_BY_DEGREE
        for k in islice(_neighbourhoods(degree, largest, widest), MAX_WORSE_NEIGHBOURHOODS + 1)
    ]
    return positions + [JetSettings(q, k, slopes=True) for q, k in NORMAL_FIT_CANDIDATES if k <= largest[2]]


def _smallest_error(error: Callable[[JetSettings], float], largest: dict[int, int], widest: float) -> ChosenSettings:
    """Search over degrees, neighbourhoods and the use of normals.

    Without normals, neighbourhoods grow until MAX_WORSE_NEIGHBOURHOODS in a row have larger errors than the best one. A
    higher degree must have a smaller error, and normals must have a clearly smaller one.
    """
    best: ChosenSettings | None = None
    for degree, smallest in MIN_NEIGHBOURS_BY_DEGREE.items():
        worse, own = 0, None
        for k in _neighbourhoods(degree, largest, widest):
            if worse == MAX_WORSE_NEIGHBOURHOODS:
                break
            settings = JetSettings(degree, k, slopes=False)
            tried = ChosenSettings(settings, error(settings), grown=k >= NOISY_GROWTH * smallest)
            better = own is None or tried.error < own.error or own.error == torch.inf
            own, worse = (tried, 0) if better else (own, worse + 1)
        if own is not None and (best is None or own.error < MAX_ERROR_SHARE_OF_HIGHER_DEGREE * best.error):
            best = own
    for degree, k in NORMAL_FIT_CANDIDATES:
        if k <= largest[2]:
            settings = JetSettings(degree, k, slopes=True)
            tried = ChosenSettings(settings, error(settings), grown=False)
            if best is None or tried.error < (1 if best.settings.slopes else MAX_ERROR_SHARE_WITH_NORMALS) * best.error:
                best = tried
    assert best is not None  # the smallest cloud allows the smallest quadric
    return best


def fit_locally(cloud: Cloud, near: Tensor, typical: JetSettings, safe: JetSettings) -> Jets:
    """Jets around all samples with neighbours near (m, k), of the typical settings, or of the safe ones where these
    predict clearly better.

    The settings are compared by the RMS of the leave-one-out errors of the nearest samples.
    """
    jets = cloud.fit(near, typical)
    if safe == typical:
        return jets
    with torch.no_grad():
        around = cloud.tree.own(min(SAFE_COMPARISON_NEIGHBOURS, len(near)))[0]
        one, other = (cloud.predict(near, settings)[0][around].square().mean(1) for settings in (safe, typical))
        rows = (one < MAX_ERROR_SHARE_OF_SAFE_JETS**2 * other).nonzero()[:, 0]
    return jets.replaced(rows, cloud.fit(near[rows], safe)) if len(rows) else jets


def smooth(cloud: Cloud, settings: JetSettings) -> Cloud:
    """The cloud moved to a smooth surface, p' = sum_j w_j foot_j(p) / sum_j w_j, with its normals.

    foot_j is the closest point on the jet of centre j, over the 16 nearest centres of the same component, and
    w_j = (1 - d_j^2 / d_17^2)^3 with the distance d_j of the centre: the partition of unity of Ohtake et al. (2003),
    "Multi-level partition of unity implicits". Centres are a random subset of the samples, about 32 to a
    neighbourhood, so that the cost per sample does not grow with the size of the neighbourhood.
    """
    points, normals, component = cloud.points, cloud.normals, cloud.component
    generator = torch.Generator().manual_seed(0)
    centres = torch.cat([_random_centres(members, settings.k, generator) for members in cloud.pieces.members])
    jets = cloud.fit(cloud.neighbours(centres, settings.k), settings)
    jets = replace(jets, reach=torch.ones_like(jets.reach))  # each is used over its whole neighbourhood
    middle = points[centres]
    which, _ = PieceTrees(middle.detach(), component[centres]).query(points.detach(), component, BLENDED_CENTRES + 1)
    offset = points[:, None] - middle[which]
    square = dot(offset, offset)
    weight = (1 - square / square[:, -1:].clamp_min(1e-300)).clamp_min(0) ** 3
    feet, directions = torch.zeros_like(points), torch.zeros_like(points)
    total = torch.zeros_like(points[:, :1])
    for j, w in zip(which.unbind(1), weight.split(1, dim=1), strict=True):
        foot, normal = project(jets, points, j)
        w = w * (dot(jets.frames[j, 2], normals) > 0)[:, None]  # not the sheet behind
        feet, directions, total = feet + w * foot, directions + w * normal, total + w
    unmoved = total <= 0
    feet = torch.where(unmoved, points, feet / total.masked_fill(unmoved, 1))
    return Cloud(feet, torch.where(unmoved, normals, unit(directions)), component)


def _random_centres(rows: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Random rows, about 32 to a neighbourhood of k, and at least 64."""
    count = max(MIN_SMOOTHING_CENTRES, CENTRES_PER_NEIGHBOURHOOD * len(rows) // k)
    return rows[torch.randperm(len(rows), generator=generator)[:count].to(rows.device)]
