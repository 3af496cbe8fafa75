"""Tensors in safetensors files, with metadata.

safetensors is imported only where a file is read or written: networks are built and applied without it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lamina.errors import InputError

METADATA_KEY = "lamina"  # under which the metadata is stored


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> Path:
    """Write tensors and metadata (values that JSON holds). If that fails, no part of a file is left at the path."""
    from safetensors.torch import save

    path = Path(path)
    data = save(
        {key: value.detach().cpu().contiguous() for key, value in tensors.items()},
        metadata={METADATA_KEY: json.dumps(metadata)},  # one entry, because safetensors writes several in random order
    )
    draft = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(data)
        os.replace(draft, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error
    return path


def load_tensors(path: str | Path, tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata of a file; tensors=False reads the metadata alone. Raises InputError for other files."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}; expected weights in safetensors format.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get(METADATA_KEY, "{}"))
            names = file.keys() if tensors else ()
            found = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, ValueError, RecursionError, OSError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise InputError(f"{path} is no safetensors file of lamina's: {reason}.") from error
    return found, metadata if isinstance(metadata, dict) else {}
