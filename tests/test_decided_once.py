"""What a domain decides about a surface it decides once: a clipped part is read alike, and `lamina info` agrees."""

import pytest

import golden
import lamina
from lamina.domain import default_grid


def warnings_of(domain):
    """Without those about places and shares, which are others on a part of the surface."""
    return {w for w in domain.warnings if "thinner than the grid" not in w}


SLOW = ("noisy cloud", "splats")  # whose reconstruction takes seconds
NAMES = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in (*golden.REPRESENTATIONS, "network")
]


@pytest.mark.parametrize("name", NAMES)
def test_a_clipped_surface_is_read_as_the_whole_one_is(name):
    """Cut off is a tip only: how rough a surface is, which chooses the order, is that of nearly all of it."""
    whole = golden.surface(name)
    part = lamina.clip(whole, lambda x: x[:, 2] + 0.95)
    a, b = (lamina.Domain(s, 0.26) for s in (whole, part))
    assert b.order == a.order
    assert (b.reconstruction.method, b.reconstruction.reason) == (a.reconstruction.method, a.reconstruction.reason)
    assert warnings_of(b) == warnings_of(a)
    assert b.quadrature.area < a.quadrature.area


@pytest.mark.parametrize("name", NAMES)
def test_info_says_what_a_domain_decides(name):
    surface = golden.surface(name)
    grid, domain = default_grid(surface), lamina.Domain(surface)
    assert (grid.order, grid.spacing, grid.order_reason) == (domain.order, domain.spacing, domain.order_reason)
    assert (grid.reconstruction.method, grid.reconstruction.reason) == (
        domain.reconstruction.method,
        domain.reconstruction.reason,
    )
