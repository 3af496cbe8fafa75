"""The distortion of a map of a mesh to the sphere, and moving the vertices of the map to lower it.

The symmetric Dirichlet energy of a map with Jacobian J is the mean over the mesh of

    (|J|^2 + |J^-1|^2) / 4,

with lengths scaled so that both surfaces have the same area. It is 1 for an isometry and infinite where a triangle
folds over (Smith and Schaefer, 2015, "Bijective parameterization with free boundaries"). Vertices without a common edge
are moved at the same time. Each is moved downhill, and only if that lowers the energy of the triangles around it, as in
Praun and Hoppe (2003), "Spherical parametrization and remeshing". So no triangle ever folds, and parts that are too
small by any factor grow by a part of their size in every sweep.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lamina.geometry.triangles import dot, unit

# All constants were chosen by trial.
MAX_STEP_HALVINGS = 6  # of a step that does not lower the energy; then the vertex stays until the next sweep
# Lengths of a step, in units of the smallest of the longest edges of the triangles around the vertex.
FIRST_STEP, LONGEST_STEP, SHORTEST_STEP = 0.1, 0.5, 1e-4
STEP_GROWTH = 1.5  # of the length to try first, after a step that lowered the energy
MAX_SWEEPS = 300  # a sweep tries to move each vertex once
SWEEPS_PER_CHECK = 10  # the energy of the whole map is computed after this number of sweeps
MIN_ENERGY_DECREASE = 0.01  # the sweeps end when the energy falls by less than this part of it between two checks


class SymmetricDirichlet:
    """The symmetric Dirichlet energy of maps of a mesh to the unit sphere.

    vertices (n, 3), faces (m, 3) int64: the mesh; its faces look outwards.
    """

    def __init__(self, vertices: Tensor, faces: Tensor) -> None:
        self.faces = faces
        *self.gram, self.determinant = _gram(*vertices[faces].unbind(1))  # of two edges of each triangle
        area = self.determinant.sqrt()
        self.share = area / area.sum()  # of each triangle in the area of the mesh
        self.scale = float(area.sum()) / (8 * math.pi)  # area of the mesh over that of the sphere

    def of_faces(self, rows: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """The contributions (k,) to the energy of the faces rows (k,), whose corners are mapped to a, b, c (k, 3).

        With the Gram matrices G, H of two edges before and after, |J|^2 = tr(G^-1 H) and
        |J^-1|^2 = |J|^2 det G / det H.
        """
        g11, g12, g22 = (g[rows] for g in self.gram)
        h11, h12, h22, H = _gram(a, b, c)
        G = self.determinant[rows]
        square = self.scale * (g22 * h11 - 2 * g12 * h12 + g11 * h22) / G
        energy = self.share[rows] * square * (1 + G / (self.scale**2 * H)) / 4
        return torch.where((looks_outwards(a, b, c) > 0) & (H > 0) & (G > 0), energy, torch.inf)

    def of_map(self, s: Tensor) -> float:
        """The energy of the map to unit vectors s (n, 3)."""
        every = torch.arange(len(self.faces))
        return float(self.of_faces(every, *s[self.faces].unbind(1)).sum())


def looks_outwards(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Six times the signed volumes (k,) of the tetrahedra 0abc; positive if the triangles look outwards.

    They are computed from differences, which keeps all digits for small triangles.
    """
    return dot(a, torch.linalg.cross(b - a, c - a))


def with_lower_energy(energy: SymmetricDirichlet, s: Tensor, sweeps: int = MAX_SWEEPS) -> Tensor:
    """A map to unit vectors (n, 3) of lower energy, from a map s (n, 3) that folds no triangle."""
    groups = [VertexGroup.of(energy.faces, members) for members in independent_sets(energy.faces, len(s))]
    step = torch.full_like(s[:, 0], FIRST_STEP)
    s, before = s.clone(), math.inf
    for sweep in range(sweeps):
        for group in groups:
            _move(energy, s, step, group)
        if sweep % SWEEPS_PER_CHECK == SWEEPS_PER_CHECK - 1:
            now = energy.of_map(s)
            if now > (1 - MIN_ENERGY_DECREASE) * before:
                break
            before = now
    return s


@dataclass(frozen=True)
class VertexGroup:
    """Vertices that share no edge, and the triangles around them."""

    vertices: Tensor  # (k,) int64
    rows: Tensor  # (r,) int64, triangles with one of the vertices
    corner: Tensor  # (r, 3) bool, which corner of the triangle that vertex is
    owner: Tensor  # (r,) int64, the number of that vertex among the vertices

    @classmethod
    def of(cls, faces: Tensor, vertices: Tensor) -> VertexGroup:
        number = torch.full((int(faces.max()) + 1,), -1)
        number[vertices] = torch.arange(len(vertices))
        rows = (number[faces] >= 0).any(1).nonzero()[:, 0]
        numbers = number[faces[rows]]
        return cls(vertices, rows, numbers >= 0, numbers.amax(1))


def independent_sets(faces: Tensor, count: int) -> list[Tensor]:
    """The vertices 0 ... count - 1 in lists that contain no two neighbours: a greedy colouring."""
    neighbours: list[set[int]] = [set() for _ in range(count)]
    for a, b, c in faces.tolist():
        neighbours[a] |= {b, c}
        neighbours[b] |= {a, c}
        neighbours[c] |= {a, b}
    colour = [-1] * count
    for vertex, around in enumerate(neighbours):
        taken = {colour[other] for other in around}
        colour[vertex] = next(k for k in range(len(taken) + 1) if k not in taken)
    label = torch.tensor(colour)
    return [(label == k).nonzero()[:, 0] for k in range(int(label.max()) + 1)]


def _move(dirichlet: SymmetricDirichlet, s: Tensor, step: Tensor, group: VertexGroup) -> None:
    """Move the vertices of a group downhill; changes s (n, 3), and step (n,), the lengths to try first."""
    corners = s[dirichlet.faces[group.rows]]

    def around(x: Tensor) -> Tensor:
        """Energy of the triangles around each vertex of the group, moved to x."""
        moved = torch.where(group.corner[..., None], x[group.owner][:, None], corners)
        energy = dirichlet.of_faces(group.rows, *moved.unbind(1))
        return torch.zeros_like(x[:, 0]).index_add_(0, group.owner, energy)

    x = s[group.vertices].requires_grad_()
    with torch.enable_grad():
        energy = around(x)
        (slope,) = torch.autograd.grad(energy.sum(), x)
    x, energy = x.detach(), energy.detach()
    edges = corners - corners.roll(1, 1)
    size = dot(edges, edges).amax(1).sqrt()
    size = torch.full_like(energy, torch.inf).scatter_reduce_(0, group.owner, size, "amin")
    direction = -unit(slope - dot(slope, x)[:, None] * x) * size[:, None]
    best, length = x, step[group.vertices]
    lower = torch.zeros_like(energy, dtype=torch.bool)
    for _ in range(MAX_STEP_HALVINGS):
        trial = unit(x + length[:, None] * direction)
        better = (around(trial) < energy) & ~lower
        best = torch.where(better[:, None], trial, best)
        lower |= better
        if bool(lower.all()):
            break
        length = torch.where(lower, length, length / 2)
    s[group.vertices] = best
    step[group.vertices] = torch.where(lower, STEP_GROWTH * length, length).clamp(SHORTEST_STEP, LONGEST_STEP)


def _gram(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Entries 11, 12, 22 and the determinant, (k,) each, of the Gram matrix of u = b - a and v = c - a."""
    u, v = b - a, c - a
    across = torch.linalg.cross(u, v)  # |u x v|^2 is the determinant; it keeps all digits for slivers
    return dot(u, u), dot(u, v), dot(v, v), dot(across, across)
