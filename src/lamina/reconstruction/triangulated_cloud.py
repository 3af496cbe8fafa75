"""Point clouds that fits do not follow: clean samples, sparse for their shape or uneven, joined by triangles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.fits.rims import RIM_NEIGHBOUR
from lamina.geometry.triangles import dot, triangle_areas, triangle_normals, unit
from lamina.linear.graph import components, first_of_each
from lamina.reconstruction.neural_cloud import NeuralCloud
from lamina.reconstruction.robust_fits import FEW
from lamina.reconstruction.triangulation import triangulate
from lamina.search.neighbours import k_nearest
from lamina.search.triangles_by_samples import TrianglesBySamples
from lamina.surfaces.mesh import Mesh
from lamina.surfaces.point_cloud import PointCloud

AGREES, DENIES = 0.5, 0.3  # cosine between a triangle and the normals at all its corners that bear it out; that deny it
BORNE_OUT = 0.7  # cosine between a normal and the mean of the triangles around that bear it out
ON = 0.01  # of a triangle's size, from a sample to the triangle that it is on
DOUBT, CLEARLY = 0.1, 0.5  # share of samples that may not bear triangles out; part of that which is clearly less
AWAY = 0.25  # of its longest edge, from the middle of a triangle to a fitted surface that is another one
NOISY, TURNING = 0.1, 0.7  # slope of an arc between neighbours against their mean normal, and part of their turn
UNLIKE = 0.01  # of the area: with more of it away from the fitted surface, that is not taken
SIDE_BY_SIDE, CHORDS = 8, 6  # neighbours that noise is judged by, and arcs
LEFT_OUT = 0.0015  # share of the samples that fits may leave out though triangles bear them out
COARSE = 0.8  # of the height of arcs over chords, from which on fits are no better than chords
LONG = 2.0  # times the distance of the 12th neighbour: random samples are never so far apart


class TriangulatedCloud(Mesh):
    """Triangles between the points of a cloud, some of which may be in none."""

    representation = "points"


def triangulated(cloud: PointCloud, fitted: NeuralCloud) -> TriangulatedCloud | None:
    """The cloud by triangles, where these are better than the surface fitted to it; else None.

    They are if samples are clean, with normals, and
    - fits expect to err about as much as flat triangles do, for then they are as good where they are right, or
    - fits leave out samples, where these do not show thin parts well enough, that triangles bear out. If they fit no
      triangles either, they are outliers, and triangles would go through them. Or
    - the fitted surface is not where triangles are that the normals at all their corners bear out: between samples that
      are dense here and sparse there, fits leave holes.
    """
    if cloud.estimated:
        return None
    points = cloud._unique
    dropped = torch.ones_like(points[:, 0], dtype=torch.bool)
    dropped[fitted._kept] = False
    coarse = not fitted.noisy and _expected(fitted) > COARSE
    if not (coarse or fitted.open or bool(dropped.any())) or _rough(points, cloud._normals):
        return None
    found = _best(cloud, fitted, dropped)
    if found is None:
        return None
    left_out = float((dropped & found.borne_out).double().mean())
    if float(dropped.double().mean()) > max(FEW, 2 * left_out):
        return None
    if not coarse and left_out <= LEFT_OUT:
        sure = (found.agreement.amin(1) > AGREES).nonzero()[:, 0]
        elsewhere = _elsewhere(fitted, points[found.faces[sure]].mean(1), AWAY * found.longest[sure])
        if float(found.areas[sure[elsewhere]].sum()) <= UNLIKE * float(found.areas[sure].sum()):
            return None
    first = first_of_each(cloud._unique_of, len(points))  # the points that the distinct ones are
    mesh = TriangulatedCloud(cloud.positions, first[found.without_lids(points)], name=cloud.name).to(points.device)
    assert isinstance(mesh, TriangulatedCloud)
    mesh.points, mesh.facts = cloud.points, dict(cloud.facts)
    mesh.notes = [*cloud.notes, "The samples are too sparse or uneven to be fitted; they were joined by triangles."]
    return mesh


@dataclass(frozen=True)
class _Triangles:
    """Triangles through samples, and what the samples' normals say of them."""

    faces: Tensor  # (t, 3) int64
    areas: Tensor  # (t,)
    longest: Tensor  # (t,) edge
    agreement: Tensor  # (t, 3) cosine between its normal and those at its corners
    borne_out: Tensor  # (m,) bool, whether the triangles around a sample look where its normal does

    @classmethod
    def of(cls, points: Tensor, normals: Tensor) -> _Triangles | None:
        faces = triangulate(points, normals)
        if faces is None or not len(faces):
            return None
        corners = points[faces]
        areas, looks = triangle_areas(corners), triangle_normals(corners)
        edge = corners.roll(-1, 1) - corners
        weighted = (areas[:, None] * looks).repeat_interleave(3, 0)
        around = torch.zeros_like(points).index_add_(0, faces.reshape(-1), weighted)
        # Among samples on a line or in a plane some are no corners, and yet on the triangles.
        rows = (dot(around, around) == 0).nonzero()[:, 0]
        if len(rows):
            nearest = TrianglesBySamples(corners.double().cpu())
            which, foot = (v.to(points.device) for v in nearest(points[rows].double().cpu()))
            offset = points[rows] - foot.to(points)
            on = dot(offset, offset).sqrt() < ON * areas.mean().sqrt()
            around[rows] = torch.where(on[:, None], looks[which], 0.0)
        agreement, borne_out = dot(looks[:, None], normals[faces]), dot(unit(around), normals) > BORNE_OUT
        return cls(faces, areas, dot(edge, edge).amax(1).sqrt(), agreement, borne_out)

    @property
    def doubt(self) -> float:
        """Share of the samples that do not bear them out."""
        return 1 - float(self.borne_out.double().mean())

    def without_lids(self, points: Tensor) -> Tensor:
        """Faces (k, 3), less those that are no surface but close a rim.

        Such are long ones that all their normals deny, and patches, for the most part of long ones, that their normals
        deny on the whole: where a surface flares at its rim some corners of a lid look its way.
        """
        near = k_nearest(points, min(RIM_NEIGHBOUR + 1, len(points)))[1][:, -1]
        long = self.longest > LONG * near[self.faces].amin(1)
        lid = long & (self.agreement.amax(1) < DENIES)
        doubted = (self.agreement.mean(1) < AGREES) | long & (self.agreement.amin(1) < AGREES)
        rows = doubted.nonzero()[:, 0]
        patch = _side_by_side(self.faces[rows])
        areas, longer, agreed = (
            torch.zeros_like(self.areas[rows]).index_add_(0, patch, self.areas[rows] * share)
            for share in (1.0, long[rows], self.agreement[rows].mean(1))
        )
        lid[rows] |= ((agreed < AGREES * areas) & (longer > 0.5 * areas))[patch]
        return self.faces[~lid]


def _side_by_side(faces: Tensor) -> Tensor:
    """Which patch (t,) of triangles (t, 3) joined by edges each belongs to."""
    edges = torch.cat([faces, faces.roll(-1, 1)], 1).reshape(-1, 2, 3).transpose(1, 2).reshape(-1, 2)
    _, edge = torch.unique(edges.sort(1).values, dim=0, return_inverse=True)
    which = torch.arange(len(faces), device=faces.device).repeat_interleave(3)
    first = first_of_each(edge, len(faces) * 3)
    return components(len(faces), which, which[first[edge]])


def _best(cloud: PointCloud, fitted: NeuralCloud, dropped: Tensor) -> _Triangles | None:
    """Triangles by the normals as they were given, or turned as the fits say, where these are clearly better.

    Fits put right what was flipped, but may take one side of a thin part for the other. None if too many samples do
    not bear the triangles out.
    """
    points, normals = cloud._unique, cloud._normals
    found = _Triangles.of(points, normals)
    turned = ~dropped & (dot(normals, fitted._normals) < 0)
    if found is not None and bool(turned.any()):
        other = _Triangles.of(points, torch.where(turned[:, None], -normals, normals))
        found = other if other is not None and other.doubt < CLEARLY * found.doubt else found
    return None if found is None or found.doubt > DOUBT else found


def _rough(points: Tensor, normals: Tensor) -> bool:
    """Whether neighbours lie off the arcs that their normals make between them, as noise puts them.

    Over neighbours a distance d apart with normals n and m, |d . (n + m)| / (|d| |n + m|) is 0 on circles. Where a
    clean surface is rough itself, normals turn from one to the next, too, by |n - m|. Medians of both. Whether fits
    call a cloud noisy does not tell: they err where it is uneven.
    """
    near, _ = k_nearest(points, min(SIDE_BY_SIDE + 1, len(points)))
    offset, other = points[near[:, 1:]] - points[:, None], normals[near[:, 1:]]
    one_sheet = dot(other, normals[:, None]) > AGREES
    slope = dot(unit(offset), unit(other + normals[:, None])).abs()[one_sheet].median()
    turn = (other - normals[:, None]).norm(dim=-1)[one_sheet].median()
    return float(slope) > NOISY and float(slope) > TURNING * float(turn)


def _expected(fitted: NeuralCloud) -> float:
    """The error that fits expect of themselves over that of chords between neighbours, both in the mean over the area.

    The arc over a chord d from a sample with normal n to a neighbour is |d . n| / 4 high in the middle. On flat faces
    there are none, and edges decide.
    """
    cloud, areas = fitted.fit.cloud, fitted.spacing**2
    near = fitted.fit.near[:, 1 : CHORDS + 1]
    across = dot(cloud.points[near] - cloud.points[:, None], cloud.normals[:, None]).abs() / 4
    one_sheet = dot(cloud.normals[near], cloud.normals[:, None]) > AGREES
    height = torch.where(one_sheet, across, 0.0).amax(1)
    return float((areas * fitted.expected_error).sum() / (areas * height).sum().clamp_min(1e-300))


def _elsewhere(fitted: NeuralCloud, x: Tensor, far: Tensor) -> Tensor:
    """Whether places x (n, 3) are farther than far (n,) from the fitted surface, or beyond its rims."""
    feet = fitted.closest_points(x)
    offset = x - feet.points
    away = dot(offset, offset).sqrt() > far
    return away if feet.beyond is None else away | feet.beyond
