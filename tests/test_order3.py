"""Functions of order 3 on cut cells: their orders, the laws they obey, conditions, and gradients."""

import math
from functools import cache

import pytest
import torch

import lamina
from lamina import Dirichlet, Neumann, Robin
from lamina.gallery import ellipsoid_poisson, hemisphere_poisson, sphere_heat, sphere_poisson, torus_poisson
from lamina.paper.baselines.reference import reference_poisson
from lamina.surfaces.icosphere import icosphere

PROBLEMS = {p.name: p for p in (sphere_poisson(), torus_poisson(), ellipsoid_poisson())}


def nrmse(values, exact, weights) -> float:
    error = values - exact
    error = error - (weights * error).sum() / weights.sum()
    return float(((weights * error**2).sum() / weights.sum()).sqrt() / (exact.max() - exact.min()))


@cache
def solved(name: str, spacing: float, shift: float = 0.0) -> lamina.Solution:
    problem = PROBLEMS[name]
    origin = shift * spacing * torch.tensor([1.0, 0.6, 0.3], dtype=torch.float64)
    domain = lamina.Domain(problem.surface(), spacing, order=3, origin=origin)
    return lamina.poisson(domain, problem.rhs, tolerance=1e-10)


def error(name: str, spacing: float, shift: float = 0.0) -> float:
    u = solved(name, spacing, shift)
    return nrmse(u.values, PROBLEMS[name].solution(u.domain.points), u.domain.surface.areas)


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_poisson_is_third_order(name):
    assert math.log2(error(name, 0.2) / error(name, 0.1)) >= 2.8


def test_error_on_the_sphere():
    assert error("sphere", 0.1) <= 9e-6
    assert solved("sphere", 0.1).cycles <= 15


def test_the_error_does_not_depend_on_where_the_grid_lies():
    found = [error("torus", 0.2, shift) for shift in (0.0, 0.2, 0.5, 0.8)]
    assert max(found) <= 1.3 * min(found)


def test_a_solution_is_read_on_the_surface_as_accurately_as_it_was_found():
    """Functions live on flat pieces below the surface; reading them beside these would cost a factor of two."""
    u = solved("sphere", 0.1)
    q, exact = u.domain.quadrature, PROBLEMS["sphere"].solution
    x = torch.nn.functional.normalize(torch.randn(500, 3, dtype=torch.float64), dim=1)
    found = u.domain.scheme.at_source_points(u.unknowns[0], slice(None))
    inside = nrmse(found, exact(q.points), q.weights)
    assert nrmse(u(x), exact(x), torch.ones(500, dtype=torch.float64)) <= 1.3 * inside


def test_operators_are_symmetric_and_constants_have_no_stiffness():
    scheme = lamina.Domain(lamina.Torus(1.0, 0.4), 0.35, order=3).scheme
    K, M = scheme.K.to_dense(), scheme.M.to_dense()
    torch.testing.assert_close(K, K.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(M, M.T, rtol=0, atol=1e-14)
    ones = torch.ones(len(K), dtype=torch.float64)
    torch.testing.assert_close(K @ ones, torch.zeros_like(ones), rtol=0, atol=1e-11)
    assert float(ones @ M @ ones) == pytest.approx(1.6 * math.pi**2, rel=1e-3)
    assert float(torch.linalg.eigvalsh(K)[1]) > 1e-6


def test_eigenvalues_of_the_sphere_are_of_fourth_order():
    exact = torch.tensor([float(n * (n + 1)) for n in range(4) for _ in range(2 * n + 1)])[1:]

    def worst(spacing):
        modes = lamina.eigenmodes(lamina.Domain(lamina.Sphere(), spacing, order=3), 16)
        return float(((modes.eigenvalues[1:] - exact) / exact).abs().max())

    coarse, fine = worst(0.4), worst(0.2)
    assert fine <= 2e-4
    assert math.log2(coarse / fine) >= 3.5


def test_heat_conserves_the_integral_and_is_accurate():
    domain, problem = lamina.Domain(lamina.Sphere(), 0.25, order=3), sphere_heat()
    u = lamina.heat(domain, lambda x: 1 + problem.initial(x), 0.1, steps=40)
    mass = domain.scheme.mass_of_one
    start = float((mass * domain.scheme.sample(lambda x: 1 + problem.initial(x))).sum())
    assert float((mass * u.unknowns[-1]).sum()) == pytest.approx(start, rel=1e-11)
    assert float((u.values - 1 - problem.solution(domain.points, 0.1)).abs().max()) <= 1e-3


@pytest.mark.parametrize("kind", ["dirichlet", "neumann", "robin"])
def test_conditions_on_a_rim_are_third_order(kind):
    problem = hemisphere_poisson()
    conditions = {
        "dirichlet": Dirichlet("rim", problem.solution),
        "neumann": Neumann("rim", problem.flux),
        "robin": Robin("rim", lambda x: problem.flux(x) + 2 * problem.solution(x), coefficient=2.0),
    }

    def error(spacing):
        domain = lamina.Domain(problem.surface(), spacing, order=3)
        u = lamina.poisson(domain, problem.rhs, conditions[kind], tolerance=1e-10)
        q, error = u.domain.quadrature, u.values - problem.solution(domain.points)
        error = error - error.mean() if kind == "neumann" else error
        assert q.area == pytest.approx(2 * math.pi, rel=1e-4)
        assert u.cycles <= 20
        return float(error.square().mean().sqrt()) / 3

    coarse, fine = error(0.2), error(0.1)
    assert fine <= 1e-5
    assert math.log2(coarse / fine) >= 2.5


def test_a_curved_rim_is_followed_to_third_order():
    """The part of the sphere above a wavy curve, with the values of a harmonic held on it."""

    def wavy(x):
        return x[:, 2] - 0.4 * x[:, 0] * x[:, 1] - 0.1

    def error(spacing):
        domain = lamina.Domain(lamina.clip(lamina.Sphere(), wavy), spacing, order=3)
        problem = PROBLEMS["sphere"]
        u = lamina.poisson(domain, problem.rhs, Dirichlet("rim", problem.solution), tolerance=1e-10)
        return float((u.values - problem.solution(domain.points)).square().mean().sqrt())

    assert math.log2(error(0.2) / error(0.1)) >= 2.5


def test_what_enters_through_a_rim_is_what_sources_take_out():
    domain = lamina.Domain(lamina.clip(lamina.Sphere(), lambda x: x[:, 2]), 0.2, order=3)
    u = lamina.poisson(domain, "1 + x*y", [Dirichlet("x > 0", "y"), Neumann("x < 0", 0.5)], tolerance=1e-12)
    weights, x = domain.quadrature.weights, domain.quadrature.points
    assert float(u.fluxes.sum()) == pytest.approx(float((weights * (1 + x[:, 0] * x[:, 1])).sum()), rel=1e-4)


def test_curves_and_points_inside_are_held():
    held = [Dirichlet(lambda x: x[:, 2] - 0.3, "x"), Dirichlet(lamina.Points(torch.tensor([[0.0, 0.0, -1.0]])), 2.0)]
    domain = lamina.Domain(lamina.Sphere(), 0.2, order=3)
    u = lamina.poisson(domain, 0.0, held)
    angle = torch.linspace(0, 6, 20, dtype=torch.float64)
    radius = math.sqrt(1 - 0.09)
    circle = torch.stack([radius * angle.cos(), radius * angle.sin(), torch.full_like(angle, 0.3)], 1)
    torch.testing.assert_close(u(circle), circle[:, 0], rtol=0, atol=2e-3)
    assert float(u(torch.tensor([[0.0, 0.0, -1.0]], dtype=torch.float64))) == pytest.approx(2, abs=1e-2)


def test_coefficients_that_vary_and_tensors_give_the_solution_that_they_were_made_for():
    """div(a grad u) - c u = f with a = 2 + z, u = x and c = 1 + y^2 on the sphere: f = -2 a x - x z - c x."""

    def exact(x):
        return x[:, 0]

    def rhs(x):
        return -2 * (2 + x[:, 2]) * x[:, 0] - x[:, 0] * x[:, 2] - (1 + x[:, 1] ** 2) * x[:, 0]

    domain = lamina.Domain(lamina.Sphere(), 0.2, order=3)
    numbers, tensors = (
        lamina.poisson(domain, rhs, diffusivity=a, screening=lambda x: 1 + x[:, 1] ** 2).values
        for a in (lambda x: 2 + x[:, 2], lambda x: (2 + x[:, 2])[:, None, None] * torch.eye(3, dtype=x.dtype))
    )
    torch.testing.assert_close(numbers, exact(domain.points), rtol=0, atol=5e-4)
    torch.testing.assert_close(tensors, numbers, rtol=0, atol=1e-8)


def test_sheets_closer_than_a_cell_are_independent():
    def shells(x):
        return ((x * x).sum(1).sqrt() - 1).abs() - 0.05

    domain = lamina.Domain(lamina.Implicit(shells, [[-1.2] * 3, [1.2] * 3], samples=4000), 0.15, order=3)
    assert domain.component_count == 2
    u = lamina.poisson(domain, PROBLEMS["sphere"].rhs)
    outer = domain.points.norm(dim=1) > 1
    for part, radius in ((outer, 1.05), (~outer, 0.95)):
        x = domain.points[part] / radius
        # f is xyz of degree 3 and (x^2 - y^2)/2 of degree 2, each times its eigenvalue; on radius r both grow.
        exact = radius**2 * (radius**3 * x.prod(1) + radius**2 * (x[:, 0] ** 2 - x[:, 1] ** 2) / 2)
        assert nrmse(u.values[part], exact, torch.ones_like(exact)) < 2e-3


def test_pieces_are_cut_finer_where_the_surface_turns_within_them():
    """A sphere is followed by pieces of the size of its cells, the edges of a box by pieces of a quarter of it; both
    with as many points as their size asks for."""

    def box(x):
        return x.abs().amax(1) - 0.7

    cuts = [
        lamina.Domain(surface, 0.25, order=3).cut
        for surface in (lamina.Sphere(), lamina.Implicit(box, [[-1] * 3, [1] * 3], samples=1000))
    ]
    points, pieces = (
        [c.per_piece for c in cuts],
        [len(c.element) / c.per_piece / c.elements.active for c in cuts],
    )
    assert points == [12, 3]
    assert pieces[1] > 8 * pieces[0]


def test_a_mesh_is_solved_as_it_is():
    mesh = lamina.Mesh(*icosphere(3))

    def f(x):
        return torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]

    u = lamina.poisson(lamina.Domain(mesh, 0.15, order=3), f)
    exact = torch.as_tensor(reference_poisson(mesh.points, mesh.faces, f).values)
    assert nrmse(u.values, exact, mesh.areas) < 4e-4


def test_samples_are_solved_on_the_surface_fitted_to_them():
    feet = lamina.Sphere().sample(10_000, 0)
    u = lamina.poisson(
        lamina.Domain(lamina.PointCloud(feet.points, feet.normals), 0.1, order=3), PROBLEMS["sphere"].rhs
    )
    assert nrmse(u.values, PROBLEMS["sphere"].solution(u.domain.points), u.domain.surface.areas) <= 2.5e-5


def test_single_precision():
    problem = PROBLEMS["sphere"]
    u = lamina.poisson(lamina.Domain(problem.surface(), 0.2, order=3, dtype=torch.float32), problem.rhs)
    assert u.values.dtype == torch.float32
    exact = problem.solution(u.domain.points)
    assert nrmse(u.values, exact, u.domain.surface.areas) <= 2e-4


# Which order


def test_auto_takes_order_3_where_the_grid_sees_how_the_surface_turns():
    def box(x):
        return x.abs().amax(1) - 0.7

    smooth = lamina.Domain(lamina.Torus(1.0, 0.4), nodes=5000, order="auto")
    sharp = lamina.Domain(lamina.Implicit(box, [[-1] * 3, [1] * 3], samples=1000), nodes=2000, order="auto")
    assert (smooth.order, sharp.order) == (3, 2)
    assert "sees how the surface turns" in smooth.order_reason
    assert "turns within cells" in sharp.order_reason
    for domain, nodes in ((smooth, 5000), (sharp, 2000)):
        assert 0.6 * nodes <= domain.unknowns <= 1.4 * nodes


# Gradients


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SENSORS = 0.9 * torch.nn.functional.normalize(random(40, 3), dim=1)
PARAMETERS = torch.tensor([0.02, -0.03, 0.05, 0.9, 0.85, 0.8], dtype=torch.float64)  # a centre, and three axes


def of_zero_set(p):
    def phi(x):
        return ((x - p[:3]) / p[3:]).square().sum(1).sqrt() - 1

    return lamina.Implicit(phi, [[-1.5] * 3, [1.5] * 3], samples=500)


def of_map(p):
    return lamina.SphericalMap(lambda s: p[:3] + p[3:] * s, level=3)


def of_vertices(p):
    V, F = icosphere(2)
    return lamina.Mesh(p[:3] + p[3:] * V, F)


def at_sensors(u):
    """A number that depends on the solution at fixed places."""
    return (random(len(SENSORS), seed=1) * u(SENSORS)).sum()


def seen(u):
    """The same, and at the points of the surface, which move."""
    weights = random(len(u.values), seed=2) / len(u.values) ** 0.5
    return at_sensors(u) + (weights * u.values).sum()


# The samples of a zero set are found anew for each shape; only those of maps and meshes move with it.
@pytest.mark.parametrize(("make", "see"), [(of_zero_set, at_sensors), (of_map, seen), (of_vertices, seen)])
def test_gradients_to_the_shape_are_those_of_finite_differences(make, see):
    def loss(p):
        domain = lamina.Domain(make(p), 0.3, order=3, origin=(0.0, 0.0, 0.0))
        return see(lamina.poisson(domain, "sin(2*x) + y*z", screening=1.0, tolerance=1e-13))

    p = PARAMETERS.clone().requires_grad_()
    v, step = torch.nn.functional.normalize(random(6, seed=3), dim=0), 1e-6
    (g,) = torch.autograd.grad(loss(p), p)
    above, below = (float(loss((p + s * step * v).detach().requires_grad_()).detach()) for s in (1, -1))
    assert float((g * v).sum()) == pytest.approx((above - below) / (2 * step), abs=2e-5 * float(g.norm()))


def test_gradients_to_data_and_coefficients_pass_gradcheck():
    domain = lamina.Domain(lamina.Mesh(*icosphere(1)), 0.4, order=3)
    points = domain.points

    def solution(f, a, c):
        return lamina.poisson(domain, f, diffusivity=a, screening=c, tolerance=1e-13).values

    f, a, c = random(len(points)), 1 + random(len(points), seed=1) ** 2, 0.5 + random(len(points), seed=2) ** 2
    inputs = [t.requires_grad_() for t in (f, a, c)]
    assert torch.autograd.gradcheck(solution, inputs, eps=1e-5, atol=1e-6, fast_mode=True)


@pytest.mark.gpu
def test_the_gpu_gives_what_the_cpu_gives():
    problem, values = hemisphere_poisson(), []
    for device in ("cpu", "cuda"):
        closed = lamina.poisson(
            lamina.Domain(lamina.Torus(1.0, 0.4), 0.2, order=3, device=device), "x*y", tolerance=1e-11
        )
        domain = lamina.Domain(problem.surface(), 0.2, order=3, device=device)
        held = lamina.poisson(domain, problem.rhs, Dirichlet("rim", problem.solution), tolerance=1e-11)
        values.append(torch.cat([closed.values, held.values]).cpu())
    torch.testing.assert_close(values[1], values[0], rtol=0, atol=1e-8)


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.slow
def test_short_time_steps_take_few_iterations(order):
    """Fields that vanish on the surface have no mass of their own; at a short step nothing else would hold them."""
    V = torch.tensor([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=torch.float64)
    F = torch.tensor([[0, 1, 3], [0, 3, 2], [4, 7, 5], [4, 6, 7], [0, 5, 1], [0, 4, 5], [2, 3, 7], [2, 7, 6],
                      [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3]])  # fmt: skip
    domain = lamina.Domain(lamina.Mesh(V, F), nodes=6000, order=order)
    u = lamina.heat(domain, "sin(6*x)*cos(5*y)", 1e-3, steps=8)
    assert u.cycles / (2 * u.steps) < 16
    whole = lamina.heat(domain, "1 + sin(6*x)*cos(5*y)", 1e-2, steps=100, frames=3)
    mass = whole.unknowns @ domain.scheme.mass_of_one
    assert float((mass / mass[0] - 1).abs().max()) < 1e-11


def test_faces_may_look_to_either_side():
    V, F = icosphere(3)
    turned = torch.rand(len(F), generator=torch.Generator().manual_seed(1)) < 0.4
    mesh, mixed = lamina.Mesh(V, F), lamina.Mesh(V, torch.where(turned[:, None], F.flip(1), F))
    whole, other = (lamina.poisson(lamina.Domain(m, 0.3, order=3), "x + y*z", tolerance=1e-12) for m in (mesh, mixed))
    # The points of a rule on a piece are mirrored with its corners, which is all that differs.
    assert float((whole.values - other.values).abs().max()) < 1e-5 * float(whole.values.abs().max())


def test_auto_is_order_2_on_meshes_and_on_what_is_cut_from_them():
    mesh = lamina.Mesh(*icosphere(3))
    for surface in (mesh, lamina.clip(mesh, lambda x: x[:, 2])):
        domain = lamina.Domain(surface, 0.25)
        assert domain.order == 2
        assert "mesh" in domain.order_reason
    assert lamina.Domain(lamina.clip(lamina.Sphere(), lambda x: x[:, 2]), 0.25).order == 3


@pytest.mark.slow
def test_a_torus_from_twenty_thousand_samples():
    problem = PROBLEMS["torus"]
    feet = problem.surface().sample(20_000, 0)
    u = lamina.poisson(lamina.Domain(lamina.PointCloud(feet.points, feet.normals)), problem.rhs)
    assert u.domain.order == 3
    assert nrmse(u.values, problem.solution(feet.points), u.domain.surface.areas) <= 1e-4


def test_options_of_version_0_1_warn_and_say_what_to_write():
    with pytest.warns(FutureWarning, match="lamina.paper.BandDomain"):
        old = lamina.Domain(lamina.Sphere(level=2), 0.3, order=4)
    assert isinstance(old, lamina.paper.BandDomain)
    with pytest.warns(FutureWarning, match="order=2"):
        assert lamina.Domain(lamina.Sphere(level=2), 0.3, scheme="trace").order == 2
    with pytest.warns(FutureWarning, match="lamina.paper.Attention"):
        assert lamina.Attention is lamina.paper.Attention
    with pytest.raises(lamina.InputError, match="needs functions on cut cells"):
        lamina.eigenmodes(old, 4)


def test_where_a_surface_turns_back_within_a_cell_each_side_is_read():
    """A disc 0.16 thick with a round rim: normals of one side meet the pieces of the other in the same cell."""

    def disc(x):
        return torch.sqrt((x[:, :2].norm(dim=1) - 1).clamp_min(0) ** 2 + x[:, 2] ** 2 + 1e-12) - 0.08

    surface = lamina.Implicit(disc, [[-1.3, -1.3, -0.4], [1.3, 1.3, 0.4]], samples=6000)
    domain = lamina.Domain(surface, 0.2, order=3)
    height = domain.scheme.sample(lambda x: x[:, 2])
    points = surface.sample(5000, 0).points
    # Read from the other side, a height is wrong by up to 0.16.
    assert float((domain.evaluate(height, points) - points[:, 2]).abs().max()) < 0.04


@pytest.mark.parametrize("order", [2, 3])
def test_statistics_give_the_integral_of_the_function_that_was_solved(order):
    u = lamina.poisson(lamina.Domain(lamina.Torus(1.0, 0.4), 0.25, order=order), "1 + x + z^2", screening=1.0)
    exact = float(u.domain.scheme.mass_of_one @ u.unknowns[0])
    assert u.statistics()["integral"] == pytest.approx(exact, rel=1e-11)
