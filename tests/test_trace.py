"""The trace scheme: exact cut cells, independent sheets, conservation, second order."""

import dataclasses
import math
from functools import cache

import numpy as np
import pyamg
import pytest
import torch
from scipy.sparse import csr_array

import lamina
from lamina.gallery import sphere_poisson
from lamina.geometry.triangles import triangle_areas
from lamina.grid.cut import cut_surface
from lamina.grid.cut_triangles import cut_triangles
from lamina.metrics import errors
from lamina.paper.baselines.reference import reference_poisson
from lamina.spaces.operators import CutCellOperators
from lamina.surfaces.icosphere import icosphere, split_triangles

PROBLEM = sphere_poisson()


def solved(surface, spacing):
    domain = lamina.Domain(surface, spacing, order=2)
    u = lamina.poisson(domain, PROBLEM.rhs, tolerance=1e-9)
    return u, errors(u.values, PROBLEM.solution(domain.points), remove_mean=True)


def test_pieces_of_cut_triangles_have_their_area_and_stay_in_their_cells():
    corners = 3 * torch.rand(200, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pieces, origin, cell = cut_triangles(corners)
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
    domain = lamina.Domain(lamina.Sphere(), 0.1, order=2)
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
    domain = lamina.Domain(plates(0.2 * h), h, order=2)
    # A source on the lower plate alone: the upper one, two tenths of a cell away, stays at rest.
    u = lamina.poisson(domain, lambda x: torch.where(x[:, 2] < 0.1 * h, x[:, 0] - 0.5, torch.zeros_like(x[:, 0])))
    assert domain.component_count == 2
    assert float(u.values[4:].abs().max()) <= 1e-10
    assert float(u.values[:4].abs().max()) > 1e-2


def test_a_flat_plate_has_its_neumann_solution():
    """Lap u = cos(pi x) with no flux through the rim: u = -cos(pi x) / pi^2."""
    domain = lamina.Domain(plates(1.0), 0.05, order=2)
    u = lamina.poisson(domain, lambda x: torch.cos(math.pi * x[:, 0]))
    exact = -torch.cos(math.pi * domain.points[:, 0]) / math.pi**2
    assert float((u.values - exact).abs().max()) < 2e-3 * float(exact.max() - exact.min())


def test_heat_conserves_the_integral_and_ends_at_the_mean():
    domain = lamina.Domain(lamina.Mesh(*icosphere(3)), 0.2, order=2)
    u = lamina.heat(domain, lambda x: 1 + x[:, 0] + x[:, 1] ** 2, 20.0, times=[0.01, 0.1, 1.0], tolerance=1e-12)
    mass = [float(domain.scheme.mass(v).sum()) for v in u.unknowns]
    assert max(mass) - min(mass) <= 1e-9 * mass[0]
    mean = domain.quadrature.mean(lambda x: 1 + x[:, 0] + x[:, 1] ** 2)
    torch.testing.assert_close(u.values, torch.full_like(u.values, mean), rtol=1e-6, atol=0)


def test_refused_where_it_does_not_apply():
    with pytest.raises(lamina.InputError, match="Unknown scheme 'trace'; known: coupled, shell"):
        lamina.paper.BandDomain(lamina.Sphere(), 0.1, scheme="trace")
    domain = lamina.Domain(lamina.Sphere(), 0.2, order=2)
    with pytest.raises(lamina.InputError, match="Unknown method 'euler'; known for this domain: tr-bdf2"):
        lamina.heat(domain, lambda x: x[:, 0], 0.1, method="euler")


# Heat on a coarse mesh, where a thousand steps are quick


@cache
def coarse_domain() -> lamina.Domain:
    return lamina.Domain(lamina.Mesh(*icosphere(2)), 0.3, order=2)


def noise(domain):
    return 1 + torch.randn(len(domain.points), generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@cache
def long_run() -> lamina.Solution:
    """A rough state, a thousand steps, all of them kept: from far too short to far too long for its modes."""
    domain = coarse_domain()
    return lamina.heat(domain, noise(domain), 10.0, steps=1000, times=[0.01 * (i + 1) for i in range(1000)])


def test_a_thousand_steps_of_heat_keep_the_integral():
    u = long_run()
    assert u.steps == 1000
    mass = [float(u.domain.scheme.mass(v).sum()) for v in u.unknowns]
    start = u.domain.field(noise(u.domain), "noise")
    assert mass[0] == pytest.approx(u.domain.quadrature.integral(start), rel=1e-10)
    assert max(mass) - min(mass) <= 1e-11 * abs(mass[0])


def test_energy_never_grows():
    u = long_run()
    energy = np.array([float(torch.dot(v, u.domain.scheme.mass(v))) for v in u.unknowns])
    assert energy[1] < 0.99 * energy[0]
    assert float(np.diff(energy).max()) <= 1e-12 * energy[0]


def test_heat_ends_at_the_mean_of_the_initial_state():
    u = long_run()
    mean = u.domain.quadrature.mean(u.domain.field(noise(u.domain), "noise"))
    torch.testing.assert_close(u.values, torch.full_like(u.values, mean), rtol=1e-9, atol=0)


@pytest.mark.parametrize("time", [0.1, 20.0])
def test_heat_in_single_precision_takes_a_sane_number_of_steps(time):
    """Rounding must not be taken for an error of the step, however near the field is to its mean."""
    domain = lamina.Domain(lamina.Mesh(*icosphere(3)), 0.15, dtype=torch.float32)
    u = lamina.heat(domain, lambda x: 1 + x[:, 0] + x[:, 1] ** 2, time)
    assert u.values.dtype == torch.float32
    assert 5 <= u.steps < 200
    x = domain.points.double()
    exact = 4 / 3 + math.exp(-2 * time) * x[:, 0] + math.exp(-6 * time) * (x[:, 1] ** 2 - 1 / 3)
    assert float((u.values - exact).abs().max()) < 0.02


# Solvers


def wave(x):
    return torch.sin(2 * x[:, 0]) * torch.cos(1.5 * x[:, 1]) + x[:, 2]


def test_algebraic_multigrid_finds_the_same_solution():
    scheme = lamina.Domain(lamina.Mesh(*icosphere(3)), 0.15, order=2).scheme
    g = scheme.compatible(scheme.load(wave))
    ours = scheme.solve(g, 0.0, tolerance=1e-12).solution.numpy()
    K = scheme.K
    A = csr_array((K.values().numpy(), K.col_indices().numpy(), K.crow_indices().numpy()), shape=K.shape)
    assert abs(A - A.T).max() <= 1e-14 * abs(A).max()
    # With one unknown held at zero: pyamg's conjugate gradients may take rounding in the kernel for indefiniteness.
    hierarchy = pyamg.smoothed_aggregation_solver(A[1:, 1:], B=np.ones((scheme.unknowns - 1, 1)))
    theirs = np.zeros(scheme.unknowns)
    theirs[1:] = hierarchy.solve(-g.numpy()[1:], tol=1e-12, accel="cg", maxiter=400)
    assert np.linalg.norm(A @ theirs + g.numpy()) <= 1e-10 * np.linalg.norm(g.numpy())
    weight = scheme.mass_of_one.numpy()
    ours, theirs = (u - weight @ u / weight.sum() for u in (ours, theirs))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-8 * np.abs(theirs).max())


@pytest.mark.parametrize("spacing", [0.2, 0.1, 0.05])
def test_iterations_on_a_mesh_are_few_at_any_spacing(spacing):
    domain = lamina.Domain(lamina.Mesh(*icosphere(4)), spacing, order=2)
    u = lamina.poisson(domain, wave, tolerance=1e-9)
    assert u.cycles <= 20
    assert u.residual <= 1e-9


# Cones


def unit_square(n):
    """The unit square as 2 n^2 triangles."""
    x, y = torch.meshgrid(*[torch.linspace(0, 1, n + 1, dtype=torch.float64)] * 2, indexing="ij")
    a = (torch.arange(n)[:, None] * (n + 1) + torch.arange(n)).reshape(-1)
    b, c, d = a + n + 1, a + 1, a + n + 2
    return torch.stack([x, y, 0 * x], -1).reshape(-1, 3), torch.cat(
        [torch.stack([a, b, d], 1), torch.stack([a, d, c], 1)]
    )


def test_cone_ratios_of_a_square_by_hand():
    ratio = lamina.Mesh(*unit_square(4)).cone_ratio.reshape(5, 5)
    torch.testing.assert_close(ratio[1:-1, 1:-1], torch.ones(3, 3, dtype=torch.float64))  # 2 pi / 2 pi
    for rim in (ratio[0], ratio[-1], ratio[:, 0], ratio[:, -1]):
        assert rim.tolist() == pytest.approx([2, 1, 1, 1, 2])  # corners: pi / (pi/2); straight: pi / pi


def test_cone_ratios_of_a_cube_and_a_tetrahedron_by_hand():
    cube = torch.tensor([[i, j, k] for i in (0.0, 1.0) for j in (0.0, 1.0) for k in (0.0, 1.0)], dtype=torch.float64)
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = torch.tensor([t for a, b, c, d in quads for t in ((a, b, c), (a, c, d))])
    assert lamina.Mesh(cube, faces).cone_ratio.tolist() == pytest.approx([4 / 3] * 8)  # 2 pi / (3 pi/2)
    tetrahedron = lamina.Mesh(cube[[0, 3, 5, 6]], torch.tensor([[0, 1, 2], [0, 3, 1], [0, 2, 3], [1, 3, 2]]))
    assert tetrahedron.cone_ratio.tolist() == pytest.approx([2] * 4)  # 2 pi / pi
    # Vertices of their own for each face are seen as one.
    torn = lamina.Mesh(cube[faces].reshape(-1, 3), torch.arange(36).reshape(-1, 3))
    assert torn.cone_ratio.tolist() == pytest.approx([4 / 3] * 36)


SECTORS, RISE = 8, 0.5


def saddle():
    """Eight triangles around the origin, their rims up and down in turn: an angle of 1.5 times 2 pi; refined twice."""
    angle = 2 * math.pi * torch.arange(SECTORS, dtype=torch.float64) / SECTORS
    up = RISE * (-1.0) ** torch.arange(SECTORS, dtype=torch.float64)
    V = torch.cat([torch.zeros(1, 3, dtype=torch.float64), torch.stack([angle.cos(), angle.sin(), up], 1)])
    i = torch.arange(SECTORS)
    F = torch.stack([torch.zeros_like(i), 1 + i, 1 + (i + 1) % SECTORS], 1)
    for _ in range(2):
        V, F = split_triangles(V, F)
    return V, F


def saddle_problem():
    """u = r^a cos(a t) s(r) in polar coordinates around the vertex, t from 0 to T, a = 2 pi / T.

    The cut-off s = (1 - r^2/R^2)^4 keeps u away from the rim; f = r^a cos(a t) (s'' + (2a + 1) s'/r), since the
    first two factors are harmonic.
    """
    V, _ = saddle()
    spokes = torch.nn.functional.normalize(V[1 : 1 + SECTORS])
    sector = math.acos(float(spokes[0] @ spokes[1]))
    a, R = 2 * math.pi / (SECTORS * sector), 0.75

    def parts(x):
        r = x.norm(dim=1).clamp_min(1e-12)
        k = (torch.atan2(x[:, 1], x[:, 0]) % (2 * math.pi) / (2 * math.pi / SECTORS)).long().clamp(0, SECTORS - 1)
        t = k * sector + torch.acos(((x * spokes[k]).sum(1) / r).clamp(-1, 1)).clamp(0, sector)
        return r, r**a * torch.cos(a * t), (1 - r**2 / R**2).clamp_min(0)

    def exact(x):
        _, w, b = parts(x)
        return w * b**4

    def f(x):
        r, w, b = parts(x)
        slope_over_r = -8 * b**3 / R**2
        second = slope_over_r + 48 * b**2 * r**2 / R**4
        return w * (second + (2 * a + 1) * slope_over_r)

    return a, exact, f


def test_the_problem_on_the_saddle_is_what_it_says():
    """Finite elements on the refined mesh agree with the formula, and the vertex has its angle."""
    V, F = saddle()
    a, exact, f = saddle_problem()
    assert float(lamina.Mesh(V, F).cone_ratio[0]) == pytest.approx(a)
    assert a < 0.7
    reference = reference_poisson(V, F, f, max_vertices=70_000, tolerance=1e-6)
    assert errors(reference.values, exact(V), remove_mean=True).nrmse < 1e-4


@pytest.mark.parametrize("spacing", [0.1, 0.05])
def test_the_correction_at_a_saddle_vertex_takes_off_a_third_of_the_error(spacing):
    mesh = lamina.Mesh(*saddle())
    _, exact, f = saddle_problem()
    domain = lamina.Domain(mesh, spacing, order=2)
    cut = domain.scheme.cut
    assert cut.conductivity is not None
    assert float(cut.conductivity.max()) == 1.0
    found = []
    for surface in (cut, dataclasses.replace(cut, conductivity=None)):
        scheme = CutCellOperators(surface)
        u = domain.readout @ scheme.solve(scheme.load(f), 0.0, tolerance=1e-9).solution
        found.append(errors(u, exact(mesh.points), remove_mean=True).nrmse)
    assert found[1] >= 1.5 * found[0]


def test_a_mesh_without_saddle_vertices_needs_no_correction():
    assert lamina.Domain(lamina.Mesh(*icosphere(2)), 0.3, order=2).scheme.cut.conductivity is None


# Sheets


def test_without_sheets_plates_closer_than_a_cell_feel_each_other():
    h = 0.1
    mesh = plates(0.2 * h)
    lattice = lamina.Domain(mesh, h, order=2).lattice
    moved = {}
    for sheets in (True, False):
        scheme = CutCellOperators(cut_surface(mesh, lattice, sheets))
        g = scheme.load(lambda x: torch.where(x[:, 2] < 0.1 * h, x[:, 0] - 0.5, torch.zeros_like(x[:, 0])))
        u = scheme.readout(mesh.own_feet()) @ scheme.solve(g, 0.0, tolerance=1e-9).solution
        moved[sheets] = float(u[4:].max() - u[4:].min()) / float(u[:4].max() - u[:4].min())
        assert scheme.component_count == (2 if sheets else 1)
    assert moved[True] <= 1e-10
    assert moved[False] > 0.3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_many_small_parts_that_do_not_coarsen(dtype):
    """Triangles each in cells of their own: the coarsest level stays large, and is solved as a sparse one."""
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(300, 1, 3, generator=generator, dtype=torch.float64)
    corners = corners + 0.1 * torch.rand(300, 3, 3, generator=generator, dtype=torch.float64)
    mesh = lamina.Mesh(corners.reshape(-1, 3), torch.arange(900).reshape(-1, 3))
    domain = lamina.Domain(mesh, 0.05, order=2, dtype=dtype)
    assert domain.scheme.levels[-1].unknowns > 1500
    u = lamina.poisson(domain, lambda x: x[:, 0])
    assert u.cycles <= 30
    mean = domain.scheme._component_sums(domain.scheme.mass_of_one * u.unknowns[0]) / domain.scheme.area
    assert float(mean.abs().max()) <= 1e-4 * float(u.values.abs().max())
    residual = domain.scheme.K @ u.unknowns[0] + domain.scheme.compatible(domain.scheme.load(lambda x: x[:, 0]))
    assert float(residual.norm()) <= 1e-3 * float(domain.scheme.load(lambda x: x[:, 0]).norm())


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "spacing", "most"),
    [
        ("meshes/spot", 0.04, 6e-4),
        ("meshes/spot", 0.02, 1.5e-4),
        ("meshes/fandisk", 0.04, 1.2e-3),
        ("meshes/armadillo", 0.04, 3e-3),
        ("meshes/hand", 0.04, 6e-3),
        ("paper/apple", 0.04, 2e-4),
    ],
)
def test_real_meshes_against_refined_fem(data, name, spacing, most):
    mesh = lamina.load(data / f"{name}.ply")
    low, high = mesh.bounds
    mesh = lamina.Mesh((mesh.points - (low + high) / 2) / ((high - low).max() / 2), mesh.faces)

    def f(p):
        return torch.sin(2 * p[:, 0]) * torch.cos(1.5 * p[:, 1]) + p[:, 2]

    exact = reference_poisson(mesh.points, mesh.faces, f, max_vertices=300_000)
    u = lamina.poisson(lamina.Domain(mesh, spacing), f, tolerance=1e-9)
    assert u.cycles <= 30
    assert errors(u.values, torch.from_numpy(exact.values), remove_mean=True).nrmse <= most


def test_parts_as_thin_as_a_cell_are_cut_on_a_finer_lattice():
    """A lens twice 0.05 thick in the middle, sharp at its rim; its area is 2 pi (1 + c^2 artanh(e) / e)."""
    c, e = 0.05, math.sqrt(1 - 0.05**2)
    domain = lamina.Domain(lamina.Ellipsoid(1, 1, c), 0.05, order=2)
    assert domain.quadrature.area == pytest.approx(2 * math.pi * (1 + c**2 / e * math.atanh(e)), rel=0.01)


@pytest.mark.slow
def test_a_neck_thinner_than_a_cell_holds_its_ends_together():
    """Two bulbs joined by a neck 0.04 thick, at spacing 0.1."""

    def bulbs(x):
        wide = 0.02 + 0.98 * x[:, 2:] ** 2
        return torch.cat([wide * x[:, :2], 1.5 * x[:, 2:]], 1)

    surface = lamina.SphericalMap(bulbs)
    feet = surface.sample(8000, 0)
    cloud = lamina.PointCloud(feet.points, feet.normals)
    domain = lamina.Domain(cloud, 0.1, order=2, extension="neural", show_progress=False)
    assert isinstance(domain.scheme, CutCellOperators)
    assert len(domain.scheme.cut.elements.component.unique()) == 1
    assert domain.quadrature.area == pytest.approx(float(surface.areas.sum()), rel=0.01)


def test_a_component_smaller_than_a_cell_is_looked_for_on_finer_lattices():
    ball = lamina.Sphere().sample(4000, 0).points
    speck = lamina.Sphere().sample(60, 1).points
    points = torch.cat([ball, 0.02 * speck + torch.tensor([1.6, 0.013, 0.017])])
    cloud = lamina.PointCloud(points, torch.cat([ball, speck]))
    assert cloud.component_count == 2
    domain = lamina.Domain(cloud, 0.15, order=2, extension="jet", show_progress=False)
    assert isinstance(domain.scheme, CutCellOperators)
    assert domain.quadrature.area == pytest.approx(4 * math.pi, rel=0.01)


def test_parts_too_thin_for_closest_points_are_refused_in_words():
    with pytest.raises(lamina.InputError, match="too thin for them; use a smaller spacing"):
        lamina.Domain(lamina.Ellipsoid(1, 1, 0.01), 0.05, order=2)
