"""Domain: everything about a surface and a grid that is built once and used by every solve."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from lamina.checks import finite, returned
from lamina.device import available, in_own_precision
from lamina.errors import InputError
from lamina.expression import as_data
from lamina.geometry.lattice import Lattice
from lamina.grid.cut import cut_surface, left_out
from lamina.grid.cut_surface import CutSurface
from lamina.grid.interface_curves import InterfaceCurves
from lamina.grid.quadrature import Quadrature
from lamina.grid.rim import Rim
from lamina.grid.sizing import (
    ORDER,
    Needs,
    check_memory,
    check_spacing,
    choose_spacing,
    spacing_for_nodes,
    thin_warning,
)
from lamina.linear.adjoint import Sparse
from lamina.linear.components import ComponentMean
from lamina.progress import progress
from lamina.reconstruction.choose import geometry_for
from lamina.reconstruction.neural_cloud import NeuralCloud
from lamina.reconstruction.triangulated_cloud import TriangulatedCloud
from lamina.spaces.galerkin import smooth_enough_for_order_3
from lamina.spaces.operators import CutCellOperators
from lamina.spaces.scheme import Scheme
from lamina.surfaces.base import ClosestPoints, Surface


class Domain:
    """A surface with its grid: cut cells, functions on them, operators and hierarchy.

    surface: any lamina surface. spacing: grid spacing; or nodes: about how many unknowns; by default a
    spacing that suits the shape's size, thin parts and sample density.
    order: 2 (trilinear functions on the cut cells), 3 (quadratic ones), or "auto": 3 where the grid sees how the
    surface turns, otherwise 2; `order_reason` says why.
    extension: where closest points come from: "closest-point" (the surface itself), "jet" (polynomials fitted to its
    samples), "neural" (robust fits, weighted by a trained network) or "auto".
    origin: a point (3,) that the grid is placed by, the middle of the surface unless given; hold it fixed where the
    shape changes from solve to solve and the grid must not.
    device, dtype: where and how to compute, float64 unless said otherwise.
    show_progress: True, False, or None for "when stderr is a terminal".

    Options of version 0.1 (scheme, order=4, extension="attention", band_radius, readout, rim_order) go on working for
    one release, with a warning that says what to write instead; most of them give a `lamina.paper.BandDomain`.

    Raises InputError when the arguments contradict each other or the grid would not fit in memory.
    """

    time_methods: tuple[str, ...] = ("tr-bdf2",)
    has_weak_forms = True  # whether its operators come from integrals over the pieces that the cells cut
    scheme: CutCellOperators
    baseline: ClassVar[type[Domain] | None] = None  # what the options of version 0.1 ask for; lamina.paper sets it

    def __new__(cls, *_: object, **options: object) -> Domain:
        if cls is not Domain or cls.baseline is None or not _asks_for_baseline(options):
            return super().__new__(cls)
        warnings.warn(
            "The closest-point schemes are baselines now, and these options go with the next release: use "
            "order=2, 3 or \"auto\" of lamina.Domain; or, to compare with, lamina.baselines.solve or "
            "lamina.paper.BandDomain, which takes the same options.",
            FutureWarning,
            stacklevel=2,
        )
        return object.__new__(cls.baseline)

    @in_own_precision
    def __init__(
        self,
        surface: Surface,
        spacing: float | None = None,
        *,
        nodes: int | None = None,
        order: int | str | None = None,
        extension: str = "auto",
        scheme: str | None = None,
        origin: Sequence[float] | Tensor | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
        show_progress: bool | None = None,
    ):
        if scheme not in (None, "auto", "trace"):
            raise InputError(f"Unknown scheme {scheme!r}; leave it out, and choose order=2, 3 or \"auto\".")
        if scheme == "trace":
            warnings.warn('scheme="trace" is no choice any more: leave it out, or write order=2.', FutureWarning,
                          stacklevel=3)  # fmt: skip
            order = order or 2
        order = order or "auto"
        if order != "auto" and order not in ORDER:
            raise InputError(f'order must be 2, 3 or "auto", got {order!r}.')
        start = time.perf_counter()
        self._take(surface, spacing, nodes, extension, origin, device, dtype)
        with progress("building", show_progress) as update:
            update(0.0, "cutting cells")
            self.order, self.order_reason, cut = self._choose_order(order, spacing, nodes)
            self._scheme_warnings = left_out(cut)
            built = time.perf_counter()
            update(0.5, "assembling")
            self.scheme = CutCellOperators(cut)
        self._finish(start, built)

    def _take(
        self,
        surface: Surface,
        spacing: float | None,
        nodes: int | None,
        extension: str,
        origin: Sequence[float] | Tensor | None,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        """Check what was given; take the surface to its device, and what its closest points come from."""
        if not isinstance(surface, Surface):
            raise InputError(
                f"Domain needs a lamina surface, got {type(surface).__name__}; see lamina.load and lamina.Mesh."
            )
        if dtype not in (torch.float32, torch.float64):
            raise InputError(f"dtype must be torch.float32 or torch.float64, got {dtype}.")
        if spacing is not None and nodes is not None:
            raise InputError("Give spacing or nodes, not both.")
        if spacing is not None:
            check_spacing(surface, spacing)
        self.surface = _moved(surface, device, dtype)
        self.geometry, self.extension = geometry_for(self.surface, extension)
        if isinstance(self.geometry, NeuralCloud | TriangulatedCloud) and self.geometry.points is self.surface.points:
            self.surface = self.geometry  # the same points, with normals, components and areas found better
        middle = self.geometry.bounds.mean(0)
        self._origin = middle if origin is None else _checked_origin(origin, middle)

    def _choose_order(
        self, order: int | str, spacing: float | None, nodes: int | None
    ) -> tuple[int, str, CutSurface]:
        """Order, why, and the cells cut for it; "auto" cuts for order 3 and measures what these cells show."""
        if isinstance(order, int):
            self._place(ORDER[order], spacing, nodes)
            return order, "asked for", cut_surface(self.geometry, self.lattice, degree=order - 1)
        if self.geometry.faceted:
            why = "a mesh has creases, rims and parts of any kind, and order 2 bears them all"
            self._place(ORDER[2], spacing, nodes)
            return 2, why, cut_surface(self.geometry, self.lattice, degree=1)
        try:
            self._place(ORDER[3], spacing, nodes)
            cut = cut_surface(self.geometry, self.lattice, degree=2)
        except InputError as refused:  # too many unknowns, or cells too large; order 2 may do with this spacing
            why = f"order 3 is refused: {refused}"
        else:
            smooth, why = smooth_enough_for_order_3(cut)
            if smooth:
                return 3, why, cut
        self._place(ORDER[2], spacing, nodes)
        return 2, why, cut_surface(self.geometry, self.lattice, degree=1)

    def _place(self, needs: Needs, spacing: float | None, nodes: int | None, shift: bool = True) -> None:
        """Choose the lattice for this surface and for what is to live on it.

        shift: off the symmetry planes, so that flat faces of a shape do not lie in the planes that cut it.
        """
        if nodes is not None:
            spacing = spacing_for_nodes(self.surface, nodes, needs)
        if spacing is None:
            spacing = choose_spacing(self.surface, needs)
        self.spacing, self._needs = check_spacing(self.surface, spacing), needs
        check_memory(self.surface, self.spacing, needs, self.points.dtype)
        origin = self._origin
        if shift:
            off = torch.tensor([0.1372, 0.2719, 0.4183], dtype=origin.dtype, device=origin.device)
            origin = origin + self.spacing * off
        self.lattice = Lattice(origin, self.spacing)

    def _finish(self, start: float, built: float) -> None:
        """What follows from surface and operators."""
        self.readout = self.scheme.readout(self.own_feet())
        self.seconds = {"geometry": built - start, "operators": time.perf_counter() - built}
        self._to_places: tuple[Tensor, Sparse] | None = None
        self.mean = ComponentMean(self.component, self.component_count, self.surface.own_areas())

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
    def resolution(self) -> float:
        """Distance between the nodes of the functions: the spacing, or half of it at order 3."""
        return self.spacing / self.scheme.nodes_per_cell

    @property
    def unknowns(self) -> int:
        return self.scheme.unknowns

    _functions_at = ""  # where functions are asked for values, if not on the surface

    @cached_property
    def warnings(self) -> list[str]:
        """What the user should know about the surface and the grid, one sentence each."""
        thin = thin_warning(self.surface, self.spacing, self._needs)
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
        return self.scheme.cut

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
        if x is not scheme.source_points:
            return self.surface.interpolation(x)
        if self._to_places is None or self._to_places[0] is not x:
            face = scheme.source_faces if self.geometry is self.surface else None
            with torch.enable_grad():  # it is kept, whoever asks for it first
                self._to_places = (x, self.surface.interpolation(x, face))
        return self._to_places[1]

    @cached_property
    def _loading(self) -> tuple[Sparse | None, Sparse]:
        """The load of values at `points`: from the places that the scheme knows a field at, and to these."""
        with torch.enable_grad():  # it is kept, whoever asks for it first
            here, there = self.scheme.source_matrix(), self._from_points(self.scheme.source_points)
        return (here, there) if here.tracked or there.tracked else (None, here.after(there))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Domain:
        """This surface, grid and scheme on another device or in another precision: built anew, unless nothing changes.

        Solutions keep the domain that they were found on.
        """
        device = self.points.device if device is None else available(device)
        dtype = self.points.dtype if dtype is None else dtype
        if device == self.points.device and dtype == self.points.dtype:
            return self
        return self._again(device, dtype)

    def _again(self, device: torch.device | str, dtype: torch.dtype) -> Domain:
        moved = Domain(self.surface, self.spacing, order=self.order, extension=self.extension, origin=self._origin,
                       device=device, dtype=dtype, show_progress=False)  # fmt: skip
        moved.order_reason = self.order_reason
        return moved

    def __deepcopy__(self, memo: dict[int, object]) -> Domain:
        """A domain of its own that shares matrices and surface with this one: neither changes once it is built."""
        return copy.copy(self)

    def cut_along(self, curves: InterfaceCurves) -> CutSurface:
        """The cells of this domain's lattice cut by its surface, split along curves."""
        return cut_surface(self.geometry, self.lattice, curves=curves, degree=self.cut.degree)

    def as_trace(self, reason: str = "") -> Domain:
        """Of version 0.1, where it had a reason: every domain is made of functions on cut cells now."""
        warnings.warn("as_trace() goes with the next release: leave it out.", FutureWarning, stacklevel=2)
        return self

    def with_scheme(self, scheme: CutCellOperators) -> Domain:
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
            finite(values, name)
            return lambda x: self.interpolate(values, x)
        function = data

        def checked(x: Tensor) -> Tensor:
            values = returned(function(x), name, len(x), tails=("", "k") if channels else ("",))
            return finite(values.to(x.dtype), name, self._functions_at)

        return checked

    def finite(self, values: Tensor, name: str) -> Tensor:
        """values; InputError if they are not finite."""
        return finite(values, name)

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

    @property
    def _kind(self) -> str:
        return f"order {self.order} ({self.order_reason}), extension {self.extension}"

    def __repr__(self) -> str:
        lines = [
            f"Domain of {self.surface.name} ({self.surface.representation}, {len(self.points)} points, "
            f"{self.component_count} component{'s' if self.component_count > 1 else ''})",
            f"  {self._kind}, spacing {self.spacing:g}",
            "  level   spacing   unknowns   non-zeros       MB",
        ]
        for i, (spacing, unknowns, entries, size) in enumerate(self.scheme.table()):
            lines.append(f"  {i:5d} {spacing:9.4g} {unknowns:10d} {entries:11d} {size / 1e6:8.1f}")
        return "\n".join(lines)


def default_grid(surface: Surface) -> tuple[int, float, str]:
    """Order and spacing that Domain(surface) would choose, and the reason for the order."""
    grid = object.__new__(Domain)
    grid._take(surface, None, None, "auto", None, surface.points.device, surface.points.dtype)
    order, why, _ = grid._choose_order("auto", None, None)
    return order, grid.spacing, why


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


def _asks_for_baseline(options: dict[str, object]) -> bool:
    """Whether options name a scheme, an order or an extension that are baselines now, or something of theirs."""
    learned = options.get("extension", "auto")
    return (
        options.get("scheme") in ("coupled", "shell")
        or options.get("order") == 4
        or learned == "attention"
        or not isinstance(learned, str)
        or any(name in options for name in ("band_radius", "readout", "rim_order"))
    )


def _checked_origin(origin: Sequence[float] | Tensor, like: Tensor) -> Tensor:
    found = torch.as_tensor(origin).to(like).detach()
    if found.shape != (3,) or not bool(torch.isfinite(found).all()):
        raise InputError(f"origin must be three finite numbers x, y, z, got {origin!r}.")
    return found


def _moved(surface: Surface, device: torch.device | str, dtype: torch.dtype) -> Surface:
    device = available(device)
    if device == surface.points.device and dtype == surface.points.dtype:
        return surface
    return surface.to(device, dtype)
