"""What can be seen of Gaussian splats from outside: depths in pictures taken from all around.

In a parallel projection along d, with B (2, 3) the axes of the picture, the ray at x meets a Gaussian of centre
c, covariance S and opacity o with

    alpha = o exp(-m^2 / 2),    m^2 = e^T (B S B^T)^{-1} e,    e = x - B c,

densest at the depth d.c + d^T S B^T (B S B^T)^{-1} e. Those in front take light from those behind: what reaches a
Gaussian is the product of 1 - alpha over those before it, and the surface is where that falls below a half. After
Kerbl et al. (2023), "3D Gaussian splatting", and the median depth of Huang et al. (2024), "2D Gaussian splatting
for geometrically accurate radiance fields". Rays sample pixels at their centres, so that depths are not blurred.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.geometry.frames import tangent_basis

VIEWS = 24
BEST = 6  # one view in so many may show a Gaussian better than its light says: through a hole, say
WIDEST = 3.0  # standard deviations at which a Gaussian ends
FAINTEST = 1 / 255  # alpha that counts
PAIRS = 2**21  # of Gaussian and ray at a time
ROUND = 1e-6  # pixels^2 added to a projected covariance: a disc seen from its edge has none across
STEPS = 2**30  # of depth, by which Gaussians on a ray are sorted


@dataclass(frozen=True)
class Gaussians:
    """Gaussians to be looked at."""

    centres: Tensor  # (n, 3)
    covariances: Tensor  # (n, 3, 3)
    opacities: Tensor  # (n,)


@dataclass(frozen=True)
class Seen:
    """Places s where rays from all views met the surface, and how much light n Gaussians got."""

    points: Tensor  # (s, 3)
    towards: Tensor  # (s, 3) unit vectors to the viewer
    gaussian: Tensor  # (s,) int64, which Gaussian stopped the light
    opaque: Tensor  # (s,) the part of the light that all Gaussians on that ray together stop
    light: Tensor  # (n,) part of the light that reaches each Gaussian, mean over its rays, in a good view (see BEST);
    # NaN for one so small that it lies between the rays

    def take(self, rows: Tensor) -> Seen:
        """These places alone."""
        return Seen(self.points[rows], self.towards[rows], self.gaussian[rows], self.opaque[rows], self.light)


def directions(count: int) -> Tensor:
    """Unit vectors (count, 3), evenly spread: a Fibonacci lattice on the sphere."""
    i = torch.arange(count, dtype=torch.float64) + 0.5
    z = 1 - 2 * i / count
    angle = math.pi * (1 + 5**0.5) * i
    radius = (1 - z * z).sqrt()
    return torch.stack([radius * angle.cos(), radius * angle.sin(), z], 1)


@torch.no_grad()
def look(gaussians: Gaussians, pixel: float, views: int = VIEWS) -> Seen:
    """Pictures with square pixels of that size from directions all around."""
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
        place = rays.place(at) * pixel @ tangent_basis(d[None])[0] + rays.depth[at, None] * d
        found.append((place, (-d).expand_as(place), rays.gaussian[at], stopped[at]))
    points, towards, gaussian, opaque = (torch.cat(part) for part in zip(*found, strict=True))
    good = light.topk(1 + views // BEST, dim=0).values[-1]
    return Seen(points, towards, gaussian, opaque, good.masked_fill(~met, torch.nan))


@torch.no_grad()
def openness(seen: Seen, normals: Tensor, pixel: float, slack: float, views: int = VIEWS) -> Tensor:
    """Of the views that each place (s,) faces, with normals (s, 3), the part in which it is seen.

    A place is seen where no ray to it, or none to its pixel, stops more than `slack` before it.
    """
    faced, open_ = torch.zeros_like(seen.opaque), torch.zeros_like(seen.opaque)
    for d in directions(views).to(normals):
        axes = tangent_basis(d[None])[0]
        pixels, depth = (seen.points @ axes.T / pixel).round().long(), seen.points @ d
        low = pixels.amin(0)
        key = (pixels[:, 0] - low[0]) * int(pixels[:, 1].max() - low[1] + 1) + pixels[:, 1] - low[1]
        own = (seen.towards @ d < -1 + 1e-9).nonzero()[:, 0]  # places that this view found, one a pixel
        if len(own) == 0:
            continue
        sorted_key, order = key[own].sort()
        place = torch.searchsorted(sorted_key, key).clamp(max=len(own) - 1)
        hidden = (sorted_key[place] == key) & (depth > depth[own][order][place] + slack)
        facing = normals @ d < -0.3
        faced += facing
        open_ += facing & ~hidden
    return open_ / faced.clamp_min(1)


@dataclass(frozen=True)
class _Rays:
    """Pairs p of a Gaussian and a ray that meets it, ray by ray, front to back."""

    gaussian: Tensor  # (p,)
    key: Tensor  # (p,) number of the ray
    alpha: Tensor  # (p,)
    depth: Tensor  # (p,)
    low: Tensor  # (2,) first pixel
    width: int

    def place(self, rows: Tensor) -> Tensor:
        """Pixels (r, 2) of the given pairs."""
        key = self.key[rows]
        return (torch.stack([key // self.width, key % self.width], 1) + self.low).to(self.depth)


def _rays(gaussians: Gaussians, d: Tensor, pixel: float) -> _Rays:
    axes = tangent_basis(d[None])[0] / pixel
    middle, far = gaussians.centres @ axes.T, gaussians.centres @ d
    across = axes @ gaussians.covariances @ axes.T + ROUND * torch.eye(2, dtype=d.dtype, device=d.device)
    inverse = torch.linalg.inv(across)
    slope = (inverse @ (axes @ (gaussians.covariances @ d)[..., None]))[..., 0]  # (n, 2) depth a pixel
    reach = (2 * (gaussians.opacities / FAINTEST).clamp_min(1).log()).sqrt().clamp(max=WIDEST)[:, None]
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
        met = ((m < WIDEST**2) & (alpha > FAINTEST)).nonzero()[:, 0]
        who, at = who[met], at[met] - first
        depth = far[who] + slope[who, 0] * e0[met] + slope[who, 1] * e1[met]
        parts.append((who, at[:, 0] * width + at[:, 1], alpha[met], depth))
    who, key, alpha, depth = (torch.cat(part) for part in zip(*parts, strict=True))
    if len(who):
        step = (depth - depth.min()) / (depth.max() - depth.min()).clamp_min(1e-300)
        order = torch.argsort(key * STEPS + (step * (STEPS - 1)).long())
        who, key, alpha, depth = who[order], key[order], alpha[order], depth[order]
    return _Rays(who, key, alpha.clamp(max=0.999), depth, first, width)


def _transmitted(rays: _Rays) -> tuple[Tensor, Tensor]:
    """Light (p,) that reaches each pair, and the light (p,) that all pairs of its ray together stop."""
    passed = torch.log1p(-rays.alpha)
    after = passed.cumsum(0)
    begins = torch.cat([torch.ones_like(rays.key[:1], dtype=torch.bool), rays.key[1:] != rays.key[:-1]])
    ray = begins.cumsum(0) - 1
    start = (after - passed)[begins]
    end = torch.cat([start[1:], after[-1:]])
    return torch.exp(after - passed - start[ray]), 1 - torch.exp(end - start)[ray]


def _batches(pixels: Tensor) -> tuple[Tensor, ...]:
    """Consecutive rows whose numbers of pixels (n,) add up to about PAIRS."""
    counts = torch.unique_consecutive(pixels.cumsum(0) // PAIRS, return_counts=True)[1]
    return torch.arange(len(pixels), device=pixels.device).split(counts.tolist())
