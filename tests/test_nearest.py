"""Closest points are exact: libigl and scipy, which search by other means, find the same distances."""

import igl
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree

from lamina.geometry.lattice import Lattice
from lamina.geometry.triangles import closest_on_triangle, rows
from lamina.search.nearest import Nearest
from lamina.surfaces.icosphere import icosphere
from lamina.surfaces.mesh import Mesh


def random(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def soup(count, seed=0, size=0.3):
    """Triangles (count, 3, 3) of all sizes, anywhere in the unit cube, through each other."""
    centre = random(count, 1, 3, seed=seed)
    return centre + size * random(count, 1, 1, seed=seed + 1) ** 2 * (random(count, 3, 3, seed=seed + 2) - 0.5)


def slivers():
    """A sphere squashed until its triangles are a thousand times longer than wide."""
    V, F = icosphere(3)
    return (V * torch.tensor([1.0, 1.0, 1e-3], dtype=torch.float64))[F]


def igl_distances(triangles, x):
    corners = triangles.reshape(-1, 3).numpy()
    square, _, point = igl.point_mesh_squared_distance(x.numpy(), corners, np.arange(len(corners)).reshape(-1, 3))
    return torch.from_numpy(np.sqrt(square)), torch.from_numpy(np.asarray(point))


@pytest.mark.parametrize("triangles", [soup(500), slivers(), soup(3, seed=5), soup(1, seed=6)], ids=lambda t: len(t))
@pytest.mark.parametrize("size", [0.1, 1.5, 50.0])
def test_triangles_as_libigl_finds_them(triangles, size):
    x = size * (random(3000, 3, seed=9) - 0.5) + triangles.mean((0, 1))
    index, point = Nearest(triangles).to_points(x)
    distance = (x - point).norm(dim=1)
    exact, _ = igl_distances(triangles, x)
    torch.testing.assert_close(distance, exact, rtol=1e-10, atol=1e-12)
    on_it = closest_on_triangle(rows(x), *(rows(c) for c in triangles[index].unbind(1)))
    torch.testing.assert_close(torch.stack(on_it, 1), point)


@settings(max_examples=50, deadline=None)
@given(corners=st.lists(st.tuples(*[st.integers(-2, 2)] * 3), min_size=3, max_size=3), seed=st.integers(0, 99))
def test_degenerate_triangles_are_segments_and_points(corners, seed):
    """Against the best of many points of the triangle; small integers make degenerate ones common."""
    triangle = torch.tensor(corners, dtype=torch.float64)
    x = 6 * random(4, 3, seed=seed) - 3
    corner_rows = (rows(c.expand(4, 3)) for c in triangle)
    point = torch.stack(closest_on_triangle(rows(x), *corner_rows), 1)
    s, t = torch.meshgrid(*[torch.linspace(0, 1, 41, dtype=torch.float64)] * 2, indexing="ij")
    weights = torch.stack([1 - s, s * (1 - t), s * t], -1).reshape(-1, 3)
    best = (x[:, None] - weights @ triangle).norm(dim=-1).amin(1)
    distance = (x - point).norm(dim=1)
    assert (distance <= best + 1e-12).all()
    assert (distance >= best - 0.2).all()


def test_a_mesh_with_degenerate_and_duplicate_faces_has_the_feet_of_its_good_ones():
    V, F = icosphere(2)
    bad = torch.tensor([[0, 0, 1], [5, 5, 5], [3, 2, 3]])
    mesh = Mesh(V, torch.cat([F, bad, F[:20].roll(1, 1)]))
    x = 3 * random(2000, 3) - 1.5
    exact, _ = igl_distances(V[F], x)
    torch.testing.assert_close((x - mesh.closest_points(x).points).norm(dim=1), exact, rtol=1e-10, atol=1e-12)


def test_long_triangles_cost_no_accuracy():
    """A few triangles as long as the whole shape beside many small ones."""
    V, F = icosphere(3)
    long = torch.tensor([[5.0, 0, 0], [-5.0, 0.1, 0], [0, 0, 4.0]], dtype=torch.float64)
    mesh = Mesh(torch.cat([0.3 * V, long]), torch.cat([F, torch.tensor([[642, 643, 644]])]))
    x = 8 * random(2000, 3) - 4
    exact, _ = igl_distances(mesh.points[mesh.faces], x)
    feet = mesh.closest_points(x)
    torch.testing.assert_close((x - feet.points).norm(dim=1), exact, rtol=1e-10, atol=1e-12)


def test_every_component_is_searched_by_itself_near_lattice_nodes():
    triangles = soup(60)
    component = torch.arange(60) % 3
    lattice = Lattice(torch.zeros(3, dtype=torch.float64), 0.05)
    ijk, which, index, point = Nearest(triangles, component).to_nodes(lattice, 0.17)
    x = lattice.position(ijk)
    assert (component[index] == which).all()
    i = torch.arange(-8, 30)
    box = torch.stack(torch.meshgrid(i, i, i, indexing="ij"), -1).reshape(-1, 3)
    for c in range(3):
        exact, _ = igl_distances(triangles[component == c], lattice.position(box))
        near = box[exact <= 0.17]
        assert {tuple(n) for n in ijk[which == c].tolist()} == {tuple(n) for n in near.tolist()}
        mine = (x - point)[which == c].norm(dim=1)
        expected, _ = igl_distances(triangles[component == c], x[which == c])
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 5, 4000])
def test_points_as_a_kd_tree_finds_them(count):
    points = torch.randn(count, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = 8 * random(2000, 3) - 4
    index, point = Nearest(points).to_points(x)
    exact, _ = cKDTree(points.numpy()).query(x.numpy())
    torch.testing.assert_close(point, points[index])
    torch.testing.assert_close((x - point).norm(dim=1), torch.from_numpy(exact), rtol=1e-12, atol=1e-14)


def test_many_points_at_one_place_and_queries_on_them():
    points = torch.cat([torch.zeros(500, 3), torch.ones(500, 3), random(100, 3)]).double()
    index, point = Nearest(points).to_points(points)
    torch.testing.assert_close(point, points)
    torch.testing.assert_close(points[index], points)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_do_not_matter(scale):
    triangles, x = soup(200), random(500, 3, seed=9)
    index, point = Nearest(triangles).to_points(x)
    scaled_index, scaled_point = Nearest(scale * triangles).to_points(scale * x)
    torch.testing.assert_close(scaled_point / scale, point, rtol=1e-9, atol=1e-9)
    assert (scaled_index == index).double().mean() > 0.95  # edges shared by equals may go either way


def test_single_precision():
    triangles, x = soup(500), random(1000, 3, seed=9)
    _, point = Nearest(triangles.float()).to_points(x.float())
    exact, _ = igl_distances(triangles, x)
    torch.testing.assert_close((x - point.double()).norm(dim=1), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
def test_the_gpu_gives_what_the_cpu_gives():
    triangles, x = soup(2000), random(20000, 3, seed=9)
    here, there = Nearest(triangles).to_points(x)[1], Nearest(triangles.cuda()).to_points(x.cuda())[1].cpu()
    torch.testing.assert_close((x - there).norm(dim=1), (x - here).norm(dim=1))
