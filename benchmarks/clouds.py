"""Point clouds of real shapes, as people hold them: is the solution right, and if not, does lamina say how wrong?

    LAMINA_DATA=../shared/data python benchmarks/clouds.py [--only spot hand] [--clouds vertices uniform] [--jobs 2]
    python benchmarks/clouds.py --halve              # also at half the default spacing
    python benchmarks/clouds.py --set judged         # the shapes that chose no constant

Each shape is a mesh, centred and scaled so that its longest half-extent is 1. Six clouds are made of it: its vertices
with and without normals, 20,000 points uniform by area, the same with noise of 0.5 % of the extent, 20,000 points whose
density varies 20 times along the longest axis, and the uniform ones with 2 % outliers in the box. lamina solves
Laplacian(u) = sin(2x) cos(1.5y) + z with default settings, and so does the point-cloud Laplacian of robust_laplacian
(Sharp and Crane 2020, 60 neighbours) with a sparse LU. Errors are NRMSE at the vertices against FEM on the mesh
refined until it settles (benchmarks/meshes.py). A case is right if its area is within 3 % and its NRMSE at most 5e-2;
otherwise it must be refused, or warned with the size of the error. Each case is a process of its own with one thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import BENCHMARKS, parser, record
from meshes import CACHE, load_scaled, make_reference, right_hand_side

DATA = Path(os.environ.get("LAMINA_DATA") or BENCHMARKS.parent.parent / "shared" / "data")
MAX_AREA_ERROR, MAX_NRMSE = 0.03, 5e-2  # of a right case
CLOUDS = ("vertices+normals", "vertices", "uniform", "noise", "uneven", "outliers")
# Constants of the reconstruction may be chosen on the first set of shapes; the second judges them.
CHOSEN_ON = {
    "beetle_thin_open": "meshes", "cheese_genus133": "meshes", "sofa": "paper",
    "spot": "meshes", "fandisk": "meshes", "hand": "meshes", "knot": "meshes", "threeholes": "meshes",
    "chair_A_watertight": "furniture", "octopus": "paper", "camelhead_open": "meshes",
}  # fmt: skip
JUDGED_ON = {
    "fish": "meshes", "bunny": "meshes", "armadillo": "meshes", "pig_cpm": "meshes", "wingnut": "meshes",
    "anchor_dense": "meshes", "bumpy_torus_cpm": "meshes", "retinal_lowquality": "meshes", "skull": "meshes",
    "maxplanck_decimated": "meshes",
    "table_watertight": "furniture", "velvetsofa_watertight": "furniture", "damaskchair_watertight": "furniture",
    "apple": "paper", "fastener": "paper", "camera": "paper", "holey_human": "paper",
    "maxplanck_cut": "paper",
}  # fmt: skip
Row = dict[str, Any]


def path_of(name: str) -> Path:
    return DATA / (CHOSEN_ON | JUDGED_ON)[name] / f"{name}.ply"


def sampled(mesh: Any, count: int, seed: int) -> Any:
    """Points (count, 3) of a mesh, random and uniform by area."""
    import numpy as np

    V, F = mesh.points.numpy(), mesh.faces.numpy()
    a, b, c = (V[F[:, k]] for k in range(3))
    area = np.linalg.norm(np.cross(b - a, c - a), axis=1)
    random = np.random.default_rng(seed)
    face = random.choice(len(F), count, p=area / area.sum())
    s, t = random.random((2, count))
    s, t = np.where(s + t > 1, 1 - s, s)[:, None], np.where(s + t > 1, 1 - t, t)[:, None]
    return a[face] + s * (b - a)[face] + t * (c - a)[face]


def cloud(mesh: Any, kind: str) -> tuple[Any, Any]:
    """Points and normals (or None) of one kind of cloud."""
    import numpy as np

    V = mesh.points.numpy()
    if kind.startswith("vertices"):
        used = np.unique(mesh.faces.numpy())
        return V[used], mesh.normals.numpy()[used] if kind == "vertices+normals" else None
    random = np.random.default_rng(0)
    if kind == "uneven":
        many = sampled(mesh, 200_000, 2)
        low, high = V.min(0), V.max(0)
        axis = int((high - low).argmax())
        share = (many[:, axis] - low[axis]) / (high - low)[axis]
        density = 20.0**share
        return many[random.choice(len(many), 20_000, replace=False, p=density / density.sum())], None
    points = sampled(mesh, 20_000, 1)
    if kind == "noise":
        points = points + random.normal(size=points.shape) * 0.01
    if kind == "outliers":
        points = np.vstack([points, random.uniform(V.min(0), V.max(0), (400, 3))])
    return points, None


def reference(name: str) -> tuple[Any, Any, Any]:
    """The mesh, reference values at its vertices (NaN where there is none), and weights of the vertices."""
    import numpy as np

    mesh = load_scaled(path_of(name))
    values = np.load(CACHE / make_reference(path_of(name))["file"])
    weights = mesh.areas.numpy() * np.isfinite(values)
    return mesh, np.nan_to_num(values), weights


def nrmse(values: Any, exact: Any, weights: Any) -> float:
    import numpy as np

    error = values - exact
    error = error - (weights * error).sum() / weights.sum()
    inside = weights > 0
    return float(np.sqrt((weights * error**2).sum() / weights.sum()) / np.ptp(exact[inside]))


def position_errors(points: Any, mesh: Any) -> tuple[float, float]:
    """RMS and 99th percentile of the distances of points from a mesh."""
    import igl
    import numpy as np

    square, *_ = igl.point_mesh_squared_distance(points, mesh.points.numpy(), mesh.faces.numpy())
    distance = np.sqrt(np.maximum(square, 0))
    return float(np.sqrt((distance**2).mean())), float(np.quantile(distance, 0.99))


def one(name: str, kind: str, halve: bool) -> Row:
    """Solve one case in this process."""
    import torch

    import lamina

    torch.set_num_threads(1)
    mesh, exact, weights = reference(name)
    points, normals = cloud(mesh, kind)
    row: Row = {"shape": name, "cloud": kind, "points": len(points)}
    given = [torch.as_tensor(v) if v is not None else None for v in (points, normals)]
    lamina.poisson(lamina.Sphere(level=3), lambda x: x[:, 0], show_progress=False)  # what is loaded once
    spacing = None
    for suffix in ("", "_half")[: 2 if halve else 1]:
        start = time.perf_counter()
        domain = lamina.Domain(lamina.PointCloud(*given), spacing, show_progress=False)
        u = lamina.poisson(domain, right_hand_side, show_progress=False)
        seconds = time.perf_counter() - start
        area = float(domain.quadrature.area)
        rms, far = position_errors(domain.quadrature.points.numpy(), mesh)
        row |= {
            f"seconds{suffix}": seconds, f"nrmse{suffix}": nrmse(u(mesh.points).numpy(), exact, weights),
            f"area{suffix}": area / float(mesh.areas.sum()), f"unknowns{suffix}": domain.unknowns,
            f"spacing{suffix}": domain.spacing, f"order{suffix}": domain.order, f"cycles{suffix}": u.cycles,
            f"position_rms{suffix}": rms, f"position_99{suffix}": far,
            f"method{suffix}": domain.reconstruction.method, f"reason{suffix}": domain.reconstruction.reason,
            f"warnings{suffix}": [*domain.warnings, *u.warnings],
            f"area_error{suffix}": domain.reconstruction.area_error,
        }  # fmt: skip
        spacing = domain.spacing / 2
    return row


def robust(name: str, kind: str) -> Row:
    """The same by the point-cloud Laplacian of robust_laplacian, in this process."""
    import numpy as np
    import robust_laplacian
    import scipy.sparse as sparse
    from scipy.sparse.linalg import splu
    from scipy.spatial import cKDTree

    mesh, exact, weights = reference(name)
    points, _ = cloud(mesh, kind)
    start = time.perf_counter()
    L, M = robust_laplacian.point_cloud_laplacian(points, n_neighbors=60)
    mass = M.diagonal()
    x, y, z = points.T
    f = np.sin(2 * x) * np.cos(1.5 * y) + z
    f = f - (mass * f).sum() / mass.sum()
    u = splu((L + 1e-9 * sparse.diags(mass)).tocsc()).solve(-(mass * f))
    seconds = time.perf_counter() - start
    values = u[cKDTree(points).query(mesh.points.numpy())[1]]
    return {"robust_seconds": seconds, "robust_nrmse": nrmse(values, exact, weights)}


def verdict(row: Row, suffix: str = "") -> str:
    """right, warned (wrong, with the size of the error), refused, silent (wrong without that) or failed."""
    if "failed" in row:
        return "refused" if row["failed"].startswith("lamina.errors.InputError") else "failed"
    right = abs(row[f"area{suffix}"] - 1) <= MAX_AREA_ERROR and row[f"nrmse{suffix}"] <= MAX_NRMSE
    sized = [w for w in row[f"warnings{suffix}"] if "may be off by about" in w or "leave openings" in w]
    if right:
        return "right, warned" if sized else "right"
    return "warned" if sized else "silent"


def run(part: str, name: str, kind: str, longest: float, halve: bool) -> Row:
    command = [sys.executable, __file__, part, name, kind, *(["--halve"] if halve else [])]
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=longest, env=environment)
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {longest:g} s"}
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:300] if done.stderr.strip() else "no message"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def case(name: str, kind: str, asked: Any, known: dict[str, Row]) -> Row:
    row = {"shape": name, "cloud": kind} | run("--one", name, kind, asked.longest, asked.halve)
    before = known.get(f"{name} {kind}")
    row |= before or run("--robust", name, kind, asked.longest, False)
    row["verdict"] = verdict(row)
    halved = f" | half {row['nrmse_half']:.1e} {row['area_half']:.3f}" if "nrmse_half" in row else ""
    shown = row.get("failed") or (
        f"nrmse {row['nrmse']:.1e} area {row['area']:.3f} far {row['position_99']:.1e} {row['seconds']:.1f} s "
        f"{row['method']} order {row['order']} n {row['unknowns']}{halved}"
    )
    other = f"{row['robust_nrmse']:.1e} {row['robust_seconds']:.1f} s" if "robust_nrmse" in row else "-"
    print(f"{name:24s} {kind:17s} {row['verdict']:13s} {shown} | robust {other}", flush=True)
    return row


def summary(rows: list[Row]) -> Row:
    import numpy as np

    found: Row = {"verdicts": dict(Counter(row["verdict"] for row in rows))}
    for kind in CLOUDS:
        some = [row for row in rows if row["cloud"] == kind and "nrmse" in row]
        if some:
            better = [row["nrmse"] < row.get("robust_nrmse", np.inf) for row in some]
            slower = [row["seconds"] / row["robust_seconds"] for row in some if "robust_seconds" in row]
            found[kind] = {
                "median_nrmse": float(np.median([row["nrmse"] for row in some])),
                "median_robust": float(np.median([row.get("robust_nrmse", np.nan) for row in some])),
                "better_share": float(np.mean(better)),
                "median_time_ratio": float(np.median(slower)) if slower else None,
                "median_seconds": float(np.median([row["seconds"] for row in some])),
            }
    return found


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        return print(json.dumps(one(*sys.argv[2:4], "--halve" in sys.argv)))
    if sys.argv[1:2] == ["--robust"]:
        return print(json.dumps(robust(*sys.argv[2:4])))
    options = parser(__doc__)
    options.add_argument("--set", choices=("chosen", "judged", "all"), default="all", dest="which")
    options.add_argument("--only", nargs="+")
    options.add_argument("--clouds", nargs="+", choices=CLOUDS, default=CLOUDS)
    options.add_argument("--halve", action="store_true")
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--longest", type=float, default=300, help="seconds for one case")
    options.add_argument("--name", default="clouds", help="of the results file")
    asked = options.parse_args()
    chosen = {"chosen": CHOSEN_ON, "judged": JUDGED_ON, "all": CHOSEN_ON | JUDGED_ON}[asked.which]
    names = asked.only or list(chosen)
    for name in names:
        make_reference(path_of(name))
    kept = CACHE / "clouds_robust.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    cases = [(name, kind) for name in names for kind in asked.clouds]
    with ThreadPoolExecutor(asked.jobs) as pool:
        rows = list(pool.map(lambda c: case(*c, asked, known), cases))
    known |= {
        f"{row['shape']} {row['cloud']}": {key: row[key] for key in ("robust_seconds", "robust_nrmse")}
        for row in rows if "robust_nrmse" in row
    }  # fmt: skip
    kept.write_text(json.dumps(known))
    found = summary(rows)
    print(json.dumps(found, indent=1))
    record(asked.name, {"summary": found, "rows": rows, "chosen_on": list(CHOSEN_ON), "judged_on": list(JUDGED_ON)},
           asked.out)  # fmt: skip


if __name__ == "__main__":
    main()
