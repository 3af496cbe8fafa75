"""The trace scheme: exact cut cells, independent sheets, conservation, second order."""

import math

import pytest
import torch

import lamina
from lamina.gallery import sphere_poisson
from lamina.geometry.cut import cut_simplices
from lamina.geometry.triangles import triangle_areas
from lamina.metrics import errors
from lamina.surfaces.icosphere import icosphere

PROBLEM = sphere_poisson()


def solved(surface, spacing):
    domain = lamina.Domain(surface, spacing, scheme="trace")
    u = lamina.poisson(domain, PROBLEM.rhs, tolerance=1e-9)
    return u, errors(u.values, PROBLEM.solution(domain.points), remove_mean=True)


def test_pieces_of_cut_triangles_have_their_area_and_stay_in_their_cells():
    corners = 3 * torch.rand(200, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pieces, origin, cell = cut_simplices(corners)
    area = torch.zeros(200, dtype=torch.float64).index_add_(0, origin, triangle_areas(pieces))
    torch.testing.assert_close(area, triangle_areas(corners))
    local = pieces - cell[:, None]
    assert local.min() > -1e-8
    assert local.max() < 1 + 1e-8


def test_second_order_on_the_sphere_from_closest_points_alone():
    _, coarse = solved(lamina.Sphere(), 0.1)
    u, fine = solved(lamina.Sphere(), 0.05)
    assert fine.nmae <= 3e-4
    assert u.domain.unknowns <= 16_000
    assert math.log2(coarse.nmae / fine.nmae) >= 1.8


def test_curved_pieces_have_the_area_of_the_sphere_to_sixth_digit():
    domain = lamina.Domain(lamina.Sphere(), 0.1, scheme="trace")
    assert domain.quadrature.area == pytest.approx(4 * math.pi, rel=1e-6)
    assert domain.quadrature.integral(lambda x: x[:, 2] ** 2) == pytest.approx(4 * math.pi / 3, rel=1e-5)


def test_iterations_do_not_grow_with_refinement():
    assert all(solved(lamina.Sphere(), h)[0].cycles <= 20 for h in (0.1, 0.05, 0.03))


def plates(gap):
    """Two unit squares, one above the other."""
    square = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]], dtype=torch.float64)
    faces = torch.tensor([[0, 1, 2], [0, 2, 3]])
    vertices = torch.cat([square, square + torch.tensor([0.0, 0.0, gap])])
    return lamina.Mesh(vertices, torch.cat([faces, faces + 4]))


def test_plates_closer_than_a_cell_do_not_feel_each_other():
    h = 0.1
    domain = lamina.Domain(plates(0.2 * h), h, scheme="trace")
    # A source on the lower plate alone: the upper one, two tenths of a cell away, stays at rest.
    u = lamina.poisson(domain, lambda x: torch.where(x[:, 2] < 0.1 * h, x[:, 0] - 0.5, torch.zeros_like(x[:, 0])))
    assert domain.component_count == 2
    assert float(u.values[4:].abs().max()) <= 1e-10
    assert float(u.values[:4].abs().max()) > 1e-2


def test_a_flat_plate_has_its_neumann_solution():
    """Lap u = cos(pi x) with no flux through the rim: u = -cos(pi x) / pi^2."""
    domain = lamina.Domain(plates(1.0), 0.05, scheme="trace")
    u = lamina.poisson(domain, lambda x: torch.cos(math.pi * x[:, 0]))
    exact = -torch.cos(math.pi * domain.points[:, 0]) / math.pi**2
    assert float((u.values - exact).abs().max()) < 2e-3 * float(exact.max() - exact.min())


def test_heat_conserves_the_integral_and_ends_at_the_mean():
    domain = lamina.Domain(lamina.Mesh(*icosphere(3)), 0.2, scheme="trace")
    u = lamina.heat(domain, lambda x: 1 + x[:, 0] + x[:, 1] ** 2, 20.0, times=[0.01, 0.1, 1.0], tolerance=1e-12)
    mass = [float(domain.scheme.mass(v).sum()) for v in u.unknowns]
    assert max(mass) - min(mass) <= 1e-9 * mass[0]
    mean = domain.quadrature.mean(lambda x: 1 + x[:, 0] + x[:, 1] ** 2)
    torch.testing.assert_close(u.values, torch.full_like(u.values, mean), rtol=1e-6, atol=0)


def test_refused_where_it_does_not_apply():
    with pytest.raises(lamina.InputError, match="order 2"):
        lamina.Domain(lamina.Sphere(), 0.1, scheme="trace", order=4)
    domain = lamina.Domain(lamina.Sphere(), 0.2, scheme="trace")
    with pytest.raises(lamina.InputError, match="Explicit Euler"):
        lamina.heat(domain, lambda x: x[:, 0], 0.1, method="euler")
