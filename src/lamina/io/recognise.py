"""Which format a file of a surface has: decided by its content, and by its extension where the content says nothing."""

from __future__ import annotations

import re
from pathlib import Path

from lamina.errors import InputError
from lamina.io.archives import open_archive
from lamina.io.deepsdf import decoder_folder
from lamina.io.formats import READERS, REGISTERED, FormatError, data_lines, numbers
from lamina.io.splat_files import sniff as sniff_splats

SPLAT_KINDS = ("splat", "spz", "sog")
NETWORK_KINDS = ("torch", "safetensors", "decoder")
READABLE = (
    "meshes (OBJ, PLY, STL, OFF, GLB, GLTF), points (PLY, XYZ, NPZ, NPY), Gaussian splats (PLY, SPLAT, SPZ, SOG) and "
    "neural fields (NPZ, safetensors, PT, PTH, folders of DeepSDF)"
)
FIRST_BYTES = 2**16  # bytes that are looked at: the formats that are told by them need a few lines or records


def recognise(path: Path) -> str:
    """The kind of a file: a key of formats.READERS, one of SPLAT_KINDS or one of NETWORK_KINDS. Raises InputError."""
    try:
        if not path.exists():
            raise InputError(f"there is no file {path}; give the path of a surface, {READABLE}.")
        if decoder_folder(path) is not None:
            return "decoder"
        if path.is_dir():
            raise InputError(f"{path} is a folder without specs.json or settings.yaml; give a file: {READABLE}.")
        if not path.is_file():
            raise InputError(f"{path} is no plain file; give a file: {READABLE}.")
        with path.open("rb") as file:
            head = file.read(FIRST_BYTES)
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be opened: {getattr(error, 'strerror', None) or error}.") from error
    if not head.strip():
        raise InputError(f"{path} is empty; expected a surface: {READABLE}.")
    extension = path.suffix.lower().lstrip(".")
    if extension in REGISTERED:
        return extension
    known = (*READERS, *SPLAT_KINDS, *NETWORK_KINDS)
    kind = _sniff(path, head, path.stat().st_size)
    kind = kind or {"pt": "torch", "pth": "torch"}.get(extension) or (extension if extension in known else None)
    if kind is None:
        ending = f"the extension '{path.suffix}'" if path.suffix else "no extension"
        raise InputError(f"{path} has {ending} and no content that is known; lamina reads {READABLE}.")
    return kind


def kind_in_words(kind: str) -> str:
    """What messages call a kind of file."""
    names = {"torch": "a checkpoint of torch", "safetensors": "safetensors", "decoder": "DeepSDF"}
    return names.get(kind, kind.upper())


def one_line(text: str) -> str:
    """The beginning of a text as one sentence in one line, for messages."""
    line = " ".join(text.split())[:300].rstrip(".")
    return line + "."


def _sniff(path: Path, head: bytes, size: int) -> str | None:
    """The kind that the first bytes show, or None."""
    if head[:3] == b"ply" and head[3:4] in (b"\n", b"\r", b" "):
        return "ply"
    if head[:4] == b"glTF":
        return "glb"
    if head[:4] == b"PK\x03\x04":
        return _sniff_archive(path)
    if head[:6] == b"\x93NUMPY":
        return "npy"
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "torch"  # a pickle: torch wrote checkpoints as bare pickles before it wrote archives
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < size:
        return "safetensors"
    # A binary STL may begin with "solid" as one in text does. Its size follows from its count, so that is tested first.
    if size >= 84 and size == 84 + 50 * int.from_bytes(head[80:84], "little"):
        return "stl"
    if b"\0" in head:
        return sniff_splats(head, size)
    lines = [line for line in data_lines(head.decode("utf-8", "replace")) if line]
    first = lines[0] if lines else ""
    if re.match(r"(ST)?C?N?4?OFF\b", first):
        return "off"
    if first.split(None, 1)[:1] == ["solid"]:
        return "stl"
    if first.startswith("{") and b'"asset"' in head:
        return "gltf"
    if any(re.match(r"v\s+[-+.\d]", line) for line in lines):
        return "obj"
    if numbers(first) or (len(lines) > 1 and numbers(lines[1])):
        return "xyz"
    return sniff_splats(head, size)


def _sniff_archive(path: Path) -> str:
    """What a zip archive holds, by the names of its members."""
    try:
        with open_archive(path) as archive:
            names = archive.namelist()
    except FormatError as error:
        raise InputError(f"{path} cannot be read as an archive: {one_line(str(error))}") from error
    if any(name.endswith("/data.pkl") for name in names):
        return "torch"
    return "sog" if "meta.json" in names else "npz"
