"""Zip archives and numpy arrays of unknown origin: sizes are compared with the file before memory is taken.

Array headers are described in NEP 1 ("A simple file format for NumPy arrays"), the records at the end of an archive in
PKWARE's APPNOTE 6.3, sections 4.3.14 to 4.3.16.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np

from lamina.io.formats import FormatError

# The members of an archive may unpack to this many times the size of the file, or to ALWAYS_UNPACKED_BYTES if that is
# more. Arrays of numbers rarely compress to less than a tenth; half would still hold them, double lets a hostile file
# take twice the memory.
MAX_UNPACK_RATIO = 100
ALWAYS_UNPACKED_BYTES = 2**24  # 16 MB, harmless in any case: arrays of zeros compress to less than a hundredth
# Bytes of the list of members, which zipfile reads at once: enough for ten thousand members, more than any surface has.
MAX_DIRECTORY_BYTES = 2**20
# What zipfile raises on archives that are damaged, or compressed in a way that it does not know (a RuntimeError).
ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, RuntimeError)
MAX_ARRAY_HEADER_BYTES = 10_000  # of an array: numpy's own limit


def open_archive(path: Path) -> zipfile.ZipFile:
    """The archive, after a check that its list of members is short and that the sizes in it are possible."""
    size = path.stat().st_size
    if _directory_size(path, size) > MAX_DIRECTORY_BYTES:
        raise FormatError("the archive lists more members than any surface has")
    try:
        archive = zipfile.ZipFile(path)
    except ARCHIVE_ERRORS as error:
        raise FormatError("the archive is damaged") from error
    members = archive.infolist()
    if sum(m.compress_size for m in members) > size:
        raise FormatError("members of the archive overlap")
    if sum(m.file_size for m in members) > max(ALWAYS_UNPACKED_BYTES, MAX_UNPACK_RATIO * size):
        raise FormatError(f"the archive unpacks to more than {MAX_UNPACK_RATIO} times its size")
    if any(m.flag_bits & 1 for m in members):
        raise FormatError("the archive is encrypted")
    if any(m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for m in members):
        raise FormatError("the archive is compressed in another way than by deflate; save it so")
    return archive


def _directory_size(path: Path, size: int) -> int:
    """Bytes of the list of members, by the record at the end of the archive."""
    with path.open("rb") as file:
        file.seek(max(0, size - 22 - 65535 - 20))
        tail = file.read()
        end = tail.rfind(b"PK\x05\x06")
        if end < 0 or end + 22 > len(tail):
            raise FormatError("the archive is damaged: it has no end record")
        claimed = int.from_bytes(tail[end + 12 : end + 16], "little")
        locator = tail[max(0, end - 20) : end]
        if locator[:4] == b"PK\x06\x07":
            file.seek(min(int.from_bytes(locator[8:16], "little"), size))
            record = file.read(56)
            claimed = max(int.from_bytes(record[40:48], "little"), claimed % 0xFFFFFFFF)
    return claimed


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of a member, at most as many as its stated size: a hostile member would unpack to any size."""
    try:
        with archive.open(name) as stream:
            return stream.read(archive.getinfo(name).file_size)
    except ARCHIVE_ERRORS as error:
        raise FormatError(f"its member {name[:40]!r} is damaged") from error


def read_npz(path: Path, wanted: Callable[[str], bool] = lambda name: True) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays of an archive whose names are wanted, by name, and the names of all arrays."""
    with open_archive(path) as archive:
        members = {m.filename.removesuffix(".npy"): m for m in archive.infolist() if m.filename.endswith(".npy")}
        arrays = {}
        for name in filter(wanted, members):
            try:
                with archive.open(members[name]) as stream:
                    arrays[name] = read_array(stream, members[name].file_size, name)
            except ARCHIVE_ERRORS as error:
                raise FormatError(f"its array {name[:40]!r} is damaged") from error
        return arrays, list(members)


def read_npy(path: Path) -> np.ndarray:
    """The array in a .npy file."""
    with path.open("rb") as stream:
        return read_array(stream, path.stat().st_size, path.name)


def read_array(stream: IO[bytes], size: int, name: str) -> np.ndarray:
    """One array in numpy's format, from a stream of size bytes. Arrays of objects are refused: they hold pickles."""
    try:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version}")
        if version == (1, 0):
            header = np.lib.format.read_array_header_1_0(stream, max_header_size=MAX_ARRAY_HEADER_BYTES)
        else:
            header = np.lib.format.read_array_header_2_0(stream, max_header_size=MAX_ARRAY_HEADER_BYTES)
    except FormatError:
        raise
    except Exception as error:  # the header is a Python literal, whose parser raises exceptions of many kinds
        raise FormatError(f"its array {name[:40]!r} has a damaged header") from error
    shape, column_major, dtype = header
    if dtype.hasobject:
        raise FormatError(f"its array {name[:40]!r} holds Python objects, which are not read; save numbers")
    count = math.prod(shape)
    if min(shape, default=1) < 0 or dtype.itemsize == 0 or count * dtype.itemsize != size - stream.tell():
        raise FormatError(f"its array {name[:40]!r} announces the shape {shape}, which is not what it holds")
    data = stream.read(count * dtype.itemsize)
    if len(data) != count * dtype.itemsize:
        raise FormatError(f"its array {name[:40]!r} ends too early")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if column_major else "C")
