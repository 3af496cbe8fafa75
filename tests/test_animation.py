"""Animations and charts show what they should: frames that differ as the field does, curves where the numbers are."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image, ImageSequence

from lamina.errors import InputError
from lamina.surfaces.icosphere import icosphere
from lamina.view.animation import animate
from lamina.view.charts import CURVE_COLOURS, plot_convergence, plot_residuals

BALL, BALL_FACES = (a.numpy() for a in icosphere(3))
TIMES = (0.0, 0.5, 1.0)
FADING = np.stack([BALL[:, 0] * 0.5**i for i in range(3)])


def frames(path):
    with Image.open(path) as image:
        return [np.asarray(frame.convert("RGB")).astype(int) for frame in ImageSequence.Iterator(image)]


def strength(picture):
    """How colourful the surface is; the colour bar at the right, which is the same in all, left out."""
    colour = np.ptp(picture[20:, :120], axis=2)
    return colour[colour > 20].mean()


def test_a_gif_fades_as_the_field_does_in_one_scale_of_colours(tmp_path):
    path = animate(tmp_path / "a.gif", BALL, FADING, TIMES, faces=BALL_FACES, size=(160, 160), seconds=1)
    shown = frames(path)
    assert len(shown) == 3
    assert shown[0].shape == (160, 160, 3)
    covered = [(picture != 255).any(2)[20:, :120].mean() for picture in shown]
    assert covered == pytest.approx([covered[0]] * 3, rel=0.02)
    assert 0.2 < covered[0] < 0.9
    assert strength(shown[0]) > 1.2 * strength(shown[1]) > 1.2 * strength(shown[2])
    np.testing.assert_array_less(np.abs(shown[0] - shown[2])[20:, 130:].mean(), 3)  # the bar stays


def test_a_gif_plays_as_long_as_asked_and_holds_the_end(tmp_path):
    path = animate(tmp_path / "a.gif", BALL, FADING, TIMES, faces=BALL_FACES, size=(64, 64), seconds=0.6)
    with Image.open(path) as image:
        assert image.info["duration"] == 200
        image.seek(2)
        assert image.info["duration"] > 1000
        assert image.info["loop"] == 0


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="an MP4 needs ffmpeg")
def test_an_mp4_is_one(tmp_path):
    path = animate(tmp_path / "a.mp4", BALL, FADING, TIMES, faces=BALL_FACES, size=(65, 64), seconds=1)
    assert path.read_bytes()[4:8] == b"ftyp"
    assert list(tmp_path.iterdir()) == [path]


def test_without_ffmpeg_an_mp4_is_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(InputError, match=r"needs the program ffmpeg.*write a \.gif"):
        animate(tmp_path / "a.mp4", BALL, FADING, TIMES)


def test_bad_animations_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"one of \.gif, \.mp4"):
        animate(tmp_path / "a.avi", BALL, FADING, TIMES)
    with pytest.raises(InputError, match="two states or more"):
        animate(tmp_path / "a.gif", BALL, FADING[:1], TIMES[:1])
    assert list(tmp_path.iterdir()) == []


def test_heat_on_the_command_line_leaves_an_animation(program, tmp_path):
    status, _, err = program(
        "solve", "heat", "sphere", "--initial", "x*y", "--time", 0.2, "--exact", "exp(-6*t)*x*y", "--spacing", 0.2,
        "--accuracy", 1e-3, "--frames", 4, "--gif", "--out", tmp_path,
    )  # fmt: skip
    assert status == 0, err
    shown = frames(tmp_path / "solution.gif")
    assert len(shown) == 4
    assert strength(shown[0][::3, ::3]) > 1.3 * strength(shown[-1][::3, ::3])
    assert '"compared": "exact"' in (tmp_path / "solution.html").read_text()
    assert program("solve", "heat", "sphere", "--initial", "x", "--time", 1, "--gif")[0] == 2


@pytest.mark.slow
def test_heat_has_a_start_and_a_time_that_suit_any_size(program, tmp_path):
    """A ball of radius 500 about (1000, 0, 0) cools as one of radius 1 about 0 does."""
    reports = []
    for name, radius, x in (("small", 1.0, 0.0), ("large", 500.0, 1000.0)):
        path = tmp_path / f"{name}.obj"
        points = radius * BALL + [x, 0, 0]
        lines = [f"v {a} {b} {c}" for a, b, c in points] + [f"f {a} {b} {c}" for a, b, c in BALL_FACES + 1]
        path.write_text("\n".join(lines))
        status, _, err = program("solve", "heat", path, "--accuracy", 1e-3, "--out", tmp_path / name)
        assert status == 0, err
        report = json.loads((tmp_path / name / "report.json").read_text())
        assert report["warnings"] == []
        reports.append([report[what] for what in ("min", "max", "mean")])
    np.testing.assert_allclose(reports[0], reports[1], atol=0.01)
    # Spots of 1 and -1 fall to about a half.
    assert 0.7 < reports[0][1] - reports[0][0] < 1.3


# Charts


def places(path, colour):
    """Rows and columns of the pixels of a colour."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    return np.nonzero((np.abs(pixels - colour) < 12).all(2))


def test_residuals_fall_from_left_to_right(tmp_path):
    path = plot_residuals(tmp_path / "r.png", {"poisson": [10.0**-i for i in range(1, 9)]})
    rows, columns = places(path, CURVE_COLOURS[0])
    assert np.ptp(columns) > 300
    assert np.ptp(rows) > 200
    # Equal factors are equal steps: a straight line downwards.
    assert np.corrcoef(rows, columns)[0, 1] > 0.999


def test_errors_of_higher_order_fall_more_steeply(tmp_path):
    spacings = [0.1, 0.05, 0.025]
    path = plot_convergence(
        tmp_path / "c.png", spacings, {"second": [h**2 for h in spacings], "fourth": [h**4 for h in spacings]}
    )
    depth = [np.ptp(places(path, CURVE_COLOURS[i])[0]) for i in (0, 1)]
    assert depth[1] == pytest.approx(2 * depth[0], rel=0.1)


def test_what_has_no_logarithm_is_refused(tmp_path):
    with pytest.raises(InputError, match="positive"):
        plot_residuals(tmp_path / "r.png", {"poisson": [1.0, 0.0]})
