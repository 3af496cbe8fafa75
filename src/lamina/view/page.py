"""A scene as one self-contained HTML page: the viewer of `web/`, filled with data.

Arrays are stored as base64 of little-endian numbers. Positions are centred and divided by the radius. Values are mapped
to [-1, 1] (value = offset + scale v), so that single precision is enough; many frames are stored in 16 bits.
"""

from __future__ import annotations

import base64
import html
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lamina.colours import CONTROLS, scale_of, table
from lamina.view.camera import View, as_view, look_at
from lamina.view.normals import split_at_creases, unit
from lamina.view.scene import Scene
from lamina.view.surfels import surfels

CAMERA_ANGLE = 30.0  # field of view of the viewer, in degrees
MISSING_VALUE = 3e38  # stands for values that are not finite
# More values than this (32 MB in single precision) are stored in 16 bits, which is finer than the 256 colours.
MAX_FLOAT_VALUES = 8_000_000
MAX_SHOWN_NODES = 400_000  # Of more grid nodes than this only every second, third, ... is shown.
_DATA_MARK = "<!--lamina:data-->"


@dataclass(frozen=True)
class Page:
    """The page of a scene; notebooks show it in place."""

    text: str
    height: int = 560
    title: str = ""

    def __repr__(self) -> str:
        size = len(self.text) / 1e6
        return f"Page({self.title!r}, {size:.1f} MB; write it with .save('u.html') and open that in a browser)"

    def save(self, path: str | Path) -> Path:
        """Write the page. A failed write leaves no partial file."""
        from lamina.io.export import atomic_write

        atomic_write(path, lambda file: file.write(self.text.encode()))
        return Path(path)

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.text)}" width="100%" height="{self.height}" '
            'style="border: 1px solid #d9dbe0; border-radius: 6px" sandbox="allow-scripts allow-downloads"></iframe>'
        )


def page(
    scene: Scene,
    *,
    view: View | tuple[float, float] | None = None,
    map: str = "auto",
    low: float | None = None,
    high: float | None = None,
    height: int = 560,
    name: str | None = None,
    unit: str | None = None,
    time_unit: str | None = None,
) -> Page:
    """The page of a scene.

    view, map, low, high, name, unit, time_unit: as in lamina.view.render.render. height: of the frame in a notebook, in
    pixels.
    """
    scene = scene.called(name, unit, time_unit)
    camera, points = _camera(scene, view)
    arrays = {"positions": points.astype("<f4")} | _drawn_arrays(scene, points)
    if scene.band is not None:
        step = -(-len(scene.band) // MAX_SHOWN_NODES)
        arrays["band"] = ((scene.band[::step] - camera["centre"]) / camera["radius"]).astype("<f4")
    shown = scene.values if scene.reference is None else np.stack([scene.values, scene.reference])
    scale = scale_of(shown, map, low, high)
    values, offset, size = _normalised(scene.values, middle=True)
    whole = values.size <= MAX_FLOAT_VALUES or not np.isfinite(scene.values).all()
    arrays["values"] = values.astype("<f4") if whole else np.rint(32767.5 * (values + 1)).astype("<u2")
    header = {
        "title": scene.title,
        "name": scene.field_name,
        "subtitle": _subtitle(scene),
        "times": list(scene.times),
        "timed": scene.has_time,
        "timeUnit": scene.time_unit,
        "oriented": scene.normals is not None,
        "camera": camera | {"centre": camera["centre"].tolist()},
        "values": {"map": scale.map, "low": scale.low, "high": scale.high, "offset": offset, "scale": size},
        "maps": {name: _table(name) for name in CONTROLS},
        "facts": [(key, _plain(value)) for key, value in scene.facts.items() if value not in (None, [], "")],
        "compared": None if scene.reference is None else scene.reference_name,
    }
    if scene.reference is not None:
        with np.errstate(invalid="ignore"):
            error = scene.values - scene.reference
        normal, _, size = _normalised(error, middle=False)
        arrays["error"] = normal.astype("<f4")
        header["error"] = {"map": "diverging", "low": -size, "high": size, "offset": 0.0, "scale": size}
    header["arrays"] = {name: array.dtype.str[1:] for name, array in arrays.items()}
    # A "<" in a title could end the element.
    parts = [_script("header", "application/json", json.dumps(header).replace("<", "\\u003c"))]
    for name, array in arrays.items():
        parts.append(_script(name, "text/plain", base64.b64encode(np.ascontiguousarray(array).data).decode("ascii")))
    before, after = _template().split(_DATA_MARK)
    return Page("".join([before, *parts, after]), height, scene.title)


def _drawn_arrays(scene: Scene, points: NDArray) -> dict[str, NDArray]:
    """Arrays of the triangles, whose vertices are split at creases, or of the discs around points.

    copies (k,): vertices of which the page appends copies. normals (n + k, 3): bytes, 127 is one. clips (n, 3): a disc
    is cut off where the inner product of this vector and the offset from its centre, in radii, is more than 1.
    """
    if scene.faces is not None and len(scene.faces):
        copies, faces, normals = split_at_creases(scene.points, scene.faces, scene.normals)
        small = "<u2" if len(normals) <= 2**16 else "<u4"
        return {"copies": copies.astype("<u4"), "faces": faces.astype(small), "normals": normals}
    discs = surfels(points, np.zeros(len(points)), scene.normals)
    return {
        "extents": discs.radius.astype("<f4"),
        "normals": np.rint(127 * unit(discs.frame[:, 2])).astype("<i1"),
        "clips": np.einsum("nj,nji->ni", discs.clip, discs.frame[:, :2]).astype("<f4"),
    }


@cache
def _template() -> str:
    return (resources.files("lamina.view") / "web" / "viewer.html").read_text(encoding="utf-8")


def _script(name: str, kind: str, text: str) -> str:
    return f'<script type="{kind}" id="lamina-{name}">{text}</script>\n'


def _camera(scene: Scene, view: View | tuple[float, float] | None) -> tuple[dict[str, Any], NDArray]:
    """The camera of the viewer, and the points relative to the centre, in units of the radius."""
    look = as_view(view)
    used = scene.points if scene.faces is None else scene.points[np.unique(scene.faces)]
    seen = look_at(used, look, (0, 0, 1, 1))
    radius = float(np.linalg.norm(used - seen.centre, axis=1).max()) or 1.0
    # Turning keeps that axis upright which is upright on the screen at the start.
    axis = int(np.abs(seen.rotation[1]).argmax())
    up = np.eye(3)[axis] * np.sign(seen.rotation[1, axis])
    camera = {
        "centre": seen.centre,
        "radius": radius,
        "direction": seen.rotation[2].tolist(),
        "up": up.tolist(),
        "angle": CAMERA_ANGLE,
        "distance": 1.08 / np.sin(np.radians(CAMERA_ANGLE / 2)),
    }
    return camera, (scene.points - seen.centre) / radius


def _normalised(values: NDArray, middle: bool) -> tuple[NDArray, float, float]:
    """v, offset, scale with values = offset + scale v and |v| <= 1. Without `middle` the offset is 0."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    offset = 0.5 * low + 0.5 * high if middle else 0.0
    scale = max(high - offset, offset - low) or max(abs(offset), 1.0)
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(values), (values - offset) / scale, MISSING_VALUE), offset, scale


def _table(map: str) -> str:
    """The map as 256 RGBA bytes."""
    colours = table(map)[np.rint(np.linspace(0, len(table(map)) - 1, 256)).astype(int)]
    rgba = np.concatenate([colours, np.full((256, 1), 255, dtype=np.uint8)], 1)
    return base64.b64encode(rgba.tobytes()).decode("ascii")


def _subtitle(scene: Scene) -> str:
    count = f"{len(scene.points):,} {'points' if scene.faces is None else 'vertices'}"
    return count + (f", {len(scene.times)} frames" if len(scene.times) > 1 else "")


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "; ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
