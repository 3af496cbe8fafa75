"""Cut cells of a zero set phi = 0: by the signs of phi at the corners, without closest points.

The search for crossed cells starts from cells that contain a sample and goes on to their neighbours, so that phi is
evaluated near the surface only. Only the sign of phi counts: phi need not be a distance. Vertices of the pieces are
roots of phi on the edges of the lattice's tetrahedra. The middle of an edge of a piece is that of the arc suggested by
the gradients at its ends, moved to phi = 0. Where parts are thinner than the cells, the cells are cut on a lattice 2 or
4 times finer. The geometry is then that of the finer lattice, and the unknowns stay those of the given one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lamina.geometry.lattice import Lattice
from lamina.geometry.tetrahedra import Pieces, arched_middle, clip_to_box, cut_tetrahedra, triangle_edges
from lamina.geometry.triangles import dot, unit
from lamina.grid.cut_surface import CutSurface
from lamina.grid.interface_curves import NO_CURVES, InterfaceCurves
from lamina.grid.pieces import (
    MAX_TURNING_AREA_SHARE,
    CurvedPieces,
    cut_resolving_thin_parts,
    cut_surface_of_pieces,
    turning_area_share,
    turns_too_much,
)
from lamina.shapes import Bool, Float, shaped
from lamina.surfaces.base import Surface
from lamina.surfaces.implicit import Implicit
from lamina.surfaces.zero_set import (
    CrossedCells,
    Function,
    connected_crossed_cells,
    gradient_of,
    last_newton_step,
    roots,
    value_and_gradient,
    values,
)

# Largest number of steps of the secant method that moves a point to phi = 0. Where phi is nearly linear 2 or 3 are
# enough; points that have not arrived after 6 are taken where they were. Chosen by trial.
MAX_SECANT_STEPS = 6
# A secant step of less than this times the reach is the last. The next one would be far smaller still.
LAST_SECANT_STEP = 1e-3
# The middle of an edge moves to phi = 0 by at most this times the length of the edge. A smooth surface is closer to the
# arc; beyond that another sheet may be met. Chosen by trial.
MAX_MOVE_OF_MIDDLE = 0.25
# How many times a triangle at a crease is split into four. If cells are cut 2 times finer it is split once less, and if
# 4 times finer not at all. Chosen by trial.
MAX_CREASE_SPLITS = 2


def cut_level_set(
    surface: Implicit,
    lattice: Lattice,
    sheets: bool = True,
    curves: InterfaceCurves = NO_CURVES,
    part: Surface | None = None,
    degree: int = 1,
) -> CutSurface:
    """Cut the zero set of surface.phi. part: the part of the surface that curves leave, if they cut something off."""

    def cut(refinement: int) -> CutSurface | None:
        pieces = level_pieces(surface, lattice, refinement, degree)
        return None if pieces is None else cut_surface_of_pieces(pieces, lattice, surface, sheets, curves, degree)

    return cut_resolving_thin_parts(part or surface, lattice, cut)


def level_pieces(surface: Implicit, lattice: Lattice, refinement: int, degree: int = 1) -> CurvedPieces | None:
    """Pieces of the zero set in the cells of the lattice, cut on one `refinement` times finer; None if there are none.

    All pieces are halved if the surface turns too much for pieces of their size in more than MAX_TURNING_AREA_SHARE of
    its area.
    """
    phi, box = surface.phi, surface.box
    fine = Lattice(lattice.origin, lattice.spacing / refinement)
    seeds = torch.unique(torch.floor((surface.points - fine.origin) / fine.spacing).long(), dim=0)
    crossed = connected_crossed_cells(phi, fine, box, seeds)
    if not len(crossed.cell):
        return None
    flat = cut_tetrahedra(crossed.corner, crossed.value)
    vertex = _vertices(surface, crossed, flat)
    triangles, cell = flat.triangles, torch.div(crossed.cell, refinement, rounding_mode="floor")[flat.owner]
    on_side = torch.zeros_like(vertex, dtype=torch.bool)
    if surface.open:
        boxed = clip_to_box(triangles, vertex, box)
        used, triangles = torch.unique(boxed.triangles, return_inverse=True)
        cell, vertex, on_side = cell[boxed.source], boxed.vertices[used], boxed.on_side[used]
    points = _ZeroSetPoints.on(phi, vertex, on_side, surface.tracked and torch.is_grad_enabled())
    if surface.open:
        points = points.with_sides_on_zero(phi, fine.spacing)
    turned = turning_area_share(points.position[triangles], points.normal[triangles])
    if turned > MAX_TURNING_AREA_SHARE[degree].get(refinement, 1.0):
        return level_pieces(surface, lattice, 2 * refinement, degree)
    _, label = triangle_edges(triangles, len(vertex))
    curved = _curved(phi, points, triangles, label, cell, max(0, MAX_CREASE_SPLITS + 1 - refinement))
    return replace(curved, refinement=refinement)


@shaped
@dataclass(frozen=True)
class _ZeroSetPoints:
    """Points of the zero set."""

    position: Float[Tensor, "v 3"]
    gradient: Float[Tensor, "v 3"]  # of phi
    on_side: Bool[Tensor, "v 3"]  # the axes at right angles to the sides of the box that a point lies on
    tracked: bool  # whether positions carry the gradients of phi

    @classmethod
    def on(cls, phi: Function, position: Tensor, on_side: Tensor, tracked: bool) -> _ZeroSetPoints:
        gradient = gradient_of(phi, position) if tracked else value_and_gradient(phi, position)[1]
        return cls(position, gradient, on_side, tracked)

    @property
    def normal(self) -> Tensor:
        return unit(self.gradient)

    def followed_by(self, other: _ZeroSetPoints) -> _ZeroSetPoints:
        return _ZeroSetPoints(
            torch.cat([self.position, other.position]),
            torch.cat([self.gradient, other.gradient]),
            torch.cat([self.on_side, other.on_side]),
            self.tracked,
        )

    def on_rim(self, triangles: Tensor) -> Tensor:
        """Whether the edges (t, 3) of triangles lie in a side of the box."""
        on_side = self.on_side[triangles]
        return (on_side & on_side.roll(-1, 1)).any(-1)

    def with_sides_on_zero(self, phi: Function, reach: float) -> _ZeroSetPoints:
        """The same, with the points on sides of the box moved to phi = 0 within these sides."""
        rows = self.on_side.any(1).nonzero()[:, 0]
        along = unit(torch.where(self.on_side, 0.0, self.gradient))[rows]
        position = self.position.clone()
        slope = dot(self.gradient[rows], along)
        reaches = torch.full_like(slope, reach)
        position[rows] = _moved_to_zero(phi, position[rows], along, slope, reaches, tracked=self.tracked)
        return replace(self, position=position)

    def middles(self, phi: Function, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Middles (e, 3) of the arcs between points ends (e, 2), and the sides (e, 3) of the box that they lie on."""
        (p, q), (n, m) = self.position[ends].unbind(1), self.normal[ends].unbind(1)
        on_side = self.on_side[ends].all(1)
        middle, along = arched_middle(p, q, n, m)
        middle, along = torch.where(on_side, 0.5 * (p + q), middle), unit(torch.where(on_side, 0.0, along))
        slope = 0.5 * dot(self.gradient[ends].sum(1), along)
        reach = MAX_MOVE_OF_MIDDLE * dot(q - p, q - p).sqrt()
        middle = _moved_to_zero(phi, middle, along, slope, reach, otherwise=0.5 * (p + q), tracked=self.tracked)
        return middle, on_side


def _curved(
    phi: Function, points: _ZeroSetPoints, triangles: Tensor, label: Tensor, cell: Tensor, levels: int
) -> CurvedPieces:
    """Curved pieces over the triangles (t, 3) of points, with edges labelled (t, 3).

    A triangle at a crease, whose normals turn by more than a quadratic can follow, is split into four through the
    middles of its edges, up to `levels` times. Its neighbour need not be split, because both pass through the same
    three points of their common edge.
    """
    done: list[CurvedPieces] = []
    labels = int(label.max()) + 1
    flat = points.position[triangles]
    for level in range(levels + 1):
        ends, edge = triangle_edges(triangles, len(points.position))
        middle, on_side = points.middles(phi, ends)
        normal = points.normal[triangles]
        rough = turns_too_much(normal) & (level < levels)
        six = torch.cat([points.position[triangles], middle[edge]], 1)
        done.append(CurvedPieces(six, label, cell, normal.sum(1), points.on_rim(triangles), flat).take(~rough))
        if not bool(rough.any()):
            break
        corner, edge, label, cell = triangles[rough], edge[rough], label[rough], cell[rough].repeat(4, 1)
        used, local = torch.unique(edge, return_inverse=True)
        new = _ZeroSetPoints.on(phi, middle[used], on_side[used], points.tracked)
        between = local + len(points.position)
        points = points.followed_by(new)
        (a, b, c), (d, e, f), (ab, bc, ca) = corner.unbind(1), between.unbind(1), label.unbind(1)
        inner = labels + torch.arange(3 * len(corner), device=corner.device).reshape(3, -1)
        labels += 3 * len(corner)
        triangles = torch.cat([torch.stack(t, 1) for t in ((a, d, f), (d, b, e), (f, e, c), (d, e, f))])
        x, y, z = inner
        label = torch.cat([torch.stack(t, 1) for t in ((ab, x, ca), (ab, bc, y), (z, bc, ca), (y, z, x))])
        a, b, c = flat[rough].unbind(1)
        d, e, f = 0.5 * (a + b), 0.5 * (b + c), 0.5 * (c + a)
        flat = torch.cat([torch.stack(t, 1) for t in ((a, d, f), (d, b, e), (f, e, c), (d, e, f))])
    return CurvedPieces.join(done)


def _vertices(surface: Implicit, crossed: CrossedCells, flat: Pieces) -> Tensor:
    """The vertices (v, 3) of the pieces: roots of phi on edges of tetrahedra. Beyond the box phi is continued."""
    phi, box = surface.phi, surface.box

    def continued(p: Tensor) -> Tensor:
        return phi(torch.minimum(torch.maximum(p, box[0]), box[1]))

    (a, b), (fa, fb) = crossed.position[flat.ends].unbind(1), crossed.value[flat.ends].unbind(1)
    found = roots(continued, a, b, fa, fb)
    return last_newton_step(continued, found, b - a) if surface.tracked and torch.is_grad_enabled() else found


def _moved_to_zero(
    phi: Function,
    x: Tensor,
    along: Tensor,
    slope: Tensor,
    reach: Tensor,
    otherwise: Tensor | None = None,
    tracked: bool = False,
) -> Tensor:
    """x (n, 3) moved along unit directions to phi = 0 by the secant method.

    slope (n,): a first estimate of the derivative of phi along the directions. Where steps lead farther than reach (n,)
    or do not converge, the result is `otherwise` (n, 3), or x if that is not given. tracked: whether the result carries
    gradients.
    """
    fallback = x if otherwise is None else otherwise
    if tracked:
        with torch.no_grad():
            at, good = _secants(phi, x, along, slope, reach)
        moved = last_newton_step(phi, x + (at * good)[:, None] * along, along)
    else:
        at, good = _secants(phi, x, along, slope, reach)
        moved = x + (at * good)[:, None] * along
    return torch.where(good[:, None], moved, fallback)


def _secants(phi: Function, x: Tensor, along: Tensor, slope: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """How far (n,) x has to move along the directions to phi = 0, and whether (n,) that was found."""
    value, there = values(phi, x), torch.zeros_like(slope)
    rows = torch.arange(len(x), device=x.device)
    step = torch.nan_to_num(-value / slope)
    for _ in range(MAX_SECANT_STEPS):
        there[rows] += step
        open_ = (step.abs() > LAST_SECANT_STEP * reach[rows]) & (there[rows].abs() <= reach[rows])
        rows, step, value, slope = rows[open_], step[open_], value[open_], slope[open_]
        if not len(rows):
            break
        new = values(phi, x[rows] + there[rows, None] * along[rows])
        secant = (new - value) / step
        slope = torch.where(secant * slope > 0, secant, slope)
        value, step = new, torch.nan_to_num(-new / slope)
    there[rows] = torch.inf
    good = there.abs() <= reach
    return torch.where(good, there, 0.0), good
