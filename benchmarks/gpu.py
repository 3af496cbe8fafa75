"""Geometry to solution on a GPU in float64: the sphere at 2M nodes and more, meshes at 50k nodes.

    PYTHONPATH=src python benchmarks/gpu.py [--profile]
    PYTHONPATH=src python benchmarks/gpu.py --mesh spot.npz     # a mesh from a file as well
    PYTHONPATH=src python benchmarks/gpu.py --device cpu --sphere-nodes 50000 --mesh-nodes 20000

Needs torch, numpy and scipy alone. A run is Domain (sizing, closest points, band, operators, hierarchy) and
poisson (right-hand side, solve) and the values at the points, from a surface that has not been used before
and is on the device; making it (for a mesh: checks, components, areas, normals) is shown beside it. Times are
taken after warm-up runs, with the device idle at both ends.

Bars, on one H200: sphere 0.5 s (coupled) and 1 s (trace, 2M nodes), meshes of 100k vertices 0.1 s, the mesh from a
file (spot: 11,533 vertices, longest half-extent 1, spacing 0.02) 0.05 s; memory at its peak 2048 bytes a node.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Stopwatch, parser, peak_memory, record, synchronize
from torch import Tensor

import lamina
from lamina.gallery import sphere_poisson
from lamina.metrics import errors
from lamina.surfaces.icosphere import icosphere

BARS = {"sphere": 0.5, "sphere, order 2": 1.0, "sphere mesh": 0.1, "spike mesh": 0.1, "mesh file": 0.05}
MOST_BYTES = 2048
STAGES = ("surface", "sizing", "domain", "solve", "total")

Make = Callable[[], lamina.Surface]
Function = Callable[[Tensor], Tensor]


def geodesic_sphere(vertices: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors (10 n^2 + 2, 3) and triangles (20 n^2, 3), about as many vertices as asked for.

    Every triangle of the icosahedron is cut in n^2, which gives sizes between those of repeated halving.
    """
    n = max(1, round(((vertices - 2) / 10) ** 0.5))
    corners, faces = (t.numpy() for t in icosphere(0))
    i, j = (a.reshape(-1) for a in np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij"))
    inside = i + j <= n
    i, j = i[inside], j[inside]
    place = np.full((n + 1, n + 1), -1)
    place[i, j] = np.arange(len(i))
    a, b, c = (corners[faces[:, k], None] for k in range(3))
    points = (a * (n - i - j)[:, None] + b * i[:, None] + c * j[:, None]) / n  # (20, m, 3)
    up, down = i + j < n, i + j < n - 1
    first = np.stack([place[i, j][up], place[i[up] + 1, j[up]], place[i[up], j[up] + 1]], 1)
    i, j = i[down], j[down]
    second = np.stack([place[i + 1, j], place[i + 1, j + 1], place[i, j + 1]], 1)
    small = np.concatenate([first, second])
    cut = (small[None] + points.shape[1] * np.arange(20)[:, None, None]).reshape(-1, 3)
    points = points.reshape(-1, 3)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    # Neighbouring triangles made the vertices on their common edge twice, up to rounding.
    _, kept, same = np.unique(np.round(points * 1e9).astype(np.int64), axis=0, return_index=True, return_inverse=True)
    return points[kept], same.reshape(-1)[cut]


def spiked(directions: np.ndarray) -> np.ndarray:
    """The paper's Spike over unit vectors: r = 1 + 0.4 sin^2(th) sin(6 th) sin(6 ph)."""
    x, y, z = directions.T
    polar, azimuth = np.arccos(np.clip(z, -1, 1)), np.arctan2(y, x)
    radius = 1 + 0.4 * np.sin(polar) ** 2 * np.sin(6 * polar) * np.sin(6 * azimuth)
    return directions * radius[:, None]


def from_file(path: Path) -> Make:
    """Makes the mesh in the file, centred, with a longest half-extent of 1."""
    surface = lamina.load(path)
    if surface.faces is None:
        raise SystemExit(f"{path} holds points and no faces; expected a mesh.")
    low, high = surface.bounds
    return partial(lamina.Mesh, (surface.points - (low + high) / 2) / ((high - low).max() / 2), surface.faces)


def wave(p: Tensor) -> Tensor:
    x, y, z = p.unbind(-1)
    return torch.sin(2 * x) * torch.cos(1.5 * y) + z


def spacing_for(make: Make, nodes: int, device: str, settings: dict[str, Any]) -> float:
    """The spacing that gives at least this many nodes, and no more than a percent or so above it."""
    surface = make()
    spacing = lamina.Domain(surface, nodes=min(nodes, 200_000), device=device, **settings).spacing
    for _ in range(3):
        found = lamina.Domain(surface, spacing, device=device, **settings).unknowns
        if nodes <= found <= 1.01 * nodes:
            break
        spacing *= (found / (1.003 * nodes)) ** 0.5
    return spacing


def build(surface: lamina.Surface, spacing: float, device: str, settings: dict[str, Any]) -> lamina.Domain:
    return lamina.Domain(surface, spacing, device=device, **settings)


def run(
    make: Make, f: Function, spacing: float, device: str, settings: dict[str, Any]
) -> tuple[dict[str, float], lamina.Domain, lamina.Solution]:
    """Seconds of each stage, the domain and the solution."""
    watch = Stopwatch(device)
    surface = make().to(device)
    made = watch.lap()
    domain = build(surface, spacing, device, settings)
    built = watch.lap()
    solution = lamina.poisson(domain, f, show_progress=False)
    _ = solution.values
    solved = watch.lap()
    times = {
        "surface": made,
        "sizing": domain.seconds["geometry"],
        "domain": built,
        "solve": solved,
        "total": built + solved,
    }
    return times, domain, solution


def measure(
    name: str,
    make: Make,
    f: Function,
    exact: Function | None,
    nodes: int,
    device: str,
    repeats: int,
    settings: dict[str, Any],
) -> dict[str, Any]:
    spacing = spacing_for(make, nodes, device, settings)
    for _ in range(2):
        run(make, f, spacing, device, settings)
    gc.collect()
    with peak_memory(device) as memory:
        _, domain, solution = run(make, f, spacing, device, settings)
    facts: dict[str, Any] = {
        "case": name,
        "points": len(domain.points),
        "nodes": domain.unknowns,
        "spacing": spacing,
        "order": domain.order,
        "scheme": domain.scheme.name,
        "levels": len(domain.scheme.table()),
        "cycles": solution.cycles,
        "residual": solution.residual,
        "warnings": [*domain.warnings, *solution.warnings],
        # The resident size of a process says nothing after warm-up runs; scaling.py has it for the CPU.
        "peak_bytes": memory["bytes"] if device == "cuda" else None,
        "reserved_bytes": memory.get("reserved"),
        "bytes_per_node": memory["bytes"] / domain.unknowns if device == "cuda" else None,
    }
    if exact is not None:
        facts |= errors(solution.values, exact(domain.points), remove_mean=True).as_dict()
    del domain, solution
    times = [run(make, f, spacing, device, settings)[0] for _ in range(repeats)]
    facts["best"] = {key: min(t[key] for t in times) for key in STAGES}
    facts["median"] = {key: statistics.median(t[key] for t in times) for key in STAGES}
    facts["runs"] = repeats
    facts["bar_seconds"] = BARS[name]
    facts["time_met"] = facts["median"]["total"] <= BARS[name]
    facts["memory_met"] = None if device == "cpu" else facts["bytes_per_node"] <= MOST_BYTES
    return facts


def profile(
    name: str, make: Make, f: Function, spacing: float, device: str, rows: int, settings: dict[str, Any]
) -> None:
    """Print where the time goes, by operation, in building the domain and in solving."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    run(make, f, spacing, device, settings)
    surface = make().to(device)
    with recorded(activities=activities) as building:
        domain = build(surface, spacing, device, settings)
        synchronize(device)
    with recorded(activities=activities) as solving:
        _ = lamina.poisson(domain, f, show_progress=False).values
        synchronize(device)
    for part, found in (("domain", building), ("solve", solving)):
        averages = found.key_averages()
        for key in ("self_cuda_time_total", "self_cpu_time_total") if device == "cuda" else ("self_cpu_time_total",):
            print(f"\n{name}, {part}, by {key}")
            print(averages.table(sort_by=key, row_limit=rows, max_name_column_width=60))


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'case':12} {'scheme':8} {'points':>8} {'nodes':>9} {'cycles':>6} "
        + " ".join(f"{stage:>8}" for stage in STAGES)
        + f" {'median':>8} {'bar':>5} {'bytes/node':>10} {'nmae':>9} {'nmaxe':>9}"
    ]
    for row in rows:
        stages = " ".join(f"{row['best'][key]:8.4f}" for key in STAGES)
        accuracy = f"{row['nmae']:9.2e} {row['nmaxe']:9.2e}" if "nmae" in row else f"{'-':>9} {'-':>9}"
        memory = "-" if row["bytes_per_node"] is None else f"{row['bytes_per_node']:.0f}"
        lines.append(
            f"{row['case']:12} {row['scheme']:8} {row['points']:8d} {row['nodes']:9d} {row['cycles']:6d} "
            f"{stages} {row['median']['total']:8.4f} {row['bar_seconds']:5.2f} {memory:>10} {accuracy}"
        )
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    options.add_argument("--sphere-nodes", type=int, default=2_650_000)
    options.add_argument("--mesh-nodes", type=int, default=50_000)
    options.add_argument("--mesh-vertices", type=int, default=100_000)
    options.add_argument("--mesh-order", type=int, default=2)
    options.add_argument("--repeats", type=int, default=10)
    options.add_argument("--trace-nodes", type=int, default=2_000_000)
    options.add_argument("--mesh", type=Path, help='a mesh for the case "mesh file"')
    options.add_argument("--cases", nargs="+", choices=list(BARS), default=list(BARS))
    options.add_argument("--profile", action="store_true", help="print the operations that take the time, and no more")
    options.add_argument("--rows", type=int, default=20, help="operations to print with --profile")
    arguments = options.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA device; use --device cpu with smaller sizes.")
    directions, faces = geodesic_sphere(arguments.mesh_vertices)
    problem = sphere_poisson()
    ball, spike = (partial(lamina.Mesh, V, faces) for V in (directions, spiked(directions)))
    by_order: dict[str, Any] = {"order": arguments.mesh_order}
    cases: dict[str, tuple[Make, Function, Function | None, int, dict[str, Any]]] = {
        "sphere": (
            lamina.Sphere,
            problem.rhs,
            problem.solution,
            arguments.sphere_nodes,
            {"order": 3},
        ),
        "sphere, order 2": (
            lamina.Sphere,
            problem.rhs,
            problem.solution,
            arguments.trace_nodes,
            {"order": 2},
        ),
        "sphere mesh": (ball, problem.rhs, problem.solution, arguments.mesh_nodes, by_order),
        "spike mesh": (spike, wave, None, arguments.mesh_nodes, by_order),
    }
    if arguments.mesh:
        cases["mesh file"] = (from_file(arguments.mesh), wave, None, 49_000, by_order)
    device = arguments.device
    rows = []
    for name in arguments.cases:
        if name not in cases:
            continue
        make, f, exact, nodes, settings = cases[name]
        if arguments.profile:
            profile(name, make, f, spacing_for(make, nodes, device, settings), device, arguments.rows, settings)
            continue
        try:
            rows.append(measure(name, make, f, exact, nodes, device, arguments.repeats, settings))
        except (lamina.InputError, lamina.SolveError, torch.OutOfMemoryError) as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            rows.append({"case": name, "failure": f"{type(error).__name__}: {error}"})
        if device == "cuda":
            torch.cuda.empty_cache()
    if rows:
        print(table([row for row in rows if "failure" not in row]))
        result = {"device": device, "dtype": "float64", "bar_bytes_per_node": MOST_BYTES, "rows": rows}
        print("written to", record("gpu" if device == "cuda" else "gpu_on_cpu", result, arguments.out))


if __name__ == "__main__":
    main()
