"""Fields fitted to surfaces: winding numbers, sides and distances are right, and so is what is learnt of them."""

from __future__ import annotations

import json
import math

import igl
import pytest
import torch
from torch import Tensor

import lamina
from lamina.errors import InputError
from lamina.geometry.triangles import unit
from lamina.learn.field_error import field_error
from lamina.learn.field_fit import FieldFit, draw_target_samples, fit_field, fit_from_surfaces
from lamina.learn.signed_distance import SignedDistanceTarget, signed_distance_target
from lamina.search.face_orientation import agreeing_sides, outward_signs
from lamina.search.nearest import Nearest
from lamina.search.triangles_by_samples import TrianglesBySamples
from lamina.search.winding import WindingTree
from lamina.surfaces.fields import LatentDecoder, load_field, save_field
from lamina.surfaces.icosphere import icosphere

SMALL = {"width": 48, "depth": 2, "omega": 8.0, "steps": 300, "batch": 1024, "pool": 10_000, "rate": 3e-3}


def sphere(level: int = 4) -> tuple[Tensor, Tensor]:
    points, faces = icosphere(level)
    return points.double(), faces


def cube() -> tuple[Tensor, Tensor]:
    """[0, 1]^3, faces looking outwards."""
    points = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 3)
    squares = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    return points, torch.tensor([t for a, b, c, d in squares for t in ((a, b, c), (a, c, d))])


def half_sphere(level: int = 5) -> tuple[Tensor, Tensor]:
    points, faces = sphere(level)
    return points, faces[(points[faces][..., 2] >= -1e-9).all(1)]


def scattered(count: int, seed: int = 0, size: float = 1.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return size * (2 * torch.rand(count, 3, generator=generator, dtype=torch.float64) - 1)


# Winding numbers


def test_a_cube_winds_once_around_its_inside_and_not_around_the_rest():
    points, faces = cube()
    x = scattered(2000)
    inside = ((x > 0) & (x < 1)).all(1)
    w = WindingTree.of_triangles(points[faces])(x)
    assert torch.allclose(w, inside.double(), atol=1e-3)


def test_winding_numbers_of_an_open_surface_are_those_of_libigl():
    points, faces = half_sphere(5)
    x = torch.cat([scattered(2000), 1.01 * points[::5], 0.99 * points[::5]])
    exact = torch.from_numpy(igl.winding_number(points.numpy(), faces.numpy(), x.numpy()))
    w = WindingTree.of_triangles(points[faces])(x)
    assert (w - exact).abs().max() < 0.015
    assert (w - exact).square().mean().sqrt() < 0.003


def test_at_its_centre_a_half_sphere_subtends_half_of_all_directions():
    points, faces = half_sphere()
    solid = WindingTree.of_triangles(points[faces])(torch.zeros(1, 3, dtype=torch.float64))
    below = points[faces][..., 2].amin(1).min()  # its rim follows the edges of the mesh
    assert float(solid) == pytest.approx(0.5, abs=float(below.abs()) + 0.03)


def test_points_with_normals_and_areas_wind_as_the_sphere_that_they_sample():
    points, faces = sphere(5)
    areas = lamina.Mesh(points, faces).areas
    x = scattered(4000)
    x = x[(x.norm(dim=1) - 1).abs() > 0.1]
    w = WindingTree.of_points(points, unit(points), areas)(x)
    assert torch.allclose(w, (x.norm(dim=1) < 1).double(), atol=0.02)


def test_winding_numbers_do_not_depend_on_what_is_asked_along():
    points, faces = half_sphere(4)
    tree, x = WindingTree.of_triangles(points[faces]), scattered(300)
    assert torch.allclose(tree(x)[:7], tree(x[:7]), atol=0.02)
    assert tree(x[:0]).shape == (0,)


# Sides


def test_faces_turned_at_random_are_turned_back():
    points, faces = sphere(3)
    flipped = torch.rand(len(faces), generator=torch.Generator().manual_seed(0)) < 0.5
    sign, one_sided = outward_signs(points, torch.where(flipped[:, None], faces.flip(1), faces))
    assert torch.equal(sign < 0, flipped)
    assert not one_sided.any()


def test_cavities_keep_looking_inwards_and_neighbours_inside_out_do_not():
    points, faces = sphere(2)
    two = torch.cat([faces, faces.flip(1) + len(points)])
    hollow, _ = outward_signs(torch.cat([points, 0.5 * points]), two)
    beside, _ = outward_signs(torch.cat([points, points + 3]), two)
    assert (hollow > 0).all()
    assert torch.equal(beside < 0, torch.arange(len(two)) >= len(faces))


def test_a_moebius_strip_has_one_side():
    n = 20
    i = torch.arange(n)
    low, high, following = 2 * i, 2 * i + 1, (i + 1) % n
    twisted = following == 0
    next_low, next_high = 2 * following + twisted, 2 * following + 1 - twisted.long()
    faces = torch.cat([torch.stack([low, next_low, high], 1), torch.stack([high, next_low, next_high], 1)])
    assert agreeing_sides(faces).one_sided.tolist() == [True]
    angle = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
    ring = torch.stack([angle.cos(), angle.sin(), 0 * angle], 1)
    width = 0.2 * torch.stack([(angle / 2).cos() * angle.cos(), (angle / 2).cos() * angle.sin(), (angle / 2).sin()], 1)
    strip = lamina.Mesh(torch.stack([ring - width, ring + width], 1).reshape(-1, 3), faces)
    with pytest.raises(InputError, match="single side"):
        signed_distance_target(strip)


# Signed distances


def test_candidates_find_the_closest_points_that_an_exact_search_finds():
    points, faces = cube()
    fine, thin = sphere(3)
    triangles = torch.cat([points[faces], 0.3 * fine[thin] + 2])
    x = scattered(3000, size=3.0)
    exact, found = Nearest(triangles).to_points(x)[1], TrianglesBySamples(triangles)(x)[1]
    excess = (x - found).norm(dim=1) - (x - exact).norm(dim=1)
    assert excess.min() > -1e-12
    assert excess.max() < 1e-4


def test_distances_and_gradients_of_a_sphere_anywhere():
    points, faces = sphere(5)
    target = signed_distance_target(lamina.Mesh(5 + 3 * points, faces))
    assert target.scale == pytest.approx(3, rel=1e-3)
    y = scattered(3000, size=1.1)
    distance, gradient = target(y)
    assert (distance - (y.norm(dim=1) - 1)).abs().max() < 2e-3
    away = y.norm(dim=1) > 0.2
    assert (gradient - unit(y))[away].norm(dim=1).square().mean().sqrt() < 0.03


@pytest.mark.parametrize("with_normals", [True, False])
def test_a_point_cloud_has_the_distances_of_the_sphere_it_samples(with_normals):
    drawn = lamina.Sphere().sample(4000, 1)
    cloud = lamina.PointCloud(drawn.points, -drawn.normals if with_normals else None)
    target = signed_distance_target(cloud)
    y = scattered(2000, size=1.1)
    distance, _ = target(y)
    x = target.centre + target.scale * y
    error = target.scale * distance - (x.norm(dim=1) - 1)
    assert error.abs()[x.norm(dim=1) > 0.5].max() < 0.02
    assert (distance < 0)[x.norm(dim=1) < 0.5].all()


def test_walls_inside_a_shape_are_no_part_of_its_surface():
    """Two cubes that overlap, and a sheet within: distances are those of the outline alone."""
    points, faces = cube()
    sheet = torch.tensor([[0.2, 0.2, 0.5], [0.8, 0.2, 0.5], [0.5, 0.8, 0.5]], dtype=torch.float64)
    shifted = points + torch.tensor([0.5, 0.0, 0.0])
    mesh = lamina.Mesh(torch.cat([points, shifted, sheet]), torch.cat([faces, faces + 8, torch.tensor([[16, 17, 18]])]))
    target = signed_distance_target(mesh)
    middle = (torch.tensor([[0.75, 0.5, 0.5]], dtype=torch.float64) - target.centre) / target.scale
    assert float(target(middle)[0]) * target.scale == pytest.approx(-0.5, abs=0.02)
    assert any("lies inside" in note for note in target.notes)


def test_holes_are_closed_where_the_winding_number_is_a_half():
    """A half sphere becomes a ball cut in half: its flat side is found in mid-air."""
    target = signed_distance_target(lamina.Mesh(*half_sphere(4)))
    assert any("holes" in note for note in target.notes)
    x = torch.tensor([[0.0, 0, 0.05], [0.0, 0, 0.2], [0.1, 0.2, -0.1], [0.0, 0, 0.5]], dtype=torch.float64)
    floor = float(half_sphere(4)[0][half_sphere(4)[1]][..., 2].min())
    distance, gradient = target((x - target.centre) / target.scale)
    expected = torch.tensor([-0.05, -0.2, 0.1, -0.5], dtype=torch.float64) + floor
    assert (target.scale * distance - expected).abs().max() < 0.04
    assert (gradient[:2, 2] < -0.85).all()


def test_open_sheets_are_refused_with_a_sentence():
    n = 12
    i, j = (v.reshape(-1) for v in torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij"))
    points = torch.stack([i, j, 0.3 * torch.sin(i + j)], 1).double()
    corner = (i * n + j)[(i < n - 1) & (j < n - 1)]
    faces = torch.cat(
        [torch.stack([corner, corner + n, corner + 1], 1), torch.stack([corner + n, corner + n + 1, corner + 1], 1)]
    )
    with pytest.raises(InputError, match="open sheet"):
        signed_distance_target(lamina.Mesh(points, faces))


# Fits


@pytest.fixture(scope="module")
def bumpy() -> lamina.Mesh:
    """Away from the origin, of size 20, with bumps."""
    points, faces = sphere(4)
    radius = 1 + 0.15 * torch.sin(4 * points[:, :1]) * torch.cos(3 * points[:, 1:2])
    return lamina.Mesh(100 + 20 * radius * points, faces, name="bumpy")


@pytest.fixture(scope="module")
def target(bumpy) -> SignedDistanceTarget:
    return signed_distance_target(bumpy)


@pytest.mark.parametrize("kind", ["siren", "occupancy"])
def test_a_fitted_field_is_the_surface_in_its_own_coordinates(bumpy, kind, tmp_path):
    field, facts = fit_from_surfaces([bumpy], FieldFit(kind, **SMALL))
    assert facts["position_rms"] < 6e-3 * facts["size"]
    assert facts["normal_rms_degrees"] < 4
    assert facts["iou"] > 0.98
    save_field(tmp_path / "a.safetensors", field, fit=facts)
    again = lamina.load(tmp_path / "a.safetensors", samples=1000)
    miss = (bumpy.closest_points(again.points.double()).points - again.points).norm(dim=1)
    assert again.component_count == 1
    assert miss.square().mean().sqrt() < 6e-3 * facts["size"]
    assert float(again.areas.sum() / bumpy.areas.sum()) == pytest.approx(1, abs=0.01)


@pytest.mark.slow
def test_a_family_of_fields_tells_its_members_apart(tmp_path):
    points, faces = sphere(4)
    ball = lamina.Mesh(points, faces, name="ball")
    egg = lamina.Mesh(points * torch.tensor([0.6, 0.8, 1.0]), faces, name="egg")
    field, facts = fit_from_surfaces([ball, egg], FieldFit("deepsdf", **SMALL | {"steps": 200, "pool": 5000}, latent=4))
    assert isinstance(field, LatentDecoder)
    for name in ("0 ball", "1 egg"):
        assert facts[name]["position_rms"] < 0.01
    save_field(tmp_path / "two.safetensors", field)
    for index, mesh in enumerate((ball, egg)):
        surface = lamina.load(tmp_path / "two.safetensors", latent=index, samples=1000)
        assert float(surface.areas.sum() / mesh.areas.sum()) == pytest.approx(1, abs=0.03)


def test_a_seed_gives_the_same_field_again(target):
    plan = FieldFit(**SMALL | {"steps": 5, "pool": 500})
    one, same, other = (fit_field([target], plan, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["layers.1.weight"], other["layers.1.weight"])


def test_target_samples_are_on_near_and_around_the_surface(target):
    samples = draw_target_samples(target, 1000, torch.Generator().manual_seed(0))
    assert int((samples.distance == 0).sum()) == 400
    assert samples.distance.abs()[400:800].median() < 0.03
    assert samples.distance[800:].abs().max() > 0.2


def test_the_error_of_a_field_that_was_not_fitted_is_large(target):
    field = fit_field([target], FieldFit(**SMALL | {"steps": 1, "pool": 500}))
    assert field_error(field, target, count=500).iou < 0.9


def test_plans_that_cannot_be_are_refused_in_words(target):
    with pytest.raises(InputError, match="Unknown kind"):
        FieldFit("nerf")
    with pytest.raises(InputError, match="steps must be at least 1"):
        FieldFit(steps=0)
    with pytest.raises(InputError, match="several make a deepsdf"):
        fit_field([target, target])


# The program


def test_the_program_fits_saves_and_reports(program, tmp_path):
    points, faces = sphere(3)
    igl.write_triangle_mesh(str(tmp_path / "ball.ply"), points.numpy(), faces.numpy())
    out = tmp_path / "ball.safetensors"
    code, text, _ = program(
        "fit", "siren", tmp_path / "ball.ply", "-o", out, "--steps", 60, "--width", 32, "--depth", 2,
        "--samples", 3000, "--json",
    )  # fmt: skip
    assert code == 0
    facts = json.loads(text)
    assert facts["kind"] == "siren"
    assert facts["steps"] == 60
    assert facts["position_rms"] < 0.1
    assert load_field(out).config.widths == (32, 32)


def test_the_program_refuses_what_has_no_inside(program, tmp_path):
    points = scattered(200) * torch.tensor([1, 1, 0])
    (tmp_path / "flat.xyz").write_text("\n".join(" ".join(map(str, p)) for p in points.tolist()))
    code, _, error = program("fit", "occupancy", tmp_path / "flat.xyz", "-o", tmp_path / "a.safetensors", "--steps", 5)
    assert code == 2
    assert "inside" in error
    assert not (tmp_path / "a.safetensors").exists()
