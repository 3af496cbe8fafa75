"""Warnings about data that vary faster than the grid can represent, with a spacing that would represent them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lamina.domain import Domain
from lamina.expression import as_data
from lamina.geometry.frames import tangent_basis

# A warning is given if the grid loses more than this share of the variation of some data (RMS). A sine with three cells
# a wave loses about this share, noise loses nearly all, and the edge of a region ten cells wide loses less than half of
# this share. Twice the value would let the sine pass; half of it comes close to warning of such edges.
MAX_LOST_VARIATION = 0.25
# Data count as constant if their variation is at most this share of their size: it is then only rounding.
MAX_VARIATION_OF_CONSTANT = 1e-6
# Relative tolerance of the projection of data on the grid, whose only use is to compare shares of a quarter.
PROJECTION_TOLERANCE = 1e-2
# The search for the highest peak starts from this many of the largest values, goes in this many directions, and takes
# this many steps. They were chosen by trial; fewer may miss a peak, which costs only the advice about the spacing.
PEAK_SEARCH_STARTS = 32
PEAK_SEARCH_DIRECTIONS = 8
PEAK_SEARCH_STEPS = 40
# The half-width of the peak is found among this many radii, from a thousandth of the spacing to the spacing.
PEAK_RADII = 31


@torch.no_grad()
def resolution_warnings(
    domain: Domain,
    data: Callable[[Tensor], Tensor] | Tensor | float | str,
    name: str,
    u: Callable[[], Tensor],
) -> list[str]:
    """A warning if the grid loses too much of some data: how much is lost, and the spacing that would represent them.

    data: as `Domain.field` takes them. u: a function that returns their unknowns (n,) on the grid. The two are compared
    at the points of quadrature and at domain.points.
    """
    data = as_data(data, name)
    if not callable(data) and torch.as_tensor(data).ndim == 0:
        return []
    field = domain.field(data, name)
    on_grid = u().detach()
    values = field(domain.points) if callable(data) else torch.as_tensor(data).to(domain.points)
    checks = [(values, domain.readout.matrix @ on_grid, domain.surface.areas)]
    if domain.has_weak_forms:
        scheme, some = domain.scheme, slice(None, None, 3)  # a few points of each piece
        true, shown = field(scheme.source_points)[some], scheme.at_source_points(on_grid, some)
        checks.append((true, shown, scheme.quadrature.weights[some]))
    worst, size, scale = 0.0, 0.0, 0.0
    for true, shown, weights in checks:
        true, weights = true.detach(), weights.detach() / weights.detach().sum()
        mean = weights @ true
        scale = max(scale, float(true.abs().max()))
        size = max(size, math.sqrt(float(weights @ (true - mean).square())))
        worst = max(worst, math.sqrt(float(weights @ (shown - true).square())))
    if size <= MAX_VARIATION_OF_CONSTANT * scale or worst <= MAX_LOST_VARIATION * size:
        return []
    enough = _spacing_for(domain, field)
    advice = f"use spacing {enough:.1g} or smaller" if enough is not None else "use a smaller spacing"
    return [
        f"{name[0].upper()}{name[1:]} varies faster than the grid of spacing {domain.spacing:g} shows: "
        f"{100 * min(1.0, worst / size):.0f}% of its variation is lost; {advice}, or smoother data."
    ]


def approximate_unknowns(domain: Domain, field: Callable[[Tensor], Tensor], load: Tensor) -> Tensor:
    """The unknowns (n,) of a field with a known load, with two digits."""
    scheme = domain.scheme
    return scheme.project(load, tolerance=PROJECTION_TOLERANCE) if domain.has_weak_forms else scheme.sample(field)


def _spacing_for(domain: Domain, field: Callable[[Tensor], Tensor]) -> float | None:
    """The spacing that represents the highest peak of a field, with two nodes within its half-width; None if none does.

    The search starts from the largest values at the quadrature points and takes steps along the surface, which are
    halved where no step leads up. The peak may be far narrower than the distance between these points.
    """
    h, quadrature = domain.spacing, domain.quadrature.detach()
    values = field(quadrature.points).detach()
    mean = values.mean()
    start = (values - mean).abs().topk(min(len(values), PEAK_SEARCH_STARTS)).indices
    x, normals = quadrature.points[start], quadrature.normals[start]
    first, second = tangent_basis(normals).unbind(1)
    turn = 2 * math.pi / PEAK_SEARCH_DIRECTIONS
    angle = torch.arange(PEAK_SEARCH_DIRECTIONS, device=x.device)[:, None, None] * turn
    around = angle.cos().to(x) * first + angle.sin().to(x) * second  # (8, s, 3)

    def height(points: Tensor) -> Tensor:
        return (field(points.reshape(-1, 3)) - mean).abs().reshape(points.shape[:-1])

    best, step = height(x), torch.full_like(x[:, 0], h / 4)
    for _ in range(PEAK_SEARCH_STEPS):
        found, direction = height(x + step[:, None] * around).max(0)
        up = found > best
        move = step[:, None] * around.gather(0, direction[None, :, None].expand(1, -1, 3))[0]
        x, best = torch.where(up[:, None], x + move, x), torch.where(up, found, best)
        step = torch.where(up, step, step / 2)
    top = int(best.argmax())
    radii = h * torch.logspace(-3, 0, PEAK_RADII, dtype=x.dtype, device=x.device)
    low = height(x[top] + radii[:, None, None] * around[:, top]) < best[top] / 2
    fallen = low.any(1).nonzero()[:, 0]
    # Noise falls off at once, and a plateau does not fall off within a cell: no spacing represents either.
    enough = domain.scheme.nodes_per_cell * radii / 2
    return float(enough[fallen[0]]) if len(fallen) and fallen[0] > 0 else None
