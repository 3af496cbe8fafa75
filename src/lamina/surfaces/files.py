"""Surfaces from files and by name: what a file holds is decided by its content, not by its extension."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import torch

from lamina.errors import InputError
from lamina.surfaces.base import Surface
from lamina.surfaces.formats import READERS, Contents, FormatError, data_lines, numbers

BUILT_IN = {
    "sphere": ("lamina.surfaces.analytic", "Sphere"),
    "torus": ("lamina.surfaces.analytic", "Torus"),
    "ellipsoid": ("lamina.surfaces.analytic", "Ellipsoid"),
    "spike": ("lamina.surfaces.spherical_map", "spike"),
    "starfruit": ("lamina.surfaces.spherical_map", "starfruit"),
}

READABLE = "meshes (OBJ, PLY, STL, OFF, GLB, GLTF), points (PLY, XYZ, NPZ) and networks of `lamina fit sns`"


def load(path_or_name: str | Path, *, name: str | None = None) -> Surface:
    """The surface in a file, or the built-in one of that name, in float64.

    Triangles in the file make a Mesh, points alone a PointCloud, a spherical neural surface a SphericalMap.
    name: what the surface is called in reports, the file's stem unless given. Raises InputError when there is
    no surface to be had.
    """
    if str(path_or_name) in BUILT_IN:
        return _built_in(str(path_or_name), name)
    path = Path(path_or_name)
    kind = _kind_of(path)
    if kind == "safetensors":
        return _neural(path, name or path.stem)
    try:
        contents = READERS[kind](path)
    except InputError:
        raise
    except Exception as error:
        # Readers of other people's formats raise anything at all on a damaged file.
        reason = str(error) if isinstance(error, FormatError) else f"{type(error).__name__}: {error}"
        raise InputError(f"{path} cannot be read as {kind.upper()}: {_one_line(reason)}") from error
    return _surface(contents, path, name or path.stem)


def _built_in(key: str, name: str | None) -> Surface:
    module, factory = BUILT_IN[key]
    surface = getattr(importlib.import_module(module), factory)()
    surface.name = name or key
    return surface


def _neural(path: Path, name: str) -> Surface:
    from lamina.learn.sns import load_sns
    from lamina.surfaces.spherical_map import SphericalMap

    return SphericalMap(load_sns(path).double(), name=name)


def _surface(contents: Contents, path: Path, name: str) -> Surface:
    points = torch.from_numpy(np.array(contents.points, dtype=np.float64))
    if len(points) == 0:
        raise InputError(f"{path} holds no points; expected a mesh or a point cloud.")
    try:
        if contents.faces is not None:
            from lamina.surfaces.mesh import Mesh

            surface = Mesh(points, torch.from_numpy(np.array(contents.faces, dtype=np.int64)), name=name)
        else:
            from lamina.surfaces.point_cloud import PointCloud

            normals = contents.normals
            normals = None if normals is None else torch.from_numpy(np.array(normals, dtype=np.float64))
            surface = PointCloud(points, normals, name=name)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    surface.notes.extend(contents.notes)
    return surface


# Which format


def _kind_of(path: Path) -> str:
    """The format of the file, by content first, by extension where the content says nothing."""
    if not path.exists():
        if not path.suffix and path.name == str(path):
            names = ", ".join(BUILT_IN)
            raise InputError(f"'{path}' is neither a file nor a built-in surface; built in: {names}.")
        raise InputError(f"there is no file {path}; give the path of a surface, {READABLE}.")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give one file: {READABLE}.")
    try:
        with path.open("rb") as file:
            head = file.read(65536)
    except OSError as error:
        raise InputError(f"{path} cannot be opened: {error.strerror or error}.") from error
    if not head.strip():
        raise InputError(f"{path} is empty; expected a surface: {READABLE}.")
    extension = path.suffix.lower().lstrip(".")
    kind = _sniff(head, path.stat().st_size) or (extension if extension in READERS else None)
    if kind is None:
        called = f"the extension '{path.suffix}'" if path.suffix else "no extension"
        raise InputError(f"{path} has {called} and no content that is known; lamina reads {READABLE}.")
    return kind


def _sniff(head: bytes, size: int) -> str | None:
    """The format that the first bytes betray, or None."""
    if head[:3] == b"ply" and head[3:4] in (b"\n", b"\r", b" "):
        return "ply"
    if head[:4] == b"glTF":
        return "glb"
    if head[:4] == b"PK\x03\x04":
        return "npz"
    if head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < size:
        return "safetensors"
    # A binary STL may begin with "solid", so its size, which is exact, is asked first.
    if size >= 84 and size == 84 + 50 * int.from_bytes(head[80:84], "little"):
        return "stl"
    if b"\0" in head:
        return None
    lines = [line for line in data_lines(head.decode("utf-8", "replace")) if line]
    first = lines[0] if lines else ""
    if re.match(r"(ST)?C?N?4?OFF\b", first):
        return "off"
    if first.split(None, 1)[:1] == ["solid"]:
        return "stl"
    if first.startswith("{") and b'"asset"' in head:
        return "gltf"
    if any(re.match(r"v\s+[-+.\d]", line) for line in lines):
        return "obj"
    if numbers(first) or (len(lines) > 1 and numbers(lines[1])):
        return "xyz"
    return None


def _one_line(text: str) -> str:
    line = " ".join(text.split())[:300].rstrip(".")
    return line + "."
