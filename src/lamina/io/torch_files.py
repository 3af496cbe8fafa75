"""Checkpoints of torch of unknown origin, read as tensors in nested dicts, never as code.

torch.load(weights_only=True) runs no code, but it trusts the sizes in the file. So the pickle is inspected first,
without being executed. It may name only plain tensors in ordered dicts, and each storage that it asks for must fit the
bytes that the file holds. Both formats of torch.save are read: the zip archive, and the sequence of pickles that was
written before torch 1.6.
"""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lamina.io.archives import open_archive, read_member
from lamina.io.formats import FormatError

ITEM_BYTES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1,
}  # fmt: skip
STORAGE = re.compile(rf"torch (?:{'|'.join(ITEM_BYTES)})Storage")
HARMLESS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    "torch Size",
}
PUTS = {"BINPUT", "LONG_BINPUT", "PUT"}
GETS = {"BINGET", "LONG_BINGET", "GET"}
PLAIN = {"BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "NONE"}
FOREIGN = {"STACK_GLOBAL", "INST", "OBJ", "PERSID", "EXT1", "EXT2", "EXT4", "DUP", "POP", "POP_MARK"}
OTHER = object()  # stands for values that do not matter
PROTOCOL = 2  # of the pickles that torch.save writes
LEGACY_PICKLES = 4  # magic number, protocol, machine, and the object


def read_checkpoint(path: Path) -> Any:
    """What torch.save wrote: tensors in nested dicts and lists, on the CPU. Raises FormatError otherwise."""
    with path.open("rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"
    if zipped:
        _check_zipped(path)
    else:
        _check_legacy(path)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged pickles raise exceptions of any kind
        raise FormatError(f"torch cannot load it: {' '.join(str(error).split())[:120]}") from error
    for name, tensor in tensors_in(loaded):
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise FormatError(f"its tensor {name[:40]!r} is no plain array of numbers")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise FormatError(f"its tensor {name[:40]!r} announces the shape {tuple(tensor.shape)}, more than it holds")
    return loaded


def tensors_in(loaded: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors in nested dicts and lists, each once, with its keys joined by dots."""
    seen: set[int] = set()
    waiting = [("", loaded)]
    while waiting:
        prefix, item = waiting.pop()
        if isinstance(item, Tensor):
            yield prefix, item
        elif id(item) not in seen:  # containers may refer to each other, or to one another many times
            seen.add(id(item))
            pairs = item.items() if isinstance(item, Mapping) else enumerate(item) if isinstance(item, list) else ()
            waiting += reversed([(f"{prefix}.{key}" if prefix else str(key), value) for key, value in pairs])


def _check_zipped(path: Path) -> None:
    with open_archive(path) as archive:
        members = {m.filename: m for m in archive.infolist()}
        pickles = [name for name in members if name.endswith("/data.pkl")]
        if len(pickles) != 1 or len(members) != len(archive.infolist()):
            raise FormatError("the archive is none of torch.save's")
        if any(m.compress_type != zipfile.ZIP_STORED or m.compress_size != m.file_size for m in members.values()):
            raise FormatError("the archive has compressed members, which torch.save does not write")
        folder = pickles[0].removesuffix("data.pkl")
        data = read_member(archive, pickles[0])
    for key, size in _storages(io.BytesIO(data)).items():
        member = members.get(f"{folder}data/{key}")
        if member is None or member.file_size != size:
            raise FormatError(f"its storage {key[:40]!r} announces {size} bytes and holds another number of them")


def _check_legacy(path: Path) -> None:
    data = path.read_bytes()
    stream = io.BytesIO(data)
    sizes: dict[str, int] = {}
    for _ in range(LEGACY_PICKLES):
        sizes |= _storages(stream)
    if sum(sizes.values()) > len(data) - stream.tell():
        raise FormatError("its tensors announce more numbers than the file holds")


def _storages(stream: io.BytesIO) -> dict[str, int]:
    """Bytes of each storage that the next pickle in the stream asks for, by key.

    A pickle asks for a storage by the tuple ("storage", type, key, place, count[, None]), directly followed by
    BINPERSID. The parts of the tuple are written one after the other, or earlier with a number under which the
    unpickler remembers them. Anything else in between could mean another tuple to torch, and is refused.
    """
    sizes: dict[str, int] = {}
    memo: dict[str, object] = {}
    recent: list[object] = []  # what was pushed since the last mark; OTHER stands for what does not matter
    try:
        for op, argument, _ in pickletools.genops(stream):
            if op.name == "PROTO" and argument != PROTOCOL:
                raise FormatError(f"it is a pickle of protocol {argument}; torch.save writes {PROTOCOL}")
            if op.name in PUTS:
                memo[str(argument)] = recent[-1] if recent else OTHER
            elif op.name == "GLOBAL":
                if argument not in HARMLESS and not STORAGE.fullmatch(str(argument)):
                    raise FormatError(f"it names {str(argument)[:60]!r}, no part of plain weights; save a state dict")
                recent.append(("global", argument))
            elif op.name in PLAIN:
                recent.append(argument)
            elif op.name in GETS:
                recent.append(memo.get(str(argument), OTHER))
            elif op.name == "MARK":
                recent = []
            elif op.name == "TUPLE":
                recent = [tuple(recent)]
            elif op.name == "BINPERSID":
                key, size = _storage(recent[-1] if recent else OTHER)
                sizes[key] = max(size, sizes.get(key, 0))
                recent = [OTHER]
            elif op.name in FOREIGN:
                raise FormatError(f"it uses {op.name}, which torch.save does not write")
            else:
                recent.append(OTHER)
    except (ValueError, IndexError, UnicodeError, OverflowError) as error:
        raise FormatError("it is no checkpoint of torch.save's") from error
    return sizes


def _storage(asked: object) -> tuple[str, int]:
    match asked:
        case ("storage", ("global", str(kind)), str(key), str(), int(count), *rest) if rest in ([], [None]):
            if STORAGE.fullmatch(kind) and key and count >= 0:
                return key, count * ITEM_BYTES[kind.removeprefix("torch ").removesuffix("Storage")]
    raise FormatError("it asks for a storage in a way that torch.save does not")
