"""Readers of surface files: each takes a path and returns Contents, or raises FormatError.

General readers trust the size that a file announces, and lose what a PDE needs. So these are written here: OBJ (texture
seams must not split vertices), PLY (what the file holds decides between points and mesh), OFF (files may end too early)
and binary STL (which may begin like a text).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from lamina.io.polygons import triangulate

if TYPE_CHECKING:
    from lamina.io.splat_files import SplatData


# Columns 4 to 6 of a text or array are normals if their median length is between these; colours in 0..255 are mostly
# longer, and colours in 0..1 can pass. Half and double would let more of these pass.
MIN_NORMAL_LENGTH, MAX_NORMAL_LENGTH = 0.5, 2


@dataclass(frozen=True)
class Contents:
    """What a file holds: points alone, vertices with triangles, or Gaussians. notes: what the reader had to decide."""

    points: np.ndarray  # (n, 3)
    faces: np.ndarray | None = None  # (m, 3)
    normals: np.ndarray | None = None  # (n, 3)
    notes: list[str] = field(default_factory=list)
    splats: SplatData | None = None  # if the points are centres of Gaussians


class FormatError(Exception):
    """A reader found something else than its format. load() adds the name of the file."""


def _read_ply(path: Path) -> Contents:
    from plyfile import PlyData

    from lamina.io.splat_files import from_ply, is_splat_ply

    _check_ply_size(path)
    try:
        # plyfile is ten times faster if told that every face is a triangle; it raises an error if one is not.
        triangles = {"face": {"vertex_indices": 3, "vertex_index": 3}}
        ply = PlyData.read(str(path), known_list_len=triangles)
    except Exception:
        ply = PlyData.read(str(path))
    elements = {element.name: element for element in ply.elements}
    if "vertex" not in elements:
        raise FormatError("it has no element 'vertex'")
    vertex = elements["vertex"]
    columns = {p.name for p in vertex.properties}
    if is_splat_ply(elements):
        splats = from_ply(elements)
        return Contents(splats.centres, notes=splats.notes, splats=splats)
    if not {"x", "y", "z"} <= columns:
        raise FormatError(f"its vertices have no x, y, z but {', '.join(sorted(columns)[:8]) or 'nothing'}")
    points = _columns(vertex, "x", "y", "z")
    if "face" in elements and elements["face"].count:
        face = elements["face"]
        key = next((p.name for p in face.properties if p.name in ("vertex_indices", "vertex_index")), None)
        if key is None:
            raise FormatError("its faces have no list 'vertex_indices' or 'vertex_index'")
        edges = elements["edge"].count if "edge" in elements else 0
        return _polygons(points, face[key], lines=edges)
    if "tristrips" in elements:
        raise FormatError("it stores triangle strips; save it with plain faces")
    if "edge" in elements and elements["edge"].count:
        raise FormatError(_only_lines(elements["edge"].count))
    normals = _columns(vertex, "nx", "ny", "nz") if {"nx", "ny", "nz"} <= columns else None
    if normals is not None and not normals.any():
        normals = None  # some programs fill these fields with zeros
    return Contents(points, None, normals)


MAX_PLY_HEADER_BYTES = 2**20  # in which "end_header" must come: tens of thousands of properties


def _check_ply_size(path: Path) -> None:
    """Refuse a header that announces more than the file can hold: plyfile takes the memory before it looks."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header, found, _ = file.read(MAX_PLY_HEADER_BYTES).partition(b"end_header")
    if not found:
        raise FormatError("its header does not end")
    text = b"ascii" in header.partition(b"element")[0]
    bytes_of = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "int": 4, "uint": 4, "float": 4, "double": 8}
    bytes_of |= {"int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "float32": 4, "float64": 8}
    least = len(header)  # bytes of the smallest file with this header
    count = 0
    for line in header.decode("ascii", "replace").splitlines():
        words = line.split()
        if words[:1] == ["element"] and len(words) == 3:
            count = int(words[2])
            if count < 0:
                raise FormatError(f"it announces {count} of its element {words[1][:40]!r}")
        elif words[:1] == ["property"] and len(words) > 2:
            # A list takes at least the bytes of its length; a number in text takes a digit and a blank.
            kind = words[2] if words[1] == "list" else words[1]
            least += count * (2 if text else bytes_of.get(kind, 1))
            if least > size + 1:
                raise FormatError(f"it announces at least {least} bytes and has {size}")


def _columns(element, *names: str) -> np.ndarray:
    return np.stack([np.asarray(element[name], dtype=np.float64) for name in names], 1)


def _read_obj(path: Path) -> Contents:
    """Positions and faces only: texture coordinates would cut the surface open along their seams.

    Polygons are triangulated; lines (l), points (p) and faces with fewer than three corners are counted and left out.
    """
    vertices, normals, corners = [], [], []
    left_out = {"l": 0, "p": 0}
    text = re.sub(r"#.*", "", path.read_text("utf-8", "replace").removeprefix("\ufeff"))
    # A backslash at the end of a line joins it with the next; a blank line is put in, so that line numbers stay right.
    text = re.sub(r"\\[ \t]*\n([^\n]*)", r" \1\n", text)
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if words[0] == "v":
            if len(words) < 4:
                raise FormatError(f"line {number} has a vertex with fewer than three coordinates")
            vertices.append([float(word) for word in words[1:4]])
        elif words[0] == "vn":
            normals.append([float(word) for word in words[1:4]])
        elif words[0] == "f":
            face = [int(word.partition("/")[0]) for word in words[1:]]
            # Indices count from 1; negative ones count back from the latest vertex.
            corners.append([i - 1 if i > 0 else len(vertices) + i if i < 0 else -1 for i in face])
        elif words[0] in left_out:
            left_out[words[0]] += 1
    if not vertices:
        raise FormatError("it has no vertices (lines 'v x y z')")
    points = np.array(vertices, dtype=np.float64)
    if corners:
        return _polygons(points, corners, lines=left_out["l"], single=left_out["p"])
    if left_out["l"]:
        raise FormatError(_only_lines(left_out["l"]))
    return Contents(points, None, np.array(normals) if len(normals) == len(vertices) else None)


def _read_off(path: Path) -> Contents:
    lines = [line for line in data_lines(path.read_text("utf-8", "replace")) if line]
    if len(lines) < 2:
        raise FormatError("it has no vertices")
    header = lines[0].split()
    if not re.fullmatch(r"(ST)?C?N?OFF", header[0]):
        raise FormatError(f"its first word is {header[0][:20]!r}, not OFF")
    counts, rows = (header[1:], lines[1:]) if len(header) > 1 else (lines[1].split(), lines[2:])
    vertex_count, face_count = int(counts[0]), int(counts[1])
    if min(vertex_count, face_count) < 0:
        raise FormatError(f"it announces {vertex_count} vertices and {face_count} faces")
    if len(rows) < vertex_count + face_count:
        raise FormatError(f"it announces {vertex_count} vertices and {face_count} faces but ends before them")
    points = np.array([row.split()[:3] for row in rows[:vertex_count]], dtype=np.float64).reshape(-1, 3)
    if face_count == 0:
        return Contents(points)
    faces = [row.split() for row in rows[vertex_count : vertex_count + face_count]]
    # A colour may follow the corners.
    corners = [[int(i) for i in row[1 : 1 + int(row[0])]] for row in faces]
    for row, face in zip(faces, corners, strict=True):
        if len(face) != int(row[0]):
            raise FormatError(f"a face announces {row[0]} corners and names {len(face)}")
    return _polygons(points, corners)


def _read_stl(path: Path) -> Contents:
    data = path.read_bytes()
    if data.lstrip()[:5] == b"solid" and b"\0" not in data:
        words = re.findall(rb"^[ \t]*(?:vertex\b(.*)|(endfacet))", data, re.M | re.I)
        ends = np.flatnonzero([bool(end) for _, end in words])
        rows = [row.split() for row, end in words if not end]
        if not rows or len(ends) == 0 or ends[-1] < len(words) - 1 or any(len(row) != 3 for row in rows):
            raise FormatError(f"its {len(rows)} vertices are not three numbers each in facets that end with 'endfacet'")
        last = ends - np.arange(len(ends))  # vertices up to the end of each facet
        regular = np.array_equal(last, 3 * np.arange(1, len(ends) + 1))
        corners = np.arange(len(rows))
        facets = corners.reshape(-1, 3) if regular else np.split(corners, last[:-1])
        read = _polygons(np.array(rows, dtype=np.float64), facets)
        welded = _welded(read.points, cast(np.ndarray, read.faces), "STL")
        welded.notes.extend(read.notes)
        return welded
    count = int.from_bytes(data[80:84], "little")
    if count == 0 or len(data) < 84 + 50 * count:
        raise FormatError(f"it announces {count} triangles, which do not fit its {len(data)} bytes")
    facet = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
    corners = np.frombuffer(data, facet, count, 84)["corners"].reshape(-1, 3)
    return _welded(corners, np.arange(3 * count).reshape(-1, 3), "STL")


def _read_gltf(path: Path) -> Contents:
    from lamina.io.gltf import read_scene

    scene = read_scene(path)
    contents = _welded(scene.vertices, scene.triangles, "glTF")
    contents.notes.extend(_left_out(scene.lines, scene.points))
    return contents


def _welded(vertices: np.ndarray, faces: np.ndarray, kind: str) -> Contents:
    """A mesh whose coincident vertices are merged: these formats repeat a vertex for each facet, normal or seam."""
    points = np.asarray(vertices, dtype=np.float64) + 0.0  # -0.0 is 0.0
    _, first, inverse = np.unique(points, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)  # keep the order of the file
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    notes = []
    if len(first) < len(points) and kind != "STL":
        notes.append(f"{len(points) - len(first)} coincident vertices were merged: {kind} splits them at seams.")
    return Contents(points[first[order]], rank[inverse.reshape(-1)][faces], None, notes)


def _read_xyz(path: Path) -> Contents:
    lines = [line for line in data_lines(path.read_text("utf-8", "replace")) if line]
    # A count of the points or a row of column names may come first.
    if lines and re.fullmatch(r"\d+|[A-Za-z_\"'].*", lines[0]):
        lines = lines[1:]
    if not lines:
        raise FormatError("it has no lines 'x y z' or 'x y z nx ny nz'")
    table = np.loadtxt(io.StringIO("\n".join(lines)), ndmin=2, dtype=np.float64)
    if table.shape[1] not in (3, 6):
        raise FormatError(f"its lines hold {table.shape[1]} numbers; expected x y z or x y z nx ny nz")
    return _with_normals(table)


def _with_normals(table: np.ndarray) -> Contents:
    """Points (n, 3), or points and normals (n, 6)."""
    if table.shape[1] == 3:
        return Contents(table)
    length = np.linalg.norm(table[:, 3:], axis=1)
    if not MIN_NORMAL_LENGTH < np.median(length) < MAX_NORMAL_LENGTH:
        # Such columns are most likely colours. Used as normals they would ruin the surface without a warning.
        return Contents(table[:, :3], notes=["Columns 4 to 6 are not unit normals and were not used."])
    return Contents(table[:, :3], None, table[:, 3:])


def _read_npz(path: Path) -> Contents:
    from lamina.io.archives import read_npz

    wanted = ("points", "P", "xyz", "normals", "N", "vertices", "V", "faces", "F")
    arrays, names = read_npz(path, lambda name: name in wanted)
    found = ", ".join(names[:8])[:200] or "nothing"
    vertices = next((arrays[key] for key in ("vertices", "V", "points", "P", "xyz") if key in arrays), None)
    faces = next((arrays[key] for key in ("faces", "F") if key in arrays), None)
    normals = next((arrays[key] for key in ("normals", "N") if key in arrays), None)
    if vertices is None:
        raise FormatError(f"it holds {found}; expected points [and normals], or vertices and faces")
    for label, array in (("points", vertices), ("normals", normals)):
        if array is not None and (array.ndim != 2 or array.shape[1] != 3 or array.dtype.kind not in "fiu"):
            raise FormatError(f"its {label} are {array.dtype} of shape {array.shape}; expected numbers (n, 3)")
    if faces is None:
        return Contents(vertices, None, normals)
    if faces.ndim != 2 or faces.dtype.kind not in "iu":
        raise FormatError(f"its faces are {faces.dtype} of shape {faces.shape}; expected integers (m, 3)")
    return _polygons(vertices, faces)


def _read_npy(path: Path) -> Contents:
    from lamina.io.archives import read_npy

    table = read_npy(path)
    if table.ndim != 2 or table.shape[1] not in (3, 6) or table.dtype.kind not in "fiu":
        raise FormatError(f"it holds {table.dtype} of shape {table.shape}; expected points (n, 3) or (n, 6)")
    return _with_normals(table.astype(np.float64))


# Faces


def _polygons(points: np.ndarray, polygons, *, lines: int = 0, single: int = 0) -> Contents:
    """A mesh of polygons (k, c), or of k lists of corners.

    lines, single: how many lines and single points the file holds besides.
    """
    found = triangulate(points, polygons)
    if 0 < found.too_few == len(polygons):
        raise FormatError(
            f"all of its {len(polygons)} faces have fewer than three corners; expected triangles or polygons"
        )
    notes = _left_out(lines, single)
    if found.too_few:
        have = "has" if found.too_few == 1 else "have"
        left = "was" if found.too_few == 1 else "were"
        notes.insert(
            0, f"{found.too_few} of {len(polygons)} faces {have} fewer than three corners and {left} left out."
        )
    if found.crossing:
        notes.append(
            f"{_count(found.crossing, 'face')} with crossing edges or very many corners: triangulated from the first "
            "corner, which may overlap."
        )
    return Contents(points, found.triangles, notes=notes)


def _left_out(lines: int, single: int) -> list[str]:
    """The note about lines and points beside the faces, if there are any."""
    kinds = [_count(number, kind) for number, kind in ((lines, "line"), (single, "point")) if number]
    verbs = ("has", "was") if lines + single == 1 else ("have", "were")
    return [f"{' and '.join(kinds)} beside the faces {verbs[0]} no area and {verbs[1]} left out."] if kinds else []


def _only_lines(lines: int) -> str:
    return f"it holds {_count(lines, 'line')} and no faces; expected a mesh, or points without lines for a point cloud"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# Text


def data_lines(text: str) -> list[str]:
    """The lines of a text without comments (#, //, %), with blanks for commas and semicolons."""
    text = re.sub(r"(?:#|//|%).*", "", text.removeprefix("\ufeff"))
    return [line.strip() for line in text.replace(",", " ").replace(";", " ").splitlines()]


def numbers(line: str) -> list[float] | None:
    """The numbers of a line; None if a word is no number, or if there are fewer than three."""
    try:
        words = [float(word) for word in line.split()]
    except ValueError:
        return None
    return words if len(words) >= 3 else None


READERS: dict[str, Callable[[Path], Contents]] = {
    "ply": _read_ply,
    "obj": _read_obj,
    "off": _read_off,
    "stl": _read_stl,
    "glb": _read_gltf,
    "gltf": _read_gltf,
    "xyz": _read_xyz,
    "npz": _read_npz,
    "npy": _read_npy,
}

REGISTERED: dict[str, Callable[[Path], Contents]] = {}  # readers of users, by extension


def register(extension: str, reader: Callable[[Path], Contents]) -> None:
    """Let `lamina.load` read files with this extension, such as "abc", by a reader of your own.

    The extension alone decides: the content of such a file is not looked at before the reader gets its path. A second
    reader for the same extension replaces the first. The reader raises FormatError, or any other exception, when it
    cannot read a file; `lamina.load` makes an InputError of it that names the file.
    """
    REGISTERED[extension.lower().lstrip(".")] = reader
