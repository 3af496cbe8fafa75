"""How cycles, time and memory grow with the number of nodes, on the sphere.

    python benchmarks/scaling.py [--device cpu|cuda] [--max-nodes 2650000] [--orders 2 3]

For each size a process of its own (on the CPU) builds the domain and solves Poisson to a relative residual of
1e-8, from a Sphere that has not been used before; the first run gives the memory at its peak, the best of all
gives the times. Part of the time does not depend on the grid (sizing the shape), which flatters the growth
from small sizes on; so the exponent is fitted to the total and to what is left without that part.

Bars: at most 12 cycles from 10k to 2.6M nodes; time ~ nodes^1.1 or less from 40k to 1M; on a GPU at most 2048
bytes a node.
"""

from __future__ import annotations

import gc
import json
import math
import subprocess
from typing import Any

from common import Stopwatch, best, child, exponent, parser, peak_memory, record

SIZES = (10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 640_000, 1_000_000, 2_650_000)
FIT = (38_000, 1_050_000)  # from 40k to 1M; a grid cannot hit its size exactly
MOST_CYCLES, MOST_EXPONENT, MOST_BYTES = 12, 1.1, 2048
TOLERANCE = 1e-8


def spacing_for(order: int, nodes: int) -> float:
    """Spacing at which the unit sphere has this many nodes: a band has c / spacing^2 of them."""
    import lamina

    spacing = 0.1
    for _ in range(2):  # once from a coarse grid, once from one that is nearer to the answer
        spacing *= math.sqrt(
            lamina.Domain(lamina.Sphere(), spacing, order=order).unknowns / nodes
        )
        spacing = max(spacing, 0.04)
    known = lamina.Domain(lamina.Sphere(), spacing, order=order).unknowns * spacing**2
    return math.sqrt(known / nodes)


def measure(order: int, spacing: float, device: str, repeats: int) -> dict[str, Any]:
    """One size: facts of the solve, best times, memory of the first run."""
    import lamina
    from lamina.gallery import sphere_poisson
    from lamina.metrics import errors

    problem = sphere_poisson()

    def run(spacing: float = spacing) -> tuple[dict[str, float], Any]:
        surface = lamina.Sphere().to(device)
        watch = Stopwatch(device)
        domain = lamina.Domain(surface, spacing, order=order, device=device)
        built = watch.lap()
        solution = lamina.poisson(domain, problem.rhs, tolerance=TOLERANCE, show_progress=False)
        values = solution.values
        solved = watch.lap()
        return {
            "sizing": domain.seconds["geometry"],
            "domain": built,
            "solve": solved,
            "total": built + solved,
            "per_node": built - domain.seconds["geometry"] + solved,
        }, (
            domain.unknowns,
            solution.cycles,
            solution.residual,
            len(domain.scheme.table()),
            values,
            domain.points,
        )

    run(0.2)  # libraries and kernels load
    gc.collect()
    with peak_memory(device) as memory:
        seconds, facts = run()
    unknowns, cycles, residual, levels, values, points = facts
    error = errors(values, problem.solution(points), remove_mean=True).as_dict()
    times = [seconds, *(run()[0] for _ in range(repeats - 1))]
    return {
        "order": order,
        "nodes": unknowns,
        "spacing": spacing,
        "levels": levels,
        "cycles": cycles,
        "residual": residual,
        **best(times),
        "bytes": memory["bytes"],
        "bytes_per_node": memory["bytes"] / unknowns,
        **error,
    }


def summary(rows: list[dict[str, Any]], device: str) -> dict[str, Any]:
    """Growth and extremes for each order, against the bars; a bar without data is null."""
    found = []
    for order in sorted({row["order"] for row in rows}):
        mine = [row for row in rows if row["order"] == order and "failure" not in row]
        fit = [row for row in mine if FIT[0] <= row["nodes"] <= FIT[1]]
        sizes = [row["nodes"] for row in fit]
        total, per_node = (exponent(sizes, [row[key] for row in fit]) for key in ("total", "per_node"))
        cycles = max((row["cycles"] for row in mine), default=None)
        found.append(
            {
                "order": order,
                "most_cycles": cycles,
                "cycles_met": None if cycles is None else cycles <= MOST_CYCLES,
                "fitted_from": min(sizes, default=None),
                "fitted_to": max(sizes, default=None),
                "exponent": total,
                "exponent_without_sizing": per_node,
                "exponent_met": None if total is None or per_node is None else max(total, per_node) <= MOST_EXPONENT,
                "bytes_per_node_largest": mine[-1]["bytes_per_node"] if mine else None,
                "memory_met": None if device == "cpu" or not mine else mine[-1]["bytes_per_node"] <= MOST_BYTES,
            }
        )
    return {
        "device": device,
        "tolerance": TOLERANCE,
        "bars": {"cycles": MOST_CYCLES, "exponent": MOST_EXPONENT, "gpu_bytes_per_node": MOST_BYTES},
        "orders": found,
        "rows": rows,
    }


def line(row: dict[str, Any]) -> str:
    if "failure" in row:
        return f"{row['order']:5d} {row['nodes']:9,d}  {row['failure']}"
    return (
        f"{row['order']:5d} {row['nodes']:9,d} {row['spacing']:9.5f} {row['levels']:6d} {row['cycles']:6d}"
        f" {row['sizing']:8.3f} {row['domain']:8.3f} {row['solve']:8.3f} {row['total']:8.3f}"
        f" {1e6 * row['per_node'] / row['nodes']:8.2f} {row['bytes_per_node']:10.0f}"
        f" {row['nmae']:9.2e} {row['nmaxe']:9.2e}"
    )


HEAD = (
    f"{'order':>5} {'nodes':>9} {'spacing':>9} {'levels':>6} {'cycles':>6} {'sizing':>8} {'domain':>8}"
    f" {'solve':>8} {'total':>8} {'us/node':>8} {'bytes/node':>10} {'nmae':>9} {'nmaxe':>9}"
)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--max-nodes", type=int, default=SIZES[-1])
    options.add_argument("--orders", type=int, nargs="+", default=[2, 3])
    options.add_argument("--threads", type=int, help="processors and threads on the CPU; all unless given")
    options.add_argument("--repeats", type=int, default=3, help="up to 400k nodes; 2 up to 1M, 1 beyond (CPU)")
    options.add_argument("--worker", nargs=2, metavar=("ORDER", "SPACING"), help="(internal) one size")
    arguments = options.parse_args()
    if arguments.worker:
        order, spacing = int(arguments.worker[0]), float(arguments.worker[1])
        print(json.dumps(measure(order, spacing, arguments.device, arguments.repeats)))
        return
    print(HEAD)
    rows: list[dict[str, Any]] = []
    for nodes in (n for n in SIZES if n <= arguments.max_nodes):
        few = 1 if nodes > 1_000_000 else 2
        repeats = arguments.repeats if arguments.device == "cuda" or nodes < 400_000 else min(few, arguments.repeats)
        for order in arguments.orders:
            rows.append(_guarded(order, nodes, arguments.device, repeats, arguments.threads))
            print(line(rows[-1]), flush=True)
    result = summary(rows, arguments.device)
    for each in result["orders"]:
        print(
            f"order {each['order']}: cycles <= {each['most_cycles']} (bar {MOST_CYCLES}), "
            f"time ~ nodes^{_shown(each['exponent'])}, "
            f"without sizing nodes^{_shown(each['exponent_without_sizing'])} "
            f"from {each['fitted_from']} to {each['fitted_to']} (bar {MOST_EXPONENT}), "
            f"{_shown(each['bytes_per_node_largest'], 0)} bytes a node at the largest"
        )
    print("written to", record(f"scaling_{arguments.device}", result, arguments.out))


def _guarded(order: int, nodes: int, device: str, repeats: int, threads: int | None) -> dict[str, Any]:
    """A row whatever happens: a size that fails says why, and the others still count."""
    try:
        # Not in the process that is measured: the memory that it would leave behind hides what comes after.
        spacing = spacing_for(order, nodes)
        if device == "cuda":  # starting a process for each size would cost more than the measurement
            return measure(order, spacing, device, repeats)
        worker = ["--worker", str(order), repr(spacing), "--device", device, "--repeats", str(repeats)]
        return child(__file__, *worker, cores=threads, timeout=400)
    except subprocess.TimeoutExpired:
        failure = "took more than 400 s"
    except subprocess.CalledProcessError as error:
        failure = f"ended with status {error.returncode}; its message is above"
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    return {"order": order, "nodes": nodes, "failure": failure}


def _shown(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()
