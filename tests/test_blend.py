"""Jets blended into one surface: accurate where it is smooth, sharp at edges, without fins."""

import numpy as np
import pytest
import torch

import lamina
from lamina.fits import polynomials
from lamina.fits.blend import Blend
from lamina.fits.surface_fit import Cloud, JetSettings
from lamina.geometry.triangles import dot, unit
from lamina.search.neighbours import k_nearest


def blended(points, normals, settings, **options):
    cloud = Cloud(points, normals, torch.zeros(len(points), dtype=torch.int64))
    near = cloud.neighbours(torch.arange(len(points)), max(16, settings.k))
    return Blend(points, normals, near[:, :16], cloud.fit(near, settings), **options)


def at(blend, x):
    return blend(x, k_nearest(blend.points, 1, x)[0][:, 0])


def box(count, seed=0):
    """Samples of the surface of the unit cube about the origin, with normals."""
    g = torch.Generator().manual_seed(seed)
    points = torch.rand(count, 3, generator=g, dtype=torch.float64) - 0.5
    axis = torch.randint(3, (count, 1), generator=g)
    side = torch.where(torch.rand(count, 1, generator=g) < 0.5, -1.0, 1.0).double()
    normals = torch.zeros_like(points).scatter(1, axis, side)
    return points.scatter(1, axis, 0.5 * side), normals


@pytest.mark.parametrize("sharp", [True, False])
def test_the_blend_of_quadrics_on_a_sphere_is_of_fourth_order(sharp):
    errors = []
    for count in (1000, 4000, 16000):
        feet = lamina.Sphere().sample(count, 1)
        blend = blended(feet.points, feet.normals, JetSettings(2, 24, False), sharp=sharp)
        x = unit(torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
        phi, n = at(blend, x)
        errors.append(float(phi.square().mean().sqrt()))
        assert float(dot(n, x).min()) > 0.98
    orders = np.log2(np.array(errors[:-1]) / np.array(errors[1:]))
    assert (orders > 3.3).all(), orders


def test_edges_and_corners_of_a_cube_are_sharp():
    points, normals = box(6000)
    flat = JetSettings(2, 12, True)
    blend = blended(points, normals, flat)
    g = torch.Generator().manual_seed(2)
    x = 1.2 * (torch.rand(4000, 3, generator=g, dtype=torch.float64) - 0.5)
    exact = x.abs().amax(1) - 0.5
    near = (exact.abs() < 0.05).nonzero()[:, 0]
    phi, _ = at(blend, x[near])
    # Outside a corner the largest of three planes is wanted and two are told apart: no more than a spacing is lost.
    off = (phi - exact[near]).abs()
    spacing = (6 / 6000) ** 0.5
    assert float(off.quantile(0.95)) < 0.1 * spacing
    wrong = (phi > 0) != (exact[near] > 0)
    assert float(wrong.double().mean()) < 0.01
    rounded, _ = at(blended(points, normals, flat, sharp=False), x[near])
    assert float((rounded - exact[near]).abs().mean()) > 3 * float(off.mean())


def test_inward_edges_are_kept_too():
    """The cube inside out: the solid is all but a box."""
    points, normals = box(6000)
    blend = blended(points, -normals, JetSettings(2, 12, True))
    edge = torch.linspace(-0.4, 0.4, 50, dtype=torch.float64)
    x = torch.stack([edge, torch.full_like(edge, 0.49), torch.full_like(edge, 0.47)], 1)
    phi, n = at(blend, x)
    torch.testing.assert_close(phi, torch.full_like(phi, 0.01), rtol=0, atol=2e-3)
    assert float(n[:, 1].max()) < -0.99


@pytest.mark.parametrize("gap", [0.5, 1.0, 2.0])
def test_both_sides_of_a_thin_plate_are_found(gap):
    g = torch.Generator().manual_seed(0)
    ab = 2 * torch.rand(2000, 2, generator=g, dtype=torch.float64) - 1
    spacing = (4 / 1000) ** 0.5
    top = torch.arange(2000) < 1000
    z = torch.where(top, 0.5, -0.5).double() * gap * spacing
    points = torch.cat([ab, z[:, None]], 1)
    normals = torch.zeros_like(points)
    normals[:, 2] = torch.where(top, 1.0, -1.0)
    blend = blended(points, normals, JetSettings(2, 12, True))
    x = points[(ab.abs() < 0.8).all(1)].clone()
    for lift in (-0.2, 0.2):
        phi, n = at(blend, x + torch.tensor([0, 0, lift * gap * spacing]))
        exact = (x[:, 2] + lift * gap * spacing).abs() - 0.5 * gap * spacing
        right = (phi - exact).abs() < 0.02 * spacing
        assert float(right.double().mean()) > 0.97
        del n


def test_one_sheet_whose_normals_look_both_ways_keeps_a_side():
    g = torch.Generator().manual_seed(0)
    points = torch.cat([2 * torch.rand(1000, 2, generator=g).double() - 1, torch.zeros(1000, 1).double()], 1)
    normals = torch.zeros_like(points)
    normals[:, 2] = torch.where(points[:, 0] > 0, 1.0, -1.0)
    x = torch.tensor([[0.5, 0.1, 0.02], [-0.5, 0.1, 0.02], [0.03, 0.2, 0.02], [-0.03, 0.2, 0.02]]).double()
    phi, _ = at(blended(points, normals, JetSettings(2, 12, True)), x)
    torch.testing.assert_close(phi.abs(), torch.full_like(phi, 0.02), rtol=0, atol=1e-9)
    assert phi[0] > 0 > phi[1]


def test_gradients_are_finite_right_over_a_sample():
    """Above the sample of a plane a place has no distance from it along the plane."""
    t = torch.linspace(-1, 1, 21, dtype=torch.float64)
    a, b = torch.meshgrid(t, t, indexing="ij")
    points = torch.stack([a, b, torch.zeros_like(a)], -1).reshape(-1, 3).requires_grad_()
    normals = torch.zeros_like(points.detach())
    normals[:, 2] = 1
    x = (points.detach()[210:230] + torch.tensor([0.0, 0.0, 0.03])).requires_grad_()
    phi, _ = blended(points, normals, JetSettings(2, 12, slopes=True))(x, torch.arange(210, 230))
    phi.sum().backward()
    assert x.grad is not None
    assert points.grad is not None
    assert torch.allclose(x.grad, normals[:20])
    assert bool(points.grad.isfinite().all())


def test_what_was_fitted_in_inference_mode_does_not_stop_gradients():
    points = lamina.Sphere().sample(400, 0).points
    near = k_nearest(points, 24)[0]
    polynomials.derivatives.cache_clear()
    polynomials._powers.cache_clear()
    with torch.inference_mode():
        Cloud(points, points, torch.zeros(400).long()).fit(near, JetSettings(4, 24, slopes=True))
    live = points.clone().requires_grad_()
    jets = Cloud(live, points.clone(), torch.zeros(400).long()).fit(near.clone(), JetSettings(4, 24, slopes=True))
    jets.coefficients.square().sum().backward()
    assert live.grad is not None
    assert bool(live.grad.isfinite().all())
