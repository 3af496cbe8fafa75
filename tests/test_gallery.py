"""The gallery's exact solutions solve their equations."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lamina.gallery import (
    Function,
    HeatProblem,
    Problem,
    ellipsoid_poisson,
    sphere_heat,
    sphere_poisson,
    surface_laplacian,
    torus_poisson,
)

PROBLEMS = [sphere_poisson(), torus_poisson(), ellipsoid_poisson()]
names = [p.name for p in PROBLEMS]


def sphere_phi(p: Tensor) -> Tensor:
    return (p * p).sum(-1) - 1


def torus_phi(p: Tensor) -> Tensor:
    return (p[..., :2].norm(dim=-1) - 1) ** 2 + p[..., 2] ** 2 - 0.16


def torus_points(u: Tensor, v: Tensor) -> Tensor:
    ring = 1 + 0.4 * v.cos()
    return torch.stack([ring * u.cos(), ring * u.sin(), 0.4 * v.sin()], -1)


def sphere_quadrature() -> tuple[Tensor, Tensor]:
    """Points (n, 3) and weights (n,): Gauss in z, trapezoidal around; exact to high degree."""
    z, w = np.polynomial.legendre.leggauss(60)
    t = np.arange(120) * (2 * np.pi / 120)
    z, t, w = (a.reshape(-1) for a in (*np.meshgrid(z, t, indexing="ij"), np.repeat(w * 2 * np.pi / 120, 120)))
    r = np.sqrt(1 - z * z)
    return torch.from_numpy(np.stack([r * np.cos(t), r * np.sin(t), z], 1)), torch.from_numpy(w)


def quadrature(name: str) -> tuple[Tensor, Tensor]:
    """Points (n, 3) and weights (n,) on the surface of a problem, accurate to rounding."""
    if name == "torus":
        a = torch.arange(128, dtype=torch.float64) * (2 * math.pi / 128)
        u, v = (w.reshape(-1) for w in torch.meshgrid(a, a, indexing="ij"))
        return torus_points(u, v), 0.4 * (1 + 0.4 * v.cos()) * (2 * math.pi / 128) ** 2
    x, w = sphere_quadrature()
    if name == "sphere":
        return x, w
    axes = torch.tensor([1.0, 0.8, 0.6], dtype=torch.float64)
    return axes * x, w * axes.prod() * (x / axes).norm(dim=1)  # Nanson: dS = det A |A^-T n| dsigma


def generic(p: Tensor) -> Tensor:
    """No symmetry, so that nothing vanishes by luck."""
    x, y, z = p.unbind(-1)
    return torch.exp(0.7 * x - 0.3 * y) * torch.sin(y + 2 * z) + x * x * z


def test_sphere_harmonics_are_eigenfunctions() -> None:
    x = sphere_poisson().surface(level=3).points
    for degree, harmonic in [
        (1, lambda p: p[..., 1]),
        (2, lambda p: p[..., 0] * p[..., 1]),
        (2, lambda p: 3 * p[..., 2] ** 2 - 1),
        (3, lambda p: p[..., 0] * p[..., 1] * p[..., 2]),
        (0, lambda p: torch.ones_like(p[..., 0])),
    ]:
        expected = -degree * (degree + 1) * harmonic(x)
        torch.testing.assert_close(surface_laplacian(harmonic, sphere_phi, x), expected, atol=1e-13, rtol=0)


def test_sphere_poisson_in_closed_form_is_the_surface_laplacian() -> None:
    problem = sphere_poisson()
    x = problem.surface(level=3).points
    torch.testing.assert_close(surface_laplacian(problem.solution, sphere_phi, x), problem.rhs(x))


@pytest.mark.parametrize("g", [generic, torus_poisson().solution], ids=["generic", "gallery"])
def test_torus_laplacian_in_angles(g: Function) -> None:
    """Lap = d_vv / r^2 - sin v / (r (R + r cos v)) d_v + d_uu / (R + r cos v)^2, by spectral derivatives."""
    n = 128
    a = torch.arange(n, dtype=torch.float64) * (2 * math.pi / n)
    u, v = torch.meshgrid(a, a, indexing="ij")
    x = torus_points(u, v).reshape(-1, 3)
    values = g(x).reshape(n, n).numpy()
    k = 1j * np.fft.fftfreq(n, 1 / n)

    def derivative(axis: int, order: int) -> Tensor:
        factor = (k**order).reshape((-1, 1) if axis == 0 else (1, -1))
        return torch.from_numpy(np.fft.ifft(factor * np.fft.fft(values, axis=axis), axis=axis).real.copy())

    ring = 1 + 0.4 * v.cos()
    expected = derivative(1, 2) / 0.16 - v.sin() / (0.4 * ring) * derivative(1, 1) + derivative(0, 2) / ring**2
    found = surface_laplacian(g, torus_phi, x).reshape(n, n)
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("problem", PROBLEMS, ids=names)
def test_right_hand_side_is_the_laplacian_of_the_closest_point_extension(problem: Problem) -> None:
    """Lap_S u = Lap (u o cp) on the surface (Ruuth and Merriman 2008), here by central differences."""
    surface = problem.surface()
    x = surface.points[::97]
    h = 2e-3

    def extended(y: Tensor) -> Tensor:
        return problem.solution(surface.closest_points(y).points)

    total = -6 * extended(x)
    for axis in torch.eye(3, dtype=x.dtype):
        total = total + extended(x + h * axis) + extended(x - h * axis)
    difference = (total / h**2 - problem.rhs(x)).abs().max()
    assert difference < 1e-4 * problem.rhs(x).abs().max()


@pytest.mark.parametrize("problem", PROBLEMS, ids=names)
def test_right_hand_side_has_zero_mean(problem: Problem) -> None:
    x, w = quadrature(problem.name)
    assert abs(float(w @ problem.rhs(x))) < 1e-11


@pytest.mark.parametrize(("name", "phi"), [("sphere", sphere_phi), ("torus", torus_phi)])
def test_integral_of_any_surface_laplacian_vanishes(name: str, phi: Function) -> None:
    x, w = quadrature(name)
    f = surface_laplacian(generic, phi, x)
    assert float(f.abs().max()) > 1
    assert abs(float(w @ f)) < 1e-10


def test_quadrature_is_exact() -> None:
    """The integrals above would vanish with zero weights too."""
    assert float(quadrature("sphere")[1].sum()) == pytest.approx(4 * math.pi, rel=1e-13)
    assert float(quadrature("torus")[1].sum()) == pytest.approx(4 * math.pi**2 * 0.4, rel=1e-13)
    # n . x integrates to three times the volume.
    x, w = quadrature("ellipsoid")
    normal = torch.nn.functional.normalize(x / torch.tensor([1.0, 0.64, 0.36], dtype=x.dtype), dim=1)
    assert float(w @ (normal * x).sum(1)) == pytest.approx(4 * math.pi * 0.48, rel=1e-12)


@pytest.mark.parametrize("problem", PROBLEMS, ids=names)
def test_precision_of_the_points_is_kept(problem: Problem) -> None:
    x = problem.surface().points[:50]
    single = problem.rhs(x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), problem.rhs(x), atol=2e-5, rtol=1e-5)


def test_any_level_set_function_of_the_surface_gives_the_same_laplacian() -> None:
    x = sphere_quadrature()[0][::7]
    expected = surface_laplacian(generic, sphere_phi, x)
    for phi in (lambda p: p.norm(dim=-1) - 1, lambda p: -torch.expm1(3 * sphere_phi(p))):
        torch.testing.assert_close(surface_laplacian(generic, phi, x), expected)


def test_heat_solution_solves_the_heat_equation() -> None:
    problem: HeatProblem = sphere_heat()
    x = problem.surface(level=2).points
    torch.testing.assert_close(problem.solution(x, 0.0), problem.initial(x))
    rate = (problem.solution(x, 0.3 + 1e-5) - problem.solution(x, 0.3 - 1e-5)) / 2e-5
    torch.testing.assert_close(
        rate, surface_laplacian(lambda p: problem.solution(p, 0.3), sphere_phi, x), atol=1e-8, rtol=0
    )


def test_expressions_say_what_the_functions_compute() -> None:
    x, y, z = (p := sphere_poisson().surface(level=2).points).unbind(1)
    t = torch.tensor(0.2, dtype=torch.float64)

    def value(expression: str | None) -> Tensor:
        scope = {"x": x, "y": y, "z": z, "t": t, "exp": torch.exp, "__builtins__": {}}
        return eval(str(expression).replace("^", "**"), scope)

    poisson, heat = sphere_poisson(), sphere_heat()
    torch.testing.assert_close(value(poisson.solution_expression), poisson.solution(p))
    torch.testing.assert_close(value(poisson.rhs_expression), poisson.rhs(p))
    torch.testing.assert_close(value(heat.initial_expression), heat.initial(p))
    torch.testing.assert_close(value(heat.solution_expression), heat.solution(p, 0.2))
