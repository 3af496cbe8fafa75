"""Triangulated unit sphere: the parameter domain of spherical surfaces."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from lamina.geometry.triangles import unit


def icosphere(level: int) -> tuple[Tensor, Tensor]:
    """Unit vectors (10 4^level + 2, 3) float64 and triangles (20 4^level, 3) int64, facing outwards.

    The icosahedron, each triangle split in four `level` times, new vertices pushed to the sphere.

    >>> vertices, faces = icosphere(5)
    >>> len(vertices), len(faces)
    (10242, 20480)
    """
    golden = (1 + 5**0.5) / 2
    corners = [(0.0, a, b * golden) for a in (-1, 1) for b in (-1, 1)]
    vertices = unit(torch.tensor([c[-i:] + c[:-i] for i in range(3) for c in corners], dtype=torch.float64))
    edge = (vertices[:, None] - vertices[None]).norm(dim=-1)
    shortest = edge[edge > 0].min()
    near = edge < 1.1 * shortest
    triples = [
        t for t in itertools.combinations(range(12), 3) if near[t[0], t[1]] and near[t[1], t[2]] and near[t[0], t[2]]
    ]
    faces = torch.tensor(triples)
    a, b, c = vertices[faces].unbind(1)
    inwards = (torch.linalg.cross(b - a, c - a) * a).sum(-1) < 0
    faces[inwards] = faces[inwards].flip(1)
    for _ in range(level):
        vertices, faces = split_triangles(vertices, faces)
        vertices = unit(vertices)
    return vertices, faces


def split_triangles(vertices: Tensor, faces: Tensor) -> tuple[Tensor, Tensor]:
    """Each triangle in four through the midpoints of its edges; shared edges share their midpoint."""
    edges = faces[:, [[1, 2], [2, 0], [0, 1]]].sort(-1).values.reshape(-1, 2)
    key, index = torch.unique(edges[:, 0] * len(vertices) + edges[:, 1], return_inverse=True)
    ends = torch.stack([key // len(vertices), key % len(vertices)])
    middle = 0.5 * (vertices[ends[0]] + vertices[ends[1]])
    mid = (index + len(vertices)).reshape(-1, 3)
    a, b, c = faces.unbind(1)
    ma, mb, mc = mid.unbind(1)
    quads = [torch.stack(t, 1) for t in ((a, mc, mb), (mc, b, ma), (mb, ma, c), (ma, mb, mc))]
    return torch.cat([vertices, middle]), torch.cat(quads)
