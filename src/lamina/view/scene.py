"""What there is to look at: a surface with a field over time, and what may be laid beside it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from lamina.colours import as_floats
from lamina.errors import InputError
from lamina.io.solution_files import SavedSolution, read_solution

if TYPE_CHECKING:
    from lamina.domain import Domain

SHOWN_FACTS = ("nodes", "spacing", "scheme", "order", "extension", "cycles", "steps", "residual", "drawn", "warnings")


@dataclass(frozen=True)
class Scene:
    """n points with s states of a field.

    values, reference (s, n); faces (m, 3) or None for points; normals (n, 3); band (k, 3): nodes of the grid.
    facts: what to say of it, by name. name and unit: of the values. time_unit: of the times.
    """

    title: str
    points: NDArray
    values: NDArray
    times: tuple[float, ...] = (0.0,)
    faces: NDArray | None = None
    normals: NDArray | None = None
    reference: NDArray | None = None
    reference_name: str = "reference"
    band: NDArray | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    name: str = "u"
    unit: str = ""
    time_unit: str = ""

    def __post_init__(self) -> None:
        n, s = len(self.points), len(self.times)
        if self.points.shape != (n, 3) or n == 0:
            raise InputError(f"cannot show points of shape {self.points.shape}: expected (n, 3).")
        if not np.isfinite(self.points).all():
            raise InputError("cannot show points with coordinates that are not finite.")
        for name, array in (("values", self.values), ("the reference", self.reference)):
            if array is not None and array.shape != (s, n):
                raise InputError(f"cannot show {name} of shape {array.shape}: expected {s} states of {n} points.")

    @property
    def field_name(self) -> str:
        """What to call the values: "temperature (K)"."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def has_time(self) -> bool:
        """False for a stationary problem, whose only time is 0."""
        return self.times != (0.0,)

    def called(self, name: str | None = None, unit: str | None = None, time_unit: str | None = None) -> Scene:
        """This scene with other names, also in its title where that is "u on bunny"."""
        name = self.name if name is None else name
        old = f"{self.name} on "
        title = f"{name} on {self.title.removeprefix(old)}" if self.title.startswith(old) else self.title
        unit = self.unit if unit is None else unit
        return replace(
            self, title=title, name=name, unit=unit, time_unit=self.time_unit if time_unit is None else time_unit
        )

    def beside(self, reference: ArrayLike, name: str = "reference") -> Scene:
        """This scene compared with other values, (n,) for all times or (s, n)."""
        other = np.atleast_2d(as_floats(reference))
        if len(other) == 1:
            other = np.repeat(other, len(self.times), axis=0)
        return replace(self, reference=other, reference_name=name)


def grid_nodes(domain: Domain) -> Tensor:
    """Positions (k, 3) of the grid's nodes: the band, or the corners of the cells that the surface cuts."""
    from lamina.geometry.lattice import OCTANTS

    if domain.has_weak_forms:
        cell = domain.cut.elements.cell[: domain.cut.elements.active].long()
        ijk = torch.unique((cell[:, None] + OCTANTS.to(cell.device)).reshape(-1, 3), dim=0)
        return domain.lattice.position(ijk)
    scheme: Any = domain.scheme
    band = scheme.band if hasattr(scheme, "band") else scheme.levels[0].band
    return band.lattice.position(band.ijk)


def read_scene(path: str | Path) -> Scene:
    """What a file shows: a solution that lamina wrote (.ply, .npz), a folder with one, or any surface that lamina
    reads, coloured by its third coordinate. Raises InputError."""
    path = Path(path)
    if path.is_dir():
        found = next((path / name for name in ("solution.ply", "solution.npz") if (path / name).is_file()), None)
        if found is None:
            raise InputError(
                f"there is no solution.ply or solution.npz in {path}; give the folder of `lamina solve ... --out`, "
                "or a file."
            )
        return replace(read_scene(found), title=path.resolve().name)
    solution = read_solution(path) if path.is_file() else None
    if solution is not None:
        return _solution_scene(path, solution)
    from lamina.surfaces.files import load

    surface = load(str(path))
    return Scene(
        surface.name,
        as_floats(surface.points),
        as_floats(surface.points)[:, 2][None],
        faces=None if surface.faces is None else as_floats(surface.faces).astype(np.int64),
        normals=as_floats(surface.normals),
        facts={"shown": "the third coordinate: the file holds no values"},
        name="z",
    )


def _solution_scene(path: Path, solution: SavedSolution) -> Scene:
    normals, metadata = solution.normals, solution.metadata
    if normals is not None and not normals.any():
        normals = None  # files of Gaussians have zeros in the place of normals
    title = f"u on {metadata['surface']}" if metadata.get("surface") else path.stem
    shown = {key: metadata[key] for key in SHOWN_FACTS if key in metadata}
    points, values = as_floats(solution.points), as_floats(solution.values)
    return Scene(title, points, values, solution.times, solution.faces, normals, facts=shown)
