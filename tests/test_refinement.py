"""Cutting long edges leaves the surface as it is."""

import numpy as np
import pytest
import torch

import lamina
from lamina.paper.baselines.fem import SurfaceFEM
from lamina.paper.baselines.long_edges import split_long_edges


def box():
    """A box 2 x 1 x 0.1 of twelve triangles, facing outwards."""
    corners = np.array([(x, y, z) for x in (0, 2) for y in (0, 1) for z in (0, 0.1)], dtype=float)
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    return corners, np.array([t for a, b, c, d in quads for t in ((a, b, c), (a, c, d))])


def volume(V, F):
    a, b, c = V[F[:, 0]], V[F[:, 1]], V[F[:, 2]]
    return np.einsum("ij,ij->i", a, np.cross(b, c)).sum() / 6


@pytest.mark.parametrize("longest", [1.5, 0.7, 0.23])
def test_area_volume_and_closedness_stay(longest):
    V, F = box()
    W, G = split_long_edges(V, F, longest)
    edges = np.sort(np.concatenate([G[:, [0, 1]], G[:, [1, 2]], G[:, [2, 0]]]), 1)
    counts = np.unique(edges, axis=0, return_counts=True)[1]
    assert (counts == 2).all()
    assert np.linalg.norm(W[edges[:, 0]] - W[edges[:, 1]], axis=1).max() <= longest
    assert np.array_equal(W[: len(V)], V)
    assert volume(W, G) == pytest.approx(0.2, rel=1e-12)
    assert SurfaceFEM(W, G).areas.sum() == pytest.approx(2 * (2 + 0.2 + 0.1), rel=1e-12)


def test_short_edges_are_left_alone():
    V, F = box()
    W, G = split_long_edges(V, F, 10.0)
    assert np.array_equal(W, V)
    assert np.array_equal(G, F)
    with pytest.raises(lamina.InputError, match="expected a positive length"):
        split_long_edges(V, F, 0.0)


def test_solutions_converge_where_uniform_meshes_cannot_see_f():
    V, F = box()

    def solve(longest):
        W, G = split_long_edges(V, F, longest)
        return SurfaceFEM(W, G, solver="splu").poisson(torch.sin(6 * torch.from_numpy(W)[:, 0]))[: len(V)]

    coarse, middle, fine, finest = (solve(h) for h in (0.2, 0.1, 0.05, 0.025))
    assert np.abs(middle - finest).max() < np.abs(coarse - finest).max() / 2
    assert np.abs(fine - finest).max() < np.abs(middle - finest).max() / 2
