"""Domain: everything about a surface and a grid that is built once and used by every solve."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from lamina.device import available, in_own_precision
from lamina.errors import InputError
from lamina.expression import as_data
from lamina.extension import geometry_for
from lamina.extension.attention import Attention
from lamina.geometry.lattice import Lattice
from lamina.linear.adjoint import Sparse
from lamina.linear.components import ComponentMean
from lamina.progress import progress
from lamina.quadrature import Quadrature
from lamina.schemes import ORDERS, SCHEMES, build_scheme, choose_scheme
from lamina.schemes.base import Scheme
from lamina.schemes.cutsurface import CutSurface
from lamina.schemes.galerkin import worth_order_3
from lamina.schemes.rim import Rim
from lamina.schemes.seams import Seams
from lamina.schemes.shell import READOUTS
from lamina.schemes.trace import Trace, cut_surface
from lamina.sizing import check_memory, check_positive, check_spacing, choose_spacing, spacing_for_nodes, thin_warning
from lamina.surfaces.base import ClosestPoints, Surface
from lamina.surfaces.neural_cloud import NeuralCloud
from lamina.surfaces.triangulated_cloud import TriangulatedCloud


class Domain:
    """A surface with its grid: band, extension, operators and hierarchy.

    surface: any lamina surface. spacing: grid spacing; or nodes: about how many unknowns; by default a
    spacing that suits the shape's size, thin parts and sample density.
    order: 2, 3 (trace scheme: quadratic functions on the cut cells) or 4 (coupled scheme); default 4 on smooth exact
    surfaces, otherwise 2. "auto": 3 where the grid sees how the surface turns, otherwise 2; `order_reason` says why.
    extension: "closest-point" (the surface's own closest points), "jet" (fitted to its samples), "neural" (lamina's
    learned operator: robust fits to its samples), "attention" (the network of the CVPR 2026 paper; an Attention object
    instead changes its settings) or "auto".
    scheme: "coupled" (smooth surfaces), "trace" (meshes; thin, sharp or open parts), "shell" (the paper's) or "auto".
    band_radius, readout ("interpolation" or "rbf"): of the shell scheme and the learned extension; the
    radius is 4.5 dx unless given, or what the patches of a network cover.
    rim_order: at the rims of an open surface the coupled scheme is of order 2, or, to compare with, 1.
    origin: a point (3,) that the grid is placed by, the middle of the surface unless given; hold it fixed where the
    shape changes from solve to solve and the grid must not.
    device, dtype: where and how to compute, float64 unless said otherwise.
    show_progress: True, False, or None for "when stderr is a terminal".

    Raises InputError when the arguments contradict each other or the grid would not fit in memory.
    """

    @in_own_precision
    def __init__(
        self,
        surface: Surface,
        spacing: float | None = None,
        *,
        nodes: int | None = None,
        order: int | str | None = None,
        extension: str | Attention = "auto",
        scheme: str = "auto",
        band_radius: float | None = None,
        readout: str = "interpolation",
        rim_order: int = 2,
        origin: Sequence[float] | Tensor | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
        show_progress: bool | None = None,
    ):
        if not isinstance(surface, Surface):
            raise InputError(
                f"Domain needs a lamina surface, got {type(surface).__name__}; see lamina.load and lamina.Mesh."
            )
        if scheme != "auto" and scheme not in SCHEMES:
            raise InputError(f"Unknown scheme {scheme!r}; known: auto, {', '.join(SCHEMES)}.")
        if order is not None and order != "auto" and order not in ORDERS:
            raise InputError(f'order must be one of {ORDERS}, or "auto", got {order!r}.')
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"dtype must be torch.float32 or torch.float64, got {dtype}.")
        if readout not in READOUTS:
            raise InputError(f"Unknown readout {readout!r}; known: {', '.join(READOUTS)}.")
        if rim_order not in (1, 2):
            raise InputError(f"rim_order must be 1 or 2, got {rim_order!r}.")
        if band_radius is not None:
            check_positive("band_radius", band_radius)
        if spacing is not None and nodes is not None:
            raise InputError("Give spacing or nodes, not both.")
        if spacing is not None:
            check_spacing(surface, spacing)
        attention = None
        if isinstance(extension, Attention) or extension == "attention":
            attention, extension = extension if isinstance(extension, Attention) else Attention(), "attention"
        start = time.perf_counter()
        self.surface = _moved(surface, device, dtype)
        self.geometry, self.extension = geometry_for(self.surface, extension)
        if isinstance(self.geometry, NeuralCloud | TriangulatedCloud) and self.geometry.points is self.surface.points:
            self.surface = self.geometry  # the same points, with normals, components and areas found better
        measured, asked = order == "auto", 3 if order == "auto" else order
        assert not isinstance(asked, str)
        self.scheme_reason, scheme, self.order = choose_scheme(self.geometry, scheme, asked, spacing, extension)
        if scheme != "shell" and attention is None and (band_radius is not None or readout != "interpolation"):
            raise InputError(f'band_radius and readout belong to scheme="shell"; this is {scheme}.')
        middle = self.geometry.bounds.mean(0)
        self._origin = middle if origin is None else _checked_origin(origin, middle)
        self._place(scheme, spacing, nodes, band_radius)
        built = time.perf_counter()
        cut = None
        self.order_reason = self.scheme_reason if order is None else "asked for"
        with progress("building", show_progress) as update:
            if measured:
                update(0.0, "cutting cells")
                cut = cut_surface(self.geometry, self.lattice, degree=2)
                smooth, self.order_reason = worth_order_3(cut)
                if not smooth:
                    self.order, cut = 2, None
                    self._place(scheme, spacing, nodes, band_radius)
            self.scheme, self._scheme_warnings = build_scheme(
                scheme, self.geometry, self.lattice, self.order, update,
                attention=attention, radius=band_radius, readout=readout, rim_order=rim_order, cut=cut,
            )  # fmt: skip
            self.readout = self.scheme.readout(self.own_feet())
        self._options = {"band_radius": band_radius, "readout": readout, "rim_order": rim_order}
        self._learned = attention
        self.seconds = {"geometry": built - start, "operators": time.perf_counter() - built}
        self._trace: Domain | None = None
        self._to_places: tuple[Tensor, Sparse] | None = None
        self.mean = ComponentMean(self.component, self.component_count, self.surface.own_areas())

    def _place(self, scheme: str, spacing: float | None, nodes: int | None, band_radius: float | None) -> None:
        """Choose the lattice for this surface, scheme and order."""
        if nodes is not None:
            spacing = spacing_for_nodes(self.surface, nodes, scheme, self.order)
        if spacing is None:
            spacing = choose_spacing(self.surface, scheme, self.order)
        self.spacing = check_spacing(self.surface, spacing)
        self._clearance = None if band_radius is None else band_radius / self.spacing
        check_memory(self.surface, self.spacing, scheme, self.points.dtype, self.extension, self._clearance, self.order)
        origin = self._origin
        if scheme == "trace":
            # Off the symmetry planes, so that flat faces of a shape do not lie in the planes that cut it.
            shift = torch.tensor([0.1372, 0.2719, 0.4183], dtype=origin.dtype, device=origin.device)
            origin = origin + self.spacing * shift
        self.lattice = Lattice(origin, self.spacing)

    @property
    def points(self) -> Tensor:
        """Where solutions are reported (m, 3): vertices, points or samples."""
        return self.surface.points

    @cached_property
    def component(self) -> Tensor:
        """The component (m,) of each of `points`: what the operator joins, which is what a solution can spread over."""
        matrix = self.readout.matrix.detach()
        # A row reads the unknowns of one component; any of them says which.
        return self.scheme.component[matrix.col_indices()[matrix.crow_indices()[:-1].long()].long()]

    @property
    def component_count(self) -> int:
        return self.scheme.component_count

    @property
    def unknowns(self) -> int:
        return self.scheme.unknowns

    @cached_property
    def warnings(self) -> list[str]:
        """What the user should know about the surface and the grid, one sentence each."""
        thin = thin_warning(self.surface, self.spacing, self.scheme.name, self._clearance)
        return [*self.geometry.notes, *self._scheme_warnings, *([thin] if thin else [])]

    @property
    def quadrature(self) -> Quadrature:
        """Points, normals and weights on the surface: integrals, areas and means of fields."""
        return self.cut.quadrature

    @property
    def rim(self) -> Rim | None:
        """Points, tangents and weights where the surface ends; None if it is closed."""
        return self.cut.rim

    @cached_property
    def cut(self) -> CutSurface:
        """The cells that the surface cuts, and the pieces in them."""
        return self.scheme.cut if isinstance(self.scheme, Trace) else cut_surface(self.geometry, self.lattice)

    def load(self, values: Tensor) -> Tensor:
        """The right-hand side (unknowns,) or (unknowns, k) for values (m,) or (m, k) at `points`."""
        first, second = self._loading
        return second @ values if first is None else first @ (second @ values)

    def load_of(self, scheme: Scheme, data: Callable[[Tensor], Tensor] | Tensor | float | str, name: str) -> Tensor:
        """scheme.load of data, as `field` takes them; scheme: that of this domain, or another on the same pieces."""
        data = as_data(data, name)
        field = self.field(data, name)
        if callable(data) or torch.as_tensor(data).ndim == 0:
            return scheme.load(field)
        return self.load(torch.as_tensor(data).to(self.points))

    def interpolate(self, values: Tensor, x: Tensor) -> Tensor:
        """Values (n,) or (n, k) at surface points x (n, 3) from values (m,) or (m, k) at `points`."""
        return self._from_points(x) @ values

    def _from_points(self, x: Tensor) -> Sparse:
        """The map from values at `points` to surface points x; kept for the places of the scheme, which come again."""
        scheme = self.scheme
        if x is not scheme.places:
            return self.surface.interpolation(x)
        if self._to_places is None or self._to_places[0] is not x:
            face = scheme.place_faces if self.geometry is self.surface else None
            with torch.enable_grad():  # it is kept, whoever asks for it first
                self._to_places = (x, self.surface.interpolation(x, face))
        return self._to_places[1]

    @cached_property
    def _loading(self) -> tuple[Sparse | None, Sparse]:
        """The load of values at `points`: from the places that the scheme knows a field at, and to these."""
        with torch.enable_grad():  # it is kept, whoever asks for it first
            here, there = self.scheme.from_places(), self._from_points(self.scheme.places)
        return (here, there) if here.tracked or there.tracked else (None, here.after(there))

    def as_trace(self, reason: str) -> Domain:
        """This surface and grid with the trace scheme; made once."""
        if self._trace is None:
            self._trace = Domain(
                self.surface,
                self.spacing,
                extension=self.extension,
                scheme="trace",
                origin=self._origin,
                device=self.points.device,
                dtype=self.points.dtype,
                show_progress=False,
            )
            self._trace.scheme_reason = reason
        return self._trace

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Domain:
        """This surface, grid and scheme on another device or in another precision: built anew, unless nothing changes.

        Solutions keep the domain that they were found on.
        """
        device = self.points.device if device is None else available(device)
        dtype = self.points.dtype if dtype is None else dtype
        if device.type == self.points.device.type and dtype == self.points.dtype:
            return self
        moved = Domain(
            self.surface,
            self.spacing,
            order=self.order,
            extension=self._learned or self.extension,
            scheme=self.scheme.name,
            origin=self._origin,
            device=device,
            dtype=dtype,
            show_progress=False,
            **self._options,
        )
        moved.scheme_reason = self.scheme_reason
        return moved

    def __deepcopy__(self, memo: dict[int, object]) -> Domain:
        """A domain of its own that shares matrices and surface with this one: neither changes once it is built."""
        return copy.copy(self)

    def cut_along(self, seams: Seams) -> CutSurface:
        """The cells of this domain's lattice cut by its surface, split along seams."""
        return cut_surface(self.geometry, self.lattice, seams=seams, degree=self.cut.degree)

    def with_scheme(self, scheme: Scheme) -> Domain:
        """This domain with other operators, on the same surface and lattice."""
        other = copy.copy(self)
        for made in ("cut", "_loading"):
            vars(other).pop(made, None)
        other.scheme = scheme
        other.readout = scheme.readout(self.own_feet())
        return other

    def field(
        self, data: Callable[[Tensor], Tensor] | Tensor | float | str, name: str, channels: bool = False
    ) -> Callable[[Tensor], Tensor]:
        """data as a function on surface points: a callable, a number, a formula, or values (m,) at `points`.

        channels: whether there may be several, values (m, k) or a callable that returns (n, k).
        Raises InputError when they are none of these, or the values have the wrong shape or are not finite.
        """
        data = as_data(data, name)
        if not callable(data):
            dtype = self.points.dtype if isinstance(data, int | float) else None
            values = torch.as_tensor(data, dtype=dtype, device=self.points.device).to(self.points.dtype)
            if values.ndim == 0:
                return lambda x: values.expand(len(x))
            if values.shape[:1] != (len(self.points),) or values.ndim > 1 + channels or not values.numel():
                several = f" or ({len(self.points)}, k)" if channels else ""
                raise InputError(
                    f"{name} has shape {tuple(values.shape)}; expected ({len(self.points)},){several}, "
                    "one value for each of domain.points."
                )
            _require_finite(values, name)
            return lambda x: self.interpolate(values, x)
        function, ambient = data, self.extension == "attention"

        def checked(x: Tensor) -> Tensor:
            values = function(x)
            if not isinstance(values, Tensor) or values.shape[:1] != (len(x),) or values.ndim > 1 + channels:
                shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
                raise InputError(
                    f"{name} returned {shape} for {len(x)} points; expected a tensor of shape ({len(x)},)."
                )
            values = values.to(x.dtype)
            off = 'on the band around the surface, where extension="attention" takes functions' if ambient else ""
            _require_finite(values, name, off)
            return values

        return checked

    def finite(self, values: Tensor, name: str) -> Tensor:
        """values; InputError if they are not finite."""
        _require_finite(values, name)
        return values

    @in_own_precision
    def evaluate(self, unknowns: Tensor, points: Tensor) -> Tensor:
        """Values (n,) of a field of unknowns at points (n, 3) on or near the surface."""
        points = torch.as_tensor(points).to(self.points)
        if points.ndim != 2 or points.shape[1] != 3 or not torch.isfinite(points).all():
            raise InputError(f"Points must be finite and of shape (n, 3), got shape {tuple(points.shape)}.")
        feet = self.geometry.closest_points(points)
        return self.scheme.readout(feet) @ unknowns

    def own_feet(self) -> ClosestPoints:
        """`points` on the geometry that was discretised, where that is not the surface itself."""
        if self.geometry.exact and self.geometry is self.surface:
            return self.surface.own_feet()
        return self.geometry.closest_points(self.surface.positions)

    def __repr__(self) -> str:
        lines = [
            f"Domain of {self.surface.name} ({self.surface.representation}, {len(self.points)} points, "
            f"{self.component_count} component{'s' if self.component_count > 1 else ''})",
            f"  {self.scheme.name} scheme, order {self.order}, extension {self.extension}, spacing {self.spacing:g}",
            "  level   spacing   unknowns   non-zeros       MB",
        ]
        for i, (spacing, unknowns, entries, size) in enumerate(self.scheme.table()):
            lines.append(f"  {i:5d} {spacing:9.4g} {unknowns:10d} {entries:11d} {size / 1e6:8.1f}")
        return "\n".join(lines)


def as_domain(given: Domain | Surface, caller: str) -> Domain:
    """The domain that was given, or one with the default grid on a surface that was given.

    Raises InputError for anything else.
    """
    if isinstance(given, Domain):
        return given
    if isinstance(given, Surface):
        return Domain(given)
    raise InputError(
        f"{caller} needs a lamina.Domain or a lamina surface, got {type(given).__name__}; see lamina.load and "
        "lamina.Domain."
    )


def _checked_origin(origin: Sequence[float] | Tensor, like: Tensor) -> Tensor:
    found = torch.as_tensor(origin).to(like).detach()
    if found.shape != (3,) or not bool(torch.isfinite(found).all()):
        raise InputError(f"origin must be three finite numbers x, y, z, got {origin!r}.")
    return found


def _moved(surface: Surface, device: torch.device | str, dtype: torch.dtype) -> Surface:
    device = available(device)
    if device.type == surface.points.device.type and dtype == surface.points.dtype:
        return surface
    return surface.to(device, dtype)


def _require_finite(values: Tensor, name: str, where: str = "") -> None:
    bad = int((~torch.isfinite(values)).sum())
    if bad:
        advice = "give its values at domain.points instead" if where else "check it there"
        where = where or "on the surface"
        raise InputError(f"{name} is not finite at {bad} of {len(values)} points {where}; {advice}.")
