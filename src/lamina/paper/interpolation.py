"""Interpolation in the band as a sparse matrix: tensor-product cubic, with quintic corrections along grid lines."""

from __future__ import annotations

import enum

import torch
from torch import Tensor

from lamina.errors import InputError
from lamina.grid.band import Band
from lamina.linear.operator import SparseOperator, sparse_rows


def lagrange_weights(t: Tensor, degree: int) -> Tensor:
    """Weights (..., p+1) of the nodes -(p-1)/2, ..., (p+1)/2 for the value at t (...), 0 <= t <= 1.

    w_j(t) = prod_{m != j} (t - x_m) / (x_j - x_m).
    """
    nodes = [j - (degree - 1) // 2 for j in range(degree + 1)]
    weights = []
    for j in nodes:
        w, scale = torch.ones_like(t), 1.0
        for m in nodes:
            if m != j:
                w = w * (t - m)
                scale *= j - m
        weights.append(w / scale)
    return torch.stack(weights, -1)


class Lines(enum.IntEnum):
    """Number of grid lines along each axis on which cubic interpolation gets the quintic correction."""

    NONE = 0  # plain tensor-product cubic: 64 entries, error O(dx^4)
    NEAREST = 1  # on the line nearest to the point: 70 entries, error O(dx^5)
    BILINEAR = 2  # on the four lines around it: 88 entries, error O(dx^6)


STENCIL_ENTRIES = {Lines.NONE: 64, Lines.NEAREST: 70, Lines.BILINEAR: 88}  # entries of a row
INTERPOLATION_CHUNK = {"cpu": 2**15, "cuda": 2**19}  # points at a time


def cubic_stencil(band: Band, points: Tensor, component: Tensor, lines: Lines) -> tuple[Tensor, Tensor]:
    """Nodes (n, m) int32 and weights (n, m) of cubic interpolation at points (n, 3), corrected along lines.

    The error of tensor-product cubic interpolation is sum_d c(t_d) dx^4 d^4u/dx_d^4, with one term for each axis.
    One-dimensional quintic minus cubic interpolation along a grid line of direction d estimates the term of axis d. It
    needs only the two nodes at the ends of the line, beyond the cubic stencil. So 88 entries have the order of the 216
    entries of a tensor-product quintic, in a narrower band. Weights carry the gradients of the points.
    """
    index = torch.empty(len(points), STENCIL_ENTRIES[lines], dtype=torch.int32, device=points.device)
    weights = []
    # In chunks of rows, because intermediate arrays are larger than the result.
    size = INTERPOLATION_CHUNK[points.device.type]
    for i in range(0, len(points), size):
        rows = slice(i, i + size)
        cell, t = _cells(band, points[rows])
        _fill_nodes(band, cell, t.detach(), component[rows], lines, index[rows])
        weights.append(_cubic_weights(t, lines))
    return index, torch.cat(weights) if weights else points.new_empty(0, STENCIL_ENTRIES[lines])


def _fill_nodes(band: Band, cell: Tensor, t: Tensor, component: Tensor, lines: Lines, index: Tensor) -> None:
    n, device = len(cell), cell.device
    index[:, :64].view(n, 16, 4).copy_(_look_up(band, cell, component, _NODE_ROWS.to(device), run=4))
    column = 64
    for axis in range(3 if lines else 0):
        for reach in (-2, 3):
            if lines is Lines.NEAREST:
                offset = (t > 0.5).long()[:, None]
            else:
                offset = _CORNERS.to(device)[:, _CORNER_AXES[axis]].clone()
            offset[..., axis] = reach
            found = band.find(cell, component, offset)  # (n, 1) or (n, 4)
            _require_inside(found, band)
            index[:, column : column + found.shape[1]] = found.to(torch.int32)
            column += found.shape[1]


def _cubic_weights(t: Tensor, lines: Lines) -> Tensor:
    """Weights (n, m) at local coordinates t (n, 3) in the cells."""
    n, cubic = len(t), lagrange_weights(t, 3)  # (n, 3, 4)
    plane = cubic[:, 0, :, None] * cubic[:, 1, None, :]
    box = plane[..., None] * cubic[:, 2, None, None, :]
    if lines is Lines.NONE:
        return box.reshape(n, 64)
    correction = lagrange_weights(t, 5)
    correction[:, :, 1:5] -= cubic
    share = torch.stack([1 - t, t], -1)  # (n, 3, 2): shares of the two lines beside the point, for each axis
    if lines is Lines.NEAREST:
        share = (share >= 0.5).to(t.dtype)
        share[:, :, 1] = 1 - share[:, :, 0]
    ends = []
    for axis, (a, b) in enumerate(((1, 2), (0, 2), (0, 1))):
        across = share[:, a, :, None] * share[:, b, None, :]  # (n, 2, 2)
        inner = correction[:, axis, 1:5, None, None] * across[:, None]  # (n, 4, 2, 2), axis first
        middle = [slice(None), slice(1, 3), slice(1, 3), slice(1, 3)]
        middle[1 + axis] = slice(None)
        box[tuple(middle)] += inner.movedim(1, 1 + axis)
        for end in (0, 5):
            weight = correction[:, axis, end, None]
            ends.append(weight if lines is Lines.NEAREST else weight * across.reshape(n, 4))
    return torch.cat([box.reshape(n, 64), *ends], 1)


def linear_stencil(band: Band, points: Tensor, component: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes (n, 8) int32 and weights (n, 8) of trilinear interpolation at points (n, 3)."""
    n = len(points)
    cell, t = _cells(band, points)
    index = _look_up(band, cell, component, _CORNERS.to(t.device)[:, [0, 1, 2]], run=2).reshape(n, 8)
    s = lagrange_weights(t, 1)
    return index, (s[:, 0, :, None, None] * s[:, 1, None, :, None] * s[:, 2, None, None, :]).reshape(n, 8)


def _cells(band: Band, points: Tensor) -> tuple[Tensor, Tensor]:
    """Cell (n, 3) int64 of each point and its coordinates (n, 3) in the cell, 0 to 1."""
    coordinate = (points - band.lattice.origin) / band.spacing
    cell = torch.floor(coordinate.detach())
    return cell.long(), coordinate - cell


# The corners of a square with a third coordinate, and the order of the coordinates for lines along each axis.
_CORNERS = torch.tensor([[i, j, 0] for i in (0, 1) for j in (0, 1)])
_CORNER_AXES = ([2, 0, 1], [0, 2, 1], [0, 1, 2])
# The 16 rows of four nodes along k in the 4 x 4 x 4 box of a cell.
_NODE_ROWS = torch.tensor([[i, j, -1] for i in range(-1, 3) for j in range(-1, 3)])


def _look_up(band: Band, cell: Tensor, component: Tensor, offsets: Tensor, run: int) -> Tensor:
    """Indices (n, len(offsets), run) int32 of runs of nodes along k.

    Nodes that follow each other along k follow each other in memory, so that one look-up finds a run.
    """
    first = band.find(cell, component, offsets, run=run)
    _require_inside(first, band)
    return first.to(torch.int32)[..., None] + torch.arange(run, dtype=torch.int32, device=cell.device)


def _require_inside(index: Tensor, band: Band) -> None:
    missing = int((index < 0).any(1).sum())
    if missing:
        raise InputError(
            f"{missing} of {len(index)} interpolation stencils leave the band of spacing {band.spacing:g}: "
            "the points are off the surface, or its closest points jump; check the points or change the spacing."
        )


def interpolation(band: Band, points: Tensor, component: Tensor, lines: Lines) -> SparseOperator:
    """The matrix (n, nodes) that evaluates a field of the band at points (n, 3) on the surface, with gradients."""
    return sparse_rows(*cubic_stencil(band, points, component, lines), len(band))


def interpolation_matrix(band: Band, points: Tensor, component: Tensor, lines: Lines) -> Tensor:
    """The same as a plain CSR matrix, without gradients."""
    return interpolation(band, points.detach(), component, lines).matrix


def cubic_or_linear_matrix(band: Band, points: Tensor, component: Tensor) -> Tensor:
    """Cubic interpolation_matrix; trilinear at points where the band lacks a node of the cubic stencil."""
    cell, _ = _cells(band, points)
    whole = (band.find(cell, component, _NODE_ROWS.to(cell.device), run=4) >= 0).all(1)
    width = torch.where(whole, STENCIL_ENTRIES[Lines.NONE], 8)
    crow = torch.zeros(len(points) + 1, dtype=torch.int32, device=points.device)
    crow[1:] = torch.cumsum(width, 0)
    index = torch.empty(int(crow[-1]), dtype=torch.int32, device=points.device)
    weights = torch.empty(len(index), dtype=points.dtype, device=points.device)
    cubic = torch.repeat_interleave(whole, width)
    for rows, entries, stencil in ((whole, cubic, _cubic), (~whole, ~cubic, linear_stencil)):
        found = stencil(band, points[rows], component[rows])
        index[entries], weights[entries] = found[0].reshape(-1), found[1].reshape(-1)
    return torch.sparse_csr_tensor(crow, index, weights, size=(len(points), len(band)), check_invariants=False)


def _cubic(band: Band, points: Tensor, component: Tensor) -> tuple[Tensor, Tensor]:
    return cubic_stencil(band, points, component, Lines.NONE)
