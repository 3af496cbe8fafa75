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

REMEMBERED = 64  # neighbours of every point
BLOCK = {"cpu": 2**16, "cuda": 2**20}  # places whose surroundings are looked at together
AROUND = 32  # neighbours of a point among which that nearest to a place beside it is looked for
LINKS = 10  # neighbours a point is linked to; iid samples stay connected above about ln(n) / 2
LINK_TURN = -0.5  # n_i . n_j below which two neighbours are on sheets back to back, not across an edge
LINK_REACH = 4.0  # a link may be this many times longer than the local spacing at its denser end
RAYS = 32  # directions in which a Voronoi cell is measured
OPEN_END = 8  # a cell that reaches beyond this neighbour is open there
# Spacings that a surface goes on for beyond the samples on its rims. It is 0.45 for samples on a grid and 0.2 for
# random ones, of which those on the rim are the outermost of many.
BEYOND = 0.35


class PointTree:
    """The points (m, 3) prepared for nearest-neighbour queries, exact: a k-d tree on the CPU, bins on a GPU."""

    def __init__(self, points: Tensor):
        self.points = points
        self._own: tuple[Tensor, Tensor] | None = None

    @cached_property
    def tree(self) -> KDTree:
        return KDTree(self.points.detach().double().cpu().numpy())

    def query(self, x: Tensor, k: int, within: float = math.inf) -> tuple[Tensor, Tensor]:
        """Indices (n, k) int64 and distances (n, k) of the k points nearest to x (n, 3), nearest first.

        Those farther away than `within` need not be found; their distance is then infinite, and their index any.
        """
        if x.device.type != "cpu":
            return nearest_by_bins(self.points.detach(), x.detach(), k, within)
        bound = within * (1 + 1e-9)
        found = self.tree.query(x.detach().double().numpy(), k, distance_upper_bound=bound, workers=-1)
        distance, index = (torch.from_numpy(np.reshape(v, (len(x), k))) for v in found)
        return index if within == math.inf else index.clamp_(max=len(self.points) - 1), distance.to(x.dtype)

    def own(self, k: int) -> tuple[Tensor, Tensor]:
        """As query(points, k); up to 64 are remembered for whoever asks for as many or fewer."""
        if k > REMEMBERED and not self.knows(k):
            return self.query(self.points, k)
        if self._own is None or self._own[0].shape[1] < k:
            self._own = self.query(self.points, k)
        index, distance = self._own
        return index[:, :k], distance[:, :k]

    def nearest_around(self, x: Tensor, start: Tensor, k: int = AROUND) -> Tensor:
        """Index (n,) of the point nearest to x (n, 3), which is near the points start (n,).

        Looked for among the k nearest of start: all others are farther from it than the last of these, and so farther
        from x than that less its own distance. Where that does not settle it, anew.
        """
        blocks = zip(x.split(BLOCK[x.device.type]), start.split(BLOCK[x.device.type]), strict=True)
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
        """Whether own(k) is there already."""
        return self._own is not None and self._own[0].shape[1] >= k


def k_nearest(points: Tensor, k: int, queries: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Indices (n, k) int64 and distances (n, k) of the k points (m, 3) nearest to each query, nearest first.

    queries (n, 3): default the points themselves, each then its own first neighbour (up to duplicates).
    k is at most m.
    """
    return PointTree(points).query(points if queries is None else queries, k)


class PieceTrees:
    """A tree for every component (m,) of the points (m, 3), for queries that must stay within one.

    whole: a tree of all points, where there is one already; it serves if there is one component.
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

        Where a component has fewer than k points its farthest fills the row.
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

    Linked are a point and its 10 nearest, unless the link is longer than 4 times the spacing (the median
    distance to those neighbours) at either end, or, with normals (n, 3), they look opposite ways
    (n_i . n_j <= -1/2), as the faces of a thin gap or sheet do that is thinner than the spacing. Right angles
    do not part: an edge of a box joins its faces. tree: of the points, where there is one already.
    """
    index, distance = (tree or PointTree(points)).own(min(LINKS + 1, len(points)))
    index, distance = index[:, 1:], distance[:, 1:]
    spacing = distance.median(1).values
    linked = distance <= LINK_REACH * torch.minimum(spacing[:, None], spacing[index])
    if normals is not None:
        linked &= dot(normals[:, None], normals[index]) > LINK_TURN
    first = torch.arange(len(points), device=index.device)[:, None].expand_as(index)
    label = components(len(points), first[linked], index[linked])
    size = torch.zeros_like(label).index_add_(0, label, torch.ones_like(label))
    rank = torch.empty_like(label)
    rank[torch.argsort(-size, stable=True)] = torch.arange(len(label), device=label.device)
    return rank[label]


def voronoi_areas(points: Tensor, normals: Tensor, k: int = 20) -> Tensor:
    """Area (n,) of the Voronoi cell of each point among its neighbours, in its tangent plane.

    In direction e the cell ends at rho(e) = min_j |p_j|^2 / (2 e . p_j) over neighbours p_j with e . p_j > 0;
    where two rays end on different bisectors, the corner between them is where these meet. Neighbours are
    laid into the plane at the distance |plane part| / cos(half the angle between the normals), which is that
    in space on a sphere and, unlike it, ignores noise across the surface. Those that look the other way
    (n_i . n_j <= 0) are on another sheet and do not count. Where a cell has no end nearby the surface has:
    it is cut a third of a spacing away.
    The total of 10,000 random samples is within 0.5 % on the unit sphere, that of 2,000 within 4 % on a square.
    """
    index, distance = k_nearest(points, min(k + 1, len(points)))
    ray = rays(points)
    areas = torch.empty_like(points[:, 0])
    for rows in torch.arange(len(points), device=points.device).split(max(1, 2**22 // (RAYS * k))):
        near = index[rows, 1:]
        plane = (points[near] - points[rows, None]) @ tangent_basis(normals[rows]).transpose(1, 2)
        agreement = dot(normals[rows, None], normals[near])
        plane = plane * ((1 + agreement) / 2).clamp_min(0.5).rsqrt()[..., None]
        facing = (agreement > 0)[..., None]
        areas[rows] = _cell_areas(plane, facing, ray, distance[rows, OPEN_END, None])
    return areas


def rays(like: Tensor) -> Tensor:
    """Unit vectors (32, 2) all around."""
    angle = torch.arange(RAYS, dtype=like.dtype, device=like.device) * (2 * math.pi / RAYS)
    return torch.stack([angle.cos(), angle.sin()], 1)


def cell_ends(plane: Tensor, facing: Tensor, ray: Tensor) -> tuple[Tensor, Tensor]:
    """Where (n, r) the Voronoi cell of the origin among plane (n, k, 2) ends along ray (r, 2), and because of whom.

    Those with facing (n, k, 1) False do not count; infinite where a cell is open.
    """
    nearness, which = _nearness(plane, facing, ray).max(1)
    return 1 / nearness.clamp_min(0), which


def cell_radii(plane: Tensor, facing: Tensor, ray: Tensor) -> Tensor:
    """Where alone, as cell_ends."""
    return 1 / _nearness(plane, facing, ray).amax(1).clamp_min(0)


def _nearness(plane: Tensor, facing: Tensor, ray: Tensor) -> Tensor:
    """1 / rho (n, k, r) of each neighbour alone, 2 e . p / |p|^2; 0 or less where it does not end the cell."""
    square = (plane**2).sum(-1, keepdim=True)
    return (plane * torch.where(facing & (square > 0), 2 / square, 0)) @ ray.T


def spacing_of(distance: Tensor, neighbour: int, roomy: Tensor) -> Tensor:
    """Side (n, 1) of the square that each sample fills, d sqrt(pi f / j), from the distance d (n, 1) of the j-th
    neighbour and the part f of rays that are not roomy (n, r): where these are, the disc is not full."""
    return distance * (math.pi / neighbour * (1 - roomy.to(distance.dtype).mean(1, keepdim=True))).sqrt()


def _cell_areas(plane: Tensor, facing: Tensor, ray: Tensor, farthest: Tensor) -> Tensor:
    """Areas (n,) of the cells of the origin among plane (n, k, 2), seen along ray (r, 2)."""
    rho, which = cell_ends(plane, facing, ray)
    mirror = plane.gather(1, which[..., None].expand(-1, -1, 2))  # the point whose bisector ends each ray
    is_open = rho > farthest
    rho = torch.where(is_open, BEYOND * spacing_of(farthest, OPEN_END, is_open), rho)
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
