"""Zero sets in cut cells: exact areas to fourth order, whatever function vanishes there; creases, rims, thin parts."""

import math
from functools import cache

import pytest
import torch
from scipy.spatial import KDTree
from torch import Tensor

import lamina
from lamina.gallery import Problem, sphere_poisson, torus_poisson
from lamina.geometry.lattice import Lattice
from lamina.grid.closest_point_cut import cut_closest_points
from lamina.grid.cut_surface import CutSurface
from lamina.grid.level_cut import cut_level_set, level_pieces
from lamina.metrics import errors
from lamina.spaces.operators import CutCellOperators
from lamina.surfaces.icosphere import icosphere
from lamina.surfaces.implicit import Implicit
from lamina.surfaces.zero_samples import sample_zero_set

BOX = [[-1.6, -1.55, -1.5], [1.5, 1.5, 1.45]]
ORIGIN = torch.tensor([0.013, 0.007, -0.021], dtype=torch.float64)


def norm(p: Tensor) -> Tensor:
    return p.norm(dim=1)


def quadric(p: Tensor) -> Tensor:
    return p.square().sum(1) - 1


def torus(p: Tensor) -> Tensor:
    return ((p[:, :2].norm(dim=1) - 1) ** 2 + p[:, 2] ** 2).sqrt() - 0.4


def torus_quartic(p: Tensor) -> Tensor:
    return (p.square().sum(1) + 0.84) ** 2 - 4 * p[:, :2].square().sum(1)


def ball(p: Tensor, x: float, radius: float) -> Tensor:
    return (p - torch.tensor([x, 0, 0], dtype=torch.float64)).norm(dim=1) - radius


def shell(thickness: float):
    return lambda p: (norm(p) - 1).abs() - thickness / 2


def shell_area(thickness: float) -> float:
    return 4 * math.pi * ((1 + thickness / 2) ** 2 + (1 - thickness / 2) ** 2)


SPHERES = {
    "distance": lambda p: norm(p) - 1,
    "quadric": quadric,
    "sinh": lambda p: torch.sinh(4 * quadric(p)),
    "flat cubic": lambda p: 0.03 * (quadric(p) + quadric(p) ** 3),
    "occupancy": lambda p: torch.sigmoid(-500 * (norm(p) - 1)) - 0.5,
}
TORI = {"distance": torus, "quartic": torus_quartic, "sinh": lambda p: torch.sinh(3 * torus(p))}
SPHERE, TORUS = 4 * math.pi, 1.6 * math.pi**2


@cache
def surface(phi, samples: int = 2000) -> Implicit:
    return Implicit(phi, BOX, samples=samples)


def cut(phi, spacing: float) -> CutSurface:
    return cut_level_set(surface(phi), Lattice(ORIGIN, spacing))


def area_errors(phi, exact: float, *spacings: float) -> list[float]:
    return [abs(cut(phi, h).quadrature.area / exact - 1) for h in spacings]


# Smooth surfaces


@pytest.mark.parametrize("name", SPHERES)
def test_the_area_of_the_sphere_whatever_vanishes_there(name):
    coarse, fine = area_errors(SPHERES[name], SPHERE, 0.1, 0.05)
    assert fine < 1e-7
    assert math.log2(coarse / fine) > 3.7


@pytest.mark.parametrize("name", TORI)
def test_the_area_of_the_torus_whatever_vanishes_there(name):
    coarse, fine = area_errors(TORI[name], TORUS, 0.1, 0.05)
    assert fine < 1e-7
    assert math.log2(coarse / fine) > 3.7


def test_quadrature_points_and_normals_are_those_of_the_surface():
    quadrature = cut(quadric, 0.05).quadrature
    assert (norm(quadrature.points) - 1).abs().max() < 1e-5
    assert ((quadrature.normals - quadrature.points).norm(dim=1)).max() < 2e-3
    assert quadrature.integral(lambda x: x[:, 2] ** 4) == pytest.approx(SPHERE / 5, rel=1e-6)
    assert quadrature.weights.min() > 0


def test_a_change_of_sign_turns_the_normals_and_nothing_else():
    one, other = (level_pieces(surface(phi), Lattice(ORIGIN, 0.1), 1) for phi in (quadric, lambda p: -quadric(p)))
    assert one is not None
    assert other is not None
    assert float((one.outward * one.six_nodes[:, 0]).sum(1).min()) > 0
    assert float((other.outward * other.six_nodes[:, 0]).sum(1).max()) < 0
    assert len(one.six_nodes) == len(other.six_nodes)


@pytest.mark.parametrize(
    ("problem", "phi"),
    [(sphere_poisson(), quadric), (sphere_poisson(), SPHERES["occupancy"]), (torus_poisson(), torus_quartic)],
    ids=["sphere", "occupancy", "torus"],
)
def test_poisson_is_second_order(problem: Problem, phi):
    found = []
    for h in (0.1, 0.05):
        domain = lamina.Domain(surface(phi), h, order=2)
        u = lamina.poisson(domain, problem.rhs, tolerance=1e-9)
        found.append(errors(u.values, problem.solution(domain.points), remove_mean=True))
    assert found[1].nmae < 3e-4
    assert found[1].nmaxe < 2e-3
    assert math.log2(found[0].nmae / found[1].nmae) > 1.6
    assert math.log2(found[0].nmaxe / found[1].nmaxe) > 1.6


# Creases


def turned_cube(p: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    axes = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))[0]
    return (p @ axes).abs().amax(1) - 0.8


@pytest.mark.parametrize(
    ("phi", "exact", "most"),
    [
        (lambda p: p.abs().amax(1) - 0.8, 6 * 1.6**2, 4e-3),
        (turned_cube, 6 * 1.6**2, 4e-3),
        (lambda p: torch.maximum(ball(p, -0.5, 1), ball(p, 0.5, 1)), 2 * math.pi, 4e-4),  # two caps of height 1/2
        (lambda p: torch.minimum(ball(p, -0.5, 0.9), ball(p, 0.5, 0.9)), 4 * math.pi * 0.9 * 1.4, 4e-4),
    ],
    ids=["cube", "turned cube", "lens", "union"],
)
def test_areas_of_surfaces_with_creases(phi, exact, most):
    """Cells that a crease runs through cut it off, an error of first order in h, made small by splitting the pieces
    and, where there are many creases in large cells, by smaller pieces."""
    coarse, middle, fine = area_errors(phi, exact, 0.1, 0.05, 0.025)
    assert middle < most
    assert fine < max(0.6 * coarse, 0.3 * most)


def test_faces_between_creases_are_exact():
    """Only the pieces near the edges of a cube deviate: the others lie in its faces."""
    pieces = level_pieces(surface(turned_cube), Lattice(ORIGIN, 0.05), 1)
    assert pieces is not None
    a, b, c = pieces.six_nodes[:, :3].unbind(1)
    normal = torch.linalg.cross(b - a, c - a)
    flat = turned_cube(pieces.six_nodes.reshape(-1, 3)).abs().reshape(-1, 6).amax(1) < 1e-12
    assert float(normal.norm(dim=1)[flat].sum() / normal.norm(dim=1).sum()) > 0.8


# Open at the box


@pytest.mark.parametrize(
    ("box", "exact"),
    [
        ([[-1.2, -1.2, -1.2], [1.2, 1.2, 0.3]], 2 * math.pi * 1.3),  # a cap: 2 pi times its height
        ([[-0.8] * 3, [0.8] * 3], 4 * math.pi - 6 * 2 * math.pi * 0.2),
        ([[0.0, 0, 0], [2.0, 2, 2]], math.pi / 2),  # an octant: rims meet in corners
    ],
    ids=["one side", "six sides", "octant"],
)
def test_a_sphere_cut_by_its_box(box, exact):
    """The area against that of its caps, to fourth order; rims on the sides of the box, and on the sphere."""
    opened = Implicit(quadric, box, samples=2000)
    found = []
    for h in (0.1, 0.05, 0.025):
        cut_here = cut_level_set(opened, Lattice(ORIGIN, h))
        found.append(abs(cut_here.quadrature.area / exact - 1))
        pieces = level_pieces(opened, Lattice(ORIGIN, h), 1)
        assert pieces is not None
        corners, middles = pieces.six_nodes[:, :3], pieces.six_nodes[:, 3:]
        once = torch.bincount(pieces.edge.reshape(-1))[pieces.edge] == 1
        sides = torch.stack([middles - opened.box[0], middles - opened.box[1]]).abs().amin((0, -1))
        assert once.any()
        assert sides[once].max() == 0
        assert (norm(middles[once]) - 1).abs().max() < 1e-6
        assert bool((corners >= opened.box[0]).all())
        assert bool((corners <= opened.box[1]).all())
    assert found[1] < 2e-6
    assert math.log2(found[0] / found[2]) > 6  # over two halvings


def test_no_flux_through_the_rim_of_a_half_sphere():
    """u = xy has no derivative across z = 0: the solution on the half sphere is that of the whole."""
    half = Implicit(quadric, [[-1.2, -1.2, 0.0], [1.2, 1.2, 1.2]], samples=2000)
    found = []
    for h in (0.1, 0.05):
        domain = lamina.Domain(half, h, order=2)
        u = lamina.poisson(domain, lambda x: -6 * x[:, 0] * x[:, 1], tolerance=1e-9)
        found.append(errors(u.values, domain.points[:, 0] * domain.points[:, 1], remove_mean=True).nmae)
    assert found[1] < 3e-4
    assert math.log2(found[0] / found[1]) > 1.6


# Thin parts


def two_solutions(x: Tensor) -> Tensor:
    """Harmonics of degree 2 on the outer and of degree 1 on the inner sphere."""
    n = x / norm(x)[:, None]
    return torch.where(norm(x) > 1, n[:, 0] * n[:, 1], 2 * n[:, 2])


def two_sources(x: Tensor) -> Tensor:
    return torch.where(norm(x) > 1, -6, -2) / x.square().sum(1) * two_solutions(x)


@pytest.mark.slow
@pytest.mark.parametrize("cells", [0.8, 0.5])
def test_the_sheets_of_a_shell_thinner_than_a_cell_are_independent(cells):
    """Each has its own exact solution, and both their areas."""
    h = 0.1
    domain = lamina.Domain(Implicit(shell(cells * h), BOX, samples=2000), h, order=2)
    assert isinstance(domain.scheme, CutCellOperators)
    assert domain.component_count == domain.scheme.component_count == 2
    assert domain.quadrature.area == pytest.approx(shell_area(cells * h), rel=1e-7)
    u = lamina.poisson(domain, two_sources, tolerance=1e-9)
    outer = norm(domain.points) > 1
    for sheet in (outer, ~outer):
        found = errors(u.values[sheet], two_solutions(domain.points[sheet]), remove_mean=True)
        assert found.nmae < 1e-3
        assert found.nmaxe < 4e-3


@pytest.mark.parametrize("cells", [0.8, 0.5])
def test_a_shell_of_points_thinner_than_a_cell(cells):
    h, (n, _) = 0.1, icosphere(4)
    points = torch.cat([(1 + cells * h / 2) * n, (1 - cells * h / 2) * n])
    cloud = lamina.PointCloud(points, torch.cat([n, -n]))
    found = cut_closest_points(cloud, Lattice(ORIGIN, h))
    assert int(found.elements.component.max()) == 1
    assert found.quadrature.area == pytest.approx(shell_area(cells * h), rel=1e-4)


def oblate_area(c: float) -> float:
    """Of the ellipsoid with axes 1, 1, c < 1."""
    e = math.sqrt(1 - c * c)
    return 2 * math.pi * (1 + c * c / e * math.atanh(e))


@pytest.mark.slow
def test_a_lens_of_closest_points_thinner_at_its_rim_than_a_cell():
    domain = lamina.Domain(lamina.Ellipsoid(1, 1, 0.1), 0.05, order=2)
    assert domain.quadrature.area == pytest.approx(oblate_area(0.1), rel=1e-4)


# Samples


@pytest.mark.parametrize(
    ("phi", "exact"),
    [
        (lambda p: torch.minimum(ball(p, -0.8, 0.6), ball(p, 0.75, 0.5)), [1.44 * math.pi, math.pi]),
        (shell(0.2), [4 * math.pi * 0.81, 4 * math.pi * 1.21]),
    ],
    ids=["two balls", "shell"],
)
def test_samples_are_even_on_every_component_and_their_areas_are_its_area(phi, exact):
    found = sample_zero_set(phi, torch.tensor(BOX, dtype=torch.float64), 2000, 0)
    assert int(found.component.max()) == 1
    assert not found.open
    areas = [float(found.areas[found.component == c].sum()) for c in (0, 1)]
    assert sorted(areas) == pytest.approx(sorted(exact), rel=5e-3)
    assert phi(found.points).abs().max() < 1e-14
    spacing = math.sqrt(sum(exact) / len(found.points))
    for c in (0, 1):
        p = found.points[found.component == c].numpy()
        distance = KDTree(p).query(p, k=2)[0][:, 1] / spacing
        assert distance.min() > 0.6
        assert distance.max() < 1.6


def test_samples_of_an_open_surface_stay_in_the_box_and_reach_its_sides():
    box = torch.tensor([[-0.8] * 3, [0.8] * 3], dtype=torch.float64)
    found = sample_zero_set(quadric, box, 2000, 0)
    assert found.open
    assert bool(((found.points >= box[0]) & (found.points <= box[1])).all())
    assert float(found.points.abs().amax()) > 0.78
    assert float(found.areas.sum()) == pytest.approx(4 * math.pi - 6 * 2 * math.pi * 0.2, rel=1e-2)


@pytest.mark.slow
def test_sheets_too_close_for_the_finest_pieces_are_said_to_be():
    shell = surface(lambda p: (p.norm(dim=1) - 1).abs() - 0.01)
    assert "too thin" in " ".join(lamina.Domain(shell, 0.1, order=2).warnings)
    assert lamina.Domain(surface(lambda p: p.norm(dim=1) - 1), 0.1, order=2).warnings == []
