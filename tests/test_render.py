"""Pictures show what is there: the right silhouette, the right side in front, the right colours."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.spatial import Delaunay

from lamina.colours import CENTRED, CONTROLS, DIVERGING, MISSING, colourise, oklab, scale_of, table
from lamina.errors import InputError
from lamina.surfaces.icosphere import icosphere
from lamina.view.annotate import ticks, time_text
from lamina.view.camera import View, look_at, upright_axis
from lamina.view.normals import corner_normals
from lamina.view.raster import barycentric, nearest_triangles, spans
from lamina.view.render import render, render_png
from lamina.view.surfels import surfels

BALL, BALL_FACES = (a.numpy() for a in icosphere(3))
SIZE = 160
FRONT = (-90.0, 0.0)  # from -y: x to the right, z up


def picture(points, values, **options):
    options = {"size": (SIZE, SIZE), "colour_bar": False} | options
    return np.asarray(render(points, values, **options)).astype(int)


def covered(image):
    return (image != 255).any(2)


def quad(x0, x1, y=0.0, z0=-1.0, z1=1.0):
    """A rectangle that faces the viewer at FRONT."""
    return np.array([[x0, y, z0], [x1, y, z0], [x1, y, z1], [x0, y, z1]]), np.array([[0, 1, 2], [0, 2, 3]])


def together(*parts):
    points = np.concatenate([p for p, _ in parts])
    start = np.cumsum([0] + [len(p) for p, _ in parts[:-1]])
    return points, np.concatenate([f + s for (_, f), s in zip(parts, start, strict=True)])


# Meshes


def test_sphere_covers_the_disc_that_fills_the_frame():
    share = covered(picture(BALL, BALL[:, 0], faces=BALL_FACES)).mean()
    disc = np.pi / 4 * (1 - 2 * 0.055) ** 2
    assert share == pytest.approx(disc, rel=0.02)


def test_file_is_a_png_of_the_size_asked_for_and_nothing_else_is_left(tmp_path):
    path = render_png(tmp_path / "new" / "a.png", BALL, BALL[:, 0], faces=BALL_FACES, size=(200, 120), title="t")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.size == (200, 120)
    assert list(path.parent.iterdir()) == [path]


def test_the_near_hides_the_far():
    small = (0.3 * BALL + [0, 3, 0], BALL_FACES)  # behind, seen from -y
    big = (BALL, BALL_FACES)
    points, faces = together(small, big)
    values = np.repeat([1.0, -1.0], [len(BALL), len(BALL)])
    hidden = picture(points, values, faces=faces, view=FRONT)
    reddish = (hidden[..., 0] > hidden[..., 2] + 40).sum()
    assert reddish == 0
    seen = picture(points, values, faces=faces, view=(90.0, 0.0))
    assert (seen[..., 0] > seen[..., 2] + 40).sum() > 50


def test_x_points_right_and_z_points_up():
    points, faces = together(quad(-2, -1), quad(1, 2))
    image = picture(points, np.repeat([-1.0, 1.0], 4), faces=faces, view=FRONT)
    rows, columns = np.nonzero(image[..., 0] > image[..., 2] + 40)  # red is positive
    assert columns.min() > SIZE / 2
    points, faces = together(quad(-1, 1, z0=-2, z1=-1), quad(-1, 1, z0=1, z1=2))
    image = picture(points, np.repeat([-1.0, 1.0], 4), faces=faces, view=FRONT)
    rows, columns = np.nonzero(image[..., 0] > image[..., 2] + 40)
    assert rows.max() < SIZE / 2


def test_two_values_make_two_colours():
    points, faces = together(quad(-2, -1), quad(1, 2))
    image = picture(points, np.repeat([0.0, 1.0], 4), faces=faces, view=View(-90, 0, "z", 0.0))
    colours, count = np.unique(image.reshape(-1, 3), axis=0, return_counts=True)
    frequent = colours[count > 0.01 * SIZE**2]
    assert len(frequent) == 3  # with the background


def test_colour_follows_the_value_inside_a_large_triangle():
    """Interpolated as a value: the middle of a diverging map is white, the mean of its ends is not."""
    points, faces = quad(-1, 1)
    image = picture(points, np.array([-1.0, 1.0, 1.0, -1.0]), faces=faces, view=FRONT)
    left, middle, right = image[SIZE // 2, [SIZE // 8, SIZE // 2, SIZE - SIZE // 8]]
    assert left[2] > left[0] + 40
    assert np.ptp(middle) < 12
    assert right[0] > right[2] + 40


def test_both_sides_are_lit_alike():
    points, faces = quad(-1, 1)
    front = picture(points, np.zeros(4), faces=faces, view=FRONT)
    back = picture(points, np.zeros(4), faces=faces[:, ::-1], view=FRONT)
    np.testing.assert_array_equal(front, back)


def test_y_up_is_recognised_by_what_it_stands_on():
    radius, angle = (a.reshape(-1) for a in np.meshgrid(np.linspace(0, 1, 20), np.linspace(0, 6.28, 40)))
    cone = np.stack([radius * np.cos(angle), radius * np.sin(angle), 2 - 2 * radius], 1)
    assert upright_axis(cone) == "z"
    assert upright_axis(cone[:, [0, 2, 1]]) == "y"
    assert upright_axis(BALL) == "z"
    assert upright_axis(np.zeros((5, 3))) == "z"


def test_creases_stay_sharp_and_smooth_parts_smooth():
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], dtype=float)
    faces = np.array([[0, 1, 3], [0, 3, 2], [0, 5, 1], [0, 4, 5], [0, 2, 6], [0, 6, 4]])
    normals = corner_normals(corners, faces)
    a, b, c = corners[faces].transpose(1, 0, 2)
    np.testing.assert_allclose(normals, np.repeat(np.cross(b - a, c - a)[:, None], 3, axis=1), atol=1e-12)
    smooth = corner_normals(BALL, BALL_FACES)
    np.testing.assert_allclose(smooth, BALL[BALL_FACES], atol=0.02)


def test_vertices_stored_once_for_each_triangle_make_no_seams():
    apart = np.arange(BALL_FACES.size).reshape(-1, 3)
    found = corner_normals(BALL[BALL_FACES].reshape(-1, 3), apart)
    np.testing.assert_allclose(found, corner_normals(BALL, BALL_FACES), atol=1e-12)


def test_one_triangle_wound_the_wrong_way_round_is_not_seen():
    turned = BALL_FACES.copy()
    front = BALL[turned].mean(1)[:, 1].argmin()
    turned[front] = turned[front, ::-1]
    right, found = (picture(BALL, BALL[:, 0], faces=f, normals=BALL, view=FRONT) for f in (BALL_FACES, turned))
    assert np.abs(found - right).max() <= 2


def test_pixels_at_the_edge_lie_between_surface_and_background():
    image = picture(BALL, np.zeros(len(BALL)), faces=BALL_FACES, view=FRONT)[:, :, 0]
    rows = image[SIZE // 3 : 2 * SIZE // 3]
    first = (rows != 255).argmax(1)  # the first pixel that is not background
    edge, inside = (np.take_along_axis(rows, first[:, None] + k, 1) for k in (0, 3))
    assert ((edge > inside + 10) & (edge < 245)).mean() > 0.4


def test_title_time_and_names_take_their_places():
    plain = np.asarray(render(BALL, BALL[:, 0], faces=BALL_FACES, size=(400, 400), name=""))
    named = np.asarray(render(BALL, BALL[:, 0], faces=BALL_FACES, size=(400, 400), name="temperature", unit="K"))
    changed = (named != plain).any(2)
    assert changed.any()
    assert not changed[:, :200].any()  # only at the colour bar
    said = [
        np.asarray(render(BALL, BALL[:, 0], faces=BALL_FACES, size=(400, 400), title="heat", time=time, time_unit="s"))
        for time in (None, 0.5, 0.25)
    ]
    for other in said[1:]:
        changed = (said[0] != other).any(2)
        assert changed[:40].any()
        assert not changed[40:].any()


@pytest.mark.parametrize(
    ("time", "times", "text"),
    [
        (0.1, (0.0, 0.1, 0.2), "t = 0.1 s"),
        (1 / 3, (0.0, 1 / 3, 2 / 3), "t = 0.333 s"),
        (1000.0123, (1000.0, 1000.0123), "t = 1000.0123 s"),
        (2e-9, (0.0, 1e-9, 2e-9), "t = 2e-09 s"),
        (0.0, (0.0,), "t = 0 s"),
    ],
)
def test_times_have_the_digits_that_tell_them_apart(time, times, text):
    assert time_text(time, times, "s") == text


# Point clouds


def test_discs_do_not_stick_out_beyond_a_rim():
    side = np.linspace(-1, 1, 25)
    x, z = (a.reshape(-1) for a in np.meshgrid(side, side))
    points = np.stack([x, np.zeros_like(x), z], 1)
    cloud = picture(points, x, normals=np.tile([0.0, -1.0, 0.0], (len(x), 1)), view=FRONT)
    corners, faces = quad(-1, 1)
    mesh = picture(corners, corners[:, 0], faces=faces, view=FRONT)
    assert covered(cloud)[covered(mesh)].mean() > 0.99
    assert covered(cloud).sum() < 1.15 * covered(mesh).sum()


@pytest.mark.parametrize("given_normals", [True, False])
def test_points_look_like_the_surface_that_they_sample(given_normals):
    points = torch.nn.functional.normalize(torch.randn(3000, 3, generator=torch.Generator().manual_seed(2)), dim=1)
    points = points.double().numpy()
    cloud = picture(points, points[:, 0], normals=points if given_normals else None, view=FRONT)
    mesh = picture(BALL, BALL[:, 0], faces=BALL_FACES, view=FRONT)
    assert covered(cloud).mean() == pytest.approx(covered(mesh).mean(), rel=0.03)
    inside = covered(cloud) & covered(mesh)
    assert np.abs(cloud - mesh)[inside].mean() < 6


def test_the_near_hides_the_far_among_points():
    points = np.concatenate([0.3 * BALL + [0, 3, 0], BALL])
    values = np.repeat([1.0, -1.0], [len(BALL), len(BALL)])
    image = picture(points, values, normals=np.concatenate([BALL, BALL]), view=FRONT)
    assert (image[..., 0] > image[..., 2] + 40).sum() == 0


def test_discs_reach_their_neighbours_and_know_the_slope_of_the_field():
    x, y = (a.reshape(-1) for a in np.meshgrid(np.arange(20.0), np.arange(20.0)))
    grid = np.stack([x, y, 0 * x], 1)
    discs = surfels(grid, 3 * x - y, None)
    np.testing.assert_allclose(np.abs(discs.frame[:, 2]), np.tile([0, 0, 1.0], (400, 1)), atol=1e-6)
    inner = (x > 4) & (x < 15) & (y > 4) & (y < 15)
    assert discs.radius[inner].min() > 0.5 * 2**0.5  # or the middle of a cell would be bare
    gradient = np.einsum("nj,nji->ni", discs.slope, discs.frame[:, :2]) / discs.radius[:, None]
    np.testing.assert_allclose(gradient[inner], np.tile([3, -1, 0.0], (inner.sum(), 1)), atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_points_can_be_drawn(count):
    assert covered(picture(BALL[:count], BALL[:count, 0])).any()
    assert not covered(picture(BALL[:count], BALL[:count, 0])).all()


# The rasteriser against the definition


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_nearest_triangle_in_every_pixel(seed):
    rng = np.random.default_rng(seed)
    width, height = 23, 17
    corners = rng.uniform([-5, -5, 0.8], [width + 5, height + 5, 1.2], (6, 3, 3))
    found = nearest_triangles(corners.reshape(-1, 3), np.arange(18).reshape(6, 3), width, height)
    for pixel in range(width * height):
        x, y = pixel % width + 0.5, pixel // width + 0.5
        best, nearness = -1, 0.0
        for i, c in enumerate(corners):
            weights = np.linalg.solve(np.vstack([c[:, :2].T, np.ones(3)]), [x, y, 1])
            if weights.min() > 0 and weights @ c[:, 2] > nearness:
                best, nearness = i, weights @ c[:, 2]
        assert found[pixel] == best


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_triangles_that_share_edges_cover_every_pixel_once(seed):
    rng = np.random.default_rng(seed)
    ring = rng.integers(0, 41, (12, 2)) / 2.0  # many corners exactly on pixel centres and borders
    box = np.array([[-1.0, -1], [21, -1], [21, 21], [-1, 21]])
    points = np.unique(np.concatenate([ring, box]), axis=0)
    runs = spans(points[Delaunay(points).simplices], 20, 20)
    count = np.zeros(400, dtype=int)
    for part in runs.pieces():
        np.add.at(count, part.pixel, 1)
    assert (count == 1).all()


def test_interpolation_is_correct_in_perspective():
    camera = look_at(BALL, View(30, 20, "z", 60.0), (0, 0, 100, 100))
    triangle = BALL[BALL_FACES[7]]
    weights = np.array([0.2, 0.5, 0.3])
    seen = camera.project(triangle)
    x, y, _ = camera.project((weights @ triangle)[None])[0]
    found = barycentric(seen[None], np.array([0]), np.array([x]), np.array([y]))
    np.testing.assert_allclose(np.concatenate(found), weights, atol=1e-9)


# Colours


@pytest.mark.parametrize("name", list(CONTROLS))
def test_equal_steps_look_equally_large(name):
    lab = oklab(table(name)[::64] / 255)
    step = np.linalg.norm(np.diff(lab, axis=0), axis=1)
    if name in CENTRED:
        step = np.delete(step, 7)  # the curve turns back in the middle
    assert step.max() < 1.2 * step.min()


@pytest.mark.parametrize("name", [name for name in CONTROLS if name not in CENTRED])
def test_lightness_orders_the_sequential_maps(name):
    assert (np.diff(oklab(table(name)[::16] / 255)[:, 0]) > 0).all()


@pytest.mark.parametrize("name", DIVERGING)
def test_lightness_peaks_in_the_middle_of_the_diverging_maps(name):
    lightness = oklab(table(name) / 255)[:, 0]
    assert abs(int(lightness.argmax()) - 512) < 8
    assert lightness[0] == pytest.approx(lightness[-1], abs=0.05)


def test_the_cyclic_map_ends_where_it_begins():
    np.testing.assert_array_equal(table("cyclic")[0], table("cyclic")[-1])


def test_a_diverging_map_is_symmetric_about_zero():
    scale = scale_of(np.array([-0.01, 1.0]), "purple-green")
    assert (scale.low, scale.high) == (-1.0, 1.0)


def test_auto_is_diverging_and_symmetric_when_both_signs_matter():
    scale = scale_of(np.array([-0.5, 0.1, 1.0]))
    assert (scale.map, scale.low, scale.high) == ("diverging", -1.0, 1.0)
    assert np.ptp(colourise(np.array([-0.5, 0.0, 1.0]))[1].astype(int)) < 8
    scale = scale_of(np.array([-0.01, 1.0]))
    assert (scale.map, scale.low, scale.high) == ("sequential", -0.01, 1.0)


def test_limits_clip_and_missing_values_are_grey():
    colours = colourise(np.array([-5.0, 0.0, 1.0, 9.0, np.nan, np.inf]), "sequential", low=0, high=1)
    np.testing.assert_array_equal(colours[0], colours[1])
    np.testing.assert_array_equal(colours[2], colours[3])
    np.testing.assert_array_equal(colours[4:], [MISSING, MISSING])
    assert colours.dtype == np.uint8


@pytest.mark.parametrize("value", [0.0, 3.0, -1e-30, 1e300])
def test_constant_field_has_the_colour_of_the_middle(value):
    colours = colourise(np.full(3, value) * (1 + 1e-15 * np.arange(3)))
    assert np.abs(colours.astype(int) - table("sequential")[512]).max() <= 1


@settings(max_examples=200)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_round_and_inside(low, extent):
    high = low + extent
    if high - low < 1e-6 * max(abs(low), abs(high)):
        return
    numbers, decimals, factor = ticks(low, high)
    values = np.array(numbers) * 10.0**factor
    assert 2 <= len(numbers) <= 6
    assert values.min() >= low - 1e-5 * extent
    assert values.max() <= high + 1e-5 * extent
    labels = [f"{number:.{decimals}f}" for number in numbers]
    assert len(set(labels)) == len(labels)


# What is refused


def test_bad_input_is_refused(tmp_path):
    with pytest.raises(InputError, match="no colour map 'jet'"):
        colourise(np.zeros(3), "jet")
    with pytest.raises(InputError, match=r"values of shape \(2,\)"):
        render(BALL, np.zeros(2))
    with pytest.raises(InputError, match="not finite"):
        render(BALL * np.nan, BALL[:, 0])
    with pytest.raises(InputError, match="azimuth"):
        render(BALL, BALL[:, 0], view="front")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pixels"):
        render(BALL, BALL[:, 0], size=(3, 3))
    (tmp_path / "a.png").mkdir()
    with pytest.raises(InputError, match="cannot write"):
        render_png(tmp_path / "a.png", BALL, BALL[:, 0], size=(64, 64))
