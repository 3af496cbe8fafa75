"""Schemes by name: each turns geometry and a lattice into linear operators with a hierarchy."""

from __future__ import annotations

from lamina.errors import InputError
from lamina.geometry.lattice import Lattice
from lamina.schemes.base import Scheme
from lamina.schemes.coupled import Coupled
from lamina.schemes.trace import Trace
from lamina.surfaces.base import Surface
from lamina.surfaces.mesh import Mesh

SCHEMES = ("coupled", "trace")
ORDERS = (2, 4)
SMOOTH = ("analytic", "implicit", "spherical map")


def choose_scheme(surface: Surface, extension: str, scheme: str, order: int | None) -> tuple[str, str, int]:
    """Why, scheme and order for what was asked; "auto" and None are filled in.

    Raises InputError for a combination that does not exist.
    """
    if scheme == "auto":
        mesh = isinstance(surface, Mesh) and extension == "closest-point" and order != 4
        scheme = "trace" if mesh else "coupled"
        why = f"best measured for {'a mesh' if mesh else surface.representation}"
    else:
        why = "asked for"
    if scheme == "trace":
        if not isinstance(surface, Mesh) or extension != "closest-point":
            raise InputError('scheme="trace" cuts triangle meshes; use scheme="coupled" for this surface.')
        if order == 4:
            raise InputError('scheme="trace" is of order 2; use order=2, or scheme="coupled" for order 4.')
        return why, scheme, 2
    if order is None:
        order = 4 if surface.representation in SMOOTH and extension == "closest-point" else 2
    return why, scheme, order


def build_scheme(scheme: str, geometry: Surface, lattice: Lattice, order: int) -> Scheme:
    return Trace(geometry, lattice) if scheme == "trace" else Coupled(geometry, lattice, order)
