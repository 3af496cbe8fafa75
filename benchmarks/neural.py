"""Files that other people made: neural fields, a spherical neural surface, splats, points and a mesh.

    LAMINA_DATA=FOLDER python benchmarks/neural.py [--parts poisson heat speed] [--spacing 0.02]

poisson: Laplacian(u) = f, f = sin(2x) cos(1.5y) + z, on every neural field, against linear finite elements on its
marching-cubes mesh of 256^3 cells. NRMSE over the mesh's vertices by area, means of components removed, over the range.
heat: u = z at first, run to its steady state, on one file of each representation; NRMSE of the end state against the
area-weighted mean of z over a fine mesh of the same surface (marching cubes, also with vertices moved to the zero set,
a mapped icosphere, or the file's own triangles), component by component, over the range of z. --splat-mesh FILE is
the mesh for the splats.
speed: from a file to the solution, and from the same file by marching cubes and finite elements, in turn, best of
three. Both errors are against marching cubes of 512^3 cells and finite elements.

Marching cubes: scikit-image (pip install scikit-image), on all nodes of the grid, the network in single precision; the
references evaluate it near the surface only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from common import BENCHMARKS, domain_of, in_turn, parser, record
from numpy.typing import NDArray
from representations import right_hand_side
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree

import lamina
from lamina.geometry.cotangent import mass_matrix
from lamina.learn.sns import fit_from_surface
from lamina.paper.baselines.fem import SurfaceFEM
from lamina.paper.tables import isosurface
from lamina.surfaces.base import Surface
from lamina.surfaces.icosphere import icosphere
from lamina.surfaces.implicit import Implicit
from lamina.surfaces.sns import load_sns, save_sns

DATA = Path(os.environ.get("LAMINA_DATA") or BENCHMARKS.parent.parent / "shared" / "data")
CACHE = BENCHMARKS / ".cache"
CELLS = 256
SMOOTH, ROUGH = 2e-3, 1e-2  # bars
FIELDS: dict[str, tuple[str, dict[str, Any], float]] = {
    "SIREN three balls": ("siren_threeballs.npz", {}, SMOOTH),
    "SIREN mug": ("siren_mug.npz", {}, SMOOTH),
    "ELU bunny": ("mlp_elu_bunny_sdf.npz", {}, SMOOTH),
    "ReLU hammer, occupancy": ("mlp_relu_hammer_occ.npz", {}, ROUGH),
    "ReLU bust": ("thingi10k_75652_bust_sdf.npz", {}, ROUGH),
    "ReLU alien": ("thingi10k_60328_alien_sdf.npz", {}, ROUGH),
    "ReLU table": ("thingi10k_75133_table_sdf.npz", {}, ROUGH),
    "ReLU gear": ("thingi10k_723892_gear_sdf.npz", {}, ROUGH),
    "ReLU man": ("thingi10k_81261_man_sdf.npz", {}, ROUGH),
    **{f"DeepSDF {n}": ("deepsdf_minimal", {"latent": i}, ROUGH) for i, n in enumerate(("mug", "camera", "bottle"))},
    **{f"DeepSDF round cross {i}": ("deepsdf_fbformat_roundcross", {"latent": i}, ROUGH) for i in (0, 5, 19)},
}


def field(name: str) -> Implicit:
    file, options, _ = FIELDS[name]
    surface = lamina.load(DATA / "neural" / file, name=name, **options)
    assert isinstance(surface, Implicit)
    return surface


@dataclass(frozen=True)
class Mesh:
    V: NDArray  # (n, 3)
    F: NDArray  # (m, 3)

    @property
    def weight(self) -> NDArray:
        return np.asarray(mass_matrix(self.V, self.F, lumped=True).diagonal())

    @property
    def component(self) -> NDArray:
        i, j = self.F.ravel(), np.roll(self.F, 1, 1).ravel()
        graph = sp.coo_array((np.ones(len(i)), (i, j)), shape=(len(self.V),) * 2)
        return connected_components(graph, directed=False)[1]

    def solution(self) -> NDArray:
        return SurfaceFEM(self.V, self.F).poisson(right_hand_side(torch.from_numpy(self.V)).numpy())


def marching_cubes(surface: Implicit, cells: int, everywhere: bool = False) -> Mesh:
    return Mesh(*isosurface.marching_cubes(surface, cells, everywhere))


def settled(mesh: Mesh, surface: Implicit, cells: int) -> Mesh:
    return Mesh(isosurface.on_zero_set(mesh.V, surface, cells), mesh.F)


def nrmse(u: Any, mesh: Mesh, exact: NDArray, most: int = 20_000) -> float:
    """Of a solution at (at most so many of) the mesh's vertices, means of components removed."""
    pick = np.random.default_rng(0).permutation(len(mesh.V))[:most]
    weight, component = mesh.weight[pick], mesh.component[pick]
    error = u(torch.from_numpy(mesh.V[pick])).numpy() - exact[pick]
    for c in np.unique(component):
        rows = component == c
        error[rows] -= np.average(error[rows], weights=weight[rows] + 1e-300)
    return float(np.sqrt(np.average(error**2, weights=weight)) / np.ptp(exact))


def poisson(options: Any) -> dict[str, Any]:
    rows = {}
    for name, (_, _, bar) in FIELDS.items():
        start = perf_counter()
        surface = field(name)
        loaded = perf_counter()
        domain = lamina.Domain(surface, options.spacing, order=2, show_progress=False)
        u = lamina.poisson(domain, right_hand_side, show_progress=False)
        seconds = {"load": loaded - start, "solve": perf_counter() - loaded}
        mesh = marching_cubes(surface, CELLS)
        error = nrmse(u, mesh, mesh.solution())
        rows[name] = {"nrmse": error, "bar": bar, "unknowns": domain.unknowns, "seconds": seconds}
        print(f"{name:26s} NRMSE {error:.2e} (bar {bar:g})  {domain.unknowns} unknowns", flush=True)
    return {"spacing": options.spacing, "cells": CELLS, "fields": rows}


def heat(options: Any) -> dict[str, Any]:
    rows = {}
    for name, (surface, mesh, bar) in _representations(options).items():
        domain = domain_of(options.scheme, surface, show_progress=False)
        size = float((surface.bounds[1] - surface.bounds[0]).max())
        u = lamina.heat(domain, lambda p: p[:, 2], time=1000 * size**2, accuracy=1e-3, show_progress=False)
        row: dict[str, Any] = {"spacing": domain.spacing, "unknowns": domain.unknowns, "scheme": domain.scheme.name}
        if mesh is not None:
            row |= {"nrmse": _from_mean(surface, u.values.numpy(), mesh), "bar": bar}
            if isinstance(surface, Implicit):
                exact = settled(mesh, surface, CELLS)
                row["nrmse, vertices on the zero set"] = _from_mean(surface, u.values.numpy(), exact)
            print(name, row, flush=True)
        rows[name] = row
    return {"representations": rows}


def _from_mean(surface: Surface, values: NDArray, mesh: Mesh) -> float:
    """RMS distance of values at the surface's samples from the mean of z over their component of the mesh."""
    weight, component, z = mesh.weight, mesh.component, mesh.V[:, 2]
    mean = np.bincount(component, weight * z) / np.bincount(component, weight)
    error = values - mean[component[KDTree(mesh.V).query(surface.points.numpy())[1]]]
    share = surface.areas.numpy() / float(surface.areas.sum())
    return float(np.sqrt((share * error**2).sum()) / np.ptp(z))


def _representations(options: Any) -> dict[str, tuple[Surface, Mesh | None, float]]:
    found: dict[str, tuple[Surface, Mesh | None, float]] = {}
    for name in ("ELU bunny", "SIREN mug", "DeepSDF bottle"):
        surface = field(name)
        found[name] = surface, marching_cubes(surface, CELLS), 1e-3
    path = CACHE / "maxplanck_sns.safetensors"
    if not path.exists():
        save_sns(path, fit_from_surface(lamina.load(DATA / "meshes/maxplanck_sns10606.ply"))[0])
    V, F = icosphere(8)
    mapped = load_sns(path).double()(V)
    found["SNS of Max Planck"] = lamina.load(path), Mesh(mapped.numpy(), F.numpy()), 1e-3
    hat = lamina.load(DATA / "paper/hat_pointcloud.ply")
    human = lamina.load(DATA / "paper/holey_human.ply")
    assert hat.faces is not None
    assert human.faces is not None
    hat_mesh = Mesh(hat.points.numpy(), hat.faces.numpy())
    found["hat, its 5,636 vertices"] = lamina.PointCloud(hat.points), hat_mesh, 1e-3
    drawn = hat.sample(20_000)
    found["hat, 20,000 points"] = lamina.PointCloud(drawn.points), hat_mesh, 1e-3
    found["mesh Holey Human"] = human, Mesh(human.points.numpy(), human.faces.numpy()), 1e-3
    splats = lamina.load(DATA / "splats/unicorn_stuffy_sh0.ply")
    reference = None if options.splat_mesh is None else lamina.load(options.splat_mesh)
    body = None
    if reference is not None and reference.faces is not None:
        body = Mesh(reference.points.numpy(), reference.faces.numpy())
    found["splats unicorn"] = splats, body, 5e-3
    return found


def speed(options: Any) -> dict[str, Any]:
    rows = {}
    for name in ("ELU bunny", "SIREN three balls"):
        reference = marching_cubes(field(name), 2 * CELLS)
        exact = reference.solution()

        def ours(name: str = name) -> tuple[float, Any]:
            start = perf_counter()
            domain = lamina.Domain(field(name), options.spacing, order=2, show_progress=False)
            u = lamina.poisson(domain, right_hand_side, show_progress=False)
            return perf_counter() - start, u

        def theirs(name: str = name) -> tuple[float, Any]:
            start = perf_counter()
            mesh = marching_cubes(_unsampled(name), options.cells, everywhere=True)
            values = mesh.solution()
            return perf_counter() - start, (mesh, values)

        one, other = in_turn([ours, theirs], 3)
        mesh, values = other[-1][1]
        u = one[-1][1]
        extracted = lamina.Mesh(torch.from_numpy(mesh.V), torch.from_numpy(mesh.F))
        at_mesh = nrmse(_Read(extracted, torch.from_numpy(values)), reference, exact)
        row = {
            "seconds": min(t for t, _ in one), "nrmse": nrmse(u, reference, exact), "spacing": options.spacing,
            "marching cubes": {"seconds": min(t for t, _ in other), "nrmse": at_mesh, "cells": options.cells},
        }  # fmt: skip
        row["ratio"] = row["marching cubes"]["seconds"] / row["seconds"]
        rows[name] = row
        print(name, row, flush=True)
    return {"threads": torch.get_num_threads(), "fields": rows}


@dataclass(frozen=True)
class _Read:
    """A field given at the vertices of a mesh, as a function of points near it."""

    mesh: lamina.Mesh
    values: torch.Tensor

    def __call__(self, p: torch.Tensor) -> torch.Tensor:
        return self.mesh.interpolate(self.values, self.mesh.closest_points(p).points)


def _unsampled(name: str) -> Implicit:
    """The field with as few samples as can be: marching cubes does not use them, and is not to pay for them."""
    file, options, _ = FIELDS[name]
    surface = lamina.load(DATA / "neural" / file, samples=100, **options)
    assert isinstance(surface, Implicit)
    return surface


PARTS = {"poisson": poisson, "heat": heat, "speed": speed}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--spacing", type=float, default=0.02)
    options.add_argument("--cells", type=int, default=CELLS, help="of the marching cubes raced against")
    options.add_argument("--scheme", default="trace", help="of heat: auto, coupled or trace")
    options.add_argument("--splat-mesh", type=Path, help="a mesh of the splats from elsewhere")
    chosen = options.parse_args()
    for part in chosen.parts:
        record(f"neural_{part}", PARTS[part](chosen), chosen.out)


if __name__ == "__main__":
    main()
