"""Reader of SOG archives ("spatially ordered Gaussians", version 2), which store numbers in the pixels of images.

The numbers have 8 or 16 bits. Pixel i of every image, counted row by row, belongs to Gaussian i. meta.json names the
images and holds bounds and code books. Format: "The SOG format", PlayCanvas developer documentation.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lamina.io.archives import open_archive, read_member
from lamina.io.formats import FormatError
from lamina.io.splat_files import (
    MAX_DEFLATE_RATIO,
    MAX_GAUSSIANS_PER_BYTE,
    SplatData,
    colours_of,
    normalised,
    without_largest,
)

MAX_META_BYTES = 2**22  # of meta.json, which holds three code books of 256 numbers and some names: a few kilobytes
MAX_META_NUMBER = 1e30  # absolute value in meta.json, so that float32 holds the numbers and their differences
# An image may have twice as many pixels as there are Gaussians, and these more: squares leave some pixels unused.
MAX_PIXELS_PER_GAUSSIAN, MAX_EXTRA_PIXELS = 2, 4096
QUATERNION_TAG = 252  # the fourth channel of quats is this plus the index of the component that was left out


def read_sog(path: Path) -> SplatData:
    """The Gaussians of an archive, without the dependence of their colours on the view."""
    size = path.stat().st_size
    with open_archive(path) as archive:
        meta = _meta(archive)
        count = meta.get("count")
        if meta.get("version") != 2 or not isinstance(count, int):
            raise FormatError(f"its meta.json has version {meta.get('version')!r:.20}; expected 2, with a count")
        if not 0 < count <= MAX_GAUSSIANS_PER_BYTE * size:
            raise FormatError(f"it announces {count} Gaussians, which do not fit its {size} bytes")
        low, high, scales, quats, sh0 = (
            _pixels(archive, meta, key, index, count, size)
            for key, index in (("means", 0), ("means", 1), ("scales", 0), ("quats", 0), ("sh0", 0))
        )
    least, most = (_numbers(meta, "means", key, 3) for key in ("mins", "maxs"))
    share = ((low[:, :3] + 256 * high[:, :3].astype(np.int32)) / 65535).astype(np.float32)
    stretched = least * (1 - share) + most * share
    three = (quats[:, :3] / np.float32(255) - np.float32(0.5)) * np.float32(2**0.5)
    left_out = quats[:, 3].astype(np.int64) - QUATERNION_TAG
    if (left_out < 0).any():
        raise FormatError(f"a rotation names the component {int(left_out.min())}; expected 0 to 3")
    harmonics = _numbers(meta, "sh0", "codebook", 256)[sh0[:, :3]]
    with np.errstate(over="ignore"):
        centres = np.sign(stretched) * np.expm1(np.abs(stretched))
        lengths = np.exp(_numbers(meta, "scales", "codebook", 256)[scales[:, :3]])
    return SplatData(
        centres,
        lengths,
        normalised(without_largest(left_out, three)),
        sh0[:, 3] / np.float32(255),
        colours_of(harmonics),
        harmonics,
        ["Colours that depend on the view were not read."] if "shN" in meta else [],
        form="sog",
    )


def _meta(archive: zipfile.ZipFile) -> dict[str, Any]:
    text = _member(archive, "meta.json", MAX_META_BYTES)
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError("its meta.json is not JSON") from error
    if not isinstance(meta, dict):
        raise FormatError("its meta.json is not an object")
    return meta


def _member(archive: zipfile.ZipFile, name: str, largest: int) -> bytes:
    try:
        info = archive.getinfo(name)
    except KeyError as error:
        raise FormatError(f"it has no member {name[:80]!r}") from error
    if info.file_size > largest:
        raise FormatError(f"its member {name[:80]!r} has {info.file_size} bytes; expected at most {largest}")
    return read_member(archive, name)


def _section(meta: dict[str, Any], key: str) -> dict[str, Any]:
    section = meta.get(key)
    if not isinstance(section, dict):
        raise FormatError(f"its meta.json has no {key}")
    return section


def _numbers(meta: dict[str, Any], key: str, name: str, count: int) -> NDArray:
    """The `count` finite numbers under key and name in meta.json, float32."""
    values = _section(meta, key).get(name)
    numbers = values if isinstance(values, list) else []
    sound = all(isinstance(v, int | float) and -MAX_META_NUMBER < v < MAX_META_NUMBER for v in numbers)
    if len(numbers) != count or not sound:
        raise FormatError(f"its {key}.{name} is not a list of {count} numbers")
    return np.array(numbers, dtype=np.float32)


def _pixels(archive: zipfile.ZipFile, meta: dict[str, Any], key: str, index: int, count: int, size: int) -> NDArray:
    """Channels (count, 4) of an image. The size in its header is checked before the image is decoded."""
    from PIL import Image

    files = _section(meta, key).get("files")
    name = files[index] if isinstance(files, list) and len(files) > index else None
    if not isinstance(name, str):
        raise FormatError(f"its meta.json names no image {index} of {key}")
    most = MAX_PIXELS_PER_GAUSSIAN * count + MAX_EXTRA_PIXELS
    # Four channels of a byte and a header; and a deflated member cannot be larger than this.
    data = _member(archive, name, min(4 * most + 4096, MAX_DEFLATE_RATIO * size))
    try:
        with Image.open(io.BytesIO(data), formats=("WEBP", "PNG")) as image:
            width, height = image.size
            if not count <= width * height <= most:
                raise FormatError(f"its image {name[:80]!r} has {width} x {height} pixels for {count} Gaussians")
            pixels = np.asarray(image.convert("RGBA"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise FormatError(f"its image {name[:80]!r} is damaged") from error
    return pixels.reshape(-1, 4)[:count]
