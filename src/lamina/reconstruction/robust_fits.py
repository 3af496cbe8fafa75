"""Robust fits: from a cloud of oriented samples, good or bad, to quadrics of the surface that they came from.

A trained network (`lamina.reconstruction.fit_network`) fits a quadric around each sample. It predicts the error of the
fit, and whether the sample is an outlier. Where the predicted error is large, a wider neighbourhood is fitted as well,
and the fit with the smaller predicted error is kept. The samples of a noisy cloud are moved onto their fits and fitted
again. Last, fits that contradict those around them are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute_later

from lamina.fits.blend import Blend
from lamina.fits.jets import REACH_NEIGHBOUR, REACH_OVER_NEIGHBOUR, Jets
from lamina.fits.normals import orient_normals
from lamina.geometry.triangles import dot
from lamina.reconstruction.fit_network import FitNetwork, Neighbourhoods, NetworkOutput
from lamina.search.neighbours import PointTree, k_nearest
from lamina.shapes import Float, Int, shaped

# Neighbourhoods of 64 samples that are fitted at a time: enough to keep the device busy, few enough for its caches.
FITS_AT_A_TIME = {"cpu": 2**9, "cuda": 2**15}
# The constants below were chosen by trial on damaged clouds of the shapes that docs/neural.md names.
# A wider neighbourhood is tried if a fit expects a larger error than this many spacings. Half of it costs time on clean
# clouds; with double, fits of slightly noisy clouds stay at their 64 samples.
MIN_ERROR_FOR_WIDER_FIT = 0.05
# A cloud is noisy if the median distance of samples from their fits, over the error that these expect, exceeds this.
# On clean samples both are what a quadric cannot follow, and the ratio is about 1 or less.
MIN_NOISE_OVER_ERROR = 1.3
# A noisy cloud is fitted again if its fits expect a larger error than this many spacings, in the median.
MIN_ERROR_FOR_REFITTING = 0.02
REFITS_OF_NOISY_CLOUD = 2  # how often a noisy cloud is fitted again
# A fit is rejected if its expected error exceeds MAX_ERROR_OVER_USUAL times this quantile of all expected errors, and
# also MAX_ERROR_IN_SPACINGS.
USUAL_ERROR_QUANTILE = 0.9
MAX_ERROR_OVER_USUAL = 4.0
MAX_ERROR_IN_SPACINGS = 0.2  # median spacings: a fit with a smaller expected error is never rejected for it
# With a larger share of outliers found, some are taken to be still among the samples. Then a jet replaces a fit only if
# it is clearly better, as in noisy clouds, because it would run through such an outlier.
MAX_CLEAN_OUTLIER_SHARE = 0.01
# A cloud needs this many times the samples of the smallest neighbourhood, and a wider neighbourhood is tried only if
# the cloud has this many times its samples. A neighbourhood is to see a part of a shape, not all of it.
MIN_SAMPLES_PER_NEIGHBOUR = 4
MAX_REACH_OVER_RADIUS = 1.25  # a fit is used no farther from its centre than this many radii of its neighbourhood
MAX_AGREEMENT_ROUNDS = 2  # rounds in which fits that contradict those around them are left out


@dataclass(frozen=True)
class BlendSettings:
    """How fits are checked against the fits around them, and how they are blended.

    A fit is kept if its normal and its position differ little from the blend of its neighbours.
    """

    neighbours: int  # number of fits around that take part in check and blend
    reach: float  # how wide the blend is, as in `lamina.fits.blend.Blend`
    sharp: bool  # whether the blend keeps edges
    min_cosine: float  # between the normal of a fit and that of the blend
    max_offset: float  # spacings between a fit and the blend
    max_jet_error: float  # leave-one-out error with which a jet replaces a fit, over the error that the fit expects


# Clean samples show edges, where the fits on both sides differ. So clean clouds are blended over few fits that may
# differ by any angle below 90 degrees. Noise hides edges anyway: noisy clouds are blended over many fits, which must
# agree to within 46 degrees, and jets replace only fits that expect twice their error. Chosen by trial.
CLEAN_BLEND = BlendSettings(16, 3.0, sharp=True, min_cosine=0.0, max_offset=1.0, max_jet_error=2.0)
NOISY_BLEND = BlendSettings(48, 16.0, sharp=False, min_cosine=0.7, max_offset=0.7, max_jet_error=0.5)


@shaped
@dataclass(frozen=True)
class QuadricFits:
    """Quadrics fitted around m samples, in units of length."""

    centres: Float[Tensor, "m 3"]  # points of the quadrics nearest to the samples
    frames: Float[Tensor, "m 3 3"]  # rows t1, t2, n; n points to the side that was found to be outside
    coefficients: Float[Tensor, "m 6"]  # of 1, a, b, a^2, ab, b^2, lengths divided by `scale`
    scale: Float[Tensor, " m"]  # radius of the neighbourhood
    spacing: Float[Tensor, " m"]  # local spacing of the samples
    error: Float[Tensor, " m"]  # expected error
    outlier_logit: Float[Tensor, " m"]  # logit of the probability that the sample is an outlier

    def detach(self) -> QuadricFits:
        return QuadricFits(*(getattr(self, f.name).detach() for f in fields(self)))

    def take(self, rows: Tensor) -> QuadricFits:
        """The fits of some rows."""
        return QuadricFits(*(getattr(self, f.name).index_select(0, rows) for f in fields(self)))

    def replaced(self, rows: Tensor, other: QuadricFits) -> QuadricFits:
        """These fits with others at some rows."""
        names = [f.name for f in fields(self)]
        return QuadricFits(*(getattr(self, name).index_copy(0, rows, getattr(other, name)) for name in names))

    def facing(self, side: Tensor) -> QuadricFits:
        """The same quadrics, with normals on the side of the vectors side (m, 3)."""
        turned = (dot(self.frames[:, 2], side) < 0)[:, None]
        # A frame with t1 and t2 interchanged and n reversed keeps its handedness: h(a, b) becomes -h(b, a).
        t1, t2, n = self.frames.unbind(1)
        frames = torch.where(turned[..., None], torch.stack([t2, t1, -n], 1), self.frames)
        coefficients = torch.where(turned, -self.coefficients[:, [0, 2, 1, 5, 4, 3]], self.coefficients)
        return replace(self, frames=frames, coefficients=coefficients)

    def jets(self, near: Tensor) -> Jets:
        """The quadrics as jets. near (m, j): nearest fits, whose distances say how far each quadric is used."""
        offset = self.centres[near[:, min(REACH_NEIGHBOUR, near.shape[1] - 1)]] - self.centres
        reach = (REACH_OVER_NEIGHBOUR * dot(offset, offset).sqrt() / self.scale).clamp(max=MAX_REACH_OVER_RADIUS)
        return Jets(2, self.centres, self.frames, self.coefficients, self.scale, reach, self.error)


@shaped
@dataclass(frozen=True)
class RobustFits:
    """The fits of a cloud after all checks."""

    fits: QuadricFits
    kept: Int[Tensor, " k"]  # rows of the samples that have a fit
    blend: BlendSettings
    noisy: bool  # whether the samples are noisy
    tree: PointTree  # of the centres of the fits


def robust_fits(
    network: FitNetwork, tree: PointTree, points: Tensor, normals: Tensor, *, estimated: bool
) -> RobustFits:
    """Fits of the surface that samples show.

    points, normals (m, 3): all samples. tree: of the points without gradients. estimated: whether the normals were
    estimated from the points; their signs are then found anew on the fitted points.
    The fits carry the gradients of the samples and of the network. Decisions are held fixed.
    """
    sizes = [k for k in network.config.neighbours if MIN_SAMPLES_PER_NEIGHBOUR * k <= len(points)]
    fits = fit_around(network, points, normals, tree.own(sizes[0])[0])
    for k in sizes[1:]:
        rows = (fits.error > MIN_ERROR_FOR_WIDER_FIT * fits.spacing).detach().nonzero()[:, 0]
        if len(rows):
            wider = fit_around(network, points, normals, tree.query(points[rows], k)[0])
            wins = (wider.error < fits.error[rows]).nonzero()[:, 0]
            fits = fits.replaced(rows[wins], wider.take(wins))
    kept = (~_rejected(fits.detach())).nonzero()[:, 0]
    fits = fits if len(kept) == len(points) else fits.take(kept)
    if estimated:
        fits = fits.facing(orient_normals(fits.centres.detach(), fits.frames[:, 2].detach()))
    blend, noisy = CLEAN_BLEND, _are_noisy(fits.detach(), points[kept].detach())
    if noisy and float((fits.error / fits.spacing).detach().median()) > MIN_ERROR_FOR_REFITTING:
        blend, error = NOISY_BLEND, fits.error
        for _ in range(REFITS_OF_NOISY_CLOUD):
            side = fits.frames[:, 2]
            near, _ = k_nearest(fits.centres.detach(), sizes[-1])
            fits = fit_around(network, fits.centres, side, near).facing(side)
        fits = replace(fits, error=error)
    agreeing, tree = _agreeing(fits.detach(), blend)
    if len(kept) < (1 - MAX_CLEAN_OUTLIER_SHARE) * len(points):
        blend = replace(blend, max_jet_error=NOISY_BLEND.max_jet_error)
    if len(agreeing) < len(kept):
        fits, kept = fits.take(agreeing), kept[agreeing]
    return RobustFits(fits, kept, blend, noisy, tree)


def fit_around(network: FitNetwork, points: Tensor, normals: Tensor, index: Tensor) -> QuadricFits:
    """The network's fits around the samples index[:, 0], from their nearest samples index (n, k)."""
    k = index.shape[1]
    network = network.to(points.device)
    live = torch.is_grad_enabled() and (points.requires_grad or any(p.requires_grad for p in network.parameters()))
    parts = []
    for block in index.split(max(1, FITS_AT_A_TIME[points.device.type] * 64 // k)):
        near = Neighbourhoods.of(points, normals, block)
        output = recompute_later(network, near, use_reentrant=False) if live else network(near)
        assert isinstance(output, NetworkOutput)
        quadrics, s = output.quadrics, near.spacing
        centres, error = points[block[:, 0]] + quadrics.centres * s[:, None], torch.exp(output.log_error) * s
        shape = centres, quadrics.frames, quadrics.coefficients, near.radius * s, s
        # The network computes in its own precisions.
        part = QuadricFits(*(v.to(points.dtype) for v in (*shape, error, output.outlier_logit)))
        parts.append(part.facing(part.frames[:, 2] * output.vote.sign().to(points.dtype)[:, None]))
    return QuadricFits(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(QuadricFits)))


def _are_noisy(fits: QuadricFits, points: Tensor) -> bool:
    """Whether samples (m, 3) lie farther from their fits than these err.

    A fit averages over many samples. On clean samples it errs by what a quadric cannot follow, and the samples lie no
    farther from it than that.
    """
    offset = points - fits.centres
    return float((dot(offset, offset).sqrt() / fits.error).median()) > MIN_NOISE_OVER_ERROR


def _rejected(fits: QuadricFits) -> Tensor:
    """Which samples (m,) the network takes for outliers, or fits much worse than most others of the cloud."""
    usual = fits.error.kthvalue(max(1, round(USUAL_ERROR_QUANTILE * len(fits.error)))).values
    limit = torch.maximum(MAX_ERROR_OVER_USUAL * usual, MAX_ERROR_IN_SPACINGS * fits.spacing.median())
    return (fits.outlier_logit > 0) | (fits.error > limit)


def _agreeing(fits: QuadricFits, settings: BlendSettings) -> tuple[Tensor, PointTree]:
    """Rows (k,) of the fits that agree with the blend of those around them, and the tree of their centres."""
    rows = torch.arange(len(fits.centres), device=fits.centres.device)
    tree = PointTree(fits.centres)
    for _ in range(MAX_AGREEMENT_ROUNDS):
        some = fits if len(rows) == len(fits.centres) else fits.take(rows)
        near, _ = tree.own(min(settings.neighbours + 1, len(rows)))
        normals = some.frames[:, 2]
        others = Blend(some.centres, normals, near[:, 1:], some.jets(near), settings.reach, sharp=False)
        phi, mean = others(some.centres, torch.arange(len(rows), device=rows.device))
        same_side = dot(mean, normals) > settings.min_cosine
        agree = (same_side & (phi.abs() < settings.max_offset * others.spacing)).nonzero()[:, 0]
        if len(agree) == len(rows):
            break  # the next round would find the same
        rows = rows[agree]
        tree = PointTree(fits.centres[rows])
    return rows, tree
