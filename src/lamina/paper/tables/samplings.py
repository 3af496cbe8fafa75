"""Points on the unit sphere in several patterns, and the triangles of their convex hull, which are Delaunay's."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.spatial import ConvexHull

from lamina.paper.tables.method_rows import Shape


def fibonacci(count: int) -> np.ndarray:
    """Points (count, 3) along a spiral with the golden angle. Every point has the same area."""
    i = np.arange(count)
    z = 1 - (2 * i + 1) / count
    angle = i * math.pi * (3 - math.sqrt(5))
    r = np.sqrt(1 - z**2)
    return np.stack([r * np.cos(angle), r * np.sin(angle), z], 1)


def random(count: int, seed: int) -> np.ndarray:
    """Independent uniform points: normal in space, projected to the sphere."""
    return _on_sphere(np.random.default_rng(seed).normal(size=(count, 3)))


def jittered(count: int, seed: int, share: float = 0.25) -> np.ndarray:
    """The spiral's points, moved by a normal of standard deviation `share` of their distance."""
    distance = math.sqrt(4 * math.pi / count)
    return _on_sphere(fibonacci(count) + share * distance * np.random.default_rng(seed).normal(size=(count, 3)))


def blue_noise(count: int, seed: int, candidates: int = 10) -> np.ndarray:
    """Farthest-point sampling of a random set that is `candidates` times as large."""
    pool = random(candidates * count, seed)
    chosen = np.empty(count, dtype=np.int64)
    chosen[0], distance = 0, np.full(len(pool), np.inf)
    for i in range(1, count):
        distance = np.minimum(distance, ((pool - pool[chosen[i - 1]]) ** 2).sum(1))
        chosen[i] = distance.argmax()
    return pool[chosen]


SAMPLINGS = {"random": random, "blue noise": blue_noise, "jittered": jittered}


def sphere_shape(points: np.ndarray, name: str) -> Shape:
    """The polyhedron with vertices points (n, 3) on the unit sphere; normals are the sphere's."""
    faces = ConvexHull(points).simplices.astype(np.int64)
    a, b, c = (points[faces[:, k]] for k in range(3))
    inwards = (np.cross(b - a, c - a) * (a + b + c)).sum(1) < 0
    faces[inwards] = faces[inwards][:, ::-1]
    V = torch.from_numpy(points)
    return Shape(name, V, torch.from_numpy(faces), V, torch.zeros(len(V), dtype=torch.int64))


def _on_sphere(p: np.ndarray) -> np.ndarray:
    return p / np.linalg.norm(p, axis=1, keepdims=True)
