"""Exact nearest points by a grid of bins, in few operations on whole tensors: faster on a GPU than a k-d tree.

Points are sorted by bin. The 27 bins around a query are 9 ranges of the sorted points, because bins that follow each
other in the last coordinate follow each other in memory. Points outside these bins are farther away than the width of
a bin. The k nearest inside are therefore the k nearest of all, unless the last of them is farther than that width; such
queries are repeated with wider bins.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lamina.device import by_kernel
from lamina.geometry.lattice import cell_keys
from lamina.geometry.triangles import dot_rows, minus, rows, take

# With at most this many pairs of a point and a query, all pairs are compared: that is faster than making bins.
MAX_ALL_PAIRS = 2**25
PAIR_BATCH = 2**26  # pairs compared at a time
WIDTH_QUERIES = 256  # queries whose neighbours are found first, by all pairs, to choose the width of bins
# Bins are this many times as wide as the largest distance of a k-th neighbour among these queries, but at most the
# second number times the median distance. Narrower bins send more queries to a second round, wider ones hold more
# points.
WIDTH_OVER_LARGEST, MAX_WIDTH_OVER_MEDIAN = 1.05, 2.0
# After this many rounds, each with bins twice as wide, the queries that are left are compared with all points.
WIDENING_ROUNDS = 6
# Queries with more points around them than the first number times k, and the second number, get narrower bins:
# otherwise a few crowded bins would take most of the time.
CROWDED_PER_NEIGHBOUR, CROWDED_POINTS = 64, 4096
MIN_BIN_WIDTH = 2.0**-20  # as a share of the extent: keys of bins then fit into 64 bits


def nearest_by_bins(points: Tensor, x: Tensor, k: int, within: float = math.inf) -> tuple[Tensor, Tensor]:
    """Indices (n, k) int64 and distances (n, k) of the k points (m, 3) nearest to x (n, 3), nearest first.

    Points farther away than `within` need not be found: their distance is then infinite.
    """
    if len(x) and points.dtype == x.dtype and by_kernel(points, x):
        from lamina.search.nearest_kernel import MAX_NEIGHBOURS, MAX_PAIRS_OF_ONE, MAX_PAIRS_OF_SEVERAL

        if k <= MAX_NEIGHBOURS and len(points) * len(x) <= (MAX_PAIRS_OF_ONE if k == 1 else MAX_PAIRS_OF_SEVERAL):
            return _by_kernel(points, x, k)
    if len(points) * len(x) <= MAX_ALL_PAIRS:
        return nearest_of_all(points, x, k)
    if within < math.inf:
        index, distance, _ = _Bins(points, points.new_tensor(within * (1 + 1e-9))).nearest(x, k)
        return index, distance
    width = _first_width(points, x, k)
    index, distance, sure = _Bins(points, width).nearest(x, k)
    todo = (~sure).nonzero()[:, 0]
    for _ in range(WIDENING_ROUNDS):
        if len(todo) * len(points) <= MAX_ALL_PAIRS:
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
    """Indices (n, k) and distances (n, k) of the k nearest points, by comparing all pairs."""
    there = rows(points)
    found = []
    for block in x.split(max(1, PAIR_BATCH // len(points))):
        # From differences: |x|^2 - 2 x.y + |y|^2 loses half the digits, and torch.cdist takes 40 times as long without
        # that formula.
        a, b, c = rows(block)
        away = minus((a[:, None], b[:, None], c[:, None]), there)
        square = dot_rows(away, away)
        found.append(_smallest(square, k))
    square, index = found[0] if len(found) == 1 else (torch.cat(part) for part in zip(*found, strict=True))
    return index, square.sqrt()


def _first_width(points: Tensor, x: Tensor, k: int) -> Tensor:
    """Width () of bins: at least the distance of the k-th neighbour for most queries."""
    some = x[:: max(1, len(x) // min(WIDTH_QUERIES, max(1, PAIR_BATCH // len(points))))]
    last = nearest_of_all(points, some, k)[1][:, -1]
    width = torch.minimum(WIDTH_OVER_LARGEST * last.max(), MAX_WIDTH_OVER_MEDIAN * last.median())
    return torch.maximum(width, MIN_BIN_WIDTH * (points.amax(0) - points.amin(0)).max())


class _Bins:
    """The points (m, 3), sorted into cubic bins of side width ()."""

    def __init__(self, points: Tensor, width: Tensor):
        self.all, self.width, self.low = points, width, points.amin(0)
        cube = ((points - self.low) / width).long()
        self.shape = cube.amax(0) + 1
        self.key, self.order = torch.sort(cell_keys(cube.unbind(1), self.shape))
        self.points = rows(points[self.order])

    def nearest(self, x: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Indices (n, k) and distances (n, k) of the nearest points in the bins around x (n, 3), and whether (n,) these
        are the nearest of all points."""
        place = (x - self.low) / self.width
        cube = place.floor()
        part = place - cube
        safe = (1 + torch.minimum(part, 1 - part).amin(1)) * self.width * (1 - 1e-9)
        first, size = self._ranges(cube.long())
        total = size.sum(1)
        widest, limit = int(total.max()), CROWDED_PER_NEIGHBOUR * k + CROWDED_POINTS
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
        """The 9 ranges of sorted points in the 27 bins around cubes (n, 3): first position and length (n, 9)."""
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
        """The k nearest of the points in ranges (n, 9) that hold total (n,) <= widest points; arbitrary if fewer."""
        widest = max(k, widest)
        if len(x) * widest <= PAIR_BATCH or len(x) == 1:
            return self._nearest_among(x, first, size, total, k, widest)
        # Queries with many points around them are batched together, as all of a batch get as many columns as the
        # largest.
        order = torch.argsort(total)
        found, away = first.new_empty(len(x), k), x.new_empty(len(x), k)
        for part in order.tensor_split(min(len(x), max(2, -(-len(x) * widest // PAIR_BATCH)))):
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
