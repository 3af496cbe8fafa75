"""Triangles through uneven samples: the surface that they came from, taken where fits leave holes and nowhere else."""

import pytest
import torch

import lamina
from lamina.geometry.triangles import dot, triangle_areas, triangle_normals, unit
from lamina.metrics import errors
from lamina.reconstruction.choose import reconstruct
from lamina.reconstruction.neural_cloud import NeuralCloud
from lamina.reconstruction.triangulated_cloud import TriangulatedCloud, is_noisy
from lamina.reconstruction.triangulation import triangulate
from lamina.reconstruction.weights import shipped_fit_network


def rounded_box(along: int = 80, radius: float = 0.1, bands: int = 4):
    """A cube of side 2 with round edges: samples dense along these, and none on its flat faces.

    The sphere of its corners, with as many bands from face to face, is pulled apart along the edges.
    """
    t = torch.linspace(-1, 1, along, dtype=torch.float64) * (1 - radius)
    angle = torch.linspace(0, torch.pi / 2, bands + 1, dtype=torch.float64)
    points, normals = [], []
    for axis in range(3):
        for s in (-1, 1):
            for r in (-1, 1):
                place, look = torch.zeros(along, bands + 1, 3).double(), torch.zeros(along, bands + 1, 3).double()
                u, v = (axis + 1) % 3, (axis + 2) % 3
                look[..., u], look[..., v] = s * angle.cos(), r * angle.sin()
                place[..., axis] = t[:, None]
                place[..., u], place[..., v] = s * (1 - radius), r * (1 - radius)
                points.append((place + radius * look).reshape(-1, 3))
                normals.append(look.reshape(-1, 3))
    return torch.cat(points), torch.cat(normals)


def area_of_rounded_box(radius: float = 0.1) -> float:
    flat = 2 * (1 - radius)
    return 6 * flat**2 + 12 * flat * torch.pi / 2 * radius + 4 * torch.pi * radius**2


def area(points, faces):
    return float(triangle_areas(points[faces]).sum())


def test_flat_faces_without_samples_are_spanned():
    points, normals = rounded_box()
    found = triangulate(points, normals)
    assert found is not None
    assert area(points, found.without_lids(points, normals)) == pytest.approx(area_of_rounded_box(), rel=0.02)


@pytest.mark.parametrize("sign", [1, -1])
def test_triangles_look_where_normals_do(sign):
    feet = lamina.Sphere().sample(2000, 0)
    found = triangulate(feet.points, sign * feet.normals)
    assert found is not None
    faces = found.faces
    assert len(faces) == 2 * 2000 - 4
    looks = triangle_normals(feet.points[faces])
    assert float(sign * dot(looks, unit(feet.points[faces].mean(1))).amin()) > 0.9


def test_every_edge_joins_two_triangles():
    feet = lamina.Torus(1.0, 0.4).sample(3000, 0)
    found = triangulate(feet.points, feet.normals)
    assert found is not None
    faces = found.faces
    edges = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]).sort(1).values
    count = edges.unique(dim=0, return_counts=True)[1]
    assert bool((count % 2 == 0).all())
    assert area(feet.points, faces) == pytest.approx(4 * torch.pi**2 * 0.4, rel=0.02)


def notched_block(count: int):
    """Random samples of a U, 22 units in area, with a notch one unit wide: faces beside it lie in one plane."""
    corners = [(0, 0), (3, 0), (3, 2), (2, 2), (2, 1), (1, 1), (1, 2), (0, 2)]
    faces = [(0, 0, 1, 2), (1, 0, 1, 1), (2, 0, 1, 2)]  # x, y, and sizes, of both ends
    g = torch.Generator().manual_seed(0)
    points, normals = [], []
    for (x, y), (x2, y2) in zip(corners, corners[1:] + corners[:1], strict=True):
        length = abs(x2 - x) + abs(y2 - y)
        s, t = torch.rand(2, count * length // 22, generator=g, dtype=torch.float64)
        points.append(torch.stack([x + s * (x2 - x), y + s * (y2 - y), t], 1))
        normals.append(torch.tensor([y2 - y, x - x2, 0.0]).double().div(length).expand(len(s), 3))
    for x, y, wide, high in faces:
        for z in (0, 1):
            s, t = torch.rand(2, count * wide * high // 22, generator=g, dtype=torch.float64)
            points.append(torch.stack([x + s * wide, y + t * high, torch.full_like(s, z)], 1))
            normals.append(torch.tensor([0.0, 0.0, 2 * z - 1]).double().expand(len(s), 3))
    return torch.cat(points), torch.cat(normals)


@pytest.mark.parametrize("count", [5000, 20_000])
def test_notches_between_faces_of_one_plane_stay_open(count):
    """Triangles between random samples cut edges off, which costs up to 3 % of the area."""
    points, normals = notched_block(count)
    found = triangulate(points, normals)
    assert found is not None
    faces = found.without_lids(points, normals)
    assert area(points, faces) == pytest.approx(22, rel=0.03)
    x, y, _ = points[faces].mean(1).unbind(1)
    assert not bool(((x > 1.1) & (x < 1.9) & (y > 1.2)).any())


def test_a_cloud_with_bare_faces_is_solved_on_triangles():
    points, normals = rounded_box()
    domain = lamina.Domain(lamina.PointCloud(points, normals), 0.1, show_progress=False)
    assert isinstance(domain.geometry, TriangulatedCloud)
    assert domain.scheme.name == "trace"
    assert domain.quadrature.area == pytest.approx(area_of_rounded_box(), rel=0.02)
    assert domain.reconstruction.method == "triangles"
    u = lamina.poisson(domain, lambda x: x[:, 0], show_progress=False)
    assert u.values.shape == (len(points),)
    assert bool(torch.isfinite(u.values).all())


def test_specks_of_an_uneven_cloud_are_left_out_and_said():
    """Each would have a constant of its own, and the lowest eigenvalues would all be zero."""
    points, normals = rounded_box()
    far = points.new_tensor([2.0, 0.0, 0.0])
    cloud = lamina.PointCloud(torch.cat([points, 0.05 * points + far]), normals.repeat(2, 1))
    domain = lamina.Domain(cloud, 0.2, show_progress=False)
    assert isinstance(domain.geometry, TriangulatedCloud)
    assert domain.component_count == 1
    assert "1 part of the surface, 0.25% of its area, was left out" in " ".join(domain.warnings)
    u = lamina.poisson(domain, lambda x: x[:, 0], show_progress=False)
    assert bool(torch.isfinite(u.values).all())


def half(points):
    return points[:, 2] > 0


@pytest.mark.parametrize("kind", ["closed", "open", "flipped", "outliers"])
def test_even_clouds_have_their_area(kind):
    feet = lamina.Sphere().sample(4000, 0)
    points, normals = feet.points.clone(), feet.normals.clone()
    g = torch.Generator().manual_seed(0)
    if kind == "open":
        points, normals = points[half(feet.points)], normals[half(feet.points)]
    if kind == "flipped":
        normals[::10] *= -1
    if kind == "outliers":
        points[-200:] = 2 * torch.rand(200, 3, generator=g, dtype=torch.float64) - 1
        normals[-200:] = unit(torch.randn(200, 3, generator=g, dtype=torch.float64))
    found = reconstruct(lamina.PointCloud(points, normals), "best").surface
    if kind in ("closed", "flipped"):
        assert isinstance(found, NeuralCloud)
    expected = (2 if kind == "open" else 4) * torch.pi
    assert float(found.areas.sum()) == pytest.approx(expected, rel=0.025)


def test_an_uneven_cloud_keeps_its_rim():
    """The box without its lower half: what closes it below is left out."""
    points, normals = rounded_box()
    upper = points[:, 2] > 0
    found = reconstruct(lamina.PointCloud(points[upper], normals[upper]), "best").surface
    assert isinstance(found, TriangulatedCloud)
    assert found.faces is not None
    corners = found.points[found.faces]
    lid = (corners[..., 2] < points[upper][:, 2].min() + 0.01).all(1)
    assert float(triangle_areas(corners[lid]).sum()) < 0.01 * 4
    assert float(triangle_areas(corners).sum()) == pytest.approx(area_of_rounded_box() / 2, rel=0.05)


def bumpy_sphere() -> lamina.SphericalMap:
    return lamina.SphericalMap(lambda x: x * (1 + 0.15 * torch.sin(12 * x).prod(-1, keepdim=True)))


def test_bumps_that_neighbourhoods_cannot_show_are_joined_by_triangles():
    feet = bumpy_sphere().sample(3000, 0)
    found = reconstruct(lamina.PointCloud(feet.points, feet.normals), "best").surface
    assert isinstance(found, TriangulatedCloud)


def compare_with_fits(surface, count: int, spacing: float) -> tuple[float, float]:
    """NRMSE of Poisson's equation on random samples of a surface as they come, and by fits; against the surface."""
    feet, probes = surface.sample(count, 0), surface.sample(2000, 1).points

    def solution(of):
        domain = lamina.Domain(of, spacing, order=2, show_progress=False)
        return lamina.poisson(domain, lambda x: torch.sin(2 * x[:, 0]) + x[:, 2], show_progress=False)(probes)

    cloud = lamina.PointCloud(feet.points, feet.normals)
    exact = solution(surface)
    ways = solution(cloud), solution(NeuralCloud(cloud, shipped_fit_network()))
    found, fits = (errors(u, exact, remove_mean=True).nrmse for u in ways)
    return found, fits


@pytest.mark.slow
def test_triangles_give_better_solutions_than_the_fits_whose_place_they_take():
    triangles, fits = compare_with_fits(bumpy_sphere(), 3000, 0.05)
    assert triangles < 0.6 * fits
    assert triangles < 0.02


@pytest.mark.slow
def test_thin_parts_whose_samples_fits_leave_out_are_joined_by_triangles():
    """A lens 0.1 thick, from samples 0.027 apart: fits take the sides of its rim for each other."""
    triangles, fits = compare_with_fits(lamina.Ellipsoid(1, 0.3, 0.05), 3000, 0.1)
    assert triangles < 0.25 * fits
    assert triangles < 0.004


def test_a_lid_that_normals_half_agree_with_is_left_out():
    """A sphere cut where its normals are at 66 degrees to the lid: no corner denies it, all together do."""
    feet, height = lamina.Sphere().sample(6000, 0), 0.4
    angle = 2 * torch.pi * torch.arange(60, dtype=torch.float64) / 60
    wide = (1 - height**2) ** 0.5
    rim = torch.stack([wide * angle.cos(), wide * angle.sin(), torch.full_like(angle, height)], 1)
    points = torch.cat([feet.points[feet.points[:, 2] < height], rim])
    found = triangulate(points, points)
    assert found is not None
    bowl, lid = 2 * torch.pi * (1 + height), torch.pi * wide**2
    assert area(points, found.faces) == pytest.approx(bowl + lid, rel=0.01)
    assert area(points, found.without_lids(points, points)) == pytest.approx(bowl, rel=0.01)


def test_noise_is_told_from_a_rough_surface():
    """Noise of a fifth of the spacing leaves normals as they are; bumps sampled too sparsely turn them."""
    feet = lamina.Sphere().sample(4000, 0)
    spacing = (4 * torch.pi / 4000) ** 0.5
    noise = 0.2 * spacing * torch.randn(4000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bumps = bumpy_sphere().sample(600, 0)
    assert is_noisy(feet.points + noise, feet.normals)
    assert not is_noisy(feet.points, feet.normals)
    assert not is_noisy(bumps.points, bumps.normals)
