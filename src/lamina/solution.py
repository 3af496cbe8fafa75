"""Solution: a field on a surface, with what it took to find it."""

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

from lamina.errors import InputError
from lamina.view.colours import as_floats
from lamina.view.display import Display, display, own_points

if TYPE_CHECKING:
    from lamina.domain import Domain
    from lamina.view.page import Page
    from lamina.view.scene import Scene


class Kept(Protocol):
    """What the conditions of a solve say about its solution."""

    @property
    def regions(self) -> tuple[int, ...]:
        """Numbers of the conditions that hold the values on a part of the surface."""
        ...

    def fluxes(self, u: Tensor, time: float, /) -> Tensor:
        """What enters (c,) through each condition, for unknowns u (n,)."""
        ...

    def hold(self, points: Tensor, values: Tensor, time: float) -> Tensor:
        """Values at points (n, 3), with exactly those that a part of the surface is held at."""
        ...


@dataclass(frozen=True)
class Solution:
    """A field, or a field at several times, on a domain.

    unknowns (s, n): the field on the grid at each of `times` (s,); a stationary problem has s = 1, time 0.
    cycles: V-cycles used in all. residual: the largest relative residual of any linear solve.
    seconds: wall-clock time of the solve. warnings: what the user should know, one sentence each.
    residuals: the relative residual after each cycle of a stationary solve.
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
    kept: Kept | None = field(default=None, repr=False)  # what the conditions of the solve say; None without conditions

    @property
    def values(self) -> Tensor:
        """The field (m,) at domain.points, at the last time; (m, k) for k channels."""
        return self.snapshots[-1]

    @property
    def snapshots(self) -> Tensor:
        """The field (s, m) at domain.points, at each of `times`."""
        return self._held(self.domain.points, torch.stack([self.domain.readout @ u for u in self.unknowns]))

    def __call__(self, points: Tensor) -> Tensor:
        """The field (n,) at points (n, 3) on or near the surface, at the last time."""
        values = self.domain.evaluate(self.unknowns[-1], points)
        return self._held(torch.as_tensor(points).to(values), values[None])[-1]

    @property
    def fluxes(self) -> Tensor:
        """What enters the surface (c,) through each of the conditions, at the last time: the integral of
        diffusivity du/dn over a rim or a curve, of what is given through a part, of what it takes to hold one."""
        if self.kept is None:
            return self.unknowns.new_zeros(0)
        return self.kept.fluxes(self.unknowns[-1], self.times[-1])

    def statistics(self) -> dict[str, float]:
        """Least and largest value, mean and integral over the surface, at the last time."""
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
        """States (s or 1, n) of the field at points (n, 3), with what parts of the surface are held at."""
        if self.kept is None or not self.kept.regions:
            return states
        times = self.times[-len(states) :]
        return torch.stack([self.kept.hold(points, u, t) for u, t in zip(states, times, strict=True)])

    def report(self) -> dict[str, Any]:
        """What was solved and how, as plain numbers and strings."""
        domain = self.domain
        return {
            "surface": domain.surface.name,
            "representation": domain.surface.representation,
            "nodes": domain.unknowns,
            "spacing": domain.spacing,
            "order": domain.order,
            "order_reason": domain.order_reason,
            "extension": domain.extension,
            "scheme": domain.scheme.name,
            "components": domain.component_count,
            "device": str(domain.points.device),
            "dtype": str(domain.points.dtype).removeprefix("torch."),
            "cycles": self.cycles,
            "steps": self.steps,
            "residual": self.residual,
            "warnings": [*domain.warnings, *self.warnings],
        }

    def channel(self, i: int) -> Solution:
        """One of several channels, to draw or to save."""
        if self.unknowns.ndim != 3:
            raise InputError("This solution has one channel only.")
        return replace(self, unknowns=self.unknowns[..., i])

    @cached_property
    def drawn(self) -> Display:
        """Triangles with the field at their corners, fine enough to show what was solved; made once.

        Pictures and files show these. They are the surface's own faces, split where the field varies within a face,
        or, for a surface without faces, the pieces that the cells of the grid cut it into.
        """
        if self.unknowns.ndim == 3:
            raise InputError(f"This solution has {self.unknowns.shape[2]} channels; take one: u.channel(0).")
        return self._as_held(display(self.domain, self.unknowns))

    def save(self, path: str | Path, *, refine: bool | None = None, recolour: bool = True) -> Path:
        """Write to .ply (scalar and colours), .vtu, .npz or, to look at it in a browser, .html; whole or not at all.

        refine: True writes the triangles of `drawn`, which show the field as it was solved; False writes the
        surface's own points and faces with `values`. By default .npz, which is for computing, holds the surface's own
        points, and the other formats, which are for looking, hold `drawn`.
        Splats become splats again, all Gaussians that came, in .ply (INRIA's layout), .compressed.ply, .splat, .spz
        and .sog. The field is in their colours; recolour=False keeps the colours that they came with. Only .ply also
        has the field as a property. refine=True writes triangles to .ply instead.
        """
        from lamina.view.export import save, save_splats, writes_splats

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
        """Write a PNG of the surface coloured by the field; options as in lamina.view.render.render.

        refine: as in `page`.
        """
        from lamina.view.render import render_png

        arrays = _arrays(self._shown(refine))
        time = self.times[-1] if self.times != (0.0,) else None
        said: dict[str, Any] = {"title": self._title(options), "time": time}
        return render_png(path, **arrays | {"values": arrays["values"][-1]}, **said | options)

    def animate(self, path: str | Path, *, refine: bool = True, **options: Any) -> Path:
        """Write the field over time as a .gif or .mp4; options as in lamina.view.animation.animate."""
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
        """The viewer of this solution, one HTML page that needs nothing else; notebooks show it in place.

        reference: what to compare with: another Solution, a function of points (and of time, where there is one), or
        values at domain.points or at drawn.points, called reference_name. title: "u on bunny" unless given.
        band: whether the grid can be shown. refine: whether to show the triangles of `drawn`, or the surface's own
        points and faces.
        options: view, map, low, high, height, name, unit, time_unit as in lamina.view.page.page.
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
        """What there is to look at, as arrays: the triangles or points that are shown, the field on them at all times,
        the reference beside it. Arguments as in `page`."""
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
        """Values (s, n) or (n,) at the points (n, 3) that are shown of a reference: another solution, a function of
        points (and time), or values, at these or at domain.points."""
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
        """Look at the field: in a notebook in place, otherwise in the browser. Options as in `page`."""
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
    """What is shown, as numpy arrays: points (n, 3), values (s, n), faces (m, 3) or None, normals (n, 3)."""
    faces = None if shown.faces is None else shown.faces.cpu().numpy()
    points, values, normals = (t.detach().cpu().numpy() for t in (shown.points, shown.values, shown.normals))
    return {"points": points, "values": values, "faces": faces, "normals": normals}
