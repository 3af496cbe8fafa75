"""Data that vary faster than the grid are noticed, with the spacing that would do."""

import math
import re

import pytest
import torch

import lamina
from lamina.surfaces.icosphere import icosphere
from schemes import of_scheme

SPACING = 0.1


@pytest.fixture(scope="module", params=["trace", "coupled"])
def domain(request):
    return of_scheme(request.param, lamina.Mesh(*icosphere(5)), SPACING)


def wave(cells):
    """A sine with so many cells a wave."""
    return lambda x: torch.sin(2 * torch.pi / (cells * SPACING) * x[:, 0])


def spot(cells):
    return lambda x: torch.exp(-((x - x.new_tensor([0, 0, 1])).norm(dim=1) / (cells * SPACING)).square())


@pytest.mark.parametrize("data", [wave(0.7), wave(1.7), spot(0.3)])
def test_what_the_grid_cannot_show_is_named_with_a_spacing_that_would_do(domain, data):
    said = lamina.heat(domain, data, 1e-3).warnings
    assert len(said) == 1
    assert said[0].startswith("The initial state varies faster than the grid of spacing 0.1 shows: ")
    enough = float(re.search(r"use spacing (\S+) or smaller", said[0])[1])
    assert enough < SPACING
    fine = math.sqrt(4 * math.pi / enough**2 * 3)
    if fine < 600:  # unknowns that a test can afford
        assert lamina.heat(lamina.Domain(domain.surface, enough), data, 1e-3, steps=1).warnings == ()


@pytest.mark.parametrize(
    "data", [wave(8), spot(2), lambda x: (x[:, 0] > 0.1).double(), lambda x: 3.0 + 0 * x[:, 0], 2.0]
)
def test_what_the_grid_shows_is_not_worth_a_word(domain, data):
    assert lamina.heat(domain, data, 1e-3).warnings == ()


def test_right_hand_sides_sources_and_values_are_looked_at_too():
    domain = lamina.Domain(lamina.Mesh(*icosphere(5)), SPACING)
    [said] = lamina.poisson(domain, wave(0.7), screening=1.0).warnings
    assert said.startswith("The right-hand side varies")
    [said] = lamina.heat(domain, 0.0, 1e-3, source=lambda x, t: spot(0.3)(x)).warnings
    assert said.startswith("The source varies")
    noise = torch.randn(len(domain.points), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    [said] = lamina.heat(domain, noise, 1e-3).warnings
    assert re.search(r"(8|9)\d% of its variation is lost", said)


@pytest.mark.parametrize("cells", [0.4, 0.1, 0.02])
def test_the_spacing_that_is_named_follows_the_width_of_a_spot_however_narrow(domain, cells):
    """Between a fifth and once the width at which a spot falls to 1/e; the largest values that were seen are tails."""
    [said] = lamina.heat(domain, spot(cells), 1e-3, steps=1).warnings
    enough = float(re.search(r"use spacing (\S+) or smaller", said)[1])
    assert 0.2 < enough / (cells * SPACING) < 1
