"""Triangles cut along the planes of a lattice, so that each piece lies in one cell."""

from __future__ import annotations

import torch
from torch import Tensor

# A corner lies on a plane if its distance is at most this, in cells, so that no sliver is cut off there. It is far more
# than rounding and far less than any piece that matters.
MAX_DISTANCE_ON_PLANE_CELLS = 1e-9
# A piece is dropped if no component of the cross product of two edges, in units of cells, exceeds this: it has no area
# but for rounding.
MAX_DROPPED_CROSS_PRODUCT = 1e-14


def cut_triangles(corners: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cut triangles (m, 3, 3), in units of cells, along all integer planes.

    Returns the pieces (p, 3, 3), the triangle (p,) that each came from, and the cell (p, 3) int64 that contains it. The
    union of the pieces is that of the triangles. Each pass halves the number of planes that a piece still crosses, so
    the number of passes is the logarithm of the size of the largest triangle.
    """
    origin = torch.arange(len(corners), device=corners.device)
    if not len(corners):
        return corners, origin, torch.zeros(0, 3, dtype=torch.int64, device=corners.device)
    for axis in range(3):
        done, done_origin = [], []
        while len(corners):
            x = corners[:, :, axis].detach()
            low, high = x.amin(1), x.amax(1)
            first, last = (
                torch.floor(low + MAX_DISTANCE_ON_PLANE_CELLS) + 1,
                torch.ceil(high - MAX_DISTANCE_ON_PLANE_CELLS) - 1,
            )
            crossed = (first <= last).nonzero()[:, 0]
            if not len(crossed):
                done.append(corners)
                done_origin.append(origin)
                break
            whole = (first > last).nonzero()[:, 0]
            done.append(corners.index_select(0, whole))
            done_origin.append(origin.index_select(0, whole))
            plane = torch.minimum(torch.maximum(torch.round(0.5 * (low + high)), first), last).index_select(0, crossed)
            corners, source = _split(corners.index_select(0, crossed), axis, plane)
            origin = origin.index_select(0, crossed).index_select(0, source)
        corners, origin = torch.cat(done), torch.cat(done_origin)
    return corners, origin, torch.floor(corners.detach().mean(1)).long()


def _split(corners: Tensor, axis: int, plane: Tensor) -> tuple[Tensor, Tensor]:
    """Split each triangle by its plane x[axis] = plane. Every triangle must have corners on both sides."""
    rows = torch.arange(len(corners), device=corners.device)
    side = corners[:, :, axis] - plane[:, None]
    above = side >= 0
    # a is the corner that is alone on its side; b and c follow in order.
    alone = torch.where(above.sum(1) == 1, above.long().argmax(1), (~above).long().argmax(1))
    flat, flat_side, start = corners.reshape(-1, 3), side.reshape(-1), 3 * rows
    corner = [start + (alone + i) % 3 for i in range(3)]
    a, b, c = (flat.index_select(0, i) for i in corner)
    sa, sb, sc = (flat_side.index_select(0, i) for i in corner)
    p, q = _crossing(a, b, sa, sb, axis, plane), _crossing(a, c, sa, sc, axis, plane)
    parts = torch.cat([torch.stack(t, 1) for t in ((a, p, q), (p, b, c), (p, c, q))])
    source = rows.repeat(3)
    u, v = parts[:, 1] - parts[:, 0], parts[:, 2] - parts[:, 0]
    real = (torch.linalg.cross(u, v).abs().amax(1) > MAX_DROPPED_CROSS_PRODUCT).nonzero()[:, 0]
    return parts.index_select(0, real), source.index_select(0, real)


def _crossing(a: Tensor, b: Tensor, sa: Tensor, sb: Tensor, axis: int, plane: Tensor) -> Tensor:
    """Where the segment a b meets the plane. The coordinate along the axis is that of the plane, without rounding."""
    point = a + (sa / (sa - sb))[:, None] * (b - a)
    point[:, axis] = plane
    return point


def segments_meet_unit_cell(start: Tensor, end: Tensor) -> Tensor:
    """Which segments (n,) have more than a point in common with the closed unit cell at the origin."""
    step = end - start
    # A segment at right angles to an axis gives +-inf there, or NaN if it lies in a border, which counts as inside.
    near, far = -start / step, (1 - start) / step
    enter = torch.minimum(near, far).nan_to_num(nan=-torch.inf).amax(1).clamp_min(0)
    leave = torch.maximum(near, far).nan_to_num(nan=torch.inf).amin(1).clamp_max(1)
    return (leave - enter) * step.abs().amax(1) > MAX_DISTANCE_ON_PLANE_CELLS
