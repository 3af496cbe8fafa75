"""What solves may be given: surfaces, formulas and their refusals, copies of domains, and a lower precision around."""

import copy
import pickle
from functools import cache

import pytest
import torch

import lamina
from lamina.surfaces.icosphere import icosphere
from schemes import of_scheme


@cache
def sphere(scheme="trace", spacing=0.2):
    return of_scheme(scheme, lamina.Sphere(level=3), spacing)


SOLVES = {
    "poisson": lambda on: lamina.poisson(on, "x"),
    "heat": lambda on: lamina.heat(on, "x", 0.01),
    "eigenmodes": lambda on: lamina.eigenmodes(on, 4),
}


# Surfaces


@pytest.mark.parametrize("solve", SOLVES.values(), ids=SOLVES)
def test_a_solve_on_a_surface_is_one_on_its_default_domain(solve):
    surface = lamina.Mesh(*icosphere(2))
    torch.testing.assert_close(solve(surface).values, solve(lamina.Domain(surface)).values)


@pytest.mark.parametrize(("name", "solve"), SOLVES.items())
def test_what_is_neither_a_surface_nor_a_domain_is_named(name, solve):
    with pytest.raises(lamina.InputError, match=f"{name} needs a lamina.Domain or a lamina surface, got str; see"):
        solve("bunny.obj")


# Formulas


def test_a_formula_is_the_function_that_it_describes():
    domain = sphere()

    def function(x):
        return torch.where(x[:, 2] > 0, x[:, 0], x[:, 1])

    formula = "x if z > 0 else y"
    assert torch.equal(lamina.poisson(domain, formula).values, lamina.poisson(domain, function).values)
    assert torch.equal(lamina.heat(domain, formula, 0.1).values, lamina.heat(domain, function, 0.1).values)
    screened = lamina.poisson(domain, 1.0, screening="1 + x^2", diffusivity="2 + z")
    expected = lamina.poisson(domain, 1.0, screening=lambda x: 1 + x[:, 0] ** 2, diffusivity=lambda x: 2 + x[:, 2])
    assert torch.equal(screened.values, expected.values)


def test_a_source_may_be_a_formula_over_time():
    u = lamina.heat(sphere(), 0.0, 0.5, source="2*t")
    torch.testing.assert_close(u.values, torch.full_like(u.values, 0.25), rtol=1e-4, atol=0)


NONSENSE = [
    (None, "is None; expected a number, a formula such as"),
    ("q + 1", "unknown name 'q' at position 0"),
    ({"f": 1}, "is of type dict; expected a number"),
    (torch.ones(642, dtype=torch.complex128), "is of type Tensor; expected a number"),
]


@pytest.mark.parametrize(("data", "message"), NONSENSE)
def test_what_is_no_field_is_refused_in_a_sentence(data, message):
    with pytest.raises(lamina.InputError, match=f"the right-hand side.*{message}"):
        lamina.poisson(sphere(), data)
    with pytest.raises(lamina.InputError, match=f"the initial state.*{message}"):
        lamina.heat(sphere(), data, 0.1)


# Reprs


def test_a_surface_says_what_it_is_and_how_large():
    assert repr(lamina.Mesh(*icosphere(2))) == (
        "Mesh 'mesh' (mesh): 162 points, 320 faces, 1 component, extent 2 x 2 x 2"
    )
    assert repr(lamina.Sphere(level=2)).startswith("Sphere 'sphere' (analytic): 162 points")


def test_a_layer_says_where_it_solves_and_how():
    assert repr(lamina.nn.PoissonLayer(sphere(), screening=2.0, conditions=lamina.Dirichlet("z > 0.5"))) == (
        f"PoissonLayer(domain=sphere, unknowns={sphere().unknowns}, screening=2, conditions=[Dirichlet])"
    )
    assert repr(lamina.nn.HeatLayer(2, time=[0.1, 0.2])) == (
        "HeatLayer(channels=2, steps=2, time=0.1 to 0.2, learned=True)"
    )


# Copies


DOMAINS = {
    "trace": sphere,
    "coupled": lambda: sphere("coupled"),
    "mesh": lambda: lamina.Domain(lamina.Mesh(*icosphere(2)), 0.3),
    "cloud": lambda: lamina.Domain(lamina.PointCloud(*[lamina.Sphere(level=3).points] * 2), 0.3),
    "spike": lambda: lamina.Domain(lamina.spike(3), 0.2),
}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("make", DOMAINS.values(), ids=DOMAINS)
def test_a_copy_of_a_domain_solves_the_same(make, copied):
    domain = make()
    lamina.poisson(domain, "x", screening=1.0)  # a domain that has been used, too
    other = copied(domain)
    assert other is not domain
    expected = lamina.poisson(domain, "x*y", screening=1.0).values
    torch.testing.assert_close(lamina.poisson(other, "x*y", screening=1.0).values, expected)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_a_copy_of_a_network_with_layers_gives_the_same_and_learns_on_its_own(copied):
    network = torch.nn.Sequential(lamina.nn.HeatLayer(2, sphere()), lamina.nn.PoissonLayer(sphere(), screening=1.0))
    other = copied(network)
    field = sphere().points[:, :2]
    torch.testing.assert_close(other(field), network(field))
    with torch.no_grad():
        other[0].log_time += 1.0
    assert float(network[0].time[0].detach()) == pytest.approx(0.01)
    assert not torch.allclose(other(field), network(field))


def test_a_domain_moves_to_another_precision_and_back():
    single = sphere().to(dtype=torch.float32)
    assert single.points.dtype == torch.float32
    assert single.unknowns == sphere().unknowns
    error = lamina.poisson(single, "x").values.double() - lamina.poisson(sphere(), "x").values
    assert float(error.abs().max()) < 1e-4
    assert sphere().to("cpu") is sphere()


def test_what_is_no_device_is_named():
    with pytest.raises(lamina.InputError, match=r"which is a precision: give it as dtype=torch\.float32"):
        sphere().to(torch.float32)
    with pytest.raises(lamina.InputError, match="there is no device"):
        sphere().to(3.5)


def test_a_device_that_is_not_there_is_named():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(lamina.InputError, match='device "cuda" was asked for but torch sees no CUDA device'):
        sphere().to("cuda")


@pytest.mark.gpu
def test_a_network_takes_its_domain_to_the_gpu():
    layer = lamina.nn.PoissonLayer(sphere(), screening=1.0).to("cuda")
    assert layer.domain is not None
    assert layer.domain.points.is_cuda
    expected = lamina.poisson(sphere(), "x", screening=1.0).values
    torch.testing.assert_close(layer(layer.domain.points[:, 0]).cpu(), expected)


# torch.autocast


@pytest.mark.parametrize("scheme", ["trace", "coupled"])
def test_autocast_does_not_change_a_solve(scheme):
    domain = sphere(scheme)
    layer = lamina.nn.PoissonLayer(domain, screening=1.0)

    def all_of():
        f = domain.points[:, 0].clone().requires_grad_()
        v = layer(f)
        (gradient,) = torch.autograd.grad(v.square().sum(), f)
        u = lamina.heat(domain, "x", 0.01)
        return v.detach(), gradient, u.values, u(domain.points[:5])

    expected = all_of()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = all_of()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
