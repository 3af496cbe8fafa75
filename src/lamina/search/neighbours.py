"""Nearest neighbours among points, the connected pieces of a cloud, and each point's share of its area."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from lamina.geometry.frames import tangent_basis
from lamina.geometry.triangles import dot
from lamina.linear.graph import components
from lamina.search.bins import nearest_by_bins

MAX_REMEMBERED_NEIGHBOURS = 64  # neighbours of all points are kept up to this number, which bounds the memory
QUERY_BATCH = {"cpu": 2**16, "cuda": 2**20}  # queries near known points that are answered together
# Neighbours of a point among which the point nearest to a query beside it is looked for first. With half as many, more
# queries need a second search; with twice as many, all take longer.
FIRST_NEIGHBOURS_AROUND = 32
# Neighbours that a point is linked to in the graph of pieces. Random samples stay connected above about ln(n) / 2, so
# half as many would do up to about 20,000 samples; twice as many link across narrow gaps.
LINKED_NEIGHBOURS = 10
# Two neighbours are linked if the cosine between their normals is above this: not if they are on sheets back to back,
# but across any edge of more than 60 degrees.
MIN_LINK_COSINE = -0.5
# A link is at most this many times as long as the local spacing at its denser end. Half as long, uneven sampling would
# cut pieces apart; twice as long, links would bridge gaps.
MAX_LINK_SPACINGS = 4.0
RAY_COUNT = 32  # directions in which a Voronoi cell is measured
VORONOI_BATCH = 2**22  # pairs of a ray and a neighbour held at a time
# A Voronoi cell is open along a ray on which it extends beyond the distance of this neighbour.
OPEN_CELL_NEIGHBOUR = 8
# A surface extends this many spacings beyond the samples on its rims in the mean. It is 0.45 for samples on a grid, and
# 0.2 for random samples, whose outermost lie near the rim.
MEAN_RIM_EXTENSION = 0.35


class PointTree:
    """The points (m, 3) prepared for exact nearest-neighbour queries: a k-d tree on the CPU, bins on a GPU."""

    def __init__(self, points: Tensor):
        self.points = points
        self._own: tuple[Tensor, Tensor] | None = None

    @cached_property
    def tree(self) -> KDTree:
        return KDTree(self.points.detach().double().cpu().numpy())

    def query(self, x: Tensor, k: int, within: float = math.inf) -> tuple[Tensor, Tensor]:
        """Indices (n, k) int64 and distances (n, k) of the k points nearest to x (n, 3), nearest first.

        Points farther away than `within` need not be found: their distance is then infinite, their index arbitrary.
        """
        if x.device.type != "cpu":
            return nearest_by_bins(self.points.detach(), x.detach(), k, within)
        bound = within * (1 + 1e-9)
        found = self.tree.query(x.detach().double().numpy(), k, distance_upper_bound=bound, workers=-1)
        distance, index = (torch.from_numpy(np.reshape(v, (len(x), k))) for v in found)
        return index if within == math.inf else index.clamp_(max=len(self.points) - 1), distance.to(x.dtype)

    def own(self, k: int) -> tuple[Tensor, Tensor]:
        """As query(points, k). Up to MAX_REMEMBERED_NEIGHBOURS are kept and serve later calls for as many or fewer."""
        if k > MAX_REMEMBERED_NEIGHBOURS and not self.knows(k):
            return self.query(self.points, k)
        if self._own is None or self._own[0].shape[1] < k:
            self._own = self.query(self.points, k)
        index, distance = self._own
        return index[:, :k], distance[:, :k]

    def nearest_around(self, x: Tensor, start: Tensor, k: int = FIRST_NEIGHBOURS_AROUND) -> Tensor:
        """Index (n,) of the point nearest to x (n, 3), where x is near the points start (n,).

        The point is looked for among the k nearest of start. All other points are farther from start than the last of
        these, so they are farther from x than that distance less |x - start|. Where one of them may still be nearer,
        all points are searched.
        """
        blocks = zip(x.split(QUERY_BATCH[x.device.type]), start.split(QUERY_BATCH[x.device.type]), strict=True)
        return torch.cat([self._nearest_around(*block, k) for block in blocks])

    def _nearest_around(self, x: Tensor, start: Tensor, k: int) -> Tensor:
        near, reach = self.own(min(k, len(self.points)))
        near, reach, points = near[start], reach[:, -1][start], self.points.T
        square = (points[:, near] - x.T[..., None]).square().sum(0)
        least, which = square.min(1)
        index = near.gather(1, which[:, None])[:, 0]
        moved = (points[:, start] - x.T).square().sum(0).sqrt()
        unsure = (least.sqrt() + moved > reach * (1 - 1e-9)).nonzero()[:, 0]
        if len(unsure):
            index[unsure] = self.query(x[unsure], 1)[0][:, 0]
        return index

    def knows(self, k: int) -> bool:
        """Whether own(k) needs no search."""
        return self._own is not None and self._own[0].shape[1] >= k


def k_nearest(points: Tensor, k: int, queries: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Indices (n, k) int64 and distances (n, k) of the k points (m, 3) nearest to each query, nearest first.

    queries (n, 3): by default the points themselves; each is then its own first neighbour (up to duplicates).
    k: at most m.
    """
    return PointTree(points).query(points if queries is None else queries, k)


class PieceTrees:
    """A tree for every component (m,) of the points (m, 3), for queries within one component.

    whole: a tree of all points, if it was built already; it serves if there is one component.
    """

    def __init__(self, points: Tensor, component: Tensor, whole: PointTree | None = None):
        count = int(component.max()) + 1
        if count == 1:
            self.members = [torch.arange(len(points), device=points.device)]
            self.trees = [whole or PointTree(points)]
        else:
            self.members = [(component == c).nonzero()[:, 0] for c in range(count)]
            self.trees = [PointTree(points[rows]) for rows in self.members]

    def query(self, x: Tensor, component: Tensor, k: int, within: float = math.inf) -> tuple[Tensor, Tensor]:
        """As PointTree.query, among the points of the given component (n,) of each row of x.

        Where a component has fewer than k points the farthest of them fills the row.
        """
        if len(self.trees) == 1 and k <= len(self.members[0]):
            index, distance = self.trees[0].query(x, k, within)
            mine = (component == 0)[:, None]
            return torch.where(mine, index, 0), torch.where(mine, distance, torch.inf)
        index = torch.zeros(len(x), k, dtype=torch.int64, device=x.device)
        distance = x.new_full((len(x), k), torch.inf)  # of a component that has no points
        for c, (members, tree) in enumerate(zip(self.members, self.trees, strict=True)):
            rows = (component == c).nonzero()[:, 0]
            if len(rows) == 0:
                continue
            found, away = tree.query(x[rows], min(k, len(members)), within)
            fill = torch.arange(k, device=x.device).clamp(max=len(members) - 1)
            index[rows], distance[rows] = members[found][:, fill], away[:, fill]
        return index, distance


def connected_pieces(points: Tensor, normals: Tensor | None = None, tree: PointTree | None = None) -> Tensor:
    """Connected component (n,) int64 of each point in the graph of near neighbours, largest first.

    A point is linked to its 10 nearest, unless the link is longer than 4 times the spacing (the median distance to
    those neighbours) at either end. With normals (n, 3) two points are not linked either if they look opposite ways,
    n_i . n_j <= -1/2, as on the two sides of a gap or sheet thinner than the spacing. Points across a right angle are
    linked: an edge of a box joins its faces. tree: that of the points, if it was built already.
    """
    index, distance = (tree or PointTree(points)).own(min(LINKED_NEIGHBOURS + 1, len(points)))
    index, distance = index[:, 1:], distance[:, 1:]
    spacing = distance.median(1).values
    linked = distance <= MAX_LINK_SPACINGS * torch.minimum(spacing[:, None], spacing[index])
    if normals is not None:
        linked &= dot(normals[:, None], normals[index]) > MIN_LINK_COSINE
    first = torch.arange(len(points), device=index.device)[:, None].expand_as(index)
    label = components(len(points), first[linked], index[linked])
    size = torch.zeros_like(label).index_add_(0, label, torch.ones_like(label))
    rank = torch.empty_like(label)
    rank[torch.argsort(-size, stable=True)] = torch.arange(len(label), device=label.device)
    return rank[label]


def voronoi_areas(points: Tensor, normals: Tensor, k: int = 20) -> Tensor:
    """Area (n,) of the Voronoi cell of each point among its neighbours, in its tangent plane.

    In direction e the cell ends at rho(e) = min_j |p_j|^2 / (2 e . p_j) over neighbours p_j with e . p_j > 0. Where
    two neighbouring rays end on different bisectors, the cell has a corner where the bisectors meet. Neighbours are
    projected to the plane, at the distance |plane part| / cos(half the angle between the normals): on a sphere this is
    their distance in space, and noise across the surface does not change it. Neighbours that look the other way
    (n_i . n_j <= 0) are on another sheet and do not count. Where a cell is open the surface ends: the cell is cut
    MEAN_RIM_EXTENSION spacings away.
    The total area of 10,000 random samples is within 0.5 % on the unit sphere, that of 2,000 within 4 % on a square.
    """
    index, distance = k_nearest(points, min(k + 1, len(points)))
    ray = ray_directions(points)
    areas = torch.empty_like(points[:, 0])
    for rows in torch.arange(len(points), device=points.device).split(max(1, VORONOI_BATCH // (RAY_COUNT * k))):
        near = index[rows, 1:]
        plane = (points[near] - points[rows, None]) @ tangent_basis(normals[rows]).transpose(1, 2)
        agreement = dot(normals[rows, None], normals[near])
        plane = plane * ((1 + agreement) / 2).clamp_min(0.5).rsqrt()[..., None]
        facing = (agreement > 0)[..., None]
        areas[rows] = _cell_areas(plane, facing, ray, distance[rows, OPEN_CELL_NEIGHBOUR, None])
    return areas


def ray_directions(like: Tensor) -> Tensor:
    """Unit vectors (RAY_COUNT, 2) at equal angles all around, of the dtype and device of `like`."""
    angle = torch.arange(RAY_COUNT, dtype=like.dtype, device=like.device) * (2 * math.pi / RAY_COUNT)
    return torch.stack([angle.cos(), angle.sin()], 1)


def cell_ends(plane: Tensor, facing: Tensor, ray: Tensor) -> tuple[Tensor, Tensor]:
    """Radius (n, r) at which the Voronoi cell of the origin among plane (n, k, 2) ends along ray (r, 2), and the
    number (n, r) of the neighbour whose bisector ends it.

    Neighbours with facing (n, k, 1) False do not count; the radius is infinite where a cell is open.
    """
    nearness, which = _nearness(plane, facing, ray).max(1)
    return 1 / nearness.clamp_min(0), which


def cell_radii(plane: Tensor, facing: Tensor, ray: Tensor) -> Tensor:
    """The radius alone, as cell_ends gives it."""
    return 1 / _nearness(plane, facing, ray).amax(1).clamp_min(0)


def _nearness(plane: Tensor, facing: Tensor, ray: Tensor) -> Tensor:
    """1 / rho = 2 e . p / |p|^2 (n, k, r) of each neighbour alone; 0 or less where it does not end the cell."""
    square = (plane**2).sum(-1, keepdim=True)
    return (plane * torch.where(facing & (square > 0), 2 / square, 0)) @ ray.T


def spacing_of(distance: Tensor, neighbour: int, roomy: Tensor) -> Tensor:
    """Side (n, 1) of the square that belongs to each sample, d sqrt(pi f / j), from the distance d (n, 1) of the j-th
    neighbour and the share f of the rays that are not roomy (n, r). Along roomy rays the disc of radius d is empty."""
    return distance * (math.pi / neighbour * (1 - roomy.to(distance.dtype).mean(1, keepdim=True))).sqrt()


def _cell_areas(plane: Tensor, facing: Tensor, ray: Tensor, farthest: Tensor) -> Tensor:
    """Areas (n,) of the cells of the origin among plane (n, k, 2), seen along ray (r, 2)."""
    rho, which = cell_ends(plane, facing, ray)
    mirror = plane.gather(1, which[..., None].expand(-1, -1, 2))  # the point whose bisector ends each ray
    is_open = rho > farthest
    rho = torch.where(is_open, MEAN_RIM_EXTENSION * spacing_of(farthest, OPEN_CELL_NEIGHBOUR, is_open), rho)
    mirror = torch.where(is_open[..., None], 2 * rho[..., None] * ray, mirror)
    here, there = rho[..., None] * ray, (rho[..., None] * ray).roll(-1, 1)
    other = mirror.roll(-1, 1)
    # The corner v has mirror . v = |mirror|^2 / 2 and other . v = |other|^2 / 2.
    p, q = 0.5 * (mirror**2).sum(-1), 0.5 * (other**2).sum(-1)
    corner = torch.stack([p * other[..., 1] - q * mirror[..., 1], q * mirror[..., 0] - p * other[..., 0]], -1)
    corner = corner / _cross(mirror, other)[..., None]
    before, after = _cross(here, corner), _cross(corner, there)
    between = (before >= 0) & (after >= 0)  # False also for NaN, where both rays end on one bisector
    return 0.5 * torch.where(between, before + after, _cross(here, there)).sum(1)


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
