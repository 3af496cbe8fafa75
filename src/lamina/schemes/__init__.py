"""Functions on cut cells: what turns a surface and a lattice into linear operators with a hierarchy."""

from __future__ import annotations

from lamina.schemes.cutsurface import CutSurface
from lamina.surfaces.specks import left_out_for_size

ORDERS = (2, 3)


def left_out(cut: CutSurface) -> list[str]:
    """What the user should know about the cells that the surface cuts."""
    said = []
    if cut.specks:
        said.append(left_out_for_size(cut.specks, cut.speck_share))
    if cut.unresolved:
        said.append(f"The surface is too thin or too rough for cells of spacing {cut.spacing:g}: {cut.unresolved}.")
    return said
