"""Layers: the solves of lamina, many channels at a time, with gradients to fields, times and screening."""

import math
from functools import cache

import pytest
import torch
from torch.autograd import gradcheck

import lamina
from lamina.nn import HeatLayer, PoissonLayer
from lamina.pde.runge_kutta import SDIRK2, Cost, State, Stepper
from lamina.surfaces.icosphere import icosphere
from schemes import of_scheme

SCHEMES = pytest.mark.parametrize("scheme", ["trace", "coupled"])


@cache
def domain_of(scheme, spacing=0.25, dtype=torch.float64):
    return of_scheme(scheme, lamina.Sphere(level=2), spacing, order=2, dtype=dtype)


@pytest.fixture(scope="module")
def domain():
    return domain_of("trace")


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def heat_layer(channels, **options):
    return HeatLayer(channels, **options).double()


# Poisson


@SCHEMES
@pytest.mark.parametrize("screening", [0.0, 1.5])
def test_the_poisson_layer_is_poisson_column_by_column(scheme, screening):
    domain = domain_of(scheme)
    f = random(len(domain.points), 3)
    layer = PoissonLayer(domain, screening=screening, tolerance=1e-12)
    each = [lamina.poisson(domain, f[:, i], screening=screening, tolerance=1e-12).values for i in range(3)]
    torch.testing.assert_close(layer(f), torch.stack(each, 1), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(layer(f[:, 0]), each[0], rtol=1e-9, atol=1e-10)


def test_the_poisson_layer_keeps_conditions():
    surface = lamina.clip(lamina.Sphere(level=3), lambda x: x[:, 2] - 0.11)
    domain = lamina.Domain(surface, 0.25, order=2)
    held = lamina.Dirichlet("rim", lambda x: x[:, 0])
    f = random(len(domain.points), 2)
    u = PoissonLayer(conditions=held, tolerance=1e-12)(f, domain)
    for i in range(2):
        expected = lamina.poisson(domain, f[:, i], held, tolerance=1e-12).values
        torch.testing.assert_close(u[:, i], expected, rtol=1e-8, atol=1e-9)


@SCHEMES
def test_batches_are_columns(scheme):
    domain = domain_of(scheme)
    layer, f = PoissonLayer(domain, tolerance=1e-12), random(2, len(domain.points), 3)
    u = layer(f)
    assert u.shape == f.shape
    torch.testing.assert_close(u, torch.stack([layer(f[0]), layer(f[1])]), rtol=1e-9, atol=1e-11)


@SCHEMES
def test_vmap_over_right_hand_sides(scheme):
    domain = domain_of(scheme)
    layer, f = PoissonLayer(domain, tolerance=1e-12), random(len(domain.points), 3)
    torch.testing.assert_close(torch.func.vmap(layer, in_dims=1, out_dims=1)(f), layer(f), rtol=1e-9, atol=1e-11)


@SCHEMES
def test_vmap_of_gradients_is_the_gradient_of_the_sum(scheme):
    domain = domain_of(scheme)
    layer, w = PoissonLayer(domain, screening=0.7, tolerance=1e-12), random(len(domain.points), 3, seed=1)
    f = random(len(domain.points), 3).requires_grad_()
    each = torch.func.vmap(torch.func.grad(lambda f, w: (w * layer(f) ** 2).sum()), in_dims=1, out_dims=1)(
        f.detach(), w
    )
    (together,) = torch.autograd.grad((w * layer(f) ** 2).sum(), f)
    torch.testing.assert_close(each, together, rtol=1e-8, atol=1e-10)


@SCHEMES
def test_gradients_are_linear_however_small(scheme):
    """The squares of the smaller ones are below all numbers of double precision."""
    domain = domain_of(scheme)
    for shape in ((len(domain.points),), (len(domain.points), 2)):
        found, f = [], random(*shape).requires_grad_()
        for scale in (1.0, 1e-180):
            u = PoissonLayer(domain, screening=0.7, tolerance=1e-10)(f)
            found.append(torch.autograd.grad(scale * u.pow(3).sum(), f)[0] / scale)
        torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-8)


@SCHEMES
def test_a_screening_may_be_a_parameter(scheme):
    domain = domain_of(scheme)
    f, w = random(len(domain.points), 2), random(len(domain.points), 2, seed=1)
    c = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(
        lambda c: (w * PoissonLayer(domain, screening=c, tolerance=1e-13)(f)).sum(),
        (c,),
        atol=1e-6,
        rtol=1e-5,
        nondet_tol=1e-8,
    )


# Heat


def harmonics(x):
    """Eigenfunctions of the Laplacian on the unit sphere, for -2, -6 and -2."""
    return torch.stack([x[:, 0], x[:, 0] * x[:, 1], x[:, 2]], 1)


RATES = torch.tensor([2.0, 6.0, 2.0], dtype=torch.float64)


def test_every_channel_decays_for_its_own_time():
    domain = domain_of("trace", 0.1)
    times = torch.tensor([0.1, 0.05, 0.4], dtype=torch.float64)
    u0 = harmonics(domain.points)
    u = heat_layer(3, time=times, steps=8, tolerance=1e-10)(u0, domain)
    exact = u0 * torch.exp(-RATES * times)
    assert float((u - exact).detach().abs().max()) < 0.01
    decay = (u.detach() * u0).sum(0) / (u0 * u0).sum(0)
    torch.testing.assert_close(decay, torch.exp(-RATES * times), rtol=5e-3, atol=0)


def test_steps_are_of_second_order(domain):
    """Differences on one grid: the error in space drops out."""
    u0 = harmonics(domain.points)
    u = [heat_layer(3, time=0.5, steps=n, tolerance=1e-12)(u0, domain).detach() for n in (2, 4, 8, 48)]
    errors = [float((v - u[-1]).abs().max()) for v in u[:-1]]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.4)
    assert math.log2(errors[1] / errors[2]) == pytest.approx(2, abs=0.3)


def test_the_heat_layer_is_heat():
    """Up to the second order in the spacing: fields enter the layer by their integrals, and heat by their values."""
    found = []
    for spacing in (0.25, 0.125):
        domain = domain_of("trace", spacing)
        u0 = harmonics(domain.points)[:, :2] + 0.3
        u = heat_layer(2, time=[0.05, 0.2], steps=20, tolerance=1e-10)(u0, domain).detach()
        each = [lamina.heat(domain, u0[:, i], t, steps=40, tolerance=1e-10).values for i, t in enumerate((0.05, 0.2))]
        found.append(float((u - torch.stack(each, 1)).abs().max()))
    assert found[0] < 6e-3
    assert found[1] < 0.35 * found[0]


def test_integrals_are_conserved(domain):
    layer, u0 = heat_layer(3, time=[0.01, 0.1, 10.0], steps=6), 1 + random(len(domain.points), 3)
    torch.testing.assert_close(domain.load(u0).sum(0), _integral_after(layer, domain, u0), rtol=1e-9, atol=1e-9)
    late = layer(u0, domain).detach()[:, 2]
    mean = domain.load(u0[:, 2]).sum() / domain.scheme.area.sum()
    torch.testing.assert_close(late, mean.expand_as(late), rtol=1e-3, atol=0)


def _integral_after(layer, domain, u0):
    """Of the states of the layer's method, before they are read at the points."""
    stepper = Stepper(SDIRK2, domain.scheme, 1e-8, warm=False)
    state, dt = State(domain.load(u0)), layer.time.detach() / layer.steps
    for _ in range(layer.steps):
        state, _, _ = stepper.step(state, None, 0.0, dt, Cost())
    return state.mass.sum(0)


def test_almost_no_time_changes_almost_nothing():
    domain = domain_of("trace", 0.1)
    u0 = harmonics(domain.points)
    late, early = (float((heat_layer(3, time=t)(u0, domain).detach() - u0).abs().max()) for t in (0.1, 1e-6))
    assert early < 0.02
    assert late > 5 * early


def test_gradients_to_times_and_fields(domain):
    layer = heat_layer(3, time=[0.1, 0.03, 0.5], tolerance=1e-13)
    u0, w = harmonics(domain.points), random(len(domain.points), 3) / 10
    c = random(3, seed=1).requires_grad_()

    def loss(log_time, c):
        return (w * torch.func.functional_call(layer, {"log_time": log_time}, (u0 * c, domain))).sum()

    assert gradcheck(loss, (layer.log_time, c), atol=1e-6, rtol=1e-5, nondet_tol=1e-8, check_undefined_grad=False)


def test_heat_in_batches_and_by_vmap(domain):
    layer, u0 = heat_layer(2, time=[0.05, 0.2], tolerance=1e-12), random(3, len(domain.points), 2)
    each = torch.stack([layer(u, domain) for u in u0])
    torch.testing.assert_close(layer(u0, domain), each, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(torch.func.vmap(lambda u: layer(u, domain))(u0), each, rtol=1e-8, atol=1e-10)


def test_one_channel_may_go_without_a_dimension(domain):
    layer, u0 = heat_layer(1, domain=domain, time=0.1, tolerance=1e-12), random(len(domain.points))
    u = layer(u0)
    assert u.shape == u0.shape
    torch.testing.assert_close(u, layer(u0[:, None])[:, 0])


# As modules


def test_states_of_layers_are_saved_and_loaded(domain):
    layer, other = heat_layer(3, time=[0.1, 0.03, 0.5]), heat_layer(3)
    u0 = random(len(domain.points), 3)
    assert list(layer.state_dict()) == ["log_time"]
    assert float((layer(u0, domain) - other(u0, domain)).detach().abs().max()) > 0.1
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other.time, layer.time)
    torch.testing.assert_close(other(u0, domain), layer(u0, domain))
    assert not heat_layer(3, learn=False).log_time.requires_grad


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_features_come_back_in_the_precision_they_came_in(precision):
    domain = domain_of("trace", dtype=precision)
    features = random(len(domain.points), 2).float().requires_grad_()
    for layer in (HeatLayer(2, time=0.1), PoissonLayer(screening=1.0)):
        out = layer(features, domain)
        assert out.dtype == torch.float32
        expected = layer(features.detach().double(), domain_of("trace"))
        torch.testing.assert_close(out.detach().double(), expected.detach(), rtol=1e-3, atol=1e-4)
        (gradient,) = torch.autograd.grad(out.square().sum(), features)
        assert gradient.dtype == torch.float32


def test_training_finds_the_time_that_made_the_data(domain):
    u0 = random(len(domain.points), 2)
    with torch.no_grad():
        target = heat_layer(2, time=[0.05, 0.3])(u0, domain)
    layer = heat_layer(2, time=0.1)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.2)
    losses = []
    for _ in range(40):
        optimiser.zero_grad()
        loss = (layer(u0, domain) - target).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 1e-2 * losses[0]
    torch.testing.assert_close(layer.time.detach(), torch.tensor([0.05, 0.3], dtype=torch.float64), rtol=0.15, atol=0)


def test_training_a_small_regressor_lowers_its_loss(domain):
    """To find a smooth field from a noisy one, point by point networks need diffusion between them."""
    torch.manual_seed(0)
    x = domain.points
    clean = (x[:, 0] * x[:, 1] + 0.5 * x[:, 2])[:, None]
    noisy = (clean + 0.5 * random(len(x), 1)).float()

    class Regressor(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.heat, self.last = torch.nn.Linear(1, 4), HeatLayer(4, time=0.02), torch.nn.Linear(4, 1)

        def forward(self, u):
            return self.last(torch.tanh(self.heat(self.first(u), domain)))

    network = Regressor()
    before = network.heat.time.detach().clone()
    optimiser = torch.optim.Adam(network.parameters(), lr=0.05)
    losses = []
    for _ in range(30):
        optimiser.zero_grad()
        loss = (network(noisy) - clean).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    assert losses[-1] < 0.5 * float(clean.square().mean())
    assert float((network.heat.time.detach() - before).abs().max()) > 1e-3


@pytest.mark.gpu
def test_layers_on_the_gpu_give_what_they_give_on_the_cpu():
    found = []
    for device in ("cpu", "cuda"):
        domain = lamina.Domain(lamina.Sphere(level=2), 0.25, order=2, device=device)
        u0 = random(2, len(domain.points), 3).to(device).requires_grad_()
        layer = heat_layer(3, time=[0.1, 0.03, 0.5], tolerance=1e-11).to(device)
        u = PoissonLayer(domain, tolerance=1e-11)(layer(u0, domain))
        gradients = torch.autograd.grad(u.square().sum(), (u0, layer.log_time))
        found.append([v.detach().cpu() for v in (u, *gradients)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-8)


# Bad input


@pytest.mark.parametrize("shape", [(7,), (7, 2), (2, 7, 2), (1, 1, 162, 2), ()])
def test_fields_of_the_wrong_shape_are_named(domain, shape):
    for layer in (PoissonLayer(domain), heat_layer(2, domain=domain)):
        with pytest.raises(lamina.InputError, match=r"has shape \(.*expected \(162,\), \(162, k\) or \(b, 162, k\)"):
            layer(torch.zeros(shape, dtype=torch.float64))


def test_channels_that_do_not_match_are_named(domain):
    with pytest.raises(lamina.InputError, match=r"HeatLayer of 3 channels got a field of shape \(162, 2\)"):
        heat_layer(3)(random(162, 2), domain)
    with pytest.raises(lamina.InputError, match=r"HeatLayer of 2 channels got a field of shape \(162,\)"):
        heat_layer(2)(random(162), domain)


@pytest.mark.parametrize("layer", [PoissonLayer(), HeatLayer()])
def test_a_layer_without_a_domain_asks_for_one(layer):
    with pytest.raises(lamina.InputError, match=f"{type(layer).__name__} needs a Domain, got NoneType"):
        layer(random(162))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time": -1.0}, "time must be a positive number, or 2 of them, got -1.0"),
        ({"time": 0.0}, "time must be a positive number"),
        ({"time": [0.1, math.inf]}, "time must be a positive number"),
        ({"time": [0.1, 0.1, 0.1]}, "time must be a positive number, or 2 of them"),
        ({"steps": 0}, "steps must be a positive integer, got 0"),
        ({"channels": 0}, "channels must be a positive integer, got 0"),
    ],
)
def test_bad_options_of_the_heat_layer_are_named(options, message):
    with pytest.raises(lamina.InputError, match=message):
        HeatLayer(**{"channels": 2, **options})


def test_a_baseline_is_not_replaced_in_silence():
    with pytest.raises(lamina.InputError, match="a HeatLayer needs functions on cut cells"):
        heat_layer(1)(random(162), domain_of("coupled"))


def test_a_screening_that_is_no_number_is_refused(domain):
    with pytest.raises(lamina.InputError, match="screening of a PoissonLayer is one number"):
        PoissonLayer(domain, screening=torch.ones(162))(random(162))
    with pytest.raises(lamina.InputError, match=r"screening must be a number >= 0, got -1\.0"):
        PoissonLayer(domain, screening=-1.0)(random(162))


def test_vmap_of_gradients_where_the_shape_has_them_too():
    vertices, faces = icosphere(2)
    domain = lamina.Domain(lamina.Mesh(vertices.clone().requires_grad_(), faces), 0.3, order=2)
    layer, f = PoissonLayer(domain, screening=0.7), random(len(vertices), 2)

    def loss(f):
        return layer(f).square().sum()

    both = torch.func.vmap(torch.func.grad(loss), in_dims=1, out_dims=1)(f)
    one = f[:, 1].clone().requires_grad_()
    torch.testing.assert_close(both[:, 1], torch.autograd.grad(loss(one), one)[0], rtol=1e-6, atol=1e-9)


def test_the_grid_stays_where_the_origin_puts_it():
    domain = lamina.Domain(lamina.Sphere(level=2), 0.3, origin=(0.01, 0.02, 0.03), order=2)
    other = lamina.Domain(lamina.Torus(), 0.3, origin=(0.01, 0.02, 0.03), order=2)
    torch.testing.assert_close(domain.lattice.origin, other.lattice.origin)
    with pytest.raises(lamina.InputError, match="origin must be three finite numbers"):
        lamina.Domain(lamina.Sphere(level=2), 0.3, origin=(0.0, 1.0))
