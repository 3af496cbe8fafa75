"""What functions of order 3 are held to, beside those of order 2.

    LAMINA_DATA=FOLDER python benchmarks/order3.py [--device cuda]
        [--parts accuracy offsets iterations rims eigen coupled]

Errors are NRMSE at the quadrature points and at domain.points, against solutions that are known: harmonics of the
sphere, and manufactured ones on other shapes. Times are of one run, and only good for ratios.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import BENCHMARKS, domain_of, parser, record
from torch import Tensor

import lamina
from lamina.gallery import Problem, ellipsoid_poisson, hemisphere_poisson, manufactured, sphere_poisson, torus_poisson
from lamina.grid.sizing import REQUIREMENTS_OF_ORDER, spacing_for_nodes
from lamina.paper.band_domain import BAND_NEEDS
from lamina.pde.conditions import Condition
from lamina.surfaces.sphere_maps import sphere_map

Row = dict[str, Any]


def torus_cosines(along: int, around: int) -> Problem:
    """cos(along theta) cos(around phi) on the torus (1, 0.4), theta the angle of its ring, phi that of its tube."""

    def ring(x: Tensor) -> Tensor:
        return (x[:, 0] ** 2 + x[:, 1] ** 2).sqrt()

    def cosine(x: Tensor, y: Tensor, multiple: int) -> Tensor:
        c = x / (x * x + y * y).sqrt()
        return c if multiple == 1 else 2 * c * c - 1

    def phi(x: Tensor) -> Tensor:
        return (ring(x) - 1) ** 2 + x[:, 2] ** 2 - 0.16

    def u(x: Tensor) -> Tensor:
        return cosine(x[:, 0], x[:, 1], along) * cosine(ring(x) - 1, x[:, 2], around)

    return manufactured(f"torus, cos {along} theta cos {around} phi", lambda: lamina.Torus(1.0, 0.4), phi, u)


def star(name: str) -> Problem:
    """sin(2x) cos(1.5y) + z on a star-shaped map of the sphere."""
    surface = sphere_map(name, 5)

    def phi(x: Tensor) -> Tensor:
        length = (x * x).sum(1).sqrt()
        return length - (surface.fn(x / length[:, None]) ** 2).sum(1).sqrt()

    return manufactured(name, lambda: surface, phi, torus_poisson().solution)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "sphere": sphere_poisson,
    "torus": torus_poisson,
    "torus, cosines": partial(torus_cosines, 2, 1),
    "torus, finer cosines": partial(torus_cosines, 1, 2),
    "ellipsoid": ellipsoid_poisson,
    "spike": partial(star, "spike"),
    "starfruit": partial(star, "starfruit"),
}


def nrmse(values: Tensor, exact: Tensor, weights: Tensor) -> float:
    error = values - exact
    error = error - (weights * error).sum() / weights.sum()
    return float(((weights * error**2).sum() / weights.sum()).sqrt() / (exact.max() - exact.min()))


def solved(problem: Problem, spacing: float, order: int, **options: Any) -> Row:
    start = time.perf_counter()
    scheme = "coupled" if order == 4 else f"order {order}"
    domain = domain_of(scheme, problem.surface(), spacing, order=order, show_progress=False, **options)
    built = time.perf_counter() - start
    u = lamina.poisson(domain, problem.rhs, tolerance=1e-9, show_progress=False)
    row: Row = {
        "problem": problem.name, "order": order, "scheme": domain.scheme.name, "spacing": spacing,
        "unknowns": domain.unknowns, "cycles": u.cycles, "build": built, "solve": u.seconds,
        "points": nrmse(u.values, problem.solution(domain.points), domain.surface.areas),
    }  # fmt: skip
    if domain.scheme.name == "trace":
        q = domain.quadrature
        there = domain.scheme.at_source_points(u.unknowns[0], slice(None))
        row["surface"] = nrmse(there, problem.solution(q.points), q.weights)
        row["area"] = q.area
    return row


def with_order(rows: list[Row], row: Row) -> Row:
    """row with the order of accuracy since the row before, where that is the same problem on a coarser grid."""
    before = rows[-1] if rows else None
    if (
        before
        and all(before[k] == row[k] for k in ("problem", "order", "scheme"))
        and before["spacing"] > row["spacing"]
    ):
        row["observed"] = math.log(before["points"] / row["points"]) / math.log(before["spacing"] / row["spacing"])
    shown = {k: f"{row[k]:.2e}" for k in ("surface", "points") if k in row}
    shown |= {k: f"{row[k]:.2f}" for k in ("observed", "build", "solve") if k in row}
    print(
        row["problem"],
        row["order"],
        f"h={row['spacing']:g} n={row['unknowns']} cycles {row['cycles']}",
        shown,
        flush=True,
    )
    return row


def accuracy(device: str) -> list[Row]:
    rows: list[Row] = []
    grids = {
        "sphere": (0.4, 0.2, 0.1, 0.05), "torus, cosines": (0.2, 0.1, 0.05),
        "torus, finer cosines": (0.2, 0.1, 0.05), "torus": (0.2, 0.1, 0.05),
        "ellipsoid": (0.2, 0.1, 0.05), "spike": (0.1, 0.05, 0.035), "starfruit": (0.1, 0.05, 0.035),
    }  # fmt: skip
    for name, spacings in grids.items():
        for spacing in spacings:
            rows.append(with_order(rows, solved(PROBLEMS[name](), spacing, 3, device=device)))
    return rows


def offsets(device: str) -> list[Row]:
    """Errors on eight grids, moved by random parts of a cell."""
    generator = torch.Generator().manual_seed(0)
    rows: list[Row] = []
    for name, spacing in (("sphere", 0.1), ("torus, cosines", 0.1), ("ellipsoid", 0.1)):
        found = []
        for _ in range(8):
            origin = spacing * torch.rand(3, generator=generator, dtype=torch.float64)
            found.append(solved(PROBLEMS[name](), spacing, 3, origin=origin, device=device)["points"])
        rows.append({"problem": name, "spacing": spacing, "errors": found, "ratio": max(found) / min(found)})
        print(name, f"{min(found):.2e} to {max(found):.2e}", f"ratio {rows[-1]['ratio']:.2f}", flush=True)
    return rows


def shapes() -> dict[str, Callable[[], lamina.Surface]]:
    data = Path(os.environ.get("LAMINA_DATA") or BENCHMARKS.parent.parent / "shared" / "data")
    found: dict[str, Callable[[], lamina.Surface]] = {"sphere": lamina.Sphere, "torus": lambda: lamina.Torus(1.0, 0.4)}
    for name, file in (("ELU bunny", "mlp_elu_bunny_sdf.npz"), ("mug", "siren_mug.npz")):
        if (data / "neural" / file).exists():
            found[name] = partial(lamina.load, data / "neural" / file)
    return found


def iterations(device: str) -> list[Row]:
    """Cycles of conjugate gradients to 1e-9 as the grid is refined, time and memory."""
    rows: list[Row] = []
    sizes = (3_000, 20_000, 50_000, 200_000, 1_000_000 if device == "cuda" else 500_000)
    for name, make in shapes().items():
        for nodes in sizes:
            row: Row = {"shape": name}
            for _ in range(2 if device == "cuda" else 1):  # the first one compiles
                surface, domain, u = make(), None, None
                gc.collect()
                if device == "cuda":
                    torch.cuda.synchronize()
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                start = time.perf_counter()
                domain = lamina.Domain(surface, nodes=nodes, order=3, device=device, show_progress=False)
                built = time.perf_counter() - start
                u = lamina.poisson(domain, torus_poisson().solution, tolerance=1e-9, show_progress=False)
                float(u.values.sum())
                row |= {"unknowns": domain.unknowns, "cycles": u.cycles, "build": built, "solve": u.seconds,
                        "seconds": time.perf_counter() - start}  # fmt: skip
            if device == "cuda":
                row["bytes_an_unknown"] = torch.cuda.max_memory_allocated() / domain.unknowns
            rows.append(row)
            print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return rows


def rims(device: str) -> list[Row]:
    """The upper half of the sphere with each kind of condition on its rim."""
    problem, rows = hemisphere_poisson(), []
    conditions: dict[str, Condition] = {
        "dirichlet": lamina.Dirichlet("rim", problem.solution),
        "neumann": lamina.Neumann("rim", problem.flux),
        "robin": lamina.Robin("rim", lambda x: problem.flux(x) + 2 * problem.solution(x), coefficient=2.0),
    }
    for name, condition in conditions.items():
        for spacing in (0.2, 0.1, 0.05):
            domain = lamina.Domain(problem.surface(), spacing, order=3, device=device, show_progress=False)
            u = lamina.poisson(domain, problem.rhs, condition, tolerance=1e-10, show_progress=False)
            q = domain.quadrature
            there, exact = u.domain.scheme.at_source_points(u.unknowns[0], slice(None)), problem.solution(q.points)
            error = there - exact
            error = error - (q.weights * error).sum() / q.area if name == "neumann" else error
            size = float(((q.weights * error**2).sum() / q.area).sqrt() / (exact.max() - exact.min()))
            rows.append(
                {"condition": name, "spacing": spacing, "unknowns": domain.unknowns, "nrmse": size, "cycles": u.cycles}
            )
            print(rows[-1], flush=True)
    return rows


def eigen(device: str) -> list[Row]:
    """The first 36 eigenvalues of the sphere, n (n + 1), each 2 n + 1 times."""
    exact = torch.tensor([float(n * (n + 1)) for n in range(6) for _ in range(2 * n + 1)], device=device)[1:]
    rows: list[Row] = []
    for spacing in (0.2, 0.1):
        modes = lamina.eigenmodes(lamina.Domain(lamina.Sphere(), spacing, order=3, device=device), 36)
        worst = float(((modes.eigenvalues[1:] - exact) / exact).abs().max())
        rows.append({"spacing": spacing, "largest_relative_error": worst, "iterations": modes.iterations})
        print(rows[-1], flush=True)
    return rows


def coupled(device: str) -> list[Row]:
    """Order 3 beside the coupled scheme of order 4 at equal unknowns."""
    rows: list[Row] = []
    for name in ("sphere", "torus, cosines", "torus, finer cosines", "torus", "ellipsoid", "spike", "starfruit"):
        for nodes in (20_000, 50_000, 100_000):
            for order, needs in ((3, REQUIREMENTS_OF_ORDER[3]), (4, BAND_NEEDS["coupled"])):
                problem = PROBLEMS[name]()
                spacing = spacing_for_nodes(problem.surface(), nodes, needs)
                row = solved(problem, spacing, order, device=device)
                rows.append(row)
                print(name, row["scheme"], row["unknowns"], f"{row['points']:.2e} build {row['build']:.1f} solve "
                      f"{row['solve']:.1f}", flush=True)  # fmt: skip
    return rows


PARTS: dict[str, Callable[[str], list[Row]]] = {
    "accuracy": accuracy, "offsets": offsets, "iterations": iterations,
    "rims": rims, "eigen": eigen, "coupled": coupled,
}  # fmt: skip


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--device", default="cpu")
    asked = options.parse_args()
    suffix = "" if asked.device == "cpu" else f"_{asked.device}"
    for part in asked.parts:
        record(f"order3_{part}{suffix}", {"rows": PARTS[part](asked.device)}, asked.out)


if __name__ == "__main__":
    main()
