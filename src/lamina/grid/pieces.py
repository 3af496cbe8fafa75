"""From curved triangles, each within one cell of the lattice, to a cut surface.

The triangles of a cell that share edges form one sheet, which is an element. Sheets of neighbouring cells are glued
where an edge lies in their common face. Integrals are taken over the six-node triangles by a quadrature rule.
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
from lamina.grid.interface_curves import NO_CURVES, BoundaryEdges, InterfaceCurves, LabelledTriangles, SubTriangles
from lamina.grid.quadrature import TRIANGLE_RULES, Frames, Quadrature
from lamina.grid.rim import CurvedTriangles
from lamina.grid.sheets import CutElements, distinct_glue
from lamina.linear.graph import components, first_of_each
from lamina.search.neighbours import k_nearest
from lamina.shapes import Bool, Float, Int, shaped
from lamina.surfaces.base import ClosestPoints, Surface
from lamina.surfaces.specks import MAX_SPECK_AREA_RATIO

# How many times finer than the lattice of the unknowns the cells are cut, one after the other until the pieces
# represent the surface. Each step takes four times as many pieces.
REFINEMENTS = (1, 2, 4)
# Cells are cut finer if more than this share of the samples has no piece in the cells around that faces the same way.
# Chosen by trial, like the shares below.
MAX_UNREPRESENTED_SAMPLE_SHARE = 0.01
# Cells are cut finer if the pieces have less than the surface's area by more than this share: thin parts were missed.
MAX_MISSING_AREA_SHARE = 0.01
# An area that is off is accepted if a finer cut changes it by no more than this share of the surface's area: then the
# estimate is wrong and not the cut.
MAX_SETTLED_AREA_CHANGE = 0.01
# Cells are cut finer if the pieces have more than the surface's area by more than this share: tunnels through thin
# parts add the area of their walls.
MAX_EXCESS_AREA_SHARE = 0.05
# Cells are cut finer if a part with more than this share of the samples has come off its component. With 0 a
# few samples that lie apart, as on every rough surface, would have all cells cut as fine as possible.
MAX_DETACHED_SAMPLE_SHARE = 2e-3
# The warning names a neck thinner than a cell if more than this share of the samples hangs on it.
MIN_REPORTED_DETACHED_SHARE = 0.01
# A finer cut that adds more than this share of the area is not taken if the coarser one only came apart: on a rough
# surface the finer lattice adds folds, and joins parts by chance.
MAX_AREA_ADDED_BY_JOINING = 0.03
# A connected part is kept if its samples have at least this share of its area. Scraps between two sheets have next to
# no samples and parts of the surface have nearly all, so that any value far from 0 and 1 does.
MIN_SAMPLED_AREA_RATIO = 0.5
# Cells of surfaces known by samples are cut no smaller than this times the mean distance between samples, since samples
# say nothing about what lies between them. Chosen by trial.
MIN_CELL_PER_SAMPLE_DISTANCE = 0.4
# A lifted piece with less than this share of the area of its flat piece gets no gradients: it has nearly lost its
# height and its directions are rounding. Its area is next to nothing, so it adds nothing to integrals. Chosen by trial.
MIN_LIFTED_AREA_RATIO = 0.1
# Pieces nearest to a point, by their centres, among which the one that faces the same way is sought. Chosen by trial.
NEAREST_PIECES_COMPARED = 8
# A bridge joins two pieces if their distance is at most this times the smallest one between the two parts, and at most
# a cell: so a neck is bridged on its whole circumference. Chosen by trial.
MAX_BRIDGE_LENGTH_RATIO = 2
# Cost, in cells of distance, of reading a point from a sheet on the other side of an interface curve. It exceeds the
# distance to all sheets in the cells around, so that such a sheet is taken only where there is no other.
OTHER_SIDE_COST_CELLS = 4.0
# A point without a piece in the cells around reads from the nearest piece that faces the same way, if its distance in
# cells plus 1 - cos of the angle between the normals is at most this. Points farther away are refused. Chosen by trial.
MAX_COST_OF_FAR_PIECE = 4.0
# Round an edge the normals of an element may cancel. If their mean is shorter than this, the axis that most of them lie
# along is taken instead. Chosen by trial.
MIN_MEAN_NORMAL_LENGTH = 0.2

# A piece whose corner normals differ by more than 25 degrees is taken for one that does not follow the surface.
MIN_COS_WITHIN_PIECE = math.cos(math.radians(25.0))
# Largest share of the area in such pieces, by the degree of the functions and the refinement of the cut. With more the
# pieces are halved. Trilinear functions lose no more there than anywhere else. For quadratic ones the
# pieces must follow the surface: once they do, the error is 15 times smaller on three balls joined by necks and 5 to 50
# times smaller on the Spike. At a crease pieces never do, so a quarter of a cell is accepted without a limit.
MAX_TURNING_AREA_SHARE = {1: {1: 0.05}, 2: {1: 1e-3, 2: 1e-3}}


@shaped
@dataclass(frozen=True)
class CurvedPieces:
    """Curved triangles of a surface, each within a cell."""

    six_nodes: Float[Tensor, "t 6 3"]  # corners, then the middles of edges 01, 12, 20
    edge: Int[Tensor, "t 3"]  # number of the edge that each middle belongs to
    cell: Int[Tensor, "t 3"]
    outward: Float[Tensor, "t 3"]  # vectors on the side that normals point to
    rim: Bool[Tensor, "t 3"]  # which edges lie on a rim
    flat: Float[Tensor, "t 3 3"]  # corners of the flat triangle within the cell that each is lifted from
    refinement: int = 1  # how many times finer the lattice is that they were cut on

    def take(self, rows: Tensor) -> CurvedPieces:
        taken = (v[rows] for v in vars(self).values() if isinstance(v, Tensor))
        return CurvedPieces(*taken, refinement=self.refinement)

    @classmethod
    def join(cls, parts: Sequence[CurvedPieces]) -> CurvedPieces:
        columns = zip(*([v for v in vars(p).values() if isinstance(v, Tensor)] for p in parts), strict=True)
        return cls(*(torch.cat(column) for column in columns), refinement=parts[0].refinement)

    def neighbours(self) -> Tensor:
        """Triangles (p, 2) that share an edge."""
        flat = self.edge.reshape(-1)
        order = torch.argsort(flat, stable=True)
        same = flat[order][1:] == flat[order][:-1]
        triangle = torch.div(order, 3, rounding_mode="floor")
        return torch.stack([triangle[:-1][same], triangle[1:][same]], 1)

    def areas(self) -> Tensor:
        """Area (t,) of the flat triangles."""
        return triangle_areas(self.six_nodes[:, :3].detach())


def cut_surface_of_pieces(
    pieces: CurvedPieces,
    lattice: Lattice,
    surface: Surface,
    sheets: bool,
    curves: InterfaceCurves = NO_CURVES,
    degree: int = 1,
) -> CutSurface | None:
    """The cut surface made of those pieces that belong to the surface; None if there are none.

    degree: of the functions on the cells. The other arguments are those of `cut.cut_surface`.
    """
    kept = pieces_of_surface(pieces, lattice, surface)
    pieces = kept.pieces
    shape = CurvedTriangles(pieces.six_nodes, pieces.flat)
    parts, curve_edges = curves.split(shape.position, pieces.cell, pieces.outward, lattice)
    if not len(parts.source):
        return None
    per_piece = rule_points(degree, pieces.refinement)
    quadrature, flat, frames = _quadrature_on_curved(parts, shape, pieces, per_piece)
    labelled = LabelledTriangles.of(parts.source, parts.label, curves)
    element_of_labelled, elements = _connected_elements(pieces, labelled, kept.bridges)
    element = element_of_labelled[labelled.of_part].repeat_interleave(per_piece)
    locator = _cell_locator(elements, quadrature, lattice, element)
    if kept.speck_count:
        # Points on specks, which were left out, read from the nearest part however far that is.
        locator = replace(locator, max_cost=math.inf)
    if curves:
        label = torch.empty_like(elements.cell[:, 0])
        label[element_of_labelled] = labelled.label
        locator = replace(locator, lattice=lattice, curves=curves, label=label)
    rim = curves.trimmed(_rim_of_pieces(pieces), shape.position)
    boundary = BoundaryEdges.join([rim, curve_edges], pieces.six_nodes)
    find = labelled.finder(curves, pieces.cell, pieces.outward, lattice, element_of_labelled)
    # Trilinear functions are evaluated at the points on the surface. Quadratic ones are evaluated at the points below
    # them on the flat pieces, where they are continuous from cell to cell; their order requires that.
    lifted = {}
    if degree > 1:
        lifted = {"flat": flat, "lift": Lift(shape, parts.source, frames)}
    cut = CutSurface.build(
        lattice, elements, quadrature, element, locator, sheets, boundary, shape, find,
        degree=degree, per_piece=per_piece, **lifted,
    )  # fmt: skip
    corners = shape.position(parts.source.repeat_interleave(3), parts.corners.reshape(-1, 3))
    cut = replace(cut, corners=corners.detach().reshape(-1, 3, 3))
    if degree > 1:
        cut = replace(cut, flat_corners=(parts.corners @ pieces.flat[parts.source]).detach())
    detached = 0.0 if curves else kept.detached_share
    return replace(cut, detached_share=detached, speck_count=kept.speck_count, speck_share=kept.speck_share)


def turns_too_much(normals: Tensor) -> Tensor:
    """Whether (t,) the normals (t, 3, 3) at the corners of a triangle differ by more than those of a smooth piece."""
    return torch.stack([dot(normals[:, i], normals[:, i - 1]) for i in range(3)], 1).amin(1) < MIN_COS_WITHIN_PIECE


def turning_area_share(corners: Tensor, normals: Tensor) -> float:
    """Share of the area in triangles (t, 3, 3) whose normals (t, 3, 3) turn too much."""
    area = triangle_areas(corners).detach()
    return float((area * turns_too_much(normals)).sum() / area.sum())


def _rim_of_pieces(pieces: CurvedPieces) -> BoundaryEdges:
    source, edge = pieces.rim.nonzero().unbind(1)
    corner = torch.eye(3, dtype=pieces.six_nodes.dtype, device=source.device)
    ends = torch.stack([corner[edge], corner[(edge + 1) % 3], corner[(edge + 2) % 3]], 1)
    return BoundaryEdges(source, ends, torch.full_like(source, -1))


def cut_resolving_thin_parts(surface: Surface, lattice: Lattice, cut: Callable[[int], CutSurface | None]) -> CutSurface:
    """cut(n), the surface cut on a lattice n times finer, for the smallest n in REFINEMENTS that resolves thin parts.

    They are not resolved where samples are far from every piece that faces their way, where area is missing although a
    finer lattice finds more, where a part hangs on a neck thinner than a cell, and where tunnels from sheet to sheet
    join components or add area.
    """
    found, area, total = None, 0.0, float(surface.areas.sum())
    detached: CutSurface | None = None  # the finest cut so far whose only fault is that a part came off
    advice = "use a smaller spacing" if surface.exact else "more samples there would help"
    apart = math.sqrt(total / len(surface.points))
    for refinement in REFINEMENTS:
        smallest = MIN_CELL_PER_SAMPLE_DISTANCE * refinement * apart
        if found is not None and not surface.exact and lattice.spacing < smallest:
            break
        before, found = area, cut(refinement) or found
        if found is None:
            continue
        area = found.quadrature.area
        right = (1 - MAX_MISSING_AREA_SHARE) * total <= area <= (1 + MAX_EXCESS_AREA_SHARE) * total
        settled = abs(area - before) <= MAX_SETTLED_AREA_CHANGE * total
        missed, joined = _compared_with_samples(surface, found)
        # The areas of a cloud's samples are estimates, which are inaccurate where it is ragged or open.
        wrong = ""
        if joined:
            wrong = "parts of the surface that lie apart meet, and are solved as one"
        elif missed > MAX_UNREPRESENTED_SAMPLE_SHARE:
            wrong = f"{missed:.1%} of the surface has no piece of it in the cells around"
        elif surface.exact and not (right or settled):
            wrong = f"the area in the cells is {area / total - 1:+.1%} off"
        else:
            if detached is not None and area > (1 + MAX_AREA_ADDED_BY_JOINING) * detached.quadrature.area:
                break
            share = found.detached_share
            if share <= MAX_DETACHED_SAMPLE_SHARE:
                return found
            if share > MIN_REPORTED_DETACHED_SHARE:
                wrong = f"a part with {share:.1%} of the surface hangs on the rest by a neck thinner than a cell"
            detached = replace(found, unresolved=wrong and f"{wrong}; {advice}")
        found = replace(found, unresolved=wrong and f"{wrong}; {advice}")
    if found is None:
        raise InputError(
            f"No cell of spacing {lattice.spacing:g} is cut by the surface, which is too thin for them; "
            "use a smaller spacing."
        )
    return detached or found


def _compared_with_samples(surface: Surface, cut: CutSurface) -> tuple[float, bool]:
    """Share of the surface's samples without a piece in the cells around them that faces their way; and whether the
    pieces join components of the surface."""
    assert isinstance(cut.locator, CellLocator)
    feet = surface.own_feet()
    element = cut.locator.near((feet.points - cut.lattice.origin) / cut.spacing, feet)
    facing = dot(cut.locator.normal[element.clamp_min(0)], feet.normals) > 0
    found = (element >= 0) & facing
    part, component = cut.elements.component[cut.merged_into[element[found]]], feet.component[found]
    pairs = torch.stack([part, component], 1).unique(dim=0)
    return float((~found).double().mean()), len(pairs) > len(torch.unique(pairs[:, 0]))


def _connected_elements(
    pieces: CurvedPieces, labelled: LabelledTriangles, bridges: Tensor
) -> tuple[Tensor, CutElements]:
    """The element of each labelled triangle, and the elements.

    Labelled triangles of one cell that share an edge or a bridge are in one element. Edges and bridges between two
    cells glue their elements.
    """
    a, b = labelled.pairs(*torch.cat([pieces.neighbours(), bridges]).unbind(1))
    own = pieces.cell[labelled.triangle]
    inside = (own[a] == own[b]).all(1)
    # Within a cell a curve separates any two different labels.
    joined = inside & (labelled.label[a] == labelled.label[b])
    element = components(len(own), a[joined], b[joined])
    count = int(element.max()) + 1
    cell = torch.empty(count, 3, dtype=torch.int64, device=own.device)
    cell[element] = own
    a, b = element[a[~inside]], element[b[~inside]]
    step = cell[b] - cell[a]
    backwards = step.sum(1) < 0
    a, b = torch.where(backwards, b, a), torch.where(backwards, a, b)
    return element, CutElements(cell, distinct_glue(a, b, step.abs().argmax(1), count), count)


# Which pieces belong to the surface


@shaped
@dataclass(frozen=True)
class KeptPieces:
    """The pieces that belong to the surface."""

    pieces: CurvedPieces
    bridges: Int[Tensor, "b 2"]  # pairs of triangles that the surface joins although they share no edge
    detached_share: float = 0.0  # share of the area, by samples, on the largest part that came off, bridged or not
    speck_count: int = 0  # connected parts that were left out because they are small
    speck_share: float = 0.0  # their share of the area, by samples


def pieces_of_surface(pieces: CurvedPieces, lattice: Lattice, surface: Surface) -> KeptPieces:
    """The pieces that belong to the surface, judged by the area of its samples on each connected part.

    Where closest points jump between two sheets, scraps of a third sheet appear between them. No samples lie on scraps,
    and they are left out. Where a neck is thinner than the cells, the pieces come apart although the surface says that
    they are one component. A bridge then joins them where they are nearest to each other. Parts that are still much
    smaller than the largest one are left out too: level sets and sets of splats have specks that nobody meant, and each
    would add a constant of its own to the solution.
    """
    none = torch.empty(0, 2, dtype=torch.int64, device=pieces.edge.device)
    part = components(len(pieces.edge), *pieces.neighbours().unbind(1))
    count = int(part.max()) + 1
    if count == 1:
        return KeptPieces(pieces, none)
    triangle = _nearest_triangle(pieces, surface, lattice.spacing)
    samples = surface.own_areas().detach()
    sampled = samples.new_zeros(count).index_add_(0, part[triangle], samples)
    areas = pieces.areas().to(samples)
    area = samples.new_zeros(count).index_add_(0, part, areas)
    real = sampled >= MIN_SAMPLED_AREA_RATIO * area
    real[sampled.argmax()] = True
    component = _majority_component(part[triangle], surface.component, samples, count)
    bridges = _bridges(pieces, torch.where(real[part], part, -1), component, sampled, lattice)
    whole = components(count, *part[bridges].unbind(1))
    largest = sampled.new_zeros(count).index_add_(0, whole, torch.where(real, sampled, 0))
    speck = real & (largest[whole] < MAX_SPECK_AREA_RATIO * largest.max())
    # Of every component of the surface all parts but the largest have come off.
    detached = torch.where(real & ~speck, sampled, 0)
    order = torch.argsort(detached, descending=True)
    detached[order[first_of_each(component[order], surface.component_count).clamp_max(count - 1)]] = 0
    keep = (real & ~speck)[part]
    number = torch.cumsum(keep, 0) - 1
    bridges = number[bridges[keep[bridges].all(1)]]
    total = float(samples.sum())
    return KeptPieces(
        pieces.take(keep),
        bridges,
        detached_share=float(detached.max()) / total,
        speck_count=len(torch.unique(whole[speck])),
        speck_share=float(sampled[speck].sum()) / total,
    )


def _nearest_triangle(pieces: CurvedPieces, surface: Surface, spacing: float) -> Tensor:
    """The triangle (m,) that each sample of the surface lies on: a near one that faces the same way."""
    corner = pieces.six_nodes[:, :3].detach()
    normal = unit(torch.linalg.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0]))
    normal = torch.where(dot(normal, pieces.outward)[:, None] < 0, -normal, normal)
    feet = surface.own_feet().detach()
    near, distance = k_nearest(corner.mean(1), min(NEAREST_PIECES_COMPARED, len(corner)), feet.points)
    turned = 1 - (normal[near] * feet.normals[:, None]).sum(-1)
    return near.gather(1, (distance / spacing + turned).argmin(1, keepdim=True))[:, 0]


def _majority_component(part: Tensor, component: Tensor, samples: Tensor, count: int) -> Tensor:
    """The component (count,) of the surface that most samples on each part belong to; 0 for a part without samples."""
    labels = int(component.max()) + 1
    votes = samples.new_zeros(count * labels).index_add_(0, part * labels + component, samples)
    return votes.reshape(count, labels).argmax(1)


def _bridges(pieces: CurvedPieces, part: Tensor, component: Tensor, size: Tensor, lattice: Lattice) -> Tensor:
    """Pairs (b, 2) of triangles that join the parts of one component of the surface.

    part (t,): of each triangle, -1 for none. component, size: of each part. Triangles are paired where a part is
    nearest to the others. They must face the same way and lie in one cell or in two cells with a common face.
    """
    centre = pieces.six_nodes[:, :3].detach().mean(1)
    found = [torch.empty(0, 2, dtype=torch.int64, device=part.device)]
    for label in torch.unique(component[part[part >= 0]]).tolist():
        rows = ((part >= 0) & (component[part] == label)).nonzero()[:, 0]
        parts = torch.unique(part[rows])
        for one in parts[size[parts].argsort(descending=True)][1:].tolist():
            mine, others = rows[part[rows] == one], rows[part[rows] != one]
            near, away = k_nearest(centre[others], min(NEAREST_PIECES_COMPARED, len(others)), centre[mine])
            a, b = mine[:, None].expand_as(near).reshape(-1), others[near].reshape(-1)
            facing = dot(pieces.outward[a], pieces.outward[b]) > 0
            beside = (pieces.cell[a] - pieces.cell[b]).abs().sum(1) <= 1
            away = torch.where(facing & beside, away.reshape(-1), torch.inf)
            close = away <= min(MAX_BRIDGE_LENGTH_RATIO * float(away.min()), lattice.spacing)
            found.append(torch.stack([a, b], 1)[close])
    return torch.cat(found)


def _quadrature_on_curved(
    parts: SubTriangles, shape: CurvedTriangles, pieces: CurvedPieces, count: int
) -> tuple[Quadrature, Tensor, Frames]:
    """A quadrature with `count` points on each part of the six-node triangles; the points (q, 3) below them on the flat
    triangles; and the tangent frames at both."""
    rule, weights = (pieces.six_nodes.new_tensor(part) for part in TRIANGLE_RULES[count])
    source = parts.source.repeat_interleave(count)
    bary = (rule @ parts.corners).reshape(-1, 3)
    a, b, c = (parts.corners[:, i].repeat_interleave(count, 0) for i in range(3))
    own = pieces.flat[source]
    first, second = ((step[:, None] @ own)[:, 0] for step in (b - a, c - a))
    along, across = shape.derivative(source, bary, b - a), shape.derivative(source, bary, c - a)
    normal = torch.linalg.cross(along, across)
    length = normal.norm(dim=1)
    tiny = torch.finfo(length.dtype).tiny
    unit_normal = normal / length.clamp_min(tiny)[:, None]
    side = dot(unit_normal, pieces.outward[source])[:, None]
    quadrature = Quadrature(
        shape.position(source, bary),
        torch.where(side < 0, -unit_normal, unit_normal),
        length * (0.5 * weights).repeat(len(parts.source)),
    )
    frames = _frames(along, across, first, second, length)
    return quadrature, (bary[:, None] @ own)[:, 0], frames


def _frames(along: Tensor, across: Tensor, first: Tensor, second: Tensor, area: Tensor) -> Frames:
    """Orthonormal tangents of the lifted piece by Gram-Schmidt from its derivatives along, across (q, 3); and the same
    linear combinations of the derivatives first, second (q, 3) of the flat piece. area (q,): |along x across|."""
    size = dot(along, along).sqrt()
    size = size.clamp_min(torch.finfo(size.dtype).tiny)
    share, height = dot(along, across) / size**2, (area / size).clamp_min(torch.finfo(size.dtype).tiny)

    def combined(p: Tensor, q: Tensor) -> Tensor:
        return torch.stack([p / size[:, None], (q - share[:, None] * p) / height[:, None]], 1)

    lifted, flat = combined(along, across), combined(first, second)
    degenerate = (area < MIN_LIFTED_AREA_RATIO * torch.linalg.cross(first, second).norm(dim=1))[:, None, None]
    return Frames(torch.where(degenerate, 0.0, flat), torch.where(degenerate, 0.0, lifted))


# From points on the surface to elements

_NEIGHBOURS_BY_STEPS = [torch.zeros(1, 3, dtype=torch.int64)] + [
    torch.tensor(
        [[i, j, k] for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1) if abs(i) + abs(j) + abs(k) == n]
    )
    for n in (1, 2, 3)
]


@shaped
@dataclass(frozen=True)
class CellLocator:
    """Finds the element of a point on the surface: by its cell, then by the nearest centre and mean normal."""

    low: Tensor
    shape: Tensor
    key: Int[Tensor, " e"]  # increasing: key of each element's cell
    order: Int[Tensor, " e"]  # the element that each key belongs to
    centre: Float[Tensor, "e 3"]  # in units of cells
    normal: Float[Tensor, "e 3"]
    lattice: Lattice | None = None
    curves: InterfaceCurves = NO_CURVES
    label: Int[Tensor, " e"] | None = None  # of each element; None if there are no curves
    max_cost: float = MAX_COST_OF_FAR_PIECE  # of a piece outside the cells around a point

    def find(self, coordinate: Tensor, feet: ClosestPoints) -> Tensor:
        """Element (n,) of the best sheet in the cell or its neighbours, otherwise of the nearest piece; -1 for none.

        coordinate (n, 3): of the feet, in units of cells.
        """
        return self._or_farther(coordinate, feet, self.near(coordinate, feet))

    def near(self, coordinate: Tensor, feet: ClosestPoints) -> Tensor:
        """Element (n,) of the best sheet in the cell, otherwise in the nearest neighbouring cells; -1 for none."""
        cell = torch.floor(coordinate).long()
        best = torch.full((len(cell),), torch.inf, dtype=coordinate.dtype, device=cell.device)
        element = torch.full((len(cell),), -1, dtype=torch.int64, device=cell.device)
        facing = torch.zeros_like(element, dtype=torch.bool)
        label = None
        if self.label is not None and self.lattice is not None:
            label = self.curves.label(feet.points, cell, feet.normals, self.lattice)
        for radius, offsets in enumerate(_NEIGHBOURS_BY_STEPS):
            # A sheet that faces the other way does not hold the foot. It is used only if there is no other.
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
                        cost, right = cost + OTHER_SIDE_COST_CELLS * other, right & ~other
                    better = cost < best[at]
                    best[at[better]], element[at[better]] = cost[better], found[better]
                    facing[at] |= right
        return element

    def _or_farther(self, coordinate: Tensor, feet: ClosestPoints, element: Tensor) -> Tensor:
        """element (n,), where it is -1 replaced by the nearest one that faces the same way, if its cost allows."""
        rows = (element < 0).nonzero()[:, 0]
        if not len(rows):
            return element
        near, distance = k_nearest(self.centre, min(NEAREST_PIECES_COMPARED, len(self.centre)), coordinate[rows])
        turned = 1 - (self.normal[near] * feet.normals[rows, None]).sum(-1)
        cost, which = (distance + turned).min(1)
        element = element.clone()
        element[rows] = torch.where(cost <= self.max_cost, near.gather(1, which[:, None])[:, 0], -1)
        return element


def _cell_key(cell: Tensor, low: Tensor, shape: Tensor) -> Tensor:
    inside = ((cell >= low) & (cell < low + shape)).all(-1)
    return torch.where(inside, cell_keys((cell - low).unbind(-1), shape), -1)


def _cell_locator(elements: CutElements, quadrature: Quadrature, lattice: Lattice, element: Tensor) -> CellLocator:
    quadrature = quadrature.detach()
    count, weights = len(elements.cell), quadrature.weights
    coordinate = (quadrature.points - lattice.origin) / lattice.spacing
    total = weights.new_zeros(count).index_add_(0, element, weights).clamp_min(torch.finfo(weights.dtype).tiny)
    centre = torch.zeros_like(coordinate[:count]).index_add_(0, element, coordinate * weights[:, None])
    towards = torch.zeros_like(centre).index_add_(0, element, quadrature.normals * weights[:, None])
    axis, _ = mean_normals(quadrature, element, count)
    short = dot(towards, towards).sqrt() < MIN_MEAN_NORMAL_LENGTH * total
    normal = torch.where(short[:, None], axis, unit(towards))
    low = elements.cell.amin(0) - 2
    shape = elements.cell.amax(0) + 3 - low
    key, order = torch.sort(_cell_key(elements.cell, low, shape))
    return CellLocator(low, shape, key, order, centre / total[:, None], normal)
