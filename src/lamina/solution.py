"""Solution: a field on a surface, with the cost of its computation, and ways to save and show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lamina.colours import as_floats
from lamina.errors import InputError
from lamina.shapes import Float, shaped
from lamina.view.display import Display, display, own_points

if TYPE_CHECKING:
    from lamina.domain import Domain
    from lamina.view.page import Page
    from lamina.view.scene import Scene


class ConditionsOnSolution(Protocol):
    """The values and fluxes of a solution that its conditions determine."""

    @property
    def regions(self) -> tuple[int, ...]:
        """The numbers of the Dirichlet conditions on parts of the surface."""
        ...

    def fluxes(self, u: Tensor, time: float, /) -> Tensor:
        """The flux (c,) that enters through each condition, for unknowns u (n,)."""
        ...

    def hold(self, points: Tensor, values: Tensor, time: float) -> Tensor:
        """Values at points (n, 3), replaced by the given ones on parts with Dirichlet conditions."""
        ...


@dataclass(frozen=True)
class Solution:
    """A field on a surface, or a field at several times, with the cost and the warnings of its computation.

    Parameters
    ----------
    domain : Domain
        Where it was computed.
    unknowns : Tensor
        The field on the grid (s, n) at each of `times`; a stationary problem has s = 1.
    times : tuple of float
        The times (s,); (0.0,) for a stationary problem.
    cycles : int
        The number of V-cycles of all linear solves.
    residual : float
        The largest relative residual of a linear solve.
    steps : int
        The number of time steps.
    seconds : float
        The time that the solve took.
    warnings : tuple of str
        Warnings about this solve, one sentence each.
    residuals : tuple of float
        The relative residual after each cycle of a stationary solve.
    kept : ConditionsOnSolution, optional
        The values and fluxes that the conditions of the solve determine; None without conditions.

    Examples
    --------
    >>> import lamina
    >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
    >>> u = lamina.poisson(domain, "-6*x*y")
    >>> u.values.shape
    torch.Size([642])
    """

    domain: Domain = field(repr=False)
    unknowns: Tensor = field(repr=False)
    times: tuple[float, ...]
    cycles: int
    residual: float
    steps: int
    seconds: float
    warnings: tuple[str, ...] = ()
    residuals: tuple[float, ...] = field(default=(), repr=False)
    kept: ConditionsOnSolution | None = field(default=None, repr=False)

    @property
    @shaped
    def values(self) -> Float[Tensor, " m"] | Float[Tensor, "m k"]:
        """The field (m,) at `domain.points` at the last time; (m, k) for k channels."""
        return self.snapshots[-1]

    @property
    @shaped
    def snapshots(self) -> Float[Tensor, "s m"] | Float[Tensor, "s m k"]:
        """The field (s, m) at `domain.points` at each of `times`."""
        return self._held(self.domain.points, torch.stack([self.domain.readout @ u for u in self.unknowns]))

    @shaped
    def __call__(self, points: Float[Tensor, "n 3"]) -> Float[Tensor, " n"] | Float[Tensor, "n k"]:
        """The field at any points of the surface, at the last time.

        Parameters
        ----------
        points : Tensor
            Points (n, 3). A point off the surface gets the value at its closest point.

        Returns
        -------
        Tensor
            Values (n,).

        Examples
        --------
        >>> import lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> u = lamina.poisson(domain, "-6*x*y")
        >>> round(float(u([[0.6, 0.8, 0.0]])), 1)
        0.5
        """
        values = self.domain.evaluate(self.unknowns[-1], points)
        return self._held(torch.as_tensor(points).to(values), values[None])[-1]

    @property
    @shaped
    def fluxes(self) -> Float[Tensor, " c"]:
        """The flux (c,) that enters the surface through each condition, at the last time.

        For a condition on a rim or a curve it is the integral of diffusivity du/dn. For a flux through a part of the
        surface it is the integral of that flux. For values on a part or at points it is the source that keeps them.
        """
        if self.kept is None:
            return self.unknowns.new_zeros(0)
        return self.kept.fluxes(self.unknowns[-1], self.times[-1])

    def statistics(self) -> dict[str, float]:
        """The least and the largest value, the mean and the integral over the surface, at the last time.

        Returns
        -------
        dict of str to float
            "min", "max", "mean" and "integral".

        Examples
        --------
        >>> import lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> u = lamina.poisson(domain, "-6*x*y")
        >>> sorted(u.statistics())
        ['integral', 'max', 'mean', 'min']
        """
        domain = self.domain
        if domain.has_weak_forms:
            points, weights = domain.quadrature.points, domain.quadrature.weights
            there = domain.scheme.at_source_points(self.unknowns[-1].detach(), slice(None))
            there = self._held(points, there[None])[-1].detach()
            everywhere = torch.cat([there, self.values.detach()])
        else:
            there = everywhere = self.values.detach()
            weights = domain.surface.own_areas()
        integral, area = float((weights * there).sum()), float(weights.sum())
        return {
            "min": float(everywhere.min()),
            "max": float(everywhere.max()),
            "mean": integral / area,
            "integral": integral,
        }

    def _held(self, points: Tensor, states: Tensor) -> Tensor:
        """States (s or 1, n) of the field at points (n, 3), replaced by the given values on parts with Dirichlet
        conditions.
        """
        if self.kept is None or not self.kept.regions:
            return states
        times = self.times[-len(states) :]
        return torch.stack([self.kept.hold(points, u, t) for u, t in zip(states, times, strict=True)])

    def report(self) -> dict[str, Any]:
        """What was solved and how, as plain numbers and strings.

        Returns
        -------
        dict
            Surface, number of unknowns, spacing, order, device, cycles, residual, warnings, and more.

        Examples
        --------
        >>> import lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> u = lamina.poisson(domain, "-6*x*y")
        >>> u.report()["order"]
        2
        """
        domain = self.domain.report()
        return domain | {
            "cycles": self.cycles,
            "steps": self.steps,
            "residual": self.residual,
            "warnings": [*domain.pop("warnings"), *self.warnings],
        }

    def channel(self, i: int) -> Solution:
        """One of several channels, to draw or to save.

        Parameters
        ----------
        i : int
            The number of the channel, from 0.

        Returns
        -------
        Solution
            A solution with one channel.

        Raises
        ------
        InputError
            If the solution has only one channel.

        Examples
        --------
        >>> import lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> u = lamina.heat(domain, lambda x: x[:, :2], time=0.1, accuracy=1e-2)
        >>> u.channel(1).values.shape
        torch.Size([642])
        """
        if self.unknowns.ndim != 3:
            raise InputError("This solution has one channel only.")
        return replace(self, unknowns=self.unknowns[..., i])

    @cached_property
    def drawn(self) -> Display:
        """Triangles with the field at their corners, fine enough to show what was solved; made once.

        Pictures and files show these triangles. They are the faces of the surface, split where the field varies within
        a face. A surface without faces is drawn by the pieces that the cells of the grid cut it into.
        """
        if self.unknowns.ndim == 3:
            raise InputError(f"This solution has {self.unknowns.shape[2]} channels; take one: u.channel(0).")
        return self._as_held(display(self.domain, self.unknowns))

    def save(self, path: str | Path, *, refine: bool | None = None, recolour: bool = True) -> Path:
        """Write the field to a file, whose extension chooses the format. A file is written completely or not at all.

        Parameters
        ----------
        path : str or Path
            A file .ply (the field as a property and as colours), .vtu, .npz, or .html, a page to look at in a browser.
            Splats can also be written to .compressed.ply, .splat, .spz and .sog.
        refine : bool, optional
            True writes the triangles of `drawn`, which show the field as it was solved. False writes the points and
            faces of the surface with `values`. By default .npz, which is for computing, gets the points of the surface,
            and the other formats, which are for looking, get `drawn`.
        recolour : bool, default True
            Whether splats get the colours of the field. Otherwise they keep their own.

        Returns
        -------
        Path
            The file that was written.

        Notes
        -----
        Splats are written as splats, with all their Gaussians; .ply has the layout of INRIA and also contains the
        field as a property. With refine=True their .ply contains triangles instead.

        Examples
        --------
        >>> import lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> u = lamina.poisson(domain, "-6*x*y")
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     u.save(pathlib.Path(folder) / "u.npz").name
        'u.npz'
        """
        from lamina.io.export import save, save_splats
        from lamina.surfaces.splats import writes_splats

        suffix = Path(path).suffix.lower()
        if suffix == ".html":
            return self.page(refine=refine is not False).save(path)
        surface = self.domain.surface
        metadata = {"times": list(self.times), **self.report()}
        if writes_splats(surface, path) and not (suffix == ".ply" and refine):
            fields = self.snapshots.T if len(self.times) > 1 else self.values
            everywhere = surface.everywhere(fields.detach())
            return save_splats(path, surface.data, everywhere, recolour=recolour, metadata=metadata)
        shown = self._shown(suffix != ".npz" if refine is None else refine)
        if shown.note is not None:
            metadata["drawn"] = shown.note
        arrays = _arrays(shown)
        values = shown.values.T if len(self.times) > 1 else shown.values[-1]
        areas = surface.areas if len(shown.points) == len(surface.areas) else None
        return save(path, arrays["points"], values.cpu(), faces=arrays["faces"], normals=arrays["normals"],
                    areas=areas, metadata=metadata)  # fmt: skip

    def plot(self, path: str | Path, *, refine: bool = True, **options: Any) -> Path:
        """Write a picture (PNG) of the surface coloured by the field.

        Parameters
        ----------
        path : str or Path
            The file.
        refine : bool, default True
            Whether to show the triangles of `drawn`, or the points and faces of the surface.
        **options
            As in `lamina.view.render.render`.

        Returns
        -------
        Path
            The file that was written.

        Examples
        --------
        >>> import lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> u = lamina.poisson(domain, "-6*x*y")
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     u.plot(pathlib.Path(folder) / "u.png", refine=False, size=(80, 60)).name
        'u.png'
        """
        from lamina.view.render import render_png

        arrays = _arrays(self._shown(refine))
        time = self.times[-1] if self.times != (0.0,) else None
        said: dict[str, Any] = {"title": self._title(options), "time": time}
        return render_png(path, **arrays | {"values": arrays["values"][-1]}, **said | options)

    def animate(self, path: str | Path, *, refine: bool = True, **options: Any) -> Path:
        """Write the field over time as an animation.

        Parameters
        ----------
        path : str or Path
            A file .gif or .mp4.
        refine : bool, default True
            As in `plot`.
        **options
            As in `lamina.view.animation.animate`.

        Returns
        -------
        Path
            The file that was written.

        Examples
        --------
        >>> import lamina, tempfile, pathlib
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> u = lamina.heat(domain, "x*y", time=0.1, accuracy=1e-2, frames=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     u.animate(pathlib.Path(folder) / "u.gif", refine=False, size=(80, 60)).name
        'u.gif'
        """
        from lamina.view.animation import animate

        said: dict[str, Any] = {"title": self._title(options)}
        return animate(path, **_arrays(self._shown(refine)), times=self.times, **said | options)

    def page(
        self,
        *,
        reference: Any = None,
        reference_name: str = "reference",
        title: str | None = None,
        band: bool = True,
        refine: bool = True,
        **options: Any,
    ) -> Page:
        """The viewer of this solution: one HTML page that needs no other file. Notebooks show it in place.

        Parameters
        ----------
        reference : Solution, callable or array_like, optional
            What to compare with: another solution, a function of points (and of time, if the solution depends on time),
            or values at `domain.points` or at `drawn.points`.
        reference_name : str, default "reference"
            What the page calls the reference.
        title : str, optional
            The title, "u on " and the name of the surface unless given.
        band : bool, default True
            Whether the page can show the grid.
        refine : bool, default True
            As in `plot`.
        **options
            view, map, low, high, height, name, unit and time_unit, as in `lamina.view.page.page`.

        Returns
        -------
        Page
            The page, to save or to show.

        Examples
        --------
        >>> import lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> u = lamina.poisson(domain, "-6*x*y")
        >>> type(u.page(refine=False, reference=lambda p: p[:, 0] * p[:, 1])).__name__
        'Page'
        """
        from lamina.view.page import page

        scene = self.scene(reference=reference, reference_name=reference_name, title=title, band=band, refine=refine)
        return page(scene, **options)

    def scene(
        self,
        *,
        reference: Any = None,
        reference_name: str = "reference",
        title: str | None = None,
        band: bool = True,
        refine: bool = True,
    ) -> Scene:
        """The arrays that the viewer shows: triangles or points, the field on them at all times, and the reference.

        Parameters
        ----------
        reference : Solution, callable or array_like, optional
            What to compare with: another solution, a function of points (and of time, if the solution depends on time),
            or values at `domain.points` or at `drawn.points`.
        reference_name : str, default "reference"
            What the page calls the reference.
        title : str, optional
            The title, "u on " and the name of the surface unless given.
        band : bool, default True
            Whether the page can show the grid.
        refine : bool, default True
            As in `plot`.

        Returns
        -------
        Scene
            The arrays.

        Examples
        --------
        >>> import lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> u = lamina.poisson(domain, "-6*x*y")
        >>> u.scene(refine=False, band=False).points.shape
        (642, 3)
        """
        from lamina.view.scene import SHOWN_FACTS, Scene, grid_nodes

        shown, report = self._shown(refine), self.report()
        facts = {key: report[key] for key in SHOWN_FACTS if key in report}
        scene = Scene(
            title or self._title({}),
            as_floats(shown.points),
            as_floats(shown.values),
            self.times,
            None if shown.faces is None else as_floats(shown.faces).astype(np.int64),
            as_floats(shown.normals),
            band=as_floats(grid_nodes(self.domain)) if band else None,
            facts=facts if shown.note is None else facts | {"drawn": shown.note},
        )
        return scene if reference is None else scene.beside(self._states_of(reference, shown.points), reference_name)

    def _states_of(self, reference: Any, points: Tensor) -> NDArray:
        """Values (s, n) or (n,) of a reference at the points (n, 3) that are shown.

        The reference is another solution, a function of points (and time), or values at these points or at
        domain.points.
        """
        domain = self.domain
        if isinstance(reference, Solution):
            states = reference.unknowns if len(reference.times) == len(self.times) else reference.unknowns[-1:]
            same = reference.domain.points
            if same.shape == points.shape and torch.equal(same.to(points), points):
                return as_floats(torch.stack([reference.domain.readout @ u for u in states]))
            return as_floats(torch.stack([reference.domain.evaluate(u, points) for u in states]))
        if callable(reference):
            function: Callable[..., Any] = reference
            if self.times != (0.0,):
                return np.stack([as_floats(function(points, t)) for t in self.times])
            return as_floats(function(points))
        values = as_floats(reference)
        if values.shape[-1] == len(domain.points) != len(points):
            given = torch.as_tensor(values).to(points)
            return as_floats(domain.surface.interpolate(given.reshape(-1, len(domain.points)).T, points).T)
        return values

    def show(self, **options: Any) -> None:
        """Show the field: in place in a notebook, otherwise in the browser.

        Parameters
        ----------
        **options
            As in `page`.

        Examples
        --------
        >>> import lamina
        >>> domain = lamina.Domain(lamina.Sphere(level=3), spacing=0.3, order=2)
        >>> u = lamina.poisson(domain, "-6*x*y")
        >>> u.show(refine=False)  # doctest: +SKIP
        """
        from lamina.view.browse import show

        show(self.page(**options), self.domain.surface.name)

    def _repr_html_(self) -> str:
        from lamina.view.still import still_html

        return still_html(self.scene(band=False))

    def _title(self, options: dict[str, Any]) -> str:
        return f"{options.get('name', 'u')} on {self.domain.surface.name}"

    def _shown(self, refine: bool) -> Display:
        return self.drawn if refine else self._as_held(own_points(self.domain, self.unknowns))

    def _as_held(self, shown: Display) -> Display:
        return replace(shown, values=self._held(shown.points, shown.values))


def _arrays(shown: Display) -> dict[str, Any]:
    """Numpy arrays of what is shown: points (n, 3), values (s, n), faces (m, 3) or None, normals (n, 3)."""
    faces = None if shown.faces is None else shown.faces.cpu().numpy()
    points, values, normals = (t.detach().cpu().numpy() for t in (shown.points, shown.values, shown.normals))
    return {"points": points, "values": values, "faces": faces, "normals": normals}
