"""lamina's learned operator: from a cloud of oriented samples, good or bad, to fits of the surface that they came from.

A trained network (`lamina.reconstruction.fit_network`) fits a quadric around each sample, says how large its error
will be, and which samples are outliers. Samples with large errors are fitted over wider neighbourhoods too, and the fit
that expects the smaller error is taken. Where that was common, in noisy clouds, the samples, now moved onto their fits,
are fitted again. Then fits that those around them contradict are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute_later

from lamina.fits.blend import Blend
from lamina.fits.jets import MAX_REACH, REACH_NEIGHBOUR, REACH_OVER_NEIGHBOUR, Jets
from lamina.fits.normals import orient_normals
from lamina.geometry.triangles import dot
from lamina.reconstruction.fit_network import FitNetwork, Fits, Neighbourhoods
from lamina.search.neighbours import PointTree, k_nearest

ROWS = {"cpu": 2**9, "cuda": 2**15}  # neighbourhoods of 64 at a time
LARGE = 0.05  # error, in spacings, with which a wider neighbourhood is tried
NOISE = 1.3  # a cloud is noisy if samples lie so many times farther from their fits than these err
ROUGHLY = 0.02  # spacings that the fits of a noisy cloud err by: more, and it is fitted again
AGAIN = 2  # times that a noisy cloud is fitted again
USUAL, WORSE, LOST = 0.9, 4.0, 0.2  # a fit is doubtful with so many times the error of so many, and so many spacings
FEW = 0.01  # share of outliers from which on there may be more
FEWEST = 4  # times as many samples as a neighbourhood has are needed for it


@dataclass(frozen=True)
class Manner:
    """How fits are checked against each other and blended: among how many, how wide (Blend.reach), keeping edges or
    not, by how much one may differ from the blend of the others, in direction (cosine) and position (spacings), and
    the leave-one-out error of a jet that may take the place of a fit, as a multiple of the error expected of that."""

    among: int
    reach: float
    sharp: bool
    cosine: float
    offset: float
    jets: float


# Clean samples show edges, where fits on both sides differ; noise would hide these anyway.
CLEAN, ROUGH = Manner(16, 3.0, True, 0.0, 1.0, 2.0), Manner(48, 16.0, False, 0.7, 0.7, 0.5)


@dataclass(frozen=True)
class Fitted:
    """Quadrics fitted around m samples, in units of length."""

    centres: Tensor  # (m, 3) on the fits
    frames: Tensor  # (m, 3, 3) rows t1, t2, n; n looks to the side that was found to be outside
    coefficients: Tensor  # (m, 6) of 1, a, b, a^2, ab, b^2, lengths divided by `scale`
    scale: Tensor  # (m,) radius of the neighbourhood
    spacing: Tensor  # (m,) of the samples there
    error: Tensor  # (m,) to be expected
    off: Tensor  # (m,) logit of the sample being an outlier

    def detach(self) -> Fitted:
        return Fitted(*(getattr(self, f.name).detach() for f in fields(self)))

    def take(self, rows: Tensor) -> Fitted:
        return Fitted(*(getattr(self, f.name).index_select(0, rows) for f in fields(self)))

    def put(self, rows: Tensor, other: Fitted) -> Fitted:
        names = [f.name for f in fields(self)]
        return Fitted(*(getattr(self, name).index_copy(0, rows, getattr(other, name)) for name in names))

    def facing(self, looks: Tensor) -> Fitted:
        """The same quadrics, their normals on the side of looks (m, 3)."""
        turned = (dot(self.frames[:, 2], looks) < 0)[:, None]
        # With t1 and t2 interchanged and n reversed a frame keeps its handedness: h(a, b) becomes -h(b, a).
        t1, t2, n = self.frames.unbind(1)
        frames = torch.where(turned[..., None], torch.stack([t2, t1, -n], 1), self.frames)
        coefficients = torch.where(turned, -self.coefficients[:, [0, 2, 1, 5, 4, 3]], self.coefficients)
        return replace(self, frames=frames, coefficients=coefficients)

    def jets(self, near: Tensor) -> Jets:
        """As jets; near (m, j): neighbours among them, which say how far each is used."""
        offset = self.centres[near[:, min(REACH_NEIGHBOUR, near.shape[1] - 1)]] - self.centres
        reach = (REACH_OVER_NEIGHBOUR * dot(offset, offset).sqrt() / self.scale).clamp(max=MAX_REACH)
        return Jets(2, self.centres, self.frames, self.coefficients, self.scale, reach, self.error)


@dataclass(frozen=True)
class Found:
    """Fits, the samples (k,) that they stand for, how to blend them, whether the samples are noisy; and the tree of
    the fits' centres."""

    fits: Fitted
    kept: Tensor
    manner: Manner
    noisy: bool
    tree: PointTree


def robust_fits(network: FitNetwork, tree: PointTree, points: Tensor, normals: Tensor, *, estimated: bool) -> Found:
    """The surface that samples show.

    points (m, 3), normals (m, 3): all samples; tree: of them, without gradients. estimated: whether normals came from
    the points themselves, so that their signs are to be found anew once the points have been moved to their fits. The
    fits have the gradients of the samples and of the network; what is decided by looking at them is held fixed.
    """
    sizes = [k for k in network.config.neighbours if FEWEST * k <= len(points)]
    fits = evaluate(network, points, normals, tree.own(sizes[0])[0])
    for k in sizes[1:]:
        rows = (fits.error > LARGE * fits.spacing).detach().nonzero()[:, 0]
        if len(rows):
            wider = evaluate(network, points, normals, tree.query(points[rows], k)[0])
            wins = (wider.error < fits.error[rows]).nonzero()[:, 0]
            fits = fits.put(rows[wins], wider.take(wins))
    kept = (~_doubtful(fits.detach())).nonzero()[:, 0]
    fits = fits if len(kept) == len(points) else fits.take(kept)
    if estimated:
        fits = fits.facing(orient_normals(fits.centres.detach(), fits.frames[:, 2].detach()))
    manner, noisy = CLEAN, _noisy(fits.detach(), points[kept].detach())
    if noisy and float((fits.error / fits.spacing).detach().median()) > ROUGHLY:
        manner, error = ROUGH, fits.error
        for _ in range(AGAIN):
            looks = fits.frames[:, 2]
            near, _ = k_nearest(fits.centres.detach(), sizes[-1])
            fits = evaluate(network, fits.centres, looks, near).facing(looks)
        fits = replace(fits, error=error)
    agreed, tree = _agreed(fits.detach(), manner)
    if len(kept) < (1 - FEW) * len(points):
        # Where there are outliers some are still among the samples, and a jet would run through them.
        manner = replace(manner, jets=ROUGH.jets)
    if len(agreed) < len(kept):
        fits, kept = fits.take(agreed), kept[agreed]
    return Found(fits, kept, manner, noisy, tree)


def evaluate(network: FitNetwork, points: Tensor, normals: Tensor, index: Tensor) -> Fitted:
    """What the network finds at the samples index[:, 0] from their nearest, index (n, k)."""
    k = index.shape[1]
    network = network.to(points.device)
    live = torch.is_grad_enabled() and (points.requires_grad or any(p.requires_grad for p in network.parameters()))
    parts = []
    for block in index.split(max(1, ROWS[points.device.type] * 64 // k)):
        near = Neighbourhoods.of(points, normals, block)
        fits = recompute_later(network, near, use_reentrant=False) if live else network(near)
        assert isinstance(fits, Fits)
        quadrics, s = fits.quadrics, near.spacing
        centres, error = points[block[:, 0]] + quadrics.centres * s[:, None], torch.exp(fits.log_error) * s
        shape = centres, quadrics.frames, quadrics.coefficients, near.radius * s, s
        # The network computes in its own precisions.
        found = Fitted(*(v.to(points.dtype) for v in (*shape, error, fits.off)))
        parts.append(found.facing(found.frames[:, 2] * fits.vote.sign().to(points.dtype)[:, None]))
    return Fitted(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Fitted)))


def _noisy(fits: Fitted, points: Tensor) -> bool:
    """Whether samples (m, 3) are noisy: off their fits, which average over many, by more than these err.

    On clean samples fits err by what a quadric cannot follow, and samples lie no farther from them than that.
    """
    offset = points - fits.centres
    return float((dot(offset, offset).sqrt() / fits.error).median()) > NOISE


def _doubtful(fits: Fitted) -> Tensor:
    """Which samples (m,) the network takes for outliers, or fits much worse than most others of the cloud."""
    usual = fits.error.kthvalue(max(1, round(USUAL * len(fits.error)))).values
    limit = torch.maximum(WORSE * usual, LOST * fits.spacing.median())
    return (fits.off > 0) | (fits.error > limit)


def _agreed(fits: Fitted, manner: Manner) -> tuple[Tensor, PointTree]:
    """Rows (k,) of fits that agree with the blend of those around them, in two rounds; the tree of their centres."""
    rows = torch.arange(len(fits.centres), device=fits.centres.device)
    tree = PointTree(fits.centres)
    for _ in range(2):
        some = fits if len(rows) == len(fits.centres) else fits.take(rows)
        near, _ = tree.own(min(manner.among + 1, len(rows)))
        looks = some.frames[:, 2]
        others = Blend(some.centres, looks, near[:, 1:], some.jets(near), manner.reach, sharp=False)
        phi, mean = others(some.centres, torch.arange(len(rows), device=rows.device))
        agree = ((dot(mean, looks) > manner.cosine) & (phi.abs() < manner.offset * others.spacing)).nonzero()[:, 0]
        if len(agree) == len(rows):
            break  # the second round would find the same
        rows = rows[agree]
        tree = PointTree(fits.centres[rows])
    return rows, tree
