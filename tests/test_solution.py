"""A solution carries its field, the times, what it took, and can be evaluated, saved and drawn."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from plyfile import PlyData

import lamina
from lamina.colours import linear, table
from lamina.gallery import sphere_poisson
from lamina.surfaces.icosphere import icosphere
from lamina.view.camera import View

SPHERE = sphere_poisson()


@pytest.fixture(scope="module")
def solution():
    return lamina.poisson(lamina.paper.BandDomain(SPHERE.surface(level=4), 0.12, scheme="coupled", order=4), SPHERE.rhs)


@pytest.fixture(scope="module")
def flow(solution):
    return lamina.heat(solution.domain, lambda x: x[:, 0] * x[:, 1], 0.1, times=[0.02, 0.05], accuracy=1e-3)


def random_points(count=200):
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.nn.functional.normalize(x)


# Values


def test_values_at_the_points_are_those_of_evaluation_there(solution):
    torch.testing.assert_close(solution(solution.domain.points), solution.values, rtol=0, atol=1e-10)


def test_evaluation_is_constant_along_normals(solution):
    x = random_points()
    torch.testing.assert_close(solution(1.05 * x), solution(x), rtol=0, atol=1e-10)
    torch.testing.assert_close(solution(0.9 * x), solution(x), rtol=0, atol=1e-10)


def test_evaluation_takes_points_in_any_precision_and_order(solution):
    x = random_points()
    expected = solution(x)
    torch.testing.assert_close(solution(x.float()), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(solution(x.flip(0)), expected.flip(0))
    assert solution(x[:0]).shape == (0,)


@pytest.mark.parametrize(
    "points", [torch.zeros(3), torch.zeros(4, 2), torch.full((2, 3), torch.nan)], ids=["one", "flat", "nan"]
)
def test_points_that_are_none_are_refused(solution, points):
    with pytest.raises(lamina.InputError, match=r"Points must be finite and of shape \(n, 3\)"):
        solution(points)


def test_a_flow_keeps_its_snapshots_and_a_stationary_field_has_one(solution, flow):
    assert flow.times == (0.02, 0.05, 0.1)
    assert flow.snapshots.shape == (3, 2562)
    torch.testing.assert_close(flow.values, flow.snapshots[-1])
    torch.testing.assert_close(flow(flow.domain.points), flow.values, rtol=0, atol=1e-10)
    assert solution.times == (0.0,)
    assert solution.snapshots.shape == (1, 2562)


def test_statistics(solution, flow):
    assert 1 <= solution.cycles <= 8
    assert 0 < solution.residual <= 1e-8
    assert solution.steps == 0
    assert solution.seconds > 0
    assert flow.steps >= 3
    assert flow.cycles > flow.steps


def test_report_is_plain_data(solution):
    report = solution.report()
    assert json.loads(json.dumps(report)) == report
    assert report["surface"] == "sphere"
    assert report["nodes"] == solution.domain.unknowns
    assert report["spacing"] == 0.12
    assert report["order"] == 4
    assert report["dtype"] == "float64"


def test_printing_a_solution_does_not_print_its_numbers(solution):
    assert len(repr(solution)) < 400


# Files


def test_ply_holds_mesh_field_and_colours(solution, tmp_path):
    path = solution.save(tmp_path / "u.ply", refine=False)
    ply = PlyData.read(str(path))
    np.testing.assert_array_equal(ply["vertex"]["value"], solution.values.numpy())
    np.testing.assert_array_equal(ply["vertex"]["x"], solution.domain.points[:, 0].numpy())
    assert ply["face"].count == 5120
    assert np.ptp(ply["vertex"]["red"].astype(int)) > 50


def test_npz_holds_every_snapshot_and_its_time(flow, tmp_path):
    with np.load(flow.save(tmp_path / "u.npz")) as archive:
        np.testing.assert_array_equal(archive["values"], flow.snapshots.T.numpy())
        np.testing.assert_array_equal(archive["times"], flow.times)
        assert json.loads(str(archive["metadata"]))["spacing"] == 0.12


def test_vtu_names_every_snapshot(flow, tmp_path):
    text = flow.save(tmp_path / "u.vtu").read_text()
    assert all(f'Name="value_{i}"' in text for i in range(3))


def test_a_cloud_is_drawn_as_the_surface_that_was_cut_or_saved_as_its_own_points(tmp_path):
    points = icosphere(3)[0]
    u = lamina.poisson(lamina.Domain(lamina.PointCloud(points, points), 0.2), lambda x: x[:, 0])
    ply = PlyData.read(str(u.save(tmp_path / "u.ply", refine=False)))
    assert [element.name for element in ply.elements] == ["vertex"]
    np.testing.assert_array_equal(ply["vertex"]["value"], u.values.numpy())
    drawn = lamina.load(u.save(tmp_path / "drawn.ply"))
    assert float(drawn.areas.sum()) == pytest.approx(4 * np.pi, rel=0.01)
    torch.testing.assert_close(u(u.drawn.points), u.drawn.values[-1], atol=2e-3, rtol=0)
    assert Image.open(u.plot(tmp_path / "u.png", size=(200, 200))).size == (200, 200)


def test_unknown_formats_are_refused_and_leave_nothing(solution, tmp_path):
    with pytest.raises(lamina.InputError, match=r"'.docx' is none of .ply, .npz, .vtu"):
        solution.save(tmp_path / "u.docx")
    assert list(tmp_path.iterdir()) == []


def test_picture_shows_the_field(solution, tmp_path):
    picture = Image.open(solution.plot(tmp_path / "u.png", size=(300, 300), title="u"))
    pixels = np.asarray(picture.convert("RGB"), dtype=int)
    red, blue = (pixels[..., a] - pixels[..., b] > 60 for a, b in ((0, 2), (2, 0)))
    assert red.mean() > 0.02
    assert blue.mean() > 0.02


def test_colours_spread_over_the_whole_range_as_the_values_do(solution, tmp_path):
    """Of the pixels of the surface, as many are in each third of the colours as there are values in that third."""
    view = View(30.0, 20.0, "z", field_of_view=0.2)  # from far away: each vertex counts by how much it faces us
    picture = Image.open(
        solution.plot(tmp_path / "u.png", size=(300, 300), view=view, colour_bar=False, map="sequential")
    )
    pixels = np.asarray(picture.convert("RGB"), dtype=float)
    surface = (pixels < 255).any(2)
    assert 0.5 < surface.mean() < 0.75  # a disc that fills the frame
    # Shading makes light weaker or stronger, and keeps its colour.
    colours, light = linear(table("sequential")[::8] / 255), linear(pixels[surface] / 255)
    place = (light @ (colours / np.linalg.norm(colours, axis=1, keepdims=True)).T).argmax(1) / (len(colours) - 1)
    azimuth, elevation = np.radians([30, 20])
    flat = np.cos(elevation)
    towards = np.array([flat * np.cos(azimuth), flat * np.sin(azimuth), np.sin(elevation)])
    facing = (solution.domain.points.numpy() @ towards).clip(0)
    values = solution.values.numpy()
    share = (values - values.min()) / np.ptp(values)
    thirds = [0, 1 / 3, 2 / 3, 1]
    expected = np.histogram(share, thirds, weights=facing)[0] / facing.sum()
    np.testing.assert_allclose(np.histogram(place, thirds)[0] / len(place), expected, atol=0.06)
