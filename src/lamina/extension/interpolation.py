"""Interpolation in the band, as a sparse matrix: tensor-product cubic, sharpened along grid lines."""

from __future__ import annotations

import enum

import torch
from torch import Tensor

from lamina.band import Band
from lamina.errors import InputError


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
    """How many grid lines an axis carry the quintic correction of cubic interpolation."""

    NONE = 0  # plain tensor-product cubic: 64 entries, error O(dx^4)
    NEAREST = 1  # on the line nearest to the point: 70 entries, error O(dx^5)
    BILINEAR = 2  # on the four lines around it: 88 entries, error O(dx^6)


def cubic_stencil(band: Band, points: Tensor, component: Tensor, lines: Lines) -> tuple[Tensor, Tensor]:
    """Nodes (n, m) int32 and weights (n, m) of cubic interpolation at points (n, 3), corrected along lines.

    The error of tensor-product cubic interpolation is sum_d c(t_d) dx^4 d^4u/dx_d^4: one term an axis.
    One-dimensional quintic minus cubic interpolation along a grid line of direction d estimates the term of
    axis d and needs only the two nodes at the ends of the line beyond the cubic stencil. So 88 entries give
    the order of the 216 of a tensor-product quintic, in a narrower band.
    """
    n, device = len(points), points.device
    coordinate = (points - band.lattice.origin) / band.spacing
    cell = torch.floor(coordinate)
    t = coordinate - cell
    cell = cell.long()
    cubic = lagrange_weights(t, 3)  # (n, 3, 4)
    index = _look_up(band, cell, component, _ROWS.to(device), run=4)  # (n, 16, 4)
    weights = (cubic[:, 0, :, None] * cubic[:, 1, None, :]).reshape(n, 16, 1) * cubic[:, 2, None, :]
    weights = weights.reshape(n, 4, 4, 4)
    if lines is Lines.NONE:
        return index.reshape(n, 64), weights.reshape(n, 64)
    correction = lagrange_weights(t, 5)
    correction[:, :, 1:5] -= cubic
    share = torch.stack([1 - t, t], -1)  # (n, 3, 2): what the two lines beside the point get, an axis
    if lines is Lines.NEAREST:
        share = (share >= 0.5).to(t.dtype)
        share[:, :, 1] = 1 - share[:, :, 0]
    end_index, end_weights = [], []
    for axis, (a, b) in enumerate(((1, 2), (0, 2), (0, 1))):
        across = share[:, a, :, None] * share[:, b, None, :]  # (n, 2, 2)
        inner = correction[:, axis, 1:5, None, None] * across[:, None]  # (n, 4, 2, 2), axis first
        box = [slice(None), slice(1, 3), slice(1, 3), slice(1, 3)]
        box[1 + axis] = slice(None)
        weights[tuple(box)] += inner.movedim(1, 1 + axis)
        ends = torch.stack([correction[:, axis, 0], correction[:, axis, 5]], 1)  # (n, 2)
        if lines is Lines.NEAREST:
            offset = (share[:, :, 1] > 0.5).long()
            for side, reach in enumerate((-2, 3)):
                offset[:, axis] = reach
                end_index.append(band.find(cell + offset, component)[:, None])
                end_weights.append(ends[:, side, None])
        else:
            corner = torch.tensor([[i, j] for i in (0, 1) for j in (0, 1)], device=device)
            for side, reach in enumerate((-2, 3)):
                offset = torch.full((4, 3), reach, device=device)
                offset[:, a], offset[:, b] = corner[:, 0], corner[:, 1]
                end_index.append(band.find(cell[:, None] + offset, component[:, None]))
                end_weights.append(ends[:, side, None] * across.reshape(n, 4))
    extra = torch.cat(end_index, 1)
    _require_inside(extra, band)
    return (
        torch.cat([index.reshape(n, 64), extra.to(torch.int32)], 1),
        torch.cat([weights.reshape(n, 64), *end_weights], 1),
    )


# Rows of four nodes in k that make up the 4 x 4 x 4 box of a cell.
_ROWS = torch.tensor([[i, j, -1] for i in range(-1, 3) for j in range(-1, 3)])


def _look_up(band: Band, cell: Tensor, component: Tensor, offsets: Tensor, run: int) -> Tensor:
    """Indices (n, len(offsets), run) int32 of runs of nodes in k; nodes that follow each other in k follow
    each other in memory, so one look-up finds a run."""
    first = band.find(cell[:, None] + offsets, component[:, None], run=run)
    _require_inside(first, band)
    return first.to(torch.int32)[..., None] + torch.arange(run, dtype=torch.int32, device=cell.device)


def _require_inside(index: Tensor, band: Band) -> None:
    missing = int((index < 0).any(1).sum())
    if missing:
        raise InputError(
            f"{missing} of {len(index)} interpolation stencils leave the band of spacing {band.spacing:g}: "
            "the points are off the surface, or its closest points jump; check the points or change the spacing."
        )


def interpolation_matrix(band: Band, points: Tensor, component: Tensor, lines: Lines) -> Tensor:
    """CSR matrix (n, nodes) that takes a band field to its values at points (n, 3) on the surface."""
    index, weights = cubic_stencil(band, points, component, lines)
    return rows_to_csr(index, weights, len(band))


def rows_to_csr(index: Tensor, values: Tensor, columns: int) -> Tensor:
    """CSR matrix with the same number of entries in every row, int32 indices."""
    rows, width = index.shape
    crow = torch.arange(rows + 1, dtype=torch.int32, device=index.device) * width
    return torch.sparse_csr_tensor(
        crow, index.reshape(-1), values.reshape(-1), size=(rows, columns), check_invariants=False
    )
