"""Poisson on every real mesh of the evaluation data, against FEM on the same mesh refined until it settles.

    LAMINA_DATA=../shared/data python benchmarks/meshes.py [--scheme auto] [--spacing 0.04 0.02]
    python benchmarks/meshes.py --only spot fandisk armadillo --spacing 0.02
    python benchmarks/meshes.py --folders meshes furniture paper
    python benchmarks/meshes.py --folders meshes furniture paper --spacing 0.04 --equal

Each mesh is centred and scaled so that its longest half-extent is 1; f = sin(2x) cos(1.5y) + z. Every file
ends in a row: solved, refused or failed (with the sentence that lamina gave), or crashed, hung or nonsense,
which none should be. A process for each file and a limit on the time of each solve see to that. The seconds
are those of one run with other files beside it, an indication only.

The reference treats a mesh as lamina does: vertices at one position are one, and parts that meet in a point
only are not joined there (a point passes no flux; FEM that shares the vertex does not converge). Errors are
taken at the vertices, without those in such contacts, with the mean removed on each component. References are
kept in benchmarks/.cache; the first run takes some minutes longer for them.

With --equal each file is solved at order 2 and then by the coupled baseline with about as many unknowns.

Bars at spacing 0.02: NRMSE 2e-3 on spot, 1.2e-2 on fandisk and armadillo.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common import BENCHMARKS, domain_of, environment, parser, record, write

BARS = {("spot", 0.02): 2e-3, ("fandisk", 0.02): 1.2e-2, ("armadillo", 0.02): 1.2e-2}
SUFFIXES = {".ply", ".obj", ".off", ".stl", ".glb"}
CACHE = BENCHMARKS / ".cache"
REFERENCE_VERSION = 1  # raise it when the reference is made in another way
TOLERANCE, MAX_VERTICES = 1e-4, 1_400_000  # of reference_poisson
NONSENSE = 0.05  # an NRMSE above this without a warning about the grid is wrong and does not say so
BAD = ("crashed", "hung", "nonsense")

Row = dict[str, Any]


# In the child


def right_hand_side(p: Any) -> Any:
    import torch

    x, y, z = p.unbind(-1)
    return torch.sin(2 * x) * torch.cos(1.5 * y) + z


def load_scaled(path: Path) -> Any:
    """The surface in the file, centred, with a longest half-extent of 1, by the vertices that faces use."""
    import lamina

    surface = lamina.load(path)
    if surface.faces is None:
        raise lamina.InputError(f"{path} holds points and no faces; this benchmark is about meshes.")
    used = surface.points[surface.faces.reshape(-1)]
    low, high = used.amin(0), used.amax(0)
    scaled = (surface.points - (low + high) / 2) / ((high - low).max() / 2)
    return remade(surface, scaled)


def remade(surface: Any, points: Any) -> Any:
    """A new mesh of the same faces over points, with nothing computed yet, and the notes of the old one."""
    import lamina

    mesh = lamina.Mesh(points, surface.faces, name=surface.name)
    mesh.notes = list(surface.notes)
    return mesh


def cut_at_points(V: Any, F: Any) -> tuple[Any, Any]:
    """The mesh, faces in the same order, with a vertex for each fan of faces that edges join there."""
    import numpy as np
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    _, same = np.unique(V, axis=0, return_inverse=True)
    f = same.reshape(-1)[F]
    corner = np.arange(3 * len(f)).reshape(-1, 3)
    ends = np.concatenate([f[:, [0, 1]], f[:, [1, 2]], f[:, [2, 0]]])
    at = np.concatenate([corner[:, [0, 1]], corner[:, [1, 2]], corner[:, [2, 0]]])
    turned = ends[:, 0] > ends[:, 1]
    ends[turned], at[turned] = ends[turned][:, ::-1], at[turned][:, ::-1]
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    ends, at = ends[order], at[order]
    joined = (ends[1:] == ends[:-1]).all(1)
    a, b = at[:-1][joined].reshape(-1), at[1:][joined].reshape(-1)
    links = coo_array((np.ones(len(a), dtype=np.int8), (a, b)), shape=(corner.size, corner.size))
    count, label = connected_components(links, directed=False)
    vertices = np.empty((count, 3))
    vertices[label] = V[F.reshape(-1)]
    return vertices, label.reshape(-1, 3).astype(np.int64)


def make_reference(path: Path) -> Row:
    """The reference for one file, from the cache or new: where it is and how good."""
    import numpy as np

    from lamina.errors import SolveError
    from lamina.paper.baselines.reference import reference_poisson

    surface = load_scaled(path)
    V, F = surface.points.numpy(), surface.faces.numpy()
    settings = f"{REFERENCE_VERSION} {TOLERANCE} {MAX_VERTICES}".encode()
    key = hashlib.sha256(V.tobytes() + F.tobytes() + settings).hexdigest()[:20]
    values_at, facts_at = CACHE / f"{path.stem}-{key}.npy", CACHE / f"{path.stem}-{key}.json"
    if facts_at.exists() and values_at.exists():
        return json.loads(facts_at.read_text())
    start = time.perf_counter()
    vertices, faces = cut_at_points(V, F)
    solver, most = "auto", MAX_VERTICES
    try:
        found = reference_poisson(vertices, faces, right_hand_side, tolerance=TOLERANCE, max_vertices=most)
    except SolveError:  # multigrid gave up on thin triangles; a direct solver cannot go as far
        solver, most = "splu", MAX_VERTICES // 4
        found = reference_poisson(
            vertices, faces, right_hand_side, tolerance=TOLERANCE, max_vertices=most, solver=solver
        )
    # A vertex where several fans meet has several values in the reference, and is left out with the unused.
    fans = np.unique(np.stack([F.reshape(-1), faces.reshape(-1)], 1), axis=0)
    old, first, number = np.unique(fans[:, 0], return_index=True, return_counts=True)
    values = np.full(len(V), np.nan)
    single = number == 1
    values[old[single]] = found.values[fans[first[single], 1]]
    facts = {
        "file": values_at.name,
        "solver": solver,
        "converged": bool(found.converged),
        "change": found.change,
        "ratio": found.ratio,
        "levels": found.levels,
        "vertices": found.vertices,
        "left_out": int(np.isnan(values).sum()),
        "seconds": time.perf_counter() - start,
    }
    CACHE.mkdir(exist_ok=True)
    temporary = values_at.with_suffix(f".{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        np.save(file, values)
    temporary.replace(values_at)
    write(facts_at, json.dumps(facts))
    return facts


def solve(surface: Any, scheme: str, spacing: float | None, reference: Row | None, nodes: int | None = None) -> Row:
    """One solve, whatever becomes of it; at a spacing, or with a number of nodes."""
    import numpy as np

    import lamina
    from lamina.metrics import errors

    start = time.perf_counter()
    try:
        domain = domain_of(scheme, surface, spacing, nodes=nodes)
        built = time.perf_counter()
        solution = lamina.poisson(domain, right_hand_side, show_progress=False)
        values = solution.values.numpy()
    except lamina.InputError as error:
        return {"status": "refused", "sentence": str(error)}
    except lamina.SolveError as error:
        return {"status": "failed", "sentence": str(error)}
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return {"status": "crashed", "sentence": f"{type(error).__name__} at {place}: {str(error)[:200]}"}
    end = time.perf_counter()
    row: Row = {
        "status": "solved",
        "scheme": domain.scheme.name,
        "spacing": domain.spacing,
        "unknowns": domain.unknowns,
        "cycles": solution.cycles,
        "residual": solution.residual,
        "seconds": {"domain": built - start, "solve": end - built, "total": end - start},
        "warnings": [*domain.warnings, *solution.warnings],
    }
    if not np.isfinite(values).all():
        return {
            **row,
            "status": "nonsense",
            "sentence": f"{(~np.isfinite(values)).sum()} values are not finite.",
        }
    if reference is None:
        return row
    exact = np.load(CACHE / reference["file"])
    known = np.isfinite(exact)
    try:
        error = errors(values[known], exact[known], remove_mean=True, component=domain.component.numpy()[known])
    except lamina.InputError as problem:
        return {**row, "no_error": str(problem)}
    row |= error.as_dict()
    # That f had a mean, or the file unused vertices, does not tell anyone that the grid was too coarse.
    told = [w for w in row["warnings"] if w not in surface.notes and not w.startswith("The right-hand side")]
    # A reference that has not settled may itself be the one that is wrong.
    if row["nrmse"] > max(NONSENSE, 3 * reference["change"]) and not told:
        row |= {"status": "nonsense", "sentence": "The error is large and there was no warning."}
    return row


def work(path: Path, cases: list[tuple[str, float]], reference: Row | None) -> None:
    """Print a JSON line for each case; if the file cannot be read, the same one for all of them."""
    import lamina

    start = time.perf_counter()
    try:
        surface = load_scaled(path)
    except lamina.InputError as error:
        for _ in cases:
            print(json.dumps({"status": "refused", "sentence": str(error)}), flush=True)
        return
    facts = {
        "vertices": len(surface.points),
        "faces": len(surface.faces),
        "components": surface.component_count,
        "load_seconds": time.perf_counter() - start,
        "notes": surface.notes,
    }
    nodes = None
    for scheme, spacing in cases:
        fresh = remade(surface, surface.points)
        row = solve(fresh, scheme, spacing or None, reference, nodes=None if spacing else nodes)
        nodes = row.get("unknowns")
        print(json.dumps({**facts, **row}), flush=True)


# In the parent


@dataclass(frozen=True)
class Limits:
    """What a child may take: seconds without an answer, bytes, threads."""

    seconds: float
    memory: int
    threads: int


def run_child(arguments: list[str], limits: Limits) -> tuple[list[Row], str | None]:
    """The lines that a child printed, and why it ended early: "hung ...", "crashed ..." or None."""

    def hold() -> None:
        # Without this a solve that takes all memory would take other people's processes down with it.
        resource.setrlimit(resource.RLIMIT_DATA, (limits.memory, limits.memory))

    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env=environment(limits.threads),
            preexec_fn=hold,
            stdout=out,
            stderr=complaints,
        )
        size, since = 0, time.monotonic()
        try:
            while process.poll() is None:
                time.sleep(0.1)
                now = os.fstat(out.fileno()).st_size
                if now != size:
                    size, since = now, time.monotonic()
                if time.monotonic() - since > limits.seconds:
                    process.kill()
                    process.wait()
                    return _lines(out), f"hung: no answer within {limits.seconds:g} s."
        finally:
            if process.poll() is None:  # interrupted
                process.kill()
        rows = _lines(out)
        if process.returncode == 0:
            return rows, None
        complaints.seek(0)
        last = (complaints.read().strip().splitlines() or ["no message"])[-1]
        return rows, f"crashed: the process ended with status {process.returncode}: {last[:300]}"


def _lines(file: Any) -> list[Row]:
    """The complete lines; one that was cut off does not count."""
    file.seek(0)
    text = file.read()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def measure_file(path: Path, cases: list[tuple[str, float]], limits: Limits) -> list[Row]:
    found, problem = run_child(["--reference", str(path)], replace(limits, seconds=4 * limits.seconds))
    reference = found[0] if found and "change" in found[0] else None
    if reference is None:
        reason = found[0]["sentence"] if found else problem
    else:
        reason = None if reference["converged"] else "the reference did not settle"
    rows: list[Row] = []
    while len(rows) < len(cases):
        left = cases[len(rows) :]
        job = ["--worker", json.dumps({"path": str(path), "cases": left, "reference": reference})]
        done, problem = run_child(job, limits)
        rows += done[: len(left)]
        if len(done) < len(left):
            status, _, sentence = (problem or "crashed: it printed too few results.").partition(": ")
            rows.append({"status": status, "sentence": sentence})
    common = {"file": path.stem, "folder": path.parent.name}
    return [
        {
            **common,
            "asked": scheme,
            "spacing": spacing,
            **row,
            "reference": reference,
            "reference_note": reason,
        }
        for (scheme, spacing), row in zip(cases, rows, strict=True)
    ]


def markdown(rows: list[Row]) -> str:
    lines = [
        "| file | vertices / faces | parts | spacing | unknowns | cycles | seconds | NRMSE | reference | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        size = f"{row['vertices']} / {row['faces']}" if "vertices" in row else "-"
        reference = row["reference"]
        settled = "-" if reference is None else f"±{reference['change']:.0e}"
        if reference is not None and not reference["converged"]:
            settled += ", not settled"
        cells = [
            f"{row['folder']}/{row['file']}",
            size,
            row.get("components", "-"),
            f"{row['spacing']:g}",
            row.get("unknowns", "-"),
            row.get("cycles", "-"),
            f"{row['seconds']['total']:.1f}" if "seconds" in row else "-",
            f"{row['nrmse']:.1e}" if "nrmse" in row else "-",
            settled,
            _remarks(row),
        ]
        lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def side_by_side(rows: list[Row]) -> str:
    """Both schemes on one line for each file."""
    lines = [
        "| file | trace: spacing, unknowns | NRMSE | coupled: spacing, unknowns | NRMSE | reference |",
        "|---|---|---|---|---|---|",
    ]
    for trace, coupled in zip(rows[::2], rows[1::2], strict=True):
        cells = [f"{trace['folder']}/{trace['file']}"]
        for row in (trace, coupled):
            solved = "unknowns" in row
            cells.append(f"{row['spacing']:.2g}, {row['unknowns']}" if solved else row["status"])
            said = row.get("sentence") or row.get("no_error") or "-"
            cells.append(f"{row['nrmse']:.1e}" if "nrmse" in row else said)
        reference = trace["reference"]
        settled = "-" if reference is None else f"±{reference['change']:.0e}"
        if reference is not None and not reference["converged"]:
            settled += ", not settled"
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in [*cells, settled]) + " |")
    return "\n".join(lines) + "\n"


def _remarks(row: Row) -> str:
    if row["status"] != "solved":
        status = row["status"].upper() if row["status"] in BAD else row["status"]
        return f"{status}: {row['sentence']}"
    parts = []
    if row["warnings"]:
        parts.append(f"{len(row['warnings'])} warning{'s' if len(row['warnings']) > 1 else ''}")
    if row["reference"] is None and row["reference_note"]:
        parts.append(f"no reference: {row['reference_note']}")
    if "no_error" in row:
        parts.append(row["no_error"])
    return "; ".join(parts)


def against_bars(rows: list[Row]) -> list[Row]:
    checks = []
    for row in rows:
        bar = BARS.get((row["file"], row["spacing"])) if row["folder"] == "meshes" else None
        if bar is not None:
            nrmse = row.get("nrmse")
            met = nrmse is not None and nrmse <= bar
            checks.append({"file": row["file"], "spacing": row["spacing"], "nrmse": nrmse, "bar": bar, "met": met})
    return checks


def files(folders: list[str], only: list[str] | None) -> list[Path]:
    data = Path(os.environ.get("LAMINA_DATA") or BENCHMARKS.parent.parent / "shared" / "data")
    found = [p for folder in folders for p in sorted((data / folder).glob("*")) if p.suffix in SUFFIXES]
    if only:
        found = [p for p in found if p.stem in only]
    if not found:
        raise SystemExit(f"no meshes under {data} in {', '.join(folders)}; set LAMINA_DATA to the data folder.")
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--scheme", default="auto")
    options.add_argument("--spacing", type=float, nargs="+", default=[0.04, 0.02])
    options.add_argument("--equal", action="store_true", help="trace, then coupled with as many unknowns")
    options.add_argument("--folders", nargs="+", default=["meshes", "furniture"])
    options.add_argument("--only", nargs="+", help="names of files, without extension")
    options.add_argument(
        "--limit", type=float, default=100, help="seconds for one solve; four times that for a reference"
    )
    options.add_argument("--jobs", type=int, default=os.cpu_count(), help="files at a time")
    options.add_argument("--memory", type=float, help="GB for each job; 70%% of the machine's in all unless given")
    options.add_argument("--threads", type=int, default=1, help="of each job")
    options.add_argument("--worker", help="(internal) solves of one file")
    options.add_argument("--reference", type=Path, help="(internal) reference of one file")
    arguments = options.parse_args()
    if arguments.reference:
        _print_reference(arguments.reference)
        return
    if arguments.worker:
        job = json.loads(arguments.worker)
        work(Path(job["path"]), [tuple(case) for case in job["cases"]], job["reference"])
        return
    if arguments.equal:
        cases = [case for spacing in arguments.spacing for case in (("trace", spacing), ("coupled", 0.0))]
    else:
        cases = [(arguments.scheme, spacing) for spacing in arguments.spacing]
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory = int(arguments.memory * 1e9 if arguments.memory else 0.7 * physical / arguments.jobs)
    limits = Limits(arguments.limit, memory, arguments.threads)
    rows: list[Row] = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        paths = files(arguments.folders, arguments.only)
        for done in pool.map(lambda path: measure_file(path, cases, limits), paths):
            rows += done
            print("\n".join(_short(row) for row in done), flush=True)
    checks = against_bars(rows)
    for check in checks:
        shown = "-" if check["nrmse"] is None else f"{check['nrmse']:.2e}"
        print(f"{check['file']}: NRMSE {shown}, bar {check['bar']:g}: {'met' if check['met'] else 'NOT met'}")
    counts = Counter(row["status"] for row in rows)
    print(", ".join(f"{number} {status}" for status, number in counts.items()))
    name = "meshes" if arguments.scheme == "auto" else f"meshes_{arguments.scheme}"
    if arguments.equal:
        name = "meshes_equal"
    result = {
        "scheme": arguments.scheme,
        "reference_tolerance": TOLERANCE,
        "threads_each": limits.threads,
        "memory_each": limits.memory,
        "seconds_each": limits.seconds,
        "counts": dict(counts),
        "bars": checks,
        "rows": rows,
    }
    written = record(name, result, arguments.out)
    table = side_by_side(rows) if arguments.equal else markdown(rows)
    print("written to", written, "and", write(written.with_suffix(".md"), table))


def _print_reference(path: Path) -> None:
    from lamina.errors import InputError, SolveError

    try:
        print(json.dumps(make_reference(path)))
    except (InputError, SolveError) as error:
        print(json.dumps({"sentence": str(error)}))


def _short(row: Row) -> str:
    error = f"{row['nrmse']:.1e}" if "nrmse" in row else "-"
    seconds = f"{row['seconds']['total']:6.1f}" if "seconds" in row else f"{'-':>6}"
    return (
        f"{row['folder'] + '/' + row['file']:36} {row['spacing']:<6g} {row.get('unknowns', '-'):>8}"
        f" {row.get('cycles', '-'):>4} {seconds} s  NRMSE {error:8} {_remarks(row)[:140]}"
    )


if __name__ == "__main__":
    main()
