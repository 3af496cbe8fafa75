"""Nearest points by bins, and nodes around samples, as GPUs find them: the same as k-d trees and distances do."""

import pytest
import torch

import lamina
from lamina.geometry.lattice import Lattice, blocks_around, nodes_in_blocks, nodes_within
from lamina.search import bins
from lamina.search.neighbours import PieceTrees, PointTree


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ball(count=3000):
    return lamina.Sphere().sample(count, 0).points


def uneven():
    """A sphere, one a hundred times smaller, and some points far away from both."""
    return torch.cat([ball(), 0.01 * ball() + 3, 100 * randn(20, 3)])


@pytest.fixture
def small(monkeypatch):
    """Sizes with which some thousand points are many."""
    monkeypatch.setattr(bins, "MAX_ALL_PAIRS", 1000)
    monkeypatch.setattr(bins, "PAIR_BATCH", 2**17)
    monkeypatch.setattr(bins, "CROWDED_PER_NEIGHBOUR", 16)
    monkeypatch.setattr(bins, "CROWDED_POINTS", 64)


CASES = {
    "its own points": (ball(), ball(), 17),
    "places around": (ball(), 1.3 * ball(2000) + 0.05 * randn(2000, 3), 1),
    "places far away": (ball(), 30 * randn(500, 3), 3),
    "uneven": (uneven(), uneven(), 9),
    "all of them": (ball(60), ball(60), 60),
    "a plane": (torch.cat([randn(2000, 2), torch.zeros(2000, 1)], 1), randn(500, 3), 5),
}


@pytest.mark.parametrize("name", CASES)
def test_bins_find_what_a_tree_finds(name, small):
    points, x, k = CASES[name]
    index, distance = bins.nearest_by_bins(points, x, k)
    expected, away = PointTree(points).query(x, k)
    torch.testing.assert_close(distance, away, rtol=1e-12, atol=1e-14)
    assert torch.equal(index, expected)


def test_what_is_farther_than_wanted_need_not_be_found(small):
    points, x = ball(), (1 + 0.3 * randn(2000, 1)) * ball(2000)
    expected, away = PointTree(points).query(x, 1)
    near = away[:, 0] <= 0.2
    for index, distance in (bins.nearest_by_bins(points, x, 1, 0.2), PointTree(points).query(x, 1, 0.2)):
        assert torch.equal(index[near], expected[near])
        assert bool((distance[~near] > 0.2).all())


def test_pieces_of_one_component_know_no_other():
    trees = PieceTrees(ball(100), torch.zeros(100, dtype=torch.int64))
    _, distance = trees.query(ball(100), (torch.arange(100) % 2), 1)
    assert float(distance[::2].max()) == 0
    assert bool(torch.isinf(distance[1::2]).all())


def test_neighbours_of_its_own_points_are_remembered():
    tree = PointTree(ball())
    index, distance = tree.own(12)
    assert tree.knows(5)
    assert not tree.knows(13)
    expected = tree.query(tree.points, 5)
    assert torch.equal(tree.own(5)[0], expected[0])
    assert tree.own(5)[1].data_ptr() == distance.data_ptr()
    assert torch.equal(tree.own(13)[0], tree.query(tree.points, 13)[0])
    assert tree.own(100)[0].shape == (3000, 100)
    assert not tree.knows(100)
    assert index.shape == (3000, 12)


def test_the_nearest_point_around_another_is_the_nearest_of_all():
    tree = PointTree(uneven())
    start = torch.arange(len(tree.points))
    x = tree.points + 0.05 * randn(*tree.points.shape)  # beyond all neighbours of those on the small sphere
    assert torch.equal(tree.nearest_around(x, start), tree.query(x, 1)[0][:, 0])


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("radius", [0.05, 0.21])
def test_blocks_around_samples_hold_all_nodes_near_them(level, radius):
    points = ball(500)
    lattice = Lattice(torch.tensor([0.01, 0.02, -0.03], dtype=torch.float64), 0.05)
    tree = PointTree(points)

    def nearest(x):
        index, distance = tree.query(x, 1)
        return distance[:, 0], index[:, 0]

    ijk, index = nodes_in_blocks(blocks_around(lattice, points, radius, level), radius, nearest)
    bounds = torch.stack([points.amin(0), points.amax(0)])
    expected = nodes_within(lattice, bounds, radius, lambda x: nearest(x)[0])
    assert sorted(ijk.tolist()) == sorted(expected.tolist())
    assert torch.equal(index, nearest(lattice.position(ijk))[1])
