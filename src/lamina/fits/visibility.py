"""Which points of a surface made of Gaussian splats are visible from outside, by depth pictures from all around.

In a parallel projection along d, with B (2, 3) the axes of the picture, the ray at x meets a Gaussian of centre
c, covariance S and opacity o with

    alpha = o exp(-m^2 / 2),    m^2 = e^T (B S B^T)^{-1} e,    e = x - B c,

and the Gaussian is densest on the ray at the depth d.c + d^T S B^T (B S B^T)^{-1} e. The share of the light that
reaches a Gaussian is the product of 1 - alpha over those in front of it. The surface is where that share falls below a
half: this is the median depth of Huang et al. (2024), "2D Gaussian splatting for geometrically accurate radiance
fields"; the rest is after Kerbl et al. (2023), "3D Gaussian splatting". There is one ray through the centre of each
pixel, so depths are not blurred.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.geometry.frames import tangent_basis
from lamina.shapes import Float, Int, shaped

# Directions from which pictures are taken. With half as many, hollows are seen by too few; the time is proportional.
VIEWS = 24
# The light of a Gaussian is that of a good view: one in this many views may have more, as one through a hole has.
VIEWS_PER_BETTER_VIEW = 6
MAX_STANDARD_DEVIATIONS = 3.0  # a Gaussian ends there: its alpha has fallen to 1 % of its opacity
MIN_ALPHA = 1 / 255  # less is not visible in a picture of 8 bits, and is left out
MAX_ALPHA = 0.999  # so that the logarithm of 1 - alpha is finite
RAY_PAIRS = 2**21  # pairs of a Gaussian and a ray held at a time
# Squared pixels added to the diagonal of a projected covariance: that of a disc seen edge-on is singular.
MIN_PROJECTED_VARIANCE = 1e-6
DEPTH_STEPS = 2**30  # steps into which depths are rounded for sorting the Gaussians of a ray
# A view faces a point if the cosine between its direction and the outward normal is below this (107 degrees or more):
# at grazing angles neighbours hide a point by chance.
MAX_VIEW_COSINE = -0.3


@shaped
@dataclass(frozen=True)
class Gaussians:
    """Gaussians as ellipsoids of given opacity."""

    centres: Float[Tensor, "n 3"]
    covariances: Float[Tensor, "n 3 3"]
    opacities: Float[Tensor, " n"]


@shaped
@dataclass(frozen=True)
class VisiblePoints:
    """Points s where rays of all views meet the surface, and how much light reaches the n Gaussians."""

    points: Float[Tensor, "s 3"]
    to_viewer: Float[Tensor, "s 3"]  # unit vectors
    gaussian: Int[Tensor, " s"]  # which Gaussian stopped the light
    opaque: Float[Tensor, " s"]  # share of the light that all Gaussians on the ray stop together
    # (n,) share of the light that reaches each Gaussian, mean over its rays, in a good view (VIEWS_PER_BETTER_VIEW);
    # NaN for a Gaussian so small that it lies between the rays
    light: Tensor

    def take(self, rows: Tensor) -> VisiblePoints:
        """Some of the points, with the light of all Gaussians."""
        points, to_viewer, gaussian = self.points[rows], self.to_viewer[rows], self.gaussian[rows]
        return VisiblePoints(points, to_viewer, gaussian, self.opaque[rows], self.light)


def directions(count: int) -> Tensor:
    """Unit vectors (count, 3), evenly spread: a Fibonacci lattice on the sphere."""
    i = torch.arange(count, dtype=torch.float64) + 0.5
    z = 1 - 2 * i / count
    angle = math.pi * (1 + 5**0.5) * i
    radius = (1 - z * z).sqrt()
    return torch.stack([radius * angle.cos(), radius * angle.sin(), z], 1)


@torch.no_grad()
def visible_points(gaussians: Gaussians, pixel: float, views: int = VIEWS) -> VisiblePoints:
    """Points of the surface in depth pictures with square pixels of that size, from directions all around."""
    nothing = gaussians.centres[:0]
    light = gaussians.opacities.new_zeros(views, len(gaussians.centres))
    met = torch.zeros_like(light[0], dtype=torch.bool)
    found = [(nothing, nothing, torch.zeros_like(light[0, :0], dtype=torch.int64), light[0, :0])]
    for view, d in enumerate(directions(views).to(gaussians.centres)):
        rays = _rays(gaussians, d, pixel)
        if len(rays.gaussian) == 0:
            continue
        before, stopped = _transmitted(rays)
        whole = torch.zeros_like(light[view]).index_add_(0, rays.gaussian, rays.alpha)
        light[view].index_add_(0, rays.gaussian, before * rays.alpha)
        light[view] /= whole.clamp_min(torch.finfo(light.dtype).tiny)
        met |= whole > 0
        at = ((before > 0.5) & (before * (1 - rays.alpha) <= 0.5)).nonzero()[:, 0]
        point = rays.pixels(at) * pixel @ tangent_basis(d[None])[0] + rays.depth[at, None] * d
        found.append((point, (-d).expand_as(point), rays.gaussian[at], stopped[at]))
    points, to_viewer, gaussian, opaque = (torch.cat(part) for part in zip(*found, strict=True))
    good = light.topk(1 + views // VIEWS_PER_BETTER_VIEW, dim=0).values[-1]
    return VisiblePoints(points, to_viewer, gaussian, opaque, good.masked_fill(~met, torch.nan))


@torch.no_grad()
def visible_share(
    seen: VisiblePoints, normals: Tensor, pixel: float, max_difference: float, views: int = VIEWS
) -> Tensor:
    """Of the views that each point (s,) faces, given normals (s, 3), the share in which it is visible.

    A point is hidden in a view if the ray through its pixel ends more than `max_difference` in front of it.
    """
    faced, visible = torch.zeros_like(seen.opaque), torch.zeros_like(seen.opaque)
    for d in directions(views).to(normals):
        axes = tangent_basis(d[None])[0]
        pixels, depth = (seen.points @ axes.T / pixel).round().long(), seen.points @ d
        low = pixels.amin(0)
        key = (pixels[:, 0] - low[0]) * int(pixels[:, 1].max() - low[1] + 1) + pixels[:, 1] - low[1]
        own = (seen.to_viewer @ d < -1 + 1e-9).nonzero()[:, 0]  # points that this view found, one a pixel
        if len(own) == 0:
            continue
        sorted_key, order = key[own].sort()
        at = torch.searchsorted(sorted_key, key).clamp(max=len(own) - 1)
        hidden = (sorted_key[at] == key) & (depth > depth[own][order][at] + max_difference)
        facing = normals @ d < MAX_VIEW_COSINE
        faced += facing
        visible += facing & ~hidden
    return visible / faced.clamp_min(1)


@shaped
@dataclass(frozen=True)
class _Rays:
    """Pairs p of a Gaussian and a ray that meets it, ray by ray, front to back."""

    gaussian: Int[Tensor, " p"]
    key: Int[Tensor, " p"]  # number of the ray
    alpha: Float[Tensor, " p"]
    depth: Float[Tensor, " p"]
    low: Int[Tensor, " 2"]  # first pixel
    width: int

    def pixels(self, rows: Tensor) -> Tensor:
        """Pixels (r, 2) of the given pairs."""
        key = self.key[rows]
        return (torch.stack([key // self.width, key % self.width], 1) + self.low).to(self.depth)


def _rays(gaussians: Gaussians, d: Tensor, pixel: float) -> _Rays:
    axes = tangent_basis(d[None])[0] / pixel
    middle, far = gaussians.centres @ axes.T, gaussians.centres @ d
    identity = torch.eye(2, dtype=d.dtype, device=d.device)
    across = axes @ gaussians.covariances @ axes.T + MIN_PROJECTED_VARIANCE * identity
    inverse = torch.linalg.inv(across)
    slope = (inverse @ (axes @ (gaussians.covariances @ d)[..., None]))[..., 0]  # (n, 2) depth a pixel
    reach = (2 * (gaussians.opacities / MIN_ALPHA).clamp_min(1).log()).sqrt()
    reach = reach.clamp(max=MAX_STANDARD_DEVIATIONS)[:, None]
    wide = reach * across.diagonal(dim1=1, dim2=2).sqrt()
    low, high = (middle - wide).ceil().long(), (middle + wide).floor().long()
    size = (high - low + 1).clamp_min(0)
    first, width = low.amin(0), int(high[:, 1].max() - low[:, 1].min()) + 1
    parts = []
    for rows in _batches(size.prod(1)):
        count = size[rows].prod(1)
        who = rows.repeat_interleave(count)
        number = torch.arange(len(who), device=d.device) - (count.cumsum(0) - count).repeat_interleave(count)
        at = torch.stack([number // size[who, 1], number % size[who, 1]], 1) + low[who]
        e0, e1 = (at - middle[who]).unbind(1)
        m = inverse[who, 0, 0] * e0 * e0 + 2 * inverse[who, 0, 1] * e0 * e1 + inverse[who, 1, 1] * e1 * e1
        alpha = gaussians.opacities[who] * torch.exp(-0.5 * m)
        met = ((m < MAX_STANDARD_DEVIATIONS**2) & (alpha > MIN_ALPHA)).nonzero()[:, 0]
        who, at = who[met], at[met] - first
        depth = far[who] + slope[who, 0] * e0[met] + slope[who, 1] * e1[met]
        parts.append((who, at[:, 0] * width + at[:, 1], alpha[met], depth))
    who, key, alpha, depth = (torch.cat(part) for part in zip(*parts, strict=True))
    if len(who):
        step = (depth - depth.min()) / (depth.max() - depth.min()).clamp_min(1e-300)
        order = torch.argsort(key * DEPTH_STEPS + (step * (DEPTH_STEPS - 1)).long())
        who, key, alpha, depth = who[order], key[order], alpha[order], depth[order]
    return _Rays(who, key, alpha.clamp(max=MAX_ALPHA), depth, first, width)


def _transmitted(rays: _Rays) -> tuple[Tensor, Tensor]:
    """Share of the light (p,) that reaches each pair, and share (p,) that all pairs of its ray stop together."""
    passed = torch.log1p(-rays.alpha)
    after = passed.cumsum(0)
    begins = torch.cat([torch.ones_like(rays.key[:1], dtype=torch.bool), rays.key[1:] != rays.key[:-1]])
    ray = begins.cumsum(0) - 1
    start = (after - passed)[begins]
    end = torch.cat([start[1:], after[-1:]])
    return torch.exp(after - passed - start[ray]), 1 - torch.exp(end - start)[ray]


def _batches(pixels: Tensor) -> tuple[Tensor, ...]:
    """Consecutive rows whose numbers of pixels (n,) add up to about RAY_PAIRS."""
    counts = torch.unique_consecutive(pixels.cumsum(0) // RAY_PAIRS, return_counts=True)[1]
    return torch.arange(len(pixels), device=pixels.device).split(counts.tolist())
