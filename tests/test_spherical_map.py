"""Images of the sphere: the two shapes of the paper, and closest points on them."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.spatial import KDTree
from torch import Tensor

from lamina.errors import InputError
from lamina.geometry.lattice import Lattice
from lamina.geometry.triangles import dot, triangle_normals
from lamina.surfaces.analytic import Ellipsoid
from lamina.surfaces.icosphere import icosphere
from lamina.surfaces.spherical_map import SphericalMap, spike, starfruit

ORIGIN = torch.tensor([0.013, 0.007, -0.021], dtype=torch.float64)
SHAPES = {"spike": spike(), "starfruit": starfruit()}
AXES = torch.tensor([1.0, 0.8, 0.6], dtype=torch.float64)


def radius_in_angles(name: str, s: Tensor) -> Tensor:
    th, ph = torch.acos(s[:, 2]), torch.atan2(s[:, 1], s[:, 0])
    if name == "spike":
        return 1 + 0.4 * th.sin() ** 2 * (6 * th).sin() * (6 * ph).sin()
    wave = (5 * ph + 2 * th).sin() ** 2
    return 1 + 0.5 * (th.cos() ** 2 + 0.1 * (th * (math.pi - th)) ** 2 * wave)


@pytest.mark.parametrize("name", SHAPES)
def test_the_cartesian_forms_are_the_formulas_in_angles(name):
    s, _ = icosphere(4)
    assert (SHAPES[name].fn(s).norm(dim=1) - radius_in_angles(name, s)).abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SHAPES)
def test_two_derivatives_are_finite_at_and_around_the_poles(name, dtype):
    rho = torch.logspace(-18, -1, 100, dtype=dtype)
    rho[0] = 0
    z = (1 - rho**2).sqrt()
    s = torch.cat([torch.stack([0.8 * rho, -0.6 * rho, sign * z], 1) for sign in (1, -1)]).requires_grad_()
    (g,) = torch.autograd.grad(SHAPES[name].fn(s).sum(), s, create_graph=True)
    (h,) = torch.autograd.grad(g.square().sum(), s)
    assert g.abs().max() < 10
    assert h.abs().max() < 1000


@pytest.mark.parametrize("name", SHAPES)
def test_feet_are_stationary_and_the_nearest_there_are(name):
    surface = SHAPES[name]
    lattice = Lattice(ORIGIN, 0.1)
    found = surface.nodes_near(lattice, 0.2)
    x, y = lattice.position(found.ijk), found.feet.points
    across = torch.linalg.cross(x - y, found.feet.normals).norm(dim=1)
    assert across.max() < 1e-11
    assert across.median() < 1e-15
    vertices, _ = icosphere(7)
    brute = torch.from_numpy(KDTree(surface.fn(vertices).numpy()).query(x.numpy())[0])
    excess = (x - y).norm(dim=1) - brute
    # A few nodes beside the medial axis have a second foot that is nearer by the square of the spacing.
    assert (excess < 1e-9).double().mean() > 0.998
    assert excess.max() < 5e-3


@pytest.mark.parametrize("name", SHAPES)
def test_nodes_near_are_those_within_the_radius(name):
    surface = SHAPES[name]
    lattice = Lattice(ORIGIN, 0.15)
    grid = torch.cartesian_prod(*[torch.arange(-14, 15)] * 3)
    x = lattice.position(grid)
    vertices, _ = icosphere(7)
    distance = torch.from_numpy(KDTree(surface.fn(vertices).numpy()).query(x.numpy())[0])
    found = {tuple(n) for n in surface.nodes_near(lattice, 0.3).ijk.tolist()}
    assert found >= {tuple(n) for n in grid[distance < 0.295].tolist()}
    assert found <= {tuple(n) for n in grid[distance < 0.305].tolist()}


@pytest.mark.parametrize("spacing", [0.2, 0.4])
@pytest.mark.parametrize("name", SHAPES)
def test_coarse_lattices_reach_the_medial_axis_without_harm(name, spacing):
    found = SHAPES[name].nodes_near(Lattice(torch.zeros(3, dtype=torch.float64), spacing), 4 * spacing)
    direction = found.feet.points / found.feet.points.norm(dim=1, keepdim=True)
    assert (SHAPES[name].fn(direction) - found.feet.points).abs().max() < 1e-12
    assert (found.feet.normals.norm(dim=1) - 1).abs().max() < 1e-12


def test_an_ellipsoid_as_a_map_agrees_with_its_equation():
    surface, exact = SphericalMap(lambda s: AXES.to(s) * s), Ellipsoid(1, 0.8, 0.6)
    feet = exact.sample(2000, seed=1)
    offset = torch.linspace(-0.2, 0.4, 2000, dtype=torch.float64)[:, None]
    x = feet.points + offset * feet.normals
    found, expected = surface.closest_points(x), exact.closest_points(x)
    assert (found.points - expected.points).abs().max() < 1e-12
    assert (found.normals - expected.normals).abs().max() < 1e-11
    assert not found.points.requires_grad


def test_single_precision_is_accurate_to_single_precision():
    surface = SHAPES["spike"]
    x = 1.01 * surface.points[::7]
    expected, found = surface.closest_points(x), surface.to(dtype=torch.float32).closest_points(x.float())
    assert found.points.dtype == torch.float32
    assert (found.points - expected.points).norm(dim=1).max() < 2e-5


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_normals_point_outwards_with_the_faces(sign):
    surface = SphericalMap(lambda s: sign * AXES.to(s) * s, level=4)
    assert dot(surface.normals, surface.points).min() > 0
    assert surface.faces is not None
    assert dot(triangle_normals(surface.points[surface.faces]), surface.points[surface.faces[:, 0]]).min() > 0


def test_samples_carry_the_area():
    assert len(spike(level=3).points) == 642
    surface = SphericalMap(lambda s: 2 * s)
    assert len(surface.points) == 10242
    assert float(surface.areas.sum()) == pytest.approx(16 * math.pi, rel=1e-3)
    assert surface.component_count == 1


@pytest.mark.parametrize(
    ("fn", "level", "message"),
    [
        (None, 5, "fn must be a function"),
        (lambda s: s[:, 0], 3, "fn must map"),
        (lambda s: s / s[:, 2:], 3, "not finite"),
        (lambda s: s, -1, "level must be"),
    ],
)
def test_bad_input_is_refused_in_words(fn, level, message):
    with pytest.raises(InputError, match=message):
        SphericalMap(fn, level=level)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SHAPES)
def test_the_gpu_gives_what_the_cpu_gives(name):
    surface = SHAPES[name]
    on_gpu = surface.to("cuda")
    x = 1.02 * surface.points
    cpu, gpu = surface.closest_points(x), on_gpu.closest_points(x.cuda())
    assert (cpu.points - gpu.points.cpu()).abs().max() < 1e-12
    assert (cpu.normals - gpu.normals.cpu()).abs().max() < 1e-11
    near = on_gpu.nodes_near(Lattice(ORIGIN.cuda(), 0.1), 0.2)
    assert len(near.ijk) == len(surface.nodes_near(Lattice(ORIGIN, 0.1), 0.2).ijk)
