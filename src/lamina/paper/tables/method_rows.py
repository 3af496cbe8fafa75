"""Rows of the tables: a method by its name on a shape, with its errors and its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lamina.errors import InputError, SolveError
from lamina.metrics import aligned, errors
from lamina.paper.baselines.compare import Answer, solve
from lamina.paper.tables.table import Row, Setting
from lamina.surfaces.base import Surface
from lamina.surfaces.files import load
from lamina.surfaces.mesh import Mesh
from lamina.surfaces.point_cloud import PointCloud

METHOD_LABELS = {
    "attention": "lamina attention (the paper's method)",
    "neural": "lamina neural",
    "closest-point": "lamina coupled",
    "trace": "lamina trace",
    "auto": "lamina as it comes",
    "fem": "FEM",
    "fem-robust": "FEM, intrinsic Delaunay",
    "cpm": "CPM, the paper's setting",
    "cpm-coupled": "CPM, textbook (coupled)",
}
PAPER_SPACING = 0.05  # grid spacing of the paper


@dataclass(frozen=True)
class Shape:
    """The arrays of a triangle mesh. Every method makes a new surface from them, so that nothing is shared."""

    name: str
    V: Tensor  # (n, 3)
    F: Tensor  # (m, 3)
    N: Tensor  # (n, 3) normals
    component: Tensor  # (n,)

    def mesh(self) -> Surface:
        return Mesh(self.V, self.F, name=self.name)

    def cloud(self) -> Surface:
        return PointCloud(self.V, self.N, name=self.name)


def shape_of(mesh: Surface, name: str) -> Shape:
    """The arrays of a mesh. Raises InputError for a surface without triangles."""
    if mesh.faces is None:
        raise InputError(f"{name} has no triangles; a mesh is needed here.")
    return Shape(name, mesh.points, mesh.faces, mesh.normals, mesh.component)


def read(setting: Setting, file: str, *, scaled: bool = False) -> Shape:
    """A mesh of the evaluation shapes. scaled: centre it at the origin and scale its longest half-extent to 1."""
    found = shape_of(load(setting.file(file)), file.rsplit("/", 1)[-1].removesuffix(".ply"))
    if not scaled:
        return found
    low, high = found.V.min(0).values, found.V.max(0).values
    V = (found.V - (low + high) / 2) / float((high - low).max() / 2)
    return Shape(found.name, V, found.F, found.N, found.component)


def label(method: str, spacing: float | None = None) -> str:
    named = METHOD_LABELS[method]
    return named if spacing in (None, PAPER_SPACING) else f"{named}, spacing {spacing:g}"


def poisson_row(
    method: str,
    surface: Surface,
    f: Callable[[Tensor], Tensor],
    exact: Any,
    setting: Setting,
    *,
    case: str,
    spacing: float | None = PAPER_SPACING,
    component: Tensor | None = None,
    keep: dict[str, Tensor] | None = None,
    order: int | None = None,
) -> Row:
    """Lap u = f by one method, its errors against exact (n,) at the surface's points, and the seconds it took.

    If the method fails, the row has the reason. keep: gets the values, under the name of the method.
    """
    row: Row = {"method": label(method, None if method.startswith("fem") else spacing), "case": case}
    setting.report(0.0, f"{case}: {row['method']}")
    try:
        options: dict[str, Any] = {} if order is None else {"order": order}
        answer = solve(surface, f, method, spacing=spacing, device=setting.device, **options)
        return row | measured(answer, exact, row["method"], component=component, keep=keep)
    except (InputError, SolveError, torch.OutOfMemoryError) as error:
        return row | {"failed": str(error)}


def fitted_error(values: Tensor, exact: Any, component: Tensor | None = None) -> float:
    """NRMSE of the multiple of the values that is nearest to exact: the error without that of the amplitude."""
    u, v = aligned(values, torch.zeros_like(values), component), aligned(exact, torch.zeros_like(values), component)
    return errors(u * float(u @ v) / float(u @ u), v).nrmse


def measured(
    answer: Answer,
    exact: Any,
    name: str,
    *,
    remove_mean: bool = True,
    component: Tensor | None = None,
    keep: dict[str, Tensor] | None = None,
) -> Row:
    if keep is not None:
        keep[name] = answer.values
    found = errors(answer.values, exact, remove_mean=remove_mean, component=component).as_dict()
    found["nrmse_fitted"] = fitted_error(answer.values, exact, component)
    return found | answer.cost
