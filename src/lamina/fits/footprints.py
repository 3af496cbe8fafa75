"""Oriented, evenly spaced samples of the surface that Gaussian splats show.

Trained Gaussians are no samples: tiny ones crowd where there is texture, large discs cover flat places, many lie
unseen below the surface, and the shortest axes of most are not normals. But together they show a surface, and what
each adds to a picture is its footprint. So the surface is sampled where rays from all around meet it.
A disc is flat and the surface is not: a sample at the tangential distance e from the centre of its disc lies about
k e^2 / 2 off a surface of curvature k through that centre. That much is taken off again, as measured on a first
surface, smoothed over neighbourhoods as wide as the footprints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lamina.fits.fitting import Cloud, Way
from lamina.fits.jets import fit_jets
from lamina.fits.normals import pca_normals
from lamina.fits.project import project
from lamina.fits.visibility import VIEWS, Gaussians, Seen, look, openness
from lamina.geometry.triangles import dot, unit
from lamina.search.neighbours import connected_pieces, k_nearest

SAMPLES = 20_000, 100_000  # at least and at most, between these three for every two Gaussians
BLUR = 0.5 / 800  # of the extent: half a pixel of usual pictures, by which trained Gaussians expect to be blurred
COARSE = 48, 6  # pixels across and views of the pictures that measure how much there is to see
AROUND = 48  # neighbours whose plane gives a normal
OPAQUE = 0.6  # part of the light that a surface stops
FACING = 0.5  # cosine between normal and view below which depths are too uncertain
OPEN = 1 / 3  # of the views that a sample faces must show it: insides seen through a hole are not the surface
SLACK = 3.0  # pixels by which depths of different views may differ
FEW, NEARBY = 16, 1.8  # so many samples within so many pixels of each, where a surface has about sixty
BESIDE = 0.35  # height over distance of a neighbour on the same sheet
PIECE = 0.005  # part of the samples that a piece must have, or it is debris
WIDE, MOST = 2.0, 192  # radius of neighbourhoods, in footprints, and the most samples in one
PASSES, SIFTINGS = 2, 4  # each works on the surface, or on the samples, of the one before
NEAR = Way(2, 20, slopes=False)  # how jets are fitted to samples that are smooth already


@dataclass(frozen=True)
class Samples:
    """Samples of the surface, and what was seen of the Gaussians."""

    points: Tensor  # (s, 3)
    normals: Tensor  # (s, 3) outwards
    pixel: float  # spacing of the rays
    footprint: Tensor  # (s,) RMS tangential distance of the samples around from the centres of their Gaussians
    light: Tensor  # (n,) part of the light that reaches each Gaussian in a good view; NaN: no ray met it
    together: float  # part of the samples that belongs to pieces large enough


def sample_surface(gaussians: Gaussians, extent: float) -> Samples:
    """Samples of the surface that Gaussians of that extent show, moved onto it."""
    blur = (BLUR * extent) ** 2 * torch.eye(3, dtype=gaussians.centres.dtype, device=gaussians.centres.device)
    gaussians = replace(gaussians, covariances=gaussians.covariances + blur)
    pixel = _pixel(gaussians, extent)
    seen = look(gaussians, pixel)
    light = seen.light
    if len(seen.points) <= AROUND:
        return Samples(seen.points, seen.towards, pixel, seen.opaque, light, 0.0)
    seen, normals = _taken(seen, *_facing(seen, pixel))
    seen, normals = _taken(seen, normals, _often_seen(seen, pixel))
    if len(seen.points) <= AROUND:
        return Samples(seen.points, normals, pixel, seen.opaque, light, 0.0)
    piece, good = _large_pieces(seen.points, normals)
    together = len(good) / len(piece)
    if len(good) <= AROUND:
        return Samples(seen.points[good], normals[good], pixel, seen.opaque[good], light, together)
    points, normals, centres = seen.points[good], normals[good], gaussians.centres[seen.gaussian[good]]
    cloud = Cloud(points, normals, torch.unique(piece[good], return_inverse=True)[1])
    near, footprint = _neighbourhoods(cloud, centres)
    surface = _smoothed(cloud, near)
    for _ in range(PASSES):
        surface = _smoothed(_lowered(cloud, surface, centres), near)
    rows = _on_sheets(surface, pixel)
    if len(rows) <= AROUND:
        return Samples(surface.points[rows], surface.normals[rows], pixel, footprint[rows], light, 0.0)
    rows = rows[_large_pieces(surface.points[rows], surface.normals[rows])[1]]
    return Samples(surface.points[rows], surface.normals[rows], pixel, footprint[rows], light, together)


def _pixel(gaussians: Gaussians, extent: float) -> float:
    """Size of pixels for about three samples for every two Gaussians, by coarse pictures."""
    across, views = COARSE
    coarse = extent / across
    area = len(look(gaussians, coarse, views).points) * coarse**2 / views
    wanted = min(max(1.5 * len(gaussians.centres), SAMPLES[0]), SAMPLES[1])
    return min(max((area * VIEWS / wanted) ** 0.5, extent / 1000), coarse)


def _facing(seen: Seen, pixel: float) -> tuple[Tensor, Tensor]:
    """Normals (s, 3), and whether (s,) an opaque surface was seen there from well above and from enough sides."""
    normals = pca_normals(seen.points, AROUND)
    cosine = dot(normals, seen.towards)
    normals = torch.where(cosine[:, None] < 0, -normals, normals)
    sound = (cosine.abs() > FACING) & (seen.opaque > OPAQUE)
    return normals, sound & (openness(seen, normals, pixel, SLACK * pixel) > OPEN)


def _often_seen(seen: Seen, pixel: float) -> Tensor:
    """Whether (s,) there are enough other samples around: a quarter of the views find each piece of surface."""
    neighbours = min(FEW, len(seen.points) - 1)
    return k_nearest(seen.points, neighbours + 1)[1][:, -1] < NEARBY * pixel


def _taken(seen: Seen, normals: Tensor, which: Tensor) -> tuple[Seen, Tensor]:
    rows = which.nonzero()[:, 0]
    return seen.take(rows), normals[rows]


def _large_pieces(points: Tensor, normals: Tensor) -> tuple[Tensor, Tensor]:
    """The connected piece (s,) of each sample, and the rows of those in pieces large enough."""
    piece = connected_pieces(points, normals)
    large = torch.bincount(piece, minlength=1) >= max(PIECE * len(piece), AROUND)
    return piece, large[piece].nonzero()[:, 0]


def _on_sheets(cloud: Cloud, pixel: float) -> Tensor:
    """Rows of the samples that lie on a sheet with enough others: of its normal, and beside rather than above."""
    rows = torch.arange(len(cloud.points), device=cloud.points.device)
    for _ in range(SIFTINGS):
        points, normals = cloud.points[rows], cloud.normals[rows]
        near, distance = k_nearest(points, min(AROUND + 17, len(rows)))
        offset = points[near[:, 1:]] - points[:, None]
        beside = dot(offset, normals[:, None].expand_as(offset)).abs() < BESIDE * distance[:, 1:] + 0.1 * pixel
        agree = dot(normals[:, None], normals[near[:, 1:]]) > FACING
        count = (beside & agree & (distance[:, 1:] < NEARBY * pixel)).sum(1)
        rows = rows[count >= FEW]
        if len(rows) <= AROUND:
            break
    return rows


def _neighbourhoods(cloud: Cloud, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Neighbours (m, k) of each sample as far as the footprints around reach, and these footprints (m,).

    A footprint is the RMS of the tangential distances of the samples around from the centres (m, 3) of their
    Gaussians. Where a neighbourhood holds fewer than k its farthest sample fills the row, at the rim, where
    weights are zero.
    """
    offset = centres - cloud.points
    e = offset - dot(offset, cloud.normals)[:, None] * cloud.normals
    rows = torch.arange(len(centres), device=centres.device)
    near, distance = cloud.pieces.query(cloud.points, cloud.component, MOST)
    footprint = dot(e, e)[near[:, :AROUND]].mean(1).sqrt()
    count = (distance < WIDE * footprint[:, None]).sum(1).clamp_min(NEAR.k)
    place = torch.minimum(torch.arange(MOST, device=rows.device), count[:, None] - 1)
    return near.gather(1, place), footprint


def _smoothed(cloud: Cloud, near: Tensor) -> Cloud:
    """Samples moved to the quadrics fitted to their neighbours (m, k), with the normals of these."""
    jets = fit_jets(cloud.points, cloud.normals, near, 2, slopes=False)
    up = jets.frames[:, 2]
    slope = jets.coefficients[:, 1:3, None] * jets.frames[:, :2]
    return Cloud(cloud.points + jets.height[:, None] * up, unit(up - slope.sum(1)), cloud.component)


def _lowered(cloud: Cloud, smoothed: Cloud, centres: Tensor) -> Cloud:
    """Samples moved along their normals by the height of the surface over the tangent plane at their centres (m, 3)."""
    here = torch.arange(len(centres), device=centres.device)
    jets = smoothed.fit(smoothed.neighbours(here, NEAR.k), NEAR)
    foot, normal = project(jets, cloud.points, here)
    below, up = project(jets, centres, smoothed.pieces.query(centres, cloud.component, 1)[0][:, 0])
    sagitta = torch.where(dot(up, normal) > FACING, dot(foot - below, up), torch.zeros_like(centres[:, 0]))
    return Cloud(cloud.points + sagitta[:, None] * normal, smoothed.normals, cloud.component)
