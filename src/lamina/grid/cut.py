"""The cells that a surface cuts. The type of the surface decides here, and nowhere else, which code cuts it."""

from __future__ import annotations

from functools import singledispatch

from lamina.geometry.lattice import Lattice
from lamina.grid.closest_point_cut import cut_closest_points
from lamina.grid.cut_surface import CutSurface
from lamina.grid.interface_curves import NO_CURVES, InterfaceCurves, LevelCurve
from lamina.grid.level_cut import cut_level_set
from lamina.grid.mesh_cut import cut_mesh
from lamina.surfaces.base import Surface
from lamina.surfaces.clipped import Clipped
from lamina.surfaces.implicit import Implicit
from lamina.surfaces.mesh import Mesh
from lamina.surfaces.specks import left_out_for_size


def cut_surface(
    surface: Surface, lattice: Lattice, sheets: bool = True, curves: InterfaceCurves = NO_CURVES, degree: int = 1
) -> CutSurface:
    """The pieces that the cells of a lattice cut a surface into.

    sheets: whether each sheet of a cell has unknowns of its own; False serves to measure what that is worth. curves:
    those along which the surface is split. degree: of the functions on the cells, 1 or 2.
    """
    return cut_part(surface, surface, lattice, sheets, curves, degree)


@singledispatch
def cut_part(
    surface: Surface, part: Surface, lattice: Lattice, sheets: bool, curves: InterfaceCurves, degree: int
) -> CutSurface:
    """The part of a surface that curves leave, cut into cells.

    Surfaces are cut by their closest points. Types that are cut in another way register a function of their own.
    """
    return cut_closest_points(surface, lattice, sheets, curves, part, degree)


@cut_part.register
def _(surface: Mesh, part: Surface, lattice: Lattice, sheets: bool, curves: InterfaceCurves, degree: int) -> CutSurface:
    return cut_mesh(surface, lattice, sheets, curves, degree)


@cut_part.register
def _(
    surface: Implicit, part: Surface, lattice: Lattice, sheets: bool, curves: InterfaceCurves, degree: int
) -> CutSurface:
    return cut_level_set(surface, lattice, sheets, curves, part, degree)


@cut_part.register
def _(
    surface: Clipped, part: Surface, lattice: Lattice, sheets: bool, curves: InterfaceCurves, degree: int
) -> CutSurface:
    limit = LevelCurve(surface.function, cut_off=True)
    return cut_part(surface.base, part, lattice, sheets, InterfaceCurves((*curves.each, limit)), degree)


def cut_warnings(cut: CutSurface) -> list[str]:
    """Warnings about the cells that the surface cuts."""
    warnings = []
    if cut.speck_count:
        warnings.append(left_out_for_size(cut.speck_count, cut.speck_share))
    if cut.unresolved:
        warnings.append(f"The surface is too thin or too rough for cells of spacing {cut.spacing:g}: {cut.unresolved}.")
    return warnings
