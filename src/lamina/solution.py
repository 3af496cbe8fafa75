"""Solution: a field on a surface, with what it took to find it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lamina.domain import Domain
    from lamina.view.page import Page


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

    @property
    def values(self) -> Tensor:
        """The field (m,) at domain.points, at the last time."""
        return self.snapshots[-1]

    @property
    def snapshots(self) -> Tensor:
        """The field (s, m) at domain.points, at each of `times`."""
        return torch.stack([self.domain.readout @ u for u in self.unknowns])

    def __call__(self, points: Tensor) -> Tensor:
        """The field (n,) at points (n, 3) on or near the surface, at the last time."""
        return self.domain.evaluate(self.unknowns[-1], points)

    def report(self) -> dict[str, Any]:
        """What was solved and how, as plain numbers and strings."""
        domain = self.domain
        return {
            "surface": domain.surface.name,
            "representation": domain.surface.representation,
            "nodes": domain.unknowns,
            "spacing": domain.spacing,
            "order": domain.order,
            "extension": domain.extension,
            "scheme": domain.scheme.name,
            "scheme_reason": domain.scheme_reason,
            "components": domain.component_count,
            "device": str(domain.points.device),
            "dtype": str(domain.points.dtype).removeprefix("torch."),
            "cycles": self.cycles,
            "steps": self.steps,
            "residual": self.residual,
            "warnings": [*domain.warnings, *self.warnings],
        }

    def save(self, path: str | Path, *, recolour: bool = True) -> Path:
        """Write to .ply (scalar and colours), .npz, .vtu or, to look at it in a browser, .html; whole or not at all.

        Splats become splats again in .ply: all Gaussians that came, with the field as a property and in their
        colours, or, with recolour=False, in the colours that they came with.
        """
        from lamina.export import save, save_splats
        from lamina.surfaces.splats import Splats

        if Path(path).suffix.lower() == ".html":
            return self.page().save(path)
        surface = self.domain.surface
        fields = self.snapshots.T if len(self.times) > 1 else self.values
        metadata = {"times": list(self.times), **self.report()}
        if isinstance(surface, Splats) and Path(path).suffix.lower() == ".ply":
            everywhere = surface.everywhere(fields.detach())
            return save_splats(path, surface.data, everywhere, recolour=recolour, metadata=metadata)
        arrays = self._arrays() | {"values": fields, "areas": surface.areas}
        return save(path, arrays.pop("points"), arrays.pop("values"), metadata=metadata, **arrays)

    def plot(self, path: str | Path, **options: Any) -> Path:
        """Write a PNG of the surface coloured by the field; options as in lamina.view.render.render."""
        from lamina.view.render import render_png

        return render_png(path, **self._arrays(), **options)

    def animate(self, path: str | Path, **options: Any) -> Path:
        """Write the field over time as a .gif or .mp4; options as in lamina.view.animation.animate."""
        from lamina.view.animation import animate

        arrays = self._arrays() | {"values": self.snapshots.detach().cpu().numpy(), "times": self.times}
        return animate(path, **arrays, **options)

    def page(
        self,
        *,
        reference: Any = None,
        reference_name: str = "reference",
        title: str | None = None,
        band: bool = True,
        **options: Any,
    ) -> Page:
        """The viewer of this solution, one HTML page that needs nothing else; notebooks show it in place.

        reference: what to compare with: another Solution, values at domain.points, or a function of points (and of
        time, where there is one), called reference_name. title: the surface's name unless given. band: whether
        the grid can be shown. options: view, map, low, high, height as in lamina.view.page.page.
        """
        from lamina.view.page import page
        from lamina.view.scene import scene_of

        scene = scene_of(self, reference=reference, reference_name=reference_name, title=title, band=band)
        return page(scene, **options)

    def show(self, **options: Any) -> None:
        """Look at the field: in a notebook in place, otherwise in the browser. Options as in `page`."""
        from lamina.view.browse import show

        show(self.page(**options), self.domain.surface.name)

    def _arrays(self) -> dict[str, Any]:
        surface = self.domain.surface

        def array(t: Tensor):
            return t.detach().cpu().numpy()

        return {
            "points": array(surface.points),
            "values": array(self.values),
            "faces": None if surface.faces is None else array(surface.faces),
            "normals": array(surface.normals),
        }
