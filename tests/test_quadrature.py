"""Quadrature on plane polygons: three points that integrate quadratics exactly, whatever the polygon."""

import itertools
import math

import numpy as np
import pytest
import torch

from lamina.geometry.frames import tangent_basis
from lamina.geometry.triangles import triangle_areas
from lamina.grid.quadrature import on_polygons

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}
PRECISIONS = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["double", "single"])
# Powers of x, y, z that span the quadratics.
QUADRATICS = [p for p in itertools.product(range(3), repeat=3) if sum(p) <= 2]


def random(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normals_of(count, seed=1):
    return torch.nn.functional.normalize(random(count, 3, seed=seed) - 0.5)


def fans(count, corners, seed=0):
    """Convex polygons in random planes as fans of triangles (m, 3, 3), in no order; their numbers, their normals."""
    normal = normals_of(count, seed + 1)
    _, _, frame = torch.linalg.svd(normal[:, None])
    across, along = frame[:, 1], frame[:, 2]
    angle = 2 * math.pi * random(count, corners, seed=seed + 2).sort(1).values
    x, y = 0.7 * angle.cos(), 0.2 * angle.sin()
    centre = 3 * random(count, 3, seed=seed + 3)
    points = centre[:, None] + x[..., None] * across[:, None] + y[..., None] * along[:, None]
    triangles = torch.stack(
        [torch.stack([points[:, 0], points[:, i], points[:, i + 1]], 1) for i in range(1, corners - 1)], 1
    )
    number = torch.arange(count).repeat_interleave(corners - 2)
    order = torch.randperm(len(number), generator=torch.Generator().manual_seed(seed))
    return triangles.reshape(-1, 3, 3)[order], number[order], normal


def exact_integrals(triangles, number, count, powers):
    """Sum over the triangles of x^i y^j z^k, by Gauss-Legendre points on the square folded to the triangle."""
    nodes, weights = np.polynomial.legendre.leggauss(5)
    s, t = (torch.from_numpy(0.5 + 0.5 * w).reshape(-1) for w in np.meshgrid(nodes, nodes))
    weight = torch.from_numpy(np.outer(weights, weights) / 4).reshape(-1) * (1 - s)
    a, b, c = triangles.unbind(1)
    x = a[:, None] + s[None, :, None] * (b - a)[:, None] + ((1 - s) * t)[None, :, None] * (c - a)[:, None]
    values = torch.stack([(x ** torch.tensor(p)).prod(-1) @ weight for p in powers], 1)
    return torch.zeros(count, len(powers), dtype=x.dtype).index_add_(
        0, number, 2 * triangle_areas(triangles)[:, None] * values
    )


def computed_integrals(quadrature, count, powers):
    values = torch.stack([(quadrature.points.double() ** torch.tensor(p)).prod(-1) for p in powers], 1)
    return (values * quadrature.weights.double()[:, None]).reshape(count, 3, -1).sum(1)


@PRECISIONS
@pytest.mark.parametrize("corners", [3, 4, 7])
def test_quadratics_are_integrated_exactly_over_each_polygon(corners, dtype):
    triangles, number, normal = fans(50, corners)
    quadrature = on_polygons(triangles.to(dtype), number, normal.to(dtype))
    found = computed_integrals(quadrature, 50, QUADRATICS)
    expected = exact_integrals(triangles, number, 50, QUADRATICS)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[dtype] * float(expected.abs().max()))


def test_cubics_are_not_so_that_the_test_above_can_fail():
    triangles, number, normal = fans(50, 5)
    cubic = [(3, 0, 0)]
    found = computed_integrals(on_polygons(triangles, number, normal), 50, cubic)
    assert float((found - exact_integrals(triangles, number, 50, cubic)).abs().max()) > 1e-5


@PRECISIONS
def test_weights_add_up_to_the_area_and_points_lie_in_the_plane(dtype):
    triangles, number, normal = fans(50, 6)
    quadrature = on_polygons(triangles.to(dtype), number, normal.to(dtype))
    area = torch.zeros(50, dtype=torch.float64).index_add_(0, number, triangle_areas(triangles))
    rtol = 10 * TOLERANCE[dtype]
    torch.testing.assert_close(quadrature.weights.double().reshape(50, 3).sum(1), area, rtol=rtol, atol=0)
    assert quadrature.area == pytest.approx(float(area.sum()), rel=rtol)
    base = torch.empty(50, 3, dtype=torch.float64)
    base[number] = triangles[:, 0]
    offset = quadrature.points.double().reshape(50, 3, 3) - base[:, None]
    height = torch.einsum("pqd,pd->pq", offset, normal)
    assert float(height.abs().max()) <= TOLERANCE[dtype]
    assert torch.equal(quadrature.normals, normal.to(dtype).repeat_interleave(3, 0))
    assert quadrature.points.dtype == quadrature.weights.dtype == dtype


def test_a_unit_square_by_hand():
    """Mean (1/2, 1/2) and variances 1/12 with no correlation; the points are those of a triangle inside."""
    square = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]], dtype=torch.float64)
    triangles = square[torch.tensor([[0, 1, 2], [0, 2, 3]])]
    up = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    quadrature = on_polygons(triangles, torch.tensor([0, 0]), up)
    assert quadrature.weights.tolist() == pytest.approx([1 / 3] * 3)
    assert quadrature.integral(lambda x: x[:, 0]) == pytest.approx(1 / 2)
    assert quadrature.integral(lambda x: x[:, 0] ** 2) == pytest.approx(1 / 3)
    assert quadrature.integral(lambda x: x[:, 0] * x[:, 1]) == pytest.approx(1 / 4)
    assert quadrature.mean(lambda x: 3 * x[:, 1] ** 2 + 2) == pytest.approx(3)
    assert float(quadrature.points[:, :2].min()) > 0
    assert float(quadrature.points[:, :2].max()) < 1


def test_polygons_far_from_the_origin_lose_nothing():
    triangles, number, normal = fans(20, 5)
    here = on_polygons(triangles, number, normal)
    there = on_polygons(triangles + 1e4, number, normal)
    torch.testing.assert_close(there.points - 1e4, here.points, rtol=0, atol=1e-10)
    torch.testing.assert_close(there.weights, here.weights, rtol=1e-9, atol=0)


@PRECISIONS
def test_tangents_complete_every_normal_to_an_orthonormal_frame(dtype):
    axes = torch.eye(3, dtype=torch.float64)
    normal = torch.cat([normals_of(200), axes, -axes, torch.full((1, 3), 3**-0.5, dtype=torch.float64)]).to(dtype)
    frame = torch.stack([normal, *tangent_basis(normal).unbind(1)], 1)
    gram = torch.bmm(frame, frame.transpose(1, 2))
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(gram, torch.eye(3, dtype=dtype).expand_as(gram), rtol=0, atol=8 * eps)
