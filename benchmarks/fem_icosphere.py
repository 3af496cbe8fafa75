"""Linear FEM on a perfect icosphere, the easiest case that a mesh method can get: time and error.

    python benchmarks/fem_icosphere.py [--level 7]

Level 7 has 163,842 vertices. Times are the best of several runs, in seconds: `assembly` from (V, F) to the
stiffness matrix, `setup` the factorisation or multigrid hierarchy, `solve` one right-hand side. One thread,
unless OMP_NUM_THREADS says otherwise.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when numpy is loaded

from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import Any

from common import best, in_turn, parser, record

from lamina.gallery import sphere_poisson
from lamina.metrics import errors
from lamina.paper.baselines.fem import SurfaceFEM
from lamina.surfaces.icosphere import icosphere

PACKAGES = {"cholmod": "sksparse", "cholespy": "cholespy", "pyamg": "pyamg", "splu": "scipy"}
# SuperLU's ordering needs most of a minute at level 7 and is never the fastest.
SPLU_LIMIT = 50_000
# The loosest power of ten that leaves the first three digits of the errors below as they are.
TOLERANCE = 1e-6


def time_fem(level: int = 7, repeats: int = 5) -> dict[str, Any]:
    """Seconds and errors of every installed solver, for the consistent and the lumped mass matrix."""
    vertices, faces = icosphere(level)
    problem = sphere_poisson()
    V, F = vertices.numpy(), faces.numpy()
    f, exact = problem.rhs(vertices).numpy(), problem.solution(vertices).numpy()
    solvers = [s for s in PACKAGES if find_spec(PACKAGES[s]) and (s != "splu" or len(V) <= SPLU_LIMIT)]
    cases = [(solver, mass) for solver in solvers for mass in ("consistent", "lumped")]
    runs = in_turn([partial(run_fem, V, F, f, solver, mass == "lumped") for solver, mass in cases], repeats)
    rows = []
    for (solver, mass), results in zip(cases, runs, strict=True):
        error = errors(results[-1][1], exact, remove_mean=True).as_dict()
        rows.append({"solver": solver, "mass": mass, **best([times for times, _ in results]), **error})
    return {"vertices": len(V), "tolerance": TOLERANCE, "repeats": repeats, "rows": rows}


def run_fem(V: Any, F: Any, f: Any, solver: str, lumped: bool) -> tuple[dict[str, float], Any]:
    """Seconds of each stage, from the mesh and the values f at its vertices to the solution, and that."""
    start = perf_counter()
    fem = SurfaceFEM(V, F, lumped=lumped, solver=solver, tolerance=TOLERANCE)
    assembled = perf_counter()
    fem.prepare()
    ready = perf_counter()
    u = fem.poisson(f)
    end = perf_counter()
    return {
        "assembly": assembled - start,
        "setup": ready - assembled,
        "solve": end - ready,
        "total": end - start,
    }, u


def table(result: dict[str, Any]) -> str:
    lines = [f"FEM on an icosphere of {result['vertices']:,} vertices, best of {result['repeats']} runs"]
    lines.append(
        f"{'solver':10} {'mass':11} {'assembly':>9} {'setup':>8} {'solve':>8} {'total':>8}"
        f" {'nmae':>9} {'nmaxe':>9} {'nrmse':>9}"
    )
    for row in result["rows"]:
        seconds = " ".join(f"{row[k]:8.3f}" for k in ("assembly", "setup", "solve", "total"))
        accuracy = " ".join(f"{row[k]:9.2e}" for k in ("nmae", "nmaxe", "nrmse"))
        lines.append(f"{row['solver']:10} {row['mass']:11}  {seconds} {accuracy}")
    fastest = min(result["rows"], key=lambda row: row["total"])
    lines.append(f"fastest: {fastest['solver']} ({fastest['mass']}), {fastest['total']:.3f} s")
    return "\n".join(lines)


if __name__ == "__main__":
    options = parser("Time linear FEM on an icosphere.")
    options.add_argument("--level", type=int, default=7)
    options.add_argument("--repeats", type=int, default=5)
    arguments = options.parse_args()
    outcome = time_fem(arguments.level, arguments.repeats)
    print(table(outcome))
    print("written to", record("fem_icosphere", outcome, arguments.out))
