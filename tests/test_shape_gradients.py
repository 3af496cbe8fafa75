"""Gradients with respect to shapes are those of finite differences, on a lattice that stays where it is.

Shapes are made anew from moved parameters; both sides of a difference want gradients, since roots are then found to one
more digit.
"""

import copy
from functools import partial

import pytest
import torch

import lamina
from lamina.fits import splat_samples
from lamina.paper.attention import Attention
from lamina.paper.attention_network import AttentionNetwork, NetworkConfig
from lamina.reconstruction.neural_cloud import NeuralCloud
from lamina.reconstruction.weights import shipped_fit_network
from lamina.surfaces.analytic import _torus_grid
from lamina.surfaces.icosphere import icosphere
from lamina.surfaces.splats import Splats
from schemes import of_scheme
from test_splats import discs

SCHEMES = pytest.mark.parametrize("scheme", ["trace", "coupled"])


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SENSORS = 0.9 * torch.nn.functional.normalize(random(40, 3), dim=1)  # where solutions are read, near all the shapes
PARAMETERS = torch.tensor([0.02, -0.03, 0.05, 0.9, 0.85, 0.8], dtype=torch.float64)  # a centre, and three axes


def f(x):
    return torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]


def fibonacci(n):
    i = torch.arange(n, dtype=torch.float64) + 0.5
    z, angle = 1 - 2 * i / n, 2.399963229728653 * i
    return torch.stack([(1 - z * z).sqrt() * angle.cos(), (1 - z * z).sqrt() * angle.sin(), z], 1)


def domain_of(surface, scheme, spacing, **options):
    return of_scheme(scheme, surface, spacing, order=2, origin=(0.0, 0.0, 0.0), **options)


def at_sensors(u):
    """A number that depends on the solution at fixed places."""
    return (random(len(SENSORS), seed=1).to(u.values) * u(SENSORS.to(u.values))).sum()


def seen(u):
    """The same, and at the points of the surface, which move."""
    return at_sensors(u) + (random(len(u.values), seed=2).to(u.values) * u.values).sum() / len(u.values) ** 0.5


def loss(make, scheme, spacing, p, see=seen, **options):
    return see(lamina.poisson(domain_of(make(p), scheme, spacing, **options), f, screening=1.0, tolerance=1e-13))


def slopes(function, p, step=1e-6, seed=3):
    """The derivative along a random direction from the gradient and from a difference, and the size of the gradient."""
    p = p.clone().requires_grad_()
    v = torch.nn.functional.normalize(random(*p.shape, seed=seed).reshape(-1), dim=0).reshape(p.shape)
    (g,) = torch.autograd.grad(function(p), p)
    above, below = (float(function((p + s * step * v).detach().requires_grad_()).detach()) for s in (1, -1))
    return float((g * v).sum()), (above - below) / (2 * step), float(g.norm())


def agrees(function, p, within=1e-5, **options):
    ours, theirs, size = slopes(function, p, **options)
    return 1e-3 < size < 1e3 and abs(ours - theirs) <= within * size


# Zero sets


def ellipsoid(p):
    return lamina.Implicit(
        lambda x: ((x - p[:3]) / p[3:]).square().sum(1).sqrt() - 1, [[-1.5] * 3, [1.5] * 3], samples=800
    )


def torus(p):
    def phi(x):
        x = x - p[:3]
        ring = (x[:, 0] ** 2 + x[:, 1] ** 2).sqrt() - 1.1 * p[3]
        return (ring**2 + x[:, 2] ** 2).sqrt() - 0.5 * p[4]

    return lamina.Implicit(phi, [[-1.8] * 3, [1.8] * 3], samples=800)


@pytest.mark.parametrize("make", [ellipsoid, torus])
@SCHEMES
def test_of_poisson_to_the_parameters_of_a_zero_set(make, scheme):
    spacing = 0.2 if scheme == "trace" else 0.15 if make is ellipsoid else 0.1
    assert agrees(partial(loss, make, scheme, spacing, see=at_sensors), PARAMETERS)


@SCHEMES
def test_of_heat_to_the_parameters_of_a_zero_set(scheme):
    def diffused(p):
        domain = domain_of(ellipsoid(p), scheme, 0.2 if scheme == "trace" else 0.15)
        return at_sensors(lamina.heat(domain, f, 0.1, steps=2, tolerance=1e-13))

    assert agrees(diffused, PARAMETERS)


def test_of_the_area_of_a_ball_is_that_of_its_radius():
    """The area 4 pi r^2 grows by 8 pi r."""
    r = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    domain = domain_of(lamina.Implicit(lambda x: x.norm(dim=1) - r, [[-1.2] * 3, [1.2] * 3], samples=500), "trace", 0.1)
    area = domain.quadrature.weights.sum()
    (slope,) = torch.autograd.grad(area, r)
    assert float(slope) == pytest.approx(8 * torch.pi * 0.9, rel=1e-2)


@SCHEMES
def test_the_points_of_a_zero_set_move_along_their_normals(scheme):
    """As the closest points of where they are do, to the first order."""
    p = PARAMETERS.clone().requires_grad_()
    u = lamina.poisson(domain_of(ellipsoid(p), scheme, 0.2), f, screening=1.0, tolerance=1e-13)
    w = random(len(u.values), seed=2)
    (own,) = torch.autograd.grad((w * u.values).sum(), p, retain_graph=True)
    (nearest,) = torch.autograd.grad((w * u(u.domain.points)).sum(), p)
    torch.testing.assert_close(own, nearest, rtol=1e-6, atol=1e-8)
    assert float(own.norm()) > 1e-2


def test_a_surface_that_is_shifted_along_with_the_right_hand_side_keeps_its_values():
    """The derivative of u.values, at the points of the surface, along a shift is small, though that of u(x) is not."""
    s = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    points, faces = icosphere(3)
    domain = domain_of(lamina.Mesh(points + s, faces), "trace", 0.15)
    u = lamina.poisson(domain, lambda x: f(x - s), screening=1.0, tolerance=1e-12)
    places = fibonacci(400)
    (own,) = torch.autograd.grad((points[:, 0] * u.values).mean(), s, retain_graph=True)
    (fixed,) = torch.autograd.grad((places[:, 0] * u(places)).mean() + u(places[:50]).mean(), s)
    assert float(own.norm()) < 0.1 * float(fixed.norm())


class Blob(torch.nn.Module):
    """A ball with a small network on top."""

    def __init__(self, dtype):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(3, 6), torch.nn.Linear(6, 1)
        with torch.no_grad():
            for seed, p in enumerate(self.parameters()):
                p.copy_(0.3 * random(*p.shape, seed=seed))
        self.to(dtype)

    def forward(self, x):
        return x.norm(dim=1) - 0.85 + 0.1 * self.outer(torch.tanh(2 * self.inner(x)))[:, 0]


def blob(module):
    return lamina.Implicit(module, [[-1.4] * 3, [1.4] * 3], samples=800)


def moved(module, v, step):
    other = copy.deepcopy(module)
    with torch.no_grad():
        for p, d in zip(other.parameters(), v, strict=True):
            p.add_(step * d)
    return other


def along(gradients, v):
    return float(sum((g * d).sum() for g, d in zip(gradients, v, strict=True) if g is not None))


def module_slopes(function, module, step=1e-6):
    """As `slopes`, along a random change of all weights of a module."""
    weights = list(module.parameters())
    v = [random(*p.shape, seed=20 + i).to(p) for i, p in enumerate(weights)]
    g = torch.autograd.grad(function(module), weights, allow_unused=True)
    above, below = (float(function(moved(module, v, s * step)).detach()) for s in (1, -1))
    sizes = [sum(float(x.square().sum()) for x in xs if x is not None) ** 0.5 for xs in (g, v)]
    return along(g, v), (above - below) / (2 * step), sizes[0] * sizes[1]


@SCHEMES
def test_to_the_weights_of_a_network(scheme):
    spacing = 0.2 if scheme == "trace" else 0.14
    ours, theirs, size = module_slopes(partial(loss, blob, scheme, spacing, see=at_sensors), Blob(torch.float64))
    assert size > 1e-2
    assert abs(ours - theirs) < 1e-5 * size


def test_to_the_weights_of_a_network_of_another_precision():
    """A module in float32, solved in float64: the gradients reach the weights that were given, as float32."""
    single = Blob(torch.float32)
    double = Blob(torch.float32).double()
    found = []
    for module in (single, double):
        value = loss(blob, "trace", 0.2, module, dtype=torch.float64)
        assert value.dtype == torch.float64
        value.backward()
        found.append([p.grad for p in module.parameters()])
    assert all(g is not None and g.dtype == torch.float32 for g in found[0])
    size = sum(float(b.square().sum()) for b in found[1]) ** 0.5
    for a, b in zip(*found, strict=True):
        assert float((a.double() - b).norm()) < 2e-3 * size


# Maps and meshes


def mapped(p):
    return lamina.SphericalMap(lambda s: s * (p[3:] + 0.1 * p[0] * torch.sin(3 * s[:, :1])) + p[:3], level=2)


def mesh(p):
    points, faces = icosphere(2)
    points = points * (1 + 0.1 * torch.sin(3 * points[:, :1]))
    return lamina.Mesh(points * p[3:] + p[:3], faces)


def torus_mesh(p):
    points, faces = _torus_grid(1.0, 0.45, 24, 12)
    return lamina.Mesh(points * p[3:] + p[:3], faces)


@SCHEMES
def test_to_the_parameters_of_a_spherical_map(scheme):
    assert agrees(partial(loss, mapped, scheme, 0.2 if scheme == "trace" else 0.15), PARAMETERS)


@pytest.mark.parametrize(
    ("make", "scheme", "spacing"), [(mesh, "trace", 0.2), (torus_mesh, "trace", 0.2), (mesh, "coupled", 0.18)]
)
def test_to_the_vertices_of_a_mesh_that_are_moved_together(make, scheme, spacing):
    assert agrees(partial(loss, make, scheme, spacing), PARAMETERS, within=3e-5)


def test_to_every_vertex_of_a_mesh():
    points, faces = icosphere(2)
    points = points * (1 + 0.1 * torch.sin(3 * points[:, :1])) * PARAMETERS[3:]
    assert agrees(partial(loss, lambda p: lamina.Mesh(p, faces), "trace", 0.2), points, within=1e-4)


# Clouds


def ellipsoid_cloud(moving, count, p):
    """Samples of an ellipsoid whose points, normals or both move with it."""
    x = fibonacci(count)

    def points(p):
        return x * p[3:] + p[:3]

    def normals(p):
        return torch.nn.functional.normalize(x / p[3:], dim=1)

    return lamina.PointCloud(
        points(PARAMETERS if moving == "normals" else p), normals(PARAMETERS if moving == "points" else p)
    )


@SCHEMES
@pytest.mark.parametrize("moving", ["points", "normals"])
def test_to_the_samples_of_a_cloud(scheme, moving):
    function = partial(
        loss, partial(ellipsoid_cloud, moving, 500), scheme, 0.2 if scheme == "trace" else 0.15, extension="jet"
    )
    assert agrees(function, PARAMETERS, within=1e-4)


def test_to_the_samples_of_a_cloud_with_the_neural_extension():
    function = partial(loss, partial(ellipsoid_cloud, "both", 300), "trace", 0.25, extension="neural")
    assert agrees(function, PARAMETERS, within=1e-4)


# Learned extensions


def test_to_the_weights_of_the_fitting_network():
    """Robust fits leave samples out, and a difference sees some of that: within a hundredth."""
    sphere = fibonacci(400)
    cloud = lamina.PointCloud(sphere + 0.01 * random(400, 3, seed=4), sphere)

    def function(network):
        return loss(lambda n: NeuralCloud(cloud, n), "trace", 0.25, network, extension="neural")

    network = copy.deepcopy(shipped_fit_network())  # the shipped one is shared by every cloud of the process
    ours, theirs, size = module_slopes(function, network.double().requires_grad_(), step=1e-7)
    assert size > 1e-3
    assert abs(ours - theirs) < 1e-2 * size


@pytest.mark.parametrize("scheme", ["shell", "coupled"])
def test_to_the_weights_of_the_attention_network(scheme):
    torch.manual_seed(0)
    network = AttentionNetwork(NetworkConfig(k=120, width=6, spacing=0.2, activation="relu")).double()

    def function(network):
        domain = lamina.paper.BandDomain(
            lamina.Sphere(level=2), 0.25, extension=Attention(network, tolerance=0.0), scheme=scheme
        )
        return seen(lamina.poisson(domain, f, screening=1.0, tolerance=1e-12))

    ours, theirs, size = module_slopes(function, network)
    assert size > 1e-3
    assert abs(ours - theirs) < 1e-3 * size


@pytest.mark.slow
def test_to_the_centres_of_splats(monkeypatch):
    """Against large steps of splats made anew, whose opaque surface is found anew as well: loosely."""
    for limit in ("MIN_SPLAT_SAMPLES", "MAX_SPLAT_SAMPLES"):  # a fifth of what is usual, and quicker
        monkeypatch.setattr(splat_samples, limit, 4000)
    centres, scales, rotations, opacities = discs(lamina.Sphere(level=3), 800)

    def function(p):
        surface = Splats(centres * p[3:] + p[:3], 0.85 * scales, rotations, opacities)
        domain = domain_of(surface, "trace", 0.2)
        return (random(40, seed=1) * lamina.poisson(domain, f, screening=1.0)(SENSORS)).sum()

    p = PARAMETERS.clone().requires_grad_()
    here = function(p)
    (g,) = torch.autograd.grad(here, p)
    with torch.no_grad():
        there = function(p + 0.04 * g / g.norm())
    assert float(there - here.detach()) / 0.04 == pytest.approx(float(g.norm()), rel=0.15)


# Without gradients


@pytest.mark.parametrize("make", [ellipsoid, mapped, mesh, partial(ellipsoid_cloud, "both", 300)])
def test_a_shape_that_wants_no_gradients_leaves_no_graph(make):
    u = lamina.poisson(domain_of(make(PARAMETERS), "trace", 0.25), f, screening=1.0)
    assert not u.values.requires_grad
    assert not u(SENSORS).requires_grad


@pytest.mark.parametrize("make", [ellipsoid, mapped, mesh, partial(ellipsoid_cloud, "both", 300)])
def test_where_gradients_are_off_a_shape_that_wants_them_gets_none(make):
    p = PARAMETERS.clone().requires_grad_()
    with torch.no_grad():
        u = lamina.poisson(domain_of(make(p), "trace", 0.25), f, screening=1.0)
        off = u(SENSORS)
    assert not u.values.requires_grad
    assert not off.requires_grad
    on = lamina.poisson(domain_of(make(p), "trace", 0.25), f, screening=1.0)
    assert on.values.requires_grad
    torch.testing.assert_close(off, on(SENSORS).detach(), rtol=1e-5, atol=1e-6)


def test_second_derivatives_with_respect_to_a_shape_are_refused():
    p = PARAMETERS.clone().requires_grad_()
    value = loss(ellipsoid, "trace", 0.25, p)
    with pytest.raises(lamina.InputError, match="Second derivatives with respect to a shape"):
        torch.autograd.grad(value, p, create_graph=True)


@pytest.mark.gpu
@pytest.mark.parametrize("make", [ellipsoid, mesh, partial(ellipsoid_cloud, "both", 500)])
def test_gradients_to_a_shape_on_the_gpu_are_those_on_the_cpu(make):
    found = []
    for device in ("cpu", "cuda"):
        p = PARAMETERS.clone().requires_grad_()
        u = lamina.poisson(domain_of(make(p), "trace", 0.2, device=device), f, screening=1.0, tolerance=1e-12)
        value = (random(40, seed=1).to(u.values) * u(SENSORS.to(device))).sum()
        found.append(torch.autograd.grad(value, p)[0].cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
