"""The page: it holds the data exactly enough, needs nothing from outside, and a real browser shows what it should."""

import base64
import hashlib
import html
import io
import json
import re
import shlex
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.spatial import ConvexHull

import browser as devtools
import lamina
from lamina.colours import CONTROLS
from lamina.errors import InputError
from lamina.surfaces.icosphere import icosphere
from lamina.view.normals import corner_normals
from lamina.view.page import MISSING_VALUE, page, template
from lamina.view.render import render
from lamina.view.scene import Scene, grid_nodes, read_scene
from schemes import of_scheme

ROOT = Path(__file__).resolve().parent.parent
WEB = Path(lamina.__file__).parent / "view" / "web"
BALL, BALL_FACES = (a.numpy() for a in icosphere(4))
TYPES = {"f4": "<f4", "i1": "i1", "u2": "<u2", "u4": "<u4"}


def ball(frames=1, **more):
    """x over the unit sphere, fading over time."""
    values = np.stack([BALL[:, 0] * 0.5**i for i in range(frames)])
    return Scene("ball", BALL, values, tuple(map(float, range(frames))), BALL_FACES, BALL, **more)


def held(text):
    """Header and arrays of a page."""
    parts = dict(re.findall(r'<script type="[^"]*" id="lamina-(\w+)">([^<]*)</script>', text))
    header = json.loads(parts.pop("header"))
    arrays = {k: np.frombuffer(base64.b64decode(v), TYPES[header["arrays"][k]]) for k, v in parts.items()}
    return header, arrays


# What is in the page


def test_the_page_was_built_from_the_sources_beside_it():
    """After a change in view/web: make viewer."""
    names = sorted(p.name for p in WEB.iterdir() if p.suffix in (".js", ".mjs", ".css"))
    found = hashlib.sha256()
    for name in sorted([*names, "page.html", "package.json"]):
        found.update(f"{name}\0{(WEB / name).read_text()}\0".encode())
    assert f'name="lamina-sources" content="{found.hexdigest()}"' in template()


def test_the_page_is_small_forbids_requests_and_names_the_licence_of_three():
    text = template()
    assert len(text.encode()) < 2_000_000
    assert "default-src 'none'" in text
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)
    assert (WEB / "LICENSE-three.txt").read_text().strip() in text


def test_numbers_arrive():
    scene = ball(3, band=2 * BALL[:50])
    header, arrays = held(page(scene).text)
    shape, values = header["camera"], header["values"]
    points = shape["radius"] * arrays["positions"].reshape(-1, 3) + shape["centre"]
    np.testing.assert_allclose(points, BALL, atol=1e-6)
    np.testing.assert_array_equal(arrays["faces"].reshape(-1, 3), BALL_FACES)
    kept = values["offset"] + values["scale"] * arrays["values"].reshape(3, -1)
    np.testing.assert_allclose(kept, scene.values, atol=1e-6)
    np.testing.assert_allclose(arrays["normals"].reshape(-1, 3) / 127, BALL, atol=0.004)
    nodes = shape["radius"] * arrays["band"].reshape(-1, 3) + shape["centre"]
    np.testing.assert_allclose(nodes, 2 * BALL[:50], atol=1e-6)
    assert header["times"] == [0, 1, 2]


def test_a_small_variation_about_a_large_mean_is_kept():
    scene = Scene("ball", BALL, 1e6 + 1e-3 * BALL[:, :1].T, faces=BALL_FACES)
    header, arrays = held(page(scene).text)
    values = header["values"]
    kept = (values["offset"] - 1e6) + values["scale"] * arrays["values"].astype(float)
    np.testing.assert_allclose(kept, 1e-3 * BALL[:, 0], atol=1e-9)


def test_a_small_error_of_a_large_field_is_kept():
    scene = ball().beside(BALL[:, 0] - 1e-12 * BALL[:, 1])
    header, arrays = held(page(scene).text)
    np.testing.assert_allclose(header["error"]["scale"] * arrays["error"], 1e-12 * BALL[:, 1], atol=2e-16)


def test_many_frames_are_kept_in_two_bytes(monkeypatch):
    monkeypatch.setattr("lamina.view.page.MAX_FLOAT_VALUES", 1000)
    header, arrays = held(page(ball(3)).text)
    values = header["values"]
    assert header["arrays"]["values"] == "u2"
    kept = values["offset"] + values["scale"] * (2 * (arrays["values"] / 65535) - 1)
    np.testing.assert_allclose(kept, ball(3).values.reshape(-1), atol=2e-5)


def test_missing_values_are_marked():
    values = BALL[:, 0].copy()
    values[5] = np.nan
    header, arrays = held(page(Scene("ball", BALL, values[None], faces=BALL_FACES)).text)
    assert arrays["values"][5] == np.float32(MISSING_VALUE)
    assert header["values"]["high"] <= 1


def test_a_title_cannot_end_the_script():
    text = page(Scene("</script><b>", BALL, BALL[:, :1].T)).text
    assert "</script><b>" not in text
    assert held(text)[0]["title"] == "</script><b>"


def test_a_notebook_gets_the_whole_page_in_a_frame():
    made = page(ball())
    frame = made._repr_html_()
    source = re.fullmatch(r'<iframe srcdoc="([^"]*)"[^>]*></iframe>', frame)
    assert source
    assert html.unescape(source[1]) == made.text


def test_a_page_says_what_it_is():
    said = repr(page(ball()))
    assert "ball" in said
    assert "MB" in said
    assert ".save('u.html')" in said
    assert len(said) < 200


def cube():
    """The cube [-1, 1]^3 with 8 vertices."""
    corners = np.array([[x, y, z] for x in (-1.0, 1) for y in (-1.0, 1) for z in (-1.0, 1)])
    faces = ConvexHull(corners).simplices
    a, b, c = corners[faces].transpose(1, 0, 2)
    inward = np.einsum("ij,ij->i", np.cross(b - a, c - a), a) < 0
    return corners, np.where(inward[:, None], faces[:, ::-1], faces)


def shown_corners(text):
    """Places and normals (m, 3, 3) of the corners of the triangles in a page."""
    _, arrays = held(text)
    points = arrays["positions"].reshape(-1, 3)
    points = np.concatenate([points, points[arrays["copies"]]])
    faces = arrays["faces"].reshape(-1, 3).astype(int)
    return points[faces], arrays["normals"].reshape(-1, 3)[faces] / 127


def test_the_page_shades_a_cube_by_its_faces():
    corners, faces = cube()
    places, normals = shown_corners(page(Scene("cube", corners, np.zeros((1, 8)), faces=faces)).text)
    a, b, c = places.transpose(1, 0, 2)
    flat = np.cross(b - a, c - a)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    np.testing.assert_allclose(normals, np.repeat(flat[:, None], 3, axis=1), atol=0.01)


@pytest.mark.parametrize("shape", ["ball", "cylinder"])
def test_page_and_picture_have_the_same_normals_at_every_corner(shape):
    points, faces = (BALL, BALL_FACES) if shape == "ball" else cylinder()
    places, normals = shown_corners(page(Scene(shape, points, points[:, :1].T, faces=faces)).text)
    scale = np.abs(places).max() / np.abs(points - points.mean(0)).max()
    np.testing.assert_allclose(places, scale * (points - points.mean(0))[faces], atol=1e-6)
    np.testing.assert_allclose(normals, corner_normals(points, faces), atol=0.04)


def cylinder(around=24):
    """A tin: smooth around, with a sharp edge at bottom and top."""
    angle = 2 * np.pi * np.arange(around) / around
    ring = np.stack([np.cos(angle), np.sin(angle)], 1)
    points = np.concatenate([np.c_[ring, -np.ones(around)], np.c_[ring, np.ones(around)]])
    faces = ConvexHull(points).simplices
    a, b, c = points[faces].transpose(1, 0, 2)
    inward = np.einsum("ij,ij->i", np.cross(b - a, c - a), a + b + c) < 0
    return points, np.where(inward[:, None], faces[:, ::-1], faces)


# Scenes


@pytest.fixture(scope="module")
def flow():
    domain = lamina.paper.BandDomain(lamina.Sphere(level=4), 0.12, scheme="coupled", show_progress=False)
    return lamina.heat(domain, lambda x: x[:, 0], 0.1, frames=5, accuracy=1e-3)


def test_frames_are_equally_spaced_from_the_initial_state(flow):
    np.testing.assert_allclose(flow.times, [0, 0.025, 0.05, 0.075, 0.1])
    torch.testing.assert_close(flow.snapshots[0], flow.domain.points[:, 0], rtol=0, atol=2e-3)
    torch.testing.assert_close(flow.values, np.exp(-0.2) * flow.domain.points[:, 0], rtol=0, atol=2e-3)
    with pytest.raises(InputError, match="frames must be at least 2"):
        lamina.heat(flow.domain, lambda x: x[:, 0], 0.1, frames=1)


def test_a_solution_can_be_compared_with_functions_values_and_solutions(flow):
    exact = flow.scene(reference=lambda x, t: np.exp(-2 * t) * x[:, 0])
    assert exact.reference is not None
    assert np.abs(exact.values - exact.reference).max() < 2e-3
    same = flow.scene(reference=flow)
    np.testing.assert_array_equal(same.values, same.reference)
    last = flow.scene(reference=flow.values).reference
    assert last is not None
    np.testing.assert_array_equal(last[0], flow.values)
    other = lamina.heat(lamina.Domain(lamina.Sphere(level=2), 0.25), lambda x: x[:, 0], 0.1, frames=5, accuracy=1e-3)
    elsewhere = flow.scene(reference=other).reference
    assert elsewhere is not None
    assert np.abs(elsewhere - exact.reference).max() < 2e-2  # that grid is coarse


@pytest.mark.parametrize("scheme", ["coupled", "trace", "shell"])
def test_the_band_of_every_scheme_lies_about_the_surface(scheme):
    domain = of_scheme(scheme, lamina.Sphere(level=2), 0.2)
    nodes = grid_nodes(domain)
    # In the trace scheme a corner may have an unknown for each sheet.
    assert 0.95 * domain.unknowns < len(nodes) <= domain.unknowns
    assert bool(((nodes.norm(dim=1) - 1).abs() < 1.2).all())


@pytest.mark.parametrize("name", ["solution.ply", "solution.npz"])
def test_solutions_are_read_back(flow, tmp_path, name):
    flow.save(tmp_path / name)
    for path in (tmp_path / name, tmp_path):
        scene = read_scene(path)
        np.testing.assert_allclose(scene.values, flow.snapshots)
        np.testing.assert_allclose(scene.points, flow.domain.points)
        np.testing.assert_allclose(scene.times, flow.times)
        assert scene.faces is not None
        assert scene.facts["scheme"] == "coupled"


def test_a_surface_without_values_shows_its_height(tmp_path):
    path = tmp_path / "ball.obj"
    path.write_text("v 0 0 0\nv 1 0 0\nv 0 1 2\nv 1 1 3\nf 1 2 3\nf 2 4 3\n")
    np.testing.assert_array_equal(read_scene(path).values, [[0, 0, 2, 3]])


def test_a_notebook_shows_a_solution_as_a_picture(flow):
    text = flow._repr_html_()
    data = re.search(r'src="data:image/png;base64,([^"]+)"', text)
    assert data
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(data[1]))).convert("RGB")).astype(int)
    assert coloured(picture).mean() > 0.1
    assert "u from -0.8" in text
    assert "5 frames" in text
    assert len(text) < 300_000


# The command


def test_view_writes_a_page(program, tmp_path, monkeypatch, flow):
    monkeypatch.chdir(tmp_path)
    flow.save("u.ply")
    status, out, _ = program("view", "u.ply", "--no-open")
    assert status == 0
    assert "u.html" in out
    assert held(Path("u.html").read_text())[0]["times"] == pytest.approx(list(flow.times))
    assert program("view", "u.ply", "--reference", "u.ply", "--no-open")[0] == 0
    assert held(Path("u-compared.html").read_text())[0]["compared"] == "u"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["empty"], "no solution.ply or solution.npz in empty"),
        (["gone.html"], "there is no file gone.html"),
        (["gone.ply"], "gone.ply"),
        (["u.ply", "--out", "a.txt"], "ends in .html"),
        (["u.ply", "--reference", "other.ply"], "has 3 points"),
    ],
)
def test_what_cannot_be_viewed_is_refused_in_one_sentence(program, tmp_path, monkeypatch, flow, arguments, message):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    flow.save("u.ply")
    lamina.io.export.save("other.ply", np.eye(3), np.zeros(3))
    status, out, err = program("view", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


# In a browser


@pytest.fixture(scope="module")
def tab():
    program = devtools.find()
    if program is None:
        pytest.skip("no Chromium to open the viewer with: install it (apt install chromium) or set LAMINA_CHROMIUM")
    opened = devtools.Browser(program)
    yield opened
    opened.close()


def show(tab, scene, folder, **options):
    tab.open(page(scene, **options).save(folder / "scene.html"))


def drawn(tab):
    """What the canvas shows (height, width, 3) once it is at rest, without the controls."""
    tab.settle()
    tab.wait("document.documentElement.dataset.fine === document.documentElement.dataset.drawn")
    tab.settle()
    shot = tab.shot()
    left, width = tab.js("(() => { const v = window.lamina.views(); return [v[0].left, v.length * v[0].width]; })()")
    return shot[70:520, int(left) + 60 : int(left + width) - 10]


def coloured(image):
    return np.ptp(image, axis=2) > 30


def vertex_on_screen(tab, count):
    """The vertex nearest to the viewer, which nothing can hide, and where it is on the page."""
    return tab.js(
        f"""(() => {{
          const v = window.lamina, view = v.views()[0], p = v.data.arrays.positions;
          v.aim(view);
          v.camera.updateMatrixWorld();
          let best = null;
          for (let i = 0; i < {count}; i++) {{
            const q = v.camera.position.clone().set(p[3 * i], p[3 * i + 1], p[3 * i + 2]);
            const away = q.distanceTo(v.camera.position);
            q.project(v.camera);
            if (!best || away < best.away) best = {{ away, i, x: view.left + (q.x + 1) / 2 * view.width,
                                                     y: (1 - q.y) / 2 * view.height }};
          }}
          return best;
        }})()"""
    )


def hovered(tab, x, y):
    tab.mouse("mouseMoved", x, y)
    tab.settle()
    tab.settle()
    if tab.js("document.getElementById('probe').hidden"):
        return None
    return tab.js("document.getElementById('probe').textContent").split("\n")


def assert_clean(tab):
    assert tab.problems == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def demo_command():
    """The arguments that `make demo` gives to lamina."""
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    command = re.search(r"^demo:.*\n\t\$\(BIN\)/lamina (.*)$", text, re.MULTILINE)
    assert command
    return shlex.split(command[1])


@pytest.mark.slow
def test_the_demo_in_a_browser(tab, program, tmp_path):
    arguments = [str(tmp_path) if word == "$(DEMO)" else word for word in demo_command()]
    status, out, err = program(*arguments)
    assert status == 0, err
    assert f"To look at it: lamina view {tmp_path}" in out
    tab.open(tmp_path / "solution.html")
    # The canvas is not blank: the cow covers a good part of it, in the colours of both signs.
    first = drawn(tab)
    assert 0.2 < coloured(first).mean() < 0.9
    assert (first[..., 0] - first[..., 2] > 60).mean() > 0.03
    assert (first[..., 2] - first[..., 0] > 60).mean() > 0.03
    # The slider changes the picture, and heat fades: colours are paler at the end.
    tab.js("(s => { s.value = s.max; s.dispatchEvent(new Event('input')); })(document.getElementById('frame'))")
    last = drawn(tab)
    end = json.loads((tmp_path / "report.json").read_text())["time"]
    said = tab.js("document.getElementById('moment').textContent")
    assert float(said.removeprefix("t = ")) == pytest.approx(end, rel=1e-3)
    assert (np.abs(last - first).max(2) > 8).mean() > 0.1
    assert np.ptp(last, axis=2)[coloured(first)].mean() < np.ptp(first, axis=2)[coloured(first)].mean()
    # Hovering reads the value that the file has there.
    scene = read_scene(tmp_path / "solution.ply")
    found = vertex_on_screen(tab, len(scene.points))
    said = hovered(tab, found["x"], found["y"])
    assert said is not None
    assert float(said[0]) == pytest.approx(scene.values[-1, found["i"]], abs=0.02 * np.ptp(scene.values[-1]))
    place = [float(word) for word in said[1].split()]
    np.testing.assert_allclose(place, scene.points[found["i"]], atol=0.02)
    assert_clean(tab)


@pytest.mark.slow
def test_hovering_reads_the_field_everywhere(tab, tmp_path):
    """On the sphere with u = x the value read is the coordinate read."""
    show(tab, ball(), tmp_path)
    seen = 0
    for x in range(150, 650, 60):
        for y in (200, 320, 440):
            said = hovered(tab, x, y)
            if said:
                seen += 1
                assert float(said[0]) == pytest.approx(float(said[1].split()[0]), abs=2e-3)
    assert seen > 12
    assert hovered(tab, 90, 90) is None
    assert_clean(tab)


def test_points_are_drawn_and_read(tab, tmp_path):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(4000, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    show(tab, ball(), tmp_path)
    mesh = coloured(drawn(tab)).mean()
    for normals in (points, None):
        show(tab, Scene("cloud", points, points[:, :1].T, normals=normals), tmp_path)
        assert coloured(drawn(tab)).mean() == pytest.approx(mesh, rel=0.08)
        found = vertex_on_screen(tab, len(points))
        said = hovered(tab, found["x"], found["y"])
        assert said is not None
        assert float(said[0]) == pytest.approx(points[found["i"], 0], abs=1e-5)
    assert_clean(tab)


def test_side_by_side_and_error(tab, tmp_path):
    show(tab, ball().beside(0.5 * BALL[:, 0], "half"), tmp_path)
    tab.press("3")
    both = drawn(tab)
    half = both.shape[1] // 2
    left, right = both[:, :half], both[:, half:]
    assert coloured(left).mean() > 0.1
    strong = [np.ptp(side, axis=2)[coloured(side)].mean() for side in (left, right)]
    assert strong[0] > 1.2 * strong[1]
    assert tab.js("document.getElementById('names').textContent") == "solutionhalf"
    tab.press("4")
    tab.settle()
    assert float(tab.js("document.getElementById('high').value")) == pytest.approx(0.5)
    found = vertex_on_screen(tab, len(BALL))
    said = hovered(tab, found["x"], found["y"])
    numbers = {row.split()[0]: float(row.split()[1]) for row in said[:3]}
    x = BALL[found["i"], 0]
    assert numbers == pytest.approx({"solution": x, "reference": x / 2, "error": x / 2}, abs=0.01)
    assert_clean(tab)


@pytest.mark.slow
def test_range_isolines_layers_and_keys_change_the_picture(tab, tmp_path):
    show(tab, ball(2, band=1.3 * BALL), tmp_path)
    plain = drawn(tab)

    def differs(least=0.003):
        now = drawn(tab)
        return (np.abs(now - plain).max(2) > 10).mean() > least

    assert not differs()
    for key in ("i", "n", "b", "c", "d", "w"):  # each on, and off again
        tab.press(key)
        assert differs(), key
        tab.press(key)
        assert not differs(), key
    tab.press("c")
    before = coloured(drawn(tab)).sum()
    for _ in range(5):
        tab.press("]")
    assert coloured(drawn(tab)).sum() < 0.95 * before  # the farther back the plane, the less remains
    tab.press("c")
    assert not differs()
    tab.press("m")
    assert differs(0.05)
    for _ in range(len(CONTROLS) - 1):
        tab.press("m")
    assert not differs()
    tab.js("(e => { e.value = '0.2'; e.dispatchEvent(new Event('change')); })(document.getElementById('high'))")
    assert differs(0.05)
    tab.press("f")
    assert not differs()
    tab.press(".")
    assert tab.js("document.getElementById('moment').textContent") == "t = 1"
    assert differs(0.05)
    tab.press(",")
    for key in ("ArrowRight", "ArrowUp", "+"):
        tab.press(key)
        assert differs(), key
        tab.press("r")
        assert not differs(), key
    tab.press(" ")
    tab.wait("window.lamina.place > 0.02")
    tab.press(" ")
    assert not tab.js("window.lamina.playing")
    assert_clean(tab)


def test_fingers_turn_the_surface_and_a_tap_reads_it(tab, tmp_path):
    show(tab, ball(), tmp_path)
    before = tab.js("window.lamina.camera.position.toArray()")
    finger = [{"x": 300, "y": 300}]
    tab.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=finger)
    for step in range(1, 6):
        tab.call("Input.dispatchTouchEvent", type="touchMove", touchPoints=[{"x": 300 + 20 * step, "y": 300}])
    tab.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    tab.settle()
    after = tab.js("window.lamina.camera.position.toArray()")
    assert np.linalg.norm(np.subtract(after, before)) > 0.3
    tab.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=finger)
    tab.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    tab.settle()
    assert not tab.js("document.getElementById('probe').hidden")
    assert_clean(tab)


def test_a_frame_in_a_notebook_shows_the_surface(tab, tmp_path):
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><html><body>{page(ball())._repr_html_()}</body></html>")
    tab.problems.clear()
    tab.requests.clear()
    tab.call("Page.navigate", url=path.as_uri())
    tab.wait("document.readyState === 'complete' && document.querySelector('iframe')")
    deadline = time.monotonic() + 30
    while coloured(tab.shot()[100:500, 100:650]).mean() < 0.2:
        assert time.monotonic() < deadline, tab.problems
        time.sleep(0.1)
    assert_clean(tab)


def test_the_picture_has_surface_colour_bar_and_title(tab, tmp_path):
    show(tab, ball(), tmp_path)
    data = tab.js("window.lamina.picture().toDataURL('image/png')")
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(data.split(",")[1]))).convert("RGB")).astype(int)
    assert picture.shape == (2 * 640, 2 * 900, 3)
    assert coloured(picture[200:1080, 200:1300]).mean() > 0.2
    bar = picture[:, -200:-180]  # two pixels for each of the screen
    assert (bar[..., 0] - bar[..., 2] > 60).any()
    assert (bar[..., 2] - bar[..., 0] > 60).any()
    assert (picture[20:60, 20:200] < 128).any()
    assert_clean(tab)


def test_h_opens_and_closes_the_keys(tab, tmp_path):
    show(tab, ball(), tmp_path)
    for opened in (True, False, True, False):
        tab.press("h")
        assert tab.js("document.getElementById('keys').open") is opened
    assert_clean(tab)


def test_title_time_unit_and_colour_bar_are_named(tab, tmp_path):
    scene = replace(ball(3), title="u on ball", times=(0.0, 0.0125, 0.025))
    show(tab, scene, tmp_path, name="temperature", unit="K", time_unit="s")
    assert tab.js("document.getElementById('field').textContent") == "temperature (K)"
    assert tab.js("document.getElementById('title').textContent") == "temperature on ball, t = 0 s"
    tab.press(".")
    assert tab.js("document.getElementById('title').textContent") == "temperature on ball, t = 0.0125 s"
    show(tab, ball(), tmp_path)
    assert tab.js("document.getElementById('title').textContent") == "ball"  # nothing varies in time
    assert_clean(tab)


@pytest.mark.parametrize("offset", [0.0, 123456.0, -1e-12])
def test_the_numbers_at_the_bar_are_seen_whole(tab, tmp_path, offset):
    extent = 2e-3 / 7 * (abs(offset) or 1e-9)
    show(tab, Scene("ball", BALL, offset + 0.5 * extent * BALL[:, :1].T, faces=BALL_FACES), tmp_path)
    for box in ("low", "high"):
        wide, room = tab.js(f"(e => [e.scrollWidth, e.clientWidth])(document.getElementById('{box}'))")
        assert wide <= room
    low, high = (float(tab.js(f"document.getElementById('{box}').value")) for box in ("low", "high"))
    assert high - low == pytest.approx(extent, rel=1e-3)
    assert_clean(tab)


def test_the_faces_of_a_cube_have_the_colours_of_the_picture(tab, tmp_path):
    """One colour for each of the three faces that are seen, with nothing between them, and the same as in the PNG."""
    corners, faces = cube()
    show(tab, Scene("cube", corners, np.zeros((1, 8)), faces=faces), tmp_path)
    on_page, share = most_frequent(drawn(tab))
    assert share > 0.97
    picture = np.asarray(render(corners, np.zeros(8), faces=faces, colour_bar=False)).astype(int)
    np.testing.assert_allclose(on_page, most_frequent(picture)[0], atol=2)
    assert_clean(tab)


def most_frequent(image, count=3):
    """The colours (count, 3) that most pixels have, without the background, in order, and the share of these pixels."""
    found, times = np.unique(image.reshape(-1, 3), axis=0, return_counts=True)
    some = (found < 250).any(1)
    found, times = found[some], times[some]
    best = times.argsort()[-count:]
    return np.array(sorted(found[best].tolist())), times[best].sum() / times.sum()


def test_pixels_at_the_edge_lie_between_surface_and_background(tab, tmp_path):
    show(tab, Scene("ball", BALL, np.zeros((1, len(BALL))), faces=BALL_FACES), tmp_path)
    drawn(tab)
    rows = tab.shot()[400:500, 680:400:-1, 0]  # from the right, below the controls
    first = (rows < 250).argmax(1)
    edge, inside = (np.take_along_axis(rows, first[:, None] + k, 1) for k in (0, 3))
    assert ((edge > inside + 10) & (edge < 245)).mean() > 0.4
    assert_clean(tab)
