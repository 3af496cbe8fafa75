"""From curved triangles, each in one cell of the lattice, to a cut surface.

Triangles of a cell that share edges are one sheet, an element; sheets of neighbouring cells are glued where an edge
lies in their common face. Integrals are taken over the six-node triangles by a three-point rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.geometry.lattice import Lattice, cell_keys
from lamina.geometry.triangles import dot, triangle_areas, unit
from lamina.grid.cut_surface import CutSurface, Lift, mean_normals, rule_points
from lamina.grid.interface_curves import NO_CURVES, InterfaceCurves, Parts, Sides, Units
from lamina.grid.quadrature import RULES, Frames, Quadrature
from lamina.grid.rim import Curved
from lamina.grid.sheets import Elements, distinct_glue
from lamina.linear.graph import components, first_of_each
from lamina.search.neighbours import k_nearest
from lamina.surfaces.base import ClosestPoints, Surface
from lamina.surfaces.specks import SPECK

MISSED, MISSING = 0.01, 0.01  # share of the samples far from their pieces, and of the area, with which to cut finer,
GAIN = 0.01  # provided that this part of the area is gained
TOO_MUCH = 0.05  # of the area: tunnels through thin parts add their walls
PARTED = 2e-3  # share of the samples on a part that came off its component, with which to cut finer
ROUGHER = 0.03  # of the area: what a finer lattice adds to a rough surface, joining its parts by chance
OTHER_SIDE = 4.0  # what it costs a sheet to lie on the other side of a curve
SCRAP = 0.5  # of a part's area: with less on it in samples, it is no part of the surface
FINEST = 0.4  # of the distance between samples: pieces need not be smaller
LOST_AREA = 0.1  # of the area of a flat piece: with less after lifting, its gradients are left out
FARTHEST = 4.0  # cells from a point of the surface to the pieces that speak for it, where it was too thin to be cut


# A piece whose normals turn by more does not follow the surface.
COS_CREASE = math.cos(math.radians(25.0))
# By the degree of functions and by how many times finer the cells are cut: share of the area that may turn so. With
# more the pieces are halved. Trilinear functions lose no more there than anywhere else. For quadratic ones the pieces
# must follow the surface: on three balls joined by necks the error is 15 times smaller once they do, on the Spike 5
# times to 50 times. At a crease they never do, and a quarter of a cell has to be enough.
ROUGH = {1: {1: 0.05}, 2: {1: 1e-3, 2: 1e-3}}


@dataclass(frozen=True)
class CurvedPieces:
    """Curved triangles of a surface, each within a cell."""

    six: Tensor  # (t, 6, 3) corners, then the middles of edges 01, 12, 20
    edge: Tensor  # (t, 3) int64, number of the edge that each middle belongs to
    cell: Tensor  # (t, 3) int64
    outward: Tensor  # (t, 3) the side that normals look to
    rim: Tensor  # (t, 3) bool, which edges lie on a rim
    flat: Tensor  # (t, 3, 3) corners of the flat triangle within the cell that each is lifted from
    finer: int = 1  # how many times finer the lattice that they were cut on is

    def take(self, rows: Tensor) -> CurvedPieces:
        taken = (v[rows] for v in vars(self).values() if isinstance(v, Tensor))
        return CurvedPieces(*taken, finer=self.finer)

    @classmethod
    def join(cls, parts: Sequence[CurvedPieces]) -> CurvedPieces:
        columns = zip(*([v for v in vars(p).values() if isinstance(v, Tensor)] for p in parts), strict=True)
        return cls(*(torch.cat(column) for column in columns), finer=parts[0].finer)

    def neighbours(self) -> Tensor:
        """Triangles (p, 2) that share an edge."""
        flat = self.edge.reshape(-1)
        order = torch.argsort(flat, stable=True)
        same = flat[order][1:] == flat[order][:-1]
        triangle = torch.div(order, 3, rounding_mode="floor")
        return torch.stack([triangle[:-1][same], triangle[1:][same]], 1)

    def areas(self) -> Tensor:
        """Area (t,) of the flat triangles."""
        return triangle_areas(self.six[:, :3].detach())


def cut_from(
    pieces: CurvedPieces,
    lattice: Lattice,
    surface: Surface,
    sheets: bool,
    curves: InterfaceCurves = NO_CURVES,
    degree: int = 1,
) -> CutSurface | None:
    """The cut surface of the pieces that belong to the surface, for functions of a degree; None if there are none."""
    kept = of_the_surface(pieces, lattice, surface)
    pieces = kept.pieces
    shape = Curved(pieces.six, pieces.flat)
    parts, curve_sides = curves.split(shape.place, pieces.cell, pieces.outward, lattice)
    if not len(parts.source):
        return None
    per_piece = rule_points(degree, pieces.finer)
    quadrature, flat, frames = _on_curved(parts, shape, pieces, per_piece)
    units = Units.of(parts.source, parts.label, curves)
    element_of_unit, elements = _elements(pieces, units, kept.bridges)
    element = element_of_unit[units.of_part].repeat_interleave(per_piece)
    locator = _locator(elements, quadrature, lattice, element)
    if kept.specks:
        locator = replace(locator, farthest=math.inf)
    if curves:
        label = torch.empty_like(elements.cell[:, 0])
        label[element_of_unit] = units.label
        locator = replace(locator, lattice=lattice, curves=curves, label=label)
    sides = Sides.join([curves.trimmed(_own_rim(pieces), shape.place), curve_sides], pieces.six)
    find = units.finder(curves, pieces.cell, pieces.outward, lattice, element_of_unit)
    # Trilinear functions are taken at the points on the surface, quadratic ones on the flat pieces below them: there
    # they are continuous from cell to cell, which matters at their order.
    own = {}
    if degree > 1:
        own = {"flat": flat, "lift": Lift(shape, parts.source, frames)}
    cut = CutSurface.build(
        lattice, elements, quadrature, element, locator, sheets, sides, shape, find,
        degree=degree, per_piece=per_piece, **own,
    )  # fmt: skip
    corners = shape.place(parts.source.repeat_interleave(3), parts.corners.reshape(-1, 3))
    cut = replace(cut, corners=corners.detach().reshape(-1, 3, 3))
    if degree > 1:
        cut = replace(cut, flat_corners=(parts.corners @ pieces.flat[parts.source]).detach())
    return replace(cut, torn=0.0 if curves else kept.torn, specks=kept.specks, speck_share=kept.share)


def turns(normals: Tensor) -> Tensor:
    """Whether the normals (t, 3, 3) at the corners of triangles differ by more than those of a smooth piece do."""
    return torch.stack([dot(normals[:, i], normals[:, i - 1]) for i in range(3)], 1).amin(1) < COS_CREASE


def turned_share(corners: Tensor, normals: Tensor) -> float:
    """Share of the area in triangles (t, 3, 3) whose normals (t, 3, 3) turn too much."""
    area = triangle_areas(corners).detach()
    return float((area * turns(normals)).sum() / area.sum())


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
    advice = "use a smaller spacing" if surface.exact else "more samples there would help"
    apart = math.sqrt(total / len(surface.points))
    for finer in (1, 2, 4):
        if found is not None and not surface.exact and lattice.spacing < FINEST * finer * apart:
            break  # samples say nothing about what lies between them
        before, found = area, cut(finer) or found
        if found is None:
            continue
        area = found.quadrature.area
        whole = (1 - MISSING) * total <= area <= (1 + TOO_MUCH) * total or abs(area - before) <= GAIN * total
        missed, joined = _missed(surface, found)
        # Areas of a cloud's samples are estimates, and say little where it is ragged or open.
        wrong = ""
        if joined:
            wrong = "parts of the surface that lie apart meet, and are solved as one"
        elif missed > MISSED:
            wrong = f"{missed:.1%} of the surface has no piece of it in the cells around"
        elif surface.exact and not whole:
            wrong = f"the area in the cells is {area / total - 1:+.1%} off"
        else:
            if torn is not None and area > (1 + ROUGHER) * torn.quadrature.area:
                break
            if found.torn <= PARTED:
                return found
            if found.torn > SPECK:
                wrong = f"a part with {found.torn:.1%} of the surface hangs on the rest by a neck thinner than a cell"
            torn = replace(found, unresolved=wrong and f"{wrong}; {advice}")
        found = replace(found, unresolved=wrong and f"{wrong}; {advice}")
    if found is None:
        raise InputError(
            f"No cell of spacing {lattice.spacing:g} is cut by the surface, which is too thin for them; "
            "use a smaller spacing."
        )
    return torn or found


def _missed(surface: Surface, cut: CutSurface) -> tuple[float, bool]:
    """Share of the surface's samples with no piece in the cells around them that faces their way; and whether the
    pieces join components of the surface."""
    assert isinstance(cut.locator, CellLocator)
    feet = surface.own_feet()
    element = cut.locator.near((feet.points - cut.lattice.origin) / cut.spacing, feet)
    facing = dot(cut.locator.normal[element.clamp_min(0)], feet.normals) > 0
    found = (element >= 0) & facing
    part, component = cut.elements.component[cut.host[element[found]]], feet.component[found]
    pairs = torch.stack([part, component], 1).unique(dim=0)
    return float((~found).double().mean()), len(pairs) > len(torch.unique(pairs[:, 0]))


def _elements(pieces: CurvedPieces, units: Units, bridges: Tensor) -> tuple[Tensor, Elements]:
    """Element of each unit: those of one cell that share edges or are bridged; glue where these join two cells."""
    a, b = units.pairs(*torch.cat([pieces.neighbours(), bridges]).unbind(1))
    own = pieces.cell[units.triangle]
    inside = (own[a] == own[b]).all(1)
    # Within a cell a curve lies between any two labels.
    joined = inside & (units.label[a] == units.label[b])
    element = components(len(own), a[joined], b[joined])
    count = int(element.max()) + 1
    cell = torch.empty(count, 3, dtype=torch.int64, device=own.device)
    cell[element] = own
    a, b = element[a[~inside]], element[b[~inside]]
    step = cell[b] - cell[a]
    backwards = step.sum(1) < 0
    a, b = torch.where(backwards, b, a), torch.where(backwards, a, b)
    return element, Elements(cell, distinct_glue(a, b, step.abs().argmax(1), count), count)


# Which pieces belong to the surface


@dataclass(frozen=True)
class Kept:
    """The pieces that belong to the surface."""

    pieces: CurvedPieces
    bridges: Tensor  # (b, 2) triangles that the surface joins though they share no edge
    torn: float = 0.0  # share of the samples on the largest part that a bridge holds, or that came off for good
    specks: int = 0  # connected parts that were left out for their size,
    share: float = 0.0  # and their share of the samples


def of_the_surface(pieces: CurvedPieces, lattice: Lattice, surface: Surface) -> Kept:
    """The pieces that belong to the surface, judged by the area of its samples on each connected part.

    Where closest points jump between two sheets, scraps of a third appear between them: no samples lie on these, and
    they go. Where a neck is thinner than the cells the pieces come apart: the surface says that they are one, and a
    bridge joins them where they are nearest. What is then still much smaller than the largest part goes too: a level
    set or a set of splats has specks that nobody meant, and each would have a constant of its own.
    """
    none = torch.empty(0, 2, dtype=torch.int64, device=pieces.edge.device)
    part = components(len(pieces.edge), *pieces.neighbours().unbind(1))
    count = int(part.max()) + 1
    if count == 1:
        return Kept(pieces, none)
    triangle = _nearest_triangle(pieces, surface, lattice.spacing)
    samples = surface.own_areas().detach()
    sampled = samples.new_zeros(count).index_add_(0, part[triangle], samples)
    areas = pieces.areas().to(samples)
    area = samples.new_zeros(count).index_add_(0, part, areas)
    real = sampled >= SCRAP * area
    real[sampled.argmax()] = True
    component = _majority(part[triangle], surface.component, samples, count)
    bridges = _bridges(pieces, torch.where(real[part], part, -1), component, sampled, lattice)
    whole = components(count, *part[bridges].unbind(1))
    largest = sampled.new_zeros(count).index_add_(0, whole, torch.where(real, sampled, 0))
    speck = real & (largest[whole] < SPECK * largest.max())
    torn = torch.where(real & ~speck, sampled, 0)
    order = torch.argsort(torn, descending=True)
    torn[order[first_of_each(component[order], surface.component_count).clamp_max(count - 1)]] = 0
    keep = (real & ~speck)[part]
    place = torch.cumsum(keep, 0) - 1
    bridges = place[bridges[keep[bridges].all(1)]]
    total = float(samples.sum())
    specks = len(torch.unique(whole[speck]))
    return Kept(pieces.take(keep), bridges, float(torn.max()) / total, specks, float(sampled[speck].sum()) / total)


def _nearest_triangle(pieces: CurvedPieces, surface: Surface, spacing: float) -> Tensor:
    """The triangle (m,) that each sample of the surface lies on: near it, and facing the same way."""
    corner = pieces.six[:, :3].detach()
    normal = unit(torch.linalg.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0]))
    normal = torch.where(dot(normal, pieces.outward)[:, None] < 0, -normal, normal)
    feet = surface.own_feet().detach()
    near, distance = k_nearest(corner.mean(1), min(8, len(corner)), feet.points)
    turned = 1 - (normal[near] * feet.normals[:, None]).sum(-1)
    return near.gather(1, (distance / spacing + turned).argmin(1, keepdim=True))[:, 0]


def _majority(part: Tensor, component: Tensor, samples: Tensor, count: int) -> Tensor:
    """The component (count,) of the surface that most samples on each part belong to; 0 where there are none."""
    labels = int(component.max()) + 1
    votes = samples.new_zeros(count * labels).index_add_(0, part * labels + component, samples)
    return votes.reshape(count, labels).argmax(1)


def _bridges(pieces: CurvedPieces, part: Tensor, component: Tensor, size: Tensor, lattice: Lattice) -> Tensor:
    """Pairs (b, 2) of triangles that join parts of one component of the surface, -1 for no part: where a part is
    nearest to the others, within a cell or between neighbours, facing the same way."""
    centre = pieces.six[:, :3].detach().mean(1)
    found = [torch.empty(0, 2, dtype=torch.int64, device=part.device)]
    for label in torch.unique(component[part[part >= 0]]).tolist():
        rows = ((part >= 0) & (component[part] == label)).nonzero()[:, 0]
        parts = torch.unique(part[rows])
        for one in parts[size[parts].argsort(descending=True)][1:].tolist():
            mine, others = rows[part[rows] == one], rows[part[rows] != one]
            near, away = k_nearest(centre[others], min(8, len(others)), centre[mine])
            a, b = mine[:, None].expand_as(near).reshape(-1), others[near].reshape(-1)
            facing = dot(pieces.outward[a], pieces.outward[b]) > 0
            beside = (pieces.cell[a] - pieces.cell[b]).abs().sum(1) <= 1
            away = torch.where(facing & beside, away.reshape(-1), torch.inf)
            close = away <= min(2 * float(away.min()), lattice.spacing)
            found.append(torch.stack([a, b], 1)[close])
    return torch.cat(found)


def _on_curved(parts: Parts, shape: Curved, pieces: CurvedPieces, count: int) -> tuple[Quadrature, Tensor, Frames]:
    """So many points on each part of the six-node triangles; the points (q, 3) below them on the flat triangles; and
    the directions there and here."""
    rule, weights = (pieces.six.new_tensor(part) for part in RULES[count])
    source = parts.source.repeat_interleave(count)
    bary = (rule @ parts.corners).reshape(-1, 3)
    a, b, c = (parts.corners[:, i].repeat_interleave(count, 0) for i in range(3))
    own = pieces.flat[source]
    first, second = ((step[:, None] @ own)[:, 0] for step in (b - a, c - a))
    along, across = shape.along(source, bary, b - a), shape.along(source, bary, c - a)
    normal = torch.linalg.cross(along, across)
    length = normal.norm(dim=1)
    tiny = torch.finfo(length.dtype).tiny
    unit_normal = normal / length.clamp_min(tiny)[:, None]
    side = dot(unit_normal, pieces.outward[source])[:, None]
    quadrature = Quadrature(
        shape.place(source, bary),
        torch.where(side < 0, -unit_normal, unit_normal),
        length * (0.5 * weights).repeat(len(parts.source)),
    )
    frames = _frames(along, across, first, second, length)
    return quadrature, (bary[:, None] @ own)[:, 0], frames


def _frames(along: Tensor, across: Tensor, first: Tensor, second: Tensor, area: Tensor) -> Frames:
    """Orthonormal tangents from two derivatives (q, 3) of the lifted piece by Gram and Schmidt, and the same
    combinations of those of the flat piece. area (q,): of the parallelogram on the surface."""
    size = dot(along, along).sqrt()
    size = size.clamp_min(torch.finfo(size.dtype).tiny)
    share, height = dot(along, across) / size**2, (area / size).clamp_min(torch.finfo(size.dtype).tiny)

    def combined(p: Tensor, q: Tensor) -> Tensor:
        return torch.stack([p / size[:, None], (q - share[:, None] * p) / height[:, None]], 1)

    lifted, flat = combined(along, across), combined(first, second)
    # A sliver whose lift has all but lost its height says nothing about directions; its area is next to none.
    lost = (area < LOST_AREA * torch.linalg.cross(first, second).norm(dim=1))[:, None, None]
    return Frames(torch.where(lost, 0.0, flat), torch.where(lost, 0.0, lifted))


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
    curves: InterfaceCurves = NO_CURVES
    label: Tensor | None = None  # (e,) where there are curves
    farthest: float = FARTHEST  # cells from a point to the piece that speaks for it

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
            label = self.curves.label(feet.points, cell, feet.normals, self.lattice)
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
                        other = ~self.curves.compatible(label[at], self.label[found])
                        cost, right = cost + OTHER_SIDE * other, right & ~other
                    better = cost < best[at]
                    best[at[better]], element[at[better]] = cost[better], found[better]
                    facing[at] |= right
        return element

    def _farther(self, coordinate: Tensor, feet: ClosestPoints, element: Tensor) -> Tensor:
        """element, with the nearest that faces the same way, up to `farthest` cells away, where there was none."""
        rows = (element < 0).nonzero()[:, 0]
        if not len(rows):
            return element
        near, distance = k_nearest(self.centre, min(8, len(self.centre)), coordinate[rows])
        turned = 1 - (self.normal[near] * feet.normals[rows, None]).sum(-1)
        cost, which = (distance + turned).min(1)
        element = element.clone()
        element[rows] = torch.where(cost <= self.farthest, near.gather(1, which[:, None])[:, 0], -1)
        return element


def _cell_key(cell: Tensor, low: Tensor, shape: Tensor) -> Tensor:
    inside = ((cell >= low) & (cell < low + shape)).all(-1)
    return torch.where(inside, cell_keys((cell - low).unbind(-1), shape), -1)


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
