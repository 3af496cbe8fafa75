"""Point clouds: samples of a surface, with or without normals, clean or noisy.

How the surface is found. Leave-one-out errors (how well a jet fitted to its neighbours alone predicts a
sample) choose degree and neighbourhood: they shrink with the neighbourhood on clean samples and grow on
noisy ones, so they balance bias and variance without knowing the noise. Normals are fitted too where that
predicts positions clearly better. Noisy samples are first moved to a smooth surface, a blend of the wide
jets around some of them, and then treated as clean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.geometry.jets import Jets, fit_jets, project
from lamina.geometry.lattice import Lattice, nodes_within
from lamina.geometry.nearest import Nearest
from lamina.geometry.neighbours import PieceTrees, PointTree, connected_pieces, k_nearest, voronoi_areas
from lamina.geometry.normals import orient_normals, pca_normals, signs_disagree
from lamina.geometry.triangles import dot, unit
from lamina.surfaces.base import ClosestPoints, NearNodes, Surface

FEWEST_POINTS, FEWEST_IN_COMPONENT = 20, 10
TESTED = 2048  # samples whose leave-one-out errors choose degree and neighbourhood
WITH_NORMALS = ((2, 12), (4, 16), (6, 24))  # (degree, neighbours) tried for fits to positions and normals
FEWEST = {2: 12, 4: 32, 6: 56}  # neighbours tried for fits to positions alone, by degree
MOST = {2: (640, 1 / 16), 4: (384, 1 / 64), 6: (128, 0)}  # that many, or that part of a larger cloud
GROWTH = 1.7  # from one neighbourhood tried to the next
TYPICAL, SAFE = 0.75, 0.98  # part of the leave-one-out errors that counts, the smallest ones
GAUSSIAN = {TYPICAL: 0.607, SAFE: 0.934}  # RMS of that part of normal deviates
NORMALS_HELP, DEGREE_HELPS, SAFETY_HELPS = 0.7, 0.99, 0.7  # must cut the leave-one-out error to this
THICKNESS = 6.0  # a neighbourhood's radius is at least this many leave-one-out errors
CENTRES, BLENDED = 32, 16  # jets that share a smoothed neighbourhood, and those that a place blends
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

    @cached_property
    def pieces(self) -> PieceTrees:
        return PieceTrees(self.points, self.component)

    @cached_property
    def tree(self) -> PointTree:
        return PointTree(self.points)

    @cached_property
    def search(self) -> Nearest:
        return Nearest(self.points, self.component)

    def neighbours(self, rows: Tensor, k: int) -> Tensor:
        """The k nearest (n, k) of samples `rows` in their component, first the sample itself."""
        return self.pieces.query(self.points[rows], self.component[rows], k)[0]

    def fit(self, near: Tensor, way: Way, leave_out: bool = False) -> Jets:
        near = near[:, : way.k]
        return fit_jets(self.points, self.normals, near, way.degree, slopes=way.slopes, leave_out=leave_out)


@dataclass(frozen=True)
class Fit:
    """The surface fitted to a cloud: samples on it and a jet around each."""

    cloud: Cloud
    near: Tensor  # (m, 16) int64, nearest samples of the same component, first the sample itself
    jets: Jets
    choice: Choice
    smoothing: Choice | None  # how noisy samples were smoothed; None: they are those of the cloud

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Fit:
        points, normals = (v.to(device=device, dtype=dtype) for v in (self.cloud.points, self.cloud.normals))
        cloud = Cloud(points, normals, self.cloud.component.to(device))
        return replace(self, cloud=cloud, near=self.near.to(device), jets=self.jets.to(device, dtype))


class PointCloud(Surface):
    """The surface through points (n, 3), with normals (n, 3) if there are any.

    `points` stay as given; `normals` are estimated where none are given. The surface between them, and near
    them where they are noisy, is that of `fit`, made when first asked for.
    Raises InputError for fewer than 20 distinct points, for points that are not finite and for normals that
    are not finite or zero.
    """

    representation = "points"
    exact = False

    def __init__(self, points: Tensor, normals: Tensor | None = None, *, name: str = "points") -> None:
        super().__init__(name)
        self.points = _checked_points(points)
        self._unique, self._unique_of = self._distinct(self.points)
        if normals is None:
            self._normals = orient_normals(self._unique, pca_normals(self._unique))
            self.normals = self._normals[self._unique_of]
            self.notes.append("Normals were estimated from the points; on open surfaces their side is a guess.")
        else:
            self.normals = self._oriented(self._checked_normals(normals))
            self._normals = self.normals[_first_of_each(self._unique_of, len(self._unique))]
        self._component, self._kept = self._find_components(None if normals is None else self._normals)
        self.component = self._component[self._unique_of]
        self.areas = self._share_areas()
        self._fit: Fit | None = None

    @property
    def fit(self) -> Fit:
        """The fitted surface."""
        if self._fit is None:
            kept = self._kept
            self._fit = fit_surface(Cloud(self._unique[kept], self._normals[kept], self._component[kept]))
            if self._fit.smoothing is not None:
                way, error = self._fit.smoothing.way, self._fit.smoothing.error
                self.notes.append(
                    f"Noise of about {error:.2g} was smoothed over {way.k} neighbours by degree {way.degree}."
                )
        return self._fit

    def closest_points(self, x: Tensor) -> ClosestPoints:
        if x.device.type == "cpu":  # where a k-d tree is many times faster than the dual-tree search
            return self._feet(x, self.fit.cloud.tree.query(x, 1)[0][:, 0])
        return self._feet(x, self.fit.cloud.search.to_points(x)[0])

    def nodes_near(self, lattice: Lattice, radius: float) -> NearNodes:
        # A foot at most rho from its sample, on a surface that curves less than 1 / radius, puts that sample
        # within sqrt(radius^2 + 2 rho^2) of the node.
        rho = float((self.fit.jets.reach * self.fit.jets.scale).max())
        ijk, index = self._nodes_near_samples(lattice, (radius**2 + 2 * rho**2) ** 0.5)
        x = lattice.position(ijk)
        feet = self._feet(x, index)
        offset = x - feet.points
        near = dot(offset, offset) <= (radius * (1 + 1e-9)) ** 2
        feet = ClosestPoints(feet.points[near], feet.normals[near], feet.component[near])
        return NearNodes(ijk[near], feet)

    def sample(self, count: int, seed: int = 0) -> ClosestPoints:
        """count of the points at random, without repetition."""
        have = len(self.points)
        if count > have:
            raise InputError(f"{count} samples were asked of a cloud of {have} points; ask for at most {have}.")
        # Drawn on the CPU so that a seed means the same points on every device.
        rows = torch.randperm(have, generator=torch.Generator().manual_seed(seed))[:count]
        rows = rows.to(self.points.device)
        return ClosestPoints(self.points[rows], self.normals[rows], self.component[rows])

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> PointCloud:
        moved = super().to(device, dtype)
        assert isinstance(moved, PointCloud)
        moved._fit = None if self._fit is None else self._fit.to(device, dtype)
        return moved

    def _feet(self, x: Tensor, index: Tensor) -> ClosestPoints:
        """Feet of x on the jets index, then on those of the samples nearest to these first feet."""
        fit, normals_of = self.fit, self.fit.cloud.normals
        points, normals = project(fit.jets, x, index)
        near = fit.near[index]
        offset = fit.cloud.points[near] - points[:, None]
        other_sheet = dot(normals_of[index][:, None], normals_of[near]) <= 0
        nearest = dot(offset, offset).masked_fill(other_sheet, torch.inf).argmin(1)
        index = near.gather(1, nearest[:, None])[:, 0]
        again = nearest.nonzero()[:, 0]
        points[again], normals[again] = project(fit.jets, x[again], index[again])
        return ClosestPoints(points, normals, fit.cloud.component[index])

    def _nodes_near_samples(self, lattice: Lattice, radius: float) -> tuple[Tensor, Tensor]:
        """Nodes (n, 3) within radius of a component's samples, and the nearest (n,) of these samples."""
        cloud = self.fit.cloud
        if cloud.points.device.type != "cpu":
            ijk, _, index, _ = cloud.search.to_nodes(lattice, radius)
            return ijk, index
        nodes, nearest = [], []
        for members, tree in zip(cloud.pieces.members, cloud.pieces.trees, strict=True):
            bounds = torch.stack([tree.points.amin(0), tree.points.amax(0)])
            ijk = nodes_within(lattice, bounds, radius, lambda x, tree=tree: tree.query(x, 1)[1][:, 0])
            nodes.append(ijk)
            nearest.append(members[tree.query(lattice.position(ijk), 1)[0][:, 0]])
        return torch.cat(nodes), torch.cat(nearest)

    def _distinct(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Distinct points (m, 3), and which of them (n,) each point is."""
        unique, which = torch.unique(points, dim=0, return_inverse=True)
        if len(unique) < FEWEST_POINTS:
            raise InputError(
                f"PointCloud got {len(points)} points, {len(unique)} of them distinct, and needs at least "
                f"{FEWEST_POINTS} to find a surface: sample the shape more densely."
            )
        repeated = len(points) - len(unique)
        if repeated:
            self.notes.append(f"{repeated} points repeat others: they are fitted once and share their area.")
        return unique, which

    def _checked_normals(self, normals: Tensor) -> Tensor:
        normals = torch.as_tensor(normals).to(self.points)
        if normals.shape != self.points.shape:
            raise InputError(
                f"PointCloud got normals of shape {tuple(normals.shape)} for {len(self.points)} points; "
                "give one normal (x, y, z) a point, or none at all to have them estimated."
            )
        length = dot(normals, normals).sqrt()
        bad = int((~torch.isfinite(length) | (length == 0)).sum())
        if bad:
            raise InputError(
                f"{bad} of {len(normals)} normals are zero, NaN or infinite; remove those points, "
                "or pass normals=None to have all estimated."
            )
        if bool(((length - 1).abs() > 1e-4).any()):
            shortest, longest = float(length.min()), float(length.max())
            self.notes.append(f"Normals of length {shortest:.3g} to {longest:.3g} were normalised.")
        return unit(normals)

    def _oriented(self, normals: Tensor) -> Tensor:
        first = _first_of_each(self._unique_of, len(self._unique))
        if not signs_disagree(self._unique, normals[first]):
            return normals
        self.notes.append("Normals looked to both sides of the surface; their signs were made to agree.")
        agreed = orient_normals(self._unique, normals[first])[self._unique_of]
        return torch.where(dot(agreed, normals)[:, None] < 0, -normals, normals)

    def _find_components(self, normals: Tensor | None) -> tuple[Tensor, Tensor]:
        """Component (m,) of each distinct point, and the rows of those that are fitted, outliers left out."""
        component = connected_pieces(self._unique, normals)
        large = int((torch.bincount(component) >= FEWEST_IN_COMPONENT).sum())
        stray = component >= max(large, 1)  # pieces are numbered by size
        kept, strays = (~stray).nonzero()[:, 0], stray.nonzero()[:, 0]
        if len(strays):
            nearest = k_nearest(self._unique[kept], 1, self._unique[strays])[0][:, 0]
            component[strays] = component[kept[nearest]]
            self.notes.append(
                f"{len(strays)} points apart from the rest, in groups of fewer than {FEWEST_IN_COMPONENT}, "
                "were taken for outliers: they have no area and no part in the fit."
            )
        return component, kept

    def _share_areas(self) -> Tensor:
        cells = torch.zeros_like(self._unique[:, 0])
        cells[self._kept] = voronoi_areas(self._unique[self._kept], self._normals[self._kept])
        share = torch.bincount(self._unique_of, minlength=len(cells)).to(cells)
        return (cells / share)[self._unique_of]


def _checked_points(points: Tensor) -> Tensor:
    points = torch.as_tensor(points)
    if points.ndim != 2 or points.shape[1] != 3:
        raise InputError(f"PointCloud got an array of shape {tuple(points.shape)}; give points as (n, 3).")
    if not points.is_floating_point():
        points = points.double()
    bad = int((~torch.isfinite(points)).any(1).sum())
    if bad:
        raise InputError(f"{bad} of {len(points)} points have NaN or infinite coordinates; remove them.")
    return points


def _first_of_each(group: Tensor, groups: int) -> Tensor:
    """Lowest position (groups,) of each group number in group (n,)."""
    first = torch.full((groups,), len(group), dtype=torch.int64, device=group.device)
    return first.scatter_reduce_(0, group, torch.arange(len(group), device=group.device), "amin")


def fit_surface(cloud: Cloud) -> Fit:
    """Fit jets to a cloud, each component for itself, after smoothing it where it is noisy."""
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
    near = cloud.neighbours(tested, min(64, most[2]))
    known: dict[Way, tuple[Tensor, float]] = {}

    def error(way: Way, part: float) -> float:
        nonlocal near
        if way not in known:
            if way.k > near.shape[1]:
                near = cloud.neighbours(tested, min(4 * way.k, most[2]))
            jets = cloud.fit(near, way, leave_out=True)
            known[way] = jets.height.double().square().sort().values, float(jets.scale.median())
        squares, radius = known[way]
        rms = float(squares[: max(1, round(part * len(squares)))].mean().sqrt()) / GAUSSIAN[part]
        # A ball hardly wider than the noise holds samples that err the same way, and errors look small.
        return torch.inf if THICKNESS * rms > radius else max(rms, 1e-15 * radius)

    typical = _smallest_error(lambda way: error(way, TYPICAL), most, widest)
    return typical, _smallest_error(lambda way: error(way, SAFE), most, widest)


def _smallest_error(error: Callable[[Way], float], most: dict[int, int], widest: float) -> Choice:
    """Search over degrees, neighbourhoods and the use of normals.

    Without normals, neighbourhoods grow until errors have grown twice. A higher degree must win clearly, as
    its slopes are noisier, and so must normals: often they were computed from the positions themselves, and
    then help to predict the noise.
    """
    best: Choice | None = None
    for degree, fewest in FEWEST.items():
        k, worse, own = fewest, 0, None
        while k <= min(most[degree], widest * fewest) and worse < 2:
            way = Way(degree, k, slopes=False)
            tried = Choice(way, error(way), grown=k >= 2 * fewest)
            better = own is None or tried.error < own.error or own.error == torch.inf
            own, worse = (tried, 0) if better else (own, worse + 1)
            k = round(GROWTH * k)
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
    """Jets around the samples near[:, 0], the typical way but where the safe way predicts clearly better.

    Clearly: by the RMS of the leave-one-out errors of the 16 samples around.
    """
    jets = cloud.fit(near, typical)
    if safe == typical:
        return jets
    around, _ = k_nearest(cloud.points[near[:, 0]], min(16, len(near)))
    one, other = (cloud.fit(near, way, leave_out=True).height[around].square().mean(1) for way in (safe, typical))
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
    which, distance = PieceTrees(points[centres], component[centres]).query(points, component, BLENDED + 1)
    weight = (1 - (distance / distance[:, -1:].clamp_min(1e-300)) ** 2).clamp_min(0) ** 3
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
