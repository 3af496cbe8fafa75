"""lamina's learned operator against the jet and against the paper's operator, on shapes that it was not trained on.

    LAMINA_DATA=FOLDER python benchmarks/learned.py [--parts clean paper real damaged heat time table]
    PYTHONPATH=src python benchmarks/learned.py --parts time --device cuda

clean    the sphere from clean samples: error, order of convergence when sampling is refined with the grid, order 4
paper    the paper's operator (attention, shell) and "neural" (auto) on its shapes, their vertices taken as points
real     scans of which the data have a mesh: "neural" against "jet" at the vertices of the part that was scanned; of a
         mesh with many holes once with these filled
damaged  clouds of 20,000 points with noise, outliers, flipped normals; thin parts and edges: "neural" against "jet",
         with the fits that jet chooses by itself and, for the first seed, with the best of four fixed ones
heat     a harmonic of the sphere through time
time     to build E, over the time of the jet
table    what the results files say, put into docs/neural.md

Shapes have a longest half-extent of 1. Poisson with f = sin(2x) cos(1.5y) + z; NRMSE at the vertices of the mesh that
samples were drawn from, against FEM on that mesh refined until it settles (meshes.py). Medians over seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import meshes
import numpy as np
import torch
from common import BENCHMARKS, Stopwatch, child, parser, record, write

import lamina
from lamina.errors import InputError, SolveError
from lamina.fits.surface_fit import ChosenSettings, Cloud, FittedSurface, JetSettings
from lamina.gallery import sphere_heat, sphere_poisson
from lamina.geometry.lattice import Lattice
from lamina.geometry.triangles import unit
from lamina.grid.band import Band, band_radius
from lamina.metrics import errors
from lamina.paper.baselines.reference import reference_poisson
from lamina.paper.interpolation import Lines, interpolation_matrix
from lamina.reconstruction.choose import METHOD_OF_EXTENSION, reconstruct
from lamina.search.neighbours import k_nearest
from lamina.surfaces.base import Surface

meshes.TOLERANCE = 2e-5
DATA = Path(os.environ.get("LAMINA_DATA") or BENCHMARKS.parent.parent / "shared" / "data")
MESHES = {
    "spot": "meshes/spot",
    "max planck": "meshes/maxplanck_sns10606",
    "bunny": "meshes/bunny",
    "hand": "meshes/hand",
    "fandisk": "meshes/fandisk",
    "eight": "meshes/eight",
    "wingnut": "meshes/wingnut",
    "knot": "meshes/knot",
    "skull": "meshes/skull",
    "bumpy torus": "meshes/bumpy_torus_cpm",
    "three holes": "meshes/threeholes",
    "fish": "meshes/fish",
    "camel head": "meshes/camelhead_open",
}
OTHERS = ("eight", "wingnut", "knot", "skull", "bumpy torus", "three holes")
REAL = {
    "bunny scan": ("pointclouds/bunny_open3d.ply", "meshes/bunny_scan_holes.ply", False),
    "chair": ("pointclouds/chair_normals.ply", "furniture/chair_C_broken.ply", False),
    "chair, holes filled": ("pointclouds/chair_normals.ply", "furniture/chair_C_broken.ply", True),
}  # scan, mesh, whether the holes of the mesh are filled
COUNT = 20_000
REAL_SPACING = 0.04
SCANNED = 1e-3  # from a vertex of the mesh to the nearest point of its scan, of half the extent
START, END = "<!-- tables: learned.py --parts table -->", "<!-- end of tables -->"
EXTENSIONS = ("attention", "neural", "jet")
DOCS = BENCHMARKS.parent / "docs" / "neural.md"
Row = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """A surface to sample, with the solution known at some of its points."""

    surface: Surface
    rhs: Callable[[torch.Tensor], torch.Tensor]
    points: torch.Tensor  # (n, 3)
    exact: np.ndarray  # (n,), NaN where unknown

    def error(self, values: torch.Tensor) -> float:
        known = np.isfinite(self.exact)
        return errors(values.numpy()[known], self.exact[known], remove_mean=True).nrmse


def shape(name: str) -> Shape:
    if name == "sphere":
        problem = sphere_poisson()
        points = unit(torch.randn(5000, 3, generator=torch.Generator().manual_seed(99), dtype=torch.float64))
        return Shape(lamina.Sphere(), problem.rhs, points, problem.solution(points).numpy())
    path = DATA / f"{MESHES[name]}.ply"
    mesh = meshes.load_scaled(path)
    exact = np.load(meshes.CACHE / meshes.make_reference(path)["file"])
    return Shape(mesh, meshes.right_hand_side, mesh.points, exact)


def clean(s: Shape, seed: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    feet = s.surface.sample(COUNT, seed)
    return feet.points, feet.normals


def noise(s: Shape, seed: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """1 % of the extent; normals by principal components."""
    points, _ = clean(s, seed)
    size = 0.01 * float((s.surface.bounds[1] - s.surface.bounds[0]).max())
    return points + size * torch.randn(points.shape, generator=_generator(seed), dtype=points.dtype), None


def outliers(s: Shape, seed: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """5 % of the points uniform in the box, with normals at random; the others keep theirs."""
    (points, normals), g = clean(s, seed), _generator(seed)
    assert normals is not None
    count, (low, high) = COUNT // 20, s.surface.bounds
    points[-count:] = low + (high - low) * torch.rand(count, 3, generator=g, dtype=points.dtype)
    normals[-count:] = unit(torch.randn(count, 3, generator=g, dtype=points.dtype))
    return points, normals


def bare_outliers(s: Shape, seed: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The same without normals."""
    return outliers(s, seed)[0], None


def flipped(s: Shape, seed: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """10 % of the normals reversed."""
    points, normals = clean(s, seed)
    assert normals is not None
    turn = torch.rand(COUNT, generator=_generator(seed)) < 0.1
    return points, torch.where(turn[:, None], -normals, normals)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + seed)


CASES: dict[str, tuple[tuple[str, ...], float, Callable[..., tuple[torch.Tensor, torch.Tensor | None]]]] = {
    "clean": (("sphere", "spot", "max planck", "bunny"), 0.04, clean),
    "noise": (("sphere", "spot", "max planck", "bunny"), 0.04, noise),
    "outliers": (("sphere", "spot", "max planck", "bunny"), 0.04, outliers),
    "outliers, no normals": (("sphere", "spot", "max planck", "bunny"), 0.04, bare_outliers),
    "flipped": (("sphere", "spot", "max planck", "bunny"), 0.04, flipped),
    "thin and sharp": (("hand", "fandisk"), 0.02, clean),
    "other shapes": ((*OTHERS, "fish", "camel head"), 0.04, clean),
    "other shapes, noise": (OTHERS, 0.04, noise),
    "other shapes, flipped": (OTHERS, 0.04, flipped),
}
FIXED = {
    f"degree {jets.degree}, {jets.k} neighbours{', normals' if jets.slopes else ''}": jets
    for jets in (JetSettings(*of) for of in ((2, 24, False), (4, 48, False), (6, 24, True), (2, 200, False)))
}


def solved(s: Shape, cloud: Surface, spacing: float, extension: str, **options: Any) -> tuple[float, lamina.Domain]:
    """NRMSE at the shape's points; infinite where the solve fails."""
    domain = lamina.Domain(cloud, spacing, extension=extension, show_progress=False, **options)
    u = lamina.poisson(domain, s.rhs, tolerance=1e-7, show_progress=False)
    return s.error(u(s.points).cpu()), domain


def attempt(s: Shape, cloud: Callable[[], Surface], spacing: float, extension: str, **options: Any) -> Row:
    start = perf_counter()
    try:
        error, domain = solved(s, cloud(), spacing, extension, **options)
        row: Row = {"nrmse": error, "scheme": domain.scheme.name}
    except (InputError, SolveError, torch.linalg.LinAlgError) as reason:
        row = {"nrmse": math.inf, "failed": str(reason)}
    return {**row, "seconds": perf_counter() - start}


def with_fixed(cloud: lamina.PointCloud, settings: JetSettings) -> lamina.PointCloud:
    """The cloud with jets of the same settings everywhere."""
    kept = cloud._kept
    samples = Cloud(cloud._unique[kept], cloud._normals[kept], cloud._component[kept])
    near = samples.neighbours(torch.arange(len(kept)), max(settings.k, 16))
    choice = ChosenSettings(settings, math.nan, False)
    cloud._fit = FittedSurface(samples, near[:, :16].contiguous(), samples.fit(near, settings), choice, None)
    return cloud


def damaged_part(options: Any) -> dict[str, Any]:
    """What is measured is put beside what the results file has of other cases and extensions.

    Each solve is a process of its own, `jobs` of them at once, so that one can be stopped.
    """
    figures: dict[str, Any] = {"count": COUNT, "order": options.order, "longest": options.longest}
    rows = figures["cases"] = _figures(options, "damaged").get("cases", {})
    chosen = [
        (case, name)
        for case, (names, _, _) in CASES.items()
        for name in names
        if (not options.cases or case in options.cases) and (not options.shapes or name in options.shapes)
    ]
    for name in {name for _, name in chosen}:
        shape(name)  # its reference, before anyone waits for it
    with ThreadPoolExecutor(options.jobs) as pool:

        def start(row: tuple[str, str], how: str, seed: int = 0) -> Future[Row]:
            return pool.submit(in_child, options, *row, how, seed)

        seeds = {r: {e: [start(r, e, i) for i in range(options.seeds)] for e in options.extensions} for r in chosen}
        fixed = {r: {way: start(r, way) for way in FIXED} for r in chosen if options.fixed}
        for case, name in chosen:
            row = rows.setdefault(case, {}).setdefault(name, {})
            row.update({e: _summary([f.result() for f in solves]) for e, solves in seeds[case, name].items()})
            if options.fixed:
                row["jet, fixed"] = {way: f.result() for way, f in fixed[case, name].items()}
            record(f"{options.name}_damaged", figures, options.out)
            print(case, name, _line(row), flush=True)
    return figures


def in_child(options: Any, case: str, name: str, how: str, seed: int) -> Row:
    """One solve of part damaged; infinite where it takes longer than it may, or the process dies."""
    arguments = ("--order", options.order, "--solve", case, name, how, str(seed))
    try:
        return child(__file__, *arguments, timeout=options.longest)
    except subprocess.TimeoutExpired:
        reason = f"stopped after {options.longest} s"
    except subprocess.CalledProcessError as problem:
        reason = f"ended with {problem.returncode}"
    return {"nrmse": math.inf, "failed": reason, "seconds": options.longest}


def solve_damaged(case: str, name: str, how: str, seed: int, order: str) -> Row:
    """how: an extension, or the name of one of the fixed jets."""
    _, spacing, damage = CASES[case]
    s = shape(name)
    points, normals = damage(s, seed)

    def cloud() -> Surface:
        made = lamina.PointCloud(points, normals)
        return with_fixed(made, FIXED[how]) if how in FIXED else made

    return attempt(s, cloud, spacing, "jet" if how in FIXED else how, order=order if order == "auto" else int(order))


def _figures(options: Any, part: str) -> dict[str, Any]:
    path = options.out / f"{options.name}_{part}.json"
    return json.loads(path.read_text())["figures"] if path.exists() else {}


def _summary(found: list[Row]) -> Row:
    return {
        "nrmse": statistics.median(r["nrmse"] for r in found),
        "seeds": len(found),
        "each": [r["nrmse"] for r in found],
        "seconds": statistics.median(r["seconds"] for r in found),
        "failed": [r["failed"] for r in found if "failed" in r],
        "schemes": sorted({r["scheme"] for r in found if "scheme" in r}),
    }


def _line(row: Row) -> str:
    return "  ".join(f"{k} {_cell(row, k)}" for k in ("neural", "jet", "jet, fixed"))


def _cell(row: Row, extension: str) -> str:
    """Median error and number of seeds, or that it failed; for fixed jets the best."""
    if extension not in row:
        return "not run"
    found = row[extension]
    if "each" in found:
        value, seeds = found["nrmse"], f" ({found['seeds']})"
    else:
        value, seeds = min((r["nrmse"] for r in found.values() if r["nrmse"] is not None), default=None), " (1)"
    return ("failed" if value is None or value == math.inf else f"{value:.1e}") + seeds


def table_part(options: Any) -> dict[str, Any] | None:
    """Put the tables between the two marks in the docs."""
    cases = _figures(options, "damaged").get("cases", {})
    lines = ["| cloud | shape | neural | jet | best of four fixed jets |", "|---|---|---|---|---|"]
    for case, rows in cases.items():
        for name, row in rows.items():
            cells = (case, name, *(_cell(row, e) for e in ("neural", "jet", "jet, fixed")))
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| shape of the paper | neural | attention | ratio | jet | the mesh itself |", f"|{'---|' * 6}"]
    for name, row in _figures(options, "paper").get("shapes", {}).items():
        each = {e: "failed" if row[e]["nrmse"] is None else f"{row[e]['nrmse']:.1e}" for e in (*EXTENSIONS, "surface")}
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.1f}"
        cells = (name, each["neural"], each["attention"], ratio, each["jet"], each["surface"])
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| scan | points | normals | neural | jet |", "|---|---|---|---|---|"]
    for name, row in _figures(options, "real").get("shapes", {}).items():
        each = ["failed" if row[e]["nrmse"] is None else f"{row[e]['nrmse']:.1e}" for e in ("neural", "jet")]
        lines.append(f"| {name} | {row['points']} | {'yes' if row['normals'] else 'no'} | {' | '.join(each)} |")
    before, rest = DOCS.read_text().split(START)
    write(DOCS, before + START + "\n" + "\n".join(lines) + "\n" + END + rest.split(END)[1])
    return None


def clean_part(options: Any) -> dict[str, Any]:
    """The sphere: 10k samples at 0.05; sampling refined with the grid; order 4."""
    problem = sphere_poisson()

    def nmae(count: int, spacing: float, order: int, extension: str, seed: int) -> float:
        feet = lamina.Sphere().sample(count, seed)
        cloud = lamina.PointCloud(feet.points, feet.normals)
        domain = lamina.paper.BandDomain(
            cloud, spacing, order=order, scheme="coupled", extension=extension, show_progress=False
        )
        u = lamina.poisson(domain, problem.rhs, tolerance=1e-10, show_progress=False)
        return errors(u.values, problem.solution(feet.points), remove_mean=True).nmae

    def median(count: int, spacing: float, order: int, extension: str) -> float:
        return statistics.median(nmae(count, spacing, order, extension, seed) for seed in range(options.seeds))

    figures: dict[str, Any] = {"order 2, 0.05, 10k": {e: median(10_000, 0.05, 2, e) for e in ("neural", "jet")}}
    print(figures, flush=True)
    refined = {h: median(round(10_000 * (0.05 / h) ** 2), h, 2, "neural") for h in (0.1, 0.05, 0.025)}
    orders = [math.log2(refined[0.1] / refined[0.05]), math.log2(refined[0.05] / refined[0.025])]
    figures["refined together"] = {"nmae": refined, "orders": orders}
    print(figures["refined together"], flush=True)
    figures["order 4, 0.05, 10k"] = {e: median(10_000, 0.05, 4, e) for e in ("neural", "jet")}
    print(figures["order 4, 0.05, 10k"], flush=True)
    return figures


def heat_part(options: Any) -> dict[str, Any]:
    """Largest NMAE over times of a harmonic that decays on the sphere, from 10k clean samples."""
    problem = sphere_heat()
    feet = lamina.Sphere().sample(10_000, 0)
    domain = lamina.Domain(lamina.PointCloud(feet.points, feet.normals), 0.05, extension="neural", show_progress=False)
    rows = {}
    for t in (0.001, 0.01, 0.05, 0.1, 0.3, 1.0):
        u = lamina.heat(domain, problem.initial, time=t, accuracy=1e-5, show_progress=False)
        rows[t] = errors(u.values, problem.solution(feet.points, t)).nmae
    print(rows, flush=True)
    return {"scheme": domain.scheme.name, "nmae": rows}


def paper_part(options: Any) -> dict[str, Any]:
    """Every mesh of the paper by its vertices alone, and the sphere: "attention" with shell, "neural" with auto.

    Extensions that were not asked for keep what the results file has. "surface": the mesh itself, or the sphere, which
    is the best that can be hoped for.
    """
    rows: dict[str, Any] = _figures(options, "paper").get("shapes", {})
    sphere = shape("sphere")
    feet = lamina.Sphere().sample(10_000, 0)
    shapes: dict[str, tuple[Shape, Callable[[], Surface]]] = {
        "sphere": (sphere, lambda: lamina.PointCloud(feet.points, feet.normals))
    }
    for path in sorted((DATA / "paper").glob("*.ply")):
        mesh = meshes.load_scaled(path)
        exact = np.load(meshes.CACHE / meshes.make_reference(path)["file"])
        used = torch.unique(mesh.faces)
        shapes[path.stem] = (
            Shape(mesh, meshes.right_hand_side, mesh.points[used], exact[used.numpy()]),
            lambda mesh=mesh, used=used: lamina.PointCloud(mesh.points[used], mesh.normals[used]),
        )
    for name, (s, cloud) in shapes.items():
        row = rows.setdefault(name, {})
        row.update({e: attempt(s, cloud, 0.05, e) for e in EXTENSIONS if e in options.extensions or e not in row})
        if "surface" in options.extensions or "surface" not in row:
            row["surface"] = attempt(s, lambda s=s: s.surface, 0.05, "auto")
        found = [row[e]["nrmse"] for e in ("attention", "neural")]
        row["ratio"] = None if None in found or math.inf in found else found[0] / found[1]
        print(name, {k: v if k == "ratio" else (v["nrmse"], v.get("failed")) for k, v in row.items()}, flush=True)
        record(f"{options.name}_paper", {"spacing": 0.05, "shapes": rows}, options.out)
    return {"spacing": 0.05, "shapes": rows}


def real_part(options: Any) -> dict[str, Any]:
    """Scans, in the frame of a mesh: FEM on its faces between scanned places is the reference."""
    rows: dict[str, Any] = {}
    for name, (scan, source, fill) in REAL.items():
        cloud, mesh = lamina.load(DATA / scan), lamina.load(DATA / source)
        assert mesh.faces is not None
        low, high = cloud.points.amin(0), cloud.points.amax(0)
        middle, half = (low + high) / 2, float((high - low).max()) / 2
        points = (cloud.points - middle) / half
        normals = None if isinstance(cloud, lamina.PointCloud) and cloud.estimated else cloud.normals
        V = (mesh.points - middle) / half
        near = k_nearest(points, 1, V)[1][:, 0] < SCANNED
        F = mesh.faces[near[mesh.faces].all(1)]
        whole = fanned(V.numpy(), F.numpy()) if fill else (V.numpy(), F.numpy())
        vertices, faces = meshes.cut_at_points(*whole)
        exact = reference_poisson(vertices, faces, meshes.right_hand_side, tolerance=1e-4, max_vertices=500_000)
        used = np.unique(faces)
        at = torch.from_numpy(vertices[used])
        s = Shape(lamina.Mesh(V, F), meshes.right_hand_side, at, exact.values[used])
        made = partial(lamina.PointCloud, points, normals)
        row = {e: attempt(s, made, REAL_SPACING, e) for e in ("neural", "jet")}
        rows[name] = {"points": len(points), "normals": normals is not None, "reference": source, **row}
        print(name, {e: (row[e]["nrmse"], row[e].get("failed")) for e in row}, flush=True)
    return {"spacing": REAL_SPACING, "shapes": rows}


def fanned(V: np.ndarray, F: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Vertices and faces of a mesh with every hole closed by a fan around the middle of its rim."""
    edges = np.concatenate([F[:, [0, 1]], F[:, [1, 2]], F[:, [2, 0]]])
    known = set(map(tuple, edges.tolist()))
    after: dict[int, list[int]] = {}
    for a, b in edges.tolist():
        if (b, a) not in known:
            after.setdefault(b, []).append(a)
    vertices, faces, path = [V], [F], []
    while path or any(after.values()):
        if not path:
            path = [next(a for a, others in after.items() if others)]
        if not after.get(path[-1]):
            path.pop()  # the loops through here are closed
            continue
        following = after[path[-1]].pop()
        if following not in path:
            path.append(following)
            continue
        first = path.index(following)
        loop, path = np.array(path[first:]), path[: first + 1]
        middle = sum(map(len, vertices))
        vertices.append(V[loop].mean(0, keepdims=True))
        faces.append(np.stack([loop, np.roll(loop, -1), np.full_like(loop, middle)], 1))
    return np.concatenate(vertices), np.concatenate(faces)


def time_part(options: Any) -> dict[str, Any]:
    """Seconds to make the closest points and the rows of E of a sphere from 10k samples, coupled, order 2, 0.05."""
    feet = lamina.Sphere().sample(10_000, 0)
    rows: dict[str, Any] = {}
    for extension in ("jet", "neural") * 3:
        cloud = lamina.PointCloud(feet.points, feet.normals).to(options.device)
        watch = Stopwatch(options.device)
        geometry = reconstruct(cloud, METHOD_OF_EXTENSION[extension]).surface
        lattice = Lattice(geometry.bounds.mean(0), 0.05)
        band = Band.build(geometry, lattice, band_radius(0.05, 0, 1))
        interpolation_matrix(band, band.feet.points, band.component, Lines.NONE)
        rows.setdefault(extension, []).append(watch.lap())
        rows["nodes"] = len(band)
    rows["over the jet"] = min(rows["neural"]) - min(rows["jet"])
    print(rows, flush=True)
    return rows


PARTS = {
    "clean": clean_part, "paper": paper_part, "real": real_part, "damaged": damaged_part, "heat": heat_part,
    "time": time_part, "table": table_part,
}  # fmt: skip


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--cases", nargs="+", choices=CASES, help="of part damaged; all")
    options.add_argument("--shapes", nargs="+", choices=("sphere", *MESHES), help="of part damaged; all")
    options.add_argument("--extensions", nargs="*", default=["neural", "jet"], help="of damaged and paper")
    options.add_argument("--order", default="auto", help="of part damaged")
    options.add_argument("--fixed", action="store_true", help="try jets of fixed degree and neighbourhood too")
    options.add_argument("--longest", type=int, default=300, help="seconds that one process of part damaged may take")
    options.add_argument("--jobs", type=int, default=1, help="solves of part damaged at a time")
    options.add_argument("--solve", nargs=4, metavar=("CASE", "SHAPE", "HOW", "SEED"), help=argparse.SUPPRESS)
    options.add_argument("--device", default="cpu")
    options.add_argument("--name", default="learned", help="first word of the results files")
    chosen = options.parse_args()
    if chosen.solve:
        case, name, how, seed = chosen.solve
        print(json.dumps(solve_damaged(case, name, how, int(seed), chosen.order)))
        return
    for part in chosen.parts:
        suffix = "" if chosen.device == "cpu" else f"_{chosen.device}"
        figures = PARTS[part](chosen)
        if figures is not None:
            record(f"{chosen.name}_{part}{suffix}", figures, chosen.out)


if __name__ == "__main__":
    main()
