"""The surface of a point cloud by robust fits, blended into one surface."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.fits.blend import Blend
from lamina.fits.jets import Jets
from lamina.fits.outliers import small_pieces
from lamina.fits.surface_fit import ChosenSettings, Cloud, FittedSurface, choose_settings
from lamina.geometry.triangles import dot
from lamina.reconstruction.fit_network import FitNetwork
from lamina.reconstruction.robust_fits import MIN_SAMPLES_PER_NEIGHBOUR, RobustFits, robust_fits
from lamina.search.neighbours import PointTree, connected_pieces, voronoi_areas
from lamina.surfaces.base import ClosestPoints
from lamina.surfaces.point_cloud import MIN_SAMPLES_PER_COMPONENT, PointCloud

BLEND_STEPS = 3  # steps of Newton's method from the foot on one jet to the blend
# A foot has arrived if it is nearer to the blend than this many spacings. The next step would move it by rounding only.
BLEND_TOLERANCE = 1e-10
# A foot farther than this many spacings from the nearest sample is not on the surface: jets that were fitted to
# something else meet there. Chosen by trial.
MAX_FOOT_TO_SAMPLE = 2.5
ERROR_SAMPLES = 16  # nearest samples whose leave-one-out errors give the RMS error at a sample
# Wide jets replace the network's fits if the error they keep is below this part of the error that the fits expect. With
# 1, the two would be chosen by chance where they are equally good.
MAX_WIDE_JET_ERROR = 0.8
# Wide jets replace the fits only if the leave-one-out error around a sample is below this multiple of its usual value,
# at WIDE_JET_SAMPLES of the samples. At edges and thin parts, which a wide jet cannot follow, it is larger.
MAX_LOCAL_OVER_USUAL_ERROR = 2.0
WIDE_JET_SAMPLES = 0.999  # share of the samples at which that must hold, and that must not be outliers
MAX_JET_WIDTH_ON_FITS = 2.0  # neighbourhoods of jets that replace fits, over the smallest neighbourhood tried


class NeuralCloud(PointCloud):
    """The surface through the points of a cloud, from robust fits by a trained network.

    The points are those of the cloud, the normals those of the fits. Samples that the network takes for outliers have
    no part in the surface. Where samples are clean, jets of high degree predict them better than the network's quadrics
    and replace these. The surface is where the blend of all fits vanishes.
    Raises InputError for clouds with too few points, and for clouds in which no surface is found.
    """

    def __init__(self, cloud: PointCloud, network: FitNetwork):
        vars(self).update(vars(cloud))
        self.notes, self.facts = list(cloud.notes), dict(cloud.facts)
        self._rims = self._features = self.thickness = None
        self.tracked = cloud.tracked or any(p.requires_grad for p in network.parameters())
        points = cloud._unique
        least = MIN_SAMPLES_PER_NEIGHBOUR * network.config.neighbours[0]
        if len(points) < least:
            raise InputError(
                f"A surface by robust fits needs {least} distinct points or more, got {len(points)}; use "
                'reconstruction="jets".'
            )
        with torch.set_grad_enabled(self.tracked):
            points, given = self._live_samples()
            tree = PointTree(points.detach())
            robust = robust_fits(network, tree, points, given, estimated=cloud.estimated)
            fits, kept = robust.fits, robust.kept
            if len(kept) < least // 2:
                raise InputError(
                    f'Robust fits find no surface in {len(points)} points; use reconstruction="jets" or "triangles".'
                )
            component = connected_pieces(fits.centres.detach(), fits.frames[:, 2].detach(), robust.tree)
            whole = (~small_pieces(component, MIN_SAMPLES_PER_COMPONENT)).nonzero()[:, 0]
            if len(whole) < len(kept):
                fits, kept = fits.take(whole), kept[whole]
                component = connected_pieces(fits.centres.detach(), fits.frames[:, 2].detach())
                robust = replace(robust, fits=fits, kept=kept, tree=PointTree(fits.centres.detach()))
            self.noisy = robust.noisy
            self._build(points, given, tree if len(kept) == len(points) else None, robust, component)

    def _build(
        self, points: Tensor, given: Tensor, tree: PointTree | None, robust: RobustFits, component: Tensor
    ) -> None:
        """Make the surface from the fits, or from jets where these are better.

        points, given (m, 3): all samples and their normals. tree: of the points, if all have a fit. component (k,): the
        connected component of each fit.
        """
        fits, kept, settings = robust.fits, robust.kept, robust.blend
        normals = fits.frames[:, 2]
        # Positions and normals as given, with corrected signs: if they are clean they are better than those of fits.
        own = torch.where(dot(given[kept], normals)[:, None] < 0, -given[kept], given[kept])
        expected = fits.error.detach()
        bound = settings.max_jet_error * expected
        choice, jets, rows, predicted = _jets_below(Cloud(points[kept], own, component, tree), bound)
        self.expected_error = expected.index_copy(0, rows, torch.minimum(expected[rows], predicted[rows]))
        p, n = fits.centres.index_copy(0, rows, points[kept[rows]]), normals.index_copy(0, rows, own[rows])
        cloud = Cloud(p, n, component, tree if len(rows) == len(kept) else None)
        near = cloud.neighbours(torch.arange(len(p), device=p.device), settings.neighbours)
        both = fits.jets(near) if jets is None else fits.jets(near).replaced(rows, jets)
        self._live = FittedSurface(cloud, near, both, choice, None)
        self._fit = self._live.detach()
        self._live_blend = Blend(p, n, near, both, settings.reach, settings.sharp)
        self._blend = self._live_blend.detach()
        self._record(kept)

    def _record(self, kept: Tensor) -> None:
        """Give all points the normal and component of their sample; kept (k,): the samples that have a fit."""
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
        """Share (n,) of the area of each point, computed when first used."""
        cells = torch.zeros_like(self._unique[:, 0])
        cells[self._kept] = voronoi_areas(self.fit.cloud.points, self.fit.cloud.normals)
        share = torch.bincount(self._unique_of, minlength=len(cells)).to(cells)
        return (cells / share)[self._unique_of]

    @property
    def spacing(self) -> Tensor:
        """Local spacing (k,) of the samples that have a fit."""
        return self._blend.spacing

    def own_feet(self) -> ClosestPoints:
        """The fitted sample of each of `points`; for an outlier, the nearest fitted sample."""
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
        """Feet of x (n, 3): those on single jets, moved along the normals to where the blend vanishes."""
        feet = super()._feet(x, index)
        points, normals, cloud = feet.points, feet.normals, self.fit.cloud
        if len(cloud.pieces.trees) == 1:
            index = cloud.tree.nearest_around(points.detach(), index)
        else:
            index = self._nearest_sample(points.detach())
        spacing = self._blend.spacing[index]
        if torch.is_grad_enabled() and points.requires_grad:
            for _ in range(BLEND_STEPS):
                phi, normals = self._live_blend(points, index)
                points = points - phi[:, None] * normals
        else:
            points, normals = self._blend.vanishing(points, index, BLEND_TOLERANCE * spacing, BLEND_STEPS)
        away = points.detach() - cloud.points[index]
        far = dot(away, away) > (MAX_FOOT_TO_SAMPLE * spacing) ** 2
        beyond = far if feet.beyond is None else far | feet.beyond
        return replace(feet, points=points, normals=normals, beyond=beyond)


def wide_jets_are_better(cloud: PointCloud, fitted: NeuralCloud) -> bool:
    """Whether jets over hundreds of samples follow a noisy cloud better than the network's fits, which see 256 at most.

    They do where the surface is smooth. Let e be the leave-one-out error of jets over k samples. It is mostly noise, of
    which a jet keeps about e sqrt(4 / k), as a quadric fitted over a disc does at its centre. That must be clearly less
    than the error that the fits expect. The error e must also be much the same everywhere, which excludes edges and
    thin parts, and the fits must neither leave out nor turn a sample.
    """
    points, normals = cloud._unique.detach(), cloud._normals.detach()
    if not fitted.noisy or len(fitted._kept) < WIDE_JET_SAMPLES * len(points):
        return False
    turned = dot(normals, fitted._normals.detach()) < 0
    if bool(turned.any()) and not bool(turned.all()):
        return False
    samples = Cloud(points, normals, cloud._component)
    _, choice = choose_settings(samples)
    if not choice.error * math.sqrt(4 / choice.settings.k) < MAX_WIDE_JET_ERROR * float(fitted.expected_error.mean()):
        return False
    return noise_is_even(samples, choice)


def noise_is_even(samples: Cloud, choice: ChosenSettings) -> bool:
    """Whether the leave-one-out error of jets is much the same everywhere, as if it were nothing but noise."""
    every = torch.arange(len(samples.points), device=samples.points.device)
    near = samples.neighbours(every, max(choice.settings.k, ERROR_SAMPLES))
    height, _ = samples.predict(near, choice.settings)
    error = _rms_around(height, near)
    return float((error < MAX_LOCAL_OVER_USUAL_ERROR * choice.error).double().mean()) >= WIDE_JET_SAMPLES


def _jets_below(cloud: Cloud, bound: Tensor) -> tuple[ChosenSettings, Jets | None, Tensor, Tensor]:
    """Jets at the samples whose leave-one-out errors are below a bound (m,).

    Returns how jets are fitted, the jets (None if there are none), their samples rows (r,), and the leave-one-out
    errors (m,) of all samples.
    """
    choice, _ = choose_settings(cloud, widest=MAX_JET_WIDTH_ON_FITS)
    every = torch.arange(len(cloud.points), device=cloud.points.device)
    near = cloud.neighbours(every, max(choice.settings.k, ERROR_SAMPLES))
    jets, height = cloud.fit_and_predict(near, choice.settings)
    error = _rms_around(height, near)
    # The error of the choice is infinite if the noise of the samples is wider than their neighbourhoods.
    better = (error < bound) & (choice.error < torch.inf)
    rows = better.nonzero()[:, 0]
    if not len(rows):
        return choice, None, rows, error
    live = torch.is_grad_enabled() and (cloud.points.requires_grad or cloud.normals.requires_grad)
    return choice, cloud.fit(near[rows], choice.settings) if live else jets.take(rows), rows, error


def _rms_around(height: Tensor, near: Tensor) -> Tensor:
    """RMS (m,) of heights (m,) over the nearest ERROR_SAMPLES of each sample's neighbours near (m, k)."""
    return height.square()[near[:, :ERROR_SAMPLES]].mean(1).sqrt()
