"""A field over time as a GIF or MP4, drawn in software like the pictures."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from lamina.colours import as_floats, scale_of
from lamina.errors import InputError
from lamina.io.export import atomic_write
from lamina.progress import progress
from lamina.view.annotate import heading
from lamina.view.render import render

ANIMATION_SUFFIXES = (".gif", ".mp4")
PALETTE_FRAMES = 8  # The palette of a GIF is made from about this many of its frames.
MIN_FRAME_MILLISECONDS = 20  # Many programs play GIFs with shorter frames slowly.
LAST_FRAME_MILLISECONDS = 1200  # Time to look at the last frame before the GIF repeats.


def animate(
    path: str | Path,
    points: ArrayLike,
    values: ArrayLike,
    times: Sequence[float],
    *,
    size: tuple[int, int] = (480, 480),
    seconds: float = 4.0,
    title: str | None = None,
    time_unit: str = "",
    map: str = "auto",
    low: float | None = None,
    high: float | None = None,
    show_progress: bool | None = None,
    **options: Any,
) -> Path:
    """Write states (s, n) of a field at points (n, 3), s at least 2, at given times (s,), as .gif or .mp4.

    All frames have one colour scale and one camera. seconds: playing time. time_unit: of the times. Other options are
    those of `render`. An MP4 needs the program ffmpeg. Returns the path. Raises InputError.
    """
    path, states = Path(path), as_floats(values)
    if path.suffix.lower() not in ANIMATION_SUFFIXES:
        raise InputError(f"cannot write {path}: an animation is one of {', '.join(ANIMATION_SUFFIXES)}.")
    if states.ndim != 2 or len(states) < 2 or len(states) != len(times):
        raise InputError(
            f"an animation needs two states or more and the time of each, got values of shape {states.shape} and "
            f"{len(times)} times; keep some with heat(..., frames=24)."
        )
    if path.suffix.lower() == ".mp4" and shutil.which("ffmpeg") is None:
        raise InputError(f"cannot write {path}: an MP4 needs the program ffmpeg, which is not installed; write a .gif.")
    scale = scale_of(states, map, low, high)
    pictures = []
    with progress("drawing", show_progress) as update:
        for i, (state, time) in enumerate(zip(states, times, strict=True)):
            text = heading(title, time, times, time_unit)
            pictures.append(
                render(points, state, size=size, title=text, map=scale.map, low=scale.low, high=scale.high, **options)
            )
            update((i + 1) / len(states), f"frame {i + 1} of {len(states)}")
    if path.suffix.lower() == ".mp4":
        _write_mp4(path, pictures, len(pictures) / seconds)
    else:
        _write_gif(path, pictures, 1000 * seconds / len(pictures))
    return path


def _write_gif(path: Path, pictures: list[Image.Image], milliseconds: float) -> None:
    """Write a GIF. All frames share one palette, because still parts would flicker otherwise."""
    some = pictures[:: max(1, len(pictures) // PALETTE_FRAMES)]
    sheet = Image.fromarray(np.concatenate([np.asarray(picture) for picture in some]))
    palette = sheet.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    frames = [picture.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG) for picture in pictures]
    duration = [max(MIN_FRAME_MILLISECONDS, round(milliseconds))] * (len(frames) - 1) + [LAST_FRAME_MILLISECONDS]

    def write(file: Any) -> None:
        frames[0].save(
            file, format="GIF", save_all=True, append_images=frames[1:], duration=duration, loop=0, optimize=False
        )

    atomic_write(path, write)


def _write_mp4(path: Path, pictures: list[Image.Image], rate: float) -> None:
    width, height = pictures[0].size
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "animation.mp4"
        command = [
            "ffmpeg", "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
            "-r", f"{rate:.4f}", "-i", "-", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2:color=white", "-pix_fmt", "yuv420p",
            "-movflags", "+faststart", str(made),
        ]  # fmt: skip
        frames = b"".join(picture.tobytes() for picture in pictures)
        finished = subprocess.run(command, input=frames, capture_output=True, check=False)
        if finished.returncode != 0:
            lines = finished.stderr.decode(errors="replace").strip().splitlines()
            raise InputError(f"cannot write {path}: ffmpeg says {lines[-1] if lines else 'nothing'}.")
        atomic_write(path, lambda file: file.write(made.read_bytes()))
