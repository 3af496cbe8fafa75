"""Data that vary faster than the grid: noticed, and the spacing that would do."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lamina.domain import Domain
from lamina.expression import as_data
from lamina.geometry.frames import tangent_basis

# A sine of three cells a wave loses about this share of its size on the grid, noise nearly all; the edge of a region
# that is ten cells wide loses less than half of it.
LOST = 0.25
STARTS, DIRECTIONS, CLIMBS = 32, 8, 40  # of the search for the peak of data that are lost


@torch.no_grad()
def lost_on_grid(
    domain: Domain,
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
    if domain.has_weak_forms:
        scheme, one = domain.scheme, slice(None, None, 3)  # a few points of each piece
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


def roughly(domain: Domain, field: Callable[[Tensor], Tensor], load: Tensor) -> Tensor:
    """The unknowns (n,) of a field with a known load, to the digits that a share of it needs."""
    scheme = domain.scheme
    return scheme.project(load, tolerance=1e-2) if domain.has_weak_forms else scheme.sample(field)


def _spacing_for(domain: Domain, field: Callable[[Tensor], Tensor]) -> float | None:
    """The spacing that shows the highest peak of a field: two nodes within its half-width. None if that is no help.

    The peak is looked for from the largest values at quadrature points, by steps along the surface that are halved
    where none leads up; it may be far narrower than the distance between these points.
    """
    h, quadrature = domain.spacing, domain.quadrature.detach()
    values = field(quadrature.points).detach()
    mean = values.mean()
    start = (values - mean).abs().topk(min(len(values), STARTS)).indices
    x, normals = quadrature.points[start], quadrature.normals[start]
    first, second = tangent_basis(normals).unbind(1)
    angle = torch.arange(DIRECTIONS, device=x.device)[:, None, None] * (2 * math.pi / DIRECTIONS)
    around = angle.cos().to(x) * first + angle.sin().to(x) * second  # (8, s, 3)

    def height(points: Tensor) -> Tensor:
        return (field(points.reshape(-1, 3)) - mean).abs().reshape(points.shape[:-1])

    best, step = height(x), torch.full_like(x[:, 0], h / 4)
    for _ in range(CLIMBS):
        found, way = height(x + step[:, None] * around).max(0)
        up = found > best
        move = step[:, None] * around.gather(0, way[None, :, None].expand(1, -1, 3))[0]
        x, best = torch.where(up[:, None], x + move, x), torch.where(up, found, best)
        step = torch.where(up, step, step / 2)
    top = int(best.argmax())
    radii = h * torch.logspace(-3, 0, 31, dtype=x.dtype, device=x.device)
    low = height(x[top] + radii[:, None, None] * around[:, top]) < best[top] / 2
    fallen = low.any(1).nonzero()[:, 0]
    # Noise falls at once, and a step not within a cell: neither has a width that a grid could show.
    enough = domain.scheme.nodes_per_cell * radii / 2
    return float(enough[fallen[0]]) if len(fallen) and fallen[0] > 0 else None
