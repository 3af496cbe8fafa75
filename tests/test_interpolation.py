"""Interpolation at closest points: exact on polynomials, of the stated order, constant along normals."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import InputError
from lamina.geometry.lattice import Lattice
from lamina.grid.band import Band, band_radius
from lamina.paper.interpolation import Lines, cubic_stencil, interpolation_matrix, lagrange_weights
from lamina.surfaces.analytic import Sphere

ENTRIES = {Lines.NONE: 64, Lines.NEAREST: 70, Lines.BILINEAR: 88}
ORDER = {Lines.NONE: 4, Lines.NEAREST: 5, Lines.BILINEAR: 6}
SPHERE = Sphere()


def band_of(spacing, lines, origin=(0.013, -0.021, 0.007), dtype=torch.float64):
    lattice = Lattice(torch.tensor(origin, dtype=dtype), spacing)
    return Band.build(SPHERE.to(dtype=dtype), lattice, band_radius(spacing, lines, 2))


def interpolate(band, lines, f, points):
    component = torch.zeros(len(points), dtype=torch.int64)
    return interpolation_matrix(band, points, component, lines) @ f(band.lattice.position(band.ijk))


@given(t=st.floats(0, 1), degree=st.sampled_from([1, 3, 5]))
def test_lagrange_weights_reproduce_powers(t, degree):
    nodes = torch.arange(degree + 1, dtype=torch.float64) - (degree - 1) // 2
    weights = lagrange_weights(torch.tensor(t, dtype=torch.float64), degree)
    for power in range(degree + 1):
        assert float(weights @ nodes**power) == pytest.approx(t**power, abs=1e-12)


def test_plain_cubic_is_exact_on_products_of_cubics():
    def f(p):
        x, y, z = p.unbind(1)
        return (x**3 - 2 * x + 1) * (y**3 + y**2) * (2 * z**3 - z) + x**2 * y * z**3

    band = band_of(0.1, Lines.NONE)
    torch.testing.assert_close(interpolate(band, Lines.NONE, f, SPHERE.points), f(SPHERE.points))


@pytest.mark.parametrize("lines", [Lines.NEAREST, Lines.BILINEAR])
def test_line_correction_is_exact_on_sums_of_quintics(lines):
    """The error that it removes has one term an axis: a sum of functions of one variable has no other."""

    def f(p):
        x, y, z = p.unbind(1)
        return x**5 - 3 * y**5 + 2 * z**5 + x**4 - y**4 + x * y * z

    band = band_of(0.1, lines)
    torch.testing.assert_close(interpolate(band, lines, f, SPHERE.points), f(SPHERE.points))


@pytest.mark.parametrize("lines", list(Lines))
def test_order_of_accuracy(lines):
    def f(p):
        x, y, z = p.unbind(1)
        return torch.sin(2 * x + y) * torch.cos(y - z) * torch.exp(z * x / 2)

    error = []
    for spacing in (0.1, 0.05):
        band = band_of(spacing, lines)
        error.append(float((interpolate(band, lines, f, SPHERE.points) - f(SPHERE.points)).abs().max()))
    assert math.log2(error[0] / error[1]) == pytest.approx(ORDER[lines], abs=0.35)


@pytest.mark.parametrize("lines", list(Lines))
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_rows_sum_to_one_and_have_the_stated_length(lines, dtype, rounding):
    band = band_of(0.1, lines, dtype=dtype)
    index, weights = cubic_stencil(band, band.feet.points, band.component, lines)
    assert index.shape == weights.shape == (len(band), ENTRIES[lines])
    assert weights.dtype == dtype
    assert float((weights.sum(1) - 1).abs().max()) < rounding


@pytest.mark.parametrize("lines", list(Lines))
def test_extension_is_constant_along_normals(lines):
    """On a lattice with a node in the centre of the sphere the nodes of an axis share one foot."""
    band = band_of(0.1, lines, origin=(0.0, 0.0, 0.0))
    E = interpolation_matrix(band, band.feet.points, band.component, lines)
    u = E @ torch.rand(len(band), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    i = torch.arange(6, 15)
    axis = band.find(torch.stack([i, 0 * i, 0 * i], 1), torch.zeros_like(i))
    assert (axis >= 0).all()
    torch.testing.assert_close(u[axis], u[axis[0]].expand(len(i)))
    assert float(u.max() - u.min()) > 0.1


def test_points_off_the_surface_are_refused():
    band = band_of(0.1, Lines.NEAREST)
    points = torch.tensor([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    with pytest.raises(InputError, match=r"2 of 3 interpolation stencils leave the band of spacing 0\.1"):
        interpolation_matrix(band, points, torch.zeros(3, dtype=torch.int64), Lines.NEAREST)
