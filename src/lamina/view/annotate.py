"""Title and colour bar of a picture, and readable numbers."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from lamina.colours import Scale
from lamina.view.shade import legend

BAR_WIDTH_LETTERS = 6.2  # width of the colour bar with its numbers at the right edge, in letter heights
_TEXT_COLOUR = (52, 54, 60)
_TICK_COLOUR = (188, 190, 196)


def ticks(low: float, high: float, max_count: int = 6) -> tuple[list[float], int, int]:
    """At most max_count round numbers in [low, high]: multiples of 1, 2 or 5 times a power of ten.

    Also the number of decimals that distinguishes them, and the power of ten to take out as a factor (0 unless the
    numbers are very large or very small).
    """
    size = max(abs(low), abs(high))
    power = math.floor(math.log10(size)) if size > 0 else 0
    factor = power if power >= 4 or power <= -3 else 0
    unit = 10.0**factor
    raw = (high / unit - low / unit) / (max_count - 1)
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(m * base for m in (1, 2, 5, 10, 20) if (high / unit - low / unit) / (m * base) <= max_count - 1)
    first, last = math.ceil(low / unit / step - 1e-6), math.floor(high / unit / step + 1e-6)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [i * step for i in range(first, last + 1)], decimals, factor


def time_text(time: float, times: Sequence[float], unit: str = "") -> str:
    """ "t = 0.0125 s", with enough digits to distinguish it from its neighbours. times: increasing."""
    steps = [abs(b - a) for a, b in pairwise(times) if b != a] or [abs(time)]
    smallest = min(steps)
    decimals = 2 - math.floor(math.log10(smallest)) if smallest > 0 else 6
    return f"t = {round(time, max(decimals, 0)) + 0.0:.15g}" + (f" {unit}" if unit else "")


def heading(title: str | None, time: float | None, times: Sequence[float] = (), unit: str = "") -> str:
    """Title and time in one line. Either may be missing."""
    text = "" if time is None else time_text(time, times, unit)
    return ", ".join(part for part in (title or "", text) if part)


def letter_height(width: int, height: int) -> int:
    """Height of letters, in pixels, in a picture of this size."""
    return max(9, round(min(width, height) / 52))


def annotate(image: NDArray[np.uint8], scale: Scale | None, title: str | None, name: str = "") -> Image.Image:
    """The picture with its title and, unless scale is None, a colour bar with this name."""
    picture = Image.fromarray(image)
    draw = ImageDraw.Draw(picture)
    letter = letter_height(*picture.size)
    if title:
        _draw_title(draw, title, picture.width, letter)
    if scale is not None:
        _draw_bar(picture, draw, scale, letter, name)
    return picture


def _draw_title(draw: ImageDraw.ImageDraw, title: str, width: int, letter: int) -> None:
    text = " ".join(title.split())
    font, text = _font_for(text, 1.1 * letter)
    while len(text) > 4 and draw.textlength(text, font) > width - 4 * letter:
        text = text[:-4].rstrip() + "..."
    draw.text((2 * letter, 2 * letter), text, _TEXT_COLOUR, font, anchor="lm")


def _font_for(text: str, size: float):
    """A font, and the text that it can write. Pillow's own font has only ASCII; for it the text is simplified."""
    if not text.isascii():
        for name in ("DejaVuSans.ttf", "Arial Unicode.ttf", "Arial.ttf", "arial.ttf"):
            try:
                return ImageFont.truetype(name, size), text
            except OSError:
                continue
        plain = unicodedata.normalize("NFKD", text)
        text = "".join(c if c.isascii() else "?" for c in plain if not unicodedata.combining(c))
    return ImageFont.load_default(size), text


def _draw_bar(picture: Image.Image, draw: ImageDraw.ImageDraw, scale: Scale, letter: int, name: str) -> None:
    """A bar at the right edge, with its name above it and the values of its ticks beside it."""
    font = ImageFont.load_default(letter)
    numbers, decimals, factor = ticks(scale.low, scale.high)
    unit = 10.0**factor
    labels = [f"{number:.{decimals}f}" for number in numbers]
    labels = [label.lstrip("-") if float(label) == 0 else label for label in labels]
    widest = max((draw.textlength(label, font) for label in labels), default=0)
    thick, tall = max(8, round(0.95 * letter)), round(0.46 * picture.height)
    left = round(min(picture.width - BAR_WIDTH_LETTERS * letter, picture.width - widest - 2 * letter - thick))
    top = (picture.height - tall) // 2
    _paste_rounded(picture, legend(scale, tall, thick), left, top)
    for number, label in zip(numbers, labels, strict=True):
        share = (number - scale.low / unit) / (scale.high / unit - scale.low / unit)
        x, y = left + thick, top + (1 - share) * (tall - 1)
        draw.line([(x + 0.2 * letter, y), (x + 0.5 * letter, y)], _TICK_COLOUR, max(1, letter // 14))
        draw.text((x + 0.8 * letter, y), label, _TEXT_COLOUR, font, anchor="lm")
    if name:
        font_of_name, name = _font_for(" ".join(name.split()), letter)
        x = min(left, picture.width - letter - draw.textlength(name, font_of_name))
        draw.text((x, top - (2.9 if factor else 1.1) * letter), name, _TEXT_COLOUR, font_of_name, anchor="ls")
    if factor:
        small = ImageFont.load_default(0.75 * letter)
        y = top - 1.2 * letter
        draw.text((left, y), "x 10", _TEXT_COLOUR, font, anchor="ls")
        draw.text(
            (left + draw.textlength("x 10", font) + 1, y - 0.4 * letter),
            str(factor),
            _TEXT_COLOUR,
            small,
            anchor="ls",
        )


def _paste_rounded(picture: Image.Image, bar: NDArray[np.uint8], left: int, top: int) -> None:
    height, width = bar.shape[:2]
    mask = Image.new("L", (4 * width, 4 * height))
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, 4 * width - 1, 4 * height - 1), 1.3 * width, 255)
    picture.paste(Image.fromarray(bar), (left, top), mask.resize((width, height), Image.Resampling.BOX))
