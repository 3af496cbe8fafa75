"""Light and shadow, by which a coloured silhouette looks like a solid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from lamina.colours import Scale, encoded, linear, table
from lamina.view.camera import Camera
from lamina.view.normals import unit

BACKGROUND = np.array([255, 255, 255]) / 255
_LINEAR_OF_BYTE = linear(np.arange(256) / 255).astype(np.float32)
_KEY_LIGHT = unit(np.array([-0.5, 0.72, 0.62]))


@dataclass(frozen=True)
class VisiblePixels:
    """The surface in each of the k pixels that it covers."""

    pixel: NDArray  # (k,) row-major index
    value: NDArray  # (k,)
    normal: NDArray  # (k, 3) unit, in the camera's axes, towards the viewer
    height: NDArray  # (k,) towards the viewer


def shade(seen: VisiblePixels, scale: Scale, camera: Camera, width: int, height: int, factor: int) -> NDArray[np.uint8]:
    """The picture (height, width, 3), from pixels `factor` times as fine; camera: of the fine pixels."""
    light = np.broadcast_to(linear(BACKGROUND), (height * width * factor**2, 3)).astype(np.float32)
    colour = _LINEAR_OF_BYTE[scale.colours(seen.value)]
    diffuse, gloss = _lighting(seen.normal)
    diffuse *= _open_sky(seen, camera, width, height, factor)
    light[seen.pixel] = np.clip(colour * diffuse[:, None] + gloss[:, None], 0, 1)
    # Light is averaged, not sRGB numbers, so that edges look smooth.
    return np.rint(255 * encoded(_reduced(light.reshape(height * factor, -1, 3), factor))).astype(np.uint8)


def _lighting(normal: NDArray) -> tuple[NDArray, NDArray]:
    """Factor (k,) of the colour of the surface, and white light (k,) added to it. All weights were chosen by eye."""
    facing = np.maximum(normal[:, 2], 0)
    lit = np.maximum(normal @ _KEY_LIGHT, 0)
    sky = 0.5 + 0.5 * normal[:, 1]
    diffuse = 0.30 + 0.12 * sky + 0.29 * facing + 0.42 * lit
    half = unit(_KEY_LIGHT + np.array([0.0, 0.0, 1.0]))
    gloss = 0.05 * np.maximum(normal @ half, 0) ** 60
    return diffuse, gloss


def _open_sky(seen: VisiblePixels, camera: Camera, width: int, height: int, factor: int) -> NDArray:
    """Factor (k,) that darkens hollows: the share of the sky that the neighbourhood on the screen leaves open.

    A neighbour at offset v that rises above the tangent plane, v . n > 0, hides a part of the sky (ambient obscurance,
    McGuire et al., 2011, "The Alchemy screen-space ambient obscurance algorithm"). All weights were chosen by eye.
    """
    fine = (height * factor, width * factor)
    maps = np.zeros((5, fine[0] * fine[1]), dtype=np.float32)
    maps[0, seen.pixel] = 1
    maps[1, seen.pixel] = seen.height * camera.scale / factor  # in pixels of the picture
    maps[2:, seen.pixel] = seen.normal.T
    covered, *rest = (_reduced(m.reshape(fine), factor) for m in maps)
    there = np.maximum(covered, 1e-6)
    z, nx, ny, nz = (m / there for m in rest)
    reach = 0.05 * min(width, height)
    hidden = np.zeros((height, width), dtype=np.float32)
    weight = np.full((height, width), 1e-6, dtype=np.float32)
    for dx, dy in _spiral(20, reach):
        there_z = _shifted(z, dx, dy)
        visible = _shifted(covered, dx, dy) > 0.5
        dz = there_z - z
        length2 = dx * dx + dy * dy + dz * dz
        rise = nx * dx - ny * dy + nz * dz  # rows run downwards
        near = 1 / (1 + length2 / reach**2)
        hidden += np.where(visible, np.maximum(rise / np.sqrt(length2) - 0.08, 0) * near, 0)
        weight += 1
    open_ = np.clip(1 - 1.6 * gaussian_filter(hidden / weight, 1.0), 0.25, 1)
    row, column = seen.pixel // fine[1] // factor, seen.pixel % fine[1] // factor
    return open_[row, column]


def _spiral(count: int, reach: float) -> list[tuple[int, int]]:
    """Offsets spread over a disc by the golden angle."""
    angle = np.arange(count) * np.pi * (3 - 5**0.5)
    radius = reach * (np.arange(count) + 1.0) / count
    offsets = zip(np.rint(radius * np.cos(angle)), np.rint(radius * np.sin(angle)), strict=True)
    return [(int(dx), int(dy)) for dx, dy in offsets if dx or dy]


def _shifted(image: NDArray, dx: int, dy: int) -> NDArray:
    """image[y + dy, x + dx], zero outside."""
    result = np.zeros_like(image)
    h, w = image.shape
    into = slice(max(0, -dy), h - max(0, dy)), slice(max(0, -dx), w - max(0, dx))
    out_of = slice(max(0, dy), h - max(0, -dy)), slice(max(0, dx), w - max(0, -dx))
    result[into] = image[out_of]
    return result


def _reduced(image: NDArray, step: int) -> NDArray:
    """Means over blocks of step x step."""
    blocks = [image[i::step, j::step] for i in range(step) for j in range(step)]
    return sum(blocks[1:], blocks[0]) / step**2


def legend(scale: Scale, height: int, width: int) -> NDArray[np.uint8]:
    """The colours of the scale (height, width, 3), highest on top."""
    index = np.rint(np.linspace(1, 0, height) * (len(table(scale.map)) - 1)).astype(int)
    return np.repeat(table(scale.map)[index][:, None], width, axis=1)
