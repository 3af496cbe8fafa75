"""Meshes as they come: what is wrong with them is repaired with a note, or refused in one sentence."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lamina
from lamina.surfaces.icosphere import icosphere

V, F = icosphere(2)


def square(n=4):
    """The unit square as 2 n^2 triangles."""
    i, j = (w.reshape(-1) for w in torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij"))
    a = i * (n + 1) + j
    b, c, d = a + n + 1, a + 1, a + n + 2
    faces = torch.cat([torch.stack([a, b, d], 1), torch.stack([a, d, c], 1)])
    x, y = torch.meshgrid(*[torch.linspace(0, 1, n + 1, dtype=torch.float64)] * 2, indexing="ij")
    return torch.stack([x, y, 0 * x], -1).reshape(-1, 3), faces


def joined(*parts):
    points, faces, start = [], [], 0
    for p, f in parts:
        points.append(p)
        faces.append(f + start)
        start += len(p)
    return torch.cat(points), torch.cat(faces)


def shifted(part, *offset):
    return part[0] + torch.tensor(offset, dtype=torch.float64), part[1]


# Repaired with a note


def test_a_clean_mesh_has_no_notes_its_area_and_unit_normals():
    mesh = lamina.Mesh(*icosphere(4))
    assert mesh.notes == []
    assert mesh.component_count == 1
    assert float(mesh.areas.sum()) == pytest.approx(4 * np.pi, rel=5e-3)
    assert float((mesh.normals * mesh.points).sum(1).min()) > 0.999


def test_duplicate_faces_count_once():
    twice = lamina.Mesh(V, torch.cat([F, F[:7], F[:5].roll(1, 1), F[:3].flip(1)]))
    assert twice.notes == ["15 duplicate faces were ignored."]
    assert len(twice.faces) == len(F)
    torch.testing.assert_close(twice.areas, lamina.Mesh(V, F).areas)


def test_faces_without_area_are_ignored():
    middle = 0.5 * (V[0] + V[1])
    bad = torch.tensor([[0, 0, 1], [2, 2, 2], [0, 1, len(V)]])
    mesh = lamina.Mesh(torch.cat([V, middle[None]]), torch.cat([F, bad]))
    assert "3 faces have no area and were ignored." in mesh.notes
    assert len(mesh.faces) == len(F)


def test_unused_vertices_keep_their_place_and_get_the_value_at_their_closest_point():
    far = torch.tensor([[0.0, 0.0, 3.0], [9.0, 0.0, 0.0]], dtype=torch.float64)
    mesh = lamina.Mesh(torch.cat([far[:1], V, far[1:]]), F + 1)
    assert mesh.notes == ["2 vertices belong to no face; they get the value at their closest point."]
    assert len(mesh.points) == len(V) + 2
    assert mesh.areas[[0, -1]].tolist() == [0, 0]
    assert float(mesh.bounds.abs().max()) <= 1.0
    u = lamina.poisson(lamina.Domain(mesh, 0.2), lambda x: x[:, 2])
    top = int(V[:, 2].argmax())
    assert float(u.values[0]) == pytest.approx(float(u(mesh.closest_points(far[:1]).points)), abs=1e-9)
    assert abs(float(u.values[0] - u.values[1 + top])) < 0.1


def test_unused_vertices_may_even_be_anywhere_at_all():
    lost = torch.tensor([[1e7, 0.0, 0.0]], dtype=torch.float64)
    u = lamina.poisson(lamina.Domain(lamina.Mesh(torch.cat([V, lost]), F), 0.2), lambda x: x[:, 2])
    expected = lamina.poisson(lamina.Domain(lamina.Mesh(V, F), 0.2), lambda x: x[:, 2])
    torch.testing.assert_close(u.values[:-1], expected.values, rtol=0, atol=1e-6)


# Components


def test_components_are_joined_by_edges_not_by_a_touch_in_one_point():
    corner = joined(square(), shifted(square(), 1.0, 1.0, 0.0))  # the squares touch in (1, 1, 0)
    side = joined(square(), shifted(square(), 1.0, 0.0, 0.0))  # these share an edge, with vertices of their own
    assert lamina.Mesh(*corner).component_count == 2
    assert lamina.Mesh(*side).component_count == 1


def test_coincident_vertices_do_not_cut_a_surface_open():
    corners = V[F].reshape(-1, 3)
    torn = lamina.Mesh(corners, torch.arange(len(corners)).reshape(-1, 3))
    assert torn.component_count == 1
    u = lamina.poisson(lamina.Domain(torn, 0.2), lambda x: x[:, 2]).values
    whole = lamina.poisson(lamina.Domain(lamina.Mesh(V, F), 0.2), lambda x: x[:, 2]).values
    torch.testing.assert_close(u, whole[F.reshape(-1)], rtol=0, atol=1e-6)


def test_parts_are_numbered_and_labelled():
    mesh = lamina.Mesh(*joined((V, F), shifted((0.5 * V, F), 3.0, 0.0, 0.0), shifted(square(), 9.0, 0.0, 0.0)))
    assert mesh.component_count == 3
    labels = mesh.component.split([len(V), len(V), 25])
    assert [torch.unique(label).numel() for label in labels] == [1, 1, 1]
    assert len({int(label[0]) for label in labels}) == 3


# Open, non-manifold, non-orientable


def test_an_open_surface_has_free_rims():
    """On the unit square Lap u = -pi^2 cos(pi x) has the solution cos(pi x): no flux through the rim."""
    mesh = lamina.Mesh(*square(16))
    u = lamina.poisson(lamina.Domain(mesh, 0.05), lambda x: -(np.pi**2) * torch.cos(np.pi * x[:, 0]))
    assert float((u.values - torch.cos(np.pi * mesh.points[:, 0])).abs().max()) < 0.02


def test_three_sheets_at_one_edge_solve():
    """Kirchhoff at the seam: three unit squares that share an edge, one source each, symmetric."""
    flat = square(12)
    turn = [torch.tensor([[np.cos(a), 0, np.sin(a)], [0, 1, 0], [-np.sin(a), 0, np.cos(a)]]) for a in (0, 2.1, 4.2)]
    mesh = lamina.Mesh(*joined(*[(flat[0] @ R.double(), flat[1]) for R in turn]))
    assert mesh.component_count == 1
    u = lamina.poisson(lamina.Domain(mesh, 0.06), lambda x: -(np.pi**2) * torch.cos(np.pi * x[:, [0, 2]].norm(dim=1)))
    r = mesh.points[:, [0, 2]].norm(dim=1)
    assert float((u.values - torch.cos(np.pi * r)).abs().max()) < 0.05


def test_a_moebius_band_solves():
    n, m = 60, 8
    angle = 2 * np.pi * torch.arange(n, dtype=torch.float64) / n
    s, t = torch.meshgrid(angle, torch.linspace(-0.4, 0.4, m + 1, dtype=torch.float64), indexing="ij")
    points = torch.stack(
        [(1 + t * torch.cos(s / 2)) * w(s) for w in (torch.cos, torch.sin)] + [t * torch.sin(s / 2)], -1
    )
    index = torch.arange(n * (m + 1)).reshape(n, m + 1)
    index = torch.cat([index, index[:1].flip(1)])  # the last row meets the first upside down
    a, b, c, d = index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]
    faces = torch.cat([torch.stack([a, b, c], -1).reshape(-1, 3), torch.stack([a, c, d], -1).reshape(-1, 3)])
    mesh = lamina.Mesh(points.reshape(-1, 3), faces)
    u = lamina.poisson(lamina.Domain(mesh, 0.08), lambda x: x[:, 0])
    assert u.residual <= 1e-8
    assert float((u.values * mesh.points[:, 0]).sum()) < 0  # (u, Lap u) < 0
    assert "1 part has but one side, as a Moebius strip; solutions do not depend on it." in mesh.notes


# Refused


def bad_points(value):
    points = V.clone()
    points[3, 1] = value
    return points


@pytest.mark.parametrize(
    ("points", "faces", "message"),
    [
        (V, F[:0], "162 vertices and no faces; expected triangles: use PointCloud for bare points"),
        (V, [], "162 vertices and no faces"),
        (V, F + 1, r"Face indices run from 1 to 162 but there are 162 vertices .* check for 1-based indices"),
        (V, F - 1, "Face indices run from -1 to 160"),
        (bad_points(torch.nan), F, "1 of 162 vertices have NaN or infinite coordinates"),
        (bad_points(torch.inf), F, "1 of 162 vertices have NaN or infinite coordinates"),
        (V * 0, F, "320 faces and no area; expected triangles with area"),
        (V[:, :2], F, r"Vertices must have shape \(n, 3\), got \(162, 2\)"),
        (V, F[:, :2], r"Faces must be integers of shape \(m, 3\)"),
        (V, torch.cat([F, F], 1)[:, :4], "triangulate polygons first"),
        (V, F.double(), "Faces must be integers"),
        (V[:0], F, "there are 0 vertices"),
    ],
)
def test_bad_meshes_are_refused_in_words(points, faces, message):
    with pytest.raises(lamina.InputError, match=message):
        lamina.Mesh(points, faces)


def test_arrays_lists_and_tensors_are_the_same_mesh():
    expected = lamina.Mesh(V, F)
    for mesh in (lamina.Mesh(V.numpy(), F.numpy()), lamina.Mesh(V.tolist(), F.tolist())):
        torch.testing.assert_close(mesh.points, expected.points)
        torch.testing.assert_close(mesh.faces, expected.faces)
    assert lamina.Mesh(V.float(), F.int()).points.dtype == torch.float32


def test_the_mesh_does_not_change_what_it_was_given():
    points, faces = V.clone(), torch.cat([F, F[:3]])
    kept = points.clone(), faces.clone()
    lamina.Mesh(points, faces)
    assert torch.equal(points, kept[0])
    assert torch.equal(faces, kept[1])


# Soups: nothing depends on how the faces were written down


OPEN = F[(V[F][:, :, 2] < 0.7).all(1)]  # without its cap the sphere has a rim as well


def solved(mesh):
    return lamina.poisson(lamina.Domain(mesh, 0.2), lambda x: x[:, 2] + x[:, 0] ** 2).values


@given(st.integers(0, 1000))
@settings(max_examples=3, deadline=None)
def test_the_solution_does_not_depend_on_the_order_or_the_sharing_of_faces(seed):
    """Faces shuffled, some repeated, every one with vertices of its own, as in an STL file."""
    order = torch.randperm(len(OPEN), generator=torch.Generator().manual_seed(seed))
    soup = torch.cat([OPEN[order], OPEN[order[:11]].flip(1)])
    corners = V[soup].reshape(-1, 3)
    torn, whole = lamina.Mesh(corners, torch.arange(len(corners)).reshape(-1, 3)), lamina.Mesh(V, OPEN)
    assert torn.component_count == 1
    assert float(torn.areas.sum()) == pytest.approx(float(whole.areas.sum()), rel=1e-12)
    torch.testing.assert_close(solved(torn), solved(whole)[soup.reshape(-1)], rtol=0, atol=1e-6)


def test_the_solution_hardly_depends_on_the_sides_that_faces_look_to():
    """The three points on a piece are mirrored with its normal: a difference far below the error of the grid."""
    turned = torch.rand(len(OPEN), generator=torch.Generator().manual_seed(0)) < 0.4
    mesh = lamina.Mesh(V, torch.where(turned[:, None], OPEN.flip(1), OPEN))
    used = torch.unique(OPEN)
    torch.testing.assert_close(solved(mesh)[used], solved(lamina.Mesh(V, OPEN))[used], rtol=0, atol=1e-10)


def test_repeated_faces_of_a_torn_mesh_are_found_by_their_places():
    soup = torch.cat([F, F[:7]])
    corners = V[soup].reshape(-1, 3)
    torn = lamina.Mesh(corners, torch.arange(len(corners)).reshape(-1, 3))
    assert "7 duplicate faces were ignored." in torn.notes


def test_what_is_wrong_with_a_mesh_is_said():
    flipped = F.clone()
    flipped[::3] = flipped[::3].flip(1)
    assert lamina.Mesh(V, flipped).notes == [
        f"{len(F[::3])} of {len(F)} faces look to the other side than their neighbours; solutions do not depend on it."
    ]
