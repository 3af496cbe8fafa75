"""The Cartesian Laplacian on a band, and the surface Laplacian that the coupled scheme makes of it."""

import math

import pytest
import torch
from scipy.sparse import csr_array

from lamina.gallery import Problem, ellipsoid_poisson, sphere_poisson
from lamina.geometry.lattice import Lattice
from lamina.grid.band import Band, band_radius
from lamina.paper.coupled import Coupled
from lamina.paper.interpolation import Lines
from lamina.paper.laplacian import diagonal, laplacian_matrix
from lamina.surfaces.analytic import Torus

ORIGIN = torch.tensor([0.013, -0.021, 0.007], dtype=torch.float64)


def band_of(spacing):
    return Band.build(Torus(), Lattice(ORIGIN, spacing), band_radius(spacing, Lines.NEAREST, 2))


def complete_rows(L):
    return torch.diff(L.crow_indices()) > 0


def test_diagonal_is_that_of_the_formulas():
    assert diagonal(2, 0.5) == pytest.approx(6 / 0.25)
    assert diagonal(4, 0.5) == pytest.approx(7.5 / 0.25)


@pytest.mark.parametrize(("order", "degree"), [(2, 3), (4, 5)])
def test_exact_on_polynomials(order, degree):
    band = band_of(0.1)
    L = laplacian_matrix(band, order)
    x, y, z = band.lattice.position(band.ijk).unbind(1)
    u = x**degree - 2 * y**degree + x * y * z + z**degree * x
    power = degree * (degree - 1)
    exact = power * (x ** (degree - 2) - 2 * y ** (degree - 2) + z ** (degree - 2) * x)
    rows = complete_rows(L)
    torch.testing.assert_close((L @ u)[rows], exact[rows], rtol=0, atol=1e-10)


@pytest.mark.parametrize("order", [2, 4])
def test_order_of_accuracy(order):
    error = []
    for spacing in (0.1, 0.05):
        band = band_of(spacing)
        L = laplacian_matrix(band, order)
        x, y, z = band.lattice.position(band.ijk).unbind(1)
        u = torch.sin(2 * x) * torch.cos(y) * torch.exp(z)
        near = (band.lattice.position(band.ijk) - band.feet.points).norm(dim=1) <= 0.1
        error.append(float((L @ u - (-4 - 1 + 1) * u)[near].abs().max()))
    assert math.log2(error[0] / error[1]) == pytest.approx(order, abs=0.1)


@pytest.mark.parametrize("order", [2, 4])
def test_rows_are_empty_where_and_only_where_a_neighbour_is_missing(order):
    band = band_of(0.1)
    nodes = {tuple(n) for n in band.ijk.tolist()}
    steps = [s for s in range(-order // 2, order // 2 + 1) if s]
    whole = [
        all((i + s, j, k) in nodes and (i, j + s, k) in nodes and (i, j, k + s) in nodes for s in steps)
        for i, j, k in band.ijk.tolist()
    ]
    assert complete_rows(laplacian_matrix(band, order)).tolist() == whole


@pytest.mark.parametrize("order", [2, 4])
def test_symmetric_on_complete_rows_and_zero_on_constants(order):
    band = band_of(0.12)
    L = laplacian_matrix(band, order)
    rows = complete_rows(L).numpy()
    parts = (t.numpy() for t in (L.values(), L.col_indices(), L.crow_indices()))
    square = csr_array(tuple(parts), shape=L.shape)[rows][:, rows]
    assert abs(square - square.T).max() == 0
    assert float((L @ torch.ones(len(band), dtype=torch.float64)).abs().max()) < 1e-9


@pytest.mark.parametrize("problem", [sphere_poisson(), ellipsoid_poisson()], ids=lambda p: p.name)
@pytest.mark.parametrize(("order", "rate"), [(2, 3), (4, 4)])
def test_coupled_operator_is_consistent_with_the_surface_laplacian(problem: Problem, order, rate):
    """A u - Lap u for u constant along normals: gamma (I - E) u is dx^-2 times dx^5 or dx^6."""
    error = []
    for spacing in (0.06, 0.03):
        scheme = Coupled(problem.surface(), Lattice(ORIGIN, spacing), order)
        residual = scheme.apply(scheme.sample(problem.solution)) - scheme.sample(problem.rhs)
        error.append(float(residual.abs().mean()))
    assert math.log2(error[0] / error[1]) > rate - 0.3
