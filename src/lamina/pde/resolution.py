"""Data that vary faster than the grid: noticed, and the spacing that would do."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lamina.domain import Domain
from lamina.expression import as_data
from lamina.geometry.triangles import dot, unit
from lamina.schemes.base import Scheme
from lamina.schemes.trace import Trace

# A sine of three cells a wave loses about this share of its size on the grid, noise nearly all; the edge of a region
# that is ten cells wide loses less than half of it.
LOST = 0.25
# Cells for each radian of a wave with which the grid loses less than a fiftieth of it.
CELLS_PER_RADIAN = 2.0
SLOPES = 5000  # places at which the slope of data is taken


@torch.no_grad()
def lost_on_grid(
    domain: Domain,
    scheme: Scheme,
    data: Callable[[Tensor], Tensor] | Tensor | float | str,
    name: str,
    u: Callable[[], Tensor],
) -> list[str]:
    """A sentence if the grid shows little of some data: how much is lost, and the spacing that would do.

    data: as `Domain.field` takes them; u() gives these on the grid (n,). The two are compared where integrals are
    taken, and at domain.points.
    """
    data = as_data(data, name)
    if not callable(data) and torch.as_tensor(data).ndim == 0:
        return []
    field = domain.field(data, name)
    on_grid = u().detach()
    values = field(domain.points) if callable(data) else torch.as_tensor(data).to(domain.points)
    checks = [(values, domain.readout.matrix @ on_grid, domain.surface.areas)]
    if isinstance(scheme, Trace):
        one = slice(None, None, 3)  # of the three points of each piece
        checks.append((field(scheme.places)[one], scheme.at_places(on_grid, one), scheme.quadrature.weights[one]))
    worst, size, scale = 0.0, 0.0, 0.0
    for true, shown, weights in checks:
        true, weights = true.detach(), weights.detach() / weights.detach().sum()
        mean = weights @ true
        scale = max(scale, float(true.abs().max()))
        size = max(size, math.sqrt(float(weights @ (true - mean).square())))
        worst = max(worst, math.sqrt(float(weights @ (shown - true).square())))
    # A constant has nothing to lose but its rounding.
    if size <= 1e-6 * scale or worst <= LOST * size:
        return []
    enough = _spacing_for(domain, field)
    advice = f"use spacing {enough:.1g} or smaller" if enough is not None else "use a smaller spacing"
    return [
        f"{name[0].upper()}{name[1:]} varies faster than the grid of spacing {domain.spacing:g} shows: "
        f"{100 * min(1.0, worst / size):.0f}% of its variation is lost; {advice}, or smoother data."
    ]


def roughly(scheme: Scheme, field: Callable[[Tensor], Tensor], load: Tensor) -> Tensor:
    """The unknowns (n,) of a field with a known load, to the digits that a share of it needs."""
    return scheme.project(load, tolerance=1e-2) if isinstance(scheme, Trace) else scheme.sample(field)


def _spacing_for(domain: Domain, field: Callable[[Tensor], Tensor]) -> float | None:
    """The spacing that resolves the waves of a field, from its slope over its size; None if its slope is not known."""
    quadrature = domain.quadrature.detach()
    count = len(quadrature.points)
    some = torch.linspace(0, count - 1, min(count, SLOPES), device=quadrature.points.device).long()
    points, normals = quadrature.points[some], quadrature.normals[some]
    axis = torch.zeros_like(points).scatter_(1, normals.abs().argmin(1, keepdim=True), 1.0)
    first = unit(axis - dot(axis, normals)[:, None] * normals)
    here = field(points)

    def steepness(step: float) -> float:
        slopes = [(field(points + step * t) - here) / step for t in (first, torch.linalg.cross(normals, first))]
        return float(torch.stack(slopes).square().sum(0).mean().sqrt())

    steep = steepness(1e-3 * domain.spacing)
    size = float((here - here.mean()).square().mean().sqrt())
    # A step, or data known at few points, has no slope that says how fine the grid must be.
    smooth = math.isfinite(steep) and steepness(1e-4 * domain.spacing) < 1.5 * steep
    if not smooth or not steep * domain.spacing > 0.5 * size > 0:
        return None
    return size / steep / CELLS_PER_RADIAN
