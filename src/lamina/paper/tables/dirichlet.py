"""Heat to its steady state on a head cut at the neck, with Dirichlet conditions on the cut, against refined FEM.

"standard": u is 0 initially and 1 on the cut, so that the steady state is 1. "fancy": u is -g initially and g on the
cut, g = sin(k atan2(x, z)); the paper does not say its k, here it is 3. Errors are over the range of the boundary
values and the initial state. The cases t = 0.1 are states before the steady one, which the paper does not show.

The explicit steps of the paper's scheme, u <- B u + c, have the steady state (I - B) u = c. GMRES finds it without the
hundred thousand steps that lead there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from time import perf_counter

import numpy as np
import torch
from scipy.sparse.linalg import aslinearoperator, gmres
from torch import Tensor

from lamina.errors import InputError, SolveError
from lamina.metrics import errors
from lamina.paper.band_domain import BandDomain
from lamina.paper.baselines.compare import Answer, heat
from lamina.paper.baselines.fem import SurfaceFEM
from lamina.paper.baselines.reference import Reference, solve_until_settled
from lamina.paper.explicit_euler import STEP_PER_SQUARED_SPACING, clamp
from lamina.paper.tables import published_numbers
from lamina.paper.tables.method_rows import PAPER_SPACING, Shape, label, read, shape_of
from lamina.paper.tables.table import Row, Setting, Table
from lamina.pde.conditions import Condition, Dirichlet
from lamina.surfaces.base import Surface
from lamina.surfaces.mesh import Mesh

Function = Callable[[Tensor], Tensor]
STEADY_TIME = 60.0  # The slowest mode of the head decays like exp(-t): after this time the state is steady to rounding.


def sine(p: Tensor) -> Tensor:
    return torch.sin(3 * torch.atan2(p[:, 0], p[:, 2]))


DIRICHLET_CASES: dict[str, tuple[Function, Function, float, float]] = {  # initial state, values on the rim, time, range
    "standard": (lambda p: torch.zeros_like(p[:, 0]), lambda p: torch.ones_like(p[:, 0]), STEADY_TIME, 1.0),
    "fancy": (lambda p: -sine(p), sine, STEADY_TIME, 2.0),
    "standard, t = 0.1": (lambda p: torch.zeros_like(p[:, 0]), lambda p: torch.ones_like(p[:, 0]), 0.1, 1.0),
    "fancy, t = 0.1": (lambda p: -sine(p), sine, 0.1, 2.0),
}


def rows(setting: Setting) -> list[Row]:
    made: list[Row] = [
        {"method": published_numbers.OURS, "case": c, "nrmse": v} for c, v in published_numbers.DIRICHLET.items()
    ]
    shape = _half_sphere() if setting.quick else read(setting, "paper/maxplanck_cut.ply")
    for case, (initial, value, time, extent) in DIRICHLET_CASES.items():
        if setting.quick and case != "fancy":
            continue
        exact = _reference(shape, initial, value, time, extent, setting)
        held = Dirichlet("rim", value)
        runs = [
            ("attention", PAPER_SPACING),
            ("cpm", PAPER_SPACING),
            ("coupled", PAPER_SPACING),
            ("trace", PAPER_SPACING),
            ("trace", 0.02),
        ]
        for method, spacing in runs[::3] if setting.quick else [*runs, ("fem", PAPER_SPACING)]:
            row: Row = {"method": label(method, spacing), "case": case, "reference_change": exact.change}
            setting.report(0.0, f"{case}: {row['method']}")
            try:
                answer = _solve(method, shape, initial, held, time, 4 * spacing if setting.quick else spacing, setting)
            except (InputError, SolveError) as error:
                made.append(row | {"failed": str(error)})
                continue
            found = errors(answer.values, exact.values, extent=extent).as_dict()
            made.append(row | found | answer.cost)
    return made


def _solve(
    method: str, shape: Shape, initial: Function, held: Condition, time: float, spacing: float, setting: Setting
) -> Answer:
    surface = shape.mesh()
    if method in ("attention", "cpm") and time == STEADY_TIME:
        return steady_explicit(method, surface, held, spacing, setting.device)
    steps = 60 if time == STEADY_TIME and method != "fem" else None
    device = "cpu" if method == "fem" else setting.device
    return heat(surface, initial, time, method, held, spacing=spacing, steps=steps, device=device)


def steady_explicit(method: str, surface: Surface, held: Condition, spacing: float, device: str) -> Answer:
    """The steady state of explicit steps of the shell scheme. Raises SolveError if GMRES does not find it."""
    start = perf_counter()
    domain = BandDomain(surface, spacing, scheme="shell", device=device, show_progress=False,
                    extension="attention" if method == "attention" else "closest-point")  # fmt: skip
    hold = clamp(domain, held)
    assert hold is not None
    dt = STEP_PER_SQUARED_SPACING * domain.spacing**2
    zero = torch.zeros(domain.unknowns, dtype=torch.float64, device=domain.points.device)
    right = hold.step(zero, dt, 0.0)

    def without_step(x: np.ndarray) -> np.ndarray:
        u = torch.from_numpy(x).to(zero)
        return (u - hold.step(u, dt, 0.0) + right).cpu().numpy()

    count = domain.unknowns
    A = aslinearoperator(_Map((count, count), without_step))
    x, info = gmres(A, right.cpu().numpy(), rtol=1e-8, restart=200, maxiter=15)
    if info:
        raise SolveError("GMRES did not find the steady state of the explicit steps in 3000 iterations.")
    values = (domain.readout @ hold(torch.from_numpy(x).to(zero), 0.0)).cpu()
    facts = {"scheme": "shell", "spacing": domain.spacing}
    return Answer(values, count, perf_counter() - start, facts)


@dataclass(frozen=True)
class _Map:
    """A linear map given by its product with vectors, for scipy."""

    shape: tuple[int, int]
    matvec: Callable[[np.ndarray], np.ndarray]
    dtype: type = np.float64


def _reference(
    shape: Shape, initial: Function, value: Function, time: float, extent: float, setting: Setting
) -> Reference:
    setting.report(0.0, f"{shape.name}: reference")

    def at_vertices(V: np.ndarray, F: np.ndarray) -> np.ndarray:
        p = torch.from_numpy(V)
        if time == STEADY_TIME:
            fem = SurfaceFEM(V, F)
            return fem.dirichlet(np.zeros(len(V)), fem.rim, value(p).numpy())
        fem = SurfaceFEM(V, F, solver="cholespy" if find_spec("cholespy") else "auto")  # one factor for all steps
        return fem.heat(initial(p).numpy(), time, 200, held=fem.rim, values=value(p).numpy())

    max_vertices = 20_000 if setting.quick else 1_500_000 if time == STEADY_TIME else 100_000
    return solve_until_settled(
        shape.V.numpy(), shape.F.numpy(), at_vertices, tolerance=1e-5, max_vertices=max_vertices, extent=extent
    )


def _half_sphere() -> Shape:
    from lamina.surfaces.icosphere import icosphere

    V, F = icosphere(4)
    V = V[:, [0, 2, 1]]
    used, corner = torch.unique(F[(V[F][:, :, 1] > -1e-9).all(1)], return_inverse=True)
    return shape_of(Mesh(V[used], corner), "hemisphere")


TABLES = (
    Table("dirichlet", "Heat on the cut head with values held on the cut", ("nrmse", "seconds"), rows, needs_data=True),
)
