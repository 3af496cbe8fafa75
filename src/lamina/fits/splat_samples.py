"""Oriented, evenly spaced samples of the surface that Gaussian splats show.

The centres of trained Gaussians are not samples of a surface: tiny Gaussians crowd where there is texture, large discs
cover flat parts, many lie unseen below the surface, and the shortest axes of most are not normals. Together they show
a surface, and the part of a picture that one of them covers is its footprint. The surface is therefore sampled where
rays from all around meet it.

A disc is flat and the surface is not. A sample at the tangential distance e from the centre of its disc lies about
k e^2 / 2 off a surface of curvature k through that centre. This height is measured on a first surface, smoothed over
neighbourhoods as wide as the footprints, and is subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lamina.fits.jets import fit_jets
from lamina.fits.normals import pca_normals
from lamina.fits.project import project
from lamina.fits.surface_fit import Cloud, JetSettings
from lamina.fits.visibility import VIEWS, Gaussians, VisiblePoints, visible_points, visible_share
from lamina.geometry.triangles import dot, unit
from lamina.search.neighbours import connected_pieces, k_nearest
from lamina.shapes import Float, shaped

# Number of samples aimed at: SAMPLES_PER_GAUSSIAN for each Gaussian, but between the two limits. Fewer lose details,
# more cost time and follow single Gaussians.
SAMPLES_PER_GAUSSIAN, MIN_SPLAT_SAMPLES, MAX_SPLAT_SAMPLES = 1.5, 20_000, 100_000
# Standard deviation, as a share of the extent, of the blur added to each Gaussian: half a pixel of a picture 800 pixels
# wide. Renderers blur by about as much, and Gaussians are trained with it.
BLUR_SHARE = 0.5 / 800
# Pixels across, and number, of the coarse pictures that measure the visible area, from which the pixel size follows.
COARSE_PIXELS, COARSE_VIEWS = 48, 6
MAX_PIXELS_ACROSS = 1000  # pixels along the extent, at most, which bounds the time
# Neighbours to which a plane is fitted for the normal; a surface has about that many samples within 1.6 pixels.
NORMAL_NEIGHBOURS = 48
# A ray meets a surface if all Gaussians on it together stop more than this share of the light; less is haze.
MIN_RAY_OPACITY = 0.6
# A sample is kept if the cosine between its normal and the direction to the viewer is more than this: at flatter angles
# depths are too uncertain. The same cosine is the least between normals of samples on one sheet.
MIN_FACING_COSINE = 0.5
# A sample is kept if more than this share of the views that it faces show it: an inside seen through a hole is not the
# surface.
MIN_VISIBLE_SHARE = 1 / 3
# A sample is hidden in a view if another one lies more than this many pixels in front of it; depths from different
# views differ by less.
MAX_DEPTH_DIFFERENCE = 3.0
# A sample is kept if at least this many others lie within this many pixels of it; a surface has about sixty there, as
# a quarter of the views find each part of it.
MIN_NEARBY_SAMPLES, NEARBY_PIXELS = 16, 1.8
# A neighbour is on the same sheet if its height over the tangent plane is below this share of its distance, plus the
# second number of pixels.
MAX_SHEET_SLOPE, MAX_SHEET_OFFSET = 0.35, 0.1
# A connected piece with less than this share of the samples is debris.
MIN_PIECE_SAMPLE_SHARE = 0.005
# Neighbourhoods have the radius of this many footprints and at most this many samples. Smaller ones leave the steps
# between discs, larger ones smooth details away.
NEIGHBOURHOOD_FOOTPRINTS, MAX_NEIGHBOURHOOD = 2.0, 192
# How often heights over discs are subtracted, each time as measured on the surface of the pass before.
LOWERING_PASSES = 2
# How often samples off all sheets are removed, each time among the samples that are left.
SHEET_ROUNDS = 4
# Nearest samples looked at for neighbours on the same sheet: NORMAL_NEIGHBOURS and the sample itself, and some that lie
# above it.
SHEET_NEIGHBOURS = 65
# How jets are fitted to samples that are smooth already.
SMOOTH_JETS = JetSettings(2, 20, slopes=False)


@shaped
@dataclass(frozen=True)
class SplatSamples:
    """Samples of the surface that Gaussians show."""

    points: Float[Tensor, "s 3"]
    normals: Float[Tensor, "s 3"]  # outwards
    pixel: float  # spacing of the rays
    footprint: Float[Tensor, " s"]  # RMS tangential distance of the samples around from the centres of their Gaussians
    light: Float[Tensor, " n"]  # part of the light that reaches each Gaussian in a good view; NaN: no ray met it
    connected_share: float  # share of the samples that belong to pieces large enough


def sample_surface(gaussians: Gaussians, extent: float) -> SplatSamples:
    """Samples of the surface that Gaussians of the given extent show, moved onto it."""
    blur = (BLUR_SHARE * extent) ** 2 * torch.eye(3, dtype=gaussians.centres.dtype, device=gaussians.centres.device)
    gaussians = replace(gaussians, covariances=gaussians.covariances + blur)
    pixel = _pixel(gaussians, extent)
    seen = visible_points(gaussians, pixel)
    light = seen.light
    if len(seen.points) <= NORMAL_NEIGHBOURS:
        return SplatSamples(seen.points, seen.to_viewer, pixel, seen.opaque, light, 0.0)
    seen, normals = _taken(seen, *_facing(seen, pixel))
    seen, normals = _taken(seen, normals, _often_seen(seen, pixel))
    if len(seen.points) <= NORMAL_NEIGHBOURS:
        return SplatSamples(seen.points, normals, pixel, seen.opaque, light, 0.0)
    piece, good = _large_pieces(seen.points, normals)
    connected_share = len(good) / len(piece)
    if len(good) <= NORMAL_NEIGHBOURS:
        return SplatSamples(seen.points[good], normals[good], pixel, seen.opaque[good], light, connected_share)
    points, normals, centres = seen.points[good], normals[good], gaussians.centres[seen.gaussian[good]]
    cloud = Cloud(points, normals, torch.unique(piece[good], return_inverse=True)[1])
    near, footprint = _neighbourhoods(cloud, centres)
    surface = _smoothed(cloud, near)
    for _ in range(LOWERING_PASSES):
        surface = _smoothed(_lowered(cloud, surface, centres), near)
    rows = _on_sheets(surface, pixel)
    if len(rows) <= NORMAL_NEIGHBOURS:
        return SplatSamples(surface.points[rows], surface.normals[rows], pixel, footprint[rows], light, 0.0)
    rows = rows[_large_pieces(surface.points[rows], surface.normals[rows])[1]]
    return SplatSamples(surface.points[rows], surface.normals[rows], pixel, footprint[rows], light, connected_share)


def _pixel(gaussians: Gaussians, extent: float) -> float:
    """Size of pixels with which the pictures give the number of samples aimed at, by the area in coarse pictures."""
    coarse = extent / COARSE_PIXELS
    area = len(visible_points(gaussians, coarse, COARSE_VIEWS).points) * coarse**2 / COARSE_VIEWS
    wanted = min(max(SAMPLES_PER_GAUSSIAN * len(gaussians.centres), MIN_SPLAT_SAMPLES), MAX_SPLAT_SAMPLES)
    return min(max((area * VIEWS / wanted) ** 0.5, extent / MAX_PIXELS_ACROSS), coarse)


def _facing(seen: VisiblePoints, pixel: float) -> tuple[Tensor, Tensor]:
    """Normals (s, 3), and whether (s,) the surface there is opaque, seen at a steep angle and from enough sides."""
    normals = pca_normals(seen.points, NORMAL_NEIGHBOURS)
    cosine = dot(normals, seen.to_viewer)
    normals = torch.where(cosine[:, None] < 0, -normals, normals)
    sound = (cosine.abs() > MIN_FACING_COSINE) & (seen.opaque > MIN_RAY_OPACITY)
    return normals, sound & (visible_share(seen, normals, pixel, MAX_DEPTH_DIFFERENCE * pixel) > MIN_VISIBLE_SHARE)


def _often_seen(seen: VisiblePoints, pixel: float) -> Tensor:
    """Whether (s,) each sample has enough others around it."""
    neighbours = min(MIN_NEARBY_SAMPLES, len(seen.points) - 1)
    return k_nearest(seen.points, neighbours + 1)[1][:, -1] < NEARBY_PIXELS * pixel


def _taken(seen: VisiblePoints, normals: Tensor, which: Tensor) -> tuple[VisiblePoints, Tensor]:
    """The points and normals for which a mask (s,) is true."""
    rows = which.nonzero()[:, 0]
    return seen.take(rows), normals[rows]


def _large_pieces(points: Tensor, normals: Tensor) -> tuple[Tensor, Tensor]:
    """The connected piece (s,) of each sample, and the rows of those in pieces large enough."""
    piece = connected_pieces(points, normals)
    large = torch.bincount(piece, minlength=1) >= max(MIN_PIECE_SAMPLE_SHARE * len(piece), NORMAL_NEIGHBOURS)
    return piece, large[piece].nonzero()[:, 0]


def _on_sheets(cloud: Cloud, pixel: float) -> Tensor:
    """Rows of the samples with enough others on the same sheet: with a similar normal, and beside rather than above."""
    rows = torch.arange(len(cloud.points), device=cloud.points.device)
    for _ in range(SHEET_ROUNDS):
        points, normals = cloud.points[rows], cloud.normals[rows]
        near, distance = k_nearest(points, min(SHEET_NEIGHBOURS, len(rows)))
        offset = points[near[:, 1:]] - points[:, None]
        height = dot(offset, normals[:, None].expand_as(offset)).abs()
        beside = height < MAX_SHEET_SLOPE * distance[:, 1:] + MAX_SHEET_OFFSET * pixel
        agree = dot(normals[:, None], normals[near[:, 1:]]) > MIN_FACING_COSINE
        count = (beside & agree & (distance[:, 1:] < NEARBY_PIXELS * pixel)).sum(1)
        rows = rows[count >= MIN_NEARBY_SAMPLES]
        if len(rows) <= NORMAL_NEIGHBOURS:
            break
    return rows


def _neighbourhoods(cloud: Cloud, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Neighbours (m, k) of each sample within NEIGHBOURHOOD_FOOTPRINTS footprints, and these footprints (m,).

    A footprint is the RMS of the tangential distances of the samples around from the centres (m, 3) of their
    Gaussians. Where a neighbourhood has fewer than k samples its farthest one fills the row, at the rim, where weights
    are zero.
    """
    offset = centres - cloud.points
    e = offset - dot(offset, cloud.normals)[:, None] * cloud.normals
    near, distance = cloud.pieces.query(cloud.points, cloud.component, MAX_NEIGHBOURHOOD)
    footprint = dot(e, e)[near[:, :NORMAL_NEIGHBOURS]].mean(1).sqrt()
    count = (distance < NEIGHBOURHOOD_FOOTPRINTS * footprint[:, None]).sum(1).clamp_min(SMOOTH_JETS.k)
    column = torch.minimum(torch.arange(MAX_NEIGHBOURHOOD, device=centres.device), count[:, None] - 1)
    return near.gather(1, column), footprint


def _smoothed(cloud: Cloud, near: Tensor) -> Cloud:
    """Samples moved to the quadrics fitted to their neighbours (m, k), with the normals of the quadrics."""
    jets = fit_jets(cloud.points, cloud.normals, near, 2, slopes=False)
    up = jets.frames[:, 2]
    slope = jets.coefficients[:, 1:3, None] * jets.frames[:, :2]
    return Cloud(cloud.points + jets.height[:, None] * up, unit(up - slope.sum(1)), cloud.component)


def _lowered(cloud: Cloud, smoothed: Cloud, centres: Tensor) -> Cloud:
    """Samples moved along their normals by the height of the surface over its tangent plane at the centre of their
    Gaussian, centres (m, 3)."""
    here = torch.arange(len(centres), device=centres.device)
    jets = smoothed.fit(smoothed.neighbours(here, SMOOTH_JETS.k), SMOOTH_JETS)
    foot, normal = project(jets, cloud.points, here)
    below, up = project(jets, centres, smoothed.pieces.query(centres, cloud.component, 1)[0][:, 0])
    sagitta = torch.where(dot(up, normal) > MIN_FACING_COSINE, dot(foot - below, up), torch.zeros_like(centres[:, 0]))
    return Cloud(cloud.points + sagitta[:, None] * normal, smoothed.normals, cloud.component)
