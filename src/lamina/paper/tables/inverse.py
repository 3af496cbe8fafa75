"""The paper's inverse problem: how strong a source is, from the temperature that it makes, through the solver.

A source h s(x) on a torus, s a bump, warms it to u with Lap u - u = -h s; u is given for h = 1, and h is sought from
0.8. Gradients go through the whole solve; the descent is L-BFGS, 20 evaluations at most.
"""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor

from lamina.paper.baselines.compare import DOMAINS
from lamina.paper.tables import paper
from lamina.paper.tables.base import Row, Setting, Table
from lamina.paper.tables.methods import LABELS
from lamina.pde.poisson import poisson
from lamina.surfaces.analytic import Torus

CASE = "h from 0.8 to 1"


def bump(p: Tensor) -> Tensor:
    return torch.exp(-8 * (p - p.new_tensor([1.4, 0.0, 0.0])).square().sum(1))


def found(method: str, spacing: float, device: str) -> Row:
    start = perf_counter()
    made, options = DOMAINS[method]
    domain = made(Torus(1.0, 0.4), spacing, device=device, show_progress=False, **options)

    def temperature(h: Tensor | float) -> Tensor:
        f = (lambda p: -h * bump(p)) if method == "attention" else -h * bump(domain.points)
        return poisson(domain, f, screening=1.0, tolerance=1e-10, show_progress=False).values

    target = temperature(1.0).detach()
    h = torch.tensor(0.8, dtype=torch.float64, device=device, requires_grad=True)
    descent = torch.optim.LBFGS([h], max_iter=20, tolerance_grad=1e-14, tolerance_change=1e-16)
    scale, calls = float(target.square().sum()), 0

    def loss() -> float:
        nonlocal calls
        calls += 1
        descent.zero_grad()
        value = (temperature(h) - target).square().sum() / scale
        value.backward()
        return float(value.detach())

    descent.step(loss)
    value = float(h.detach())
    return {"h": value, "off": abs(value - 1), "evaluations": calls, "seconds": perf_counter() - start,
            "unknowns": domain.unknowns}  # fmt: skip


def rows(setting: Setting) -> list[Row]:
    made: list[Row] = [{"method": paper.OURS, "case": CASE, "h": paper.INVERSE, "off": paper.INVERSE - 1}]
    for method in ("attention", "closest-point", "trace"):
        setting.report(0.0, LABELS[method])
        spacing = 0.2 if setting.quick else 0.05
        made.append({"method": LABELS[method], "case": CASE, **found(method, spacing, setting.device)})
    return made


TITLE = "The strength of a source from its temperature"
TABLES = (Table("inverse", TITLE, ("h", "off", "evaluations", "seconds"), rows),)
