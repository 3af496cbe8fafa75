"""Small charts on logarithmic axes: residuals over cycles, errors over the spacing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from lamina.errors import InputError
from lamina.io.export import atomic_write

Curve = tuple[Sequence[float], Sequence[float]]  # x and y
CURVE_COLOURS = ((63, 89, 176), (211, 84, 63), (47, 134, 109), (143, 19, 48), (120, 120, 128), (196, 140, 30))
_LABEL_COLOUR, _AXIS_COLOUR, _GRID_COLOUR = (52, 54, 60), (120, 122, 130), (228, 229, 233)
_CHART_SUPERSAMPLING = 3  # charts are drawn this many times as large and reduced, for smooth lines
# Below this range there may be fewer than two powers of ten on an axis, which do not show its scale: then the values
# themselves are marked.
MIN_DECADES_FOR_POWERS = 1.5
MAX_MARKS = 8  # on an axis


def plot_residuals(path: str | Path, residuals: Mapping[str, Sequence[float]], *, title: str = "residual") -> Path:
    """Write a PNG of relative residuals after 1, 2, ... cycles, one curve for each name."""
    curves = {name: (list(range(1, len(r) + 1)), list(r)) for name, r in residuals.items()}
    return _chart(path, curves, title, "cycles", log_x=False)


def plot_convergence(
    path: str | Path,
    spacings: Sequence[float],
    errors: Mapping[str, Sequence[float]],
    *,
    orders: Sequence[int] = (2, 4),
    title: str = "error",
) -> Path:
    """Write a PNG of errors over spacings, one curve for each name, with grey lines of the slopes `orders`.

    A curve with fewer errors than spacings belongs to the first spacings.
    """
    curves: dict[str, Curve] = {name: (list(spacings)[: len(e)], list(e)) for name, e in errors.items()}
    guides: dict[str, Curve] = {}
    if len(spacings) > 1:
        coarse, fine = max(spacings), min(spacings)
        top = max(max(e) for e in errors.values())
        guides = {f"order {p}": ([coarse, fine], [top, top * (fine / coarse) ** p]) for p in orders}
    return _chart(path, curves, title, "spacing", log_x=True, guides=guides)


def _chart(
    path: str | Path,
    curves: Mapping[str, Curve],
    title: str,
    x_name: str,
    *,
    log_x: bool,
    guides: Mapping[str, Curve] | None = None,
    size: tuple[int, int] = (560, 400),
) -> Path:
    for name, (x, y) in curves.items():
        numbers = np.asarray([*x, *y], dtype=float)
        if len(x) != len(y) or not len(x) or not (np.isfinite(numbers) & (numbers > 0)).all():
            raise InputError(f"cannot draw {name!r}: expected equally many positive x and y, at least one.")
    guides = guides or {}
    points = [*curves.values(), *guides.values()]
    axes = _Axes(
        _Axis.of([v for x, _ in points for v in x], log_x), _Axis.of([v for _, y in points for v in y], True), size
    )
    picture = Image.new("RGB", (size[0] * _CHART_SUPERSAMPLING, size[1] * _CHART_SUPERSAMPLING), "white")
    draw = ImageDraw.Draw(picture)
    axes.draw(draw, title, x_name)
    for name, curve in guides.items():
        axes.line(draw, curve, _GRID_COLOUR, name, _AXIS_COLOUR, dots=False)
    for i, (name, curve) in enumerate(curves.items()):
        colour = CURVE_COLOURS[i % len(CURVE_COLOURS)]
        axes.line(draw, curve, colour, name if len(curves) > 1 else "", colour, dots=True)
    small = picture.resize(size, Image.Resampling.BOX)
    atomic_write(path, lambda file: small.save(file, format="PNG"))
    return Path(path)


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    log: bool
    marks: list[tuple[float, str]]

    @classmethod
    def of(cls, values: Sequence[float], log: bool) -> _Axis:
        low, high = min(values), max(values)
        if not log:
            step = max(1, math.ceil((high - low) / MAX_MARKS))
            return cls(low - 0.5, high + 0.5, False, [(v, f"{v:g}") for v in np.arange(low, high + 1, step)])
        decades = math.log10(high / low)
        if decades < MIN_DECADES_FOR_POWERS:
            marks = [(v, f"{v:.3g}") for v in sorted(set(values))] if len(set(values)) <= MAX_MARKS else []
        else:
            step = math.ceil(decades / MAX_MARKS)
            powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1, step)
            marks = [(10.0**p, f"1e{p}") for p in powers]
        pad = 10 ** max(0.06 * decades, 0.04)
        return cls(low / pad, high * pad, True, marks)

    def share(self, value: float) -> float:
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class _Axes:
    x: _Axis
    y: _Axis
    size: tuple[int, int]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Position of the point (x, y) in the enlarged picture, in pixels."""
        left, top, right, bottom = 62, 40, self.size[0] - 90, self.size[1] - 46
        across, down = left + self.x.share(x) * (right - left), bottom - self.y.share(y) * (bottom - top)
        return across * _CHART_SUPERSAMPLING, down * _CHART_SUPERSAMPLING

    def draw(self, draw: ImageDraw.ImageDraw, title: str, x_name: str) -> None:
        font = ImageFont.load_default(12 * _CHART_SUPERSAMPLING)
        for value, label in self.y.marks:
            start, end = self.at(self.x.low, value), self.at(self.x.high, value)
            draw.line([start, end], _GRID_COLOUR, _CHART_SUPERSAMPLING)
            draw.text((start[0] - 8 * _CHART_SUPERSAMPLING, start[1]), label, _LABEL_COLOUR, font, anchor="rm")
        for value, label in self.x.marks:
            start, end = self.at(value, self.y.low), self.at(value, self.y.high)
            draw.line([start, end], _GRID_COLOUR, _CHART_SUPERSAMPLING)
            draw.text((start[0], start[1] + 8 * _CHART_SUPERSAMPLING), label, _LABEL_COLOUR, font, anchor="mt")
        draw.line(
            [self.at(self.x.low, self.y.high), self.at(self.x.low, self.y.low)], _AXIS_COLOUR, _CHART_SUPERSAMPLING
        )
        draw.line(
            [self.at(self.x.low, self.y.low), self.at(self.x.high, self.y.low)], _AXIS_COLOUR, _CHART_SUPERSAMPLING
        )
        corner = self.at(self.x.high, self.y.low)
        draw.text((corner[0] + 8 * _CHART_SUPERSAMPLING, corner[1]), x_name, _AXIS_COLOUR, font, anchor="lm")
        draw.text(
            (16 * _CHART_SUPERSAMPLING, 20 * _CHART_SUPERSAMPLING),
            title,
            _LABEL_COLOUR,
            ImageFont.load_default(14 * _CHART_SUPERSAMPLING),
            anchor="lm",
        )

    def line(
        self, draw: ImageDraw.ImageDraw, curve: Curve, colour: tuple, name: str, ink: tuple, *, dots: bool
    ) -> None:
        points = [self.at(x, y) for x, y in zip(*curve, strict=True)]
        draw.line(points, colour, 2 * _CHART_SUPERSAMPLING, joint="curve")
        if dots:
            r = 3.2 * _CHART_SUPERSAMPLING
            for x, y in points:
                draw.ellipse([x - r, y - r, x + r, y + r], colour)
        if name:
            # Names stand at the right end of residual curves, and at the end of the smallest spacing of error curves.
            x, y = max(points) if not self.x.log else min(points)
            side = "lm" if not self.x.log else "lt"
            draw.text((x + 8 * _CHART_SUPERSAMPLING, y + (0 if side == "lm" else 4 * _CHART_SUPERSAMPLING)), name, ink,
                      ImageFont.load_default(11 * _CHART_SUPERSAMPLING), anchor=side)  # fmt: skip
