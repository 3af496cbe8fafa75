"""The one check that needs no theory: solve on finer and finer grids, and watch the error fall.

    python examples/convergence.py [FOLDER]

On the unit sphere u = xyz + (x^2 - y^2)/2 solves Laplacian(u) = -12xyz - 3(x^2 - y^2).
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import lamina
from lamina.gallery import sphere_poisson
from lamina.metrics import errors
from lamina.view.charts import plot_convergence, plot_residuals

SPACINGS = (0.2, 0.14, 0.1)
ORDERS = (2, 3)


def main(folder: Path) -> dict[str, float]:
    problem = sphere_poisson()
    found: dict[str, list[float]] = {f"order {order}": [] for order in ORDERS}
    residuals = {}
    for order, name in zip(ORDERS, found, strict=True):
        for spacing in SPACINGS:
            domain = lamina.Domain(problem.surface(level=4), spacing, order=order)
            u = lamina.poisson(domain, problem.rhs)
            found[name].append(errors(u.values, problem.solution(domain.points), remove_mean=True).nmae)
            residuals[f"{name} {spacing:g}"] = u.residuals
    orders = {
        name: math.log(error[0] / error[-1]) / math.log(SPACINGS[0] / SPACINGS[-1]) for name, error in found.items()
    }
    for name, error in found.items():
        print(f"{name:<8} errors {', '.join(f'{e:.1e}' for e in error)}; order {orders[name]:.1f}")
    plot_convergence(folder / "convergence.png", SPACINGS, found, title="mean error over range, sphere")
    last = {name: residuals[f"{name} {SPACINGS[-1]:g}"] for name in found}
    plot_residuals(folder / "residuals.png", last, title="relative residual, spacing 0.1")
    return orders


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "example-output"))
