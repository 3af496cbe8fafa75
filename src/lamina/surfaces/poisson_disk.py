"""Evenly spread subsets of dense points: Poisson-disk samples, and which of them is nearest to each point."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

# Area per sample over the squared radius within which a sample allows no other: samples chosen in random order fill
# the plane up to about 0.7 points for a square of the radius (random sequential packing of discs, 0.547 of the area).
SAMPLES_PER_SQUARE_RADIUS = 0.7
# Cosine between the normals of two points above which they compete for a place: 120 degrees, so that both sides of a
# blunt edge compete and opposite sheets of a thin part do not.
MIN_SAME_SHEET_COSINE = -0.5


def even_subset(points: NDArray, normals: NDArray, label: NDArray, count: int, area: float, seed: int) -> NDArray:
    """Indices of about count of the dense points (n, 3), evenly spread: a Poisson-disk sample.

    No two chosen points of a sheet are within a radius of each other, and every other point is within that radius of a
    chosen one. The radius is such that `count` points are chosen; area: of the surface that the points lie on.
    """
    radius = np.sqrt(SAMPLES_PER_SQUARE_RADIUS * area / count)
    pairs, distance = _pairs_within(points, 1.2 * radius)
    rivals = (label[pairs[:, 0]] == label[pairs[:, 1]]) & _same_sheet(pairs, normals)
    pairs, distance = pairs[rivals], distance[rivals]
    priority = np.random.default_rng(seed).permutation(len(points)).astype(float)
    for _ in range(3):
        chosen = _independent(pairs[distance < radius], priority)
        radius = min(radius * np.sqrt(len(chosen) / count), distance.max(initial=radius))
    return chosen


def owners(points: NDArray, label: NDArray, chosen: NDArray) -> tuple[NDArray, float]:
    """For each point the nearest chosen point of its component (n,), and the largest of these distances."""
    # Components are moved apart along a fourth axis, so that one search serves all of them.
    far = np.ptp(points, axis=0).sum() + 1
    lifted = np.column_stack([points, far * label])
    distance, owner = KDTree(lifted[chosen]).query(lifted)
    return np.asarray(owner), float(np.max(distance))


def _pairs_within(points: NDArray, radius: float) -> tuple[NDArray, NDArray]:
    """All pairs (p, 2) of points nearer than radius, and their distances (p,)."""
    pairs = KDTree(points).query_pairs(radius, output_type="ndarray")
    return pairs, np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1)


def _same_sheet(pairs: NDArray, normals: NDArray) -> NDArray:
    """Whether the normals of each pair (p, 2) differ by less than 120 degrees, as they do across a blunt edge."""
    return np.einsum("ij,ij->i", normals[pairs[:, 0]], normals[pairs[:, 1]]) > MIN_SAME_SHEET_COSINE


def _independent(pairs: NDArray, priority: NDArray) -> NDArray:
    """Indices of a maximal set of points of which no two form a pair (p, 2).

    In each round a point whose priority exceeds that of all its undecided neighbours is chosen, and these neighbours
    are ruled out (Luby, 1986, "A simple parallel algorithm for the maximal independent set problem").
    """
    undecided, chosen = np.ones(len(priority), dtype=bool), np.zeros(len(priority), dtype=bool)
    i, j = np.concatenate([pairs, pairs[:, ::-1]]).T
    while undecided.any():
        rival = np.full(len(priority), -np.inf)
        np.maximum.at(rival, i, priority[j])
        winner = undecided & (priority > rival)
        chosen |= winner
        undecided &= ~winner
        undecided[j[winner[i]]] = False
        alive = undecided[i] & undecided[j]
        i, j = i[alive], j[alive]
    return chosen.nonzero()[0]
