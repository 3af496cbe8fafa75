"""The camera: a mild perspective, by default from a three-quarter view, and the axis that points up."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull, QhullError

from lamina.errors import InputError

# Rotations that take the `up` axis of a surface to the z axis. The front of a y-up file (+z by the glTF convention) is
# taken to -y, towards the viewer.
_UPRIGHT_ROTATIONS = {
    "z": np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]),
    "y": np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]]),
    "x": np.array([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]]),
}
# An automatic "up" is y instead of z only if the stability of the surface (see `upright_axis`) is larger by this much.
# Without a margin, shapes that stand equally well both ways would turn. Chosen by trial.
MIN_STABILITY_GAIN = 0.08
# The lowest points, on which a surface stands, are those within this share of its height. Chosen by trial.
FOOT_HEIGHT_SHARE = 0.03
MAX_STABILITY_POINTS = 20000  # Stability is judged by about this many points.


@dataclass(frozen=True)
class View:
    """A direction to look from.

    azimuth: degrees from the x axis towards y; at -90 the viewer stands on the -y side, x to the right.
    elevation: degrees above the horizontal plane; None looks down more steeply on flatter surfaces.
    up: "x", "y", "z", or "auto" (see `upright_axis`).
    field_of_view: degrees across the surface; near 0 the projection is orthographic.
    """

    azimuth: float = -62.0
    elevation: float | None = None
    up: str = "auto"
    field_of_view: float = 22.0


@dataclass(frozen=True)
class Camera:
    """Maps points to pixels. rotation (3, 3): its rows point right, up, and towards the viewer."""

    rotation: NDArray
    centre: NDArray  # (3,) the point in the middle of the view
    distance: float  # from there to the eye
    scale: float  # pixels per unit of length at that point
    offset: NDArray  # (2,) pixel of that point

    def turn(self, vectors: NDArray) -> NDArray:
        """Directions (n, 3) in the camera's axes."""
        return vectors @ self.rotation.T

    def project(self, points: NDArray) -> NDArray:
        """Pixels and nearness (n, 3) of points (n, 3): x to the right, y downwards, q = distance / depth.

        q is linear in x and y along any plane (as 1/depth is), and larger is nearer.
        """
        seen = self.turn(points - self.centre)
        q = self.distance / (self.distance - seen[:, 2])
        return np.stack(
            [self.offset[0] + self.scale * q * seen[:, 0], self.offset[1] - self.scale * q * seen[:, 1], q], 1
        )

    def height(self, q: NDArray) -> NDArray:
        """Distance towards the viewer, from the plane through the centre, of points of nearness q."""
        return self.distance * (1 - 1 / q)

    def enlarged(self, factor: float) -> Camera:
        """The camera for a picture `factor` times as large."""
        return replace(self, scale=self.scale * factor, offset=self.offset * factor)


def as_view(view: View | tuple[float, float] | None) -> View:
    if view is None:
        return View()
    if isinstance(view, View):
        if view.up not in (*_UPRIGHT_ROTATIONS, "auto"):
            raise InputError(f"up must be x, y, z or auto, got {view.up!r}.")
        return view
    try:
        azimuth, elevation = (float(angle) for angle in view)
    except (TypeError, ValueError):
        raise InputError(f"view must be a View or (azimuth, elevation) in degrees, got {view!r}.") from None
    return View(azimuth, elevation, up="z")


def look_at(points: NDArray, view: View, frame: tuple[float, float, float, float]) -> Camera:
    """The camera whose picture of points (n, 3) fills the frame (left, top, width, height) in pixels."""
    low, high = points.min(0), points.max(0)
    centre = (low + high) / 2
    spread = float(np.linalg.norm(points - centre, axis=1).max())
    radius = spread or 1.0
    up = upright_axis(points) if view.up == "auto" else view.up
    distance = radius / math.sin(math.radians(min(max(view.field_of_view, 0.2), 120.0)) / 2)
    extent = _UPRIGHT_ROTATIONS[up] @ (high - low)
    elevation = _elevation(np.abs(extent)) if view.elevation is None else view.elevation
    rotation = _rotation(view.azimuth, elevation) @ _UPRIGHT_ROTATIONS[up]
    camera = Camera(rotation, centre, distance, 1.0, np.zeros(2))
    seen = camera.project(points)[:, :2]
    left, top, width, height = frame
    extent = np.maximum(np.ptp(seen, axis=0), 0.01 * radius if spread else 2.0)
    scale = float(min(width / extent[0], height / extent[1]))
    middle = (seen.min(0) + seen.max(0)) / 2
    return replace(camera, scale=scale, offset=np.array([left + width / 2, top + height / 2]) - scale * middle)


def _elevation(extent: NDArray) -> float:
    """20 degrees for a surface as tall as wide, 36 for a flat one, so that a torus shows its hole."""
    flatness = extent[2] / max(float(extent[:2].max()), 1e-300)
    return float(np.interp(flatness, [0.3, 1.0], [36.0, 20.0]))


def _rotation(azimuth: float, elevation: float) -> NDArray:
    a, e = math.radians(azimuth), math.radians(elevation)
    return np.array(
        [
            [-math.sin(a), math.cos(a), 0],
            [-math.sin(e) * math.cos(a), -math.sin(e) * math.sin(a), math.cos(e)],
            [math.cos(e) * math.cos(a), math.cos(e) * math.sin(a), math.sin(e)],
        ]
    )


def upright_axis(points: NDArray) -> str:
    """ "z", unless the surface clearly stands better with "y" up, as many scans and game models do.

    A surface stands well if its centroid is above the convex hull of its lowest points. Its stability is the area of
    this hull over that of its whole footprint (after Fu et al., 2008, "Upright orientation").
    """
    some = points[:: max(1, len(points) // MAX_STABILITY_POINTS)]
    return "y" if _stability(some, 1) > _stability(some, 2) + MIN_STABILITY_GAIN else "z"


def _stability(points: NDArray, axis: int) -> float:
    height = points[:, axis]
    flat = np.delete(points, axis, axis=1)
    feet = flat[height <= height.min() + FOOT_HEIGHT_SHARE * np.ptp(height)]
    try:
        footprint, base = ConvexHull(flat), ConvexHull(feet)
    except (QhullError, ValueError):
        return 0.0  # the points lie on a line, or are too few
    inside = base.equations[:, :2] @ flat.mean(0) + base.equations[:, 2] <= 0
    # In the plane, scipy calls the area "volume".
    return base.volume / footprint.volume if inside.all() else 0.0
