"""Point clouds: samples of a surface, with or without normals, clean or noisy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.fits.curvature import SurfaceFeatures, from_jets
from lamina.fits.normals import orient_normals, pca_normals, signs_disagree
from lamina.fits.outliers import distinct, off_surface, small_pieces
from lamina.fits.project import project
from lamina.fits.rims import Rims, find_rims
from lamina.fits.surface_fit import Cloud, FittedSurface, fit_surface
from lamina.geometry.lattice import Blocks, Lattice, blocks_around, nodes_in_blocks
from lamina.geometry.triangles import dot, unit
from lamina.linear.graph import first_of_each
from lamina.search.neighbours import PieceTrees, PointTree, connected_pieces, k_nearest, voronoi_areas
from lamina.surfaces.base import RADIUS_SLACK, ClosestPoints, NearNodes, Surface

# Distinct points that a cloud must have at least: a cubic fit has 10 coefficients, and half as many points would not
# overdetermine it. Double would refuse small clouds that can be fitted.
MIN_CLOUD_POINTS = 20
# A connected group with fewer points than this counts as outliers. Chosen by trial: at half, groups of noise become
# components of their own; at double, small parts of a surface are lost.
MIN_SAMPLES_PER_COMPONENT = 10
# A foot farther from its sample than this many times the reach of the jet is replaced by the sample: no sample holds a
# polynomial there. Chosen by trial: at half, good feet between uneven samples are lost; at double, wild ones are kept.
MAX_FOOT_OVER_REACH = 1.25
# Samples on a rim over which its outward tangent is averaged, because pieces between samples are ragged. At half the
# tangent is noisier, at double it is blurred where the rim turns.
RIM_TANGENT_SAMPLES = 6
# Steps that bring a foot back to a rim. One is enough on a plane; each further one corrects for the curvature.
CLOUD_RIM_STEPS = 4
# A foot lies beyond a rim if it exceeds it by more than this share of the rim's distance from the sample: rounding.
RIM_EXCESS_TOLERANCE = 1e-9
# The largest share of given normals that may be zero or not finite: a cloud with more has no usable normals.
MAX_BAD_NORMALS = 0.5
# Deviation of the length of given normals from 1 above which a note says that they were normalised: normals in single
# precision, or written with five digits, stay below it.
MAX_LENGTH_DEVIATION = 1e-4
# A normal that was given carries gradients if the cosine between it and the one in use is at least this; otherwise the
# one in use was estimated, and is held fixed.
MIN_GIVEN_NORMAL_COSINE = 0.999


class PointCloud(Surface):
    """The surface through points, with or without normals, clean or noisy.

    `points` stay as given. The surface between them, and near them where they are noisy, is that of `fit`, which is
    made when it is first needed; it ends at its `rims`.

    Parameters
    ----------
    points : Tensor or array_like
        Points (n, 3), at least 20 distinct ones.
    normals : Tensor or array_like, optional
        Normals (n, 3); estimated unless given.
    viewpoint : Tensor or sequence of float, optional
        From where (3,) all points were seen. Estimated normals point to that side; without a viewpoint they point
        outwards.
    drop_outliers : bool, optional
        Whether the fit leaves out points that are off the surface of their neighbours. By default it does if no normals
        are given, as for raw scans.
    name : str, default "points"
        What reports call the cloud.

    Raises
    ------
    InputError
        If there are fewer than 20 distinct points, if points are not finite, or if most normals are not finite or zero.

    Notes
    -----
    If points or normals require gradients, everything that is computed on the cloud has them. The choices that the
    fit makes, the areas of the points, the rims and estimated normals are constants.

    Examples
    --------
    >>> import lamina
    >>> sphere = lamina.Sphere(level=3)
    >>> lamina.PointCloud(sphere.points, sphere.normals)
    PointCloud 'points' (points): 642 points, 1 component, extent 2 x 2 x 2
    """

    representation = "points"
    sampled = True
    noisy = True
    exact = False
    _fit: FittedSurface | None = None
    _live: FittedSurface | None = None  # the same fit with gradients
    _rims: Rims | None = None
    _given: Tensor | None = None  # points that want gradients
    _given_normals: Tensor | None = None  # normals that want gradients

    def __init__(
        self,
        points: Tensor,
        normals: Tensor | None = None,
        *,
        viewpoint: Sequence[float] | Tensor | None = None,
        drop_outliers: bool | None = None,
        name: str = "points",
    ) -> None:
        super().__init__(name)
        points = _checked_points(points)
        self.points = points.detach()
        if points.requires_grad:
            self._given = points
        if isinstance(normals, Tensor) and normals.requires_grad:
            self._given_normals, normals = normals, normals.detach()
        self.tracked = self._given is not None or self._given_normals is not None
        self.estimated = normals is None  # whether the normals are estimated
        self._unique, self._unique_of = self._distinct(self.points)
        kept, off = self._without_outliers(normals is None if drop_outliers is None else drop_outliers)
        if normals is None:
            self.normals = self._estimated(kept, _checked_viewpoint(viewpoint, self.points))
        else:
            self.normals = self._oriented(self._completed(normals, kept))
        self._normals = self.normals[first_of_each(self._unique_of, len(self._unique))]
        self._component, self._kept = self._find_components(kept, off, by_normals=normals is not None)
        self.component = self._component[self._unique_of]
        self.areas = self._share_areas()

    def rim_tangents(self, x: Tensor) -> Tensor | None:
        """The mean of the outward tangents at the nearest samples on rims: pieces between samples are ragged."""
        rows = torch.isfinite(self.rims.limit).nonzero()[:, 0]
        if not len(rows):
            return None
        near = k_nearest(self.fit.cloud.points[rows], min(RIM_TANGENT_SAMPLES, len(rows)), x)[0]
        return unit(self.rims.outward[rows][near].mean(1))

    @property
    def open(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rims.count > 0

    @property
    def rims(self) -> Rims:
        """Where the fitted surface ends, for each of its samples."""
        if self._rims is None:
            cloud = self.fit.cloud
            self._rims = find_rims(cloud.points, cloud.normals, cloud.neighbours)
        return self._rims

    @property
    def fit(self) -> FittedSurface:
        """The fitted surface."""
        if self._fit is None:
            with torch.set_grad_enabled(self.tracked):
                self._live = fit_surface(self._cloud())
            self._fit = self._live.detach()
            if self._fit.smoothing is not None:
                settings, error = self._fit.smoothing.settings, self._fit.smoothing.error
                self.notes.append(
                    f"Noise of about {error:.2g} was smoothed over {settings.k} neighbours by degree {settings.degree}."
                )
        return self._fit

    @property
    def live_fit(self) -> FittedSurface:
        """The fitted surface with the gradients of the points."""
        fit = self.fit
        return self._live or fit

    @property
    def positions(self) -> Tensor:
        return self.points if self._given is None or not torch.is_grad_enabled() else self._given.to(self.points)

    def _cloud(self) -> Cloud:
        """The distinct points that are fitted, with gradients."""
        points, normals = self._live_samples()
        return Cloud(points[self._kept], normals[self._kept], self._component[self._kept])

    def _live_samples(self) -> tuple[Tensor, Tensor]:
        """The distinct points (m, 3) and their normals, with gradients."""
        first = first_of_each(self._unique_of, len(self._unique))
        points, normals = self._unique, self._normals
        if self._given_normals is not None:
            given = unit(self._given_normals.to(self.points))[first]
            side = dot(given, normals).detach()[:, None]
            # A normal that was zero or not finite was estimated, and stays as it is.
            normals = torch.where(side.abs() > MIN_GIVEN_NORMAL_COSINE, torch.where(side < 0, -given, given), normals)
        if self._given is not None:
            own = self._given.to(self.points)[first]
            points = points + (own - own.detach())
        return points, normals

    def closest_points(self, x: Tensor) -> ClosestPoints:
        if x.device.type == "cpu":  # a k-d tree is many times faster there than the dual-tree search
            return self._feet(x, self.fit.cloud.tree.query(x.detach(), 1)[0][:, 0])
        return self._feet(x, self.fit.cloud.search.to_points(x.detach())[0])

    def nodes_near(self, lattice: Lattice, radius: float) -> NearNodes:
        # If a foot is at most rho from its sample, and the surface curves less than 1 / radius, the sample is within
        # sqrt(radius^2 + 2 rho^2) of the node.
        rho = float((self.fit.jets.reach * self.fit.jets.scale).max())
        ijk, index = self._nodes_near_samples(lattice, (radius**2 + 2 * rho**2) ** 0.5)
        x = lattice.position(ijk)
        feet = self._feet(x, index)
        offset = (x - feet.points).detach()
        near = dot(offset, offset) <= (radius * (1 + RADIUS_SLACK)) ** 2
        # The jet that a foot lies on need not be the best one. A node whose own foot is too far may have the foot of
        # another node within the radius, and the stencils of that other node need it: it takes that foot.
        left, right = (~near).nonzero()[:, 0], near.nonzero()[:, 0]
        trees = PieceTrees(feet.points[right].detach(), feet.component[right])
        other, distance = trees.query(x[left], feet.component[left], 1, within=radius)
        found = distance[:, 0] <= radius
        left, other = left[found], right[other[found, 0]]
        rows = torch.cat([right, left])
        return NearNodes(ijk[rows], feet.take(torch.cat([right, other])))

    def sample(self, count: int, seed: int = 0) -> ClosestPoints:
        """count of the points at random, without repetition."""
        have = len(self.points)
        if count > have:
            raise InputError(f"{count} samples were asked of a cloud of {have} points; ask for at most {have}.")
        # Drawn on the CPU so that a seed means the same points on every device.
        rows = torch.randperm(have, generator=torch.Generator().manual_seed(seed))[:count]
        rows = rows.to(self.points.device)
        return ClosestPoints(self.points[rows], self.normals[rows], self.component[rows])

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        moved = super().to(device, dtype)
        moved._fit, moved._live = (None if fit is None else fit.to(device, dtype) for fit in (self._fit, self._live))
        moved._rims = None if self._rims is None else self._rims.to(device, dtype)
        return moved

    def _find_features(self) -> SurfaceFeatures:
        """The features of the fitted surface at the feet of `points`, which noise has moved away from the surface."""
        fit = self.fit
        # Outliers have no jet and take that of the nearest sample.
        own = fit.cloud.pieces.query(self._unique, self._component, 1)[0][:, 0]
        own[self._kept] = torch.arange(len(self._kept), device=own.device)
        index = own[self._unique_of]
        feet, _ = project(fit.jets, self.points, index)
        return from_jets(self.points, fit.jets, index, feet).facing(self.normals)

    def _feet(self, x: Tensor, index: Tensor) -> ClosestPoints:
        """Feet of x (n, 3) on the jets of samples (n,), then on the jets of the samples nearest to these first feet."""
        with torch.no_grad():
            feet, index, moved, wild = self._found_feet(x.detach(), index)
        if not (torch.is_grad_enabled() and (self.tracked or x.requires_grad)):
            return feet
        assert self._live is not None
        live = self._live
        points, normals = project(live.jets, x + (moved - x.detach()), index)
        points[wild], normals[wild] = live.cloud.points[index[wild]], live.cloud.normals[index[wild]]
        return replace(feet, points=points, normals=normals)

    def _found_feet(self, x: Tensor, index: Tensor) -> tuple[ClosestPoints, Tensor, Tensor, Tensor]:
        """Feet of x (n, 3); the numbers (n,) of the jets that they lie on; the points (n, 3) that they are feet of,
        which are x, moved back where x lies beyond a rim; and the rows in which a sample replaces the foot."""
        fit, normals_of = self.fit, self.fit.cloud.normals
        points, normals = project(fit.jets, x, index)
        near = fit.near[index]
        offset = fit.cloud.points[near] - points[:, None]
        other_sheet = dot(normals_of[index][:, None], normals_of[near]) <= 0
        nearest = dot(offset, offset).masked_fill(other_sheet, torch.inf).argmin(1)
        index = near.gather(1, nearest[:, None])[:, 0]
        again = nearest.nonzero()[:, 0]
        points[again], normals[again] = project(fit.jets, x[again], index[again])
        x, points, normals, beyond = self._within_rims(x, points, normals, index)
        # A polynomial may rise steeply where no samples are: its own sample replaces the foot there.
        away = points - fit.cloud.points[index]
        farthest = MAX_FOOT_OVER_REACH * fit.jets.reach[index] * fit.jets.scale[index]
        wild = (dot(away, away).sqrt() > farthest).nonzero()[:, 0]
        points[wild], normals[wild] = fit.cloud.points[index[wild]], normals_of[index[wild]]
        return ClosestPoints(points, normals, fit.cloud.component[index], beyond=beyond), index, x, wild

    def _within_rims(self, x: Tensor, points: Tensor, normals: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        """Points x (n, 3), their feet (n, 3) and normals (n, 3), and whether the feet lay beyond a rim (n,).

        Where a foot lies beyond a rim, x is moved back along the surface until its foot lies on the rim.
        """
        rims, centres = self.rims, self.fit.cloud.points
        x, beyond = x.clone(), torch.zeros_like(index, dtype=torch.bool)
        for _ in range(CLOUD_RIM_STEPS):
            excess = rims.excess(centres, points, index)
            out = (excess > RIM_EXCESS_TOLERANCE * rims.limit[index]).nonzero()[:, 0]
            if not len(out):
                break
            x[out] -= excess[out, None] * rims.outward[index[out]]
            points[out], normals[out] = project(self.fit.jets, x[out], index[out])
            beyond[out] = True
        return x, points, normals, beyond

    def _nodes_near_samples(self, lattice: Lattice, radius: float) -> tuple[Tensor, Tensor]:
        """Nodes (n, 3) within radius of the samples of a component, and the nearest of these samples (n,)."""
        cloud = self.fit.cloud
        if cloud.points.device.type != "cpu" and len(cloud.pieces.trees) > 1:
            ijk, _, index, _ = cloud.search.to_nodes(lattice, radius)
            return ijk, index
        nodes, nearest = [], []
        for members, tree in zip(cloud.pieces.members, cloud.pieces.trees, strict=True):
            if tree.points.device.type == "cpu":
                low, high = tree.points.amin(0) - radius, tree.points.amax(0) + radius
                blocks, within = Blocks.covering(lattice, torch.stack([low, high])[None]), math.inf
            else:  # on a GPU one search at some more nodes is much faster than many searches at blocks of nodes
                blocks = blocks_around(lattice, tree.points, radius, level=1).split()[0]
                within = radius * (1 + RADIUS_SLACK)

            def nearest_of(x: Tensor, tree: PointTree = tree, within: float = within) -> tuple[Tensor, Tensor]:
                index, distance = tree.query(x, 1, within)
                return distance[:, 0], index[:, 0]

            ijk, index = nodes_in_blocks(blocks, radius, nearest_of)
            nodes.append(ijk)
            nearest.append(members[index])
        return torch.cat(nodes), torch.cat(nearest)

    def _distinct(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Distinct points (m, 3), and which of them (n,) each point is."""
        unique, which, repeated = distinct(points)
        if len(unique) < MIN_CLOUD_POINTS:
            raise InputError(
                f"PointCloud got {len(points)} points, {len(unique)} of them distinct, and needs at least "
                f"{MIN_CLOUD_POINTS} to find a surface: sample the shape more densely."
            )
        alike = len(points) - len(unique) - repeated
        if repeated:
            self.notes.append(f"{repeated} points repeat others: they are fitted once and share their area.")
        if alike:
            self.notes.append(f"{alike} points nearly repeat others: they are fitted once and share their area.")
        return unique, which

    def _without_outliers(self, wanted: bool) -> tuple[Tensor, int]:
        """Rows of the distinct points that are on a surface, found without normals, and the number of those off it."""
        apart = small_pieces(connected_pieces(self._unique), MIN_SAMPLES_PER_COMPONENT)
        kept = (~apart).nonzero()[:, 0]
        off = off_surface(self._unique[kept]) if wanted else torch.zeros_like(kept, dtype=torch.bool)
        count = int(off.sum())
        if count:
            self.notes.append(
                f"{count} points off the surface of their neighbours were taken for outliers: they have no area and "
                "no part in the fit."
            )
        return kept[~off], count

    def _estimated(self, kept: Tensor, viewpoint: Tensor | None) -> Tensor:
        """Normals (n, 3) of `points`, estimated from the distinct points in rows kept (k,)."""
        unique = self._unique[kept]
        found = orient_normals(unique, pca_normals(unique), viewpoint=viewpoint)
        if viewpoint is None:
            self.notes.append("Normals were estimated from the points; on open surfaces their side is a guess.")
        else:
            self.notes.append("Normals were estimated from the points and look to the viewpoint.")
        return found[k_nearest(unique, 1, self._unique)[0][:, 0]][self._unique_of]

    def _completed(self, normals: Tensor, kept: Tensor) -> Tensor:
        """The given normals (n, 3) in unit length; those that are zero or not finite are estimated."""
        normals = torch.as_tensor(normals).to(self.points)
        if normals.shape != self.points.shape:
            raise InputError(
                f"PointCloud got normals of shape {tuple(normals.shape)} for {len(self.points)} points; "
                "give one normal (x, y, z) a point, or none at all to have them estimated."
            )
        length = dot(normals, normals).sqrt()
        good = torch.isfinite(length) & (length > 0)
        bad = int((~good).sum())
        if bad > MAX_BAD_NORMALS * len(good):
            raise InputError(
                f"{bad} of {len(normals)} normals are zero, NaN or infinite; remove those points, "
                "or pass normals=None to have all estimated."
            )
        if bool(((length[good] - 1).abs() > MAX_LENGTH_DEVIATION).any()):
            shortest, longest = float(length[good].min()), float(length[good].max())
            self.notes.append(f"Normals of length {shortest:.3g} to {longest:.3g} were normalised.")
        if not bad:
            return unit(normals)
        self.notes.append(f"{bad} normals are zero or not finite and were estimated from the points.")
        unique = self._unique[kept]
        own = pca_normals(unique)[k_nearest(unique, 1, self.points[~good])[0][:, 0]]
        like = normals[good][k_nearest(self.points[good], 1, self.points[~good])[0][:, 0]]
        normals = normals.clone()
        normals[~good] = torch.where(dot(own, like)[:, None] < 0, -own, own)
        return unit(normals)

    def _oriented(self, normals: Tensor) -> Tensor:
        """The normals (n, 3), with their signs made to agree if neighbours point to opposite sides."""
        first = first_of_each(self._unique_of, len(self._unique))
        if not signs_disagree(self._unique, normals[first]):
            return normals
        self.notes.append("Normals looked to both sides of the surface; their signs were made to agree.")
        agreed = orient_normals(self._unique, normals[first])[self._unique_of]
        return torch.where(dot(agreed, normals)[:, None] < 0, -normals, normals)

    def _find_components(self, kept: Tensor, off: int, by_normals: bool) -> tuple[Tensor, Tensor]:
        """The component (m,) of each distinct point, and the rows of those that are fitted, without outliers."""
        found = connected_pieces(self._unique[kept], self._normals[kept] if by_normals else None)
        apart = small_pieces(found, MIN_SAMPLES_PER_COMPONENT)
        component = torch.full_like(self._unique_of[: len(self._unique)], -1)
        kept, found = kept[~apart], found[~apart]
        component[kept] = found
        strays = (component < 0).nonzero()[:, 0]
        if len(strays):
            component[strays] = found[k_nearest(self._unique[kept], 1, self._unique[strays])[0][:, 0]]
        if len(strays) > off:
            self.notes.append(
                f"{len(strays) - off} points apart from the rest, in small groups, were taken for outliers: they have "
                "no area and no part in the fit."
            )
        return component, kept

    def _share_areas(self) -> Tensor:
        """The area (n,) of each of `points`; points that repeat each other share the area of their distinct point."""
        cells = torch.zeros_like(self._unique[:, 0])
        cells[self._kept] = voronoi_areas(self._unique[self._kept], self._normals[self._kept])
        share = torch.bincount(self._unique_of, minlength=len(cells)).to(cells)
        return (cells / share)[self._unique_of]


def _checked_viewpoint(viewpoint: Sequence[float] | Tensor | None, points: Tensor) -> Tensor | None:
    if viewpoint is None:
        return None
    position = torch.as_tensor(viewpoint).to(points)
    if position.shape != (3,) or not bool(torch.isfinite(position).all()):
        raise InputError(f"The viewpoint must be three finite numbers x, y, z, got {viewpoint!r}.")
    return position


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
