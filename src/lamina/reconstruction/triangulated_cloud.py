"""Point clouds joined by triangles: for clean samples that are too sparse or too uneven for fits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.fits.rims import RIM_NEIGHBOUR
from lamina.geometry.triangles import dot, triangle_areas, triangle_normals, unit
from lamina.linear.graph import components, first_of_each
from lamina.reconstruction.neural_cloud import NeuralCloud
from lamina.reconstruction.robust_fits import MAX_CLEAN_OUTLIER_SHARE
from lamina.reconstruction.triangulation import triangulate
from lamina.search.neighbours import k_nearest
from lamina.search.triangles_by_samples import TrianglesBySamples
from lamina.shapes import Bool, Float, Int, shaped
from lamina.surfaces.mesh import Mesh
from lamina.surfaces.point_cloud import PointCloud
from lamina.surfaces.specks import MAX_SPECK_AREA_RATIO, left_out_for_size

# The constants of this module were chosen by trial, by the errors of Poisson's equation on the shapes that
# docs/neural.md names. Where a comment says nothing of half and double, neither was recorded.

# The normal of a sample supports a triangle, or a neighbour lies on the same sheet, if the cosine between the two
# normals is larger than this (60 degrees).
MIN_SUPPORTING_COSINE = 0.5
# A long triangle closes a rim, and is left out, if the cosines between its normal and those at all three corners are
# below this (73 degrees). Between this and MIN_SUPPORTING_COSINE its patch decides.
MAX_CONTRADICTING_COSINE = 0.3
# A sample supports the triangles around it if the cosine between its normal and their mean normal, weighted by area, is
# larger than this (46 degrees).
MIN_SAMPLE_COSINE = 0.7
# A sample that is a corner of no triangle still lies on one if it is nearer than this part of the square root of the
# mean area of the triangles.
MAX_DISTANCE_ON_TRIANGLE = 0.01
# Triangles are refused if a larger share of the samples does not support them. That happens with noise and outliers.
MAX_UNSUPPORTED_SHARE = 0.1
# Normals turned as the fits say replace the given ones only if that lowers the share of unsupported samples below this
# part of it. Fits correct flipped normals, but may also take one side of a thin part for the other.
MAX_UNSUPPORTED_AFTER_TURNING = 0.5
# A triangle is elsewhere than the fitted surface if its centre is farther from it than this part of its longest edge.
MAX_CENTRE_DISTANCE = 0.25
# Samples are noisy if the cosine between a chord to a neighbour and the mean normal of its ends exceeds this in the
# median, and if MIN_NOISE_PER_TURN is exceeded, too. On a clean smooth surface the cosine is near 0.
MIN_NOISE_SLOPE = 0.1
# Samples are noisy only if that median exceeds this part of the median difference of normals between neighbours. A
# clean surface that is rough itself turns its normals as well, and is not to be taken for noise.
MIN_NOISE_PER_TURN = 0.7
# Triangles replace fits if more than this share of the area of well supported triangles is elsewhere than the fits.
MAX_AREA_ELSEWHERE = 0.01
NOISE_NEIGHBOURS = 8  # neighbours of each sample whose chords are measured for noise
CHORD_NEIGHBOURS = 6  # neighbours of each sample whose chords give the error of flat triangles
# Triangles replace fits if the fits leave out more than this share of the samples though triangles support these. Set
# with MIN_ERROR_OVER_CHORDS on 21 meshes, 6,000 and 20,000 samples each (docs/neural.md has the outcome).
MAX_SUPPORTED_SHARE_LEFT_OUT = 0.0015
# Triangles replace fits if the error that the fits expect exceeds this part of the height of arcs over chords between
# neighbours, which is the error of flat triangles.
MIN_ERROR_OVER_CHORDS = 0.8
# A triangle is long if its longest edge exceeds this multiple of the distance from a corner to its 12th neighbour.
# Random samples of a surface are never so far apart without a gap between them.
MIN_LONG_EDGE = 2.0
MIN_LONG_AREA_IN_LID = 0.5  # a patch of triangles is a lid only if long ones have more than this share of its area


class TriangulatedCloud(Mesh):
    """Triangles between the points of a cloud. A point may be a corner of no triangle."""

    representation = "points"


@shaped
@dataclass(frozen=True)
class CloudTriangles:
    """Triangles between samples, and what the normals of the samples say about them."""

    faces: Int[Tensor, "t 3"]
    areas: Float[Tensor, " t"]
    longest: Float[Tensor, " t"]  # length of the longest edge
    agreement: Float[Tensor, "t 3"]  # cosine between the normal of a triangle and those at its corners
    supported: Bool[Tensor, " m"]  # whether a sample supports the triangles around it

    @classmethod
    def of(cls, points: Tensor, normals: Tensor) -> CloudTriangles | None:
        """The triangles through points (m, 3) with normals (m, 3); None if there are none."""
        faces = triangulate(points, normals)
        if faces is None or not len(faces):
            return None
        corners = points[faces]
        areas, face_normals = triangle_areas(corners), triangle_normals(corners)
        edge = corners.roll(-1, 1) - corners
        weighted = (areas[:, None] * face_normals).repeat_interleave(3, 0)
        around = torch.zeros_like(points).index_add_(0, faces.reshape(-1), weighted)
        # Of samples on a line or in a plane some are corners of no triangle and yet lie on one.
        rows = (dot(around, around) == 0).nonzero()[:, 0]
        if len(rows):
            nearest = TrianglesBySamples(corners.double().cpu())
            which, foot = (v.to(points.device) for v in nearest(points[rows].double().cpu()))
            offset = points[rows] - foot.to(points)
            on = dot(offset, offset).sqrt() < MAX_DISTANCE_ON_TRIANGLE * areas.mean().sqrt()
            around[rows] = torch.where(on[:, None], face_normals[which], 0.0)
        agreement = dot(face_normals[:, None], normals[faces])
        supported = dot(unit(around), normals) > MIN_SAMPLE_COSINE
        return cls(faces, areas, dot(edge, edge).amax(1).sqrt(), agreement, supported)

    @property
    def unsupported_share(self) -> float:
        """Share of the samples that do not support the triangles."""
        return 1 - float(self.supported.double().mean())

    def without_lids(self, points: Tensor) -> Tensor:
        """Faces (k, 3) without lids, which are no part of the surface but close its rims.

        A lid is a long triangle that the normals at all its corners contradict. A lid is also a patch of triangles,
        long ones for the most part, that its normals contradict on average: where a surface flares at its rim, the
        normals at some corners of a lid look its way.
        """
        near = k_nearest(points, min(RIM_NEIGHBOUR + 1, len(points)))[1][:, -1]
        long = self.longest > MIN_LONG_EDGE * near[self.faces].amin(1)
        lid = long & (self.agreement.amax(1) < MAX_CONTRADICTING_COSINE)
        doubtful = (self.agreement.mean(1) < MIN_SUPPORTING_COSINE) | long & (
            self.agreement.amin(1) < MIN_SUPPORTING_COSINE
        )
        rows = doubtful.nonzero()[:, 0]
        patch = _connected_patches(self.faces[rows])
        areas, long_areas, agreed = (
            torch.zeros_like(self.areas[rows]).index_add_(0, patch, self.areas[rows] * share)
            for share in (1.0, long[rows], self.agreement[rows].mean(1))
        )
        contradicted = agreed < MIN_SUPPORTING_COSINE * areas
        lid[rows] |= (contradicted & (long_areas > MIN_LONG_AREA_IN_LID * areas))[patch]
        return self.faces[~lid]


def better_triangles(cloud: PointCloud, fitted: NeuralCloud) -> tuple[TriangulatedCloud, str] | None:
    """The cloud joined by triangles and the reason, where triangles are better than the fitted surface; else None.

    They are better only if the samples are clean and came with normals. One of these must hold, too:
    - The fits expect about the error of flat triangles. Then triangles are as good where fits are right.
    - The fits leave out samples that triangles support. That happens at thin parts with few samples. Samples that
      support no triangles either are outliers, and triangles would go through them.
    - The fitted surface is elsewhere than well supported triangles. That happens where samples are dense here and
      sparse there, and the fits leave holes.
    """
    if cloud.estimated:
        return None
    points = cloud._unique
    dropped = _left_out(fitted, points)
    coarse = not fitted.noisy and _error_over_chords(fitted) > MIN_ERROR_OVER_CHORDS
    if not (coarse or fitted.open or bool(dropped.any())) or is_noisy(points, cloud._normals):
        return None
    triangles = _best_oriented(cloud, fitted)
    if triangles is None or triangles.unsupported_share > MAX_UNSUPPORTED_SHARE:
        return None
    left_out = float((dropped & triangles.supported).double().mean())
    if float(dropped.double().mean()) > max(MAX_CLEAN_OUTLIER_SHARE, 2 * left_out):
        return None
    if coarse:
        reason = "the samples are too sparse for fits, which would err as much as flat triangles"
    elif left_out > MAX_SUPPORTED_SHARE_LEFT_OUT:
        reason = f"fits leave out {left_out:.2%} of the samples that triangles join well"
    else:
        sure = (triangles.agreement.amin(1) > MIN_SUPPORTING_COSINE).nonzero()[:, 0]
        centres, far = points[triangles.faces[sure]].mean(1), MAX_CENTRE_DISTANCE * triangles.longest[sure]
        elsewhere = float(triangles.areas[sure[_elsewhere(fitted, centres, far)]].sum())
        if elsewhere <= MAX_AREA_ELSEWHERE * float(triangles.areas[sure].sum()):
            return None
        reason = "fits leave holes between samples that are dense here and sparse there"
    faces, specks = _without_specks(points, triangles.without_lids(points))
    mesh = _as_mesh(cloud, faces)
    mesh.notes.append("The samples are too sparse or uneven to be fitted; they were joined by triangles.")
    mesh.notes += specks
    return mesh, reason


def triangulated(cloud: PointCloud, fitted: NeuralCloud | None) -> TriangulatedCloud:
    """The cloud joined by triangles, whether or not they are better than fits.

    fitted: fits to the same cloud, if there are any. They tell which normals are flipped.
    Raises InputError if there are no triangles.
    """
    triangles = _best_oriented(cloud, fitted)
    faces = None if triangles is None else triangles.without_lids(cloud._unique)
    if triangles is None or faces is None or not len(faces):
        raise InputError(
            f"{cloud.name}: no triangles join its {len(cloud.points)} points, because the points lie in one plane or "
            'their normals contradict every triangle; use reconstruction="fits" or "jets".'
        )
    faces, specks = _without_specks(cloud._unique, faces)
    mesh = _as_mesh(cloud, faces)
    mesh.notes += specks
    share = triangles.unsupported_share
    if share > MAX_UNSUPPORTED_SHARE:
        mesh.notes.append(
            f"{100 * share:.0f} % of the samples contradict the triangles that join them: the samples are noisy, or "
            "their normals are wrong."
        )
    return mesh


def _as_mesh(cloud: PointCloud, faces: Tensor) -> TriangulatedCloud:
    """Faces (t, 3) over the distinct points of a cloud, as a mesh over all its points."""
    first = first_of_each(cloud._unique_of, len(cloud._unique))  # the points that the distinct ones are
    mesh = TriangulatedCloud(cloud.positions, first[faces], name=cloud.name).to(cloud.points.device)
    assert isinstance(mesh, TriangulatedCloud)
    mesh.points, mesh.facts, mesh.notes = cloud.points, dict(cloud.facts), list(cloud.notes)
    return mesh


def _without_specks(points: Tensor, faces: Tensor) -> tuple[Tensor, list[str]]:
    """Faces (k, 3) of the parts that are no specks, and a sentence about the specks, if there are any."""
    part, areas = _connected_patches(faces), triangle_areas(points[faces])
    area = torch.zeros_like(areas).index_add_(0, part, areas)
    kept = (area >= MAX_SPECK_AREA_RATIO * area.max())[part]
    if bool(kept.all()):
        return faces, []
    share = float(areas[~kept].sum() / areas.sum())
    return faces[kept], [left_out_for_size(len(torch.unique(part[~kept])), share)]


def _left_out(fitted: NeuralCloud, points: Tensor) -> Tensor:
    """Which of the distinct points (m, 3) the fits leave out, (m,) bool."""
    dropped = torch.ones_like(points[:, 0], dtype=torch.bool)
    dropped[fitted._kept] = False
    return dropped


def _connected_patches(faces: Tensor) -> Tensor:
    """The patch (t,) of each of the triangles (t, 3); triangles with a common edge are in one patch."""
    edges = torch.cat([faces, faces.roll(-1, 1)], 1).reshape(-1, 2, 3).transpose(1, 2).reshape(-1, 2)
    _, edge = torch.unique(edges.sort(1).values, dim=0, return_inverse=True)
    which = torch.arange(len(faces), device=faces.device).repeat_interleave(3)
    first = first_of_each(edge, len(faces) * 3)
    return components(len(faces), which, which[first[edge]])


def _best_oriented(cloud: PointCloud, fitted: NeuralCloud | None) -> CloudTriangles | None:
    """Triangles by the normals as given, or by normals turned as the fits say where these are clearly better."""
    points, normals = cloud._unique, cloud._normals
    as_given = CloudTriangles.of(points, normals)
    if as_given is None or fitted is None:
        return as_given
    flipped = ~_left_out(fitted, points) & (dot(normals, fitted._normals) < 0)
    if not bool(flipped.any()):
        return as_given
    turned = CloudTriangles.of(points, torch.where(flipped[:, None], -normals, normals))
    limit = MAX_UNSUPPORTED_AFTER_TURNING * as_given.unsupported_share
    return turned if turned is not None and turned.unsupported_share < limit else as_given


def is_noisy(points: Tensor, normals: Tensor) -> bool:
    """Whether neighbours lie off the arcs that their normals make between them, as noise puts them.

    Let d be the vector between two neighbours, and n and m their normals. On a circle |d . (n + m)| / (|d| |n + m|) is
    0. On a clean surface that is rough itself it is not, but there |n - m| is large, too. Both are measured by their
    medians. Whether the fits call a cloud noisy is no substitute, because they err where a cloud is uneven.
    """
    near, _ = k_nearest(points, min(NOISE_NEIGHBOURS + 1, len(points)))
    offset, other = points[near[:, 1:]] - points[:, None], normals[near[:, 1:]]
    one_sheet = dot(other, normals[:, None]) > MIN_SUPPORTING_COSINE
    slope = dot(unit(offset), unit(other + normals[:, None])).abs()[one_sheet].median()
    turn = (other - normals[:, None]).norm(dim=-1)[one_sheet].median()
    return float(slope) > MIN_NOISE_SLOPE and float(slope) > MIN_NOISE_PER_TURN * float(turn)


def _error_over_chords(fitted: NeuralCloud) -> float:
    """The error that fits expect of themselves over that of flat triangles, both as means over the area.

    Let d be the chord from a sample with normal n to a neighbour. The arc over it is |d . n| / 4 high in the middle.
    On flat faces these heights vanish, and edges decide.
    """
    cloud, areas = fitted.fit.cloud, fitted.spacing**2
    near = fitted.fit.near[:, 1 : CHORD_NEIGHBOURS + 1]
    across = dot(cloud.points[near] - cloud.points[:, None], cloud.normals[:, None]).abs() / 4
    one_sheet = dot(cloud.normals[near], cloud.normals[:, None]) > MIN_SUPPORTING_COSINE
    height = torch.where(one_sheet, across, 0.0).amax(1)
    return float((areas * fitted.expected_error).sum() / (areas * height).sum().clamp_min(1e-300))


def _elsewhere(fitted: NeuralCloud, x: Tensor, far: Tensor) -> Tensor:
    """Whether points x (n, 3) are farther than far (n,) from the fitted surface, or beyond its rims."""
    feet = fitted.closest_points(x)
    offset = x - feet.points
    away = dot(offset, offset).sqrt() > far
    return away if feet.beyond is None else away | feet.beyond
