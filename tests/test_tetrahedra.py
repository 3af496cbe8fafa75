"""Pieces of functions on tetrahedra: exact for linear ones, closed for closed surfaces; clipping; arcs."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from lamina.geometry.lattice import OCTANTS
from lamina.geometry.tetrahedra import (
    TETRAHEDRA,
    Pieces,
    arched_middle,
    clip,
    cut_tetrahedra,
    triangle_edges,
    without_pieces_beyond,
)
from lamina.geometry.triangles import dot, triangle_areas, triangle_normals, unit

N = 12  # cells a side of the unit cube


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cube() -> tuple[Tensor, Tensor]:
    """Nodes (n, 3) of N^3 cells that fill the unit cube, and the corners (c, 8) of the cells."""
    nodes = torch.cartesian_prod(*[torch.arange(N + 1)] * 3)
    cells = torch.cartesian_prod(*[torch.arange(N)] * 3)
    corner = (cells[:, None] + OCTANTS) @ torch.tensor([(N + 1) ** 2, N + 1, 1])
    return nodes.double() / N, corner


def cut(phi) -> tuple[Tensor, Pieces]:
    """Vertices (v, 3) and pieces of a function in the unit cube."""
    x, corner = cube()
    pieces = cut_tetrahedra(corner, phi(x))
    a, b = x[pieces.ends].unbind(1)
    return torch.lerp(a, b, pieces.fraction[:, None]), pieces


def uses(triangles: Tensor, vertices: int) -> Tensor:
    """How many triangles have each edge."""
    _, edge = triangle_edges(triangles, vertices)
    return torch.bincount(edge.reshape(-1))


def ball(radius: float):
    return lambda x: (x - torch.tensor([0.51, 0.48, 0.53], dtype=torch.float64)).norm(dim=1) - radius


def torus(x: Tensor) -> Tensor:
    x = x - 0.5
    return ((x[:, :2].norm(dim=1) - 0.3) ** 2 + x[:, 2] ** 2).sqrt() - 0.12


SHAPES = {
    "ball": (ball(0.35), 2),
    "torus": (torus, 0),
    "shell": (lambda x: ball(0.3)(x).abs() - 0.08, 4),
    "less than a cell": (ball(0.06), 2),
}


def test_six_tetrahedra_fill_a_cell_with_equal_volumes():
    a, b, c, d = OCTANTS.double()[TETRAHEDRA].unbind(1)
    volume = torch.linalg.det(torch.stack([b - a, c - a, d - a], 1)).abs() / 6
    assert volume.tolist() == pytest.approx([1 / 6] * 6)
    inside = random(2000, 3)
    # x_i >= x_j >= x_k holds for one order of the axes: each point lies in the tetrahedron of that path.
    barycentric = torch.linalg.solve(
        torch.cat([OCTANTS.double()[TETRAHEDRA], torch.ones(6, 4, 1, dtype=torch.float64)], 2).transpose(1, 2)[:, None],
        torch.cat([inside, torch.ones(2000, 1, dtype=torch.float64)], 1)[None, :, :, None],
    )[..., 0]
    assert torch.equal((barycentric > 0).all(2).sum(0), torch.ones(2000, dtype=torch.int64))


@pytest.mark.parametrize("seed", range(4))
def test_pieces_of_a_linear_function_are_its_plane(seed):
    """All on it, facing along it, and of the area of the section of the cube: no gaps, nothing twice."""
    n = unit(random(1, 3, seed=seed) - 0.3)[0]
    vertex, pieces = cut(lambda x: (x - 0.47) @ n)
    corners = vertex[pieces.triangles]
    assert ((vertex - 0.47) @ n).abs().max() < 1e-15
    big = triangle_areas(corners) > 1e-12
    assert (triangle_normals(corners[big]) @ n).abs().min() > 1 - 1e-9
    # The section's area by the divergence theorem in the plane: that of the polygon in which it meets the sides.
    assert float(triangle_areas(corners).sum()) == pytest.approx(section(n, 0.47 * float(n.sum())), rel=1e-12)


def section(n: Tensor, level: float) -> float:
    """Area of the polygon n.x = level in the unit cube: its corners on the cube's edges, ordered by angle."""
    corners = []
    for axis in range(3):
        others = [k for k in range(3) if k != axis]
        for i in (0.0, 1.0):
            for j in (0.0, 1.0):
                x = torch.zeros(3, dtype=torch.float64)
                x[others[0]], x[others[1]] = i, j
                if n[axis] != 0 and 0 <= (t := (level - float(n @ x)) / float(n[axis])) <= 1:
                    x[axis] = t
                    corners.append(x)
    p = torch.stack(corners) - torch.stack(corners).mean(0)
    u = unit(p[:1])[0]
    v = torch.linalg.cross(n, u)
    angle, order = torch.sort(torch.atan2(p @ v, p @ u))
    r = p[order].norm(dim=1)
    return float((0.5 * r * r.roll(-1) * torch.sin((angle.roll(-1) - angle) % (2 * math.pi))).sum())


@pytest.mark.parametrize("name", SHAPES)
def test_closed_surfaces_are_cut_into_closed_pieces(name):
    """Every edge belongs to two triangles, and Euler's number v - e + f is that of the shape."""
    phi, euler = SHAPES[name]
    vertex, pieces = cut(phi)
    use = uses(pieces.triangles, len(vertex))
    assert torch.equal(use, torch.full_like(use, 2))
    assert len(torch.unique(pieces.triangles)) == len(vertex)
    assert len(vertex) - len(use) + len(pieces.triangles) == euler


def test_noise_too_is_cut_into_pieces_that_end_only_at_the_sides():
    """Whatever the signs: edges of one triangle lie in the sides of the cube, all others have two."""
    values = random((N + 1) ** 3) - 0.5
    vertex, pieces = cut(lambda x: values)
    ends, edge = triangle_edges(pieces.triangles, len(vertex))
    use = torch.bincount(edge.reshape(-1))
    assert set(use.tolist()) == {1, 2}
    one = vertex[ends[use == 1]]
    on_side = ((one < 1e-12).all(1) | (one > 1 - 1e-12).all(1)).any(1)
    assert bool(on_side.all())


@pytest.mark.parametrize("name", SHAPES)
def test_pieces_lie_in_the_cells_that_own_them(name):
    vertex, pieces = cut(SHAPES[name][0])
    low = torch.cartesian_prod(*[torch.arange(N)] * 3)[pieces.owner].double() / N
    local = N * (vertex[pieces.triangles] - low[:, None])
    assert local.min() > -1e-9
    assert local.max() < 1 + 1e-9


def test_pieces_beyond_a_rim_are_left_out():
    vertex, pieces = cut(SHAPES["ball"][0])
    beyond = vertex[:, 2] > 0.6
    kept = without_pieces_beyond(pieces, beyond)
    assert 0 < len(kept.triangles) < len(pieces.triangles)
    assert bool((vertex[kept.triangles][:, :, 2].amin(1) <= 0.6).all())
    assert without_pieces_beyond(pieces, None) is pieces


# Clipping


def test_the_two_sides_of_a_clip_add_up_and_meet_on_the_plane():
    x, triangles = random(300, 3, seed=1), torch.randint(0, 300, (500, 3), generator=torch.Generator().manual_seed(2))
    height = x @ torch.tensor([0.3, -0.8, 0.5], dtype=torch.float64) - 0.02
    total = torch.zeros(500, dtype=torch.float64)
    for sign in (1, -1):
        part = clip(triangles, sign * height)
        a, b = x[part.ends].unbind(1)
        new = torch.lerp(a, b, part.fraction[:, None])
        h = torch.cat([sign * height, torch.zeros(len(new), dtype=torch.float64)])
        assert h[part.triangles].min() >= 0  # nothing is left of the other side
        assert (new @ torch.tensor([0.3, -0.8, 0.5], dtype=torch.float64) - 0.02).abs().max() < 1e-15
        corners = torch.cat([x, new])[part.triangles]
        total.index_add_(0, part.source, triangle_areas(corners))
        # Pieces keep the orientation of the triangle they came from.
        before = triangle_normals(x[triangles])[part.source]
        big = triangle_areas(corners) > 1e-9
        assert dot(triangle_normals(corners), before)[big].min() > 0.99
    torch.testing.assert_close(total, triangle_areas(x[triangles]), rtol=0, atol=1e-14)


def test_clipped_neighbours_share_the_new_vertices():
    """A closed surface clipped by a plane is open along one closed curve: its edges of one triangle lie on it."""
    vertex, pieces = cut(SHAPES["ball"][0])
    part = clip(pieces.triangles, vertex[:, 2] - 0.5)
    ends, edge = triangle_edges(part.triangles, len(vertex) + len(part.ends))
    use = torch.bincount(edge.reshape(-1))
    assert set(use.tolist()) == {1, 2}
    rim = ends[use == 1]
    assert bool((rim >= len(vertex)).all())
    assert torch.equal(torch.bincount(rim.reshape(-1))[len(vertex) :], torch.full((len(part.ends),), 2))


def test_clipping_on_the_far_side_keeps_or_drops_all():
    triangles = torch.tensor([[0, 1, 2]])
    for height, left in ((torch.ones(3), 1), (-torch.ones(3), 0), (torch.zeros(3), 0)):
        part = clip(triangles, height)
        assert (len(part.triangles), len(part.ends)) == (left, 0)


# Arcs


def arc_errors(step: float, surface: str) -> float:
    """Distance to the surface of the middles of arcs between points about `step` apart, the largest."""
    n = unit(random(400, 3) - 0.5)
    m = unit(n + step * (random(400, 3, seed=1) - 0.5))
    if surface == "sphere":
        middle, _ = arched_middle(n, m, n, m)
        return float((middle.norm(dim=1) - 1).abs().max())
    axes = torch.tensor([1.0, 0.8, 0.6], dtype=torch.float64)  # x = axes * n, with normals along n / axes
    middle, _ = arched_middle(axes * n, axes * m, unit(n / axes), unit(m / axes))
    level = (middle / axes).square().sum(1) - 1
    return float((level / (2 * middle / axes**2).norm(dim=1)).abs().max())


@pytest.mark.parametrize("surface", ["sphere", "ellipsoid"])
def test_middles_of_arcs_are_on_the_surface_to_fourth_order(surface):
    errors = [arc_errors(step, surface) for step in (0.4, 0.2, 0.1)]
    orders = [math.log2(a / b) for a, b in pairwise(errors)]
    assert min(orders) > 3.7
    assert errors[-1] < 1e-6  # chords of 0.1 sag by up to 1e-3


def test_an_arc_over_a_plane_is_its_chord():
    p, q = random(50, 3), random(50, 3, seed=1)
    n = unit(torch.linalg.cross(q - p, random(50, 3, seed=2)))
    middle, mean = arched_middle(p, q, n, n)
    torch.testing.assert_close(middle, 0.5 * (p + q))
    torch.testing.assert_close(mean, n)


def test_normals_that_have_nothing_to_do_with_an_edge_cannot_throw_its_middle_far():
    """At a crease normals say nothing about the chord between the two sides: an eighth of half its length at most."""
    p, q = random(500, 3), random(500, 3, seed=1)
    n, m = unit(random(500, 3, seed=2) - 0.5), unit(random(500, 3, seed=3) - 0.5)
    middle, _ = arched_middle(p, q, n, m)
    assert bool(((middle - 0.5 * (p + q)).norm(dim=1) <= (q - p).norm(dim=1) / 16 + 1e-15).all())
