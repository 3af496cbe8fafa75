"""Writer of SOG archives ("spatially ordered Gaussians", version 2): see lamina.io.sog, which reads them.

Scales and colours are indices into code books of 256 numbers. If there are at most 256 different numbers, the book
holds them all. Otherwise one half of the book is evenly spaced, which bounds the error; the other half are quantiles,
which make the error small where most numbers are. Colours that depend on the view are not written.
"""

from __future__ import annotations

import io
import json
import zipfile
from math import ceil

import numpy as np
from numpy.typing import NDArray

from lamina.io.sog import QUATERNION_TAG
from lamina.io.splat_files import SplatData
from lamina.io.splat_writing import as_bytes, beside_largest, constant_harmonics, finite, log_scales

CODE_BOOK_SIZE = 256  # numbers in a code book, as many as a byte can name
COORDINATE_STEPS = 2**16 - 1  # of a coordinate: two bytes, in two images


def write_sog(splats: SplatData) -> bytes:
    """The bytes of an archive with meta.json and five lossless images, a pixel for each Gaussian."""
    splats = finite(splats)
    # Coordinates are stored as sign(x) log(1 + |x|), evenly between the ends.
    stretched = np.sign(splats.centres) * np.log1p(np.abs(splats.centres.astype(np.float64)))
    low, high = stretched.min(0), stretched.max(0)
    place = np.rint((stretched - low) / np.where(high > low, high - low, 1) * COORDINATE_STEPS).astype(np.int64)
    scale_book, scales = _coded(log_scales(splats))
    colour_book, colours = _coded(constant_harmonics(splats))
    index, three = beside_largest(splats.rotations)
    pixels = {
        "means_l": place & 255,
        "means_u": place >> 8,
        "scales": scales,
        "quats": np.column_stack([as_bytes(255 * (three / 2**0.5 + 0.5)), QUATERNION_TAG + index]),
        "sh0": np.column_stack([colours, as_bytes(255 * splats.opacities)]),
    }
    meta = {
        "version": 2,
        "asset": {"generator": "lamina"},
        "count": len(splats),
        "means": {"mins": low.tolist(), "maxs": high.tolist(), "files": ["means_l.webp", "means_u.webp"]},
        "scales": {"codebook": scale_book, "files": ["scales.webp"]},
        "quats": {"files": ["quats.webp"]},
        "sh0": {"codebook": colour_book, "files": ["sh0.webp"]},
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, table in pixels.items():
            archive.writestr(f"{name}.webp", _image(table))
        archive.writestr("meta.json", json.dumps(meta))
    return out.getvalue()


def _coded(values: NDArray) -> tuple[list[float], NDArray]:
    """A code book of 256 numbers in order, and the index of the one nearest to each of the values (n, 3)."""
    distinct = np.unique(values)
    if len(distinct) <= CODE_BOOK_SIZE:
        book = np.pad(distinct, (0, CODE_BOOK_SIZE - len(distinct)), mode="edge")
    else:
        even = np.linspace(distinct[0], distinct[-1], CODE_BOOK_SIZE // 2)
        quantiles = (np.arange(CODE_BOOK_SIZE // 2) + 0.5) / (CODE_BOOK_SIZE // 2)
        book = np.sort(np.concatenate([even, np.quantile(values, quantiles)]))
    return book.tolist(), np.searchsorted((book[1:] + book[:-1]) / 2, values)


def _image(table: NDArray) -> bytes:
    """A lossless WebP with the channels (n, 3) or (n, 4) of n pixels, row by row, in a square or nearly so."""
    from PIL import Image

    width = ceil(len(table) ** 0.5)
    height = ceil(len(table) / width)
    # Unused channels are opaque, because an encoder may drop the colour of a transparent pixel.
    canvas = np.full((height * width, 4), 255, np.uint8)
    canvas[: len(table), : table.shape[1]] = table
    image = io.BytesIO()
    Image.fromarray(canvas.reshape(height, width, 4)).save(image, "WEBP", lossless=True, exact=True)
    return image.getvalue()
