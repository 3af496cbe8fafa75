"""Even samples of a zero set: its flat pieces on a lattice, their vertices thinned, then moved to phi = 0."""

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
from lamina.surfaces.poisson_disk import even_subset, owners
from lamina.surfaces.zero_set import Crossed, Function, crosses_sides, find, inside, project, roots, values, why_empty

CANDIDATES = 6  # pieces for each sample, from which the samples are taken
THIN, ASKED = 0.05, 2000  # share of the pieces, measured at so many of them, near an opposite sheet: take finer cells,
FINEST = 4  # by up to this factor


@dataclass(frozen=True)
class ZeroSamples:
    """Samples of a zero set, with their share of its area."""

    points: Tensor  # (m, 3)
    normals: Tensor  # (m, 3)
    areas: Tensor  # (m,)
    component: Tensor  # (m,) int64
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
    some = _by_area(weight, CANDIDATES * samples, seed)
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
    kept = np.isin(label, component.cpu().numpy())  # not the pieces of components without a sample
    owner, gap = owners(np.concatenate([points.double().cpu().numpy(), p])[kept], label[kept], np.arange(len(points)))
    share = np.bincount(owner, np.concatenate([np.zeros(len(points)), weight])[kept], len(points))
    return ZeroSamples(
        points, normals, torch.from_numpy(share).to(points), numbered(len(flat.vertices), component),
        gap + flat.spacing, flat.clipped and crosses_sides(phi, box),
    )  # fmt: skip


def _by_area(weight: NDArray, count: int, seed: int) -> NDArray:
    """At most count of the pieces, in proportion to their areas (t,)."""
    if len(weight) <= count:
        return np.arange(len(weight))
    # Each stays with probability min(1, c weight), c such that count do.
    c = count / weight.sum()
    for _ in range(8):
        c *= count / np.minimum(1, c * weight).sum()
    return (np.random.default_rng(seed).random(len(weight)) < c * weight).nonzero()[0]


@dataclass(frozen=True)
class _Flat:
    """Flat triangles near the zero set, between points of both signs."""

    vertices: Tensor  # (v, 3)
    triangles: Tensor  # (t, 3) int64
    normals: Tensor  # (t, 3) towards positive phi
    component: Tensor  # (v,) int64
    edge: Tensor  # (t, 2, 3) an edge of the lattice that each triangle's piece crosses
    values: Tensor  # (t, 2) phi at its ends
    spacing: float
    clipped: bool  # whether the zero set reaches the sides of the box


def _resolved_pieces(phi: Function, box: Tensor, samples: int) -> _Flat:
    """Pieces of cells no larger than the spacing of the samples, nor than the distance between opposite sheets."""
    finer = 1
    while True:
        crossed = find(phi, box, samples * finer**2)
        if not len(crossed.cell):
            raise InputError(why_empty(phi, box))
        flat = _flat_pieces(crossed, box)
        if finer == FINEST or _thin_share(flat) <= THIN:
            return flat
        finer *= 2


def _thin_share(flat: _Flat) -> float:
    """Share of (some of) the pieces nearer than the longest edge of a cell's tetrahedra to one that faces them."""
    centre = flat.vertices[flat.triangles].mean(1).double().cpu().numpy()
    normal = flat.normals.double().cpu().numpy()
    rows = np.random.default_rng(0).permutation(len(centre))[:ASKED]
    near = KDTree(centre).query_ball_point(centre[rows], 3**0.5 * flat.spacing)
    faced = [bool((normal[others] @ normal[row] < -0.5).any()) for row, others in zip(rows, near, strict=True)]
    return float(np.mean(faced))


def _flat_pieces(crossed: Crossed, box: Tensor) -> _Flat:
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
    """Points of the zero set near points x (n, 3) of pieces (n,), normals there, and which (n,) are to be used.

    Looked for along the normal of the piece within half a cell; where phi has one sign only there, on an edge of the
    lattice that crosses the zero set. Then to the last digit along the gradient.
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
    usable = offset.isfinite() & inside(box, points) & (dot(normals, normals) > 0.5)
    return points, normals, usable


def _into(box: Tensor, x: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x, box[0]), box[1])
