"""Schemes by name: each turns geometry and a lattice into linear operators with a hierarchy."""

from __future__ import annotations

from torch import nn

from lamina.band import Band
from lamina.errors import InputError
from lamina.extension.attention import Attention, attention_extension, sampled_band
from lamina.extension.interpolation import Lines, interpolation
from lamina.geometry.lattice import Lattice
from lamina.learn.patches import safe_radius
from lamina.progress import Update
from lamina.schemes.base import Scheme
from lamina.schemes.coupled import Coupled
from lamina.schemes.cutsurface import CutSurface
from lamina.schemes.learned import LearnedCoupled
from lamina.schemes.shell import CUBIC_RADIUS, Shell
from lamina.schemes.trace import Trace, cut_surface
from lamina.sizing import DEFAULT_CELLS, THIN_SHARE, extent, thin_share
from lamina.surfaces.base import Surface
from lamina.surfaces.implicit import Implicit
from lamina.surfaces.mesh import Mesh
from lamina.surfaces.neural_cloud import NeuralCloud
from lamina.surfaces.splats import Splats

SCHEMES = ("coupled", "trace", "shell")
ORDERS = (2, 3, 4)
SHELL_RADIUS = 4.5  # eps / dx unless asked otherwise: that of the learned extension, for comparison
SMOOTH = ("analytic", "implicit", "spherical map")


def choose_scheme(
    surface: Surface, scheme: str, order: int | None, spacing: float | None, extension: str = "auto"
) -> tuple[str, str, int]:
    """Why, scheme and order for what was asked; "auto" and None are filled in.

    Meshes have creases along every edge, networks and splats small ones anywhere, and thin parts defeat the wide band
    of the coupled scheme: trace.
    Smooth surfaces thick enough for the band: coupled, which is of higher order there.
    Raises InputError for a combination that does not exist.
    """
    why = "asked for"
    if scheme == "auto":
        if extension == "attention":
            scheme, why = "shell", "the scheme of the learned extension's authors"
        elif order == 4:
            scheme, why = "coupled", "order 4 was asked for"
        elif order == 3:
            scheme, why = "trace", "order 3 was asked for"
        elif isinstance(surface, Mesh):
            scheme, why = "trace", "best measured for meshes"
        elif isinstance(surface, Splats) or is_network(surface):
            scheme, why = "trace", "best measured for splats and networks"
        elif isinstance(surface, NeuralCloud) and surface.noisy:
            scheme, why = "trace", "best measured for noisy samples"
        elif thin_share(surface, spacing or extent(surface) / DEFAULT_CELLS[4], "coupled") > THIN_SHARE["coupled"]:
            scheme, why = "trace", "parts are too thin for the band of the coupled scheme"
        else:
            scheme, why = "coupled", "smooth, and thick enough for its band"
    if extension == "attention" and order == 4:
        raise InputError('extension="attention" is of order 2 at most; use order=2, or another extension.')
    if scheme == "trace" and extension == "attention":
        raise InputError('scheme="trace" has no extension; use scheme="shell" with extension="attention".')
    if scheme == "trace":
        if order == 4:
            raise InputError('scheme="trace" is of order 2 or 3; use order=3, or scheme="coupled" for order 4.')
        return why, scheme, order or 2
    if order == 3:
        raise InputError(f'scheme="{scheme}" has no order 3; use scheme="trace", or leave the scheme out.')
    if scheme != "coupled":
        if order == 4:
            raise InputError(f'scheme="{scheme}" is of order 2; use order=2, or scheme="coupled" for order 4.')
        return why, scheme, 2
    if extension == "attention":
        return why, scheme, 2
    if order is None:
        order = 4 if surface.representation in SMOOTH else 2
    return why, scheme, order


def is_network(surface: Surface) -> bool:
    """Whether the surface is the zero set of a network, and not of a formula."""
    return isinstance(surface, Implicit) and isinstance(surface.phi, nn.Module)


def build_scheme(
    scheme: str,
    geometry: Surface,
    lattice: Lattice,
    order: int,
    update: Update,
    *,
    attention: Attention | None = None,
    radius: float | None = None,
    readout: str = "interpolation",
    rim_order: int = 2,
    cut: CutSurface | None = None,
) -> tuple[Scheme, list[str]]:
    """The scheme, and what the user should know about it.

    attention: how to make the learned extension, where that is wanted. radius, readout: of the shell's band.
    cut: the cells of the trace scheme, where they are cut already.
    """
    if scheme == "coupled" and attention is None:
        return Coupled(geometry, lattice, order, update, rim_order), []
    if scheme in ("coupled", "shell"):
        made = Shell if scheme == "shell" else LearnedCoupled
        return _on_shell(made, geometry, lattice, update, attention, radius, readout)
    update(0.0, "cutting cells")
    cut = cut_surface(geometry, lattice, degree=order - 1) if cut is None else cut
    update(0.5, "assembling")
    said = []
    if cut.specks:
        parts = "1 part" if cut.specks == 1 else f"{cut.specks} parts"
        said.append(
            f"{parts} of the surface, {cut.speck_share:.2%} of its area in all, were left out: each lies apart and is "
            "smaller than a hundredth of the largest part. Points on them read the nearest part that was kept."
        )
    if cut.unresolved:
        said.append(f"The surface is too thin or too rough for cells of spacing {lattice.spacing:g}: {cut.unresolved}.")
    return Trace(cut), said


def _on_shell(
    made: type[Shell],
    geometry: Surface,
    lattice: Lattice,
    update: Update,
    attention: Attention | None,
    radius: float | None,
    readout: str,
) -> tuple[Scheme, list[str]]:
    network = None if attention is None else attention.network()
    default = lattice.spacing * (SHELL_RADIUS if network is None else safe_radius(network.config.k))
    radius = default if radius is None else float(radius)
    least = CUBIC_RADIUS if attention is None else 3**0.5
    if not radius >= least * lattice.spacing * (1 - 1e-9):
        raise InputError(
            f"band_radius {radius:g} is too small for stencils of spacing {lattice.spacing:g}; use at least "
            f"{least * lattice.spacing:.3g}, or leave it out for {default:.3g}."
        )
    update(0.0, "closest points")
    band = Band.build(geometry, lattice, radius)
    if attention is None or network is None:
        E = interpolation(band, band.feet.points, band.component, Lines.NONE)
        return made(band, E, False, geometry.component_count, update, readout=readout), []
    band, samples = sampled_band(geometry, band, radius)
    learned = attention_extension(band, radius, samples, attention, network, update)
    shell = made(band, learned.matrix, True, geometry.component_count, update, readout=readout)
    return shell, learned.warnings
