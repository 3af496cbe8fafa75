"""The surface that encloses a volume, from bare samples: its topology, its sides, and the error of its area."""

import math

import pytest
import torch

import lamina
from lamina.fits.normals import pca_normals
from lamina.geometry.triangles import dot, triangle_areas, triangle_normals, unit
from lamina.reconstruction.enclosure import enclosure
from lamina.reconstruction.triangulated_cloud import area_error, triangulated


def area(points, faces):
    return float(triangle_areas(points[faces]).sum())


def euler_characteristic(faces):
    edges = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]).sort(1).values
    return len(faces.unique()) - len(edges.unique(dim=0)) + len(faces)


def without_lids(points, found):
    return found.without_lids(points, pca_normals(points))


def closed(faces):
    """Whether every edge is run through as often in one direction as in the other."""
    edges = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    sign = torch.where(edges[:, 0] < edges[:, 1], 1, -1)
    _, which = edges.sort(1).values.unique(dim=0, return_inverse=True)
    return not bool(torch.zeros(int(which.max()) + 1, dtype=torch.int64).index_add_(0, which, sign).any())


def uneven(feet, count):
    """count of the points, 20 times as dense at the right end as at the left."""
    x = feet.points[:, 0]
    weight = 20 ** ((x - x.min()) / (x.max() - x.min()))
    return feet.points[torch.multinomial(weight, count, generator=torch.Generator().manual_seed(1))]


@pytest.mark.parametrize(
    ("surface", "characteristic"),
    [(lamina.Sphere(), 2), (lamina.Torus(1.0, 0.4), 0), (lamina.Ellipsoid(1, 0.5, 0.1), 2)],
)
@pytest.mark.parametrize("density", ["even", "uneven"])
def test_bare_samples_give_a_closed_surface_of_the_right_genus(surface, characteristic, density):
    points = surface.sample(4000, 0).points if density == "even" else uneven(surface.sample(40_000, 0), 4000)
    found = enclosure(points)
    assert found is not None
    assert closed(found.faces)
    assert euler_characteristic(found.faces) == characteristic
    assert len(found.faces.unique()) == 4000
    assert area(points, without_lids(points, found)) == pytest.approx(float(surface.areas.sum()), rel=0.03)


def test_triangles_and_normals_look_outwards():
    points = lamina.Torus(1.0, 0.4).sample(3000, 0).points
    exact = lamina.Torus(1.0, 0.4).closest_points(points).normals
    found = enclosure(points)
    assert found is not None
    looks = triangle_normals(points[found.faces])
    assert float((dot(looks, exact[found.faces[:, 0]]) > 0.5).double().mean()) > 0.99
    assert float(dot(found.normals, exact).min()) > 0


def test_a_cavity_stays():
    """A ball with a hollow: the samples of the inner sphere lie on one sheet, which is no artefact."""
    outer, inner = lamina.Sphere().sample(3000, 0).points, 0.5 * lamina.Sphere().sample(1500, 1).points
    points = torch.cat([outer, inner])
    found = enclosure(points)
    assert found is not None
    assert area(points, found.faces) == pytest.approx(4 * math.pi * 1.25, rel=0.02)
    looks = dot(found.normals, unit(points))
    assert bool((looks[:3000] > 0).all())
    assert bool((looks[3000:] < 0).all())


def test_balls_apart_are_all_found():
    balls = [lamina.Sphere().sample(1000, i).points + 3 * i * torch.tensor([1.0, 0, 0]).double() for i in range(3)]
    points = torch.cat(balls)
    found = enclosure(points)
    assert found is not None
    assert euler_characteristic(found.faces) == 6


def test_the_surface_turns_and_grows_with_the_samples():
    points = lamina.Ellipsoid(1, 0.8, 0.3).sample(2000, 0).points
    turn, _ = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    moved = 1000 * points @ turn + 5
    found, other = enclosure(points), enclosure(moved)
    assert found is not None
    assert other is not None
    assert area(moved, other.faces) == pytest.approx(1e6 * area(points, found.faces), rel=1e-6)


def test_points_in_a_plane_enclose_nothing():
    points = torch.rand(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points[:, 2] = 0
    found = enclosure(points)
    assert found is None or area(points, without_lids(points, found)) < 3


def test_an_opening_stays_open():
    feet = lamina.Sphere().sample(8000, 0)
    points = feet.points[feet.points[:, 2] < 0.5]
    found = enclosure(points)
    assert found is not None
    assert closed(found.faces)
    assert area(points, without_lids(points, found)) == pytest.approx(2 * math.pi * 1.5, rel=0.01)


def box(count):
    g = torch.Generator().manual_seed(0)
    p = 2 * torch.rand(count, 3, generator=g, dtype=torch.float64) - 1
    axis = torch.randint(3, (count, 1), generator=g)
    return p.scatter(1, axis, torch.where(p.gather(1, axis) < 0, -1.0, 1.0).double())


@pytest.mark.parametrize("count", [1000, 4000, 16_000])
def test_the_estimated_error_of_the_area_is_of_the_size_of_the_true_one(count):
    points = box(count)
    found = enclosure(points)
    assert found is not None
    error = 1 - area(points, found.faces) / 24
    assert error / 2 < area_error(points, points, found, lambda p, _: enclosure(p)) < 2 * error


def test_the_solution_on_joined_samples_converges_with_them():
    errors = []

    def f(x):
        return x[:, 0] + x[:, 1] ** 2

    for count in (1000, 4000, 16_000):
        surface = lamina.Ellipsoid(1, 0.6, 0.4)
        cloud = lamina.PointCloud(uneven(surface.sample(10 * count, 0), count))
        domain = lamina.Domain(cloud, 0.05, reconstruction="auto", order=2, show_progress=False)
        exact = lamina.Domain(surface, 0.05, order=2, show_progress=False)
        probes = surface.sample(1000, 2).points
        u, v = (lamina.poisson(d, f, show_progress=False)(probes) for d in (domain, exact))
        errors.append(float((u - v - (u - v).mean()).std() / (v.max() - v.min())))
    assert errors[1] < errors[0] / 2
    assert errors[2] < errors[1]


def rough(count):
    """A sphere with ripples that jets cannot follow and triangles can."""
    return lamina.SphericalMap(lambda x: x * (1 + 0.1 * torch.sin(14 * x).prod(-1, keepdim=True))).sample(count, 0)


def test_noisy_samples_are_smoothed_and_joined():
    feet = lamina.Torus(1.0, 0.4).sample(8000, 0)
    noise = 0.02 * torch.randn(8000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = triangulated(lamina.PointCloud(feet.points + noise))
    assert found is not None
    assert float(found.mesh.areas.sum()) == pytest.approx(4 * math.pi**2 * 0.4, rel=0.03)
    assert "Noise of about 0.02" in " ".join(found.mesh.notes)


def test_a_warning_says_how_wrong_the_area_may_be():
    points = rough(1500).points
    domain = lamina.Domain(lamina.PointCloud(points), 0.1, show_progress=False)
    report = domain.report()
    assert report["reconstruction"] == "triangles"
    assert report["area_error"] > 0.03
    assert f"may be off by about {report['area_error']:.0%}" in " ".join(domain.warnings)


@pytest.mark.parametrize("height", [0.0, 0.5, 0.9, 0.97])
def test_a_cap_has_no_lid(height):
    """A shallow one encloses a flat volume with its lid, whose normals look the other way."""
    feet = lamina.Sphere().sample(round(4000 / (1 - height)), 0)
    points = feet.points[feet.points[:, 2] > height]
    cloud = lamina.PointCloud(points)
    domain = lamina.Domain(cloud, 0.2 * (1 - height) ** 0.5, show_progress=False)
    assert domain.quadrature.area == pytest.approx(2 * math.pi * (1 - height), rel=0.03)


def test_a_flat_sheet_is_not_doubled():
    g = torch.Generator().manual_seed(0)
    points = torch.rand(3000, 3, generator=g, dtype=torch.float64)
    points[:, 2] = 0.01 * torch.randn(3000, generator=g, dtype=torch.float64)
    domain = lamina.Domain(lamina.PointCloud(points), 0.1, show_progress=False)
    assert domain.quadrature.area == pytest.approx(1, rel=0.1)
