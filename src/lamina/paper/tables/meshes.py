"""The tables on meshes, against FEM refined until it settles: shapes, noise, furniture, frequencies.

On the paper's shapes f is a coordinate, one for each shape; we found it in the fields that the authors published. On
furniture f is sin(w x) sin(w y) sin(w z) with w = 1. The paper's table of frequencies has the same figures for w = 1 as
its table of furniture for shape A. So both tables have this f and this shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lamina.paper.baselines.long_edges import split_long_edges
from lamina.paper.baselines.reference import Reference, reference_poisson
from lamina.paper.tables import published_numbers
from lamina.paper.tables.gino_rows import gino_rows
from lamina.paper.tables.method_rows import METHOD_LABELS, PAPER_SPACING, Shape, label, poisson_row, read, shape_of
from lamina.paper.tables.table import Row, Setting, Table, averaged
from lamina.surfaces.icosphere import icosphere
from lamina.surfaces.mesh import Mesh
from lamina.view.camera import View, upright_axis
from lamina.view.render import render

FINE_SPACINGS = (
    0.02,
    0.01,
)  # further spacings of the trace scheme, which takes seconds where the paper takes half a minute
COORDINATE_OF_SHAPE = {"apple": 1, "octopus": 2, "jared": 1, "sofa": 0, "holey_human": 0, "fastener": 2}
NOISE_LEVELS = {"0.0005": 0.0005, "0.001": 0.001, "0.005": 0.005, "0.01": 0.01}
FREQUENCIES = {"w = 1": 1.0, "w = 10": 10.0, "w = 20": 20.0}
PANEL_PIXELS = 300  # width and height of a picture
MAX_REFERENCE_EDGE = 0.04  # Longest edge of a reference mesh before its refinement, over the extent. Chosen by trial.


def coordinate(axis: int) -> Callable[[Tensor], Tensor]:
    return lambda p: p[:, axis]


def product_of_sines(w: float) -> Callable[[Tensor], Tensor]:
    return lambda p: torch.sin(w * p).prod(1)


def reference(shape: Shape, f: Callable[[Tensor], Tensor], setting: Setting, *, tolerance: float = 1e-6) -> Reference:
    """FEM on the mesh, refined until it changes by less than `tolerance`, or to three million vertices."""
    setting.report(0.0, f"{shape.name}: reference")
    max_vertices = 50_000 if setting.quick else 3_000_000
    # Refinement halves all edges. Without splitting, a few long triangles would decide how often a mesh is refined.
    V, F = split_long_edges(
        shape.V.numpy(), shape.F.numpy(), MAX_REFERENCE_EDGE * float(np.ptp(shape.V.numpy(), axis=0).max())
    )
    found = reference_poisson(V, F, f, tolerance=tolerance, max_vertices=max_vertices)
    return replace(found, values=found.values[: len(shape.V)])


def compare_methods(
    shape: Shape,
    f: Callable[[Tensor], Tensor],
    setting: Setting,
    case: str,
    exact: Reference,
    methods: tuple[str, ...],
    *,
    fine: tuple[float, ...] = FINE_SPACINGS,
    keep: dict[str, Tensor] | None = None,
) -> list[Row]:
    """Rows of every method at the paper's spacing, of trace and the paper's CPM also at finer spacings.

    FEM is on the mesh itself. The learned operators get points with normals, as in the paper; all others get the mesh.
    """
    made = []
    runs = [(method, PAPER_SPACING) for method in methods] + [("trace", h) for h in fine] + [("cpm", FINE_SPACINGS[0])]
    for method, spacing in [(m, 5 * h) for m, h in runs[: len(methods)]] if setting.quick else runs:
        surface = shape.cloud() if method in ("attention", "neural") else shape.mesh()
        row = poisson_row(
            method, surface, f, exact.values, setting, case=case, spacing=spacing, component=shape.component, keep=keep
        )
        made.append(row | {"method": label(method) if setting.quick else row["method"]})
    for row in made:
        row |= {"reference_change": exact.change, "reference_vertices": exact.vertices}
    return made


def stand_in() -> Shape:
    """The mesh of the quick form, a bumpy ball of 642 vertices."""
    V, F = icosphere(3)
    radius = 1 + 0.15 * torch.sin(3 * V[:, :1]) * torch.cos(2 * V[:, 1:2]) + 0.1 * V[:, 2:]
    return shape_of(Mesh(radius * V, F), "bumpy ball")


MESH_METHODS = (
    "attention",
    "neural",
    "closest-point",
    "trace",
    "fem",
    "cpm",
)  # coupled on a mesh is the textbook's CPM


def shape_rows(setting: Setting) -> list[Row]:
    made: list[Row] = [
        {"method": published_numbers.OURS, "case": case, "nrmse": value}
        for case, value in published_numbers.SHAPES.items()
    ]
    page = "paper: the fields shown on its page, decoded"
    made += [
        {"method": page, "case": case, "nrmse_fitted": value}
        for case, value in published_numbers.ERRORS_OF_PAGE_FIELDS.items()
    ]
    for case, axis in COORDINATE_OF_SHAPE.items():
        if setting.quick and case != "apple":
            continue
        shape = stand_in() if setting.quick else read(setting, f"paper/{case}.ply")
        f = coordinate(axis)
        exact, keep = reference(shape, f, setting), {}
        made += compare_methods(shape, f, setting, case, exact, MESH_METHODS, keep=keep)
        chosen = [METHOD_LABELS["attention"], METHOD_LABELS["neural"], METHOD_LABELS["trace"]]
        setting.pictures[case] = error_picture(shape, torch.from_numpy(exact.values), keep, chosen)
    return made


def noise_rows(setting: Setting) -> list[Row]:
    """Jared with Gaussian noise on its vertices, against FEM without noise. Normals are those of the noisy mesh."""
    runs: list[Row] = []
    shape = stand_in() if setting.quick else read(setting, "paper/jared.ply")
    f = coordinate(COORDINATE_OF_SHAPE["jared"])
    exact = reference(shape, f, setting)
    for case, sigma in NOISE_LEVELS.items():
        for seed in range(1 if setting.quick else min(3, setting.seeds)):
            if setting.quick and case != "0.001":
                continue
            generator = torch.Generator().manual_seed(seed)
            moved = shape.V + sigma * torch.randn(shape.V.shape, generator=generator, dtype=shape.V.dtype)
            noisy = shape_of(Shape("jared", moved, shape.F, shape.N, shape.component).mesh(), "jared")
            methods = ("attention", "neural", "trace", "fem", "fem-robust", "cpm")
            found = compare_methods(noisy, f, setting, case, exact, methods, fine=(0.02,))
            runs += [row | {"seed": seed} for row in [*found, denoised_row(noisy, f, setting, case, exact)]]
    return published_numbers.noise(list(NOISE_LEVELS)) + averaged(runs, MESH_FIGURES)


def denoised_row(noisy: Shape, f: Callable[[Tensor], Tensor], setting: Setting, case: str, exact: Reference) -> Row:
    """Trace at spacing 0.02 after `Mesh.denoised`, which does not know the noise; its time is included."""
    start = perf_counter()
    surface = Mesh(noisy.V, noisy.F, name=noisy.name).denoised()
    seconds = perf_counter() - start
    spacing = 5 * PAPER_SPACING if setting.quick else 0.02
    row = poisson_row("trace", surface, f, exact.values, setting, case=case, spacing=spacing, component=noisy.component)
    if "seconds" in row:
        row["seconds"] += seconds
    row |= {"reference_change": exact.change, "reference_vertices": exact.vertices, "seconds_denoising": seconds}
    named = "lamina trace, mesh denoised" + ("" if setting.quick else f", spacing {spacing:g}")
    return row | {"method": named, "note": next((n for n in surface.notes if n.startswith("Noise of")), "unchanged")}


def furniture_rows(setting: Setting) -> list[Row]:
    made = published_numbers.furniture(list(published_numbers.STAND_INS))
    f = product_of_sines(1.0)
    for case, file in published_numbers.STAND_INS.items():
        if setting.quick and case != "A":
            continue
        shape = stand_in() if setting.quick else read(setting, file, scaled=True)
        exact, keep = reference(shape, f, setting), {}
        made += compare_methods(shape, f, setting, case, exact, MESH_METHODS, keep=keep)
        chosen = [METHOD_LABELS["attention"], METHOD_LABELS["trace"]]
        setting.pictures[case] = error_picture(shape, torch.from_numpy(exact.values), keep, chosen)
    return made + gino_rows(setting, "furniture")


def frequency_rows(setting: Setting) -> list[Row]:
    made = published_numbers.frequency(list(FREQUENCIES))
    shape = stand_in() if setting.quick else read(setting, published_numbers.STAND_INS["A"], scaled=True)
    for case, w in FREQUENCIES.items():
        if setting.quick and w > 1:
            continue
        f = product_of_sines(w)
        made += compare_methods(shape, f, setting, case, reference(shape, f, setting), MESH_METHODS)
    return made + gino_rows(setting, "frequency")


def error_picture(shape: Shape, exact: Tensor, found: dict[str, Tensor], chosen: list[str]) -> Image.Image:
    """Pictures of the reference and of the errors, values minus reference, each with its own diverging scale."""
    view = View(azimuth=120.0, elevation=15.0, up=upright_axis(shape.V.numpy()))
    panels = [("FEM", exact)]
    for name in chosen:
        if name in found:
            error = found[name] - exact
            panels.append((f"error: {name.split(' (')[0]}", error - error.mean()))
    sheet = Image.new("RGB", (PANEL_PIXELS * len(panels), PANEL_PIXELS), "white")
    for i, (title, values) in enumerate(panels):
        largest = float(values.abs().max())
        ends = {} if i == 0 else {"map": "diverging", "low": -largest, "high": largest}
        picture = render(
            shape.V, values, faces=shape.F, size=(PANEL_PIXELS, PANEL_PIXELS), title=title, view=view, **ends
        )
        sheet.paste(picture, (PANEL_PIXELS * i, 0))
    return sheet


MESH_FIGURES = ("nrmse", "nrmse_fitted", "seconds")
TABLES = (
    Table("shapes", "Poisson on the paper's shapes", MESH_FIGURES, shape_rows, needs_data=True),
    Table("noise", "Noise on the vertices of Jared", MESH_FIGURES, noise_rows, needs_data=True),
    Table("furniture", "Poisson on five pieces of furniture", MESH_FIGURES, furniture_rows, needs_data=True),
    Table("frequency", "Right-hand sides of high frequency", MESH_FIGURES, frequency_rows, needs_data=True),
)
