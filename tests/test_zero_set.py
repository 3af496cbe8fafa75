"""The search for a zero set: roots on segments, crossed cells all found, work in proportion to the surface."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from lamina.geometry.lattice import OCTANTS, Lattice
from lamina.surfaces.zero_set import CrossedCells, connected_crossed_cells, crossed_cells, crosses_sides, project, roots

BOX = torch.tensor([[-1.5, -1.6, -1.5], [1.5, 1.5, 1.4]], dtype=torch.float64)


def distance_to(centre: tuple[float, float, float], radius: float):
    return lambda p: (p - torch.tensor(centre, dtype=torch.float64)).norm(dim=1) - radius


def torus(p: Tensor) -> Tensor:
    return ((p[:, :2].norm(dim=1) - 1) ** 2 + p[:, 2] ** 2).sqrt() - 0.4


def two_balls(p: Tensor) -> Tensor:
    return torch.minimum(distance_to((-0.7, 0, 0), 0.5)(p), distance_to((0.6, 0.1, 0), 0.3)(p))


def shell(p: Tensor) -> Tensor:
    return distance_to((0, 0, 0), 1.0)(p).abs() - 0.05


def gyroid(p: Tensor) -> Tensor:
    """Reaches the sides of the box."""
    x, y, z = (3 * p).unbind(1)
    return torch.sin(x) * torch.cos(y) + torch.sin(y) * torch.cos(z) + torch.sin(z) * torch.cos(x)


SHAPES = {
    "torus": torus,
    "two balls": two_balls,
    "thin shell": shell,
    "a ball smaller than the first cells": distance_to((0.31, -0.47, 0.2), 0.03),
    "gyroid": gyroid,
}


# Roots


COUNT = 300
SCALARS = {
    "line": lambda t: 3 * t,
    "parabola": lambda t: t + 0.3 * t * t,
    "sinh": lambda t: torch.sinh(4 * t),
    "exponential": lambda t: torch.exp(5 * t) - 1,
    "flat cubic": lambda t: t + 9 * t**3,
    "step": lambda t: torch.tanh(1000 * t),
    "probability": lambda t: torch.sigmoid(300 * t) - 0.5,
    "jump": torch.sign,
    "kink": lambda t: torch.where(t < 0, t, 10 * t),
    "sharp kink": lambda t: torch.where(t < 0, 0.01 * t, t),
    "oscillation": lambda t: t + 0.12 * torch.sin(8 * t),
}


def solved(g) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Where on random segments (n,) the function g(t - c) vanishes, as found; c (n,); the t at which it was asked."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, COUNT, 3, generator=generator, dtype=torch.float64)
    c = 0.02 + 0.96 * torch.rand(COUNT, generator=generator, dtype=torch.float64)
    asked: list[Tensor] = []

    def place(p: Tensor) -> tuple[Tensor, Tensor]:
        """Which segment a point lies on, and where."""
        t = ((p[:, None] - a) * (b - a)).sum(2) / (b - a).square().sum(1)
        which = (p[:, None] - a - t[..., None] * (b - a)).square().sum(2).argmin(1)
        return which, t[torch.arange(len(p)), which]

    def phi(p: Tensor) -> Tensor:
        which, t = place(p)
        asked.append(t)
        return g(t - c[which])

    found = roots(phi, a, b, g(-c), g(1 - c))
    return place(found)[1], c, asked


@pytest.mark.parametrize("name", SCALARS)
def test_roots_are_found_on_their_segments(name):
    """To a thousandth of the segment, whatever the function, and without ever asking beyond its ends."""
    t, c, asked = solved(SCALARS[name])
    assert (t - c).abs().max() < 1e-3
    assert min(float(v.min()) for v in asked) > -1e-12
    assert max(float(v.max()) for v in asked) < 1 + 1e-12


@pytest.mark.parametrize(("name", "most", "error"), [("line", 1, 1e-14), ("parabola", 3, 2e-5), ("sinh", 7, 2e-4)])
def test_roots_of_nearly_linear_functions_take_few_evaluations(name, most, error):
    t, c, asked = solved(SCALARS[name])
    assert sum(len(v) for v in asked) <= most * len(c)
    assert (t - c).abs().max() < error


@pytest.mark.parametrize("name", SCALARS)
def test_no_root_takes_more_evaluations_than_three_bisections_would(name):
    """Bisection to 3e-4 of the segment takes twelve."""
    _, c, asked = solved(SCALARS[name])
    assert len(asked) <= 36
    assert sum(len(v) for v in asked) <= 20 * len(c)


def test_a_root_at_an_end_is_that_end():
    a, b = torch.zeros(1, 3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64)
    value = torch.tensor([0.0], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)
    assert torch.equal(roots(lambda p: -p[:, 0], a, b, *value), a)


def test_projection_ends_on_the_zero_set_with_its_normals():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(500, 3, generator=generator, dtype=torch.float64)
    y = y / y.norm(dim=1, keepdim=True) * (0.8 + 0.4 * torch.rand(500, 1, generator=generator, dtype=torch.float64))
    at, normal, left = project(lambda p: torch.sinh(3 * (p.square().sum(1) - 1)), 3.0, y, 0.5)
    assert (at.norm(dim=1) - 1).abs().max() < 1e-14
    torch.testing.assert_close(at, y / y.norm(dim=1, keepdim=True))
    torch.testing.assert_close(normal, at)
    assert left.max() < 1e-14


# Crossed cells


def brute(phi, lattice: Lattice, box: Tensor) -> set[tuple[int, ...]]:
    """Crossed cells of the lattice that meet the box, by looking at all; beyond the box phi is that at its side."""
    low = torch.floor((box[0] - lattice.origin) / lattice.spacing + 1e-9).long()
    high = torch.ceil((box[1] - lattice.origin) / lattice.spacing - 1e-9).long()
    nodes = low + torch.cartesian_prod(*(torch.arange(int(n) + 1) for n in high - low))
    x = lattice.position(nodes)
    negative = (phi(torch.minimum(torch.maximum(x, box[0]), box[1])) < 0).reshape([int(n) + 1 for n in high - low])
    a, b, c = (int(n) for n in high - low)
    corners = torch.stack([negative[i : i + a, j : j + b, k : k + c] for i, j, k in OCTANTS.tolist()], -1)
    return as_set(low + (corners.any(-1) & ~corners.all(-1)).nonzero())


def as_set(cell: Tensor) -> set[tuple[int, ...]]:
    return set(map(tuple, cell.tolist()))


def is_consistent(crossed: CrossedCells, phi, box: Tensor) -> None:
    """Corners are those of the cells, values those of phi."""
    assert torch.equal(crossed.ijk[crossed.corner], crossed.cell[:, None] + OCTANTS)
    inside = torch.minimum(torch.maximum(crossed.position, box[0]), box[1])
    torch.testing.assert_close(crossed.value, phi(inside))
    assert len(as_set(crossed.cell)) == len(crossed.cell)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("pieces", [500, 3000])
def test_every_crossed_cell_is_found(name, pieces):
    phi = SHAPES[name]
    crossed = crossed_cells(phi, BOX, pieces)
    is_consistent(crossed, phi, BOX)
    box = BOX
    if name.startswith("a ball"):  # too small for the whole lattice to be looked at
        box = torch.tensor([[0.2, -0.6, 0.1], [0.4, -0.4, 0.3]], dtype=torch.float64)
        outside = crossed.position[crossed.corner].amin(1) < box[0]
        assert not bool(outside.any())
    assert as_set(crossed.cell) == brute(phi, crossed.lattice, box)


@pytest.mark.parametrize("name", SHAPES)
def test_cells_are_as_small_as_the_number_of_pieces_asks_for(name):
    """h <= sqrt(area / pieces), counting 3/2 cells to h^2 of area, and not much smaller but for thin parts."""
    crossed = crossed_cells(SHAPES[name], BOX, 2000)
    assert len(crossed.cell) >= 0.9 * 1.5 * 2000
    if name != "thin shell":
        assert len(crossed.cell) <= 4 * 1.5 * 2000


def test_cells_too_large_for_a_thin_shell_are_halved():
    """0.04 thick with cells of 0.11 asked for: corners of one sign on both sides of it do not hide it."""

    def phi(p: Tensor) -> Tensor:
        return distance_to((0, 0, 0), 1.0)(p).abs() - 0.02

    crossed = crossed_cells(phi, BOX, 1000)
    assert crossed.lattice.spacing < 0.05
    assert as_set(crossed.cell) == brute(phi, crossed.lattice, BOX)


@pytest.mark.parametrize("name", ["torus", "thin shell", "gyroid"])
def test_following_from_one_cell_finds_its_whole_component(name):
    phi, lattice = SHAPES[name], Lattice(torch.tensor([0.013, 0.007, -0.021], dtype=torch.float64), 0.06)
    every = brute(phi, lattice, BOX)
    seeds = torch.tensor(sorted(every))[:1]
    followed = connected_crossed_cells(phi, lattice, BOX, seeds)
    is_consistent(followed, phi, BOX)
    found = as_set(followed.cell)
    assert found <= every
    if name == "thin shell":
        centre = lattice.position(torch.tensor(sorted(found))) + 0.5 * lattice.spacing
        assert len(found) > 0.3 * len(every)
        assert (centre.norm(dim=1) - 1).abs().max() < 0.05 + lattice.spacing
    else:
        assert found == every


def test_following_two_balls_takes_a_seed_on_each():
    lattice = Lattice(torch.tensor([0.013, 0.007, -0.021], dtype=torch.float64), 0.05)
    every = brute(two_balls, lattice, BOX)
    ordered = torch.tensor(sorted(every))
    one = as_set(connected_crossed_cells(two_balls, lattice, BOX, ordered[:1]).cell)
    assert one == {cell for cell in every if float(lattice.position(torch.tensor(cell))[0]) < 0.1}
    assert as_set(connected_crossed_cells(two_balls, lattice, BOX, ordered[[0, -1]]).cell) == every


def test_seeds_beside_the_zero_set_and_outside_the_box_find_nothing():
    lattice = Lattice(torch.zeros(3, dtype=torch.float64), 0.1)
    seeds = torch.tensor([[0, 0, 0], [1000, 0, 0]])
    assert len(connected_crossed_cells(torus, lattice, BOX, seeds).cell) == 0
    assert len(crossed_cells(lambda p: p[:, 0] + 9, BOX, 100).cell) == 0


# What is asked of phi


def recorded(phi):
    """phi, and the points at which it has been evaluated."""
    asked: list[Tensor] = []

    def wrapped(p: Tensor) -> Tensor:
        asked.append(p)
        return phi(p)

    return wrapped, asked


@pytest.mark.parametrize("name", SHAPES)
def test_phi_is_never_evaluated_outside_the_box(name):
    phi, asked = recorded(SHAPES[name])
    crossed = crossed_cells(phi, BOX, 2000)
    lattice = Lattice(BOX[0] - 0.013, 0.07)
    seeds = torch.unique(torch.floor((crossed.position[crossed.corner[:, 0]] - lattice.origin) / 0.07).long(), dim=0)
    connected_crossed_cells(phi, lattice, BOX, seeds)
    points = torch.cat(asked)
    assert bool((points >= BOX[0]).all())
    assert bool((points <= BOX[1]).all())


@pytest.mark.parametrize("name", SHAPES)
def test_the_scale_of_phi_does_not_matter(name):
    phi = SHAPES[name]
    reference = crossed_cells(phi, BOX, 1000)
    for changed in (lambda p: 1e-6 * phi(p), lambda p: 1e6 * phi(p), lambda p: -phi(p)):
        found = crossed_cells(changed, BOX, 1000)
        assert found.lattice.spacing == reference.lattice.spacing
        assert as_set(found.cell) == as_set(reference.cell)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("change", [lambda v: v**3, lambda v: torch.tanh(10 * v), lambda v: v / (1 + v.abs())])
def test_nor_does_its_shape(name, change):
    """Cubed, phi is flat at the surface; as a probability it is constant away from it. The cells may be others."""
    phi = SHAPES[name]
    crossed = crossed_cells(lambda p: change(phi(p)), BOX, 1000)
    box = BOX if not name.startswith("a ball") else torch.tensor([[0.2, -0.6, 0.1], [0.4, -0.4, 0.3]]).double()
    assert as_set(crossed.cell) == brute(phi, crossed.lattice, box)


def test_the_work_is_proportional_to_the_surface():
    """Halving the spacing four-folds crossed cells and evaluations; a whole lattice would be eight times as many."""
    counts, cells = [], []
    for pieces in (2000, 8000, 32000):
        phi, asked = recorded(torus)
        cells.append(len(crossed_cells(phi, BOX, pieces).cell))
        counts.append(sum(map(len, asked)))
    both = zip(pairwise(counts), pairwise(cells), strict=True)
    assert max(math.log(b / a) / math.log(d / c) for (a, b), (c, d) in both) < 1.15
    assert counts[-1] < 12 * cells[-1]


def test_following_evaluates_each_node_once():
    phi, asked = recorded(torus)
    lattice = Lattice(torch.zeros(3, dtype=torch.float64), 0.05)
    followed = connected_crossed_cells(phi, lattice, BOX, torch.floor(torch.tensor([[1.39, 0, 0]]) / 0.05).long())
    points = torch.cat(asked)
    assert len(torch.unique((points / 0.05).round().long(), dim=0)) == len(points) == len(followed.ijk)
    assert len(points) < 2.2 * len(followed.cell)  # a layer of nodes on either side


def test_whether_the_box_cuts_the_surface():
    assert crosses_sides(gyroid, BOX)
    assert not crosses_sides(torus, BOX)
    touching = torch.tensor([[-1.0, -1, -1], [1, 1, 1]], dtype=torch.float64)
    assert not crosses_sides(lambda p: p.norm(dim=1) - 1, touching)
    assert crosses_sides(lambda p: p.norm(dim=1) - 1.01, touching)


@pytest.mark.parametrize("change", [lambda v: v, lambda v: v * (v + 0.2), lambda v: torch.tanh(3 * v)])
def test_small_balls_are_found_wherever_they_are_in_the_first_cells(change):
    """Cells of 0.097, balls of 0.02: amid a cell its corners are all equally far, and say nothing of how phi varies."""
    centres = 2 * torch.rand(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    centres[0] = BOX[0] + 3.1 / 32 * (torch.tensor([12.5, 20.5, 7.5], dtype=torch.float64))
    for centre in centres:
        crossed = crossed_cells(lambda p, c=centre: change((p - c).norm(dim=1) - 0.02), BOX, 50)
        assert len(crossed.cell) >= 50
        away = (crossed.position[crossed.corner] - centre).norm(dim=2)
        assert (away - 0.02).abs().max() < 2 * crossed.lattice.spacing
