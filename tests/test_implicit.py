"""Zero sets: samples on them, their components, and closest points by Newton's method."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from scipy.spatial import KDTree
from torch import Tensor, nn

from lamina.domain import Domain
from lamina.errors import InputError
from lamina.geometry.lattice import Lattice
from lamina.geometry.triangles import triangle_normals
from lamina.search.nearest import Nearest
from lamina.surfaces.analytic import Ellipsoid, Sphere, Torus
from lamina.surfaces.base import Surface
from lamina.surfaces.icosphere import icosphere
from lamina.surfaces.implicit import Implicit

BOX = [[-1.6, -1.5, -1.5], [1.5, 1.5, 1.4]]
LATTICE = Lattice(torch.tensor([0.013, 0.007, -0.021], dtype=torch.float64), 0.1)


def sphere(p: Tensor) -> Tensor:
    return p.norm(dim=1) - 1


def quadric(p: Tensor) -> Tensor:
    return (p * p).sum(1) - 1


def torus(p: Tensor) -> Tensor:
    return ((p[:, :2].norm(dim=1) - 1) ** 2 + p[:, 2] ** 2).sqrt() - 0.4


def ellipsoid(p: Tensor) -> Tensor:
    return ((p / torch.tensor([1.0, 0.8, 0.6], dtype=torch.float64).to(p)) ** 2).sum(1) - 1


def ball(p: Tensor, x: float, radius: float) -> Tensor:
    return (p - torch.tensor([x, 0.0, 0.0], dtype=torch.float64).to(p)).norm(dim=1) - radius


def cube(p: Tensor) -> Tensor:
    return p.abs().amax(1) - 0.8


class Gauge(nn.Module):
    """A one-layer ReLU network near |x| - 1: its zero set is a convex polyhedron of some 1000 faces."""

    def __init__(self) -> None:
        super().__init__()
        directions, _ = icosphere(1)
        self.inner = nn.Linear(3, len(directions), bias=False)
        self.outer = nn.Linear(len(directions), 1)
        with torch.no_grad():
            self.inner.weight.copy_(directions)
            self.outer.weight.fill_(4 / len(directions))
            self.outer.bias.fill_(-1.0)

    def forward(self, p: Tensor) -> Tensor:
        return self.outer(torch.relu(self.inner(p)))


def near(surface: Surface, count: int, reach: float) -> Tensor:
    """Random points within reach of a surface."""
    feet = surface.sample(count, seed=1)
    generator = torch.Generator().manual_seed(2)
    offset = reach * (2 * torch.rand(count, 1, generator=generator, dtype=torch.float64) - 1)
    return feet.points + offset * feet.normals


@pytest.mark.parametrize(
    ("phi", "exact"),
    [
        (sphere, Sphere()),
        (quadric, Sphere()),
        (lambda p: 1000 * quadric(p)[:, None], Sphere()),
        (lambda p: 0.03 * (quadric(p) + quadric(p) ** 3), Sphere()),
        (lambda p: torch.tanh(5 * quadric(p)), Sphere()),
        (torus, Torus(1, 0.4)),
        (ellipsoid, Ellipsoid(1, 0.8, 0.6)),
        (lambda p: torch.sinh(4 * ellipsoid(p)), Ellipsoid(1, 0.8, 0.6)),
    ],
    ids=["distance", "quadric", "steep", "flat cubic", "tanh", "torus", "ellipsoid", "sinh"],
)
def test_closest_points_do_not_depend_on_which_function_vanishes_there(phi, exact):
    surface = Implicit(phi, BOX, samples=2000)
    x = near(exact, 1000, 0.25)
    found, expected = surface.closest_points(x), exact.closest_points(x)
    assert (found.points - expected.points).abs().max() < 1e-12
    assert (found.normals - expected.normals).abs().max() < 1e-11
    assert not found.points.requires_grad


@pytest.mark.parametrize(("phi", "area"), [(torus, 1.6 * math.pi**2), (quadric, 4 * math.pi), (cube, 6 * 1.6**2)])
def test_samples_are_on_the_surface_evenly_spread_and_share_its_area(phi, area):
    surface = Implicit(phi, BOX, samples=3000)
    assert phi(surface.points).abs().max() < 1e-14
    assert abs(len(surface.points) - 3000) < 90
    assert float(surface.areas.sum()) == pytest.approx(area, rel=0.02 if phi is cube else 0.001)
    assert surface.areas.min() > 0
    p = surface.points.numpy()
    distance = KDTree(p).query(p, k=2)[0][:, 1] / math.sqrt(area / 3000)
    # Random points would come arbitrarily close to each other, with 0.5 on average.
    assert distance.min() > 0.7
    assert distance.mean() > 0.8
    assert distance.max() < 1.5
    assert surface.component_count == 1
    assert surface.notes == []


def test_every_point_of_the_surface_is_within_the_covering_radius_of_a_sample():
    surface = Implicit(torus, BOX, samples=2000)
    gap = KDTree(surface.points.numpy()).query(Torus(1, 0.4).sample(20000).points.numpy())[0].max()
    assert gap < surface.covering_radius < 3 * gap


def test_random_samples_are_uniform_by_area():
    feet = Implicit(quadric, BOX, samples=1000).sample(20000, seed=3)
    assert quadric(feet.points).abs().max() < 1e-13
    histogram = np.histogram(feet.points[:, 2].numpy(), 10, (-1, 1))[0]  # Archimedes: z is uniform
    assert np.abs(histogram / 2000 - 1).max() < 0.1


def test_the_seed_decides_the_samples():
    first, again, other = (Implicit(quadric, BOX, samples=500, seed=s).points for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first[:50], other[:50])


def test_components_are_found_however_small_and_near():
    balls = ((-0.5, 0.5), (0.36, 0.3), (1.2, 0.02))  # a gap of 0.06; smaller than the first cells searched

    surface = Implicit(lambda p: torch.stack([ball(p, *b) for b in balls]).amin(0), BOX, samples=5000)
    assert surface.component_count == 3
    on = torch.stack([ball(surface.points, *b).abs() for b in balls]).argmin(0)
    assert len(torch.unique(3 * on + surface.component)) == 3


def test_opposite_sheets_are_not_linked():
    shell = Implicit(lambda p: sphere(p).abs() - 0.04, BOX, samples=4000)
    radius = shell.points.norm(dim=1)
    assert shell.component_count == 2
    assert [len(torch.unique(radius[shell.component == c] > 1)) for c in (0, 1)] == [1, 1]


def test_nodes_near_several_components_have_a_foot_on_each():
    surface = Implicit(lambda p: ball(p, -0.52, 0.5) * ball(p, 0.52, 0.5), BOX, samples=1000)
    near_nodes = surface.nodes_near(LATTICE, 0.3)
    x, feet = LATTICE.position(near_nodes.ijk), near_nodes.feet
    expected = 0
    for c in range(2):
        sign = surface.points[surface.component == c, 0].mean().sign()
        centre = torch.tensor([0.52, 0.0, 0.0], dtype=torch.float64) * sign
        mine = feet.component == c
        r = x[mine] - centre
        assert (feet.points[mine] - centre - 0.5 * r / r.norm(dim=1, keepdim=True)).abs().max() < 1e-12
        grid = LATTICE.position(torch.cartesian_prod(*[torch.arange(-20, 21)] * 3))
        expected += int((((grid - centre).norm(dim=1) - 0.5).abs() <= 0.3).sum())
    assert len(near_nodes.ijk) == expected


@pytest.mark.parametrize("spacing", [0.2, 0.4, 0.8])
def test_coarse_lattices_reach_the_medial_axis_without_harm(spacing):
    surface = Implicit(torus, BOX, samples=1000)
    lattice = Lattice(torch.zeros(3, dtype=torch.float64), spacing)
    found = surface.nodes_near(lattice, 4 * spacing)
    x = lattice.position(found.ijk)
    assert bool(torch.isfinite(found.feet.points).all())
    assert torus(found.feet.points).abs().max() < 1e-12
    inside = (torus(x).abs() < 0.3) & (x[:, :2].norm(dim=1) > 0.2)  # away from the axes of the torus
    exact = Torus(1, 0.4).closest_points(x[inside]).points
    assert (found.feet.points[inside] - exact).abs().max() < 1e-12


def test_feet_on_the_faces_and_edges_of_a_polyhedron_are_exact():
    vertices, faces = icosphere(1)
    corners = vertices[faces]
    n = triangle_normals(corners)
    surface = Implicit(lambda p: (p @ n.T - (n * corners[:, 0]).sum(1)).amax(1), BOX, samples=3000)
    x = near(Sphere(1.15), 2000, 0.15)
    _, exact = Nearest(corners).to_points(x)
    found = surface.closest_points(x).points
    error = (found - exact).norm(dim=1)
    assert surface.phi(found).abs().max() < 1e-13
    assert (error < 1e-12).double().mean() > 0.95  # the rest belongs to the 42 corners
    assert ((x - found).norm(dim=1) - (x - exact).norm(dim=1)).max() < 2e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relu_networks_give_feasible_feet_no_farther_than_the_nearest_sample(dtype):
    net = Gauge().to(dtype).requires_grad_(False)
    surface = Implicit(net, BOX, samples=2000)
    assert surface.points.dtype == dtype
    x = near(Sphere(), 1000, 0.3).to(dtype)
    feet = surface.closest_points(x)
    slack = 100 * torch.finfo(dtype).eps
    start, _ = Nearest(surface.points).to_points(x)
    assert not feet.points.requires_grad
    assert net(feet.points).abs().max() < slack
    assert ((x - feet.points).norm(dim=1) - (x - surface.points[start]).norm(dim=1)).max() < slack


def test_moving_a_surface_moves_a_copy_of_its_network():
    net = Gauge()
    before = copy.deepcopy(net.state_dict())
    moved = Implicit(net, BOX, samples=500).to(dtype=torch.float64)
    assert isinstance(moved, Implicit)
    assert moved.closest_points(moved.points[:5]).points.dtype == torch.float64
    assert all(torch.equal(v, before[k]) and v.dtype == torch.float32 for k, v in net.state_dict().items())


def test_single_precision_is_accurate_to_single_precision():
    surface = Implicit(torus, torch.tensor(BOX), samples=2000)
    x = near(Torus(1, 0.4), 1000, 0.25)
    found = surface.closest_points(x.float())
    expected = Torus(1, 0.4).closest_points(x)
    assert found.points.dtype == torch.float32
    assert (found.points - expected.points).abs().max() < 3e-6


def test_a_surface_cut_by_its_box_is_open_and_its_feet_stay_inside():
    surface = Implicit(quadric, [[-1.2, -1.2, -1.2], [1.2, 1.2, 0.3]], samples=2000)
    assert "open" in surface.notes[0]
    x = near(Sphere(), 1000, 0.25)
    found = surface.closest_points(x).points
    expected = x / x.norm(dim=1, keepdim=True)
    above = expected[:, 2] > 0.3
    circle = x[:, :2] / x[:, :2].norm(dim=1, keepdim=True) * math.sqrt(1 - 0.09)
    expected[above] = torch.cat([circle, torch.full_like(circle[:, :1], 0.3)], 1)[above]
    steep = x[:, :2].norm(dim=1) > 0.3  # elsewhere the whole circle is nearly equally far
    assert found[:, 2].max() <= 0.3
    assert (found - expected)[above & steep].abs().max() < 1e-6
    assert (found - expected)[~above].abs().max() < 1e-12


@pytest.mark.parametrize(
    ("phi", "bounds", "message"),
    [
        (3, BOX, "phi must be a function"),
        (sphere, [1, 2, 3], "bounds must be"),
        (sphere, [[1, 0, 0], [0, 1, 1]], "bounds must be"),
        (sphere, [[0, 0, 0], [1, 1, math.nan]], "bounds must be"),
        (lambda p: p, BOX, "phi must map points"),
        (lambda p: sphere(p.detach()), BOX, "differentiable"),
        (lambda p: torch.log(p[:, 0]), BOX, "not finite"),
        (lambda p: sphere(p) + 3, BOX, "phi is positive"),
        (lambda p: sphere(p) - 9, BOX, "phi is negative"),
        (lambda p: sphere(p).abs(), BOX, "phi is positive"),
    ],
)
def test_bad_input_is_refused_in_words(phi, bounds, message):
    with pytest.raises(InputError, match=message):
        Implicit(phi, bounds)


@pytest.mark.slow
def test_smooth_formulas_and_networks_are_solved_at_order_3_and_creased_ones_at_order_2():
    def order(phi) -> int:
        return Domain(Implicit(phi, BOX, samples=1000), 0.15).order

    assert order(Gauge().double()) == 3
    assert order(sphere) == 3
    assert order(lambda p: p.abs().amax(1) - 0.9) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("phi", [torus, Gauge().double()], ids=["torus", "network"])
def test_the_gpu_gives_what_the_cpu_gives(phi):
    surface = Implicit(phi, BOX, samples=2000)
    on_gpu = surface.to("cuda")
    cpu, gpu = surface.nodes_near(LATTICE, 0.3), on_gpu.nodes_near(Lattice(LATTICE.origin.cuda(), 0.1), 0.3)
    order = [torch.argsort(n.ijk.cpu() @ torch.tensor([10000, 100, 1])) for n in (cpu, gpu)]
    assert torch.equal(cpu.ijk[order[0]], gpu.ijk.cpu()[order[1]])
    assert (cpu.feet.points[order[0]] - gpu.feet.points.cpu()[order[1]]).abs().median() < 1e-13
    again = Implicit(on_gpu.phi, torch.tensor(BOX, dtype=torch.float64, device="cuda"), samples=2000)
    assert again.points.is_cuda
    assert float(again.areas.sum()) == pytest.approx(float(surface.areas.sum()), rel=1e-3)
