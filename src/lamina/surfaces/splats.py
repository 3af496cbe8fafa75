"""Gaussian splats: the surface that a trained radiance field shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lamina.errors import InputError
from lamina.fits.splat_samples import SplatSamples, sample_surface
from lamina.fits.surface_fit import Cloud
from lamina.fits.visibility import Gaussians
from lamina.geometry.triangles import dot
from lamina.io.export import check_extension, splat_form
from lamina.io.splat_files import SplatData
from lamina.search.neighbours import k_nearest
from lamina.surfaces.base import ClosestPoints, Surface
from lamina.surfaces.point_cloud import MIN_CLOUD_POINTS, PointCloud

# Gaussians that must be left after each filter: fewer than the points that a cloud needs show no surface.
MIN_GAUSSIANS = MIN_CLOUD_POINTS
# The largest scale of a Gaussian over the extent of all, unless max_scale is given. Larger ones are mostly background;
# chosen by trial: half drops large flat parts of a surface, double keeps more of the background.
MAX_SCALE_OVER_EXTENT = 0.1
# A Gaussian floats apart if its neighbour of this rank is farther than MAX_FLOATER_RATIO times the median of that
# distance over all. Chosen by trial: with fewer neighbours groups of floaters stay, with more thin parts are lost.
FLOATER_NEIGHBOURS = 8
MAX_FLOATER_RATIO = 8.0  # at half sparse parts of a surface are dropped, at double more floaters stay
# A Gaussian belongs to the surface if its centre is at most this many of its own sizes (or pixels, if these are larger)
# off the surface. Chosen by trial: at half noisy Gaussians of the surface are lost, at double some below it are kept.
MAX_OFFSET_OVER_SIZE = 2.0
# A Gaussian counts as flat if its shortest axis is less than this share of the middle one. Only a note depends on it,
# which compares the shortest axes of flat Gaussians with the normals.
MAX_FLAT_AXIS_RATIO = 0.3
# Gaussians whose mean displacement moves a sample of the surface. At half gradients are less smooth over the surface,
# at double they are blurred over a wider neighbourhood.
CARRYING_GAUSSIANS = 12
MIN_CARRYING_WEIGHT = 1e-3  # of the farthest of them, so that the weights of a sample never vanish together
# Share of the stopped rays that must meet one of a few large connected pieces: with less there is no surface.
# Chosen by trial: at half fog is taken for a surface, at double (all rays) hardly any scene passes.
MIN_CONNECTED_SHARE = 0.5


class Splats(PointCloud):
    """The surface that Gaussian splats show, as in a trained radiance field.

    The surface is where half of the light of rays from all directions is stopped. It is fitted over neighbourhoods as
    wide as the footprints of the Gaussians, and the normals are those of the fit. `points` are the closest points on it
    of the m Gaussians that belong to it, and `kept` (m,) are their numbers. `dropped` counts the others by reason: not
    finite, faint, large, round, apart (without neighbours), hidden (below the surface) and off (not on the surface).

    Parameters
    ----------
    centres : Tensor
        Centres (n, 3). If they require gradients, everything that is computed on the splats has them; see the notes.
    scales : Tensor
        Scales (n, 3), as lengths.
    rotations : Tensor
        Rotations (n, 4), as quaternions (w, x, y, z).
    opacities : Tensor
        Opacities (n,).
    colours : Tensor, optional
        Colours (n, 3) in 0..1.
    min_opacity : float, default 0.05
        Gaussians of a smaller opacity are faint.
    max_scale : float, optional
        Gaussians with a larger scale are large; by default a tenth of the extent.
    min_flatness : float, default 0.0
        Gaussians of a smaller flatness, 1 - shortest / middle axis, are round.
    min_light : float, default 0.1
        Gaussians that a smaller share of the light reaches, in all but a few views, are hidden.
    name : str, default "splats"
        What reports call the splats.
    data : SplatData, optional
        The contents of the file, if the splats come from one.

    Raises
    ------
    InputError
        If the arrays have wrong shapes or values, or if the Gaussians show no surface.

    Notes
    -----
    With gradients, the surface moves with the Gaussians that are nearest to it, by their mean displacement. Which
    Gaussians show the surface, and their footprints, are constants.

    Examples
    --------
    Rays are traced through the Gaussians, which takes seconds:

    >>> import torch, lamina
    >>> centres = lamina.Sphere(level=4).points
    >>> scales, rotations = torch.full((2562, 3), 0.07), torch.tensor([[1.0, 0.0, 0.0, 0.0]]).expand(2562, 4)
    >>> lamina.Splats(centres, scales, rotations, torch.full((2562,), 0.9)).component_count  # doctest: +SKIP
    1
    """

    representation = "splats"

    def __init__(
        self,
        centres: Tensor,
        scales: Tensor,
        rotations: Tensor,
        opacities: Tensor,
        colours: Tensor | None = None,
        *,
        min_opacity: float = 0.05,
        max_scale: float | None = None,
        min_flatness: float = 0.0,
        min_light: float = 0.1,
        name: str = "splats",
        data: SplatData | None = None,
    ) -> None:
        Surface.__init__(self, name)
        live = centres if isinstance(centres, Tensor) and centres.requires_grad else None
        centres = centres if live is None else live.detach()
        centres, scales, rotations, opacities = _checked(centres, scales, rotations, opacities)
        self.data = data or _described(centres, scales, rotations, opacities, colours)
        self.dropped: dict[str, int] = {}
        kept = self._filtered(centres, scales, rotations, opacities, min_opacity, max_scale, min_flatness)
        axes = axes_of(rotations[kept])
        covariances = (axes * scales[kept, None] ** 2) @ axes.transpose(1, 2)
        seen = sample_surface(Gaussians(centres[kept], covariances, opacities[kept]), _extent(centres[kept]))
        if len(seen.points) < MIN_CLOUD_POINTS or seen.connected_share < MIN_CONNECTED_SHARE:
            raise InputError(
                f"{len(kept)} Gaussians show no surface: {seen.connected_share:.0%} of the rays that they stop meet a "
                f"connected piece, expected at least {MIN_CONNECTED_SHARE:.0%}; give dense splats of an object."
            )
        self._adopt(PointCloud(seen.points, seen.normals))
        lit = ~(seen.light < min_light)  # NaN where no ray met a Gaussian: it may be on the surface
        self.dropped["hidden"] = int((~lit).sum())
        kept, axes = kept[lit], axes[lit]
        kept, axes = self._on_surface(centres, scales, kept, axes, seen)
        self.kept = kept
        if live is not None:
            self._follow(live)
        self._report(scales[kept], axes)

    def _follow(self, centres: Tensor) -> None:
        """Let the samples of the surface move with the centres (n, 3) of the Gaussians."""
        own = centres.to(self.points)[self.kept]
        near, distance = k_nearest(own.detach(), min(CARRYING_GAUSSIANS, len(own)), self._unique)
        farthest = distance[:, -1:].clamp_min(torch.finfo(own.dtype).tiny)
        weight = (1 - (distance / farthest) ** 2).clamp_min(MIN_CARRYING_WEIGHT)
        moved = torch.einsum("sk,skc->sc", weight / weight.sum(1, keepdim=True), (own - own.detach())[near])
        self.tracked = True
        fit = self.fit
        with torch.enable_grad():
            cloud = Cloud(fit.cloud.points + moved[self._kept], fit.cloud.normals, fit.cloud.component)
            near = cloud.neighbours(torch.arange(len(cloud.points), device=own.device), fit.choice.settings.k)
            jets = fit.jets.moving_as(cloud.fit(near, fit.choice.settings))
        self._live = replace(fit, cloud=cloud, jets=jets)
        self._moved_by = own

    @property
    def positions(self) -> Tensor:
        """`points`, which are feet of the centres and move with them, with the gradients of the centres."""
        if not (self.tracked and torch.is_grad_enabled()):
            return self.points
        return self.points + (self._moved_by - self._moved_by.detach()).to(self.points)

    @classmethod
    def from_data(cls, data: SplatData, **options: Any) -> Self:
        """Splats of the data of a file, in float64; options: the keyword arguments of the class."""
        arrays = (data.centres, data.scales, data.rotations, data.opacities, data.colours)
        return cls(*(torch.from_numpy(a.astype(np.float64)) for a in arrays), data=data, **options)

    @property
    def centres(self) -> Tensor:
        """Centres (m, 3) of the Gaussians that belong to the surface."""
        return torch.from_numpy(self.data.centres).to(self.points)[self.kept]

    def everywhere(self, values: Tensor) -> Tensor:
        """Values (n,) or (n, k) at all Gaussians from values (m,) or (m, k) at `points`.

        A dropped Gaussian takes the value of the nearest one that was kept."""
        centres = torch.from_numpy(np.nan_to_num(self.data.centres, posinf=0, neginf=0)).to(self.points)
        nearest = k_nearest(centres[self.kept], 1, centres)[0][:, 0]
        nearest[self.kept] = torch.arange(len(self.kept), device=nearest.device)
        return values[nearest]

    def sample(self, count: int, seed: int = 0) -> ClosestPoints:
        """count random samples of those that the surface was fitted to, which are even by area."""
        cloud = self.fit.cloud
        have = len(cloud.points)
        if count > have:
            raise InputError(f"{count} samples were asked of splats with {have}; ask for at most {have}.")
        rows = torch.randperm(have, generator=torch.Generator().manual_seed(seed))[:count].to(cloud.points.device)
        return ClosestPoints(cloud.points[rows], cloud.normals[rows], cloud.component[rows])

    def _filtered(
        self,
        centres: Tensor,
        scales: Tensor,
        rotations: Tensor,
        opacities: Tensor,
        min_opacity: float,
        max_scale: float | None,
        min_flatness: float,
    ) -> Tensor:
        """Rows of the Gaussians that may form a surface; fills `dropped`."""
        whole = torch.cat([centres, scales, rotations, opacities[:, None]], 1)
        rows = self._drop(torch.arange(len(whole), device=whole.device), torch.isfinite(whole).all(1), "not finite")
        rows = self._drop(rows, opacities[rows] >= min_opacity, "faint")
        if max_scale is None and len(rows):
            max_scale = MAX_SCALE_OVER_EXTENT * _extent(centres[rows])
        rows = self._drop(rows, scales[rows].amax(1) <= (max_scale or 0), "large")
        if min_flatness > 0:
            shortest, middle, _ = scales[rows].sort(1).values.unbind(1)
            rows = self._drop(rows, shortest <= (1 - min_flatness) * middle, "round")
        if len(rows) > FLOATER_NEIGHBOURS:
            away = k_nearest(centres[rows], FLOATER_NEIGHBOURS + 1)[1][:, -1]
            rows = self._drop(rows, away <= MAX_FLOATER_RATIO * away.median(), "apart")
        return rows

    def _drop(self, rows: Tensor, good: Tensor, why: str) -> Tensor:
        """The rows (k,) that are good (k,); the others are counted under why. Raises InputError if too few are left."""
        left = rows[good]
        self.dropped[why] = len(rows) - len(left)
        if len(left) < MIN_GAUSSIANS:
            raise InputError(
                f"{len(left)} Gaussians are left of {len(self.data)} ({_listed(self.dropped)}); a surface needs at "
                f"least {MIN_GAUSSIANS}: give more, or filter less (min_opacity, max_scale, min_flatness, min_light)."
            )
        return left

    def _adopt(self, samples: PointCloud) -> None:
        """Take over the samples of a point cloud, their components and areas, and its fit."""
        self._unique, self._normals = samples._unique, samples._normals
        self._component, self._kept = samples._component, samples._kept
        self._sample_areas = torch.zeros_like(self._unique[:, 0]).index_add_(0, samples._unique_of, samples.areas)
        self.notes.extend(note for note in samples.notes if not note.startswith("Normals"))
        self._fit = samples.fit

    def _on_surface(
        self, centres: Tensor, scales: Tensor, kept: Tensor, axes: Tensor, seen: SplatSamples
    ) -> tuple[Tensor, Tensor]:
        """Fill points, normals, areas and components with those at the feet of kept Gaussians that lie on the surface.

        Returns the numbers (m,) of these Gaussians and their axes (m, 3, 3).
        """
        feet = self.closest_points(centres[kept])
        offset = centres[kept] - feet.points
        near = dot(offset, offset).sqrt() <= MAX_OFFSET_OVER_SIZE * scales[kept].median(1).values.clamp_min(seen.pixel)
        near &= k_nearest(self.fit.cloud.points, 1, feet.points)[1][:, 0] <= seen.pixel  # farther ones are beyond a rim
        left = self._drop(kept, near, "off")
        self.points, self.normals, self.component = feet.points[near], feet.normals[near], feet.component[near]
        self._unique_of = k_nearest(self._unique, 1, self.points)[0][:, 0]
        owner = k_nearest(self.points, 1, self._unique)[0][:, 0]
        self.areas = torch.zeros_like(self.points[:, 0]).index_add_(0, owner, self._sample_areas)
        return left, axes[near]

    def _report(self, scales: Tensor, axes: Tensor) -> None:
        dropped = {why: count for why, count in self.dropped.items() if count}
        listed = f"; left out: {_listed(dropped)}" if dropped else ""
        self.notes.append(f"{len(self.kept)} of {len(self.data)} Gaussians form the surface{listed}.")
        order = scales.sort(1)
        flat = order.values[:, 0] < MAX_FLAT_AXIS_RATIO * order.values[:, 1]
        if bool(flat.any()):
            shortest = axes.gather(2, order.indices[:, :1, None].expand(-1, 3, 1))[..., 0]
            angle = torch.rad2deg(dot(shortest, self.normals).abs().clamp(max=1).arccos())[flat].median()
            self.notes.append(
                f"The shortest axes of flat Gaussians are {angle:.0f} degrees (median) off the normals of the "
                "surface, which are used."
            )


def _checked(*tensors: Tensor) -> list[Tensor]:
    """Centres, scales, rotations and opacities of one length, precision and device."""
    centres = torch.as_tensor(tensors[0])
    if not centres.is_floating_point():
        centres = centres.double()
    checked = [torch.as_tensor(t).to(centres) for t in tensors]
    n = len(centres) if centres.ndim else 0
    expected = ((n, 3), (n, 3), (n, 4), (n,))
    for name, tensor, shape in zip(("centres", "scales", "rotations", "opacities"), checked, expected, strict=True):
        if tuple(tensor.shape) != shape:
            raise InputError(f"Splats got {name} of shape {tuple(tensor.shape)}; expected {shape}.")
    return checked


def _described(
    centres: Tensor, scales: Tensor, rotations: Tensor, opacities: Tensor, colours: Tensor | None
) -> SplatData:
    colours = torch.full_like(centres, 0.5) if colours is None else torch.as_tensor(colours).to(centres)
    if colours.shape != centres.shape:
        raise InputError(f"Splats got colours of shape {tuple(colours.shape)}; expected {tuple(centres.shape)}.")

    def array(t: Tensor) -> NDArray:
        return t.detach().cpu().numpy().astype(np.float32)

    return SplatData(array(centres), array(scales), array(rotations), array(opacities), array(colours))


def axes_of(q: Tensor) -> Tensor:
    """Rotation matrices (n, 3, 3), whose columns are the axes, of quaternions (w, x, y, z) (n, 4) of any length."""
    w, x, y, z = (q / q.norm(dim=1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)).unbind(1)
    rows = [
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    ]
    return torch.stack([torch.stack(row, 1) for row in rows], 1)


def _extent(centres: Tensor) -> float:
    """Diagonal of the box that holds the middle 96 % of the centres in each direction."""
    ordered = centres.sort(0).values
    ends = [round(part * (len(ordered) - 1)) for part in (0.02, 0.98)]
    return float((ordered[ends[1]] - ordered[ends[0]]).norm())


def _listed(dropped: dict[str, int]) -> str:
    return ", ".join(f"{count} {why}" for why, count in dropped.items())


def writes_splats(surface: Surface, path: str | Path) -> TypeGuard[Splats]:
    """Whether a field on the surface is written to the path as Gaussians.

    Raises InputError, with the extensions that can be written, if the path has none of them.
    """
    splats = isinstance(surface, Splats)
    check_extension(path, splats=splats)
    return splats and splat_form(path) is not None


def own_formats(surface: Surface) -> list[str]:
    """The extension, other than ply, of the format that Gaussians were read from; none for other surfaces."""
    return [surface.data.form] if isinstance(surface, Splats) and surface.data.form != "ply" else []
