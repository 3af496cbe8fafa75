"""Functions on a cell: Lagrange, complete to their degree, and with the right derivatives."""

import pytest
import torch

from lamina.geometry.basis import Q1, Q2, from_corners, gauss_points

BASES = pytest.mark.parametrize("basis", [Q1, Q2], ids=["Q1", "Q2"])
EXACT = torch.float64, torch.device("cpu")


def places(count: int = 50) -> torch.Tensor:
    """Points in the unit cell and a little outside it."""
    return 1.4 * torch.rand(count, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.2


def at_nodes(basis) -> torch.Tensor:
    return basis.nodes.double() / basis.degree


@BASES
def test_each_function_is_one_at_its_node_and_zero_at_the_others(basis):
    torch.testing.assert_close(basis.values(at_nodes(basis)), torch.eye(basis.count, dtype=torch.float64))


@BASES
def test_polynomials_of_the_degree_along_each_axis_are_reproduced(basis):
    def polynomial(t):
        x, y, z = t.unbind(1)
        p = basis.degree
        return (1 - 2 * x**p) * (3 * y**p + y) * (z**p - 0.5)

    torch.testing.assert_close(basis.values(places()) @ polynomial(at_nodes(basis)), polynomial(places()))


@BASES
def test_gradients_match_finite_differences(basis):
    t, step = places(), 1e-5
    for axis, slope in enumerate(basis.gradients(t)):
        h = torch.zeros(3, dtype=torch.float64)
        h[axis] = step
        difference = (basis.values(t + h) - basis.values(t - h)) / (2 * step)
        torch.testing.assert_close(slope, difference, rtol=0, atol=1e-8)


@BASES
def test_faces_of_neighbouring_cells_carry_the_same_nodes(basis):
    far, near = basis.faces
    for axis in range(3):
        step = torch.zeros(3, dtype=torch.int64)
        step[axis] = basis.degree
        torch.testing.assert_close(basis.nodes[far[axis]], basis.nodes[near[axis]] + step)


def test_trilinear_functions_are_quadratic_ones_too():
    t = places()
    torch.testing.assert_close(Q2.values(t) @ from_corners(Q2, *EXACT), Q1.values(t))


def test_gauss_points_integrate_polynomials_of_degree_five():
    t, weight = gauss_points(3, *EXACT)
    x, y, z = t.unbind(1)
    torch.testing.assert_close((weight * x**5 * y**4 * z**3).sum(), torch.tensor(1 / 120, dtype=torch.float64))
