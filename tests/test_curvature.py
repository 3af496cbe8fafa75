"""Principal curvatures and directions: exact where there are formulas, dn = k t elsewhere, convergence on samples."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lamina
from lamina.fits.curvature import (
    SurfaceFeatures,
    from_fundamental_forms,
    from_level_set,
    from_samples,
    from_shape_operator,
)
from lamina.geometry.frames import tangent_frames
from lamina.geometry.triangles import dot
from lamina.surfaces.analytic import _torus_grid
from lamina.surfaces.base import Surface

R, r = 1.0, 0.4
TORUS = lamina.Torus(R, r)
AXES = (1.0, 0.8, 0.6)


def torus_phi(x: Tensor) -> Tensor:
    return (torch.hypot(x[:, 0], x[:, 1]) - R) ** 2 + x[:, 2] ** 2 - r**2


def torus_truth(points: Tensor) -> SurfaceFeatures:
    """The torus from its angles, written down again: k1 = 1/r across the tube, k2 = cos v / (R + r cos v)."""
    u, v = torch.atan2(points[:, 1], points[:, 0]), torch.atan2(points[:, 2], torch.hypot(*points[:, :2].T) - R)
    normals = torch.stack([u.cos() * v.cos(), u.sin() * v.cos(), v.sin()], 1)
    across = torch.stack([-u.cos() * v.sin(), -u.sin() * v.sin(), v.cos()], 1)
    frames = torch.stack([normals, across, torch.linalg.cross(normals, across)], 1)
    return SurfaceFeatures(points, frames, torch.stack([torch.full_like(v, 1 / r), v.cos() / (R + r * v.cos())], 1))


def line_angle(a: Tensor, b: Tensor) -> Tensor:
    """Angle (m,) between the lines along a and b, in degrees."""
    return torch.rad2deg(torch.atan2(torch.linalg.cross(a, b).norm(dim=1), dot(a, b).abs()))


def assert_frames(features: SurfaceFeatures, tolerance: float = 1e-12) -> None:
    frames = features.frames
    identity = torch.eye(3, dtype=frames.dtype)
    assert (frames @ frames.transpose(1, 2) - identity).abs().max() < tolerance
    assert (torch.linalg.cross(frames[:, 0], frames[:, 1]) - frames[:, 2]).abs().max() < tolerance
    assert bool((features.curvatures[:, 0] >= features.curvatures[:, 1]).all())


def assert_normals_turn_as_stated(surface: Surface, rows: Tensor, tolerance: float, step: float = 1e-4) -> None:
    """dn(t_i) = k_i t_i, by central differences of the normal at closest points along t_i."""
    features = surface.features().take(rows)
    assert_frames(features)
    for i, tangent in enumerate(features.directions.unbind(1)):
        ahead, behind = (surface.closest_points(features.points + s * tangent) for s in (step, -step))
        turn = (ahead.normals - behind.normals) / (2 * step)
        expected = features.curvatures[:, i : i + 1] * tangent
        assert (turn - expected).norm(dim=1).max() < tolerance


# Exact representations


def test_on_the_torus_curvatures_and_directions_are_those_of_the_formula():
    features, truth = TORUS.features(), torus_truth(TORUS.points)
    assert_frames(features)
    assert (features.curvatures - truth.curvatures).abs().max() < 1e-13
    assert (features.normals - truth.normals).abs().max() < 1e-13
    assert line_angle(features.frames[:, 1], truth.frames[:, 1]).max() < 1e-9
    assert TORUS.features() is features


def test_the_ellipsoid_has_its_gauss_curvature_and_its_normals_turn_as_stated():
    surface = lamina.Ellipsoid(*AXES, level=3)
    features = surface.features()
    a, b, c = AXES
    weight = ((surface.points / torch.tensor(AXES, dtype=torch.float64) ** 2) ** 2).sum(1)
    gauss = 1 / (a * b * c * weight) ** 2
    assert (features.curvatures.prod(1) / gauss - 1).abs().max() < 1e-12
    assert_normals_turn_as_stated(surface, torch.arange(len(surface.points)), 1e-6)


def test_at_umbilics_frames_are_orthonormal_and_curvatures_equal():
    for surface in (lamina.Sphere(2.0, level=3), lamina.SphericalMap(lambda s: 2 * s, level=3)):
        features = surface.features()
        assert_frames(features)
        assert (features.curvatures - 0.5).abs().max() < 1e-13
        assert (features.normals - surface.normals).abs().max() < 1e-14
    flat = from_level_set(torch.zeros(2, 3), torch.eye(3)[:2], torch.zeros(2, 3, 3))
    assert_frames(flat, 1e-6)
    assert bool((flat.curvatures == 0).all())


def test_an_ellipsoid_as_a_map_has_the_curvatures_of_its_equation():
    exact = lamina.Ellipsoid(*AXES, level=4).features()
    axes = torch.tensor(AXES, dtype=torch.float64)
    for sign in (1.0, -1.0):  # inside out, the map has the same outward normals
        found = lamina.SphericalMap(lambda s, sign=sign: sign * axes * s, level=4).features()
        assert (found.curvatures - exact.curvatures).abs().max() < 1e-12
        apart = exact.curvatures.diff(dim=1)[:, 0].abs() > 0.1  # near umbilics directions are loose
        angle = line_angle(found.frames[:, 1], exact.frames[:, 1])
        assert angle[apart].max() < 1e-9


def test_the_normals_of_the_spike_turn_as_stated():
    surface = lamina.spike()
    assert surface.features().curvatures.abs().max() > 10  # it is a spike
    assert_normals_turn_as_stated(surface, torch.arange(0, len(surface.points), 7), 2e-3, step=1e-4)


def test_an_implicit_torus_is_the_torus():
    surface = lamina.Implicit(torus_phi, [[-1.6, -1.6, -0.6], [1.6, 1.6, 0.6]], samples=2000)
    features, truth = surface.features(), torus_truth(surface.points)
    assert_frames(features)
    assert (features.curvatures - truth.curvatures).abs().max() < 1e-9
    assert (features.normals - truth.normals).abs().max() < 1e-9
    assert line_angle(features.frames[:, 1], truth.frames[:, 1]).max() < 1e-6


def test_linear_functions_have_flat_level_sets():
    surface = lamina.Implicit(lambda x: x @ x.new_tensor([1.0, 2.0, 2.0]), [[-1, -1, -1], [1, 1, 1]], samples=200)
    assert bool((surface.features().curvatures == 0).all())
    assert_frames(surface.features())


# Samples


def torus_mesh(n: int, jitter: float) -> lamina.Mesh:
    points, faces = _torus_grid(R, r, 2 * n, n)
    h = 2 * math.pi * r / n
    noise = torch.rand(len(points), 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64) - 0.5
    return lamina.Mesh(TORUS.closest_points(points + 2 * jitter * h * noise).points, faces)


def errors(surface: Surface) -> tuple[float, float]:
    """RMS of the curvatures' error, and of the angle of t1, in degrees."""
    features, truth = surface.features(), torus_truth(surface.points)
    assert_frames(features)
    assert dot(features.normals, surface.normals).min() > 0.9
    difference = features.facing(truth.normals).curvatures - truth.curvatures
    angle = line_angle(features.facing(truth.normals).frames[:, 1], truth.frames[:, 1])
    return float(difference.square().mean().sqrt()), float(angle.square().mean().sqrt())


@pytest.mark.parametrize(("jitter", "order"), [(0.0, 2.0), (0.35, 1.0)])
def test_on_meshes_curvatures_are_second_order_if_regular_and_first_order_if_not(jitter, order):
    found = [errors(torus_mesh(n, jitter)) for n in (32, 64, 128)]
    assert math.log2(found[0][0] / found[2][0]) / 2 > order - 0.05
    assert found[2][0] < 0.008
    assert math.log2(found[0][1] / found[2][1]) / 2 > order - 0.05
    assert found[2][1] < 0.1


def test_on_clouds_curvatures_converge_at_least_with_order_three():
    """Quartic jets are accurate to the third order in second derivatives, sextic ones to the fifth."""
    clouds = [lamina.PointCloud(torus_mesh(n, 0.35).points) for n in (36, 72)]
    coarse, fine = (errors(cloud) for cloud in clouds)
    assert math.log2(coarse[0] / fine[0]) > 3
    assert fine[0] < 1e-3
    assert fine[1] < 0.01


def test_noise_is_not_curvature():
    points = torus_mesh(48, 0.35).points
    noise = 0.003 * torch.randn(points.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cloud = lamina.PointCloud(points + noise)
    curvature, angle = errors(cloud)
    assert cloud.features().points is cloud.points
    assert curvature < 0.2
    assert angle < 5


def test_repeated_points_and_outliers_have_rows_of_their_own():
    points = torus_mesh(32, 0.2).points
    far = torch.tensor([[0.0, 0.0, 5.0]], dtype=torch.float64)
    cloud = lamina.PointCloud(torch.cat([points, points[:10], far]))
    features = cloud.features()
    assert len(features) == len(points) + 11
    assert_frames(features)
    assert torch.equal(features.curvatures[:10], features.curvatures[-11:-1])


def test_triangle_soup_has_the_curvatures_of_its_mesh():
    mesh = torus_mesh(32, 0.0)
    assert mesh.faces is not None
    soup = lamina.Mesh(mesh.points[mesh.faces].reshape(-1, 3), torch.arange(mesh.faces.numel()).reshape(-1, 3))
    expected = mesh.features().curvatures[mesh.faces.reshape(-1)]
    assert (soup.features().curvatures - expected).abs().max() < 1e-3


def test_unused_vertices_and_tiny_parts_are_finite():
    mesh = torus_mesh(32, 0.0)
    assert mesh.faces is not None
    lone = torch.tensor([[0.0, 0, 0], [3, 0, 0], [4, 0, 0], [3, 1, 0]], dtype=torch.float64)
    count = len(mesh.points)
    triangle = torch.tensor([[count + 1, count + 2, count + 3]])
    surface = lamina.Mesh(torch.cat([mesh.points, lone]), torch.cat([mesh.faces, triangle]))
    features = surface.features()
    assert_frames(features)
    assert bool(features.curvatures.isfinite().all())
    assert features.curvatures[count + 1 :].abs().max() < 1e-12


def test_surfaces_that_know_no_better_use_quadrics_with_their_normals():
    found = Surface._find_features(TORUS)
    assert (found.curvatures - torus_truth(TORUS.points).curvatures).abs().max() < 0.04


# Laws


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_features_turn_with_the_surface_and_scale_inversely(seed):
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))
    q = q * torch.linalg.det(q).sign()
    scale = float(10 ** (4 * torch.rand((), generator=generator) - 2))
    mesh = torus_mesh(16, 0.3)
    here, there = mesh.features(), lamina.Mesh(scale * mesh.points @ q.T, mesh.faces).features()
    assert (scale * there.curvatures - here.curvatures).abs().max() < 1e-8
    assert (there.normals - here.normals @ q.T).abs().max() < 1e-9
    assert line_angle(there.frames[:, 1], here.frames[:, 1] @ q.T).max() < 1e-5


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_the_parametrisation_does_not_matter(seed):
    """With J -> J C and B -> C'BC curvatures and directions stay."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    normals = torch.nn.functional.normalize(random(50, 3), dim=1)
    basis, shape, change = tangent_frames(normals)[:, :2], random(50, 3), random(50, 2, 2)
    change = change + 2 * torch.eye(2, dtype=torch.float64) * change.det().sign()[:, None, None]
    matrix = shape[:, [0, 1, 1, 2]].reshape(50, 2, 2)
    second = change.transpose(1, 2) @ matrix @ change
    condition = torch.linalg.cond(change)
    entries = torch.stack([second[:, 0, 0], second[:, 0, 1], second[:, 1, 1]], 1)
    expected = from_shape_operator(normals, normals, basis, shape)
    found = from_fundamental_forms(normals, normals, change.transpose(1, 2) @ basis, entries)
    assert ((found.curvatures - expected.curvatures).abs().amax(1) / condition**3).max() < 1e-12
    values = torch.linalg.eigvalsh(matrix).flip(1)
    assert (expected.curvatures - values).abs().max() < 1e-13


def test_turning_the_normal_over_negates_and_swaps_the_curvatures():
    features = TORUS.features()
    over = features.facing(-features.normals)
    assert_frames(over)
    assert torch.equal(over.normals, -features.normals)
    assert torch.equal(over.curvatures, -features.curvatures.flip(1))
    assert torch.equal(over.frames[:, 1], features.frames[:, 2])
    assert torch.equal(over.facing(features.normals).frames, features.frames)


def test_single_precision_is_accurate_to_single_precision():
    mesh = torus_mesh(32, 0.2)
    axes = torch.tensor(AXES)
    surfaces = [TORUS, lamina.Ellipsoid(*AXES), mesh, lamina.SphericalMap(lambda s: axes.to(s) * s)]
    for surface in surfaces:
        expected = surface.features()
        single = surface.to(dtype=torch.float32)
        assert single.features().curvatures.dtype == torch.float32  # moved with the surface
        single._features = None
        found = single.features()
        assert found.frames.dtype == torch.float32
        assert_frames(found, 1e-5)
        tolerance = 2e-3 if surface is mesh else 2e-5  # rounded positions, differenced twice
        assert (found.curvatures - expected.curvatures).abs().max() < tolerance * expected.curvatures.abs().max()


def test_samples_of_a_sphere_never_give_nan():
    sphere = lamina.Sphere(level=2)
    for dtype in (torch.float32, torch.float64):
        features = from_samples(sphere.points.to(dtype), sphere.normals.to(dtype), sphere.component, slopes=True)
        assert bool(features.frames.isfinite().all())
        assert_frames(features, 1e-5)
        assert (features.curvatures - 1).abs().max() < 0.1


@pytest.mark.gpu
def test_the_gpu_gives_what_the_cpu_gives():
    for surface in (TORUS, torus_mesh(32, 0.2), lamina.spike()):
        expected = surface.features()
        on_gpu = surface.to("cuda")
        on_gpu._features = None
        assert (on_gpu.features().curvatures.cpu() - expected.curvatures).abs().max() < 1e-9
