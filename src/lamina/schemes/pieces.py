"""From curved triangles, each in one cell of the lattice, to a cut surface.

Triangles of a cell that share edges are one sheet, an element; sheets of neighbouring cells are glued where an edge
lies in their common face. Integrals are taken over the six-node triangles by a three-point rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.geometry.lattice import Lattice
from lamina.geometry.neighbours import k_nearest
from lamina.geometry.triangles import dot, unit
from lamina.linear.graph import components, first_of_each
from lamina.quadrature import TRIANGLE_RULE, Quadrature
from lamina.schemes.cutsurface import CutSurface, mean_normals
from lamina.schemes.rim import Curved
from lamina.schemes.seams import NO_SEAMS, Parts, Seams, Sides, Units
from lamina.schemes.sheets import Elements, distinct_glue
from lamina.surfaces.base import ClosestPoints, Surface

MISSED, MISSING = 0.01, 0.01  # share of the samples far from their pieces, and of the area, with which to cut finer,
GAIN = 0.01  # provided that this part of the area is gained
TOO_MUCH = 0.05  # of the area: tunnels through thin parts add their walls
PARTED = 2e-3  # share of the samples on a part that came off its component; scraps have fewer
ROUGHER = 0.03  # of the area: what a finer lattice adds to a rough surface, joining its parts by chance
OTHER_SIDE = 4.0  # what it costs a sheet to lie on the other side of a seam
FINEST = 0.4  # of the distance between samples: pieces need not be smaller
FARTHEST = 4.0  # cells from a point of the surface to the pieces that speak for it, where it was too thin to be cut


@dataclass(frozen=True)
class CurvedPieces:
    """Curved triangles of a surface, each within a cell."""

    six: Tensor  # (t, 6, 3) corners, then the middles of edges 01, 12, 20
    edge: Tensor  # (t, 3) int64, number of the edge that each middle belongs to
    cell: Tensor  # (t, 3) int64
    outward: Tensor  # (t, 3) the side that normals look to
    rim: Tensor  # (t, 3) bool, which edges lie on a rim

    def take(self, rows: Tensor) -> CurvedPieces:
        return CurvedPieces(*(v[rows] for v in vars(self).values()))


def cut_from(
    pieces: CurvedPieces, lattice: Lattice, least: Tensor | float, sheets: bool, seams: Seams = NO_SEAMS
) -> CutSurface | None:
    """The cut surface of the pieces; connected parts of less area than `least`, one for all or (t,), are left out.

    None if nothing is left of it.
    """
    shape = Curved(pieces.six)
    parts, seam_sides = seams.split(shape.place, pieces.cell, pieces.outward, lattice)
    if not len(parts.source):
        return None
    quadrature = _on_curved(parts, shape, pieces.outward)
    units = Units.of(parts.source, parts.label, seams)
    element_of_unit, elements = _elements(pieces, units)
    area = quadrature.weights.detach().reshape(-1, 3).sum(1)
    component = elements.component[element_of_unit[units.of_part]]
    whole = area.new_zeros(int(component.max()) + 1).index_add_(0, component, area)
    real = whole[component] >= (least[parts.source] if isinstance(least, Tensor) else least)
    if not bool(real.all()):
        if not bool(real.any()):
            return None
        parts, quadrature = parts.take(real), quadrature.take(real.repeat_interleave(3))
        units = Units.of(parts.source, parts.label, seams)
        element_of_unit, elements = _elements(pieces, units)
    element = element_of_unit[units.of_part].repeat_interleave(3)
    locator = _locator(elements, quadrature, lattice, element)
    if seams:
        label = torch.empty_like(elements.cell[:, 0])
        label[element_of_unit] = units.label
        locator = replace(locator, lattice=lattice, seams=seams, label=label)
    sides = Sides.join([seams.trimmed(_own_rim(pieces), shape.place), seam_sides], pieces.six)
    find = units.finder(seams, pieces.cell, pieces.outward, lattice, element_of_unit)
    return CutSurface.build(lattice, elements, quadrature, element, locator, sheets, sides, shape, find)


def _own_rim(pieces: CurvedPieces) -> Sides:
    source, edge = pieces.rim.nonzero().unbind(1)
    corner = torch.eye(3, dtype=pieces.six.dtype, device=source.device)
    ends = torch.stack([corner[edge], corner[(edge + 1) % 3], corner[(edge + 2) % 3]], 1)
    return Sides(source, ends, torch.full_like(source, -1))


def cut_thin(surface: Surface, lattice: Lattice, cut: Callable[[int], CutSurface | None]) -> CutSurface:
    """cut(n), the surface cut on a lattice n times finer, for the smallest n of 1, 2, 4 that misses no thin parts.

    They are missed where samples are far from every piece that faces their way, where area is missing, unless a finer
    lattice finds no more either, where necks come apart, and where tunnels from sheet to sheet join components or add
    area.
    """
    found, area, total = None, 0.0, float(surface.areas.sum())
    torn: CutSurface | None = None  # with nothing wrong but that it comes apart
    apart = math.sqrt(total / len(surface.points))
    for finer in (1, 2, 4):
        if found is not None and not surface.exact and lattice.spacing < FINEST * finer * apart:
            break  # samples say nothing about what lies between them
        before, found = area, cut(finer) or found
        if found is None:
            continue
        area = found.quadrature.area
        whole = (1 - MISSING) * total <= area <= (1 + TOO_MUCH) * total or abs(area - before) <= GAIN * total
        missed, parted, joined = _missed(surface, found)
        # Areas of a cloud's samples are estimates, and say little where it is ragged or open.
        if (whole or not surface.exact) and missed <= MISSED and not joined:
            if torn is not None and area > (1 + ROUGHER) * torn.quadrature.area:
                break
            if parted <= PARTED:
                return found
            torn = found
    if found is None:
        raise InputError(
            f"No cell of spacing {lattice.spacing:g} is cut by the surface, which is too thin for them; "
            "use a smaller spacing."
        )
    return replace(torn or found, unresolved=True)


def _missed(surface: Surface, cut: CutSurface) -> tuple[float, float, bool]:
    """Share of the surface's samples with no piece in the cells around them that faces their way, and of those on the
    largest part that came off its component; and whether the pieces join components of the surface."""
    assert isinstance(cut.locator, CellLocator)
    feet = surface.own_feet()
    element = cut.locator.near((feet.points - cut.lattice.origin) / cut.spacing, feet)
    facing = dot(cut.locator.normal[element.clamp_min(0)], feet.normals) > 0
    found = (element >= 0) & facing
    part, component = cut.elements.component[cut.host[element[found]]], feet.component[found]
    pairs, count = torch.stack([part, component], 1).unique(dim=0, return_counts=True)
    pairs, count = pairs[order := count.argsort(descending=True)], count[order]
    largest = first_of_each(pairs[:, 1], surface.component_count)
    count[largest[largest < len(count)]] = 0  # of those that were found at all
    meant = bool(cut.locator.seams)  # to come apart
    parted = 0.0 if meant or not len(count) else float(count.amax()) / len(feet.points)
    return float((~found).double().mean()), parted, len(pairs) > len(torch.unique(pairs[:, 0]))


def _elements(pieces: CurvedPieces, units: Units) -> tuple[Tensor, Elements]:
    """Element of each unit: those of one cell that share edges; glue where an edge joins two cells."""
    flat = pieces.edge.reshape(-1)
    order = torch.argsort(flat, stable=True)
    same = flat[order][1:] == flat[order][:-1]
    a, b = (torch.div(order, 3, rounding_mode="floor")[s] for s in (slice(None, -1), slice(1, None)))
    a, b = units.pairs(a[same], b[same])
    own = pieces.cell[units.triangle]
    inside = (own[a] == own[b]).all(1)
    # Within a cell a seam lies between any two labels.
    joined = inside & (units.label[a] == units.label[b])
    element = components(len(own), a[joined], b[joined])
    count = int(element.max()) + 1
    cell = torch.empty(count, 3, dtype=torch.int64, device=flat.device)
    cell[element] = own
    a, b = element[a[~inside]], element[b[~inside]]
    step = cell[b] - cell[a]
    backwards = step.sum(1) < 0
    a, b = torch.where(backwards, b, a), torch.where(backwards, a, b)
    return element, Elements(cell, distinct_glue(a, b, step.abs().argmax(1), count), count)


def _on_curved(parts: Parts, shape: Curved, outward: Tensor) -> Quadrature:
    """Three points on each part of the six-node triangles."""
    rule = torch.tensor(TRIANGLE_RULE, dtype=outward.dtype, device=outward.device)  # (3, 3)
    source = parts.source.repeat_interleave(3)
    bary = (rule @ parts.corners).reshape(-1, 3)
    a, b, c = (parts.corners[:, i].repeat_interleave(3, 0) for i in range(3))
    normal = torch.linalg.cross(shape.along(source, bary, b - a), shape.along(source, bary, c - a))
    length = normal.norm(dim=1)
    normal = normal / length.clamp_min(torch.finfo(length.dtype).tiny)[:, None]
    side = dot(normal, outward[source])[:, None]
    return Quadrature(shape.place(source, bary), torch.where(side < 0, -normal, normal), length / 6)


# From points on the surface to elements

_SHELLS = [torch.zeros(1, 3, dtype=torch.int64)] + [
    torch.tensor(
        [[i, j, k] for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1) if abs(i) + abs(j) + abs(k) == n]
    )
    for n in (1, 2, 3)
]


@dataclass(frozen=True)
class CellLocator:
    """From a point on the surface to its element: by cell, then by the nearest mean normal and centre."""

    low: Tensor
    shape: Tensor
    key: Tensor  # (e,) int64, increasing: key of each element's cell
    order: Tensor  # (e,) element at each place of `key`
    centre: Tensor  # (e, 3) in units of cells
    normal: Tensor  # (e, 3)
    lattice: Lattice | None = None
    seams: Seams = NO_SEAMS
    label: Tensor | None = None  # (e,) where there are seams

    def find(self, coordinate: Tensor, feet: ClosestPoints) -> Tensor:
        """Element (n,) of the best sheet in the cell, or in its neighbours, or failing that not far; -1: none."""
        return self._farther(coordinate, feet, self.near(coordinate, feet))

    def near(self, coordinate: Tensor, feet: ClosestPoints) -> Tensor:
        """Element (n,) of the best sheet in the cell, or failing that in the nearest neighbours; -1: none."""
        cell = torch.floor(coordinate).long()
        best = torch.full((len(cell),), torch.inf, dtype=coordinate.dtype, device=cell.device)
        element = torch.full((len(cell),), -1, dtype=torch.int64, device=cell.device)
        facing = torch.zeros_like(element, dtype=torch.bool)
        label = None
        if self.label is not None and self.lattice is not None:
            label = self.seams.label(feet.points, cell, feet.normals, self.lattice)
        for radius, offsets in enumerate(_SHELLS):
            # A sheet that faces the other way is not the one that the foot lies on: it will do if there is no other.
            rows = (~facing).nonzero()[:, 0]
            if not len(rows):
                break
            for offset in offsets.to(cell.device):
                key = _cell_key(cell[rows] + offset, self.low, self.shape)
                first = torch.searchsorted(self.key, key)
                count = torch.searchsorted(self.key, key, right=True) - first
                for copy in range(int(count.max())):
                    has = (count > copy).nonzero()[:, 0]
                    found = self.order[first[has] + copy]
                    at = rows[has]
                    away = (coordinate[at] - self.centre[found]).norm(dim=1)
                    turned = 1 - dot(self.normal[found], feet.normals[at])
                    cost = away + turned + radius
                    right = turned < 1
                    if label is not None and self.label is not None:
                        other = ~self.seams.compatible(label[at], self.label[found])
                        cost, right = cost + OTHER_SIDE * other, right & ~other
                    better = cost < best[at]
                    best[at[better]], element[at[better]] = cost[better], found[better]
                    facing[at] |= right
        return element

    def _farther(self, coordinate: Tensor, feet: ClosestPoints, element: Tensor) -> Tensor:
        """element, with the nearest that faces the same way, up to FARTHEST cells away, where there was none."""
        rows = (element < 0).nonzero()[:, 0]
        if not len(rows):
            return element
        near, distance = k_nearest(self.centre, min(8, len(self.centre)), coordinate[rows])
        turned = 1 - (self.normal[near] * feet.normals[rows, None]).sum(-1)
        cost, which = (distance + turned).min(1)
        element = element.clone()
        element[rows] = torch.where(cost <= FARTHEST, near.gather(1, which[:, None])[:, 0], -1)
        return element


def _cell_key(cell: Tensor, low: Tensor, shape: Tensor) -> Tensor:
    i, j, k = (cell - low).unbind(-1)
    inside = ((cell >= low) & (cell < low + shape)).all(-1)
    return torch.where(inside, (i * shape[1] + j) * shape[2] + k, -1)


def _locator(elements: Elements, quadrature: Quadrature, lattice: Lattice, element: Tensor) -> CellLocator:
    quadrature = quadrature.detach()
    count, weights = len(elements.cell), quadrature.weights
    coordinate = (quadrature.points - lattice.origin) / lattice.spacing
    total = weights.new_zeros(count).index_add_(0, element, weights).clamp_min(torch.finfo(weights.dtype).tiny)
    centre = torch.zeros_like(coordinate[:count]).index_add_(0, element, coordinate * weights[:, None])
    towards = torch.zeros_like(centre).index_add_(0, element, quadrature.normals * weights[:, None])
    # Round an edge normals may cancel; then the axis that most of them lie along must do.
    axis, _ = mean_normals(quadrature, element, count)
    short = dot(towards, towards).sqrt() < 0.2 * total
    normal = torch.where(short[:, None], axis, unit(towards))
    low = elements.cell.amin(0) - 2
    shape = elements.cell.amax(0) + 3 - low
    key, order = torch.sort(_cell_key(elements.cell, low, shape))
    return CellLocator(low, shape, key, order, centre / total[:, None], normal)
