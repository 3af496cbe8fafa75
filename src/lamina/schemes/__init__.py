"""Functions on cut cells: what turns a surface and a lattice into linear operators with a hierarchy."""

from __future__ import annotations

from lamina.schemes.cutsurface import CutSurface

ORDERS = (2, 3)


def left_out(cut: CutSurface) -> list[str]:
    """What the user should know about the cells that the surface cuts."""
    said = []
    if cut.specks:
        parts = "1 part" if cut.specks == 1 else f"{cut.specks} parts"
        said.append(
            f"{parts} of the surface, {cut.speck_share:.2%} of its area in all, were left out: each lies apart and is "
            "smaller than a hundredth of the largest part. Points on them read the nearest part that was kept."
        )
    if cut.unresolved:
        said.append(f"The surface is too thin or too rough for cells of spacing {cut.spacing:g}: {cut.unresolved}.")
    return said
