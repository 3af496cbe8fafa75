"""Readers of Gaussian splats: INRIA and compressed PLY, .splat, .spz; SOG archives are in lamina.io.sog.
Writers are in lamina.io.splat_writing.

Each returns SplatData. What a file announces is compared with its size before memory is taken.
Layouts: Kerbl et al. (2023), "3D Gaussian splatting for real-time radiance field rendering", and the
format descriptions of PlayCanvas (compressed PLY), antimatter15/splat and nianticlabs/spz.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from lamina.io.formats import FormatError

SH_0 = 0.28209479177387814  # the constant spherical harmonic, 1 / (2 sqrt(pi)): colour = 1/2 + SH_0 f_dc
SPLAT_RECORD = np.dtype([("centre", "<f4", 3), ("scale", "<f4", 3), ("colour", "u1", 4), ("rotation", "u1", 4)])
SPZ_MAGIC, SPZ_HEADER_BYTES = b"NGSP", 16
SPZ_COLOUR = 0.15  # factor on f_dc in .spz: 1/2 + SPZ_COLOUR f_dc is stored in 0..1
SPZ_HARMONICS = (0, 9, 24, 45, 72)  # bytes of view-dependent colour a Gaussian, by degree
MAX_DEFLATE_RATIO = 1032  # a deflate stream cannot unpack to more times its size
# Gaussians that a byte of a compressed file may stand for; trained ones take about ten bytes each. Half would still
# read them all, double lets a hostile file take twice the memory.
MAX_GAUSSIANS_PER_BYTE = 4
CHUNK_GAUSSIANS = 256  # Gaussians that share the bounds of a chunk in a compressed PLY
INFLATE_BLOCK_BYTES = 2**20  # decompressed at a time
OTHER_COMPONENTS = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])  # row i: all components but i
# Properties that are written anew when Gaussians are saved with a field; those read from a PLY are then not kept.
WRITTEN_PROPERTIES = re.compile(
    r"x|y|z|f_dc_[012]|f_rest_\d+|opacity|scale_[012]|rot_[0123]|value(_\d+)?|red|green|blue"
)


@dataclass(frozen=True)
class SplatData:
    """Gaussians with covariances R diag(scales^2) R^T and peaks `opacities`, float32.

    harmonics: f_dc and f_rest in INRIA's order, so that they can be written again; None if there are only colours.
    form: the extension of the format that they were read from. extra: further properties (n,) of a PLY, by name.
    """

    centres: NDArray  # (n, 3)
    scales: NDArray  # (n, 3) standard deviations along the axes, lengths
    rotations: NDArray  # (n, 4) unit quaternions (w, x, y, z) that turn the axes
    opacities: NDArray  # (n,) in 0..1
    colours: NDArray  # (n, 3) in 0..1, without their dependence on the view
    harmonics: NDArray | None = None  # (n, 3 + r)
    notes: list[str] = field(default_factory=list)
    form: str = "ply"  # or compressed.ply, splat, spz, sog
    extra: dict[str, NDArray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.centres)


# A file without a signature is taken for .splat if more than MIN_SOUND_SHARE of its first records are sound: the length
# of the quaternion is 1 within MAX_SNIFFED_ROTATION_ERROR (bytes round it by about 0.01), and coordinates and scales
# are below MAX_SNIFFED_LENGTH. Chosen by trial; with fewer than MIN_SNIFFED_RECORDS records chance would decide.
MIN_SNIFFED_RECORDS = 8
MAX_SNIFFED_ROTATION_ERROR = 0.05
MAX_SNIFFED_LENGTH = 1e6
MIN_SOUND_SHARE = 0.9


def colours_of(harmonics: NDArray) -> NDArray:
    """Colours (n, 3) in 0..1 of the constant terms f_dc (n, 3)."""
    return np.clip(0.5 + SH_0 * harmonics[:, :3], 0, 1).astype(np.float32)


def normalised(q: NDArray) -> NDArray:
    """Unit quaternions (n, 4) along q (n, 4); no rotation where q is zero."""
    largest = np.abs(q).max(1, keepdims=True)
    q = np.where(largest > 0, q / np.where(largest > 0, largest, 1), np.array([1, 0, 0, 0], dtype=q.dtype))
    return (q / np.linalg.norm(q, axis=1, keepdims=True)).astype(np.float32)  # squares of q itself might overflow


def without_largest(index: NDArray, three: NDArray) -> NDArray:
    """Quaternions (n, 4) from three of their components (n, 3) and the index (n,) of the fourth, the largest."""
    q = np.empty((len(index), 4), dtype=np.float32)
    rows = np.arange(len(index))
    q[rows[:, None], OTHER_COMPONENTS[index]] = three
    q[rows, index] = np.sqrt((1 - (three.astype(np.float64) ** 2).sum(1)).clip(0))
    return q


# PLY, as read by plyfile


def is_splat_ply(elements: dict[str, Any]) -> bool:
    """Whether the elements of a PLY are Gaussians, in INRIA's layout or compressed."""
    names = {p.name for p in elements["vertex"].properties}
    plain = {"x", "y", "z", "opacity", "scale_0", "scale_1", "rot_0", "rot_1", "rot_2", "rot_3"} <= names
    return plain or ("chunk" in elements and "packed_position" in names)


def from_ply(elements: dict[str, Any]) -> SplatData:
    """Gaussians of a PLY with the given elements by name."""
    names = {p.name for p in elements["vertex"].properties}
    return _compressed(elements) if "packed_position" in names else _inria(elements["vertex"], names)


def _inria(vertex: Any, names: set[str]) -> SplatData:
    """Gaussians in INRIA's layout: logarithms of scales, logits of opacities, quaternions of any length. Two scales
    instead of three describe a disc (2DGS)."""
    with np.errstate(over="ignore"):
        scales = np.exp(_columns(vertex, *(f"scale_{i}" for i in range(3) if f"scale_{i}" in names)))
    if scales.shape[1] == 2:
        scales = np.column_stack([scales, np.zeros_like(scales[:, 0])])
    stored = [f"f_dc_{i}" for i in range(3)]
    harmonics = None
    if set(stored) <= names:
        rest = sorted((n for n in names if n.startswith("f_rest_") and n[7:].isdigit()), key=lambda n: int(n[7:]))
        harmonics = _columns(vertex, *stored, *rest)
    elif {"red", "green", "blue"} <= names:
        harmonics = (_columns(vertex, "red", "green", "blue") / 255 - 0.5) / np.float32(SH_0)
    count = len(scales)
    return SplatData(
        _columns(vertex, "x", "y", "z"),
        scales,
        normalised(_columns(vertex, "rot_0", "rot_1", "rot_2", "rot_3")),
        expit(_columns(vertex, "opacity")[:, 0]),
        np.full((count, 3), 0.5, np.float32) if harmonics is None else colours_of(harmonics),
        harmonics,
        extra={name: column for name in sorted(names) if (column := _extra(vertex, name)) is not None},
    )


def _extra(vertex: Any, name: str) -> NDArray | None:
    """A property (n,) that is no part of the Gaussians and holds plain numbers, or None."""
    column = np.asarray(vertex[name])
    return None if WRITTEN_PROPERTIES.fullmatch(name) or column.dtype.kind not in "iuf" else column


def _compressed(elements: dict[str, Any]) -> SplatData:
    """Gaussians of a compressed PLY: numbers of 8 to 11 bits between the bounds of their chunk, and quaternions without
    their largest component."""
    chunk, vertex = elements["chunk"], elements["vertex"]
    count = vertex.count
    if chunk.count * CHUNK_GAUSSIANS < count:
        raise FormatError(
            f"it has {chunk.count} chunks for {count} Gaussians; expected one for every {CHUNK_GAUSSIANS}"
        )
    position, rotation, scale, colour = (
        np.asarray(vertex[f"packed_{name}"]).astype(np.uint32) for name in ("position", "rotation", "scale", "color")
    )
    which = np.arange(count) // CHUNK_GAUSSIANS

    def between(share: NDArray, prefix: str, axes: str) -> NDArray:
        low, high = (_columns(chunk, *(f"{end}_{prefix}{axis}" for axis in axes)) for end in ("min", "max"))
        return low[which] * (1 - share) + high[which] * share

    colours = _bits(colour, (24, 16, 8), (8, 8, 8))
    if "min_r" in {p.name for p in chunk.properties}:
        colours = between(colours, "", "rgb")
    three = (_bits(rotation, (20, 10, 0), (10, 10, 10)) - np.float32(0.5)) * np.float32(2**0.5)
    with np.errstate(over="ignore", invalid="ignore"):
        scales = np.exp(between(_bits(scale, (21, 11, 0), (11, 10, 11)), "scale_", "xyz"))
    harmonics = (colours - np.float32(0.5)) / np.float32(SH_0)
    return SplatData(
        between(_bits(position, (21, 11, 0), (11, 10, 11)), "", "xyz"),
        scales,
        normalised(without_largest((rotation >> 30).astype(np.int64), three)),
        _bits(colour, (0,), (8,))[:, 0],
        colours.clip(0, 1),
        np.column_stack([harmonics, _bytes_of_harmonics(elements["sh"], count)]) if "sh" in elements else harmonics,
        form="compressed.ply",
    )


def _bytes_of_harmonics(sh: Any, count: int) -> NDArray:
    """f_rest (n, r) from bytes, which stand for the middles of 256 steps from -4 to 4; 0 and 255 stand for the ends."""
    names = sorted((p.name for p in sh.properties if re.fullmatch(r"f_rest_\d+", p.name)), key=lambda n: int(n[7:]))
    if sh.count != count:
        raise FormatError(f"it has {sh.count} rows of harmonics for {count} Gaussians")
    steps = _columns(sh, *names) if names else np.zeros((count, 0), np.float32)
    share = np.where(steps == 255, 1, np.where(steps == 0, 0, (steps + np.float32(0.5)) / 256))
    return (8 * share - 4).astype(np.float32)


def _bits(packed: NDArray, shifts: tuple[int, ...], widths: tuple[int, ...]) -> NDArray:
    """Fields of integers (n,) as numbers in 0..1, (n, fields)."""
    fields = [((packed >> s) & (2**w - 1)) / np.float32(2**w - 1) for s, w in zip(shifts, widths, strict=True)]
    return np.stack(fields, 1).astype(np.float32)


def _columns(element: Any, *names: str) -> NDArray:
    return np.stack([np.asarray(element[name], dtype=np.float32) for name in names], 1)


# .splat


def read_splat(path: Path) -> SplatData:
    """32 bytes a Gaussian: centre, lengths of the axes, colour with opacity, quaternion (q - 128) / 128."""
    size = path.stat().st_size
    if size == 0 or size % SPLAT_RECORD.itemsize:
        raise FormatError(f"it has {size} bytes; expected {SPLAT_RECORD.itemsize} for every Gaussian")
    records = np.fromfile(path, SPLAT_RECORD)
    return SplatData(
        records["centre"].astype(np.float32),
        records["scale"].astype(np.float32),
        normalised((records["rotation"].astype(np.float32) - 128) / 128),
        records["colour"][:, 3] / np.float32(255),
        records["colour"][:, :3] / np.float32(255),
        form="splat",
    )


# .spz


def read_spz(path: Path) -> SplatData:
    """A gzip stream: header, then columns of centres, opacities, colours, scales, rotations and harmonics."""
    data = path.read_bytes()
    head = _inflated(data, SPZ_HEADER_BYTES)
    if head[:4] != SPZ_MAGIC:
        raise FormatError("its first bytes are not those of SPZ")
    version, count = (int(v) for v in np.frombuffer(head, "<u4", 2, 4))
    degree, fraction = head[12], head[13]
    if version not in (1, 2, 3) or degree >= len(SPZ_HARMONICS) or fraction > 23:
        raise FormatError(
            f"it is of version {version}, degree {degree} and {fraction} fractional bits; expected version 1 to 3, "
            f"degree 0 to {len(SPZ_HARMONICS) - 1} and at most 23 bits"
        )
    widths = (6 if version == 1 else 9, 1, 3, 3, 4 if version == 3 else 3, SPZ_HARMONICS[degree])
    needed = SPZ_HEADER_BYTES + count * sum(widths)
    if not 0 < count <= MAX_GAUSSIANS_PER_BYTE * len(data) or needed > MAX_DEFLATE_RATIO * len(data):
        raise FormatError(f"it announces {count} Gaussians, which do not fit its {len(data)} bytes")
    columns = np.frombuffer(_inflated(data, needed, needed), np.uint8, needed - SPZ_HEADER_BYTES, SPZ_HEADER_BYTES)
    parts = np.split(columns, np.cumsum([count * w for w in widths])[:-1])
    centre, opacity, colour, scale, rotation, view = (p.reshape(count, -1) for p in parts)
    harmonics = (colour / np.float32(255) - np.float32(0.5)) / np.float32(SPZ_COLOUR)
    # The file has the three channels of a coefficient side by side, INRIA's order all coefficients of a channel.
    rest = view.reshape(count, SPZ_HARMONICS[degree] // 3, 3).transpose(0, 2, 1).reshape(count, -1)
    rest = (rest.astype(np.float32) - 128) / 128
    return SplatData(
        centre.view("<f2").astype(np.float32) if version == 1 else _fixed_point(centre, fraction),
        np.exp(scale / np.float32(16) - 10),
        normalised(_smallest_three(rotation) if version == 3 else _first_three(rotation)),
        opacity[:, 0] / np.float32(255),
        colours_of(harmonics),
        np.column_stack([harmonics, rest]),
        form="spz",
    )


def _inflated(data: bytes, wanted: int, expected: int | None = None) -> bytes:
    """The first `wanted` bytes of a gzip stream; if `expected` is given, the stream must be sound and have as many."""
    stream = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        found = stream.decompress(data, wanted)
        length, rest = len(found), stream.unconsumed_tail
        while expected is not None and not stream.eof:
            more = len(stream.decompress(rest, INFLATE_BLOCK_BYTES))
            if not more and not stream.eof:
                break
            length, rest = length + more, stream.unconsumed_tail
            if length > expected + INFLATE_BLOCK_BYTES:
                raise FormatError("it goes on after the Gaussians that it announces")
    except zlib.error as error:
        raise FormatError(f"its compressed data is damaged ({error})") from error
    if len(found) < wanted or (expected is not None and (length < expected or not stream.eof)):
        raise FormatError("it ends too early")
    return found


def _fixed_point(three: NDArray, fraction: int) -> NDArray:
    """Signed numbers of 24 bits, `fraction` of them after the point, from bytes (n, 9); (n, 3)."""
    b = three.reshape(-1, 3, 3).astype(np.int32)
    value = b[..., 0] | b[..., 1] << 8 | b[..., 2] << 16
    return (((value ^ 0x800000) - 0x800000) / 2**fraction).astype(np.float32)


def _first_three(three: NDArray) -> NDArray:
    """Quaternions (n, 4) with w >= 0 from x, y, z (n, 3) in bytes."""
    xyz = three / np.float32(127.5) - 1
    return np.column_stack([np.sqrt((1 - (xyz**2).sum(1)).clip(0)), xyz])


def _smallest_three(four: NDArray) -> NDArray:
    """Quaternions (n, 4) from 32 bits: index of the largest in x, y, z, w, and the others, sign and 9 bits each."""
    packed = np.ascontiguousarray(four).view("<u4")[:, 0]
    parts = np.stack([(packed >> shift) & 0x3FF for shift in (20, 10, 0)], 1)
    size = (parts & 0x1FF) * np.float32(0.5**0.5 / 0x1FF)
    three = np.where(parts >> 9, -size, size)
    return np.roll(without_largest((packed >> 30).astype(np.int64), three), 1, axis=1)


# Which format


def sniff(head: bytes, size: int) -> str | None:
    """ "splat", "spz" or "sog" if the first bytes of a file of that size show it, or None."""
    if head[:2] == b"\x1f\x8b":
        try:
            return "spz" if zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(head, 4) == SPZ_MAGIC else None
        except zlib.error:
            return None
    if head[:4] == b"PK\x03\x04":
        return "sog" if b"means_l." in head else None
    if size % SPLAT_RECORD.itemsize == 0 and len(head) >= MIN_SNIFFED_RECORDS * SPLAT_RECORD.itemsize:
        records = np.frombuffer(head, SPLAT_RECORD, len(head) // SPLAT_RECORD.itemsize)
        length = np.linalg.norm((records["rotation"].astype(np.float32) - 128) / 128, axis=1)
        lengths = np.concatenate([records["scale"], np.abs(records["centre"])], 1).astype(np.float64)
        sound = (np.abs(length - 1) < MAX_SNIFFED_ROTATION_ERROR) & (lengths >= 0).all(1)
        sound &= (lengths < MAX_SNIFFED_LENGTH).all(1)
        return "splat" if sound.mean() > MIN_SOUND_SHARE else None
    return None


def _read_sog(path: Path) -> SplatData:
    from lamina.io.sog import read_sog

    return read_sog(path)


SPLAT_READERS: dict[str, Callable[[Path], SplatData]] = {"splat": read_splat, "spz": read_spz, "sog": _read_sog}
