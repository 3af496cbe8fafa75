"""Schemes by name: each turns geometry and a lattice into linear operators with a hierarchy."""

from __future__ import annotations

from lamina.geometry.lattice import Lattice
from lamina.schemes.base import Scheme
from lamina.schemes.coupled import Coupled
from lamina.surfaces.base import Surface

SCHEMES = ("coupled",)
ORDERS = (2, 4)


def choose_scheme(surface: Surface, extension: str, scheme: str, order: int | None) -> tuple[str, str, int]:
    """Why, scheme and order for what was asked; "auto" and None are filled in."""
    smooth = surface.representation in ("analytic", "implicit", "spherical map")
    if order is None:
        order = 4 if smooth and extension == "closest-point" else 2
    why = f"{surface.representation} surface, {'smooth' if smooth else 'not known to be smooth'}"
    return why, "coupled", order


def build_scheme(scheme: str, geometry: Surface, lattice: Lattice, order: int) -> Scheme:
    assert scheme == "coupled"
    return Coupled(geometry, lattice, order)
