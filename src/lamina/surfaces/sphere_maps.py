"""The analytic sphere maps of Williamson and Mitra (2025), "Spherical neural surfaces": radii over the unit sphere.

With the polar angle u of s and its azimuth v, w = (u (pi - u))^2, each surface is a r(u, v) s with

    spike        1 + 0.4 sin^2(u) sin(6 u) sin(6 v)
    starfruit    1 + 0.5 (cos^2(u) + 0.1 w sin^2(5 v + 2 u))
    flower       1 + 0.3 w (0.4 cos^2(18 u) + 0.6 sin^2(6 v + 18 u))
    tree         1 + 0.05 (2 u^3 sin^2(6 u) + 0.6 w sin^2(6 v + 6 u^2))
    bobbly       1 + 0.1 w (0.4 cos^2(12 u) + 0.4 sin^2(12 v + 6 u)), called laundryball too
    finespiral   1 + 0.5 (cos^2(u) + 0.1 w sin^2(v + 12 u)), called spiralegg too

and a = 1, except for the small ones: 0.772 for smallspike, 0.366 for smallflower, 0.301 for smalltree, 0.679 for
smallbobble. The formulas are those of the authors' repository romyjw/sns (MIT licence, by Romy Williamson). At the
poles all surfaces but the spike have a tangent plane but no curvature.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from lamina.surfaces.spherical_map import SphericalMap

Radius = Callable[[Tensor, Tensor, Tensor], Tensor]  # of u, cos v, sin v


def _spike(u: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return 1 + 0.4 * torch.sin(u) ** 2 * torch.sin(6 * u) * _wave(c, d, 6, torch.zeros_like(u))


def _starfruit(u: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return 1 + 0.5 * (torch.cos(u) ** 2 + 0.1 * _bump(u) * _wave(c, d, 5, 2 * u) ** 2)


def _flower(u: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return 1 + 0.3 * _bump(u) * (0.4 * torch.cos(18 * u) ** 2 + 0.6 * _wave(c, d, 6, 18 * u) ** 2)


def _tree(u: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return 1 + 0.05 * (2 * u**3 * torch.sin(6 * u) ** 2 + 0.6 * _bump(u) * _wave(c, d, 6, 6 * u**2) ** 2)


def _bobbly(u: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return 1 + 0.1 * _bump(u) * (0.4 * torch.cos(12 * u) ** 2 + 0.4 * _wave(c, d, 12, 6 * u) ** 2)


def _finespiral(u: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return 1 + 0.5 * (torch.cos(u) ** 2 + 0.1 * _bump(u) * _wave(c, d, 1, 12 * u) ** 2)


SPHERE_MAPS: dict[str, tuple[Radius, float, int]] = {  # radius, size a, and level of the samples
    "spike": (_spike, 1.0, 5),
    "smallspike": (_spike, 0.772, 5),
    "starfruit": (_starfruit, 1.0, 5),
    "flower": (_flower, 1.0, 6),
    "smallflower": (_flower, 0.366, 6),
    "tree": (_tree, 1.0, 6),
    "smalltree": (_tree, 0.301, 6),
    "bobbly": (_bobbly, 1.0, 6),
    "smallbobble": (_bobbly, 0.679, 6),
    "laundryball": (_bobbly, 1.0, 6),
    "finespiral": (_finespiral, 1.0, 6),
    "spiralegg": (_finespiral, 1.0, 6),
}


def sphere_map(name: str, level: int | None = None) -> SphericalMap:
    """The surface of that name, with samples at the vertices of an icosphere of that level."""
    radius, size, own = SPHERE_MAPS[name]

    def place(s: Tensor) -> Tensor:
        return (size * radius(*_angles(s)))[:, None] * s

    return SphericalMap(place, level=own if level is None else level, name=name)


def _angles(s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """u, cos v, sin v of unit vectors (n, 3).

    The distance to the axis is held constant very near the poles, so that derivatives stay finite.
    """
    x, y, z = s.unbind(1)
    rho = (x * x + y * y).clamp_min(torch.finfo(s.dtype).eps ** 1.25).sqrt()
    return torch.atan2(rho, z), x / rho, y / rho


def _wave(c: Tensor, d: Tensor, k: int, a: Tensor) -> Tensor:
    """sin(k v + a) = Im (c + i d)^k exp(i a), c = cos v, d = sin v."""
    real, imaginary = torch.ones_like(c), torch.zeros_like(c)
    for _ in range(k):
        real, imaginary = real * c - imaginary * d, real * d + imaginary * c
    return imaginary * torch.cos(a) + real * torch.sin(a)


def _bump(u: Tensor) -> Tensor:
    return (u * (math.pi - u)) ** 2
