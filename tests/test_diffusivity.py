"""Diffusivities: manufactured solutions, the laws that scale them, and input that is refused."""

import math
from functools import cache

import pytest
import torch

import lamina
from lamina.gallery import surface_laplacian
from lamina.metrics import errors
from lamina.surfaces.icosphere import icosphere


@cache
def sphere(spacing: float) -> lamina.Domain:
    return lamina.Domain(lamina.Sphere(level=4), spacing, order=2)


@cache
def mesh_domain() -> lamina.Domain:
    return lamina.Domain(lamina.Mesh(*icosphere(2)), 0.3)


@cache
def plate(spacing: float) -> lamina.Domain:
    corners = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]], dtype=torch.float64)
    return lamina.Domain(lamina.Mesh(corners, torch.tensor([[0, 1, 2], [0, 2, 3]])), spacing)


def inside(count=400):
    """Points of the plate."""
    x = torch.rand(count, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)


def rising(x):
    return 2 + x[:, 2]


def rising_rhs(x):
    """div(a grad u) for a = 2 + z and u = z on the unit sphere: a Lap u + grad a . grad u = -2 z a + (1 - z^2)."""
    z = x[:, 2]
    return -2 * z * rising(x) + 1 - z**2


def everywhere(D):
    return lambda x: D.to(x).expand(len(x), 3, 3)


def rms_error(u, exact):
    return errors(u.values, exact(u.domain.points), remove_mean=True).nrmse


def height(x):
    return x[:, 2]


def wave(x):
    return torch.sin(2 * x[:, 0]) * torch.cos(1.5 * x[:, 1]) + x[:, 2]


# Manufactured solutions


def test_second_order_on_the_sphere_with_a_diffusivity_that_varies():
    coarse, fine = (rms_error(lamina.poisson(sphere(h), rising_rhs, diffusivity=rising), height) for h in (0.14, 0.07))
    assert fine <= 4e-4
    assert math.log2(coarse / fine) >= 1.7


def test_the_right_hand_side_above_is_that_of_the_product_rule():
    """2 div(a grad u) = Lap(a u) + a Lap u - u Lap a, each by automatic differentiation."""
    x = sphere(0.14).points[::50]

    def lap(g):
        return surface_laplacian(g, lambda p: (p**2).sum(1) - 1, x)

    a, u = rising(x), height(x)
    product = lap(lambda p: rising(p) * height(p))
    torch.testing.assert_close(rising_rhs(x), (product + a * lap(height) - u * lap(rising)) / 2)


def test_second_order_on_a_mesh_of_the_sphere():
    found = []
    for level, spacing in ((3, 0.16), (4, 0.08)):
        domain = lamina.Domain(lamina.Mesh(*icosphere(level)), spacing)
        found.append(rms_error(lamina.poisson(domain, rising_rhs, diffusivity=rising), height))
    assert math.log2(found[0] / found[1]) >= 1.7
    assert found[1] <= 2e-3


def test_an_anisotropic_tensor_on_a_flat_plate_is_second_order():
    """4 u_xx + u_yy = -5 pi^2 u for u = cos(pi x) cos(pi y), which has no flux through the rims."""
    D = torch.diag(torch.tensor([4.0, 1.0, 1.0], dtype=torch.float64))
    x, found = inside(), []

    def exact(x):
        return torch.cos(math.pi * x[:, 0]) * torch.cos(math.pi * x[:, 1])

    for spacing in (0.06, 0.03):
        u = lamina.poisson(plate(spacing), lambda x: -5 * math.pi**2 * exact(x), diffusivity=everywhere(D))
        found.append(errors(u(x), exact(x), remove_mean=True).nrmse)
    assert math.log2(found[0] / found[1]) >= 1.7
    assert found[1] <= 5e-4


def test_a_turned_tensor_mixes_the_derivatives():
    """Work done on v = x, for D = [[2, 1], [1, 2]]: int x f = -int e_x . D grad u = -int (2 u_x + u_y).

    The integrals of u_x and u_y over the square are differences of means over opposite rims.
    """
    D = torch.tensor([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)

    def f(x):
        return torch.sin(3 * x[:, 0]) + x[:, 1] ** 2

    domain = plate(0.03)
    f_mean = domain.quadrature.mean(f)
    u = lamina.poisson(domain, f, diffusivity=everywhere(D))
    t = torch.linspace(0, 1, 401, dtype=torch.float64)
    rims = {}
    for name, axis, value in (("left", 0, 0.0), ("right", 0, 1.0), ("low", 1, 0.0), ("high", 1, 1.0)):
        points = torch.zeros(401, 3, dtype=torch.float64)
        points[:, axis], points[:, 1 - axis] = value, t
        rims[name] = float(torch.trapezoid(u(points), t))
    across, along = rims["right"] - rims["left"], rims["high"] - rims["low"]
    work = domain.quadrature.integral(lambda x: x[:, 0] * (f(x) - f_mean))
    assert work == pytest.approx(-(2 * across + along), rel=5e-3)
    work = domain.quadrature.integral(lambda x: x[:, 1] * (f(x) - f_mean))
    assert work == pytest.approx(-(across + 2 * along), rel=5e-3)


def test_screening_and_diffusivity_together():
    c = 3.0
    u = lamina.poisson(
        sphere(0.1), lambda x: rising_rhs(x) - c * (height(x) + 1), diffusivity=rising, screening=c, tolerance=1e-10
    )
    assert errors(u.values, height(u.domain.points) + 1).nrmse <= 1e-3
    assert u.warnings == ()


def test_single_precision_is_as_accurate_as_the_grid():
    domain = lamina.Domain(lamina.Sphere(level=4), 0.1, order=2, dtype=torch.float32)
    u = lamina.poisson(domain, rising_rhs, diffusivity=rising)
    assert u.values.dtype == torch.float32
    double = rms_error(lamina.poisson(sphere(0.1), rising_rhs, diffusivity=rising), height)
    assert rms_error(u, height) == pytest.approx(double, rel=0.1)


# Laws


def test_values_at_the_points_are_those_of_a_function_that_is_linear_on_the_triangles():
    domain = mesh_domain()
    u = lamina.poisson(domain, wave, diffusivity=rising, tolerance=1e-11).values
    v = lamina.poisson(domain, wave, diffusivity=rising(domain.points), tolerance=1e-11).values
    torch.testing.assert_close(v, u, rtol=0, atol=1e-9)


def test_tensors_at_the_points_are_those_of_a_function_that_is_linear_on_the_triangles():
    base = torch.tensor([[2.0, 0.3, 0.1], [0.3, 1.5, 0.2], [0.1, 0.2, 1.0]], dtype=torch.float64)
    slope = 0.2 * torch.eye(3, dtype=torch.float64) + 0.1

    def tensor(x):
        return base + x[:, 0, None, None] * slope

    domain = plate(0.15)
    u = lamina.poisson(domain, wave, diffusivity=tensor, tolerance=1e-11).values
    v = lamina.poisson(domain, wave, diffusivity=tensor(domain.points), tolerance=1e-11).values
    torch.testing.assert_close(v, u, rtol=0, atol=1e-9)
    scalar = lamina.poisson(domain, wave, diffusivity=1.0, tolerance=1e-11).values
    assert float((u - scalar).abs().max()) > 0.05 * float(scalar.abs().max())


def test_what_a_tensor_does_along_the_normal_is_of_no_account():
    """On the plate diag(1, 1, c) is the Laplacian for any c, even 0."""
    x = inside()
    plain = lamina.poisson(plate(0.06), wave, tolerance=1e-11)(x)
    for c in (0.0, 7.0):
        D = torch.diag(torch.tensor([1.0, 1.0, c], dtype=torch.float64))
        u = lamina.poisson(plate(0.06), wave, diffusivity=everywhere(D), tolerance=1e-11)(x)
        torch.testing.assert_close(u, plain, rtol=0, atol=1e-10)


@pytest.mark.parametrize("form", ["number", "values", "function", "tensor"])
def test_a_constant_diffusivity_divides_the_solution(form):
    domain, c = mesh_domain(), 3.0
    diffusivity = {
        "number": c,
        "values": torch.full((len(domain.points),), c),
        "function": lambda x: torch.full_like(x[:, 0], c),
        "tensor": everywhere(c * torch.eye(3)),
    }[form]
    plain = lamina.poisson(domain, wave, tolerance=1e-12).values
    scaled = lamina.poisson(domain, wave, diffusivity=diffusivity, tolerance=1e-12).values
    torch.testing.assert_close(scaled, plain / c, rtol=0, atol=1e-10)


def test_heat_with_a_constant_diffusivity_is_heat_over_a_longer_time():
    domain, c = mesh_domain(), 4.0
    plain = lamina.heat(domain, wave, 0.2, steps=20, tolerance=1e-12).values
    scaled = lamina.heat(domain, wave, 0.2 / c, diffusivity=c, steps=20, tolerance=1e-12).values
    torch.testing.assert_close(scaled, plain, rtol=0, atol=1e-10)
    assert float((lamina.heat(domain, wave, 0.2 / c, steps=20).values - plain).abs().max()) > 0.05


def test_heat_with_a_varying_diffusivity_keeps_its_integral_and_ends_at_the_mean():
    domain = mesh_domain()
    u = lamina.heat(domain, lambda x: 1 + wave(x), 20.0, diffusivity=rising, times=[0.1, 1.0])
    mass = [float(domain.scheme.mass(v).sum()) for v in u.unknowns]
    assert max(mass) - min(mass) <= 1e-11 * mass[0]
    mean = domain.quadrature.mean(lambda x: 1 + wave(x))
    torch.testing.assert_close(u.values, torch.full_like(u.values, mean), rtol=0, atol=1e-8)


def test_heat_decays_at_the_rate_of_the_tensor():
    """cos(pi x) on the plate decays like exp(-4 pi^2 t) under diag(4, 1, 1), cos(pi y) like exp(-pi^2 t)."""
    D = torch.diag(torch.tensor([4.0, 1.0, 1.0], dtype=torch.float64))
    x = inside()
    for axis, rate in ((0, 4.0), (1, 1.0)):
        u = lamina.heat(plate(0.06), lambda p, i=axis: torch.cos(math.pi * p[:, i]), 0.04, diffusivity=everywhere(D))
        exact = math.exp(-rate * math.pi**2 * 0.04) * torch.cos(math.pi * x[:, axis])
        assert float((u(x) - exact).abs().max()) < 5e-3


# The scheme


def test_a_baseline_is_not_replaced_in_silence():
    domain = lamina.paper.BandDomain(lamina.Sphere(level=3), 0.15, scheme="coupled")
    for call in (
        lambda: lamina.poisson(domain, rising_rhs, diffusivity=rising),
        lambda: lamina.heat(domain, height, 0.1, diffusivity=rising),
    ):
        with pytest.raises(lamina.InputError, match="a diffusivity needs functions on cut cells"):
            call()


def test_a_number_keeps_the_coupled_scheme_and_its_order():
    domain = lamina.paper.BandDomain(lamina.Sphere(level=3), 0.15, scheme="coupled", order=4)
    exact = height(domain.points)
    assert errors(lamina.poisson(domain, height, diffusivity=2.0).values, -exact / 4).nmae < 1e-4
    assert errors(lamina.poisson(domain, height, diffusivity=2.0, screening=1.0).values, -exact / 5).nmae < 1e-4
    assert errors(lamina.heat(domain, height, 0.1, diffusivity=2.0).values, math.exp(-0.4) * exact).nmae < 1e-4
    with pytest.raises(lamina.InputError, match="must be positive"):
        lamina.poisson(domain, height, diffusivity=-1.0)


# Refused

SKEW = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
INDEFINITE = torch.diag(torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64))


@pytest.mark.parametrize(
    ("diffusivity", "message"),
    [
        (0.0, "the diffusivity must be positive and finite, got 0.0 somewhere"),
        (-2.0, "the diffusivity must be positive and finite, got -2.0 somewhere"),
        (math.nan, "the diffusivity must be positive and finite, got nan somewhere"),
        (height, "the diffusivity must be positive and finite, got -0.9"),
        (lambda x: torch.log(x[:, 2]), "the diffusivity must be positive and finite, got nan somewhere"),
        (torch.ones(7), r"the diffusivity has shape \(7,\); expected \(162,\)"),
        (torch.ones(162, 3), r"the diffusivity has shape \(162, 3\); expected \(162,\)"),
        (torch.ones(7, 3, 3), r"has shape \(7, 3, 3\); expected \(162,\) or \(162, 3, 3\), one value for each of"),
        (torch.full((162,), torch.nan), "the diffusivity is not finite at 162 of 162 points"),
        (lambda x: x, r"returned \(\d+, 3\) for \d+ points; expected a tensor of shape \(\d+,\) or \(\d+, 3, 3\)"),
        (lambda x: 1.0, r"the diffusivity returned float for \d+ points; expected"),
        (everywhere(SKEW), r"the diffusivity must be symmetric \(3, 3\) tensors"),
        (everywhere(INDEFINITE), "the diffusivity must be positive semidefinite, got an eigenvalue of -1"),
        (everywhere(torch.full((3, 3), torch.nan)), "the diffusivity must be finite, got nan"),
        (math.inf, "the diffusivity must be positive and finite, got inf somewhere"),
        (everywhere(torch.zeros(3, 3)), "the diffusivity has no tangential part"),
    ],
)
def test_bad_diffusivities_are_named(diffusivity, message):
    for call in (
        lambda: lamina.poisson(mesh_domain(), wave, diffusivity=diffusivity),
        lambda: lamina.heat(mesh_domain(), wave, 0.1, diffusivity=diffusivity),
        lambda: lamina.eigenmodes(mesh_domain(), 4, diffusivity=diffusivity),
    ):
        with pytest.raises(lamina.InputError, match=message):
            call()


@pytest.mark.gpu
def test_the_gpu_gives_what_the_cpu_gives():
    tensor = torch.diag(torch.tensor([4.0, 1.0, 1.0], dtype=torch.float64))
    values = []
    for device in ("cpu", "cuda"):
        domain = lamina.Domain(lamina.Mesh(*icosphere(4)), 0.06, device=device)
        there = tensor.to(device)
        u = lamina.poisson(domain, wave, diffusivity=lambda x, t=there: t.expand(len(x), 3, 3), tolerance=1e-10)
        modes = lamina.eigenmodes(domain, 9, diffusivity=lambda x: 2 + x[:, 2])
        values.append((u.values.cpu(), modes.eigenvalues.cpu()))
    torch.testing.assert_close(values[1], values[0], rtol=0, atol=1e-8)
