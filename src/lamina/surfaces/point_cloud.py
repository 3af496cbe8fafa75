"""Point clouds: samples of a surface, with or without normals, clean or noisy.

How the surface is found. Leave-one-out errors (how well a jet fitted to its neighbours alone predicts a
sample) choose degree and neighbourhood: they shrink with the neighbourhood on clean samples and grow on
noisy ones, so they balance bias and variance without knowing the noise. Normals are fitted too where that
predicts positions clearly better. Noisy samples are first moved to a smooth surface, a blend of the wide
jets around a subset of them, and then treated as clean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.geometry.jets import Jets, fit_jets, project
from lamina.geometry.lattice import Lattice, nodes_within
from lamina.geometry.nearest import Nearest
from lamina.geometry.neighbours import PieceTrees, PointTree, connected_pieces, k_nearest, voronoi_areas
from lamina.geometry.normals import orient_normals, pca_normals
from lamina.geometry.triangles import dot, unit
from lamina.surfaces.base import ClosestPoints, NearNodes, Surface

FEWEST_POINTS = 20
FEWEST_IN_COMPONENT = 10
TESTED = 2048  # samples whose leave-one-out errors choose degree and neighbourhood
WITH_NORMALS = ((2, 12), (4, 16), (6, 24))  # (degree, neighbours) tried for fits to positions and normals
WITHOUT_NORMALS = {2: (12, 640), 4: (32, 384), 6: (56, 128)}  # fewest and most neighbours tried by degree
GROWTH = 1.7
GAUSSIAN = {0.75: 0.607, 0.98: 0.934}  # RMS of the smallest normal deviates, by the part of them that is kept
THICKNESS = 6.0  # a neighbourhood's radius is at least this many leave-one-out errors
NORMALS_HELP, DEGREE_HELPS = 0.7, 0.99  # factors by which these must cut the leave-one-out error
CENTRES, BLENDED = 32, 16  # jets that share a smoothed neighbourhood, and those that a place blends


@dataclass(frozen=True)
class Choice:
    """A way to fit: degree, neighbours, whether normals count; and its RMS leave-one-out error."""

    degree: int
    k: int
    slopes: bool
    error: float
    fewest: int  # the smallest neighbourhood that was tried for this degree


@dataclass(frozen=True)
class Fit:
    """The surface fitted to a cloud: m oriented samples on it and a jet around each."""

    points: Tensor  # (m, 3)
    normals: Tensor  # (m, 3)
    component: Tensor  # (m,) int64
    near: Tensor  # (m, k) int64, nearest samples of the same component, first the sample itself
    jets: Jets
    choice: Choice
    smoothing: Choice | None  # how noisy samples were smoothed; None: they were taken as they are

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Fit:
        points, normals = (v.to(device=device, dtype=dtype) for v in (self.points, self.normals))
        component, near = self.component.to(device), self.near.to(device)
        return replace(self, points=points, normals=normals, component=component, near=near, jets=self.jets.to(device, dtype))


class PointCloud(Surface):
    """The surface through points (n, 3), with normals (n, 3) if there are any.

    `points` stay as given; `normals` are estimated where none are given. The surface between them, and near
    noisy ones, is that of `fit`, made when first asked for.
    Raises InputError for fewer than 20 distinct points, and for points or normals that are not finite or zero.
    """

    representation = "points"
    exact = False

    def __init__(self, points: Tensor, normals: Tensor | None = None, *, name: str = "points") -> None:
        super().__init__(name)
        self.points = _checked_points(points)
        unique, self._unique_of = torch.unique(self.points, dim=0, return_inverse=True)
        if len(unique) < FEWEST_POINTS:
            raise InputError(
                f"PointCloud got {len(points)} points, {len(unique)} of them distinct, and needs at least "
                f"{FEWEST_POINTS} to find a surface: sample the shape more densely."
            )
        repeated = len(self.points) - len(unique)
        if repeated:
            self.notes.append(f"{repeated} points repeat others: they are fitted once and share their area.")
        if normals is None:
            self._normals = orient_normals(unique, pca_normals(unique))
            self.notes.append("Normals were estimated from the points; outwards is a guess on open surfaces.")
            self.normals = self._normals[self._unique_of]
        else:
            self.normals = self._checked_normals(normals)
            self._normals = self.normals[_first_of_each(self._unique_of, len(unique))]
        self._component, self._kept = self._find_components(unique, None if normals is None else self._normals)
        self._unique = unique
        self.component = self._component[self._unique_of]
        self.areas = self._share_areas()
        self._fit: Fit | None = None

    @property
    def fit(self) -> Fit:
        """The fitted surface."""
        if self._fit is None:
            kept = self._kept
            component = self._component[kept]
            self._fit = fit_surface(self._unique[kept], self._normals[kept], component)
            if self._fit.smoothing is not None:
                self.notes.append(
                    f"Noise of about {self._fit.smoothing.error:.2g} was found and smoothed over "
                    f"{self._fit.smoothing.k} neighbours with degree {self._fit.smoothing.degree}."
                )
        return self._fit

    def closest_points(self, x: Tensor) -> ClosestPoints:
        if x.device.type == "cpu":  # a k-d tree beats the dual-tree search there by far
            index = k_nearest(self.fit.points, 1, x)[0][:, 0]
        else:
            index = Nearest(self.fit.points).to_points(x)[0]
        return self._feet(x, index)

    def nodes_near(self, lattice: Lattice, radius: float) -> NearNodes:
        # A foot at most rho from its sample, on a surface that curves less than 1 / radius, puts that sample
        # within sqrt(radius^2 + 2 rho^2) of the node.
        rho = float((self.fit.jets.reach * self.fit.jets.scale).max())
        search = (radius**2 + 2 * rho**2) ** 0.5
        ijk, index = self._nodes_near_samples(lattice, search)
        x = lattice.position(ijk)
        feet = self._feet(x, index)
        offset = x - feet.points
        near = dot(offset, offset) <= (radius * (1 + 1e-9)) ** 2
        return NearNodes(ijk[near], ClosestPoints(feet.points[near], feet.normals[near], feet.component[near]))

    def sample(self, count: int, seed: int = 0) -> ClosestPoints:
        """count of the points at random, without repetition."""
        if count > len(self.points):
            raise InputError(
                f"{count} samples were asked of a cloud of {len(self.points)} points; ask for at most as many."
            )
        # Drawn on the CPU so that a seed means the same points on every device.
        rows = torch.randperm(len(self.points), generator=torch.Generator().manual_seed(seed))[:count]
        rows = rows.to(self.points.device)
        return ClosestPoints(self.points[rows], self.normals[rows], self.component[rows])

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> PointCloud:
        moved = super().to(device, dtype)
        assert isinstance(moved, PointCloud)
        moved._fit = None if self._fit is None else self._fit.to(device, dtype)
        return moved

    def _feet(self, x: Tensor, index: Tensor) -> ClosestPoints:
        """Feet of x on the jets index, then on those of the samples nearest to these first feet."""
        fit = self.fit
        points, normals = project(fit.jets, x, index)
        offset = fit.points[fit.near[index]] - points[:, None]
        other = dot(fit.normals[index][:, None], fit.normals[fit.near[index]]) <= 0
        nearest = dot(offset, offset).masked_fill(other, torch.inf).argmin(1)
        again = nearest.nonzero()[:, 0]
        index = fit.near[index, nearest]
        points[again], normals[again] = project(fit.jets, x[again], index[again])
        return ClosestPoints(points, normals, fit.component[index])

    def _nodes_near_samples(self, lattice: Lattice, radius: float) -> tuple[Tensor, Tensor]:
        """Nodes (n, 3) within radius of a component's samples, and the nearest sample (n,) of that component."""
        fit = self.fit
        if fit.points.device.type != "cpu":
            ijk, _, index, _ = Nearest(fit.points, fit.component).to_nodes(lattice, radius)
            return ijk, index
        nodes, nearest = [], []
        for c in range(int(fit.component.max()) + 1):
            members = (fit.component == c).nonzero()[:, 0]
            samples = fit.points[members]
            tree = PointTree(samples)
            bounds = torch.stack([samples.amin(0), samples.amax(0)])
            ijk = nodes_within(lattice, bounds, radius, lambda x, tree=tree: tree.query(x, 1)[1][:, 0])
            nodes.append(ijk)
            nearest.append(members[tree.query(lattice.position(ijk), 1)[0][:, 0]])
        return torch.cat(nodes), torch.cat(nearest)

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
            self.notes.append(f"Normals had lengths from {length.min():.3g} to {length.max():.3g} and were normalised.")
        return unit(normals)

    def _find_components(self, unique: Tensor, normals: Tensor | None) -> tuple[Tensor, Tensor]:
        """Component (m,) of each distinct point, and the rows (k,) of those that are fitted."""
        component = connected_pieces(unique, normals)
        sizes = torch.bincount(component)
        large = int((sizes >= FEWEST_IN_COMPONENT).sum())
        stray = component >= max(large, 1)  # pieces are numbered by size
        kept, strays = (~stray).nonzero()[:, 0], stray.nonzero()[:, 0]
        if len(strays):
            nearest = k_nearest(unique[kept], 1, unique[strays])[0][:, 0]
            component[strays] = component[kept[nearest]]
            self.notes.append(
                f"{len(strays)} points lie apart in groups of fewer than {FEWEST_IN_COMPONENT}: they are taken for "
                "outliers and not fitted."
            )
        return component, kept

    def _share_areas(self) -> Tensor:
        cells = torch.zeros_like(self._unique[:, 0])
        cells[self._kept] = voronoi_areas(self._unique[self._kept], self._normals[self._kept])
        share = torch.bincount(self._unique_of, minlength=len(cells)).to(cells)
        return (cells / share)[self._unique_of]


def fit_surface(points: Tensor, normals: Tensor, component: Tensor) -> Fit:
    """Fit jets to distinct points (m, 3) with normals (m, 3), each component (m,) for itself."""
    trees = PieceTrees(points, component)
    typical, safe = choose_fits(points, normals, component, trees)
    smoothing = None
    if not safe.slopes and safe.k >= 2 * safe.fewest:
        # Predictions improved as neighbourhoods grew: what they averaged out is noise.
        smoothing = safe
        points, normals = smooth(points, normals, component, trees, safe)
        trees = PieceTrees(points, component)
        typical, safe = choose_fits(points, normals, component, trees, widest=2.0)
    near, _ = trees.query(points, component, max(typical.k, safe.k))
    jets = fit_locally(points, normals, near, typical, safe)
    return Fit(points, normals, component, near[:, :16].contiguous(), jets, typical, smoothing)


def choose_fits(
    points: Tensor, normals: Tensor, component: Tensor, trees: PieceTrees, widest: float = torch.inf
) -> tuple[Choice, Choice]:
    """The best fit for most places, and the best with regard to the difficult ones too (edges, thin parts).

    Both have the smallest RMS leave-one-out error at random samples, without the worst quarter or without the
    worst 2 %; errors are scaled to be those of the whole if they were Gaussian.
    """
    generator = torch.Generator().manual_seed(0)
    tested = torch.randperm(len(points), generator=generator)[:TESTED].to(points.device)
    most = max(min(WITHOUT_NORMALS[2][1], len(points) // 2), WITHOUT_NORMALS[2][0])
    near, _ = trees.query(points[tested], component[tested], min(64, most))
    known: dict[tuple[int, int, bool], tuple[Tensor, float]] = {}

    def attempt(degree: int, k: int, slopes: bool, fewest: int, quantile: float) -> Choice:
        nonlocal near
        if k > near.shape[1]:
            near, _ = trees.query(points[tested], component[tested], most)
        if (degree, k, slopes) not in known:
            jets = fit_jets(points, normals, near[:, :k], degree, slopes=slopes, leave_out=True)
            known[degree, k, slopes] = jets.height.double().square().sort().values, float(jets.scale.median())
        squares, radius = known[degree, k, slopes]
        kept = squares[: max(1, round(quantile * len(squares)))]
        error = max(float(kept.mean().sqrt()) / GAUSSIAN[quantile], 1e-15 * radius)
        # A ball hardly wider than the noise holds those that err the same way, and errors look small.
        return Choice(degree, k, slopes, torch.inf if THICKNESS * error > radius else error, fewest)

    return (
        _smallest_error(lambda *way: attempt(*way, 0.75), most, widest),
        _smallest_error(lambda *way: attempt(*way, 0.98), most, widest),
    )


def _smallest_error(attempt: Callable[[int, int, bool, int], Choice], most: int, widest: float) -> Choice:
    """The best way to fit: degree, neighbourhood (up to `widest` times the smallest), with or without normals.

    Without normals, neighbourhoods grow by 1.7 until errors have grown twice. A higher degree must win
    clearly, as its slopes are noisier, and so must normals, which often were computed from the positions
    themselves and then help to predict the noise.
    """
    best: Choice | None = None
    for degree, (fewest, limit) in WITHOUT_NORMALS.items():
        k, worse, own = fewest, 0, None
        while k <= min(limit, most, widest * fewest) and worse < 2:
            tried = attempt(degree, k, False, fewest)
            better = own is None or tried.error < own.error or own.error == torch.inf
            own, worse = (tried, 0) if better else (own, worse + 1)
            k = round(GROWTH * k)
        if own is not None and (best is None or own.error < DEGREE_HELPS * best.error):
            best = own
    for degree, k in WITH_NORMALS:
        if k <= most:
            tried = attempt(degree, k, True, k)
            if best is None or tried.error < (1 if best.slopes else NORMALS_HELP) * best.error:
                best = tried
    assert best is not None  # the 20 points of the smallest cloud allow a line
    return best


def fit_locally(points: Tensor, normals: Tensor, near: Tensor, typical: Choice, safe: Choice) -> Jets:
    """Jets around the samples near[:, 0]: typical ones, but where the safe way predicts clearly better."""
    jets = _fit(points, normals, near, typical)
    if _way(safe) == _way(typical):
        return jets
    rows = _better(points, normals, near, safe, typical, NORMALS_HELP).nonzero()[:, 0]
    return jets.replaced(rows, _fit(points, normals, near[rows], safe)) if len(rows) else jets


def _better(
    points: Tensor, normals: Tensor, near: Tensor, one: Choice, other: Choice, factor: float
) -> Tensor:
    """Where (m,) one way's leave-one-out error, RMS over 16 samples around, is below factor times the other's."""
    around, _ = k_nearest(points[near[:, 0]], min(16, len(near)))
    errors = [_fit(points, normals, near, way, leave_out=True).height.square()[around].mean(1) for way in (one, other)]
    return errors[0] < factor**2 * errors[1]


def _fit(points: Tensor, normals: Tensor, near: Tensor, way: Choice, leave_out: bool = False) -> Jets:
    return fit_jets(points, normals, near[:, : way.k], way.degree, slopes=way.slopes, leave_out=leave_out)


def _way(choice: Choice) -> tuple[int, int, bool]:
    return choice.degree, choice.k, choice.slopes


def smooth(points: Tensor, normals: Tensor, component: Tensor, trees: PieceTrees, way: Choice) -> tuple[Tensor, Tensor]:
    """Points moved to a smooth surface, p' = sum_j w_j foot_j(p) / sum_j w_j, and its normals.

    foot_j is the closest point on the jet of centre j, over the 16 nearest centres of the same component, and
    w_j = (1 - d_j^2 / d_17^2)^3: the partition of unity of Ohtake et al. (2003), "Multi-level partition of
    unity implicits". Centres are a random subset of the samples, about 32 to a neighbourhood, so that the cost
    per sample does not grow with its size.
    """
    generator = torch.Generator().manual_seed(0)
    chosen = torch.cat([_some(members, way.k, generator) for members in trees.members])
    near, _ = trees.query(points[chosen], component[chosen], way.k)
    jets = _fit(points, normals, near, way)
    jets = replace(jets, reach=torch.ones_like(jets.reach))  # these are used all over their neighbourhoods
    which, distance = PieceTrees(points[chosen], component[chosen]).query(points, component, BLENDED + 1)
    weight = (1 - (distance / distance[:, -1:].clamp_min(1e-300)) ** 2).clamp_min(0) ** 3
    places, directions, total = torch.zeros_like(points), torch.zeros_like(points), torch.zeros_like(points[:, :1])
    for j, w in zip(which.unbind(1), weight.split(1, dim=1), strict=True):
        foot, normal = project(jets, points, j)
        w = w * (dot(jets.frames[j, 2], normals) > 0)[:, None]  # not the sheet behind
        places, directions, total = places + w * foot, directions + w * normal, total + w
    lost = total <= 0
    places = torch.where(lost, points, places / total.masked_fill(lost, 1))
    return places, torch.where(lost, normals, unit(directions))


def _some(rows: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Random rows, about 32 to a neighbourhood of k, and at least 64."""
    count = max(64, CENTRES * len(rows) // k)
    return rows[torch.randperm(len(rows), generator=generator)[:count].to(rows.device)]


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
