"""Gradients of solutions with respect to data and coefficients are those of finite differences, in both schemes."""

from functools import cache

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import lamina
from schemes import of_scheme

EXACT = {"tolerance": 1e-13}  # finite differences see the last digits
SCHEMES = pytest.mark.parametrize("scheme", ["trace", "coupled"])
SURFACES = pytest.mark.parametrize("name", ["sphere", "torus"])


@cache
def domain_of(name, scheme):
    if name == "hemisphere":
        surface = lamina.clip(lamina.Sphere(level=3), lambda x: x[:, 2] - 0.11)
    else:
        surface = lamina.Sphere(level=2) if name == "sphere" else lamina.Torus(1.0, 0.45)
    return of_scheme(scheme, surface, 0.3 if scheme == "trace" else 0.25, order=2)


def parameters(count=2):
    generator = torch.Generator().manual_seed(1)
    return (0.5 + torch.rand(count, generator=generator, dtype=torch.float64)).requires_grad_()


def basis(x):
    """Two fields (n, 2), of which parameters choose a mixture."""
    return torch.stack([x[:, 0] + x[:, 1] * x[:, 2], torch.sin(3 * x[:, 2]) - x[:, 0] ** 2], 1)


def positive(x):
    return basis(x).square() + 0.3


def some(x):
    return x[:, 0] + torch.cos(2 * x[:, 1]) * x[:, 2]


def seen(u):
    """A number that depends on all values of a solution."""
    m = len(u.domain.points)
    w = torch.randn(m, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return (w.to(u.values) * u.values).sum() / m**0.5


def agrees(function, *inputs):
    return gradcheck(function, inputs, atol=1e-6, rtol=1e-5, nondet_tol=1e-8, check_undefined_grad=False)


# Data


@SURFACES
@SCHEMES
def test_of_poisson_to_values_of_the_right_hand_side(name, scheme):
    domain = domain_of(name, scheme)
    assert agrees(lambda c: seen(lamina.poisson(domain, basis(domain.points) @ c, **EXACT)), parameters())


@SURFACES
@SCHEMES
def test_of_poisson_to_parameters_of_the_right_hand_side(name, scheme):
    def f(c):
        return lambda x: c[0] * x[:, 0] + torch.sin(3 * c[1] * x[:, 2])

    domain = domain_of(name, scheme)
    assert agrees(lambda c: seen(lamina.poisson(domain, f(c), **EXACT)), parameters())


@SURFACES
@SCHEMES
def test_of_heat_to_the_initial_state(name, scheme):
    domain = domain_of(name, scheme)
    assert agrees(lambda c: seen(lamina.heat(domain, basis(domain.points) @ c, 0.1, steps=2, **EXACT)), parameters())


@SURFACES
@SCHEMES
@pytest.mark.parametrize("kind", ["steady", "in time"])
def test_of_heat_to_its_source(name, scheme, kind):
    domain = domain_of(name, scheme)

    def source(c):
        if kind == "steady":
            return basis(domain.points) @ c
        return lambda x, t: basis(x) @ torch.stack([c[0] * t, torch.sin(20 * c[1] * t)])

    assert agrees(lambda c: seen(lamina.heat(domain, some, 0.1, steps=2, source=source(c), **EXACT)), parameters())


@SCHEMES
def test_of_all_values_at_once_is_the_adjoint(scheme):
    """The solution operator S is linear: the gradient g of w.S f, whatever f, has g.f = w.S f."""
    domain = domain_of("torus", scheme)
    generator = torch.Generator().manual_seed(0)
    f, other, w = torch.randn(3, len(domain.points), generator=generator, dtype=torch.float64)
    for solve in (
        lambda f: lamina.poisson(domain, f, **EXACT).values,
        lambda f: lamina.heat(domain, f, 0.05, steps=2, **EXACT).values,
    ):
        f.requires_grad_()
        (g,) = torch.autograd.grad((w * solve(f)).sum(), f)
        expected = (w * solve(other)).sum()
        assert float(torch.dot(g, other)) == pytest.approx(float(expected), rel=1e-8, abs=1e-8)


@SCHEMES
@pytest.mark.parametrize("kind", ["Dirichlet", "Neumann", "Robin"])
def test_of_poisson_to_what_holds_on_the_rim(scheme, kind):
    domain = domain_of("hemisphere", scheme)

    def conditions(c):
        def value(x):
            return basis(x) @ c[:2]

        return lamina.Robin("rim", value, coefficient=c[2]) if kind == "Robin" else getattr(lamina, kind)("rim", value)

    count = 3 if kind == "Robin" else 2
    assert agrees(lambda c: seen(lamina.poisson(domain, some, conditions(c), **EXACT)), parameters(count))


@SCHEMES
def test_of_heat_to_rim_values_that_change(scheme):
    domain = domain_of("hemisphere", scheme)

    def at_rim(c):
        return lamina.Dirichlet("rim", lambda x, t: x[:, 0] * c[0] + t * c[1] * x[:, 1])

    assert agrees(lambda c: seen(lamina.heat(domain, some, 0.2, at_rim(c), steps=2, **EXACT)), parameters())


# Coefficients


@SURFACES
@SCHEMES
def test_of_poisson_to_a_screening(name, scheme):
    domain, c = domain_of(name, scheme), torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    assert agrees(lambda c: 10 * seen(lamina.poisson(domain, some, screening=c, **EXACT)), c)


@SURFACES
def test_of_poisson_to_a_screening_that_varies(name):
    domain = domain_of(name, "trace")
    for screening in (lambda c: positive(domain.points) @ c, lambda c: lambda x: positive(x) @ c):
        assert agrees(
            lambda c, s=screening: 10 * seen(lamina.poisson(domain, some, screening=s(c), **EXACT)), parameters()
        )


def test_a_constant_screening_field_is_a_screening():
    domain = lamina.Domain(lamina.Torus(1.0, 0.45), 0.3, order=2)
    number, field, values = (
        lamina.poisson(domain, some, screening=s, tolerance=1e-12).values
        for s in (1.7, lambda x: torch.full_like(x[:, 0], 1.7), torch.full_like(domain.points[:, 0], 1.7))
    )
    torch.testing.assert_close(values, field)
    torch.testing.assert_close(number, field)


def diffusivity(kind, c, domain):
    if kind == "number":
        return c[0]
    if kind == "values":
        return positive(domain.points) @ c
    if kind == "function":
        return lambda x: positive(x) @ c
    along = torch.diag(torch.stack([c[0], c[1], c[0] * c[1]]))
    return lambda x: along * (2 + x[:, :1, None])


@SURFACES
@pytest.mark.parametrize("kind", ["number", "values", "function", "tensor"])
def test_of_poisson_to_a_diffusivity(name, kind):
    domain = domain_of(name, "trace")
    assert agrees(
        lambda c: seen(lamina.poisson(domain, some, diffusivity=diffusivity(kind, c, domain), **EXACT)), parameters()
    )


def test_of_both_equations_to_one_diffusivity_in_the_coupled_scheme():
    domain, a = domain_of("sphere", "coupled"), torch.tensor(1.6, dtype=torch.float64, requires_grad=True)
    assert agrees(lambda a: 10 * seen(lamina.poisson(domain, some, diffusivity=a, **EXACT)), a)
    assert agrees(lambda a: 10 * seen(lamina.heat(domain, some, 0.1, steps=2, diffusivity=a, **EXACT)), a)


def test_of_heat_to_a_diffusivity():
    domain = domain_of("torus", "trace")
    assert agrees(
        lambda c: seen(lamina.heat(domain, some, 0.1, steps=2, diffusivity=diffusivity("values", c, domain), **EXACT)),
        parameters(),
    )


def test_twice_the_diffusivity_is_half_the_solution():
    """So the derivative with respect to a number a is -u / a."""
    domain, a = domain_of("sphere", "trace"), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    u = seen(lamina.poisson(domain, some, diffusivity=a, **EXACT))
    (slope,) = torch.autograd.grad(u, a)
    assert float(slope) == pytest.approx(-float(u.detach()) / 2, rel=1e-9)


# Second derivatives


@SCHEMES
def test_second_derivatives_to_screening_and_right_hand_side(scheme):
    domain = domain_of("sphere", scheme)
    c = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    a = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    assert gradgradcheck(
        lambda c, a: 10 * seen(lamina.poisson(domain, a.square() * some(domain.points), screening=c, **EXACT)),
        (c, a),
        atol=1e-5,
        rtol=1e-4,
        nondet_tol=1e-8,
        check_undefined_grad=False,
    )


def test_second_derivatives_to_a_diffusivity():
    """u is homogeneous of degree -1 in the diffusivity c, so that c.H c = 2 u."""
    domain, c = domain_of("sphere", "trace"), parameters()
    u = seen(lamina.poisson(domain, some, diffusivity=lambda x: positive(x) @ c, **EXACT))
    (first,) = torch.autograd.grad(u, c, create_graph=True)
    (second,) = torch.autograd.grad((first * c.detach()).sum(), c)
    assert float((first * c).sum().detach()) == pytest.approx(-float(u.detach()), rel=1e-8)
    assert float((second * c).sum().detach()) == pytest.approx(2 * float(u.detach()), rel=1e-7)


# Cost


class Kept:
    """How many tensors, and bytes, autograd keeps for backward inside a with statement."""

    def __enter__(self):
        self.count = self.bytes = 0
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda x: x)
        self.hooks.__enter__()
        return self

    def pack(self, x):
        self.count, self.bytes = self.count + 1, self.bytes + x.nbytes
        return x

    def __exit__(self, *error):
        self.hooks.__exit__(*error)


@SCHEMES
def test_what_is_kept_does_not_depend_on_the_number_of_cycles(scheme):
    domain, found = of_scheme(scheme, lamina.Sphere(level=2), 0.12, order=2), []
    f = some(domain.points).requires_grad_()
    for tolerance in (1e-3, 1e-12):
        with Kept() as kept:
            u = lamina.poisson(domain, f, screening=0.5, tolerance=tolerance)
        found.append((u.cycles, kept.count, kept.bytes))
    (few, *little), (many, *much) = found
    assert many >= 2 * few
    assert little == much
    assert 0 < much[1] < 20 * (f.nbytes + u.unknowns.nbytes)


@SCHEMES
def test_what_time_stepping_keeps_is_linear_in_the_steps(scheme):
    domain, found = domain_of("sphere", scheme), []
    u0 = some(domain.points).requires_grad_()
    for steps in (2, 4, 8):
        with Kept() as kept:
            lamina.heat(domain, u0, 0.1, steps=steps)
        found.append(kept.bytes)
    assert found[2] - found[1] == pytest.approx(2 * (found[1] - found[0]), rel=0.01)
    assert found[2] > found[1]


@pytest.mark.parametrize(("scheme", "steps"), [("trace", 16), ("trace", None), ("coupled", 16)])
def test_checkpoints_keep_less_and_give_the_same_gradients(scheme, steps):
    domain, found = domain_of("sphere", scheme), []
    u0, s = some(domain.points).requires_grad_(), parameters()
    for checkpoint in (False, True):
        with Kept() as kept:
            u = lamina.heat(
                domain,
                u0,
                0.1,
                times=[0.03, 0.1],
                steps=steps,
                accuracy=3e-3,
                source=lambda x, t: (1 + t) * (basis(x) @ s),
                checkpoint=checkpoint,
            )
        loss = u.snapshots.square().mean() + u.snapshots[0].sum()
        found.append((kept, u.steps, u.snapshots.detach(), torch.autograd.grad(loss, (u0, s))))
    (all_of_them, *without), (some_of_them, *with_them) = found
    torch.testing.assert_close(without, with_them, rtol=1e-10, atol=1e-12)
    assert some_of_them.bytes < (0.5 if steps else 0.8) * all_of_them.bytes
    assert some_of_them.count < all_of_them.count


@SCHEMES
def test_single_precision_gives_the_same_gradients(scheme):
    domain = domain_of("sphere", scheme)
    single = of_scheme(scheme, domain.surface, domain.spacing, order=2, dtype=torch.float32)
    found = []
    for d in (domain, single):
        c, shift = (parameters(n).to(d.points.dtype).detach().requires_grad_() for n in (2, 1))
        f = basis(d.points) @ c
        u = lamina.poisson(d, f, screening=shift[0]).values
        v = lamina.heat(d, f, 0.1, steps=2).values
        assert u.dtype == v.dtype == d.points.dtype
        found.append(torch.autograd.grad(u.square().mean() + (v**3).mean(), (c, shift)))
        assert all(g.dtype == d.points.dtype for g in found[-1])
    for a, b in zip(*found, strict=True):
        assert float((a - b).norm()) < 3e-3 * float(a.norm())


@pytest.mark.gpu
@SCHEMES
def test_gradients_on_the_gpu_are_those_on_the_cpu(scheme):
    found = []
    for device in ("cpu", "cuda"):
        domain = of_scheme(scheme, lamina.Sphere(level=2), 0.25, order=2, device=device)
        f = some(domain.points).requires_grad_()
        c = torch.tensor(1.7, dtype=torch.float64, device=device, requires_grad=True)
        u = lamina.poisson(domain, f, screening=c, **EXACT).values
        v = lamina.heat(domain, f, 0.1, steps=2, **EXACT).values
        found.append([g.cpu() for g in torch.autograd.grad(u.square().mean() + (v**3).mean(), (f, c))])
    torch.testing.assert_close(found[0], found[1], rtol=1e-7, atol=1e-9)


@SCHEMES
def test_without_gradients_nothing_is_recorded(scheme):
    domain = domain_of("sphere", scheme)
    assert not lamina.poisson(domain, some).values.requires_grad
    assert not lamina.heat(domain, some, 0.1, steps=1).values.requires_grad
    f = some(domain.points).requires_grad_()
    with torch.no_grad(), Kept() as kept:
        assert not lamina.poisson(domain, f).values.requires_grad
        assert not lamina.heat(domain, f, 0.1, steps=1, checkpoint=True).values.requires_grad
    assert kept.count == 0


def test_a_screening_of_zero_has_no_gradient_and_says_so():
    """Without a screening the solution is only known up to a constant: the limit is not a solution."""
    c = torch.zeros((), dtype=torch.float64, requires_grad=True)
    with pytest.raises(lamina.InputError, match="screening must be positive for gradients"):
        lamina.poisson(domain_of("sphere", "trace"), some, screening=c)


# Sources


@SCHEMES
def test_heat_with_a_steady_source_tends_to_the_solution_of_poisson(scheme):
    """du/dt = Lap u + 2x on the sphere has the steady state x."""
    domain = of_scheme(scheme, lamina.Sphere(level=3), 0.2, order=2)
    for source in (lambda x: 2 * x[:, 0], 2 * domain.points[:, 0]):
        u = lamina.heat(domain, 0.0, 6.0, source=source, steps=12)
        assert float((u.values - domain.points[:, 0]).abs().max()) < 0.02


@SCHEMES
def test_heat_with_a_source_in_time_is_second_order_in_the_steps(scheme):
    """u = x cos(5 t) on the sphere, for the source x (2 cos(5 t) - 5 sin(5 t))."""
    domain = of_scheme(scheme, lamina.Sphere(level=3), 0.2, order=2)

    def source(x, t):
        t = torch.tensor(5 * t)
        return x[:, 0] * (2 * t.cos() - 5 * t.sin())

    u = [lamina.heat(domain, lambda x: x[:, 0], 0.5, source=source, steps=n).values for n in (6, 12, 48)]
    coarse, fine = (float((v - u[-1]).abs().max()) for v in u[:-1])
    assert 3.4 < coarse / fine < 5
    exact = domain.points[:, 0] * torch.cos(torch.tensor(2.5))
    assert float((u[-1] - exact).abs().max()) < 0.02
