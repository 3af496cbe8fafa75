"""The cells that a surface cuts: which code cuts it is decided here, by its type, and nowhere else."""

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

    sheets False: no copies of unknowns for the sheets of a cell, to measure what they are worth. curves: along which
    the surface is split. degree: of the functions on the cells, 1 or 2.
    """
    return cut_part(surface, surface, lattice, sheets, curves, degree)


@singledispatch
def cut_part(
    surface: Surface, part: Surface, lattice: Lattice, sheets: bool, curves: InterfaceCurves, degree: int
) -> CutSurface:
    """The part of a surface that curves leave, cut from its closest points; other types register what knows better."""
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


def left_out(cut: CutSurface) -> list[str]:
    """What the user should know about the cells that the surface cuts."""
    said = []
    if cut.specks:
        said.append(left_out_for_size(cut.specks, cut.speck_share))
    if cut.unresolved:
        said.append(f"The surface is too thin or too rough for cells of spacing {cut.spacing:g}: {cut.unresolved}.")
    return said
