"""A spacing chosen without thinking is a good one; one that cannot work is refused before any work is done."""

import math
import re

import numpy as np
import pytest
import torch

import lamina
from lamina.gallery import sphere_poisson
from lamina.grid import sizing
from lamina.metrics import errors
from lamina.paper.band_domain import BAND_NEEDS as BASELINES
from lamina.surfaces.icosphere import icosphere
from schemes import of_scheme

SPHERE = lamina.Sphere()
NEEDS = {"order 2": sizing.REQUIREMENTS_OF_ORDER[2], "order 3": sizing.REQUIREMENTS_OF_ORDER[3], **BASELINES}
COUPLED = NEEDS["coupled"]


def ellipsoid_mesh(*axes, level=5, centre=(0.0, 0.0, 0.0)):
    V, F = icosphere(level)
    return V * torch.tensor(axes, dtype=torch.float64) + torch.tensor(centre, dtype=torch.float64), F


def number_after(words, text):
    found = re.search(re.escape(words) + r" ([0-9.e+-]+[0-9])", text)
    assert found, text
    return float(found[1])


# Default spacing


@pytest.mark.parametrize("name", ["sphere", "torus", "ellipsoid", "spike", "starfruit"])
@pytest.mark.parametrize("scheme", ["coupled", "order 2", "order 3"])
def test_default_is_fine_enough_to_see_the_shape_and_coarse_enough_to_solve_soon(name, scheme):
    surface = lamina.load(name)
    needs = NEEDS[scheme]
    spacing = sizing.choose_spacing(surface, needs)
    assert sizing.extent(surface) / 200 <= spacing <= sizing.extent(surface) / (0.95 * needs.cells)
    assert sizing.estimated_nodes(surface, spacing, needs) <= 1.1 * sizing.MAX_DEFAULT_NODES
    assert float(f"{spacing:.2g}") == spacing


def test_default_solves_the_sphere_well():
    problem = sphere_poisson()
    u = lamina.poisson(lamina.Domain(SPHERE), problem.rhs)
    assert errors(u.values, problem.solution(SPHERE.points), remove_mean=True).nmae < 1e-4
    assert u.domain.warnings == []


@pytest.mark.parametrize("scale", [1e-3, 250.0])
def test_default_follows_the_units_of_the_file(scale):
    V, F = ellipsoid_mesh(1.0, 0.5, 0.3, level=4)
    small, large = (sizing.choose_spacing(lamina.Mesh(s * V, F), COUPLED) for s in (1.0, scale))
    assert large == pytest.approx(scale * small, rel=0.03)


def test_thin_shapes_get_finer_grids():
    thick, thin = (lamina.Mesh(*ellipsoid_mesh(1.0, 1.0, c)) for c in (1.0, 0.2))
    assert sizing.choose_spacing(thin, COUPLED) < 0.8 * sizing.choose_spacing(thick, COUPLED)


def test_a_cloud_is_not_resolved_more_finely_than_it_was_sampled():
    samples = SPHERE.sample(300)
    cloud = lamina.PointCloud(samples.points, samples.normals)
    assert sizing.choose_spacing(cloud, COUPLED) >= 0.9 * math.sqrt(4 * math.pi / 300)


@pytest.mark.parametrize(
    ("scheme", "surface"), [("coupled", SPHERE), ("order 3", SPHERE), ("trace", lamina.Mesh(*icosphere(3)))]
)
@pytest.mark.parametrize("spacing", [0.1, 0.05])
def test_estimated_nodes_are_about_those_that_come(scheme, surface, spacing):
    nodes = of_scheme(scheme, surface, spacing).unknowns
    needs = NEEDS["order 2" if scheme == "trace" else scheme]
    assert sizing.estimated_nodes(surface, spacing, needs) == pytest.approx(nodes, rel=0.25)


@pytest.mark.parametrize("scheme", ["coupled", "trace", "order 3"])
def test_nodes_may_be_asked_for_instead_of_a_spacing(scheme):
    domain = of_scheme(scheme, SPHERE, nodes=12_000)
    assert domain.unknowns == pytest.approx(12_000, rel=0.25)


# Thin parts


def plate_beside_ball():
    """A ball around the origin and a plate 0.1 thick around (3, 0, 0)."""
    V, F = ellipsoid_mesh(1.0, 1.0, 1.0)
    W, G = ellipsoid_mesh(1.0, 1.0, 0.05, centre=(3.0, 0.0, 0.0))
    return lamina.Mesh(torch.cat([V, W]), torch.cat([F, G + len(V)]))


def test_warning_says_how_much_is_thin_and_where():
    text = sizing.thin_warning(plate_beside_ball(), 0.1, COUPLED)
    assert text is not None
    share = float(text.split("%")[0])
    assert 30 < share < 45  # the plate has 6.3 of an area of 18.9
    x, y, z = (float(w) for w in re.search(r"near \((.*?)\)", text)[1].split(", "))
    assert 2 < x < 4
    assert math.hypot(x - 3, y) <= 1.01
    assert abs(z) <= 0.051


def test_spacing_that_the_warning_names_gives_no_warning():
    mesh = lamina.Mesh(*ellipsoid_mesh(1.0, 0.6, 0.3, level=4))
    text = sizing.thin_warning(mesh, 0.2, COUPLED)
    assert text is not None
    enough = number_after("spacing", text.split("Use")[1])
    assert enough < 0.2
    assert sizing.thin_warning(mesh, enough, COUPLED) is None


def test_thick_shapes_give_no_warning():
    for surface in (SPHERE, lamina.Torus(), lamina.Mesh(*icosphere(4))):
        assert sizing.thin_warning(surface, 0.05, COUPLED) is None


def test_noise_is_not_taken_for_thin_parts():
    from lamina.cli.solve import as_point_cloud

    cloud = as_point_cloud(SPHERE, 10_000, 0.01, seed=0)
    assert sizing.thin_warning(cloud, 0.05, COUPLED) is None
    assert sizing.choose_spacing(cloud, COUPLED) == pytest.approx(0.05, rel=0.1)


def test_warning_reaches_the_domain_and_the_report():
    domain = lamina.paper.BandDomain(lamina.Mesh(*ellipsoid_mesh(1.0, 0.6, 0.3, level=3)), 0.15, scheme="coupled")
    assert any("thinner than" in w for w in domain.warnings)
    u = lamina.poisson(domain, lambda x: x[:, 0], raise_on_failure=False)
    assert any("thinner than" in w for w in u.report()["warnings"])


# Refusals


def test_a_grid_that_does_not_fit_is_refused_in_bytes_before_anything_is_allocated(monkeypatch):
    def build(*_, **__):
        raise AssertionError("work began")

    monkeypatch.setattr(sizing, "_free_memory", lambda device: 1e9)
    monkeypatch.setattr("lamina.domain.cut_surface", build)
    with pytest.raises(lamina.InputError, match="bytes are free") as caught:
        lamina.Domain(SPHERE, 0.001, order=3)
    text = str(caught.value)
    needed = number_after("which need about", text)
    order3 = sizing.REQUIREMENTS_OF_ORDER[3]
    assert needed == pytest.approx(4 * math.pi * order3.density / 1e-6 * order3.bytes, rel=0.01)
    assert "1e+09 bytes are free" in text
    fitting = number_after("a spacing of at least", text)
    with pytest.raises(AssertionError, match="work began"):
        lamina.Domain(SPHERE, fitting, order=3)


@pytest.mark.parametrize("order", [2, 3])
def test_estimate_of_memory_covers_what_the_operators_take(order):
    domain = lamina.Domain(SPHERE, 0.08, order=order)
    stored = sum(size for *_, size in domain.scheme.table())
    assert stored < domain.unknowns * sizing.REQUIREMENTS_OF_ORDER[order].bytes


def test_auto_takes_order_2_where_order_3_would_not_fit(monkeypatch):
    monkeypatch.setattr(sizing, "_free_memory", lambda device: 2e8)
    domain = lamina.Domain(SPHERE, 0.05)
    assert domain.order == 2
    assert "bytes are free" in domain.order_reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spacing": 0.0}, "spacing must be a positive number, got 0.0"),
        ({"spacing": -0.1}, "spacing must be a positive number, got -0.1"),
        ({"spacing": math.nan}, "spacing must be a positive number, got nan"),
        ({"spacing": math.inf}, "spacing must be a positive number, got inf"),
        ({"spacing": "0.1"}, "spacing must be a positive number, got '0.1'"),
        ({"spacing": 0.9}, r"spacing 0.9 is too coarse for a shape 2 long.*use at most 0\.25"),
        ({"nodes": 10}, "nodes must be at least 100, got 10"),
        ({"spacing": 0.1, "nodes": 1000}, "Give spacing or nodes, not both"),
        ({"spacing": 0.1, "order": 5}, r'order must be 2, 3 or "auto", got 5'),
        ({"spacing": 0.1, "scheme": "magic"}, "Unknown scheme 'magic'; leave it out"),
        (
            {"spacing": 0.1, "extension": "magic"},
            "Unknown extension 'magic'; known: auto, closest-point, jet",
        ),
        ({"spacing": 0.1, "dtype": torch.float16}, "dtype must be torch.float32 or torch.float64"),
    ],
)
def test_bad_domains_are_named(options, message):
    with pytest.raises(lamina.InputError, match=message):
        lamina.Domain(SPHERE, **options)


def test_a_missing_device_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(lamina.InputError, match='there is no device "gpu"; use "cpu" or "cuda"'):
        lamina.Domain(SPHERE, 0.1, device="gpu")
    with pytest.raises(lamina.InputError, match='device "cuda" was asked for but torch sees no CUDA device'):
        lamina.Domain(SPHERE, 0.1, device="cuda")


def test_something_that_is_not_a_surface_is_named():
    with pytest.raises(lamina.InputError, match="needs a lamina surface, got ndarray"):
        lamina.Domain(np.zeros((3, 3)), 0.1)  # pyright: ignore[reportArgumentType]


def test_printing_a_domain_shows_its_levels():
    domain = lamina.Domain(SPHERE, 0.1, order=2)
    text = repr(domain)
    rows = domain.scheme.table()
    assert len(rows) >= 3
    for i, (spacing, unknowns, entries, _) in enumerate(rows):
        assert spacing == pytest.approx(0.1 * 2**i)
        assert any(
            line.split()[:4] == [str(i), f"{spacing:.4g}", str(unknowns), str(entries)] for line in text.splitlines()
        )
    assert "sphere" in text
    assert "order 2 (asked for), extension closest-point, spacing 0.1" in text


def test_the_default_spacing_gives_no_warning_about_itself():
    """A ball with two thin ears: some of it is thinner than the cells, and little depends on it."""
    V, F = ellipsoid_mesh(1.0, 1.0, 1.0, level=4)
    W, G = ellipsoid_mesh(0.25, 0.1, 0.018, centre=(2.0, 0.0, 0.0))
    mesh = lamina.Mesh(torch.cat([V, W, W + 0.9]), torch.cat([F, G + len(V), G + len(V) + len(W)]))
    assert 0.002 < sizing.thin_share(mesh, sizing.choose_spacing(mesh, NEEDS["order 2"]), NEEDS["order 2"]) < 0.05
    assert lamina.Domain(mesh).warnings == []


def test_no_spacing_finer_than_the_samples_is_advised():
    """A lens of which samples 0.046 apart do not show how thin it is: their distance is the default, which is not worth
    a word; on a coarser grid it is what the warning names."""
    feet = lamina.Ellipsoid(1, 1, 0.02).sample(3000, 0)
    cloud = lamina.PointCloud(feet.points, feet.normals)
    default = sizing.choose_spacing(cloud, NEEDS["order 2"])
    assert sizing.thin_share(cloud, default, NEEDS["order 2"]) > 0.5
    assert sizing.thin_warning(cloud, default, NEEDS["order 2"]) is None
    finer = sizing.thin_warning(cloud, 0.7 * default, NEEDS["order 2"])
    assert finer is not None
    assert "denser samples would" in finer
    text = sizing.thin_warning(cloud, 0.2, NEEDS["order 2"])
    assert text is not None
    assert number_after("spacing", text.split("Use")[1]) == default


def test_places_have_the_digits_that_tell_cells_apart():
    assert sizing.formatted_point(torch.tensor([1234.5678, -0.02, 3.0]).numpy(), 0.05) == "(1234.568, -0.020, 3.000)"
    assert sizing.formatted_point(torch.tensor([1234.5678, -20.0, 3.0]).numpy(), 39.0) == "(1235, -20, 3)"
