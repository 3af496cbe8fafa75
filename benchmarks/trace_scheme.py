"""What the trace scheme is held to: accuracy, sheets, iterations, heat, eigenvalues, and time against FEM.

    LAMINA_DATA=FOLDER python benchmarks/trace_scheme.py [--parts accuracy closest sheets iterations heat eigen time]
    python benchmarks/trace_scheme.py --parts iterations --most 2100000 --device cuda

Meshes are centred and scaled so that their longest half-extent is 1; f = sin(2x) cos(1.5y) + z; NRMSE against FEM
on the mesh refined until it settles (see meshes.py). Times are the best of several runs in this process, lamina and
FEM with the same threads.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import meshes
import numpy as np
import torch
from common import BENCHMARKS, parser, record

import lamina
from lamina.gallery import sphere_heat, sphere_poisson
from lamina.geometry.lattice import Lattice
from lamina.grid.closest_point_cut import cut_closest_points
from lamina.grid.cut import cut_surface
from lamina.metrics import errors
from lamina.paper.baselines.fem import SurfaceFEM
from lamina.paper.baselines.reference import refine
from lamina.spaces.operators import CutCellOperators

meshes.TOLERANCE = 2e-5  # the reference must be better than what is measured against it
DATA = Path(os.environ.get("LAMINA_DATA") or BENCHMARKS.parent.parent / "shared" / "data")
SPHERE = sphere_poisson()
Row = dict[str, Any]


def file(name: str) -> Path:
    """The mesh of this name; as .npz where PLY files cannot be read."""
    path = DATA / f"{name}.ply"
    return path if path.exists() else path.with_suffix(".npz")


def loaded(name: str) -> tuple[lamina.Mesh, np.ndarray]:
    """The scaled mesh and the reference at its vertices, NaN where there is none."""
    path = DATA / f"{name}.ply"
    reference = meshes.make_reference(path)
    return meshes.load_scaled(path), np.load(meshes.CACHE / reference["file"])


def nrmse(values: torch.Tensor, exact: np.ndarray, mesh: lamina.Mesh) -> float:
    known = np.isfinite(exact)
    component = mesh.component.numpy()[known]
    return errors(values.numpy()[known], exact[known], remove_mean=True, component=component).nrmse


def accuracy() -> list[Row]:
    bars = {
        ("meshes/spot", 0.08): None,
        ("meshes/spot", 0.04): 6e-4,
        ("meshes/spot", 0.02): 1.5e-4,
        ("meshes/fandisk", 0.04): 1.2e-3,
        ("meshes/armadillo", 0.04): 3e-3,
        ("paper/apple", 0.08): None,
        ("paper/apple", 0.04): 2e-4,
        ("paper/apple", 0.02): None,
        ("meshes/hand", 0.04): 6e-3,
        ("paper/holey_human", 0.01): 3e-3,
    }
    rows: list[Row] = []
    for (name, spacing), bar in bars.items():
        mesh, exact = loaded(name)
        domain = lamina.Domain(mesh, spacing, show_progress=False)
        u = lamina.poisson(domain, meshes.right_hand_side, tolerance=1e-9, show_progress=False)
        error = nrmse(u.values, exact, mesh)
        row: Row = {
            "mesh": name,
            "spacing": spacing,
            "unknowns": domain.unknowns,
            "cycles": u.cycles,
            "nrmse": error,
            "bar": bar,
        }
        before = [r for r in rows if r["mesh"] == name]
        if before:
            row["order"] = math.log2(before[-1]["nrmse"] / error) / math.log2(before[-1]["spacing"] / spacing)
        rows.append(row)
        print(show(row), flush=True)
    return rows


def closest() -> list[Row]:
    """From closest points alone: the sphere, a mesh cut as if it were no mesh, noisy samples."""
    from lamina.cli.solve import as_point_cloud

    rows: list[Row] = []
    for spacing in (0.1, 0.05, 0.025):
        domain = lamina.Domain(lamina.Sphere(), spacing, order=2, show_progress=False)
        u = lamina.poisson(domain, SPHERE.rhs, tolerance=1e-9, show_progress=False)
        error = errors(u.values, SPHERE.solution(domain.points), remove_mean=True).nmae
        row: Row = {"what": "sphere", "spacing": spacing, "unknowns": domain.unknowns, "nmae": error}
        if rows:
            row["order"] = math.log2(rows[-1]["nmae"] / error)
        if spacing == 0.05:
            row["bar"] = 3e-4
        rows.append(row)
    mesh, exact = loaded("meshes/spot")
    u, scheme, cycles = solved(mesh, cut_closest_points(mesh, lattice(mesh, 0.04)))
    row = {"what": "spot by closest points", "spacing": 0.04, "unknowns": scheme.unknowns, "cycles": cycles}
    rows.append({**row, "nrmse": nrmse(u, exact, mesh), "bar": 1.2e-3})
    for noise, seed in ((0.0, 0), *((0.01, s) for s in range(5))):
        points = as_point_cloud(lamina.Sphere(), 10_000, noise, seed)
        domain = lamina.Domain(points, 0.05, order=2, show_progress=False)
        u = lamina.poisson(domain, SPHERE.rhs, tolerance=1e-9, show_progress=False)
        feet = domain.points / domain.points.norm(dim=1, keepdim=True)
        error = errors(u.values, SPHERE.solution(feet), remove_mean=True).nmae
        rows.append(
            {"what": f"10k samples, noise {noise:g}, seed {seed}", "cycles": u.cycles, "nmae": error, "bar": 6e-4}
        )
    print("\n".join(show(r) for r in rows), flush=True)
    return rows


def lattice(mesh: lamina.Mesh, spacing: float) -> Lattice:
    return lamina.Domain(mesh, spacing, order=2, show_progress=False).lattice


def solved(mesh: lamina.Mesh, cut: Any) -> tuple[torch.Tensor, CutCellOperators, int]:
    scheme = CutCellOperators(cut)
    result = scheme.solve(scheme.load(meshes.right_hand_side), 0.0, tolerance=1e-9)
    return scheme.readout(mesh.own_feet()) @ result.solution, scheme, result.iterations


def sheets() -> list[Row]:
    rows = []
    for name in ("paper/fastener", "paper/holey_human"):
        for spacing in (0.04, 0.02):
            mesh, exact = loaded(name)
            grid = lattice(mesh, spacing)
            found = [nrmse(solved(mesh, cut_surface(mesh, grid, s))[0], exact, mesh) for s in (True, False)]
            row = {"mesh": name, "spacing": spacing, "with": found[0], "without": found[1]}
            rows.append({**row, "ratio": found[1] / found[0], "bar": 3.0})
            print(show(rows[-1]), flush=True)
    return rows


def iterations(most: int, device: str) -> list[Row]:
    rows = []
    for name in ("sphere", "meshes/spot", "meshes/fandisk", "paper/holey_human"):
        surface = lamina.Sphere() if name == "sphere" else meshes.load_scaled(file(name))
        nodes = 3000
        while nodes <= most:
            domain = lamina.Domain(surface, nodes=nodes, order=2, device=device, show_progress=False)
            u = lamina.poisson(domain, meshes.right_hand_side, tolerance=1e-9, show_progress=False)
            rows.append({"surface": name, "unknowns": domain.unknowns, "cycles": u.cycles, "bar": 30})
            print(show(rows[-1]), flush=True)
            nodes = 4 * nodes if 4 * nodes <= most or nodes == most else most
            if rows[-1]["unknowns"] >= most / 2:
                break
    return rows


def heat() -> Row:
    """Conservation, steady state and energy on a mesh; the transient on the sphere."""
    mesh = meshes.load_scaled(DATA / "meshes/spot.ply")
    domain = lamina.Domain(mesh, 0.08, show_progress=False)
    scheme = domain.scheme
    assert isinstance(scheme, CutCellOperators)

    def initial(p: torch.Tensor) -> torch.Tensor:
        return 1 + torch.sin(3 * p[:, 0]) + p[:, 1]

    whole = domain.quadrature.integral(initial)
    u = lamina.heat(domain, initial, 1.0, steps=1000, times=[k / 1000 for k in range(1, 1001)], show_progress=False)
    integrals = u.unknowns @ scheme.mass_of_one
    energy = torch.stack([torch.dot(v, scheme.mass(v)) for v in u.unknowns])
    steady = lamina.heat(domain, initial, 100.0, show_progress=False).values
    problem = sphere_heat()
    ball = lamina.Domain(lamina.Sphere(), 0.05, order=2, show_progress=False)
    moments = [0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0]
    v = lamina.heat(ball, problem.initial, 1.0, times=moments, show_progress=False)
    transient = [errors(s, problem.solution(ball.points, t)).nmae for t, s in zip(v.times, v.snapshots, strict=True)]
    row = {
        "integral_drift_1000_steps": float((integrals / whole - 1).abs().max()),
        "bar_drift": 1e-11,
        "steady_minus_mean": float((steady / domain.quadrature.mean(initial) - 1).abs().max()),
        "bar_steady": 1e-9,
        "largest_energy_growth": float((energy[1:] / energy[:-1] - 1).max()),
        "transient_nmae": dict(zip(map(str, moments), transient, strict=True)),
        "bar_transient": 5e-4,
    }
    print(show(row), flush=True)
    return row


def eigen() -> list[Row]:
    exact = torch.cat([torch.full((2 * n + 1,), float(n * (n + 1))) for n in range(6)]).double()
    rows: list[Row] = []
    for spacing in (0.1, 0.05, 0.025):
        domain = lamina.Domain(lamina.Sphere(), spacing, order=2, show_progress=False)
        modes = lamina.eigenmodes(domain, 36, show_progress=False)
        error = (modes.eigenvalues - exact).abs() / exact.clamp_min(1)
        row: Row = {
            "spacing": spacing,
            "iterations": modes.iterations,
            "largest_error": float(error.max()),
            "bar": 0.01,
        }
        # How far the eigenvalues of one degree spread, against the gap to the next.
        row["spread"] = [float(np.ptp(modes.eigenvalues[n * n : (n + 1) ** 2].numpy())) for n in range(6)]
        row["seconds"] = modes.seconds
        if rows:
            row["order"] = math.log2(rows[-1]["largest_error"] / row["largest_error"])
        rows.append(row)
        print(show(row), flush=True)
    return rows


def best(function: Callable[[], Any], runs: int) -> tuple[float, Any]:
    times, out = [], None
    for _ in range(runs):
        start = time.perf_counter()
        out = function()
        times.append(time.perf_counter() - start)
    return min(times), out


def against_fem(runs: int = 5) -> Row:
    """Mesh file to solution: ours at spacing 0.02, and cotan FEM with Cholesky on the mesh refined to our error."""
    path = DATA / "meshes/spot.ply"
    mesh, exact = loaded("meshes/spot")

    def ours() -> lamina.Solution:
        domain = lamina.Domain(meshes.load_scaled(path), 0.02, show_progress=False)
        u = lamina.poisson(domain, meshes.right_hand_side, show_progress=False)
        _ = u.values
        return u

    def fem(levels: int) -> np.ndarray:
        surface = meshes.load_scaled(path)
        assert surface.faces is not None
        V, F = surface.points.numpy(), surface.faces.numpy()
        for _ in range(levels):
            V, F = refine(V, F)
        f = meshes.right_hand_side(torch.from_numpy(V)).numpy()
        return SurfaceFEM(V, F, solver="cholespy").poisson(f)

    seconds, u = best(ours, runs)
    error = nrmse(u.values, exact, mesh)
    levels = 0
    while True:
        theirs, values = best(lambda levels=levels: fem(levels), runs)
        fem_error = nrmse(torch.from_numpy(values[: len(mesh.points)]), exact, mesh)
        if fem_error <= error:
            break
        levels += 1
    row = {
        "seconds": seconds,
        "nrmse": error,
        "unknowns": u.domain.unknowns,
        "fem_seconds": theirs,
        "fem_nrmse": fem_error,
        "fem_vertices": len(values),
        "fem_solver": "cholespy",
        "ratio": seconds / theirs,
        "bar": 3.0,
        "threads": torch.get_num_threads(),
    }
    print(show(row), flush=True)
    return row


def show(row: Row) -> str:
    return "  ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
    )


def main() -> None:
    parts: dict[str, Callable[[], Any]] = {
        "accuracy": accuracy,
        "closest": closest,
        "sheets": sheets,
        "iterations": lambda: iterations(arguments.most, arguments.device),
        "heat": heat,
        "eigen": eigen,
        "time": against_fem,
    }
    options = parser(__doc__)
    options.add_argument("--parts", nargs="+", choices=list(parts), default=list(parts))
    options.add_argument("--most", type=int, default=200_000, help="unknowns, in `iterations`")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of `iterations`")
    arguments = options.parse_args()
    figures = {}
    for part in arguments.parts:
        print(f"== {part}", flush=True)
        figures[part] = parts[part]()
    name = "trace" if set(arguments.parts) == set(parts) else "trace_" + "_".join(arguments.parts)
    if arguments.device == "cuda":
        name += "_cuda"
    print("written to", record(name, figures, arguments.out))


if __name__ == "__main__":
    main()
