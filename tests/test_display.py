"""What is drawn is what was solved: triangles with straight edges show u(p) everywhere on the surface."""

import numpy as np
import pytest
import torch
from plyfile import PlyData

import lamina
from lamina.surfaces.icosphere import icosphere


def box(low, high):
    """The twelve triangles of a box."""
    corners = torch.cartesian_prod(*torch.tensor([low, high], dtype=torch.float64).T)
    faces = [[0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1], [2, 3, 7], [2, 7, 6],
             [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3]]  # fmt: skip
    return lamina.Mesh(corners, faces)


def turned_ring(sides=40):
    """A ring with a rectangular profile, as a CAD program writes it: long thin faces, all its vertices on edges."""
    profile = torch.tensor([[1.0, 0.0], [2.0, 0.0], [2.0, 0.7], [1.0, 0.7]], dtype=torch.float64)
    angle = 2 * torch.pi * torch.arange(sides, dtype=torch.float64) / sides
    r, z = profile.T
    points = torch.stack([r * angle.cos()[:, None], r * angle.sin()[:, None], z.expand(sides, 4)], 2).reshape(-1, 3)
    faces = []
    for i in range(sides):
        for k in range(4):
            a, b = 4 * i + k, 4 * i + (k + 1) % 4
            c, d = 4 * ((i + 1) % sides) + (k + 1) % 4, 4 * ((i + 1) % sides) + k
            faces += [[a, d, c], [a, c, b]]
    return lamina.Mesh(points, faces)


def waves(x):
    return torch.sin(6 * x[:, 0]) * torch.cos(5 * x[:, 1])


def largest_difference(u):
    """Of what is drawn from u(p), over 20,000 random points of the drawn triangles, over the range of u."""
    drawn = u.drawn
    corners = drawn.points[drawn.faces]
    area = torch.linalg.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]).norm(dim=1)
    generator = torch.Generator().manual_seed(0)
    face = torch.multinomial(area, 20_000, replacement=True, generator=generator)
    cuts = torch.rand(20_000, 2, generator=generator, dtype=torch.float64).sort(1).values
    weight = torch.stack([cuts[:, 0], cuts[:, 1] - cuts[:, 0], 1 - cuts[:, 1]], 1)
    shown = (weight * drawn.values[-1][drawn.faces[face]]).sum(1)
    true = u((weight[..., None] * corners[face]).sum(1))
    return float((shown - true).abs().max() / (true.max() - true.min()))


def open_edges(faces):
    """Edges that are not shared by two triangles."""
    edges = np.sort(faces.numpy()[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), axis=1)
    return int((np.unique(edges, axis=0, return_counts=True)[1] != 2).sum())


@pytest.mark.parametrize(
    "surface",
    [box([-1, -1, -1], [1, 1, 1]), box([0, 0, 0], [3, 0.2, 1]), turned_ring(), lamina.Sphere(level=2)],
    ids=["cube", "plate", "ring", "exact sphere"],
)
def test_large_faces_are_split_until_straight_edges_show_the_field(surface):
    u = lamina.heat(lamina.Domain(surface), waves, 1e-3)
    assert largest_difference(u) < 0.01
    assert open_edges(u.drawn.faces) == 0
    corners = u.drawn.points[u.drawn.faces]
    drawn = torch.linalg.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]).norm(dim=1).sum() / 2
    area = 4 * torch.pi if isinstance(surface, lamina.Sphere) else float(surface.areas.sum())
    assert drawn == pytest.approx(area, rel=1e-3)
    assert f"{len(u.drawn.faces)} triangles" in u.drawn.note


@pytest.mark.parametrize(
    "surface",
    [
        lamina.Implicit(lambda x: (torch.hypot(x[:, 0], x[:, 1]) - 1).square() + x[:, 2].square() - 0.16,
                               bounds=([-1.6, -1.6, -0.6], [1.6, 1.6, 0.6])),
        lamina.PointCloud(icosphere(5)[0], icosphere(5)[0]),
    ],
    ids=["implicit torus", "cloud"],
)  # fmt: skip
def test_surfaces_without_faces_are_drawn_by_the_pieces_that_the_cells_cut(surface):
    u = lamina.heat(lamina.Domain(surface), waves, 1e-2)
    assert largest_difference(u) < 0.01
    assert "cells cut the surface" in u.drawn.note


@pytest.mark.slow
def test_a_field_as_rough_as_the_grid_carries_is_drawn_as_it_was_solved():
    """Eight cells a wave, after little time: it bends in every cell, and most of all across the edges of cells."""
    u = lamina.heat(lamina.Domain(turned_ring()), lambda x: torch.sin(9 * x[:, 0]) * torch.cos(7 * x[:, 1]), 1e-3)
    assert u.warnings == ()
    assert largest_difference(u) < 0.01


def test_small_faces_are_drawn_as_they_are():
    points, faces = icosphere(5)
    u = lamina.poisson(lamina.Domain(lamina.Mesh(points, faces), 0.2), lambda x: x[:, 0])
    assert u.drawn.note is None
    torch.testing.assert_close(u.drawn.values[0], u.values)


def test_files_hold_what_is_drawn_or_the_surface_as_it_came(tmp_path):
    u = lamina.heat(lamina.Domain(box([-1, -1, -1], [1, 1, 1])), waves, 1e-3)
    drawn, own = (PlyData.read(str(u.save(tmp_path / "u.ply", refine=refine))) for refine in (True, False))
    np.testing.assert_array_equal(drawn["vertex"]["value"], u.drawn.values[-1])
    assert (own["vertex"].count, own["face"].count) == (8, 12)
    np.testing.assert_array_equal(own["vertex"]["value"], u.values)
    with np.load(u.save(tmp_path / "u.npz")) as archive:
        assert archive["values"].shape == (8,)
    assert f'NumberOfPoints="{len(u.drawn.points)}"' in u.save(tmp_path / "u.vtu").read_text()


def test_a_constant_field_needs_no_splitting_beyond_the_cells():
    u = lamina.heat(lamina.Domain(box([-1, -1, -1], [1, 1, 1]), 0.25), lambda x: 1.0 + 0 * x[:, 0], 0.1)
    edges = u.drawn.points[u.drawn.faces] - u.drawn.points[u.drawn.faces.roll(1, 1)]
    assert 0.1 < float(edges.norm(dim=2).max()) < 0.26


def test_split_faces_are_shaded_as_the_faces_that_they_came_from():
    """Flat faces look flat up to their edges; between smooth vertices normals are interpolated."""
    u = lamina.poisson(lamina.Domain(box((0, 0, 0), (1, 1, 1)), 0.1), waves, screening=1.0)
    inside = ((u.drawn.points > 1e-9) & (u.drawn.points < 1 - 1e-9)).sum(1) == 2
    assert int(inside.sum()) > 100
    torch.testing.assert_close(u.drawn.normals[inside].abs().amax(1), torch.ones(int(inside.sum())).double())
    ball = lamina.poisson(lamina.Domain(lamina.Mesh(*icosphere(2)), 0.1), lambda x: torch.sin(9 * x[:, 0])).drawn
    assert len(ball.points) > 2 * len(icosphere(2)[0])
    outward = (ball.normals * ball.points).sum(1) / ball.points.norm(dim=1)
    assert float(outward.min()) > 0.998  # the faces themselves are up to 10 degrees off
