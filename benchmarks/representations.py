"""One shape through several representations: solutions that should be the same, compared with each other.

    LAMINA_DATA=FOLDER python benchmarks/representations.py [--parts five] [--shape meshes/spot] [--spacing 0.03]

five: the mesh, 20,000 points of it with normals, 20,000 without, and a SIREN and an occupancy network fitted to it by
`lamina fit` with the options it has by default. Laplacian(u) = f, f = sin(2x) cos(1.5y) + z, by the trace scheme, on
the shape as it is in its file. All solutions are read at the same places, the closest points of the mesh's vertices on
each surface, and lose their mean by area; NRMSE of two of them is the RMS of their difference by area over the range of
the mesh's solution. The fitted networks are kept in benchmarks/.cache.
"""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from common import BENCHMARKS, parser, record
from PIL import Image

import lamina
from lamina.io.export import atomic_write
from lamina.io.safetensor_files import load_tensors
from lamina.learn.field_fit import fit_from_surfaces, plan_for
from lamina.surfaces.base import Surface
from lamina.surfaces.fields import save_field
from lamina.view.camera import View, upright_axis
from lamina.view.render import render

DATA = Path(os.environ.get("LAMINA_DATA") or BENCHMARKS.parent.parent / "shared" / "data")
CACHE = BENCHMARKS / ".cache"
POINTS, BAR = 20_000, 1e-2
PANEL = 420  # pixels a side


def right_hand_side(p: torch.Tensor) -> torch.Tensor:
    x, y, z = p.unbind(-1)
    return torch.sin(2 * x) * torch.cos(1.5 * y) + z


def fitted(mesh: Surface, kind: str) -> tuple[Surface, dict[str, Any]]:
    """The surface of a field fitted to the mesh, made once, and what was measured of it."""
    path = CACHE / f"{mesh.name}_{kind}.safetensors"
    if not path.exists():
        field, facts = fit_from_surfaces([mesh], plan_for(kind))
        save_field(path, field, fit=facts)
    return lamina.load(path), load_tensors(path)[1]["fit"]


def five(shape: str, spacing: float, folder: Path) -> dict[str, Any]:
    mesh = lamina.load(DATA / f"{shape}.ply")
    drawn = mesh.sample(POINTS, 1)
    fits = {kind: fitted(mesh, kind) for kind in ("siren", "occupancy")}
    surfaces: dict[str, Surface] = {
        "mesh": mesh,
        "points with normals": lamina.PointCloud(drawn.points, drawn.normals),
        "points alone": lamina.PointCloud(drawn.points),
        "SIREN": fits["siren"][0],
        "occupancy": fits["occupancy"][0],
    }
    weight = mesh.areas / mesh.areas.sum()
    values: dict[str, torch.Tensor] = {}
    own: dict[str, torch.Tensor] = {}
    seconds = {}
    for name, surface in surfaces.items():
        start = perf_counter()
        domain = lamina.Domain(surface, spacing, order=2)
        u = lamina.poisson(domain, right_hand_side)
        seconds[name] = perf_counter() - start
        read = u(surface.closest_points(mesh.points).points)
        values[name] = read - (weight * read).sum()
        own[name] = u.values - (weight * read).sum()
        print(f"{name}: {seconds[name]:.1f} s", flush=True)
    extent = float(values["mesh"].max() - values["mesh"].min())
    pairs = {
        f"{a} / {b}": float((weight * (values[a] - values[b]).square()).sum().sqrt()) / extent
        for a, b in combinations(values, 2)
    }
    for pair, error in pairs.items():
        print(f"{pair}: NRMSE {error:.2e}")
    picture(folder / "representations_five.png", surfaces, own)
    return {
        "shape": shape,
        "spacing": spacing,
        "pairs": pairs,
        "worst": max(pairs.values()),
        "bar": BAR,
        "seconds": seconds,
        "fits": {kind: facts for kind, (_, facts) in fits.items()},
    }


def picture(path: Path, surfaces: dict[str, Surface], values: dict[str, torch.Tensor]) -> Path:
    """The solutions side by side in the same colours, each at the points of its own surface."""
    low, high = min(float(u.min()) for u in values.values()), max(float(u.max()) for u in values.values())
    view = View(azimuth=120.0, elevation=15.0, up=upright_axis(surfaces["mesh"].points.numpy()))
    sheet = Image.new("RGB", (PANEL * len(values), PANEL), "white")
    for column, (name, u) in enumerate(values.items()):
        surface = surfaces[name]
        panel = render(
            surface.points, u, faces=surface.faces, normals=surface.normals, size=(PANEL, PANEL), title=name, low=low,
            high=high, colour_bar=column == len(values) - 1, view=view,
        )  # fmt: skip
        sheet.paste(panel, (PANEL * column, 0))
    atomic_write(path, lambda file: sheet.save(file, format="PNG"))
    return path


PARTS = {"five": five}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--shape", default="meshes/spot")
    options.add_argument("--spacing", type=float, default=0.03)
    chosen = options.parse_args()
    for part in chosen.parts:
        figures = PARTS[part](chosen.shape, chosen.spacing, chosen.out)
        record(f"representations_{part}", figures, chosen.out)


if __name__ == "__main__":
    main()
