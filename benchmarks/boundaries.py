"""Boundary conditions: what they are held to, and the cut Max Planck head of the paper.

    LAMINA_DATA=FOLDER python benchmarks/boundaries.py [--parts hemisphere shapes circle planck meshes]

hemisphere  Dirichlet, Neumann and Robin on the rim, both schemes, in five representations: NMAE and order
shapes      a flat disc, a cone frustum with two different rims, a Moebius strip
circle      Dirichlet data on a circle inside the sphere, as level set and as polyline
planck      heat to steady state on the head cut at the neck, constant and sinusoidal Dirichlet data, against FEM on
            the mesh refined until it settles; 2.85e-2 and 3.40e-2 in the paper (its k is not given; here 3)
meshes      open meshes with Neumann rims at 0.01 of the extent, against FEM likewise
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import meshes
import numpy as np
import torch
from common import BENCHMARKS, Stopwatch, domain_of, parser, record

import lamina
from lamina.gallery import hemisphere_poisson
from lamina.metrics import errors
from lamina.paper.baselines.fem import SurfaceFEM
from lamina.paper.baselines.reference import refine

meshes.TOLERANCE = 2e-5
DATA = Path(os.environ.get("LAMINA_DATA") or BENCHMARKS.parent.parent / "shared" / "data")
SPACINGS = (0.1, 0.05, 0.025)
Row = dict[str, Any]
Function = Callable[[torch.Tensor], torch.Tensor]


PROBLEM = hemisphere_poisson()
solution, laplacian, flux = PROBLEM.solution, PROBLEM.rhs, PROBLEM.flux
CONDITIONS = {
    "dirichlet": lamina.Dirichlet("rim", solution),
    "neumann": lamina.Neumann("rim", flux),
    "robin": lamina.Robin("rim", lambda p: flux(p) + 2 * solution(p), 2.0),
}


def up(p: torch.Tensor) -> torch.Tensor:
    return p[:, 2]


def ball(p: torch.Tensor) -> torch.Tensor:
    return p.square().sum(1) - 1


BOX = [[-1.3] * 3, [1.3] * 3]


def half_sphere_mesh(n: int = 160) -> lamina.Mesh:
    """Rings of triangles between the pole and the equator."""
    v, f = _rings([(math.sin(t), math.cos(t)) for t in np.linspace(0, math.pi / 2, n + 1)[1:]], 4 * n)
    pole = len(v)
    fan = [[pole, j, (j + 1) % (4 * n)] for j in range(4 * n)]
    return lamina.Mesh(np.vstack([v, [[0, 0, 1.0]]]), np.vstack([fan, f]))


def _rings(profile: list[tuple[float, float]], around: int) -> tuple[np.ndarray, np.ndarray]:
    """Vertices and faces of a surface of revolution about z, from radii and heights."""
    angle = 2 * np.pi * np.arange(around) / around
    v = np.vstack([np.stack([r * np.cos(angle), r * np.sin(angle), np.full(around, z)], 1) for r, z in profile])
    a = np.arange(around)
    b = (a + 1) % around
    faces = []
    for i in range(len(profile) - 1):
        p, q = i * around, (i + 1) * around
        faces += [np.stack([p + a, q + a, p + b], 1), np.stack([p + b, q + a, q + b], 1)]
    return v, np.vstack(faces)


def _cloud(surface: lamina.Surface, count: int) -> lamina.PointCloud:
    feet = surface.sample(count, 0)
    return lamina.PointCloud(feet.points, feet.normals)


HEMISPHERES: dict[str, Callable[[], lamina.Surface]] = {
    "analytic, clipped": PROBLEM.surface,
    "implicit, clipped": lambda: lamina.clip(lamina.Implicit(ball, BOX), up),
    "implicit, cut by its box": lambda: lamina.Implicit(ball, [[-1.3, -1.3, 0.0], BOX[1]]),
    "mesh": half_sphere_mesh,
    "cloud, clipped": lambda: lamina.clip(_cloud(lamina.Sphere(), 40_000), up),
    "cloud with the rim that it shows": lambda: _cloud(lamina.clip(lamina.Sphere(), up), 20_000),
}


def hemisphere(options: Any) -> list[Row]:
    rows = []
    for name, make in HEMISPHERES.items():
        surface = make()
        for scheme in ("trace", "coupled"):
            for kind, condition in CONDITIONS.items():
                rows.append(_row(name, scheme, kind, surface, condition, options))
        rows.append(_row(name, "auto", "dirichlet", surface, CONDITIONS["dirichlet"], options))
    first = lamina.clip(lamina.Sphere(), up)
    rows.append(_row("first order", "coupled", "dirichlet", first, CONDITIONS["dirichlet"], options, rim_order=1))
    return rows


def _row(name: str, scheme: str, kind: str, surface: Any, condition: Any, options: Any, **extra: Any) -> Row:
    found, cycles = [], []
    for h in options.spacings:
        domain = domain_of(scheme, surface, h, show_progress=False, **extra)
        u = lamina.poisson(domain, laplacian, [condition], show_progress=False, raise_on_failure=False)
        found.append(errors(u.values, solution(domain.points), remove_mean=kind == "neumann").nmae)
        cycles.append(u.cycles)
    orders = [math.log2(a / b) for a, b in pairwise(found)]
    row = {"surface": name, "scheme": scheme, "condition": kind, "nmae": found, "orders": orders, "cycles": cycles}
    print(row, flush=True)
    return row


def _fem(mesh: lamina.Mesh, f: Function, held: Function, value: Function) -> np.ndarray:
    """Lap u = f, u = value on the part of the rim where held, at the vertices, refined until it settles."""
    assert mesh.faces is not None
    V, F, count = mesh.points.numpy(), mesh.faces.numpy(), len(mesh.points)
    before, step = None, np.zeros(count)
    while True:
        on_rim = np.zeros(len(V), dtype=bool)
        rim = lamina.Mesh(V, F)
        assert rim.faces is not None
        edges = torch.stack([rim.faces, rim.faces.roll(-1, 1)], -1)[rim.rim_edges]
        on_rim[edges.reshape(-1).numpy()] = True
        p = torch.from_numpy(V)
        fixed = on_rim & held(p).numpy()
        fine = SurfaceFEM(V, F).dirichlet(f(p).numpy(), fixed, value(p).numpy())[:count]
        if before is not None:
            step = fine - before
            if np.sqrt(np.mean(step**2)) < 2e-5 * np.ptp(fine) or 4 * len(V) > 1_200_000:
                return fine + step / 3
        before = fine
        V, F = refine(V, F)


def shapes(options: Any) -> list[Row]:
    """Spacing 0.05 for a half-extent of 1."""
    rows = []

    def add(name: str, mesh: lamina.Mesh, f: Function, given: list[Any], exact: Any) -> None:
        for scheme in ("auto", "coupled"):
            domain = domain_of(scheme, mesh, 0.05, show_progress=False)
            u = lamina.poisson(domain, f, given, show_progress=False, raise_on_failure=False)
            rows.append({"shape": name, "scheme": domain.scheme.name, "cycles": u.cycles,
                         "nmae": errors(u.values, exact).nmae, "nrmse": errors(u.values, exact).nrmse})  # fmt: skip
            print(rows[-1], flush=True)

    v, f = _rings([(r, 0.0) for r in np.linspace(0, 1, 41)[1:]], 160)
    fan = [[len(v), j, (j + 1) % 160] for j in range(160)]
    disc = lamina.Mesh(np.vstack([v, [[0, 0, 0.0]]]), np.vstack([fan, f]))

    def bump(p: torch.Tensor) -> torch.Tensor:
        return torch.exp(p[:, 0]) * torch.cos(p[:, 1]) + p[:, :2].square().sum(1)

    add("disc", disc, lambda p: torch.full_like(p[:, 0], 4.0), [lamina.Dirichlet("rim", bump)], bump(disc.points))
    v, f = _rings([(0.5 + 0.4 * t, 2 * t - 1) for t in np.linspace(0, 1, 81)], 160)
    cone = lamina.Mesh(v, f)

    def below(p: torch.Tensor) -> torch.Tensor:
        return p[:, 2] < 0

    def wave(p: torch.Tensor) -> torch.Tensor:
        return torch.sin(3 * torch.atan2(p[:, 1], p[:, 0])) + p[:, 2]

    reference = _fem(cone, meshes.right_hand_side, below, wave)
    add("frustum, Dirichlet below, free above", cone, meshes.right_hand_side, [lamina.Dirichlet(1, wave)], reference)
    strip = moebius()
    reference = _fem(strip, meshes.right_hand_side, lambda p: torch.ones_like(p[:, 0], dtype=torch.bool), up)
    add("Moebius strip", strip, meshes.right_hand_side, [lamina.Dirichlet("rim", up)], reference)
    return rows


def moebius(around: int = 240, across: int = 24) -> lamina.Mesh:
    """Half-width 0.3 about a circle of radius 0.8."""
    u = 2 * np.pi * np.arange(around) / around
    s = np.linspace(-0.3, 0.3, across + 1)
    U, S = np.meshgrid(u, s, indexing="ij")
    r = 0.8 + S * np.cos(U / 2)
    v = np.stack([r * np.cos(U), r * np.sin(U), S * np.sin(U / 2)], -1).reshape(-1, 3)
    faces = []
    for i in range(around):
        for j in range(across):
            a, b = i * (across + 1) + j, i * (across + 1) + j + 1
            if i + 1 < around:
                c, d = a + across + 1, b + across + 1
            else:
                c, d = across - j, across - j - 1
            faces += [[a, c, b], [b, c, d]]
    return lamina.Mesh(v, np.array(faces))


def circle(options: Any) -> list[Row]:
    """u = a (z - 0.3) + x, a = 1 above the circle z = 0.3 and -2.5 below it."""

    def slope(p: torch.Tensor) -> torch.Tensor:
        return torch.where(p[:, 2] > 0.3, 1.0, -2.5)

    def exact(p: torch.Tensor) -> torch.Tensor:
        return slope(p) * (p[:, 2] - 0.3) + p[:, 0]

    angle = torch.linspace(0, 2 * math.pi, 401, dtype=torch.float64)
    line = torch.stack([torch.cos(angle), torch.sin(angle), torch.zeros_like(angle)], 1) * math.sqrt(0.91)
    line[:, 2] = 0.3
    line[-1] = line[0]
    places = {"level set": lambda p: p[:, 2] - 0.3, "polyline": line}
    sphere = lamina.Sphere()
    made = {"analytic": sphere, "implicit": lamina.Implicit(ball, BOX), "cloud": _cloud(sphere, 20_000)}
    rows = []
    for name, surface in made.items():
        for how, where in places.items():
            found = []
            for h in options.spacings:
                domain = lamina.Domain(surface, h, show_progress=False)
                u = lamina.poisson(
                    domain, lambda p: -2 * slope(p) * p[:, 2] - 2 * p[:, 0], [lamina.Dirichlet(where, exact)],
                    show_progress=False,
                )  # fmt: skip
                found.append((errors(u.values, exact(domain.points)).nmae, u.cycles))
            rows.append({"surface": name, "curve": how, "nmae": [e for e, _ in found], "cycles": [c for _, c in found]})
            print(rows[-1], flush=True)
    return rows


def planck(options: Any) -> list[Row]:
    rows = []
    for name in ("maxplanck_cut", "maxplanck_cut_dense"):
        mesh = meshes.load_scaled(DATA / "paper" / f"{name}.ply")

        def sine(p: torch.Tensor) -> torch.Tensor:
            return torch.sin(3 * torch.atan2(p[:, 0], p[:, 2]))

        def everywhere(p: torch.Tensor) -> torch.Tensor:
            return torch.ones_like(p[:, 0], dtype=torch.bool)

        zero = torch.zeros_like(mesh.points[:, 0])
        for kind, start, value in (
            ("constant", zero, lambda p: torch.ones_like(p[:, 0])),
            ("sinusoidal", lambda p: -sine(p), sine),
        ):
            reference = _fem(mesh, lambda p: torch.zeros_like(p[:, 0]), everywhere, value)
            for h in (0.04, 0.02):
                watch = Stopwatch()
                domain = lamina.Domain(mesh, h, show_progress=False)
                # Only the steady state counts, which errors on the way to it do not touch.
                held = [lamina.Dirichlet("rim", value)]
                u = lamina.heat(domain, start, 40.0, held, accuracy=1e-3, show_progress=False)
                # A constant has no range of its own: that of the initial state and the data is 1.
                error = (u.values.numpy() - reference)[np.isfinite(reference)]
                spread = max(float(np.ptp(reference)), 1.0)
                rows.append({"mesh": name, "data": kind, "spacing": h, "scheme": domain.scheme.name,
                             "nrmse": float(np.sqrt(np.mean(error**2)) / spread), "steps": u.steps,
                             "cycles_a_solve": u.cycles / (2 * u.steps + 1), "seconds": watch.lap()})  # fmt: skip
                print(rows[-1], flush=True)
    return rows


def open_meshes(options: Any) -> list[Row]:
    rows = []
    for name in ("camelhead_open", "mountain_open", "beetle_thin_open", "plane_holes"):
        path = DATA / "meshes" / f"{name}.ply"
        mesh, exact = meshes.load_scaled(path), np.load(meshes.CACHE / meshes.make_reference(path)["file"])
        domain = lamina.Domain(mesh, 0.02, show_progress=False)
        u = lamina.poisson(domain, meshes.right_hand_side, show_progress=False)
        known = np.isfinite(exact)
        found = errors(u.values.numpy()[known], exact[known], remove_mean=True).nrmse
        loops = 0 if domain.rim is None else int(domain.rim.loop.max()) + 1
        rows.append({"mesh": name, "nrmse": found, "cycles": u.cycles, "loops": loops, "warnings": domain.warnings})
        print(rows[-1], flush=True)
    return rows


PARTS = {"hemisphere": hemisphere, "shapes": shapes, "circle": circle, "planck": planck, "meshes": open_meshes}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--spacings", nargs="+", type=float, default=list(SPACINGS))
    chosen = options.parse_args()
    for part in chosen.parts:
        record(f"boundaries_{part}", {"rows": PARTS[part](chosen)}, chosen.out)


if __name__ == "__main__":
    main()
