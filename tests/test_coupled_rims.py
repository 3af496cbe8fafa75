"""Rims of the coupled scheme: nodes beyond them, their images, and how accurate reflection is."""

import math
from functools import cache

import pytest
import torch

import lamina
from hemisphere import KINDS, exact, rhs
from lamina import Dirichlet, Neumann, Robin
from lamina.gallery import surface_laplacian
from lamina.metrics import errors
from lamina.paper.coupled import Coupled
from lamina.paper.coupled_levels import CoupledLevel
from lamina.paper.ghosts import GhostRule, Ghosts
from lamina.spaces.scheme import FLUX, FREE, VALUE
from lamina.surfaces.icosphere import icosphere

TILT = torch.nn.functional.normalize(torch.tensor([0.3, -0.2, 0.93], dtype=torch.float64), dim=0)


def height(x):
    return x[:, 2]


def over_tilt(x):
    return x @ TILT - 0.07


@cache
def hemisphere(spacing: float, rim_order: int = 2) -> lamina.Domain:
    surface = lamina.clip(lamina.Sphere(level=4), height)
    return lamina.paper.BandDomain(surface, spacing, scheme="coupled", rim_order=rim_order)


def finest(domain: lamina.Domain) -> tuple[CoupledLevel, Ghosts]:
    assert isinstance(domain.scheme, Coupled)
    level = domain.scheme.levels[0]
    assert level.ghosts is not None
    return level, level.ghosts


def error(domain: lamina.Domain, kind: str) -> float:
    u = lamina.poisson(domain, rhs, KINDS[kind])
    return errors(u.values, exact(domain.points), remove_mean=kind == "Neumann").nmae


# Ghosts


def test_ghosts_are_the_nodes_beyond_the_rim():
    level, ghosts = finest(hemisphere(0.1))
    x = level.band.lattice.position(level.band.ijk)
    below = x[:, 2] < -1e-9
    is_ghost = torch.zeros_like(below)
    is_ghost[ghosts.rows] = True
    assert torch.equal(is_ghost, below)
    own = x[ghosts.rows]
    nearest = torch.nn.functional.normalize(own * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64))
    assert float((ghosts.rim - nearest).norm(dim=1).max()) <= 1e-6


def test_images_lie_inside_as_far_from_the_rim_as_the_nodes_to_second_order():
    found = []
    for spacing in (0.1, 0.07):
        level, ghosts = finest(hemisphere(spacing))
        x, image = level.band.lattice.position(level.band.ijk[ghosts.rows]), level.band.feet.points[ghosts.rows]
        torch.testing.assert_close(image.norm(dim=1), torch.ones(len(image), dtype=torch.float64))
        assert float(image[:, 2].min()) > 0
        torch.testing.assert_close((image - ghosts.rim).norm(dim=1), ghosts.distance)
        found.append(float((image[:, 2] + x[:, 2]).abs().max()))
    assert math.log(found[0] / found[1]) / math.log(0.1 / 0.07) >= 1.7


def test_of_first_order_feet_stay_on_the_rim():
    level, ghosts = finest(hemisphere(0.1, rim_order=1))
    torch.testing.assert_close(level.band.feet.points[ghosts.rows], ghosts.rim)
    assert len(ghosts.rows) == len(finest(hemisphere(0.1))[1].rows)


@pytest.mark.parametrize("rim_order", [1, 2])
def test_a_closed_surface_has_no_ghosts(rim_order):
    domain = lamina.paper.BandDomain(lamina.Sphere(level=3), 0.2, scheme="coupled", rim_order=rim_order)
    assert isinstance(domain.scheme, Coupled)
    assert all(level.ghosts is None for level in domain.scheme.levels)


@cache
def other_hemisphere(form: str) -> lamina.Domain:
    if form == "box":
        box = [[-1.2, -1.2, 0.0], [1.2, 1.2, 1.2]]
        surface = lamina.Implicit(lambda x: (x**2).sum(1) - 1, box, samples=2000)
    else:
        surface = lamina.clip(lamina.PointCloud(icosphere(3)[0]), height)
    return lamina.paper.BandDomain(surface, 0.15, scheme="coupled")


@pytest.mark.parametrize("form", ["box", "points"])
def test_other_open_surfaces_have_ghosts_too(form):
    level, ghosts = finest(other_hemisphere(form))
    x = level.band.lattice.position(level.band.ijk[ghosts.rows])
    assert float(x[:, 2].max()) <= 1e-9
    assert float(ghosts.rim[:, 2].abs().max()) <= 1e-3
    assert len(ghosts.rows) > 500


@pytest.mark.parametrize("order", [1, 2])
def test_rules_are_exact_for_what_they_continue(order):
    """u(x) = sign u(image) + gain g: for a constant 3, and of second order for a slope s from 3 on the rim."""
    d = torch.tensor([0.01, 0.1, 0.2], dtype=torch.float64)
    ghosts = Ghosts(torch.arange(3), torch.zeros(3, 3, dtype=torch.float64), d)
    zero = torch.zeros_like(d)

    def rule(kind, robin=zero):
        return GhostRule.from_conditions(ghosts, torch.full((3,), kind), robin, order)

    free, value, through, robin = rule(FREE), rule(VALUE), rule(FLUX), rule(FLUX, zero + 2.0)
    for r, g in ((free, 0.0), (value, 3.0), (through, 0.0), (robin, 6.0)):
        torch.testing.assert_close(r.image_factor * 3 + r.data_factor * g, zero + 3)
    if order == 2:
        s = 0.7
        for r, g in ((value, 3.0), (through, s), (robin, s + 2 * 3)):
            torch.testing.assert_close(r.image_factor * (3 - s * d) + r.data_factor * g, 3 + s * d)


# Accuracy


@pytest.mark.parametrize("kind", list(KINDS))
def test_rim_order_one_is_first_order_and_reflection_is_better(kind):
    """Of second order it is too: test_conditions.py."""
    first = [error(hemisphere(h, rim_order=1), kind) for h in (0.1, 0.05)]
    assert math.log2(first[0] / first[1]) == pytest.approx(1, abs=0.2)
    assert error(hemisphere(0.1), kind) <= 0.2 * first[1]


def test_a_tilted_rim_in_no_plane_of_the_lattice():
    surface = lamina.clip(lamina.Sphere(level=4), over_tilt)
    found = []
    for spacing in (0.1, 0.05):
        domain = lamina.paper.BandDomain(surface, spacing, scheme="coupled")
        u = lamina.poisson(domain, rhs, Dirichlet("rim", exact))
        assert u.cycles <= 15
        found.append(errors(u.values, exact(domain.points)).nmae)
    assert found[1] <= 2e-4
    assert math.log2(found[0] / found[1]) >= 1.5


def test_a_rim_on_an_ellipsoid():
    axes = torch.tensor([1.0, 0.8, 0.6], dtype=torch.float64)

    def true(x):
        return torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]

    def f(x):
        return surface_laplacian(true, lambda p: ((p / axes) ** 2).sum(1) - 1, x)

    surface = lamina.clip(lamina.Ellipsoid(1, 0.8, 0.6, level=4), lambda x: x[:, 2] - 0.2 * x[:, 0] - 0.1)
    found = []
    for spacing in (0.09, 0.06):
        domain = lamina.paper.BandDomain(surface, spacing, scheme="coupled")
        u = lamina.poisson(domain, f, Dirichlet("rim", true))
        found.append(errors(u.values, true(domain.points)).nmae)
        assert u.cycles <= 15
    assert found[1] <= 2e-4
    assert math.log(found[0] / found[1]) / math.log(0.09 / 0.06) >= 1.7


@pytest.mark.parametrize("form", ["box", "points"])
def test_other_open_surfaces_are_held_as_well(form):
    assert error(other_hemisphere(form), "Dirichlet") <= 1e-3


@pytest.mark.parametrize("spacing", [0.2, 0.1, 0.07])
def test_cycles_are_few_at_any_spacing(spacing):
    domain = hemisphere(spacing)
    for condition in (*KINDS.values(), None):
        u = lamina.poisson(domain, rhs if condition else lambda x: x[:, 0], condition)
        assert u.cycles <= 12
    u = lamina.poisson(domain, rhs, KINDS["Dirichlet"], screening=30.0)
    assert u.cycles <= 12


# Symmetry


def test_held_at_zero_the_hemisphere_is_half_of_an_odd_sphere():
    """Lap u = f with f odd in z: u vanishes where z = 0, and is that of the hemisphere held at zero."""

    def odd(x):
        return x[:, 2] ** 3 + x[:, 2] * x[:, 0]

    whole = lamina.poisson(lamina.paper.BandDomain(lamina.Sphere(level=4), 0.1, scheme="coupled"), odd)
    half = lamina.poisson(hemisphere(0.1), odd, Dirichlet("rim"))
    assert errors(half.values, whole(half.domain.points)).nmaxe <= 1e-3


def test_without_flux_the_hemisphere_is_half_of_an_even_sphere():
    def even(x):
        return x[:, 0] * x[:, 2] ** 2 + x[:, 1]

    whole = lamina.poisson(lamina.paper.BandDomain(lamina.Sphere(level=4), 0.1, scheme="coupled"), even)
    half = lamina.poisson(hemisphere(0.1), even)
    assert errors(half.values, whole(half.domain.points), remove_mean=True).nmaxe <= 1e-3


def test_both_schemes_find_the_same_solution():
    def wave(x):
        return torch.sin(2 * x[:, 0]) * torch.cos(1.5 * x[:, 1]) + x[:, 2]

    condition = Robin("rim", lambda x: torch.exp(x[:, 1]), lambda x: 2 + x[:, 0])
    coupled = lamina.poisson(hemisphere(0.1), wave, condition)
    trace = lamina.poisson(lamina.Domain(hemisphere(0.1).surface, 0.1, order=2), wave, condition)
    assert coupled.domain.scheme.name == "coupled"
    assert errors(coupled.values, trace.values).nmae <= 1e-3


def test_the_domain_stays_as_it_was():
    """Conditions make operators of their own: the next problem on the same domain knows nothing of them."""
    domain = hemisphere(0.2)
    before = lamina.poisson(domain, height).values
    lamina.poisson(domain, height, Dirichlet("rim", 5.0))
    torch.testing.assert_close(lamina.poisson(domain, height).values, before, rtol=0, atol=1e-14)
    assert domain.scheme.levels[0].constrained is None


@pytest.mark.parametrize("rim_order", [0, 3, "2"])
def test_a_bad_rim_order_is_named(rim_order):
    with pytest.raises(lamina.InputError, match=f"rim_order must be 1 or 2, got {rim_order!r}"):
        lamina.paper.BandDomain(lamina.Sphere(level=2), 0.3, rim_order=rim_order)


def test_a_diffusivity_on_a_rim_that_is_held_says_what_needs_the_other_scheme():
    with pytest.raises(lamina.InputError, match="a diffusivity needs functions on cut cells"):
        lamina.poisson(hemisphere(0.2), rhs, KINDS["Dirichlet"], diffusivity=2.0)


# Heat


def test_heat_with_a_flux_that_changes_with_time():
    """u = exp(-2t) z on the hemisphere: exp(-2t) flows in through the rim."""
    flow = Neumann("rim", lambda x, t: torch.full_like(x[:, 0], -math.exp(-2 * t)))
    found = []
    for spacing in (0.1, 0.05):
        domain = hemisphere(spacing)
        u = lamina.heat(domain, height, 0.2, flow, steps=12)
        found.append(errors(u.values, math.exp(-0.4) * height(domain.points)).nmae)
    assert found[1] <= 1e-3
    assert math.log2(found[0] / found[1]) >= 1.8


def test_heat_without_flux_keeps_its_mean_on_an_open_surface():
    domain = hemisphere(0.2)
    u = lamina.heat(domain, lambda x: 1 + x[:, 0] * x[:, 2], 0.3, Neumann("rim"), times=[0.1], steps=6)
    for unknowns in u.unknowns:
        values = u.domain.evaluate(unknowns, domain.quadrature.points)
        mean = float((domain.quadrature.weights * values).sum()) / domain.quadrature.area
        assert mean == pytest.approx(1, abs=2e-3)
