"""Pictures of a field on a surface, drawn in software, without OpenGL or a display."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from lamina.colours import as_floats, scale_of
from lamina.errors import InputError
from lamina.io.export import atomic_write
from lamina.view.annotate import BAR_WIDTH_LETTERS, annotate, heading, letter_height
from lamina.view.camera import Camera, View, as_view, look_at
from lamina.view.normals import corner_normals, dot, unit
from lamina.view.raster import barycentric, nearest_triangles
from lamina.view.shade import VisiblePixels, shade
from lamina.view.surfels import surfels, visible_discs

_SAMPLES_PER_PIXEL_SIDE = 2  # pictures are drawn twice as large and reduced, for smooth edges


def render_png(
    path: str | Path,
    points: ArrayLike,
    values: ArrayLike,
    *,
    faces: ArrayLike | None = None,
    normals: ArrayLike | None = None,
    size: tuple[int, int] = (900, 900),
    title: str | None = None,
    name: str = "u",
    unit: str = "",
    time: float | None = None,
    time_unit: str = "",
    view: View | tuple[float, float] | None = None,
    colour_bar: bool = True,
    map: str = "auto",
    low: float | None = None,
    high: float | None = None,
) -> Path:
    """Write the picture that `render` draws, with the same options, as a PNG file. Returns its path."""
    path = Path(path)
    picture = render(
        points,
        values,
        faces=faces,
        normals=normals,
        size=size,
        title=title,
        name=name,
        unit=unit,
        time=time,
        time_unit=time_unit,
        view=view,
        colour_bar=colour_bar,
        map=map,
        low=low,
        high=high,
    )
    atomic_write(path, lambda file: picture.save(file, format="PNG"))
    return path


def render(
    points: ArrayLike,
    values: ArrayLike,
    *,
    faces: ArrayLike | None = None,
    normals: ArrayLike | None = None,
    size: tuple[int, int] = (900, 900),
    title: str | None = None,
    name: str = "u",
    unit: str = "",
    time: float | None = None,
    time_unit: str = "",
    view: View | tuple[float, float] | None = None,
    colour_bar: bool = True,
    map: str = "auto",
    low: float | None = None,
    high: float | None = None,
) -> Image.Image:
    """A shaded picture of values (n,) at points (n, 3), as an RGB image.

    faces (m, 3): triangles. Without faces every point is drawn as a small disc perpendicular to its normal (n, 3).
    size: width and height in pixels. view: a View, or (azimuth, elevation) in degrees with z up.
    title, time, time_unit: text on top, such as "heat on bunny, t = 0.012 s". name, unit: of the values, at the colour
    bar. map, low, high: as in `colourise`.
    """
    vertices, field, triangles, directions = _checked(points, values, faces, normals)
    width, height = (int(n) for n in size)
    if min(width, height) < 32 or max(width, height) > 20000:
        raise InputError(f"a picture of {width} x {height} pixels cannot be drawn; use 32 to 20000 pixels a side.")
    text = heading(title, time, unit=time_unit)
    used = vertices if triangles is None else vertices[np.unique(triangles)]
    camera = look_at(used, as_view(view), _frame(width, height, bool(text), colour_bar)).enlarged(
        _SAMPLES_PER_PIXEL_SIDE
    )
    fine = width * _SAMPLES_PER_PIXEL_SIDE, height * _SAMPLES_PER_PIXEL_SIDE
    if triangles is None:
        seen = visible_discs(surfels(vertices, field, directions), camera, *fine)
    else:
        seen = _see_triangles(vertices, field, triangles, directions, camera, *fine)
    scale = scale_of(field, map, low, high)
    image = shade(seen, scale, camera, width, height, _SAMPLES_PER_PIXEL_SIDE)
    bar = f"{name} ({unit})" if unit else name
    return annotate(image, scale if colour_bar else None, text, bar)


def _checked(points, values, faces, normals):
    vertices, field = as_floats(points), as_floats(values)
    if vertices.ndim != 2 or vertices.shape[1] != 3 or len(vertices) == 0:
        raise InputError(f"cannot draw points of shape {vertices.shape}: expected (n, 3).")
    if field.shape != vertices.shape[:1]:
        raise InputError(f"cannot draw values of shape {field.shape}: expected ({len(vertices)},).")
    if not np.isfinite(vertices).all():
        raise InputError("cannot draw points with coordinates that are not finite.")
    triangles = None if faces is None else as_floats(faces).astype(np.int64)
    if triangles is not None and (triangles.ndim != 2 or triangles.shape[1] != 3):
        raise InputError(f"cannot draw faces of shape {triangles.shape}: expected (m, 3).")
    directions = None if normals is None else as_floats(normals)
    if directions is not None and directions.shape != vertices.shape:
        raise InputError(f"cannot draw normals of shape {directions.shape}: expected {vertices.shape}.")
    return vertices, field, triangles if triangles is not None and len(triangles) else None, directions


def _frame(width: int, height: int, title: bool, bar: bool) -> tuple[float, float, float, float]:
    """The part of the picture for the surface: left, top, width, height in pixels."""
    edge = 0.055 * min(width, height)
    letter = letter_height(width, height)
    top = edge + (1.6 * letter if title else 0)
    right = (BAR_WIDTH_LETTERS + 1.5) * letter if bar else edge
    return edge, top, width - edge - right, height - top - edge


def _see_triangles(
    points: NDArray,
    field: NDArray,
    faces: NDArray,
    normals: NDArray | None,
    camera: Camera,
    width: int,
    height: int,
) -> VisiblePixels:
    screen = camera.project(points)
    nearest = nearest_triangles(screen, faces, width, height)
    pixel = np.flatnonzero(nearest >= 0)
    triangle = nearest[pixel]
    corners = screen[faces]
    weights = barycentric(corners, triangle, pixel % width + 0.5, pixel // width + 0.5)

    def blend(at_corners: NDArray) -> NDArray:
        return sum(w * at_corners[triangle, i] for i, w in enumerate(weights))  # type: ignore[return-value]

    a, b, c = points[faces].transpose(1, 0, 2)
    # Both sides are lit. The visible side is that of the triangle, whatever the normals of its vertices are.
    flat = camera.turn(np.cross(b - a, c - a)) * _side(screen, faces)[:, None]
    at_corners = camera.turn(corner_normals(points, faces, normals))
    normal = np.stack([blend(at_corners[:, :, i]) for i in range(3)], 1)
    normal *= np.where(dot(normal, flat[triangle]) < 0, -1, 1)[:, None]
    return VisiblePixels(pixel, blend(field[faces]), unit(normal), camera.height(blend(corners[:, :, 2])))


def _side(screen: NDArray, faces: NDArray) -> NDArray:
    """+1 for triangles whose front faces the viewer, -1 for the others."""
    a, b, c = screen[faces][:, :, :2].transpose(1, 0, 2)
    e, f = b - a, c - a
    return np.where(e[:, 0] * f[:, 1] - e[:, 1] * f[:, 0] < 0, 1, -1)  # y points down
