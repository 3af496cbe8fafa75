"""Reader of glTF 2.0 (Khronos Group 2021, "glTF 2.0 specification"): the triangles of a scene, and nothing else.

It is written here, and not left to trimesh, because a file can ask for more than it holds: accessors without data,
scenes that place a mesh many times or contain themselves, images of any size. Materials and images are not opened.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from lamina.io.formats import FormatError

COMPONENTS = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
POINTS, TRIANGLES, STRIP, FAN = 0, 4, 5, 6
CHUNK_JSON, CHUNK_BINARY = 0x4E4F534A, 0x004E4942
# All placed copies of meshes may take this many times the bytes of the file and its buffers, or ALWAYS_PLACED_BYTES if
# that is more. A scene may place a mesh often: half would refuse some such scenes, double lets a hostile file take
# twice the memory.
MAX_PLACED_RATIO = 100
ALWAYS_PLACED_BYTES = 2**24  # 16 MB, harmless in any case


@dataclass(frozen=True)
class Scene:
    """Vertices (n, 3) and triangles (m, 3), and how many primitives of lines and of points were left out."""

    vertices: np.ndarray
    triangles: np.ndarray
    lines: int
    points: int


def read_scene(path: Path) -> Scene:
    """The triangles of all meshes, placed by the nodes of the scene."""
    data = path.read_bytes()
    text, binary = _chunks(data) if data[:4] == b"glTF" else (data, b"")
    try:
        scene = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError("its JSON is damaged") from error
    if not isinstance(scene, dict):
        raise FormatError("its JSON is no scene")
    buffers = [_buffer(path, entry, binary if i == 0 else b"") for i, entry in enumerate(_list(scene, "buffers"))]
    left = max(ALWAYS_PLACED_BYTES, MAX_PLACED_RATIO * (len(data) + sum(map(len, buffers))))
    primitives = [list(_primitives(scene, buffers, mesh)) for mesh in _list(scene, "meshes")]
    vertices, faces, count = [], [], 0
    lines = points_only = 0
    for mesh, transform in _placed(scene):
        modes = _modes(_at(_list(scene, "meshes"), mesh, "mesh"))
        points_only += modes.count(POINTS)
        lines += sum(mode not in (POINTS, TRIANGLES, STRIP, FAN) for mode in modes)
        for points, triangles in _at(primitives, mesh, "mesh"):
            left -= points.nbytes + triangles.nbytes
            if left < 0:
                raise FormatError(f"its scene places copies of more than {MAX_PLACED_RATIO} times the size of the file")
            vertices.append(points @ transform[:3, :3].T + transform[:3, 3])
            mirrored = np.linalg.det(transform[:3, :3]) < 0  # then the order of corners is reversed, by the format
            faces.append((triangles[:, ::-1] if mirrored else triangles) + count)
            count += len(points)
    if not faces:
        beside = f" but {lines} primitives of lines and {points_only} of points" if lines or points_only else ""
        raise FormatError(f"it has no triangles{beside}; expected a mesh")
    return Scene(np.concatenate(vertices), np.concatenate(faces), lines, points_only)


def _modes(mesh: Any) -> list[Any]:
    return [primitive.get("mode", TRIANGLES) for primitive in _list(mesh, "primitives")]


def _chunks(data: bytes) -> tuple[bytes, bytes]:
    """JSON and binary chunk of a GLB file."""
    found: dict[int, bytes] = {}
    place = 12
    while place + 8 <= len(data):
        length, kind = (int.from_bytes(data[place + i : place + i + 4], "little") for i in (0, 4))
        if place + 8 + length > len(data):
            raise FormatError("it ends before its chunks do")
        found.setdefault(kind, data[place + 8 : place + 8 + length])
        place += 8 + length
    if CHUNK_JSON not in found:
        raise FormatError("it has no JSON chunk")
    return found[CHUNK_JSON], found.get(CHUNK_BINARY, b"")


def _buffer(path: Path, entry: Any, binary: bytes) -> bytes:
    uri = entry.get("uri") if isinstance(entry, dict) else None
    if uri is None:
        return binary
    if not isinstance(uri, str):
        raise FormatError("a buffer of it names no file")
    if uri.startswith("data:"):
        head, _, body = uri.partition(",")
        if not head.endswith(";base64"):
            raise FormatError("a buffer of it is not in base64")
        return base64.b64decode(body)
    name = Path(unquote(uri))
    if name.is_absolute() or ".." in name.parts:
        raise FormatError(f"its buffer {uri[:60]!r} is outside its folder")
    file = path.parent / name
    if not file.is_file():
        raise FormatError(f"its buffer {uri[:60]!r} is missing beside it")
    return file.read_bytes()


def _primitives(scene: dict[str, Any], buffers: list[bytes], mesh: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for primitive in _list(mesh, "primitives"):
        mode = primitive.get("mode", TRIANGLES)
        if mode not in (TRIANGLES, STRIP, FAN):
            continue  # points and lines
        if "KHR_draco_mesh_compression" in primitive.get("extensions", {}):
            raise FormatError("it is compressed by Draco; save it without compression")
        points = _accessor(scene, buffers, primitive["attributes"]["POSITION"]).astype(np.float64)
        if points.ndim != 2 or points.shape[1] != 3:
            raise FormatError("its positions are no points")
        if "indices" in primitive:
            corners = _accessor(scene, buffers, primitive["indices"]).reshape(-1).astype(np.int64)
        else:
            corners = np.arange(len(points))
        if len(corners) and int(corners.max()) >= len(points):
            raise FormatError(f"its triangles name vertex {int(corners.max())} of {len(points)}")
        yield points, _triangles(corners, mode)


def _triangles(corners: np.ndarray, mode: int) -> np.ndarray:
    if mode == TRIANGLES:
        return corners[: len(corners) // 3 * 3].reshape(-1, 3)
    if mode == FAN:
        return np.stack([np.broadcast_to(corners[:1], max(len(corners) - 2, 0)), corners[1:-1], corners[2:]], 1)
    strip = np.stack([corners[:-2], corners[1:-1], corners[2:]], 1)
    strip[1::2] = strip[1::2, [1, 0, 2]]  # every other triangle has the opposite order of corners
    return strip


def _accessor(scene: dict[str, Any], buffers: list[bytes], index: Any) -> np.ndarray:
    """The numbers (count, width) of an accessor. Raises FormatError if they do not lie within its buffer."""
    accessor = _at(_list(scene, "accessors"), index, "accessor")
    if "sparse" in accessor or "bufferView" not in accessor:
        raise FormatError("it has sparse accessors, which are not read; save it without")
    view = _at(_list(scene, "bufferViews"), accessor["bufferView"], "buffer view")
    data = _at(buffers, view.get("buffer", 0), "buffer")
    width = {"SCALAR": 1, "VEC3": 3}.get(accessor.get("type"))
    component = accessor.get("componentType")
    if width is None or component not in COMPONENTS:
        raise FormatError("its vertices or corners are of an unknown type")
    dtype = np.dtype(COMPONENTS[component])
    count, row = accessor["count"], width * dtype.itemsize
    start, step = view.get("byteOffset", 0) + accessor.get("byteOffset", 0), view.get("byteStride", row)
    whole = all(isinstance(n, int) and n >= 0 for n in (count, start, step))
    if not whole or step < row or start + (count - 1) * step + row > len(data):
        raise FormatError(f"an accessor of it announces {count!s:.20} rows, which do not fit their buffer")
    if count == 0:
        return np.zeros((0, width), dtype)
    rows = np.ndarray((count, width), dtype, data, start, (step, dtype.itemsize))
    if accessor.get("normalized") and dtype.kind in "iu":
        return np.maximum(rows / np.iinfo(dtype).max, -1)  # such integers stand for -1 to 1
    return rows


def _placed(scene: dict[str, Any]) -> Iterator[tuple[int, np.ndarray]]:
    """Numbers of meshes with their transforms (4, 4), from the roots of the scene down. A node may occur only once."""
    nodes = _list(scene, "nodes")
    children = [_list(node, "children") for node in nodes]
    below = [child for row in children for child in row]
    if "scenes" in scene:
        roots = _list(_at(_list(scene, "scenes"), scene.get("scene", 0), "scene"), "nodes")
    else:
        roots = [i for i in range(len(nodes)) if i not in set(below)]
    seen: set[int] = set()
    waiting = [(root, np.eye(4)) for root in reversed(roots)]
    while waiting:
        index, above = waiting.pop()
        node = _at(nodes, index, "node")
        if index in seen:
            raise FormatError(f"its node {index} is placed twice")
        seen.add(index)
        transform = above @ _transform(node)
        if "mesh" in node:
            yield node["mesh"], transform
        waiting += [(child, transform) for child in reversed(children[index])]


def _transform(node: dict[str, Any]) -> np.ndarray:
    """The matrix (4, 4) of a node: given, by columns, or made of its scale, then its rotation, then its translation."""
    if "matrix" in node:
        return np.array(node["matrix"], dtype=np.float64).reshape(4, 4).T
    x, y, z, w = np.array(node.get("rotation", (0, 0, 0, 1)), dtype=np.float64)
    rotation = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
    out = np.eye(4)
    out[:3, :3] = rotation * np.array(node.get("scale", (1, 1, 1)), dtype=np.float64)
    out[:3, 3] = node.get("translation", (0, 0, 0))
    return out


def _list(of: Any, key: str) -> list[Any]:
    value = of.get(key, []) if isinstance(of, dict) else None
    if not isinstance(value, list):
        raise FormatError(f"its {key} are no list")
    return value


def _at(items: list[Any], index: Any, what: str) -> Any:
    if not isinstance(index, int) or not 0 <= index < len(items):
        raise FormatError(f"it names the {what} {index!s:.20}, and has {len(items)}")
    return items[index]
