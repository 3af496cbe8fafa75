"""Writers of Gaussian splats: compressed PLY, .splat, .spz; SOG archives are in lamina.io.sog_writing.

Each takes SplatData and returns the bytes of a file, with the Gaussians in their order. INRIA's PLY, which can also
hold a field, is written by lamina.io.export. Layouts: the format descriptions of PlayCanvas (compressed PLY),
antimatter15/splat and nianticlabs/spz (version 3).
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from math import floor, log2

import numpy as np
from numpy.typing import NDArray

from lamina.errors import InputError
from lamina.io.splat_files import (
    CHUNK_GAUSSIANS,
    OTHER_COMPONENTS,
    SH_0,
    SPLAT_RECORD,
    SPZ_COLOUR,
    SPZ_HARMONICS,
    SPZ_MAGIC,
    SplatData,
    normalised,
)

# Range of the logarithms of scales that are written: the scales of zero that discs have are not finite there.
MIN_LOG_SCALE, MAX_LOG_SCALE = -20.0, 20.0
SPZ_COORDINATE_BITS = 23  # of a coordinate in .spz, beside its sign


def write_compressed(splats: SplatData) -> bytes:
    """Numbers of 8 to 11 bits between the bounds of each chunk of 256 Gaussians; one byte for each f_rest."""
    splats = finite(splats)
    chunk: dict[str, NDArray] = {}
    which = np.arange(len(splats)) // CHUNK_GAUSSIANS

    def shares(values: NDArray, prefix: str, axes: str) -> NDArray:
        """Values (n, 3) as numbers in 0..1 between the bounds of their chunks; the bounds are stored in chunk."""
        starts = np.arange(0, len(values), CHUNK_GAUSSIANS)
        low, high = (bound.reduceat(values.astype(np.float32), starts) for bound in (np.minimum, np.maximum))
        for end, rows in (("min", low), ("max", high)):
            chunk.update({f"{end}_{prefix}{axis}": rows[:, i] for i, axis in enumerate(axes)})
        range_ = (high - low)[which]
        return np.where(range_ > 0, (values - low[which]) / np.where(range_ > 0, range_, 1), 0)

    position = _packed(shares(splats.centres, "", "xyz"), (11, 10, 11))
    scale = _packed(shares(log_scales(splats), "scale_", "xyz"), (11, 10, 11))
    colour = np.column_stack([shares(0.5 + SH_0 * constant_harmonics(splats), "", "rgb"), splats.opacities])
    index, three = beside_largest(splats.rotations)
    rotation = _packed(three / 2**0.5 + 0.5, (10, 10, 10)) | index.astype(np.uint32) << np.uint32(30)
    packed = {"position": position, "rotation": rotation, "scale": scale, "color": _packed(colour, (8, 8, 8, 8))}
    elements = {"chunk": chunk, "vertex": {f"packed_{name}": column for name, column in packed.items()}}
    rest = view_harmonics(splats, most=3)
    if rest.shape[1]:
        steps = np.floor((rest / 8 + 0.5) * 256).clip(0, 255).astype(np.uint8)
        elements["sh"] = {f"f_rest_{i}": column for i, column in enumerate(steps.T)}
    return _ply(elements)


def write_splat(splats: SplatData) -> bytes:
    """32 bytes a Gaussian: centre, lengths of the axes, colour with opacity, quaternion 128 q + 128."""
    splats = finite(splats)
    records = np.zeros(len(splats), SPLAT_RECORD)
    records["centre"], records["scale"] = splats.centres, splats.scales
    records["colour"] = as_bytes(255 * np.column_stack([splats.colours, splats.opacities]))
    records["rotation"] = as_bytes(128 * splats.rotations + 128)
    return records.tobytes()


def write_spz(splats: SplatData) -> bytes:
    """A gzip stream: header, then columns of centres, opacities, colours, scales, rotations and harmonics.

    Centres are numbers of 24 bits with as many of them after the point as their size allows.
    Raises InputError for coordinates that do not fit.
    """
    splats = finite(splats)
    count, farthest = len(splats), float(np.abs(splats.centres).max())
    largest = 2**SPZ_COORDINATE_BITS - 1
    room = SPZ_COORDINATE_BITS if farthest == 0 else floor(log2(largest / farthest))
    fraction = min(SPZ_COORDINATE_BITS, room)
    if fraction < 0:
        raise InputError(
            f"a coordinate of {farthest:.3g} does not fit .spz, which holds at most {largest}; save as .ply."
        )
    rest = view_harmonics(splats, most=3)
    head = SPZ_MAGIC + np.array([3, count], "<u4").tobytes()
    head += bytes([SPZ_HARMONICS.index(rest.shape[1]), fraction, 0, 0])
    fixed = np.rint(splats.centres.astype(np.float64) * 2**fraction).astype("<i4")
    centre = np.ascontiguousarray(fixed).view(np.uint8).reshape(count, 3, 4)[:, :, :3]
    index, three = beside_largest(np.roll(splats.rotations, -1, axis=1))  # x, y, z, w
    size = np.rint(np.abs(three) * 2**0.5 * 511).clip(0, 511).astype(np.uint32) | (three < 0).astype(np.uint32) << 9
    rotation = size[:, 0] << 20 | size[:, 1] << 10 | size[:, 2] | index.astype(np.uint32) << 30
    columns = [
        centre,
        as_bytes(255 * splats.opacities),
        as_bytes(255 * (SPZ_COLOUR * constant_harmonics(splats) + 0.5)),
        as_bytes(16 * (log_scales(splats) + 10)),
        rotation.astype("<u4"),
        as_bytes(128 * rest.reshape(count, 3, -1).transpose(0, 2, 1) + 128),
    ]
    # Without the time of writing, so that the same Gaussians give the same bytes.
    return gzip.compress(head + b"".join(column.tobytes() for column in columns), mtime=0)


# What the formats have in common


def finite(splats: SplatData) -> SplatData:
    """The Gaussians; those with numbers that are not finite become invisible ones with finite numbers."""
    arrays = (splats.centres, splats.scales, splats.rotations, splats.opacities[:, None], splats.colours)
    bad = ~np.isfinite(np.column_stack(arrays)).all(1)
    if splats.harmonics is not None:
        bad |= ~np.isfinite(splats.harmonics).all(1)
    harmonics = splats.harmonics
    if bad.any():
        good = np.flatnonzero(~bad)[:1]

        def mended(array: NDArray) -> NDArray:
            fill = array[good] if len(good) else np.zeros_like(array[:1])
            return np.where(bad.reshape(-1, *[1] * (array.ndim - 1)), fill, array)

        centres, scales, rotations, opacities, colours = map(
            mended, (splats.centres, splats.scales, splats.rotations, splats.opacities, splats.colours)
        )
        harmonics = None if harmonics is None else mended(harmonics)
        opacities = np.where(bad, 0, opacities)
        splats = replace(
            splats, centres=centres, scales=scales, rotations=rotations, opacities=opacities, colours=colours
        )
    return replace(splats, rotations=normalised(splats.rotations), harmonics=harmonics)


def constant_harmonics(splats: SplatData) -> NDArray:
    """f_dc (n, 3)."""
    return (splats.colours - 0.5) / SH_0 if splats.harmonics is None else splats.harmonics[:, :3]


def view_harmonics(splats: SplatData, most: int) -> NDArray:
    """f_rest (n, r) of the first `most` degrees, in INRIA's order; r is 0 if no colour depends on the view."""
    stored = np.zeros((len(splats), 0), np.float32) if splats.harmonics is None else splats.harmonics[:, 3:]
    whole = [width for width in SPZ_HARMONICS[: most + 1] if width <= stored.shape[1]]
    if stored.shape[1] not in SPZ_HARMONICS:
        whole = [0]  # their order is not known
    by_channel = stored.reshape(len(splats), 3, -1) if whole[-1] else np.zeros((len(splats), 3, 0), np.float32)
    return by_channel[:, :, : whole[-1] // 3].reshape(len(splats), -1)


def log_scales(splats: SplatData) -> NDArray:
    """Logarithms (n, 3) of the scales, within MIN_LOG_SCALE and MAX_LOG_SCALE."""
    with np.errstate(divide="ignore"):
        return np.log(splats.scales.astype(np.float64)).clip(MIN_LOG_SCALE, MAX_LOG_SCALE)


def beside_largest(q: NDArray) -> tuple[NDArray, NDArray]:
    """Index (n,) of the largest component of unit quaternions q (n, 4), and the three others of q or -q (n, 3),
    whichever has that one positive."""
    index, rows = np.abs(q).argmax(1), np.arange(len(q))
    sign = np.where(q[rows, index] < 0, -1, 1)
    return index, q[rows[:, None], OTHER_COMPONENTS[index]] * sign[:, None]


def as_bytes(numbers: NDArray) -> NDArray:
    """The nearest integers in 0..255."""
    return np.rint(numbers).clip(0, 255).astype(np.uint8)


def _packed(shares: NDArray, widths: tuple[int, ...]) -> NDArray:
    """Numbers (n, fields) in 0..1 in one integer each (n,), the first in the highest bits."""
    packed = np.zeros(len(shares), dtype=np.uint32)
    for column, width in zip(shares.T, widths, strict=True):
        most = 2**width - 1
        packed = packed << np.uint32(width) | np.rint(column * most).clip(0, most).astype(np.uint32)
    return packed


def _ply(elements: dict[str, dict[str, NDArray]]) -> bytes:
    """A binary PLY of elements, each of columns (n,) by name."""
    kinds = {"f": ("float", "<f4"), "u4": ("uint", "<u4"), "u1": ("uchar", "u1")}
    header, body = ["ply", "format binary_little_endian 1.0", "comment written by lamina"], b""
    for element, columns in elements.items():
        typed = {name: kinds.get(array.dtype.str[1:], kinds["f"]) for name, array in columns.items()}
        rows = np.empty(len(next(iter(columns.values()))), dtype=[(name, kind[1]) for name, kind in typed.items()])
        for name, array in columns.items():
            rows[name] = array
        header.append(f"element {element} {len(rows)}")
        header += [f"property {kind[0]} {name}" for name, kind in typed.items()]
        body += rows.tobytes()
    return "\n".join([*header, "end_header\n"]).encode("ascii") + body


def _write_sog(splats: SplatData) -> bytes:
    from lamina.io.sog_writing import write_sog

    return write_sog(splats)


SPLAT_WRITERS: dict[str, Callable[[SplatData], bytes]] = {
    "compressed.ply": write_compressed,
    "splat": write_splat,
    "spz": write_spz,
    "sog": _write_sog,
}
