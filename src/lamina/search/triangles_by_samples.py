"""Closest points on triangles for very many scattered queries on the CPU: the triangles of the nearest samples."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from lamina.geometry.triangles import closest_on_triangle, dot, dot_rows, minus, rows, take, triangle_areas

# The closest point is looked for on the triangles of this many nearest samples. With fewer, the error h^2 / (2 d)
# below is more common; with more, a query takes longer. Chosen by trial.
TRIED_SAMPLES = 6
MAX_EDGE_PIECES = 256  # pieces into which an edge is cut for samples, which bounds the memory for one huge triangle
SAMPLE_QUERY_BATCH = 2**16  # queries at a time


class TrianglesBySamples:
    """Triangles (m, 3, 3), each with samples spread over it no farther apart than h = sqrt(total area / samples).

    The closest point is computed exactly on the triangles of the samples nearest to a query. Some sample lies within
    about h of the true foot, so a distance d is too large by h^2 / (2 d) at most, and mostly not at all. For scattered
    queries this is an order of magnitude faster than `lamina.search.nearest.Nearest`, which is always exact.
    """

    def __init__(self, triangles: Tensor, samples: int = 60_000) -> None:
        self.triangles = [rows(corner) for corner in triangles.unbind(1)]
        areas = triangle_areas(triangles)
        side = math.sqrt(float(areas.sum()) / samples)
        edge = triangles.roll(-1, 1) - triangles
        longest = dot(edge, edge).amax(1).sqrt()
        # Samples lie at the middles of the n^2 small triangles that cutting each edge into n makes; slivers get fewer.
        pieces = torch.minimum((areas.sqrt() / side).ceil(), (longest / side).ceil()).long().clamp(1, MAX_EDGE_PIECES)
        points, owner = [], []
        for n in torch.unique(pieces).tolist():
            which = (pieces == n).nonzero()[:, 0]
            weight = _middles(n).to(triangles)
            points.append(torch.einsum("qi,nic->nqc", weight, triangles[which]).reshape(-1, 3))
            owner.append(which.repeat_interleave(len(weight)))
        self.owner = torch.cat(owner)
        self.tree = KDTree(torch.cat(points).numpy())

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """For each row of x (n, 3): a triangle (n,) int64 and the closest point (n, 3) on it."""
        which, found = [], []
        for part in x.split(SAMPLE_QUERY_BATCH):
            _, near = self.tree.query(part.numpy(), min(TRIED_SAMPLES, len(self.owner)), workers=-1)
            triangle = self.owner[torch.from_numpy(np.asarray(near).reshape(len(part), -1))]
            flat = triangle.reshape(-1)
            query = rows(part.repeat_interleave(triangle.shape[1], 0))
            point = closest_on_triangle(query, *(take(corner, flat) for corner in self.triangles))
            miss = minus(query, point)
            best = dot_rows(miss, miss).reshape(triangle.shape).argmin(1, keepdim=True)
            which.append(triangle.gather(1, best)[:, 0])
            found.append(torch.stack(point, 1).reshape(*triangle.shape, 3)[torch.arange(len(part)), best[:, 0]])
        return torch.cat(which), torch.cat(found)


def _middles(n: int) -> Tensor:
    """Barycentric coordinates (n^2, 3) of the middles of the small triangles in a triangle with edges cut into n."""
    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    up = torch.stack([i, j], -1)[i + j < n].double() + 1 / 3
    down = torch.stack([i, j], -1)[i + j < n - 1].double() + 2 / 3
    first = torch.cat([up, down]) / n
    return torch.cat([first, 1 - first.sum(1, keepdim=True)], 1)
