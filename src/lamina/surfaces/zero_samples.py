"""Even samples of a zero set: points drawn on flat pieces in the cells of a lattice, thinned, then moved to phi = 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import KDTree
from torch import Tensor

from lamina.errors import InputError
from lamina.geometry.tetrahedra import clip_to_box, cut_tetrahedra
from lamina.geometry.triangles import dot, points_in, triangle_areas, triangle_normals
from lamina.linear.graph import components, numbered
from lamina.shapes import Float, Int, shaped
from lamina.surfaces.poisson_disk import even_subset, owners
from lamina.surfaces.zero_set import (
    CrossedCells,
    Function,
    crossed_cells,
    crosses_sides,
    in_box,
    no_zero_set_found,
    project,
    roots,
    values,
)

# Pieces for each sample, from which the samples are chosen: at half samples are spread less evenly, double takes twice
# the time of the choice.
CANDIDATES_PER_SAMPLE = 6
# Cells are halved if more than this share of the pieces is nearer to an opposite sheet than the diagonal of a cell.
# Chosen by trial: at half, surfaces with few thin places get four times the cells; at double, those places stay coarse.
MAX_FACING_SHARE = 0.05
# Pieces at which that share is measured: its standard error is then at most 0.005 at a share of 0.05.
FACING_PROBES = 2000
MAX_FINENESS = 4  # factor by which cells are at most finer than the samples need: two halvings, 16 times as many cells
# Cosine between the normals of two pieces below which they face each other; 120 degrees, as in poisson_disk.
MAX_COSINE_ACROSS_CELL = -0.5


@shaped
@dataclass(frozen=True)
class ZeroSamples:
    """Samples of a zero set, with their share of its area."""

    points: Float[Tensor, "m 3"]
    normals: Float[Tensor, "m 3"]
    areas: Float[Tensor, " m"]
    component: Int[Tensor, " m"]
    covering_radius: float  # no point of the zero set is farther from the samples of its component
    open: bool  # whether the box cuts it


def sample_zero_set(phi: Function, box: Tensor, samples: int, seed: int) -> ZeroSamples:
    """About `samples` points on phi = 0 in the box (2, 3), evenly spread over all components."""
    flat = _resolved_pieces(phi, box, samples)
    generator = torch.Generator().manual_seed(seed)
    corners = flat.vertices[flat.triangles]
    areas, part = triangle_areas(corners), flat.component[flat.triangles[:, 0]]
    drawn = points_in(corners, torch.rand(len(corners), 2, generator=generator, dtype=torch.float64).to(corners))
    p, n, label, weight = (v.cpu().numpy() for v in (drawn.double(), flat.normals, part, areas.double()))
    some = _by_area(weight, CANDIDATES_PER_SAMPLE * samples, seed)
    chosen = some[even_subset(p[some], n[some], label[some], samples, weight.sum(), seed)]
    chosen = torch.from_numpy(chosen).to(part)
    points, normals, usable = _settle(phi, box, drawn[chosen], flat, chosen)
    points, normals, component = points[usable], normals[usable], part[chosen][usable]
    if not len(points):
        raise InputError(
            "phi changes sign in the box, but its gradient vanishes or is not finite wherever it does; "
            "give a phi that does not jump there (for occupancies, the logits)."
        )
    label = np.concatenate([component.cpu().numpy(), part.cpu().numpy()])
    kept = np.isin(label, component.cpu().numpy())  # pieces of components without a sample are left out
    owner, gap = owners(np.concatenate([points.double().cpu().numpy(), p])[kept], label[kept], np.arange(len(points)))
    share = np.bincount(owner, np.concatenate([np.zeros(len(points)), weight])[kept], len(points))
    return ZeroSamples(
        points, normals, torch.from_numpy(share).to(points), numbered(len(flat.vertices), component),
        gap + flat.spacing, flat.clipped and crosses_sides(phi, box),
    )  # fmt: skip


def _by_area(weight: NDArray, count: int, seed: int) -> NDArray:
    """About count of the pieces, drawn in proportion to their areas (t,); all, if there are no more than that."""
    if len(weight) <= count:
        return np.arange(len(weight))
    # Each piece stays with probability min(1, c weight), where c is such that count pieces stay on average.
    c = count / weight.sum()
    for _ in range(8):
        c *= count / np.minimum(1, c * weight).sum()
    return (np.random.default_rng(seed).random(len(weight)) < c * weight).nonzero()[0]


@shaped
@dataclass(frozen=True)
class _Flat:
    """Flat triangles near the zero set, between points of both signs."""

    vertices: Float[Tensor, "v 3"]
    triangles: Int[Tensor, "t 3"]
    normals: Float[Tensor, "t 3"]  # towards positive phi
    component: Int[Tensor, " v"]
    edge: Float[Tensor, "t 2 3"]  # an edge of the lattice that each triangle's piece crosses
    values: Float[Tensor, "t 2"]  # phi at its ends
    spacing: float
    clipped: bool  # whether the zero set reaches the sides of the box


def _resolved_pieces(phi: Function, box: Tensor, samples: int) -> _Flat:
    """Pieces of cells that are no larger than the spacing of the samples or the distance between opposite sheets."""
    finer = 1
    while True:
        crossed = crossed_cells(phi, box, samples * finer**2)
        if not len(crossed.cell):
            raise InputError(no_zero_set_found(phi, box))
        flat = _flat_pieces(crossed, box)
        if finer == MAX_FINENESS or _thin_share(flat) <= MAX_FACING_SHARE:
            return flat
        finer *= 2


def _thin_share(flat: _Flat) -> float:
    """Share of the pieces, measured at some of them, that face another piece within the diagonal of a cell."""
    centre = flat.vertices[flat.triangles].mean(1).double().cpu().numpy()
    normal = flat.normals.double().cpu().numpy()
    rows = np.random.default_rng(0).permutation(len(centre))[:FACING_PROBES]
    near = KDTree(centre).query_ball_point(centre[rows], 3**0.5 * flat.spacing)
    pairs = zip(rows, near, strict=True)
    faced = [bool((normal[others] @ normal[row] < MAX_COSINE_ACROSS_CELL).any()) for row, others in pairs]
    return float(np.mean(faced))


def _flat_pieces(crossed: CrossedCells, box: Tensor) -> _Flat:
    pieces = cut_tetrahedra(crossed.corner, crossed.value)
    ends = crossed.position[pieces.ends]
    vertices = torch.lerp(ends[:, 0], ends[:, 1], pieces.fraction[:, None])
    margin = 1e-9 * crossed.lattice.spacing
    clipped = bool((vertices <= box[0] + margin).any() | (vertices >= box[1] - margin).any())
    boxed = clip_to_box(pieces.triangles, vertices, box, margin)
    triangles, vertices, source = boxed.triangles, boxed.vertices, pieces.triangles[boxed.source, 0]
    edge, value = ends[source], crossed.value[pieces.ends][source]
    uphill = torch.where(value[:, :1] < 0, edge[:, 1] - edge[:, 0], edge[:, 0] - edge[:, 1])
    normal = triangle_normals(vertices[triangles])
    normal = torch.where(dot(normal, uphill)[:, None] < 0, -normal, normal)
    a, b, c = triangles.unbind(1)
    component = components(len(vertices), torch.cat([a, a]), torch.cat([b, c]))
    return _Flat(vertices, triangles, normal, component, edge, value, crossed.lattice.spacing, clipped)


def _settle(phi: Function, box: Tensor, x: Tensor, flat: _Flat, piece: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Points of the zero set near points x (n, 3) of pieces (n,), normals there, and which (n,) are usable.

    A point is first looked for along the normal of the piece, within half a cell. Where phi has only one sign there, it
    is looked for on an edge of the lattice that crosses the zero set. Newton steps along the gradient follow.
    """
    step = 0.5 * flat.spacing * flat.normals[piece]
    a, b = (_into(box, v) for v in (x - step, x + step))
    fa, fb = values(phi, a), values(phi, b)
    other = ((fa < 0) == (fb < 0)).nonzero()[:, 0]
    edge = flat.edge[piece[other]]
    a[other], b[other] = _into(box, edge[:, 0]), _into(box, edge[:, 1])
    fa[other], fb[other] = flat.values[piece[other]].unbind(1)
    size = float((box[1] - box[0]).norm())
    points, normals, offset = project(phi, size, roots(phi, a, b, fa, fb), 1e-3 * flat.spacing, steps=3)
    usable = offset.isfinite() & in_box(box, points) & (dot(normals, normals) > 0.5)
    return points, normals, usable


def _into(box: Tensor, x: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x, box[0]), box[1])
