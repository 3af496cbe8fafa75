"""Point clouds as the learned operator sees them: robust fits, blended into one surface."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.fits.blend import Blend
from lamina.fits.fitting import Choice, Cloud, Fit, choose_ways
from lamina.fits.jets import Jets
from lamina.fits.outliers import small_pieces
from lamina.geometry.triangles import dot
from lamina.reconstruction.fit_network import FitNetwork
from lamina.reconstruction.robust_fits import FEWEST, Found, robust_fits
from lamina.search.neighbours import PointTree, connected_pieces, voronoi_areas
from lamina.surfaces.base import ClosestPoints
from lamina.surfaces.point_cloud import MIN_SAMPLES_PER_COMPONENT, PointCloud

STEPS = 3  # from the foot on one jet to that on the blend
THERE = 1e-10  # spacings from the blend: the next step would move a foot by rounding only
FARTHEST = 2.5  # spacings from a foot to the nearest sample
AROUND = 16  # samples whose leave-one-out errors judge a place
SURELY = 0.8  # of the error that fits expect: wide jets with less are better
NOWHERE, NEARLY_ALL = 2.0, 0.999  # times their usual error that they exceed at none of nearly all samples


class NeuralCloud(PointCloud):
    """The surface through a cloud's points, found by a trained network of robust fits.

    The points are those of the cloud. Normals are those of the fits, and samples that the network finds off the surface
    have no part in it. Where samples are clean, jets of high degree, which predict them better, take the place of the
    network's quadrics. The surface is where the blend of all vanishes.
    """

    def __init__(self, cloud: PointCloud, network: FitNetwork):
        vars(self).update(vars(cloud))
        self.notes, self.facts = list(cloud.notes), dict(cloud.facts)
        self._rims = self._features = self.thickness = None
        self.tracked = cloud.tracked or any(p.requires_grad for p in network.parameters())
        points = cloud._unique
        least = FEWEST * network.config.neighbours[0]
        if len(points) < least:
            raise InputError(
                f'extension="neural" needs {least} distinct points or more, got {len(points)}; use extension="jet".'
            )
        with torch.set_grad_enabled(self.tracked):
            points, given = self._live_samples()
            tree = PointTree(points.detach())
            found = robust_fits(network, tree, points, given, estimated=cloud.estimated)
            fits, kept = found.fits, found.kept
            if len(kept) < least // 2:
                raise InputError(f'extension="neural" finds no surface in {len(points)} points; use extension="jet".')
            component = connected_pieces(fits.centres.detach(), fits.frames[:, 2].detach(), found.tree)
            whole = (~small_pieces(component, MIN_SAMPLES_PER_COMPONENT)).nonzero()[:, 0]
            if len(whole) < len(kept):
                fits, kept = fits.take(whole), kept[whole]
                component = connected_pieces(fits.centres.detach(), fits.frames[:, 2].detach())
                found = replace(found, fits=fits, kept=kept, tree=PointTree(fits.centres.detach()))
            self.noisy = found.noisy
            self._settle(points, given, tree if len(kept) == len(points) else None, found, component)

    def _settle(self, points: Tensor, given: Tensor, tree: PointTree | None, found: Found, component: Tensor) -> None:
        """Make the surface of fits, or of jets where these are better.

        points, given (m, 3): all samples and their normals; tree: of the points, if all are kept; component (k,): of
        the fits.
        """
        fits, kept, manner = found.fits, found.kept, found.manner
        looks = fits.frames[:, 2]
        # Positions and normals as given, their signs put right: better than those of fits if they are clean.
        own = torch.where(dot(given[kept], looks)[:, None] < 0, -given[kept], given[kept])
        expected = fits.error.detach()
        choice, jets, rows, predicted = _jets(Cloud(points[kept], own, component, tree), manner.jets * expected)
        self.expected_error = expected.index_copy(0, rows, torch.minimum(expected[rows], predicted[rows]))
        p, n = fits.centres.index_copy(0, rows, points[kept[rows]]), looks.index_copy(0, rows, own[rows])
        cloud = Cloud(p, n, component, tree if len(rows) == len(kept) else None)
        near = cloud.neighbours(torch.arange(len(p), device=p.device), manner.among)
        both = fits.jets(near) if jets is None else fits.jets(near).replaced(rows, jets)
        self._live = Fit(cloud, near, both, choice, None)
        self._fit = self._live.detach()
        self._live_blend = Blend(p, n, near, both, manner.reach, manner.sharp)
        self._blend = self._live_blend.detach()
        self._record(kept)

    def _record(self, kept: Tensor) -> None:
        """Normals and components of all points, from the samples kept (k,)."""
        cloud, unique = self.fit.cloud, self._unique
        nearest = torch.full_like(self._component, -1)
        nearest[kept] = torch.arange(len(kept), device=kept.device)
        others = (nearest < 0).nonzero()[:, 0]
        if len(others):
            nearest[others] = cloud.tree.query(unique[others], 1)[0][:, 0]
        self._kept, self._sample = kept, nearest
        self._normals, self._component = cloud.normals[nearest], cloud.component[nearest]
        self.normals, self.component = self._normals[self._unique_of], self._component[self._unique_of]
        if len(kept) < len(unique):
            dropped = len(unique) - len(kept)
            self.notes.append(f"{dropped} points were found off the surface of the others: they have no part in it.")
        vars(self).pop("areas", None)  # the cloud's

    @cached_property
    def areas(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Share (n,) of the area, found when first asked for: E does not want it."""
        cells = torch.zeros_like(self._unique[:, 0])
        cells[self._kept] = voronoi_areas(self.fit.cloud.points, self.fit.cloud.normals)
        share = torch.bincount(self._unique_of, minlength=len(cells)).to(cells)
        return (cells / share)[self._unique_of]

    @property
    def spacing(self) -> Tensor:
        """Local spacing (k,) of the samples that make the surface."""
        return self._blend.spacing

    def own_feet(self) -> ClosestPoints:
        """The fitted samples of `points`, for outliers the nearest ones."""
        assert self._live is not None
        live = self.tracked and torch.is_grad_enabled()
        cloud, of = (self._live if live else self.fit).cloud, self._sample[self._unique_of]
        return ClosestPoints(cloud.points[of], cloud.normals[of], cloud.component[of])

    def offsets(self, x: Tensor, feet: ClosestPoints) -> Tensor:
        blend = self._live_blend if self.tracked and torch.is_grad_enabled() else self._blend
        return blend(x, self._nearest_sample(x.detach()))[0]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> NeuralCloud:
        moved = super().to(device, dtype)
        assert isinstance(moved, NeuralCloud)
        live, blend = moved._live, self._blend
        assert live is not None
        moved._live_blend = Blend(live.cloud.points, live.cloud.normals, live.near, live.jets, blend.reach, blend.sharp)
        moved._blend = moved._live_blend.detach()
        return moved

    def _nearest_sample(self, x: Tensor) -> Tensor:
        cloud = self.fit.cloud
        return cloud.tree.query(x, 1)[0][:, 0] if x.device.type == "cpu" else cloud.search.to_points(x)[0]

    def _feet(self, x: Tensor, index: Tensor) -> ClosestPoints:
        """Feet on the jets, then moved along their normals to where the blend vanishes."""
        feet = super()._feet(x, index)
        points, normals, cloud = feet.points, feet.normals, self.fit.cloud
        if len(cloud.pieces.trees) == 1:
            index = cloud.tree.nearest_around(points.detach(), index)
        else:
            index = self._nearest_sample(points.detach())
        spacing = self._blend.spacing[index]
        if torch.is_grad_enabled() and points.requires_grad:
            for _ in range(STEPS):
                phi, normals = self._live_blend(points, index)
                points = points - phi[:, None] * normals
        else:
            points, normals = self._blend.vanishing(points, index, THERE * spacing, STEPS)
        # Without a sample near it is a place where jets meet that were fitted to something else.
        away = points.detach() - cloud.points[index]
        lost = dot(away, away) > (FARTHEST * spacing) ** 2
        beyond = lost if feet.beyond is None else lost | feet.beyond
        return replace(feet, points=points, normals=normals, beyond=beyond)


def wide_jets_are_better(cloud: PointCloud, fitted: NeuralCloud) -> bool:
    """Whether the samples are noise on a surface so smooth that jets over hundreds of them are better than the network,
    which sees 256 at most.

    Leave-one-out errors e of jets over k samples are mostly noise, of which the jet itself keeps about
    e sqrt(4 / k), as a quadric fitted over a disc does in its middle. That has to be clearly less than fits expect of
    themselves, and e much the same all over: neither edges nor thin parts, and no sample that fits leave out or turn.
    """
    points, normals = cloud._unique.detach(), cloud._normals.detach()
    if not fitted.noisy or len(fitted._kept) < NEARLY_ALL * len(points):
        return False
    turned = dot(normals, fitted._normals.detach()) < 0
    if bool(turned.any()) and not bool(turned.all()):
        return False
    samples = Cloud(points, normals, cloud._component)
    _, choice = choose_ways(samples)
    if not choice.error * math.sqrt(4 / choice.way.k) < SURELY * float(fitted.expected_error.mean()):
        return False
    near = samples.neighbours(torch.arange(len(points), device=points.device), max(choice.way.k, AROUND))
    height, _ = samples.predict(near, choice.way)
    error = _rms_around(height, near)
    return float((error < NOWHERE * choice.error).double().mean()) >= NEARLY_ALL


def _jets(cloud: Cloud, bound: Tensor) -> tuple[Choice, Jets | None, Tensor, Tensor]:
    """Jets at the samples rows (r,) whose leave-one-out errors are below a bound (m,), the way they are fitted, and
    these errors (m,) of all samples."""
    choice, _ = choose_ways(cloud, widest=2.0)
    every = torch.arange(len(cloud.points), device=cloud.points.device)
    near = cloud.neighbours(every, max(choice.way.k, AROUND))
    jets, height = cloud.fit_and_predict(near, choice.way)
    error = _rms_around(height, near)
    # An infinite error of all says that samples are noisier than their neighbourhoods are wide.
    better = (error < bound) & (choice.error < torch.inf)
    rows = better.nonzero()[:, 0]
    if not len(rows):
        return choice, None, rows, error
    live = torch.is_grad_enabled() and (cloud.points.requires_grad or cloud.normals.requires_grad)
    return choice, cloud.fit(near[rows], choice.way) if live else jets.take(rows), rows, error


def _rms_around(height: Tensor, near: Tensor) -> Tensor:
    """RMS (m,) of heights (m,) over the nearest of each sample's neighbours, near (m, k)."""
    return height.square()[near[:, :AROUND]].mean(1).sqrt()
