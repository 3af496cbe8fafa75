"""Triangles to pixels, vectorised over all triangles at once.

Each triangle is cut into spans, one for each row of pixel centres that it crosses, and spans into pixels. The work is
proportional to the number of covered pixels, whatever the shape of the triangles. Edges always run from their upper to
their lower end. So two triangles compute their common edge with the same bits, and no pixel between them is missed or
drawn twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_PIXELS_PER_CHUNK = 4_000_000  # to bound memory
_DEPTH_STEPS = 2**30  # from the nearest to the farthest point; a key has the depth above the 32 bits of the triangle
_NO_TRIANGLE = np.int64(2**62)  # a key larger than all others


@dataclass(frozen=True)
class SpanPixels:
    """k pixels of spans."""

    span: NDArray  # (k,)
    step: NDArray  # (k,) 0, 1, 2, ... along the span
    pixel: NDArray  # (k,) row-major index into the picture


@dataclass(frozen=True)
class Spans:
    """Runs of pixels in a picture of given width, each in one row of one triangle."""

    triangle: NDArray  # (s,)
    row: NDArray  # (s,)
    column: NDArray  # (s,) of the first pixel
    count: NDArray  # (s,)
    width: int

    def pieces(self) -> Iterator[SpanPixels]:
        """All pixels, in chunks."""
        total = np.cumsum(self.count)
        begin, done = 0, 0
        while begin < len(total):
            stop = max(begin + 1, int(np.searchsorted(total, done + _PIXELS_PER_CHUNK)))
            span, step = _runs(self.count[begin:stop])
            start = self.row[begin:stop] * self.width + self.column[begin:stop]
            yield SpanPixels(span + begin, step, start[span] + step)
            begin, done = stop, total[stop - 1]


def spans(corners: NDArray, width: int, height: int) -> Spans:
    """The spans of all pixels whose centres lie in triangles with corners (m, 3, 2)."""
    order = np.argsort(corners[:, :, 1], axis=1, kind="stable")
    top, middle, bottom = np.take_along_axis(corners, order[:, :, None], axis=1).transpose(1, 0, 2)
    first, count = _centres_between(top[:, 1], bottom[:, 1], height)
    t, step = _runs(count)
    row = first[t] + step
    y = row + 0.5
    # Rows above the middle corner lie between the long edge and the upper short one.
    above = (y < middle[t, 1])[:, None]
    a = _crossing(top[t], bottom[t], y)
    b = _crossing(np.where(above, top[t], middle[t]), np.where(above, middle[t], bottom[t]), y)
    column, count = _centres_between(np.minimum(a, b), np.maximum(a, b), width)
    some = np.flatnonzero(count)
    return Spans(t[some], row[some], column[some], count[some], width)


def _centres_between(low: NDArray, high: NDArray, size: int) -> tuple[NDArray, NDArray]:
    """First index i and number of the pixel centres i + 1/2 in [low, high), within 0 <= i < size."""
    first = np.clip(np.ceil(low - 0.5), 0, size).astype(np.int64)
    last = np.clip(np.ceil(high - 0.5), 0, size).astype(np.int64)
    return first, np.maximum(last - first, 0)


def _runs(count: NDArray) -> tuple[NDArray, NDArray]:
    """Run and position of every member of runs of given lengths: (0, 0), (0, 1), ..., (1, 0), ..."""
    owner = np.repeat(np.arange(len(count), dtype=np.int32), count)
    start = (np.cumsum(count) - count).astype(np.int32)
    return owner, np.arange(len(owner), dtype=np.int32) - start[owner]


def _crossing(start: NDArray, end: NDArray, y: NDArray) -> NDArray:
    """x at which the edge from start to end passes y."""
    rise = end[:, 1] - start[:, 1]
    share = (y - start[:, 1]) / np.where(rise == 0, 1, rise)
    return start[:, 0] + share * (end[:, 0] - start[:, 0])


class Planes:
    """Functions on triangles that are linear on the screen, by their values at the corners."""

    def __init__(self, corners: NDArray, values: NDArray) -> None:
        """corners (m, 3, 2), values (m, 3)."""
        e, f = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
        area = e[:, 0] * f[:, 1] - e[:, 1] * f[:, 0]
        inverse = np.where(area == 0, 0, 1 / np.where(area == 0, 1, area))
        de, df = values[:, 1] - values[:, 0], values[:, 2] - values[:, 0]
        self.slope_x = (de * f[:, 1] - df * e[:, 1]) * inverse
        self.slope_y = (df * e[:, 0] - de * f[:, 0]) * inverse
        self.constant = values[:, 0] - self.slope_x * corners[:, 0, 0] - self.slope_y * corners[:, 0, 1]
        # Slivers have huge slopes, so values are clipped to the range of the corners.
        self.low, self.high = values.min(1), values.max(1)

    def at(self, triangle: NDArray, x: NDArray, y: NDArray) -> NDArray:
        value = self.constant[triangle] + self.slope_x[triangle] * x + self.slope_y[triangle] * y
        return np.clip(value, self.low[triangle], self.high[triangle])

    def along(self, runs: Spans) -> tuple[NDArray, NDArray]:
        """Value (s,) at the first pixel of each span and increase (s,) from pixel to pixel."""
        x, y = runs.column + 0.5, runs.row + 0.5
        first = self.at(runs.triangle, x, y)
        last = self.at(runs.triangle, x + runs.count - 1, y)
        return first, (last - first) / np.maximum(runs.count - 1, 1)


def nearest_triangles(screen: NDArray, faces: NDArray, width: int, height: int) -> NDArray:
    """The triangle seen in each pixel (height * width,), -1 where there is none.

    screen (n, 3): pixel coordinates and nearness of the vertices. faces (m, 3).
    """
    corners = screen[faces]
    q = corners[:, :, 2]
    depths = float(np.ptp(q))
    unit = _DEPTH_STEPS / depths if depths > 0 else 0.0
    runs = spans(corners[:, :, :2], width, height)
    depth, slope = Planes(corners[:, :, :2], (q.max() - q) * unit).along(runs)
    buffer = np.full(width * height, _NO_TRIANGLE)
    for part in runs.pieces():
        # The depth is in the high bits and the triangle in the low bits, so that the minimum finds both.
        key = (depth[part.span] + slope[part.span] * part.step).astype(np.int64) << 32
        np.minimum.at(buffer, part.pixel, key | runs.triangle[part.span])
    return np.where(buffer == _NO_TRIANGLE, -1, buffer & 0xFFFFFFFF)


def barycentric(corners: NDArray, triangle: NDArray, x: NDArray, y: NDArray) -> list[NDArray]:
    """Weights, three of (k,), of the corners of the triangles (k,) that are seen at x (k,), y (k,).

    corners (m, 3, 3): pixel coordinates and nearness. The weights are correct in perspective: a function that is linear
    on the surface is not linear on the screen, but its product with nearness is.
    """
    share = [Planes(corners[:, :, :2], np.tile(row, (len(corners), 1))).at(triangle, x, y) for row in np.eye(3)]
    weights = [s * corners[triangle, i, 2] for i, s in enumerate(share)]
    total = np.maximum(weights[0] + weights[1] + weights[2], 1e-300)
    return [w / total for w in weights]
