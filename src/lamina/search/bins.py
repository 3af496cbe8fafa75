"""Exact nearest points by a grid of bins: what a k-d tree does, in a few operations on whole tensors, as GPUs want it.

Points are sorted by bin. The 27 bins around a query are 9 ranges of them, for bins that follow each other in the last
coordinate do so in memory. Points outside are farther away than the width of a bin, so the k nearest of those inside
are the k nearest of all unless the last of them is farther than that; such queries try again with wider bins.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lamina.device import by_kernel
from lamina.geometry.lattice import cell_keys
from lamina.geometry.triangles import dot_rows, minus, rows, take

FEW = 2**25  # pairs of points and queries that are all looked at
PAIRS = 2**26  # looked at together
TRIED = 256  # queries whose neighbours are found first, to tell how wide bins should be
WIDER, USUAL = 1.05, 2.0  # bins are so much wider than the farthest of these, but not so many times the median
ROUNDS = 6
CROWDED = 64, 4096  # times k, and more: queries with so many points around them get narrower bins
FINEST = 2.0**-20  # width of a bin, over the extent


def nearest_by_bins(points: Tensor, x: Tensor, k: int, within: float = math.inf) -> tuple[Tensor, Tensor]:
    """Indices (n, k) int64 and distances (n, k) of the k points (m, 3) nearest to x (n, 3), nearest first.

    Those farther away than `within` need not be found; their distance is then infinite.
    """
    if len(x) and points.dtype == x.dtype and by_kernel(points, x):
        from lamina.search.nearest_kernel import MOST, MOST_OF_ONE, WIDEST

        if k <= WIDEST and len(points) * len(x) <= (MOST_OF_ONE if k == 1 else MOST):
            return _by_kernel(points, x, k)
    if len(points) * len(x) <= FEW:
        return nearest_of_all(points, x, k)
    if within < math.inf:
        index, distance, _ = _Bins(points, points.new_tensor(within * (1 + 1e-9))).nearest(x, k)
        return index, distance
    width = _first_width(points, x, k)
    index, distance, sure = _Bins(points, width).nearest(x, k)
    todo = (~sure).nonzero()[:, 0]
    for _ in range(ROUNDS):
        if len(todo) * len(points) <= FEW:
            break
        width = 2 * width
        index[todo], distance[todo], sure = _Bins(points, width).nearest(x[todo], k)
        todo = todo[~sure]
    if len(todo):
        index[todo], distance[todo] = nearest_of_all(points, x[todo], k)
    return index, distance


def _by_kernel(points: Tensor, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    from lamina.search.nearest_kernel import nearest_one, nearest_several

    if k == 1:
        return nearest_one(points, x)
    index, distance, found = nearest_several(points, x, k)
    rows = (~found).nonzero()[:, 0]
    if len(rows):
        index[rows], distance[rows] = nearest_of_all(points, x[rows], k)
    return index, distance


def nearest_of_all(points: Tensor, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The same, by the distances of all pairs."""
    there = rows(points)
    found = []
    for block in x.split(max(1, PAIRS // len(points))):
        # Differences: |x|^2 - 2 x.y + |y|^2 loses half the digits, and torch.cdist without it takes 40 times as long.
        a, b, c = rows(block)
        away = minus((a[:, None], b[:, None], c[:, None]), there)
        square = dot_rows(away, away)
        found.append(_smallest(square, k))
    square, index = found[0] if len(found) == 1 else (torch.cat(part) for part in zip(*found, strict=True))
    return index, square.sqrt()


def _first_width(points: Tensor, x: Tensor, k: int) -> Tensor:
    """Width () of bins, for most queries the distance of their k-th neighbour."""
    some = x[:: max(1, len(x) // min(TRIED, max(1, PAIRS // len(points))))]
    last = nearest_of_all(points, some, k)[1][:, -1]
    usual = torch.minimum(WIDER * last.max(), USUAL * last.median())
    return torch.maximum(usual, FINEST * (points.amax(0) - points.amin(0)).max())


class _Bins:
    """The points (m, 3), sorted into cubes of side width ()."""

    def __init__(self, points: Tensor, width: Tensor):
        self.all, self.width, self.low = points, width, points.amin(0)
        cube = ((points - self.low) / width).long()
        self.shape = cube.amax(0) + 1
        self.key, self.order = torch.sort(cell_keys(cube.unbind(1), self.shape))
        self.points = rows(points[self.order])

    def nearest(self, x: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Indices (n, k) and distances (n, k) of the nearest in the bins around x (n, 3), and whether (n,) they are the
        nearest of all."""
        place = (x - self.low) / self.width
        cube = place.floor()
        part = place - cube
        safe = (1 + torch.minimum(part, 1 - part).amin(1)) * self.width * (1 - 1e-9)
        first, size = self._ranges(cube.long())
        total = size.sum(1)
        widest, limit = int(total.max()), CROWDED[0] * k + CROWDED[1]
        crowded = (total > limit).nonzero()[:, 0] if widest > limit else total[:0]
        if not 0 < len(crowded) < len(x):
            found, away = self._nearest_in(x, first, size, total, k, widest)
            return found, away, (total >= k) & (away[:, -1] <= safe)
        found, away = first.new_empty(len(x), k), x.new_empty(len(x), k)
        others = (total <= limit).nonzero()[:, 0]
        found[others], away[others] = self._nearest_in(*(v[others] for v in (x, first, size, total)), k=k, widest=limit)
        sure = (total >= k) & (away[:, -1] <= safe)
        found[crowded], away[crowded] = nearest_by_bins(self.all, x[crowded], k)
        return found, away, sure.index_fill_(0, crowded, True)

    def _ranges(self, cube: Tensor) -> tuple[Tensor, Tensor]:
        """First place and number (n, 9) of the points in three bins each around cubes (n, 3)."""
        step = torch.arange(-1, 2, device=cube.device)
        i, j = (cube[:, :1] + step.repeat_interleave(3), cube[:, 1:2] + step.repeat(3))
        low, high = (cube[:, 2:] - 1).clamp_min(0), torch.minimum(cube[:, 2:] + 1, self.shape[2] - 1)
        there = (i >= 0) & (i < self.shape[0]) & (j >= 0) & (j < self.shape[1]) & (low <= high)
        first = torch.searchsorted(self.key, cell_keys((i, j, low), self.shape))
        last = torch.searchsorted(self.key, cell_keys((i, j, high), self.shape), right=True)
        return first, (last - first) * there

    def _nearest_in(
        self, x: Tensor, first: Tensor, size: Tensor, total: Tensor, k: int, widest: int
    ) -> tuple[Tensor, Tensor]:
        """Of the points in ranges (n, 9), total (n,) and at most `widest`; any k where they are fewer."""
        widest = max(k, widest)
        if len(x) * widest <= PAIRS or len(x) == 1:
            return self._nearest_among(x, first, size, total, k, widest)
        # Those with many points around go together: all of them have the columns of the one with most.
        order = torch.argsort(total)
        found, away = first.new_empty(len(x), k), x.new_empty(len(x), k)
        for part in order.tensor_split(min(len(x), max(2, -(-len(x) * widest // PAIRS)))):
            some = (v[part] for v in (x, first, size, total))
            found[part], away[part] = self._nearest_in(*some, k=k, widest=int(total[part[-1]]))
        return found, away

    def _nearest_among(
        self, x: Tensor, first: Tensor, size: Tensor, total: Tensor, k: int, widest: int
    ) -> tuple[Tensor, Tensor]:
        end = size.cumsum(1)
        column = torch.arange(widest, device=x.device).expand(len(x), -1).contiguous()
        which = torch.searchsorted(end, column, right=True).clamp_(max=8)
        place = (first - end + size).gather(1, which) + column
        beyond = column >= total[:, None]
        place.masked_fill_(beyond, 0)
        flat = place.reshape(-1)
        (x, y, z), (a, b, c) = rows(x), take(self.points, flat)
        away = minus((x[:, None], y[:, None], z[:, None]), (a.view_as(place), b.view_as(place), c.view_as(place)))
        square = dot_rows(away, away).masked_fill_(beyond, torch.inf)
        square, which = _smallest(square, k)
        return self.order[place.gather(1, which)], square.sqrt()


def _smallest(square: Tensor, k: int) -> tuple[Tensor, Tensor]:
    if k == 1:
        value, index = square.min(1, keepdim=True)
        return value, index
    value, index = square.topk(k, dim=1, largest=False, sorted=True)
    return value, index
