"""Problems with exact solutions, for tests, benchmarks and documentation.

On the sphere the solutions are spherical harmonics. On another surface {phi = 0} the solution is a smooth function g of
space, and the right-hand side is its surface Laplacian (a manufactured solution).

>>> problem = sphere_poisson()
>>> surface = problem.surface()
>>> f, u = problem.rhs(surface.points), problem.solution(surface.points)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lamina.surfaces.analytic import Ellipsoid, Sphere, Torus
from lamina.surfaces.base import Surface
from lamina.surfaces.clipped import clip

Function = Callable[[Tensor], Tensor]  # points (n, 3) -> values (n,)


@dataclass(frozen=True)
class Problem:
    """Lap u = rhs on a closed surface, where u is known up to a constant.

    rhs has zero mean over the surface. The expressions are formulas for the command line, if there are short ones.
    """

    name: str
    surface: Callable[..., Surface]  # makes the surface; keywords as for its class (the sphere's level)
    solution: Function
    rhs: Function
    solution_expression: str | None = None
    rhs_expression: str | None = None


@dataclass(frozen=True)
class RimProblem:
    """Lap u = rhs on an open surface, with flux du/dn through its rim."""

    name: str
    surface: Callable[..., Surface]
    solution: Function
    rhs: Function
    flux: Function  # at points of the rim; n is the tangent that points off the surface


@dataclass(frozen=True)
class HeatProblem:
    """du/dt = Lap u on a closed surface, u = initial at t = 0."""

    name: str
    surface: Callable[..., Surface]
    initial: Function
    solution: Callable[[Tensor, float], Tensor]  # points (n, 3), time -> values (n,)
    initial_expression: str | None = None
    solution_expression: str | None = None


def sphere_poisson() -> Problem:
    """Unit sphere, u = xyz + (x^2 - y^2)/2.

    Harmonics of degree l have Lap Y = -l (l + 1) Y: here degrees 3 and 2, eigenvalues -12 and -6.
    """

    def solution(p: Tensor) -> Tensor:
        x, y, z = p.unbind(-1)
        return x * y * z + (x**2 - y**2) / 2

    def rhs(p: Tensor) -> Tensor:
        x, y, z = p.unbind(-1)
        return -12 * x * y * z - 3 * (x**2 - y**2)

    return Problem("sphere", Sphere, solution, rhs, "x*y*z + (x^2 - y^2)/2", "-12*x*y*z - 3*(x^2 - y^2)")


def hemisphere_poisson() -> RimProblem:
    """Upper half of the unit sphere, u = xyz + xy + x + z: harmonics of degrees 3, 2, 1 and 1; on the rim n = -z."""

    def solution(p: Tensor) -> Tensor:
        x, y, z = p.unbind(-1)
        return x * y * z + z + x + x * y

    def rhs(p: Tensor) -> Tensor:
        x, y, z = p.unbind(-1)
        return -12 * x * y * z - 2 * z - 2 * x - 6 * x * y

    def flux(p: Tensor) -> Tensor:
        return -(p[..., 0] * p[..., 1] + 1)

    return RimProblem("hemisphere", lambda: clip(Sphere(), lambda p: p[:, 2]), solution, rhs, flux)


def torus_poisson(R: float = 1.0, r: float = 0.4) -> Problem:
    """Torus, u = sin(2x) cos(1.5y) + z."""

    def phi(p: Tensor) -> Tensor:
        x, y, z = p.unbind(-1)
        return ((x**2 + y**2).sqrt() - R) ** 2 + z**2 - r**2

    return manufactured("torus", partial(Torus, R, r), phi, _wave)


def ellipsoid_poisson(a: float = 1.0, b: float = 0.8, c: float = 0.6) -> Problem:
    """Ellipsoid, u = sin(2x) cos(1.5y) + z."""

    def phi(p: Tensor) -> Tensor:
        x, y, z = p.unbind(-1)
        return (x / a) ** 2 + (y / b) ** 2 + (z / c) ** 2 - 1

    return manufactured("ellipsoid", partial(Ellipsoid, a, b, c), phi, _wave)


def sphere_heat() -> HeatProblem:
    """Unit sphere, u = exp(-6t) xy: a harmonic of degree 2."""

    def initial(p: Tensor) -> Tensor:
        return p[..., 0] * p[..., 1]

    def solution(p: Tensor, time: float) -> Tensor:
        return math.exp(-6 * time) * initial(p)

    return HeatProblem("sphere heat", Sphere, initial, solution, "x*y", "exp(-6*t)*x*y")


def manufactured(name: str, surface: Callable[..., Surface], phi: Function, solution: Function) -> Problem:
    """The problem on {phi = 0} that `solution`, a smooth function of space, solves."""
    return Problem(name, surface, solution, partial(surface_laplacian, solution, phi))


def surface_laplacian(g: Function, phi: Function, x: Tensor) -> Tensor:
    """Laplacian (n,) of the restriction of g to the surface {phi = 0}, at its points x (n, 3).

    With n = grad phi / |grad phi| and P = I - n n^T,

        Lap_S g = tr(P Hess g) - (div n) (n . grad g),   div n = tr(P Hess phi) / |grad phi|

    (Xu and Zhao, "An Eulerian formulation for solving partial differential equations along a moving
    interface", J. Sci. Comput. 2003). The derivatives are exact, by automatic differentiation; g and phi must act on
    each row of their argument separately. They are computed in float64 and returned in the precision of x.
    """
    grad_g, hess_g = _derivatives(g, x)
    grad_phi, hess_phi = _derivatives(phi, x)
    length = grad_phi.norm(dim=1)
    n = grad_phi / length[:, None]
    divergence = _tangential_trace(hess_phi, n) / length
    return (_tangential_trace(hess_g, n) - divergence * (n * grad_g).sum(1)).to(x.dtype)


def _derivatives(g: Function, x: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients (n, 3) and Hessians (n, 3, 3) of g at x (n, 3), in float64."""
    with torch.enable_grad():
        x = x.detach().double().requires_grad_()
        # The zero keeps x in the graph if g is linear or constant, so that its derivatives are 0.
        total = (g(x) + 0 * (x * x).sum(-1)).sum()
        (gradient,) = torch.autograd.grad(total, x, create_graph=True)
        rows = [torch.autograd.grad(column.sum(), x, retain_graph=True)[0] for column in gradient.unbind(1)]
    return gradient.detach(), torch.stack(rows, 1)


def _tangential_trace(H: Tensor, n: Tensor) -> Tensor:
    """tr(P H) = tr H - n . H n for H (m, 3, 3) and unit vectors n (m, 3)."""
    return torch.einsum("mii->m", H) - torch.einsum("mi,mij,mj->m", n, H, n)


def _wave(p: Tensor) -> Tensor:
    x, y, z = p.unbind(-1)
    return torch.sin(2 * x) * torch.cos(1.5 * y) + z
