"""Domain: everything about a surface and a grid that is built once and used by every solve."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from lamina.checks import finite, returned
from lamina.device import available, in_own_precision
from lamina.errors import InputError
from lamina.expression import as_data
from lamina.geometry.lattice import Lattice
from lamina.grid.cut import cut_surface, cut_warnings
from lamina.grid.cut_surface import CutSurface
from lamina.grid.interface_curves import NO_CURVES, InterfaceCurves
from lamina.grid.quadrature import Quadrature
from lamina.grid.rim import Rim
from lamina.grid.sizing import (
    REQUIREMENTS_OF_ORDER,
    GridRequirements,
    check_memory,
    check_spacing,
    choose_spacing,
    spacing_for_nodes,
    thin_warning,
)
from lamina.linear.components import ComponentMean
from lamina.linear.operator import SparseOperator
from lamina.progress import progress
from lamina.reconstruction.choose import Reconstruction, has_the_points_of, reconstruct_as_asked
from lamina.shapes import Float, Int, shaped
from lamina.spaces.galerkin import smooth_enough_for_order_3
from lamina.spaces.operators import CutCellOperators
from lamina.spaces.scheme import Scheme
from lamina.surfaces.base import ClosestPoints, Surface

# The grid is moved by this many spacings along x, y and z, so that the symmetry planes and flat faces of a shape do
# not lie in lattice planes. The numbers are arbitrary: any three that are far from 0, 1/2 and from each other will
# do.
GRID_SHIFT = (0.1372, 0.2719, 0.4183)
# A domain keeps at most this many maps from values at `points` to other points: one for the source points of its
# operators, and those of three conditions. A map that is not kept is made again in every solve.
MAX_INTERPOLATIONS = 4


class Domain:
    """A surface with everything that is built once and used by every solve: cut cells, functions on them, operators.

    Parameters
    ----------
    surface : Surface
        Any surface of lamina; it is moved to `device` and `dtype`.
    spacing : float, optional
        The spacing of the grid. By default it suits the size of the surface, its thin parts and the density of its
        samples.
    nodes : int, optional
        About how many unknowns to use, instead of a spacing.
    order : int or str, default "auto"
        2: trilinear functions on the cut cells. 3: quadratic functions. "auto": 3 where the grid resolves the normals
        of the surface, otherwise 2; `order_reason` says why.
    reconstruction : str, default "auto"
        What the surface of samples is made from: "fits" (robust fits, weighted by a trained network), "jets"
        (polynomials fitted to the samples), "triangles" (between the samples), or "auto", the one that suits the
        samples. Surfaces that know their closest points need none. `domain.reconstruction` says what was used and
        why.
    extension : str, default "auto"
        The same by the names of version 0.1: "closest-point" (the surface itself), "jet", "neural" (fits, or jets or
        triangles where these are better) or "auto".
    scheme : str, optional
        An option of version 0.1; leave it out.
    origin : Tensor or sequence of float, optional
        The point (3,) that the grid is aligned with, by default the middle of the surface. Keep it fixed if the shape
        changes from solve to solve and the grid must not.
    device : torch.device or str, default "cpu"
        Where to compute.
    dtype : torch.dtype, default torch.float64
        The precision to compute in: torch.float32 or torch.float64.
    show_progress : bool, optional
        Whether to show a bar of progress; by default only if stderr is a terminal.

    Raises
    ------
    InputError
        If arguments are invalid or contradict each other, or if the grid would not fit in memory.

    Notes
    -----
    Options of version 0.1 (`scheme`, `order=4`, `extension="attention"`, `band_radius`, `readout`, `rim_order`) still
    work in this release. They give a warning that says what to write instead, and most of them a
    `lamina.paper.BandDomain`.

    Examples
    --------
    >>> import lamina
    >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
    >>> domain.points.shape, domain.component_count
    (torch.Size([642, 3]), 1)
    """

    time_methods: tuple[str, ...] = ("tr-bdf2",)
    has_weak_forms = True  # whether its operators are integrals over the pieces that the cells cut
    scheme: CutCellOperators
    baseline: ClassVar[type[Domain] | None] = None  # the class for options of version 0.1; lamina.paper sets it

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
        reconstruction: str = "auto",
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
        if order != "auto" and order not in REQUIREMENTS_OF_ORDER:
            raise InputError(f'order must be 2, 3 or "auto", got {order!r}.')
        start = time.perf_counter()
        self._take(surface, spacing, nodes, extension, reconstruction, origin, device, dtype)
        with progress("building", show_progress) as update:
            update(0.0, "cutting cells")
            self.order, self.order_reason, cut = self._choose_order(order, spacing, nodes)
            self._scheme_warnings = cut_warnings(cut)
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
        reconstruction: str,
        origin: Sequence[float] | Tensor | None,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        """Check the arguments, move the surface to the device, and reconstruct it where it is samples only."""
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
        self._requested: dict[str, Any] = {"extension": extension, "reconstruction": reconstruction}
        self.reconstruction: Reconstruction
        self.reconstruction, self.extension = reconstruct_as_asked(self.surface, extension, reconstruction)
        self.geometry = self.reconstruction.surface
        if has_the_points_of(self.geometry, self.surface):
            self.surface = self.geometry
        middle = self.geometry.bounds.mean(0)
        self._origin = middle if origin is None else _checked_origin(origin, middle)

    def _choose_order(
        self, order: int | str, spacing: float | None, nodes: int | None
    ) -> tuple[int, str, CutSurface]:
        """The order, its reason, and the cells cut for it. "auto" cuts cells for order 3 first, and measures on them
        how well they resolve the surface.
        """
        if isinstance(order, int):
            self._place(REQUIREMENTS_OF_ORDER[order], spacing, nodes)
            return order, "asked for", cut_surface(self.geometry, self.lattice, degree=order - 1)
        if self.geometry.faceted:
            why = "a mesh has creases, rims and parts of any kind, and order 2 bears them all"
            self._place(REQUIREMENTS_OF_ORDER[2], spacing, nodes)
            return 2, why, cut_surface(self.geometry, self.lattice, degree=1)
        try:
            self._place(REQUIREMENTS_OF_ORDER[3], spacing, nodes)
            cut = cut_surface(self.geometry, self.lattice, degree=2)
        except InputError as refused:  # too many unknowns or too large cells; order 2 may work with this spacing
            why = f"order 3 is refused: {refused}"
        else:
            smooth, why = smooth_enough_for_order_3(cut)
            if smooth:
                return 3, why, cut
        self._place(REQUIREMENTS_OF_ORDER[2], spacing, nodes)
        return 2, why, cut_surface(self.geometry, self.lattice, degree=1)

    def _place(self, needs: GridRequirements, spacing: float | None, nodes: int | None, shift: bool = True) -> None:
        """Choose the lattice for this surface and for the functions on it.

        shift: whether to move it off the symmetry planes of the surface, so that flat faces do not lie in lattice
        planes.
        """
        if nodes is not None:
            spacing = spacing_for_nodes(self.surface, nodes, needs)
        if spacing is None:
            spacing = choose_spacing(self.surface, needs)
        self.spacing, self._needs = check_spacing(self.surface, spacing), needs
        check_memory(self.surface, self.spacing, needs, self.points.dtype)
        origin = self._origin
        if shift:
            origin = origin + self.spacing * origin.new_tensor(GRID_SHIFT)
        self.lattice = Lattice(origin, self.spacing)

    def _finish(self, start: float, built: float) -> None:
        """Build what follows from surface and operators."""
        self.readout = self.scheme.readout(self.own_feet())
        self.seconds = {"geometry": built - start, "operators": time.perf_counter() - built}
        self._interpolations: list[tuple[Tensor, SparseOperator]] = []
        self.mean = ComponentMean(self.component, self.component_count, self.surface.own_areas())

    @property
    @shaped
    def points(self) -> Float[Tensor, "m 3"]:
        """The points (m, 3) where solutions are reported: vertices or samples of the surface."""
        return self.surface.points

    @cached_property
    @shaped
    def component(self) -> Int[Tensor, " m"]:
        """The component (m,) of each of `points`. A solution spreads over a component and no further."""
        matrix = self.readout.matrix.detach()
        # A row reads unknowns of one component only: the first of them tells which.
        return self.scheme.component[matrix.col_indices()[matrix.crow_indices()[:-1].long()].long()]

    @property
    def component_count(self) -> int:
        """The number of connected components."""
        return self.scheme.component_count

    @property
    def resolution(self) -> float:
        """The distance between the nodes of the functions: the spacing, or half of it at order 3."""
        return self.spacing / self.scheme.nodes_per_cell

    @property
    def unknowns(self) -> int:
        """The number of unknowns of a solve."""
        return self.scheme.unknowns

    _functions_at = ""  # where functions are evaluated, if not on the surface

    @cached_property
    def warnings(self) -> list[str]:
        """Warnings about the surface and the grid, one sentence each."""
        thin = thin_warning(self.surface, self.spacing, self._needs)
        return [*self.geometry.notes, *self._scheme_warnings, *([thin] if thin else [])]

    @property
    def quadrature(self) -> Quadrature:
        """Points, normals and weights for integrals over the surface."""
        return self.cut.quadrature

    @property
    def rim(self) -> Rim | None:
        """Points, tangents and weights where the surface ends; None if it is closed."""
        return self.cut.rim

    @cached_property
    def cut(self) -> CutSurface:
        """The cells that the surface cuts, and the pieces of the surface in them."""
        return self.scheme.cut

    @shaped
    def load(
        self, values: Float[Tensor, " m"] | Float[Tensor, "m k"]
    ) -> Float[Tensor, " n"] | Float[Tensor, "n k"]:
        """The right-hand side of the discrete problem for values at `points`.

        Parameters
        ----------
        values : Tensor
            Values (m,) or (m, k) at `points`.

        Returns
        -------
        Tensor
            The load (unknowns,) or (unknowns, k). For values of 1 its entries add up to the area.

        Examples
        --------
        >>> import torch, lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> round(float(domain.load(torch.ones(642, dtype=torch.float64)).sum() / (4 * torch.pi)), 2)
        1.0
        """
        first, second = self._loading
        return second @ values if first is None else first @ (second @ values)

    def load_of(self, scheme: Scheme, data: Callable[[Tensor], Tensor] | Tensor | float | str, name: str) -> Tensor:
        """The load of data, by the operators of this domain or by others on the same pieces.

        Parameters
        ----------
        scheme : Scheme
            The operators whose load is wanted.
        data : callable, Tensor, float or str
            As in `field`.
        name : str
            What messages call the data.

        Returns
        -------
        Tensor
            The load (unknowns,) of `scheme`.

        Examples
        --------
        >>> import torch, lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> domain.load_of(domain.scheme, "x*y", "the source").shape == (domain.unknowns,)
        True
        """
        data = as_data(data, name)
        field = self.field(data, name)
        if callable(data) or torch.as_tensor(data).ndim == 0:
            return scheme.load(field)
        return self.load(torch.as_tensor(data).to(self.points))

    @shaped
    def interpolate(
        self, values: Float[Tensor, " m"] | Float[Tensor, "m k"], x: Float[Tensor, "n 3"]
    ) -> Float[Tensor, " n"] | Float[Tensor, "n k"]:
        """Values at points on the surface from values at `points`, interpolated to second order.

        Parameters
        ----------
        values : Tensor
            Values (m,) or (m, k) at `points`.
        x : Tensor
            Points (n, 3) on the surface.

        Returns
        -------
        Tensor
            Values (n,) or (n, k) at x.

        Examples
        --------
        >>> import torch, lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> domain.interpolate(domain.points[:, 2], torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64))
        tensor([1.0000], dtype=torch.float64)
        """
        return self._from_points(x) @ values

    def _from_points(self, x: Tensor) -> SparseOperator:
        """The map from values at `points` to surface points x.

        The last few maps are kept, because the points of operators and conditions recur with every solve.
        """
        for before, found in self._interpolations:
            if before is x or (not (before.requires_grad or x.requires_grad) and torch.equal(before, x)):
                return found
        known = x is self.scheme.source_points and self.geometry is self.surface
        with torch.enable_grad():  # cached: built with gradients even if first requested under no_grad
            found = self.surface.interpolation(x, self.scheme.source_faces if known else None)
        self._interpolations[:] = [*self._interpolations[1 - MAX_INTERPOLATIONS :], (x, found)]
        return found

    @cached_property
    def _loading(self) -> tuple[SparseOperator | None, SparseOperator]:
        """The matrices that make the load of values at `points`: from values at the source points to the load, and from
        values at `points` to the source points. The first is None if the second is their product.
        """
        with torch.enable_grad():  # cached: built with gradients even if first requested under no_grad
            here, there = self.scheme.source_matrix(), self._from_points(self.scheme.source_points)
        return (here, there) if here.tracked or there.tracked else (None, here.after(there))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Domain:
        """This domain on another device or in another precision.

        It is built anew, unless nothing changes. Solutions keep the domain that they were computed on.

        Parameters
        ----------
        device : torch.device or str, optional
            The device; by default that of this domain.
        dtype : torch.dtype, optional
            The precision; by default that of this domain.

        Returns
        -------
        Domain
            The other domain, or this one.

        Raises
        ------
        InputError
            If there is no such device.

        Examples
        --------
        >>> import torch, lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> domain.to(dtype=torch.float32).points.dtype
        torch.float32
        """
        device = self.points.device if device is None else available(device)
        dtype = self.points.dtype if dtype is None else dtype
        if device == self.points.device and dtype == self.points.dtype:
            return self
        return self._again(device, dtype)

    def _again(self, device: torch.device | str, dtype: torch.dtype) -> Domain:
        moved = Domain(self.surface, self.spacing, order=self.order, origin=self._origin, device=device, dtype=dtype,
                       show_progress=False, **self._requested)  # fmt: skip
        moved.order_reason = self.order_reason
        moved.reconstruction = replace(moved.reconstruction, reason=self.reconstruction.reason)
        return moved

    def __deepcopy__(self, memo: dict[int, object]) -> Domain:
        """A domain of its own that shares matrices and surface with this one: neither changes once it is built."""
        return copy.copy(self)

    def cut_along(self, curves: InterfaceCurves | None = None, *, seams: InterfaceCurves | None = None) -> CutSurface:
        """The cells of this domain's lattice cut by its surface, and split along curves.

        Parameters
        ----------
        curves : InterfaceCurves
            The curves.
        seams : InterfaceCurves, optional
            What `curves` was called in version 0.1.

        Returns
        -------
        CutSurface
            The cells.

        Examples
        --------
        >>> import torch, lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> from lamina.grid.interface_curves import InterfaceCurves, LevelCurve
        >>> equator = LevelCurve(lambda x: x[:, 2])
        >>> domain.cut_along(InterfaceCurves((equator,))).rim is None
        False
        """
        if seams is not None:
            warnings.warn("cut_along(seams=...) is cut_along(curves) now.", FutureWarning, stacklevel=2)
        curves = curves or seams or NO_CURVES
        return cut_surface(self.geometry, self.lattice, curves=curves, degree=self.cut.degree)

    def as_trace(self, reason: str = "") -> Domain:
        """This domain. Version 0.1 had domains of other schemes, and this converted them; leave it out.

        Parameters
        ----------
        reason : str, default ""
            Has no effect.

        Returns
        -------
        Domain
            This domain.

        Examples
        --------
        >>> import lamina, pytest
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> with pytest.warns(FutureWarning):
        ...     same = domain.as_trace()
        >>> same is domain
        True
        """
        warnings.warn("as_trace() goes with the next release: leave it out.", FutureWarning, stacklevel=2)
        return self

    def with_scheme(self, scheme: CutCellOperators) -> Domain:
        """This domain with other operators, on the same surface and lattice.

        Parameters
        ----------
        scheme : CutCellOperators
            The operators.

        Returns
        -------
        Domain
            The other domain.

        Examples
        --------
        >>> import torch, lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> domain.with_scheme(domain.scheme).unknowns == domain.unknowns
        True
        """
        other = copy.copy(self)
        for made in ("cut", "_loading"):
            vars(other).pop(made, None)
        other.scheme = scheme
        other.readout = scheme.readout(self.own_feet())
        return other

    def field(
        self, data: Callable[[Tensor], Tensor] | Tensor | float | str, name: str, channels: bool = False
    ) -> Callable[[Tensor], Tensor]:
        """Data as a function of points on the surface, which checks its values.

        Parameters
        ----------
        data : callable, Tensor, float or str
            A function of points (n, 3), values (m,) at `points`, a number, or a formula in x, y, z.
        name : str
            What messages call the data.
        channels : bool, default False
            Whether there may be several channels: values (m, k), or a function that returns (n, k).

        Returns
        -------
        callable
            A function of points (n, 3) with values (n,) or (n, k).

        Raises
        ------
        InputError
            If the data are none of these, or their values have a wrong shape or are not finite.

        Examples
        --------
        >>> import torch, lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> domain.field("x + 1", "the source")(torch.tensor([[1.0, 0.0, 0.0]]))
        tensor([2.])
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
        """The values that are given, if they are finite.

        Parameters
        ----------
        values : Tensor
            Values (n,).
        name : str
            What messages call them.

        Returns
        -------
        Tensor
            `values`.

        Raises
        ------
        InputError
            If some are NaN or infinite.

        Examples
        --------
        >>> import torch, lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> domain.finite(torch.ones(2), "the source")
        tensor([1., 1.])
        """
        return finite(values, name)

    @in_own_precision
    def evaluate(self, unknowns: Tensor, points: Tensor) -> Tensor:
        """Values of a field of unknowns at points on or near the surface.

        Parameters
        ----------
        unknowns : Tensor
            The field (unknowns,), such as one of `Solution.unknowns`.
        points : Tensor
            Points (n, 3). A point off the surface gets the value at its closest point.

        Returns
        -------
        Tensor
            Values (n,).

        Raises
        ------
        InputError
            If the points are not finite or not of shape (n, 3).

        Examples
        --------
        >>> import torch, lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> u = lamina.poisson(domain, "-6*x*y")
        >>> round(float(domain.evaluate(u.unknowns[0], [[0.6, 0.8, 0.0]])), 1)
        0.5
        """
        points = torch.as_tensor(points).to(self.points)
        if points.ndim != 2 or points.shape[1] != 3 or not torch.isfinite(points).all():
            raise InputError(f"Points must be finite and of shape (n, 3), got shape {tuple(points.shape)}.")
        feet = self.geometry.closest_points(points)
        return self.scheme.readout(feet) @ unknowns

    def own_feet(self) -> ClosestPoints:
        """`points` as points of the surface that was cut, which for samples is a reconstruction.

        Returns
        -------
        ClosestPoints
            Points, normals and components.

        Examples
        --------
        >>> import torch, lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> domain.own_feet().points.shape
        torch.Size([642, 3])
        """
        if self.geometry.exact and self.geometry is self.surface:
            return self.surface.own_feet()
        return self.geometry.closest_points(self.surface.positions)

    @property
    def _kind(self) -> str:
        return f"order {self.order} ({self.order_reason}), extension {self.extension}"

    def report(self) -> dict[str, Any]:
        """What was decided about the surface and the grid, as plain numbers and strings.

        Returns
        -------
        dict
            Surface, representation, unknowns ("nodes"), spacing, order and reconstruction with their reasons,
            components, device, precision and warnings.

        Examples
        --------
        >>> import lamina
        >>> report = lamina.Domain(lamina.Sphere(level=3), spacing=0.3).report()
        >>> report["order"], report["reconstruction"]
        (3, 'exact')
        """
        return {
            "surface": self.surface.name,
            "representation": self.surface.representation,
            "nodes": self.unknowns,
            "spacing": self.spacing,
            "order": self.order,
            "order_reason": self.order_reason,
            "reconstruction": self.reconstruction.method,
            "reconstruction_reason": self.reconstruction.reason,
            "area_error": self.reconstruction.area_error,
            "extension": self.extension,
            "scheme": self.scheme.name,
            "components": self.component_count,
            "device": str(self.points.device),
            "dtype": str(self.points.dtype).removeprefix("torch."),
            "warnings": list(self.warnings),
        }

    def __repr__(self) -> str:
        lines = [
            f"Domain of {self.surface.name} ({self.surface.representation}, {len(self.points)} points, "
            f"{self.component_count} component{'s' if self.component_count > 1 else ''})",
            f"  {self._kind}, spacing {self.spacing:g}",
            f"  points of the surface from: {self.reconstruction}",
            "  level   spacing   unknowns   non-zeros       MB",
        ]
        for i, (spacing, unknowns, entries, size) in enumerate(self.scheme.table()):
            lines.append(f"  {i:5d} {spacing:9.4g} {unknowns:10d} {entries:11d} {size / 1e6:8.1f}")
        return "\n".join(lines)


@dataclass(frozen=True)
class DefaultGrid:
    """What Domain(surface) chooses."""

    order: int
    order_reason: str
    spacing: float
    reconstruction: Reconstruction


def default_grid(surface: Surface) -> DefaultGrid:
    """What Domain(surface) would choose, without its operators."""
    grid = object.__new__(Domain)
    grid._take(surface, None, None, "auto", "auto", None, surface.points.device, surface.points.dtype)
    order, why, _ = grid._choose_order("auto", None, None)
    return DefaultGrid(order, why, grid.spacing, grid.reconstruction)


def as_domain(given: Domain | Surface, caller: str) -> Domain:
    """The given domain, or one with the default grid on the given surface.

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
    """Whether options name a scheme, an order, an extension or a setting of the baselines."""
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
