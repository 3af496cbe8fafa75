"""Domains of the closest-point schemes: the paper's, and the textbook's. They are what lamina is compared with.

| scheme | what it is |
|---|---|
| coupled | A u = E L u - gamma (I - E) u, of order 2 or 4 on smooth closed surfaces (`coupled.py`) |
| shell | the 7-point Laplacian on the band, with a field that is extended first: the paper's (`shell.py`) |

Either takes the exact extension, from closest points, or the network of the CVPR 2026 paper (`attention.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import Tensor

from lamina.checks import positive
from lamina.device import in_own_precision
from lamina.domain import Domain
from lamina.errors import InputError
from lamina.expression import as_data
from lamina.grid.band import Band, band_radius
from lamina.grid.cut import cut_surface
from lamina.grid.cut_surface import CutSurface
from lamina.grid.sizing import Needs
from lamina.paper.attention import Attention, attention_extension, sampled_band
from lamina.paper.conditions import on_coupled
from lamina.paper.constant_diffusivity import ConstantDiffusivity
from lamina.paper.coupled import Coupled
from lamina.paper.explicit import clamp, explicit_euler
from lamina.paper.interpolation import Lines, interpolation
from lamina.paper.learned import LearnedCoupled
from lamina.paper.patches import safe_radius
from lamina.paper.shell import CUBIC_RADIUS, READOUTS, Shell
from lamina.pde.boundary import pose, what_needs_cells
from lamina.pde.conditions import Condition, checked
from lamina.pde.heat import explicit_steps
from lamina.pde.integrators import Integrator
from lamina.pde.problem import Problem
from lamina.pde.variational import Coefficient, Diffusivity, baseline_refuses, is_number, positive_number
from lamina.progress import Update, progress
from lamina.spaces.scheme import Scheme
from lamina.surfaces.base import Surface

SCHEMES = ("coupled", "shell")
ORDERS = {"coupled": (2, 4), "shell": (2,)}
SMOOTH = ("analytic", "implicit", "spherical map")  # where the coupled scheme is of order 4 unless asked otherwise
SHELL_RADIUS = 4.5  # eps / dx unless asked otherwise: that of the learned extension, for comparison
ENTRIES_LEARNED, BYTES_LEARNED = 1200, 30_000  # of the learned extension: about a thousand entries a row
# The coupled band must not meet itself. Both bands join sheets, so that few samples on thin parts, more than stray
# ones, do harm.
NEEDS = {
    name: Needs(
        cells=40, density=2 * clearance, bytes=2600, clearance=clearance, thin_share=0.002,
        effect="sheets there may be joined", follows_samples=name != "shell",
    )
    for name, clearance in (("coupled", band_radius(1.0, 1, 2)), ("shell", SHELL_RADIUS))
}  # fmt: skip


class BandDomain(Domain):
    """A surface with a band of grid nodes around it, for the closest-point schemes that lamina is compared with.

    Parameters
    ----------
    surface : Surface
        As of `lamina.Domain`.
    spacing : float, optional
        As of `lamina.Domain`.
    scheme : str, optional
        "coupled" or "shell"; by default "shell" for the learned extension, otherwise "coupled".
    nodes : int, optional
        As of `lamina.Domain`.
    order : int, optional
        2 or, for the coupled scheme, 4; by default 4 for the coupled scheme on smooth surfaces, otherwise 2.
    reconstruction : str, default "auto"
        As of `lamina.Domain`.
    extension : str or Attention, default "auto"
        As of `lamina.Domain`, or "attention": the network of the CVPR 2026 paper. An `Attention` object changes its
        settings.
    band_radius : float, optional
        The radius of the band of the shell or of the learned extension; by default 4.5 dx, or what the patches of a
        network cover.
    readout : str, default "interpolation"
        How the shell and the learned extension read values on the surface: "interpolation" or "rbf".
    rim_order : int, default 2
        The order of the coupled scheme at the rims of an open surface, 2 or, for comparison, 1.
    origin : Tensor or sequence of float, optional
        As of `lamina.Domain`.
    device : torch.device or str, default "cpu"
        As of `lamina.Domain`.
    dtype : torch.dtype, default torch.float64
        As of `lamina.Domain`.
    show_progress : bool, optional
        As of `lamina.Domain`.

    Raises
    ------
    InputError
        If arguments are invalid or contradict each other, or if the grid would not fit in memory.

    Examples
    --------
    >>> import lamina
    >>> domain = lamina.paper.BandDomain(lamina.Sphere(level=3), spacing=0.3, scheme="coupled", order=2)
    >>> lamina.poisson(domain, "-6*x*y").values.shape
    torch.Size([642])
    """

    has_weak_forms = False
    scheme: Any

    @in_own_precision
    def __init__(
        self,
        surface: Surface,
        spacing: float | None = None,
        *,
        scheme: str | None = None,
        nodes: int | None = None,
        order: int | None = None,
        reconstruction: str = "auto",
        extension: str | Attention = "auto",
        band_radius: float | None = None,
        readout: str = "interpolation",
        rim_order: int = 2,
        origin: Sequence[float] | Tensor | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
        show_progress: bool | None = None,
    ):
        learned = Attention() if extension == "attention" else extension if isinstance(extension, Attention) else None
        if scheme in (None, "auto"):
            scheme = "shell" if learned is not None else "coupled"
        scheme = cast(str, scheme)
        _check(scheme, order, learned, band_radius, readout, rim_order)
        start = time.perf_counter()
        # The network sees samples and nodes alone; closest points of samples are then asked of nobody.
        named = "attention" if learned else cast(str, extension)
        self._take(surface, spacing, nodes, named, reconstruction, origin, device, dtype)
        self.order = order or (4 if scheme == "coupled" and self._is_smooth(learned) else 2)
        self.order_reason = "asked for" if order else "the default of this scheme"
        needs = NEEDS[scheme]
        if learned is not None:
            needs = replace(needs, entries=ENTRIES_LEARNED, bytes=BYTES_LEARNED)
        self._place(needs, spacing, nodes, shift=False)
        if band_radius is not None:
            clearance = band_radius / self.spacing
            self._place(
                replace(needs, clearance=clearance, density=needs.density * clearance / needs.clearance),
                self.spacing, None, shift=False,
            )  # fmt: skip
        built = time.perf_counter()
        with progress("building", show_progress) as update:
            if scheme == "coupled" and learned is None:
                self.scheme, self._scheme_warnings = Coupled(
                    self.geometry, self.lattice, self.order, update, rim_order
                ), []  # fmt: skip
            else:
                self.scheme, self._scheme_warnings = self._on_band(scheme, learned, band_radius, readout, update)
        self._learned = learned
        self.time_methods = ("euler",) if scheme == "shell" else ("tr-bdf2", "euler")
        self._options = {"band_radius": band_radius, "readout": readout, "rim_order": rim_order}
        if learned is not None:
            self._functions_at = 'on the band around the surface, where extension="attention" takes functions'
        self._finish(start, built)

    def _is_smooth(self, learned: Attention | None) -> bool:
        return learned is None and self.geometry.representation in SMOOTH

    def _on_band(
        self, scheme: str, learned: Attention | None, radius: float | None, readout: str, update: Update
    ) -> tuple[Scheme, list[str]]:
        made: Any = Shell if scheme == "shell" else LearnedCoupled
        lattice, geometry = self.lattice, self.geometry
        network = None if learned is None else learned.network()
        default = lattice.spacing * (SHELL_RADIUS if network is None else safe_radius(network.config.k))
        radius = default if radius is None else float(radius)
        least = CUBIC_RADIUS if learned is None else 3**0.5
        if not radius >= least * lattice.spacing * (1 - 1e-9):
            raise InputError(
                f"band_radius {radius:g} is too small for stencils of spacing {lattice.spacing:g}; use at least "
                f"{least * lattice.spacing:.3g}, or leave it out for {default:.3g}."
            )
        update(0.0, "closest points")
        band = Band.build(geometry, lattice, radius)
        if learned is None or network is None:
            E = interpolation(band, band.feet.points, band.component, Lines.NONE)
            return made(band, E, False, geometry.component_count, update, readout=readout), []
        band, samples = sampled_band(geometry, band, radius)
        found = attention_extension(band, radius, samples, learned, network, update)
        return made(band, found.matrix, True, geometry.component_count, update, readout=readout), found.warnings

    @cached_property
    def cut(self) -> CutSurface:
        """The pieces that cells of this spacing cut the surface into, for pictures and integrals."""
        return cut_surface(self.geometry, self.lattice)

    def _again(self, device: torch.device | str, dtype: torch.dtype) -> Domain:
        return BandDomain(
            self.surface, self.spacing, scheme=self.scheme.name, order=self.order,
            origin=self._origin, device=device, dtype=dtype, show_progress=False,
            **self._requested | ({"extension": self._learned} if self._learned else {}), **self._options,
        )  # fmt: skip

    @property
    def _kind(self) -> str:
        return f"{self.scheme.name} scheme, order {self.order}, extension {self.extension}"


@pose.register
def band_pose(
    domain: BandDomain,
    conditions: Sequence[Condition] | Condition | None,
    diffusivity: Diffusivity | None,
    screening: Coefficient | None = None,
) -> Problem:
    """What a band's scheme keeps by itself: conditions on rims, a diffusivity that is a number."""
    asked = checked(conditions)
    diffusivity = None if diffusivity is None else as_data(diffusivity, "the diffusivity")
    scheme: Any = domain.scheme
    if screening is None and not asked:
        if diffusivity is None:
            return Problem(domain, scheme)
        if isinstance(scheme, Coupled) and is_number(diffusivity):
            return Problem(domain, cast(Scheme, ConstantDiffusivity(scheme, positive_number(diffusivity))))
    if asked and screening is None and diffusivity is None and isinstance(scheme, Coupled):
        found = on_coupled(domain, scheme, asked)
        if found is not None:
            return found
    raise baseline_refuses(domain, what_needs_cells(diffusivity, screening))


@explicit_steps.register
def band_explicit_steps(domain: BandDomain, conditions: Sequence[Condition] | Condition | None) -> Integrator:
    return partial(explicit_euler, hold=clamp(domain, conditions))


def _check(
    scheme: str, order: int | None, learned: Attention | None, radius: float | None, readout: str, rim_order: int
) -> None:
    if scheme not in SCHEMES:
        raise InputError(f"Unknown scheme {scheme!r}; known: {', '.join(SCHEMES)}.")
    if order is not None and order not in ORDERS[scheme]:
        raise InputError(f'scheme="{scheme}" is of order {" or ".join(map(str, ORDERS[scheme]))}, got {order!r}.')
    if learned is not None and order == 4:
        raise InputError('extension="attention" is of order 2 at most; use order=2, or another extension.')
    if readout not in READOUTS:
        raise InputError(f"Unknown readout {readout!r}; known: {', '.join(READOUTS)}.")
    if rim_order not in (1, 2):
        raise InputError(f"rim_order must be 1 or 2, got {rim_order!r}.")
    if radius is not None:
        positive("band_radius", radius)
    if scheme != "shell" and learned is None and (radius is not None or readout != "interpolation"):
        raise InputError(f'band_radius and readout belong to scheme="shell"; this is {scheme}.')
