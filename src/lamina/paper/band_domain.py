"""Domains of the closest-point schemes: that of the paper and that of textbooks. lamina is compared with them.

| scheme | what it is |
|---|---|
| coupled | A u = E L u - gamma (I - E) u, of order 2 or 4 on smooth closed surfaces (`coupled.py`) |
| shell | the paper's: the field is extended first, then the 7-point Laplacian is applied on the band (`shell.py`) |

Both work with the exact extension from closest points and with the network of the CVPR 2026 paper (`attention.py`).
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
from lamina.grid.sizing import GridRequirements
from lamina.paper.attention import Attention, attention_extension, band_near_samples
from lamina.paper.constant_diffusivity import ConstantDiffusivity
from lamina.paper.coupled import Coupled
from lamina.paper.explicit_euler import clamp, explicit_euler
from lamina.paper.interpolation import Lines, interpolation
from lamina.paper.learned_coupled import LearnedCoupled
from lamina.paper.patches import safe_radius
from lamina.paper.rim_conditions import coupled_problem
from lamina.paper.shell import MIN_CUBIC_RADIUS, READOUTS, Shell
from lamina.pde.boundary import pose, what_needs_cells
from lamina.pde.conditions import Condition, checked
from lamina.pde.heat import explicit_steps
from lamina.pde.integrators import Integrator
from lamina.pde.problem import Problem
from lamina.pde.variational import Coefficient, Diffusivity, baseline_refuses, is_number, positive_number
from lamina.progress import Update, progress
from lamina.spaces.scheme import Scheme
from lamina.surfaces.base import Surface

BAND_SCHEMES = ("coupled", "shell")
ORDERS_OF_SCHEME = {"coupled": (2, 4), "shell": (2,)}
# On these smooth surfaces the coupled scheme has order 4 by default, on all others order 2.
FOURTH_ORDER_REPRESENTATIONS = ("analytic", "implicit", "spherical map")
DEFAULT_SHELL_RADIUS = 4.5  # eps / dx by default. It is that of the learned extension, so that both can be compared.
# Entries in a row and peak memory for each node with the learned extension. Rows have about a thousand entries. A grid
# that does not fit into memory is refused by these numbers.
LEARNED_ENTRIES_PER_NODE = 1200
LEARNED_BYTES_PER_NODE = 30_000
BAND_BYTES_PER_NODE = 2600  # Peak memory for each node without the learned extension, in double precision.
DEFAULT_BAND_CELLS = 40  # Cells along the longest side of the surface, unless thin parts or samples need others.
# Sheets that are closer than the band is thick are joined. A warning says so if more than this share of the samples
# lies on parts that are so thin: a few samples on a thin part do harm, stray samples are fewer still.
MAX_THIN_SHARE_OF_BAND = 0.002
BAND_NEEDS = {
    name: GridRequirements(
        cells=DEFAULT_BAND_CELLS, density=2 * clearance, bytes=BAND_BYTES_PER_NODE, clearance=clearance,
        thin_share=MAX_THIN_SHARE_OF_BAND,
        effect="sheets there may be joined", follows_samples=name != "shell",
    )
    for name, clearance in (("coupled", band_radius(1.0, 1, 2)), ("shell", DEFAULT_SHELL_RADIUS))
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
        # The network sees only samples and nodes: no reconstruction is built for its closest points.
        named = "attention" if learned else cast(str, extension)
        self._take(surface, spacing, nodes, named, reconstruction, origin, device, dtype)
        self.order = order or (4 if scheme == "coupled" and self._is_smooth(learned) else 2)
        self.order_reason = "asked for" if order else "the default of this scheme"
        needs = BAND_NEEDS[scheme]
        if learned is not None:
            needs = replace(needs, entries=LEARNED_ENTRIES_PER_NODE, bytes=LEARNED_BYTES_PER_NODE)
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
        return learned is None and self.geometry.representation in FOURTH_ORDER_REPRESENTATIONS

    def _on_band(
        self, scheme: str, learned: Attention | None, radius: float | None, readout: str, update: Update
    ) -> tuple[Scheme, list[str]]:
        made: Any = Shell if scheme == "shell" else LearnedCoupled
        lattice, geometry = self.lattice, self.geometry
        network = None if learned is None else learned.network()
        default = lattice.spacing * (DEFAULT_SHELL_RADIUS if network is None else safe_radius(network.config.k))
        radius = default if radius is None else float(radius)
        least = MIN_CUBIC_RADIUS if learned is None else 3**0.5
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
        band, samples = band_near_samples(geometry, band, radius)
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
def band_problem(
    domain: BandDomain,
    conditions: Sequence[Condition] | Condition | None,
    diffusivity: Diffusivity | None,
    screening: Coefficient | None = None,
) -> Problem:
    """The problems that a band's scheme can solve: conditions on rims, a constant diffusivity."""
    given = checked(conditions)
    diffusivity = None if diffusivity is None else as_data(diffusivity, "the diffusivity")
    scheme: Any = domain.scheme
    if screening is None and not given:
        if diffusivity is None:
            return Problem(domain, scheme)
        if isinstance(scheme, Coupled) and is_number(diffusivity):
            return Problem(domain, cast(Scheme, ConstantDiffusivity(scheme, positive_number(diffusivity))))
    if given and screening is None and diffusivity is None and isinstance(scheme, Coupled):
        found = coupled_problem(domain, scheme, given)
        if found is not None:
            return found
    raise baseline_refuses(domain, what_needs_cells(diffusivity, screening))


@explicit_steps.register
def band_explicit_steps(domain: BandDomain, conditions: Sequence[Condition] | Condition | None) -> Integrator:
    return partial(explicit_euler, hold=clamp(domain, conditions))


def _check(
    scheme: str, order: int | None, learned: Attention | None, radius: float | None, readout: str, rim_order: int
) -> None:
    if scheme not in BAND_SCHEMES:
        raise InputError(f"Unknown scheme {scheme!r}; known: {', '.join(BAND_SCHEMES)}.")
    if order is not None and order not in ORDERS_OF_SCHEME[scheme]:
        known = " or ".join(map(str, ORDERS_OF_SCHEME[scheme]))
        raise InputError(f'scheme="{scheme}" has order {known}, got {order!r}.')
    if learned is not None and order == 4:
        raise InputError('extension="attention" has order 2 at most; use order=2, or another extension.')
    if readout not in READOUTS:
        raise InputError(f"Unknown readout {readout!r}; known: {', '.join(READOUTS)}.")
    if rim_order not in (1, 2):
        raise InputError(f"rim_order must be 1 or 2, got {rim_order!r}.")
    if radius is not None:
        positive("band_radius", radius)
    if scheme != "shell" and learned is None and (radius is not None or readout != "interpolation"):
        raise InputError(f'band_radius and readout are options of scheme="shell"; this is {scheme}: leave them out.')
