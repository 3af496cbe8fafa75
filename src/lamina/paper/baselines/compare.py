"""One call for every method: lamina's own, and those that it is compared with.

    lamina.baselines.solve(surface, f, "fem").values
    lamina.baselines.heat(surface, u0, 0.1, "cpm", spacing=0.05).values

| method | what it is |
|---|---|
| fem | linear elements on the surface's triangles, cotangent stiffness, consistent mass (`fem.py`) |
| fem-robust | the same with the matrices of robust_laplacian |
| cpm | the paper's closest point method: polynomial re-extension, then a solve on the shell (`paper/shell.py`) |
| closest-point | E L u - gamma (I - E) u = E f, solved by multigrid; order 4 on smooth surfaces, otherwise 2 |
| cpm-coupled | the same with order 2, as in textbooks |
| attention | the paper's method: learned extension, then a solve on the shell |
| neural | lamina with its learned reconstruction of samples |
| trace, order-3, auto | lamina at order 2, at order 3, and with its defaults |
| a trained `gino.GINO` | a neural operator; Poisson on closed surfaces only |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lamina.domain import Domain
from lamina.errors import InputError
from lamina.paper.band_domain import BandDomain
from lamina.paper.baselines.fem import SurfaceFEM
from lamina.pde.conditions import Condition, Dirichlet, Neumann
from lamina.pde.heat import heat as diffuse
from lamina.pde.poisson import poisson as solve_poisson
from lamina.surfaces.base import Surface

Field = Callable[[Tensor], Tensor] | Tensor | float
Conditions = Sequence[Condition] | Condition | None

DOMAIN_OF_METHOD: dict[str, tuple[type[Domain], dict[str, Any]]] = {
    "cpm": (BandDomain, {"scheme": "shell"}),
    "closest-point": (BandDomain, {"scheme": "coupled"}),
    "cpm-coupled": (BandDomain, {"scheme": "coupled", "order": 2}),
    "attention": (BandDomain, {"extension": "attention"}),
    "neural": (Domain, {"extension": "neural"}),
    "trace": (Domain, {"order": 2}),
    "order-3": (Domain, {"order": 3}),
    "auto": (Domain, {}),
}
DEFAULT_FEM_STEPS = 100  # Time steps of FEM unless given. Chosen by trial.
METHODS = ("fem", "fem-robust", *DOMAIN_OF_METHOD)


class TrainedOperator(Protocol):
    """A trained network that gives u for f on a surface."""

    def poisson(self, surface: Surface, f: Field) -> Tensor: ...


@dataclass(frozen=True)
class Answer:
    """The result of a method, with its cost.

    Parameters
    ----------
    values : Tensor
        Values (n,) at `surface.points`.
    unknowns : int
        The number of unknowns.
    seconds : float
        The time that the method took, including that for the geometry.
    facts : dict
        Further facts: scheme, spacing, cycles, residual, or the solver.

    Examples
    --------
    >>> import lamina
    >>> answer = lamina.baselines.solve(lamina.Sphere(level=3), lambda x: x[:, 0], "fem")
    >>> answer.unknowns, answer.facts["scheme"]
    (642, 'fem')
    """

    values: Tensor
    unknowns: int
    seconds: float
    facts: dict[str, Any]

    @property
    def cost(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "unknowns": self.unknowns, **self.facts}


def solve(
    surface: Surface,
    f: Field,
    method: str | TrainedOperator,
    conditions: Conditions = None,
    *,
    spacing: float | None = None,
    device: str = "cpu",
    **options: Any,
) -> Answer:
    """The solution of Laplacian(u) = f by a given method, with zero mean where no condition fixes u.

    Parameters
    ----------
    surface : Surface
        Where to solve. The methods by finite elements need triangles.
    f : callable, Tensor or float
        The right-hand side, as in `lamina.poisson`.
    method : str or Operator
        One of `lamina.baselines.METHODS`, or a trained operator.
    conditions : Condition or sequence of Condition, optional
        As in `lamina.poisson`. Finite elements know conditions on rims only.
    spacing : float, optional
        The spacing of the grid, as of `lamina.Domain`.
    device : str, default "cpu"
        Where to compute.
    **options
        Further options of the domain of the method, or of `SurfaceFEM`.

    Returns
    -------
    Answer
        The values at `surface.points`, and the cost.

    Raises
    ------
    InputError
        If the method is unknown, or does not suit the surface or the conditions.

    Examples
    --------
    >>> import lamina
    >>> lamina.baselines.solve(lamina.Sphere(level=3), lambda x: x[:, 0], "fem").values.shape
    torch.Size([642])
    """
    start = perf_counter()
    if not isinstance(method, str):
        if conditions is not None or options:
            raise InputError("A trained operator takes no conditions and no options; leave them out.")
        values = method.poisson(surface, f)
        return Answer(values, len(values), perf_counter() - start, {})
    if method.startswith("fem"):
        fem, right = _fem(method, surface, **options), _values(surface, f)
        held, value, flux = _on_rim(fem, surface, conditions)
        u = fem.dirichlet(right, held, value, flux=flux) if held.any() else fem.poisson(right, flux=flux)
        return Answer(torch.from_numpy(u), len(u), perf_counter() - start, {"scheme": "fem", "solver": fem.solver})
    domain = _domain(method, surface, spacing, device, options)
    u = solve_poisson(domain, f, conditions, show_progress=False, raise_on_failure=False)
    return _answer(u, start)


def heat(
    surface: Surface,
    u0: Field,
    time: float,
    method: str,
    conditions: Conditions = None,
    *,
    steps: int | None = None,
    spacing: float | None = None,
    device: str = "cpu",
    **options: Any,
) -> Answer:
    """The solution of du/dt = Laplacian(u) at a given time, by a given method.

    Parameters
    ----------
    surface : Surface
        Where to solve. The methods by finite elements need triangles.
    u0 : callable, Tensor or float
        The initial state, as in `lamina.heat`.
    time : float
        The time at which to stop.
    method : str
        One of `lamina.baselines.METHODS`.
    conditions : Condition or sequence of Condition, optional
        As in `lamina.heat`. Finite elements know conditions on rims only.
    steps : int, optional
        The number of time steps; 100 for finite elements unless given.
    spacing : float, optional
        The spacing of the grid, as of `lamina.Domain`.
    device : str, default "cpu"
        Where to compute.
    **options
        Further options of the domain of the method, or of `SurfaceFEM`.

    Returns
    -------
    Answer
        The values at `surface.points`, and the cost.

    Raises
    ------
    InputError
        If the method is unknown, or does not suit the surface or the conditions.

    Examples
    --------
    >>> import lamina
    >>> lamina.baselines.heat(lamina.Sphere(level=3), lambda x: x[:, 0], 0.1, "fem", steps=4).values.shape
    torch.Size([642])
    """
    start = perf_counter()
    if not isinstance(method, str):
        raise InputError(
            f"heat takes the name of a method: {', '.join(METHODS)}; a trained operator solves only Poisson."
        )
    if method.startswith("fem"):
        fem = _fem(method, surface, **options)
        held, value, flux = _on_rim(fem, surface, conditions)
        if flux is not None:
            raise InputError("heat by FEM takes only Dirichlet conditions on rims; use another method for a flux.")
        fixed = {"held": held, "values": value} if held.any() else {}
        u = fem.heat(_values(surface, u0), time, steps or DEFAULT_FEM_STEPS, **fixed)
        return Answer(torch.from_numpy(u), len(u), perf_counter() - start, {"scheme": "fem", "solver": fem.solver})
    domain = _domain(method, surface, spacing, device, options)
    return _answer(diffuse(domain, u0, time, conditions, steps=steps, show_progress=False), start)


def _answer(u: Any, start: float) -> Answer:
    values = u.values.cpu()
    facts = {"scheme": u.domain.scheme.name, "spacing": u.domain.spacing, "cycles": u.cycles, "residual": u.residual}
    if u.steps:
        facts["steps"] = u.steps
    return Answer(values, u.domain.unknowns, perf_counter() - start, facts)


def _domain(method: str, surface: Surface, spacing: float | None, device: str, options: dict[str, Any]) -> Domain:
    if method not in DOMAIN_OF_METHOD:
        raise InputError(f"Unknown method {method!r}; known: {', '.join(METHODS)}, or a trained operator.")
    made, chosen = DOMAIN_OF_METHOD[method][0], DOMAIN_OF_METHOD[method][1] | options
    if "extension" not in chosen and method != "auto":
        chosen["extension"] = "closest-point" if surface.exact else "jet"
    return made(surface, spacing, device=device, show_progress=False, **chosen)


def _fem(method: str, surface: Surface, **options: Any) -> SurfaceFEM:
    if surface.faces is None:
        raise InputError(f"method {method!r} needs triangles, and this {surface.representation} has none; use a mesh.")
    if method not in METHODS:
        raise InputError(f"Unknown method {method!r}; known: {', '.join(METHODS)}, or a trained operator.")
    points, faces = surface.points.cpu().numpy(), surface.faces.cpu().numpy()
    return SurfaceFEM(points, faces, robust=method == "fem-robust", **options)


def _values(surface: Surface, f: Field) -> np.ndarray:
    """f (n,) at the surface's points."""
    points = surface.points.cpu().double()
    found = f(points) if callable(f) else torch.as_tensor(f).cpu().double()
    return np.ascontiguousarray(found.expand(len(points)).numpy())


def _on_rim(
    fem: SurfaceFEM, surface: Surface, conditions: Conditions
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Where u is given (n,), its values (n,), and the flux (n,) or None."""
    held, value = np.zeros_like(fem.rim), np.zeros(len(fem.rim))
    flux = None
    given = [] if conditions is None else [conditions] if isinstance(conditions, Condition) else list(conditions)
    for c in given:
        if c.where == "rim":
            where = fem.rim
        elif c.test is not None:
            where = fem.rim & c.test(surface.points).cpu().numpy().astype(bool)
        else:
            raise InputError(f'FEM takes conditions on "rim", or on the rim where a function holds; got {c.where!r}.')
        values: Any = c.value
        if type(c) is Dirichlet:
            held, value = held | where, np.where(where, _values(surface, values), value)
        elif type(c) is Neumann:
            flux = np.where(where, _values(surface, values), 0.0 if flux is None else flux)
        else:
            raise InputError(f"FEM takes Dirichlet and Neumann conditions, got {c.name}.")
    return held, value, flux
