"""Linear FEM on a perfect icosphere, the easiest case that a mesh method can get: time and error.

    python benchmarks/fem_icosphere.py [--level 7] [--out benchmarks/results/fem_icosphere.json]

Level 7 has 163,842 vertices. Times are the best of several runs, in seconds: `assembly` from (V, F) to the
stiffness matrix, `setup` the factorisation or multigrid hierarchy, `solve` one right-hand side. One thread,
unless OMP_NUM_THREADS says otherwise.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when numpy is loaded

import argparse
import json
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from lamina.baselines.fem import SurfaceFEM
from lamina.gallery import sphere_poisson
from lamina.metrics import errors
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
    # Turn and turn about, so that whatever else the machine does slows all of them down alike.
    runs = [[_run(V, F, f, solver, mass == "lumped") for solver, mass in cases] for _ in range(repeats)]
    rows = []
    for (solver, mass), results in zip(cases, zip(*runs, strict=True), strict=True):
        error = errors(results[-1][1], exact, remove_mean=True).as_dict()
        rows.append({"solver": solver, "mass": mass, **_best([times for times, _ in results]), **error})
    return {
        "vertices": len(V),
        "tolerance": TOLERANCE,
        "repeats": repeats,
        "rows": rows,
        "machine": _machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _machine() -> dict[str, Any]:
    versions = {}
    for package in ("numpy", "scipy", "pyamg", "cholespy", "scikit-sparse"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],  # above 1 the times are too long
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "python": platform.python_version(),
        **versions,
    }


def _run(V: Any, F: Any, f: Any, solver: str, lumped: bool) -> tuple[dict[str, float], Any]:
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


def _best(times: list[dict[str, float]]) -> dict[str, float]:
    """The smallest of each time; that of total is the best whole run, not the sum of the best parts."""
    return {key: min(t[key] for t in times) for key in times[0]}


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
    parser = argparse.ArgumentParser(description="Time linear FEM on an icosphere.")
    parser.add_argument("--level", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    outcome = time_fem(arguments.level)
    print(table(outcome))
    if arguments.out:
        arguments.out.write_text(json.dumps(outcome, indent=1) + "\n")
