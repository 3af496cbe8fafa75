"""Schemes by name: each turns geometry and a lattice into linear operators with a hierarchy."""

from __future__ import annotations

from lamina.errors import InputError
from lamina.geometry.lattice import Lattice
from lamina.schemes.base import Scheme, Update
from lamina.schemes.coupled import Coupled
from lamina.schemes.trace import Trace, cut_surface
from lamina.sizing import DEFAULT_CELLS, THIN_SHARE, extent, thin_share
from lamina.surfaces.base import Surface
from lamina.surfaces.mesh import Mesh

SCHEMES = ("coupled", "trace")
ORDERS = (2, 4)
SMOOTH = ("analytic", "implicit", "spherical map")


def choose_scheme(surface: Surface, scheme: str, order: int | None, spacing: float | None) -> tuple[str, str, int]:
    """Why, scheme and order for what was asked; "auto" and None are filled in.

    Meshes have creases along every edge, and thin parts defeat the wide band of the coupled scheme: trace.
    Smooth surfaces thick enough for the band: coupled, which is of higher order there.
    Raises InputError for a combination that does not exist.
    """
    why = "asked for"
    if scheme == "auto":
        if order == 4:
            scheme, why = "coupled", "order 4 was asked for"
        elif isinstance(surface, Mesh):
            scheme, why = "trace", "best measured for meshes"
        elif thin_share(surface, spacing or extent(surface) / DEFAULT_CELLS, "coupled") > THIN_SHARE:
            scheme, why = "trace", "parts are too thin for the band of the coupled scheme"
        else:
            scheme, why = "coupled", "smooth, and thick enough for its band"
    if scheme == "trace":
        if order == 4:
            raise InputError('scheme="trace" is of order 2; use order=2, or scheme="coupled" for order 4.')
        return why, scheme, 2
    if order is None:
        order = 4 if surface.representation in SMOOTH else 2
    return why, scheme, order


def build_scheme(scheme: str, geometry: Surface, lattice: Lattice, order: int, update: Update) -> Scheme:
    if scheme == "coupled":
        return Coupled(geometry, lattice, order, update)
    update(0.0, "cutting cells")
    cut = cut_surface(geometry, lattice)
    update(0.5, "assembling")
    return Trace(cut)
