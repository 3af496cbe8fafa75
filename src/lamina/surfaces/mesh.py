"""Triangle meshes of any kind: open or closed, non-manifold, with degenerate faces, in several parts."""

from __future__ import annotations

from math import isfinite
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.fits.curvature import SurfaceFeatures, from_samples
from lamina.geometry.lattice import Lattice
from lamina.geometry.triangles import corner_angles, dot, triangle_areas, triangle_normals, unit, vertex_areas
from lamina.linear.graph import components
from lamina.linear.operator import SparseOperator, sparse_rows
from lamina.search.face_orientation import agreeing_sides
from lamina.search.nearest import Nearest
from lamina.surfaces.base import ClosestPoints, NearNodes, Surface
from lamina.surfaces.denoise import denoise

# Triangles longer than this share of the extent are cut into pieces for the search tree, whose bounding balls would
# otherwise be large. Half makes up to four times as many pieces of large triangles, double makes the search slower.
MAX_PIECE_OVER_EXTENT = 1 / 48
# A foot lies on an edge if its distance from the edge is at most this share of the edge's length. In float64 that is
# far above rounding, so half or double makes no difference.
EDGE_TOLERANCE = 1e-9
# A face has no area if twice its area is at most this share of its longest edge squared: its normal is then rounding.
MAX_FLAT_AREA_RATIO = 1e-12


class Mesh(Surface):
    """A triangle mesh, which may be open, closed, non-manifold, degenerate, or in several parts.

    Closest points are exact. Faces without area and duplicate faces are ignored. Unused vertices stay in `points` and
    get the value at their closest point. Two faces are in one component if a chain of shared edges connects them,
    where vertices at the same position count as one. No flux passes where parts touch in a single point.

    Parameters
    ----------
    V : Tensor or array_like
        Vertices (n, 3). If they require gradients, everything that is computed on the mesh has them.
    F : Tensor or array_like
        Triangles (m, 3), the numbers of their vertices.
    name : str, default "mesh"
        What reports call the mesh.

    Raises
    ------
    InputError
        If the arrays have wrong shapes or values, or if no triangle has an area.

    Examples
    --------
    >>> import lamina
    >>> lamina.Mesh([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
    Mesh 'mesh' (mesh): 4 points, 4 faces, 1 component, extent 1 x 1 x 1
    """

    representation = "mesh"
    faceted = True
    sharp = True

    def __init__(self, V, F, *, name: str = "mesh"):
        super().__init__(name)
        vertices, faces = _checked(V, F)
        self.tracked = isinstance(V, Tensor) and V.requires_grad
        self._given = V if self.tracked else None
        kept = self._usable_faces(vertices, faces)
        self.points, self.faces = vertices, kept
        edge, first, second, self.same_vertex, self.full_angle, self.rim_edges = _face_adjacency(vertices, kept)
        component = components(len(kept), first, second)
        self._note_sides(self.same_vertex[kept])
        self.shared_edge, self.shared_first, self.shared_second = edge, first, second
        corners = vertices[kept]
        normals = triangle_normals(corners)
        self.areas = vertex_areas(vertices, kept)
        self.normals = _vertex_normals(vertices, kept, normals)
        self.component = torch.zeros(len(vertices), dtype=torch.int64)
        self.component[kept.reshape(-1)] = component.repeat_interleave(3)
        used = corners.reshape(-1, 3)
        extent = float((used.amax(0) - used.amin(0)).max())
        self.piece, self.piece_face = _cut_long(corners, extent * MAX_PIECE_OVER_EXTENT)
        self.face_normals, self.face_component = normals, component
        self._tree: Nearest | None = None
        self.own_points = vertices.clone()
        self.own_face = torch.full((len(vertices),), -1)
        self.own_face[kept.reshape(-1)] = torch.arange(len(kept)).repeat_interleave(3)
        unused = self.own_face < 0
        if unused.any():
            self.notes.append(
                f"{int(unused.sum())} vertices belong to no face; they get the value at their closest point."
            )
            foot = self.closest_points(vertices[unused])
            self.normals[unused], self.component[unused] = foot.normals, foot.component
            self.own_points[unused], self.own_face[unused] = foot.points, cast(Tensor, foot.face)

    @property
    def positions(self) -> Tensor:
        return self.points if self._given is None or not torch.is_grad_enabled() else self._given.to(self.points)

    def _usable_faces(self, vertices: Tensor, faces: Tensor) -> Tensor:
        corners = vertices[faces]
        edges = torch.stack([corners[:, i] - corners[:, i - 1] for i in range(3)], 1)
        longest = dot(edges, edges).amax(1)
        flat = 2 * triangle_areas(corners) <= MAX_FLAT_AREA_RATIO * longest
        if flat.all():
            raise InputError(
                f"The mesh has {len(faces)} faces and no area; expected triangles with area: "
                "check the file or its units."
            )
        # A face that repeats another may have vertices of its own at the same positions.
        places, same = np.unique(vertices.numpy(), axis=0, return_inverse=True)
        same = same.reshape(-1)
        if len(places) < len(vertices):
            self.notes.append(
                f"{len(vertices) - len(places)} of {len(vertices)} vertices repeat the place of another; faces are "
                "joined there, and every vertex keeps its own row."
            )
        _, first = np.unique(np.sort(same[faces.numpy()], 1), axis=0, return_index=True)
        unique = torch.zeros(len(faces), dtype=torch.bool)
        unique[torch.from_numpy(first)] = True
        if flat.any():
            count = int(flat.sum())
            self.notes.append(
                "1 face has no area and was ignored." if count == 1 else f"{count} faces have no area and were ignored."
            )
        if not unique.all():
            twice = int((~unique).sum())
            self.notes.append(
                "1 duplicate face was ignored." if twice == 1 else f"{twice} duplicate faces were ignored."
            )
        return faces[unique & ~flat]

    def _note_sides(self, faces: Tensor) -> None:
        """Note how many of the faces (m, 3) point to the other side; vertices at one position have one number here."""
        sides = agreeing_sides(faces)
        pieces = len(sides.one_sided)
        turned = torch.bincount(sides.piece[sides.sign < 0], minlength=pieces)
        turned = torch.minimum(turned, torch.bincount(sides.piece, minlength=pieces) - turned)
        count, strips = int(turned[~sides.one_sided].sum()), int(sides.one_sided.sum())
        if count:
            self.notes.append(
                f"{count} of {len(faces)} faces look to the other side than their neighbours; solutions do not depend "
                "on it."
            )
        if strips:
            parts = "1 part has" if strips == 1 else f"{strips} parts have"
            self.notes.append(f"{parts} but one side, as a Moebius strip; solutions do not depend on it.")

    @property
    def face_adjacency(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ends (k, 2, 3) of the edges where two faces meet, and the two faces (k,), (k,) of each."""
        return self.points[self.shared_edge], self.shared_first, self.shared_second

    @property
    def cone_ratio(self) -> Tensor:
        """2 pi, or pi on a rim, over the angle (n,) that the faces make around each vertex.

        It is 1 where the surface could be laid flat, less at a saddle, more at a tip, and infinite where more than two
        faces meet in an edge."""
        assert self.faces is not None
        angle = corner_angles(self.positions[self.faces])
        total = torch.zeros_like(self.points[:, 0])
        total.index_add_(0, self.same_vertex[self.faces].reshape(-1), angle.reshape(-1))
        return self.full_angle / total[self.same_vertex]

    def own_feet(self) -> ClosestPoints:
        points = self.own_points
        if self.tracked and torch.is_grad_enabled():
            points = self._attached(self.positions, self.own_face, points)
        return ClosestPoints(points, self.normals, self.component, self.own_face)

    def own_areas(self) -> Tensor:
        assert self.faces is not None
        return vertex_areas(self.positions, self.faces) if self.tracked else self.areas

    def _find_features(self) -> SurfaceFeatures:
        # On uneven meshes the mean of face normals has an error of first order in the spacing: only positions are used.
        feet = self.own_feet()
        return from_samples(feet.points, feet.normals, feet.component, slopes=False)

    @property
    def bounds(self) -> Tensor:
        corners = self.piece.reshape(-1, 3)
        return torch.stack([corners.amin(0), corners.amax(0)])

    @property
    def component_count(self) -> int:
        return int(self.face_component.max()) + 1

    @property
    def open(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return bool(self.rim_edges.any())

    @property
    def tree(self) -> Nearest:
        if self._tree is None:
            self._tree = Nearest(self.piece, self.face_component[self.piece_face])
        return self._tree

    def closest_points(self, x: Tensor) -> ClosestPoints:
        piece, point = self.tree.to_points(x.detach())
        return self._feet(x, piece, point)

    def nodes_near(self, lattice: Lattice, radius: float) -> NearNodes:
        ijk, _, piece, point = self.tree.to_nodes(lattice, radius)
        return NearNodes(ijk, self._feet(lattice.position(ijk), piece, point))

    def interpolation(self, x: Tensor, face: Tensor | None = None) -> SparseOperator:
        """Linear on each triangle."""
        assert self.faces is not None
        point = x
        if face is None:
            feet = self.closest_points(x)
            assert feet.face is not None
            point, face = feet.points, feet.face
        face = self.faces[face]
        weights = _barycentric(self.positions[face], point)
        return sparse_rows(face.to(torch.int32), weights, len(self.points))

    def _feet(self, x: Tensor, piece: Tensor, point: Tensor) -> ClosestPoints:
        face = self.piece_face[piece]
        beyond = self._on_rim(point, face) if self.open else None
        if torch.is_grad_enabled() and (self.tracked or x.requires_grad):
            point = self._attached(x, face, point)
        return ClosestPoints(point, self.face_normals[face], self.face_component[face], face, beyond)

    def _attached(self, x: Tensor, face: Tensor, point: Tensor) -> Tensor:
        """The feet point (n, 3) of x (n, 3) on faces (n,) with the gradients of x and of the vertices.

        A foot inside its face moves as the foot on the plane of the face, a foot on an edge as that on the line of the
        edge, and a foot at a vertex as the vertex.
        """
        assert self.faces is not None
        corners, fixed = self.positions[self.faces[face]], self.points[self.faces[face]]
        weightless = _barycentric(fixed, point) <= EDGE_TOLERANCE  # (n, 3) corners whose weight in the foot is zero
        count = weightless.sum(1)
        a, b, c = corners.unbind(1)
        normal = torch.linalg.cross(b - a, c - a)
        plane = x - (dot(x - a, normal) / dot(normal, normal))[:, None] * normal
        # Corners with a weight come first: of a foot on an edge these are the two ends of the edge.
        order = torch.argsort(weightless.to(torch.int8), dim=1, stable=True)
        p, q = (corners.gather(1, order[:, i, None, None].expand(-1, 1, 3))[:, 0] for i in (0, 1))
        line = p + (dot(x - p, q - p) / dot(q - p, q - p))[:, None] * (q - p)
        return torch.where((count == 0)[:, None], plane, torch.where((count == 1)[:, None], line, p))

    def _on_rim(self, point: Tensor, face: Tensor) -> Tensor:
        """Whether points (n, 3) on faces (n,) lie on an edge that has no other face, or at an end of such an edge."""
        assert self.faces is not None
        at_rim = torch.zeros_like(self.points[:, 0], dtype=torch.bool)
        edges = torch.stack([self.faces, self.faces.roll(-1, 1)], -1)[self.rim_edges]
        at_rim[self.same_vertex[edges]] = True
        at_corner = at_rim[self.same_vertex[self.faces]]  # (f, 3)
        found = torch.zeros_like(face, dtype=torch.bool)
        rows = at_corner[face].any(1).nonzero()[:, 0]
        corners, face = self.points[self.faces[face[rows]]], face[rows]
        for side in range(3):
            along, arm = corners[:, (side + 1) % 3] - corners[:, side], point[rows] - corners[:, side]
            across = torch.linalg.cross(arm, along)
            length = dot(along, along)
            near = EDGE_TOLERANCE**2 * length
            found[rows] |= self.rim_edges[face, side] & (dot(across, across) <= near * length)
            found[rows] |= at_corner[face, side] & (dot(arm, arm) <= near)
        return found

    def denoised(self, noise: float | None = None) -> Mesh:
        """The mesh without noise on its vertices: same faces, same order of vertices, and a note of what was done.

        noise: standard deviation of the noise on each coordinate, the same everywhere; by default it is found from the
        mesh. Noise that was found is ignored if it is less than 6 % of the median edge or than detail of the shape at
        the scale of the edges. Then, and with noise=0, the mesh itself is returned. The new vertices minimise

            |x - x0|^2 / noise^2 + sum_i |(D x)_i|^2 / s_i^2,

        where D is a difference of each vertex with its neighbours and s_i^2 its local variance, found from the mesh by
        empirical Bayes (MacKay 1992; Tipping 2001), so that creases and detail are smoothed less. That is done for
        positions and then for heights along normals, where s is such that the area is that of the surface without
        noise: see `lamina.surfaces.denoise`. Rims and edges of more than two faces are smoothed along themselves; their
        ends and corners stay, as vertices of no face do. The result has no gradients with respect to the vertices.
        Raises InputError for a noise that is no finite number >= 0.
        """
        if noise is not None and not (isinstance(noise, int | float) and isfinite(noise) and noise >= 0):
            raise InputError(f"noise must be a finite number >= 0, or None to find it from the mesh, got {noise!r}.")
        assert self.faces is not None
        same = self.same_vertex.cpu().numpy()
        points, faces = self.points.detach().cpu().double().numpy(), same[self.faces.cpu().numpy()]
        found = denoise(points, faces, noise)
        if found.moved == 0:
            return self
        # Vertices at one position get one new position.
        moved = torch.from_numpy(found.vertices[same])
        made = Mesh(moved.to(self.points), self.faces, name=self.name)
        what = "was found" if noise is None else "was given"
        made.notes = [
            *self.notes,
            *(note for note in made.notes if note not in self.notes),
            f"Noise of {found.noise:.3g} on the vertices {what}; they were moved by {found.moved:.3g} (RMS).",
        ]
        made.facts = dict(self.facts)
        return made

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        moved = super().to(device, dtype)
        moved._tree = None
        return moved


def _barycentric(corners: Tensor, x: Tensor) -> Tensor:
    """Coordinates (n, 3) of points x (n, 3) in triangles (n, 3, 3)."""
    a, b, c = corners.unbind(1)
    area = torch.linalg.cross(b - a, c - a)
    total = dot(area, area)
    v = dot(torch.linalg.cross(x - a, c - a), area) / total
    w = dot(torch.linalg.cross(b - a, x - a), area) / total
    return torch.stack([1 - v - w, v, w], 1)


def _checked(V, F) -> tuple[Tensor, Tensor]:
    vertices = torch.as_tensor(np.asarray(V) if not isinstance(V, Tensor) else V)
    faces = torch.as_tensor(np.asarray(F) if not isinstance(F, Tensor) else F)
    if vertices.ndim != 2 or vertices.shape[1] != 3:
        raise InputError(f"Vertices must have shape (n, 3), got {tuple(vertices.shape)}.")
    if faces.numel() == 0:
        raise InputError(
            f"The mesh has {len(vertices)} vertices and no faces; expected triangles: use PointCloud for bare points."
        )
    if faces.ndim != 2 or faces.shape[1] != 3 or faces.is_floating_point():
        raise InputError(
            f"Faces must be integers of shape (m, 3), got {faces.dtype} of shape {tuple(faces.shape)}; "
            "triangulate polygons first."
        )
    if not vertices.is_floating_point():
        vertices = vertices.double()
    faces = faces.long()
    if not torch.isfinite(vertices).all():
        bad = int((~torch.isfinite(vertices).all(1)).sum())
        raise InputError(f"{bad} of {len(vertices)} vertices have NaN or infinite coordinates; remove or repair them.")
    if int(faces.min()) < 0 or int(faces.max()) >= len(vertices):
        raise InputError(
            f"Face indices run from {int(faces.min())} to {int(faces.max())} but there are {len(vertices)} vertices "
            "(0 to n - 1 expected); check for 1-based indices."
        )
    return vertices.detach().cpu(), faces.detach().cpu()


def _face_adjacency(vertices: Tensor, faces: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Edges (k, 2) where two faces meet and those faces (k,), (k,), coincident vertices taken as one.

    Where more than two faces meet in an edge, each is paired with the next. Then come the first vertex (n,) at each
    vertex's position, and the angle (n,) that a flat surface has around it: 2 pi, pi on a rim, infinite at an edge of
    more than two faces. Last, which edges (m, 3) of the faces have no other face; edge i runs from corner i to i + 1.
    """
    _, first, same = np.unique(vertices.numpy(), axis=0, return_index=True, return_inverse=True)
    f = same.reshape(-1)[faces.numpy()]
    edges = np.sort(np.concatenate([f[:, [0, 1]], f[:, [1, 2]], f[:, [2, 0]]]), 1)
    owner = np.tile(np.arange(len(f)), 3)
    key = edges[:, 0] * (int(f.max()) + 1) + edges[:, 1]
    order = np.argsort(key, kind="stable")
    as_next = np.diff(key[order]) == 0
    meet = np.flatnonzero(as_next)
    a, b = order[meet], order[meet + 1]
    before, after = np.concatenate([[False], as_next]), np.concatenate([as_next, [False]])
    alone = np.zeros(len(key), dtype=bool)
    alone[order[~before & ~after]] = True
    angle = np.full(len(first), 2 * np.pi)
    angle[edges[order[~before & ~after]]] = np.pi
    angle[edges[order[before & after]]] = np.inf
    same = same.reshape(-1)
    return (
        torch.from_numpy(first[edges[a]]),
        torch.from_numpy(owner[a]),
        torch.from_numpy(owner[b]),
        torch.from_numpy(first[same]),
        torch.from_numpy(angle[same]).to(vertices.dtype),
        torch.from_numpy(alone.reshape(3, -1).T.copy()),
    )


def _vertex_normals(vertices: Tensor, faces: Tensor, normals: Tensor) -> Tensor:
    """Area-weighted mean of the face normals around each vertex."""
    weighted = normals * triangle_areas(vertices[faces])[:, None]
    total = torch.zeros_like(vertices).index_add_(0, faces.reshape(-1), weighted.repeat_interleave(3, 0))
    return unit(total)


def _cut_long(corners: Tensor, longest: float) -> tuple[Tensor, Tensor]:
    """Bisect triangles (m, 3, 3) at their longest edges until none is longer than `longest`.

    Returns the pieces and the triangle that each came from.
    """
    origin = torch.arange(len(corners))
    done, done_origin = [], []
    while len(corners):
        edges = corners.roll(-1, 1) - corners  # edge i runs from corner i to corner i + 1
        length, which = dot(edges, edges).max(1)
        long = length > longest**2
        done.append(corners[~long])
        done_origin.append(origin[~long])
        corners, origin, which = corners[long], origin[long], which[long]
        row = torch.arange(len(corners))
        a, b, c = (corners[row, (which + i) % 3] for i in range(3))
        middle = 0.5 * (a + b)
        corners = torch.cat([torch.stack([a, middle, c], 1), torch.stack([middle, b, c], 1)])
        origin = torch.cat([origin, origin])
    return torch.cat(done), torch.cat(done_origin)
