"""Normals of bare points: their directions, and signs that agree and look outwards or to a viewpoint."""

import pytest
import torch

from lamina.errors import InputError
from lamina.fits.normals import orient_normals, pca_normals
from lamina.surfaces.analytic import Sphere, Torus
from lamina.surfaces.point_cloud import PointCloud


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sphere(count, seed=0):
    return Sphere().sample(count, seed).points, Sphere().sample(count, seed).points


def torus(count, seed=0):
    samples = Torus().sample(count, seed)
    return samples.points, samples.normals


def box(count, sides, seed=0):
    """Random samples of a box with edges of the given lengths, uniform by area, and outward normals."""
    a, b, c = sides
    areas = torch.tensor([b * c, b * c, a * c, a * c, a * b, a * b], dtype=torch.float64)
    face = torch.multinomial(areas, count, True, generator=torch.Generator().manual_seed(seed))
    points = (uniform(count, 3, seed=seed) - 0.5) * torch.tensor(sides, dtype=torch.float64)
    side = (2.0 * (face % 2) - 1).double()
    axis, rows = face // 2, torch.arange(count)
    points[rows, axis] = side * 0.5 * torch.tensor(sides, dtype=torch.float64)[axis]
    normals = torch.zeros_like(points)
    normals[rows, axis] = side
    return points, normals


def concentric(count):
    outer, inner = sphere(count, 1), sphere(count // 2, 2)
    return torch.cat([outer[0], 0.7 * inner[0]]), torch.cat([outer[1], inner[1]])


def uneven(count):
    """Twenty times denser at one pole than at the other."""
    points = sphere(20 * count, 4)[0]
    kept = uniform(20 * count, seed=5) < 0.05 * 20 ** ((points[:, 2] + 1) / 2)
    return points[kept], points[kept]


def found(points):
    return orient_normals(points, pca_normals(points))


def wrong(normals, true):
    """Share of normals that look to the wrong side, and the median angle between directions, in degrees."""
    cosine = (normals * true).sum(1)
    return float((cosine < 0).double().mean()), float(torch.rad2deg(cosine.abs().clamp(max=1).acos().median()))


@pytest.mark.parametrize(
    ("cloud", "most_wrong", "angle"),
    [
        (sphere(2000), 0.0, 1.0),
        (torus(4000), 0.0, 2.5),
        (concentric(3000), 0.0, 1.0),
        (box(6000, (2, 2, 2)), 0.0, 0.1),
        (box(6000, (2, 2, 0.25)), 0.0, 0.1),
        (uneven(2000), 0.0, 1.0),
    ],
    ids=["sphere", "torus", "concentric spheres", "cube", "plate", "density 1:20"],
)
def test_normals_look_outwards(cloud, most_wrong, angle):
    points, true = cloud
    share, median = wrong(found(points), true)
    assert share <= most_wrong
    assert median < angle


@pytest.mark.parametrize("sigma", [0.005, 0.01, 0.02])
def test_noise_does_not_turn_normals_round(sigma):
    """10,000 samples of the unit sphere lie 0.035 apart: noise of more than half of that turns none."""
    points, true = sphere(10_000, 2)
    share, median = wrong(found(points + sigma * random(10_000, 3, seed=13)), true)
    assert share == 0
    assert median < 2


def test_signs_do_not_depend_on_those_that_came():
    points, true = torus(1500)
    flips = torch.where(uniform(1500, 1, seed=3) < 0.5, -1.0, 1.0).double()
    torch.testing.assert_close(orient_normals(points, flips * true), true)


def test_a_surface_turned_inside_out_is_turned_back():
    """A deep bowl, open at the top: its outermost points are few, its winding numbers know the convex side."""
    points, true = sphere(3000, 6)
    bowl = points[:, 2] < 0.6
    share, _ = wrong(orient_normals(points[bowl], -true[bowl]), true[bowl])
    assert share == 0


def test_normals_look_to_the_viewpoint_from_which_a_scan_was_taken():
    """A bowl seen from above shows its inside: outwards would be the wrong guess."""
    points, true = sphere(3000, 6)
    bowl = points[:, 2] < -0.2
    cloud = PointCloud(points[bowl], viewpoint=(0.0, 0.0, 3.0))
    assert wrong(cloud.normals, -true[bowl])[0] == 0
    assert cloud.notes == ["Normals were estimated from the points and look to the viewpoint."]
    assert wrong(PointCloud(points[bowl]).normals, true[bowl])[0] == 0


def test_parts_of_a_scan_that_do_not_touch_look_to_the_viewpoint_each_for_itself():
    left, right = (Sphere().sample(800, k).points for k in (1, 2))
    eye = torch.tensor([0.0, -6.0, 0.0], dtype=torch.float64)
    points = torch.cat([left, right + torch.tensor([3.0, 0, 0], dtype=torch.float64)])
    true = torch.cat([left, right])
    seen = ((eye - points) * true).sum(1) > 0.2
    assert wrong(PointCloud(points[seen], viewpoint=eye).normals, true[seen])[0] == 0


@pytest.mark.parametrize("place", [(0.0, 1.0), (0.0, 0.0, float("nan")), 3.0])
def test_a_viewpoint_is_a_point(place):
    with pytest.raises(InputError, match="viewpoint must be three finite numbers"):
        PointCloud(sphere(100)[0], viewpoint=place)


def test_wider_neighbourhoods_are_taken_where_there_is_noise():
    points, true = sphere(5000, 3)
    noisy = points + 0.02 * random(5000, 3)
    assert wrong(pca_normals(noisy), true)[1] < 0.5 * wrong(pca_normals(noisy, 24), true)[1]


def test_single_precision_gives_the_same_normals():
    points, _ = torus(1500)
    torch.testing.assert_close(found(points.float()).double(), found(points), atol=1e-3, rtol=0)
