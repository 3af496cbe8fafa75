"""Numbers to colours: maps in which equal steps look equally large.

A map is a smooth curve through a few control colours in Oklab, a space in which distance is about what the
eye sees (Ottosson, 2020, "A perceptual color space for image processing"), travelled at constant speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import PchipInterpolator

from lamina.errors import InputError

MISSING = (168, 168, 172)  # the grey of values that are not finite

# None goes to black, so that shading stays visible on every colour. Lightness rises along the sequential maps; it rises
# to the middle of the diverging ones and falls after it; it falls to the middle of the cyclic one, which ends where it
# begins. "blue-yellow" has no red and green to tell apart, for readers who see these alike.
CONTROLS = {
    "sequential": ("#403089", "#3f59b0", "#2f86ad", "#3fb08f", "#8fd05c", "#f7e463"),
    "fire": ("#41155c", "#7d1f63", "#b5364f", "#df6532", "#f3a43f", "#fbeaa8"),
    "ocean": ("#17305e", "#1b5584", "#2380a0", "#4fb0a6", "#a2d8b6", "#eef7dd"),
    "blue-yellow": ("#1a2b5c", "#465179", "#6f7183", "#9b9479", "#cbba62", "#f8e556"),
    "grey": ("#3a3b3e", "#f4f4f2"),
    "diverging": ("#16418f", "#3f83c9", "#9cc6e6", "#f5f3f0", "#f0ab86", "#d3543f", "#8f1330"),
    "purple-green": ("#4d2472", "#8a5db0", "#c8afd9", "#f4f3f1", "#abd3a4", "#4d9c5c", "#12562f"),
    "cyclic": ("#ece6ea", "#a9bcd6", "#6486c0", "#5a50a0", "#4d2456", "#94375a", "#c0655a", "#d8ac9a", "#ece6ea"),
}
# For values of both signs: symmetric about zero unless limits are given.
DIVERGING = ("diverging", "purple-green")
# Values of both signs get a diverging map if the range on the smaller side is at least this share of the larger one. At
# half a few values below zero already change the map; at double waves about a positive mean stay sequential.
MIN_SMALLER_SIDE = 0.2
# Maps whose middle is a colour of its own, at equal distance from both ends.
CENTRED = (*DIVERGING, "cyclic")
_MAP_STEPS = 1024

_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


@dataclass(frozen=True)
class Scale:
    """Which map, and the values at its two ends."""

    map: str
    low: float
    high: float

    def fraction(self, values: NDArray) -> NDArray:
        """Position of values (...) along the map, clipped to 0..1; NaN stays NaN."""
        with np.errstate(invalid="ignore", over="ignore"):
            # Halved, so that the difference of two huge ends does not overflow.
            return np.clip((values / 2 - self.low / 2) / (self.high / 2 - self.low / 2), 0, 1)

    def colours(self, values: NDArray) -> NDArray[np.uint8]:
        """sRGB bytes (..., 3) of values (...)."""
        fraction = self.fraction(np.asarray(values, dtype=np.float64))
        missing = ~np.isfinite(values)
        index = np.rint(np.where(missing, 0, fraction) * (_MAP_STEPS - 1)).astype(np.intp)
        colours = table(self.map)[index]
        colours[missing] = MISSING
        return colours


def colourise(
    values: ArrayLike, map: str = "auto", low: float | None = None, high: float | None = None
) -> NDArray[np.uint8]:
    """Colours (n, 3), uint8 sRGB, of values (n,), from `low` to `high` (their extremes unless given).

    map: "sequential", "fire", "ocean", "blue-yellow", "grey", "diverging", "purple-green", "cyclic" (for angles), or
    "auto": diverging and symmetric about zero where the values have both signs and neither side is smaller than a fifth
    of the other, sequential otherwise. Values that are not finite are grey.
    """
    array = as_floats(values)
    return scale_of(array, map, low, high).colours(array)


def scale_of(values: ArrayLike, map: str = "auto", low: float | None = None, high: float | None = None) -> Scale:
    """The map and the limits that `colourise` uses for these values."""
    if map not in ("auto", *CONTROLS):
        raise InputError(f"there is no colour map '{map}'; choose one of auto, {', '.join(CONTROLS)}.")
    array = as_floats(values)
    finite = array[np.isfinite(array)]
    smallest, largest = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    bottom = smallest if low is None else float(low)
    top = largest if high is None else float(high)
    if map == "auto":
        both = bottom < 0 < top and min(-bottom, top) >= MIN_SMALLER_SIDE * max(-bottom, top)
        map = "diverging" if both else "sequential"
    if map in DIVERGING and low is None and high is None:
        top = max(abs(bottom), abs(top))
        bottom = -top
    size = max(abs(bottom), abs(top))
    if not top - bottom > 1e-12 * size:
        # A constant field is the middle of the map, not its own rounding noise blown up.
        pad = 0.5 * size or 0.5
        middle = 0.5 * bottom + 0.5 * top
        bottom, top = middle - pad, middle + pad
    return Scale(map, bottom, top)


@cache
def table(map: str) -> NDArray[np.uint8]:
    """The map as (1024, 3) sRGB bytes."""
    controls = oklab(np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in CONTROLS[map]]) / 255)
    knots = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(controls, axis=0), axis=1))])
    # pchip keeps lightness monotone between controls; the resampling makes the speed constant.
    curve = PchipInterpolator(knots, controls)(np.linspace(0, knots[-1], 8 * _MAP_STEPS))
    length = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(curve, axis=0), axis=1))])
    if map in CENTRED:
        middle = np.interp(knots[len(knots) // 2], np.linspace(0, knots[-1], len(length)), length)
        stops = np.interp(np.linspace(0, 2, _MAP_STEPS), [0, 1, 2], [0, middle, length[-1]])
    else:
        stops = np.linspace(0, length[-1], _MAP_STEPS)
    even = np.stack([np.interp(stops, length, channel) for channel in curve.T], 1)
    result = np.rint(255 * srgb(even)).astype(np.uint8)
    result.setflags(write=False)
    return result


def oklab(colour: NDArray) -> NDArray:
    """Oklab (..., 3) of sRGB in 0..1."""
    return np.cbrt(linear(colour) @ _LMS.T) @ _LAB.T


def srgb(lab: NDArray) -> NDArray:
    """sRGB in 0..1 (..., 3), clipped to what a screen can show, of Oklab."""
    light = ((lab @ np.linalg.inv(_LAB).T) ** 3) @ np.linalg.inv(_LMS).T
    return encoded(np.clip(light, 0, 1))


def linear(colour: NDArray) -> NDArray:
    """Light that sRGB values in 0..1 stand for."""
    return np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)


def encoded(light: NDArray) -> NDArray:
    """The inverse of `linear`."""
    return np.where(light <= 0.0031308, 12.92 * light, 1.055 * np.maximum(light, 0) ** (1 / 2.4) - 0.055)


def as_floats(values: ArrayLike) -> NDArray[np.float64]:
    """Values as a numpy array, also when they are a tensor on some device that asks for its gradient."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double()  # type: ignore[union-attr]
    return np.asarray(values, dtype=np.float64)
