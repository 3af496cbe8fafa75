"""Poisson on meshes with noise on their vertices, as they are and after `Mesh.denoised`, which is not told the noise.

    LAMINA_DATA=../shared/data python benchmarks/denoise.py [--shares 0 0.03 0.1 0.3 0.5] [--seeds 1] [--spacing 0.04]

Each mesh is centred and scaled so that its longest half-extent is 1; f = sin(2x) cos(1.5y) + z. Noise is normal, the
same in all directions, its standard deviation a share of the median edge. Errors are NRMSE at the vertices against FEM
on the mesh without noise, refined until it settles. Share 0 is the clean mesh, which must be left as it is.

Bars: no error more than 5 % larger than without denoising; clean meshes unchanged, bit by bit.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter
from typing import Any

from common import parser, record

ORGANIC = ("spot", "armadillo", "bunny", "hand", "skull", "torus")
SHARP = ("fandisk", "wingnut")
PAPER = ("apple", "octopus", "sofa", "holey_human")
FILES = [*(f"meshes/{name}" for name in ORGANIC + SHARP), *(f"paper/{name}" for name in PAPER)]
WORSE = 1.05
Row = dict[str, Any]


def right_hand_side(p: Any) -> Any:
    import torch

    x, y, z = p.unbind(-1)
    return torch.sin(2 * x) * torch.cos(1.5 * y) + z


def rows_of(path: Path, shares: list[float], seeds: int, spacing: float) -> list[Row]:
    import torch

    from lamina.baselines import solve
    from lamina.metrics import errors
    from lamina.paper.baselines.reference import reference_poisson
    from lamina.surfaces.files import load
    from lamina.surfaces.mesh import Mesh

    surface = load(path)
    assert surface.faces is not None
    V, F, component = surface.points.double(), surface.faces, surface.component
    used = torch.unique(F)
    low, high = V[used].amin(0), V[used].amax(0)
    V = (V - (low + high) / 2) / ((high - low).max() / 2)
    edge = float((V[F] - V[F.roll(1, 1)]).norm(dim=2).median())
    exact = torch.from_numpy(
        reference_poisson(V.numpy(), F.numpy(), right_hand_side, tolerance=1e-4, max_vertices=200_000).values
    )

    def error(mesh: Mesh, method: str) -> float:
        values = solve(Mesh(mesh.points, F), right_hand_side, method, spacing=spacing).values
        return errors(values[used], exact[used], remove_mean=True, component=component[used]).nrmse

    made = []
    for share in shares:
        for seed in range(seeds if share else 1):
            draw = torch.randn(V.shape, generator=torch.Generator().manual_seed(seed), dtype=V.dtype)
            given = Mesh(V + share * edge * draw, F)
            start = perf_counter()
            found = given.denoised()
            row: Row = {"shape": path.stem, "vertices": len(V), "share": share, "seed": seed}
            row |= {"seconds": perf_counter() - start, "changed": found is not given}
            row["note"] = found.notes[-1] if found is not given else ""
            for method in ("fem", "trace"):
                row[method] = error(given, method)
                row[f"{method}_denoised"] = error(found, method) if row["changed"] else row[method]
            made.append(row)
            print(
                f"{row['shape']:12} {share:5.2f} {seed} fem {row['fem']:.2e} -> {row['fem_denoised']:.2e}  "
                f"trace {row['trace']:.2e} -> {row['trace_denoised']:.2e}  "
                f"{row['seconds']:5.1f} s  {'' if row['changed'] else 'unchanged'}",
                flush=True,
            )
    return made


def main() -> None:
    line = parser(__doc__)
    line.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.03, 0.1, 0.3, 0.5], help="of the median edge")
    line.add_argument("--seeds", type=int, default=1)
    line.add_argument("--spacing", type=float, default=0.04, help="of the trace scheme")
    line.add_argument("--only", nargs="+", default=FILES, help="files below the data folder, without .ply")
    asked = line.parse_args()
    data = Path(os.environ.get("LAMINA_DATA", "."))
    rows = []
    for name in asked.only:
        rows += rows_of(data / f"{name}.ply", asked.shares, asked.seeds, asked.spacing)
    worse = [r for r in rows for m in ("fem", "trace") if r[f"{m}_denoised"] > WORSE * r[m]]
    changed = [r["shape"] for r in rows if r["share"] == 0 and r["changed"]]
    print(f"{len(worse)} of {2 * len(rows)} errors grew by more than 5 %; clean meshes changed: {changed or 'none'}")
    record(
        "denoise", {"spacing": asked.spacing, "rows": rows, "worse": len(worse), "clean_changed": changed}, asked.out
    )


if __name__ == "__main__":
    main()
