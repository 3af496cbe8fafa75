"""The inverse problem of the paper: recover the strength of a source from its temperature, by gradients of the solver.

A source h s(x) on a torus, where s is a bump, gives the temperature u with Lap u - u = -h s. u is given for h = 1, and
h is recovered from the start value 0.8. Gradients go through the whole solve. The method is L-BFGS with at most 20
iterations.
"""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor

from lamina.paper.baselines.compare import DOMAIN_OF_METHOD
from lamina.paper.tables import published_numbers
from lamina.paper.tables.method_rows import METHOD_LABELS
from lamina.paper.tables.table import Row, Setting, Table
from lamina.pde.poisson import poisson
from lamina.surfaces.analytic import Torus

INVERSE_CASE = "h from 0.8 to 1"


def bump(p: Tensor) -> Tensor:
    return torch.exp(-8 * (p - p.new_tensor([1.4, 0.0, 0.0])).square().sum(1))


def recovered_strength(method: str, spacing: float, device: str) -> Row:
    start = perf_counter()
    made, options = DOMAIN_OF_METHOD[method]
    domain = made(Torus(1.0, 0.4), spacing, device=device, show_progress=False, **options)

    def temperature(h: Tensor | float) -> Tensor:
        f = (lambda p: -h * bump(p)) if method == "attention" else -h * bump(domain.points)
        return poisson(domain, f, screening=1.0, tolerance=1e-10, show_progress=False).values

    target = temperature(1.0).detach()
    h = torch.tensor(0.8, dtype=torch.float64, device=device, requires_grad=True)
    optimiser = torch.optim.LBFGS([h], max_iter=20, tolerance_grad=1e-14, tolerance_change=1e-16)
    scale, calls = float(target.square().sum()), 0

    def loss() -> float:
        nonlocal calls
        calls += 1
        optimiser.zero_grad()
        value = (temperature(h) - target).square().sum() / scale
        value.backward()
        return float(value.detach())

    optimiser.step(loss)
    value = float(h.detach())
    return {"h": value, "off": abs(value - 1), "evaluations": calls, "seconds": perf_counter() - start,
            "unknowns": domain.unknowns}  # fmt: skip


def rows(setting: Setting) -> list[Row]:
    made: list[Row] = [
        {
            "method": published_numbers.OURS,
            "case": INVERSE_CASE,
            "h": published_numbers.INVERSE,
            "off": published_numbers.INVERSE - 1,
        }
    ]
    for method in ("attention", "closest-point", "trace"):
        setting.report(0.0, METHOD_LABELS[method])
        spacing = 0.2 if setting.quick else 0.05
        made.append(
            {
                "method": METHOD_LABELS[method],
                "case": INVERSE_CASE,
                **recovered_strength(method, spacing, setting.device),
            }
        )
    return made


INVERSE_TITLE = "The strength of a source from its temperature"
TABLES = (Table("inverse", INVERSE_TITLE, ("h", "off", "evaluations", "seconds"), rows),)
