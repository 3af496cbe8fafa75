"""The examples of docs/extending.md: each runs as it is, is short, and finds what it should."""

import math
import re
from pathlib import Path

import pytest
import torch

import lamina
from lamina.geometry.basis import BASES
from lamina.io import formats
from lamina.pde.integrators import INTEGRATORS
from lamina.reconstruction import choose

PAGE = Path(__file__).resolve().parent.parent / "docs" / "extending.md"
SECTIONS = dict(re.findall(r"^## An? (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE))
MAX_LINES = 30  # of an example, blank lines not counted
EXAMPLES = ("surface", "file format", "reconstruction", "equation", "integrator", "element")


def example(section: str) -> str:
    (block,) = re.findall(r"```python\n(.*?)```", SECTIONS[section], re.DOTALL)
    return block


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the example of a section, in an empty folder, with nothing left registered; the names that it defines."""
    monkeypatch.chdir(tmp_path)
    registries = BASES, formats.REGISTERED, INTEGRATORS, choose.REGISTERED
    before = [dict(registry) for registry in registries]

    def call(section: str) -> dict:
        names: dict = {"__name__": "__main__"}
        exec(example(section), names)
        return names

    yield call
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)


@pytest.mark.parametrize("section", EXAMPLES)
def test_examples_are_short(section):
    assert len([line for line in example(section).splitlines() if line.strip()]) <= MAX_LINES


def test_a_surface_has_its_area_and_the_solution_of_poissons_equation(run):
    """Both parts of the capsule have the area 2 pi dz, so that the flux through a circle is known.

    On the cylinder u' = (z^2 - H^2) / 2, where H is half the height of the capsule.
    """
    u = run("surface")["u"]
    assert u.domain.quadrature.area == pytest.approx(4 * math.pi * 1.5, rel=1e-5)
    assert float(u.domain.surface.areas.sum()) == pytest.approx(4 * math.pi * 1.5)
    z = torch.linspace(-0.4, 0.4, 9, dtype=torch.float64)
    on_cylinder = torch.stack([torch.ones_like(z), torch.zeros_like(z), z], 1)
    torch.testing.assert_close(u(on_cylinder), z**3 / 6 - 1.5**2 * z / 2, rtol=0, atol=1e-3)


def test_a_file_format_is_read_and_what_is_wrong_is_said(run, tmp_path):
    names = run("file format")
    surface = names["surface"]
    assert isinstance(surface, lamina.Mesh)
    assert float(surface.areas.sum()) == pytest.approx(4 * math.sqrt(3))
    cloud = tmp_path / "cloud.json"
    cloud.write_text(f'{{"vertices": {lamina.Sphere().points[::8].tolist()}}}')
    assert isinstance(lamina.load(cloud), lamina.PointCloud)
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    with pytest.raises(lamina.InputError, match=r"bad.json cannot be read as JSON: it has no entry 'vertices'\."):
        lamina.load(bad)
    with pytest.raises(lamina.InputError, match="is no neural field; leave out activation"):
        lamina.load(cloud, activation="relu")


@pytest.mark.usefixtures("run")
def test_the_extension_of_a_registered_format_decides(tmp_path):
    """A text with three numbers in a line would be a point cloud otherwise."""
    path = tmp_path / "points.abc"
    path.write_text("0 0 1\n")
    read = []
    formats.register(".ABC", lambda path: read.append(path) or formats.Contents(lamina.Sphere().points.numpy()))
    assert len(lamina.load(path).points) == len(lamina.Sphere().points)
    assert read == [path]


def test_the_reconstruction_is_the_ellipsoid_that_noisy_samples_are_of(run):
    names = run("reconstruction")
    domain, ellipsoid = names["domain"], lamina.Ellipsoid(1.0, 0.8, 0.6)
    assert domain.reconstruction.method == "quadric"
    assert "points of the surface from: quadric (it was asked for)" in repr(domain)
    assert len(domain.points) == len(names["points"])
    assert domain.quadrature.area == pytest.approx(lamina.Domain(ellipsoid, spacing=0.2).quadrature.area, rel=0.01)
    x = domain.quadrature.points
    away = (x - ellipsoid.closest_points(x).points).norm(dim=1)
    assert float(away.max()) < 0.3 * float(names["noise"].norm(dim=1).mean())


def test_a_registered_reconstruction_serves_clipped_and_other_surfaces(run):
    names = run("reconstruction")
    upper = lamina.clip(lamina.PointCloud(names["points"]), lambda x: x[:, 2])
    half = lamina.Domain(upper, spacing=0.2, reconstruction="quadric")
    assert half.quadrature.area == pytest.approx(names["domain"].quadrature.area / 2, rel=0.01)
    ball = lamina.Domain(lamina.Sphere(), spacing=0.3, reconstruction="quadric")
    assert ball.quadrature.area == pytest.approx(4 * math.pi, rel=1e-3)


def test_names_of_reconstructions_are_checked():
    with pytest.raises(lamina.InputError, match="lamina has a reconstruction 'jets' already"):
        choose.register("jets", lambda cloud: cloud)
    with pytest.raises(lamina.InputError, match="Unknown reconstruction 'quadric'; known: auto, fits, jets, triangles"):
        lamina.Domain(lamina.Sphere(), reconstruction="quadric")


def test_the_biharmonic_equation_is_solved_by_spherical_harmonics(run):
    names = run("equation")
    u = names["u"]
    torch.testing.assert_close(u.values, u.domain.points[:, 0], rtol=0, atol=1e-3)
    v = names["biharmonic"](u.domain, lambda x: 36 * x[:, 0] * x[:, 1])
    torch.testing.assert_close(v.values, u.domain.points[:, :2].prod(1), rtol=0, atol=1e-3)


def test_the_integrator_multiplies_a_harmonic_in_each_step(run):
    v = run("integrator")["v"]
    expected = (1 + 2 * 0.1 / 40) ** -40 * v.domain.points[:, 0]
    torch.testing.assert_close(v.values, expected, rtol=0, atol=1e-3)
    assert v.steps == 40


def test_the_integrator_keeps_conditions_sources_and_moments(run):
    """du/dt = Laplacian(u) + 1 with u = t on the rim keeps u = t."""
    run("integrator")
    half = lamina.Domain(lamina.clip(lamina.Sphere(), lambda x: x[:, 2]), spacing=0.2)
    rim = lamina.Dirichlet("rim", lambda x, t: t * torch.ones_like(x[:, 0]))
    v = lamina.heat(half, 0.0, 0.1, rim, source=1.0, times=[0.03], steps=10, method="implicit-euler")
    assert v.times == (0.03, 0.1)
    for state, t in zip(v.snapshots, v.times, strict=True):
        torch.testing.assert_close(state, torch.full_like(state, t), rtol=0, atol=1e-6)


def test_the_projection_on_cubic_functions_is_of_order_four(run):
    names = run("element")

    def f(x):
        return torch.sin(3 * x[:, 0]) * x[:, 1]

    def error(spacing):
        domain = lamina.Domain(lamina.Sphere(), spacing, order=2)
        away = names["projection"](domain, f) - f(domain.quadrature.points)
        return float((domain.quadrature.weights * away.square()).sum().sqrt())

    assert len(names["values"])
    assert math.log2(error(0.4) / error(0.2)) > 3.7
