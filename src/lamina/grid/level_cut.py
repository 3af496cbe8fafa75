"""Cut cells of a zero set: by the signs of the function at the corners, without closest points.

Cells are followed from those that hold a sample, so phi is evaluated near the surface only, and only its sign counts:
it need not be a distance. Vertices of the pieces are roots of phi on the edges of the lattice's tetrahedra; the middles
of their edges are those of the arcs that the gradients at the ends suggest, moved to phi = 0. Where parts are thinner
than the cells, these are cut on a lattice 2 or 4 times finer: the unknowns stay, the geometry is that of the finer one.
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
from lamina.grid.pieces import ROUGH, CurvedPieces, cut_from, cut_thin, turned_share, turns
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

SETTLE_STEPS = 6
CREASE_LEVELS = 2


def cut_level_set(
    surface: Implicit,
    lattice: Lattice,
    sheets: bool = True,
    curves: InterfaceCurves = NO_CURVES,
    part: Surface | None = None,
    degree: int = 1,
) -> CutSurface:
    """Cut the zero set of surface.phi; part: what is left of it, cut off by curves."""

    def cut(finer: int) -> CutSurface | None:
        pieces = level_pieces(surface, lattice, finer, degree)
        return None if pieces is None else cut_from(pieces, lattice, surface, sheets, curves, degree)

    return cut_thin(part or surface, lattice, cut)


def level_pieces(surface: Implicit, lattice: Lattice, finer: int, degree: int = 1) -> CurvedPieces | None:
    """Pieces of the zero set in the cells of the lattice, cut on one `finer` times finer; None if there are none.

    Where the surface turns too much to be followed by pieces of that size, in more of its area than functions of the
    degree bear, the pieces are halved.
    """
    phi, box = surface.phi, surface.box
    fine = Lattice(lattice.origin, lattice.spacing / finer)
    seeds = torch.unique(torch.floor((surface.points - fine.origin) / fine.spacing).long(), dim=0)
    crossed = connected_crossed_cells(phi, fine, box, seeds)
    if not len(crossed.cell):
        return None
    flat = cut_tetrahedra(crossed.corner, crossed.value)
    vertex = _vertices(surface, crossed, flat)
    triangles, cell = flat.triangles, torch.div(crossed.cell, finer, rounding_mode="floor")[flat.owner]
    held = torch.zeros_like(vertex, dtype=torch.bool)
    if surface.open:
        boxed = clip_to_box(triangles, vertex, box)
        used, triangles = torch.unique(boxed.triangles, return_inverse=True)
        cell, vertex, held = cell[boxed.source], boxed.vertices[used], boxed.on_side[used]
    points = _Points.on(phi, vertex, held, surface.tracked and torch.is_grad_enabled())
    if surface.open:
        points = points.settled(phi, fine.spacing)
    turned = turned_share(points.position[triangles], points.normal[triangles])
    if turned > ROUGH[degree].get(finer, 1.0):
        return level_pieces(surface, lattice, 2 * finer, degree)
    _, label = triangle_edges(triangles, len(vertex))
    curved = _curved(phi, points, triangles, label, cell, max(0, CREASE_LEVELS + 1 - finer))
    return replace(curved, finer=finer)


@dataclass(frozen=True)
class _Points:
    """Points of the zero set."""

    position: Tensor  # (v, 3)
    gradient: Tensor  # (v, 3) of phi
    held: Tensor  # (v, 3) bool, the axes along which a point lies on a side of the box
    tracked: bool  # whether they are to carry the gradients of phi

    @classmethod
    def on(cls, phi: Function, position: Tensor, held: Tensor, tracked: bool) -> _Points:
        gradient = gradient_of(phi, position) if tracked else value_and_gradient(phi, position)[1]
        return cls(position, gradient, held, tracked)

    @property
    def normal(self) -> Tensor:
        return unit(self.gradient)

    def followed_by(self, other: _Points) -> _Points:
        return _Points(
            torch.cat([self.position, other.position]),
            torch.cat([self.gradient, other.gradient]),
            torch.cat([self.held, other.held]),
            self.tracked,
        )

    def on_rim(self, triangles: Tensor) -> Tensor:
        """Whether the edges (t, 3) of triangles lie in a side of the box."""
        held = self.held[triangles]
        return (held & held.roll(-1, 1)).any(-1)

    def settled(self, phi: Function, reach: float) -> _Points:
        """Those on sides of the box moved to phi = 0 within them."""
        rows = self.held.any(1).nonzero()[:, 0]
        along = unit(torch.where(self.held, 0.0, self.gradient))[rows]
        position = self.position.clone()
        slope = dot(self.gradient[rows], along)
        reaches = torch.full_like(slope, reach)
        position[rows] = _settled(phi, position[rows], along, slope, reaches, tracked=self.tracked)
        return replace(self, position=position)

    def middles(self, phi: Function, ends: Tensor) -> tuple[Tensor, Tensor]:
        """Middles (e, 3) of the arcs between points ends (e, 2), and whether they are held."""
        (p, q), (n, m) = self.position[ends].unbind(1), self.normal[ends].unbind(1)
        held = self.held[ends].all(1)
        middle, along = arched_middle(p, q, n, m)
        middle, along = torch.where(held, 0.5 * (p + q), middle), unit(torch.where(held, 0.0, along))
        slope = 0.5 * dot(self.gradient[ends].sum(1), along)
        reach = 0.25 * dot(q - p, q - p).sqrt()
        middle = _settled(phi, middle, along, slope, reach, otherwise=0.5 * (p + q), tracked=self.tracked)
        return middle, held


def _curved(
    phi: Function, points: _Points, triangles: Tensor, label: Tensor, cell: Tensor, levels: int
) -> CurvedPieces:
    """Curved pieces over the triangles (t, 3) of points, with edges labelled (t, 3).

    A triangle whose normals turn by more than a quadratic can follow, at a crease, is split into four through the
    middles of its edges, up to `levels` times. Its neighbour need not be: both go through the same three points.
    """
    done: list[CurvedPieces] = []
    labels = int(label.max()) + 1
    flat = points.position[triangles]
    for level in range(levels + 1):
        ends, edge = triangle_edges(triangles, len(points.position))
        middle, held = points.middles(phi, ends)
        normal = points.normal[triangles]
        rough = turns(normal) & (level < levels)
        six = torch.cat([points.position[triangles], middle[edge]], 1)
        done.append(CurvedPieces(six, label, cell, normal.sum(1), points.on_rim(triangles), flat).take(~rough))
        if not bool(rough.any()):
            break
        corner, edge, label, cell = triangles[rough], edge[rough], label[rough], cell[rough].repeat(4, 1)
        used, local = torch.unique(edge, return_inverse=True)
        new = _Points.on(phi, middle[used], held[used], points.tracked)
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
    """Roots (v, 3) on the edges that the pieces' vertices lie on, of phi continued beyond the box."""
    phi, box = surface.phi, surface.box

    def continued(p: Tensor) -> Tensor:
        return phi(torch.minimum(torch.maximum(p, box[0]), box[1]))

    (a, b), (fa, fb) = crossed.position[flat.ends].unbind(1), crossed.value[flat.ends].unbind(1)
    found = roots(continued, a, b, fa, fb)
    return last_newton_step(continued, found, b - a) if surface.tracked and torch.is_grad_enabled() else found


def _settled(
    phi: Function,
    x: Tensor,
    along: Tensor,
    slope: Tensor,
    reach: Tensor,
    otherwise: Tensor | None = None,
    tracked: bool = False,
) -> Tensor:
    """x (n, 3) moved along unit directions to phi = 0 by the secant method, from a first slope of phi along them.

    A step of less than a thousandth of reach (n,) is the last. Where steps lead farther than reach, or do not come to
    an end, x, or what is to be taken otherwise. tracked: whether the result is to carry gradients.
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
    """How far (n,) to go along the directions, and where that is found."""
    value, there = values(phi, x), torch.zeros_like(slope)
    rows = torch.arange(len(x), device=x.device)
    step = torch.nan_to_num(-value / slope)
    for _ in range(SETTLE_STEPS):
        there[rows] += step
        open_ = (step.abs() > 1e-3 * reach[rows]) & (there[rows].abs() <= reach[rows])
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
