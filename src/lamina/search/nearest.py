"""Exact nearest primitives (points or triangles), by a vectorised dual-tree search.

Queries and primitives are both grouped into balls of balls. Pairs (query ball, primitive ball) are
refined level by level. A pair is dropped when its lower bound

    |c_q - c_p| - r_q - r_p

exceeds the query ball's upper bound min_p |c_q - c_p| + r_q (each c_p lies on a primitive). Every
level is a handful of tensor operations, so the same code runs on CPU and GPU. After Gray and Moore
(2000), "N-body problems in statistical learning".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lamina.geometry.lattice import Blocks, Lattice
from lamina.geometry.triangles import Rows, closest_on_triangle, dot, dot_rows, minus, rows, take
from lamina.linear.graph import expand
from lamina.shapes import Float, Int, shaped

BALLS_PER_BALL = 4  # children of a ball: with more, trees are flatter and fewer pairs are dropped early
MAX_BALL_PAIRS = {"cpu": 2**21, "cuda": 2**23}  # pairs of balls refined at a time


@shaped
@dataclass(frozen=True)
class BallLevel:
    """One level of a ball tree: centres on the primitives, radii, and the children of each ball."""

    centres: Float[Tensor, "n 3"]
    radii: Float[Tensor, " n"]
    first: Int[Tensor, " n"]  # first child in the level below
    counts: Int[Tensor, " n"]  # number of children; 0 at the leaves

    @cached_property
    def centre_rows(self) -> Rows:
        return rows(self.centres)


class BallTree:
    """Balls of balls over given leaf balls, a separate tree for every component.

    centres (n, 3), radii (n,), component (n,): the leaves. `order` sorts the leaves along a space-filling curve.
    `levels[0]` are the leaves in that order, `levels[-1]` has one ball for each component.
    """

    def __init__(self, centres: Tensor, radii: Tensor, component: Tensor):
        self.order = morton_order(centres, component)
        centres, radii, component = centres[self.order], radii[self.order], component[self.order]
        zero = torch.zeros_like(component)
        self.levels = [BallLevel(centres, radii, zero, zero)]
        while len(centres) > int(component[-1] - component[0]) + 1:
            position = _position_within_runs(component)
            start = (position % BALLS_PER_BALL == 0).nonzero()[:, 0]
            counts = torch.diff(start, append=start.new_tensor([len(centres)]))
            parent = torch.repeat_interleave(torch.arange(len(start), device=start.device), counts)
            centre = centres[start + counts // 2]
            offset = centres - centre[parent]
            reach = dot(offset, offset).sqrt() + radii
            radius = torch.zeros_like(reach[: len(start)]).scatter_reduce_(0, parent, reach, "amax")
            self.levels.append(BallLevel(centre, radius, start, counts))
            centres, radii, component = centre, radius, component[start]
        self.top_component = component


@shaped
@dataclass(frozen=True)
class TreeBlocks:
    """A level of a ball tree, seen as the query side of the search."""

    tree: BallTree
    level: int
    ids: Int[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def finest(self) -> bool:
        return self.level == 0

    @property
    def centres(self) -> Tensor:
        return self.tree.levels[self.level].centres[self.ids]

    @property
    def radii(self) -> Tensor:
        return self.tree.levels[self.level].radii[self.ids]

    def split(self) -> tuple[TreeBlocks, Tensor]:
        here = self.tree.levels[self.level]
        counts = here.counts[self.ids]
        ids, _ = expand(here.first[self.ids], counts)
        return TreeBlocks(self.tree, self.level - 1, ids), counts

    def take(self, which: Tensor) -> TreeBlocks:
        return TreeBlocks(self.tree, self.level, self.ids[which])


class Nearest:
    """Nearest of many points (m, 3) or triangles (m, 3, 3), each in a component (m,)."""

    def __init__(self, primitives: Tensor, component: Tensor | None = None):
        if component is None:
            component = torch.zeros(len(primitives), dtype=torch.int64, device=primitives.device)
        self.primitives = primitives
        self.component = component
        self.component_count = int(component.max()) + 1
        if primitives.ndim == 2:
            centres, radii = primitives, torch.zeros_like(primitives[:, 0])
        else:
            centres = primitives.mean(1)
            offset = primitives - centres[:, None]
            radii = dot(offset, offset).amax(1).sqrt()
        self.tree = BallTree(centres, radii, component)

    def boxes(self) -> Tensor:
        """Bounding boxes (c, 2, 3) of the components."""
        corners = self.primitives.reshape(len(self.primitives), -1, 3)
        index = self.component[:, None].expand(-1, 3)
        low = corners.new_full((self.component_count, 3), torch.inf)
        high = -low
        low = low.scatter_reduce(0, index, corners.amin(1), "amin")
        high = high.scatter_reduce(0, index, corners.amax(1), "amax")
        return torch.stack([low, high], 1)

    def to_points(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """For each row of x (n, 3): index (n,) of the nearest primitive, and the point (n, 3) on it."""
        queries = BallTree(x, torch.zeros_like(x[:, 0]), torch.zeros(len(x), dtype=torch.int64, device=x.device))
        top = len(queries.levels) - 1
        blocks = TreeBlocks(queries, top, torch.zeros(1, dtype=torch.int64, device=x.device))
        primitive = torch.arange(self.component_count, device=x.device)
        found = self._search(blocks, torch.zeros_like(primitive), primitive, torch.inf)
        index = torch.empty(len(x), dtype=torch.int64, device=x.device)
        point = torch.empty_like(x)
        for leaf, which, where in found:
            rows = queries.order[leaf.ids]
            index[rows] = which
            point[rows] = where
        return index, point

    def to_nodes(self, lattice: Lattice, radius: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Lattice nodes within radius of a component, separately for every component.

        Returns ijk (n, 3), component (n,), nearest primitive of that component (n,), point on it (n, 3).
        """
        boxes = self.boxes()
        boxes = torch.stack([boxes[:, 0] - radius, boxes[:, 1] + radius], 1)
        blocks = Blocks.covering(lattice, boxes)
        pairs = torch.arange(len(blocks), device=boxes.device)
        found = self._search(blocks, pairs, blocks.component, radius)
        ijk, component, index, point = [], [], [], []
        for leaf, which, where in found:
            offset = leaf.centres - where
            near = dot(offset, offset) <= (radius * (1 + 1e-9)) ** 2
            ijk.append(leaf.ijk[near])
            component.append(leaf.component[near])
            index.append(which[near])
            point.append(where[near])
        return torch.cat(ijk), torch.cat(component), torch.cat(index), torch.cat(point)

    def _search(self, blocks, pair_block: Tensor, pair_ball: Tensor, radius: float):
        """Refine pairs down to (single query, single primitive); return lists of (queries, nearest, point).

        pair_ball indexes the top level of the tree, which has one ball for each component.
        """
        limit = MAX_BALL_PAIRS[self.primitives.device.type]
        stack = [(blocks, len(self.tree.levels) - 1, pair_block, pair_ball)]
        results = []
        while stack:
            blocks, level, b, t = stack.pop()
            if len(b) == 0:
                continue
            if blocks.finest and level == 0:
                results.append(self._resolve(blocks, b, t))
                continue
            if len(b) > limit and len(blocks) > 1:
                half = len(blocks) // 2
                for part in (slice(half, None), slice(0, half)):
                    ids = torch.arange(len(blocks), device=b.device)[part]
                    mine = (b >= ids[0]) & (b <= ids[-1])
                    stack.append((blocks.take(ids), level, b[mine] - ids[0], t[mine]))
                continue
            balls = self.tree.levels[level]
            if level == 0 or (not blocks.finest and blocks.radii[0] >= balls.radii[t].mean()):
                blocks, counts = blocks.split()
                first = torch.cumsum(counts, 0) - counts
                b, source = expand(first[b], counts[b])
                t = t[source]
            else:
                t, source = expand(balls.first[t], balls.counts[t])
                b = b[source]
                level -= 1
            stack.append(self._prune(blocks, level, b, t, radius))
        return results

    def _prune(self, blocks, level: int, b: Tensor, t: Tensor, radius: float):
        balls = self.tree.levels[level]
        distance = _length(minus(take(rows(blocks.centres), b), take(balls.centre_rows, t)))
        upper = torch.full_like(blocks.radii, torch.inf).scatter_reduce_(0, b, distance, "amin")
        if level == 0 and self.primitives.ndim == 3:
            # The exact distance to one near triangle of each block makes the bound tighter by the triangle's radius.
            best = t[_first_equal(distance, upper, b)]
            upper = _length(minus(rows(blocks.centres), self._closest(rows(blocks.centres), best)))
        bound = torch.clamp(upper + blocks.radii, max=radius) + blocks.radii
        keep = (distance - balls.radii.index_select(0, t) <= bound.index_select(0, b) * (1 + 1e-9)).nonzero()[:, 0]
        b, t = b.index_select(0, keep), t.index_select(0, keep)
        alive = torch.zeros(len(blocks), dtype=torch.bool, device=b.device)
        alive[b] = True
        renumber = torch.cumsum(alive, 0) - 1
        return blocks.take(alive.nonzero()[:, 0]), level, renumber.index_select(0, b), t

    def _resolve(self, queries, b: Tensor, t: Tensor):
        """The nearest primitive and point for every query, by exact distances of the remaining pairs."""
        x = take(rows(queries.centres), b)
        point = self._closest(x, t)
        distance = _length(minus(x, point))
        smallest = torch.full_like(queries.radii, torch.inf).scatter_reduce_(0, b, distance, "amin")
        nearest = _first_equal(distance, smallest, b)
        return queries, self.tree.order[t[nearest]], torch.stack(take(point, nearest), 1)

    def _closest(self, x: Rows, leaf: Tensor) -> Rows:
        if self.primitives.ndim == 2:
            return take(self.tree.levels[0].centre_rows, leaf)
        return closest_on_triangle(x, *(take(corner, leaf) for corner in self.corner_rows))

    @cached_property
    def corner_rows(self) -> list[Rows]:
        """The corners of the triangles in tree order."""
        return [rows(corner) for corner in self.primitives[self.tree.order].unbind(1)]


def _length(v: Rows) -> Tensor:
    return dot_rows(v, v).sqrt()


def _first_equal(values: Tensor, smallest: Tensor, group: Tensor) -> Tensor:
    """The lowest position (groups,) at which values (n,) attain the minimum (groups,) of their group."""
    equal = (values == smallest.index_select(0, group)).nonzero()[:, 0]
    first = torch.full((len(smallest),), len(values), dtype=torch.int64, device=values.device)
    return first.scatter_reduce_(0, group[equal], equal, "amin")


def _position_within_runs(labels: Tensor) -> Tensor:
    """0, 1, 2, ... inside each run of equal labels."""
    index = torch.arange(len(labels), device=labels.device)
    start = torch.ones_like(labels, dtype=torch.bool)
    start[1:] = labels[1:] != labels[:-1]
    return index - torch.cummax(torch.where(start, index, torch.zeros_like(index)), 0).values


def morton_order(x: Tensor, component: Tensor) -> Tensor:
    """Permutation that sorts by component, then along a Z-order curve."""
    low, high = x.amin(0), x.amax(0)
    scale = (high - low).max().clamp_min(torch.finfo(x.dtype).tiny)
    cell = ((x - low) / scale * (2**16 - 1)).long().clamp(0, 2**16 - 1)
    code = torch.zeros_like(component)
    for axis in range(3):
        code |= _spread_bits(cell[:, axis]) << axis
    return torch.argsort(component * 2**48 + code, stable=True)


def _spread_bits(v: Tensor) -> Tensor:
    """Insert two zero bits between the lowest 16 bits of v."""
    v = (v | (v << 16)) & 0x0000FF0000FF
    v = (v | (v << 8)) & 0x00F00F00F00F
    v = (v | (v << 4)) & 0x0C30C30C30C3
    return (v | (v << 2)) & 0x249249249249
