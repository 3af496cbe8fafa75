"""Clouds by robust fits: as good as jets on clean samples, and a surface where jets find none."""

import pytest
import torch

import lamina
from lamina.errors import InputError
from lamina.gallery import sphere_heat, sphere_poisson
from lamina.geometry.triangles import dot, unit
from lamina.metrics import errors
from lamina.reconstruction.choose import reconstruct
from lamina.reconstruction.neural_cloud import NeuralCloud
from lamina.reconstruction.weights import shipped_fit_network

PROBLEM = sphere_poisson()
COUNT = 4000


def sphere(count=COUNT, seed=0):
    feet = lamina.Sphere().sample(count, seed)
    return feet.points.clone(), feet.normals.clone()


def learned(points, normals=None):
    found = reconstruct(lamina.PointCloud(points, normals), "fits")
    assert found.method == "fits"
    assert isinstance(found.surface, NeuralCloud)
    return found.surface


def nmae(domain, rhs=PROBLEM.rhs):
    u = lamina.poisson(domain, rhs, tolerance=1e-9, show_progress=False)
    feet = unit(domain.points)
    return errors(u.values, PROBLEM.solution(feet), remove_mean=True).nmae


def test_clean_samples_give_the_accuracy_of_the_jet():
    points, normals = sphere(10_000)
    found = {}
    for extension in ("neural", "jet"):
        cloud = lamina.PointCloud(points, normals)
        domain = lamina.paper.BandDomain(cloud, 0.1, extension=extension, scheme="coupled", show_progress=False)
        found[extension] = nmae(domain)
    assert found["neural"] <= 1.05 * found["jet"]


def test_second_order_when_samples_are_refined_with_the_grid():
    found = []
    for spacing in (0.2, 0.1):
        points, normals = sphere(round(50 / spacing**2))
        cloud = lamina.PointCloud(points, normals)
        domain = lamina.paper.BandDomain(
            cloud, spacing, order=2, extension="neural", scheme="coupled", show_progress=False
        )
        found.append(nmae(domain))
    assert found[0] / found[1] > 2**1.7


@pytest.mark.slow
def test_heat_is_not_damped_more_than_it_should_be():
    problem = sphere_heat()
    points, normals = sphere()
    domain = lamina.Domain(lamina.PointCloud(points, normals), 0.1, extension="neural", show_progress=False)
    for time in (0.01, 0.1, 0.5):
        u = lamina.heat(domain, problem.initial, time=time, accuracy=1e-4, show_progress=False)
        assert errors(u.values, problem.solution(points, time)).nmae < 1e-3


def test_flipped_normals_are_turned_back():
    points, normals = sphere()
    turned = torch.rand(COUNT, generator=torch.Generator().manual_seed(0)) < 0.15
    cloud = learned(points, torch.where(turned[:, None], -normals, normals))
    assert float((dot(cloud.normals, points) > 0.9).double().mean()) == 1.0
    assert nmae(lamina.Domain(cloud, 0.1, order=2, show_progress=False)) < 2e-3


@pytest.mark.parametrize("with_normals", [True, False])
def test_outliers_are_left_out(with_normals):
    points, normals = sphere()
    g = torch.Generator().manual_seed(0)
    points[-200:] = 2 * torch.rand(200, 3, generator=g, dtype=torch.float64) - 1
    normals[-200:] = unit(torch.randn(200, 3, generator=g, dtype=torch.float64))
    cloud = learned(points, normals if with_normals else None)
    fitted = cloud.fit.cloud.points.norm(dim=1)
    assert float((fitted - 1).abs().max()) < 0.05
    assert len(fitted) > 3700
    assert "found off the surface" in " ".join(cloud.notes)
    assert float(cloud.areas.sum()) == pytest.approx(4 * torch.pi, rel=0.01)
    domain = lamina.Domain(cloud, 0.1, order=2, show_progress=False)
    u = lamina.poisson(domain, PROBLEM.rhs, show_progress=False)
    where = points[:1000]
    assert errors(u(where), PROBLEM.solution(where), remove_mean=True).nmae < 2e-3
    assert torch.isfinite(u.values).all()


@pytest.mark.slow
def test_noise_is_smoothed_and_the_scheme_that_bears_it_chosen():
    points, _ = sphere(8000)
    noisy = points + 0.02 * torch.randn(points.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cloud = NeuralCloud(lamina.PointCloud(noisy), shipped_fit_network())
    assert cloud.noisy
    off = (cloud.fit.cloud.points.norm(dim=1) - 1).square().mean().sqrt()
    assert float(off) < 0.02 / 3
    domain = lamina.Domain(cloud, 0.1, show_progress=False)
    assert domain.scheme.name == "trace"
    assert float(domain.quadrature.weights.sum()) == pytest.approx(4 * torch.pi, rel=0.01)


def shaken(points, size=0.004):
    return points + size * torch.randn(points.shape, generator=torch.Generator().manual_seed(3)).double()


@pytest.mark.slow
def test_wide_jets_take_the_place_of_the_network_where_noise_lies_on_a_smooth_surface():
    ball = lamina.Sphere()
    cloud = lamina.PointCloud(shaken(ball.sample(4000, 0).points, 0.001))
    fits, found = NeuralCloud(cloud, shipped_fit_network()), reconstruct(cloud, "best")
    assert (found.surface, found.method) == (cloud, "jets")
    x = ball.sample(2000, 1).points
    off = [(g.closest_points(x).points.norm(dim=1) - 1).square().mean().sqrt() for g in (found.surface, fits)]
    assert off[0] < 0.6 * off[1]


def tin(count):
    """Random samples of a cylinder with lids, whose two edges no wide jet follows."""
    g = torch.Generator().manual_seed(0)
    turn, along, across = torch.rand(3, count, generator=g, dtype=torch.float64)
    lid, angle = torch.rand(count, generator=g) < 1 / 3, 2 * torch.pi * turn
    radius = torch.where(lid, across.sqrt(), 1.0)
    height = torch.where(lid, 2 * along.round(), 2 * along)
    return torch.stack([radius * angle.cos(), radius * angle.sin(), height], 1)


@pytest.mark.slow
def test_wide_jets_do_not_where_there_are_edges_or_normals_were_turned():
    assert learned(shaken(tin(4000))).noisy
    feet = lamina.Torus().sample(4000, 0)
    flipped = torch.where(torch.rand(4000, 1, generator=torch.Generator().manual_seed(0)) < 0.1, -1.0, 1.0)
    assert learned(shaken(feet.points), flipped * feet.normals).noisy


def test_the_surface_and_its_feet_agree():
    points, normals = sphere()
    cloud = learned(points, normals)
    x = 1.05 * unit(torch.randn(300, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    feet = cloud.closest_points(x)
    torch.testing.assert_close(feet.points, x / 1.05, rtol=0, atol=1e-5)
    assert float(cloud.offsets(feet.points, feet).abs().max()) < 1e-6
    assert not bool(feet.beyond.any())
    own = cloud.own_feet()
    assert own.points.shape == points.shape


def test_open_clouds_end_where_their_samples_do():
    g = torch.Generator().manual_seed(0)
    flat = torch.cat([torch.rand(3000, 2, generator=g).double(), torch.zeros(3000, 1).double()], 1)
    domain = lamina.Domain(lamina.PointCloud(flat), 0.05, extension="neural", order=2, show_progress=False)
    assert float(domain.quadrature.weights.sum()) == pytest.approx(1, rel=0.05)


def test_the_default_of_clouds_is_the_learned_operator():
    points, normals = sphere(2000)
    assert lamina.Domain(lamina.PointCloud(points, normals), 0.2, show_progress=False).extension == "neural"
    few = lamina.Domain(lamina.PointCloud(points[:400], normals[:400]), 0.2, show_progress=False)
    assert few.extension == "jet"
    assert lamina.Domain(lamina.Sphere(), 0.2, show_progress=False).extension == "closest-point"
    mesh = lamina.Sphere(level=4)
    domain = lamina.Domain(mesh, 0.2, extension="neural", order=2, show_progress=False)
    assert nmae(domain) < 1e-2


def test_too_few_points_are_refused():
    points, normals = sphere(100)
    with pytest.raises(InputError, match="needs 256 distinct points or more, got 100"):
        lamina.Domain(lamina.PointCloud(points, normals), 0.3, extension="neural")


def test_moved_to_another_precision_it_is_the_same_surface():
    points, normals = sphere()
    cloud = learned(points, normals)
    single = cloud.to(dtype=torch.float32)
    x = 1.02 * points[:50]
    one, two = cloud.closest_points(x).points, single.closest_points(x.float()).points
    torch.testing.assert_close(two.double(), one, rtol=0, atol=1e-4)


def test_single_precision_is_enough_for_a_domain():
    points, normals = sphere()
    cloud = lamina.PointCloud(points, normals)
    domain = lamina.Domain(cloud, 0.1, extension="neural", dtype=torch.float32, show_progress=False)
    u = lamina.poisson(domain, PROBLEM.rhs, show_progress=False)
    assert u.values.dtype == torch.float32
    assert errors(u.values, PROBLEM.solution(points), remove_mean=True).nmae < 1e-3


@pytest.mark.gpu
def test_a_gpu_finds_the_same_surface():
    points, normals = sphere()
    cpu = learned(points, normals)
    gpu = reconstruct(lamina.PointCloud(points, normals).to("cuda"), "fits").surface
    x = 1.05 * points[:200]
    there = gpu.closest_points(x.cuda()).points.cpu()
    torch.testing.assert_close(there, cpu.closest_points(x).points, rtol=0, atol=1e-6)
