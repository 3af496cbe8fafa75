"""Point clouds joined by triangles, and the error of their area.

Two surfaces compete: the one that encloses a volume by the samples alone (`enclosure.py`) and, where normals were given
and the first is doubtful, the one that follows the normals (`triangulation.py`). The area of the better one changes
less when half of the samples are left out. Clean samples are its vertices as they are; noisy samples are first moved
onto jets fitted to their neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.fits.normals import pca_normals
from lamina.fits.outliers import off_surface
from lamina.fits.surface_fit import ChosenSettings, Cloud, choose_settings, smooth
from lamina.geometry.triangles import dot, triangle_areas, unit
from lamina.linear.graph import first_of_each
from lamina.reconstruction.enclosure import Enclosure, connected_patches, enclosure
from lamina.reconstruction.neural_cloud import noise_is_even
from lamina.reconstruction.triangulation import triangulate
from lamina.search.neighbours import k_nearest, voronoi_areas
from lamina.surfaces.mesh import Mesh
from lamina.surfaces.point_cloud import PointCloud
from lamina.surfaces.specks import MAX_SPECK_AREA_RATIO, left_out_for_size

# Jets are used instead if their leave-one-out error is less than this share of the mean height of arcs over the edges
# of triangles. At order 3 they then gain more than they cost: joining takes a fifth of the time of fitting.
MAX_JET_ERROR_OVER_ARCS = 0.05
# The area of triangles between samples comes short of that of the surface by about their spacing times a constant: they
# cut edges and arcs off. Half of the samples have sqrt(2) times the spacing, so the area falls by (sqrt(2) - 1) times
# its error.
ERROR_OVER_CHANGE = 1 / (2**0.5 - 1)
# A warning says how large the estimated error of the area is if it is more than this. With half of it, clouds are
# warned of whose solutions are right; with double, some are not whose areas are wrong.
MAX_AREA_ERROR = 0.03
# Samples are noisy if the cosine between a chord to a neighbour and the mean normal of its ends exceeds this in the
# median, and if MIN_NOISE_PER_TURN is exceeded, too. On a clean smooth surface the cosine is near 0.
MIN_NOISE_SLOPE = 0.1
# Samples are noisy only if that median exceeds this part of the median difference of normals between neighbours. A
# clean surface that is rough itself turns its normals as well, and is not to be taken for noise.
MIN_NOISE_PER_TURN = 0.7
# Points that look like outliers are left out if the doubtful area is less than this part of what it is with them.
# Outliers raise it tenfold; sparse parts and edges, whose points look alike, do not change it much.
MAX_DOUBT_WITHOUT_OUTLIERS = 0.5
# Noisy samples enclose no volume if the area of their triangles, without long ones, exceeds this multiple of the area
# of their cells in tangent planes: of a flat sheet the triangles are both sides.
MAX_AREA_OVER_CELLS = 1.5
NOISE_NEIGHBOURS = 8  # neighbours of each sample whose chords are measured for noise
# Two neighbours lie on the same sheet if the cosine between their normals is larger than this (60 degrees).
MIN_CHORD_NORMAL_COSINE = 0.5


class TriangulatedCloud(Mesh):
    """Triangles between the points of a cloud. A point may be a corner of no triangle."""

    representation = "points"


@dataclass(frozen=True)
class Joined:
    """A cloud joined by triangles, why, and the estimated relative error of their area."""

    mesh: TriangulatedCloud
    reason: str
    area_error: float
    closed: bool  # whether no lid was left out
    jets_are_better: bool  # whether jets predict left-out samples far better than triangles do


@dataclass(frozen=True)
class _Candidate:
    """Triangles between some of the samples of a cloud, and the estimated error of their area."""

    samples: Cloud
    rows: Tensor  # of the distinct points of the cloud, that the samples are
    smoothing: ChosenSettings | None  # with which noise was removed; None: the samples are where they were
    found: Enclosure
    faces: Tensor  # without lids
    error: float
    reason: str

    @property
    def lids(self) -> float:
        """Area of the lids over that of the other triangles."""
        points = self.samples.points.detach()
        return _area(points, self.found.faces) / _area(points, self.faces) - 1

    @property
    def doubt(self) -> float:
        """Share of the area that may be wrong or missing."""
        return self.error + self.lids


def triangulated(cloud: PointCloud) -> Joined | None:
    """The cloud joined by the triangles whose area is surest; None where there are none."""
    points, normals = cloud._live_samples()
    every = torch.arange(len(points), device=points.device)
    looks = normals
    if cloud.estimated and len(cloud._kept) < len(every):  # points left out have borrowed normals
        looks = pca_normals(points.detach())
    tried = _candidates(Cloud(points, looks, cloud._component), every)
    kept = cloud._kept
    if not tried or tried[0].error > MAX_AREA_ERROR:
        kept = kept[~off_surface(points[kept].detach())]
    if len(kept) < len(every):
        fewer = _candidates(Cloud(points[kept], normals[kept], cloud._component[kept]), kept)
        if fewer and (not tried or fewer[0].doubt < MAX_DOUBT_WITHOUT_OUTLIERS * tried[0].doubt):
            tried = fewer
    if not cloud.estimated and tried and tried[0].error > MAX_AREA_ERROR:
        tried += _candidates(tried[0].samples, tried[0].rows, "the normals of the samples decide its side", triangulate)
    if not tried:
        return None
    best = min(tried, key=lambda candidate: candidate.doubt)
    points, found = best.samples.points.detach(), best.found
    faces, specks = without_specks(points, best.faces)
    if best.smoothing is None:
        mesh = as_mesh(cloud, best.rows[faces])
    else:
        mesh = _of_moved(cloud, best.samples.points, faces)
        mesh.notes.append(_noise_note(best.smoothing))
    mesh.notes = [note for note in mesh.notes if "taken for outliers" not in note]
    if len(best.rows) < len(every):
        left_out = len(every) - len(best.rows)
        mesh.notes.append(f"{left_out} points off the surface of the others were taken for outliers and left out.")
    mesh.notes += [*specks, *_doubts(best.lids, best.error)]
    jets_are_better = _jets_are_better(best, Cloud(*cloud._live_samples(), cloud._component).detach())
    return Joined(mesh, best.reason, best.error, len(best.faces) == len(found.faces), jets_are_better)


def _candidates(
    samples: Cloud,
    rows: Tensor,
    reason: str = "the samples enclose a volume",
    make: Callable[[Tensor, Tensor], Enclosure | None] = lambda points, _: enclosure(points),
) -> list[_Candidate]:
    """The triangles between samples, smoothed if they are noisy, as a list; an empty one where there are none."""
    smoothing = None
    if is_noisy(samples.points.detach(), samples.normals.detach()):
        _, smoothing = choose_settings(samples.detach())
        samples = smooth(samples, smoothing.settings)
    points, normals = samples.points.detach(), samples.normals.detach()
    found = make(points, normals)
    faces = None if found is None else found.without_lids(points, normals)
    if found is None or faces is None or not len(faces):
        return []
    if smoothing is not None:
        short = found.faces[~found.long(points)]
        if _area(points, short) > MAX_AREA_OVER_CELLS * float(voronoi_areas(points, normals).sum()):
            return []
    error = area_error(points, normals, found, make)
    return [_Candidate(samples, rows, smoothing, found, faces, error, reason)]


def area_error(
    points: Tensor, normals: Tensor, found: Enclosure, make: Callable[[Tensor, Tensor], Enclosure | None]
) -> float:
    """Estimated relative error of the area of triangles over points (m, 3), from those between half of the points.

    Lids count on both sides: which triangles are lids depends on the density. make(points, normals): the triangles.
    """
    half = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))[: len(points) // 2]
    half = half.to(points.device)
    other = make(points[half], normals[half])
    change = 1.0 if other is None else abs(1 - _area(points[half], other.faces) / _area(points, found.faces))
    return change * ERROR_OVER_CHANGE


def _area(points: Tensor, faces: Tensor) -> float:
    return float(triangle_areas(points[faces]).sum())


def _doubts(lids: float, error: float) -> list[str]:
    """What to tell about the area of the surface: that of its openings and its error, both over its own."""
    said = []
    if lids > MAX_AREA_ERROR:
        said.append(
            f"The samples leave openings, which {lids:.0%} more area would close. They are left open. If the surface "
            "is closed there, add samples."
        )
    if error > MAX_AREA_ERROR:
        said.append(
            f"The area of the surface may be off by about {error:.0%}: with half of the samples it changes by "
            f"{error / ERROR_OVER_CHANGE:.1%}. Denser samples help; a finer grid does not."
        )
    return said


def _jets_are_better(joined: _Candidate, samples: Cloud) -> bool:
    """Whether jets predict left-out samples far better than triangles do, which miss the arcs over their edges, or
    whether the samples are nothing but noise on a surface that wide jets follow everywhere."""
    if joined.smoothing is not None:
        return noise_is_even(samples, joined.smoothing)
    points, found = joined.samples.points.detach(), joined.found
    looks = joined.samples.normals.detach()
    looks = torch.where(dot(looks, found.normals)[:, None] < 0, -looks, looks)
    _, safe = choose_settings(Cloud(points, looks, joined.samples.component, joined.samples.tree))
    corners, normals = points[joined.faces], looks[joined.faces]
    height = dot(corners.roll(-1, 1) - corners, normals.roll(-1, 1) - normals).abs().amax(1) / 8
    areas = triangle_areas(corners)
    clean = safe.error < MAX_JET_ERROR_OVER_ARCS * float((areas * height).sum() / areas.sum())
    return clean or (safe.grown and noise_is_even(samples, safe))


def _noise_note(smoothing: ChosenSettings) -> str:
    settings = smoothing.settings
    return (
        f"Noise of about {smoothing.error:.2g} was smoothed over {settings.k} neighbours by degree {settings.degree}."
    )


def as_mesh(cloud: PointCloud, faces: Tensor) -> TriangulatedCloud:
    """Faces (t, 3) over the distinct points of a cloud, as a mesh over all its points."""
    first = first_of_each(cloud._unique_of, len(cloud._unique))  # the points that the distinct ones are
    mesh = TriangulatedCloud(cloud.positions, first[faces], name=cloud.name).to(cloud.points.device)
    assert isinstance(mesh, TriangulatedCloud)
    mesh.points, mesh.facts, mesh.notes = cloud.points, dict(cloud.facts), list(cloud.notes)
    return mesh


def _of_moved(cloud: PointCloud, points: Tensor, faces: Tensor) -> TriangulatedCloud:
    """Faces (t, 3) over moved points (m, 3) of a cloud."""
    mesh = TriangulatedCloud(points, faces, name=cloud.name).to(points.device)
    assert isinstance(mesh, TriangulatedCloud)
    mesh.facts, mesh.notes = dict(cloud.facts), list(cloud.notes)
    return mesh


def without_specks(points: Tensor, faces: Tensor) -> tuple[Tensor, list[str]]:
    """Faces (k, 3) of the parts that are no specks, and a sentence about the specks, if there are any."""
    part, areas = connected_patches(faces), triangle_areas(points[faces])
    area = torch.zeros_like(areas).index_add_(0, part, areas)
    kept = (area >= MAX_SPECK_AREA_RATIO * area.max())[part]
    if bool(kept.all()):
        return faces, []
    share = float(areas[~kept].sum() / areas.sum())
    return faces[kept], [left_out_for_size(len(torch.unique(part[~kept])), share)]


def is_noisy(points: Tensor, normals: Tensor) -> bool:
    """Whether neighbours lie off the arcs that their normals make between them, as noise puts them.

    Let d be the vector between two neighbours, and n and m their normals. On a circle |d . (n + m)| / (|d| |n + m|) is
    0. On a clean surface that is rough itself it is not, but there |n - m| is large, too. Both are measured by their
    medians. Whether the fits call a cloud noisy is no substitute, because they err where a cloud is uneven.
    """
    near, _ = k_nearest(points, min(NOISE_NEIGHBOURS + 1, len(points)))
    offset, other = points[near[:, 1:]] - points[:, None], normals[near[:, 1:]]
    one_sheet = dot(other, normals[:, None]) > MIN_CHORD_NORMAL_COSINE
    slope = dot(unit(offset), unit(other + normals[:, None])).abs()[one_sheet].median()
    turn = (other - normals[:, None]).norm(dim=-1)[one_sheet].median()
    return float(slope) > MIN_NOISE_SLOPE and float(slope) > MIN_NOISE_PER_TURN * float(turn)
