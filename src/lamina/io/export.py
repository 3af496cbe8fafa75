"""Writers of solutions: PLY for viewers, NPZ for numpy, VTU for ParaView, formats of splats for splats."""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lamina.colours import as_floats, colourise
from lamina.errors import InputError

if TYPE_CHECKING:
    from lamina.io.splat_files import SplatData

MIN_OPACITY = 1e-7  # that is written, and at most 1 less this: the logits of 0 and 1 are not finite


def save(
    path: str | Path,
    points: ArrayLike,
    values: ArrayLike,
    *,
    faces: ArrayLike | None = None,
    normals: ArrayLike | None = None,
    areas: ArrayLike | None = None,
    colours: ArrayLike | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a field on a surface, in the format that the extension names: .ply, .npz or .vtu.

    points (n, 3); values (n,), or (n, s) for s snapshots; faces (m, 3); normals (n, 3); areas (n,), which go into
    .npz alone; colours (n, 3) uint8, those of the last snapshot unless given. metadata: what else to record; its
    entry "times" (s,) becomes an array of its own in .npz and .vtu. Returns the path. Raises InputError.
    """
    path = Path(path)
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        raise InputError(_unknown(path, [*_WRITERS]))
    field = _Field(points, values, faces, normals, colours, metadata, areas)
    atomic_write(path, lambda file: writer(file, field))
    return path


def save_splats(
    path: str | Path,
    splats: SplatData,
    values: ArrayLike,
    *,
    recolour: bool = True,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write Gaussians with a field, in the format that the path names: .ply (INRIA's layout), .compressed.ply, .splat,
    .spz or .sog.

    values (n,), or (n, s) for s snapshots, at all n Gaussians. INRIA's layout has them as properties: value, or
    value_0, value_1, ... The other formats carry the field in the colours alone. recolour: show the last snapshot
    instead of the colours that the Gaussians came with, from every side. recolour=False keeps their colours and what of
    them depends on the view, but for .splat and .sog, where that is left out. Returns the path. Raises InputError.
    """
    from lamina.io.splat_files import SH_0
    from lamina.io.splat_writing import SPLAT_WRITERS

    form = splat_form(path)
    if form is None:
        raise InputError(_unknown(path, [*SPLAT_FORMS]))
    field = _Field(splats.centres, values, None, None, None, metadata)
    if recolour:
        splats = replace(splats, colours=field.colours / 255, harmonics=None)
    if form in SPLAT_WRITERS:
        data = SPLAT_WRITERS[form](splats)
        atomic_write(path, lambda file: file.write(data))
        return Path(path)
    harmonics = (splats.colours - 0.5) / SH_0 if splats.harmonics is None else splats.harmonics
    discs = not splats.scales[:, 2].any()  # files of discs have no third scale
    opacity = splats.opacities.astype(np.float64).clip(MIN_OPACITY, 1 - MIN_OPACITY)
    with np.errstate(divide="ignore", invalid="ignore"):
        scales = np.log(splats.scales[:, : 2 if discs else 3].astype(np.float64))
    normals = ("nx", "ny", "nz")
    given = [splats.extra.get(name, np.zeros(len(splats))) for name in normals]
    columns = _named(("x", "y", "z"), field.points) + list(zip(normals, given, strict=True))
    columns += _named([f"f_dc_{i}" for i in range(3)], harmonics[:, :3])
    columns += _named([f"f_rest_{i}" for i in range(harmonics.shape[1] - 3)], harmonics[:, 3:])
    columns += _named(["opacity"], np.log(opacity / (1 - opacity))[:, None])
    columns += _named([f"scale_{i}" for i in range(scales.shape[1])], scales)
    columns += _named([f"rot_{i}" for i in range(4)], splats.rotations)
    columns += list(field.snapshots().items())
    typed = [(name, "float", column) for name, column in columns]
    typed += [(name, _ply_kind(c), c) for name, c in splats.extra.items() if name not in normals]
    atomic_write(path, lambda file: _write_elements(file, typed, field))
    return Path(path)


SPLAT_FORMS = (".ply", ".compressed.ply", ".splat", ".spz", ".sog")


def splat_form(path: str | Path) -> str | None:
    """The format of Gaussians that a path names, as SplatData.form, or None."""
    name = Path(path).name.lower()
    found = [form for form in SPLAT_FORMS if name.endswith(form)]
    return max(found, key=len)[1:] if found else None


def check_extension(path: str | Path, *, splats: bool = False) -> None:
    """Raise InputError, with the extensions that can be written, if the path has none of them."""
    forms = SPLAT_FORMS if splats else ()
    if not (forms and splat_form(path)) and Path(path).suffix.lower() not in _WRITERS:
        raise InputError(_unknown(path, list(dict.fromkeys([*forms, *_WRITERS, ".html"]))))


def _unknown(path: str | Path, known: Sequence[str]) -> str:
    return f"cannot write {path}: the extension '{Path(path).suffix}' is none of {', '.join(known)}."


def _named(names: Sequence[str], table: NDArray) -> list[tuple[str, NDArray]]:
    return list(zip(names, table.T, strict=True))


def atomic_write(path: str | Path, write: Callable[[BinaryIO], object]) -> None:
    """Call write(file) on a temporary file beside `path`, which gets the name `path` when it is complete.

    Missing folders are made. If `write` raises, the temporary file is removed and an older file stays as it was.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                write(file)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}.") from error


class _Field:
    """The arrays of a file, as numpy arrays whose sizes were checked against each other."""

    def __init__(self, points, values, faces, normals, colours, metadata, areas=None) -> None:
        self.points = as_floats(points)
        self.values = as_floats(values)
        n = len(self.points)
        self.faces = None if faces is None else as_floats(faces).astype(np.int64)
        self.normals = None if normals is None else as_floats(normals)
        _check("points", self.points, self.points.ndim == 2 and self.points.shape[1] == 3, "(n, 3)")
        fits = self.values.ndim in (1, 2) and len(self.values) == n and self.values.shape[-1] > 0
        _check("values", self.values, fits, f"({n},) or ({n}, snapshots)")
        if self.normals is not None:
            _check("normals", self.normals, self.normals.shape == (n, 3), f"({n}, 3)")
        self.areas = None if areas is None else as_floats(areas)
        if self.areas is not None:
            _check("areas", self.areas, self.areas.shape == (n,), f"({n},)")
        if self.faces is not None:
            _check("faces", self.faces, self.faces.ndim == 2 and self.faces.shape[1] == 3, "(m, 3)")
        last = self.values if self.values.ndim == 1 else self.values[:, -1]
        self.colours = colourise(last) if colours is None else as_floats(colours).astype(np.uint8)
        _check("colours", self.colours, self.colours.shape == (n, 3), f"({n}, 3)")
        self.metadata = dict(metadata or {})
        self.times = None
        if self.metadata.get("times") is not None:
            self.times = np.atleast_1d(as_floats(self.metadata.pop("times")))

    def snapshots(self) -> dict[str, NDArray]:
        """Names and columns (n,): value, or value_0, value_1, ..."""
        if self.values.ndim == 1:
            return {"value": self.values}
        return {f"value_{i}": column for i, column in enumerate(self.values.T)}

    def described(self) -> str:
        return json.dumps(self.metadata, default=str, sort_keys=True)


def _check(name: str, array: NDArray, fits: bool, expected: str) -> None:
    if not fits:
        raise InputError(f"cannot save {name} of shape {array.shape}: expected {expected}.")


# PLY, binary little endian

_PLY_KINDS = {"char": "i1", "uchar": "u1", "short": "<i2", "ushort": "<u2", "int": "<i4", "uint": "<u4"}
_PLY_KINDS |= {"float": "<f4", "double": "<f8"}


def _ply_kind(column: NDArray) -> str:
    """The type of a PLY that holds an array of numbers."""
    return next((kind for kind, code in _PLY_KINDS.items() if code[-2:] == column.dtype.str[-2:]), "double")


def _write_ply(file: BinaryIO, field: _Field) -> None:
    columns: list[tuple[str, str, NDArray]] = []
    for name, column in zip("xyz", field.points.T, strict=True):
        columns.append((name, "double", column))
    if field.normals is not None:
        for name, column in zip(("nx", "ny", "nz"), field.normals.T, strict=True):
            columns.append((name, "double", column))
    columns += [(name, "double", column) for name, column in field.snapshots().items()]
    for name, column in zip(("red", "green", "blue"), field.colours.T, strict=True):
        columns.append((name, "uchar", column))
    _write_elements(file, columns, field)


def _write_elements(file: BinaryIO, columns: list[tuple[str, str, NDArray]], field: _Field) -> None:
    """The header, vertices of the given properties (name, type, values (n,)) and the faces."""
    header = ["ply", "format binary_little_endian 1.0", "comment written by lamina"]
    if field.times is not None:
        header.append("comment times " + " ".join(f"{t:.17g}" for t in field.times))
    if field.metadata:
        # json writes everything outside ASCII, and line ends, as escapes: one safe line.
        header.append("comment metadata " + field.described())
    header.append(f"element vertex {len(field.points)}")
    header += [f"property {kind} {name}" for name, kind, _ in columns]
    if field.faces is not None:
        header += [f"element face {len(field.faces)}", "property list uchar int vertex_indices"]
    file.write(("\n".join(header) + "\nend_header\n").encode("ascii"))

    vertices = np.empty(len(field.points), dtype=[(name, _PLY_KINDS[kind]) for name, kind, _ in columns])
    for name, _, column in columns:
        vertices[name] = column
    file.write(vertices.tobytes())
    if field.faces is not None:
        faces = np.empty(len(field.faces), dtype=[("count", "u1"), ("corners", "<i4", (3,))])
        faces["count"] = 3
        faces["corners"] = field.faces
        file.write(faces.tobytes())


# NPZ


def _write_npz(file: BinaryIO, field: _Field) -> None:
    arrays = {"points": field.points, "values": field.values, "colours": field.colours}
    optional = {"faces": field.faces, "normals": field.normals, "areas": field.areas, "times": field.times}
    arrays |= {name: array for name, array in optional.items() if array is not None}
    if field.metadata:
        arrays["metadata"] = np.array(field.described())
    np.savez_compressed(file, allow_pickle=False, **arrays)


# VTU: XML unstructured grid, arrays inline as base64 of [UInt64 byte count][bytes]


def _write_vtu(file: BinaryIO, field: _Field) -> None:
    n = len(field.points)
    if field.faces is None:
        cells, size, vtk_type = np.arange(n), 1, 1  # VTK_VERTEX
    else:
        cells, size, vtk_type = field.faces.reshape(-1), 3, 5  # VTK_TRIANGLE
    count = len(cells) // size
    lines = ['<?xml version="1.0"?>']
    if field.metadata:
        lines.append(f"<!-- {escape(field.described()).replace('--', '- -')} -->")
    lines.append('<VTKFile type="UnstructuredGrid" version="1.0" byte_order="LittleEndian" header_type="UInt64">')
    lines.append("<UnstructuredGrid>")
    if field.times is not None:
        lines += ["<FieldData>", _data_array("times", field.times, tuples=True), "</FieldData>"]
    lines.append(f'<Piece NumberOfPoints="{n}" NumberOfCells="{count}">')
    lines += ["<Points>", _data_array("Points", field.points), "</Points>", "<Cells>"]
    lines.append(_data_array("connectivity", cells.astype(np.int64)))
    lines.append(_data_array("offsets", np.arange(1, count + 1, dtype=np.int64) * size))
    lines.append(_data_array("types", np.full(count, vtk_type, dtype=np.uint8)))
    lines.append("</Cells>")
    names = field.snapshots()
    vectors = "" if field.normals is None else ' Normals="normals"'
    lines.append(f"<PointData Scalars={quoteattr(list(names)[-1])}{vectors}>")
    lines += [_data_array(name, column) for name, column in names.items()]
    if field.normals is not None:
        lines.append(_data_array("normals", field.normals))
    lines += ["</PointData>", "</Piece>", "</UnstructuredGrid>", "</VTKFile>", ""]
    file.write("\n".join(lines).encode("ascii"))


def _data_array(name: str, array: NDArray, tuples: bool = False) -> str:
    kind = {"f8": "Float64", "i8": "Int64", "u1": "UInt8"}[array.dtype.str[1:]]
    data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
    text = base64.b64encode(np.array(len(data), dtype="<u8").tobytes() + data).decode("ascii")
    shape = f' NumberOfComponents="{array.shape[1]}"' if array.ndim == 2 else ""
    shape += f' NumberOfTuples="{len(array)}"' if tuples else ""
    return f'<DataArray type="{kind}" Name={quoteattr(name)}{shape} format="binary">{text}</DataArray>'


_WRITERS: dict[str, Callable[[BinaryIO, _Field], None]] = {
    ".ply": _write_ply,
    ".npz": _write_npz,
    ".vtu": _write_vtu,
}
