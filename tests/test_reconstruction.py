"""What the surface of samples is made from: chosen once, said, asked for by name, and the same for a part of it."""

import pytest
import torch

import lamina
from golden import sphere_cloud, sphere_mesh, sphere_splats
from lamina.domain import default_grid
from lamina.errors import InputError
from lamina.reconstruction.choose import has_the_points_of, reconstruct, reconstruct_as_asked
from lamina.reconstruction.neural_cloud import NeuralCloud
from lamina.reconstruction.triangulated_cloud import TriangulatedCloud
from lamina.surfaces.clipped import Clipped

AREA = 4 * torch.pi


def upper(x):
    return x[:, 2]


def domain(surface, spacing=0.25, **options):
    return lamina.Domain(surface, spacing, order=2, show_progress=False, **options)


def line(made):
    """What print(domain) says of the reconstruction."""
    return next(line.strip() for line in repr(made).splitlines() if "points of the surface from" in line)


@pytest.fixture(scope="module")
def cloud():
    return sphere_cloud()


@pytest.fixture(scope="module")
def lens():
    """A lens thinner than four times the distance between its samples."""
    feet = lamina.Ellipsoid(1, 0.3, 0.05).sample(3000, 0)
    return lamina.PointCloud(feet.points, feet.normals)


@pytest.mark.parametrize(
    ("asked", "method", "extension", "words"),
    [
        ("auto", "fits", "neural", "robust fits"),
        ("fits", "fits", "neural", "robust fits"),
        ("jets", "jets", "jet", "polynomials fitted to its samples"),
        ("triangles", "triangles", "closest-point", "triangles between its samples"),
    ],
)
def test_a_clean_cloud_is_made_from_what_was_asked_for(cloud, asked, method, extension, words):
    made = domain(cloud, reconstruction=asked)
    assert (made.reconstruction.method, made.extension) == (method, extension)
    assert made.reconstruction.surface is made.geometry
    assert (made.reconstruction.reason == "it was asked for") == (asked != "auto")
    assert line(made).startswith(f"points of the surface from: {words} (")
    assert made.quadrature.area == pytest.approx(AREA, rel=3e-3)
    assert torch.equal(made.points, cloud.points)


@pytest.mark.slow
def test_jets_are_not_called_fits_where_wide_ones_replace_these():
    noisy = sphere_cloud(0.005)
    found, extension = reconstruct_as_asked(noisy, "neural", "auto")
    assert (found.surface, found.method, extension) == (noisy, "jets", "jet")
    assert "noise on a smooth surface" in found.reason


def test_thin_shapes_are_triangulated_unless_fits_are_asked_for(lens):
    found = reconstruct(lens)
    assert isinstance(found.surface, TriangulatedCloud)
    assert found.method == "triangles"
    assert found.area_error is not None
    asked = reconstruct(lens, "triangles")
    assert isinstance(asked.surface, TriangulatedCloud)
    assert torch.equal(asked.surface.faces, found.surface.faces)
    assert isinstance(reconstruct(lens, "fits").surface, NeuralCloud)


@pytest.mark.slow
def test_splats_have_jets_unless_something_else_is_asked_for():
    splats = sphere_splats()
    found = reconstruct(splats)
    assert (found.surface, found.method) == (splats, "jets")
    assert isinstance(reconstruct(splats, "fits").surface, NeuralCloud)
    triangles = reconstruct(splats, "triangles").surface
    assert isinstance(triangles, TriangulatedCloud)
    assert float(triangles.areas.sum()) == pytest.approx(AREA, rel=3e-3)
    assert not has_the_points_of(triangles, splats)  # solutions are reported at the Gaussians


def test_small_clouds_have_jets(cloud):
    few = lamina.PointCloud(cloud.points[:400], cloud.normals[:400])
    found = reconstruct(few)
    assert (found.surface, found.method) == (few, "jets")
    assert found.reason == "the cloud has fewer than 500 points"
    assert reconstruct(few, "fits").method == "fits"


@pytest.mark.parametrize("surface", [lamina.Sphere(), sphere_mesh()], ids=["sphere", "mesh"])
def test_surfaces_that_know_their_closest_points_are_taken_as_they_are(surface):
    found = reconstruct(surface)
    assert (found.surface, found.method) == (surface, "exact")
    assert "the surface itself" in line(domain(surface))
    assert reconstruct(lamina.clip(lamina.Sphere(), upper)).method == "exact"


@pytest.mark.parametrize("asked", ["auto", "fits", "jets", "triangles"])
def test_part_of_a_cloud_has_the_reconstruction_of_the_cloud(cloud, asked):
    part = lamina.clip(cloud, upper)
    whole, half = domain(cloud, reconstruction=asked), domain(part, reconstruction=asked)
    assert (half.reconstruction.method, half.reconstruction.reason, half.extension) == (
        whole.reconstruction.method, whole.reconstruction.reason, whole.extension,
    )  # fmt: skip
    assert half.warnings == whole.warnings
    assert half.quadrature.area == pytest.approx(AREA / 2, rel=3e-3)
    assert torch.equal(half.points, part.points)
    assert half.rim is not None


def test_part_of_a_cloud_is_fitted_before_it_is_clipped(cloud):
    found = reconstruct(lamina.clip(lamina.clip(cloud, upper), lambda x: x[:, 0])).surface
    assert isinstance(found, Clipped)
    assert isinstance(found.base, Clipped)
    assert isinstance(found.base.base, NeuralCloud)
    x = 1.02 * found.points[:100]
    assert torch.equal(found.closest_points(x).points, reconstruct(cloud).surface.closest_points(x).points)


def test_part_of_a_thin_shape_is_triangulated_as_the_whole(lens):
    whole, half = domain(lens, 0.1), domain(lamina.clip(lens, lambda x: x[:, 0]), 0.1)
    assert half.reconstruction.method == whole.reconstruction.method == "triangles"
    assert half.reconstruction.area_error == whole.reconstruction.area_error
    assert half.quadrature.area == pytest.approx(whole.quadrature.area / 2, rel=0.02)
    u = lamina.poisson(half, lambda x: x[:, 1], show_progress=False)
    assert u.values.shape == (len(half.points),)
    assert bool(torch.isfinite(u.values).all())


@pytest.mark.parametrize("asked", ["auto", "jets", "triangles"])
def test_a_domain_that_is_moved_keeps_its_reconstruction(cloud, asked):
    for surface in (cloud, lamina.clip(cloud, upper)):
        made = domain(surface, reconstruction=asked)
        moved = made.to(dtype=torch.float32)
        assert line(moved) == line(made)
        assert moved.extension == made.extension


def test_what_was_reconstructed_before_is_taken_as_it_is(cloud):
    for asked in ("fits", "triangles"):
        found = reconstruct(cloud, asked)
        again = reconstruct(found.surface)
        assert (again.surface, again.method) == (found.surface, asked)


def test_old_names_and_new_ones_give_the_same_surface(cloud):
    for old, new in (("jet", "jets"), ("neural", "fits")):
        one, other = domain(cloud, extension=old), domain(cloud, reconstruction=new)
        assert one.reconstruction.method == other.reconstruction.method == new
        assert one.extension == other.extension == old
        assert torch.equal(one.quadrature.weights, other.quadrature.weights)


def test_what_cannot_be_made_is_said(cloud):
    with pytest.raises(InputError, match='not both; got reconstruction="fits" and extension="jet"'):
        domain(cloud, reconstruction="fits", extension="jet")
    with pytest.raises(InputError, match="Unknown reconstruction 'magic'; known: auto, fits, jets, triangles"):
        domain(cloud, reconstruction="magic")
    with pytest.raises(InputError, match="Unknown reconstruction 'exact'"):
        domain(cloud, reconstruction="exact")
    with pytest.raises(InputError, match="A point cloud has no closest points of its own"):
        domain(lamina.clip(cloud, upper), extension="closest-point")
    flat = torch.rand(300, 3, generator=torch.Generator().manual_seed(0)).double() * torch.tensor([1.0, 1.0, 0.0])
    with pytest.raises(InputError, match="no triangles join its 300 points"):
        domain(lamina.PointCloud(flat), 0.1, reconstruction="triangles")


def test_noise_is_smoothed_before_triangles_join_the_samples(cloud):
    """A tenth of a radius of noise: triangles between the samples themselves would go up and down."""
    shift = 0.1 * torch.randn(1000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rough = lamina.PointCloud(cloud.points[:1000] + shift, cloud.normals[:1000])
    found = reconstruct(rough, "triangles")
    assert found.method == "triangles"
    assert "Noise of about 0.1" in " ".join(found.surface.notes).replace("0.099", "0.1")
    assert float(found.surface.areas.sum()) == pytest.approx(AREA, rel=0.1)


def test_baselines_take_the_same_option(cloud):
    made = lamina.paper.BandDomain(cloud, 0.25, reconstruction="jets", show_progress=False)
    assert made.reconstruction.method == "jets"
    assert "points of the surface from: polynomials fitted to its samples" in repr(made)
    with pytest.raises(InputError, match="not both"):
        lamina.paper.BandDomain(cloud, 0.25, reconstruction="jets", extension="attention", show_progress=False)


@pytest.mark.slow
def test_reports_and_the_default_grid_say_it(cloud):
    report = lamina.poisson(domain(cloud), upper, show_progress=False).report()
    assert (report["reconstruction"], report["extension"]) == ("fits", "neural")
    assert report["reconstruction_reason"] == default_grid(cloud).reconstruction.reason
    assert default_grid(cloud).reconstruction.method == "fits"


def test_the_program_takes_the_option_and_says_what_it_used(program, tmp_path):
    import json

    points = tmp_path / "sphere.xyz"
    feet = lamina.Sphere().sample(600, 0)
    rows = torch.cat([feet.points, feet.normals], 1).tolist()
    points.write_text("\n".join(" ".join(f"{v:.9g}" for v in row) for row in rows))
    status, out, err = program("info", points, "--json")
    assert status == 0, err
    assert json.loads(out)["reconstruction"] == "fits"
    assert json.loads(out)["reconstruction_reason"]
    solve = ("solve", "poisson", points, "--rhs", "z", "--spacing", 0.3, "--json", "--reconstruction")
    for asked, extension in (("triangles", "closest-point"), ("jets", "jet")):
        status, out, err = program(*solve, asked)
        assert status == 0, err
        assert (json.loads(out)["reconstruction"], json.loads(out)["extension"]) == (asked, extension)
    status, out, err = program(*solve, "jets", "--extension", "jet")
    assert status == 2
    assert "not both" in err
