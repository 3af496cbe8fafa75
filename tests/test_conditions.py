"""Boundary conditions: exact solutions on many shapes, what conditions may be given on and by, heat, and refusals."""

import math
import os
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse.linalg as sla
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

import lamina
from hemisphere import KINDS, exact, flux, rhs
from lamina import Dirichlet, Neumann, Points, Robin
from lamina.geometry.cotangent import cotangent_stiffness, mass_matrix
from lamina.metrics import errors
from lamina.paper.baselines.fem import SurfaceFEM
from lamina.paper.baselines.reference import refine
from lamina.surfaces.icosphere import icosphere
from schemes import of_scheme

SCHEMES = ["trace", "coupled"]


def height(x):
    return x[:, 2]


@cache
def hemisphere(scheme: str, spacing: float, **options) -> lamina.Domain:
    return of_scheme(scheme, lamina.clip(lamina.Sphere(level=4), height), spacing, **options)


@cache
def mesh_hemisphere(spacing: float) -> lamina.Domain:
    return lamina.Domain(lamina.clip(lamina.Mesh(*icosphere(3)), lambda x: x[:, 2] - 0.01), spacing)


@cache
def sphere(spacing: float) -> lamina.Domain:
    return lamina.Domain(lamina.Sphere(level=4), spacing, order=2)


def nmae(u: lamina.Solution, true, **options) -> float:
    return errors(u.values, true(u.domain.points), **options).nmae


def grid(columns, rows, place, closed):
    """Triangles over place(i, j), i to `columns` and j to `rows`; closed: the last column is the first."""
    count = columns if closed else columns + 1
    i, j = (w.reshape(-1) for w in torch.meshgrid(torch.arange(count), torch.arange(rows + 1), indexing="ij"))
    V = place(i.double() / columns, j.double() / rows)
    i, j = (w.reshape(-1) for w in torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="ij"))
    a, b = i * (rows + 1) + j, (i + 1) % count * (rows + 1) + j
    return lamina.Mesh(V, torch.cat([torch.stack([a, b, b + 1], 1), torch.stack([a, b + 1, a + 1], 1)]))


@cache
def plate(spacing: float) -> lamina.Domain:
    """The square from -1 to 1, an odd number of edges along each side."""
    mesh = grid(31, 31, lambda s, t: torch.stack([2 * s - 1, 2 * t - 1, 0 * s], 1), closed=False)
    return lamina.Domain(mesh, spacing)


def around(s, radius, z):
    angle = 2 * math.pi * s
    return torch.stack([radius * angle.cos(), radius * angle.sin(), z], 1)


# Exact solutions on the hemisphere


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", list(KINDS))
def test_second_order_on_the_hemisphere(scheme, kind):
    found = []
    for spacing in (0.1, 0.05):
        u = lamina.poisson(hemisphere(scheme, spacing), rhs, KINDS[kind])
        found.append(nmae(u, exact, remove_mean=kind == "Neumann"))
        assert u.cycles <= 15
        assert u.residual <= 1e-8
        assert u.warnings == ()
    assert found[1] <= 2e-4
    assert math.log2(found[0] / found[1]) >= 1.8


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_solution_meets_its_values_on_the_rim_itself(scheme):
    angle = torch.arange(100, dtype=torch.float64) * 2 * math.pi / 100
    rim = torch.stack([angle.cos(), angle.sin(), 0 * angle], 1)
    found = []
    for spacing in (0.1, 0.05):
        u = lamina.poisson(hemisphere(scheme, spacing), rhs, KINDS["Dirichlet"])
        found.append(errors(u(rim), exact(rim)).nmae)
    assert found[1] <= 5e-4
    assert found[1] <= 0.5 * found[0]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("c", [0.5, 50.0])
def test_screening_with_boundary_values(scheme, c):
    u = lamina.poisson(
        hemisphere(scheme, 0.1), lambda x: rhs(x) - c * (exact(x) + 1), Dirichlet("rim", lambda x: exact(x) + 1),
        screening=c,
    )  # fmt: skip
    assert errors(u.values, exact(u.domain.points) + 1).nmae <= 1e-3
    assert u.warnings == ()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_values_on_one_part_of_the_rim_and_flux_through_the_other(scheme):
    """u = z + y^2, with a flux of -1 through the whole rim: either kind of condition may hold anywhere."""

    def true(x):
        return x[:, 2] + x[:, 1] ** 2

    conditions = [Dirichlet(lambda x: x[:, 0] > 0.123, true), Neumann(lambda x: x[:, 0] <= 0.123, -1.0)]
    domain = hemisphere(scheme, 0.1)
    u = lamina.poisson(domain, lambda x: -2 * x[:, 2] + 2 - 6 * x[:, 1] ** 2, conditions)
    assert nmae(u, true) <= 3e-3
    swapped = lamina.poisson(domain, lambda x: -2 * x[:, 2] + 2 - 6 * x[:, 1] ** 2, conditions[::-1])
    torch.testing.assert_close(swapped.values, u.values, rtol=0, atol=1e-6)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_single_precision_is_as_accurate_as_the_grid(scheme):
    double, single = (
        lamina.poisson(hemisphere(scheme, 0.1, dtype=dtype), rhs, KINDS["Dirichlet"])
        for dtype in (torch.float64, torch.float32)
    )
    assert single.values.dtype == torch.float32
    found = [errors(u.values, exact(double.domain.points)) for u in (double, single)]
    assert found[1].nmae == pytest.approx(found[0].nmae, rel=0.2)
    assert found[1].nmaxe == pytest.approx(found[0].nmaxe, rel=0.5)


# Other shapes


@pytest.mark.parametrize("kind", ["Dirichlet", "Neumann", "Robin"])
def test_a_flat_disc(kind):
    """u = x^2 - y^2 + x y + r^4: Lap u = 16 r^2 and du/dr = 2 (x^2 - y^2 + x y) + 4 where r = 1."""

    def true(x):
        return x[:, 0] ** 2 - x[:, 1] ** 2 + x[:, 0] * x[:, 1] + (x**2).sum(1) ** 2

    def out(x):
        return 2 * (x[:, 0] ** 2 - x[:, 1] ** 2 + x[:, 0] * x[:, 1]) + 4

    disc = lamina.clip(
        grid(90, 90, lambda s, t: torch.stack([2.2 * s - 1.1, 2.2 * t - 1.1, 0 * s], 1), closed=False),
        lambda x: 1 - (x**2).sum(1),
    )
    condition = {
        "Dirichlet": Dirichlet("rim", true),
        "Neumann": Neumann("rim", out),
        "Robin": Robin("rim", lambda x: out(x) + 3 * true(x), 3.0),
    }[kind]
    found = []
    for spacing in (0.1, 0.05):
        u = lamina.poisson(lamina.Domain(disc, spacing), lambda x: 16 * (x**2).sum(1), condition)
        found.append(nmae(u, true, remove_mean=kind == "Neumann"))
    assert found[1] <= 1e-3
    assert found[0] > found[1]


@cache
def cylinder(form: str, spacing: float) -> lamina.Domain:
    """Around the z axis, of radius 0.5, from -1 to 1."""
    if form == "mesh":
        return lamina.Domain(grid(96, 40, lambda s, t: around(s, 0.5, 2 * t - 1), closed=True), spacing)
    box = [[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]]
    surface = lamina.Implicit(lambda x: x[:, 0] ** 2 + x[:, 1] ** 2 - 0.25, box, samples=2000)
    return lamina.paper.BandDomain(surface, spacing, scheme="coupled")


def on_cylinder(x):
    return 2 * x[:, 0] * torch.cosh(x[:, 2]) + x[:, 2] ** 2 + 0.5 * x[:, 2]


def cylinder_rhs(x):
    return 2 + 2 * x[:, 0] * torch.cosh(x[:, 2]) * (1 - 4)


def upwards(x):
    """d/dz of `on_cylinder`."""
    return 2 * x[:, 0] * torch.sinh(x[:, 2]) + 2 * x[:, 2] + 0.5


@pytest.mark.parametrize("form", ["mesh", "box"])
@pytest.mark.parametrize("kind", ["Neumann", "Robin"])
def test_a_cylinder_held_below_with_flux_above(form, kind):
    def high(x):
        return x[:, 2] > 0

    above = {
        "Neumann": Neumann(high, upwards),
        "Robin": Robin(high, lambda x: upwards(x) + 2 * on_cylinder(x), lambda x: 2 + 0 * x[:, 0]),
    }[kind]
    held = [Dirichlet(lambda x: x[:, 2] < 0, on_cylinder), above]
    coarse, fine = (
        nmae(lamina.poisson(cylinder(form, spacing), cylinder_rhs, held), on_cylinder) for spacing in (0.12, 0.06)
    )
    assert fine <= 1e-3
    assert fine <= 0.5 * coarse


@pytest.mark.parametrize("scheme", SCHEMES)
def test_loops_of_a_cone_are_known_by_their_number(scheme):
    """log r is harmonic on a cone: from 0 on the short loop, radius 0.4, to 1 on the long one, 0.9."""
    if scheme == "trace":
        cone = grid(64, 20, lambda s, t: around(s, 0.4 + 0.5 * t, 1.2 * t - 0.6), closed=True)
    else:
        box = [[-1.0, -1.0, -0.6], [1.0, 1.0, 0.6]]
        cone = lamina.Implicit(lambda x: x[:, :2].norm(dim=1) - 0.65 - x[:, 2] / 2.4, box, samples=2000)
    domain = of_scheme(scheme, cone, 0.1)
    u = lamina.poisson(domain, 0.0, [Dirichlet(0, 1.0), Dirichlet(1, 0.0)])
    r = domain.points[:, :2].norm(dim=1)
    assert errors(u.values, torch.log(r / 0.4) / math.log(0.9 / 0.4)).nmae <= 5e-3
    by_place = [Dirichlet(lambda x: x[:, 2] > 0, 1.0), Dirichlet(lambda x: x[:, 2] < 0, 0.0)]
    torch.testing.assert_close(lamina.poisson(domain, 0.0, by_place).values, u.values, rtol=0, atol=1e-7)


def moebius(columns, rows):
    """A strip of half width 0.3 around a circle of radius 0.7, with one half twist."""
    i, j = (w.reshape(-1) for w in torch.meshgrid(torch.arange(columns), torch.arange(rows + 1), indexing="ij"))
    angle, s = 2 * math.pi * i.double() / columns, 0.3 * (2 * j.double() / rows - 1)
    V = around(i.double() / columns, 0.7 + s * (angle / 2).cos(), s * (angle / 2).sin())
    i, j = (w.reshape(-1) for w in torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="ij"))

    def at(i, j):
        return torch.where(i == columns, rows - j, i * (rows + 1) + j)

    a, b, c, d = at(i, j), at(i + 1, j), at(i + 1, j + 1), at(i, j + 1)
    return V, torch.cat([torch.stack([a, b, c], 1), torch.stack([a, c, d], 1)])


def finite_elements(V, F, f, g, refinements):
    """Lap u = f with u = g on the rim, on the mesh split `refinements` times, at the vertices V."""
    v, faces = V.numpy(), F.numpy()
    for _ in range(refinements):
        v, faces = refine(v, faces)
    edges = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), 1)
    edges, count = np.unique(edges, axis=0, return_counts=True)
    rim = np.unique(edges[count == 1])
    free = np.setdiff1d(np.arange(len(v)), rim)
    K, points = cotangent_stiffness(v, faces).tocsc(), torch.from_numpy(v)
    u = np.zeros(len(v))
    u[rim] = g(points[rim]).numpy()
    load = -(mass_matrix(v, faces) @ f(points).numpy()) - K @ u
    u[free] = sla.spsolve(K[free][:, free], load[free])
    return torch.from_numpy(u[: len(V)])


def wave(x):
    return torch.sin(2 * x[:, 0]) * torch.cos(1.5 * x[:, 1]) + x[:, 2]


def test_a_moebius_strip_agrees_with_finite_elements():
    def g(x):
        return x[:, 0] + torch.sin(2 * x[:, 1])

    V, F = moebius(72, 8)
    u = lamina.poisson(lamina.Domain(lamina.Mesh(V, F), 0.05), wave, Dirichlet("rim", g))
    assert errors(u.values, finite_elements(V, F, wave, g, 2)).nmae <= 3e-4
    assert u.cycles <= 20


# Diffusivities


def rising(x):
    return 2 + x[:, 2]


def with_rising(x):
    """div(a grad u) for a = 2 + z and u = z + x y on the sphere, where grad z . grad u = 1 - z^2 - 2 x y z."""
    x, y, z = x.unbind(1)
    return (2 + z) * (-2 * z - 6 * x * y) + 1 - z**2 - 2 * x * y * z


def simple(x):
    return x[:, 2] + x[:, 0] * x[:, 1]


def simple_rhs(x):
    return -2 * x[:, 2] - 6 * x[:, 0] * x[:, 1]


@pytest.mark.parametrize("form", ["number", "field", "tensor"])
def test_second_order_with_a_diffusivity_and_boundary_values(form):
    diffusivity, f = {
        "number": (3.0, lambda x: 3 * simple_rhs(x)),
        "field": (rising, with_rising),
        "tensor": (lambda x: rising(x)[:, None, None] * torch.eye(3, dtype=x.dtype), with_rising),
    }[form]
    coarse, fine = (
        nmae(lamina.poisson(hemisphere("trace", h), f, Dirichlet("rim", simple), diffusivity=diffusivity), simple)
        for h in (0.1, 0.05)
    )
    assert fine <= 3e-4
    assert math.log2(coarse / fine) >= 1.8


def test_an_anisotropic_tensor_on_a_plate_with_boundary_values():
    """3 u_xx + 2 u_xy + 2 u_yy for u = sin(2x) exp(y)."""
    D = torch.tensor([[3.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)

    def true(x):
        return torch.sin(2 * x[:, 0]) * torch.exp(x[:, 1])

    def f(x):
        return torch.exp(x[:, 1]) * (-10 * torch.sin(2 * x[:, 0]) + 4 * torch.cos(2 * x[:, 0]))

    coarse, fine = (
        nmae(lamina.poisson(plate(h), f, Dirichlet("rim", true), diffusivity=lambda x: D.expand(len(x), 3, 3)), true)
        for h in (0.1, 0.05)
    )
    assert fine <= 2e-4
    assert math.log2(coarse / fine) >= 1.8


@pytest.mark.parametrize("kind", ["Neumann", "Robin"])
def test_the_flux_through_a_rim_counts_the_diffusivity(kind):
    """On the rim a = 2 and du/dn = -1."""
    condition = Neumann("rim", -2.0) if kind == "Neumann" else Robin("rim", lambda x: -2 + 1.5 * simple(x), 1.5)
    u = lamina.poisson(hemisphere("trace", 0.1), with_rising, condition, diffusivity=rising)
    assert nmae(u, simple, remove_mean=kind == "Neumann") <= 1e-3
    assert u.warnings == ()


# Inside a surface

HEIGHT = 0.3
RADIUS = math.sqrt(1 - HEIGHT**2)


def over_circle(x):
    return x[:, 2] - HEIGHT


def circle(count, turn=1.0):
    """Points around z = HEIGHT on the sphere; the last is the first after a whole turn."""
    angle = 2 * math.pi * turn * torch.arange(count + 1, dtype=torch.float64) / count
    points = torch.stack([RADIUS * angle.cos(), RADIUS * angle.sin(), torch.full_like(angle, HEIGHT)], 1)
    return torch.cat([points[:-1], points[:1] if turn == 1 else points[-1:]])


def kinked(x):
    """Another slope on each side of the circle, and x on it."""
    slope = torch.where(x[:, 2] > HEIGHT, 1.0, -2.5).to(x)
    return slope * over_circle(x) + x[:, 0]


def kinked_rhs(x):
    slope = torch.where(x[:, 2] > HEIGHT, 1.0, -2.5).to(x)
    return -2 * slope * x[:, 2] - 2 * x[:, 0]


def test_second_order_on_both_sides_of_a_circle_on_the_sphere():
    found = []
    for spacing in (0.1, 0.05):
        u = lamina.poisson(sphere(spacing), kinked_rhs, Dirichlet(over_circle, lambda x: x[:, 0]))
        found.append(nmae(u, kinked))
        assert u.cycles <= 15
    assert found[1] <= 2e-4
    assert math.log2(found[0] / found[1]) >= 1.8


def test_one_side_of_a_curve_knows_nothing_of_the_other():
    """A source above, away from the chords of the circle, changes nothing below."""

    def more(x):
        return kinked_rhs(x) + torch.where(x[:, 2] > HEIGHT + 0.1, torch.exp(x[:, 1]), 0.0)

    domain = sphere(0.1)
    held = Dirichlet(over_circle, lambda x: x[:, 0])
    u, v = (lamina.poisson(domain, f, held, tolerance=1e-12).values for f in (kinked_rhs, more))
    below = over_circle(domain.points) < 0
    assert float((u - v)[below].abs().max()) <= 1e-10
    assert float((u - v)[~below].abs().max()) > 0.1


def test_a_closed_polyline_holds_what_the_level_set_holds():
    domain = sphere(0.1)
    level = lamina.poisson(domain, kinked_rhs, Dirichlet(over_circle, lambda x: x[:, 0]))
    line = lamina.poisson(domain, kinked_rhs, Dirichlet(circle(300), lambda x: x[:, 0]))
    assert float((level.values - line.values).abs().max()) <= 1e-4


@pytest.mark.parametrize("kind", ["Neumann", "Robin"])
def test_flux_through_a_curve_inside_the_sphere(kind):
    """u = |z - HEIGHT|: RADIUS flows over the circle into either side, and u = 0 on it."""

    def true(x):
        return over_circle(x).abs()

    def f(x):
        return torch.where(x[:, 2] > HEIGHT, -2.0, 2.0).to(x) * x[:, 2]

    condition = Neumann(over_circle, -RADIUS) if kind == "Neumann" else Robin(over_circle, -RADIUS, 2.0)
    u = lamina.poisson(sphere(0.1), f, condition)
    side = (over_circle(u.domain.points) > 0).long()
    assert nmae(u, true, remove_mean=kind == "Neumann", component=side) <= 1e-3
    assert u.warnings == ()
    if kind == "Neumann":  # each side has its own mean removed
        quadrature = u.domain.scheme.quadrature
        above, values = over_circle(quadrature.points) > 0, u(quadrature.points)
        for part in (above, ~above):
            mean = (quadrature.weights * values)[part].sum() / quadrature.weights[part].sum()
            assert float(mean.abs()) <= 1e-4


def around_a_slit(x):
    """sqrt(w^2 - 1/4), w = x + i (y - 0.013): the potential and the stream function of a flow past a slit."""
    w = torch.complex(x[:, 0], x[:, 1] - 0.013)
    return torch.sqrt(w - 0.5) * torch.sqrt(w + 0.5)


@pytest.mark.parametrize("kind", ["Dirichlet", "Neumann"])
def test_a_slit_in_a_plate(kind):
    """Its ends are singular: first order. The real part vanishes on the slit; the other jumps, with no flux."""
    slit = torch.tensor([[-0.5, 0.013, 0.0], [0.1, 0.013, 0.0], [0.5, 0.013, 0.0]], dtype=torch.float64)

    def true(x):
        return around_a_slit(x).real if kind == "Dirichlet" else around_a_slit(x).imag

    condition = Dirichlet(slit, 0.0) if kind == "Dirichlet" else Neumann(slit, 0.0)
    found = []
    for spacing in (0.1, 0.05, 0.025):
        u = lamina.poisson(plate(spacing), 0.0, [condition, Dirichlet("rim", true)])
        found.append(nmae(u, true))
    assert found[2] <= 1e-3
    assert math.log2(found[0] / found[2]) / 2 >= 0.8
    without = lamina.poisson(plate(0.1), 0.0, Dirichlet("rim", true))
    assert nmae(without, true) > 10 * found[0]


def test_a_part_of_the_surface():
    def cap(x):
        return x[:, 2] > 0.5

    found = []
    for spacing in (0.1, 0.05):
        u = lamina.poisson(sphere(spacing), simple_rhs, Dirichlet(cap, simple))
        found.append(nmae(u, simple))
    assert found[1] <= 3e-4
    assert math.log2(found[0] / found[1]) >= 1.7
    u = lamina.poisson(sphere(0.1), simple_rhs, Dirichlet(cap, 2.0))
    deep = u.domain.points[:, 2] > 0.7
    assert float((u.values[deep] - 2).abs().max()) <= 5e-3  # whatever the right-hand side says there


def test_single_points():
    """Values at points of a solution of the equation hold it there, all of it."""
    places = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, -1.0, 0.0]], dtype=torch.float64)
    u = lamina.poisson(sphere(0.1), simple_rhs, Dirichlet(Points(places), lambda x: simple(x) + 7))
    assert errors(u.values - 7, simple(u.domain.points)).nmae <= 1e-3
    assert errors(u(places) - 7, simple(places)).nmaxe <= 2e-3


def test_two_curves_and_a_rim_at_once():
    """The hemisphere between z = 0 and 0.3, 0.3 and 0.7, and above: three parts, each with the same solution."""
    conditions = [
        Dirichlet(over_circle, exact),
        Dirichlet(lambda x: x[:, 2] - 0.7, exact),
        Neumann("rim", flux),
    ]
    u = lamina.poisson(hemisphere("trace", 0.1), rhs, conditions)
    assert nmae(u, exact) <= 1e-3
    assert int(u.domain.scheme.cut.elements.component.max()) == 2


def test_a_condition_on_a_path_of_vertices_of_a_mesh():
    """The equator of the sphere, vertex by vertex: u = |z| for values 0 there and Lap u = -2 |z|."""
    V, F = icosphere(3)
    on = (V[:, 2] == 0).nonzero()[:, 0]
    ring = V[on[torch.argsort(torch.atan2(V[on, 1], V[on, 0]))]]
    u = lamina.poisson(
        lamina.Domain(lamina.Mesh(V, F), 0.1),
        lambda x: -2 * x[:, 2].abs(),
        Dirichlet(torch.cat([ring, ring[:1]]), 0.0),
    )
    assert errors(u.values, V[:, 2].abs()).nmae <= 1e-2


@pytest.mark.parametrize("scheme", ["order 3", "trace", "coupled"])
def test_points_that_end_by_themselves_have_a_rim_to_hold(scheme):
    V = icosphere(3)[0]
    domain = of_scheme(scheme, lamina.PointCloud(V[V[:, 2] >= 0]), 0.15)
    assert domain.rim is not None
    u = lamina.poisson(domain, simple_rhs, Dirichlet("rim", simple))
    assert nmae(u, simple) <= 5e-3


# Components


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_part_that_no_condition_holds_keeps_zero_mean(scheme):
    """Half a sphere below, held on its rim; a whole one above, where the right-hand side has mean 2."""
    shift = torch.tensor([0.0, 0.0, 2.4], dtype=torch.float64)
    if scheme == "trace":
        V, F = icosphere(3)
        both = lamina.Mesh(torch.cat([V, 0.9 * V + shift]), torch.cat([F, F + len(V)]))
        surface = lamina.clip(both, lambda x: x[:, 2] - 0.01)
    else:

        def phi(x):
            return torch.minimum((x**2).sum(1) - 1, ((x - shift) ** 2).sum(1) - 0.81)

        surface = lamina.Implicit(phi, [[-1.2, -1.2, 0.0], [1.2, 1.2, 3.5]], samples=2000)
    domain = of_scheme(scheme, surface, 0.15)
    above = domain.points[:, 2] > 1.2

    def f(x):
        return torch.where(x[:, 2] > 1.2, -2 * (x[:, 2] - 2.4) / 0.9**3 + 2, simple_rhs(x))

    u = lamina.poisson(domain, f, Dirichlet("rim", simple))
    assert errors(u.values[~above], simple(domain.points[~above])).nmae <= 5e-3
    assert errors(u.values[above], (domain.points[above, 2] - 2.4) / 0.9).nmae <= 5e-3
    assert sorted(domain.mean(u.values).abs().tolist())[0] <= 1e-4
    (warning,) = u.warnings
    means = [float(word) for word in warning.split("mean ")[1].split(" on ")[0].split(", ")]
    assert sorted(means) == pytest.approx([0, 2], abs=0.02)


# Values


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_constant_by_any_other_name(scheme):
    domain = hemisphere(scheme, 0.2)
    c = 0.7
    forms = [
        c,
        torch.tensor(c, dtype=torch.float64),
        lambda x: torch.full_like(x[:, 0], c),
        lambda x, t: torch.full_like(x[:, 0], c + t),
        torch.full((len(domain.points),), c, dtype=torch.float64),
    ]
    first, *others = (lamina.poisson(domain, wave, Dirichlet("rim", v), tolerance=1e-12).values for v in forms)
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", [Dirichlet, Neumann, Robin])
def test_values_at_the_points_are_those_of_a_function_that_is_linear_on_the_triangles(kind):
    domain = mesh_hemisphere(0.2)

    def solve(value):
        return lamina.poisson(domain, wave, [kind("rim", value)], tolerance=1e-11).values

    first = solve(lambda x: 1 + x[:, 0] - 2 * x[:, 1])
    x = domain.points
    for value in (1 + x[:, 0] - 2 * x[:, 1], lambda x, time: 1 + x[:, 0] - 2 * x[:, 1] + time):
        torch.testing.assert_close(solve(value), first, rtol=0, atol=1e-8)
    assert float((solve(0.0) - first).abs().max()) > 0.1


@pytest.mark.parametrize("form", [torch.as_tensor, np.asarray, list], ids=["tensor", "array", "list"])
def test_values_at_the_points_of_a_polyline_are_linear_between_them(form):
    """And constant beyond its ends, over which the slit may reach by part of a cell."""
    line = torch.tensor([[-0.61, 0.013, 0.0], [0.027, 0.013, 0.0], [0.57, 0.013, 0.0]], dtype=torch.float64)
    rim = Dirichlet("rim", wave)

    def solve(value):
        where = line.tolist() if form is list else form(line)
        return lamina.poisson(plate(0.1), 0.0, [Dirichlet(where, value), rim], tolerance=1e-12).values

    by_points = solve(torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64))

    def bent(x):
        return 2 - ((x[:, 0] - 0.027) / (0.57 - 0.027)).clamp(0, 1)

    torch.testing.assert_close(by_points, solve(bent), rtol=0, atol=1e-9)
    assert float((solve(0.0) - by_points).abs().max()) > 0.5


def test_a_coefficient_may_be_a_number_a_function_or_values_at_the_points():
    domain = mesh_hemisphere(0.2)

    def solve(coefficient):
        return lamina.poisson(domain, wave, Robin("rim", 1.0, coefficient), tolerance=1e-11).values

    x = domain.points
    torch.testing.assert_close(solve(2.0), solve(lambda x: torch.full_like(x[:, 0], 2.0)), rtol=0, atol=1e-8)
    torch.testing.assert_close(solve(2 + x[:, 0]), solve(lambda x: 2 + x[:, 0]), rtol=0, atol=1e-8)


def test_conditions_may_come_alone_in_a_list_by_place_or_by_name():
    domain, c = mesh_hemisphere(0.2), Dirichlet("rim", wave)
    first = lamina.poisson(domain, 1.0, c).values
    for other in (
        lamina.poisson(domain, 1.0, [c]),
        lamina.poisson(domain, 1.0, (c,)),
        lamina.poisson(domain, 1.0, conditions=c),
        lamina.poisson(domain, 1.0, conditions=[c]),
    ):
        assert torch.equal(other.values, first)
    start = lamina.heat(domain, 1.0, 0.1, c, steps=2).values
    assert torch.equal(lamina.heat(domain, 1.0, 0.1, conditions=[c], steps=2).values, start)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_conditions_are_no_flux(scheme):
    domain = hemisphere(scheme, 0.2)
    first = lamina.poisson(domain, simple_rhs, tolerance=1e-11).values
    for none in ([], None, Neumann("rim"), Neumann("rim", 0.0), Robin("rim", 0.0, 0.0)):
        other = lamina.poisson(domain, simple_rhs, none, tolerance=1e-11).values
        torch.testing.assert_close(other, first, rtol=0, atol=1e-8)


# Laws


def across(x):
    return x[:, 0]


@cache
def held(scheme: str, f, g) -> torch.Tensor:
    return lamina.poisson(hemisphere(scheme, 0.2), f, Dirichlet("rim", g), tolerance=1e-11).values


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=4, deadline=None)
@given(a=st.floats(-3, 3), b=st.floats(-3, 3))
def test_solutions_add_up(scheme, a, b):
    u, v = held(scheme, wave, across), held(scheme, height, wave)
    w = held(scheme, lambda x: a * wave(x) + b * height(x), lambda x: a * across(x) + b * wave(x))
    torch.testing.assert_close(w, a * u + b * v, rtol=0, atol=1e-7)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("waves", [1, 4])
def test_a_harmonic_function_is_largest_and_smallest_on_the_rim(scheme, waves):
    def g(x):
        return torch.sin(waves * torch.atan2(x[:, 1], x[:, 0]))

    u = lamina.poisson(hemisphere(scheme, 0.1), 0.0, Dirichlet("rim", g)).values
    assert float(u.max()) <= 1 + 2e-3
    assert float(u.min()) >= -1 - 2e-3
    assert float(u.max() - u.min()) >= 1.8


@pytest.mark.parametrize("scheme", SCHEMES)
def test_constants_are_exact(scheme):
    domain = hemisphere(scheme, 0.2)
    for condition in (Dirichlet("rim", 2.5), Robin("rim", 5.0, 2.0)):
        u = lamina.poisson(domain, 0.0, condition, tolerance=1e-11).values
        torch.testing.assert_close(u, torch.full_like(u, 2.5), rtol=0, atol=1e-8)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_large_coefficient_holds_the_value(scheme):
    domain = hemisphere(scheme, 0.1)
    held = lamina.poisson(domain, simple_rhs, Dirichlet("rim", wave)).values
    for k, bound in ((1e1, 0.5), (1e3, 2e-2)):
        u = lamina.poisson(domain, simple_rhs, Robin("rim", lambda x, k=k: k * wave(x), k)).values
        assert float((u - held).abs().max()) <= bound
    assert float((lamina.poisson(domain, simple_rhs, Robin("rim", wave, 1.0)).values - held).abs().max()) > 0.1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_flux_that_the_source_does_not_balance_is_taken_off_and_the_warning_says_how_much(scheme):
    """1 flows out through the whole rim, 2 pi long, of an area of 2 pi; then a source of 1 balances it."""
    domain = hemisphere(scheme, 0.1)
    (warning,) = lamina.poisson(domain, 0.5, Neumann("rim", 1.0)).warnings
    assert float(warning.split("has mean ")[1].split(";")[0]) == pytest.approx(-0.5, abs=2e-3)
    assert lamina.poisson(domain, 1.0, Neumann("rim", 1.0)).warnings == ()


def test_size_and_place_do_not_matter():
    """Lap u = f, u = g on s S + t have the solution s^2 u((x - t) / s) for f((x - t) / s) and s^2 g((x - t) / s)."""
    mesh = mesh_hemisphere(0.2).surface
    V = mesh.points @ torch.from_numpy(Rotation.random(random_state=3).as_matrix())  # turned and shaken, off all ties
    V = V + 1e-3 * torch.randn(V.shape, generator=torch.Generator().manual_seed(0), dtype=V.dtype)
    scale, shift = 37.0, torch.tensor([5.0, -11.0, 3.0], dtype=torch.float64)
    here = lamina.Domain(lamina.Mesh(V, mesh.faces), 0.2)
    there = lamina.Domain(lamina.Mesh(scale * V + shift, mesh.faces), scale * 0.2)

    def solve(domain, scale, shift):
        def back(x):
            return (x - shift) / scale

        condition = Dirichlet("rim", lambda x: scale**2 * wave(back(x)))
        return lamina.poisson(domain, lambda x: height(back(x)), condition, tolerance=1e-11).values

    u, v = solve(here, 1.0, 0 * shift), solve(there, scale, shift)
    torch.testing.assert_close(v, scale**2 * u, rtol=0, atol=1e-9 * scale**2)


# Heat


@pytest.mark.parametrize("scheme", SCHEMES)
def test_heat_decays_with_zero_on_the_rim(scheme):
    domain = hemisphere(scheme, 0.1)
    u = lamina.heat(domain, height, 0.3, Dirichlet("rim", 0.0), steps=10)
    assert errors(u.values, math.exp(-0.6) * height(domain.points)).nmae <= 6e-4


@pytest.mark.parametrize("scheme", SCHEMES)
def test_heat_follows_boundary_values_that_change_with_time(scheme):
    def true(x, time):
        return math.exp(-6 * time) * x[:, 0] * x[:, 1]

    domain = hemisphere(scheme, 0.1)
    u = lamina.heat(domain, lambda x: true(x, 0), 0.1, Dirichlet("rim", true), times=[0.05], steps=10)
    for time, values in zip(u.times, u.snapshots, strict=True):
        assert errors(values, true(domain.points, time)).nmae <= 1.5e-3
    frozen = lamina.heat(domain, lambda x: true(x, 0), 0.1, Dirichlet("rim", lambda x: true(x, 0)), steps=2)
    assert errors(frozen.values, true(domain.points, 0.1)).nmae > 0.02


def test_heat_with_a_flux_that_changes_with_time():
    """u = exp(-2t) z on the hemisphere: exp(-2t) flows in through the rim."""
    domain = hemisphere("trace", 0.1)
    flow = Neumann("rim", lambda x, t: torch.full_like(x[:, 0], -math.exp(-2 * t)))
    u = lamina.heat(domain, height, 0.2, flow, steps=16)
    assert errors(u.values, math.exp(-0.4) * height(domain.points)).nmae <= 1e-3


def test_equal_steps_are_second_order_with_boundary_values_that_change():
    domain = hemisphere("trace", 0.15)
    moving = Dirichlet("rim", lambda x, t: math.cos(9 * t) * x[:, 0] * x[:, 1])
    u = [lamina.heat(domain, lambda x: x[:, 0] * x[:, 1], 0.2, moving, steps=n).values for n in (8, 16, 32)]
    coarse, fine = (float((a - b).abs().max()) for a, b in pairwise(u))
    assert math.log2(coarse / fine) == pytest.approx(2, abs=0.2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_heat_ends_at_the_solution_of_laplace(scheme):
    domain = hemisphere(scheme, 0.2)
    conditions = [Dirichlet(lambda x: x[:, 0] > 0, wave), Robin(lambda x: x[:, 0] <= 0, 1.0, 3.0)]
    late = lamina.heat(domain, 0.0, 16.0, conditions, steps=24, tolerance=1e-10).values
    steady = lamina.poisson(domain, 0.0, conditions, tolerance=1e-10).values
    torch.testing.assert_close(late, steady, rtol=0, atol=1e-6)
    assert float(steady.max() - steady.min()) > 0.5


def test_heat_on_both_sides_of_a_curve():
    """u = |z - HEIGHT| decays to zero from both sides of the circle on which it is held at zero, and stays positive."""
    domain = sphere(0.15)
    u = lamina.heat(domain, lambda x: over_circle(x).abs(), 12.0, Dirichlet(over_circle), times=[0.05], steps=40)
    assert float(u.snapshots[0].min()) >= -1e-2
    assert float(u.snapshots[0].max()) < 1.3
    assert float(u.values.abs().max()) <= 1e-4


def smooth(seed):
    """A sum of five random waves."""
    generator = torch.Generator().manual_seed(seed)
    k = 1.5 * torch.randn(5, 3, generator=generator, dtype=torch.float64)
    phase, size = 6 * torch.rand(5, generator=generator), torch.randn(5, generator=generator, dtype=torch.float64)
    return lambda x: torch.sin(x @ k.T + phase.double()) @ size


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_heat_with_zero_on_the_rim_loses_energy_and_stays_between_its_extremes(scheme, seed):
    domain, wavy = hemisphere(scheme, 0.1 if scheme == "trace" else 0.2), smooth(seed)

    def state(x):
        return x[:, 2] * wavy(x)

    u = lamina.heat(domain, state, 0.2, Dirichlet("rim", 0.0), times=[0.01, 0.05, 0.1], steps=6)
    scheme_ = u.domain.scheme
    norms = [scheme_.norm(scheme_.sample(state)), *(scheme_.norm(v) for v in u.unknowns)]
    assert all(b < a for a, b in pairwise(norms))
    assert norms[-1] <= 1.01 * math.exp(-2 * 0.1) * norms[-2]  # the slowest mode of all is exp(-2t) z
    start = state(domain.quadrature.points)
    low, high = min(0.0, float(start.min())), max(0.0, float(start.max()))
    # Nitsche's method holds values on the rim itself to second order only.
    near = domain.points[:, 2] < domain.spacing
    for part, slack in ((~near, 1e-3), (near, 5e-3)):
        values = u.snapshots[:, part]
        assert float(values.max()) <= high + slack * (high - low)
        assert float(values.min()) >= low - slack * (high - low)


# Refused


# Parts of a surface: what they are held at, what enters through them


@pytest.mark.parametrize("spacing", [0.2, 0.1])
def test_a_flux_through_a_part_is_a_source_of_that_strength_there(spacing):
    """div grad u = f - g where a flux g enters through the part."""
    through = [Neumann("z > 0.1", "1 + x"), Neumann("z <= 0.1", "x - 1")]
    u = lamina.poisson(sphere(spacing), "0.3*y", through)
    expected = lamina.poisson(sphere(spacing), "0.3*y - where(z > 0.1, 1 + x, x - 1)")
    assert float((u.values - expected.values).abs().max()) < 1e-7


def test_a_robin_condition_on_a_part_cools_it_like_screening():
    """div grad u - u = -3 z everywhere has the solution z; the coefficient 1 holds on both halves."""
    cooled = [Robin("z > 0", 0.0, coefficient="1"), Robin("z <= 0", 0.0, 1.0)]
    errors_of = [nmae(lamina.poisson(sphere(h), "-3*z", cooled), height) for h in (0.2, 0.1)]
    assert errors_of[1] < 1e-3
    assert errors_of[1] < 0.35 * errors_of[0]


@pytest.mark.parametrize("build", [lambda: sphere(0.2), lambda: lamina.Domain(lamina.Mesh(*icosphere(3)), 0.2)])
def test_a_held_part_reads_what_it_is_held_at(build):
    domain = build()
    u = lamina.poisson(domain, 1.0, [Dirichlet("z > 0.5", "2 + x"), Dirichlet("z < -0.5", "y")])
    for points, values in ((domain.points, u.values), (domain.points + 0.0, u(domain.points)),
                           (u.drawn.points, u.drawn.values[-1])):  # fmt: skip
        x, y, z = points.unbind(1)
        assert torch.equal(values[z > 0.5], 2 + x[z > 0.5])
        assert torch.equal(values[z < -0.5], y[z < -0.5])
        assert int((z > 0.5).sum()) > 20


def test_a_held_part_follows_its_value_over_time():
    u = lamina.heat(sphere(0.2), 0.0, 0.1, Dirichlet("z > 0.5", "t"), times=[0.05])
    held = u.domain.points[:, 2] > 0.5
    expected = torch.tensor([[0.05], [0.1]], dtype=torch.float64).expand(2, int(held.sum()))
    assert torch.equal(u.snapshots[:, held], expected)


def test_the_value_of_a_held_part_has_its_own_gradient():
    """Where a part is held at c, u is c."""
    c = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    u = lamina.poisson(sphere(0.25), 0.0, Dirichlet("z > 0.5", lambda x: c * torch.ones_like(x[:, 0])))
    held = u.domain.points[:, 2] > 0.5
    (gradient,) = torch.autograd.grad(u.values[held].sum(), c)
    assert float(gradient) == pytest.approx(int(held.sum()))


@pytest.mark.parametrize(("scheme", "bound"), [("trace", 1e-4), ("coupled", 1e-2)])
@pytest.mark.parametrize("condition", [Dirichlet("rim"), Neumann("rim", -1.0), Robin("rim", -1.0, 1.0)])
def test_the_flux_through_a_rim_is_the_integral_of_the_normal_derivative(scheme, bound, condition):
    """u = z on the upper half: du/dn = -1 along a rim of length 2 pi."""
    u = lamina.poisson(hemisphere(scheme, 0.1), "-2*z", condition)
    assert u.fluxes.tolist() == pytest.approx([-2 * math.pi], rel=bound)


def test_what_enters_through_conditions_is_what_the_sources_take_out():
    conditions = [Dirichlet("z > 0.6", 1.0), Dirichlet("z - 0.2", "x"), Dirichlet(Points(-ONE), 3.0),
                  Neumann("z < -0.5 and z > -0.8", 0.5)]  # fmt: skip
    # The sum of the residual's rows is what is missing, and rows of penalties are large.
    u = lamina.poisson(sphere(0.15), "1 + x*y", conditions, tolerance=1e-11)
    weights, points = u.domain.quadrature.weights, u.domain.quadrature.points
    taken = float((weights * (1 + points[:, 0] * points[:, 1])).sum())
    assert len(u.fluxes) == 4
    assert float(u.fluxes.sum()) == pytest.approx(taken, rel=1e-6)
    assert float(u.fluxes[3]) == pytest.approx(0.5 * 2 * math.pi * 0.3, rel=0.05)


def far(x):
    return x[:, 2] > 5


ONE = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
ON_CLOSED = [
    (Dirichlet("rim"), r"condition 1 \(Dirichlet\) holds on the rim, but the surface is closed: it has none. Give a"),
    (Dirichlet(0), "the surface is closed: it has none. Give a formula or function"),
    (Dirichlet(far), r"condition 1 \(Dirichlet\) holds nowhere on the surface or its rims; check its place"),
    (Neumann(far, 1.0), r"condition 1 \(Neumann\) holds nowhere on the surface or its rims; check its place"),
    (Dirichlet("top"), r"""holds on 'top'; expected "rim", where the surface ends \(a closed one has no rim\)"""),
    (Dirichlet("top"), r""" "z > 0.5" is that part of the surface, .*, or lamina.Points"""[1:]),
    (Neumann(Points(ONE), 1.0), r"condition 1 \(Neumann\) holds at points; only Dirichlet may"),
    (Dirichlet(Points(2 * ONE)), "holds at points up to 1 away from the surface, more than the spacing 0.15"),
    (Dirichlet(2 * circle(20)), "holds on a polyline that runs up to 1 away from the surface, more than the spacing"),
    (Dirichlet(ONE), r"an array of shape \(1, 3\); expected"),
    (Dirichlet(torch.zeros(5, 2)), r"an array of shape \(5, 2\); expected"),
    (Dirichlet(torch.zeros(3)), r"an array of shape \(3,\); expected"),
    (Dirichlet(math.nan * circle(20)), "NaN or infinite points"),
    (Dirichlet(0.5), r"an array of shape \(\); expected"),
    (Dirichlet(lambda x: x[:, 2] + 7), "holds on a curve that does not meet the surface; check it"),
    (Dirichlet(lambda x: x), r"the place of condition 1 \(Dirichlet\) returned \(2562, 3\) for 2562 points; expected"),
    (Dirichlet(lambda x: 1.0), r"the place of condition 1 \(Dirichlet\) returned float for 2562 points; expected"),
    (Dirichlet(circle(20), torch.zeros(20)), r"the value of condition 1 \(Dirichlet\) has shape \(20,\); expected"),
    (Dirichlet(over_circle, lambda x: x), r"the value of condition 1 \(Dirichlet\) returned \(\d+, 3\) for \d+ points"),
    (
        [Dirichlet(lambda x: x[:, 2] > 0.5), Dirichlet(lambda x: x[:, 2] > 0.7)],
        "Conditions 1 and 2 both hold on a part of the surface; give every place one condition",
    ),
]


@pytest.mark.parametrize(("conditions", "message"), ON_CLOSED)
def test_conditions_that_a_closed_surface_cannot_have_are_named(conditions, message):
    with pytest.raises(lamina.InputError, match=message):
        lamina.poisson(sphere(0.15), 1.0, conditions)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        (Dirichlet(1), "holds on loop 1 of the rim, which has 1: 0 to 0, the longest first"),
        (Dirichlet(-1), "holds on loop -1 of the rim, which has 1"),
        (Dirichlet("edge"), r"""condition 1 \(Dirichlet\) holds on 'edge'; expected "rim", where the surface ends"""),
        (
            [Dirichlet("rim"), Neumann("rim", 1.0)],
            r"condition 1 \(Dirichlet\) and condition 2 \(Neumann\) both hold at (\d+) of \1 points of the rim; give",
        ),
        (
            [Dirichlet(0), Robin(lambda x: x[:, 0] > 0)],
            r"condition 1 \(Dirichlet\) and condition 2 \(Robin\) both hold",
        ),
        (Robin("rim", 0.0, -1.0), "the coefficient of a Robin condition must be >= 0, got -1"),
        (Robin("rim", 0.0, lambda x: x[:, 0]), "the coefficient of a Robin condition must be >= 0, got -"),
        (Robin("rim", 0.0, math.nan), "the coefficient of a Robin condition must be >= 0, got nan"),
        ([Dirichlet("rim"), 3.0], "conditions must be a list of lamina.Dirichlet, Neumann and Robin, got float in it"),
        ("rim", "conditions must be a list of lamina.Dirichlet, Neumann and Robin, got str"),
        (
            Dirichlet("rim", torch.zeros(7)),
            r"has shape \(7,\); expected \(1439,\), one value for each of domain.points",
        ),
        (Dirichlet("rim", lambda x: x), r"the value of condition 1 \(Dirichlet\) returned \((\d+), 3\) for \1 points"),
        (
            [Dirichlet(lambda x: x[:, 0] > 0), Neumann(lambda x: x[:, 0] <= 0, lambda x: x[:, 0] * math.nan)],
            r"the value of condition 2 \(Neumann\) is not finite at \d+ of \d+ points on the surface; check it there",
        ),
    ],
)
def test_bad_conditions_on_a_rim_are_named(scheme, conditions, message):
    domain = hemisphere(scheme, 0.2)
    for call in (
        lambda: lamina.poisson(domain, 1.0, conditions),
        lambda: lamina.heat(domain, 1.0, 0.1, conditions),
    ):
        with pytest.raises(lamina.InputError, match=message):
            call()


@pytest.mark.parametrize(
    "conditions",
    [
        Dirichlet(lambda x: x[:, 2] - 0.5),
        Dirichlet(circle(20)),
        Dirichlet(lambda x: x[:, 2] > 0.5),
        Dirichlet(Points(ONE)),
        [Dirichlet("rim"), Dirichlet(lambda x: x[:, 2] - 0.5)],
    ],
)
def test_a_baseline_is_not_replaced_in_silence(conditions):
    message = "conditions on curves, points or parts of a surface needs functions on cut cells"
    with pytest.raises(lamina.InputError, match=message):
        lamina.poisson(hemisphere("coupled", 0.2), 1.0, conditions)


def test_explicit_steps_know_no_conditions():
    with pytest.raises(lamina.InputError, match="Unknown method 'euler'; known for this domain: tr-bdf2"):
        lamina.heat(hemisphere("trace", 0.2), 1.0, 0.1, Dirichlet("rim"), method="euler")
    with pytest.raises(lamina.InputError, match="Explicit steps take only Dirichlet conditions on rims"):
        lamina.heat(hemisphere("coupled", 0.2), 1.0, 0.1, Dirichlet("rim"), method="euler")


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("rim", math.nan),
        ("rim", None),
        (None, 0.0),
        (lambda x: (x[:, 2] > 0.5).long(), 0.0),
        (Points(math.nan * ONE), 0.0),
        (Points(torch.zeros(0, 3)), 0.0),
        (Points(torch.zeros(4)), 0.0),
        (torch.cat([ONE, ONE]), 0.0),
        ([[0.0, 0.0], [1.0, 2.0, 3.0]], 0.0),
        (circle(20), torch.full((21,), math.nan, dtype=torch.float64)),
    ],
    ids=[
        "number that is none", "no value", "no place", "whole numbers", "point that is none", "no points",
        "points of no shape", "line without length", "ragged line", "values along a line that are none",
    ],
)  # fmt: skip
def test_nonsense_is_refused_in_words(where, value):
    with pytest.raises(lamina.InputError, match=r"condition 1 \(Dirichlet\)"):
        lamina.poisson(hemisphere("trace", 0.2), 1.0, Dirichlet(where, value))


@pytest.mark.parametrize("conditions", [5, Dirichlet])
def test_something_that_is_no_list_of_conditions_is_refused_in_words(conditions):
    with pytest.raises(lamina.InputError, match="conditions must be a list of lamina"):
        lamina.poisson(hemisphere("trace", 0.2), 1.0, conditions)


@pytest.mark.parametrize("where", [over_circle, circle(40), Points(ONE)], ids=["level set", "polyline", "points"])
def test_two_conditions_on_one_curve_or_point_are_refused(where):
    with pytest.raises(lamina.InputError, match="give every place one condition"):
        lamina.poisson(sphere(0.2), 1.0, [Dirichlet(where, 0.0), Dirichlet(where, 1.0)])


def test_a_diffusivity_without_a_tangential_part_is_refused_with_conditions_too():
    with pytest.raises(lamina.InputError, match="the diffusivity has no tangential part"):
        lamina.poisson(
            hemisphere("trace", 0.2), 1.0, Dirichlet("rim"),
            diffusivity=lambda x: torch.zeros(len(x), 3, 3, dtype=x.dtype),
        )  # fmt: skip


@pytest.mark.data
def test_the_cut_head_of_the_paper_agrees_with_fem():
    mesh = lamina.load(Path(os.environ["LAMINA_DATA"]) / "paper" / "maxplanck_cut.ply")

    def sine(p):
        return torch.sin(3 * torch.atan2(p[:, 0], p[:, 2]))

    V, F = refine(mesh.points.numpy(), mesh.faces.numpy())
    fine = lamina.Mesh(V, F)
    rim = np.zeros(len(V), dtype=bool)
    rim[torch.stack([fine.faces, fine.faces.roll(-1, 1)], -1)[fine.rim_edges].reshape(-1).numpy()] = True
    reference = SurfaceFEM(V, F).dirichlet(np.zeros(len(V)), rim, sine(torch.from_numpy(V)).numpy())
    size = float((mesh.bounds[1] - mesh.bounds[0]).max())
    u = lamina.poisson(lamina.Domain(mesh, 0.02 * size), 0.0, Dirichlet("rim", sine))
    assert errors(u.values, torch.from_numpy(reference[: len(mesh.points)])).nrmse < 3e-3
    assert u.cycles <= 15


def test_values_at_vertices_are_taken_to_a_curve_by_a_map_that_is_made_once(monkeypatch):
    mesh = lamina.Mesh(*icosphere(4))
    domain = lamina.Domain(mesh, 0.1)
    held = Dirichlet("z - 0.2", domain.points[:, 0].clone())
    first = lamina.poisson(domain, "x", held).values
    searched = []
    monkeypatch.setattr(lamina.Mesh, "interpolation", lambda self, x, face=None: searched.append(len(x)))
    again = lamina.poisson(domain, "x", Dirichlet("z - 0.2", 2 * domain.points[:, 0])).values
    assert searched == []
    assert not torch.equal(first, again)
