"""Reader of the solutions that lamina.io.export writes: PLY and NPZ with values at points."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SavedSolution:
    """Values of a field at points, for s times. metadata: what the file records besides, by name."""

    points: NDArray  # (n, 3)
    values: NDArray  # (s, n)
    times: tuple[float, ...]
    faces: NDArray | None = None  # (m, 3)
    normals: NDArray | None = None  # (n, 3)
    metadata: dict[str, Any] = field(default_factory=dict)


def read_solution(path: Path) -> SavedSolution | None:
    """The solution in a .ply or .npz file; None if the file has no values or another extension, or is damaged."""
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return _read_npz(path)
    return _read_ply(path) if suffix == ".ply" else None


def _read_ply(path: Path) -> SavedSolution | None:
    from plyfile import PlyData, PlyParseError

    # plyfile reads faces of a known length at once. lamina writes triangles only, so a file with other faces is none
    # of its solutions; the caller then reads it as a surface.
    lengths = {"face": {"vertex_indices": 3}}
    try:
        ply = PlyData.read(str(path), known_list_len=lengths)
    except (PlyParseError, ValueError, OSError):
        return None
    if "vertex" not in ply or ("face" in ply and "vertex_indices" not in ply["face"]):
        return None
    vertex = ply["vertex"]
    properties = [p.name for p in vertex.properties]
    names = [name for name in properties if name == "value" or name.removeprefix("value_").isdigit()]
    if not names:
        return None
    times, metadata = tuple(map(float, range(len(names)))), {}
    for comment in ply.comments:
        word, _, rest = comment.partition(" ")
        if word == "times":
            times = tuple(float(t) for t in rest.split())
        elif word == "metadata":
            metadata = json.loads(rest)
    faces = None
    if "face" in ply and ply["face"].count:
        faces = np.asarray(ply["face"]["vertex_indices"], dtype=np.int64).reshape(-1, 3)
    normals = _columns(vertex, ("nx", "ny", "nz")) if {"nx", "ny", "nz"} <= set(properties) else None
    return SavedSolution(_columns(vertex, "xyz"), _columns(vertex, names).T, times, faces, normals, metadata)


def _columns(element: Any, names: Iterable[str]) -> NDArray:
    return np.stack([np.asarray(element[name], dtype=np.float64) for name in names], 1)


def _read_npz(path: Path) -> SavedSolution | None:
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not {"points", "values"} <= set(archive.files):
                return None
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile):
        return None
    values = arrays["values"].astype(np.float64)
    values = values[None] if values.ndim == 1 else values.T
    times = tuple(map(float, arrays["times"])) if "times" in arrays else tuple(map(float, range(len(values))))
    metadata = json.loads(str(arrays["metadata"])) if "metadata" in arrays else {}
    return SavedSolution(arrays["points"], values, times, arrays.get("faces"), arrays.get("normals"), metadata)
